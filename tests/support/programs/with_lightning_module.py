"""Runs of Lightning with `wids.lightning.DataModule`. Arguments: index, directory for the results, ranks, runs as JSON.

The program has nothing but this: the workers of its loaders import it, and need no Lightning.
"""

if __name__ == "__main__":
    from tests.support.programs.lightning_module_runs import main

    main()

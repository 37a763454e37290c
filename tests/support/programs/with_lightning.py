"""Runs of Lightning. Arguments: index, directory for the results, number of ranks, the runs as JSON.

The program has nothing but this: the workers of its loaders import it, and need no Lightning.
"""

if __name__ == "__main__":
    from tests.support.programs.lightning_runs import main

    main()

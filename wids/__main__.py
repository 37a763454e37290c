"""``python -m wids`` and the command ``wids``, whose packages are of an extra."""

from __future__ import annotations

import importlib.util
import sys


def run_program() -> None:
    """Run the command line; without its packages, say how to install them."""
    for package in ("typer", "rich"):
        if importlib.util.find_spec(package) is None:
            sys.exit(f"wids: the commands need {package}, which is not installed: pip install 'wids[cli]'")
    from wids.tools import cli

    cli.run_program()


if __name__ == "__main__":
    run_program()

"""``python -m wids`` is ``wids``."""

from __future__ import annotations

from wids.tools.cli import run_program

if __name__ == "__main__":
    run_program()

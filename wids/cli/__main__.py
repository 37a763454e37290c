"""``python -m wids.cli`` is ``wids``."""

from __future__ import annotations

from wids.cli import main

if __name__ == "__main__":
    main()

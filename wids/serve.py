"""Pages of a dataset in a browser, from a notebook or a program: `start`. They are made in `wids.tools.serve`."""

from __future__ import annotations

from wids.tools.serve import start

__all__ = ["start"]

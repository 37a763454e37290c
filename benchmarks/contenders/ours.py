"""This package, from the working tree."""

from __future__ import annotations

from wids_api import WidsApi, WidsBatches
from worker import serve


class Ours(WidsBatches, WidsApi):
    """The common calls, and those that the original lacks."""


if __name__ == "__main__":
    serve(Ours)

"""What the dataset tells its hooks, carried from many processes to one.

Rules: one line for one event, written by a single append, so that lines of concurrent processes never mix. Only what
the demo counts is written: shards fetched, found in the cache, opened, and attempts that had to be repeated.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import TYPE_CHECKING

from wids.events import Fetched, Hit, Opened, Rejected, Retried

if TYPE_CHECKING:
    from wids.events import Event

_COUNTED = (Fetched, Hit, Opened, Retried, Rejected)


class EventLog:
    """A hook for `wids.ShardListDataset` that appends to the file ``path``; it pickles, so workers have it too."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, event: Event) -> None:
        """Write ``event`` down, if it is counted."""
        if isinstance(event, _COUNTED):
            line = json.dumps({"event": type(event).__name__, "url": event.url})
            fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                os.write(fd, line.encode() + b"\n")
            finally:
                os.close(fd)

    def count(self) -> Counter[str]:
        """Events so far, by the name of their type; none when nothing was written."""
        try:
            with open(self.path, encoding="utf-8") as file:
                return Counter(json.loads(line)["event"] for line in file)
        except FileNotFoundError:
            return Counter()

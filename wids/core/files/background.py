"""Downloads in threads end before the interpreter does: no transfer is under way then, and no part file there."""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.util
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable


class Downloading(Protocol):
    """An object that has threads that download."""

    def end(self, *, is_finished: bool) -> None:
        """Begin no more; downloads under way are finished, or abandoned."""

    def join(self, seconds: float | None = None) -> None:
        """Wait until its threads have ended, or for so long."""


def join_threads(threads: Iterable[threading.Thread], seconds: float | None) -> None:
    """Wait until threads have ended, or for so long in all; None: for as long as it takes."""
    end = None if seconds is None else time.monotonic() + seconds
    for thread in threads:
        thread.join(None if end is None else max(end - time.monotonic(), 0.0))


# The longest wait for download threads at the end of an epoch or of the process.
END_SECONDS = 5.0

_live: weakref.WeakKeyDictionary[Downloading, int] = weakref.WeakKeyDictionary()


def end_at_exit(download: Downloading) -> None:
    """End it when this process ends, if it is still there."""
    if download in _live and _live[download] == os.getpid():
        return
    atexit.unregister(_end_all)
    atexit.register(_end_all)
    if multiprocessing.parent_process() is not None:  # these leave without atexit
        multiprocessing.util.Finalize(None, _end_all, exitpriority=100)
    _live[download] = os.getpid()


def _end_all() -> None:
    live = [download for download, pid in list(_live.items()) if pid == os.getpid()]
    for download in live:
        download.end(is_finished=False)
    end = time.monotonic() + END_SECONDS
    for download in live:
        download.join(max(end - time.monotonic(), 0.0))

"""Code that the garbage collector may run: the rule, and the queue that takes the rest.

The collector runs in any thread, between any two of its steps: in the middle of a wait, too, while the thread holds the
lock of an event, a queue, a logger or an executor. It calls ``__del__``, callbacks of weak references, and the ends
(``finally``, ``with``) of generators that were abandoned. Handlers of signals come as unexpectedly, in the main thread.
So what runs there

- takes no lock that a thread may hold, this one included: it sets no event, logs nothing, starts no thread, calls no
  hook. Attributes may be set, and `queue.SimpleQueue.put` may interrupt itself;
- waits for nothing: no file system but to close a descriptor that was read, no server, no thread, no process;
- raises nothing;
- does nothing while the interpreter ends, when modules' names are None, nor in a child of the process that made the
  object.

What needs more is left here, and done by the next code of ours that may wait: what opens a shard or makes a writer, the
threads that fetch ahead and that watch leases, the end of the process. A test lists all that the collector may run.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import multiprocessing.util
import os
import queue
import sys
from typing import TYPE_CHECKING

from wids.core.files import forks
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Callable

_left: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
_ends_in = -1  # the process at whose end the rest is done


def leave(function: Callable[[], object], is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
    """For finalizers: have ``function`` called soon, by code that may wait."""
    if not is_ending():
        _left.put(function)


def end(function: Callable[[], object], is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
    """For finalizers: close descriptors under `forks.lock` now, or soon if another thread has that lock."""
    if is_ending():
        return
    if not forks.lock.acquire(blocking=False):
        _left.put(function)  # the other thread may wait for a lock that this one holds
        return
    try:
        with contextlib.suppress(OSError, BufferError):  # a failing disk; a map that has readers
            function()
    finally:
        forks.lock.release()


def do_left() -> None:
    """Do the work that finalizers have left; not for code that holds a lock."""
    while not _left.empty():
        try:
            function = _left.get_nowait()
        except queue.Empty:  # another thread was faster
            return
        try:
            function()
        except Exception:  # noqa: BLE001 - of an object that its program has forgotten
            logger.exception("a forgotten object cannot be cleaned up")


def begin() -> None:
    """For code that makes objects that leave work: do the work that others have left; the end does the rest."""
    global _ends_in  # noqa: PLW0603 - of this process
    if _ends_in != os.getpid():
        _ends_in = os.getpid()
        atexit.unregister(do_left)
        atexit.register(do_left)
        if multiprocessing.parent_process() is not None:  # these leave without atexit
            multiprocessing.util.Finalize(None, do_left, exitpriority=100)
    do_left()


forks.call_in_child(do_left)  # it has copies of the descriptors

"""Bounding a cache directory from outside of the jobs that fill it: once, or from a background process.

Rules: what goes is what `wids.cache.room` would evict, and nothing else: shards that a cache fetched, that nobody has
open, that are not kept; those that no live job is coming to first. All other files stay, whatever the pattern says. A
background process is the only one in its directory; another one waits for its turn, and takes over when the first is
gone. It ends with its parent, however that ends.
"""

from __future__ import annotations

import contextlib
import glob
import multiprocessing
import os
import signal
import time
from functools import partial
from multiprocessing.connection import wait
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from wids.cache.room import Room, evict_from
from wids.events import Swept, logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.process import BaseProcess

    from wids.events import Event

_LOCK_NAME = ".cleanup.lock"
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Idle jobs look for requests four times a second (see `wids.cache.leases`): who asks gives them twice as long.
_WATCH_SECONDS, _HEARD_SECONDS, _POLL_SECONDS = 2.0, 0.5, 0.1


def keep_most_recent_files(
    pattern: str | os.PathLike[str],
    maxsize: int = int(1e12),
    maxfiles: int = 1000,
    debug: bool = False,  # noqa: FBT001, FBT002 - the original's signature
) -> list[str]:
    """Delete cached shards until the rest fits, those that were not used for longest first.

    A shard's saved member table counts with it and goes with it. So do files that killed processes left behind. What is
    open in any process, marked to be kept, or was not put there by a cache, stays.

    Args:
        pattern: a cache directory, or a glob pattern for shards in one or several of them.
        maxsize: bytes to keep at most.
        maxfiles: shards to keep at most.
        debug: only log what would go.

    Returns:
        The paths deleted (with ``debug``: that would be), in that order.

    Raises:
        CacheError: a directory cannot be written.
    """
    text = os.path.expanduser(os.fspath(pattern))
    if os.path.isdir(text):
        directories, wanted = [text], None
    else:
        matches = glob.glob(text)
        directories, wanted = sorted({os.path.dirname(path) for path in matches}), frozenset(matches)
    rooms = [Room(directory or ".", limit=None, hooks=[_log_swept]) for directory in directories]
    evict = partial(evict_from, rooms, limit=maxsize, most=maxfiles, among=wanted, is_dry=debug)
    before = [room.bell_time() for room in rooms]
    gone = evict()
    end = time.monotonic() + _HEARD_SECONDS
    while (rung := [room.bell_time() for room in rooms]) != before and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)  # others let go of what they have open and do not read
        before = rung
        gone += evict()
    for path, size in gone:
        logger.info("cleanup: %s %s (%d bytes)", "would delete" if debug else "deleted", path, size)
    return [path for path, _ in gone]


def _log_swept(event: Event) -> None:
    if isinstance(event, Swept):
        logger.info(
            "cleanup: deleted %s (%d bytes), left behind by a process that is gone", event.path, event.size_bytes
        )


def create_cleanup_background_process(
    pattern: str | os.PathLike[str], maxsize: int = int(1e12), maxfiles: int = 1000, every: float = 60
) -> BaseProcess:
    """Start a process that runs `keep_most_recent_files` now and every ``every`` seconds.

    It ends with this process, or on ``.terminate()``, which the caller may call at any time. A directory that does not
    exist yet is waited for.
    """
    process = multiprocessing.Process(
        target=_clean_forever, args=(os.fspath(pattern), maxsize, maxfiles, every), daemon=True, name="wids-cleanup"
    )
    with _signals_held():
        process.start()
    return process


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Hold signals back, so that a forked child is not terminated into a handler of the program that swallows it."""
    if multiprocessing.get_start_method() != "fork" or not hasattr(
        signal, "pthread_sigmask"
    ):  # no handlers come along, and a fork server would keep the mask
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _clean_forever(pattern: str, maxsize: int, maxfiles: int, every: float) -> None:
    # A fork brings the program's handlers along, and a cleaner must not save its checkpoint or print its traceback.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    parent_pid = os.getppid()
    clean_repeatedly(
        pattern, maxsize=maxsize, maxfiles=maxfiles, every=every, wait=lambda end: _wait_with_parent(end, parent_pid)
    )


def clean_repeatedly(pattern: str, *, maxsize: int, maxfiles: int, every: float, wait: Callable[[float], bool]) -> None:
    """Run `keep_most_recent_files` now and every ``every`` seconds, when it is this process's turn.

    Args:
        pattern: as there; what does not exist yet is waited for.
        maxsize: as there.
        maxfiles: as there.
        every: seconds from the start of one round to the next; a turn is asked for every two at least.
        wait: waits until so much by the monotonic clock; False: this was the last round.
    """
    pattern = os.path.expanduser(pattern)
    turn = _Turn(pattern)
    while True:
        now = time.monotonic()
        end = now + every
        try:
            if turn.take():
                keep_most_recent_files(pattern, maxsize=maxsize, maxfiles=maxfiles)
            else:
                end = min(end, now + _WATCH_SECONDS)
        except OSError as error:  # a file system in trouble: the next round may do
            logger.warning("cleanup of %s: %s", pattern, error)
        if not wait(end):
            return


def _wait_with_parent(end: float, parent_pid: int) -> bool:
    """Wait until ``end`` (of the monotonic clock); False as soon as the parent is gone."""
    parent = multiprocessing.parent_process()
    sentinels = [parent.sentinel] if parent is not None else []
    while True:
        left = end - time.monotonic()
        # Children that were forked after this process hold the other end of its sentinel open when the parent is
        # killed, so the parent's number is looked at too.
        if wait(sentinels, timeout=max(0.0, min(left, _WATCH_SECONDS))) or os.getppid() != parent_pid:
            return False
        if left <= _WATCH_SECONDS:
            return True


class _Turn:
    """The lock that makes one process clean a directory at a time; freed by the kernel when that process ends."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._lock: FileLock | None = None
        self._said = ""

    def take(self) -> bool:
        """Whether it is this process's turn, from here on."""
        if self._lock is not None:
            return True
        directory = _directory_of(self._pattern)
        if directory is None:
            self._say(f"{self._pattern} does not exist yet; waiting for it")
            return False
        lock = FileLock(os.path.join(directory, _LOCK_NAME), preserve_lock_file=True, fallback_to_soft=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            self._say(f"another process cleans {directory}; waiting for its turn")
            return False
        except (OSError, NotImplementedError) as error:  # no locks here; two cleaners merely look twice
            self._say(f"{directory} has no lock ({error}); cleaning all the same")
            return True
        self._lock = lock
        if self._said:
            self._say(f"it is this process's turn to clean {directory}")
        return True

    def _say(self, words: str) -> None:
        """Log what has changed, once."""
        if words != self._said:
            self._said = words
            logger.info("cleanup: %s", words)


def _directory_of(pattern: str) -> str | None:
    """The directory under which all matches lie; None if it does not exist (yet)."""
    if os.path.isdir(pattern):
        return pattern
    if not glob.has_magic(pattern) and not os.path.exists(pattern):
        return None
    directory = os.path.dirname(pattern)
    while glob.has_magic(directory):
        directory = os.path.dirname(directory)
    directory = directory or "."
    return directory if os.path.isdir(directory) else None

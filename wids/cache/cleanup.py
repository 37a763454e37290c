"""Bounding a directory of shards: keep the newest files, once or from a background process.

Rules: only regular files that match the caller's pattern go, and never a lock or a download under way. A process that
reads a deleted shard keeps its open file. One cleaner works on a directory at a time; another one waits for its turn,
and takes over when the first is gone. The background process ends with its parent, however that ends.
"""

from __future__ import annotations

import contextlib
import glob
import multiprocessing
import os
import signal
import stat
import time
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, NamedTuple

from filelock import FileLock, Timeout

from wids.cache import locks
from wids.events import logger
from wids.index import table as tables

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.process import BaseProcess

_LOCK_NAME = ".cleanup.lock"
_NOT_SHARDS = (locks.SUFFIX, tables.SUFFIX, ".part")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_WATCH_SECONDS = 2.0


class _File(NamedTuple):
    """A file that may go; ``size`` in bytes, its table included."""

    mtime_ns: int
    path: str
    size: int


def keep_most_recent_files(
    pattern: str | os.PathLike[str],
    maxsize: int = int(1e12),
    maxfiles: int = 1000,
    debug: bool = False,  # noqa: FBT001, FBT002 - the original's signature
) -> list[str]:
    """Delete the oldest files that match ``pattern`` until the rest fits.

    A shard's saved member table counts with it and goes with it. A file that cannot be deleted is logged and stays.

    Args:
        pattern: a glob pattern, or a directory for all its files.
        maxsize: bytes to keep at most.
        maxfiles: files to keep at most.
        debug: only log what would go.

    Returns:
        The paths deleted (with ``debug``: that would be), oldest first.
    """
    text = os.path.expanduser(os.fspath(pattern))
    if os.path.isdir(text):
        text = os.path.join(glob.escape(text), "*")
    found = [file for path in glob.glob(text) if (file := _look_at(path)) is not None]
    found.sort(reverse=True)
    total, surplus = 0, []
    for number, file in enumerate(found):
        total += file.size
        if total > maxsize or number >= maxfiles:
            surplus.append(file)
    return [file.path for file in reversed(surplus) if _delete(file, is_dry=debug)]


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
    if multiprocessing.get_start_method() != "fork":  # no handlers come along, and a fork server would keep the mask
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
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    pattern = os.path.expanduser(pattern)
    turn = _Turn(pattern)
    parent_pid = os.getppid()
    while True:
        end = time.monotonic() + every
        try:
            if turn.take():
                keep_most_recent_files(pattern, maxsize=maxsize, maxfiles=maxfiles)
        except OSError as error:  # a file system in trouble: the next round may do
            logger.warning("cleanup of %s: %s", pattern, error)
        if not _wait_with_parent(end, parent_pid):
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

    def take(self) -> bool:
        """Whether it is this process's turn, from here on."""
        if self._lock is not None:
            return True
        directory = _directory_of(self._pattern)
        if directory is None:
            return False
        lock = FileLock(os.path.join(directory, _LOCK_NAME), preserve_lock_file=True, fallback_to_soft=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            logger.debug("cleanup: another process cleans %s", directory)
            return False
        except (OSError, NotImplementedError) as error:  # no locks here; two cleaners merely look twice
            logger.debug("cleanup of %s: no lock (%s)", directory, error)
            return True
        self._lock = lock
        return True


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


def _look_at(path: str) -> _File | None:
    """A file that may go, or None."""
    if path.endswith(_NOT_SHARDS):
        return None
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    size = status.st_size
    with contextlib.suppress(FileNotFoundError):
        size += os.stat(path + tables.SUFFIX).st_size
    return _File(status.st_mtime_ns, path, size)


def _delete(file: _File, *, is_dry: bool) -> bool:
    """Delete a file and its table, the table last: without its shard it is inert. False if it has to stay."""
    logger.info("cleanup: %s %s (%d bytes)", "would delete" if is_dry else "deletes", file.path, file.size)
    if is_dry:
        return True
    for path in (file.path, file.path + tables.SUFFIX):
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as error:  # another user's file, say: it must not keep the rest from going
            logger.warning("cleanup: %s cannot be deleted: %s", path, error)
            return False
    return True

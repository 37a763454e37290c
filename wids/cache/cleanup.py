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
import stat
import time
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, NamedTuple

from filelock import FileLock, Timeout

from wids.cache import locks
from wids.events import logger
from wids.index import table as tables

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

_LOCK_NAME = ".cleanup.lock"
_NOT_SHARDS = (locks.SUFFIX, tables.SUFFIX, ".part")


class _Kept(NamedTuple):
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

    A shard's saved member table counts with it and goes with it.

    Args:
        pattern: a glob pattern, or a directory for all its files.
        maxsize: bytes to keep at most.
        maxfiles: files to keep at most.
        debug: only say what would go.

    Returns:
        The paths deleted (with ``debug``: that would be), oldest first.
    """
    text = os.path.expanduser(os.fspath(pattern))
    if os.path.isdir(text):
        text = os.path.join(glob.escape(text), "*")
    found = [file for path in glob.glob(text) if (file := _look_at(path)) is not None]
    found.sort(reverse=True)
    total, gone = 0, []
    for number, file in enumerate(found):
        total += file.size
        if total > maxsize or number >= maxfiles:
            gone.append(file)
    for file in reversed(gone):
        logger.info("cleanup: %s %s (%d bytes)", "would delete" if debug else "deletes", file.path, file.size)
        if not debug:
            for path in (file.path, file.path + tables.SUFFIX):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
    return [file.path for file in reversed(gone)]


def create_cleanup_background_process(
    pattern: str | os.PathLike[str], maxsize: int = int(1e12), maxfiles: int = 1000, every: float = 60
) -> BaseProcess:
    """Start a process that runs `keep_most_recent_files` every ``every`` seconds.

    It ends with this process, or on ``.terminate()``, which the caller may call at any time.
    """
    process = multiprocessing.Process(
        target=_clean_forever, args=(os.fspath(pattern), maxsize, maxfiles, every), daemon=True, name="wids-cleanup"
    )
    process.start()
    return process


def _clean_forever(pattern: str, maxsize: int, maxfiles: int, every: float) -> None:
    pattern = os.path.expanduser(pattern)
    directory = pattern if os.path.isdir(pattern) else os.path.dirname(pattern) or "."
    lock = FileLock(os.path.join(directory, _LOCK_NAME), preserve_lock_file=True, fallback_to_soft=False)
    parent = multiprocessing.parent_process()
    while True:
        start = time.monotonic()
        try:
            if not lock.is_locked:
                lock.acquire(timeout=0)
            keep_most_recent_files(pattern, maxsize=maxsize, maxfiles=maxfiles)
        except Timeout:
            logger.debug("cleanup: another process cleans %s", directory)
        except OSError as error:  # a directory that is not there yet, a file system in trouble: the next round may do
            logger.warning("cleanup of %s: %s", pattern, error)
        pause = max(0.0, every - (time.monotonic() - start))
        if parent is None:
            time.sleep(pause)
        elif wait([parent.sentinel], timeout=pause):
            return


def _look_at(path: str) -> _Kept | None:
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
    return _Kept(status.st_mtime_ns, path, size)

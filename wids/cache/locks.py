"""Inter-process locks on files of the cache directory.

Rules: a lock file is never unlinked, because a waiter would then lock an inode that nobody else sees. Locks only
save work: publishing is atomic without them, so a file system that has none degrades to double downloads.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import time
from typing import TYPE_CHECKING

from filelock import FileLock

from wids.errors import CacheError
from wids.events import Waited, emit, logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wids.events import Hook

SUFFIX = ".lock"
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
_POLL_SECONDS, _REPORT_SECONDS = 0.02, 30.0
_MOST_MISSED = 50


@contextlib.contextmanager
def hold(path: str, *, hooks: Sequence[Hook] = ()) -> Iterator[None]:
    """Hold the exclusive lock that belongs to ``path`` (the file ``path`` + ``.lock``), waiting as long as it takes.

    A killed holder's lock is freed by the kernel. The wait is logged every 30 s.

    Raises:
        CacheError: the lock file cannot be made (no such directory, read-only, no permission), or this very thread
            holds the lock.
    """
    lock = FileLock(path + SUFFIX, poll_interval=_POLL_SECONDS, fallback_to_soft=False, preserve_lock_file=True)
    is_held = _acquire(lock, path, hooks)
    try:
        yield
    finally:
        if is_held:
            lock.release()


def _acquire(lock: FileLock, path: str, hooks: Sequence[Hook]) -> bool:
    start = reported = time.monotonic()
    has_waited = False
    missed = 0

    def note_wait() -> bool:
        nonlocal has_waited, reported, missed
        has_waited = True
        now = time.monotonic()
        if now - reported >= _REPORT_SECONDS:
            reported = now
            logger.warning("%s: still waiting for its lock after %.0f s", path, now - start)
        # filelock tries for ever where a directory is there and files cannot be made (/proc, a dying mount).
        missed = 0 if os.path.lexists(path + SUFFIX) else missed + 1
        return missed >= _MOST_MISSED

    try:
        lock.acquire(timeout=-1, cancel_check=note_wait)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise CacheError(f"{path}: cannot make its lock file ({error}); is the directory writable?") from error
        _warn_of_no_locks(os.path.dirname(path), str(error))
        return False
    except RuntimeError as error:  # filelock sees that waiting would never end
        raise CacheError(f"{path}: this thread holds its lock already ({error}); does a hook open shards?") from error
    if has_waited:
        emit(hooks, Waited(path=path, seconds=time.monotonic() - start))
    return True


@functools.cache  # once for each directory, not for each shard
def _warn_of_no_locks(directory: str, cause: str) -> None:
    logger.warning("%s: this file system has no locks (%s); shards may be downloaded twice", directory, cause)


def mark(fd: int) -> None:
    """Mark an open file of our own as in use, with a lock that the kernel drops when the process dies."""
    with contextlib.suppress(OSError):  # no such locks here: sweepers must then go by age
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def unmark(fd: int) -> None:
    """Drop the mark, also for a process that was forked meanwhile and holds a copy of the descriptor."""
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)

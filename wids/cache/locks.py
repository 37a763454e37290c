"""Inter-process locks on files of the cache directory, and leases on the shards in it.

Rules: a lock file is never unlinked, because a waiter would then lock an inode that nobody else sees. Locks only
save work: publishing is atomic without them, so a file system that has none degrades to double downloads. A lease is a
shared lock on an open shard itself: whoever would delete it has to lock it exclusively, and the kernel ends the lease
with the process. Leases are released by closing only, for an unlock would release those of forked processes too.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import time
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from wids.cache import system
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
    lock = _lock_of(path)
    is_held = _acquire(lock, path, hooks)
    try:
        yield
    finally:
        if is_held:
            lock.release()


@contextlib.contextmanager
def try_hold(path: str) -> Iterator[bool]:
    """As `hold` without waiting; gives whether it is held (or there are no locks here)."""
    lock = _lock_of(path)
    try:
        lock.acquire(timeout=0)
    except (Timeout, RuntimeError):
        yield False
        return
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise CacheError(f"{path}: cannot make its lock file ({error}); is the directory writable?") from error
        yield True
        return
    try:
        yield True
    finally:
        lock.release()


def _lock_of(path: str) -> FileLock:
    return FileLock(path + SUFFIX, poll_interval=_POLL_SECONDS, fallback_to_soft=False, preserve_lock_file=True)


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


def mark(fd: int) -> bool:
    """Mark an open file of our own as in use; whether others see it (they go by age where there are no such locks)."""
    return bool(system.try_lock(fd, is_shared=False))


def unmark(fd: int) -> None:
    """Drop the mark, also for a process that was forked meanwhile and holds a copy of the descriptor."""
    system.unlock(fd)


def lease(fd: int) -> bool | None:
    """Lease an open shard: True; False if it is being deleted or is deleted; None where there are no leases."""
    if os.fstat(fd).st_nlink == 0:
        return False
    is_leased = system.try_lock(fd, is_shared=True)
    # It may have been deleted between the first look and the lock; after it, nobody can.
    return is_leased if is_leased is None else is_leased and os.fstat(fd).st_nlink > 0

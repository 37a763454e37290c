"""Inter-process locks on files of the cache directory.

Rules: a lock file is never unlinked, because a waiter would then lock an inode that nobody else sees. Locks only
save work: publishing is atomic without them, so a file system that has none degrades to double downloads.
"""

from __future__ import annotations

import errno
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from wids.errors import CacheError
from wids.events import Waited, emit, logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wids.events import Hook

SUFFIX = ".lock"
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
_REPORT_SECONDS = 30.0


@contextmanager
def hold(path: str, *, hooks: Sequence[Hook] = ()) -> Iterator[None]:
    """Hold the exclusive lock that belongs to ``path`` (the file ``path`` + ``.lock``), waiting as long as it takes.

    A killed holder's lock is freed by the kernel. The wait is logged every 30 s.

    Raises:
        CacheError: the lock file cannot be made (no such directory, read-only, no permission).
    """
    lock = FileLock(path + SUFFIX, poll_interval=0.02, fallback_to_soft=False, preserve_lock_file=True)
    is_held = _acquire(lock, path, hooks)
    try:
        yield
    finally:
        if is_held:
            lock.release()


def _acquire(lock: FileLock, path: str, hooks: Sequence[Hook]) -> bool:
    start = time.monotonic()
    has_waited = False
    while True:
        try:
            lock.acquire(timeout=_REPORT_SECONDS if has_waited else 0)
        except Timeout:
            if has_waited:
                logger.warning("%s: still waiting for its lock after %.0f s", path, time.monotonic() - start)
            has_waited = True
            continue
        except (OSError, NotImplementedError) as error:
            if isinstance(error, NotImplementedError) or error.errno in _NO_LOCKS:
                logger.warning("%s: this file system has no locks (%s); shards may be downloaded twice", path, error)
                return False
            raise CacheError(f"{path}: cannot make its lock file ({error}); is the directory writable?") from error
        if has_waited:
            emit(hooks, Waited(path=path, seconds=time.monotonic() - start))
        return True


def mark(fd: int) -> None:
    """Mark an open file of our own as in use: a shared-nothing lock that the kernel drops when the process dies."""
    try:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):  # no such locks here: sweepers must then go by age
        return

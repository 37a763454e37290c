"""``wids.wids_cleanup`` of the original."""

from __future__ import annotations

import os

from filelock import FileLock, Timeout

from wids.core.cache.cleanup import create_cleanup_background_process, keep_most_recent_files

__all__ = ["ExclusiveLock", "create_cleanup_background_process", "keep_most_recent_files"]


class ExclusiveLock:
    """A lock file that one process holds at a time. It is never unlinked: a waiter would lock a file without a name."""

    lockfile: str
    lock: FileLock

    def __init__(self, lockfile: str | os.PathLike[str]) -> None:
        self.lockfile = os.fspath(lockfile)
        self.lock = FileLock(self.lockfile, fallback_to_soft=False, preserve_lock_file=True)

    def try_lock(self) -> bool:
        try:
            self.lock.acquire(timeout=0)
        except Timeout:
            return False
        return True

    def release_lock(self) -> None:
        self.lock.release()

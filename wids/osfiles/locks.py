"""Inter-process locks of the cache directory, and leases on the shards in it.

Rules: locks only save work. Publishing is atomic without them, so a file system that has none degrades to double
downloads, and a lock whose holder has been stopped (a debugger, a frozen container, a hung mount) is taken away from
it after a while. A holder writes its process id into the lock file, and shows that it runs by touching it. A lock file
is deleted only by a process that holds it, or to take it away, and a lock on a deleted file is no lock.

A lease is a shared lock on an open shard itself: a process that deletes a shard has to lock it exclusively, and the
kernel ends the lease with the process. Leases are released by closing only, for an unlock would release those of
forked processes too.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import time
from typing import TYPE_CHECKING, overload

from filelock import FileLock, Timeout

from wids.errors import CacheError
from wids.events import Waited, emit, logger
from wids.osfiles import system

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wids.events import Hook

# A lock whose file was not touched for so long belongs to a process that does not run.
STOPPED_SECONDS = 60.0
_POLL_SECONDS, _REPORT_SECONDS, _TOUCH_SECONDS = 0.02, 30.0, 5.0
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
_MAX_MISSED = 50


class Held:
    """A lock that is held; `touch` shows others that its holder runs."""

    def __init__(self, path: str, lock: FileLock | None) -> None:
        self._path, self._lock = path, lock
        self._touched = time.monotonic()
        self._inode = self._sign() if lock is not None else -1

    def touch(self) -> None:
        """Show that this process runs; to be called every few seconds while the lock is held for long."""
        if time.monotonic() - self._touched > _TOUCH_SECONDS and self._is_ours():
            self._touched = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(self._path)

    def release(self, *, is_kept: bool) -> None:
        """Release the lock; its file is deleted unless ``is_kept``."""
        if self._lock is None:
            return
        if not is_kept and self._is_ours():
            # Those who wait on the deleted file see that it is deleted, and lock a new one.
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        self._lock.release()

    def _sign(self) -> int:
        """Write down who holds the lock, which touches the file, too; its inode."""
        try:
            fd = os.open(self._path, system.WRITE_FLAGS)
            try:
                system.write_all(fd, f"{os.getpid()} {os.uname().nodename}\n".encode().ljust(64), 0)
                return os.fstat(fd).st_ino
            finally:
                os.close(fd)
        except OSError:  # a full disk, or a directory that was deleted just now
            return -1

    def _is_ours(self) -> bool:
        """Whether the lock was not taken away while this process was stopped."""
        try:
            return os.stat(self._path).st_ino == self._inode
        except OSError:
            return False


@contextlib.contextmanager
def hold(
    path: str,
    *,
    mode: int = 0o644,
    is_kept: bool = False,
    stopped_seconds: float | None = None,
    hooks: Sequence[Hook] = (),
) -> Iterator[Held]:
    """Hold the exclusive lock of the lock file ``path``, waiting as long as its holder runs.

    Args:
        path: the lock file, which is made.
        mode: its permissions if it is made.
        is_kept: leave the file there afterwards, for a lock that is taken all the time.
        stopped_seconds: a holder that did not touch the file for so long has been stopped, and the lock is taken
            away from it; default `STOPPED_SECONDS`.
        hooks: told of a wait.

    Raises:
        CacheError: the lock file cannot be made (no such directory, read-only, no permission), or this very thread
            holds the lock.
    """
    wait = _Wait(path, STOPPED_SECONDS if stopped_seconds is None else stopped_seconds)
    held = _acquire(path, mode, wait)
    try:
        if wait.has_waited:
            emit(hooks, Waited(path=path, seconds=wait.seconds))
        yield held
    finally:
        held.release(is_kept=is_kept)


@contextlib.contextmanager
def try_hold(path: str, *, mode: int = 0o644) -> Iterator[Held | None]:
    """As `hold` without waiting: None if another process, or this thread, holds it."""
    held = _acquire(path, mode, None)
    try:
        yield held
    finally:
        if held is not None:
            held.release(is_kept=False)


@overload
def _acquire(path: str, mode: int, wait: _Wait) -> Held: ...
@overload
def _acquire(path: str, mode: int, wait: None) -> Held | None: ...
def _acquire(path: str, mode: int, wait: _Wait | None) -> Held | None:
    lock = FileLock(path, mode=mode, poll_interval=_POLL_SECONDS, fallback_to_soft=False, preserve_lock_file=True)
    try:
        if wait is None:
            system.until_permitted(functools.partial(lock.acquire, timeout=0))
        else:
            system.until_permitted(functools.partial(lock.acquire, timeout=-1, cancel_check=wait.should_end))
    except OSError as error:
        if isinstance(error, Timeout):
            if wait is None:
                return None
            if not wait.is_hopeless:  # the lock of a stopped process, in a directory where only that may delete it
                return Held(path, None)
        if error.errno not in _NO_LOCKS:
            raise _refused(path, error) from error
        _warn_of_no_locks(os.path.dirname(path), str(error))
        return Held(path, None)
    except RuntimeError as error:  # filelock sees that waiting would never end
        if wait is None:
            return None
        raise CacheError(f"{path}: this thread holds the lock already ({error}); does a hook open shards?") from error
    return Held(path, lock)


class _Wait:
    """The wait for one lock: warns of a long one, and ends one for a stopped process.

    A holder shows that it runs by changing the lock file's time. Only that it changes counts, for the clock of a file
    server may be another one.
    """

    def __init__(self, path: str, stopped_seconds: float) -> None:
        self._path, self._stopped_seconds = path, stopped_seconds
        self._start = self._reported = self._changed = time.monotonic()
        self._last: tuple[int, int] | None = None
        self._missed = 0
        self.has_waited = False
        self.is_hopeless = False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def should_end(self) -> bool:
        """Whether to give up; asked before each new attempt."""
        self.has_waited = True
        now = time.monotonic()
        try:
            status = os.stat(self._path)
        except OSError:
            # filelock tries for ever where a directory is there and files cannot be made (/proc, a dying mount).
            self._missed += 1
            self.is_hopeless = self._missed >= _MAX_MISSED
            return self.is_hopeless
        self._missed = 0
        if (seen := (status.st_ino, status.st_mtime_ns)) != self._last:
            self._last, self._changed = seen, now
        if now - self._changed > self._stopped_seconds:
            return not self._take_away()
        if now - self._reported >= _REPORT_SECONDS:
            self._reported = now
            logger.warning(
                "%s: still waiting after %.0f s for the lock of %s", self._path, self.seconds, _holder_of(self._path)
            )
        return False

    def _take_away(self) -> bool:
        """Delete the lock file of a process that does not run; whether the lock can be had now."""
        logger.warning(
            "%s: its holder, %s, has not run for %.0f s (stopped, or its disk does not answer); going on without it",
            self._path,
            _holder_of(self._path),
            time.monotonic() - self._changed,
        )
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            return True
        except OSError as error:
            logger.debug("%s: cannot be deleted (%s)", self._path, error)
            return False
        return True


def _holder_of(path: str) -> str:
    try:
        with open(path, "rb") as file:
            pid, host = file.read(512).split()[:2]
        return f"process {int(pid)} on {host.decode('ascii', 'replace')}"
    except (OSError, ValueError):
        return "an unknown process"


def _refused(path: str, error: OSError) -> CacheError:
    advice = "is the directory writable?"
    with contextlib.suppress(OSError):
        if isinstance(error, PermissionError) and os.access(os.path.dirname(path), os.W_OK):
            owner = os.stat(path).st_uid
            advice = f"user {owner} made it without write permission for you: chmod a+w it, or delete it"
    return CacheError(f"{path}: the lock file cannot be made or opened ({error}); {advice}", path=path)


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

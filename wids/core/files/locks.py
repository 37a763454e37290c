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
import re
import threading
import time
import weakref
from typing import TYPE_CHECKING, NamedTuple

from wids.core.files import forks, system
from wids.errors import CacheError
from wids.events import Waited, emit, logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from io import FileIO

    from wids.events import Hook


class LockLimits(NamedTuple):
    """Times of locks; the default is in force, and tests put another one in its place.

    Attributes:
        stopped_seconds: a lock whose file was not touched for this long belongs to a stopped process.
        touch_seconds: interval at which the holder touches it.
        poll_seconds: interval at which a waiting process checks the lock.
        report_seconds: interval at which it reports that it waits.
    """

    stopped_seconds: float = 60.0
    touch_seconds: float = 5.0
    poll_seconds: float = 0.02
    report_seconds: float = 30.0


LIMITS = LockLimits()
# A lock file may disappear while it is opened, and reappear while it is created.
_MAX_TRIES = 50


class HeldLock:
    """A lock that is held; `touch` shows others that its holder runs.

    It owns the open lock file from the moment it is opened: an interrupt may come at any time, and even then the
    lock ends with this object. A forked child has no part in it: its copy of the file would keep the lock of a
    process that is dead.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: FileIO | None = None
        self._thread = threading.get_ident()
        self._touched = time.monotonic()
        self._identity = (-1, -1)
        forks.reset_in_child(self)

    def acquire(self, mode: int, wait: _Wait | None) -> bool:
        """Lock the file, as `acquire` does; False: it is locked already, and there is nothing to wait with."""
        while True:
            fd = system.until_permitted(functools.partial(self._open, mode))
            is_locked = system.try_lock(fd, is_shared=False)
            status = os.fstat(fd)
            self._identity = status.st_dev, status.st_ino
            if is_locked and status.st_nlink:
                _holders[self._identity] = self
                self._sign(fd)
                return True
            self._close()
            if is_locked is None:
                with contextlib.suppress(OSError):  # nothing would delete it later
                    os.unlink(self._path)
                _warn_of_no_locks(os.path.dirname(self._path))
                return True
            if is_locked:  # its holder deleted it just now
                continue
            if wait is None:
                return False
            self._check_not_mine()
            if wait.should_end():  # the lock of a stopped process, in a directory where only that may delete it
                return True
            time.sleep(LIMITS.poll_seconds)

    def touch(self) -> None:
        """Show that this process runs; to be called every few seconds while the lock is held for long."""
        if time.monotonic() - self._touched > LIMITS.touch_seconds and self._is_ours():
            self._touched = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(self._path)

    def release(self, *, is_kept: bool) -> None:
        """Release the lock; its file is deleted unless ``is_kept``."""
        if self._file is None:
            return
        try:
            if not is_kept and self._is_ours():
                # Processes that wait on the deleted file see that it is deleted, and lock a new one.
                with contextlib.suppress(OSError):
                    os.unlink(self._path)
            system.unlock(self._file.fileno())
        finally:
            self._close()

    def start_child(self) -> None:
        """Close the descriptor in a child; see `wids.core.files.forks.Inherited`."""
        self._close()

    def _open(self, mode: int) -> int:
        """Open the lock file: its descriptor."""
        with forks.lock:  # a child must not have a copy that this object does not know of
            self._file = _open(self._path, mode)
            return self._file.fileno()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _sign(self, fd: int) -> None:
        """Write the holder's process id into the file, which touches it, too."""
        with contextlib.suppress(OSError):  # a full disk
            system.write_all(fd, f"{os.getpid()} {os.uname().nodename}\n".encode().ljust(64), 0)

    def _is_ours(self) -> bool:
        """True unless the lock was taken away while this process was stopped."""
        try:
            status = os.stat(self._path)
        except OSError:
            return False
        return self._file is not None and (status.st_dev, status.st_ino) == self._identity

    def _check_not_mine(self) -> None:
        """Raise if this thread itself holds the lock.

        Raises:
            CacheError: it does: the wait for it would never end.
        """
        held = _holders.get(self._identity)
        if held is not None and held._file is not None and held._thread == self._thread:  # noqa: SLF001 - of this class
            raise CacheError(f"{self._path}: this thread holds the lock already; does a hook open shards?")


# (device, inode) of a lock file -> who holds it in this process.
_holders: weakref.WeakValueDictionary[tuple[int, int], HeldLock] = weakref.WeakValueDictionary()


@contextlib.contextmanager
def acquire(
    path: str,
    *,
    mode: int = 0o644,
    is_kept: bool = False,
    stopped_seconds: float | None = None,
    hooks: Sequence[Hook] = (),
) -> Iterator[HeldLock]:
    """Hold the exclusive lock of the lock file ``path``, waiting as long as its holder runs.

    Args:
        path: the lock file, which is made.
        mode: its permissions if it is made.
        is_kept: leave the file there afterwards, for a lock that is taken all the time.
        stopped_seconds: a holder that did not touch the file for so long has been stopped, and the lock is taken
            away from it; default `LockLimits.stopped_seconds`.
        hooks: called for a wait.

    Raises:
        CacheError: the lock file cannot be made (no such directory, read-only, no permission), or this very thread
            holds the lock.
    """
    wait = _Wait(path, LIMITS.stopped_seconds if stopped_seconds is None else stopped_seconds)
    held = HeldLock(path)
    with _releasing(held, path, is_kept=is_kept):
        with _refusing(path):
            held.acquire(mode, wait)
        if wait.has_waited:
            emit(hooks, Waited(path=path, seconds=wait.seconds))
        yield held


@contextlib.contextmanager
def try_acquire(path: str, *, mode: int = 0o644) -> Iterator[HeldLock | None]:
    """`acquire` without waiting: None if another process, or this thread, holds it."""
    held = HeldLock(path)
    with _releasing(held, path):
        with _refusing(path):
            is_held = held.acquire(mode, None)
        yield held if is_held else None


@contextlib.contextmanager
def _releasing(held: HeldLock, path: str, *, is_kept: bool = False) -> Iterator[None]:
    """Release a lock after the block, in which it is taken: an interrupt may come between any two steps of either."""
    try:
        try:
            yield
        finally:
            held.release(is_kept=is_kept)
    except Exception:
        raise
    except BaseException:
        held.release(is_kept=is_kept)
        if not is_kept:  # the file may be there, and the lock was not, or no more
            with contextlib.suppress(OSError):
                remove_unlocked(path)
        raise


def _open(path: str, mode: int) -> FileIO:
    """The lock file, open; it is made if need be, and so is its directory.

    Not by ``os.open``: a signal that comes meanwhile is handled before its descriptor has an owner.

    Raises:
        OSError: it cannot be made or opened.
    """
    for _ in range(_MAX_TRIES):
        # Not made in the same step: in a sticky directory that is refused for another user's file.
        with contextlib.suppress(FileNotFoundError):
            file = open(path, "r+b", buffering=0)  # noqa: SIM115 - the caller closes it
            # A link that another user put there would have us write into a file of our own, elsewhere.
            if os.path.islink(path):
                file.close()
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            return file
        try:
            file = open(path, "x+b", buffering=0)  # noqa: SIM115 - likewise
        except FileExistsError:  # made by another process in this moment
            continue
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            continue
        with contextlib.suppress(PermissionError):
            os.fchmod(file.fileno(), mode)  # under any umask
        return file
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)  # /proc, a mount that is dying


@contextlib.contextmanager
def _refusing(path: str) -> Iterator[None]:
    """Turn the errors of a lock file that cannot be opened or locked into one that says what to do."""
    try:
        yield
    except CacheError:
        raise
    except OSError as error:
        raise _refused(path, error) from error


class _Wait:
    """The wait for one lock: warns of a long one, and ends one for a stopped process.

    A holder shows that it runs by changing the lock file's time. Only that it changes counts, for the clock of a file
    server may be another one.
    """

    has_waited: bool

    def __init__(self, path: str, stopped_seconds: float) -> None:
        self._path, self._stopped_seconds = path, stopped_seconds
        self._start = self._reported = self._changed = time.monotonic()
        self._last: tuple[int, int] | None = None
        self.has_waited = False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def should_end(self) -> bool:
        """True: continue without the lock. Asked before each new attempt."""
        self.has_waited = True
        now = time.monotonic()
        try:
            status = os.stat(self._path)
        except OSError:  # it is free
            return False
        if (seen := (status.st_ino, status.st_mtime_ns)) != self._last:
            self._last, self._changed = seen, now
        if now - self._changed > self._stopped_seconds:
            return not self._take_away()
        if now - self._reported >= LIMITS.report_seconds:
            self._reported = now
            logger.warning(
                "%s: still waiting after %.0f s for the lock of %s", self._path, self.seconds, _holder_of(self._path)
            )
        return False

    def _take_away(self) -> bool:
        """Delete the lock file of a process that does not run; True if the lock is free now."""
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
    advice = system.advice_on_making(error)
    with contextlib.suppress(OSError):
        if isinstance(error, PermissionError) and os.access(os.path.dirname(path), os.W_OK):
            owner = os.stat(path).st_uid
            advice = f"user {owner} made it without write permission for you: chmod a+w it, or delete it"
    return CacheError(f"{path}: the lock file cannot be made or opened ({error}); {advice}", path=path)


@functools.cache  # once for each directory, not for each shard
def _warn_of_no_locks(directory: str) -> None:
    logger.warning("%s: this file system has no locks; shards may be downloaded twice", directory)


def open_to_lock(path: str) -> int:
    """Open a file for an exclusive lock, for which NFS wants it writable; the caller closes.

    Raises:
        OSError: it cannot be opened.
    """
    try:
        return os.open(path, system.WRITE_FLAGS)
    except OSError:
        return os.open(path, system.READ_FLAGS)


def is_locked(path: str) -> bool | None:
    """True if a process holds a lock on a file, of either kind; None: unknown, or the file is gone."""
    try:
        fd = open_to_lock(path)
    except OSError:
        return None
    try:
        is_free = system.try_lock(fd, is_shared=False)
        return None if is_free is None or os.fstat(fd).st_nlink == 0 else not is_free
    finally:
        os.close(fd)


def remove_unlocked(path: str) -> None:
    """Delete a file that no process has locked; one that is locked, or of which that is not known, stays.

    Raises:
        OSError: it is gone, or another user's.
    """
    fd = open_to_lock(path)
    try:
        if system.try_lock(fd, is_shared=False) and os.fstat(fd).st_nlink:
            os.unlink(path)
    finally:
        os.close(fd)


def remove_parts(path: str, *, more: str = "") -> None:
    """Delete what killed processes left half written of a file (`wids.core.files.atomic`); it may be as large as that.

    Args:
        path: of the file.
        more: a regular expression of what may follow the path in names of other files of which this is done too.
    """
    home, name = os.path.split(path)
    pattern = re.compile(re.escape(name) + f"(?:{more})" + r"\.[0-9]+-[0-9a-f]{8}\.part")
    with contextlib.suppress(OSError):
        for part in filter(pattern.fullmatch, os.listdir(home)):
            with contextlib.suppress(OSError):  # gone
                remove_unlocked(os.path.join(home, part))


def lease(fd: int) -> bool | None:
    """Lease an open shard: True; False if it is being deleted or is deleted; None without leases."""
    if os.fstat(fd).st_nlink == 0:
        return False
    is_leased = system.try_lock(fd, is_shared=True)
    # It may have been deleted between the first look and the lock; after it, no process can.
    return is_leased if is_leased is None else is_leased and os.fstat(fd).st_nlink > 0

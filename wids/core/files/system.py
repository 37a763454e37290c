"""Files of the operating system: flags, locks, free space.

Rules: nothing of wids is known here. A lock on an open file belongs to its descriptor and all copies of it, and the
kernel drops it with the last one. Without such locks (some network file systems) the answer is None, and
the caller continues without.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import time
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")

READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
WRITE_FLAGS = os.O_RDWR | os.O_CLOEXEC
_DENIED_CALLS, _DENIED_SECONDS = 25, 0.02
_GRANTED_CALLS, _GRANTED_SECONDS = 50, 0.02
# Errors of network file systems for an open file whose name may lead to a good one: it was moved to another server, the
# server was restarted, or the mount's process was.
_STALE = frozenset({errno.ESTALE, errno.ENOTCONN, errno.EIO, errno.ETIMEDOUT, getattr(errno, "EREMOTEIO", errno.EIO)})

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

pread: Callable[[int, int, int], bytes] = os.pread
pwrite: Callable[[int, Any, int], int] = os.pwrite
user_id: Callable[[], int] = os.getuid


def try_lock(fd: int, *, is_shared: bool) -> bool | None:
    """Lock an open file without waiting; True if it is locked now; None without such locks."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES) else None
    return True


def unlock(fd: int) -> None:
    """Drop the lock of an open file, also for processes that hold a copy of the descriptor."""
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)


def advice_on_making(error: OSError) -> str:
    """Advice on a file that cannot be made."""
    return "free space or inodes (df -i)" if error.errno in FULL else "is the directory writable?"


def advice_on_writing(error: BaseException) -> str:
    """Advice on a file that cannot be written."""
    is_limited = isinstance(error, OSError) and error.errno == errno.EFBIG
    return "raise the limit of the size of files (ulimit -f)" if is_limited else "free space"


def until_permitted(function: Callable[[], T]) -> T:
    """The result of ``function``, called again for half a second while permission is denied.

    A file that another user makes has the permissions of that user's umask for a moment, before it gets its own.
    """
    for _ in range(_DENIED_CALLS):
        with contextlib.suppress(PermissionError):
            return function()
        time.sleep(_DENIED_SECONDS)
    return function()


def is_stale(error: BaseException | None) -> bool:
    """True if an error may be over once the file is opened again by its name."""
    return isinstance(error, OSError) and error.errno in _STALE


def descriptor_limit() -> int:
    """Number of descriptors that the process may have open; negative: no limit."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def trim_heap() -> None:
    """Give free pages of the heap back to the system. glibc keeps those between pieces in use; elsewhere nothing."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).malloc_trim(0)


def free_bytes(directory: str) -> tuple[int, int]:
    """(bytes that may still be written, bytes in all) of the file system that holds ``directory``.

    Raises:
        OSError: it cannot be asked.
    """
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize


# A hundredth of a file system stays free, and at most so many bytes, where nothing else bounds the writing.
MAX_FREE_BYTES = 1 << 30


def floor_bytes(disk_bytes: int) -> int:
    """Bytes that stay free on a file system of ``disk_bytes`` where nothing else bounds the writing."""
    return min(disk_bytes // 100, MAX_FREE_BYTES)


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of ``data`` at ``offset``.

    Raises:
        OSError: it cannot be written.
    """
    view = memoryview(data)
    while view:
        count = pwrite(fd, view, offset)
        view = view[count:]
        offset += count


def write_granted(fd: int, data: bytes | memoryview, offset: int) -> None:
    """`write_all` into space that was counted as free: that of a file deleted just now is free a moment later.

    Raises:
        OSError: it cannot be written.
    """
    for _ in range(_GRANTED_CALLS):
        try:
            return write_all(fd, data, offset)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        time.sleep(_GRANTED_SECONDS)
    write_all(fd, data, offset)
    return None


def write_parts(fd: int, parts: Iterable[bytes | memoryview]) -> None:
    """Write parts one after another, from the beginning on.

    Raises:
        OSError: they cannot be written.
    """
    offset = 0
    for part in parts:
        write_all(fd, part, offset)
        offset += len(part)

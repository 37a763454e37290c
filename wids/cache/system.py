"""What operating systems do differently with files: opening, positions, locks, owners.

Rules: nothing of wids is known here. A lock on an open file belongs to its descriptor and all copies of it, and the
kernel drops it with the last one. Where there are no such locks (Windows, some network file systems) the answer is
None, and the caller goes on without: Windows itself keeps what is open from being deleted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading

READ_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
WRITE_FLAGS = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
# Windows renames nothing that is open.
RENAMES_OPEN_FILES = os.name != "nt"

if sys.platform != "win32":
    import fcntl
    import resource

    def try_lock(fd: int, *, is_shared: bool) -> bool | None:
        """Lock an open file without waiting: whether it is locked now; None where there are no such locks."""
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            return False if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES) else None
        return True

    def unlock(fd: int) -> None:
        """Drop the lock of an open file, also for processes that hold a copy of the descriptor."""
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)

    def descriptor_limit() -> int:
        """How many descriptors the process may have open; negative: no limit."""
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    pread = os.pread
    pwrite = os.pwrite
    user_id = os.getuid

else:
    _positions = threading.RLock()

    def try_lock(fd: int, *, is_shared: bool) -> bool | None:  # noqa: ARG001 - there are none that only advise
        """None: locks of this system keep others from reading."""
        return None

    def unlock(fd: int) -> None:
        """Nothing is locked."""

    def descriptor_limit() -> int:
        """What the C library allows."""
        return 2048

    def pread(fd: int, size: int, offset: int) -> bytes:
        """Read at an offset; the position is the file's, so one thread at a time."""
        with _positions:
            os.lseek(fd, offset, os.SEEK_SET)
            return os.read(fd, size)

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        """Write at an offset, likewise."""
        with _positions:
            os.lseek(fd, offset, os.SEEK_SET)
            return os.write(fd, data)

    def user_id() -> int:
        """Users are not numbered, and their temporary directories are their own."""
        return 0


def free_bytes(directory: str) -> tuple[int, int]:
    """(bytes that may still be written, bytes in all) of the file system that holds ``directory``.

    Raises:
        OSError: it cannot be asked.
    """
    if sys.platform != "win32":
        status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    import shutil

    usage = shutil.disk_usage(directory)
    return usage.free, usage.total


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of ``data`` at ``offset``.

    Raises:
        OSError: it cannot be written.
    """
    view = memoryview(data)
    while view:
        count = pwrite(fd, view, offset)  # type: ignore[arg-type,unused-ignore] # any buffer will do
        view = view[count:]
        offset += count

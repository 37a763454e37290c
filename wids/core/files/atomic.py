"""Files that are opened with their identity, and written so that they appear whole or not at all.

Rules: a caller that gets a descriptor closes it. A part file has a unique name, so writers never meet, and is
locked while it is written, so an unlocked one is garbage. Everything else appears by ``os.replace``.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import secrets
import stat
import tempfile
from functools import partial
from typing import TYPE_CHECKING

from wids.core.files import forks, system
from wids.core.files.identity import Identity
from wids.errors import CacheError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def version_of(path: str) -> tuple[int, ...]:
    """Device, inode, size and time of a file, by which it differs from one that is written later.

    Raises:
        OSError: no such file exists.
    """
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def open_file(path: str) -> tuple[int, Identity]:
    """An open descriptor of a regular file, and its identity; the caller closes.

    Raises:
        OSError: it cannot be opened. IsADirectoryError: it is a directory, a FIFO, a device.
    """
    # Not blocking: opening a FIFO must fail below instead of waiting for a writer.
    try:
        fd = os.open(path, system.READ_FLAGS)
    except ValueError as error:  # a NUL, or what the file system's encoding lacks: an index may say anything
        raise FileNotFoundError(errno.ENOENT, f"no file can have this name ({error})", path) from error
    with closing_on_error(fd):
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise IsADirectoryError(f"{path} is not a regular file")
        return fd, Identity(size=status.st_size, mtime_ns=status.st_mtime_ns)


def map_file(path: str) -> tuple[memoryview, os.stat_result]:
    """The bytes of a regular file, mapped read-only, and its status; pages are shared by all processes that map it.

    The map lives as long as the view. Where the file system has no maps, the bytes are read.

    Raises:
        OSError: it cannot be opened; see `open_file`.
    """
    fd, _ = open_file(path)
    try:
        status = os.fstat(fd)
        if not status.st_size:
            return memoryview(b""), status
        try:
            return memoryview(mmap.mmap(fd, status.st_size, access=mmap.ACCESS_READ)), status
        except (OSError, ValueError):  # not every file system has maps; a file that was cut at this moment
            return memoryview(system.pread(fd, status.st_size, 0)), status
    finally:
        os.close(fd)


def drop_pages(data: memoryview) -> None:
    """Take the pages of a map out of this process's memory; they stay in the page cache, and return when they are read.

    Args:
        data: of `map_file`, or a part of it; other bytes are left alone.
    """
    if isinstance(data.obj, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        data.obj.madvise(mmap.MADV_DONTNEED)


def identify(fd: int, *, md5: str | None = None) -> Identity:
    """The present identity of an open file; ``md5`` is known from elsewhere."""
    status = os.fstat(fd)
    return Identity(size=status.st_size, mtime_ns=status.st_mtime_ns, md5=md5)


class ClosingOnError:
    """Calls ``close`` if the block fails; a generator would take four times as long, at each shard that is opened."""

    __slots__ = ("_close",)

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._close()


def closing_on_error(fd: int) -> ClosingOnError:
    """Close ``fd`` if the block fails; otherwise it continues to its next owner."""
    return ClosingOnError(partial(os.close, fd))


def write_atomically(path: str, data: bytes, *, is_synced: bool = False) -> None:
    """Replace ``path`` by ``data`` in one step.

    Args:
        path: of the file.
        data: all of it.
        is_synced: it is on the disk before this returns, under its name: what it replaces may then be deleted.

    Raises:
        OSError: it cannot be written; the previous file stays. CacheError: the same, or the path is no file.
    """
    if os.path.exists(path) and not os.path.isfile(path):  # as root, a file would take the place of /dev/null
        raise CacheError(f"{path}: is a directory or a device, not a file; choose another name", path=path)
    with part_file(path) as (part, fd):
        system.write_all(fd, data, 0)
        if is_synced:
            os.fsync(fd)
        os.replace(part, path)
    if is_synced:
        sync_directory(os.path.dirname(path))


def sync_directory(path: str) -> None:
    """Have the names in a directory on the disk; where a file system cannot do that, it does not.

    Raises:
        OSError: the disk fails.
    """
    fd = os.open(path or ".", os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(fd)


def append_line(path: str, line: bytes) -> None:
    """Add a line to a file, which is made if it is not there; lines of many processes are not mixed.

    Where the last line has no end (the disk was full, or its writer was killed), this one begins a new one all the
    same.

    Args:
        path: of the file.
        line: with its line feed.

    Raises:
        OSError: it cannot be written, or not all of it. IsADirectoryError: the path is a directory, a FIFO, a device.
    """
    fd = os.open(path, system.READ_FLAGS | os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise IsADirectoryError(f"{path} is not a regular file")
        if status.st_size and system.pread(fd, 1, status.st_size - 1) != b"\n":
            line = b"\n" + line
        if os.write(fd, line) < len(line):  # at once: no other process's line comes between
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    finally:
        os.close(fd)


@contextlib.contextmanager
def part_file(path: str, *, mode: int = 0o666) -> Iterator[tuple[str, int]]:
    """A new file of our own beside ``path``, locked while it is being written, and gone if it is not published.

    Args:
        path: the beginning of its name.
        mode: its permissions from the first moment on, but for what the umask takes.

    Raises:
        CacheError: it cannot be made.
    """
    part, fd = make_part(path, mode=mode)
    with contextlib.ExitStack() as stack:  # the last goes first, and each goes whatever a signal raises in another
        stack.callback(_unlink, part)
        stack.callback(os.close, fd)
        # A process forked meanwhile has a copy of the descriptor: closing ours would leave the published file locked.
        stack.callback(system.unlock, fd)
        yield part, fd


def _unlink(part: str) -> None:
    with contextlib.suppress(OSError):  # published, or the directory fails as it did for the caller
        os.unlink(part)


def make_part(path: str, *, mode: int = 0o666) -> tuple[str, int]:
    """A new file of our own beside ``path``, open and locked; the caller closes it, and publishes or unlinks it.

    Raises:
        CacheError: it cannot be made.
    """
    while True:
        part = f"{path}.{os.getpid()}-{secrets.token_hex(4)}.part"
        fd = -1
        try:
            fd = _create(part, mode)
            # A sweeper may have come by before it was locked, and taken it for one that was left behind.
            if system.try_lock(fd, is_shared=False) is not False and os.fstat(fd).st_nlink:
                return part, fd
        except BaseException as error:
            if fd >= 0:
                os.close(fd)
            if not isinstance(error, CacheError):  # a signal raises when the call that made the file returns, or later
                _unlink(part)
            raise
        os.close(fd)


def _create(part: str, mode: int) -> int:
    try:
        return os.open(part, system.WRITE_FLAGS | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        raise CacheError(f"{part}: cannot be made ({error}); {system.advice_on_making(error)}") from error


def private_dir() -> str:
    """The user's own cache directory, under the system's temporary directory."""
    with forks.lock:  # tempfile looks for it once, under a lock
        try:
            directory = tempfile.gettempdir()
        except FileNotFoundError:  # it can write nowhere; local shards can be read all the same
            directory = "/tmp"  # noqa: S108 - the first write there says if it cannot be used
    return os.path.join(directory, f"wids-cache-{system.user_id()}")


def make_directory(path: str, *, is_private: bool) -> None:
    """Make a directory; a private one is the user's alone.

    Raises:
        OSError: it cannot be made. PermissionError: a private one belongs to someone else.
    """
    os.makedirs(path, mode=0o700 if is_private else 0o777, exist_ok=True)
    if is_private:
        check_owner(path)


def check_owner(path: str) -> None:
    """Refuse a directory, or a link to one, that is not the user's own; one that does not exist yet is fine.

    Anyone may make a directory of a known name in a shared /tmp, and then hand out shards of their own.

    Raises:
        PermissionError: it belongs to another user.
    """
    with contextlib.suppress(FileNotFoundError):
        if {os.lstat(path).st_uid, os.stat(path).st_uid} != {system.user_id()}:
            raise PermissionError(f"{path} belongs to another user")

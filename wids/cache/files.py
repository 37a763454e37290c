"""Files of the cache directory: open, write atomically, tables beside shards.

Rules: whoever gets a descriptor closes it. A part file has a name of its own, so writers never meet, and is locked
while it is written, so an unlocked one is garbage. Everything else appears by ``os.replace``.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from typing import TYPE_CHECKING

from wids.cache import locks
from wids.errors import CacheError, TableError
from wids.events import logger
from wids.index import table as tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wids.index.table import Identity, MemberTable


def open_file(path: str) -> tuple[int, Identity]:
    """An open descriptor of a regular file, and what it is; the caller closes."""
    # O_NONBLOCK: opening a FIFO must fail below instead of waiting for a writer.
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
    with closing_on_error(fd):
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise IsADirectoryError(f"{path} is not a regular file")
    return fd, tables.Identity(size=status.st_size, mtime_ns=status.st_mtime_ns)


@contextlib.contextmanager
def closing_on_error(fd: int) -> Iterator[None]:
    """Close ``fd`` if the block fails; otherwise it goes on to its next owner."""
    try:
        yield
    except BaseException:
        os.close(fd)
        raise


def load_table(path: str, url: str) -> MemberTable | None:
    """The table saved beside ``path``; None when there is none, or none that can be used."""
    try:
        with open(path + tables.SUFFIX, "rb", buffering=0) as file:
            data = file.read()
    except OSError:
        return None
    try:
        return tables.parse_table(data, shard=url)
    except TableError as error:
        logger.warning("%s", error)
        return None


def save_table(path: str, table: MemberTable) -> None:
    """Save a table beside ``path``; a directory that cannot be written just goes without."""
    try:
        write_atomically(path + tables.SUFFIX, table.to_bytes())
    except OSError as error:
        logger.debug("%s: its member table cannot be saved (%s)", path, error)


def write_atomically(path: str, data: bytes) -> None:
    """Replace ``path`` by ``data`` in one step."""
    with part_file(path) as (part, fd):
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.replace(part, path)


@contextlib.contextmanager
def part_file(path: str) -> Iterator[tuple[str, int]]:
    """A new file of our own beside ``path``, locked while it is being written, and gone if it is not published."""
    part = f"{path}.{os.getpid()}-{secrets.token_hex(4)}.part"
    try:
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
    except OSError as error:
        raise CacheError(f"{part}: cannot be made ({error}); is the directory writable?") from error
    try:
        locks.mark(fd)
        yield part, fd
    finally:
        os.close(fd)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)


def make_directory(path: str, *, is_private: bool) -> None:
    """Make a cache directory; a private one is the user's alone.

    Raises:
        OSError: it cannot be made. PermissionError: a private one belongs to someone else.
    """
    os.makedirs(path, mode=0o700 if is_private else 0o777, exist_ok=True)
    if is_private and hasattr(os, "getuid") and os.stat(path).st_uid != os.getuid():
        # Anyone may make a directory of that name in a shared /tmp, and then hand out shards of their own.
        raise PermissionError(f"{path} belongs to another user")

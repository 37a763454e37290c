"""Files of the cache directory: open, write atomically, tables beside shards.

Rules: whoever gets a descriptor closes it. A part file has a name of its own, so writers never meet, and is locked
while it is written, so an unlocked one is garbage. Everything else appears by ``os.replace``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from wids import forks
from wids.cache import locks, system
from wids.errors import CacheError, ShardError, TableError
from wids.events import logger
from wids.index import foreign, tar
from wids.index import table as tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wids.cache.directory import CacheDirectory
    from wids.index.table import Group, Identity, KeyRule, MemberTable
    from wids.index.tar import Member


# No table of a shard is longer than this: 44 bytes for a member, which has 512 in the shard, and its name.
_LEAST_TABLE_BYTES, _TABLE_RATIO = 64 << 10, 16
# Headers that tell how long one takes, how long is long, and how many are then read at a time.
_FEW_HEADERS, _SLOW_SECONDS, _HEADERS_AT_A_TIME = 16, 200e-6, 16


def open_file(path: str) -> tuple[int, Identity]:
    """An open descriptor of a regular file, and what it is; the caller closes.

    Raises:
        OSError: it cannot be opened. IsADirectoryError: it is a directory, a FIFO, a device.
    """
    # Not blocking: opening a FIFO must fail below instead of waiting for a writer.
    try:
        fd = os.open(path, system.READ_FLAGS)
    except ValueError as error:  # a NUL, or what the file system's encoding lacks: an index may say anything
        raise FileNotFoundError(errno.ENOENT, f"no file can have this name ({error})", path) from error
    with closing_on_error(fd):
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise IsADirectoryError(f"{path} is not a regular file")
        return fd, identify(fd)


def identify(fd: int, *, md5: str | None = None) -> Identity:
    """What an open file is now, ``md5`` being known from elsewhere."""
    status = os.fstat(fd)
    return tables.Identity(size=status.st_size, mtime_ns=status.st_mtime_ns, md5=md5)


# Descriptors of shards that will be leased, and the threads that have them: a lease counts for a forked process's copy
# too, which nobody there would ever close.
_in_hand: dict[int, int] = {}


def take_in_hand(path: str) -> tuple[int, Identity]:
    """As `open_file`, for a shard that will be leased; to be closed with `close`, or handed over with `hand_over`."""
    with forks.held:
        fd, facts = open_file(path)
        _in_hand[fd] = threading.get_ident()
    return fd, facts


def hand_over(fd: int) -> None:
    """Somebody else closes the descriptor from here on, in forked processes too."""
    _in_hand.pop(fd, None)


def close(fd: int) -> None:
    """Close a descriptor, whether it is in hand or not."""
    _in_hand.pop(fd, None)
    os.close(fd)


def close_inherited() -> None:
    """In a forked child: close the copies of what the parent's other threads had in hand."""
    for fd in [fd for fd, thread in _in_hand.items() if thread != threading.get_ident()]:
        close(fd)


@contextlib.contextmanager
def closing_on_error(fd: int) -> Iterator[None]:
    """Close ``fd`` if the block fails; otherwise it goes on to its next owner."""
    try:
        yield
    except BaseException:
        close(fd)
        raise


def scan_members(fd: int, url: str, size: int) -> Iterator[Member]:
    """The members of an open archive of ``size`` bytes, from its headers; see `wids.index.tar.scan`.

    Raises:
        ShardError: it is not a readable tar, or cannot be read at all.
    """
    return tar.scan(_reader(fd, url), size, shard=url)


def _reader(fd: int, url: str) -> Callable[[int, int], bytes]:
    pread = system.pread  # called once for each large member, so that even the look-up counts

    def read(offset: int, count: int) -> bytes:
        try:
            return pread(fd, count, offset)
        except OSError as error:
            raise ShardError(
                f"{url}: {count} bytes at byte {offset} cannot be read ({error})", shard=url, offset=offset
            ) from error

    return read


def scan_table(
    fd: int, url: str, identity: Identity, *, rule: KeyRule = "first-dot", group: Group = "adjacent"
) -> MemberTable:
    """The member table of an open shard, from its headers.

    Raises:
        ShardError: it is not a readable tar, or cannot be read at all.
    """
    members = scan_members(fd, url, identity.size)
    return tables.build_table(members, identity=identity, shard=url, rule=rule, group=group)


def load_foreign(fd: int, path: str, url: str, identity: Identity) -> MemberTable | None:
    """The table of an open shard from DALI's index beside it; None when there is none, or in any doubt.

    All headers are compared; knowing where they are, they can be read at the same time. Where a header comes at once,
    as from memory, it is quicker to scan the shard.
    """
    try:
        index_fd, facts = open_file(path.removesuffix(".tar") + foreign.DALI_SUFFIX)
        with open(index_fd, "rb", buffering=0) as file:
            if facts.size > identity.size or not file.read(8).startswith(foreign.DALI_STARTS):
                return None
            file.seek(0)
            data = file.read()
        members = foreign.list_members(foreign.parse_dali(data, shard=url), identity.size, shard=url)
        read, start = _reader(fd, url), time.perf_counter()
        few = members[:: max(len(members) // _FEW_HEADERS, 1)]
        for _, header, _, _ in few:
            read(header, tar.BLOCK)
        if time.perf_counter() - start < _SLOW_SECONDS * len(few):
            return None
        with ThreadPoolExecutor(_HEADERS_AT_A_TIME) as pool:
            doubt = foreign.find_doubt(members, read, identity.size, shard=url, each=partial(pool.map, chunksize=64))
        if not doubt:
            return tables.build_table(members, identity=identity, shard=url)
    except (OSError, RuntimeError):  # there is none; there are no more threads to be had
        return None
    except ShardError as error:
        doubt = str(error)
    logger.debug("%s: the %s file beside it is not used: %s", url, foreign.DALI_SUFFIX, doubt)
    return None


def most_table_bytes(shard_bytes: int) -> int:
    """Bytes that the table of a shard of so many may have; what is longer is none."""
    return _LEAST_TABLE_BYTES + _TABLE_RATIO * shard_bytes


def load_table(path: str, url: str, *, shard_bytes: int) -> MemberTable | None:
    """The table saved in the file ``path``; None when there is none, or none that can be used."""
    try:
        fd, facts = open_file(path)
        with open(fd, "rb", buffering=0) as file:
            if facts.size > most_table_bytes(shard_bytes):
                logger.warning("%s: its saved member table is too long to be one (%d bytes)", url, facts.size)
                return None
            data = file.read()
    except OSError:
        return None
    try:
        return tables.parse_table(data, shard=url)
    except TableError as error:
        logger.warning("%s", error)
        return None


def save_table(path: str, table: MemberTable) -> None:
    """Save a table as the file ``path``; a directory that cannot be written just goes without."""
    try:
        write_atomically(path, table.to_bytes())
    except OSError as error:
        logger.debug("%s: the member table cannot be saved (%s)", path, error)


def write_atomically(path: str, data: bytes) -> None:
    """Replace ``path`` by ``data`` in one step.

    Raises:
        OSError: it cannot be written; what was there stays. CacheError: likewise, or what is there is no file.
    """
    if os.path.exists(path) and not os.path.isfile(path):  # as root, a file would take the place of /dev/null
        raise CacheError(f"{path}: is a directory or a device, not a file; choose another name", path=path)
    with part_file(path) as (part, fd):
        system.write_all(fd, data, 0)
        os.replace(part, path)


@contextlib.contextmanager
def part_file(path: str) -> Iterator[tuple[str, int]]:
    """A new file of our own beside ``path``, locked while it is being written, and gone if it is not published.

    Raises:
        CacheError: it cannot be made.
    """
    part, fd = make_part(path)
    try:
        yield part, fd
    finally:
        # A process forked meanwhile has a copy of the descriptor: closing ours would leave what is published locked.
        locks.unmark(fd)
        os.close(fd)
        with contextlib.suppress(OSError):  # published, or the directory fails as it did for whoever got here
            os.unlink(part)


def make_part(path: str) -> tuple[str, int]:
    """A new file of our own beside ``path``, open and locked; the caller closes it, and publishes or unlinks it.

    Raises:
        CacheError: it cannot be made.
    """
    while True:
        part = f"{path}.{os.getpid()}-{secrets.token_hex(4)}.part"
        try:
            fd = os.open(part, system.WRITE_FLAGS | os.O_CREAT | os.O_EXCL, 0o666)
        except OSError as error:
            raise CacheError(f"{part}: cannot be made ({error}); is the directory writable?") from error
        with closing_on_error(fd):
            # A sweeper may have come by before it was locked, and taken it for one that was left behind.
            if system.try_lock(fd, is_shared=False) is not False and os.fstat(fd).st_nlink:
                return part, fd
        os.close(fd)


def open_shared(directory: CacheDirectory, path: str) -> int:
    """Open one of a cache directory's own files for writing, made if need be; the caller closes.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    # A link that another user put there would have us write into a file of our own, elsewhere.
    flags = system.WRITE_FLAGS | os.O_NONBLOCK | os.O_NOFOLLOW
    try:
        # Not made in the same step: in a sticky directory that is refused for another user's file.
        fd, is_new = os.open(path, flags), False
    except FileNotFoundError:
        fd, is_new = os.open(path, flags | os.O_CREAT, 0o666), True
    with closing_on_error(fd):
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        if is_new:
            directory.share(fd)
    return fd


def private_dir() -> str:
    """The user's own cache directory, under the system's temporary directory."""
    with forks.held:  # tempfile looks for it once, under a lock
        try:
            place = tempfile.gettempdir()
        except FileNotFoundError:  # it can write nowhere; local shards can be read all the same
            place = "/tmp"  # noqa: S108 - what cannot be made there is told when something is to go there
    return os.path.join(place, f"wids-cache-{system.user_id()}")


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

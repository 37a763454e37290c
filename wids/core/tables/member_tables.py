"""Member tables of shards: saved or published ones loaded, new ones scanned from headers or another tool's index.

A saved table is used only after it was compared with its open shard by the caller. A published one, which is beside
a remote shard (``<shard>.widx``, as ``wids index create --members`` writes it) or in a pack (`table_packs`), is used
only if it is of the shard's size and md5, as far as these are known; the reader finds out the rest. One that is too
long, or damaged, is none.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from wids.core.files import container, system
from wids.core.files.atomic import open_file
from wids.core.tables import foreign, keys, tar
from wids.core.tables import table as tables
from wids.core.tables.tar import Members
from wids.core.transport import download, retrying
from wids.core.transport.session import PLAIN, Session
from wids.errors import FetchDeniedError, ShardError, ShardNotFoundError, TableError
from wids.events import AlikeKeys, BytesUnread, emit, logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from wids.core.files.identity import Identity
    from wids.core.place import Place
    from wids.core.shard import Shard
    from wids.core.tables.keys import Split
    from wids.core.tables.table import Group, KeyRule, MemberTable
    from wids.events import Hook


# No table of a shard is longer than this: 44 bytes for a member, which has 512 in the shard, and its name.
_MIN_TABLE_BYTES, _TABLE_RATIO = 64 << 10, 16
# A published one that is longer than this is not read, for shards of any size.
_MAX_PUBLISHED_BYTES, _UNKNOWN_BYTES = 512 << 20, 32 << 20
# Errors of a table that does not exist. A bucket that cannot be listed says 403 for such an object.
NOT_PUBLISHED = (ShardNotFoundError, FetchDeniedError)


class HeaderLimits(NamedTuple):
    """Limits of reading headers one by one; the default is in force, and tests put another one in its place.

    Attributes:
        few: headers that are timed.
        slow_seconds: a header that takes so long is slow.
        at_a_time: number of slow headers that are read at a time.
    """

    few: int = 16
    slow_seconds: float = 200e-6
    at_a_time: int = 16


LIMITS = HeaderLimits()


def scan_members(fd: int, url: str, size: int, *, split: Split = keys.first_dot) -> Members:
    """The members of an open archive of ``size`` bytes, from its headers; see `wids.core.tables.tar.scan`.

    Raises:
        ShardError: it is not a readable tar, or cannot be read at all.
    """
    return Members(reader_of(fd, url), size, shard=url, split=split)


def reader_of(fd: int, url: str) -> Callable[[int, int], bytes]:
    """``read(offset, n)`` of an open archive, as `wids.core.tables.tar.scan` wants it."""
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
    members = scan_members(fd, url, identity.size, split=keys.parse_rule(rule))
    return tables.build_table(members, identity=identity, shard=url, rule=rule, group=group)


def announce(hooks: Iterable[Hook], url: str, table: MemberTable) -> None:
    """Tell hooks of oddities of a shard that were seen when its headers were scanned; saved tables show none."""
    if table.nalike:
        emit(hooks, AlikeKeys(url=url, count=table.nalike))
    if table.unread_bytes:
        emit(hooks, BytesUnread(url=url, size_bytes=table.unread_bytes))


def load_foreign(fd: int, path: str, url: str, identity: Identity) -> MemberTable | None:
    """The table of an open shard from DALI's index beside it; None when none exists, or in any doubt.

    All headers are compared; knowing where they are, they can be read at the same time. Where a header comes at once,
    as from memory, it is quicker to scan the shard.
    """
    try:
        index_fd, status = open_file(path.removesuffix(".tar") + foreign.DALI_SUFFIX)
        with open(index_fd, "rb", buffering=0) as file:
            if status.size > identity.size or not file.read(8).startswith(foreign.DALI_STARTS):
                return None
            file.seek(0)
            data = file.read()
        members = foreign.list_members(foreign.parse_dali(data, shard=url), identity.size, shard=url)
        read, start = reader_of(fd, url), time.perf_counter()
        few = members[:: max(len(members) // LIMITS.few, 1)]
        for _, header, _, _ in few:
            read(header, tar.BLOCK)
        if time.perf_counter() - start < LIMITS.slow_seconds * len(few):
            return None
        with ThreadPoolExecutor(LIMITS.at_a_time) as pool:
            doubt = foreign.find_doubt(members, read, identity.size, shard=url, each=partial(pool.map, chunksize=64))
        if not doubt:
            return tables.build_table(members, identity=identity, shard=url)
    except (OSError, RuntimeError):  # none exists; no more threads can start
        return None
    except ShardError as error:
        doubt = str(error)
    logger.debug("%s: the %s file beside it is not used: %s", url, foreign.DALI_SUFFIX, doubt)
    return None


def max_table_bytes(shard_bytes: int) -> int:
    """Bytes that the table of a shard of so many may have; a longer file is not a table."""
    return _MIN_TABLE_BYTES + _TABLE_RATIO * shard_bytes


def load_table(path: str, url: str, *, shard_bytes: int | None) -> MemberTable | None:
    """The table saved in the file ``path``; None when none exists, or none that can be used.

    Args:
        path: of the file.
        url: of the shard.
        shard_bytes: of the shard; None: not known, and its table is a short one.
    """
    most = _UNKNOWN_BYTES if shard_bytes is None else max_table_bytes(shard_bytes)
    try:
        fd, status = open_file(path)
        with open(fd, "rb", buffering=0) as file:
            if status.size > most:
                logger.warning("%s: its saved member table is too long to be one (%d bytes)", url, status.size)
                return None
            data = file.read()
    except OSError:
        return None
    try:
        return tables.parse_table(data, shard=url)
    except TableError as error:
        logger.warning("%s", error)
        return None


def may_be_published(place: Place) -> bool:
    """True if the table of a shard at a place can be elsewhere at all: a signature is valid for one object only."""
    return place.scheme != "pipe" and place.without_query == str(place)


def max_published_bytes(shard_bytes: int | None) -> int:
    """Bytes that a published table may have; of a shard of unknown length: a short one."""
    return _UNKNOWN_BYTES if shard_bytes is None else min(max_table_bytes(shard_bytes), _MAX_PUBLISHED_BYTES)


def read_beside(
    shard: Shard,
    *,
    shard_bytes: int | None,
    session: Session = PLAIN,
    seconds: float = retrying.LIMITS.first_seconds,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> MemberTable:
    """The table beside a remote shard.

    Args:
        shard: the shard; see `may_be_published`.
        session: opens URLs.
        shard_bytes: its length; None: as in the table, which is a short one.
        seconds: for all tries together.
        is_cancelled: asked now and then; once it says True, the transfer ends.

    Raises:
        CancelledTransferError: it was cancelled.
        FetchError: it cannot be read; one of `NOT_PUBLISHED`: none exists.
        TableError: it is none, or another shard's.
    """
    data = download.read_bytes(
        shard.url + tables.SUFFIX,
        session=session,
        max_bytes=max_published_bytes(shard_bytes),
        seconds=seconds,
        is_cancelled=is_cancelled,
    )
    return accept_published(data, shard, shard_bytes=shard_bytes, where=f"the member table beside it ({tables.SUFFIX})")


def accept_published(data: bytes, shard: Shard, *, shard_bytes: int | None, where: str) -> MemberTable:
    """The published table of a shard, if it can be its own: the one rule, wherever the table comes from.

    Args:
        data: the table.
        shard: the shard that it should describe.
        shard_bytes: size of the shard; None: as the table says.
        where: the name of the table in errors.

    Raises:
        TableError: it is none, or another shard's.
    """
    url = shard.url
    table = tables.parse_table(data, shard=url, name=where)
    md5 = table.identity.md5
    if shard_bytes not in (None, table.identity.size) or (md5 and shard.md5sum and md5 != shard.md5sum):
        raise TableError(f"{url}: {where} is of another version of the shard", shard=url)
    return table


def check_table_replaceable(path: str, what: str = "member table") -> None:
    """Raise unless a member table, or several one after another, replaces or deletes nothing but such a file.

    Raises:
        OutputExistsError, OutputError: see `check_replaceable`.
    """
    from wids.core.transport.upload import check_replaceable

    check_replaceable(path, what, _is_table, overwrite=None)


def _is_table(path: str) -> bool:
    with open(path, "rb") as file:
        head = file.read(len(container.MAGIC))
    # Earlier versions have another letter behind these; zeros are what a disk leaves of a file.
    return head.startswith(container.MAGIC[:4]) or not head.strip(b"\0")

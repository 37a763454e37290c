"""The scan of one shard, from the shard itself, read once: for its index entry and for verification.

The result is a function of the shard's bytes; any process on any machine can compute it. Local shards are read in
place. A remote shard is read by byte ranges over its headers, or completely if checksums are wanted, and nothing is
kept. Only a shard without ranges is copied, to a temporary directory, which is deleted afterwards.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from wids.core.cache import shard_download
from wids.core.files import atomic, system, tempdirs
from wids.core.files.identity import Identity
from wids.core.index import checksums
from wids.core.index.discovery import FoundShard, mark_words
from wids.core.place import Place
from wids.core.readers.header_reader import FIRST_BYTES, WORTH_BYTES, Window
from wids.core.tables import member_tables, tar
from wids.core.tables import table as tables
from wids.core.tables.member_tables import check_table_replaceable
from wids.core.tables.tar import Members
from wids.core.transport import download, retrying
from wids.core.transport.range_client import ShardBytes
from wids.core.transport.session import PLAIN, Session
from wids.core.transport.upload import Target
from wids.errors import (
    ChangedShardError,
    FetchDeniedError,
    FetchError,
    ShardError,
    ShardNotFoundError,
    WidsError,
)
from wids.events import logger
from wids.jobs.runner import TaskContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from wids.core.tables.keys import Split
    from wids.core.tables.table import MemberTable

    IsCancelled = Callable[[], bool]

# Bytes of a read for checksums.
_LOCAL_BYTES, _REMOTE_BYTES = 1 << 20, 8 << 20
# A transfer may damage a copy: a shard is copied once more before it counts as damaged.
_COPY_ATTEMPTS = 2


class ShardResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The result for one shard. Later runs reuse most of it; see `kept`.

    Attributes:
        url: as in its task.
        nsamples: number of its samples.
        nmembers: number of its members.
        filesize: its bytes.
        md5sum: if requested.
        crc32: if requested, or if all bytes were read anyway.
        nleft: number of files that are part of no sample.
        nrepeated: number of samples whose key had appeared before.
        behind: offset of the first byte after the end marker that is not zero; None: all are zero.
        zeros: number of zeros from the end marker on, if they are more than any writer appends.
        nalike: samples whose key is another one in a second Unicode form.
        mark: the version that was read, as text; None: unknown.
        has_table: its member table was published.
        table: its member table, until `scan_shard` returns, so that it is not pickled.
        unpublished: a requested member table that cannot be written beside the shard.
        error: in its headers; the counts are then invalid.
        requests: number of byte ranges, for a remote shard.
        read_bytes: their bytes.
        is_unchanged: known from an earlier run, and not read again.
        rule: of the members' keys.
        group: of members as samples.
        merged: see `wids.core.tables.table.find_merged`.
        apart: see `wids.core.tables.table.find_apart`.
        is_claimed: not read: the count was written by another program, the size is of a listing (0: unknown).
    """

    url: str
    nsamples: int
    filesize: int
    nmembers: int = 0
    nleft: int = 0
    nrepeated: int = 0
    behind: int | None = None
    zeros: int = 0
    nalike: int = 0
    md5sum: str | None = None
    crc32: str | None = None
    mark: str | None = None
    has_table: bool = False
    table: Any = None
    unpublished: bytes | None = None
    error: Any = None
    requests: int = 0
    read_bytes: int = 0
    rule: str = "first-dot"
    group: str = "adjacent"
    merged: tuple[str, str, str] | None = None
    apart: tuple[str, str, int] | None = None
    is_unchanged: bool = False
    is_claimed: bool = False

    def kept(self, url: str) -> ShardResult:
        """The part that later runs can use, for a shard named ``url``."""
        passing = {"table": None, "unpublished": None, "error": None, "requests": 0, "read_bytes": 0}
        return msgspec.structs.replace(self, url=url, is_unchanged=False, **passing)

    def version(self) -> tuple[int, str | None]:
        """(size, mark): differs from that of a later shard of the same name."""
        return self.filesize, self.mark

    def entry(self) -> dict[str, Any]:
        """The entry of the shard in a shard list."""
        digests = {key: digest for key in checksums.KEYS if (digest := getattr(self, key)) is not None}
        size = {} if self.is_claimed and not self.filesize else {"filesize": self.filesize}
        return {"url": self.url, "nsamples": self.nsamples, **size, **digests}


class ScanTask(msgspec.Struct, kw_only=True, frozen=True):
    """One shard to scan.

    Attributes:
        url: a URL or a path.
        checksums: to compute, by their keys in an index.
        has_table: publish its member table beside it.
        keeps_sum: a CRC-32 is wanted of a remote shard of which (nearly) all bytes are read anyway.
        known: result of an earlier run; it is returned, if size and mark have not changed.
        rule: of the members' keys; see `wids.core.tables.table.build_table`.
        group: of members as samples; see there.
        session: opens URLs.
    """

    url: str
    known: ShardResult | None = None
    checksums: tuple[str, ...] = ()
    has_table: bool = False
    keeps_sum: bool = False
    rule: Any = "first-dot"
    group: Any = "adjacent"
    session: Session = PLAIN

    @property
    def split(self) -> Split:
        """The key rule, on raw names."""
        return tables.parse_rule(self.rule)

    def build_table(self, members: Members, identity: Identity) -> MemberTable:
        """The member table of the members of an archive."""
        return tables.build_table(members, identity=identity, shard=self.url, rule=self.rule, group=self.group)


def scan_shard(task: ScanTask, context: TaskContext = TaskContext()) -> ShardResult:  # noqa: B008 - frozen
    """Read one shard, and publish its member table if requested.

    Raises:
        FetchError: it cannot be downloaded. ShardError: it is not a readable tar.
        CancelledTransferError: it was cancelled.
    """
    result = read_shard(task, context)
    result.rule, result.group = task.rule, task.group
    if task.rule == "last-dot" and result.table is not None:
        result.apart = tables.find_apart(result.table)
    return result if result.is_unchanged else _publish(task, result)


def read_shard(task: ScanTask, context: TaskContext) -> ShardResult:
    """The result for one shard, with its member table. An error in the headers is raised, or is in the result.

    Raises:
        FetchError, ShardError, CancelledTransferError: as `scan_shard`.
    """
    place, mark = Place(task.url), None
    if place.is_local:
        return scan_file(place.path, task, context.is_cancelled)
    if place.scheme != "pipe":
        with ShardBytes(task.url, session=task.session) as source:
            mark = mark_words(source.version)
            known = task.known
            if known is not None and mark and (_size_of(source), mark) == known.version():
                return msgspec.structs.replace(known, url=task.url, is_unchanged=True)
            # A checksum or a table of mixed versions stays wrong; a wrong count is detected when the shard is opened.
            may_be_mixed = not source.is_strong and (task.checksums or task.has_table)
            if source.has_ranges and not may_be_mixed:
                result = _scan_ranges(task, source, mark, context.is_cancelled)
                if result is not None:
                    return result
    with tempdirs.directory("scan") as directory:
        task = msgspec.structs.replace(task, checksums=task.checksums or ("crc32",))  # all bytes are read anyway
        path = os.path.join(directory, "shard.tar")
        result = scan_copy(path, task, context.is_cancelled, look=shard_download.check_start)
        result.mark = mark
        return result


def scan_file(path: str, task: ScanTask, is_cancelled: IsCancelled) -> ShardResult:
    """The result for a local shard. An error in its headers is in ``error``, beside the other values.

    Raises:
        FetchError: it cannot be opened or read. ChangedShardError: it changed meanwhile.
        CancelledTransferError: it was cancelled.
    """
    once = partial(_scan_file_once, path, task, is_cancelled)
    return retrying.try_repeatedly(once, url=task.url, path=None, hooks=(), is_cancelled=is_cancelled)


def _scan_file_once(path: str, task: ScanTask, is_cancelled: IsCancelled) -> ShardResult:
    fd, identity = _open(path, task.url)
    try:
        result = ShardResult(url=task.url, nsamples=0, filesize=identity.size, mark=f"{identity.mtime_ns}")
        window, read = None, member_tables.reader_of(fd, task.url)
        if task.checksums:
            window = Window(
                partial(_pread, fd),
                identity.size,
                is_cancelled=is_cancelled,
                summed_bytes=_LOCAL_BYTES,
                checksums=task.checksums,
            )
            read = window.read
        members = Members(read, identity.size, shard=task.url, split=task.split)
        try:
            result.table = task.build_table(members, identity)
            result.behind, result.zeros = members.find_unread()
        except ShardError as error:
            result.error = error
        if window is not None:
            result = msgspec.structs.replace(result, **window.digests())
        now = atomic.identify(fd, md5=result.md5sum)
        if (now.size, now.mtime_ns) != (identity.size, identity.mtime_ns):
            # Otherwise the index would promise a size and a checksum of two versions.
            raise ChangedShardError(
                f"{task.url}: changed while it was read; read it again when no process writes it", shard=task.url
            )
    finally:
        os.close(fd)
    return result if result.table is None else _counted(result, result.table.with_identity(now))


def scan_copy(
    path: str,
    task: ScanTask,
    is_cancelled: IsCancelled,
    *,
    is_sound: Callable[[ShardResult], bool] = lambda result: result.error is None,
    look: Callable[[str, bytes], None] = shard_download.check_content,
) -> ShardResult:
    """Download a shard to ``path``, and read it. Do so once more if ``is_sound`` returns False.

    An error of ``look``, called with the URL and the first 512 bytes, ends the download.

    Raises:
        FetchError, NotAllowedError: it cannot be downloaded. CacheError: the disk has no space for it.
        CancelledTransferError: it was cancelled.
    """
    for _ in range(_COPY_ATTEMPTS):
        with open(path, "wb"):
            pass
        download.download_to(
            task.url,
            path,
            check=partial(_check_content, task.url, path),
            look=partial(look, task.url),
            is_cancelled=is_cancelled,
            session=task.session,
        )
        result = scan_file(path, task, is_cancelled)
        if is_sound(result):
            break
    result.mark, result.requests, result.read_bytes = None, 1, result.filesize
    if result.table is not None:  # the modification time is that of the copy
        result.table = result.table.with_identity(Identity(size=result.filesize, md5=result.md5sum))
    return result


def _scan_ranges(task: ScanTask, source: ShardBytes, mark: str | None, is_cancelled: IsCancelled) -> ShardResult | None:
    """The result for a shard by byte ranges; None: one stream of all bytes is as short, and gives their checksum."""
    first = source.read(0, _REMOTE_BYTES if task.checksums else FIRST_BYTES)  # its answer has the size
    shard_download.check_content(task.url, first[:512])
    is_whole = len(first) == source.size
    is_sure = bool(task.checksums) or source.is_strong or is_whole  # else the bytes may be of two versions
    if task.keeps_sum and not is_sure and _is_dense(task.url, first, source.size):
        return None
    window = Window(
        source.read,
        source.size,
        is_cancelled=is_cancelled,
        summed_bytes=_REMOTE_BYTES if task.checksums else 0,
        checksums=task.checksums,
        first=first,
        fills_gaps=task.keeps_sum,
    )
    identity = Identity(size=source.size, etag=mark)
    members = Members(window.read, source.size, shard=task.url, split=task.split)
    table = task.build_table(members, identity)
    result = ShardResult(url=task.url, nsamples=0, filesize=source.size, mark=mark)
    result.behind, result.zeros = members.find_unread()
    if is_sure:
        result = msgspec.structs.replace(result, **window.digests())
    result.requests, result.read_bytes = source.requests, source.read_bytes
    return _counted(result, table.with_identity(msgspec.structs.replace(identity, md5=result.md5sum)))


def _is_dense(url: str, first: bytes, shard_bytes: int) -> bool:
    """True if a shard's members are so short, by its first bytes, that ranges over its headers have all of it."""
    sizes = []
    with contextlib.suppress(ShardError):  # it goes on
        for _, _, _, size in tar.scan(lambda offset, n: first[offset : offset + n], shard_bytes, shard=url):
            sizes.append(size)
    return bool(sizes) and max(sizes) <= WORTH_BYTES


def _counted(result: ShardResult, table: MemberTable) -> ShardResult:
    result.nsamples, result.nmembers, result.table = len(table), table.nmembers, table
    result.nleft, result.nrepeated, result.nalike = table.nleft, table.nrepeated, table.nalike
    result.merged = tables.find_merged(table)
    return result


def _size_of(source: ShardBytes) -> int | None:
    """The size that the server reports, also without ranges; None: unknown."""
    try:
        return source.size
    except FetchError:
        return None


def look_remote(url: str, session: Session = PLAIN) -> FoundShard:
    """The current version of a remote object. Size and mark are None if the store does not report them."""
    with contextlib.suppress(FetchError), ShardBytes(url, session=session) as source:
        return FoundShard(url, _size_of(source), mark_words(source.version))
    return FoundShard(url)


def _open(path: str, url: str) -> tuple[int, Identity]:
    try:
        return atomic.open_file(path)
    except FileNotFoundError as error:
        what = f"{path}, for this is a link to {os.readlink(path)}" if os.path.islink(path) else path
        raise ShardNotFoundError(f"{url}: there is no file {what}; check the name", url=url) from error
    except OSError as error:
        raise FetchDeniedError(f"{url}: {path} cannot be opened ({error})", url=url) from error


def _check_content(url: str, path: str) -> None:
    with open(path, "rb") as file:
        shard_download.check_content(url, file.read(512))


def _publish(task: ScanTask, result: ShardResult) -> ShardResult:
    """Publish the member table beside the shard, if requested; if that is impossible, put it into the result."""
    if result.error is not None:
        raise result.error
    if task.has_table:
        data = result.table.to_bytes()
        result.has_table = publish_table(task.url, data, task.session)
        result.unpublished = None if result.has_table else data
    result.table = None
    return result


def publish_table(url: str, data: bytes, session: Session = PLAIN) -> bool:
    """Write a member table beside its shard; return False if that is impossible.

    Raises:
        OutputExistsError: another file has this name.
    """
    place = Place(url)
    if place.scheme in ("pipe", "http", "https"):
        return False
    if place.is_local:
        check_table_replaceable(place.absolute.path + tables.SUFFIX)
    try:
        Target(session).put_bytes(data, url + tables.SUFFIX)
    except WidsError as error:
        logger.debug("%s: its member table cannot be put beside it (%s)", url, error)
        return False
    return True


def _pread(fd: int, offset: int, size: int) -> bytes:
    parts = []
    while size > 0 and (part := system.pread(fd, size, offset)):
        parts.append(part)
        offset, size = offset + len(part), size - len(part)
    return b"".join(parts)

"""What an index says of a shard, read from the shard itself.

Rules: a function of the shard's bytes alone, that any process on any machine can run. Local shards are read in place.
Of a remote one, byte ranges over its headers are read, or all of it where a checksum is wanted, and nothing is kept.
Only what gives no ranges is fetched, into a directory of its own, which is gone afterwards.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from wids.errors import CacheError, FetchError, ShardError, ShardNotFoundError, WidsError, without_secrets
from wids.events import logger
from wids.index import table as tables
from wids.index import tar, urls
from wids.index.spec import Shard
from wids.jobs.discovery import mark_words
from wids.osfiles import atomic, system, tempdirs
from wids.readers import member_tables
from wids.readers.store import Store
from wids.transport import filesystems, retrying
from wids.transport.failures import CancelledTransferError
from wids.transport.header_reader import FIRST_BYTES, Window
from wids.transport.range_client import ShardBytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from wids.index.table import Group, Identity, KeyRule, MemberTable

# For a checksum, so much is read at a time.
_LOCAL_BYTES, _REMOTE_BYTES = 1 << 20, 8 << 20


class Survey(msgspec.Struct, kw_only=True):
    """What was found out about one shard, or why it could not be.

    Attributes:
        url: as in its task.
        nsamples, nmembers: counts. filesize: bytes. md5sum: if it was wanted.
        mark: the version that was read, in words; None where nobody says.
        has_table: its member table was published. table: it was to be, and cannot be written beside the shard.
        requests, read_bytes: of byte ranges, for a remote shard.
        is_unchanged: it was known before, and not read again.
        failure: what went wrong, in words; the rest means nothing then. is_missing: that it is not there.
    """

    url: str
    nsamples: int = 0
    nmembers: int = 0
    filesize: int = 0
    md5sum: str | None = None
    mark: str | None = None
    has_table: bool = False
    table: bytes | None = None
    requests: int = 0
    read_bytes: int = 0
    is_unchanged: bool = False
    failure: str | None = None
    is_missing: bool = False

    def version(self) -> tuple[int, str | None]:
        """What tells whether the shard is still the one that was read."""
        return self.filesize, self.mark

    def entry(self) -> dict[str, Any]:
        """The entry of the shard in a shard list."""
        entry = {"url": self.url, "nsamples": self.nsamples, "filesize": self.filesize}
        return entry if self.md5sum is None else {**entry, "md5sum": self.md5sum}


class Task(msgspec.Struct, kw_only=True, frozen=True):
    """One shard to be surveyed.

    Attributes:
        url: a URL or a path.
        has_md5: its checksum is wanted.
        has_table: its member table is to be published beside it.
        known: what was found before; if size and mark are still the same, it is the answer.
        rule, group, storage_options, allow_pipe: as for `survey_shard`.
    """

    url: str
    known: Survey | None = None
    has_md5: bool = False
    has_table: bool = False
    rule: Any = "first-dot"
    group: Any = "adjacent"
    storage_options: dict[str, Any] | None = None
    allow_pipe: bool = False


def survey_shard(
    url: str,
    *,
    has_md5: bool = True,
    rule: KeyRule = "first-dot",
    group: Group = "adjacent",
    storage_options: dict[str, Any] | None = None,
    allow_pipe: bool = False,
) -> dict[str, Any]:
    """The entry of one shard in a shard list: ``url``, ``nsamples``, ``filesize`` (bytes), and ``md5sum`` if asked for.

    Raises:
        FetchError: it cannot be had. ShardError: it is not a readable tar.
    """
    task = Task(
        url=url, has_md5=has_md5, rule=rule, group=group, storage_options=storage_options, allow_pipe=allow_pipe
    )
    return survey(task).entry()


def try_survey(task: Task, is_cancelled: Callable[[], bool] = lambda: False) -> Survey:
    """As `survey`, but what goes wrong with this shard is told in the result: other shards go on."""
    try:
        return survey(task, is_cancelled)
    except CancelledTransferError:
        return Survey(url=task.url, failure="cancelled")
    except WidsError as error:
        is_missing = isinstance(error, ShardNotFoundError)
        return Survey(url=task.url, failure=str(error) or type(error).__name__, is_missing=is_missing)
    except Exception as error:  # noqa: BLE001 - the edge of a thread or a process; it is told with the others
        return Survey(url=task.url, failure=without_secrets(f"{task.url}: {type(error).__name__}: {error}", task.url))


def survey(task: Task, is_cancelled: Callable[[], bool] = lambda: False) -> Survey:
    """Read one shard.

    Args:
        task: which one, and what is wanted of it.
        is_cancelled: asked now and then; once it says True, reading ends.

    Raises:
        FetchError: it cannot be had. ShardError: it is not a readable tar.
        CancelledTransferError: it was cancelled.
    """
    if urls.is_local(task.url):
        return _survey_local(task, is_cancelled)
    mark = None
    if urls.scheme_of(task.url) != "pipe":
        with ShardBytes(task.url, storage_options=task.storage_options) as source:
            mark = mark_words(source.mark)
            known = task.known
            if known is not None and mark and (_size_of(source), mark) == known.version():
                return msgspec.structs.replace(known, url=task.url, is_unchanged=True)
            if source.has_ranges:
                return _survey_ranges(task, source, is_cancelled)
    told = _survey_copy(task)
    told.mark = mark
    return told


def _size_of(source: ShardBytes) -> int | None:
    """How long it is, as far as anybody says: a server that gives no ranges may say it all the same."""
    try:
        return source.size
    except FetchError:
        return None


def _survey_local(task: Task, is_cancelled: Callable[[], bool]) -> Survey:
    path = os.path.expanduser(urls.local_path(task.url))

    def once() -> Survey:
        try:
            fd, facts = atomic.open_file(path)
        except FileNotFoundError as error:
            raise ShardNotFoundError(f"{task.url}: there is no file {path}; check the name", url=task.url) from error
        try:
            digest = None
            if task.has_md5:
                window = Window(
                    lambda at, n: _pread(fd, at, n), facts.size, is_cancelled=is_cancelled, summed_bytes=_LOCAL_BYTES
                )
                table = _table(task, tar.scan(window.read, facts.size, shard=task.url), facts)
                digest = window.digest()
                table = table.with_identity(atomic.identify(fd, md5=digest))
            else:
                table = member_tables.scan_table(fd, task.url, facts, rule=task.rule, group=task.group)
            now = atomic.identify(fd)
            if (now.size, now.mtime_ns) != (facts.size, facts.mtime_ns):
                # Or the index would promise a size and a digest that never belonged together.
                raise ShardError(f"{task.url}: changed while it was read; index it when nobody writes it")
        finally:
            os.close(fd)
        return _told(task, table, digest, f"{facts.mtime_ns}")

    return retrying.try_repeatedly(once, url=task.url, path=None, hooks=())


def _survey_ranges(task: Task, source: ShardBytes, is_cancelled: Callable[[], bool]) -> Survey:
    first = source.read(0, _REMOTE_BYTES if task.has_md5 else FIRST_BYTES)  # also says how long it is
    retrying.check_content(task.url, first[:512])
    window = Window(
        source.read,
        source.size,
        is_cancelled=is_cancelled,
        summed_bytes=_REMOTE_BYTES if task.has_md5 else 0,
        first=first,
    )
    mark = mark_words(source.mark)
    identity = tables.Identity(size=source.size, etag=mark)
    table = _table(task, tar.scan(window.read, source.size, shard=task.url), identity)
    digest = window.digest() if task.has_md5 else None
    table = table.with_identity(tables.Identity(size=source.size, etag=mark, md5=digest))
    told = _told(task, table, digest, mark)
    told.requests, told.read_bytes = source.requests, source.read_bytes
    return told


def _survey_copy(task: Task) -> Survey:
    """By a copy in a directory of its own."""
    with tempdirs.directory("survey") as directory:
        store = Store(
            cache_dir=directory,
            rule=task.rule,
            group=task.group,
            storage_options=task.storage_options,
            allow_pipe=task.allow_pipe,
        )
        reader = store.open(Shard(url=task.url, nsamples=None))
        digest = retrying.file_md5(reader.path) if task.has_md5 else None
        identity = tables.Identity(size=reader.table.identity.size, md5=digest)
        told = _told(task, reader.table.with_identity(identity), digest, None)
        told.requests, told.read_bytes = 1, told.filesize
        return told


def _table(task: Task, members: Any, identity: Identity) -> MemberTable:
    return tables.build_table(members, identity=identity, shard=task.url, rule=task.rule, group=task.group)


def _told(task: Task, table: MemberTable, md5sum: str | None, mark: str | None) -> Survey:
    """The survey, its member table published beside the shard if that is wanted and can be done."""
    data = table.to_bytes() if task.has_table else None
    is_published = data is not None and publish_table(task.url, data, task.storage_options)
    return Survey(
        url=task.url,
        nsamples=len(table),
        nmembers=table.nmembers,
        filesize=table.identity.size,
        md5sum=md5sum,
        mark=mark,
        has_table=is_published,
        table=None if is_published else data,
    )


def publish_table(url: str, data: bytes, storage_options: dict[str, Any] | None = None) -> bool:
    """Write a member table beside its shard; False where that cannot be done."""
    scheme = urls.scheme_of(url)
    if scheme in ("pipe", "http", "https"):
        return False
    try:
        if urls.is_local(url):
            atomic.write_atomically(os.path.expanduser(urls.local_path(url)) + tables.SUFFIX, data)
        else:
            filesystem, name = filesystems.open_filesystem(url, storage_options)
            filesystem.pipe_file(name + tables.SUFFIX, data)  # object stores show the whole of it or nothing
    except (OSError, CacheError, NotImplementedError, ValueError):
        return False
    except Exception as error:  # noqa: BLE001 - refusals have as many types as there are file systems
        logger.debug("%s: its member table cannot be put beside it (%s)", url, error)
        return False
    return True


def _pread(fd: int, offset: int, size: int) -> bytes:
    parts = []
    while size > 0 and (part := system.pread(fd, size, offset)):
        parts.append(part)
        offset, size = offset + len(part), size - len(part)
    return b"".join(parts)

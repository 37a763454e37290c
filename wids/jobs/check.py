"""Checks one shard: compares what a scan reads with the index and with its published tables.

Nothing is changed. A local shard is read in place; a remote one is copied to a temporary directory during the check. A
fault of a shard is a `Problem`; only an error that affects all shards (a full disk, for instance) is raised.
"""

from __future__ import annotations

import errno
import json
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from wids.core.cache import shard_download
from wids.core.cache.freshness import find_difference_in_count, find_difference_in_size, find_difference_in_table
from wids.core.files import atomic, tempdirs
from wids.core.files.identity import Identity
from wids.core.index import checksums
from wids.core.index.discovery import look_local
from wids.core.index.paths import absolute
from wids.core.place import Place
from wids.core.shard import Shard  # noqa: TC001 - msgspec reads the annotations
from wids.core.tables import foreign, member_tables
from wids.core.tables import table as tables
from wids.core.tables.table_packs import TablePacks
from wids.core.transport import download, retrying
from wids.core.transport.range_client import ShardBytes
from wids.errors import (
    FetchDeniedError,
    FetchError,
    NotAllowedError,
    ShardError,
    ShardNotFoundError,
    TableError,
    WrongContentError,
)
from wids.events import ONE_FORM, count_of
from wids.jobs import scan
from wids.jobs.decode import decode_file
from wids.jobs.problems import Finding, Problem, VerifySettings, grouping_of, problem_of
from wids.jobs.runner import TaskContext

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wids.core.tables import tar
    from wids.core.tables.table import MemberTable
    from wids.core.transport.session import Session
    from wids.jobs.decode import Decode

# Problems that the transfer may have caused: the shard itself may be right.
_OF_TRANSFER = frozenset({"size", "digest", "tar", "count"})
# A right table that readers ignore, for instance after a copy without times: shards open more slowly.
UNUSED, _UNUSED_WORDS = "unused", "it is right, but not of the shard's time, so it is not used"
_PACK_AGAIN = "if it is two archives in one file, extract it (tar -i) and pack it again"
_FETCH_AGAIN = "upload or copy the shard again; if it was rewritten, write the index again"


class CheckTask(msgspec.Struct, kw_only=True, frozen=True):
    """One shard to check.

    Attributes:
        number: of the shard in its index.
        shard: its entry in the index.
        has_version: the finding must name its version.
        has_keys: it must have the keys of the samples.
        known: a finding of an earlier run; the result, if the version has not changed.
        rows: the samples to decode: int array; None: all.
    """

    number: int
    shard: Shard
    rows: Any = None
    has_version: bool = False
    has_keys: bool = False
    known: Finding | None = None


def check_shard(
    task: CheckTask,
    context: TaskContext = TaskContext(),  # noqa: B008 - frozen
    *,
    settings: VerifySettings,
    decode: Decode | None = None,
) -> Finding:
    """Check one shard.

    Args:
        task: the shard.
        context: can cancel the check.
        settings: the kinds of checks.
        decode: decodes a sample; None: samples are not decoded.

    Raises:
        CacheError: the disk has no space for it.
        CancelledTransferError: it was cancelled.
    """
    shard = task.shard
    version = _find_version(shard, settings) if task.has_version else None
    if task.known is not None and version is not None and task.known.version == version:
        return task.known
    finding = Finding(number=task.number, url=shard.url, version=version)
    try:
        if settings.is_quick:
            return _look_from_outside(shard, finding, settings)
        wanted = scan.ScanTask(
            url=shard.url,
            checksums=tuple(checksums.promised(shard)) if settings.has_digest else (),
            **grouping_of(settings),
            session=settings.session,
        )
        if Place(shard.url).is_local:
            path = Place(shard.url).path
            scanned = scan.scan_file(path, wanted, context.is_cancelled)
            return _look_into(path, scanned, task, finding, settings, decode)
        with tempdirs.directory("verify") as directory:
            path = os.path.join(directory, "shard.tar")
            scanned = scan.scan_copy(path, wanted, context.is_cancelled, is_sound=partial(_is_sound, shard))
            return _look_into(path, scanned, task, finding, settings, decode)
    except (ShardError, FetchError, NotAllowedError) as error:
        return msgspec.structs.replace(finding, problems=(problem_of(error),))


def compare(scanned: scan.ShardResult, shard: Shard) -> Iterator[Problem]:
    """Compare the scan of a shard with its entry in the index."""
    if what := find_difference_in_size(shard, Identity(size=scanned.filesize)):
        yield Problem(kind="size", what=what, advice=_FETCH_AGAIN)
    else:
        yield from _compare_digests(scanned, shard)
    if scanned.behind is not None:
        what = f"goes on behind its end marker: {scanned.filesize - scanned.behind:,} bytes that nothing reads"
        yield Problem(kind="tar", what=what, where=f"byte {scanned.behind}", advice=_PACK_AGAIN)
    if scanned.zeros:
        at = scanned.filesize - scanned.zeros
        what = f"ends with {scanned.zeros:,} zeros, more than any writer appends: the samples there were lost"
        yield Problem(kind="tar", what=what, where=f"byte {at}", advice=_FETCH_AGAIN)
    if scanned.table is not None and scanned.nleft and not scanned.nsamples:
        what = f"has no sample: the names of its {scanned.nleft:,} files have no extension, or a dot first"
        yield Problem(kind="empty", what=what, advice="pack it again with names like 0017.jpg")
    if scanned.nalike:
        words = count_of(scanned.nalike, "key")
        what = f"has {words} that another one is, too, in a second Unicode form (NFC, NFD)"
        yield Problem(kind="keys", what=what, advice=ONE_FORM)
    if scanned.error is not None:
        yield problem_of(scanned.error)
    elif scanned.table is not None and (what := find_difference_in_count(shard, scanned.table)):
        advice = "write the index again, or read it with the key rule and grouping it was made with"
        yield Problem(kind="count", what=what, advice=advice)


def _compare_digests(scanned: scan.ShardResult, shard: Shard) -> Iterator[Problem]:
    """The first checksum that differs; the index may have several."""
    for key, said in checksums.promised(shard).items():
        found = getattr(scanned, key)
        if found not in (None, said):
            words = f"its {checksums.word(key)} is {{}}, the index says {{}}".format
            what = words(*(digest if len(digest) <= 8 else f"{digest[:8]}..." for digest in (found, said)))
            yield Problem(kind="digest", what=what, advice=_FETCH_AGAIN, detail=words(found, said))
            return


def _is_sound(shard: Shard, scanned: scan.ShardResult) -> bool:
    return not any(problem.kind in _OF_TRANSFER for problem in compare(scanned, shard))


def _look_from_outside(shard: Shard, finding: Finding, settings: VerifySettings) -> Finding:
    with ShardBytes(shard.url, session=settings.session) as source:
        scanned = scan.ShardResult(url=shard.url, nsamples=0, filesize=source.size)
    return msgspec.structs.replace(finding, size_bytes=scanned.filesize, problems=tuple(compare(scanned, shard)))


def _look_into(
    path: str,
    scanned: scan.ShardResult,
    task: CheckTask,
    finding: Finding,
    settings: VerifySettings,
    decode: Decode | None,
) -> Finding:
    """All problems of a file, by its scan."""
    shard, table = task.shard, scanned.table
    problems = [*compare(scanned, shard)]
    undecoded = 0
    if table is not None:
        problems += _problems_beside(path, shard, table, settings)
        if decode is not None:
            found, undecoded = decode_file(path, table, shard.url, decode, task.rows)
            problems += found
    return msgspec.structs.replace(
        finding,
        size_bytes=scanned.filesize,
        nsamples=None if table is None else table.nsamples,
        problems=tuple(problem for problem in problems if problem.kind != UNUSED),
        left_files=scanned.nleft,
        undecoded=undecoded,
        keys=list(table.keys()) if task.has_keys and table is not None else None,
        has_unused_table=any(problem.kind == UNUSED for problem in problems),
    )


def _problems_beside(path: str, shard: Shard, table: MemberTable, settings: VerifySettings) -> Iterator[Problem]:
    """Faults of tables beside a shard or in packs. Saved tables always have the standard grouping."""
    fd, _ = atomic.open_file(path)
    try:
        if not tables.is_standard(**grouping_of(settings)):
            table = member_tables.scan_table(fd, shard.url, table.identity)
        if Place(shard.url).is_local:
            yield from _table_problems(path, fd, table)
        else:
            yield from _published_problems(shard, settings, table)
        yield from _packed_problems(shard, settings, table)
    finally:
        os.close(fd)


def _find_version(shard: Shard, settings: VerifySettings) -> str | None:
    """The version of a shard, the tables beside it and its packs; None: unknown."""
    url = shard.url
    if (own := Place(url)).is_local:
        path = own.path
        found = [look_local(name) for name in (path, *_tables_beside(path))]
    else:
        found = [scan.look_remote(name, settings.session) for name in (url, *_table_published(url))]
    for name in shard.packs:
        found.append(look_local(name) if Place(name).is_local else scan.look_remote(name, settings.session))
    return None if found[0].mark is None else json.dumps([(each.size, each.mark) for each in found])


def _tables_beside(path: str) -> tuple[str, str, str]:
    """The possible places of the tables of wids, Energon and DALI."""
    base = path.removesuffix(".tar")
    return path + tables.SUFFIX, base + foreign.ENERGON_SUFFIX, base + foreign.DALI_SUFFIX


def _table_published(url: str) -> list[str]:
    """The possible place of a remote shard's table; none for a signed URL, which gives access to one object."""
    return [url + tables.SUFFIX] if member_tables.may_be_published(Place(url)) else []


def _published_problems(shard: Shard, settings: VerifySettings, scanned: MemberTable) -> Iterator[Problem]:
    """Faults of the member table beside a remote shard, if it exists."""
    for place in _table_published(shard.url):
        if what := _fault_of_published(place, shard, settings, scanned):
            advice = f"delete {Place(place).public}, or make it again"
            yield Problem(kind="table", what=what, where=Place(place).name, advice=advice)


def _fault_of_published(place: str, shard: Shard, settings: VerifySettings, scanned: MemberTable) -> str:
    try:
        most = member_tables.max_published_bytes(scanned.identity.size)
        data = download.read_bytes(place, session=settings.session, max_bytes=most)
        shard_download.check_content(place, data)
        return find_difference_in_table(tables.parse_table(data, shard=shard.url), scanned.identity, scanned)
    except (ShardNotFoundError, FetchDeniedError, WrongContentError):  # a bucket that cannot be listed refuses
        return ""
    except (FetchError, TableError) as error:
        what = str(error)
        for name in (shard.url, place):
            what = what.removeprefix(f"{Place(name).public}: ")
        return what


# Session -> packs: all shards share the directory of a pack.
_packs: dict[Session, TablePacks] = {}


def _packed_problems(shard: Shard, settings: VerifySettings, scanned: MemberTable) -> Iterator[Problem]:
    """Faults of the shard's member tables in the packs that its index names."""
    if not shard.packs:
        return
    packs = _packs.get(settings.session)
    if packs is None:
        packs = _packs.setdefault(settings.session, TablePacks(cache_dir=None, session=settings.session))
    own, size, where = (
        msgspec.structs.replace(shard, url=absolute(shard.url)),
        scanned.identity.size,
        "its member table",
    )
    for place in map(absolute, shard.packs):
        try:
            data = packs.read_stored(place, own, shard_bytes=size, seconds=retrying.LIMITS.first_seconds)
            if data is None:
                continue
            saved = tables.parse_table(data, shard=shard.url, name=where)
            what = find_difference_in_table(saved, scanned.identity, scanned)
        except (FetchError, TableError) as error:
            what = str(error)
            for name in (shard.url, place, where):
                what = what.removeprefix(f"{Place(name).public}: ").removeprefix(f"{name} ")
        if what:
            advice = "make the pack again (wids index tables)"
            yield Problem(kind="table", what=what, where=Place(place).name, advice=advice)


def _table_problems(path: str, fd: int, scanned: MemberTable) -> Iterator[Problem]:
    """Faults of the tables beside a local shard, of wids and of other tools."""

    def members() -> Iterator[tar.Member]:
        return iter(member_tables.scan_members(fd, path, scanned.identity.size))

    def find_in_energon(data: bytes) -> str:
        return foreign.find_difference_in_offsets(foreign.parse_offsets(data, shard=path), members())

    def find_in_dali(data: bytes) -> str:
        is_of_dali = data.startswith(foreign.DALI_STARTS)
        return foreign.find_difference(foreign.parse_dali(data, shard=path), members()) if is_of_dali else ""

    def find_in_own(data: bytes) -> str:
        return _compare_own(tables.parse_table(data, shard=path), scanned)

    for name, find in zip(_tables_beside(path), (find_in_own, find_in_energon, find_in_dali), strict=True):
        try:
            with open(atomic.open_file(name)[0], "rb") as file:
                what = find(file.read())
        except OSError as error:
            # No such file exists, or the name is too long for one.
            if isinstance(error, (FileNotFoundError, IsADirectoryError)) or error.errno == errno.ENAMETOOLONG:
                continue
            what = f"it cannot be read ({error.strerror})"
        except TableError as error:
            what = str(error).removeprefix(f"{path}: ")
        if what:
            kind = UNUSED if what is _UNUSED_WORDS else "table"
            advice = f"delete {name}, or make it again"
            yield Problem(kind=kind, what=what, where=os.path.basename(name), advice=advice)


def _compare_own(saved: MemberTable, scanned: MemberTable) -> str:
    identity = scanned.identity
    if what := find_difference_in_table(saved, identity, scanned):
        return what
    # A reader of the shard does not know its md5.
    return "" if saved.identity.is_same(msgspec.structs.replace(identity, md5=None)) else _UNUSED_WORDS

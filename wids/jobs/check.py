"""Is a shard what the index says, and whole? One shard at a time, and all that is wrong with it.

Rules: nothing is changed. A local shard is read where it is; another one comes into a directory of the caller's for as
long as it is looked at. What is wrong with a shard is a `Problem`; only what keeps all shards from being looked at
(no room for them, say) is raised.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from wids.errors import (
    FetchDeniedError,
    FetchError,
    NotAllowedError,
    ShardError,
    ShardNotFoundError,
    TableError,
    WrongContentError,
    without_secrets,
)
from wids.index import foreign, urls
from wids.index import table as tables
from wids.jobs.problems import Finding, Looks, Problem, problem_of
from wids.osfiles import atomic
from wids.policy.freshness import find_difference_in_count, find_difference_in_size, find_difference_in_table
from wids.readers import member_tables
from wids.transport import retrying
from wids.transport.range_client import ShardBytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from wids.index.spec import Shard
    from wids.index.table import Identity, MemberTable
    from wids.index.tar import Member

    # Decodes all samples of a file: (path, shard) -> what failed, and how many members were left alone.
    DecodeAll: TypeAlias = Callable[[str, Shard], "tuple[list[Problem], int]"]
    # What is wrong with tables beside a shard: (its descriptor, what it is, its own table).
    LookBeside: TypeAlias = Callable[[int, Identity, MemberTable], Iterator[Problem]]

# Damage may be of the transfer: a remote shard is fetched once more before it is said to be damaged.
_OF_TRANSFER = frozenset({"size", "digest", "tar", "count"})
# A table that is right and not used, as after copying without times: nothing is wrong, but shards open more slowly.
UNUSED, _UNUSED_WORDS = "unused", "it is right, but not of the shard's time, so it is not used"
_FETCH_AGAIN = "upload or copy the shard again; if it was written anew, write the index again"


def verify_shard(
    shard: Shard,
    *,
    number: int = 0,
    looks: Looks = Looks(),  # noqa: B008 - frozen
    directory: str | None = None,
    decode: DecodeAll | None = None,
    is_cancelled: Callable[[], bool] | None = None,
) -> Finding:
    """Look at one shard.

    Args:
        shard: what the index says.
        number: its place in the index.
        looks: how closely.
        directory: where a remote shard is while it is looked at; None: the system's temporary directory.
        decode: decodes all its samples; None: they are not.
        is_cancelled: asked now and then while it is fetched; True ends it.

    Raises:
        CacheError: there is no room for it.
        CancelledTransferError: it was cancelled.
    """
    finding = Finding(number=number, url=shard.url)
    try:
        if looks.is_quick:
            return _look_from_outside(shard, finding, looks)
        if urls.is_local(shard.url):
            path = os.path.expanduser(urls.local_path(shard.url))
            return _look_into(path, shard, finding, looks, decode, partial(_table_problems, path))
        return _fetch_and_look(shard, finding, looks, directory, decode, is_cancelled)
    except (ShardError, FetchError, NotAllowedError) as error:
        return msgspec.structs.replace(finding, problems=(problem_of(error),))


def _look_from_outside(shard: Shard, finding: Finding, looks: Looks) -> Finding:
    with ShardBytes(shard.url, storage_options=looks.storage_options) as source:
        facts = tables.Identity(size=source.size)
    return msgspec.structs.replace(finding, size_bytes=facts.size, problems=tuple(_size_problems(shard, facts)))


def _fetch_and_look(
    shard: Shard,
    finding: Finding,
    looks: Looks,
    directory: str | None,
    decode: DecodeAll | None,
    is_cancelled: Callable[[], bool] | None,
) -> Finding:
    fd, path = tempfile.mkstemp(dir=directory, prefix="wids-verify-", suffix=".tar")
    os.close(fd)
    try:
        for _ in range(2):
            retrying.fetch_to(
                shard.url,
                path,
                check=partial(_check_content, shard.url, path),
                is_cancelled=is_cancelled,
                storage_options=looks.storage_options,
                allow_pipe=looks.allow_pipe,
            )
            look_beside = partial(_published_problems, shard, looks)
            found = _look_into(path, shard, finding, looks, decode, look_beside)
            if not any(problem.kind in _OF_TRANSFER for problem in found.problems):
                break
        return found
    finally:
        with contextlib.suppress(OSError):  # an interrupted command removes the directory
            os.unlink(path)


def _check_content(url: str, path: str) -> None:
    with open(path, "rb") as file:
        retrying.check_content(url, file.read(512))


def _look_into(
    path: str, shard: Shard, finding: Finding, looks: Looks, decode: DecodeAll | None, look_beside: LookBeside
) -> Finding:
    """Look at all of a file."""
    fd, facts = _open(path, shard.url)
    problems: list[Problem] = []
    table: MemberTable | None = None
    undecoded = 0
    try:
        problems += _size_problems(shard, facts)
        if looks.has_digest and shard.md5sum and not problems:
            facts = msgspec.structs.replace(facts, md5=_digest(fd, shard.url))
            if facts.md5 != shard.md5sum:
                problems.append(_digest_problem(shard.md5sum, str(facts.md5)))
        try:
            table = member_tables.scan_table(fd, shard.url, facts, rule=looks.rule, group=looks.group)
        except ShardError as error:
            problems.append(problem_of(error))
        else:
            if what := find_difference_in_count(shard, table):
                advice = "write the index again, or give the --key-rule and --group it was made with"
                problems.append(Problem(kind="count", what=what, advice=advice))
            is_standard = tables.is_standard(looks.rule, looks.group)
            problems += look_beside(fd, facts, table if is_standard else member_tables.scan_table(fd, shard.url, facts))
            if decode is not None:
                found, undecoded = decode(path, shard)
                problems += found
    finally:
        os.close(fd)
    return msgspec.structs.replace(
        finding,
        size_bytes=facts.size,
        nsamples=None if table is None else table.nsamples,
        problems=tuple(problem for problem in problems if problem.kind != UNUSED),
        undecoded=undecoded,
        has_unused_table=any(problem.kind == UNUSED for problem in problems),
    )


def _open(path: str, url: str) -> tuple[int, Identity]:
    try:
        return atomic.open_file(path)
    except FileNotFoundError as error:
        raise ShardNotFoundError(f"{url}: there is no file {path}", url=url) from error
    except OSError as error:
        raise FetchDeniedError(f"{url}: {path} cannot be opened ({error})", url=url) from error


def _digest(fd: int, url: str) -> str:
    try:
        return retrying.file_md5(fd)
    except OSError as error:  # a disk that fails
        raise FetchError(f"{url}: cannot be read ({error})", url=url) from error


def _digest_problem(promised: str, found: str) -> Problem:
    return Problem(
        kind="digest",
        what=f"its md5 is {found[:8]}..., the index says {promised[:8]}...",
        advice=_FETCH_AGAIN,
        detail=f"its md5 is {found}, the index says {promised}",
    )


def _size_problems(shard: Shard, facts: Identity) -> Iterator[Problem]:
    if what := find_difference_in_size(shard, facts):
        yield Problem(kind="size", what=what, advice=_FETCH_AGAIN)


def _published_problems(shard: Shard, looks: Looks, _: int, facts: Identity, scanned: MemberTable) -> Iterator[Problem]:
    """What is wrong with the member table beside a remote shard, if there is one."""
    url, place = shard.url, shard.url + tables.SUFFIX
    if urls.scheme_of(url) == "pipe" or urls.without_query(url) != url:  # what is signed is one object alone
        return
    try:
        data = retrying.read_bytes(place, storage_options=looks.storage_options)
        retrying.check_content(place, data)
        what = find_difference_in_table(tables.parse_table(data, shard=url), facts, scanned)
    except (ShardNotFoundError, FetchDeniedError, WrongContentError):  # a bucket that cannot be listed refuses
        return
    except (FetchError, TableError) as error:
        what = str(error)
        for name in (url, place):
            what = what.removeprefix(f"{without_secrets(name, name)}: ")
    if what:
        advice = f"delete {without_secrets(place, place)}, or make it again (wids index create --members)"
        yield Problem(kind="table", what=what, where=urls.basename_of(place), advice=advice)


def _table_problems(path: str, fd: int, facts: Identity, scanned: MemberTable) -> Iterator[Problem]:
    """What is wrong with the tables beside a local shard, our own and those of other tools."""
    url = path
    base = path.removesuffix(".tar")
    compare: dict[str, Callable[[bytes], str]] = {
        path + tables.SUFFIX: lambda data: _compare_own(tables.parse_table(data, shard=url), facts, scanned),
        base + foreign.ENERGON_SUFFIX: lambda data: foreign.find_difference_in_offsets(
            foreign.parse_offsets(data, shard=url), _members(fd, url, facts)
        ),
        base + foreign.DALI_SUFFIX: lambda data: (
            foreign.find_difference(foreign.parse_dali(data, shard=url), _members(fd, url, facts))
            if data.startswith(foreign.DALI_STARTS)
            else ""  # of some other tool
        ),
    }
    for name, find in compare.items():
        try:
            with open(atomic.open_file(name)[0], "rb") as file:
                what = find(file.read())
        except (FileNotFoundError, IsADirectoryError):
            continue
        except OSError as error:
            what = f"it cannot be read ({error.strerror})"
        except TableError as error:
            what = str(error).removeprefix(f"{url}: ")
        if what:
            kind = UNUSED if what is _UNUSED_WORDS else "table"
            advice = f"delete {name}, or make it again"
            yield Problem(kind=kind, what=what, where=os.path.basename(name), advice=advice)


def _compare_own(saved: MemberTable, facts: Identity, scanned: MemberTable) -> str:
    if what := find_difference_in_table(saved, facts, scanned):
        return what
    # Who opens the shard does not know its md5.
    return "" if saved.identity.is_same(msgspec.structs.replace(facts, md5=None)) else _UNUSED_WORDS


def _members(fd: int, url: str, facts: Identity) -> Iterator[Member]:
    return member_tables.scan_members(fd, url, facts.size)

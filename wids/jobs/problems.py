"""The problems of a shard: values, and errors in the few words of a table.

Rules: pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from wids.core.place import Place
from wids.core.tables.table import GroupOptions
from wids.core.transport.session import PLAIN, Session

if TYPE_CHECKING:
    from wids.errors import WidsError


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One problem of a shard.

    Attributes:
        kind: one word: missing, denied, unreachable, page, refused, fetch, size, digest, tar, empty, keys, count,
            table, changed, decode, error.
        what: in a few words.
        where: in the shard, or the file beside it; ``""``: as a whole.
        advice: for the user.
        detail: the full message, if it says more.
        key: of the sample, for ``decode``.
        field: of the member, likewise.
        row: of the sample, likewise.

    Example:
        >>> import os
        >>> os.remove("train-000001.tar")
        >>> jobs.verify("train.json").wrong[0].problems[0].what
        'is not there'
    """

    kind: str
    what: str
    where: str = ""
    advice: str = ""
    detail: str = ""
    key: str | None = None
    field: str | None = None
    row: int | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The properties and problems of one shard.

    Attributes:
        number: of the shard in its index.
        url: of the shard.
        size_bytes: its size; None: unknown.
        nsamples: its number of samples; None: unknown.
        left_files: number of files that are part of no sample.
        undecoded: members that were not decoded, because that could run code.
        version: of the shard and the tables beside it; None: unknown, or not requested.
        has_unused_table: its saved member table is right, but has another modification time, so readers ignore it.
        keys: of its samples, until they are compared with those of other shards; None: not requested.

    Example:
        >>> import os
        >>> os.remove("train-000001.tar")
        >>> finding, = jobs.verify("train.json").wrong
        >>> finding.number, [problem.kind for problem in finding.problems]
        (1, ['missing'])
    """

    number: int
    url: str
    size_bytes: int | None = None
    nsamples: int | None = None
    problems: tuple[Problem, ...] = ()
    left_files: int = 0
    undecoded: int = 0
    has_unused_table: bool = False
    version: str | None = None
    keys: list[str] | None = None


class VerifySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The kinds of checks.

    Attributes:
        is_quick: check only existence and size.
        has_digest: check the checksums that the index has.
        rule: of the members' keys; see `wids.core.tables.table.build_table`. None: as the index says.
        group: of members as samples; likewise.
        session: opens URLs.

    Example:
        >>> jobs.verify("train.json", jobs.VerifySettings(is_quick=True)).wrong
        []
    """

    is_quick: bool = False
    has_digest: bool = True
    rule: Any = None
    group: Any = None
    session: Session = PLAIN


def grouping_of(settings: VerifySettings) -> GroupOptions:
    """The way in which members become samples; the standard way where the settings do not say."""
    return GroupOptions(rule=settings.rule or "first-dot", group=settings.group or "adjacent")


def problem_of(error: WidsError) -> Problem:
    """An error about a shard, as a problem of it."""
    what = error.summary
    if not what:
        url = error.url or error.shard or ""
        what = str(error).removeprefix(f"{Place(url).public}: ").partition("; ")[0]
    where = "" if error.offset is None else f"byte {error.offset}"
    if error.key is not None:
        where = f"sample {error.key!r} {error.field}"
    return Problem(
        kind=error.kind,
        what=what,
        where=where,
        advice=error.advice,
        detail=str(error),
        key=error.key,
        field=error.field,
    )

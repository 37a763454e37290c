"""What can be wrong with a shard: values, and errors in the few words of a table.

Rules: pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from wids.errors import (
    ChangedShardError,
    CompressedShardError,
    CorruptHeaderError,
    DuplicateMemberError,
    EmptyShardError,
    FetchDeniedError,
    FetchError,
    NotAllowedError,
    ShardError,
    ShardNotFoundError,
    TruncatedShardError,
    UnreachableError,
    UnsupportedMemberError,
    WrongContentError,
    without_secrets,
)

if TYPE_CHECKING:
    from wids.errors import WidsError

# What an error says in a few words, and what to do; the first that fits. Without words: its own.
_WORDS: tuple[tuple[type[WidsError], str, str, str], ...] = (
    (ShardNotFoundError, "missing", "is not there", "bring it back, or check the URLs and the base of the index"),
    (FetchDeniedError, "denied", "", "check permissions, credentials and signatures"),
    (UnreachableError, "unreachable", "", "check host, port and network"),
    (WrongContentError, "page", "is a web page", "open the URL in a browser to see what it says"),
    (NotAllowedError, "refused", "is the output of a program, which was not run", "look at it where it is trusted"),
    (FetchError, "fetch", "", "try again; check the server or the disk"),
    (EmptyShardError, "tar", "is empty", "write or upload the shard again"),
    (CompressedShardError, "tar", "is compressed", "decompress it to a plain .tar"),
    (TruncatedShardError, "tar", "is cut short", "write or upload the shard again"),
    (CorruptHeaderError, "tar", "has a damaged header", "write or upload the shard again"),
    (UnsupportedMemberError, "tar", "has a sparse or multi-volume member", "pack it again without such members"),
    (DuplicateMemberError, "tar", "has two members of one name in a sample", "write it without the repeat"),
    (ChangedShardError, "changed", "changed while it was looked at", "look again when nobody writes it"),
    (ShardError, "tar", "", "write or upload the shard again"),
)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with a shard.

    Attributes:
        kind: one word: missing, denied, unreachable, page, refused, fetch, size, digest, tar, count, table, changed,
            decode, error.
        what: in a few words. where: in the shard, or the file beside it; ``""``: as a whole. advice: what to do.
        detail: the whole story, where there is more to say.
        key, field: of the sample and member, for ``decode``.
    """

    kind: str
    what: str
    where: str = ""
    advice: str = ""
    detail: str = ""
    key: str | None = None
    field: str | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about one shard.

    Attributes:
        number: of the shard in its index. url: its own.
        size_bytes, nsamples: what it has; None where that could not be told.
        problems: what is wrong.
        undecoded: members that were not decoded, because that could run code.
        has_unused_table: its saved member table is right, but of another time than the file, so it is not used.
    """

    number: int
    url: str
    size_bytes: int | None = None
    nsamples: int | None = None
    problems: tuple[Problem, ...] = ()
    undecoded: int = 0
    has_unused_table: bool = False


class Looks(msgspec.Struct, frozen=True, kw_only=True):
    """How closely to look.

    Attributes:
        is_quick: at existence and size only. has_digest: at md5 digests, where the index has them.
        rule, group: how members become samples; see `wids.index.table.build_table`.
        storage_options, allow_pipe: see `wids.transport.retrying.fetch_to`.
    """

    is_quick: bool = False
    has_digest: bool = True
    rule: Any = "first-dot"
    group: Any = "adjacent"
    storage_options: dict[str, Any] | None = None
    allow_pipe: bool = False


def problem_of(error: WidsError) -> Problem:
    """An error about a shard, as a problem of it."""
    _, kind, what, advice = next(words for words in _WORDS if isinstance(error, words[0]))
    if not what:
        url = error.url or error.shard or ""
        what = str(error).removeprefix(f"{without_secrets(url, url)}: ").partition("; ")[0]
    where = "" if error.offset is None else f"byte {error.offset}"
    if error.key is not None:
        where = f"sample {error.key!r} {error.field}"
    return Problem(
        kind=kind, what=what, where=where, advice=advice, detail=str(error), key=error.key, field=error.field
    )

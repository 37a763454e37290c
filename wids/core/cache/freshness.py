"""The comparison of a file with the shard that the index means, and of a saved table with its shard.

Pure; in doubt it is not. The answer is a cause in words, ``""`` for yes.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wids.core.files.identity import Identity
    from wids.core.shard import Shard
    from wids.core.tables.table import MemberTable

FILE, VERSION = "file:", "hub:"
_CRC32, _VERSION = "crc32:", "version:"


def mark_of(shard: Shard, origin: str | None, known: Identity | None = None, *, version: str = "") -> str | None:
    """The ``etag`` in the table of a cached shard: the shard's source, its CRC-32, the server's version.

    Args:
        shard: the shard in the index, with which its bytes were compared.
        origin: see `find_difference`.
        known: earlier findings about the same bytes.
        version: see `version_mark`.
    """
    crc, version = shard.crc32 or _find(_CRC32, _marks(known)), version or version_in(known)
    return " ".join(filter(None, (origin, crc and _CRC32 + crc, version and _VERSION + version))) or None


def version_mark(version: Any) -> str:
    """A short word for a store's version (an entity tag, a generation); "" where it has none."""
    return "" if version is None else hashlib.sha256(str(version).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def state_in(known: Identity | None) -> str:
    """The mark of a cached shard by which its bytes differ from later ones of its source; "": it has none."""
    return version_in(known) or _find(FILE, _marks(known))


def version_in(known: Identity | None) -> str:
    """The version at its server of a shard that was downloaded; "": not known."""
    return _find(_VERSION, _marks(known))


def _marks(identity: Identity | None) -> list[str]:
    return [] if identity is None else (identity.etag or "").split()


def _find(prefix: str, marks: list[str]) -> str:
    return next((mark.removeprefix(prefix) for mark in marks if mark.startswith(prefix)), "")


def find_difference(  # noqa: PLR0911 - one line for each thing that may differ
    shard: Shard,
    identity: Identity,
    table: MemberTable | None,
    *,
    origin: str | None = None,
    miscounted: Identity | None = None,
) -> str:
    """The reason why a cached file is not known to be ``shard``.

    Args:
        shard: the shard in the index.
        identity: size and modification time of the file now.
        table: the verified member table: saved beside it, or just built from it.
        origin: words that the table must have for its origin, where its place does not show it; see
            `wids.core.cache.placement.Placement.origin`. One that begins with `FILE` is for the state of a local file,
            with `VERSION` for the version that a run reads.
        miscounted: bytes that are known to hold another count than the index says; downloading again would not help.
    """
    if cause := find_difference_in_size(shard, identity):
        return cause
    if table is None:
        return "its member table, the record of its verification, is missing or damaged"
    if not table.identity.is_same(identity):
        return "it changed since it was verified"
    marks = _marks(table.identity)
    for word in (origin or "").split():
        if word not in marks:
            is_anew = word.startswith((FILE, VERSION))
            return "its source was rewritten" if is_anew else "it came from another URL that has the same place"
    if shard.md5sum and table.identity.md5 != shard.md5sum:
        return f"its md5 is {table.identity.md5 or 'unknown'}, the index says {shard.md5sum}"
    if shard.crc32 and _find(_CRC32, marks) != shard.crc32:
        return f"its crc32 is {_find(_CRC32, marks) or 'unknown'}, the index says {shard.crc32}"
    if shard.nsamples != table.nsamples and miscounted != table.identity:
        return find_difference_in_count(shard, table)
    return ""


def find_difference_in_size(shard: Shard, identity: Identity) -> str:
    """`find_difference` by the size alone."""
    if shard.filesize in (None, identity.size):
        return ""
    return f"it has {identity.size} bytes, the index says {shard.filesize}"


def find_difference_in_count(shard: Shard, table: MemberTable) -> str:
    """`find_difference` by the number of samples alone."""
    if shard.nsamples in (None, table.nsamples):
        return ""
    return f"it holds {table.nsamples} samples, the index says {shard.nsamples}"


def find_difference_in_table(saved: MemberTable, identity: Identity, scanned: MemberTable) -> str:
    """The reason why a saved table does not hold for the bytes of a shard, regardless of modification times.

    Args:
        saved: the table.
        identity: the shard's size, and its md5 if that is known.
        scanned: the table of its headers.
    """
    if saved.with_identity(identity).to_bytes() != scanned.with_identity(identity).to_bytes():
        return "it says something else than the shard's headers"
    known = saved.identity
    if known.size != identity.size or (known.md5 and identity.md5 and known.md5 != identity.md5):
        return "it was made for another version of the shard"
    return ""

"""Member table: where each sample's members lie in one shard, and how it is built from the members of an archive.

Rules: pure; immutable once built; order is first appearance in the archive and never changes. Key rules, what ties a
table to its shard, and its on-disk form have modules of their own; their names are found here too.
"""

from __future__ import annotations

import sys
from array import array
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from wids.errors import DuplicateMemberError
from wids.index import widx
from wids.index.identity import Identity
from wids.index.keys import KeyRule, decode_name, encode_name, first_dot, last_dot, parse_rule
from wids.index.widx import SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wids.index.tar import Member

__all__ = [
    "SUFFIX",
    "Group",
    "Identity",
    "KeyRule",
    "MemberTable",
    "build_table",
    "decode_name",
    "encode_name",
    "first_dot",
    "is_standard",
    "last_dot",
    "parse_rule",
    "parse_table",
]

Group: TypeAlias = Literal["adjacent", "key"]


def is_standard(rule: KeyRule, group: Group) -> bool:
    """Whether this is the grouping that saved tables hold."""
    return rule == "first-dot" and group == "adjacent"


class MemberTable:
    """Offsets, sizes, extensions and keys of one shard's samples.

    Attributes:
        identity: the shard this table belongs to.
        nsamples, nmembers: counts.
        nrepeated: samples whose key had appeared before, not adjacent (``group="key"`` merges them).
        extensions: the distinct extensions, each with its leading dot.
        starts: ``starts[r] .. starts[r + 1]`` are the members of sample ``r``; indexable, gives ints.
        offsets, sizes: of each member's data in the shard, in bytes; indexable, give ints.
        extension_ids: of each member, into ``extensions``.
        key_text: the keys one after another: str if all are ASCII (a byte offset is then a position), else raw bytes.
        key_ends: sample ``r``'s key is ``key_text[key_ends[r] : key_ends[r + 1]]``.
    """

    __slots__ = (
        "_rows",
        "extension_ids",
        "extensions",
        "identity",
        "key_ends",
        "key_text",
        "nmembers",
        "nrepeated",
        "nsamples",
        "offsets",
        "sizes",
        "starts",
    )

    def __init__(
        self,
        *,
        identity: Identity,
        columns: Sequence[memoryview],
        extensions: tuple[str, ...],
        keys: bytes | memoryview,
        nrepeated: int,
    ) -> None:
        self.identity = identity
        self.offsets, self.sizes, self.extension_ids, self.starts, self.key_ends = columns
        self.extensions = extensions
        raw = bytes(keys)
        self.key_text: str | bytes = raw.decode("ascii") if raw.isascii() else raw
        self.nmembers = len(self.offsets)
        self.nsamples = len(self.starts) - 1
        self.nrepeated = nrepeated
        self._rows: dict[str, list[int]] | None = None

    def __len__(self) -> int:
        return self.nsamples

    def __repr__(self) -> str:
        return f"<MemberTable of {self.nsamples} samples, {self.nmembers} members, {self.identity.size} bytes>"

    @property
    def nbytes(self) -> int:
        """Memory that the columns and keys take, in bytes."""
        columns = (self.offsets, self.sizes, self.extension_ids, self.starts, self.key_ends)
        return len(self.key_text) + sum(column.nbytes for column in columns)

    def key(self, row: int) -> str:
        """The key of sample ``row`` (0 <= row < nsamples)."""
        key = self.key_text[self.key_ends[row] : self.key_ends[row + 1]]
        return key if isinstance(key, str) else decode_name(key)

    def keys(self) -> Iterator[str]:
        """All keys, in sample order."""
        return map(self.key, range(self.nsamples))

    def rows_of(self, key: str) -> list[int]:
        """The samples with this key, in order. The first call costs O(nsamples)."""
        if self._rows is None:
            rows: dict[str, list[int]] = {}
            for row, name in enumerate(self.keys()):
                rows.setdefault(name, []).append(row)
            self._rows = rows
        return list(self._rows.get(key, ()))

    def members(self, row: int) -> list[tuple[str, int, int]]:
        """(extension, data offset, size in bytes) of each member of sample ``row``."""
        span = range(self.starts[row], self.starts[row + 1])
        return [(self.extensions[self.extension_ids[m]], self.offsets[m], self.sizes[m]) for m in span]

    def with_identity(self, identity: Identity) -> MemberTable:
        """The same table, tied to another description of the same bytes."""
        return MemberTable(**{**self._parts(), "identity": identity})

    def _parts(self) -> dict[str, Any]:
        """The constructor's arguments."""
        text = self.key_text
        return {
            "identity": self.identity,
            "columns": (self.offsets, self.sizes, self.extension_ids, self.starts, self.key_ends),
            "extensions": self.extensions,
            "keys": text.encode("ascii") if isinstance(text, str) else text,
            "nrepeated": self.nrepeated,
        }

    def to_bytes(self) -> bytes:
        """The on-disk form."""
        return widx.pack(widx.Content(**self._parts()))


def parse_table(data: bytes, *, shard: str) -> MemberTable:
    """Read a table from its on-disk form; the result keeps ``data`` alive and copies only the keys.

    Args:
        data: the whole file: bytes, or a memory map of it.
        shard: what errors call the shard.

    Raises:
        TableError: not a table, another version, cut short, or damaged. The remedy is to build it anew.
    """
    return MemberTable(**widx.unpack(data, shard=shard)._asdict())


def build_table(  # noqa: C901 - one loop: a call in it costs a tenth of the 2 us a member may take
    members: Iterable[Member],
    *,
    identity: Identity,
    shard: str,
    rule: KeyRule = "first-dot",
    group: Group = "adjacent",
) -> MemberTable:
    """Group the members of one shard into samples.

    Args:
        members: as `wids.index.tar.scan` yields them.
        identity: what the table is tied to.
        shard: what errors call the shard.
        rule: how a member path splits into key and extension; members for which it gives None are left out.
        group: ``"adjacent"``: members of a sample stand together, and a key that comes back later starts another
            sample (counted in ``nrepeated``); ``"key"``: all members with a key are one sample.

    Raises:
        TarError: from ``members``.
        DuplicateMemberError: two members of one sample have the same extension.
    """
    split = parse_rule(rule)
    if group not in ("adjacent", "key"):
        raise ValueError(f"group is {group!r}; it is 'adjacent' or 'key'")
    is_merging = group == "key"
    offsets, sizes, ids, starts = array("Q"), array("Q"), array("I"), array("I")
    known: dict[bytes, int] = {}
    rows: dict[bytes, int] = {}
    keys: list[bytes] = []
    owners = array("I")  # of each member its sample, and
    fields: list[set[int]] = []  # of each sample its extension ids: kept only to merge
    last: bytes | None = None
    here: set[int] = set()
    nrepeated = 0
    for name, _, offset, size in members:
        parts = split(name)
        if parts is None:
            continue
        key, extension = parts
        number = known.setdefault(extension, len(known))
        if key != last:
            last = key
            if is_merging and key in rows:
                here = fields[rows[key]]
            else:
                nrepeated += key in rows
                rows[key] = len(keys)
                keys.append(key)
                starts.append(len(offsets))
                here = set()
                if is_merging:
                    fields.append(here)
        if number in here:
            _raise_duplicate(shard, key, extension, offset)
        here.add(number)
        offsets.append(offset)
        sizes.append(size)
        ids.append(number)
        if is_merging:
            owners.append(rows[key])
    starts.append(len(offsets))
    if is_merging:
        offsets, sizes, ids, starts = _by_owner(owners, offsets, sizes, ids, len(keys))
    ends = array("Q", [0])
    total = 0
    for key in keys:
        total += len(key)
        ends.append(total)
    return MemberTable(
        identity=identity,
        columns=[memoryview(column) for column in (offsets, sizes, ids, starts, ends)],
        extensions=tuple(sys.intern(decode_name(extension)) for extension in known),
        keys=b"".join(keys),
        nrepeated=nrepeated,
    )


def _by_owner(
    owner_of: array[int], offsets: array[int], sizes: array[int], ids: array[int], nsamples: int
) -> tuple[array[int], array[int], array[int], array[int]]:
    """Bring the members of each sample together, in archive order within it."""
    owners = np.asarray(owner_of)
    order = np.argsort(owners, kind="stable")
    starts = np.zeros(nsamples + 1, np.uint32)
    np.cumsum(np.bincount(owners, minlength=nsamples), out=starts[1:])

    def sort(column: array[int]) -> array[int]:
        return array(column.typecode, np.asarray(column)[order].tobytes())

    return sort(offsets), sort(sizes), sort(ids), array("I", starts.tobytes())


def _raise_duplicate(shard: str, key: bytes, extension: bytes, offset: int) -> None:
    name, field = decode_name(key), decode_name(extension)
    raise DuplicateMemberError(
        f"{shard}: sample {name!r} has two members {field!r} (the second one's data is at byte {offset}), and one "
        "would hide the other. Write the shard again without the repeat, or choose another key_rule",
        shard=shard,
        key=name,
        field=field,
        offset=offset,
    )

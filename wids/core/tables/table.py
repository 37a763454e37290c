"""Member table: the offsets of each sample's members in one shard, built from the members of an archive.

Pure; a table never changes once it is built. Samples are in the order of first appearance in the archive. Key rules,
the identity of the shard and the format on disk have modules of their own; their names can be imported from here too.
"""

from __future__ import annotations

import itertools
import sys
import unicodedata
from array import array
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, TypedDict

import numpy as np

from wids.core.files.identity import Identity
from wids.core.tables import widx
from wids.core.tables.fields import AllBut, Alternatives
from wids.core.tables.keys import KeyRule, decode_name, encode_name, find_alike_fields, first_dot, last_dot, parse_rule
from wids.core.tables.tar import Members
from wids.core.tables.widx import SUFFIX
from wids.errors import DuplicateMemberError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from wids.core.tables.tar import Member

    # Data offsets, sizes, extension ids, starts.
    _Columns: TypeAlias = tuple[array[int], array[int], array[int], array[int]]

__all__ = [
    "SUFFIX",
    "Group",
    "GroupOptions",
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


GROUPS: tuple[Literal["adjacent"], Literal["key"]] = ("adjacent", "key")  # the standard one first


def parse_group(group: Any) -> Group:
    """Check a ``group`` argument.

    Raises:
        ValueError: it is neither of the two.
    """
    if group not in GROUPS:
        raise ValueError(f"group is {group!r:.200}; it must be 'adjacent' or 'key'")
    checked: Group = group
    return checked


def check_grouping(rule: Any, group: Any) -> None:
    """Check a ``key_rule`` and a ``group`` argument; None is neither.

    Raises:
        ValueError: one is none.
    """
    if rule is not None:
        parse_rule(rule)
    if group is not None:
        parse_group(group)


class GroupOptions(TypedDict):
    """The way in which members become samples; see `build_table`."""

    rule: KeyRule
    group: Group


def is_standard(rule: KeyRule, group: Group) -> bool:
    """True for the grouping that saved tables hold."""
    return rule == "first-dot" and group == "adjacent"


class MemberTable:
    """Offsets, sizes, extensions and keys of one shard's samples.

    Attributes:
        identity: of the shard.
        nsamples: number of samples.
        nmembers: number of members.
        nrepeated: number of samples whose key had appeared before, not adjacent (``group="key"`` merges them).
        extensions: the distinct extensions, each with its leading dot.
        starts: ``starts[r] .. starts[r + 1]`` are the members of sample ``r``; indexable, gives ints.
        offsets: of each member's data in the shard, in bytes; indexable, gives ints.
        sizes: likewise.
        extension_ids: of each member, into ``extensions``.
        key_text: the keys one after another: str if all are ASCII (a byte offset is then a position), else raw bytes.
        key_ends: sample ``r``'s key is ``key_text[key_ends[r] : key_ends[r + 1]]``.
        links: index of a hard-link member -> offset of its header. ``offsets`` and ``sizes`` give the data of its
            target, so such a sample's members are sorted by data offset.
        nleft: number of files that are part of no sample; 0 in a table that was saved.
        nalike: number of keys that are another one in a second Unicode form; likewise.
        unread_bytes: bytes of the shard that are of no member, and no padding; likewise.
    """

    extension_ids: memoryview
    extensions: tuple[str, ...]
    identity: Identity
    key_ends: memoryview
    links: Mapping[int, int]
    nalike: int
    nleft: int
    nmembers: int
    nrepeated: int
    nsamples: int
    offsets: memoryview
    sizes: memoryview
    starts: memoryview
    unread_bytes: int
    __slots__ = (
        "_asked",
        "_folded",
        "_rows",
        "extension_ids",
        "extensions",
        "identity",
        "key_ends",
        "key_text",
        "links",
        "nalike",
        "nleft",
        "nmembers",
        "nrepeated",
        "nsamples",
        "offsets",
        "sizes",
        "starts",
        "unread_bytes",
    )

    def __init__(
        self,
        *,
        identity: Identity,
        columns: Sequence[memoryview],
        extensions: tuple[str, ...],
        keys: bytes | memoryview,
        nrepeated: int,
        links: Mapping[int, int] = MappingProxyType({}),
        nleft: int = 0,
        nalike: int = 0,
        unread_bytes: int = 0,
    ) -> None:
        self.identity, self.links, self.nleft = identity, links, nleft
        self.nalike, self.unread_bytes = nalike, unread_bytes
        self.offsets, self.sizes, self.extension_ids, self.starts, self.key_ends = columns
        self.extensions = extensions
        raw = bytes(keys)
        self.key_text: str | bytes = raw.decode("ascii") if raw.isascii() else raw
        self.nmembers = len(self.offsets)
        self.nsamples = len(self.starts) - 1
        self.nrepeated = nrepeated
        self._rows: dict[str, list[int]] | None = None
        self._folded: dict[str, list[int]] | None = None
        self._asked: tuple[Collection[str], frozenset[int]] = (), frozenset()

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

    def find_member(self, row: int, name: str) -> int:
        """The number of the member of sample ``row`` with this very extension.

        Raises:
            KeyError: it has none.
        """
        for m in range(self.starts[row], self.starts[row + 1]):
            if self.extensions[self.extension_ids[m]] == name:
                return m
        raise KeyError(name)

    def span_of(self, row: int, name: str, lo: int, hi: int) -> tuple[int, int]:
        """The place in the shard of bytes ``lo .. hi`` (0 <= lo <= hi) of a member, fewer at its end: (first, end).

        Raises:
            KeyError: the sample has no such member.
        """
        m = self.find_member(row, name)
        first, size = self.offsets[m], self.sizes[m]
        return first + min(lo, size), first + min(hi, size)

    def ids_of(self, fields: Collection[str]) -> frozenset[int]:
        """The positions in ``extensions`` of these fields; case does not matter, ``.jpg`` finds ``.JPG``.

        For alternatives, use `chosen`.
        """
        asked, ids = self._asked
        if fields is not asked:
            if self._folded is None:
                folded: dict[str, list[int]] = {}
                for k, extension in enumerate(self.extensions):
                    folded.setdefault(extension.casefold(), []).append(k)
                self._folded = folded
            positions = self._folded
            ids = frozenset(k for field in fields for k in positions.get(field.casefold(), ()))
            self._asked = fields, ids
        return ids

    def chosen(self, span: range, fields: Collection[str] | AllBut) -> list[int]:
        """The members of a sample, ``span``, with these extensions; of `Alternatives`, the first that it has."""
        ids = self.extension_ids
        asked, kinds = self._asked
        if fields is not asked:
            if isinstance(fields, (Alternatives, AllBut)):
                return [span[position] for position in fields.positions([self.extensions[ids[m]] for m in span])]
            kinds = self.ids_of(fields)
        return [m for m in span if ids[m] in kinds]

    def with_identity(self, identity: Identity) -> MemberTable:
        """The same table, tied to another description of the same bytes."""
        seen = {"nleft": self.nleft, "nalike": self.nalike, "unread_bytes": self.unread_bytes}
        return MemberTable(**{**self._parts(), "identity": identity, **seen})

    def _parts(self) -> dict[str, Any]:
        """The constructor's arguments."""
        text = self.key_text
        return {
            "identity": self.identity,
            "columns": (self.offsets, self.sizes, self.extension_ids, self.starts, self.key_ends),
            "extensions": self.extensions,
            "keys": text.encode("ascii") if isinstance(text, str) else text,
            "nrepeated": self.nrepeated,
            "links": self.links,
        }

    def to_bytes(self) -> bytes:
        """The on-disk form."""
        return widx.pack(widx.Content(**self._parts()))


def parse_table(data: bytes, *, shard: str, name: str = "") -> MemberTable:
    """Read a table from its on-disk form; the result keeps ``data`` alive and copies only the keys.

    Args:
        data: the whole file: bytes, or a memory map of it.
        shard: its name in errors.
        name: name of the table in errors; by default it is a separate file.

    Raises:
        TableError: not a table, another version, cut short, or damaged. The remedy is to build it again.
    """
    return MemberTable(**widx.unpack(data, shard=shard, name=name)._asdict())


def build_table(
    members: Iterable[Member],
    *,
    identity: Identity,
    shard: str,
    rule: KeyRule = "first-dot",
    group: Group = "adjacent",
) -> MemberTable:
    """Group the members of one shard into samples.

    Args:
        members: as `wids.core.tables.tar.scan` yields them.
        identity: of the shard that the table is tied to.
        shard: its name in errors.
        rule: splits a member path into key and extension; members for which it gives None are left out.
        group: ``"adjacent"``: members of a sample stand together, and a key that comes back later starts another
            sample (counted in ``nrepeated``); ``"key"``: all members with a key are one sample.

    Raises:
        TarError: from ``members``.
        DuplicateMemberError: two members of one sample have the same extension.
    """
    split = parse_rule(rule)
    parse_group(group)
    offsets, sizes, ids, starts = array("Q"), array("Q"), array("I"), array("I")
    known: dict[bytes, int] = {}
    keys: list[bytes] = []
    last: bytes | None = None
    links: dict[int, int] = {}
    nleft = 0
    for name, header, offset, size in members:  # what can wait until after the loop does: 2 us a member is all there is
        parts = split(name)
        if parts is None:
            nleft += 1
            continue
        key, extension = parts
        if key != last:
            last = key
            keys.append(key)
            starts.append(len(offsets))
        if offset < header:
            links[len(offsets)] = header
        offsets.append(offset)
        sizes.append(size)
        ids.append(known.setdefault(extension, len(known)))
    starts.append(len(offsets))
    columns = (offsets, sizes, ids, starts)
    rows = dict.fromkeys(keys)
    nrepeated = len(keys) - len(rows)
    if group == "key" and nrepeated:
        columns, links = _merge(columns, links, keys)
        keys, nrepeated = list(rows), 0
    if links:
        columns, links = _sort_data(columns, links)
    names = [decode_name(extension) for extension in known]
    _check_distinct(columns, keys, names, shard)
    ends = array("Q", itertools.accumulate(map(len, keys), initial=0))
    key_text = b"".join(keys)
    return MemberTable(
        identity=identity,
        columns=[memoryview(column) for column in (*columns, ends)],
        extensions=tuple(map(sys.intern, names)),
        keys=key_text,
        nrepeated=nrepeated,
        links=links,
        nleft=nleft,
        nalike=0 if key_text.isascii() else _count_alike(rows),
        unread_bytes=members.count_unread() if isinstance(members, Members) else 0,
    )


def _count_alike(keys: Iterable[bytes]) -> int:
    """The keys that differ from another one only in their Unicode form, as names of macOS do from those of Linux."""
    names = [decode_name(key) for key in keys if not key.isascii()]
    return len(names) - len({unicodedata.normalize("NFC", name) for name in names})


def find_groupings(table: MemberTable, nsamples: int) -> list[tuple[KeyRule, Group]]:
    """The named key rules, each with a group, by which the members of a table would be ``nsamples`` samples.

    Args:
        table: made by a named rule, so that a key and an extension are a name.
        nsamples: the number that is looked for.
    """
    members = (
        (table.links.get(m, table.offsets[m]), table.key(row) + table.extensions[table.extension_ids[m]])
        for row in range(len(table))
        for m in range(table.starts[row], table.starts[row + 1])
    )
    names = [encode_name(name) for _, name in sorted(members)]
    groupings: list[tuple[KeyRule, Group]] = []
    for rule in ("first-dot", "last-dot"):
        keys = [parts[0] for parts in map(parse_rule(rule), names) if parts is not None]
        counts: dict[Group, int] = {"adjacent": sum(1 for _ in itertools.groupby(keys)), "key": len(set(keys))}
        groupings += [(rule, group) for group, count in counts.items() if count == nsamples]
    return groupings


def find_merged(table: MemberTable) -> tuple[str, str, str] | None:
    """(key, field, field) of a sample that looks like several, see `find_alike_fields`; None: no sample does."""
    if not find_alike_fields(table.extensions):
        return None
    for row in range(len(table)):
        span = table.extension_ids[table.starts[row] : table.starts[row + 1]]
        if len(span) > 1 and (pair := find_alike_fields([table.extensions[k] for k in span])):
            return table.key(row), pair[0], pair[1]
    return None


def find_apart(table: MemberTable) -> tuple[str, str, int] | None:
    """Samples by ``last-dot`` that look like parts of others, as ``a.seg`` beside ``a``; None: no sample does.

    After the key of the other one comes a dot, and no number, which would tell two samples apart.

    Returns:
        The other key and the key of the first such sample, and the number of such samples.
    """
    keys, apart = set(table.keys()), list[tuple[str, str]]()
    for key in table.keys():  # noqa: SIM118 - a method, not a dict's
        dot = key.find(".", key.rfind("/") + 1)
        while dot >= 0:
            if key[:dot] in keys and not key[dot + 1 : dot + 2].isdigit():
                apart.append((key[:dot], key))
                break
            dot = key.find(".", dot + 1)
    return (*apart[0], len(apart)) if apart else None


def _owners(starts: array[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The sample of each member."""
    counts = np.diff(np.frombuffer(starts, np.uint32)).astype(np.int64)
    return np.repeat(np.arange(len(counts)), counts)


def _merge(columns: _Columns, links: dict[int, int], keys: list[bytes]) -> tuple[_Columns, dict[int, int]]:
    """Bring the members of each key together, in order of first appearance and in archive order within a sample."""
    rows: dict[bytes, int] = {}
    row_of = np.array([rows.setdefault(key, len(rows)) for key in keys], np.int64)
    owners = row_of[_owners(columns[3])]
    ends = np.cumsum(np.bincount(owners, minlength=len(rows)))
    starts = array("I", [0, *ends.tolist()])
    return _reordered((*columns[:3], starts), links, np.argsort(owners, kind="stable"))


def _sort_data(columns: _Columns, links: dict[int, int]) -> tuple[_Columns, dict[int, int]]:
    """Bring the members of each sample into the order of their data, so that the first and the last one bound them."""
    return _reordered(columns, links, np.lexsort((np.asarray(columns[0]), _owners(columns[3]))))


def _reordered(
    columns: _Columns, links: dict[int, int], order: np.ndarray[Any, np.dtype[np.int64]]
) -> tuple[_Columns, dict[int, int]]:
    *members, starts = columns
    offsets, sizes, ids = (array(column.typecode, np.asarray(column)[order].tobytes()) for column in members)
    position_of = dict(zip(order.tolist(), range(len(order)), strict=True)) if links else {}
    return (offsets, sizes, ids, starts), dict(sorted((position_of[m], header) for m, header in links.items()))


def _check_distinct(columns: _Columns, keys: list[bytes], names: list[str], shard: str) -> None:
    """Raise if two members of one sample have the same extension."""
    offsets, _, ids, starts = columns
    owners = _owners(starts)
    fields = owners * len(names) + np.asarray(ids, np.int64)
    # Not by np.unique: it imports numpy.ma on its first call, and a fork in another thread's import hangs.
    in_order = np.sort(fields)
    if not (in_order[1:] == in_order[:-1]).any():
        return
    order = np.argsort(fields, kind="stable")
    seconds = order[1:][fields[order[1:]] == fields[order[:-1]]]
    second = int(seconds.min())
    _raise_duplicate(shard, keys[owners[second]], names[ids[second]], offsets[second])


def _raise_duplicate(shard: str, key: bytes, field: str, offset: int) -> NoReturn:
    name = decode_name(key)
    raise DuplicateMemberError(
        f"{shard}: sample {name!r} has two members {field!r} (the second one's data is at byte {offset}), and one "
        "would hide the other. Write the shard again without the repeat, or choose another key_rule",
        shard=shard,
        key=name,
        field=field,
        offset=offset,
    )

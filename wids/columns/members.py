"""Columns from member tables: which fields each sample has (``has_jpg``), and how many bytes.

Rules: columns have the names of the file beside an index (``jpg_bytes``, ``bytes``, ``key``, ``shard``, ``row``), or
``has_`` and the name of a field. That is its extension, with ``_`` for characters that SQL would need quotes for
(``has_seg_png`` for ``.seg.png``), or the dataset's own name for some extensions (``fields={"image": "jpg;png"}``).
Only requested columns are made. No member is read, and no shard downloaded: a table comes from a shard on this machine,
or is published.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from wids.columns.extract import key_array, sample_bytes, size_columns
from wids.columns.packages import import_arrow
from wids.columns.spec import OWN_COLUMNS, fold, size_names, stem_of
from wids.core.collection.companions import plain_rows
from wids.core.tables.fields import EMPTY
from wids.errors import ColumnsError, InputError, shorten
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wids.core.collection.companions import Companion
    from wids.core.collection.shard_collection import ShardCollection
    from wids.core.tables.table import MemberTable

HAS = "has_"
# The columns without them, and the words if they cannot be read.
KNOWN = "has_FIELD, FIELD_bytes, bytes, key, shard and row need none"
_SIZE = re.compile(r"(.+)_bytes(?:_[0-9]+)?")
_NAMED = 20  # fields in a message


def of_members(names: Iterable[str]) -> frozenset[str]:
    """The names, in lower case, for which member tables may have a column."""
    own = frozenset(OWN_COLUMNS) - {"index"}
    return frozenset(name for name in names if name.startswith(HAS) or name in own or _SIZE.fullmatch(name))


def describe_fields(extensions: Iterable[str]) -> str:
    """The fields that samples have, for a message."""
    found = sorted(set(map(fold, extensions)))
    words = [f"{shorten(each)} ({HAS}{shorten(stem_of(each))})" for each in found[:_NAMED]]
    return f"the fields of the samples are {', '.join(words)}" + ", ..." * (len(found) > _NAMED)


def describe_absent(names: Iterable[str], extensions: Iterable[str]) -> str:
    """The words for columns ``has_FIELD`` of fields that no sample has, beside those that samples have."""
    return f"no sample has a field for {', '.join(map(shorten, names))}: false for all; {describe_fields(extensions)}"


class MemberNames(msgspec.Struct, frozen=True, kw_only=True):
    """The names in SQL for which member tables may have a column, in lower case.

    Attributes:
        names: all of them.
        own: those that can be nothing else than columns of the samples.
        fields: the dataset's names of fields: name -> their alternatives, as extensions.
    """

    names: frozenset[str]
    own: frozenset[str] = frozenset()
    fields: Mapping[str, tuple[str, ...]] = {}

    def groups(self) -> dict[str, tuple[str, ...]]:
        """The columns ``has_NAME`` of the dataset's fields: name -> folded extensions.

        Raises:
            InputError: two fields have one name.
        """
        found: dict[str, str] = {}
        groups: dict[str, tuple[str, ...]] = {}
        for field, extensions in self.fields.items():
            name = f"{HAS}{stem_of(field).casefold()}"
            if name in self.names:
                _check_new(found, name, field)
                groups[name] = tuple(map(fold, extensions))
        return groups


def _check_new(found: dict[str, str], name: str, of: str) -> None:
    """Check that a name is that of one field; note it.

    Raises:
        InputError: it is that of two.
    """
    if found.setdefault(name, of) != of:
        raise InputError(
            f"{shorten(found[name])} and {shorten(of)} would both be {shorten(name)}; ask for their sizes, "
            "which `wids columns create` lists"
        )


def presence(extensions: Iterable[str], asked: MemberNames) -> dict[str, list[str]]:
    """The columns ``has_FIELD`` that are asked for: name -> the extensions of which a sample has one, if it is true.

    A field of the dataset is all its alternatives. A field that no sample has is false for all, with a warning.

    Raises:
        InputError: two fields have one name.
    """
    there = sorted(set(extensions))
    groups = asked.groups()
    found = {name: [each for each in there if fold(each) in group] for name, group in groups.items()}
    names: dict[str, str] = {}
    for extension in there:
        name = f"{HAS}{stem_of(extension).casefold()}"
        if name in asked.names - groups.keys():
            _check_new(names, name, extension)
            found[name] = [extension]
    absent = sorted(name for name in asked.own if name.startswith(HAS) and not found.get(name))
    if absent:
        found.update((name, []) for name in absent)
        logger.warning("%s", describe_absent(absent, there))
    return found


def read_columns(collection: ShardCollection, asked: MemberNames) -> tuple[Any, list[str]]:
    """Columns with a row for each sample of the whole index; rows of shards outside a view are undefined.

    Args:
        collection: of the samples.
        asked: their names; names without a field are left out, or false.

    Returns:
        An Arrow table, and the extensions of all members of the inspected shards.

    Raises:
        ColumnsError: the table of a shard is neither local nor published. InputError: two fields have one name.
        WidsError: a table or a shard cannot be read, or has another number of samples than the index says.
    """
    pa = import_arrow()
    counts = np.asarray(collection.shards.nsamples, np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    wanted = asked.names
    found = _MemberColumns(int(starts[-1]), asked)
    numbers = [k for k, count in enumerate(collection.lengths) if count] if wanted - {"shard", "row"} else []
    rows = np.arange(found.total) - np.repeat(starts[:-1], counts)
    keys = {}
    for k, table in collection.member_tables(numbers):
        if table is None:
            raise _unknown(collection, k)
        own = np.arange(counts[k]) % max(len(table), 1)  # one that has fewer samples than the index says repeats them
        rows[starts[k] : starts[k + 1]] = own
        found.add(table, int(starts[k]), own)
        if "key" in wanted:
            keys[k] = key_array(table).take(pa.array(own))
    columns: dict[str, Any] = {}
    if "shard" in wanted:
        columns["shard"] = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    if "row" in wanted:
        columns["row"] = rows.astype(np.int32)
    if "key" in wanted:
        parts = [keys[k] if k in keys else pa.nulls(int(count), pa.string()) for k, count in enumerate(counts)]
        columns["key"] = pa.chunked_array(parts, pa.string())
    return pa.table({**columns, **found.arrays()}), sorted(found.extensions)


def first_extensions(collection: ShardCollection) -> list[str]:
    """The folded extensions of the first shard that has samples, as far as a member table says them."""
    table = collection.first_table()
    return [] if table is None else list(map(fold, table.extensions))


class CompanionColumns:
    """The fields of companions that are asked for, for each sample of a base's whole.

    Args:
        companions: of the base.
        base: its samples.
        asked: the names.

    Attributes:
        sizes: folded field of the joined sample -> bytes: (n,); 0 where a sample has none.
        has: likewise, True where a sample has it.

    Raises:
        ColumnsError: the table of a shard is neither local nor published. WidsError: it cannot be read.
    """

    def __init__(self, companions: Sequence[Companion], base: ShardCollection, asked: MemberNames) -> None:
        self.sizes: dict[str, np.ndarray[Any, Any]] = {}
        self.has: dict[str, np.ndarray[Any, Any]] = {}
        self._asked, self._groups = asked, asked.groups()
        for companion in companions:
            known = companion.stated_fields()
            if known is None or any(self._is_asked(fold(companion.name_of(each))) for each in known):
                self._add(companion, base)

    def _is_asked(self, field: str) -> bool:
        stem = stem_of(field).casefold()
        named = any(field in group for group in self._groups.values())
        return named or f"{HAS}{stem}" in self._asked.names or f"{stem}_bytes" in self._asked.names

    def _add(self, companion: Companion, base: ShardCollection) -> None:
        collection, total = companion.collection, companion.collection.whole_length
        starts = np.concatenate([[0], np.cumsum(np.asarray(collection.shards.nsamples, np.int64))])
        sizes: dict[str, np.ndarray[Any, Any]] = defaultdict(lambda: np.zeros(total, np.int64))
        has: dict[str, np.ndarray[Any, Any]] = defaultdict(lambda: np.zeros(total, np.bool_))
        numbers = [k for k, count in enumerate(collection.lengths) if count]
        for k, table in collection.member_tables(numbers):
            if table is None:
                raise _unknown(collection, k)
            folded = sorted(set(map(fold, table.extensions)) - {EMPTY})
            asked = [each for each in folded if self._is_asked(fold(companion.name_of(each)))]
            for extension, own_sizes, count in size_columns(table, asked):
                rows = np.arange(starts[k + 1] - starts[k]) % max(len(table), 1)
                sizes[extension][starts[k] : starts[k + 1]] = own_sizes[rows]
                has[extension][starts[k] : starts[k + 1]] = count[rows] > 0
        places = np.arange(base.whole_length) if companion.rows is None else plain_rows(companion.rows)
        for extension, values in sizes.items():
            field = fold(companion.name_of(extension))
            self.sizes[field] = np.where(places < 0, 0, values[np.maximum(places, 0)])
            self.has[field] = (places >= 0) & has[extension][np.maximum(places, 0)]

    def rest(self, there: Iterable[str]) -> MemberNames:
        """The names that are asked of the base, which has these folded extensions."""
        own = {*there}
        mine = {f"{HAS}{stem_of(field).casefold()}" for field in self.sizes}
        mine |= {name.casefold() for name in size_names(self.sizes, OWN_COLUMNS).values()}
        groups = {name for name, group in self._groups.items() if not self.sizes.keys().isdisjoint(group)}
        gone = (mine - self._groups.keys()) | {name for name in groups if own.isdisjoint(self._groups[name])}
        return msgspec.structs.replace(self._asked, names=self._asked.names - gone, own=self._asked.own - gone)

    def columns(self, of_base: Mapping[str, Any]) -> dict[str, Any]:
        """The columns, by name, with those of the base for fields that lie in both.

        Args:
            of_base: ``has_FIELD`` of the base: (n,) bools.
        """
        pa, columns = import_arrow(), dict[str, Any]()
        names = {f"{HAS}{stem_of(field).casefold()}": (field,) for field in self.sizes} | self._groups
        for name, fields in names.items():
            has = [self.has[field] for field in fields if field in self.has]
            if name in self._asked.names and has:
                base = [np.asarray(of_base[name])] if name in of_base else []
                columns[name] = pa.array(functools.reduce(np.logical_or, [*has, *base]))
        for field, name in size_names(self.sizes, OWN_COLUMNS).items():
            if name.casefold() in self._asked.names:
                columns[name] = pa.array(self.sizes[field], mask=~self.has[field])
        return columns


def _unknown(collection: ShardCollection, k: int) -> ColumnsError:
    url = collection.shards.urls[k]
    return ColumnsError(
        f"{url}: the shard is not on this machine, and no member table of it is published that is certain to be its "
        "own, so its samples' fields are not known; publish tables (wids index create --members, or wids index "
        "tables), or make columns: wids columns create",
        url=url,
    )


class _MemberColumns:
    """The columns so far.

    Args:
        total: samples.
        asked: names.

    Attributes:
        extensions: of all members, in lower case.
    """

    def __init__(self, total: int, asked: MemberNames) -> None:
        self.total, self.extensions = total, set[str]()
        self._asked, self._wanted = asked, asked.names
        wanted, self._grouped = asked.names, {each for group in asked.groups().values() for each in group}
        sized = [match[1] for match in map(_SIZE.fullmatch, wanted) if match]
        self._stems = {*sized, *(name.removeprefix(HAS) for name in wanted if name.startswith(HAS))}
        self._bytes = np.zeros(total if "bytes" in wanted else 0, np.int64)
        self._sizes: dict[str, np.ndarray[Any, Any]] = defaultdict(lambda: np.zeros(total, np.int64))
        self._has: dict[str, np.ndarray[Any, Any]] = defaultdict(lambda: np.zeros(total, np.bool_))

    def add(self, table: MemberTable, start: int, rows: np.ndarray[Any, Any]) -> None:
        """Add the columns of a shard: its samples in these rows, to be stored from ``start`` on."""
        here = slice(start, start + len(rows))
        folded = set(map(fold, table.extensions))
        self.extensions |= folded
        if "bytes" in self._wanted:
            self._bytes[here] = sample_bytes(table)[rows]
        chosen = [each for each in folded if each in self._grouped or stem_of(each).casefold() in self._stems]
        for extension, sizes, count in size_columns(table, chosen):
            self._sizes[extension][here] = sizes[rows]
            self._has[extension][here] = count[rows] > 0

    def arrays(self) -> dict[str, Any]:
        """The columns, by name.

        Raises:
            InputError: two fields have one name.
        """
        pa = import_arrow()
        found = {"bytes": pa.array(self._bytes)} if "bytes" in self._wanted else {}
        for name, extensions in presence(self.extensions, self._asked).items():
            has = (self._has[extension] for extension in extensions)
            found[name] = pa.array(functools.reduce(np.logical_or, has, np.zeros(self.total, np.bool_)))
        for extension, name in size_names(self.extensions, OWN_COLUMNS).items():
            if name.casefold() in self._wanted:
                found[name] = pa.array(self._sizes[extension], mask=~self._has[extension])
        return found

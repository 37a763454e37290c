"""Chooses samples of a source to pack, and orders them: SQL over their keys and fields.

Rules: a predicate has the form of `wids.columns.sql`, over a table ``samples`` with ``index``, ``key``, and for each
field its value under its extension (``cls``, ``txt``; ``seg_png`` of ``.seg.png``; JSON as its text) and whether the
sample has it (``has_jpg``; false for all, with a note, if none has). A dataset also has the columns of the file
beside its index, which take precedence. Samples are inspected in the source, before packing. Only fields that a
predicate names are read; none is, if the file beside the index has all named columns. A field that a sample lacks is
null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from wids.columns import kinds, members, sql
from wids.columns.extract import decode_value
from wids.columns.packages import import_arrow
from wids.columns.spec import fold, stem_of
from wids.core.codecs.decode import SampleDecoder
from wids.core.order.permutation import PACKING, permutation
from wids.errors import InputError, SampleError, WidsError, shorten, shown
from wids.writing.pack.listing import SampleProblem, take

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.writing.pack.listing import SourceListing

_TELL_EACH = 256


def keep_matching(
    listing: SourceListing,
    predicates: Sequence[str],
    *,
    order: str | None = None,
    seed: int | None = None,
    skips_errors: bool,
    tell: Callable[[int], None],
) -> None:
    """Keep in a listing only the samples for which all predicates are true, and order them.

    Args:
        listing: is changed; its ``unmatched`` counts the others.
        predicates: all must be true.
        order: what stands after ORDER BY; None: samples stay in their order.
        seed: shuffles samples for which ``order`` is equal; None: they stay in their order.
        skips_errors: samples that cannot be inspected become problems.
        tell: called regularly with the number of inspected samples.

    Raises:
        QueryError: a predicate or the order is invalid, or has an unknown name.
        WidsError: a sample cannot be inspected, and is not to be skipped; or no sample matches.
    """
    found = [sql.names_in(predicate) for predicate in predicates]
    found += [] if order is None else [sql.names_in(sql.order_query(order), is_query=True)]
    named = frozenset[str]().union(*(each.names for each in found))
    count, own = len(listing.items), listing.columns() if listing.columns else None
    own_names = () if own is None else sql.names_of(own)
    looked = _Looked(named, own_names, frozenset[str]().union(*(each.own for each in found)))
    if not named <= {"index", *(name.casefold() for name in own_names)}:
        _look(listing, looked, skips_errors=skips_errors, tell=tell)
    kept = np.ones(count, np.bool_)
    kept[list(looked.bad)] = False
    listing.notes += looked.note()
    table = _join(own or sql.SampleTable(samples=count), looked.table(count))
    for predicate in predicates:
        chosen = np.zeros(count, np.bool_)
        chosen[sql.find_rows(table, predicate)] = True
        kept &= chosen
    if not kept.any():
        raise InputError(f"of {count:,} samples none meets {' and '.join(map(repr, predicates))}")
    listing.unmatched += count - int(kept.sum()) - len(looked.bad)
    numbers = np.arange(count) if order is None else _sort(table, order, seed)
    listing.items = take(listing.items, numbers[kept[numbers]])


def _sort(table: sql.SampleTable, order: str, seed: int | None) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The numbers of all samples, in an order."""
    if seed is None:
        return sql.sort_rows(table, order)
    ties = "index"
    there = {name.casefold() for name in sql.names_of(table)}
    while ties in there:
        ties += "_"
    positions = np.empty(table.count, np.int64)
    positions[permutation(table.count, seed=seed, epoch=0, stream=PACKING)] = np.arange(table.count)
    return sql.sort_rows(_join(table, [import_arrow().table({ties: positions})]), order, ties=ties)


def _join(table: sql.SampleTable, looked: Sequence[Any]) -> sql.SampleTable:
    """A table, and Arrow tables with a row for each that SQL sees of it."""
    rows = table.spread(np.arange(table.count))
    numbers = import_arrow().array(rows, mask=rows < 0)
    return msgspec.structs.replace(table, joined=[*table.joined, *(each.take(numbers) for each in looked)])


def _look(listing: SourceListing, looked: _Looked, *, skips_errors: bool, tell: Callable[[int], None]) -> None:
    for number, item in enumerate(listing.items):
        if number % _TELL_EACH == 0:
            tell(number)
        try:
            key, extensions, _ = listing.reader.look(item, frozenset())
            needed = frozenset(each for each in extensions if stem_of(each).casefold() in looked.named)
            data = listing.reader.look(item, needed)[2] if needed else {}
            looked.add(key, extensions, data)
        except WidsError as error:
            if not skips_errors:
                raise
            looked.add_bad()
            listing.problems.append(SampleProblem(f"sample {number}", str(error)))


class _Looked:
    """The columns of the inspected samples, in order.

    Args:
        named: the names in predicates, in lower case.
        own_names: existing columns.
        columns: the names that can be nothing else than columns.

    Attributes:
        named: likewise.
        bad: samples that could not be inspected.
    """

    def __init__(self, named: frozenset[str], own_names: Sequence[str], columns: frozenset[str]) -> None:
        own = {name.casefold() for name in own_names}
        self.named, self.bad = named - own, set[int]()
        self._own, self._columns = own, columns - own
        self._keys: list[str | None] = []
        self._stems: dict[str, str] = {}  # the column of a field -> its extension
        self._values: dict[str, list[Any]] = {}
        self._decoder = SampleDecoder("numpy")

    def add(self, key: str, extensions: frozenset[str], data: dict[str, bytes]) -> None:
        """The next sample.

        Raises:
            SampleError: a field has no comparable value. InputError: two fields would be the same column.
        """
        values: dict[str, Any] = {}
        for extension in sorted(extensions):
            stem = stem_of(extension).casefold()
            if fold(self._stems.setdefault(stem, extension)) != fold(extension) and stem in self.named:
                raise InputError(f"{extension} and {self._stems[stem]} are both called {stem} in a predicate")
            if f"{members.HAS}{stem}" in self.named:
                values[members.HAS + stem] = True
        for extension, found in data.items():
            name = stem_of(extension).casefold()
            if name in values:
                raise SampleError(
                    f"{shown(key)} has the field {shorten(extension)} twice, in upper and in lower case", key=key
                )
            values[name] = self._value(key, extension, found)
        for name, value in values.items():
            column = self._values.setdefault(name, [])
            column += [None] * (len(self._keys) - len(column)) + [value]
        self._keys.append(kinds.writable(key))

    def add_bad(self) -> None:
        """Add a sample that cannot be inspected."""
        self.bad.add(len(self._keys))
        self._keys.append(None)

    def table(self, count: int) -> list[Any]:
        """The columns as an Arrow table of ``count`` rows; empty if no sample was inspected."""
        pa = import_arrow()
        if len(self._keys) != count:
            return []
        columns = {} if "key" in self._own else {"key": pa.array(self._keys, pa.string())}
        for stem in sorted(self._stems):
            for name in (stem, members.HAS + stem):
                if name in self._own or name in columns or name == "index":
                    continue
                values = self._values.get(name)
                if values is None:  # it is not asked for, and there for the words of an error
                    columns[name] = pa.nulls(count, pa.string())
                    continue
                values += [None] * (count - len(values))
                columns[name] = pa.array([value is True for value in values]) if name != stem else _array(values)
        columns.update((name, pa.repeat(pa.scalar(value=False), count)) for name in self.absent())
        return [pa.table(columns)] if columns else []

    def absent(self) -> list[str]:
        """The named columns ``has_FIELD`` of fields that no inspected sample has."""
        there = {members.HAS + stem for stem in self._stems}
        return sorted(name for name in self._columns - there if name.startswith(members.HAS)) if self._keys else []

    def note(self) -> list[str]:
        """A sentence about `absent`, if there are some."""
        absent = self.absent()
        return [members.describe_absent(absent, self._stems.values())] if absent else []

    def _value(self, key: str, extension: str, data: bytes) -> Any:
        try:
            return decode_value(self._decoder, "", data, key, extension)
        except (WidsError, ValueError):  # of no type that is known, or not what its name says: a text, perhaps
            try:
                return data.decode("utf-8").strip()
            except ValueError as error:
                raise SampleError(
                    f"{shorten(extension)} of {shown(key)} is no value that a predicate could compare ({error})",
                    key=key,
                ) from error


def _array(values: list[Any]) -> Any:
    return kinds.make_array(values)[0]

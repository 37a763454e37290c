"""The samples of one collection that have the keys of another one's: in bounded memory, from member tables.

Each key becomes a mark of 16 bytes: a key of up to 15 bytes itself, with its length, of a longer one a digest of 120
bits. Marks are dealt to parts by a hash of them, in temporary files where they are many; each part is sorted by itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wids.core.files import system
from wids.core.index.companion_file import empty_rows
from wids.errors import InputError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from wids.core.collection.shard_collection import ShardCollection
    from wids.core.index.selection import Integers
    from wids.core.tables.table import MemberTable

    Marks = npt.NDArray[np.void]

_MARK = np.dtype([("high", "<u8"), ("low", "<u8"), ("index", "<i8")])
_SHORT, _LONG = 15, 255
_SHOWN = 5


class JoinLimits(NamedTuple):
    """The sizes of parts; the default is in force, and tests put another in its place.

    Attributes:
        part_keys: keys of a part, about; it is sorted in memory, in some 100 bytes for each.
        held_keys: keys that are held in memory before they go into a temporary file.
    """

    part_keys: int = 1 << 20
    held_keys: int = 1 << 21


LIMITS = JoinLimits()


def marks_of(table: MemberTable, rows: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """(first 8 bytes, last 8 bytes) of the marks of the keys of some rows of a shard: (n,) uint64 each."""
    text = table.key_text.encode("ascii") if isinstance(table.key_text, str) else table.key_text
    data, ends = np.frombuffer(text, np.uint8), np.asarray(table.key_ends, np.int64)
    firsts, lengths = ends[rows], ends[rows + 1] - ends[rows]
    marks = np.zeros((len(rows), 16), np.uint8)
    is_short = lengths <= _SHORT
    marks[:, _SHORT] = np.where(is_short, lengths, _LONG)
    for at in range(int(lengths[is_short].max(initial=0))):
        has = is_short & (lengths > at)
        marks[has, at] = data[firsts[has] + at]
    long = np.flatnonzero(~is_short)
    if len(long):
        digests = b"".join(
            hashlib.blake2b(text[lo : lo + count], digest_size=_SHORT).digest()
            for lo, count in zip(firsts[long].tolist(), lengths[long].tolist(), strict=True)
        )
        marks[long, :_SHORT] = np.frombuffer(digests, np.uint8).reshape(-1, _SHORT)
    words = marks.view("<u8")
    return words[:, 0], words[:, 1]


def _marks(collection: ShardCollection) -> Iterator[Marks]:
    """The marks of all samples of a collection, shard by shard, with their indices."""
    counts = collection.lengths
    for k, table in collection.member_tables(k for k, count in enumerate(counts) if count):
        if table is None:  # which a server does not publish: the shard has it
            with collection.pinned(k) as reader:
                table = reader.table  # noqa: PLW2901 - of the same shard
        rows = np.asarray(collection.rows_of(k), np.int64) % len(table)
        marks = np.empty(len(rows), _MARK)
        marks["high"], marks["low"] = marks_of(table, rows)
        marks["index"] = np.arange(collection.ends[k] - len(rows), collection.ends[k])
        yield marks


def _parts_of(marks: Marks, count: int) -> npt.NDArray[np.int64]:
    """The part of each mark, of ``count`` parts."""
    with np.errstate(over="ignore"):
        mixed = (marks["high"] ^ (marks["low"] >> np.uint64(7))) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(29)) ^ marks["low"]) * np.uint64(0xBF58476D1CE4E5B9)
    parts: npt.NDArray[np.int64] = ((mixed >> np.uint64(33)) % np.uint64(count)).astype(np.int64)
    return parts


class _Parts:
    """The marks of a collection, dealt to parts.

    Args:
        collection: of the samples.
        count: of parts.
        stack: closes the temporary file.
    """

    def __init__(self, collection: ShardCollection, count: int, stack: contextlib.ExitStack) -> None:
        self._count, self._stack = count, stack
        self._file: Any = None
        self._ends: list[npt.NDArray[np.int64]] = []  # of the parts in each piece of the file, counted from its first
        self._held: list[Marks] = []
        held = 0
        for marks in _marks(collection):
            self._held.append(marks)
            held += len(marks)
            if count > 1 and held >= LIMITS.held_keys:
                self._write()
                held = 0
        if self._file is not None:
            self._write()

    def _write(self) -> None:
        """Append the marks that are held, in the order of their parts."""
        if self._file is None:
            self._file = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack is the caller's
        marks = np.concatenate([np.empty(0, _MARK), *self._held])
        self._held = []
        parts = _parts_of(marks, self._count)
        marks[np.argsort(parts, kind="stable")].tofile(self._file)
        self._file.flush()
        self._ends.append(np.cumsum(np.bincount(parts, minlength=self._count)))

    def take(self, part: int) -> Marks:
        """The marks of a part."""
        if self._file is None:
            held = np.concatenate([np.empty(0, _MARK), *self._held])
            return held[_parts_of(held, self._count) == part] if self._count > 1 else held
        pieces, start = [], 0
        for ends in self._ends:
            lo, hi = (int(ends[part - 1]) if part else 0), int(ends[part])
            data = system.pread(self._file.fileno(), (hi - lo) * _MARK.itemsize, (start + lo) * _MARK.itemsize)
            pieces.append(np.frombuffer(data, _MARK))
            start += int(ends[-1])
        return np.concatenate([np.empty(0, _MARK), *pieces])


def find_rows(base: ShardCollection, other: ShardCollection, *, name: str) -> npt.NDArray[Any]:
    """The sample of ``other`` with the key of each of n samples of ``base``, both counted over the whole: (n,).

    They are numbers of four bytes each if these are enough, else int64; see `wids.core.index.companion_file`. Samples
    outside of a view have none.

    Args:
        base: the samples.
        other: each of its keys is one sample's.
        name: of it, in errors.

    Raises:
        InputError: several samples of ``other`` have one key. WidsError: a shard cannot be read.
    """
    count = max(-(-max(len(base), len(other)) // LIMITS.part_keys), 1)
    whole, chosen = base.whole_indices(), other.whole_indices()
    rows = empty_rows(base.whole_length, other.whole_length)
    with contextlib.ExitStack() as stack:
        there, here = _Parts(other, count, stack), _Parts(base, count, stack)
        for part in range(count):
            those, these = there.take(part), here.take(part)
            marks = np.concatenate([those, these])
            order = np.lexsort((np.arange(len(marks)) >= len(those), marks["low"], marks["high"]))
            marks, is_other = marks[order], order < len(those)
            begins = np.ones(len(marks), np.bool_)
            begins[1:] = (marks["high"][1:] != marks["high"][:-1]) | (marks["low"][1:] != marks["low"][:-1])
            if (repeated := is_other & ~begins).any():
                raise _repeats(other, marks["index"][repeated], name)
            first = np.maximum.accumulate(np.where(begins, np.arange(len(marks)), 0))
            partners = np.where(is_other[first], marks["index"][first], -1)
            at, partners = marks["index"][~is_other], partners[~is_other]
            if chosen is not None and len(chosen):
                partners = np.where(partners < 0, -1, chosen[np.maximum(partners, 0)])
            rows[at if whole is None else whole[at]] = partners.astype(rows.dtype)  # of -1 the greatest number
    return rows


def _repeats(other: ShardCollection, indices: Integers, name: str) -> InputError:
    keys = name_keys(other, np.sort(indices)[:_SHOWN])
    return InputError(
        f"{name}: several samples have one key, such as {keys}, and which of them is meant nobody says; join by row "
        'if sample i belongs to sample i (on="row"), or leave the others out'
    )


def name_keys(collection: ShardCollection, indices: Integers) -> str:
    """The keys of some samples, in words."""
    keys = []
    for index in indices.tolist():
        k, row = collection.locate(index)
        with collection.pinned(k) as reader:
            keys.append(shown(reader.table.key(row % len(reader.table))))
    return ", ".join(keys)

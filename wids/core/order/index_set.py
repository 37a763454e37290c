"""Sets of indices, kept as runs of consecutive ones. Pure.

A run costs 24 bytes, whatever its length, so nearly all of 10^8 samples in whole shards take little memory. As text, a
set is one bit for each index that there is, compressed: runs take nearly nothing, scattered indices a bit each.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import TYPE_CHECKING

import numpy as np

from wids.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Self

    from wids.core.order.permutation import Indices

_PIECE = 1 << 23  # indices whose bits are in memory together
_NONE = np.zeros(0, np.int64)


class IndexSet:
    """Indices, each once, in ascending order.

    Args:
        starts: of its runs, ascending: int64, (nruns,).
        ends: one past the last index of each run, below the start of the next one: int64, (nruns,).

    Attributes:
        starts: the argument.
        ends: the argument.
    """

    starts: Indices
    ends: Indices

    def __init__(self, starts: Indices, ends: Indices) -> None:
        self.starts, self.ends = starts, ends
        self._text: tuple[int, int, str] | None = None
        self._counts = np.append(np.int64(0), np.cumsum(ends - starts))  # before each run, and of all

    def __len__(self) -> int:
        return int(self._counts[-1])

    @classmethod
    def joined(cls, starts: Sequence[Indices], ends: Sequence[Indices]) -> Self:
        """The indices of runs, half-open, in several parts: (n,) each; see `of_runs`."""
        return cls.of_runs(np.concatenate([_NONE, *starts]), np.concatenate([_NONE, *ends]))

    @classmethod
    def of_runs(cls, starts: Indices, ends: Indices) -> Self:
        """The indices of runs, half-open, that come in any order, may be empty, touch and overlap: (nruns,) each."""
        filled = ends > starts
        starts, ends = starts[filled], ends[filled]
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], np.maximum.accumulate(ends[order]) if len(order) else ends
        begins = np.append(True, starts[1:] > ends[:-1])[: len(starts)]
        return cls(starts[begins], ends[np.append(begins[1:], True)[: len(starts)]])

    @classmethod
    def of(cls, indices: Indices) -> Self:
        """The set of n indices, in any order: (n,)."""
        return cls.of_runs(indices, indices + 1)

    @classmethod
    def of_sorted(cls, indices: Indices) -> Self:
        """The set of n indices, ascending, each once: (n,)."""
        breaks = np.flatnonzero(np.diff(indices) != 1)
        starts = indices[np.append(0, breaks + 1)] if len(indices) else _NONE
        return cls(starts, indices[np.append(breaks, -1)] + 1 if len(indices) else _NONE)

    def take(self, positions: Indices) -> Indices:
        """The indices at n positions of the sorted set: (n,) -> (n,), all below its length."""
        at = np.searchsorted(self._counts, positions, side="right") - 1
        taken: Indices = self.starts[at] + (positions - self._counts[at])
        return taken

    def take_set(self, positions: IndexSet) -> IndexSet:
        """The indices at a set of positions, all below its length."""
        edges = self._counts[1:-1]
        cuts = edges[positions.has(edges) & positions.has(edges - 1)]  # where a run of positions leaves a run
        starts, ends = np.sort(np.append(positions.starts, cuts)), np.sort(np.append(positions.ends, cuts))
        return IndexSet.of_runs(self.take(starts), self.take(ends - 1) + 1)

    def union(self, *others: IndexSet) -> IndexSet:
        """The indices of this set and of others."""
        parts = [self, *others]
        return IndexSet.joined([part.starts for part in parts], [part.ends for part in parts])

    def without(self, other: IndexSet) -> IndexSet:
        """The indices of this set that another one has not."""
        if not len(self) or not len(other):
            return self
        first, last = int(self.starts[0]), int(self.ends[-1])
        return self.outside(first, last).union(other).outside(first, last)

    def within(self, first: int, last: int) -> IndexSet:
        """The indices of the set in ``first .. last``."""
        return IndexSet.of_runs(np.maximum(self.starts, first), np.minimum(self.ends, last))

    def moved(self, count: int) -> IndexSet:
        """The indices, each ``count`` higher."""
        return IndexSet(self.starts + count, self.ends + count)

    def count_below(self, bounds: Indices) -> Indices:
        """Numbers of indices in the set that are below each bound: (n,) -> (n,)."""
        if not len(self.starts):
            return np.zeros(len(bounds), np.int64)
        at = np.maximum(np.searchsorted(self.starts, bounds, side="right") - 1, 0)
        inside = np.clip(bounds, self.starts[at], self.ends[at]) - self.starts[at]
        counts: Indices = self._counts[at] + inside
        return counts

    def has(self, indices: Indices) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """True for each of n indices that the set has: (n,) -> (n,)."""
        if not len(self.starts):
            return np.zeros(len(indices), bool)
        at = np.searchsorted(self.starts, indices, side="right") - 1
        return (at >= 0) & (indices < self.ends[np.maximum(at, 0)])

    def outside(self, first: int, last: int) -> IndexSet:
        """The indices of ``first .. last`` that the set has not."""
        begin, end = np.searchsorted(self.ends, first, side="right"), np.searchsorted(self.starts, last, side="left")
        starts = np.append(np.int64(first), self.ends[begin:end])
        return IndexSet.of_runs(starts, np.append(self.starts[begin:end], np.int64(last)))

    def pieces(self, size: int = _PIECE) -> Iterator[Indices]:
        """The indices, ascending, at most so many at a time: (n,) each."""
        for first in range(0, len(self), size):
            yield self.take(np.arange(first, min(first + size, len(self))))

    def to_text(self, first: int, last: int) -> str:
        """The set, which lies in ``first .. last``, as text for `from_text`."""
        if self._text is None or self._text[:2] != (first, last):  # once: states are taken often
            packed = zlib.compressobj()
            parts = [packed.compress(bits) for bits in self._bits(first, last)]
            self._text = first, last, base64.b64encode(b"".join([*parts, packed.flush()])).decode("ascii")
        return self._text[2]

    def _bits(self, first: int, last: int) -> Iterator[bytes]:
        for lo in range(first, last, _PIECE):
            hi = min(lo + _PIECE, last)
            begin, end = np.searchsorted(self.ends, lo, side="right"), np.searchsorted(self.starts, hi, side="left")
            changes = np.zeros(hi - lo + 1, np.int8)
            changes[np.maximum(self.starts[begin:end] - lo, 0)] += 1
            changes[np.minimum(self.ends[begin:end], hi) - lo] -= 1
            yield np.packbits(np.cumsum(changes[:-1], dtype=np.int8).view(bool)).tobytes()

    @classmethod
    def from_text(cls, text: object, first: int, last: int) -> Self:
        """The set that lies in ``first .. last``, of the text that `to_text` made.

        Raises:
            StateError: the text is damaged, or that of another range.
        """
        try:
            packed = base64.b64decode(text, validate=True)  # type: ignore[arg-type]  # which may be anything
            runs = list(_unpack(packed, first, last))
            return cls.joined([starts for starts, _ in runs], [ends for _, ends in runs])
        except (TypeError, ValueError, binascii.Error, zlib.error, EOFError) as error:
            raise StateError(f"the state's set of unseen samples is damaged ({error})") from error


def _unpack(packed: bytes, first: int, last: int) -> Iterator[tuple[Indices, Indices]]:
    """Runs of each piece; those of two pieces may touch."""
    unpacking = zlib.decompressobj()
    for lo in range(first, last, _PIECE):
        count = min(_PIECE, last - lo)
        data, wanted = b"", -(-count // 8)
        while len(data) < wanted:
            more = unpacking.decompress(packed, wanted - len(data))
            data, packed = data + more, unpacking.unconsumed_tail
            if not more and not packed:
                raise EOFError(f"it ends before sample {lo + 8 * len(data)} of {last}")
        bits = np.unpackbits(np.frombuffer(data, np.uint8))
        if bits[count:].any():
            raise ValueError(f"it has samples from {last} on")
        edges = np.diff(bits[:count].astype(np.int8), prepend=np.int8(0), append=np.int8(0))
        yield lo + np.flatnonzero(edges > 0), lo + np.flatnonzero(edges < 0)
    if unpacking.decompress(packed, 1) or not unpacking.eof or unpacking.unused_data:
        raise ValueError(f"it has more than {last - first} samples")

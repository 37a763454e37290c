"""The source of a mixture that each row reads: in every prefix each source's count is within 1 of its share.

Source s with share p is due p * j of the rows 0 .. j - 1, and has had ``floor(p * j)`` or ``ceil(p * j)`` of them. So
each of its turns has a window of rows: turn k may come once p * j exceeds k, and must have come where p * j is k + 1.
Turns are given by the earliest end of a window, which keeps to all windows if anything does::

    shares 1/2, 1/3, 1/6        a a b a b c | a a b a b c | ...        windows of b: rows 0 .. 2, 3 .. 5, ...

Rows come in blocks longer than any window. Which sources are rounded up where a block begins is a pure function of the
row (`_Windows._choose`), such that the turns before it and those after it can all be given. So any block is computed
without those before it. Sources with shares below 2**-14, whose windows would be too long, have rows of their own
(`_Split`): with such sources all counts are within 2.

Shares are whole multiples of 2**-48 that add up to 1: all is exact, and the same on every machine.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wids.core.order.permutation import Indices

MAX_SOURCES = 4096
_WHOLE = 1 << 48
_SMALL_BITS = 14  # a share below 2**-14 is small
# Rows of a block; times _WHOLE they are int64.
_MIN_ROWS, _MAX_ROWS = 1 << 10, 1 << 15
_BLOCKS_KEPT = 4


def to_shares(weights: Sequence[float | Fraction]) -> tuple[int, ...]:
    """Weights as shares in units of 2**-48: they add up to 2**48, and none above 0 becomes 0.

    Args:
        weights: finite, none below 0, one at least above 0; at most `MAX_SOURCES`.
    """
    exact = [Fraction(weight) for weight in weights]
    total = sum(exact)
    shares = [max(int(weight * _WHOLE / total), int(weight > 0)) for weight in exact]
    largest = max(range(len(shares)), key=shares.__getitem__)
    shares[largest] += _WHOLE - sum(shares)
    return tuple(shares)


class Turns:
    """The turns of sources by shares.

    Args:
        shares: as `to_shares` gives them, or some of those: shares of their sum.
    """

    shares: tuple[int, ...]

    def __init__(self, shares: Sequence[int]) -> None:
        self.shares = tuple(shares)
        whole = sum(shares)
        small = [s for s, share in enumerate(shares) if 0 < share << _SMALL_BITS < whole]
        self._rule: _Windows | _Split = _Split(self.shares, small) if small else _Windows(self.shares)
        self._nrows = self._rule.nrows
        self._blocks: dict[int, tuple[Indices, Indices]] = {}

    def counts(self, row: int) -> Indices:
        """Number of the rows before ``row`` of each of n sources: (n,)."""
        number, at = divmod(row, self._nrows)
        counted = self._rule.counts_at(number * self._nrows)
        return counted + np.bincount(self._block(number)[0][:at], minlength=len(counted)) if at else counted

    def take(self, rows: Indices) -> tuple[Indices, Indices]:
        """(source, number of its turns before) of each of n rows: (n,), ascending -> (n,), (n,)."""
        sources, counts = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        done = 0
        while done < len(rows):
            number = int(rows[done]) // self._nrows
            end = int(np.searchsorted(rows, (number + 1) * self._nrows, side="left"))
            at = rows[done:end] - number * self._nrows
            of, before = self._block(number)
            sources[done:end], counts[done:end] = of[at], before[at]
            done = end
        return sources, counts

    def row_of(self, source: int, turn: int) -> int:
        """The row of one of a source's turns, which are counted from 0; its share is above 0."""
        # All counts are within 2 of the share.
        first, last = (max(k, 0) * _WHOLE // self.shares[source] // self._nrows for k in (turn - 2, turn + 3))
        numbers = range(first, last + 1)
        behind = bisect_right(numbers, turn, key=lambda number: self._rule.counts_at(number * self._nrows)[source])
        number = numbers[behind - 1]
        of, before = self._block(number)
        return number * self._nrows + int(np.flatnonzero((of == source) & (before == turn))[0])

    def _block(self, number: int) -> tuple[Indices, Indices]:
        """(source, turns that it had before) of each row of a block: (nrows,), (nrows,)."""
        block = self._blocks.pop(number, None)
        if block is None:
            if len(self._blocks) >= _BLOCKS_KEPT:
                del self._blocks[next(iter(self._blocks))]
            block = self._rule.make(number * self._nrows)
        self._blocks[number] = block
        return block


class _Windows:
    """Turns by the ends of their windows, in blocks of ``nrows``; no share is below 2**-14."""

    def __init__(self, shares: tuple[int, ...]) -> None:
        self.shares, self._whole = shares, sum(shares)
        longest = -(-self._whole // min(share for share in shares if share)) + 2
        self.nrows = min(max(1 << longest.bit_length(), _MIN_ROWS), _MAX_ROWS)

    def counts_at(self, row: int) -> Indices:
        """`Turns.counts` where a block begins: the turns of each source that must have come, and one more of some."""
        due, past = zip(*(divmod(row * share, self._whole) for share in self.shares), strict=True)
        counts = np.array(due, np.int64)
        counts[self._choose(past)] += 1
        return counts

    def _choose(self, past: Sequence[int]) -> list[int]:
        """The sources that have had the turn whose window holds the row; ``past``: how much of it is past.

        Of the windows that began first, as many have had their turn as their past parts add up to, rounded down; with
        fewer, the rows before would hold too few turns. Whenever one more has to, it is the one whose window ends
        first. So of those that end last no more have had it than their past parts add up to, rounded up; with more,
        the rows behind would hold too few. (Sums over two nested families of sets can be rounded so, all at once.)
        """
        behind = {s: -(-past[s] // self.shares[s]) for s in range(len(past)) if past[s]}
        total, chosen, waiting = 0, list[int](), list[tuple[int, int]]()
        for s in sorted(behind, key=lambda s: (-behind[s], s)):
            heapq.heappush(waiting, (-((past[s] - self._whole) // self.shares[s]), s))
            total += past[s]
            if len(chosen) < total // self._whole:
                chosen.append(heapq.heappop(waiting)[1])
        return chosen

    def make(self, first: int) -> tuple[Indices, Indices]:
        """The block that begins with row ``first``; see `Turns._block`."""
        nrows, begin = self.nrows, self.counts_at(first)
        nturns = self.counts_at(first + nrows) - begin
        sources, turns = np.repeat(np.arange(len(nturns)), nturns), _count_up(nturns)
        due, past = zip(*(divmod(first * share, self._whole) for share in self.shares), strict=True)
        # Turn k, counted from the one that is due at `first`, has the rows where past + share * rows is between
        # k and k + 1 of the whole.
        k = (turns + (begin - np.array(due, np.int64))[sources]) * self._whole - np.array(past, np.int64)[sources]
        share = np.array(self.shares, np.int64)[sources]
        releases, ends = np.maximum(k // share, 0), np.minimum(-((-k - self._whole) // share), nrows)
        by_release = np.argsort(releases, kind="stable")
        waiting, heap = iter((ends * len(nturns) + sources)[by_release].tolist()), list[int]()
        dealt, push, pop, pushpop = [], heapq.heappush, heapq.heappop, heapq.heappushpop
        for count in np.bincount(releases, minlength=nrows).tolist():
            if count == 1:
                dealt.append(pushpop(heap, next(waiting)))
                continue
            for _ in range(count):
                push(heap, next(waiting))
            dealt.append(pop(heap))
        sources = np.array(dealt, np.int64) % len(nturns)
        before = np.empty(nrows, np.int64)
        before[np.argsort(sources, kind="stable")] = turns + np.repeat(begin, nturns)
        return sources, before


class _Split:
    """Small sources have every so many rows together, evenly spaced, the others the rest."""

    def __init__(self, shares: tuple[int, ...], small: list[int]) -> None:
        self.nrows = _MIN_ROWS
        self._share, self._whole = sum(shares[s] for s in small), sum(shares)
        self._nsources = len(shares)
        large = sorted({s for s, share in enumerate(shares) if share} - set(small))
        self._parts = [(np.array(part, np.int64), Turns([shares[s] for s in part])) for part in (large, small)]

    def _rows_of(self, row: int) -> tuple[int, int]:
        """Number of rows before ``row`` of the others, and of the small sources."""
        small = (row * self._share + self._whole // 2) // self._whole
        return row - small, small

    def counts_at(self, row: int) -> Indices:
        """`Turns.counts`."""
        counted = np.zeros(self._nsources, np.int64)
        for (part, turns), rows in zip(self._parts, self._rows_of(row), strict=True):
            counted[part] = turns.counts(rows)
        return counted

    def make(self, first: int) -> tuple[Indices, Indices]:
        """The block that begins with row ``first``; see `Turns._block`."""
        past = (first * self._share + self._whole // 2) % self._whole
        is_small = np.diff((past + self._share * np.arange(self.nrows + 1)) // self._whole) > 0
        sources, before = np.empty(self.nrows, np.int64), np.empty(self.nrows, np.int64)
        for (part, turns), begin, where in zip(self._parts, self._rows_of(first), (~is_small, is_small), strict=True):
            of, before[where] = turns.take(begin + np.arange(np.count_nonzero(where)))
            sources[where] = part[of]
        return sources, before


def _count_up(counts: Indices) -> Indices:
    """0 .. count - 1 for each count, one after another."""
    numbers: Indices = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return numbers

"""One rank's way through an epoch, as visits to shards.

Rules: the order is `wids.order.epoch`'s. Up to some millions of samples every index is looked at, and visits are exact.
Beyond, a visit begins and ends where its window of mixed chunks does: a few samples off, for a chunk of a thousand
samples appears in a mixed window at once, and until its end; a piece of a few samples need not.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wids.order.epoch import EpochOrder, Stream, end_position, nominal_start
from wids.order.layout import ShardCounts, Shards

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wids.order.epoch import Plan, Tail
    from wids.order.permutation import Indices


class Visits(NamedTuple):
    """Stretches in which a rank reads a shard, sorted by their first positions; (nvisits,) each.

    Attributes:
        first, last: positions in the rank's epoch, both included.
        shard: its number.
    """

    first: Indices
    last: Indices
    shard: Indices


class Segment(NamedTuple):
    """The part ``lo .. hi`` of a stream that lies in one pass, which begins at ``begin``."""

    order: EpochOrder
    begin: int
    lo: int
    hi: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """What one rank reads in every epoch.

    Attributes:
        plan: the order's.
        ends: where each shard's samples end, of all shards.
        world, rank: how many ranks read the plan, and which of them this is.
        tail: what becomes of an epoch that the ranks do not divide.
        passes: in an epoch, without a tail between them.
        size: samples of all ranks in a nominal epoch; None: the passes.
    """

    plan: Plan
    ends: Indices
    world: int
    rank: int
    tail: Tail
    passes: int = 1
    size: int | None = None

    def is_stream(self) -> bool:
        """Whether passes follow each other without a seam."""
        return self.size is not None or self.passes != 1

    def span(self, epoch: int) -> tuple[int, int]:
        """From which position to which all ranks read in an epoch."""
        n = len(self.plan)
        if not self.is_stream():
            return 0, end_position(n, start=0, world=self.world, tail=self.tail)
        size = self.size or n * self.passes
        start, stop = (nominal_start(k, size=size, origin=0, world=self.world) for k in (epoch, epoch + 1))
        return start, stop if n else start

    def count(self, epoch: int) -> int:
        """Samples that the rank reads in an epoch."""
        start, stop = self.span(epoch)
        return (stop - start) // self.world

    def blocks(self, epoch: int, lo: int = 0, hi: int | None = None) -> Iterator[Indices]:
        """The rank's indices ``lo .. hi`` in an epoch, in blocks as a sampler has them."""
        start, stop = self.span(epoch)
        end = stop if hi is None else min(stop, start + hi * self.world)
        begin = start + self.rank + lo * self.world
        if self.is_stream():
            return Stream(self.plan).blocks(begin, end, self.world)
        return EpochOrder(self.plan, epoch).blocks(begin, end, self.world)

    def shards(self, epoch: int, lo: int, hi: int) -> Indices:
        """The shard of each of the samples ``lo .. hi``."""
        found = np.concatenate([np.zeros(0, np.int64), *self.blocks(epoch, lo, hi)])
        return np.searchsorted(self.ends, found, side="right")

    def visits(self, epoch: int, *, is_exact: bool) -> Visits:
        """The visits of an epoch; one for each window that a shard is part of."""
        found = self._exact(epoch) if is_exact else self._by_windows(epoch)
        by_first = np.argsort(found.first, kind="stable")
        return Visits(*(column[by_first] for column in found))

    def coming(self, epoch: int) -> Visits:
        """The visits as prefetching sees them: one for each block of indices and shard."""
        shards = Shards(ShardCounts(np.diff(self.ends, prepend=0)), lambda _: True)
        rows = [visit for block in shards.visits(self.blocks(epoch)) for visit in block]
        table = np.array([(row.first, row.last, row.shard) for row in rows], np.int64).reshape(-1, 3)
        return Visits(table[:, 0], table[:, 1], table[:, 2])

    def segments(self, epoch: int) -> list[Segment]:
        """The passes, or parts of them, that an epoch consists of; without what a tail repeats."""
        start, stop = self.span(epoch)
        n, lanes = len(self.plan), self.plan.lanes
        if not n:
            return []
        if not self.is_stream():
            return [Segment(EpochOrder(self.plan, epoch), 0, 0, min(stop, n))]
        found = []
        for number in range(start // n, -(-stop // n)):
            begin = number * n
            order = EpochOrder(self.plan, number, shift=begin % lanes)
            found.append(Segment(order, begin, max(start, begin), min(stop, begin + n)))
        return found

    def _exact(self, epoch: int) -> Visits:
        start, _ = self.span(epoch)
        count, lanes = self.count(epoch), self.plan.lanes
        shards = self.shards(epoch, 0, count)
        times = start + self.rank + np.arange(count, dtype=np.int64) * self.world
        groups, base = np.full(count, -1, np.int64), 0
        for order, begin, lo, hi in self.segments(epoch):
            here = slice(*np.searchsorted(times, (lo, hi)))
            t = times[here] - begin
            lane_of, rows = (t + order.shift) % lanes, t // lanes
            own = np.empty(len(t), np.int64)
            for lane in np.flatnonzero(np.bincount(lane_of)).tolist():
                chunks = _chunks(order, lane)
                mine = lane_of == lane
                ends = np.cumsum(chunks[:, 1] - chunks[:, 0])
                own[mine] = base + np.searchsorted(ends, rows[mine], side="right") // self.plan.window
                base += len(chunks) // self.plan.window + 1
            groups[here] = own
        positions = np.arange(count, dtype=np.int64)
        # What a tail repeats is in no window; its group is the one after all others.
        groups[groups < 0] = base
        return _merge(groups, shards, positions, positions)

    def _by_windows(self, epoch: int) -> Visits:
        start, _ = self.span(epoch)
        lanes, world, n = self.plan.lanes, self.world, len(self.plan)
        columns: list[tuple[Indices, ...]] = []
        base = 0
        for order, begin, lo, hi in self.segments(epoch):
            first_lane = (start + self.rank - begin + order.shift) % lanes
            for k in range(lanes // gcd(world, lanes)):
                lane = (first_lane + k * world) % lanes
                chunks = _chunks(order, lane)
                if not len(chunks):
                    continue
                rows = self._window_rows(chunks)
                column = (lane - order.shift) % lanes
                first, last = (begin + row * lanes + column for row in rows)
                first, last = np.maximum(first, lo), np.minimum(last, hi - 1)
                own = start + self.rank
                first, last = np.maximum(-((own - first) // world), 0), (last - own) // world
                groups = base + np.arange(len(chunks)) // self.plan.window
                base = int(groups[-1]) + 1
                shards = np.searchsorted(self.ends, chunks[:, 0], side="right")
                keep = first <= last
                columns.append((groups[keep], shards[keep], first[keep], last[keep]))
        final = self.count(epoch) - 1
        if not self.is_stream() and final >= 0 and start + self.rank + final * world >= n:
            shards = self.shards(epoch, final, final + 1)
            columns.append((np.array([base]), shards, np.array([final]), np.array([final])))
        if not columns:
            return Visits(*(np.zeros(0, np.int64) for _ in range(3)))
        return _merge(*(np.concatenate(parts) for parts in zip(*columns, strict=True)))

    def _window_rows(self, chunks: Indices) -> tuple[Indices, Indices]:
        """The first and the last row of each chunk in its lane, about."""
        ends = np.cumsum(chunks[:, 1] - chunks[:, 0])
        starts = ends - (chunks[:, 1] - chunks[:, 0])
        if not self.plan.is_shuffled:
            return starts, ends - 1
        numbers = np.arange(len(chunks))
        opening = numbers - numbers % self.plan.window
        closing = np.minimum(opening + self.plan.window, len(chunks)) - 1
        # A mixed window comes to its chunks one after another, and to the end of each near its own.
        first = starts[opening] + numbers - opening
        return np.minimum(first, ends[closing] - 1), np.maximum(ends[closing] - 1 - (closing - numbers), first)


def _chunks(order: EpochOrder, lane: int) -> Indices:
    return order._chunks(lane)  # noqa: SLF001 - a second way to cut and permute chunks would drift from the first


def _merge(groups: Indices, shards: Indices, first: Indices, last: Indices) -> Visits:
    """One visit for each group and shard: its earliest first and its latest last."""
    if not len(groups):
        return Visits(first, last, shards)
    order = np.lexsort((shards, groups))
    groups, shards = groups[order], shards[order]
    edges = np.flatnonzero(np.append(True, (np.diff(groups) != 0) | (np.diff(shards) != 0)))
    return Visits(
        np.minimum.reduceat(first[order], edges),
        np.maximum.reduceat(last[order], edges),
        shards[edges].astype(np.int64),
    )

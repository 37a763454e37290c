"""One rank's way through an epoch, as visits to shards.

The order is `wids.core.order.epoch`'s, or `wids.core.order.mixture`'s. Up to some millions of samples every index is
looked at, and visits are exact. Beyond (not for mixtures), a visit begins and ends with the slots of the shuffle window
that hold
its chunk: a few samples off, for a chunk of a thousand samples has some near both ends of each of them; a piece of a
few samples need not.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wids.core.order.epoch import Plan, RestOrder, pass_at
from wids.core.order.layout import ShardCounts, Shards
from wids.tools.simulate.schedule import Timetable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wids.core.order.epoch import EpochOrder
    from wids.core.order.lane import Lane
    from wids.core.order.mixture import MixturePlan
    from wids.core.order.permutation import Indices
    from wids.core.order.rank_epochs import RankEpochs
    from wids.tools.simulate.schedule import BatchTimetable

_BLOCK = 64


class Visits(NamedTuple):
    """Stretches in which a rank reads a shard, sorted by their first positions; (nvisits,) each.

    Attributes:
        first: first position, in the rank's epoch.
        last: last position, included.
        shard: its number.
    """

    first: Indices
    last: Indices
    shard: Indices

    def rows(self) -> Iterator[tuple[int, ...]]:
        """(first, last, shard) of each."""
        return rows_of(*self)


def rows_of(*columns: Indices) -> Iterator[tuple[int, ...]]:
    """The rows of columns of n values, as Python's numbers; all at once they would take ten times the memory."""
    for begin in range(0, len(columns[0]), _BLOCK):
        yield from zip(*(column[begin : begin + _BLOCK].tolist() for column in columns), strict=True)


class Segment(NamedTuple):
    """The part ``lo .. hi`` of a stream that lies in one pass, which begins at ``begin``."""

    order: EpochOrder
    begin: int
    lo: int
    hi: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """The reading of one rank in every epoch.

    Attributes:
        epochs: of the rank's sampler, whose epochs have an end.
        ends: where each shard's samples end, of all shards.
        first: the number of the first epoch; the methods count epochs from there.
    """

    epochs: RankEpochs
    ends: Indices
    first: int = 0

    @property
    def plan(self) -> Plan | MixturePlan:
        """The order's."""
        return self.epochs.plan

    @property
    def world(self) -> int:
        """Number of ranks that read the plan."""
        return self.epochs.world

    def span(self, epoch: int) -> tuple[int, int]:
        """From which position to which all ranks read in an epoch."""
        start, stop = self.epochs.span(self.epochs.first_place(self.first + epoch))
        assert stop is not None  # noqa: S101 - for the type checker: the epoch has an end
        return start, stop

    def count(self, epoch: int) -> int:
        """Samples that the rank reads in an epoch."""
        start, stop = self.span(epoch)
        return (stop - start) // self.world

    def blocks(self, epoch: int, lo: int = 0, hi: int | None = None) -> Iterator[Indices]:
        """The rank's indices ``lo .. hi`` in an epoch, in blocks as a sampler has them."""
        start, stop = self.span(epoch)
        end = stop if hi is None else min(stop, start + hi * self.world)
        begin = start + self.epochs.rank + lo * self.world
        read = self.epochs.read(self.first + epoch, begin, end, self.world)
        return (block.samples for block in read)

    def shards(self, epoch: int, lo: int, hi: int) -> Indices:
        """The shard of each of the samples ``lo .. hi``."""
        found = np.concatenate([np.zeros(0, np.int64), *self.blocks(epoch, lo, hi)])
        return np.searchsorted(self.ends, found, side="right")

    def visits(self, epoch: int, *, is_exact: bool) -> Visits:
        """The visits of an epoch: of each chunk, or of several of one shard that are read at the same time."""
        return _sort(_join(self._exact(epoch) if is_exact else self._by_slots(epoch)))

    def coming(self, epoch: int) -> Visits:
        """The visits as prefetching sees them."""
        return self.coming_of(self.blocks(epoch))

    def coming_of(self, blocks: Iterator[Indices]) -> Visits:
        """One visit for each block of indices and shard."""
        shards = Shards(ShardCounts(np.diff(self.ends, prepend=0)), lambda _: True)
        rows = [visit for block in shards.visits(blocks) for visit in block]
        table = np.array([(row.first, row.last, row.shard) for row in rows], np.int64).reshape(-1, 3)
        return Visits(table[:, 0], table[:, 1], table[:, 2])

    def segments(self, epoch: int) -> list[Segment]:
        """The passes, or parts of them, that an epoch consists of; without what a tail repeats. Of no mixture."""
        assert isinstance(self.plan, Plan)  # noqa: S101 - see `wids.tools.simulate.job.TrainingJob`
        start, stop = self.span(epoch)
        if self.epochs.is_stream:
            return _passes(self.plan, start, stop)
        order, first, end = self.epochs.epoch_span(self.first + epoch)
        return [Segment(order, first, first, min(stop, end))] if len(self.plan) else []

    def _exact(self, epoch: int) -> Visits:
        start, _ = self.span(epoch)
        positions = np.arange(self.count(epoch), dtype=np.int64)
        indices = np.concatenate([np.zeros(0, np.int64), *self.blocks(epoch)])
        return self._visits_of(epoch, start + self.epochs.rank + positions * self.world, indices, positions)

    def reordered(self, epoch: int, times: Indices, indices: Indices) -> Visits:
        """The visits of a rank that reads samples in another order: (n,), in that order.

        Args:
            epoch: which.
            times: where the samples lie in the order of the plan.
            indices: the samples.
        """
        order = np.argsort(times, kind="stable")
        return _sort(_join(self._visits_of(epoch, times[order], indices[order], order)))

    def _visits_of(self, epoch: int, times: Indices, indices: Indices, positions: Indices) -> Visits:
        """A visit for each chunk and shard of samples at ascending times: (n,)."""
        # What a tail repeats is a visit of its own.
        groups, base = np.full(len(positions), -1, np.int64), 0
        if isinstance(self.plan, Plan):
            is_far = self.epochs.is_stream and len(times)  # of a long epoch, only the passes that are looked at
            passes = _passes(self.plan, int(times[0]), int(times[-1]) + 1) if is_far else self.segments(epoch)
            groups, base = _number_chunks(passes, times, indices, is_weighted=self.plan.copies is not None)
        else:
            for where, source, places in self.plan.order().places(times):
                passes = _passes(source.plan, int(places[0]), int(places[-1]) + 1)
                numbers, count = _number_chunks(passes, places, indices[where] - source.offset)
                groups[where] = base + numbers
                base += count
        groups[groups < 0] = base
        return _merge(groups, np.searchsorted(self.ends, indices, side="right"), positions, positions)

    def _by_slots(self, epoch: int) -> Visits:
        start, _ = self.span(epoch)
        lanes, world, n = self.plan.lanes, self.world, len(self.plan)
        columns: list[tuple[Indices, ...]] = []
        for order, begin, lo, hi in self.segments(epoch):
            first_lane = (start + self.epochs.rank - begin + order.shift) % lanes
            for k in range(lanes // gcd(world, lanes)):
                number = (first_lane + k * world) % lanes
                lane = order.lane(number)
                if not len(lane.chunks):
                    continue
                column = (number - order.shift) % lanes
                first, last = (begin + row * lanes + column for row in _chunk_rows(lane))
                first, last = np.maximum(first, lo), np.minimum(last, hi - 1)
                own = start + self.epochs.rank
                first, last = np.maximum(-((own - first) // world), 0), (last - own) // world
                shards = np.searchsorted(self.ends, order.samples(lane.chunks[:, 0]), side="right")
                keep = first <= last
                columns.append((first[keep], last[keep], shards[keep]))
        final = self.count(epoch) - 1
        if not self.epochs.is_stream and final >= 0 and start + self.epochs.rank + final * world >= n:
            shards = self.shards(epoch, final, final + 1)
            columns.append((np.array([final]), np.array([final]), shards))
        if not columns:
            return Visits(*(np.zeros(0, np.int64) for _ in range(3)))
        return Visits(*(np.concatenate(parts) for parts in zip(*columns, strict=True)))


def open_shards(table: Timetable | BatchTimetable, ends: Indices, rank: int, first: int, last: int) -> Visits:
    """The shards that a rank has open in the steps ``first .. last``: visits whose positions are steps, of the epoch.

    A shard that is open before the first or after the last of these steps is shown from, or to, that step.

    Args:
        table: the readings of the ranks.
        ends: where each shard's samples end.
        rank: whose.
        first: step.
        last: one past the last step.
    """
    samples, times, edges = table.read(rank, first, last)
    epochs = table.epochs if isinstance(table, Timetable) else table.epochs.lane_epochs
    begin, end, shard = Course(epochs=epochs, ends=ends).reordered(table.epoch, times, samples)
    begin, end = (first + np.searchsorted(edges, at, side="right") - 1 for at in (begin, end))
    return Visits(begin, end, shard)


def _passes(plan: Plan, start: int, stop: int) -> list[Segment]:
    """The passes that the positions ``start .. stop`` of a stream lie in."""
    found = list[Segment]()
    while len(plan) and start < stop:
        order, begin, end = pass_at(plan, start)
        found.append(Segment(order, begin, start, min(stop, end)))
        start = end
    return found


def _number_chunks(
    segments: list[Segment], times: Indices, samples: Indices, *, is_weighted: bool = False
) -> tuple[Indices, int]:
    """A number for each chunk of each pass: that of the chunk of each sample, (n,), and how many there are.

    Args:
        segments: the passes.
        times: ascending positions, (n,).
        samples: that are there, (n,). Those of no segment have the number -1.
        is_weighted: chunks are of places, which are not samples.
    """
    numbers, base = np.full(len(times), -1, np.int64), 0
    for order, begin, lo, hi in segments:
        here = slice(*np.searchsorted(times, (lo, hi)))
        is_by_places = is_weighted or isinstance(order, RestOrder)
        read = order.places_at(times[here] - begin) if is_by_places else samples[here]
        lane_of = (times[here] - begin + order.shift) % order.plan.lanes
        own = np.empty(len(read), np.int64)
        for lane in np.flatnonzero(np.bincount(lane_of)).tolist():
            chunks = order.chunks(lane)
            mine = lane_of == lane
            by_start = np.argsort(chunks[:, 0], kind="stable")
            at = np.searchsorted(chunks[by_start, 0], read[mine], side="right") - 1
            own[mine] = base + by_start[at]
            base += len(chunks)
        numbers[here] = own
    return numbers, base


def _chunk_rows(lane: Lane) -> tuple[Indices, Indices]:
    """The first and the last row of each chunk in its lane, about."""
    starts, count = lane.slot_starts(), len(lane.chunks)
    numbers = np.arange(count)
    window, final = count - len(starts) + 2, len(starts) - 2  # final: the last slot
    opening, closing = np.maximum(numbers - window + 1, 0), np.minimum(numbers, final)
    # The first slot comes to its chunks one after another, and the last one to the end of each near its own.
    first = np.minimum(starts[opening] + numbers - opening, starts[opening + 1] - 1)
    last = starts[closing + 1] - 1 - np.where(closing == final, count - 1 - numbers, 0)
    return first, np.maximum(last, first)


def _sort(visits: Visits) -> Visits:
    by_first = np.argsort(visits.first, kind="stable")
    return Visits(*(column[by_first] for column in visits))


def _join(visits: Visits) -> Visits:
    """Visits of one shard that overlap are one."""
    if not len(visits.first):
        return visits
    order = np.lexsort((visits.first, visits.shard))
    first, last, shard = (column[order] for column in visits)
    # The latest end so far; a shard's are larger than all of those before it.
    latest = np.maximum.accumulate(last + shard * (last.max() + 1))
    is_new = np.append(True, (first + shard * (last.max() + 1))[1:] > latest[:-1])
    edges = np.flatnonzero(is_new)
    return Visits(first[edges], np.maximum.reduceat(last, edges), shard[edges])


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

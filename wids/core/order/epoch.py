"""The order of an epoch: one sequence G of all samples, dealt to the ranks like cards.

    G[t] = lane[t % L][t // L]        rank r of W reads G[r], G[r + W], G[r + 2 W], ...

    n = 10, L = 4 lanes (not shuffled)    lane 0: 0 1 2    lane 1: 3 4 5    lane 2: 6 7      lane 3: 8 9
    G = 0 3 6 8 1 4 7 9 2 5

    W = 4, pad      rank 0: 0 1 2      rank 1: 3 4 5      rank 2: 6 7 [6]    rank 3: 8 9 [8]
    W = 4, drop     rank 0: 0 1        rank 1: 3 4        rank 2: 6 7        rank 3: 8 9
    W = 3, pad      rank 0: 0 8 7 5    rank 1: 3 1 9 [6]  rank 2: 6 4 2 [8]
    W = 3, drop     rank 0: 0 8 7      rank 1: 3 1 9      rank 2: 6 4 2

G holds each sample once and does not know W: any number of ranks reads the same G, from any position on. Only its tail
does: where W does not divide the rest, ``pad`` repeats (``[i]``) a sample of the lane whose turn it is, from the
lane's beginning, and ``drop`` leaves out fewer than W samples. The first n % L lanes are longer by one; with W = L rank
r reads lane r and no other. Lanes without a sample of their own (n < L) repeat those of others.

Passes that follow each other without a seam (`Stream`) are one sequence too: position T lies in pass T // n, and always
in lane T % L.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import numpy as np

from wids.core.order.index_set import IndexSet
from wids.core.order.lane import Lane, cut_chunks, slice_chunks
from wids.core.order.permutation import CHUNKS, DEAL, permutation
from wids.core.order.state import digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wids.core.order.permutation import Indices
    from wids.core.order.weights import Copies, Draw

Tail = Literal["pad", "drop", "mask"]
Reshuffle = Literal["fixed", "epoch"]

# Indices handed on at a time: enough to make numpy's calls cheap, few enough not to delay the first one.
_BLOCK, _BLOCK_OF_A_LANE = 4096, 32


def end_position(n: int, *, start: int, world: int, tail: Tail) -> int:
    """End of an epoch of ``n`` that ``world`` ranks read from position ``start`` on; all have had equally many."""
    left = max(n - start, 0)
    return start + (left // world if tail == "drop" else -(-left // world)) * world


def nominal_start(epoch: int, *, size: int, origin: int, world: int) -> int:
    """Beginning of nominal epoch number ``epoch`` in a stream that ``world`` ranks read from ``origin`` on.

    It is the first position at ``epoch * size`` or after it at which all ranks have had equally many, so that nominal
    epochs neither overlap nor leave a gap, for any ``size`` and ``world``.
    """
    return max(origin + -((origin - epoch * size) // world) * world, origin % world)


class Rest(NamedTuple):
    """The samples that are left of a pass, after the data have changed within it (`wids.core.order.amendment`).

    Attributes:
        first: the position of the first one, in the stream, or in the epoch.
        number: of the pass, or the epoch.
        samples: that are left.
    """

    first: int
    number: int
    samples: IndexSet

    @property
    def end(self) -> int:
        """One past the position of the last one."""
        return self.first + len(self.samples)


class MixedRange(NamedTuple):
    """A range of indices, of which a rank mixes some chunks, of one shard each, at a time.

    Attributes:
        first: index.
        last: one past the last index.
        window: chunks of a lane that are mixed.
        block: chunks of a lane that begin in a block of batches, which may be read in any order; 0: there are none.
        rows: of a block, that begin one chunk.
        lanes: that the rank reads.
    """

    first: int
    last: int
    window: int
    block: int
    rows: int
    lanes: int = 1

    @property
    def open(self) -> int:
        """Number of shards that the rank reads at a time."""
        return (self.window + self.block) * self.lanes

    @property
    def needed(self) -> int:
        """Number of shards in a cache with which those that come next are there when they are needed."""
        return self.window * self.lanes + max(2 * self.block * self.lanes, 1)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All that the order of every epoch depends on.

    Attributes:
        lo: beginning of the range of samples.
        hi: its end.
        chunks: instead of the range, chunks in an order of the caller's: (nchunks, 2), half-open; needs one lane.
        boundaries: ends of shards, sorted; None: not known.
        chunksize: see `wids.core.order.lane`.
        window: see there.
        lanes: L, at least 1.
        is_shuffled: False leaves each lane in the order of the range.
        reshuffle: ``"epoch"``: chunks are dealt to other lanes in each epoch, if they are shuffled; ``"fixed"``: a lane
            keeps its part of the range.
        seed: any integer, modulo 2**64.
        copies: the range is of places, not samples: which sample is at a place, by weights; None: they are the samples.
        rests: what is left of passes, by ascending positions, up to the end of a pass, in the place of all samples.
    """

    lo: int = 0
    hi: int = 0
    chunks: Indices | None = None
    boundaries: Indices | None = None
    chunksize: int
    window: int
    lanes: int
    is_shuffled: bool
    reshuffle: Reshuffle = "fixed"
    seed: int
    copies: Copies | None = None
    rests: tuple[Rest, ...] = ()

    def __len__(self) -> int:
        if self.chunks is not None:
            return int((self.chunks[:, 1] - self.chunks[:, 0]).sum())
        return self.hi - self.lo

    @property
    def is_dealt(self) -> bool:
        """True if a lane has other chunks in each epoch; otherwise it keeps its part of the range."""
        return self.reshuffle == "epoch" and self.is_shuffled and self.chunks is None

    def chunk_rows(self) -> int:
        """Number of samples of a chunk, about; at least 1."""
        n, shards, boundaries = len(self), 1, self.boundaries if self.copies is None else self.copies.boundaries
        if boundaries is not None:
            first, last = np.searchsorted(boundaries, self._span, side="left")
            shards += int(np.count_nonzero(np.diff(boundaries[first:last])))
        return max(min(self.chunksize, n // shards), 1)

    def window_rows(self) -> int:
        """Number of samples in a window of a lane, about; with weights, which may choose few of a shard, at most."""
        return self.window * (self.chunk_rows() if self.copies is None else self.chunksize)

    def mixed_ranges(self, _position: int = 0, *, block: int = 0) -> list[MixedRange]:
        """The range; with the chunks that begin in ``block`` rows of a lane that are read in any order."""
        lo, hi = self._span
        if self.chunks is not None:
            lo, hi = (int(self.chunks.min()), int(self.chunks.max())) if len(self.chunks) else (0, 0)
        rows = self.chunk_rows()
        return [MixedRange(lo, hi, self.window if self.is_shuffled else 1, -(-block // rows), rows)]

    @property
    def _span(self) -> tuple[int, int]:
        """The samples, half-open."""
        return (self.lo, self.hi) if self.copies is None else self.copies.span

    def order(self, number: int, *, shift: int = 0) -> EpochOrder:
        """The order of an epoch, or of a pass; see `EpochOrder`."""
        if self.copies is None:
            return EpochOrder(self, number, shift=shift)
        draw = self.copies.draw(number)
        plan = msgspec.structs.replace(self, boundaries=draw.boundaries, copies=None)
        return _WeightedOrder(plan, number, shift=shift, draw=draw)

    @property
    def identity(self) -> dict[str, Any]:
        """All that the order depends on, besides the lanes, as plain values for a state."""
        return {
            "shards": _digest(self.boundaries),
            "ranges": _digest(self.chunks),
            "samples": len(self),
            "first": self.lo,
            "seed": self.seed,
            "shuffle": self.is_shuffled,
            "chunksize": self.chunksize,
            "window": self.window,
            "reshuffle": self.reshuffle,
            "sample_weights": None if self.copies is None else self.copies.digest,
        }

    def lane_bounds(self, lane: int, *, shift: int = 0) -> tuple[int, int]:
        """The half-open part of ``0 .. n`` that lane number ``lane`` owns, counted in samples of the range.

        Args:
            lane: 0 <= lane < lanes.
            shift: the lane that the sequence begins with; the longer lanes are the n % lanes from there on.
        """
        n = len(self)
        return self._lane_start(n, lane, shift), self._lane_start(n, lane + 1, shift)

    def _lane_start(self, n: int, lane: int, shift: int) -> int:
        each, longer = divmod(n, self.lanes)
        # Longer lanes before this one: of shift .. shift + longer, which may go round past the last lane.
        return lane * each + min(max(lane - shift, 0), longer) + min(lane, max(shift + longer - self.lanes, 0))

    def lane_chunks(self, lane: int) -> Indices:
        """The chunks of a lane that keeps its part of the range, in the order of the range."""
        if self.chunks is not None:
            return self.chunks
        first, last = self.lane_bounds(lane)
        return self.cut(first, last)

    def cut(self, first: int, last: int) -> Indices:
        """The part ``first .. last`` of the range as chunks."""
        lo, hi = self.lo + first, self.lo + last
        return cut_chunks(lo, hi, chunksize=self.chunksize, boundaries=self.boundaries)


class EpochOrder:
    """G of one epoch: positions to sample indices, any part of it without those before.

    Args:
        plan: the chunks that are ordered.
        epoch: any integer.
        shift: the lane of position 0: 0, but in a `Stream`.
    """

    plan: Plan
    epoch: int
    shift: int

    def __init__(self, plan: Plan, epoch: int, *, shift: int = 0) -> None:
        self.plan, self.epoch, self.shift = plan, epoch, shift
        self._n = len(plan)
        self._lanes: dict[int, Lane] = {}
        self._dealt: tuple[Indices, Indices] | None = None

    def __len__(self) -> int:
        return self._n

    def blocks(self, start: int, stop: int, step: int = 1) -> Iterator[Indices]:
        """Yield ``G[start:stop:step]`` in pieces of one or more indices; past n, G repeats (see the module).

        Raises:
            ValueError: G is empty, and there is nothing to repeat.
        """
        return map(self.samples, self.places(start, stop, step))

    def places(self, start: int, stop: int, step: int = 1, *, piece: int = 0) -> Iterator[Indices]:
        """Yield as `blocks` does, places of the range; see `samples` and `copies`.

        Args:
            start: the first position.
            stop: one past the last.
            step: between positions.
            piece: at least so many come at a time, where there are as many.

        Raises:
            ValueError: the same.
        """
        lanes = self.plan.lanes
        most = max(_BLOCK, _BLOCK_OF_A_LANE * (lanes // gcd(step, lanes)), piece)
        while start < stop:
            at, end = self._source(start)
            count = min(-(-(stop - start) // step), -(-(end - at) // step), most)
            yield self._read(at, count, step)
            start += count * step

    def samples(self, places: Indices) -> Indices:
        """The samples at n places of the range: (n,) -> (n,); they are the places, but by weights."""
        return places

    def copies(self, places: Indices, samples: Indices) -> int | Indices:
        """The number of the copy of its sample at n places: (n,), (n,) -> (n,); 0, but by weights."""
        del places, samples
        return 0

    def places_of(self, samples: Indices) -> Indices:
        """All m places of the range with n samples: (n,), ascending, each once -> (m,), the same."""
        return samples

    def _source(self, t: int) -> tuple[int, int]:
        """The position below n that ``t`` repeats (or is), and up to where positions continue like that."""
        if t < self._n:
            return t, self._n
        if self._n == 0:
            raise ValueError("samples are asked for out of ranges that hold none")
        lanes = self.plan.lanes
        if lanes == 1:
            return t % self._n, self._n
        row, column = divmod(t, lanes)
        rows = -(-(self._n - column) // lanes)
        at = column + lanes * (row % rows) if rows > 0 else t % self._n  # a lane without samples borrows
        return at, at + 1

    def _read(self, first: int, count: int, step: int) -> Indices:
        """G at ``first``, ``first + step``, ...: (count,), all below n."""
        lanes = self.plan.lanes
        common = gcd(step, lanes)
        cycle, stride = lanes // common, step // common  # every cycle-th lies in one lane, stride rows apart
        if cycle == 1:
            return self.lane((first + self.shift) % lanes).rows(first // lanes, count, stride)
        samples = np.empty(count, np.int64)
        for k in range(min(cycle, count)):
            t = first + k * step
            lane = self.lane((t + self.shift) % lanes)
            samples[k::cycle] = lane.rows(t // lanes, -(-(count - k) // cycle), stride)
        return samples

    def take(self, positions: Indices) -> Indices:
        """G at so many ascending positions below n: (count,) -> (count,)."""
        return self.samples(self.places_at(positions))

    def places_at(self, positions: Indices) -> Indices:
        """`take` in places of the range; see `samples`."""
        rows, lanes = np.divmod(positions, self.plan.lanes)
        lanes = (lanes + self.shift) % self.plan.lanes
        if not len(lanes) or (lanes == lanes[0]).all():
            return self.lane(int(lanes[0])).take(rows) if len(lanes) else rows
        by_lane = np.argsort(lanes, kind="stable")
        edges = np.append(0, np.flatnonzero(np.diff(lanes[by_lane])) + 1)
        places = np.empty(len(positions), np.int64)
        for where in np.split(by_lane, edges[1:]):
            places[where] = self.lane(int(lanes[where[0]])).take(rows[where])
        return places

    def lane(self, number: int) -> Lane:
        """A lane in this epoch."""
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = self._make_lane(number)
        return lane

    def _make_lane(self, number: int) -> Lane:
        plan, chunks = self.plan, self.chunks(number)
        return Lane(chunks, window=plan.window, seed=plan.seed, epoch=self.epoch, is_shuffled=plan.is_shuffled)

    def before(self, position: int) -> IndexSet:
        """The samples at the positions before one, not by weights; in memory is no more than a window of one lane."""
        lanes, starts, ends = self.plan.lanes, [], []
        for column in range(min(lanes, position)):
            lane = self._make_lane((column + self.shift) % lanes)
            chunks, others = lane.before(-(-(position - column) // lanes))
            starts += [chunks[:, 0], others]
            ends += [chunks[:, 1], others + 1]
        return IndexSet.joined(starts, ends)

    def chunks(self, lane: int) -> Indices:
        """The chunks of a lane in this epoch's order: (nchunks, 2), half-open."""
        plan, epoch = self.plan, self.epoch
        first, last = plan.lane_bounds(lane, shift=self.shift)
        if plan.is_dealt:
            if self._dealt is None:
                chunks = plan.cut(0, self._n)
                chunks = chunks[permutation(len(chunks), seed=plan.seed, epoch=epoch, stream=DEAL, position=plan.lo)]
                self._dealt = chunks, np.cumsum(chunks[:, 1] - chunks[:, 0])
            return slice_chunks(*self._dealt, first, last)
        chunks = plan.cut(first, last) if plan.chunks is None else plan.chunks
        if plan.is_shuffled:
            # The position keeps lanes of equally many chunks from going through them in the same order.
            where = int(chunks[0, 0]) if len(chunks) else 0
            chunks = chunks[permutation(len(chunks), seed=plan.seed, epoch=epoch, stream=CHUNKS, position=where)]
        return chunks


class _WeightedOrder(EpochOrder):
    """G of one pass by weights."""

    def __init__(self, plan: Plan, epoch: int, *, shift: int, draw: Draw) -> None:
        super().__init__(plan, epoch, shift=shift)
        self._draw = draw

    def samples(self, places: Indices) -> Indices:
        """The samples at places; see `EpochOrder.samples`."""
        return self._draw.samples(places)

    def copies(self, places: Indices, samples: Indices) -> Indices:
        """The copy of a sample at each place; see `EpochOrder.copies`."""
        return self._draw.copies(places, samples)

    def places_of(self, samples: Indices) -> Indices:
        """The places of samples; see `EpochOrder.places_of`."""
        return self._draw.places_of(samples)


class RestOrder(EpochOrder):
    """G of what is left of a pass: position 0 is that of its first sample.

    Args:
        plan: the order's.
        rest: one of its rests.
    """

    def __init__(self, plan: Plan, rest: Rest) -> None:
        left = None if plan.boundaries is None else rest.samples.count_below(plan.boundaries)
        part = msgspec.structs.replace(plan, lo=0, hi=len(rest.samples), boundaries=left, rests=())
        super().__init__(part, rest.number, shift=rest.first % plan.lanes)
        self._samples, self._gone = rest.samples, rest.samples.outside(plan.lo, plan.hi)

    def before(self, position: int) -> IndexSet:
        """The samples of the range that are not left at a position; see `EpochOrder.before`."""
        return self._gone.union(self._samples.take_set(super().before(position)))

    def samples(self, places: Indices) -> Indices:
        """The samples at places; see `EpochOrder.samples`."""
        return self._samples.take(places)

    def places_of(self, samples: Indices) -> Indices:
        """The places of samples; see `EpochOrder.places_of`."""
        return self._samples.count_below(samples[self._samples.has(samples)])


class Stream:
    """Pass after pass over a plan's samples as one endless sequence, each pass in an order of its own."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._pass: PassSpan | None = None  # that was taken from last

    def take(self, positions: Indices) -> Indices:
        """The stream at so many ascending positions: (count,) -> (count,); n is above 0."""
        parts = []
        while len(positions):
            first = int(positions[0])
            if self._pass is None or not self._pass.first <= first < self._pass.end:
                self._pass = pass_at(self.plan, first)
            order, begin, end = self._pass
            count = int(np.searchsorted(positions, end, side="left"))
            parts.append(order.take(positions[:count] - begin))
            positions = positions[count:]
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int64), *parts])

    def blocks(self, start: int, stop: int | None, step: int = 1) -> Iterator[Indices]:
        """Yield the stream's ``start:stop:step`` in pieces; without a stop there is no end, unless n is 0."""
        for order, first, last in self.passes(start, stop, step):
            yield from order.blocks(first, last, step)

    def passes(self, start: int, stop: int | None, step: int = 1) -> Iterator[tuple[EpochOrder, int, int]]:
        """Yield the passes that ``start:stop:step`` lies in, each with the part of it: order, start, stop."""
        while len(self.plan) and (stop is None or start < stop):
            order, begin, end = pass_at(self.plan, start)
            end = end if stop is None else min(end, stop)
            yield order, start - begin, end - begin
            start += -(-(end - start) // step) * step


class PassSpan(NamedTuple):
    """A pass in a stream.

    Attributes:
        order: of the pass, or of its rest.
        first: the position in the stream that is its position 0.
        end: one past its last position.
    """

    order: EpochOrder
    first: int
    end: int


def pass_at(plan: Plan, position: int) -> PassSpan:
    """The pass that a position of a stream lies in; n is above 0."""
    n, rests = len(plan), plan.rests
    number = position // n
    if not rests or position >= rests[-1].end:
        return PassSpan(plan.order(number, shift=number * n % plan.lanes), number * n, (number + 1) * n)
    for rest in rests:
        if rest.first <= position < rest.end:
            return PassSpan(RestOrder(plan, rest), rest.first, rest.end)
    end = min((number + 1) * n, rests[0].first)  # an epoch of before is read anew
    return PassSpan(plan.order(number, shift=number * n % plan.lanes), number * n, end)


def pass_numbers(plan: Plan, positions: Indices) -> Indices:
    """The numbers of the passes that n positions of a stream lie in: (n,) -> (n,)."""
    numbers: Indices = positions // max(len(plan), 1)
    for rest in plan.rests:
        numbers[(positions >= rest.first) & (positions < rest.end)] = rest.number
    return numbers


def _digest(indices: Indices | None) -> str | None:
    return None if indices is None else digest(np.asarray(indices, "<i8").tobytes())

"""The order of a mixture: at each row one source, each source in the order of its own passes.

Rows and lanes are those of `wids.core.order.epoch`: position t is row t // L of lane t % L. All lanes read the same
source in a row, which `wids.core.order.shares` chooses. A source's samples are drawn from its own endless `Stream`, one
row of it after another:

    G[t] = stream_s[k * L + t % L]       s: the source of row t // L;  k: how many rows it had before

    shares 1/2, 1/4, 1/4; L = 2          row      0     1     2     3     4     5
                                         source   a     b     a     c     a     b
                                         G        a0 a1 b0 b1 a2 a3 c0 c1 a4 a5 b2 b3

So nothing of a source comes again before all of it has come, with any number of ranks. With as many ranks as lanes, a
source's count in any first part of a rank's sequence is within 1 of its share; in that of G within L.

Weights may change at a row: a `WeightSegment` begins. Its counts restart, and each source continues at its place.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from wids.core.order.epoch import MixedRange, Plan, Stream, pass_numbers
from wids.core.order.layout import SourceSpan
from wids.core.order.mask import SampleBlock, seeds_of
from wids.core.order.search import find_in_stream
from wids.core.order.shares import MAX_SOURCES, Turns, to_shares
from wids.core.order.state import CONTENTS
from wids.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wids.core.order.layout import Regrouping
    from wids.core.order.permutation import Indices

# Positions computed at a time, the first few for the first batch: each source whose turn comes has to make a window.
_FIRST_BLOCK, _GROWTH, _BLOCK = 16, 4, 4096


def name_parts(parts: Sequence[tuple[str | None, int, int, Any, str | None, dict[str, str]]]) -> list[SourceSpan]:
    """Sources of parts, as `SourceSpan` has them: without a name by number, a repeated name with its number.

    Raises:
        ValueError: bad weights; see `fill_weights`, `check_weights`.
    """
    names: dict[str, int] = {}
    for k, (name, *_) in enumerate(parts):
        unique = str(k) if name is None else name
        while unique in names:
            unique = f"{unique} ({k})"
        names[unique] = k
    sizes = {name: parts[k][2] - parts[k][1] for name, k in names.items()}
    weights = check_weights(fill_weights({name: parts[k][3] for name, k in names.items()}, sizes), sizes)
    return [SourceSpan(name, parts[k][1], parts[k][2], weights[name], *parts[k][4:]) for name, k in names.items()]


@dataclass(frozen=True)
class WeightSegment:
    """From a position on, weights.

    Attributes:
        position: a whole number of rows.
        weights: name -> weight, of all sources with a weight above 0, and any others.
        before: name -> number of turns of each source before; those that had none may be left out.
    """

    position: int
    weights: Mapping[str, float]
    before: Mapping[str, int] = field(default_factory=dict)

    def count(self, turns: int) -> dict[str, int]:
        """``before``, so many turns later."""
        names, rule = _turns(self.weights)
        counts = dict(self.before)
        for name, count in zip(names, rule.counts(turns).tolist(), strict=True):
            counts[name] = counts.get(name, 0) + count
        return counts


@dataclass(frozen=True)
class MixedSource:
    """One source.

    Attributes:
        name: by which weights and states know it.
        plan: the order of its samples, which are 0 .. len(plan) in it.
        offset: the index of its first sample in the mixture.
        regrouping: of indices of the mixture, as in `wids.core.order.rank_epochs.RankEpochs`.
        fingerprint: of the samples; None: not known.
        contents: see `wids.core.order.layout.contents`.
        start: positions by which the data's changes have moved the source's stream.
    """

    name: str
    plan: Plan
    offset: int
    regrouping: Regrouping | None = None
    fingerprint: str | None = None
    contents: dict[str, str] | None = None
    start: int = 0

    def to_indices(self, samples: Indices) -> Indices:
        """Indices of n samples in the mixture: (n,) -> (n,)."""
        samples = samples + self.offset
        return samples if self.regrouping is None else self.regrouping.take(samples)

    def seeds(self, indices: Indices, places: Indices) -> Indices:
        """Seeds of n indices of the mixture, at places of the source's stream: (n,) -> (n,); see `mask.seeds_of`."""
        return seeds_of(indices - self.offset, seed=self.plan.seed, number=pass_numbers(self.plan, places))


@dataclass(frozen=True, kw_only=True)
class MixturePlan:
    """All that the order of a mixture depends on; it takes the place of a `Plan` whose passes follow each other.

    Attributes:
        sources: at least one.
        segments: by ascending positions, the first at 0.
        lanes: L, of each source's plan too.
        batch: number of positions in turn of the same source, a multiple of the lanes; None: one row.
    """

    sources: tuple[MixedSource, ...]
    segments: tuple[WeightSegment, ...]
    lanes: int
    batch: int | None = None

    def __len__(self) -> int:
        return sum(len(source.plan) for source in self.sources)

    @property
    def rows(self) -> int:
        """Number of rows in turn that read the same source."""
        return self.each // self.lanes

    @property
    def each(self) -> int:
        """Number of positions in turn that are of the same source."""
        return self.batch or self.lanes

    def window_rows(self) -> int:
        """Number of samples in a window of a lane, about, of the source where that is the fewest."""
        return min(source.plan.window_rows() for source in self.sources)

    def mixed_ranges(self, position: int = 0, *, block: int = 0) -> list[MixedRange]:
        """The range of each source with a weight from a position on; of a block, a source has its share of rows."""
        following = [segment.position for segment in self.segments[1:]]
        segments = self.segments[bisect_right(following, position) :]
        ranges = []
        for source in self.sources:
            shares = [each.weights.get(source.name, 0) / sum(each.weights.values()) for each in segments]
            if share := max(shares):
                [mixed] = source.plan.mixed_ranges(block=math.ceil(block * share))
                first, last = mixed.first + source.offset, mixed.last + source.offset
                ranges.append(mixed._replace(first=first, last=last, rows=int(mixed.rows / share)))
        return ranges

    def order(self) -> MixedOrder:
        """The order of all positions."""
        return MixedOrder(self)

    @property
    def identity(self) -> dict[str, Any]:
        """All that the order depends on, besides the lanes and the weights, as plain values for a state."""
        sources = {
            source.name: {
                "dataset": source.fingerprint,
                **({CONTENTS: source.contents} if source.contents else {}),
                **source.plan.identity,
            }
            for source in self.sources
        }
        return {"sources": sources, "batch": self.batch}


class MixedOrder:
    """A mixture's positions to indices, any of them."""

    def __init__(self, plan: MixturePlan) -> None:
        self._plan = plan
        self._starts = [segment.position for segment in plan.segments]
        self._sources = {source.name: source for source in plan.sources}
        self._streams: dict[str, Stream] = {}
        self._number = -1  # of the segment that was read last
        self._names: list[str] = []
        self._before = np.zeros(0, np.int64)
        self._turns: Turns

    def _segment_of(self, position: int) -> int:
        return bisect_right(self._starts, position) - 1

    def segment_end(self, position: int) -> int | None:
        """End of the segment of a position; None: it has none."""
        following = self._segment_of(position) + 1
        return self._starts[following] if following < len(self._starts) else None

    def counts(self, position: int) -> dict[str, int]:
        """Number of the samples of each source before a position, by name."""
        number = self._segment_of(position)
        segment, each = self._plan.segments[number], self._plan.each
        turn, rest = divmod(position - segment.position, each)
        counts = {**dict.fromkeys(self._sources, 0), **{name: n * each for name, n in segment.count(turn).items()}}
        if rest:
            self._begin(number)
            counts[self._names[int(self._turns.take(np.array([turn]))[0][0])]] += rest
        return counts

    def places(self, positions: Indices) -> Iterator[tuple[Indices, MixedSource, Indices]]:
        """The places of ascending positions in the sources: (which of them, the source, the positions in its stream).

        Args:
            positions: (n,), of one segment.
        """
        if not len(positions):
            return
        number = self._segment_of(int(positions[0]))
        if number != self._number:
            self._begin(number)
        rows, lanes = np.divmod(positions - self._starts[number], self._plan.lanes)
        numbers, rows = np.divmod(rows, self._plan.rows)
        sources, turns = self._turns.take(numbers)
        rows += (turns + self._before[sources]) * self._plan.rows
        places = rows * self._plan.lanes + lanes
        for s in np.flatnonzero(np.bincount(sources)).tolist():
            where, source = np.flatnonzero(sources == s), self._sources[self._names[s]]
            yield where, source, places[where] + source.start

    def read(self, start: int, stop: int | None, step: int = 1, *, has_seeds: bool = False) -> Iterator[SampleBlock]:
        """The samples at the positions ``start:stop:step``, in blocks, with or without seeds; no stop: without end."""
        count = _FIRST_BLOCK
        while stop is None or start < stop:
            ends = [end for end in (stop, self.segment_end(start)) if end is not None]
            taken = min([count, *(-(-(end - start) // step) for end in ends)])
            positions = start + step * np.arange(taken)
            seeds = np.empty(taken, np.int64) if has_seeds else None
            yield SampleBlock(self.take(positions, seeds), seeds)
            start, count = start + taken * step, min(count * _GROWTH, _BLOCK)

    def take(self, positions: Indices, seeds: Indices | None = None) -> Indices:
        """The indices at n ascending positions of one segment: (n,) -> (n,).

        Args:
            positions: (n,).
            seeds: (n,), where their seeds are written; None: they are not computed.
        """
        indices_there = np.empty(len(positions), np.int64)
        for where, source, places in self.places(positions):
            indices = indices_there[where] = source.to_indices(self._streams[source.name].take(places))
            if seeds is not None:
                seeds[where] = source.seeds(indices, places)
        return indices_there

    def find(self, wanted: Indices, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """(position, sample) of those at the positions ``start .. stop``, in no order; see `wids.core.order.search`."""
        each = self._plan.each
        for number, begin in enumerate(self._starts):
            lo, hi = max(start, begin), min(stop, self.segment_end(begin) or stop)
            if lo >= hi:
                continue
            self._begin(number)
            turns, before = self._turns, self._before
            firsts, lasts = (turns.counts(turn) for turn in ((lo - begin) // each, -((begin - hi) // each)))
            for s, name in enumerate(self._names):
                if firsts[s] == lasts[s]:
                    continue
                source = self._sources[name]
                first, last = np.searchsorted(wanted, [source.offset, source.offset + len(source.plan)])
                wanted_here = wanted[first:last] - source.offset
                span = (int(count + before[s]) * each + source.start for count in (firsts[s], lasts[s]))
                for place, sample in find_in_stream(source.plan, wanted_here, *span):
                    turn, rest = divmod(place - source.start, each)
                    position = begin + turns.row_of(s, turn - int(before[s])) * each + rest
                    if lo <= position < hi:
                        yield position, sample + source.offset

    def _begin(self, number: int) -> None:
        """Read this segment.

        Raises:
            StateError: one of its sources is not there any more.
        """
        segment = self._plan.segments[number]
        self._number, (self._names, self._turns) = number, _turns(segment.weights)
        self._before = np.array([segment.before.get(name, 0) for name in self._names], np.int64)
        for name in self._names:
            if name not in self._sources:
                raise StateError(
                    f"positions from {segment.position} on read source {name!r}, which the mixture does not have any "
                    "more; begin behind them, or with the mixture as it was"
                )
            if name not in self._streams:
                self._streams[name] = Stream(self._sources[name].plan)


def _turns(weights: Mapping[str, float]) -> tuple[list[str], Turns]:
    """The sources with a weight, and their turns; by their names, so that the order of a mapping does not matter."""
    names = sorted(name for name, weight in weights.items() if weight)
    return names, Turns(to_shares([weights[name] for name in names]))


def fill_weights(weights: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Weights of sources of which some have None: they count by their lengths.

    Raises:
        ValueError: some of the others are below 1, which are shares, not numbers of samples.
    """
    missing = [name for name, weight in weights.items() if weight is None]
    shares = [name for name, weight in weights.items() if weight is not None and 0 < _parse_weight(name, weight) < 1]
    if missing and shares:
        raise ValueError(
            f"source {missing[0]!r} has no weight, which counts as its length, {sizes[missing[0]]}; and {shares[0]!r} "
            f"has a weight of {weights[shares[0]]}, which is a share. Give every source a weight"
        )
    return {name: sizes[name] if weight is None else weight for name, weight in weights.items()}


def check_weights(weights: Mapping[str, Any], sizes: Mapping[str, int] | None = None) -> dict[str, float]:
    """Weights of sources as floats, by name.

    Args:
        weights: of some or all sources, in any unit; those that are left out have none.
        sizes: name -> number of samples, of each source there is; None: not known.

    Raises:
        ValueError: a name that is none of theirs; a weight that is not a finite number, or below 0; none above 0;
            a weight for a source without samples.
    """
    if sizes is None:
        sizes = dict.fromkeys(weights, 1)
    if len(sizes) > MAX_SOURCES:
        raise ValueError(f"a mixture has {len(sizes)} sources; at most {MAX_SOURCES} are possible")
    unknown = [name for name in weights if name not in sizes]
    if unknown:
        raise ValueError(f"weights name {unknown[0]!r}, and the mixture's sources are {', '.join(map(repr, sizes))}")
    parsed = {name: _parse_weight(name, weights.get(name, 0)) for name in sizes}
    if not any(parsed.values()):
        raise ValueError("all weights of a mixture are 0; one source at least needs a weight above 0")
    empty = [name for name, weight in parsed.items() if weight and not sizes[name]]
    if empty:
        raise ValueError(f"source {empty[0]!r} has a weight of {parsed[empty[0]]:g} and no samples")
    return parsed


def _parse_weight(name: str, weight: Any) -> float:
    try:
        value = float(weight)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"the weight of source {name!r} is {weight!r:.80}; it must be a number") from None
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"the weight of source {name!r} is {weight!r:.80}; it must be finite, and not below 0")
    return value

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

import hashlib
import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wids.core.order.epoch import Plan, Stream
from wids.core.order.mask import seeds_of
from wids.core.order.population import ReadSamples, choose_samples
from wids.core.order.search import find_in_stream
from wids.core.order.shares import MAX_SOURCES, Turns, to_shares
from wids.core.order.state import CONTENTS, MAX_POSITION, check_known, check_order, read_size
from wids.core.order.validation import parse_int
from wids.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wids.core.order.config import EpochConfig, SamplerSettings
    from wids.core.order.layout import Layout, Regrouping, ShardCounts
    from wids.core.order.permutation import Indices
    from wids.core.order.population import Facts
    from wids.core.order.state import EpochPosition

REWEIGHT_ADVICE = (
    "To go on with this mixture's sources and weights from the state's position on, "
    "load_state_dict(state, reweight=True)"
)
# Positions computed at a time, the first few for the first batch: each source whose turn comes has to make a window.
_FIRST_BLOCK, _GROWTH, _BLOCK = 16, 4, 4096


class SourceSpan(NamedTuple):
    """A source as a dataset says it (`wids.core.order.layout.Inside`): indices ``first .. last`` of the dataset.

    Attributes:
        name: of the source. weight: its own, at first.
        fingerprint: which samples these are; None: not known. contents: see `wids.core.order.layout.contents`.
    """

    name: str
    first: int
    last: int
    weight: float
    fingerprint: str | None = None
    contents: dict[str, str] | None = None


def name_parts(parts: Sequence[tuple[str | None, int, int, Any, str | None, dict[str, str]]]) -> list[SourceSpan]:
    """Sources out of what a `SourceSpan` has: without a name by number, a repeated name with its number.

    Raises:
        ValueError: bad weights; see `fill_weights`, `check_weights`.
    """
    names: dict[str, int] = {}
    for k, (name, *_) in enumerate(parts):
        own = str(k) if name is None else name
        while own in names:
            own = f"{own} ({k})"
        names[own] = k
    sizes = {name: parts[k][2] - parts[k][1] for name, k in names.items()}
    weights = check_weights(fill_weights({name: parts[k][3] for name, k in names.items()}, sizes), sizes)
    return [SourceSpan(name, parts[k][1], parts[k][2], weights[name], *parts[k][4:]) for name, k in names.items()]


@dataclass(frozen=True)
class WeightSegment:
    """From a position on, weights.

    Attributes:
        position: a whole number of rows.
        weights: name -> weight, of all sources with a weight above 0, and any others.
        before: name -> how many turns each source has had before; those that had none may be left out.
    """

    position: int
    weights: Mapping[str, float]
    before: Mapping[str, int] = field(default_factory=dict)

    def count(self, turns: int) -> dict[str, int]:
        """``before``, so many turns later."""
        names, rule = _turns(self.weights)
        found = dict(self.before)
        for name, count in zip(names, rule.counts(turns).tolist(), strict=True):
            found[name] = found.get(name, 0) + count
        return found


@dataclass(frozen=True)
class MixedSource:
    """One source.

    Attributes:
        name: by which weights and states know it.
        plan: the order of its samples, which are 0 .. len(plan) in it.
        offset: the index of its first sample in the mixture.
        regrouping: of indices of the mixture, as in `wids.core.order.config.EpochConfig`.
        fingerprint: which samples these are; None: not known. contents: see `wids.core.order.layout.contents`.
    """

    name: str
    plan: Plan
    offset: int
    regrouping: Regrouping | None = None
    fingerprint: str | None = None
    contents: dict[str, str] | None = None

    def to_indices(self, samples: Indices) -> Indices:
        """Indices of the mixture: (n,) -> (n,)."""
        samples = samples + self.offset
        return samples if self.regrouping is None else self.regrouping.take(samples)

    def seeds(self, indices: Indices, places: Indices) -> Indices:
        """Of indices of the mixture, at places of the source's stream: (n,) -> (n,); see `mask.seeds_of`."""
        return seeds_of(indices - self.offset, seed=self.plan.seed, number=places // len(self.plan))


@dataclass(frozen=True, kw_only=True)
class MixturePlan:
    """All that the order of a mixture depends on; it takes the place of a `Plan` whose passes follow each other.

    Attributes:
        sources: at least one.
        segments: by ascending positions, the first at 0.
        lanes: L, of each source's plan too.
        batch: how many positions in turn are of the same source, a multiple of the lanes; None: one row.
    """

    sources: tuple[MixedSource, ...]
    segments: tuple[WeightSegment, ...]
    lanes: int
    batch: int | None = None

    def __len__(self) -> int:
        return sum(len(source.plan) for source in self.sources)

    @property
    def rows(self) -> int:
        """How many rows in turn read the same source."""
        return self.each // self.lanes

    @property
    def each(self) -> int:
        """How many positions in turn are of the same source."""
        return self.batch or self.lanes

    def chunk_rows(self) -> int:
        """How many samples a chunk has, about, of the source where that is the fewest."""
        return min(source.plan.chunk_rows() for source in self.sources)

    def mixed_ranges(self, position: int = 0) -> list[tuple[int, int, int]]:
        """(first index, last index + 1, chunks of a lane that are mixed) of each source with a weight from there on."""
        following = [segment.position for segment in self.segments[1:]]
        segments = self.segments[bisect_right(following, position) :]
        return [
            (lo + source.offset, hi + source.offset, chunks)
            for source in self.sources
            if any(segment.weights.get(source.name) for segment in segments)
            for lo, hi, chunks in source.plan.mixed_ranges()
        ]

    def stream(self, start: int, stop: int | None, step: int = 1) -> Iterator[Indices]:
        """Yield the mixture's ``start:stop:step`` in pieces; without a stop there is no end."""
        return (found for found, _ in self.read(start, stop, step, has_seeds=False))

    def read(
        self, start: int, stop: int | None, step: int = 1, *, has_seeds: bool
    ) -> Iterator[tuple[Indices, Indices | None]]:
        """As `stream`, each piece with the seeds of its samples (`wids.core.order.mask.seeds_of`), or None."""
        order = _MixedOrder(self)
        for positions in order.pieces(start, stop, step):
            seeds = np.empty(len(positions), np.int64) if has_seeds else None
            yield order.take(positions, seeds), seeds

    def counts(self, position: int) -> dict[str, int]:
        """How many of the samples before a position are each source's, by name."""
        return _MixedOrder(self).counts(position)

    def places(self, positions: Indices) -> Iterator[tuple[Indices, MixedSource, Indices]]:
        """Where ascending positions lie in the sources: of each, (which of them, it, the positions in its stream).

        Args:
            positions: (n,), of one segment.
        """
        return _MixedOrder(self).places(positions) if len(positions) else iter(())

    def find(self, wanted: Indices, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """(position, sample) of those at the positions ``start .. stop``, in no order; see `wids.core.order.search`."""
        return _MixedOrder(self).find(wanted, start, stop)

    @property
    def facts(self) -> dict[str, Any]:
        """What the order depends on, besides the lanes and the weights, as plain values for a state."""
        sources = {
            source.name: {
                "dataset": source.fingerprint,
                **({CONTENTS: source.contents} if source.contents else {}),
                **source.plan.facts,
            }
            for source in self.sources
        }
        return {"sources": sources, "batch": self.batch}


class _MixedOrder:
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
        """Where the segment of a position ends; None: it does not."""
        following = self._segment_of(position) + 1
        return self._starts[following] if following < len(self._starts) else None

    def counts(self, position: int) -> dict[str, int]:
        """See `MixturePlan.counts`."""
        number = self._segment_of(position)
        segment, each = self._plan.segments[number], self._plan.each
        turn, rest = divmod(position - segment.position, each)
        found = {**dict.fromkeys(self._sources, 0), **{name: n * each for name, n in segment.count(turn).items()}}
        if rest:
            self._begin(number)
            found[self._names[int(self._turns.take(np.array([turn]))[0][0])]] += rest
        return found

    def places(self, positions: Indices) -> Iterator[tuple[Indices, MixedSource, Indices]]:
        """See `MixturePlan.places`."""
        number = self._segment_of(int(positions[0]))
        if number != self._number:
            self._begin(number)
        rows, lanes = np.divmod(positions - self._starts[number], self._plan.lanes)
        numbers, rows = np.divmod(rows, self._plan.rows)
        sources, turns = self._turns.take(numbers)
        rows += (turns + self._before[sources]) * self._plan.rows
        places = rows * self._plan.lanes + lanes
        for s in np.flatnonzero(np.bincount(sources)).tolist():
            where = np.flatnonzero(sources == s)
            yield where, self._sources[self._names[s]], places[where]

    def pieces(self, start: int, stop: int | None, step: int) -> Iterator[Indices]:
        """Yield the positions ``start:stop:step``, each piece of one segment; without a stop there is no end."""
        count = _FIRST_BLOCK
        while stop is None or start < stop:
            ends = [end for end in (stop, self.segment_end(start)) if end is not None]
            taken = min([count, *(-(-(end - start) // step) for end in ends)])
            yield start + step * np.arange(taken)
            start, count = start + taken * step, min(count * _GROWTH, _BLOCK)

    def take(self, positions: Indices, seeds: Indices | None = None) -> Indices:
        """The indices at ascending positions of one segment: (n,) -> (n,).

        Args:
            positions: (n,).
            seeds: (n,), where their seeds are written; None: they are not computed.
        """
        found = np.empty(len(positions), np.int64)
        for where, source, places in self.places(positions):
            indices = found[where] = source.to_indices(self._streams[source.name].take(places))
            if seeds is not None:
                seeds[where] = source.seeds(indices, places)
        return found

    def find(self, wanted: Indices, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """See `MixturePlan.find`."""
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
                own = wanted[first:last] - source.offset
                span = (int(count + before[s]) * each for count in (firsts[s], lasts[s]))
                for place, sample in find_in_stream(source.plan, own, *span):
                    turn, rest = divmod(place, each)
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
    found = {name: _parse_weight(name, weights.get(name, 0)) for name in sizes}
    if not any(found.values()):
        raise ValueError("all weights of a mixture are 0; one source at least needs a weight above 0")
    empty = [name for name, weight in found.items() if weight and not sizes[name]]
    if empty:
        raise ValueError(f"source {empty[0]!r} has a weight of {found[empty[0]]:g} and no samples")
    return found


def _parse_weight(name: str, weight: Any) -> float:
    try:
        value = float(weight)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"the weight of source {name!r} is {weight!r:.80}; it must be a number") from None
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"the weight of source {name!r} is {weight!r:.80}; it must be finite, and not below 0")
    return value


class MixtureWeights(ReadSamples):
    """The sources of a sampler's mixture, and their weights, which may change.

    Args:
        parts: the sources.
        layout: where the shards of all of them are; None: not known.
        batch: see `MixturePlan`.

    Attributes:
        batch: as given. segments: the weights from each position on.
    """

    batch: int | None
    weights: dict[str, float]

    def __init__(self, parts: Sequence[SourceSpan], layout: Layout | None, *, batch: int | None = None) -> None:
        super().__init__(max((part.last for part in parts), default=0))
        self._parts, self._layout, self.batch = parts, layout, batch
        self._sizes = {part.name: part.last - part.first for part in parts}
        self.weights = check_weights({part.name: part.weight for part in parts}, self._sizes)
        self.segments: tuple[WeightSegment, ...] = (WeightSegment(0, self.weights),)

    def plan(self, settings: SamplerSettings) -> tuple[MixturePlan, None]:
        """See `ReadSamples.plan`."""
        mixing, sources = settings.mixing, []
        for part in self._parts:
            boundaries, regrouping = None, None
            if self._layout is not None:
                boundaries, regrouping = self._layout.arrange(part.first, part.last, is_sorted=mixing["is_shuffled"])
            own = {
                "hi": part.last - part.first,
                "boundaries": None if boundaries is None else boundaries - part.first,
                "seed": _own_seed(settings.seed, part.name),
            }
            plan = Plan(**{**mixing, **own})
            sources.append(MixedSource(part.name, plan, part.first, regrouping, part.fingerprint, part.contents))
        plans = tuple(sources)
        return MixturePlan(sources=plans, segments=self.segments, lanes=settings.lanes, batch=self.batch), None

    def set_size(self, settings: SamplerSettings) -> SamplerSettings:
        """See `ReadSamples.set_size`: as many as passes over all sources have, or a little more: whole batches."""
        if settings.epochs is None:
            return settings
        size = settings.epoch_size or self.end * settings.epochs
        takes = settings.epoch_size is None
        return replace(settings, epoch_size=nominal_size(size, batch=self.batch), epochs=1, takes_epoch_size=takes)

    def set_length(self, settings: SamplerSettings, length: int | None) -> SamplerSettings:
        """See `ReadSamples.set_length`; the next epoch continues there.

        Raises:
            ValueError: that is not a whole number of batches of one source.
        """
        if not length:
            return super().set_length(settings, length)
        size, each = length * settings.num_replicas, self.batch or 1
        if size % each:
            raise ValueError(f"dslength_per_replica is {length}, and {size} samples are no whole batches of {each}")
        return replace(settings, epoch_size=size, epochs=1, takes_epoch_size=False)

    def dataset_facts(self, _dataset: Any) -> dict[str, Any]:
        """See `ReadSamples.dataset_facts`; sources have their own."""
        return {"dataset": None}

    def state_facts(self) -> dict[str, Any]:
        """See `ReadSamples.state_facts`."""
        return {"weights": self.facts()}

    def facts(self) -> dict[str, Any]:
        """The weights as plain values for a state: the mixture's own, and the segments."""
        changes = [[segment.position, dict(segment.weights), dict(segment.before)] for segment in self.segments]
        return {"own": self.weights, "from": changes}

    def change(self, weights: Mapping[str, Any], *, position: int, lanes: int) -> int:
        """Have other weights from a position on, or from the next whole turn; those that are left out stay.

        Returns:
            The position from which on they hold; later changes are gone.

        Raises:
            ValueError: bad weights; see `check_weights`.
        """
        each = self.batch or lanes
        first = -(-position // each) * each
        kept = [segment for segment in self.segments if segment.position <= first]
        before = {name: weight for name, weight in kept[-1].weights.items() if name in self._sizes}
        changed = check_weights({**before, **weights}, self._sizes)
        if changed != kept[-1].weights:
            turns = kept[-1].count((first - kept[-1].position) // each)
            kept = [segment for segment in kept if segment.position < first]
            kept.append(WeightSegment(first, changed, turns))
        self.segments = tuple(kept)
        return first

    def adopt(
        self, there: Facts, here: Facts, place: EpochPosition, settings: SamplerSettings, *, is_reweighted: bool
    ) -> Facts:
        """See `ReadSamples.adopt`; takes over the state's weights, too.

        Raises:
            StateError: sources or settings differ; or weights do, and it is not ``is_reweighted``; it is damaged.
        """
        lanes = settings.lanes
        if "sources" not in there:
            check_order(there, here)
        there, here = dict(there), dict(here)
        facts = there.pop("weights", None)
        if settings.takes_epoch_size:
            here["epoch_size"] = read_size(there)
        if here["batch"] is not None and there.get("batch") is not None:
            _check_batch(there["batch"], place.position, settings)
            here["batch"] = there["batch"]
        check_order(*(_common_sources(there, here) if is_reweighted else (there, here)), advice=f". {REWEIGHT_ADVICE}")
        size = here["epoch_size"] or self.end
        if not 0 <= place.epoch <= MAX_POSITION // size or max(place.position, place.yielded, lanes) > MAX_POSITION:
            raise StateError(f"the state is at {place}, in {lanes} lanes and epochs of {size}; it is damaged")
        own, segments = _parse_facts(facts, self.batch or lanes, None if is_reweighted else self._sizes)
        names = [name for name in {**own, **self.weights} if own.get(name) != self.weights.get(name)]
        if names and not is_reweighted:
            listed = "; ".join(f"{name}: {own.get(name)} there, {self.weights.get(name)} here" for name in names)
            raise StateError(f"the state's weights are not the mixture's ({listed}). {REWEIGHT_ADVICE}")
        self.segments = segments
        if is_reweighted:
            self.change(self.weights, position=place.position, lanes=lanes)
        return here


def _check_batch(batch: Any, position: int, settings: SamplerSettings) -> None:
    """See that a sampler's ranks read whole batches of a state that has batches of one source.

    Raises:
        StateError: they do not.
    """
    mine = settings.source_batch * settings.num_replicas
    if batch != mine:
        raise StateError(
            f"the state's global batches are of {batch} samples, and here {settings.num_replicas} rank(s) with "
            f"source_batch={settings.source_batch} read {mine} at a time; ranks times source_batch has to be {batch}"
        )
    if batch % settings.lanes:
        raise StateError(f"the state's global batches are of {batch} samples in {settings.lanes} lanes; it is damaged")
    if position % mine:
        raise StateError(
            f"the state is at sample {position}, within a global batch of {mine}; save states after whole batches"
        )


def _common_sources(there: dict[str, Any], here: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two orders of mixtures, with the sources alone that are in both."""
    if not isinstance(there["sources"], Mapping):
        raise StateError(f"the state's sources are {there['sources']!r:.200}, not a mapping; it is damaged")
    names = there["sources"].keys() & here["sources"].keys()
    return tuple({**order, "sources": {n: order["sources"][n] for n in names}} for order in (there, here))  # type: ignore[return-value]


def nominal_size(size: int, *, batch: int | None) -> int:
    """Samples of a nominal epoch, at least ``size``: of a mixture with batches of one source, whole batches."""
    return size if batch is None else -(-size // batch) * batch


def global_batch(source_batch: int, *, world: int, lanes: int) -> int | None:
    """How many samples in turn all ranks read of one source, each ``source_batch``; None: that is 1, and no batches.

    Raises:
        ValueError: the lanes do not divide it.
    """
    batch = None if source_batch == 1 else source_batch * world
    if batch is not None and batch % lanes:
        raise ValueError(
            f"lanes is {lanes}, and does not divide the {batch} samples of a global batch ({world} rank(s) with "
            f"source_batch={source_batch}), which are of one source"
        )
    return batch


def sampler_config(
    counts: ShardCounts,
    parts: Sequence[SourceSpan] | None,
    settings: SamplerSettings,
    *,
    span: tuple[int, int] | None = None,
    weights: Any = None,
) -> EpochConfig:
    """All that the indices of a rank depend on, as in a sampler of a dataset of an index.

    Args:
        counts: the shards of the index.
        parts: its sources, if it is a mixture.
        settings: of the sampler.
        span: which of the samples, half-open; None: all.
        weights: how often samples come, (n,), of all of the index; None: once in a pass. See `wids.core.order.weights`.

    Raises:
        ValueError: see `choose_samples`; a nominal epoch that has less than a sample for each rank.
    """
    samples = choose_samples(counts, parts, settings, num_samples=span, weights=weights)
    config = samples.config(samples.set_size(settings))
    config.first_place(0)
    return config


def _parse_facts(
    facts: Any, each: int, sizes: Mapping[str, int] | None
) -> tuple[dict[str, float], tuple[WeightSegment, ...]]:
    if not isinstance(facts, Mapping):
        raise StateError(f"the state's weights are {facts!r:.200}, not a mapping; they are damaged")
    check_known(facts, {"own", "from"}, "weights")
    try:
        own = check_weights(facts["own"])
        found = tuple(_parse_segment(segment, each, sizes) for segment in facts["from"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(f"the state's weights are damaged: {error}") from None
    positions = [segment.position for segment in found]
    if not found or positions[0] != 0 or sorted(set(positions)) != positions:
        raise StateError(f"the state's weights are damaged: they begin at positions {positions!r:.200}")
    return own, found


def _parse_segment(values: Any, each: int, sizes: Mapping[str, int] | None) -> WeightSegment:
    """A segment as a state has it.

    Raises:
        ValueError, TypeError, AttributeError: it is damaged.
    """
    position, weights, before = values
    for name in (*weights, *before):
        if not isinstance(name, str):
            raise TypeError(f"a source's name is {name!r}; it must be a string")
    found = WeightSegment(
        parse_int("position", position, minimum=0),
        check_weights(weights, None if sizes is None else {name: sizes.get(name, 0) for name in weights}),
        {name: parse_int(f"turns of source {name!r}", count, minimum=0) for name, count in before.items()},
    )
    if found.position > MAX_POSITION or found.position != sum(found.before.values()) * each:
        raise ValueError(f"{sum(found.before.values())} turns of {each} are not the {found.position} samples before")
    return found


def _own_seed(seed: int, name: str) -> int:
    """A source's seed: other than those of the sources beside it, and independent of them."""
    state = hashlib.blake2b(f"{seed} {name}".encode(errors="surrogatepass"), digest_size=8)
    return int.from_bytes(state.digest(), "little")

"""Which samples a sampler reads, each kind with the plan of its order: a range, one by weights, chunks, a mixture.

Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wids.core.order.config import EpochConfig
from wids.core.order.epoch import Plan
from wids.core.order.layout import ShardCounts, contents, fingerprint, layout, read_column
from wids.core.order.mixture import MixedSource, MixturePlan, WeightSegment, check_weights
from wids.core.order.state import CONTENTS, MAX_POSITION, START, check_known, check_order, read_size
from wids.core.order.validation import parse_int, parse_range
from wids.core.order.weights import Copies, parse_weights
from wids.errors import InputError, StateError, a_kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wids.core.order.config import SamplerSettings
    from wids.core.order.layout import Layout, Regrouping, SourceSpan
    from wids.core.order.permutation import Indices
    from wids.core.order.state import EpochPosition

    Facts = dict[str, Any]


REWEIGHT_ADVICE = (
    "To go on with this mixture's sources and weights from the state's position on, "
    "load_state_dict(state, reweight=True)"
)


class ReadSamples:
    """Samples of a dataset.

    Args:
        end: the dataset has to have so many.
        is_whole: it must not have more.

    Attributes:
        is_own: they are of one rank alone, and not divided.
    """

    end: int
    is_own = False

    def __init__(self, end: int, *, is_whole: bool = False) -> None:
        self.end, self._is_whole = end, is_whole
        self._facts: Facts | None = None

    def plan(self, settings: SamplerSettings) -> tuple[Plan | MixturePlan, Regrouping | None]:
        """The plan of their order, and which sample is read at which position of it; see `EpochConfig`."""
        raise NotImplementedError

    def config(self, settings: SamplerSettings, *, origin: EpochPosition = START) -> EpochConfig:
        """All that a rank's indices depend on.

        Args:
            settings: of the sampler, with the size of `set_size`.
            origin: see `EpochConfig`.
        """
        plan, regrouping = self.plan(settings)
        world, rank = (1, 0) if self.is_own else (settings.num_replicas, settings.rank)
        return EpochConfig(
            plan=plan,
            regrouping=regrouping,
            lanes=settings.lanes,
            world=world,
            rank=rank,
            tail=settings.tail,
            epochs=settings.epochs,
            epoch_size=settings.epoch_size,
            length=settings.length,
            origin=origin,
            has_seeds=settings.sample_seeds,
        )

    def check_fits(self, dataset: Any) -> None:
        """See that the dataset has all samples that are to be read, and where all of it is to be read, no others.

        Raises:
            InputError: it has fewer, or more.
        """
        if hasattr(dataset, "__len__") and len(dataset) < self.end:
            raise InputError(
                f"the sampler was made for samples up to {self.end:,}, and the dataset has {len(dataset):,}; where a "
                "dataset has changed, make the sampler anew"
            )
        if self._is_whole and len(dataset) > self.end:
            raise InputError(
                f"the sampler was made for all {self.end:,} samples of its dataset, which has {len(dataset):,} now; "
                "make the sampler anew, or say num_samples to read a part"
            )

    def dataset_facts(self, dataset: Any) -> Facts:
        """Which dataset it is, as plain values for a state's order."""
        if self._facts is None:
            found = contents(dataset)
            self._facts = {"dataset": fingerprint(dataset), **({CONTENTS: found} if found else {})}
        return self._facts

    def state_facts(self) -> Facts:
        """What a state's order has besides, and a sampler that loads it takes over."""
        return {}

    def adopt(
        self, there: Facts, here: Facts, place: EpochPosition, settings: SamplerSettings, *, is_reweighted: bool
    ) -> Facts:
        """Check the order of a state against a sampler's own; the order that both have now.

        Args:
            there: the state's.
            here: the sampler's.
            place: the state's.
            settings: of the sampler, with the state's lanes.
            is_reweighted: of a mixture, the weights here hold from the state's place on.

        Raises:
            StateError: they differ.
        """
        del is_reweighted
        check_order(there, here)
        config = self.config(settings)
        size = config.nominal_size if config.is_stream else 0
        if not 0 <= place.epoch * size <= place.position:
            raise StateError(f"the state is at {place}, before that epoch of {size} samples; it is damaged")
        return here

    def set_size(self, settings: SamplerSettings) -> SamplerSettings:
        """Settings with the size of nominal epochs, where there always are such."""
        return settings

    def set_length(self, settings: SamplerSettings, length: int | None) -> SamplerSettings:
        """Settings with which a rank yields so many indices in an epoch; None: as many as there are."""
        return replace(settings, length=length)


class SampleRange(ReadSamples):
    """A range of a dataset, each sample once in a pass.

    Args:
        lo: the first one.
        hi: one past the last.
        layout: where the dataset's shards are; None: not known.
        is_whole: it is all of the dataset.
    """

    lo: int
    hi: int

    def __init__(self, lo: int, hi: int, layout: Layout | None = None, *, is_whole: bool = False) -> None:
        super().__init__(hi, is_whole=is_whole)
        self.lo, self.hi, self._layout = lo, hi, layout

    def _arrange(self, *, is_sorted: bool) -> tuple[Indices | None, Regrouping | None]:
        return (None, None) if self._layout is None else self._layout.arrange(self.lo, self.hi, is_sorted=is_sorted)

    def plan(self, settings: SamplerSettings) -> tuple[Plan, Regrouping | None]:
        """See `ReadSamples.plan`."""
        boundaries, regrouping = self._arrange(is_sorted=bool(settings.shuffle))
        return Plan(lo=self.lo, hi=self.hi, boundaries=boundaries, **settings.mixing), regrouping


class WeightedRange(SampleRange):
    """A range of which samples come more or less often than once in a pass; see `wids.core.order.weights`.

    Args:
        weights: of all samples of the dataset: (n,).
        size: of the dataset.
        span: the range; the others are those of a `SampleRange`.

    Raises:
        ValueError: weights that are not one number for each sample; none of the range is above 0.
    """

    def __init__(
        self, weights: Any, size: int, span: tuple[int, int], layout: Layout | None, *, is_whole: bool = False
    ) -> None:
        super().__init__(*span, layout, is_whole=is_whole)
        self._weights = parse_weights(weights, size)
        if not self._weights[self.lo : self.hi].any():
            raise ValueError(f"no weight of the range {self.lo} .. {self.hi} is above 0")
        self._copies: tuple[tuple[int, bool, int], Copies] | None = None  # by seed, order and size of a pass

    def plan(self, settings: SamplerSettings) -> tuple[Plan, Regrouping | None]:
        """See `ReadSamples.plan`."""
        boundaries, regrouping = self._arrange(is_sorted=bool(settings.shuffle))
        size = settings.epoch_size or self.hi - self.lo
        key = settings.seed, bool(settings.shuffle), size
        if self._copies is None or self._copies[0] != key:
            samples = np.arange(self.lo, self.hi)
            weights = self._weights[samples if regrouping is None else regrouping.take(samples)]
            copies = Copies(weights, count=size, first=self.lo, boundaries=boundaries, seed=settings.seed)
            self._copies = key, copies
        return Plan(hi=size, copies=self._copies[1], **settings.mixing), regrouping


class GivenChunks(ReadSamples):
    """Chunks that a caller gave to one rank: (nchunks, 2), half-open, in the caller's order."""

    is_own = True

    def __init__(self, chunks: Indices, *, is_whole: bool = False) -> None:
        super().__init__(int(chunks[:, 1].max(initial=0)), is_whole=is_whole)
        self._chunks = chunks

    def plan(self, settings: SamplerSettings) -> tuple[Plan, None]:
        """See `ReadSamples.plan`."""
        return Plan(chunks=self._chunks, **{**settings.mixing, "chunksize": 1, "lanes": 1, "reshuffle": "fixed"}), None


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


def choose_samples(
    dataset: Any,
    parts: Sequence[SourceSpan] | None,
    settings: SamplerSettings,
    *,
    num_samples: int | tuple[int, int] | None = None,
    weights: Any = None,
) -> ReadSamples:
    """What a sampler reads of a dataset.

    Args:
        dataset: whose shards are looked at.
        parts: its sources, if it is a mixture.
        settings: of the sampler.
        num_samples: else, which of the samples; see `wids.DistributedChunkedSampler`.
        weights: see there.

    Raises:
        ValueError: a range outside of the dataset; ``weights`` that are not one number for each sample; these, or a
            range, of a mixture; a ``source_batch``, and it is no mixture, or the lanes do not divide the global batch.
    """
    if parts is None:
        if settings.source_batch != 1:
            raise ValueError(f"source_batch is {settings.source_batch}, and {_describe(dataset)}")
        span, is_whole = parse_range(num_samples, n=len(dataset)), num_samples is None
        if weights is None:
            return SampleRange(*span, layout(dataset), is_whole=is_whole)
        weights = read_column(dataset, weights, of="weights") if isinstance(weights, str) else weights
        return WeightedRange(weights, len(dataset), span, layout(dataset), is_whole=is_whole)
    if num_samples is not None:
        raise ValueError(f"num_samples is {num_samples!r}; a part of a mixture is a mixture of parts (views)")
    if weights is not None:
        raise ValueError("weights are of the samples of one dataset; a mixture's sources have weights of their own")
    batch = global_batch(settings.source_batch, world=settings.num_replicas, lanes=settings.lanes)
    return MixtureWeights(parts, layout(dataset), batch=batch)


def _describe(dataset: Any) -> str:
    if isinstance(dataset, ShardCounts):
        return "the index has no sub-datasets with weights"
    return f"{a_kind(dataset)} is no mixture"


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

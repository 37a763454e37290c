"""Populations: the samples of a dataset that a sampler reads, each kind with the plan of its order.

A range (by weights or not), chunks of one rank, or the sources of a mixture. What a state says of them is in
`wids.core.order.identity`. Pure.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wids.core.order.amendment import ONLY, ChangedSource
from wids.core.order.epoch import Plan
from wids.core.order.layout import ShardCounts, layout, read_column
from wids.core.order.mixture import MixedSource, MixturePlan, WeightSegment, check_weights
from wids.core.order.rank_epochs import RankEpochs
from wids.core.order.state import START
from wids.core.order.validation import parse_range, shard_ends
from wids.core.order.weights import Copies, parse_weights
from wids.errors import InputError, a_kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from wids.core.order.amendment import Amendment
    from wids.core.order.layout import Layout, Regrouping, SourceSpan
    from wids.core.order.permutation import Indices
    from wids.core.order.settings import SamplerSettings
    from wids.core.order.state import EpochPosition


class Population:
    """Samples of a dataset that a sampler reads.

    Args:
        end: the length that the dataset must have at least.
        is_whole: it must have no other.

    Attributes:
        end: the argument.
        is_own: one rank reads all of it; it is not divided among the ranks.
        amended: the change of the data in the middle of an epoch, since which it is read; None: there was none.
    """

    end: int
    is_own = False
    amended: Amendment | None = None

    def __init__(self, end: int, *, is_whole: bool = False) -> None:
        self.end, self._is_whole = end, is_whole

    def plan(self, settings: SamplerSettings) -> tuple[Plan | MixturePlan, Regrouping | None]:
        """The plan of its order, and the sample at each position of the plan; see `RankEpochs`."""
        raise NotImplementedError

    def epochs(self, settings: SamplerSettings, *, origin: EpochPosition = START) -> RankEpochs:
        """Everything that a rank's indices depend on.

        Args:
            settings: of the sampler, with the size of `set_size`.
            origin: see `RankEpochs`.
        """
        plan, regrouping = self.plan(settings)
        world, rank = (1, 0) if self.is_own else (settings.num_replicas, settings.rank)
        return RankEpochs(
            plan=plan,
            regrouping=regrouping,
            lanes=settings.lanes,
            world=world,
            rank=rank,
            tail=settings.tail,
            passes=settings.epochs,
            epoch_size=settings.epoch_size,
            length=settings.length,
            origin=origin,
            amended=None if self.amended is None else self.amended.place,
            shift=0 if self.amended is None else self.amended.shift,
            has_seeds=settings.sample_seeds,
        )

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """Name of each source, `ONLY` where there is no mixture, -> its first sample, last + 1, in its plan."""
        return {}

    def changed(self, name: str = ONLY) -> ChangedSource:
        """The change of the data of a source."""
        return ChangedSource() if self.amended is None else self.amended.sources.get(name, ChangedSource())

    def check_fits(self, dataset: Any) -> None:
        """Raise unless the dataset still has the length that the population was made for (for a part: at least that).

        Raises:
            InputError: the dataset has fewer samples, or more.
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

    def set_size(self, settings: SamplerSettings) -> SamplerSettings:
        """Settings with the size of nominal epochs, for a population that always has nominal epochs."""
        return settings

    def set_length(self, settings: SamplerSettings, length: int | None) -> SamplerSettings:
        """Settings with which a rank yields ``length`` indices in an epoch; None: as many as there are."""
        return replace(settings, length=length)


class RangePopulation(Population):
    """A range of a dataset: each sample once in a pass, or by weights more or less often (`wids.core.order.weights`).

    Args:
        lo: the first one.
        hi: one past the last.
        layout: of the dataset; None: not known.
        weights: of all samples of the dataset: (nsamples,); None: each comes once.
        is_whole: it is all of the dataset.
        has_lengths: the caller says where shards end, not the dataset.

    Attributes:
        lo: the argument.
        hi: likewise.
        has_lengths: likewise.

    Raises:
        ValueError: no weight of the range is above 0.
    """

    lo: int
    hi: int
    has_lengths: bool

    def __init__(
        self,
        lo: int,
        hi: int,
        layout: Layout | None = None,
        *,
        weights: NDArray[np.float64] | None = None,
        is_whole: bool = False,
        has_lengths: bool = False,
    ) -> None:
        super().__init__(hi, is_whole=is_whole)
        self.has_lengths = has_lengths
        self.lo, self.hi, self._layout, self._weights = lo, hi, layout, weights
        if weights is not None and not weights[lo:hi].any():
            raise ValueError(f"no weight of the range {lo} .. {hi} is above 0")
        self._copies: tuple[tuple[int, bool, int], Copies] | None = None  # by seed, order and size of a pass

    @property
    def is_weighted(self) -> bool:
        """True if samples have weights."""
        return self._weights is not None

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """The range; see `Population.ranges`."""
        return {ONLY: (self.lo, self.hi)}

    def plan(self, settings: SamplerSettings) -> tuple[Plan, Regrouping | None]:
        """The order of the samples; see `Population.plan`."""
        lo, hi, is_sorted, boundaries, regrouping = self.lo, self.hi, bool(settings.shuffle), None, None
        if self._layout is not None:
            boundaries, regrouping = self._layout.arrange(lo, hi, is_sorted=is_sorted)
        if self._weights is None:
            rests = self.changed().rests
            return Plan(lo=lo, hi=hi, boundaries=boundaries, rests=rests, **settings.mixing), regrouping
        size = settings.epoch_size or hi - lo
        key = settings.seed, is_sorted, size
        if self._copies is None or self._copies[0] != key:
            samples = np.arange(lo, hi)
            weights = self._weights[samples if regrouping is None else regrouping.take(samples)]
            copies = Copies(weights, count=size, first=lo, boundaries=boundaries, seed=settings.seed)
            self._copies = key, copies
        return Plan(hi=size, copies=self._copies[1], **settings.mixing), regrouping


class ChunkPopulation(Population):
    """Chunks that a caller gave to one rank: (nchunks, 2), half-open, in the caller's order."""

    is_own = True

    def __init__(self, chunks: Indices, *, is_whole: bool = False) -> None:
        super().__init__(int(chunks[:, 1].max(initial=0)), is_whole=is_whole)
        self._chunks = chunks

    def plan(self, settings: SamplerSettings) -> tuple[Plan, None]:
        """The order of the samples; see `Population.plan`."""
        return Plan(chunks=self._chunks, **{**settings.mixing, "chunksize": 1, "lanes": 1, "reshuffle": "fixed"}), None


class MixturePopulation(Population):
    """The sources of a sampler's mixture, and their weights, which may change.

    Args:
        parts: the sources.
        layout: of all of them; None: not known.
        batch: see `MixturePlan`.

    Attributes:
        parts: the argument.
        batch: likewise.
        sizes: name of a source -> number of its samples.
        weights: of the sources, as the mixture has them.
        segments: the weights from each position on; they are shares of samples.
        means: name of a source -> tokens of its samples, on average, where weights are shares of tokens; None: they are
            shares of samples.
    """

    parts: Sequence[SourceSpan]
    batch: int | None
    sizes: dict[str, int]
    weights: dict[str, float]
    segments: tuple[WeightSegment, ...]
    means: Mapping[str, float] | None

    def __init__(self, parts: Sequence[SourceSpan], layout: Layout | None, *, batch: int | None = None) -> None:
        super().__init__(max((part.last for part in parts), default=0))
        self.parts, self._layout, self.batch = parts, layout, batch
        self.sizes = {part.name: part.last - part.first for part in parts}
        self.weights = check_weights({part.name: part.weight for part in parts}, self.sizes)
        self.means, self.segments = None, (WeightSegment(0, self.weights),)
        self._is_counted = False  # by a sampler of packs

    def count_tokens(self, means: Mapping[str, float] | None) -> None:
        """Let weights be shares of tokens, of so many in a sample of each source on average; None: of samples.

        Raises:
            InputError: another sampler of packs has this order, with other shares; or weights have been changed.
        """
        if means != self.means:
            if self._is_counted:
                raise InputError(
                    "the sampler is in another PackSampler, with other lengths or another share, whose order would "
                    "change; make a sampler of samples for each"
                )
            if len(self.segments) > 1:
                raise InputError("the weights were changed as shares of samples before; say share='tokens' first")
            self.means = means
            self.segments = (WeightSegment(0, self._in_samples(self.weights)),)
        self._is_counted = True

    def _in_samples(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Weights as shares of samples."""
        if self.means is None:
            return dict(weights)
        return {name: weight / self.means.get(name, 1.0) for name, weight in weights.items()}

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """The ranges of the sources; see `Population.ranges`."""
        return {name: (0, size) for name, size in self.sizes.items()}

    def plan(self, settings: SamplerSettings) -> tuple[MixturePlan, None]:
        """The order of the samples; see `Population.plan`."""
        mixing, sources = settings.mixing, []
        for part in self.parts:
            boundaries, regrouping = None, None
            if self._layout is not None:
                boundaries, regrouping = self._layout.arrange(part.first, part.last, is_sorted=mixing["is_shuffled"])
            differing = {
                "hi": part.last - part.first,
                "boundaries": None if boundaries is None else boundaries - part.first,
                "seed": _own_seed(settings.seed, part.name),
            }
            start, rests = self.changed(part.name)
            plan = Plan(**{**mixing, **differing, "rests": rests})
            sources.append(MixedSource(part.name, plan, part.first, regrouping, part.fingerprint, part.contents, start))
        plans = tuple(sources)
        return MixturePlan(sources=plans, segments=self.segments, lanes=settings.lanes, batch=self.batch), None

    def set_size(self, settings: SamplerSettings) -> SamplerSettings:
        """Size of passes over all sources, or a little more: whole batches; see `Population.set_size`."""
        if settings.epochs is None:
            return settings
        size, each = settings.epoch_size or self.end * settings.epochs, self.batch or 1
        takes = settings.epoch_size is None
        return replace(settings, epoch_size=-(-size // each) * each, epochs=1, takes_epoch_size=takes)

    def set_length(self, settings: SamplerSettings, length: int | None) -> SamplerSettings:
        """Set the length of epochs; the next epoch continues there. See `Population.set_length`.

        Raises:
            ValueError: that is not a whole number of batches of one source.
        """
        if not length:
            return super().set_length(settings, length)
        size, each = length * settings.num_replicas, self.batch or 1
        if size % each:
            raise ValueError(f"dslength_per_replica is {length}, and {size} samples are no whole batches of {each}")
        return replace(settings, epoch_size=size, epochs=1, takes_epoch_size=False)

    def forget(self, position: int, *, lanes: int) -> None:
        """Leave out what the segments say of positions before one, with which a turn begins; sources may be gone."""
        now = [segment for segment in self.segments if segment.position <= position][-1]
        later = tuple(segment for segment in self.segments if segment.position > position)
        turns = now.count((position - now.position) // (self.batch or lanes))
        first = () if position == 0 else (WeightSegment(0, self._in_samples(self.weights)),)
        self.segments = (*first, WeightSegment(position, now.weights, turns), *later)

    def change(self, weights: Mapping[str, float], *, position: int, lanes: int) -> int:
        """Set other weights from a position on, or from the next whole turn; those that are left out stay.

        Returns:
            The position from which on they hold; later changes are gone.

        Raises:
            ValueError: bad weights; see `check_weights`.
        """
        each = self.batch or lanes
        first = -(-position // each) * each
        kept = [segment for segment in self.segments if segment.position <= first]
        before = {name: weight for name, weight in kept[-1].weights.items() if name in self.sizes}
        changed = check_weights({**before, **self._in_samples(weights)}, self.sizes)
        if changed != kept[-1].weights:
            turns = kept[-1].count((first - kept[-1].position) // each)
            kept = [segment for segment in kept if segment.position < first]
            kept.append(WeightSegment(first, changed, turns))
        self.segments = tuple(kept)
        return first


def choose_population(
    dataset: Any,
    parts: Sequence[SourceSpan] | None,
    settings: SamplerSettings,
    *,
    num_samples: int | tuple[int, int] | None = None,
    weights: Any = None,
    lengths: Any = None,
) -> Population:
    """The population that a sampler reads of a dataset.

    Args:
        dataset: its shards are looked at.
        parts: its sources, if it is a mixture.
        settings: of the sampler.
        num_samples: else, which of the samples; see `wids.DistributedChunkedSampler`.
        weights: see there.
        lengths: see there.

    Raises:
        ValueError: a range outside of the dataset; ``weights`` that are not one number for each sample; ``lengths``
            that do not add up to all samples; these, or a range, of a mixture; a ``source_batch``, and it is no
            mixture, or the lanes do not divide the global batch.
    """
    if parts is None:
        if settings.source_batch != 1:
            raise ValueError(f"source_batch is {settings.source_batch}, and {_describe(dataset)}")
        span, is_whole = parse_range(num_samples, n=len(dataset)), num_samples is None
        if weights is not None:
            values = read_column(dataset, weights, of="weights") if isinstance(weights, str) else weights
            weights = parse_weights(values, len(dataset))
        placed = layout(dataset if lengths is None else _divide(len(dataset), lengths))
        has_lengths = lengths is not None
        return RangePopulation(*span, placed, weights=weights, is_whole=is_whole, has_lengths=has_lengths)
    if num_samples is not None:
        raise ValueError(f"num_samples is {num_samples!r}; a part of a mixture is a mixture of parts (views)")
    if lengths is not None:
        raise ValueError("lengths are of the parts of one dataset; a mixture's sources have shards of their own")
    if weights is not None:
        raise ValueError("weights are of the samples of one dataset; a mixture's sources have weights of their own")
    batch = global_batch(settings.source_batch, world=settings.num_replicas, lanes=settings.lanes)
    return MixturePopulation(parts, layout(dataset), batch=batch)


def _divide(count: int, lengths: Any) -> ShardCounts:
    """Consecutive parts of a dataset of ``count`` samples, as shards.

    Raises:
        ValueError: ``lengths`` are no counts, or those of more or fewer samples.
    """
    ends = shard_ends(lengths)
    if ends is None:
        raise ValueError(f"lengths is {lengths!r:.200}; it must be the number of samples in each part of the dataset")
    if (total := int(ends[-1]) if len(ends) else 0) != count:
        raise ValueError(f"lengths add up to {total:,} samples, and the dataset has {count:,}")
    return ShardCounts(np.diff(ends, prepend=0))


def _describe(dataset: Any) -> str:
    if isinstance(dataset, ShardCounts):
        return "the index has no sub-datasets with weights"
    return f"{a_kind(dataset)} is no mixture"


def global_batch(source_batch: int, *, world: int, lanes: int) -> int | None:
    """Number of samples in turn that all ranks read of one source, each ``source_batch``; None: 1, and no batches.

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


def sampler_epochs(
    counts: ShardCounts,
    parts: Sequence[SourceSpan] | None,
    settings: SamplerSettings,
    *,
    span: tuple[int, int] | None = None,
    weights: Any = None,
    means: Mapping[str, float] | None = None,
) -> RankEpochs:
    """Everything that the indices of a rank depend on, as in a sampler of a dataset of an index.

    Args:
        counts: the shards of the index.
        parts: its sources, if it is a mixture.
        settings: of the sampler.
        span: range of the samples, half-open; None: all.
        weights: expected copies of all n samples, (n,); None: one in a pass; see `wids.core.order.weights`.
        means: of a mixture, see `MixturePopulation.count_tokens`; None: weights are shares of samples.

    Raises:
        ValueError: see `choose_population`; a nominal epoch that has less than a sample for each rank.
    """
    population = choose_population(counts, parts, settings, num_samples=span, weights=weights)
    if means is not None and isinstance(population, MixturePopulation):
        population.count_tokens(means)
    epochs = population.epochs(population.set_size(settings))
    epochs.first_place(0)
    return epochs


def _own_seed(seed: int, name: str) -> int:
    """A source's seed: other than those of the sources beside it, and independent of them."""
    state = hashlib.blake2b(f"{seed} {name}".encode(errors="surrogatepass"), digest_size=8)
    return int.from_bytes(state.digest(), "little")

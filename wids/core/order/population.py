"""Which samples a sampler reads, each kind with the plan of its order: a range, one by weights, or chunks.

`wids.core.order.mixture.MixtureWeights` is the fourth kind. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wids.core.order.config import EpochConfig
from wids.core.order.epoch import Plan
from wids.core.order.layout import ShardCounts, contents, fingerprint, layout, read_column
from wids.core.order.state import CONTENTS, START, check_order
from wids.core.order.validation import parse_range
from wids.core.order.weights import Copies, parse_weights
from wids.errors import InputError, StateError, a_kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wids.core.order.config import SamplerSettings
    from wids.core.order.layout import Layout, Regrouping
    from wids.core.order.mixture import MixturePlan, SourceSpan
    from wids.core.order.permutation import Indices
    from wids.core.order.state import EpochPosition

    Facts = dict[str, Any]


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
    from wids.core.order.mixture import MixtureWeights, global_batch

    batch = global_batch(settings.source_batch, world=settings.num_replicas, lanes=settings.lanes)
    return MixtureWeights(parts, layout(dataset), batch=batch)


def _describe(dataset: Any) -> str:
    if isinstance(dataset, ShardCounts):
        return "the index has no sub-datasets with weights"
    return f"{a_kind(dataset)} is no mixture"

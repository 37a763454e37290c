"""`EpochConfig`: all that a rank's indices depend on, as one value; which indices, and how many.

The order of an epoch is the `Plan`'s: one sequence, which all ranks read together. A config adds the rank that reads
(``rank`` of ``world``) and where an epoch ends. An `EpochPosition` is where an epoch begins, or resumes::

    positions     0 ......... place.position . +1 . +2 ......... end of the new ones ... stop
    rank r of W                  reads place.position + r, + W, + 2 W, ...    | repeated: tail="pad", "mask"

The arguments of a sampler are a `SamplerSettings`, from which each iteration makes its config.

Pure. A config never changes: an iteration keeps the one it began with, also if the sampler's attributes change later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from wids.core.files.held import Held
from wids.core.files.lazy import Lazy
from wids.core.order.epoch import Plan, Stream, end_position, nominal_start
from wids.core.order.mask import seeds_of
from wids.core.order.state import START, EpochPosition
from wids.core.order.validation import check_flag, parse_int

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wids.core.order.epoch import EpochOrder, Reshuffle, Tail
    from wids.core.order.layout import Regrouping
    from wids.core.order.mixture import MixturePlan
    from wids.core.order.permutation import Indices


@dataclass(frozen=True, kw_only=True)
class SamplerSettings:
    """The arguments of a sampler except its dataset, by the names of `wids.DistributedChunkedSampler`'s parameters.

    Attributes:
        length: indices of each rank in an epoch, if it was assigned; see `EpochConfig`.
        takes_lanes: a loaded state sets the lanes; otherwise they must be equal. takes_epoch_size: the same.

    Raises:
        ValueError: a value that is not an integer, or too small, or none of those there are; settings that exclude each
            other.
    """

    seed: int
    shuffle: bool = True
    chunksize: int = 1
    window: int
    num_replicas: int = 1
    rank: int = 0
    tail: Tail = "pad"
    sample_seeds: bool = False
    reshuffle: Reshuffle = "fixed"
    lanes: int = 1
    epochs: int | None = 1
    epoch_size: int | None = None
    source_batch: int = 1
    length: int | None = None
    takes_lanes: bool = False
    takes_epoch_size: bool = False

    def __post_init__(self) -> None:
        for name in ("seed", "rank", *_COUNTS):
            value = getattr(self, name)
            if value is not None or name not in ("epochs", "epoch_size"):
                object.__setattr__(self, name, parse_int(name, value, minimum=1 if name in _COUNTS else None))
        for name in ("shuffle", "sample_seeds"):
            check_flag(name, getattr(self, name))
        if self.tail not in ("pad", "drop", "mask"):
            raise ValueError(f"tail is {self.tail!r}; it must be 'pad', 'drop' or 'mask'")
        if self.reshuffle not in ("fixed", "epoch"):
            raise ValueError(f"reshuffle is {self.reshuffle!r}; it must be 'fixed' or 'epoch'")
        if self.epoch_size is not None and self.epochs != 1:
            raise ValueError(
                f"epochs is {self.epochs} and epoch_size {self.epoch_size}; only one of them can set the end of an "
                "iteration"
            )

    @property
    def mixing(self) -> dict[str, Any]:
        """What a `Plan` takes of them, for any samples."""
        return {
            "window": self.window,
            "is_shuffled": bool(self.shuffle),
            "seed": self.seed,
            "chunksize": self.chunksize,
            "lanes": self.lanes,
            "reshuffle": self.reshuffle,
        }


# Those that are integers above 0, or None.
_COUNTS = ("chunksize", "window", "num_replicas", "lanes", "epochs", "epoch_size", "source_batch")


class Setting(Held):
    """A sampler's attribute that is one of its `SamplerSettings`; to assign it replaces these, for later iterations."""

    def __init__(self) -> None:
        super().__init__(self._read, self._replace)

    def _read(self, sampler: Any) -> Any:
        return getattr(sampler._settings, self._name)  # noqa: SLF001 - its other half

    def _replace(self, sampler: Any, value: Any) -> None:
        sampler._settings = replace(sampler._settings, **{self._name: value})  # noqa: SLF001 - likewise


class EpochConfig(msgspec.Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """What the epochs of one rank depend on.

    Attributes:
        plan: the order of all samples; that of a mixture has no end, so an ``epoch_size`` or none of ``epochs``.
        regrouping: which sample is read at which position of the plan's; None: the positions are the samples.
        lanes: as a state says them; the plan of chunks that a rank was given has one, and ignores this.
        world, rank: how many ranks read the order, and which of them this is.
        tail: what becomes of an epoch that the ranks do not divide.
        epochs: passes in an epoch, without a tail between them; None: it has no end.
        epoch_size: instead, samples of all ranks in a nominal epoch.
        length: instead, indices of each rank in an epoch; those of a pass are repeated, or left out.
        origin: the place of the state that was loaded last; nominal epochs after it do not begin before it.
        has_seeds: samples get seeds; no position's meaning depends on it.
    """

    plan: Plan | MixturePlan
    regrouping: Regrouping | None = None
    lanes: int = 1
    world: int = 1
    rank: int = 0
    tail: Tail = "pad"
    epochs: int | None = 1
    epoch_size: int | None = None
    length: int | None = None
    origin: EpochPosition = START
    has_seeds: bool = False

    @property
    def is_stream(self) -> bool:
        """Whether passes follow each other without a tail."""
        return self.epochs != 1 or self.epoch_size is not None

    @property
    def nominal_size(self) -> int:
        """Samples of all ranks in a nominal epoch, before its end is rounded up; without one, in a pass."""
        return self.epoch_size or len(self.plan) * (self.epochs or 1)

    def mixed_ranges(self, place: EpochPosition) -> list[tuple[int, int, int]]:
        """(first index, last index + 1, chunks) of each range of which a rank mixes chunks from a place on.

        Of so many chunks, of one shard each, it mixes samples at a time.
        """
        factor = -(-self.lanes // self.world)
        return [(lo, hi, chunks * factor) for lo, hi, chunks in self.plan.mixed_ranges(place.position)]

    def first_place(self, epoch: int) -> EpochPosition:
        """Where an epoch begins.

        Raises:
            ValueError: no such nominal epoch exists, or it has less than one sample for each rank.
        """
        if not self.is_stream or not len(self.plan):
            return EpochPosition(epoch, 0)
        if epoch < 0:
            raise ValueError(f"epoch is {epoch}, and passes that follow each other (epochs, epoch_size) begin with 0")
        size = self.nominal_size
        if size < self.world and self.epochs is not None:
            raise ValueError(f"an epoch of {size} samples on {self.world} ranks has less than one for each")
        start = nominal_start(epoch, size=size, origin=self.origin.position, world=self.world)
        return EpochPosition(epoch, max(start, self.origin.position) if epoch > self.origin.epoch else start)

    def span(self, place: EpochPosition) -> tuple[int, int | None]:
        """From which position to which the ranks read together, from a place to its epoch's end; None: no end.

        Raises:
            ValueError: passes are to follow each other, and there is no sample.
        """
        start = place.position
        if self.length is not None:
            return start, start + max(self.length - place.yielded, 0) * self.world
        if not self.is_stream:
            return start, end_position(len(self.plan), start=start, world=self.world, tail=self.tail)
        if not len(self.plan):
            raise ValueError("an epoch_size, or more than one of epochs, is asked for; there is no sample to repeat")
        return start, None if self.epochs is None else max(self.first_place(place.epoch + 1).position, start)

    def go_on(self, place: EpochPosition) -> EpochPosition:
        """Where the next iteration begins after one that was left at a place, if epochs have no end."""
        return EpochPosition(place.position // max(len(self.plan), 1), place.position)

    def is_over(self, place: EpochPosition) -> bool:
        """Whether nothing is left of a place's epoch."""
        start, stop = self.span(place)
        return start == stop

    def is_in_the_middle(self, place: EpochPosition) -> bool:
        """Whether something of a place's epoch lies before it, and something is left."""
        return place.position > self.first_place(place.epoch).position and not self.is_over(place)

    def count(self, place: EpochPosition) -> int:
        """Indices of each rank in a place's epoch, with what they had before the place.

        Trainers that count batches compare them with the whole epoch's.

        Raises:
            TypeError: the epoch has no end.
        """
        start, stop = self.span(place)
        if stop is None:
            raise TypeError("the sampler is endless (epochs=None); it has no length")
        return place.yielded + (stop - start) // self.world

    def count_new(self, place: EpochPosition) -> int | None:
        """How many of the rank's indices from a place on are not repeated; they come first. None: all, without end."""
        start, stop = self.span(place)
        if stop is None:
            return None
        # Nothing of a stream is repeated to fill up.
        return len(range(start + self.rank, stop if self.is_stream else min(stop, len(self.plan)), self.world))

    def count_valid(self, place: EpochPosition) -> int:
        """As `count`, without those that are repeated."""
        new = self.count_new(place)
        return self.count(place) if new is None else place.yielded + new

    def seeded(self, place: EpochPosition) -> Iterator[tuple[Indices, Indices | None]]:
        """The rank's indices from a place to its epoch's end, (n,) at a time, and their seeds; see `read`."""
        start, stop = self.span(place)
        return self.read(place.epoch, start + self.rank, stop, self.world, has_seeds=self.has_seeds)

    def read(
        self, epoch: int, start: int, stop: int | None, step: int = 1, *, has_seeds: bool, piece: int = 0
    ) -> Iterator[tuple[Indices, Indices | None]]:
        """The indices at positions ``start:stop:step``, (n,) at a time, and their seeds, (n,), or None.

        Of an order that has chunks of its own, at least ``piece`` come at a time, where there are as many.

        For seeds see `wids.core.order.mask.seeds_of`. The pass of a sample is its epoch; where passes follow each
        other, the number of the pass from the first one on, in a mixture that of the sample's source. What an epoch
        repeats has the seeds of the first time.
        """
        plan, is_stream = self.plan, self.is_stream or stop is None
        if not isinstance(plan, Plan):
            return plan.read(start, stop, step, has_seeds=has_seeds)
        if is_stream:
            passes: Iterable[tuple[EpochOrder, int, int]] = Stream(plan).passes(start, stop, step)
        else:
            passes = [(plan.order(epoch), start, stop)]  # type: ignore[list-item]  # which has an end here
        return self._read(passes, step, has_seeds=has_seeds, piece=piece)

    def _read(
        self, passes: Iterable[tuple[EpochOrder, int, int]], step: int, *, has_seeds: bool, piece: int
    ) -> Iterator[tuple[Indices, Indices | None]]:
        for order, start, stop in passes:
            for places in order.places(start, stop, step, piece=piece):
                samples, seeds = order.samples(places), None
                copy = order.copies(places, samples) if has_seeds else 0
                if self.regrouping is not None:
                    samples = self.regrouping.take(samples)
                if has_seeds:
                    seeds = seeds_of(samples, seed=order.plan.seed, number=order.epoch, copy=copy)
                yield samples, seeds

    def ranges(self) -> Indices:
        """The rank's chunks in the order of the range: (nchunks, 2), half-open.

        Raises:
            ValueError: it has none of its own: lanes are shared out among ranks, or chunks anew in each epoch; or it
                reads a mixture.
        """
        plan = self._one_plan
        if plan.copies is not None:
            raise ValueError("with weights, other samples are drawn in each pass, and no chunks are a rank's own")
        if plan.lanes % self.world or (plan.is_dealt and self.world > 1):
            raise ValueError(
                f"no chunks are this rank's own: {self.world} ranks read {plan.lanes} lanes, reshuffle is "
                f"{plan.reshuffle!r}"
            )
        return np.concatenate([plan.lane_chunks(lane) for lane in range(self.rank, plan.lanes, self.world)])

    @property
    def _one_plan(self) -> Plan:
        if not isinstance(self.plan, Plan):
            raise ValueError("a mixture has no chunks of its own: its sources have")  # noqa: TRY004 - an argument's
        return self.plan

    @Lazy
    def facts(self) -> dict[str, Any]:
        """What a position's meaning depends on, besides the dataset and the lanes, as plain values for a state."""
        return {**self.plan.facts, "epochs": self.epochs, "epoch_size": self.epoch_size}

"""`RankEpochs`: all that a rank's indices depend on, as one value; the indices, and their number.

The order of an epoch is the `Plan`'s: one sequence, which all ranks read together. `RankEpochs` add the rank that reads
(``rank`` of ``world``) and where an epoch ends. An `EpochPosition` is where an epoch begins, or resumes::

    positions     0 ......... place.position . +1 . +2 ......... end of the new ones ... stop
    rank r of W                  reads place.position + r, + W, + 2 W, ...    | repeated: tail="pad", "mask"

Pure. They never change: an iteration keeps those it began with, also if the sampler's attributes change later.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from wids.core.files.lazy import Lazy
from wids.core.order.cursor import Run
from wids.core.order.epoch import PassSpan, Plan, RestOrder, Stream, end_position, nominal_start
from wids.core.order.mask import SampleBlock, mark, seeds_of
from wids.core.order.state import START, EpochPosition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wids.core.order.epoch import EpochOrder, MixedRange, Tail
    from wids.core.order.layout import Regrouping
    from wids.core.order.mixture import MixturePlan
    from wids.core.order.permutation import Indices


class RankEpochs(msgspec.Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """The order of the samples of one rank, epoch by epoch.

    Attributes:
        plan: the order of all samples; that of a mixture has no end, so an ``epoch_size`` or no ``passes``.
        regrouping: the sample that is read at each position of the plan's; None: the positions are the samples.
        lanes: as a state says them; the plan of chunks that a rank was given has one, and ignores this.
        world: number of ranks that read the order.
        rank: the number of this one.
        tail: the treatment of an epoch that the ranks do not divide.
        passes: in an epoch, without a tail between them; None: it has no end.
        epoch_size: instead, samples of all ranks in a nominal epoch.
        length: instead, indices of each rank in an epoch; those of a pass are repeated, or left out.
        origin: the place of the state that was loaded last; nominal epochs after it do not begin before it.
        amended: the place from which an epoch is over changed data, and at which it begins therefore
            (`wids.core.order.amendment`); None: no epoch.
        shift: positions by which the data's changes have moved nominal epochs.
        has_seeds: samples get seeds; no position's meaning depends on it.
    """

    plan: Plan | MixturePlan
    regrouping: Regrouping | None = None
    lanes: int = 1
    world: int = 1
    rank: int = 0
    tail: Tail = "pad"
    passes: int | None = 1
    epoch_size: int | None = None
    length: int | None = None
    origin: EpochPosition = START
    amended: EpochPosition | None = None
    shift: int = 0
    has_seeds: bool = False

    @property
    def is_stream(self) -> bool:
        """True if passes follow each other without a tail."""
        return self.passes != 1 or self.epoch_size is not None

    @property
    def nominal_size(self) -> int:
        """Samples of all ranks in a nominal epoch, before its end is rounded up; without one, in a pass."""
        return self.epoch_size or len(self.plan) * (self.passes or 1)

    def mixed_ranges(self, place: EpochPosition, *, block: int = 0) -> list[MixedRange]:
        """The ranges of which a rank mixes chunks from a place on; in blocks of so many rows, if there are any."""
        lanes = -(-self.lanes // self.world)
        return [each._replace(lanes=lanes) for each in self.plan.mixed_ranges(place.position, block=block)]

    def first_place(self, epoch: int) -> EpochPosition:
        """The beginning of an epoch.

        Raises:
            ValueError: no such nominal epoch exists, or it has less than one sample for each rank.
        """
        if self.amended is not None and epoch == self.amended.epoch:
            return self.amended
        if not self.is_stream or not len(self.plan):
            return EpochPosition(epoch, 0)
        if epoch < 0:
            raise ValueError(f"epoch is {epoch}, and passes that follow each other (epochs, epoch_size) begin with 0")
        size = self.nominal_size
        if size < self.world and self.passes is not None:
            raise ValueError(f"an epoch of {size} samples on {self.world} ranks has less than one for each")
        origin, shift = self.origin.position, self.shift
        start = shift + nominal_start(epoch, size=size, origin=origin - shift, world=self.world)
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
        return start, None if self.passes is None else max(self.first_place(place.epoch + 1).position, start)

    def epoch_span(self, epoch: int) -> PassSpan:
        """The order of an epoch that is one pass, not of a mixture, or of what is left of it."""
        assert isinstance(self.plan, Plan)  # noqa: S101 - for the type checker
        for rest in self.plan.rests:
            if rest.number == epoch:
                return PassSpan(RestOrder(self.plan, rest), rest.first, rest.end)
        return PassSpan(self.plan.order(epoch), 0, len(self.plan))

    def go_on(self, place: EpochPosition) -> EpochPosition:
        """The beginning of the next iteration after one that was left at a place, if epochs have no end."""
        return place._replace(epoch=place.position // max(len(self.plan), 1), yielded=0)

    def end(self, place: EpochPosition) -> int | None:
        """The position where a place's epoch ends; None: it has no end."""
        return self.span(place)[1]

    def decided(self, place: EpochPosition) -> int:
        """The position up to which the order is decided at a place: its own."""
        return place.position

    def is_over(self, place: EpochPosition) -> bool:
        """True if nothing is left of a place's epoch."""
        return self.end(place) == place.position

    def is_in_the_middle(self, place: EpochPosition) -> bool:
        """True if something of a place's epoch lies before it, and something is left."""
        first = self.first_place(place.epoch)
        return (place.position > first.position or first is self.amended) and not self.is_over(place)

    def count(self, place: EpochPosition) -> int:
        """Length of the epoch for each rank, including what it had drawn before ``place``.

        Trainers that count batches compare them with those of the whole epoch.

        Raises:
            TypeError: the epoch has no end.
        """
        start, stop = self.span(place)
        if stop is None:
            raise TypeError("the sampler is endless (epochs=None); it has no length")
        return place.yielded + (stop - start) // self.world

    def count_new(self, place: EpochPosition) -> int | None:
        """Number of the rank's indices from a place on that do not repeat; they come first. None: all, without end."""
        start, stop = self.span(place)
        if stop is None:
            return None
        # Nothing of a stream is repeated to fill up.
        return len(range(start + self.rank, stop if self.is_stream else min(stop, len(self.plan)), self.world))

    def count_valid(self, place: EpochPosition) -> int:
        """`count` without those that are repeated."""
        new = self.count_new(place)
        return self.count(place) if new is None else place.yielded + new

    def begin(self, place: EpochPosition) -> SampleRun:
        """An iteration from a place to the end of its epoch."""
        return SampleRun(self, place)

    def read(
        self, epoch: int, start: int, stop: int | None, step: int = 1, *, has_seeds: bool = False, piece: int = 0
    ) -> Iterator[SampleBlock]:
        """The indices at positions ``start:stop:step`` in blocks of n, (n,), and their seeds, (n,), or None.

        Of an order that has chunks of its own, at least ``piece`` come at a time, where there are as many.

        For seeds see `wids.core.order.mask.seeds_of`. The pass of a sample is its epoch; where passes follow each
        other, the number of the pass from the first one on, in a mixture that of the sample's source. What an epoch
        repeats has the seeds of the first time.
        """
        plan = self.plan
        if not isinstance(plan, Plan):
            return plan.order().read(start, stop, step, has_seeds=has_seeds)
        passes: Iterable[tuple[EpochOrder, int, int]]
        if self.is_stream or stop is None:
            passes = Stream(plan).passes(start, stop, step)
        else:
            order, first, _ = self.epoch_span(epoch)
            passes = [(order, start - first, stop - first)]
        return self._read(passes, step, has_seeds=has_seeds, piece=piece)

    def _read(
        self, passes: Iterable[tuple[EpochOrder, int, int]], step: int, *, has_seeds: bool, piece: int
    ) -> Iterator[SampleBlock]:
        for order, start, stop in passes:
            for places in order.places(start, stop, step, piece=piece):
                samples, seeds = order.samples(places), None
                copy = order.copies(places, samples) if has_seeds else 0
                if self.regrouping is not None:
                    samples = self.regrouping.take(samples)
                if has_seeds:
                    seeds = seeds_of(samples, seed=order.plan.seed, number=order.epoch, copy=copy)
                yield SampleBlock(samples, seeds)

    def ranges(self) -> Indices:
        """The rank's chunks in the order of the range: (nchunks, 2), half-open.

        Raises:
            ValueError: it has none of its own: lanes are shared out among ranks, or chunks anew in each epoch; or it
                reads a mixture.
        """
        plan = self.plan
        if not isinstance(plan, Plan):
            raise ValueError("a mixture has no chunks of its own: its sources have")  # noqa: TRY004 - an argument's
        if plan.copies is not None:
            raise ValueError("with weights, other samples are drawn in each pass, and no chunks are a rank's own")
        if plan.lanes % self.world or (plan.is_dealt and self.world > 1):
            raise ValueError(
                f"no chunks are this rank's own: {self.world} ranks read {plan.lanes} lanes, reshuffle is "
                f"{plan.reshuffle!r}"
            )
        return np.concatenate([plan.lane_chunks(lane) for lane in range(self.rank, plan.lanes, self.world)])

    @Lazy
    def identity(self) -> dict[str, Any]:
        """All that a position's meaning depends on, besides the dataset and the lanes, as plain values for a state."""
        return {**self.plan.identity, "epochs": self.passes, "epoch_size": self.epoch_size}


class SampleRun(Run[RankEpochs]):
    """The progress of one iteration over samples."""

    def blocks(self) -> Iterator[SampleBlock]:
        """The indices from the place to its epoch's end, and their seeds, in blocks; see `RankEpochs.read`."""
        epochs, (start, stop) = self.epochs, self.epochs.span(self.place)
        return epochs.read(self.place.epoch, start + epochs.rank, stop, epochs.world, has_seeds=epochs.has_seeds)

    def pieces(self, blocks: Iterable[SampleBlock]) -> Iterator[Iterator[int]]:
        """The indices of ``blocks``, counted as they are drawn, with their seeds and what the tail marks."""
        is_masked = self.epochs.tail == "mask"
        new = self.epochs.count_new(self.place) if is_masked else None
        for block, words in blocks:
            before, indices = self._at[0], block.tolist()
            left, seeds = iter(indices), None if words is None else iter(words.tolist())
            self._at = before + len(indices), left, 0, []
            if is_masked:
                valid = islice(left, None if new is None else max(new - before, 0))
                yield mark(valid, seeds=seeds, is_valid=True)
                yield mark(left, seeds=seeds, is_valid=False)
            else:
                yield mark(left, seeds=seeds)

    def place_after(self, count: int) -> EpochPosition:
        """The place after every rank has had ``count`` indices of the run."""
        epoch, position, yielded, _ = self.place
        return EpochPosition(epoch, position + count * self.epochs.world, yielded + count)

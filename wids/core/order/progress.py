"""The progress of a sampler in its epochs: the cursor, and what samplers of samples and of batches do with it.

A `Progress` knows what is read (the epochs of an iteration that begins now) and how far (the cursor), and says both as
a state. `SampleProgress` reads the samples of a population; `wids.core.order.batch_progress` reads them in batches.
Samplers hand their progress out by a method ``__wids__()``, to loaders and to samplers of batches.
"""

from __future__ import annotations

import contextlib
import copy
import sys
import warnings
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

import numpy as np

from wids.core.order import cursor
from wids.core.order.amendment import (
    ONLY,
    Amendment,
    ChangedSource,
    check_rests,
    describe,
    parse,
    read_samples,
    rests_of,
)
from wids.core.order.cursor import EpochsT, Loaded, NotStarted, Running
from wids.core.order.identity import adopt_order, identify, weights_of
from wids.core.order.index_set import IndexSet
from wids.core.order.layout import mixed_parts
from wids.core.order.population import MixturePopulation, RangePopulation, choose_population
from wids.core.order.rank_epochs import RankEpochs
from wids.core.order.state import MAX_POSITION, START, build_state, check_order, naming_writer, parse_state, read_int
from wids.core.order.validation import parse_int
from wids.errors import StateError, a_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from wids.core.order.amendment import Earlier, Read
    from wids.core.order.cursor import Cursor, Run
    from wids.core.order.layout import SourceSpan
    from wids.core.order.population import Population
    from wids.core.order.settings import SamplerSettings
    from wids.core.order.state import EpochPosition

# Settings of a sampler that its order says.
_SETTINGS = ("seed", "shuffle", "chunksize", "window", "reshuffle", "epochs", "epoch_size")
# Calls from a loader of torchdata to here: of samplers around a sampler, of subclasses.
_DEPTH = 8


class Progress(ABC, Generic[EpochsT]):
    """The progress of a sampler in its epochs."""

    def __init__(self) -> None:
        self._cursor: Cursor = NotStarted()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cursor": cursor.without_run(self.cursor)}

    @property
    def cursor(self) -> Cursor:
        """One of the values of `wids.core.order.cursor`."""
        return self._cursor

    @cursor.setter
    def cursor(self, value: Cursor) -> None:
        self._cursor = value

    # --- what is read

    @property
    @abstractmethod
    def samples(self) -> SampleProgress:
        """The progress of the sampler of the samples: this one, or the one underneath."""

    @abstractmethod
    def epochs(self) -> EpochsT:
        """The epochs of an iteration that begins now."""

    @abstractmethod
    def identity(self, epochs: EpochsT) -> dict[str, Any]:
        """Everything that must be equal for a place to mean the same; the lanes come on top."""

    @abstractmethod
    def state_at(self, epochs: EpochsT, place: EpochPosition) -> dict[str, Any]:
        """The state of a place."""

    @abstractmethod
    def adopt(self, state: Any, *, is_reweighted: bool = False, earlier: Earlier | None = None) -> Loaded:
        """Check a state against the sampler, and take over its lanes, and the weights of a mixture.

        Raises:
            StateError: it does not fit, or is damaged.
        """

    # --- how far

    def run(self, *, is_counted: bool = False) -> Run[EpochsT] | None:
        """The run that the state is of; None: it is that of `next_place`. See `cursor.current_run`."""
        return cursor.current_run(self.cursor, is_counted=is_counted)

    def next_place(self, epochs: EpochsT | None = None) -> EpochPosition:
        """The beginning of the next iteration."""
        return cursor.next_place(self.cursor, self.epochs() if epochs is None else epochs)

    def place(self, epochs: EpochsT) -> EpochPosition:
        """The beginning of the iteration of the present epoch."""
        run = self.run()
        return self.next_place(epochs) if run is None else run.place

    def count(self) -> int:
        """Length of the present epoch, as of `cursor.Epochs.count`."""
        epochs = self.epochs()
        return epochs.count(self.place(epochs))

    def state(self, consumed: int | None = None, yielded: int | None = None) -> dict[str, Any]:
        """The state; see `state_dict` of samplers, which call this within one more function."""
        now = self.cursor
        run = cursor.current_run(now, is_counted=bool(consumed or yielded))
        is_over = run is not None and not isinstance(now, Running)
        is_said = consumed is not None or yielded is not None or _is_asked_by_torchdata()
        if run is not None and not is_said and run.is_ahead is not None and run.is_ahead():
            warnings.warn(
                "state_dict() counts each sample that was drawn, also those of batches that workers of a DataLoader "
                "have drawn ahead, which a resumed loop would not get; take the state of wids.resumable(loader), which "
                "counts what its loop receives, or write state_dict(consumed=samples that the loop has received in "
                "this iteration)",
                stacklevel=4,  # above the method of the sampler, and what checks its arguments
            )
        if run is None:  # the next iteration
            epochs = self.epochs()
            run = epochs.begin(cursor.next_place(now, epochs))
        return self.state_at(run.epochs, run.place_after(run.count_received(consumed, yielded, is_over=is_over)))

    # --- what happens

    def reweight(self, weights: Mapping[str, float], at: int | None) -> int:
        """Change the weights of a mixture; see `wids.DistributedChunkedSampler.reweight`."""
        epochs, now = self.epochs(), self.cursor
        if isinstance(now, Running):
            end = now.run.epochs.end(now.run.place)
            why = "; load the sampler's own state_dict to change the weights within an epoch that has begun"
            return self.samples.change_weights(weights, at, end, end, why)
        place = cursor.next_place(now, epochs)
        earliest = epochs.decided(place)
        usual = (epochs.end(place) if epochs.is_in_the_middle(place) else None) or earliest
        why = ": samples of a block that has begun are in its batches" if place.offset else ""
        return self.samples.change_weights(weights, at, earliest, usual, why)

    def choose(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
        self.cursor = cursor.choose(self.cursor, epoch)

    def load(self, state: Any, *, is_reweighted: bool = False, earlier: Earlier | None = None) -> None:
        """Let the next iteration begin at a state; ``earlier``: the data that it may have been saved over.

        Raises:
            StateError: see `adopt`.
        """
        with naming_writer(state):
            loaded = self._adopt_either(state, earlier, is_reweighted=is_reweighted)
        self.cursor = cursor.load(self.cursor, loaded)

    def _adopt_either(self, state: Any, earlier: Earlier | None, *, is_reweighted: bool) -> Loaded:
        """Adopt a state of the data of now, which it may be already, or of the earlier ones.

        Raises:
            StateError: it is of neither.
        """
        if earlier is None:
            return self.adopt(state, is_reweighted=is_reweighted)
        if earlier.is_same:
            is_mixture = isinstance(self.samples.population, MixturePopulation)
            return self.adopt(state, is_reweighted=is_reweighted or is_mixture)
        try:
            with self.samples.kept_on_error():
                return self.adopt(state, is_reweighted=is_reweighted)
        except StateError:
            return self.adopt(state, earlier=earlier)

    def begin(self, loaded: Loaded | None = None) -> Run[EpochsT]:
        """A run where the next iteration begins, or at a place that was loaded for it alone.

        Raises:
            StateError: a state was loaded, and settings have been assigned since that mean another order.
            ValueError: passes are to follow each other, and there is no sample.
        """
        now, epochs = self.cursor, self.epochs()
        state = now if loaded is None and isinstance(now, Loaded) else loaded
        if state is not None:  # attributes may have been assigned since then
            check_order(state.order, {**self.identity(epochs), "lanes": epochs.lanes})
        place = cursor.next_place(now, epochs) if loaded is None else loaded.place
        epochs.end(place)  # which may raise
        return epochs.begin(place)


class EarlierReading(NamedTuple):
    """The samples of the earlier data that the state of a sampler has read.

    Attributes:
        then: the progress of the sampler over them.
        place: of the state.
        read: by source; see `wids.core.order.amendment.read_samples`.
        is_over: nothing is left of the state's epoch.
        in_block: samples of the place's block that all ranks together have read.
        begun: documents of which pieces were read, and which count as not read.
    """

    then: SampleProgress
    place: EpochPosition
    read: Mapping[str, Read]
    is_over: bool
    in_block: int = 0
    begun: int = 0


def read_earlier(then: SampleProgress, state: Any) -> EarlierReading:
    """The reading of a state of samples.

    Raises:
        StateError: it is not of these data.
    """
    place = adopt_earlier(then, state)
    epochs = then.epochs()
    return EarlierReading(then, place, read_samples(epochs, place), epochs.is_over(place))


def adopt_earlier(then: Progress[Any], state: Any) -> EpochPosition:
    """The place of a state, which is loaded into a progress over the earlier data.

    Raises:
        StateError: it is not of these data.
    """
    try:
        return then.adopt(state).place
    except StateError as error:
        raise StateError(f"old= has to be the data that the state was saved over, and is not: {error}") from error


def carry_sources(
    now: Sequence[SourceSpan], then: Sequence[SourceSpan], read: Mapping[str, Read], earlier: Earlier
) -> dict[str, Read]:
    """The samples that were read of each source of now, as indices of that source; of a new one, none of its pass 0."""
    spans = {part.name: (part.first, part.last) for part in then}
    carried: dict[str, Read] = {}
    for part in now:
        here = part.first, part.last
        passes = read.get(part.name, {0: IndexSet.of(np.zeros(0, np.int64))})
        there = spans.get(part.name, (0, 0))
        carried[part.name] = {
            number: earlier.carry(there, here, seen).moved(-part.first) for number, seen in passes.items()
        }
    return carried


def _is_asked_by_torchdata() -> bool:
    """True if a loader of torchdata wants the state: it asks when it draws, and knows what it has handed on."""
    frame: Any = sys._getframe(2)  # noqa: SLF001 - documented; inspect makes objects of the frames before it, too
    for _ in range(_DEPTH):
        if frame is None:
            break
        if str(frame.f_globals.get("__name__")).startswith("torchdata."):
            return True
        frame = frame.f_back
    return False


class SampleProgress(Progress[RankEpochs]):
    """The progress of a sampler of samples in its epochs.

    Args:
        dataset: the dataset to read.
        population: its samples that are read.
        settings: of the sampler.

    Attributes:
        dataset: the argument; may be assigned, for iterations that begin later.
        population: likewise.
        settings: likewise.
        check: raises unless the settings are still right, for a population that is divided among ranks.
    """

    dataset: Any
    population: Population
    settings: SamplerSettings
    check: Callable[[SamplerSettings], None] | None

    def __init__(self, dataset: Any, population: Population, settings: SamplerSettings) -> None:
        super().__init__()
        self.dataset, self.population, self.settings = dataset, population, settings
        # The last identity, with the dataset and population that it is of: it takes long to make for many shards.
        self._identified: tuple[Any, Population, dict[str, Any]] | None = None
        self.check, self._origin = None, START

    @property
    def samples(self) -> SampleProgress:
        """This one."""
        return self

    def epochs(self) -> RankEpochs:
        """The epochs of an iteration that begins now.

        Raises:
            InputError: the dataset has not the length any more that it had.
        """
        if self.check is not None and not self.population.is_own:
            self.check(self.settings)
        self.population.check_fits(self.dataset)
        return self.population.epochs(self.settings, origin=self._origin)

    def set_length(self, length: int | None) -> None:
        """Let a rank yield ``length`` indices in an epoch; None: as many as there are."""
        self.settings = self.population.set_length(self.settings, length)

    def identity(self, epochs: RankEpochs) -> dict[str, Any]:
        """Everything that must be equal for a position to mean the same sample; the lanes come on top."""
        known, dataset, population = self._identified, self.dataset, self.population
        if known is None or known[0] is not dataset or known[1] is not population:
            self._identified = known = dataset, population, identify(population, dataset)
        return {**known[2], **epochs.identity}

    def state_at(self, epochs: RankEpochs, place: EpochPosition) -> dict[str, Any]:
        """The state of a place."""
        order = {**self.identity(epochs), **weights_of(self.population), **describe(epochs, place)}
        return build_state(place, lanes=epochs.lanes, order=order)

    def adopt(self, state: Any, *, is_reweighted: bool = False, earlier: Earlier | None = None) -> Loaded:
        """Read a state; see `Progress.adopt`."""
        if earlier is not None and not earlier.is_same:
            return self.amend(read_earlier(self.earlier(state, earlier), state), earlier)
        place, lanes, there = parse_state(state)
        amended = parse(there.pop("amended", None), self.population.ranges)
        shift = 0 if amended is None else amended.shift
        here, settings = self.identity(self.epochs()), self.settings
        if not settings.takes_lanes:
            there, here = {**there, "lanes": lanes}, {**here, "lanes": settings.lanes}
        settings = replace(settings, lanes=lanes)
        if amended is not None:
            is_stream = isinstance(self.population, MixturePopulation) or self.epochs().is_stream
            check_rests(amended, place, self.population.ranges, is_stream=is_stream)
        here = adopt_order(self.population, there, here, place, settings, is_reweighted=is_reweighted, shift=shift)
        self.settings, self._origin = replace(settings, epoch_size=here["epoch_size"]), place
        self.population.amended = amended
        return Loaded(place, {**here, "lanes": lanes})

    # --- data that have changed

    def earlier(self, state: Any, earlier: Earlier) -> SampleProgress:
        """The progress of this sampler over the data that a state was saved over.

        Raises:
            StateError: the state is none of a sampler, or of one with weights of samples.
        """
        _, lanes, there = parse_state(state)
        parts, span, now = mixed_parts(earlier.dataset), None, self.population
        is_mixture = isinstance(now, MixturePopulation)
        if not is_mixture == ("sources" in there) == (parts is not None):
            raise StateError("of the state, the data of now and old=, one is of a mixture, and another is not")
        settings = replace(self.settings, length=None, sample_seeds=False)
        if parts is None:
            first = read_int(there, "first", minimum=0, maximum=MAX_POSITION)
            span = first, first + read_int(there, "samples", minimum=0, maximum=MAX_POSITION)
            if not isinstance(now, RangePopulation) or there.get("ranges") is not None or now.has_lengths:
                raise StateError(
                    "only the order of wids.ChunkedSampler and wids.DistributedChunkedSampler without lengths= goes on "
                    "over changed data; begin the next epoch with them"
                )
            ours = {name: value for name, value in self.epochs().identity.items() if name in _SETTINGS}
            check_order({name: there.get(name) for name in ours}, ours)
            settings = replace(settings, num_replicas=lanes, rank=0)  # as the run began: where its epoch is over
        if there.get("sample_weights") is not None or (isinstance(now, RangePopulation) and now.is_weighted):
            raise StateError(
                "the sampler has weights, whose passes have samples more or less often than once, so no set of samples "
                "is what is left of one; begin the next epoch with the changed data"
            )
        try:
            population = choose_population(earlier.dataset, parts, settings, num_samples=span)
            if span is not None and there.get("shards") is None:  # a sampler whose chunks know no shards
                population = RangePopulation(*span)
        except ValueError as error:
            raise StateError(f"the state is not of the data that old= names: {error}") from error
        if isinstance(population, MixturePopulation) and isinstance(now, MixturePopulation):
            population.means = now.means  # the state has weights as shares of samples
        return SampleProgress(earlier.dataset, population, settings)

    def amend(self, reading: EarlierReading, earlier: Earlier) -> Loaded:
        """Go on in an epoch of the earlier data over the data of now.

        Raises:
            StateError: one of them is a mixture, and the other is none.
        """
        then, place, read, is_over, in_block, _ = reading
        now, settings = copy.copy(self.population), replace(self.settings, lanes=then.settings.lanes)
        settings = replace(settings, epoch_size=then.settings.epoch_size)
        if isinstance(now, MixturePopulation) and isinstance(then.population, MixturePopulation):
            each = then.population.batch or settings.lanes  # a turn of a source: from the next one on, weights hold
            position = -(-(place.position + in_block) // each) * each
            place = place._replace(position=position, offset=0)
            mixed, _ = then.population.plan(then.settings)
            counts, sources = mixed.order().counts(position), {}
            for name, passes in carry_sources(now.parts, then.population.parts, read, earlier).items():
                first, rests = rests_of(passes, *now.ranges[name], is_stream=True)
                sources[name] = ChangedSource(first - counts.get(name, 0), rests)
            now.amended, now.segments = Amendment(place, 0, sources), then.population.segments
            now.change(now.weights, position=position, lanes=settings.lanes)
            now.forget(position, lanes=settings.lanes)
        elif isinstance(now, RangePopulation) and isinstance(then.population, RangePopulation):
            here, there = (now.lo, now.hi), (then.population.lo, then.population.hi)
            carried = {number: earlier.carry(there, here, seen) for number, seen in read[ONLY].items()}
            is_stream = now.epochs(settings).is_stream
            first, rests = rests_of(carried, *here, is_stream=is_stream)
            if is_over and not is_stream:
                first, rests = now.hi - now.lo, ()
            shift, before = 0, then.population.amended
            if settings.epoch_size is not None:
                shift = first - place.position - in_block + (0 if before is None else before.shift)
            place = place._replace(position=first, offset=0)
            now.amended = Amendment(place, shift, {ONLY: ChangedSource(0, rests)})
        else:
            raise StateError("one of the data of now and of old= is a mixture, and the other is none")
        self.population, self.settings, self._origin = now, settings, place
        epochs = self.epochs()
        return Loaded(place, {**self.identity(epochs), "lanes": settings.lanes})

    @contextlib.contextmanager
    def kept_on_error(self) -> Iterator[None]:
        """Undo the changes of `adopt`, if the state turns out not to fit after all."""
        settings, origin, population = self.settings, self._origin, copy.copy(self.population)
        try:
            yield
        except BaseException:
            self.settings, self._origin, self.population = settings, origin, population
            raise

    def change_weights(
        self, weights: Mapping[str, float], at: int | None, earliest: int | None, usual: int | None, why: str
    ) -> int:
        """Change the weights of a mixture from a position on.

        Args:
            weights: name -> weight.
            at: the position; None: ``usual``.
            earliest: up to there, the order is decided; None: an iteration without end has begun.
            usual: as earliest.
            why: the reason, which ends a message.

        Raises:
            ValueError: see `wids.DistributedChunkedSampler.reweight`.
        """
        if not isinstance(self.population, MixturePopulation):
            raise ValueError(f"{a_kind(self.dataset)} is no mixture; wids.mix makes one")  # noqa: TRY004
        if earliest is None or usual is None:
            raise ValueError(
                "an iteration without end has begun (epochs=None), and goes on with its weights; load the sampler's "
                "own state_dict, change the weights, and begin another one"
            )
        position = usual if at is None else parse_int("at", at, minimum=0)
        if position > MAX_POSITION:
            raise ValueError(f"at is {position}; it must be at most {MAX_POSITION}")
        if position < earliest:
            raise ValueError(f"at is {position}, and the order up to {earliest} is decided{why}")
        return self.population.change(weights, position=position, lanes=self.settings.lanes)

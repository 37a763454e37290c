"""The position of a sampler in its epochs, as one of five values, and the value that each call puts in its place.

``set_epoch``, ``load_state_dict`` and iterations may be called in any order; these two tables say what each does. A
cursor is never changed, only replaced by another:

    the cursor    the next iteration begins        the sampler's state and length are those of
    NotStarted    epoch 0                          its beginning
    Chosen        the epoch that was chosen        its beginning (1)
    Loaded        where the loaded state is (2)    that place
    Running       the epoch after the run's (3)    the run
    Finished      the epoch after the run's (3)    the run (8)

                  set_epoch(e)    load_state_dict    an iteration    the run is         pickle, copy
                  `choose`        `load`             begins          over: `finish`     `without_run`
    NotStarted    Chosen          Loaded             Running         -                  NotStarted
    Chosen        Chosen (4)      Loaded (5)         Running         Chosen             Chosen
    Loaded        Chosen (6)      Loaded (5)         Running         Loaded             Loaded
    Running       Chosen (4)      Loaded (5)         Running         Finished (7)       Finished (8)
    Finished      Chosen          Loaded (5)         Running         -                  Finished (8)

    1  If a training loop says that it has had samples of the chosen epoch, and its run is finished: that run. A
       loader's workers may have drawn all of an epoch by the time a trainer chooses it.
    2  The epoch after the state's, if nothing is left of that one, unless `set_epoch` named it.
    3  The same epoch again, if `set_epoch` named it while it ran. If epochs have no end, the place where the run is:
       what it has not drawn would come less often otherwise.
    4  Running, named, if e is the epoch of the run that began last, and that is not over: Lightning names an epoch
       after a loader with workers has begun it, and means the run.
    5  Named, if the state's epoch was chosen, or named, just before.
    6  Loaded, named, if e is the epoch of the state.
    7  As long as no other iteration has begun since.
    8  A copy does not know how far its original is, so its cursor has no run: its state and length are those of the
       next iteration's beginning. If the epoch was named, it is Chosen.

"An iteration begins" with its first index; one that was only made changes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from operator import length_hint
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import msgspec

from wids.core.order.validation import parse_int

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from wids.core.order.epoch import MixedRange
    from wids.core.order.state import EpochPosition


class Epochs(Protocol):
    """The epochs of one rank: of samples (`RankEpochs`), or of batches (`BatchEpochs`). A value that never changes."""

    @property
    def lanes(self) -> int:
        """L, as a state says it."""

    @property
    def passes(self) -> int | None:
        """Passes in an epoch; None: it has no end."""

    def first_place(self, epoch: int) -> EpochPosition:
        """The beginning of an epoch."""

    def go_on(self, place: EpochPosition) -> EpochPosition:
        """The beginning of the next iteration after one that was left at a place, if epochs have no end."""

    def end(self, place: EpochPosition) -> int | None:
        """The position where a place's epoch ends; None: it has no end."""

    def is_over(self, place: EpochPosition) -> bool:
        """True if nothing is left of a place's epoch."""

    def is_in_the_middle(self, place: EpochPosition) -> bool:
        """True if something of a place's epoch lies before it, and something is left."""

    def decided(self, place: EpochPosition) -> int:
        """The position up to which the order is decided at a place; from there on, other weights may hold."""

    def count(self, place: EpochPosition) -> int:
        """Length of the epoch for each rank, including what it had drawn before ``place``."""

    def mixed_ranges(self, place: EpochPosition) -> list[MixedRange]:
        """The ranges of which a rank mixes chunks from a place on."""

    def begin(self, place: EpochPosition) -> Run[Any]:
        """An iteration from a place to the end of its epoch."""


EpochsT = TypeVar("EpochsT", bound=Epochs)


class Run(ABC, Generic[EpochsT]):
    """The progress of one iteration.

    The loop holds the iteration, the sampler only its run. So a loop that is left frees the iteration at once, with a
    window of indices and its prefetching, and the sampler still says how far it was.

    Args:
        epochs: the epochs that it follows.
        place: its beginning.

    Attributes:
        epochs: the argument.
        place: the argument.
        is_ahead: says whether workers of a DataLoader have drawn batches that their loop has not received; None: there
            are no workers.
    """

    epochs: EpochsT
    place: EpochPosition
    is_ahead: Callable[[], bool] | None
    # Items (indices, or batches) handed on, the present block's included, that block, and samples before and in each of
    # its items, if they are batches. One tuple, so that a signal handler or another thread sees all from one moment.
    _at: tuple[int, Iterator[Any], int, list[int]]

    def __init__(self, epochs: EpochsT, place: EpochPosition) -> None:
        self.epochs, self.place, self.is_ahead = epochs, place, None
        self._at = 0, iter(()), 0, []

    @property
    def drawn(self) -> int:
        """The number of items drawn."""
        count, left, *_ = self._at
        return count - length_hint(left)  # a list's iterator knows how much of it is left

    @property
    def drawn_samples(self) -> int:
        """The number of samples drawn."""
        return self.drawn

    @abstractmethod
    def blocks(self) -> Iterator[Any]:
        """Everything from the place on, for `pieces`: blocks of n ``samples``, (n,); pure, so as often as asked for."""

    @abstractmethod
    def pieces(self, blocks: Iterable[Any]) -> Iterator[Iterator[Any]]:
        """The items of ``blocks``, marked for the loader, and counted as they are drawn."""

    @abstractmethod
    def place_after(self, count: int) -> EpochPosition:
        """The place after every rank has had ``count`` items of the run."""

    def count_received(self, consumed: int | None, yielded: int | None, *, is_over: bool) -> int:
        """The number of items that a training loop has received: as it says, see the sampler's `state_dict`; or all."""
        if consumed is not None and yielded is not None:
            raise ValueError("consumed and yielded are given; one of them says how far the training loop is")
        name, since, before, said = "consumed", "iteration", 0, consumed
        if yielded is not None:
            name, since, before, said = "yielded", "epoch", self.place.yielded, yielded
        drawn = self.drawn
        if said is None:
            return drawn
        count = parse_int(name, said, minimum=0) - before
        # Batches times batch size is too many of a run that is over, if the last batch is smaller.
        if not 0 <= count <= drawn and not is_over:
            raise ValueError(
                f"{name} is {said}, and from {before} to {before + drawn} indices were drawn; it counts the samples "
                f"that this rank has received since its {since} began"
            )
        return min(max(count, 0), drawn)


class NotStarted(msgspec.Struct, frozen=True):
    """Nothing was chosen, loaded or begun."""

    epoch: ClassVar[int] = 0
    is_named: ClassVar[bool] = False


class Chosen(msgspec.Struct, frozen=True):
    """`set_epoch` chose the epoch that comes next; ``begun`` is what began last, if anything."""

    epoch: int
    begun: Running | Finished | None = None
    is_named: ClassVar[bool] = True


class Loaded(msgspec.Struct, frozen=True):
    """A state was loaded: a place, and the order that it is a place in. ``is_named``: `set_epoch` named its epoch."""

    place: EpochPosition
    order: dict[str, Any]
    is_named: bool = False

    @property
    def epoch(self) -> int:
        """The epoch of the state."""
        return self.place.epoch


class Running(msgspec.Struct, frozen=True):
    """An iteration has begun; it runs, or was left. ``is_named``: `set_epoch` has named its epoch since."""

    run: Run[Any]
    is_named: bool = False

    @property
    def epoch(self) -> int:
        """The epoch of the run."""
        return self.run.place.epoch


class Finished(msgspec.Struct, frozen=True):
    """An iteration was drawn to its end. ``run``: None in a copy. ``is_named``: as it was when that ended."""

    epoch: int
    run: Run[Any] | None
    is_named: bool = False


Cursor = NotStarted | Chosen | Loaded | Running | Finished


def choose(cursor: Cursor, epoch: int) -> Cursor:
    """The cursor after ``set_epoch(epoch)``."""
    if isinstance(cursor, Loaded) and cursor.epoch == epoch:
        return msgspec.structs.replace(cursor, is_named=True)
    begun = _begun(cursor)
    if isinstance(begun, Running) and begun.epoch == epoch:
        return Running(begun.run, is_named=True)
    return Chosen(epoch, begun)


def load(cursor: Cursor, loaded: Loaded) -> Cursor:
    """The cursor after a state was loaded."""
    return msgspec.structs.replace(loaded, is_named=cursor.is_named and cursor.epoch == loaded.epoch)


def finish(cursor: Cursor, run: Run[Any]) -> Cursor:
    """The cursor after a run was drawn to its end."""
    begun = _begun(cursor)
    if not isinstance(begun, Running) or begun.run is not run:
        return cursor
    finished = Finished(begun.epoch, run, begun.is_named)
    return msgspec.structs.replace(cursor, begun=finished) if isinstance(cursor, Chosen) else finished


def without_run(cursor: Cursor) -> Cursor:
    """The cursor of a copy."""
    match cursor:
        case Running() | Finished() if not cursor.is_named:
            return Finished(cursor.epoch, None)
        case Running() | Finished() | Chosen():
            return Chosen(cursor.epoch)
    return cursor


def next_place(cursor: Cursor, epochs: Epochs) -> EpochPosition:
    """The beginning of the next iteration."""
    match cursor:
        case Loaded(place, _, is_named):
            return place if is_named or not epochs.is_over(place) else epochs.first_place(place.epoch + 1)
        case Running(run, is_named=False) | Finished(_, run, is_named=False):
            if epochs.passes is None and run is not None:
                return epochs.go_on(run.place_after(run.drawn))
            return epochs.first_place(cursor.epoch + 1)
    return epochs.first_place(cursor.epoch)


def current_run(cursor: Cursor, *, is_counted: bool = False) -> Run[Any] | None:
    """The run whose state is the sampler's; None: that of `next_place` is.

    Args:
        cursor: the sampler's.
        is_counted: a training loop says that it has had samples of it.
    """
    match cursor:
        case Running(run) | Finished(_, run):
            return run
        case Chosen(epoch, Finished(same, run)) if is_counted and same == epoch:
            return run
    return None


def _begun(cursor: Cursor) -> Running | Finished | None:
    match cursor:
        case Running() | Finished():
            return cursor
        case Chosen(_, begun):
            return begun
    return None

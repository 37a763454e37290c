"""A rank's way through the epochs: which comes next, where it begins, how far it is, and where it resumes.

Rules: an iteration takes its epoch, order and place with the first index drawn, and nothing that is set later changes
it. A place counts what all ranks have had together, so it means the same to every rank and to any number of them.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from itertools import chain, islice
from operator import length_hint
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np

from wids.errors import StateError
from wids.order.epoch import EpochOrder, Plan, Stream, end_position, nominal_start
from wids.order.layout import digest, fingerprint
from wids.order.mask import OwnIndex, RepeatedIndex
from wids.order.state import Place, build_state, check_order, parse_state
from wids.order.validation import parse_int, parse_range, parse_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.order.epoch import Tail
    from wids.order.layout import Layout, Regrouping
    from wids.order.permutation import Indices


class Watcher(Protocol):
    """Who follows an iteration."""

    def end(self, *, is_finished: bool) -> None:
        """The iteration has ended, or was left before its end."""


class Loaded(NamedTuple):
    """A state that was loaded: where to go on, and the order that this is a place in."""

    place: Place
    order: dict[str, Any]


class Progress:
    """How far an iteration is.

    Shared by the iteration and its walk, and refers to neither: a cycle would keep the dataset, its open files and a
    window of indices alive until some garbage collection.
    """

    place: Place | None = None  # where it began
    loaded: Loaded | None = None  # where it is to begin
    is_finished = False
    plan: Plan
    world: int
    lanes: int
    order: dict[str, Any] | None = None  # described once, for a loader asks at every batch
    # Indices handed on, the present block's included, and that block. One tuple, so that whoever asks in between (a
    # signal handler, another thread) sees both from the same moment.
    at: tuple[int, Iterator[int]] = (0, iter(()))

    @property
    def drawn(self) -> int:
        """How many indices were drawn."""
        count, block = self.at
        return count - length_hint(block)

    def place_after(self, count: int) -> Place:
        """The place after every rank has had ``count`` indices of the iteration, which has begun."""
        epoch, position, yielded = cast("Place", self.place)
        return Place(epoch, position + count * self.world, yielded + count)


class Iteration(chain):  # type: ignore[type-arg]  # chain is generic for type checkers alone
    """One iteration of a sampler, as fast as a list's, that knows how far it is.

    It begins with the first index drawn, not before: DataLoader makes two iterators of a sampler and advances one where
    it has workers and no batches (batch_size=None), which would skip an epoch each time.
    """

    walk: EpochWalk
    progress: Progress

    @classmethod
    def of(cls, walk: EpochWalk) -> Iteration:
        """A new iteration, not begun."""
        progress = Progress()
        iteration = cast("Iteration", cls.from_iterable(walk._go(progress)))
        iteration.walk, iteration.progress = walk, progress
        return iteration

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration is, or would begin; see the sampler's."""
        if self.progress.place is not None:
            return self.walk._state_of(self.progress, self.progress.drawn)
        loaded = self.progress.loaded
        return self.walk._describe(loaded.place if loaded else self.walk._next_place())

    def load_state_dict(self, state: Any) -> None:
        """Begin where the state says; before the first index is drawn."""
        if self.progress.place is not None:
            raise StateError("this iteration has begun; load the state into a new one, or into the sampler")
        self.progress.loaded = self.walk._adopt(state)


class Status(NamedTuple):
    """What decides the next iteration; replaced as a whole, so that it is never seen half changed.

    Attributes:
        epoch: of the iteration that began last, or the one that was chosen.
        is_chosen: it was chosen, and no iteration has begun since.
        is_begun: an iteration has begun, and nothing was chosen or loaded since.
        is_rejoined: the epoch that was chosen is that of an iteration under way.
        loaded: where the next iteration goes on.
        progress: of the iteration that began last.
    """

    epoch: int
    is_chosen: bool = False
    is_begun: bool = False
    is_rejoined: bool = False
    loaded: Loaded | None = None
    progress: Progress | None = None


class EpochWalk:
    """The epochs of a range, or of chunks: their order, how many indices they have, and where one resumes.

    A subclass with an ``__iter__`` of its own that does not go through ``super().__iter__()`` has no state: its
    `state_dict` is None, and loaders that resume draw again what was drawn. Or it has a ``state_dict`` of its own.

    Attributes:
        seed: any integer, modulo 2**64. shuffle: whether the order is mixed at all.
        shufflefirst: as given; it decides nothing, for every epoch shuffles its chunks, the first one too.
        chunksize, window: as given. lanes: the lanes of the global order.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        seed: int,
        shuffle: bool,
        shufflefirst: bool,
        window: int,
        chunksize: int = 1,
        num_samples: Any = None,
        chunks: Indices | None = None,
        epochs: int | None = 1,
        epoch_size: int | None = None,
    ) -> None:
        self.dataset: Any = dataset
        self.seed = parse_int("seed", seed)
        self.shuffle = shuffle
        self.shufflefirst = shufflefirst
        self.chunksize = parse_int("chunksize", chunksize, least=1)
        self.window = parse_int("window", window, least=1)
        self.lanes = 1
        self._lo, self._hi = (0, 0) if chunks is not None else parse_range(num_samples, n=len(dataset))
        self._chunks = chunks
        self._layout: Layout | None = None
        self._epochs = None if epochs is None else parse_int("epochs", epochs, least=1)
        self._epoch_size = None if epoch_size is None else parse_int("epoch_size", epoch_size, least=1)
        if self._epoch_size is not None and self._epochs != 1:
            raise ValueError(f"epochs is {epochs} and epoch_size {epoch_size}; one of them says when an iteration ends")
        self._length: int | None = None
        self._origin = Place(0, 0)
        self._arranged: dict[bool, tuple[Indices | None, Regrouping | None]] = {}
        self._fingerprint: str | None = None
        self._status = Status(0)
        self._rng: random.Random | None = None
        self._is_rng_assigned = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        loop = vars(cls).get("__iter__")
        # Whether it goes through super().__iter__(), whose iterations know their places.
        draws = "__iter__" in getattr(getattr(loop, "__code__", None), "co_names", ())
        if loop is not None and not draws and "state_dict" not in vars(cls):
            cls.state_dict = cls.load_state_dict = None  # type: ignore[assignment,method-assign] # as __hash__ does

    # --- epochs

    @property
    def epoch(self) -> int:
        """The epoch of the iteration that began last, or that ``set_epoch`` chose for the next one; may be assigned."""
        return self._status.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        epoch = parse_int("epoch", epoch)
        _, _, _, _, loaded, last = self._status
        if loaded is not None and loaded.place.epoch != epoch:
            place = loaded.place
            if place.position > self._first_place(place.epoch).position and not self._is_over(place):
                warnings.warn(
                    f"epoch {epoch} was set after a state in the middle of epoch {place.epoch} was loaded; the rest of "
                    f"that epoch is left out. To resume in it, begin with set_epoch({place.epoch}), or without",
                    stacklevel=3,
                )
            loaded = None
        # Lightning names the epoch after a loader with workers has begun it: that iteration is still the one meant.
        is_rejoined = bool(last and last.place and last.place.epoch == epoch and not last.is_finished)
        self._status = Status(epoch, is_chosen=True, is_rejoined=is_rejoined, loaded=loaded, progress=last)
        self._forget_rng()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; one that has begun goes on as it was.

        After `load_state_dict`, the epoch of the state resumes in it, and any other begins at its beginning.
        """
        self.epoch = epoch

    @property
    def rng(self) -> random.Random:
        """For subclasses that shuffle by themselves: one generator for each epoch; one that is assigned stays."""
        if self._rng is None:
            self._rng = random.Random(f"{self.seed} {self.epoch}")  # noqa: S311 - an order, not a secret
        return self._rng

    @rng.setter
    def rng(self, rng: random.Random) -> None:
        self._rng, self._is_rng_assigned = rng, True

    def __iter__(self) -> Iterator[int]:
        return Iteration.of(self)

    # --- counts

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The chunks as (lo, hi), half-open, in a new list; assign one to yield just its samples, each once.

        Raises:
            ValueError: the rank has none of its own: lanes are shared out among ranks, or chunks anew in each epoch.
        """
        plan = self._plan()
        world, rank = self._seat()
        if plan.lanes % world or (plan.is_dealt and world > 1):
            raise ValueError(
                f"no chunks are this rank's own: {world} ranks read {plan.lanes} lanes, reshuffle is "
                f"{'epoch' if plan.is_dealt else 'fixed'!r}"
            )
        chunks = np.concatenate([plan.lane_chunks(lane) for lane in range(rank, plan.lanes, world)])
        return [(lo, hi) for lo, hi in chunks.tolist()]

    @ranges.setter
    def ranges(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._chunks = parse_ranges(ranges)
        self._length = None

    @property
    def dslength_per_replica(self) -> int:
        """How many indices an iteration yields, that is ``len``; may be assigned."""
        return len(self)

    @dslength_per_replica.setter
    def dslength_per_replica(self, length: int) -> None:
        self._length = parse_int("dslength_per_replica", length, least=0)

    @property
    def num_valid(self) -> int:
        """How many of the ``len`` indices are the rank's own; they come first, what follows is repeated.

        For evaluation that counts each sample once, on datasets that ``tail="mask"`` does not know.
        """
        plan, place = self._plan(), self._current_place()
        start, stop = self._span(plan, place)
        if self._is_stream() or stop is None:
            return len(self)
        world, rank = self._seat()
        return place.yielded + len(range(start + rank, min(stop, len(plan)), world))

    def __len__(self) -> int:
        place = self._current_place()
        start, stop = self._span(self._plan(), place)
        if stop is None:
            raise TypeError("the sampler is endless (epochs=None); it has no length")
        # What was yielded before a resume counts: trainers that count batches compare them with the whole epoch's.
        return place.yielded + (stop - start) // self._seat()[0]

    # --- state

    def state_dict(self, consumed: int | None = None, *, yielded: int | None = None) -> dict[str, Any]:
        """Where to go on, as a small dict that JSON takes, the same on every rank.

        Without arguments: after what was drawn from the sampler. A DataLoader with workers draws ahead of what it hands
        out, so its training loop says how far it is, in one of two ways.

        Args:
            consumed: samples that this rank's loop has received from the present iteration.
            yielded: samples that this rank has received in this epoch, before a resume too; for trainers that count so.

        Raises:
            ValueError: more were received than were drawn, or both arguments are given.
        """
        if consumed is not None and yielded is not None:
            raise ValueError("consumed and yielded are given; one of them says how far the training loop is")
        name, told = ("consumed", consumed) if yielded is None else ("yielded", yielded)
        if told is not None:
            told = parse_int(name, told, least=0)
        last = self._current(is_counted=bool(told))
        place = self._next_place() if last is None else cast("Place", last.place)
        before = place.yielded if name == "yielded" else 0
        drawn = 0 if last is None else last.drawn
        if told is not None and not before <= told <= before + drawn and not (last and last.is_finished):
            raise ValueError(
                f"{name} is {told}, and from {before} to {before + drawn} indices were drawn; it counts the samples "
                f"that this rank has received since its {'iteration' if name == 'consumed' else 'epoch'} began"
            )
        if last is None:
            return self._describe(place)
        # Batches times batch size is too many after a last batch that is smaller.
        return self._state_of(last, drawn if told is None else min(max(told - before, 0), drawn))

    def load_state_dict(self, state: Any) -> None:
        """Let the next iteration go on where ``state`` was taken; on any number of ranks, workers and batch sizes.

        All ranks load the same state. An epoch of which nothing is left is followed by the next one, unless `set_epoch`
        names it.

        Raises:
            StateError: it belongs to another dataset, seed or setting (the message lists what differs), or is damaged.
        """
        loaded = self._adopt(state)
        old, epoch = self._status, loaded.place.epoch
        # An epoch that was chosen just before is named as well as one that is chosen afterwards.
        is_chosen = old.is_chosen and old.epoch == epoch
        self._status = Status(epoch, is_chosen=is_chosen, loaded=loaded, progress=old.progress)
        self._forget_rng()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_status": self._status._replace(progress=None)}

    # --- inside

    def _seat(self) -> tuple[int, int]:
        """(world, rank)."""
        return 1, 0

    def _is_masked(self) -> bool:
        return False

    def _is_dealt(self) -> bool:
        return False

    def _tail(self) -> Tail:
        return "pad"

    def _is_stream(self) -> bool:
        """Whether passes follow each other without a tail."""
        return self._epochs != 1 or self._epoch_size is not None

    def _plan(self) -> Plan:
        seed, window = parse_int("seed", self.seed), parse_int("window", self.window, least=1)
        if self._chunks is not None:
            return Plan(
                chunks=self._chunks, chunksize=1, window=window, lanes=1, is_shuffled=bool(self.shuffle), seed=seed
            )
        return Plan(
            lo=self._lo,
            hi=self._hi,
            boundaries=self._arrange()[0],
            chunksize=parse_int("chunksize", self.chunksize, least=1),
            window=window,
            lanes=parse_int("lanes", self.lanes, least=1),
            is_shuffled=bool(self.shuffle),
            is_dealt=self._is_dealt(),
            seed=seed,
        )

    def _arrange(self) -> tuple[Indices | None, Regrouping | None]:
        """Where shards end in the range, and what to read at which position, where that is not the index itself."""
        if self._layout is None or self._chunks is not None:
            return None, None
        is_sorted = bool(self.shuffle)
        if is_sorted not in self._arranged:
            self._arranged[is_sorted] = self._layout.arrange(self._lo, self._hi, is_sorted=is_sorted)
        return self._arranged[is_sorted]

    def _first_place(self, epoch: int) -> Place:
        if not self._is_stream() or not len(self._plan()):
            return Place(epoch, 0)
        return Place(epoch, self._stream_start(epoch))

    def _stream_start(self, epoch: int) -> int:
        """Where a nominal epoch begins; those after a resume not before it, whatever the world size was then."""
        if epoch < 0:
            raise ValueError(f"epoch is {epoch}, and passes that follow each other (epochs, epoch_size) begin with 0")
        start = nominal_start(epoch, size=self._size(), origin=self._origin.position, world=self._seat()[0])
        return max(start, self._origin.position) if epoch > self._origin.epoch else start

    def _size(self) -> int:
        """Samples in a nominal epoch of a stream."""
        size, world = self._epoch_size or len(self._plan()) * (self._epochs or 1), self._seat()[0]
        if size < world and self._epochs is not None:
            raise ValueError(f"an epoch of {size} samples on {world} ranks has less than one for each")
        return size

    def _span(self, plan: Plan, place: Place) -> tuple[int, int | None]:
        """From which position to which the ranks read together; None: without end."""
        world, n = self._seat()[0], len(plan)
        if self._length is not None:
            return place.position, place.position + max(self._length - place.yielded, 0) * world
        if not self._is_stream():
            return place.position, end_position(n, start=place.position, world=world, tail=self._tail())
        if not n:
            raise ValueError("an epoch_size, or more than one of epochs, is asked for; there is no sample to repeat")
        if self._epochs is None:
            return place.position, None
        return place.position, max(self._stream_start(place.epoch + 1), place.position)

    def _is_over(self, place: Place) -> bool:
        start, stop = self._span(self._plan(), place)
        return start == stop

    def _next_place(self) -> Place:
        """Where the next iteration begins."""
        epoch, is_chosen, is_begun, _, loaded, last = self._status
        if loaded is not None:
            if is_chosen or not self._is_over(loaded.place):
                return loaded.place
            return self._first_place(loaded.place.epoch + 1)
        if is_begun and last is not None and self._epochs is None:
            # An endless iteration that was left: what it has not drawn comes next, or it would come less often.
            position = last.place_after(last.drawn).position
            return Place(position // max(len(last.plan), 1), position)
        return self._first_place(epoch + is_begun)

    def _current(self, *, is_counted: bool = False) -> Progress | None:
        """Of the iteration that is under way, or was the last one and nothing was chosen since.

        Args:
            is_counted: a training loop says that it has had samples of it, so it is meant even if its epoch was chosen
                again after it was drawn to its end.
        """
        epoch, _, is_begun, is_rejoined, loaded, last = self._status
        if last is None or loaded is not None or cast("Place", last.place).epoch != epoch:
            return None
        return last if is_begun or is_rejoined or is_counted else None

    def _current_place(self) -> Place:
        """Where the epoch that `epoch` names began, or will begin, to be read."""
        last = self._current()
        return cast("Place", last.place) if last is not None else self._next_place()

    def _go(self, progress: Progress) -> Iterator[Iterator[int]]:
        """Yield an iteration's indices in pieces; what it depends on is taken now."""
        loaded = progress.loaded or self._status.loaded
        place = progress.loaded.place if progress.loaded else self._next_place()
        plan, order, is_masked = self._plan(), self._arrange()[1], self._is_masked()
        if loaded is not None:  # attributes may have been assigned since it was loaded
            check_order(loaded.order, {**self._facts(plan), "lanes": self.lanes})
        world, rank = self._seat()
        start, stop = self._span(plan, place)
        n = len(plan)

        def begin() -> Iterator[Indices]:
            if is_stream:
                found = Stream(plan).blocks(start + rank, stop, world)
            else:
                found = EpochOrder(plan, place.epoch).blocks(start + rank, stop or 0, world)
            return found if order is None else map(order.take, found)

        is_stream = self._is_stream()
        if is_stream:
            n = stop or 0  # nothing of a stream is repeated to fill up
        progress.plan, progress.world, progress.lanes, progress.place = plan, world, self.lanes, place
        is_new = place.epoch != self._status.epoch
        self._status = Status(place.epoch, is_begun=True, progress=progress)
        if is_new:
            self._forget_rng()
        position, is_endless = start + rank, stop is None
        watcher = self._watch(begin, progress)
        del self, loaded  # what is left of the iteration needs neither
        try:
            for block in begin():
                indices = block.tolist()
                progress.at = progress.at[0] + len(indices), iter(indices)
                if is_masked:
                    own = len(indices) if is_endless else -(-(n - position) // world)
                    yield map(OwnIndex, islice(progress.at[1], max(own, 0)))
                    yield map(RepeatedIndex, progress.at[1])
                else:
                    yield progress.at[1]
                position += len(indices) * world
            progress.is_finished = True
        finally:
            if watcher is not None:
                watcher.end(is_finished=progress.is_finished)

    def _watch(self, begin: Callable[[], Iterator[Indices]], progress: Progress) -> Watcher | None:  # noqa: ARG002 - for subclasses
        """Called when an iteration begins: whoever looks ahead in it, and is told of its end.

        Args:
            begin: begins the iteration's indices once more, in blocks.
            progress: of the iteration.
        """
        return None

    def _forget_rng(self) -> None:
        if not self._is_rng_assigned:
            self._rng = None

    def _state_of(self, progress: Progress, count: int) -> dict[str, Any]:
        """The state after every rank has had ``count`` indices of an iteration that has begun."""
        if progress.order is None:
            progress.order = self._facts(progress.plan)
        return build_state(progress.place_after(count), lanes=progress.lanes, order=dict(progress.order))

    def _describe(self, place: Place) -> dict[str, Any]:
        return build_state(place, lanes=self.lanes, order=self._facts(self._plan()))

    def _facts(self, plan: Plan) -> dict[str, Any]:
        """What a position's meaning depends on, besides the lanes."""
        if self._fingerprint is None:
            self._fingerprint = fingerprint(self.dataset)
        return {
            "dataset": self._fingerprint,
            "shards": _digest(plan.boundaries),
            "ranges": _digest(plan.chunks),
            "samples": len(plan),
            "first": plan.lo,
            "seed": plan.seed,
            "shuffle": plan.is_shuffled,
            "chunksize": plan.chunksize,
            "window": plan.window,
            "reshuffle": "epoch" if plan.is_dealt else "fixed",
            "epochs": self._epochs,
            "epoch_size": self._epoch_size,
        }

    def _adopt(self, state: Any) -> Loaded:
        """What a state means here; its lanes are taken over."""
        place, lanes, order = parse_state(state)
        here = self._facts(self._plan())
        check_order({**order, **self._lanes_fact(lanes)}, {**here, **self._lanes_fact(self.lanes)})
        self.lanes = lanes
        self._origin = place
        return Loaded(place, {**order, "lanes": lanes})

    def _lanes_fact(self, lanes: int) -> dict[str, int]:
        """Lanes that are not free to follow a state's."""
        return {"lanes": lanes}


def _digest(indices: Indices | None) -> str | None:
    return None if indices is None else digest(np.asarray(indices, "<i8").tobytes())

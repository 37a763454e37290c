"""A rank's way through the epochs: which comes next, where it begins, how far it is, and where it resumes.

Rules: an iteration takes its epoch, order and place with the first index drawn, and nothing that is set later changes
it. A place counts what all ranks have had together, so it means the same to every rank and to any number of them.
"""

from __future__ import annotations

import random
import warnings
from itertools import chain, islice
from operator import length_hint
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from wids.errors import StateError
from wids.order.arguments import parse_int, parse_range, parse_ranges
from wids.order.epoch import EpochOrder, Plan, Stream, end_position, nominal_start
from wids.order.layout import digest, fingerprint
from wids.order.mask import OwnIndex, RepeatedIndex
from wids.order.state import Place, build_state, check_order, parse_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wids.order.epoch import Tail
    from wids.order.layout import Layout
    from wids.order.permute import Indices


class Iteration(chain):  # type: ignore[type-arg]  # chain is generic for type checkers alone
    """One iteration of a sampler, as fast as a list's, that knows how far it is.

    It begins with the first index drawn, not before: DataLoader makes two iterators of a sampler and advances one where
    it has workers and no batches (batch_size=None), which would skip an epoch each time.
    """

    sampler: EpochWalk
    place: Place | None = None  # where it began
    is_finished = False
    _plan: Plan
    _world: int
    _lanes: int
    _order: dict[str, Any] | None = None
    _loaded: Place | None = None
    _count = 0
    _block: Iterator[int] = iter(())

    @classmethod
    def of(cls, sampler: EpochWalk) -> Iteration:
        """A new iteration, not begun."""
        cell: list[Iteration] = []
        iteration = cast("Iteration", cls.from_iterable(_generate(cell)))
        iteration.sampler = sampler
        cell.append(iteration)
        return iteration

    @property
    def handed_out(self) -> int:
        """How many indices were drawn."""
        return self._count - length_hint(self._block)

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration is, or would begin; see the sampler's."""
        if self.place is not None:
            return self.state_at(self.handed_out)
        return self.sampler._describe(self._loaded or self.sampler._next_place())

    def state_at(self, count: int) -> dict[str, Any]:
        """The state after every rank has had ``count`` indices of the iteration, which has begun."""
        epoch, position, yielded = cast("Place", self.place)
        if self._order is None:  # once: a loader asks for every batch, and to describe many shards takes a millisecond
            self._order = self.sampler._facts(self._plan)
        place = Place(epoch, position + count * self._world, yielded + count)
        return build_state(place, lanes=self._lanes, order=dict(self._order))

    def load_state_dict(self, state: Any) -> None:
        """Begin where the state says; before the first index is drawn."""
        if self.place is not None:
            raise StateError("this iteration has begun; load the state into a new one, or into the sampler")
        self._loaded = self.sampler._adopt(state)

    def begin(self) -> Iterator[Iterator[int]]:
        """Yield the iteration's indices in pieces."""
        sampler = self.sampler
        self.place = place = self._loaded or sampler._next_place()
        sampler._begin(self, place)
        world, rank = sampler._seat()
        plan, order = sampler._plan(), sampler._arrange()[1]
        self._plan, self._world, self._lanes = plan, world, sampler.lanes
        start, stop = sampler._span(plan, place)
        n = len(plan)
        if sampler._is_stream():
            blocks = Stream(plan).blocks(start + rank, stop, world)
            n = stop or 0  # nothing of a stream is repeated to fill up
        else:
            blocks = EpochOrder(plan, place.epoch).blocks(start + rank, stop or 0, world)
        position = start + rank
        for block in blocks:
            indices = block if order is None else order[block - plan.lo]
            self._block = iter(indices.tolist())
            self._count += len(indices)
            if sampler._is_masked():
                own = len(indices) if stop is None else -(-(n - position) // world)
                yield map(OwnIndex, islice(self._block, max(own, 0)))
                yield map(RepeatedIndex, self._block)
            else:
                yield self._block
            position += len(indices) * world
        self.is_finished = True


def _generate(cell: list[Iteration]) -> Iterator[Iterator[int]]:
    # A chain is made with its source, so the source learns of the chain afterwards, through the cell.
    yield from cell.pop().begin()


class EpochWalk:
    """The epochs of a range, or of chunks: their order, how many indices they have, and where one resumes.

    A subclass whose own ``__iter__`` does not draw from this class's has to write its own ``state_dict`` as well.

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
        self._arranged: dict[bool, tuple[Indices | None, Indices | None]] = {}
        self._fingerprint: str | None = None
        self._loaded: Place | None = None
        self._is_named = False
        self._iteration: Iteration | None = None
        self._is_rejoined = False
        self._rng: random.Random | None = None
        self._is_rng_assigned = False
        self.epoch = 0

    # --- epochs

    @property
    def epoch(self) -> int:
        """The epoch of the iteration that began last, or that ``set_epoch`` chose for the next one; may be assigned."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        epoch = parse_int("epoch", epoch)
        if (loaded := self._loaded) is not None:
            self._is_named = loaded.epoch == epoch
            if not self._is_named:
                if loaded.position > self._first_place(loaded.epoch).position and not self._is_over(loaded):
                    warnings.warn(
                        f"epoch {epoch} was set after a state in the middle of epoch {loaded.epoch} was loaded; the "
                        "rest of that epoch is left out. To resume in it, begin with set_epoch"
                        f"({loaded.epoch}), or without",
                        stacklevel=3,
                    )
                self._loaded = None
        last = self._iteration
        # Lightning names the epoch after a loader with workers has begun it: that iteration is still the one meant.
        self._is_rejoined = bool(last and last.place and last.place.epoch == epoch and not last.is_finished)
        self._epoch = epoch
        self._is_begun = False
        if not self._is_rng_assigned:
            self._rng = None

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
        """The chunks as (lo, hi), half-open, in a new list; assign one to yield just its samples, each once."""
        plan = self._plan()
        if plan.is_dealt:
            chunks = plan.cut(0, len(plan))
        else:
            world, rank = self._seat()
            lanes = sorted({(rank + k * world) % plan.lanes for k in range(plan.lanes)})
            chunks = np.concatenate([plan.lane_chunks(lane) for lane in lanes])
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
        iteration = self._current_iteration(is_counted=bool(told))
        place = self._next_place() if iteration is None else cast("Place", iteration.place)
        before = place.yielded if name == "yielded" else 0
        drawn = 0 if iteration is None else iteration.handed_out
        if told is not None and not before <= told <= before + drawn and not (iteration and iteration.is_finished):
            raise ValueError(
                f"{name} is {told}, and from {before} to {before + drawn} indices were drawn; it counts the samples "
                f"that this rank has received since its {'iteration' if name == 'consumed' else 'epoch'} began"
            )
        if iteration is None:
            return self._describe(place)
        # Batches times batch size is too many after a last batch that is smaller.
        return iteration.state_at(drawn if told is None else min(max(told - before, 0), drawn))

    def load_state_dict(self, state: Any) -> None:
        """Let the next iteration go on where ``state`` was taken; on any number of ranks, workers and batch sizes.

        All ranks load the same state. An epoch of which nothing is left is followed by the next one, unless `set_epoch`
        names it.

        Raises:
            StateError: it belongs to another dataset, seed or setting (the message lists what differs), or is damaged.
        """
        place = self._adopt(state)
        self._loaded = None
        self.epoch = place.epoch
        self._loaded, self._is_named = place, False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_iteration": None}

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
        seed = parse_int("seed", self.seed)
        if self._chunks is not None:
            return Plan(
                chunks=self._chunks, chunksize=1, window=self.window, lanes=1, is_shuffled=bool(self.shuffle), seed=seed
            )
        return Plan(
            lo=self._lo,
            hi=self._hi,
            boundaries=self._arrange()[0],
            chunksize=self.chunksize,
            window=self.window,
            lanes=self.lanes,
            is_shuffled=bool(self.shuffle),
            is_dealt=self._is_dealt(),
            seed=seed,
        )

    def _arrange(self) -> tuple[Indices | None, Indices | None]:
        """Where shards end in the range, and the indices in an order that has shards, where theirs has none."""
        if self._layout is None or self._chunks is not None:
            return None, None
        is_sorted = bool(self.shuffle)
        if is_sorted not in self._arranged:
            self._arranged[is_sorted] = self._layout.arrange(self._lo, self._hi, is_sorted=is_sorted)
        return self._arranged[is_sorted]

    def _first_place(self, epoch: int) -> Place:
        if not self._is_stream():
            return Place(epoch, 0)
        return Place(epoch, self._stream_start(epoch))

    def _stream_start(self, epoch: int) -> int:
        """Where a nominal epoch begins; those after a resume not before it, whatever the world size was then."""
        start = nominal_start(epoch, size=self._size(), origin=self._origin.position, world=self._seat()[0])
        return max(start, self._origin.position) if epoch > self._origin.epoch else start

    def _size(self) -> int:
        """Samples in a nominal epoch of a stream."""
        return self._epoch_size or len(self._plan()) * (self._epochs or 1)

    def _span(self, plan: Plan, place: Place) -> tuple[int, int | None]:
        """From which position to which the ranks read together; None: without end."""
        world, n = self._seat()[0], len(plan)
        if self._length is not None:
            return place.position, place.position + max(self._length - place.yielded, 0) * world
        if not self._is_stream():
            return place.position, end_position(n, start=place.position, world=world, tail=self._tail())
        if n == 0:
            raise ValueError(
                "an epoch_size, or more than one of epochs, is asked for, and there is no sample to repeat"
            )
        if self._epochs is None:
            return place.position, None
        return place.position, max(self._stream_start(place.epoch + 1), place.position)

    def _is_over(self, place: Place) -> bool:
        start, stop = self._span(self._plan(), place)
        return start == stop

    def _next_place(self) -> Place:
        """Where the next iteration begins."""
        if self._loaded is not None:
            if self._is_named or not self._is_over(self._loaded):
                return self._loaded
            return self._first_place(self._loaded.epoch + 1)
        return self._first_place(self._epoch + self._is_begun)

    def _current_iteration(self, *, is_counted: bool = False) -> Iteration | None:
        """The iteration that is under way, or was the last one and nothing was chosen since.

        Args:
            is_counted: a training loop says that it has had samples of it, so it is meant even if its epoch was chosen
                again after it was drawn to its end.
        """
        last = self._iteration
        if last is None or last.place is None or self._loaded is not None or last.place.epoch != self._epoch:
            return None
        return last if self._is_begun or self._is_rejoined or is_counted else None

    def _current_place(self) -> Place:
        """Where the epoch that `epoch` names began, or will begin, to be read."""
        last = self._current_iteration()
        return last.place if last is not None and last.place else self._next_place()

    def _begin(self, iteration: Iteration, place: Place) -> None:
        self._loaded = None
        if place.epoch != self._epoch:
            self.epoch = place.epoch
        self._is_begun = True
        self._iteration = iteration

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

    def _adopt(self, state: Any) -> Place:
        """The place that a state means; its lanes are taken over."""
        place, lanes, order = parse_state(state)
        here = self._facts(self._plan())
        check_order({**order, **self._lanes_fact(lanes)}, {**here, **self._lanes_fact(self.lanes)})
        self.lanes = lanes
        self._origin = place
        return place

    def _lanes_fact(self, lanes: int) -> dict[str, int]:
        """Lanes that are not free to follow a state's."""
        return {"lanes": lanes}


def _digest(indices: Indices | None) -> str | None:
    return None if indices is None else digest(np.asarray(indices, "<i8").tobytes())

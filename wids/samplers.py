"""Torch samplers, thin over `wids.order`: chunks of a lane in a new order for each epoch, mixed a window at a time.

Rules: every rank yields the same number of indices, whatever the length and the world size, and ``len`` is that
number. An order is a function of (seed, epoch) alone. ``set_epoch`` decides the next iteration's epoch; without it each
iteration takes the next one. Explicit ``rank`` and ``num_replicas`` always win. A state is one position in the global
order, so it is the same on every rank and good for any number of them.
"""

from __future__ import annotations

import os
import random
import warnings
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch.distributed
from torch.utils.data import Sampler
from torch.utils.data.distributed import DistributedSampler

from wids.cache.prefetch import prefetch
from wids.order import cursor
from wids.order.config import EpochConfig
from wids.order.epoch import Plan
from wids.order.iteration import Iteration, Run
from wids.order.layout import fingerprint, layout, takes_marks
from wids.order.state import START, Place, build_state, check_order, parse_state
from wids.order.validation import parse_int, parse_range, parse_ranges, shard_ends

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Sized

    from wids.cache.prefetch import Prefetcher
    from wids.order.epoch import Tail
    from wids.order.layout import Layout
    from wids.order.permutation import Indices

    Reshuffle = Literal["fixed", "epoch"]


class _EpochSampler(Sampler[int]):
    """What the samplers have in common: a config, a cursor, and a state.

    A subclass with an ``__iter__`` of its own has no state, for nothing here knows how far its loop is: its
    ``state_dict`` is None, and loaders that resume draw again what was drawn. If it yields what ``super().__iter__()``
    yields, it keeps the state by saying so, as a class with an ``__eq__`` keeps its ``__hash__``::

        state_dict, load_state_dict = ChunkedSampler.state_dict, ChunkedSampler.load_state_dict

    Attributes:
        seed: any integer, modulo 2**64. shuffle: whether the order is mixed at all.
        shufflefirst: as given; it decides nothing, for every epoch shuffles its chunks, the first one too.
        chunksize, window: as given. lanes: the lanes of the global order.
    """

    # One rank that reads all of it; `DistributedChunkedSampler` assigns these.
    num_replicas = 1
    rank = 0
    tail: Tail = "pad"
    reshuffle: Reshuffle = "fixed"
    _epochs: int | None = 1
    _epoch_size: int | None = None
    _layout: Layout | None = None
    _takes_lanes = False  # those of a state; otherwise they have to be the same

    def __init__(
        self,
        dataset: Any,
        *,
        window: int,
        seed: int,
        shuffle: bool,
        shufflefirst: bool,
        chunksize: int = 1,
        num_samples: Any = None,
        chunks: Indices | None = None,
    ) -> None:
        # Without super().__init__(): DistributedSampler's knows no range and insists on a process group.
        self.dataset: Any = dataset
        self.seed = parse_int("seed", seed)
        self.shuffle = shuffle
        self.shufflefirst = shufflefirst
        self.chunksize = parse_int("chunksize", chunksize, least=1)
        self.window = parse_int("window", window, least=1)
        self.lanes = 1
        self._lo, self._hi = (0, 0) if chunks is not None else parse_range(num_samples, n=len(dataset))
        self._chunks = chunks
        self._length: int | None = None
        self._cursor: cursor.Cursor = cursor.NotStarted()
        self._origin = START
        self._fingerprint: str | None = None
        self._rng: random.Random | None = None
        self._epoch_rng: tuple[int, random.Random] | None = None
        self._prefetcher: weakref.ref[Prefetcher] | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__iter__" in vars(cls) and "state_dict" not in vars(cls):
            cls.state_dict = cls.load_state_dict = None  # type: ignore[assignment,method-assign]

    def __iter__(self) -> Iterator[int]:
        return Iteration(self)

    def __len__(self) -> int:
        config = self._config()
        return config.count(self._current_place(config))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cursor": cursor.without_run(self._cursor), "_prefetcher": None}

    # --- epochs

    @property
    def epoch(self) -> int:
        """The epoch of the iteration that began last, or that ``set_epoch`` chose for the next one; may be assigned."""
        return self._cursor.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        epoch, now = parse_int("epoch", epoch), self._cursor
        if isinstance(now, cursor.Loaded) and now.epoch != epoch and self._config().is_in_the_middle(now.place):
            warnings.warn(
                f"epoch {epoch} was set after a state in the middle of epoch {now.epoch} was loaded; the rest of that "
                f"epoch is left out. To resume in it, begin with set_epoch({now.epoch}), or without",
                stacklevel=3,
            )
        self._cursor, self._epoch_rng = cursor.choose(now, epoch), None

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; one that has begun goes on as it was.

        After `load_state_dict`, the epoch of the state resumes in it, and any other begins at its beginning.
        """
        self.epoch = epoch

    @property
    def rng(self) -> random.Random:
        """For subclasses that shuffle by themselves: one generator for each epoch; one that is assigned stays."""
        if self._rng is not None:
            return self._rng
        if self._epoch_rng is None or self._epoch_rng[0] != self.epoch:
            rng = random.Random(f"{self.seed} {self.epoch}")  # noqa: S311 - an order, not a secret
            self._epoch_rng = self.epoch, rng
        return self._epoch_rng[1]

    @rng.setter
    def rng(self, rng: random.Random) -> None:
        self._rng = rng

    # --- counts

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The chunks as (lo, hi), half-open, in a new list; assign one to yield just its samples, each once.

        Raises:
            ValueError: the rank has none of its own: lanes are shared out among ranks, or chunks anew in each epoch.
        """
        return [(lo, hi) for lo, hi in self._config().ranges().tolist()]

    @ranges.setter
    def ranges(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._chunks, self._length = parse_ranges(ranges), None

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
        config = self._config()
        return config.count_valid(self._current_place(config))

    def _current_place(self, config: EpochConfig) -> Place:
        """Where the epoch that `epoch` names began, or will begin, to be read."""
        run = cursor.current_run(self._cursor)
        return cursor.next_place(self._cursor, config) if run is None else run.place

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
        now = self._cursor
        run = cursor.current_run(now, is_counted=bool(consumed or yielded))
        is_over = run is not None and not isinstance(now, cursor.Running)
        if run is None:  # one that is to begin
            run, config = Run(), self._config()
            run.begin(config, cursor.next_place(now, config))
        count = run.count_received(consumed, yielded, is_over=is_over)
        return self._state(run.config, run.place_after(count))

    def load_state_dict(self, state: Any) -> None:
        """Let the next iteration go on where ``state`` was taken; on any number of ranks, workers and batch sizes.

        All ranks load the same state. An epoch of which nothing is left is followed by the next one, unless `set_epoch`
        names it.

        Raises:
            StateError: it belongs to another dataset, seed or setting (the message lists what differs), or is damaged.
        """
        self._cursor, self._epoch_rng = cursor.load(self._cursor, self._adopt(state)), None

    def _state(self, config: EpochConfig, place: Place) -> dict[str, Any]:
        return build_state(place, lanes=config.lanes, order=self._order(config))

    def _order(self, config: EpochConfig) -> dict[str, Any]:
        """What a position's meaning depends on, besides the lanes."""
        if self._fingerprint is None:
            self._fingerprint = fingerprint(self.dataset)
        return {"dataset": self._fingerprint, **config.facts}

    def _adopt(self, state: Any) -> cursor.Loaded:
        """What a state means here; its lanes are taken over."""
        place, lanes, order = parse_state(state)
        there, here = order, self._order(self._config())
        if not self._takes_lanes:
            there, here = {**there, "lanes": lanes}, {**here, "lanes": self.lanes}
        check_order(there, here)
        self.lanes, self._origin = lanes, place
        return cursor.Loaded(place, {**order, "lanes": lanes})

    # --- iterations

    def _config(self) -> EpochConfig:
        """What an iteration that begins now follows; attributes may have been assigned."""
        lanes = parse_int("lanes", self.lanes, least=1)
        mixing: dict[str, Any] = {
            "window": parse_int("window", self.window, least=1),
            "is_shuffled": bool(self.shuffle),
            "seed": parse_int("seed", self.seed),
        }
        if self._chunks is not None:  # this rank's alone
            plan, regrouping = Plan(chunks=self._chunks, chunksize=1, lanes=1, **mixing), None
            world, rank = 1, 0
        else:
            boundaries, regrouping = None, None
            if self._layout is not None:
                boundaries, regrouping = self._layout.arrange(self._lo, self._hi, is_sorted=mixing["is_shuffled"])
            plan = Plan(
                lo=self._lo,
                hi=self._hi,
                boundaries=boundaries,
                chunksize=parse_int("chunksize", self.chunksize, least=1),
                lanes=lanes,
                is_dealt=self.reshuffle == "epoch",
                **mixing,
            )
            world, rank = parse_int("num_replicas", self.num_replicas, least=1), parse_int("rank", self.rank)
        return EpochConfig(
            plan=plan,
            regrouping=regrouping,
            lanes=lanes,
            world=world,
            rank=rank,
            tail=self.tail,
            epochs=self._epochs,
            epoch_size=self._epoch_size,
            length=self._length,
            origin=self._origin,
        )

    def _prefetch(self, run: Run) -> Prefetcher | None:
        """Fetch the shards that a run comes to ahead of it; see ``ShardListDataset(prefetch=)``."""
        before = None if self._prefetcher is None else self._prefetcher()
        if before is not None:  # of an iteration that was left, and is still held
            before.end(is_finished=False)
        found = prefetch(self.dataset, partial(run.config.blocks, run.place), position=lambda: run.drawn)
        self._prefetcher = None if found is None else weakref.ref(found)
        return found


class ChunkedSampler(_EpochSampler):
    """Chunks of consecutive samples in random order, a few of them mixed at a time: shuffled, and still local.

    Args:
        dataset: anything with ``len()``.
        dslength_per_replica: how many indices to yield, if above 0, instead of the whole range once: more begin the
            epoch again, fewer stop early.
        num_samples: the range: ``n`` for ``0 .. n``, or ``(lo, hi)``; default the whole dataset.
        chunksize: samples in a chunk.
        window: chunks that are mixed at a time; 1 mixes each by itself.
        seed: with the epoch, all that the order depends on.
        shuffle: False yields the range in order.
        shufflefirst: accepted for the original's sake; every epoch shuffles its chunks, the first one too.

    Attributes:
        ranges: the chunks as (lo, hi), half-open; may be assigned.

    Raises:
        ValueError: a range outside the dataset, a chunksize below 1, or no integer where one belongs.
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        dslength_per_replica: int = -1,
        num_samples: int | tuple[int, int] | None = None,
        chunksize: int = 2000,
        window: int = 4,
        seed: int = 0,
        shuffle: bool = True,
        shufflefirst: bool = False,
    ) -> None:
        super().__init__(
            dataset,
            num_samples=num_samples,
            chunksize=chunksize,
            window=window,
            seed=seed,
            shuffle=shuffle,
            shufflefirst=shufflefirst,
        )
        length = parse_int("dslength_per_replica", dslength_per_replica)
        if length > 0:
            if self._lo == self._hi:
                raise ValueError(
                    f"dslength_per_replica is {length}, and there is no sample in the range {self._lo} .. {self._hi}"
                )
            self.dslength_per_replica = length


class DistributedChunkedSampler(ChunkedSampler, DistributedSampler[int]):
    """The rank's equal share of a dataset in random chunks; resumable anywhere, on any number of ranks.

    The range is cut in ``lanes`` near-equal lanes of consecutive samples. All ranks together read one global order, in
    which the lanes take turns: with as many lanes as ranks a rank reads its lane and no other, so a shard is fetched by
    few ranks, mostly one. `wids.order.epoch` has the definition and a picture.

    Args:
        dataset: anything with ``len()``; shard boundaries are used where it has ``lengths``, and through
            `torch.utils.data.Subset` and ``ConcatDataset``. A subset in another order (`random_split`) is read shard by
            shard if it is shuffled.
        num_replicas: default: the process group's size, else ``$WORLD_SIZE``, else 1.
        num_samples: the range to share out: ``n``, or ``(lo, hi)``; default the whole dataset.
        rank: default: 0 of one replica, else the process group's, else ``$RANK``.
        shuffle: False yields each lane in order.
        shufflefirst: accepted for the original's sake.
        seed: the same on all ranks.
        drop_last: True is ``tail="drop"``, False ``tail="pad"``.
        chunksize: the most samples in a chunk; chunks are cut at shard boundaries too.
        window: chunks that are mixed at a time, so that a batch draws on several shards; 1 mixes each by itself.
        tail: what becomes of an epoch that the ranks do not divide: ``"pad"`` (default) repeats a sample on some ranks,
            ``"drop"`` leaves out fewer samples than there are ranks, ``"mask"`` pads, and every sample dict has
            ``__valid__``, False on those repeated: for exact evaluation.
        lanes: default: ``num_replicas``, or those of a loaded state.
        reshuffle: ``"fixed"``: a lane is the same part of the range in all epochs, so a node's cache stays useful;
            ``"epoch"``: chunks are dealt to the lanes anew in each epoch.
        epochs: passes in one iteration, one after another without a tail between them; None: it never ends.
        epoch_size: samples of all ranks in a nominal epoch. Nominal epochs cut the endless sequence of passes, so that
            every sample is seen equally often; their ends are rounded up to equal counts on all ranks.

    Attributes:
        num_samples: indices that this and every other rank yields, that is ``len``. total_size: of all ranks together.
        num_valid: how many of the rank's indices are not repeated.
        ranges: the rank's chunks as (lo, hi), half-open; may be assigned, and then equal counts are the caller's task.

    Raises:
        ValueError: a rank that is unknown or outside ``0 .. num_replicas``, a range outside the dataset, a chunksize
            below 1, settings that exclude each other, or no integer where one belongs.
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        num_replicas: int | None = None,
        num_samples: int | tuple[int, int] | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        shufflefirst: bool = False,
        seed: int = 0,
        drop_last: bool | None = None,
        chunksize: int = 10_000,
        window: int = 4,
        tail: Tail | None = None,
        lanes: int | None = None,
        reshuffle: Reshuffle = "fixed",
        epochs: int | None = 1,
        epoch_size: int | None = None,
    ) -> None:
        super().__init__(
            dataset,
            num_samples=num_samples,
            chunksize=chunksize,
            window=window,
            seed=seed,
            shuffle=shuffle,
            shufflefirst=shufflefirst,
        )
        self.num_replicas, self.rank = _parse_rank(num_replicas, rank)
        self.tail = _parse_tail(tail, drop_last)
        self.drop_last = self.tail == "drop"
        if reshuffle not in ("fixed", "epoch"):
            raise ValueError(f"reshuffle is {reshuffle!r}; it is 'fixed' or 'epoch'")
        self.reshuffle = reshuffle
        self._takes_lanes = lanes is None
        self.lanes = self.num_replicas if lanes is None else parse_int("lanes", lanes, least=1)
        self._epochs = None if epochs is None else parse_int("epochs", epochs, least=1)
        self._epoch_size = None if epoch_size is None else parse_int("epoch_size", epoch_size, least=1)
        if self._epoch_size is not None and self._epochs != 1:
            raise ValueError(f"epochs is {epochs} and epoch_size {epoch_size}; one of them says when an iteration ends")
        self._layout = layout(dataset)
        self._config().first_place(0)  # nominal epochs of less than a sample for each rank are refused here
        if self.tail == "mask" and not takes_marks(dataset):
            raise ValueError(
                f"tail='mask' puts __valid__ into the samples of a ShardListDataset, and a {type(dataset).__name__} "
                "does not hand it the sampler's indices as they are. Use tail='pad': of the rank's samples the first "
                "sampler.num_valid count (a dataset that does hand them on says so with takes_marked_indices = True)"
            )

    @property
    def num_samples(self) -> int:  # type: ignore[override]  # assigned there; here it cannot differ from len
        """Indices that every rank yields."""
        return len(self)

    @property
    def total_size(self) -> int:  # type: ignore[override]  # assigned there; here it cannot differ from len
        """Indices that all ranks yield together."""
        return self.num_samples * self.num_replicas


class ShardListSampler(_EpochSampler):
    """All shards in random order, the samples of each mixed: one pass that opens each shard once.

    Args:
        dataset: with ``lengths``; anything if ``lengths`` is given.
        lengths: samples in each shard.
        window: shards that are mixed at a time.
        seed: with the epoch, all that the order depends on.
        shufflefirst: accepted for the original's sake.

    Attributes:
        ranges: each shard's (lo, hi), half-open; may be assigned.

    Raises:
        ValueError: lengths that are missing, negative or no integers.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        lengths: Sequence[int] | None = None,
        window: int = 1,
        seed: int = 0,
        shufflefirst: bool = False,
    ) -> None:
        given = getattr(dataset, "lengths", None) if lengths is None else lengths
        ends = shard_ends(given)
        if ends is None:
            raise ValueError(f"lengths is {given!r:.200}; it is the number of samples in each shard")
        chunks = np.stack([np.append(0, ends[:-1])[: len(ends)], ends], axis=1)
        super().__init__(dataset, chunks=chunks, window=window, seed=seed, shuffle=True, shufflefirst=shufflefirst)


ShardedSampler = ShardListSampler


def _parse_tail(tail: Tail | None, drop_last: bool | None) -> Tail:  # noqa: FBT001 - as the callers name it
    if tail is None:
        return "drop" if drop_last else "pad"
    if tail not in ("pad", "drop", "mask"):
        raise ValueError(f"tail is {tail!r}; it is 'pad', 'drop' or 'mask'")
    if drop_last is not None and bool(drop_last) != (tail == "drop"):
        raise ValueError(f"tail is {tail!r} and drop_last {drop_last}; they contradict each other")
    return tail


def _parse_rank(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """(world, rank), each by itself: as given, else of the process group, else of the launcher's environment."""
    has_group = torch.distributed.is_available() and torch.distributed.is_initialized()
    if num_replicas is not None:
        world = parse_int("num_replicas", num_replicas)
    else:
        world = torch.distributed.get_world_size() if has_group else _environ_int("WORLD_SIZE", default=1)
    if rank is not None:
        mine = parse_int("rank", rank)
    elif world <= 1:
        mine = 0
    else:
        # -1: of several replicas this is one, and nothing says which; each reading lane 0 would go unnoticed.
        mine = torch.distributed.get_rank() if has_group else _environ_int("RANK", default=-1)
        if mine < 0:
            raise ValueError(f"rank is not given: num_replicas is {world}, without a process group or $RANK")
    if not 0 <= mine < world:
        # It begins as torch's own samplers have it: programs and their tests look for these words.
        raise ValueError(
            f"Invalid rank {mine} where num_replicas is {world}: a rank is at least 0 and below num_replicas, which is "
            "at least 1"
        )
    return world, mine


def _environ_int(name: str, *, default: int) -> int:
    text = os.environ.get(name, "").strip()
    try:
        return int(text) if text else default
    except ValueError:
        raise ValueError(f"${name} is {text!r}; it is an integer") from None

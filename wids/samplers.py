"""Torch samplers, thin over `wids.order`: chunks of a lane in a new order for each epoch, mixed a window at a time.

Rules: every rank yields the same number of indices, whatever the length and the world size, and ``len`` is that
number. An order is a function of (seed, epoch) alone. ``set_epoch`` decides the next iteration's epoch; without it each
iteration takes the next one. Explicit ``rank`` and ``num_replicas`` always win. A state is one position in the global
order, so it is the same on every rank and good for any number of them.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch.distributed
from torch.utils.data import Sampler
from torch.utils.data.distributed import DistributedSampler

from wids.cache.prefetch import prefetch
from wids.order.layout import layout, takes_marks
from wids.order.validation import parse_int, shard_ends
from wids.order.walk import EpochWalk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence, Sized

    from wids.cache.prefetch import Prefetcher
    from wids.order.epoch import Tail
    from wids.order.permutation import Indices
    from wids.order.walk import Progress

    Reshuffle = Literal["fixed", "epoch"]


class _Ahead(EpochWalk):
    """An `EpochWalk` that lets the shards it comes to be fetched ahead; see ``ShardListDataset(prefetch=)``."""

    _prefetcher: weakref.ref[Prefetcher] | None = None

    def _watch(self, begin: Callable[[], Iterator[Indices]], progress: Progress) -> Prefetcher | None:
        before = None if self._prefetcher is None else self._prefetcher()
        if before is not None:  # of an iteration that was left, and that somebody still holds
            before.end(is_finished=False)
        found = prefetch(self.dataset, begin, position=lambda: progress.drawn)
        self._prefetcher = None if found is None else weakref.ref(found)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_prefetcher": None}


class ChunkedSampler(_Ahead, Sampler[int]):
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
        # What DistributedSampler would have set; its own constructor knows no range and insists on a process group.
        self.num_replicas, self.rank = _parse_rank(num_replicas, rank)
        self.tail = _parse_tail(tail, drop_last)
        self.drop_last = self.tail == "drop"
        if reshuffle not in ("fixed", "epoch"):
            raise ValueError(f"reshuffle is {reshuffle!r}; it is 'fixed' or 'epoch'")
        self.reshuffle = reshuffle
        EpochWalk.__init__(
            self,
            dataset,
            num_samples=num_samples,
            chunksize=chunksize,
            window=window,
            seed=seed,
            shuffle=shuffle,
            shufflefirst=shufflefirst,
            epochs=epochs,
            epoch_size=epoch_size,
        )
        self._layout = layout(dataset)
        self._has_own_lanes = lanes is not None
        self.lanes = self.num_replicas if lanes is None else parse_int("lanes", lanes, least=1)
        if self._is_stream() and self._hi > self._lo:
            self._size()
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

    def _seat(self) -> tuple[int, int]:
        # Chunks that were assigned are this rank's alone.
        if self._chunks is not None:
            return 1, 0
        return parse_int("num_replicas", self.num_replicas, least=1), parse_int("rank", self.rank)

    def _tail(self) -> Tail:
        return self.tail

    def _is_masked(self) -> bool:
        return self.tail == "mask"

    def _is_dealt(self) -> bool:
        return self.reshuffle == "epoch"

    def _lanes_fact(self, lanes: int) -> dict[str, int]:
        return {"lanes": lanes} if self._has_own_lanes else {}


class ShardListSampler(_Ahead, Sampler[int]):
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
        world = parse_int("num_replicas", num_replicas, least=1)
    else:
        world = torch.distributed.get_world_size() if has_group else _environ_int("WORLD_SIZE", default=1)
    if rank is not None:
        mine = parse_int("rank", rank)
    elif world == 1:
        mine = 0
    else:
        # -1: of several replicas this is one, and nothing says which; each reading lane 0 would go unnoticed.
        mine = torch.distributed.get_rank() if has_group else _environ_int("RANK", default=-1)
        if mine < 0:
            raise ValueError(f"rank is not given: num_replicas is {world}, without a process group or $RANK")
    if not 0 <= mine < world:
        raise ValueError(f"rank is {mine} and num_replicas {world}; rank is at least 0 and below num_replicas")
    return world, mine


def _environ_int(name: str, *, default: int) -> int:
    text = os.environ.get(name, "").strip()
    try:
        return int(text) if text else default
    except ValueError:
        raise ValueError(f"${name} is {text!r}; it is an integer") from None

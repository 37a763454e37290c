"""Torch samplers, thin over `wids.order`: chunks of a lane in a new order for each epoch, mixed inside.

Rules: every rank yields the same number of indices, whatever the length and the world size, and ``len`` is that
number. An order is a function of (seed, epoch) alone. ``set_epoch`` decides the next iteration's epoch; without it each
iteration takes the next one. Explicit ``rank`` and ``num_replicas`` always win.
"""

from __future__ import annotations

import operator
import os
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.distributed
from torch.utils.data import Sampler
from torch.utils.data.distributed import DistributedSampler

from wids.order.epoch import cut_chunks, iterate_chunks, lane_bounds, lane_length

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Sized

    from wids.order.epoch import Tail
    from wids.order.permute import Indices

_SEED_STEP = 1_000_003


class _EpochSampler(Sampler[int]):
    """Counts epochs: ``set_epoch`` decides, else each iteration takes the next one."""

    def __init__(self, *, seed: int, shuffle: bool, shufflefirst: bool) -> None:
        self.seed = seed
        self.shuffle = shuffle
        self.shufflefirst = shufflefirst  # accepted: chunk order is shuffled from epoch 0 on either way
        self.epoch = 0
        self._is_used = False
        self._rng: tuple[int, random.Random] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
        self.epoch = operator.index(epoch)
        self._is_used = False

    @property
    def rng(self) -> random.Random:
        """A generator of this epoch's own, for subclasses that shuffle by themselves."""
        if self._rng is None or self._rng[0] != self.epoch:
            self._rng = (self.epoch, random.Random(self.seed + _SEED_STEP * self.epoch))  # noqa: S311 - not a secret
        return self._rng[1]

    def _begin(self) -> int:
        """The epoch of an iteration that begins now."""
        if self._is_used:
            self.epoch += 1
        self._is_used = True
        return self.epoch


class ChunkedSampler(_EpochSampler):
    """Chunks of consecutive samples in random order, mixed inside: shuffled, and still local.

    Args:
        dataset: anything with ``len()``.
        dslength_per_replica: how many indices to yield, if not as many as the range holds: more repeats from its
            beginning, fewer stops early.
        num_samples: the range: ``n`` for ``0 .. n``, or ``(lo, hi)``; default the whole dataset.
        chunksize: samples in a chunk.
        seed: with the epoch, all that the order depends on.
        shuffle: False yields the range in order.
        shufflefirst: accepted for the original's sake; every epoch shuffles its chunks, the first one too.

    Attributes:
        ranges: the chunks as (lo, hi), half-open; may be assigned.

    Raises:
        ValueError: a range outside the dataset, or a chunksize below 1.
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        dslength_per_replica: int = -1,
        num_samples: int | tuple[int, int] | None = None,
        chunksize: int = 2000,
        seed: int = 0,
        shuffle: bool = True,
        shufflefirst: bool = False,
    ) -> None:
        super().__init__(seed=seed, shuffle=shuffle, shufflefirst=shufflefirst)
        lo, hi = _parse_range(dataset, num_samples)
        if chunksize < 1:
            raise ValueError(f"chunksize is {chunksize}; it is at least 1")
        self.chunksize = chunksize
        self._chunks = cut_chunks(lo, hi, chunksize=chunksize)
        self._length = dslength_per_replica if dslength_per_replica > 0 else hi - lo

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The chunks as (lo, hi)."""
        return [(lo, hi) for lo, hi in self._chunks.tolist()]

    @ranges.setter
    def ranges(self, value: Sequence[tuple[int, int]]) -> None:
        self._chunks = np.asarray(list(value), np.int64).reshape(-1, 2)
        self._length = int((self._chunks[:, 1] - self._chunks[:, 0]).sum())

    @property
    def dslength_per_replica(self) -> int:
        """How many indices an iteration yields."""
        return self._length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        return _take(self._chunks, self._length, seed=self.seed, epoch=self._begin(), is_shuffled=self.shuffle)


class DistributedChunkedSampler(ChunkedSampler, DistributedSampler[int]):
    """The rank's equal share of a dataset in random chunks.

    The range is cut in ``num_replicas`` near-equal lanes of consecutive samples; a rank reads its lane and no other, so
    each shard is fetched by one or two ranks. Where lanes differ by one, the shorter ones repeat one of their samples
    (``drop_last=True``: the longer ones leave one out), so all ranks yield the same count.

    Args:
        dataset: anything with ``len()``; shard boundaries are used where it has ``lengths``.
        num_replicas: default: the process group's size, else ``$WORLD_SIZE``, else 1.
        num_samples: the range to share out: ``n``, or ``(lo, hi)``; default the whole dataset.
        rank: default: the process group's, else ``$RANK``, else 0.
        shuffle: False yields the lane in order.
        shufflefirst: accepted for the original's sake.
        seed: the same on all ranks.
        drop_last: drop the tail instead of padding it.
        chunksize: samples in a chunk, cut at shard boundaries.

    Attributes:
        num_samples: indices that this and every other rank yields. total_size: of all ranks together.

    Raises:
        ValueError: a rank outside ``0 .. num_replicas``, a range outside the dataset, a chunksize below 1.
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
        chunksize: int = 2000,
    ) -> None:
        world, rank = _parse_rank(num_replicas, rank)
        lo, hi = _parse_range(dataset, num_samples)
        mine = lane_bounds(lo, hi, rank=rank, world=world)
        ChunkedSampler.__init__(
            self,
            dataset,
            num_samples=mine,
            chunksize=chunksize,
            seed=seed,
            shuffle=shuffle,
            shufflefirst=shufflefirst,
        )
        self.dataset: Any = dataset  # DistributedSampler declares a Dataset; only its len is used
        self.num_replicas, self.rank = world, rank
        self.drop_last = bool(drop_last)
        tail: Tail = "drop" if drop_last else "pad"
        self._length = self.num_samples = lane_length(hi - lo, world=world, tail=tail)
        self.total_size = self.num_samples * world
        if mine[0] == mine[1] and self._length:
            borrowed = lo + rank % (hi - lo)
            mine = (borrowed, borrowed + 1)
        self._chunks = cut_chunks(*mine, chunksize=chunksize, boundaries=_boundaries(dataset))


class ShardListSampler(_EpochSampler):
    """All shards in random order, the samples of each mixed: one pass that opens each shard once.

    Args:
        dataset: with ``lengths``; anything if ``lengths`` is given.
        lengths: samples in each shard.
        seed: with the epoch, all that the order depends on.
        shufflefirst: accepted for the original's sake.

    Attributes:
        ranges: each shard's (lo, hi).
    """

    def __init__(
        self, dataset: Any, *, lengths: Sequence[int] | None = None, seed: int = 0, shufflefirst: bool = False
    ) -> None:
        super().__init__(seed=seed, shuffle=True, shufflefirst=shufflefirst)
        ends = np.cumsum(dataset.lengths if lengths is None else lengths, dtype=np.int64)
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]]) if len(ends) else ends
        self._chunks = np.stack([starts, ends], axis=1)

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Each shard's samples as (lo, hi)."""
        return [(lo, hi) for lo, hi in self._chunks.tolist()]

    def __len__(self) -> int:
        return int((self._chunks[:, 1] - self._chunks[:, 0]).sum())

    def __iter__(self) -> Iterator[int]:
        return _take(self._chunks, len(self), seed=self.seed, epoch=self._begin(), is_shuffled=True)


ShardedSampler = ShardListSampler


def _take(chunks: Indices, length: int, *, seed: int, epoch: int, is_shuffled: bool) -> Iterator[int]:
    """Exactly ``length`` indices of the chunks' epoch, going round again where they hold fewer."""
    left = length
    while left > 0 and len(chunks):
        before = left
        for indices in iterate_chunks(chunks, seed=seed, epoch=epoch, is_shuffled=is_shuffled):
            part = indices[:left].tolist()
            left -= len(part)
            yield from part
            if not left:
                return
        if left == before:
            return


def _parse_range(dataset: Sized, num_samples: int | tuple[int, int] | None) -> tuple[int, int]:
    n = len(dataset)
    if num_samples is None:
        return 0, n
    bounds = num_samples if isinstance(num_samples, (tuple, list)) else (0, num_samples)
    lo, hi = (operator.index(bound) for bound in bounds)
    if not 0 <= lo <= hi <= n:
        raise ValueError(f"num_samples is {num_samples!r}: the range {lo} .. {hi} is not inside a dataset of {n}")
    return lo, hi


def _parse_rank(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """(world, rank): as given, else of the process group, else of the launcher's environment, else 1 and 0."""
    world, mine = 1, 0
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        world, mine = torch.distributed.get_world_size(), torch.distributed.get_rank()
    elif "WORLD_SIZE" in os.environ and "RANK" in os.environ:
        world, mine = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    world = world if num_replicas is None else operator.index(num_replicas)
    if rank is None:
        # A world of the caller's own has nothing to do with the launcher's ranks, unless they fit.
        rank = mine if mine < world or num_replicas is None else -1
        if rank < 0:
            raise ValueError(f"num_replicas is {world} and this process has rank {mine}; give rank= too")
    rank = operator.index(rank)
    if world < 1 or not 0 <= rank < world:
        raise ValueError(f"rank is {rank} and num_replicas {world}; rank is at least 0 and below num_replicas")
    return world, rank


def _boundaries(dataset: Any) -> Indices | None:
    """Where shards end in the dataset's indices; None for a dataset that does not say."""
    lengths = getattr(dataset, "lengths", None)
    if lengths is None:
        return None
    try:
        ends = np.cumsum(np.asarray(lengths, dtype=np.int64), dtype=np.int64)
    except (TypeError, ValueError):  # some other dataset's `lengths`, not samples in shards
        return None
    return ends if ends.ndim == 1 and len(ends) and ends[-1] == len(dataset) else None

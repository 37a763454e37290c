"""Torch samplers, thin over `wids.order`: chunks of a lane in a new order for each epoch, mixed inside.

Rules: every rank yields the same number of indices, whatever the length and the world size, and ``len`` is that
number. An order is a function of (seed, epoch) alone. ``set_epoch`` decides the next iteration's epoch; without it each
iteration takes the next one. Explicit ``rank`` and ``num_replicas`` always win.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.distributed
from torch.utils.data import Sampler
from torch.utils.data.distributed import DistributedSampler

from wids.order.arguments import parse_int, parse_range, parse_ranges, shard_ends
from wids.order.epoch import cut_chunks, iterate_lane, lane_length, lane_source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Sized

    from wids.order.permute import Indices


class _RangeSampler(Sampler[int]):
    """Ranges in a new order for each epoch, and the count of epochs.

    Attributes:
        dslength_per_replica: how many indices an iteration yields, that is ``len``.
        seed: any integer, modulo 2**64. shuffle: whether the order is mixed at all.
        shufflefirst: as given; it decides nothing, for every epoch shuffles its chunks, the first one too.
    """

    def __init__(self, chunks: Indices, *, seed: int, shuffle: bool, shufflefirst: bool) -> None:
        self.seed = parse_int("seed", seed)
        self.shuffle = shuffle
        self.shufflefirst = shufflefirst
        self._rng: random.Random | None = None
        self._is_rng_assigned = False
        self.epoch = 0
        self._set_chunks(chunks)

    @property
    def epoch(self) -> int:
        """The epoch of the iteration that began last, or that ``set_epoch`` chose for the next one; may be assigned."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch = parse_int("epoch", epoch)
        self._is_begun = False
        if not self._is_rng_assigned:
            self._rng = None

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; one that has begun goes on as it was."""
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

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The chunks as (lo, hi), half-open, in a new list; assign one to yield just its samples, each once."""
        return [(lo, hi) for lo, hi in self._chunks.tolist()]

    @ranges.setter
    def ranges(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._set_chunks(parse_ranges(ranges))

    def _set_chunks(self, chunks: Indices) -> None:
        self._chunks = chunks
        self.dslength_per_replica = int((chunks[:, 1] - chunks[:, 0]).sum())

    def __len__(self) -> int:
        return self.dslength_per_replica

    def __iter__(self) -> Iterator[int]:
        # A generator, so that the epoch is taken with the first index: DataLoader makes two iterators of a sampler and
        # advances one where it has workers and no batches (batch_size=None), which would skip an epoch each time.
        if self._is_begun:
            self.epoch += 1
        self._is_begun = True
        seed = parse_int("seed", self.seed)
        yield from iterate_lane(self._chunks, length=len(self), seed=seed, epoch=self.epoch, is_shuffled=self.shuffle)


class ChunkedSampler(_RangeSampler):
    """Chunks of consecutive samples in random order, mixed inside: shuffled, and still local.

    Args:
        dataset: anything with ``len()``.
        dslength_per_replica: how many indices to yield, if above 0, instead of the whole range once: more begin the
            epoch again, fewer stop early.
        num_samples: the range: ``n`` for ``0 .. n``, or ``(lo, hi)``; default the whole dataset.
        chunksize: samples in a chunk.
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
        seed: int = 0,
        shuffle: bool = True,
        shufflefirst: bool = False,
    ) -> None:
        lo, hi = parse_range(num_samples, n=len(dataset))
        chunks = cut_chunks(lo, hi, chunksize=parse_int("chunksize", chunksize, least=1))
        super().__init__(chunks, seed=seed, shuffle=shuffle, shufflefirst=shufflefirst)
        length = parse_int("dslength_per_replica", dslength_per_replica)
        if length > 0:
            if lo == hi:
                raise ValueError(f"dslength_per_replica is {length}, and there is no sample in the range {lo} .. {hi}")
            self.dslength_per_replica = length


class DistributedChunkedSampler(ChunkedSampler, DistributedSampler[int]):
    """The rank's equal share of a dataset in random chunks.

    The range is cut in ``num_replicas`` near-equal lanes of consecutive samples; a rank reads its lane and no other, so
    a shard is fetched by few ranks, mostly one. Where lanes differ by one, the shorter ones repeat one of their samples
    (``drop_last=True``: the longer ones leave one out), so all ranks yield the same count.

    Args:
        dataset: anything with ``len()``; shard boundaries are used where it has ``lengths``.
        num_replicas: default: the process group's size, else ``$WORLD_SIZE``, else 1.
        num_samples: the range to share out: ``n``, or ``(lo, hi)``; default the whole dataset.
        rank: default: 0 of one replica, else the process group's, else ``$RANK``.
        shuffle: False yields the lane in order.
        shufflefirst: accepted for the original's sake.
        seed: the same on all ranks.
        drop_last: drop the tail instead of padding it.
        chunksize: the most samples in a chunk; chunks are cut at shard boundaries too.

    Attributes:
        num_samples: indices that this and every other rank yields, that is ``len``. total_size: of all ranks together.
        ranges: the rank's chunks as (lo, hi), half-open; may be assigned, and then equal counts are the caller's task.

    Raises:
        ValueError: a rank that is unknown or outside ``0 .. num_replicas``, a range outside the dataset, a chunksize
            below 1, or no integer where one belongs.
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
        lo, hi = parse_range(num_samples, n=len(dataset))
        chunksize = parse_int("chunksize", chunksize, least=1)
        mine = lane_source(lo, hi, rank=rank, world=world)
        chunks = cut_chunks(*mine, chunksize=chunksize, boundaries=_boundaries(dataset))
        _RangeSampler.__init__(self, chunks, seed=seed, shuffle=shuffle, shufflefirst=shufflefirst)
        self.dslength_per_replica = lane_length(hi - lo, world=world, tail="drop" if drop_last else "pad")
        # What DistributedSampler would have set; its own constructor knows no range and insists on a process group.
        self.dataset: Any = dataset
        self.num_replicas, self.rank, self.drop_last = world, rank, bool(drop_last)

    @property
    def num_samples(self) -> int:  # type: ignore[override]  # assigned there; here it cannot differ from len
        """Indices that every rank yields."""
        return self.dslength_per_replica

    @property
    def total_size(self) -> int:  # type: ignore[override]  # assigned there; here it cannot differ from len
        """Indices that all ranks yield together."""
        return self.num_samples * self.num_replicas


class ShardListSampler(_RangeSampler):
    """All shards in random order, the samples of each mixed: one pass that opens each shard once.

    Args:
        dataset: with ``lengths``; anything if ``lengths`` is given.
        lengths: samples in each shard.
        seed: with the epoch, all that the order depends on.
        shufflefirst: accepted for the original's sake.

    Attributes:
        ranges: each shard's (lo, hi), half-open; may be assigned.

    Raises:
        ValueError: lengths that are missing, negative or no integers.
    """

    def __init__(
        self, dataset: Any, *, lengths: Sequence[int] | None = None, seed: int = 0, shufflefirst: bool = False
    ) -> None:
        given = getattr(dataset, "lengths", None) if lengths is None else lengths
        ends = shard_ends(given)
        if ends is None:
            raise ValueError(f"lengths is {given!r:.200}; it is the number of samples in each shard")
        chunks = np.stack([np.append(0, ends[:-1])[: len(ends)], ends], axis=1)
        super().__init__(chunks, seed=seed, shuffle=True, shufflefirst=shufflefirst)


ShardedSampler = ShardListSampler


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


def _boundaries(dataset: Any) -> Indices | None:
    """Where shards end in the dataset's indices; None for a dataset that does not say."""
    ends = shard_ends(getattr(dataset, "lengths", None))
    # Some other dataset's `lengths` (of its sentences, say) are not samples in shards, and would not add up.
    return ends if ends is not None and len(ends) and ends[-1] == len(dataset) else None

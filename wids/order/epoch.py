"""One epoch: sample range -> the equal lanes of the ranks -> chunks -> indices.

    n = 10, world = 4, tail = "pad"      lane 0: 0 1 [0]   lane 1: 2 3 4   lane 2: 5 6 [5]   lane 3: 7 8 9
                       tail = "drop"     lane 0: 0 1       lane 1: 2 3     lane 2: 5 6       lane 3: 7 8
    n = 2,  world = 4, tail = "pad"      lane 0: [0]       lane 1: 0       lane 2: [0]       lane 3: 1
                       tail = "drop"     lane 0:           lane 1:         lane 2:           lane 3:

Every lane yields the same number of samples (the pictures are unshuffled; ``[i]`` is a repetition). ``pad`` repeats
what the lane itself began with, and a lane without a sample of its own (n < world) borrows one; ``drop`` leaves out at
most one sample a lane, the last of its epoch. Cost of an iteration: O(chunks in the lane + one chunk).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from wids.order.permute import CHUNKS, SAMPLES, permutation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wids.order.permute import Indices

Tail = Literal["pad", "drop"]


def lane_bounds(lo: int, hi: int, *, rank: int, world: int) -> tuple[int, int]:
    """The half-open part of ``lo .. hi`` that is lane ``rank``: parts differ by at most one sample and cover all."""
    n = hi - lo
    return lo + rank * n // world, lo + (rank + 1) * n // world


def lane_length(n: int, *, world: int, tail: Tail) -> int:
    """Samples that every lane yields of ``n``."""
    return n // world if tail == "drop" else -(-n // world)


def lane_source(lo: int, hi: int, *, rank: int, world: int) -> tuple[int, int]:
    """What lane ``rank`` of ``lo .. hi`` reads: its own part, or one borrowed sample where that is empty.

    Empty only if the whole range is.
    """
    first, last = lane_bounds(lo, hi, rank=rank, world=world)
    if first == last and lo < hi:
        first = lo + rank % (hi - lo)
        last = first + 1
    return first, last


def cut_chunks(lo: int, hi: int, *, chunksize: int, boundaries: Indices | None = None) -> Indices:
    """Cut ``lo .. hi`` at ``boundaries`` and, from each of them on, every ``chunksize`` samples.

    Args:
        lo: the first sample.
        hi: one past the last.
        chunksize: the most samples in a chunk, at least 1.
        boundaries: sorted indices where a shard ends and the next begins, repeated where shards are empty; so a chunk
            is read from one shard.

    Returns:
        (nchunks, 2), half-open, none empty.
    """
    if hi <= lo:
        return np.zeros((0, 2), np.int64)
    chunksize = min(chunksize, hi - lo)  # numpy's integers have an end
    edges = np.array([lo, hi], np.int64)
    if boundaries is not None:
        first, last = np.searchsorted(boundaries, (lo, hi), side="right")
        edges = np.sort(np.concatenate([edges, boundaries[first:last]]))
        edges = edges[np.append(True, np.diff(edges) > 0)]  # np.unique would import numpy.ma late; see MemberTable
    counts = -(-np.diff(edges) // chunksize)
    starts = np.repeat(edges[:-1], counts)
    steps = np.arange(len(starts)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = starts + steps * chunksize
    return np.stack([starts, np.append(starts[1:], hi)], axis=1)


def iterate_chunks(chunks: Indices, *, seed: int, epoch: int, is_shuffled: bool) -> Iterator[Indices]:
    """Yield the indices of each chunk; shuffled: the chunks in this epoch's order, each mixed inside.

    Args:
        chunks: (nchunks, 2), half-open.
        seed: with the epoch and each chunk's place, all that the order depends on.
        epoch: any integer.
        is_shuffled: False yields all in the order given.
    """
    if is_shuffled:
        chunks = chunks[permutation(len(chunks), seed=seed, epoch=epoch, stream=CHUNKS)]
    # Row by row: a list of all chunks would cost more time and memory than the first index may.
    for lo, hi in map(np.ndarray.tolist, chunks):
        if is_shuffled:
            yield lo + permutation(hi - lo, seed=seed, epoch=epoch, stream=SAMPLES, position=lo)
        else:
            yield np.arange(lo, hi)


def iterate_lane(chunks: Indices, *, length: int, seed: int, epoch: int, is_shuffled: bool) -> Iterator[int]:
    """Yield exactly ``length`` indices of the chunks' epoch, from its beginning again where the chunks hold fewer.

    Raises:
        ValueError: there is nothing to repeat.
    """
    left = length
    while left > 0:
        before = left
        for indices in iterate_chunks(chunks, seed=seed, epoch=epoch, is_shuffled=is_shuffled):
            part = indices[:left].tolist()
            left -= len(part)
            yield from part
            if not left:
                return
        if left == before:
            raise ValueError(f"{length} samples are to come out of ranges that hold none")

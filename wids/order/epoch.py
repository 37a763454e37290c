"""One epoch: sample range -> the equal lanes of the ranks -> chunks -> indices.

    n = 10, world = 4, tail = "pad"      lane 0: 0 1 [0]   lane 1: 2 3 4   lane 2: 5 6 [5]   lane 3: 7 8 9
                       tail = "drop"     lane 0: 0 1       lane 1: 2 3     lane 2: 5 6       lane 3: 7 8

Every lane yields the same number of samples; ``pad`` repeats what the lane itself began with (a lane without a sample
of its own, n < world, repeats one of the range), ``drop`` leaves out at most one sample a lane. Cost of an iteration:
O(chunks in the lane + one chunk).
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
    """Samples that every rank yields of ``n``."""
    return n // world if tail == "drop" else -(-n // world)


def cut_chunks(lo: int, hi: int, *, chunksize: int, boundaries: Indices | None = None) -> Indices:
    """Cut ``lo .. hi`` every ``chunksize`` samples and at ``boundaries`` (sorted: where shards end).

    A chunk that spans no boundary is read from one shard. Returns (nchunks, 2), half-open.
    """
    if hi <= lo:
        return np.zeros((0, 2), np.int64)
    edges = np.array([lo, hi], np.int64)
    if boundaries is not None:
        first, last = np.searchsorted(boundaries, (lo, hi), side="right")
        edges = np.unique(np.concatenate([edges, boundaries[first:last]]).clip(lo, hi))
    counts = -(-np.diff(edges) // chunksize)
    starts = np.repeat(edges[:-1], counts)
    steps = np.arange(len(starts)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = starts + steps * chunksize
    return np.stack([starts, np.append(starts[1:], hi)], axis=1)


def iterate_chunks(
    chunks: Indices, *, seed: int, epoch: int, is_shuffled: bool, is_chunk_shuffled: bool | None = None
) -> Iterator[Indices]:
    """Yield the indices of each chunk, chunks in this epoch's order and mixed inside.

    Args:
        chunks: (nchunks, 2), half-open.
        seed: with the epoch and each chunk's place, all that the order depends on.
        epoch: any integer.
        is_shuffled: mix inside chunks.
        is_chunk_shuffled: permute the chunks; as ``is_shuffled`` unless given.
    """
    if is_chunk_shuffled is None:
        is_chunk_shuffled = is_shuffled
    if is_chunk_shuffled:
        chunks = chunks[permutation(len(chunks), seed=seed, epoch=epoch, stream=CHUNKS)]
    for lo, hi in chunks.tolist():
        if is_shuffled:
            yield lo + permutation(hi - lo, seed=seed, epoch=epoch, stream=SAMPLES, position=lo)
        else:
            yield np.arange(lo, hi)

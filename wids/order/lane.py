"""One lane of an epoch: chunks in their order, mixed a window at a time.

    chunks     [0 1 2] [3 4 5] [6 7]        a lane's samples, cut at shard boundaries and every `chunksize`
    shuffled   [6 7] [0 1 2] [3 4 5]        another order in each epoch
    window 2   {1 7 0 2 6}  {4 3 5}         `window` chunks are mixed at a time; 1 mixes each chunk by itself

Rules: any row can be had without those before it; what is kept is the chunks' table and one window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wids.order.permutation import SAMPLES, permutation

if TYPE_CHECKING:
    from wids.order.permutation import Indices


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


def slice_chunks(chunks: Indices, ends: Indices, first: int, last: int) -> Indices:
    """The chunks, or parts of chunks, that hold the ``first .. last`` of all the samples in ``chunks``.

    Args:
        chunks: (nchunks, 2), half-open.
        ends: the running sum of their lengths.
        first: counted over the chunks, in their order.
        last: one past the end, counted likewise.
    """
    if first >= last:
        return np.zeros((0, 2), np.int64)
    begin, end = int(np.searchsorted(ends, first, side="right")), int(np.searchsorted(ends, last, side="left")) + 1
    part = chunks[begin:end].copy()
    part[-1, 1] -= ends[end - 1] - last
    part[0, 0] += first - (ends[begin - 1] if begin else 0)
    return part


def expand(chunks: Indices) -> Indices:
    """All samples of ``chunks`` in turn: (nchunks, 2) half-open -> (nsamples,)."""
    sizes = chunks[:, 1] - chunks[:, 0]
    offsets = np.cumsum(sizes) - sizes
    samples: Indices = np.arange(int(sizes.sum())) + np.repeat(chunks[:, 0] - offsets, sizes)
    return samples


class Lane:
    """The rows of a lane in one epoch; ``len`` is how many.

    Args:
        chunks: (nchunks, 2), half-open, in this epoch's order.
        window: chunks mixed at a time, at least 1.
        seed: with the epoch and each window's first sample, all that the order within it depends on.
        epoch: any integer.
        is_shuffled: False leaves the samples in the chunks' order.
    """

    def __init__(self, chunks: Indices, *, window: int, seed: int, epoch: int, is_shuffled: bool) -> None:
        self._chunks = chunks
        self._window = min(window, max(len(chunks), 1))
        self._seed, self._epoch, self._is_shuffled = seed, epoch, is_shuffled
        ends = np.cumsum(chunks[:, 1] - chunks[:, 0])
        # Row at which each window ends; the last one may hold fewer chunks.
        self._ends = np.append(
            ends[self._window - 1 :: self._window], ends[len(ends) - len(ends) % self._window :][-1:]
        )
        self._mixed: tuple[int, int, Indices] = (0, 0, ends[:0])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def rows(self, first: int, count: int, stride: int = 1) -> Indices:
        """The samples in rows ``first``, ``first + stride``, ...: (count,). All of them lie in the lane."""
        parts = []
        while count > 0:
            lo, hi, samples = self._mixed
            if not lo <= first < hi:
                lo, hi, samples = self._mixed = self._mix(int(np.searchsorted(self._ends, first, side="right")))
            taken = min(count, -(-(hi - first) // stride))
            parts.append(samples[first - lo : first - lo + (taken - 1) * stride + 1 : stride])
            first, count = first + taken * stride, count - taken
        return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else self._ends[:0]

    def _mix(self, k: int) -> tuple[int, int, Indices]:
        """Window ``k``: its first row, its last row + 1, and its samples."""
        lo, hi = int(self._ends[k - 1]) if k else 0, int(self._ends[k])
        chunks = self._chunks[k * self._window : (k + 1) * self._window]
        samples = expand(chunks)
        if self._is_shuffled:
            where = int(chunks[0, 0])
            samples = samples[permutation(hi - lo, seed=self._seed, epoch=self._epoch, stream=SAMPLES, position=where)]
        return lo, hi, samples

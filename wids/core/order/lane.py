"""One lane of an epoch: chunks in their order, mixed within a window that slides over them.

    chunks     [0 1 2] [3 4 5] [6 7]        a lane's samples, cut at shard boundaries and every `chunksize`
    shuffled   [6 7] [3 4 5] [0 1 2]        another order in each epoch
    window 2   {4 3 6 7}  {1 2 5 0}         slot k mixes chunks k .. k + window - 1; 1 mixes each chunk by itself

A chunk's samples are permuted and split over the slots that hold it; each of them gets its share, rounded down or up.
So one chunk comes and one goes with each slot, and a reader that is one slot ahead needs ``window + 1`` of them. Any
row can be computed without those before it. In memory are the table of chunks, and the samples of one window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wids.core.order.permutation import PARTS, ROUNDING, SAMPLES, permutation, random_words
from wids.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from wids.core.order.permutation import Indices

# Chunks of a lane, of which each takes some 40 bytes and a microsecond; an index may promise any number of samples.
MAX_CHUNKS = 1 << 26
# Samples of a chunk, or of a block of batches, which are in memory together: 2 GiB.
MAX_TOGETHER = 1 << 28


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

    Raises:
        InputError: they are more than `MAX_CHUNKS`, or one has more than `MAX_TOGETHER` samples.
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
    if int(counts.sum()) > MAX_CHUNKS:
        raise InputError(
            f"{hi - lo:,} samples in chunks of at most {chunksize:,} are {int(counts.sum()):,} chunks, and a rank "
            f"holds at most {MAX_CHUNKS:,}; raise chunksize, or see whether the index is right"
        )
    largest = min(chunksize, int(np.diff(edges).max()))
    if largest > MAX_TOGETHER:
        raise InputError(
            f"a chunk has {largest:,} samples, and a rank holds at most {MAX_TOGETHER:,}; lower chunksize, or see "
            "whether the index is right"
        )
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
        last: one past the end, counted the same.
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


def matches(block: Indices, wanted: Indices) -> list[int]:
    """Places of the wanted samples, which ascend, each once, in a block of n: (n,), (nwanted,) -> at most n."""
    if len(wanted) == 1:
        return np.flatnonzero(block == wanted[0]).tolist()
    at = np.searchsorted(wanted, block)
    at[at == len(wanted)] = 0
    return np.flatnonzero(wanted[at] == block).tolist()


class Lane:
    """The rows of a lane in one epoch; ``len`` is their number.

    Args:
        chunks: (nchunks, 2), half-open, in this epoch's order.
        window: chunks mixed at a time, at least 1.
        seed: with the epoch and the first samples of chunks, all that the order within the lane depends on.
        epoch: any integer.
        is_shuffled: False leaves the samples in the chunks' order.

    Attributes:
        chunks: the argument.
    """

    def __init__(self, chunks: Indices, *, window: int, seed: int, epoch: int, is_shuffled: bool) -> None:
        self.chunks = chunks
        self._sizes = chunks[:, 1] - chunks[:, 0]
        self._ends = np.cumsum(self._sizes)
        self._window = min(window, max(len(chunks), 1)) if is_shuffled else 1
        self._nslots = len(chunks) - self._window + 1 if len(chunks) else 0
        self._seed, self._epoch, self._is_shuffled = seed, epoch, is_shuffled
        self._rounding: NDArray[np.uint64] | None = None  # of each chunk, which of its parts are rounded up
        self._permuted: dict[int, Indices] = {}  # the samples of chunks in the slot that was read last
        self._slot = -1, 0, 0, self._ends[:0]  # its number, its first row, its last row + 1, its samples

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def rows(self, first: int, count: int, stride: int = 1) -> Indices:
        """The samples in rows ``first``, ``first + stride``, ...: (count,). All of them lie in the lane."""
        parts = []
        while count > 0:
            _, lo, hi, samples = self._slot
            if not lo <= first < hi:
                _, lo, hi, samples = self._slot = self._mix(*self._find(first))
            taken = min(count, -(-(hi - first) // stride))
            parts.append(samples[first - lo : first - lo + (taken - 1) * stride + 1 : stride])
            first, count = first + taken * stride, count - taken
        return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else self._ends[:0]

    def take(self, rows: Indices) -> Indices:
        """The samples in n ascending rows: (n,) -> (n,)."""
        taken = np.empty(len(rows), np.int64)
        done = 0
        while done < len(rows):
            first = int(rows[done])
            _, lo, hi, samples = self._slot
            if not lo <= first < hi:
                _, lo, hi, samples = self._slot = self._mix(*self._find(first))
            end = int(np.searchsorted(rows, hi, side="left"))
            taken[done:end] = samples[rows[done:end] - lo]
            done = end
        return taken

    def before(self, row: int) -> tuple[Indices, Indices]:
        """The samples in the rows before one: whole chunks, (nchunks, 2), half-open, and others, (n,)."""
        if row >= len(self):
            return self.chunks, self._ends[:0]
        slot, first, _ = self._find(row)
        begun = np.arange(slot, min(slot + self._window, len(self.chunks)))
        counts = self._count_before(begun, slot).tolist()
        parts = [self._permute(chunk)[:count] for chunk, count in zip(begun.tolist(), counts, strict=True) if count]
        return self.chunks[:slot], np.concatenate([*parts, self.rows(first, row - first)])

    def find(self, wanted: Indices) -> Iterator[tuple[int, int]]:
        """(row, sample) of those of the wanted samples that it holds; the slots that mix their chunks are read.

        Args:
            wanted: samples, ascending, each once: (nwanted,).
        """
        by_start = np.argsort(self.chunks[:, 0], kind="stable")
        starts = self.chunks[by_start, 0]
        at = np.searchsorted(starts, wanted, side="right") - 1
        chunks = by_start[at[at >= 0]]
        inside = wanted[at >= 0]
        chunks = np.unique(chunks[inside < self.chunks[chunks, 1]])
        slots = {
            slot
            for chunk in chunks.tolist()
            for slot in range(max(chunk - self._window + 1, 0), min(chunk, self._nslots - 1) + 1)
        }
        for slot in sorted(slots):
            first, end = self._start(slot), self._start(slot + 1)
            if first == end:
                continue
            if self._slot[0] != slot:
                self._slot = self._mix(slot, first, end)
            _, lo, _, samples = self._slot
            for k in matches(samples, wanted):
                yield lo + k, int(samples[k])

    def slot_starts(self) -> Indices:
        """The first row of each slot, and the end of the last one: (nslots + 1,)."""
        slots = np.arange(self._nslots + 1)
        starts = np.append(0, self._ends)[slots]
        for i in range(self._window - 1):
            starts += self._count_before(slots + i, slots)
        return starts

    def _find(self, row: int) -> tuple[int, int, int]:
        """The slot that holds a row: its number, its first row, and its last row + 1."""
        k, _, end, _ = self._slot
        if row == end and k + 1 < self._nslots and (after := self._start(k + 2)) > row:
            return k + 1, end, after
        chunk = int(np.searchsorted(self._ends, row, side="right"))  # in which it would be without a window
        lo, hi = max(chunk - self._window + 1, 0), min(chunk, self._nslots - 1)
        while lo < hi:
            middle = (lo + hi) // 2
            if row < self._start(middle + 1):
                hi = middle
            else:
                lo = middle + 1
        return lo, self._start(lo), self._start(lo + 1)

    def _start(self, k: int) -> int:
        """The first row of slot ``k``: after all of the chunks before chunk ``k``, and parts of those behind."""
        before = int(self._ends[k - 1]) if k else 0
        chunks = np.arange(k, min(k + self._window - 1, len(self.chunks)))
        return before + int(self._count_before(chunks, k).sum())

    def _count_before(self, chunks: Indices, k: int | Indices) -> Indices:
        """Number of samples of chunks in slots before slot ``k``, none of which is behind those of the chunks."""
        first = np.maximum(chunks - self._window + 1, 0)  # the first slot that holds the chunk
        nslots = np.minimum(chunks, self._nslots - 1) - first + 1
        if self._rounding is None:
            where, n = int(self.chunks[0, 0]), len(self.chunks)
            self._rounding = random_words(n, seed=self._seed, epoch=self._epoch, stream=ROUNDING, position=where)
        rounding = (self._rounding[chunks] % nslots.astype(np.uint64)).astype(np.int64)
        counts: Indices = ((k - first) * self._sizes[chunks] + rounding) // nslots
        return counts

    def _mix(self, k: int, lo: int, hi: int) -> tuple[int, int, int, Indices]:
        """Slot ``k``, which is rows ``lo .. hi``."""
        if k == self._slot[0] + 1:
            self._permuted.pop(k - 1, None)
        else:
            self._permuted.clear()
        chunks = np.arange(k, min(k + self._window, len(self.chunks)))
        begins, ends = self._count_before(chunks, k), self._count_before(chunks, k + 1)
        pieces = [self._permute(k + i)[begins[i] : ends[i]] for i in np.flatnonzero(ends > begins).tolist()]
        if k == self._nslots - 1:
            self._permuted.clear()  # no slot behind it needs them
        samples = np.concatenate(pieces)
        if self._is_shuffled:
            samples = samples[self._permutation(hi - lo, SAMPLES, k)]
        return k, lo, hi, samples

    def _permute(self, chunk: int) -> Indices:
        """The samples of a chunk, in random order if it is read in several slots."""
        samples = self._permuted.get(chunk)
        if samples is None:
            lo, hi = self.chunks[chunk].tolist()
            samples = lo + self._permutation(hi - lo, PARTS, chunk) if self._window > 1 else np.arange(lo, hi)
            self._permuted[chunk] = samples
        return samples

    def _permutation(self, n: int, stream: int, chunk: int) -> Indices:
        where = int(self.chunks[chunk, 0])
        return permutation(n, seed=self._seed, epoch=self._epoch, stream=stream, position=where)

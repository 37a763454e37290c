"""Packs as `batches.py` judges them: each contender's batches as runs of tokens, numbered over all documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]

PACK_TOKENS = 8192

# Figure -> its title, how it is written, what is to be reached (of ours).
ROWS = {
    "empty": ("room that is empty", "{:.2%}", 1 / 64),
    "lost": ("tokens lost in an epoch", "{:,.0f}", 0),
    "repeated": ("repeated", "{:,.0f}", 0),
    "broken": ("documents that are not whole", "{:.2%}", None),
    "uneven": ("ranks differ by batches", "{:,.0f}", 0),
}
# Figure of many documents -> its title, the most, its unit, and how many of it are one.
SCALE = {
    "first_cpu": ("first pack, CPU time", 0.5, "s", 1),
    "loaded_cpu": ("state loaded, and next pack, CPU time", 50, "ms", 1e3),
    "bytes": ("memory", 100, "MB", 1e-6),
}


@dataclass(frozen=True)
class Runs:
    """The batches of a rank.

    Attributes:
        starts: the first token of each run: (nruns,). sizes: tokens of each: (nruns,).
        runs: the number of runs of each batch: (n,). rooms: its tokens, with those that fill up: (n,).
    """

    starts: Indices
    sizes: Indices
    runs: Indices
    rooms: Indices

    def __len__(self) -> int:
        return len(self.runs)

    def split(self, batches: int) -> tuple[Runs, Runs]:
        """The first so many, and the others."""
        at = int(self.runs[:batches].sum())
        return (
            Runs(self.starts[:at], self.sizes[:at], self.runs[:batches], self.rooms[:batches]),
            Runs(self.starts[at:], self.sizes[at:], self.runs[batches:], self.rooms[batches:]),
        )

    def is_same(self, other: Runs) -> bool:
        """Whether these are the same batches."""
        return all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in ("starts", "sizes", "runs", "rooms")
        )


def read(saved: Any, number: int, lengths: Indices) -> Runs:
    """The batches of a rank that a contender has saved: as runs, or as samples, which are padded to their longest."""
    if f"indices{number}" not in saved:
        return Runs(*(saved[f"{name}{number}"] for name in ("starts", "sizes", "runs", "rooms")))
    indices, counts = saved[f"indices{number}"], saved[f"counts{number}"]
    longest = np.maximum.reduceat(lengths[indices], np.cumsum(counts) - counts)
    return Runs((np.cumsum(lengths) - lengths)[indices], lengths[indices], counts, longest * counts)


def count_tokens(ranks: list[Runs], lengths: Indices) -> Indices:
    """How often each token comes: (ntokens,)."""
    starts = np.concatenate([rank.starts for rank in ranks])
    ends = starts + np.concatenate([rank.sizes for rank in ranks])
    most = int(lengths.sum()) + 1
    return np.cumsum(np.bincount(starts, minlength=most) - np.bincount(ends, minlength=most))[:-1]


def judge(ranks: list[Runs], lengths: Indices) -> dict[str, float]:
    """The figures of an epoch."""
    starts, sizes = (np.concatenate([getattr(rank, name) for rank in ranks]) for name in ("starts", "sizes"))
    begins = np.cumsum(lengths) - lengths
    documents = np.searchsorted(begins, starts, side="right") - 1
    is_whole = (begins[documents] == starts) & (sizes == lengths[documents])
    times, steps = count_tokens(ranks, lengths), list(map(len, ranks))
    return {
        "empty": 1 - float(sizes.sum() / sum(rank.rooms.sum() for rank in ranks)),
        "lost": int((times == 0).sum()),
        "repeated": int((times[times > 1] - 1).sum()),
        "broken": 1 - len(np.unique(documents[is_whole])) / len(lengths),
        "uneven": max(steps) - min(steps),
        "steps": min(steps),
    }

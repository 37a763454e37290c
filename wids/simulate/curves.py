"""Cache use, bandwidth and stalls over steps, in few enough points to be drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from wids.order.permutation import Indices
    from wids.simulate.outcome import SimulationResult


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Over steps, counted over all epochs.

    Attributes:
        steps: where each stretch ends; (n,).
        used_bytes: of each node, in its cache at the end of each stretch, shards on their way included.
        bandwidth: of each node, bytes a second in the stretch.
        stall_seconds: of each node, how long steps waited for it in the stretch.
    """

    steps: list[int]
    used_bytes: list[list[int]]
    bandwidth: list[list[float]]
    stall_seconds: list[list[float]]


def draw(found: SimulationResult, *, points: int = 200) -> Curves:
    """The curves of a simulation, in ``points`` stretches or fewer."""
    marks = np.array(found.marks or [(0.0, 0)])
    last = int(marks[-1, 1])
    edges = np.unique(np.linspace(0, max(last, 1), points + 1).astype(np.int64))
    # A step that waited has two times; the later one is when it began.
    steps, first = np.unique(marks[::-1, 1], return_index=True)
    times = np.interp(edges, steps, marks[::-1, 0][first])
    used, bandwidth, stalls = [], [], []
    for number, log in enumerate(found.log):
        table = np.array(log)
        at = np.searchsorted(table[:, 0], times, side="right") - 1
        used.append(table[at, 1][1:].astype(np.int64).tolist())
        fetched = np.interp(times, table[:, 0], table[:, 2])  # a shard comes evenly while it has the link
        fetched[0] = 0.0  # shards that came before the first step count to it
        spans = np.diff(np.append(0.0, times[1:]))
        bandwidth.append((np.diff(fetched) / np.maximum(spans, 1e-9)).tolist())
        stalls.append(_sum_within(edges, [(s.step, s.seconds) for s in found.stalls if s.node == number]).tolist())
    return Curves(steps=edges[1:].tolist(), used_bytes=used, bandwidth=bandwidth, stall_seconds=stalls)


def _sum_within(edges: Indices, values: list[tuple[int, float]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    sums = np.zeros(len(edges) - 1)
    for step, seconds in values:
        sums[min(max(int(np.searchsorted(edges, step, side="right")) - 1, 0), len(sums) - 1)] += seconds
    return sums

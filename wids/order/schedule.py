"""Which samples a rank reads at a step of an epoch, and which rank reads a sample at which step.

The order is computed by `wids.order.epoch` alone. A batch is found by seeking; a sample by going
through the lane that holds it, a window at a time. Steps are those of a DataLoader with a ``batch_size``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wids.order.epoch import EpochOrder, end_position

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wids.order.epoch import Plan, Tail
    from wids.order.permutation import Indices

# Each lane that was searched keeps a window in memory; after so many of them they are dropped.
_LANES_AT_A_TIME = 64


class Reading(NamedTuple):
    """A sample being read.

    Attributes:
        rank: by which rank.
        step: in which of its batches, from 0.
        place: at which place in the batch, from 0.
        is_repeated: some rank has read it before in this epoch; it fills up the tail.
    """

    rank: int
    step: int
    place: int
    is_repeated: bool


class Timetable:
    """Who reads what and when, in one epoch.

    Args:
        plan: the order's.
        epoch: any integer.
        world: how many ranks read it, at least 1.
        batch_size: samples in a rank's batch, at least 1.
        tail: what becomes of an epoch that the ranks do not divide; ``"mask"`` reads as ``"pad"`` does.

    Attributes:
        samples: that each rank reads in the epoch. steps: batches of each rank; the last one may be smaller.
    """

    def __init__(self, plan: Plan, *, epoch: int, world: int, batch_size: int, tail: Tail) -> None:
        self.plan, self.epoch, self.world, self.batch_size = plan, epoch, world, batch_size
        self._end = end_position(len(plan), start=0, world=world, tail=tail)
        self.samples = self._end // world
        self.steps = -(-self.samples // batch_size)

    def batch(self, rank: int, step: int) -> tuple[Indices, list[bool]]:
        """A batch of a rank: its samples in order, (n,), and which of them are repeated; 0 <= step < steps."""
        first, last = step * self.batch_size, min((step + 1) * self.batch_size, self.samples)
        start = rank + first * self.world
        blocks = EpochOrder(self.plan, self.epoch).blocks(start, last * self.world, self.world)
        found = np.concatenate([np.zeros(0, np.int64), *blocks])
        return found, [start + k * self.world >= len(self.plan) for k in range(len(found))]

    def find(self, indices: Iterable[int]) -> dict[int, list[Reading]]:
        """When each sample is read, in the order of the epoch; ``[]``: it is not.

        Memory: a window of each of 64 lanes at most.
        """
        readings: dict[int, list[Reading]] = {index: [] for index in indices}
        plan, n = self.plan, len(self.plan)
        wanted = np.array(sorted(index for index in readings if plan.lo <= index < plan.hi), np.int64)
        if not len(wanted):
            return readings
        missing, lanes = len(wanted), self._lanes(wanted)
        for count, lane in enumerate(lanes):
            if count % _LANES_AT_A_TIME == 0:
                order = EpochOrder(plan, self.epoch)
            left = self._in_lane(wanted, lane)
            position = lane
            for block in order.blocks(lane, n, plan.lanes):
                for k in _matches(block, wanted):
                    self._note(readings[int(block[k])], position + k * plan.lanes)
                    missing, left = missing - 1, left - 1
                position += len(block) * plan.lanes
                if not left:  # a lane holds each of its samples once
                    break
            if not missing:
                break
        if n < plan.lanes:  # lanes without samples repeat those of others
            lanes = list(range(plan.lanes))
        self._find_repeated(readings, wanted, lanes)
        return readings

    def _find_repeated(self, readings: dict[int, list[Reading]], wanted: Indices, lanes: list[int]) -> None:
        """Readings past the end of the order, of which there are fewer than ranks, in some lanes."""
        n, of = len(self.plan), self.plan.lanes
        order = EpochOrder(self.plan, self.epoch)
        positions = sorted(t for lane in lanes for t in range(n + (lane - n) % of, self._end, of))
        for t in positions:
            for block in order.blocks(t, t + 1):
                if len(_matches(block, wanted)):
                    self._note(readings[int(block[0])], t)

    def _note(self, found: list[Reading], position: int) -> None:
        if position < self._end:
            at, rank = divmod(position, self.world)
            step, place = divmod(at, self.batch_size)
            found.append(Reading(rank, step, place, position >= len(self.plan)))

    def _lanes(self, wanted: Indices) -> list[int]:
        """The lanes that may hold some of the samples."""
        return [lane for lane in range(self.plan.lanes) if self._in_lane(wanted, lane)]

    def _in_lane(self, wanted: Indices, lane: int) -> int:
        """How many of the samples a lane holds, at most."""
        plan = self.plan
        if plan.is_dealt and plan.is_shuffled:
            return len(wanted)
        lo, hi = plan.lane_bounds(lane)
        return int(np.searchsorted(wanted, plan.lo + hi) - np.searchsorted(wanted, plan.lo + lo))


def _matches(block: Indices, wanted: Indices) -> list[int]:
    """Where in a block one of the samples, which are sorted, is: (n,), (m,) -> at most n."""
    if len(wanted) == 1:
        return np.flatnonzero(block == wanted[0]).tolist()
    at = np.searchsorted(wanted, block)
    at[at == len(wanted)] = 0
    return np.flatnonzero(wanted[at] == block).tolist()

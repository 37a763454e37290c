"""Which samples a rank reads at a step of an epoch, and which rank reads a sample at which step.

The order is computed by `wids.order.epoch` and `wids.order.mixture` alone. A batch is found by seeking; a sample by
going through the lane that holds it, a window at a time. Steps are those of a DataLoader with a ``batch_size``.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wids.order.config import EpochConfig
from wids.order.epoch import EpochOrder, Plan
from wids.order.mixture import nominal_size
from wids.order.search import find_in_pass, find_in_stream, lanes_of, matches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wids.order.epoch import Tail
    from wids.order.mixture import MixturePlan
    from wids.order.permutation import Indices


class Reading(NamedTuple):
    """A sample being read.

    Attributes:
        rank: by which rank.
        step: in which of its batches, from 0.
        place: at which place in the batch, from 0.
        is_repeated: some rank has read it before in this epoch, and it fills up the tail; of a nominal one none does.
    """

    rank: int
    step: int
    place: int
    is_repeated: bool


class Timetable:
    """Who reads what and when, in one epoch.

    Args:
        plan: the order's; that of a mixture has nominal epochs.
        epoch: any integer; a nominal one from 0 on.
        world: how many ranks read it, at least 1.
        batch_size: samples in a rank's batch, at least 1.
        tail: what becomes of an epoch that the ranks do not divide; ``"mask"`` reads as ``"pad"`` does.
        epoch_size: samples of all ranks in a nominal epoch; None: a pass, or as many as a mixture's sources have.

    Attributes:
        samples: that each rank reads in the epoch. steps: batches of each rank; the last one may be smaller.

    Raises:
        ValueError: there is no such nominal epoch, or it has less than a sample for each rank.
    """

    def __init__(
        self,
        plan: Plan | MixturePlan,
        *,
        epoch: int,
        world: int,
        batch_size: int,
        tail: Tail,
        epoch_size: int | None = None,
    ) -> None:
        self.plan, self.epoch, self.world, self.batch_size = plan, epoch, world, batch_size
        if not isinstance(plan, Plan):
            epoch_size = nominal_size(epoch_size or len(plan), batch=plan.batch)
        config = EpochConfig(plan=plan, lanes=plan.lanes, world=world, tail=tail, epoch_size=epoch_size)
        self._start, end = config.span(config.first_place(epoch))
        assert end is not None  # noqa: S101 - for the type checker: the epoch has a size
        self._end, self._is_stream = end, config.is_stream
        self.samples = (self._end - self._start) // world
        self.steps = -(-self.samples // batch_size)

    def batch(self, rank: int, step: int) -> tuple[Indices, list[bool]]:
        """A batch of a rank: its samples in order, (n,), and which of them are repeated; 0 <= step < steps."""
        first, last = step * self.batch_size, min((step + 1) * self.batch_size, self.samples)
        start = self._start + rank + first * self.world
        blocks = self._blocks(start, self._start + last * self.world, self.world)
        found = np.concatenate([np.zeros(0, np.int64), *blocks])
        return found, [self._is_repeated(start + k * self.world) for k in range(len(found))]

    def find(self, indices: Iterable[int]) -> dict[int, list[Reading]]:
        """When each sample is read; ``[]``: it is not.

        An epoch reads a sample once, and once more if it fills up the tail; a nominal one any number of times.

        Memory: a window of each of 64 lanes at most.
        """
        readings: dict[int, list[Reading]] = {index: [] for index in indices}
        plan, wanted = self.plan, np.array(sorted(readings), np.int64)
        if not isinstance(plan, Plan):
            found = plan.find(wanted, self._start, self._end)
        elif self._is_stream:
            found = find_in_stream(plan, wanted, self._start, self._end)
        else:
            found = chain(find_in_pass(plan, self.epoch, wanted), self._find_repeated(plan, wanted))
        for position, sample in sorted(found):
            if position < self._end:
                readings[sample].append(self._reading(position))
        return readings

    def _find_repeated(self, plan: Plan, wanted: Indices) -> Iterator[tuple[int, int]]:
        """Readings past the end of the order, of which there are fewer than ranks, in some lanes."""
        n, of = len(plan), plan.lanes
        # Lanes without samples repeat those of others.
        lanes = range(of) if n < of else lanes_of(plan, wanted)
        for position in [t for lane in lanes for t in range(n + (lane - n) % of, self._end, of)]:
            for block in self._blocks(position, position + 1):
                if len(matches(block, wanted)):
                    yield position, int(block[0])

    def _blocks(self, start: int, stop: int, step: int = 1) -> Iterator[Indices]:
        if isinstance(self.plan, Plan) and not self._is_stream:
            return EpochOrder(self.plan, self.epoch).blocks(start, stop, step)
        return self.plan.stream(start, stop, step)

    def _reading(self, position: int) -> Reading:
        at, rank = divmod(position - self._start, self.world)
        step, place = divmod(at, self.batch_size)
        return Reading(rank, step, place, self._is_repeated(position))

    def _is_repeated(self, position: int) -> bool:
        return not self._is_stream and position >= len(self.plan)

"""Which samples a rank reads at a step of an epoch, and which rank reads a sample at which step.

The order is computed by `wids.order.epoch` and `wids.order.mixture` alone. A batch is found by seeking; a sample by
going through the lane that holds it, a window at a time. Steps are those of a DataLoader with a ``batch_size``.

Batches of like length are those of `wids.order.batch_epochs`. How many there are before a step only cutting them tells:
each block of the epoch is cut once.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wids.order.batch_epochs import BatchPlace
from wids.order.config import EpochConfig
from wids.order.epoch import EpochOrder, Plan
from wids.order.mixture import nominal_size
from wids.order.search import find_in_pass, find_in_stream, lanes_of, matches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from wids.order.batch_epochs import BatchConfig
    from wids.order.batching import Batch
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
        config: of the samples.
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
        self.config = config
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


class BatchTimetable:
    """Who reads which batch of like length when, in one epoch.

    Args:
        config: of the batches.
        epoch: as of `Timetable`.
        on_block: called with the position of each block that is cut.

    Attributes:
        epoch: as given. world: how many ranks there are. steps: batches of each rank.
        too_long: samples of the dataset that are in no batch, for they are longer than the budget.

    Raises:
        ValueError: there is no such nominal epoch, or it has less than a sample for each rank.
    """

    def __init__(self, config: BatchConfig, *, epoch: int, on_block: Callable[[int], None] = lambda _: None) -> None:
        self._config, self.epoch, self.world, self.too_long = config, epoch, config.world, config.rule.skipped
        self._starts, self._before = list[int](), [0]  # of the blocks: positions, and the batches before each and all
        for block in config.cut(config.first_place(epoch)):
            on_block(block.position)
            self._starts.append(block.position)
            self._before.append(self._before[-1] + len(block))
        total = self._before[-1]
        self.steps = total // self.world if config.tail == "drop" else -(-total // self.world)

    def batch(self, rank: int, step: int) -> tuple[Indices, list[bool]]:
        """See `Timetable.batch`."""
        blocks = replace(self._config, rank=rank).blocks(self._place(step))
        found = next(batch for chunk in blocks for batch in chunk.batches)
        return found.samples, found.fills.tolist()

    def find(self, indices: Iterable[int]) -> dict[int, list[Reading]]:
        """See `Timetable.find`; where the samples lie in the epoch, all of it is looked through for."""
        readings: dict[int, list[Reading]] = {index: [] for index in indices}
        wanted = np.array(sorted(readings), np.int64)

        def look(rank: int, step: int, batch: Batch) -> None:
            for at in np.flatnonzero(np.isin(batch.samples, wanted)).tolist():
                readings[int(batch.samples[at])].append(Reading(rank, step, at, bool(batch.fills[at])))

        for number in self._blocks_with(wanted):
            block = next(self._config.cut(BatchPlace(self.epoch, self._starts[number])))
            for at in range(len(block)):
                step, rank = divmod(self._before[number] + at, self.world)
                if step < self.steps:
                    look(rank, step, block.batch(at))
        late = range(self._before[-1] % self.world or self.world, self.world)  # whose last batch fills up the tail
        if self._config.tail != "drop" and late:
            for chunks in self._config.deal(self._place(self.steps - 1), late):
                for rank, chunk in zip(late, chunks, strict=True):
                    for batch in chunk.batches:
                        look(rank, self.steps - 1, batch)
        return {index: sorted(found, key=lambda one: (one.step, one.rank)) for index, found in readings.items()}

    def _place(self, step: int) -> BatchPlace:
        """Where a step begins."""
        number = step * self.world
        at = bisect_right(self._before, number) - 1
        return BatchPlace(self.epoch, self._starts[at], number - self._before[at])

    def _blocks_with(self, wanted: Indices) -> list[int]:
        """The numbers of the blocks in which some of the samples are."""
        if not self._starts:
            return []
        config, position, found = self._config.lanes_config, self._starts[0], set[int]()
        stop = self._config.end(BatchPlace(self.epoch, position))
        for samples, _ in config.read(self.epoch, position, stop, has_seeds=False):
            for at in np.flatnonzero(np.isin(samples, wanted)).tolist():
                found.add(bisect_right(self._starts, position + at) - 1)
            position += len(samples)
        return sorted(found)

"""All that the order decides about a job, step by step.

Of the events of one step, visits end first, then prefetchers look, then batches are drawn without workers, then needed,
then drawn by a loader once the step has begun. What loaders draw before the first step happens at step -1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wids.order.permutation import Indices
    from wids.simulate.job import Epoch, TrainingJob
    from wids.simulate.trace import Visits

# A visit's last batch was handed out, or read; a rank's prefetcher sees a change; a visit's first batch is drawn, or
# needed.
END, READ, LOOK, DRAW_NOW, NEED, DRAW = range(6)
_BLOCK = 8192


class StepEvent(NamedTuple):
    """What happens at a step; of a LOOK only the rank counts."""

    step: int
    kind: int
    rank: int
    visit: int
    shard: int
    first: int
    last: int


def events_of(epoch: Epoch, job: TrainingJob) -> Indices:
    """All that the order decides, in the order in which it happens: the fields of `StepEvent`, (7, n)."""
    size, drawn = job.batch_size, job.drawn_ahead
    parts = []

    def add(kind: int, rank: int, steps: Indices, visits: Visits | None = None) -> None:
        none = np.zeros(len(steps), np.int64)
        columns = [none] * 3 if visits is None else [visits.shard, visits.first, visits.last]
        parts.append(np.stack([np.maximum(steps, -1), none + kind, none + rank, np.arange(len(steps)), *columns]))

    for rank, (visits, coming) in enumerate(zip(epoch.visits, epoch.coming, strict=True)):
        begins, ends = visits.first // size, visits.last // size + 1
        add(NEED, rank, begins, visits)
        add(END, rank, ends, visits)
        if job.cache_size is not None and job.steps_read_ahead:
            add(READ, rank, ends - job.steps_read_ahead, visits)
        add(DRAW if drawn else DRAW_NOW, rank, begins - drawn, visits)
        if job.prefetch != 0:
            add(LOOK, rank, _looks(coming, job))
    table = np.concatenate(parts, axis=1)
    order = np.lexsort((table[5], table[1], table[0]))
    return table[:, order]


def _looks(coming: Visits, job: TrainingJob) -> Indices:
    """The steps at which visits of a prefetcher begin, were drawn to their ends, or were read."""
    positions = np.concatenate([coming.first - 1, coming.last, coming.last + job.burst])
    return np.unique(np.maximum((positions - job.drawn_samples) // job.batch_size + 1, -1))


class Groups:
    """The events of one step at a time; the first group is that of step -1.

    Args:
        table: the fields of the events, in the order in which they happen: (7, n).
        last: steps beyond this one count as this one.
    """

    def __init__(self, table: Indices, last: int) -> None:
        self._rows, self._last = _rows(table), last
        self._next = next(self._rows, None)
        self._is_begun = False

    def peek(self) -> int:
        """The next step with events, at most the last."""
        return self._last if self._next is None else min(self._next.step, self._last)

    def __iter__(self) -> Iterator[tuple[int, list[StepEvent]]]:
        return self

    def __next__(self) -> tuple[int, list[StepEvent]]:
        step = self.peek() if self._is_begun else -1
        self._is_begun = True
        found = []
        while self._next is not None and min(self._next.step, self._last) == step:
            found.append(self._next)
            self._next = next(self._rows, None)
        return step, found


def _rows(table: Indices) -> Iterator[StepEvent]:
    # All at once they would take ten times the memory.
    for begin in range(0, table.shape[1], _BLOCK):
        yield from map(StepEvent._make, zip(*table[:, begin : begin + _BLOCK].tolist(), strict=True))

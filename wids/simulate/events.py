"""All that the order decides about a job, step by step.

Rules: of what happens at one step, what is over comes first, then what is drawn without workers, then what is needed,
then what a loader draws once the step has begun. What loaders draw before the first step happens at step -1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wids.order.permutation import Indices
    from wids.simulate.job import Epoch, Job

# A visit's last batch was handed out, or read; a prefetcher's visit was read, or drawn, to its end; a visit's first
# batch is drawn, or needed.
END, READ, RELEASE, PASS, DRAW_NOW, NEED, DRAW = range(7)
_BLOCK = 8192
Event = tuple[int, int, int, int, int, int, int]  # step, kind, rank, visit, shard, first, last


def events_of(epoch: Epoch, job: Job) -> Indices:
    """All that the order decides, in the order in which it happens: the fields of `Event`, (7, n)."""
    size, drawn = job.batch_size, job.drawn_ahead
    parts = []

    def add(kind: int, rank: int, steps: Indices, k: int) -> None:
        visits = (epoch.visits, epoch.coming)[k][rank]
        count = len(steps)
        numbers = np.arange(count)
        parts.append(
            np.stack(
                [
                    np.maximum(steps, -1),
                    np.full(count, kind),
                    np.full(count, rank),
                    numbers,
                    visits.shard,
                    visits.first,
                    visits.last,
                ]
            )
        )

    for rank, (visits, coming) in enumerate(zip(epoch.visits, epoch.coming, strict=True)):
        begins, ends = visits.first // size, visits.last // size + 1
        add(NEED, rank, begins, 0)
        add(END, rank, ends, 0)
        if job.cache_size is not None and job.steps_read_ahead:
            add(READ, rank, ends - job.steps_read_ahead, 0)
        add(DRAW if drawn else DRAW_NOW, rank, begins - drawn, 0)
        if job.prefetch != 0:
            add(RELEASE, rank, (coming.last + job.burst - job.drawn_samples) // size + 1, 1)
            add(PASS, rank, (coming.last - job.drawn_samples) // size + 1, 1)
    table = np.concatenate(parts, axis=1)
    order = np.lexsort((table[5], table[1], table[0]))
    return table[:, order]


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
        return self._last if self._next is None else min(self._next[0], self._last)

    def __iter__(self) -> Iterator[tuple[int, list[Event]]]:
        return self

    def __next__(self) -> tuple[int, list[Event]]:
        step = self.peek() if self._is_begun else -1
        self._is_begun = True
        found = []
        while self._next is not None and min(self._next[0], self._last) == step:
            found.append(self._next)
            self._next = next(self._rows, None)
        return step, found


def _rows(table: Indices) -> Iterator[Event]:
    # All at once they would take ten times the memory.
    for begin in range(0, table.shape[1], _BLOCK):
        yield from zip(*table[:, begin : begin + _BLOCK].tolist(), strict=True)

"""All that the order decides about a job, step by step.

Rules: of what happens at one step, what is over comes first, then what is drawn without workers, then what is needed,
then what a loader draws once the step has begun. What loaders draw before the first step happens at step -1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wids.simulate.job import Epoch, Job

# A visit is over; a prefetcher's visit was read, or drawn, to its end; a visit's first batch is drawn, or needed.
END, RELEASE, PASS, DRAW_NOW, NEED, DRAW = range(6)
Event = tuple[int, int, int, int, int, int, int]  # step, kind, rank, visit, shard, first, last


def events_of(epoch: Epoch, job: Job) -> list[Event]:
    """All that the order decides, in the order in which it happens."""
    size, drawn = job.batch_size, job.drawn_ahead
    parts = []

    def add(kind: int, rank: int, steps: np.ndarray[tuple[int], np.dtype[np.int64]], k: int) -> None:
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
        add(DRAW if drawn else DRAW_NOW, rank, begins - drawn, 0)
        if job.prefetch != 0:
            ends = coming.last // size + 1
            add(RELEASE, rank, ends, 1)
            add(PASS, rank, ends - drawn, 1)
    table = np.concatenate(parts, axis=1)
    order = np.lexsort((table[5], table[1], table[0]))
    return list(zip(*(column[order].tolist() for column in table), strict=True))


class Groups:
    """Groups of events of one step, with a look at which step comes next; the first group is that of step -1."""

    def __init__(self, events: list[Event], last: int) -> None:
        self._events, self._at, self._last = events, 0, last
        self._is_begun = False

    def __iter__(self) -> Iterator[tuple[int, list[Event]]]:
        return self

    def peek(self) -> int:
        """The next step with events, at most the last."""
        return min(self._events[self._at][0], self._last) if self._at < len(self._events) else self._last

    def __next__(self) -> tuple[int, list[Event]]:
        step = self.peek() if self._is_begun else -1
        self._is_begun = True
        begin = self._at
        while self._at < len(self._events) and self._events[self._at][0] == step:
            self._at += 1
        return step, self._events[begin : self._at]

"""The steps of a job, in order: loaders draw, shards arrive, steps begin.

A step begins on all ranks when each has its batch, and takes the same time on all. A loader with workers has twice as
many batches drawn as it has workers, and reads what it draws. All that a batch lacks is asked for at once: its samples
where they are read early, else its shards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wids.simulate.early_reads import EarlyReadingNode
from wids.simulate.loop import EventLoop
from wids.simulate.node import SimulatedNode, SimulationProgress, WaitingStep
from wids.simulate.outcome import SimulationResult, Stall, Traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


# A cache in which shards are evicted while they are read downloads without end; it is given up after so many, and so
# many for each visit.
_MIN_DOWNLOADS, _DOWNLOADS_A_VISIT = 50_000, 4


class Simulation:
    """A job, from its first epoch to its last.

    Args:
        job: the job.
        epochs: what its ranks read.
        is_strict: give up when the first shard is downloaded again.
        on_step: called now and then with the step, counted over all epochs.
    """

    def __init__(
        self,
        job: TrainingJob,
        epochs: list[Epoch],
        *,
        is_strict: bool = False,
        on_step: Callable[[int], None] = lambda _: None,
    ) -> None:
        visits = sum(len(visits.first) for epoch in epochs for visits in epoch.visits)
        self._job, self._epochs, self._on_step = job, epochs, on_step
        self._outcome = SimulationResult(log=[[(0.0, 0, 0)] for _ in range(job.nodes)])
        self._progress = SimulationProgress(self._outcome, max(_MIN_DOWNLOADS, _DOWNLOADS_A_VISIT * visits), is_strict)
        self._loop, self._last = EventLoop(), 0  # steps of this epoch
        kind = EarlyReadingNode if job.reads_early else SimulatedNode
        self._nodes = [kind(job, number, self._loop, self._progress) for number in range(job.nodes)]

    def run(self) -> SimulationResult:
        """Go through all epochs."""
        outcome, progress = self._outcome, self._progress
        for epoch in self._epochs:
            outcome.traffic.append([Traffic() for _ in self._nodes])
            begin = self._loop.now
            before = [node.cache.evicted for node in self._nodes]
            self._run_epoch(epoch)
            self._end_epoch()
            for traffic, node, count in zip(outcome.traffic[-1], self._nodes, before, strict=True):
                traffic.evicted = node.cache.evicted - count
            if progress.is_given_up:
                break
            outcome.epoch_seconds.append(self._loop.now - begin)
            progress.offset += max(epoch.counts)
            progress.past_steps += max(epoch.steps)
        return outcome

    def _run_epoch(self, epoch: Epoch) -> None:
        job, loop, progress = self._job, self._loop, self._progress
        begin, last = loop.now, max(epoch.steps)
        self._last = last
        resumed = WaitingStep(0, begin + job.decode_seconds)  # from then on steps follow each other
        groups = Groups(events_of(epoch, job), last)
        self._begin_epoch(epoch)
        step, due_now = next(groups)
        while True:
            progress.step = step
            if step >= 0:
                self._advance(resumed.due + (step - resumed.step) * job.step)
            progress.position = progress.offset + step * job.batch_size + job.drawn_samples
            draws = self._handle(due_now)
            self._read(step, has_begun=False)
            for node in self._nodes:
                node.need_batch(step)
            if step >= 0:
                if step < last and any(node.pending for node in self._nodes):
                    self._wait(step)
                    resumed = WaitingStep(step, loop.now)
                self._outcome.marks.append((loop.now, progress.past_steps + step))
                self._on_step(progress.past_steps + step)
                if step == 0:
                    self._outcome.first_seconds.append(loop.now - begin)
            for event in draws:
                self._draw(event)
            if progress.is_given_up or step >= last:
                return
            self._read(step, has_begun=True)
            if any(node.is_watched for node in self._nodes) and groups.peek() > step + 1:
                step, due_now = step + 1, []
            else:
                step, due_now = next(groups)

    def _read(self, step: int, *, has_begun: bool) -> None:
        """Loaders read what they draw: with workers once a step has begun, else when it is due."""
        drawn = self._job.drawn_ahead
        if has_begun == bool(drawn):
            for batch in range(step + drawn if step >= 0 else 0, min(step + drawn + 1, self._last)):
                for node in self._nodes:
                    node.read(batch)

    def _begin_epoch(self, epoch: Epoch) -> None:
        self._progress.position = self._progress.offset
        for node in self._nodes:
            node.begin_epoch(epoch)

    def _advance(self, due: float) -> None:
        """Let time go on until a step is due."""
        while self._loop.has_until(due) and not self._progress.is_given_up:
            self._loop.run_next()
        self._loop.now = max(due, self._loop.now)

    def _handle(self, due_now: list[StepEvent]) -> list[StepEvent]:
        """Handle the events of a step that is due; returns the draws that follow once it has begun."""
        looked: set[int] = set()
        ended: set[int] = set()
        draws = []
        for event in due_now:
            node = self._node_of(event.rank)
            cache, key = node.cache, (event.rank, event.visit)
            if event.kind == LOOK:
                node.look(event.rank)
                looked.add(event.rank // self._job.ranks_per_node)
            elif event.kind == DRAW:
                draws.append(event)
            elif event.kind == DRAW_NOW:
                self._draw(event)
            elif event.kind == NEED:
                if key not in cache.finished:
                    node.need(event.rank, event.shard)
            elif event.kind == END or node.can_read(event.rank, event.shard, event.last):
                cache.finish(key, event.shard, is_read=event.kind == READ)
                ended.add(event.rank // self._job.ranks_per_node)
        for number in sorted(ended):
            self._nodes[number].ask_again()
        for number in sorted(looked):
            self._nodes[number].pump()
        return draws

    def _draw(self, event: StepEvent) -> None:
        self._node_of(event.rank).draw(event.rank, event.visit, event.shard, event.first, event.last)

    def _node_of(self, rank: int) -> SimulatedNode:
        return self._nodes[rank // self._job.ranks_per_node]

    def _wait(self, step: int) -> None:
        """Let time go on until all ranks have their batches."""
        loop, progress, due = self._loop, self._progress, self._loop.now
        progress.waiting = WaitingStep(step, due)
        for node in self._nodes:
            node.wait()
        while any(node.pending for node in self._nodes) and not progress.is_given_up:
            if not loop:
                for node in self._nodes:
                    node.admit_pending()
            loop.run_next()
        progress.waiting = None
        if loop.now > due:
            self._outcome.waits[progress.past_steps + step] = loop.now - due
        for number, node in enumerate(self._nodes):
            node.pending.clear()
            if node.arrived_at is not None and node.arrived_at > due:
                self._outcome.stalls.append(Stall(progress.past_steps + step, node.arrived_at - due, number))

    def _end_epoch(self) -> None:
        """Shards that are on their way arrive, and plans are withdrawn; this takes no time."""
        for node in self._nodes:
            node.end_epoch()
        end = self._loop.now
        while self._loop:
            self._loop.run_next()
        self._loop.now = end
        for node in self._nodes:
            node.pending.clear()

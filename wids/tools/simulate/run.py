"""The steps of a job, in order: loaders draw, shards arrive, steps begin.

A step begins on all ranks when each has its batch, and takes the same time on all. A loader with workers has twice as
many batches drawn as it has workers, and reads what it draws. All that a batch lacks is asked for at once: its samples
where they are read early, else its shards.

What a rank does follows from its order alone, as generators that yield the step at which they go on; what nodes and
links do takes time: see `wids.tools.simulate.link.Clock`.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from wids.tools.simulate.node import Node, SimulationProgress, WaitingStep
from wids.tools.simulate.result import SimulationResult, Stall, Traffic
from wids.tools.simulate.trace import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wids.tools.simulate.job import Epoch, TrainingJob
    from wids.tools.simulate.trace import Visits


# Of one step, in this order: a visit's last batch was handed out, or read; a prefetcher looks at its rank; a visit's
# first batch is drawn by a loader without workers, or is needed; once the step has begun, workers draw one.
_END, _READ, _LOOK, _DRAW_NOW, _NEED, _DRAW = range(6)
# (step, one of these, first position of a visit, rank): when a rank goes on.
Turn: TypeAlias = tuple[float, int, int, int]


def ranks_of(node: Node, epoch: Epoch, ranks: range) -> Iterator[Iterator[Turn]]:
    """The acts of ranks in an epoch: each generator has turns in ascending order, and acts after each."""
    job = node.job
    for rank in ranks:
        visits = epoch.visits[rank]
        yield _draw(node, rank, visits)
        yield _need(node, rank, visits)
        yield _end(node, rank, visits, before=0)
        if job.cache_size is not None and job.steps_read_ahead:
            yield _end(node, rank, visits, before=job.steps_read_ahead)
        if job.prefetch != 0:
            yield _look(node, rank, epoch.coming[rank])


def _draw(node: Node, rank: int, visits: Visits) -> Iterator[Turn]:
    size, drawn = node.job.batch_size, node.job.drawn_ahead
    for number, (first, last, shard) in enumerate(visits.rows()):
        yield max(first // size - drawn, -1), _DRAW if drawn else _DRAW_NOW, first, rank
        node.draw(rank, number, shard, first, last)


def _need(node: Node, rank: int, visits: Visits) -> Iterator[Turn]:
    size = node.job.batch_size
    for number, (first, _, shard) in enumerate(visits.rows()):
        yield first // size, _NEED, first, rank
        if (rank, number) not in node.cache.finished:
            node.need(rank, shard)


def _end(node: Node, rank: int, visits: Visits, *, before: int) -> Iterator[Turn]:
    """Visits end: were handed out, or were read so many steps ``before``."""
    steps = visits.last // node.job.batch_size + 1
    if before:  # the first batches were drawn together, when the epoch began
        steps = np.maximum(steps, node.job.drawn_ahead) - before
    order = np.argsort(steps, kind="stable")
    for number, step, last, shard in rows_of(order, *(column[order] for column in (steps, visits.last, visits.shard))):
        yield step, _READ if before else _END, 0, rank
        node.finish((rank, number), shard, last, is_read=before > 0)


def _look(node: Node, rank: int, coming: Visits) -> Iterator[Turn]:
    """A prefetcher looks when visits begin, were drawn to their ends, or were read."""
    job = node.job
    positions = np.concatenate([coming.first - 1, coming.last, coming.last + job.burst])
    steps = np.unique(np.maximum((positions - job.drawn_samples) // job.batch_size + 1, -1))
    for (step,) in rows_of(steps):
        yield step, _LOOK, 0, rank
        node.look(rank)
        node.has_looked = True


# A cache in which shards are evicted while they are read downloads without end; it is given up after so many, and so
# many for each visit.
_MIN_DOWNLOADS, _DOWNLOADS_A_VISIT = 50_000, 4
_NEVER: Turn = (math.inf, 0, 0, 0)


class Simulation:
    """A job, from its first epoch to its last.

    Args:
        job: the job.
        epochs: what its ranks read.
        is_strict: give up when the first shard is downloaded again.
        on_step: called now and then with the step, counted over all epochs.

    Attributes:
        nodes: of the job.
    """

    nodes: list[Node]

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
        self._clock, self._last = self._progress.clock, 0  # steps of this epoch
        self.nodes = [Node(job, number, self._progress) for number in range(job.nodes)]
        self._turns: Iterator[Turn] = iter(())
        self._turn = _NEVER  # the next one

    def run(self) -> SimulationResult:
        """Go through all epochs."""
        outcome, progress = self._outcome, self._progress
        for epoch in self._epochs:
            outcome.traffic.append([Traffic() for _ in self.nodes])
            begin = self._clock.now
            before = [node.cache.evicted for node in self.nodes]
            self._run_epoch(epoch)
            self._end_epoch()
            for traffic, node, count in zip(outcome.traffic[-1], self.nodes, before, strict=True):
                traffic.evicted = node.cache.evicted - count
            if progress.is_given_up:
                break
            outcome.epoch_seconds.append(self._clock.now - begin)
            progress.offset += max(epoch.counts)
            progress.past_steps += max(epoch.steps)
        return outcome

    def _run_epoch(self, epoch: Epoch) -> None:
        job, clock, progress = self._job, self._clock, self._progress
        begin, last = clock.now, max(epoch.steps)
        self._last = last
        resumed = WaitingStep(0, begin + job.decode_seconds)  # from then on steps follow each other
        self._begin_epoch(epoch)
        step = -1
        while True:
            progress.step = step
            if step >= 0:
                self._advance(resumed.due + (step - resumed.step) * job.step)
            progress.position = progress.offset + step * job.batch_size + job.drawn_samples
            self._take_turns((step, _DRAW) if step < last else (math.inf,))
            self._settle()
            self._read(step, has_begun=False)
            for node in self.nodes:
                node.need_batch(step)
            if step >= 0:
                if step < last and any(node.pending for node in self.nodes):
                    self._wait(step)
                    resumed = WaitingStep(step, clock.now)
                self._outcome.marks.append((clock.now, progress.past_steps + step))
                self._on_step(progress.past_steps + step)
                if step == 0:
                    self._outcome.first_seconds.append(clock.now - begin)
            self._take_turns((step + 1,))
            if progress.is_given_up or step >= last:
                return
            self._read(step, has_begun=True)
            is_watched = any(node.is_watched for node in self.nodes)
            step = step + 1 if is_watched else int(min(self._turn[0], last))

    def _begin_epoch(self, epoch: Epoch) -> None:
        self._progress.position = self._progress.offset
        for node in self.nodes:
            node.begin_epoch(epoch)
        self._turns = heapq.merge(*(turns for node in self.nodes for turns in ranks_of(node, epoch, node.ranks)))
        self._turn = next(self._turns, _NEVER)

    def _take_turns(self, end: tuple[float, ...]) -> None:
        """Ranks whose turns come before ``end`` act."""
        while self._turn < end:
            self._turn = next(self._turns, _NEVER)

    def _settle(self) -> None:
        """Nodes take note of what their ranks did."""
        for node in self.nodes:
            if node.has_ended:
                node.ask_again()
        for node in self.nodes:
            if node.has_looked:
                node.pump()
            node.has_ended = node.has_looked = False

    def _read(self, step: int, *, has_begun: bool) -> None:
        """Loaders read what they draw: with workers once a step has begun, else when it is due."""
        drawn = self._job.drawn_ahead
        if has_begun == bool(drawn):
            for batch in range(step + drawn if step >= 0 else 0, min(step + drawn + 1, self._last)):
                for node in self.nodes:
                    node.read(batch)

    def _advance(self, due: float) -> None:
        """Let time go on until a step is due."""
        while self._clock.has_until(due) and not self._progress.is_given_up:
            self._clock.run_next()
        self._clock.now = max(due, self._clock.now)

    def _wait(self, step: int) -> None:
        """Let time go on until all ranks have their batches."""
        clock, progress, due = self._clock, self._progress, self._clock.now
        progress.waiting = WaitingStep(step, due)
        for node in self.nodes:
            node.wait()
        while any(node.pending for node in self.nodes) and not progress.is_given_up:
            if not clock:
                for node in self.nodes:
                    node.admit_pending()
            clock.run_next()
        progress.waiting = None
        if clock.now > due:
            self._outcome.waits[progress.past_steps + step] = clock.now - due
        for number, node in enumerate(self.nodes):
            node.pending.clear()
            if node.arrived_at is not None and node.arrived_at > due:
                self._outcome.stalls.append(Stall(progress.past_steps + step, node.arrived_at - due, number))

    def _end_epoch(self) -> None:
        """Shards that are on their way arrive, and plans are withdrawn; this takes no time."""
        for node in self.nodes:
            node.end_epoch()
        end = self._clock.now
        while self._clock:
            self._clock.run_next()
        self._clock.now = end
        for node in self.nodes:
            node.pending.clear()

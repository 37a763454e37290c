"""The events of a job, in order: steps begin, loaders draw, shards arrive.

Rules: a step begins on all ranks when each has its batch, and takes the same time on all. A loader with workers has
twice as many batches drawn as it has workers, and what it draws it begins to read. All shards that a batch lacks are
asked for at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wids.policy import prefetching
from wids.simulate import events
from wids.simulate.cluster import Fleet
from wids.simulate.outcome import Stall, Traffic
from wids.simulate.prefetch_model import Ahead

if TYPE_CHECKING:
    from collections.abc import Callable

    from wids.simulate.events import Event
    from wids.simulate.job import Epoch, Job
    from wids.simulate.outcome import Outcome

# A cache in which shards go while they are read has no end of fetching; so often, for each visit, it is followed.
_LEAST_FETCHES, _FETCHES_A_VISIT = 50_000, 4


class Simulation(Fleet):
    """A job, from its first epoch to its last.

    Args:
        job: what is simulated.
        epochs: what its ranks read.
        is_strict: give up when the first shard is fetched again.
        tell: called now and then with the step, counted over all epochs.
    """

    def __init__(
        self,
        job: Job,
        epochs: list[Epoch],
        *,
        is_strict: bool = False,
        tell: Callable[[int], None] = lambda _: None,
    ) -> None:
        visits = sum(len(visits.first) for epoch in epochs for visits in epoch.visits)
        super().__init__(job, most_fetches=max(_LEAST_FETCHES, _FETCHES_A_VISIT * visits), is_strict=is_strict)
        self._epochs, self._tell = epochs, tell

    def run(self) -> Outcome:
        """Go through all epochs."""
        for epoch in self._epochs:
            self.found.traffic.append([Traffic() for _ in self._nodes])
            begin = self._now
            before = [node.evicted for node in self._nodes]
            self._begin(epoch)
            self._go(epoch)
            self._end()
            for traffic, node, count in zip(self.found.traffic[-1], self._nodes, before, strict=True):
                traffic.evicted = node.evicted - count
            if self.found.stopped_at is not None:
                break
            self.found.epoch_seconds.append(self._now - begin)
            self._offset += max(epoch.counts)
            self._steps += max(epoch.steps)
        return self.found

    # --- an epoch

    def _begin(self, epoch: Epoch) -> None:
        job = self._job
        self._position = self._offset
        self._ranks = [None] * job.world
        if job.prefetch == 0:
            return
        own = min(job.ranks_per_node, job.world)
        for rank, visits in enumerate(epoch.coming):
            typical, good = self._find_good(epoch, rank)
            most = prefetching.most_ahead(job.prefetch, limit=job.cache_size, ranks=own, typical=typical)
            reach = most if job.prefetch is not None else min(most, good)
            if job.prefetch is None and job.cache_size is None:  # what is being read does not count
                reading = self._reading_bytes(epoch, rank)
                most, reach = most + reading, reach + reading
            self._ranks[rank] = Ahead(
                self._nodes[self._node_of[rank]],
                visits,
                self._sizes,
                reach=reach,
                scope=max(most, job.cache_size or 0),
                offset=self._offset,
                is_planned=job.cache_size is not None,
            )

    def _reading_bytes(self, epoch: Epoch, rank: int) -> int:
        """Bytes of the shards that a rank reads at a time, on average."""
        visits = epoch.coming[rank]
        lengths = visits.last - visits.first + 1
        return int((lengths * self._job.sizes[visits.shard]).sum() / max(epoch.counts[rank], 1))

    def _find_good(self, epoch: Epoch, rank: int) -> tuple[int, int]:
        """Bytes of a rank's shard, about, and how far ahead its prefetcher goes by itself."""
        job, shards = self._job, np.unique(epoch.coming[rank].shard)
        if not len(shards):
            return 0, 0
        typical = int(job.sizes[shards].mean())
        rate = job.batch_size / max(job.step, 1e-9)
        return typical, prefetching.good_ahead(rate, typical=typical, each=max(epoch.counts[rank] / len(shards), 1.0))

    def _go(self, epoch: Epoch) -> None:
        job, begin = self._job, self._now
        base = 0, begin + job.decode_seconds
        last = max(epoch.steps)
        groups = events.Groups(events.events_of(epoch, job), last)
        self._look(range(job.world))
        step, due_now = next(groups)
        while True:
            self._at = step
            if step >= 0:
                due = base[1] + (step - base[0]) * job.step
                self._advance(due)
                self._now = max(due, self._now)
            self._position = self._offset + max(step, 0) * job.batch_size + job.drawn_samples
            draws = self._handle(due_now)
            self._read_again(step)
            if step >= 0:
                if step < last and self._pending:
                    self._wait(step, self._now)
                    base = step, self._now
                self.found.marks.append((self._now, self._steps + step))
                self._tell(self._steps + step)
                if step == 0:
                    self.found.first_seconds.append(self._now - begin)
            for event in draws:
                self._draw(*event)
            if self.found.stopped_at is not None or step >= last:
                return
            nodes_again = any(node.again for node in self._nodes)
            if nodes_again and groups.peek() > step + 1:
                step, due_now = step + 1, []
            else:
                step, due_now = next(groups)

    def _handle(self, due_now: list[Event]) -> list[Event]:
        """What happens when a step is due; returns what is drawn once it has begun."""
        changed: set[int] = set()
        ended: set[int] = set()
        draws = []
        for event in due_now:
            _, kind, rank, k, shard, _, last = event
            number = self._node_of[rank]
            node = self._nodes[number]
            own = self._ranks[rank]
            if kind == events.END or (kind == events.READ and node.can_read(rank, shard, last)):
                node.finish((rank, k), shard, is_read=kind == events.READ)
                ended.add(number)
            elif kind == events.RELEASE and own is not None:
                own.release(k)
                changed.add(rank)
            elif kind == events.PASS and own is not None:
                own.pass_by(k)
                changed.add(rank)
            elif kind == events.DRAW_NOW:
                self._draw(*event)
            elif kind == events.NEED and (rank, k) not in node.finished:
                self._need(rank, shard)
            elif kind == events.DRAW:
                draws.append(event)
        for number in sorted(ended):
            self._ask_again(number)
        self._look(sorted(changed))
        return draws

    def _draw(self, step: int, kind: int, rank: int, k: int, shard: int, first: int, last: int) -> None:  # noqa: ARG002 - an event's fields
        """A loader draws the first batch that a shard is needed for."""
        node = self._nodes[self._node_of[rank]]
        node.begin((rank, k), shard, (first, last))
        node.touch(shard, self._offset + last)
        if shard not in node.there:
            self._demand(self._node_of[rank], rank, shard)

    def _need(self, rank: int, shard: int) -> None:
        number = self._node_of[rank]
        if shard not in self._nodes[number].there:
            self._pending.add((number, shard))
            self._demand(number, rank, shard)

    def _read_again(self, step: int) -> None:
        """What went although it is being read is needed for the next batch."""
        least = step * self._job.batch_size
        for node in self._nodes:
            for shard in sorted(node.again):
                readers = [key for key, (first, _) in node.open.get(shard, {}).items() if first < least]
                if not node.open.get(shard):
                    node.again.discard(shard)
                elif readers:
                    node.again.discard(shard)
                    self._need(readers[0][0], shard)
            if node.again and all(first >= least for shard in node.again for first, _ in node.open[shard].values()):
                node.again.clear()  # these are needed when their first batches are

    def _end(self) -> None:
        """The epoch is over: what is on its way arrives, and plans are withdrawn."""
        for own in self._ranks:
            if own is not None:
                own.end()
        self._ranks = [None] * self._job.world
        for node in self._nodes:
            node.wanting.clear()
            node.open.clear()
            node.again.clear()
            node.missing.clear()
            node.finished.clear()
        end = self._now
        while self._heap:
            self._happen()
        self._now = end
        self._pending.clear()

    def _wait(self, step: int, due: float) -> None:
        """Let time go on until all ranks have their batches."""
        job = self._job
        self._late, self._waits = {}, (step, due)
        for number, node in enumerate(self._nodes):
            if node.wanting:
                self._remind(number, due + job.burst / self._rate)
            self._ask_again(number)
        while self._pending and self.found.stopped_at is None:
            if not self._heap:  # all that is there was promised to others: a bound that cannot be kept is none
                for number, shard in sorted(self._pending):
                    if shard not in self._nodes[number].coming:
                        self._nodes[number].force(shard)
                        self._fetch(number, number * self._job.ranks_per_node, shard, is_urgent=True)
            self._happen()
        self._pending.clear()
        self._waits = None
        if self._now > due:
            self.found.waits[self._steps + step] = self._now - due
        for number, late in self._late.items():
            if late > due:
                self.found.stalls.append(Stall(self._steps + step, late - due, number))

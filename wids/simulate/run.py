"""The events of a job, in order: steps begin, loaders draw, shards arrive.

Rules: a step begins on all ranks when each has its batch, and takes the same time on all. A loader with workers has
twice as many batches drawn as it has workers, and what it draws it begins to read. A node's link carries one shard at a
time, those that somebody waits for first, else the ranks' in turn; waiting for a first byte keeps no link busy.
All shards that a batch lacks are asked for at once.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from wids.simulate import ahead, events
from wids.simulate.ahead import Ahead
from wids.simulate.node import Node
from wids.simulate.outcome import Outcome, Stall, Traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from wids.simulate.events import Event
    from wids.simulate.job import Epoch, Job

_ARRIVED, _BEGUN = range(2)
_SOON_SECONDS = 0.05
# A cache in which shards go while they are read has no end of fetching; so often, for each visit, it is followed.
_LEAST_FETCHES, _FETCHES_A_VISIT = 50_000, 4


class Simulation:
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
        self._tell = tell
        self._job, self._epochs, self._is_strict = job, epochs, is_strict
        self._sizes, rooms = job.sizes.tolist(), job.rooms.tolist()
        self._nodes = [Node(job.cache_size, rooms) for _ in range(job.nodes)]
        self._node_of = [rank // job.ranks_per_node for rank in range(job.world)]
        self._fetched: list[dict[int, int]] = [{} for _ in self._nodes]  # shard -> the epoch in which it came last
        self._bytes = [0] * len(self._nodes)
        self._heap: list[tuple[float, int, int, int, int, int, bool]] = []
        self._count = self._position = self._offset = self._steps = self._at = 0
        self._now = 0.0
        self._ranks: list[Ahead | None] = []
        self._pending: set[tuple[int, int]] = set()
        self._late: dict[int, float] = {}
        visits = sum(len(visits.first) for epoch in epochs for visits in epoch.visits)
        self._left = max(_LEAST_FETCHES, _FETCHES_A_VISIT * visits)
        self._wanted = 10 * job.latency * job.bandwidth / job.connections
        self.found = Outcome(log=[[(0.0, 0, 0)] for _ in self._nodes])

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
            most = job.prefetch
            if most is None:
                most = (ahead.AHEAD_BYTES if job.cache_size is None else job.cache_size) // own
            most = most if job.cache_size is None else min(most, job.cache_size)
            reach = most if job.prefetch is not None else min(most, self._pace(epoch, rank))
            self._ranks[rank] = Ahead(
                self._nodes[self._node_of[rank]],
                visits,
                self._sizes,
                reach=reach,
                scope=max(most, job.cache_size or 0),
                offset=self._offset,
                is_planned=job.cache_size is not None,
            )

    def _pace(self, epoch: Epoch, rank: int) -> int:
        """How far ahead a prefetcher goes by itself: so many shards, or what is read in so many seconds."""
        job, shards = self._job, np.unique(epoch.coming[rank].shard)
        if not len(shards):
            return 0
        typical = float(job.sizes[shards].mean())
        rate = job.batch_size / max(job.step, 1e-9)
        each = max(epoch.counts[rank] / len(shards), 1.0)
        return int(max(ahead.LEAST_SHARDS * typical, rate * ahead.AHEAD_SECONDS * typical / each))

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
            self._position = self._offset + (max(step, 0) + job.drawn_ahead) * job.batch_size
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
        draws = []
        for event in due_now:
            _, kind, rank, k, shard, _, _ = event
            node = self._nodes[self._node_of[rank]]
            own = self._ranks[rank]
            if kind == events.END:
                visits = node.open.get(shard, {})
                visits.pop((rank, k), None)
                if not visits:
                    node.open.pop(shard, None)
            elif kind == events.RELEASE and own is not None:
                own.release(k)
                changed.add(rank)
            elif kind == events.PASS and own is not None:
                own.pass_by(k)
                changed.add(rank)
            elif kind == events.DRAW_NOW:
                self._draw(*event)
            elif kind == events.NEED:
                self._need(rank, shard)
            elif kind == events.DRAW:
                draws.append(event)
        self._look(sorted(changed))
        return draws

    def _draw(self, step: int, kind: int, rank: int, k: int, shard: int, first: int, last: int) -> None:  # noqa: ARG002 - an event's fields
        """A loader draws the first batch that a shard is needed for."""
        node = self._nodes[self._node_of[rank]]
        node.open.setdefault(shard, {})[rank, k] = first // self._job.batch_size
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
        for node in self._nodes:
            for shard in sorted(node.again):
                readers = [key for key, batch in node.open.get(shard, {}).items() if batch < step]
                if not node.open.get(shard):
                    node.again.discard(shard)
                elif readers:
                    node.again.discard(shard)
                    self._need(readers[0][0], shard)
            if node.again and all(batch >= step for shard in node.again for batch in node.open[shard].values()):
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
        end = self._now
        while self._heap:
            self._happen()
        self._now = end
        self._pending.clear()

    # --- fetches

    def _demand(self, number: int, rank: int, shard: int) -> None:
        node = self._nodes[number]
        if shard in node.coming or shard in node.there:
            return
        if node.reserve(shard, now=self._position):
            self._fetch(number, rank, shard, is_urgent=True)
        else:
            node.wanting.append((rank, shard))
        self._tell_gone(number)

    def _fetch(self, number: int, rank: int, shard: int, *, is_urgent: bool) -> None:
        self._count += 1
        self._left -= 1
        if self._left < 0 and self.found.stopped_at is None:
            self.found.stopped_at = self._steps + self._at
        heapq.heappush(self._heap, (self._now + self._job.latency, self._count, _BEGUN, number, rank, shard, is_urgent))
        epoch, size, node = len(self.found.traffic) - 1, self._sizes[shard], self._fetched[number]
        traffic = self.found.traffic[-1][number]
        traffic.shards += 1
        traffic.size_bytes += size
        traffic.waited += is_urgent
        if shard in node:
            traffic.again += 1
            traffic.again_bytes += size
            traffic.again_within += node[shard] == epoch
            if self._is_strict:
                self.found.stopped_at = self._steps + self._at
        node[shard] = epoch

    def _advance(self, due: float) -> None:
        while self._heap and self._heap[0][0] <= due and self.found.stopped_at is None:
            self._happen()

    def _happen(self) -> None:
        time, _, kind, number, rank, shard, is_urgent = heapq.heappop(self._heap)
        self._now = max(self._now, time)
        node = self._nodes[number]
        if kind == _BEGUN:
            node.queue(rank, shard, is_urgent=is_urgent)
            self._serve(number)
            return
        node.is_serving = False
        stamp = self._position
        node.arrive(shard, stamp)
        self._bytes[number] += self._sizes[shard]
        self.found.log[number].append((self._now, node.used, self._bytes[number]))
        if (number, shard) in self._pending:
            self._pending.discard((number, shard))
            self._late[number] = self._now
        own = self._ranks[rank]
        if not is_urgent and own is not None:
            own.count -= 1
            own.slots -= self._slots(shard)
        for _ in range(len(node.wanting)):
            self._demand(number, *node.wanting.popleft())
        self._serve(number)
        self._pump(number)

    def _serve(self, number: int) -> None:
        """Let the next shard have the link, if it is free."""
        node = self._nodes[number]
        if node.is_serving or (turn := node.next_turn()) is None:
            return
        rank, shard, is_urgent = turn
        node.is_serving = True
        self.found.log[number].append((self._now, node.used, self._bytes[number]))
        self._count += 1
        done = self._now + self._sizes[shard] / self._job.bandwidth
        heapq.heappush(self._heap, (done, self._count, _ARRIVED, number, rank, shard, is_urgent))

    def _look(self, ranks: Iterable[int]) -> None:
        numbers = set()
        for rank in ranks:
            own = self._ranks[rank]
            if own is not None:
                own.look()
                numbers.add(self._node_of[rank])
        for number in sorted(numbers):
            self._pump(number)

    def _pump(self, number: int) -> None:
        """Let the prefetchers of a node begin what they may."""
        job, node = self._job, self._nodes[number]
        first = number * job.ranks_per_node
        for rank in range(first, min(first + job.ranks_per_node, job.world)):
            own = self._ranks[rank]
            while own is not None and self.found.stopped_at is None:
                if own.slots >= job.connections and own.count >= ahead.LEAST_UNDER_WAY:
                    break
                found = own.next_missing()
                if found is None or not node.reserve(found[0], now=self._position, after=self._after(found[1])):
                    break
                own.count += 1
                own.slots += self._slots(found[0])
                self._fetch(number, rank, found[0], is_urgent=False)
                self._tell_gone(number)

    def _after(self, first: int) -> float:
        """Only what is used later than this goes for a shard that is used from ``first`` on."""
        use = max(first, self._position)
        use_and_margin = use + ahead.MARGIN * (use - self._position)
        soon = _SOON_SECONDS * self._job.batch_size / self._job.step if self._job.step > 0 else 0.0
        return max(use_and_margin, self._position + soon)

    def _tell_gone(self, number: int) -> None:
        node = self._nodes[number]
        if not node.gone:
            return
        gone, node.gone = node.gone, []
        first = number * self._job.ranks_per_node
        for own in self._ranks[first : first + self._job.ranks_per_node]:
            if own is not None:
                for shard in gone:
                    own.miss(shard)

    def _slots(self, shard: int) -> int:
        return ahead.slots(self._sizes[shard], wanted=self._wanted, connections=self._job.connections)

    def _wait(self, step: int, due: float) -> None:
        """Let time go on until all ranks have their batches."""
        self._late = {}
        while self._pending and self.found.stopped_at is None:
            if not self._heap:  # all that is there was promised to others: a bound that cannot be kept is none
                for number, shard in sorted(self._pending):
                    if shard not in self._nodes[number].coming:
                        self._nodes[number].force(shard)
                        self._fetch(number, number * self._job.ranks_per_node, shard, is_urgent=True)
            self._happen()
        self._pending.clear()
        if self._now > due:
            self.found.waits[self._steps + step] = self._now - due
        for number, late in self._late.items():
            if late > due:
                self.found.stalls.append(Stall(self._steps + step, late - due, number))

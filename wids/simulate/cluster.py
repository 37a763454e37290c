"""Nodes and their links while time goes on: who asks for which shard, and when it is there.

Rules: a node's link carries one shard at a time, those that somebody waits for first, else the ranks' in turn; waiting
for a first byte keeps no link busy. A shard that is on its way is not asked for again. What finds no room waits as in
`wids.cache.space`: at first nothing goes for it that is used soon, then all may that is not being read.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

from wids.policy import prefetching
from wids.simulate.node_cache import Node
from wids.simulate.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wids.simulate.job import Job
    from wids.simulate.prefetch_model import Ahead

_ARRIVED, _BEGUN, _AGAIN = range(3)
_FIRST_RATE = 1000.0  # samples a second, until it is known


class Fleet:
    """The nodes of a job; `wids.simulate.run.Simulation` tells them what is drawn and needed.

    Args:
        job: whose.
        most_fetches: after so many it is given up.
        is_strict: give up when the first shard is fetched again.
    """

    def __init__(self, job: Job, *, most_fetches: int, is_strict: bool) -> None:
        self._job, self._left, self._is_strict = job, most_fetches, is_strict
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
        self._waits: tuple[int, float] | None = None  # the step that waits, and since when
        self._wanted = 10 * job.latency * job.bandwidth / job.connections
        self.found = Outcome(log=[[(0.0, 0, 0)] for _ in self._nodes])

    @property
    def _rate(self) -> float:
        """Samples of a rank in a second."""
        if self._job.step > 0:
            return self._job.batch_size / self._job.step
        return self._position / self._now if self._now > 0 else _FIRST_RATE

    def _demand(self, number: int, rank: int, shard: int, since: float | None = None) -> None:
        """A loader cannot go on without a shard."""
        node = self._nodes[number]
        if shard in node.coming or shard in node.there:
            return
        if self._finds_room(number, shard, self._now if since is None else since):
            self._fetch(number, rank, shard, is_urgent=True)
        elif since is None:
            node.wanting.append((rank, shard, self._now))
            self._remind(number, self._now + prefetching.GRACE_SECONDS)
        else:
            node.wanting.append((rank, shard, since))
        self._tell_gone(number)

    def _finds_room(self, number: int, shard: int, since: float) -> bool:
        """Whether there is room for what somebody has waited for since then; see `wids.cache.space.Space.reserve`."""
        node, has_leases = self._nodes[number], self._waits is None
        if self._now < since + prefetching.GRACE_SECONDS:
            soon = self._position + prefetching.SOON_SECONDS * self._rate
            has_room, is_blocked = node.reserve(shard, now=self._position, after=soon, has_leases=has_leases)
            if has_room or is_blocked or any(own.is_busy for own in self._ranks_of(number)):
                return has_room
        return node.reserve(shard, now=self._position, after=-math.inf, has_leases=has_leases)[0]

    def _remind(self, number: int, when: float) -> None:
        """Look again then whether there is room."""
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, _AGAIN, number, 0, 0, False))

    def _ask_again(self, number: int) -> None:
        """Something has changed for those who wait for room."""
        node = self._nodes[number]
        if not node.wanting:
            return
        if self._waits is not None:
            self._read_on(number, *self._waits)
        # Looking in vain changes nothing, and who needs as much finds no room either. There may be hundreds, and each
        # would go through all that is there and planned.
        least: dict[bool, int] = {}
        for _ in range(len(node.wanting)):
            waiting = rank, shard, since = node.wanting.popleft()
            is_new = self._now < since + prefetching.GRACE_SECONDS
            is_alike = is_new and self._waits is None  # only the very same then: it depends on whose lease is met
            if node.is_refused(shard, least.get(is_new), is_alike=is_alike):
                node.wanting.append(waiting)
                continue
            before = len(node.coming), node.evicted
            self._demand(number, rank, shard, since)
            if (len(node.coming), node.evicted) != before:
                least.clear()
            elif shard not in node.coming and shard not in node.there:
                least[is_new] = min(node.room(shard), least.get(is_new, node.room(shard)))

    def _read_on(self, number: int, step: int, due: float) -> None:
        """A step waits: loaders read what they have drawn, as far as they can, and plans count that they do."""
        job, node = self._job, self._nodes[number]
        least = step * job.batch_size
        node.finish_read(node.unread(least), least + job.drawn_samples)
        for own in self._ranks_of(number):
            own.relax(least + job.drawn_samples - job.burst + (self._now - due) * self._rate)

    def _ranks_of(self, number: int) -> list[Ahead]:
        """The prefetchers of a node."""
        first = number * self._job.ranks_per_node
        return [own for own in self._ranks[first : first + self._job.ranks_per_node] if own is not None]

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
        if kind == _AGAIN:
            self._ask_again(number)
            self._pump(number)
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
        self._ask_again(number)
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
                if own.slots >= job.connections and own.count >= prefetching.LEAST_UNDER_WAY:
                    break
                found = own.next_missing()
                if found is None:
                    break
                after, has_leases = self._after(found[1]), self._waits is None
                if not node.reserve(found[0], now=self._position, after=after, is_ahead=True, has_leases=has_leases)[0]:
                    break
                own.count += 1
                own.slots += self._slots(found[0])
                self._fetch(number, rank, found[0], is_urgent=False)
                self._tell_gone(number)

    def _after(self, first: int) -> float:
        """Only what is used later than this goes for a shard that is used from ``first`` on."""
        use = prefetching.with_margin(max(first, self._position), self._position)
        return max(use, self._position + prefetching.NOW_SECONDS * self._rate)

    def _tell_gone(self, number: int) -> None:
        node = self._nodes[number]
        if not node.gone:
            return
        gone, node.gone = node.gone, []
        for own in self._ranks_of(number):
            for shard in gone:
                own.miss(shard)

    def _slots(self, shard: int) -> int:
        size, connections = self._sizes[shard], self._job.connections
        return prefetching.slots(
            size, prefetching.range_bytes(size, wanted=self._wanted, connections=connections), connections
        )

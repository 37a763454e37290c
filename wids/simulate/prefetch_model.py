"""What one rank's prefetcher looks at, and how far ahead it fetches, as `wids.cache.prefetch` does.

Rules: figures and formulas are those of `wids.policy.prefetching`, by which the prefetcher itself goes.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from wids.policy import prefetching

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wids.simulate.node_cache import Node
    from wids.simulate.trace import Visits


class Ahead:
    """The prefetcher of one rank in one epoch.

    Args:
        node: its node.
        visits: as the prefetcher sees them.
        sizes: bytes of each shard.
        reach: bytes ahead to fetch at most. scope: bytes ahead to plan for.
        offset: the position at which the epoch begins.
        is_planned: write down what comes; without a bound nobody reads it.

    Attributes:
        count, slots: shards and connections under way.
        is_busy: of what was drawn, some may still have to be read, says the plan.
    """

    def __init__(
        self,
        node: Node,
        visits: Visits,
        sizes: Sequence[int],
        *,
        reach: int,
        scope: int,
        offset: int,
        is_planned: bool,
    ) -> None:
        self._node, self._sizes, self._reach, self._scope = node, sizes, reach, scope
        self._first, self._last = (visits.first + offset).tolist(), visits.last
        self._shard = visits.shard.tolist()
        self._weights = (1 + (visits.last - visits.first) // prefetching.BLOCK).tolist()
        self._is_planned = is_planned
        self._is_passed = bytearray(len(self._first))
        self._looked = self._reached = self._weight = 0
        self._scoped, self._near = _Bytes(sizes), _Bytes(sizes)
        self._released: set[int] = set()
        self._busy: set[int] = set()
        self._missing: list[int] = []
        self._visits_of: dict[int, list[int]] = {}  # of each shard within reach
        self.count = self.slots = 0

    @property
    def is_busy(self) -> bool:
        """See the class."""
        return bool(self._busy)

    def look(self) -> None:
        """Look at as much of what comes as matters."""
        total = len(self._first)
        while self._looked < total and self._weight < prefetching.MOST_VISITS and self._scoped.total < self._scope:
            k = self._looked
            self._looked += 1
            if k in self._released:
                continue
            self._weight += self._weights[k]
            if not self._is_passed[k]:
                self._scoped.add(self._shard[k])
            if self._is_planned:
                self._node.plan(self._shard[k], self._first[k])
        while self._reached < self._looked:
            k = self._reached
            shard = self._shard[k]
            if not self._is_passed[k]:
                if shard not in self._near and self._near.total + self._sizes[shard] > self._reach:
                    return
                self._near.add(shard)
                self._visits_of.setdefault(shard, []).append(k)
                if shard not in self._node.there:
                    heapq.heappush(self._missing, k)
            self._reached += 1

    def pass_by(self, k: int) -> None:
        """The last index of a visit was drawn."""
        self._is_passed[k] = 1
        shard = self._shard[k]
        if k < self._looked:
            self._scoped.remove(shard)
            if self._is_planned and k not in self._released:
                self._busy.add(k)
        if k < self._reached:
            self._near.remove(shard)
            self._visits_of[shard].remove(k)

    def release(self, k: int) -> None:
        """The last sample of a visit was read, as far as the plan knows."""
        if k in self._released:
            return
        self._released.add(k)
        self._busy.discard(k)
        if k < self._looked:
            self._weight -= self._weights[k]
            if self._is_planned:
                self._node.unplan(self._shard[k], self._first[k])

    def relax(self, position: float) -> None:
        """Nothing was drawn for a while: a loader that waits has read what comes before this position in the epoch."""
        for k in [k for k in self._busy if self._last[k] < position]:
            self.release(k)

    def end(self) -> None:
        """The epoch is over, and with it the plan."""
        if self._is_planned:
            for k in range(self._looked):
                if k not in self._released:
                    self._node.unplan(self._shard[k], self._first[k])

    def miss(self, shard: int) -> None:
        """A shard was evicted: if it is within reach, it is fetched again."""
        if self._visits_of.get(shard):
            heapq.heappush(self._missing, self._visits_of[shard][0])

    def next_missing(self) -> tuple[int, int] | None:
        """(shard, position) of what is within reach and neither there nor on its way."""
        while self._missing:
            k = self._missing[0]
            shard = self._shard[k]
            if not (self._is_passed[k] or shard in self._node.there or shard in self._node.coming):
                return shard, self._first[k]
            heapq.heappop(self._missing)
        return None


class _Bytes:
    """The bytes of shards, each counted once however often it was added."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes, self.total = sizes, 0
        self._counts: dict[int, int] = {}

    def __contains__(self, shard: int) -> bool:
        return shard in self._counts

    def add(self, shard: int) -> None:
        if shard not in self._counts:
            self.total += self._sizes[shard]
        self._counts[shard] = self._counts.get(shard, 0) + 1

    def remove(self, shard: int) -> None:
        left = self._counts[shard] - 1
        if left:
            self._counts[shard] = left
        else:
            del self._counts[shard]
            self.total -= self._sizes[shard]

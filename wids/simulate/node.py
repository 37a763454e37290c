"""A node's cache: what is there, what comes, and what goes for it.

Rules: what goes is chosen by `wids.cache.evict`, by the same figures as in a cache directory: the positions at which
the plans of the node's ranks use a shard next stand for times, for all ranks go at one pace. What is on its way cannot
go. A use that has begun is now.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import TYPE_CHECKING

from wids.cache.evict import Entry, missing_bytes, victims

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_BOUNDLESS = 1 << 62


class Node:
    """One node.

    Args:
        limit: bytes that its cache may hold; None: no bound.
        rooms: bytes that each shard takes there, with its member table.

    Attributes:
        used: bytes in the cache, those promised to what comes included.
        there: shard -> when it was used last. coming: shards on their way.
        plans: shard -> the positions at which the ranks' plans use it.
        open: shard -> the visits under way: (rank, visit) -> its first batch.
        again: shards that went although they were being read.
        evicted: how many went.
    """

    def __init__(self, limit: int | None, rooms: Sequence[int]) -> None:
        self.limit, self._rooms = limit, rooms
        self.used = self.evicted = 0
        self.there: dict[int, int] = {}
        self._last: dict[int, int] = {}  # of each shard that was used or was there, when
        self.coming: set[int] = set()
        self.plans: dict[int, list[int]] = {}
        self.open: dict[int, dict[tuple[int, int], int]] = {}
        self.again: set[int] = set()
        self.gone: list[int] = []  # evicted since somebody looked
        self.wanting: deque[tuple[int, int]] = deque()  # (rank, shard) for which there was no room
        self.urgent: deque[tuple[int, int]] = deque()
        self.turns: dict[int, deque[int]] = {}
        self.is_serving = False
        self._idle: list[tuple[int, int]] = []  # (used last, shard) of what no plan has, some of it outdated
        self._failed_after = math.inf

    def touch(self, shard: int, when: int) -> None:
        """A shard is used, until ``when``: from now on, or as soon as it is there."""
        self._last[shard] = max(when, self._last.get(shard, when))
        if shard not in self.there:
            return
        self.there[shard] = self._last[shard]
        if shard not in self.plans:
            heapq.heappush(self._idle, (self.there[shard], shard))

    def plan(self, shard: int, position: int) -> None:
        """A rank will use a shard."""
        self.plans.setdefault(shard, []).append(position)

    def unplan(self, shard: int, position: int) -> None:
        """That use is over."""
        self._failed_after = math.inf
        positions = self.plans[shard]
        positions.remove(position)
        if not positions:
            del self.plans[shard]
            if shard in self.there:
                heapq.heappush(self._idle, (self.there[shard], shard))

    def arrive(self, shard: int, when: int) -> None:
        """A shard has come."""
        self._failed_after = math.inf
        self.coming.discard(shard)
        self.there[shard] = when
        self.touch(shard, when)

    def reserve(self, shard: int, *, now: int, after: float = -math.inf) -> bool:
        """Whether there is room for a shard, or was made; it is on its way then.

        Args:
            shard: which.
            now: the position of the ranks.
            after: only what is used later than this may go; -inf: somebody waits for the shard.
        """
        wanted = self._rooms[shard]
        missing = missing_bytes(used=self.used, wanted=wanted, limit=self.limit, free=_BOUNDLESS, floor=0)
        is_let_in = after == -math.inf and self.limit is not None and wanted > self.limit
        if missing > 0 and after >= self._failed_after:
            return False  # nothing has changed since there was no room for something that was used sooner
        if missing > 0 and not self._evict(missing, now=now, after=after, is_let_in=is_let_in):
            self._failed_after = min(self._failed_after, after)
            return False
        self.force(shard)
        return True

    def force(self, shard: int) -> None:
        """Let a shard come."""
        self.used += self._rooms[shard]
        self.coming.add(shard)

    def _evict(self, missing: int, *, now: int, after: float, is_let_in: bool) -> bool:
        entries, uses = self._candidates(missing, now)
        going = []
        for entry in victims(entries, uses, after=after):
            if missing <= 0:
                break
            going.append(int(entry.name))
            missing -= entry.size_bytes
        is_enough = missing <= 0 or is_let_in
        if is_enough:
            for shard in going:
                self._drop(shard)
        for entry in entries:
            shard = int(entry.name)
            if shard in self.there and shard not in self.plans:
                heapq.heappush(self._idle, (self.there[shard], shard))
        return is_enough

    def _candidates(self, missing: int, now: int) -> tuple[Iterable[Entry], dict[str, float]]:
        """What may have to go for ``missing`` bytes, and when it is used next."""
        entries: dict[int, Entry] = {}
        found = 0
        while found < missing and self._idle:
            when, shard = heapq.heappop(self._idle)
            if shard not in self.plans and self.there.get(shard) == when and shard not in entries:
                entries[shard] = self._entry(shard)
                found += self._rooms[shard]
        uses: dict[str, float] = {}
        if found < missing:  # those that no plan has go first, so the others matter only now
            for shard, positions in self.plans.items():
                if shard in self.there:
                    entries[shard] = self._entry(shard)
                    uses[str(shard)] = max(min(positions), now)
        return entries.values(), uses

    def _drop(self, shard: int) -> None:
        del self.there[shard]
        self.used -= self._rooms[shard]
        self.evicted += 1
        self.gone.append(shard)
        if shard in self.open:
            self.again.add(shard)

    def _entry(self, shard: int) -> Entry:
        return Entry(name=str(shard), size_bytes=self._rooms[shard], used_ns=self.there[shard])

    def queue(self, rank: int, shard: int, *, is_urgent: bool) -> None:
        """The first byte of a shard is here; it waits for its turn on the link."""
        if is_urgent:
            self.urgent.append((rank, shard))
        else:
            self.turns.setdefault(rank, deque()).append(shard)

    def next_turn(self) -> tuple[int, int, bool] | None:
        """(rank, shard, is_urgent) whose bytes come next: what somebody waits for, else the ranks in turn."""
        if self.urgent:
            return *self.urgent.popleft(), True
        if not self.turns:
            return None
        rank = next(iter(self.turns))
        line = self.turns.pop(rank)
        shard = line.popleft()
        if line:
            self.turns[rank] = line
        return rank, shard, False

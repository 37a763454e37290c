"""A node's cache: what is there, what comes, and what goes for it.

Rules: what is evicted is chosen by `wids.policy.eviction`, as in a cache directory: the positions at which the plans of
the node's ranks use a shard next stand for times, for all ranks go at one pace. What is on its way cannot
go, nor can what is being read: it has a lease. A use that has begun is now.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import TYPE_CHECKING

from wids.policy.eviction import Entry, missing_bytes, victims

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

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
        open: shard -> the visits under way: (rank, visit) -> the first and the last position in the epoch.
        missing: those of them that are not there. finished: visits that loaders have read, and not handed out.
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
        self.open: dict[int, dict[tuple[int, int], tuple[int, int]]] = {}
        self.missing: set[int] = set()
        self.finished: set[tuple[int, int]] = set()
        self.again: set[int] = set()
        self.gone: list[int] = []  # evicted since somebody looked
        self.wanting: deque[tuple[int, int, float]] = deque()  # (rank, shard, since when) that wait for room
        self.urgent: deque[tuple[int, int]] = deque()
        self.turns: dict[int, deque[int]] = {}
        self.is_serving = False
        self._idle: list[tuple[int, int]] = []  # (used last, shard) of what no plan has, some of it outdated
        self._failed_after = math.inf

    def begin(self, key: tuple[int, int], shard: int, span: tuple[int, int]) -> None:
        """A loader begins a visit: from now on the shard has a lease, as soon as it is there."""
        self.open.setdefault(shard, {})[key] = span
        if shard not in self.there:
            self.missing.add(shard)

    def can_read(self, rank: int, shard: int, last: int) -> bool:
        """Whether a shard is there for a rank to read, and all that it reads before that position."""
        return shard not in self.missing and last < self.unread(0).get(rank, last + 1)

    def finish(self, key: tuple[int, int], shard: int, *, is_read: bool) -> None:
        """A visit was read to its end, or (not ``is_read``) also handed out."""
        if is_read:
            self.finished.add(key)
        else:
            self.finished.discard(key)
        visits = self.open.get(shard, {})
        if visits.pop(key, None) is not None and not visits:
            del self.open[shard]
            self.missing.discard(shard)
            self._failed_after = math.inf

    def finish_read(self, unread: dict[int, int], reading: int) -> None:
        """Visits end that could be read.

        Args:
            unread: rank -> the position of what is missing, before which it has read all.
            reading: the position before which the other ranks have.
        """
        for shard, visits in list(self.open.items()):
            if shard in self.missing:
                continue
            for key, (_, last) in list(visits.items()):
                if last < unread.get(key[0], reading):
                    self.finish(key, shard, is_read=True)

    def unread(self, least: int) -> dict[int, int]:
        """Rank -> the position of the first sample that it cannot read, at least ``least``; of ranks that wait."""
        found: dict[int, int] = {}
        for shard in self.missing:
            for (rank, _), (first, _) in self.open[shard].items():
                at = max(first, least)
                found[rank] = min(found.get(rank, at), at)
        return found

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
        self.missing.discard(shard)
        self.there[shard] = when
        self.touch(shard, when)

    def reserve(
        self, shard: int, *, now: int, after: float = -math.inf, is_ahead: bool = False, has_leases: bool = True
    ) -> tuple[bool, bool]:
        """Make room for a shard, which is on its way then.

        Args:
            shard: which.
            now: the position of the ranks.
            after: only what is used later than this may go.
            is_ahead: nobody waits for it.
            has_leases: what is being read stays. Those who wait are all who read: they let go of what they hold.

        Returns:
            Whether there is room, or was made; and whether something did not go because it is being read.
        """
        wanted = self._rooms[shard]
        missing = missing_bytes(used=self.used, wanted=wanted, limit=self.limit, free=_BOUNDLESS, floor=0)
        is_let_in = after == -math.inf and self.limit is not None and wanted > self.limit
        if missing > 0 and is_ahead and after >= self._failed_after:
            return False, False  # nothing has changed since there was no room for something that was used sooner
        if missing > 0:
            missing, is_blocked = self._evict(missing, now, after, is_let_in=is_let_in, has_leases=has_leases)
            if missing > 0 and not is_let_in:
                if is_ahead:
                    self._failed_after = min(self._failed_after, after)
                return False, is_blocked
        self.force(shard)
        return True, False

    def room(self, shard: int) -> int:
        """Bytes that a shard takes."""
        return self._rooms[shard]

    def is_refused(self, shard: int, least: int | None, *, is_alike: bool) -> bool:
        """Whether a shard that is to come finds no room, as ``least`` bytes found none; ``is_alike``: just as many."""
        if least is None or shard in self.coming or shard in self.there or self.limit is None:
            return False
        room = self._rooms[shard]
        return (room == least if is_alike else room >= least) and room <= self.limit

    def force(self, shard: int) -> None:
        """Let a shard come."""
        self.used += self._rooms[shard]
        self.coming.add(shard)

    def _evict(self, missing: int, now: int, after: float, *, is_let_in: bool, has_leases: bool) -> tuple[int, bool]:
        """As `wids.cache.space.Space` does; returns how many bytes are still missing, and whether a lease was met."""
        leased = self.open if has_leases else {}
        entries, uses = self._candidates(missing, now, leased)
        going = list(victims(entries, uses, after=after))
        if sum(entry.size_bytes for entry in going) < missing and not is_let_in:
            going = []  # nothing is lost for what has no room even then
        is_blocked = False
        for entry in going:
            if missing <= 0:
                break
            if int(entry.name) in leased:
                is_blocked = True
            else:
                self._drop(int(entry.name))
                missing -= entry.size_bytes
        for entry in entries:
            shard = int(entry.name)
            if shard in self.there and shard not in self.plans:
                heapq.heappush(self._idle, (self.there[shard], shard))
        return missing, is_blocked

    def _candidates(self, missing: int, now: int, leased: Container[int]) -> tuple[Iterable[Entry], dict[str, float]]:
        """What may have to go for ``missing`` bytes, and when it is used next."""
        entries: dict[int, Entry] = {}
        found = 0
        while found < missing and self._idle:
            when, shard = heapq.heappop(self._idle)
            if shard not in self.plans and self.there.get(shard) == when and shard not in entries:
                entries[shard] = self._entry(shard)
                found += self._rooms[shard] if shard not in leased else 0
        uses: dict[str, float] = {}
        if found < missing:  # those that no plan has go first, so the others matter only now
            for shard, positions in self.plans.items():
                if shard in self.there:
                    entries[shard] = self._entry(shard)
                    uses[str(shard)] = max(min(positions), now)
        return sorted(entries.values(), key=lambda entry: entry.used_ns), uses

    def _drop(self, shard: int) -> None:
        del self.there[shard]
        self.used -= self._rooms[shard]
        self.evicted += 1
        self.gone.append(shard)
        if shard in self.open:
            self.again.add(shard)
            self.missing.add(shard)

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

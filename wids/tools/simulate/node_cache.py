"""A node's cache as `wids.core.cache.reservation` sees it.

The positions at which the node's ranks use a shard next stand for times, for all ranks go at one pace; a use that has
begun is now. A shard that is on its way cannot be evicted, nor one that is being read: it has a lease.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

from wids.core.cache.eviction import Entry
from wids.core.cache.reservation import Grant, Request, settle

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence


class NodeCache:
    """The cache of one node.

    Args:
        limit: bytes that it may hold; None: no limit.
        footprints: bytes that each shard takes there, with its member table.
        is_busy: whether a plan says that shards are used for the last time.

    Attributes:
        used: bytes in the cache, those promised to shards on their way included.
        cached: shard -> time of its last use.
        coming: shards on their way.
        plans: shard -> the positions at which the ranks' plans use it.
        open: shard -> the visits under way: (rank, visit) -> the first and the last position in the epoch.
        missing: those of them that are not cached.
        finished: visits that loaders have read, and not handed out.
        again: shards that were evicted although they were being read.
        gone: shards that were evicted, for prefetchers to take note of.
        evicted: number of evictions.
        now: see `wids.core.cache.reservation.Snapshot`.
        second: see there.
        disk: see there.
        free: see there.
        floor: see there.
        promised: see there.
        uses: see there.
    """

    limit: int | None
    used: int
    evicted: int
    now: float
    second: float
    disk: int = 0
    free: int = 1 << 62
    floor: int = 0
    promised: int = 0

    def __init__(
        self, limit: int | None, footprints: Sequence[int], *, is_busy: Callable[[], bool] = lambda: False
    ) -> None:
        self.limit, self._footprints, self._is_busy = limit, footprints, is_busy
        self.used = self.evicted = 0
        self.now, self.second = 0.0, 1.0
        self.cached: dict[int, int] = {}
        self._last: dict[int, int] = {}  # of each shard that was used or was cached, when
        self.coming: set[int] = set()
        self.plans: dict[int, list[int]] = {}
        self._next: dict[int, int] = {}  # of each planned shard, its first use
        self.open: dict[int, dict[tuple[int, int], tuple[int, int]]] = {}
        self.missing: set[int] = set()
        self.finished: set[tuple[int, int]] = set()
        self.again: set[int] = set()
        self.gone: list[int] = []
        self.uses: dict[str, float] = {}
        self._made: dict[int, Entry] = {}  # as they were last; each is looked at often
        self._has_leases = True
        self._idle: list[tuple[int, int]] = []  # (used last, shard) of those that no plan has, some of it outdated
        self._entries: Generator[Entry, None, None] | None = None
        self._refused_use = math.inf

    # --- loaders and plans

    def begin(self, key: tuple[int, int], shard: int, span: tuple[int, int]) -> None:
        """A loader begins a visit: from now on the shard has a lease, as soon as it is cached."""
        self.open.setdefault(shard, {})[key] = span
        if shard not in self.cached:
            self.missing.add(shard)

    def can_read(self, rank: int, shard: int, last: int) -> bool:
        """True if a shard is there for a rank to read, and all that it reads before that position."""
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
            self._refused_use = math.inf

    def finish_read(self, unread: dict[int, int], reading: int) -> None:
        """Visits end that could be read.

        Args:
            unread: rank -> the position of its first missing sample, before which it has read all.
            reading: the position before which the other ranks have.
        """
        for shard, visits in list(self.open.items()):
            if shard not in self.missing:
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
        """A shard is used, until ``when``: from now on, or as soon as it is cached."""
        self._last[shard] = max(when, self._last.get(shard, when))
        if shard in self.cached:
            self.cached[shard] = self._last[shard]
            self._note_idle(shard)

    def plan(self, shard: int, position: int) -> None:
        """A rank will use a shard."""
        self.plans.setdefault(shard, []).append(position)
        self._next[shard] = min(position, self._next.get(shard, position))

    def unplan(self, shard: int, position: int) -> None:
        """End that use."""
        self._refused_use = math.inf
        positions = self.plans[shard]
        positions.remove(position)
        if not positions:
            del self.plans[shard], self._next[shard]
            self._note_idle(shard)
        elif position == self._next[shard]:
            self._next[shard] = min(positions)

    def arrive(self, shard: int, when: int) -> None:
        """A shard is cached now."""
        self._refused_use = math.inf
        self.coming.discard(shard)
        self.missing.discard(shard)
        self.cached[shard] = when
        self.touch(shard, when)

    def end_epoch(self) -> None:
        """No loader reads any more."""
        for found in (self.open, self.again, self.missing, self.finished):
            found.clear()

    # --- space

    def reserve(
        self,
        shard: int,
        *,
        now: float,
        second: float = 1.0,
        use: float | None = None,
        waited: float = math.inf,
        has_leases: bool = True,
    ) -> bool:
        """Find or make space for a shard, which is on its way then.

        Args:
            shard: which.
            now: the position of the ranks.
            second: positions that they draw in a second.
            use: the position at which it is used, margin included, if it is downloaded ahead; None: a loader waits.
            waited: for how many seconds.
            has_leases: shards that are being read stay. Where all who read wait, they release theirs.
        """
        if use is not None and use >= self._refused_use:
            return False  # nothing has changed since there was no space for a shard that was used sooner
        self.now, self.second, self._has_leases = now, second, has_leases
        footprint = self._footprints[shard]
        decision = settle(self, Request(footprint, footprint, use, waited), self._evict)
        self._close_entries()
        if isinstance(decision, Grant):
            self.admit(shard)
            return True
        if use is not None:
            self._refused_use = min(self._refused_use, use)
        return False

    def admit(self, shard: int) -> None:
        """A shard is on its way, whether there is space or not."""
        self.used += self._footprints[shard]
        self.coming.add(shard)

    def footprint(self, shard: int) -> int:
        """Bytes that a shard takes."""
        return self._footprints[shard]

    @property
    def is_busy(self) -> bool:
        """True if some uses will be over in a moment; see `wids.core.cache.reservation.Snapshot`."""
        return self._is_busy()

    def entries(self) -> Iterator[Entry]:
        """The shards, least recently used first; those that a plan has come last, with their uses."""
        self._close_entries()
        self.uses = {}
        self._entries = self._list_entries()
        return self._entries

    def _list_entries(self) -> Generator[Entry, None, None]:
        taken: set[int] = set()
        try:
            while self._idle:
                when, shard = heapq.heappop(self._idle)
                if shard not in self.plans and self.cached.get(shard) == when and shard not in taken:
                    taken.add(shard)
                    yield self._entry(shard)
            planned = sorted((shard for shard in self._next if shard in self.cached), key=self.cached.__getitem__)
            entries = list(map(self._entry, planned))
            for entry, shard in zip(entries, planned, strict=True):
                self.uses[entry.name] = max(self._next[shard], self.now)
            yield from entries
        finally:
            for shard in taken:
                self._note_idle(shard)

    def _close_entries(self) -> None:
        """Put back those that were taken."""
        if self._entries is not None:
            self._entries.close()

    def _entry(self, shard: int) -> Entry:
        entry, used = self._made.get(shard), self.cached[shard]
        if entry is None or entry.used_ns != used:
            entry = self._made[shard] = Entry(name=str(shard), size_bytes=self._footprints[shard], used_ns=used)
        return entry

    def _note_idle(self, shard: int) -> None:
        if shard in self.cached and shard not in self.plans:
            heapq.heappush(self._idle, (self.cached[shard], shard))

    def _evict(self, entry: Entry) -> bool:
        shard = int(entry.name)
        if self._has_leases and shard in self.open:
            return False
        del self.cached[shard]
        self.used -= self._footprints[shard]
        self.evicted += 1
        self.gone.append(shard)
        if shard in self.open:
            self.again.add(shard)
            self.missing.add(shard)
        return True

"""Which upcoming shards one reader should have downloaded by now.

Pure: the reader's position and rate are arguments, and its owner reports what became of each download. The prefetcher
(`wids.cache.prefetch`) and `wids simulate` run the same object.

    visits    . . forgotten . . [ . passed . | . . . . upcoming . . . . . . ] . . not looked at yet . .
                                    position ^ -- within reach: download -- ^
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from wids.policy import prefetching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from wids.order.layout import Visit

# The number of a shard list, and the shard's own there.
ShardKey = tuple[int, int]


class AheadLimits(NamedTuple):
    """How far ahead the shards of one shard list may be downloaded.

    Attributes:
        given: bytes, by the user; None: as far as is good.
        cache_size: bytes of their cache; None: no limit.
        ranks: how many share that cache.
        directory: of that cache: lists with equal limits in one directory have them together; None: each by itself.
        has_early_reads: whether samples of a shard that is not there can be read by byte ranges instead.
    """

    given: int | None
    cache_size: int | None
    ranks: int = 1
    directory: str | None = None
    has_early_reads: bool = True

    def max_bytes(self, typical: int, *, shards: int = prefetching.LIMITS.min_shards) -> int:
        """The maximum, for shards of about ``typical`` bytes, of which ``shards`` are to be within reach."""
        return prefetching.max_ahead(
            self.given, limit=self.cache_size, ranks=self.ranks, typical=typical, shards=shards
        )

    def scope(self, typical: int, *, shards: int = prefetching.LIMITS.min_shards) -> int:
        """How many bytes ahead are looked at: also those whose place in the cache could be another's."""
        return max(self.max_bytes(typical, shards=shards), self.cache_size or 0)


class _Upcoming:
    """A shard with visits in the window.

    A large shard has a visit in each of many blocks of the order. Those that follow each other within a block are one
    stay.

    Attributes:
        visits: how many, passed ones included. upcoming: those that were not passed, in order.
        passed: the stay of the visits that were passed last: its first position, and its last so far.
        size: in bytes, a guess unless it ``is_sized``.
        is_counted: its bytes are ahead of the reader. is_near: it is within reach. is_present: it needs no download.
        is_late: its samples are left to byte ranges, until the next visit at least.
    """

    __slots__ = ("is_counted", "is_late", "is_near", "is_present", "is_sized", "passed", "size", "upcoming", "visits")

    def __init__(self, size: int, *, is_sized: bool) -> None:
        self.size, self.is_sized, self.visits = size, is_sized, 0
        self.upcoming: list[Visit] = []
        self.passed: tuple[float, float] = (0, -math.inf)
        self.is_counted = self.is_near = self.is_present = self.is_late = False

    def note_passed(self, visit: Visit) -> None:
        """A visit was passed."""
        first, last = self.passed
        self.passed = (visit.first if visit.first - last > prefetching.LIMITS.block else first), max(last, visit.last)

    def stay(self) -> tuple[float, float]:
        """The first and the last position of the stay of the next visit, as far as visits were looked at."""
        first, last = self.passed
        for number, visit in enumerate(self.upcoming):
            if visit.first - last > prefetching.LIMITS.block:
                if number:
                    break
                first = visit.first
            last = max(last, visit.last)
        return first, last


class _Reach:
    """The shards of some lists that are within reach: the first ones, as far as the bytes allow."""

    __slots__ = ("begins", "beyond", "limits", "near_bytes")

    def __init__(self, limits: AheadLimits) -> None:
        self.limits, self.near_bytes = limits, 0
        # (first position of the shard's next visit, shard); outdated ones are skipped when they come up.
        self.beyond: list[tuple[int, ShardKey]] = []
        self.begins: list[tuple[int, ShardKey]] = []

    @property
    def is_open(self) -> bool:
        """Whether shards that are being read do not count: they take no space that something ahead could use."""
        return self.limits.given is None and self.limits.cache_size is None


class _UnderWay:
    """Downloads under way, and how far the reader goes on during one."""

    __slots__ = ("_begun", "_lag")

    def __init__(self) -> None:
        self._begun: dict[ShardKey, int] = {}  # at which positions
        self._lag = 0.0

    def __contains__(self, key: ShardKey) -> bool:
        return key in self._begun

    def is_full(self, slots_of: Callable[[ShardKey], int], connections: int) -> bool:
        """Whether no other may begin."""
        return len(self._begun) >= prefetching.LIMITS.min_under_way and sum(map(slots_of, self._begun)) >= connections

    def begin(self, key: ShardKey, position: int) -> None:
        self._begun[key] = position

    def end(self, key: ShardKey, position: int, *, is_complete: bool) -> None:
        begun = self._begun.pop(key, None)
        if begun is not None and is_complete:
            self._lag = prefetching.new_lag(self._lag, position - begun)

    def arrival(self, position: int) -> float:
        """Where the reader will be, about, when a download that begins now has ended."""
        return position + max([self._lag, *(position - begun for begun in self._begun.values())])


class PrefetchWindow:
    """The upcoming visits of one reader as far as they matter, and the downloads that they call for.

    Args:
        visits: the reader's visits to shards, in blocks, by ascending first positions; taken as needed.
        limits: of each shard list.
        size_of: the bytes of a shard; None: not known, or not before it is cached.
        needs_download: whether a shard that came within reach has to be downloaded, as far as the owner sees.
        slots_of: how many connections the download of a shard keeps busy.
        connections: byte ranges under way at a time; more downloads begin only up to ``min_under_way``.
        has_early_reads: see below.
        mixed: shards that are read at a time, as far as known.

    Attributes:
        has_early_reads: samples are read by byte ranges until their shards are cached. Where the cache is limited, a
            shard is then downloaded in time or not at all: see `prefetching.is_in_time`. May be assigned.
        visits: those in the window, by their first positions; some of the passed ones may be forgotten.
        is_exhausted: the reader has no other visits than these.
    """

    def __init__(
        self,
        visits: Iterator[Sequence[Visit]],
        limits: Iterable[AheadLimits],
        *,
        size_of: Callable[[ShardKey], int | None],
        needs_download: Callable[[ShardKey], bool],
        slots_of: Callable[[ShardKey], int],
        connections: int = prefetching.LIMITS.connections,
        has_early_reads: bool = False,
        mixed: int = 0,
    ) -> None:
        self.has_early_reads = has_early_reads
        self._blocks = visits
        shared: dict[AheadLimits, _Reach] = {}
        # Of each list; those of one cache have theirs together, and so its limit.
        self._reaches = [
            _Reach(own) if own.directory is None else shared.setdefault(own, _Reach(own)) for own in limits
        ]
        self._distinct = list({id(reach): reach for reach in self._reaches}.values())
        self._min_shards = prefetching.min_reach(mixed)
        self._size_of, self._needs_download, self._slots_of = size_of, needs_download, slots_of
        self._connections = connections
        self.visits: deque[Visit] = deque()
        self._entered: list[Visit] = []  # since the last `advance`
        self._edge = 0  # where the last block begins that was looked at
        self.is_exhausted = False
        self._position = self._weight = 0
        self._read_before = 0.0
        self._shards: dict[ShardKey, _Upcoming] = {}
        self._known_bytes = self._known = 0  # of the shards with known sizes, those that were forgotten included
        self._ahead_bytes = 0
        self._upcoming: list[tuple[int, Visit]] = []  # heaps, by last positions
        self._passed: list[tuple[int, Visit]] = []
        self._missing: list[tuple[int, ShardKey]] = []  # a heap, as those of `_Reach`
        self._under_way = _UnderWay()

    def __contains__(self, key: ShardKey) -> bool:
        return key in self._shards

    @property
    def is_busy(self) -> bool:
        """Whether visits were passed that are not known to have been read."""
        return bool(self._passed)

    # --- the reader's progress

    def advance(self, position: int, *, rate: float, read_before: float) -> tuple[list[Visit], list[Visit]]:
        """The reader has drawn up to ``position``, at ``rate`` positions a second.

        Args:
            position: never less than before.
            rate: 0: not known.
            read_before: the loader has read all samples before this position; visits that end there are forgotten.

        Returns:
            The visits that entered the window, and those that were forgotten.
        """
        self._position, self._read_before = position, min(read_before, position)
        while self._upcoming and self._upcoming[0][0] < position:
            visit = heapq.heappop(self._upcoming)[1]
            heapq.heappush(self._passed, (visit.last, visit))
            shard = self._shards[_key(visit)]
            shard.upcoming.remove(visit)
            shard.note_passed(visit)
            self._renew(_key(visit))
        for reach in self._distinct:
            while reach.begins and reach.begins[0][0] <= position:
                first, key = heapq.heappop(reach.begins)
                if self._is_next(key, first):
                    self._count(key, is_counted=False)
        forgotten = self.forget(read_before)
        entered = self._look()
        for reach in self._distinct:
            self._extend(reach, rate)
        return entered, forgotten

    def forget(self, read_before: float) -> list[Visit]:
        """Forget visits that were passed and end before this position; returns them."""
        found = []
        while self._passed and self._passed[0][0] < read_before:
            visit = heapq.heappop(self._passed)[1]
            found.append(visit)
            key, self._weight = _key(visit), self._weight - _weight(visit)
            shard = self._shards[key]
            shard.visits -= 1
            if not shard.visits:
                del self._shards[key]
        while self.visits and self.visits[0].last < min(read_before, self._position):
            self.visits.popleft()
        return found

    def forget_all(self) -> list[Visit]:
        """The reader has ended: the visits that were in the window, which has no more use."""
        return [visit for _, visit in self._passed + self._upcoming]

    # --- downloads

    def take(self) -> Visit | None:
        """The next visit whose shard should be downloaded, which is under way then; None: nothing more may begin."""
        while self._missing:
            first, key = self._missing[0]
            if self._is_next(key, first) and self._shards[key].is_near and self._is_missing(key):
                if not self._needs_download(key):
                    self._shards[key].is_present = True
                elif self._is_in_time(key):
                    break
                else:
                    shard = self._shards[key]
                    shard.is_late = True
                    if shard.upcoming[-1].last <= shard.stay()[1]:
                        self._count(key, is_counted=False)  # not if it comes back: others would take its place
            heapq.heappop(self._missing)
        else:
            return None
        if self._under_way.is_full(self._slots_of, self._connections):
            return None
        heapq.heappop(self._missing)
        self._under_way.begin(key, self._position)
        return self._shards[key].upcoming[0]

    def end_download(self, key: ShardKey, *, is_complete: bool = False) -> None:
        """A download has ended; `report` says whether the shard is cached. ``is_complete``: this brought it."""
        self._under_way.end(key, self._position, is_complete=is_complete)

    def report(self, key: ShardKey, *, is_present: bool) -> None:
        """A shard is cached; or it is not, was evicted or may be tried again."""
        shard = self._shards.get(key)
        if shard is not None:
            shard.is_present = is_present
            if is_present and not shard.is_sized and (size := self._size_of(key)) is not None:
                self._learn(key, size)
            if shard.is_near and self._is_missing(key):
                heapq.heappush(self._missing, (shard.upcoming[0].first, key))

    def present(self) -> list[ShardKey]:
        """The shards within reach that need no download, as far as is known; by their next use."""
        found = [(shard.upcoming[0].first, key) for key, shard in self._shards.items() if shard.is_near]
        return [key for _, key in sorted(found) if self._shards[key].is_present]

    def upcoming(self, key: ShardKey) -> Sequence[Visit]:
        """The next visits of a shard that is within reach, in order, as far as they were looked at."""
        return self._shards[key].upcoming

    # --- inside

    def _look(self) -> list[Visit]:
        """Look at as many visits as matter; returns those that were not seen before."""
        while self._ahead_bytes < max(
            reach.limits.scope(self._typical, shards=self._min_shards) for reach in self._distinct
        ):
            if not self._look_further():
                break
        entered, self._entered = self._entered, []
        return entered

    def _look_further(self) -> bool:
        """Look at one more block of visits; False: there is none, or they would be too many."""
        if self.is_exhausted or self._weight >= prefetching.LIMITS.max_visits:
            return False
        block = next(self._blocks, None)
        if block is None:
            self.is_exhausted = True
            return False
        self._edge = min((visit.first for visit in block), default=self._edge)
        for visit in block:
            if visit.last >= self._read_before:
                self._enter(visit)
                self._entered.append(visit)
        return True

    def _enter(self, visit: Visit) -> None:
        key = _key(visit)
        shard = self._shards.get(key)
        if shard is None:
            size = self._size_of(key)
            known = self._typical if size is None else size
            shard = self._shards[key] = _Upcoming(known, is_sized=size is not None)
            if size is not None:
                self._known, self._known_bytes = self._known + 1, self._known_bytes + size
        shard.visits += 1
        self.visits.append(visit)
        self._weight += _weight(visit)
        if visit.last < self._position:
            heapq.heappush(self._passed, (visit.last, visit))
            shard.note_passed(visit)
            return
        heapq.heappush(self._upcoming, (visit.last, visit))
        shard.upcoming.append(visit)
        if len(shard.upcoming) == 1:
            self._renew(key)

    def _renew(self, key: ShardKey) -> None:
        """The next visit of a shard is another one, or there is none: it has to come within reach anew."""
        shard, reach = self._shards[key], self._reaches[key[0]]
        self._count(key, is_counted=False)
        shard.is_near = shard.is_late = False
        if not shard.upcoming:
            return
        first = shard.upcoming[0].first
        heapq.heappush(reach.beyond, (first, key))
        if not reach.is_open or first > self._position:
            self._count(key, is_counted=True)
            if reach.is_open:
                heapq.heappush(reach.begins, (first, key))

    def _count(self, key: ShardKey, *, is_counted: bool) -> None:
        shard = self._shards[key]
        if shard.is_counted != is_counted:
            shard.is_counted = is_counted
            change = shard.size if is_counted else -shard.size
            self._ahead_bytes += change
            if shard.is_near:
                self._reaches[key[0]].near_bytes += change

    def _extend(self, reach: _Reach, rate: float) -> None:
        """See which shards are within reach now."""
        limit = reach.limits.max_bytes(self._typical, shards=self._min_shards)
        if reach.limits.given is None:
            each = _samples_a_shard(self.visits, len(self._shards))
            good = prefetching.good_ahead(rate, typical=self._typical, each=each, shards=self._min_shards)
            limit = min(limit, good)
        if reach.near_bytes > limit:  # the reader has become slower: those that come first again
            for key, shard in self._shards.items():
                if shard.is_near and self._reaches[key[0]] is reach:
                    shard.is_near = False
                    heapq.heappush(reach.beyond, (shard.upcoming[0].first, key))
            reach.near_bytes = 0
        while reach.beyond:
            first, key = reach.beyond[0]
            if self._is_next(key, first) and not (shard := self._shards[key]).is_near:
                size = shard.size if shard.is_counted else 0
                if reach.near_bytes + size > limit:
                    break
                shard.is_near = True
                reach.near_bytes += size
                if self._is_missing(key):
                    heapq.heappush(self._missing, (first, key))
            heapq.heappop(reach.beyond)

    def _is_next(self, key: ShardKey, first: int) -> bool:
        """Whether the shard's next visit is the one that begins there."""
        shard = self._shards.get(key)
        return shard is not None and bool(shard.upcoming) and shard.upcoming[0].first == first

    def _is_missing(self, key: ShardKey) -> bool:
        shard = self._shards[key]
        return not shard.is_present and not shard.is_late and key not in self._under_way

    def _is_in_time(self, key: ShardKey) -> bool:
        """Whether a download that begins now is worth it."""
        limits = self._reaches[key[0]].limits
        if not (self.has_early_reads and limits.has_early_reads) or limits.cache_size is None:
            return True
        shard, arrival = self._shards[key], self._under_way.arrival(self._position)
        while True:
            first, last = shard.stay()
            if prefetching.is_in_time(first, last, arrival=arrival):
                return True
            if last < self._edge or self.is_exhausted:  # the stay ends there
                return False
            if not self._look_further() and not self.is_exhausted:  # no more may be looked at: as far as is known
                return prefetching.is_in_time(shard.upcoming[0].first, last, arrival=arrival)

    def _learn(self, key: ShardKey, size: int) -> None:
        """The size of a shard is known now, and so that of others, about."""
        guess = self._typical
        self._known, self._known_bytes = self._known + 1, self._known_bytes + size
        self._shards[key].is_sized = True
        self._resize(key, size)
        if not guess / 2 <= self._typical <= 2 * guess:
            for other, shard in self._shards.items():
                if not shard.is_sized:
                    self._resize(other, self._typical)

    def _resize(self, key: ShardKey, size: int) -> None:
        shard = self._shards[key]
        change, shard.size = size - shard.size, size
        if shard.is_counted:
            self._ahead_bytes += change
            if shard.is_near:
                self._reaches[key[0]].near_bytes += change

    @property
    def _typical(self) -> int:
        """The size of a shard, about; while none is known, a cache has space for some."""
        if self._known:
            return self._known_bytes // self._known
        limits = [reach.limits.cache_size for reach in self._distinct if reach.limits.cache_size is not None]
        return max(
            min([prefetching.LIMITS.unknown_bytes, *(limit // prefetching.LIMITS.min_shards for limit in limits)]), 1
        )


def _samples_a_shard(visits: Sequence[Visit], count: int) -> float:
    """Positions from one of ``count`` new shards to the next, about."""
    if len(visits) < 2:
        return 1.0
    return max((visits[-1].last - visits[0].first + 1) / count, 1.0)


def _key(visit: Visit) -> ShardKey:
    return visit.dataset, visit.shard


def _weight(visit: Visit) -> int:
    """A visit of many blocks of indices counts as one for each."""
    return 1 + (visit.last - visit.first) // prefetching.LIMITS.block

"""The upcoming shards that one reader should have downloaded by now.

Pure: the reader's position and rate are arguments, and its owner says how each download ended. The prefetcher
(`wids.core.prefetch.prefetcher`) and `wids simulate` run the same object, each with downloads of its own kind.

    visits    . . forgotten . . [ . passed . | . . . . upcoming . . . . . . ] . . not looked at yet . .
                                    position ^ -- within reach: download -- ^

    a download    PLANNED -- take() --> RUNNING -- end() --> DONE     the shard needs none, as far as known
                   ^  ^                    |
                   |  |                    +-- end(retry_at=) --> FAILED
                   |  +--- plan_again(): it was evicted, or may be tried again
                   +-- the next visit -- LATE     its samples are left to byte ranges
"""

from __future__ import annotations

import enum
import heapq
import math
from collections import deque
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from wids.core.prefetch import distance
from wids.core.transport import concurrency

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wids.core.order.layout import Visit

# The number of a shard list, and the shard's own there.
ShardKey = tuple[int, int]


class AheadLimits(NamedTuple):
    """Limits of downloading the shards of one shard list ahead.

    Attributes:
        ahead_bytes: the user's limit; None: as far as is good.
        cache_size: bytes of their cache; None: no limit.
        ranks: number of ranks that share that cache.
        directory: of that cache: lists with equal limits in one directory have them together; None: each by itself.
    """

    ahead_bytes: int | None
    cache_size: int | None
    ranks: int = 1
    directory: str | None = None

    def max_bytes(self, typical: int, *, shards: int = distance.LIMITS.min_shards) -> int:
        """The maximum, for shards of about ``typical`` bytes, of which ``shards`` are to be within reach."""
        return distance.max_ahead(
            self.ahead_bytes, limit=self.cache_size, ranks=self.ranks, typical=typical, shards=shards
        )

    def scope(self, typical: int, *, shards: int = distance.LIMITS.min_shards) -> int:
        """Number of bytes ahead that are looked at: also those whose place in the cache could be another's."""
        return max(self.max_bytes(typical, shards=shards), self.cache_size or 0)


class Life(enum.Enum):
    """The stage of a planned download's life; see the picture above."""

    PLANNED, RUNNING, DONE, FAILED, LATE = range(5)


class PlannedDownload:
    """A shard that the reader comes to, and the state of its download; owners derive their own kind from it.

    A large shard has a visit in each of many blocks of the order. Those that follow each other within a block are one
    stay.

    Attributes:
        life: see `Life`.
        retry_at: time at which one that failed may be tried again, by its owner's clock.
        key: its shard and that one's list.
        upcoming: the visits that were not passed, in order.
        visits: number of visits in the window, passed ones included.
        passed: the stay of the visits that were passed last: its first position, and its last so far.
        weight: its bytes, a guess unless they are known (``is_sized``).
        is_counted: its bytes are ahead of the reader.
        is_near: it is within reach.
        begun: the reader's position when it began.
    """

    life: Life
    retry_at: float
    __slots__ = (
        *("begun", "is_counted", "is_near", "is_sized", "key", "life", "passed", "retry_at", "upcoming", "visits"),
        "weight",
    )

    def __init__(self) -> None:
        self.life, self.retry_at = Life.PLANNED, 0.0
        self.key: ShardKey = (0, 0)
        self.upcoming: list[Visit] = []
        self.visits = self.weight = self.begun = 0
        self.passed: tuple[float, float] = (0, -math.inf)
        self.is_counted = self.is_near = self.is_sized = False

    # --- what owners say

    @property
    def size(self) -> int | None:
        """The bytes of the shard; None: not known, or not before it is cached."""
        raise NotImplementedError

    @property
    def slots(self) -> int:
        """Number of connections that its download keeps busy."""
        raise NotImplementedError

    @property
    def reads_early(self) -> bool:
        """True if its samples are read by byte ranges until it is cached, as far as known now; costs nothing.

        Where its cache is limited, it is then downloaded in time or not at all: see `distance.is_in_time`.
        """
        raise NotImplementedError

    def needs_download(self) -> bool:
        """True if it has to be downloaded, as far as its owner sees; asked when it comes within reach."""
        raise NotImplementedError

    # --- its visits

    def note_passed(self, visit: Visit) -> None:
        """A visit was passed."""
        first, last = self.passed
        self.passed = (visit.first if visit.first - last > distance.LIMITS.block else first), max(last, visit.last)

    def stay(self) -> tuple[float, float]:
        """The first and the last position of the stay of the next visit, as far as visits were looked at."""
        first, last = self.passed
        for number, visit in enumerate(self.upcoming):
            if visit.first - last > distance.LIMITS.block:
                if number:
                    break
                first = visit.first
            last = max(last, visit.last)
        return first, last


D = TypeVar("D", bound=PlannedDownload)
D_co = TypeVar("D_co", bound=PlannedDownload, covariant=True)


class PlannedSource(Protocol[D_co]):
    """A shard list whose shards are downloaded ahead."""

    @property
    def limits(self) -> AheadLimits:
        """Limits of downloading ahead; asked once."""

    def plan(self, shard: int) -> D_co:
        """A new download of the shard of a number."""


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
        """True if shards that are being read do not count: they take no space that something ahead could use."""
        return self.limits.ahead_bytes is None and self.limits.cache_size is None


class PrefetchWindow(Generic[D]):
    """The upcoming visits of one reader as far as they matter, and the downloads that they call for.

    Args:
        visits: the reader's visits to shards, in blocks, by ascending first positions; taken as needed.
        sources: the shard lists.
        connections: byte ranges under way at a time; more downloads begin only up to ``min_under_way``.
        mixed: shards that are read at a time, as far as known.

    Attributes:
        visits: those in the window with their downloads, by their first positions; some of the passed ones may be
            forgotten.
        is_exhausted: the reader has no other visits than these.
    """

    is_exhausted: bool

    def __init__(
        self,
        visits: Iterator[Sequence[Visit]],
        sources: Sequence[PlannedSource[D]],
        *,
        connections: int = concurrency.LIMITS.connections,
        mixed: int = 0,
    ) -> None:
        self._blocks, self._sources, self._connections = visits, sources, connections
        shared: dict[AheadLimits, _Reach] = {}
        # For each list; lists of one cache share this, and the limit.
        self._reaches = [
            _Reach(limits) if limits.directory is None else shared.setdefault(limits, _Reach(limits))
            for limits in (source.limits for source in sources)
        ]
        self._distinct = list({id(reach): reach for reach in self._reaches}.values())
        self._min_shards = distance.min_reach(mixed)
        self.visits: deque[tuple[Visit, D]] = deque()
        self._entered: list[Visit] = []  # since the last `advance`
        self._edge = 0  # where the last block begins that was looked at
        self.is_exhausted = False
        self._position = self._weight = 0
        self._read_before = self._rate = 0.0
        self._downloads: dict[ShardKey, D] = {}  # those with visits in the window, and those under way
        self._known_bytes = self._known = 0  # of the shards with known sizes, those that were forgotten included
        self._ahead_bytes, self._guess = 0, self._typical  # by which shards of unknown sizes were last weighed
        self._upcoming: list[tuple[int, Visit]] = []  # heaps, by last positions
        self._passed: list[tuple[int, Visit]] = []
        self._missing: list[tuple[int, ShardKey]] = []  # a heap, as those of `_Reach`
        self._running: list[D] = []
        self._lag = 0.0  # how far the reader continues during a download, about

    @property
    def is_busy(self) -> bool:
        """True if visits were passed that are not known to have been read."""
        return bool(self._passed)

    def find(self, key: ShardKey) -> D | None:
        """The download of a shard that has visits in the window, or is under way."""
        return self._downloads.get(key)

    # --- the reader's progress

    def advance(
        self, position: int, *, rate: float, read_before: float, blocks: float = math.inf
    ) -> tuple[list[Visit], list[Visit]]:
        """The reader has drawn up to ``position``, at ``rate`` positions a second.

        Args:
            position: never less than before.
            rate: 0: not known.
            read_before: the loader has read all samples before this position; visits that end there are forgotten.
            blocks: of visits that are looked at now, at most.

        Returns:
            The visits that entered the window, and those that were forgotten.
        """
        self._position, self._read_before, self._rate = position, min(read_before, position), rate
        while self._upcoming and self._upcoming[0][0] < position:
            visit = heapq.heappop(self._upcoming)[1]
            heapq.heappush(self._passed, (visit.last, visit))
            download = self._downloads[_key(visit)]
            download.upcoming.remove(visit)
            download.note_passed(visit)
            self._renew(download)
        for reach in self._distinct:
            while reach.begins and reach.begins[0][0] <= position:
                first, key = heapq.heappop(reach.begins)
                if (following := self._find_next(key, first)) is not None:
                    self._count(following, is_counted=False)
        forgotten = self.forget(read_before)
        entered = self._look(blocks)
        for reach in self._distinct:
            self._extend(reach)
        return entered, forgotten

    def forget(self, read_before: float) -> list[Visit]:
        """Forget visits that were passed and end before this position; returns them."""
        forgotten = []
        while self._passed and self._passed[0][0] < read_before:
            visit = heapq.heappop(self._passed)[1]
            forgotten.append(visit)
            self._weight -= _weight(visit)
            download = self._downloads[_key(visit)]
            download.visits -= 1
            self._drop(download)
        while self.visits and self.visits[0][0].last < min(read_before, self._position):
            self.visits.popleft()
        return forgotten

    def forget_all(self) -> list[Visit]:
        """The reader has ended: the visits that were in the window, which has no more use."""
        return [visit for _, visit in self._passed + self._upcoming]

    # --- downloads

    def take(self) -> D | None:
        """The next download that should begin, for the first of its `upcoming`; it is running then. None: none may."""
        while self._missing:
            first, key = self._missing[0]
            download = self._find_next(key, first)
            if download is not None and download.is_near and download.life is Life.PLANNED:
                if not download.needs_download():
                    heapq.heappop(self._missing)
                    download.life = Life.DONE
                    self._learn(download)
                    continue
                if self._is_in_time(download):
                    break
                download.life = Life.LATE
                if download.upcoming[-1].last <= download.stay()[1]:
                    self._count(download, is_counted=False)  # not if it comes back: others would take its place
            heapq.heappop(self._missing)
        else:
            return None
        running = self._running
        if len(running) >= concurrency.LIMITS.min_under_way and sum(e.slots for e in running) >= self._connections:
            return None
        heapq.heappop(self._missing)
        download.life, download.begun = Life.RUNNING, self._position
        running.append(download)
        return download

    def end(self, download: D, *, is_complete: bool = False, retry_at: float | None = None) -> None:
        """A running download has ended, and its shard needs none for now.

        Args:
            download: the download.
            is_complete: it brought the shard.
            retry_at: it failed, and is not to be tried again before; see `plan_again`. None: it did not.
        """
        self._running.remove(download)
        if is_complete:
            self._lag = distance.new_lag(self._lag, self._position - download.begun)
        download.life = Life.DONE if retry_at is None else Life.FAILED
        download.retry_at = retry_at or 0.0
        self._learn(download)
        self._drop(download)

    def plan_again(self, download: D) -> None:
        """A shard that needed no download was evicted, or may be tried again."""
        if download.life in (Life.DONE, Life.FAILED):
            download.life = Life.PLANNED
            if download.is_near:
                heapq.heappush(self._missing, (download.upcoming[0].first, download.key))

    def present(self) -> list[D]:
        """The shards within reach that need no download, as far as known; by their next use."""
        near = [each for each in self._downloads.values() if each.is_near and each.life in (Life.DONE, Life.FAILED)]
        return sorted(near, key=lambda each: (each.upcoming[0].first, each.key))

    # --- inside

    def _drop(self, download: D) -> None:
        """Forget a download that no visit calls for, unless it is under way."""
        if not download.visits and download.life is not Life.RUNNING:
            self._downloads.pop(download.key, None)

    def _look(self, blocks: float) -> list[Visit]:
        """Look at as many visits as matter; returns those that were not seen before."""
        while blocks > 0 and self._ahead_bytes < max(
            reach.limits.scope(self._typical, shards=self._min_shards) for reach in self._distinct
        ):
            if not self._look_further():
                break
            blocks -= 1
        entered, self._entered = self._entered, []
        return entered

    def _look_further(self) -> bool:
        """Look at one more block of visits; False: none exists, or they would be too many."""
        if self.is_exhausted or self._weight >= distance.LIMITS.max_visits:
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
        download = self._downloads.get(key)
        if download is None:
            download = self._downloads[key] = self._sources[visit.dataset].plan(visit.shard)
            download.key, size = key, download.size
            download.is_sized, download.weight = size is not None, self._typical if size is None else size
            if size is not None:
                self._known, self._known_bytes = self._known + 1, self._known_bytes + size
        download.visits += 1
        self.visits.append((visit, download))
        self._weight += _weight(visit)
        if visit.last < self._position:
            heapq.heappush(self._passed, (visit.last, visit))
            download.note_passed(visit)
            return
        heapq.heappush(self._upcoming, (visit.last, visit))
        download.upcoming.append(visit)
        if len(download.upcoming) == 1:
            self._renew(download)

    def _renew(self, download: D) -> None:
        """The next visit of a shard is another one, or none exists: it must come within reach again."""
        reach = self._reach_of(download)
        self._count(download, is_counted=False)
        download.is_near = False
        if download.life is Life.LATE:
            download.life = Life.PLANNED
        if not download.upcoming:
            return
        first = download.upcoming[0].first
        heapq.heappush(reach.beyond, (first, download.key))
        if not reach.is_open or first > self._position:
            self._count(download, is_counted=True)
            if reach.is_open:
                heapq.heappush(reach.begins, (first, download.key))

    def _count(self, download: D, *, is_counted: bool) -> None:
        if download.is_counted != is_counted:
            download.is_counted = is_counted
            self._note_bytes(download, download.weight if is_counted else -download.weight)

    def _note_bytes(self, download: D, change: int) -> None:
        self._ahead_bytes += change
        if download.is_near:
            self._reach_of(download).near_bytes += change

    def _reach_of(self, download: D) -> _Reach:
        return self._reaches[download.key[0]]

    def _extend(self, reach: _Reach) -> None:
        """Find the shards that are within reach now."""
        limit = reach.limits.max_bytes(self._typical, shards=self._min_shards)
        if reach.limits.ahead_bytes is None:
            good = distance.good_ahead(
                self._rate, typical=self._typical, each=self._samples_a_shard(), shards=self._min_shards
            )
            limit = min(limit, good)
        if reach.near_bytes > limit:  # the reader has become slower: those that come first again
            for key, download in self._downloads.items():
                if download.is_near and self._reach_of(download) is reach:
                    download.is_near = False
                    heapq.heappush(reach.beyond, (download.upcoming[0].first, key))
            reach.near_bytes = 0
        while reach.beyond:
            first, key = reach.beyond[0]
            following = self._find_next(key, first)
            if following is not None and not following.is_near:
                size = following.weight if following.is_counted else 0
                if reach.near_bytes + size > limit:
                    break
                following.is_near = True
                reach.near_bytes += size
                if following.life is Life.PLANNED:
                    heapq.heappush(self._missing, (first, key))
            heapq.heappop(reach.beyond)

    def _find_next(self, key: ShardKey, first: int) -> D | None:
        """The download of a shard whose next visit is the one that begins there; None: that is outdated."""
        download = self._downloads.get(key)
        return download if download is not None and download.upcoming and download.upcoming[0].first == first else None

    def _is_in_time(self, download: D) -> bool:
        """True if a download that begins now is worth it."""
        if self._reach_of(download).limits.cache_size is None or not download.reads_early:
            return True
        # The reader's position, about, when it has ended.
        arrival = self._position + max([self._lag, *(self._position - each.begun for each in self._running)])
        while True:
            first, last = download.stay()
            if distance.is_in_time(first, last, arrival=arrival):
                return True
            if last < self._edge or self.is_exhausted:  # the stay ends there
                return False
            if not self._look_further() and not self.is_exhausted:  # no more may be looked at: as far as known
                return distance.is_in_time(download.upcoming[0].first, last, arrival=arrival)

    def _learn(self, download: D) -> None:
        """The size of a shard may be known now, and so that of others, about."""
        size = download.size
        if size is None or download.is_sized or not download.visits:
            return
        self._known, self._known_bytes = self._known + 1, self._known_bytes + size
        download.is_sized = True
        self._resize(download, size)
        if not self._guess / 2 <= self._typical <= 2 * self._guess:
            self._guess = self._typical
            for other in self._downloads.values():
                if not other.is_sized:
                    self._resize(other, self._typical)
            for reach in self._distinct:  # another number of them is within reach
                self._extend(reach)

    def _resize(self, download: D, size: int) -> None:
        change, download.weight = size - download.weight, size
        if download.is_counted:
            self._note_bytes(download, change)

    @property
    def _typical(self) -> int:
        """The size of a shard, about; while none is known, a cache has space for some."""
        if self._known:
            return self._known_bytes // self._known
        limits = [reach.limits.cache_size for reach in self._distinct if reach.limits.cache_size is not None]
        return max(min([distance.LIMITS.unknown_bytes, *(limit // distance.LIMITS.min_shards for limit in limits)]), 1)

    def _samples_a_shard(self) -> float:
        """Positions from one new shard to the next, about."""
        if len(self.visits) < 2:
            return 1.0
        return max((self.visits[-1][0].last - self.visits[0][0].first + 1) / len(self._downloads), 1.0)


def _key(visit: Visit) -> ShardKey:
    return visit.dataset, visit.shard


def _weight(visit: Visit) -> int:
    """A visit of many blocks of indices counts as one for each."""
    return 1 + (visit.last - visit.first) // distance.LIMITS.block

"""Shards that will be read: where the bytes of each will be on this machine, and how they get there before.

Those of a server are downloaded; local ones on a network file system are read into memory, and nothing is copied.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from wids.events import PrefetchBegun, emit
from wids.files import page_cache
from wids.policy import prefetching
from wids.policy.prefetch_window import AheadLimits, PlannedDownload
from wids.transport import filesystems, urls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.events import Hook
    from wids.index.shardlist import Shard
    from wids.order.layout import Visit
    from wids.order.permutation import Indices


class Downloads(Protocol):
    """What downloads shards into a cache; see `wids.cache.store.ShardCache`."""

    cache_size: int | None
    hooks: Sequence[Hook]
    is_limit_told: bool

    def place(self, url: str) -> tuple[str, bool]:
        """The path of the shard's bytes, once they are there, and whether they are read in place."""

    def download_ahead(self, shard: Shard, *, after: float, is_cancelled: Callable[[], bool]) -> bool:
        """Download a shard that will be needed, unless it is cached; whether this downloaded it."""


@dataclass(frozen=True, eq=False)
class Source:
    """One shard list, whose shards are downloaded.

    Attributes:
        store: downloads its shards.
        find: shard number -> the shard.
        ahead_bytes: the maximum of bytes to be ahead; None: as far as is good.
        shard_bytes: of a shard, about; None: not known.
        reads_early: whether samples of a shard are read by ranges before it is cached, as far as is known. None: no.
        has_table: asks for the member table of a shard, by which the former is known; None: there is none.
        leaves: whether the shard of a number is left to its readers, who take little of it. None: no.
        directory: the cache directory; None: not known, or nothing goes there.
        reads: how many samples of it this process has read; None: not known.
        figures: what its dataset has done so far, for people: (a name for it in this process, figure -> number).
    """

    store: Downloads
    find: Callable[[int], Shard]
    ahead_bytes: int | None
    shard_bytes: int | None = None
    reads_early: Callable[[Shard], bool] | None = None
    has_table: Callable[[Shard], bool] | None = None
    leaves: Callable[[int], bool] | None = None
    directory: str | None = None
    reads: Callable[[], int] | None = None
    figures: Callable[[], tuple[str, dict[str, float]]] | None = None

    @property
    def cache_size(self) -> int | None:
        """Bytes of the cache that its shards go into; None: no limit, or no cache."""
        return self.store.cache_size

    @property
    def limits(self) -> AheadLimits:
        """How far ahead one of the ranks of this node may be."""
        return AheadLimits(self.ahead_bytes, self.cache_size, ranks_of_node(), self.directory)

    def plan(self, shard: int) -> UpcomingShard:
        """A shard that will be read."""
        return UpcomingShard(self, shard)

    def look_for_tables(self) -> None:
        """See whether samples are read by ranges, where that matters; the first shard stands for all."""
        if self.cache_size is not None and self.has_table is not None:
            self.has_table(self.find(0))

    def announce(self) -> None:
        """Tell the hooks that downloads begin."""
        emit(self.store.hooks, PrefetchBegun(cache_size=self.cache_size))


class UpcomingShard(PlannedDownload):
    """The cache file of an upcoming shard, and its download.

    Attributes:
        shard, store: the shard, and its source's store.
        path: of its bytes. is_in_place: whether they are read where they are, and not copied.
        is_left: whether it is left to its readers, who take little of it.
        look_cost: what `is_here` costs: calls of the operating system.
    """

    __slots__ = ("_has_early_reads", "_size", "is_in_place", "is_left", "path", "shard", "store")

    look_cost = 1

    def __init__(self, source: Source, number: int) -> None:
        super().__init__()
        self.store, self.shard = source.store, source.find(number)
        self.path, self.is_in_place = source.store.place(self.shard.url)
        self._size, self._has_early_reads = self.shard.filesize, source.reads_early
        self.is_left = source.leaves is not None and source.leaves(number)

    @property
    def size(self) -> int | None:
        """In bytes; None: not known yet."""
        return self._size

    @property
    def slots(self) -> int:
        """How many connections its download keeps busy."""
        size = prefetching.LIMITS.unknown_bytes if self.shard.filesize is None else self.shard.filesize
        length = filesystems.connections().range_bytes(urls.host_of(self.shard.url), size)
        return prefetching.slots(size, length, prefetching.LIMITS.connections)

    @property
    def reads_early(self) -> bool:
        """Whether its samples are read by byte ranges until it is cached."""
        return self._has_early_reads is not None and self._has_early_reads(self.shard)

    def is_cached(self) -> bool:
        """Whether there is a file that looks like the shard; its readers look closer."""
        try:
            found = os.stat(self.path).st_size
        except OSError:
            return False
        if self.shard.filesize is None:
            self._size = found
        return self.shard.filesize in (None, found)

    def needs_download(self) -> bool:
        """Whether it should be downloaded now."""
        return self.can_go() and not self.is_cached()

    def can_go(self) -> bool:
        """Whether it may have been here, and be gone: other processes evict shards."""
        return not (self.is_in_place or self.is_left)

    def is_here(self) -> bool:
        """Whether nothing has to be done for its next visit."""
        return self.is_cached()

    def bring(self, _visits: Sequence[Visit], *, after: float, is_cancelled: Callable[[], bool]) -> bool:
        """Download it ahead of its next visits; whether this did. See `Downloads.download_ahead`."""
        return self.store.download_ahead(self.shard, after=after, is_cancelled=is_cancelled)


# --- local shards on a network file system, which are read into memory: nothing of them is copied


@dataclass(frozen=True, eq=False)
class FarSource(Source):
    """One shard list whose shards are all of this kind: the cache and its limit have no part in it.

    Attributes:
        rows_of: shard number -> (the rows of a view in the shard, ascending, and how many rows it has). None: all.
    """

    rows_of: Callable[[int], tuple[range | Indices, int]] | None = None

    @property
    def cache_size(self) -> int | None:
        """None: no cache."""
        return None

    @property
    def limits(self) -> AheadLimits:
        """At most a share of the memory that is free."""
        most, ranks = int(page_cache.free_memory() * prefetching.LIMITS.memory_share), ranks_of_node()
        if self.ahead_bytes is None:
            return AheadLimits(None, most, ranks)
        return AheadLimits(min(self.ahead_bytes, most // ranks), None, ranks)

    def part(self, number: int, part: tuple[float, float, float]) -> tuple[float, float, float]:
        """The part of a shard's file that a visit reads; ``part`` is that of the view's samples in it."""
        if self.rows_of is None:
            return part
        rows, count = self.rows_of(number)
        begin, end, share = part
        first, last = round(begin * len(rows)), round(end * len(rows)) - 1
        return rows[first] / count, (rows[last] + 1) / count, share * len(rows) / count

    def plan(self, shard: int) -> FarShard:
        """A shard that will be read."""
        return FarShard(self, shard)

    def announce(self) -> None:
        """Nothing is downloaded."""


class FarShard(UpcomingShard):
    """A file of which the part that comes next is read into memory, once."""

    __slots__ = ("_number", "_read_until", "_source")

    look_cost = 0

    def __init__(self, source: FarSource, number: int) -> None:
        super().__init__(source, number)
        self._source, self._number = source, number
        if self._size is None:
            with contextlib.suppress(OSError):
                self._size = os.stat(self.path).st_size
        self._read_until = -1  # the position of the last visit whose part was read

    def needs_download(self) -> bool:
        """Whether a part should be read now."""
        return True

    def is_cached(self) -> bool:
        """Whether a part of it was read."""
        return self._read_until >= 0

    def can_go(self) -> bool:
        """A visit may need another part than those before it."""
        return True

    def is_here(self) -> bool:
        """Whether the part of its next visit was read."""
        return self._read_until >= self.upcoming[0].first

    def bring(self, visits: Sequence[Visit], *, after: float, is_cancelled: Callable[[], bool]) -> bool:  # noqa: ARG002
        """Read the part that its next visits need; False: no other read or download takes as long as this."""
        begin, end, count = prefetching.part_to_read(self._source.part(self._number, visit.part) for visit in visits)
        self._read_until = visits[count - 1].first
        with contextlib.suppress(OSError):  # its reader says so
            page_cache.read_ahead(self.path, begin, end, is_cancelled=is_cancelled)
        return False


def ranks_of_node() -> int:
    """How many ranks of a distributed job this node has."""
    return max(environ_int("LOCAL_WORLD_SIZE"), 1)


def environ_int(name: str) -> int:
    """The value of an environment variable; 0 for none, or one that is no number."""
    try:
        return int(os.environ.get(name, ""))
    except ValueError:
        return 0

"""Local shards on a network file system, read into memory ahead of their readers: nothing of them is copied."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wids.cache.upcoming import Source, UpcomingShard
from wids.files import page_cache
from wids.policy import prefetching
from wids.policy.prefetch_window import AheadLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.order.layout import Visit
    from wids.order.permutation import Indices


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

    def limits(self, ranks: int) -> AheadLimits:
        """At most a share of the memory that is free."""
        most = int(page_cache.free_memory() * prefetching.MEMORY_SHARE)
        if self.ahead_bytes is None:
            return AheadLimits(None, most, ranks, has_early_reads=False)
        return AheadLimits(min(self.ahead_bytes, most // ranks), None, ranks, has_early_reads=False)

    def part(self, number: int, part: tuple[float, float, float]) -> tuple[float, float, float]:
        """The part of a shard's file that a visit reads; ``part`` is that of the view's samples in it."""
        if self.rows_of is None:
            return part
        rows, count = self.rows_of(number)
        begin, end, share = part
        first, last = round(begin * len(rows)), round(end * len(rows)) - 1
        return rows[first] / count, (rows[last] + 1) / count, share * len(rows) / count

    def upcoming(self, number: int) -> FarShard:
        """A shard that will be read."""
        return FarShard(self, number)

    def announce(self) -> None:
        """Nothing is downloaded."""


class FarShard(UpcomingShard):
    """A file of which the part that comes next is read into memory, once."""

    __slots__ = ("_number", "_read_until", "_source")

    look_cost = 0

    def __init__(self, source: FarSource, number: int) -> None:
        super().__init__(source, number)
        self._source, self._number = source, number
        if self.size is None:
            with contextlib.suppress(OSError):
                self.size = os.stat(self.path).st_size
        self._read_until = -1  # the position of the last visit whose part was read

    def needs_download(self) -> bool:
        """Whether a part should be read now."""
        return not self.retry_at

    def is_cached(self) -> bool:
        """Whether a part of it was read."""
        return self._read_until >= 0

    def can_go(self) -> bool:
        """A visit may need another part than those before it."""
        return True

    def is_here(self, visit: Visit) -> bool:
        """Whether the part of a visit was read."""
        return self._read_until >= visit.first

    def bring(self, visits: Sequence[Visit], *, after: float, is_cancelled: Callable[[], bool]) -> bool:  # noqa: ARG002
        """Read the part that its next visits need; False: no other read or download takes as long as this."""
        begin, end, count = prefetching.part_to_read(self._source.part(self._number, visit.part) for visit in visits)
        self._read_until = visits[count - 1].first
        with contextlib.suppress(OSError):  # its reader says so
            page_cache.read_ahead(self.path, begin, end, is_cancelled=is_cancelled)
        return False

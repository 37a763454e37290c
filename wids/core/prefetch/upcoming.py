"""Shards that will be read: the path of each on this machine, and the way by which its bytes get there before.

Those of a server are downloaded; local ones on a network file system are read into memory, and nothing is copied.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from wids.core.cache.space import shard_bytes
from wids.core.files import page_cache
from wids.core.prefetch import distance
from wids.core.prefetch.window import PlannedDownload
from wids.core.transport import concurrency, filesystems
from wids.errors import CacheFull

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.core.cache.located import Located
    from wids.core.cache.store import ShardCache
    from wids.core.order.layout import Visit
    from wids.core.order.permutation import Indices


class UpcomingShard(PlannedDownload):
    """The cache file of an upcoming shard, and its download.

    Args:
        store: downloads it.
        located: the shard.
        is_left: True if it is left to its readers, who take little of it.
        reads_early: see `PlannedDownload.reads_early`.

    Attributes:
        located: the argument.
        store: the argument.
        look_cost: calls of the operating system for one `is_here`.
    """

    located: Located
    store: ShardCache
    __slots__ = ("_is_left", "_reads_early", "_size", "located", "store")

    look_cost = 1

    def __init__(
        self,
        store: ShardCache,
        located: Located,
        *,
        is_left: bool = False,
        reads_early: Callable[[Located], bool] = lambda _: False,
    ) -> None:
        super().__init__()
        self.store, self.located, self._is_left, self._reads_early = store, located, is_left, reads_early
        self._size = located.shard.filesize

    @property
    def size(self) -> int | None:
        """Size in bytes; None: not known yet."""
        return self._size

    @property
    def slots(self) -> int:
        """Number of connections that its download keeps busy."""
        known = self.located.shard.filesize
        size = distance.LIMITS.unknown_bytes if known is None else known
        length = filesystems.connections().range_bytes(self.located.place.host, size)
        return concurrency.slots(size, length, concurrency.LIMITS.connections)

    @property
    def reads_early(self) -> bool:
        """True if its samples are read by byte ranges until it is cached."""
        return self._reads_early(self.located)

    def is_cached(self) -> bool:
        """True if a file exists that looks like the shard; its readers look closer."""
        try:
            size = os.stat(self.located.path).st_size
        except OSError:
            return False
        known = self.located.shard.filesize
        if known is None:
            self._size = size
        return known in (None, size)

    def needs_download(self) -> bool:
        """True if something has to be done for its next visit."""
        return self.can_go() and not self.is_here()

    def can_go(self) -> bool:
        """True if it may have been here, and be gone: other processes evict shards."""
        return not (self.located.is_in_place or self._is_left)

    def is_here(self) -> bool:
        """True if nothing has to be done for its next visit."""
        return self.is_cached()

    def bring(self, _visits: Sequence[Visit], *, after: float, is_cancelled: Callable[[], bool]) -> bool:
        """Download it ahead of its next visits; True if this did. See `ShardCache.download_ahead`."""
        size = self.weight if self._size is None and self.store.cache_size is not None else self._size
        try:
            return self.store.download_ahead(self.located, after=after, is_cancelled=is_cancelled, size=size)
        except CacheFull as error:
            shard = self.located.shard
            if shard.filesize is None and error.expected is not None:  # what the server says
                self._size = max(self._size or 0, shard_bytes(int(error.expected), shard.nsamples))
            raise


class FarFile(UpcomingShard):
    """A local shard on a network file system, of which the part that comes next is read into memory, once.

    Args:
        store: of its collection.
        located: the shard.
        rows: finds the rows of a view in it, ascending, and their number. None: all are read.
    """

    __slots__ = ("_read_until", "_rows")

    look_cost = 0

    def __init__(
        self, store: ShardCache, located: Located, *, rows: Callable[[], tuple[range | Indices, int]] | None = None
    ) -> None:
        super().__init__(store, located)
        self._rows = rows
        if self._size is None:
            with contextlib.suppress(OSError):
                self._size = os.stat(self.located.path).st_size
        self._read_until = -1  # the position of the last visit whose part was read

    def is_cached(self) -> bool:
        """True if a part of it was read."""
        return self._read_until >= 0

    def can_go(self) -> bool:
        """A visit may need another part than those before it."""
        return True

    def is_here(self) -> bool:
        """True if the part of its next visit was read."""
        return self._read_until >= self.upcoming[0].first

    def bring(self, visits: Sequence[Visit], *, after: float, is_cancelled: Callable[[], bool]) -> bool:  # noqa: ARG002
        """Read the part that its next visits need; False: no other read or download takes as long as this."""
        begin, end, count = distance.part_to_read(map(self._part, visits))
        self._read_until = visits[count - 1].first
        with contextlib.suppress(OSError):  # its reader says so
            page_cache.read_ahead(self.located.path, begin, end, is_cancelled=is_cancelled)
        return False

    def _part(self, visit: Visit) -> tuple[float, float, float]:
        """The part of the file that a visit reads; the visit's own is that of the view's samples in it."""
        if self._rows is None:
            return visit.part
        (rows, count), (begin, end, share) = self._rows(), visit.part
        first = min(round(begin * len(rows)), len(rows) - 1)  # shares may be of windows, not of the rows themselves
        last = max(round(end * len(rows)) - 1, first)
        return rows[first] / count, (rows[last] + 1) / count, share * len(rows) / count

"""Open shards: at most ``capacity`` of them in a pool, and over all pools a part of the process's file descriptors.

Each step is one dictionary operation, and two threads that open the same shard at once merely open it twice. A reader
that leaves its pool is closed, and a read that is under way ends first: a thread that reads on opens the shard again.

Pools without a chosen size share a budget of descriptors: beyond it, the shard that was used longest ago is closed,
in whichever of them it is.

An open cached shard has a lease, which keeps it from being evicted. Pools register for the directories that they lease
shards in (see `wids.core.cache.leases`), and close them when space is needed there. A forked child starts without those
of its parent.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import pickle
import sys
import uuid
import weakref
from typing import TYPE_CHECKING, Any

from wids.core.cache.directory import CacheDirectory, directory_of
from wids.core.cache.leases import leases
from wids.core.files import finalizers, forks, system
from wids.core.readers.base import Rows
from wids.core.readers.lru import LRUCache
from wids.errors import ClosedReaderError, shorten
from wids.events import Closed, emit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wids.core.readers.base import Reader, Sample
    from wids.core.readers.provider import ShardProvider
    from wids.core.shard import Shard
    from wids.core.tables.fields import Wanted
    from wids.core.tables.table import MemberTable
    from wids.events import Hook

_SMALLEST, _LARGEST = 16, 512
# Words for Python's rule of generators (PEP 479): it would end the loop over the dataset or its loader, unseen.
STOPPED = "a transformation, localname or key_rule raised StopIteration (a next() without a default, mostly)"
# Count of uses for the last use of each open shard; all pools share it, so that their shards compare.
_uses = itertools.count()


def default_capacity() -> int:
    """A quarter of the process's file descriptors, between 16 and 512: open shards are cheap, descriptors are not."""
    return min(_LARGEST, _budget())


def _budget() -> int:
    """Number of shards that may be open in all pools that share the process's descriptors."""
    limit = system.descriptor_limit()
    return sys.maxsize if limit < 0 else max(_SMALLEST, limit // 4)


class OpenShard(Rows):
    """A shard in a pool, as `OpenShards.get_shard` gives it: ``shard[row]`` is a sample.

    It may be kept: where the pool has closed it, it is opened again when it is read.

    Attributes:
        shard: the shard.
        reader: its reader, which may be closed.
        used: the count at its last use.
    """

    reader: Reader
    shard: Shard
    used: int
    __slots__ = ("__weakref__", "_pool", "_provider", "reader", "shard", "used")

    def __init__(self, pool: OpenShards, shard: Shard, reader: Reader) -> None:
        # Weakly: a pool is what holds the open files, and must go when its dataset does.
        self._pool, self._provider = weakref.ref(pool), pool.provider
        self.shard, self.reader = shard, reader
        self.used = next(_uses)

    @property
    def url(self) -> str:
        """The shard's resolved URL."""
        return self.reader.url

    @property
    def path(self) -> str:
        """The local file that is read, or the URL."""
        return self.reader.path

    @property
    def table(self) -> MemberTable:
        """Its member table."""
        return self.reader.table

    @property
    def is_leased(self) -> bool:
        """True if its file is in the cache, and stays there as long as it is open."""
        return self.reader.is_leased

    def read(self, row: int, fields: Wanted = None) -> Sample:
        """Read a sample; the shard is never closed meanwhile. See `wids.core.readers.base.Reader.read`."""
        while True:
            with self.pinned() as reader, contextlib.suppress(ClosedReaderError):  # which then closed itself
                return reader.read(row, fields)

    @contextlib.contextmanager
    def pinned(self) -> Iterator[Reader]:
        """Its reader, open while the block lasts; opened again if it was closed."""
        reader = self.reader
        if not reader.pin():
            pool = self._pool()
            if pool is None:
                reader = self._provider.open(self.shard)
                reader.pin()
            else:
                reader = pool.pin(self.shard)
            self.reader = reader
        try:
            yield reader
        finally:
            reader.unpin()


class _Entries(LRUCache[str, OpenShard]):
    """The open shards of a pool, which closes those that leave."""

    def __init__(self, capacity: int, hooks: Sequence[Hook]) -> None:
        super().__init__(capacity)
        self._hooks = hooks

    def __getitem__(self, url: str) -> OpenShard | None:
        shard = self.cache.get(url)
        if shard is not None:
            shard.used = next(_uses)
            try:
                self.cache.move_to_end(url)
            except KeyError:  # another thread evicted it; it is still good
                return shard
        return shard

    def _release(self, url: str, shard: OpenShard) -> None:
        super()._release(url, shard)
        reader = shard.reader
        reader.close()
        if reader.is_leased:
            directory, name = directory_of(reader.path)
            directory.touch(name)
        emit(self._hooks, Closed(url=url))


class OpenShards:
    """The pool of open shards of one dataset in one process.

    Args:
        provider: opens them.
        capacity: the most that are open; None: 512, and a quarter of the process's descriptors together with all
            other pools that are given None.
        find: the shard that has a URL; may be assigned.
        hooks: called with `Closed` events.
        token: text that its copies have too, in any process; None: a new one.

    Attributes:
        lru: URL -> `OpenShard`, least recently used first; ``lru.capacity`` may be changed.
        is_sharing: no capacity was given: its shards are within the budget of the process.
        accesses: number of samples requested.
        misses: number of shards opened.
    """

    find: Callable[[str], Shard]
    provider: ShardProvider
    is_sharing: bool
    token: str
    lru: _Entries
    accesses: int
    misses: int

    def __init__(
        self,
        provider: ShardProvider,
        *,
        capacity: int | None,
        find: Callable[[str], Shard],
        hooks: Sequence[Hook] = (),
        token: str | None = None,
    ) -> None:
        self.provider, self.find = provider, find
        self.token = uuid.uuid4().hex if token is None else token
        self.is_sharing = capacity is None
        self._hooks = hooks
        self._portable: ShardProvider | str | None = None
        self._begin(default_capacity() if capacity is None else capacity)

    def _begin(self, capacity: int) -> None:
        self.lru = _Entries(capacity, self._hooks)
        self.reset_stats()
        with forks.lock:
            _pools.add(self)
        forks.reset_in_child(self)

    def __len__(self) -> int:
        return len(self.lru)

    def __getstate__(self) -> dict[str, Any]:
        # A reader is a descriptor of this process; the copy opens its own.
        return {**self.__dict__, "lru": self.lru.capacity}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin(state["lru"])

    def get_shard(self, url: str) -> OpenShard:
        """The open shard at ``url`` (as the index resolves it), opened if it is not.

        Raises:
            KeyError: the dataset has no shard with this URL.
            FetchError, CacheError, ShardError: see `wids.core.readers.provider.ShardProvider.open`.
        """
        self.accesses += 1
        shard = self.lru[url]
        return self.open(self.find(url)) if shard is None else shard

    def open(self, shard: Shard) -> OpenShard:
        """A shard, from the pool or newly opened."""
        opened, reader = self._pin(shard)
        reader.unpin()
        return opened

    def pin(self, shard: Shard) -> Reader:
        """The reader of a shard, from the pool or newly opened; it stays open until the caller unpins it."""
        return self._pin(shard)[1]

    def _pin(self, shard: Shard) -> tuple[OpenShard, Reader]:
        open_shard = self.lru[shard.url]
        if open_shard is not None and (reader := open_shard.reader).pin():
            return open_shard, reader
        self.misses += 1
        reader = self._open(shard)
        reader.pin()
        self.lru[shard.url] = open_shard = OpenShard(self, shard, reader)
        if reader.is_leased:
            leases.register(os.path.dirname(reader.path), self)
        if self.is_sharing:
            _keep_budget()
        return open_shard, reader

    def _open(self, shard: Shard) -> Reader:
        finalizers.do_left()
        while True:
            try:
                return self.provider.open(shard)
            except StopIteration as error:
                raise RuntimeError(STOPPED) from error
            except OSError as error:
                # The program needs more descriptors than it left us: continue with half as many shards open.
                if not (_lacks_descriptors(error) and _close_half()):
                    raise

    def portable_provider(self) -> ShardProvider | str:
        """The provider, if it can be pickled; else the reason why it cannot: a hook or key rule that is a lambda."""
        if self._portable is None:
            try:
                pickle.dumps(self.provider)
            except Exception as error:  # noqa: BLE001 - whatever a program's objects raise
                self._portable = shorten(str(error) or type(error).__name__)
            else:
                self._portable = self.provider
        return self._portable

    def reset_stats(self) -> None:
        """Count from zero."""
        self.accesses = 0
        self.misses = 0

    def clear(self) -> None:
        """Close every open shard."""
        self.lru.clear()

    def has_leases(self, directory: str) -> bool:
        """True if a cached shard of ``directory``, or of one below it, is open."""
        start = os.path.join(directory, "")
        return any(shard.is_leased and shard.path.startswith(start) for _, shard in self.lru.snapshot())

    def release_idle(self, directory: str | None = None) -> bool:
        """Close the cached shards of ``directory``, or all; one that is being read closes when the read ends.

        Returns:
            Whether any existed.
        """
        urls = [
            url
            for url, shard in self.lru.snapshot()
            if shard.is_leased and directory in (None, os.path.dirname(shard.path))
        ]
        for url in urls:
            del self.lru[url]
        return bool(urls)

    def request_time(self, directory: str) -> int:
        """Time at which space was last requested in ``directory``, in nanoseconds; 0: never."""
        return CacheDirectory(directory).release_request_time()

    def start_child(self) -> None:
        """Forget the leased shards, whose files are closed in a forked child; that is no event."""
        for url, shard in self.lru.snapshot():
            if shard.is_leased:
                self.lru.cache.pop(url, None)


_pools: weakref.WeakSet[OpenShards] = weakref.WeakSet()


def _live() -> list[OpenShards]:
    """The pools of this process."""
    with forks.lock:  # while other threads make pools
        return list(_pools)


def find_pool(token: str) -> OpenShards | None:
    """A pool of this process that has this token; None: none has."""
    return next((pool for pool in _live() if pool.token == token), None)


def _keep_budget() -> None:
    """Close shards of pools without a capacity that are open beyond the budget of the process."""
    pools = [pool for pool in _live() if pool.is_sharing]
    _close_oldest(pools, sum(map(len, pools)) - _budget())


def _close_half() -> bool:
    """Close half of all that is open; False if nothing is."""
    pools = _live()
    count = sum(map(len, pools))
    _close_oldest(pools, (count + 1) // 2)
    return count > 0


def _close_oldest(pools: Sequence[OpenShards], count: int) -> None:
    """Close the ``count`` shards that were used longest ago, in whichever of the pools they are."""
    for _ in range(count):
        oldest = [(shard.used, n) for n, pool in enumerate(pools) if (shard := pool.lru.oldest()) is not None]
        if not oldest:  # other threads closed them meanwhile
            return
        pools[min(oldest)[1]].lru.forget(1)


def _lacks_descriptors(error: BaseException | None) -> bool:
    """True if the process (or the machine) has no file descriptor left, says the error or its cause."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return True
        error = error.__cause__
    return False

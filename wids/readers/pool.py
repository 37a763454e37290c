"""Open shards: at most ``capacity`` of them in a pool, and over all pools a part of the process's file descriptors.

Rules: no locks, so a fork cannot inherit a held one: each step is one dictionary operation, and two threads that open
the same shard at once merely open it twice. A reader that leaves its pool closes when its last user is done.

Pools whose size nobody chose share a budget of descriptors: beyond it, the shard that was used longest ago is closed,
in whichever of them it is.

An open cached shard has a lease, which keeps it from being evicted. Pools register for the directories that they lease
shards in (see `wids.cache.leases`), and close them when space is needed there. A forked child starts without those of
its parent.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import sys
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from wids.cache.leases import leases
from wids.events import Closed, emit
from wids.osfiles import atomic, system
from wids.readers.local import Blocks
from wids.transport.failures import forget_frames

if TYPE_CHECKING:
    from collections.abc import Callable, ItemsView, KeysView, Sequence, ValuesView

    from wids.events import Hook
    from wids.index.spec import Shard
    from wids.readers.local import Reader
    from wids.readers.store import Store

K = TypeVar("K")
V = TypeVar("V")

_SMALLEST, _LARGEST = 16, 512
# When each open shard was used last: a count that all pools share, so that their shards compare.
_uses = itertools.count()


def default_capacity() -> int:
    """A quarter of the process's file descriptors, between 16 and 512: open shards are cheap, descriptors are not."""
    return min(_LARGEST, _budget())


def _budget() -> int:
    """How many shards may be open in all pools that share the process's descriptors."""
    limit = system.descriptor_limit()
    return sys.maxsize if limit < 0 else max(_SMALLEST, limit // 4)


class LRUCache(Generic[K, V]):
    """A mapping that forgets the least recently used entry beyond ``capacity``.

    Args:
        capacity: entries to keep; at least the newest one stays.
        release_handler: called with (key, value) of each entry that leaves.
    """

    def __init__(self, capacity: int, release_handler: Callable[[K, V], None] | None = None) -> None:
        self.capacity = capacity
        self.release_handler = release_handler
        self.cache: OrderedDict[K, V] = OrderedDict()

    def __getitem__(self, key: K) -> V | None:
        value = self.cache.get(key)
        if value is not None:
            try:  # `contextlib.suppress` takes as long as all else here together
                self.cache.move_to_end(key)
            except KeyError:  # another thread evicted it; the value is still good
                return value
        return value

    def __setitem__(self, key: K, value: V) -> None:
        replaced = self.cache.get(key)
        self.cache[key] = value
        with contextlib.suppress(KeyError):  # another thread evicted it meanwhile
            self.cache.move_to_end(key)
        if replaced is not None and replaced is not value:
            self._release(key, replaced)
        self.forget(len(self.cache) - max(1, self.capacity))

    def __delitem__(self, key: K) -> None:
        value = self.cache.pop(key, None)
        if value is not None:
            self._release(key, value)

    def __len__(self) -> int:
        return len(self.cache)

    def __contains__(self, key: object) -> bool:
        return key in self.cache

    def keys(self) -> KeysView[K]:
        """The keys, least recently used first."""
        return self.cache.keys()

    def values(self) -> ValuesView[V]:
        """The values, least recently used first."""
        return self.cache.values()

    def items(self) -> ItemsView[K, V]:
        """(key, value) pairs, least recently used first."""
        return self.cache.items()

    def oldest(self) -> V | None:
        """The least recently used value; None if there is none."""
        while True:
            with contextlib.suppress(RuntimeError):  # another thread changed it in this moment
                return next(iter(self.cache.values()), None)

    def clear(self) -> None:
        """Release every entry."""
        self.forget(len(self.cache))

    def forget(self, count: int) -> None:
        """Release the ``count`` least recently used entries; none if it is negative."""
        for _ in range(count):
            try:
                oldest = self.cache.popitem(last=False)
            except KeyError:  # another thread emptied it meanwhile
                return
            self._release(*oldest)

    def _release(self, key: K, value: V) -> None:
        if self.release_handler is not None:
            self.release_handler(key, value)


class _Readers(LRUCache[str, "Reader"]):
    """The open shards of a pool; each knows when it was used last."""

    def __getitem__(self, url: str) -> Reader | None:
        reader = super().__getitem__(url)
        if reader is not None:
            reader.used = next(_uses)
        return reader

    def __setitem__(self, url: str, reader: Reader) -> None:
        reader.used = next(_uses)
        super().__setitem__(url, reader)


class OpenShards:
    """The pool of open shards of one dataset in one process.

    Args:
        store: opens them.
        capacity: how many are open at most; None: 512, and a quarter of the process's descriptors together with all
            other pools that are given None.
        find: the shard that has a URL.
        hooks: told of what is closed.

    Attributes:
        lru: URL -> `ShardReader`, least recently used first; ``lru.capacity`` may be changed.
        is_sharing: no capacity was given: its shards are within the budget of the process.
        accesses: samples asked for. misses: shards opened.
        users: weak methods, called when a reader is to close that a dataset may still have at hand.
    """

    users: list[weakref.WeakMethod[Callable[[], None]]]

    def __init__(
        self, store: Store, *, capacity: int | None, find: Callable[[str], Shard], hooks: Sequence[Hook]
    ) -> None:
        self.store = store
        self.lru = _Readers(default_capacity() if capacity is None else capacity)
        self.is_sharing = capacity is None
        self.hooks = hooks
        self._find = find
        self._begin()
        self.reset_stats()

    def _begin(self) -> None:
        self.users = []
        self._blocks = Blocks()
        # Weakly: the pool is what holds the open files, and must go when its dataset does.
        this = weakref.ref(self)
        self.store.ranges.drop = lambda url: _call(this, OpenShards.drop, url)
        self.listen_to_releases()
        _pools[id(self)] = self

    def __len__(self) -> int:
        return len(self.lru)

    def __getstate__(self) -> dict[str, Any]:
        # A reader is a descriptor of this process; the copy opens its own.
        own = {"lru": _Readers(self.lru.capacity), "_blocks": None, "accesses": 0, "misses": 0, "users": None}
        return {**self.__dict__, **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def get_shard(self, url: str) -> Reader:
        """The open shard at ``url`` (as the index resolves it), opened if it is not.

        Raises:
            KeyError: the dataset has no shard with this URL.
            FetchError, CacheError, ShardError: see `wids.readers.store.Store.open`.
        """
        self.accesses += 1
        reader = self.lru[url]
        return self.open(self._find(url)) if reader is None else reader

    def open(self, shard: Shard) -> Reader:
        """The reader of ``shard``, from the pool or newly opened."""
        reader = self.lru[shard.url]
        if reader is None:
            self.misses += 1
            reader = self._open(shard)
            reader.share(self._blocks)
            self.lru[shard.url] = reader
            reader.settle()
            if reader.is_leased:
                leases.register(os.path.dirname(reader.path), self)
            if self.is_sharing:
                _keep_budget()
        return reader

    def _open(self, shard: Shard) -> Reader:
        while True:
            try:
                return self.store.open(shard)
            except OSError as error:
                # The program needs more descriptors than it left us: go on with half as many shards open.
                if not (_lacks_descriptors(error) and _close_half()):
                    raise
                forget_frames(error)

    def reset_stats(self) -> None:
        """Count from zero."""
        self.accesses = 0
        self.misses = 0

    def clear(self) -> None:
        """Close every open shard."""
        self.lru.clear()

    def drop(self, url: str) -> None:
        """Close one shard; it is opened in another way the next time."""
        del self.lru[url]
        self._call_users()

    def close_oldest(self) -> None:
        """Close the shard that was used longest ago."""
        self.lru.forget(1)
        self._call_users()

    def has_leases(self, directory: str) -> bool:
        """Whether a cached shard of ``directory``, or of one below it, is open."""
        start = os.path.join(directory, "")
        return any(reader.is_leased and reader.path.startswith(start) for reader in list(self.lru.values()))

    def release_idle(self, directory: str | None = None) -> None:
        """Close the cached shards of ``directory``, or all; one that is being read at this moment closes afterwards."""
        for url, reader in list(self.lru.items()):
            if reader.is_leased and directory in (None, os.path.dirname(reader.path)):
                del self.lru[url]
        self._call_users()

    def request_time(self, directory: str) -> int:
        """When space was last asked for in ``directory``; see `wids.cache.space.Space.release_request_time`."""
        return self.store.release_request_time(directory)

    def _call_users(self) -> None:
        for user in self.users:
            leave = user()
            if leave is not None:
                leave()

    def add_user(self, leave: Callable[[], None]) -> None:
        """Call the method ``leave`` when a reader is to close that it may have at hand, as long as its object lives."""
        self.users = [*(user for user in self.users if user() is not None), weakref.WeakMethod(leave)]

    def listen_to_releases(self) -> None:
        """Be told of readers that leave the pool."""
        this = weakref.ref(self)
        self.lru.release_handler = lambda url, reader: _call(this, OpenShards._on_release, url, reader)

    def _on_release(self, url: str, reader: Reader) -> None:
        if reader.is_leased:
            self.store.touch(reader.path)
        emit(self.hooks, Closed(url=url))


_pools: weakref.WeakValueDictionary[int, OpenShards] = weakref.WeakValueDictionary()


def _live() -> list[OpenShards]:
    """The pools of this process."""
    # At once, while other threads make pools: a loop over the dictionary itself would fail.
    return [pool for this in _pools.valuerefs() if (pool := this()) is not None]


def _keep_budget() -> None:
    """Close what pools without a capacity of their own have open beyond the budget of the process."""
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
        found = [(reader.used, n) for n, pool in enumerate(pools) if (reader := pool.lru.oldest()) is not None]
        if not found:  # other threads closed them meanwhile
            return
        pools[min(found)[1]].close_oldest()


def _call(this: weakref.ref[OpenShards], method: Callable[..., None], *args: Any) -> None:
    pool = this()
    if pool is not None:
        method(pool, *args)


def _start_child() -> None:
    """A forked child has copies of its parent's leases, and would keep them for as long as it lives."""
    for pool in _live():
        pool.lru.release_handler = None  # closing a copy is no event
        pool.release_idle()
        pool.listen_to_releases()
    atomic.close_inherited()


if hasattr(os, "register_at_fork"):  # where there are forks
    os.register_at_fork(after_in_child=_start_child)


def _lacks_descriptors(error: BaseException | None) -> bool:
    """Whether the process (or the machine) has no file descriptor left, says the error or what caused it."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return True
        error = error.__cause__
    return False

"""Open shards, at most ``capacity`` of them.

Rules: no locks, so a fork cannot inherit a held one: each step is one dictionary operation, and two threads that open
the same shard at once merely open it twice. Letting go of a reader closes it when its last user is done.

An open cached shard has a lease, which keeps it from being evicted. So that no process sits on shards that it does not
read, leased readers are let go when somebody waits for room in their directory, which a small thread listens for; and
a forked child starts without those of its parent.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from wids.cache import files, system
from wids.cache.failures import forget_frames
from wids.cache.reader import Blocks
from wids.events import Closed, emit

if TYPE_CHECKING:
    from collections.abc import Callable, ItemsView, KeysView, Sequence, ValuesView

    from wids.cache.reader import Reader
    from wids.cache.store import Store
    from wids.events import Hook
    from wids.index.spec import Shard

K = TypeVar("K")
V = TypeVar("V")

_SMALLEST, _LARGEST = 16, 512
_LISTEN_SECONDS = 0.05


def default_capacity() -> int:
    """A quarter of the process's file descriptors, between 16 and 512: open shards are cheap, descriptors are not."""
    limit = system.descriptor_limit()
    if limit < 0:
        return _LARGEST
    return max(_SMALLEST, min(_LARGEST, limit // 4))


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
            with contextlib.suppress(KeyError):  # another thread evicted it; the value is still good
                self.cache.move_to_end(key)
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


class OpenShards:
    """The pool of open shards of one dataset in one process.

    Attributes:
        lru: URL -> `ShardReader`, least recently used first; ``lru.capacity`` may be changed.
        accesses: samples asked for. misses: shards opened.
        users: weak methods, called when readers are to be let go of: who keeps one at hand lets go of it.
    """

    users: list[weakref.WeakMethod[Callable[[], None]]]

    def __init__(self, store: Store, *, capacity: int, find: Callable[[str], Shard], hooks: Sequence[Hook]) -> None:
        self.store = store
        self.lru: LRUCache[str, Reader] = LRUCache(capacity)
        self.hooks = hooks
        self._find = find
        self._begin()
        self.reset_stats()

    def _begin(self) -> None:
        self.users = []
        self._blocks = Blocks()
        self._listener: threading.Thread | None = None
        # Weakly: the pool is what holds the open files, and must go when its dataset does.
        this = weakref.ref(self)
        self.store.let_go = lambda: _call(this, OpenShards.let_go)
        self.store.ranges.drop = lambda url: _call(this, OpenShards.drop, url)
        self.listen_to_releases()
        _pools.add(self)

    def __len__(self) -> int:
        return len(self.lru)

    def __getstate__(self) -> dict[str, Any]:
        # A reader is a descriptor of this process; the copy opens its own.
        empty: LRUCache[str, Reader] = LRUCache(self.lru.capacity)
        own = {"lru": empty, "_blocks": None, "accesses": 0, "misses": 0, "users": None, "_listener": None}
        return {**self.__dict__, **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def get_shard(self, url: str) -> Reader:
        """The open shard at ``url`` (as the index resolves it), opened if it is not.

        Raises:
            KeyError: the dataset has no shard with this URL.
            FetchError, CacheError, ShardError: see `wids.cache.store.Store.open`.
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
                self._listen()
        return reader

    def _open(self, shard: Shard) -> Reader:
        while True:
            try:
                return self.store.open(shard)
            except OSError as error:
                if not (_lacks_descriptors(error) and self.lru):
                    raise
                # The program needs more descriptors than it left us: go on with half as many shards open.
                self.lru.forget((len(self.lru) + 1) // 2)
                forget_frames(error)

    def reset_stats(self) -> None:
        """Count from zero."""
        self.accesses = 0
        self.misses = 0

    def clear(self) -> None:
        """Let go of every open shard."""
        self.lru.clear()

    def drop(self, url: str) -> None:
        """Let go of one shard; it is opened in another way the next time."""
        del self.lru[url]
        self._call_users()

    def let_go(self) -> None:
        """Let go of every leased shard; one that is being read at this moment closes afterwards."""
        for url in [url for url, reader in list(self.lru.items()) if reader.is_leased]:
            del self.lru[url]
        self._call_users()

    def _call_users(self) -> None:
        for user in self.users:
            leave = user()
            if leave is not None:
                leave()

    def add_user(self, leave: Callable[[], None]) -> None:
        """Call the method ``leave`` when readers are to be let go of, as long as its object lives."""
        self.users = [*(user for user in self.users if user() is not None), weakref.WeakMethod(leave)]

    def listen_to_releases(self) -> None:
        """Be told of readers that leave the pool."""
        this = weakref.ref(self)
        self.lru.release_handler = lambda url, reader: _call(this, OpenShards._on_release, url, reader)

    def _listen(self) -> None:
        """See to it that a thread listens for those who wait for room, as long as anything is leased."""
        if self._listener is None or not self._listener.is_alive():
            # A thread that keeps the pool, and so its files, would never end.
            thread = threading.Thread(target=_listen, args=(weakref.ref(self),), daemon=True, name="wids-leases")
            self._listener = thread
            with contextlib.suppress(RuntimeError):  # no thread to be had: leases then end when shards are closed
                thread.start()

    def _on_release(self, url: str, reader: Reader) -> None:
        if reader.is_leased:
            self.store.touch(reader.path)
        emit(self.hooks, Closed(url=url))


_pools: weakref.WeakSet[OpenShards] = weakref.WeakSet()


def _call(this: weakref.ref[OpenShards], method: Callable[..., None], *args: Any) -> None:
    pool = this()
    if pool is not None:
        method(pool, *args)


def _listen(this: weakref.ref[OpenShards]) -> None:
    """Let go of the leased shards of a pool when somebody rings; until it has none, or is gone."""
    heard: dict[str, int] = {}
    while True:
        pool = this()
        if pool is None:
            return
        leased = {os.path.dirname(reader.path) for reader in list(pool.lru.values()) if reader.is_leased}
        if not leased:
            pool._listener = None  # noqa: SLF001 - this is the listener
            if any(reader.is_leased for reader in list(pool.lru.values())):  # opened just now, when there was one
                pool._listen()  # noqa: SLF001 - likewise
            return
        rung = {directory: pool.store.bell_time(directory) for directory in leased}
        if any(heard.get(directory, when) != when for directory, when in rung.items()):
            pool.let_go()
        heard = rung
        del pool
        time.sleep(_LISTEN_SECONDS)


def _start_child() -> None:
    """A forked child has copies of its parent's leases, and would keep them for as long as it lives."""
    for pool in list(_pools):
        pool.lru.release_handler = None  # closing a copy is no event
        pool.let_go()
        pool.listen_to_releases()
    files.close_inherited()


if hasattr(os, "register_at_fork"):  # where there are forks
    os.register_at_fork(after_in_child=_start_child)


def _lacks_descriptors(error: BaseException | None) -> bool:
    """Whether the process (or the machine) has no file descriptor left, says the error or what caused it."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return True
        error = error.__cause__
    return False

"""A mapping of bounded size that drops the least recently used item; threads share it without a lock."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, ItemsView, KeysView, ValuesView

K = TypeVar("K")
V = TypeVar("V")


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
        while self.cache.setdefault(key, value) is not value:  # one step: another thread's value is seen, and released
            del self[key]
        try:
            self.cache.move_to_end(key)
        except KeyError:  # another thread evicted it meanwhile
            return
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

    def snapshot(self) -> list[tuple[K, V]]:
        """The (key, value) pairs of one moment, least recently used first.

        A list of `items` fails where another thread changes it, or a finalizer: to make pairs may start the collector.
        """
        while True:
            with contextlib.suppress(RuntimeError, KeyError):
                return list(self.cache.items())

    def oldest(self) -> V | None:
        """The least recently used value; None if none exists."""
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

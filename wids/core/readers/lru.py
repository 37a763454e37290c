"""Mappings of bounded size that drop the least recently used items."""

from __future__ import annotations

import contextlib
import sys
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, ItemsView, KeysView, ValuesView

K = TypeVar("K")
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """A mapping that forgets the least recently used entry beyond ``capacity``; threads share it without a lock.

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


class SizedLRUCache(Generic[K, V]):
    """A mapping that forgets the least recently used entries beyond ``most_bytes``; its user locks.

    Args:
        most_bytes: of all entries together; the newest one stays, of any size.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most, self._bytes = most_bytes, 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def use(self, key: K) -> V | None:
        """The value, which is the most recently used one then; None: there is none."""
        if key in self._entries:
            self._entries.move_to_end(key)
        return self.peek(key)

    def peek(self, key: K) -> V | None:
        """The value; None: there is none."""
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def keep(self, key: K, value: V, size: int) -> None:
        """Keep a value of so many bytes."""
        if key in self._entries:
            self._bytes -= self._entries.pop(key)[1]
        self._entries[key] = value, size
        self._bytes += size
        while self._bytes > self._most and len(self._entries) > 1:
            self._bytes -= self._entries.popitem(last=False)[1][1]

    def keys(self) -> KeysView[K]:
        """The keys, least recently used first."""
        return self._entries.keys()


def deep_size(value: Any) -> int:
    """The bytes of memory of a value with its parts: containers of Python, arrays, texts, numbers; for `keep`.

    A part that occurs twice counts twice, so no value is larger than this; a cycle would have no end.
    """
    size, parts = 0, [value]
    while parts:
        part = parts.pop()
        size += sys.getsizeof(part)
        if isinstance(part, dict):
            parts += part.keys()
            parts += part.values()
        elif isinstance(part, (list, tuple, set, frozenset)):
            parts += part
        elif getattr(getattr(part, "dtype", None), "kind", "") == "O":
            parts += part.ravel().tolist()
    return size

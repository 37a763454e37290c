"""A memo of facts about shards that are expensive to compute again, in memory, up to a limit of bytes.

Rules: threads add to it and look into it without a lock; what one of them drops, another finds out again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

V = TypeVar("V")

MAX_BYTES = 64 << 20


class Remembered(dict[str, V]):
    """Name of a shard -> its facts, the oldest first; the oldest are dropped first.

    Args:
        nbytes: the memory that a value takes.
    """

    def __init__(self, nbytes: Callable[[V], int]) -> None:
        super().__init__()
        self._nbytes = nbytes
        self._total = self._unsummed = 0  # bytes of all, and of those since they were last summed up

    def remember(self, name: str, value: V) -> None:
        """Keep a value, and as many others as `MAX_BYTES` hold with it."""
        before, size = self.pop(name, None), self._nbytes(value)
        self[name] = value
        self._total += size - (0 if before is None else self._nbytes(before))
        # A sum at each shard would make counting 10,000 of them quadratic; a counter that threads add to drifts.
        self._unsummed += size
        if self._unsummed >= MAX_BYTES >> 3:
            self._unsummed, self._total = 0, sum(map(self._nbytes, list(self.values())))
        if self._total <= MAX_BYTES:
            return
        for oldest in list(self)[:-1]:
            dropped = self.pop(oldest, None)
            self._total -= 0 if dropped is None else self._nbytes(dropped)
            if self._total <= MAX_BYTES:
                break

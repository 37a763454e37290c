"""Actions in the order of their times: the clock of a simulation."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class _Scheduled(NamedTuple):
    when: float
    number: int  # of two actions at one time, the one that was scheduled first comes first
    action: Callable[[], None]


class EventLoop:
    """Scheduled actions.

    Attributes:
        now: seconds since the beginning.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[_Scheduled] = []
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    def schedule(self, when: float, action: Callable[[], None]) -> None:
        """Do something then."""
        self._count += 1
        heapq.heappush(self._heap, _Scheduled(when, self._count, action))

    def run_next(self) -> None:
        """Let time go on until the next action, and do it."""
        when, _, action = heapq.heappop(self._heap)
        self.now = max(self.now, when)
        action()

    def has_until(self, when: float) -> bool:
        """Whether there is an action until then."""
        return bool(self._heap) and self._heap[0].when <= when

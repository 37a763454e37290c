"""A node's link to its data: it carries one shard at a time; waiting for a first byte keeps no link busy.

Shards that a loader waits for come first, else those of the ranks in turn.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from wids.simulate.loop import EventLoop


class Delivery(NamedTuple):
    """A shard on its way.

    Attributes:
        rank: whose prefetcher or loader asked for it.
        is_urgent: a loader waits for it.
    """

    rank: int
    shard: int
    size: int
    is_urgent: bool


class Link:
    """One node's link.

    Args:
        loop: the clock.
        bandwidth: bytes a second. latency: seconds to a first byte.
        on_begin: called when the bytes of a shard begin to flow. on_arrival: called with it when all are there.
    """

    def __init__(
        self,
        loop: EventLoop,
        *,
        bandwidth: float,
        latency: float,
        on_begin: Callable[[], None],
        on_arrival: Callable[[Delivery], None],
    ) -> None:
        self._loop, self._bandwidth, self._latency = loop, bandwidth, latency
        self._on_begin, self._on_arrival = on_begin, on_arrival
        self._urgent: deque[Delivery] = deque()
        self._turns: dict[int, deque[Delivery]] = {}
        self._is_serving = False

    def request(self, delivery: Delivery) -> None:
        """Ask for a shard."""
        self._loop.schedule(self._loop.now + self._latency, lambda: self._queue(delivery))

    def _queue(self, delivery: Delivery) -> None:
        """Its first byte is here; it waits for its turn."""
        queue = self._urgent if delivery.is_urgent else self._turns.setdefault(delivery.rank, deque())
        queue.append(delivery)
        self.serve()

    def serve(self) -> None:
        """Let the next shard have the link, if it is free."""
        if self._is_serving or (delivery := self._next()) is None:
            return
        self._is_serving = True
        self._on_begin()
        self._loop.schedule(self._loop.now + delivery.size / self._bandwidth, lambda: self._arrive(delivery))

    def _arrive(self, delivery: Delivery) -> None:
        self._is_serving = False
        self._on_arrival(delivery)

    def _next(self) -> Delivery | None:
        if self._urgent:
            return self._urgent.popleft()
        if not self._turns:
            return None
        rank = next(iter(self._turns))
        queue = self._turns.pop(rank)
        delivery = queue.popleft()
        if queue:
            self._turns[rank] = queue
        return delivery

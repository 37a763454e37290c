"""A node's link to its data: it carries one thing at a time; waiting for a first byte keeps no link busy.

Byte ranges of samples come before shards, and interrupt the one that is under way. Of shards, those that a loader waits
for come first, else those of the ranks in turn.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from wids.simulate.loop import EventLoop


class Delivery(NamedTuple):
    """A shard on its way, or the byte ranges of a batch.

    Attributes:
        rank: whose prefetcher or loader asked for it.
        shard: its number; -1: it is byte ranges.
        is_urgent: a loader waits for it.
        batch: whose samples these byte ranges are; None: it is a shard.
    """

    rank: int
    shard: int
    size: int
    is_urgent: bool
    batch: int | None = None


class _Carriage(NamedTuple):
    """A delivery that has the link since ``begin``, with ``left`` bytes to come."""

    delivery: Delivery
    begin: float
    left: float


class Link:
    """One node's link.

    Args:
        loop: the clock.
        bandwidth: bytes a second. latency: seconds to a first byte.
        on_begin: called when the bytes of a delivery begin to flow, or go on.
        on_arrival: called with it when all are there.
        on_carried: called with the number of bytes that came since the last call, when a delivery ends or is
            interrupted.
    """

    def __init__(
        self,
        loop: EventLoop,
        *,
        bandwidth: float,
        latency: float,
        on_begin: Callable[[], None],
        on_arrival: Callable[[Delivery], None],
        on_carried: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._loop, self._bandwidth, self._latency = loop, bandwidth, latency
        self._on_begin, self._on_arrival, self._on_carried = on_begin, on_arrival, on_carried
        self._ranges: deque[Delivery] = deque()
        self._urgent: deque[Delivery] = deque()
        self._interrupted: _Carriage | None = None
        self._turns: dict[int, deque[Delivery]] = {}
        self._serving: _Carriage | None = None

    def request(self, delivery: Delivery) -> None:
        """Ask for a shard, or for byte ranges."""
        self._loop.schedule(self._loop.now + self._latency, lambda: self._queue(delivery))

    def _queue(self, delivery: Delivery) -> None:
        """Its first byte is here; it waits for its turn."""
        if delivery.batch is not None:
            self._ranges.append(delivery)
            self._interrupt()
        elif delivery.is_urgent:
            self._urgent.append(delivery)
        else:
            self._turns.setdefault(delivery.rank, deque()).append(delivery)
        self.serve()

    def serve(self) -> None:
        """Let the next delivery have the link, if it is free."""
        if self._serving is not None or (found := self._next()) is None:
            return
        transfer = self._serving = found._replace(begin=self._loop.now)
        self._on_begin()
        self._loop.schedule(self._loop.now + found.left / self._bandwidth, lambda: self._arrive(transfer))

    def _interrupt(self) -> None:
        """A shard lets byte ranges pass."""
        serving = self._serving
        if serving is not None and serving.delivery.batch is None:
            left = max(serving.left - (self._loop.now - serving.begin) * self._bandwidth, 0.0)
            self._interrupted, self._serving = serving._replace(left=left), None
            self._on_carried(round(serving.left) - round(left))

    def _arrive(self, transfer: _Carriage) -> None:
        if self._serving is not transfer:
            return  # it was interrupted
        self._serving = None
        self._on_carried(round(transfer.left))
        self._on_arrival(transfer.delivery)

    def _next(self) -> _Carriage | None:
        if self._ranges:
            return _begin(self._ranges.popleft())
        if self._interrupted is not None:
            found, self._interrupted = self._interrupted, None
            return found
        if self._urgent:
            return _begin(self._urgent.popleft())
        if not self._turns:
            return None
        rank = next(iter(self._turns))
        queue = self._turns.pop(rank)
        delivery = queue.popleft()
        if queue:
            self._turns[rank] = queue
        return _begin(delivery)


def _begin(delivery: Delivery) -> _Carriage:
    return _Carriage(delivery, 0.0, delivery.size)

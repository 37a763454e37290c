"""The clock of a simulation, and a node's link to its data.

A process is a generator that yields the second at which it goes on; the clock has a heap of them.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Process: TypeAlias = Iterator[float]


class Clock:
    """Processes in the order of their times.

    Attributes:
        now: seconds since the beginning.
    """

    now: float

    def __init__(self) -> None:
        self.now = 0.0
        # Of two processes that go on at the same time, the one that began to wait first comes first.
        self._waiting: list[tuple[float, int, Process]] = []
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def start(self, process: Process) -> None:
        """Let a process go on until it waits, or ends."""
        when = next(process, None)
        if when is not None:
            self._count += 1
            heapq.heappush(self._waiting, (when, self._count, process))

    def run_next(self) -> None:
        """Let time go on until the next process does."""
        when, _, process = heapq.heappop(self._waiting)
        self.now = max(self.now, when)
        self.start(process)

    def has_until(self, when: float) -> bool:
        """True if a process goes on until then."""
        return bool(self._waiting) and self._waiting[0][0] <= when


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


class _CarriedDelivery(NamedTuple):
    """A delivery that has the link since ``begin``, with ``left`` bytes to come."""

    delivery: Delivery
    begin: float
    left: float


_RANGES, _INTERRUPTED, _URGENT = range(3)


class Link:
    """One node's link. It carries one thing at a time; waiting for a first byte does not keep it busy.

    Byte ranges of samples come before shards, and interrupt the one that is under way. Of shards, those that a loader
    waits for come first, else those of the ranks in turn.

    Args:
        clock: the clock.
        bandwidth: bytes a second.
        latency: seconds to a first byte.
        on_carried: called with the number of bytes that came since the last call: when a delivery begins or goes on,
            and when it ends or is interrupted.
        on_arrival: called with a delivery when all of it has come; then `serve` is to be called.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        bandwidth: float,
        latency: float,
        on_carried: Callable[[int], None],
        on_arrival: Callable[[Delivery], None],
    ) -> None:
        self._clock, self._bandwidth, self._latency = clock, bandwidth, latency
        self._on_carried, self._on_arrival = on_carried, on_arrival
        self._first: list[tuple[int, int, Delivery, float]] = []  # a heap: (kind, number, delivery, bytes to come)
        self._count = 0
        self._turns: dict[int, deque[Delivery]] = {}  # of each rank, shards that no loader waits for
        self._carried: _CarriedDelivery | None = None

    def bring(self, delivery: Delivery) -> Process:
        """A process that asks for a shard, or for byte ranges; it ends when the first byte is here."""
        yield self._clock.now + self._latency
        if delivery.batch is not None:
            self._push(_RANGES, delivery, delivery.size)
            self._interrupt()
        elif delivery.is_urgent:
            self._push(_URGENT, delivery, delivery.size)
        else:
            self._turns.setdefault(delivery.rank, deque()).append(delivery)
        self.serve()

    def serve(self) -> None:
        """Let the next delivery have the link, if it is free."""
        if self._carried is None and (found := self._next()) is not None:
            self._on_carried(0)
            self._clock.start(self._carry(*found))

    def _carry(self, delivery: Delivery, left: float) -> Process:
        transfer = self._carried = _CarriedDelivery(delivery, self._clock.now, left)
        yield self._clock.now + left / self._bandwidth
        if self._carried is transfer:  # else it was interrupted
            self._carried = None
            self._on_carried(round(left))
            self._on_arrival(delivery)

    def _interrupt(self) -> None:
        """A shard lets byte ranges pass."""
        carried = self._carried
        if carried is not None and carried.delivery.batch is None:
            left = max(carried.left - (self._clock.now - carried.begin) * self._bandwidth, 0.0)
            self._carried = None
            self._push(_INTERRUPTED, carried.delivery, left)
            self._on_carried(round(carried.left) - round(left))

    def _push(self, kind: int, delivery: Delivery, left: float) -> None:
        self._count += 1
        heapq.heappush(self._first, (kind, self._count, delivery, left))

    def _next(self) -> tuple[Delivery, float] | None:
        if self._first:
            return heapq.heappop(self._first)[2:]
        if not self._turns:
            return None
        rank = next(iter(self._turns))
        queue = self._turns.pop(rank)
        delivery = queue.popleft()
        if queue:
            self._turns[rank] = queue
        return delivery, delivery.size

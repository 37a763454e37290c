"""The number of byte ranges and requests that a process has under way, and the length of each.

`wids.core.transport.filesystems` and the prefetcher go by these figures, and so does `wids simulate`. Pure.
"""

from __future__ import annotations

from typing import NamedTuple


class ConcurrencyLimits(NamedTuple):
    """The default is in force; tests put another one in its place.

    Attributes:
        connections: byte ranges that a process downloads at a time.
        min_under_way: shards at a time: while one is verified and written out, the others keep the connections busy.
        first_range_bytes: length of a range of a server not seen yet.
        min_range_bytes: shortest range.
        max_range_bytes: longest range.
        min_requests: fewest requests for samples that a process has under way.
        max_requests: most of them.
        request_seconds: one request for each of these in a store's delay: about the processor time of a request.
            More requests would only wait in this process.
    """

    connections: int = 8
    min_under_way: int = 3
    first_range_bytes: int = 8 << 20
    min_range_bytes: int = 1 << 20
    max_range_bytes: int = 64 << 20
    min_requests: int = 8
    max_requests: int = 64
    request_seconds: float = 0.001


LIMITS = ConcurrencyLimits()


def range_bytes(size: int | None, *, wanted: float, connections: int) -> int:
    """Length of the ranges of a shard: ``wanted``, or shorter so that all connections share a small shard.

    Args:
        size: the shard's bytes; None: not known.
        wanted: bytes of a range in which waiting for the first byte takes a small part of the time.
        connections: number of connections.
    """
    if size is not None:
        wanted = min(wanted, max(size / connections, 0.4 * wanted))
    return int(min(max(wanted, LIMITS.min_range_bytes), LIMITS.max_range_bytes))


def requests_at_a_time(first_seconds: float) -> int:
    """The number of concurrent requests for samples to a store with this time to the first byte."""
    return int(min(max(first_seconds / LIMITS.request_seconds, LIMITS.min_requests), LIMITS.max_requests))


def slots(size: int, length: int, connections: int) -> int:
    """Number of connections that a shard of ``size`` bytes keeps busy, in ranges of ``length`` bytes."""
    return min(-(-size // length), connections)

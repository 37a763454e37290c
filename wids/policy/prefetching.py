"""How far ahead shards are fetched, over how many connections, and how patient is who needs room: figures and formulas.

Rules: pure, without I/O or a clock. `wids.cache.prefetch`, `remote` and `room` act by them, `wids.simulate` reckons by
them, so neither can drift from the other.
"""

from __future__ import annotations

# Byte ranges that a process has under way at a time, and shards at least: while one is verified and written out, the
# others keep the connections busy.
CONNECTIONS, LEAST_UNDER_WAY = 8, 3
FIRST_RANGE_BYTES, LEAST_RANGE_BYTES, MOST_RANGE_BYTES = 8 << 20, 1 << 20, 64 << 20
# So many shards and seconds ahead, as far as the bytes allow; so many bytes on a node where no cache_size says it.
LEAST_SHARDS, AHEAD_SECONDS, AHEAD_BYTES = 12, 60.0, 4 << 30
# Visits to shards that are looked at, and indices at a time.
MOST_VISITS, BLOCK = 1024, 4096
# What a loader reads ahead is found out; so many samples at least.
LEAST_BURST = 64
_MARGIN = 0.1
# Whoever waits for room lets what is used within so many seconds stay for so long, while others let go of theirs.
SOON_SECONDS, GRACE_SECONDS = 0.5, 0.5
# What is used within so many seconds is used now: plans are guesses, renewed all the time.
NOW_SECONDS = 0.05


def range_bytes(
    size: int | None,
    *,
    wanted: float,
    connections: int,
    least: int = LEAST_RANGE_BYTES,
    most: int = MOST_RANGE_BYTES,
) -> int:
    """How long the ranges of a shard should be: as ``wanted``, or shorter so that all connections share a small shard.

    Args:
        size: the shard's bytes; None: not known.
        wanted: bytes of a range in which waiting for the first byte takes a small part of the time.
        connections: how many there are.
        least: bytes of a range, whatever is wanted.
        most: likewise.
    """
    if size is not None:
        wanted = min(wanted, max(size / connections, 0.4 * wanted))
    return int(min(max(wanted, least), most))


def slots(size: int, length: int, connections: int) -> int:
    """How many connections a shard of ``size`` bytes keeps busy, in ranges of ``length`` bytes."""
    return min(-(-size // length), connections)


def most_ahead(given: int | None, *, limit: int | None, ranks: int, typical: int) -> int:
    """How many bytes ahead one rank fetches at most.

    Args:
        given: what the user says; None: nothing.
        limit: bytes of the cache; None: no bound.
        ranks: how many share the cache.
        typical: bytes of a shard, about.
    """
    if given is not None:
        most = given
    elif limit is not None:
        most = limit // ranks
    else:  # however large the shards are: the next window must be there when this one ends
        most = max(AHEAD_BYTES // ranks, LEAST_SHARDS * typical)
    return most if limit is None else min(most, limit)


def good_ahead(rate: float, *, typical: int, each: float) -> int:
    """How many bytes ahead are worth while: more the faster shards are used.

    Args:
        rate: samples a second.
        typical: bytes of a shard, about.
        each: samples from one new shard to the next.
    """
    return max(LEAST_SHARDS * typical, int(rate * AHEAD_SECONDS * typical / each))


def with_margin(use: float, now: float) -> float:
    """Only what is used later than this goes for what is used at ``use``: the next guess at either may differ."""
    return use + _MARGIN * (use - now)

"""The distance at which shards are downloaded ahead of a reader: figures, formulas, and the rate of a reader.

`wids.core.prefetch.window` decides by them; so do simulations, which therefore cannot drift from the real cache. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from wids.events import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wids.core.order.epoch import MixedRange


class DistanceLimits(NamedTuple):
    """The default is in force; tests put another one in its place.

    Attributes:
        memory_share: of the free memory, filled with files on network file systems ahead of their use.
        min_shards: shards ahead that are always good.
        ahead_seconds: time ahead that is always good.
        ahead_bytes: the most bytes ahead on a node without a cache_size.
        max_visits: visits to shards that are examined.
        block: indices of one visit.
        unknown_bytes: a shard of unknown size counts as so many.
        first_rate: positions per second, until the reader's rate is known.
        min_burst: lower bound of the estimate of the samples that a loader reads ahead.
        max_burst: its upper bound.
        burst_seconds: time over which that is estimated.
        rate_seconds: the least time between two looks at the rate.
    """

    memory_share: float = 0.25
    min_shards: int = 12
    ahead_seconds: float = 60.0
    ahead_bytes: int = 4 << 30
    max_visits: int = 1024
    block: int = 4096
    unknown_bytes: int = 64 << 20
    first_rate: float = 1000.0
    min_burst: int = 64
    max_burst: int = 1 << 14
    burst_seconds: float = 0.1
    rate_seconds: float = 1.0


LIMITS = DistanceLimits()
# The least share of a file's part that must be needed if the part is read into memory ahead.
_MIN_NEEDED = 0.5
_RATE_WEIGHT = 0.3
# The least share of the samples of a shard read by ranges that must be unread when its download ends.
_MIN_UNREAD, _LAG_WEIGHT = 0.5, 0.5


class RateEstimator:
    """The speed at which a reader draws, and its loader's reading ahead, from looks at its position.

    Args:
        now: seconds of any clock that does not go back.

    Attributes:
        rate: positions per second; 0: not known yet.
        burst: the most drawn samples that may not have been read yet: those that a loader draws in its first moments.
        moved: time at which the reader was last seen to draw.
    """

    rate: float
    burst: int
    moved: float

    def __init__(self, now: float) -> None:
        self.rate, self.burst = 0.0, LIMITS.max_burst
        self.moved = self._began = now
        self._last, self._seen, self._has_looked = 0, (0, now), False

    def note(self, position: int, now: float) -> None:
        """The reader is at ``position``."""
        if position != self._last:
            self._last, self.moved = position, now
        before, then = self._seen
        if now - then > LIMITS.rate_seconds:
            rate = (position - before) / (now - then)
            self.rate = rate if self.rate == 0.0 else (1 - _RATE_WEIGHT) * self.rate + _RATE_WEIGHT * rate
            self._seen = position, now
        # On a busy machine the first look may come late; then it is all that will be known of the first moments.
        if now - self._began < LIMITS.burst_seconds or not self._has_looked:
            self._has_looked = True
            self.burst = min(max(position, LIMITS.min_burst), LIMITS.max_burst)


def own_burst(burst: int, unread: int) -> int:
    """The burst of a reader whose samples are read in its own process, of which ``unread`` are drawn but not read."""
    return min(burst, max(unread, LIMITS.min_burst))


def min_reach(mixed: int) -> int:
    """The least number of shards within reach, if ``mixed`` of them are read at a time."""
    return max(LIMITS.min_shards, mixed + LIMITS.min_shards // 2)


def max_ahead(
    wanted: int | None, *, limit: int | None, ranks: int, typical: int, shards: int = LIMITS.min_shards
) -> int:
    """The maximum number of bytes that one rank downloads ahead: those of one shard, at least, if the cache holds one.

    Args:
        wanted: by the user; None: nothing.
        limit: bytes of the cache; None: no limit.
        ranks: number of those that share the cache.
        typical: bytes of a shard, about.
        shards: that are to be within reach at least; see `min_reach`.
    """
    if wanted is not None:
        ahead = wanted
    elif limit is not None:
        ahead = max(limit // ranks, typical)
    else:  # however large the shards are: the next window must be cached when this one ends
        ahead = max(LIMITS.ahead_bytes // ranks, shards * typical)
    return ahead if limit is None else min(ahead, limit)


def part_to_read(parts: Iterable[tuple[float, float, float]]) -> tuple[float, float, int]:
    """The part of a shard on a network file system that is read into memory ahead of visits to it.

    That is all between the first and the last sample of the visits, of as many of them as make half of that needed: a
    visit may be a few samples here and there of a shard of which later ones read the rest.

    Args:
        parts: of the next visits, in order; see `wids.core.order.layout.Visit`.

    Returns:
        Beginning and end, from 0 to 1, and the number of visits that it serves; (0, 0, 1): none of them.
    """
    part = (0.0, 0.0, 1)
    low, high, total = 1.0, 0.0, 0.0
    for number, (begin, end, share) in enumerate(parts, 1):
        low, high, total = min(low, begin), max(high, end), total + share
        if total >= _MIN_NEEDED * (high - low):
            part = (low, high, number)
    return part


class ShardNeed(NamedTuple):
    """The shards that one rank reads at a time of a range of indices.

    Attributes:
        mixed: the range.
        total: number of its shards.
        size: bytes of one, about.
    """

    mixed: MixedRange
    total: int
    size: int

    def count(self, ranks: int) -> int:
        """Number of shards in a node's cache with which each is downloaded once, and those to come are there in time.

        Args:
            ranks: of the node. One more than all shards is enough: their member tables take its space.
        """
        return min(self.mixed.needed * ranks, self.total + 1)


def describe_shortage(limit: int, needs: Sequence[ShardNeed], *, ranks: int) -> str | None:
    """Words for a cache that is too small, with what would do; None: it is large enough.

    Args:
        limit: of the cache, in bytes.
        needs: of one rank, for each range of indices.
        ranks: of the node.
    """
    counts = [need.count(ranks) for need in needs]
    needed = sum(count * need.size for count, need in zip(counts, needs, strict=True))
    if limit >= needed:
        return None
    size = needed // sum(counts)
    opened = sum(min(need.mixed.open * ranks, need.total) for need in needs)
    words = f"cache_size ({format_size(limit)}) has space for {limit // size} shards of about {format_size(size)}, and "
    words += f"{ranks} rank(s) of this node read {opened} at a time"
    words += f", out of {len(needs)} sources" * (len(needs) > 1)
    words += f". cache_size={needed:_} would do"
    # Shards of a lane, and of each source.
    space = limit // (sum(need.size * need.mixed.lanes for need in needs) * ranks)
    window, rows = max(need.mixed.window for need in needs), min(need.mixed.rows for need in needs)
    if not any(need.mixed.block for need in needs):
        return words + f", or window={space - 1}" * (space > 1)
    if space - window >= 2:
        return words + f", or block={(space - window) // 2 * rows}"
    return words + f", or window={space - 2}, block={rows}" * (space > 2)


def good_ahead(rate: float, *, typical: int, each: float, shards: int = LIMITS.min_shards) -> int:
    """Number of bytes ahead that are worth while: more the faster shards are used.

    Args:
        rate: samples a second.
        typical: bytes of a shard, about.
        each: samples from one new shard to the next.
        shards: that are to be within reach at least; see `min_reach`.
    """
    return max(shards * typical, int(rate * LIMITS.ahead_seconds * typical / each))


def is_in_time(first: float, last: float, *, arrival: float) -> bool:
    """True if a download is worth it, of a shard whose samples are read by byte ranges until it is cached.

    Where the link has less to spare than is read, each shard would arrive when its samples have been read, and all be
    transferred twice. Those that are left out leave the link to later ones, which arrive in time.

    Args:
        first: the position at which it is read first.
        last: the position at which it is read last.
        arrival: the position at which it would be cached, about.
    """
    return last + 1 - arrival >= _MIN_UNREAD * (last + 1 - first)


def new_lag(lag: float, drawn: int) -> float:
    """Number of positions drawn during a download, after one during which ``drawn`` were."""
    return drawn if not lag else (1 - _LAG_WEIGHT) * lag + _LAG_WEIGHT * drawn

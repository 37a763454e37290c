"""The decision about space in a cache for a download, and about the shards to evict for it.

Pure: the cache is a snapshot with a separate clock, and evictions are carried out by a function that is given. The
cache directory (`wids.core.cache.space`) and the nodes of `wids simulate` reserve by the same rules:

- A download ahead never waits, and evicts only shards that are used later than it.
- A reader evicts any shard that is not being read; but while it has not waited for long, none that is used soon, if
  another one can be evicted in a moment. Where all are being read, it waits.
- Nothing is evicted for a shard that would not fit even then.
- A shard longer than the disk is refused at once: no wait makes space for it.
- A shard that exceeds the limit by itself, or the floor of a disk that others have filled, is admitted once nothing
  more can be evicted: a limit that no shard fits is none. One of unknown length is not: it may never end.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple, Protocol

from wids.core.cache.eviction import missing_bytes, victims

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from wids.core.cache.eviction import Entry


class ReservationLimits(NamedTuple):
    """The default is in force; tests put another one in its place.

    Attributes:
        soon_seconds: a reader that waits for space at first does not evict shards needed within this time.
        grace_seconds: it spares them so long at most, while other processes release theirs. Nor for longer than a part
            of the time that it takes to download one again.
        first_bytes_per_second: by which that is guessed until one was downloaded.
        now_seconds: a use within so many counts as now: hints are guesses, and are renewed all the time.
    """

    soon_seconds: float = 0.5
    grace_seconds: float = 0.5
    first_bytes_per_second: float = 100e6
    now_seconds: float = 0.05


LIMITS = ReservationLimits()
_MARGIN, _GRACE_SHARE = 0.1, 0.5


class Snapshot(Protocol):
    """A cache as it is now; attributes that are costly to find out may be properties.

    Attributes:
        limit: bytes that it may have; None: no limit.
        now: by the clock of ``uses``.
        second: length of a second by that clock.
        disk: bytes of the file system; 0: it does not say.
        free: those that it has left.
        floor: those that it must have left afterwards.
        promised: of the free bytes, those that downloads under way will take.
        used: bytes in the cache, those of downloads under way included.
        uses: name -> when a job will use the shard next.
        is_busy: some of these uses are under way, and will be over in a moment.
    """

    limit: int | None
    now: float
    second: float
    disk: int
    free: int
    floor: int
    promised: int

    @property
    def used(self) -> int: ...  # noqa: D102

    @property
    def uses(self) -> Mapping[str, float]: ...  # noqa: D102

    @property
    def is_busy(self) -> bool: ...  # noqa: D102

    def entries(self) -> Iterator[Entry]:
        """The cached shards, least recently used first."""


class Request(NamedTuple):
    """Space that is wanted.

    Attributes:
        wanted: bytes more than its files have now.
        total: bytes that they will have.
        use: time of its use, by the snapshot's clock, for a download ahead; None: a reader waits for it.
        waited: number of seconds so far.
        grace: for so many it evicts nothing that is used soon, as long as it may help.
        tried: candidates used later than this have been evicted, or cannot be.
        is_blocked: some of them cannot be because they are being read.
        is_final: ``total`` is all that it needs; otherwise it grows, nobody knows how far.
    """

    wanted: int
    total: int
    use: float | None = None
    waited: float = math.inf
    grace: float = LIMITS.grace_seconds
    tried: float = math.inf
    is_blocked: bool = False
    is_final: bool = True


class Grant(NamedTuple):
    """There is space; ``is_over_limit``: it is admitted although there is not."""

    is_over_limit: bool = False


class Evict(NamedTuple):
    """There is space once ``missing`` bytes were evicted of these candidates, in order; used later than ``after``."""

    candidates: Iterator[Entry]
    missing: int
    after: float


class MustWait(NamedTuple):
    """There is too little; ``is_blocked``: more can be evicted in a moment, when it is no longer read."""

    missing: int
    is_blocked: bool


class Refuse(NamedTuple):
    """`MustWait` for a download that does not wait, or for which waiting is of no use."""

    missing: int
    is_blocked: bool


def reserve(cache: Snapshot, request: Request) -> Grant | Evict | MustWait | Refuse:
    """Decide about a request; after `Evict`, decide again with its outcome in ``tried`` and ``is_blocked``."""
    free = cache.free - cache.promised
    missing = missing_bytes(
        used=0 if cache.limit is None else cache.used,
        wanted=request.wanted,
        limit=cache.limit,
        free=free,
        floor=cache.floor,
    )
    if missing <= 0:
        return Grant()
    is_blocked = request.is_blocked or cache.is_busy
    is_patient = request.use is None and not 0 < cache.disk < request.total and not _is_beyond(cache, request)
    for after in _thresholds(cache, request):
        if after < request.tried:
            candidates = victims(cache.entries(), cache.uses, after=after)
            first, is_enough = _take_bytes(candidates, missing)
            if is_enough or (after == -math.inf and _fits_alone(cache, request)):
                return Evict(itertools.chain(first, candidates), missing, after)
        if is_patient and is_blocked and -math.inf < after <= request.tried:
            return MustWait(missing, is_blocked)
    if not is_patient:
        return Refuse(missing, is_blocked)
    if _may_exceed(cache, request):
        return Grant(is_over_limit=True)
    return MustWait(missing, is_blocked)


def settle(cache: Snapshot, request: Request, evict: Callable[[Entry], bool]) -> Grant | MustWait | Refuse:
    """`reserve`, with its evictions.

    Args:
        cache: it follows the evictions.
        request: the space that is wanted.
        evict: evicts one shard, unless it is being read; True if it did.
    """
    while True:
        decision = reserve(cache, request)
        if not isinstance(decision, Evict):
            return decision
        missing, is_blocked = decision.missing, False
        for entry in decision.candidates:
            if evict(entry):
                missing -= entry.size_bytes
            else:
                is_blocked = True
            if missing <= 0:
                break
        request = request._replace(tried=decision.after, is_blocked=request.is_blocked or is_blocked)


def _thresholds(cache: Snapshot, request: Request) -> list[float]:
    """Only shards used later than the first of these may be evicted; if that is not enough, than the next one."""
    if request.use is not None:  # hints are renewed: a shard that is needed now is never one of later
        return [max(request.use, cache.now + LIMITS.now_seconds * cache.second)]
    if request.waited < request.grace:
        return [cache.now + LIMITS.soon_seconds * cache.second, -math.inf]
    return [-math.inf]


def _take_bytes(entries: Iterator[Entry], wanted: int) -> tuple[list[Entry], bool]:
    """The first entries that have so many bytes together; and True if they have."""
    taken: list[Entry] = []
    for entry in entries:
        taken.append(entry)
        wanted -= entry.size_bytes
        if wanted <= 0:
            return taken, True
    return taken, False


def _is_beyond(cache: Snapshot, request: Request) -> bool:
    """True if a shard of unknown length is longer than the limit already."""
    return not request.is_final and cache.limit is not None and request.total > cache.limit


def _fits_alone(cache: Snapshot, request: Request) -> bool:
    """True if a shard that exceeds its limit may be admitted once all others are evicted, so that they should be."""
    if not request.is_final:
        return False
    return (cache.limit is None or request.total > cache.limit) and request.total <= cache.free + cache.used


def _may_exceed(cache: Snapshot, request: Request) -> bool:
    """True if a shard is admitted although nothing more can be evicted; never beyond the end of the disk."""
    is_too_large = cache.limit is None or request.total > cache.limit
    return request.is_final and is_too_large and cache.free >= request.wanted + cache.promised


def grace(download_seconds: float) -> float:
    """Seconds that a reader waits before it evicts shards needed soon, from the seconds to download them again."""
    return min(LIMITS.grace_seconds, _GRACE_SHARE * download_seconds)


def with_margin(use: float, now: float) -> float:
    """Only shards used later than this are evicted for one used at ``use``: the next guess at either may differ."""
    return use + _MARGIN * (use - now)

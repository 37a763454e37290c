"""The decision how a shard is read now: in place, from the cache, by byte ranges, or after its download, and by whom.

Pure: the shard's state is an argument. The readers (`wids.core.readers.provider`) and `wids simulate` decide
by the same two functions.

`choose`, by the first row that holds:

| the shard                                                                         | access     |
|-----------------------------------------------------------------------------------|------------|
| is read where it is                                                               | `IN_PLACE` |
| is in the cache                                                                   | `CACHED`   |
| of ``access="range"``                                                             | `RANGES`   |
| can be read by ranges (`can_range`), of ``"auto"``, and no process downloads it   | `RANGES`   |
| can be read by ranges, of ``"fetch"`` with early reads, its download will end, and |            |
| this process may ask for ranges now, or no process downloads it                   | `RANGES`   |
| could be so read, had this process not spent its share of requests (`.pace`)      | `TURN`     |
| is being downloaded by another process                                            | `WAIT`     |
| else                                                                              | `DOWNLOAD` |

`begins_download` says whether who reads a shard by ranges also has it downloaded meanwhile.
"""

from __future__ import annotations

import enum
from typing import Literal, Protocol, TypeAlias

AccessMode: TypeAlias = Literal["fetch", "range", "auto"]

# A shard that a sampler will need within the first is not evicted for one that is read by ranges, and left to its
# prefetcher for the second.
PLANNED_SECONDS, PATIENCE_SECONDS = 60.0, 30.0


class Access(enum.Enum):
    """A way to read a shard."""

    IN_PLACE = "in place"
    CACHED = "cached"
    RANGES = "by byte ranges"
    TURN = "by byte ranges once this process may ask for more, or from the cache once it was downloaded"
    WAIT = "once another process has downloaded it"
    DOWNLOAD = "once it was downloaded"


class AccessState(Protocol):
    """The present state of a shard; attributes that are costly to determine may be properties.

    Attributes:
        mode: ``access`` of its dataset.
        has_early_reads: of the dataset, for ``"fetch"``.
        is_in_place: it is local, and not copied.
        is_cached: the cache has a file for it.
        is_downloading: some process downloads it.
        will_arrive: a download that is under way, or would begin now, would end: the process lives long enough.
        has_failed: it could not be downloaded, and its reader is to meet the error.
        has_ranges: nothing has shown that its server gives no ranges, or that its member table is wrong.
        has_table: its member table is known, or may be read without its headers. ``"auto"`` reads those: True.
        retry_at: by the clock of ``now``; not by ranges before, for its server did not answer.
        is_spent: by ranges it has cost as much as its download.
        may_ask: the process has not spent its share of requests (`wids.core.transport.pace`).
    """

    @property
    def mode(self) -> AccessMode: ...  # noqa: D102
    @property
    def has_early_reads(self) -> bool: ...  # noqa: D102
    @property
    def is_in_place(self) -> bool: ...  # noqa: D102
    @property
    def is_cached(self) -> bool: ...  # noqa: D102
    @property
    def is_downloading(self) -> bool: ...  # noqa: D102
    @property
    def will_arrive(self) -> bool: ...  # noqa: D102
    @property
    def has_failed(self) -> bool: ...  # noqa: D102
    @property
    def has_ranges(self) -> bool: ...  # noqa: D102
    @property
    def has_table(self) -> bool: ...  # noqa: D102
    @property
    def retry_at(self) -> float: ...  # noqa: D102
    @property
    def is_spent(self) -> bool: ...  # noqa: D102
    @property
    def may_ask(self) -> bool: ...  # noqa: D102


def choose(shard: AccessState, now: float) -> Access:
    """Decide how a shard is read now; see the table above.

    Args:
        shard: its state.
        now: in seconds of a clock that does not go back.
    """
    if shard.is_in_place:
        return Access.IN_PLACE
    if shard.is_cached:
        return Access.CACHED
    if reads_ranges(shard, now):
        return Access.RANGES
    if shard.mode == "fetch" and _reads_early(shard, now):
        return Access.TURN
    return Access.WAIT if shard.is_downloading else Access.DOWNLOAD


def reads_ranges(shard: AccessState, now: float) -> bool:
    """True if a shard that is not on this machine is read by ranges."""
    if shard.mode == "range":
        return True
    if shard.mode == "auto":
        return can_range(shard, now) and not shard.is_downloading
    return _reads_early(shard, now) and (shard.may_ask or not shard.is_downloading)


def _reads_early(shard: AccessState, now: float) -> bool:
    """True if samples of a shard may be read before it was downloaded."""
    return shard.has_early_reads and shard.will_arrive and not shard.has_failed and can_range(shard, now)


def can_range(shard: AccessState, now: float) -> bool:
    """True if the members of a shard can be read where they are, for less than a download."""
    return shard.has_ranges and not shard.is_spent and now >= shard.retry_at and shard.has_table


def costs_less(count: int, *, nsamples: int | None, size: int | None, request_bytes: int) -> bool:
    """True if some samples of a shard, each by a separate request, cost less than its download, as far as known.

    Args:
        count: of these samples.
        nsamples: of the shard; None, 0: not known.
        size: of the shard, in bytes; None: not known.
        request_bytes: number of bytes that could be transferred in the time of a request.
    """
    if not nsamples or count >= nsamples:
        return False
    return size is None or count * (size / nsamples + request_bytes) < size


class EarlyRead(Protocol):
    """The present state of a shard that is read by ranges until it is cached.

    Attributes:
        since: time at which it was first read so.
        is_own: this process downloads it.
        is_downloading: some process does.
        is_planned: the plan of a live job uses it within `PLANNED_SECONDS`.
        has_room: this process has begun fewer downloads so, at the moment, than it may have under way; asked for last.
    """

    @property
    def since(self) -> float: ...  # noqa: D102
    @property
    def is_own(self) -> bool: ...  # noqa: D102
    @property
    def is_downloading(self) -> bool: ...  # noqa: D102
    @property
    def is_planned(self) -> bool: ...  # noqa: D102
    @property
    def has_room(self) -> bool: ...  # noqa: D102


def begins_download(shard: EarlyRead, now: float) -> bool:
    """True if the reader of a shard by ranges begins to download it.

    Args:
        shard: see the class.
        now: as for `choose`.
    """
    if shard.is_own or shard.is_downloading:
        return False
    return (now - shard.since >= PATIENCE_SECONDS or not shard.is_planned) and shard.has_room

"""The shards that are evicted when a cache needs space, and their order.

Shards that no live job is going to read are evicted first, least recently used first; then those whose next use is
farthest ahead. Kept shards stay. Whether a shard is being read right now is not known here: the caller continues with
the next candidate if one cannot be evicted. Pure.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One shard in a cache directory.

    Attributes:
        name: its file's name.
        size_bytes: with its member table.
        used_ns: time of its last opening or release, in nanoseconds of the wall clock.
        is_kept: a dataset wants it to stay.
    """

    name: str
    size_bytes: int
    used_ns: int
    is_kept: bool = False


def victims(entries: Iterable[Entry], uses: Mapping[str, float], *, after: float = -math.inf) -> Iterator[Entry]:
    """The shards that may be evicted, in the order in which they should; looks at no more of them than it has to.

    Args:
        entries: the cached shards, least recently used first.
        uses: name -> when a live job will use it next, in seconds of one clock; absent: no job will.
        after: only shards whose next use is later than this.
    """
    planned: list[Entry] = []
    for entry in entries:
        if entry.is_kept or uses.get(entry.name, math.inf) <= after:
            continue
        if uses.get(entry.name, math.inf) < math.inf:
            planned.append(entry)
        else:
            yield entry
    planned.sort(key=lambda entry: -uses[entry.name])
    yield from planned


def missing_bytes(*, used: int, wanted: int, limit: int | None, free: int, floor: int) -> int:
    """Number of bytes to evict before there is space for ``wanted`` more; 0 or less: none.

    Args:
        used: bytes in the cache.
        wanted: bytes more.
        limit: bytes that the cache may have; None: no limit.
        free: bytes that the file system has left, less those promised to downloads under way.
        floor: bytes that it must have left afterwards.
    """
    over = 0 if limit is None else used + wanted - limit
    return max(over, wanted - (free - floor))

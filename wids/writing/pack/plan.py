"""Which samples go into which shard.

Rules: pure. The cut is a function of the samples' number, or of their sizes, and of nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from wids.tables import ustar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class PackTask(msgspec.Struct, frozen=True, kw_only=True):
    """One shard to write.

    Attributes:
        k: its number.
        first: number of its first sample.
        items: its samples, for the source's reader.
        inputs: a digest of all that its bytes depend on.
    """

    k: int
    first: int
    items: Sequence[Any]
    inputs: str


def number_key(position: int) -> str:
    """The key of a sample that is called by its number."""
    return f"{position:09d}"


def cut(count: int, *, samples: int | None, sizes: Iterable[int] | None, size: int | None) -> list[tuple[int, int]]:
    """Half-open ranges of samples, one for each shard.

    Args:
        count: samples in all.
        samples: per shard at most, or None.
        sizes: bytes that each sample takes in an archive; needed for ``size`` alone.
        size: bytes per shard at most, or None; a sample that is larger is alone in its shard.
    """
    if size is None or sizes is None:
        step = samples or count
        return [(first, min(first + step, count)) for first in range(0, count, max(1, step))]
    cuts, first, total = [], 0, 0
    for position, taken in enumerate(sizes):
        is_full = ustar.archive_bytes(total + taken) > size or (samples is not None and position - first >= samples)
        if position > first and is_full:
            cuts.append((first, position))
            first, total = position, 0
        total += taken
    return [*cuts, (first, count)] if count else []

"""Byte ranges as values: cut a download into ranges, coalesce reads into requests, assemble the received bytes.

Pure: nothing here reads, waits or writes.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


# The most bytes that requests may read in addition to the pieces, as a share of the pieces.
_MAX_WASTE = 0.5


class Span(NamedTuple):
    """The bytes ``lo .. hi`` of an object, half-open."""

    lo: int
    hi: int

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.hi - self.lo


def clip(span: tuple[int, int], size: int) -> Span:
    """The part of a span within an object of ``size`` bytes; possibly empty."""
    lo, hi = span
    return Span(lo, max(min(hi, size), lo))


def cut(spans: Iterable[Span], step: int) -> list[Span]:
    """The bytes of all spans, in ranges of at most ``step`` bytes each."""
    return [Span(lo, min(lo + step, hi)) for first, hi in spans for lo in range(first, hi, step)]


def subtract(spans: Sequence[Span], done: Span) -> list[Span]:
    """The bytes of sorted, disjoint spans outside ``done``."""
    left: list[Span] = []
    for span in spans:
        parts = Span(span.lo, min(span.hi, done.lo)), Span(max(span.lo, done.hi), span.hi)
        left += [part for part in parts if part.lo < part.hi]
    return left


def coalesce(pieces: Iterable[Span], *, gap: int, max_bytes: int) -> dict[Span, list[Span]]:
    """Requests that hold all pieces but the empty ones: disjoint spans, in order, each with its pieces.

    The bytes between pieces are at most half of those in them, all requests together: the smallest gaps are filled.

    Args:
        pieces: in any order; they may overlap, and then they are one request.
        gap: the number of bytes between two pieces that take no longer than another request.
        max_bytes: the longest request that filling a gap may give.
    """
    merged: list[tuple[Span, list[Span]]] = []
    for piece in sorted({piece for piece in pieces if piece.lo < piece.hi}):
        if merged and piece.lo < merged[-1][0].hi:
            (lo, hi), inside = merged[-1]
            inside.append(piece)
            merged[-1] = Span(lo, max(hi, piece.hi)), inside
        else:
            merged.append((piece, [piece]))
    left = sum(span.size for span, _ in merged) * _MAX_WASTE
    gaps = sorted((right.lo - before.hi, k) for k, ((before, _), (right, _)) in enumerate(itertools.pairwise(merged)))
    filled = set()
    for size, k in gaps:
        left -= size
        if size > gap or left < 0:
            break
        filled.add(k + 1)
    joined: list[tuple[Span, list[Span]]] = []
    for k, (span, inside) in enumerate(merged):
        if k in filled and span.hi - joined[-1][0].lo <= max_bytes:
            joined[-1][1].extend(inside)
            joined[-1] = Span(joined[-1][0].lo, span.hi), joined[-1][1]
        else:
            joined.append((span, inside))
    return dict(joined)


class Gather:
    """Pieces cut out of spans whose bytes arrive block by block; the bytes between the pieces are dropped at once.

    Args:
        wanted: disjoint spans, in order, each with its pieces.

    Attributes:
        pieces: the complete ones.
        arrived_bytes: of complete spans.
    """

    arrived_bytes: int

    def __init__(self, wanted: Mapping[Span, Sequence[Span]]) -> None:
        self.pieces: dict[Span, bytes] = {}
        self.arrived_bytes = 0
        self._wanted = dict(wanted)
        self._spans = list(wanted)
        self._starts = [span.lo for span in wanted]
        self._blocks: dict[Span, list[bytes]] = {}

    @property
    def missing(self) -> list[Span]:
        """The spans that are not complete, in order."""
        return list(self._wanted)

    def restart(self) -> None:
        """Forget the bytes of spans that are not complete.

        If these bytes counted, retries of a server that sends single bytes would never end.
        """
        self._blocks.clear()

    def write(self, at: int, data: bytes) -> None:
        """Take the next bytes of a span."""
        span = self._spans[bisect_right(self._starts, at) - 1]
        blocks = self._blocks.setdefault(span, [])
        blocks.append(data)
        if at + len(data) < span.hi:
            return
        self.arrived_bytes += span.size
        whole = b"".join(self._blocks.pop(span))
        for lo, hi in self._wanted.pop(span):
            self.pieces[Span(lo, hi)] = whole[lo - span.lo : hi - span.lo]

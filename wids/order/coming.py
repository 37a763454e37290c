"""Which shards a sequence of indices comes to, and where in it: what prefetching and eviction look ahead in.

Rules: datasets are asked, never imported, as in `wids.order.layout`. Only as much of the sequence is looked at as is
asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wids.order.layout import part_of, parts_of, to_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from wids.order.permutation import Indices


class Visit(NamedTuple):
    """A stretch of the sequence in which a shard is read.

    Attributes:
        first, last: positions in the sequence, both included.
        dataset: which of `Shards.datasets` the shard belongs to.
        shard: its number there.
    """

    first: int
    last: int
    dataset: int
    shard: int


class Shards:
    """The shard lists underneath a dataset, and which of their shards each of its indices is in.

    Args:
        dataset: a shard list (it has ``shard_ends``, an array of where each shard ends), a part of one, or a join.
        is_wanted: which shard lists to look at.

    Attributes:
        datasets: those shard lists.
    """

    def __init__(self, dataset: Any, is_wanted: Callable[[Any], bool]) -> None:
        self.datasets: list[Any] = []
        self._root, self._is_wanted = dataset, is_wanted
        self._indices: dict[int, Indices | range] = {}
        self._collect(dataset)

    def visits(self, blocks: Iterable[Indices]) -> Iterator[list[Visit]]:
        """The visits of each block of indices, in order of their first positions."""
        at = 0
        for block in blocks:
            yield sorted(self._visits(self._root, np.asarray(block, np.int64), np.arange(at, at + len(block))))
            at += len(block)

    def _collect(self, dataset: Any) -> None:
        if _ends(dataset) is not None:
            if self._is_wanted(dataset) and all(known is not dataset for known in self.datasets):
                self.datasets.append(dataset)
        elif (parts := parts_of(dataset)) is not None:
            for part in parts:
                self._collect(part)
        elif (part := part_of(dataset)) is not None:
            self._collect(part[0])
            if self.datasets:
                self._indices[id(dataset)] = part[1] if isinstance(part[1], range) else to_array(part[1])

    def _visits(self, dataset: Any, indices: Indices, positions: Indices) -> Iterator[Visit]:
        if not len(indices):
            return
        indices = np.where(indices < 0, indices + len(dataset), indices)  # as joins and parts themselves take them
        ends = _ends(dataset)
        if ends is not None:
            number = next((k for k, known in enumerate(self.datasets) if known is dataset), None)
            if number is None:
                return
            shards = np.searchsorted(ends, indices % max(int(ends[-1]), 1), side="right")
            # Positions ascend, so a stable sort by shard leaves each shard's first and last at its edges.
            order = np.argsort(shards, kind="stable")
            shards, positions = shards[order], positions[order]
            edges = np.flatnonzero(np.diff(shards)) + 1
            firsts, lasts = np.append(0, edges), np.append(edges, len(shards)) - 1
            for shard, first, last in zip(
                shards[firsts].tolist(), positions[firsts].tolist(), positions[lasts].tolist(), strict=True
            ):
                yield Visit(first, last, number, shard)
        elif (parts := parts_of(dataset)) is not None:
            lo = 0
            for part in parts:
                inside = (indices >= lo) & (indices < lo + len(part))
                yield from self._visits(part, indices[inside] - lo, positions[inside])
                lo += len(part)
        elif id(dataset) in self._indices:
            chosen, (inner, _) = self._indices[id(dataset)], part_of(dataset) or (None, None)
            below = chosen.start + chosen.step * indices if isinstance(chosen, range) else chosen[indices]
            yield from self._visits(inner, below, positions)


def _ends(dataset: Any) -> Indices | None:
    """Where the shards of a shard list end.

    None for what chooses samples by itself: a wrapper that hands attributes on, a subclass with a length of its own.
    """
    if not hasattr(type(dataset), "shard_ends"):
        return None
    ends: Indices = dataset.shard_ends
    return ends if len(dataset) == (int(ends[-1]) if len(ends) else 0) else None

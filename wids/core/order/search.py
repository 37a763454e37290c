"""At which positions of an order samples come: found in the windows of the lanes that mix their chunks, and no others.

Samples are those of the plans, before a regrouping. The wanted ones are sorted, each once: (nwanted,).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wids.core.order.epoch import pass_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wids.core.order.epoch import EpochOrder, Plan
    from wids.core.order.permutation import Indices

# Each lane that was searched keeps a window in memory; after so many of them they are dropped.
_LANES_AT_A_TIME = 64


def find_in_pass(
    make: Callable[[], EpochOrder], wanted: Indices, *, lo: int = 0, hi: int | None = None
) -> Iterator[tuple[int, int]]:
    """(position, sample) of those that lie at the positions ``lo .. hi`` of one pass, in no order.

    Memory: a window of each of 64 lanes at most.

    Args:
        make: makes the order of the pass.
        wanted: see the module.
        lo: the first position.
        hi: one past the last; None: the end of the pass.
    """
    order = make()
    end, places, lanes = len(order) if hi is None else hi, order.places_of(wanted), order.plan.lanes
    for count, lane in enumerate(lanes_of(order.plan, places, shift=order.shift)):
        if count and count % _LANES_AT_A_TIME == 0:
            order = make()
        for row, place in order.lane(lane).find(places):
            position = row * lanes + (lane - order.shift) % lanes
            if lo <= position < end:
                yield position, int(order.samples(np.array([place]))[0])


def find_in_stream(plan: Plan, wanted: Indices, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """(position, sample) of those at the positions ``start .. stop`` of passes that follow each other, in no order."""
    while len(plan) and len(wanted) and start < stop:
        at = start
        _, begin, end = pass_at(plan, at)
        part = {"lo": start - begin, "hi": min(stop, end) - begin}
        for position, sample in find_in_pass(lambda: pass_at(plan, at).order, wanted, **part):  # noqa: B023
            yield begin + position, sample
        start = end


def lanes_of(plan: Plan, places: Indices, *, shift: int = 0) -> list[int]:
    """The lanes that may hold some of the places of the range."""
    if plan.is_dealt:
        return [*range(plan.lanes)] if len(places) else []
    bounds = [plan.lo + plan.lane_bounds(lane, shift=shift)[0] for lane in range(plan.lanes)]
    edges = np.searchsorted(places, [*bounds, plan.hi])
    return np.flatnonzero(np.diff(edges)).tolist()

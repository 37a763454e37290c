"""At which positions of an order samples come: found in the windows of the lanes that mix their chunks, and no others.

Samples are those of the plans, before a regrouping. The wanted ones are sorted, each once: (nwanted,).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wids.core.order.epoch import Plan
    from wids.core.order.permutation import Indices

# Each lane that was searched keeps a window in memory; after so many of them they are dropped.
_LANES_AT_A_TIME = 64


def find_in_pass(
    plan: Plan, epoch: int, wanted: Indices, *, shift: int = 0, lo: int = 0, hi: int | None = None
) -> Iterator[tuple[int, int]]:
    """(position, sample) of those that lie at the positions ``lo .. hi`` of one pass, in no order.

    Memory: a window of each of 64 lanes at most.

    Args:
        plan: the order's.
        epoch: the pass.
        wanted: see the module.
        shift: see `wids.core.order.epoch.EpochOrder`.
        lo: the first position.
        hi: one past the last; None: the end of the pass.
    """
    end, order = len(plan) if hi is None else hi, plan.order(epoch, shift=shift)
    places = order.places_of(wanted)
    for count, lane in enumerate(lanes_of(plan, places, shift=shift)):
        if count and count % _LANES_AT_A_TIME == 0:
            order = plan.order(epoch, shift=shift)
        for row, place in order.lane(lane).find(places):
            position = row * plan.lanes + (lane - shift) % plan.lanes
            if lo <= position < end:
                yield position, int(order.samples(np.array([place]))[0])


def find_in_stream(plan: Plan, wanted: Indices, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """(position, sample) of those at the positions ``start .. stop`` of passes that follow each other, in no order."""
    n = len(plan)
    for number in range(start // n, -(-stop // n)) if n and len(wanted) else ():
        begin = number * n
        part = {"lo": max(start - begin, 0), "hi": min(stop - begin, n)}
        for at, sample in find_in_pass(plan, number, wanted, shift=begin % plan.lanes, **part):
            yield begin + at, sample


def lanes_of(plan: Plan, places: Indices, *, shift: int = 0) -> list[int]:
    """The lanes that may hold some of the places of the range."""
    if plan.is_dealt:
        return [*range(plan.lanes)] if len(places) else []
    bounds = [plan.lo + plan.lane_bounds(lane, shift=shift)[0] for lane in range(plan.lanes)]
    edges = np.searchsorted(places, [*bounds, plan.hi])
    return np.flatnonzero(np.diff(edges)).tolist()

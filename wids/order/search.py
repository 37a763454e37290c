"""At which positions of an order samples come: found by going through the lanes that may hold them, and no others.

Samples are those of the plans, before a regrouping. The wanted ones are sorted, each once: (nwanted,).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wids.order.epoch import EpochOrder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wids.order.epoch import Plan
    from wids.order.permutation import Indices

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
        shift: see `wids.order.epoch.EpochOrder`.
        lo: the first position.
        hi: one past the last; None: the end of the pass.
    """
    wanted = wanted[(wanted >= plan.lo) & (wanted < plan.hi)]
    end, missing = len(plan) if hi is None else hi, len(wanted)
    for count, lane in enumerate(lanes_of(plan, wanted, shift=shift)):
        if count % _LANES_AT_A_TIME == 0:
            order = EpochOrder(plan, epoch, shift=shift)
        left = _count_in_lane(plan, wanted, lane, shift)
        position = lo + (lane - shift - lo) % plan.lanes
        for block in order.blocks(position, end, plan.lanes):
            for k in matches(block, wanted):
                yield position + k * plan.lanes, int(block[k])
                missing, left = missing - 1, left - 1
            position += len(block) * plan.lanes
            if not left:  # a lane holds each of its samples once
                break
        if not missing:
            break


def find_in_stream(plan: Plan, wanted: Indices, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """(position, sample) of those at the positions ``start .. stop`` of passes that follow each other, in no order."""
    n = len(plan)
    for number in range(start // n, -(-stop // n)) if n and len(wanted) else ():
        begin = number * n
        part = {"lo": max(start - begin, 0), "hi": min(stop - begin, n)}
        for at, sample in find_in_pass(plan, number, wanted, shift=begin % plan.lanes, **part):
            yield begin + at, sample


def lanes_of(plan: Plan, wanted: Indices, *, shift: int = 0) -> list[int]:
    """The lanes that may hold some of the samples."""
    return [lane for lane in range(plan.lanes) if _count_in_lane(plan, wanted, lane, shift)]


def matches(block: Indices, wanted: Indices) -> list[int]:
    """Where in a block one of the samples is: (n,), (nwanted,) -> at most n."""
    if len(wanted) == 1:
        return np.flatnonzero(block == wanted[0]).tolist()
    at = np.searchsorted(wanted, block)
    at[at == len(wanted)] = 0
    return np.flatnonzero(wanted[at] == block).tolist()


def _count_in_lane(plan: Plan, wanted: Indices, lane: int, shift: int) -> int:
    """How many of the samples a lane holds, at most."""
    if plan.is_dealt and plan.is_shuffled:
        return len(wanted)
    lo, hi = plan.lane_bounds(lane, shift=shift)
    return int(np.searchsorted(wanted, plan.lo + hi) - np.searchsorted(wanted, plan.lo + lo))

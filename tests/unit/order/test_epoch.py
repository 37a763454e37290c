"""The global sequence of an epoch and the stream of epochs, against the model of the order."""

import re
import subprocess
import sys
import tracemalloc
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wids
from tests.model.order import Order, lists
from tests.support import paths
from tests.support.clocks import PATIENCE_SECONDS
from tests.support.examples import some
from tests.support.goldens import golden_lines
from wids.core.order import epoch as epochs
from wids.core.order.epoch import EpochOrder, Plan, Stream, end_position, nominal_start

RESHUFFLES = st.sampled_from(["fixed", "epoch"])
README = paths.ROOT / "wids" / "core" / "order" / "README.md"


def plan_of(n=0, *, lo=0, **options):
    """A plan over lo .. lo + n with whatever else a test says."""
    defaults = {"chunksize": 4, "window": 2, "lanes": 1, "is_shuffled": True, "seed": 1}
    return Plan(**{**defaults, "lo": lo, "hi": lo + n, **options})


def read(source, start, stop, step=1):
    """The indices of all blocks."""
    return [i for block in source.blocks(start, stop, step) for i in block.tolist()]


def model_of(plan):
    """The order that a plan means."""
    ends = () if plan.boundaries is None else tuple(plan.boundaries.tolist())
    names = ("lo", "hi", "lanes", "chunksize", "window", "seed", "reshuffle")
    return Order(shard_ends=ends, shuffle=plan.is_shuffled, **{name: getattr(plan, name) for name in names})


def model_sequence(plan, epoch, stop, shift=0):
    """G[0:stop] as the model says."""
    order = model_of(plan)
    return [order.sample(t, epoch, shift) for t in range(stop)]


def model_stream(plan, start, stop):
    """The same positions of all epochs, one after another."""
    order = model_of(plan)
    return [order.stream(t) for t in range(start, stop)]


CASES = [(n, lanes) for n in range(61) for lanes in range(1, 10)] + [(1009, 9), (2000, 4), (3001, 1), (3001, 7)]


@pytest.mark.parametrize("reshuffle", ["fixed", "epoch"])
@pytest.mark.parametrize("is_shuffled", [True, False])
def test_the_sequence_is_what_the_model_says(is_shuffled, reshuffle):
    """G[t] = lane[t % L][t // L], each sample once, for every n and L; every W reads it, pads are the lane's."""
    for k, (n, lanes) in some(enumerate(CASES), every=31):
        options = {
            "chunksize": (1, 3, 16, 70)[k % 4],
            "window": (1, 2, 5)[k % 3],
            "boundaries": np.array([3, 9, 9, 40]),
        }
        plan = plan_of(n, lo=2, lanes=lanes, is_shuffled=is_shuffled, reshuffle=reshuffle, seed=k, **options)
        expected = model_sequence(plan, 5, n + 9 if n else 0)
        assert sorted(expected[:n]) == list(range(2, 2 + n))
        order = EpochOrder(plan, 5)
        for world in range(1, 10):
            stop = end_position(n, start=0, world=world, tail="pad")
            found = [read(order, rank, stop, world) for rank in range(world)]
            assert [len(indices) for indices in found] == [stop // world] * world
            assert [i for row in zip(*found, strict=True) for i in row] == expected[:stop]


@given(
    n=st.integers(1, 300),
    lo=st.sampled_from([0, 7, 1 << 40]),
    shards=st.lists(st.integers(0, 310), max_size=9),
    lanes=st.integers(1, 40),
    shift=st.integers(0, 39),
    window=st.integers(1, 6),
    chunksize=st.integers(1, 50),
    reshuffle=RESHUFFLES,
    start=st.integers(0, 400),
    count=st.integers(0, 60),
    step=st.integers(1, 80),
)
def test_any_part_of_the_sequence(n, lo, shards, lanes, shift, window, chunksize, reshuffle, start, count, step):
    """Any start and step give what the whole sequence has there, without what comes before, shifted lanes too."""
    options = {"window": window, "chunksize": chunksize, "boundaries": np.array(sorted(shards), np.int64) + lo}
    plan = plan_of(n, lo=lo, lanes=lanes, reshuffle=reshuffle, **options)
    stop = start + count * step
    expected = model_sequence(plan, 1, stop, shift % lanes)[start:stop:step]
    assert read(EpochOrder(plan, 1, shift=shift % lanes), start, stop, step) == expected


def test_large_steps_and_blocks():
    """Sequences longer than a block, with many lanes at once, come whole."""
    for lanes, world in some([(1, 3), (1, 1), (64, 48), (64, 64), (48, 1), (7, 64)], every=2):
        plan = plan_of(20_011, lanes=lanes, chunksize=100)
        found = [read(EpochOrder(plan, 0), rank, 20_011, world) for rank in range(world)]
        assert sorted(chain(*found)) == list(range(20_011))


def test_a_rank_reads_its_own_lane_when_there_are_as_many():
    """W = L: rank r reads lane r and no other, pads included (n >= L)."""
    for n in range(5, 60):
        for lanes in range(1, 6):
            plan = plan_of(n, lanes=lanes)
            stop = end_position(n, start=0, world=lanes, tail="pad")
            for rank in range(lanes):
                lo, hi = plan.lane_bounds(rank)
                assert set(read(EpochOrder(plan, 0), rank, stop, lanes)) == set(range(lo, hi))


def test_lanes_do_not_go_through_their_chunks_alike():
    """Lanes of equally many chunks take them in different orders."""
    plan = plan_of(1000, lanes=4, chunksize=10, window=1)
    orders = {tuple(np.array(lane)[::10] // 10 % 25) for lane in lists(model_of(plan), 0, 0)}
    assert len(orders) == 4


def test_dealt_lanes_change_and_fixed_ones_stay():
    """Over the epochs a lane keeps its part of the range, or is dealt another one."""
    for reshuffle in ("fixed", "epoch"):
        plan = plan_of(120, lanes=3, reshuffle=reshuffle)
        parts = {frozenset(read(EpochOrder(plan, epoch), 0, 120, 3)) for epoch in range(6)}
        assert len(parts) == (6 if reshuffle == "epoch" else 1)


def test_lane_bounds_cover_the_range():
    """Lanes are consecutive and cover the range; those from the shift on are longer by one, exactly at any size."""
    for n in [*range(25), (1 << 60) + 3]:
        for lanes in range(1, 8):
            for shift in range(lanes):
                bounds = [plan_of(n, lanes=lanes).lane_bounds(lane, shift=shift) for lane in range(lanes)]
                assert [0, *(hi for _, hi in bounds)] == [*(lo for lo, _ in bounds), n]
                longer = [(lane - shift) % lanes < n % lanes for lane in range(lanes)]
                assert [hi - lo for lo, hi in bounds] == [n // lanes + is_longer for is_longer in longer]


def test_nothing_cannot_be_repeated():
    """An empty sequence is empty; to ask it for a sample is an error, not a short epoch."""
    for plan in (plan_of(0), plan_of(0, lanes=3), plan_of(chunks=np.array([[3, 3], [4, 4]]))):
        assert read(EpochOrder(plan, 0), 0, 0) == []
        with pytest.raises(ValueError, match="out of ranges that hold none"):
            read(EpochOrder(plan, 0), 0, 2)


def test_chunks_of_the_callers():
    """A plan of chunks holds theirs, in permuted order, and goes round when more are asked for."""
    plan = plan_of(chunks=np.array([[10, 14], [3, 5], [20, 21]]))
    once = read(EpochOrder(plan, 0), 0, 7)
    assert sorted(once) == [3, 4, 10, 11, 12, 13, 20]
    for stop in range(30):
        assert read(EpochOrder(plan, 0), 0, stop) == (once * 5)[:stop]
    plain = plan_of(chunks=plan.chunks, is_shuffled=False)
    assert read(EpochOrder(plain, 0), 0, 7) == [10, 11, 12, 13, 3, 4, 20]


# --- ends


def test_ends_are_equal_counts():
    """From any position, all ranks get equally many: up to the end or past it by fewer than W, or short of it."""
    for n in range(40):
        for world in range(1, 10):
            for start in range(n + 12):
                for tail in ("pad", "mask", "drop"):
                    end = end_position(n, start=start, world=world, tail=tail)
                    assert end >= start
                    assert (end - start) % world == 0
                    if tail == "drop":
                        assert end == start or n - world < end <= n
                    else:
                        assert end == start if start >= n else n <= end < n + world


def test_nominal_epochs_leave_no_gap():
    """Nominal epochs begin where all ranks have had equally many, at e * size or less than W after it, and in order."""
    for size in range(1, 20):
        for world in range(1, 8):
            for origin in range(25):
                starts = [nominal_start(e, size=size, origin=origin, world=world) for e in range(30)]
                assert starts == sorted(starts)
                for epoch, start in enumerate(starts):
                    assert (start - origin) % world == 0
                    assert epoch * size <= start < epoch * size + world


# --- streams


@given(
    n=st.integers(1, 50),
    lanes=st.integers(1, 12),
    reshuffle=RESHUFFLES,
    start=st.integers(0, 400),
    step=st.integers(1, 60),
)
def test_a_stream_is_pass_after_pass(n, lanes, reshuffle, start, step):
    """A pass holds each sample once in an order of its own; position T is in lane T % L; any part is as the whole."""
    plan = plan_of(n, lanes=lanes, reshuffle=reshuffle, chunksize=3)
    stop = 8 * n
    whole = read(Stream(plan), 0, stop)
    assert whole == model_stream(plan, 0, stop)
    for number in range(8):
        assert sorted(whole[number * n : (number + 1) * n]) == list(range(n))
    assert read(Stream(plan), start, stop, step) == whole[start:stop:step]
    if reshuffle == "fixed":
        for lane in range(lanes):
            bounds = [plan.lane_bounds(lane, shift=number * n % lanes) for number in range(8)]
            spread = range(min(lo for lo, _ in bounds), max(hi for _, hi in bounds))
            assert set(whole[lane::lanes]) <= set(spread)
            assert len(spread) <= -(-n // lanes) + lanes


def test_a_stream_has_no_end():
    """Without a stop, a stream goes on; a stream of nothing ends at once."""
    blocks = Stream(plan_of(7)).blocks(3, None, 5)
    assert sum(len(next(blocks)) for _ in range(100)) >= 100
    assert list(Stream(plan_of(0)).blocks(0, None)) == []
    assert read(Stream(plan_of(0)), 0, 5) == []


# --- cost, purity


@pytest.mark.parametrize(("lanes", "world", "reshuffle"), [(64, 64, "fixed"), (64, 48, "fixed"), (64, 64, "epoch")])
@pytest.mark.parametrize("start", [0, 500_000_000])
def test_a_billion_samples_cost_chunks_and_a_window(lanes, world, reshuffle, start):
    """1e9 samples in 1e5 shards: the first index of a rank, at the start or from the middle on, takes little memory."""
    boundaries = np.arange(1, 100_001) * 10_000
    plan = plan_of(10**9, boundaries=boundaries, lanes=lanes, chunksize=2000, window=4, reshuffle=reshuffle)
    tracemalloc.start()
    try:
        first = next(EpochOrder(plan, 3).blocks(start + 7, 10**9, world))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0 <= first.min() <= first.max() < 10**9
    assert peak_bytes < (100e6 if reshuffle == "epoch" else 40e6)


def test_orders_are_pinned():
    """The orders of `lanes.txt` never change, and are those of the model: saved runs resume in them."""
    lines = golden_lines("lanes.txt")
    assert len(lines) == 12
    for line in lines:
        arguments, indices = line.split(":")
        kind, *numbers = arguments.split()
        n, lo, lanes, chunksize, window, is_shuffled, is_dealt, seed, epoch = map(int, numbers)
        plan = plan_of(
            n,
            lo=lo,
            boundaries=np.array([5, 5, 14, 23]),
            chunksize=chunksize,
            window=window,
            lanes=lanes,
            is_shuffled=bool(is_shuffled),
            reshuffle="epoch" if is_dealt else "fixed",
            seed=seed,
        )
        pinned = [int(i) for i in indices.split()]
        if kind == "stream":
            start, stop = epoch * n, (epoch + 2) * n
            found, said = read(Stream(plan), start, stop), model_stream(plan, start, stop)
        else:
            found, said = read(EpochOrder(plan, epoch), 0, n + lanes), model_sequence(plan, epoch, n + lanes)
        assert found == pinned, line
        assert said == pinned, line


def test_the_same_order_in_another_process():
    """Another process, with another hash seed and without torch, computes the same order."""
    program = (
        "import sys\n"
        "from wids.core.order.epoch import EpochOrder, Plan\n"
        "plan = Plan(lo=0, hi=200, chunksize=9, window=3, lanes=5, is_shuffled=True, reshuffle='epoch', seed=5)\n"
        "print(*[i for block in EpochOrder(plan, 6).blocks(0, 200) for i in block.tolist()])\n"
        "assert 'torch' not in sys.modules\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(Path(wids.__file__).parents[1]), "PYTHONHASHSEED": "77"},
        check=True,
        timeout=PATIENCE_SECONDS,
        capture_output=True,
        text=True,
    ).stdout
    plan = plan_of(200, chunksize=9, window=3, lanes=5, reshuffle="epoch", seed=5)
    assert [int(i) for i in found.split()] == read(EpochOrder(plan, 6), 0, 200)


# --- pictures


@pytest.mark.parametrize("text", [epochs.__doc__, README.read_text(encoding="utf-8")], ids=["docstring", "README"])
def test_the_picture_is_true(text):
    """Lanes, G and who reads what, as drawn: what a rank gets is what comes out, repetitions in brackets."""
    plan = plan_of(10, lanes=4, is_shuffled=False)
    order = EpochOrder(plan, 0)
    line = next(line for line in text.splitlines() if "lane 3:" in line)
    drawn = {int(lane): [int(i) for i in cells.split()] for lane, cells in re.findall(r"lane (\d):((?: \d+)+)", line)}
    assert drawn == dict(enumerate(lists(model_of(plan), 0, 0)))
    sequence = re.search(r"G = ((?:\d ?)+)", text)[1]
    assert [int(i) for i in sequence.split()] == read(order, 0, 10)
    pictures = [line for line in text.splitlines() if re.search(r"W = \d, (pad|drop)", line)]
    assert len(pictures) == 4
    for line in pictures:
        world, tail = re.search(r"W = (\d), (\w+)", line).groups()
        ranks = re.findall(r"rank (\d):((?: \[?\d+\]?)+)", line)
        assert [int(rank) for rank, _ in ranks] == list(range(int(world)))
        end = end_position(10, start=0, world=int(world), tail=tail)
        for rank, cells in ranks:
            found = read(order, int(rank), end, int(world))
            positions = range(int(rank), end, int(world))
            shown = [f"{i}" if t < 10 else f"[{i}]" for i, t in zip(found, positions, strict=True)]
            assert cells.split() == shown
        if left := re.search(r"(\d)(?: and (\d))? left out", line):
            assert {int(i) for i in left.groups() if i} == set(read(order, end, 10))

"""Lanes: chunks, parts of chunks, and rows of mixed windows, each against the model of the order."""

import re
from itertools import chain, pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.model.order import Order
from wids.core.order import lane as lanes
from wids.core.order.lane import Lane, cut_chunks, expand, slice_chunks


@given(
    lengths=st.lists(st.integers(0, 30), max_size=12),
    cut=st.tuples(st.integers(0, 400), st.integers(0, 400)),
    chunksize=st.integers(1, 70),
)
def test_chunks_end_at_shard_boundaries_and_at_chunksize(lengths, cut, chunksize):
    """Whatever part of the shards the lane is, and with empty shards."""
    ends = np.cumsum(lengths, dtype=np.int64)
    lo, hi = sorted(min(place, sum(lengths)) for place in cut)
    chunks = cut_chunks(lo, hi, chunksize=chunksize, boundaries=ends)
    assert chunks.dtype == np.int64
    assert chunks.shape == (len(chunks), 2)
    model = Order(hi=hi, shard_ends=tuple(ends.tolist()), chunksize=chunksize)
    assert [range(*chunk) for chunk in chunks.tolist()] == model.cut(lo, hi)


def test_chunks_without_boundaries_are_even():
    """Without shards, chunks are all of chunksize, but the last."""
    for n in range(30):
        for chunksize in range(1, 35):
            chunks = cut_chunks(3, 3 + n, chunksize=chunksize)
            expected = [[i, min(i + chunksize, 3 + n)] for i in range(3, 3 + n, chunksize)]
            assert chunks.tolist() == expected


chunk_lists = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 12)), max_size=12).map(
    lambda pairs: np.array([(lo, lo + size) for lo, size in pairs], np.int64).reshape(-1, 2)
)


def samples_of(chunks):
    """All samples of chunks in turn."""
    return [i for lo, hi in chunks.tolist() for i in range(lo, hi)]


@given(chunks=chunk_lists)
def test_chunks_expand_to_their_samples(chunks):
    """Chunks in any order, empty ones too, become their samples in turn."""
    found = expand(chunks)
    assert found.dtype == np.int64
    assert found.tolist() == samples_of(chunks)


@given(chunks=chunk_lists, cut=st.tuples(st.integers(0, 150), st.integers(0, 150)))
def test_a_slice_of_chunks_is_a_slice_of_their_samples(chunks, cut):
    """Any part of all the samples comes as chunks that hold just these, and the chunks given are left alone."""
    before = chunks.copy()
    everything = samples_of(chunks)
    first, last = sorted(min(place, len(everything)) for place in cut)
    part = slice_chunks(chunks, np.cumsum(chunks[:, 1] - chunks[:, 0]), first, last)
    assert samples_of(part) == everything[first:last]
    assert np.array_equal(chunks, before)


@given(sizes=st.lists(st.integers(0, 9), max_size=14), window=st.integers(1, 16), seed=st.integers(0, 3))
def test_a_chunk_is_spread_evenly_over_its_slots(sizes, window, seed):
    """Slot k draws on chunks k .. k + window - 1 alone, and on each for its share of them, rounded down or up."""
    ends = np.cumsum([0, *sizes])
    chunks = np.array([*pairwise(ends)], np.int64).reshape(-1, 2)
    lane = Lane(chunks, window=window, seed=seed, epoch=0, is_shuffled=True)
    rows = lane.rows(0, len(lane)).tolist()
    assert sorted(rows) == samples_of(chunks)
    window = min(window, max(len(sizes), 1))
    nslots = len(sizes) - window + 1 if sizes else 0
    starts = lane.slot_starts().tolist()
    assert starts == sorted(starts)
    assert len(starts) == nslots + 1
    assert starts[-1] == len(rows)
    for k in range(nslots):
        slot = rows[starts[k] : starts[k + 1]]
        for j, (lo, hi) in enumerate(chunks.tolist()):
            holders = sum(k <= j < k + window for k in range(nslots))
            share, more = divmod(hi - lo, holders)
            count = sum(lo <= i < hi for i in slot)
            assert count in ((share, share + bool(more)) if k <= j < k + window else (0,))


@given(
    chunks=chunk_lists,
    window=st.integers(1, 15),
    is_shuffled=st.booleans(),
    asked=st.lists(st.tuples(st.integers(0, 150), st.integers(0, 60), st.integers(1, 25)), min_size=1, max_size=5),
)
def test_any_rows_of_a_lane(chunks, window, is_shuffled, asked):
    """Rows come as the model has them: any first, count and stride, forwards and back again."""
    model = Order(hi=0, window=window, seed=3, shuffle=is_shuffled)
    rows = model.mix([range(lo, hi) for lo, hi in chunks.tolist()], 2)
    lane = Lane(chunks, window=window, seed=3, epoch=2, is_shuffled=is_shuffled)
    assert len(lane) == len(rows)
    for first, most, stride in asked:
        count = min(most, len(range(first, len(rows), stride)))
        found = lane.rows(first, count, stride)
        assert found.dtype == np.int64
        assert found.tolist() == rows[first::stride][:count]


def test_a_window_of_one_mixes_each_chunk_by_itself():
    """With window 1 the chunks come whole, in the order given, each a permutation of itself and unlike the others."""
    chunks = cut_chunks(0, 400, chunksize=20)
    rows = Lane(chunks, window=1, seed=0, epoch=0, is_shuffled=True).rows(0, 400).reshape(20, 20)
    assert [sorted(row) for row in rows.tolist()] == [list(range(lo, hi)) for lo, hi in chunks.tolist()]
    assert len({tuple((row - row.min()).tolist()) for row in rows}) == 20


def test_a_window_draws_on_all_its_chunks():
    """With window 4 every 50 samples hold some of four chunks at least, and never of more than of two windows."""
    chunks = cut_chunks(0, 1600, chunksize=100)
    rows = Lane(chunks, window=4, seed=0, epoch=0, is_shuffled=True).rows(0, 1600)
    for part in rows.reshape(32, 50):
        found = set((part // 100).tolist())
        assert len(found) >= 4
        assert max(found) - min(found) <= 4


def test_a_window_larger_than_the_lane():
    """A window of more chunks than there are, however many, mixes the whole lane at once."""
    chunks = cut_chunks(0, 50, chunksize=7)
    rows = [Lane(chunks, window=w, seed=1, epoch=0, is_shuffled=True).rows(0, 50).tolist() for w in (8, 9, 1 << 70)]
    assert rows[0] == rows[1] == rows[2]
    assert len({i // 7 for i in rows[0][:16]}) >= 5


def test_a_lane_keeps_one_window():
    """What a lane holds are the chunks of one window, not all that were read; none, where none is read again."""
    lane = Lane(cut_chunks(0, 10_000, chunksize=10), window=2, seed=0, epoch=0, is_shuffled=True)
    found = lane.rows(0, 9000).tolist()
    assert sum(map(len, lane._permuted.values())) == 20
    assert len({*found, *lane.rows(9000, 1000).tolist()}) == 10_000
    assert not lane._permuted


def test_the_picture_of_a_lane_is_true():
    """What the docstring of `wids.core.order.lane` draws: chunks cut, permuted, and mixed two at a time."""
    chunks, shuffled, window = (
        [[int(i) for i in cell.split()] for cell in re.findall(r"[\[{]([\d ]+)[\]}]", line)]
        for line in lanes.__doc__.splitlines()
        if re.match(r" +(chunks|shuffled|window)\b", line)
    )
    assert list(chain(*chunks)) == list(range(8))
    assert chunks == [list(range(lo, hi)) for lo, hi in cut_chunks(0, 8, chunksize=3).tolist()]
    assert sorted(shuffled) == chunks
    assert shuffled != chunks
    rows = Lane(np.array([(cell[0], cell[-1] + 1) for cell in shuffled]), window=2, seed=0, epoch=0, is_shuffled=True)
    assert list(chain(*window)) == rows.rows(0, 8).tolist()
    assert [len(cell) for cell in window] == [*np.diff(rows.slot_starts())]

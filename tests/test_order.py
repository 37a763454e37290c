"""Order: permutations, lanes, chunks, and the order of a lane, each against a slow oracle in plain Python."""

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import wids
from wids.order import epoch as epochs
from wids.order.arguments import parse_int, parse_range, parse_ranges, shard_ends
from wids.order.epoch import cut_chunks, iterate_chunks, iterate_lane, lane_bounds, lane_length, lane_source
from wids.order.permute import CHUNKS, SAMPLES, permutation

GOLDEN = Path(__file__).parent / "golden"
WORD = 1 << 64

# Philox4x64-10 known answers, counter and key -> block: `kat_vectors` of Random123, the reference implementation of
# Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (little-endian words).
KNOWN_ANSWERS = [
    ([0] * 4, [0] * 2, [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]),
    (
        [WORD - 1] * 4,
        [WORD - 1] * 2,
        [0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0],
    ),
    (
        [0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89],
        [0x452821E638D01377, 0xBE5466CF34E90C6C],
        [0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6],
    ),
]


def philox_block(counter, key):
    """Philox4x64-10 as the paper defines it, in Python integers."""
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(10):
        left, right = x0 * 0xD2E7470EE14C6C93, x2 * 0xCA5A826395121157
        x0, x1, x2, x3 = right // WORD ^ x1 ^ k0, right % WORD, left // WORD ^ x3 ^ k1, left % WORD
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) % WORD, (k1 + 0xBB67AE8584CAA73B) % WORD
    return [x0, x1, x2, x3]


def slow_permutation(n, *, seed, epoch, stream, position=0):
    """What `permutation` promises: indices sorted by words, blocks 1, 2, ... of (seed, stream; position, epoch)."""
    words = []
    for block in range(1, n // 4 + 2):
        counter = [block, position % WORD, epoch % WORD, epoch // WORD % WORD]
        words += philox_block(counter, [seed % WORD, stream])
    return sorted(range(n), key=words.__getitem__)


@pytest.mark.parametrize(("counter", "key", "block"), KNOWN_ANSWERS)
def test_philox_known_answers(counter, key, block):
    """The raw words of numpy, and this file's oracle, are the published Philox4x64-10."""
    assert philox_block(counter, key) == block
    # numpy counts up before it makes a block.
    before = (sum(word << 64 * i for i, word in enumerate(counter)) - 1) % (1 << 256)
    words = np.array([before >> 64 * i & WORD - 1 for i in range(4)], np.uint64)
    raw = np.random.Philox(counter=words, key=np.array(key, np.uint64)).random_raw(4)
    assert raw.tolist() == block


any_int = st.integers(-(1 << 130), 1 << 130)


@settings(deadline=None)
@given(n=st.integers(0, 40), seed=any_int, epoch=any_int, stream=st.sampled_from([CHUNKS, SAMPLES]), position=any_int)
def test_permutation_is_the_argsort_of_philox_words(n, seed, epoch, stream, position):
    """A permutation sorts the indices by Philox words, for any integers as seed, epoch and position."""
    found = permutation(n, seed=seed, epoch=epoch, stream=stream, position=position)
    assert found.tolist() == slow_permutation(n, seed=seed, epoch=epoch, stream=stream, position=position)


@pytest.mark.parametrize("n", [*range(70), 1000, 100_003])
def test_permutation_is_a_bijection(n):
    """Every one of 0 .. n-1 comes once, as int64."""
    found = permutation(n, seed=3, epoch=4, stream=SAMPLES, position=5)
    assert found.dtype == np.int64
    assert np.array_equal(np.sort(found), np.arange(n))


def test_permutation_depends_on_each_argument():
    """Another seed, epoch, stream or position is another permutation."""
    base = {"seed": 1, "epoch": 2, "stream": CHUNKS, "position": 3}
    others = [{**base, name: value + 1} for name, value in base.items()]
    swaps = [{**base, "seed": 2, "epoch": 1}, {**base, "epoch": 3, "position": 2}, {**base, "epoch": 2 + WORD}]
    orders = {tuple(permutation(50, **arguments).tolist()) for arguments in [base, *others, *swaps]}
    assert len(orders) == 1 + len(others) + len(swaps)


def test_permutation_ignores_and_leaves_the_global_generators():
    """The global random state of numpy neither decides a permutation nor is advanced by it."""
    np.random.seed(1)  # noqa: NPY002 - the global state is what this is about
    first = permutation(100, seed=0, epoch=0, stream=CHUNKS).tolist()
    drawn = np.random.random()  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    assert drawn == np.random.random()  # noqa: NPY002
    assert permutation(100, seed=0, epoch=0, stream=CHUNKS).tolist() == first


def test_permutations_are_pinned():
    """The permutations of `golden/permutations.txt` never change: saved runs resume from them."""
    lines = [line for line in (GOLDEN / "permutations.txt").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == 8
    for line in lines:
        arguments, indices = line.split(":")
        n, seed, epoch, stream, position = map(int, arguments.split())
        found = permutation(n, seed=seed, epoch=epoch, stream=stream, position=position)
        assert found.tolist() == [int(i) for i in indices.split()], arguments


# --- lanes


def test_lanes_cover_the_range_in_order():
    """Lanes are consecutive, cover the range exactly, and differ by at most one sample."""
    for n in range(70):
        for world in range(1, 12):
            lanes = [lane_bounds(5, 5 + n, rank=rank, world=world) for rank in range(world)]
            assert lanes[0][0] == 5
            assert lanes[-1][1] == 5 + n
            assert all(a[1] == b[0] for a, b in pairwise(lanes))
            sizes = {hi - lo for lo, hi in lanes}
            assert sizes <= {lane_length(n, world=world, tail="drop"), lane_length(n, world=world, tail="pad")}


def test_lane_source_is_the_lane_or_one_borrowed_sample():
    """A lane reads what it owns; without any it borrows one sample of the range; of an empty range there is nothing."""
    for n in range(20):
        for world in range(1, 12):
            for rank in range(world):
                own = lane_bounds(7, 7 + n, rank=rank, world=world)
                lo, hi = lane_source(7, 7 + n, rank=rank, world=world)
                if own[0] < own[1] or n == 0:
                    assert (lo, hi) == own
                else:
                    assert 7 <= lo < hi == lo + 1 <= 7 + n


def test_borrowed_samples_are_spread():
    """Lanes without a sample of their own do not all borrow the same one."""
    borrowed = [lane_source(0, 4, rank=rank, world=64) for rank in range(64)]
    counts = [borrowed.count((i, i + 1)) for i in range(4)]
    assert max(counts) - min(counts) <= 4


def test_lane_length():
    """Pad rounds up, drop rounds down, and nothing of nothing is nothing."""
    assert [lane_length(n, world=4, tail="pad") for n in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]
    assert [lane_length(n, world=4, tail="drop") for n in (0, 1, 4, 5, 8)] == [0, 0, 1, 1, 2]


def test_large_lanes_are_exact():
    """No rounding at sizes beyond 2**53."""
    n, world = (1 << 60) + 1, 3
    lanes = [lane_bounds(0, n, rank=rank, world=world) for rank in range(world)]
    assert sum(hi - lo for lo, hi in lanes) == n
    assert {hi - lo for lo, hi in lanes} == {n // 3, n // 3 + 1}


def test_the_picture_is_true():
    """The lanes drawn in the docstring of `wids.order.epoch` are what comes out; a repetition stands in brackets."""
    pictures = 0
    n = world = 0
    for line in epochs.__doc__.splitlines():
        if sizes := re.search(r"n = (\d+), +world = (\d+)", line):
            n, world = map(int, sizes.groups())
        if tail := re.search(r'tail = "(\w+)"', line):
            pictures += 1
            drawn = re.findall(r"lane (\d): *((?:\[?\d+\]? ?)*)", line)
            assert [int(rank) for rank, _ in drawn] == list(range(world))
            assert [cells.split() for _, cells in drawn] == [
                lane_as_drawn(n, rank=rank, world=world, tail=tail[1]) for rank in range(world)
            ]
    assert pictures == 4


def lane_as_drawn(n, *, rank, world, tail):
    """The cells of a lane: what it owns plain, once, and everything else in brackets."""
    chunks = cut_chunks(*lane_source(0, n, rank=rank, world=world), chunksize=n)
    length = lane_length(n, world=world, tail=tail)
    own = set(range(*lane_bounds(0, n, rank=rank, world=world)))
    cells = []
    for i in iterate_lane(chunks, length=length, seed=0, epoch=0, is_shuffled=False):
        cells.append(f"{i}" if i in own else f"[{i}]")
        own.discard(i)
    return cells


# --- chunks


def slow_chunks(lo, hi, *, chunksize, boundaries):
    """Walk sample by sample; a new chunk where a shard begins and where the chunk is full."""
    chunks = []
    for i in range(lo, hi):
        if not chunks or i in boundaries or i - chunks[-1][0] == chunksize:
            chunks.append((i, i + 1))
        else:
            chunks[-1] = (chunks[-1][0], i + 1)
    return chunks


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(0, 30), max_size=12),
    cut=st.tuples(st.integers(0, 400), st.integers(0, 400)),
    chunksize=st.integers(1, 70),
)
def test_chunks_end_at_shard_boundaries_and_at_chunksize(lengths, cut, chunksize):
    """Chunks are those of a walk over the samples, whatever part of the shards the lane is and with empty shards."""
    ends = np.cumsum(lengths, dtype=np.int64)
    lo, hi = sorted(min(place, sum(lengths)) for place in cut)
    chunks = cut_chunks(lo, hi, chunksize=chunksize, boundaries=ends)
    assert chunks.dtype == np.int64
    assert chunks.shape == (len(chunks), 2)
    found = [tuple(chunk) for chunk in chunks.tolist()]
    assert found == slow_chunks(lo, hi, chunksize=chunksize, boundaries=set(ends.tolist()))


def test_chunks_without_boundaries_are_even():
    """Without shards, chunks are all of chunksize, but the last."""
    for n in range(30):
        for chunksize in range(1, 35):
            chunks = cut_chunks(3, 3 + n, chunksize=chunksize)
            expected = [[i, min(i + chunksize, 3 + n)] for i in range(3, 3 + n, chunksize)]
            assert chunks.tolist() == expected


def test_shuffled_chunks_come_whole():
    """Chunks come in another order, each a permutation of itself; chunk order and samples are pure in (seed, epoch)."""
    chunks = cut_chunks(10, 60, chunksize=8)
    found = [part.tolist() for part in iterate_chunks(chunks, seed=1, epoch=2, is_shuffled=True)]
    order = slow_permutation(len(chunks), seed=1, epoch=2, stream=CHUNKS)
    expected = []
    for lo, hi in chunks[order].tolist():
        expected.append([lo + i for i in slow_permutation(hi - lo, seed=1, epoch=2, stream=SAMPLES, position=lo)])
    assert found == expected
    assert order != sorted(order)


def test_unshuffled_chunks_come_as_they_are():
    """Without shuffling the ranges come in the order given."""
    chunks = np.array([[5, 8], [0, 2]])
    assert [p.tolist() for p in iterate_chunks(chunks, seed=1, epoch=2, is_shuffled=False)] == [[5, 6, 7], [0, 1]]


def test_a_chunk_is_mixed_apart_from_its_neighbours():
    """Chunks of equal length are mixed differently, and do not share a permutation with the chunk order."""
    chunks = cut_chunks(0, 400, chunksize=20)
    mixes = {tuple((p - p.min()).tolist()) for p in iterate_chunks(chunks, seed=0, epoch=0, is_shuffled=True)}
    assert len(mixes) == 20
    assert tuple(permutation(20, seed=0, epoch=0, stream=CHUNKS).tolist()) not in mixes


def test_a_lane_goes_round_and_stops_early():
    """Exactly `length` indices: the first ones again where the chunks hold fewer, cut off where they hold more."""
    chunks = cut_chunks(0, 7, chunksize=3)
    once = list(iterate_lane(chunks, length=7, seed=0, epoch=0, is_shuffled=True))
    assert sorted(once) == list(range(7))
    for length in range(30):
        found = list(iterate_lane(chunks, length=length, seed=0, epoch=0, is_shuffled=True))
        assert found == (once * 5)[:length]


def test_a_lane_of_nothing():
    """No sample asked of no chunk is an empty lane; any sample asked of it is an error, not a short epoch."""
    for chunks in (np.zeros((0, 2), np.int64), np.array([[3, 3], [4, 4]])):
        assert list(iterate_lane(chunks, length=0, seed=0, epoch=0, is_shuffled=True)) == []
        with pytest.raises(ValueError, match=r"2 samples are to come out of ranges that hold none"):
            list(iterate_lane(chunks, length=2, seed=0, epoch=0, is_shuffled=True))


def test_the_same_order_in_another_process():
    """Another process, with another hash seed and without torch, computes the same order."""
    program = (
        "import sys\n"
        "from wids.order.epoch import cut_chunks, iterate_lane\n"
        "print(*iterate_lane(cut_chunks(0, 200, chunksize=9), length=200, seed=5, epoch=6, is_shuffled=True))\n"
        "assert 'torch' not in sys.modules\n"
    )
    root = str(Path(wids.__file__).parents[1])
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": root, "PYTHONHASHSEED": "77"},
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    ).stdout
    here = iterate_lane(cut_chunks(0, 200, chunksize=9), length=200, seed=5, epoch=6, is_shuffled=True)
    assert [int(i) for i in found.split()] == list(here)


# --- arguments


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3), np.array(3), torch.tensor(3)])
def test_any_integer_is_an_int(value):
    """Python, numpy and torch integers come out as int."""
    assert type(parse_int("x", value)) is int
    assert parse_int("x", value, least=3) == 3
    assert parse_range(value, n=5) == (0, 3)


@pytest.mark.parametrize("value", [3.5, "3", None, np.float64(3), [3], np.array([3, 4])])
def test_no_integer_is_named(value):
    """What is no integer is a ValueError that names the argument and shows the value."""
    with pytest.raises(ValueError, match=r"^chunksize is .*; it is an integer$"):
        parse_int("chunksize", value)


def test_too_small_is_named():
    """A value below the least allowed is a ValueError that says all three."""
    with pytest.raises(ValueError, match=r"^chunksize is 0; it is at least 1$"):
        parse_int("chunksize", 0, least=1)


@pytest.mark.parametrize(
    ("value", "bounds"),
    [(None, (0, 9)), (0, (0, 0)), (9, (0, 9)), ((2, 5), (2, 5)), ([4, 4], (4, 4)), (np.array([2, 9]), (2, 9))],
)
def test_a_range_is_a_count_or_a_pair(value, bounds):
    """None is all, k the first k, a pair itself; plain ints come out."""
    found = parse_range(value, n=9)
    assert found == bounds
    assert [type(bound) for bound in found] == [int, int]


@pytest.mark.parametrize("value", [10, -1, (3, 10), (-1, 3), (5, 3)])
def test_a_range_lies_in_the_dataset(value):
    """A range that is not inside the dataset is refused by name."""
    with pytest.raises(ValueError, match=r"^num_samples is .* is not inside a dataset of 9$"):
        parse_range(value, n=9)


@pytest.mark.parametrize("value", [2.5, "ab", "abc", (1, 2, 3), (1,), (1, 2.5), [[1, 2], [3]], ()])
def test_a_range_is_nothing_else(value):
    """What is neither a count nor a pair is refused by name."""
    with pytest.raises(ValueError, match=r"^num_samples is .*; it is a number of samples or a pair lo, hi$"):
        parse_range(value, n=9)


def test_ranges_are_pairs():
    """Pairs of integers become chunks, in the order given; none is (0, 2)."""
    assert parse_ranges([(4, 6), (np.int64(0), 4), [2, 2]]).tolist() == [[4, 6], [0, 4], [2, 2]]
    assert parse_ranges([]).shape == (0, 2)


@pytest.mark.parametrize("value", [[(1, 2, 3)], [1, 2], [(0.5, 2)], 3, ["ab"]])
def test_ranges_are_nothing_else(value):
    """What is no list of pairs of integers is refused by name."""
    with pytest.raises(ValueError, match=r"^ranges is .*; it is a list of integer pairs lo, hi$"):
        parse_ranges(value)


@pytest.mark.parametrize("value", [[(0, 3), (5, 4)], [(-1, 2)]])
def test_ranges_run_upwards_from_zero(value):
    """A range that runs backwards or begins below 0 is refused by name."""
    with pytest.raises(ValueError, match=r"^ranges holds .*; in a range 0 <= lo <= hi$"):
        parse_ranges(value)


@pytest.mark.parametrize(
    "lengths", [[3, 0, 4], (3, 0, 4), np.array([3, 0, 4], np.uint8), torch.tensor([3, 0, 4]), iter([3, 0, 4])]
)
def test_shard_ends(lengths):
    """Ends are the running sums, int64, of any list of counts."""
    ends = shard_ends(lengths)
    assert ends.dtype == np.int64
    assert ends.tolist() == [3, 3, 7]


def test_shard_ends_of_no_shards():
    """No shards have no ends, which is not the same as not knowing."""
    assert shard_ends([]).tolist() == []


def test_shard_ends_do_not_wrap():
    """Counts of a narrow type are added in 64 bits."""
    assert shard_ends(np.full(3, 255, np.uint8)).tolist() == [255, 510, 765]


@pytest.mark.parametrize("lengths", [None, 7, [1, -1], [1.5, 2], "ab", [[1, 2], [3, 4]], [[1, 2], [3]], len, [None]])
def test_what_has_no_shard_ends(lengths):
    """What is no list of sample counts has no shards."""
    assert shard_ends(lengths) is None

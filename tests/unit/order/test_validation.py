"""Permutations, against Philox in plain Python, and the samplers' arguments."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wids.order.permutation import CHUNKS, SAMPLES, permutation
from wids.order.validation import parse_int, parse_range, parse_ranges, shard_ends

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


# --- arguments


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3), np.array(3), torch.tensor(3)])
def test_any_integer_is_an_int(value):
    """Python, numpy and torch integers come out as int."""
    assert type(parse_int("x", value)) is int
    assert parse_int("x", value, minimum=3) == 3
    assert parse_range(value, n=5) == (0, 3)


@pytest.mark.parametrize("value", [3.5, "3", None, np.float64(3), [3], np.array([3, 4])])
def test_no_integer_is_named(value):
    """What is no integer is a ValueError that names the argument and shows the value."""
    with pytest.raises(ValueError, match=r"^chunksize is .*; it must be an integer$"):
        parse_int("chunksize", value)


def test_too_small_is_named():
    """A value below the least allowed is a ValueError that says all three."""
    with pytest.raises(ValueError, match=r"^chunksize is 0; it must be at least 1$"):
        parse_int("chunksize", 0, minimum=1)


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
    with pytest.raises(ValueError, match=r"^num_samples is .*; it must be a number of samples or a pair lo, hi$"):
        parse_range(value, n=9)


def test_ranges_are_pairs():
    """Pairs of integers become chunks, in the order given; none is (0, 2)."""
    assert parse_ranges([(4, 6), (np.int64(0), 4), [2, 2]]).tolist() == [[4, 6], [0, 4], [2, 2]]
    assert parse_ranges([]).shape == (0, 2)


@pytest.mark.parametrize("value", [[(1, 2, 3)], [1, 2], [(0.5, 2)], 3, ["ab"]])
def test_ranges_are_nothing_else(value):
    """What is no list of pairs of integers is refused by name."""
    with pytest.raises(ValueError, match=r"^ranges is .*; it must be a list of integer pairs lo, hi$"):
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

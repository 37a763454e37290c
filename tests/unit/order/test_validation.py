"""The samplers' arguments: what is taken for an integer, a range, ranges, ends of shards; and what is refused."""

import numpy as np
import pytest
import torch

from wids.core.order.validation import parse_int, parse_range, parse_ranges, shard_ends

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

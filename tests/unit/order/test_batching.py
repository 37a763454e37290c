"""Batches of a block: none costs more than the budget, by exact arithmetic, none is empty, and no row is lost."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wids
from tests.support.examples import examples
from wids.core.order.batch import BlockRows
from wids.core.order.batching import make_rule
from wids.core.order.budgets import most_of
from wids.errors import InputError


def cut(lengths, *, lanes=1, **options):
    """The batches of a block of all these rows, and its rule."""
    lengths = np.asarray(lengths)
    rule = make_rule(len(lengths), lengths=lengths, **options)
    rows = len(lengths) // lanes
    samples = np.arange(rows * lanes).reshape(rows, lanes)
    where = {"seed": 1, "epoch": 0, "position": 0, "is_shuffled": True, "is_dropping": False}
    block = rule.cut(BlockRows(samples, None, samples.size, **where))
    return [block.batch(number).samples.tolist() for number in range(len(block))], block


def exact_cost(lengths, batch, cost):
    """What a batch costs, as a fraction."""
    own = [Fraction(float(lengths[i])) for i in batch]
    return sum(own) if cost == "sum" else max(own) * len(own)


def check(lengths, cost, budget=None, *, lanes=1, batch_size=None):
    """All that is promised of a block's batches; of one lane, that no fewer would do for what must be shared."""
    options = {"cost": cost, "max_tokens": budget, "batch_size": batch_size}
    batches, block = cut(lengths, lanes=lanes, **options)
    rows = len(lengths) // lanes
    assert sorted(i for batch in batches for i in batch) == list(range(rows * lanes))
    assert all(batches)
    assert len(batches) <= rows * lanes
    for batch in batches:
        assert budget is None or exact_cost(lengths, batch, cost) <= Fraction(budget)
        assert batch_size is None or len(batch) <= batch_size
    if lanes == 1 and budget is not None:
        assert block.steps >= -(-sum(Fraction(float(x)) for x in lengths) // Fraction(budget))
    return len(batches)


NUMBERS = st.one_of(
    st.sampled_from([0.1, 0.2, 0.3, 29.97, 1 / 3, 7.0, 1e-5, 1e5, 5e-324, 1e290]),
    st.floats(1e-3, 1e3),
    st.integers(1, 1 << 53),
)


@given(
    st.lists(NUMBERS, min_size=1, max_size=3),
    st.lists(st.integers(0, 2), min_size=1, max_size=60),
    st.sampled_from(["sum", "padded"]),
    st.integers(1, 12),
    st.sampled_from([-1, 0, 0, 0, 1]),
    st.sampled_from([None, 1, 4, 50]),
)
def test_costs_are_compared_exactly(values, picks, cost, count, ulps, size):
    """By fractions, whatever a budget that is a multiple of the longest length, or beside one, is rounded to."""
    lengths = [float(values[pick % len(values)]) for pick in picks]
    budget = max(lengths) * count
    budget = budget if not ulps else math.nextafter(budget, math.inf if ulps > 0 else 0)
    check(lengths, cost, max(budget, *lengths), batch_size=size)


@given(st.lists(NUMBERS, min_size=1, max_size=40), st.floats(1, 1e6))
def test_what_fits_together(lengths, share):
    """The comparison of padded batches, beside fractions; that of sums is in test_budgets."""
    lengths = [float(length) for length in lengths]
    for budget in (math.fsum(lengths), sum(lengths), max(lengths) * share):
        count = most_of(lengths[0], budget)
        assert count >= 1 << 50 or Fraction(lengths[0]) * int(count) <= Fraction(budget)
        assert count >= 1 << 50 or Fraction(lengths[0]) * (int(count) + 1) > Fraction(budget)


@pytest.mark.parametrize("seed", range(examples(30)))
def test_sums_of_equal_lengths_in_lanes(seed):
    """Budgets that are a whole number of samples, whose sums are rounded: the fewest batches there can be."""
    numbers = np.random.default_rng(seed)
    for _ in range(10):
        length, count, lanes = (
            float(numbers.uniform(0.1, 100)),
            int(numbers.integers(1, 9)),
            int(numbers.integers(1, 4)),
        )
        rows = int(numbers.integers(1, 40))
        budget = length * count
        fit = int(Fraction(budget) / Fraction(length))  # one less where the product is rounded down
        for cost in ("sum", "padded"):
            assert check([length] * (rows * lanes), cost, max(budget, length), lanes=lanes) == -(-rows // fit) * lanes


@pytest.mark.parametrize("cost", ["sum", "padded"])
@pytest.mark.parametrize("rows", [1, 7, 50])
def test_batches_without_a_budget(cost, rows):
    """The batch size alone decides, whatever a product of lengths is rounded to."""
    for length in (29.97, 0.1, 1 / 3, 17.59410848):
        assert check([length] * rows, cost, batch_size=50) == 1
        assert check([length] * rows, cost, batch_size=7) == -(-rows // 7)


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "g", "i8", "u8", "u2"])
def test_lengths_of_every_type(kind):
    """A budget is not rounded to the type of the lengths: what is longer by a little is too long."""
    lengths = np.array([3, 5, 7, 9] * 10).astype(kind)
    for cost in ("sum", "padded"):
        check(lengths, cost, 21.5)
    with pytest.raises(InputError, match="sample 3 has length 9"):
        cut(lengths, max_tokens=np.nextafter(9.0, 0))
    if kind == "f4":
        lengths = np.full(10, 29.97, "f4")
        check(lengths, "sum", 29.97)
        with pytest.raises(InputError, match="more than max_tokens"):
            cut(np.nextafter(lengths, np.float32(40)), max_tokens=float(np.nextafter(np.float64(lengths[0]), 40)))
    if kind == "f2":  # which has no number between 4096 and 4100
        with pytest.raises(InputError, match="more than max_tokens"):
            cut(np.full(4, 4100, "f2"), max_tokens=4098)


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        ([1.0, 1.7e308], "sample 1 is 1.7e[+]308, and 2 such lengths add up to more than 1e[+]300"),
        ([1e299] * 11, "sample 0 is 1e[+]299, and 11 such lengths add up"),
        ([1.0, math.inf], "sample 1 is inf"),
        ([1.0, math.nan, 2.0], "sample 1 is nan"),
        ([3, -1], "sample 1 is -1"),
        ([3, 0], "sample 1 is 0"),
        ([3, (1 << 53) + 1], "sample 1 is 9007199254740993; an integer length is at most 2[*][*]53"),
        (np.array([3, (1 << 64) - 1], np.uint64), "sample 1 is 18446744073709551615; an integer length"),
        (np.array([1, "1e400"], np.longdouble), "sample 1 is"),
        ([1 << 70, 1], "of type object"),
    ],
    ids=str,
)
def test_lengths_that_cannot_be_added_up(lengths, words):
    """They are refused, by the sample."""
    for options in ({"max_tokens": 5e299}, {"batch_size": 2}, {"max_tokens": 5e299, "too_long": "skip"}):
        for cost in ("sum", "padded"):
            with pytest.raises(InputError, match=words):
                cut(lengths, cost=cost, **options)


@pytest.mark.parametrize("cost", ["padded", "sum"])
@pytest.mark.parametrize("length", [5e-324, 2e-308, 1e-300])
def test_the_least_lengths_there_are(length, cost):
    """Between two of them lies none; the search for equal batches ends there."""
    batches, _ = cut([length] * 5, cost=cost, max_tokens=2 * length)
    assert sorted(map(len, batches)) == [1, 2, 2]


@pytest.mark.parametrize("budget", [1.7e308, 1 << 2000, math.inf, math.nan, 0, -1, "many", None])
def test_budgets_that_are_none(budget):
    """They are refused, by name."""
    with pytest.raises(InputError, match="max_tokens"):
        cut([1.0, 2.0], max_tokens=budget)


def test_integers_that_are_no_floats():
    """A budget of such is rounded down: no batch costs more. Lengths up to 2**53 are added up exactly."""
    most = 1 << 53
    assert check([most // 2 + 1] * 4, "sum", most + 1) == 4
    assert check([most // 2] * 4, "sum", most + 1) == 2
    assert check([most, 1], "sum", most + 1) == 2
    assert check([most, 2], "sum", most + 2) == 1


def test_as_many_batches_as_rows():
    """A sampler of equal lengths, each the whole budget: one sample a batch, and `len` says so."""
    data = list(range(50))
    for cost in ("sum", "padded"):
        batches = wids.BucketBatchSampler(wids.ChunkedSampler(data), lengths=[29.97] * 50, max_tokens=29.97, cost=cost)
        found = list(batches)
        assert len(batches) == len(found) == 50
        assert sorted(found) == [[i] for i in range(50)]

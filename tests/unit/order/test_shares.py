"""Which source each row reads: counts of every prefix, of any block, from anywhere on."""

import random
from fractions import Fraction

import numpy as np
import pytest

from wids.core.order import shares
from wids.core.order.shares import Turns, to_shares

WHOLE = 2**48


def random_weights(rng):
    """Weights of 1 to 40 sources, some 0, some equal, some tiny."""
    power = rng.choice([1, 1, 2, 4, 6, 12])
    weights = [rng.choice([0, 1, 2, rng.random() ** power, rng.random()]) for _ in range(rng.randint(1, 40))]
    return weights if any(weights) else [*weights, 0.5]


def check(turns, first, rows):
    """Each prefix of the rows from ``first`` on has each source within 1 of its share, or 2 with small ones."""
    part = np.array(turns.shares, object)
    bound = 2 if any(0 < share < WHOLE >> 14 for share in turns.shares) else 1
    counts = turns.counts(first).astype(object)
    sources, before = turns.take(np.arange(first, first + rows))
    for row, (source, had) in enumerate(zip(sources.tolist(), before.tolist(), strict=True), first):
        assert had == counts[source]
        counts[source] += 1
        off = counts * WHOLE - part * (row + 1)
        assert max(abs(off)) < bound * WHOLE, (row, off)
    assert (counts == turns.counts(first + rows)).all()
    assert counts.sum() == first + rows


@pytest.mark.parametrize("seed", range(10))
def test_every_prefix_has_each_source_within_one_of_its_share(seed, monkeypatch):
    """Every prefix has each source within one of its share."""
    monkeypatch.setattr(shares, "_MIN_ROWS", 8)  # many blocks
    rng = random.Random(seed)
    for _ in range(20):
        turns = Turns(to_shares(random_weights(rng)))
        check(turns, rng.choice([0, 0, rng.randrange(10**4), rng.randrange(10**12)]), rng.randint(1, 300))


def test_blocks_follow_each_other_over_many_of_them():
    """Blocks follow each other over many of them."""
    for weights in ([0.7, 0.3], [1] * 40, [5, 3, 2, 2**-20], [1e-9, 1 - 1e-9], [np.pi, np.e, 2**0.5]):
        check(Turns(to_shares(weights)), 10**9, 5000)


def test_far_out_and_at_the_border_of_small_shares():
    """Small sources and the others keep to their exact shares of the whole, however many rows there were."""
    for weights in (
        [1e300, 1e300, 3e299, 1e-300],
        [2.0**-k for k in range(60)],
        [2**-14] * 3 + [2**-15] * 9 + [1.0],
        [2**-14 * (1 - 1e-9)] * 3 + [1 - 3 * 2**-14],
        [2**60 + 1, 2**60, 3],
        [5e-324, 1e-323, 5e-324],
        [1 + k * 1e-12 for k in range(7)],
    ):
        for first in (0, 2**15 - 20, 10**15 - 20):
            check(Turns(to_shares(weights)), first, 60)


def test_any_rows_are_those_of_all_rows():
    """Any rows are those of all rows."""
    rng = np.random.default_rng(3)
    shares_of = to_shares([0.5, 0.25, 0.2, 0.05, 1e-6])
    sources, counts = Turns(shares_of).take(np.arange(10**5))
    for _ in range(20):
        rows = np.unique(rng.integers(0, 10**5, 50))
        found = Turns(shares_of).take(rows)
        assert (found[0] == sources[rows]).all()
        assert (found[1] == counts[rows]).all()


def test_shares_are_exact_and_none_vanishes():
    """Shares are exact and none vanishes."""
    found = to_shares([Fraction(1, 3), 1e-300, 0, 2 / 3])
    assert sum(found) == WHOLE
    assert found[1:3] == (1, 0)
    assert abs(found[0] * 3 - WHOLE) <= 3


def test_one_source_has_all_rows_and_none_of_weight_zero_any():
    """One source has all rows and none of weight zero any."""
    sources, counts = Turns(to_shares([0, 3, 0])).take(np.array([0, 1, 5, 10**9]))
    assert sources.tolist() == [1, 1, 1, 1]
    assert counts.tolist() == [0, 1, 5, 10**9]


def test_the_turns_never_change():
    """They are in states; a change of them is a change of format."""
    sources, _ = Turns(to_shares([1 / 2, 1 / 3, 1 / 6])).take(np.arange(18))
    assert "".join("abc"[s] for s in sources.tolist()) == "aababcaababcaababc"
    far, _ = Turns(to_shares([0.61, 0.25, 0.1, 0.04, 1e-5])).take(np.arange(10**9, 10**9 + 24))
    assert "".join("abcde"[s] for s in far.tolist()) == "aabaabacaababaacabaabaad"

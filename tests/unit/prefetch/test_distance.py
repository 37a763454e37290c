"""What is read into memory ahead, of a shard that its visits read in part."""

import random

import pytest

from wids.core.order.epoch import MixedRange
from wids.core.prefetch.distance import ShardNeed, describe_shortage, part_to_read

CASES = [
    ([], (0.0, 0.0, 1)),
    ([(0.0, 1.0, 1.0)], (0.0, 1.0, 1)),
    ([(0.0, 1.0, 0.5)], (0.0, 1.0, 1)),
    ([(0.0, 1.0, 0.49)], (0.0, 0.0, 1)),
    ([(0.2, 0.3, 0.1), (0.9, 1.0, 0.1)], (0.2, 0.3, 1)),
    ([(0.2, 0.3, 0.1), (0.3, 0.4, 0.1)], (0.2, 0.4, 2)),
    ([(0.0, 1.0, 0.1)] * 5, (0.0, 1.0, 5)),
    ([(0.0, 1.0, 0.1)] * 4, (0.0, 0.0, 1)),
    ([(0.0, 0.1, 0.1), (0.9, 1.0, 0.1), (0.0, 1.0, 0.8)], (0.0, 1.0, 3)),
]


@pytest.mark.parametrize(("parts", "expected"), CASES)
def test_by_hand(parts, expected):
    """Dense ones, sparse ones, those that together are dense."""
    assert part_to_read(parts) == pytest.approx(expected)


def test_against_a_look_at_each_number_of_visits():
    """The most visits of which half of what lies between is needed."""
    chance = random.Random(0)
    for _ in range(500):
        parts = []
        for _ in range(chance.randrange(6)):
            begin, end = sorted((chance.random(), chance.random()))
            parts.append((begin, end, chance.random() * (end - begin)))
        expected = (0.0, 0.0, 1)
        for count in range(1, len(parts) + 1):
            low, high = min(part[0] for part in parts[:count]), max(part[1] for part in parts[:count])
            if 2 * sum(part[2] for part in parts[:count]) >= high - low:
                expected = (low, high, count)
        assert part_to_read(parts) == pytest.approx(expected)


def need(window, block, *, rows=1000, lanes=1, total=1000):
    """Of a range of shards of 100 bytes."""
    return ShardNeed(MixedRange(0, 10**6, window, block, rows, lanes), total, 100)


@pytest.mark.parametrize(
    ("shards", "needs", "ranks", "words"),
    [
        (5, [need(4, 0)], 1, None),
        (4, [need(4, 0)], 1, "1 rank(s) of this node read 4 at a time. cache_size=500 would do, or window=3"),
        (1, [need(4, 0)], 1, "read 4 at a time. cache_size=500 would do"),
        (12, [need(4, 4)], 1, None),
        (11, [need(4, 4)], 1, "read 8 at a time. cache_size=1_200 would do, or block=3000"),
        (6, [need(4, 4)], 1, "cache_size=1_200 would do, or block=1000"),
        (5, [need(4, 4)], 1, "cache_size=1_200 would do, or window=3, block=1000"),
        (2, [need(4, 4)], 1, "cache_size=1_200 would do"),
        (95, [need(4, 4)], 8, "8 rank(s) of this node read 64 at a time. cache_size=9_600 would do, or block=3000"),
        (23, [need(4, 4, lanes=2)], 1, "read 16 at a time. cache_size=2_400 would do, or block=3000"),
        (8, [need(4, 0, lanes=2)], 1, "read 8 at a time. cache_size=900 would do, or window=3"),
        (20, [need(4, 4, total=20)], 8, "read 20 at a time. cache_size=2_100 would do"),
        (21, [need(4, 4, total=20)], 8, None),
        (13, [need(2, 2, rows=66), need(2, 3, rows=40)], 1, "read 9 at a time, out of 2 sources. cache_size=1_400 "),
    ],
)
def test_a_limit_that_is_too_small_is_told_with_what_would_do(shards, needs, ranks, words):
    """A larger one, or a block or a window that fits, which is held against the words again."""
    said = describe_shortage(100 * shards, needs, ranks=ranks)
    assert (said is None) if words is None else (words in said)
    if said is None or len(needs) > 1:
        return
    if words.endswith("would do"):
        assert said.endswith(words)
    mixed = needs[0].mixed
    if "block=" in said:
        mixed = mixed._replace(block=int(said.rpartition("block=")[2]) // mixed.rows)
    if "window=" in said:
        mixed = mixed._replace(window=int(said.partition("window=")[2].partition(",")[0]))
    if mixed != needs[0].mixed:
        assert describe_shortage(100 * shards, [needs[0]._replace(mixed=mixed)], ranks=ranks) is None

"""What is read into memory ahead, of a shard that its visits read in part."""

import random

import pytest

from wids.core.prefetch.distance import part_to_read

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

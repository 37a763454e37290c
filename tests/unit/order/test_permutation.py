"""Random words: those of numpy's Philox at a key and a counter, whoever else draws at the same time."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from wids.order import permutation
from wids.order.permutation import random_words


def expected(n, *, seed, epoch, stream, position):
    """The words of a new generator."""
    counter = np.array([0, position, epoch, 0], np.uint64)
    return np.random.Philox(counter=counter, key=np.array([seed, stream], np.uint64)).random_raw(n)


CASES = [
    {"seed": seed, "epoch": epoch, "stream": stream, "position": position}
    for seed, epoch, stream, position in [(0, 0, 1, 0), (9, 1, 2, 5), (2**63, 7, 3, 2**40)]
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 64])
def test_words_are_those_of_a_new_generator(n, case):
    """However many words were drawn before, also not a multiple of the generator's four."""
    for _ in range(3):
        assert (random_words(n, **case) == expected(n, **case)).all()


def test_a_draw_in_the_middle_of_another(monkeypatch):
    """As by a signal handler: both get their own words."""
    inner, outer = CASES[:2]
    found = []

    class Interrupted(list):
        """Gives a generator, and draws from another one before it is used."""

        def pop(self):
            generator = super().pop()
            found.append(random_words(6, **inner))
            return generator

    monkeypatch.setattr(permutation, "_idle", Interrupted([np.random.Philox(0)]))
    assert (random_words(9, **outer) == expected(9, **outer)).all()
    assert (found[0] == expected(6, **inner)).all()


def test_threads():
    """Each gets its own words."""
    with ThreadPoolExecutor(8) as pool:
        drawn = list(pool.map(lambda k: random_words(50, seed=k, epoch=k, stream=1, position=k), range(500)))
    for k, words in enumerate(drawn):
        assert (words == expected(50, seed=k, epoch=k, stream=1, position=k)).all()

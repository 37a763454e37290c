"""Permutations, against the model of the order; random words, whoever else draws at the same time."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model import order as model
from tests.support.goldens import golden_lines
from wids.core.order import permutation as permutations
from wids.core.order.permutation import CHUNKS, SAMPLES, permutation, random_words, word_of_each

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
any_int = st.integers(-(1 << 130), 1 << 130)


CASES = [
    {"seed": seed, "epoch": epoch, "stream": stream, "position": position}
    for seed, epoch, stream, position in [(0, 0, 1, 0), (9, 1, 2, 5), (2**63, 7, 3, 2**40)]
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 64])
def test_words_are_those_of_a_new_generator(n, case):
    """However many words were drawn before, also not a multiple of the generator's four."""
    for _ in range(3):
        assert random_words(n, **case).tolist() == model.random_words(n, **case)


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

    monkeypatch.setattr(permutations, "_idle", Interrupted([np.random.Philox(0)]))
    assert random_words(9, **outer).tolist() == model.random_words(9, **outer)
    assert found[0].tolist() == model.random_words(6, **inner)


def test_threads():
    """Each gets its own words."""
    with ThreadPoolExecutor(8) as pool:
        drawn = list(pool.map(lambda k: random_words(50, seed=k, epoch=k, stream=1, position=k), range(500)))
    for k, words in enumerate(drawn):
        assert words.tolist() == model.random_words(50, seed=k, epoch=k, stream=1, position=k)


@pytest.mark.parametrize(("counter", "key", "block"), KNOWN_ANSWERS)
def test_philox_known_answers(counter, key, block):
    """The raw words of numpy, and those of the model, are the published Philox4x64-10."""
    assert model.philox(counter, key) == block
    # numpy counts up before it makes a block.
    before = (sum(word << 64 * i for i, word in enumerate(counter)) - 1) % (1 << 256)
    words = np.array([before >> 64 * i & WORD - 1 for i in range(4)], np.uint64)
    raw = np.random.Philox(counter=words, key=np.array(key, np.uint64)).random_raw(4)
    assert raw.tolist() == block


@given(n=st.integers(0, 40), seed=any_int, epoch=any_int, stream=st.sampled_from([CHUNKS, SAMPLES]), position=any_int)
def test_permutation_is_the_argsort_of_philox_words(n, seed, epoch, stream, position):
    """A permutation sorts the indices by Philox words, for any integers as seed, epoch and position."""
    found = permutation(n, seed=seed, epoch=epoch, stream=stream, position=position)
    assert found.tolist() == model.permutation(n, seed=seed, epoch=epoch, stream=stream, position=position)


@given(
    each=st.lists(
        st.tuples(st.integers(0, (1 << 63) - 1), st.integers(0, 1 << 40), st.integers(0, 1 << 40)), max_size=5
    ),
    seed=any_int,
    epoch=any_int,
)
def test_words_of_many_positions(each, seed, epoch):
    """Each is the first of its block of Philox, with an epoch and a block for all of them or for each."""
    positions, epochs, blocks = (np.array([row[k] for row in each], np.int64) for k in range(3))
    key = [seed % WORD, SAMPLES]
    found = word_of_each(positions, seed=seed, epoch=epochs, stream=SAMPLES, block=blocks)
    assert found.tolist() == [model.philox([b + 1, p, e, 0], key)[0] for p, e, b in each]
    found = word_of_each(positions, seed=seed, epoch=epoch, stream=SAMPLES, block=7)
    assert found.tolist() == [model.philox([8, p, epoch % WORD, epoch // WORD % WORD], key)[0] for p, _, _ in each]
    for word, (position, _, _) in zip(found.tolist(), each, strict=True):
        assert word == random_words(29, seed=seed, epoch=epoch, stream=SAMPLES, position=position)[28]


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
    """The permutations of `permutations.txt` never change: saved runs resume from them."""
    lines = golden_lines("permutations.txt")
    assert len(lines) == 8
    for line in lines:
        arguments, indices = line.split(":")
        n, seed, epoch, stream, position = map(int, arguments.split())
        found = permutation(n, seed=seed, epoch=epoch, stream=stream, position=position)
        assert found.tolist() == [int(i) for i in indices.split()], arguments

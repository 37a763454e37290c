"""Permutations that depend on their arguments alone and never change with a release of numpy.

`numpy.random.Generator` methods may change their streams between numpy releases; the raw bits of a bit generator
may not (NEP 19), nor may a sort of numbers that all differ. So a permutation here is what sorts raw Philox words,
whose 128-bit key is (seed, stream) and whose counter is (epoch, position). The lowest bits of each word are its own
index: that makes it differ from all others, and it is the permutation when the words are sorted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]

_WORD = 1 << 64
# The registry of all streams, which make permutations for different purposes independent, also at the same seed and
# position. A test holds that each is given out once, and that nothing draws from another.
CHUNKS, SAMPLES, DEAL, PARTS, ROUNDING, SPLIT, SUBSTITUTES, OFFSETS, PACKING, STEPS = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10

# A new generator draws from the operating system first, which takes four times as long as a few words.
_idle: list[np.random.Philox] = []
_EMPTY = np.zeros(4, np.uint64)


def permutation(n: int, *, seed: int, epoch: int, stream: int, position: int = 0) -> Indices:
    """A permutation of ``0 .. n-1``, int64, a pure function of its arguments.

    Any integers will do: ``seed`` and ``position`` count modulo 2**64, ``epoch`` modulo 2**128.
    """
    words = random_words(n, seed=seed, epoch=epoch, stream=stream, position=position)
    bits = np.uint64(max(n - 1, 0).bit_length())
    words >>= bits
    words <<= bits
    words |= np.arange(n, dtype=np.uint64)
    words.sort()
    words &= (np.uint64(1) << bits) - np.uint64(1)
    return words.view(np.int64)


def random_words(n: int, *, seed: int, epoch: int, stream: int, position: int = 0) -> NDArray[np.uint64]:
    """``n`` random words of 64 bits, by the same arguments."""
    counter = np.array([0, position % _WORD, epoch % _WORD, epoch // _WORD % _WORD], dtype=np.uint64)
    key = np.array([seed % _WORD, stream], dtype=np.uint64)
    try:
        generator = _idle.pop()
    except IndexError:  # all are in use: by other threads, or by what a signal handler interrupted
        generator = np.random.Philox(0)
    generator.state = {
        "bit_generator": "Philox",
        "state": {"counter": counter, "key": key},
        "buffer": _EMPTY,
        "buffer_pos": 4,
        "has_uint32": 0,
        "uinteger": 0,
    }
    words: NDArray[np.uint64] = generator.random_raw(n)
    _idle.append(generator)
    return words

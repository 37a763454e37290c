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
(
    CHUNKS,
    SAMPLES,
    DEAL,
    PARTS,
    ROUNDING,
    SPLIT,
    SUBSTITUTES,
    OFFSETS,
    PACKING,
    SEEDS,
    GLOBALS,
    GENERATORS,
    STEPS,
) = range(1, 14)

# A new generator draws from the operating system first, which takes four times as long as a few words.
_idle: list[np.random.Philox] = []
_EMPTY = np.zeros(4, np.uint64)
# Constants of Philox4x64-10.
_ROUNDS, _MULTIPLIERS, _KEY_STEPS = (
    10,
    (0xD2E7470EE14C6C93, 0xCA5A826395121157),
    (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B),
)
_LOW, _HALF = (1 << 32) - 1, np.uint64(32)


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


def word_of_each(
    positions: Indices, *, seed: int, epoch: int | Indices, stream: int, block: int | Indices = 0
) -> NDArray[np.uint64]:
    """Word number ``4 * block`` of `random_words` at each of n positions: (n,) -> (n,).

    Philox for many counters at once; `numpy.random.Philox` has to be set up for each.

    Args:
        positions: (n,), 0 or above.
        seed: any integer.
        epoch: any integer; or (n,), 0 or above.
        stream: one of the registry.
        block: 0 or above; or (n,).
    """
    low, high = (epoch, 0) if isinstance(epoch, np.ndarray) else (epoch % _WORD, epoch // _WORD % _WORD)
    x0, x1, x2, x3 = (
        np.broadcast_to(np.asarray(word, np.uint64), positions.shape) for word in (block + 1, positions, low, high)
    )
    key = [seed % _WORD, stream]
    for _ in range(_ROUNDS):
        (high0, low0), (high2, low2) = _multiply(x0, _MULTIPLIERS[0]), _multiply(x2, _MULTIPLIERS[1])
        high2 ^= x1
        high2 ^= np.uint64(key[0])
        high0 ^= x3
        high0 ^= np.uint64(key[1])
        x0, x1, x2, x3 = high2, low2, high0, low0
        key = [(word + step) % _WORD for word, step in zip(key, _KEY_STEPS, strict=True)]
    return x0


def _multiply(x: NDArray[np.uint64], factor: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The upper and the lower 64 bits of products of 64-bit words."""
    low, high = np.uint64(factor & _LOW), np.uint64(factor >> 32)
    x_low, x_high = x & np.uint64(_LOW), x >> _HALF
    carry = x_high * low
    middle = x_low * low
    middle >>= _HALF
    middle += carry & np.uint64(_LOW)
    middle += x_low * high
    middle >>= _HALF
    carry >>= _HALF
    middle += carry
    middle += x_high * high
    return middle, x * np.uint64(factor)

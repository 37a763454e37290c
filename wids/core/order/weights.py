"""Weights of samples: the expected copies of each in a pass.

A pass of N places has each sample about as often as its weight says: its expected copies are its part of all weights,
times N. By systematic sampling, every sample has a stretch of a line, as long as its expected copies, and place v of
pass e is the sample whose stretch holds v + u, with one offset u for each pass::

    expected copies    0.5  1.5  0.5  0.5          |--0--|-------1-------|--2--|--3--|     N = 3
    u = 0.2            0 1 2                          ^           ^           ^
    u = 0.7            1 1 3                                ^           ^           ^

So each sample comes floor or ceiling of its expected copies in a pass, other ones each pass, and N places are all
there are. Offsets are spread evenly over the passes, by steps of the golden ratio.

Places are in the order of the samples. They are cut into chunks where shards end, and shuffled, as samples are.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from wids.core.order.permutation import OFFSETS, random_words
from wids.core.order.state import digest
from wids.core.order.validation import suggest_names
from wids.errors import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wids.core.order.permutation import Indices

_STEP, _WORD = 0x9E3779B97F4A7C15, 1 << 64  # the golden ratio, as a part of 2**64
# Offsets are odd multiples of 2**-17, so that a place and an offset add up exactly below 2**36, and their sum is no
# whole number: where expected copies are whole, stretches end at those, or very near.
_OFFSET_BITS = 16


class Copies:
    """Expected copies of the samples ``first .. first + len(weights)`` in a pass.

    Args:
        weights: of the samples, in the order in which they are read: (nsamples,), none below 0.
        count: N, the places of a pass.
        first: the first sample.
        boundaries: sorted samples where a shard ends and another begins; None: not known.
        seed: of the offsets.

    Attributes:
        boundaries: the argument.
        digest: of the weights and N.
    """

    boundaries: Indices | None
    digest: str

    def __init__(
        self, weights: NDArray[np.float64], *, count: int, first: int, boundaries: Indices | None, seed: int
    ) -> None:
        ends = _exact_ends(weights).astype(np.float64)
        ends *= count / ends[-1]
        np.minimum(ends, count, out=ends)
        ends[np.searchsorted(ends, ends[-1], side="left") :] = count  # also of those without a weight behind the last
        self._ends, self._first, self.boundaries, self._seed = ends, first, boundaries, seed
        self.digest = digest(np.asarray(weights, "<f8").tobytes(), str(count).encode())

    @property
    def span(self) -> tuple[int, int]:
        """The samples, half-open."""
        return self._first, self._first + len(self._ends)

    def draw(self, number: int) -> Draw:
        """The samples of pass ``number``."""
        start = int(random_words(1, seed=self._seed, epoch=0, stream=OFFSETS)[0])
        offset = (((start + number * _STEP) % _WORD >> (64 - _OFFSET_BITS)) + 0.5) / (1 << _OFFSET_BITS)
        boundaries = None
        if self.boundaries is not None:
            starts = np.append(0.0, self._ends)[self.boundaries - self._first]
            boundaries = _first_places(starts, offset)
        return Draw(self._ends, self._first, offset, boundaries)


def _exact_ends(weights: NDArray[np.float64]) -> Indices:
    """End of each sample's stretch, in units so small that their sum is near 2**61: (n,), not rounded on the way.

    Samples of equal weights have stretches of equal lengths, wherever they are.
    """
    scaled = np.ldexp(weights, -np.frexp(weights.max())[1])  # weights of any size add up
    units = np.rint(np.ldexp(scaled, 61 - np.frexp(np.cumsum(scaled)[-1])[1])).astype(np.int64)
    return np.cumsum(units, out=units)


class Draw:
    """One pass: the samples of its places.

    Attributes:
        boundaries: sorted places where a shard ends and another begins.
    """

    boundaries: Indices | None

    def __init__(self, ends: NDArray[np.float64], first: int, offset: float, boundaries: Indices | None) -> None:
        self._ends, self._first, self._offset, self.boundaries = ends, first, offset, boundaries

    def samples(self, places: Indices) -> Indices:
        """The samples at n places: (n,) -> (n,)."""
        return self._first + np.searchsorted(self._ends, places + self._offset, side="right")

    def places_of(self, samples: Indices) -> Indices:
        """All m places of n samples: (n,), ascending, each once -> (m,), the same; none of those beyond the weights."""
        rows = samples - self._first
        rows = rows[(rows >= 0) & (rows < len(self._ends))]
        starts = _first_places(np.where(rows > 0, self._ends[rows - 1], 0.0), self._offset)
        counts = _first_places(self._ends[rows], self._offset) - starts
        behind = np.cumsum(counts)
        places: Indices = np.arange(counts.sum()) + np.repeat(starts - (behind - counts), counts)
        return places

    def copies(self, places: Indices, samples: Indices) -> Indices:
        """The number of the copy of its sample at n places, from 0 on: (n,), (n,) -> (n,)."""
        rows = samples - self._first
        starts = np.where(rows > 0, self._ends[rows - 1], 0.0)
        return places - _first_places(starts, self._offset)


def _first_places(starts: NDArray[np.float64], offset: float) -> Indices:
    """The first place at or behind which n stretches are that begin at ``starts``: (n,) -> (n,)."""
    return np.maximum(np.ceil(starts - offset), 0).astype(np.int64)


def parse_weights(weights: Any, count: int) -> NDArray[np.float64]:
    """Weights of ``count`` samples: (count,) float64.

    Raises:
        ValueError: not one number for each; one that is not finite, or below 0; none above 0.
    """
    try:
        parsed: NDArray[np.float64] = np.asarray(weights, np.float64)
    except (TypeError, ValueError, RuntimeError):  # torch's, of tensors with a gradient
        raise ValueError(f"weights is {shown(weights)}; it must be a number for each sample") from None
    if parsed.shape != (count,):
        raise ValueError(f"weights has shape {parsed.shape}; it must be ({count},), one for each sample")
    bad = np.flatnonzero(~(np.isfinite(parsed) & (parsed >= 0)))
    if len(bad):
        raise ValueError(f"weights[{bad[0]}] is {parsed[bad[0]]} ({len(bad)} such); weights are finite and not below 0")
    if not parsed.any():
        raise ValueError("no weight is above 0; one sample at least has to come")
    return parsed


@suggest_names
def balance(labels: Any, power: float = 1.0) -> NDArray[np.float64]:
    """Weights that even out classes, for a sampler's ``weights=``.

    With power 1 all classes come equally often, with 0 as often as there are samples; between, in between: a class of
    c samples comes in proportion to c ** (1 - power).

    Args:
        labels: the class of each of n samples: (n,), of numbers, strings or any values that can be keys of a dict.
        power: degree of evening out.

    Returns:
        (n,) float64, on average 1.

    Raises:
        ValueError: labels that are not one for each sample; a power that is not finite.

    Example:
        >>> wids.balance(["cat", "cat", "cat", "dog"]).round(2).tolist()
        [0.67, 0.67, 0.67, 2.0]
    """
    classes = np.asarray(labels)
    if classes.ndim != 1:
        raise ValueError(f"labels has shape {classes.shape}; it must be (n,), one for each sample")
    if not np.isfinite(power):
        raise ValueError(f"power is {power}; it must be a finite number")
    if classes.dtype == object:
        values = [value if value == value else None for value in classes.tolist()]  # noqa: PLR0124 - nan is no other
        numbers = Counter(values)
        counts = np.array([numbers[value] for value in values], np.float64)
    else:
        _, inverse, occurrences = np.unique(classes, return_inverse=True, return_counts=True)
        counts = occurrences[inverse].astype(np.float64)
    weights: NDArray[np.float64] = counts ** -float(power)
    return weights / weights.mean() if len(weights) else weights

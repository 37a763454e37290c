"""Indices with marks: values that are known when a sample is chosen, and needed when it is read.

``tail="mask"`` says by them which samples an epoch has once, and which it repeats to make the ranks equal;
``sample_seeds=True`` what a sample's randomness begins with, a sampler of packs which piece of a document is meant.
Such an index is an int in all respects, so any dataset takes it; it stays what it is through pickle, and through the
subtraction by which `torch.utils.data.ConcatDataset` hands it on. A dataset puts `MarkedIndex.marks` into the sample.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wids.core.order.permutation import SEEDS, word_of_each

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Self

    from wids.core.order.batch import Pieces
    from wids.core.order.permutation import Indices


class SampleBlock(NamedTuple):
    """Consecutive samples of an order: indices, (n,), and seeds (`seeds_of`), (n,); None: they have none."""

    samples: Indices
    seeds: Indices | None


class MarkedIndex(int):
    """An int with marks.

    Attributes:
        is_valid: False: this rank, or another one, has had the sample already in this epoch; None: not requested.
        seed: see `seeds_of`; None: the same.
    """

    __slots__ = ()
    is_valid: bool | None = None
    seed: int | None = None

    def marks(self) -> dict[str, Any]:
        """Marks for the sample: their names begin and end with two underscores."""
        return {"__valid__": self.is_valid}

    def _at(self, index: int) -> MarkedIndex:
        """The same marks at another index."""
        return type(self)(index)

    def __sub__(self, other: Any) -> Any:
        difference = int(self) - other
        return self._at(difference) if isinstance(other, int) else difference


class OwnIndex(MarkedIndex):
    """A sample that counts."""

    __slots__ = ()
    is_valid: bool | None = True


class RepeatedIndex(MarkedIndex):
    """A sample that another rank, or this one, has had already in this epoch."""

    __slots__ = ()
    is_valid: bool | None = False


class SeededIndex(MarkedIndex):
    """A sample with a seed, and ``is_valid`` or not."""

    def __new__(cls, index: int, seed: int, is_valid: bool | None = None) -> Self:  # noqa: FBT001 - `map` calls it
        """Make an index with its marks; see `MarkedIndex`."""
        self = super().__new__(cls, index)
        self.seed, self.is_valid = seed, is_valid
        return self

    def __reduce__(self) -> tuple[Any, ...]:  # half as long as the default, for each sample that workers are asked for
        arguments = (int(self), self.seed) if self.is_valid is None else (int(self), self.seed, self.is_valid)
        return SeededIndex, arguments

    def marks(self) -> dict[str, Any]:
        """The marks; see `MarkedIndex.marks`."""
        return {"__seed__": self.seed} if self.is_valid is None else {"__valid__": self.is_valid, "__seed__": self.seed}

    def _at(self, index: int) -> SeededIndex:
        return SeededIndex(index, self.seed, self.is_valid)  # type: ignore[arg-type]  # which it has


class PieceIndex(MarkedIndex):
    """A piece of a document that `wids.PackSampler` has put into a pack; with a seed and ``is_valid``, or not.

    Attributes:
        piece: the pack, counted from 0 in the batch; the first token, and one past the last; tokens of the document.
    """

    piece: tuple[int, int, int, int]

    def __new__(
        cls,
        index: int,
        piece: tuple[int, int, int, int],
        seed: int | None = None,
        is_valid: bool | None = None,  # noqa: FBT001 - `map` calls it
    ) -> Self:
        """Make an index with its marks; see `MarkedIndex`."""
        self = super().__new__(cls, index)
        self.piece, self.seed, self.is_valid = piece, seed, is_valid
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return PieceIndex, (int(self), self.piece, self.seed, self.is_valid)

    def marks(self) -> dict[str, Any]:
        """The marks; see `MarkedIndex.marks`."""
        pack, first, last, length = self.piece
        marks: dict[str, Any] = {"__piece__": (first, last), "__pack__": pack, "__length__": length}
        if self.is_valid is not None:
            marks["__valid__"] = self.is_valid
        return marks if self.seed is None else {**marks, "__seed__": self.seed}

    def _at(self, index: int) -> PieceIndex:
        return PieceIndex(index, self.piece, self.seed, self.is_valid)


def mark(
    indices: Iterable[int],
    *,
    seeds: Iterable[int] | None = None,
    is_valid: bool | Iterable[bool] | None = None,
    pieces: Pieces | None = None,
) -> Iterator[int]:
    """Indices with these marks, each made when it is drawn; plain ones if none exist.

    Args:
        indices: plain ones.
        seeds: one for each index; those of an iterator that are not used stay in it. None: no ``__seed__``.
        is_valid: of all of them, or one for each; None: no ``__valid__``.
        pieces: of the indices; None: each is of a whole sample.
    """
    if pieces is not None:
        words = repeat(None) if seeds is None else seeds
        valid = repeat(is_valid) if is_valid is None or isinstance(is_valid, bool) else is_valid
        numbers = zip(*(values.tolist() for values in pieces), strict=True)
        return map(PieceIndex, indices, numbers, words, valid)
    if seeds is not None:
        each = repeat(is_valid) if is_valid is None or isinstance(is_valid, bool) else is_valid
        return map(SeededIndex, indices, seeds, each)
    if is_valid is None:
        return iter(indices)
    if isinstance(is_valid, bool):
        return map(OwnIndex if is_valid else RepeatedIndex, indices)
    return ((OwnIndex if is_own else RepeatedIndex)(index) for index, is_own in zip(indices, is_valid, strict=True))


def seeds_of(samples: Indices, *, seed: int, number: int | Indices, copy: int | Indices = 0) -> Indices:
    """Seeds of the randomness of n samples, 0 .. 2**63 - 1 (so that tensors hold them): (n,) -> (n,) int64.

    These never change: a program that is run again in some years makes the same samples.

    Args:
        samples: indices in the dataset, or in a mixture's source.
        seed: the sampler's, or a mixture's for the source; any integer.
        number: of the pass, one or each sample's.
        copy: number of the copy of a sample that comes several times in a pass, one or each sample's; from 0 on.
    """
    words = word_of_each(samples, seed=seed, epoch=number, stream=SEEDS, block=copy)
    return (words >> np.uint64(1)).view(np.int64)

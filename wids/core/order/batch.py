"""Nouns that samplers of batches share: a block of rows, a batch, pieces of documents, and the rule that cuts blocks.

Rules are in `wids.core.order.batching` (samples of like length) and `wids.core.order.packing` (packs of documents).
Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from wids.core.order.permutation import Indices

# Kinds of states, with the sampler that has such states.
BATCHES, PACKS = "wids.batches", "wids.packs"
SAMPLERS = {BATCHES: "wids.BucketBatchSampler", PACKS: "wids.PackSampler"}


class BlockRows(NamedTuple):
    """The samples of a block, and all else that its batches depend on.

    Attributes:
        samples: (rows, lanes).
        seeds: theirs, the same; None: they have none.
        real: number of the samples, row by row, that are read for the first time; the others fill up the tail.
        seed: the order of the steps is a function of it, the epoch and the position.
        epoch: likewise.
        position: of the block; likewise.
        is_shuffled: False: the costliest step comes first.
        is_dropping: batches that the lanes do not divide are left out; False: some come again.
    """

    samples: Indices
    seeds: Indices | None
    real: int
    seed: int
    epoch: int
    position: int
    is_shuffled: bool
    is_dropping: bool


class Pieces(NamedTuple):
    """Pieces of documents, in turn: (m,) each.

    Attributes:
        packs: the pack of each, counted from 0 in the batch.
        first: its first token, counted in the document.
        last: one past its last token.
        lengths: tokens of the whole document, without a separator.
    """

    packs: Indices
    first: Indices
    last: Indices
    lengths: Indices

    def take(self, where: Any) -> Pieces:
        """Some of them."""
        return Pieces(*(values[where] for values in self))


class Batch(NamedTuple):
    """A batch: (m,) each.

    Attributes:
        samples: their indices.
        fills: those of them that fill up the tail.
        seeds: of the samples; None: they have none.
        positions: of the samples in the epoch, all lanes together.
        pieces: of the samples; None: each is whole.
    """

    samples: Indices
    fills: NDArray[np.bool_]
    seeds: Indices | None
    positions: Indices
    pieces: Pieces | None = None


class CutBlock(Protocol):
    """A block, cut into batches."""

    @property
    def position(self) -> int:
        """Position of its beginning."""

    @property
    def size(self) -> int:
        """Number of samples in it."""

    def __len__(self) -> int:
        """Number of batches of all lanes."""

    def batch(self, number: int) -> Batch:
        """Batch ``number`` of all lanes' (step by step)."""

    def batches(self, numbers: Sequence[int]) -> list[Batch]:
        """Some of them."""

    def checksum(self) -> int:
        """CRC-32 of all values of samples that batches depend on."""


class Rule(Protocol):
    """The bounds of batches, by which blocks are cut."""

    @property
    def kind(self) -> str:
        """The kind of a state; see `SAMPLERS`."""

    @property
    def identity(self) -> dict[str, Any]:
        """All bounds, as plain values for a state."""

    @property
    def skipped(self) -> int:
        """Number of all samples that are left out."""

    @property
    def per_batch(self) -> float:
        """Number of samples of a batch, about."""

    @property
    def skips(self) -> bool:
        """True if samples may be left out."""

    @property
    def is_sparse(self) -> bool:
        """True if a block may have fewer batches than lanes."""

    @property
    def keeps_order(self) -> bool:
        """True if a block's samples are read in the order of their lane."""

    def block_rows(self, lanes: int, window_rows: int) -> int:
        """Rows of a block: enough to choose from, with regard to the rows of a window of a lane."""

    def cut(self, rows: BlockRows) -> CutBlock:
        """The batches of a block."""

    def split(self, batches: Sequence[Batch], count: int) -> list[Batch] | None:
        """The same samples, or pieces, in ``count`` batches, more than now; None: that is not possible."""

    def for_samples(self, samples: int, read: Callable[[str], Any]) -> Rule:
        """The same bounds for so many other samples.

        Args:
            samples: their number.
            read: reads what is needed of them, by its name, such as ``lengths``.
        """

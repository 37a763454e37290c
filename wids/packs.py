"""Packs: documents laid end to end, and cut at a number of tokens, for language models; exact on any number of ranks.

`PackSampler` says which pieces of which samples make a batch; `pack_collate` makes its tensors. Blocks are cut in
`wids.core.order.packing`, which has a picture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from wids.batch_samplers import BlockBatchSampler
from wids.core.order.layout import takes_marks
from wids.core.order.packing import make_pack_rule
from wids.core.order.population import MixturePopulation
from wids.core.order.validation import parse_int, suggest_names
from wids.errors import InputError, a_kind, shown
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wids.samplers import ChunkedSampler

# Labels that torch's losses, and the models of transformers, leave out.
_IGNORED = -100


class PackSampler(BlockBatchSampler):
    """Packs of documents for ``DataLoader(batch_sampler=)``: as many on every rank, each token of an epoch once.

    A pack is a list of pieces of samples, of ``pack_tokens`` tokens together. The index of each piece carries it: a
    sample that a `wids.ShardListDataset` reads by it has ``__piece__``, its first token and one past the last, and
    `wids.pack_collate` makes tensors of such samples. The order of the sampler is cut into blocks of some 64 batches of
    each lane, and each block into packs: all are full but the last batch of each lane, so less than 1/64 of the room is
    empty. Nothing is dropped or repeated, on any number of ranks; states are exact, also within a document.

    Args:
        sampler: a `wids.ChunkedSampler` or `wids.DistributedChunkedSampler`, of a dataset, a view or a mixture. It says
            the order, the ranks, the tail and the epochs; leave its iteration to this sampler.
        lengths: tokens of each sample, whole numbers; or the name of a column. A sample without a token is left out.
        pack_tokens: the most tokens of a pack.
        cut: True: a document is cut where a pack is full, and goes on in the next one. False: documents stay whole, and
            are chosen such that packs are full (best fit within a block).
        separators: tokens after each document, 0 or 1, that `wids.pack_collate` writes.
        batch_size: packs in a batch; the last batch of a block may have fewer.
        too_long: without cutting, a document that is longer than a pack is an ``"error"``, or is left out (``"skip"``),
            of which a warning has their number.
        block: samples of a lane that are put into packs together; None: some 64 batches, or four windows if that is
            more; with ``cut=False``, no more than a window.
        share: of a mixture, weights are shares of ``"samples"``, or of ``"tokens"``, also those of ``reweight``: by the
            tokens that packs have of a sample of each source, on average. Give all sources weights then.

    Attributes:
        sampler: the argument.
        pack_tokens: the argument.
        batch_size: the argument.
        skipped: samples of the dataset that are left out.

    Raises:
        InputError: lengths that are no whole numbers, are not as many as there are samples, or exceed ``pack_tokens``;
            a bad setting; the sampler's own chunks were assigned; the dataset does not pass pieces on to the samples.
            TypeError: it is no such sampler.

    Example:
        >>> dataset = wids.ShardListDataset("train.json")
        >>> lengths = [9, 1, 8, 2, 7, 3, 9, 1, 8, 2, 7, 3]
        >>> packs = wids.PackSampler(wids.ChunkedSampler(dataset), lengths=lengths, pack_tokens=20)
        >>> [dataset[index]["__piece__"] for index in next(iter(packs))]
        [(0, 9), (0, 7), (0, 1), (0, 3)]
    """

    pack_tokens: int
    batch_size: int
    skipped: int

    @suggest_names
    def __init__(
        self,
        sampler: ChunkedSampler,
        *,
        lengths: Any,
        pack_tokens: int,
        cut: bool = True,
        separators: Literal[0, 1] = 0,
        batch_size: int = 1,
        too_long: Literal["error", "skip"] = "error",
        block: int | None = None,
        share: Literal["samples", "tokens"] = "samples",
    ) -> None:
        self._take(sampler)
        if not takes_marks(sampler.dataset):
            raise InputError(
                f"a pack puts __piece__ into the samples of a ShardListDataset, and {a_kind(sampler.dataset)} is not "
                "known to pass the sampler's indices on to one unchanged. Take a view, dataset.select(indices), not a "
                "torch Subset (a dataset that reads index.piece, or passes indices on, can set "
                "takes_marked_indices = True)"
            )
        values = self._values("lengths", lengths)
        rule = make_pack_rule(
            len(sampler.dataset),
            lengths=values,
            pack_tokens=pack_tokens,
            cut=cut,
            separators=separators,
            batch_size=batch_size,
            too_long=too_long,
            share=share,
        )
        self.pack_tokens, self.batch_size, self.skipped = rule.pack_tokens, rule.batch_size, rule.skipped
        if self.skipped:
            logger.warning(
                "%d of %d samples are left out of all packs: those without a token%s",
                *(self.skipped, len(sampler.dataset), "" if cut else f", and those of more than {rule.pack_tokens}"),
            )
        population = sampler.__wids__().population
        if isinstance(population, MixturePopulation):
            population.count_tokens(rule.means(population.parts))
        else:
            rule.means(None)
        self._cut_by(rule, block)


@suggest_names
def pack_collate(
    field: str, *, pack_tokens: int | None = None, separator: int | None = None, pad: int = 0
) -> PackCollate:
    """A ``collate_fn`` for batches of a `wids.PackSampler`.

    Args:
        field: of samples, after their transformations: their tokens, (n,) integers, an array, a tensor or a list.
        pack_tokens: packs are filled up to so many, so that all batches have one shape; None: to the longest.
        separator: the token that follows each document, if the sampler has ``separators=1``.
        pad: the token that fills up.

    Returns:
        A function of samples, which can be pickled.

    Example:
        >>> collate = wids.pack_collate("tokens", pack_tokens=4, pad=0)
        >>> pieces = [((0, 2), 2, [5, 6]), ((1, 2), 3, [7, 8, 9])]
        >>> samples = [{"__piece__": p, "__length__": n, "__pack__": 0, "tokens": t} for p, n, t in pieces]
        >>> collate(samples)["input_ids"].tolist(), collate(samples)["cu_seqlens"].tolist()
        ([[5, 6, 8, 0]], [0, 2, 3, 4])
    """
    return PackCollate(field, pack_tokens=pack_tokens, separator=separator, pad=pad)


class PackCollate:
    """A function of samples that makes the tensors of their packs; `pack_collate` makes it.

    A call returns a dict, for P packs of T tokens and pieces of documents in turn:

    - ``input_ids``: (P, T) int64;
    - ``labels``: (P, T) int64, the same, but -100 where there is nothing to predict: the first token of each piece,
      what fills up, and pieces that fill up the tail (``tail="mask"``);
    - ``position_ids``: (P, T) int64, from 0 in each piece;
    - ``doc_ids``: (P, T) int32, the number of the piece, -1 where it is filled up: FlexAttention's mask is
      ``doc_ids[b, q] == doc_ids[b, k]``;
    - ``cu_seqlens``: (n + 1,) int32, where pieces begin and end in the packs, one after another, for FlashAttention;
      what fills up is a sequence of its own;
    - ``max_seqlen``: int, of those.

    Args:
        field: see `pack_collate`.
        pack_tokens: see there.
        separator: see there.
        pad: see there.
    """

    def __init__(self, field: str, *, pack_tokens: int | None, separator: int | None, pad: int) -> None:
        self._field, self._pad = field, parse_int("pad", pad)
        self._separator = None if separator is None else parse_int("separator", separator)
        self._size = None if pack_tokens is None else parse_int("pack_tokens", pack_tokens, minimum=1)

    def __repr__(self) -> str:
        return f"wids.pack_collate({self._field!r}, pack_tokens={self._size}, separator={self._separator})"

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Make the tensors.

        Args:
            samples: of a batch.

        Raises:
            InputError: a sample is not of a `wids.PackSampler`, has no such field, or other tokens than ``lengths``
                said; a pack is longer than ``pack_tokens``; there are separators, and none is said, or the reverse.
        """
        packs: list[list[np.ndarray[Any, Any]]] = []
        valid: list[list[bool]] = []
        last, is_whole = -1, False
        for sample in samples:
            number = sample.get("__pack__") if hasattr(sample, "get") else None
            if number is None or not {"__piece__", "__length__"} <= {*sample}:
                raise InputError(
                    f"a sample has no __piece__, __length__ or __pack__ ({shown(sample)}); pack_collate is for "
                    "DataLoader(batch_sampler=wids.PackSampler(...)) over a dataset of wids"
                )
            if number != last:
                packs.append([])
                valid.append([])
                last, is_whole = number, False
            packs[-1].append(self._tokens_of(sample))
            first, end = sample["__piece__"]
            if is_whole and first == 0:
                raise InputError(
                    f"pack_collate has separator={self._separator}, and a document ends without one: give the sampler "
                    "separators=1, too, or no separator here"
                )
            is_whole = self._separator is not None and end == sample["__length__"]
            valid[-1].append(sample.get("__valid__") is not False)
        return self._join(packs, valid)

    def _tokens_of(self, sample: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        """The tokens of a sample's piece: (n,)."""
        (first, end), length = sample["__piece__"], sample["__length__"]
        where = f"sample {sample.get('__key__')!r} of {sample.get('__shard__')}"
        if self._field not in sample:
            raise InputError(f"{where} has no field {self._field!r}; it has {shown(sorted(map(str, sample)))}")
        value = sample[self._field]
        try:
            tokens = np.asarray(value.cpu() if isinstance(value, torch.Tensor) else value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"{where}: no array is made of {self._field!r}, {a_kind(value)}: {error}") from error
        if tokens.ndim != 1 or (tokens.dtype.kind not in "iu" and len(tokens)):
            raise InputError(
                f"{where}: {self._field!r} is {a_kind(value)} of shape {tokens.shape} and type {tokens.dtype}; it must "
                "be token numbers, (n,) integers"
            )
        if len(tokens) != length:
            raise InputError(f"{where} has {len(tokens)} tokens in {self._field!r}, and lengths said {length}")
        piece = tokens[first:end].astype(np.int64)
        if end > length:
            if self._separator is None:
                raise InputError("the sampler has separators=1; give pack_collate(separator=) the token")
            piece = np.append(piece, np.int64(self._separator))
        return piece

    def _join(self, packs: list[list[np.ndarray[Any, Any]]], valid: list[list[bool]]) -> dict[str, Any]:
        sizes = [sum(map(len, pieces)) for pieces in packs]
        width = max(sizes, default=0) if self._size is None else self._size
        if max(sizes, default=0) > width:
            raise InputError(f"a pack has {max(sizes)} tokens, more than pack_tokens={width} of pack_collate")
        shape = len(packs), width
        ids, labels = np.full(shape, self._pad, np.int64), np.full(shape, _IGNORED, np.int64)
        positions, documents = np.zeros(shape, np.int64), np.full(shape, -1, np.int32)
        ends, count = [0], 0
        for row, pieces in enumerate(packs):
            at = 0
            for piece, is_valid in zip(pieces, valid[row], strict=True):
                where = slice(at, at + len(piece))
                ids[row, where], positions[row, where] = piece, np.arange(len(piece))
                documents[row, where] = count
                if is_valid:
                    labels[row, at + 1 : where.stop] = piece[1:]
                at, count = where.stop, count + 1
                ends.append(row * width + at)
            if at < width:
                ends.append((row + 1) * width)
        arrays = {"input_ids": ids, "labels": labels, "position_ids": positions, "doc_ids": documents}
        return {
            **{name: torch.from_numpy(array) for name, array in arrays.items()},
            "cu_seqlens": torch.tensor(ends, dtype=torch.int32),
            "max_seqlen": int(np.diff(ends).max(initial=0)),
        }

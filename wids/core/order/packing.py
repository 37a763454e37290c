"""Packs of documents: each block's tokens are laid end to end, shared out among the lanes alike, and cut at the length.

    a block, 2 lanes     lane 0: aaaaa bb cccccc     lane 1: d eeeee ffff        pack_tokens=4, cut=True
    its tokens           aaaaabbccccccdeeeeeffff                  lane after lane, in the order of each
    shares               aaaaabbccccc|cdeeeeeffff                 as many tokens for each lane, or one more
    packs                aaaa abbc ccc    cdee eeef fff           a step is a pack of each lane

So all packs of a block are full but those of its last two steps, which are short by less than a step together. A block
has 64 steps or more: less than 1/64 of its room is empty. A rank reads its own lane, and documents of the lanes beside
it where the block begins and ends. With ``cut=False`` a document belongs to the share that holds its
middle, the documents of a share are put into packs from the longest on, each into the fullest pack that has room (best
fit), and packs are halved where a lane would have fewer batches than another.

Packs do not depend on the number of ranks. Where ranks do not divide the batches of an epoch, the batches of the last
round are cut, or halved, until each rank has one (`PackRule.split`). Nothing is carried from one block to the next.

Pure.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar
from zlib import crc32

import numpy as np

from wids.core.order.batch import PACKS, Batch, Pieces
from wids.core.order.permutation import STEPS, permutation
from wids.core.order.validation import parse_int
from wids.errors import InputError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from wids.core.order.batch import BlockRows, Rule
    from wids.core.order.layout import SourceSpan
    from wids.core.order.permutation import Indices

    Numbers = NDArray[Any]

# Batches of a lane in a block: at its end, less than one batch of each lane is empty.
_STEPS, _MOST_ROWS = 64, 1 << 40
# Windows of a lane in a block of documents that are cut. A rank reads some documents of the lanes beside its own where
# blocks begin and end, so the more windows, the fewer of those lanes' shards.
_WINDOWS = 4
# Samples of a block of all lanes, about, if that is fewer: a rank holds them, and cuts them before its first pack.
_MOST_SAMPLES = 1 << 22
# Tokens of a document, and of a pack; tokens of all documents.
_MOST_TOKENS, _MOST_TOTAL = 1 << 40, 1 << 62
_PIECE = 1 << 20
# Tokens of the last batch of a lane in a block, unless that is more than half of one, or there are fewer.
_LEAST = 1 << 12


@dataclass(frozen=True, kw_only=True, eq=False)
class PackRule:
    """The bounds of packs, and of batches of them.

    Attributes:
        lengths: tokens of each sample, integers, 0 or more: (nsamples,).
        pack_tokens: the most tokens of a pack.
        is_cut: documents are cut where a pack is full.
        separators: tokens that follow each document.
        batch_size: packs in a batch, fewer at the end of a block.
        skips: a document that is longer than a pack is left out; False: it is an error, unless it is cut.
        skipped: number of samples that are left out: those, and those without a token.
        mean: tokens of a sample with its separators, on average.
        identity: all of this, as plain values for a state.
        shares_tokens: weights of a mixture are shares of tokens, which its sampler's order has in it.
    """

    kind: ClassVar[str] = PACKS
    is_sparse: ClassVar[bool] = True

    lengths: Numbers
    pack_tokens: int
    is_cut: bool
    separators: int
    batch_size: int
    skips: bool
    skipped: int
    mean: float
    identity: dict[str, Any]
    shares_tokens: bool = False

    @property
    def per_batch(self) -> float:
        """Number of documents of a batch, about."""
        return self.batch_size * self.pack_tokens / self.mean

    @property
    def rows(self) -> int:
        """Rows of a block of one lane that has some 64 batches."""
        return max(int(min(_STEPS * self.per_batch, _MOST_ROWS)), 1)

    @property
    def keeps_order(self) -> bool:
        """True if documents are cut, so that they keep the order of their lane."""
        return self.is_cut

    def block_rows(self, lanes: int, window_rows: int) -> int:
        """Rows of a block; see `wids.core.order.batch.Rule`."""
        rows, most = self.rows, max(_MOST_SAMPLES // lanes, 1)
        return min(max(rows, _WINDOWS * window_rows) if self.is_cut else min(rows, window_rows), most)

    def tokens_of(self, samples: Indices) -> Indices:
        """Tokens of n documents, separators included, 0 for those that are left out: (n,) -> (n,)."""
        tokens: Indices = self.lengths[samples].astype(np.int64) + self.separators
        if not self.is_cut:
            tokens[tokens > self.pack_tokens] = 0
        return tokens

    def means(self, parts: Sequence[SourceSpan] | None) -> dict[str, float] | None:
        """Tokens of a sample of each source on average, if weights are shares of tokens; None: they are not.

        Args:
            parts: the sources of a mixture; None: it is none.

        Raises:
            InputError: they are shares of tokens, and it is no mixture, or packs have no token of a source.
        """
        if not self.shares_tokens:
            return None
        if parts is None:
            raise InputError("share is 'tokens', and the dataset is no mixture; wids.mix makes one")
        means = {part.name: self._mean_of(part.first, part.last) for part in parts if part.last > part.first}
        empty = [name for name, mean in means.items() if not mean]
        if empty:
            raise InputError(
                f"share is 'tokens', and packs have no token of source {empty[0]!r}: its documents are empty, or left "
                "out; leave it out of the mixture"
            )
        return means

    def _mean_of(self, first: int, last: int) -> float:
        """Tokens of the samples ``first .. last`` on average, as packs have them."""
        pieces = (np.arange(at, min(at + _PIECE, last)) for at in range(first, last, _PIECE))
        return sum(int(self.tokens_of(some).sum()) for some in pieces) / (last - first)

    def for_samples(self, samples: int, read: Callable[[str], Any]) -> PackRule:
        """The same bounds for so many other samples; see `wids.core.order.batch.Rule`.

        Raises:
            InputError: they do not fit.
        """
        said: Any = {name: self.identity[name] for name in ("pack_tokens", "cut", "separators", "batch_size")}
        return make_pack_rule(samples, lengths=read("lengths"), too_long=self.identity["too_long"], **said)

    def cut(self, rows: BlockRows) -> PackBlock:
        """The packs of a block."""
        return PackBlock(rows, self)

    def split(self, batches: Sequence[Batch], count: int) -> list[Batch] | None:
        """The same pieces in more batches, ``count``, none empty; None: they are too few.

        Of fewer tokens than that, the last one comes again.
        """
        if self.is_cut:
            return _split_tokens(batches, count, self.pack_tokens)
        return _split_documents(batches, count)


def make_pack_rule(
    samples: int,
    *,
    lengths: Any,
    pack_tokens: Any,
    cut: Any = True,
    separators: Any = 0,
    batch_size: Any = 1,
    too_long: Any = "error",
    share: Any = "samples",
) -> PackRule:
    """The rule that arguments of `wids.PackSampler` say.

    Args:
        samples: of the dataset.
        lengths: of each of them: (samples,).
        pack_tokens: see there.
        cut: see there.
        separators: see there.
        batch_size: see there.
        too_long: see there.
        share: see there.

    Raises:
        InputError: as there.
    """
    if cut not in (True, False):
        raise InputError(f"cut is {shown(cut)}; it must be True or False")
    if too_long not in ("error", "skip"):
        raise InputError(f"too_long is {shown(too_long)}; it must be 'error' or 'skip'")
    if share not in ("samples", "tokens"):
        raise InputError(f"share is {shown(share)}; it must be 'samples' or 'tokens'")
    if not isinstance(separators, int) or separators not in (0, 1):
        raise InputError(f"separators is {shown(separators)}; it must be 0 or 1, the tokens after each document")
    size = parse_int("pack_tokens", pack_tokens, minimum=1)
    each = parse_int("batch_size", batch_size, minimum=1)
    if size * each > _MOST_TOKENS:
        raise InputError(f"pack_tokens is {size:,}, and batch_size {each:,}: more than 2**40 tokens in a batch")
    if np.shape(lengths) != (samples,):
        raise InputError(
            f"lengths has the shape {np.shape(lengths)}, and the dataset {samples:,} samples; give one for each"
        )
    total, longest, skipped = _look_at_tokens(
        lengths, size - separators, separators=separators, cuts=cut, skips=too_long == "skip"
    )
    if skipped == samples > 0:
        raise InputError(
            f"none of {samples:,} samples is left for a pack: all are empty, or longer than pack_tokens={size}"
        )
    return PackRule(
        lengths=lengths,
        pack_tokens=size,
        is_cut=bool(cut),
        separators=int(separators),
        batch_size=each,
        skips=too_long == "skip",
        skipped=skipped,
        mean=max((total + samples * separators) / samples, 1e-3) if samples else 1.0,
        identity={
            "pack_tokens": size,
            "cut": bool(cut),
            "separators": int(separators),
            "batch_size": each,
            "too_long": too_long,
            "lengths": {"samples": samples, "total": total, "longest": longest},
        },
        shares_tokens=share == "tokens",
    )


def _look_at_tokens(lengths: Numbers, most: int, *, separators: int, cuts: bool, skips: bool) -> tuple[int, int, int]:
    """(total, the longest, number of documents that are left out) of lengths; they are read once.

    Raises:
        InputError: one is no whole number from 0 on; one is longer than ``most``, is not to be cut, and not to be left
            out.
    """
    if lengths.dtype.kind not in "iuf":
        raise InputError(f"lengths are of type {lengths.dtype}; they must be whole numbers of tokens")
    total, longest, skipped = 0, 0, 0
    for first in range(0, len(lengths), _PIECE):
        some = lengths[first : first + _PIECE]
        low, high = some.min(), some.max()
        if not (low >= 0 and high <= _MOST_TOKENS) or (lengths.dtype.kind == "f" and (some != np.floor(some)).any()):
            is_right = (some >= 0) & (some <= _MOST_TOKENS) & (some == np.floor(some))
            at = first + int(np.flatnonzero(~is_right)[0])
            raise InputError(
                f"the length of sample {at} is {lengths[at]}; the length of a document is a whole number of tokens, "
                "from 0 to 2**40"
            )
        total, longest = total + int(some.sum(dtype=np.int64)), max(longest, int(high))
        if low == 0 and not separators:
            skipped += int(np.count_nonzero(some == 0))
        if high > most and not cuts:
            if not skips:
                at = first + int(np.flatnonzero(some > most)[0])
                raise InputError(
                    f"sample {at} has {lengths[at]} tokens{' and a separator' * separators}, more than "
                    f"pack_tokens={most + separators}; raise it, say cut=True, or leave out such samples by "
                    "too_long='skip', which counts them",
                    hint="too_long",
                )
            skipped += int(np.count_nonzero(some > most))
    if total + len(lengths) > _MOST_TOTAL:
        raise InputError(f"the lengths add up to {total:,} tokens, more than 2**62")
    return total, longest, skipped


class PackBlock:
    """A block of rows, cut into packs.

    Attributes:
        position: of the block.
        size: number of samples in it.
        lanes: L.
    """

    position: int
    size: int
    lanes: int

    def __init__(self, rows: BlockRows, rule: PackRule) -> None:
        self._rows, self._rule = rows, rule
        self.position, self.size, self.lanes = rows.position, rows.samples.size, int(rows.samples.shape[1])
        # Lane after lane, without those that fill up the last row of an epoch: all tokens are shared out as it is.
        places = np.arange(self.size).reshape(-1, self.lanes).T.reshape(-1)
        self._places = places[places < rows.real] if rows.real < self.size else places
        samples = rows.samples.T.reshape(-1)
        self._samples = samples[places < rows.real] if rows.real < self.size else samples
        self._ends = np.cumsum(rule.tokens_of(self._samples))
        self._total = int(self._ends[-1]) if len(self._ends) else 0
        self._most = rule.batch_size * rule.pack_tokens
        share = -(-self._total // self.lanes) if self.lanes else 0
        self._steps = -(-share // self._most)
        self._is_single = self._total < self.lanes or self._most == 1  # a token in each batch
        self._packed: list[tuple[Indices, Indices]] | None = None if rule.is_cut else self._pack()

    def __len__(self) -> int:
        if self._packed is not None:
            return len(self._packed)
        return self._total if self._is_single else self._steps * self.lanes

    def batch(self, number: int) -> Batch:
        """Batch ``number`` of all lanes' (step by step)."""
        return self.batches([number])[0]

    def batches(self, numbers: Sequence[int]) -> list[Batch]:
        """Some of them."""
        if not numbers:
            return []
        if self._packed is not None:
            return [self._batch_of(*self._packed[number]) for number in numbers]
        each, packs, at, first, last = _cut_at(self._ends, *self._spans(np.asarray(numbers)), self._rule.pack_tokens)
        edges = np.searchsorted(each, np.arange(len(numbers) + 1)).tolist()
        whole, pieces = self._make(at, packs, first, last)
        return [_take(whole, slice(lo, hi), pieces.take(slice(lo, hi))) for lo, hi in pairwise(edges)]

    def checksum(self) -> int:
        """CRC-32 of the lengths."""
        return crc32(self._rule.lengths[self._samples].astype("<i8").tobytes())

    def _spans(self, numbers: Indices) -> tuple[Indices, Indices]:
        """The first token of n batches that are cut, of the block's, and one past the last: (n,) -> (n,), (n,)."""
        if self._is_single:
            return numbers, numbers + 1
        steps, lanes = np.divmod(numbers, self.lanes)
        edges = np.array([self._total * lane // self.lanes for lane in range(self.lanes + 1)])
        first, last = edges[lanes], edges[lanes + 1]
        # The last batch is not next to empty: ranks may have to share it, and shares differ by a token.
        least = min(max(self._most // 2, 1), _LEAST)
        end = np.maximum(np.minimum(first + self._most * (self._steps - 1), last - least), first)
        is_last = steps == self._steps - 1
        lo = first + steps * self._most
        return np.where(is_last, end, lo), np.where(is_last, last, np.minimum(lo + self._most, end))

    def _batch_of(self, at: Indices, packs: Indices) -> Batch:
        """A batch of whole documents."""
        tokens = self._ends[at] - np.where(at > 0, self._ends[at - 1], 0)
        return self._make(at, packs, np.zeros_like(at), tokens)[0]

    def _make(self, at: Indices, packs: Indices, first: Indices, last: Indices) -> tuple[Batch, Pieces]:
        samples, places = self._samples[at], self._places[at]
        seeds = None if self._rows.seeds is None else self._rows.seeds.reshape(-1)[places]
        pieces = Pieces(packs, first, last, self._rule.lengths[samples].astype(np.int64))
        return Batch(samples, np.zeros(len(at), np.bool_), seeds, places + self.position, pieces), pieces

    # --- best fit

    def _pack(self) -> list[tuple[Indices, Indices]]:
        """(documents, their packs) of each batch, step by step, as many for each lane where there are enough."""
        tokens = np.diff(self._ends, prepend=0)
        kept = np.flatnonzero(tokens)
        middles = 2 * self._ends[kept] - tokens[kept]  # doubled: of the token in the middle of each
        edges = [2 * (self._total * lane // self.lanes) for lane in range(1, self.lanes)]
        shares = np.split(kept, np.searchsorted(middles, edges, side="left"))
        each = self._rule.batch_size
        packed = [_best_fit(tokens[share], self._rule.pack_tokens) for share in shares]
        steps = max(-(-len(packs) // each) for packs in packed) if packed else 0
        batches = []
        for lane, (share, packs) in enumerate(zip(shares, packed, strict=True)):
            halved = _halve(packs, tokens[share], (steps - 1) * each + 1)
            batches.append(self._in_batches(share, halved, lane))
        return [lane[step] for step in range(steps) for lane in batches if step < len(lane)]

    def _in_batches(self, share: Indices, packs: list[list[int]], lane: int) -> list[tuple[Indices, Indices]]:
        rows, each = self._rows, self._rule.batch_size
        if rows.is_shuffled:
            where = {"seed": rows.seed, "epoch": rows.epoch, "stream": STEPS, "position": self.position + lane}
            order = permutation(len(packs), **where).tolist()
        else:
            order = sorted(range(len(packs)), key=lambda k: min(packs[k]))
        batches = []
        for first in range(0, len(order), each):
            some = [sorted(packs[k]) for k in order[first : first + each]]
            numbers = np.repeat(np.arange(len(some)), [len(pack) for pack in some])
            batches.append((share[np.concatenate([np.array(pack, np.int64) for pack in some])], numbers))
        return batches


def _cut_at(ends: Indices, lo: Indices, hi: Indices, size: int) -> tuple[Indices, Indices, Indices, Indices, Indices]:
    """The pieces of batches: (batch, its pack, document, first token, one past the last) of each.

    Args:
        ends: of the documents, in tokens, ascending: (n,).
        lo: the first token of each batch: (nbatches,).
        hi: one past its last; more than ``lo``.
        size: of a pack.
    """
    batches, packs = _count_in(-((lo - hi) // size))
    starts = lo[batches] + packs * size
    stops = np.minimum(starts + size, hi[batches])
    first = np.searchsorted(ends, starts, side="right")
    pack, at = _count_in(np.searchsorted(ends, stops, side="left") - first + 1)
    at += first[pack]
    begins = np.where(at > 0, ends[at - 1], 0)
    lows, highs = np.maximum(starts[pack], begins), np.minimum(stops[pack], ends[at])
    if not (is_piece := highs > lows).all():  # documents without a token
        pack, at, begins, lows, highs = (values[is_piece] for values in (pack, at, begins, lows, highs))
    return batches[pack], packs[pack], at, lows - begins, highs - begins


def _count_in(counts: Indices) -> tuple[Indices, Indices]:
    """(its group, its number in the group) of each member of n groups of so many members: (n,) -> (nmembers,) each."""
    groups = np.repeat(np.arange(len(counts)), counts)
    return groups, np.arange(len(groups)) - np.repeat(np.cumsum(counts) - counts, counts)


def _best_fit(tokens: Indices, size: int) -> list[list[int]]:
    """Packs of documents, by their numbers, none longer than ``size``; each goes into the fullest that has room."""
    packs: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (room that is left, pack), ascending
    for k in np.argsort(-tokens, kind="stable").tolist():
        length = int(tokens[k])
        at = bisect_left(rooms, (length, -1))
        if at < len(rooms):
            room, pack = rooms.pop(at)
            packs[pack].append(k)
        else:
            room, pack = size, len(packs)
            packs.append([k])
        if room > length:
            insort(rooms, (room - length, pack))
    return packs


def _halve(packs: list[list[int]], tokens: Indices, count: int) -> list[list[int]]:
    """Packs of which those with the most documents are halved until they are ``count``, if there are as many."""
    while len(packs) < count:
        k = max(range(len(packs)), key=lambda k: len(packs[k]), default=0)
        if not packs or len(packs[k]) < 2:
            break
        # From the longest on, each to the half that has fewer tokens.
        halves: list[list[int]] = [[], []]
        sums = [0, 0]
        for one in sorted(packs[k], key=lambda one: (-int(tokens[one]), one)):
            side = int(sums[1] < sums[0])
            halves[side].append(one)
            sums[side] += int(tokens[one])
        packs = [*packs[:k], *halves, *packs[k + 1 :]]
    return packs


# --- the last round of an epoch


def _join(batches: Sequence[Batch]) -> tuple[Batch, Pieces]:
    """One batch of several, whose packs are numbered on."""
    pieces = [batch.pieces for batch in batches if batch.pieces is not None]
    packs, before = [], 0
    for some in pieces:
        packs.append(some.packs + before)
        before += int(some.packs[-1]) + 1
    rest = [np.concatenate([getattr(some, name) for some in pieces]) for name in ("first", "last", "lengths")]
    joined = Pieces(np.concatenate(packs), *rest)
    values = [np.concatenate(parts) for parts in zip(*(batch[:2] for batch in batches), strict=True)]
    seeds = (
        None
        if batches[0].seeds is None
        else np.concatenate([batch.seeds for batch in batches if batch.seeds is not None])
    )
    positions = np.concatenate([batch.positions for batch in batches])
    return Batch(values[0], values[1], seeds, positions, joined), joined


def _take(batch: Batch, where: Any, pieces: Pieces) -> Batch:
    seeds = None if batch.seeds is None else batch.seeds[where]
    return Batch(batch.samples[where], batch.fills[where], seeds, batch.positions[where], pieces)


def _split_tokens(batches: Sequence[Batch], count: int, size: int) -> list[Batch]:
    whole, pieces = _join(batches)
    # Pieces that a document was cut into, one after another, are one piece again.
    goes_on = (whole.positions[1:] == whole.positions[:-1]) & (pieces.first[1:] == pieces.last[:-1])
    begins, stops = np.flatnonzero(np.append(True, ~goes_on)), np.flatnonzero(np.append(~goes_on, True))
    pieces = pieces.take(begins)._replace(last=pieces.last[stops])
    whole = _take(whole, begins, pieces)
    ends = np.cumsum(pieces.last - pieces.first)
    total = int(ends[-1])
    edges = np.array([total * k // min(count, total) for k in range(min(count, total) + 1)])
    each, packs, at, first, last = _cut_at(ends, edges[:-1], edges[1:], size)
    split: list[Batch] = []
    for k in range(min(count, total)):
        some = each == k
        where, before = at[some], pieces.first[at[some]]
        made = Pieces(packs[some], first[some] + before, last[some] + before, pieces.lengths[where])
        split.append(_take(whole, where, made))
    return split + [split[-1]._replace(fills=np.ones_like(split[-1].fills))] * (count - len(split))


def _split_documents(batches: Sequence[Batch], count: int) -> list[Batch] | None:
    whole, pieces = _join(batches)
    tokens = pieces.last - pieces.first
    packs = [np.flatnonzero(pieces.packs == k).tolist() for k in range(int(pieces.packs[-1]) + 1)]
    packs = _halve(packs, tokens, count)
    if len(packs) < count:
        return None
    split = []
    for k in range(count):
        some = packs[len(packs) * k // count : len(packs) * (k + 1) // count]
        at = np.concatenate([np.array(sorted(pack), np.int64) for pack in some])
        numbers = np.repeat(np.arange(len(some)), [len(pack) for pack in some])
        split.append(_take(whole, at, pieces.take(at)._replace(packs=numbers)))
    return split


def mean_tokens(rule: Rule | None, parts: Sequence[SourceSpan] | None) -> dict[str, float] | None:
    """Tokens of a sample of each source on average, if a rule is of packs with shares of tokens; see `PackRule.means`.

    Raises:
        InputError: see there.
    """
    return rule.means(parts) if isinstance(rule, PackRule) else None

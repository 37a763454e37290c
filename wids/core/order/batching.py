"""Batches of like cost: each lane is cut into blocks, and each block into batches, as many in every lane.

    lane 0   | block 0: K batches | block 1: ...        a block: the same rows of all lanes
    lane 1   | block 0: K batches | block 1: ...        K: the fewest batches that every lane can be cut into

In a block, batches of a lane are of samples of one bucket, cost at most the budget, and are as equal in cost as can be;
the lanes' batches are sorted alike, so that those of a step cost about the same, and the steps come in a random order,
which is the same in all lanes. Nothing is carried from one block to the next, so any block can be cut without those
before it, and all samples of its rows are in it. Where so many samples are left out that a lane has fewer than K, the
block's batches are dealt to the lanes anew, and fewer than there are lanes come again.

A cost is compared with the budget exactly, as if lengths were fractions: by `in_units` for sums, by `most_of` for
padded batches. All else that is computed of lengths (equal costs, reports) is rounded. With limits,
`wids.core.order.budgets` makes the batches of a lane.

Pure. Samples of equal length, and those within a batch, keep the order of their lane, which is random.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice, pairwise, zip_longest
from typing import TYPE_CHECKING, Any, ClassVar
from zlib import crc32

import numpy as np

from wids.core.order.batch import BATCHES, Batch
from wids.core.order.budgets import (
    MOST_INTEGER,
    MOST_TOKENS,
    PIECE,
    Limit,
    LimitedRows,
    PaddedRows,
    SumRows,
    Sums,
    check_count,
    deal,
    in_units,
    make_limits,
    most_of,
    name_limit,
    parse_budget,
    pieces,
    to_floats,
)
from wids.core.order.permutation import STEPS, permutation
from wids.core.order.validation import parse_int
from wids.errors import InputError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from wids.core.order.batch import BlockRows
    from wids.core.order.permutation import Indices

    Numbers = NDArray[Any]

# Steps of a block, if no chunk has to hold it: more cost more memory, fewer leave less to choose from.
_STEPS, _STEPS_OF_A_BUCKET, _MOST_ROWS = 64, 4, 1 << 40
# Rows of a block with limits at least: sums of few values differ between lanes, whose batches are equally many.
_LEAST_LIMITED = 1024
# A sum that is computed in any order is less wrong than this, as a share of it.
_ROUNDED = 1e-6
# The share of a cost to which the costs of a lane's batches are made equal.
_PRECISION = 1e-3
# Rows of lanes that are kept of a block, if it has no more; batches of several lanes that are dealt together.
_MOST_KEPT, _TOGETHER = 1 << 20, 1 << 14
# Buckets that a state names.
_SHOWN_BUCKETS = 32


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchRule:
    """The bounds of a batch.

    Attributes:
        lengths: of each sample, above 0: (nsamples,); None: all are 1.
        max_cost: of a batch; None: any.
        is_padded: a batch costs its longest sample times its count; False: the sum of its lengths.
        limits: the most of the sums of other values.
        buckets: the number of the bucket of each sample: (nsamples,); None: all are in one.
        names: of the buckets, by their numbers.
        sizes: the most samples in a batch of each bucket: (nbuckets,); None: any.
        skips: a sample that costs more than a budget is left out; False: it is an error.
        skipped: number of all samples that are left out.
        per_batch: number of samples of a batch, about.
        batch_size: as given.
        identity: all of this, as plain values for a state.
    """

    kind: ClassVar[str] = BATCHES
    keeps_order: ClassVar[bool] = False

    lengths: Numbers | None
    max_cost: float | None
    is_padded: bool
    limits: tuple[Limit, ...]
    buckets: Numbers | None
    names: Sequence[Any]
    sizes: Sequence[int] | None
    skips: bool
    skipped: int
    per_batch: float
    batch_size: Any
    identity: dict[str, Any]

    def lengths_of(self, samples: Indices) -> NDArray[np.float64]:
        """The lengths of n samples, (n,), or of rows of them, (rows, lanes). All computing with lengths begins here."""
        if self.lengths is None:
            return np.ones(samples.shape)
        lengths: NDArray[np.float64] = self.lengths[samples].astype(np.float64)
        return lengths

    def cost_of(self, longest: Numbers, sums: Numbers, counts: Indices) -> Numbers:
        """Costs of n batches (n,), of their longest sample, the sum of their lengths, and their count: (n,) each."""
        return longest * counts if self.is_padded else sums

    def shares_of(self, longest: Numbers, sums: Numbers, counts: Indices, limits: Sequence[Numbers]) -> Numbers:
        """The shares of n batches of each budget, `max_tokens` first: (budgets, n).

        Args:
            longest: see `cost_of`.
            sums: see there.
            counts: see there.
            limits: the sums of the values of each limit: (n,) each.
        """
        shares = [] if self.max_cost is None else [self.cost_of(longest, sums, counts) / self.max_cost]
        shares += [values / limit.most for values, limit in zip(limits, self.limits, strict=True)]
        return np.array(shares).reshape(len(shares), len(counts))

    def for_samples(self, samples: int, read: Callable[[str], Any]) -> BatchRule:
        """The same bounds for so many other samples.

        Args:
            samples: their number.
            read: reads what is needed of them, by its name: ``lengths``, ``buckets``, or that of `name_limit`.

        Raises:
            InputError: it does not fit.
        """
        kinds: Any = {name: self.identity[name] for name in ("cost", "too_long")}
        return make_rule(
            samples,
            lengths=None if self.lengths is None else read("lengths"),
            max_tokens=self.max_cost,
            buckets=None if self.buckets is None else read("buckets"),
            batch_size=self.batch_size,
            limits={each.name: (read(name_limit(each.name)), each.most) for each in self.limits},
            **kinds,
        )

    def name_budgets(self) -> list[str]:
        """The budgets of a batch, as arguments."""
        tokens = [] if self.max_cost is None else [f"max_tokens={self.max_cost:g}"]
        return tokens + [f"{name_limit(each.name)}={each.most:g}" for each in self.limits]

    def left_out(self, samples: Indices) -> NDArray[np.bool_]:
        """True for each of n samples that costs more than a budget: (n,) -> (n,)."""
        over = np.zeros(len(samples), np.bool_)
        if self.max_cost is not None:
            over |= self.lengths_of(samples) > self.max_cost
        for limit in self.limits:
            over |= limit.of(samples) > limit.most
        return over

    def sums_of(self, samples: Indices, *, most: int | None = None) -> Sums:
        """The costs of n samples in all budgets that are sums; see `Sums.of`."""
        limits = self.limits
        if not self.is_padded and self.max_cost is not None and self.lengths is not None:
            limits = Limit("", self.lengths, self.max_cost), *limits
        return Sums.of(limits, samples, most=most)

    @property
    def is_sparse(self) -> bool:
        """True if a block may have fewer batches than lanes."""
        return self.skips

    @property
    def rows(self) -> int:
        """Rows of a block that has enough to choose from."""
        steps = max(_STEPS, _STEPS_OF_A_BUCKET * len(self.names))
        return max(int(min(steps * self.per_batch, _MOST_ROWS)), _LEAST_LIMITED if self.limits else 1)

    def block_rows(self, lanes: int, window_rows: int) -> int:
        """Rows of a block; see `wids.core.order.batch.Rule`."""
        del lanes
        return min(self.rows, window_rows)

    def cut(self, rows: BlockRows) -> Block:
        """The batches of a block."""
        return Block(rows, self)

    def split(self, batches: Sequence[Batch], count: int) -> None:
        """None: the batches of like length of a block's last round stay as they are."""


def make_rule(
    samples: int,
    *,
    lengths: Numbers | None = None,
    max_tokens: Any = None,
    cost: str = "padded",
    buckets: Any = None,
    batch_size: Any = None,
    too_long: str = "error",
    limits: Mapping[str, tuple[Any, Any]] | None = None,
) -> BatchRule:
    """The rule that arguments of `wids.BucketBatchSampler` say.

    Args:
        samples: of the dataset.
        lengths: of each of them: (samples,).
        max_tokens: see there.
        cost: see there.
        buckets: of each sample: (samples,).
        batch_size: see there.
        too_long: see there.
        limits: the name of each -> (values, (samples,), and their budget).

    Raises:
        InputError: as there.
    """
    if max_tokens is None and batch_size is None and not limits:
        raise InputError("none of max_tokens, limits and batch_size says how large a batch may be; give one or more")
    if max_tokens is not None and lengths is None:
        raise InputError(f"max_tokens is {max_tokens}, and no lengths are given; give lengths=array or column")
    for name, value, known in (("cost", cost, ("padded", "sum")), ("too_long", too_long, ("error", "skip"))):
        if value not in known:
            raise InputError(f"{name} is {value!r}; it must be {known[0]!r} or {known[1]!r}")
    limit = None if max_tokens is None else parse_budget("max_tokens", max_tokens)
    per_batch, totals = math.inf, dict[str, Any]()
    if lengths is not None:
        check_count("lengths", lengths, samples)
        if lengths.dtype.kind not in "iuf":
            raise InputError(f"lengths are of type {lengths.dtype}; they must be numbers above 0")
        mean, totals = look_at_lengths(lengths, limit, skips=too_long == "skip")
        per_batch = math.inf if limit is None else max(limit / mean, 1.0)
    made, values, most = make_limits(limits or {}, samples, skips=too_long == "skip")
    per_batch = min(per_batch, most)
    if made and max_tokens is None and batch_size is None and per_batch == math.inf and samples:
        raise InputError(f"limits bound no batch: all values of {', '.join(map(repr, values))} are 0; give batch_size")
    names: list[Any] = [None]
    numbers = None
    if buckets is not None:
        check_count("buckets", buckets, samples)
        numbers, names = number_buckets(buckets)
    sizes = _parse_sizes(batch_size, names if buckets is not None else None)
    rule = BatchRule(
        lengths=lengths,
        max_cost=limit,
        is_padded=cost == "padded" and (lengths is not None or not made),
        limits=made,
        buckets=numbers,
        names=names,
        sizes=sizes,
        skips=too_long == "skip",
        skipped=0,
        per_batch=min(per_batch, sum(sizes) / len(sizes)) if sizes else per_batch,
        batch_size=batch_size,
        identity={
            "max_tokens": limit,
            "cost": cost,
            "lengths": totals,
            "buckets": None if numbers is None else [*map(str, names)][:_SHOWN_BUCKETS],
            "batch_size": _plain_sizes(batch_size),
            "too_long": too_long,
            **({"limits": {each.name: each.most for each in made}, "values": values} if made else {}),
        },
    )
    return _count_left_out(rule, samples) if rule.skips else rule


def _count_left_out(rule: BatchRule, samples: int) -> BatchRule:
    """A rule that knows how many of all samples are left out.

    Raises:
        InputError: all are.
    """
    parts = (np.arange(first, min(first + PIECE, samples)) for first in range(0, samples, PIECE))
    skipped = sum(int(np.count_nonzero(rule.left_out(part))) for part in parts)
    if skipped == samples > 0:
        budgets = " or ".join(rule.name_budgets())
        raise InputError(f"all {samples:,} samples are longer than {budgets}; none is left for a batch")
    return replace(rule, skipped=skipped)


def parse_sizes(text: str, *, most: int = 10**12) -> int | dict[str, int]:
    """Parse ``32``, or ``BUCKET=32,BUCKET=16``.

    Raises:
        InputError: it is neither, or a number below 1 or above ``most``.
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, is_named, count = part.rpartition("=")
        if not count.strip().isdecimal() or not 1 <= int(count) <= most or (not is_named and text != part):
            raise InputError(
                f"{text!r:.200} is neither a number of samples from 1 to {most:,} nor BUCKET=N,BUCKET=N with one for "
                "each bucket"
            )
        if not is_named:
            return int(count)
        if name in sizes:
            raise InputError(f"{text!r:.200} has bucket {name!r:.80} twice")
        sizes[name] = int(count)
    return sizes


def name_sizes(sizes: int | dict[str, int] | None, buckets: Numbers | None) -> int | dict[Any, int] | None:
    """The result of `parse_sizes`, with the values of buckets for their names."""
    if not isinstance(sizes, dict) or buckets is None:
        return sizes
    by_name = {str(name): name for name in set(buckets.tolist())}
    return {by_name.get(name, name): size for name, size in sizes.items()}


def _parse_sizes(sizes: Any, names: Sequence[Any] | None) -> list[int] | None:
    """The batch size of each bucket."""
    if sizes is None:
        return None
    if not isinstance(sizes, Mapping):
        return [parse_int("batch_size", sizes, minimum=1)] * len(names or [None])
    if names is None:
        raise InputError("batch_size is a dict, and there are no buckets; give buckets=array or column, or one number")
    missing = [name for name in names if name not in sizes]
    if missing:
        raise InputError(f"batch_size has none of bucket {shown(missing[0])}; it has {shown(list(sizes))}")
    return [parse_int(f"batch_size[{name!r}]", sizes[name], minimum=1) for name in names]


def _plain_sizes(sizes: Any) -> Any:
    if isinstance(sizes, Mapping):
        return {str(name): parse_int(f"batch_size[{name!r}]", size, minimum=1) for name, size in sizes.items()}
    return None if sizes is None else parse_int("batch_size", sizes, minimum=1)


def look_at_lengths(lengths: Numbers, max_cost: float | None, *, skips: bool) -> tuple[float, dict[str, Any]]:
    """(mean, totals for a state) of lengths; they are read once.

    Raises:
        InputError: one is not above 0, or not a number; one is above ``max_cost``, and none is to be skipped; they are
            too large to be added up.
    """
    total, most, is_exact = 0.0, 0.0, lengths.dtype.kind == "f"
    for first, some in pieces(lengths):
        if not is_exact and some.max() > MOST_INTEGER:
            at = first + int(some.argmax())
            raise InputError(f"the length of sample {at} is {lengths[at]}; an integer length is at most 2**53")
        piece = to_floats(some)
        low, high = piece.min(), piece.max()
        if not (low > 0 and high < math.inf):  # also where one is no number
            at = first + int(np.flatnonzero(~((piece > 0) & (piece < math.inf)))[0])
            raise InputError(f"the length of sample {at} is {lengths[at]}; lengths are numbers above 0")
        if float(high) * len(lengths) > MOST_TOKENS:
            at = first + int(piece.argmax())
            raise InputError(
                f"the length of sample {at} is {lengths[at]}, and {len(lengths):,} such lengths add up to more than "
                f"{MOST_TOKENS:g}; give lengths in a larger unit"
            )
        if max_cost is not None and high > max_cost and not skips:
            at = first + int(np.flatnonzero(piece > max_cost)[0])
            raise InputError(
                f"sample {at} has length {lengths[at]}, more than max_tokens={max_cost:g} of a whole batch; raise "
                "it, or leave out such samples by too_long='skip', which counts them",
                hint="too_long",
            )
        total, most = total + float(some.sum(dtype=np.float64)), max(most, float(high))
    n = len(lengths)
    return total / n if n else 1.0, {"samples": n, "total": total, "longest": most}


def _budget_for(length: float, count: int) -> float:
    """The least budget, but for rounding, that so many samples of a length fit into."""
    product = length * count
    return product if most_of(length, product) >= count else math.nextafter(product, math.inf)


class Block:
    """A block of rows, cut.

    Args:
        rows: the samples, and all else that batches depend on.
        rule: the bounds of a batch.

    Attributes:
        position: of the block.
        size: number of samples in it.
        lanes: L.
        steps: batches of each lane.
    """

    position: int
    size: int
    lanes: int
    steps: int

    def __init__(self, rows: BlockRows, rule: BatchRule) -> None:
        samples = rows.samples
        self._seeds, self._rule = rows.seeds, rule
        self._samples, self.position, self.size = samples, rows.position, samples.size
        self.lanes = int(samples.shape[1])
        self._real = rows.real
        self._lanes: dict[int, _LaneRows] = {}
        is_plain = rule.is_padded and rule.buckets is None and not rule.limits
        self.steps, count = _look_at_padded(rule, samples) if is_plain else self._look()
        while not rule.is_padded and not self._fits():
            self.steps += 1 + (self.steps // _STEPS if rule.limits else 0)
        self._dealt: list[tuple[int, Indices, bool]] | None = None
        if count < self.steps:
            self._dealt = self._deal(is_dropping=rows.is_dropping)
            self.steps = len(self._dealt) // self.lanes
        where = {"seed": rows.seed, "epoch": rows.epoch, "stream": STEPS, "position": rows.position}
        self._order = permutation(self.steps, **where) if rows.is_shuffled else np.arange(self.steps)
        self._batches: dict[int, list[Indices]] = {}

    def __len__(self) -> int:
        return self.steps * self.lanes

    def batch(self, number: int) -> Batch:
        """Batch ``number`` of all lanes' (step by step)."""
        step, lane = divmod(number, self.lanes)
        step, is_again = int(self._order[step]), False
        if self._dealt is not None:
            lane, rows, is_again = self._dealt[step * self.lanes + lane]
        else:
            if lane not in self._batches:
                self._batches[lane] = self._lane(lane).cut(self.steps)
            rows = self._batches[lane][step]
        seeds = None if self._seeds is None else self._seeds[rows, lane]
        at = rows * self.lanes + lane
        return Batch(self._samples[rows, lane], (at >= self._real) | is_again, seeds, at + self.position)

    def batches(self, numbers: Sequence[int]) -> list[Batch]:
        """Some of them."""
        return [self.batch(number) for number in numbers]

    def checksum(self) -> int:
        """CRC-32 of the lengths, the limits' values and the buckets."""
        checksum, rule = crc32(self._rule.lengths_of(self._samples).astype("<f8").tobytes()), self._rule
        for limit in rule.limits:
            checksum = crc32(limit.of(self._samples).astype("<f8").tobytes(), checksum)
        if rule.buckets is None:
            return checksum
        return crc32(rule.buckets[self._samples].astype("<i8").tobytes(), checksum)

    def _lane(self, number: int) -> _LaneRows:
        """The rows of a lane; they are kept where few are, because each takes some 100 bytes."""
        rows = self._lanes.get(number)
        if rows is None:
            rows = _LaneRows(self._rule, self._samples[:, number])
            if self.size <= _MOST_KEPT:
                self._lanes[number] = rows
        return rows

    def _fits(self) -> bool:
        """True if each lane can be cut into `steps` batches, of costs that are sums."""
        lanes = (self._lane(lane) for lane in range(self.lanes))
        if not self._rule.limits:
            return all(lane.fits(self.steps) for lane in lanes)
        while some := list(islice(lanes, max(_TOGETHER // max(self.steps, 1), 1))):
            parts = [part for lane in some for part in lane.limited(self.steps)]
            if parts and not deal(parts):
                return False
        return True

    def _look(self) -> tuple[int, int]:
        """(batches that each lane takes at least, rows that each lane has at least)."""
        fewest, rows = 0, self._samples.shape[0] if self.lanes else 0
        for number in range(self.lanes):
            lane = self._lane(number)
            fewest, rows = max(fewest, lane.fewest), min(rows, len(lane))
        return fewest, rows

    def _deal(self, *, is_dropping: bool) -> list[tuple[int, Indices, bool]]:
        """(lane, rows, True if they come again) of all batches, step by step, as many for each lane."""
        steps = zip_longest(*(self._lane(lane).cut(self.steps) for lane in range(self.lanes)))
        dealt = [(lane, rows, False) for step in steps for lane, rows in enumerate(step) if rows is not None]
        if is_dropping:
            return dealt[: len(dealt) - len(dealt) % self.lanes]
        return dealt + [(*dealt[-1][:2], True)] * (-len(dealt) % self.lanes)


def _look_at_padded(rule: BatchRule, samples: Indices) -> tuple[int, int]:
    """`Block._look` of padded batches without buckets: all lanes at a time, some thousand rows of them.

    Args:
        rule: the bounds of a batch.
        samples: (rows, lanes).
    """
    (n, lanes), fewest, rows = samples.shape, 0, samples.shape[0]
    most = n if rule.sizes is None else rule.sizes[0]
    for first in range(0, lanes if n else 0, max(PIECE // n, 1)):
        some = samples[:, first : first + max(PIECE // n, 1)].T
        lengths = np.ones(some.shape) if rule.lengths is None else rule.lengths[some]
        lengths.sort(axis=1)
        ends = np.full(len(lengths), n)  # of what is left, without the longest, which are in batches already
        if rule.max_cost is None:
            fewest = max(fewest, -(-n // most))
            continue
        if rule.skips:
            ends -= np.count_nonzero(lengths.astype(np.float64) > rule.max_cost, axis=1)
            rows = min(rows, int(ends.min()))
        count = 0
        while len(ends := ends[(left := np.flatnonzero(ends > 0))]):
            lengths = lengths[left] if len(left) < len(lengths) else lengths
            longest = lengths[np.arange(len(ends)), ends - 1].astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):  # it may be infinite, or no number by some numpys
                held = np.fmin(rule.max_cost // longest, most)
            ends = ends - np.maximum(held, 1).astype(np.int64)
            count += 1
        fewest = max(fewest, count)
    return fewest, rows if lanes else 0


class _LaneRows:
    """The rows of one lane in a block.

    Attributes:
        fewest: batches that it takes at least.
    """

    def __init__(self, rule: BatchRule, samples: Indices) -> None:
        self._rows: Indices | None = None  # that are not left out; None: none is
        if rule.skipped and (over := rule.left_out(samples)).any():
            self._rows = np.flatnonzero(~over)
            samples = samples[self._rows]
        lengths, buckets = rule.lengths_of(samples), None if rule.buckets is None else rule.buckets[samples]
        if buckets is None:
            order, edges = np.argsort(-lengths, kind="stable"), [0, len(lengths)]
        else:
            order = np.lexsort((-lengths, buckets))
            changes = np.flatnonzero(np.diff(buckets[order])) + 1
            edges = [0, *changes.tolist(), len(lengths)]
        self._parts: list[_BucketRows | LimitedRows] = []
        for lo, hi in pairwise(edges):
            if lo < hi:
                rows, bucket = order[lo:hi], 0 if buckets is None else int(buckets[order[lo]])
                limited = _limited(rule, rows, samples[rows], bucket) if rule.limits else None
                self._parts.append(limited or _BucketRows(rule, rows, lengths, bucket))
        self.fewest = sum(part.fewest for part in self._parts)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def fits(self, count: int) -> bool:
        """True if the rows can be cut into so many batches (of costs that are sums)."""
        return count >= len(self) or all(
            part.fits(number)
            for part, number in zip(self._parts, self._share(count), strict=True)
            if isinstance(part, _BucketRows)
        )

    def limited(self, count: int) -> list[tuple[SumRows, int]]:
        """The parts that are to be dealt to so many batches, to see if they fit."""
        parts = zip(self._parts, self._share(count), strict=True)
        return [(part, number) for part, number in parts if isinstance(part, SumRows) and number < len(part)]

    def cut(self, count: int) -> list[Indices]:
        """So many batches, or as many as there are rows: each batch's rows, ascending; the costliest batch first."""
        batches = []
        for part, number in zip(self._parts, self._share(count), strict=True):
            batches += part.cut(number)
        batches.sort(key=lambda batch: (-batch[0], batch[1]))
        rows = [np.sort(batch[2]) for batch in batches]
        return rows if self._rows is None else [self._rows[some] for some in rows]

    def _share(self, count: int) -> list[int]:
        """Number of the batches of each part: its fewest, and of the others those that make costs equal."""
        numbers = [part.fewest for part in self._parts]
        left = min(count, len(self)) - sum(numbers)
        if len(self._parts) == 1:
            return [numbers[0] + max(left, 0)]
        queue = [(-part.total / k, i) for i, (part, k) in enumerate(zip(self._parts, numbers, strict=True))]
        queue = [each for each in queue if numbers[each[1]] < len(self._parts[each[1]])]
        heapq.heapify(queue)
        while left > 0 and queue:
            _, i = heapq.heappop(queue)
            numbers[i] += 1
            left -= 1
            if numbers[i] < len(self._parts[i]):
                heapq.heappush(queue, (-self._parts[i].total / numbers[i], i))
        return numbers


def _limited(rule: BatchRule, rows: Indices, samples: Indices, bucket: int) -> LimitedRows:
    """Rows under several budgets.

    Args:
        rule: the bounds of a batch.
        rows: the longest first.
        samples: theirs.
        bucket: likewise.
    """
    most = None if rule.sizes is None else rule.sizes[bucket]
    if not rule.is_padded:
        return SumRows(rows, bucket, rule.sums_of(samples, most=most))
    return PaddedRows(
        *(rows, bucket, rule.sums_of(samples)),
        lengths=rule.lengths_of(samples),
        budget=rule.max_cost,
        most=most or len(rows),
    )


class _BucketRows:
    """The rows of one lane in a block that are of one bucket, the longest first."""

    def __init__(self, rule: BatchRule, rows: Indices, lengths: Numbers, bucket: int) -> None:
        self._rows, self._bucket, self._is_padded = rows, bucket, rule.is_padded
        self._lengths: list[float] = lengths[rows].tolist()
        self.total = sum(self._lengths)
        self._most = len(rows) if rule.sizes is None else rule.sizes[bucket]
        # One batch of all of them costs no more than this.
        self._budget = _budget_for(self._lengths[0], len(rows)) if rule.max_cost is None else rule.max_cost
        self._units: list[int] = []
        self._limit: int | None = None  # the budget in units
        self._dealt: tuple[int, list[list[int]], float] | None = None
        if self._is_padded:
            self.fewest = len(self._runs(self._budget))
        else:
            self.fewest = -(-len(rows) // self._most)
            if rule.max_cost is not None:
                units, self._limit = in_units(lengths[rows], rule.max_cost)
                self._units = units.tolist()
                self.fewest = max(self.fewest, -(-sum(self._units) // self._limit))

    def __len__(self) -> int:
        return len(self._rows)

    def fits(self, count: int) -> bool:
        """True if the rows can be dealt to so many batches; to as many as there are rows, they can."""
        _, batches, most = self._deal(count)
        limit = self._limit
        if limit is None or abs(most - self._budget) > self._budget * _ROUNDED:
            return limit is None or most < self._budget
        return all(sum(self._units[i] for i in batch) <= limit for batch in batches)

    def cut(self, count: int) -> list[tuple[float, int, Indices]]:
        """(cost, bucket, rows) of each of ``count`` batches, fewest <= count <= len."""
        if not self._is_padded:
            batches = self._deal(count)[1]
            costs = [sum(self._lengths[i] for i in batch) for batch in batches]
            return [(c, self._bucket, self._rows[batch]) for c, batch in zip(costs, batches, strict=True)]
        low, high = self._lengths[0], self._budget
        runs = self._runs(high)
        # None lies in the middle of the least lengths there are.
        while high - low > high * _PRECISION and low < (middle := (low + high) / 2) < high:
            tried = self._runs(middle)
            if len(tried) > count:
                low = middle
            else:
                high, runs = middle, tried
        edges = [0, *runs]
        queue = [(-(hi - lo) * self._lengths[lo], lo, hi) for lo, hi in pairwise(edges)]
        done = [each for each in queue if each[2] - each[1] == 1]
        queue = [each for each in queue if each[2] - each[1] > 1]
        heapq.heapify(queue)
        while len(queue) + len(done) < count:
            _, lo, hi = heapq.heappop(queue)
            middle_row = (lo + hi) // 2
            for a, b in ((lo, middle_row), (middle_row, hi)):
                each = (-(b - a) * self._lengths[a], a, b)
                if b - a == 1:
                    done.append(each)
                else:
                    heapq.heappush(queue, each)
        return [(-cost, self._bucket, self._rows[lo:hi]) for cost, lo, hi in [*queue, *done]]

    def _runs(self, budget: float) -> list[int]:
        """Ends of batches that each take as many rows as a budget allows."""
        lengths, n, most, at, ends = self._lengths, len(self._lengths), self._most, 0, []
        while at < n:
            at = min(at + max(int(min(most_of(lengths[at], budget), most)), 1), n)
            ends.append(at)
        return ends

    def _deal(self, count: int) -> tuple[int, list[list[int]], float]:
        """(count, batches, the largest cost): each row, from the longest, to the batch that costs least by then."""
        if self._dealt is None or self._dealt[0] != count:
            batches: list[list[int]] = [[] for _ in range(count)]
            queue, full = [(0.0, number) for number in range(count)], 0.0
            for i, length in enumerate(self._lengths):
                cost, number = queue[0]
                batches[number].append(i)
                if len(batches[number]) < self._most:
                    heapq.heapreplace(queue, (cost + length, number))
                else:
                    full = max(full, cost + length)
                    heapq.heappop(queue)
            self._dealt = count, batches, max([full, *(cost for cost, _ in queue)])
        return self._dealt


def number_buckets(values: Any) -> tuple[Indices, list[Any]]:
    """(the number of each value's bucket, the buckets) of n words or numbers: (n,).

    Raises:
        InputError: a value is missing (None, NaN, NaT), or they cannot be sorted.
    """
    array = np.asarray(values)
    try:
        missing = np.flatnonzero(array != array)  # NaN and NaT are not equal to themselves  # noqa: PLR0124
        if array.dtype == object:
            nones = [k for k, value in enumerate(array.tolist()) if value is None]
            missing = np.union1d(missing, nones)
            array = array.astype(str) if all(isinstance(value, str) for value in array.tolist()) else array
        if len(missing):
            raise InputError(f"the bucket of sample {int(missing[0])} is missing; leave such samples out of the view")
        names, numbers = np.unique(array, return_inverse=True)
    except TypeError as error:
        raise InputError(f"buckets are {shown(values)}, which cannot be compared ({error})") from error
    return numbers.reshape(-1).astype(np.int32), names.tolist()

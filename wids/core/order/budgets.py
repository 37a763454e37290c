"""Budgets of a batch that are sums, beside its length: images, crops, bytes.

A sample costs a number of 0 or more in each budget, and a batch their sum, which is compared exactly: numbers become
whole units, a power of two and at most 2**-60 of the budget. Only numbers with digits below a unit are rounded, up.

Padded batches take rows from the longest on: a row goes to the first of the few youngest batches that has room for it,
so that batches stay alike in length, and none is closed because one row does not fit. All budgets are scaled until the
costliest batch costs least. Without padding, rows are dealt from the largest share of a budget on, each to the batch
whose largest share is the least afterwards; the lanes of a block are dealt together.

Pure.
"""

from __future__ import annotations

import heapq
import math
import re
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wids.errors import InputError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from wids.core.order.permutation import Indices

    Numbers = NDArray[Any]
    Floats = NDArray[np.float64]

# The highest budget, and sum of all values: nothing that is computed of them is infinite then.
MOST_TOKENS = 1e300
# The highest value of an integer type; those above are not all floats.
MOST_INTEGER = 1 << 53
# Values looked at at a time.
PIECE = 1 << 20
# A budget has between 2**_BITS units and twice as many; a row of several budgets is one integer, of _FIELD bits each.
_BITS, _FIELD = 60, 64
# Padded batches that take rows at a time: more fill the budgets better, and hold samples of less like lengths.
_OPEN = 4
# The share of a cost to which the costs of a lane's batches are made equal.
_PRECISION = 1e-3
# A limit in words: its name, the values if they are not the column of this name, the budget.
_LIMIT = re.compile(r"\s*([^=]*[^=\s])\s*=(?:(.+):)?([^:=]+)", re.DOTALL)
# A sum of shares is less wrong than this.
_ROUNDED = 1e-6


class Limit(NamedTuple):
    """A budget of the sum of values.

    Attributes:
        name: names it.
        values: of each sample, 0 or more: (nsamples,).
        most: their sum in a batch, at most.
    """

    name: str
    values: Numbers
    most: float

    def of(self, samples: Indices) -> Floats:
        """The values of samples: of their shape."""
        values: Floats = self.values[samples].astype(np.float64)
        return values


def parse_budget(name: str, value: Any) -> float:
    """A budget; an integer that is no float is rounded down.

    Raises:
        InputError: it is no number above 0.
    """
    try:
        number = float(value)
        if isinstance(value, Integral) and number > value:
            number = math.nextafter(number, 0)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 < number <= MOST_TOKENS:
        raise InputError(f"{name} is {shown(value)}; it must be a number above 0, and at most {MOST_TOKENS:g}")
    return number


def name_limit(name: str) -> str:
    """The name of a limit's values in messages."""
    return f"limits[{name!r}]"


def parse_limits(limits: Any) -> dict[str, tuple[Any, Any]]:
    """The limits of `wids.BucketBatchSampler`: name -> (values, or the name of their column; budget).

    Raises:
        InputError: they are no dict of such.
    """
    if limits is None:
        return {}
    words = "a number for each column, or (values, number) by name: limits={'images': 16, 'crops': (array, 125)}"
    try:
        items = dict(limits).items()
    except (TypeError, ValueError):
        raise InputError(f"limits are {shown(limits)}; give a dict of {words}") from None
    parsed = {}
    for name, said in items:
        if not isinstance(name, str) or not name:
            raise InputError(f"limits have the name {shown(name)}; give {words}")
        if isinstance(said, (tuple, list)) and len(said) != 2:
            raise InputError(f"{name_limit(name)} is {shown(said)}; give {words}")
        parsed[name] = tuple(said) if isinstance(said, (tuple, list)) else (name, said)
    return parsed


def parse_limit(text: str) -> tuple[str, tuple[str, float]]:
    """Parse ``images=16``, of a column, or ``crops=VALUES:125``, into (name, (values, budget)).

    Raises:
        InputError: it is neither.
    """
    parts = _LIMIT.fullmatch(text.strip())
    if parts is None:
        raise InputError(
            f"{text!r:.200} is no limit; write NAME=NUMBER of a column, or NAME=VALUES:NUMBER, such as images=16"
        )
    name, values, most = (part and part.strip() for part in parts.groups())
    return name, (values or name, parse_budget(name_limit(name), most))


def make_limits(
    limits: Mapping[str, tuple[Any, Any]], samples: int, *, skips: bool
) -> tuple[tuple[Limit, ...], dict[str, dict[str, float]], float]:
    """(limits, totals of their values for a state, number of samples in a batch, about), of name -> (values, budget).

    Raises:
        InputError: values are no numbers, one for each sample, or see `_look_at`; a budget is no number above 0.
    """
    made, totals, per_batch = [], {}, math.inf
    for name, (values, most) in limits.items():
        where = name_limit(name)
        array = np.asarray(values)
        check_count(where, array, samples)
        if array.dtype.kind not in "biuf":
            raise InputError(f"{where} are of type {array.dtype}; they must be numbers of 0 or more")
        limit = Limit(name, array, parse_budget(where, most))
        made.append(limit)
        totals[name] = _look_at(limit, skips=skips)
        if total := totals[name]["total"]:
            per_batch = min(per_batch, max(limit.most * samples / total, 1.0))
    return tuple(made), totals, per_batch


def check_count(name: str, values: Any, samples: int) -> None:
    """Raise unless there is a value for each sample.

    Raises:
        InputError: there is not.
    """
    if values.shape != (samples,):
        raise InputError(f"{name} has the shape {values.shape}, and the dataset {samples:,} samples; give one for each")


def _look_at(limit: Limit, *, skips: bool) -> dict[str, float]:
    """The total and the largest of a limit's values; they are read once.

    Raises:
        InputError: one is not a finite number of 0 or more, or is above the budget, and none is to be skipped; they are
            too large to be added up.
    """
    name, values, most = limit
    where, total, largest = name_limit(name), 0.0, 0.0
    for first, some in pieces(values):
        piece = to_floats(some)
        bad = ~((piece >= 0) & (piece < math.inf))
        if bad.any():
            at = first + int(bad.argmax())
            raise InputError(f"{where}: the value of sample {at} is {values[at]}; give finite numbers of 0 or more")
        at = first + int(piece.argmax())
        high = float(piece.max())
        if high * len(values) > MOST_TOKENS or (some.dtype.kind in "iu" and some.max() > MOST_INTEGER):
            raise InputError(f"{where}: the value of sample {at} is {values[at]}, too large to be added up")
        if high > most and not skips:
            at = first + int((piece > most).argmax())
            raise InputError(
                f"{where}: sample {at} has {values[at]}, more than the {most:g} of a whole batch; raise the limit, or "
                "leave out such samples by too_long='skip', which counts them",
                hint="too_long",
            )
        total, largest = total + float(piece.sum()), max(largest, high)
    return {"total": total, "largest": largest}


def pieces(values: Numbers) -> Iterator[tuple[int, Numbers]]:
    """(first sample, values) of some samples at a time."""
    for first in range(0, len(values), PIECE):
        yield first, values[first : first + PIECE]


def to_floats(values: Numbers) -> Floats:
    """Values of any type as floats; infinite where their type is wider."""
    with np.errstate(over="ignore"):
        floats: Floats = values.astype(np.float64)
    return floats


def in_units(values: Floats, most: float) -> tuple[Indices, int]:
    """(values, a budget that none of them exceeds) as whole units, whose sums are exact.

    Args:
        values: (n,).
        most: the budget.
    """
    scale = _BITS + 1 - math.frexp(most)[1]
    units = np.ceil(np.ldexp(values, scale)).astype(np.int64)
    return np.maximum(units, values > 0), int(math.ldexp(most, scale))


def most_of(length: float, budget: float) -> float:
    """The most samples of a length that a padded batch holds: a whole number, and exact below 2**50."""
    return budget // length  # which Python computes from the exact remainder


class Sums(NamedTuple):
    """The costs of rows in each of their budgets.

    Attributes:
        units: (budgets, rows).
        mosts: the budgets.
        shares: of the budgets, rounded: (budgets, rows).
    """

    units: Indices
    mosts: tuple[int, ...]
    shares: Floats

    @classmethod
    def of(cls, limits: Sequence[Limit], samples: Indices, *, most: int | None = None) -> Sums:
        """The costs of samples, (n,); their number is a cost, too, if there are ``most`` in a batch."""
        each = [in_units(limit.of(samples), limit.most) for limit in limits]
        if most is not None:
            each.append((np.ones(len(samples), np.int64), most))
        units = np.stack([units for units, _ in each])
        mosts = tuple(most for _, most in each)
        return cls(units, mosts, units / np.array(mosts, np.float64)[:, None])


class LimitedRows:
    """The rows of one lane in a block that are of one bucket, under several budgets.

    Attributes:
        fewest: batches that they take at least.
        total: the largest sum of their shares of a budget.
    """

    fewest: int
    total: float

    def __init__(self, rows: Indices, bucket: int, sums: Sums) -> None:
        self._rows, self._bucket, self._sums = rows, bucket, sums
        self.total = float(sums.shares.sum(axis=1).max())

    def __len__(self) -> int:
        return len(self._rows)

    def cut(self, count: int) -> list[tuple[float, int, Indices]]:
        """(cost, bucket, rows) of each of ``count`` batches, fewest <= count <= len."""
        queue: list[tuple[float, list[int]]] = []
        done: list[tuple[float, list[int]]] = []
        for batch in [[row] for row in range(len(self))] if count == len(self) else self._cut(count):
            (queue if len(batch) > 1 else done).append((-self._cost(batch), batch))
        heapq.heapify(queue)
        while len(queue) + len(done) < count:  # the costliest is halved
            _, batch = heapq.heappop(queue)
            for half in (batch[: (len(batch) + 1) // 2], batch[(len(batch) + 1) // 2 :]):
                if len(half) > 1:
                    heapq.heappush(queue, (-self._cost(half), half))
                else:
                    done.append((-self._cost(half), half))
        return [(-cost, self._bucket, self._rows[batch]) for cost, batch in [*queue, *done]]

    def _cut(self, count: int) -> list[list[int]]:
        """Batches of rows, by their numbers here, at most ``count``; none is empty."""
        raise NotImplementedError

    def _cost(self, batch: list[int]) -> float:
        """The largest share of a budget that a batch takes."""
        return float(self._sums.shares[:, batch].sum(axis=1).max())


class PaddedRows(LimitedRows):
    """Rows of which a batch costs its longest times its count, beside other budgets.

    Args:
        rows: from the longest on.
        bucket: theirs.
        sums: their costs in the other budgets.
        lengths: theirs: (rows,).
        budget: of a batch; None: any.
        most: rows of a batch.
    """

    fewest: int
    total: float

    def __init__(
        self, rows: Indices, bucket: int, sums: Sums, *, lengths: Floats, budget: float | None, most: int
    ) -> None:
        super().__init__(rows, bucket, sums)
        self._lengths: list[float] = lengths.tolist()
        self._budget, self._most = budget, most
        if budget is not None:
            self.total = max(self.total, float(lengths.sum()) / budget)
        fields = [1 << _FIELD * len(sums.mosts)] * len(rows)
        for k, units in enumerate(sums.units.tolist()):
            fields = [field | unit << _FIELD * k for field, unit in zip(fields, units, strict=True)]
        self._needs = fields
        self._guards = sum(1 << _FIELD * k + _FIELD - 1 for k in range(len(sums.mosts) + 1))
        self._whole = self._fill(1.0)
        self.fewest = len(self._whole)

    def _cut(self, count: int) -> list[list[int]]:
        low, high, batches = float(self._sums.shares.max()), 1.0, self._whole
        if self._budget is not None:
            low = max(low, self._lengths[0] / self._budget)
        while low and high - low > high * _PRECISION:  # 0: all rows cost nothing
            middle = (low + high) / 2
            tried = self._fill(middle)
            if len(tried) > count:
                low = middle
            else:
                high, batches = middle, tried
        return batches

    def _fill(self, scale: float) -> list[list[int]]:
        """Batches of the rows, with so much of each budget."""
        lengths, guards, last = self._lengths, self._guards, _FIELD * len(self._sums.mosts)
        empty = guards | sum(int(most * scale) << _FIELD * k for k, most in enumerate(self._sums.mosts))
        budget = math.inf if self._budget is None else self._budget * scale
        batches: list[list[int]] = []
        rooms: list[int] = []  # that is left in the youngest batches; a guard is 0 where a budget is exceeded
        first = 0
        for row, need in enumerate(self._needs):
            for at, room in enumerate(rooms):
                left = room - need
                if left & guards == guards:
                    batches[first + at].append(row)
                    rooms[at] = left
                    break
            else:
                held = self._most if budget == math.inf else min(most_of(lengths[row], budget), self._most)
                left = (empty | int(held) << last) - need
                batches.append([row])
                rooms.append(left if left & guards == guards else guards)
                if len(rooms) > _OPEN:
                    del rooms[0]
                    first += 1
        return batches

    def _cost(self, batch: list[int]) -> float:
        cost = super()._cost(batch)
        return cost if self._budget is None else max(cost, self._lengths[batch[0]] * len(batch) / self._budget)


class SumRows(LimitedRows):
    """Rows of which a batch costs their sum, in all budgets."""

    fewest: int

    def __init__(self, rows: Indices, bucket: int, sums: Sums) -> None:
        super().__init__(rows, bucket, sums)
        self._dealt: tuple[int, list[list[int]]] | None = None
        totals = [sum(units) for units in sums.units.tolist()]
        self.fewest = max(1, *(-(-total // most) for total, most in zip(totals, sums.mosts, strict=True)))

    def _cut(self, count: int) -> list[list[int]]:
        if self._dealt is None or self._dealt[0] != count:
            deal([(self, count)])
        assert self._dealt is not None  # noqa: S101 - for the type checker: it was just dealt
        return self._dealt[1]

    @property
    def sums(self) -> Sums:
        """The costs of the rows."""
        return self._sums

    def take(self, count: int, order: Indices, numbers: Indices) -> bool:
        """Take over the batches that rows are dealt to; returns True if they fit.

        Args:
            count: number of batches.
            order: rows with costs: (m,).
            numbers: of their batches: (m,).
        """
        batches: list[list[int]] = [[] for _ in range(count)]
        for row, number in zip(order.tolist(), numbers.tolist(), strict=True):
            batches[number].append(row)
        fewest = [(len(batch), number) for number, batch in enumerate(batches)]
        heapq.heapify(fewest)
        for row in sorted({*range(len(self))} - {*order.tolist()}):  # they cost nothing
            size, number = fewest[0]
            batches[number].append(row)
            heapq.heapreplace(fewest, (size + 1, number))
        self._dealt = count, [batch for batch in batches if batch]
        return all(
            np.bincount(numbers, shares[order], count).max() < 1 + _ROUNDED  # else a sum of units may overflow
            and _add_up(units[order], numbers, count).max() <= most
            for units, most, shares in zip(*self._sums, strict=True)
        )


def _add_up(units: Indices, numbers: Indices, count: int) -> Indices:
    """The sum of units of each batch: (count,)."""
    sums = np.zeros(count, np.int64)
    np.add.at(sums, numbers, units)
    return sums


def deal(parts: Sequence[tuple[SumRows, int]]) -> bool:
    """Deal the rows of parts, each to so many batches; returns True if all fit."""
    count, budgets = max(count for _, count in parts), len(parts[0][0].sums.mosts)
    loads = np.zeros((budgets, len(parts), count))
    orders = []
    for k, (part, number) in enumerate(parts):
        shares = part.sums.shares.max(axis=0)
        order = np.argsort(-shares, kind="stable")
        orders.append(order[: np.count_nonzero(shares)])
        loads[:, k, number:] = np.inf
    rows = max(map(len, orders))
    needs = np.zeros((rows, budgets, len(parts)))  # a part with fewer rows gets some that cost nothing
    for k, ((part, _), order) in enumerate(zip(parts, orders, strict=True)):
        needs[: len(order), :, k] = part.sums.shares[:, order].T
    numbers, each = np.zeros((rows, len(parts)), np.int64), np.arange(len(parts))
    for row in range(rows):
        after = loads + needs[row, :, :, None]
        at = after.max(axis=0).argmin(axis=1)
        loads[:, each, at] = after[:, each, at]
        numbers[row] = at
    taken = [
        part.take(number, order, numbers[: len(order), k])
        for k, ((part, number), order) in enumerate(zip(parts, orders, strict=True))
    ]
    return all(taken)

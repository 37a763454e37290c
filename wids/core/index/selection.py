"""The samples of a view: rows of the shards of a shard list. Pure.

A selection keeps the order of the shard list, and has no sample twice. Shards keep their numbers: one without selected
rows has length 0.
"""

from __future__ import annotations

import hashlib
import math
import numbers
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from wids.errors import InputError, a_kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    Integers = npt.NDArray[np.int64]

_NARROW = np.dtype(np.uint32)
# From this number of shards on, counts are not a Python list, as in `ShardList`.
_MANY = 20_000


class SampleRows(Protocol):
    """The row in its shard of each sample of a view."""

    def __getitem__(self, index: int, /) -> int:
        """The row of one sample."""


class RepeatedRows:
    """The rows of a view in a shard that has fewer samples than its index states, and repeats them."""

    def __init__(self, rows: SampleRows, count: int) -> None:
        self._rows, self._count = rows, count

    def __getitem__(self, index: int) -> int:
        return self._rows[index] % self._count


class Selection:
    """Rows of shards, shard by shard.

    Args:
        ends: the end of each shard's samples, counted over the view: int64, (shards,).
        rows: the row in its shard of each sample: uint32 or int64, (samples,), ascending within a shard.
        digest: of both; None: it is computed on access.

    Attributes:
        ends: the end of each shard's samples.
        counts: samples of each shard, ints; a list, unless the shards are many.
        rows: the row of each sample in its shard, as a sequence of ints.
    """

    def __init__(self, ends: Integers, rows: npt.NDArray[Any], *, digest: str | None = None) -> None:
        self._ends, self._array, self._digest = ends, rows, digest
        # Memoryviews, whose items are ints, not numpy scalars.
        self.ends: Sequence[int] = memoryview(ends)  # type: ignore[arg-type]  # numpy's are buffers
        counts = np.diff(ends, prepend=0)
        self.counts: Sequence[int] = counts.tolist() if len(ends) < _MANY else memoryview(counts)  # type: ignore[arg-type]
        self.rows: Sequence[int] = memoryview(rows)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self._array)

    @property
    def arrays(self) -> tuple[Integers, npt.NDArray[Any]]:
        """(ends, rows)."""
        return self._ends, self._array

    @property
    def digest(self) -> str:
        """16 hexadecimal digits, different for different samples."""
        if self._digest is None:
            state = hashlib.blake2b(self._ends.astype("<i8").tobytes(), digest_size=8)
            for at in range(0, len(self._array), 1 << 20):
                state.update(self._array[at : at + (1 << 20)].astype("<i8").tobytes())
            self._digest = state.hexdigest()
        return self._digest

    def whole_indices(self, nsamples: Sequence[int]) -> Integers:
        """The index of each sample among all samples of the shards: int64, ascending.

        Args:
            nsamples: samples of each shard.
        """
        held = np.asarray(nsamples, np.int64)
        indices: Integers = np.repeat(np.cumsum(held) - held, np.diff(self._ends, prepend=0)) + self._array
        return indices

    def rows_of(self, k: int) -> npt.NDArray[Any]:
        """The rows of shard ``k``."""
        end = self.ends[k]
        return self._array[end - self.counts[k] : end]

    def between(self, first: int, last: int) -> Selection:
        """The selection of the shards ``first .. last`` alone."""
        before = self.ends[first - 1] if first else 0
        ends = self._ends[first:last] - before
        return Selection(ends, self._array[before : before + int(ends[-1])] if len(ends) else self._array[:0])


def _narrow(rows: Integers) -> npt.NDArray[Any]:
    """The numbers in four bytes each, if they fit."""
    return rows.astype(_NARROW) if not len(rows) or int(rows.max()) < 1 << 32 else rows


def pick(
    indices: Integers, ends: Sequence[int], rows: npt.NDArray[Any] | None = None
) -> tuple[Integers, npt.NDArray[Any]]:
    """(ends, rows) of a part of a shard list, or of a view; see `Selection`.

    Args:
        indices: of its samples, int64, ascending, each once, all in range.
        ends: the end of each shard's samples.
        rows: of a view: the rows of its samples.
    """
    old = np.asarray(ends, np.int64)
    new = np.searchsorted(indices, old, side="left").astype(np.int64)
    if rows is None:
        starts = np.concatenate([np.zeros(1, np.int64), old[:-1]]) if len(old) else old
        picked = _narrow(indices - np.repeat(starts, np.diff(new, prepend=0)))
    else:
        picked = rows[indices]
    return new, picked


def no_sample(index: int, n: int) -> IndexError:
    """The error for an index that a dataset of ``n`` samples does not have."""
    right = f"; indices are 0 to {n - 1} (-1 is the last one)" if n else ""
    return IndexError(f"sample {index} of a dataset of {n}{right}")


def parse_indices(selected: Any, n: int) -> tuple[Integers, int]:
    """The indices that a program has selected, ascending, each once; and the number of repeated ones.

    Args:
        selected: indices (negative ones from the end), a slice of them, or a mask: n times True or False.
        n: number of samples.

    Raises:
        InputError: it is neither. IndexError: an index is out of range.
    """
    array = _to_array(range(*selected.indices(n)) if isinstance(selected, slice) else selected)
    if array.dtype == bool and array.ndim == 1:
        if len(array) != n:
            raise InputError(f"a mask of {len(array)} entries cannot select from {n} samples; it needs one for each")
        return np.flatnonzero(array).astype(np.int64), 0
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise InputError(
            f"{type(selected).__name__} of type {array.dtype} and shape {array.shape} selects no samples; give indices "
            "(integers) or a mask (one bool for each sample), in one dimension"
        )
    if not len(array):
        return np.zeros(0, np.int64), 0
    if len(array) == n > 2 and array.min() >= 0 and array.max() <= 1:
        raise InputError(
            f"{n} numbers, as many as there are samples, which are all 0 or 1: a mask is of bools (astype(bool)), and "
            "each index occurs once"
        )
    for index in (int(array.min()), int(array.max())):
        if not -n <= index < n:
            raise no_sample(index, n)
    indices = array.astype(np.int64)
    indices = np.where(indices < 0, indices + n, indices)
    if not (np.diff(indices) > 0).all():
        indices = np.unique(indices)
    return indices, len(array) - len(indices)


def _to_array(selected: Any) -> npt.NDArray[Any]:
    if isinstance(selected, range):
        return np.arange(selected.start, selected.stop, selected.step, dtype=np.int64)
    if not hasattr(selected, "__array__"):
        selected = list_items(selected)
    try:
        return np.asarray(selected)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"these are not indices ({error})") from error


def list_items(selected: Iterable[Any]) -> list[Any]:
    """The samples that a program names, as a list.

    Raises:
        InputError: it is a str, or cannot be iterated.
    """
    if isinstance(selected, (str, bytes)):
        raise InputError(f"{selected!r:.60} selects no samples; give indices, or a mask")
    try:
        return list(selected)
    except TypeError as error:
        raise InputError(f"{selected!r:.60} selects no samples ({error}); give indices, or a mask") from error


def parse_shares(parts: Sequence[float]) -> list[float]:
    """The shares of a split: they add up to 1.

    Raises:
        InputError: one is negative or not a number, or all are 0; or only one is given, which would be everything.
    """
    if not all(isinstance(part, numbers.Real) for part in parts):
        raise InputError(f"{parts!r:.60}: the shares of a split are numbers, each an argument: split(0.9, 0.1)")
    total = sum(parts)
    if not parts or not all(part >= 0 for part in parts) or not 0 < total < float("inf"):
        said = ", ".join(map(str, parts)) or "none"
        raise InputError(f"{said}: the shares of a split are numbers from 0 on, at least one of them above 0")
    if len(parts) == 1:
        raise InputError(f"{parts[0]}: a split has at least two shares, one for each part: split(0.9, 0.1)")
    return [part / total for part in parts]


def deal(parts: Sequence[float], draws: npt.NDArray[np.uint64]) -> list[Integers]:
    """The indices of each part, in order.

    Args:
        parts: their shares, adding up to 1.
        draws: a random number for each of n indices: uint64, (n,).
    """
    edges = np.cumsum(parts)[:-1]
    at = np.searchsorted(edges, draws / 2.0**64, side="right")
    return [np.flatnonzero(at == k).astype(np.int64) for k in range(len(parts))]


def hash_values(values: npt.NDArray[Any], seed: int, depth: int = 0) -> npt.NDArray[np.uint64]:
    """A random number for each of n values, the same for equal ones: uint64, (n,).

    It is that of the value's text (`hash_texts`): a text itself, the digits of a whole number, and the shortest text of
    another float; so 7, 7.0 and "7" have the same, in whatever column.

    Raises:
        InputError: a value is missing, or is neither a text nor a number.
    """
    if values.ndim != 1:
        raise InputError(f"each sample needs one text or number, and these have shape {values.shape}")
    try:
        distinct, numbers_of = _find_distinct(values)
        texts = [_text_of(value) for value in distinct]
    except TypeError as error:  # a list, a dict, a date, pandas' NA
        raise InputError(
            f"they are of type {values.dtype} ({error}), and a text or a number for each sample is needed, without "
            'missing ones: in SQL, "cast(column as varchar)", "coalesce(column, key)"'
        ) from error
    if None in texts:
        is_missing = np.array([text is None for text in texts])[numbers_of]
        raise InputError(
            f"{np.count_nonzero(is_missing):,} of {len(values):,} samples have no value, such as sample "
            f'{int(np.argmax(is_missing))}; leave them out first (where("column is not null")), or give each a value: '
            'in SQL, "coalesce(column, key)"'
        )
    return hash_texts(map(str, texts), seed, depth)[numbers_of]


def _find_distinct(values: npt.NDArray[Any]) -> tuple[list[Any], Integers]:
    """The distinct ones of n values, and the place there of each of the n: int64, (n,).

    Raises:
        TypeError: they are neither texts nor numbers, as far as their type says it.
    """
    if values.dtype.kind in "biuf":
        distinct, numbers_of = np.unique(values, return_inverse=True)
        return distinct.tolist(), numbers_of
    if values.dtype.kind not in "UO":
        raise TypeError("neither texts nor numbers")
    places: dict[Any, int] = {}
    numbers_of = np.array([places.setdefault(value, len(places)) for value in values.tolist()], np.int64)
    return list(places), numbers_of


def _text_of(value: Any) -> str | None:
    """The text of a value that is hashed; None: it is missing.

    Raises:
        TypeError: it is neither a text nor a number.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return None
    if isinstance(value, (numbers.Integral, np.bool_)):
        return str(int(value))
    if not isinstance(value, (numbers.Real, Decimal)):
        raise TypeError(f"{value!r:.60} is {a_kind(value)}")
    number = float(value)
    if math.isnan(number):
        return None
    return str(int(number)) if number.is_integer() else repr(number)


def hash_texts(texts: Iterable[str], seed: int, depth: int = 0) -> npt.NDArray[np.uint64]:
    """A random number for each text, which depends only on the text, the seed and the depth: uint64.

    It is the BLAKE2b digest of 8 bytes, little-endian, of the text in UTF-8. The key is the seed modulo 2**64, and the
    depth unless it is 0, in 8 bytes each, little-endian.
    """
    key = (seed % (1 << 64)).to_bytes(8, "little") + (depth.to_bytes(8, "little") if depth else b"")
    words = b"".join(
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, key=key).digest() for text in texts
    )
    return np.frombuffer(words, "<u8").astype(np.uint64)

"""Columns of vectors, that is of lists of numbers, as numpy arrays.

Rules: an array has the type of the numbers; of a column that was joined as halves, float16. A list with a null in it
stays a Python list, with None for the null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wids.columns.packages import import_arrow

if TYPE_CHECKING:
    from collections.abc import Iterator

# In the metadata of a field: the type of numbers that SQL lacks.
_TYPE = b"wids"
HALF = {_TYPE: b"float16"}


def mark_half(field: Any, kind: Any) -> Any:
    """A field that is written for a column of this type; a note if it is one of vectors of halves."""
    pa = import_arrow()
    element = _element_of(kind)
    return field.with_metadata(HALF) if element is not None and pa.types.is_float16(element) else field


def type_of(field: Any) -> np.dtype[Any] | None:
    """The type of the numbers in a column of vectors; None: it is another column."""
    pa = import_arrow()
    element = _element_of(field.type)
    if element is None or not (
        pa.types.is_integer(element) or pa.types.is_floating(element) or pa.types.is_boolean(element)
    ):
        return None
    note = (field.metadata or {}).get(_TYPE)
    found: np.dtype[Any] = np.dtype(note.decode() if note else element.to_pandas_dtype())
    return found


def _element_of(kind: Any) -> Any:
    """The type of a list's elements; None: it is no list."""
    types = import_arrow().types
    kind = getattr(kind, "storage_type", kind)
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return kind.value_type if is_list else None


def _shape_of(kind: Any) -> tuple[int, ...]:
    """The shape of one value, where it is known: that of tensors in C order."""
    shape: tuple[int, ...] = tuple(getattr(kind, "shape", (-1,)))
    is_plain = getattr(kind, "permutation", None) in (None, list(range(len(shape))))
    return shape if is_plain else (-1,)


class VectorReader:
    """The values of a column of vectors, one at a time.

    Args:
        column: a chunked array whose chunks are no slices.
        kind: the type of the numbers.
    """

    def __init__(self, column: Any, kind: np.dtype[Any]) -> None:
        self._kind, self._shape = kind, _shape_of(column.type)
        self._chunks = [self._parts(getattr(chunk, "storage", chunk)) for chunk in column.chunks]

    def _parts(self, chunk: Any) -> tuple[Any, Any, Any, Any]:
        """(the numbers, None if some are null; where rows begin; which rows are null, None: none is; the chunk)."""
        pa = import_arrow()
        values = chunk.values
        flat = None if values.null_count else values.to_numpy(zero_copy_only=False)
        is_null = np.asarray(chunk.is_null()) if chunk.null_count else None
        if pa.types.is_fixed_size_list(chunk.type):
            starts = range(0, (len(chunk) + 1) * chunk.type.list_size, chunk.type.list_size or 1)
        else:
            starts = chunk.offsets.to_numpy()
        return flat, starts, is_null, chunk

    def value(self, chunk: int, row: int) -> Any:
        """The value in a row of a chunk: an array of its own, or None."""
        flat, starts, is_null, values = self._chunks[chunk]
        if is_null is not None and is_null[row]:
            return None
        if flat is not None:
            return np.array(flat[starts[row] : starts[row + 1]], self._kind).reshape(self._shape)
        found = values[row].values
        if found.null_count:
            return found.to_pylist()
        return found.to_numpy(zero_copy_only=False).astype(self._kind).reshape(self._shape)


def stack(column: Any, kind: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """A column of vectors as one array.

    Args:
        column: a chunked array.
        kind: the type of the numbers.

    Returns:
        (n, ...) where all vectors have one length, with NaN for missing vectors of floats; else (n,) of objects.
    """
    shape = _shape_of(column.type)
    chunks = [getattr(chunk, "storage", chunk) for chunk in column.chunks]
    lengths = {length for chunk in chunks for length in _lengths(chunk)}
    has_nulls = any(chunk.flatten().null_count for chunk in chunks)
    if len(lengths) > 1 or has_nulls or (column.null_count and kind.kind != "f"):
        found = np.empty(len(column), object)
        found[:] = list(_values(chunks, kind))
        return found
    shape = (max(lengths, default=0),) if shape == (-1,) else shape
    stacked = np.empty((len(column), *shape), kind)
    if column.null_count:
        stacked.fill(np.nan)
    first = 0
    for chunk in chunks:
        rows = stacked[first : first + len(chunk)]
        rows[np.asarray(chunk.is_valid())] = chunk.flatten().to_numpy(zero_copy_only=False).reshape(-1, *shape)
        first += len(chunk)
    return stacked


def _lengths(chunk: Any) -> list[int]:
    """The lengths that occur."""
    if import_arrow().types.is_fixed_size_list(chunk.type):
        return [chunk.type.list_size]
    from pyarrow import compute

    found: list[int] = compute.unique(compute.list_value_length(chunk.drop_null())).to_pylist()
    return found


def _values(chunks: list[Any], kind: np.dtype[Any]) -> Iterator[Any]:
    for chunk in chunks:
        for value in chunk:
            if not value.is_valid:
                yield None
            elif value.values.null_count:
                yield value.values.to_pylist()
            else:
                yield value.values.to_numpy(zero_copy_only=False).astype(kind)

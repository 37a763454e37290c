"""Turns values of samples into typed columns. The types do not depend on which shards are read together.

A column has the narrowest of these types that holds all values of all shards: bool, int64, float64 (integers too, up
to 2**53), string, vectors (arrays of one type and one length); otherwise each value is its JSON text. The part of a
column from one shard gets its type by the same rule, and is converted to the type of the whole when all shards are
known. JSON text of a part equals that of the whole.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from wids.columns import vectors
from wids.columns.packages import import_arrow

if TYPE_CHECKING:
    from collections.abc import Iterable

# What occurs in a column, as bits. Beside VECTOR are the number of the type in `_TYPES`, and the length.
BOOL, INT, LONG, FLOAT, TEXT, OTHER, VECTOR = 1, 2, 4, 8, 16, 32, 64
_TYPES = (
    *("bool", "float16", "float32", "float64"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)
_TYPE_BITS, _LENGTH_BITS = 8, 16
_EXACT = 1 << 53  # beyond, not all integers are floats
_INT64 = 1 << 63
_HALF = re.compile("[\ud800-\udfff]")


def kind_of(value: Any) -> int:
    """The bit of a value; 0: None."""
    if value is None:
        return 0
    kind = type(value)
    if kind is np.ndarray:
        return _vector_kind(value)
    if kind is bool:
        return BOOL
    if kind is int:
        return INT if -_EXACT <= value <= _EXACT else LONG if -_INT64 <= value < _INT64 else OTHER
    if kind is float:
        return FLOAT
    return TEXT if kind is str else OTHER


def _vector_kind(array: np.ndarray[Any, np.dtype[Any]]) -> int:
    is_vector = array.ndim == 1 and len(array) > 0 and array.dtype.name in _TYPES
    number = _TYPES.index(array.dtype.name) if is_vector else 0
    return VECTOR | number << _TYPE_BITS | len(array) << _LENGTH_BITS if is_vector else OTHER


def vector_of(kinds: int) -> tuple[str, int] | None:
    """(type of the numbers, length) of vectors; None: these are others."""
    is_vector = bool(kinds & VECTOR)
    return (_TYPES[kinds >> _TYPE_BITS & 0xFF], kinds >> _LENGTH_BITS) if is_vector else None


def type_name(kinds: int) -> str:
    """The type of a column in which these kinds occur.

    It is ``bool``, ``int64``, ``double``, ``string``, ``json``, or of vectors ``float32[512]``.
    """
    if (vector := vector_of(kinds)) is not None:
        return f"{vector[0]}[{vector[1]}]"
    if kinds in (0, TEXT):
        return "string"
    if kinds == BOOL:
        return "bool"
    if not kinds & ~(INT | LONG):
        return "int64"
    return "double" if not kinds & ~(INT | FLOAT) else "json"


def arrow_type(kinds: int) -> Any:
    """The Arrow type of such a column; halves are floats, because SQL lacks them."""
    pa = import_arrow()
    if (vector := vector_of(kinds)) is not None:
        return pa.list_(pa.from_numpy_dtype(vector[0].replace("float16", "float32")), vector[1])
    return {"bool": pa.bool_(), "int64": pa.int64(), "double": pa.float64()}.get(type_name(kinds), pa.string())


def arrow_field(name: str, kinds: int) -> Any:
    """The Arrow field of such a column; see `wids.columns.vectors`."""
    vector = vector_of(kinds)
    field = import_arrow().field(name, arrow_type(kinds))
    return field.with_metadata(vectors.HALF) if vector is not None and vector[0] == "float16" else field


def make_array(values: list[Any]) -> tuple[Any, int]:
    """(Arrow array, kinds) of the values of one shard, of JSON types; None is null."""
    kinds = join_kinds(map(kind_of, values))
    return _typed(values, kinds), kinds


def convert(array: Any, kinds: int, *, of: int, to: int) -> Any:
    """Convert a part of a column to the type of another whole.

    Args:
        array: from `make_array`, or from an earlier conversion.
        kinds: of the part itself.
        of: kinds of the whole that it belongs to now; ``kinds`` if none.
        to: kinds of the new whole.
    """
    if type_name(of) == type_name(to):
        return array
    values = array.to_pylist()
    if type_name(of) == "json":
        values = [None if value is None else json.loads(value) for value in values]
    elif type_name(of) == "double" and not kinds & FLOAT:
        values = [None if value is None else int(value) for value in values]
    return _typed(values, to)


def _typed(values: list[Any], kinds: int) -> Any:
    pa = import_arrow()
    if (vector := vector_of(kinds)) is not None:
        return _vectors(values, arrow_type(kinds), vector[1])
    name = type_name(kinds)
    if name == "json":
        values = [None if value is None else to_json(value) for value in values]
    elif name == "double":
        values = [None if value is None else float(value) for value in values]
    return pa.array(map(writable, values) if name in ("string", "json") else values, arrow_type(kinds))


def _vectors(values: list[Any], kind: Any, length: int) -> Any:
    """Arrays or lists of one length, or None, as an Arrow array."""
    pa = import_arrow()
    is_null = np.array([value is None for value in values], bool)
    rows = np.zeros((len(values), length), kind.value_type.to_pandas_dtype())
    for row, value in zip(rows, values, strict=True):
        row[:] = 0 if value is None else value
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), type=kind, mask=pa.array(is_null))


def to_json(value: Any) -> str:
    """The JSON text of a value in a column of mixed kinds; 1.0 is written as 1, its possible original.

    Lone surrogates are escaped as in a text, so that the JSON is valid.
    """
    value = value.tolist() if type(value) is np.ndarray else value
    is_whole = type(value) is float and math.isfinite(value) and value == int(value) and abs(value) <= _EXACT
    if is_whole and (value or math.copysign(1, value) > 0):  # -0.0 was none
        value = int(value)
    return _HALF.sub(lambda half: f"\\\\u{ord(half[0]):04x}", json.dumps(value, ensure_ascii=False))


def writable(text: str | None) -> str | None:
    """A text that columns can hold: lone surrogates, which UTF-8 lacks, are escaped."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode("utf-8")


def join_kinds(parts: Iterable[int]) -> int:
    """The kinds that occur in any of the parts."""
    found = 0
    different = set(parts) - {0}
    for kinds in different:
        found |= OTHER if kinds & VECTOR and len(different) > 1 else kinds
    return found

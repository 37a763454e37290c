"""Small values of samples as a table: each shard's as a part, and all parts as one Parquet file.

The table has a row for each sample: ``index``, ``key``, and a column for each name, null where a sample has none. The
types are those of `wids.columns.kinds`, and lists of numbers are vectors; they do not depend on which shards were
computed together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wids.columns import kinds
from wids.columns.extract import write_stream
from wids.columns.packages import import_arrow, import_parquet
from wids.errors import ColumnsError, SampleError, a_kind, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_GROUP_ROWS = 1 << 17
_NAMES = ("index", "key")


def plain_values(fields: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The values of a row: None, numbers, texts, vectors as arrays, or lists and dicts of JSON.

    Args:
        fields: name of a column -> value.
        key: of the sample, for messages.

    Raises:
        SampleError: a column cannot have such a name, or hold such a value.
    """
    values = dict[str, Any]()
    for name, value in fields.items():
        if name.casefold() in {*_NAMES, *(other.casefold() for other in values)} or not name or not name.isprintable():
            words = f"sample {shown(key)}: a column cannot be called {shown(name)}, or is there twice; choose another"
            raise SampleError(words, key=key, field=name)
        values[name] = _plain(value, name, key)
    return {name: value for name, value in values.items() if value is not None}


def _plain(value: Any, name: str, key: str) -> Any:
    if hasattr(value, "detach") and hasattr(value, "cpu"):  # a tensor
        value = value.detach().cpu().numpy()
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        value = value.item()
    if isinstance(value, np.ndarray):
        if value.ndim == 1 and value.dtype.kind in "biuf":
            return value
        raise SampleError(
            f"sample {shown(key)}: {shown(name)} is an array of shape {value.shape} and type {value.dtype}, and a "
            "column holds vectors of numbers; without columns, .npy holds it",
            key=key,
            field=name,
        )
    if isinstance(value, (list, tuple)) and value and all(type(each) in (int, float) for each in value):
        is_small = all(abs(each) < 1 << 63 for each in value if type(each) is int)
        return np.array(value) if is_small else list(value)
    if not _is_json(value):
        raise SampleError(
            f"sample {shown(key)}: {shown(name)} is {a_kind(value)}, or has one in it, and a column holds numbers, "
            "texts, vectors, and lists and dicts of these",
            key=key,
            field=name,
        )
    return value


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(type(key) is str and _is_json(each) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_json, value))
    return value is None or type(value) in (bool, int, float, str)


def write_part(keys: Sequence[str], rows: Mapping[int, Mapping[str, Any]]) -> tuple[bytes, dict[str, int]]:
    """A part of a table, as an Arrow stream.

    Args:
        keys: of all rows.
        rows: number of a row -> its values, as `plain_values` gives them.

    Returns:
        The stream; column -> the kinds of its values, in the order in which they occur.
    """
    pa = import_arrow()
    names = dict.fromkeys(name for row in sorted(rows) for name in rows[row])
    arrays, found_kinds = {"key": pa.array([kinds.writable(key) for key in keys], pa.string())}, dict[str, int]()
    for name in names:
        values = [rows[row].get(name) if row in rows else None for row in range(len(keys))]
        if _as_floats(kinds.kind_of(value) for value in values) is not None:
            values = [None if value is None else value.astype(np.float64) for value in values]
        array, found_kinds[name] = kinds.make_array(values)
        arrays[f"column {name}"] = array
    return write_stream(pa.table(arrays)), found_kinds


def _as_floats(parts: Iterable[int]) -> int | None:
    """The kinds of vectors of one length, some of int64 and some of float64, as those of floats; None: of others."""
    vectors = {kinds.vector_of(part) for part in set(parts) - {0}}
    types, lengths = {vector and vector[0] for vector in vectors}, {vector and vector[1] for vector in vectors}
    if types != {"int64", "float64"} or len(lengths) != 1:
        return None
    return kinds.kind_of(np.zeros(lengths.pop() or 0))


def write_table(path: str, parts: Sequence[tuple[Callable[[], bytes], Mapping[str, int]]]) -> dict[str, str]:
    """Write the table of all parts, in their order.

    Args:
        path: of the Parquet file.
        parts: of each, a function that reads its stream, and column -> kinds, as `write_part` has them.

    Returns:
        Column -> type, in the order of their first value.

    Raises:
        OSError: it cannot be written. ColumnsError: a part is damaged.
    """
    pa, pq = import_arrow(), import_parquet()
    whole = dict[str, int]()
    for name in dict.fromkeys(name for _, columns in parts for name in columns):
        of_parts = [columns.get(name, 0) for _, columns in parts]
        whole[name] = _as_floats(of_parts) or kinds.join_kinds(of_parts)
    schema = pa.schema(
        [
            pa.field("index", pa.int64()),
            pa.field("key", pa.string()),
            *(_list_field(kinds.arrow_field(name, of)) for name, of in whole.items()),
        ]
    )
    first = 0
    with pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as writer:
        waiting: list[Any] = []
        for read, columns in parts:
            rows = _rows(read, columns, whole, first, schema)
            first += len(rows)
            waiting.append(rows)
            if sum(map(len, waiting)) >= _GROUP_ROWS:
                writer.write_table(pa.concat_tables(waiting), row_group_size=_GROUP_ROWS)
                waiting.clear()
        if waiting:
            writer.write_table(pa.concat_tables(waiting), row_group_size=_GROUP_ROWS)
    return {name: kinds.type_name(of) for name, of in whole.items()}


def _list_field(field: Any) -> Any:
    """The field of vectors as one of lists: pyarrow before 17 writes vectors with nulls, and cannot read them."""
    pa = import_arrow()
    return field.with_type(pa.list_(field.type.value_type)) if pa.types.is_fixed_size_list(field.type) else field


def _as_list(array: Any) -> Any:
    """An array of vectors as one of lists, in which a null has no values."""
    pa = import_arrow()
    if not pa.types.is_fixed_size_list(array.type):
        return array
    is_valid = np.asarray(array.is_valid())
    ends = np.concatenate([[0], np.cumsum(is_valid)]) * array.type.list_size
    offsets = pa.array(ends, pa.int32(), mask=np.append(~is_valid, False))
    return pa.ListArray.from_arrays(offsets, array.filter(array.is_valid()).flatten())


def _rows(
    read: Callable[[], bytes], columns: Mapping[str, int], whole: Mapping[str, int], first: int, schema: Any
) -> Any:
    """A part as rows of the whole table, of which the first is row ``first``."""
    pa = import_arrow()
    try:
        table = pa.ipc.open_stream(read()).read_all()
        arrays = [pa.array(np.arange(first, first + len(table))), table["key"].combine_chunks()]
        for name, of in whole.items():
            if name in columns:
                array = table[f"column {name}"].combine_chunks()
                arrays.append(kinds.convert(array, columns[name], of=columns[name], to=of))
            else:
                arrays.append(pa.nulls(len(table), kinds.arrow_type(of)))
        return pa.table(list(map(_as_list, arrays)), schema=schema)
    except (KeyError, pa.ArrowException) as error:
        raise ColumnsError(f"a part of the table is damaged ({error}); delete it, and run it again") from error

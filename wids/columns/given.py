"""A user's table, in any of the forms that `wids.ShardListDataset.with_table` accepts.

Rules: of Parquet files, only columns that are needed are read; other objects and files become one Arrow table. Parts of
one table have the same columns, and a common type for each.
"""

from __future__ import annotations

import functools
import glob
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wids.columns.file import fetch_table
from wids.columns.packages import import_arrow, import_parquet, import_part
from wids.core.index.discovery import list_names
from wids.core.place import Place
from wids.core.transport import urls
from wids.errors import ColumnsError, InputError, MissingTableError, a_kind, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.core.transport.session import Session

_LINES = re.compile(r".*\.(jsonl|ndjson)(\.gz)?", re.IGNORECASE)
_PART = re.compile(r"[^._].*\.(parquet|pq)", re.IGNORECASE)
_GLOB = frozenset("*?[")
# A line of JSON is no longer.
_LINE_BYTES = 16 << 20
_FORMS = (
    "a Parquet file, a folder or pattern of them, JSON lines, a pyarrow.Table or a DataFrame, an object with an Arrow "
    "stream, or a dict of arrays"
)


class GivenTable(NamedTuple):
    """An open table.

    Attributes:
        names: of its columns.
        nrows: their number of rows.
        read: an Arrow table of some columns.
        close: the files.
    """

    names: list[str]
    nrows: int
    read: Callable[[list[str]], Any]
    close: Callable[[], None]


def open_given(table: Any, *, cache_dir: str | None, session: Session) -> GivenTable:
    """Open a table that a program gave.

    Args:
        table: a path, URL or pattern of files, or an object.
        cache_dir: where copies of remote files are kept.
        session: opens URLs.

    Raises:
        InputError: it is no table. ColumnsError: it cannot be read, or does not exist. FetchError: it cannot be
            downloaded.
    """
    if not isinstance(table, (str, os.PathLike)):
        return _of_arrow(_to_arrow(table))
    given = os.fspath(table)
    names, base = _names_of(given, session)
    is_lines = all(map(_LINES.fullmatch, names))
    paths = [fetch_table(name, cache_dir=cache_dir, session=session, is_parquet=not is_lines) for name in names]
    try:
        if is_lines:
            return _of_arrow(_read_lines(paths))
        return _of_file(paths[0]) if base is None else _of_parts(paths, base)
    except (OSError, ValueError, import_arrow().ArrowException) as error:  # an ArrowInvalid is a ValueError
        if isinstance(error, (ColumnsError, InputError)):
            raise
        raise ColumnsError(f"{given}: is no Parquet that can be read ({error})", path=given) from error


def _names_of(given: str, session: Session) -> tuple[list[str], str | None]:
    """(paths or URLs of files, the folder of these parts; None: it is one file).

    Raises:
        MissingTableError: there is none. InputError: a remote folder has partitions.
    """
    place = Place(given)
    path = place.path if place.is_local else ""
    if place.is_local and os.path.isdir(path):
        return _some(given, _parts_in(path)), path
    is_pattern = not _GLOB.isdisjoint(given) and not (place.is_local and os.path.lexists(path))
    if place.is_local and is_pattern:
        found = [each for each in glob.glob(path, recursive=True) if os.path.isfile(each)]
        return sorted(_some(given, found), key=urls.natural_key), os.path.dirname(path[: _first_star(path)])
    if place.is_local or not (is_pattern or place.without_query.endswith("/")):
        return [given], None
    names = _some(given, list_names(given, lambda name: is_pattern or _PART.fullmatch(name) is not None, session))
    if any("=" in name.removeprefix(given) for name in names if not is_pattern):
        raise InputError(f"{given}: has partitions (folders with '='), which are columns; copy it to a disk", url=given)
    return names, ""


def _first_star(path: str) -> int:
    return min(path.find(star) for star in _GLOB if star in path)


def _parts_in(folder: str) -> list[str]:
    """The Parquet files below a folder, in natural order."""
    found = [
        os.path.join(directory, name)
        for directory, _, names in os.walk(folder)
        for name in names
        if _PART.fullmatch(name) is not None
    ]
    return sorted(found, key=urls.natural_key)


def _some(given: str, paths: list[str]) -> list[str]:
    """The same paths.

    Raises:
        MissingTableError: there are none.
    """
    if not paths:
        raise MissingTableError(f"{given}: there are no Parquet files", path=given)
    return paths


def _of_arrow(table: Any) -> GivenTable:
    return GivenTable(table.column_names, table.num_rows, table.select, lambda: None)


def _of_file(path: str) -> GivenTable:
    file = import_parquet().ParquetFile(path, page_checksum_verification=True)
    return GivenTable(
        file.schema_arrow.names, file.metadata.num_rows, lambda names: file.read(columns=names), file.close
    )


def _of_parts(paths: Sequence[str], base: str) -> GivenTable:
    """One table of several files, with columns from folders like ``label=3``."""
    pa, dataset = import_arrow(), import_part("pyarrow.dataset")
    options = dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
    form = dataset.ParquetFileFormat(default_fragment_scan_options=options)
    make = functools.partial(
        dataset.dataset, list(paths), format=form, partitioning="hive", partition_base_dir=base or None
    )
    whole = make()
    schemas = [part.physical_schema for part in whole.get_fragments()]
    for path, schema in zip(paths, schemas, strict=True):
        if other := set(schema.names) ^ set(schemas[0].names):
            raise InputError(f"{path}: differs from {paths[0]} in the column {shown(min(other))}; parts have the same")
    own = pa.unify_schemas(schemas, promote_options="permissive")
    added = [field for field in whole.schema if field.name not in own.names]
    whole = make(schema=pa.schema([*own, *added]))
    return GivenTable(whole.schema.names, whole.count_rows(), lambda names: whole.to_table(columns=names), lambda: None)


def _read_lines(paths: Sequence[str]) -> Any:
    """The Arrow table of files of JSON lines.

    Raises:
        ColumnsError: one is not of such.
    """
    pa, json = import_arrow(), import_part("pyarrow.json")
    options = json.ReadOptions(block_size=_LINE_BYTES)
    tables = []
    for path in paths:
        try:
            with pa.input_stream(path, compression="gzip" if _is_gzip(path) else None) as file:
                tables.append(json.read_json(file, options))
        except (OSError, pa.ArrowException) as error:
            raise ColumnsError(f"{path}: is no file of JSON lines that can be read ({error})", path=path) from error
    return pa.concat_tables(tables, promote_options="permissive")


def _is_gzip(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _to_arrow(table: Any) -> Any:
    """An object as an Arrow table.

    Raises:
        InputError: it is no table.
    """
    pa = import_arrow()
    try:
        if isinstance(table, pa.Table):
            return table
        if isinstance(table, Mapping):
            return pa.table({name: _to_array(values) for name, values in table.items()})
        if type(table).__module__.partition(".")[0] == "pandas":  # whose stream would have the index as a column
            return pa.Table.from_pandas(table, preserve_index=False)
        if hasattr(table, "__arrow_c_stream__") or hasattr(table, "__arrow_c_array__"):
            return _without_views(pa.table(table))
        return pa.Table.from_pandas(table, preserve_index=False)
    except (AttributeError, TypeError, ValueError, OSError, pa.ArrowException) as error:
        raise InputError(f"table is {a_kind(table)} ({error}); give {_FORMS}") from error


def _without_views(table: Any) -> Any:
    """The same table; categories of polars are string views, of which Arrow can take and cast none."""
    pa = import_arrow()
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    for k, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type) and (kind := plain.get(field.type.value_type)) is not None:
            chunks = [
                pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(kind))
                for chunk in table.column(k).chunks
            ]
            whole = pa.chunked_array(chunks, pa.dictionary(field.type.index_type, kind))
            table = table.set_column(k, field.name, whole)
    return table


def _to_array(values: Any) -> Any:
    """A column of a dict: an array of two dimensions has a vector for each sample."""
    pa = import_arrow()
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values
    if not hasattr(values, "__array__"):
        return pa.array(values)
    array = np.asarray(values)
    if array.ndim < 2:
        return pa.array(array)
    flat = pa.array(np.ascontiguousarray(array).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, int(np.prod(array.shape[1:])))

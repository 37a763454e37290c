"""Brings a user's table into the order of a dataset's samples: row i is that of sample i, or null.

The result for a view has a row for each sample of the whole dataset, with nulls outside the view. The join is by the
sample's index, or by its key (by DuckDB, which sorts and hashes within its memory limit). Repeated keys, in the
table or among the samples, would make the join ambiguous; they are refused by name.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
import numpy as np

from wids.columns import mapped, vectors
from wids.columns.given import open_given
from wids.columns.packages import import_arrow, import_parquet
from wids.columns.spec import check_names, nearest
from wids.columns.sql import SampleTable, run_join
from wids.core.transport.session import PLAIN, Session
from wids.errors import ColumnsError, InputError, shown
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Iterator

On: TypeAlias = Literal["key", "index"]
Missing: TypeAlias = Literal["null", "error"]
_SHOWN = 5


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A table, and how it is joined.

    Attributes:
        table: see `wids.columns.given`.
        on: ``"key"`` or ``"index"``: a column of the table, matched with the samples' key or index (a view: its own).
        columns: which columns of it; None: all but key and index.
        missing: for samples without a row in the table: null, or an error.
        cache_dir: for remote files.
        session: likewise.
    """

    table: Any
    on: On
    columns: Sequence[str] | None
    missing: Missing
    cache_dir: str | None = None
    session: Session = PLAIN


def join_table(
    request: JoinRequest, samples: SampleTable, keys: Iterable[Sequence[str]] | None = None
) -> mapped.MappedTable:
    """The columns of a table, one row for each sample, in a file of this process.

    Args:
        request: which table, and how.
        samples: the dataset's own columns, with ``key`` if a file has them.
        keys: the keys of its samples, shard by shard, if no column has them; called only if they are needed.

    Raises:
        InputError: the arguments do not fit each other, or the table.
        ColumnsError: it cannot be read; its keys or indices repeat, or match no sample; or samples have no row in it.
    """
    if request.on not in ("key", "index") or request.missing not in ("null", "error"):
        raise InputError(f"on is {request.on!r} ('key' or 'index'), missing is {request.missing!r} ('null' or 'error')")
    with contextlib.closing(_JoinedTable(request)) as given:
        rows = _find_rows(given, request.on, samples, keys)
        _check_missing(rows, request)
        _tell_unused(given, rows, request.on, is_view=samples.chosen is not None)
        table = given.read(given.names)
    schema = _schema_of(table)
    try:
        return mapped.write_mapped(schema, _aligned(table, schema, samples.spread(rows)))
    except import_arrow().ArrowException as error:
        raise InputError(f"the table cannot be joined ({error}); choose its columns, or cast them before") from error


def parse_names(what: str, names: Any) -> list[str]:
    """Names of columns, from an argument of a program.

    Raises:
        InputError: the argument, which ``what`` names, has another type.
    """
    if isinstance(names, Iterable) and not isinstance(names, str):
        found = list(names)
        if all(isinstance(name, str) for name in found):
            return found
    raise InputError(f"{what} is {names!r:.100}; give a list of names")


def copy_columns(path: str, names: Sequence[str]) -> mapped.MappedTable:
    """Copy columns of the index's table to a mapped file: Parquet has no fast access to one row."""
    file = import_parquet().ParquetFile(path, page_checksum_verification=True)
    with file:
        schema = import_arrow().schema([file.schema_arrow.field(name) for name in names]).remove_metadata()
        batches = _reading(path, file.iter_batches(mapped.BATCH_ROWS, columns=list(names)))
        return mapped.write_mapped(schema, _rebatch(batches, schema))


def read_vectors(path: str, name: str, rows: np.ndarray[Any, np.dtype[np.int64]] | None) -> Any:
    """A column of vectors of the index's table as one array, of these rows; None: it is of other values, or not there.

    Raises:
        ColumnsError: it is damaged.
    """
    with import_parquet().ParquetFile(path, page_checksum_verification=True) as file:
        field = next((each for each in file.schema_arrow if each.name.casefold() == name.casefold()), None)
        if field is None or (kind := vectors.type_of(field)) is None:
            return None
        batches = _reading(path, file.iter_batches(mapped.BATCH_ROWS, columns=[field.name]))
        column = import_arrow().Table.from_batches(batches, import_arrow().schema([field])).column(0)
    return vectors.stack(column if rows is None else column.take(import_arrow().array(rows)), kind)


def _reading(path: str, batches: Iterable[Any]) -> Iterator[Any]:
    """The same batches; errors of reading become wids errors."""
    try:
        yield from batches
    except (OSError, import_arrow().ArrowException) as error:
        raise ColumnsError(f"{path}: is damaged ({error}); make it again: wids columns create", path=path) from error


def _rebatch(batches: Iterable[Any], schema: Any) -> Iterator[Any]:
    """The same rows in batches of equal length; row groups differ in length."""
    pa = import_arrow()
    waiting: list[Any] = []
    for batch in batches:
        waiting.append(batch.select(schema.names))
        while sum(map(len, waiting)) >= mapped.BATCH_ROWS:
            table = pa.Table.from_batches(waiting)
            yield _one_batch(table.slice(0, mapped.BATCH_ROWS), schema)
            waiting = table.slice(mapped.BATCH_ROWS).to_batches()
    if sum(map(len, waiting)):
        yield _one_batch(pa.Table.from_batches(waiting), schema)


def _one_batch(table: Any, schema: Any) -> Any:
    pa = import_arrow()
    return pa.record_batch([_one_array(column) for column in table.columns], schema=schema)


def _one_array(column: Any) -> Any:
    found = column.combine_chunks()
    return found.combine_chunks() if hasattr(found, "combine_chunks") else found


class _JoinedTable:
    """A user's table. Columns are read when they are needed; a file is read only for these.

    Attributes:
        names: of the columns to join.
        nrows: of the table.
    """

    def __init__(self, request: JoinRequest) -> None:
        self._source = source = open_given(request.table, cache_dir=request.cache_dir, session=request.session)
        there, self.nrows = source.names, source.nrows
        if request.columns is None:
            self.names = [name for name in there if name not in ("key", "index")]
        else:
            self.names = [name for name in parse_names("columns", request.columns) if name != request.on]
        for name in (request.on, *self.names):
            if there.count(name) != 1:
                found = "no column" if name not in there else "several columns"
                near = nearest(name, there) if name not in there else ""
                raise InputError(f"the table has {found} {name!r}{near}; it has {', '.join(there)}")
        if not self.names:
            raise InputError(f"no column is to be joined; the table has {', '.join(there)}")
        check_names(self.names)

    def close(self) -> None:
        """Close the file, if it is one."""
        self._source.close()

    def read(self, names: Sequence[str]) -> Any:
        """An Arrow table of some columns.

        Raises:
            ColumnsError: they cannot be read.
        """
        pa = import_arrow()
        try:
            table = self._source.read(list(names)).select(list(names))
        except (OSError, pa.ArrowException) as error:
            raise ColumnsError(f"the table is damaged, or no Parquet that can be read ({error})") from error
        try:
            table.validate(full=True)
        except pa.ArrowException as error:  # texts that are no UTF-8, say
            raise ColumnsError(f"the table has values that are none of its types ({error})") from error
        return table


def _find_rows(
    given: _JoinedTable, on: On, samples: SampleTable, keys: Iterable[Sequence[str]] | None
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The table's row of each sample; -1: none."""
    column = given.read([on]).column(on)
    if not len(column):  # of any type
        return np.full(samples.count, -1, np.int64)
    rows = _rows_by_index(column, samples.count) if on == "index" else _rows_by_key(column, samples, keys)
    del column  # before the other columns are read
    import_arrow().default_memory_pool().release_unused()
    return rows


def _rows_by_index(column: Any, samples: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Rows by their index; see `_find_rows`."""
    pa = import_arrow()
    if not pa.types.is_integer(column.type):
        raise InputError(f"the table's index is of type {column.type}; it has to be of integers")
    if column.null_count:
        raise ColumnsError(f"the table's index is null in {column.null_count:,} rows")
    index = column.cast(pa.int64(), safe=False).to_numpy()  # large ones become negative, which no sample has either
    outside = column.to_numpy()[(index < 0) | (index >= samples)]
    if len(outside):
        some = _some(outside[:_SHOWN].tolist(), len(outside))
        raise ColumnsError(
            f"the table's index names {len(outside):,} samples that are not there: {some}; the dataset has "
            f"{samples:,}, from 0 on"
        )
    rows = np.full(samples, -1, np.int64)
    rows[index] = np.arange(len(index))
    if np.count_nonzero(rows >= 0) < len(index):
        repeated = np.unique(index[rows[index] != np.arange(len(index))])
        some = _some(repeated[:_SHOWN].tolist(), len(repeated))
        raise ColumnsError(f"the table has several rows for {len(repeated):,} samples: {some}")
    return rows


def _rows_by_key(
    column: Any, samples: SampleTable, keys: Iterable[Sequence[str]] | None
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Rows by their key; see `_find_rows`."""
    pa = import_arrow()
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise InputError(f"the table's key is of type {column.type}; it has to be of strings")
    if column.null_count:
        raise ColumnsError(f"the table's key is null in {column.null_count:,} rows")
    chunks = [] if keys is None else [pa.array(part, pa.string()) for part in keys]
    own = None if keys is None else pa.table({"key": pa.chunked_array(chunks, pa.string())})
    found = run_join(samples, pa.table({"key": column}), own)
    for whose, (count, some) in (("the table", found.repeated), ("the dataset", found.repeated_samples)):
        if count:
            what = "keys in several rows" if whose == "the table" else "keys of several samples; join on='index'"
            raise ColumnsError(f"{whose} has {count:,} {what}: {_some(some, count)}")
    return found.rows


def _some(values: Sequence[Any], count: int) -> str:
    shown = ", ".join(repr(value) for value in values[:_SHOWN])
    return shown + (", ..." if count > _SHOWN else "")


def _check_missing(rows: np.ndarray[Any, np.dtype[np.int64]], request: JoinRequest) -> None:
    """Warn of samples without a row in the table, or raise an error."""
    absent = np.flatnonzero(rows < 0)
    if not len(absent):
        return
    some = _some(absent[:_SHOWN].tolist(), len(absent))
    what = f"{len(absent):,} of {len(rows):,} samples have no row in the table: index {some}"
    if request.missing == "error":
        raise ColumnsError(f"{what}; with missing='null' their columns are null")
    logger.warning("%s; their columns are null", what)


def _tell_unused(given: _JoinedTable, rows: np.ndarray[Any, np.dtype[np.int64]], on: On, *, is_view: bool) -> None:
    """Report rows of the table without a sample; for a view, they are expected."""
    used = np.zeros(given.nrows, np.bool_)
    used[rows[rows >= 0]] = True
    if not used.all():
        first = int(np.argmin(used))
        some = shown(given.read([on]).column(on)[first].as_py())
        level = logging.INFO if is_view else logging.WARNING
        count = len(used) - int(used.sum())
        logger.log(level, "%d of %d rows of the table are of no sample, like %s %s", count, len(used), on, some)


def _schema_of(table: Any) -> Any:
    """The schema in which the columns of a table are written.

    Raises:
        InputError: a column is of a type that SQL has not.
    """
    pa = import_arrow()
    fields = []
    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        try:
            fields.append(vectors.mark_half(pa.field(name, _plain_type(kind)), kind))
        except ValueError as error:
            raise InputError(f"the table's column {name!r} is of type {kind}; cast it, or leave it out") from error
    return pa.schema(fields)


def _plain_type(kind: Any) -> Any:
    """The type in which a column is written: independent of other batches, and known to SQL.

    Raises:
        ValueError: no such type exists.
    """
    pa = import_arrow()
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _plain_type(kind.value_type)
    if types.is_union(kind) or types.is_decimal256(kind):
        raise ValueError(kind)
    if isinstance(kind, pa.BaseExtensionType):
        plain = _plain_type(kind.storage_type)
        return kind if plain == kind.storage_type else plain
    if types.is_nested(kind):
        return _plain_nested(kind)
    plain_types = {"halffloat": pa.float32(), "string_view": pa.string(), "binary_view": pa.binary()}
    return plain_types.get(str(kind), kind)


def _plain_nested(kind: Any) -> Any:
    """The plain type of a nested one; see `_plain_type`."""
    pa = import_arrow()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    field = kind.value_field.with_type(_plain_type(kind.value_type))
    if "view" in str(kind).partition("<")[0]:  # of these, Arrow's own casts are damaged
        if field.type != kind.value_type:
            raise ValueError(kind)
        return kind
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(field, kind.list_size)
    return pa.large_list(field) if str(kind).startswith("large") else pa.list_(field)


def _aligned(table: Any, schema: Any, rows: np.ndarray[Any, np.dtype[np.int64]]) -> Iterator[Any]:
    """The rows of a table in the order of samples, one batch at a time."""
    pa = import_arrow()
    whole = pa.record_batch(
        [_whole(column, kind) for column, kind in zip(table.columns, schema.types, strict=True)], names=schema.names
    )
    for first in range(0, len(rows), mapped.BATCH_ROWS):
        part = rows[first : first + mapped.BATCH_ROWS]
        taken = whole.take(pa.array(part, mask=part < 0))
        yield pa.record_batch(
            [array.cast(kind) for array, kind in zip(taken.columns, schema.types, strict=True)], schema=schema
        )


def _whole(column: Any, kind: Any) -> Any:
    """A column in one piece; texts of more than 2 GB do not fit the plain type."""
    pa = import_arrow()
    wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    return _one_array(column.cast(wide.get(kind, kind)))

"""Parquet and Arrow as manifests: rows by row group, and pictures in them, which are read when their shard is written.

Rules: a column of bytes, or the Hub's struct of ``bytes`` and ``path``, takes the role of files. The listing has only
the places of its rows in the file, because a listing is kept in memory. Batches of Arrow are row groups, mapped.
"""

from __future__ import annotations

import hashlib
import os
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from wids.columns.packages import import_arrow, import_part
from wids.core.place import Place
from wids.core.transport.download import read_bytes
from wids.errors import DependencyError, FetchError, InputError, SampleError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from wids.core.transport.session import Session

_BATCH = 10_000
_BYTES, _PATH = "bytes", "path"


class InRow(NamedTuple):
    """A field that a row of a Parquet file has in a column of bytes.

    Attributes:
        extension: of the field.
        manifest: path or URL of the file.
        mark: of its version.
        column: its name.
        group: number of the row group.
        row: number in that.
    """

    extension: str
    manifest: str
    mark: str
    column: str
    group: int
    row: int

    def read(self, session: Session) -> bytes:
        """The content; see `read_content`."""
        return read_content(self, session)


class ParquetRow(NamedTuple):
    """A row: its number, its values by column, and by column its contents or the path of a file."""

    number: int
    values: dict[str, Any]
    contents: dict[str, InRow | str | None]


class ParquetRows:
    """The rows of one file.

    Args:
        place: path or URL.
        session: opens URLs.

    Attributes:
        columns: their names.
        types: column -> Arrow's name of its type.

    Raises:
        InputError: it is neither Parquet nor Arrow, or two columns have the same name. FetchError: it cannot be read.
        DependencyError: pyarrow is not installed.
    """

    def __init__(self, place: str, session: Session) -> None:
        self._place = place
        self._file, self._mark = _open(place, session)
        self.columns: list[str] = list(self._file.schema_arrow.names)
        self.types: dict[str, str] = {field.name: str(field.type) for field in self._file.schema_arrow}

    def read(self, values: Collection[str], contents: Collection[str]) -> Iterator[ParquetRow]:
        """The rows.

        Args:
            values: columns whose values are wanted; missing ones are skipped.
            contents: columns that hold the content of files, or name files.
        """
        held = {name: self._is_struct(name) for name in contents if self._holds_bytes(name)}
        plain = [name for name in self.columns if name in values or (name in contents and name not in held)]
        number = 0
        for group in range(self._file.num_row_groups):
            count = self._file.metadata.row_group(group).num_rows
            found = {name: self._find(name, group, count, is_struct=is_struct) for name, is_struct in held.items()}
            for row, cells in enumerate(self._values(plain, group, count)):
                named = {name: cells[name] for name in plain if name in contents}
                yield ParquetRow(number, cells, {**named, **{name: rows[row] for name, rows in found.items()}})
                number += 1

    def _values(self, names: list[str], group: int, count: int) -> Iterator[dict[str, Any]]:
        if not names:
            for _ in range(count):
                yield {}
            return
        for batch in self._file.iter_batches(_BATCH, row_groups=[group], columns=names, use_threads=False):
            yield from batch.to_pylist()

    def _holds_bytes(self, name: str) -> bool:
        types = import_arrow().types
        if name not in self.columns:
            return False
        kind = self._file.schema_arrow.field(name).type
        if types.is_struct(kind):
            place = kind.get_field_index(_BYTES)
            return place >= 0 and _is_binary(kind.field(place).type)
        return _is_binary(kind)

    def _is_struct(self, name: str) -> bool:
        return bool(import_arrow().types.is_struct(self._file.schema_arrow.field(name).type))

    def _find(self, name: str, group: int, count: int, *, is_struct: bool) -> list[InRow | str | None]:
        """The places of the contents of each row of a group."""
        there = [True] * count if self._has_no_nulls(name, group, is_struct=is_struct) else None
        if there is None:
            there = _column(self._file, group, name).are_there()
        rows: list[InRow | str | None] = [
            InRow("", self._place, self._mark, name, group, row) if is_there else None
            for row, is_there in enumerate(there)
        ]
        if is_struct and not all(there) and self._file.schema_arrow.field(name).type.get_field_index(_PATH) >= 0:
            table = self._file.read_row_group(group, columns=[f"{name}.{_PATH}"], use_threads=False)
            paths = [cell and cell[_PATH] for cell in table.column(0).to_pylist()]
            rows = [path if row is None else row for row, path in zip(rows, paths, strict=True)]
        return rows

    def _has_no_nulls(self, name: str, group: int, *, is_struct: bool) -> bool:
        group_metadata = self._file.metadata.row_group(group)
        leaf = f"{name}.{_BYTES}" if is_struct else name
        for k in range(group_metadata.num_columns):
            column = group_metadata.column(k)
            if column.path_in_schema == leaf:
                statistics = column.statistics
                return statistics is not None and statistics.has_null_count and statistics.null_count == 0
        return False


def _is_binary(kind: Any) -> bool:
    types = import_arrow().types
    if types.is_dictionary(kind):
        kind = kind.value_type
    is_view = getattr(types, "is_binary_view", None)  # of newer releases
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or (is_view is not None and is_view(kind))
    )


def _open(place: str, session: Session) -> tuple[Any, str]:
    """(the open file, the mark of its version)."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DependencyError(
            "reading Parquet or Arrow takes pyarrow; install it: pip install 'wids[parquet]'"
        ) from error
    is_arrow = place.lower().endswith(".arrow")
    try:
        mark = mark_of(place)
        if mark is not None:
            source: Any = pa.memory_map(_local(place)) if is_arrow else pa.OSFile(_local(place), "rb")
        else:
            data = read_bytes(place, session=session)
            source, mark = pa.BufferReader(data), hashlib.sha256(data).hexdigest()
        file: Any = _ArrowFile(source) if is_arrow else pq.ParquetFile(source, page_checksum_verification=True)
    except pa.ArrowException as error:
        kind = "Arrow" if is_arrow else "Parquet"
        raise InputError(f"{place}: is no {kind} that can be read ({error})", url=place) from error
    except OSError as error:
        if isinstance(error, FetchError):
            raise
        raise InputError(f"{place}: cannot be read ({error.strerror or error})", url=place) from error
    return file, mark


def read_arrow(source: Any) -> Any:
    """The table of an Arrow stream or file.

    Raises:
        pyarrow.ArrowException: it is none, or damaged.
    """
    ipc = import_part("pyarrow.ipc")
    is_file = source.read(6) == b"ARROW1"
    source.seek(0)
    table = (ipc.open_file if is_file else ipc.open_stream)(source).read_all()
    table.validate(full=True)  # reading offsets that are wrong would end the process
    return table


class _ArrowFile:
    """An Arrow stream or file as a ``pyarrow.parquet.ParquetFile``, with what is used of that here."""

    def __init__(self, source: Any) -> None:
        table = read_arrow(source)
        self.schema_arrow, self._batches, self.metadata = table.schema, table.to_batches(), self
        self.num_row_groups = len(self._batches)

    def row_group(self, group: int) -> Any:
        """The metadata of a row group: its number of rows, without statistics."""
        return SimpleNamespace(num_rows=self._batches[group].num_rows, num_columns=0)

    def read_row_group(self, group: int, columns: list[str], **_: Any) -> Any:
        """Columns of a row group; ``x.path`` is column ``x`` with all that it has."""
        names = [name if name in self.schema_arrow.names else name.rpartition(".")[0] for name in columns]
        return import_arrow().Table.from_batches([self._batches[group]]).select(names)

    def iter_batches(self, size: int, row_groups: list[int], columns: list[str], **_: Any) -> Iterator[Any]:
        """Columns of some row groups, ``size`` rows at a time."""
        for group in row_groups:
            yield from self.read_row_group(group, columns).to_batches(max_chunksize=size)


def _local(place: str) -> str:
    return Place(place).path


def mark_of(place: str) -> str | None:
    """The mark of a local file's version; None: it is remote, or no regular file."""
    if not Place(place).is_local or not os.path.isfile(_local(place)):
        return None
    status = os.stat(_local(place))
    return f"{status.st_size} {status.st_mtime_ns}"


def _column(file: Any, group: int, name: str) -> _Bytes:
    """The bytes of a group's rows, a sequence; None for a row without bytes."""
    column = file.read_row_group(group, columns=[name], use_threads=False).column(0)  # chunks: one may be too large
    if import_arrow().types.is_struct(column.type):
        column = column.flatten()[column.type.get_field_index(_BYTES)]
    return _Bytes(column)


class _Bytes:
    """An Arrow array as a sequence of bytes or None, made on access."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def are_there(self) -> list[bool]:
        """Booleans (n,) for n rows: each has bytes."""
        there: list[bool] = self._array.is_valid().to_pylist()
        return there

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, row: int) -> bytes | None:
        if row >= len(self._array):
            raise IndexError(row)
        value: bytes | None = self._array[row].as_py()
        return value


class _OpenFiles(threading.local):
    """The file and the row group that a thread read last."""

    file: tuple[str, str, Any] | None = None
    group: tuple[tuple[str, str, int, str], Any] | None = None


_opened = _OpenFiles()


def read_content(field: InRow, session: Session) -> bytes:
    """The content of a row in a column of bytes; the row's whole group is read, and kept for the next row.

    Raises:
        SampleError: the file has changed since it was listed. WidsError: it cannot be read.
    """
    place = (field.manifest, field.mark, field.group, field.column)
    group = _opened.group
    if group is None or group[0] != place:
        _opened.group = None  # before the next one is there
        group = _opened.group = (place, _read_group(field, session))
    data: bytes | None = group[1][field.row]
    if data is None:  # statistics said otherwise
        raise SampleError(f"{field.manifest}: column {field.column!r} is empty in a row", path=field.manifest)
    return data


def has_changed(file_url: str) -> SampleError:
    """The error for a file of rows that was written to since it was listed."""
    return SampleError(
        f"{file_url}: was written to since it was listed; pack it when no program writes to it", path=file_url
    )


def _read_group(field: InRow, session: Session) -> Any:
    kept = _opened.file
    if kept is None or kept[:2] != (field.manifest, field.mark):
        file, mark = _open(field.manifest, session)
        kept = _opened.file = field.manifest, mark, file
    trouble: Exception | None = None
    try:
        found = _column(kept[2], field.group, field.column)
    except (OSError, ValueError) as error:  # Arrow's own are both
        trouble = error
    if kept[1] != field.mark or mark_of(field.manifest) not in (None, field.mark):
        _opened.file = None
        raise has_changed(field.manifest)
    if trouble is not None:
        raise SampleError(f"{field.manifest}: cannot be read ({trouble})", path=field.manifest) from trouble
    return found

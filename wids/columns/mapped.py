"""Columns in an Arrow file that every process maps: one row for each sample, in batches of 65,536 rows.

Rules: a file is stored in a temporary directory of the process that wrote it, and is deleted with the last object of
that process that refers to it. A copy in another process (a pickle, a fork) maps the same file, and deletes nothing. A
pickle holds a path and no rows.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from wids.columns import vectors
from wids.columns.packages import import_arrow
from wids.core.files import finalizers, forks, tempdirs
from wids.errors import ColumnsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

BATCH_BITS = 16
BATCH_ROWS = 1 << BATCH_BITS


class MappedTable:
    """Columns that are mapped.

    Args:
        path: of the Arrow file.
        is_owned: the file is deleted with this object.

    Attributes:
        names: of the columns.
        nrows: one for each sample.
        table: a ``pyarrow.Table`` over the map.

    Raises:
        ColumnsError: the file does not exist any more.
    """

    path: str
    table: Any
    __slots__ = ("__weakref__", "_kinds", "_readers", "names", "nrows", "path", "table")

    def __init__(self, path: str, *, is_owned: bool = False) -> None:
        self.path = path
        self._open()
        if is_owned:
            finalizers.begin()
            left = partial(_remove, path, os.getpid())
            weakref.finalize(self, finalizers.leave, left).atexit = False  # the whole directory goes then

    def _open(self) -> None:
        pa = import_arrow()
        try:
            self.table = pa.ipc.open_file(pa.memory_map(self.path)).read_all()
        except (OSError, pa.ArrowException) as error:
            raise ColumnsError(
                f"{self.path}: the columns that were attached to this dataset cannot be mapped ({error}); they live as "
                "long as the process that attached them, on its machine: attach them again",
                path=self.path,
            ) from error
        self.names: list[str] = self.table.column_names
        self.nrows: int = self.table.num_rows
        kinds = {field.name: vectors.type_of(field) for field in self.table.schema}
        self._kinds = {name: kind for name, kind in kinds.items() if kind is not None}
        self._readers: dict[str, Callable[[int, int], Any]] = {}

    def __getstate__(self) -> str:
        return self.path

    def __setstate__(self, state: str) -> None:
        self.path = state
        self._open()

    def __deepcopy__(self, memo: dict[int, Any]) -> MappedTable:
        return self  # it never changes, and the file goes with it

    def value(self, name: str, row: int) -> Any:
        """One value (0 <= row < nrows) as a Python object, a vector as an array; None is null.

        Raises:
            ColumnsError: Python cannot represent the value, for instance a date after the year 9999.
        """
        read = self._readers.get(name) or self._make_reader(name)
        try:
            return read(row >> BATCH_BITS, row & (BATCH_ROWS - 1))
        except (ValueError, OverflowError) as error:
            kind = self.table.schema.field(name).type
            raise ColumnsError(
                f"the column {name!r} has a value in row {row}, of type {kind}, that Python has not ({error}); "
                "leave it out of the fields"
            ) from error

    def _make_reader(self, name: str) -> Callable[[int, int], Any]:
        """A function of the number of a batch and a row in it."""
        column, kind = self.table.column(name), self._kinds.get(name)
        chunks = column.chunks
        read = self._readers[name] = (
            (lambda number, row: chunks[number][row].as_py())
            if kind is None
            else vectors.VectorReader(column, kind).value
        )
        return read

    def read_vectors(self, name: str, rows: Any) -> Any:
        """A column of vectors as one array; see `wids.columns.vectors.stack`.

        Args:
            name: of the column, in any case; another one, or one of no vectors, gives None.
            rows: which rows, int64; None: all.
        """
        own = next((each for each in self._kinds if each.casefold() == name.casefold()), None)
        if own is None:
            return None
        column = self.table.column(own)
        found = column if rows is None else column.take(import_arrow().array(rows))
        return vectors.stack(found, self._kinds[own])


def write_mapped(schema: Any, batches: Iterable[Any]) -> MappedTable:
    """Write columns to a file of this process, and map them.

    Args:
        schema: an Arrow schema.
        batches: record batches of `BATCH_ROWS` rows each; the last one may have fewer.

    Raises:
        ColumnsError: the disk has no space for it. CacheError: no temporary directory exists.
    """
    pa = import_arrow()
    path = os.path.join(_home.directory(), f"{secrets.token_hex(8)}.arrow")
    try:
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
    except BaseException as error:
        _remove(path, os.getpid())
        if isinstance(error, OSError):
            raise ColumnsError(
                f"{path}: cannot be written ({error}); set $TMPDIR to a place that has room", path=path
            ) from error
        raise
    return MappedTable(path, is_owned=True)


class _Home:
    """The temporary directory of this process's files, made with the first of them."""

    def __init__(self) -> None:
        self._owner, self._path = -1, ""
        self.start_child()
        forks.reset_in_child(self)

    def start_child(self) -> None:
        """In a forked child: another thread of the parent may have had the lock."""
        self._lock = threading.Lock()

    def directory(self) -> str:
        """Its path."""
        if self._owner != os.getpid():  # none yet, or that of the process this one was forked from
            with self._lock:
                if self._owner != os.getpid():
                    stack = contextlib.ExitStack()
                    self._path = stack.enter_context(tempdirs.directory("columns"))
                    self._owner = os.getpid()
                    atexit.register(stack.close)
        return self._path


_home = _Home()


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            os.unlink(path)

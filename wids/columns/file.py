"""A table of columns as a Parquet file: one row for each sample in index order, and a record of its sources.

The table of an index ``train.json`` is ``train.columns.parquet`` beside it. Its Parquet metadata have a `TableHeader`
as JSON under ``wids``. A file without this value was not made by ``wids columns create``, and is not accepted.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import posixpath
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from wids.columns import kinds as types
from wids.columns.packages import import_arrow, import_parquet
from wids.columns.spec import ColumnRule  # noqa: TC001 - msgspec reads the annotations
from wids.core.files import atomic
from wids.core.files.json_text import JsonParser
from wids.core.files.own_folder import default_cache_dir
from wids.core.files.shared_files import SharedFiles
from wids.core.index.fingerprint import contents, have_changed
from wids.core.place import Place, cache_directory
from wids.core.transport import retrying
from wids.core.transport.download import download_to
from wids.core.transport.stores import open_source
from wids.errors import CacheError, ColumnsError, JsonError, MissingTableError, ShardNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from wids.core.files.shared_files import SharedFile
    from wids.core.index.shardlist import ShardList
    from wids.core.transport.session import Session
    from wids.core.transport.source import Stat

SUFFIX, COPY_SUFFIX, _NOTE_SUFFIX = ".columns.parquet", ".parquet", ".copied"
METADATA_KEY = b"wids"
VERSION = 1
CREATE = "make it again: wids columns create"
# A remote table of an index is no longer than this, and so much for each sample: a column may hold small pictures.
_TABLE_BYTES, _ROW_BYTES = 64 << 20, 1 << 20
# Rows whose places are compared at a time.
_CHECKED_ROWS = 1 << 17
# What a Parquet file begins with.
_PARQUET = b"PAR1"


class TableHeader(msgspec.Struct, kw_only=True):
    """The header of a table, stored in its file.

    Attributes:
        version: of this format.
        fingerprint: of the index; see `wids.core.index.fingerprint`.
        contents: likewise.
        samples: number of its samples.
        columns: names of the requested columns.
        kinds: the kinds of values in each; see `wids.columns.kinds`.
        sizes: extension -> name of the column of its sizes.
        state: digest of the state beside it.
        rules: of the requested columns.
    """

    version: int
    fingerprint: str
    samples: int
    columns: list[str]
    kinds: list[int]
    sizes: dict[str, str]
    state: str
    contents: dict[str, str] = {}
    rules: list[ColumnRule] = []


_HEADERS = JsonParser(TableHeader)


class TableFile(msgspec.Struct, frozen=True):
    """An open table.

    Attributes:
        path: of the file.
        file: a ``pyarrow.parquet.ParquetFile``.
        header: stored in it.
    """

    path: str
    file: Any
    header: TableHeader

    @property
    def schema(self) -> Any:
        """The Arrow schema of its columns."""
        return self.file.schema_arrow

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def place_beside(index: str) -> str | None:
    """The place of the columns of an index, by its path or URL; None: a signed URL gives access to one object only."""
    place = Place(index)
    if not place.is_local and place.without_query != index:
        return None
    home, name = posixpath.split(index)
    return posixpath.join(home, posixpath.splitext(name)[0] + SUFFIX)


def open_table(path: str) -> TableFile:
    """A table that ``wids columns create`` made; its row i is that of sample i.

    Raises:
        ColumnsError: it does not exist, is damaged, was made in another way, or has rows in another order.
    """
    pq = import_parquet()
    _check_file(path, path)
    version = atomic.version_of(path)
    try:
        file = pq.ParquetFile(path, memory_map=False, page_checksum_verification=True)
    except Exception as error:
        raise ColumnsError(f"{path}: is no Parquet that can be read ({error}); {CREATE}", path=path) from error
    try:
        data = (file.schema_arrow.metadata or {})[METADATA_KEY]
        header = _HEADERS.parse(data)
        if header.version != VERSION:
            raise ValueError(f"it is of version {header.version}, and this wids reads version {VERSION}")  # noqa: TRY301
        needed = table_schema(dict(zip(header.columns, header.kinds, strict=True)), header.sizes.values())
        names = [rule.name for rule in header.rules]
        if not file.schema_arrow.equals(needed) or names not in ([], header.columns):
            raise ValueError("it contradicts itself")  # noqa: TRY301
        if file.metadata.num_rows != header.samples:
            raise ValueError(f"it has {file.metadata.num_rows} rows and says {header.samples}")  # noqa: TRY301
    except Exception as error:
        file.close()
        why = "it does not say of which index" if isinstance(error, KeyError) else error
        raise ColumnsError(
            f"{path}: was not made by `wids columns create`, or is damaged ({why}); {CREATE}, "
            "or attach any other table by with_table",
            path=path,
        ) from error
    try:
        _check_rows(path, version)
    except BaseException:
        file.close()
        raise
    return TableFile(path, file, header)


def read_header(path: str) -> TableHeader | None:
    """The header of a table, whatever its rows are; None: it does not exist, or has none that can be read."""
    with contextlib.suppress(OSError, KeyError, JsonError, import_arrow().ArrowException):
        return _HEADERS.parse((import_parquet().read_schema(path).metadata or {})[METADATA_KEY])
    return None


@functools.lru_cache(maxsize=256)
def _check_rows(path: str, version: tuple[int, ...]) -> None:  # noqa: ARG001 - each version of a file is read once
    """Check that the rows of a table are in the order of the samples, by reading their column ``index``.

    Minima and maxima in the file's footer would not show rows that were exchanged within a row group.

    Raises:
        ColumnsError: they are in another order, or cannot be read.
    """
    first, before = 0, (-1, -1)
    try:
        with import_parquet().ParquetFile(path, page_checksum_verification=True) as file:
            for batch in file.iter_batches(_CHECKED_ROWS, columns=["index", "shard", "row"]):
                index, shard, row = (column.to_numpy(zero_copy_only=False) for column in batch.columns)
                shards = np.concatenate([[before[0]], shard])
                rows = np.concatenate([[before[1]], row])
                is_next = (shards[1:] == shards[:-1]) & (rows[1:] == rows[:-1] + 1)
                is_first = (shards[1:] > shards[:-1]) & (rows[1:] == 0)
                wrong = np.flatnonzero((index != np.arange(first, first + len(index))) | ~(is_next | is_first))
                if len(wrong):
                    at = int(wrong[0])
                    says = f"index {index[at]}, shard {shard[at]}, row {row[at]}"
                    raise ColumnsError(
                        f"{path}: its rows are not in the order of the samples, as of row {first + at}, which says "
                        f"{says}: it was sorted or changed after it was made; {CREATE}, or attach a table in any order "
                        "by with_table",
                        path=path,
                    )
                first, before = first + len(index), (shards[-1], rows[-1])
    except (OSError, import_arrow().ArrowException) as error:
        raise ColumnsError(f"{path}: is damaged ({error}); {CREATE}", path=path) from error


@functools.lru_cache(maxsize=256)
def _sound_columns(path: str, version: tuple[int, ...]) -> set[str]:  # noqa: ARG001 - of each version of a file
    """The columns of a table that passed the check."""
    return set()


def check_values(path: str, names: Iterable[str], is_stopped: Callable[[], bool]) -> None:
    """Check that columns are undamaged: pages against their checksums, and the footer against the values.

    The footer has no checksum, but DuckDB skips rows by its minima, maxima and counts of nulls. Each column is read
    once for each version of the file in this process.

    Args:
        path: of the table.
        names: of columns; the check ignores names of other tables.
        is_stopped: called regularly; reading stops when it returns True.

    Raises:
        ColumnsError: one is damaged.
    """
    sound = _sound_columns(path, atomic.version_of(path))
    with import_parquet().ParquetFile(path, page_checksum_verification=True) as file:
        there = file.schema_arrow.names
        for name in [name for name in names if name in there and name not in sound]:
            for group in range(file.num_row_groups):
                if is_stopped():
                    return
                about = file.metadata.row_group(group)
                try:
                    values = file.read_row_group(group, columns=[name]).column(0)
                    if len(values) != about.num_rows or not _is_true(
                        about.column(there.index(name)).statistics, values
                    ):
                        raise ValueError("there are other values than its footer says")  # noqa: TRY301
                except (OSError, ValueError, import_arrow().ArrowException) as error:
                    raise ColumnsError(f"{path}: column {name!r} is damaged ({error}); {CREATE}", path=path) from error
            sound.add(name)


def _is_true(says: Any, values: Any) -> bool:
    """True if a footer's statistics of a row group are true."""
    if says is None:
        return True
    from pyarrow import compute

    if says.has_null_count and says.null_count != values.null_count:
        return False
    if not says.has_min_max:
        return True
    if import_arrow().types.is_fixed_size_list(values.type):
        values = compute.list_flatten(values)
    found = compute.min_max(values).as_py()
    return bool((says.min, says.max) == (found["min"], found["max"]))


def table_schema(kinds: Mapping[str, int], sizes: Iterable[str]) -> Any:
    """The Arrow schema of a table.

    Args:
        kinds: name of each requested column -> the kinds of its values.
        sizes: names of the columns of the fields' sizes.
    """
    pa = import_arrow()
    own = [("index", pa.int64()), ("shard", pa.int32()), ("row", pa.int32())]
    own += [("key", pa.string()), ("bytes", pa.int64())]
    asked = [types.arrow_field(name, of) for name, of in kinds.items()]
    return pa.schema([*own, *asked, *((name, pa.int64()) for name in sizes)])


def _check_file(path: str, place: str) -> None:
    """Check that a path is a regular file: opening anything else could block forever.

    Raises:
        MissingTableError: it does not exist. ColumnsError: it is something else.
    """
    if not os.path.exists(path):
        raise MissingTableError(f"{place}: there is no such file", path=path)
    if not os.path.isfile(path):
        raise ColumnsError(f"{place}: is a directory or a device; give one Parquet file", path=path)


def is_table(path: str) -> bool:
    """True if ``wids columns create`` made a file, or, by its name, the damaged rest of one.

    Raises:
        OSError: it cannot be read.
    """
    try:
        with import_parquet().ParquetFile(path) as file:
            return METADATA_KEY in (file.schema_arrow.metadata or {})
    except (OSError, import_arrow().ArrowException):
        with open(path, "rb") as file:
            return path.endswith(SUFFIX) and file.read(len(_PARQUET)) == _PARQUET


def check_of_index(table: TableFile, shards: ShardList, fingerprint: str) -> None:
    """Check that a table is that of an index.

    Raises:
        ColumnsError: it is a table of another index.
    """
    total, header = sum(shards.nsamples), table.header
    if header.samples != total:
        what = f"has {header.samples:,} rows, and the index {total:,} samples"
    elif header.fingerprint != fingerprint:
        what = "is of an index with other shards, or other counts"
    else:
        return
    raise ColumnsError(f"{table.path}: {what}; {CREATE}", path=table.path, expected=total, found=header.samples)


def check_contents(table: TableFile, shards: ShardList) -> None:
    """Check that a table belongs to the index's shards, by the sizes and checksums in the index then and now.

    Raises:
        ColumnsError: they were rewritten.
    """
    if have_changed(table.header.contents, contents(shards)):
        what = "is of shards of the same names and counts, but other checksums or sizes: they were rewritten since"
        raise ColumnsError(f"{table.path}: {what}; {CREATE}", path=table.path)


def fetch_table(
    place: str, *, cache_dir: str | None, session: Session, samples: int | None = None, is_parquet: bool = True
) -> str:
    """The local path of a table; a remote one is downloaded into the cache directory, once for each version.

    Args:
        place: its URL or path.
        cache_dir: see `wids.ShardListDataset`.
        session: opens URLs.
        samples: number of rows of a remote one, which limits its length; None: the free disk space is the limit.
        is_parquet: it has to be Parquet.

    Raises:
        ColumnsError: it does not exist. FetchError, CacheError: it cannot be downloaded, or stored.
    """
    if (own := Place(place)).is_local:
        path = own.absolute.path
        _check_file(path, place)
        return path

    def once() -> Stat:
        with open_source(place, session) as source:
            return source.stat()

    def download(path: str, fd: int) -> None:
        def check() -> None:
            if not is_parquet:
                return
            try:
                import_parquet().ParquetFile(path).close()
            except (import_arrow().ArrowException, OSError) as error:
                raise ColumnsError(f"{place}: is no Parquet that can be read ({error})", url=place) from error

        most = None if samples is None else _TABLE_BYTES + samples * _ROW_BYTES
        download_to(place, path, check=check, max_bytes=most, session=session)
        notes.put(digest, _file_number(os.fstat(fd)))

    def take(file: SharedFile) -> str | None:
        """The path, if it is the file that was downloaded for this name: others may rename shared files."""
        return file.path if notes.find(digest, lambda note: bytes(note.data)) == _file_number(file.status) else None

    directory = cache_directory(cache_dir or default_cache_dir())
    # Readers of Parquet allow nothing behind its end, so that the name is in a note of the file's number.
    copies, notes = SharedFiles(directory, COPY_SUFFIX, is_named=False), SharedFiles(directory, _NOTE_SUFFIX)
    try:
        stat = retrying.try_repeatedly(once, url=place, path=None, hooks=())
        version = "" if stat.version is None else repr((stat.size, stat.version))
        digest = hashlib.blake2b(f"{place}\0{version}".encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
        kept = copies.get(digest, download, take, is_new=not version)
    except ShardNotFoundError as error:
        raise MissingTableError(f"{place}: there is no such file", url=place) from error
    if kept is None:
        raise CacheError(f"{place}: cannot be kept in {copies.path(digest)}; choose another cache_dir", url=place)
    return kept


def _file_number(status: os.stat_result) -> bytes:
    return f"{status.st_dev} {status.st_ino} {status.st_size}".encode()

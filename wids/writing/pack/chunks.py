"""Folders of MosaicML's streaming (``.mds``) and of LitData (``chunk-*.bin``): their files as rows, and their fields.

Rules: the files are read here, so that pictures, texts and bytes stay as they are. Arrays, and LitData's nested values,
are decoded by the package that wrote them. No pickle is read. The ``index.json`` beside the files says what they hold.
"""

from __future__ import annotations

import functools
import importlib
import mmap
import os
import posixpath
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from wids.columns.packages import import_arrow
from wids.columns.spec import CLASS_COLUMNS
from wids.core.codecs.encoders import encode_field
from wids.core.files.json_text import TOLERANT
from wids.core.place import Place
from wids.core.transport.download import read_bytes
from wids.errors import DependencyError, FetchError, InputError, JsonError, SampleError, shown
from wids.writing.pack.listing import PackColumn, find_picture
from wids.writing.pack.parquet import InRow, ParquetRow, has_changed, mark_of, read_arrow

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from wids.core.transport.session import Session

_INDEX, _MDS, _LITDATA = "index.json", "mosaicml-streaming", "litdata"
_DECODERS = {_MDS: "streaming.base.format.mds.encodings", _LITDATA: "litdata.streaming.serializers"}
_READERS = {_MDS: "streaming.StreamingDataset(local=...)", _LITDATA: "litdata.StreamingDataset(...)"}
_TEXTS = frozenset(("str", "text", "str_decimal"))
# Columns of numbers -> their types in numpy.
_NUMBERS = {
    "int": "<i8",
    "float": "<f8",
    "bool": "?",
    **{f"{sign}int{bits}": f"<{sign or 'i'}{bits // 8}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
}
_PARSERS = {"str_int": int, "str_float": float}
_VALUES = frozenset((*_TEXTS, *_NUMBERS, *_PARSERS, "json"))
_ARRAYS = frozenset(("ndarray", "numpy", "no_header_numpy", "tensor", "no_header_tensor"))
# Columns that hold files -> the extension; "": that of the first row's content.
_FILES = {"jpeg": ".jpg", "png": ".png", "pdf": ".pdf", "tifffile": ".tif", "tiff": ".tif"}
_FILES |= dict.fromkeys(("bytes", "image", "file", "video", "audio"), "")
_LABELS = CLASS_COLUMNS | {"y"}  # beside an x, in their examples; in SQL it may be any number
_FRAMED = b"LDFZ01\0\0"  # what files of LitData with several compressed frames begin with
_FOOTER = b"LDARW01\0"  # what those with rows in Arrow end with
_CODECS = {"zstd": "zstd", "gz": "gzip", "bz2": "bz2", "br": "brotli"}


class ChunkColumn(NamedTuple):
    """A column.

    Attributes:
        name: its name.
        kind: its encoding, without arguments.
        encoding: with these.
        size: bytes of each value; 0: they differ, and are in the row.
    """

    name: str
    kind: str
    encoding: str
    size: int


class ChunkFile(NamedTuple):
    """A file as its index says it.

    Attributes:
        path: of it.
        package: what wrote it.
        columns: of its rows.
        rows: their number.
        codec: Arrow's name of its compression; "": none.
    """

    path: str
    package: str
    columns: tuple[ChunkColumn, ...]
    rows: int
    codec: str


class InChunk(InRow):
    """A field that a row of a chunk has; see `wids.writing.pack.parquet.InRow`."""

    __slots__ = ()

    def read(self, session: Session) -> bytes:  # noqa: ARG002 - as the base
        """The content.

        Raises:
            SampleError: the file has changed since it was listed. WidsError: it cannot be read.
        """
        if mark_of(self.manifest) != self.mark:
            raise has_changed(self.manifest)
        rows = _open(self.manifest, self.mark)
        return rows.content(self.row, rows.columns.index(self.column))


class ChunkRows:
    """The rows of a file, with the interface of `wids.writing.pack.parquet.ParquetRows`.

    Args:
        place: its path.

    Attributes:
        columns: their names.
        file: what the index says, and of rows in Arrow what that says.

    Raises:
        InputError: it cannot be read, or is damaged or encrypted.
    """

    def __init__(self, place: str) -> None:
        self.file: ChunkFile = _find(place)
        self.columns: list[str] = [column.name for column in self.file.columns]
        self._place, self._mark = place, mark_of(self.file.path) or ""
        self._data = _read(self.file)
        count = self.file.rows
        heads = np.frombuffer(self._data, "<u4", min(count + 2, len(self._data) // 4))
        if len(heads) < count + 2 or heads[0] != count or (np.diff(heads[1:].astype(np.int64)) < 0).any():
            raise self._damage()
        self._ends = heads[1:]
        self._table = _read_footer(self._data, place)
        if self._table is not None:
            self._use_table(self._table)

    def read(self, values: Collection[str], contents: Collection[str]) -> Iterator[ParquetRow]:
        """The rows.

        Args:
            values: columns whose values are wanted.
            contents: columns that hold the content of files, or name files.

        Raises:
            InputError: a value cannot be read. DependencyError: the package that decodes it is not installed.
        """
        columns = list(enumerate(self.file.columns))
        held = [each.name for _, each in columns if each.name in contents and each.kind not in _TEXTS]
        plain = [(k, each) for k, each in columns if each.name in {*values, *contents}.difference(held)]
        listed = {each.name: self._table.column(k).to_pylist() for k, each in plain if self._table is not None}
        for row in range(self.file.rows):
            if self._table is None:
                cells = self._cells(row) if plain else []
                found = {each.name: self._value(each, cells[k]) for k, each in plain}
            else:
                found = {name: values_of[row] for name, values_of in listed.items()}
            named: dict[str, InRow | str | None] = {name: found[name] for name in contents if name in found}
            for name in held:
                named[name] = InChunk("", self._place, self._mark, name, 0, row)
            yield ParquetRow(row, found, named)

    def content(self, row: int, column: int) -> bytes:
        """The content of a file in a column; of arrays, an ``.npy``.

        Raises:
            InputError: the column holds no files. DependencyError: the package that decodes it is not installed.
        """
        each = self.file.columns[column]
        data = self._cells(row)[column] if self._table is None else self._table.column(column)[row].as_py()
        if not isinstance(data, bytes):
            raise SampleError(f"{self._place}: column {shown(each.name)} holds no bytes in a row", path=self._place)
        if each.kind in _FILES:
            return data
        if each.kind in _ARRAYS:
            return encode_field(".npy", np.asarray(self._decode(each, data)))
        raise self.refusal(each)

    def refusal(self, column: ChunkColumn) -> InputError:
        """The error for a column that cannot be packed."""
        return InputError(
            f"{self._place}: column {shown(column.name)} has the encoding {shown(column.encoding)}, which is not "
            f"packed; name the other ones, like .jpg=COLUMN, or write what {self.file.package} yields with "
            "wids.ShardWriter",
            parameter="fields",
        )

    def _use_table(self, table: Any) -> None:
        kinds = {"binary": "bytes", "large_binary": "bytes", "string": "str", "large_string": "str", "int64": "int"}
        kinds |= {"double": "float", "bool": "bool"}
        own = {column.name: column for column in self.file.columns}
        names = [(field.name, kinds.get(str(field.type), "json")) for field in table.schema]
        columns = tuple(own.get(name) or ChunkColumn(name, kind, kind, 0) for name, kind in names)
        if table.num_rows != self.file.rows:
            raise self._damage()
        self.file = self.file._replace(columns=columns)
        self.columns = [column.name for column in columns]

    def _cells(self, row: int) -> list[bytes]:
        at, end = int(self._ends[row]), int(self._ends[row + 1])
        count = sum(not column.size for column in self.file.columns)
        if end > len(self._data) or at + 4 * count > end:
            raise self._damage()
        sizes = iter(np.frombuffer(self._data, "<u4", count, at).tolist())
        at, cells = at + 4 * count, list[bytes]()
        for column in self.file.columns:
            size = column.size or next(sizes)
            cells.append(self._data[at : at + size])
            at += size
        if at != end:
            raise self._damage()
        return cells

    def _value(self, column: ChunkColumn, data: bytes) -> Any:
        kind = column.kind
        if kind not in _VALUES:
            raise self.refusal(column)
        if kind == "json" and self.file.package == _LITDATA:
            return self._decode(column, data)
        try:
            if kind in _NUMBERS:
                return np.frombuffer(data, _NUMBERS[kind]).item()
            text = data.decode("utf-8")
            return TOLERANT.parse(text) if kind == "json" else _PARSERS.get(kind, str)(text)
        except (ValueError, JsonError) as error:
            raise self._trouble(column, error) from error

    def _decode(self, column: ChunkColumn, data: bytes) -> Any:
        """A value as the package that wrote it reads it."""
        module = _import(self.file)
        try:
            if self.file.package == _MDS:
                return module.mds_decode(column.encoding, data)
            serializer = module._SERIALIZERS[column.kind]  # noqa: SLF001 - there is no public one
            serializer.setup(column.encoding)
            return serializer.deserialize(data)
        except Exception as error:  # of any kind
            raise self._trouble(column, error) from error

    def _trouble(self, column: ChunkColumn, error: Exception) -> InputError:
        return InputError(f"{self._place}: column {shown(column.name)} cannot be read ({error})", path=self._place)

    def _damage(self) -> InputError:
        return InputError(f"{self._place}: is damaged, or not what the {_INDEX} beside it says", path=self._place)


def list_files(folder: str) -> list[str]:
    """The files of a dataset of MosaicML's streaming or of LitData, in the order of its rows; []: this is none.

    Raises:
        InputError: its index has no files, or files of another kind.
    """
    folder = os.path.expanduser(folder)
    return list(_list(folder, mark_of(os.path.join(folder, _INDEX))))


def is_chunk(place: str) -> bool:
    """True if a local path is that of a file of such a dataset."""
    if not Place(place).is_local or not place.endswith((".bin", ".mds", *(f".mds.{suffix}" for suffix in _CODECS))):
        return False
    path = Place(place).path
    folder = os.path.dirname(path)
    return path in _list(folder, mark_of(os.path.join(folder, _INDEX)))


def columns_of(files: list[str]) -> Iterator[PackColumn]:
    """The columns and their fields, for `choose_fields`.

    Pictures and other files have their extension, arrays are ``.npy``, and integers with the name of a label
    (``label``, ``class``, ``cls``, ``target``, ``y``, ...) are ``.cls``. A value that is the only one is ``.cls`` if it
    is an integer, and ``.txt`` if it is a text.

    Args:
        files: of `list_files`.

    Raises:
        InputError: a column holds bytes that are no pictures, or cannot be packed; or a file cannot be read.
    """
    rows = ChunkRows(next((file for file in files if _find(file).rows), files[0]))
    for k, column in enumerate(rows.file.columns):
        if column.kind in _ARRAYS:
            yield PackColumn(column.name, ".npy")
        elif column.kind in _FILES:
            yield PackColumn(column.name, _find_extension(rows, k, column))
        elif column.kind in _VALUES:
            is_integer = "int" in column.kind
            alone = ".txt" if column.kind in _TEXTS else ".cls" if is_integer else ".json"
            yield PackColumn(column.name, ".cls" if is_integer and column.name in _LABELS else "", alone)
        else:
            raise rows.refusal(column)


def _find_extension(rows: ChunkRows, k: int, column: ChunkColumn) -> str:
    """The extension of a column of files.

    Raises:
        InputError: it holds bytes that are no pictures.
    """
    argument = column.encoding.partition(":")[2]
    if extension := _FILES[column.kind] or (f".{argument}" if argument else ""):
        return extension
    if kinds := find_picture(rows.content(0, k) if rows.file.rows else b""):
        return f".{kinds[0]}"
    raise InputError(
        f"{rows.file.path}: column {shown(column.name)} holds bytes that are no pictures; say what samples hold, like "
        f".wav={column.name}",
        parameter="fields",
    )


@functools.lru_cache(maxsize=4)
def _open(place: str, mark: str) -> ChunkRows:  # noqa: ARG001 - a file that has changed is another one
    return ChunkRows(place)


def _find(place: str) -> ChunkFile:
    path = Place(place).path
    folder = os.path.dirname(path)
    return _list(folder, mark_of(os.path.join(folder, _INDEX)))[path]


@functools.lru_cache(maxsize=4)
def _list(folder: str, mark: str | None) -> dict[str, ChunkFile]:
    """The files of a folder by their paths; {}: it is of another kind. ``mark``: the version of its index."""
    path = os.path.join(folder, _INDEX)
    if mark is None:
        return {}
    try:
        index = TOLERANT.parse(read_bytes(path))
        if not isinstance(index, dict):
            return {}
        if "shards" in index and all(each["format"] == "mds" for each in index["shards"]):
            found = [_of_mds(folder, each) for each in index["shards"]]
        elif "chunks" in index and "data_format" in (index.get("config") or {}):
            found = _of_litdata(folder, index["chunks"], index["config"])
        else:
            return {}
    except (FetchError, JsonError):
        return {}
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"{path}: names no files that could be packed ({error!r})", path=path) from error
    return {each.path: each for each in found}


def _of_mds(folder: str, shard: dict[str, Any]) -> ChunkFile:
    names, encodings, sizes = shard["column_names"], shard["column_encodings"], shard["column_sizes"]
    columns = tuple(_column(*each) for each in zip(names, encodings, sizes, strict=True))
    path, codec = _join(folder, shard["raw_data"]["basename"]), ""
    if not os.path.exists(path) and shard.get("zip_data"):
        path = _join(folder, shard["zip_data"]["basename"])
        codec = _codec(folder, _MDS, str(shard["compression"]))
    return ChunkFile(path, _MDS, columns, int(shard["samples"]), codec)


def _of_litdata(folder: str, chunks: list[dict[str, Any]], config: dict[str, Any]) -> list[ChunkFile]:
    if config.get("encryption"):
        raise _unread(folder, _LITDATA, "encrypted")
    if config.get("compression_level") == "sample":
        raise _unread(folder, _LITDATA, "compressed sample by sample")
    if config["item_loader"] != "PyTreeLoader":
        raise _unread(folder, _LITDATA, f"of {shown(config['item_loader'])}, as tokens are")
    codec = _codec(folder, _LITDATA, str(config["compression"])) if config.get("compression") else ""
    formats = config["data_format"]
    names, spec = [str(k) for k in range(len(formats))], TOLERANT.parse(config["data_spec"])[1]
    if spec["type"] == "builtins.dict" and not any(each["children_spec"] for each in spec["children_spec"]):
        names = [str(name) for name in TOLERANT.parse(spec["context"])]
    columns = tuple(_column(name, each, 0) for name, each in zip(names, formats, strict=True))
    return [ChunkFile(_join(folder, c["filename"]), _LITDATA, columns, int(c["chunk_size"]), codec) for c in chunks]


def _column(name: str, encoding: str, size: int | None) -> ChunkColumn:
    return ChunkColumn(name, encoding.partition(":")[0], encoding, size or 0)


def _join(folder: str, name: str) -> str:
    if posixpath.isabs(name) or ".." in name.split("/"):
        raise ValueError(f"{name} is outside of the folder")
    return os.path.join(folder, name)


def _codec(folder: str, package: str, text: str) -> str:
    name = text.partition(":")[0]
    if name not in _CODECS:
        raise _unread(folder, package, f"compressed by {shown(name)}")
    return _CODECS[name]


def _unread(folder: str, package: str, words: str) -> InputError:
    """The error for files of a kind that is not read here."""
    return InputError(
        f"{folder}: its files are {words}, which is not read; read the samples with {_READERS[package]}, and write "
        "them with wids.ShardWriter",
        path=folder,
    )


def _read(file: ChunkFile) -> Any:
    """The bytes of a file: mapped, or decompressed.

    Raises:
        InputError: it cannot be read. DependencyError: it is compressed, and pyarrow is not installed.
    """
    try:
        with open(file.path, "rb") as source:
            if not file.codec:
                return mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)
            is_framed = source.read(len(_FRAMED)) == _FRAMED
            source.seek(0)
            head = _read_frames(source) if is_framed else b""
            pa = import_arrow()
            with pa.CompressedInputStream(pa.PythonFile(source, "r"), file.codec) as stream:
                return head + stream.read()
    except (OSError, ValueError) as error:
        raise InputError(f"{file.path}: cannot be read ({error})", path=file.path) from error


def _read_frames(source: BinaryIO) -> bytes:
    """Read up to the compressed rows of a file of LitData that has several frames; return its head without frames."""
    count, _, frames = np.frombuffer(source.read(24), "<u4", 3, 12).tolist()
    ends = np.frombuffer(source.read(4 * (count + 1)), "<u4", count + 1) + np.uint32(4 * (count + 2))
    source.seek(24 * frames, os.SEEK_CUR)
    return np.uint32(count).tobytes() + ends.astype("<u4").tobytes()


def _read_footer(data: Any, place: str) -> Any:
    """The rows that a file of LitData has as an Arrow file at its end; None: it has none.

    Raises:
        InputError: it cannot be read. DependencyError: pyarrow is not installed.
    """
    if data[-len(_FOOTER) :] != _FOOTER:
        return None
    pa, end = import_arrow(), len(data) - len(_FOOTER) - 4
    size = int.from_bytes(data[end : end + 4], "little")
    try:
        return read_arrow(pa.BufferReader(pa.py_buffer(data)[end - size : end]))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{place}: its rows in Arrow cannot be read ({error})", path=place) from error


def _import(file: ChunkFile) -> Any:
    """The module of the package that decodes values of a file.

    Raises:
        DependencyError: it is not installed.
    """
    try:
        return importlib.import_module(_DECODERS[file.package])
    except ImportError as error:
        raise DependencyError(
            f"{file.path}: arrays and nested values of it take {file.package}; install it: pip install {file.package}"
        ) from error

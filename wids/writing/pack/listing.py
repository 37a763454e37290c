"""The samples of a source: their names, not their contents, and the reader of their contents.

Rules: a listing is small, because it is kept in memory, and its parts are pickled into the reading processes. Items
record the versions of the listed files, so that a shard of the same items need not be written again.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np

from wids.columns.sql import SampleTable  # noqa: TC001 - msgspec reads the annotations
from wids.core.files import atomic
from wids.core.place import Place
from wids.core.tables import headers
from wids.core.tables.keys import encode_name
from wids.core.transport.download import read_bytes
from wids.core.transport.session import PLAIN, Session
from wids.errors import InputError, SampleError, WidsError, shorten, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wids.writing.pack.parquet import InRow

    Fields: TypeAlias = list[tuple[str, bytes]]

UNKNOWN = -1
_NAMED = 1000  # ignored files whose paths are kept
IMAGES = frozenset(
    ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "pbm", "pnm", "avif", "jp2")
)
# What pictures begin with -> their extensions.
_MAGIC = {
    b"\xff\xd8\xff": ("jpg", "jpeg"),
    b"\x89PNG": ("png",),
    b"GIF8": ("gif",),
    b"RIFF": ("webp",),
    b"BM": ("bmp",),
}
_NEVER_EMPTY = IMAGES | {
    "cls",
    "cls2",
    "index",
    "json",
    "npy",
    "npz",
    "mp",
    "msgpack",
    "pt",
    "pth",
    "pkl",
    "safetensors",
}
# A file that a server gives is no longer: more than a plain tar header can say.
_MAX_REMOTE_BYTES = 8 << 30


def find_picture(data: bytes) -> tuple[str, ...]:
    """Find the usual extensions, without dots, of a picture that begins with these bytes; (): no known picture."""
    return next((kinds for magic, kinds in _MAGIC.items() if data.startswith(magic)), ())


class PackColumn(NamedTuple):
    """A column of another tool's rows.

    Attributes:
        name: its name.
        field: the extension of its field; "": it is a value.
        alone: the extension if it is the only value.
    """

    name: str
    field: str
    alone: str = ".json"


def choose_fields(columns: Iterable[PackColumn]) -> list[str]:
    """The fields of columns, as `PackSource.fields`.

    Of a second column with the same field, that begins with its name; but a second class label is a value. Values are
    ``.json`` together.
    """
    fields, values = dict[str, str](), list[PackColumn]()
    for column in columns:
        if not column.field or (column.field == ".cls" and ".cls" in fields):
            values.append(column)
        else:
            fields[f".{column.name}{column.field}" if column.field in fields else column.field] = column.name
    if values:
        extension = values[0].alone if len(values) == 1 and values[0].alone not in fields else ".json"
        fields[extension] = ",".join(column.name for column in values)
    return [f"{extension}={name}" for extension, name in fields.items()]


class InFile(NamedTuple):
    """A field that is a file: its place, size in bytes and modification time; -1 if unknown."""

    extension: str
    path: str
    size: int
    mtime_ns: int


class Given(NamedTuple):
    """A field whose bytes are known."""

    extension: str
    data: bytes


class Sample(NamedTuple):
    """A sample of files and values."""

    key: str
    fields: tuple[InFile | Given | InRow, ...]


class SampleProblem(NamedTuple):
    """A sample that cannot be packed: its place, and the reason."""

    place: str
    why: str


class SourceReader(Protocol):
    """Reads the items of one source; pickled into the reading processes."""

    def read(self, item: Any) -> tuple[str, Fields]:
        """(key, fields) of a sample."""

    def read_each(self, items: Sequence[Any]) -> Iterator[tuple[str, Fields] | WidsError]:
        """`read` of several samples, in their order; the error of each that cannot be read is in its place."""

    def look(self, item: Any, extensions: frozenset[str]) -> tuple[str, frozenset[str], dict[str, bytes]]:
        """(key, extensions of all fields, bytes of those asked for) of a sample; reads no others."""

    def measure_each(self, items: Sequence[Any], keys: Sequence[str] | None) -> Sequence[int]:
        """Bytes that each sample takes in an archive, under other keys if there are some; at most."""

    def identify(self, items: Sequence[Any]) -> str:
        """A digest of the sources of these items: equal digests give equal shards."""


class SourceListing(msgspec.Struct, kw_only=True):
    """The samples of a source, in order.

    Attributes:
        items: what the reader takes, one for each sample.
        reader: of the items.
        problems: of samples that are not among the items.
        ignored: number of files that are not part of any sample; ``ignored_files``: paths of the first thousand.
        unmatched: number of unwanted samples, which are not among the items.
        info: for the index.
        columns: returns the columns of the items, a row for each, or None without columns; None: never any columns.
        places: source folders and files, by path or URL; nothing is written into or over these.
        keep_fields: extensions to pack, or `Alternatives`; None: all.
        dress: makes of some items what the reader takes; None: they are that.
        keys: other top-level keys of the index.
        properties: of the source, for a report.
        notes: oddities, a sentence each.
    """

    items: Sequence[Any]
    reader: SourceReader
    problems: list[SampleProblem] = msgspec.field(default_factory=list)
    ignored: int = 0
    ignored_files: list[str] = msgspec.field(default_factory=list)
    unmatched: int = 0
    info: dict[str, Any] | None = None
    columns: Callable[[], SampleTable | None] | None = None
    places: Sequence[str] = ()
    keep_fields: Sequence[str] | None = None
    dress: Callable[[Sequence[Any]], Sequence[Any]] | None = None
    keys: dict[str, Any] = msgspec.field(default_factory=dict)
    properties: list[str] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)

    def dressed(self, items: Sequence[Any]) -> Sequence[Any]:
        """Some of the items, as the reader takes them."""
        return items if self.dress is None else self.dress(items)

    def ignore(self, path: str) -> None:
        """Count a file that is not part of any sample."""
        self.ignored += 1
        if self.ignored <= _NAMED:
            self.ignored_files.append(path)


def take(items: Sequence[Any], numbers: np.ndarray[Any, np.dtype[np.int64]]) -> Sequence[Any]:
    """The items with these numbers; those of a dataset, which are numbers themselves, take 8 bytes each."""
    if isinstance(items, (range, array)):
        return array("q", np.asarray(items, np.int64)[numbers].tobytes())
    return [items[k] for k in numbers.tolist()]


def read_one_by_one(reader: SourceReader, items: Sequence[Any]) -> Iterator[tuple[str, Fields] | WidsError]:
    """`SourceReader.read_each` by means of `SourceReader.read`."""
    for item in items:
        try:
            yield reader.read(item)
        except WidsError as error:
            yield error


class FileReader(msgspec.Struct, frozen=True, kw_only=True):
    """Reads `Sample` items."""

    session: Session = PLAIN

    def read(self, item: Sample) -> tuple[str, Fields]:
        """(key, fields) of a sample.

        Raises:
            WidsError: one of its files cannot be read, or has changed.
        """
        return item.key, [
            (field.extension, field.data if isinstance(field, Given) else self._read(field)) for field in item.fields
        ]

    def read_each(self, items: Sequence[Sample]) -> Iterator[tuple[str, Fields] | WidsError]:
        """`read` of several samples; the error of each that cannot be read is in its place."""
        return read_one_by_one(self, items)

    def _read(self, field: InFile | InRow) -> bytes:
        if isinstance(field, InFile):
            return self._read_file(field)
        data = field.read(self.session)
        place = f"{field.manifest}: column {shown(field.column)}, row {field.row} of row group {field.group}"
        check_not_empty(field.extension, place, len(data))
        return data

    def look(self, item: Sample, extensions: frozenset[str]) -> tuple[str, frozenset[str], dict[str, bytes]]:
        """(key, extensions of all fields, bytes of those asked for) of a sample.

        Raises:
            WidsError: as for `read`.
        """
        wanted = tuple(field for field in item.fields if field.extension in extensions)
        _, fields = self.read(Sample(item.key, wanted))
        return item.key, frozenset(field.extension for field in item.fields), dict(fields)

    def _read_file(self, field: InFile) -> bytes:
        if not Place(field.path).is_local:
            return read_bytes(field.path, session=self.session, max_bytes=_MAX_REMOTE_BYTES)
        try:
            fd, _ = atomic.open_file(field.path)
            with open(fd, "rb") as file:
                data = file.read(field.size + 1)  # of one that has grown, however much, no more than shows it
                now = atomic.identify(fd)
        except OSError as error:
            raise SampleError(f"{field.path}: cannot be read ({error.strerror or error})", path=field.path) from error
        if (now.size, now.mtime_ns, len(data)) != (field.size, field.mtime_ns, field.size):
            raise SampleError(
                f"{field.path}: had {field.size} bytes when it was listed, has {now.size} now, and was written to; "
                "pack it when no program writes to it",
                path=field.path,
            )
        return data

    def measure_each(self, items: Sequence[Sample], keys: Sequence[str] | None) -> list[int]:
        """Bytes that each sample takes in an archive.

        Raises:
            InputError: the size of a remote file is not known.
        """
        return [self._measure(item, item.key if keys is None else keys[k]) for k, item in enumerate(items)]

    def _measure(self, item: Sample, key: str) -> int:
        """Bytes that a sample takes in an archive.

        Raises:
            InputError: the size of a remote file is not known.
        """
        total = 0
        for field in item.fields:
            if isinstance(field, InFile) and field.size == UNKNOWN:
                name = field.path
                raise InputError(
                    f"{name}: the size of a remote file is not known before it is read", url=name, hint="samples"
                )
            if isinstance(field, InFile):
                size = field.size
            else:
                size = len(field.data if isinstance(field, Given) else self._read(field))
            total += headers.member_bytes(encode_name(key + field.extension), size)
        return total

    def identify(self, items: Sequence[Sample]) -> str:
        """A digest of keys, paths, sizes, times and values."""
        digest = hashlib.sha256()
        for item in items:
            digest.update(repr(tuple(item)).encode("utf-8", "backslashreplace"))
        return digest.hexdigest()


def describe_file(extension: str, path: str) -> InFile:
    """A field that is a local file or a URL, as it is now.

    Raises:
        SampleError: it does not exist, or is not a file.
    """
    if not Place(path).is_local:
        return InFile(extension, path, UNKNOWN, UNKNOWN)
    name = shorten(path, most=500)  # of a manifest, where anything may stand
    try:
        status = os.stat(path)
    except OSError as error:
        raise SampleError(f"{name}: cannot be read ({error.strerror or error})", path=name) from error
    except ValueError as error:  # a NUL in it
        raise SampleError(f"{shown(path)}: is no path ({error})", path=name) from error
    if not os.path.isfile(path):
        raise SampleError(f"{name}: is not a file", path=name)
    check_not_empty(extension, name, status.st_size)
    return InFile(extension, path, status.st_size, status.st_mtime_ns)


def check_not_empty(extension: str, path: str, size: int) -> None:
    """Refuse an empty file for a field that is never empty.

    Raises:
        SampleError: the file is empty.
    """
    if not size and extension.rpartition(".")[2].lower() in _NEVER_EMPTY:
        raise SampleError(f"{path}: is empty, which no {extension} is", path=path)

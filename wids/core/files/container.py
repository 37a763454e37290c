"""The container of every binary file that wids writes: member tables, packs of them, compiled indexes, rows of views.

Pure: bytes in, views of them out. A format is a `Format`: its kind, its version, its header, its sections with
their types, and their invariants. Little-endian, no pickle; every section starts at a multiple of 8, so a file
may be mapped, and its beginning says which byte ranges hold what::

    offset  size  field
         0     8  magic: 89 57 49 44 53 0D 0A 1A  (a text-mode transfer breaks it)
         8     8  kind, ASCII, then zeros
        16     4  version of the kind                                            u32
        20     4  length of the header in bytes                                  u32
        24     4  CRC-32 of the bytes 8 to 24 and 28 to 32, and of the header    u32
        28     4  CRC-32 of all sections, the zeros between them included        u32
        32        header: JSON, padded with blanks to 8 bytes
                  {"sections": [[NAME, TYPE, COUNT], ...], "tail": BYTES, "facts": {...}}
                  sections, each padded with zeros to 8 bytes
                  tail: bytes that the sections lead to; they have checksums of their own

Every later 1.y reads the files of any 1.x. A reader passes over keys and sections that it does not know; sections that
a later version adds follow the others. What it adds has a default for files without it. If a reader of before would
misread a file, the kind gets another version, and the earlier one is read as well.

No memory is allocated by a count that a file claims before the count is compared with the file's length.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from array import array
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar, cast
from zlib import crc32

import msgspec
import numpy as np

from wids.core.files.json_text import JsonParser
from wids.errors import JsonError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    # Makes the error that names the fault of a file.
    Broken = Callable[[str], Exception]
    Sections = Mapping[str, memoryview]
    Data = bytes | memoryview | npt.NDArray[Any]

F = TypeVar("F", bound=msgspec.Struct)

MAGIC = b"\x89WIDS\r\n\x1a"
# The magics of files from before 1.0.
_OLD = (b"\x89WIDX\r\n\x1a", b"\x89WIDSX\r\n", b"\x89WIDST\r\n", b"WIDSROWS")
_START = struct.Struct("<8s8sIIII")
START_BYTES, _PREFIX_BYTES = _START.size, 20
# Type -> its code for `memoryview.cast`.
_CODES = {"u1": "B", "u4": "I", "u8": "Q", "i8": "q"}
_WIDTHS = ("1", "2", "4", "8")
_EMPTY = memoryview(b"")
# Longer than that of any index: it has a few words for each of its sub-datasets.
_MAX_HEAD_BYTES = 256 << 20
# Sections are checked so many items at a time: what that takes is freed, and is little.
_CHECKED_ITEMS = 1 << 16


class NoHeader(msgspec.Struct):
    """The header of a file that says nothing of its own."""


class _Head(msgspec.Struct, Generic[F]):
    """The header of a file."""

    sections: list[tuple[str, str, int]]
    tail: int
    header: F = msgspec.field(name="facts")


class Invariant(NamedTuple):
    """A condition on the columns of a file.

    Attributes:
        what: names the fault where it does not hold.
        holds: called with the header and the columns.
    """

    what: str
    holds: Callable[[Any, Sections], bool]


class Unpacked(msgspec.Struct, Generic[F], frozen=True):
    """A file that was opened.

    Attributes:
        header: the values of "facts" in the file's header.
        columns: its sections by name, as numbers; views of the file.
        start: offset of the sections.
        end: offset of the tail, behind the sections.
        identity: tells this file from others.
    """

    header: F
    columns: dict[str, memoryview]
    start: int
    end: int
    identity: bytes


class Format(Generic[F]):
    """A kind of file.

    Args:
        kind: its name, 8 ASCII letters at most.
        version: raised only if a reader of before would misread it.
        header: the type of the header's "facts"; its values are those of JSON.
        sections: name -> type (``"u1"``, ``"u4"``, ``"u8"``, ``"i8"``), in the order of the file. A type that ends in
            ``"?"`` is of a section that may be missing, and is empty then.
        invariants: compared in this order whenever a file is opened.
    """

    kind: str
    version: int

    def __init__(
        self, kind: str, version: int, header: type[F], sections: Mapping[str, str], invariants: Sequence[Invariant]
    ) -> None:
        self.kind, self.version = kind, version
        self._prefix = _START.pack(MAGIC, kind.encode(), version, 0, 0, 0)[:_PREFIX_BYTES]
        self._sections, self._invariants = dict(sections), tuple(invariants)
        # Listings of sections that a file may have, each with its type.
        self._listings: set[tuple[tuple[str, str], ...]] = {()}
        for name, typed in self._sections.items():
            more = {(*listing, (name, typed.rstrip("?"))) for listing in self._listings}
            self._listings = more | self._listings if typed.endswith("?") else more
        self._head: type[_Head[F]] = _Head[header]  # type: ignore[valid-type]
        self._parser = JsonParser[_Head[F]](self._head, max_bytes=_MAX_HEAD_BYTES, is_finite=False)

    def pack(self, header: F, columns: Mapping[str, Data], *, tail: int = 0) -> list[bytes | memoryview]:
        """The file, in parts; the caller writes the ``tail`` bytes that follow.

        Args:
            header: the values of "facts".
            columns: each section's items, little-endian or as this machine has numbers.
            tail: number of bytes that follow.

        Raises:
            TypeError, ValueError: the header has values that JSON does not have.
        """
        body: list[bytes | memoryview] = []
        listed, checksum = [], 0
        for name, kind in self._sections.items():
            if kind.endswith("?") and not len(columns.get(name, b"")):
                continue
            data = _little(columns[name], kind.rstrip("?"))
            listed.append((name, kind.rstrip("?"), len(data) // _width(kind.rstrip("?"))))
            for part in (data, bytes(-len(data) % 8)):
                body.append(part)
                checksum = crc32(part, checksum)
        head = json.dumps(
            {"sections": listed, "tail": tail, "facts": {n: getattr(header, n) for n in header.__struct_fields__}},
            separators=(",", ":"),
        ).encode()
        head += b" " * (-len(head) % 8)
        start = _START.pack(MAGIC, self.kind.encode(), self.version, len(head), 0, checksum)
        checksum = crc32(start[28:] + head, crc32(start[8:24]))
        checked = start[:24] + checksum.to_bytes(4, "little") + start[28:]
        return [checked + head, *body]

    def head_end(self, data: bytes | memoryview, broken: Broken) -> int:
        """Offset of the end of the header, read from the first `START_BYTES`; at most that of a header of 4 GB.

        Raises:
            the error that ``broken`` makes: it is no such file, or of another version.
        """
        if len(data) >= START_BYTES and data[:_PREFIX_BYTES] == self._prefix:
            return START_BYTES + int.from_bytes(data[20:24], "little")
        if len(data) < START_BYTES or data[:8] != MAGIC:
            is_old = bytes(data[:8]) in _OLD
            raise broken("was written before wids 1.0" if is_old else "is none, or was cut short")
        _, kind, version, *_ = _START.unpack_from(data)
        if (name := kind.rstrip(b"\0").decode("ascii", "replace")) != self.kind:
            raise broken(f"is a file of another kind ({name!r})")
        raise broken(f"has version {version}, and this wids reads version {self.version}")

    def body_end(self, data: bytes | memoryview, broken: Broken, *, size: int | None = None) -> int:
        """Offset of the end of the sections, by the file's beginning with its header; ``size``: bytes of the file.

        Raises:
            the error that ``broken`` makes: it is no such file, damaged, or of another size.
        """
        return self._look(memoryview(data), broken, size)[2]

    def unpack(
        self, data: bytes | memoryview, broken: Broken, *, size: int | None = None, is_checked: bool = False
    ) -> Unpacked[F]:
        """Read a file.

        Args:
            data: its bytes, or its beginning up to the end of its sections or further.
            broken: called with the fault; makes the error.
            size: bytes of the file; None: it is ``data``.
            is_checked: the checksum of its sections was compared before. That of the header, the sections' lengths and
                the format's invariants are compared always.

        Raises:
            the error that ``broken`` makes: it is no such file, of another version, cut short, damaged, inconsistent.
        """
        view = memoryview(data)
        head, at, end = self._look(view, broken, len(view) if size is None else size)
        if len(view) < end:
            raise broken(f"was cut short ({len(view)} of {end} bytes)")
        if not is_checked and crc32(view[at:end]) != _START.unpack_from(view)[5]:
            raise broken("is damaged (the checksum of its sections is another)")
        columns, start = dict.fromkeys(self._sections, _EMPTY), at
        for name, typed, count in head.sections:
            size = _width(typed) * count
            if name in self._sections:
                columns[name] = _native(view[at : at + size], _CODES[typed])
            at += size + -size % 8
        for what, holds in self._invariants:
            if not holds(head.header, columns):
                raise broken(what)
        return Unpacked(head.header, columns, start, end, bytes(view[:START_BYTES]))

    def _look(self, view: memoryview, broken: Broken, size: int | None) -> tuple[_Head[F], int, int]:
        """(the header, the offset of its end, that of the sections' end)."""
        first = at = self.head_end(view, broken)
        if at > len(view):
            raise broken(f"was cut short ({len(view)} of {at} bytes)")
        # The checksums of the sections and of the header are next to each other.
        if crc32(view[28:at], crc32(view[8:24])) != int.from_bytes(view[24:28], "little"):
            raise broken("is damaged (the checksum of its header is another)")
        head = self._parse(view[START_BYTES:at], broken)
        # Sections of a later version follow the others.
        nknown = sum([name in self._sections for name, _, _ in head.sections])
        listing = tuple([(name, typed) for name, typed, _ in head.sections[:nknown]])
        if listing not in self._listings or head.tail < 0:
            raise broken("contradicts its own header")
        for _, typed, count in head.sections:
            width = _width(typed)
            if min(width, count) < 0:
                raise broken("contradicts its own header")
            at += width * count + -width * count % 8
        if size is not None and at + head.tail != size:
            raise broken(f"is damaged ({size} of {at + head.tail} bytes)")
        return head, first, at

    def _parse(self, text: memoryview, broken: Broken) -> _Head[F]:
        try:
            return self._parser.parse(text)
        except JsonError as error:
            raise broken(f"has a header that is none ({error})") from error


def kind_of(data: bytes) -> str | None:
    """The kind of the file that begins with these bytes (`START_BYTES` do); None: it is none of ours."""
    if len(data) < START_BYTES or data[:8] != MAGIC:
        return None
    return data[8:16].rstrip(b"\0").decode("ascii", "replace")


# --- invariants


def within(name: str, low: int, high: Any) -> Invariant:
    """No number of a column is below ``low`` or above ``high``: a number, or a function of header and columns."""

    def holds(header: Any, columns: Sections) -> bool:
        most, column = _value(high, header, columns), columns[name]
        is_above = low <= 0 and column.format in "BIQ"
        return all(part.max() <= most and (is_above or part.min() >= low) for part in _parts(column))

    return Invariant(f"points outside itself ({name})", holds)


def ends(name: str, total: Any, *, first: int | None = None, is_strict: bool = False) -> Invariant:
    """A column ascends, and its last number is ``total``: it says where pieces end that fill something.

    Args:
        name: of the column.
        total: the length of the column of this name, a number, or a function of header and columns; that of an empty
            column is 0.
        first: the first number; None: anything from 0.
        is_strict: no piece is empty.
    """

    def holds(header: Any, columns: Sections) -> bool:
        column = columns[name]
        if not len(column):
            return first is None and _value(total, header, columns) == 0
        is_sound = column[0] == first if first is not None else column[0] >= is_strict
        return bool(is_sound) and column[-1] == _value(total, header, columns) and _is_ascending(column, is_strict)

    return Invariant(f"points outside itself ({name})", holds)


def ascending(name: str) -> Invariant:
    """Each number of a column is above the one before."""
    return Invariant(f"contradicts itself ({name})", lambda _, columns: _is_ascending(columns[name], is_strict=True))


def sums(name: str, counts: str, total: Any) -> Invariant:
    """A column has the running sums of another one, none of which is negative; the last sum is ``total``."""

    def holds(header: Any, columns: Sections) -> bool:
        if len(columns[name]) != len(columns[counts]):
            return False
        before = 0
        for now, last in zip(_parts(columns[counts]), _parts(columns[name]), strict=True):
            # Neither is negative, so that no sum of them is one that did not fit.
            if now.min() < 0 or last.min() < before or last[0] - before != now[0]:
                return False
            if (last[1:] - last[:-1] != now[1:]).any():
                return False
            before = int(last[-1])
        return bool(before == _value(total, header, columns))

    return Invariant(f"contradicts itself ({name})", holds)


def lengths(expected: Mapping[str, Any]) -> Invariant:
    """Each column is as long as a column of that name, a number, or the result of a function of header and columns."""

    def holds(header: Any, columns: Sections) -> bool:
        return all(len(columns[name]) == _value(count, header, columns) for name, count in expected.items())

    return Invariant("contradicts its own header", holds)


def _value(bound: Any, header: Any, columns: Sections) -> int:
    if isinstance(bound, str):
        return len(columns[bound])
    return cast("int", bound(header, columns) if callable(bound) else bound)


def _parts(column: memoryview) -> Any:
    for lo in range(0, len(column), _CHECKED_ITEMS):
        yield np.asarray(column[lo : lo + _CHECKED_ITEMS])


def _is_ascending(column: memoryview, is_strict: bool) -> bool:  # noqa: FBT001 - of this module
    for lo in range(0, len(column), _CHECKED_ITEMS):
        part = np.asarray(column[max(lo - 1, 0) : lo + _CHECKED_ITEMS])
        if not ((part[1:] > part[:-1]) if is_strict else (part[1:] >= part[:-1])).all():
            return False
    return True


def _little(data: Data, kind: str) -> bytes | memoryview:
    """Numbers as the file has them; bytes are so already."""
    if isinstance(data, (bytes, bytearray)):
        return data
    if isinstance(data, memoryview) and data.itemsize == 1:
        return data
    numbers = np.asarray(data)
    return memoryview(numbers.astype("<" + kind, copy=False).tobytes())


def _width(kind: str) -> int:
    """The bytes of an item, which a type ends with; -1: it is no type of this version or a later one."""
    return int(kind[-1]) if kind[1:] in _WIDTHS else -1


def _native(section: memoryview, code: str) -> memoryview:
    """A little-endian section as numbers."""
    if sys.byteorder == "little" or code == "B":
        return section.cast(cast("Literal['B', 'I', 'Q', 'q']", code))
    return memoryview(array(code, np.frombuffer(section, np.dtype(code)).byteswap().tobytes()))


def hash_of(text: str) -> int:
    """64 bits by which a text is looked for."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")

"""Tar headers -> members: one pass over the headers of an archive, all dialects.

Rules: pure; bytes come through ``read(offset, size)``. Only regular members are yielded, names stay bytes.
What cannot be served from one byte range, or ends too early, is a typed error with shard and byte offset,
never a silently shorter list. Where dialects leave room, stdlib ``tarfile`` is followed; sources:
POSIX.1-2017 ``pax``, the GNU tar manual ("Basic Tar Format"), and star(5) for its prefix field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, TypeAlias
from zlib import adler32

from wids.errors import (
    CompressedShardError,
    CorruptHeaderError,
    EmptyShardError,
    TarError,
    TruncatedShardError,
    UnsupportedMemberError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Read = Callable[[int, int], bytes]

BLOCK = 512
_ZERO_BLOCK = bytes(BLOCK)
_BLANK, _BLANK_SUM = b"\0 ", 8 * 32
_REGULAR = frozenset(b"0\x007")
# Their size field says nothing about data that follows: hard and symbolic links, devices, directories, FIFOs.
_WITHOUT_DATA = frozenset(b"123456")
_LONG_NAME, _PAX, _PAX_SOLARIS, _PAX_GLOBAL = b"LxXg"
_EXTENDED = frozenset(b"LKxXg")
_UNSUPPORTED = {ord("S"): "sparse", ord("M"): "multi-volume"}
# An extended header longer than this is damage or an attack, not a name.
_MAX_EXTENDED_BYTES = 16 << 20
_WIDE_WINDOW, _NARROW_WINDOW, _SHORT_HOP = 256 << 10, 4 << 10, 16 << 10

_COMPRESSIONS = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x04\x22\x4d\x18": "lz4",
    b"\x5d\x00\x00": "lzma",
    b"\x1f\x9d": "compress",
    b"LZIP": "lzip",
}


# One regular file in an archive: (raw name, header offset, data offset, size in bytes). A plain tuple, because
# building a NamedTuple costs as much as all the rest of a member.
Member: TypeAlias = tuple[bytes, int, int, int]


class _Extended:
    """What extended headers (GNU L/K, PAX x/g) say about the next member."""

    __slots__ = ("global_records", "is_empty", "long_name", "records")

    def __init__(self) -> None:
        self.is_empty = True
        self.global_records: dict[bytes, bytes] = {}
        self.records: dict[bytes, bytes] = {}
        self.long_name: bytes | None = None

    def take(self) -> tuple[bytes | None, dict[bytes, bytes]]:
        """Return (GNU long name, PAX records) for this member and forget those that hold for one member only."""
        long_name = self.long_name
        records = {**self.global_records, **self.records} if self.global_records else self.records
        self.long_name, self.records = None, {}
        self.is_empty = not self.global_records
        return long_name, records


def scan(read: Read, size: int, *, shard: str) -> Iterator[Member]:  # noqa: C901, PLR0912 - one loop, 1 us a member
    """Yield the regular members of a tar archive in archive order.

    Args:
        read: ``read(offset, n)`` returns up to ``n`` bytes from there (fewer only at the end of the file).
        size: the archive's size in bytes.
        shard: what errors call the archive.

    Raises:
        TarError: one of its kinds (empty, compressed, truncated, corrupt header, unsupported member).
    """
    if size == 0:
        raise EmptyShardError(f"{shard}: the file is empty (0 bytes); write or fetch it again", shard=shard, offset=0)
    extended = _Extended()
    window, start, pos, headers = b"", 0, 0, 0
    while True:
        at = pos - start
        if at + BLOCK > len(window):
            # Small members: many headers in one wide read. Large ones: skip over the payload.
            window = read(pos, _WIDE_WINDOW if pos <= _SHORT_HOP * headers else _NARROW_WINDOW)
            start, at = pos, 0
        header = window[at : at + BLOCK]
        if len(header) < BLOCK:
            _raise_no_end(shard, pos, size)
        if header[0] == 0 and header == _ZERO_BLOCK:
            return
        headers += 1
        # The common form of both numbers is read in line, two calls a member fewer; the rest goes to functions.
        try:
            stored = int(header[148:154], 8)
            length = int(header[124:135], 8) if header[135] in _BLANK else -1
        except ValueError:
            stored = length = -1
        # Adler-32's low half is 1 + the byte sum (modulo 65521), at a tenth of what a sum costs in Python.
        if stored < 0 or (adler32(header) - adler32(header[148:156]) + _BLANK_SUM - stored) & 0xFFFF:
            _check_sum(header, shard, pos)
        if length < 0:
            length = _size(header, shard, pos)
        kind = header[156]
        data = pos + BLOCK
        if kind in _EXTENDED:
            if length > _MAX_EXTENDED_BYTES or data + length > size:
                _raise_long_extended(shard, pos, length, size)
            _read_extended(kind, read(data, length), extended, shard, pos)
            pos = data + (length + 511 & -512)
            continue
        if kind in _REGULAR and extended.is_empty:
            end = header.find(0, 0, 100)
            name = header[: end if end >= 0 else 100]
            if header[345]:
                name = _with_prefix(name, header)
            is_file = kind != 0 or not name.endswith(b"/")
        else:
            name, length, is_file = _resolve(header, kind, length, extended, shard, pos)
        if data + length > size:
            _raise_short_member(shard, name, pos, data + length, size)
        if is_file:
            yield name, pos, data, length
        pos = data + (length + 511 & -512)


def _resolve(
    header: bytes, kind: int, length: int, extended: _Extended, shard: str, pos: int
) -> tuple[bytes, int, bool]:
    """Name, data length and is-a-regular-file of a member that is not a plain file with a plain name."""
    long_name, records = extended.take()
    name = _with_prefix(_until_nul(header[:100]), header)
    is_directory = kind == 0 and name.endswith(b"/")
    if long_name is not None:
        name = long_name
    if path := records.get(b"path"):
        name = _until_nul(path).rstrip(b"/")
    if kind in _UNSUPPORTED or any(record.startswith(b"GNU.sparse.") for record in records):
        raise UnsupportedMemberError(
            f"{shard}: member {_show(name)} at byte {pos} is {_UNSUPPORTED.get(kind, 'sparse')}; "
            "its bytes are not stored in one piece. Pack the shard again without --sparse and --multi-volume",
            shard=shard,
            offset=pos,
        )
    if text := records.get(b"size"):
        if not text.isdigit():
            raise CorruptHeaderError(
                f"{shard}: PAX size {text!r} of the member at byte {pos} is not a number; write the shard again",
                shard=shard,
                offset=pos,
            )
        length = int(text)
    if kind in _WITHOUT_DATA:
        length = 0
    return name, length, kind in _REGULAR and not is_directory


def _read_extended(kind: int, body: bytes, extended: _Extended, shard: str, pos: int) -> None:
    extended.is_empty = False
    if kind == _LONG_NAME:
        extended.long_name = _until_nul(body)
    elif kind == _PAX_GLOBAL:
        extended.global_records.update(_pax_records(body, shard, pos))
    elif kind in (_PAX, _PAX_SOLARIS):
        extended.records.update(_pax_records(body, shard, pos))


def _pax_records(body: bytes, shard: str, pos: int) -> dict[bytes, bytes]:
    """Parse ``<length> <key>=<value><newline>`` records; an empty value deletes the key: it is as if absent."""
    records: dict[bytes, bytes] = {}
    at = 0
    while at < len(body) and body[at] != 0:
        space = body.find(b" ", at, at + 21)
        digits = body[at:space] if space > at else b""
        end = at + int(digits) if digits.isdigit() else 0
        key, equals, value = body[space + 1 : end - 1].partition(b"=")
        if end <= space + 1 or end > len(body) or body[end - 1] != 0x0A or not equals or not key:
            raise CorruptHeaderError(
                f"{shard}: the PAX header at byte {pos} has a broken record at byte {pos + BLOCK + at}; "
                "write or fetch the shard again",
                shard=shard,
                offset=pos,
            )
        records[key] = value
        at = end
    return records


def _check_sum(header: bytes, shard: str, pos: int) -> None:
    """Compare the stored checksum with the sum of the header's bytes, its own field counted as blanks.

    Some old writers summed signed bytes; both sums are accepted, as everywhere.
    """
    field = header[148:156]
    try:
        stored = int(_until_nul(field), 8)
    except ValueError:
        stored = -1
    unsigned = sum(header) - sum(field) + 8 * 32
    signed = unsigned - 256 * sum(byte > 127 for byte in header[:148] + header[156:])
    if stored not in (unsigned, signed):
        _raise_bad_header(header, shard, pos)


def _size(header: bytes, shard: str, pos: int) -> int:
    """Parse the size field: octal digits, or base-256 when its first bit is set."""
    field = header[124:136]
    if field[0] & 0x80:
        value = int.from_bytes(field, "big") - (0x80 << 88)
        if value < 1 << 63:
            return value
    else:
        try:
            value = int(_until_nul(field).strip() or b"0", 8)
        except ValueError:
            value = -1
        if value >= 0:
            return value
    raise CorruptHeaderError(
        f"{shard}: the size field {field!r} of the header at byte {pos} is not a size; write or fetch the shard again",
        shard=shard,
        offset=pos,
    )


def _with_prefix(name: bytes, header: bytes) -> bytes:
    """Put ustar's prefix before a name; GNU tar ("ustar  ") and V7 keep other things in those bytes."""
    if header[345] == 0 or header[257:263] != b"ustar\0":
        return name
    # star keeps access and change times in the last 24 bytes of the prefix field.
    return _until_nul(header[345 : 476 if header[508:512] == b"tar\0" else 500]) + b"/" + name


def _until_nul(field: bytes) -> bytes:
    end = field.find(0)
    return field if end < 0 else field[:end]


def _show(name: bytes) -> str:
    return repr(name.decode("utf-8", "backslashreplace"))


def _raise_no_end(shard: str, pos: int, size: int) -> NoReturn:
    raise TruncatedShardError(
        f"{shard}: truncated at byte {size}: there is no end-of-archive marker where the next header should be "
        f"(byte {pos}). Fetch or write the shard again; if it is known to be whole, append 1,024 zero bytes",
        shard=shard,
        offset=pos,
    )


def _raise_short_member(shard: str, name: bytes, pos: int, end: int, size: int) -> NoReturn:
    raise TruncatedShardError(
        f"{shard}: truncated at byte {size}: member {_show(name)} (header at byte {pos}) needs bytes up to {end}; "
        "fetch or write the shard again",
        shard=shard,
        offset=pos,
    )


def _raise_long_extended(shard: str, pos: int, length: int, size: int) -> NoReturn:
    error: type[TarError] = TruncatedShardError if length <= _MAX_EXTENDED_BYTES else CorruptHeaderError
    raise error(
        f"{shard}: the extended header at byte {pos} says it is {length} bytes long, "
        f"and {max(0, size - pos - BLOCK)} are left in the file; fetch or write the shard again",
        shard=shard,
        offset=pos,
    )


def _raise_bad_header(header: bytes, shard: str, pos: int) -> NoReturn:
    if pos == 0:
        for magic, name in _COMPRESSIONS.items():
            if header.startswith(magic):
                raise CompressedShardError(
                    f"{shard}: byte 0 starts a {name} stream; a compressed archive has no random access. "
                    f"Decompress it to a plain .tar first (compress members, not shards)",
                    shard=shard,
                    offset=0,
                )
        start = header.lstrip()[:15].lower()
        if start.startswith((b"<!doctype", b"<html", b"<?xml")):
            raise CorruptHeaderError(
                f"{shard}: byte 0 starts an HTML or XML page, not a tar archive: probably an error or login page "
                "of the server; check the URL and its credentials",
                shard=shard,
                offset=0,
            )
    raise CorruptHeaderError(
        f"{shard}: the 512 bytes at byte {pos} are not a tar header (checksum mismatch); "
        "the shard is damaged or is not a tar archive. Fetch or write it again",
        shard=shard,
        offset=pos,
    )

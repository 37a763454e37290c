"""Tar headers: the fields of one that is read, and those of a new member, byte for byte as ``tarfile`` writes them.

Pure: bytes in, values out. A field that cannot be read is None, and the caller, which knows the offset, raises. New
headers depend on names and sizes alone: mode 0644, time 0, owner 0. ustar, with a PAX header before it only where ustar
has no room (a name of more than 100 bytes that cannot be split, 8 GiB and more).
"""

from __future__ import annotations

import tarfile
from typing import NamedTuple

from wids.core.tables.keys import decode_name

BLOCK = 512
# tar(1) reads and writes so many bytes at a time, and an archive is filled up to a multiple of them.
RECORD = 20 * BLOCK
_NAME_BYTES, _SIZE_LIMIT = 100, 8**11
_BEFORE_SIZE = b"0000644\0" + 2 * b"0000000\0"
_TIME = b"00000000000\0"
_AFTER_SUM = b"0" + bytes(100) + b"ustar\x0000" + bytes(247)
# All that is the same in every header; the checksum field counts as blanks.
_FIXED_SUM = sum(_BEFORE_SIZE) + sum(_TIME) + 8 * 32 + sum(_AFTER_SUM)


def member_head(name: bytes, size: int) -> bytes:
    """The header blocks of a regular file of ``size`` bytes."""
    if len(name) > _NAME_BYTES or size >= _SIZE_LIMIT:
        return _long_head(name, size)
    digits = b"%011o\0" % size
    total = _FIXED_SUM + sum(name) + sum(digits)
    return b"".join((name.ljust(_NAME_BYTES, b"\0"), _BEFORE_SIZE, digits, _TIME, b"%06o\0 " % total, _AFTER_SUM))


def _long_head(name: bytes, size: int) -> bytes:
    info = tarfile.TarInfo(decode_name(name))
    info.size = size
    try:
        return info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")
    except ValueError:  # no room for it
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def member_bytes(name: bytes, size: int) -> int:
    """The bytes of a member in the archive: headers, data, and zeros up to the next block."""
    head = BLOCK if len(name) <= _NAME_BYTES and size < _SIZE_LIMIT else len(_long_head(name, size))
    return head + size + -size % BLOCK


def archive_bytes(members_bytes: int) -> int:
    """Length of an archive whose members take ``members_bytes``: two blocks of zeros, and up to a full record."""
    ended = members_bytes + 2 * BLOCK
    return ended + -ended % RECORD


_BLANKS = 8 * 32
# No file is longer; it also bounds decimal numbers (Python refuses 4,301 digits with a ValueError).
MAX_SIZE = (1 << 63) - 1
_MAX_DIGITS = 20


def is_sum_right(header: bytes) -> bool:
    """True if the stored checksum is the sum of the header's bytes, its own field counted as blanks.

    Some old writers summed signed bytes; both sums are accepted, as everywhere.
    """
    field = header[148:156]
    try:
        stored = int(until_nul(field), 8)
    except ValueError:
        return False
    unsigned = sum(header) - sum(field) + _BLANKS
    if stored == unsigned:
        return True
    return stored == unsigned - 256 * sum(byte > 127 for byte in header[:148] + header[156:])


def parse_size(header: bytes) -> int | None:
    """The size field: octal digits, or base-256 when its first bit is set; None if it is neither, or out of range."""
    field = header[124:136]
    if field[0] & 0x80:
        value = int.from_bytes(field, "big") - (0x80 << 88)
    else:
        try:
            value = int(until_nul(field).strip() or b"0", 8)
        except ValueError:
            return None
    return value if 0 <= value <= MAX_SIZE else None


def parse_decimal(text: bytes) -> int | None:
    """A decimal number as PAX records have it; None if it is none, or out of range."""
    if not text.isdigit() or len(text) > _MAX_DIGITS:
        return None
    value = int(text)
    return value if value <= MAX_SIZE else None


def join_prefix(name: bytes, header: bytes) -> bytes:
    """Put ustar's prefix before a name; GNU tar ("ustar  ") and V7 keep other things in those bytes."""
    if header[345] == 0 or header[257:263] != b"ustar\0":
        return name
    # star keeps access and change times in the last 24 bytes of the prefix field.
    return until_nul(header[345 : 476 if header[508:512] == b"tar\0" else 500]) + b"/" + name


def until_nul(field: bytes) -> bytes:
    """A field's bytes before its first NUL."""
    end = field.find(0)
    return field if end < 0 else field[:end]


class Records(NamedTuple):
    """The records of one PAX header, and the position of the first broken one in its body; None if all are sound."""

    values: dict[bytes, bytes]
    broken_at: int | None


def parse_records(body: bytes) -> Records:
    """Parse ``<length> <key>=<value><newline>`` records. An empty value stays: it says "as if absent"."""
    values: dict[bytes, bytes] = {}
    at = 0
    while at < len(body) and body[at] != 0:
        space = body.find(b" ", at, at + _MAX_DIGITS + 1)
        length = parse_decimal(body[at:space]) if space > at else None
        end = at + (length or 0)
        key, equals, value = body[space + 1 : end - 1].partition(b"=")
        if end <= space + 1 or end > len(body) or body[end - 1] != 0x0A or not equals or not key:
            return Records(values, at)
        values[key] = value
        at = end
    return Records(values, None)

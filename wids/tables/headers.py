"""Fields of one tar header, and the records of a PAX header.

Pure: bytes in, values out. A field that cannot be read is None, and the caller, which knows the offset, raises.
Sources: POSIX.1-2017 ``pax`` ("ustar Interchange Format", "pax Extended Header"), the GNU tar manual ("Basic Tar
Format"), star(5) for its prefix field.
"""

from __future__ import annotations

from typing import NamedTuple

BLOCK = 512
_BLANKS = 8 * 32
# No file is longer; it also bounds decimal numbers (Python refuses 4,301 digits with a ValueError).
MAX_SIZE = (1 << 63) - 1
_MAX_DIGITS = 20


def is_sum_right(header: bytes) -> bool:
    """Whether the stored checksum is the sum of the header's bytes, its own field counted as blanks.

    Some old writers summed signed bytes; both sums are accepted, as everywhere.
    """
    field = header[148:156]
    try:
        stored = int(until_nul(field), 8)
    except ValueError:
        return False
    unsigned = sum(header) - sum(field) + _BLANKS
    signed = unsigned - 256 * sum(byte > 127 for byte in header[:148] + header[156:])
    return stored in (unsigned, signed)


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

"""Tar headers for the members of a new shard, byte for byte as the standard ``tarfile`` writes them.

Pure. The bytes depend on names and sizes alone: mode 0644, time 0, owner 0. ustar, with a PAX header before it
only where ustar has no room (a name of more than 100 bytes that cannot be split, 8 GiB and more).
"""

from __future__ import annotations

import tarfile

from wids.tables import headers
from wids.tables.keys import decode_name

BLOCK = headers.BLOCK
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
    """What a member takes in the archive: headers, data, and zeros up to the next block."""
    head = BLOCK if len(name) <= _NAME_BYTES and size < _SIZE_LIMIT else len(_long_head(name, size))
    return head + size + -size % BLOCK


def archive_bytes(members_bytes: int) -> int:
    """How long an archive is whose members take ``members_bytes``: two blocks of zeros, and up to a full record."""
    ended = members_bytes + 2 * BLOCK
    return ended + -ended % RECORD

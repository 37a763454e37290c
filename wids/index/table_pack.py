"""A pack of member tables (``.tables``): those of many shards in one file, behind a directory that says which is whose.

Pure: bytes in, offsets out. The format is in the README of this folder. The directory has 24 bytes for each shard and
is mapped; the tables behind it are what ``.widx`` files hold, and each is read by its byte range. Whenever a directory
is opened, its checksums are compared, and its offsets with the length of the pack, so none of them leads outside of it.
That a table is its shard's own, the table itself says (`wids.cache.member_tables.accept_published`).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from wids.errors import TableError
from wids.index import sections, urls
from wids.index.mapped_columns import hash_of
from wids.index.shardlist import MAX_SHARDS
from wids.index.writing import name_below

if TYPE_CHECKING:
    from collections.abc import Sequence

SUFFIX = ".tables"
MAGIC = b"\x89WIDST\r\n"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQQI4x")
HEADER_BYTES = _HEADER.size
_ROW_BYTES = 24
# Columns are checked so many rows at a time: what that takes is freed, and is little.
_CHECKED_ROWS = 1 << 16


class Directory:
    """Where the tables of a pack are.

    Args:
        columns: hashes of the shards' names, ascending; offsets; lengths in bytes. Views of 64-bit numbers.
        place: the pack's URL or path.
        size: of the pack, in bytes.

    Attributes:
        place, size: as given.
    """

    def __init__(self, columns: Sequence[memoryview], *, place: str, size: int) -> None:
        self.place, self.size = place, size
        self._hashes, self._offsets, self._lengths = (np.asarray(column) for column in columns)

    def __len__(self) -> int:
        return len(self._hashes)

    def find(self, url: str) -> tuple[int, int] | None:
        """(offset, length in bytes) of the table of a shard; None: it is not in the pack."""
        for name in dict.fromkeys((name_in(self.place, url), url)):
            wanted = np.uint64(hash_of(name))
            at = int(self._hashes.searchsorted(wanted))
            if at < len(self._hashes) and self._hashes[at] == wanted:
                return int(self._offsets[at]), int(self._lengths[at])
        return None


def name_in(place: str, url: str) -> str:
    """What a shard is called in the pack at ``place``: relative to its directory where it lies below it."""
    name = name_below(url, urls.directory_of(place))
    return urls.plain_name(name) if name and urls.is_web(url) else name or url


def pack_head(names: Sequence[str], lengths: Sequence[int], *, place: str) -> bytes:
    """Header and directory; the tables follow in the same order, each with zeros up to a multiple of 8.

    Args:
        names: of the shards (`name_in`), each once.
        lengths: of their tables, in bytes.
        place: what errors call the pack.

    Raises:
        TableError: two names have the same hash, or there are more than a dataset can have.
    """
    n = len(names)
    if n > MAX_SHARDS:
        raise _damaged(place, f"would have {n:,} tables, and has room for {MAX_SHARDS:,}")
    hashes = np.fromiter(map(hash_of, names), "<u8", n)
    sizes = np.asarray(lengths, "<i8")
    padded = (sizes + 7) // 8 * 8
    ends = head_bytes(n) + np.cumsum(padded, dtype="<i8")
    order = np.argsort(hashes, kind="stable")
    same = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
    if len(same):
        one, other = (names[order[same[0] + k]] for k in (0, 1))
        raise TableError(
            f"{place}: {one} and {other} have the same hash, and one would get the table of the other; rename one of "
            "these shards",
            url=place,
        )
    directory = b"".join(column[order].tobytes() for column in (hashes, (ends - padded).astype("<u8"), sizes))
    length = int(ends[-1]) if n else head_bytes(0)
    rest = _HEADER.pack(MAGIC, _VERSION, 0, length, n, crc32(directory))[16:]
    return MAGIC + struct.pack("<II", _VERSION, crc32(rest)) + rest + directory


def head_bytes(count: int) -> int:
    """Bytes of header and directory of so many tables."""
    return HEADER_BYTES + _ROW_BYTES * count


def head_end(data: bytes | memoryview, *, place: str, size: int | None = None) -> int:
    """Where the directory of a pack ends, by its header; no more than the pack has.

    Args:
        data: the beginning of the pack: `HEADER_BYTES` or more.
        place: what errors call the pack.
        size: bytes of the pack, if that is known.

    Raises:
        TableError: not a pack, another version, damaged, or of another size.
    """
    if len(data) < HEADER_BYTES or data[:8] != MAGIC:
        raise _damaged(place, "is none, or was cut short")
    _, version, checksum, length, n, _ = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise _damaged(place, f"has version {version}, and this wids reads version {_VERSION}")
    if crc32(data[16:HEADER_BYTES]) != checksum:
        raise _damaged(place, "is damaged (the checksum of its header is another)")
    if size not in (None, length):
        raise _damaged(place, f"has {size} of {length} bytes")
    if n > MAX_SHARDS or head_bytes(n) > length:
        raise _damaged(place, "contradicts its own header")
    return head_bytes(n)


def unpack(data: bytes | memoryview, *, place: str, size: int | None = None) -> Directory:
    """The directory of a pack; its columns are views of ``data``.

    Args:
        data: the pack, or its beginning up to the end of the directory or further.
        place: the pack's URL or path.
        size: bytes of the pack, if that is known.

    Raises:
        TableError: not a pack, another version, cut short, or damaged.
    """
    end = head_end(data, place=place, size=size)
    view = memoryview(data)
    if len(view) < end:
        raise _damaged(place, f"has a directory that was cut short ({len(view)} of {end} bytes)")
    *_, length, n, checksum = _HEADER.unpack_from(view)
    if crc32(view[HEADER_BYTES:end]) != checksum:
        raise _damaged(place, "is damaged (the checksum of its directory is another)")
    found, _ = sections.cut(view, HEADER_BYTES, (8 * n, 8 * n, 8 * n))
    columns = [sections.native(section, "Q") for section in found]
    if not _is_consistent(columns, end, length):
        raise _damaged(place, "has a directory that points outside of it, or that contradicts itself")
    return Directory(columns, place=place, size=length)


def _is_consistent(columns: Sequence[memoryview], start: int, end: int) -> bool:
    """Whether the hashes ascend, and every table lies between the end of the directory and that of the pack."""
    hashes, offsets, lengths = (np.asarray(column) for column in columns)
    for lo in range(0, len(hashes), _CHECKED_ROWS):
        part = slice(lo, lo + _CHECKED_ROWS)
        now = hashes[max(lo - 1, 0) : lo + _CHECKED_ROWS]
        if not (now[1:] > now[:-1]).all():
            return False
        at, size = offsets[part], lengths[part]
        # Compared without a sum, which may not fit in 64 bits.
        if int(at.min()) < start or int(at.max()) > end or (size > np.uint64(end) - at).any():
            return False
    return True


def _damaged(place: str, what: str) -> TableError:
    return TableError(f"{place}: this pack of member tables {what}; make it again (wids index tables)", url=place)

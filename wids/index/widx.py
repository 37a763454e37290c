"""The format of a member table on disk (``.widx``).

Pure. Little-endian, no pickle, may be memory-mapped: every section starts at a multiple of 8. No memory is allocated by
a count that the file claims before the count is checked against the length of the file.

Version 1::

    offset  size  field
         0     8  magic: 89 57 49 44 58 0D 0A 1A  (a text-mode transfer breaks it)
         8     4  version = 1                                 u32
        12     4  CRC-32 of all bytes from 16 to the end      u32
        16     8  length of the whole table in bytes          u64
        24     8  shard size in bytes                         u64
        32     8  shard mtime in nanoseconds, -1 = unknown    i64
        40    16  shard md5, all zero = unknown
        56     8  nmembers                                    u64
        64     8  nsamples                                    u64
        72     4  nextensions                                 u32
        76     4  nrepeated: samples whose key came before    u32
        80     4  length of the etag section in bytes         u32
        84     4  length of the extensions section in bytes   u32
        88     8  length of the keys section in bytes         u64
        96        sections, each padded with zeros to 8 bytes:
                    data offsets   u64 x nmembers       byte offset of a member's data in the shard
                    sizes          u64 x nmembers       bytes
                    extension ids  u32 x nmembers
                    starts         u32 x (nsamples+1)   sample r is members starts[r] .. starts[r+1]
                    key ends       u64 x (nsamples+1)   sample r's key is keys[ends[r] .. ends[r+1]]
                    extensions     each with its leading dot, raw bytes, NUL after each
                    keys           raw bytes, as in the archive (mostly UTF-8)
                    etag           UTF-8, the server's entity tag for the shard
                    links          only where there are hard links: their members, ascending, u64 x n;
                                   then the byte offset of the header of each, u64 x n

A member's header is the block before its data; that of a hard link is elsewhere, behind the data, which are those of an
earlier file. No two headers and data overlap. Samples ascend by their first headers. Within a sample, members stand in
archive order; if there are links among them, in the order of their data.
"""

from __future__ import annotations

import struct
import sys
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np

from wids.errors import TableError
from wids.index import headers, sections
from wids.index.identity import Identity
from wids.index.keys import decode_name, encode_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SUFFIX = ".widx"
_MAGIC = b"\x89WIDX\r\n\x1a"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQQq16sQQIIIIQ")
_UNKNOWN_MD5 = bytes(16)
_UNKNOWN_MTIME = -1
_BLOCK = headers.BLOCK


class Content(NamedTuple):
    """What a saved table holds.

    Attributes:
        identity: the shard it belongs to.
        columns: data offsets, sizes, extension ids, starts, key ends.
        extensions: the distinct ones.
        keys: all keys, one after another.
        nrepeated: samples whose key had appeared before.
        links: members that are hard links, ascending -> where their headers are.
    """

    identity: Identity
    columns: Sequence[memoryview]
    extensions: tuple[str, ...]
    keys: bytes | memoryview
    nrepeated: int
    links: Mapping[int, int]


def pack(content: Content) -> bytes:
    """The on-disk form."""
    identity = content.identity
    extensions = b"".join(encode_name(extension) + b"\0" for extension in content.extensions)
    etag = encode_name(identity.etag or "")
    parts = [_little(column) for column in content.columns] + [extensions, content.keys, etag]
    if content.links:
        parts.append(np.array([*content.links, *content.links.values()], "<u8").tobytes())
    body = b"".join(sections.pad(parts))
    mtime_ns = identity.mtime_ns
    if mtime_ns is None or not -(1 << 63) <= mtime_ns < 1 << 63:  # some file systems date files past the year 2262
        mtime_ns = _UNKNOWN_MTIME
    header = _HEADER.pack(
        _MAGIC,
        _VERSION,
        0,
        _HEADER.size + len(body),
        identity.size,
        mtime_ns,
        bytes.fromhex(identity.md5) if identity.md5 else _UNKNOWN_MD5,
        len(content.columns[0]),
        len(content.columns[3]) - 1,
        len(content.extensions),
        content.nrepeated,
        len(etag),
        len(extensions),
        len(content.keys),
    )
    checksum = crc32(body, crc32(header[16:]))
    return header[:12] + checksum.to_bytes(4, "little") + header[16:] + body


def unpack(data: bytes, *, shard: str, name: str = "") -> Content:
    """Read the on-disk form; the columns and keys are views of ``data``.

    Args:
        data: the whole of it.
        shard: what errors call the shard.
        name: what they call the table; by default it is a file of its own.

    Raises:
        TableError: not a table, another version, cut short, or damaged.
    """

    def broken(what: str) -> TableError:
        remedy = "make it again" if name else f"delete the {SUFFIX} file to rebuild it"
        return TableError(f"{shard}: {name or 'its saved member table'} {what}; {remedy}", shard=shard)

    if len(data) < _HEADER.size or data[:8] != _MAGIC:
        raise broken("is not a member table")
    (_, version, checksum, length, size, mtime_ns, md5, nmembers, nsamples, nextensions, nrepeated, *lengths) = (
        _HEADER.unpack_from(data)
    )
    if version != _VERSION:
        raise broken(f"has version {version}, and this wids reads version {_VERSION}")
    view = memoryview(data)
    if length != len(data) or crc32(view[16:]) != checksum:
        raise broken(f"is damaged ({len(data)} of {length} bytes, or a wrong checksum)")
    etag_bytes, extension_bytes, key_bytes = lengths
    widths = (8 * nmembers, 8 * nmembers, 4 * nmembers, 4 * nsamples + 4, 8 * nsamples + 8)
    found, end = sections.cut(view, _HEADER.size, (*widths, extension_bytes, key_bytes, etag_bytes))
    if end > length or (length - end) % 16:
        raise broken("contradicts its own header")
    columns = [sections.native(section, code) for section, code in zip(found[:5], "QQIIQ", strict=True)]
    *extensions, rest = bytes(found[5]).split(b"\0")
    links = np.frombuffer(view[end:], "<u8").reshape(2, -1)
    is_list_sound = not rest and len(set(extensions)) == len(extensions) == nextensions
    if not is_list_sound or nrepeated > nsamples or not _is_consistent(columns, size, nextensions, key_bytes):
        raise broken("points outside its shard or itself")
    if not _is_archive(columns, size, links):
        raise broken("has samples in another order than the archive, or members that overlap or where no header fits")
    identity = Identity(
        size=size,
        mtime_ns=None if mtime_ns == _UNKNOWN_MTIME else mtime_ns,
        md5=None if md5 == _UNKNOWN_MD5 else md5.hex(),
        etag=str(found[7], "utf-8", "surrogateescape") or None,
    )
    names = tuple(sys.intern(decode_name(raw)) for raw in extensions)
    return Content(identity, columns, names, found[6], nrepeated, dict(zip(*links.tolist(), strict=True)))


def _is_consistent(columns: Sequence[memoryview], size: int, nextensions: int, key_bytes: int) -> bool:
    """Whether every sample can be read without leaving the shard, the keys or the extensions."""
    offsets, sizes, ids, starts, ends = (np.asarray(column) for column in columns)
    if starts[0] != 0 or starts[-1] != len(offsets) or ends[0] != 0 or ends[-1] != key_bytes:
        return False
    if not ((starts[1:] > starts[:-1]).all() and (ends[1:] >= ends[:-1]).all()):
        return False
    if not len(ids):
        return True
    # One pass each, where comparing makes an array first: this is a good part of the time to open a shard.
    most = np.maximum.reduce
    if most(ids) >= nextensions or most(sizes) > size or most(offsets) > size:
        return False
    after = offsets + sizes
    return bool(most(after) <= size and not (size >> 63 and (after < offsets).any()))  # it may not fit in 64 bits


def _is_archive(columns: Sequence[memoryview], size: int, links: np.ndarray[Any, np.dtype[np.uint64]]) -> bool:
    """Whether members can lie so in an archive, and the rows are in its order; of columns that are consistent.

    Else a table would decide which sample is number ``i`` of its shard.
    """
    offsets, sizes, _, starts, _ = (np.asarray(column) for column in columns)
    if not len(offsets):
        return not links.size
    ends = offsets + sizes
    least = np.minimum.reduce
    # Most are the members of an archive in its order: a header fits before each. The rest takes some passes more.
    if not links.size and least((offsets[1:] - ends[:-1]).view(np.int64), initial=_BLOCK) >= _BLOCK <= offsets[0]:
        return True
    if least(offsets) < _BLOCK:
        return False
    # Others have links, or members of a key that were brought together.
    begins, data_ends = offsets - np.uint64(_BLOCK), ends.copy()
    linked, places = links
    if links.size:
        is_sound = linked[-1] < len(offsets) and (linked[1:] > linked[:-1]).all() and places.max() <= size - _BLOCK
        if not is_sound or (ends[linked] > places).any():
            return False
        begins[linked], data_ends[linked] = places, places + np.uint64(_BLOCK)
    order = np.argsort(begins, kind="stable")
    is_apart = begins[order[1:]] >= data_ends[order[:-1]]
    firsts = np.minimum.reduceat(begins, starts[:-1])
    is_rising = offsets[1:] >= offsets[:-1]
    is_rising[starts[1:-1] - 1] = True  # the next sample
    return bool(is_apart.all() and (firsts[1:] > firsts[:-1]).all() and is_rising.all())


def _little(column: memoryview) -> bytes:
    if sys.byteorder == "little":
        return column.tobytes()
    return np.asarray(column).byteswap().tobytes()

"""The format of a member table on disk (``.widx``): a `wids.core.files.container`.

Pure. The header has the shard's identity, the distinct extensions (each with its leading dot) and the number of samples
whose key came before. The sections::

    offsets       u8 x nmembers       byte offset of a member's data in the shard
    sizes         u8 x nmembers       bytes
    extension_ids u4 x nmembers
    starts        u4 x (nsamples+1)   sample r is members starts[r] .. starts[r+1]
    key_ends      u8 x (nsamples+1)   sample r's key is keys[key_ends[r] .. key_ends[r+1]]
    keys          u1                  raw bytes, as in the archive (mostly UTF-8)
    linked        u8, if there are hard links: their members, ascending
    link_headers  u8, the same: the byte offset of the header of each

A member's header is the block before its data; that of a hard link is elsewhere, behind the data, which are those of an
earlier file. No two headers and data overlap. Samples ascend by their first headers. Within a sample, members stand in
archive order; if there are links among them, in the order of their data.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from wids.core.files.container import Format, Invariant, ends, lengths, within
from wids.core.files.identity import Identity
from wids.core.tables import headers
from wids.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wids.core.files.container import Sections

SUFFIX = ".widx"
_BLOCK = headers.BLOCK


class _WidxHeader(msgspec.Struct):
    """The header of a table; see `Identity`."""

    size: int
    mtime_ns: int | None
    md5: str | None
    etag: str | None
    extensions: list[str]
    nrepeated: int


class Content(NamedTuple):
    """The contents of a saved table.

    Attributes:
        identity: of its shard.
        columns: data offsets, sizes, extension ids, starts, key ends.
        extensions: the distinct ones.
        keys: all keys, one after another.
        nrepeated: number of samples whose key had appeared before.
        links: members that are hard links, ascending -> offsets of their headers.
    """

    identity: Identity
    columns: Sequence[memoryview]
    extensions: tuple[str, ...]
    keys: bytes | memoryview
    nrepeated: int
    links: Mapping[int, int]


def pack(content: Content) -> bytes:
    """The on-disk form."""
    identity, links = content.identity, content.links
    header = _WidxHeader(
        identity.size,
        identity.mtime_ns,
        (identity.md5 or "").lower() or None,
        identity.etag or None,
        list(content.extensions),
        content.nrepeated,
    )
    columns = dict(zip(_COLUMNS, content.columns, strict=True))
    linked = {"linked": np.array([*links], "<u8"), "link_headers": np.array([*links.values()], "<u8")}
    return b"".join(FORMAT.pack(header, {**columns, "keys": content.keys, **linked}))


def unpack(data: bytes, *, shard: str, name: str = "") -> Content:
    """Read the on-disk form; the columns and keys are views of ``data``.

    Args:
        data: the whole of it.
        shard: its name in errors.
        name: name of the table in errors; by default it is a separate file.

    Raises:
        TableError: not a table, another version, cut short, or damaged.
    """

    def broken(what: str) -> TableError:
        remedy = "make it again" if name else f"delete the {SUFFIX} file to rebuild it"
        return TableError(f"{shard}: {name or 'its saved member table'} {what}; {remedy}", shard=shard)

    unpacked = FORMAT.unpack(data, broken)
    header, columns = unpacked.header, unpacked.columns
    identity = Identity(size=header.size, mtime_ns=header.mtime_ns, md5=header.md5, etag=header.etag)
    linked = columns["linked"]
    links = dict(zip(linked.tolist(), columns["link_headers"].tolist(), strict=True)) if len(linked) else {}
    names = tuple(map(sys.intern, header.extensions))
    return Content(identity, [columns[key] for key in _COLUMNS], names, columns["keys"], header.nrepeated, links)


def _is_list_sound(header: _WidxHeader, columns: Sections) -> bool:
    """True if the header can be that of a shard."""
    extensions, nsamples = header.extensions, len(columns["starts"]) - 1
    is_named = len(set(extensions)) == len(extensions) and "\0" not in "".join(extensions)
    return is_named and 0 <= header.size < 1 << 64 and 0 <= header.nrepeated <= nsamples


def _is_archive(header: _WidxHeader, columns: Sections) -> bool:
    """True if an archive can have members at these offsets, and the rows are in its order; of consistent columns.

    Else a table would decide which sample is number ``i`` of its shard.
    """
    offsets, sizes, linked = (np.asarray(columns[key]) for key in ("offsets", "sizes", "linked"))
    if not len(offsets):
        return not len(linked)
    # One pass each, where comparing makes an array first: this is a good part of the time to open a shard.
    most, size = np.maximum.reduce, header.size
    is_inside, after = most(sizes) <= size >= most(offsets), offsets + sizes
    if not is_inside or most(after) > size or (size >> 63 and (after < offsets).any()):  # it may not fit in 64 bits
        return False
    least = np.minimum.reduce
    # Most are the members of an archive in its order: a header fits before each. The rest takes some passes more.
    if not len(linked) and least((offsets[1:] - after[:-1]).view(np.int64), initial=_BLOCK) >= _BLOCK <= offsets[0]:
        return True
    if least(offsets) < _BLOCK:
        return False
    starts, places = np.asarray(columns["starts"]), np.asarray(columns["link_headers"])
    # Others have links, or members of a key that were brought together.
    begins, data_ends = offsets - np.uint64(_BLOCK), after.copy()
    if len(linked):
        is_sound = (
            linked[-1] < len(offsets) and (linked[1:] > linked[:-1]).all() and places.max() <= header.size - _BLOCK
        )
        if not is_sound or (after[linked] > places).any():
            return False
        begins[linked], data_ends[linked] = places, places + np.uint64(_BLOCK)
    order = np.argsort(begins, kind="stable")
    is_apart = begins[order[1:]] >= data_ends[order[:-1]]
    firsts = np.minimum.reduceat(begins, starts[:-1])
    is_rising = offsets[1:] >= offsets[:-1]
    is_rising[starts[1:-1] - 1] = True  # the next sample
    return bool(is_apart.all() and (firsts[1:] > firsts[:-1]).all() and is_rising.all())


_COLUMNS = ("offsets", "sizes", "extension_ids", "starts", "key_ends")
_IS_NO_ARCHIVE = (
    "has members outside its shard, samples in another order than the archive, or members that overlap or where no "
    "header fits"
)
FORMAT = Format(
    "widx",
    1,
    _WidxHeader,
    {
        **dict(zip(_COLUMNS, ("u8", "u8", "u4", "u4", "u8"), strict=True)),
        "keys": "u1",
        "linked": "u8?",
        "link_headers": "u8?",
    },
    (
        lengths(
            {
                "sizes": "offsets",
                "extension_ids": "offsets",
                "key_ends": "starts",
                "link_headers": "linked",
            }
        ),
        ends("starts", "offsets", first=0, is_strict=True),
        ends("key_ends", "keys", first=0),
        Invariant("contradicts its own header", _is_list_sound),
        within("extension_ids", 0, lambda header, _: len(header.extensions) - 1),
        Invariant(_IS_NO_ARCHIVE, _is_archive),
    ),
)

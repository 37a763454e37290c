"""A pack of member tables (``.tables``): those of many shards in one file, behind a directory of their shards.

Pure: bytes in, offsets out. The directory is a `wids.core.files.container` and is mapped; the tables are its tail: what
``.widx`` files hold, each at a multiple of 8, read by its byte range::

    hashes   u8 x shards   of the shards' names (`name_in`), ascending
    offsets  u8 x shards   beginning of each one's table, in bytes from the end of the directory
    lengths  u8 x shards   of the tables, in bytes

Whenever a directory is opened, its offsets are compared with the length of the pack, so none leads outside of it.
That a table is its shard's own, the table itself says (`wids.core.tables.member_tables.accept_published`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from wids.core.files.container import START_BYTES, Format, Invariant, NoHeader, ascending, hash_of, lengths
from wids.core.place import Place, plain_name
from wids.core.transport.urls import MAX_SHARDS
from wids.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.core.files.container import Sections

SUFFIX = ".tables"
# Sections are checked so many rows at a time: what that takes is freed, and is little.
_CHECKED_ROWS = 1 << 16


class Directory:
    """The places of the tables of a pack.

    Args:
        columns: hashes, offsets, lengths; see above.
        start: offset of the tables in the pack.
        place: the pack's URL or path.
        size: of the pack, in bytes.

    Attributes:
        url: the pack's URL or path.
        size: of the pack, in bytes.
    """

    url: str
    size: int

    def __init__(self, columns: Sections, *, start: int, url: str, size: int) -> None:
        self.url, self.size, self._start = url, size, start
        self._hashes, self._offsets, self._lengths = (np.asarray(columns[name]) for name in _COLUMNS)

    def __len__(self) -> int:
        return len(self._hashes)

    def find(self, url: str) -> tuple[int, int] | None:
        """(offset, length in bytes) of the table of a shard; None: it is not in the pack."""
        for name in dict.fromkeys((name_in(self.url, url), url)):
            wanted = np.uint64(hash_of(name))
            at = int(self._hashes.searchsorted(wanted))
            if at < len(self._hashes) and self._hashes[at] == wanted:
                return self._start + int(self._offsets[at]), int(self._lengths[at])
        return None


def name_in(pack_url: str, url: str) -> str:
    """The name of a shard in the pack at ``pack_url``: relative to the pack's directory if the shard is below it."""
    shard = Place(url)
    name = shard.below(str(Place(pack_url).directory))
    return plain_name(name) if name and shard.is_web else name or url


def pack_head(names: Sequence[str], lengths: Sequence[int], *, url: str) -> bytes:
    """Header and directory; the tables follow in the same order, each with zeros up to a multiple of 8.

    Args:
        names: of the shards (`name_in`), each once.
        lengths: of their tables, in bytes.
        url: its name in errors.

    Raises:
        TableError: two names have the same hash, or there are more than a dataset can have.
    """
    n = len(names)
    if n > MAX_SHARDS:
        raise _damaged(url, f"would have {n:,} tables, and has room for {MAX_SHARDS:,}")
    hashes = np.fromiter(map(hash_of, names), "<u8", n)
    sizes = np.asarray(lengths, "<i8")
    padded = (sizes + 7) // 8 * 8
    ends = np.cumsum(padded, dtype="<i8")
    order = np.argsort(hashes, kind="stable")
    same = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
    if len(same):
        one, other = (names[order[same[0] + k]] for k in (0, 1))
        raise TableError(
            f"{url}: {one} and {other} have the same hash, and one would get the table of the other; rename one of "
            "these shards",
            url=url,
        )
    columns = dict(zip(_COLUMNS, (hashes[order], (ends - padded)[order], sizes[order]), strict=True))
    return b"".join(_DIRECTORY.pack(NoHeader(), columns, tail=int(ends[-1]) if n else 0))


def head_end(data: bytes | memoryview, *, url: str) -> int:
    """Offset of the end of a pack's header, by its first `START_BYTES`.

    Raises:
        TableError: not a pack, or of another version.
    """
    return _DIRECTORY.head_end(data, _broken(url))


def directory_end(data: bytes | memoryview, *, url: str, size: int | None = None) -> int:
    """Offset at which the directory of a pack ends, and its tables begin; at most the size of the pack.

    Args:
        data: the beginning of the pack: its header or more (`head_end`).
        url: its name in errors.
        size: bytes of the pack, if that is known.

    Raises:
        TableError: not a pack, another version, damaged, or of another size.
    """
    return _DIRECTORY.body_end(data, _broken(url), size=size)


def read_head(
    read: Callable[[int, int], bytes], *, url: str, size: int | None = None, data: bytes = b""
) -> tuple[bytes, int]:
    """(the beginning of a pack to the end of its directory or further, the offset of the directory's end).

    Args:
        read: (offset, length in bytes) -> bytes.
        url: its name in errors.
        size: bytes of the pack, if that is known.
        data: the beginning of the pack, if some of it was read before.

    Raises:
        TableError: not a pack, another version, damaged, or of another size.
    """
    data, end = data or read(0, START_BYTES), 0
    for find in (head_end, partial(directory_end, size=size)):
        end = find(data, url=url)
        if end > len(data):
            data += read(len(data), end - len(data))
    return data, end


def unpack(data: bytes | memoryview, *, url: str, size: int | None = None) -> Directory:
    """The directory of a pack; its columns are views of ``data``.

    Args:
        data: the pack, or its beginning up to the end of the directory or further.
        url: the pack's URL or path.
        size: bytes of the pack; None: it is ``data``.

    Raises:
        TableError: not a pack, another version, cut short, or damaged.
    """
    length = len(data) if size is None else size
    unpacked = _DIRECTORY.unpack(data, _broken(url), size=length)
    if not _is_consistent(unpacked.columns, length - unpacked.end):
        raise _damaged(url, "has a directory that points outside of it")
    return Directory(unpacked.columns, start=unpacked.end, url=url, size=length)


def _is_consistent(columns: Sections, size: int) -> bool:
    """True if every table is within the tables, which have ``size`` bytes."""
    for lo in range(0, len(columns["offsets"]), _CHECKED_ROWS):
        at, length = (np.asarray(columns[name][lo : lo + _CHECKED_ROWS]) for name in ("offsets", "lengths"))
        # Compared without a sum, which may not fit in 64 bits.
        if int(at.max()) > size or (length > np.uint64(size) - at).any():
            return False
    return True


def _damaged(url: str, what: str) -> TableError:
    return TableError(f"{url}: this pack of member tables {what}; make it again (wids index tables)", url=url)


def _broken(url: str) -> Callable[[str], TableError]:
    return lambda what: _damaged(url, what)


_COLUMNS = ("hashes", "offsets", "lengths")
_DIRECTORY = Format(
    "tables",
    1,
    NoHeader,
    dict.fromkeys(_COLUMNS, "u8"),
    (
        lengths(dict.fromkeys(("offsets", "lengths"), lambda _, columns: len(columns["hashes"]))),
        Invariant("has more tables than a dataset has shards", lambda _, columns: len(columns["hashes"]) <= MAX_SHARDS),
        ascending("hashes"),
    ),
)

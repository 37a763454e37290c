"""A saved view: an index that names another one, and the file beside it that has the rows. Pure.

JSON form::

    {"wids_version": 1, "name": ..., "view_of": URL, "view_of_fingerprint": DIGEST,
     "view_of_counts": [SHARDS, SAMPLES], "rows": URL, "rows_checksum": CRC, "nsamples": N, "made_by": [TEXT, ...]}

``view_of`` and ``rows`` are relative to the view; the checksum of the rows is that of their file, in 8 hexadecimal
digits. A view of shards that have no index has their ``"shardlist"`` in the
place of ``view_of``. The file of rows, little-endian, each section padded with zeros to a multiple of 8 bytes::

    16 bytes  "WIDSROWS", version (u32), CRC-32 of the rest (u32)
    32 bytes  bytes of the whole, shards, samples, bytes of a row (4 or 8) (u64 each)
    ends      8 bytes a shard: where its samples end, counted over the view
    rows      the row in its shard of each sample, ascending within a shard
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec
import numpy as np

from wids.errors import SpecError
from wids.index import checks, sections

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from wids.index.selection import Integers

# What a text has in it that is a view.
MARK, SUFFIX = b'"view_of_fingerprint"', ".rows"
_MAGIC, _VERSION = b"WIDSROWS", 1
_CHECKED_AT_A_TIME = 1 << 20
_START, _FACTS = struct.Struct("<8sII"), struct.Struct("<QQQQ")
# Where the ends begin.
FIRST = _START.size + _FACTS.size


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What the JSON of a view says of it.

    Attributes:
        name: of the dataset.
        view_of: the index that lists the shards; None: the view lists them itself.
        view_of_fingerprint: of these shards; see `wids.index.fingerprint`. view_of_counts: (shards, samples in all).
        rows: where the rows lie. rows_checksum: of their file; see `checksum_of`. nsamples: how many.
        made_by: how it was made, a step each.
    """

    name: str | None = None
    view_of: str | None = None
    view_of_fingerprint: str
    view_of_counts: tuple[int, int]
    rows: str
    rows_checksum: str
    nsamples: int
    made_by: list[str] = msgspec.field(default_factory=list)


def parse_view(index: dict[str, Any], place: str | None) -> View | None:
    """The view that an index is; None: it is another index.

    Raises:
        SpecError: it is malformed.
    """
    if "rows" not in index or "view_of_fingerprint" not in index:
        return None
    found: View = checks.convert({key: index[key] for key in View.__struct_fields__ if key in index}, View, place=place)
    return found


def pack_rows(ends: Integers, rows: npt.NDArray[Any]) -> list[bytes | memoryview]:
    """The file of rows, in parts."""
    width = rows.dtype.itemsize
    kind = "<u4" if width == 4 else "<i8"
    columns = [ends.astype("<i8").tobytes(), rows.astype(kind, copy=False).tobytes()]
    body = sections.pad(columns)
    size = FIRST + sum(map(len, body))
    facts = _FACTS.pack(size, len(ends), len(rows), width)
    checksum = crc32(facts)
    for part in body:
        checksum = crc32(part, checksum)
    return [_START.pack(_MAGIC, _VERSION, checksum) + facts, *body]


def checksum_of(data: bytes | memoryview) -> str:
    """The checksum in a file of rows that is no shorter than its first section: 8 hexadecimal digits."""
    return f"{_START.unpack_from(data)[2]:08x}"


def max_bytes(shards: int, samples: int) -> int:
    """How long a file of rows is at most."""
    return FIRST + 8 * (shards + samples)


def unpack_rows(
    data: bytes | memoryview, *, counts: Sequence[int] | None, place: str
) -> tuple[Integers, npt.NDArray[Any]]:
    """(ends, rows), which lie in ``data``.

    Args:
        data: the file.
        counts: how many samples each shard holds; None: the rows are not compared with the shards.
        place: what errors call the file.

    Raises:
        SpecError: it is damaged, or of other shards.
    """
    view = memoryview(data)
    if len(view) < FIRST:
        raise _damaged(place, "is too short")
    magic, version, checksum = _START.unpack_from(view)
    if magic != _MAGIC or version != _VERSION:
        raise _damaged(place, "is not the rows of a view, or of another version of wids")
    size, nshards, total, width = _FACTS.unpack_from(view, _START.size)
    if size != len(view) or width not in (4, 8) or crc32(view[_START.size :]) != checksum:
        raise _damaged(place, f"is damaged ({len(view)} of {size} bytes, or a wrong checksum)")
    found, end = sections.cut(view, FIRST, (8 * nshards, width * total))
    if end != size:
        raise _damaged(place, "is damaged (its samples and shards do not fill it)")
    if counts is not None and nshards != len(counts):
        raise _damaged(place, f"is of {nshards} shards, and the index has {len(counts)}")
    ends = np.asarray(sections.native(found[0], "q"), np.int64)
    rows: npt.NDArray[Any] = np.asarray(sections.native(found[1], "I" if width == 4 else "q"))
    if counts is not None and not _are_rows(ends, rows, np.asarray(counts, np.int64)):
        raise _damaged(place, "names rows that its shards do not have, or not in order")
    return ends, rows


def _are_rows(ends: Integers, rows: npt.NDArray[Any], counts: Integers) -> bool:
    lengths = np.diff(ends, prepend=0)
    if (ends < 0).any() or (lengths < 0).any() or (int(ends[-1]) if len(ends) else 0) != len(rows):
        return False
    at = ends[lengths > 0]
    if not len(at):
        return True
    firsts = at - lengths[lengths > 0]
    if (rows[firsts] < 0).any() or (rows[at - 1] >= counts[lengths > 0]).any():
        return False
    for lo in range(0, len(rows), _CHECKED_AT_A_TIME):  # not all at once, which would take memory
        part = rows[max(lo - 1, 0) : lo + _CHECKED_AT_A_TIME]
        is_above = part[1:] > part[:-1]
        begin, end = np.searchsorted(firsts, (max(lo, 1), lo + _CHECKED_AT_A_TIME))
        is_above[firsts[begin:end] - max(lo, 1)] = True
        if not is_above.all():
            return False
    return True


def _damaged(place: str, what: str) -> SpecError:
    return SpecError(f"{place}: {what}; save the view again", path="rows", url=place)

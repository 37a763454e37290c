"""A saved view: an index that names another one, and the file beside it that has the rows. Pure.

JSON form::

    {"wids_version": 1, "name": ..., "view_of": URL, "view_of_fingerprint": DIGEST,
     "view_of_counts": [SHARDS, SAMPLES], "view_of_contents": {KIND: DIGEST},
     "rows": URL, "rows_checksum": CRC, "nsamples": N, "made_by": [TEXT, ...]}

``view_of`` and ``rows`` are relative to the view; the checksum of the rows is that of their file, in 8 hexadecimal
digits. A view without ``rows`` has all samples, and companions (`wids.core.index.companion_file`). A view of shards
that have no index has their ``"shardlist"`` in the place of ``view_of``. The file of rows is a
`wids.core.files.container`::

    ends   i8 x shards    where each shard's samples end, counted over the view
    rows   u4 x samples, or wide_rows i8 x samples: the row of each in its shard, ascending within a shard
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import msgspec
import numpy as np

from wids.core.files.container import START_BYTES, Format, Invariant, NoHeader
from wids.core.files.container import ends as ends_at
from wids.core.index import checks
from wids.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from wids.core.files.container import Sections
    from wids.core.index.selection import Integers
    from wids.core.index.shardlist import ShardList

# The companions of an index, by which a view may have all samples.
KEY = "companions"
# Mark of a text that is a view.
MARK, SUFFIX = b'"view_of_fingerprint"', ".rows"
_CHECKED_AT_A_TIME = 1 << 20
# More than a header of rows has.
_MAX_HEAD_BYTES = 1024


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON of a view.

    Attributes:
        name: of the dataset.
        view_of: the index that lists the shards; None: the view lists them itself.
        view_of_fingerprint: of these shards; see `wids.core.index.fingerprint`.
        view_of_counts: (shards, samples in all).
        view_of_contents: digests of their contents, by kinds of checksums; a kind that not all shards have is missing.
        rows: the place of the rows; None: it has all samples.
        rows_checksum: of their file; see `checksum_of`.
        nsamples: number of samples.
        made_by: the steps that made it.
    """

    name: str | None = None
    view_of: str | None = None
    view_of_fingerprint: str
    view_of_counts: tuple[int, int]
    view_of_contents: dict[str, str] = {}
    rows: str | None = None
    rows_checksum: str | None = None
    nsamples: int
    made_by: list[str] = msgspec.field(default_factory=list)


def parse_view(index: dict[str, Any], index_url: str | None) -> View | None:
    """The view that an index is; None: it is another index.

    Raises:
        SpecError: it is malformed.
    """
    if "view_of_fingerprint" not in index or index.keys().isdisjoint(("rows", KEY)):
        return None
    if (version := index.get("wids_version", 1)) != 1:
        checks.fail(index_url, "wids_version", f"is {version}; this wids reads version 1")
    keys = {key: index[key] for key in View.__struct_fields__ if key in index}
    view: View = checks.convert(keys, View, index_url=index_url)
    return view


def is_view(shards: ShardList) -> bool:
    """True if a shard list was opened from a view, which may have all samples."""
    return shards.selection is not None or "view_of_fingerprint" in shards.header


def pack_rows(ends: Integers, rows: npt.NDArray[Any]) -> list[bytes | memoryview]:
    """The file of rows, in parts."""
    is_narrow = rows.dtype.itemsize == 4
    return _ROWS.pack(NoHeader(), {"ends": ends, "rows" if is_narrow else "wide_rows": rows})


def checksum_of(data: bytes | memoryview) -> str:
    """The checksum of a file of rows, by its beginning: 8 hexadecimal digits."""
    return f"{crc32(data[:START_BYTES]):08x}"


def max_bytes(shards: int, samples: int) -> int:
    """Greatest length of a file of rows, in bytes."""
    return _MAX_HEAD_BYTES + 8 * (shards + samples)


class RowsFile(NamedTuple):
    """A file of rows.

    Attributes:
        ends: end of each shard's samples, counted over the view.
        rows: of each sample in its shard.
        offset: of the ends in the file, in bytes.
    """

    ends: Integers
    rows: npt.NDArray[Any]
    offset: int


def unpack_rows(data: bytes | memoryview, *, counts: Sequence[int] | None, file_url: str) -> RowsFile:
    """The rows in a file with the contents ``data``.

    Args:
        data: the file.
        counts: number of samples of each shard; None: the rows are not compared with the shards.
        file_url: its name in errors.

    Raises:
        SpecError: it is damaged, or of other shards.
    """

    def broken(what: str) -> SpecError:
        return SpecError(
            f"{file_url}: as the rows of a view, this file {what}; save the view again", path="rows", url=file_url
        )

    unpacked = _ROWS.unpack(data, broken)
    columns = unpacked.columns
    ends = np.asarray(columns["ends"], np.int64)
    rows: npt.NDArray[Any] = np.asarray(columns["wide_rows"] if len(columns["wide_rows"]) else columns["rows"])
    if counts is not None and len(ends) != len(counts):
        raise broken(f"is of {len(ends)} shards, and the index has {len(counts)}")
    if counts is not None and not _are_rows(ends, rows, np.asarray(counts, np.int64)):
        raise broken("names rows that its shards do not have, or not in order")
    return RowsFile(ends, rows, unpacked.start)


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


def _samples(_: Any, columns: Sections) -> int:
    return len(columns["rows"]) + len(columns["wide_rows"])


_ROWS = Format(
    "rows",
    1,
    NoHeader,
    {"ends": "i8", "rows": "u4?", "wide_rows": "i8?"},
    (
        Invariant("contradicts itself", lambda _, columns: not (len(columns["rows"]) and len(columns["wide_rows"]))),
        ends_at("ends", _samples),
    ),
)

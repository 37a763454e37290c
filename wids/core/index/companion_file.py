"""Companions in an index: other lists of shards, whose fields are further fields of the same samples. Pure.

JSON form, beside the other keys of an index or a view::

    "companions": [{"index": URL, "on": "row" | "key", "prefix": TEXT, "missing": "error" | "skip" | "none",
                    "fields": [EXTENSION, ...], "known_fields": [EXTENSION, ...], "nsamples": N,
                    "fingerprint": DIGEST, "contents": {KIND: DIGEST}, "of": DIGEST,
                    "rows": URL, "rows_checksum": CRC}, ...]

``index`` and ``rows`` are relative to the file. Only ``index`` has to be there; by key, ``rows`` as well, and with
``rows`` ``nsamples``. ``fields`` are those that are taken;
without them all are. ``known_fields`` say which its samples have; without these, its own index (``"fields"``) says so,
or else its first shard. ``nsamples``, ``fingerprint`` and ``contents`` are those of the companion when it was joined,
``of`` the fingerprint of the base's shards then. The file of rows is a
`wids.core.files.container`, without which sample i has the fields of the companion's sample i::

    rows   u4 x samples, or wide_rows i8 x samples: for each sample of the base's shards the companion's; at their
           greatest number, or -1: none
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
import numpy as np

from wids.core.files.container import Format, Invariant, NoHeader
from wids.core.index import checks
from wids.core.index.view_file import KEY, checksum_of
from wids.core.place import Place
from wids.errors import SpecError, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from wids.core.index.selection import Integers
    from wids.core.transport.session import Session

SUFFIX = ".joined"
On: TypeAlias = Literal["row", "key"]
Missing: TypeAlias = Literal["error", "skip", "none"]
NO_ROW = np.uint32(0xFFFFFFFF)
PREFIX = re.compile(r"[\w.-]*")
# More than a header of rows has.
_MAX_HEAD_BYTES = 1024


class CompanionEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A companion as an index names it.

    Attributes:
        index: the URL or path of its index.
        on: the way in which its samples were found.
        prefix: stands before the extensions of its members, as in ``.clip.npy``; "": nothing does.
        missing: of samples that it lacks.
        fields: the extensions of its members that are fields; None: all.
        known_fields: the extensions that its members have; None: not known.
        nsamples: number of its samples when it was joined; None: not known.
        fingerprint: of its shards then; None: not known.
        contents: likewise, of their contents.
        of: fingerprint of the base's shards then; None: not known.
        rows: the file of rows; None: sample i is its sample i.
        rows_checksum: of that file; see `wids.core.index.view_file.checksum_of`.
        named_by: the URL or path of the index that names it, which says who may get its credentials; never written.
    """

    index: str
    on: On = "row"
    prefix: str = ""
    missing: Missing = "error"
    fields: tuple[str, ...] | None = None
    known_fields: tuple[str, ...] | None = None
    nsamples: int | None = None
    fingerprint: str | None = None
    contents: dict[str, str] = {}
    of: str | None = None
    rows: str | None = None
    rows_checksum: str | None = None
    named_by: str | None = None

    def session(self, session: Session) -> Session:
        """The session of a program for what this names: of a remote index, with options for its own server alone."""
        place = Place(self.named_by or "")
        return session if place.is_local else session.narrowed(place.origins)


def parse_companions(header: dict[str, Any], index_url: str | None) -> list[CompanionEntry]:
    """The companions that an index names.

    Raises:
        SpecError: they are malformed.
    """
    raw = header.get(KEY)
    entries: list[CompanionEntry] = checks.convert(
        [] if raw is None else raw, list[CompanionEntry], path=KEY, index_url=index_url
    )
    for k, entry in enumerate(entries):
        _check_entry(entry, f"{KEY}[{k}]", index_url)
    return entries


def _check_entry(entry: CompanionEntry, path: str, index_url: str | None) -> None:
    if entry.on == "key" and entry.rows is None:
        checks.fail(index_url, f"{path}.rows", "is missing, and says which samples belong together; join again")
    if entry.rows is not None and entry.nsamples is None:
        checks.fail(index_url, f"{path}.nsamples", "is missing, and bounds the rows; join again")
    if not PREFIX.fullmatch(entry.prefix):
        checks.fail(index_url, f"{path}.prefix", f"is {shown(entry.prefix)}; it is letters, digits, -, _ and dots")
    for name in ("fields", "known_fields"):
        for k, extension in enumerate(getattr(entry, name) or ()):
            if not extension.startswith("."):
                checks.fail(index_url, f"{path}.{name}[{k}]", f"is {shown(extension)}; extensions have their dot")


def resolve_companions(
    header: dict[str, Any], index_url: str | None, forbid: Callable[[str, str], None]
) -> dict[str, Any]:
    """The header of an index with the places of its companions resolved.

    Args:
        header: the top-level keys.
        index_url: URL or path of the index; None: it was passed open.
        forbid: called with the path in the JSON text and the URL of each; raises where it is not allowed.

    Raises:
        SpecError: they are malformed.
    """
    if header.get(KEY) is None:
        return header
    home, companions = Place(index_url or "").directory, []
    for k, entry in enumerate(parse_companions(header, index_url)):
        places = {}
        for name in ("index", "rows"):
            written = getattr(entry, name)
            if written is not None:
                path = f"{KEY}[{k}].{name}"
                places[name] = url = checks.resolve(home, written, path, index_url)
                forbid(path, url)
        companions.append({**header[KEY][k], **places, "named_by": index_url})
    return {**header, KEY: companions}


def pack_joined(rows: npt.NDArray[Any]) -> list[bytes | memoryview]:
    """The file of rows, in parts."""
    return _ROWS.pack(NoHeader(), {"rows" if rows.dtype.itemsize == 4 else "wide_rows": rows})


def narrow(rows: Integers, nsamples: int) -> npt.NDArray[Any]:
    """Rows, -1 for none, in four bytes each where the companion's ``nsamples`` allow it."""
    return rows.astype(np.uint32) if nsamples < int(NO_ROW) else rows


def empty_rows(samples: int, nsamples: int) -> npt.NDArray[Any]:
    """Rows for so many samples of a base, none of which has one of the companion's ``nsamples`` yet."""
    return np.full(samples, -1, np.int64) if nsamples >= int(NO_ROW) else np.full(samples, NO_ROW, np.uint32)


def unpack_joined(
    data: bytes | memoryview, *, samples: int, nsamples: int | None, file_url: str, checksum: str | None = None
) -> tuple[npt.NDArray[Any], int]:
    """(rows, their offset in the file) of a file of rows.

    Args:
        data: the file.
        samples: number of samples of the base's shards.
        nsamples: number of the companion's; None: not compared.
        file_url: its name in errors.
        checksum: of the file that belongs to the companion; None: any.

    Raises:
        SpecError: it is damaged, or of others.
    """

    def broken(what: str) -> SpecError:
        return SpecError(f"{file_url}: as the rows of a companion, this file {what}; join again", url=file_url)

    unpacked = _ROWS.unpack(data, broken)
    columns = unpacked.columns
    rows: npt.NDArray[Any] = np.asarray(columns["wide_rows"] if len(columns["wide_rows"]) else columns["rows"])
    if len(rows) != samples:
        raise broken(f"has {len(rows):,} rows, and the shards have {samples:,} samples")
    if checksum is not None and checksum_of(data) != checksum:
        raise broken("is that of another join")
    if nsamples is not None:
        for lo in range(0, len(rows), 1 << 20):
            part = rows[lo : lo + (1 << 20)]
            there = part[part != (NO_ROW if rows.dtype.itemsize == 4 else -1)]
            if len(there) and not 0 <= int(there.min()) <= int(there.max()) < nsamples:
                raise broken(f"names samples that the companion does not have (it has {nsamples:,})")
    return rows, unpacked.start


def max_joined_bytes(samples: int) -> int:
    """Greatest length of a file of rows, in bytes."""
    return _MAX_HEAD_BYTES + 8 * samples


_ROWS = Format(
    "joined",
    1,
    NoHeader,
    {"rows": "u4?", "wide_rows": "i8?"},
    (Invariant("contradicts itself", lambda _, columns: not (len(columns["rows"]) and len(columns["wide_rows"]))),),
)

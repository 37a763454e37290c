"""A compiled index on disk (``.widsx``): the columns of a shard list, to be mapped instead of parsed.

Pure: bytes in, columns over them out; a `wids.core.files.container`, whose header is `CompiledHeader`. The sections, of
n shards and k shards that have keys of their own::

    counts, ends, filesizes  i8 x n          samples of each shard; their running sums; bytes, -1: unknown
    md5s, crc32s, known      u1 x 16n, 4n, n digests of each; bits of the known ones: 1 md5, 2 CRC-32
    url_ends, urls           i8 x n, u1      the end of each URL, and all URLs
    hashes, hashed           u8, i8 x n      hashes of the URLs, ascending, and the shard of each hash
    key_rows, key_ends, keys i8 x k, i8, u1  the shards with keys of their own, the ends, the keys in JSON

At each opening, counts, ends and offsets are compared with each other and with the file's length (some milliseconds for
a million shards), so that no wrong byte makes a read leave the file. The checksum of the sections, which takes ten
times as long, is compared unless the caller has done so: once for each machine (`wids.core.index.loading`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from wids.core.files.container import START_BYTES, Format, Invariant, ascending, ends, lengths, sums, within
from wids.core.index.fingerprint import contents, fingerprint_of
from wids.core.index.packed_columns import SparseKeys, Texts, damaged, join_texts, sort_hashes
from wids.core.index.shardlist import CRC32_BYTES, MD5_BYTES, ShardList, Summary
from wids.core.place import Place
from wids.core.shard import MAX_COUNT
from wids.core.transport.urls import MAX_SHARDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wids.core.files.container import Sections

SUFFIX = ".widsx"
KIND, VERSION = "widsx", 4
IDENTITY_BYTES = START_BYTES
# For the fingerprint of relative URLs: their directory does not matter if these two give the same.
_HOMES = ("/a", "gs://b/c/d", "http://b/c/d")


class CompiledFrom(NamedTuple):
    """The sources of a compiled index, beside its text.

    Attributes:
        texts: URL and digest of each sub-dataset's text.
        named: the servers that the caller's own texts name; see `wids.core.index.spec.parse_index`.
    """

    texts: tuple[tuple[str, str], ...] = ()
    named: tuple[str, ...] = ()


class Compiled(NamedTuple):
    """An open compiled index.

    Attributes:
        shards: mapped.
        source: see `CompiledFrom`.
        identity: of this file among all others.
    """

    shards: ShardList
    source: CompiledFrom
    identity: bytes


def is_compiled(url: str) -> bool:
    """True if a path or URL is that of a compiled index, by its name."""
    return Place(url).name.endswith(SUFFIX)


def pack(
    shards: ShardList,
    *,
    texts: Sequence[str] | None = None,
    packs: list[tuple[int, tuple[str, ...]]] | None = None,
    source: CompiledFrom | None = None,
) -> list[bytes | memoryview]:
    """The on-disk form, in parts.

    Args:
        shards: with known counts.
        texts: the shards' URLs in the form to write, relative ones relative to the place of the file. None: they
            are written as they are, and are complete.
        packs: the shards' packs of member tables, in the same form; None: as they are.
        source: see `CompiledFrom`; by default its own text alone.

    Raises:
        TypeError, ValueError: the index has values that JSON does not have.
    """
    n, is_resolved = len(shards), texts is None
    texts = list(shards.urls if texts is None else texts)
    hashes, hashed = sort_hashes(texts)
    extras = sorted(shards.extras.items())
    url_ends, url_blob = join_texts(texts)
    key_ends, key_blob = join_texts([json.dumps(keys) for _, keys in extras])
    independent = texts if is_resolved else [text for text in texts if _is_own(text)]
    header = CompiledHeader(
        header=shards.header,
        starts=list(shards.starts),
        defaults=list(shards.defaults),
        packs=list(shards.packs if packs is None else packs),
        is_resolved=is_resolved,
        fingerprint=_fingerprint(shards, texts, is_moving=len(independent) < n),
        contents=contents(shards),
        source=source or CompiledFrom(),
        total=shards.whole_ends()[-1] if n else 0,
        nlocal=sum(Place(url).is_local for url in independent),
        ndependent=n - len(independent),
    )
    columns: dict[str, Any] = {
        **shards.sections,
        "url_ends": url_ends,
        "hashes": hashes,
        "hashed": hashed,
        "key_rows": np.array([k for k, _ in extras], "<i8"),
        "key_ends": key_ends,
        "urls": url_blob,
        "keys": key_blob,
    }
    return _FORMAT.pack(header, columns)


def _is_own(text: str) -> bool:
    """True if a URL does not depend on the place of the file."""
    return str(Place("h").join(text)) == text and not text.startswith("/")


def _fingerprint(shards: ShardList, texts: Sequence[str], *, is_moving: bool) -> str:
    if not is_moving:
        return fingerprint_of(texts, shards.nsamples)
    fingerprints = {fingerprint_of([str(Place(home).join(text)) for text in texts], shards.nsamples) for home in _HOMES}
    return fingerprints.pop() if len(fingerprints) == 1 else ""


def unpack(data: bytes | memoryview, *, file_url: str, home: str | None, is_whole: bool = True) -> Compiled:
    """Read the on-disk form; the shards' columns are views of ``data``.

    Args:
        data: the file's bytes.
        file_url: its name in errors.
        home: the base of relative URLs of shards; those of packs of member tables are returned as written.
        is_whole: the checksum of the sections was compared before; False: compare it here.

    Raises:
        SpecError: not a compiled index, another version, cut short, or damaged.
    """
    unpacked = _FORMAT.unpack(data, lambda what: damaged(file_url, what), is_checked=is_whole)
    header, columns = unpacked.header, unpacked.columns
    home = None if header.is_resolved else home or ""
    is_local = header.nlocal + (header.ndependent if Place(home or "").is_local else 0) == len(columns["counts"])
    shards = ShardList(
        sections=columns,
        header=header.header,
        extras=SparseKeys(columns["key_rows"], Texts(columns["key_ends"], columns["keys"], file_url=file_url)),
        starts=header.starts,
        defaults=header.defaults,
        packs=header.packs,
        home=home,
        file_url=file_url,
        summary=Summary(is_local=is_local, fingerprint=header.fingerprint, contents=header.contents),
    )
    return Compiled(shards, header.source, unpacked.identity)


class CompiledHeader(msgspec.Struct):
    """The header of a compiled index.

    Attributes:
        header: the index's top-level keys.
        starts: see `wids.core.index.shardlist.ShardList`.
        defaults: see there.
        packs: see there.
        is_resolved: the URLs are complete.
        fingerprint: of the shards; "": it depends on their place.
        contents: see `wids.core.index.fingerprint`.
        source: the texts that it was compiled from.
        total: number of samples.
        nlocal: number of shards on this machine's disk.
        ndependent: number of shards with relative URLs.
    """

    header: dict[str, Any]
    starts: list[int]
    defaults: list[dict[str, Any]]
    packs: list[tuple[int, tuple[str, ...]]]
    is_resolved: bool
    fingerprint: str
    contents: dict[str, str]
    source: CompiledFrom
    total: int
    nlocal: int
    ndependent: int


def _are_starts(header: CompiledHeader, columns: Sections) -> bool:
    """True if the starts of sub-datasets, and of packs, ascend."""
    n = len(columns["counts"])
    each = (header.starts, [k for k, _ in header.packs])
    are_sorted = all(sorted(starts) == starts and all(0 <= k <= n for k in starts) for starts in each)
    return are_sorted and len(header.starts) == len(header.defaults)


def _last(_: Any, columns: Sections) -> int:
    return len(columns["counts"]) - 1


def _shards(times: int) -> Any:
    return lambda _, columns: times * len(columns["counts"])


_FORMAT = Format(
    KIND,
    VERSION,
    CompiledHeader,
    {
        **dict.fromkeys(("counts", "ends", "filesizes"), "i8"),
        **dict.fromkeys(("md5s", "crc32s", "known"), "u1"),
        "url_ends": "i8",
        "hashes": "u8",
        **dict.fromkeys(("hashed", "key_rows", "key_ends"), "i8"),
        **dict.fromkeys(("urls", "keys"), "u1"),
    },
    (
        Invariant("lists no shards, or too many", lambda _, columns: 0 < len(columns["counts"]) <= MAX_SHARDS),
        lengths(
            {
                **dict.fromkeys(("filesizes", "known", "url_ends", "hashes", "hashed"), _shards(1)),
                "md5s": _shards(MD5_BYTES),
                "crc32s": _shards(CRC32_BYTES),
                "key_ends": lambda _, columns: len(columns["key_rows"]),
            }
        ),
        Invariant("contradicts its own header", _are_starts),
        sums("ends", "counts", lambda header, _: header.total),
        ends("url_ends", lambda _, columns: len(columns["urls"])),
        ends("key_ends", lambda _, columns: len(columns["keys"])),
        within("filesizes", -1, MAX_COUNT),
        within("hashed", 0, _last),
        within("key_rows", 0, _last),
        ascending("key_rows"),
    ),
)

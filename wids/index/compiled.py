"""A compiled index on disk (``.widsx``): the columns of a shard list, to be mapped instead of parsed.

Pure: bytes in, columns over them out. The format is in the README of this folder. Three checks: CRC-32 of the header,
and whether counts, ends and offsets agree with each other and with the file's length, each time it is opened (some
milliseconds for a million shards); CRC-32 of all the rest unless the caller has compared it before (it takes ten times
as long: once for each machine, `wids.indexes`). So no wrong byte makes a read leave the file, no file that was cut is
taken for a whole one, and no damage for an index.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import msgspec
import numpy as np

from wids.index import sections, urls
from wids.index.fingerprint import fingerprint_of
from wids.index.mapped_columns import Digests, Numbers, Places, SparseKeys, Texts, damaged, hash_of
from wids.index.shardlist import MAX_COUNT, MAX_SHARDS, Columns, Facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wids.index.shardlist import ShardList

SUFFIX = ".widsx"
MAGIC = b"\x89WIDSX\r\n"
VERSION = 3
_HEADER = struct.Struct("<8sII9QI4x")
IDENTITY_BYTES = _HEADER.size
_MD5_BYTES, _CRC32_BYTES = 16, 4
_HAS_MD5, _HAS_CRC32 = 1, 2
# Columns are checked so many rows at a time: what that takes is freed, and is little.
_CHECKED_ROWS = 1 << 16
# For the fingerprint of relative URLs: what they are relative to does not matter if these two give the same.
_HOMES = ("/a", "gs://b/c/d", "http://b/c/d")


class CompiledFrom(NamedTuple):
    """What an index was compiled from, beside its own text.

    Attributes:
        texts: URL and digest of each sub-dataset's text.
        named: the servers that the caller's own texts name; see `wids.index.spec.parse_index`.
    """

    texts: tuple[tuple[str, str], ...] = ()
    named: tuple[str, ...] = ()


class Compiled(NamedTuple):
    """A compiled index that was opened.

    Attributes:
        header: the index's top-level keys. columns: its shards. source: see there.
        identity: tells this file from others.
    """

    header: dict[str, Any]
    columns: Columns
    source: CompiledFrom
    identity: bytes


def is_compiled(place: str) -> bool:
    """Whether a path or URL is that of a compiled index, by its name."""
    return urls.basename_of(place).endswith(SUFFIX)


def pack(
    shards: ShardList,
    *,
    texts: Sequence[str] | None = None,
    packs: list[tuple[int, tuple[str, ...]]] | None = None,
    source: CompiledFrom | None = None,
) -> list[bytes | memoryview]:
    """The on-disk form, in parts.

    Args:
        shards: all of known counts.
        texts: the shards' URLs as they are to be written, relative ones relative to where the file will lie. None: they
            are written as they are, and taken as they stand.
        packs: the shards' packs of member tables as they are to be written, likewise; None: as they are.
        source: see there; by default its own text alone.

    Raises:
        TypeError, ValueError: the index has values that JSON does not have.
    """
    n, is_resolved = len(shards), texts is None
    texts = shards.urls if texts is None else texts
    counts = np.asarray(shards.nsamples, "<i8")
    ends = np.cumsum(counts, dtype="<i8")
    hashes = np.fromiter(map(hash_of, texts), "<u8", n)
    order = np.argsort(hashes, kind="stable")
    extras = sorted(shards.extras.items())
    url_ends, url_blob = _join(texts)
    key_ends, key_blob = _join([json.dumps(keys) for _, keys in extras])
    own = texts if is_resolved else [text for text in texts if _is_own(text)]
    meta = {
        "header": shards.header,
        "starts": shards.starts,
        "defaults": shards.defaults,
        "packs": shards.packs if packs is None else packs,
        "is_resolved": is_resolved,
        "fingerprint": _fingerprint(shards, texts, is_moving=len(own) < n),
        "source": source or CompiledFrom(),
    }
    parts = [
        json.dumps(meta).encode(),
        counts.tobytes(),
        ends.tobytes(),
        np.asarray(shards.filesizes, "<i8").tobytes(),
        _pack_digests(shards.md5sums, _MD5_BYTES),
        _pack_digests(shards.crc32s, _CRC32_BYTES),
        bytes(
            _HAS_MD5 * bool(md5) | _HAS_CRC32 * bool(crc)
            for md5, crc in zip(shards.md5sums, shards.crc32s, strict=True)
        ),
        url_ends,
        hashes[order].tobytes(),
        order.astype("<i8").tobytes(),
        np.array([k for k, _ in extras], "<i8").tobytes(),
        key_ends,
        url_blob,
        key_blob,
    ]
    body = sections.pad(parts)
    checksum = 0
    for part in body[1:]:
        checksum = crc32(part, checksum)
    facts = (
        _HEADER.size + sum(map(len, body)),
        n,
        int(ends[-1]) if n else 0,
        sum(map(urls.is_local, own)),
        n - len(own),
        len(extras),
        *(len(parts[k]) for k in (0, -2, -1)),
    )
    rest = _HEADER.pack(MAGIC, VERSION, 0, *facts, checksum)[16:]
    head = crc32(body[0], crc32(rest))
    return [MAGIC + struct.pack("<II", VERSION, head) + rest, *body]


def _pack_digests(digests: Sequence[str], width: int) -> bytes:
    unknown = "00" * width
    return bytes.fromhex("".join([digest or unknown for digest in digests]))


def _is_own(text: str) -> bool:
    """Whether a URL is the same wherever the file lies."""
    return urls.join("h", text) == text and not text.startswith("/")


def _join(texts: Sequence[str]) -> tuple[bytes, bytes]:
    """(ends, all texts one after another)."""
    parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    return np.cumsum(np.fromiter(map(len, parts), "<i8", len(parts)), dtype="<i8").tobytes(), b"".join(parts)


def _fingerprint(shards: ShardList, texts: Sequence[str], *, is_moving: bool) -> str:
    if not is_moving:
        return fingerprint_of(texts, shards.nsamples)
    found = {fingerprint_of([urls.join(home, text) for text in texts], shards.nsamples) for home in _HOMES}
    return found.pop() if len(found) == 1 else ""


def unpack(data: bytes | memoryview, *, place: str, home: str | None, is_whole: bool = True) -> Compiled:
    """Read the on-disk form; the columns are views of ``data``.

    Args:
        data: the file's bytes.
        place: what errors call it.
        home: what relative URLs of shards are relative to; those of packs of member tables are given as written.
        is_whole: False: compare the checksum of all behind the header, too.

    Raises:
        SpecError: not a compiled index, another version, cut short, or damaged.
    """
    view = memoryview(data)
    if len(view) < _HEADER.size or view[:8] != MAGIC:
        raise damaged(place, "is none, or was cut short")
    (_, version, head, length, n, total, nlocal, ndependent, nextra, *lengths, checksum) = _HEADER.unpack_from(view)
    if version != VERSION:
        raise damaged(place, f"has version {version}, and this wids reads version {VERSION}")
    meta_bytes, url_bytes, key_bytes = lengths
    if length != len(view):
        raise damaged(place, f"has {len(view)} of {length} bytes")
    start = _HEADER.size + meta_bytes
    if start > length or crc32(view[_HEADER.size : start], crc32(view[16 : _HEADER.size])) != head:
        raise damaged(place, "is damaged (the checksum of its header is another)")
    meta = _parse_meta(bytes(view[_HEADER.size : start]), n, place)
    if not is_whole and crc32(view[start:]) != checksum:
        raise damaged(place, "is damaged (the checksum of its columns is another)")
    start += -start % 8
    digests = _MD5_BYTES * n, _CRC32_BYTES * n, n
    widths = (8 * n, 8 * n, 8 * n, *digests, 8 * n, 8 * n, 8 * n, 8 * nextra, 8 * nextra, url_bytes, key_bytes)
    found, end = sections.cut(view, start, widths)
    if end != length or not 0 < n <= MAX_SHARDS or nextra > n:
        raise damaged(place, "contradicts its own header")
    counts, ends, filesizes, url_ends, hashes, rows, key_rows, key_ends = (
        sections.native(found[k], code) for k, code in zip((0, 1, 2, 6, 7, 8, 9, 10), "qqqqQqqq", strict=True)
    )
    if not (
        _are_counts(counts, ends, total)
        and _is_ascending(url_ends, url_bytes)
        and _is_ascending(key_ends, key_bytes)
        and _are_within(filesizes, -1, MAX_COUNT)
        and _are_within(rows, 0, n - 1)
        and _are_within(key_rows, 0, n - 1)
    ):
        raise damaged(place, "points outside itself, or contradicts itself")
    home = None if meta.is_resolved else home or ""
    columns = Columns(
        urls=Places(Texts(url_ends, found[11], place=place), hashes, rows, home=home),
        nsamples=Numbers(counts),
        ends=ends,
        filesizes=Numbers(filesizes),
        md5sums=Digests(found[3], _MD5_BYTES, found[5], _HAS_MD5),
        crc32s=Digests(found[4], _CRC32_BYTES, found[5], _HAS_CRC32),
        extras=SparseKeys(key_rows, Texts(key_ends, found[12], place=place)),
        starts=meta.starts,
        defaults=meta.defaults,
        packs=meta.packs,
        facts=Facts(
            is_local=nlocal + (ndependent if urls.is_local(home or "") else 0) == n, fingerprint=meta.fingerprint
        ),
    )
    return Compiled(meta.header, columns, meta.source, bytes(view[: _HEADER.size]))


class _Meta(msgspec.Struct):
    """What the header has as JSON."""

    header: dict[str, Any]
    starts: list[int]
    defaults: list[dict[str, Any]]
    is_resolved: bool
    fingerprint: str
    source: CompiledFrom
    packs: list[tuple[int, tuple[str, ...]]] = []


def _parse_meta(data: bytes, n: int, place: str) -> _Meta:
    try:
        meta = msgspec.convert(json.loads(data), _Meta)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise damaged(place, f"has a header that is none ({error})") from error
    is_ascending = all(
        all(0 <= k <= n for k in starts) and sorted(starts) == starts
        for starts in (meta.starts, [k for k, _ in meta.packs])
    )
    if not is_ascending or len(meta.starts) != len(meta.defaults):
        raise damaged(place, "contradicts its own header")
    return meta


def _are_counts(counts: memoryview, ends: memoryview, total: int) -> bool:
    """Whether these are numbers of samples, and where each shard's samples end."""
    before = 0
    for lo in range(0, len(counts), _CHECKED_ROWS):
        now, last = np.asarray(counts[lo : lo + _CHECKED_ROWS]), np.asarray(ends[lo : lo + _CHECKED_ROWS])
        steps = np.diff(last, prepend=before)
        # Neither is negative, so that no sum of them is one that did not fit.
        if now.min() < 0 or last.min() < before or (steps != now).any():
            return False
        before = int(last[-1])
    return before == total


def _is_ascending(ends: memoryview, total: int) -> bool:
    """Whether texts of so many bytes in all can end there."""
    before = 0
    for lo in range(0, len(ends), _CHECKED_ROWS):
        last = np.asarray(ends[lo : lo + _CHECKED_ROWS])
        if last[0] < before or (last[1:] < last[:-1]).any():
            return False
        before = int(last[-1])
    return before == total


def _are_within(numbers: memoryview, lowest: int, highest: int) -> bool:
    for lo in range(0, len(numbers), _CHECKED_ROWS):
        part = np.asarray(numbers[lo : lo + _CHECKED_ROWS])
        if part.min() < lowest or part.max() > highest:
            return False
    return True

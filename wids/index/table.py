"""Member table: where each sample's members lie in one shard, and its on-disk form (``.widx``).

Rules: pure; immutable once built; order is first appearance in the archive and never changes. The on-disk
form is little-endian, has no pickle in it, and may be memory-mapped: every section starts at a multiple of 8.

On-disk form, version 1::

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
                    keys           raw bytes (UTF-8 with whatever else the archive held)
                    etag           UTF-8, the server's entity tag for the shard
"""

from __future__ import annotations

import struct
import sys
from array import array
from typing import TYPE_CHECKING, Literal, TypeAlias, cast
from zlib import crc32

import msgspec
import numpy as np

from wids.errors import DuplicateMemberError, TableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from wids.index.tar import Member

    CustomRule: TypeAlias = Callable[[str], "tuple[str, str] | None"]
    _Rule: TypeAlias = Callable[[bytes], "tuple[bytes, bytes] | None"]

KeyRule: TypeAlias = "Literal['first-dot', 'last-dot'] | CustomRule"
Group: TypeAlias = Literal["adjacent", "key"]

SUFFIX = ".widx"
_MAGIC = b"\x89WIDX\r\n\x1a"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQQq16sQQIIIIQ")
_UNKNOWN_MD5 = bytes(16)


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What ties a table to the bytes of one shard. ``None`` is unknown.

    Attributes:
        size: bytes.
        mtime_ns: modification time in nanoseconds of the file that was read.
        md5: hexadecimal digest of the whole shard.
        etag: the server's entity tag, as sent.
    """

    size: int
    mtime_ns: int | None = None
    md5: str | None = None
    etag: str | None = None

    def is_same(self, other: Identity) -> bool:
        """Whether both describe the same bytes: equal size, one more fact known to both, and none that differs.

        A digest known to both decides alone; mtime only stands in where there is none.
        """
        if self.size != other.size:
            return False
        if self.md5 and other.md5:
            return self.md5 == other.md5
        facts = [(self.mtime_ns, other.mtime_ns), (self.etag, other.etag)]
        known = [a == b for a, b in facts if a is not None and b is not None]
        return bool(known) and all(known)


def first_dot(name: bytes) -> tuple[bytes, bytes] | None:
    """Split a member path at the first dot of its basename: ``a.b/c.seg.png`` -> ``a.b/c``, ``.seg.png``.

    ``None`` (not part of a sample) for a basename without a dot, and for one that starts with it (``.DS_Store``,
    ``._x.jpg``), as webdataset has it.
    """
    slash = name.rfind(b"/") + 1
    dot = name.find(b".", slash)
    return (name[:dot], name[dot:]) if dot > slash else None


def last_dot(name: bytes) -> tuple[bytes, bytes] | None:
    """Split at the last dot of the basename: ``a/v1.2.jpg`` -> ``a/v1.2``, ``.jpg``; else as `first_dot`."""
    slash = name.rfind(b"/") + 1
    dot = name.rfind(b".", slash)
    return (name[:dot], name[dot:]) if dot > slash and name[slash] != 0x2E else None


def _custom(rule: CustomRule) -> _Rule:
    def split(name: bytes) -> tuple[bytes, bytes] | None:
        parts = rule(decode_name(name))
        return None if parts is None else (encode_name(parts[0]), encode_name(parts[1]))

    return split


_RULES: dict[str, _Rule] = {"first-dot": first_dot, "last-dot": last_dot}


def parse_rule(rule: KeyRule) -> _Rule:
    """Turn a ``key_rule`` argument into a function on raw names.

    Raises:
        ValueError: not a known name and not callable.
    """
    if callable(rule):
        return _custom(rule)
    if rule in _RULES:
        return _RULES[rule]
    raise ValueError(
        f"key_rule is {rule!r}; it is one of {sorted(_RULES)} or a function name -> (key, extension) | None"
    )


def is_standard(rule: KeyRule, group: Group) -> bool:
    """Whether this is the grouping that saved tables hold."""
    return rule == "first-dot" and group == "adjacent"


def decode_name(raw: bytes) -> str:
    """Bytes of a member name as text; what is not UTF-8 survives as surrogate escapes."""
    return raw.decode("utf-8", "surrogateescape")


def encode_name(name: str) -> bytes:
    """The inverse of `decode_name`."""
    return name.encode("utf-8", "surrogateescape")


class MemberTable:
    """Offsets, sizes, extensions and keys of one shard's samples.

    Attributes:
        identity: the shard this table belongs to.
        nsamples, nmembers: counts.
        nrepeated: samples whose key had appeared before, not adjacent (``group="key"`` merges them).
        extensions: the distinct extensions, each with its leading dot.
        starts: ``starts[r] .. starts[r + 1]`` are the members of sample ``r``; indexable, gives ints.
        offsets, sizes: of each member's data in the shard, in bytes; indexable, give ints.
        extension_ids: of each member, into ``extensions``.
        key_text: the keys one after another: str if all are ASCII (a byte offset is then a position), else raw bytes.
        key_ends: sample ``r``'s key is ``key_text[key_ends[r] : key_ends[r + 1]]``.
    """

    __slots__ = (
        "_rows",
        "extension_ids",
        "extensions",
        "identity",
        "key_ends",
        "key_text",
        "nmembers",
        "nrepeated",
        "nsamples",
        "offsets",
        "sizes",
        "starts",
    )

    def __init__(
        self,
        *,
        identity: Identity,
        columns: Sequence[memoryview],
        extensions: tuple[str, ...],
        keys: bytes | memoryview,
        nrepeated: int,
    ) -> None:
        self.identity = identity
        self.offsets, self.sizes, self.extension_ids, self.starts, self.key_ends = columns
        self.extensions = extensions
        raw = bytes(keys)
        self.key_text: str | bytes = raw.decode("ascii") if raw.isascii() else raw
        self.nmembers = len(self.offsets)
        self.nsamples = len(self.starts) - 1
        self.nrepeated = nrepeated
        self._rows: dict[str, list[int]] | None = None

    def __len__(self) -> int:
        return self.nsamples

    def __repr__(self) -> str:
        return f"<MemberTable of {self.nsamples} samples, {self.nmembers} members, {self.identity.size} bytes>"

    @property
    def nbytes(self) -> int:
        """Memory that the columns and keys take, in bytes."""
        columns = (self.offsets, self.sizes, self.extension_ids, self.starts, self.key_ends)
        return len(self.key_text) + sum(column.nbytes for column in columns)

    def key(self, row: int) -> str:
        """The key of sample ``row`` (0 <= row < nsamples)."""
        key = self.key_text[self.key_ends[row] : self.key_ends[row + 1]]
        return key if isinstance(key, str) else decode_name(key)

    def keys(self) -> Iterator[str]:
        """All keys, in sample order."""
        return map(self.key, range(self.nsamples))

    def rows_of(self, key: str) -> list[int]:
        """The samples with this key, in order. The first call costs O(nsamples)."""
        if self._rows is None:
            rows: dict[str, list[int]] = {}
            for row, name in enumerate(self.keys()):
                rows.setdefault(name, []).append(row)
            self._rows = rows
        return list(self._rows.get(key, ()))

    def members(self, row: int) -> list[tuple[str, int, int]]:
        """(extension, data offset, size in bytes) of each member of sample ``row``."""
        span = range(self.starts[row], self.starts[row + 1])
        return [(self.extensions[self.extension_ids[m]], self.offsets[m], self.sizes[m]) for m in span]

    def with_identity(self, identity: Identity) -> MemberTable:
        """The same table, tied to another description of the same bytes."""
        return MemberTable(
            identity=identity,
            columns=(self.offsets, self.sizes, self.extension_ids, self.starts, self.key_ends),
            extensions=self.extensions,
            keys=self._raw_keys(),
            nrepeated=self.nrepeated,
        )

    def _raw_keys(self) -> bytes:
        return self.key_text.encode("ascii") if isinstance(self.key_text, str) else self.key_text

    def to_bytes(self) -> bytes:
        """The on-disk form."""
        extensions = b"".join(encode_name(extension) + b"\0" for extension in self.extensions)
        etag, keys = (self.identity.etag or "").encode(), self._raw_keys()
        columns = (self.offsets, self.sizes, self.extension_ids, self.starts, self.key_ends)
        parts = [_little(column) for column in columns] + [extensions, keys, etag]
        body = b"".join(part + bytes(-len(part) % 8) for part in parts)
        md5 = bytes.fromhex(self.identity.md5) if self.identity.md5 else _UNKNOWN_MD5
        header = _HEADER.pack(
            _MAGIC,
            _VERSION,
            0,
            _HEADER.size + len(body),
            self.identity.size,
            -1 if self.identity.mtime_ns is None else self.identity.mtime_ns,
            md5,
            self.nmembers,
            self.nsamples,
            len(self.extensions),
            self.nrepeated,
            len(etag),
            len(extensions),
            len(keys),
        )
        checksum = crc32(body, crc32(header[16:]))
        return header[:12] + checksum.to_bytes(4, "little") + header[16:] + body


def parse_table(data: bytes, *, shard: str) -> MemberTable:
    """Read a table from its on-disk form; the result keeps ``data`` alive and copies only the keys.

    Args:
        data: the whole file.
        shard: what errors call the shard.

    Raises:
        TableError: not a table, another version, cut short, or damaged. The remedy is to build it anew.
    """

    def broken(what: str) -> TableError:
        return TableError(
            f"{shard}: its saved member table {what}; delete the {SUFFIX} file to rebuild it", shard=shard
        )

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
    at, sections = _HEADER.size, []
    for width in (*widths, extension_bytes, key_bytes, etag_bytes):
        sections.append(view[at : at + width])
        at += width + -width % 8
    if at != length:
        raise broken("contradicts its own header")
    columns = [_native(section, code) for section, code in zip(sections[:5], "QQIIQ", strict=True)]
    extensions = tuple(sys.intern(decode_name(raw)) for raw in bytes(sections[5]).split(b"\0")[:-1])
    if len(extensions) != nextensions or not _is_consistent(columns, size, nextensions, key_bytes):
        raise broken("points outside its shard or itself")
    identity = Identity(
        size=size,
        mtime_ns=None if mtime_ns < 0 else mtime_ns,
        md5=None if md5 == _UNKNOWN_MD5 else md5.hex(),
        etag=str(sections[7], "utf-8", "replace") or None,
    )
    return MemberTable(identity=identity, columns=columns, extensions=extensions, keys=sections[6], nrepeated=nrepeated)


def build_table(  # noqa: C901 - one loop: a call in it costs a tenth of the 2 us a member may take
    members: Iterable[Member],
    *,
    identity: Identity,
    shard: str,
    rule: KeyRule = "first-dot",
    group: Group = "adjacent",
) -> MemberTable:
    """Group the members of one shard into samples.

    Args:
        members: as `wids.index.tar.scan` yields them.
        identity: what the table is tied to.
        shard: what errors call the shard.
        rule: how a member path splits into key and extension; members for which it gives None are left out.
        group: ``"adjacent"``: members of a sample stand together, and a key that comes back later starts another
            sample (counted in ``nrepeated``); ``"key"``: all members with a key are one sample.

    Raises:
        TarError: from ``members``.
        DuplicateMemberError: two members of one sample have the same extension.
    """
    split = parse_rule(rule)
    if group not in ("adjacent", "key"):
        raise ValueError(f"group is {group!r}; it is 'adjacent' or 'key'")
    is_merging = group == "key"
    offsets, sizes, ids, starts = array("Q"), array("Q"), array("I"), array("I")
    known: dict[bytes, int] = {}
    rows: dict[bytes, int] = {}
    keys: list[bytes] = []
    owners = array("I")  # of each member its sample, and
    fields: list[set[int]] = []  # of each sample its extension ids: kept only to merge
    last: bytes | None = None
    here: set[int] = set()
    nrepeated = 0
    for name, _, offset, size in members:
        parts = split(name)
        if parts is None:
            continue
        key, extension = parts
        number = known.setdefault(extension, len(known))
        if key != last:
            last = key
            if is_merging and key in rows:
                here = fields[rows[key]]
            else:
                nrepeated += key in rows
                rows[key] = len(keys)
                keys.append(key)
                starts.append(len(offsets))
                here = set()
                if is_merging:
                    fields.append(here)
        if number in here:
            _raise_duplicate(shard, key, extension, offset)
        here.add(number)
        offsets.append(offset)
        sizes.append(size)
        ids.append(number)
        if is_merging:
            owners.append(rows[key])
    starts.append(len(offsets))
    if is_merging:
        offsets, sizes, ids, starts = _by_owner(owners, offsets, sizes, ids, len(keys))
    ends = array("Q", [0])
    total = 0
    for key in keys:
        total += len(key)
        ends.append(total)
    return MemberTable(
        identity=identity,
        columns=[memoryview(column) for column in (offsets, sizes, ids, starts, ends)],
        extensions=tuple(sys.intern(decode_name(extension)) for extension in known),
        keys=b"".join(keys),
        nrepeated=nrepeated,
    )


def _by_owner(
    owner_of: array[int], offsets: array[int], sizes: array[int], ids: array[int], nsamples: int
) -> tuple[array[int], array[int], array[int], array[int]]:
    """Bring the members of each sample together, in archive order within it."""
    owners = np.asarray(owner_of)
    order = np.argsort(owners, kind="stable")
    starts = np.zeros(nsamples + 1, np.uint32)
    np.cumsum(np.bincount(owners, minlength=nsamples), out=starts[1:])

    def sort(column: array[int]) -> array[int]:
        return array(column.typecode, np.asarray(column)[order].tobytes())

    return sort(offsets), sort(sizes), sort(ids), array("I", starts.tobytes())


def _is_consistent(columns: Sequence[memoryview], size: int, nextensions: int, key_bytes: int) -> bool:
    offsets, sizes, ids, starts, ends = (np.asarray(column) for column in columns)
    if starts[0] != 0 or starts[-1] != len(offsets) or ends[0] != 0 or ends[-1] != key_bytes:
        return False
    is_inside = bool((sizes <= size).all() and (offsets <= np.uint64(size) - sizes).all())
    return is_inside and bool(
        (ids < nextensions).all() and (starts[1:] > starts[:-1]).all() and (ends[1:] >= ends[:-1]).all()
    )


def _little(column: memoryview) -> bytes:
    if sys.byteorder == "little":
        return column.tobytes()
    return np.asarray(column).byteswap().tobytes()


def _native(section: memoryview, code: str) -> memoryview:
    if sys.byteorder == "little":
        return section.cast(cast("Literal['Q', 'I']", code))
    return memoryview(array(code, np.frombuffer(section, np.dtype(code)).byteswap().tobytes()))


def _raise_duplicate(shard: str, key: bytes, extension: bytes, offset: int) -> None:
    name, field = decode_name(key), decode_name(extension)
    raise DuplicateMemberError(
        f"{shard}: sample {name!r} has two members {field!r} (the second one's data is at byte {offset}), and one "
        "would hide the other. Write the shard again without the repeat, or choose another key_rule",
        shard=shard,
        key=name,
        field=field,
        offset=offset,
    )

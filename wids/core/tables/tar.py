"""Read the headers of a tar archive in any dialect, in one pass, and yield its members.

Pure: bytes come through ``read(offset, size)``. Only files are yielded, names stay bytes. A hard link to an earlier
file is that file under another name. A member of a sample that is no file (a symbolic link, a device), or not one byte
range, and an archive that ends too early, are typed errors with shard and byte offset, never a silently shorter list.
Where dialects leave room, stdlib ``tarfile`` is followed.
"""

from __future__ import annotations

import contextlib
import posixpath
from typing import TYPE_CHECKING, NoReturn, TypeAlias
from zlib import adler32

from wids.core.tables import headers
from wids.core.tables.keys import first_dot
from wids.errors import (
    CompressedShardError,
    CorruptHeaderError,
    EmptyShardError,
    TruncatedShardError,
    UnsupportedMemberError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from wids.core.tables.keys import Split

    Read = Callable[[int, int], bytes]

BLOCK = headers.BLOCK
_ZERO_BLOCK = bytes(BLOCK)
_BLANK, _BLANK_SUM = b"\0 ", 8 * 32
# No checksum: the largest sum of 512 bytes is far below.
_NO_SUM = 1 << 30
_REGULAR = frozenset(b"0\x007")
# Their size field says nothing about data that follows: hard and symbolic links, devices, directories, FIFOs.
_WITHOUT_DATA = frozenset(b"123456")
_LONG_NAME, _LONG_LINK, _PAX, _PAX_SOLARIS, _PAX_GLOBAL = b"LKxXg"
_EXTENDED = frozenset(b"LKxXg")
_UNSUPPORTED = {ord("S"): "sparse", ord("M"): "multi-volume"}
_HARD_LINK = ord("1")
# Directories, and members about an archive: its label, GNU tar's directories and old names, Solaris' attributes.
_ABOUT = frozenset(b"5VDNAEI")
_NOT_FILES = {
    ord("2"): "a symbolic link",
    ord("3"): "a character device",
    ord("4"): "a block device",
    ord("6"): "a FIFO",
}
# PAX keys that say the same; `GNU.volume.label` alone is a title.
_SPARSE_KEY, _VOLUME_KEY = b"GNU.sparse.", b"GNU.volume.filename"
_PAX_KEYS, _PAX_REFUSED = frozenset({b"path", b"linkpath", b"size"}), (_SPARSE_KEY, _VOLUME_KEY)
# A path for all members alike makes no sense, but is legal; a long one would make a member table of many times the
# archive's size.
_MAX_GLOBAL_PATH_BYTES = 4096
# An extended header longer than this is damage or an attack, not a name.
_MAX_EXTENDED_BYTES = 16 << 20
# Longer than any size field can say.
_MAX_ARCHIVE_BYTES = 1 << 64
_WIDE_WINDOW, _NARROW_WINDOW, _SHORT_HOP = 256 << 10, BLOCK, 4 << 10
# Zeros that writers append: an end marker of two blocks, and the rest of a record. Records have 10,240 bytes (GNU tar,
# tarfile, bsdtar), or with `tar -b` another size, of which powers of two up to 1 MiB are taken for real ones.
# `tar -A` leaves two records; records of tapes have any size up to 64 KiB (`tar -b 126`).
_PADDING_BYTES, _MAX_RECORD_BYTES = 10_240 + 2 * BLOCK, 1 << 20
_APPENDED_BYTES, _ODD_RECORD_BYTES = 20_480 + 2 * BLOCK, 64 << 10

_COMPRESSIONS = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x04\x22\x4d\x18": "lz4",
    b"\x5d\x00\x00": "lzma",
    b"\x1f\x9d": "compress",
    b"LZIP": "lzip",
}
_ERROR_PAGE = "an HTML or XML page: probably an error or login page of the server; check the URL and its credentials"
# Texts that stand where an archive was meant, in lower case.
_TEXTS = {
    b"<!doctype": _ERROR_PAGE,
    b"<html": _ERROR_PAGE,
    b"<?xml": _ERROR_PAGE,
    b"version https://git-lfs": "a Git LFS pointer, which stands for the file; fetch the file itself (git lfs pull)",
}


# One file in an archive: (raw name, header offset, data offset, size in bytes). A plain tuple, because building a
# NamedTuple costs as much as all the rest of a member. The data of a hard link are before its header.
Member: TypeAlias = tuple[bytes, int, int, int]
_NO_FILE: Member = b"", 0, 0, -1


class _Extended:
    """Extended headers (GNU L/K, PAX x/g) of the next member.

    Attributes:
        is_empty: nothing at all.
        is_open: there was one, and its member has not come yet.
        begin: offset of the first one for this member, if it is open.
    """

    __slots__ = ("_global_records", "_long_link", "_long_name", "_records", "begin", "is_empty", "is_open")

    def __init__(self) -> None:
        self.is_empty, self.is_open, self.begin = True, False, 0
        self._global_records: dict[bytes, bytes] = {}
        self._records: dict[bytes, bytes] = {}
        self._long_name: bytes | None = None
        self._long_link: bytes | None = None

    def add(self, kind: int, body: bytes, shard: str, pos: int) -> None:
        """Take in one extended header; a later one of its kind wins."""
        self.is_empty = False
        if not self.is_open:
            self.is_open, self.begin = kind != _PAX_GLOBAL, pos
        if kind == _LONG_NAME:
            self._long_name = headers.until_nul(body)
        elif kind == _LONG_LINK:
            self._long_link = headers.until_nul(body)
        elif kind in (_PAX, _PAX_SOLARIS, _PAX_GLOBAL):
            records, broken_at = headers.parse_records(body)
            if broken_at is not None:
                _raise_corrupt(shard, pos, f"the PAX header has a broken record at byte {pos + BLOCK + broken_at}")
            # The rest says nothing here, and a member costs as much as there are records that hold for it.
            kept = {key: value for key, value in records.items() if key in _PAX_KEYS or key.startswith(_PAX_REFUSED)}
            if kind == _PAX_GLOBAL and len(kept.get(b"path", b"")) > _MAX_GLOBAL_PATH_BYTES:
                _raise_corrupt(shard, pos, "the global PAX header gives a very long path to all members that follow")
            (self._global_records if kind == _PAX_GLOBAL else self._records).update(kept)

    def take(self) -> tuple[bytes | None, bytes | None, dict[bytes, bytes]]:
        """Return (GNU long name, GNU long link, PAX records) for this member; forget those of one member only."""
        long_name, long_link, records = self._long_name, self._long_link, {**self._global_records, **self._records}
        self._long_name, self._long_link, self._records, self.is_open = None, None, {}, False
        self.is_empty = not self._global_records
        return long_name, long_link, records


class Members:
    """The members of a tar archive, to be gone through once.

    Args:
        read: see `scan`.
        size: see there.
        shard: see there.
        split: see there.

    Attributes:
        end: offset of the end marker; None until it was reached.
    """

    def __init__(self, read: Read, size: int, *, shard: str, split: Split = first_dot) -> None:
        self._read, self._size, self._scan = read, size, scan(read, size, shard=shard, split=split)
        self.end: int | None = None
        self._unread: int | None = None

    def __iter__(self) -> Iterator[Member]:
        self.end = yield from self._scan

    def find_unread(self) -> tuple[int | None, int]:
        """Bytes from the end marker on that no writer pads with, once all members were gone through.

        Returns:
            The offset of the first one that is not zero, or None; the number of zeros if all are, and too many, or 0.
        """
        if not self.count_unread():
            return None, 0
        end = self._size if self.end is None else self.end
        behind = find_behind(self._read, end, self._size)
        return behind, self._size - end if behind is None else 0

    def count_unread(self) -> int:
        """The number of the bytes that `find_unread` finds; where they are many, none of them is read."""
        if self._unread is None:
            end = self._size if self.end is None else self.end
            is_padded = self._is_padding(end) and find_behind(self._read, end, self._size) is None
            self._unread = 0 if is_padded else self._size - end
        return self._unread

    def _is_padding(self, end: int) -> bool:
        """True if zeros from byte ``end`` on are so few that a writer may have appended them, or fill its record.

        A record of a tape, as of ``tar -b 100``, and the zeros of ``tar -A`` follow a block that has another byte:
        zeros in the place of lost samples mostly begin within a member.
        """
        zeros = self._size - end
        record = min(self._size & -self._size, _MAX_RECORD_BYTES)
        if zeros <= max(_PADDING_BYTES, record + 2 * BLOCK):
            return True
        sizes = range(BLOCK * -(-(zeros - 2 * BLOCK) // BLOCK), _ODD_RECORD_BYTES + 1, BLOCK)
        is_filled = zeros <= _APPENDED_BYTES or any(self._size % record == 0 for record in sizes)
        return is_filled and end >= BLOCK and any(self._read(end - BLOCK, BLOCK))


def scan(read: Read, size: int, *, shard: str, split: Split = first_dot) -> Generator[Member, None, int]:
    """Yield the files of a tar archive in archive order, hard links to earlier ones too; return its end.

    Args:
        read: ``read(offset, n)`` returns up to ``n`` bytes from there (fewer only at the end of the file).
        size: the archive's size in bytes.
        shard: its name in errors.
        split: the key rule: members that are no file, and for which this gives None, are passed over.

    Raises:
        TarError: one of its kinds (empty, compressed, truncated, corrupt header, unsupported member).
    """
    return _scan(read, size, shard, split)


def _scan(  # noqa: C901, PLR0912, PLR0915 - one loop, 1 us a member
    read: Read, size: int, shard: str, split: Split | None
) -> Generator[Member, None, int]:
    """The members; see `scan`. With no ``split``, a member that is no file has a size of -1."""
    if size == 0:
        raise EmptyShardError(f"{shard}: the file is empty (0 bytes); write or fetch it again", shard=shard, offset=0)
    extended = _Extended()
    files: dict[bytes, Member] | None = None  # by name, for hard links; from the first of these on
    window, start, pos, count = b"", 0, 0, 0
    while True:
        at = pos - start
        if at + BLOCK > len(window):
            # Small members: many headers in one wide read. Large ones: skip over the payload.
            window = read(pos, _WIDE_WINDOW if pos <= _SHORT_HOP * count else _NARROW_WINDOW)
            start, at = pos, 0
        header = window[at : at + BLOCK]
        if len(header) < BLOCK:
            _raise_no_end(header, shard, pos, size)
        if header[0] == 0 and header == _ZERO_BLOCK:
            if extended.is_open:
                _raise_corrupt(shard, pos, "an extended header is followed by the end-of-archive marker, not a member")
            return pos
        count += 1
        # The common form of both numbers is read in line, two calls a member fewer; the rest goes to functions.
        try:
            stored = int(header[148:154], 8) if header[154] in _BLANK else _NO_SUM
            length = int(header[124:135], 8) if header[135] in _BLANK else -1
        except ValueError:
            stored, length = _NO_SUM, -1
        # Adler-32's low half is 1 + the byte sum (modulo 65521), at a tenth of what a sum costs in Python.
        sum_ = (adler32(header) & 0xFFFF) - (adler32(header[148:156]) & 0xFFFF) + _BLANK_SUM
        if sum_ != stored and not headers.is_sum_right(header):
            _raise_not_header(header, shard, pos)
        if length < 0:
            length = _size_of(header, shard, pos)
        kind = header[156]
        data = pos + BLOCK
        if kind in _EXTENDED:
            extended.add(kind, _read_body(read, length, shard, pos, size), shard, pos)
            pos = data + (length + 511 & -512)
            continue
        if kind in _REGULAR and extended.is_empty:
            end = header.find(0, 0, 100)
            name = header[: end if end >= 0 else 100]
            if header[345]:
                name = headers.join_prefix(name, header)
            is_file = kind != 0 or not name.endswith(b"/")
        else:
            begin = extended.begin if extended.is_open else pos
            name, link, length, is_file = _resolve(header, kind, length, extended, shard, pos)
            if is_file:
                pass
            elif split is None:
                yield name, pos, data, -1
            elif kind == _HARD_LINK:
                files = _files_before(read, begin, shard) if files is None else files
                member = name, pos, *files.get(posixpath.normpath(link), _NO_FILE)[2:]
                files[posixpath.normpath(name)] = member
                if member[3] >= 0:
                    yield member
                elif split(name) is not None:
                    _raise_no_file(shard, name, pos, f"a hard link to {_show(link)}, which is no earlier file of it")
            elif kind not in _REGULAR and kind not in _ABOUT and split(name) is not None:
                _raise_no_file(shard, name, pos, _NOT_FILES.get(kind, f"of the unknown kind {chr(kind)!r}"))
        if data + length > size:
            _raise_short_member(shard, name, pos, data + length, size)
        if is_file:
            yield name, pos, data, length
        if files is not None and kind != _HARD_LINK:
            files[posixpath.normpath(name)] = name, pos, data, length if is_file else -1
        pos = data + (length + 511 & -512)


def check_start(head: bytes, *, shard: str) -> None:
    """Refuse bytes that no tar archive starts with.

    Args:
        head: the first bytes of the file, one block or more, or all of a shorter file.
        shard: the name of the archive in errors.

    Raises:
        TarError: the one of `scan`.
    """
    members = _scan(lambda offset, count: head[offset : offset + count], _MAX_ARCHIVE_BYTES, shard, None)
    with contextlib.suppress(TruncatedShardError):  # the other bytes are still to come
        next(members, None)


def split_members(read: Read, size: int, *, shard: str) -> Iterator[tuple[int, bytes, list[tuple[int, int]]]]:
    """(header offset, name, pieces) of each member that an archive has, also of those that are no file.

    The pieces (first byte, end) are its extended headers and itself, padded to whole blocks. A global header is a
    member of its own, at offset -1. Much slower than `scan`.

    Args:
        read: see `scan`.
        size: see there.
        shard: see there.

    Raises:
        TarError: see `scan`, which finds more.
    """
    extended, pieces, pos = _Extended(), list[tuple[int, int]](), 0
    while len(header := read(pos, BLOCK)) == BLOCK and header != _ZERO_BLOCK:
        kind, length, data = header[156], _size_of(header, shard, pos), pos + BLOCK
        name = b""
        if kind in _EXTENDED:
            extended.add(kind, _read_body(read, length, shard, pos, size), shard, pos)
        else:
            name, _, length, _ = _resolve(header, kind, length, extended, shard, pos)
        end = data + (length + 511 & -512)
        if kind == _PAX_GLOBAL:
            yield -1, name, [(pos, end)]
        else:
            pieces.append((pos, end))
            if kind not in _EXTENDED:
                yield pos, name, pieces
                pieces = []
        pos = end


def find_behind(read: Read, end: int, size: int) -> int | None:
    """Offset of the first byte that is not zero behind an end marker, which begins at ``end``; None: none exists.

    It is of no member: of a second archive, say, as after ``cat a.tar b.tar``.
    """
    while end < size and (data := read(end, min(_WIDE_WINDOW, size - end))):
        if rest := data.lstrip(b"\0"):
            return end + len(data) - len(rest)
        end += len(data)
    return None


def _files_before(read: Read, end: int, shard: str) -> dict[bytes, Member]:
    """Name -> the last member of that name before byte ``end``, at which a header begins."""

    def read_before(offset: int, count: int) -> bytes:
        return read(offset, min(count, end - offset)) if offset < end else _ZERO_BLOCK

    return {posixpath.normpath(member[0]): member for member in _scan(read_before, end + BLOCK, shard, None)}


def _resolve(
    header: bytes, kind: int, length: int, extended: _Extended, shard: str, pos: int
) -> tuple[bytes, bytes, int, bool]:
    """Name, link's target, data length and is-a-regular-file of a member that is not a plain file with a plain name."""
    long_name, link, records = extended.take()
    name = long_name
    if name is None:
        name = headers.join_prefix(headers.until_nul(header[:100]), header)
    if path := records.get(b"path"):
        if 0 in path:
            _raise_corrupt(shard, pos, f"the PAX path {_show(path)} of this member has a NUL in it")
        name = path
    # The whole name decides: the part of a long one that the header holds may end with a slash.
    is_directory = kind == 0 and name.endswith(b"/")
    if path:
        name = name.rstrip(b"/")
    _check_supported(kind, name, records, shard, pos)
    if text := records.get(b"size"):
        data_length = headers.parse_decimal(text)
        if data_length is None:
            _raise_corrupt(shard, pos, f"the PAX size {text[:40]!r} of member {_show(name)} is not a size")
        length = data_length
    if kind in _WITHOUT_DATA:
        length = 0
    link = records.get(b"linkpath") or (headers.until_nul(header[157:257]) if link is None else link)
    return name, link, length, kind in _REGULAR and not is_directory


def _check_supported(kind: int, name: bytes, records: dict[bytes, bytes], shard: str, pos: int) -> None:
    what = _UNSUPPORTED.get(kind)
    for key in records:
        if key.startswith(_PAX_REFUSED):
            what = "sparse" if key.startswith(_SPARSE_KEY) else "multi-volume"
    if what is None:
        return
    name = records.get(b"GNU.sparse.name") or records.get(_VOLUME_KEY) or name
    raise UnsupportedMemberError(
        f"{shard}: member {_show(name)} at byte {pos} is {what}; "
        "its bytes are not stored in one piece. Pack the shard again without --sparse and --multi-volume",
        shard=shard,
        offset=pos,
    )


def _raise_no_file(shard: str, name: bytes, pos: int, what: str) -> NoReturn:
    raise UnsupportedMemberError(
        f"{shard}: member {_show(name)} at byte {pos} is {what}; it has no bytes here. Pack the shard again with what "
        "links lead to in their place (tar -h --hard-dereference), or without it",
        shard=shard,
        offset=pos,
    )


def _read_body(read: Read, length: int, shard: str, pos: int, size: int) -> bytes:
    """The data of an extended header; the limits come first, so that no bad length is ever requested."""
    if length > _MAX_EXTENDED_BYTES:
        _raise_corrupt(shard, pos, f"the extended header says it is {length} bytes long; no name needs so many")
    left = max(0, size - pos - BLOCK)
    body = read(pos + BLOCK, length) if length <= left else b""
    if len(body) != length:
        raise TruncatedShardError(
            f"{shard}: truncated at byte {size}: the extended header at byte {pos} is {length} bytes long, and "
            f"{len(body) or left} are left; fetch or write the shard again",
            shard=shard,
            offset=pos,
        )
    return body


def _size_of(header: bytes, shard: str, pos: int) -> int:
    size = headers.parse_size(header)
    if size is None:
        _raise_corrupt(shard, pos, f"its size field {header[124:136]!r} is not a size")
    return size


def _show(name: bytes) -> str:
    return repr(name.decode("utf-8", "backslashreplace"))


def _raise_no_end(start: bytes, shard: str, pos: int, size: int) -> NoReturn:
    advice = "; if it is known to be whole, append 1,024 zero bytes"
    if pos == 0:
        _raise_if_known(start, shard)
        advice = ", or give another file: this one holds less than one header of a tar"
    raise TruncatedShardError(
        f"{shard}: truncated at byte {size}: there is no end-of-archive marker where the next header should be "
        f"(byte {pos}). Fetch or write the shard again{advice}",
        shard=shard,
        offset=pos,
    )


def _raise_short_member(shard: str, name: bytes, pos: int, end: int, size: int) -> NoReturn:
    raise TruncatedShardError(
        f"{shard}: truncated at byte {size}: member {_show(name)} (header at byte {pos}) needs bytes up to {end}; "
        "fetch or write the shard again",
        shard=shard,
        offset=pos,
    )


def _raise_corrupt(shard: str, pos: int, what: str) -> NoReturn:
    raise CorruptHeaderError(
        f"{shard}: corrupt header at byte {pos}: {what}; write or fetch the shard again", shard=shard, offset=pos
    )


def _raise_not_header(header: bytes, shard: str, pos: int) -> NoReturn:
    if pos == 0:
        _raise_if_known(header, shard)
    raise CorruptHeaderError(
        f"{shard}: the 512 bytes at byte {pos} are not a tar header (checksum mismatch); "
        "the shard is damaged or is not a tar archive. Fetch or write it again",
        shard=shard,
        offset=pos,
    )


def _raise_if_known(start: bytes, shard: str) -> None:
    """Raise if the first bytes of a file show that it is no tar archive."""
    for magic, name in _COMPRESSIONS.items():
        if start.startswith(magic):
            raise CompressedShardError(
                f"{shard}: byte 0 starts a {name} stream; a compressed archive has no random access. "
                f"Decompress it to a plain .tar first (compress members, not shards)",
                shard=shard,
                offset=0,
            )
    text = start[:80].lstrip().lower()
    for opening, what in _TEXTS.items():
        if text.startswith(opening):
            raise CorruptHeaderError(f"{shard}: byte 0 starts {what}; this is not a tar archive", shard=shard, offset=0)

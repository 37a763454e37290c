"""Read the indexes that NVIDIA DALI and Megatron-Energon put beside a shard, and compare them with the shard.

Pure; a file that is malformed is a `TableError`. An index is used only after it was compared with the shard: every
header that it names is there, and no others exist.

NVIDIA DALI (``wds2idx``, for ``fn.readers.webdataset``): text; the first line is ``v1.1 N`` or ``v1.2 N``, N > 0 the
number of samples. A line for each of them, components one after another, blanks between: ``EXTENSION OFFSET SIZE`` in
version 1.1, ``EXTENSION OFFSET SIZE NAME`` in 1.2. The offset is that of the data, in bytes, a multiple of 512; the
extension has no leading dot. Only 1.2 has the names of samples. Members whose basename begins with a dot are left
out. By default ``a/x.tar`` has ``a/x.idx``. ``wds2idx`` counts by GNU ``tar --block-num``, which numbers a member's own
header: before a member with extended headers (the webdataset package writes them all so) its offsets are too large.

NVIDIA Megatron-Energon (``energon prepare``): ``x.tar.idx`` is unsigned 64-bit numbers (written in the machine's order,
so little-endian): where each sample's first header begins, extended headers included, then where the last one ends.
It says nothing of members, so no table can be made of it. Names that match ``__[^/]*__($|/)`` from their start are left
out.
"""

from __future__ import annotations

import re
import sys
from array import array
from typing import TYPE_CHECKING, NamedTuple

from wids.core.tables import headers, tar
from wids.core.tables.keys import decode_name, first_dot
from wids.errors import ShardError, TableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from wids.core.tables.tar import Member

DALI_SUFFIX, ENERGON_SUFFIX = ".idx", ".tar.idx"
DALI_STARTS = (b"v1.1 ", b"v1.2 ")

_NAME_BYTES = 100
# At a look, extended headers and members that count for nothing may take so much; names are shorter.
_LOOK_BYTES = 8 << 10
_MAX_AFTERWARDS = 16
_MAX_OFFSET_DIGITS = 18
_META = re.compile(rb"__[^/]*__($|/)")


class DaliMember(NamedTuple):
    """One member in DALI's index: extension without its dot, data offset, bytes, and its name where that is said."""

    extension: bytes
    offset: int
    size: int
    name: bytes | None


def parse_dali(data: bytes, *, shard: str) -> list[list[DaliMember]]:
    """The samples of a DALI index.

    Raises:
        TableError: it is none, or malformed, or cut short.
    """
    *lines, rest = data.split(b"\n")
    head = lines[0].split() if lines else []
    if len(head) != 2 or head[0] + b" " not in DALI_STARTS:
        raise _broken(shard, DALI_SUFFIX, "does not begin with v1.1 or v1.2 and a number of samples")
    while lines and not lines[-1].strip():
        lines.pop()
    if rest or _number(head[1]) != len(lines) - 1 or len(lines) < 2:
        raise _broken(shard, DALI_SUFFIX, f"promises {_show(head[1])} samples and has {len(lines) - 1} whole lines")
    width = 4 if head[0] == b"v1.2" else 3
    samples = []
    for number, line in enumerate(lines[1:], 2):
        words = line.split()
        if not words or len(words) % width:
            raise _broken(shard, DALI_SUFFIX, f"has {len(words)} words in line {number}, not {width} for each member")
        parts = []
        for k in range(0, len(words), width):
            offset, size = _number(words[k + 1]), _number(words[k + 2])
            name = words[k + 3] if width == 4 else None
            if offset is None or size is None or offset % tar.BLOCK or offset < tar.BLOCK:
                raise _broken(
                    shard, DALI_SUFFIX, f"has no offset and size for member {k // width + 1} of line {number}"
                )
            if name is not None and not name.endswith(words[k]):
                raise _broken(shard, DALI_SUFFIX, f"calls {_show(name)} a {_show(words[k])} in line {number}")
            parts.append(DaliMember(words[k], offset, size, name))
        samples.append(parts)
    return samples


def list_members(samples: Iterable[Sequence[DaliMember]], size: int, *, shard: str) -> list[Member]:
    """The members of a DALI index in archive order, as `wids.core.tables.tar.scan` gives them.

    Args:
        samples: of a version that gives names.
        size: of the shard, in bytes.
        shard: its name in errors.

    Raises:
        TableError: it has no names, or names that ``tar`` has put escapes into; members overlap, or leave the shard.
    """
    members: list[Member] = []
    end = 0
    for parts in samples:
        for part in parts:
            if part.name is None:
                raise _broken(shard, DALI_SUFFIX, "is of version 1.1, which does not say how samples are called")
            if b"\\" in part.name:
                raise _broken(shard, DALI_SUFFIX, f"has the name {_show(part.name)}, which may be written with escapes")
            if part.offset - tar.BLOCK < end or part.offset + part.size > size:
                raise _broken(shard, DALI_SUFFIX, f"has {_show(part.name)} where the shard cannot have it")
            members.append((part.name, part.offset - tar.BLOCK, part.offset, part.size))
            end = _padded(part.offset + part.size)
    return members


def find_doubt(
    members: Sequence[Member],
    read: Callable[[int, int], bytes],
    size: int,
    *,
    shard: str,
    each: Callable[[Callable[[int], str], Iterable[int]], Iterable[str]] = map,
) -> str:
    """The reason why the members in an index are not those of the shard; ``""``: they are, and no others.

    Args:
        members: in archive order, as `list_members` gives them.
        read: ``read(offset, n)`` gives up to ``n`` bytes of the shard; called by ``each``.
        size: of the shard, in bytes.
        shard: its name in errors.
        each: ``map``, or that of a pool: the members do not depend on each other.
    """
    ends = [0, *(_padded(offset + length) for _, _, offset, length in members)]

    def look(k: int) -> str:
        name, start, offset, length = members[k]
        if start == ends[k]:
            header = read(start, tar.BLOCK)
            listed_name = (
                headers.join_prefix(headers.until_nul(header[:_NAME_BYTES]), header)
                if len(header) == tar.BLOCK
                else b""
            )
            if listed_name == name and headers.parse_size(header) == length and headers.is_sum_right(header):
                return ""
        try:
            if _next_listed(read, ends[k], size, shard) != (name, offset, length):
                return f"{_show(name)} is not at byte {offset} with {length} bytes"
        except ShardError as error:
            return str(error)
        return ""

    doubt = next(filter(None, each(look, range(len(members)))), "")
    try:
        if not doubt and _next_listed(read, ends[-1], size, shard) is not None:
            return "the shard goes on behind the last member"
    except ShardError as error:
        return str(error)
    return doubt


def _next_listed(read: Callable[[int, int], bytes], start: int, size: int, shard: str) -> tuple[bytes, int, int] | None:
    """Name, data offset and size of the first member from ``start`` on that is part of a sample; None: the end."""

    def read_from(offset: int, count: int) -> bytes:
        return read(start + offset, min(count, _LOOK_BYTES))

    for number, (name, _, offset, length) in enumerate(tar.scan(read_from, size - start, shard=shard)):
        if first_dot(name) is not None:
            return name, start + offset, length
        if number == _MAX_AFTERWARDS:
            raise _broken(shard, DALI_SUFFIX, "leaves out many members")
    return None


def find_difference(samples: Iterable[Sequence[DaliMember]], members: Iterable[Member]) -> str:
    """The difference between a DALI index and the headers of the shard, in words; ``""``: they agree."""
    listed = iter([part for parts in samples for part in parts])
    for name, _, offset, size in members:
        if name[name.rfind(b"/") + 1 :].startswith(b"."):
            continue
        part = next(listed, None)
        if part is None:
            return f"it ends before {_show(name)} at byte {offset}"
        has_name = part.name in (None, name) or b"\\" in (part.name or b"")
        if not has_name or (part.offset, part.size) != (offset, size):
            return (
                f"it has {_show(part.name or part.extension)} with {part.size} bytes at byte {part.offset}, the shard "
                f"{_show(name)} with {size} bytes at byte {offset}"
            )
    last = next(listed, None)
    return "" if last is None else f"it goes on with {_show(last.name or last.extension)} at byte {last.offset}"


def parse_offsets(data: bytes, *, shard: str) -> array[int]:
    """The offsets of an Energon index, one more than there are samples.

    Raises:
        TableError: it is none.
    """
    offsets = array("Q")
    if not data or len(data) % 8:
        raise _broken(shard, ENERGON_SUFFIX, f"has {len(data)} bytes, not 8 for each sample and 8 more")
    offsets.frombytes(data)
    if sys.byteorder != "little":
        offsets.byteswap()
    before = -1
    for offset in offsets:
        if offset <= before or offset % tar.BLOCK:
            raise _broken(shard, ENERGON_SUFFIX, f"has offset {offset} behind {before}")
        before = offset
    return offsets


def find_difference_in_offsets(offsets: Sequence[int], members: Iterable[Member]) -> str:
    """The difference between an Energon index and the headers of the shard, in words; ``""``: they agree."""
    spans: list[tuple[int, int]] = []
    end, last = 0, None
    for name, header, offset, size in members:
        parts = None if _META.match(name) else first_dot(name)
        if parts is not None and parts[0] != last:
            last = parts[0]
            spans.append((end, header))
        end = max(_padded(offset + size), header + tar.BLOCK)  # the data of a hard link are before it
    if len(offsets) - 1 != len(spans):
        return f"it has {len(offsets) - 1} samples, the shard {len(spans)}"
    for offset, (lo, hi) in zip(offsets, spans, strict=False):
        if not lo <= offset <= hi:
            return f"it has a sample at byte {offset}, the shard at byte {hi}"
    return "" if offsets[-1] >= end else f"it ends at byte {offsets[-1]}, the shard at byte {end}"


def _number(word: bytes) -> int | None:
    return int(word) if word.isdigit() and len(word) <= _MAX_OFFSET_DIGITS else None


def _padded(end: int) -> int:
    return end + 511 & -512


def _show(name: bytes) -> str:
    return repr(decode_name(name[:200]).encode("utf-8", "backslashreplace").decode())


def _broken(shard: str, suffix: str, what: str) -> TableError:
    return TableError(f"{shard}: its {suffix} file {what}; write it again, or delete it", shard=shard)

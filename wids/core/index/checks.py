"""Validation of an index; errors name the path to the bad value and the index that has it.

Pure. ``path`` is in terms of the JSON text, like ``shardlist[3].nsamples``; ``index_url`` is the URL or path of that
text, None if it came from an open file or from the program itself.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from wids.core.shard import MAX_COUNT
from wids.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wids.core.index.shardlist import Row
    from wids.core.place import Place

# Servers and command lines take no longer URL, and each message about the shard would repeat it.
_MAX_URL = 1 << 17
# Deeper values could not be pickled into a worker.
_MAX_NESTED = 100
# The header of its only member, in a tar without compression.
_BYTES_OF_A_SAMPLE = 512
# Samples of a shard that cost little, whether it has them or not.
_FEW = 1 << 20
# Samples of a shard, and of all such shards, whose size is not known.
_MOST_UNSIZED, _MOST_UNSIZED_IN_ALL = 1 << 28, 1 << 36
_MD5, _CRC32 = re.compile(r"[0-9a-fA-F]{32}"), re.compile(r"[0-9a-fA-F]{8}")
_FIELD = re.compile(r"required field `(\w+)`")


def resolve(base: Place, url: str, path: str, index_url: str | None = None) -> str:
    """The full URL. It has no NUL: no client opens one, and pickled columns are separated by it."""
    full = str(base.join(url))
    if not url or "\0" in full or len(full) > _MAX_URL:
        fail(index_url, path, f"is {full!r:.200}; it must be a URL or a path")
    return full


def convert(raw: Any, kind: type[Any], *, path: str = "", index_url: str | None = None) -> Any:
    """Check types with msgspec; an error has the path of the bad value in the JSON text."""
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        what, _, at = str(error).partition(" - at `$")
        name = (path + at.rstrip("`")).lstrip(".")
        if field := _FIELD.search(what):
            name = f"{name}.{field[1]}".lstrip(".")
        raise SpecError(f"{where(index_url)}{name or 'the index'}: {what}", path=name, url=index_url) from error
    except RecursionError as error:
        raise SpecError(
            f"{where(index_url)}{path or 'the index'} is nested too deeply", path=path, url=index_url
        ) from error
    except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON can contain: "\ud800"
        raise SpecError(
            f"{where(index_url)}{path or 'the index'} has text that is not Unicode ({error.object!r:.60}); replace it",
            path=path,
            url=index_url,
        ) from error


def check_digests(row: Row, path: str, index_url: str | None = None) -> None:
    """Check the form of the digests, if any."""
    if row.md5sum and not _MD5.fullmatch(row.md5sum):
        fail(index_url, f"{path}.md5sum", f"is {row.md5sum!r:.60}; an md5 digest has 32 hexadecimal digits")
    if row.crc32 and not _CRC32.fullmatch(row.crc32):
        fail(index_url, f"{path}.crc32", f"is {row.crc32!r:.60}; a CRC-32 has 8 hexadecimal digits")


def check_count(row: Row, path: str, index_url: str | None = None) -> None:
    """Check that a shard can hold its samples where they are so many that an order of them takes time and memory.

    Without a size, more than `_MOST_UNSIZED` are not believed: such a tar has 128 GiB and more. Other wrong
    counts are told where the shard is opened.
    """
    if row.nsamples <= _FEW:
        return
    if row.filesize is not None and row.nsamples * _BYTES_OF_A_SAMPLE > row.filesize:
        fail(
            index_url,
            f"{path}.nsamples",
            f"is {row.nsamples}, and the shard's filesize {row.filesize}; a sample takes {_BYTES_OF_A_SAMPLE} bytes "
            "at least. Write the index again: wids index create",
        )
    if row.filesize is None and row.nsamples > _MOST_UNSIZED:
        fail(
            index_url,
            f"{path}.nsamples",
            f"is {row.nsamples}, more than {_MOST_UNSIZED} of a shard without a filesize; if it is true, add that",
        )


def check_nesting(value: Any, path: str, index_url: str | None = None) -> None:
    """Refuse lists and objects that are nested more than a hundred deep."""
    level = [value]
    for _ in range(_MAX_NESTED):
        level = [part for outer in level if (parts := _parts_of(outer)) for part in parts]
        if not level:
            return
    fail(index_url, path, "is nested too deeply")


def _parts_of(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def check_finite(value: Any, path: str, index_url: str | None = None) -> None:
    """Refuse infinity and NaN: JSON has no numbers for them, and other programs could not read the index."""
    infinite = _find_infinite(value)
    if infinite is not None:
        at, number = infinite
        fail(
            index_url,
            (path + at).lstrip("."),
            f"is {number}, which is not a number in JSON; give a finite number, or null",
        )


def _find_infinite(value: Any) -> tuple[str, float] | None:
    """(its path within the value, the number) of the first float that is not finite."""
    if isinstance(value, float):
        return None if math.isfinite(value) else ("", value)
    parts: Any = ()
    if isinstance(value, dict):
        parts = ((f".{name}", part) for name, part in value.items() if isinstance(part, (float, dict, list)))
    elif isinstance(value, list):
        parts = ((f"[{k}]", part) for k, part in enumerate(value) if isinstance(part, (float, dict, list)))
    for name, part in parts:
        if (inner := _find_infinite(part)) is not None:
            return name + inner[0], inner[1]
    return None


def check_total(nsamples: Iterable[int], filesizes: Iterable[int], index_url: str | None = None) -> None:
    """Check that the samples of all shards fit into 63 bits, and those of shards without a size (-1) in any memory."""
    total = unsized = 0
    for count, size in zip(nsamples, filesizes, strict=True):
        total += count
        unsized += count if size < 0 else 0
    if total > MAX_COUNT:
        fail(index_url, "shardlist", f"promises {total} samples in all, more than can be counted")
    if unsized > _MOST_UNSIZED_IN_ALL:
        fail(
            index_url,
            "shardlist",
            f"promises {unsized} samples in shards without a filesize, more than {_MOST_UNSIZED_IN_ALL}; if it is "
            "true, add these",
        )


def fail(index_url: str | None, path: str, what: str) -> NoReturn:
    """Raise a SpecError about the value at ``path``; ``what``: its message."""
    raise SpecError(f"{where(index_url)}{path or 'the index'} {what}", path=path, url=index_url)


def where(index_url: str | None) -> str:
    """The beginning of a message: the index that it is about, if that has a URL."""
    return f"{index_url}: " if index_url else ""

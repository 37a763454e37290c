"""Validation of an index; errors name the path to the bad value and the index that has it.

Pure. ``path`` is in terms of the JSON text, like ``shardlist[3].nsamples``; ``place`` is the URL or path of that
text, None if it came from an open file or from the program itself.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from wids.errors import SpecError
from wids.index.shardlist import MAX_COUNT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wids.index.shardlist import Row
    from wids.transport.place import Place

# More is no URL that a server takes, nor a command line; every message about the shard would repeat it.
_MAX_URL = 1 << 17
# Deeper values could not be pickled into a worker.
_MAX_NESTED = 100
_MD5, _CRC32 = re.compile(r"[0-9a-fA-F]{32}"), re.compile(r"[0-9a-fA-F]{8}")
_FIELD = re.compile(r"required field `(\w+)`")


def resolve(base: Place, url: str, path: str, place: str | None = None) -> str:
    """The full URL. A NUL in it could not be opened, and would be taken for two URLs where columns are pickled."""
    full = str(base.join(url))
    if not url or "\0" in full or len(full) > _MAX_URL:
        fail(place, path, f"is {full!r:.200}; it must be a URL or a path")
    return full


def convert(raw: Any, kind: type[Any], *, path: str = "", place: str | None = None) -> Any:
    """Check types with msgspec, and say where a bad value stands in terms of the JSON text."""
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        what, _, at = str(error).partition(" - at `$")
        name = (path + at.rstrip("`")).lstrip(".")
        if field := _FIELD.search(what):
            name = f"{name}.{field[1]}".lstrip(".")
        raise SpecError(f"{where(place)}{name or 'the index'}: {what}", path=name, url=place) from error
    except RecursionError as error:
        raise SpecError(f"{where(place)}{path or 'the index'} is nested too deeply", path=path, url=place) from error
    except UnicodeEncodeError as error:  # half of a pair, which JSON can spell: "\ud800"
        raise SpecError(
            f"{where(place)}{path or 'the index'} has text that is not Unicode ({error.object!r:.60}); spell it whole",
            path=path,
            url=place,
        ) from error


def check_digests(row: Row, path: str, place: str | None = None) -> None:
    """Digests, where there are some, have their form."""
    if row.md5sum and not _MD5.fullmatch(row.md5sum):
        fail(place, f"{path}.md5sum", f"is {row.md5sum!r:.60}; an md5 digest has 32 hexadecimal digits")
    if row.crc32 and not _CRC32.fullmatch(row.crc32):
        fail(place, f"{path}.crc32", f"is {row.crc32!r:.60}; a CRC-32 has 8 hexadecimal digits")


def check_nesting(value: Any, path: str, place: str | None = None) -> None:
    """Refuse lists and objects within more than a hundred others."""
    level = [value]
    for _ in range(_MAX_NESTED):
        level = [part for outer in level if (parts := _parts_of(outer)) for part in parts]
        if not level:
            return
    fail(place, path, "is nested too deeply")


def _parts_of(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def check_finite(value: Any, path: str, place: str | None = None) -> None:
    """Refuse infinity and NaN: JSON has no numbers for them, and other programs could not read the index."""
    found = _find_infinite(value)
    if found is not None:
        at, number = found
        fail(place, (path + at).lstrip("."), f"is {number}, a number that JSON does not have; give another, or null")


def _find_infinite(value: Any) -> tuple[str, float] | None:
    """(where within the value, which) of the first float that is not finite."""
    if isinstance(value, float):
        return None if math.isfinite(value) else ("", value)
    parts: Any = ()
    if isinstance(value, dict):
        parts = ((f".{name}", part) for name, part in value.items() if isinstance(part, (float, dict, list)))
    elif isinstance(value, list):
        parts = ((f"[{k}]", part) for k, part in enumerate(value) if isinstance(part, (float, dict, list)))
    for name, part in parts:
        if (found := _find_infinite(part)) is not None:
            return name + found[0], found[1]
    return None


def check_total(nsamples: Iterable[int], place: str | None = None) -> None:
    """A dataset has no more samples than can be counted."""
    total = sum(nsamples)
    if total > MAX_COUNT:
        fail(place, "shardlist", f"promises {total} samples in all, more than can be counted")


def fail(place: str | None, path: str, what: str) -> NoReturn:
    """Raise the SpecError that the value at ``path`` is ``what``."""
    raise SpecError(f"{where(place)}{path or 'the index'} {what}", path=path, url=place)


def where(place: str | None) -> str:
    """How a message begins: with the index it is about, if that has a place."""
    return f"{place}: " if place else ""

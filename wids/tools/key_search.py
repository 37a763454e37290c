"""Look up keys in a member table. Pure.

A table holds its keys as one string. It is searched as one string, because making a string of each key would take many
times longer.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice
from typing import TYPE_CHECKING, Any

from wids.core.tables.keys import encode_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wids.core.tables.table import MemberTable

# Keys of each kind that `near_keys` returns, at most.
_NEAR = 6


def rows_of(table: MemberTable, key: str) -> Iterator[int]:
    """Yield the rows of a table that have a key, in order."""
    ends = table.key_ends
    for row, at in _find_part(table, key):
        if at == ends[row] and ends[row + 1] - at == len(_encode(table, key)):
            yield row


def near_keys(table: MemberTable, key: str) -> set[str]:
    """Return a few keys that share the longest possible beginning with ``key``, and a few with its longest ending."""
    found: set[str] = set()
    for is_begin in (True, False):
        lo, hi = 0, len(key)  # a binary search for the length of the longest part that occurs
        while lo < hi:
            middle = (lo + hi + 1) // 2
            if next(_find_part(table, _part(key, middle, is_begin=is_begin)), None) is None:
                hi = middle - 1
            else:
                lo = middle
        if lo:
            hits = islice(_find_part(table, _part(key, lo, is_begin=is_begin)), _NEAR)
            found.update(table.key(row) for row, _ in hits)
    return found


def _part(key: str, length: int, *, is_begin: bool) -> str:
    return key[:length] if is_begin else key[len(key) - length :]


def _encode(table: MemberTable, key: str) -> Any:
    """A key in the form of the table's keys: text, or bytes."""
    return key if isinstance(table.key_text, str) else encode_name(key)


def _find_part(table: MemberTable, part: str) -> Iterator[tuple[int, int]]:
    """Yield (row, position in the keys' string) of each occurrence of ``part``; it may run on into the next key."""
    text, ends = table.key_text, table.key_ends
    part = _encode(table, part)
    at = text.find(part)  # type: ignore[arg-type]  # both are text, or both bytes
    while at >= 0:
        row = bisect_right(ends, at) - 1
        yield row, at
        at = text.find(part, at + 1)  # type: ignore[arg-type]  # likewise

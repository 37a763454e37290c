"""Look up keys in member tables, with suggestions for misspelt keys.

A table holds its keys as one string. It is searched as one string, because making a string of each key would take many
times longer. A search reads each table once, and stops as soon as every key is found.
"""

from __future__ import annotations

import difflib
from bisect import bisect_left, bisect_right
from itertools import islice
from typing import TYPE_CHECKING, Any

from wids.cli.format import printable
from wids.cli.progress import progress
from wids.errors import SelectionError
from wids.tables.keys import encode_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wids.cli.look.listed import Listed
    from wids.tables.table import MemberTable

_SUGGESTIONS = 3
_MAX_MESSAGES = 10
# Fewer shards are searched before a progress bar could be read.
_MIN_SHARDS_FOR_BAR = 50


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
            hits = islice(_find_part(table, _part(key, lo, is_begin=is_begin)), 2 * _SUGGESTIONS)
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


class Search:
    """A search for keys in the member tables of an index.

    Args:
        listed: the index.
        keys: the keys; repeats are ignored.
        is_first: stop at the first sample of each key.

    Attributes:
        found: key -> the indices of the samples that have it, in order.
    """

    def __init__(self, listed: Listed, keys: list[str], *, is_first: bool) -> None:
        self.listed, self.is_first = listed, is_first
        self.found: dict[str, list[int]] = {key: [] for key in keys}
        self._near: dict[str, set[str]] = {key: set() for key in keys}

    def run(self) -> None:
        """Search for all keys.

        Raises:
            WidsError: a member table cannot be read.
        """
        ends, start = self.listed.ends, 0
        with progress(is_shown=len(ends) > _MIN_SHARDS_FOR_BAR) as bar:
            self.listed.has_bar = bar.is_shown
            for k, end in enumerate(ends):
                if end > start:
                    self._search(k, start)
                start = end
                if self.is_first and all(self.found.values()):
                    break
                bar.update(k + 1, total=len(ends), words="searching shards")

    def nearest(self, key: str) -> list[str]:
        """Return the keys that are most similar to one that was not found; best first."""
        return difflib.get_close_matches(key, sorted(self._near[key]), n=_SUGGESTIONS, cutoff=0.5)

    def check(self) -> None:
        """Raise unless all keys were found.

        Raises:
            SelectionError: a key was not found; suggests similar keys.
        """
        missing = [key for key, indices in self.found.items() if not indices]
        if missing:
            messages = "; ".join(self._message(key) for key in missing[:_MAX_MESSAGES])
            more = f"; and {len(missing) - _MAX_MESSAGES:,} more" if len(missing) > _MAX_MESSAGES else ""
            raise SelectionError(f"{self.listed.name}: {messages}{more}")

    def _message(self, key: str) -> str:
        near = ", ".join(repr(printable(name)) for name in self.nearest(key))
        return f"no sample has the key {printable(key)!r}" + (f" (near: {near})" if near else "")

    def _search(self, k: int, start: int) -> None:
        table, is_view = self.listed.table(k), self.listed.shards.selection is not None
        chosen = self.listed.collection.rows_of(k)
        for key, indices in self.found.items():
            if self.is_first and indices:
                continue
            for row in rows_of(table, key):
                at = bisect_left(chosen, row) if is_view else row
                if at < len(chosen) and chosen[at] == row:
                    indices.append(start + at)
            if not indices:
                near = self._near[key]
                near |= near_keys(table, key)
                if len(near) > 100:
                    self._near[key] = set(difflib.get_close_matches(key, sorted(near), n=20, cutoff=0.0))

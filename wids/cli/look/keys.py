"""Keys in member tables: where they are, and which ones are near to one that is nowhere.

Rules: a table's keys are one text, and it is searched as such: no key is taken out of it that is not of use. A search
reads each table once, and ends where nothing more is looked for.
"""

from __future__ import annotations

import difflib
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from wids.cli.format import printable
from wids.cli.progress import progress
from wids.errors import WidsError
from wids.index.keys import encode_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wids.cli.look.listed import Listed
    from wids.index.table import MemberTable

_SUGGESTIONS = 3
# A bar for fewer of them would be gone before it is seen.
_QUICK_SHARDS = 50


def rows_of(table: MemberTable, key: str) -> Iterator[int]:
    """The samples of a table that have a key, in order."""
    ends = table.key_ends
    for row, at in _hits(table, key):
        if at == ends[row] and ends[row + 1] - at == len(_coded(table, key)):
            yield row


def near_keys(table: MemberTable, key: str) -> set[str]:
    """A few keys of a table that begin or end as ``key`` does, as far as any of them does."""
    found: set[str] = set()
    for is_begin in (True, False):
        lo, hi = 0, len(key)  # the longest part that occurs is lo .. hi long
        while lo < hi:
            middle = (lo + hi + 1) // 2
            if next(_hits(table, _part(key, middle, is_begin=is_begin)), None) is None:
                hi = middle - 1
            else:
                lo = middle
        if lo:
            rows = zip(range(2 * _SUGGESTIONS), _hits(table, _part(key, lo, is_begin=is_begin)), strict=False)
            found.update(table.key(row) for _, (row, _) in rows)
    return found


def _part(key: str, length: int, *, is_begin: bool) -> str:
    return key[:length] if is_begin else key[len(key) - length :]


def _coded(table: MemberTable, key: str) -> Any:
    return key if isinstance(table.key_text, str) else encode_name(key)


def _hits(table: MemberTable, part: str) -> Iterator[tuple[int, int]]:
    """(row, where in the table's keys) of each key that holds ``part``, or in which it begins."""
    text, ends = table.key_text, table.key_ends
    part = _coded(table, part)
    at = text.find(part)  # type: ignore[arg-type]  # both are text, or both bytes
    while at >= 0:
        row = bisect_right(ends, at) - 1
        yield row, at
        at = text.find(part, at + 1)  # type: ignore[arg-type]  # likewise


class Search:
    """A search for keys through the tables of an index.

    Args:
        listed: the index.
        keys: which; each counts once.
        is_first: the first sample with a key will do.

    Attributes:
        found: key -> the indices of the samples that have it, in order.
    """

    def __init__(self, listed: Listed, keys: list[str], *, is_first: bool) -> None:
        self.listed, self.is_first = listed, is_first
        self.found: dict[str, list[int]] = {key: [] for key in keys}
        self._near: dict[str, set[str]] = {key: set() for key in keys}

    def run(self) -> None:
        """Look for all of them.

        Raises:
            WidsError: a table cannot be had.
        """
        ends, start = self.listed.ends, 0
        with progress(is_shown=len(ends) > _QUICK_SHARDS) as bar:
            self.listed.has_bar = bar.is_shown
            for k, end in enumerate(ends):
                if end > start:
                    self._search(self.listed.table(k), start)
                start = end
                if self.is_first and all(self.found.values()):
                    break
                bar.update(k + 1, total=len(ends), words="searching shards")

    def nearest(self, key: str) -> list[str]:
        """The keys that are most like one that was not found; best first."""
        return difflib.get_close_matches(key, sorted(self._near[key]), n=_SUGGESTIONS, cutoff=0.5)

    def check(self) -> None:
        """See to it that all were found.

        Raises:
            WidsError: one was not; names what is near.
        """
        missing = [key for key, indices in self.found.items() if not indices]
        if missing:
            told = "; ".join(self._complaint(key) for key in missing[:10])
            more = f"; and {len(missing) - 10:,} more" if len(missing) > 10 else ""
            raise WidsError(f"{self.listed.name}: {told}{more}")

    def _complaint(self, key: str) -> str:
        near = ", ".join(repr(printable(name)) for name in self.nearest(key))
        return f"no sample has the key {printable(key)!r}" + (f" (near: {near})" if near else "")

    def _search(self, table: MemberTable, start: int) -> None:
        for key, indices in self.found.items():
            if self.is_first and indices:
                continue
            indices += [start + row for row in rows_of(table, key)]
            if not indices:
                near = self._near[key]
                near |= near_keys(table, key)
                if len(near) > 100:
                    self._near[key] = set(difflib.get_close_matches(key, sorted(near), n=20, cutoff=0.0))

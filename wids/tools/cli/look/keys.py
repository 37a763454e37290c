"""Look up keys in the member tables of an index, with suggestions for misspelt keys.

A search reads each table once (`wids.core.tables.key_search`), and stops as soon as every key is found.
"""

from __future__ import annotations

import difflib
from bisect import bisect_left
from typing import TYPE_CHECKING

from wids.core.files.terminal import progress
from wids.core.tables.key_search import near_keys, rows_of
from wids.errors import SelectionError
from wids.tools.cli.format import printable

if TYPE_CHECKING:
    from wids.tools.cli.look.listed import Listed

_SUGGESTIONS = 3
_MAX_MESSAGES = 10
# Fewer shards are searched before a progress bar could be read.
_MIN_SHARDS_FOR_BAR = 50


class Search:
    """A search for keys in the member tables of an index.

    Args:
        listed: the index.
        keys: the keys; repeats are ignored.
        is_first: stop at the first sample of each key.

    Attributes:
        found: key -> the indices of the samples that have it, in order.
    """

    listed: Listed
    is_first: bool

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

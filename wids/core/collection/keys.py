"""``dataset.keys``: from an index to a sample's key, and back. Without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wids.core.collection.shard_collection import ShardCollection
    from wids.core.tables.table import MemberTable


class Keys:
    """The keys of a dataset's samples: ``keys[i]``, ``keys.index(key)``, ``keys.find(key)``, ``key in keys``.

    Nothing is read but member tables, so a shard is opened (a remote one: downloaded) and none of its samples. Shards
    may share keys: ``index`` gives the first sample, ``find`` all of them. A shard that holds fewer samples than it has
    in the dataset repeats them, and so its keys.

    Args:
        collection: of the samples.
        of: words for their owner, for messages.
    """

    def __init__(self, collection: ShardCollection, *, of: object) -> None:
        self._collection, self._of = collection, of

    def __call__(self) -> Keys:
        """Return itself, so that ``dataset.keys()`` reads as with a dict."""
        return self

    def __len__(self) -> int:
        return len(self._collection)

    def __getitem__(self, index: int) -> str:
        k, row = self._collection.locate(self._collection.plain(index))
        table = self._table(k)
        return table.key(row % len(table))

    def __iter__(self) -> Iterator[str]:
        for k, count in enumerate(self._collection.lengths):
            if count:
                table = self._table(k)
                yield from (table.key(row % len(table)) for row in self._collection.rows_of(k))

    def __contains__(self, key: object) -> bool:
        return next(self._occurrences(key), None) is not None

    def index(self, key: str) -> int:
        """The first sample with this key.

        Raises:
            KeyError: none exists.
        """
        first = next(self._occurrences(key), None)
        if first is None:
            raise KeyError(f"no sample has the key {key!r} in {self._of!r}")
        return first

    def find(self, key: str) -> list[int]:
        """Every sample with this key, in order."""
        return list(self._occurrences(key))

    def _occurrences(self, key: object) -> Iterator[int]:
        first = 0
        for k, count in enumerate(self._collection.lengths if isinstance(key, str) else ()):
            if count:
                table, chosen = self._table(k), self._collection.rows_of(k)
                rows = table.rows_of(str(key))
                if isinstance(chosen, range):
                    yield from sorted(first + at for row in rows for at in range(row, count, len(table)))
                elif rows:
                    yield from (first + np.flatnonzero(np.isin(np.asarray(chosen) % len(table), rows))).tolist()
            first += count

    def _table(self, k: int) -> MemberTable:
        # Statistics say how samples are accessed; a search through all shards would read as an order without locality.
        pool = self._collection.pool
        misses = pool.misses
        table = self._collection.open(k).table
        pool.misses = misses
        return table

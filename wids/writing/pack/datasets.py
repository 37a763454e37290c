"""Datasets as sources: an index or tars, whose samples are dealt out into other shards.

Rules: members are copied as they are, never decoded. Local shards are read in place, remote ones through a cache
directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from wids.collection import load_shards
from wids.errors import CountMismatchError, SampleError
from wids.index import urls, ustar
from wids.index.keys import encode_name
from wids.readers.pool import OpenShards, default_capacity
from wids.readers.store import Store
from wids.writing.pack.listing import Listing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.index.spec import Shard, ShardList
    from wids.index.table import MemberTable
    from wids.writing.pack.listing import Fields


class DatasetReader:
    """Reads samples of a dataset by index.

    Args:
        shards: of the dataset.
        lengths: samples in each shard.
        cache_dir: where remote shards are kept.
        fields: extensions to read; None: all.
        storage_options: for fsspec.
    """

    def __init__(
        self,
        shards: ShardList,
        lengths: Sequence[int],
        *,
        cache_dir: str,
        fields: frozenset[str] | None,
        storage_options: dict[str, Any] | None,
    ) -> None:
        self._shards, self._fields = shards, fields
        self._store = Store(cache_dir=cache_dir, storage_options=storage_options)
        self._ends = list(accumulate(lengths))
        self._begin()

    def _begin(self) -> None:
        self._pool = OpenShards(self._store, capacity=min(64, default_capacity()), find=self._find, hooks=())

    def _find(self, url: str) -> Shard:
        return self._shards[self._shards.urls.index(url)]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def read(self, item: int) -> tuple[str, Fields]:
        """(key, fields) of a sample.

        Raises:
            WidsError: its shard cannot be read, or it has none of the fields.
        """
        k, row = self._locate(item)
        reader = self._open(k)
        sample = reader.read(row) if self._fields is None else reader.read_fields(row, tuple(self._fields))
        key = sample.pop("__key__")
        if not sample:
            raise SampleError(f"{self._shards.urls[k]}: sample {key!r} has none of the fields to keep", key=key)
        return key, [(extension, value.getvalue()) for extension, value in sample.items()]

    def look(self, item: int, extensions: frozenset[str]) -> tuple[str, frozenset[str], dict[str, bytes]]:
        """(key, extensions of all fields, bytes of those asked for) of a sample.

        Raises:
            WidsError: its shard cannot be read.
        """
        k, row = self._locate(item)
        reader = self._open(k)
        names = frozenset(extension for extension, _, _ in reader.table.members(row))
        wanted = tuple(extensions & names)
        found = reader.read_fields(row, wanted) if wanted else {}
        return reader.table.key(row), names, {name: found[name].getvalue() for name in wanted}

    def measure(self, item: int, key: str | None) -> int:
        """Bytes that a sample takes in an archive."""
        k, row = self._locate(item)
        table = self._open(k).table
        name = table.key(row) if key is None else key
        return sum(
            ustar.member_bytes(encode_name(name + extension), size)
            for extension, _, size in table.members(row)
            if self._fields is None or extension in self._fields
        )

    def identify(self, items: Sequence[int]) -> str:
        """A digest of the samples, and of the shards that they come from."""
        digest = hashlib.sha256(repr((list(items), self._fields and sorted(self._fields))).encode())
        for k in sorted({self._locate(item)[0] for item in items}):
            facts: list[Any] = [self._shards.describe(k)]
            path, is_in_place = self._store.place(self._shards.urls[k])
            if is_in_place:
                with contextlib.suppress(OSError, ValueError):  # it is told when it is read
                    status = os.stat(path)
                    facts += [status.st_size, status.st_mtime_ns]
            digest.update(repr(facts).encode("utf-8", "backslashreplace"))
        return digest.hexdigest()

    def _locate(self, item: int) -> tuple[int, int]:
        k = bisect_right(self._ends, item)
        return k, item - (self._ends[k - 1] if k else 0)

    def _open(self, k: int) -> Any:
        reader = self._pool.open(self._shards[k])
        promised = self._ends[k] - (self._ends[k - 1] if k else 0)
        if len(reader) != promised:
            raise CountMismatchError(
                f"{self._shards.urls[k]}: holds {len(reader)} samples, and the index says {promised}; write the index "
                "again",
                shard=self._shards.urls[k],
                expected=promised,
                found=len(reader),
            )
        return reader


def list_dataset(
    source: Any,
    *,
    cache_dir: str,
    keep_fields: frozenset[str] | None,
    storage_options: dict[str, Any] | None,
    tell: Callable[[int], None],
) -> Listing:
    """The samples of an index, of tars, or of a brace pattern of them, in order.

    Args:
        source: as `wids.ShardListDataset` takes it.
        cache_dir: where remote shards are kept.
        keep_fields: extensions to pack; None: all.
        storage_options: for fsspec.
        tell: called with the number of samples known now and then.

    Raises:
        WidsError: it cannot be read.
    """
    _, shards, storage_options = load_shards(source, storage_options=storage_options)
    store = Store(cache_dir=cache_dir, storage_options=storage_options)
    lengths: list[int] = []
    for k, count in enumerate(shards.nsamples):
        lengths.append(len(_table(store, shards[k])) if count < 0 else count)
        tell(sum(lengths) if count < 0 else 0)
    reader = DatasetReader(shards, lengths, cache_dir=cache_dir, fields=keep_fields, storage_options=storage_options)
    info = shards.header.get("info")
    places = [*shards.urls, source] if isinstance(source, str) else shards.urls
    return Listing(
        items=range(sum(lengths)), reader=reader, info=info if isinstance(info, dict) else None, places=places
    )


def _table(store: Store, shard: Shard) -> MemberTable:
    reader = store.open(shard)
    try:
        return reader.table
    finally:
        reader.close()


def is_dataset(source: str) -> bool:
    """Whether a name is that of an index, of a tar, or of a pattern of tars."""
    # Compressed ones are refused with what to do about it where they are opened.
    return urls.basename_of(source).endswith((".json", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst"))

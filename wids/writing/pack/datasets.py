"""Datasets as sources: an index or tars, whose samples are distributed to other shards.

Rules: members are copied as they are, never decoded. Local shards are read in place, remote ones through a cache
directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from wids.columns.samples import beside
from wids.core.collection.shard_collection import ShardCollection, is_archive, load_shards
from wids.core.index import compiled
from wids.core.place import Place
from wids.core.readers.pool import default_capacity
from wids.core.readers.provider import AutoProvider
from wids.core.tables import headers
from wids.core.tables.fields import Alternatives
from wids.core.tables.keys import encode_name
from wids.errors import SampleError, shown
from wids.hub.repository import parse_name
from wids.writing.pack.listing import SourceListing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.core.collection.shard_collection import Shards
    from wids.core.transport.session import Session
    from wids.writing.pack.listing import Fields


class DatasetReader:
    """Reads samples of a dataset by index.

    Args:
        collection: of its shards, each with its count.
        fields: extensions to read, or `Alternatives`; None: all.
    """

    def __init__(self, collection: ShardCollection, *, fields: Sequence[str] | None) -> None:
        self._collection, self._fields = collection, fields

    def read(self, item: int) -> tuple[str, Fields]:
        """(key, fields) of a sample.

        Raises:
            WidsError: its shard cannot be read, or it has none of the fields.
        """
        k, row = self._collection.locate(item)
        with self._collection.pinned(k) as reader:
            sample = reader.read(row, self._fields)
        key = sample.pop("__key__")
        if not sample:
            raise SampleError(f"{reader.url}: sample {shown(key)} has none of the fields to keep", key=key)
        return key, [(extension, value.getvalue()) for extension, value in sample.items()]

    def look(self, item: int, extensions: frozenset[str]) -> tuple[str, frozenset[str], dict[str, bytes]]:
        """(key, extensions of all fields, bytes of the requested ones) of a sample.

        Raises:
            WidsError: its shard cannot be read.
        """
        k, row = self._collection.locate(item)
        with self._collection.pinned(k) as reader:
            names = frozenset(extension for extension, _, _ in reader.table.members(row))
            wanted = extensions & names
            found = reader.read(row, wanted) if wanted else {}
            return reader.table.key(row), names, {name: found[name].getvalue() for name in wanted}

    def measure(self, item: int, key: str | None) -> int:
        """Bytes that a sample takes in an archive."""
        k, row = self._collection.locate(item)
        table = self._collection.open(k).table
        name = table.key(row) if key is None else key
        span = range(table.starts[row], table.starts[row + 1])
        return sum(
            headers.member_bytes(encode_name(name + table.extensions[table.extension_ids[m]]), table.sizes[m])
            for m in (span if self._fields is None else table.chosen(span, self._fields))
        )

    def identify(self, items: Sequence[int]) -> str:
        """A digest of the samples, and of the shards that they come from."""
        shards, cache = self._collection.shards, self._collection.provider.cache
        places = list(map(self._collection.locate, items))
        fields = self._fields
        if fields is not None and not isinstance(fields, Alternatives):
            fields = sorted(set(fields))
        digest = hashlib.sha256(repr((places, fields)).encode())
        for k in sorted({k for k, _ in places}):
            identity: list[Any] = [shards.describe(k)]
            located = cache.locate(shards[k])
            if located.is_in_place:
                with contextlib.suppress(OSError, ValueError):  # reading it says so
                    status = os.stat(located.path)
                    identity += [status.st_size, status.st_mtime_ns]
            digest.update(repr(identity).encode("utf-8", "backslashreplace"))
        return digest.hexdigest()


def list_dataset(
    source: Shards,
    *,
    cache_dir: str,
    keep_fields: Sequence[str] | None,
    session: Session,
    tell: Callable[[int], None],
) -> SourceListing:
    """The samples of an index, of tars, or of a brace pattern of them, in order.

    Args:
        source: as for `wids.ShardListDataset`.
        cache_dir: where remote shards are kept.
        keep_fields: extensions to pack, or `Alternatives`; None: all.
        session: opens URLs.
        tell: called regularly with the number of counted samples.

    Raises:
        WidsError: it cannot be read.
    """
    _, shards, session = load_shards(source, session=session)
    provider = AutoProvider(cache_dir=cache_dir, session=session, **shards.grouping)
    collection = ShardCollection(shards, provider, capacity=min(64, default_capacity()))
    counted = 0

    def add(nsamples: int) -> None:
        nonlocal counted
        counted += nsamples
        tell(counted)

    collection.count_unknown(open_remote=lambda k: provider.open(shards[k]), on_count=add)
    info = shards.header.get("info")
    places = [*shards.urls, source] if isinstance(source, str) else shards.urls
    return SourceListing(
        items=range(len(collection)),
        reader=DatasetReader(collection, fields=keep_fields),
        info=info if isinstance(info, dict) else None,
        columns=partial(beside(source, collection, cache_dir=cache_dir).find_table, collection),
        places=places,
        keep_fields=keep_fields,
    )


def is_dataset(source: str) -> bool:
    """True if a name is that of an index, of a tar, of a pattern of tars, or of a data set of the Hub."""
    return (
        is_archive(source) or parse_name(source) is not None or Place(source).name.endswith((".json", compiled.SUFFIX))
    )

"""Datasets as sources: an index or tars, whose samples are distributed to other shards.

Rules: members are copied as they are, never decoded. Local shards are read in place, remote ones through a cache
directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from wids.columns.samples import beside
from wids.core.collection.batches import read_batch
from wids.core.collection.shard_collection import ShardCollection, is_archive, load_shards
from wids.core.index import compiled
from wids.core.place import Place
from wids.core.readers.pool import default_capacity
from wids.core.readers.provider import AutoProvider
from wids.core.tables import headers
from wids.core.tables.fields import Alternatives
from wids.core.tables.keys import encode_name
from wids.errors import SampleError, WidsError, shown
from wids.hub.repository import parse_name
from wids.writing.pack.listing import SourceListing, read_one_by_one

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wids.core.collection.shard_collection import Shards
    from wids.core.index.shardlist import ShardList
    from wids.core.readers.base import Sample
    from wids.core.tables.table import MemberTable
    from wids.core.transport.session import Session
    from wids.writing.pack.listing import Fields

# Samples that are read together, at most: their number, and bytes of their members.
_LARGEST_BATCH, _BATCH_BYTES = 1 << 14, 64 << 20


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
        found = self._split({**sample, "__shard__": reader.url})
        if isinstance(found, WidsError):
            raise found
        return found

    def _split(self, sample: Sample) -> tuple[str, Fields] | SampleError:
        """(key, fields) of a sample as it was read."""
        key, fields = sample["__key__"], [(name, data) for name, data in sample.items() if not name.startswith("__")]
        if not fields:
            words = f"{sample['__shard__']}: sample {shown(key)} has none of the fields to keep"
            return SampleError(words, key=key)
        return key, [(name, data.getvalue()) for name, data in fields]

    def read_each(self, items: Sequence[int]) -> Iterator[tuple[str, Fields] | WidsError]:
        """`read` of several samples, in their order; many at a time are read, shard by shard."""
        for first in range(0, len(items), _LARGEST_BATCH):
            near = list(items[first : first + _LARGEST_BATCH])
            try:
                ends = np.cumsum(self._weigh(near))
            except WidsError:  # of the shard of one of them
                yield from read_one_by_one(self, near)
                continue
            at, end = 0, 0
            while at < len(near):
                end = max(at + 1, int(np.searchsorted(ends, (ends[at - 1] if at else 0) + _BATCH_BYTES, "right")))
                found = self._read_batch(near[at:end])[::-1]
                at = end
                while found:
                    yield found.pop()

    def _weigh(self, items: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Bytes of the members that are read of each sample."""
        weights = np.zeros(len(items), np.int64)
        order = np.argsort(items, kind="stable").tolist()
        for position, (table, row) in zip(order, self._look_up([items[position] for position in order]), strict=True):
            span, sizes = range(table.starts[row], table.starts[row + 1]), table.sizes
            if self._fields is None:
                weights[position] = sum(sizes[span.start : span.stop])
            else:
                weights[position] = sum(sizes[m] for m in table.chosen(span, self._fields))
        return weights

    def _look_up(self, items: Sequence[int]) -> Iterator[tuple[MemberTable, int]]:
        """The member table of each sample, and its row there; the samples are ascending."""
        places = list(map(self._collection.locate, items))
        shards = [(k, [row for _, row in group]) for k, group in itertools.groupby(places, key=itemgetter(0))]
        for (k, near), (_, rows) in zip(self._collection.member_tables(k for k, _ in shards), shards, strict=True):
            table = self._collection.open(k).table if near is None else near
            for row in rows:
                yield table, row

    def _read_batch(self, items: list[int]) -> list[tuple[str, Fields] | WidsError]:
        try:
            samples = read_batch(self._collection, items, self._fields)
        except WidsError:  # which of them it was is not known
            return list(read_one_by_one(self, items))
        return [self._split(sample) for sample in samples]

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

    def measure_each(self, items: Sequence[int], keys: Sequence[str] | None) -> list[int]:
        """Bytes that each sample takes in an archive, in ascending order of the samples; no member is read."""
        found = list[int]()
        for k, (table, row) in enumerate(self._look_up(items)):
            found.append(self._measure(table, row, table.key(row) if keys is None else keys[k]))
        return found

    def _measure(self, table: MemberTable, row: int, key: str) -> int:
        span = range(table.starts[row], table.starts[row + 1])
        ids, sizes, extensions = table.extension_ids, table.sizes, table.extensions
        return sum(
            headers.member_bytes(encode_name(key + extensions[ids[m]]), sizes[m])
            for m in (span if self._fields is None else table.chosen(span, self._fields))
        )

    def keys_of(self, items: Sequence[int]) -> list[str]:
        """The keys of samples, which are ascending."""
        return [table.key(row) for table, row in self._look_up(items)]

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


def open_dataset(shards: ShardList, *, cache_dir: str, session: Session) -> ShardCollection:
    """The samples of shards, which are read here or through the cache; no file is opened yet."""
    provider = AutoProvider(cache_dir=cache_dir, session=session, **shards.grouping)
    return ShardCollection(shards, provider, capacity=min(64, default_capacity()))


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
    collection = open_dataset(shards, cache_dir=cache_dir, session=session)
    counted = 0

    def add(nsamples: int) -> None:
        nonlocal counted
        counted += nsamples
        tell(counted)

    collection.count_unknown(open_remote=lambda k: collection.provider.open(shards[k]), on_count=add)
    return list_collection(source, collection, cache_dir=cache_dir, keep_fields=keep_fields)


def list_collection(
    source: Shards, collection: ShardCollection, *, cache_dir: str, keep_fields: Sequence[str] | None
) -> SourceListing:
    """The samples of an open dataset, in order; see `list_dataset`.

    Args:
        source: that it was made of.
        collection: of its shards, each with its count.
        cache_dir: for a remote table of columns.
        keep_fields: extensions to pack, or `Alternatives`; None: all.
    """
    shards = collection.shards
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

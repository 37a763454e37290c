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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wids.columns.samples import beside
from wids.core.collection.arguments import OpeningOptions, parse_cache
from wids.core.collection.batches import read_batch, read_sample
from wids.core.collection.joined_fields import Owners, Wishes
from wids.core.collection.joining import open_listed
from wids.core.collection.shard_collection import ShardCollection, is_archive, load_shards
from wids.core.index import compiled
from wids.core.index.view_file import KEY as COMPANIONS
from wids.core.place import Place
from wids.core.readers.pool import default_capacity
from wids.core.readers.provider import AutoProvider
from wids.core.tables import headers
from wids.core.tables.fields import EMPTY, Alternatives
from wids.core.tables.keys import encode_name
from wids.errors import SampleError, WidsError, shown
from wids.hub.repository import parse_name
from wids.writing.pack.listing import SourceListing, read_one_by_one

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wids.core.collection.companions import Companion
    from wids.core.collection.shard_collection import Shards
    from wids.core.index.shardlist import ShardList
    from wids.core.readers.base import Sample
    from wids.core.tables.fields import Wanted
    from wids.core.tables.table import MemberTable
    from wids.core.transport.session import Session
    from wids.writing.pack.listing import Fields

# Samples that are read together, at most: their number, and bytes of their members.
_LARGEST_BATCH, _BATCH_BYTES = 1 << 14, 64 << 20


class _Part(NamedTuple):
    """Members of some samples that lie in one list of shards.

    Attributes:
        collection: of the shards.
        companion: whose shards they are; None: those of the dataset itself.
        fields: that are read of them; None: all.
        positions: of those of the samples that have a row there.
        rows: their indices in the collection.
    """

    collection: ShardCollection
    companion: Companion | None
    fields: Wanted
    positions: Sequence[int]
    rows: Sequence[int]

    def tables(self) -> Iterator[tuple[int, MemberTable, int]]:
        """(position, member table of its shard, row there) of each sample, shard by shard; no member is read."""
        order = sorted(range(len(self.rows)), key=self.rows.__getitem__)
        places = [(*self.collection.locate(self.rows[k]), self.positions[k]) for k in order]
        groups = [(k, list(group)) for k, group in itertools.groupby(places, key=itemgetter(0))]
        for (k, near), (_, group) in zip(self.collection.member_tables(k for k, _ in groups), groups, strict=True):
            table = self.collection.open(k).table if near is None else near
            for _, row, position in group:
                yield position, table, row

    def members(self, table: MemberTable, row: int) -> Sequence[int]:
        """The members that are read of a sample."""
        span = range(table.starts[row], table.starts[row + 1])
        return span if self.fields is None else table.chosen(span, self.fields)

    def name_of(self, extension: str) -> str:
        """The field of the sample that a member is."""
        return extension if self.companion is None else self.companion.name_of(extension)


class DatasetReader:
    """Reads samples of a dataset by index.

    Args:
        collection: of its shards, each with its count.
        fields: extensions to read, or `Alternatives`; None: all.
        companions: have further fields of the samples.
    """

    def __init__(
        self, collection: ShardCollection, *, fields: Sequence[str] | None, companions: Sequence[Companion] = ()
    ) -> None:
        self._collection, self._fields, self._companions = collection, fields, companions
        self._wishes = Wishes(Owners(companions, collection), fields, None) if companions else None
        self._members: Wanted = fields if self._wishes is None else self._wishes.members

    def read(self, item: int) -> tuple[str, Fields]:
        """(key, fields) of a sample.

        Raises:
            WidsError: its shard cannot be read, or it has none of the fields.
        """
        sample = read_sample(self._collection, item, self._members)
        if self._wishes is not None:
            self._wishes.add_to(sample, self._collection)
        found = self._split(sample)
        if isinstance(found, WidsError):
            raise found
        return found

    def _split(self, sample: Sample) -> tuple[str, Fields] | SampleError:
        """(key, fields) of a sample as it was read."""
        key, fields = sample["__key__"], [(name, data) for name, data in sample.items() if name.startswith(".")]
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

    def _read_batch(self, items: list[int]) -> list[tuple[str, Fields] | WidsError]:
        try:
            samples = read_batch(self._collection, items, self._members)
            if self._wishes is not None:
                self._wishes.add_to_all(samples, self._collection)
        except WidsError:  # which of them it was is not known
            return list(read_one_by_one(self, items))
        return [self._split(sample) for sample in samples]

    def _parts(self, items: Sequence[int]) -> Iterator[_Part]:
        """The places of the members of samples."""
        yield _Part(self._collection, None, self._members, range(len(items)), items)
        for companion, members in () if self._wishes is None else self._wishes.theirs():
            rows = [companion.row_of(self._collection.whole_index(item)) for item in items]
            positions = [position for position, row in enumerate(rows) if row >= 0]
            yield _Part(companion.collection, companion, members, positions, [rows[k] for k in positions])

    def _weigh(self, items: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Bytes of the members that are read of each sample."""
        weights = np.zeros(len(items), np.int64)
        for part in self._parts(items):
            for position, table, row in part.tables():
                weights[position] += sum(map(table.sizes.__getitem__, part.members(table, row)))
        return weights

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
            key, data = reader.table.key(row), {name: found[name].getvalue() for name in wanted}
        for companion in self._companions:
            names |= self._look_beside(companion, item, extensions, data)
        return key, names, data

    def _look_beside(
        self, companion: Companion, item: int, extensions: frozenset[str], data: dict[str, bytes]
    ) -> frozenset[str]:
        """The fields that a companion has of a sample; the bytes of the requested ones come into ``data``."""
        index = companion.row_of(self._collection.whole_index(item))
        if index < 0:
            return frozenset()
        k, row = companion.collection.locate(index)
        with companion.collection.pinned(k) as reader:
            kept = None if companion.fields is None else frozenset(map(str.casefold, companion.fields))
            names = {
                companion.name_of(extension): extension
                for extension, _, _ in reader.table.members(row)
                if extension != EMPTY and (kept is None or extension.casefold() in kept)
            }
            wanted = extensions & names.keys()
            found = reader.read(row, [names[name] for name in wanted]) if wanted else {}
        data.update((name, found[names[name]].getvalue()) for name in wanted)
        return frozenset(names)

    def measure_each(self, items: Sequence[int], keys: Sequence[str] | None) -> list[int]:
        """Bytes that each sample takes in an archive, at most; no member is read."""
        found = [0] * len(items)
        keys = self.keys_of(items) if keys is None else keys
        for part in self._parts(items):
            for position, table, row in part.tables():
                ids, sizes, key = table.extension_ids, table.sizes, keys[position]
                found[position] += sum(
                    headers.member_bytes(encode_name(key + part.name_of(table.extensions[ids[m]])), sizes[m])
                    for m in part.members(table, row)
                )
        return found

    def keys_of(self, items: Sequence[int]) -> list[str]:
        """The keys of samples."""
        keys = [""] * len(items)
        for position, table, row in _Part(self._collection, None, None, range(len(items)), items).tables():
            keys[position] = table.key(row)
        return keys

    def identify(self, items: Sequence[int]) -> str:
        """A digest of the samples, and of the shards that they come from."""
        fields = self._fields
        if fields is not None and not isinstance(fields, Alternatives):
            fields = sorted(set(fields))
        digest = hashlib.sha256(repr(fields).encode())
        for part in self._parts(items):
            digest.update(_identify(part))
        return digest.hexdigest()


def _identify(part: _Part) -> bytes:
    """A text for members, their fields, and the shards that they come from."""
    shards, cache = part.collection.shards, part.collection.provider.cache
    places = list(map(part.collection.locate, part.rows))
    identities: list[Any] = [places, list(part.positions), part.name_of(""), None]
    if part.companion is not None and part.companion.fields is not None:
        identities[-1] = sorted(part.companion.fields)
    for k in sorted({k for k, _ in places}):
        identities.append(shards.describe(k))
        located = cache.locate(shards[k])
        if located.is_in_place:
            with contextlib.suppress(OSError, ValueError):  # reading it says so
                status = os.stat(located.path)
                identities += [status.st_size, status.st_mtime_ns]
    return repr(identities).encode("utf-8", "backslashreplace")


def open_dataset(shards: ShardList, *, cache_dir: str, session: Session) -> ShardCollection:
    """The samples of shards, which are read here or through the cache; no file is opened yet."""
    provider = AutoProvider(cache_dir=cache_dir, session=session, **shards.grouping)
    return ShardCollection(shards, provider, capacity=min(64, default_capacity()))


def open_companions(
    collection: ShardCollection, source: Shards, *, cache_dir: str, session: Session
) -> tuple[Companion, ...]:
    """The companions that the index of a dataset names.

    Args:
        collection: of the dataset.
        source: its index.
        cache_dir: where remote files are kept.
        session: opens URLs.

    Raises:
        SpecError: they are malformed, or of other shards. FetchError: one cannot be read.
    """
    if not collection.shards.header.get(COMPANIONS):
        return ()
    options = OpeningOptions(
        cache=parse_cache(cache_dir=cache_dir, localname=None, cache_size=None, keep=False, cache_local=False),
        reading={"access": "fetch", "early_reads": True, "use_mmap": False},
        indexing={"base": None, "options": None, "session": session, "allow_local": False},
        hooks=(),
        capacity=min(64, default_capacity()),
        on_count_mismatch="error",
        is_prefetching=bool,
    )
    return open_listed(collection, options, None, f"{source}: " if isinstance(source, str) else "")


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
    _, shards, opened = load_shards(source, session=session)
    collection = open_dataset(shards, cache_dir=cache_dir, session=opened)
    counted = 0

    def add(nsamples: int) -> None:
        nonlocal counted
        counted += nsamples
        tell(counted)

    collection.count_unknown(open_remote=lambda k: collection.provider.open(shards[k]), on_count=add)
    companions = open_companions(collection, source, cache_dir=cache_dir, session=session)
    return list_collection(source, collection, companions, cache_dir=cache_dir, keep_fields=keep_fields)


def list_collection(
    source: Shards,
    collection: ShardCollection,
    companions: Sequence[Companion],
    *,
    cache_dir: str,
    keep_fields: Sequence[str] | None,
) -> SourceListing:
    """The samples of an open dataset, in order; see `list_dataset`.

    Args:
        source: that it was made of.
        collection: of its shards, each with its count.
        companions: have further fields of its samples.
        cache_dir: for a remote table of columns.
        keep_fields: extensions to pack, or `Alternatives`; None: all.
    """
    shards = collection.shards
    info = shards.header.get("info")
    places = [*shards.urls, source] if isinstance(source, str) else [*shards.urls]
    for companion in companions:
        places += [*companion.collection.shards.urls, *filter(None, [companion.collection.index_url])]
    return SourceListing(
        items=range(len(collection)),
        reader=DatasetReader(collection, fields=keep_fields, companions=companions),
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

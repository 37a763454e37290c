"""The index of a dataset as a program sees it and writes into it: ``dataset.shards``, ``spec``, lengths, places.

Without torch.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, overload

import numpy as np

from wids.collection.keys import Keys
from wids.collection.shard_collection import load_shards
from wids.errors import SpecError
from wids.index import checks
from wids.index.fingerprint import contents, fingerprint
from wids.index.live import FixedList, LazyShards, LiveDict, live_shard, live_spec
from wids.index.spec import PACKS, list_shards, own_packs
from wids.order.layout import digest

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from wids.collection.shard_collection import ShardCollection, Shards
    from wids.columns.samples import SampleColumns
    from wids.index.spec import ShardList
    from wids.readers.pool import OpenShards

T = TypeVar("T")


class Location(NamedTuple):
    """Where a sample is: number of its shard in the index, row in that shard."""

    shard: int
    row: int


class _Followed(Generic[T]):
    """An attribute of the dataset that follows its collection, until a program sets one of its own."""

    def __init__(self, find: Callable[[ShardCollection], T]) -> None:
        self._find = find

    @overload
    def __get__(self, dataset: None, kind: type) -> Self: ...
    @overload
    def __get__(self, dataset: WithIndex, kind: type) -> T: ...
    def __get__(self, dataset: WithIndex | None, kind: type) -> Self | T:
        return self if dataset is None else self._find(dataset._collection)  # noqa: SLF001 - of this module


class LiveIndex:
    """The index of a collection, which follows assignments to its entries."""

    def __init__(self, collection: ShardCollection) -> None:
        self._collection = collection
        self._shards: Sequence[dict[str, Any]] | None = None
        self._fingerprint: str | None = None
        self._contents: dict[str, str] | None = None

    @property
    def shards(self) -> Sequence[dict[str, Any]]:
        """The shards as dicts; a key that is set in one of them holds from then on."""
        if self._shards is None:
            shards, name = self._collection.shards, "dataset.shards"
            if shards.is_mapped:
                make = partial(live_shard, shards, take=weakref.WeakMethod(self._follow_shard))
                self._shards = LazyShards(len(shards), make, name=name)
            else:
                self._shards = FixedList(map(self._live, range(len(shards))), name=name)
        return self._shards

    @shards.setter
    def shards(self, shards: Shards) -> None:
        self._follow({**self._collection.shards.header, "shardlist": shards})

    @property
    def spec(self) -> dict[str, Any]:
        """The index as a dict, with `shards` in it; a key that is set in it holds from then on."""
        return live_spec(self._collection.shards, self.shards, weakref.WeakMethod(self._follow))

    @spec.setter
    def spec(self, spec: dict[str, Any]) -> None:
        self._follow(spec)

    @property
    def fingerprint(self) -> str:
        """See `fingerprint`; of the shards as they are now, and of which of their samples a view has."""
        if self._fingerprint is None:
            chosen = self._collection.shards.selection
            whole = fingerprint(self._collection.shards)
            self._fingerprint = whole if chosen is None else digest(whole.encode(), chosen.digest.encode())
        return self._fingerprint

    @property
    def contents(self) -> dict[str, str]:
        """See `wids.index.fingerprint.contents`; of all shards as they are now."""
        if self._contents is None:
            self._contents = contents(self._collection.shards)
        return self._contents

    def describe(self, k: int) -> dict[str, Any]:
        """``shards[k]``, which does not make the dicts of all the others."""
        if self._shards is None and not self._collection.shards.is_mapped:
            return self._live(k)
        return self.shards[k]

    def _live(self, k: int) -> LiveDict:
        return live_shard(self._collection.shards, k, weakref.WeakMethod(self._follow_shard))

    def _follow(self, spec: dict[str, Any]) -> None:
        """Follow an index that a program wrote, or wrote into.

        Raises:
            SpecError: it has no shards, or sub-datasets; nothing has changed.
        """
        self._refuse_view()
        if "shardlist" not in spec or spec.get("datasets"):
            raise SpecError(
                "a spec that is assigned has its shards in 'shardlist' and no 'datasets'; make a new ShardListDataset "
                "of an index with sub-datasets",
                path="shardlist",
            )
        header, shards, collection = dict(spec), spec["shardlist"], self._collection
        del header["shardlist"]
        before = collection.shards
        is_named_anew = header.get(PACKS) != before.header.get(PACKS)
        packs = own_packs(header, None, None) if is_named_anew else before.all_packs()
        if shards is not self._shards:
            _, found, _ = load_shards(shards, storage_options=collection.provider.storage_options)
            found.use_packs(packs)
            collection.close()  # a shard that has been written anew is counted anew
            collection.count_unknown(found)
            collection.adopt(found)
            self._shards = self._fingerprint = self._contents = None
        elif is_named_anew:
            collection.shards.use_packs(packs)
        collection.shards.header = header

    def _follow_shard(self, shards: ShardList, k: int, desc: dict[str, Any]) -> None:
        """Follow what a program wrote into the dict of shard ``k``; ``shards``: the list that it was taken from.

        Raises:
            SpecError: it is no shard any more; nothing has changed.
        """
        if shards is not self._collection.shards:  # which is no longer the collection's
            return
        self._refuse_view()
        row = list_shards([desc], first=k)
        if row.nsamples[0] != shards.nsamples[k]:
            checks.check_total([*shards.nsamples[:k], *row.nsamples, *shards.nsamples[k + 1 :]])
        self._collection.replace(k, row)
        self._fingerprint = self._contents = None

    def _refuse_view(self) -> None:
        if self._collection.shards.selection is not None:
            raise SpecError(
                "the shards of a view are those that its dataset had; change them there, and make the view anew",
                path="",
            )


class WithIndex:
    """A dataset with an index: which shards it has, how many samples are in each, and where a sample is."""

    _collection: ShardCollection
    _columns: SampleColumns
    _index: LiveIndex
    cache: OpenShards
    lengths = _Followed[Sequence[int]](lambda collection: collection.lengths)
    cum_lengths = _Followed[np.ndarray[Any, np.dtype[np.int64]]](lambda collection: collection.cum_lengths)
    total_length = _Followed[int](len)

    def __len__(self) -> int:
        return self.total_length

    @property
    def shards(self) -> Sequence[dict[str, Any]]:
        """The shards as dicts: ``url`` (resolved), ``nsamples``, and all other keys that the index has for them.

        A list; of an index with 20,000 shards or more a sequence that makes each dict when it is asked for
        (``list(dataset.shards)`` makes all).

        They may be replaced by assigning a list (as the constructor takes it, URLs resolved), and a key that is set in
        one of the dicts holds from the next sample on: lengths, keys and prefetching follow. Samplers and loaders have
        to be made anew. The list itself cannot be changed in place (TypeError).
        """
        return self._index.shards

    @shards.setter
    def shards(self, shards: Shards) -> None:
        self._columns.check_unused()
        self._index.shards = shards

    @property
    def spec(self) -> dict[str, Any]:
        """The index as a dict, its shards resolved; as `shards`, it may be assigned and written into."""
        return self._index.spec

    @spec.setter
    def spec(self, spec: dict[str, Any]) -> None:
        self._columns.check_unused()
        self._index.spec = spec

    @property
    def fingerprint(self) -> str:
        """A digest of the shards' names and counts, in order: the same wherever the shards lie.

        Directories count where shards in several have the same name, then from where their paths part.
        """
        return self._index.fingerprint

    @property
    def contents(self) -> dict[str, str]:
        """Digests of the shards' checksums and sizes, by kind (crc32, md5, filesize), of the kinds that all have.

        Sampler states and saved views are of these contents: they are refused where the shards were written anew.
        """
        return self._index.contents

    def locate(self, index: int) -> Location:
        """Shard and row of sample ``index`` as the index counts, without opening anything; negative: from the end.

        Raises:
            IndexError: out of range. TypeError: not an integer.
        """
        return Location(*self._collection.locate(self._collection.plain(index)))

    @property
    def keys(self) -> Keys:
        """Sample keys: ``keys[i]``, ``keys.index(key)``, ``keys.find(key)``, ``key in keys``.

        Shards are opened as needed: free for local and cached ones, a download for others.
        """
        return Keys(self._collection, of=self)

"""The index behind a dataset: attributes and methods that `wids.ShardListDataset` inherits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from wids.core.collection.keys import Keys
from wids.core.collection.shard_collection import load_shards
from wids.core.files.held import holding
from wids.core.files.lazy import Computed
from wids.core.index.readonly import Spec
from wids.core.index.spec import PACKS, own_packs
from wids.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from wids.columns.samples import SampleColumns
    from wids.core.collection.shard_collection import ShardCollection, Shards
    from wids.core.readers.pool import OpenShards


class Location(NamedTuple):
    """Where a sample is: number of its shard in the index, row in that shard."""

    shard: int
    row: int


@holding
class WithIndex:
    """A dataset with an index: which shards it has, how many samples are in each, and where a sample is."""

    _collection: ShardCollection
    _columns: SampleColumns
    cache: OpenShards
    lengths: Sequence[int]
    cum_lengths: np.ndarray[Any, np.dtype[np.int64]]
    total_length: int

    def _take(self, collection: ShardCollection) -> None:
        """Be a dataset of this collection."""
        self._collection, self.cache = collection, collection.pool
        self.__dict__.update(self._counts())

    def _counts(self) -> dict[str, Any]:
        """The attributes that follow from the collection, unless a program has set them."""
        collection = self._collection
        return {
            "lengths": collection.lengths,
            "cum_lengths": collection.cum_lengths,
            "total_length": len(collection),
        }

    def __len__(self) -> int:
        return self.total_length

    @property
    def shards(self) -> Sequence[dict[str, Any]]:
        """The shards as dicts, with ``url`` (resolved), ``nsamples``, and all other keys that the index has for them.

        A list; of 20,000 shards or more a sequence that makes each dict on access (``list(dataset.shards)``
        makes all). Neither the list nor a dict in it can be changed (TypeError); copies of them can.

        Assign a list (as the constructor takes it, URLs resolved) to replace the shards: ``dataset.shards =
        dataset.shards[:10]``, ``dataset.shards = [{**row, "url": moved(row["url"])} for row in dataset.shards]``.
        Lengths, keys and prefetching follow. Make samplers and loaders again.
        """
        return self._collection.rows

    @shards.setter
    def shards(self, shards: Shards) -> None:
        self._assign(self._collection.shards.header, shards)

    @property
    def spec(self) -> dict[str, Any]:
        """The index as a dict, its shards resolved; as `shards`, it may be assigned, and cannot be changed."""
        return Spec(self._collection.shards.header, shardlist=self._collection.rows)

    @spec.setter
    def spec(self, spec: dict[str, Any]) -> None:
        rest = dict(spec)
        if "shardlist" not in rest or rest.get("datasets"):
            raise SpecError(
                "a spec that is assigned has its shards in 'shardlist' and no 'datasets'; make a new ShardListDataset "
                "of an index with sub-datasets",
                path="shardlist",
            )
        self._assign(rest, rest.pop("shardlist"))

    def _assign(self, header: dict[str, Any], shards: Shards) -> None:
        """Have another index.

        Raises:
            ColumnsError, SpecError: that cannot be; nothing has changed.
        """
        collection, found = self._collection, self._collection.shards
        self._columns.check_unused()
        if found.selection is not None:
            raise SpecError(
                "a view keeps the shards of its dataset; change them there, and make the view again",
                path="",
            )
        is_named_anew = header.get(PACKS) != found.header.get(PACKS)
        packs = own_packs(header, None, None) if is_named_anew else found.all_packs()
        if shards is not collection.rows:
            _, found, _ = load_shards(shards, session=collection.provider.session)
            collection.close()  # a rewritten shard is counted again
            found = collection.counted(found).with_packs(packs)
        elif is_named_anew:
            found = found.with_packs(packs)
        collection.adopt(found.with_header(header))
        self._take(collection)

    @Computed
    def fingerprint(self) -> str:
        """A digest of the shards' names and counts, in order, independent of the shards' place.

        Directories count where shards in several have the same name, then from where their paths part.
        """
        return self._collection.fingerprint

    @Computed
    def contents(self) -> dict[str, str]:
        """Digests of the shards' checksums and sizes, by kind (crc32, md5, filesize), of the kinds that all have.

        Sampler states and saved views are of these contents: they are refused where the shards were rewritten.
        """
        return self._collection.contents

    def locate(self, index: int) -> Location:
        """Shard and row of sample ``index`` as the index counts, without opening anything; negative: from the end.

        Args:
            index: of a sample.

        Raises:
            IndexError: out of range. TypeError: not an integer.
        """
        return Location(*self._collection.locate(self._collection.plain(index)))

    @Computed
    def keys(self) -> Keys:
        """The keys of the samples, as ``keys[i]``, ``keys.index(key)``, ``keys.find(key)``, ``key in keys``.

        Shards are opened as needed: free for local and cached ones, a download for others.
        """
        return self._keys()

    def _keys(self) -> Keys:
        return Keys(self._collection, of=self)

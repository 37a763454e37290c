"""``dataset.shards`` and ``dataset.spec``: the index of a collection as a program sees it and writes into it.

Without torch.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from wids.collection import load_shards
from wids.errors import SpecError
from wids.index import checks
from wids.index.fingerprint import fingerprint
from wids.index.live import FixedList, LazyShards, LiveDict, live_shard, live_spec
from wids.index.spec import PACKS, list_shards, own_packs
from wids.order.layout import digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wids.collection import ShardCollection, Shards
    from wids.index.spec import ShardList


class LiveIndex:
    """The index of a collection, which follows what is written into it."""

    def __init__(self, collection: ShardCollection) -> None:
        self._collection = collection
        self._shards: Sequence[dict[str, Any]] | None = None
        self._fingerprint: str | None = None

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
            self._shards = self._fingerprint = None
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
        self._fingerprint = None

    def _refuse_view(self) -> None:
        if self._collection.shards.selection is not None:
            raise SpecError(
                "the shards of a view are those that its dataset had; change them there, and make the view anew",
                path="",
            )

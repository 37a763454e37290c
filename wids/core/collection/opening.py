"""The way in which a dataset opens shards: its own, and those of its companions. Without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from wids.core.collection import arguments
from wids.core.collection.shard_collection import ShardCollection, load_shards
from wids.core.readers.provider import AutoProvider

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.core.collection.arguments import CacheOptions, IndexOptions, ReadOptions
    from wids.core.collection.shard_collection import OnCountMismatch, Shards
    from wids.core.index.shardlist import ShardList
    from wids.core.tables.table import Group, KeyRule
    from wids.core.transport.session import Session
    from wids.events import Hook


class OpeningOptions(NamedTuple):
    """The arguments of a dataset that say how shards are opened.

    Attributes:
        cache: see `wids.core.collection.arguments.parse_cache`.
        reading: see `wids.core.collection.arguments.parse_reading`.
        indexing: see `wids.core.collection.arguments.parse_index`.
        hooks: called with every event.
        capacity: shards kept open.
        on_count_mismatch: see `ShardCollection`.
        is_prefetching: see `AutoProvider`.
    """

    cache: CacheOptions
    reading: ReadOptions
    indexing: IndexOptions
    hooks: Sequence[Hook]
    capacity: int | None
    on_count_mismatch: OnCountMismatch
    is_prefetching: Callable[[], bool]

    def load(self, shards: Shards) -> tuple[str | None, ShardList, Session]:
        """`load_shards` of the argument of a program."""
        return load_shards(shards, **self.indexing, cache_dir=self.cache["cache_dir"])

    def collect(
        self, shards: ShardList, session: Session, *, rule: KeyRule | None = None, group: Group | None = None
    ) -> ShardCollection:
        """A collection of shards, some of which may have no count.

        Args:
            shards: the shards.
            session: opens them.
            rule: see `wids.core.tables.table.build_table`; None: as their index says.
            group: likewise.
        """
        provider = AutoProvider(
            **self.cache,
            **self.reading,
            **shards.choose_grouping(rule=rule, group=group),
            session=session.with_hooks(self.hooks),
            is_prefetching=self.is_prefetching,
            checks_counts=self.on_count_mismatch == "error",
        )
        return ShardCollection(
            shards,
            provider,
            capacity=self.capacity,
            hooks=self.hooks,
            on_count_mismatch=self.on_count_mismatch,
            advice=arguments.advise,
            hints_at_merged=rule is None and "key_rule" not in shards.header,
        )

    def open(self, shards: Any) -> ShardCollection:
        """The collection of another index, with its counts known.

        Args:
            shards: as the first argument of a dataset.

        Raises:
            SpecError: it is malformed. FetchError: it cannot be read.
        """
        index = {**self.indexing, "base": None, "options": None}
        _, listed, session = load_shards(shards, **index, cache_dir=self.cache["cache_dir"])  # type: ignore[arg-type]
        collection = self.collect(listed, session)
        listed = collection.counted(listed)
        collection.adopt(listed)
        collection.index_url = arguments.index_url_of(shards, None, None, listed)
        return collection

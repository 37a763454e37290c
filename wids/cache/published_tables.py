"""Published member tables of remote shards: from the packs that their index names, else from beside the shards."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from wids.cache import member_tables
from wids.cache.table_packs import TablePacks
from wids.errors import FetchError, ShardNotFoundError, TableError
from wids.events import TableRead, emit, logger
from wids.transport import retrying
from wids.transport.failures import forget_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.events import Hook
    from wids.index.spec import Shard
    from wids.index.table import MemberTable


class PublishedTables:
    """Reads them; threads may share it.

    Args:
        cache_dir: where the directories of packs are kept; None: in memory.
        storage_options: for fsspec.
        hooks: called with a `TableRead` for each that was read.
    """

    def __init__(
        self, *, cache_dir: str | None, storage_options: dict[str, Any] | None = None, hooks: Sequence[Hook] = ()
    ) -> None:
        self._storage_options, self._hooks = storage_options, hooks
        self._packs = TablePacks(cache_dir=cache_dir, storage_options=storage_options, hooks=hooks)

    def in_packs(self, shard: Shard) -> bool:
        """Whether a pack may have the table of a shard, as far as is known."""
        return self._packs.may_have(shard)

    def open_packs(self, shard: Shard, *, seconds: float) -> None:
        """See `wids.cache.table_packs.TablePacks.open`."""
        self._packs.open(shard, seconds=seconds)

    def load(self, shard: Shard, *, shard_bytes: int) -> MemberTable | None:
        """The table of a shard of so many bytes; None when there is none, or none that can be its own."""
        try:
            return self.read(shard, shard_bytes=shard_bytes)
        except (TableError, FetchError) as error:  # the headers are read instead
            if not isinstance(error, member_tables.NOT_PUBLISHED):
                logger.warning("%s", error)
            forget_frames(error)  # the shard is opened in another way, and the error is in a cycle with itself
            return None

    def read(
        self,
        shard: Shard,
        *,
        shard_bytes: int | None,
        seconds: float = retrying.FIRST_SECONDS,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> MemberTable:
        """The table of a shard; for arguments and errors see `wids.cache.member_tables.read_beside`."""
        url = shard.url
        if not member_tables.may_be_published(url):
            raise ShardNotFoundError(f"{url}: has no published member table", url=url)
        table = self._packs.read(shard, shard_bytes=shard_bytes, seconds=seconds, is_cancelled=is_cancelled)
        if table is not None:
            return table
        start = time.perf_counter()
        beside = member_tables.read_beside(
            shard,
            shard_bytes=shard_bytes,
            storage_options=self._storage_options,
            seconds=seconds,
            is_cancelled=is_cancelled,
        )
        took = time.perf_counter() - start
        emit(self._hooks, TableRead(url=url, requests=1, size_bytes=beside.nbytes, seconds=took))
        return beside

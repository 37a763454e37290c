"""From a shard's URL to a reader of its members where they are: what is needed of it is its member table.

Rules: a table comes from memory, else from beside the shard (``<shard>.widx``, as ``wids index create --members``
publishes it), else from the shard's headers. One from beside it is used only if it is of the shard's size and md5, as
far as these are known; the reader finds out the rest.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from wids.errors import FetchDeniedError, FetchError, ShardNotFoundError, TableError
from wids.events import logger
from wids.index import headers, urls
from wids.index import table as tables
from wids.readers import member_tables
from wids.readers.memo import Remembered
from wids.readers.remote import RangeReader
from wids.transport import range_client, retrying
from wids.transport.failures import forget_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.events import Hook
    from wids.index.spec import Shard
    from wids.index.table import Group, KeyRule, MemberTable

Access: TypeAlias = Literal["fetch", "range", "auto"]

# A table beside a shard that is longer than this is not read, whatever the shard's size.
_MOST_TABLE_BYTES = 512 << 20


def parse_access(access: Any) -> Access:
    """Check what a caller gave.

    Raises:
        ValueError: it is none of the three.
    """
    if access not in ("fetch", "range", "auto"):
        raise ValueError(
            f"access is {access!r}; it is 'fetch' (whole shards, into the cache), 'range' (members, by byte ranges) "
            "or 'auto' (members first, whole shards once that is cheaper)"
        )
    found: Access = access
    return found


class RangeStore:
    """Opens shards where they are.

    Args:
        is_final: a shard that gives no ranges is an error, and reading on never turns into fetching; else both do.
        storage_options: for fsspec.
        rule, group: see `wids.index.table.build_table`.
        hooks: told of every event.

    Attributes:
        drop: called with the URL of a shard that had better be fetched from now on.
    """

    drop: Callable[[str], None] | None = None

    def __init__(
        self,
        *,
        is_final: bool,
        storage_options: dict[str, Any] | None,
        rule: KeyRule,
        group: Group,
        hooks: Sequence[Hook],
    ) -> None:
        self._is_final, self._storage_options, self._hooks = is_final, storage_options, hooks
        self._rule: KeyRule = rule
        self._group: Group = group
        # URL -> (table, whether it comes from the shard's own headers).
        self._tables: Remembered[tuple[MemberTable, bool]] = Remembered(_size_of)
        # What each shard was asked last through, by which it is known what it has cost: "auto" only.
        self._sources: dict[str, range_client.ShardBytes] = {}
        self._spent: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tables": Remembered(_size_of), "_sources": {}, "drop": None}

    def open(self, shard: Shard) -> tuple[RangeReader, bool] | None:
        """(reader, whether its table was saved somewhere); None: the shard is better fetched.

        Raises:
            FetchError: it cannot be had, or gives no ranges. ShardError: it is not a readable tar.
            ChangedShardError: it is not what the index says.
        """
        if shard.url in self._spent or urls.is_local(shard.url):
            return None
        if urls.scheme_of(shard.url) == "pipe" and not self._is_final:
            return None
        source = range_client.ShardBytes(
            shard.url, storage_options=self._storage_options, hooks=self._hooks, size=shard.filesize
        )
        if not source.has_ranges:
            if self._is_final:
                raise FetchError(
                    f"{shard.url}: the server gives no byte ranges; use access='fetch', which fetches whole shards",
                    url=shard.url,
                )
            return None
        if not self._is_final:
            self._go_on_counting(source)
        table, is_proven = self._known_table(shard, source)
        has_saved = table is not None
        if table is None:
            if not self._is_final and source.scan_bytes(shard.nsamples) > source.size:
                return None
            table, is_proven = self._scan(source), True
        elif not is_proven:
            self._tables.remember(shard.url, (table, False))
        reader = RangeReader(
            source,
            table=table,
            rescan=partial(self._scan, source),
            is_proven=is_proven,
            split=tables.parse_rule(self._rule),
            on_spent=None if self._is_final else partial(self._note_spent, shard.url),
            hooks=self._hooks,
        )
        return reader, has_saved

    def _identity(self, source: range_client.ShardBytes) -> tables.Identity:
        mark = source.mark
        return tables.Identity(size=source.size, etag=None if mark is None else str(mark))

    def _scan(self, source: range_client.ShardBytes) -> MemberTable:
        table = range_client.scan_table(source, self._identity(source), rule=self._rule, group=self._group)
        self._tables.remember(source.url, (table, True))
        return table

    def _go_on_counting(self, source: range_client.ShardBytes) -> None:
        """What a shard cost before it was closed counts, or one that is opened again and again is never fetched."""
        before = self._sources.get(source.url)
        if before is not None:
            source.requests += before.requests
            source.read_bytes += before.read_bytes
        self._sources[source.url] = source

    def _known_table(self, shard: Shard, source: range_client.ShardBytes) -> tuple[MemberTable | None, bool]:
        """The table from memory or from beside the shard, and whether it comes from the shard's headers."""
        identity = self._identity(source)
        known = self._tables.get(shard.url)
        if known is not None and known[0].identity == identity:
            return known
        return self._saved_table(shard, source, identity), False

    def _saved_table(
        self, shard: Shard, source: range_client.ShardBytes, identity: tables.Identity
    ) -> MemberTable | None:
        if not tables.is_standard(self._rule, self._group) or urls.without_query(shard.url) != shard.url:
            return None  # what is signed is one object alone
        try:
            data = retrying.read_bytes(
                shard.url + tables.SUFFIX,
                storage_options=self._storage_options,
                most=min(member_tables.most_table_bytes(source.size), _MOST_TABLE_BYTES),
                seconds=retrying.FIRST_SECONDS,
            )
            table = tables.parse_table(data, shard=shard.url)
        except (TableError, FetchError) as error:  # the headers are read instead
            # A bucket that cannot be listed says 403 for what is not there.
            if not isinstance(error, (ShardNotFoundError, FetchDeniedError)):
                logger.warning("%s", error)
            forget_frames(error)  # or the reader that is opened instead, and its lease, would outlive the pool
            return None
        if table.nmembers and min(table.offsets) < headers.BLOCK:
            logger.warning("%s: the member table beside it has a member where no header fits before it", shard.url)
            return None
        md5 = table.identity.md5
        if table.identity.size != source.size or (md5 and shard.md5sum and md5 != shard.md5sum):
            logger.warning("%s: the member table beside it is of another version of the shard", shard.url)
            return None
        return table.with_identity(identity)

    def _note_spent(self, url: str) -> None:
        self._spent.add(url)
        if self.drop is not None:
            self.drop(url)


def _size_of(known: tuple[MemberTable, bool]) -> int:
    return known[0].nbytes

"""Knowledge of this process about each shard: one record for each URL.

Rules: threads read and write a record without a lock; what one of them loses, another finds out again. A fork has a
copy of all of it, without downloads, whose threads are the parent's. A pickle (a worker that is spawned) has those
about a shard's server: it has no ranges, its table is wrong, the bytes spent. Tables are found again,
times belong to one process's clock, and connections to one process.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

from wids.core.files import forks

if TYPE_CHECKING:
    from wids.core.files.identity import Identity
    from wids.core.tables.table import MemberTable
    from wids.core.transport.range_client import ShardBytes

# The bytes of all tables in memory.
MAX_BYTES = 64 << 20
_LASTING = ("is_spent", "lacks_ranges", "lacks_table", "was_read")


class ShardRecord:
    """Knowledge of this process about one shard.

    Attributes:
        table: its member table, by the rule of the dataset; None: not known, or dropped from memory.
        is_proven: the table comes from the shard's own headers.
        wrong_table: identity of a table that its headers contradict; None: there was none.
        lacks_table: its published table is damaged, or does not come.
        lacks_ranges: its server gives no byte ranges, or tells no versions apart.
        retry_at: not by ranges before, by the monotonic clock.
        is_spent: by ranges it has cost as much as its download.
        was_read: one read by ranges was let in.
        source: the bytes that were requested last, with their costs; None: no reader asked yet.
        miscounted: bytes in the cache that hold another number of samples than the index says.
        since: time of its first read by ranges while its download was to come; inf: it had none.
        look_at: time of the next look for a process that downloads it.
        thread: the one that downloads it in this process.
        refusals: number of times that there was no space for it.
        has_failed: it cannot be downloaded.
    """

    has_failed: bool
    is_proven: bool
    is_spent: bool
    lacks_ranges: bool
    lacks_table: bool
    look_at: float
    refusals: int
    retry_at: float
    since: float
    was_read: bool
    __slots__ = (
        "has_failed",
        "is_proven",
        "is_spent",
        "lacks_ranges",
        "lacks_table",
        "look_at",
        "miscounted",
        "refusals",
        "retry_at",
        "since",
        "source",
        "table",
        "thread",
        "was_read",
        "wrong_table",
    )

    def __init__(self) -> None:
        self.table: MemberTable | None = None
        self.wrong_table: Identity | None = None
        self.source: ShardBytes | None = None
        self.miscounted: Identity | None = None
        self.is_proven = self.lacks_ranges = self.lacks_table = self.is_spent = self.was_read = False
        self.retry_at = -math.inf
        self.forget_download()

    def forget_download(self) -> None:
        """Note that it is in the cache, or another process's."""
        self.thread: threading.Thread | None = None
        self.since, self.look_at, self.refusals, self.has_failed = math.inf, -math.inf, 0, False

    def doubt_table(self) -> None:
        """The headers contradict the table: it is not used again."""
        self.wrong_table = None if self.table is None else self.table.identity
        self.table = None

    @property
    def is_blank(self) -> bool:
        """True if a new record would be equal, but for the table."""
        is_known = self.lasting or self.has_failed or self.retry_at > -math.inf or self.since < math.inf
        return not is_known and self.wrong_table is None and self.miscounted is None and self.source is None

    @property
    def lasting(self) -> dict[str, bool]:
        """The contents of a pickle."""
        return {name: True for name in _LASTING if getattr(self, name)}


class ShardBook:
    """The records of all shards that a dataset of this process has opened."""

    def __init__(self) -> None:
        self._records: dict[str, ShardRecord] = {}
        self._tables: dict[str, int] = {}  # bytes of those in memory, the oldest first
        self._bytes, self._lock = 0, threading.Lock()
        forks.reset_in_child(self)

    def __getstate__(self) -> dict[str, Any]:
        lasting = {url: record.lasting for url, record in list(self._records.items())}
        return {"lasting": {url: flags for url, flags in lasting.items() if flags}}

    def __setstate__(self, state: dict[str, dict[str, dict[str, bool]]]) -> None:
        self.__init__()  # type: ignore[misc]
        for url, flags in state["lasting"].items():
            record = self.of(url)
            for name, value in flags.items():
                setattr(record, name, value)

    def start_child(self) -> None:
        """Forget the downloads, which are the parent's; see `wids.core.files.forks`."""
        self._lock = threading.Lock()
        for record in self._records.values():
            record.forget_download()
            record.source = None

    def of(self, url: str) -> ShardRecord:
        """The record of a shard, made if need be."""
        record = self._records.get(url)
        return self._records.setdefault(url, ShardRecord()) if record is None else record

    def learn_table(self, url: str, table: MemberTable, *, is_proven: bool = False) -> None:
        """A shard has this table; tables learned longest ago are dropped, beyond `MAX_BYTES` of them."""
        with self._lock:
            record = self.of(url)
            record.table, record.is_proven = table, is_proven
            size = table.nbytes
            self._bytes += size - self._tables.pop(url, 0)
            self._tables[url] = size
            while self._bytes > MAX_BYTES and len(self._tables) > 1:
                self._drop(next(iter(self._tables)))

    def _drop(self, url: str) -> None:
        self._bytes -= self._tables.pop(url)
        record = self._records.get(url)
        if record is not None:
            record.table, record.is_proven = None, False
            if record.is_blank:
                del self._records[url]

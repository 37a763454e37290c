"""From a shard of an index to an open reader: in place, through the cache, by byte ranges, or whichever fits.

Local shards are read in place, never copied or deleted. Paths of files: `wids.core.cache.placement`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from wids.core.cache.book import ShardBook
from wids.core.cache.placement import Placement
from wids.core.cache.store import Miss, ShardCache
from wids.core.files import system
from wids.core.files.lazy import Lazy
from wids.core.files.nearest import name_nearest
from wids.core.files.open_file import OpenFile
from wids.core.readers.access import Access, can_range, choose, reads_ranges
from wids.core.readers.arrivals import Arrivals
from wids.core.readers.base import announce
from wids.core.readers.local import Blocks, LocalReader
from wids.core.readers.range_provider import RangeProvider
from wids.core.tables import member_tables
from wids.core.tables import table as tables
from wids.core.transport.session import PLAIN, Session
from wids.errors import ChangedShardError, FetchDeniedError, ShardError, ShardNotFoundError
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.core.cache.located import Located
    from wids.core.files.identity import Identity
    from wids.core.readers.access import AccessMode
    from wids.core.readers.base import Reader
    from wids.core.readers.remote_counts import ShardCount
    from wids.core.shard import Shard
    from wids.core.tables.table import Group, KeyRule, MemberTable
    from wids.events import Hook


def parse_access(access: Any) -> AccessMode:
    """Check the argument of a caller.

    Raises:
        ValueError: it is none of the three.
    """
    if access not in ("fetch", "range", "auto"):
        raise ValueError(
            f"access is {access!r}; it is 'fetch' (whole shards, into the cache), 'range' (members, by byte ranges) "
            "or 'auto' (members first, whole shards once that is cheaper)"
        )
    checked: AccessMode = access
    return checked


# Seconds between two looks if it is a process's turn to ask for byte ranges; the event never comes.
_TURN_SECONDS, _pause = 0.05, threading.Event()


class ShardProvider(Protocol):
    """Opens shards for reading."""

    def open(self, shard: Shard) -> Reader:
        """An open shard, which the caller closes.

        Raises:
            FetchError: it cannot be read. CacheError: the cache directory cannot be used.
            ShardError: its bytes are not a readable tar, or not what the index says.
        """


class LocalFiles:
    """Makes readers of open local files.

    Args:
        rule: see `wids.core.tables.table.build_table`.
        group: see there.
        use_mmap: see `wids.core.readers.local`.
        hooks: called with every event.
        book: records of shards; None: a new one.
    """

    is_standard: bool

    def __init__(
        self,
        *,
        rule: KeyRule = "first-dot",
        group: Group = "adjacent",
        use_mmap: bool = False,
        hooks: Sequence[Hook] = (),
        book: ShardBook | None = None,
    ) -> None:
        tables.parse_rule(rule)
        self.rule: KeyRule = rule
        self.group: Group = group
        self.is_standard = tables.is_standard(rule, group)
        self._use_mmap, self._hooks = use_mmap, hooks
        self._book = ShardBook() if book is None else book
        self._begin()

    def _begin(self) -> None:
        self._blocks = Blocks()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_blocks"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def build_table(
        self, fd: int, path: str, url: str, identity: Identity, *, is_in_place: bool = False
    ) -> MemberTable:
        """The member table of an open file, by the rule: remembered, or built."""
        table = self._book.of(url).table  # of shards that have no saved one, so that reopening is free
        if table is None or not table.identity.is_same(identity):
            table = member_tables.load_foreign(fd, path, url, identity) if is_in_place else None
            if table is None:
                table = member_tables.scan_table(fd, url, identity, rule=self.rule, group=self.group)
            self._book.learn_table(url, table)
        return table

    def open_in_place(self, shard: Shard, path: str) -> Reader:
        """A reader of a local shard, which is at ``path``; for errors see `ShardProvider.open`."""
        try:
            return self._open_in_place(shard, path)
        except (FetchDeniedError, ShardError) as error:
            if not system.is_stale(error.__cause__):
                raise
            logger.warning("%s; it is opened again", error)
        return self._open_in_place(shard, path)

    def _open_in_place(self, shard: Shard, path: str) -> Reader:
        start = time.perf_counter()
        file, identity = open_in_place(shard, path)
        with file.closing_on_error():
            beside = path + tables.SUFFIX
            table = member_tables.load_table(beside, shard.url, shard_bytes=identity.size) if self.is_standard else None
            has_saved = table is not None and table.identity.is_same(identity)
            if table is None or not has_saved:
                table = self.build_table(file.fd, path, shard.url, identity, is_in_place=self.is_standard)
            return self._make_reader(file, table, shard, path, has_saved_table=has_saved, start=start)

    def open_cached(self, located: Located, cache: ShardCache) -> Reader:
        """A reader of a shard of the cache, downloaded first if need be; for errors see `ShardProvider.open`."""
        start = time.perf_counter()
        (lease, table), has_saved = cache.open(located)
        with lease.closing_on_error():
            if not self.is_standard:
                table, has_saved = self.build_table(lease.fd, located.path, located.url, table.identity), False
            return self._make_reader(lease, table, located.shard, located.path, has_saved_table=has_saved, start=start)

    def _make_reader(
        self, file: OpenFile, table: MemberTable, shard: Shard, path: str, *, has_saved_table: bool, start: float
    ) -> LocalReader:
        """The reader of an open file, which it owns once this returns; ``start``: when opening it began."""
        reader = LocalReader(file, table=table, url=shard.url, path=path, blocks=self._blocks, use_mmap=self._use_mmap)
        announce(self._hooks, reader, has_saved_table=has_saved_table, start=start)
        return reader


def open_in_place(shard: Shard, path: str) -> tuple[OpenFile, Identity]:
    """Open a local shard at ``path``: the file and its status; the caller closes.

    Raises:
        ShardNotFoundError: no such file exists. FetchDeniedError: it cannot be opened. ChangedShardError: it has
            another size than the index says.
    """
    try:
        file, identity = OpenFile.open(path)
    except FileNotFoundError as error:
        raise ShardNotFoundError(
            f"{shard.url}: there is no file {path}{name_nearest(path)}; check the path, or URLs and base of the index "
            "if it comes from one",
            url=shard.url,
        ) from error
    except OSError as error:
        raise FetchDeniedError(f"{shard.url}: {path} cannot be opened ({error})", url=shard.url) from error
    if shard.filesize not in (None, identity.size):
        file.close()
        raise ChangedShardError(
            f"{shard.url}: {path} has {identity.size} bytes, and the index says filesize {shard.filesize}; "
            "upload or copy the shard again; if it was rewritten, write the index again (wids index create)",
            shard=shard.url,
            expected=shard.filesize,
            found=identity.size,
        )
    return file, identity


class AutoProvider:
    """Chooses for each shard how to open it.

    Args:
        cache_dir: see `wids.core.cache.placement.Placement`.
        localname: see there.
        cache_local: see there.
        cache_size: see `wids.core.cache.store.ShardCache`.
        keep: see there.
        checks_counts: see there.
        session: opens URLs; its hooks are called with every event.
        use_mmap: see `LocalFiles`.
        rule: see there.
        group: see there.
        access: ``"fetch"`` downloads whole shards into the cache, ``"range"`` reads members of those that are not there
            by byte ranges, ``"auto"`` does so until a shard has cost as much as downloading it.
        early_reads: with ``"fetch"``, read members of shards by ranges until they are downloaded, where that is quick.
        is_prefetching: True if a sampler has begun to download shards ahead.

    Attributes:
        cache: the shards on this machine's disk.
        files: makes readers of local files.
    """

    files: LocalFiles
    cache: ShardCache

    def __init__(
        self,
        *,
        cache_dir: str | None,
        cache_size: int | None = None,
        keep: bool = False,
        localname: Callable[[str], str] | None = None,
        cache_local: bool = False,
        session: Session = PLAIN,
        use_mmap: bool = False,
        rule: KeyRule = "first-dot",
        group: Group = "adjacent",
        access: AccessMode = "fetch",
        early_reads: bool = False,
        is_prefetching: Callable[[], bool] = bool,
        checks_counts: bool = True,
    ) -> None:
        self.access: AccessMode = access
        self.session = session
        self._book = ShardBook()
        self.files = LocalFiles(rule=rule, group=group, use_mmap=use_mmap, hooks=session.hooks, book=self._book)
        placement = Placement(cache_dir=cache_dir, localname=localname, cache_local=cache_local, session=session)
        # The tables that a cache saves group members in the standard way: other counts say nothing of the bytes.
        self._checks_counts = checks_counts and self.files.is_standard
        self.cache = ShardCache(
            placement,
            cache_size=cache_size,
            keep=keep,
            session=session,
            checks_counts=self._checks_counts,
            book=self._book,
        )
        self._originals = Placement(cache_dir=None, localname=None, cache_local=False, session=PLAIN)
        self._by_ranges = RangeProvider(
            is_final=access == "range",
            session=session,
            rule=rule,
            group=group,
            cache_dir=cache_dir,
            is_cached=access == "fetch",
            cache=self.cache if self.files.is_standard else None,
        )
        self._arrivals = Arrivals(self.cache, is_prefetching) if early_reads and access == "fetch" else None

    def open(self, shard: Shard) -> Reader:
        """Open a shard in the way that `choose` decides; see `ShardProvider.open`."""
        state = self._look(self.cache.locate(shard))
        access = choose(state, time.monotonic())
        while access is Access.TURN:
            _pause.wait(_TURN_SECONDS)
            access = choose(state, time.monotonic())
        if access is Access.IN_PLACE:
            return self.files.open_in_place(shard, state.located.path)
        reader = self._open_by_ranges(state) if access is Access.RANGES else None
        if reader is None:
            reader = self.files.open_cached(state.located, self.cache)
            if self._arrivals is not None:
                self._arrivals.note_opened(state.located.record)
                self._by_ranges.learn(state.located, reader.table)
        return reader

    def _look(self, located: Located) -> _OpeningShard:
        return _OpeningShard(
            located,
            mode=self.access,
            cache=self.cache,
            by_ranges=self._by_ranges,
            arrivals=self._arrivals,
        )

    def _open_by_ranges(self, state: _OpeningShard) -> Reader | None:
        """None: the shard is better downloaded: its table does not come at once, or its server gives no ranges."""
        located = state.located
        if self._arrivals is None:
            return self._by_ranges.find(located)
        is_due = partial(_reads_on, self._arrivals, state)
        return self._by_ranges.find_early(located, is_due=is_due, is_there=located.exists)

    def without_downloads(self) -> AutoProvider:
        """Opens the same shards, and downloads or copies none: members of those not here are read by byte ranges."""
        placement, files = self.cache.placement, self.files
        return AutoProvider(
            cache_dir=placement.cache_dir,
            localname=placement.localname,
            session=self.session.with_hooks(()),
            rule=files.rule,
            group=files.group,
            access="range",
            checks_counts=self._checks_counts,
        )

    def find_table(self, shard: Shard) -> MemberTable | None:
        """The member table of a shard, from the shard if it is on this machine, else a published one; None: neither is.

        No shard is downloaded, and none read by byte ranges.

        Raises:
            WidsError: the shard, or a published table, cannot be read.
        """
        located = self.cache.locate(shard)
        path = located.path
        if not located.is_in_place:
            cached, files = self.cache.find(located), self.files
            if not isinstance(cached, Miss):
                try:
                    if files.is_standard:
                        return cached.table
                    return files.build_table(cached.lease.fd, path, shard.url, cached.table.identity)
                finally:
                    cached.lease.release()
            if not shard.place.is_local:
                return self._by_ranges.find_published(located)
            path = self._originals.find(shard.place)[0]  # it will be copied when it is read
        with contextlib.closing(self.files.open_in_place(shard, path)) as reader:
            return reader.table

    def count(self, shards: Sequence[Shard]) -> list[ShardCount]:
        """Number of samples of remote shards, and their bytes; see `wids.core.readers.remote_counts`."""
        from wids.core.readers.remote_counts import RemoteCounts

        counts = RemoteCounts(
            cache_dir=self.cache.placement.cache_dir, session=self.session, rule=self.files.rule, group=self.files.group
        )
        return counts.count(shards)

    def is_here(self, shard: Shard) -> bool:
        """True if a shard is read from this machine's disk, as it stands there: neither downloaded nor copied first."""
        located = self.cache.locate(shard)
        if located.is_in_place:
            return True
        cached = self.cache.find(located)
        if isinstance(cached, Miss):
            return False
        cached.lease.release()
        return True

    def reads_early(self, located: Located) -> bool:
        """True if samples of a shard are read by byte ranges until it is cached, as far as known; asks for nothing.

        Where one shard has a published member table, others are taken to have theirs until they prove not to.
        """
        ranges = self._by_ranges
        if self._arrivals is None or not (ranges.has_tables or ranges.knows_table(located)):
            return False
        return can_range(self._look(located), time.monotonic())

    def has_table(self, shard: Shard) -> bool:
        """True if samples of a shard are read by byte ranges until it is cached; its member table is requested."""
        return self._arrivals is not None and self._by_ranges.has_table(self.cache.locate(shard))

    def reads_ranges(self, located: Located) -> bool:
        """True if members of a remote shard that is not in the cache are read by byte ranges, as far as known."""
        return reads_ranges(self._look(located), time.monotonic())

    def takes_little(self, located: Located, count: int) -> bool:
        """True if so many samples of a shard are read by byte ranges, and it is not downloaded: with ``"auto"`` alone.

        That is where each with a separate request costs less than the shard. May ask for nothing.
        """
        return self.access == "auto" and self._by_ranges.is_cheap(located, count)


class _OpeningShard:
    """Properties of one shard for `wids.core.readers.access.choose`; each is computed on first use."""

    def __init__(
        self,
        located: Located,
        *,
        mode: AccessMode,
        cache: ShardCache,
        by_ranges: RangeProvider,
        arrivals: Arrivals | None,
    ) -> None:
        self.located, self.mode, self._cache = located, mode, cache
        self._by_ranges, self._arrivals, self.has_early_reads = by_ranges, arrivals, arrivals is not None

    @property
    def is_in_place(self) -> bool:
        return self.located.is_in_place

    @property
    def is_cached(self) -> bool:
        if self.mode == "fetch":  # who opens it looks closer
            return self.located.exists()
        cached = self._cache.find(self.located)
        if isinstance(cached, Miss):
            return False
        cached.lease.release()
        return True

    @property
    def is_downloading(self) -> bool:
        return self._cache.is_downloading(self.located)

    @Lazy  # a reader continues to read by ranges when the sampler has ended
    def will_arrive(self) -> bool:
        return self._arrivals is not None and self._arrivals.can_arrive()

    @property
    def has_failed(self) -> bool:
        return self.located.record.has_failed

    @property
    def has_ranges(self) -> bool:
        return not self.located.record.lacks_ranges

    @Lazy  # a reader has its table
    def has_table(self) -> bool:
        return self.mode == "auto" or self._by_ranges.may_have_table(self.located)

    @property
    def retry_at(self) -> float:
        return self.located.record.retry_at

    @property
    def is_spent(self) -> bool:
        return self.located.record.is_spent

    @property
    def may_ask(self) -> bool:
        return self._by_ranges.may_ask()


def _reads_on(arrivals: Arrivals, state: _OpeningShard) -> bool:
    """True if the reader of a shard by ranges continues; its download may begin."""
    if choose(state, time.monotonic()) is not Access.RANGES:
        return False
    arrivals.note_read(state.located)
    return True

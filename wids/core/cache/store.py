"""Shards in a cache directory: found, or downloaded first; leased while they are open.

A cached shard is used only when its size, its modification time and what the index says agree with the member table
that was saved when it was verified, or a checksum in the index proves it; else it is downloaded again. Publishing is
one ``os.replace``: readers never see half a shard. Only files that a cache downloaded are replaced.
"""

from __future__ import annotations

import contextlib
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from wids.core.cache import shard_download
from wids.core.cache.book import ShardBook
from wids.core.cache.directory import using
from wids.core.cache.freshness import find_difference, find_difference_in_size
from wids.core.cache.leases import Lease, leases
from wids.core.cache.located import Located
from wids.core.cache.shard_download import CachedShard, ShardDownload, identify
from wids.core.cache.space import Space
from wids.core.files import atomic, locks
from wids.core.index.checksums import promised, word
from wids.core.tables import member_tables
from wids.core.transport.session import PLAIN, Session
from wids.errors import CacheError, ShardError
from wids.events import Fetched, Hit, Hook, Rejected, emit, logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.core.cache.placement import Placement
    from wids.core.files.identity import Identity
    from wids.core.shard import Shard
    from wids.core.tables.table import MemberTable

# A cache directory may vanish so often under a download before that is an error.
_WIPED_ATTEMPTS = 2


class Miss(NamedTuple):
    """There is no cached shard that can be used.

    Attributes:
        cause: the reason for not using the cached file; "": none exists.
    """

    cause: str


class ShardCache:
    """The shards that a program keeps on this machine's disk.

    Args:
        placement: the path of each shard.
        cache_size: bytes that a cache directory may hold; None: what the disk has space for.
        keep: mark the shards as not to be evicted.
        session: opens URLs; its hooks are called with every event.
        checks_counts: a cached shard that holds another number of samples than the index says is downloaded again.
        book: records of shards; None: a new one.

    Attributes:
        is_limit_told: a program was warned that the limit is too small for the shards that it reads.
        is_hidden_told: a program was warned that nothing is downloaded ahead, for its dataset is within one that is not
            known.
    """

    placement: Placement
    cache_size: int | None
    hooks: Sequence[Hook]

    def __init__(
        self,
        placement: Placement,
        *,
        cache_size: int | None = None,
        keep: bool = False,
        session: Session = PLAIN,
        checks_counts: bool = True,
        book: ShardBook | None = None,
    ) -> None:
        self.placement, self.cache_size, self.hooks = placement, cache_size, session.hooks
        self._keep, self._checks_counts = keep, checks_counts
        self.is_limit_told = self.is_hidden_told = False
        self._session = session
        self._book = ShardBook() if book is None else book
        self._spaces: dict[str, Space] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_spaces": {}}

    def locate(self, shard: Shard) -> Located:
        """The shard with the path of its bytes, now or later.

        Raises:
            CacheError: no directory for it exists.
        """
        path, is_in_place = self.placement.find(shard.place)
        # Without its count where that says nothing of the bytes.
        expected = shard if self._checks_counts else msgspec.structs.replace(shard, nsamples=None)
        return Located(shard, expected, path, is_in_place, self._book)

    def is_downloading(self, located: Located) -> bool:
        """True if a process downloads the shard at this moment."""
        directory = located.directory
        lock_path = directory.lock(located.name)
        if not os.path.exists(lock_path):
            return False
        with locks.try_acquire(lock_path, mode=directory.lock_mode()) as lock:
            return lock is None

    def open(self, located: Located) -> tuple[CachedShard, bool]:
        """The shard, downloaded first if need be; and True if it was in the cache.

        Raises:
            FetchError: it cannot be read. CacheError: the directory cannot be used.
            ShardError: its bytes are not a readable tar, or not what the index says.
        """
        for _ in range(_WIPED_ATTEMPTS):
            try:
                return self._open(located)
            except CacheError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
                # The cache directory was emptied or deleted in the meantime.
                logger.warning("%s: %s; trying again", located.url, error)
        return self._open(located)

    def find(self, located: Located, *, lock: locks.HeldLock | None = None) -> CachedShard | Miss:
        """The cached shard, leased, if it is whole and current: its table says so, or, with the lock, its checksum.

        Args:
            located: the shard.
            lock: of its name, if it is held.

        Raises:
            CacheError: there is something that cannot be opened.
        """
        path = located.path
        try:
            lease, identity = Lease.open(path)
        except FileNotFoundError:
            return Miss("")
        except OSError as error:
            raise CacheError(f"{path}: cannot be opened ({error}); remove it or choose another cache_dir") from error
        with lease.closing_on_error():
            table, cause = None, ""
            if lease.begin():  # else it is being evicted
                if lock is None:
                    table, cause = self._judge(located, identity)
                else:
                    table, cause = self._judge_by_checksum(located, lease.fd, identity, lock)
            if table is not None and not cause:
                return CachedShard(lease, table)
            lease.release()
        return Miss(cause)

    def has_remembered_table(self, located: Located) -> bool:
        """True if the shard was evicted, and its member table is still there."""
        return os.path.exists(located.directory.remembered_table(located.name))

    def remembered_table(self, located: Located) -> MemberTable | None:
        """The member table of a shard that was evicted, if it can be the one of this shard; None: none exists.

        Its readers compare it with the headers: the shard may have been replaced since.
        """
        saved = located.directory.remembered_table(located.name)
        table = member_tables.load_table(saved, located.url, shard_bytes=located.shard.filesize)
        if table is None:
            return None
        difference = self._find_difference(located, table.identity, table)
        if difference:
            logger.debug("%s: its remembered member table is not used: %s", located.url, difference)
            return None
        with contextlib.suppress(OSError):  # another user's; those used longest ago go first
            os.utime(saved)
        return table

    def download_ahead(
        self, located: Located, *, after: float, is_cancelled: Callable[[], bool], size: int | None = None
    ) -> bool:
        """Download a shard that will be needed, unless it is there or another process does; True if this did.

        Args:
            located: the shard.
            after: only shards that are used later than this may be evicted for it, in seconds since 1970.
            is_cancelled: asked now and then; once it says True, the transfer ends.
            size: its bytes, about, where the index does not say: nothing is requested before there is space for them.

        Raises:
            CacheFull: there is no space for it now.
            CancelledTransferError: it was cancelled.
            WidsError: as `open`.
        """
        if self.placement.localname is not None:  # the program may have put a file of its own there since
            located = self.locate(located.shard)
        if located.is_in_place:
            return False
        known = self._find_or_prepare(located)
        if isinstance(known, Miss):
            directory, name = located.directory, located.name
            with locks.try_acquire(directory.lock(name), mode=directory.lock_mode()) as lock:
                if lock is None:
                    return False
                known = self.find(located)
                if isinstance(known, Miss):
                    if known.cause and promised(located.shard):  # its reader sees whether it is right
                        return False
                    cached, event = self._download(
                        located, known, lock, after=after, is_cancelled=is_cancelled, size=size
                    )
                    cached.lease.release()
                    if self._keep:
                        directory.keep(name)
                    emit(self.hooks, event)
                    return True
        known.lease.release()
        return False

    # --- inside

    def _space(self, directory: str) -> Space:
        space = self._spaces.get(directory)
        if space is None:
            space = Space(
                directory, limit=self.cache_size, hooks=self.hooks, release_idle=partial(leases.release, directory)
            )
            space = self._spaces.setdefault(directory, space)
        return space

    def _open(self, located: Located) -> tuple[CachedShard, bool]:
        cached = self._find_or_prepare(located)
        is_hit = not isinstance(cached, Miss)
        event: Hit | Fetched = Hit(url=located.url, path=located.path)
        directory, name = located.directory, located.name
        if isinstance(cached, Miss):
            with locks.acquire(directory.lock(name), mode=directory.lock_mode(), hooks=self.hooks) as lock:
                cached = self.find(located)
                is_hit = not isinstance(cached, Miss)
                if isinstance(cached, Miss) and cached.cause and promised(located.shard):
                    cached = self.find(located, lock=lock)
                if isinstance(cached, Miss):
                    cached, event = self._download(located, cached, lock)
        with cached.lease.closing_on_error():
            if self._keep:
                directory.keep(name)
            directory.touch(name)
            emit(self.hooks, event)  # with the lock free again: a hook may open the shard of the event
        return cached, is_hit

    def _find_or_prepare(self, located: Located) -> CachedShard | Miss:
        """`find`, and a directory to download into if there is nothing."""
        directory = located.directory.path
        is_private = directory == atomic.private_dir()
        with using(directory):
            if is_private:
                atomic.check_owner(directory)  # before the first look: what another user put there is not looked at
            cached = self.find(located)
            if isinstance(cached, Miss):
                atomic.make_directory(directory, is_private=is_private)
                located.directory.make()
        return cached

    def _judge(self, located: Located, identity: Identity) -> tuple[MemberTable | None, str]:
        """The saved member table of a file, and why the file cannot be used; "": it can."""
        table = self._load_table(located, identity)
        return table, self._find_difference(located, identity, table)

    def _load_table(self, located: Located, identity: Identity) -> MemberTable | None:
        path = located.directory.table(located.name)
        return member_tables.load_table(path, located.url, shard_bytes=identity.size)

    def _judge_by_checksum(
        self, located: Located, fd: int, now: Identity, lock: locks.HeldLock
    ) -> tuple[MemberTable | None, str]:
        """`_judge` with a new table; a file of the right checksum becomes the cache's own."""
        shard = located.shard
        if cause := find_difference_in_size(shard, now):
            return None, cause
        try:
            if (mismatch := shard_download.find_mismatch(shard, fd, is_strict=True, go_on=lock.touch)) is not None:
                key, digest, said = mismatch
                return None, f"its {word(key)} is {digest}, the index says {said}"
            saved = self._load_table(located, now)
            known = saved.identity if saved is not None and saved.identity.is_same(now) else None
            identity = identify(fd, shard, self.placement.origin(located.place), known)
            table = member_tables.scan_table(fd, shard.url, identity)
        except (ShardError, OSError) as error:
            return None, str(error)
        cause = self._find_difference(located, now, table)
        if not cause:
            self._space(located.directory.path).adopt(located.name, table)
        return table, cause

    def _find_difference(self, located: Located, identity: Identity, table: MemberTable | None) -> str:
        origin, miscounted = self.placement.origin(located.place), located.record.miscounted
        return find_difference(located.expected, identity, table, origin=origin, miscounted=miscounted)

    def _download(
        self,
        located: Located,
        miss: Miss,
        lock: locks.HeldLock,
        *,
        after: float | None = None,
        is_cancelled: Callable[[], bool] | None = None,
        size: int | None = None,
    ) -> tuple[CachedShard, Fetched]:
        """Download the shard, with the lock held; ``after``, ``size``: see `download_ahead`."""
        if miss.cause:
            emit(self.hooks, Rejected(url=located.url, path=located.path, cause=miss.cause))
        start = time.perf_counter()
        download = ShardDownload(
            located,
            space=self._space(located.directory.path),
            origin=partial(self.placement.origin, located.place),
            session=self._session,
            lock=lock,
            after=after,
            is_cancelled=is_cancelled,
            size=size,
        )
        cached = download.run()
        table = cached.table
        if located.expected.nsamples not in (None, table.nsamples):
            # The index is wrong, as its reader will say. To download the shard for each sample would never end.
            located.record.miscounted = table.identity
        event = Fetched(
            url=located.url,
            path=located.path,
            size_bytes=table.identity.size,
            requests=download.requests,
            seconds=time.perf_counter() - start,
            is_ahead=after is not None,
        )
        return cached, event

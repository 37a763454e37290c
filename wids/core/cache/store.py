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
from wids.core.cache.directory import CacheDirectory, directory_of, using
from wids.core.cache.freshness import find_difference, find_difference_in_size
from wids.core.cache.leases import Lease, leases
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

# How often a cache directory may vanish under a download before that is an error.
_WIPED_ATTEMPTS = 2


class Miss(NamedTuple):
    """There is no cached shard that can be used.

    Attributes:
        cause: why the cached file cannot be used; "": none exists.
    """

    cause: str


class ShardCache:
    """The shards that a program keeps on this machine's disk.

    Args:
        placement: the path of each shard.
        cache_size: bytes that a cache directory may hold; None: what the disk has space for.
        keep: mark the shards as not to be evicted.
        session: what opens URLs; its hooks are called with every event.
        checks_counts: a cached shard that holds another number of samples than the index says is downloaded again.
        book: facts about each shard; None: a new one.

    Attributes:
        is_limit_told: a program was warned that the limit is too small for what it reads. is_hidden_told: that nothing
            is downloaded ahead, for its dataset is within one that is not known.
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

    def place(self, url: str) -> tuple[str, bool]:
        """Where the shard's bytes are or will be, and whether they are read in place."""
        return self.placement.find(url)

    def has(self, url: str) -> bool:
        """Whether a file exists for the shard; `open` finds out what it is worth."""
        return os.path.exists(self.place(url)[0])

    def is_downloading(self, path: str) -> bool:
        """Whether a process downloads the shard to ``path`` at this moment."""
        directory, name = directory_of(path)
        lock_path = directory.lock(name)
        if not os.path.exists(lock_path):
            return False
        with locks.try_acquire(lock_path, mode=directory.lock_mode()) as lock:
            return lock is None

    def open(self, shard: Shard, path: str) -> tuple[CachedShard, bool]:
        """The shard at ``path``, downloaded first if need be, and whether it was there.

        Raises:
            FetchError: it cannot be had. CacheError: the directory cannot be used.
            ShardError: its bytes are not a readable tar, or not what the index says.
        """
        shard = self._as_counted(shard)
        for _ in range(_WIPED_ATTEMPTS):
            try:
                return self._open(shard, path)
            except CacheError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
                # The cache directory was emptied or deleted in the meantime.
                logger.warning("%s: %s; trying again", shard.url, error)
        return self._open(shard, path)

    def find(self, shard: Shard, path: str) -> CachedShard | Miss:
        """The cached shard if it is whole and current.

        Raises:
            CacheError: there is something that cannot be opened.
        """
        return self._find(self._as_counted(shard), path)

    def has_remembered_table(self, path: str) -> bool:
        """Whether the shard at ``path`` was evicted, and its member table is still there."""
        directory, name = directory_of(path)
        return os.path.exists(directory.remembered_table(name))

    def remembered_table(self, shard: Shard, path: str) -> MemberTable | None:
        """The member table of a shard that was evicted, if it can be the one of this shard; None: none exists.

        Its readers compare it with the headers: the shard may have been replaced since.
        """
        directory, name = directory_of(path)
        saved = directory.remembered_table(name)
        table = member_tables.load_table(saved, shard.url, shard_bytes=shard.filesize)
        if table is None:
            return None
        difference = self._find_difference(self._as_counted(shard), table.identity, table)
        if difference:
            logger.debug("%s: its remembered member table is not used: %s", shard.url, difference)
            return None
        with contextlib.suppress(OSError):  # another user's; those used longest ago go first
            os.utime(saved)
        return table

    def download_ahead(
        self, shard: Shard, *, after: float, is_cancelled: Callable[[], bool], size: int | None = None
    ) -> bool:
        """Download a shard that will be needed, unless it is there or another process does; whether this did.

        Args:
            shard: which.
            after: only shards that are used later than this may be evicted for it, in seconds since 1970.
            is_cancelled: asked now and then; once it says True, the transfer ends.
            size: its bytes, about, where the index does not say: nothing is requested before there is space for them.

        Raises:
            CacheFull: there is no space for it now.
            CancelledTransferError: it was cancelled.
            WidsError: as `open`.
        """
        path, is_in_place = self.place(shard.url)
        if is_in_place:
            return False
        shard = self._as_counted(shard)
        found = self._find_or_prepare(shard, path)
        if isinstance(found, Miss):
            directory, name = directory_of(path)
            with locks.try_acquire(directory.lock(name), mode=directory.lock_mode()) as lock:
                if lock is None:
                    return False
                found = self._find(shard, path)
                if isinstance(found, Miss):
                    if found.cause and promised(shard):  # whether its checksum is right is found out when it is read
                        return False
                    cached, event = self._download(
                        shard, path, found, lock, after=after, is_cancelled=is_cancelled, size=size
                    )
                    cached.lease.release()
                    if self._keep:
                        directory.keep(name)
                    emit(self.hooks, event)
                    return True
        found.lease.release()
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

    def _as_counted(self, shard: Shard) -> Shard:
        """A shard without its count where that says nothing of its bytes."""
        return shard if self._checks_counts else msgspec.structs.replace(shard, nsamples=None)

    def _open(self, shard: Shard, path: str) -> tuple[CachedShard, bool]:
        found = self._find_or_prepare(shard, path)
        is_hit = not isinstance(found, Miss)
        event: Hit | Fetched = Hit(url=shard.url, path=path)
        if isinstance(found, Miss):
            directory, name = directory_of(path)
            with locks.acquire(directory.lock(name), mode=directory.lock_mode(), hooks=self.hooks) as lock:
                found = self._find(shard, path)
                is_hit = not isinstance(found, Miss)
                if isinstance(found, Miss) and found.cause and promised(shard):
                    found = self._find(shard, path, lock=lock)
                if isinstance(found, Miss):
                    found, event = self._download(shard, path, found, lock)
        with found.lease.closing_on_error():
            directory, name = directory_of(path)
            if self._keep:
                directory.keep(name)
            directory.touch(name)
            emit(self.hooks, event)  # with the lock free again: a hook may open the shard of the event
        return found, is_hit

    def _find_or_prepare(self, shard: Shard, path: str) -> CachedShard | Miss:
        """`_find`, and a directory to download into if there is nothing."""
        directory = os.path.dirname(path)
        is_private = directory == atomic.private_dir()
        with using(directory):
            if is_private:
                atomic.check_owner(directory)  # before the first look: what another user put there is not looked at
            found = self._find(shard, path)
            if isinstance(found, Miss):
                atomic.make_directory(directory, is_private=is_private)
                CacheDirectory(directory).make()
        return found

    def _find(self, shard: Shard, path: str, *, lock: locks.HeldLock | None = None) -> CachedShard | Miss:
        """The cached file, leased, if it is the shard: its table says so, or, with the lock held, its checksum."""
        try:
            lease, facts = Lease.open(path)
        except FileNotFoundError:
            return Miss("")
        except OSError as error:
            raise CacheError(f"{path}: cannot be opened ({error}); remove it or choose another cache_dir") from error
        with lease.closing_on_error():
            table, cause = None, ""
            if lease.begin():  # else it is being evicted
                if lock is None:
                    table, cause = self._judge(shard, path, facts)
                else:
                    table, cause = self._judge_by_checksum(shard, path, lease.fd, facts, lock)
            if table is not None and not cause:
                return CachedShard(lease, table)
            lease.release()
        return Miss(cause)

    def _judge(self, shard: Shard, path: str, facts: Identity) -> tuple[MemberTable | None, str]:
        """The saved member table of a file, and why the file cannot be used; "": it can."""
        table = self._load_table(shard, path, facts)
        return table, self._find_difference(shard, facts, table)

    def _load_table(self, shard: Shard, path: str, facts: Identity) -> MemberTable | None:
        directory, name = directory_of(path)
        return member_tables.load_table(directory.table(name), shard.url, shard_bytes=facts.size)

    def _judge_by_checksum(
        self, shard: Shard, path: str, fd: int, facts: Identity, lock: locks.HeldLock
    ) -> tuple[MemberTable | None, str]:
        """As `_judge`, with a new table; a file of the right checksum becomes the cache's own."""
        if cause := find_difference_in_size(shard, facts):
            return None, cause
        try:
            if (mismatch := shard_download.find_mismatch(shard, fd, is_strict=True, go_on=lock.touch)) is not None:
                key, digest, said = mismatch
                return None, f"its {word(key)} is {digest}, the index says {said}"
            saved = self._load_table(shard, path, facts)
            known = saved.identity if saved is not None and saved.identity.is_same(facts) else None
            identity = identify(fd, shard, self.placement.origin(shard.url), known)
            table = member_tables.scan_table(fd, shard.url, identity)
        except (ShardError, OSError) as error:
            return None, str(error)
        cause = self._find_difference(shard, facts, table)
        if not cause:
            self._space(os.path.dirname(path)).adopt(os.path.basename(path), table)
        return table, cause

    def _find_difference(self, shard: Shard, facts: Identity, table: MemberTable | None) -> str:
        origin, miscounted = self.placement.origin(shard.url), self._book.of(shard.url).miscounted
        return find_difference(shard, facts, table, origin=origin, miscounted=miscounted)

    def _download(
        self,
        shard: Shard,
        path: str,
        miss: Miss,
        lock: locks.HeldLock,
        *,
        after: float | None = None,
        is_cancelled: Callable[[], bool] | None = None,
        size: int | None = None,
    ) -> tuple[CachedShard, Fetched]:
        """Download the shard, with the lock held; ``after``, ``size``: see `download_ahead`."""
        if miss.cause:
            emit(self.hooks, Rejected(url=shard.url, path=path, cause=miss.cause))
        start = time.perf_counter()
        download = ShardDownload(
            shard,
            path,
            space=self._space(os.path.dirname(path)),
            origin=partial(self.placement.origin, shard.url),
            session=self._session,
            lock=lock,
            after=after,
            is_cancelled=is_cancelled,
            size=size,
        )
        found = download.run()
        table = found.table
        if shard.nsamples not in (None, table.nsamples):
            # The index is wrong, as its reader will say. To download the shard for each sample would never end.
            self._book.of(shard.url).miscounted = table.identity
        event = Fetched(
            url=shard.url,
            path=path,
            size_bytes=table.identity.size,
            requests=download.requests,
            seconds=time.perf_counter() - start,
            is_ahead=after is not None,
        )
        return found, event

"""Space in a cache directory: who may have more, and what is evicted for it.

Rules: the limit holds while shards arrive, for a part file has its full size before the first byte is written. All
processes that ask take turns (one lock for each directory), look at what is there, and evict. A shard that any process
has open has a lease and stays. A process that finds all shards leased touches the release-request file, releases its
own idle shards, and waits; the other processes see the request and release what they are not reading.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import stat
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from wids.cache import usage_hints
from wids.cache.contents import Contents
from wids.cache.directory import CacheDirectory
from wids.errors import CacheError, CacheFull
from wids.events import Evicted, Swept, WaitedForRoom, emit, logger
from wids.osfiles import atomic, locks, system
from wids.policy import prefetching
from wids.policy.eviction import missing_bytes, victims

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wids.cache.directory import Transients
    from wids.events import Hook
    from wids.index.table import MemberTable
    from wids.policy.eviction import Entry

WAIT_SECONDS = 300.0
# What is done under the lock takes milliseconds, or as long as listing a large directory on a file server.
STOPPED_SECONDS = 30.0
_POLL_SECONDS, _MAX_POLL_SECONDS = 0.02, 0.25
_SOON_SECONDS, _GRACE_SECONDS, _NOW_SECONDS = (
    prefetching.SOON_SECONDS,
    prefetching.GRACE_SECONDS,
    prefetching.NOW_SECONDS,
)
# Where files cannot be locked, a part file that no process has written to for so long counts as left behind.
_STALE_SECONDS = 86_400.0
# Left free on the file system where no size bounds the cache: a hundredth of it, at most 1 GiB.
_FLOOR_RATIO, _MAX_FLOOR_BYTES = 100, 1 << 30
# Without a look at the directory it is not known what is promised to downloads under way: to so many like one's own.
_CROWD = 32


def table_allowance(shard_bytes: int, nsamples: int | None) -> int:
    """Bytes kept free for the member table of a shard that is still to come: more than nearly all of them have."""
    most = shard_bytes // 8
    return 1024 + (most if nsamples is None else min(512 * nsamples, most))


class Space:
    """The space in one cache directory.

    Args:
        directory: it exists.
        limit: bytes that all shards, tables and part files may have together; None: as many as the disk has free.
        hooks: told of evictions and waits.
        release_idle: called while waiting: releases open shards that are not being read.
    """

    def __init__(
        self,
        directory: str,
        *,
        limit: int | None,
        hooks: Sequence[Hook] = (),
        release_idle: Callable[[], None] = lambda: None,
    ) -> None:
        self.directory = CacheDirectory(directory)
        self.limit, self.hooks, self.release_idle = limit, hooks, release_idle
        self._contents = Contents(self.directory)
        self._pid, self._turn = os.getpid(), threading.RLock()
        self._has_warned = self._has_swept = False

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """The lock under which anything is deleted or published here.

        Raises:
            CacheError: the directory is gone or cannot be written.
        """
        self._make()
        mode = self.directory.lock_mode()
        if self._pid != os.getpid():  # a copy that was forked, perhaps while another thread had its turn
            self._pid, self._turn = os.getpid(), threading.RLock()
        # Threads of one process come in turn: polling for the file, one that is needed last may come first.
        with (
            self._turn,
            locks.hold(self.directory.space_lock, mode=mode, is_kept=True, stopped_seconds=STOPPED_SECONDS),
        ):
            yield

    def is_used(self) -> bool:
        """Whether a cache has ever used the directory."""
        return os.path.isdir(self.directory.own) or not os.path.isdir(self.directory.path)

    def reserve(self, sizes: Sequence[tuple[int, int]], *, url: str, after: float | None = None) -> None:
        """Extend part files of our own to the sizes they will have, once there is space.

        Args:
            sizes: (descriptor, bytes) of each.
            url: what is downloaded.
            after: only shards that are used later than this may be evicted, in seconds since 1970, and there is no
                waiting: what is downloaded ahead must not cost what is needed sooner. None: a reader waits for it.

        Raises:
            CacheFull: there is none.
            CacheError: the directory cannot be used.
        """
        start = time.monotonic()
        pause = _POLL_SECONDS
        while True:
            wanted = sum(max(size - os.fstat(fd).st_size, 0) for fd, size in sizes)
            if wanted == 0:
                break
            waited = time.monotonic() - start
            missing, is_blocked = self._try(sizes, wanted, after=after, is_new=waited < _GRACE_SECONDS)
            if missing <= 0:
                break
            if is_blocked:
                self.request_release()
            if after is not None or waited > WAIT_SECONDS:
                self._raise_full(url, wanted, missing)
            self.release_idle()
            time.sleep(pause)
            pause = min(pause * 1.5, _MAX_POLL_SECONDS)
        if pause > _POLL_SECONDS:
            emit(self.hooks, WaitedForRoom(url=url, path=self.directory.path, seconds=time.monotonic() - start))

    @contextlib.contextmanager
    def publishing(self, name: str, size_bytes: int) -> Iterator[None]:
        """Give a shard and its table their names in the block, under the lock; bytes are those of both."""
        with self.lock(), self._contents.changing() as note:
            yield
            note(name, size_bytes)

    def adopt(self, name: str, table: MemberTable) -> None:
        """Make a shard the cache's own whose bytes have been proved; where that cannot be written, it stays foreign."""
        data = table.to_bytes()
        try:
            with (
                self.publishing(name, table.identity.size + len(data)),
                atomic.part_file(self.directory.staging(name)) as (part, fd),
            ):
                system.write_all(fd, data, 0)
                self.directory.share(fd)
                os.replace(part, self.directory.table(name))
        except OSError as error:
            logger.debug("%s: the member table cannot be saved (%s)", self.directory.shard(name), error)

    def sweep(self) -> None:
        """Delete what processes that are gone have left behind."""
        with self.lock():
            found = self.directory.inventory()
            self.clear_left(found.transients)
            self.directory.remove_orphans(found)

    def delete(self, entry: Entry) -> bool:
        """Delete a shard and its table, unless a process has it open. The table last: without its shard it is inert."""
        path = self.directory.shard(entry.name)
        try:
            fd = _open_to_lock(path)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        try:
            if system.try_lock(fd, is_shared=False) is False:
                return False
            with self._contents.changing() as note:
                if not _unlink(path):
                    return False
                with contextlib.suppress(OSError):
                    os.unlink(self.directory.table(entry.name))
                note(entry.name, 0)
        finally:
            os.close(fd)
        emit(self.hooks, Evicted(path=path, size_bytes=entry.size_bytes))
        return True

    def clear_left(self, found: Transients) -> bool:
        """With the lock held: delete part files, plans and lock files without an owner; whether any took space."""
        has_cleared = False
        for name in [*found.parts, *found.plans, *found.locks]:
            path = self.directory.staging(name)
            try:
                fd = _open_to_lock(path)
            except OSError:
                continue
            try:
                size = os.fstat(fd).st_size
                is_left = usage_hints.is_left(fd, stale_seconds=_STALE_SECONDS)
                # A job that replaces its plan lets go of the one before: by then the name is another file's.
                is_left = is_left and os.fstat(fd).st_nlink > 0 and _unlink(path)
            finally:
                os.close(fd)
            if is_left and name not in found.locks:
                has_cleared = True
                emit(self.hooks, Swept(path=path, size_bytes=size))
        return has_cleared

    def request_release(self) -> None:
        """Ask all processes to release shards that they have open and are not reading."""
        with contextlib.suppress(OSError):
            os.close(self.directory.open_own(self.directory.release_request))
            os.utime(self.directory.release_request)

    def release_request_time(self) -> int:
        """When a process last waited here, in nanoseconds; 0: never."""
        try:
            return os.stat(self.directory.release_request).st_mtime_ns
        except OSError:
            return 0

    # --- inside

    def _make(self) -> None:
        try:
            self.directory.make()
        except OSError as error:
            raise CacheError(
                f"{self.directory.path}: cannot be used ({error}); choose another cache_dir", path=self.directory.path
            ) from error

    def _try(
        self, sizes: Sequence[tuple[int, int]], wanted: int, *, after: float | None, is_new: bool
    ) -> tuple[int, bool]:
        """`_reserve`, as patiently as the caller is; ``is_new``: it has not waited for long."""
        try:
            if after is not None:  # plans are renewed: what is needed now is never later
                return self._reserve(sizes, wanted, after=max(after, time.time() + _NOW_SECONDS))
            if is_new:  # at first nothing is evicted that is about to be used, if something else can be in a moment
                missing, is_blocked = self._reserve(sizes, wanted, after=time.time() + _SOON_SECONDS)
                if missing <= 0 or is_blocked:
                    return missing, is_blocked
            return self._reserve(sizes, wanted, after=-math.inf)
        except CacheError:
            raise
        except OSError as error:  # the directory was deleted just now
            raise CacheError(f"{self.directory.path}: cannot be used ({error}); choose another cache_dir") from error

    def _reserve(self, sizes: Sequence[tuple[int, int]], wanted: int, *, after: float) -> tuple[int, bool]:
        """Extend the files if there is space, or can be made.

        Returns:
            How many bytes are missing, and whether more may be evicted in a moment: shards that are open, or in use
            for the last time.
        """
        if self.limit is None and self._has_swept and self._missing(_CROWD * wanted) <= 0:
            _extend(self.directory.path, sizes)
            return 0, False
        is_blocked = False
        with self.lock():
            found = self.directory.transients()
            self._has_swept = True
            if self.clear_left(found):
                found = self.directory.transients()
            if self.limit is not None:
                self._contents.refresh()
            used = self._contents.used_bytes + found.used_bytes
            missing = self._missing(wanted, used=used, promised=found.promised_bytes)
            total = sum(size for _, size in sizes)
            if missing > 0:
                missing, is_blocked = self._evict(missing, total, found, after=after)
            if missing > 0 and after == -math.inf and self._may_exceed(wanted + found.promised_bytes, total):
                missing = 0
            if missing <= 0:
                _extend(self.directory.path, sizes)
        return missing, is_blocked

    def _evict(self, missing: int, total: int, found: Transients, *, after: float) -> tuple[int, bool]:
        """Evict for ``missing`` bytes of files that will have ``total``; what `_reserve` returns."""
        if self.limit is None:
            self._contents.refresh()
        uses = usage_hints.read(self.directory.own, found.plans)
        is_blocked = uses.busy_until > time.time()
        used = self._contents.used_bytes + found.used_bytes
        with contextlib.closing(self._contents.oldest_first()) as entries:
            candidates = victims(entries, uses, after=after)
            first, is_enough = _take_bytes(candidates, missing)
            if not is_enough and not (after == -math.inf and self._is_let_in(total, used)):
                first = []  # nothing is evicted for what has no space even then
            for entry in itertools.chain(first, candidates):
                if self.delete(entry):
                    missing -= entry.size_bytes
                else:
                    is_blocked = True
                if missing <= 0:
                    break
        return missing, is_blocked

    def _missing(self, wanted: int, *, used: int = 0, promised: int = 0) -> int:
        free, total = system.free_bytes(self.directory.path)
        return missing_bytes(
            used=used,
            wanted=wanted,
            limit=self.limit,
            free=free - promised,
            floor=min(total // _FLOOR_RATIO, _MAX_FLOOR_BYTES) if self.limit is None else 0,
        )

    def _is_let_in(self, total: int, used: int) -> bool:
        """Whether a shard that exceeds its limit may come once all else is gone, so that all else should go."""
        free = system.free_bytes(self.directory.path)[0]
        return (self.limit is None or total > self.limit) and total <= free + used

    def _may_exceed(self, coming: int, total: int) -> bool:
        """Whether a shard is admitted although nothing more can be evicted: a limit that no shard fits is none.

        Nor is the floor under the free space of a disk that others have filled; the disk's end is.
        """
        if self.limit is not None and total <= self.limit:
            return False
        if system.free_bytes(self.directory.path)[0] < coming:
            return False
        if not self._has_warned:
            self._has_warned = True
            bound = "the disk is nearly full" if self.limit is None else f"cache_size is {self.limit}"
            logger.warning(
                "%s: %s, and a shard needs %d bytes; it is admitted over the limit", self.directory.path, bound, total
            )
        return True

    def _raise_full(self, url: str, wanted: int, missing: int) -> None:
        path = self.directory.path
        try:
            used = self._contents.used_bytes + self.directory.transients().used_bytes
            free, _ = system.free_bytes(path)
            is_sticky = os.stat(path).st_mode & stat.S_ISVTX
        except OSError as error:
            raise CacheError(f"{path}: cannot be used ({error}); choose another cache_dir") from error
        bound = "has no limit" if self.limit is None else f"may have {self.limit} bytes"
        advice = "Raise cache_size, free space, or let fewer processes share the directory"
        if is_sticky:
            advice += "; its sticky bit keeps users from evicting each other's shards: chmod -t it"
        raise CacheFull(
            f"{path}: {missing} bytes too few for {url}, which needs {wanted}: the cache {bound} and has "
            f"{used}, all of it being read, downloaded or kept, and the disk has {free} free. {advice}",
            url=url,
            path=path,
            expected=wanted,
            found=max(wanted - missing, 0),
        )


def _take_bytes(entries: Iterator[Entry], wanted: int) -> tuple[list[Entry], bool]:
    """As many of the first entries as have so many bytes together, and whether they have."""
    taken: list[Entry] = []
    for entry in entries:
        taken.append(entry)
        wanted -= entry.size_bytes
        if wanted <= 0:
            return taken, True
    return taken, False


def evict_from(spaces: Sequence[Space], *, limit: int, most: int, is_dry: bool = False) -> list[tuple[str, int]]:
    """Delete what is beyond ``limit`` bytes or ``most`` shards in some directories together, as far as it may go.

    If that is not far enough, idle shards are requested, and another call a little later gets further.

    Args:
        spaces: of the directories.
        limit: bytes to keep.
        most: shards to keep.
        is_dry: only say what would go.

    Returns:
        (path, bytes) of each shard that went, in that order.

    Raises:
        CacheError: a directory is gone or cannot be written.
    """
    with contextlib.ExitStack() as locked:
        entries: list[Entry] = []
        uses: dict[str, float] = {}
        home: dict[str, Space] = {}
        used = 0
        # In one order, or two cleaners wait for each other; and each once, or this one waits for itself.
        for _, space in sorted({os.path.realpath(space.directory.path): space for space in spaces}.items()):
            if not space.is_used():
                continue
            locked.enter_context(space.lock())
            found = space.directory.inventory()
            if not is_dry:
                space.clear_left(found.transients)
                space.directory.remove_orphans(found)
                found = space.directory.inventory()  # nothing is evicted for the bytes of what was swept just now
            here = [msgspec.structs.replace(entry, name=space.directory.shard(entry.name)) for entry in found.entries]
            entries += here
            home.update((entry.name, space) for entry in here)
            used += found.used_bytes
            planned = usage_hints.read(space.directory.own, found.transients.plans)
            uses.update((space.directory.shard(name), when) for name, when in planned.items())
        gone = []
        count = len(entries)
        entries.sort(key=lambda entry: entry.used_ns)
        for entry in victims(entries, uses):
            if used <= limit and count <= most:
                break
            if is_dry or _delete(home[entry.name], entry):
                used, count = used - entry.size_bytes, count - 1
                gone.append((entry.name, entry.size_bytes))
        if not is_dry and (used > limit or count > most):
            for space in spaces:
                space.request_release()
    return gone


def _extend(directory: str, sizes: Sequence[tuple[int, int]]) -> None:
    try:
        for fd, size in sizes:
            if os.fstat(fd).st_size < size:
                os.ftruncate(fd, size)
    except OSError as error:
        raise CacheError(f"{directory}: cannot be written ({error}); free space or move cache_dir") from error


def _delete(space: Space, entry: Entry) -> bool:
    """Delete a shard that is named by its path."""
    return space.delete(msgspec.structs.replace(entry, name=os.path.basename(entry.name)))


def _open_to_lock(path: str) -> int:
    """Open a file for an exclusive lock, for which NFS wants it writable."""
    try:
        return os.open(path, system.WRITE_FLAGS)
    except PermissionError:
        return os.open(path, system.READ_FLAGS)


def _unlink(path: str) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError as error:
        logger.warning("%s: cannot be deleted (%s)", path, error)
        return False
    return True

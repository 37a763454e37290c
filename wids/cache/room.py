"""Room in a cache directory: who may have more, and what goes for it.

Rules: the bound holds while shards arrive, for a part file has its full size before the first byte is written. All who
ask take turns (one lock for each directory), look at what is there, and delete what may go. A shard that anybody has
open has a lease and stays. Whoever finds all leased rings a bell, lets go of what it holds, and waits; the other
processes hear it and let go of what they are not reading at that moment.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from typing import TYPE_CHECKING

import msgspec

from wids.cache import inventory, locks, pace, plans, system
from wids.cache.evict import missing_bytes, victims
from wids.errors import CacheError, CacheFull
from wids.events import Evicted, Swept, WaitedForRoom, emit, logger
from wids.index import table as tables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.cache.evict import Entry
    from wids.cache.inventory import Inventory
    from wids.events import Hook

_LOCK_NAME = ".room"
WAIT_SECONDS = 300.0
_POLL_SECONDS, _POLL_MOST_SECONDS = 0.02, 0.25
_SOON_SECONDS, _GRACE_SECONDS, _NOW_SECONDS = pace.SOON_SECONDS, pace.GRACE_SECONDS, pace.NOW_SECONDS
# Where files cannot be locked, a part file that nobody has written to for so long counts as left behind.
_STALE_SECONDS = 86_400.0
# Left free on the file system where no size bounds the cache: a hundredth of it, at most 1 GiB.
_FLOOR_RATIO, _MOST_FLOOR_BYTES = 100, 1 << 30
# Without a look at the directory it is not known what is promised to downloads under way: to so many like one's own.
_CROWD = 32


def table_allowance(shard_bytes: int, nsamples: int | None) -> int:
    """Bytes kept free for the member table of a shard that is still to come: more than nearly all of them have."""
    most = shard_bytes // 8
    return 1024 + (most if nsamples is None else min(512 * nsamples, most))


class Room:
    """The room in one cache directory.

    Args:
        directory: it exists.
        limit: bytes that all shards, tables and part files may have together; None: as many as the disk has room for.
        hooks: told of evictions and waits.
        let_go: called while waiting: lets go of open shards that are not being read.
    """

    def __init__(
        self,
        directory: str,
        *,
        limit: int | None,
        hooks: Sequence[Hook] = (),
        let_go: Callable[[], None] = lambda: None,
    ) -> None:
        self.directory, self.limit, self.hooks, self.let_go = directory, limit, hooks, let_go
        self._has_warned = self._has_swept = False

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """The lock under which anything is deleted or published here.

        Raises:
            CacheError: the directory is gone or cannot be written.
        """
        return locks.hold(os.path.join(self.directory, _LOCK_NAME))

    def is_used(self) -> bool:
        """Whether anything was ever published or deleted here under the lock."""
        return os.path.exists(os.path.join(self.directory, _LOCK_NAME + locks.SUFFIX))

    def reserve(self, sizes: Sequence[tuple[int, int]], *, url: str, after: float | None = None) -> None:
        """Extend part files of our own to the sizes they will have, once there is room.

        Args:
            sizes: (descriptor, bytes) of each.
            url: what is coming.
            after: only shards that are used later than this may go, in seconds since 1970, and there is no waiting:
                what is fetched ahead must not cost what is needed sooner. None: somebody waits for the shard.

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
                self.ring()
            if after is not None or waited > WAIT_SECONDS:
                self._raise_full(url, wanted, missing)
            self.let_go()
            time.sleep(pause)
            pause = min(pause * 1.5, _POLL_MOST_SECONDS)
        if pause > _POLL_SECONDS:
            emit(self.hooks, WaitedForRoom(url=url, path=self.directory, seconds=time.monotonic() - start))

    def sweep(self) -> None:
        """Delete what processes that are gone have left behind."""
        with self.lock():
            self.clear_left(inventory.take(self.directory))

    def delete(self, entry: Entry) -> bool:
        """Delete a shard and its table, unless anybody has it open. The table last: without its shard it is inert."""
        path = os.path.join(self.directory, entry.name)
        try:
            fd = _open_to_lock(path)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        try:
            if system.try_lock(fd, is_shared=False) is False or not _unlink(path, fd):
                return False
        finally:
            os.close(fd)
        if not system.RENAMES_OPEN_FILES and not _unlink(path, -1):
            return False
        with contextlib.suppress(OSError):
            os.unlink(path + tables.SUFFIX)
        emit(self.hooks, Evicted(path=path, size_bytes=entry.size_bytes))
        return True

    def clear_left(self, found: Inventory) -> bool:
        """With the lock held: delete part files and plans without an owner, and tables without a shard; whether any."""
        has_cleared = False
        for name in [*found.parts, *found.plans]:
            path = os.path.join(self.directory, name)
            try:
                fd = _open_to_lock(path)
            except OSError:
                continue
            try:
                size = os.fstat(fd).st_size
                is_left = plans.is_left(fd, stale_seconds=_STALE_SECONDS)
                # A job that replaces its plan lets go of the one before: by then the name is another file's.
                is_left = is_left and os.fstat(fd).st_nlink > 0 and _unlink(path, fd)
            finally:
                os.close(fd)
            if is_left and (system.RENAMES_OPEN_FILES or _unlink(path, -1)):
                has_cleared = True
                emit(self.hooks, Swept(path=path, size_bytes=size))
        for name in found.orphans:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.directory, name))
                has_cleared = True
        return has_cleared

    def ring(self) -> None:
        """Ask all processes to let go of shards that they have open and are not reading."""
        path = os.path.join(self.directory, inventory.BELL_NAME)
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
            fd = os.open(path, flags, 0o666)
            os.close(fd)
            os.utime(path)

    def bell_time(self) -> int:
        """When somebody last waited here, in nanoseconds; 0: never."""
        try:
            return os.stat(os.path.join(self.directory, inventory.BELL_NAME)).st_mtime_ns
        except OSError:
            return 0

    # --- inside

    def _try(
        self, sizes: Sequence[tuple[int, int]], wanted: int, *, after: float | None, is_new: bool
    ) -> tuple[int, bool]:
        """`_reserve`, as patiently as the caller is; ``is_new``: it has not waited for long."""
        try:
            if after is not None:  # plans are renewed: what is needed now is never later
                return self._reserve(sizes, wanted, after=max(after, time.time() + _NOW_SECONDS))
            if is_new:  # at first nothing goes that is about to be used, if something else will in a moment
                missing, is_blocked = self._reserve(sizes, wanted, after=time.time() + _SOON_SECONDS)
                if missing <= 0 or is_blocked:
                    return missing, is_blocked
            return self._reserve(sizes, wanted, after=-math.inf)
        except CacheError:
            raise
        except OSError as error:  # somebody has deleted the directory just now
            raise CacheError(f"{self.directory}: cannot be used ({error}); choose another cache_dir") from error

    def _reserve(self, sizes: Sequence[tuple[int, int]], wanted: int, *, after: float) -> tuple[int, bool]:
        """Extend the files if there is room, or can be made.

        Returns:
            How many bytes are missing, and whether more may go in a moment: shards that are open, or in use for the
            last time.
        """
        is_blocked = False
        if self.limit is None and self._has_swept and self._missing(_CROWD * wanted, None) <= 0:
            _extend(self.directory, sizes)
            return 0, False
        with self.lock():
            found = inventory.take(self.directory)
            self._has_swept = True
            if self.clear_left(found):
                found = inventory.take(self.directory)
            missing = self._missing(wanted, found)
            total = sum(size for _, size in sizes)
            if missing > 0:
                uses = plans.read(self.directory, found.plans)
                is_blocked = uses.busy_until > time.time()
                going = list(victims(found.entries, uses, after=after))
                is_let_in = after == -math.inf and self._is_let_in(total, found.used_bytes)
                if sum(entry.size_bytes for entry in going) < missing and not is_let_in:
                    going = []  # nothing is lost for what has no room even then
                for entry in going:
                    if self.delete(entry):
                        missing -= entry.size_bytes
                    else:
                        is_blocked = True
                    if missing <= 0:
                        break
            if missing > 0 and after == -math.inf and self._may_exceed(wanted + found.promised_bytes, total):
                missing = 0
            if missing <= 0:
                _extend(self.directory, sizes)
        return missing, is_blocked

    def _missing(self, wanted: int, found: Inventory | None) -> int:
        free, total = system.free_bytes(self.directory)
        return missing_bytes(
            used=found.used_bytes if found else 0,
            wanted=wanted,
            limit=self.limit,
            free=free - (found.promised_bytes if found else 0),
            floor=min(total // _FLOOR_RATIO, _MOST_FLOOR_BYTES) if self.limit is None else 0,
        )

    def _is_let_in(self, total: int, used: int) -> bool:
        """Whether a shard that exceeds its bound may come once all else is gone, so that all else should go."""
        free = system.free_bytes(self.directory)[0]
        return (self.limit is None or total > self.limit) and total <= free + used

    def _may_exceed(self, coming: int, total: int) -> bool:
        """Whether what is coming is let in although nothing more can go: a bound that no shard fits is none.

        So is the floor under the free space of a disk that others have filled; not the disk's end.
        """
        if self.limit is not None and total <= self.limit:
            return False
        if system.free_bytes(self.directory)[0] < coming:
            return False
        if not self._has_warned:
            self._has_warned = True
            bound = "the disk is nearly full" if self.limit is None else f"cache_size is {self.limit}"
            logger.warning(
                "%s: %s, and a shard needs %d bytes; it is let in all the same", self.directory, bound, total
            )
        return True

    def _raise_full(self, url: str, wanted: int, missing: int) -> None:
        try:
            found = inventory.take(self.directory)
            free, _ = system.free_bytes(self.directory)
        except OSError as error:
            raise CacheError(f"{self.directory}: cannot be used ({error}); choose another cache_dir") from error
        bound = "has no bound" if self.limit is None else f"may have {self.limit} bytes"
        raise CacheFull(
            f"{self.directory}: {missing} bytes too few for {url}, which needs {wanted}: the cache {bound} and has "
            f"{found.used_bytes}, all of it being read, downloaded or kept, and the disk has {free} free. Raise "
            "cache_size, free space, or let fewer processes share the directory",
            url=url,
            path=self.directory,
            expected=wanted,
            found=max(wanted - missing, 0),
        )


def evict_from(rooms: Sequence[Room], *, limit: int, most: int, is_dry: bool = False) -> list[tuple[str, int]]:
    """Delete what is beyond ``limit`` bytes or ``most`` shards in some directories together, as far as it may go.

    If that is not far enough the bell is rung, and another call a little later gets further.

    Args:
        rooms: of the directories.
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
        home: dict[str, Room] = {}
        used = 0
        # In one order, or two cleaners wait for each other; and each once, or this one waits for itself.
        for _, room in sorted({os.path.realpath(room.directory): room for room in rooms}.items()):
            locked.enter_context(room.lock())
            found = inventory.take(room.directory)
            if not is_dry and room.clear_left(found):
                found = inventory.take(room.directory)  # nothing goes for the bytes of what went just now
            here = [
                msgspec.structs.replace(entry, name=os.path.join(room.directory, entry.name)) for entry in found.entries
            ]
            entries += here
            home.update((entry.name, room) for entry in here)
            used += found.used_bytes
            planned = plans.read(room.directory, found.plans)
            uses.update((os.path.join(room.directory, name), when) for name, when in planned.items())
        gone = []
        count = len(entries)
        for entry in victims(entries, uses):
            if used <= limit and count <= most:
                break
            if is_dry or home[entry.name].delete(entry):
                used, count = used - entry.size_bytes, count - 1
                gone.append((entry.name, entry.size_bytes))
        if not is_dry and (used > limit or count > most):
            for room in rooms:
                room.ring()
    return gone


def _extend(directory: str, sizes: Sequence[tuple[int, int]]) -> None:
    try:
        for fd, size in sizes:
            if os.fstat(fd).st_size < size:
                os.ftruncate(fd, size)
    except OSError as error:
        raise CacheError(f"{directory}: cannot be written ({error}); free space or move cache_dir") from error


def _open_to_lock(path: str) -> int:
    """Open a file for an exclusive lock, for which NFS wants it writable."""
    try:
        return os.open(path, system.WRITE_FLAGS)
    except PermissionError:
        return os.open(path, system.READ_FLAGS)


def _unlink(path: str, fd: int) -> bool:
    """Delete a file that is open and locked as ``fd``, or (-1) where that could not be done while it was open."""
    if fd >= 0 and not system.RENAMES_OPEN_FILES:
        return True
    try:
        os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError as error:
        logger.warning("%s: cannot be deleted (%s)", path, error)
        return False
    return True

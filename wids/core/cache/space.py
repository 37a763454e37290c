"""Space in a cache directory: the downloads that may have more, and the shards that are evicted for it.

Rules: the limit holds while shards arrive, for a part file has its full size before the first byte is written. All
processes that ask take turns (one lock for each directory); `wids.core.cache.reservation` decides, and they evict. A
shard that any process has open has a lease and stays. A process that finds all shards leased touches the
release-request file, releases its own idle shards, and waits; the other processes see the request and release their
idle ones.

The member table of an evicted shard is remembered: moved to another folder, counted, up to a share of the limit, those
used longest ago first to go. No shard goes for them, and none is refused: they have what shards leave.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from wids.core.cache import limits, reservation, usage_hints
from wids.core.cache.contents import Contents, LoggedChange
from wids.core.cache.directory import CacheDirectory, using, writing
from wids.core.cache.eviction import missing_bytes, victims
from wids.core.cache.reservation import Grant, MustWait, Refuse, Request, settle
from wids.core.files import atomic, locks, system
from wids.core.files.lazy import Lazy
from wids.errors import CacheFull
from wids.events import Evicted, Swept, WaitedForRoom, emit, format_size, logger

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from wids.core.cache.directory import Inventory, Transients
    from wids.core.cache.eviction import Entry
    from wids.core.tables.table import MemberTable
    from wids.events import Hook

_POLL_SECONDS, _MAX_POLL_SECONDS = 0.002, 0.25
# A part file that no process has written to for so long counts as left behind, where files cannot be locked.
_STALE_SECONDS = 86_400.0
# Without a look at the directory the space reserved by other downloads is unknown: assume so many of one's own size.
_CROWD = 32
# Lock files and logs take blocks of the disk, too, while downloads are under way. Where only a limit bounds the
# writing, so many blocks are not there for shards; of a small disk, a part at most.
_BLOCK_BYTES, _OWN_BLOCKS, _OWN_SHARE = 4096, 16, 16
# Remembered tables may have this part of the limit: tables of shards with small members are a hundredth of them.
_REMEMBERED_SHARE = 100


def table_allowance(shard_bytes: int, nsamples: int | None) -> int:
    """Bytes kept free for the member table of a shard that is still to come: more than nearly all of them have."""
    most = shard_bytes // 8
    return 1024 + (most if nsamples is None else min(512 * nsamples, most))


def shard_bytes(needed: int, nsamples: int | None) -> int:
    """The bytes of a shard that needs so many, including the reserve for its table; approximately."""
    size = max(needed - 1024, 0)
    most = size // 9  # an eighth of the shard
    return size - (most if nsamples is None else min(512 * nsamples, most))


class Space:
    """The space in one cache directory.

    Args:
        directory: it exists.
        limit: bytes that all shards, tables and part files may have together; None: as many as the disk has free.
        hooks: called with evictions and waits.
        release_idle: called before and while it waits: releases this process's open shards that are not being read;
            True if any existed.
    """

    release_idle: Callable[[], bool]
    directory: CacheDirectory
    limit: int | None
    hooks: Sequence[Hook]

    def __init__(
        self,
        directory: str,
        *,
        limit: int | None,
        hooks: Sequence[Hook] = (),
        release_idle: Callable[[], bool] = bool,
    ) -> None:
        self.directory = CacheDirectory(directory)
        self.limit, self.hooks, self.release_idle = limit, hooks, release_idle
        self._contents = Contents(self.directory)
        self._pid, self._turn = os.getpid(), threading.RLock()
        self._has_warned = self._has_swept = self._is_disk_full = False
        self._denied_bytes = self._kept_bytes = 0
        self._has_told_of: set[str] = set()
        self._bytes_per_second = reservation.LIMITS.first_bytes_per_second

    @contextlib.contextmanager
    def lock(self) -> Iterator[locks.HeldLock]:
        """The lock under which anything is deleted or published here; touched by who holds it for long.

        Raises:
            CacheError: the directory is gone or cannot be written.
        """
        with using(self.directory.path):
            self.directory.make()
        mode = self.directory.lock_mode()
        if self._pid != os.getpid():  # a copy that was forked, perhaps while another thread had its turn
            self._pid, self._turn = os.getpid(), threading.RLock()
        # Threads of one process come in turn: polling for the file, one that is needed last may come first.
        with (
            self._turn,
            locks.acquire(
                self.directory.space_lock, mode=mode, is_kept=True, stopped_seconds=limits.LIMITS.stopped_seconds
            ) as held,
        ):
            yield held

    def is_used(self) -> bool:
        """True if a cache has ever used the directory."""
        return os.path.isdir(self.directory.folder) or not os.path.isdir(self.directory.path)

    def reserve(
        self,
        sizes: Sequence[tuple[int, int]],
        *,
        url: str,
        after: float | None = None,
        is_final: bool = True,
        go_on: Callable[[], None] = lambda: None,
    ) -> None:
        """Extend part files of our own to the sizes they will have, once there is space.

        Args:
            sizes: (descriptor, bytes) of each.
            url: of the shard.
            after: only shards that are used later than this may be evicted, in seconds since 1970, and there is no
                waiting: a download ahead must not cost shards that are needed sooner. None: a reader waits for it.
            is_final: these are all of its bytes; otherwise it may go on for ever, and is not admitted over the limit.
            go_on: called now and then while it waits.

        Raises:
            CacheFull: none exists.
            CacheError: the directory cannot be used.
        """
        start = time.monotonic()
        pause = _POLL_SECONDS
        may_exceed = has_released = has_reported = False
        while True:
            wanted = sum(max(size - os.fstat(fd).st_size, 0) for fd, size in sizes)
            if wanted == 0:
                break
            waited = time.monotonic() - start
            request = Request(wanted, sum(size for _, size in sizes), after, waited, is_final=is_final)
            decision = self._reserve(sizes, request, may_exceed=may_exceed)
            if isinstance(decision, Grant):
                if not decision.is_over_limit or may_exceed:
                    break
                may_exceed = True  # once all that is open and not being read has gone
                self.request_release()
                self.release_idle()
                continue
            is_over = isinstance(decision, Refuse) or waited > limits.LIMITS.wait_seconds
            # Shards that this process alone holds are no reason to wait. Once for each pause: threads may reopen them.
            if decision.is_blocked and not (is_over or has_released) and self.release_idle():
                has_released = True
                continue
            if decision.is_blocked:
                self.request_release()
            if is_over:
                self._raise_full(url, request, decision.missing)
            if not has_reported and waited > limits.LIMITS.report_seconds:
                has_reported = True
                shortage = self._describe_shortage(url, request.total, decision.missing)
                logger.warning("%s; waiting for up to %.0f s", shortage, limits.LIMITS.wait_seconds)
            has_released = False
            go_on()
            time.sleep(pause)
            pause = min(pause * 1.5, _MAX_POLL_SECONDS)
        if pause > _POLL_SECONDS:
            emit(self.hooks, WaitedForRoom(url=url, path=self.directory.path, seconds=time.monotonic() - start))

    def note_download(self, size_bytes: int, seconds: float) -> None:
        """Note a download here: its time is that of another download."""
        if size_bytes and seconds > 0:
            self._bytes_per_second = size_bytes / seconds

    @contextlib.contextmanager
    def publishing(self, name: str, size_bytes: int) -> Iterator[None]:
        """Give a shard and its table their names in the block, under the lock; bytes are those of both."""
        with self.lock(), self._contents.changing() as note:
            yield
            with contextlib.suppress(OSError):
                os.unlink(self.directory.remembered_table(name))
            note(LoggedChange(name, size_bytes, _size_of(self.directory.remembered_table(name))))

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
            path = self.directory.shard(name)
            text = "%s: the member table cannot be saved (%s): its checksum is compared each time that it is opened"
            logger.log(self._level_of(path), text, path, error)

    def take_stock(self, inventory: Inventory) -> None:
        """With the lock held: the directory was listed, and has this in it."""
        self._contents.fill(inventory)

    def sweep(self) -> None:
        """Delete files that ended processes have left behind."""
        with self.lock():
            inventory = self.directory.inventory()
            self.remove_abandoned(inventory.transients)
            self.directory.remove_orphans(inventory)

    def delete(self, entry: Entry, *, max_remembered: int = 0) -> bool:
        """Delete a shard, unless a process has it open; True if it is gone. Its table is remembered, if that may be.

        Args:
            entry: the shard.
            max_remembered: bytes of all remembered tables.
        """
        path = self.directory.shard(entry.name)
        try:
            fd = locks.open_to_lock(path)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        try:
            if system.try_lock(fd, is_shared=False) is False:
                return False
            size = _size_of(self.directory.table(entry.name))
            may_stay = 0 < size <= max_remembered
            # Before it comes: a process that is killed leaves no more than there may be.
            may_stay &= self.forget(max_remembered - (size if may_stay else 0)) <= max_remembered - size
            with self._contents.changing() as note:
                if not self._unlink(path):
                    return False
                # The table last: without its shard it is inert.
                if not (may_stay and self._remember(entry.name)):
                    with contextlib.suppress(OSError):
                        os.unlink(self.directory.table(entry.name))
                kept = _size_of(self.directory.remembered_table(entry.name))  # or another user's, which had to stay
                note(LoggedChange(entry.name, 0, kept))
                self._contents.remembered.note(entry.name, kept)
        finally:
            os.close(fd)
        emit(self.hooks, Evicted(path=path, size_bytes=entry.size_bytes))
        return True

    def _remember(self, name: str) -> bool:
        """Move the table of a shard that was deleted; True if it could be done."""
        try:
            self.directory.make_folders(self.directory.remembered)
            os.replace(self.directory.table(name), self.directory.remembered_table(name))
        except OSError:  # none exists, or no space for a folder
            return False
        return True

    def forget(self, most: int) -> int:
        """With the lock held: delete remembered tables, those used longest ago first, until they have so many bytes.

        Those of other users stay, where a sticky bit keeps this one from deleting them.

        Returns:
            The bytes that they have then.
        """
        remembered = self._contents.remembered
        if remembered.bytes <= most:
            return remembered.bytes
        may_go = self.directory.forgettable()
        with contextlib.closing(remembered.oldest_first()) as oldest, self._contents.changing() as note:
            for entry in oldest:
                if remembered.bytes <= most:
                    break
                if may_go(entry.name) and self._unlink(self.directory.remembered_table(entry.name)):
                    note(LoggedChange(entry.name, 0))
                    remembered.note(entry.name, 0)
        return remembered.bytes

    def remove_abandoned(self, transients: Transients) -> bool:
        """With the lock held: delete part files, plans and lock files without an owner; True if any took space."""
        has_cleared = False
        for name in [*transients.parts, *transients.plans, *transients.locks]:
            path = self.directory.staging(name)
            try:
                fd = locks.open_to_lock(path)
            except OSError:
                continue
            try:
                size = os.fstat(fd).st_size
                is_abandoned = usage_hints.is_abandoned(fd, stale_seconds=_STALE_SECONDS)
                # A job that replaces its plan lets go of the one before: by then the name is another file's.
                is_abandoned = is_abandoned and os.fstat(fd).st_nlink > 0 and self._unlink(path)
            finally:
                os.close(fd)
            if is_abandoned and name not in transients.locks:
                has_cleared = True
                emit(self.hooks, Swept(path=path, size_bytes=size))
        return has_cleared

    def request_release(self) -> None:
        """Ask all processes to release shards that they have open and are not reading."""
        with contextlib.suppress(OSError):
            os.close(self.directory.open_own(self.directory.release_request))
            os.utime(self.directory.release_request)

    # --- inside

    def _reserve(
        self, sizes: Sequence[tuple[int, int]], request: Request, *, may_exceed: bool
    ) -> Grant | MustWait | Refuse:
        """Decide by the rules of reservation, evict, and extend the files if there is space, or they may exceed it."""
        with using(self.directory.path):  # it may be deleted at any moment
            if self.limit is None and self._has_swept and self._has_plenty(_CROWD * request.wanted):
                _extend(self.directory.path, sizes)
                return Grant()
            with self.lock():
                transients = self.directory.transients()
                self._has_swept = True
                if self.remove_abandoned(transients):
                    transients = self.directory.transients()
                request = request._replace(grace=reservation.grace(request.total / self._bytes_per_second))
                with contextlib.closing(_DirectorySnapshot(self, self._contents, transients, request)) as snapshot:
                    decision = settle(snapshot, request, snapshot.evict)
                    while _is_within(decision) and not snapshot.forget_tables():
                        decision = settle(snapshot, request, snapshot.evict)
                self._denied_bytes, self._kept_bytes = snapshot.denied_bytes, snapshot.kept_bytes
                self._is_disk_full = snapshot.is_disk_full
                if not isinstance(decision, Grant) and (missing := snapshot.missing_bytes) > 0:
                    decision = decision._replace(missing=missing)
                    downloads = transients.used_bytes - sum(os.fstat(fd).st_size for fd, _ in sizes)
                    # The rest is other files', kept, or other users': no end of a read or of a download frees it.
                    if isinstance(decision, MustWait) and missing > snapshot.deletable_bytes + downloads:
                        return Refuse(missing, is_blocked=False)
                if isinstance(decision, Grant):
                    if decision.is_over_limit:
                        if not may_exceed:
                            return decision
                        self._warn_once(request.total)
                        snapshot.forget_tables()
                    _extend(self.directory.path, sizes)
                return decision

    def _unlink(self, path: str) -> bool:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return True
        except OSError as error:  # tried again each time that space is needed
            logger.log(self._level_of(path), "%s: cannot be deleted (%s)", path, error)
            return False
        return True

    def _level_of(self, path: str) -> int:
        """The fault of a file is a warning the first time, and DEBUG after that."""
        level = logging.DEBUG if path in self._has_told_of else logging.WARNING
        self._has_told_of.add(path)
        return level

    def _has_plenty(self, wanted: int) -> bool:
        """True if the disk has so much left above its floor, without a look at the directory."""
        free, size = system.free_bytes(self.directory.path)
        return wanted <= free - system.floor_bytes(size)

    def _warn_once(self, total: int) -> None:
        if not self._has_warned:
            self._has_warned = True
            limit = "the disk is nearly full" if self.limit is None else f"cache_size is {format_size(self.limit)}"
            words = "%s: %s, and a shard needs %s; it is admitted over the limit"
            logger.warning(words, self.directory.path, limit, format_size(total))

    def _raise_full(self, url: str, request: Request, missing: int) -> None:
        path, needed = self.directory.path, request.total
        shortage = self._describe_shortage(url, needed, missing)
        with using(path):
            is_sticky = os.stat(path).st_mode & stat.S_ISVTX
        advice = "Raise cache_size, or let fewer processes share the directory"
        if self._is_disk_full:
            advice = "Free space on the disk, or choose another cache_dir"
        if is_sticky:
            advice += "; its sticky bit keeps users from evicting each other's shards: chmod -t it"
        if self._kept_bytes:
            advice += f"; {self._kept_bytes} bytes are marked by keep=True (wids cache clean --unkeep removes marks)"
        if not request.is_final:
            advice += "; neither the index nor the server says how long this shard is (wids index create finds out)"
        raise CacheFull(f"{shortage}. {advice}", url=url, path=path, expected=needed, found=max(needed - missing, 0))

    def _describe_shortage(self, url: str, needed: int, missing: int) -> str:
        """The bytes that a shard lacks, of the disk or of the limit, and the files that hold them."""
        path = self.directory.path
        with using(path):
            used = self._contents.used_bytes + self.directory.transients().used_bytes
            free, size = system.free_bytes(path)
        others = f", or other users' ({self._denied_bytes} bytes)" if self._denied_bytes else ""
        if self._is_disk_full:
            return (
                f"{path}: {missing} more bytes are needed for {url}, and its file system has {free} free; the shard "
                f"needs {needed}; the cache has {used}{others}, and other files {max(size - free - used, 0)}"
            )
        return (
            f"{path}: {missing} bytes too few for {url}, which needs {needed}: the cache may have {self.limit} bytes "
            f"and has {used}, all of it being read, downloaded or kept{others}, and the disk has {free} free"
        )


class _DirectorySnapshot:
    """A cache directory as `wids.core.cache.reservation.Snapshot`, under its lock; listed only if that is needed.

    What remembered tables have counts as free, for they go when it is granted; not those of others that have to stay.
    """

    second = 1.0

    def __init__(self, space: Space, contents: Contents, transients: Transients, request: Request) -> None:
        self.limit, self.now, self._wanted = space.limit, time.time(), request.wanted
        # A shard that exceeds the limit by itself is admitted, also below the floor: see `wids.core.cache.reservation`.
        may_exceed = request.is_final and self.limit is not None and request.total > self.limit
        self._hard_limit = None if may_exceed else self.limit
        self.free, self.disk = system.free_bytes(space.directory.path)
        if space.limit is not None:
            self.free -= _BLOCK_BYTES * min(_OWN_BLOCKS, self.disk // (_OWN_SHARE * _BLOCK_BYTES))
        self.floor = system.floor_bytes(self.disk) if space.limit is None else 0
        self._hard_floor = 0 if request.is_final else self.floor
        self.promised = transients.promised_bytes
        self._space, self._contents, self._transients = space, contents, transients
        self._open: list[Generator[Entry, None, None]] = []
        self.denied_bytes = self.kept_bytes = 0
        if self.limit is not None or request.wanted > self.free - self.promised - self.floor:
            contents.refresh()
        stuck = contents.remembered.bytes_without(space.directory.forgettable())
        self.free += contents.remembered.bytes - stuck
        self.used = contents.shards.bytes + transients.used_bytes + stuck
        self._stuck = stuck

    @property
    def is_disk_full(self) -> bool:
        """True if the disk lacks more bytes than the limit does."""
        over = 0 if self._hard_limit is None else self.used + self._wanted - self._hard_limit
        return self._wanted - (self.free - self.promised - self.floor) > max(over, 0)

    @property
    def missing_bytes(self) -> int:
        """Number of bytes to free before a reader is admitted, perhaps over the limit; 0 or less: none."""
        return missing_bytes(
            used=self.used,
            wanted=self._wanted,
            limit=self._hard_limit,
            free=self.free - self.promised,
            floor=self._hard_floor,
        )

    @property
    def deletable_bytes(self) -> int:
        """Bytes of the shards that can be deleted when no process reads them; all have been iterated over."""
        return self._contents.shards.bytes - self.denied_bytes - self.kept_bytes

    @Lazy
    def uses(self) -> usage_hints.Uses:
        """The plans of all jobs."""
        return usage_hints.read(self._space.directory.folder, self._transients.plans)

    @property
    def is_busy(self) -> bool:
        """True if a job is known to use a shard for the last time."""
        return self.uses.busy_until > time.time()

    def entries(self) -> Iterator[Entry]:
        """The cached shards, least recently used first."""
        self.close()
        self._open.append(self._contents.shards.oldest_first())
        directory = self._space.directory
        may_delete, self.denied_bytes, self.kept_bytes = directory.deletable(), 0, 0
        for entry in self._open[-1]:
            if directory.is_kept(entry.name):
                self.kept_bytes += entry.size_bytes
            elif may_delete(entry.name):
                yield entry
            else:
                self.denied_bytes += entry.size_bytes

    def close(self) -> None:
        """End the iteration over entries, which have to be put back."""
        while self._open:
            self._open.pop().close()

    def evict(self, entry: Entry) -> bool:
        """Delete a shard that no process has open."""
        most = (self.disk if self.limit is None else self.limit) // _REMEMBERED_SHARE
        is_evicted = self._space.delete(entry, max_remembered=most)
        if is_evicted:
            self.used -= entry.size_bytes
            self.free += entry.size_bytes
        return is_evicted

    def forget_tables(self) -> bool:
        """Delete remembered tables, whose bytes were granted; False: some cannot be deleted, and count as used now."""
        remembered = self._contents.remembered.bytes - self._stuck
        missing = missing_bytes(
            used=self.used + remembered,
            wanted=self._wanted,
            limit=self.limit,
            free=self.free - remembered - self.promised,
            floor=self.floor,
        )
        most = max(remembered - max(missing, 0), 0) + self._stuck
        left = self._space.forget(most)
        if left <= most:
            return True
        self.used, self.free = self.used + left - self._stuck, self.free - (left - self._stuck)
        self._stuck = left
        return False


class Excess:
    """The excess of some directories over a limit of bytes or of files; negative: as much is free below it.

    Attributes:
        refused: the names of entries that were to go and did not.
        denied: number of files that this user may not delete.
    """

    bytes: int
    files: int

    def __init__(self, *, bytes: int = 0, files: int = 0) -> None:  # noqa: A002 - as `Count`
        self.bytes, self.files = bytes, files
        self.refused: list[str] = []
        self.denied = 0

    @property
    def is_exceeded(self) -> bool:
        """True if there is more than either limit."""
        return self.bytes > 0 or self.files > 0

    def delete(self, entries: Iterable[Entry], delete: Callable[[Entry], bool]) -> list[tuple[str, int]]:
        """Have entries deleted, in this order, until neither limit is exceeded: (name, bytes) of those that went."""
        gone = []
        for entry in entries:
            if not self.is_exceeded:
                break
            if delete(entry):
                self.bytes, self.files = self.bytes - entry.size_bytes, self.files - 1
                gone.append((entry.name, entry.size_bytes))
            else:
                self.refused.append(entry.name)
        return gone


def evict_from(
    spaces: Sequence[Space],
    *,
    limit: int,
    maximum: int,
    is_dry: bool = False,
    report: Callable[[Excess], None] = lambda _: None,
) -> list[tuple[str, int]]:
    """Delete shards beyond ``limit`` bytes or ``maximum`` shards in some directories together, as far as it may go.

    If that is not far enough, idle shards are requested, and another call a little later gets further.

    Args:
        spaces: of the directories.
        limit: bytes to keep.
        maximum: shards to keep.
        is_dry: only report the files that would go.
        report: called with the shards and bytes over the limits that are left.

    Returns:
        (path, bytes) of each shard that went, in that order.

    Raises:
        CacheError: a directory is gone or cannot be written.
    """
    with contextlib.ExitStack() as locked:
        entries: list[Entry] = []
        uses: dict[str, float] = {}
        home: dict[str, Space] = {}
        used_spaces: list[Space] = []
        used = remembered = count = 0
        # In one order, or two cleaners wait for each other; and each once, or this one waits for itself.
        for _, space in sorted({os.path.realpath(space.directory.path): space for space in spaces}.items()):
            if not space.is_used():
                continue
            locked.enter_context(space.lock())
            used_spaces.append(space)
            inventory = space.directory.inventory()
            if not is_dry:
                has_swept = space.remove_abandoned(inventory.transients)
                space.directory.remove_orphans(inventory)
                if has_swept or inventory.orphans:  # no shard is evicted for bytes that were swept just now
                    inventory = space.directory.inventory()
            space.take_stock(inventory)
            may_delete = space.directory.deletable()
            here = [
                msgspec.structs.replace(entry, name=space.directory.shard(entry.name))
                for entry in inventory.entries
                if may_delete(entry.name)
            ]
            count += len(inventory.entries)
            entries += here
            home.update((entry.name, space) for entry in here)
            table_bytes = sum(table.size_bytes for table in inventory.remembered)
            remembered, used = remembered + table_bytes, used + inventory.used_bytes - table_bytes
            planned = usage_hints.read(space.directory.folder, inventory.transients.plans)
            uses.update((space.directory.shard(name), when) for name, when in planned.items())
        entries.sort(key=lambda entry: entry.used_ns)
        excess = Excess(bytes=used - limit, files=count - maximum)
        excess.denied = count - len(entries)
        most = limit // _REMEMBERED_SHARE
        gone = excess.delete(victims(entries, uses), lambda entry: is_dry or _delete(home[entry.name], entry, most))
        most = max(min(most, -excess.bytes), 0)
        if is_dry:
            excess.bytes += min(remembered, most)
        else:
            excess.bytes += sum(space.forget(most // len(used_spaces)) for space in used_spaces)
    if excess.is_exceeded and not is_dry:
        for space in spaces:
            space.request_release()
    report(excess)
    return gone


def _is_within(decision: Grant | MustWait | Refuse) -> bool:
    """True if there is space, and no limit is exceeded."""
    return isinstance(decision, Grant) and not decision.is_over_limit


def _size_of(path: str) -> int:
    """Bytes of a file; 0: none exists."""
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _extend(directory: str, sizes: Sequence[tuple[int, int]]) -> None:
    with writing(directory):
        for fd, size in sizes:
            if os.fstat(fd).st_size < size:
                os.ftruncate(fd, size)


def _delete(space: Space, entry: Entry, most: int) -> bool:
    """Delete a shard that is named by its path; all remembered tables may have ``most`` bytes."""
    return space.delete(msgspec.structs.replace(entry, name=os.path.basename(entry.name)), max_remembered=most)

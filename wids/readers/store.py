"""From a shard's URL to an open reader: in place, or through the cache directory.

Rules: local shards are read where they are, never copied or deleted. A cached shard is used only when its size, its
modification time and what the index says agree with the member table that was saved when it was verified, or an md5
in the index proves it; else it is downloaded again. Publishing is one ``os.replace``: readers never see half a shard.
Only files that a cache downloaded are replaced. Open shards are leased, and space is made before bytes come (see
`wids.cache.space`). Which file lies where: `wids.cache.directory`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from wids.cache.directory import CacheDirectory, directory_of
from wids.cache.leases import leases
from wids.cache.space import Space, table_allowance
from wids.errors import CacheError, ChangedShardError, FetchDeniedError, ShardError, ShardNotFoundError, WidsError
from wids.events import Fetched, Hit, Opened, Rejected, RepeatedKeys, emit, logger
from wids.index import table as tables
from wids.index import urls
from wids.osfiles import atomic, locks, system
from wids.policy.freshness import find_difference, find_difference_in_size
from wids.readers import member_tables
from wids.readers.local import Reader, ShardReader
from wids.readers.memo import Remembered
from wids.readers.remote_tables import RangeStore
from wids.transport import retrying
from wids.transport.failures import forget_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.events import Event, Hook
    from wids.index.spec import Shard
    from wids.index.table import Group, Identity, KeyRule, MemberTable
    from wids.readers.remote import RangeReader
    from wids.readers.remote_tables import Access

    # An open shard: its descriptor, which goes to whoever gets this, and the table that holds for its bytes.
    Found = tuple[int, MemberTable]

# How often a cache directory may vanish under a fetch before that is an error.
_WIPED_ATTEMPTS = 2


def default_cache_dir() -> str:
    """``$WIDS_CACHE``, else a per-user directory under the system's temporary directory."""
    chosen = os.environ.get("WIDS_CACHE")
    return os.path.expanduser(chosen) if chosen else atomic.private_dir()


class Store:
    """Opens shards for reading, fetching them first where they are not local.

    Args:
        cache_dir: where remote shards go; made on the first fetch. None: only ``localname`` decides.
        localname: URL -> path, the caller's own choice of where each shard is or goes; wins over ``cache_dir``.
        cache_local: copy local shards to the cache directory too (NAS to NVMe).
        storage_options, allow_pipe: see `wids.transport.retrying.fetch_to`.
        use_mmap: read through memory maps; see `wids.readers.local`.
        rule, group: see `wids.index.table.build_table`.
        hooks: told of every event.
        cache_size: bytes that a cache directory may hold; None: what the disk has room for.
        keep: mark the shards as not to be evicted.
        checks_counts: a cached shard that holds another number of samples than the index says is fetched again.
        access: ``"fetch"`` brings whole shards into the cache, ``"range"`` reads members of those that are not there by
            byte ranges, ``"auto"`` does so until a shard has cost as much as fetching it.
    """

    def __init__(
        self,
        *,
        cache_dir: str | None,
        cache_size: int | None = None,
        keep: bool = False,
        localname: Callable[[str], str] | None = None,
        cache_local: bool = False,
        storage_options: dict[str, Any] | None = None,
        allow_pipe: bool = False,
        use_mmap: bool = False,
        rule: KeyRule = "first-dot",
        group: Group = "adjacent",
        hooks: Sequence[Hook] = (),
        access: Access = "fetch",
        checks_counts: bool = True,
    ) -> None:
        tables.parse_rule(rule)
        self.access: Access = access
        self.ranges = RangeStore(
            is_final=access == "range", storage_options=storage_options, rule=rule, group=group, hooks=hooks
        )
        self.cache_dir = cache_dir
        self.cache_size = cache_size
        self.keep = keep
        self.localname = localname
        self.cache_local = cache_local
        self.storage_options = storage_options
        self.allow_pipe = allow_pipe
        self.use_mmap = use_mmap
        self.rule: KeyRule = rule
        self.group: Group = group
        self.hooks = hooks
        self.checks_counts = checks_counts
        # Relative paths mean what they meant here, wherever the program or a worker goes later.
        try:
            self.home = os.getcwd()
        except FileNotFoundError:  # someone deleted it; absolute paths and URLs do not need it
            self.home = ""
        # Of shards that have no saved one, so that reopening is free.
        self._tables: Remembered[MemberTable] = Remembered(_size_of)
        self._miscounted: dict[str, Identity] = {}
        self._spaces: dict[str, Space] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tables": Remembered(_size_of), "_miscounted": {}, "_spaces": {}}

    def place(self, url: str) -> tuple[str, bool]:
        """Where the shard's bytes are or will be, and whether they are read in place."""
        own = self._absolute(urls.local_path(url)) if urls.is_local(url) else None
        if self.localname is not None:
            path = os.fspath(self.localname(url))
            path = self._absolute(urls.local_path(path) if urls.is_local(path) else path)
            directory, name = directory_of(path)
            return path, path == own or (os.path.exists(path) and not directory.is_fetched(name))
        if own is not None and not self.cache_local:
            return own, True
        if self.cache_dir is None:
            raise CacheError(f"{url}: there is neither a cache_dir nor a localname to put it")
        # A relative path means another shard in another directory, and must not share its name in the cache.
        endpoint = _endpoint(urls.options_for(url, self.storage_options)) if own is None else ""
        name = urls.cache_name(url if own is None else own, endpoint=endpoint)
        return os.path.join(self._absolute(self.cache_dir), name), False

    def local_path(self, url: str) -> str:
        """Where the shard's bytes are or will be."""
        return self.place(url)[0]

    def open(self, shard: Shard) -> Reader:
        """Open a shard, fetching it first if need be and ``access`` says so. The caller owns the reader.

        Raises:
            FetchError: it cannot be had. CacheError: the cache directory cannot be used.
            ShardError: its bytes are not a readable tar, or not what the index says.
        """
        start = time.perf_counter()
        path, is_in_place = self.place(shard.url)
        shard = self._as_counted(shard)
        reader: Reader
        found = None if is_in_place or self.access == "fetch" else self._open_by_ranges(shard, path)
        if found is not None:
            reader, has_saved = found
        else:
            reader, has_saved = self._open_in_place(shard, path) if is_in_place else self._open_cached(shard, path)
            if self.use_mmap:
                reader.map_file()
        table = reader.table
        if table.nrepeated:
            emit(self.hooks, RepeatedKeys(url=shard.url, count=table.nrepeated))
        emit(
            self.hooks,
            Opened(
                url=shard.url,
                path=path,
                nsamples=table.nsamples,
                has_saved_table=has_saved,
                seconds=time.perf_counter() - start,
            ),
        )
        return reader

    def _open_by_ranges(self, shard: Shard, path: str) -> tuple[RangeReader, bool] | None:
        """A reader of the shard where it is; None if it is in the cache, is coming there, or is better fetched."""
        if os.path.exists(path):
            found, _ = self._look(shard, path)
            if found is not None:
                atomic.close(found[0])
                return None
        if self.access == "auto" and self.is_downloading(path):
            return None
        return self.ranges.open(shard)

    def _absolute(self, path: str) -> str:
        return os.path.join(self.home, os.path.expanduser(path))

    def _open_in_place(self, shard: Shard, path: str) -> tuple[ShardReader, bool]:
        try:
            fd, facts = atomic.open_file(path)
        except FileNotFoundError as error:
            raise ShardNotFoundError(
                f"{shard.url}: there is no file {path}; check the index's URLs and its base", url=shard.url
            ) from error
        except OSError as error:
            raise FetchDeniedError(f"{shard.url}: {path} cannot be opened ({error})", url=shard.url) from error
        with atomic.closing_on_error(fd):
            if shard.filesize not in (None, facts.size):
                raise ChangedShardError(
                    f"{shard.url}: {path} has {facts.size} bytes, and the index says filesize {shard.filesize}; "
                    "the shard or the index is out of date: write the index again (wids index create)",
                    shard=shard.url,
                    expected=shard.filesize,
                    found=facts.size,
                )
            is_standard = tables.is_standard(self.rule, self.group)
            beside = path + tables.SUFFIX
            saved = member_tables.load_table(beside, shard.url, shard_bytes=facts.size) if is_standard else None
            if saved is not None and saved.identity.is_same(facts):
                table = saved
            else:
                table, saved = self._build_table(fd, path, shard.url, facts, is_in_place=is_standard), None
        return ShardReader(fd, table=table, url=shard.url, path=path), saved is not None

    def _build_table(self, fd: int, path: str, url: str, facts: Identity, *, is_in_place: bool = False) -> MemberTable:
        """The member table of an open file, with this store's rule: remembered, or built."""
        table = self._tables.get(path)
        if table is None or not table.identity.is_same(facts):
            table = member_tables.load_foreign(fd, path, url, facts) if is_in_place else None
            if table is None:
                table = member_tables.scan_table(fd, url, facts, rule=self.rule, group=self.group)
            self._tables.remember(path, table)
        return table

    def fetch_ahead(self, shard: Shard, *, after: float, is_cancelled: Callable[[], bool]) -> bool:
        """Fetch a shard that will be needed, unless it is there or somebody else fetches it; whether this fetched it.

        Args:
            shard: which.
            after: only shards that are used later than this may go for it, in seconds since 1970.
            is_cancelled: asked now and then; once it says True, the transfer ends.

        Raises:
            CacheFull: there is no room for it now.
            CancelledTransferError: it was cancelled.
            WidsError: as `open`.
        """
        path, is_in_place = self.place(shard.url)
        if is_in_place:
            return False
        shard = self._as_counted(shard)
        found, cause = self._begin_look(shard, path)
        if found is None:
            directory, name = directory_of(path)
            with locks.try_hold(directory.lock(name), mode=directory.lock_mode()) as held:
                if held is None:
                    return False
                found, cause = self._look(shard, path)
                if found is None and not (cause and shard.md5sum):  # whether the md5 is right is found out when asked
                    if cause:
                        emit(self.hooks, Rejected(url=shard.url, path=path, cause=cause))
                    (fd, _), event = self._fetch(shard, path, held, after=after, is_cancelled=is_cancelled)
                    atomic.close(fd)
                    if self.keep:
                        _keep(path)
                    emit(self.hooks, event)
                    return True
        if found is not None:
            atomic.close(found[0])
        return False

    def has(self, url: str) -> bool:
        """Whether there is a file for the shard; `open` finds out what it is worth."""
        return os.path.exists(self.place(url)[0])

    def is_downloading(self, path: str) -> bool:
        """Whether a process downloads the shard to ``path`` at this moment."""
        directory, name = directory_of(path)
        lock = directory.lock(name)
        if not os.path.exists(lock):
            return False
        with locks.try_hold(lock, mode=directory.lock_mode()) as held:
            return held is None

    def touch(self, path: str) -> None:
        """Note that a cached shard was used: the least recently used one is evicted first."""
        directory, name = directory_of(path)
        with contextlib.suppress(OSError):  # another user's directory, a read-only one
            os.utime(directory.table(name))

    def release_request_time(self, directory: str) -> int:
        """When a process last waited for space; see `wids.cache.space.Space.release_request_time`."""
        return self._space(directory).release_request_time()

    def _space(self, directory: str) -> Space:
        space = self._spaces.get(directory)
        if space is None:
            space = Space(
                directory, limit=self.cache_size, hooks=self.hooks, release_idle=partial(leases.release, directory)
            )
            space = self._spaces.setdefault(directory, space)
        return space

    def _as_counted(self, shard: Shard) -> Shard:
        """A shard without its count where that tells nothing of its bytes; the dataset compares it with the reader's.

        This store groups members in another way than the tables it saves, or the index is known to count wrongly.
        """
        if self.checks_counts and tables.is_standard(self.rule, self.group):
            return shard
        return msgspec.structs.replace(shard, nsamples=None)

    def _open_cached(self, shard: Shard, path: str) -> tuple[ShardReader, bool]:
        for _ in range(_WIPED_ATTEMPTS):
            try:
                return self._open_or_fetch(shard, path)
            except CacheError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
                # Somebody emptied or deleted the cache directory in the meantime.
                logger.warning("%s: %s; once more", shard.url, error)
                forget_frames(error)
        return self._open_or_fetch(shard, path)

    def _open_or_fetch(self, shard: Shard, path: str) -> tuple[ShardReader, bool]:
        found, _ = self._begin_look(shard, path)
        event: Event = Hit(url=shard.url, path=path)
        has_saved = found is not None
        if found is None:
            directory, name = directory_of(path)
            with locks.hold(directory.lock(name), mode=directory.lock_mode(), hooks=self.hooks) as held:
                found, cause = self._look(shard, path)
                has_saved = found is not None
                if cause and shard.md5sum:
                    found, cause = self._prove(shard, path)
                if found is None:
                    if cause:
                        emit(self.hooks, Rejected(url=shard.url, path=path, cause=cause))
                    found, event = self._fetch(shard, path, held)
        fd, table = found
        with atomic.closing_on_error(fd):
            if self.keep:
                _keep(path)
            self.touch(path)
            emit(self.hooks, event)  # with the lock free again: a hook may open the shard that it is told of
            if not tables.is_standard(self.rule, self.group):
                table, has_saved = self._build_table(fd, path, shard.url, table.identity), False
        return ShardReader(fd, table=table, url=shard.url, path=path, is_leased=True), has_saved

    def _begin_look(self, shard: Shard, path: str) -> tuple[Found | None, str]:
        """`_look`, and a directory to fetch into if there is nothing."""
        directory = os.path.dirname(path)
        is_private = directory == atomic.private_dir()
        try:
            if is_private:
                atomic.check_owner(directory)  # before the first look: what another user put there is not looked at
            found, cause = self._look(shard, path)
            if found is None:
                atomic.make_directory(directory, is_private=is_private)
                CacheDirectory(directory).make()
        except WidsError:
            raise
        except OSError as error:
            raise CacheError(f"{directory}: cannot be used ({error}); choose another cache_dir") from error
        return found, cause

    def _look(self, shard: Shard, path: str) -> tuple[Found | None, str]:
        """The cached shard, leased, if it is whole and current, else None and why (``""``: it is not there)."""
        try:
            fd, facts = atomic.take_in_hand(path)
        except FileNotFoundError:
            return None, ""
        except OSError as error:
            raise CacheError(f"{path}: cannot be opened ({error}); remove it or choose another cache_dir") from error
        with atomic.closing_on_error(fd):
            if locks.lease(fd) is False:  # it is being evicted
                atomic.close(fd)
                return None, ""
            directory, name = directory_of(path)
            table = member_tables.load_table(directory.table(name), shard.url, shard_bytes=facts.size)
            cause = self._find_difference(shard, path, facts, table)
        if table is None or cause:
            atomic.close(fd)
            return None, cause
        return (fd, table), ""

    def _find_difference(self, shard: Shard, path: str, facts: Identity, table: MemberTable | None) -> str:
        origin, miscounted = self._origin(shard.url), self._miscounted.get(path)
        return find_difference(shard, facts, table, origin=origin, miscounted=miscounted)

    def _identify(self, fd: int, shard: Shard) -> Identity:
        """What is verified of a file that came from ``shard.url``."""
        return msgspec.structs.replace(atomic.identify(fd, md5=shard.md5sum), etag=self._origin(shard.url))

    def _origin(self, url: str) -> str | None:
        """A mark of the URL, its query aside (signatures change): a caller's ``localname`` may give two one place."""
        if self.localname is None:
            return None
        name = self._absolute(urls.local_path(url)) if urls.is_local(url) else urls.without_query(url)
        return "url:" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def _prove(self, shard: Shard, path: str) -> tuple[Found | None, str]:
        """With the lock held: as `_look`, by the md5 of the file instead of what its table says."""
        try:
            fd, facts = atomic.take_in_hand(path)
        except FileNotFoundError:
            return None, ""
        with atomic.closing_on_error(fd):
            if locks.lease(fd) is False:  # it is being evicted
                atomic.close(fd)
                return None, ""
            try:
                cause = find_difference_in_size(shard, facts)
                if not cause and (digest := retrying.file_md5(fd)) != shard.md5sum:
                    cause = f"its md5 is {digest}, the index says {shard.md5sum}"
                if not cause:
                    table = member_tables.scan_table(fd, shard.url, self._identify(fd, shard))
                    cause = self._find_difference(shard, path, facts, table)
            except (ShardError, OSError) as error:
                cause = str(error)
        if cause:
            atomic.close(fd)
            return None, cause
        self._space(os.path.dirname(path)).adopt(os.path.basename(path), table)
        return (fd, table), ""

    def _fetch(
        self,
        shard: Shard,
        path: str,
        held: locks.Held,
        *,
        after: float | None = None,
        is_cancelled: Callable[[], bool] | None = None,
    ) -> tuple[Found, Fetched]:
        """Make space, download, verify, index and publish, with the lock held. ``after``: see `fetch_ahead`."""
        start = time.perf_counter()
        arrived: list[Found] = []
        space = self._space(os.path.dirname(path))
        directory, name = directory_of(path)
        staging = directory.staging(name)
        with (
            atomic.part_file(staging) as (part, part_fd),
            atomic.part_file(staging + tables.SUFFIX) as (table_part, table_fd),
        ):
            for part_file in (part_fd, table_fd):  # if this process is killed, other users see that they are left
                directory.share_for_reading(part_file)

            def reserve(size: int) -> None:
                allowance = table_allowance(size, shard.nsamples)
                space.reserve([(part_fd, size), (table_fd, allowance)], url=shard.url, after=after)

            def is_ended() -> bool:  # asked all the time while bytes come, or are waited for
                held.touch()
                return is_cancelled is not None and is_cancelled()

            def check() -> None:
                # By name: a pipe: program may replace the part file instead of filling it.
                fd, facts = atomic.take_in_hand(part)
                with atomic.closing_on_error(fd):
                    retrying.check_content(shard.url, system.pread(fd, 512, 0))
                    retrying.check_file(shard.url, fd, size=shard.filesize, md5=shard.md5sum)
                    reserve(facts.size)
                    held.touch()
                    os.fsync(fd)  # a name that survives a power cut must not name bytes that did not
                    arrived.append((fd, member_tables.scan_table(fd, shard.url, self._identify(fd, shard))))

            if shard.filesize is not None:
                reserve(shard.filesize)
            retrying.fetch_to(
                shard.url,
                part,
                check=check,
                size=shard.filesize,
                reserve=reserve,
                is_cancelled=is_ended,
                storage_options=self.storage_options,
                allow_pipe=self.allow_pipe,
                hooks=self.hooks,
            )
            fd, table = arrived.pop()
            with atomic.closing_on_error(fd):
                data = table.to_bytes()
                space.reserve([(part_fd, table.identity.size), (table_fd, len(data))], url=shard.url, after=after)
                _fill(path, table_fd, data)
                directory.share_for_reading(fd)
                directory.share(table_fd)
                with space.publishing(name, table.identity.size + len(data)):
                    _publish([(table_part, directory.table(name)), (part, path)])
                    locks.unmark(part_fd)  # else it would be locked against our own lease
                    locks.lease(fd)
        if shard.nsamples not in (None, table.nsamples):
            # The index is wrong, as its reader will say. To fetch the shard again for each sample would never end.
            self._miscounted[path] = table.identity
        seconds = time.perf_counter() - start
        event = Fetched(
            url=shard.url,
            path=path,
            size_bytes=table.identity.size,
            seconds=seconds,
            is_ahead=after is not None,
        )
        return (fd, table), event


def _size_of(table: MemberTable) -> int:
    return table.nbytes


def _fill(path: str, fd: int, data: bytes) -> None:
    """Make ``data`` all that the part file of the member table of ``path`` holds."""
    try:
        system.write_all(fd, data, 0)
        os.ftruncate(fd, len(data))
    except OSError as error:
        raise CacheError(f"{path}: cannot be written ({error}); free space or move cache_dir") from error


def _publish(names: Sequence[tuple[str, str]]) -> None:
    """Give files their names. The table first: alone it is inert, and a shard without one would have to be proved."""
    for part, path in names:
        try:
            os.replace(part, path)
        except OSError as error:
            raise CacheError(f"{path}: cannot be published ({error}); free space or move cache_dir") from error


def _keep(path: str) -> None:
    """Mark a cached shard as not to be evicted."""
    directory, name = directory_of(path)
    if not directory.is_kept(name):
        with contextlib.suppress(OSError):
            os.close(directory.open_own(directory.keep_mark(name)))


def _endpoint(storage_options: dict[str, Any]) -> str:
    """The server that options name: one bucket and key may stand for two shards on two of them."""
    client = storage_options.get("client_kwargs") or {}
    return str(storage_options.get("endpoint_url") or client.get("endpoint_url") or storage_options.get("host") or "")

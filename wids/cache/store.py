"""From a shard's URL to an open reader: in place, or through the cache directory.

Rules: local shards are read where they are, never copied or deleted. A cached shard is used only when its size, its
modification time and what the index says agree with the member table saved beside it when it was verified, or an md5
in the index proves it; else it is fetched again. Publishing is one ``os.replace``: nobody sees half a shard. Only files
that this cache made are replaced.

In the cache directory: ``NAME`` the shard (see `wids.index.urls.cache_name`), ``NAME.widx`` its member table,
``NAME.lock`` its lock (kept for good), ``NAME.<pid>-<random>.part`` a download under way, locked by its writer.
"""

from __future__ import annotations

import hashlib
import os
import time
from typing import TYPE_CHECKING, Any

import msgspec

from wids.cache import fetch, files, locks
from wids.cache.reader import ShardReader
from wids.cache.verify import find_difference, find_difference_in_size
from wids.errors import CacheError, ChangedShardError, FetchDeniedError, ShardError, ShardNotFoundError, WidsError
from wids.events import Fetched, Hit, Opened, Rejected, RepeatedKeys, emit
from wids.index import table as tables
from wids.index import urls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.events import Event, Hook
    from wids.index.spec import Shard
    from wids.index.table import Group, Identity, KeyRule, MemberTable

    # An open shard: its descriptor, which goes to whoever gets this, and the table that holds for its bytes.
    Found = tuple[int, MemberTable]

# Tables of shards that have no saved one are kept in memory up to this many bytes, so that reopening is free.
_TABLES_BYTES = 64 << 20


def default_cache_dir() -> str:
    """``$WIDS_CACHE``, else a per-user directory under the system's temporary directory."""
    chosen = os.environ.get("WIDS_CACHE")
    return os.path.expanduser(chosen) if chosen else files.private_dir()


class Store:
    """Opens shards for reading, fetching them first where they are not local.

    Args:
        cache_dir: where remote shards go; made on the first fetch. None: only ``localname`` decides.
        localname: URL -> path, the caller's own choice of where each shard is or goes; wins over ``cache_dir``.
        cache_local: copy local shards to the cache directory too (NAS to NVMe).
        storage_options, allow_pipe: see `wids.cache.fetch.fetch_to`.
        use_mmap: read through memory maps; see `wids.cache.reader`.
        rule, group: see `wids.index.table.build_table`.
        hooks: told of every event.
    """

    def __init__(
        self,
        *,
        cache_dir: str | None,
        localname: Callable[[str], str] | None = None,
        cache_local: bool = False,
        storage_options: dict[str, Any] | None = None,
        allow_pipe: bool = False,
        use_mmap: bool = False,
        rule: KeyRule = "first-dot",
        group: Group = "adjacent",
        hooks: Sequence[Hook] = (),
    ) -> None:
        tables.parse_rule(rule)
        self.cache_dir = cache_dir
        self.localname = localname
        self.cache_local = cache_local
        self.storage_options = storage_options
        self.allow_pipe = allow_pipe
        self.use_mmap = use_mmap
        self.rule: KeyRule = rule
        self.group: Group = group
        self.hooks = hooks
        # Relative paths mean what they meant here, wherever the program or a worker goes later.
        try:
            self.home = os.getcwd()
        except FileNotFoundError:  # someone deleted it; absolute paths and URLs do not need it
            self.home = ""
        self._tables: dict[str, MemberTable] = {}
        self._unsummed = 0  # bytes of tables remembered since they were last summed up
        self._miscounted: dict[str, Identity] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tables": {}, "_unsummed": 0, "_miscounted": {}}

    def place(self, url: str) -> tuple[str, bool]:
        """Where the shard's bytes are or will be, and whether they are read in place."""
        own = self._absolute(urls.local_path(url)) if urls.is_local(url) else None
        if self.localname is not None:
            path = os.fspath(self.localname(url))
            path = self._absolute(urls.local_path(path) if urls.is_local(path) else path)
            return path, path == own or (os.path.exists(path) and not files.is_ours(path))
        if own is not None and not self.cache_local:
            return own, True
        if self.cache_dir is None:
            raise CacheError(f"{url}: there is neither a cache_dir nor a localname to put it")
        # A relative path means another shard in another directory, and must not share its name in the cache.
        endpoint = _endpoint(self.storage_options or {}) if own is None else ""
        name = urls.cache_name(url if own is None else own, endpoint=endpoint)
        return os.path.join(self._absolute(self.cache_dir), name), False

    def open(self, shard: Shard) -> ShardReader:
        """Open a shard, fetching it first if need be. The caller owns the reader.

        Raises:
            FetchError: it cannot be had. CacheError: the cache directory cannot be used.
            ShardError: its bytes are not a readable tar, or not what the index says.
        """
        start = time.perf_counter()
        path, is_in_place = self.place(shard.url)
        if not tables.is_standard(self.rule, self.group):
            # Saved tables count samples the standard way; the dataset compares the count that this grouping gives.
            shard = msgspec.structs.replace(shard, nsamples=None)
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

    def _absolute(self, path: str) -> str:
        return os.path.join(self.home, os.path.expanduser(path))

    def _open_in_place(self, shard: Shard, path: str) -> tuple[ShardReader, bool]:
        try:
            fd, facts = files.open_file(path)
        except FileNotFoundError as error:
            raise ShardNotFoundError(
                f"{shard.url}: there is no file {path}; check the index's URLs and its base", url=shard.url
            ) from error
        except OSError as error:
            raise FetchDeniedError(f"{shard.url}: {path} cannot be opened ({error})", url=shard.url) from error
        with files.closing_on_error(fd):
            if shard.filesize not in (None, facts.size):
                raise ChangedShardError(
                    f"{shard.url}: {path} has {facts.size} bytes, and the index says filesize {shard.filesize}; "
                    "the shard or the index is out of date: write the index again (widsindex create)",
                    shard=shard.url,
                    expected=shard.filesize,
                    found=facts.size,
                )
            is_standard = tables.is_standard(self.rule, self.group)
            saved = files.load_table(path, shard.url, shard_bytes=facts.size) if is_standard else None
            if saved is not None and saved.identity.is_same(facts):
                table = saved
            else:
                table, saved = self._build_table(fd, path, shard.url, facts), None
        return ShardReader(fd, table=table, url=shard.url, path=path), saved is not None

    def _build_table(self, fd: int, path: str, url: str, facts: Identity) -> MemberTable:
        """The member table of an open file, with this store's rule: remembered, or built."""
        table = self._tables.get(path)
        if table is None or not table.identity.is_same(facts):
            table = files.scan_table(fd, url, facts, rule=self.rule, group=self.group)
            self._remember(path, table)
        return table

    def _remember(self, path: str, table: MemberTable) -> None:
        remembered = self._tables
        remembered.pop(path, None)
        remembered[path] = table
        # A sum at each shard would make counting 10,000 of them quadratic; a counter that threads add to would drift.
        self._unsummed += table.nbytes
        if self._unsummed < _TABLES_BYTES >> 3:
            return
        self._unsummed = 0
        total = sum(kept.nbytes for kept in list(remembered.values()))
        for oldest in list(remembered)[:-1]:
            if total <= _TABLES_BYTES:
                break
            dropped = remembered.pop(oldest, None)
            total -= dropped.nbytes if dropped else 0

    def _open_cached(self, shard: Shard, path: str) -> tuple[ShardReader, bool]:
        directory = os.path.dirname(path)
        is_private = directory == files.private_dir()
        try:
            if is_private:
                files.check_owner(directory)  # before the first look: what another user put there is not looked at
            found, _ = self._look(shard, path)
            if found is None:
                files.make_directory(directory, is_private=is_private)
        except WidsError:
            raise
        except OSError as error:
            raise CacheError(f"{directory}: cannot be used ({error}); choose another cache_dir") from error
        event: Event = Hit(url=shard.url, path=path)
        has_saved = found is not None
        if found is None:
            with locks.hold(path, hooks=self.hooks):
                found, cause = self._look(shard, path)
                has_saved = found is not None
                if cause and shard.md5sum:
                    found, cause = self._prove(shard, path)
                if found is None:
                    if cause:
                        emit(self.hooks, Rejected(url=shard.url, path=path, cause=cause))
                    found, event = self._fetch(shard, path)
        fd, table = found
        with files.closing_on_error(fd):
            emit(self.hooks, event)  # with the lock free again: a hook may open the shard that it is told of
            if not tables.is_standard(self.rule, self.group):
                table, has_saved = self._build_table(fd, path, shard.url, table.identity), False
        return ShardReader(fd, table=table, url=shard.url, path=path), has_saved

    def _look(self, shard: Shard, path: str) -> tuple[Found | None, str]:
        """The cached shard if it is whole and current, else None and why (``""``: it is not there)."""
        try:
            fd, facts = files.open_file(path)
        except FileNotFoundError:
            return None, ""
        except OSError as error:
            raise CacheError(f"{path}: cannot be opened ({error}); remove it or choose another cache_dir") from error
        with files.closing_on_error(fd):
            table = files.load_table(path, shard.url, shard_bytes=facts.size)
            cause = self._find_difference(shard, path, facts, table)
        if table is None or cause:
            os.close(fd)
            return None, cause
        return (fd, table), ""

    def _find_difference(self, shard: Shard, path: str, facts: Identity, table: MemberTable | None) -> str:
        origin, miscounted = self._origin(shard.url), self._miscounted.get(path)
        return find_difference(shard, facts, table, origin=origin, miscounted=miscounted)

    def _identify(self, fd: int, shard: Shard) -> Identity:
        """What is verified of a file that came from ``shard.url``."""
        return msgspec.structs.replace(files.identify(fd, md5=shard.md5sum), etag=self._origin(shard.url))

    def _origin(self, url: str) -> str | None:
        """A mark of the URL, its query aside (signatures change): a caller's ``localname`` may give two one place."""
        if self.localname is None:
            return None
        name = self._absolute(urls.local_path(url)) if urls.is_local(url) else urls.without_query(url)
        return "url:" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def _prove(self, shard: Shard, path: str) -> tuple[Found | None, str]:
        """With the lock held: as `_look`, by the md5 of the file instead of what its table says."""
        try:
            fd, facts = files.open_file(path)
        except FileNotFoundError:
            return None, ""
        with files.closing_on_error(fd):
            try:
                cause = find_difference_in_size(shard, facts)
                if not cause and (digest := fetch.file_md5(fd)) != shard.md5sum:
                    cause = f"its md5 is {digest}, the index says {shard.md5sum}"
                if not cause:
                    table = files.scan_table(fd, shard.url, self._identify(fd, shard))
                    cause = self._find_difference(shard, path, facts, table)
            except (ShardError, OSError) as error:
                cause = str(error)
        if cause:
            os.close(fd)
            return None, cause
        files.save_table(path, table)
        return (fd, table), ""

    def _fetch(self, shard: Shard, path: str) -> tuple[Found, Fetched]:
        """Download, verify, index and publish; the caller holds the lock."""
        start = time.perf_counter()
        arrived: list[Found] = []
        with files.part_file(path) as (part, _):

            def check() -> None:
                # By name: other writers replace the part file instead of filling it.
                fd, _ = files.open_file(part)
                with files.closing_on_error(fd):
                    fetch.check_file(shard.url, fd, size=shard.filesize, md5=shard.md5sum)
                    os.fsync(fd)  # a name that survives a power cut must not name bytes that did not
                    arrived.append((fd, files.scan_table(fd, shard.url, self._identify(fd, shard))))

            fetch.fetch_to(
                shard.url,
                part,
                check=check,
                storage_options=self.storage_options,
                allow_pipe=self.allow_pipe,
                hooks=self.hooks,
            )
            fd, table = arrived.pop()
            with files.closing_on_error(fd):
                try:
                    # The table first: a table without its shard is inert, a shard without one would have to be proved.
                    files.write_atomically(path + tables.SUFFIX, table.to_bytes())
                    os.replace(part, path)
                except OSError as error:
                    raise CacheError(f"{path}: cannot be published ({error}); free space or move cache_dir") from error
        if shard.nsamples not in (None, table.nsamples):
            # The index is wrong, as its reader will say. To fetch the shard again for each sample would never end.
            self._miscounted[path] = table.identity
        seconds = time.perf_counter() - start
        return (fd, table), Fetched(url=shard.url, path=path, size_bytes=table.identity.size, seconds=seconds)


def _endpoint(storage_options: dict[str, Any]) -> str:
    """The server that options name: one bucket and key may stand for two shards on two of them."""
    client = storage_options.get("client_kwargs") or {}
    return str(storage_options.get("endpoint_url") or client.get("endpoint_url") or storage_options.get("host") or "")

"""From a shard's URL to an open reader: in place, or through the cache directory.

Rules: local shards are read where they are, never copied or deleted. A cached shard is used only when its size, its
modification time and what the index says agree with the member table saved beside it when it was verified; else it is
fetched again. Publishing is one ``os.replace``: nobody sees half a shard. Only files that this cache made are replaced.

In the cache directory: ``NAME`` the shard (see `wids.index.urls.cache_name`), ``NAME.widx`` its member table,
``NAME.lock`` its lock (kept for good), ``NAME.<pid>-<random>.part`` a download under way, locked by its writer.
"""

from __future__ import annotations

import os
import tempfile
import time
from typing import TYPE_CHECKING, Any

import msgspec

from wids.cache import fetch, files, locks
from wids.cache.reader import ShardReader
from wids.errors import CacheError, ChangedShardError, FetchDeniedError, ShardNotFoundError, TarError
from wids.events import Fetched, Hit, Opened, Rejected, RepeatedKeys, emit
from wids.index import table as tables
from wids.index import tar, urls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.events import Hook
    from wids.index.spec import Shard
    from wids.index.table import Group, Identity, KeyRule, MemberTable

# Tables of shards that have no saved one are kept in memory up to this many bytes, so that reopening is free.
_TABLES_BYTES = 64 << 20


def default_cache_dir() -> str:
    """``$WIDS_CACHE``, else a per-user directory under the system's temporary directory."""
    chosen = os.environ.get("WIDS_CACHE")
    if chosen:
        return os.path.expanduser(chosen)
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    return os.path.join(tempfile.gettempdir(), f"wids-cache-{user}")


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
        self.home = os.getcwd()
        self._tables: dict[str, MemberTable] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tables": {}}

    def place(self, url: str) -> tuple[str, bool]:
        """Where the shard's bytes are or will be, and whether they are read in place."""
        own = self._absolute(urls.local_path(url)) if urls.is_local(url) else None
        if self.localname is not None:
            path = self._absolute(os.fspath(self.localname(url)))
            is_users = path == own or (os.path.exists(path) and not os.path.exists(path + locks.SUFFIX))
            return path, is_users
        if own is not None and not self.cache_local:
            return own, True
        if self.cache_dir is None:
            raise CacheError(f"{url}: there is neither a cache_dir nor a localname to put it")
        return os.path.join(self._absolute(self.cache_dir), urls.cache_name(url)), False

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
            if shard.filesize is not None and shard.filesize != facts.size:
                raise ChangedShardError(
                    f"{shard.url}: {path} has {facts.size} bytes, and the index says filesize {shard.filesize}; "
                    "the shard or the index is out of date: write the index again (wids index create)",
                    shard=shard.url,
                    expected=shard.filesize,
                    found=facts.size,
                )
            table, has_saved = self._table_of(fd, path, shard.url, facts)
        return ShardReader(fd, table=table, url=shard.url, path=path), has_saved

    def _table_of(self, fd: int, path: str, url: str, facts: Identity) -> tuple[MemberTable, bool]:
        """The member table of an open file: saved beside it, remembered, or built; and whether it was saved."""
        is_standard = tables.is_standard(self.rule, self.group)
        saved = files.load_table(path, url) if is_standard else None
        if saved is not None and saved.identity.is_same(facts):
            return saved, True
        table = self._tables.get(path)
        if table is None or not table.identity.is_same(facts):
            table = _scan(fd, url, facts, self.rule, self.group)
            self._remember(path, table)
        return table, False

    def _remember(self, path: str, table: MemberTable) -> None:
        remembered = self._tables
        remembered[path] = table
        total = sum(kept.nbytes for kept in list(remembered.values()))
        for oldest in list(remembered)[:-1]:
            if total <= _TABLES_BYTES:
                break
            dropped = remembered.pop(oldest, None)
            total -= dropped.nbytes if dropped else 0

    def _open_cached(self, shard: Shard, path: str) -> tuple[ShardReader, bool]:
        reader, _ = self._look(shard, path)
        if reader is None:
            try:
                files.make_directory(os.path.dirname(path), is_private=self._is_default_place(path))
            except OSError as error:
                raise CacheError(f"{os.path.dirname(path)}: cannot be made ({error}); choose a cache_dir") from error
            with locks.hold(path, hooks=self.hooks):
                reader, cause = self._look(shard, path)
                if reader is None:
                    reader, cause = self._mend(shard, path)
                if reader is None:
                    if cause:
                        emit(self.hooks, Rejected(url=shard.url, path=path, cause=cause))
                    self._fetch(shard, path)
                    return self._open_fetched(shard, path)
        emit(self.hooks, Hit(url=shard.url, path=path))
        return self._regroup(reader, shard.url), True

    def _open_fetched(self, shard: Shard, path: str) -> tuple[ShardReader, bool]:
        fd, _ = files.open_file(path)
        with files.closing_on_error(fd):
            saved = files.load_table(path, shard.url)
            if saved is None:
                raise CacheError(f"{path}: the member table written beside it is gone; is something cleaning up there?")
        return self._regroup(ShardReader(fd, table=saved, url=shard.url, path=path), shard.url), True

    def _is_default_place(self, path: str) -> bool:
        return os.path.dirname(path) == default_cache_dir() and "WIDS_CACHE" not in os.environ

    def _look(self, shard: Shard, path: str) -> tuple[ShardReader | None, str]:
        """A reader of the cached shard if it is whole and current, else None and why (``""``: it is not there)."""
        try:
            fd, facts = files.open_file(path)
        except FileNotFoundError:
            return None, ""
        except OSError as error:
            raise CacheError(f"{path}: cannot be opened ({error}); remove it or choose another cache_dir") from error
        with files.closing_on_error(fd):
            saved = files.load_table(path, shard.url)
            cause = _differs(shard, facts, saved)
        if cause or saved is None:
            os.close(fd)
            return None, cause
        return ShardReader(fd, table=saved, url=shard.url, path=path), ""

    def _mend(self, shard: Shard, path: str) -> tuple[ShardReader | None, str]:
        """With the lock held: prove a cached shard whose table is missing, or lacks the digest the index now has."""
        try:
            fd, facts = files.open_file(path)
        except FileNotFoundError:
            return None, ""
        with files.closing_on_error(fd):
            saved = files.load_table(path, shard.url)
            cause = ""
            if shard.filesize not in (None, facts.size):
                cause = f"it has {facts.size} bytes, the index says {shard.filesize}"
            elif shard.md5sum:
                digest = fetch.file_md5(path)
                cause = "" if digest == shard.md5sum else f"its md5 is {digest}, the index says {shard.md5sum}"
            elif saved is not None:
                cause = _differs(shard, facts, saved)
            if not cause:
                try:
                    identity = tables.Identity(size=facts.size, mtime_ns=facts.mtime_ns, md5=shard.md5sum)
                    table = _scan(fd, shard.url, identity)
                    cause = _differs(shard, facts, table)
                except TarError as error:
                    cause = str(error)
        if cause:
            os.close(fd)
            return None, cause
        files.save_table(path, table)
        return ShardReader(fd, table=table, url=shard.url, path=path), ""

    def _regroup(self, reader: ShardReader, url: str) -> ShardReader:
        """Saved tables hold the standard grouping; another rule needs a scan of the headers."""
        if tables.is_standard(self.rule, self.group):
            return reader
        fd, facts = files.open_file(reader.path)
        with files.closing_on_error(fd):
            table, _ = self._table_of(fd, reader.path, url, facts)
        return ShardReader(fd, table=table, url=url, path=reader.path)

    def _fetch(self, shard: Shard, path: str) -> None:
        """Download, verify, index and publish; the caller holds the lock."""
        start = time.perf_counter()
        with files.part_file(path) as (part, _):
            table: MemberTable | None = None

            def check() -> None:
                nonlocal table
                fetch.check_file(shard.url, part, size=shard.filesize, md5=shard.md5sum)
                # Other writers replace the part file instead of filling it, so it is looked up by name.
                source, facts = files.open_file(part)
                try:
                    identity = tables.Identity(size=facts.size, mtime_ns=facts.mtime_ns, md5=shard.md5sum)
                    table = _scan(source, shard.url, identity)
                    os.fsync(source)  # a name that survives a power cut must not name bytes that did not
                finally:
                    os.close(source)

            fetch.fetch_to(
                shard.url,
                part,
                check=check,
                storage_options=self.storage_options,
                allow_pipe=self.allow_pipe,
                hooks=self.hooks,
            )
            if table is None:
                raise AssertionError("fetch_to returned without a check")
            try:
                # The table first: a table without its shard is inert, a shard without one would have to be proved.
                files.write_atomically(path + tables.SUFFIX, table.to_bytes())
                os.replace(part, path)
            except OSError as error:
                raise CacheError(f"{path}: cannot be published ({error})") from error
        emit(
            self.hooks,
            Fetched(url=shard.url, path=path, size_bytes=table.identity.size, seconds=time.perf_counter() - start),
        )


def _differs(shard: Shard, facts: Identity, saved: MemberTable | None) -> str:
    """Why a cached file is not the shard that the index means; ``""`` if it is, or cannot be told without a table."""
    if shard.filesize not in (None, facts.size):
        return f"it has {facts.size} bytes, the index says {shard.filesize}"
    if saved is None:
        return ""
    if not saved.identity.is_same(facts):
        return "it changed since it was verified"
    if shard.md5sum and saved.identity.md5 != shard.md5sum:
        return f"its md5 is {saved.identity.md5 or 'unknown'}, the index says {shard.md5sum}"
    if shard.nsamples not in (None, saved.nsamples):
        return f"it holds {saved.nsamples} samples, the index says {shard.nsamples}"
    return ""


def _scan(fd: int, url: str, identity: Identity, rule: KeyRule = "first-dot", group: Group = "adjacent") -> MemberTable:
    def read(offset: int, size: int) -> bytes:
        return os.pread(fd, size, offset)

    members = tar.scan(read, identity.size, shard=url)
    return tables.build_table(members, identity=identity, shard=url, rule=rule, group=group)

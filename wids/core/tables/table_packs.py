"""Packs of member tables (`wids.core.tables.pack_format`) that indexes name: their directories, and tables out of them.

    .wids/indexes/DIGEST.tables     the beginning of a pack up to the end of its directory, then a line of JSON: the
                                    pack's URL, size and version; DIGEST: of its URL

Rules: a directory is downloaded once for each cache directory, and mapped by all processes; without a cache
directory, or it cannot be written, a process keeps it in memory, as that of a pack on this machine's disk.
A table is one byte range of the version that the directory is of: when the pack has been replaced, its directory is
downloaded again. A pack that cannot be used costs one warning, and the tables beside the shards are read instead; where
it may have been the network, its directory is requested again after a minute or more, and other tables at once. Behind
a URL with a query, of a program, and on a server that gives no byte ranges or does not tell versions apart, a pack is
not used.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from wids.core.files import atomic, forks, system
from wids.core.files.json_text import JsonParser
from wids.core.files.shared_files import SharedFiles
from wids.core.place import Place
from wids.core.tables import member_tables, pack_format
from wids.core.transport.failures import CancelledTransferError, forget_frames
from wids.core.transport.range_client import ShardBytes
from wids.core.transport.session import PLAIN, Session
from wids.core.transport.source import Stat
from wids.errors import ChangedShardError, FetchError, NoRangesError, TableError
from wids.events import TableRead, emit, logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from wids.core.shard import Shard
    from wids.core.tables.pack_format import Directory
    from wids.core.tables.table import MemberTable


class PackLimits(NamedTuple):
    """Limits of requests for packs; the default is in force, and tests put another one in its place.

    Attributes:
        first_bytes: bytes of the first request for a pack: the directory of 5,000 shards.
        directory_seconds: a pack whose directory takes longer is not used.
        again_seconds: a pack that failed is tried again after this time: readers waste none on a server that hangs.
        again_ratio: or after so many times as long as it took.
    """

    first_bytes: int = 128 << 10
    directory_seconds: float = 20.0
    again_seconds: float = 60.0
    again_ratio: float = 30.0


class OpenPack(NamedTuple):
    """A pack whose directory is at hand.

    Attributes:
        url: of the pack.
        directory: the tables that it has.
        stat: its size and version.
    """

    url: str
    directory: Directory
    stat: Stat


class _Note(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The pack of a directory."""

    url: str
    size: int
    version: str | list[str]

    @property
    def stat(self) -> Stat:
        version = self.version
        return Stat(self.size, version if isinstance(version, str) else tuple(version), has_ranges=True)


_NOTES = JsonParser(_Note)


class TablePacks:
    """The packs that indexes name; threads may share it.

    Args:
        cache_dir: a directory for their directories; None: they are in memory.
        session: opens URLs; its hooks are called with a `TableRead` for each directory and each table that came
            over a network.
    """

    limits: PackLimits = PackLimits()

    def __init__(self, *, cache_dir: str | None, session: Session = PLAIN) -> None:
        self._session = session
        self._kept = None if cache_dir is None else SharedFiles(cache_dir, pack_format.SUFFIX)
        self._begin()

    def _begin(self) -> None:
        self._open: dict[str, OpenPack] = {}
        self._replaced: dict[str, OpenPack] = {}  # as they were when it was found out that they had been replaced, and
        self._replaced_at: dict[str, float] = {}
        self._retry_at: dict[str, float] = {}
        self._warned: set[str] = set()
        self.start_child()
        forks.reset_in_child(self)

    def start_child(self) -> None:
        """Make a lock of this process; see `wids.core.files.forks.Inherited`."""
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("_session", "_kept")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def may_have(self, shard: Shard) -> bool:
        """True if a table of a shard may exist, as far as known; nothing is requested."""
        for url in shard.packs:
            if self._is_usable(url):
                pack = self._open.get(url)
                if pack is None or pack.directory.find(shard.url) is not None:
                    return True
        return False

    def open(self, shard: Shard, *, seconds: float) -> None:
        """Open the directory of the pack that has a shard's table, if possible; ``seconds``: for tries of each."""
        for url in _nearest_first(shard):
            pack = self._find(url, seconds)
            if pack is not None and pack.directory.find(shard.url) is not None:
                return

    def read(
        self, shard: Shard, *, shard_bytes: int | None, seconds: float, is_cancelled: Callable[[], bool]
    ) -> MemberTable | None:
        """The table of a shard; None: no pack has one that is its own.

        Args:
            shard: the shard of the table.
            shard_bytes: size of the shard; None: as the table says, and the table is a short one.
            seconds: for all tries together.
            is_cancelled: asked now and then; once it says True, the transfer of the table ends.

        Raises:
            CancelledTransferError: it was cancelled.
        """
        lacking = 0
        for url in _nearest_first(shard):
            while (pack := self._find(url, seconds)) is not None:
                span = pack.directory.find(shard.url)
                if span is None:
                    lacking += 1
                    break
                try:
                    return self._read(pack, span, shard, shard_bytes, seconds, is_cancelled)
                except ChangedShardError as error:
                    self._note_replaced(pack, error)
                    continue
                except (TableError, FetchError) as error:
                    if _is_final(error) and not isinstance(error, TableError):
                        self._give_up(url, error)
                    self._warn(url, error)  # of this table alone: others may be readable
                break
        if lacking and lacking == len(shard.packs):
            url = shard.packs[0]
            self._warn(url, f"{url}: this pack of member tables has none of {shard.url}")
        return None

    def read_stored(self, url: str, shard: Shard, *, shard_bytes: int, seconds: float) -> bytes | None:
        """The table of a shard in the pack at ``url``, unchecked; None: it has none, or cannot be used.

        Raises:
            TableError: it is too long to be one. FetchError: it cannot be read.
        """
        while (pack := self._find(url, seconds)) is not None:
            span = pack.directory.find(shard.url)
            if span is None:
                return None
            try:
                return self._fetch(pack, span, shard, shard_bytes, seconds, lambda: False)[0]
            except ChangedShardError as error:
                self._note_replaced(pack, error)
        return None

    def _read(
        self,
        pack: OpenPack,
        span: tuple[int, int],
        shard: Shard,
        shard_bytes: int | None,
        seconds: float,
        is_cancelled: Callable[[], bool],
    ) -> MemberTable:
        start = time.perf_counter()
        data, source = self._fetch(pack, span, shard, shard_bytes, seconds, is_cancelled)
        where = f"the member table in {pack.url}"
        table = member_tables.accept_published(data, shard, shard_bytes=shard_bytes, where=where)
        if not Place(pack.url).is_local:
            self._tell(shard.url, source.requests, table.nbytes, start)
        return table

    def _fetch(
        self,
        pack: OpenPack,
        span: tuple[int, int],
        shard: Shard,
        shard_bytes: int | None,
        seconds: float,
        is_cancelled: Callable[[], bool],
    ) -> tuple[bytes, ShardBytes]:
        """The bytes of a table, and what they came through."""
        at, length = span
        if length > member_tables.max_published_bytes(shard_bytes):
            raise TableError(f"{pack.url}: the table of {shard.url} is too long to be one ({length} bytes)")
        source = ShardBytes(
            pack.url,
            session=self._session,
            stat=pack.stat,
            seconds=seconds,
            is_cancelled=is_cancelled,
            needs_version=not Place(pack.url).is_local,
        )
        return source.read_many([(at, at + length)])[0], source

    def _find(self, url: str, seconds: float) -> OpenPack | None:
        """A pack, opened the first time; None: it cannot be used now."""
        pack = self._open.get(url)
        if pack is not None or not self._is_usable(url):
            return pack
        start, source = time.perf_counter(), None
        with self._lock:  # of many threads, one asks for the directory
            pack = self._open.get(url)
            if pack is None and self._is_usable(url):
                try:
                    pack, source = self._open_now(url, seconds)
                    self._open[url] = pack
                except (ChangedShardError, TableError, FetchError, OSError, CancelledTransferError) as error:
                    self._give_up(url, error, took=time.perf_counter() - start)
        if pack is not None and source is not None:
            self._tell(url, source.requests, source.read_bytes, start)
        return pack

    def _open_now(self, url: str, seconds: float) -> tuple[OpenPack, ShardBytes | None]:
        """A pack, and what its directory came through, if it was downloaded."""
        if Place(url).is_local:
            return _read_local(url), None
        # From before the lock: of many processes, each would else wait for the server in its turn.
        ends = time.monotonic() + self.limits.directory_seconds
        fetched: list[tuple[OpenPack, ShardBytes]] = []

        def make(_: str, fd: int) -> None:
            head, note, source = self._download(url, seconds, ends)
            fetched[:] = [(_opened(head, note), source)]
            # Not by msgspec: an entity tag may hold bytes that are not UTF-8.
            system.write_parts(fd, [head, json.dumps(msgspec.to_builtins(note)).encode()])

        pack = None
        if self._kept is not None:
            pack = self._kept.get(self._digest(url), make, lambda file: self._take(file.data, url))
        if pack is None and not fetched:
            head, note, source = self._download(url, seconds, ends)
            fetched.append((_opened(head, note), source))
        return pack or fetched[0][0], fetched[0][1] if fetched else None

    def _take(self, data: memoryview, url: str) -> OpenPack | None:
        """The pack whose directory this is; None: it is another one, or an old one.

        Raises:
            ValueError: it is damaged.
        """
        try:
            end = pack_format.directory_end(data, url=url)
            note = _NOTES.parse(data[end:])
            pack = _opened(data[:end], note)
        except TableError as error:
            raise ValueError(str(error)) from error
        before = self._replaced.get(url)
        return None if note.url != url or (before is not None and before.stat == pack.stat) else pack

    def _download(self, url: str, seconds: float, ends: float) -> tuple[bytes, _Note, ShardBytes]:
        """The beginning of a pack up to the end of its directory, which pack that is, and what it came through."""
        source = ShardBytes(
            url,
            session=self._session,
            seconds=seconds,
            is_cancelled=lambda: time.monotonic() > ends,
            needs_version=True,
        )
        first = source.read_first(self.limits.first_bytes)
        data, end = pack_format.read_head(source.read, url=url, size=source.size, data=first)
        return data[:end], _Note(url=url, size=source.size, version=source.version), source

    def _digest(self, url: str) -> str:
        text = f"{url}\n{self._session.endpoint_of(Place(url))}"
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def _is_usable(self, url: str) -> bool:
        return member_tables.may_be_published(Place(url)) and self._retry_at.get(url, 0.0) <= time.monotonic()

    def _note_replaced(self, pack: OpenPack, error: ChangedShardError) -> None:
        """The pack has been replaced: download its directory again, unless that was done just now."""
        with self._lock:
            if self._open.get(pack.url) is not pack:  # by another thread
                return
            now = time.monotonic()
            if now - self._replaced_at.get(pack.url, -math.inf) < self.limits.again_seconds:
                self._give_up(pack.url, error)
                return
            del self._open[pack.url]
            self._replaced[pack.url], self._replaced_at[pack.url] = pack, now
        logger.info("%s: was replaced; its directory is downloaded again", pack.url)

    def _give_up(self, url: str, error: BaseException, *, took: float = 0.0) -> None:
        """Use a pack no more; for some time only where it may have been the network, or is being replaced."""
        self._open.pop(url, None)
        pause = max(self.limits.again_seconds, self.limits.again_ratio * took)
        self._retry_at[url] = math.inf if _is_final(error) else time.monotonic() + pause
        what = error
        if isinstance(error, CancelledTransferError):
            what = TableError(
                f"{url}: the directory of this pack did not come in {self.limits.directory_seconds:.0f} s", url=url
            )
        self._warn(url, what)

    def _warn(self, url: str, what: BaseException | str) -> None:
        """Say that tables of a pack cannot be used, once for each pack."""
        if url not in self._warned:
            self._warned.add(url)
            logger.warning("%s; member tables beside the shards are read instead (said once)", what)
        if isinstance(what, BaseException):
            forget_frames(what)

    def _tell(self, url: str, requests: int, size: int, start: float) -> None:
        seconds = time.perf_counter() - start
        emit(self._session.hooks, TableRead(url=url, requests=requests, size_bytes=size, seconds=seconds))


def _read_local(url: str) -> OpenPack:
    """A pack on this machine's disk. Not mapped: one that is written over in place would end the process."""
    fd, _ = atomic.open_file(Place(url).path)
    try:
        status = os.fstat(fd)
        head, end = pack_format.read_head(lambda at, length: system.pread(fd, length, at), url=url, size=status.st_size)
        directory = pack_format.unpack(head[:end], url=url, size=status.st_size)
    finally:
        os.close(fd)
    # The stat is that of `wids.core.transport.stores.LocalSource`.
    return OpenPack(url, directory, Stat(status.st_size, (status.st_mtime_ns, status.st_ino), has_ranges=True))


def _nearest_first(shard: Shard) -> list[str]:
    """The packs of a shard, first those whose directories contain it. After a merge there are many."""
    homes = {url: str(Place(url).directory).rstrip("/") + "/" for url in shard.packs}
    return sorted(shard.packs, key=lambda url: -len(homes[url]) if shard.url.startswith(homes[url]) else 0)


def _is_final(error: BaseException) -> bool:
    """True if it is the pack that cannot be used, and not the network."""
    return isinstance(error, (TableError, NoRangesError, *member_tables.NOT_PUBLISHED))


def _opened(data: bytes | memoryview, note: _Note) -> OpenPack:
    return OpenPack(note.url, pack_format.unpack(data, url=note.url, size=note.size), note.stat)

"""Published member tables of remote shards: from the packs that their index names, else from beside the shards.

    .wids/indexes/DIGEST.untabled   remote shards beside which no table was; DIGEST: of their directory and its server

Rules: missing tables are requested once for a machine, not by each worker for each shard. A shard beside which there
was no table is not asked about again for `AGAIN_SECONDS`; nor is any of its directory once `ENOUGH` of it had none, and
none had one. Until that is decided, one process asks at a time, for as many as its batch needs. In a directory that no
cache uses nothing is made before something is missing; where it cannot be used, each process remembers for itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from wids.core.files import forks, locks
from wids.core.files.json_text import JsonParser
from wids.core.files.shared_files import SharedFiles
from wids.core.tables import member_tables
from wids.core.tables.table_packs import TablePacks
from wids.core.transport import retrying
from wids.core.transport.failures import CancelledTransferError, forget_frames
from wids.core.transport.session import PLAIN, Session
from wids.errors import FetchError, JsonError, ShardNotFoundError, TableError
from wids.events import TableRead, emit, logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wids.core.place import Place
    from wids.core.shard import Shard
    from wids.core.tables.table import MemberTable

UNTABLED_SUFFIX = ".untabled"
AGAIN_SECONDS, ENOUGH = 300.0, 3
# The most shards that are noted for one directory: the newest.
_MAX_SHARDS = 4096
_POLL_SECONDS = 0.02


class _Missing(msgspec.Struct):
    """Knowledge of the tables beside the shards of a directory.

    Attributes:
        shards: digest of a shard's URL -> time at which it had none, in seconds since 1970.
        seen: time at which one was there; 0: not known.
    """

    shards: dict[str, float] = {}
    seen: float = msgspec.field(default=0.0, name="found")

    def drop_old(self, now: float) -> None:
        """Forget observations that are too old, or were made by a clock that was wrong."""
        shards = {name: when for name, when in self.shards.items() if 0 <= now - when < AGAIN_SECONDS}
        self.shards = dict(list(shards.items())[-_MAX_SHARDS:])
        if not 0 <= now - self.seen < AGAIN_SECONDS:
            self.seen = 0.0

    @property
    def is_decided(self) -> bool:
        """True if it is known if shards have tables here, as a rule."""
        return bool(self.seen) or len(self.shards) >= ENOUGH

    def has_none(self, shard: str) -> bool:
        """True if a shard has no table, as far as known."""
        return shard in self.shards or (self.is_decided and not self.seen)


_MISSING = JsonParser(_Missing)


class _Asking(msgspec.Struct):
    """Requests of this process for the first tables of a directory: their lock, and the number of its threads."""

    lock: contextlib.ExitStack
    threads: int = 0


class _Directory(NamedTuple):
    """A directory of shards.

    Attributes:
        url: of it.
        name: of the file of what is missing in it.
    """

    url: str
    name: str


class MissingTables:
    """Beside which remote shards there are no tables; shared by the processes of a machine.

    Args:
        cache_dir: directory of that record; None: it is in memory.
        session: opens URLs.
        is_cached: shards are downloaded into that directory, so that it may be made.
    """

    def __init__(self, *, cache_dir: str | None, session: Session = PLAIN, is_cached: bool = False) -> None:
        self._session, self._is_cached = session, is_cached
        self._kept = None if cache_dir is None else SharedFiles(cache_dir, UNTABLED_SUFFIX)
        self._begin()

    def _begin(self) -> None:
        self._known: dict[str, _Missing] = {}  # by directory
        self._asking: dict[str, _Asking] = {}  # for the first tables of which directories this process asks
        self.start_child()
        forks.reset_in_child(self)

    def start_child(self) -> None:
        """Make a lock of this process; see `wids.core.files.forks.Inherited`."""
        self._lock = threading.Lock()
        self._asking.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {"_session": self._session, "_kept": self._kept, "_is_cached": self._is_cached}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def has_none(self, place: Place) -> bool:
        """True if the shard at a place has no table, as far as this process has seen; costs next to nothing."""
        known, now, shard = self._known.get(str(place.directory)), time.time(), _digest(str(place))[:16]
        if known is None:
            return False
        if 0 <= now - known.seen < AGAIN_SECONDS:  # not all of the others are looked at for each shard
            return 0 <= now - known.shards.get(shard, 0.0) < AGAIN_SECONDS
        known.drop_old(now)
        return known.has_none(shard)

    @contextlib.contextmanager
    def asking(self, place: Place, is_cancelled: Callable[[], bool]) -> Iterator[None]:
        """Ask for the table of a shard in the block; an error of `member_tables.NOT_PUBLISHED` in it is remembered.

        Raises:
            ShardNotFoundError: it is known that none exists.
            CancelledTransferError: ``is_cancelled`` said True while another process asked.
        """
        directory, shard = self._directory_of(place), _digest(str(place))[:16]
        with contextlib.ExitStack() as held:
            known, began, is_told = self._look(directory), time.perf_counter(), False
            while not (known.is_decided or known.has_none(shard) or self._may_ask(directory, held)):
                if is_cancelled():
                    raise CancelledTransferError
                if not is_told and time.perf_counter() - began > locks.LIMITS.report_seconds:
                    is_told = True
                    text = "%s: still waiting after %.0f s for another process, which asks the server for member tables"
                    logger.warning(text, directory.url, time.perf_counter() - began)
                time.sleep(_POLL_SECONDS)  # another process asks
                known = self._look(directory)
            if self._look(directory).has_none(shard):
                raise ShardNotFoundError(f"{place}: has no member table beside it", url=str(place))
            try:
                yield
            except member_tables.NOT_PUBLISHED:
                self._note(directory, [shard])
                raise
            self._note(directory, [])

    def _may_ask(self, directory: _Directory, held: contextlib.ExitStack) -> bool:
        """True if no other process asks for the first tables of a directory; none begins to before ``held`` ends."""
        if self._kept is None or not (self._is_cached or self._kept.is_used()):
            return True
        with self._lock:
            asking = self._asking.get(directory.url)
            if asking is None:
                lock = contextlib.ExitStack()
                if not lock.enter_context(self._kept.trying(directory.name)):
                    return False
                asking = self._asking[directory.url] = _Asking(lock)
            asking.threads += 1  # a batch waits once for the tables of all its shards
        held.callback(self._end_asking, directory, asking)
        return True

    def _end_asking(self, directory: _Directory, asking: _Asking) -> None:
        """A thread has its answer; with the last of them, other processes may ask."""
        with self._lock:
            asking.threads -= 1
            if not asking.threads:
                self._asking.pop(directory.url, None)
                asking.lock.close()

    def _directory_of(self, place: Place) -> _Directory:
        directory = place.directory
        return _Directory(str(directory), _digest(f"{directory}\0{self._session.endpoint_of(directory)}"))

    def _look(self, directory: _Directory) -> _Missing:
        """Knowledge of all processes about a directory."""
        stored = None
        if self._kept is not None and (file := self._kept.open(directory.name)) is not None:
            with contextlib.suppress(JsonError):
                stored = _MISSING.parse(file.data)
        with self._lock:
            known = self._known.setdefault(directory.url, _Missing())
            if stored is not None:
                known.shards = {**stored.shards, **known.shards}
                known.seen = max(stored.seen, known.seen)
            known.drop_old(time.time())
            return known

    def _note(self, directory: _Directory, missing: list[str]) -> None:
        """Note the shard that has no table; none: one that was requested has one."""
        known, now = self._look(directory), time.time()
        with self._lock:
            if not missing and known.seen:
                return
            known.shards.update(dict.fromkeys(missing, now))
            known.seen = known.seen if missing else now
            data = msgspec.json.encode(known)
        if self._kept is not None and (missing or self._kept.is_used()):
            self._kept.put(directory.name, data)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class PublishedTables:
    """Reads them; threads may share it.

    Args:
        cache_dir: a directory for the directories of packs; None: they are in memory.
        session: opens URLs; its hooks are called with a `TableRead` for each that was read.
        is_cached: shards are downloaded into that directory, so that it may be made.
    """

    def __init__(self, *, cache_dir: str | None, session: Session = PLAIN, is_cached: bool = False) -> None:
        self._session = session
        self._packs = TablePacks(cache_dir=cache_dir, session=session)
        self._missing = MissingTables(cache_dir=cache_dir, session=session, is_cached=is_cached)

    def may_have(self, shard: Shard) -> bool:
        """True if a table of a shard may exist, as far as known; nothing is requested."""
        return not self._missing.has_none(shard.place) or self._packs.may_have(shard)

    def open_packs(self, shard: Shard, *, seconds: float) -> None:
        """Open the packs of a shard; see `wids.core.tables.table_packs.TablePacks.open`."""
        self._packs.open(shard, seconds=seconds)

    def load(self, shard: Shard, *, shard_bytes: int) -> MemberTable | None:
        """The table of a shard of so many bytes; None when none exists, or none that can be its own."""
        try:
            return self.read(shard, shard_bytes=shard_bytes)
        except (TableError, FetchError) as error:  # the headers are read instead
            if not isinstance(error, member_tables.NOT_PUBLISHED):
                logger.warning("%s", error)
            forget_frames(error)  # the shard is opened in another way, and the error is in a cycle with itself
            return None

    def read(
        self,
        shard: Shard,
        *,
        shard_bytes: int | None,
        seconds: float = retrying.LIMITS.first_seconds,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> MemberTable:
        """The table of a shard; for arguments and errors see `wids.core.tables.member_tables.read_beside`."""
        url = shard.url
        if not member_tables.may_be_published(shard.place):
            raise ShardNotFoundError(f"{url}: has no published member table", url=url)
        table = self._packs.read(shard, shard_bytes=shard_bytes, seconds=seconds, is_cancelled=is_cancelled)
        if table is not None:
            return table
        start = time.perf_counter()
        with self._missing.asking(shard.place, is_cancelled):
            beside = member_tables.read_beside(
                shard,
                shard_bytes=shard_bytes,
                session=self._session,
                seconds=seconds,
                is_cancelled=is_cancelled,
            )
        took = time.perf_counter() - start
        emit(self._session.hooks, TableRead(url=url, requests=1, size_bytes=beside.nbytes, seconds=took))
        return beside

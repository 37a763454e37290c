"""From a remote shard to a reader of its members where they are: only its member table is needed for that.

A table comes from memory, else from where it is published (`wids.core.tables.published_tables`), else from the shard's
headers.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from wids.core.cache.freshness import version_in, version_mark
from wids.core.files.identity import Identity
from wids.core.files.ranks import processes_of_job
from wids.core.readers.access import costs_less
from wids.core.readers.base import announce
from wids.core.readers.header_reader import scan_headers
from wids.core.readers.remote import RangeReader, are_same
from wids.core.tables import member_tables
from wids.core.tables import table as tables
from wids.core.tables.published_tables import PublishedTables
from wids.core.transport import filesystems, retrying
from wids.core.transport.failures import CancelledTransferError, forget_frames
from wids.core.transport.pace import Pace
from wids.core.transport.range_client import ShardBytes
from wids.core.transport.session import PLAIN, Session
from wids.errors import ChangedShardError, FetchError, NoRangesError, ShardError, TableError
from wids.events import TableRead, emit, logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from wids.core.cache.located import Located
    from wids.core.cache.store import ShardCache
    from wids.core.readers.base import Reader
    from wids.core.shard import Shard
    from wids.core.tables.table import Group, KeyRule, MemberTable


class EarlyReadLimits(NamedTuple):
    """Times of reads before a shard's download ends; the default is in force, tests put another in its place.

    Attributes:
        answer_seconds: a read waits this long for an answer, then for the download.
        table_seconds: likewise for a member table.
        again_seconds: time after which a shard is read early again whose server did not return samples.
    """

    answer_seconds: float = retrying.LIMITS.first_seconds
    table_seconds: float = 5.0
    again_seconds: float = 30.0


class RangeProvider:
    """Reads members of remote shards where they are.

    Args:
        is_final: a shard that gives no ranges is an error, and reading on never turns into downloading; else both do.
        session: opens URLs; its hooks are called with every event.
        rule: see `wids.core.tables.table.build_table`.
        group: see there.
        cache_dir: directory for the directories of packs of member tables; None: in memory.
        is_cached: all that is read is downloaded into that directory, so that it may be made.
        cache: remembers the member tables of shards that it has evicted.

    Attributes:
        has_tables: `find_early` found the published table of a shard, so that others may have theirs.
    """

    has_tables: bool = False

    limits: EarlyReadLimits = EarlyReadLimits()

    def __init__(
        self,
        *,
        is_final: bool,
        session: Session = PLAIN,
        rule: KeyRule,
        group: Group,
        cache_dir: str | None = None,
        is_cached: bool = False,
        cache: ShardCache | None = None,
    ) -> None:
        self._is_final, self._session = is_final, session
        self._rule: KeyRule = rule
        self._group: Group = group
        self._is_standard = tables.is_standard(rule, group)
        self._cache = cache
        self._published = PublishedTables(cache_dir=cache_dir, session=session, is_cached=is_cached)
        self._pace = Pace()

    def may_ask(self) -> bool:
        """True if this process may ask for more ranges of shards that are on their way."""
        return self._pace.may_ask(time.monotonic(), self._pace.limits.job_rate / processes_of_job())

    def find(self, located: Located) -> Reader | None:
        """A reader of a shard; None: it is better downloaded, or gives no ranges and another provider decides.

        Raises:
            FetchError: it cannot be read. ShardError: it is not a readable tar.
            ChangedShardError: it differs from the index.
        """
        start = time.perf_counter()
        source = self._source_of(located)
        if source is None:
            return None
        table, is_proven, guess = self._known_table(located, source)
        has_saved = table is not None
        if table is None:
            if not self._is_final and source.scan_bytes(located.shard.nsamples) > source.size:
                return None
            table, is_proven = self._scan(located, source), True
        elif not is_proven and guess is None:
            located.book.learn_table(located.url, table)
        reader = RangeReader(
            source,
            table=table,
            rescan=partial(self._scan, located, source),
            is_proven=is_proven,
            split=tables.parse_rule(self._rule),
            is_due=None if self._is_final else partial(self._is_cheaper, located, source),
            on_error=None if guess is None else partial(self._forget_guess, located, guess),
            hooks=self._session.hooks,
        )
        announce(self._session.hooks, reader, has_saved_table=has_saved, start=start)
        return reader

    def find_early(
        self, located: Located, *, is_due: Callable[[], bool], is_there: Callable[[], bool]
    ) -> Reader | None:
        """A reader of a shard that will be in the cache; None: the offsets of its members are not known at once.

        Args:
            located: the shard.
            is_due: asked before each read; once it says False, the shard is to be opened again.
            is_there: the same once this says True; it is asked in the course of reads.
        """
        start = time.perf_counter()
        table = self._find_table(located, is_there)
        if table is None:
            return None
        is_proven = located.record.is_proven
        source = ShardBytes(
            located.place,
            session=self._session,
            size=table.identity.size,
            seconds=self.limits.answer_seconds,
            is_cancelled=is_there,
            needs_strong=True,
            is_expected=partial(_is_version_of, table.identity),
            pace=self._pace,
        )
        reader = RangeReader(
            source,
            table=table,
            rescan=partial(self._raise_doubt, located.url),
            is_proven=is_proven,
            is_due=is_due,
            on_error=partial(self._give_up, located),
            hooks=self._session.hooks,
        )
        announce(self._session.hooks, reader, has_saved_table=True, start=start)
        return reader

    def find_published(self, located: Located) -> MemberTable | None:
        """The published table of a shard; None: none exists, or nothing shows that it is the shard's.

        Raises:
            FetchError: the server does not answer. TableError: it is damaged, or of another version of the shard.
        """
        shard = located.shard
        if shard.filesize is None or not self._is_standard or not member_tables.may_be_published(shard.place):
            return None
        known = located.record.table
        if known is not None and known.identity.size == shard.filesize:
            return known
        try:
            table = self._published.read(shard, shard_bytes=shard.filesize)
        except member_tables.NOT_PUBLISHED:
            return None
        located.book.learn_table(shard.url, table)
        return table

    def has_table(self, located: Located) -> bool:
        """True if `find_early` finds a reader, as far as known then."""
        return self._find_table(located, bool) is not None

    def _find_table(self, located: Located, is_there: Callable[[], bool]) -> MemberTable | None:
        shard, record = located.shard, located.record
        if not self._has_members(shard):
            return None
        table = self._remembered(located) if record.table is None else record.table
        if table is None and self._may_be_published(located):
            table = self._ask_for_table(located, is_there)
        if table is None:
            return None
        if shard.nsamples not in (None, table.nsamples):  # one of both is wrong: the shard itself says which
            record.wrong_table = table.identity
            return None
        if record.table is None:
            located.book.learn_table(shard.url, table)
        return table

    def _ask_for_table(self, located: Located, is_there: Callable[[], bool]) -> MemberTable | None:
        """The published table, if it comes soon."""
        shard, record = located.shard, located.record
        try:
            self._published.open_packs(shard, seconds=0)  # which may take longer: it is for all shards
            ends = time.perf_counter() + self.limits.table_seconds
            table = self._published.read(
                shard,
                shard_bytes=shard.filesize,
                seconds=0,  # one try: the shard can be downloaded
                is_cancelled=lambda: time.perf_counter() > ends or is_there(),
            )
        except CancelledTransferError:
            # A table that takes so long is not requested again: each opening would wait for it.
            record.lacks_table |= not is_there()
            return None
        except (FetchError, ShardError) as error:  # its download meets the same error, or can be done
            if not isinstance(error, FetchError):
                record.lacks_table = True
                logger.warning("%s", error)
            logger.debug("%s: is downloaded before it is read (%s)", shard.url, error)
            forget_frames(error)
            return None
        if record.wrong_table == table.identity:
            return None
        self.has_tables = True
        return table

    def _has_members(self, shard: Shard) -> bool:
        """True if a member table, by the usual rule, has the samples of a remote shard."""
        return not shard.place.is_local and shard.place.scheme != "pipe" and self._is_standard

    def may_have_table(self, located: Located) -> bool:
        """True if `find_early` may find one."""
        return self._has_members(located.shard) and (self.knows_table(located) or self._may_be_published(located))

    def knows_table(self, located: Located) -> bool:
        """True if a shard's table is at hand, in memory or in the cache; `find_early` sees if it is the right one."""
        if located.record.table is not None:
            return True
        return self._cache is not None and self._cache.has_remembered_table(located)

    def _may_be_published(self, located: Located) -> bool:
        record = located.record
        if record.lacks_table or record.wrong_table is not None or not member_tables.may_be_published(located.place):
            return False
        return self._published.may_have(located.shard)

    def learn(self, located: Located, table: MemberTable) -> None:
        """A shard was opened from the cache, with this table: it can be read by ranges once it was evicted."""
        record = located.record
        if record.table is None or record.table.identity != table.identity:
            located.book.learn_table(located.url, table)

    def _remembered(self, located: Located) -> MemberTable | None:
        """The table that the cache has kept of a shard that it evicted."""
        table = None if self._cache is None else self._cache.remembered_table(located)
        return None if table is None or table.identity == located.record.wrong_table else table

    def is_cheap(self, located: Located, count: int) -> bool:
        """True if so many samples of a shard cost less than its download, as far as known, each by itself."""
        shard, request = located.shard, filesystems.connections().request_bytes(located.place.host)
        is_cheap = costs_less(count, nsamples=shard.nsamples, size=shard.filesize, request_bytes=request)
        return is_cheap and self.may_have_table(located)

    def _note_table(self, url: str, requests: int, size: int, start: float) -> None:
        seconds = time.perf_counter() - start
        emit(self._session.hooks, TableRead(url=url, requests=requests, size_bytes=size, seconds=seconds))

    def _give_up(self, located: Located, error: FetchError | ShardError) -> None:
        """Read a shard early no more; for some time only where it may have been the network."""
        record = located.record
        if not isinstance(error, FetchError):
            record.doubt_table()
        elif isinstance(error, (NoRangesError, *member_tables.NOT_PUBLISHED)):
            record.lacks_ranges = True
        else:
            record.retry_at = time.monotonic() + self.limits.again_seconds

    def _forget_guess(self, located: Located, guess: Identity, error: FetchError | ShardError) -> None:
        """Have a shard opened without the table that the cache remembers: the shard was replaced since."""
        if isinstance(error, FetchError):
            raise error
        located.record.wrong_table = guess

    def _raise_doubt(self, url: str) -> MemberTable:
        raise TableError(f"{url}: the headers differ from the member table", shard=url)

    def _is_cheaper(self, located: Located, source: ShardBytes) -> bool:
        """True if reading a shard by ranges has cost less than its download so far; one read is let in."""
        record = located.record
        if source.spent_bytes <= source.size or not record.was_read:
            record.was_read = True
            return True
        record.is_spent = True
        return False

    def _source_of(self, located: Located) -> ShardBytes | None:
        """The bytes of a shard that is to be read by ranges."""
        shard, place = located.shard, located.place
        if place.is_local or (place.scheme == "pipe" and not self._is_final):
            return None
        source = ShardBytes(place, session=self._session, size=shard.filesize)
        if self._is_final:
            if not source.has_ranges:
                raise self._refuse(shard)
            return source
        if not source.has_ranges:
            return None
        self._go_on_counting(located, source)
        return source

    def _refuse(self, shard: Shard) -> FetchError:
        return FetchError(
            f"{shard.url}: the server gives no byte ranges; use access='fetch', which fetches whole shards",
            url=shard.url,
        )

    def _identity(self, source: ShardBytes) -> Identity:
        version = source.version
        return Identity(size=source.size, etag=None if version is None else str(version))

    def _scan(self, located: Located, source: ShardBytes) -> MemberTable:
        """From the headers; the bytes between them are read only where that is quicker.

        Raises:
            ChangedShardError: from a store without strong versions they are read twice, and are not the same.
        """
        before, start = (source.requests, source.read_bytes), time.perf_counter()
        table = self._scan_once(source)
        if not source.is_strong and not are_same(table, self._scan_once(source)):
            raise ChangedShardError(
                f"{source.url}: it changed while its headers were read; open it again", shard=source.url
            )
        located.book.learn_table(located.url, table, is_proven=True)
        self._note_table(source.url, source.requests - before[0], source.read_bytes - before[1], start)
        return table

    def _scan_once(self, source: ShardBytes) -> MemberTable:
        return scan_headers(source, self._identity(source), rule=self._rule, group=self._group)

    def _go_on_counting(self, located: Located, source: ShardBytes) -> None:
        """Count the cost of a shard before its last close: else one that is opened repeatedly is never downloaded."""
        record = located.record
        if record.source is not None:
            source.requests += record.source.requests
            source.read_bytes += record.source.read_bytes
        record.source = source

    def _known_table(self, located: Located, source: ShardBytes) -> tuple[MemberTable | None, bool, Identity | None]:
        """The table from memory, of the evicted shard, or from beside the shard.

        Second, True if it comes from the shard's headers; third, what it was made for where the cache remembers it.
        """
        identity = self._identity(source)
        record = located.record
        if record.table is not None and record.table.identity == identity:
            return record.table, record.is_proven, None
        if not self._is_standard:
            return None, False, None
        remembered = self._remembered(located)
        if (
            remembered is not None
            and remembered.identity.size == source.size
            and (not source.is_strong or _is_version_of(remembered.identity, source.version))
        ):
            return remembered.with_identity(identity), False, remembered.identity
        table = self._published.load(located.shard, shard_bytes=source.size)
        return (None if table is None else table.with_identity(identity)), False, None


def _is_version_of(identity: Identity, version: Any) -> bool:
    """True if a store's version is the one that a shard had when it was downloaded, as far as that is known."""
    return version_in(identity) in ("", version_mark(version))

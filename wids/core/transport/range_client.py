"""Reads a shard's bytes in place, by position: from a local file, or by byte ranges of a remote object.

Nothing is written to a disk. A read raises an error if the object has changed. If the store has no strong versions
(`is_strong`), a change to another object of the same size may go unnoticed, and only the bytes of one piece certainly
belong to one version.
Pieces are combined into one request if a separate request would take longer. Requests run concurrently. A remote object
without ranges is refused, and never read as a whole.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, cast

from wids.core.place import Place
from wids.core.transport import filesystems, retrying, spans
from wids.core.transport.failures import CancelledTransferError, is_overload
from wids.core.transport.scheduler import read_spans
from wids.core.transport.session import PLAIN, Session
from wids.core.transport.source import Sink
from wids.core.transport.spans import Gather, Span
from wids.core.transport.stores import open_source
from wids.errors import ChangedShardError, FetchError, NoRangesError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Self

    from wids.core.transport.pace import Pace
    from wids.core.transport.source import Stat

# The longest request that combines close pieces: it holds the bytes between them until it ends, and several connections
# are faster than one.
_MAX_REQUEST_BYTES = 16 << 20


class ShardBytes:
    """The bytes of one shard, by position. Threads may share it; a forked child opens its own.

    Args:
        url: any URL that fsspec knows, or a local path.
        session: opens URLs; its hooks are called for each retry.
        size: its size in the index, if any; the first read then needs no request before it.
        stat: an earlier answer of the store, if any; another version is then an error.
        seconds: for all tries of one read.
        is_cancelled: called regularly; a read ends once it returns True.
        needs_version: refuse a store without versions of the object, as one without ranges.
        needs_strong: refuse a store without strong versions, too.
        is_expected: True if a strong version is the wanted one.
        pace: counts requests, and answers that there are too many.

    Attributes:
        requests: number of requests.
        read_bytes: number of bytes that they returned.

    Raises:
        NoRangesError: it has no ranges. FetchError: it cannot be read. ChangedShardError: it is not of ``size`` bytes.
        CancelledTransferError: a read was cancelled.
    """

    url: str
    requests: int
    read_bytes: int

    def __init__(
        self,
        url: str | Place,
        *,
        session: Session = PLAIN,
        size: int | None = None,
        stat: Stat | None = None,
        seconds: float = retrying.LIMITS.total_seconds,
        is_cancelled: Callable[[], bool] = lambda: False,
        needs_version: bool = False,
        needs_strong: bool = False,
        is_expected: Callable[[Any], bool] = lambda _: True,
        pace: Pace | None = None,
    ) -> None:
        self._place = Place.of(url)
        self.url, self._session, self._seconds = str(self._place), session, seconds
        self.requests = self.read_bytes = 0
        self._size, self._is_cancelled = size, is_cancelled
        self._needs_version, self._needs_strong = needs_version, needs_strong
        self._is_expected, self._pace = is_expected, pace
        self._stat = stat
        if stat is not None:
            self._size = stat.size
        self._host = self._place.host
        if self._place.scheme == "pipe":
            raise FetchError(f"{url}: the output of a program has no positions; fetch it as a whole", url=self.url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: no resource is held between two reads, so a process may fork at any time."""

    @property
    def has_ranges(self) -> bool:
        """True if an object of known size can be read in pieces; the first call asks the store."""
        return self._look().has_ranges

    @property
    def spent_bytes(self) -> float:
        """The bytes that were read, plus those that fit into the time of the requests."""
        return self.read_bytes + self.requests * self._request_bytes()

    def scan_bytes(self, nsamples: int | None) -> float:
        """The lowest cost of reading the headers of this number of samples, in the same unit; infinite if unknown."""
        return math.inf if nsamples is None else 2 * nsamples * self._request_bytes()

    def _request_bytes(self) -> int:
        return filesystems.connections().request_bytes(self._host)

    @property
    def size(self) -> int:
        """Bytes of the whole.

        Raises:
            FetchError: the store does not state the size.
        """
        if self._size is None:
            self._look()
        if self._size is None:
            raise FetchError(f"{self.url}: the store does not say its size; fetch the shard as a whole", url=self.url)
        return self._size

    @property
    def version(self) -> Any:
        """The version (entity tag, generation, times); None if the store has none."""
        return self._look().version

    @property
    def known_version(self) -> Any:
        """`version`, without a request; None: nothing has answered yet, or the store has none."""
        return None if self._stat is None else self._stat.version

    @property
    def is_strong(self) -> bool:
        """True if the answers so far all had a strong version: pieces of several requests are then of one version.

        Once it is False, it stays so.
        """
        return self._needs_strong or self._look().is_strong

    def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``offset`` on; fewer only at the object's end. A large read uses all connections.

        Raises:
            FetchError: they cannot be read. ChangedShardError: the object has changed.
        """
        whole = spans.clip((offset, offset + size), self.size)
        pieces = spans.cut([whole], filesystems.connections().range_bytes(self._host, size))
        done = self._get({piece: [piece] for piece in pieces})
        return b"".join(done[piece] for piece in pieces)

    def read_first(self, size: int) -> bytes:
        """The first bytes, up to ``size``; one request, if its answer has size and version, too.

        Raises:
            FetchError, ChangedShardError: as for `read`.
        """
        return retrying.try_repeatedly(
            lambda: self._read_first_once(size),
            url=self._place,
            path=None,
            hooks=self._session.hooks,
            seconds=self._seconds,
            is_cancelled=self._is_cancelled,
        )

    def _read_first_once(self, size: int) -> bytes:
        with open_source(self._place, self._session, go_on=self._go_on) as source:
            self.requests += 1 if source.answers_have_stat else 3  # the stat is requested before and after the read
            stat = source.stat(Span(0, size))
            if not stat.has_ranges and (stat.size is None or stat.size > size):  # the whole object is a range, too
                raise self._no_ranges()
            self._learn(stat._replace(has_ranges=True))
            wanted = spans.clip((0, size), self.size)
            gather = Gather({wanted: [wanted]} if wanted.size else {})
            read_spans(source, gather.missing, Sink(self._learn_range, gather.write), is_for_samples=True)
        self.read_bytes += wanted.size
        return gather.pieces.get(wanted, b"")

    def read_many(self, pieces: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of several pieces (lo, hi), half-open, in their order; each ends at the end of the object at most.

        One request reads each piece, so the bytes of a piece are always of one version.

        Raises:
            FetchError, ChangedShardError: as for `read`.
        """
        end = self.size
        wanted = [spans.clip(piece, end) for piece in pieces]
        gap = filesystems.connections().gap_bytes(self._host)
        done = self._get(spans.coalesce(wanted, gap=gap, max_bytes=_MAX_REQUEST_BYTES))
        return [done.get(piece, b"") for piece in wanted]

    def _get(self, wanted: Mapping[Span, Sequence[Span]]) -> dict[Span, bytes]:
        """The pieces of all spans."""
        gather = Gather(wanted)
        if wanted:
            if self._stat is not None and not self._stat.has_ranges:  # known from an earlier request
                raise self._no_ranges()
            retrying.try_repeatedly(
                lambda: self._read_missing(gather),
                url=self._place,
                path=None,
                hooks=self._session.hooks,
                seconds=self._seconds,
                kept=lambda: len(gather.pieces),
                is_cancelled=self._is_cancelled,
            )
        return gather.pieces

    def _read_missing(self, gather: Gather) -> None:
        """One try: the spans that are not complete."""
        gather.restart()
        missing, before = gather.missing, gather.arrived_bytes
        try:
            with open_source(self._place, self._session, go_on=self._go_on) as source:
                self.requests += not source.answers_have_stat
                if self._stat is None and not source.answers_have_stat:
                    self.requests += 1  # asked before as well as after the reads, or two versions could be mixed
                    self._learn(source.stat())
                read_spans(source, missing, Sink(self._learn_range, gather.write), is_for_samples=True)
        except Exception as error:
            if self._pace is not None and is_overload(error):
                self._pace.note_refusal(time.monotonic())
            raise
        finally:
            self.requests += len(missing) - len(gather.missing)
            self.read_bytes += gather.arrived_bytes - before
            if self._pace is not None:
                self._pace.spend(len(missing))

    def _go_on(self) -> None:
        if self._is_cancelled():
            raise CancelledTransferError

    def _look(self) -> Stat:
        """The stat of the object; the first call asks the store."""
        if self._stat is None:
            retrying.try_repeatedly(
                self._look_once, url=self._place, path=None, hooks=self._session.hooks, seconds=self._seconds
            )
        return cast("Stat", self._stat)

    def _look_once(self) -> None:
        self.requests += 1
        with open_source(self._place, self._session) as source:
            self._learn(source.stat())

    def _learn(self, stat: Stat) -> None:
        """On learning size and version: check that they have not changed."""
        if stat.size is not None and self._size not in (None, stat.size):
            what = f"it has {stat.size:,} bytes, and had {self._size:,} (in the index, or when it was opened)"
            advice = "open the dataset again, and update the index if the shard was rewritten"
            raise self._changed(f"{what}; {advice}", self._size, stat.size)
        if self._stat is not None and stat.version != self._stat.version:
            before, now = self._stat.version, stat.version
            what = f"its version (ETag, generation) was {before!s:.80}, and is {now!s:.80} now"
            advice = (
                "if it was rewritten, open the dataset again, and update the index; if several servers answer at "
                "this URL and give the same file different ETags, let them agree (Apache: FileETag MTime Size), or use "
                "access='fetch', which downloads each shard in one request"
            )
            raise self._changed(f"{what}: {advice}", before, now)
        if self._stat is None and stat.is_strong and not self._is_expected(stat.version):
            what = f"its version is now {stat.version!s:.80}, and was different when it was downloaded"
            raise self._changed(what, None, stat.version)
        self._size = self._size if stat.size is None else stat.size
        self._stat = stat._replace(is_strong=stat.is_strong and (self._stat is None or self._stat.is_strong))

    def _learn_range(self, stat: Stat) -> None:
        """`_learn` on the answer to a requested range; a later try may get the range if this one did not."""
        if stat.size is not None:
            self._learn(stat._replace(has_ranges=True))
        if not stat.has_ranges:
            raise self._no_ranges()
        if (self._needs_version and stat.version is None) or (self._needs_strong and not stat.is_strong):
            raise NoRangesError(f"{self.url}: the store does not identify the version for certain", url=self.url)

    def _no_ranges(self) -> NoRangesError:
        return NoRangesError(
            f"{self.url}: the server gives no byte ranges; the shard can only be fetched as a whole", url=self.url
        )

    def _changed(self, what: str, expected: Any, actual: Any) -> ChangedShardError:
        return ChangedShardError(f"{self.url}: {what}", shard=self.url, expected=expected, found=actual)

"""The number of samples of remote shards that no index states: from their member tables, else from their headers.

    .wids/indexes/KEY.counts        counts of a list of shards; KEY: a digest of their URLs, sizes and versions

Rules: one process of a machine counts and the others wait for it. Counts are kept only where the store tells versions
of each shard apart, and where members are grouped in the standard way; else each process counts for itself. No shard is
downloaded: one that cannot be read by byte ranges is refused.
"""

from __future__ import annotations

import hashlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from wids.core.files import system, terminal
from wids.core.files.identity import Identity
from wids.core.files.json_text import JsonParser
from wids.core.files.shared_files import SharedFiles
from wids.core.index.discovery import mark_words
from wids.core.readers.header_reader import scan_headers
from wids.core.shard import MAX_COUNT
from wids.core.tables import member_tables
from wids.core.tables import table as tables
from wids.core.tables.published_tables import PublishedTables
from wids.core.transport.range_client import ShardBytes
from wids.core.transport.session import PLAIN, Session
from wids.errors import NoRangesError
from wids.events import REPORTED, logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.core.files.shared_files import SharedFile
    from wids.core.shard import Shard
    from wids.core.tables.table import Group, KeyRule

T = TypeVar("T")
U = TypeVar("U")

SUFFIX = ".counts"
_AT_A_TIME = 16
_ADVICE = "make an index of all of them (wids index create URLS -o train.json) and give that, or (url, nsamples) pairs"


class CountLimits(NamedTuple):
    """Intervals of a long count's reports; the default is in force, tests put another one in its place.

    Attributes:
        told_seconds: the time between two reports of its progress.
    """

    told_seconds: float = 10.0


LIMITS = CountLimits()


class ShardCount(NamedTuple):
    """The number of samples of a shard, and its bytes; two fields of a sample, if `tables.find_merged` finds some."""

    nsamples: int
    size: int
    merged: tuple[str, str, str] | None = None


class RemoteCounts:
    """Counts the samples of remote shards.

    Args:
        cache_dir: directory for counts; None: none.
        session: opens URLs.
        rule: see `wids.core.tables.table.build_table`.
        group: see there.
    """

    def __init__(
        self, *, cache_dir: str | None, session: Session = PLAIN, rule: KeyRule = "first-dot", group: Group = "adjacent"
    ) -> None:
        self._session = session
        self._rule: KeyRule = rule
        self._group: Group = group
        self._is_standard = tables.is_standard(rule, group)
        self._kept = SharedFiles(cache_dir, SUFFIX) if cache_dir is not None and self._is_standard else None
        self._published = PublishedTables(cache_dir=cache_dir, session=session)

    def count(self, shards: Sequence[Shard]) -> list[ShardCount]:
        """Number of samples of each shard, and its bytes.

        Raises:
            NoRangesError: one cannot be read by byte ranges. FetchError: it cannot be read.
            ChangedShardError, ShardError: it differs from the index, or is no readable tar.
        """
        is_over = threading.Event()
        sources = _of_all(partial(self._look, is_over=is_over), shards, is_over)
        key = self._key(sources)
        kept = None if key is None else self._kept
        made: list[list[int]] = []
        merged: dict[str, tuple[str, str, str]] = {}

        def tell(count: int) -> None:
            logger.warning("%d of %d shards are counted", count, len(shards), extra=REPORTED)

        def count_now() -> list[int]:
            logger.warning(
                "%s%s: no index says how many samples there are, so that the headers of %s are read now%s; with an "
                "index (wids index create URLS -o train.json) a start reads nothing of the shards",
                shards[0].url,
                "" if len(shards) == 1 else f" and {len(shards) - 1:,} more",
                "this shard" if len(shards) == 1 else "these shards",
                "" if kept is None else ", and the counts kept in the cache directory",
                extra=REPORTED,
            )
            pairs = list(zip(shards, sources, strict=True))
            with terminal.progress() as bar:

                def show(count: int) -> None:
                    bar.update(count, total=len(pairs), words="counting samples of shards")

                show(0)
                how = {"show": show} if bar.is_shown else {"tell": tell}
                made[:] = [_of_all(partial(self._count_one, merged=merged, is_over=is_over), pairs, is_over, **how)]
            return made[0]

        def make(_: str, fd: int) -> None:
            system.write_all(fd, msgspec.json.encode(count_now()), 0)

        counted = None if kept is None or key is None else kept.get(key, make, partial(_take, len(shards)))
        if counted is None:
            counted = made[0] if made else count_now()
        return [
            ShardCount(nsamples, source.size, merged.get(source.url))
            for nsamples, source in zip(counted, sources, strict=True)
        ]

    def _key(self, sources: Sequence[ShardBytes]) -> str | None:
        """A key of a list of shards in their present versions; None: their store has no versions."""
        marks = [mark_words(source.version) for source in sources]
        if None in marks:
            return None
        versions = [(source.url, source.size, mark) for source, mark in zip(sources, marks, strict=True)]
        return hashlib.sha256(repr(versions).encode("utf-8", "surrogatepass")).hexdigest()

    def _look(self, shard: Shard, is_over: threading.Event) -> ShardBytes:
        source = ShardBytes(shard.url, session=self._session, size=shard.filesize, is_cancelled=is_over.is_set)
        if not source.has_ranges:
            what = "no index says how many samples it holds, and its server gives no byte ranges to count them by"
            raise NoRangesError(f"{shard.url}: {what}; {_ADVICE}", url=shard.url)
        return source

    def _count_one(
        self, pair: tuple[Shard, ShardBytes], merged: dict[str, tuple[str, str, str]], is_over: threading.Event
    ) -> int:
        shard, source = pair
        table = self._published.load(shard, shard_bytes=source.size) if self._is_standard else None
        if table is None:
            table = scan_headers(
                source,
                Identity(size=source.size),
                rule=self._rule,
                group=self._group,
                is_cancelled=is_over.is_set,
            )
            member_tables.announce(self._session.hooks, shard.url, table)
        if (alike := tables.find_merged(table)) is not None:
            merged[source.url] = alike
        return table.nsamples


def _of_all(
    function: Callable[[T], U],
    items: Sequence[T],
    is_over: threading.Event,
    *,
    show: Callable[[int], object] = lambda _: None,
    tell: Callable[[int], object] = lambda _: None,
) -> list[U]:
    """The result of a function for each item, several at a time; the first error cancels the others.

    ``show`` is called with the number of those done after each, and ``tell`` now and then.
    """
    reported, results = time.monotonic(), list[U]()
    with ThreadPoolExecutor(min(_AT_A_TIME, len(items)), thread_name_prefix="wids-count") as pool:
        futures = [pool.submit(function, item) for item in items]
        try:
            for future in futures:
                results.append(future.result())
                show(len(results))
                if time.monotonic() - reported >= LIMITS.told_seconds and len(results) < len(items):
                    reported = time.monotonic()
                    tell(len(results))
        except BaseException:
            is_over.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return results


_COUNTS = JsonParser(list[int])


def _take(count: int, file: SharedFile) -> list[int] | None:
    """The counts that a file holds; None: it is another's.

    Raises:
        JsonError: it is damaged.
    """
    counts = _COUNTS.parse(file.data)
    return counts if len(counts) == count and all(0 <= each <= MAX_COUNT for each in counts) else None

"""Fetching many shards into a cache directory before anybody needs them, in threads.

Rules: bytes come, are checked and find room as those that a sampler comes to; but a plan says that all of these shards
are needed, so that none of them goes for another, and nothing goes that a live job comes to. However it ends, its
threads end first and take their part files with them.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from wids.cache import usage_hints
from wids.cache.directory import CacheDirectory
from wids.errors import CacheError, CacheFull, WidsError, without_secrets
from wids.events import Fetched, Hit, Retried, logger
from wids.osfiles import atomic
from wids.readers.store import Store
from wids.transport.failures import CancelledTransferError

if TYPE_CHECKING:
    from collections.abc import Callable

    from wids.events import Event
    from wids.index.spec import Shard

# The plan says that what was brought is needed so much later; what others need within twice of that does not go for it.
_LATER_SECONDS, _PLAN_SECONDS = 3600.0, 600.0
# So long after the last success, others may still let go of what they do not read.
_FULL_SECONDS, _AGAIN_SECONDS = 3.0, 0.25
_SHOW_SECONDS, _END_SECONDS = 0.5, 10.0


class Outcome(msgspec.Struct, kw_only=True):
    """What became of the shards.

    Attributes:
        directory: of the cache.
        shards: how many there were, each once.
        fetched: shards that came.
        fetched_bytes: of those.
        cached: shards that were there already, whole and current, or that other processes fetched meanwhile.
        in_place: local shards, which are read where they are.
        retries: tries that failed and were followed by another one.
        seconds: that it took.
        failed: URL -> why it did not come.
    """

    directory: str
    shards: int = 0
    fetched: int = 0
    fetched_bytes: int = 0
    cached: int = 0
    in_place: int = 0
    retries: int = 0
    seconds: float = 0.0
    failed: dict[str, str] = msgspec.field(default_factory=dict)


class Warming:
    """Shards on their way into a cache.

    Args:
        directory: of the cache.
        shards: each once.
        cache_size: bytes that it may hold; None: what the disk has room for.
        storage_options: for fsspec.

    Attributes:
        outcome: what became of them so far.
        missing: the shards that are not there, as far as their names tell.
    """

    def __init__(
        self,
        directory: str,
        shards: list[Shard],
        *,
        cache_size: int | None,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        self.directory = directory
        self.store = Store(
            cache_dir=directory, cache_size=cache_size, storage_options=storage_options, hooks=[self._take]
        )
        self.outcome = Outcome(directory=directory, shards=len(shards))
        places = [(shard, *self.store.place(shard.url)) for shard in shards]
        self.cacheable = [(shard, path) for shard, path, is_in_place in places if not is_in_place]
        self.outcome.in_place = len(places) - len(self.cacheable)
        self.missing = [shard for shard, path in self.cacheable if not os.path.exists(path)]
        # What is there already is checked first: it needs no room, and a full cache ends the rest.
        self._waiting = deque(sorted(self.cacheable, key=lambda item: not os.path.exists(item[1])))
        self._cancelled = threading.Event()
        self._succeeded, self._planned = time.monotonic(), -math.inf
        self._lock = threading.Lock()

    def run(self, jobs: int, show: Callable[[], None]) -> None:
        """Fetch them in threads; ``show`` is called now and then. An exception ends the threads, too."""
        if not self.cacheable:
            return
        start = time.monotonic()
        _make_directory(self.directory)
        plan = usage_hints.Plan(self.directory)
        # Not by joining them: a join that an exception ends takes its thread for ended from then on (Python 3.11).
        ends: list[threading.Event] = []
        try:
            self._write_plan(plan)
            for _ in range(min(jobs, len(self.cacheable))):
                ends.append(threading.Event())
                threading.Thread(target=self._work, args=(ends[-1],), daemon=True, name="wids-warm").start()
            for end in ends:
                while not end.wait(_SHOW_SECONDS):
                    show()
                    self._write_plan(plan)
            show()
        finally:
            self._cancelled.set()
            until = time.monotonic() + _END_SECONDS
            for end in ends:
                end.wait(max(until - time.monotonic(), 0.0))
            plan.close()
        self.outcome.seconds = time.monotonic() - start
        order = {shard.url: k for k, (shard, _) in enumerate(self.cacheable)}
        self.outcome.failed = dict(sorted(self.outcome.failed.items(), key=lambda item: order[item[0]]))

    def arrived_bytes(self) -> int:
        """Bytes that have come: of shards, and of downloads under way, whose files are holes of their full size."""
        mark = f".{os.getpid()}-"
        count = self.outcome.fetched_bytes
        with contextlib.suppress(OSError), os.scandir(CacheDirectory(self.directory).own) as found:
            for item in found:
                if item.name.endswith(".part") and mark in item.name:
                    with contextlib.suppress(OSError):
                        count += getattr(item.stat(), "st_blocks", 0) * 512
        return count

    def _write_plan(self, plan: usage_hints.Plan) -> None:
        if time.monotonic() - self._planned > _PLAN_SECONDS:
            self._planned = time.monotonic()
            later = time.time() + _LATER_SECONDS
            plan.write({os.path.basename(path): later for _, path in self.cacheable})

    def _take(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, Fetched):
                self.outcome.fetched += 1
                self.outcome.fetched_bytes += event.size_bytes
            elif isinstance(event, Hit):
                self.outcome.cached += 1
            elif isinstance(event, Retried):
                self.outcome.retries += 1

    def _work(self, end: threading.Event) -> None:
        """In a thread of its own: fetch what is waiting."""
        try:
            self._bring_all()
        finally:
            end.set()

    def _bring_all(self) -> None:
        while not self._cancelled.is_set():
            try:
                shard, path = self._waiting.popleft()
            except IndexError:
                return
            try:
                self._bring(shard, path)
            except CancelledTransferError:
                return
            except CacheFull as error:
                self.outcome.failed[shard.url] = str(error)
                self._give_up()
            except WidsError as error:
                self.outcome.failed[shard.url] = str(error)
            except Exception as error:  # noqa: BLE001 - the edge of a thread; it is told with the others
                logger.debug("%s", shard.url, exc_info=True)
                self.outcome.failed[shard.url] = _say(shard.url, f"{type(error).__name__}: {error}")
            else:
                self._succeeded = time.monotonic()

    def _give_up(self) -> None:
        """Try no more: in a full cache each shard would ask its server, wait, and fail alike."""
        with contextlib.suppress(IndexError):
            while True:
                shard, _ = self._waiting.popleft()
                self.outcome.failed[shard.url] = _say(shard.url, "not tried, for the cache is full")

    def _bring(self, shard: Shard, path: str) -> None:
        """Have one shard in the cache, whoever fetches it."""
        while True:
            after = time.time() + 2 * _LATER_SECONDS
            try:
                if self.store.fetch_ahead(shard, after=after, is_cancelled=self._cancelled.is_set):
                    return
                if not self.store.is_downloading(path):
                    break
            except CacheFull:
                if time.monotonic() - self._succeeded > _FULL_SECONDS:
                    raise
            if self._cancelled.wait(_AGAIN_SECONDS):
                raise CancelledTransferError
        # Opening it is a use of it. If it differs from its table, its md5 decides, and it is fetched again.
        self.store.open(shard).close()


def _say(url: str, what: str) -> str:
    return without_secrets(f"{url}: {what}", url)


def _make_directory(directory: str) -> None:
    try:
        atomic.make_directory(directory, is_private=directory == atomic.private_dir())
    except OSError as error:
        raise CacheError(
            f"{directory}: cannot be made ({error}); choose another --cache-dir", path=directory
        ) from error

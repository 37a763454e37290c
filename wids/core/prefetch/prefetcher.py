"""Downloading shards before they are read.

The reader tells which shards it will read, in order, and how far it is; a thread executes the downloads that the
`PrefetchWindow` calls for: in that order, a limited number of bytes ahead, further the faster shards are used. Readers
come first: it waits for no lock, and evicts only shards that are used later. What it could not download is left to the
reader that needs it. When upcoming shards are used is written down for the cleaners of all jobs. All of this belongs to
the process that began it; a forked child has none of it.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import sys
import threading
import time
from typing import TYPE_CHECKING, Protocol

from wids.core.cache import limits, reservation, usage_hints
from wids.core.files import finalizers
from wids.core.files.background import END_SECONDS, end_at_exit, join_threads
from wids.core.prefetch import distance
from wids.core.prefetch.distance import RateEstimator
from wids.core.prefetch.window import Life, PlannedSource, PrefetchWindow
from wids.core.transport import concurrency
from wids.core.transport.failures import DAMAGE, CancelledTransferError
from wids.errors import CacheFull, FetchError, WidsError
from wids.events import NotFetchedAhead, emit, logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wids.core.order.layout import Visit
    from wids.core.prefetch.upcoming import UpcomingShard

_ENDED = "prefetching has ended; shards are downloaded as they are needed"


class Source(PlannedSource["UpcomingShard"], Protocol):
    """One shard list whose shards are downloaded, or read into memory, ahead of their use.

    Attributes:
        directory: the cache directory; None: not known, or nothing goes there.
        cache_size: bytes of the cache that its shards go into; None: no limit, or no cache.
    """

    directory: str | None
    cache_size: int | None

    def look_for_tables(self) -> None:
        """Check if samples are read by byte ranges, where that matters; may ask a server."""

    def count_reads(self) -> int:
        """Number of its samples that this process has read."""

    def figures(self) -> tuple[str, dict[str, float]] | None:
        """Figures of its dataset so far, for people: (a name for it in this process, figure -> number)."""


class Prefetcher:
    """Downloads upcoming shards, from a separate thread, until it is ended or all are cached.

    Args:
        sources: the shard lists.
        visits: the upcoming visits to shards, in order, block by block; taken as needed, in the thread.
        position: the reader's position, in positions of the visits.
        mixed: shards that are read at a time, as far as known.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        visits: Iterator[list[Visit]],
        *,
        position: Callable[[], int],
        mixed: int = 0,
    ) -> None:
        self._sources, self._position = sources, position
        self._plans: dict[str, usage_hints.PlanFile] = {}
        self._pid = os.getpid()
        self._is_cancelled = self._finished = False
        # Wakes the thread. Not an event: finalizers put there, perhaps in the thread itself in the middle of its wait.
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        # Downloads, whether they brought their shard, and when to try again what failed.
        self._ended: queue.SimpleQueue[tuple[UpcomingShard, bool, float | None]] = queue.SimpleQueue()
        self._downloading: set[threading.Thread] = set()
        self._pace = RateEstimator(time.monotonic())
        self._window = PrefetchWindow(visits, sources, connections=concurrency.LIMITS.connections, mixed=mixed)
        self._planned, self._planned_at, self._passed = -math.inf, 0, 0
        self._read_before = self._reads()
        self._thread = threading.Thread(target=self._run, daemon=True, name="wids-prefetch")
        self._start()

    def end(self, *, is_finished: bool, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """The reader has drawn its last index: finish the downloads under way; or it is gone: abandon them."""
        # Finalizers call this: see `wids.core.files.finalizers`.
        if is_ending() or os.getpid() != self._pid:
            return
        self._finished = True
        if not is_finished:
            self._is_cancelled = True
        self._woken.put(None)

    def join(self, seconds: float | None = None) -> None:
        """Wait until its threads have ended, or for so long."""
        if os.getpid() != self._pid:
            return
        threads, current = [self._thread, *self._downloading.copy()], threading.current_thread()
        join_threads([each for each in threads if each is not current and each.ident is not None], seconds)

    def _start(self) -> None:
        """Begin, with a plan of the first block: else readers would evict its shards before the thread has looked."""
        try:
            if any(source.cache_size is not None for source in self._sources):
                self._window.advance(self._position(), rate=0.0, read_before=0, blocks=1)
                self._write_plans()
                self._planned = -math.inf  # the thread sees more
            self._thread.start()
        except Exception as error:  # noqa: BLE001 - reading goes on without it
            self._close_plans()
            if not isinstance(error, RuntimeError):  # no more threads
                logger.exception(_ENDED)
        else:
            end_at_exit(self)

    # --- the thread

    def _run(self) -> None:
        try:
            self._wait(limits.LIMITS.start_seconds)
            for source in self._sources:
                source.look_for_tables()
            while not self._finished:
                self._look_ahead()
                self._start_downloads()
                self._write_plans()
                if self._window.is_exhausted and not self._window.visits:
                    break
                self._wait(limits.LIMITS.tick_seconds)
            self.join(END_SECONDS if self._is_cancelled else None)
        except Exception:  # noqa: BLE001 - the edge of a thread; reading goes on without it
            logger.exception(_ENDED)
        finally:
            self._close_plans()

    def _wait(self, seconds: float) -> None:
        """Wait until the reader or a download has ended, or for so long."""
        with contextlib.suppress(queue.Empty):
            self._woken.get(timeout=seconds)
            while True:  # all that woke it meanwhile
                self._woken.get_nowait()
        finalizers.do_left()

    def _close_plans(self) -> None:
        for plan in self._plans.values():
            plan.close()

    def _look_ahead(self) -> None:
        """Tell the window the reader's position, and the cached shards."""
        position, now = self._position(), time.monotonic()
        self._pace.note(position, now)
        self._window.advance(position, rate=self._pace.rate, read_before=position - self._burst(position))
        while not self._ended.empty():
            download, is_complete, retry_at = self._ended.get()
            self._window.end(download, is_complete=is_complete, retry_at=retry_at)
        looks = distance.LIMITS.min_shards
        for download in self._window.present():
            if download.life is Life.FAILED:
                if now >= download.retry_at:
                    self._window.plan_again(download)
            elif looks >= download.look_cost and download.can_go():
                looks -= download.look_cost  # only the next ones are looked at again
                if not download.is_here():
                    self._window.plan_again(download)

    def _start_downloads(self) -> None:
        # The end may come while this runs; downloads under way may have ended meanwhile, too.
        while not self._finished and (download := self._window.take()) is not None:
            if download.store.cache_size is not None and not download.located.is_in_place:
                # Eviction candidates must be judged by the same clock as this shard.
                self._write_plans(is_due=self._is_plan_late())
            use = reservation.with_margin(self._when(download.upcoming[0], self._position()), time.time())
            thread = threading.Thread(
                target=self._download,
                args=(download, list(download.upcoming), use),
                daemon=True,
                name="wids-prefetch-one",
            )
            self._downloading.add(thread)
            try:
                thread.start()
            except RuntimeError:  # no more threads
                self._downloading.discard(thread)
                self._ended.put((download, False, time.monotonic() + limits.LIMITS.again_seconds))
                return

    def _download(self, download: UpcomingShard, visits: Sequence[Visit], use: float) -> None:
        """In a separate thread: download one shard."""
        start = time.monotonic()
        is_complete, retry_at = False, None
        try:
            is_complete = download.bring(visits, after=use, is_cancelled=lambda: self._is_cancelled)
            if not is_complete and not download.is_cached():  # another process downloads it
                retry_at = time.monotonic() + limits.LIMITS.again_seconds
        except CacheFull:  # there may be space at any moment, but a large directory is not to be listed all the time
            now = time.monotonic()
            retry_at = now + max(10 * (now - start), limits.LIMITS.tick_seconds)
        except CancelledTransferError:
            retry_at = 0.0
        except WidsError as error:
            is_hopeless = not isinstance(error, FetchError) or isinstance(error, DAMAGE)
            retry_at = math.inf if is_hopeless else time.monotonic() + limits.LIMITS.failed_seconds
            emit(download.store.hooks, NotFetchedAhead(url=download.located.url, cause=str(error)))
        except Exception:  # noqa: BLE001 - the edge of a thread; who reads the shard meets the error itself
            retry_at = math.inf
            logger.exception("%s: cannot be downloaded ahead", download.located.url)
        finally:
            self._ended.put((download, is_complete, retry_at))
            self._downloading.discard(threading.current_thread())
            self._woken.put(None)

    def _when(self, visit: Visit, position: int) -> float:
        """Time at which a visit begins, in seconds since 1970."""
        return time.time() + self._seconds(max(visit.first - position, 0))

    def _seconds(self, positions: int) -> float:
        """Number of seconds in which so many indices are drawn."""
        return positions / (self._pace.rate or distance.LIMITS.first_rate)

    def _reads(self) -> int:
        """Number of samples of the shard lists that this process has read."""
        return sum(source.count_reads() for source in self._sources)

    def _burst(self, position: int) -> int:
        """Number of the drawn samples that may not have been read yet.

        A reader without workers reads what it draws: its first moments tell how fast it is, and not how far ahead.
        """
        read = self._reads() - self._read_before
        return self._pace.burst if read <= 0 else distance.own_burst(self._pace.burst, position - read)

    def _is_plan_late(self) -> bool:
        """True if the plan is old, or its times are off as the reader is farther than expected."""
        expected = self._seconds(self._position() - self._planned_at)
        return max(time.monotonic() - self._planned, expected) > limits.LIMITS.tick_seconds

    def _write_plans(self, *, is_due: bool = False) -> None:
        """Publish when upcoming shards are used, and which ones a loader that draws ahead may still have to read."""
        now, position = time.monotonic(), self._position()
        burst = self._burst(position)
        passed = sum(visit.last < position for visit, _ in self._window.visits)
        if now - self._planned < limits.LIMITS.plan_seconds and passed == self._passed and not is_due:
            return
        self._planned, self._planned_at, self._passed = now, position, passed
        uses: dict[str, dict[str, float]] = {}
        busy: dict[str, dict[str, float]] = {}
        for visit, download in self._window.visits:
            if download.located.is_in_place:
                continue
            directory, name = os.path.split(download.located.path)
            if visit.last >= position:
                uses.setdefault(directory, {}).setdefault(name, self._when(visit, position))
            else:  # counted from when an index was last drawn: a loader that waits has read the samples before
                left = self._seconds(visit.last + burst - position)
                busy.setdefault(directory, {})[name] = time.time() - (now - self._pace.moved) + left
        for directory in {*uses, *busy}:
            if directory not in self._plans and os.path.isdir(directory):
                self._plans[directory] = usage_hints.PlanFile(directory)
            if directory in self._plans:
                self._plans[directory].write(uses.get(directory, {}), busy.get(directory, {}), self._figures(directory))
            else:  # the first download makes it, perhaps that of a reader
                self._planned = -math.inf

    def _figures(self, directory: str) -> dict[str, dict[str, float]]:
        """Figures so far of the datasets whose shards go to a directory."""
        sources = [source for source in self._sources if source.directory in (None, directory)]
        return dict(figures for source in sources if (figures := source.figures()) is not None)

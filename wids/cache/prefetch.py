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
import operator
import os
import queue
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wids.cache import limits, usage_hints
from wids.cache.background import end_at_exit, join_threads
from wids.cache.upcoming import environ_int, ranks_of_node
from wids.errors import CacheFull, FetchError, WidsError
from wids.events import NotFetchedAhead, emit, format_size, logger
from wids.order.layout import Shards, inside_of
from wids.policy import prefetching
from wids.policy.prefetch_window import Life, PrefetchWindow
from wids.policy.prefetching import RateEstimator
from wids.transport.failures import DAMAGE, CancelledTransferError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from typing_extensions import Self

    from wids.cache.upcoming import Source, UpcomingShard
    from wids.order.layout import Visit
    from wids.order.permutation import Indices

_TICK_SECONDS, _PLAN_SECONDS, _AGAIN_SECONDS = 0.05, 2.0, 0.25


class Prefetcher:
    """Downloads upcoming shards, from a thread of its own, until it is ended or all are cached.

    Args:
        sources: the shard lists.
        visits: the upcoming visits to shards, in order, block by block; taken as needed, in the thread.
        position: how far the reader is, in positions of the visits.
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
        self._cancelled, self._woken, self._finished = threading.Event(), threading.Event(), False
        # Downloads, whether they brought their shard, and when to try again what failed.
        self._ended: queue.SimpleQueue[tuple[UpcomingShard, bool, float | None]] = queue.SimpleQueue()
        self._downloading: set[threading.Thread] = set()
        self._pace = RateEstimator(time.monotonic())
        self._window = PrefetchWindow(visits, sources, connections=prefetching.LIMITS.connections, mixed=mixed)
        self._planned, self._planned_at, self._passed = -_PLAN_SECONDS, 0, 0
        self._read_before = self._reads()
        self._thread = threading.Thread(target=self._run, daemon=True, name="wids-prefetch")
        with contextlib.suppress(RuntimeError):  # no more threads: shards are downloaded as they are needed
            self._thread.start()
            end_at_exit(self)

    def end(self, *, is_finished: bool, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """The reader has drawn its last index: finish the downloads under way; or it is gone: abandon them."""
        # Finalizers call this: see `OpenFile.__del__`.
        if is_ending() or os.getpid() != self._pid:
            return
        self._finished = True
        if not is_finished:
            self._cancelled.set()
        self._woken.set()

    def join(self, seconds: float | None = None) -> None:
        """Wait until its threads have ended, or for so long."""
        if os.getpid() != self._pid:
            return
        threads, current = [self._thread, *self._downloading.copy()], threading.current_thread()
        join_threads([each for each in threads if each is not current and each.ident is not None], seconds)

    # --- the thread

    def _run(self) -> None:
        try:
            self._woken.wait(limits.LIMITS.start_seconds)
            for source in self._sources:
                source.look_for_tables()
            while not (self._cancelled.is_set() or self._finished):
                self._look_ahead()
                self._start_downloads()
                self._write_plans()
                if self._window.is_exhausted and not self._window.visits:
                    break
                self._woken.wait(_TICK_SECONDS)
                self._woken.clear()
            self.join(limits.LIMITS.end_seconds if self._cancelled.is_set() else None)
        except Exception:  # noqa: BLE001 - the edge of a thread; reading goes on without it
            logger.exception("prefetching has ended; shards are downloaded as they are needed")
        finally:
            for plan in self._plans.values():
                plan.close()

    def _look_ahead(self) -> None:
        """Tell the window how far the reader is, and which shards are cached."""
        position, now = self._position(), time.monotonic()
        self._pace.note(position, now)
        self._window.advance(position, rate=self._pace.rate, read_before=position - self._burst(position))
        while not self._ended.empty():
            download, is_complete, retry_at = self._ended.get()
            self._window.end(download, is_complete=is_complete, retry_at=retry_at)
        looks = prefetching.LIMITS.min_shards
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
            if download.store.cache_size is not None and not download.is_in_place:
                # Eviction candidates must be judged by the same clock as this shard.
                self._write_plans(is_due=self._is_plan_late())
            use = prefetching.with_margin(self._when(download.upcoming[0], self._position()), time.time())
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
                self._ended.put((download, False, time.monotonic() + _AGAIN_SECONDS))
                return

    def _download(self, download: UpcomingShard, visits: Sequence[Visit], use: float) -> None:
        """In a thread of its own: download one shard."""
        start = time.monotonic()
        is_complete, retry_at = False, None
        try:
            is_complete = download.bring(visits, after=use, is_cancelled=self._cancelled.is_set)
            if not is_complete and not download.is_cached():  # another process downloads it
                retry_at = time.monotonic() + _AGAIN_SECONDS
        except CacheFull:  # there may be space at any moment, but a large directory is not to be listed all the time
            now = time.monotonic()
            retry_at = now + max(10 * (now - start), _TICK_SECONDS)
        except CancelledTransferError:
            retry_at = 0.0
        except WidsError as error:
            is_hopeless = not isinstance(error, FetchError) or isinstance(error, DAMAGE)
            retry_at = math.inf if is_hopeless else time.monotonic() + limits.LIMITS.failed_seconds
            emit(download.store.hooks, NotFetchedAhead(url=download.shard.url, cause=str(error)))
        except Exception:  # noqa: BLE001 - the edge of a thread; who reads the shard meets the error itself
            retry_at = math.inf
            logger.exception("%s: cannot be downloaded ahead", download.shard.url)
        finally:
            self._ended.put((download, is_complete, retry_at))
            self._downloading.discard(threading.current_thread())
            self._woken.set()

    def _when(self, visit: Visit, position: int) -> float:
        """When a visit begins, in seconds since 1970."""
        return time.time() + self._seconds(max(visit.first - position, 0))

    def _seconds(self, positions: int) -> float:
        """In which so many are drawn."""
        return positions / (self._pace.rate or prefetching.LIMITS.first_rate)

    def _reads(self) -> int:
        """How many samples of the shard lists this process has read."""
        return sum(source.reads() for source in self._sources if source.reads is not None)

    def _burst(self, position: int) -> int:
        """How many of the drawn samples may not have been read yet.

        A reader without workers reads what it draws: its first moments tell how fast it is, and not how far ahead.
        """
        read = self._reads() - self._read_before
        return self._pace.burst if read <= 0 else prefetching.own_burst(self._pace.burst, position - read)

    def _is_plan_late(self) -> bool:
        """Whether the plan is old, or its times are off as the reader is farther than expected."""
        expected = self._seconds(self._position() - self._planned_at)
        return max(time.monotonic() - self._planned, expected) > _TICK_SECONDS

    def _write_plans(self, *, is_due: bool = False) -> None:
        """Publish when upcoming shards are used, and which ones a loader that draws ahead may still have to read."""
        now, position = time.monotonic(), self._position()
        burst = self._burst(position)
        passed = sum(visit.last < position for visit, _ in self._window.visits)
        if now - self._planned < _PLAN_SECONDS and passed == self._passed and not is_due:
            return
        self._planned, self._planned_at, self._passed = now, position, passed
        uses: dict[str, dict[str, float]] = {}
        busy: dict[str, dict[str, float]] = {}
        for visit, download in self._window.visits:
            if download.is_in_place:
                continue
            directory, name = os.path.split(download.path)
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

    def _figures(self, directory: str) -> dict[str, dict[str, float]]:
        """What the datasets whose shards go to a directory have done so far."""
        found: dict[str, dict[str, float]] = {}
        for source in self._sources:
            if source.figures is not None and source.directory in (None, directory):
                name, figures = source.figures()
                found[name] = figures if source.cache_size is None else {**figures, "cache_size": source.cache_size}
        return found


class Ahead:
    """Indices to iterate over, once, whose shards are downloaded ahead of those drawn.

    Args:
        dataset: see `prefetch`.
        indices: ints within the dataset.
    """

    def __init__(self, dataset: Any, indices: list[int]) -> None:
        self._rest = iter(indices)
        count = len(indices)
        rest = self._rest
        self._prefetcher = prefetch(
            dataset,
            lambda: (
                np.asarray(indices[lo : lo + prefetching.LIMITS.block], np.int64)
                for lo in range(0, count, prefetching.LIMITS.block)
            ),
            position=lambda: count - operator.length_hint(rest),
        )

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        try:
            return next(self._rest)
        except StopIteration:
            self._end(is_finished=True)
            raise

    def __length_hint__(self) -> int:
        return operator.length_hint(self._rest)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Download nothing more, and abandon the downloads under way."""
        self._end(is_finished=False)

    def _end(self, *, is_finished: bool) -> None:
        found, self._prefetcher = getattr(self, "_prefetcher", None), None
        if found is not None:
            found.end(is_finished=is_finished)


def prefetch(
    dataset: Any,
    blocks: Callable[[], Iterator[Indices]],
    *,
    position: Callable[[], int],
    mixed: Sequence[tuple[int, int, int]] = (),
) -> Prefetcher | None:
    """Download the shards of the shard lists underneath a dataset ahead; None if there are none to download.

    Warns, once for each dataset, of a limit that does not hold the shards that are read at a time and the next ones.

    Args:
        dataset: see `wids.order.layout.Shards`; shard lists say whether they want this (`wids.order.layout.Inside`).
        blocks: begins the sequence of indices that will be read, in blocks: (n,) each.
        position: how many of them were drawn.
        mixed: (first index, last index + 1, how many shards of these are read at a time), as far as known.
    """
    try:
        found = Shards(dataset, lambda leaf: _source_of(leaf) is not None)
    except Exception:  # noqa: BLE001 - a stranger's attributes may do anything, and there is nothing to download then
        return None
    sources = [_source_of(leaf) for leaf in found.datasets]
    _warn_of_limits(found, sources, mixed)
    for source in sources:
        source.announce()  # before the first index is handed out: workers look at that when they read it
    if not sources:
        return None
    at_a_time = sum(count for _, _, count in mixed)
    return Prefetcher(sources, found.visits(blocks()), position=position, mixed=at_a_time)


def _source_of(leaf: Any) -> Any:
    inside = inside_of(leaf)
    return None if inside is None else inside.prefetch_source()


def _warn_of_limits(found: Shards, sources: Sequence[Source], mixed: Sequence[tuple[int, int, int]]) -> None:
    """Warn of caches that are too small for the shards read through them, those of one directory together."""
    by_directory: dict[object, list[int]] = {}
    for number, source in enumerate(sources):
        by_directory.setdefault(source.directory or id(source.store), []).append(number)
    for numbers in by_directory.values():
        limits = [sources[number].cache_size for number in numbers]
        limit = min((limit for limit in limits if limit is not None), default=None)
        if limit is None or all(sources[number].store.is_limit_told for number in numbers):
            continue
        needs = []
        for first, last, count in mixed:
            shards = {number: total for number, total in found.count_shards(first, last).items() if number in numbers}
            if shards:
                sizes = [sources[number].shard_bytes for number in shards]
                needs.append(_Need(count, sum(shards.values()), max((size or 0 for size in sizes), default=0)))
        if _warn_of_limit(limit, needs):
            for number in numbers:
                sources[number].store.is_limit_told = True


class _Need(NamedTuple):
    """What one rank needs of a cache for one range of indices.

    Attributes:
        mixed: shards that it reads at a time. total: of how many. shard_bytes: of one, about; 0: not known.
    """

    mixed: int
    total: int
    shard_bytes: int


def _warn_of_limit(limit: int, needs: Sequence[_Need]) -> bool:
    """Whether a cache of ``limit`` bytes is too small, of which this warns."""
    ranks = ranks_of_node()
    shards = sum(prefetching.needed_shards(need.mixed, ranks, total=need.total) for need in needs)
    needed = sum(prefetching.needed_shards(need.mixed, ranks, total=need.total) * need.shard_bytes for need in needs)
    if limit >= needed:
        return False
    size = needed // shards
    window = limit // (sum(need.shard_bytes for need in needs) * ranks) - 1
    if environ_int("LOCAL_RANK") == 0:
        logger.warning(
            "cache_size (%s) has space for %d shards of about %s, and %d rank(s) of this node read %d at a time%s. "
            "Samples of shards that do not fit are read by byte ranges if a member table lies beside the shards (wids "
            "index create --members), else shards are downloaded again and again. cache_size=%s would do%s",
            *(format_size(limit), limit // size, format_size(size)),
            *(ranks, sum(min(need.mixed * ranks, need.total) for need in needs)),
            f", out of {len(needs)} sources" if len(needs) > 1 else "",
            f"{needed:_}",
            f", or window={window}" if window >= 1 else "",
        )
    return True

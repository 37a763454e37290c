"""Fetching shards before they are asked for.

Rules: whoever reads says which shards come, in order, and how far it is; a thread fetches them so, a bounded number of
bytes ahead, and further the faster they are used. It never costs what is needed sooner: it waits for no lock and
evicts only what is used later. What it cannot fetch is left to whoever needs it. The plan of what comes is written down
for the cleaners of all jobs. Everything here belongs to the process that began it; a forked child has none of it.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing.util
import operator
import os
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from wids.cache import usage_hints
from wids.errors import CacheFull, FetchError, WidsError
from wids.events import NotFetchedAhead, emit, logger
from wids.index import urls
from wids.order.layout import Shards
from wids.policy import prefetching
from wids.transport import filesystems
from wids.transport.failures import DAMAGE, CancelledTransferError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from typing_extensions import Self

    from wids.events import Hook
    from wids.index.shardlist import Shard
    from wids.order.layout import Visit
    from wids.order.permutation import Indices

_TICK_SECONDS, _PLAN_SECONDS, _AGAIN_SECONDS = 0.05, 2.0, 0.25
# A fetch that the network has failed comes again; by then it has been tried for minutes.
_FAILED_SECONDS = 30.0
_END_SECONDS = 5.0
_LEAST_UNDER_WAY = prefetching.LEAST_UNDER_WAY
# Who only lists the indices is done before anything is fetched.
_START_SECONDS = 0.02
# What a loader draws in its first moments is how far it reads ahead: so much of what was drawn may not have been read.
_BURST_SECONDS, _LEAST_BURST, _MOST_BURST = 0.1, prefetching.LEAST_BURST, 1 << 14
_FIRST_RATE = 1000.0  # positions a second, until it is known
_UNKNOWN_BYTES = 64 << 20


class Downloads(Protocol):
    """What downloads shards into a cache; see `wids.readers.store.Store`."""

    cache_size: int | None
    hooks: Sequence[Hook]

    def place(self, url: str) -> tuple[str, bool]:
        """Where the shard's bytes are or will be, and whether they are read in place."""

    def fetch_ahead(self, shard: Shard, *, after: float, is_cancelled: Callable[[], bool]) -> bool:
        """Download a shard that will be needed, unless it is there; whether this downloaded it."""


class Source(NamedTuple):
    """One shard list.

    Attributes:
        store: downloads its shards.
        find: shard number -> the shard.
        ahead_bytes: how far ahead to be at most; None: as far as is good.
    """

    store: Downloads
    find: Callable[[int], Shard]
    ahead_bytes: int | None


class _Job:
    """A shard that is coming: what is known of it, and what becomes of it."""

    __slots__ = ("again", "is_done", "is_failed", "is_in_place", "path", "shard", "size", "store", "thread")

    def __init__(self, store: Downloads, shard: Shard) -> None:
        self.store, self.shard = store, shard
        self.path, self.is_in_place = store.place(shard.url)
        self.is_done, self.is_failed = self.is_in_place, False
        self.size = _UNKNOWN_BYTES if shard.filesize is None else shard.filesize
        self.thread: threading.Thread | None = None
        self.again = 0.0

    def is_there(self) -> bool:
        """Whether there is a file that looks like it; whoever reads it looks closer."""
        try:
            found = os.stat(self.path).st_size
        except OSError:
            return False
        return self.shard.filesize in (None, found)


class Prefetcher:
    """Fetches what is coming, in a thread of its own, until it is ended or all is there.

    Args:
        sources: the shard lists.
        visits: the visits to shards that are coming, in order, block by block; taken as needed, in the thread.
        position: how far the reader is, in positions of the visits.
    """

    def __init__(
        self, sources: Sequence[Source], visits: Iterator[list[Visit]], *, position: Callable[[], int]
    ) -> None:
        self._sources, self._visits, self._position = sources, visits, position
        self._coming: deque[Visit] = deque()
        self._jobs: dict[tuple[int, int], _Job] = {}
        self._plans: dict[str, usage_hints.Plan] = {}
        self._pid = os.getpid()
        self._cancelled, self._woken, self._finished = threading.Event(), threading.Event(), False
        self._is_exhausted = False
        self._rate = 0.0  # positions a second
        self._began = self._moved = time.monotonic()
        self._last = 0
        self._seen: tuple[int, float] = (0, self._began)
        self._burst = _MOST_BURST
        self._planned, self._passed = -_PLAN_SECONDS, 0
        self._thread = threading.Thread(target=self._run, daemon=True, name="wids-prefetch")
        with contextlib.suppress(RuntimeError):  # no thread to be had: shards are fetched as they are needed
            self._thread.start()
            _register(self)

    def end(self, *, is_finished: bool) -> None:
        """The reader has drawn its last index: end what is under way; or has gone away: drop what is half there."""
        if os.getpid() != self._pid:
            return
        self._finished = True
        if not is_finished:
            self._cancelled.set()
        self._woken.set()

    def join(self, seconds: float | None = None) -> None:
        """Wait until its threads have ended, or for so long."""
        end = None if seconds is None else time.monotonic() + seconds
        threads = [self._thread, *(job.thread for job in list(self._jobs.values()) if job.thread is not None)]
        for thread in threads:
            if thread is not threading.current_thread() and os.getpid() == self._pid and thread.ident is not None:
                thread.join(None if end is None else max(end - time.monotonic(), 0.0))

    # --- the thread

    def _run(self) -> None:
        try:
            self._woken.wait(_START_SECONDS)
            while not (self._cancelled.is_set() or self._finished):
                self._look_ahead()
                self._start_fetches()
                self._write_plans()
                if self._is_exhausted and not self._coming:
                    break
                self._woken.wait(_TICK_SECONDS)
                self._woken.clear()
            self.join(_END_SECONDS if self._cancelled.is_set() else None)
        except Exception:  # noqa: BLE001 - the edge of a thread; reading goes on without it
            logger.exception("prefetching has ended; shards are fetched as they are needed")
        finally:
            for plan in self._plans.values():
                plan.close()

    def _look_ahead(self) -> None:
        """Take note of how far the reader is and how fast, and look at as much of what comes as matters."""
        position, now = self._position(), time.monotonic()
        if position != self._last:
            self._last, self._moved = position, now
        before, then = self._seen
        if now - then > 1.0:
            rate = (position - before) / (now - then)
            self._rate = rate if self._rate == 0.0 else 0.7 * self._rate + 0.3 * rate
            self._seen = position, now
        if now - self._began < _BURST_SECONDS:
            self._burst = min(max(position, _LEAST_BURST), _MOST_BURST)
        recent = position - self._burst
        while self._coming and self._coming[0].last < recent:
            self._coming.popleft()
        most = self._most_ahead()
        wanted = max(max(own, source.store.cache_size or 0) for own, source in zip(most, self._sources, strict=True))
        ahead = {
            (visit.dataset, visit.shard)
            for visit in self._coming
            if visit.last >= position and self._is_counted(self._sources[visit.dataset], visit, position)
        }
        size = sum(self._job(key).size for key in ahead)
        while not self._is_exhausted and len(self._coming) < prefetching.MOST_VISITS and size < wanted:
            block = next(self._visits, None)
            if block is None:
                self._is_exhausted = True
                break
            for visit in block:
                self._coming.append(visit)
                key = visit.dataset, visit.shard
                if key not in ahead:
                    ahead.add(key)
                    size += self._job(key).size
        known = {(visit.dataset, visit.shard) for visit in self._coming}
        for key in [key for key, job in self._jobs.items() if key not in known and job.thread is None]:
            del self._jobs[key]

    def _job(self, key: tuple[int, int]) -> _Job:
        job = self._jobs.get(key)
        if job is None:
            source = self._sources[key[0]]
            job = self._jobs[key] = _Job(source.store, source.find(key[1]))
        return job

    def _most_ahead(self) -> list[int]:
        """How many bytes ahead to be at most, in each shard list."""
        typical, ranks = self._typical_bytes(), max(_environ_int("LOCAL_WORLD_SIZE"), 1)
        return [
            prefetching.most_ahead(source.ahead_bytes, limit=source.store.cache_size, ranks=ranks, typical=typical)
            for source in self._sources
        ]

    def _typical_bytes(self) -> int:
        """The size of a shard, about."""
        known = [job.size for job in self._jobs.values() if job.shard.filesize is not None or job.is_done]
        return sum(known) // len(known) if known else _UNKNOWN_BYTES

    def _start_fetches(self) -> None:
        position, now = self._position(), time.monotonic()
        under_way = [job for job in self._jobs.values() if job.thread is not None]
        count, slots = len(under_way), sum(map(_slots, under_way))
        for visit, job in self._missing(position):
            if self._finished:  # since this round began; what is under way may have ended meanwhile, too
                return
            if job.thread is not None or now < job.again:
                continue
            if slots >= filesystems.CONNECTIONS and count >= _LEAST_UNDER_WAY:
                break
            if job.store.cache_size is not None:
                self._write_plans(is_due=True)  # what is evicted for it must be judged by the same clock as it is
            use = prefetching.with_margin(self._when(visit, position), time.time())
            thread = threading.Thread(target=self._fetch, args=(job, use), daemon=True, name="wids-prefetch-one")
            job.thread = thread
            try:
                thread.start()
            except RuntimeError:  # there are no more threads to be had
                job.thread, job.again = None, now + _AGAIN_SECONDS
                return
            count, slots = count + 1, slots + _slots(job)

    def _missing(self, position: int) -> Iterator[tuple[Visit, _Job]]:
        """What is within reach, and not there."""
        looks = prefetching.LEAST_SHARDS
        for visit, job in self._within_reach(position):
            if job.is_failed or job.is_in_place:
                continue
            if not job.is_done or looks:  # what comes soon is looked at again: others may have evicted it
                looks -= job.is_done
                job.is_done = job.is_there()
            if not job.is_done:
                yield visit, job

    def _within_reach(self, position: int) -> Iterator[tuple[Visit, _Job]]:
        """What comes, each shard once, as far ahead as is allowed and good.

        What is being read counts only where it takes room: where there is a bound.
        """
        good = prefetching.good_ahead(self._rate, typical=self._typical_bytes(), each=self._samples_a_shard())
        most, ahead = self._most_ahead(), [0] * len(self._sources)
        full: set[int] = set()  # one shard list that may not be as far ahead stops no other one
        seen: set[tuple[int, int]] = set()
        for visit in self._coming:
            key = visit.dataset, visit.shard
            if visit.last < position or key in seen or visit.dataset in full:
                continue
            seen.add(key)
            job, source = self._jobs[key], self._sources[visit.dataset]
            counted = job.size if self._is_counted(source, visit, position) else 0
            ahead[visit.dataset] += counted
            size = ahead[visit.dataset]
            if size > most[visit.dataset] or (source.ahead_bytes is None and size > good):
                full.add(visit.dataset)
                if len(full) == len(self._sources):
                    return
            else:
                yield visit, job

    def _is_counted(self, source: Source, visit: Visit, position: int) -> bool:
        """Whether a shard counts as ahead."""
        is_open = source.ahead_bytes is None and source.store.cache_size is None
        return not is_open or visit.first > position

    def _samples_a_shard(self) -> float:
        """Positions from one new shard to the next, about."""
        if len(self._coming) < 2:
            return 1.0
        shards = len({(visit.dataset, visit.shard) for visit in self._coming})
        return max((self._coming[-1].last - self._coming[0].first + 1) / shards, 1.0)

    def _fetch(self, job: _Job, use: float) -> None:
        """In a thread of its own: fetch one shard."""
        start = time.monotonic()
        try:
            fetched = job.store.fetch_ahead(job.shard, after=use, is_cancelled=self._cancelled.is_set)
            if fetched or job.is_there():
                job.is_done = True
            else:  # another process is at it
                job.again = time.monotonic() + _AGAIN_SECONDS
        except CacheFull:  # room may come at any moment, and a large directory is not looked through all the time
            now = time.monotonic()
            job.again = now + max(10 * (now - start), _TICK_SECONDS)
        except CancelledTransferError:
            pass
        except WidsError as error:
            job.is_failed = not isinstance(error, FetchError) or isinstance(error, DAMAGE)
            job.again = time.monotonic() + _FAILED_SECONDS
            emit(job.store.hooks, NotFetchedAhead(url=job.shard.url, cause=str(error)))
        except Exception:  # noqa: BLE001 - the edge of a thread; whoever needs the shard meets the error itself
            job.is_failed = True
            logger.exception("%s: cannot be fetched ahead", job.shard.url)
        finally:
            job.thread = None
            self._woken.set()

    def _when(self, visit: Visit, position: int) -> float:
        """When a visit begins, in seconds since 1970."""
        return time.time() + max(visit.first - position, 0) / (self._rate or _FIRST_RATE)

    def _write_plans(self, *, is_due: bool = False) -> None:
        """Write down what comes, and what a loader that draws ahead may still have to read."""
        now, position = time.monotonic(), self._position()
        passed = sum(visit.last < position for visit in self._coming)
        if now - self._planned < _PLAN_SECONDS and passed == self._passed and not is_due:
            return
        self._planned, self._passed = now, passed
        uses: dict[str, dict[str, float]] = {}
        busy: dict[str, dict[str, float]] = {}
        for visit in self._coming:
            job = self._jobs[visit.dataset, visit.shard]
            if job.is_in_place:
                continue
            directory, name = os.path.split(job.path)
            if visit.last >= position:
                uses.setdefault(directory, {}).setdefault(name, self._when(visit, position))
            else:  # counted from when something was last drawn: a loader that waits has read what came before
                left = (visit.last + self._burst - position) / (self._rate or _FIRST_RATE)
                busy.setdefault(directory, {})[name] = time.time() - (now - self._moved) + left
        for directory in {*uses, *busy}:
            if directory not in self._plans and os.path.isdir(directory):
                self._plans[directory] = usage_hints.Plan(directory)
            if directory in self._plans:
                self._plans[directory].write(uses.get(directory, {}), busy.get(directory, {}))


class Ahead:
    """Indices to iterate over, once, whose shards are fetched ahead of what was drawn.

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
                np.asarray(indices[lo : lo + prefetching.BLOCK], np.int64) for lo in range(0, count, prefetching.BLOCK)
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
        """Fetch no more; what is half there is dropped."""
        self._end(is_finished=False)

    def _end(self, *, is_finished: bool) -> None:
        found, self._prefetcher = getattr(self, "_prefetcher", None), None
        if found is not None:
            found.end(is_finished=is_finished)


def prefetch(
    dataset: Any, blocks: Callable[[], Iterator[Indices]], *, position: Callable[[], int]
) -> Prefetcher | None:
    """Fetch the shards of the shard lists underneath a dataset ahead; None if there is nothing to fetch.

    Args:
        dataset: see `wids.order.layout.Shards`; shard lists say with ``prefetch_source()`` whether they want this.
        blocks: begins the sequence of indices that will be read, in blocks: (n,) each.
        position: how many of them were drawn.
    """
    try:
        found = Shards(dataset, lambda leaf: leaf.prefetch_source() is not None)
    except Exception:  # noqa: BLE001 - a stranger's attributes may do anything, and there is nothing to fetch then
        return None
    sources = [leaf.prefetch_source() for leaf in found.datasets]
    return Prefetcher(sources, found.visits(blocks()), position=position) if sources else None


def _slots(job: _Job) -> int:
    """How many connections a fetch keeps busy."""
    length = filesystems.connections().range_bytes(urls.host_of(job.shard.url), job.size)
    return prefetching.slots(job.size, length, filesystems.CONNECTIONS)


def _environ_int(name: str) -> int:
    try:
        return int(os.environ.get(name, ""))
    except ValueError:
        return 0


_live: weakref.WeakSet[Prefetcher] = weakref.WeakSet()


def _register(prefetcher: Prefetcher) -> None:
    """See to it that no transfer is under way, and no part file there, when the interpreter ends."""
    atexit.unregister(_end_all)
    atexit.register(_end_all)
    if multiprocessing.parent_process() is not None:  # these leave without atexit
        multiprocessing.util.Finalize(None, _end_all, exitpriority=100)
    _live.add(prefetcher)


def _end_all() -> None:
    live = [prefetcher for prefetcher in list(_live) if prefetcher._pid == os.getpid()]  # noqa: SLF001 - of this module
    for prefetcher in live:
        prefetcher.end(is_finished=False)
    for prefetcher in live:
        prefetcher.join(_END_SECONDS)

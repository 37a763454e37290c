"""Shards that are read by byte ranges until they are in the cache, and their downloads in the background.

The reader of such a shard asks before each read whether that is still so. Mostly another process downloads it, the one
whose sampler was iterated; where none does, this one begins to, in a separate thread. Like every download ahead it
waits for no space, and evicts no shard that a job needs soon: where the cache has no space for a shard, its samples are
read by ranges for as long as that is so. A shard that cannot be downloaded is not read by ranges any more, so that its
reader gets the error.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from wids.core.cache import limits, usage_hints
from wids.core.files import forks
from wids.core.files.background import end_at_exit, join_threads
from wids.core.readers import access
from wids.core.transport import concurrency
from wids.core.transport.failures import CancelledTransferError
from wids.errors import CacheError, CacheFull
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from wids.core.cache.book import ShardRecord
    from wids.core.cache.located import Located
    from wids.core.cache.store import ShardCache

# Seconds between two looks for a process that downloads a shard.
_LOOK_SECONDS = 0.25


class _Downloads:
    """The downloads that one process has begun; their threads keep no reader alive.

    Attributes:
        threads: the threads under way.
        is_cancelled: they are to end.
    """

    def __init__(self) -> None:
        self.threads: set[threading.Thread] = set()
        self.is_cancelled = False  # not an event, because a finalizer sets it: see `wids.core.files.finalizers`


class _EarlyShard(NamedTuple):
    """A shard that is read early; see `wids.core.readers.access.EarlyRead`."""

    cache: ShardCache
    located: Located
    downloads: _Downloads

    @property
    def since(self) -> float:
        return self.located.record.since

    @property
    def is_own(self) -> bool:
        return self.located.record.thread is not None

    @property
    def is_downloading(self) -> bool:
        return self.cache.is_downloading(self.located)

    @property
    def is_planned(self) -> bool:
        """True if a live job's plan has it: that job downloads the shard, or has no space for it."""
        directory = self.located.directory
        use = usage_hints.read(directory.folder, directory.transients().plans).get(self.located.name)
        return use is not None and use < time.time() + access.PLANNED_SECONDS

    @property
    def has_room(self) -> bool:
        return len(self.downloads.threads) < concurrency.LIMITS.min_under_way


class Arrivals:
    """The shards that this process reads before they are in the cache.

    Args:
        cache: downloads them.
        is_prefetching: True if a sampler has begun to download ahead for this process.
    """

    def __init__(self, cache: ShardCache, is_prefetching: Callable[[], bool]) -> None:
        self._cache, self._is_prefetching = cache, is_prefetching
        self._begin()
        forks.reset_in_child(self)

    def _begin(self) -> None:
        self._downloads = _Downloads()
        self._pid = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {"_cache": self._cache, "_is_prefetching": self._is_prefetching}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()
        forks.reset_in_child(self)

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_ending() and (downloads := getattr(self, "_downloads", None)) is not None:
            downloads.is_cancelled = True

    def can_arrive(self) -> bool:
        """True if shards that are read early will be in the cache at some time.

        A worker of a loader may live for less time than a download takes, and would begin the same ones again and
        again: it reads early what the sampler's process downloads.
        """
        return multiprocessing.parent_process() is None or self._is_prefetching()

    def start_child(self) -> None:
        """Forget the threads, which are the parent's; see `wids.core.files.forks`."""
        self._begin()

    def note_opened(self, record: ShardRecord) -> None:
        """A shard was opened from the cache: it can be downloaded."""
        if record.thread is None:
            record.forget_download()

    def note_read(self, located: Located) -> None:
        """Have a shard downloaded that is read by ranges, if no process does.

        Args:
            located: the shard.
        """
        now, record = time.monotonic(), located.record
        record.since = min(record.since, now)
        if record.thread is not None or now < record.look_at:
            return
        record.look_at = now + _LOOK_SECONDS
        early = _EarlyShard(self._cache, located, self._downloads)
        try:
            is_due = access.begins_download(early, now)
        except (OSError, CacheError) as error:  # of the directory: the download fails, too, with advice
            logger.debug("%s: it cannot be seen whether it is being downloaded (%s)", located.url, error)
            is_due = early.has_room
        if is_due:
            self._begin_download(located)

    def _begin_download(self, located: Located) -> None:
        record = located.record
        thread = threading.Thread(
            target=_download,
            args=(self._cache, located, self._downloads),
            daemon=True,
            name="wids-download",
        )
        record.thread = thread
        self._downloads.threads.add(thread)
        try:
            thread.start()
        except RuntimeError:  # no more threads
            self._downloads.threads.discard(thread)
            record.thread = None
        else:
            end_at_exit(self)

    def end(self, *, is_finished: bool) -> None:
        """Wait for no download any more: end those under way, unless they may finish."""
        if not is_finished:
            self._downloads.is_cancelled = True

    def join(self, seconds: float | None = None) -> None:
        """Wait until its threads have ended, or for so long."""
        if os.getpid() == self._pid:
            join_threads([*self._downloads.threads.copy()], seconds)


def _download(cache: ShardCache, located: Located, downloads: _Downloads) -> None:
    """In a thread, which keeps no reader alive."""
    record = located.record
    try:  # not in place of a shard that a sampler soon needs: its prefetcher would download that one again
        after = time.time() + access.PLANNED_SECONDS
        cache.download_ahead(located, after=after, is_cancelled=lambda: downloads.is_cancelled)
    except CacheFull:  # listing a large directory takes long, and is not to be done all the time
        record.look_at = time.monotonic() + min(
            limits.LIMITS.full_seconds * 2**record.refusals, limits.LIMITS.max_full_seconds
        )
        record.refusals = min(record.refusals + 1, 10)
    except CancelledTransferError:
        return
    except Exception as error:  # noqa: BLE001 - the edge of a thread; the shard's reader gets the error itself
        logger.debug("%s: cannot be downloaded in the background (%s)", located.url, error)
        record.has_failed = True
    finally:
        record.thread = None
        downloads.threads.discard(threading.current_thread())

"""Shards that are read by byte ranges until they are in the cache, and their downloads in the background.

The reader of such a shard asks before each read whether that is still so. Mostly another process downloads it, the one
whose sampler was iterated; where none does, this one begins to, in a thread of its own. Like every download ahead it
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
from typing import TYPE_CHECKING, Any

from wids.cache import limits, usage_hints
from wids.cache.background import end_at_exit, join_threads
from wids.cache.directory import directory_of
from wids.errors import CacheError, CacheFull
from wids.events import logger
from wids.files import forks
from wids.policy import prefetching
from wids.transport.failures import CancelledTransferError

if TYPE_CHECKING:
    from collections.abc import Callable

    from wids.cache.store import ShardCache
    from wids.index.spec import Shard

# How often it is looked at whether a process downloads a shard.
_LOOK_SECONDS = 0.25
# A shard that a sampler will need within the first is not evicted here, and left to its prefetcher for the second.
_PLANNED_SECONDS, _PATIENCE_SECONDS = 60.0, 30.0


class _Arrival:
    """A shard on its way.

    Attributes:
        since: when it was read first. look_at: not to be looked at before. thread: its download in this process.
        refusals: how often there was no space for it. is_failed: it cannot be downloaded.
    """

    __slots__ = ("is_failed", "look_at", "refusals", "since", "thread")

    def __init__(self, now: float) -> None:
        self.since = self.look_at = now
        self.thread: threading.Thread | None = None
        self.refusals, self.is_failed = 0, False


class Arrivals:
    """The shards that this process reads before they are in the cache.

    Args:
        cache: downloads them.
        is_prefetching: whether a sampler has begun to download ahead what this process reads.
    """

    def __init__(self, cache: ShardCache, is_prefetching: Callable[[], bool]) -> None:
        self._cache, self._is_prefetching = cache, is_prefetching
        self._begin()
        forks.reset_in_child(self)

    def _begin(self) -> None:
        self._found: dict[str, _Arrival] = {}
        self._active: set[_Arrival] = set()  # those that this process downloads
        self._cancelled = threading.Event()
        self._pid = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {"_cache": self._cache, "_is_prefetching": self._is_prefetching}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()
        forks.reset_in_child(self)

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:  # see `wids.files.open_file`
        if not is_ending() and (cancelled := getattr(self, "_cancelled", None)) is not None:
            cancelled.set()

    def can_arrive(self) -> bool:
        """Whether shards that are read early will be in the cache at some time.

        A worker of a loader may live for less time than a download takes, and would begin the same ones again and
        again: it reads early what the sampler's process downloads.
        """
        return multiprocessing.parent_process() is None or self._is_prefetching()

    def start_child(self) -> None:
        """See `wids.files.forks`: the threads are the parent's."""
        self._begin()

    def has_failed(self, path: str) -> bool:
        """Whether a shard could not be downloaded, and was not opened since."""
        found = self._found.get(path)
        return found is not None and found.is_failed

    def note_opened(self, path: str) -> None:
        """A shard was opened from the cache: it can be downloaded."""
        found = self._found.get(path)
        if found is not None and found.thread is None:
            self._found.pop(path, None)

    def is_due(self, shard: Shard, path: str) -> bool:
        """Whether a shard is to be read by ranges now; begins its download if no process has.

        Args:
            shard: which.
            path: where it will be in the cache.
        """
        if os.path.exists(path):
            self._found.pop(path, None)
            return False
        now = time.monotonic()
        found = self._found.setdefault(path, _Arrival(now))
        if found.is_failed:
            return False
        if found.thread is None and now >= found.look_at:
            found.look_at = now + _LOOK_SECONDS
            self._download_unless_another_does(shard, path, found, now)
        return True

    def _download_unless_another_does(self, shard: Shard, path: str, found: _Arrival, now: float) -> None:
        try:
            if self._cache.is_downloading(path):
                return
            if now - found.since < _PATIENCE_SECONDS and _is_planned(path):
                return
        except (OSError, CacheError) as error:  # of the directory: the download fails likewise, and says what to do
            logger.debug("%s: it cannot be seen whether it is being downloaded (%s)", shard.url, error)
        if len(self._active) >= prefetching.LIMITS.min_under_way:
            return
        found.thread = threading.Thread(
            target=_download,
            args=(self._cache, shard, found, self._cancelled, self._active),
            daemon=True,
            name="wids-download",
        )
        self._active.add(found)
        try:
            found.thread.start()
        except RuntimeError:  # no more threads
            self._active.discard(found)
            found.thread = None
        else:
            end_at_exit(self)

    def end(self, *, is_finished: bool) -> None:
        """Wait for no download any more: end those under way, unless they may finish."""
        if not is_finished:
            self._cancelled.set()

    def join(self, seconds: float | None = None) -> None:
        """Wait until its threads have ended, or for so long."""
        if os.getpid() == self._pid:
            join_threads([thread for each in list(self._active) if (thread := each.thread) is not None], seconds)


def _download(
    cache: ShardCache, shard: Shard, found: _Arrival, cancelled: threading.Event, active: set[_Arrival]
) -> None:
    """In a thread, which keeps no reader alive."""
    try:  # not in place of a shard that a sampler soon needs: its prefetcher would download that one again
        cache.download_ahead(shard, after=time.time() + _PLANNED_SECONDS, is_cancelled=cancelled.is_set)
    except CacheFull:  # listing a large directory takes long, and is not to be done all the time
        found.look_at = time.monotonic() + min(
            limits.LIMITS.full_seconds * 2**found.refusals, limits.LIMITS.max_full_seconds
        )
        found.refusals = min(found.refusals + 1, 10)
    except CancelledTransferError:
        return
    except Exception as error:  # noqa: BLE001 - the edge of a thread; the shard's reader gets the error itself
        logger.debug("%s: cannot be downloaded in the background (%s)", shard.url, error)
        found.is_failed = True
    finally:
        found.thread = None
        active.discard(found)


def _is_planned(path: str) -> bool:
    """Whether a live job says that it will read the shard soon: it downloads it, or has no space for it."""
    directory, name = directory_of(path)
    use = usage_hints.read(directory.own, directory.transients().plans).get(name)
    return use is not None and use < time.time() + _PLANNED_SECONDS

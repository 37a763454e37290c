"""Leases on cached shards, and the pools of this process that have some in a cache directory.

An open cached shard has a lease and cannot be evicted, so no process keeps one open that it does not read: pools that
lease shards in a directory register for it, and release them when a process needs the space. One thread looks at all
directories with leases for requests of other processes; it starts with the first lease and ends after the last. The
notes change under `wids.core.files.forks.lock`, and nothing slow or foreign is called under it: no file system that
hangs, no hook. A forked child begins with none.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from typing import Protocol

from wids.core.files import finalizers, forks, locks
from wids.core.files.open_file import OpenFile

# Seconds between two looks at a directory; the same, and for how long, after a request: mostly, others follow.
_IDLE_SECONDS, _BUSY_SECONDS, _SERIES_SECONDS = 0.25, 0.005, 1.0


class Lease(OpenFile):
    """An open shard of a cache, which no process evicts while it is open.

    It is a shared lock on the file; see `wids.core.files.locks`. A forked child closes its copy, which would keep it.
    """

    __slots__ = ()

    is_inherited = False

    def begin(self) -> bool:
        """Lease the open file; False: it is being evicted. Where files cannot be locked, it goes without."""
        return locks.lease(self.fd) is not False

    def release(self) -> None:
        """Close the file, and so end the lease, when the last read that is under way ends."""
        self.close()


class LeasingPool(Protocol):
    """A pool of open shards."""

    def has_leases(self, directory: str) -> bool:
        """True if a cached shard of ``directory`` is open."""

    def release_idle(self, directory: str) -> bool:
        """Close the cached shards of ``directory``, when a read that is under way ends; True if any existed."""

    def request_time(self, directory: str) -> int:
        """Time at which space was last requested in ``directory``, in nanoseconds; 0: never."""


class Leases:
    """The directories in which this process leases shards, and the pools that do."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Note nothing, as in a forked child, which has neither leases nor the thread."""
        self._pools: dict[str, weakref.WeakSet[LeasingPool]] = {}
        self._seen: dict[str, int] = {}  # the latest request that was answered, or came before the first lease
        self._thread: threading.Thread | None = None

    def register(self, directory: str, pool: LeasingPool) -> None:
        """Note that ``pool`` has just leased a shard in ``directory``; the note is dropped after its last one."""
        when = None if directory in self._seen else pool.request_time(directory)
        with forks.lock:
            self._pools.setdefault(directory, weakref.WeakSet()).add(pool)
            if when is not None:
                self._seen.setdefault(directory, when)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, daemon=True, name="wids-leases")
                with contextlib.suppress(RuntimeError):  # no thread can start: leases end when shards are closed
                    self._thread.start()

    def release(self, directory: str) -> bool:
        """Have all pools close leased shards in ``directory`` that they are not reading; True if there were any."""
        return sum(pool.release_idle(directory) for pool in self._pools_of(directory)) > 0

    def _watch(self) -> None:
        """Pass on requests of other processes, as long as anything is leased."""
        # A process that has just begun to lease, or has released all its leases, may be asked (again) in a moment.
        busy_until = time.monotonic() + _SERIES_SECONDS
        while self._drop_unused():
            finalizers.do_left()  # leases of files that were forgotten
            time.sleep(_BUSY_SECONDS if time.monotonic() < busy_until else _IDLE_SECONDS)
            if self._answer():
                busy_until = time.monotonic() + _SERIES_SECONDS

    def _answer(self) -> bool:
        """Release idle leases in directories where space was requested since the last look; True if there is one."""
        asked = []
        for directory in list(self._pools):
            for pool in self._pools_of(directory)[:1]:
                when = pool.request_time(directory)
                if self._seen.setdefault(directory, when) != when:
                    self._seen[directory] = when
                    asked.append(directory)
        for directory in asked:
            self.release(directory)
        return bool(asked)

    def _drop_unused(self) -> bool:
        """Drop the notes of pools that lease nothing any more; False: none is left, and the thread is to end."""
        with forks.lock:
            for directory, pools in list(self._pools.items()):
                pools.difference_update([pool for pool in pools if not pool.has_leases(directory)])
                if not pools:
                    del self._pools[directory]
                    self._seen.pop(directory, None)
            is_used = bool(self._pools)
            if not is_used:
                self._thread = None
        return is_used

    def _pools_of(self, directory: str) -> list[LeasingPool]:
        with forks.lock:
            return list(self._pools.get(directory, ()))


leases: Leases = Leases()
forks.call_in_child(leases.begin)

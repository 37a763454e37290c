"""Which pools of this process lease shards in which cache directory; they close them when a process needs the space.

Rules: an open cached shard cannot be evicted, so no process keeps one open that it does not read. One thread looks at
all directories with leases for requests of other processes; it starts with the first lease and ends after the last.
The notes change under `wids.osfiles.forks.held`, and nothing slow or foreign is called under it: no file system that
hangs, no hook. A forked child begins with none.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from typing import Protocol

from wids.osfiles import forks

# How often a directory is looked at, and for how long more often: one request is mostly followed by others.
_IDLE_SECONDS, _BUSY_SECONDS, _SERIES_SECONDS = 0.25, 0.05, 1.0


class Holder(Protocol):
    """A pool of open shards."""

    def has_leases(self, directory: str) -> bool:
        """Whether a cached shard of ``directory`` is open."""

    def release_idle(self, directory: str) -> None:
        """Close the cached shards of ``directory``; one that is being read closes afterwards."""

    def request_time(self, directory: str) -> int:
        """When space was last asked for in ``directory``, in nanoseconds; 0: never."""


class Leases:
    """The directories in which this process leases shards, and the pools that do."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Note nothing, as in a forked child, which has neither leases nor the thread."""
        self._holders: dict[str, weakref.WeakSet[Holder]] = {}
        self._seen: dict[str, int] = {}  # the latest request that was answered, or came before the first lease
        self._thread: threading.Thread | None = None

    def register(self, directory: str, holder: Holder) -> None:
        """Note that ``holder`` has just leased a shard in ``directory``; the note is dropped after its last one."""
        when = None if directory in self._seen else holder.request_time(directory)
        with forks.held:
            self._holders.setdefault(directory, weakref.WeakSet()).add(holder)
            if when is not None:
                self._seen.setdefault(directory, when)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, daemon=True, name="wids-leases")
                with contextlib.suppress(RuntimeError):  # no thread to be had: leases then end when shards are closed
                    self._thread.start()

    def release(self, directory: str) -> None:
        """Have all pools close what they lease in ``directory`` and are not reading."""
        for holder in self._holders_of(directory):
            holder.release_idle(directory)

    def _watch(self) -> None:
        """Pass on what other processes ask for, as long as anything is leased."""
        busy_until = 0.0
        while self._drop_unused():
            time.sleep(_BUSY_SECONDS if time.monotonic() < busy_until else _IDLE_SECONDS)
            if self._answer():
                busy_until = time.monotonic() + _SERIES_SECONDS

    def _answer(self) -> bool:
        """Release what is leased where space was asked for since the last look; whether it was anywhere."""
        asked = []
        for directory in list(self._holders):
            for holder in self._holders_of(directory)[:1]:
                when = holder.request_time(directory)
                if self._seen.setdefault(directory, when) != when:
                    self._seen[directory] = when
                    asked.append(directory)
        for directory in asked:
            self.release(directory)
        return bool(asked)

    def _drop_unused(self) -> bool:
        """Drop the notes of pools that lease nothing any more; whether any are left. If not, the thread is to end."""
        dropped: list[tuple[Holder, str]] = []
        with forks.held:
            for directory, holders in list(self._holders.items()):
                unused = [holder for holder in holders if not holder.has_leases(directory)]
                dropped += [(holder, directory) for holder in unused]
                holders.difference_update(unused)
                if not holders:
                    del self._holders[directory]
                    self._seen.pop(directory, None)
            is_used = bool(self._holders)
            if not is_used:
                self._thread = None
        for holder, directory in dropped:  # what left the pool while its dataset had it at hand is leased until now
            holder.release_idle(directory)
        return is_used

    def _holders_of(self, directory: str) -> list[Holder]:
        with forks.held:
            return list(self._holders.get(directory, ()))


leases = Leases()

if hasattr(os, "register_at_fork"):  # where there are forks
    os.register_at_fork(after_in_child=leases.begin)

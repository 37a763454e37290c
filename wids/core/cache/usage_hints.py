"""The shards that live jobs will read from a cache directory, and when: one small file for each job.

Rules: a plan is locked by its job, so an unlocked one belongs to a job that is gone. It is replaced as a whole. It says
when each shard is used next, by the wall clock: guesses, good for choosing eviction candidates, and never needed.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import time
from typing import TYPE_CHECKING

import msgspec

from wids.core.cache import limits
from wids.core.cache.directory import PLAN_SUFFIX, CacheDirectory
from wids.core.files import atomic, forks, system
from wids.core.files.json_text import JsonParser
from wids.errors import CacheError, JsonError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# A plan that was not renewed for so long counts as left behind, where files cannot be locked.
_STALE_SECONDS = 600.0


class Said(msgspec.Struct):
    """The contents of a plan.

    Attributes:
        uses: see `PlanFile.write`.
        busy: see there.
        figures: work of the job's datasets so far, for people: a name for each -> figure -> number.
    """

    uses: dict[str, float]
    busy: dict[str, float]
    figures: dict[str, dict[str, float]] = {}


_PLANS = JsonParser(Said, is_plain=True)


# For the plans of this process.
_own_names: set[str] = set()
forks.call_in_child(_own_names.clear)


class PlanFile:
    """The plan of one job in one directory; the job closes it."""

    path: str

    def __init__(self, directory: str) -> None:
        self._directory = CacheDirectory(directory)
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}{PLAN_SUFFIX}"
        self.path = self._directory.staging(self._name)
        self._pid = os.getpid()
        self._fd = -1

    def write(
        self,
        uses: Mapping[str, float],
        busy: Mapping[str, float] | None = None,
        figures: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        """Replace what it says; a directory that cannot be written goes without.

        JSON has neither infinity nor names that are not Unicode, as a ``localname`` may give them: those are left out.

        Args:
            uses: name of a shard's file -> when it is used next, in seconds since 1970.
            busy: name -> the time of its last use, in the same form.
            figures: of each dataset, for people who look on; see `Said`.
        """
        said = Said(_what_can_be_told(uses), _what_can_be_told(busy or {}), {**(figures or {})})  # type: ignore[dict-item]
        data = msgspec.json.encode(said)
        try:
            # It is locked from its first moment on, so there is never a plan of ours that looks left behind.
            self._directory.make()
            part, fd = atomic.make_part(self.path)
        except (CacheError, OSError):
            return
        other, self._fd = self._fd, fd  # from here on `close` takes it back, whatever a signal raises
        try:
            self._directory.share(fd)
            system.write_all(fd, data, 0)
            os.replace(part, self.path)
            _own_names.add(self._name)
        except OSError:
            other, self._fd = fd, other
        finally:
            if other >= 0:
                os.close(other)
            with contextlib.suppress(OSError):  # published
                os.unlink(part)

    def close(self) -> None:
        """Take it back."""
        _own_names.discard(self._name)
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        try:
            if os.getpid() == self._pid:  # a forked child has a copy, and the plan is not its own
                with contextlib.suppress(OSError):
                    os.unlink(self.path)
        finally:
            os.close(fd)


class Uses(dict[str, float]):
    """Times at which shards are used next: name -> seconds since 1970.

    Attributes:
        busy_until: time at which the last one is free that another process has in use now, as far as known; 0: none.
    """

    busy_until: float = 0.0


def read(directory: str, names: Iterable[str]) -> Uses:
    """Times at which the jobs of a directory use each shard next, the earliest of all plans; now if it is in use."""
    return merge(read_each(directory, names))


def read_each(directory: str, names: Iterable[str]) -> list[tuple[str, Said]]:
    """(file name, contents) of each plan whose job is still running."""
    contents = ((name, _read_one(os.path.join(directory, name))) for name in names)
    return [(name, said) for name, said in contents if said is not None]


def merge(plans: Iterable[tuple[str, Said]]) -> Uses:
    """`read` of plans that were read."""
    uses, now = Uses(), time.time()
    for name, said in plans:
        is_own = name in _own_names
        for shard, when in said.uses.items():
            uses[shard] = min(when, uses.get(shard, when))
        for shard, until in said.busy.items():
            if until > now:
                uses[shard] = min(now, uses.get(shard, now))
                if not is_own:
                    uses.busy_until = max(uses.busy_until, until)
    return uses


def _read_one(path: str) -> Said | None:
    """The contents of one plan; None if its job has ended, or the file is not a plan."""
    for _ in range(2):
        try:
            fd, status = atomic.open_file(path)
        except OSError:
            break
        with open(fd, "rb") as file:
            if is_abandoned(fd):
                if os.fstat(fd).st_nlink:
                    break
                continue  # its job has replaced it since it was opened
            try:
                return _PLANS.parse(file.read()) if status.size <= limits.LIMITS.max_hint_bytes else None
            except (JsonError, OSError):  # cut short, of another version
                break
    return None


def _what_can_be_told(times: Mapping[str, float]) -> dict[str, float]:
    def is_text(name: str) -> bool:
        return name.isascii() or name == name.encode("utf-8", "ignore").decode()

    return {name: when for name, when in times.items() if math.isfinite(when) and is_text(name)}


def is_abandoned(fd: int, *, stale_seconds: float = _STALE_SECONDS) -> bool:
    """True if an open file that its writer would have locked has no live writer; it is locked then."""
    is_free = system.try_lock(fd, is_shared=False)
    return time.time() - os.fstat(fd).st_mtime > stale_seconds if is_free is None else is_free

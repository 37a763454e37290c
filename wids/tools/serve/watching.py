"""A cache directory, looked at again and again while jobs use it: for people.

Rules: looking makes no file and takes no lock, so that it neither blocks who evicts nor has to wait. A large directory
is listed by its names alone, and only when it has changed; each new file is examined by itself. Who has a shard open
is what the kernel's list of locks says (Linux), else what lsof says of some shards; processes of other containers are
not seen. Times of use are those of the open shards at once, of all others in turn.
"""

from __future__ import annotations

import heapq
import itertools
import math
import os
import re
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from wids.core.cache import contents, usage_hints
from wids.core.cache.directory import CLEANUP_LOCK, KEEP_SUFFIX, PART, CacheDirectory
from wids.core.files import holders, system
from wids.core.tables import table as tables
from wids.errors import CacheError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wids.core.files.holders import Holder

_MAX_EVENTS = 200
# The most shards whose last use is read each time, and that one call of lsof names.
_IN_TURN, _TOOL_SHARDS = 1000, 200
_FEW = 2000
_PID = re.compile(r"([0-9]+)-")


class WatchLimits(NamedTuple):
    """Costs that a watch may have; the default is in force, and tests put another one in its place.

    Attributes:
        listing_pauses: a directory is not listed again before so many times the seconds that listing it took.
        tool_seconds: how often lsof is asked, where it has to be.
        sort_seconds: of many shards, the most recently used ones are determined again so often.
    """

    listing_pauses: float = 20.0
    tool_seconds: float = 10.0
    sort_seconds: float = 5.0


class WatchedShard(msgspec.Struct, kw_only=True):
    """A cached shard.

    Attributes:
        number: of this watch, for as long as it lasts.
        name: its file's.
        size_bytes: with its member table.
        arrived_seconds: time of its download, in seconds since 1970.
        used_seconds: time of its last use, in seconds since 1970.
        is_kept: it is marked as not to be evicted.
        inode: of its file.
    """

    number: int
    name: str
    size_bytes: int
    arrived_seconds: float
    used_seconds: float
    is_kept: bool
    inode: int


class WatchedDownload(msgspec.Struct, frozen=True, kw_only=True):
    """A download under way, or left behind.

    Attributes:
        name: the shard's.
        pid: of the process that began it.
        size_bytes: its final size; if no index has it, the received bytes until the server has answered.
        written_bytes: its part on the disk.
        is_locked: its writer is there; None: that is not known from here.
    """

    name: str
    pid: int
    size_bytes: int
    written_bytes: int
    is_locked: bool | None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A shard came or went.

    Attributes:
        number: of the change, ascending.
        seconds: when, since 1970.
        name: the shard's.
        size_bytes: of a shard that came, or that was seen before it went; None: not known.
        has_come: it came; else it was evicted, cleaned, or deleted.
        is_noted: by a cache; else others did it.
    """

    number: int
    seconds: float
    name: str
    size_bytes: int | None
    has_come: bool
    is_noted: bool


class JobFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a dataset in the plan of a live job.

    Attributes:
        pid: of its process.
        figures: `wids.core.collection.stats.Stats` as numbers, of the process and its loader's workers, and
            ``cache_size`` where it has a limit.
    """

    pid: int
    figures: dict[str, float]


class Look(NamedTuple):
    """The result of one scan of a directory.

    Attributes:
        seconds: its time, since 1970.
        exists: there is such a directory.
        shards: their number.
        used_bytes: all that counts against a limit.
        strangers: files that no cache made.
        free_bytes: those that its file system, or the one where it will be, has left.
        disk_bytes: size of that file system.
        shown: some shards: open ones, those whose next use comes first, those used last.
        uses: name -> when a live job uses it next, in seconds since 1970.
        readers: name -> ids of the processes that have it open.
        holders: those processes, and those of ``jobs`` that can be seen.
        sees_all: the readers of all shards are known, not only of those shown.
        downloads: those under way.
        changes: the newest one last.
        jobs: live ones that say something of themselves.
        plans: number of live jobs that have a plan here.
        listed_seconds: age of the list of names.
    """

    seconds: float
    exists: bool
    shards: int
    used_bytes: int
    strangers: int
    free_bytes: int
    disk_bytes: int
    shown: list[WatchedShard]
    uses: dict[str, float]
    readers: dict[str, list[int]]
    holders: list[Holder]
    sees_all: bool
    downloads: list[WatchedDownload]
    changes: list[Change]
    jobs: list[JobFigures]
    plans: int
    listed_seconds: float


class CacheWatch:
    """Looks at one cache directory. For one thread at a time.

    Args:
        directory: which; it may not exist.
        most: shards that a look shows.
    """

    limits: WatchLimits = WatchLimits()

    def __init__(self, directory: str, *, most: int = 200) -> None:
        self._home, self._most = CacheDirectory(os.path.abspath(os.path.expanduser(directory))), most
        self._numbers, self._events = itertools.count(1), itertools.count(1)
        self._changes: deque[Change] = deque(maxlen=_MAX_EVENTS)
        self._log = contents.Followed(self._home)
        self._forget()

    def _forget(self) -> None:
        self._shards: dict[str, WatchedShard] = {}
        self._used_bytes = self._other_bytes = self._strangers = 0
        self._states: tuple[int, int] | None = None
        self._list_at = self._listed = self._sort_at = 0.0
        self._recent: list[WatchedShard] = []
        self._turn: list[str] = []
        self._asked_at, self._asked = -math.inf, list[holders.Holder]()
        self._noted: dict[str, bool] = {}
        self._remembered: set[str] = set()

    def look(self) -> Look:
        """The present contents.

        Raises:
            CacheError: it is no directory, or cannot be listed.
        """
        try:
            return self._look()
        except OSError as error:
            raise CacheError(f"{self._home.path}: cannot be listed ({error})", path=self._home.path) from error

    def _look(self) -> Look:
        home, now = self._home, time.time()
        exists = os.path.isdir(home.path)
        if not exists and os.path.lexists(home.path):
            raise CacheError(f"{home.path}: is not a directory; name a cache directory", path=home.path)
        self._follow()
        self._list()
        transients = home.transients()
        plans = usage_hints.read_each(home.folder, transients.plans)
        uses = {name: when for name, when in usage_hints.merge(plans).items() if name in self._shards}
        parts, part_bytes = self._downloads(transients.parts)
        locked = holders.list_locks(home.path) if exists else {}
        downloads = [
            each if locked is None else msgspec.structs.replace(each, is_locked=inode in locked)
            for each, inode in parts
        ]
        readers, found = self._readers(locked, uses)
        jobs = _figures(plans)
        seen = {holder.pid for holder in found}.union(job.pid for job in jobs)
        if locked is not None:  # a process of another container may have the number of one of ours, which has no lock
            own = set(itertools.chain.from_iterable(locked.values()))
            found += [holders.describe(pid, []) for pid in sorted(seen & own - {holder.pid for holder in found})]
        self._look_again([*readers, *uses])
        free, total = system.free_bytes(_nearest(home.path))
        return Look(
            seconds=now,
            exists=exists,
            shards=len(self._shards),
            used_bytes=self._used_bytes + self._other_bytes + part_bytes,
            strangers=self._strangers,
            free_bytes=free,
            disk_bytes=total,
            shown=self._choose(readers, uses),
            uses=uses,
            readers=readers,
            holders=found,
            sees_all=locked is not None,
            downloads=downloads,
            changes=list(self._changes),
            jobs=jobs,
            plans=len(plans),
            listed_seconds=time.monotonic() - self._listed,
        )

    # --- which shards there are

    def _follow(self) -> None:
        """Note what caches have written down since the last look."""
        for seconds, (name, size, remembered_bytes) in self._log.read():
            known, is_remembered = self._shards.get(name), name in self._remembered
            (self._remembered.add if remembered_bytes else self._remembered.discard)(name)
            if is_remembered and not size:
                continue  # its table was forgotten, some time after it was evicted
            gone = None if known is None else known.size_bytes
            self._note(name, seconds=seconds, size_bytes=size or gone, has_come=size > 0, is_noted=True)
            self._noted[name] = size > 0

    def _note(self, name: str, *, seconds: float, size_bytes: int | None, has_come: bool, is_noted: bool) -> None:
        self._changes.append(
            Change(
                number=next(self._events),
                seconds=seconds,
                name=name,
                size_bytes=size_bytes,
                has_come=has_come,
                is_noted=is_noted,
            )
        )

    def _list(self) -> None:
        """List the names if the directory has changed, and look at those that are new."""
        home = self._home
        # Before they are listed: a file that appears meanwhile is found the next time.
        states = _changed_ns(home.path), _changed_ns(home.tables)
        start = time.monotonic()
        if states == self._states and all(states) and not self._noted:
            return
        if start < self._list_at:
            return
        is_first = self._states is None
        here, saved = _names(home.path), _names(home.tables)
        own = {name for name in here if name + tables.SUFFIX in saved}
        for name in self._shards.keys() - own:
            gone = self._shards.pop(name)
            self._used_bytes -= gone.size_bytes
            if not is_first and self._noted.get(name) is not False:
                self._note(name, seconds=time.time(), size_bytes=gone.size_bytes, has_come=False, is_noted=False)
        came = {name for name, has_come in self._noted.items() if has_come}  # some in the place of others
        for name in (own - self._shards.keys()) | (own & came):
            shard = self._see(name)
            if shard is not None and not is_first and not self._noted.get(name):
                self._note(
                    name, seconds=shard.arrived_seconds, size_bytes=shard.size_bytes, has_come=True, is_noted=False
                )
        for name, shard in self._shards.items():
            shard.is_kept = name + KEEP_SUFFIX in saved
        self._strangers = len(here - own - {CLEANUP_LOCK})
        others = [os.path.join(home.tables, name) for name in saved if _shard_of(name) not in self._shards]
        remembered = _names(home.remembered)
        others += [os.path.join(home.remembered, name) for name in remembered]
        self._remembered = set(map(_shard_of, remembered))
        self._other_bytes = sum(map(_size_of, others))
        end, self._noted = time.monotonic(), {}
        self._states, self._listed, self._sort_at = states, end, 0.0
        took = 0.0 if is_first else end - start  # at first all are looked at
        self._list_at = end + self.limits.listing_pauses * took

    def _see(self, name: str) -> WatchedShard | None:
        """Look at a shard that is new, or new in its place; None: it is gone again, or no file."""
        try:
            status, table = os.lstat(self._home.shard(name)), os.lstat(self._home.table(name))
        except OSError:
            return None
        before = self._shards.get(name)
        shard = self._shards[name] = WatchedShard(
            number=next(self._numbers) if before is None else before.number,
            name=name,
            size_bytes=status.st_size + table.st_size,
            arrived_seconds=status.st_mtime_ns / 1e9,
            used_seconds=table.st_mtime_ns / 1e9,
            is_kept=False,
            inode=status.st_ino,
        )
        self._used_bytes += shard.size_bytes - (0 if before is None else before.size_bytes)
        return shard

    def _look_again(self, names: Iterable[str]) -> None:
        """Find out when shards were used last: these, those that the last look showed, and some in turn."""
        if not self._turn:
            self._turn = list(self._shards)
        some, self._turn = self._turn[:_IN_TURN], self._turn[_IN_TURN:]
        for name in {*names, *some, *(shard.name for shard in self._recent)}:
            shard = self._shards.get(name)
            if shard is not None:
                shard.used_seconds = max(shard.used_seconds, _changed_ns(self._home.table(name)) / 1e9)

    def _choose(self, readers: dict[str, list[int]], uses: dict[str, float]) -> list[WatchedShard]:
        """The shards that are shown."""
        now = time.monotonic()
        if len(self._shards) <= _FEW or now >= self._sort_at:
            self._sort_at = now + self.limits.sort_seconds
            self._recent = heapq.nlargest(self._most, self._shards.values(), key=lambda each: each.used_seconds)
        coming = heapq.nsmallest(self._most, uses, key=uses.__getitem__)
        names = dict.fromkeys([*readers, *coming, *(shard.name for shard in self._recent)])
        found = (self._shards.get(name) for name in names)
        return list(itertools.islice((shard for shard in found if shard is not None), self._most))

    # --- who does what

    def _downloads(self, parts: Iterable[str]) -> tuple[list[tuple[WatchedDownload, int]], int]:
        """(each with its part file's inode, the bytes of all part files)."""
        found, total = [], 0
        for part in parts:
            match = PART.fullmatch(part)
            try:
                status = os.lstat(self._home.staging(part))
            except OSError:  # it is published, or given up
                continue
            total += status.st_size
            if match is None or match["name"].endswith(tables.SUFFIX):
                continue
            written = min(getattr(status, "st_blocks", 0) * 512, status.st_size)
            pid = int(match["pid"])
            one = WatchedDownload(
                name=match["name"], pid=pid, size_bytes=status.st_size, written_bytes=written, is_locked=None
            )
            found.append((one, status.st_ino))
        return found, total

    def _readers(
        self, locked: dict[int, list[int]] | None, uses: dict[str, float]
    ) -> tuple[dict[str, list[int]], list[Holder]]:
        """(name -> ids of the processes that have it open, those processes)."""
        if locked is None:
            if time.monotonic() - self._asked_at >= self.limits.tool_seconds and self._shards:
                names = [shard.name for shard in self._choose({}, uses)][:_TOOL_SHARDS]
                self._asked = holders.find_holders(map(self._home.shard, names))
                self._asked_at = time.monotonic()
            readers: dict[str, list[int]] = {}
            for holder in self._asked:
                for path in holder.files:
                    readers.setdefault(os.path.basename(path), []).append(holder.pid)
            return {name: pids for name, pids in readers.items() if name in self._shards}, self._asked
        readers = {shard.name: locked[shard.inode] for shard in self._shards.values() if shard.inode in locked}
        files: dict[int, list[str]] = {}
        for name, pids in readers.items():
            for pid in pids:
                files.setdefault(pid, []).append(name)
        return readers, [holders.describe(pid, own) for pid, own in sorted(files.items())]


def _figures(plans: Iterable[tuple[str, usage_hints.Said]]) -> list[JobFigures]:
    """The reports of jobs, each dataset once: several samplers of a process may read one."""
    found: dict[tuple[int, str], dict[str, float]] = {}
    for name, said in plans:
        match = _PID.match(name)
        for token, figures in said.figures.items():
            before = found.setdefault((int(match[1]) if match else 0, token), {})
            before.update({key: max(value, before.get(key, value)) for key, value in figures.items()})
    return [JobFigures(pid=pid, figures=figures) for (pid, _), figures in sorted(found.items())]


def _names(directory: str) -> set[str]:
    """The names of the regular files; none if the directory does not exist."""
    try:
        with os.scandir(directory) as found:
            return {item.name for item in found if item.is_file(follow_symlinks=False)}
    except FileNotFoundError:
        return set()


def _changed_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _size_of(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _shard_of(name: str) -> str:
    return name.removesuffix(tables.SUFFIX).removesuffix(KEEP_SUFFIX)


def _nearest(path: str) -> str:
    """The path, or the nearest folder above it that exists."""
    while not os.path.isdir(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path

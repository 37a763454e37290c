"""The shards in a cache directory, and the tables that it remembers, from a log: a download need not list it all.

Rules: the truth is the directory. Every process that publishes or deletes a shard, or forgets a remembered table,
appends a line to the log, with the directory's modification time afterwards. While the last line's time is the
directory's own, the log tells everything that happened since the directory was listed. When it is not (files were
made or deleted by others), when the last line is cut short (its process died before it wrote another: a coarse clock
shows no change then), and every ten minutes, the directory is listed again. What another user wrote into the log
never names a file outside the directory. All of it under the lock of `wids.core.cache.space`.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import secrets
import time
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from wids.core.cache import limits
from wids.core.cache.eviction import Entry
from wids.core.files import atomic, system

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from wids.core.cache.directory import CacheDirectory, Inventory


class LoggedChange(NamedTuple):
    """A line of the log: the present state of a shard.

    Attributes:
        name: the shard's.
        size_bytes: with its table; 0: it is gone.
        remembered_bytes: of its remembered table; 0: none.
    """

    name: str
    size_bytes: int
    remembered_bytes: int = 0


class _ByUse:
    """Files of one kind, with their sizes, and in the order of their last use.

    Args:
        path_of: name -> the file whose modification time is the last use.

    Attributes:
        bytes: of all of them.
    """

    bytes: int

    def __init__(self, path_of: Callable[[str], str]) -> None:
        self._path_of = path_of
        self.fill([])

    def __len__(self) -> int:
        return len(self._sizes)

    def fill(self, entries: Iterable[Entry]) -> None:
        """There are these, and no others."""
        listed = list(entries)
        self._sizes = {entry.name: entry.size_bytes for entry in listed}
        self.bytes = sum(self._sizes.values())
        # (when it was used last, name); one that was used since is found again at its new time.
        self._by_use = [(entry.used_ns, entry.name) for entry in listed]
        heapq.heapify(self._by_use)

    def note(self, name: str, size: int) -> None:
        """There is one of this size now; 0: none exists."""
        self.bytes += size - self._sizes.pop(name, 0)
        if size:
            self._sizes[name] = size
            heapq.heappush(self._by_use, (0, name))  # its time is looked up when its turn comes

    def bytes_without(self, may_go: Callable[[str], bool]) -> int:
        """The sum over those for which this is False."""
        return sum(size for name, size in self._sizes.items() if not may_go(name))

    def oldest_first(self) -> Generator[Entry, None, None]:
        """All of them, least recently used first; looks at no more than are requested."""
        passed: list[tuple[int, str]] = []
        seen: set[str] = set()
        try:
            while self._by_use:
                used, name = heapq.heappop(self._by_use)
                if name not in self._sizes or name in seen:
                    continue
                try:
                    last = os.stat(self._path_of(name)).st_mtime_ns
                except FileNotFoundError:  # deleted by others, or no longer the cache's own
                    self.note(name, 0)
                    continue
                if last > used:
                    heapq.heappush(self._by_use, (last, name))
                    continue
                seen.add(name)
                passed.append((used, name))
                yield Entry(name=name, size_bytes=self._sizes[name], used_ns=last)
        finally:
            for item in passed:
                heapq.heappush(self._by_use, item)


class Contents:
    """The shards of one cache directory, and the tables of evicted ones.

    Attributes:
        shards: with their tables.
        remembered: tables of evicted shards.
    """

    shards: _ByUse
    remembered: _ByUse

    def __init__(self, directory: CacheDirectory) -> None:
        self._directory = directory
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self.shards, self.remembered = _ByUse(self._directory.table), _ByUse(self._directory.remembered_table)
        self._generation, self._offset, self._listed = b"", 0, -1.0

    def __len__(self) -> int:
        return len(self.shards)

    @property
    def used_bytes(self) -> int:
        """The bytes of shards and tables."""
        return self.shards.bytes + self.remembered.bytes

    def refresh(self) -> None:
        """Bring this up to date.

        Raises:
            OSError: the directory cannot be listed.
        """
        if self._pid != os.getpid():  # a copy that was forked while another thread changed it
            self._begin()
        with _open_log(self._directory) as log:
            lines = log.read(self._generation, self._offset)
            now = time.monotonic()
            is_told = log.is_current() and log.size <= limits.LIMITS.max_log_bytes
            if not is_told:
                log.begin()
            if is_told and lines is not None and 0 <= self._listed >= now - limits.LIMITS.listed_again_seconds:
                for change in lines:
                    self._take(change)
            else:
                self._list()
                self._listed = now
            self._generation, self._offset = log.generation, log.size

    def _list(self) -> None:
        inventory = self._directory.inventory()
        self._directory.remove_orphans(inventory)
        self.fill(inventory)

    def fill(self, inventory: Inventory) -> None:
        """The directory was listed, and has this in it."""
        self.shards.fill(inventory.entries)
        self.remembered.fill(inventory.remembered)

    def _take(self, change: LoggedChange) -> None:
        self.shards.note(change.name, change.size_bytes)
        self.remembered.note(change.name, change.remembered_bytes)

    @contextlib.contextmanager
    def changing(self) -> Iterator[Callable[[LoggedChange], None]]:
        """Context for one change. Call the yielded function with the entry's new state before leaving the block."""
        noted: list[LoggedChange] = []
        with _open_log(self._directory) as log:
            is_current = log.is_current()
            if is_current:
                log.cut()
            yield noted.append
            if is_current:  # else a line would hide that the directory has to be listed
                log.complete(noted)


class _Log:
    """The log of changes: a first line with a random name for it, then a line for each change.

    ``<directory mtime> <bytes> <bytes of the remembered table> <name>``
    """

    def __init__(self, directory: CacheDirectory, fd: int) -> None:
        self._directory, self._fd = directory, fd
        data = b""
        if fd >= 0:
            with contextlib.suppress(OSError):
                data = self._pread(_HEAD_BYTES, 0)
        self.generation = data if len(data) == _HEAD_BYTES and data.endswith(b"\n") else b""
        self.size = os.fstat(fd).st_size if self.generation else 0

    def read(self, generation: bytes, offset: int) -> list[LoggedChange] | None:
        """Each change since ``offset``; None if this is another log, or damaged."""
        if not generation or generation != self.generation or not _HEAD_BYTES <= offset <= self.size:
            return None
        try:
            return [_parse(line) for line in self._lines(offset)]
        except (ValueError, OSError):
            return None

    def _pread(self, count: int, offset: int) -> bytes:
        try:
            return system.pread(self._fd, count, offset)
        except OSError:  # changes will be missing in it: nor is it current for a process that can read it
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)
            raise

    def _lines(self, offset: int) -> list[bytes]:
        data = self._pread(self.size - offset, offset)
        if data and not data.endswith(b"\n"):
            raise ValueError("the last line was cut short")
        return data.splitlines()

    def is_current(self) -> bool:
        """True if the directory is as it was after the last line."""
        if not self.generation:
            return False
        lo = max(self.size - _MAX_LINE_BYTES, _HEAD_BYTES)
        try:
            *_, last = self._lines(lo)
            return int(last.partition(b" ")[0]) == os.stat(self._directory.path).st_mtime_ns
        except (ValueError, OSError):  # it is damaged, or the directory was deleted just now
            return False

    def begin(self) -> None:
        """Begin a new log, with the directory as it is now."""
        self.generation, self.size = b"", 0
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):  # a full disk
            generation = secrets.token_hex(_HEAD_BYTES // 2).encode() + b"\n"
            os.ftruncate(self._fd, 0)
            system.write_all(self._fd, generation, 0)
            self.generation, self.size = generation, _HEAD_BYTES
            self.complete([LoggedChange(".", 0)])

    def cut(self) -> None:
        """Cut the end of the last line off: until `complete`, the log is not current. No disk is too full for it."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self.size - 1)

    def complete(self, changes: Sequence[LoggedChange]) -> None:
        """After `cut`: end the last line again, and append one for each of ``changes``."""
        try:
            when = os.stat(self._directory.path).st_mtime_ns if changes else 0
            lines = b"".join(_line(when, change) for change in changes)
            system.write_all(self._fd, b"\n" + lines, self.size - 1)
            self.size += len(lines)
        except OSError:  # a full disk, or the directory was deleted just now
            self.cut()


class Followed:
    """The log of changes for who only looks on: nothing is made, and no lock is taken."""

    def __init__(self, directory: CacheDirectory) -> None:
        self._directory = directory
        self._generation, self._offset = b"", 0

    def read(self) -> list[tuple[float, LoggedChange]]:
        """Each change since the last call, at first of the newest, and when it was, in seconds since 1970."""
        try:
            fd, _ = atomic.open_file(self._directory.changes)
        except OSError:
            return []
        try:
            log = _Log(self._directory, fd)
            if not log.generation:
                return []
            is_first = not self._generation
            if log.generation != self._generation:
                begin = log.size - _FOLLOWED_BYTES if is_first else 0
                self._generation, self._offset = log.generation, max(begin, _HEAD_BYTES)
            elif log.size <= self._offset:  # nothing, or the end of its last line is cut off for the moment
                return []
            data = system.pread(fd, log.size - self._offset, self._offset)
        except OSError:
            return []
        finally:
            os.close(fd)
        data = data[: data.rfind(b"\n") + 1]  # a line that is being written is whole the next time
        self._offset += len(data)
        changes = []
        for line in data.splitlines():
            with contextlib.suppress(ValueError):  # the rest of one, at first
                change = _parse(line)
                changes.append((int(line.partition(b" ")[0]) / 1e9, change))
        return [each for each in changes if each[1].name != "."]


def _line(when_ns: int, change: LoggedChange) -> bytes:
    name = quote(os.fsencode(change.name)).encode()
    return b"%d %d %d %s\n" % (when_ns, change.size_bytes, change.remembered_bytes, name)


def _parse(line: bytes) -> LoggedChange:
    _, size, remembered, quoted = line.split()
    change = LoggedChange(os.fsdecode(unquote_to_bytes(quoted)), int(size), int(remembered))
    if min(change[1:]) < 0 or "\0" in change.name or os.path.basename(change.name) != change.name:
        raise ValueError("no cache wrote this line")
    return change


_HEAD_BYTES, _MAX_LINE_BYTES, _FOLLOWED_BYTES = 33, 1024, 1 << 16


@contextlib.contextmanager
def _open_log(directory: CacheDirectory) -> Iterator[_Log]:
    try:
        fd = directory.open_own(directory.changes)
    except OSError:  # another user's, or a full disk: every use lists the directory
        yield _Log(directory, -1)
        return
    try:
        yield _Log(directory, fd)
    finally:
        os.close(fd)

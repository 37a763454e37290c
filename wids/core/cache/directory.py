"""One cache directory: the paths of its files, and a scan of them.

    NAME                                  a cached shard
    .wids/tables/NAME.widx                its member table, written by the download
    .wids/tables/NAME.keep                present: the shard is not to be evicted
    .wids/remembered/NAME.widx            the member table of a shard that was evicted
    .wids/indexes/KEY.SUFFIX              a file that is made once for all processes (`wids.core.files.shared_files`)
    .wids/NAME.<pid>-<random>.part        a download, a member table or an index, under way; locked by its writer
    .wids/NAME.lock                       locked while NAME is downloaded, deleted afterwards
    .wids/<pid>-<random>.plan             upcoming shards of a running job, its figures; locked by it
    .wids/space                           locked while files appear or go
    .wids/release-request                 touched by a process that needs space
    .wids/changes                         which shards came and went (`wids.core.cache.contents`)

Rules: a shard belongs to the cache if its member table is in ``.wids/tables``, where only a download puts it;
everything else in the directory belongs to the user. The files of ``.wids`` have the permissions of the directory:
users who share the one share the other.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from wids.core.cache.eviction import Entry
from wids.core.files import system
from wids.core.files.own_folder import LOCK_SUFFIX, OwnFolder
from wids.core.tables import table as tables
from wids.errors import CacheError, WidsError
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEEP_SUFFIX, PLAN_SUFFIX = ".keep", ".plan"
# The whole name: one that ends in a line feed, or has the digits of another script, was not made by a cache.
PART = re.compile(r"(?P<name>.+)\.(?P<pid>[0-9]+)-[0-9a-f]{8}\.part", re.DOTALL)
_PLAN = re.compile(r"[0-9]+-[0-9a-f]{8}" + re.escape(PLAN_SUFFIX))
_SPACE, _RELEASE_REQUEST, _CHANGES = "space", "release-request", "changes"
CLEANUP_LOCK = ".cleanup.lock"


class Transients(msgspec.Struct, frozen=True, kw_only=True):
    """Files that are there while something runs; a process that was killed leaves its own behind.

    Attributes:
        parts: names of part files in ``.wids``.
        plans: names of plans.
        locks: names of lock files.
        used_bytes: of the part files.
        promised_bytes: bytes that the part files will have and have not yet taken from the file system.
    """

    parts: list[str]
    plans: list[str]
    locks: list[str]
    used_bytes: int
    promised_bytes: int


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """Everything in a cache directory.

    Attributes:
        entries: the cached shards.
        remembered: the member tables of evicted shards, by the shards' names.
        transients: downloads and the like.
        orphans: names of member tables, and of marks, whose shard is gone.
        used_bytes: of shards with their tables, of remembered tables, of part files and of orphans.
        strangers: files that the cache did not make.
        stranger_bytes: of those.
    """

    entries: list[Entry]
    remembered: list[Entry]
    transients: Transients
    orphans: list[str]
    used_bytes: int
    strangers: int
    stranger_bytes: int


class CacheDirectory(OwnFolder):
    """Paths in one cache directory. Nothing is opened or made until a method says so.

    Attributes:
        path: the directory.
        tables: the folder of member tables.
        remembered: the folder of evicted shards' tables.
    """

    remembered: str
    tables: str
    __slots__ = ("remembered", "tables")

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.tables = os.path.join(self.folder, "tables")
        self.remembered = os.path.join(self.folder, "remembered")

    def shard(self, name: str) -> str:
        """The path of a cached shard."""
        return os.path.join(self.path, name)

    def table(self, name: str) -> str:
        """The path of its member table."""
        return os.path.join(self.tables, name + tables.SUFFIX)

    def remembered_table(self, name: str) -> str:
        """The path of its member table once it was evicted."""
        return os.path.join(self.remembered, name + tables.SUFFIX)

    def keep_mark(self, name: str) -> str:
        """The path of the mark that it is not to be evicted."""
        return os.path.join(self.tables, name + KEEP_SUFFIX)

    @property
    def space_lock(self) -> str:
        """The path of the lock file under which files appear and go."""
        return os.path.join(self.folder, _SPACE)

    @property
    def release_request(self) -> str:
        """The path of the file that asks processes to release idle shards."""
        return os.path.join(self.folder, _RELEASE_REQUEST)

    def touch(self, name: str) -> None:
        """Note that a cached shard was used: the least recently used one is evicted first."""
        with contextlib.suppress(OSError):  # another user's directory, a read-only one
            os.utime(self.table(name))

    def release_request_time(self) -> int:
        """Time at which a process last requested space here, in nanoseconds; 0: never."""
        try:
            return os.stat(self.release_request).st_mtime_ns
        except OSError:
            return 0

    @property
    def changes(self) -> str:
        """The path of the log of changes."""
        return os.path.join(self.folder, _CHANGES)

    def make(self) -> None:
        """Make the folders for the cache's own files, in a directory that exists.

        Raises:
            OSError: they cannot be made.
        """
        self.make_folders(self.tables)

    def is_downloaded(self, name: str) -> bool:
        """True if a file is a shard that a download put there."""
        return os.path.exists(self.table(name)) and os.path.exists(self.shard(name))

    def is_kept(self, name: str) -> bool:
        """True if a cached shard is not to be evicted."""
        return os.path.exists(self.keep_mark(name))

    def transients(self) -> Transients:
        """The files that are there while something runs.

        Raises:
            OSError: they cannot be listed.
        """
        parts: list[str] = []
        plans: list[str] = []
        locks: list[str] = []
        used = promised = 0
        for name, status in _list(self.folder):
            if PART.fullmatch(name):
                parts.append(name)
                used += status.st_size
                promised += max(status.st_size - status.st_blocks * 512, 0)
            elif _PLAN.fullmatch(name):
                plans.append(name)
            elif name.endswith(LOCK_SUFFIX):
                locks.append(name)
        return Transients(parts=parts, plans=plans, locks=locks, used_bytes=used, promised_bytes=promised)

    def inventory(self) -> Inventory:
        """Everything in the directory; one that does not exist is empty.

        Raises:
            OSError: it cannot be listed.
        """
        transients = self.transients()
        files = dict(_list(self.tables))
        entries, strangers, stranger_bytes = [], 0, 0
        for name, status in _list(self.path):
            table, keep_mark = files.pop(name + tables.SUFFIX, None), files.pop(name + KEEP_SUFFIX, None)
            if table is not None:
                is_kept = keep_mark is not None
                size = status.st_size + table.st_size
                entries.append(Entry(name=name, size_bytes=size, used_ns=table.st_mtime_ns, is_kept=is_kept))
            elif name != CLEANUP_LOCK:
                strangers += 1
                stranger_bytes += status.st_size
        orphans = [name for name in files if name.endswith((tables.SUFFIX, KEEP_SUFFIX))]
        remembered = [
            Entry(name=name.removesuffix(tables.SUFFIX), size_bytes=status.st_size, used_ns=status.st_mtime_ns)
            for name, status in _list(self.remembered)
            if name.endswith(tables.SUFFIX)
        ]
        used = sum(entry.size_bytes for entry in [*entries, *remembered])
        used += sum(files[name].st_size for name in orphans)
        return Inventory(
            entries=entries,
            remembered=remembered,
            transients=transients,
            orphans=orphans,
            used_bytes=used + transients.used_bytes,
            strangers=strangers,
            stranger_bytes=stranger_bytes,
        )

    def deletable(self) -> Callable[[str], bool]:
        """A function: True if this user may delete the cached shard of a name, which a sticky bit keeps others from."""
        return _deletable(self.path, self.shard)

    def forgettable(self) -> Callable[[str], bool]:
        """`deletable` for the remembered table of a name."""
        return _deletable(self.remembered, self.remembered_table)

    def remove_orphans(self, inventory: Inventory) -> None:
        """Delete member tables, and marks, whose shard is gone; under the lock of `wids.core.cache.space`."""
        for name in inventory.orphans:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.tables, name))

    def keep(self, name: str) -> None:
        """Mark a cached shard as not to be evicted; where no mark can be made, that is warned of once."""
        if not self.is_kept(name):
            try:
                os.close(self.open_own(self.keep_mark(name)))
            except OSError as error:
                _warn_of_no_marks(self.path, error.strerror or str(error))


@functools.cache  # once for each directory, not for each shard
def _warn_of_no_marks(directory: str, error: str) -> None:
    logger.warning("%s: shards cannot be marked as kept (%s), and may be evicted", directory, error)


def _deletable(folder: str, path_of: Callable[[str], str]) -> Callable[[str], bool]:
    user = os.geteuid()
    with contextlib.suppress(OSError):
        status = os.stat(folder)
        if status.st_mode & stat.S_ISVTX and user not in (0, status.st_uid):
            return partial(_is_own, user, path_of)
    return lambda _: True


def _is_own(user: int, path_of: Callable[[str], str], name: str) -> bool:
    try:
        return os.stat(path_of(name)).st_uid == user
    except OSError:  # it is gone
        return True


def directory_of(path: str) -> tuple[CacheDirectory, str]:
    """The cache directory of a shard's path, and the shard's name in it."""
    directory, name = os.path.split(path)
    return CacheDirectory(directory), name


@contextlib.contextmanager
def using(directory: str) -> Iterator[None]:
    """A block of code that uses a cache directory.

    Raises:
        CacheError: the directory cannot be used.
    """
    try:
        yield
    except WidsError:
        raise
    except OSError as error:
        raise CacheError(f"{directory}: cannot be used ({error}); choose another cache_dir", path=directory) from error


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Write or publish in the block what ``path`` is to hold.

    Raises:
        CacheError: that is not possible.
    """
    try:
        yield
    except OSError as error:
        advice = f"{system.advice_on_writing(error)} or move cache_dir"
        with contextlib.suppress(OSError):
            if (
                isinstance(error, PermissionError)
                and (owner := os.stat(error.filename2 or path).st_uid) != os.geteuid()
            ):
                advice = (
                    f"user {owner} put {error.filename2 or path} there, and you may not replace it: ask for it to be "
                )
                advice += "deleted, let the directory have no sticky bit (chmod -t), or choose another cache_dir"
        raise CacheError(f"{path}: cannot be written ({error}); {advice}", path=path) from error


def _list(directory: str) -> Iterator[tuple[str, os.stat_result]]:
    """(name, status) of each regular file; nothing if the directory does not exist."""
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        for item in entries:
            try:  # `contextlib.suppress` takes as long as all else here together
                status = item.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(status.st_mode):
                yield item.name, status

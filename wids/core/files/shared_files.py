"""Files that the first process of a machine makes, and the others map.

    .wids/indexes/KEY.SUFFIX        KEY: 64 hexadecimal digits, a digest of all that the file is made from

Rules: a file appears whole, by ``os.replace``, and is never changed. It ends with its own name: in a directory that
users share, others may rename files, and one that has another's name is not used, and made again. If several processes
ask for one at the same time, one makes it and the others wait; without locks, each makes it. All files are their user's
alone, and those of another user are not looked at. They count neither as shards nor against ``cache_size``, and no
cleaner deletes them; those that were not opened for a month are deleted when the next one is written, as are part files
of processes that were killed. Where the directory cannot be used (a full disk, no permission), there is no file, and
each process keeps what it would hold in memory.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from wids.core.files import atomic, locks, system
from wids.core.files.own_folder import OwnFolder
from wids.errors import CacheError, WidsError
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

_NAME = re.compile(r"[0-9a-f]{64}\.[a-z]+")
_PART = re.compile(rf"{_NAME.pattern}\.[0-9]+-[0-9a-f]{{8}}\.part")
_UNUSED_SECONDS = 30 * 86_400.0
# So often a file's time says that it is used; another time costs a look at its checksum.
_USED_SECONDS = 86_400.0
_MODE = 0o600
_MARK = b"\n#wids "


class SharedFile(NamedTuple):
    """A file of this user's own.

    Attributes:
        path: of the file.
        data: its bytes, mapped, without its name.
        status: of the file as it was mapped.
    """

    path: str
    data: memoryview
    status: os.stat_result


def without_name(data: memoryview, path: str) -> memoryview | None:
    """The bytes of a file without its name at their end; None: they end with another one, or none."""
    name = _MARK + os.path.basename(path).encode()
    at = len(data) - len(name)
    return data[:at] if at >= 0 and data[at:] == name else None


class SharedFiles:
    """Files of one kind in one directory.

    Args:
        directory: it is made when something is written.
        suffix: of the files' names: a dot and letters.
        is_named: False: a file's bytes are all its own, for readers that allow no name at their end; the caller finds
            out whether it is the right file.
    """

    def __init__(self, directory: str, suffix: str, *, is_named: bool = True) -> None:
        self._suffix, self._is_named = suffix, is_named
        self._folder = OwnFolder(os.path.abspath(os.path.expanduser(directory)))
        self._files = os.path.join(self._folder.folder, "indexes")

    def path(self, key: str) -> str:
        """The path of the file of a key, which need not exist."""
        return os.path.join(self._files, key + self._suffix)

    def is_used(self) -> bool:
        """True if a cache has used the directory before."""
        return os.path.isdir(self._folder.folder)

    def get(
        self,
        key: str,
        make: Callable[[str, int], object],
        take: Callable[[SharedFile], T | None],
        *,
        is_new: bool = False,
    ) -> T | None:
        """The result of ``take`` on the file of a key, which is made if missing; None: it cannot be kept here.

        Args:
            key: of the file.
            make: called with the path of a part file and its descriptor, writes the file; False: there is to be none.
            take: called with the file; None, or a ValueError: it cannot be used, and is made again.
            is_new: the key does not say enough: a file that exists is made again.

        Raises:
            WidsError: of ``make``, but for `CacheError`. No file is published then.
        """
        taken = None if is_new else self.find(key, take)
        if taken is None:
            with self.alone(key):
                taken = None if is_new else self.find(key, take)  # another process made it meanwhile
                if taken is None and self.publish(key, make):
                    taken = self.find(key, take)
        return taken

    def find(self, key: str, take: Callable[[SharedFile], T | None]) -> T | None:
        """`get` of a file that exists."""
        file = self.open(key)
        if file is None:
            return None
        try:
            return take(file)
        except (ValueError, RecursionError) as error:
            logger.info("%s: is made again: %s", file.path, error)
            self.remove(key)
            return None

    def open(self, key: str) -> SharedFile | None:
        """The file of a key; None: this user has none."""
        path = self.path(key)
        with contextlib.suppress(OSError):
            self._check_directory()
            whole, status = atomic.map_file(path)
            data = without_name(whole, path) if self._is_named else whole
            if status.st_uid == system.user_id() and data is not None:
                if status.st_mtime < time.time() - _USED_SECONDS:
                    os.utime(path)
                    status = os.stat(path)
                return SharedFile(path, data, status)
        return None

    @contextlib.contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """One process at a time is in this block; on a file system without locks, all may be."""
        with contextlib.ExitStack() as stack:
            try:
                self._make()
                lock = self._folder.lock(key + self._suffix)
                stack.enter_context(locks.acquire(lock, mode=self._folder.lock_mode()))
            except OSError as error:
                logger.debug("%s: no lock for a %s file (%s)", self._folder.path, self._suffix, error)
            yield

    @contextlib.contextmanager
    def trying(self, key: str) -> Iterator[bool]:
        """True if no other process makes the file of a key or is in such a block; also True without locks."""
        with contextlib.ExitStack() as stack:
            is_alone = True
            try:
                self._make()
                lock = self._folder.lock(key + self._suffix)
                is_alone = stack.enter_context(locks.try_acquire(lock, mode=self._folder.lock_mode())) is not None
            except OSError as error:
                logger.debug("%s: no lock for a %s file (%s)", self._folder.path, self._suffix, error)
            yield is_alone

    def publish(self, key: str, make: Callable[[str, int], object]) -> bool:
        """Write the file of a key; False: that cannot be done here, or ``make`` says that there is to be none.

        Args:
            key: of the file.
            make: see `get`.

        Raises:
            WidsError: see `get`.
        """
        path = self.path(key)
        try:
            self._make()
            with atomic.part_file(self._folder.staging(os.path.basename(path)), mode=_MODE) as (part, fd):
                if make(part, fd) is False:
                    return False
                if self._is_named:
                    system.write_all(fd, _MARK + os.path.basename(path).encode(), os.fstat(fd).st_size)
                os.fsync(fd)  # what columns hold is not checked each time that they are mapped
                os.replace(part, path)
            self._sweep()
        except OSError as error:
            if isinstance(error, WidsError) and not isinstance(error, CacheError):
                raise
            logger.info(
                "%s: a %s file cannot be kept here, so that each process reads what it holds for itself (%s)",
                self._folder.path,
                self._suffix,
                error,
            )
            return False
        return True

    def put(self, key: str, data: bytes) -> None:
        """Publish a small file; best effort."""
        self.publish(key, lambda _, fd: system.write_all(fd, data, 0))

    def remove(self, key: str) -> None:
        """Delete a file that turned out to be damaged."""
        with contextlib.suppress(OSError):
            os.unlink(self.path(key))

    def _is_private(self) -> bool:
        return self._folder.path == atomic.private_dir()

    def _check_directory(self) -> None:
        if self._is_private():
            atomic.check_owner(self._folder.path)

    def _make(self) -> None:
        self._check_directory()
        atomic.make_directory(self._folder.path, is_private=self._is_private())
        self._folder.make_folders(self._files)

    def _sweep(self) -> None:
        """Delete files that were not opened for long, and those that killed processes left half written."""
        oldest = time.time() - _UNUSED_SECONDS
        for folder, pattern in ((self._files, _NAME), (self._folder.folder, _PART)):
            with contextlib.suppress(OSError):
                for name in os.listdir(folder):
                    path = os.path.join(folder, name)
                    if not pattern.fullmatch(name):
                        continue
                    with contextlib.suppress(OSError):  # another user's, or gone
                        is_old = os.stat(path).st_mtime < oldest
                        if locks.is_locked(path) is False if pattern is _PART else is_old:
                            os.unlink(path)

"""The folder ``.wids`` in a directory: files of ours, which users who share the directory share.

    .wids/NAME.<pid>-<random>.part        a file that is being written; locked by its writer
    .wids/NAME.lock                       locked while the file of that name is made, deleted afterwards

Its files have the permissions of the directory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from functools import partial

from wids.core.files import atomic, system

LOCK_SUFFIX = ".lock"
_WRITABLE_BY_OTHERS = 0o022


def default_cache_dir() -> str:
    """``$WIDS_CACHE``, else a per-user directory under the system's temporary directory."""
    chosen = os.environ.get("WIDS_CACHE")
    return os.path.expanduser(chosen) if chosen else atomic.private_dir()


class OwnFolder:
    """Paths of our own files in a directory. Nothing is opened or made until a method says so.

    Attributes:
        path: the directory.
        folder: ``.wids`` in it.
    """

    folder: str
    path: str
    __slots__ = ("folder", "path")

    def __init__(self, path: str) -> None:
        self.path = path or "."
        self.folder = os.path.join(self.path, ".wids")

    def staging(self, name: str) -> str:
        """The prefix of the path of the part file of ``name``."""
        return os.path.join(self.folder, name)

    def lock(self, name: str) -> str:
        """The path of the lock file of ``name``."""
        return os.path.join(self.folder, name + LOCK_SUFFIX)

    def make_folders(self, *folders: str) -> None:
        """Make the own folder and folders in it, in a directory that exists.

        Raises:
            OSError: they cannot be made.
        """
        for folder in (self.folder, *folders):
            with contextlib.suppress(FileExistsError):
                system.until_permitted(partial(os.mkdir, folder))
                os.chmod(folder, stat.S_IMODE(os.stat(self.path).st_mode))

    # --- permissions

    def share(self, fd: int) -> None:
        """Let those who may write to the directory read and write one of our own files, under any umask."""
        self._widen(fd, 0o666)

    def share_for_reading(self, fd: int) -> None:
        """Let those who may write to the directory read a file."""
        self._widen(fd, 0o444)

    def _widen(self, fd: int, maximum: int) -> None:
        with contextlib.suppress(OSError):  # another user's file, who has done so; a directory that is gone
            mode = stat.S_IMODE(os.stat(self.path).st_mode)
            if mode & _WRITABLE_BY_OTHERS:
                os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) | mode & maximum)

    def open_own(self, path: str) -> int:
        """Open one of our own files for writing, made if need be; the caller closes.

        Raises:
            OSError: it cannot be opened, or is no regular file.
        """
        # A link that another user put there would have us write into a file of our own, elsewhere.
        flags = system.WRITE_FLAGS | os.O_NONBLOCK | os.O_NOFOLLOW
        try:
            # Not made in the same step: in a sticky directory that is refused for another user's file.
            fd, is_new = os.open(path, flags), False
        except FileNotFoundError:
            fd, is_new = os.open(path, flags | os.O_CREAT, 0o666), True
        with atomic.closing_on_error(fd):
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            if is_new:
                self.share(fd)
            return fd

    def lock_mode(self) -> int:
        """The permissions of lock files, which every process that locks them opens for writing."""
        try:
            mode = stat.S_IMODE(os.stat(self.path).st_mode)
        except OSError:
            return 0o644
        return 0o600 | mode & 0o666 if mode & _WRITABLE_BY_OTHERS else 0o644

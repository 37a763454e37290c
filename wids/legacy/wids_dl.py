"""``wids.wids_dl`` of the original: download one file."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from typing import IO, TYPE_CHECKING, Any, NoReturn

from filelock import FileLock

from wids.core.files import atomic, locks
from wids.core.place import Place
from wids.core.transport import download
from wids.core.transport.session import Session
from wids.errors import FetchError
from wids.events import logger
from wids.legacy import refuse

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

_SCHEMES = "no shell commands are run for URLs; fsspec reads them, and ShardListDataset(storage_options=) configures it"
_OPEN = "files are the caller's to close, and are not listed"
__getattr__: Callable[[str], NoReturn] = refuse(
    __name__,
    {
        "pipe_download": "download_file(url, local, allow_pipe=True) runs the command of a pipe: URL without a shell, "
        "and takes what it writes to its standard output",
        "download_file_no_log": "use download_file",
        **dict.fromkeys(("default_cmds", "vcmd", "verbose_cmd"), _SCHEMES),
        **dict.fromkeys(("open_objects", "max_open_objects"), _OPEN),
    },
)

# (remote, local, time, seconds) of the downloads of this process, newest last.
recent_downloads: deque[tuple[str, str, float, float]] = deque(maxlen=1000)


def download_file(
    remote: str, local: str | os.PathLike[str], *, verbose: bool = False, allow_pipe: bool = False
) -> str:
    """Fetch ``remote`` to the file ``local``, which appears whole or not at all; returns ``local``."""
    start, path, place = time.time(), _own_path(local), Place(remote)
    if place.is_local and place.absolute.path == path:
        return os.fspath(local)
    with atomic.part_file(path) as (part, _):
        download.download_to(remote, part, check=lambda: None, session=Session(allow_pipe=allow_pipe))
        os.replace(part, path)
    seconds = time.time() - start
    recent_downloads.append((remote, os.fspath(local), time.time(), seconds))
    logger.log(logging.WARNING if verbose else logging.INFO, "downloaded %s to %s in %.1f s", remote, path, seconds)
    return os.fspath(local)


def download_and_open(
    remote: str,
    local: str | os.PathLike[str],
    mode: str = "rb",
    *,
    verbose: bool = False,
    allow_pipe: bool = False,
) -> IO[Any]:
    """``local`` opened, fetched first if it is not there; the caller closes."""
    path = _own_path(local)
    with locks.acquire(path + ".lock"):
        if not os.path.exists(path):
            download_file(remote, path, verbose=verbose, allow_pipe=allow_pipe)
        return open(path, mode)


def copy_file(remote: str, local: str | os.PathLike[str]) -> None:
    """Copy a local file (a path or ``file:`` URL) to ``local``."""
    if not Place(remote).is_local:
        raise FetchError(f"{remote} is not a local file; use download_file", url=remote)
    download_file(remote, Place(os.fspath(local)).path)


class ULockFile:
    """Hold the lock file ``path`` within the ``with`` block, waiting for it. It is never unlinked, as in `locks`."""

    lockfile_path: str
    lockfile: FileLock

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.lockfile_path = os.fspath(path)
        self.lockfile = FileLock(self.lockfile_path, fallback_to_soft=False, preserve_lock_file=True)

    def __enter__(self) -> Self:
        self.lockfile.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self.lockfile.release()


def _own_path(local: str | os.PathLike[str]) -> str:
    """The absolute path, in a directory that exists: where ``DefaultLocalname`` points, nothing may be there yet."""
    path = os.path.abspath(os.path.expanduser(os.fspath(local)))
    atomic.make_directory(os.path.dirname(path), is_private=False)
    return path

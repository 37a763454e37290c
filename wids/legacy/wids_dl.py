"""``wids.wids_dl`` of the original: bring one file here."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import IO, Any

from wids.cache import fetch, files, locks
from wids.index import urls

# (remote, local, time, seconds) of the downloads of this process, newest last.
recent_downloads: deque[tuple[str, str, float, float]] = deque(maxlen=1000)


def download_file(remote: str, local: str | os.PathLike[str], *, allow_pipe: bool = False) -> str:
    """Fetch ``remote`` to the file ``local``, which appears whole or not at all; returns ``local``."""
    start, path = time.time(), os.path.expanduser(os.fspath(local))
    if urls.is_local(remote) and os.path.abspath(os.path.expanduser(urls.local_path(remote))) == os.path.abspath(path):
        return path
    with files.part_file(path) as (part, _):
        fetch.fetch_to(remote, part, check=lambda: None, allow_pipe=allow_pipe)
        os.replace(part, path)
    recent_downloads.append((remote, path, time.time(), time.time() - start))
    return path


def download_and_open(
    remote: str, local: str | os.PathLike[str], mode: str = "rb", *, allow_pipe: bool = False
) -> IO[Any]:
    """``local`` opened, fetched first if it is not there; the caller closes."""
    path = os.path.expanduser(os.fspath(local))
    with locks.hold(path):
        if not os.path.exists(path):
            download_file(remote, path, allow_pipe=allow_pipe)
        return open(path, mode)

"""A directory as a file system whose reads take time, in place of a network file system; needs FUSE and mfusepy.

python benchmarks/slow_files.py SOURCE MOUNTPOINT DELAY_MS MBPS
"""

from __future__ import annotations

import os
import sys
import time

import mfusepy


class SlowFiles(mfusepy.Operations):
    """The files of one directory, read-only.

    Args:
        source: the directory.
        delay_ms: milliseconds of each read.
        mbps: megabytes (1e6) a second of each read, after that.
    """

    use_ns = True

    def __init__(self, source: str, delay_ms: float, mbps: float):
        self._source, self._delay, self._rate = source, delay_ms / 1e3, mbps * 1e6

    def _path(self, path: str) -> str:
        return os.path.join(self._source, path.lstrip("/"))

    def getattr(self, path: str, fh: int | None = None) -> dict:  # noqa: ARG002  (FUSE's signature)
        """Size, mode and times."""
        found = os.lstat(self._path(path))
        names = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid")
        times = {f"st_{kind}time": getattr(found, f"st_{kind}time_ns") for kind in "mac"}
        return {**{name: getattr(found, name) for name in names}, **times}

    def readdir(self, path: str, fh: int) -> list[str]:  # noqa: ARG002  (as above)
        """Names in the directory."""
        return [".", "..", *os.listdir(self._path(path))]

    def open(self, path: str, flags: int) -> int:  # noqa: ARG002  (as above)
        """A descriptor of the file."""
        return os.open(self._path(path), os.O_RDONLY)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:  # noqa: ARG002  (as above)
        """Bytes, after a while."""
        time.sleep(self._delay + size / self._rate)
        return os.pread(fh, size, offset)

    def release(self, path: str, fh: int) -> None:  # noqa: ARG002  (as above)
        """Close the descriptor."""
        os.close(fh)


if __name__ == "__main__":
    source, mountpoint, delay_ms, mbps = sys.argv[1:]
    # auto_cache: pages stay while the file is the same, as with NFS.
    mfusepy.FUSE(SlowFiles(source, float(delay_ms), float(mbps)), mountpoint, foreground=True, ro=True, auto_cache=True)

"""Reading files on network file systems into this machine's page cache, before they are needed. Linux; else nothing.

The kernel reads ahead of one who reads a file in order. Samples are read in another order, each read waits for the
server, and only the program knows which come next.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# File systems whose reads wait for a network, judged by name. For FUSE, most do.
_NETWORK = {"9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4"}
_NETWORK |= {"ocfs2", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs", "fuse"}
_MOUNTS = "/proc/self/mountinfo"
_CGROUPS = "/proc/self/cgroup"
# Control groups by the name of their controller (version 2 has none): the directory of all, the file with a limit, and
# the figure of the memory in use.
_LIMITED = {
    "": ("/sys/fs/cgroup", "memory.max", "anon"),
    "memory": ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "total_rss"),
}
# In one call the kernel reads at most the read-ahead of the file system, which is this by default.
_STEP_BYTES = 128 << 10


def is_network(path: str) -> bool:
    """True if the file or directory is on a network file system; False if unknown."""
    if not hasattr(os, "posix_fadvise"):
        return False
    with contextlib.suppress(OSError, ValueError, IndexError):
        device = os.stat(path).st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        with open(_MOUNTS, encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                if line.split(" ", 3)[2] == number:
                    kind = line.partition(" - ")[2].split(" ", 1)[0]
                    return kind.partition(".")[0] in _NETWORK  # fuse.sshfs
    return False


def begin_reading(fd: int, offset: int, size: int) -> None:
    """Have the kernel begin to read a part of a file, without waiting.

    Raises:
        OSError: the file cannot be read.
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, offset, size, os.POSIX_FADV_WILLNEED)


def read_ahead(path: str, begin: float, end: float, *, is_cancelled: Callable[[], bool]) -> None:
    """Have a part of a file read into memory; returns once the last of it is being read.

    Args:
        path: of the file.
        begin: of the part, from 0 to 1.
        end: of its end.
        is_cancelled: asked now and then; once it says True, no more is read.

    Raises:
        OSError: the file cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        for offset in range(int(begin * size), int(end * size), _STEP_BYTES):
            if is_cancelled():
                return
            os.posix_fadvise(fd, offset, _STEP_BYTES, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(fd)


def free_memory() -> int:
    """Bytes of memory that the page cache may take without the programs of this machine, or container, having less."""
    free = _number_of("/proc/meminfo", "MemAvailable:", unit=1024)
    bounds = [] if free is None else [free]
    for directory, limit, used in _control_groups():
        allowed, taken = _number_of(f"{directory}/{limit}"), _number_of(f"{directory}/memory.stat", used)
        if allowed is not None:
            bounds.append(max(allowed - (taken or 0), 0))
    return min(bounds, default=0)


def _control_groups() -> Iterator[tuple[str, str, str]]:
    """The control groups of this process and around it: directory, file with a limit, file with its use."""
    with contextlib.suppress(OSError, ValueError), open(_CGROUPS, encoding="utf-8", errors="replace") as groups:
        for line in groups:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            for name in set(controllers.split(",")) & _LIMITED.keys():
                root, limit, used = _LIMITED[name]
                # A container may see its own group at the root, and the host's path here.
                for group in {path, *map(str, PurePath(path).parents)}:
                    yield root + group.rstrip("/"), limit, used


def _number_of(path: str, name: str = "", *, unit: int = 1) -> int | None:
    """The number after a name in a file of the kernel, or the only one; None: none exists (``max``)."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(path, encoding="ascii") as lines:
        for line in lines:
            words = line.split()
            if not name or words[0] == name:
                return int(words[-1 if not name else 1]) * unit
    return None

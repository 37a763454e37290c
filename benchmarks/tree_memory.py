"""Memory of a process and all its descendants, watched from outside."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

_SAMPLE_SECONDS = 0.1


class TreeMemory(threading.Thread):
    """A thread that measures the peak within a ``with`` block: each page once, however many processes share it.

    Pages of files (programs, mapped data) are left out: the kernel takes them back when it needs memory.
    """

    def __init__(self, pid: int):
        super().__init__(daemon=True)
        self.pid = pid
        self.peak_bytes = 0
        self._ended = threading.Event()

    def run(self) -> None:
        """Measure until `__exit__`."""
        while not self._ended.wait(_SAMPLE_SECONDS):
            self.peak_bytes = max(self.peak_bytes, sum(map(_own_bytes, _tree(self.pid))))

    def __enter__(self) -> TreeMemory:  # noqa: PYI034  (typing.Self needs Python 3.11)
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ended.set()
        self.join()


def _tree(pid: int) -> list[int]:
    """The process and all its descendants."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with (
                suppress(OSError, IndexError, ValueError),
                open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as stream,
            ):
                parent = int(stream.read().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def _own_bytes(pid: int) -> int:
    """Its share of pages that are not of files: a page that n processes share counts 1/n."""
    total = 0
    with suppress(OSError), open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as stream:
        for line in stream:
            if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                total += int(line.split()[1]) * 1024
    return total

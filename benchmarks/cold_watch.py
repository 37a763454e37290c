"""Measurements beside a contender's process: the size of its cache directory, and the CPU time of other programs."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress

SAMPLE_SECONDS = 0.02
# A machine is idle if other programs use at most this share of one core for so many seconds.
MAX_IDLE_SHARE, IDLE_SECONDS = 0.1, 1.0


class CachePeak(threading.Thread):
    """A thread that measures the peak size of a directory every 20 ms, part files included, within a ``with`` block."""

    def __init__(self, directory: str):
        super().__init__(daemon=True)
        self.directory = directory
        self.peak_bytes = 0
        self._ended = threading.Event()

    def run(self) -> None:
        """Measure until `__exit__`."""
        while not self._ended.wait(SAMPLE_SECONDS):
            self._measure()

    def _measure(self) -> None:
        self.peak_bytes = max(self.peak_bytes, directory_bytes(self.directory))

    def __enter__(self) -> CachePeak:  # noqa: PYI034  (typing.Self needs Python 3.11)
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ended.set()
        self.join()
        self._measure()


def directory_bytes(directory: str) -> int:
    """Sum the sizes of all files under ``directory``, which may change meanwhile; 0 if there is no such directory."""
    total = 0
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    total += directory_bytes(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_size
    return total


def busy_seconds() -> float | None:
    """Return the CPU seconds of all other processes since boot; None where the kernel has no /proc/stat."""
    with suppress(OSError), open("/proc/stat", encoding="ascii") as stream:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, stream.readline().split()[1:9])
        ticks = user + nice + system + irq + softirq + steal
        return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()
    return None


def wait_for_idle(patience_seconds: float) -> None:
    """Wait until other programs are idle for a second, for ``patience_seconds`` at most."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < patience_seconds:
        before = busy_seconds()
        time.sleep(IDLE_SECONDS)
        after = busy_seconds()
        if before is None or after is None or after - before <= MAX_IDLE_SHARE * IDLE_SECONDS:
            return

"""What is seen from outside while a contender works: its cache directory, and who else uses the machine."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress

SAMPLED_SECONDS = 0.02
# Waiting for a quiet machine: the share of one core that others may use, over this long.
QUIET_SHARE, QUIET_SECONDS = 0.1, 1.0


class CachePeak(threading.Thread):
    """The most bytes seen in a directory, looked at every 20 ms; part files and all. ``with`` ends it."""

    def __init__(self, directory: str):
        super().__init__(daemon=True)
        self.directory = directory
        self.peak_bytes = 0
        self._ended = threading.Event()

    def run(self) -> None:
        """Look until `__exit__`."""
        while not self._ended.wait(SAMPLED_SECONDS):
            self._look()

    def _look(self) -> None:
        self.peak_bytes = max(self.peak_bytes, directory_bytes(self.directory))

    def __enter__(self) -> CachePeak:  # noqa: PYI034  (typing.Self needs Python 3.11)
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ended.set()
        self.join()
        self._look()


def directory_bytes(directory: str) -> int:
    """Sum of the sizes of all files under ``directory``, which changes meanwhile; 0 if it is not there."""
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
    """CPU seconds of everything on this machine but this process, since boot; None where the kernel does not tell."""
    with suppress(OSError), open("/proc/stat", encoding="ascii") as stream:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, stream.readline().split()[1:9])
        ticks = user + nice + system + irq + softirq + steal
        return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()
    return None


def wait_for_quiet(patience_seconds: float) -> None:
    """Return when others have left the machine alone for a second, or after ``patience_seconds``."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < patience_seconds:
        before = busy_seconds()
        time.sleep(QUIET_SECONDS)
        after = busy_seconds()
        if before is None or after is None or after - before <= QUIET_SHARE * QUIET_SECONDS:
            return

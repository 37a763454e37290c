"""A selection of samples that workers of every start method share: a spawned one maps it from a file.

The file has no name, so nothing is left behind, however a process ends. A worker opens it by the descriptor of the
process that started it, which keeps it open until that worker has ended.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing.context
import os
import tempfile
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from wids.index.selection import Selection

if TYPE_CHECKING:
    import numpy.typing as npt

    from wids.index.selection import Integers


class SharedSelection(Selection):
    """A selection that a spawned worker maps from a file of this machine, and any other copy has for itself."""

    _file: _RowsFile | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        ends, rows = self.arrays
        popen = multiprocessing.context.get_spawning_popen()
        if popen is not None and (file := self._shared_file()) is not None:
            # The view may be gone before the worker has read what it was started with.
            weakref.finalize(popen, _keep, file)
            return _map, (ends, file.place, file.identity, rows.dtype.str, self.digest)
        return SharedSelection, (np.array(ends), np.array(rows))

    def _shared_file(self) -> _RowsFile | None:
        """A file of the rows; None: there can be none here that other processes open."""
        if self._file is None and len(self):
            with contextlib.suppress(OSError):
                file = _RowsFile(self.arrays[1])
                if _identity(os.stat(file.place)) == file.identity:
                    self._file = file
        return self._file


class _RowsFile:
    """Rows in a file without a name, open as long as the object is there.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, rows: npt.NDArray[Any]) -> None:
        with tempfile.TemporaryFile() as file:
            rows.tofile(file)
            self._number = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._number)
        self.identity = _identity(os.fstat(self._number))

    @property
    def place(self) -> str:
        """Where the system has this file, which is open in this process, for all processes."""
        return f"/proc/{os.getpid()}/fd/{self._number}"


def _identity(facts: os.stat_result) -> tuple[int, int]:
    return facts.st_dev, facts.st_ino


def _keep(_file: _RowsFile) -> None:
    """Nothing; what waits to be called with a file keeps it open."""


def _map(ends: Integers, place: str, identity: tuple[int, int], kind: str, digest: str) -> SharedSelection:
    with open(place, "rb") as file:
        if _identity(os.fstat(file.fileno())) != identity:
            raise RuntimeError(f"{place}: the process that started this worker has ended, and with it the view's rows")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return SharedSelection(ends, np.frombuffer(data, np.dtype(kind)), digest=digest)

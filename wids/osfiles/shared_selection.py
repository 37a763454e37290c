"""A selection of samples that workers of every start method share: a spawned one maps it from a file."""

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
        if multiprocessing.context.get_spawning_popen() is not None:
            if self._file is None:
                self._file = _RowsFile(rows)
            if self._file.path is not None:
                return _map, (ends, self._file.path, rows.dtype.str, self.digest)
        return SharedSelection, (np.array(ends), np.array(rows))


class _RowsFile:
    """Rows in a file of this machine, which goes with the object. ``path``: None where it could not be written."""

    path: str | None = None

    def __init__(self, rows: npt.NDArray[Any]) -> None:
        with contextlib.suppress(OSError):
            fd, path = tempfile.mkstemp(prefix="wids-view-", suffix=".rows")
            weakref.finalize(self, _remove, path, os.getpid())
            with open(fd, "wb") as file:
                rows.tofile(file)
            self.path = path


def _remove(path: str, pid: int) -> None:
    if os.getpid() == pid:  # a fork has a copy of the object
        with contextlib.suppress(OSError):
            os.unlink(path)


def _map(ends: Integers, path: str, kind: str, digest: str) -> SharedSelection:
    with open(path, "rb") as file:
        is_empty = not os.fstat(file.fileno()).st_size
        data = b"" if is_empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return SharedSelection(ends, np.frombuffer(data, np.dtype(kind)), digest=digest)

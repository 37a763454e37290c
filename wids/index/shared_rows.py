"""A selection of samples that workers of every start method share: a spawned one maps it from a file.

The file is that of a saved view, as long as it is the one that was mapped, or one without a name, which is written with
the first worker. A worker opens it by the descriptor of the process that started it, which keeps it open until that
worker has ended: nothing is left behind, however a process ends, and a view may be saved anew meanwhile.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing.context
import os
import sys
import tempfile
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wids.files import system
from wids.index.selection import Selection

if TYPE_CHECKING:
    import numpy.typing as npt

    from wids.index.selection import Integers

_WORD = 8


class RowsPlace(NamedTuple):
    """Where a selection lies in a file: its ends, and behind them its rows, as this machine has numbers.

    Attributes:
        path: of the file. identity: which file that is.
        offset: of the ends, in bytes.
        shards: how many ends. samples: how many rows, of ``width`` bytes each.
    """

    path: str
    identity: tuple[int, int]
    offset: int
    shards: int
    samples: int
    width: int

    def map(self) -> tuple[Integers, npt.NDArray[Any]]:
        """(ends, rows), mapped.

        Raises:
            OSError: there is no such file any more, but perhaps another one.
        """
        with open(os.open(self.path, system.READ_FLAGS), "rb") as file:
            if identify(os.fstat(file.fileno())) != self.identity:
                raise FileNotFoundError(f"{self.path}: is another file now")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        kind: npt.DTypeLike = np.int64 if self.width == _WORD else np.uint32
        rows = np.frombuffer(data, kind, self.samples, self.offset + self.shards * _WORD)
        return np.frombuffer(data, np.int64, self.shards, self.offset), rows


def identify(status: os.stat_result) -> tuple[int, int]:
    """What tells a file from the others that are there."""
    return status.st_dev, status.st_ino


class SharedSelection(Selection):
    """A selection that a spawned worker maps from a file of this machine, and any other copy has for itself.

    Args:
        ends, rows, digest: see `Selection`.
        place: where they are mapped from; None: nowhere.
    """

    _file: _InheritedFile | None = None

    def __init__(
        self, ends: Integers, rows: npt.NDArray[Any], *, digest: str | None = None, place: RowsPlace | None = None
    ) -> None:
        super().__init__(ends, rows, digest=digest)
        self._place = place if sys.byteorder == "little" else None  # as files of rows are

    @property
    def path(self) -> str | None:
        """The file that they are mapped from; None: none."""
        return self._place.path if self._place is not None else None

    def __reduce__(self) -> tuple[Any, ...]:
        popen = multiprocessing.context.get_spawning_popen()
        if popen is not None and (file := self._shared_file()) is not None:
            # The view may be gone before the worker has read what it was started with.
            weakref.finalize(popen, _keep, file)
            return _map, (file.place, self.digest, self._place)
        ends, rows = self.arrays
        return SharedSelection, (np.array(ends), np.array(rows))

    def _shared_file(self) -> _InheritedFile | None:
        """A file of the rows; None: there can be none here that other processes open."""
        if self._file is None and len(self):
            with contextlib.suppress(OSError):
                file = _InheritedFile(self._mapped() or self._written())
                if identify(os.stat(file.place.path)) == file.place.identity:
                    self._file = file
        return self._file

    def _mapped(self) -> tuple[int, RowsPlace] | None:
        """A descriptor of the file that this is mapped from, if it is still there."""
        if self._place is not None:
            with contextlib.suppress(OSError):
                number = os.open(self._place.path, system.READ_FLAGS)
                if identify(os.fstat(number)) == self._place.identity:
                    return number, self._place
                os.close(number)
        return None

    def _written(self) -> tuple[int, RowsPlace]:
        """A descriptor of a new file without a name.

        Raises:
            OSError: it cannot be written.
        """
        ends, rows = self.arrays
        with tempfile.TemporaryFile() as file:
            ends.tofile(file)
            rows.tofile(file)
            file.flush()
            identity = identify(os.fstat(file.fileno()))
            return os.dup(file.fileno()), RowsPlace("", identity, 0, len(ends), len(rows), rows.dtype.itemsize)


class _InheritedFile:
    """A file of rows that other processes map, open as long as the object is there."""

    def __init__(self, opened: tuple[int, RowsPlace]) -> None:
        number, place = opened
        weakref.finalize(self, os.close, number)
        # Where the system has this file, which is open in this process, for all processes.
        self.place = place._replace(path=f"/proc/{os.getpid()}/fd/{number}")


def _keep(_file: _InheritedFile) -> None:
    """Nothing; what waits to be called with a file keeps it open."""


def _map(here: RowsPlace, digest: str, place: RowsPlace | None) -> SharedSelection:
    try:
        ends, rows = here.map()
    except OSError as error:
        raise RuntimeError(
            f"{here.path}: the process that started this worker has ended, and with it the view's rows"
        ) from error
    return SharedSelection(ends, rows, digest=digest, place=place)

"""Arrays of numbers that the workers of a process share: they map a file, whatever their start method.

The file is the one that the arrays are mapped from, as long as it is still there, or one without a name, which is
written with the first worker. A worker opens it by the descriptor of the process that started it, which keeps it open
until that worker has ended: no file is left behind, however a process ends, and the first file may be replaced
meanwhile.
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

from wids.core.files import system

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


class ArrayPlace(NamedTuple):
    """The place of an array in a file, in the byte order of this machine.

    Attributes:
        offset: of its first number, in bytes.
        length: number of its numbers.
        kind: of numbers, as numpy names it.
    """

    offset: int
    length: int
    kind: str


class FilePlace(NamedTuple):
    """The place of arrays in a file.

    Attributes:
        path: of the file.
        identity: tells this file from others.
        arrays: their places in it.
    """

    path: str
    identity: tuple[int, int]
    arrays: tuple[ArrayPlace, ...]

    def map(self) -> tuple[npt.NDArray[Any], ...]:
        """The arrays, mapped.

        Raises:
            OSError: the file no longer exists, but perhaps another one.
        """
        with open(os.open(self.path, system.READ_FLAGS), "rb") as file:
            if identify(os.fstat(file.fileno())) != self.identity:
                raise FileNotFoundError(f"{self.path}: is another file now")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return tuple(np.frombuffer(data, kind, length, offset) for offset, length, kind in self.arrays)


def identify(status: os.stat_result) -> tuple[int, int]:
    """The properties that identify a file among the others."""
    return status.st_dev, status.st_ino


class SharedArrays:
    """Arrays that a spawned worker maps from a file of this machine; any other copy has them for itself.

    Args:
        arrays: of one dimension each.
        place: the file that they are mapped from; None: none.

    Attributes:
        arrays: the argument.
    """

    arrays: tuple[npt.NDArray[Any], ...]
    _file: _InheritedFile | None = None

    def __init__(self, arrays: Sequence[npt.NDArray[Any]], *, place: FilePlace | None = None) -> None:
        self.arrays = tuple(arrays)
        self._place = place if sys.byteorder == "little" else None  # as files of wids are

    @property
    def path(self) -> str | None:
        """The file that they are mapped from; None: none."""
        return self._place.path if self._place is not None else None

    def __reduce__(self) -> tuple[Any, ...]:
        popen = multiprocessing.context.get_spawning_popen()
        if popen is not None and (file := self._shared_file()) is not None:
            # Kept until the worker has read what it was started with: the arrays may be gone here before.
            weakref.finalize(popen, _keep, file)
            return _map, (file.place, self._place)
        return SharedArrays, (tuple(map(np.array, self.arrays)),)

    def _shared_file(self) -> _InheritedFile | None:
        """A file of the arrays; None: there can be none here that other processes open."""
        if self._file is None and len(self.arrays[-1]):
            with contextlib.suppress(OSError):
                file = _InheritedFile(self._mapped() or self._written())
                if identify(os.stat(file.place.path)) == file.place.identity:
                    self._file = file
        return self._file

    def _mapped(self) -> tuple[int, FilePlace] | None:
        """A descriptor of the file that these are mapped from, if it is still there."""
        if self._place is not None:
            with contextlib.suppress(OSError):
                number = os.open(self._place.path, system.READ_FLAGS)
                if identify(os.fstat(number)) == self._place.identity:
                    return number, self._place
                os.close(number)
        return None

    def _written(self) -> tuple[int, FilePlace]:
        """A descriptor of a new file without a name.

        Raises:
            OSError: it cannot be written.
        """
        places = []
        with tempfile.TemporaryFile() as file:
            for array in self.arrays:
                places.append(ArrayPlace(file.tell(), len(array), array.dtype.str))
                array.tofile(file)
            file.flush()
            return os.dup(file.fileno()), FilePlace("", identify(os.fstat(file.fileno())), tuple(places))


class _InheritedFile:
    """A file of arrays that other processes map, open as long as the object is there."""

    def __init__(self, opened: tuple[int, FilePlace]) -> None:
        number, place = opened
        weakref.finalize(self, os.close, number)
        # Path of this file, which is open in this process, for all processes.
        self.place = place._replace(path=f"/proc/{os.getpid()}/fd/{number}")


def _keep(_file: _InheritedFile) -> None:
    """Do nothing; the callback of a finalizer keeps its file open."""


def _map(here: FilePlace, place: FilePlace | None) -> SharedArrays:
    try:
        return SharedArrays(here.map(), place=place)
    except OSError as error:
        raise RuntimeError(
            f"{here.path}: the process that started this worker has ended, and with it the rows of its view or join"
        ) from error

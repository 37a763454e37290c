"""The rows of saved views, mapped by all processes: a local file in its place, a remote one from the cache directory.

    .wids/indexes/KEY.rows      a copy of a remote file of rows; KEY: of its URL and of what the view says of it

Each process checks what it maps. Workers of every start method share the rows: a spawned one maps them from a file,
which is that of the saved view as long as it is the one that was mapped, or one without a name, which is written with
the first worker. A worker opens it by the descriptor of the process that started it, which keeps it open until that
worker has ended: no file is left behind, however a process ends, and a view may be saved again meanwhile.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import multiprocessing.context
import os
import sys
import tempfile
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wids.core.files import atomic, system
from wids.core.files.shared_files import SharedFiles
from wids.core.index import view_file
from wids.core.index.selection import Selection
from wids.core.place import Place
from wids.core.transport.download import download_to, read_bytes
from wids.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from wids.core.index.selection import Integers
    from wids.core.index.view_file import RowsFile, View
    from wids.core.transport.session import Session

_WORD = 8


class RowsPlace(NamedTuple):
    """The place of a selection in a file: its ends, then its rows, in the byte order of this machine.

    Attributes:
        path: of the file.
        identity: tells this file from others.
        offset: of the ends, in bytes.
        shards: number of ends.
        samples: number of rows, of ``width`` bytes each.
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
            OSError: the file no longer exists, but perhaps another one.
        """
        with open(os.open(self.path, system.READ_FLAGS), "rb") as file:
            if identify(os.fstat(file.fileno())) != self.identity:
                raise FileNotFoundError(f"{self.path}: is another file now")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        kind: npt.DTypeLike = np.int64 if self.width == _WORD else np.uint32
        rows = np.frombuffer(data, kind, self.samples, self.offset + self.shards * _WORD)
        return np.frombuffer(data, np.int64, self.shards, self.offset), rows


def identify(status: os.stat_result) -> tuple[int, int]:
    """The properties that identify a file among the others."""
    return status.st_dev, status.st_ino


class SharedSelection(Selection):
    """A selection that a spawned worker maps from a file of this machine, and any other copy has for itself.

    Args:
        ends: see `Selection`.
        rows: see there.
        digest: see there.
        place: the file that they are mapped from; None: none.
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
        # Path of this file, which is open in this process, for all processes.
        self.place = place._replace(path=f"/proc/{os.getpid()}/fd/{number}")


def _keep(_file: _InheritedFile) -> None:
    """Do nothing; the callback of a finalizer keeps its file open."""


def _map(here: RowsPlace, digest: str, place: RowsPlace | None) -> SharedSelection:
    try:
        ends, rows = here.map()
    except OSError as error:
        raise RuntimeError(
            f"{here.path}: the process that started this worker has ended, and with it the view's rows"
        ) from error
    return SharedSelection(ends, rows, digest=digest, place=place)


class ViewRows:
    """The file of a view's rows.

    Args:
        url: its URL or path.
        view: its header.
        counts: number of samples of each shard of its index; None: that is not known, nor compared.
        cache_dir: directory for a copy of a remote one; None: in memory.
        session: opens URLs.
    """

    def __init__(
        self,
        url: str,
        view: View,
        counts: Sequence[int] | None,
        *,
        cache_dir: str | None,
        session: Session,
    ) -> None:
        self._url, self._view, self._counts, self._options = url, view, counts, session
        self._shards = view.view_of_counts[0] if counts is None else len(counts)
        self._max_bytes = view_file.max_bytes(self._shards, view.nsamples)
        self._kept = None if cache_dir is None else SharedFiles(cache_dir, view_file.SUFFIX)

    def load(self) -> SharedSelection:
        """The selection.

        Raises:
            SpecError: it is damaged, or of another view. OSError: it cannot be read; of a remote one, FetchError.
        """
        if (place := Place(self._url)).is_local:
            return self._take(place.path, *atomic.map_file(place.path))
        if self._kept is not None:
            source = f"{self._url}\0{self._view.rows_checksum}\0{self._view.nsamples}\0{self._shards}"
            digest = hashlib.blake2b(source.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
            selection = self._kept.get(digest, self._download, lambda file: self._take(*file))
            if selection is not None:
                return selection
        data = read_bytes(self._url, session=self._options, max_bytes=self._max_bytes)
        return SharedSelection(*self._unpack(data)[:2])

    def _take(self, path: str, data: memoryview, status: os.stat_result) -> SharedSelection:
        ends, rows, offset = self._unpack(data)
        place = RowsPlace(path, identify(status), offset, len(ends), samples=len(rows), width=rows.dtype.itemsize)
        return SharedSelection(ends, rows, place=place)

    def _unpack(self, data: bytes | memoryview) -> RowsFile:
        rows_file = view_file.unpack_rows(data, counts=self._counts, file_url=self._url)
        actual = view_file.checksum_of(data), len(rows_file[1])
        expected = self._view.rows_checksum, self._view.nsamples
        if actual != expected:
            raise SpecError(
                f"{self._url}: are the rows of another view: their (rows_checksum, nsamples) is {actual}, and this one "
                f"says {expected}; save the view again",
                path="rows",
            )
        return rows_file

    def _download(self, path: str, _: int) -> None:
        def check() -> None:
            self._unpack(atomic.map_file(path)[0])

        download_to(self._url, path, check=check, max_bytes=self._max_bytes, session=self._options)

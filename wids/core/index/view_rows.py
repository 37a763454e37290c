"""The rows of saved views, mapped by all processes: a local file in its place, a remote one from the cache directory.

    .wids/indexes/KEY.rows      a copy of a remote file of rows; KEY: of its URL and of what the view says of it

Each process checks what it maps. Workers of every start method share the rows (`wids.core.files.shared_arrays`).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from wids.core.files import atomic
from wids.core.files.shared_arrays import ArrayPlace, FilePlace, SharedArrays, identify
from wids.core.files.shared_files import SharedFiles
from wids.core.index import view_file
from wids.core.index.selection import Selection
from wids.core.place import Place
from wids.core.transport.download import download_to, read_bytes
from wids.errors import SpecError

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import numpy.typing as npt

    from wids.core.index.selection import Integers
    from wids.core.index.view_file import RowsFile, View
    from wids.core.transport.session import Session


class SharedSelection(Selection):
    """A selection that a spawned worker maps from a file of this machine, and any other copy has for itself.

    Args:
        ends: see `Selection`.
        rows: see there.
        digest: see there.
        place: the file that they are mapped from; None: none.
    """

    def __init__(
        self, ends: Integers, rows: npt.NDArray[Any], *, digest: str | None = None, place: FilePlace | None = None
    ) -> None:
        super().__init__(ends, rows, digest=digest)
        self._shared = SharedArrays((ends, rows), place=place)

    @property
    def path(self) -> str | None:
        """The file that they are mapped from; None: none."""
        return self._shared.path

    def __reduce__(self) -> tuple[Any, ...]:
        return _of_arrays, (self._shared, self._digest)


def _of_arrays(shared: SharedArrays, digest: str | None) -> SharedSelection:
    """The selection of a pickle."""
    selection = SharedSelection(*shared.arrays, digest=digest)
    selection._shared = shared  # noqa: SLF001 - of this module
    return selection


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
        arrays = (
            ArrayPlace(offset, len(ends), ends.dtype.str),
            ArrayPlace(offset + ends.nbytes, len(rows), rows.dtype.str),
        )
        return SharedSelection(ends, rows, place=FilePlace(path, identify(status), arrays))

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

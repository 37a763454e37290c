"""The rows of saved views, mapped by all processes: a local file where it lies, a remote one from the cache directory.

    .wids/indexes/DIGEST.rows      a copy of a remote file of rows; DIGEST: of its URL and of what the view says of it

The first process of a machine that opens a remote view downloads them, while the others wait, and checks them; each
process checks what it maps. Where the cache directory cannot be used, they are read into memory.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

from wids.errors import SpecError
from wids.files import atomic
from wids.files.shared_files import SharedFiles
from wids.index import view_file
from wids.index.shared_rows import RowsPlace, SharedSelection, identify
from wids.transport import urls
from wids.transport.download import download_to, read_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wids.index.view_file import RowsFile, View


class ViewRows:
    """The file of a view's rows.

    Args:
        url: where it is.
        view: what the view says.
        counts: how many samples each shard of its index holds; None: that is not known, nor compared.
        cache_dir: where a remote one is kept; None: in memory.
        storage_options: for fsspec.
    """

    def __init__(
        self,
        url: str,
        view: View,
        counts: Sequence[int] | None,
        *,
        cache_dir: str | None,
        storage_options: dict[str, Any] | None,
    ) -> None:
        self._url, self._view, self._counts, self._options = url, view, counts, storage_options
        self._shards = view.view_of_counts[0] if counts is None else len(counts)
        self._max_bytes = view_file.max_bytes(self._shards, view.nsamples)
        self._kept = None if cache_dir is None else SharedFiles(cache_dir, view_file.SUFFIX)

    def load(self) -> SharedSelection:
        """The selection.

        Raises:
            SpecError: it is damaged, or of another view. OSError: it cannot be read; of a remote one, FetchError.
        """
        if urls.is_local(self._url):
            path = os.path.expanduser(urls.local_path(self._url))
            return self._take(path, *atomic.map_file(path))
        if self._kept is not None:
            facts = f"{self._url}\0{self._view.rows_checksum}\0{self._view.nsamples}\0{self._shards}"
            digest = hashlib.blake2b(facts.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
            found = self._kept.get(digest, self._download, lambda file: self._take(*file))
            if found is not None:
                return found
        data = read_bytes(self._url, storage_options=self._options, max_bytes=self._max_bytes)
        return SharedSelection(*self._unpack(data)[:2])

    def _take(self, path: str, data: memoryview, status: os.stat_result) -> SharedSelection:
        ends, rows, offset = self._unpack(data)
        place = RowsPlace(path, identify(status), offset, len(ends), samples=len(rows), width=rows.dtype.itemsize)
        return SharedSelection(ends, rows, place=place)

    def _unpack(self, data: bytes | memoryview) -> RowsFile:
        found = view_file.unpack_rows(data, counts=self._counts, place=self._url)
        facts, expected = (view_file.checksum_of(data), len(found[1])), (self._view.rows_checksum, self._view.nsamples)
        if facts != expected:
            raise SpecError(
                f"{self._url}: are the rows of another view: their (rows_checksum, nsamples) is {facts}, and this one "
                f"says {expected}; save the view again",
                path="rows",
            )
        return found

    def _download(self, path: str, _: int) -> None:
        def check() -> None:
            self._unpack(atomic.map_file(path)[0])

        download_to(self._url, path, check=check, max_bytes=self._max_bytes, storage_options=self._options)

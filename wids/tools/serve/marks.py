"""Marked samples, and the file that they are kept in: their indices, as ``select`` and ``exclude`` take them.

Rules: a change is in the file before it is answered. The file is replaced as a whole; one that is not of marks of this
dataset is refused at the start, and one that another program has written since is not replaced.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import threading
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from wids.core.files import atomic, json_text
from wids.core.files.replaced import ReplacedFile
from wids.core.transport.upload import check_place, check_replaceable, explained
from wids.errors import (
    InputError,
    OutputExistsError,
    SpecError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wids.core.index.selection import Integers
    from wids.dataset import ShardListDataset

MAX_MARKS = 1_000_000
_ADVICE = "start this wids serve again, and it reads the present file"
_SUFFIX = ".npy"


class Marks:
    """The marked samples of a dataset.

    Args:
        dataset: of the samples.
        name: it as people may see it.
        path: of the file that they are kept in, a local ``.npy``. "": they are in memory.

    Attributes:
        path: the same, absolute.

    Raises:
        OutputError: the file cannot be. OutputExistsError: the file exists and holds no marks of this dataset.
        InputError: it is called otherwise, or has more marks than there may be.
    """

    path: str

    def __init__(self, dataset: ShardListDataset[dict[str, Any]], name: str, path: str = "") -> None:
        self._dataset, self._name = dataset, name
        self._marked = set[int]()
        self._lock = threading.Lock()
        self.path = ""
        if path:
            if not path.endswith(_SUFFIX):
                raise InputError(f"{path}: marks are kept as indices; give the file a name that ends in {_SUFFIX}")
            self.path = check_place(path, "a file of marks", "marks.npy")
            if os.path.islink(self.path):  # its target is kept up to date, for readers of the target
                self.path = check_place(os.path.realpath(self.path), "a file of marks", "marks.npy")
            self._open()

    def __len__(self) -> int:
        return len(self._marked)

    def has(self, index: int) -> bool:
        """True if a sample is marked."""
        return index in self._marked

    def indices(self) -> Integers:
        """The marked samples: int64, ascending."""
        with self._lock:
            return self._sorted(self._marked)

    @staticmethod
    def _sorted(marked: set[int]) -> Integers:
        return np.array(sorted(marked), np.int64)

    def change(self, indices: Iterable[int], *, is_marked: bool) -> None:
        """Mark samples, or no longer.

        Args:
            indices: of the samples, in range.
            is_marked: which of both.

        Raises:
            InputError: too many are marked. OutputError: the file cannot be written; nothing has changed.
        """
        given = set(indices)
        with self._lock:
            marked = self._marked | given if is_marked else self._marked - given
            if len(marked) > MAX_MARKS:
                raise InputError(
                    f"{len(marked):,} samples would be marked, and {MAX_MARKS:,} can be; of so many make a view: "
                    "wids view --where"
                )
            if marked != self._marked:
                self._write(marked)
                self._marked = marked

    # --- the file

    def view(self) -> ShardListDataset[dict[str, Any]]:
        """A view of those that are marked."""
        return self._dataset.select(self.indices())

    def _write(self, marked: set[int]) -> None:
        if self.path:
            with explained(self.path), self._file.alone():
                atomic.write_atomically(self.path, pack_indices(self._sorted(marked)), is_synced=True)

    def _open(self) -> None:
        """Read the file that is there, if there is one.

        Raises:
            WidsError: see the class.
        """
        self._file = ReplacedFile(self.path, advice=_ADVICE)
        found: list[Integers] = []
        reasons: list[Exception] = []

        def is_such(path: str) -> bool:
            try:
                found[:] = [self._read_indices(path)] if os.path.getsize(path) else []
            except (OSError, ValueError) as error:
                reasons.append(error)
            return not reasons

        try:
            check_replaceable(self.path, f"file of marks of {self._name}", is_such, overwrite=None)
        except OutputExistsError as error:
            if not reasons:
                raise
            raise OutputExistsError(f"{error} ({reasons[0]})", path=self.path) from error
        marked = set(found[0].tolist()) if found else set[int]()
        if len(marked) > MAX_MARKS:
            raise InputError(f"{self.path}: has {len(marked):,} samples, and {MAX_MARKS:,} can be marked")
        self._marked = marked

    def _read_indices(self, path: str) -> Integers:
        try:
            # Mapped first: a header may claim more than the file has, and memory for it would be taken.
            found = np.array(np.load(path, mmap_mode="r", allow_pickle=False))
        except (EOFError, ValueError):
            raise SpecError("it is no array of numbers", path=path) from None
        total = len(self._dataset)
        if found.ndim != 1 or found.dtype != np.int64 or (found[1:] <= found[:-1]).any():
            raise SpecError("it has no ascending indices", path=path)
        if len(found) and not 0 <= found[0] <= found[-1] < total:
            raise SpecError(f"it has indices beyond {total} samples", path=path)
        return found


def pack_indices(indices: Integers) -> bytes:
    """A ``.npy``."""
    data = io.BytesIO()
    np.save(data, indices)
    return data.getvalue()


def pack_view(view: ShardListDataset[dict[str, Any]], name: str) -> bytes:
    """A saved view, as a zip of its two files that may be unpacked anywhere on this machine.

    Args:
        view: of a dataset.
        name: of the index in the zip.
    """
    data = io.BytesIO()
    with tempfile.TemporaryDirectory(prefix="wids-view-") as folder, zipfile.ZipFile(data, "w") as packed:
        path = os.path.join(folder, name)
        view.save(path)
        with open(path, "rb") as file:
            index = json_text.parse(file.read())
        rows = os.path.basename(index["rows"])
        packed.writestr(name, json.dumps(index, indent=1))
        packed.write(os.path.join(folder, rows), rows)
    return data.getvalue()

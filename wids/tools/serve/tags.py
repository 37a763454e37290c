"""Tags of samples, and the file that they are kept in.

Rules: a change is in the file before it is answered. It says what it adds or takes away, so that no page overwrites
what another one has changed, and it can be undone, which is a change, too. The file is replaced as a whole; one that is
not of tags of this dataset is refused at the start, and one that another program has written since is not replaced.

The file has three arrays of NumPy, one behind the other: the indices of all samples with a tag, which ``select`` and
``exclude`` of a dataset read; the tags of each, as bits; the names of the tags. In a file with the first alone all
samples have tag 1.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import tempfile
import threading
import unicodedata
import zipfile
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wids.core.files import atomic, json_text
from wids.core.files.replaced import ReplacedFile
from wids.core.readers.lru import SizedLRUCache
from wids.core.transport.upload import check_place, check_replaceable, explained
from wids.errors import InputError, OutputExistsError, SelectionError, SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wids.core.index.selection import Integers
    from wids.dataset import ShardListDataset

TAGS = 9
MAX_TAGGED = 1_000_000
MAX_LETTERS = 60
_ADVICE = "start this wids serve again, and it reads the present file"
_SUFFIX = ".npy"
# Of changes that can be undone.
_KEPT_BYTES = 32 << 20
# Of bits and names in a file, beside two for each sample.
_MAX_REST = 1 << 16
# Categories of Unicode that no name has: control characters, halves of characters, ends of lines.
_UNSEEN = frozenset({"Cc", "Cs", "Zl", "Zp"})


class _State(NamedTuple):
    """All tags.

    Attributes:
        indices: of the samples that have one: int64, ascending.
        bits: of each of them, uint16: bit 0 is tag 1.
        names: of the tags; "": it has none.
    """

    indices: Integers
    bits: np.ndarray[Any, np.dtype[np.uint16]]
    names: tuple[str, ...]

    def of(self, tag: int) -> Integers:
        """The samples with a tag; 0: with any."""
        return self.indices[self.bits & _bit(tag) != 0] if tag else self.indices


class Change(NamedTuple):
    """Samples that got a tag, or lost it, at once.

    Attributes:
        number: names it, for `Tags.undo`.
        tag: which.
        indices: of the samples that have it now and did not, or the other way round: int64, ascending.
        is_set: which of both.
    """

    number: str
    tag: int
    indices: Integers
    is_set: bool


class Tags:
    """The tags of a dataset's samples: numbers from 1 to 9, which may have names.

    Args:
        dataset: of the samples.
        name: it as people may see it.
        path: of the file that they are kept in, a local ``.npy``. "": they are in memory.

    Attributes:
        path: the same, absolute.

    Raises:
        OutputError: the file cannot be. OutputExistsError: the file exists and holds no tags of this dataset.
        InputError: it is called otherwise, or has more samples than there may be.
    """

    path: str

    def __init__(self, dataset: ShardListDataset[dict[str, Any]], name: str, path: str = "") -> None:
        self._dataset, self._name = dataset, name
        self._state = _State(np.zeros(0, np.int64), np.zeros(0, np.uint16), ("",) * TAGS)
        self._changes: SizedLRUCache[str, Change] = SizedLRUCache(_KEPT_BYTES)
        self._lock = threading.Lock()
        self.path = ""
        if path:
            if not path.endswith(_SUFFIX):
                raise InputError(f"{path}: tags are kept as indices; give the file a name that ends in {_SUFFIX}")
            self.path = check_place(path, "a file of tags", "tags.npy")
            if os.path.islink(self.path):  # its target is kept up to date, for readers of the target
                self.path = check_place(os.path.realpath(self.path), "a file of tags", "tags.npy")
            self._open()

    def __len__(self) -> int:
        """The number of samples with a tag."""
        return len(self._state.indices)

    @property
    def names(self) -> Sequence[str]:
        """The names of the tags, from tag 1 on; "": it has none."""
        return self._state.names

    def count(self, tag: int) -> int:
        """The number of samples with a tag."""
        return len(self._state.of(tag))

    def indices(self, tag: int = 0) -> Integers:
        """The samples with a tag, ascending; 0: with any."""
        return self._state.of(tag)

    def of(self, indices: Sequence[int]) -> list[list[int]]:
        """The tags of each of these samples, ascending."""
        state = self._state
        if not len(state.indices):
            return [[] for _ in indices]
        wanted = np.array(indices, np.int64)
        at = np.minimum(np.searchsorted(state.indices, wanted), len(state.indices) - 1)
        bits = np.where(state.indices[at] == wanted, state.bits[at], 0).tolist()
        return [[tag for tag in range(1, TAGS + 1) if each >> (tag - 1) & 1] for each in bits]

    def change(self, tag: int, indices: Iterable[int], *, is_set: bool) -> Change:
        """Set a tag on samples, or take it away.

        Args:
            tag: from 1 to 9.
            indices: of the samples, in range.
            is_set: which of both.

        Raises:
            InputError: too many have one. OutputError: the file cannot be written; nothing has changed.
        """
        bit, given = _bit(tag), np.unique(np.fromiter(indices, np.int64))
        with self._lock:
            state = self._state
            found = np.union1d(state.indices, given)
            bits = np.zeros(len(found), np.uint16)
            bits[np.searchsorted(found, state.indices)] = state.bits
            at = np.searchsorted(found, given)
            changed = given[(bits[at] & bit != 0) != is_set]
            bits[at] = bits[at] | bit if is_set else bits[at] & ~bit
            if (count := int(np.count_nonzero(bits))) > MAX_TAGGED:
                raise InputError(
                    f"{count:,} samples would have a tag, and {MAX_TAGGED:,} can; of so many make a view: "
                    "wids view --where"
                )
            if len(changed):
                self._write(state._replace(indices=found[bits != 0], bits=bits[bits != 0]))
            change = Change(secrets.token_hex(8), tag, changed, is_set)
            self._changes.keep(change.number, change, changed.nbytes + 200)
        return change

    def undo(self, number: str) -> Change:
        """Undo a change, where its samples have not been changed back; to undo the result is to do it again.

        Raises:
            SelectionError: it is not known any more. InputError, OutputError: see `change`.
        """
        with self._lock:
            change = self._changes.use(number)
        if change is None:
            raise SelectionError("this change is too old to be undone, or wids serve was started again since")
        return self.change(change.tag, change.indices.tolist(), is_set=not change.is_set)

    def rename(self, tag: int, name: str) -> None:
        """Give a tag a name; "": none. White space becomes single spaces.

        Raises:
            InputError: it is too long, or has letters that cannot be seen. OutputError: the file cannot be written.
        """
        name = " ".join(name.split())
        if len(name) > MAX_LETTERS:
            raise InputError(f"the name of a tag has {MAX_LETTERS} letters at most, and this has {len(name):,}")
        if any(unicodedata.category(letter) in _UNSEEN for letter in name):
            raise InputError("the name of a tag has letters that cannot be seen")
        with self._lock:
            names = [*self._state.names]
            names[tag - 1] = name
            self._write(self._state._replace(names=tuple(names)))

    # --- the file

    def _write(self, state: _State) -> None:
        if self.path:
            data = pack_arrays(state.indices, state.bits, np.array(state.names))
            with explained(self.path), self._file.alone():
                atomic.write_atomically(self.path, data, is_synced=True)
        self._state = state

    def _open(self) -> None:
        """Read the file that is there, if there is one.

        Raises:
            WidsError: see the class.
        """
        self._file = ReplacedFile(self.path, advice=_ADVICE)
        found: list[_State] = []
        reasons: list[Exception] = []

        def is_such(path: str) -> bool:
            try:
                found[:] = [self._read(path)] if os.path.getsize(path) else []
            except (OSError, ValueError) as error:
                reasons.append(error)
            return not reasons

        try:
            check_replaceable(self.path, f"file of tags of {self._name}", is_such, overwrite=None)
        except OutputExistsError as error:
            if not reasons:
                raise
            raise OutputExistsError(f"{error} ({reasons[0]})", path=self.path) from error
        if found and len(found[0].indices) > MAX_TAGGED:
            raise InputError(f"{self.path}: has {len(found[0].indices):,} samples, and {MAX_TAGGED:,} can have a tag")
        self._state = found[0] if found else self._state

    def _read(self, path: str) -> _State:
        try:
            # Mapped first: a header may claim more than the file has, and memory for it would be taken.
            mapped = np.load(path, mmap_mode="r", allow_pickle=False)
            found = np.array(mapped)
        except (EOFError, ValueError):
            raise SpecError("it is no array of numbers", path=path) from None
        total = len(self._dataset)
        if found.ndim != 1 or found.dtype != np.int64 or (found[1:] <= found[:-1]).any():
            raise SpecError("it has no ascending indices", path=path)
        if len(found) and not 0 <= found[0] <= found[-1] < total:
            raise SpecError(f"it has indices beyond {total} samples", path=path)
        with open(path, "rb") as file:
            file.seek(mapped.offset + mapped.nbytes)
            rest = io.BytesIO(file.read(2 * len(found) + _MAX_REST))
        if not rest.getbuffer().nbytes:
            return _State(found, np.ones(len(found), np.uint16), ("",) * TAGS)
        try:
            bits, names = (np.load(rest, allow_pickle=False) for _ in range(2))
        except (EOFError, ValueError, MemoryError):
            raise SpecError("what follows its indices are no tags", path=path) from None
        is_such = (
            bits.dtype == np.uint16 and bits.shape == found.shape and bool(((bits > 0) & (bits < 1 << TAGS)).all())
        )
        if not is_such or names.dtype.kind != "U" or names.shape != (TAGS,):
            raise SpecError("what follows its indices are no tags", path=path)
        return _State(found, bits, tuple(names.tolist()))


def _bit(tag: int) -> np.uint16:
    return np.uint16(1 << (tag - 1))


def pack_arrays(*arrays: np.ndarray[Any, Any]) -> bytes:
    """A ``.npy`` of an array, or of several, one behind the other."""
    data = io.BytesIO()
    for each in arrays:
        np.save(data, each)
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

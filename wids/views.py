"""A part of a dataset as a selection of its samples, which workers of every start method share. Without torch."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import tempfile
import weakref
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from wids.errors import InputError
from wids.events import logger
from wids.index.fingerprint import portable_names
from wids.index.selection import Selection, deal, hash_texts, parse_indices, parse_shares, pick
from wids.order.permutation import SPLIT, random_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from wids.collection import ShardCollection
    from wids.index.selection import Integers
    from wids.keys import Keys

SplitBy: TypeAlias = Literal["key", "shard", "index"]


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


def select(collection: ShardCollection, indices: Integers) -> SharedSelection:
    """The samples of a collection at these indices: ascending, each once, in range."""
    chosen = collection.shards.selection
    ends, rows = pick(indices, collection.ends, None if chosen is None else chosen.arrays[1])
    return SharedSelection(ends, rows)


def find_excluded(what: Any, keys: Keys) -> npt.NDArray[np.bool_]:
    """Which samples to leave out: a mask.

    Args:
        what: indices, a mask, or keys; or a path of a file of them (see `read_excluded`).
        keys: of the samples. They are read only where keys are given.
    """
    n = len(keys)
    found = np.zeros(n, np.bool_)
    if isinstance(what, (str, os.PathLike)):
        what = read_excluded(os.fspath(what))
    elif not hasattr(what, "__array__") and not isinstance(what, range):
        what = list(what)
    if isinstance(what, list) and what and all(isinstance(each, str) for each in what):
        return _with_keys(keys, set(what))
    found[parse_indices(what, n)] = True
    return found


def _with_keys(keys: Keys, wanted: set[str]) -> npt.NDArray[np.bool_]:
    found = np.zeros(len(keys), np.bool_)
    seen = set()
    for index, key in enumerate(keys):
        if key in wanted:
            found[index] = True
            seen.add(key)
    if len(seen) < len(wanted):
        logger.warning("%d of %d keys to leave out are in no sample", len(wanted) - len(seen), len(wanted))
    return found


def read_excluded(path: str) -> Any:
    """What a file names to be left out: ``.npy``: an array of indices, or a mask; any other: a key a line.

    Raises:
        InputError: it cannot be read, or is none of these.
    """
    try:
        if path.endswith(".npy"):
            return np.load(path, allow_pickle=False)
        with open(path, encoding="utf-8") as file:
            return [line for text in file if (line := text.rstrip("\r\n"))]
    except (OSError, ValueError) as error:  # a UnicodeDecodeError is a ValueError
        raise InputError(f"{path}: cannot be read as indices or keys ({error})") from error


def split(
    collection: ShardCollection, keys: Keys, shares: Sequence[float], *, by: SplitBy, seed: int
) -> list[Integers]:
    """The indices of each part of a split.

    Args:
        collection: what to split.
        keys: of its samples; read only if they decide.
        shares: of the parts; they are scaled to add up to 1.
        by: what decides where a sample goes: its key, its shard's name, or its index alone.
        seed: another one gives another split.
    """
    parts, total = parse_shares(shares), len(collection)
    if by == "index":
        draws = random_words(total, seed=seed, epoch=0, stream=SPLIT)
    elif by == "shard":
        names = hash_texts(portable_names(collection.shards.urls), seed)
        draws = np.repeat(names, np.asarray(collection.lengths, np.int64))
    elif by == "key":
        draws = hash_texts(keys, seed)
    else:
        raise InputError(f"by is {by!r}; a split is by 'key', 'shard' or 'index'")
    return deal(parts, draws)

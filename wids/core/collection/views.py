"""Parts of a dataset: their samples. Without torch."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from wids.core.collection import error_log
from wids.core.files.nearest import name_nearest
from wids.core.index.fingerprint import portable_names
from wids.core.index.selection import deal, hash_texts, hash_values, list_items, parse_indices, parse_shares, pick
from wids.core.index.view_rows import SharedSelection
from wids.core.order.permutation import SPLIT, random_words
from wids.core.place import Place
from wids.errors import InputError, shown
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from wids.core.collection.keys import Keys
    from wids.core.collection.shard_collection import ShardCollection
    from wids.core.index.selection import Integers
    from wids.core.index.shardlist import ShardList

# Indices as text.
_SLICE = re.compile(r"-?\d+|(-?\d*(?::-?\d*){1,2})")
# "key", "shard", "index", a column, or SQL over columns; or a value for each sample.
SplitBy: TypeAlias = str | Sequence[Any] | np.ndarray[Any, np.dtype[Any]]

# The beginning of a step that made a part of a split.
PART = "part "


def choose(shards: ShardList, indices: Integers) -> SharedSelection:
    """The samples of a shard list, or of a view, at these indices: ascending, each once, in range."""
    ends, rows = pick(indices, shards.ends(), None if shards.selection is None else shards.selection.arrays[1])
    return SharedSelection(ends, rows)


def find_samples(what: Any, keys: Keys, collection: ShardCollection) -> Integers:
    """The indices of the samples that a program names: int64, ascending, each once.

    Args:
        what: indices, a mask, or keys; or a path of a file of them (see `read_samples`).
        keys: of the samples. They are read only where keys are given.
        collection: of the samples.

    Raises:
        InputError: they are none of these. IndexError: an index is out of range.
    """
    where = ""
    if isinstance(what, (str, os.PathLike)):
        path = local_path(what)
        if path.endswith(error_log.SUFFIX):
            return np.flatnonzero(_in_log(path, collection))
        what, where = read_samples(path), f"{path}: "
    if hasattr(what, "__array__"):
        what = np.asarray(what)
        what = what if what.dtype.kind in "biuf" else what.tolist()
    elif not isinstance(what, (range, slice)):
        what = list_items(what)
    if isinstance(what, list) and what and all(isinstance(each, str) for each in what):
        return np.flatnonzero(_with_keys(keys, set(what), where))
    indices, repeated = parse_indices(what, len(collection))
    if repeated:
        logger.warning("%s%d of %d indices come again, and count once", where, repeated, repeated + len(indices))
    return indices


def _in_log(path: str, collection: ShardCollection) -> npt.NDArray[np.bool_]:
    """Mask of the samples of a log of errors: (n,) booleans for n samples; see `wids.core.collection.error_log`.

    Raises:
        InputError: it cannot be read, or is no such log.
    """
    is_in_log, bad = np.zeros(len(collection), np.bool_), error_log.read_rows(path)
    strange, beyond = set(bad), 0
    for k, url in enumerate(collection.shards.urls if bad else ()):
        name = Place(url).absolute.unsigned
        if name in bad:
            strange.discard(name)
            lo = collection.ends[k] - collection.lengths[k]
            is_in_log[lo : collection.ends[k]] = np.isin(np.asarray(collection.rows_of(k)), list(bad[name]))
            beyond += sum(row >= collection.shards.nsamples[k] for row in bad[name])
    if strange:
        words = "%s: %d of the %d shards in it are none of this dataset's, such as %s"
        logger.warning(words, path, len(strange), len(bad), min(strange))
    if beyond:
        logger.warning("%s: %d samples in it are beyond the end of their shard: is it of another one?", path, beyond)
    return is_in_log


def _with_keys(keys: Keys, wanted: set[str], where: str) -> npt.NDArray[np.bool_]:
    has_key = np.zeros(len(keys), np.bool_)
    seen: set[str] = set()
    repeated: set[str] = set()
    for index, key in enumerate(keys):
        if key in wanted:
            has_key[index] = True
            (repeated if key in seen else seen).add(key)
    if repeated:
        words = "%s%d of %d keys are each of several samples, like %s: %d samples have one of the keys, and all count"
        logger.warning(words, where, len(repeated), len(wanted), shown(min(repeated)), has_key.sum())
    if len(seen) < len(wanted):
        count, total, some = len(wanted) - len(seen), len(wanted), shown(min(wanted - seen))
        first = next(iter(keys), None)  # of which the form may be another one
        words = "" if seen or first is None else f"; the first sample's key is {shown(first)}"
        logger.warning("%s%d of %d keys are in no sample, like %s%s", where, count, total, some, words)
    return has_key


def read_samples(path: str) -> Any:
    """The samples that a file names: ``.npy``: an array of indices, or a mask; any other: a key a line.

    Raises:
        InputError: it cannot be read, or is none of these.
    """
    try:
        if path.endswith(".npy"):
            # Mapped first: a header may claim more than the file has, and memory for it would be taken.
            return np.array(np.load(path, mmap_mode="r", allow_pickle=False))
        with open(path, encoding="utf-8-sig") as file:
            return [line for text in file if (line := text.rstrip("\r\n"))]
    except (OSError, ValueError) as error:  # a UnicodeDecodeError is a ValueError
        raise InputError(
            f"{path}: cannot be read as a file of indices or keys ({error}){_meant(path, error)}", path=path
        ) from error


def _meant(text: str, error: Exception) -> str:
    """The likely meaning of a text, if there is no such file; the end of a message."""
    if not isinstance(error, FileNotFoundError):
        return ""
    if match := _SLICE.fullmatch(text):
        words = ", ".join(part or "None" for part in text.split(":"))
        return f"; a range of samples is select({f'slice({words})' if match[1] else f'[{text}]'})"
    return name_nearest(text) or "; keys are given in a list, SQL to where()"


def split(
    collection: ShardCollection,
    keys: Keys,
    shares: Sequence[float],
    *,
    by: SplitBy,
    seed: int,
    made_by: Sequence[str],
    read: Callable[[SplitBy], npt.NDArray[Any]],
) -> list[Integers]:
    """The indices of each part of a split.

    Args:
        collection: the samples to split.
        keys: of its samples; read only if they decide.
        shares: of the parts; they are scaled to add up to 1.
        by: decides the part of a sample: its key, its shard's name, its index alone, or its value.
        seed: an integer; another one gives another split.
        made_by: the steps that made the collection. A part of a split is split by other numbers than the whole was.
        read: the values of all samples, if they decide: (nsamples,).

    Raises:
        InputError: bad shares; a sample has no value.
    """
    total, parts = len(collection), parse_shares(shares)
    if not isinstance(seed, Integral):
        raise InputError(f"seed is {seed!r:.60}; it is an integer")
    depth = sum(step.startswith(PART) for step in made_by)
    if not isinstance(by, str) or by not in ("index", "shard", "key"):
        draws = _hash_values(by, read(by), total, seed, depth)
    elif by == "index":
        draws = random_words(total, seed=seed, epoch=0, stream=SPLIT)
    elif by == "shard":
        names = hash_texts(portable_names(collection.shards.urls), seed, depth)
        draws = np.repeat(names, np.asarray(collection.lengths, np.int64))
    else:
        draws = hash_texts(keys, seed, depth)
    return deal(parts, draws)


def _hash_values(by: SplitBy, values: npt.NDArray[Any], total: int, seed: int, depth: int) -> npt.NDArray[np.uint64]:
    """`hash_values` of as many values as there are samples.

    Raises:
        InputError: they are not, or have none.
    """
    name = f"by={by!r:.60}" if isinstance(by, str) else "by"
    if len(values) != total:
        raise InputError(f"{name}: {len(values):,} values for {total:,} samples", parameter="by")
    try:
        return hash_values(values, seed, depth)
    except InputError as error:
        raise InputError(f"{name}: {error}", parameter="by") from error


def of_file(samples: Any) -> str:
    """The file that names samples, in brackets; "": none does."""
    return f" ({local_path(samples)})" if isinstance(samples, (str, os.PathLike)) else ""


def local_path(samples: str | os.PathLike[str]) -> str:
    """The path of a file of samples.

    Raises:
        InputError: it is a URL of another machine.
    """
    place = Place(samples)
    if not place.is_local and not _SLICE.fullmatch(str(place)):
        raise InputError(f"{samples}: a list of samples is read from a local file; download it first")
    return place.path

"""Summary of a dataset: from its index, and from member tables and labels of some of its shards.

Rules: what an index states is summed in its columns, so that a million shards take moments. Nothing is downloaded: a
table or a label that is missing is left out, and how many were looked at is said.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from wids.core.index.companion_file import parse_companions
from wids.core.tables.table import SUFFIX as TABLE_SUFFIX
from wids.errors import WidsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from wids.core.collection.shard_collection import ShardCollection
    from wids.core.index.shardlist import ShardList
    from wids.core.order.layout import SourceSpan
    from wids.core.readers.base import Reader
    from wids.core.tables.table import MemberTable

    Numbers = npt.NDArray[np.int64]

# Labels that are looked at: of so many shards, so many in all, in runs of so many samples that follow each other.
_LABELLED_SHARDS, _LABELS, _RUN = 8, 4096, 16
_FEWEST_LABELS = 20  # below, nothing is said of their order
# The bins of a histogram: of sizes, a quarter of an octave each before they are joined to so many.
_BINS_PER_OCTAVE, _BINS = 4, 24


def describe_index(shards: ShardList) -> dict[str, Any]:
    """The summary of the index, without its parts; -1 in a column is unknown, and a sum with an unknown part is None.

    ``bytes`` are those of whole shards, ``counted`` and ``with_...`` the number of shards of which something is known.
    """
    numbers = held_shards(shards)
    count = len(numbers)
    samples, uncounted = _sum(np.asarray(shards.lengths))
    size, unsized = _sum(np.asarray(shards.filesizes)[numbers])
    held, _ = _sum(np.asarray(shards.nsamples)[numbers])  # in the shards, of which a view has a part
    return {
        "name": shards.header.get("name"),
        "info": shards.header.get("info"),
        "base": shards.header.get("base") or shards.header.get("base_path"),
        **_view_of(shards),
        "companions": _companions(shards),
        "shards": count,
        "samples": samples if not uncounted else None,
        "bytes": size if not unsized else None,
        "samples_per_shard": samples / count if count and not uncounted else None,
        "bytes_per_shard": size / count if count and not unsized else None,
        "bytes_per_sample": size / held if held and not (unsized or uncounted) else None,
        "first_shard": shards.urls[int(numbers[0])] if count else None,
        "last_shard": shards.urls[int(numbers[-1])] if count else None,
        "counted": count - uncounted,
        "with_filesize": count - unsized,
        "with_md5sum": int(shards.md5sums.known()[numbers].sum()),
        "with_crc32": int(shards.crc32s.known()[numbers].sum()),
    }


def held_shards(shards: ShardList) -> Numbers:
    """The numbers of the shards of a dataset; of a view, those that it has samples of."""
    if shards.selection is None:
        return np.arange(len(shards))
    return np.flatnonzero(np.asarray(shards.lengths))


def _view_of(shards: ShardList) -> dict[str, Any]:
    """The dataset of a view, and how the view was made; nothing for any other index."""
    if shards.selection is None:
        return {}
    header = shards.header
    return {
        "view_of": header.get("view_of"),
        "of_shards": len(shards),
        "of_samples": int(np.asarray(shards.nsamples).sum()),
        "made_by": header.get("made_by", []),
    }


def _companions(shards: ShardList) -> list[dict[str, Any]]:
    """The other indexes whose fields the samples have, too; nothing is read of them."""
    return [
        {
            "index": entry.index,
            "on": entry.on,
            "prefix": entry.prefix,
            "fields": [*(entry.fields or entry.known_fields or ())],
        }
        for entry in parse_companions(shards.header, None)
    ]


def _sum(column: Numbers) -> tuple[int, int]:
    """(the sum of the known numbers, the count of unknown ones, which are -1)."""
    known = column[column >= 0]
    return int(known.sum()), len(column) - len(known)


def describe_datasets(shards: ShardList) -> list[dict[str, Any]]:
    """The sub-datasets in order; an empty list if the index has none."""
    numbers, names = held_shards(shards), dict[Any, int]()

    def number_of(name: Any) -> int:
        if not (name is None or isinstance(name, str)):  # a shard entry's own value, of any JSON type
            name = json.dumps(name)
        return names.setdefault(name, len(names))

    own = np.full(len(shards), number_of(None))
    for first, last, keys in shards.components() if shards.starts else ():
        own[first:last] = number_of(keys.get("dataset"))
    for k, keys in shards.extras.items():
        if "dataset" in keys:
            own[k] = number_of(keys["dataset"])
    own = own[numbers]
    if not len(own):
        return []
    found, firsts = np.unique(own, return_index=True)
    texts = list(names)
    by_part = np.argsort(own, kind="stable")
    parts = np.split(numbers[by_part], np.searchsorted(own[by_part], found[1:]))
    described = []
    for at in np.argsort(firsts, kind="stable").tolist():
        keys = shards.describe(int(parts[at][0]))
        part: dict[str, Any] = {"name": texts[int(found[at])], "shards": len(parts[at])}
        for key, column in (("samples", shards.lengths), ("bytes", shards.filesizes)):
            total, unknown = _sum(np.asarray(column)[parts[at]])
            part[key] = None if unknown else total
        described.append(part | {key: keys[key] for key in ("weight", "source_url") if key in keys})
    return [] if [part["name"] for part in described] == [None] else described


def describe_mixture(parts: list[SourceSpan] | None) -> list[dict[str, Any]] | None:
    """The sources of a mixture with their shares; None: the index has no weights for its sub-datasets."""
    if parts is None:
        return None
    total = sum(part.weight for part in parts)
    return [
        {"name": part.name, "samples": part.last - part.first, "weight": part.weight, "share": part.weight / total}
        for part in parts
    ]


def spread_over(numbers: Sequence[int] | Numbers, most: int) -> list[int]:
    """Some of these shards, spread over all of them."""
    most = min(most, len(numbers))
    return [int(numbers[k * (len(numbers) - 1) // max(most - 1, 1)]) for k in range(most)]


# --- fields


@dataclass
class FieldSizes:
    """The members of one field in the tables that were looked at.

    Attributes:
        name: its extension.
        samples: number of samples that have it.
        bytes: of all its members.
        least: bytes of the smallest one.
        largest: bytes of the largest one.
        by_size: number of members of each size: (256,), in quarters of an octave.
    """

    name: str
    samples: int = 0
    bytes: int = 0
    least: int = 1 << 63
    largest: int = 0
    by_size: Numbers = field(default_factory=lambda: np.zeros(64 * _BINS_PER_OCTAVE, np.int64))

    def add(self, sizes: Numbers) -> None:
        """Members of these sizes."""
        self.samples += len(sizes)
        self.bytes += int(sizes.sum())
        self.least, self.largest = min(self.least, int(sizes.min())), max(self.largest, int(sizes.max()))
        bins = (np.log2(np.maximum(sizes, 1)) * _BINS_PER_OCTAVE).astype(np.int64)
        self.by_size += np.bincount(bins, minlength=len(self.by_size))

    def bins(self) -> list[tuple[float, float, int]]:
        """A histogram: (bytes from, bytes below, members) of each bin, a few dozen at most."""
        taken = np.flatnonzero(self.by_size)
        if not len(taken):
            return []
        first, last = int(taken[0]), int(taken[-1]) + 1
        step = -(-(last - first) // _BINS)
        return [
            (2 ** (k / _BINS_PER_OCTAVE), 2 ** ((k + step) / _BINS_PER_OCTAVE), int(self.by_size[k : k + step].sum()))
            for k in range(first, last, step)
        ]


@dataclass
class FieldSummary:
    """The fields of the samples of some shards.

    Attributes:
        shards: number of shards looked at.
        samples: number of samples looked at.
        fields: by their extensions.
    """

    shards: int = 0
    samples: int = 0
    fields: dict[str, FieldSizes] = field(default_factory=dict)

    def add(self, table: MemberTable, rows: range | npt.NDArray[Any]) -> None:
        """The samples of these rows of a shard."""
        rows = np.asarray(rows, np.int64)
        rows = rows[rows < table.nsamples]
        starts, sizes = np.asarray(table.starts).astype(np.int64), np.asarray(table.sizes).astype(np.int64)
        is_chosen = np.zeros(table.nsamples, bool)
        is_chosen[rows] = True
        is_member = np.repeat(is_chosen, np.diff(starts))
        ids = np.asarray(table.extension_ids)
        for number, name in enumerate(table.extensions):
            found = sizes[: len(is_member)][is_member & (ids[: len(is_member)] == number)]
            if len(found):
                self.fields.setdefault(name, FieldSizes(name)).add(found)
        self.shards += 1
        self.samples += len(rows)


# --- classes


@dataclass(frozen=True)
class Classes:
    """Labels (``.cls``) of some samples.

    Attributes:
        labels: (label, number of times that it was seen), the most frequent first.
        count: classes in all, as far as known.
        per_shard: classes in a shard, on average.
        shards: number of shards looked at.
        samples: number of samples looked at.
        is_sorted: samples of one class stand together.
        is_whole: all labels of these shards were read.
    """

    labels: list[tuple[bytes, int]]
    count: int
    per_shard: float
    shards: int
    samples: int
    is_sorted: bool
    is_whole: bool


def find_classes(collection: ShardCollection, open_here: Callable[[int], Reader | None]) -> Classes | None:
    """Distribution of classes over the shards, by some of the labels; None: too few are here.

    Args:
        collection: the samples.
        open_here: opens the shard of a number; None: it is not on this machine.
    """
    shards = collection.shards
    numbers = held_shards(shards)
    has_tables = len(numbers) > 0 and os.path.exists(shards.urls[int(numbers[0])] + TABLE_SUFFIX)
    # The headers of whole shards are read otherwise.
    chosen = spread_over(numbers, _LABELLED_SHARDS if has_tables else 2)
    runs: list[list[list[bytes]]] = []  # of each shard
    with contextlib.suppress(WidsError):
        for k in chosen:
            reader = open_here(k)
            if reader is not None:
                with contextlib.closing(reader):
                    runs.append(_labels(collection, k, reader, _LABELS // len(chosen)))
    found = [Counter(itertools.chain.from_iterable(own)) for own in runs]
    total = sum(found, Counter[bytes]())
    looked = total.total()
    if looked < _FEWEST_LABELS:
        return None
    pairs = [a == b for own in runs for run in own for a, b in itertools.pairwise(run)]
    by_chance = sum((count / looked) ** 2 for count in total.values())
    expected = sum(1 - (1 - count / looked) ** own.total() for own in found for count in total.values())
    has_long_runs = sum(pairs) > (1 + by_chance) / 2 * len(pairs)
    return Classes(
        labels=total.most_common(),
        count=max(len(total), len(shards.class_names)),
        per_shard=sum(map(len, found)) / len(found),
        shards=len(found),
        samples=looked,
        is_sorted=len(total) > 1 and (has_long_runs or sum(map(len, found)) < expected / 2),
        is_whole=looked == sum(shards.lengths[k] for k in chosen),
    )


def _labels(collection: ShardCollection, k: int, reader: Reader, most: int) -> list[list[bytes]]:
    """Labels of a shard, of all its samples or in runs that are spread over it."""
    rows = [int(row) for row in collection.rows_of(k)]
    count = len(rows)
    starts = [0]
    if count > most:
        starts = [j * (count - _RUN) // (most // _RUN - 1) for j in range(most // _RUN)]
    runs = [rows[start : start + (_RUN if count > most else count)] for start in starts]
    read = [reader.read_rows(run, (".cls",)) for run in runs]
    return [[sample[".cls"].getvalue().strip() for sample in run if ".cls" in sample] for run in read]

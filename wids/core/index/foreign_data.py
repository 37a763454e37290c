"""Datasets of other tools, recognised by the names of their files: their kind, and the way from them to shards.

Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

_FOLDER = "pack it from a local disk: wids pack FOLDER; of one with splits, the folder of each"
_WRITE = "write what it yields with wids.ShardWriter"
_PACK = "and pack that: wids pack x.parquet --field .jpg=COLUMN"


class ForeignFormat(NamedTuple):
    """A format that wids does not read.

    Attributes:
        name: its name.
        way: from it to shards.
        is_it: takes the names of a dataset's files; True if they are of this format.
    """

    name: str
    way: str
    is_it: Callable[[frozenset[str]], bool]


def _has(pattern: str) -> Callable[[frozenset[str]], bool]:
    """Make a test: some name matches, from its first character to its last."""
    compiled = re.compile(pattern)
    return lambda names: any(map(compiled.fullmatch, names))


def _are_pairs(suffix: str) -> Callable[[frozenset[str]], bool]:
    """Make a test: names end so, and each of them has an index beside it, which ends in .idx."""

    def are_pairs(names: frozenset[str]) -> bool:
        stems = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
        return bool(stems) and all(f"{stem}.idx" in names for stem in stems)

    return are_pairs


def _are_all(pattern: str) -> Callable[[frozenset[str]], bool]:
    """Make a test: all names, except those of notes, match."""
    compiled = re.compile(pattern)

    def are_all(names: frozenset[str]) -> bool:
        shards = [name for name in names if not name.endswith((".json", ".md", ".crc"))]
        return bool(shards) and all(map(compiled.fullmatch, shards))

    return are_all


# Hidden names that tell what a folder is; all others are those of systems.
_ZARR = frozenset((".zarray", ".zgroup", ".zmetadata", "zarr.json"))
_FORMATS = (
    ForeignFormat(
        "a dataset of MosaicML's streaming (.mds)",
        f"{_FOLDER}; or read it with streaming.StreamingDataset(local=...), and {_WRITE}",
        _has(r".*\.mds(\.[a-z0-9]+)?"),
    ),
    ForeignFormat(
        "a dataset of LitData (chunk-*.bin)",
        f"{_FOLDER}; or read it with litdata.StreamingDataset(...), and {_WRITE}",
        lambda names: "index.json" in names and _has(r"chunk-.*\.bin")(names),
    ),
    ForeignFormat(
        "a dataset that Hugging Face's datasets saved (save_to_disk, .arrow)",
        _FOLDER,
        lambda names: "dataset_dict.json" in names or {"state.json", "dataset_info.json"} <= names,
    ),
    ForeignFormat(
        "a table that Hugging Face's datasets keep (.arrow)",
        "pack it as a table: wids pack 'FOLDER/*.arrow' --field .jpg=COLUMN",
        _has(r".*\.arrow"),
    ),
    ForeignFormat(
        "TFRecord files",
        f"read them with tf.data.TFRecordDataset or the package tfrecord, and {_WRITE}",
        _has(r".*\.?tfrec(ord)?s?(-\d+-of-\d+)?(\.gz)?"),
    ),
    ForeignFormat(
        "a Lance dataset",
        f"lance.dataset(...).to_table() is a table; store it as Parquet, {_PACK}",
        lambda names: "_versions" in names or _has(r".*\.lance")(names),
    ),
    ForeignFormat(
        "a file of FFCV (.beton)",
        f"read it with ffcv.loader.Loader, or pack what it was made of, and {_WRITE}",
        _has(r".*\.beton"),
    ),
    ForeignFormat(
        "an LMDB (data.mdb)", f"read it with the package lmdb, and {_WRITE}", lambda names: "data.mdb" in names
    ),
    ForeignFormat(
        "ArrayRecord files",
        f"read them with the package array_record, and {_WRITE}",
        _has(r".*\.array_?record(-\d+-of-\d+)?"),
    ),
    ForeignFormat(
        "tokens of Megatron (.bin with .idx)",
        f"read them with megatron.core.datasets.indexed_dataset.IndexedDataset, and {_WRITE}",
        _are_pairs(".bin"),
    ),
    ForeignFormat(
        "RecordIO files of MXNet (.rec with .idx)",
        f"read them with mxnet.recordio.MXIndexedRecordIO, and {_WRITE}",
        _are_pairs(".rec"),
    ),
    ForeignFormat("a Zarr store", f"read it with zarr.open, and {_WRITE}", lambda names: not names.isdisjoint(_ZARR)),
    ForeignFormat("Avro files", f"read them with the package fastavro, and {_WRITE}", _has(r".*\.avro")),
    ForeignFormat(
        "a folder of Parquet files",
        "pack them as a table: wids pack 'FOLDER/*.parquet' --field .jpg=COLUMN",
        _are_all(r".*\.parquet"),
    ),
)


def recognise_index(keys: Container[str]) -> str:
    """The words for the top-level keys of a JSON file that was taken for an index."""
    if "shards" in keys and "version" in keys:
        return words_of(["shard.00000.mds"])
    return words_of(["index.json", "chunk-0-0.bin"]) if "chunks" in keys and "config" in keys else ""


def words_of(names: Iterable[str]) -> str:
    """The kind of a dataset with these files, and the way from it to shards, in words; "": nothing known."""
    seen = frozenset(name for name in names if not name.startswith(".") or name in _ZARR)
    return next((f"is {each.name}, which wids does not read; {each.way}" for each in _FORMATS if each.is_it(seen)), "")

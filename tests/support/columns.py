"""Datasets whose columns are known as lists of Python, for the tests of columns."""

import json
import os
from pathlib import Path

import pyarrow.parquet as pq

from tests.support.shards import write_json, write_tar
from wids.columns.create import create_columns
from wids.columns.spec import parse_spec

ASKED = {"fields": [".cls=label"], "jsons": [".json:width,meta.tag=tag,any"], "texts": [".txt=caption"]}
SPEC = parse_spec(**ASKED)


def facts_of(g):
    """What sample ``g`` says of itself; every third has no .json, every fourth no .txt."""
    tag = [None, "red", "blue"][g % 3]
    return {
        "label": g % 5,
        "caption": f"text of {g}" if g % 4 else None,
        "width": 100 + g if g % 3 else None,
        "tag": tag,
        "any": [None, "1", 1][g % 3],
    }


def members_of(g, *, payload=0):
    """The members of sample ``g``: extension -> bytes."""
    facts = facts_of(g)
    members = {"cls": b"%d" % facts["label"], "bin": bytes([g % 256]) * payload}
    if facts["caption"] is not None:
        members["txt"] = facts["caption"].encode()
    if facts["width"] is not None:
        found = {"width": facts["width"], "meta": {"tag": facts["tag"]}, "any": facts["any"], "other": [1]}
        members["json"] = json.dumps(found).encode()
    return members


def write_shard_of(path, first, count, *, payload=0):
    """A shard of ``count`` samples from number ``first`` on; returns the shard's entry, by its name."""
    members = {
        f"k{g:04d}.{extension}": data
        for g in range(first, first + count)
        for extension, data in members_of(g, payload=payload).items()
    }
    write_tar(path, members)
    return {"url": os.path.basename(path), "nsamples": count, "filesize": os.stat(path).st_size}


def write_dataset(directory, counts=(3, 0, 5, 2), *, payload=0):
    """Shards and their index; returns the index's path."""
    entries, first = [], 0
    for k, count in enumerate(counts):
        path = os.path.join(directory, f"s{k}.tar")
        entries.append(write_shard_of(path, first, count, payload=payload))
        first += count
    return write_json(os.path.join(directory, "train.json"), {"wids_version": 1, "shardlist": entries})


def rows_of(counts, *, payload=0):
    """The rows that the columns of such a dataset have, as a list of dicts."""
    rows = []
    for shard, count in enumerate(counts):
        for row in range(count):
            g = len(rows)
            sizes = {extension: len(data) for extension, data in members_of(g, payload=payload).items()}
            facts = facts_of(g)
            rows.append(
                {
                    "index": g,
                    "shard": shard,
                    "row": row,
                    "key": f"k{g:04d}",
                    "bytes": sum(sizes.values()),
                    "label": facts["label"],
                    "width": facts["width"],
                    "tag": facts["tag"],
                    "any": None if facts["any"] is None else json.dumps(facts["any"]),
                    "caption": facts["caption"],
                    **{f"{name}_bytes": sizes.get(name) for name in ("bin", "cls", "json", "txt")},
                }
            )
    return rows


def make_columns(index, *, output=None, **options):
    """Make the columns of a dataset beside its index; returns the job's outcome."""
    path = output or str(Path(index).with_suffix("")) + ".columns.parquet"
    return create_columns(index, path, **{"spec": SPEC, **options})


def read_rows(path):
    """The rows of a Parquet file as a list of dicts."""
    return pq.read_table(path).to_pylist()

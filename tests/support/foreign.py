"""Datasets as other tools write them: MosaicML's streaming, LitData, Hugging Face's ``datasets``."""

import json
import os

import numpy as np
import pyarrow as pa

from tests.support.packing import PICTURES, put, write_arrow

FEATURES = {
    "image": {"_type": "Image"},
    "label": {"names": ["cat", "dog"], "_type": "ClassLabel"},
    "text": {"dtype": "string", "_type": "Value"},
}
MDS = {"caption": "str", "image": "png", "label": "int", "meta": "json", "score": "float32"}
ROWS = [
    (f"é{k}".encode(), PICTURES[k], np.int64(k % 3).tobytes(), b'{"a": %d}' % k, np.float32(k / 2).tobytes())
    for k in range(7)
]


def cut(rows, sizes, head=b""):
    """The bytes of a file: a count, the rows' places, a head, and of each row the sizes of what differs, and values."""
    packed = [
        b"".join(
            [
                *(np.uint32(len(value)).tobytes() for value, size in zip(row, sizes, strict=True) if not size),
                *row,
            ]
        )
        for row in rows
    ]
    ends = np.cumsum([4 * (len(rows) + 2) + len(head), *map(len, packed)]).astype("<u4")
    return b"".join([np.uint32(len(rows)).tobytes(), ends.tobytes(), head, *packed])


def compress(data, codec):
    """The bytes, compressed by a codec of Arrow."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def write_mds(folder, rows=ROWS, columns=MDS, *, each=3, compression=None):
    """Write a dataset of MosaicML's streaming; ``compression``: (its name there, Arrow's name)."""
    sizes = [{"int": 8, "float32": 4}.get(encoding) for encoding in columns.values()]
    shards, files = [], {}
    for k, first in enumerate(range(0, len(rows), each)):
        name, data = f"shard.{k:05d}.mds", cut(rows[first : first + each], sizes, b"{...}")
        entry = {
            "format": "mds",
            "version": 2,
            "samples": len(rows[first : first + each]),
            "column_names": list(columns),
            "column_encodings": list(columns.values()),
            "column_sizes": sizes,
            "compression": None,
            "raw_data": {"basename": name, "bytes": len(data)},
            "zip_data": None,
        }
        if compression:
            theirs, codec = compression
            data = compress(data, codec)
            name = f"{name}.{theirs}"
            entry |= {"compression": f"{theirs}:3", "zip_data": {"basename": name}}
        files[name] = data
        shards.append(entry)
    return put(folder, {"index.json": json.dumps({"version": 2, "shards": shards}), **files})


def write_litdata(folder, rows, columns, *, names=True, each=3, **config):
    """Write a dataset of LitData."""
    leaf = {"type": None, "context": None, "children_spec": []}
    kind, context = ("builtins.dict", json.dumps(list(columns))) if names else ("builtins.tuple", None)
    spec = [1, {"type": kind, "context": context, "children_spec": [leaf] * len(columns)}]
    chunks, files = [], {}
    for k, first in enumerate(range(0, len(rows), each)):
        own = rows[first : first + each]
        files[f"chunk-0-{k}.bin"] = cut(own, [None] * len(columns))
        chunks.append({"filename": f"chunk-0-{k}.bin", "chunk_size": len(own)})
    config = {
        "compression": None,
        "data_format": list(columns.values()),
        "data_spec": json.dumps(spec),
        "item_loader": "PyTreeLoader",
        **config,
    }
    return put(folder, {"index.json": json.dumps({"chunks": chunks, "config": config}), **files})


def save_dataset(folder, table, *, features=FEATURES, state=None):
    """Save a table as ``datasets`` do: two Arrow streams, whose names are not in the order of their rows."""
    os.makedirs(folder)
    names = ["data-b.arrow", "data-a.arrow"]
    for name, part in zip(names, (table.slice(0, 4), table.slice(4)), strict=True):
        write_arrow(folder / name, part)
    state = {"_data_files": [{"filename": name} for name in names]} if state is None else state
    put(folder, {"state.json": json.dumps(state), "dataset_info.json": json.dumps({"features": features})})
    return folder

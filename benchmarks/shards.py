"""The data that every contender reads: plain tar shards made by stdlib ``tarfile``, the same bytes on every machine.

Two sets: ``small`` (two 200-byte members a sample) and ``large`` (one 80-kB member a sample). Beside the shards are
``manifest.json`` (a description of the sets) and, for each set, ``offsets.json`` (the offsets of each member, for the
bare loop).
"""

from __future__ import annotations

import json
import os
import random
import tarfile
from dataclasses import asdict, dataclass
from io import BytesIO


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The size of one set of shards: counts, member names (with their dot) and bytes in each member."""

    name: str
    shards: int
    samples_per_shard: int
    members: tuple[str, ...]
    member_bytes: int


FULL = (
    Shape(name="small", shards=32, samples_per_shard=1000, members=(".a", ".b"), member_bytes=200),
    Shape(name="large", shards=8, samples_per_shard=500, members=(".bin",), member_bytes=80_000),
)
# More small shards than the original's default lru_size of 10, so that random reads miss.
QUICK = (
    Shape(name="small", shards=12, samples_per_shard=100, members=(".a", ".b"), member_bytes=200),
    Shape(name="large", shards=2, samples_per_shard=20, members=(".bin",), member_bytes=80_000),
)


def make(root: str, shapes: tuple[Shape, ...]) -> str:
    """Write the sets under ``root`` unless they exist; returns the manifest's path."""
    manifest = os.path.join(root, "manifest.json")
    wanted = {"shapes": [asdict(shape) for shape in shapes]}
    if os.path.exists(manifest):
        with open(manifest, encoding="utf-8") as stream:
            found = json.load(stream)
        if found["shapes"] != json.loads(json.dumps(wanted["shapes"])):
            raise SystemExit(f"{root} holds benchmark data of another shape; give --data an empty directory")
    else:
        sets = {shape.name: _make_set(os.path.join(root, shape.name), shape) for shape in shapes}
        with open(manifest, "w", encoding="utf-8") as stream:
            json.dump({**wanted, "sets": sets}, stream)
    _read_once(root)
    return manifest


def _make_set(directory: str, shape: Shape) -> dict:
    os.makedirs(directory)
    rng = random.Random(f"{shape.name}-{shape.samples_per_shard}")
    shardlist, offsets = [], []
    for number in range(shape.shards):
        path = os.path.join(directory, f"{shape.name}-{number:04d}.tar")
        _write_shard(path, shape, number * shape.samples_per_shard, rng)
        offsets.append(_read_offsets(path))
        shardlist.append({"url": path, "nsamples": shape.samples_per_shard, "filesize": os.path.getsize(path)})
    where = os.path.join(directory, "offsets.json")
    with open(where, "w", encoding="utf-8") as stream:
        json.dump(offsets, stream)
    return {
        "shardlist": shardlist,
        "samples": shape.shards * shape.samples_per_shard,
        "members": list(shape.members),
        "member_bytes": shape.member_bytes,
        "offsets": where,
    }


def _write_shard(path: str, shape: Shape, first: int, rng: random.Random) -> None:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for sample in range(first, first + shape.samples_per_shard):
            for member in shape.members:
                info = tarfile.TarInfo(f"sample-{sample:08d}{member}")
                info.size = shape.member_bytes
                tar.addfile(info, BytesIO(rng.randbytes(shape.member_bytes)))


def _read_offsets(path: str) -> list:
    """Return for each sample of the shard, in order, ``[key, [[extension, lo, hi], ...]]`` with byte offsets."""
    samples: dict[str, list] = {}
    with tarfile.open(path) as tar:
        for info in tar:
            key, _, extension = info.name.partition(".")
            lo = info.offset_data
            samples.setdefault(key, []).append([f".{extension}", lo, lo + info.size])
    return list(samples.items())


def _read_once(root: str) -> None:
    """Read every shard into the page cache, so that no contender waits for the disk."""
    buffer = bytearray(1 << 20)
    for directory, _, names in os.walk(root):
        for name in names:
            with open(os.path.join(directory, name), "rb", buffering=0) as stream:
                while stream.readinto(buffer):
                    pass

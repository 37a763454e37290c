"""Small datasets for tests: shards with known samples, their index, and a server of them."""

import hashlib
import io
import json
import os
import tarfile
import zlib

from wids.core.index import checksums
from wids.jobs.scan import ScanTask, scan_shard
from wids.testing import Server


def write_tar(path, members):
    """Write an archive of (name, bytes) pairs, or a dict of them; returns its path as a str."""
    path = os.fspath(path)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    pairs = members.items() if isinstance(members, dict) else members
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in pairs:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def members_of(shard, first, count):
    """What a shard made by `write_shard` holds: sample ``g`` has the .txt ``text g``, the .cls ``g`` and a .bin."""
    for row in range(count):
        key, g = f"{shard}-{row:03d}", first + row
        yield f"{key}.txt", b"text %d" % g
        yield f"{key}.cls", b"%d" % g
        yield f"{key}.bin", bytes([g % 256]) * 40


def write_shard(path, count, *, first=0):
    """A shard of ``count`` samples, numbered from ``first``."""
    return write_tar(path, members_of(os.path.basename(path).removesuffix(".tar"), first, count))


def write_shards(directory, counts, *, prefix="s"):
    """One shard for each count, samples numbered through; returns [{url: path, nsamples, filesize}, ...]."""
    shards, first = [], 0
    for k, count in enumerate(counts):
        path = write_shard(os.path.join(directory, f"{prefix}{k}.tar"), count, first=first)
        shards.append({"url": path, "nsamples": count, "filesize": os.stat(path).st_size})
        first += count
    return shards


def write_index(directory, counts=(3, 4, 2), *, name="index.json", **header):
    """Shards, and beside them an index with relative URLs; returns the index's path."""
    shards = [{**shard, "url": os.path.basename(shard["url"])} for shard in write_shards(directory, counts)]
    return write_json(os.path.join(directory, name), {"wids_version": 1, "shardlist": shards, **header})


def mixture_index(parts):
    """An index of sub-datasets with weights, whose shards are nowhere: name -> (samples of each shard, weight)."""
    datasets = [
        {
            "name": name,
            "weight": weight,
            "shardlist": [
                {"url": f"{name}-{k}.tar", "nsamples": count, "filesize": 100 * count + 1024}
                for k, count in enumerate(counts)
            ],
        }
        for name, (counts, weight) in parts.items()
    ]
    return {"wids_version": 1, "datasets": datasets}


def write_mixture(directory, parts, *, name="mix.json"):
    """As `mixture_index`, with shards beside the index that is written; returns its path."""
    datasets = []
    for part, (counts, weight) in parts.items():
        shards = write_shards(directory, counts, prefix=f"{part}-")
        listed = [{**shard, "url": os.path.basename(shard["url"])} for shard in shards]
        datasets.append({"name": part, "weight": weight, "shardlist": listed})
    return write_json(os.path.join(directory, name), {"wids_version": 1, "datasets": datasets})


def write_json(path, value):
    """Write a JSON file; returns its path as a str."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file)
    return os.fspath(path)


def serve(directory, *, token=None):
    """A server of a directory on the loopback, without ranges.

    Args:
        directory: what is served.
        token: requests without it in ``X-Token`` are refused.
    """
    return Server(directory, has_ranges=False, required_headers={"X-Token": token} if token else None)


def digests(data):
    """What an index says of these bytes."""
    return {"crc32": f"{zlib.crc32(data):08x}", "md5sum": hashlib.md5(data).hexdigest()}


def survey_shard(url, **options):
    """The entry of one shard in a shard list, with its checksums unless ``checksums=()``."""
    return scan_shard(ScanTask(url=url, **{"checksums": checksums.KEYS, **options})).entry()

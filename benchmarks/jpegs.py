"""The data of cold.py: JPEG samples in plain tar shards, about as large and as hard to decode as those of ImageNet.

Rules: the pictures are the same on every machine with the same Pillow. A sample is ``NUMBER.jpg`` and ``NUMBER.cls``,
whose content is the number too, so that the sum of an epoch's labels shows whether each sample was read once. Each
picture is used many times, which no loader can profit from, so that making a gigabyte takes seconds, not minutes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tarfile
import zlib
from dataclasses import asdict, dataclass
from io import BytesIO

import numpy as np
from PIL import Image

# Sets the bytes of a pixel: pictures have 33 to 93 kB, 60 kB on average.
NOISE = 30.0
QUALITY = 90


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The size of the data.

    Attributes:
        shards, samples: number of shards, and of samples in each.
        sides: the smallest and the largest width and height of a picture, in pixels.
        pictures: the number of different pictures.
    """

    shards: int
    samples: int
    sides: tuple[int, int] = (224, 400)
    pictures: int = 512


# As wids writes them with checksums, as the original's widsindex does, and without.
INDEXES = {"crc32": ["md5sum", "crc32"], "md5": ["md5sum"], "none": []}
# The folder of the same shards without member tables beside them.
BARE = "bare"
FULL = Shape(shards=64, samples=244)
QUICK = Shape(shards=24, samples=8, sides=(48, 64), pictures=16)


def make(root: str, shape: Shape) -> dict:
    """Write the shards of ``shape`` under ``root`` unless they exist; they are in the page cache afterwards.

    Returns:
        ``directory``, ``indexes`` (names of the indexes, by the checksums that they have; see `INDEXES`), ``urls``
        (names of the shards), ``samples``, ``bytes`` (of all shards).
    """
    directory = os.path.join(root, f"jpegs-{shape.shards}x{shape.samples}-{shape.sides[0]}-{shape.sides[1]}")
    manifest = os.path.join(directory, "manifest.json")
    wanted = json.loads(json.dumps({**asdict(shape), "indexes": INDEXES}))
    if not _holds(manifest, wanted):
        shutil.rmtree(directory, ignore_errors=True)
        os.makedirs(directory)
        made = _write(directory, shape)
        with open(manifest, "w", encoding="utf-8") as stream:  # last: it marks the data as complete
            json.dump({"shape": wanted, **made}, stream)
    with open(manifest, encoding="utf-8") as stream:
        made = json.load(stream)
    os.makedirs(os.path.join(directory, BARE), exist_ok=True)
    for name in [*made["urls"], *made["indexes"].values()]:
        _read_once(os.path.join(directory, name))
        with contextlib.suppress(FileExistsError):
            os.link(os.path.join(directory, name), os.path.join(directory, BARE, name))
    return {"directory": directory, **made}


def _holds(manifest: str, wanted: dict) -> bool:
    if not os.path.exists(manifest):
        return False
    with open(manifest, encoding="utf-8") as stream:
        return json.load(stream)["shape"] == wanted


def _write(directory: str, shape: Shape) -> dict:
    rng = np.random.default_rng(0)
    pictures = [draw(rng, shape.sides) for _ in range(shape.pictures)]
    shardlist = []
    for number in range(shape.shards):
        path = os.path.join(directory, f"jpegs-{number:04d}.tar")
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for sample in range(number * shape.samples, (number + 1) * shape.samples):
                _add(tar, f"{sample:08d}.jpg", pictures[rng.integers(shape.pictures)])
                _add(tar, f"{sample:08d}.cls", str(sample).encode())
        _publish_table(path)
        with open(path, "rb") as stream:
            data = stream.read()
        digests = {"md5sum": hashlib.md5(data).hexdigest(), "crc32": f"{zlib.crc32(data):08x}"}
        sizes = {"nsamples": shape.samples, "filesize": os.path.getsize(path)}
        shardlist.append({"url": os.path.basename(path), **sizes, **digests})
    for name, keys in INDEXES.items():
        left_out = {"md5sum", "crc32"} - set(keys)
        shards = [{key: value for key, value in shard.items() if key not in left_out} for shard in shardlist]
        with open(os.path.join(directory, f"{name}.json"), "w", encoding="utf-8") as stream:
            json.dump(
                {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": "jpegs", "shardlist": shards}, stream
            )
    return {
        "indexes": {name: f"{name}.json" for name in INDEXES},
        "urls": [shard["url"] for shard in shardlist],
        "samples": shape.shards * shape.samples,
        "bytes": sum(shard["filesize"] for shard in shardlist),
    }


def _publish_table(path: str) -> None:
    """Write the shard's member table beside it, as ``wids index create --members`` does."""
    from wids.core.files import atomic
    from wids.core.tables import member_tables

    descriptor, identity = atomic.open_file(path)
    try:
        table = member_tables.scan_table(descriptor, path, identity)
    finally:
        os.close(descriptor)
    atomic.write_atomically(f"{path}.widx", table.to_bytes())


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, BytesIO(content))


def draw(rng: np.random.Generator, sides: tuple[int, int]) -> bytes:
    """Draw one JPEG: smooth colours with noise."""
    width, height = (int(side) for side in rng.integers(sides[0], sides[1] + 1, size=2))
    coarse = Image.fromarray(rng.integers(0, 256, size=(6, 6, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32)
    noisy = smooth + NOISE * rng.standard_normal((height, width, 1), dtype=np.float32)
    out = BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(out, "JPEG", quality=QUALITY)
    return out.getvalue()


def _read_once(path: str) -> None:
    """Read a shard into the page cache, so that no contender waits for the disk."""
    buffer = bytearray(1 << 20)
    with open(path, "rb", buffering=0) as stream:
        while stream.readinto(buffer):
            pass

"""The data of peers.py: three sets of plain tar shards, and a webdataset index of each.

Rules: the same bytes on every machine with the same Pillow. A sample is ``KEY.jpg`` or ``KEY.txt`` beside ``KEY.cls``,
whose content is the sample's number; so what a loader yields can be checked. Pictures are used many times, which no
loader can profit from.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import tarfile
from dataclasses import asdict, dataclass
from io import BytesIO

import jpegs
import numpy as np
from contenders.tar_samples import MODULUS, digest_of


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One set.

    Attributes:
        name: of the set.
        field: the extension of the payload, "jpg" or "txt".
        shards, samples: number of shards, and of samples in each.
        sides: the smallest and the largest width and height of a picture, in pixels.
        lengths: the smallest and the largest number of characters of a text.
        sizes: mean and standard deviation of the bytes of a payload that is no picture, in spite of its extension.
    """

    name: str
    field: str
    shards: int
    samples: int
    sides: tuple[int, int] = (0, 0)
    lengths: tuple[int, int] = (0, 0)
    sizes: tuple[int, int] = (0, 0)


# The sides give pictures of 20 and of 82 kB on average.
FULL = (
    Shape(name="text", field="txt", shards=16, samples=1024, lengths=(200, 2000)),
    Shape(name="jpeg20", field="jpg", shards=16, samples=512, sides=(128, 224)),
    Shape(name="jpeg82", field="jpg", shards=16, samples=256, sides=(288, 456)),
)
QUICK = (
    Shape(name="text", field="txt", shards=16, samples=32, lengths=(20, 200)),
    Shape(name="jpeg20", field="jpg", shards=16, samples=16, sides=(24, 32)),
    Shape(name="jpeg82", field="jpg", shards=16, samples=16, sides=(48, 64)),
)
_PICTURES = 256
_RANDOM = 28
_TEXTS = 4096


def make(root: str, shapes: tuple[Shape, ...]) -> dict[str, dict]:
    """Write the sets under ``root/tars`` unless they are there, and read them once into the page cache.

    Returns:
        by set: ``field``, ``directory``, ``shards`` (names of the tars, in order), ``per_shard`` (samples in each),
        ``samples``, ``bytes`` (of all shards), ``payload`` (bytes of all payloads), ``digest`` (the sum of theirs).
    """
    sets = {}
    for shape in shapes:
        directory = os.path.join(root, "tars", shape.name)
        manifest = os.path.join(root, f"{shape.name}.json")
        wanted = json.loads(json.dumps(asdict(shape)))
        found: dict = {}
        if os.path.exists(manifest):
            with open(manifest, encoding="utf-8") as stream:
                found = json.load(stream)
        if found.get("shape") != wanted:
            shutil.rmtree(directory, ignore_errors=True)
            os.makedirs(directory)
            found = {"shape": wanted, **_write(directory, shape)}
            with open(manifest, "w", encoding="utf-8") as stream:  # last: it marks the set as complete
                json.dump(found, stream)
        sets[shape.name] = {"directory": directory, **found}
        for name in found["shards"]:
            with open(os.path.join(directory, name), "rb") as stream:
                while stream.read(1 << 20):
                    pass
    return sets


def _write(directory: str, shape: Shape) -> dict:
    rng = np.random.default_rng(len(shape.name) + shape.samples)
    if shape.sizes != (0, 0):
        sizes = np.clip(rng.normal(*shape.sizes, size=_RANDOM), shape.sizes[0] / 8, None)
        contents = [rng.bytes(int(size * shape.sizes[0] / sizes.mean())) for size in sizes]
    elif shape.field == "jpg":
        contents = [jpegs.draw(rng, shape.sides) for _ in range(min(_PICTURES, shape.samples * shape.shards))]
    else:
        words = random.Random(0)
        letters = "etaoin shrdlu cmfwyp vbgkjq xz"
        contents = ["".join(words.choices(letters, k=words.randint(*shape.lengths))).encode() for _ in range(_TEXTS)]
    names, total, digest = [], 0, 0
    for number in range(shape.shards):
        names.append(f"{shape.name}-{number:06d}.tar")
        with tarfile.open(os.path.join(directory, names[-1]), "w", format=tarfile.USTAR_FORMAT) as tar:
            for label in range(number * shape.samples, (number + 1) * shape.samples):
                # Each of the random ones as often: the mean is exact.
                chosen = label % len(contents) if shape.sizes != (0, 0) else int(rng.integers(len(contents)))
                payload = contents[chosen]
                key = f"{label:08d}"
                _add(tar, f"{key}.{shape.field}", payload)
                _add(tar, f"{key}.cls", str(label).encode())
                total += len(payload)
                digest = (digest + digest_of(key, payload, label)) % MODULUS
    return {
        "field": shape.field,
        "shards": names,
        "per_shard": shape.samples,
        "samples": shape.shards * shape.samples,
        "bytes": sum(os.path.getsize(os.path.join(directory, name)) for name in names),
        "payload": total,
        "digest": str(digest),
    }


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, BytesIO(content))

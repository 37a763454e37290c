"""Samples of which some cannot be decoded, and the dataset that replaces them."""

import io
import random

import numpy as np
from PIL import Image

import wids
from tests.support.shards import write_json, write_tar
from wids.errors import DecodeError

COUNTS = (150, 1, 200, 90, 259)


def picture(color, kind):
    """The bytes of a small picture."""
    stream = io.BytesIO()
    Image.new("RGB", (16, 12), (color % 256, 9, 99)).save(stream, kind)
    return stream.getvalue()


def array(number):
    """The bytes of a small array."""
    stream = io.BytesIO()
    np.save(stream, np.full(3, number))
    return stream.getvalue()


def damaged(rng, data):
    """The same number of bytes, wrong: cut, or other ones."""
    cut = data[: len(data) // 2]
    return rng.choice([bytes(len(data)), cut.ljust(len(data), b"\0"), rng.randbytes(len(data))])


def write_damaged(directory):
    """An index of 700 samples of four members, of which one in a hundred is damaged."""
    rng, shards, first = random.Random(5), [], 0
    for k, count in enumerate(COUNTS):
        members = []
        for i in range(first, first + count):
            parts = {"jpg": picture(i, "JPEG"), "png": picture(i, "PNG"), "npy": array(i), "json": b'{"i": %d}' % i}
            for extension, data in parts.items():
                is_bad = rng.random() < 0.01 and count > 1
                members.append((f"{i:04d}.{extension}", damaged(rng, data) if is_bad else data))
        write_tar(directory / f"s{k}.tar", members)
        shards.append({"url": f"s{k}.tar", "nsamples": count})
        first += count
    return write_json(directory / "index.json", {"wids_version": 1, "shardlist": shards})


def opened(index, **options):
    """The dataset, whose bad samples are replaced."""
    return wids.ShardListDataset(index, **{"on_error": "substitute", "max_errors": 1, **options})


def bad_ones(strict):
    """The indices of samples that cannot be decoded."""
    found = set()
    for i in range(len(strict)):
        try:
            strict[i]
        except DecodeError:
            found.add(i)
    return found


def halved(dataset):
    """A view of every other sample."""
    return dataset.select(range(0, len(dataset), 2))

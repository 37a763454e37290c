"""Runs the Python that READMEs show, with names of a test in the place of a reader's."""

from __future__ import annotations

import io

from PIL import Image

from tests.support.readmes import Block, blocks
from tests.support.shards import write_json, write_tar

PYTHON = blocks("python")


def at(place: str) -> list[Block]:
    """The Python blocks below a heading."""
    return [block for block in PYTHON if block.place == place]


def execute(block: Block, replaced: dict[str, str], **names):
    """Run a block as a module's text; returns its names.

    Args:
        block: from a README.
        replaced: texts of it (servers, counts) -> what stands there in the test; each is to be found.
        names: what the block takes from the reader's program.
    """
    text = block.text
    for shown, here in replaced.items():
        assert shown in text, (block.place, shown)
        text = text.replace(shown, here)
    names = {"__name__": "readme", **names}
    exec(compile(text, block.place, "exec"), names)
    return names


def write_images(directory, *, shards=2, samples=40, name="train.json"):
    """Shards of small images with labels 0 to 9, and their index."""
    stream = io.BytesIO()
    Image.new("RGB", (24, 16), (9, 8, 7)).save(stream, "JPEG")
    found = []
    for shard in range(shards):
        members = {}
        for row in range(samples):
            members[f"{shard}-{row:03d}.jpg"] = stream.getvalue()
            members[f"{shard}-{row:03d}.cls"] = b"%d" % (row % 10)
        write_tar(directory / f"train-{shard:06d}.tar", members)
        found.append({"url": f"train-{shard:06d}.tar", "nsamples": samples})
    return write_json(directory / name, {"wids_version": 1, "shardlist": found})

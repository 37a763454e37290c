"""The demo's data: labelled images of drawn shapes, packed in tar shards with an index.

Rules: a drawing is a function of (seed, split, index) alone. Shards are plain ustar files of deliberately unequal
sizes, and their bytes depend on the drawings alone. URLs in the index are relative, so that it works over HTTP and from
its directory alike.
"""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from wids.writing.writer import ShardWriter

SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
SIZE_PX = 48
# Shapes are drawn this many times larger and scaled down, which smooths the edges.
_OVERSAMPLING = 2
# Relative sizes of the shards, repeated: neighbours differ, and the largest is 13 times the smallest.
_PROPORTIONS = (5, 1, 3, 9, 2, 13, 4, 7, 6)
_MIN_CONTRAST = 70.0
# The corners of polygons: their angles in turns, and their distances from the centre in radii.
_CORNERS = {
    "square": ([k / 4 for k in range(4)], [1.0] * 4),
    "triangle": ([k / 3 for k in range(3)], [1.0] * 3),
    "star": ([k / 10 for k in range(10)], [1.0, 0.42] * 5),
    "cross": ([k / 4 + angle for k in range(4) for angle in (-0.049, 0.049, 0.125)], [1.0, 1.0, 0.42] * 4),
}


def draw(index: int, *, seed: int, split: str) -> tuple[Image.Image, int]:
    """Draw sample ``index`` of a split; returns (48 x 48 RGB image, position of its shape in `SHAPES`).

    Samples 6 k to 6 k + 5 show all six shapes, for every k.
    """
    rng = np.random.default_rng([seed, *split.encode(), index])
    block, place = divmod(index, len(SHAPES))
    label = int(np.random.default_rng([seed, *split.encode(), block, 0]).permutation(len(SHAPES))[place])
    side = SIZE_PX * _OVERSAMPLING
    radius = float(rng.uniform(0.24, 0.42))
    x, y = (float(value) for value in rng.uniform(radius, 1 - radius, size=2) * side)
    turn = float(rng.uniform(0, 2 * np.pi))
    background, colour = _colours(rng)
    image = Image.new("RGB", (side, side), background)
    canvas = ImageDraw.Draw(image)
    if SHAPES[label] in ("circle", "ring"):
        for part, fill in ((1.0, colour), (0.55, background))[: 2 if SHAPES[label] == "ring" else 1]:
            reach = part * radius * side
            canvas.ellipse((x - reach, y - reach, x + reach, y + reach), fill=fill)
    else:
        angles, lengths = _CORNERS[SHAPES[label]]
        corners = radius * side * np.array(lengths) * np.exp(1j * (2 * np.pi * np.array(angles) + turn))
        canvas.polygon([(x + corner.real, y + corner.imag) for corner in corners.tolist()], fill=colour)
    image = image.resize((SIZE_PX, SIZE_PX), Image.Resampling.BOX)
    noise = rng.normal(0, rng.uniform(2, 18), (SIZE_PX, SIZE_PX, 3))
    return Image.fromarray((np.asarray(image) + noise).clip(0, 255).astype(np.uint8)), label


def pack(directory: str, *, split: str, count: int, nshards: int, seed: int) -> list[int]:
    """Draw ``count`` samples, and write them as ``shapes-SPLIT-NNNNNN.tar`` with an index, ``shapes-SPLIT.json``.

    Returns:
        The number of samples in each shard.
    """
    weights = np.array([_PROPORTIONS[k % len(_PROPORTIONS)] for k in range(nshards)])
    ends = np.cumsum(weights) * count // weights.sum()
    sizes: list[int] = np.diff(ends, prepend=0).tolist()
    with ShardWriter(
        os.path.join(directory, f"shapes-{split}-%06d.tar"),
        samples=max(sizes),
        tables=False,
        info={"classes": SHAPES},
    ) as writer:
        for end, size in zip(ends.tolist(), sizes, strict=True):
            for index in range(end - size, end):
                writer.write(_sample(index, seed=seed, split=split))
            writer.finish_shard()
    return sizes


def _sample(index: int, *, seed: int, split: str) -> dict[str, Any]:
    image, label = draw(index, seed=seed, split=split)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=88)
    return {"__key__": f"{index:06d}", ".jpg": buffer.getvalue(), ".cls": label}


def _colours(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draw a background and a colour with enough contrast to it."""
    weights = np.array([0.299, 0.587, 0.114])  # luma of ITU-R BT.601
    background = rng.integers(0, 256, 3)
    while True:
        colour = rng.integers(0, 256, 3)
        if abs(float((colour - background) @ weights)) >= _MIN_CONTRAST:
            return tuple(background.tolist()), tuple(colour.tolist())

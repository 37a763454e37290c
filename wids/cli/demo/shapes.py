"""The embedded default of the demo: images of drawn shapes, labelled, packed in tar shards with an index.

Rules: a drawing is a function of (seed, split, index) alone. Shards are plain ustar files as any tool writes them, of
deliberately unequal sizes, and their bytes depend on the drawings alone. URLs in the index are relative, so that it
serves over HTTP and from its directory alike.
"""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw

from wids.writer import ShardWriter

if TYPE_CHECKING:
    Point = tuple[float, float]

SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
SIZE_PX = 48
# Drawn this many times larger and scaled down, which smooths the edges.
_OVERSAMPLING = 2
# Shards hold samples in this proportion, over and over: no two neighbours are alike, the largest is 13 x the smallest.
_PROPORTIONS = (5, 1, 3, 9, 2, 13, 4, 7, 6)
_MIN_CONTRAST = 70.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """One labelled image: 48 x 48 RGB, the position of its shape in `SHAPES`, and how it was drawn."""

    image: Image.Image
    label: int
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Shards on disk: their index (a path), samples in each shard, and bytes of all shards together."""

    index: str
    nsamples: tuple[int, ...]
    size_bytes: int


def draw(index: int, *, seed: int, split: str) -> Drawing:
    """Draw sample ``index`` of a split: any six consecutive ones, from a multiple of six on, show all six shapes."""
    rng = np.random.default_rng([seed, *split.encode(), index])
    block, place = divmod(index, len(SHAPES))
    label = int(np.random.default_rng([seed, *split.encode(), block, 0]).permutation(len(SHAPES))[place])
    side = SIZE_PX * _OVERSAMPLING
    radius = float(rng.uniform(0.24, 0.42))
    centre = tuple(float(value) for value in rng.uniform(radius, 1 - radius, size=2))
    turn = float(rng.uniform(0, 2 * np.pi))
    background, colour = _colours(rng)
    image = Image.new("RGB", (side, side), background)
    _draw_shape(
        ImageDraw.Draw(image),
        SHAPES[label],
        centre=(centre[0] * side, centre[1] * side),
        radius=radius * side,
        turn=turn,
        colour=colour,
        background=background,
    )
    image = image.resize((SIZE_PX, SIZE_PX), Image.Resampling.BOX)
    noise = float(rng.uniform(2, 18))
    pixels = np.asarray(image, np.float32) + rng.normal(0, noise, (SIZE_PX, SIZE_PX, 3)).astype(np.float32)
    facts = {
        "shape": SHAPES[label],
        "centre": [round(value * SIZE_PX, 2) for value in centre],
        "radius": round(radius * SIZE_PX, 2),
        "turn": round(turn, 4),
        "colour": colour,
        "background": background,
        "noise": round(noise, 2),
    }
    return Drawing(image=Image.fromarray(pixels.clip(0, 255).astype(np.uint8)), label=label, facts=facts)


def pack(directory: str, *, split: str, count: int, nshards: int, seed: int) -> Packed:
    """Draw ``count`` samples, write them as ``shapes-SPLIT-NNNNNN.tar`` in ``directory``, and an index beside them."""
    sizes = _sizes(count, nshards)
    first = 0
    with ShardWriter(
        os.path.join(directory, f"shapes-{split}-%06d.tar"),
        samples=max(sizes),
        tables=False,
        info={"classes": SHAPES, "seed": seed},
    ) as writer:
        for size in sizes:
            for index in range(first, first + size):
                writer.write(_sample(index, draw(index, seed=seed, split=split)))
            first += size
            writer.finish_shard()
    size_bytes = sum(shard["filesize"] for shard in writer.shards)
    return Packed(index=writer.index, nsamples=tuple(sizes), size_bytes=size_bytes)


def _sizes(count: int, nshards: int) -> list[int]:
    """``count`` shared out among the shards in `_PROPORTIONS`, cut by cumulative rounding so that nothing is lost."""
    weights = np.array([_PROPORTIONS[k % len(_PROPORTIONS)] for k in range(nshards)])
    ends = np.cumsum(weights) * count // weights.sum()
    return [int(size) for size in np.diff(ends, prepend=0)]


def _sample(index: int, drawing: Drawing) -> dict[str, Any]:
    buffer = io.BytesIO()
    drawing.image.save(buffer, "JPEG", quality=88)
    return {"__key__": f"{index:06d}", ".jpg": buffer.getvalue(), ".cls": drawing.label, ".json": drawing.facts}


def _colours(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A background and a colour that stands out against it."""
    weights = np.array([0.299, 0.587, 0.114])  # luma of ITU-R BT.601
    background = rng.integers(0, 256, 3)
    while True:
        colour = rng.integers(0, 256, 3)
        if abs(float((colour - background) @ weights)) >= _MIN_CONTRAST:
            return tuple(background.tolist()), tuple(colour.tolist())


def _draw_shape(
    canvas: ImageDraw.ImageDraw,
    shape: str,
    *,
    centre: Point,
    radius: float,
    turn: float,
    colour: tuple[int, ...],
    background: tuple[int, ...],
) -> None:
    x, y = centre
    if shape in ("circle", "ring"):
        canvas.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
        if shape == "ring":
            hole = radius * 0.55
            canvas.ellipse((x - hole, y - hole, x + hole, y + hole), fill=background)
        return
    corners = np.array(_corners(shape)) * radius
    rotation = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    canvas.polygon([(x + dx, y + dy) for dx, dy in (corners @ rotation).tolist()], fill=colour)


def _corners(shape: str) -> list[Point]:
    """The corners of a shape inside the unit circle."""
    if shape == "cross":
        arm, tip = 0.3, 0.95
        quarter = [(arm, arm), (tip, arm), (tip, -arm)]
        return [_turned(corner, -k / 4) for k in range(4) for corner in quarter]
    if shape == "star":
        return [_turned((1.0 if k % 2 == 0 else 0.42, 0.0), k / 10) for k in range(10)]
    count = {"triangle": 3, "square": 4}[shape]
    return [_turned((1.0, 0.0), k / count) for k in range(count)]


def _turned(point: Point, turns: float) -> Point:
    cos, sin = np.cos(2 * np.pi * turns), np.sin(2 * np.pi * turns)
    return float(point[0] * cos - point[1] * sin), float(point[0] * sin + point[1] * cos)

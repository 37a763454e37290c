"""Masks of classes, painted: as grey values, the numbers of a few classes are all nearly black."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from wids.core.codecs import pictures

_UNKNOWN = 255  # pixels that belong to no class, by custom
_DARK = 64  # no grey picture for people is darker than that everywhere
_NAMES = frozenset({"seg", "mask", "masks", "segmentation", "semantic", "instance", "instances", "panoptic", "classes"})
_LOSSLESS = frozenset({"PNG", "TIFF", "BMP", "GIF", "WEBP"})
_SHOWN = 24


def is_mask(image: Any, name: str) -> bool:
    """True if a picture's grey values are numbers of classes: all are small, or the field's name says so.

    Args:
        image: of PIL.
        name: of its field, as ``.seg.png``.
    """
    if image.format not in _LOSSLESS or not (image.mode == "L" or pictures.is_deep(image)) or image.mode == "F":
        return False
    low, high = image.getextrema()
    if image.mode == "L":
        high = max((value for value, count in enumerate(image.histogram()[:_UNKNOWN]) if count), default=0)
    is_named = not _NAMES.isdisjoint(re.split(r"[^a-z]+", name.casefold()))
    return bool(low >= 0 and high > 0 and (is_named or (image.mode == "L" and high < _DARK)))


def paint(image: Any, side: int) -> Any:
    """The picture of a mask in the colours of PASCAL VOC, one for each number modulo 256; 0 is black.

    Args:
        image: the mask.
        side: of the result, at most, in pixels.
    """
    from PIL import Image

    painted = Image.fromarray((np.asarray(image) & 255).astype(np.uint8)).convert("P")
    painted.putpalette(_palette().tobytes())
    scale = min(side / max(image.size), 1)
    return painted.resize([max(round(each * scale), 1) for each in image.size], Image.Resampling.NEAREST)


def count_classes(image: Any) -> list[dict[str, Any]]:
    """The most frequent numbers of a mask: ``number``, ``share`` of the pixels, ``colour`` (``#rrggbb``)."""
    numbers, counts = np.unique(np.asarray(image), return_counts=True)
    colours, total = _palette(), int(counts.sum())
    return [
        {
            "number": int(numbers[k]),
            "share": int(counts[k]) / total,
            "colour": "#" + bytes(colours[int(numbers[k]) & 255]).hex(),
        }
        for k in np.argsort(-counts, kind="stable")[:_SHOWN]
    ]


def _palette() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Colours by number: uint8, (256, 3); the bits of a number are dealt to red, green and blue in turn."""
    numbers, colours = np.arange(256), np.zeros((256, 3), np.uint8)
    for bit in range(8):
        for channel in range(3):
            colours[:, channel] |= (((numbers >> (3 * bit + channel)) & 1) << (7 - bit)).astype(np.uint8)
    return colours

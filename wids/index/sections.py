"""Sections of a binary file, each of which starts at a multiple of 8 and may be mapped. Pure."""

from __future__ import annotations

import sys
from array import array
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def pad(sections: Iterable[bytes | memoryview]) -> list[bytes | memoryview]:
    """The sections, each with the zeros behind it as a part of its own."""
    return [part for section in sections for part in (section, bytes(-len(section) % 8))]


def cut(view: memoryview, at: int, widths: Sequence[int]) -> tuple[list[memoryview], int]:
    """The sections from ``at`` on, of so many bytes each (fewer where the file ends), and where they should end."""
    found = []
    for width in widths:
        found.append(view[at : at + width])
        at += width + -width % 8
    return found, at


def native(section: memoryview, code: str) -> memoryview:
    """A little-endian section as numbers: ``"I"``, ``"Q"`` or ``"q"``, see `array`."""
    if sys.byteorder == "little":
        return section.cast(cast("Literal['I', 'Q', 'q']", code))
    return memoryview(array(code, np.frombuffer(section, np.dtype(code)).byteswap().tobytes()))

"""JPEG to tensors by torchcodec or torchvision, which are faster than Pillow, with Pillow's pixels.

Pillow decides first what is a JPEG, and of which mode and size. What a decoder here cannot do, Pillow does: other
modes, damaged files and their messages. A decoder is used after it has given Pillow's pixels for two pictures: both
contain a libjpeg of their own, and these differ.
"""

from __future__ import annotations

import functools
import io
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Decode = Callable[[bytes], Any]

_SCAN, _EXIF, _PLAIN_DATA = 0xDA, 0xE1, 0xEF  # markers: of the compressed pixels, and of segments before them
_find_exif = re.compile(bytes([0xFF, _EXIF])).search  # in a third of the time of `bytes.find`
_SEGMENTS = frozenset(range(0xC0, 0xFF)) - frozenset(range(0xD0, 0xDA))  # markers that a length follows


def find_decoder() -> Decode | None:
    """A function from a JPEG's bytes to a tensor (uint8, C H W, a view of H W C), which raises if it cannot; or None.

    torchcodec is imported, which takes 30 ms. torchvision takes over a second, so it is used where the program has
    imported it.
    """
    return _checked("torchcodec") or (_checked("torchvision") if "torchvision.io" in sys.modules else None)


def decode(data: bytes) -> np.ndarray[Any, Any] | None:
    """The pixels, uint8, H W C or H W, the caller's own; None: Pillow is to decode it, or to say what is wrong."""
    decoder = find_decoder()
    if decoder is None:
        return None
    try:
        pixels = decoder(data)
    except Exception:  # noqa: BLE001 - of whatever kind: Pillow decides
        return None
    array: np.ndarray[Any, Any] = (pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0)).numpy()
    return array


@functools.cache
def _checked(package: str) -> Decode | None:
    """The decoder of a package, if this environment has it, and its pixels are those of Pillow."""
    try:
        decode = _of_torchcodec() if package == "torchcodec" else _of_torchvision()
        return decode if all(_is_same(decode, mode) for mode in ("RGB", "L")) else None
    except Exception:  # noqa: BLE001 - not installed, or not for this torch: each package has errors of its own
        return None


def _of_torchcodec() -> Decode:
    from torchcodec.decoders import decode_jpeg

    return lambda data: decode_jpeg(hide_orientation(data), mode="UNCHANGED")


def _of_torchvision() -> Decode:
    import torch
    from torchvision.io import decode_jpeg

    return lambda data: decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8))


def hide_orientation(data: bytes) -> bytes:
    """The same picture without EXIF: torchcodec rotates by it, Pillow does not.

    Raises:
        ValueError, IndexError: its segments cannot be followed up to the compressed pixels, or there is EXIF behind.
    """
    at, markers = 2, []
    while (marker := data[at + 1]) != _SCAN:
        if data[at] != 0xFF or marker not in _SEGMENTS:
            raise ValueError(f"no segment at byte {at}")
        if marker == _EXIF:
            markers.append(at + 1)
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    if _find_exif(data, at):  # between scans; compressed pixels never have these bytes
        raise ValueError("EXIF behind the first scan")
    if not markers:
        return data
    renamed = bytearray(data)
    for k in markers:
        renamed[k] = _PLAIN_DATA
    return bytes(renamed)


def _is_same(decode: Decode, mode: str) -> bool:
    """True if a decoder gives Pillow's pixels of a picture that says that it is rotated."""
    import numpy as np
    from PIL import Image

    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 9, 3), np.uint8)).resize((75, 50))
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6  # orientation: a quarter turn
    picture.convert(mode).save(file, "JPEG", quality=85, subsampling=2, exif=exif)
    pixels = np.asarray(Image.open(file))
    return np.array_equal(decode(file.getvalue()).numpy(), pixels[None] if mode == "L" else pixels.transpose(2, 0, 1))

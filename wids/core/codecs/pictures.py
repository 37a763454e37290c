"""Pictures to look at: of 8 bits, of limited size, from members that are pictures or arrays.

Members are hostile: a picture whose header says too many pixels is refused before it is decoded. Deeper pictures than
8 bits are scaled from their darkest to their brightest value; PIL would clip them, and depth maps would be white.
Pixels are as the dataset decodes them: nothing is turned by EXIF, and only the first frame is there.
"""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any

from wids.core.codecs.decoders import image_formats
from wids.errors import DecodeError

if TYPE_CHECKING:
    import numpy as np

MAX_PIXELS = 100_000_000
# A progressive JPEG has about ten. Each is a pass through all pixels, and thousands take minutes.
_MAX_SCANS = 200
_SCAN = b"\xff\xda"
# Behind transparent pixels: on black or white, line art of the same colour would vanish.
_GREY, _CHECKER, _CHECK = 128, (205, 235), 8
# The colour of NaN and infinity.
_NO_NUMBER = (214, 40, 90)
# An array is thinned out to so many numbers a side before it is looked at.
_MAX_SIDE = 2048
_CHANNELS = (1, 3, 4)


def open_picture(data: bytes, *, max_pixels: int = MAX_PIXELS) -> Any:
    """The PIL image of a member, of which only the header was read.

    Raises:
        DecodeError: it is no picture, or one of too many pixels.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(data), formats=image_formats())
    except UnidentifiedImageError:
        raise DecodeError("it is not a JPEG, PNG or other known picture, or its header is damaged") from None
    except Image.DecompressionBombError:
        raise DecodeError(f"it has more pixels than are shown ({max_pixels:,})") from None
    if image.width * image.height > max_pixels:
        words = f"it is {image.width:,} x {image.height:,} pixels; up to {max_pixels:,} in all are shown"
        raise DecodeError(words)
    if image.format in ("JPEG", "MPO") and data.count(_SCAN) > _MAX_SCANS:
        raise DecodeError(f"it is a JPEG of more than {_MAX_SCANS} scans, which would take too long")
    return image


def shrink(image: Any, width: int, height: int) -> Any:
    """An image of at most this size, of the same shape; never a larger one."""
    from PIL import Image

    scale = min(width / image.width, height / image.height, 1)
    size = max(round(image.width * scale), 1), max(round(image.height * scale), 1)
    return image.resize(size, Image.Resampling.BOX, reducing_gap=2.0) if size != image.size else image


def is_deep(image: Any) -> bool:
    """True if pixels have more than 8 bits a channel."""
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


def is_see_through(image: Any) -> bool:
    """True if there may be transparent pixels."""
    return image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info


def to_rgb(image: Any, *, has_checker: bool = False) -> Any:
    """An image in 8 bits of red, green and blue.

    Args:
        image: any PIL image.
        has_checker: transparent pixels show a checkered ground; else a grey one.
    """
    from PIL import Image

    if is_deep(image):
        image = image.convert("F")
        low, high = image.getextrema()
        scale = 255 / (high - low) if high > low else 0
        return image.point(lambda value: value * scale - low * scale).convert("L").convert("RGB")
    if is_see_through(image):
        image = image.convert("RGBA")
        ground = _checkered(image.size) if has_checker else Image.new("RGBA", image.size, (_GREY, _GREY, _GREY, 255))
        return Image.alpha_composite(ground, image).convert("RGB")
    return image.convert("RGB")


def _checkered(size: tuple[int, int]) -> Any:
    import numpy as np
    from PIL import Image

    width, height = size
    dark = (np.arange(height)[:, None] // _CHECK + np.arange(width)[None, :] // _CHECK) % 2
    return Image.fromarray(np.asarray(_CHECKER, np.uint8)[dark]).convert("RGBA")


def draw_small(image: Any, side: int) -> Any:
    """A picture of at most ``side`` pixels a side, decoded as small as its format allows.

    Raises:
        Exception: any that PIL raises for damaged pixels.
    """
    image.draft(None, (side, side))
    if is_deep(image):
        image = image.convert("F")
    elif image.mode in ("P", "1") or is_see_through(image):
        image = image.convert("RGBA" if is_see_through(image) else "RGB")
    return to_rgb(shrink(image, side, side), has_checker=True)


def from_array(array: np.ndarray[Any, Any]) -> Any:
    """A PIL image of an array's first two-dimensional (H W, H W C or C H W) part; of one dimension, its curve.

    Numbers other than bytes are scaled from the lowest to the highest; NaN is red.

    Raises:
        DecodeError: it holds no numbers, or just one.
    """
    import numpy as np
    from PIL import Image

    if not array.size or not array.ndim or array.dtype.kind not in "biufc":
        raise DecodeError(f"an array of shape {array.shape} and type {array.dtype} is not a picture")
    plane = _plane(array)
    if plane.ndim == 1:
        return Image.fromarray(_curve(plane))
    step = -(-max(plane.shape[:2]) // _MAX_SIDE)
    plane = np.ascontiguousarray(plane[::step, ::step])
    if plane.shape[-1] == 1 and plane.ndim == 3:
        plane = plane[..., 0]
    if plane.dtype == np.uint8:
        return Image.fromarray(plane)
    shares, known = _shares(plane)
    scaled = (shares * 255).astype(np.uint8)
    if known.all():
        return Image.fromarray(scaled)
    colours = np.stack([scaled] * 3, -1) if scaled.ndim == 2 else scaled[..., :3].copy()
    colours[~(known if known.ndim == 2 else known.all(-1))] = _NO_NUMBER
    return Image.fromarray(colours)


def _plane(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    while array.ndim > 3 or (array.ndim == 3 and array.shape[-1] not in _CHANNELS and array.shape[0] not in _CHANNELS):
        array = array[0]
    if array.ndim == 3 and array.shape[-1] not in _CHANNELS:
        array = array.transpose(1, 2, 0)
    return array[0] if array.ndim == 2 and array.shape[0] == 1 else array


def _shares(array: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Each number as a share of the way from the least to the greatest, and which of them are numbers."""
    import numpy as np

    numbers = (np.abs(array) if array.dtype.kind == "c" else array).astype(np.float64)
    known = np.isfinite(numbers)
    numbers = np.where(known, numbers / 2, 0)  # halves: the greatest difference may be twice the greatest number
    low, high = (numbers[known].min(), numbers[known].max()) if known.any() else (0.0, 0.0)
    shares = (numbers - low) / (high - low) if high > low else np.zeros(numbers.shape)
    return np.where(known, np.clip(shares, 0, 1), 0), known


def _curve(values: np.ndarray[Any, Any], width: int = 256, height: int = 96) -> np.ndarray[Any, Any]:
    """A line of numbers as a picture: of each column, from the least to the greatest."""
    import numpy as np

    shares, _ = _shares(values[:: -(-len(values) // (_MAX_SIDE * 64))])
    lines = (height - 1) * (1 - shares)
    width = min(width, max(len(lines), 2))
    picture = np.full((height, width), 245, np.uint8)
    bounds = np.linspace(0, len(lines), width + 1).astype(int)
    for x in range(width):
        part = lines[bounds[x] : max(bounds[x + 1], bounds[x] + 1)]
        if len(part):
            picture[int(part.min()) : int(part.max()) + 1, x] = 40
    return picture

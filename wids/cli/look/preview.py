"""Draw images in a terminal: each character shows two pixels, as an upper half block on a background colour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_COLUMNS, _ROWS = 64, 20
_HALF = "\u2580"
# Behind transparent pixels: on black or white, line art of the same colour would vanish.
_BACKGROUND = (128, 128, 128)


def can_draw(console: Console) -> bool:
    """Whether a console is a terminal with colours that can print the half block."""
    try:
        _HALF.encode(console.encoding)
    except (LookupError, UnicodeEncodeError):
        return False
    has_colours = console.color_system in ("truecolor", "256", "windows") and not console.no_color
    return console.is_terminal and has_colours


def draw(image: Any, console: Console) -> Text:
    """Return a PIL image as lines of half blocks, scaled down to the console but never up."""
    from rich.text import Text

    pixels = _fit(_to_rgb(image), max(min(console.width - 1, _COLUMNS), 1), 2 * _ROWS)
    width, height = pixels.size
    values = pixels.load()
    text = Text(no_wrap=True)
    for y in range(0, height, 2):
        if y:
            text.append("\n")
        for x in range(width):
            upper = "#{:02x}{:02x}{:02x}".format(*values[x, y])
            lower = " on #{:02x}{:02x}{:02x}".format(*values[x, y + 1]) if y + 1 < height else ""
            text.append(_HALF, style=upper + lower)
    return text


def _fit(image: Any, width: int, height: int) -> Any:
    scale = min(width / image.width, height / image.height, 1)
    size = max(round(image.width * scale), 1), max(round(image.height * scale), 1)
    from PIL import Image

    return image.resize(size, Image.Resampling.BOX, reducing_gap=2.0) if size != image.size else image


def _to_rgb(image: Any) -> Any:
    from PIL import Image

    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        # PIL would clip values above 255, and 16-bit depth maps would be white.
        low, high = image.convert("F").getextrema()
        scale = 255 / (high - low) if high > low else 0
        return image.convert("F").point(lambda value: value * scale - low * scale).convert("L").convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, (*_BACKGROUND, 255))
        return Image.alpha_composite(ground, image).convert("RGB")
    return image.convert("RGB")

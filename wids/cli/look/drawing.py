"""Draw a picture in a terminal: a character shows two pixels, as an upper half block on a background colour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wids.codecs.pictures import shrink, to_rgb

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_COLUMNS, _ROWS = 64, 20
_HALF = "\u2580"


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

    pixels = shrink(to_rgb(image), max(min(console.width - 1, _COLUMNS), 1), 2 * _ROWS)
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

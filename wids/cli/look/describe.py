"""Describe a field of a sample: its type, its sizes and shapes, the beginning of its text; draw a picture.

Each field is decoded by itself and as the dataset decodes it. A damaged field is described as damaged; a field that
could run code is named and not opened. People get a line of text, programs the same facts as JSON. A character of a
picture in a terminal shows two pixels, as an upper half block on a background colour.
"""

from __future__ import annotations

import codecs
import contextlib
import json
from typing import TYPE_CHECKING, Any

import msgspec

from wids.cli.format import count_of, printable
from wids.codecs.decode import UNASKED, SampleDecoder
from wids.errors import DecodeError, UnsafeFormatError

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


_MAX_CHARACTERS = 300
_MAX_BYTES = 16
_MAX_ARRAYS = 8


class Field(msgspec.Struct, kw_only=True):
    """The description of one field.

    Attributes:
        name: the extension.
        size: bytes.
        kind: image, array, arrays, text, number, json, tensors, bytes, unopened or damaged.
        words: the description for people.
        facts: the description for programs.
        image: the PIL image, if the field is one.
    """

    name: str
    size: int
    kind: str
    words: str
    facts: dict[str, Any] = {}
    image: Any = None

    def as_json(self) -> dict[str, Any]:
        """The field for ``--json``."""
        return {"name": self.name, "size": self.size, "kind": self.kind, **self.facts}


def describe(name: str, data: bytes, *, key: str, shard: str) -> Field:
    """Describe a field by its bytes."""
    try:
        value = SampleDecoder("PIL", also=UNASKED)({name: data, "__key__": key, "__shard__": shard})[name]
    except UnsafeFormatError:
        words = "not opened: opening it could run code from the file"
        return Field(name=name, size=len(data), kind="unopened", words=words, facts={"begins": data[:_MAX_BYTES].hex()})
    except DecodeError as error:
        words = str(error).partition(f" in shard {shard}: ")[2] or str(error)
        return Field(name=name, size=len(data), kind="damaged", words=printable(words), facts={"error": words})
    kind, words, facts = _describe(value)
    return Field(
        name=name, size=len(data), kind=kind, words=words, facts=facts, image=value if kind == "image" else None
    )


def _describe(value: Any) -> tuple[str, str, dict[str, Any]]:
    """Return (kind, words, facts) of a decoded value."""
    if hasattr(value, "getbands"):
        width, height = value.size
        facts = {"width": width, "height": height, "mode": value.mode, "format": value.format}
        return "image", f"{width} x {height} {value.mode}{f' {value.format}' if value.format else ''}", facts
    if hasattr(value, "getvalue") or isinstance(value, bytes):
        return _describe_bytes(value if isinstance(value, bytes) else value.getvalue())
    if _is_array(value):
        facts = _array_facts(value)
        return "array", _array_words(facts), facts
    if isinstance(value, dict) and value and all(map(_is_array, value.values())):
        arrays = {str(name): _array_facts(part) for name, part in value.items()}
        shown = [f"{printable(name)} {_array_words(facts)}" for name, facts in [*arrays.items()][:_MAX_ARRAYS]]
        return "arrays", "; ".join([*shown, "..."] if len(arrays) > _MAX_ARRAYS else shown), {"arrays": arrays}
    return _describe_plain(value)


def _describe_plain(value: Any) -> tuple[str, str, dict[str, Any]]:
    if isinstance(value, str):
        return "text", f"{count_of(len(value), 'character')}: {_beginning(value)}", {"text": value[:_MAX_CHARACTERS]}
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "number", _beginning(str(value)), {"value": value if abs(value) < 1 << 53 else str(value)}
    text = json.dumps(value, default=_replace, ensure_ascii=False)
    what = type(value).__name__ if value is not None else "null"
    size = f" of {len(value):,}" if hasattr(value, "__len__") else ""
    return "json", f"{what}{size}: {_beginning(text)}", {"type": what, "text": text[:_MAX_CHARACTERS]}


def _describe_bytes(data: bytes) -> tuple[str, str, dict[str, Any]]:
    words = data[:_MAX_BYTES].hex(" ")
    with contextlib.suppress(UnicodeDecodeError):
        # Incrementally: the cut may fall within a character.
        text = codecs.getincrementaldecoder("utf-8")().decode(data[:_MAX_CHARACTERS])
        if "".join(text.split()).isprintable():
            words = printable(text)
    return "bytes", f"begins {words}" if data else "empty", {"begins": data[:_MAX_BYTES].hex()}


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _array_facts(value: Any) -> dict[str, Any]:
    return {"shape": [int(number) for number in value.shape], "dtype": str(value.dtype).removeprefix("torch.")}


def _array_words(facts: dict[str, Any]) -> str:
    return f"({', '.join(map(str, facts['shape']))}) {facts['dtype']}"


def _beginning(text: str) -> str:
    return printable(text[:_MAX_CHARACTERS]) + ("..." if len(text) > _MAX_CHARACTERS else "")


def _replace(value: Any) -> Any:
    """Replace a value that JSON lacks: an array among a checkpoint's values, bytes in msgpack."""
    if _is_array(value):
        return _array_words(_array_facts(value))
    return value[:_MAX_BYTES].hex() if isinstance(value, bytes) else str(value)

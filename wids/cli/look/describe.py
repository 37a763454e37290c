"""What a field of a sample is: its type, sizes and shapes, how its text begins.

Rules: a field is decoded as the dataset decodes it, each by itself: one that is damaged is described as such, and one
that could run code is named and not opened. What is here is for people; JSON gets the same facts.
"""

from __future__ import annotations

import codecs
import contextlib
import json
from typing import Any

import msgspec

from wids.cli.format import count_of, printable
from wids.codecs.decode import UNASKED, SampleDecoder
from wids.errors import DecodeError, UnsafeFormatError

# Characters of a text, bytes of anything else.
_TEXT, _BYTES = 300, 16
_MOST_PARTS = 8


class Field(msgspec.Struct, kw_only=True):
    """A field.

    Attributes:
        name: the extension.
        size: bytes.
        kind: image, array, arrays, text, number, json, tensors, bytes, unopened or damaged.
        words: for people.
        facts: for programs.
        image: to be drawn, if it is one.
    """

    name: str
    size: int
    kind: str
    words: str
    facts: dict[str, Any] = {}
    image: Any = None

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"name": self.name, "size": self.size, "kind": self.kind, **self.facts}


def describe(name: str, data: bytes, *, key: str, shard: str) -> Field:
    """Describe a field by its bytes."""
    try:
        value = SampleDecoder("PIL", also=UNASKED)({name: data, "__key__": key, "__shard__": shard})[name]
    except UnsafeFormatError:
        words = "not opened: that could run code that its maker chose"
        return Field(name=name, size=len(data), kind="unopened", words=words, facts={"begins": data[:_BYTES].hex()})
    except DecodeError as error:
        words = str(error).partition(f" in shard {shard}: ")[2] or str(error)
        return Field(name=name, size=len(data), kind="damaged", words=printable(words), facts={"error": words})
    kind, words, facts = _describe(value)
    return Field(
        name=name, size=len(data), kind=kind, words=words, facts=facts, image=value if kind == "image" else None
    )


def _describe(value: Any) -> tuple[str, str, dict[str, Any]]:
    """(kind, words, facts) of a decoded value."""
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
        shown = [f"{printable(name)} {_array_words(facts)}" for name, facts in [*arrays.items()][:_MOST_PARTS]]
        return "arrays", "; ".join([*shown, "..."] if len(arrays) > _MOST_PARTS else shown), {"arrays": arrays}
    return _describe_plain(value)


def _describe_plain(value: Any) -> tuple[str, str, dict[str, Any]]:
    if isinstance(value, str):
        return "text", f"{count_of(len(value), 'character')}: {_begin(value)}", {"text": value[:_TEXT]}
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "number", _begin(str(value)), {"value": value if abs(value) < 1 << 53 else str(value)}
    text = json.dumps(value, default=_other, ensure_ascii=False)
    what = type(value).__name__ if value is not None else "null"
    size = f" of {len(value):,}" if hasattr(value, "__len__") else ""
    return "json", f"{what}{size}: {_begin(text)}", {"type": what, "text": text[:_TEXT]}


def _describe_bytes(data: bytes) -> tuple[str, str, dict[str, Any]]:
    words = data[:_BYTES].hex(" ")
    with contextlib.suppress(UnicodeDecodeError):
        text = codecs.getincrementaldecoder("utf-8")().decode(data[:_TEXT])  # it may end within a character
        if "".join(text.split()).isprintable():
            words = printable(text)
    return "bytes", f"begins {words}" if data else "empty", {"begins": data[:_BYTES].hex()}


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _array_facts(value: Any) -> dict[str, Any]:
    return {"shape": [int(number) for number in value.shape], "dtype": str(value.dtype).removeprefix("torch.")}


def _array_words(facts: dict[str, Any]) -> str:
    return f"({', '.join(map(str, facts['shape']))}) {facts['dtype']}"


def _begin(text: str) -> str:
    return printable(text[:_TEXT]) + ("..." if len(text) > _TEXT else "")


def _other(value: Any) -> Any:
    """What stands in JSON for a value that has none: an array among a checkpoint's values, bytes in msgpack."""
    if _is_array(value):
        return _array_words(_array_facts(value))
    return value[:_BYTES].hex() if isinstance(value, bytes) else str(value)

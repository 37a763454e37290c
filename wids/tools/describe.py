"""Describe a field of a sample: its type, its sizes and shapes, the beginning of its text.

Each field is decoded by itself and as the dataset decodes it. A damaged field is described as damaged; a field that
could run code is named and not opened. People get a line of text, programs the same as JSON.
"""

from __future__ import annotations

import codecs
import contextlib
import json
from typing import Any

import msgspec

from wids.core.codecs.decode import DEFAULT_INFLATE_BYTES, UNASKED, SampleDecoder
from wids.errors import DecodeError, UnsafeFormatError, printable
from wids.events import count_of

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
        details: the description for programs.
        value: the decoded field; None: it could not be decoded.
    """

    name: str
    size: int
    kind: str
    words: str
    details: dict[str, Any] = {}
    value: Any = None

    @property
    def image(self) -> Any:
        """The PIL image, if the field is one; else None."""
        return self.value if self.kind == "image" else None

    def as_json(self) -> dict[str, Any]:
        """The field for ``--json``."""
        return {"name": self.name, "size": self.size, "kind": self.kind, **self.details}


def describe(name: str, data: bytes, *, key: str, shard: str, max_inflate_bytes: int = DEFAULT_INFLATE_BYTES) -> Field:
    """Describe a field by its bytes.

    Args:
        name: the extension.
        data: all of it.
        key: of its sample.
        shard: its URL.
        max_inflate_bytes: the most that it may unpack to.
    """
    decoder = SampleDecoder("PIL", also=UNASKED, max_inflate_bytes=max_inflate_bytes)
    try:
        value = decoder({name: data, "__key__": key, "__shard__": shard})[name]
    except UnsafeFormatError:
        words = "not opened: opening it could run code from the file"
        return Field(
            name=name, size=len(data), kind="unopened", words=words, details={"begins": data[:_MAX_BYTES].hex()}
        )
    except DecodeError as error:
        words = str(error).partition(f" in shard {shard}: ")[2] or str(error)
        return Field(name=name, size=len(data), kind="damaged", words=printable(words), details={"error": words})
    kind, words, details = describe_value(value)
    return Field(name=name, size=len(data), kind=kind, words=words, details=details, value=value)


def describe_value(value: Any) -> tuple[str, str, dict[str, Any]]:
    """Return (kind, words, details) of a decoded value."""
    if hasattr(value, "getbands"):
        width, height = value.size
        details = {"width": width, "height": height, "mode": value.mode, "format": value.format}
        return "image", f"{width} x {height} {value.mode}{f' {value.format}' if value.format else ''}", details
    if hasattr(value, "getvalue") or isinstance(value, bytes):
        return _describe_bytes(value if isinstance(value, bytes) else value.getvalue())
    if _is_array(value):
        details = _array_details(value)
        return "array", _array_words(details), details
    if isinstance(value, dict) and value and all(map(_is_array, value.values())):
        arrays = {str(name): _array_details(part) for name, part in value.items()}
        shown = [f"{printable(name)} {_array_words(details)}" for name, details in [*arrays.items()][:_MAX_ARRAYS]]
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


def _array_details(value: Any) -> dict[str, Any]:
    return {"shape": [int(number) for number in value.shape], "dtype": str(value.dtype).removeprefix("torch.")}


def _array_words(details: dict[str, Any]) -> str:
    return f"({', '.join(map(str, details['shape']))}) {details['dtype']}"


def _beginning(text: str) -> str:
    return printable(text[:_MAX_CHARACTERS]) + ("..." if len(text) > _MAX_CHARACTERS else "")


def _replace(value: Any) -> Any:
    """Replace a value that JSON lacks: an array among a checkpoint's values, bytes in msgpack."""
    if _is_array(value):
        return _array_words(_array_details(value))
    return value[:_MAX_BYTES].hex() if isinstance(value, bytes) else str(value)

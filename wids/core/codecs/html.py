"""Samples as HTML, for notebooks: a row of thumbnails with their keys, and the values of other fields.

Every text is escaped, nothing is loaded from elsewhere, and the whole is small (`_MOST_LETTERS`, shared by samples):
pictures are thumbnails in JPEG, smaller ones where there is little space, texts are their beginnings.
"""

from __future__ import annotations

import base64
import io
from html import escape
from typing import TYPE_CHECKING, Any

from wids.core.codecs.decode import SampleDecoder
from wids.core.codecs.pictures import to_rgb
from wids.errors import UnsafeFormatError, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_QUALITY, _LETTERS, _FIELDS, _SAMPLES = 70, 80, 8, 12
_MOST_LETTERS = 50_000
_PIXELS = (128, 64, 32)  # sizes that are tried
_FIGURE = "display:inline-block;vertical-align:top;width:150px;margin:4px;font-size:12px;overflow-wrap:anywhere"
_ERROR = "color:#b00020"


def show_dataset(title: str, words: Iterable[str], samples: Iterable[Mapping[str, Any] | Exception], note: str) -> str:
    """A dataset: a title, a line of words, a row of samples, a note where none exist.

    Args:
        title: of the dataset.
        words: about it, in words.
        samples: undecoded, with ``"__classes__"`` where the index names classes; or why one cannot be read.
        note: said below.
    """
    samples = list(samples)
    some = samples[:_SAMPLES]
    share = _MOST_LETTERS // max(len(some), 1)
    row = "".join(f'<div style="{_FIGURE}">{_show(sample, share)}</div>' for sample in some)
    line = escape(shorten("; ".join(words), most=8 * _LETTERS))
    more = (
        [f"{len(samples) - len(some):,} more samples are left out of this picture."] if len(samples) > len(some) else []
    )
    below = "".join(f"<div><i>{escape(each)}</i></div>" for each in [note, *more] if each)
    return f"<div><b>{escape(title)}</b><br>{line}<div>{row}</div>{below}</div>"


def _show(sample: Mapping[str, Any] | Exception, share: int) -> str:
    """A sample in at most so many letters, about."""
    if isinstance(sample, Exception):
        return f'<span style="{_ERROR}">{escape(shorten(str(sample), most=3 * _LETTERS))}</span>'
    fields = {name: value for name, value in sample.items() if name.startswith(".")}
    some = list(fields)[:_FIELDS]
    shown: list[str] = []
    for number, name in enumerate(some, 1):
        shown.append(_show_field(name, sample, share - _LETTERS * (len(some) - number)))
        share -= len(shown[-1])
    more = [f"and {len(fields) - _FIELDS} more fields"] if len(fields) > _FIELDS else []
    source = f"{escape(shorten(str(sample['__dataset__']), most=_LETTERS))} " if sample.get("__dataset__") else ""
    head = f"{source}{sample['__index__']}: <b>{escape(shorten(str(sample['__key__']), most=_LETTERS))}</b>"
    return "<br>".join([*sorted(shown, key=lambda text: not text.startswith("<img")), head, *more])


def _show_field(name: str, sample: Mapping[str, Any], most: int) -> str:
    """A field of a sample: a thumbnail, or its name and the beginning of its value."""
    try:
        alone = {name: sample[name], "__key__": sample["__key__"], "__shard__": sample["__shard__"]}
        value = SampleDecoder("PIL")(alone)[name]
        if hasattr(value, "getbands"):
            return _show_picture(value, name, most)
    except UnsafeFormatError:
        return f"{escape(shorten(name, most=_LETTERS))}: not opened, since it may hold code"
    except Exception as error:  # noqa: BLE001 - a notebook shows what there is
        text = str(error) or type(error).__name__  # the sample's place is shown beside it
        why = shorten(text.partition(f" in shard {sample['__shard__']}: ")[2] or text, most=_LETTERS)
        return f'<span style="{_ERROR}">{escape(shorten(name, most=_LETTERS))}: {escape(why)}</span>'
    return f"{escape(shorten(name, most=_LETTERS))}: {escape(_words(name, value, sample.get('__classes__')))}"


def _words(name: str, value: Any, classes: Sequence[str] | None) -> str:
    if (name_of_class := class_name(name, value, classes)) is not None:
        return f"{value} ({shorten(name_of_class, most=_LETTERS)})"
    if hasattr(value, "getvalue") or isinstance(value, bytes):
        return f"{len(value if isinstance(value, bytes) else value.getvalue()):,} bytes"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{tuple(value.shape)} {value.dtype}"
    return shorten(value if isinstance(value, str) else repr(value), most=_LETTERS)


def class_name(name: str, value: Any, classes: Sequence[str] | None) -> str | None:
    """The class of a label in a field ``.cls`` by the index's list of classes; None: none exists."""
    is_label = name.rpartition(".")[2].lower() == "cls" and type(value) is int
    return name_label(value, classes or ()) if is_label else None


def name_label(label: Any, classes: Sequence[str]) -> str | None:
    """The name of a label's class; None: it has none."""
    return classes[label] if isinstance(label, int) and 0 <= label < len(classes) else None


def _show_picture(image: Any, name: str, most: int) -> str:
    size = f"{image.width} x {image.height} {image.mode}"
    image = to_rgb(image)
    for pixels in _PIXELS:
        data = io.BytesIO()
        image.thumbnail((pixels, pixels))
        image.save(data, "JPEG", quality=_QUALITY)
        source = base64.b64encode(data.getvalue()).decode()
        if len(source) <= most:
            return f'<img src="data:image/jpeg;base64,{source}" title="{escape(f"{name} {size}")}">'
    return f"{escape(shorten(name, most=_LETTERS))}: {size}"

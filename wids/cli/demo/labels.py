"""Labels and images of any dataset, as the demo's network takes them.

Rules: a label is a class, written as a whole number or a short text; what is neither is refused with its place.
Functions here run in DataLoader workers, so they are at module level and take what they need as arguments.
"""

from __future__ import annotations

import io
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from wids.errors import WidsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Sample = dict[str, Any]

_NUMBER = re.compile(r"[+-]?\d+")
_LONGEST = 64


def parse_label(data: bytes) -> str | None:
    """The class that a label member names: ``b"7"`` and ``b"07 "`` are "7", ``b" cat"`` is "cat"; None if neither."""
    try:
        text = data.decode("utf-8").strip()
    except UnicodeDecodeError:
        return None
    if _NUMBER.fullmatch(text):
        return str(int(text))
    # A brace or bracket begins a JSON structure, a line break a longer text.
    is_short = 0 < len(text) <= _LONGEST and text.isprintable() and text[0] not in "{["
    return text if is_short else None


def read_label(sample: Sample, *, field: str) -> Sample:
    """Replace the label member, an ``io.BytesIO``, by the class it names (str).

    Raises:
        WidsError: it is missing, or neither a number nor a short text.
    """
    stream = sample.get(field)
    if stream is None:
        raise WidsError(f"{place_of(sample)} has no {field}; every sample needs its label")
    data = stream.getvalue() if isinstance(stream, io.BytesIO) else bytes(stream)
    label = parse_label(data)
    if label is None:
        shown = repr(data[:40])[1:] + ("..." if len(data) > 40 else "")
        raise WidsError(
            f"{field} of {place_of(sample)} is neither a whole number nor a short text but {shown}; "
            "name another field with --label"
        )
    return {**sample, field: label}


def to_tensors(sample: Sample, *, image: str, label: str, classes: Mapping[str, int], size_px: int) -> tuple[Any, int]:
    """(image, class): an RGB uint8 tensor of shape (3, size_px, size_px), and the number of the sample's class.

    Raises:
        WidsError: the image is missing or not an image.
    """
    import numpy as np
    import torch
    from PIL import Image

    picture = sample.get(image)
    if picture is None:
        raise WidsError(f"{place_of(sample)} has no {image}; every sample needs its image")
    if not isinstance(picture, Image.Image):
        raise WidsError(f"{image} of {place_of(sample)} is not an image; name another field with --image")
    picture = picture.convert("RGB")
    if picture.size != (size_px, size_px):
        picture = picture.resize((size_px, size_px), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous(), classes[sample[label]]


def transformations(
    *, image: str, label: str, classes: Mapping[str, int], size_px: int
) -> list[str | Callable[..., Any]]:
    """What `wids.ShardListDataset` puts samples through: read the label, decode the image, make tensors."""
    return [
        partial(read_label, field=label),
        "PIL",
        partial(to_tensors, image=image, label=label, classes=classes, size_px=size_px),
    ]


def order_classes(labels: set[str]) -> tuple[str, ...]:
    """The classes in the order of their numbers: whole numbers by value, texts by letters."""
    if all(_NUMBER.fullmatch(label) for label in labels):
        return tuple(sorted(labels, key=int))
    return tuple(sorted(labels))


def place_of(sample: Sample) -> str:
    """Words that find the sample again."""
    return f"sample {sample.get('__key__')!r} (index {sample.get('__index__')}) in {sample.get('__shard__')}"

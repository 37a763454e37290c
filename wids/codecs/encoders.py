"""Turn the values of a sample into the bytes of its members, by their extension: the inverse of `wids.codecs.decode`.

Bytes are written as they are. Any other value must come back equal from the safe decoder of its extension
(images except for the loss of their format); a value that would not is refused with a `SampleError`. torch, PIL, numpy
and msgspec load with the first value that needs them.
"""

from __future__ import annotations

import gzip
import io
import json
import operator
import sys
from collections.abc import Callable, Mapping
from typing import Any

from wids.errors import SampleError

_QUALITY = 95  # of JPEG and WebP, for images that are not encoded yet
_FORMATS = {
    **dict.fromkeys(("jpg", "jpeg"), "JPEG"),
    "png": "PNG",
    "webp": "WEBP",
    "gif": "GIF",
    "bmp": "BMP",
    **dict.fromkeys(("tif", "tiff"), "TIFF"),
    **dict.fromkeys(("ppm", "pgm", "pbm", "pnm"), "PPM"),
}


def encode_field(extension: str, value: Any) -> bytes:
    """The bytes of one member.

    Args:
        extension: with or without its leading dot; ``.gz`` on top compresses values that are not bytes yet.
        value: bytes (or a bytearray, memoryview, ``io.BytesIO``) for any extension; text for .txt; an int for .cls and
            .index; what JSON has for .json, a list of that for .jsonl; what MessagePack has for .mp; numpy arrays (also
            tensors) for .npy, a dict of them for .npz; tensors, and dicts and lists of them, for .pt and .pth; a dict
            of tensors for .safetensors; PIL images, or uint8 arrays H W or H W 3, for image extensions.

    Raises:
        SampleError: no member of that extension can hold the value.
    """
    if isinstance(value, io.BytesIO):
        return value.getvalue()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    name = extension.lower().rpartition(".")[2]
    if name == "gz" and "." in extension.removeprefix("."):
        return gzip.compress(encode_field(extension[:-3], value), mtime=0)
    encode = _ENCODERS.get(name)
    if encode is None:
        shown = extension if extension.startswith(".") else f".{extension}"
        advice = "pickles run code when they are read; store .json, .npy or .pt" if name in _PICKLES else "give bytes"
        raise SampleError(f"{shown} of a {_kind(value)}: there is no encoder for it; {advice}", field=extension)
    try:
        return encode(name, value)
    except SampleError:
        raise
    except (TypeError, ValueError, OverflowError, OSError, RecursionError, ImportError) as error:
        raise SampleError(f".{name} cannot hold this {_kind(value)}: {error}", field=extension) from error


def _kind(value: Any) -> str:
    return type(value).__name__


def _refuse(name: str, value: Any, wanted: str) -> SampleError:
    return SampleError(f".{name} holds {wanted}, not a {_kind(value)}; or give bytes", field=f".{name}")


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")  # who has a tensor has imported it
    return torch is not None and isinstance(value, torch.Tensor)


def _encode_text(name: str, value: Any) -> bytes:
    if not isinstance(value, str):
        raise _refuse(name, value, "text")
    return value.encode("utf-8")


def _encode_number(name: str, value: Any) -> bytes:
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            raise _refuse(name, value, "a whole number") from None
    try:
        return b"%d" % operator.index(value)
    except TypeError:
        raise _refuse(name, value, "a whole number") from None


def _encode_json(_: str, value: Any) -> bytes:
    return json.dumps(value).encode()


def _encode_lines(name: str, value: Any) -> bytes:
    if not isinstance(value, (list, tuple)):
        raise _refuse(name, value, "a list, one value a line")
    return b"".join(_encode_json(name, line) + b"\n" for line in value)


def _encode_msgpack(_: str, value: Any) -> bytes:
    import msgspec.msgpack

    return msgspec.msgpack.encode(value)


def _encode_npy(name: str, value: Any) -> bytes:
    import numpy as np
    from numpy.lib import format as npy

    if _is_tensor(value):
        value = value.detach().cpu().numpy()
    if not isinstance(value, (np.ndarray, np.generic)):
        raise _refuse(name, value, "a numpy array")
    if value.dtype.hasobject:
        raise _refuse(name, value, "numbers and text; an array of objects would be pickled")
    stream = io.BytesIO()
    npy.write_array(stream, np.asarray(value), allow_pickle=False)
    return stream.getvalue()


def _encode_npz(name: str, value: Any) -> bytes:
    import numpy as np

    if not isinstance(value, Mapping):
        raise _refuse(name, value, "a dict of numpy arrays")
    arrays = {str(key): array.detach().cpu().numpy() if _is_tensor(array) else array for key, array in value.items()}
    for array in arrays.values():
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            raise _refuse(name, array, "numpy arrays of numbers and text")
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def _encode_checkpoint(name: str, value: Any) -> bytes:
    import torch

    stream = io.BytesIO()
    torch.save(_own_tensors(name, value), stream)
    return stream.getvalue()


def _own_tensors(name: str, value: Any) -> Any:
    """The same, of what `torch.load(weights_only=True)` takes; a view alone, without all that it is a view of."""
    if _is_tensor(value):
        return value.detach().cpu().clone()
    if type(value) in (list, tuple):
        return type(value)(_own_tensors(name, item) for item in value)
    if type(value) is dict:
        return {_own_tensors(name, key): _own_tensors(name, item) for key, item in value.items()}
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    raise _refuse(name, value, "tensors, numbers, text, and dicts, lists and tuples of them")


def _encode_safetensors(name: str, value: Any) -> bytes:
    import safetensors.torch

    if not isinstance(value, Mapping):
        raise _refuse(name, value, "a dict of tensors")
    return bytes(safetensors.torch.save({str(key): tensor.contiguous() for key, tensor in value.items()}))


def _encode_image(name: str, value: Any) -> bytes:
    import numpy as np
    from PIL import Image

    if _is_tensor(value):
        raise _refuse(name, value, "a PIL image or a uint8 array H W or H W 3 (of a tensor C H W: permute it)")
    if isinstance(value, np.ndarray):
        if value.dtype != np.uint8:
            raise SampleError(f".{name} holds 8 bits a colour, not {value.dtype}; or store .npy", field=f".{name}")
        value = Image.fromarray(value)
    if not isinstance(value, Image.Image):
        raise _refuse(name, value, "an image (PIL, or a uint8 array)")
    stream = io.BytesIO()
    kind = _FORMATS[name]
    value.save(stream, kind, **({"quality": _QUALITY} if kind in ("JPEG", "WEBP") else {}))
    return stream.getvalue()


_PICKLES = frozenset({"pkl", "pickle"})
_ENCODERS: dict[str, Callable[[str, Any], bytes]] = {
    **dict.fromkeys(("txt", "text"), _encode_text),
    **dict.fromkeys(("cls", "cls2", "index"), _encode_number),
    **dict.fromkeys(("mp", "msgpack"), _encode_msgpack),
    **dict.fromkeys(("pt", "pth"), _encode_checkpoint),
    **dict.fromkeys(_FORMATS, _encode_image),
    "json": _encode_json,
    "jsonl": _encode_lines,
    "npy": _encode_npy,
    "npz": _encode_npz,
    "safetensors": _encode_safetensors,
}

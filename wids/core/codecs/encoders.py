"""Turn the values of a sample into the bytes of its members, by their extension; `wids.core.codecs.decode` reads them.

Bytes are written as they are. Any other value must come back equal from the safe decoder of its extension
(images except for the loss of their compression; tuples come back as lists); a value that would not is refused with a
`SampleError`. torch, PIL, numpy
and msgspec load with the first value that needs them.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import operator
import struct
import sys
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

from wids.core.codecs import tenbin
from wids.errors import SampleError, a_kind, shown

_QUALITY = 95  # of JPEG and WebP, for images that are not encoded yet
_LOSSY = frozenset({"JPEG", "WEBP"})
_FORMATS = {
    **dict.fromkeys(("jpg", "jpeg"), "JPEG"),
    "png": "PNG",
    "webp": "WEBP",
    "gif": "GIF",
    "bmp": "BMP",
    **dict.fromkeys(("tif", "tiff"), "TIFF"),
    **dict.fromkeys(("ppm", "pgm", "pbm", "pnm"), "PPM"),
}
# Modes that come back with the values that they had; Pillow writes more, without alpha, or in fewer bits or colours.
_MODES = {
    "JPEG": {"1", "L", "RGB", "CMYK", "YCbCr"},
    "PNG": {"1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I;16B"},
    "WEBP": {"1", "L", "LA", "P", "PA", "RGB", "RGBA"},
    "GIF": {"1", "L", "P"},
    "BMP": {"1", "L", "P", "RGB"},
    "TIFF": {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I", "F", "I;16", "I;16B"},
    "PPM": {"1", "L", "RGB", "I", "F", "I;16"},
}
_WITH_PROFILE = frozenset({"JPEG", "PNG", "WEBP", "TIFF"})  # and with an orientation
_ORIENTATION = 0x0112  # the EXIF tag
# The modes whose pixels a profile of a colour space (bytes 16 to 20 of its header) speaks of.
_PROFILE_MODES = {
    b"RGB ": {"P", "PA", "RGB", "RGBA", "YCbCr"},
    b"GRAY": {"1", "L", "LA", "I", "F", "I;16", "I;16B"},
    b"CMYK": {"CMYK"},
    b"Lab ": {"LAB"},
}


def encode_field(extension: str, value: Any) -> bytes:
    """The bytes of one member.

    Args:
        extension: with or without its leading dot; ``.gz`` on top compresses values that are not bytes yet.
        value: bytes (or a bytearray, memoryview, ``io.BytesIO``) for any extension; text for .txt; an int for .cls, .id
            and .index; what JSON has (no NaN, keys that are text) for .json, a list of that for .jsonl; the same, bytes
            and keys that are numbers for .mp; numpy arrays (also tensors) for .npy, a dict of them for .npz, a list of
            them for .ten; tensors, and dicts and lists of them, for .pt and .pth; a dict of tensors for .safetensors;
            PIL images, or uint8 arrays H W, H W 3 or (with alpha) H W 4, for image extensions. Of a PIL image, pixels,
            EXIF orientation and colour profile are kept (.gif, .bmp and .ppm have no orientation: the pixels are
            turned); to keep a file as it is, give its bytes.

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
        raise SampleError(f"{shown} of {a_kind(value)}: there is no encoder for it; {advice}", field=extension)
    try:
        return encode(name, value)
    except SampleError:
        raise
    except (TypeError, ValueError, OverflowError, OSError, RuntimeError, ImportError) as error:  # torch's are Runtime
        raise SampleError(f".{name} cannot hold this {type(value).__name__}: {error}", field=extension) from error


def is_encoded_anew(extension: str, value: Any) -> bool:
    """True if `encode_field` loses detail of a picture file: a PIL image that was opened from one, and not changed."""
    kind = _FORMATS.get(extension.lower().rpartition(".")[2])
    return kind in _LOSSY and getattr(value, "format", None) is not None and hasattr(value, "getexif")


def extension_of(extension: str, picture: Any) -> str:
    """The extension for the bytes of the file of such a picture: the given one, if it is of the file's format."""
    kind = "JPEG" if picture.format == "MPO" else picture.format  # of telephones
    is_own = _FORMATS.get(extension.lower().rpartition(".")[2]) == kind
    return extension if is_own else f".{'jpg' if kind == 'JPEG' else kind.lower()}"


def _refuse(name: str, value: Any, wanted: str) -> SampleError:
    return SampleError(f".{name} holds {wanted}, not {a_kind(value)}; or give bytes", field=f".{name}")


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
            value = value if "_" in value else int(value)  # Python reads 1_0 as 10
        except ValueError:
            raise _refuse(name, value, "a whole number") from None
    try:
        return b"%d" % operator.index(value)
    except TypeError:
        raise _refuse(name, value, "a whole number") from None


def _encode_json(name: str, value: Any) -> bytes:
    _check_plain(name, value, (str,))
    return json.dumps(value, allow_nan=False).encode()


def _check_plain(name: str, value: Any, keys: tuple[type, ...]) -> None:
    """Refuse values that would come back as something else: keys turned into text, sets into lists, NaN in JSON."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, keys) or isinstance(key, bool):
                raise SampleError(f".{name} cannot hold the key {shown(key)} of a dict; make it text", field=f".{name}")
            _check_plain(name, item, keys)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_plain(name, item, keys)
    elif isinstance(value, float):
        if name in _JSON and not math.isfinite(value):
            raise SampleError(f".{name} cannot hold {value}, which JSON lacks; give None", field=f".{name}")
    elif value is not None and not isinstance(value, (str, int) if name in _JSON else (str, int, bytes)):
        raise SampleError(f".{name} cannot hold {a_kind(value)}; give numbers, text, lists and dicts", field=f".{name}")


def _encode_lines(name: str, value: Any) -> bytes:
    if not isinstance(value, (list, tuple)):
        raise _refuse(name, value, "a list, one value a line")
    return b"".join(_encode_json(name, line) + b"\n" for line in value)


def _encode_msgpack(name: str, value: Any) -> bytes:
    import msgspec.msgpack

    _check_plain(name, value, (str, int))
    return msgspec.msgpack.encode(value)


def _encode_npy(name: str, value: Any) -> bytes:
    import numpy as np
    from numpy.lib import format as npy

    value = _as_array(value)
    if not isinstance(value, (np.ndarray, np.generic)) or isinstance(value, np.ma.MaskedArray):
        raise _refuse(name, value, "a numpy array, without a mask")
    if value.dtype.hasobject:
        raise _refuse(name, value, "numbers and text; an array of objects would be pickled")
    stream = io.BytesIO()
    npy.write_array(stream, np.asarray(value), allow_pickle=False)
    return stream.getvalue()


def _encode_npz(name: str, value: Any) -> bytes:
    import numpy as np

    if not isinstance(value, Mapping):
        raise _refuse(name, value, "a dict of numpy arrays")
    _check_names(name, value)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:  # numpy.savez takes some names for its own arguments
        for key, item in value.items():
            array = _as_array(item)
            if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray) or array.dtype.hasobject:
                raise _refuse(name, array, "numpy arrays of numbers and text")
            archive.writestr(zipfile.ZipInfo(f"{key}.npy"), _encode_npy(name, array))
    return stream.getvalue()


def _as_array(value: Any) -> Any:
    """The numpy array of a tensor; anything else as it is."""
    return value.detach().cpu().resolve_conj().resolve_neg().numpy() if _is_tensor(value) else value


def _check_names(name: str, value: Mapping[Any, Any]) -> None:
    for key in value:
        if not isinstance(key, str) or "\0" in key or key == "__metadata__":
            raise SampleError(f".{name} names its arrays by text, not by {shown(key)}", field=f".{name}")


def _encode_tenbin(name: str, value: Any) -> bytes:
    import numpy as np

    arrays = [_as_array(item) for item in _listed(value)]
    if not arrays:
        raise _refuse(name, value, "one array or more")
    for array in arrays:
        if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
            raise _refuse(name, array, "numpy arrays")
    return tenbin.encode(arrays)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


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
    import torch

    _check_names(name, value)
    for tensor in value.values():
        if not _is_tensor(tensor):
            raise _refuse(name, tensor, "tensors")
    # Copies: tensors that share memory are refused.
    copies = {key: tensor.detach().clone(memory_format=torch.contiguous_format) for key, tensor in value.items()}
    return bytes(safetensors.torch.save(copies))


def _encode_image(name: str, value: Any) -> bytes:
    import numpy as np
    from PIL import Image

    if _is_tensor(value):
        raise _refuse(name, value, "a PIL image or a uint8 array H W or H W 3 (of a tensor C H W: permute it)")
    if isinstance(value, np.ndarray):
        if value.dtype != np.uint8:
            raise SampleError(f".{name} holds 8 bits a colour, not {value.dtype}; or store .npy", field=f".{name}")
        if value.ndim not in (2, 3) or (value.ndim == 3 and value.shape[2] not in (2, 3, 4)):
            raise SampleError(
                f".{name} holds arrays H W, H W 3 or, with alpha, H W 4, not one of shape {shown(value.shape)}; "
                "reshape it (of C H W: array.transpose(1, 2, 0))",
                field=f".{name}",
            )
        value = Image.fromarray(value)
    if not isinstance(value, Image.Image):
        raise _refuse(name, value, "an image (PIL, or a uint8 array)")
    kind = _FORMATS[name]
    _check_image(name, value, kind)
    value, how = _with_profile(name, value, kind)
    stream = io.BytesIO()
    value.save(stream, kind, **how)
    return stream.getvalue()


def _check_image(name: str, image: Any, kind: str) -> None:
    """Refuse an image that would come back as another one.

    Raises:
        SampleError: it is such a one.
    """
    trouble = ""
    if image.mode not in _MODES[kind]:
        trouble = (
            f"an image of mode {image.mode} as it is; convert it (image.convert, image.quantize), or store .png or .tif"
        )
    elif kind == "PPM" and image.mode == "I" and not 0 <= image.getextrema()[0] <= image.getextrema()[1] < 1 << 16:
        trouble = "values beyond 0 to 65535; store .tif or .npy"
    elif "transparency" in image.info and (
        kind in ("JPEG", "BMP", "TIFF", "PPM") or (kind, image.mode) == ("WEBP", "RGB")
    ):
        trouble = "its transparent colour; convert it (image.convert('RGBA')), or store .png"
    elif kind == "GIF" and isinstance(image.info.get("transparency"), bytes):
        trouble = "an alpha for each colour of the palette; store .png"
    elif (frames := _count_frames(image)) > 1:
        trouble = f"its {frames} frames, but one; give the file's bytes, or image.copy() for the frame that it shows"
    if trouble:
        raise SampleError(f".{name} cannot hold {trouble}", field=f".{name}")


def _count_frames(image: Any) -> int:
    if image.format == "MPO":  # a photo, and a preview or the other eye's view
        return 1
    try:
        return int(getattr(image, "n_frames", 1))
    except (OSError, EOFError, ValueError, AttributeError):  # its file is closed
        return 1


def _with_profile(name: str, image: Any, kind: str) -> tuple[Any, dict[str, Any]]:
    """(the image, arguments for its ``save``), which keep its orientation and colour profile.

    Raises:
        SampleError: its format has no place for its profile.
    """
    from PIL import Image, ImageOps

    image.load()  # a TIFF is turned by this, and has no orientation afterwards
    try:
        turned = image.getexif().get(_ORIENTATION, 1)
    except (
        OSError,
        SyntaxError,
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        struct.error,
    ):  # no viewer reads it either
        turned = 1
    profile = image.info.get("icc_profile")
    if profile and image.mode not in _PROFILE_MODES.get(profile[16:20], ()):
        profile = None  # of the image that this one was converted from
    how: dict[str, Any] = {"quality": _QUALITY} if kind in ("JPEG", "WEBP") else {}
    if kind not in _WITH_PROFILE:
        if profile:
            raise SampleError(
                f".{name} cannot hold its colour profile; store .png, or delete image.info['icc_profile'] of sRGB",
                field=f".{name}",
            )
        return ImageOps.exif_transpose(image) if turned in range(2, 9) else image, how
    if turned in range(2, 9):
        exif = Image.Exif()
        exif[_ORIENTATION] = turned
        how["exif"] = exif.tobytes()
    return image, {**how, "icc_profile": profile or None}


_JSON = frozenset({"json", "jsonl"})
_PICKLES = frozenset({"pkl", "pickle", "pyd"})
_ENCODERS: dict[str, Callable[[str, Any], bytes]] = {
    **dict.fromkeys(("txt", "text"), _encode_text),
    **dict.fromkeys(("cls", "cls2", "index", "id"), _encode_number),
    **dict.fromkeys(("mp", "msgpack"), _encode_msgpack),
    **dict.fromkeys(("pt", "pth"), _encode_checkpoint),
    **dict.fromkeys(_FORMATS, _encode_image),
    "json": _encode_json,
    "jsonl": _encode_lines,
    "npy": _encode_npy,
    "npz": _encode_npz,
    "safetensors": _encode_safetensors,
    "ten": _encode_tenbin,
}

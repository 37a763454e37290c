"""Turn the bytes of a sample's members into values, by their extension.

Rules: only keys that start with "." are decoded, and only while they hold bytes; an extension nobody knows
stays as it is. A member is hostile until proven otherwise: nothing here runs code from a shard unless
`allow_pickle` is set, and nothing inflates past its bound. Every failure is a `DecodeError` that names
shard, key and field. torch, PIL, numpy and msgspec load with the first member that needs them.
"""

from __future__ import annotations

import functools
import io
import json
import math
import pickle
import threading
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from wids.errors import DecodeError, UnsafeFormatError

if TYPE_CHECKING:
    import numpy as np

Decoder = Callable[[bytes], Any]
_Plan = dict[str, Decoder | None]

_FORMATS = {"pil": "PIL", "numpy": "numpy", "torch": "torch", "raw": "raw"}
_BINARY = (io.BytesIO, bytes, bytearray, memoryview)

# What an image member may hold, whatever its extension says (a .jpg that is a PNG is common). The list is
# closed because Pillow goes by content: a .jpg that holds EPS would start Ghostscript on it.
_IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
_IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "pbm", "pnm")

_GZIP = 31  # zlib's wbits for a gzip header and trailer
_WINDOW_BYTES = 1 << 16  # fed at a time: what follows a gzip member is copied once for each member
_CACHED_FIELDS = 1024  # file names with many dots make every field of a shard a new one

_TRUST = "if you trust whoever wrote these shards, decode with wids.decode.SampleDecoder(..., allow_pickle=True)"


class _Options(NamedTuple):
    """What a `SampleDecoder` was made with."""

    format: str
    allow_pickle: bool
    max_inflate_bytes: int


class _Registry:
    """The user's decoders in this process; `current` is replaced, never changed, so its identity is its version."""

    __slots__ = ("current", "lock")

    def __init__(self) -> None:
        self.current: Mapping[str, Decoder] = {}
        self.lock = threading.Lock()

    def add(self, name: str, decoder: Decoder) -> None:
        with self.lock:  # two threads that copy the same mapping would lose one registration
            self.current = {**self.current, name: decoder}


_registry = _Registry()


def register_decoder(extension: str, decoder: Decoder) -> None:
    """Decode members of this extension with `decoder`, in every format but "raw".

    It takes the place of the built-in decoder and of an earlier registration. The longest registered
    extension wins, so ".seg.png" goes before ".png". With ".gz" on top of it, it is given the inflated bytes.

    Args:
        extension: ".seg.png" or "seg.png"; case does not matter.
        decoder: called with the member's bytes, returns its value. To reach DataLoader workers that are
            spawned it must pickle: a function at module level, not a lambda.

    Raises:
        ValueError: the extension is empty or has an empty part.
        TypeError: the decoder cannot be called.
    """
    name = extension.removeprefix(".").lower()
    if not all(name.split(".")):
        raise ValueError(f"{extension!r} is not an extension; give one like '.png' or '.seg.png'")
    if not callable(decoder):
        raise TypeError(f"the decoder for {extension!r} must be callable, got {type(decoder).__name__}")
    _registry.add(name, decoder)


class SampleDecoder:
    """Decode the members of a sample; call it with a sample, get a new dict.

    Keys stay as they are (".txt.gz" becomes a str under ".txt.gz"). Images are loaded whole, first frame, mode
    untouched. Registrations made in this process count from the next call on. A pickled decoder carries those of
    its process along; where it is unpickled they go before what was registered there until then.

    Args:
        format: "PIL": images are `PIL.Image.Image`. "numpy": images are arrays, H W C or H W. "torch": images are
            tensors, C H W or 1 H W, and .npy and .npz give tensors where torch has the dtype. Both kinds are
            writable and the caller's own. "raw": every member becomes bytes, nothing is inflated or parsed.
        allow_pickle: decode .pkl and .pickle, objects in .pt, .pth, .npy and .npz. This runs code from the shard.
        max_inflate_bytes: the most that one .gz or .npz member may inflate to.

    Raises:
        ValueError: an unknown format, or a negative bound.
    """

    __slots__ = ("_carried", "_options", "_plan")
    _options: _Options
    _carried: tuple[Mapping[str, Decoder], Mapping[str, Decoder]] | None  # registered at unpickling; pickled along
    _plan: tuple[Mapping[str, Decoder] | None, _Plan]  # the registrations it was made from; field -> decoder

    def __init__(
        self,
        format: Literal["PIL", "numpy", "torch", "raw"] = "PIL",  # noqa: A002 - the original's public keyword
        *,
        allow_pickle: bool = False,
        max_inflate_bytes: int = 1 << 30,
    ) -> None:
        name = _FORMATS.get(str(format).lower())
        if name is None:
            raise ValueError(f"unknown format {format!r}; choose one of {', '.join(_FORMATS.values())}")
        if max_inflate_bytes < 0:
            raise ValueError(f"max_inflate_bytes must not be negative, got {max_inflate_bytes}")
        self.__setstate__((_Options(name, bool(allow_pickle), int(max_inflate_bytes)), {}))

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of `sample` with its members decoded.

        Args:
            sample: extensions (".jpg") to `io.BytesIO` or bytes, and "__key__", "__shard__", ...; it is not changed,
                and neither are its streams' positions.

        Raises:
            DecodeError: a member cannot be decoded; `__cause__` is what its decoder raised.
            UnsafeFormatError: a member can only be decoded by running code from it.
        """
        seen, plan = self._plan  # read once: another thread may put a new pair there
        if seen is not _registry.current:
            plan = self._renew_plan()
        result = dict(sample)
        for field, value in sample.items():
            if not field.startswith(".") or not isinstance(value, _BINARY):
                continue
            try:
                decoder = plan[field]
            except KeyError:
                decoder = _resolve(field, self._registered(), self._options)
                if len(plan) < _CACHED_FIELDS:
                    plan[field] = decoder
            if decoder is None:
                continue
            try:
                result[field] = decoder(value.getvalue() if isinstance(value, io.BytesIO) else bytes(value))
            except MemoryError:  # says something about the machine, not about the member
                raise
            except Exception as error:
                raise _explain(error, sample, field) from error
        return result

    def _registered(self) -> Mapping[str, Decoder]:
        """Return the registrations that count here: those carried along, and newer ones of this process."""
        live = _registry.current
        if self._carried is None:
            return live
        found_there, carried = self._carried
        newer = {name: decoder for name, decoder in live.items() if found_there.get(name) is not decoder}
        return {**found_there, **carried, **newer}

    def _renew_plan(self) -> _Plan:
        plan: _Plan = {}
        self._plan = (_registry.current, plan)
        return plan

    def __getstate__(self) -> tuple[_Options, Mapping[str, Decoder]]:
        return self._options, self._registered()

    def __setstate__(self, state: tuple[_Options, Mapping[str, Decoder]]) -> None:
        self._options, carried = state
        self._carried = (_registry.current, carried) if carried else None
        self._plan = (None, {})

    def __repr__(self) -> str:
        name, allow_pickle, bound = self._options
        return f"SampleDecoder({name!r}, allow_pickle={allow_pickle}, max_inflate_bytes={bound})"

    def __eq__(self, other: object) -> bool:
        return self._options == other._options if isinstance(other, SampleDecoder) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._options)


def _resolve(field: str, registered: Mapping[str, Decoder], options: _Options) -> Decoder | None:
    """Return the decoder for a field like ".seg.png.gz", or None when its members stay as they are."""
    if options.format == "raw":
        return bytes
    suffix = field[1:].lower()
    found = _lookup(suffix, registered, options)
    if found is not None or not suffix.endswith(".gz"):
        return found
    inner = _lookup(suffix[:-3], registered, options)
    return None if inner is None else functools.partial(_decode_gzipped, inner, options)


def _lookup(suffix: str, registered: Mapping[str, Decoder], options: _Options) -> Decoder | None:
    rest = suffix
    while rest:  # the longest first
        if rest in registered:
            return registered[rest]
        rest = rest.partition(".")[2]
    name = suffix.rpartition(".")[2]
    if name in _PLAIN:
        return _PLAIN[name]
    return functools.partial(_WITH_OPTIONS[name], options) if name in _WITH_OPTIONS else None


def _explain(error: Exception, sample: Mapping[str, Any], field: str) -> DecodeError:
    """Return the error for the caller: where, why, and what to do."""
    shard, key, index = sample.get("__shard__"), sample.get("__key__"), sample.get("__index__")
    place = f"{field} of sample {key!r}" + ("" if index is None else f" (index {index})") + f" in shard {shard}"
    if isinstance(error, DecodeError):
        story = str(error)  # from below: it already says what to do
    else:
        story = (
            f"{type(error).__name__}: {error}. The member is damaged or not what its extension says; repair it, "
            "read other fields only, or register another decoder with wids.register_decoder"
        )
    kind = UnsafeFormatError if isinstance(error, UnsafeFormatError) else DecodeError
    return kind(f"cannot decode {place}: {story}", shard=shard, key=key, field=field)


def _decode_gzipped(inner: Decoder, options: _Options, data: bytes) -> Any:
    return inner(_gunzip(data, options.max_inflate_bytes))


def _gunzip(data: bytes, bound_bytes: int) -> bytes:
    """Inflate all members of a gzip stream (RFC 1952), allocating no more than the bound and one byte."""
    view, at, total = memoryview(data), 0, 0
    parts: list[bytes] = []
    while True:
        stream = zlib.decompressobj(_GZIP)
        while not stream.eof:
            piece = view[at : at + _WINDOW_BYTES]
            if not piece:
                raise EOFError(f"the gzip stream ends too early, after {len(data)} bytes")
            part = stream.decompress(piece, bound_bytes - total + 1)  # 0 would mean no bound
            total += len(part)
            if total > bound_bytes:
                raise _too_large(bound_bytes)
            parts.append(part)
            at += len(piece) - len(stream.unused_data)
        if not any(view[at:]):  # the end, or zeros that fill up a block, which gzip(1) ignores too
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(bound_bytes: int) -> DecodeError:
    return DecodeError(
        f"it inflates to more than max_inflate_bytes={bound_bytes} bytes; give SampleDecoder a larger bound "
        "if this member is meant to be so large"
    )


def _decode_text(data: bytes) -> str:
    return data.decode("utf-8")


def _decode_lines(data: bytes) -> list[Any]:
    values = []
    for number, line in enumerate(data.split(b"\n"), 1):
        text = line.strip()
        if text:
            try:
                values.append(json.loads(text))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
    return values


def _decode_msgpack(data: bytes) -> Any:
    import msgspec.msgpack

    return msgspec.msgpack.decode(data)


def _decode_pickle(options: _Options, data: bytes) -> Any:
    if not options.allow_pickle:
        raise UnsafeFormatError(f"unpickling can run any code; {_TRUST}, else store it as .json, .npy or .mp")
    return pickle.loads(data)  # noqa: S301 - the caller allowed it, in so many words


def _decode_checkpoint(options: _Options, data: bytes) -> Any:
    import torch

    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=not options.allow_pickle)
    except pickle.UnpicklingError as error:
        if options.allow_pickle:
            raise
        # The rest of torch's message is a page of advice that would pass as ours.
        found = str(error).partition("WeightsUnpickler error:")[2].strip().partition("\n")[0]
        raise UnsafeFormatError(
            "torch.load(weights_only=True) refuses it: it holds more than tensors and plain containers, or it is "
            f"damaged ({found or 'no detail given'}); {_TRUST}"
        ) from error


def _decode_safetensors(data: bytes) -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise DecodeError("it takes the safetensors package; install it: pip install safetensors") from error
    return safetensors.torch.load(data)


@functools.cache
def _image_formats() -> tuple[str, ...]:
    """Return those of our image formats that this Pillow has; it raises KeyError for a name it lacks."""
    from PIL import Image

    Image.init()
    return tuple(name for name in _IMAGE_FORMATS if name in Image.OPEN)


def _decode_image(options: _Options, data: bytes) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(data), formats=_image_formats())
    except UnidentifiedImageError as error:  # its own message is the address of a BytesIO
        raise DecodeError(
            f"its {len(data)} bytes are not a {', '.join(_image_formats())} image, or its header is damaged; repair "
            "it, or register a decoder with wids.register_decoder"
        ) from error
    except Image.DecompressionBombError as error:
        raise DecodeError(f"{error}; raise PIL.Image.MAX_IMAGE_PIXELS if you trust it") from error
    image.load()  # here, where shard and key are known, not at the first look at a pixel
    if options.format == "PIL":
        return image
    import numpy as np

    if options.format == "numpy":
        return np.array(image)
    array = np.asarray(image)
    return _image_tensor(array[None] if array.ndim == 2 else array.transpose(2, 0, 1))


def _image_tensor(array: np.ndarray[Any, Any]) -> Any:
    import numpy as np
    import torch

    dtype = array.dtype.newbyteorder("=")
    if dtype == np.uint16 and not hasattr(torch, "uint16"):  # before torch 2.3: the same values, a wider type
        dtype = np.dtype(np.int32)
    return torch.from_numpy(np.array(array, dtype=dtype, order="C"))


def _decode_npy(options: _Options, data: bytes) -> Any:
    array = _read_npy(data, allow_pickle=options.allow_pickle)
    return _to_tensor(array) if options.format == "torch" else array


def _decode_npz(options: _Options, data: bytes) -> dict[str, Any]:
    """Read every array of an .npz; numpy's own reader would inflate whatever the archive holds."""
    result = {}
    left = options.max_inflate_bytes
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            if info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                raise DecodeError(f"{info.filename} is compressed as numpy never does; write it with numpy.savez")
            left -= info.file_size
            if left < 0:
                raise _too_large(options.max_inflate_bytes)
            with archive.open(info) as stream:
                member = stream.read(info.file_size)  # read() alone would inflate past a size that lies
            result[info.filename.removesuffix(".npy")] = _decode_npy(options, member)
    return result


def _read_npy(data: bytes, *, allow_pickle: bool) -> np.ndarray[Any, Any]:
    """Read one array, writable and the caller's own (the format: numpy.lib.format).

    The header is held against the bytes at hand first: numpy allocates what the header says.
    """
    import numpy as np
    from numpy.lib import format as npy

    stream = io.BytesIO(data)
    version = npy.read_magic(stream)
    if version not in {(1, 0), (2, 0), (3, 0)}:
        raise ValueError(f"version {version} of the .npy format is unknown")
    # 3.0 is 2.0 with UTF-8 field names; read as latin-1 they look wrong but the sizes are right.
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read_header(stream)
    if dtype.hasobject and not allow_pickle:
        raise UnsafeFormatError(f"it holds Python objects, and unpickling them can run any code; {_TRUST}")
    count, held = math.prod(shape), len(data) - stream.tell()
    if min(shape, default=0) < 0 or (not dtype.hasobject and count * dtype.itemsize > held):
        raise ValueError(f"the .npy header promises shape {shape} of {dtype}, and {held} bytes follow it")
    if dtype.hasobject or version == (3, 0) or not count * dtype.itemsize:
        stream.seek(0)
        return npy.read_array(stream, allow_pickle=allow_pickle)
    flat = np.frombuffer(data, dtype, count, stream.tell()).copy()
    return flat.reshape(shape, order="F" if fortran else "C")


def _to_tensor(array: np.ndarray[Any, Any]) -> Any:
    """Return the array as a tensor on the same memory, or as it is when torch has no such dtype."""
    import torch

    native = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    try:
        return torch.from_numpy(native)
    except TypeError:
        return array


_PLAIN: dict[str, Decoder] = {
    **dict.fromkeys(("txt", "text"), _decode_text),
    **dict.fromkeys(("cls", "cls2", "index"), int),
    **dict.fromkeys(("mp", "msgpack"), _decode_msgpack),
    "json": json.loads,
    "jsonl": _decode_lines,
    "safetensors": _decode_safetensors,
}
_WITH_OPTIONS: dict[str, Callable[[_Options, bytes], Any]] = {
    **dict.fromkeys(_IMAGE_EXTENSIONS, _decode_image),
    **dict.fromkeys(("pt", "pth"), _decode_checkpoint),
    **dict.fromkeys(("pkl", "pickle"), _decode_pickle),
    "npy": _decode_npy,
    "npz": _decode_npz,
}

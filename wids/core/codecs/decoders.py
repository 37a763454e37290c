"""The built-in decoders: one function for each extension, bytes -> value.

Members are treated as hostile: no code from a shard runs unless ``allow_pickle`` is set, no memory is allocated by a
size that a header only claims, nothing inflates past its limit. torch, PIL, numpy and msgspec load
with the first member that needs them.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import importlib
import io
import json
import math
import pickle
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from wids.core.codecs import jpeg, tenbin
from wids.core.files import forks
from wids.errors import DecodeError, DependencyError, UnsafeFormatError, shown

if TYPE_CHECKING:
    import numpy as np

Decoder = Callable[[bytes], Any]

# Formats that an image member may have, also under another extension (a .jpg that is a PNG is common). The list is
# closed because Pillow goes by content: a .jpg that holds EPS would start Ghostscript on it.
_IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
_JPEGS = ("JPEG", "MPO")  # a JPEG with more pictures behind it, as phones write, is an MPO
_IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "pbm", "pnm")

# Sounds that libsndfile reads, and that people store in shards.
SOUND_EXTENSIONS = ("flac", "wav", "mp3", "ogg", "opus")
_SOUND_BLOCK = 1 << 20  # values that are decoded at a time
NO_FRAMES = 2**63 - 1  # what libsndfile says of a sound whose header does not say how many it has

_GZIP = 31  # zlib's wbits for a gzip header and trailer
_WINDOW_BYTES = 1 << 14  # fed at a time: the rest of the data is copied once for each gzip member

_NUMBER = re.compile(rb"-?[0-9]{1,40}")

_TRUST = "if you trust the writer of these shards, pass allow_pickle=True (to the dataset or to wids.SampleDecoder)"


class Options(NamedTuple):
    """The arguments of a `SampleDecoder`."""

    format: str
    allow_pickle: bool
    max_inflate_bytes: int
    also: frozenset[str] = frozenset()


def find_decoder(name: str, options: Options) -> Decoder | None:
    """The built-in decoder of an extension without dots (``"png"``), or None."""
    _import_for(name, options)
    if name in _PLAIN:
        return _PLAIN[name]
    if name == "pyd" and not options.allow_pickle:  # wids 0.1 left it alone
        return None
    return functools.partial(_WITH_OPTIONS[name], options) if name in _WITH_OPTIONS else None


def _import_for(name: str, options: Options) -> None:
    """Import the modules of this extension's decoder: a fork in another thread's import would hang."""
    arrays = ("numpy", "torch") if options.format == "torch" else ("numpy",)
    with forks.lock:
        for module in (*_MODULES.get(name, ()), *(arrays if name in _ARRAYS else ())):
            with contextlib.suppress(ImportError, OSError):  # the decoder says so; OSError: there is no libsndfile
                importlib.import_module(module)
                if module == "PIL.Image":
                    image_formats()  # imports Pillow's plugins
        if name in _IMAGE_EXTENSIONS and options.format != "PIL":
            jpeg.find_decoder()


def decode_gzipped(inner: Decoder, options: Options, data: bytes) -> Any:
    """Inflate a member within the bound, and hand it to the decoder of the extension inside."""
    parts = inflate(data, options.max_inflate_bytes)
    if inner is _decode_text:  # bytes and text, both whole, would be twice as much
        decoder, text = codecs.getincrementaldecoder("utf-8")(), ""
        for part in parts:
            text += decoder.decode(part)
        return text + decoder.decode(b"", final=True)
    buffer = io.BytesIO()
    for part in parts:
        buffer.write(part)
    return inner(buffer.getvalue())  # the buffer's own bytes, not a copy


def inflate(data: bytes, bound_bytes: int) -> Iterator[bytes]:
    """The parts of all members of a gzip stream (RFC 1952), and no more than the bound and one byte.

    Raises:
        DecodeError: there is more. EOFError: it is cut short. zlib.error: it is damaged.
    """
    view, at, total = memoryview(data), 0, 0
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
            yield part
            at += len(piece) - len(stream.unused_data)
        if not any(view[at:]):  # the end, or zeros that fill up a block, which gzip(1) ignores too
            return


def _too_large(bound_bytes: int) -> DecodeError:
    return DecodeError(
        f"it inflates to more than max_inflate_bytes={bound_bytes} bytes; give a larger bound "
        "(to the dataset, or to SampleDecoder) if this member is meant to be so large"
    )


def _decode_number(data: bytes) -> int:
    try:
        return int(data.removeprefix(codecs.BOM_UTF8))
    except ValueError:
        raise ValueError(f"{shown(data)} is not a whole number") from None


def _decode_id(data: bytes) -> int | io.BytesIO:
    """A number, as webdataset writes it; other identifiers stay bytes, as wids 0.1 left all."""
    text = data.strip()
    return int(text) if _NUMBER.fullmatch(text) else io.BytesIO(data)


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


def _decode_pickle(options: Options, data: bytes) -> Any:
    if not options.allow_pickle:
        raise UnsafeFormatError(f"unpickling can run any code; {_TRUST}, else store it as .json, .npy or .mp")
    return pickle.loads(data)  # noqa: S301 - the caller allowed it, in so many words


def _decode_checkpoint(options: Options, data: bytes) -> Any:
    import torch

    if data.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            gain = sum(max(0, info.file_size - info.compress_size) for info in archive.infolist())
        if gain > options.max_inflate_bytes:  # torch stores its records, and inflates any that are compressed
            raise _too_large(options.max_inflate_bytes)
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=not options.allow_pickle)
    except pickle.UnpicklingError as error:
        if options.allow_pickle:
            raise
        # The rest of torch's message is a page of advice that would pass as ours.
        reason = str(error).partition("WeightsUnpickler error:")[2].strip().partition("\n")[0]
        raise UnsafeFormatError(
            "torch.load(weights_only=True) refuses it: it holds more than tensors and plain containers, or it is "
            f"damaged ({reason or 'no detail given'}); {_TRUST}"
        ) from error


def _decode_safetensors(data: bytes) -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise DecodeError("it takes the safetensors package; install it: pip install safetensors") from error
    return safetensors.torch.load(data)


@functools.cache
def image_formats() -> tuple[str, ...]:
    """Return those of our image formats that this Pillow has; it raises KeyError for a name it lacks."""
    from PIL import Image

    Image.init()
    return tuple(name for name in _IMAGE_FORMATS if name in Image.OPEN)


def open_image(file: IO[bytes]) -> Any:
    """The picture in a file, as Pillow opens it: size and mode of its header, no pixel yet.

    Raises:
        DecodeError: it is no picture, or one of too many pixels.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(file, formats=image_formats())
    except UnidentifiedImageError as error:  # its own message is the address of a BytesIO
        size = file.seek(0, io.SEEK_END)
        if not size:
            raise DecodeError("it is empty; pack the sample again, or leave it out") from error
        raise DecodeError(
            f"its {size:,} bytes are not a JPEG, PNG or other known image, or its header is damaged; repair it, "
            f"or register a decoder with wids.register_decoder (known are {', '.join(image_formats())})"
        ) from error
    except Image.DecompressionBombError as error:
        raise DecodeError(f"{error}; raise PIL.Image.MAX_IMAGE_PIXELS if you trust it") from error


def _decode_image(options: Options, data: bytes) -> Any:
    image, array = open_image(io.BytesIO(data)), None
    if options.format != "PIL" and image.format in _JPEGS and image.mode in ("L", "RGB"):
        array = jpeg.decode(data)
    if array is None:
        image.load()  # here, where shard and key are known, not at the first look at a pixel
        if options.format == "PIL":
            return image
        import numpy as np

        array = np.array(image)
    return array if options.format == "numpy" else _image_tensor(array)


def _image_tensor(array: np.ndarray[Any, Any]) -> Any:
    """C H W, a view of H W C: no copy, and the order in which torch resizes fastest."""
    import torch

    pixels = torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)


def _decode_sound(options: Options, data: bytes) -> tuple[Any, int]:
    """(float32, (channels, frames); frames a second); what it decodes to counts as inflated."""
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise DependencyError("decoding sounds takes soundfile; install it: pip install 'wids[sounds]'") from error
    import numpy as np

    if not data:
        raise DecodeError("it is empty; pack the sample again, or leave it out")
    with soundfile.SoundFile(io.BytesIO(data)) as sound:
        sound.seekable = bool  # no: soundfile would seek behind each block, which libsndfile cannot in some of these
        says, channels, rate = sound.frames, sound.channels, int(sound.samplerate)
        left, count = options.max_inflate_bytes // (4 * channels), _SOUND_BLOCK // channels
        blocks: list[np.ndarray[Any, Any]] = []
        if left < says < NO_FRAMES:
            raise _too_large(options.max_inflate_bytes)
        while not blocks or len(blocks[-1]) == count:  # the header may lie
            blocks.append(sound.read(count, dtype="float32", always_2d=True))
            left -= len(blocks[-1])
            if left < 0:
                raise _too_large(options.max_inflate_bytes)
        total = sum(map(len, blocks))
        if total < says < NO_FRAMES and sound.format != "MP3":  # where it is an estimate
            raise ValueError(f"it ends after {total:,} of {says:,} frames")
    waveform = np.concatenate([block.T for block in blocks], axis=1)
    return (_to_tensor(waveform) if options.format == "torch" else waveform), rate


def _decode_npy(options: Options, data: bytes) -> Any:
    array = _read_npy(data, allow_pickle=options.allow_pickle)
    return _to_tensor(array) if options.format == "torch" else array


def _decode_tenbin(options: Options, data: bytes) -> list[Any] | io.BytesIO:
    if not data.startswith(tenbin.MAGIC):  # of some other format, left alone as wids 0.1 did
        return io.BytesIO(data)
    arrays = tenbin.decode(data)
    return [_to_tensor(array) for array in arrays] if options.format == "torch" else list(arrays)


def _decode_npz(options: Options, data: bytes) -> dict[str, Any]:
    """Read every array of an .npz; numpy's own reader would inflate all that the archive holds."""
    result = {}
    left = options.max_inflate_bytes
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            if info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                raise DecodeError(
                    f"{info.filename} has a compression that numpy never writes; write it with numpy.savez"
                )
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
    try:
        shape, fortran, dtype = read_header(stream)
    except SystemError:  # CPython's parser, which numpy calls, may confuse two threads that use it at the same time
        stream.seek(npy.MAGIC_LEN)
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
    **dict.fromkeys(("cls", "cls2", "index"), _decode_number),
    "id": _decode_id,
    **dict.fromkeys(("mp", "msgpack"), _decode_msgpack),
    "json": json.loads,
    "jsonl": _decode_lines,
    "safetensors": _decode_safetensors,
}
_ARRAYS = frozenset({*_IMAGE_EXTENSIONS, *SOUND_EXTENSIONS, "npy", "npz", "ten"})
_MODULES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_IMAGE_EXTENSIONS, ("PIL.Image",)),
    **dict.fromkeys(SOUND_EXTENSIONS, ("soundfile",)),
    **dict.fromkeys(("mp", "msgpack"), ("msgspec.msgpack",)),
    "npy": ("numpy.lib.format",),
    "npz": ("numpy.lib.format", "encodings.cp437"),  # zipfile's for names
    **dict.fromkeys(("pt", "pth"), ("torch", "torch.utils.serialization.config", "encodings.cp437")),
    "safetensors": ("safetensors.torch",),
}
_WITH_OPTIONS: dict[str, Callable[[Options, bytes], Any]] = {
    **dict.fromkeys(_IMAGE_EXTENSIONS, _decode_image),
    **dict.fromkeys(SOUND_EXTENSIONS, _decode_sound),
    **dict.fromkeys(("pt", "pth"), _decode_checkpoint),
    **dict.fromkeys(("pkl", "pickle", "pyd"), _decode_pickle),
    "npy": _decode_npy,
    "npz": _decode_npz,
    "ten": _decode_tenbin,
}

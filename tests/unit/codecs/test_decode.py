import copy
import gzip
import io
import json
import math
import multiprocessing
import operator
import pickle
import struct
import subprocess
import sys
import threading
import tracemalloc
import types
import zipfile
import zlib
from concurrent.futures import ProcessPoolExecutor

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from tests.support.clocks import PATIENCE_SECONDS
from wids import errors
from wids.core.codecs import decode, decoders
from wids.core.codecs.decode import UNASKED, SampleDecoder, register_decoder
from wids.core.codecs.decoders import SOUND_EXTENSIONS
from wids.errors import DecodeError, DependencyError, UnsafeFormatError

FORMATS = ["PIL", "numpy", "torch"]


@pytest.fixture(autouse=True)
def _no_registrations(monkeypatch):
    """Each test starts without registrations and leaves none."""
    monkeypatch.setattr(decode._registry, "current", {})


def image_bytes(kind, mode="RGB", **options):
    """A 5 x 3 image of distinct pixels, as a file of this Pillow format."""
    pixels = (np.arange(3 * 5 * 3, dtype=np.uint8) * 5).reshape(3, 5, 3)
    stream = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(stream, kind, **options)
    return stream.getvalue()


def npy_bytes(array, version=None):
    """An array as the contents of an .npy file."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asarray(array), version=version)
    return stream.getvalue()


def npz_bytes(save=np.savez, **arrays):
    """Arrays as the contents of an .npz file."""
    stream = io.BytesIO()
    save(stream, **arrays)
    return stream.getvalue()


def pt_bytes(value):
    """A value as torch.save stores it."""
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def sample_of(extension, data):
    """An undecoded sample with one member."""
    return {"__key__": "000123", "__shard__": "http://h/a.tar", "__index__": 7, extension: io.BytesIO(data)}


def decoded(extension, data, *args, **options):
    """What one member decodes to where all built-in decoders are asked for."""
    return SampleDecoder(*args, **{"also": UNASKED, **options})(sample_of(extension, data))[extension]


def failure(extension, data, *args, **options):
    """The error that decoding gives, checked to name its place in words and in attributes."""
    with pytest.raises(DecodeError) as caught:
        decoded(extension, data, *args, **options)
    error = caught.value
    assert (error.shard, error.key, error.field) == ("http://h/a.tar", "000123", extension)
    assert f"{extension} of sample '000123' (index 7) in shard http://h/a.tar" in str(error)
    assert error.__cause__ is not None
    return error


# Every extension: (extension, bytes, value); images apart, further down.
PLAIN = [
    (".txt", "häuser\n".encode(), "häuser\n"),
    (".text", b"", ""),
    (".cls", b"17\n", 17),
    (".cls2", b"-3", -3),
    (".index", b" 0 ", 0),
    (".json", b'{"a": [1, 2.5, null], "b": -Infinity}', {"a": [1, 2.5, None], "b": -math.inf}),
    (".jsonl", b'{"a": 1}\r\n\n  \n[2]\n"x"', [{"a": 1}, [2], "x"]),
    (".mp", msgspec.msgpack.encode({"x": 1, "y": [b"z", 2.5]}), {"x": 1, "y": [b"z", 2.5]}),
    (".msgpack", msgspec.msgpack.encode([1, "x"]), [1, "x"]),
    (".pkl", pickle.dumps({"a": (1, 2)}), {"a": (1, 2)}),
    (".pickle", pickle.dumps([1]), [1]),
    (".pyd", pickle.dumps([1]), [1]),
    (".id", b"17", 17),
]
IMAGES = [
    (".jpg", "JPEG", "RGB"),
    (".jpeg", "JPEG", "L"),
    (".png", "PNG", "RGBA"),
    (".webp", "WEBP", "RGB"),
    (".gif", "GIF", "P"),
    (".bmp", "BMP", "RGB"),
    (".tif", "TIFF", "RGB"),
    (".tiff", "TIFF", "L"),
    (".ppm", "PPM", "RGB"),
    (".pgm", "PPM", "L"),
    (".pbm", "PPM", "1"),
    (".pnm", "PPM", "RGB"),
    (".PNG", "PNG", "LA"),
    (".seg.png", "PNG", "P"),
]
ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(("extension", "data", "value"), PLAIN, ids=[row[0] for row in PLAIN])
@pytest.mark.parametrize("wrap", [io.BytesIO, bytes, bytearray, memoryview])
def test_plain_members_decode_the_same_in_every_format(extension, data, value, kind, wrap):
    """Text, labels, JSON, msgpack and allowed pickles do not depend on the format, the case or the container."""
    decoder = SampleDecoder(kind, allow_pickle=True, also=UNASKED)
    name = "." + extension[1:].upper()
    result = decoder({extension: wrap(data), name: wrap(data), f"{extension}.gz": wrap(gzip.compress(data))})
    assert list(result.values()) == [value] * len(result)
    assert set(result) == {extension, name, f"{extension}.gz"}


@pytest.mark.parametrize(("extension", "kind", "mode"), IMAGES, ids=[row[0] for row in IMAGES])
@pytest.mark.parametrize("gz", [False, True])
def test_images_in_every_format(extension, kind, mode, gz):
    """An image is what Pillow makes of the same bytes: loaded image, writable array, tensor with channels first."""
    data = image_bytes(kind, mode)
    want = Image.open(io.BytesIO(data))
    want.load()
    array = np.asarray(want)
    if gz:
        extension, data = f"{extension}.gz", gzip.compress(data)

    image = decoded(extension, data, "PIL")
    assert isinstance(image, Image.Image)
    assert (image.mode, image.size, image.tobytes()) == (want.mode, (5, 3), want.tobytes())

    found = decoded(extension, data, "numpy")
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.flags.writeable
    assert np.array_equal(found, array)

    tensor = decoded(extension, data, "torch")
    assert (tensor if tensor.ndim == 2 else tensor.permute(1, 2, 0)).is_contiguous()  # as torch resizes fastest
    assert tensor.shape == ((1, 3, 5) if array.ndim == 2 else (array.shape[2], 3, 5))
    assert np.array_equal(tensor.numpy(), array[None] if array.ndim == 2 else np.moveaxis(array, -1, 0))
    assert decoded(extension, data, "raw") == data


def test_every_built_in_extension_is_tested_here():
    """The tables above and the decoders know the same extensions, so none goes untested."""
    tested = {row[0][1:].lower() for row in PLAIN + IMAGES} - {"seg.png"}
    elsewhere = {"npy", "npz", "pt", "pth", "safetensors", "ten", *SOUND_EXTENSIONS}
    assert tested | elsewhere == set(decoders._PLAIN) | set(decoders._WITH_OPTIONS)


def sound(form, subtype, *, channels=2, frames=30_000):
    """The bytes of a sound of 48,000 frames a second, and its waveform."""
    soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed")
    times = np.arange(frames, dtype=np.float32)[:, None] * np.arange(1, channels + 1, dtype=np.float32)
    waveform, stream = np.sin(times / 50) / 2, io.BytesIO()
    soundfile.write(stream, waveform, 48_000, format=form, subtype=subtype)
    return stream.getvalue(), waveform.T


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("extension", "form", "subtype", "error"),
    [
        *((".wav", "WAV", "FLOAT", 0), (".WAV", "WAV", "PCM_16", 2**-15), (".flac", "FLAC", "PCM_24", 2**-23)),
        *((".ogg", "OGG", "VORBIS", 0.1), (".opus", "OGG", "OPUS", 0.1), (".mp3", "MP3", "MPEG_LAYER_III", 0.1)),
    ],
)
def test_sounds_in_every_format(kind, extension, form, subtype, error):
    """(waveform, rate): float32, (channels, frames), an array or a tensor of the caller's own; by their content."""
    for channels in (1, 2):
        data, waveform = sound(form, subtype, channels=channels)
        found, rate = decoded(extension, data, kind, also=extension)
        assert type(found) is (torch.Tensor if kind == "torch" else np.ndarray)
        assert (str(found.dtype).removeprefix("torch."), found.shape, rate) == ("float32", waveform.shape, 48_000)
        assert type(rate) is int
        assert np.abs(np.asarray(found) - waveform).max() <= error
        found[0, 0] = 9
        assert decoded(f"{extension}.gz", gzip.compress(data), kind, also=extension)[1] == 48_000
    assert decoded(extension, data).getvalue() == data  # nobody asked


def test_sounds_of_several_blocks_and_of_none(monkeypatch):
    """All frames, also where the last block is full; a sound without frames has none."""
    monkeypatch.setattr(decoders, "_SOUND_BLOCK", 20_000)  # 10,000 frames of two channels
    data, waveform = sound("WAV", "FLOAT")
    assert np.array_equal(decoded(".wav", data, also=".wav")[0], waveform)
    assert decoded(".wav", sound("WAV", "PCM_16", channels=3)[0], also=".wav")[0].shape == (3, 30_000)
    assert decoded(".wav", sound("WAV", "PCM_16", frames=0)[0], also=".wav")[0].shape == (2, 0)


def test_sounds_stop_at_the_bound():
    """At once where the header says so; where it says another number of frames, or none, as they are decoded."""
    data, waveform = sound("FLAC", "PCM_16")
    assert "max_inflate_bytes=100000" in str(failure(".flac", data, also=".flac", max_inflate_bytes=100_000))
    assert decoded(".flac", data, also=".flac", max_inflate_bytes=waveform.nbytes)[0].shape == waveform.shape
    other = bytearray(data)
    other[21:26] = bytes([data[21] | 0x0F, 255, 255, 255, 255])  # the number of frames, of 36 bits
    assert "max_inflate_bytes=1073741824" in str(failure(".flac", bytes(other), also=".flac"))
    tracemalloc.start()
    try:
        error = failure(".flac", bytes(other), also=".flac", max_inflate_bytes=1 << 40)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "it ends after 30,000 of 68,719,476,735 frames" in str(error)
    assert peak_bytes < 16 << 20
    other[21:26] = bytes([data[21] & 0xF0, 0, 0, 0, 0])  # not known: of a stream
    assert decoded(".flac", bytes(other), also=".flac")[0].shape == (2, 30_000)
    assert "max_inflate_bytes=1000" in str(failure(".flac", bytes(other), also=".flac", max_inflate_bytes=1000))


def test_damaged_sounds():
    """Are named; half a .flac is an error."""
    data, _ = sound("FLAC", "PCM_16")
    assert "it is empty" in str(failure(".flac", b"", also=".flac"))
    words = str(failure(".flac", data[: len(data) // 2], also=".flac"))
    assert "lost sync" in words or "it ends after" in words  # as libsndfile has it


def test_sounds_without_soundfile(monkeypatch):
    """Are an error that names the extra, and says nothing of the member; not asked for, they stay as they are."""
    monkeypatch.setitem(sys.modules, "soundfile", None)
    assert SampleDecoder()({".flac": b"a"}) == {".flac": b"a"}
    with pytest.raises(DependencyError, match=r"wids\[sounds\]"):
        SampleDecoder(also=".flac")({".flac": b"a"})


def test_first_frame_of_an_animation():
    """A .gif of several frames gives its first."""
    frames = [Image.new("P", (2, 2), color) for color in (1, 2)]
    for frame in frames:
        frame.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
    stream = io.BytesIO()
    frames[0].save(stream, "GIF", save_all=True, append_images=frames[1:])
    image = decoded(".gif", stream.getvalue())
    assert image.tell() == 0
    assert image.convert("RGB").getpixel((0, 0)) == (255, 0, 0)


def test_sixteen_bit_images_keep_their_values():
    """A 16-bit PNG is uint16 in torch as well."""
    pixels = np.array([[0, 1, 65535]], np.uint16)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    found = decoded(".png", stream.getvalue(), "torch")
    assert (found.dtype, found.tolist()) == (torch.uint16, [[[0, 1, 65535]]])


def test_an_array_beside_another_thread_s(monkeypatch):
    """A header is parsed once more where CPython's parser was confused by another thread."""
    real, tries = np.lib.format.read_array_header_1_0, []

    def read(stream):
        tries.append(stream.tell())
        if len(tries) == 1:
            stream.read(3)
            raise SystemError("AST constructor recursion depth mismatch (before=51, after=48)")
        return real(stream)

    monkeypatch.setattr(np.lib.format, "read_array_header_1_0", read)
    assert decoded(".npy", npy_bytes(ARRAY)).tolist() == ARRAY.tolist()
    assert tries[0] == tries[1]


@pytest.mark.parametrize("kind", FORMATS)
def test_arrays_in_every_format(kind):
    """.npy gives a writable array, .npz a dict of them; tensors on the same values under "torch"."""
    data = npz_bytes(np.savez_compressed, a=ARRAY, b=np.int64(3))
    wanted = torch.Tensor if kind == "torch" else np.ndarray
    columns_first = npy_bytes(np.asfortranarray(ARRAY))
    for extension, packed in (
        (".npy", npy_bytes(ARRAY)),
        (".npy", columns_first),
        (".npy.gz", gzip.compress(columns_first)),
    ):
        array = decoded(extension, packed, kind)
        assert type(array) is wanted
        assert np.array_equal(np.asarray(array), ARRAY)
        array[0, 0] = 9
    for extension, packed in ((".npz", data), (".npz.gz", gzip.compress(data))):
        found = decoded(extension, packed, kind)
        assert set(found) == {"a", "b"}
        assert all(type(value) is wanted for value in found.values())
        assert np.array_equal(np.asarray(found["a"]), ARRAY)
        assert found["b"].shape == ()
        assert int(found["b"]) == 3


def test_arrays_that_torch_has_no_dtype_for_stay_arrays():
    """Strings, dates and structured arrays stay arrays under "torch"; a foreign byte order becomes a tensor."""
    for array in (np.array(["a", "bc"]), np.array(["2020-01-01"], "M8[D]"), np.zeros(2, [("ä", "i4"), ("y", "f8")])):
        found = decoded(".npy", npy_bytes(array, version=(3, 0)), "torch")
        assert isinstance(found, np.ndarray)
        assert found.dtype == array.dtype
        assert np.array_equal(found, array)
    swapped = decoded(".npy", npy_bytes(ARRAY.astype(">f4")), "torch")
    assert torch.equal(swapped, torch.from_numpy(ARRAY))


@pytest.mark.parametrize("kind", FORMATS)
def test_checkpoints_in_every_format(kind):
    """.pt and .pth give tensors and plain containers without any leave to unpickle."""
    data = pt_bytes({"w": torch.arange(3)})
    for extension, packed in ((".pt", data), (".pth", data), (".pt.gz", gzip.compress(data))):
        assert decoded(extension, packed, kind)["w"].tolist() == [0, 1, 2]


def test_safetensors_where_installed(monkeypatch):
    """.safetensors goes through safetensors.torch.load; without the package the error says to install it."""
    package, module = types.ModuleType("safetensors"), types.ModuleType("safetensors.torch")
    module.load = lambda data: {"loaded": data}
    package.torch = module
    monkeypatch.setitem(sys.modules, "safetensors", package)
    monkeypatch.setitem(sys.modules, "safetensors.torch", module)
    assert decoded(".safetensors", b"abc") == {"loaded": b"abc"}
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    assert "pip install safetensors" in str(failure(".safetensors", b"abc"))


def test_raw_parses_and_inflates_nothing():
    """Under "raw" every member is bytes: unknown, compressed, damaged or registered alike."""
    register_decoder(".txt", bytes.upper)
    members = {".txt": b"a", ".json": b"{", ".pkl": b"x", ".txt.gz": b"not gzip", ".what": b"1", ".gz": b"2"}
    sample = {"__key__": "k", **{name: io.BytesIO(data) for name, data in members.items()}}
    result = SampleDecoder("raw")(sample)
    assert result == {"__key__": "k", **members}
    assert {type(result[name]) for name in members} == {bytes}


def test_what_is_not_an_undecoded_member_passes_through():
    """Unknown extensions keep their stream and its position; metadata, other keys and values are untouched."""
    stream, array = io.BytesIO(b"abc"), np.zeros(2)
    stream.read(2)
    sample = {
        **dict.fromkeys((".xyz", ".pyd", ".gz", ".", ".txt."), stream),
        "__key__": b"17",
        "txt": b"no dot",
        ".json": {"already": "decoded"},
        ".npy": array,
        ".cls": None,
    }
    before = dict(sample)
    result = SampleDecoder()(sample)
    assert result is not sample
    assert all(result[name] is value for name, value in before.items())
    assert list(result) == list(before)
    assert stream.tell() == 2


@pytest.mark.parametrize("extension", [".ten.gz", ".id.gz", ".tar.gz", ".txt.gz.gz"])
def test_gz_of_what_nobody_knows_is_inflated(extension):
    """As in the original, such a member is a stream of what was inside; a plain .gz stays as it is."""
    result = decoded(extension, gzip.compress(b"abc"))
    assert isinstance(result, io.BytesIO)
    assert result.getvalue() == b"abc"
    failure(extension, b"not gzip")


def test_the_sample_given_is_not_changed():
    """Decoding makes a new dict and reads a stream from its start without moving it."""
    sample = {".txt": io.BytesIO(b"abc")}
    sample[".txt"].seek(2)
    assert SampleDecoder()(sample) == {".txt": "abc"}
    assert isinstance(sample[".txt"], io.BytesIO)
    assert sample[".txt"].tell() == 2


def test_a_label_with_a_byte_order_mark():
    """A .cls that an editor saved with one is its number."""
    for extension in (".cls", ".cls2", ".index"):
        assert decoded(extension, b"\xef\xbb\xbf12\n") == 12


@pytest.mark.parametrize("data", [b"cat-17", b"", b"3f", b"\xff\x00", b"9" * 5000])
def test_an_id_that_is_no_number_stays_bytes(data):
    """As wids 0.1 left all: a program that never looks at it must not fail by it."""
    assert decoded(".id", data).getvalue() == data


TEN = [np.arange(6, dtype="<f4").reshape(2, 3), np.array(-7, np.int64), np.zeros((0, 4), np.uint8)]


def ten_chunk(data, size=None):
    """A chunk of a .ten file, with a size of its own if one is given."""
    return b"~TenBin~" + struct.pack("<q", len(data) if size is None else size) + data + bytes(-len(data) % 64)


def ten_bytes(*arrays):
    """Arrays as webdataset writes them: each a chunk of its type, name and shape, and one of its values."""
    return b"".join(
        ten_chunk(
            array.dtype.str[1:].encode().ljust(8, b"\0")
            + b"name\0\0\0\0"
            + struct.pack(f"<{1 + array.ndim}q", array.ndim, *array.shape)
        )
        + ten_chunk(array.tobytes())
        for array in arrays
    )


@pytest.mark.parametrize("kind", FORMATS)
def test_webdatasets_arrays(kind):
    """A .ten is a list of arrays or tensors, writable, without leave to unpickle; what is no such file stays bytes."""
    found = decoded(".ten", ten_bytes(*TEN), kind)
    assert [type(array) for array in found] == [torch.Tensor if kind == "torch" else np.ndarray] * 3
    for array, expected in zip(found, TEN, strict=True):
        assert np.array_equal(np.asarray(array), expected)
        assert np.asarray(array).dtype == expected.dtype
    found[0][0, 0] = 5
    assert decoded(".ten", b"other", kind).getvalue() == b"other"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (ten_bytes(*TEN)[:-64], "chunk"),
        (ten_chunk(b"f4".ljust(8, b"\0") + bytes(8) + struct.pack("<2q", 1, 1)), "no values"),
        (ten_bytes(TEN[0]).replace(struct.pack("<q", 3), struct.pack("<q", 1 << 61)), "an array of shape"),
        (ten_chunk(bytes(24), size=1 << 60), "begins at byte 16"),
        (ten_chunk(bytes(24), size=-1), "a chunk of -1 bytes"),
        (ten_bytes(TEN[0]).replace(b"f4\0", b"O8\0"), "unknown type 'O8'"),
        (ten_bytes(TEN[0]).replace(struct.pack("<q", 2), struct.pack("<q", 9)), "9 dimensions"),
        (ten_bytes(TEN[0]).replace(struct.pack("<q", 3), struct.pack("<q", -3)), "dimensions"),
        (ten_chunk(b"f4") + ten_chunk(b""), "a header of 2 bytes"),
        (ten_bytes(TEN[0]) + b"rest", "no chunk at byte"),
    ],
)
def test_webdatasets_arrays_that_are_damaged(data, words):
    """Sizes that are not those of the bytes at hand are told; nothing is allocated by them."""
    assert words in str(failure(".ten", data))


def test_a_pickle_of_webdataset_is_left_alone_without_leave():
    """A .pyd was bytes in wids 0.1: it stays so, and is unpickled where that is allowed."""
    assert SampleDecoder()({".pyd": b"x"}) == {".pyd": b"x"}
    assert "UnpicklingError" in str(failure(".pyd", b"x", allow_pickle=True))


@pytest.mark.parametrize("value", [b"x", b"", b"1.5", b"0x1", b"\xff"])
def test_a_label_that_is_no_integer(value):
    """A .cls that is not an integer is a DecodeError that keeps the original as its cause."""
    assert isinstance(failure(".cls", value).__cause__, ValueError)


@pytest.mark.parametrize(
    ("extension", "data", "words"),
    [
        (".json", b"{", "JSONDecodeError"),
        (".json", b"[" * 100_000, "RecursionError"),
        (".jsonl", b"1\n\n{", "line 3"),
        (".txt", b"\xff", "UnicodeDecodeError"),
        (".mp", b"\xc1", "MessagePack"),
        (".npy", npy_bytes(ARRAY)[:-1], "23 bytes follow"),
        (".npy", b"\x93NUMPY\x09\x00", "version (9, 0)"),
        (".npy", npy_bytes(ARRAY).replace(b"(2, 3)", b"(-2,3)"), "promises shape"),
        (".npz", b"PK", "BadZipFile"),
        (".pt", pt_bytes(torch.zeros(9))[:-40], "damaged"),
    ],
)
def test_damaged_members(extension, data, words):
    """A damaged member of any kind is a DecodeError with the cause in words."""
    assert words in str(failure(extension, data))


@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_images_are_reported_here(kind):
    """A cut-off or corrupt image fails while it is decoded, not at the first look at a pixel."""
    for extension, saved_as in ((".jpg", "JPEG"), (".png", "PNG"), (".tif", "TIFF")):
        stream = io.BytesIO()
        Image.effect_noise((64, 64), 50).save(stream, saved_as)
        failure(extension, stream.getvalue()[:1500], kind)
    png = bytearray(image_bytes("PNG"))
    png[png.index(b"IDAT") + 6] ^= 0xFF
    failure(".png", bytes(png), kind)
    assert "are not a JPEG, PNG" in str(failure(".jpg", b"<html>", kind))
    assert "it is empty; pack the sample again" in str(failure(".jpg", b"", kind))


def test_an_image_under_another_images_name():
    """A .jpg that holds a PNG is decoded; one that holds EPS is refused, for Pillow would run Ghostscript on it."""
    assert decoded(".jpg", image_bytes("PNG")).format == "PNG"
    assert "are not a JPEG" in str(failure(".jpg", image_bytes("EPS")))


def test_image_bombs(monkeypatch):
    """Pillow's bomb error is a DecodeError; its warning stays a warning."""
    data = image_bytes("PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.warns(Image.DecompressionBombWarning):
        assert decoded(".png", data).size == (5, 3)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5)
    assert "MAX_IMAGE_PIXELS" in str(failure(".png", data))


@pytest.mark.parametrize(("extension", "most"), [(".txt.gz", 1.35), (".what.gz", 1.35)])
def test_gzip_holds_little_more_than_its_result(extension, most):
    """While a member is inflated, there is neither a second copy of it, nor all of its bytes beside its text."""
    size = 64 << 20
    data = gzip.compress(b"a" * size, 1)
    tracer = sys.gettrace()
    sys.settrace(None)  # while coverage is measured, Python appends to a text by copying it
    tracemalloc.start()
    try:
        result = decoded(extension, data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        sys.settrace(tracer)
    assert len(result if isinstance(result, str) else result.getvalue()) == size
    assert peak < most * size


def test_gzipped_text_beyond_ascii():
    """A letter of several bytes may be cut by the parts that come; half a letter at the end is an error."""
    text = "\u00e4\u20ac\U0001f600" * 200_000
    assert decoded(".txt.gz", gzip.compress(text.encode())) == text
    assert "UnicodeDecodeError" in str(failure(".txt.gz", gzip.compress("\u00e4".encode()[:1])))


def test_gzip_of_several_members_and_padding():
    """Concatenated gzip members are one text, zeros at the end are padding, and size does not matter."""
    parts = [b"a" * 70_000, b"", bytes(range(32, 127)) * 3000, b"end"]
    stream = b"".join(gzip.compress(part, 1) for part in parts)
    assert decoded(".txt.gz", stream) == b"".join(parts).decode()
    assert decoded(".txt.gz", stream + b"\0" * 512) == b"".join(parts).decode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        gzip.compress(b"abc")[:-1],
        gzip.compress(b"abc")[:12],
        gzip.compress(b"abc") + gzip.compress(b"def")[:-4],
        gzip.compress(b"abc") + b"garbage",
        gzip.compress(b"abc")[:-8] + b"\0" * 8,
        zlib.compress(b"abc"),
    ],
    ids=["empty", "cut trailer", "cut body", "cut second member", "garbage", "wrong checksum", "not gzip"],
)
def test_damaged_gzip(data):
    """A gzip stream that is cut off, followed by garbage, or otherwise wrong is a DecodeError."""
    failure(".txt.gz", data)


def test_gzip_bombs_stop_at_the_bound():
    """A member may inflate to the bound and not a byte further, over all its gzip members, without allocating it."""
    data = gzip.compress(b"x" * 1000) + gzip.compress(b"y" * 24)
    assert len(decoded(".txt.gz", data, max_inflate_bytes=1024)) == 1024
    assert "max_inflate_bytes=1023" in str(failure(".txt.gz", data, max_inflate_bytes=1023))
    failure(".txt.gz", gzip.compress(b"x"), max_inflate_bytes=0)
    assert decoded(".txt.gz", gzip.compress(b""), max_inflate_bytes=0) == ""

    bomb = gzip.compress(bytes(64 << 20))
    tracemalloc.start()
    try:
        failure(".txt.gz", bomb, max_inflate_bytes=1 << 20)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8 << 20


def test_npz_bombs_stop_at_the_bound():
    """An .npz is held to the same bound, over all its arrays, also when the sizes in its directory lie."""
    data = npz_bytes(np.savez_compressed, a=np.zeros(100_000), b=np.zeros(100_000))
    assert "max_inflate_bytes=1000000" in str(failure(".npz", data, max_inflate_bytes=1_000_000))
    assert set(decoded(".npz", data, max_inflate_bytes=2_000_000)) == {"a", "b"}

    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(64 << 20))
    lying = stream.getvalue().replace((64 << 20).to_bytes(4, "little"), (100).to_bytes(4, "little"))
    assert zipfile.ZipFile(io.BytesIO(lying)).infolist()[0].file_size == 100
    tracemalloc.start()
    try:
        failure(".npz", lying, max_inflate_bytes=1000)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8 << 20

    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("a.npy", npy_bytes(ARRAY))
    assert "numpy.savez" in str(failure(".npz", stream.getvalue()))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_an_array_header_that_promises_too_much_allocates_nothing(version):
    """A header that promises more than the member holds is a DecodeError, not a MemoryError."""
    data = npy_bytes(np.zeros(100, np.uint8), version=version)
    data = data.replace(b"(100,), }" + b" " * 15, b"(" + b"9" * 18 + b",), }")
    assert "promises shape (999999999999999999,)" in str(failure(".npy", data))


class Marked:
    """Unpickling this leaves a mark."""

    marks = 0

    def __reduce__(self):
        return mark, ()


def mark():
    """Count that it ran."""
    Marked.marks += 1
    return 17


def test_pickles_are_refused_unless_allowed():
    """Nothing unpickles without leave, in any format that can hold pickles; with leave, all of them do."""
    objects = np.empty(1, object)
    objects[0] = Marked()
    members = {
        ".pkl": pickle.dumps(Marked()),
        ".pickle": pickle.dumps(Marked()),
        ".pkl.gz": gzip.compress(pickle.dumps(Marked())),
        ".pt": pt_bytes(Marked()),
        ".pth": pt_bytes([Marked()]),
        ".npy": npy_bytes(objects),
        ".npz": npz_bytes(a=objects),
    }
    Marked.marks = 0
    for extension, data in members.items():
        error = failure(extension, data)
        assert type(error) is UnsafeFormatError
        assert "allow_pickle=True" in str(error)
    assert Marked.marks == 0
    values = {name: decoded(name, data, "torch", allow_pickle=True) for name, data in members.items()}
    assert Marked.marks == len(members)
    assert values[".pkl"] == values[".pkl.gz"] == values[".pt"] == 17
    assert values[".npy"].tolist() == values[".npz"]["a"].tolist() == [17]
    assert "UnpicklingError" in str(failure(".pt", b"garbage", allow_pickle=True))


def test_register_decoder_checks_its_arguments():
    """An empty extension and a decoder that cannot be called are refused at once."""
    for extension in ("", ".", "..png", ".png.", ".a..b"):
        with pytest.raises(ValueError, match="not an extension"):
            register_decoder(extension, bytes)
    with pytest.raises(TypeError, match="must be callable"):
        register_decoder(".png", None)


@pytest.mark.parametrize("extension", [".new", "new", ".NEW", "New"])
def test_registration_of_a_new_extension(extension):
    """A registration counts with or without the dot, in any case, also under .gz and for any container."""
    register_decoder(extension, bytes.decode)
    sample = {".new": io.BytesIO(b"a"), ".x.NEW": b"b", ".new.gz": gzip.compress(b"c"), ".renew": b"d"}
    assert SampleDecoder("torch")(sample) == {".new": "a", ".x.NEW": "b", ".new.gz": "c", ".renew": b"d"}


def test_registrations_go_before_built_ins_longest_first():
    """The longest registered extension wins, and any registered one wins over a built-in."""
    for extension in (".seg.png", ".png", ".a.seg.png", ".txt.gz"):
        register_decoder(extension, lambda data, extension=extension: (extension, data))
    members = (".png", ".SEG.png", ".b.seg.png", ".a.seg.png", ".xseg.png", ".b.txt.gz", ".txt", ".seg.txt")
    result = SampleDecoder()(dict.fromkeys(members, b"1"))
    assert result == {
        ".png": (".png", b"1"),
        ".SEG.png": (".seg.png", b"1"),
        ".b.seg.png": (".seg.png", b"1"),
        ".a.seg.png": (".a.seg.png", b"1"),
        ".xseg.png": (".png", b"1"),
        ".b.txt.gz": (".txt.gz", b"1"),
        ".txt": "1",
        ".seg.txt": "1",
    }
    assert decoded(".seg.png.gz", gzip.compress(b"2")) == (".seg.png", b"2")


def test_registrations_count_from_the_next_call_on():
    """A decoder that has seen a field before takes a later registration for it."""
    decoder = SampleDecoder()
    sample = {".x": b"a", ".txt": b"b"}
    assert decoder(sample) == {".x": b"a", ".txt": "b"}
    register_decoder(".x", bytes.upper)
    assert decoder(sample) == {".x": b"A", ".txt": "b"}
    register_decoder(".x", bytes.hex)
    register_decoder(".txt", bytes.upper)
    assert decoder(sample) == {".x": "61", ".txt": b"B"}


def test_a_failing_registered_decoder():
    """What a user's decoder raises becomes a DecodeError; an unsafe one stays unsafe; memory and Ctrl-C pass."""

    def failing(error):
        def decoder(data):
            raise error

        return decoder

    cause = KeyError("nothing here")
    register_decoder(".x", failing(cause))
    error = failure(".x", b"")
    assert type(error) is DecodeError
    assert error.__cause__ is cause
    assert "KeyError: 'nothing here'" in str(error)
    register_decoder(".x", failing(UnsafeFormatError("no")))
    assert type(failure(".x", b"")) is UnsafeFormatError
    for kind in (MemoryError, KeyboardInterrupt):
        register_decoder(".x", failing(kind()))
        with pytest.raises(kind):
            decoded(".x", b"")


def test_errors_without_a_place_and_across_pickle():
    """A sample without metadata still gives an error with its field, and errors keep their attributes pickled."""
    with pytest.raises(DecodeError) as caught:
        SampleDecoder()({".cls": b"x"})
    assert (caught.value.shard, caught.value.key, caught.value.field) == (None, None, ".cls")
    again = pickle.loads(pickle.dumps(failure(".cls", b"x")))
    assert (again.shard, again.key, again.field) == ("http://h/a.tar", "000123", ".cls")


@pytest.mark.parametrize("extension", sorted(UNASKED.union(SOUND_EXTENSIONS)))
@pytest.mark.parametrize("kind", FORMATS)
def test_what_the_original_left_alone_is_decoded_only_where_it_is_asked_for(extension, kind):
    """A member that is no such thing, and that nobody looks at, must not fail its sample; gzip comes off."""
    stream = io.BytesIO(b"neither a number nor any of these")
    sample = {f".{extension}": stream, f".x.{extension.upper()}": stream, ".cls": b"3"}
    assert SampleDecoder(kind)(sample) == {**sample, ".cls": 3}
    packed = SampleDecoder(kind)({f".{extension}.gz": gzip.compress(b"abc")})
    assert packed[f".{extension}.gz"].getvalue() == b"abc"
    if extension in SOUND_EXTENSIONS:
        pytest.importorskip("soundfile", reason="soundfile is not installed")
    for also in (extension, f".{extension.upper()}", [f".{extension}"]):
        for name in list(sample)[:2]:
            with pytest.raises(DecodeError):
                SampleDecoder(kind, also=also)({name: stream})


def test_an_extension_that_is_asked_for_is_one_of_those_left_alone():
    """Others are refused with the choices; a registered decoder needs no asking."""
    for also in (".xyz", [".gif", ".jpg"], ""):
        with pytest.raises(ValueError, match=r"bmp, flac, gif, index, .* npz, ogg, opus, tif, tiff, wav"):
            SampleDecoder(also=also)
    register_decoder(".jsonl", bytes.upper)
    assert SampleDecoder()({".jsonl": b"a"}) == {".jsonl": b"A"}


def test_formats_by_name():
    """The case of the format's name does not matter; an unknown one is refused with the choices."""
    assert SampleDecoder("pil") == SampleDecoder("PIL") == SampleDecoder()
    assert SampleDecoder("NumPy") == SampleDecoder("numpy")
    for unknown in ("rgb", "", None, 3):
        with pytest.raises(ValueError, match="PIL, numpy, torch, raw"):
            SampleDecoder(unknown)
    with pytest.raises(ValueError, match="max_inflate_bytes"):
        SampleDecoder(max_inflate_bytes=-1)


def test_decoders_are_values():
    """Decoders are equal, hash alike and print alike when made alike; pickle and copy keep that."""
    decoder = SampleDecoder("torch", allow_pickle=True, max_inflate_bytes=5)
    assert repr(decoder) == "SampleDecoder('torch', allow_pickle=True, max_inflate_bytes=5)"
    asked = SampleDecoder(also=[".npz", ".gif"])
    assert repr(asked) == "SampleDecoder('PIL', allow_pickle=False, max_inflate_bytes=1073741824, also=['gif', 'npz'])"
    assert asked == SampleDecoder(also=["npz", "gif"]) == pickle.loads(pickle.dumps(asked)) != SampleDecoder()
    for other in (SampleDecoder("numpy"), SampleDecoder("torch"), SampleDecoder("torch", allow_pickle=True), "torch"):
        assert decoder != other
    register_decoder(".x", bytes.upper)
    decoder({".x": b"", ".txt.gz": gzip.compress(b"warm"), ".npy": npy_bytes(ARRAY)})
    for same in (pickle.loads(pickle.dumps(decoder)), copy.copy(decoder), copy.deepcopy(decoder)):
        assert same == decoder
        assert hash(same) == hash(decoder)
        assert repr(same) == repr(decoder)
        assert same({".x": b"a"}) == {".x": b"A"}


def test_a_pickled_decoder_carries_its_registrations(monkeypatch):
    """Where it is unpickled, what it carries goes before what was registered there, and newer ones before it."""
    register_decoder(".x", bytes.upper)
    register_decoder(".y", bytes.upper)
    stored = pickle.dumps(SampleDecoder())
    monkeypatch.setattr(decode._registry, "current", {"x": bytes.lower, "z": bytes.lower})
    sample = {".x": b"aB", ".y": b"aB", ".z": b"aB"}
    decoder = pickle.loads(stored)
    assert decoder(sample) == {".x": b"AB", ".y": b"AB", ".z": b"ab"}
    assert SampleDecoder()(sample) == {".x": b"ab", ".y": b"aB", ".z": b"ab"}
    register_decoder(".x", bytes.hex)
    assert decoder(sample) == {".x": "6142", ".y": b"AB", ".z": b"ab"}
    assert pickle.loads(pickle.dumps(decoder))(sample) == decoder(sample)


def test_registrations_reach_a_spawned_process():
    """A spawned process, which shares no memory, decodes with the registrations of its parent."""
    register_decoder(".up", operator.methodcaller("upper"))
    register_decoder(".seg.txt", bytes.hex)
    sample = {"__key__": "k", ".up": io.BytesIO(b"a"), ".seg.txt": b"a", ".txt": b"a", ".other": b"a"}
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = pool.submit(SampleDecoder(), sample).result(timeout=PATIENCE_SECONDS)
        failed = pool.submit(SampleDecoder(), sample_of(".cls", b"x")).exception(timeout=PATIENCE_SECONDS)
    assert found == {"__key__": "k", ".up": b"A", ".seg.txt": "61", ".txt": "a", ".other": b"a"}
    assert (type(failed), failed.key) == (DecodeError, "000123")


def test_threads_share_one_decoder_while_registrations_change():
    """Threads on one decoder each get the old or the new registration, never anything else, and then the new."""
    decoder, rounds, workers = SampleDecoder(), 200, 4
    barrier = threading.Barrier(workers + 1)
    wrong = []

    def work():
        for turn in range(rounds):
            barrier.wait()
            value = decoder({f".f{turn}.x": b"a", ".txt": b"t"})
            if value[".txt"] != "t" or value[f".f{turn}.x"] not in (turn - 1, turn, b"a"):
                wrong.append((turn, value))
            barrier.wait()
            value = decoder({f".f{turn}.x": b"a"})
            if value != {f".f{turn}.x": turn}:
                wrong.append((turn, value))
            barrier.wait()

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for turn in range(rounds):
        barrier.wait()
        register_decoder(".x", lambda data, turn=turn: turn)
        barrier.wait()
        barrier.wait()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_registrations_from_many_threads_all_count():
    """Registrations made at the same time by many threads do not lose each other."""
    names = [[f"t{number}x{turn}" for turn in range(50)] for number in range(8)]

    def work(mine):
        for name in mine:
            register_decoder(name, bytes.hex)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(decode._registry.current) == {name for mine in names for name in mine}


def test_the_cache_of_fields_is_bounded():
    """File names that make every field a new one do not grow a decoder without end."""
    decoder = SampleDecoder()
    for number in range(decode._CACHED_FIELDS + 100):
        assert decoder({f".{number}.txt": b"a"}) == {f".{number}.txt": "a"}
    assert len(decoder._plan[1]) == decode._CACHED_FIELDS


def test_import_is_cheap():
    """Importing wids.core.codecs.decode and making a decoder loads neither torch nor PIL nor numpy nor msgspec."""
    code = (
        "import sys, wids.core.codecs.decode\n"
        "wids.core.codecs.decode.SampleDecoder()({'.txt': b'a', '.what': b'b'})\n"
        "print(sorted({'torch', 'PIL', 'numpy', 'msgspec'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    assert done.stdout.strip() == "[]"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=10,
)


@given(JSON, st.lists(JSON, max_size=4))
def test_json_round_trip(value, values):
    """What the standard library writes comes back equal (oracle: the value itself), plain, by lines and gzipped."""
    text = json.dumps(value).encode()
    lines = "".join(json.dumps(item) + "\n" for item in values).encode()
    result = SampleDecoder(also=".jsonl")({".json": text, ".json.gz": gzip.compress(text), ".jsonl": lines})
    assert result == {".json": value, ".json.gz": value, ".jsonl": values}


@given(st.sampled_from(['{"a": NaN}', "1e400", '"\\ud800"', '{"a":1,"a":2}', "\ufeff[]", "[1,]", "'a'", "01", "\x00"]))
def test_json_accepts_what_the_standard_library_accepts(text):
    """The corners of JSON go as in the standard library (oracle: json.loads on the same bytes)."""
    data = text.encode()
    try:
        want = json.loads(data)
    except ValueError:
        failure(".json", data)
    else:
        assert repr(decoded(".json", data)) == repr(want)


@given(
    hnp.arrays(
        hnp.scalar_dtypes() | hnp.byte_string_dtypes() | hnp.array_dtypes(max_size=2),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
    st.booleans(),
    st.sampled_from([(1, 0), (2, 0), (3, 0)]),
)
def test_npy_round_trip(array, fortran, version):
    """An array of any dtype, shape and order comes back as numpy itself reads it (oracle: numpy.load)."""
    version = (3, 0) if array.dtype.names else version  # field names are any text
    data = npy_bytes(np.asfortranarray(array) if fortran else array, version)
    want = np.load(io.BytesIO(data))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.npy", data)
    for found in (decoded(".npy", data), decoded(".npz", packed.getvalue())["a"]):
        assert found.flags.writeable
        assert (found.dtype, found.shape) == (want.dtype, want.shape)
        assert found.tobytes() == want.tobytes()


@given(st.binary(max_size=300), st.integers(0, 40), st.integers(0, 400))
def test_gunzip_never_exceeds_its_bound(data, cut, bound):
    """A gzip stream, cut or whole, gives its data (oracle: the data before compression) or a DecodeError."""
    packed = gzip.compress(data, mtime=0)
    packed = packed[: len(packed) - cut] if cut else packed
    sample = {".x.gz": packed}
    decoder = SampleDecoder(max_inflate_bytes=bound)
    register_decoder(".x", bytes)
    if cut or len(data) > bound:
        with pytest.raises(DecodeError):
            decoder(sample)
    else:
        assert decoder(sample) == {".x.gz": data}


def test_a_checkpoint_inflates_to_no_more_than_the_bound():
    """Torch stores its records and never deflates them, but inflates what it finds: a thousandfold."""
    stored, deflated = io.BytesIO(), io.BytesIO()
    torch.save(torch.zeros(1 << 18), stored)
    with zipfile.ZipFile(stored) as source, zipfile.ZipFile(deflated, "w", zipfile.ZIP_DEFLATED) as target:
        for info in source.infolist():
            target.writestr(info.filename, source.read(info.filename))
    assert len(deflated.getvalue()) < 1 << 14
    decoder = SampleDecoder(max_inflate_bytes=1 << 16)
    assert decoder({".pt": stored.getvalue()})[".pt"].shape == (1 << 18,)
    with pytest.raises(errors.DecodeError, match="max_inflate_bytes"):
        decoder({".pt": deflated.getvalue()})

"""JPEG to arrays and tensors: by whichever decoder, with Pillow's pixels or Pillow's refusal."""

import io
import itertools
import random
import struct
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import wids
from tests.support.examples import examples, some
from wids.core.codecs import jpeg
from wids.errors import DecodeError

SIZES = [(1, 1), (7, 9), (16, 16), (33, 65), (500, 375)]
KINDS = list(itertools.product(SIZES, ("RGB", "L"), (30, 75, 100), (0, 1, 2), (False, True)))


@pytest.fixture(autouse=True)
def no_cache():
    """Nothing that one test finds about decoders is known to the next one."""
    jpeg._checked.cache_clear()
    yield
    jpeg._checked.cache_clear()


def picture(size, mode="RGB", seed=0):
    """A picture with edges and noise."""
    width, height = size
    small = np.random.default_rng(seed).integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC).convert(mode)


def saved(image, **options):
    """A JPEG file."""
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


def told(data, kind):
    """The pixels, as ``"numpy"`` or ``"torch"`` has them, or the message of an error."""
    try:
        found = wids.SampleDecoder(kind)({".jpg": data})[".jpg"]
    except DecodeError as error:
        return str(error)
    return found if kind == "numpy" else found.numpy()


def check(data, monkeypatch):
    """Arrays and tensors are those of Pillow, or all are refused in Pillow's words; whether it has pixels."""
    with monkeypatch.context() as patch:
        patch.setattr(jpeg, "find_decoder", lambda: None)
        want = told(data, "numpy")
    array, tensor = told(data, "numpy"), told(data, "torch")
    if isinstance(want, str):
        assert (array, tensor) == (want, want)
        return False
    assert (array.dtype, array.flags.writeable, array.flags.c_contiguous) == (np.uint8, True, True)
    assert np.array_equal(array, want)
    assert np.array_equal(tensor, want[None] if want.ndim == 2 else want.transpose(2, 0, 1))
    return True


def segment(marker, body):
    """A segment of a JPEG's header."""
    return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body


def exif(orientation):
    """An EXIF segment; None: without an orientation."""
    found = Image.Exif()
    found[0x010F] = "maker"
    if orientation:
        found[0x0112] = orientation
    return segment(0xE1, b"Exif\0\0" + found.tobytes().removeprefix(b"Exif\0\0"))


def test_torchcodec_is_used_where_it_runs(monkeypatch):
    """Else the tests here would compare Pillow with itself."""
    monkeypatch.delitem(sys.modules, "torchvision.io", raising=False)
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    assert (jpeg.find_decoder() is not None) == (version >= (2, 11))  # which torchcodec is made for


def test_all_kinds(monkeypatch):
    """Sizes, grey and colour, qualities, subsampling, progressive: the pixels of Pillow."""
    for size, mode, quality, subsampling, is_progressive in some(KINDS, every=3):
        data = saved(picture(size, mode), quality=quality, subsampling=subsampling, progressive=is_progressive)
        assert check(data, monkeypatch), (size, mode, quality, subsampling, is_progressive)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_that_says_it_is_rotated(orientation, monkeypatch):
    """It stays as it is stored, as Pillow gives it, whatever its decoder makes of EXIF."""
    data = saved(picture((30, 20)))
    for head in (exif(orientation), exif(None) + exif(orientation), exif(orientation) + exif(1)):
        assert check(data[:2] + head + data[2:], monkeypatch)
    scan = data.index(b"\xff\xda")
    assert check(data[:scan] + exif(orientation) + data[scan:], monkeypatch)


def test_a_rotation_between_scans(monkeypatch):
    """EXIF before any later scan of a progressive picture, as no camera writes it, rotates nothing either."""
    data = saved(picture((60, 41)), progressive=True, subsampling=0)
    scans = [at for at in range(len(data)) if data.startswith(b"\xff\xda", at)]
    assert len(scans) > 3
    for at in scans[1:]:
        assert check(data[:at] + exif(6) + data[at:], monkeypatch)
        assert check(data[:at] + b"\xff\xfe\0\2" + exif(6) + data[at:], monkeypatch)


def test_what_else_there_is(monkeypatch):
    """RGB without YCbCr, restart markers, CMYK, two pictures in one file, bytes behind the end."""
    colour, grey = picture((60, 40)), picture((60, 40), "L")
    phones = io.BytesIO()
    colour.save(phones, "MPO", save_all=True, append_images=[picture((60, 40), seed=1)])
    assert Image.open(phones).format == "MPO"
    files = [
        saved(colour, keep_rgb=True),
        saved(colour, restart_marker_blocks=2),
        saved(grey, restart_marker_rows=1),
        saved(colour.convert("CMYK")),
        saved(colour) + b"and more",
        phones.getvalue(),
    ]
    assert all(check(data, monkeypatch) for data in files)


def test_cut_at_any_byte(monkeypatch):
    """A truncated picture is refused, in Pillow's words."""
    data = saved(picture((33, 65)))
    assert not any(check(data[:length], monkeypatch) for length in some(range(1, len(data) - 2), every=7))


def test_truncated_pictures_that_pillow_is_told_to_load(monkeypatch):
    """Pillow's switch for them holds."""
    monkeypatch.setattr("PIL.ImageFile.LOAD_TRUNCATED_IMAGES", True)
    data = saved(picture((33, 65)))
    assert check(data[: len(data) * 2 // 3], monkeypatch)


def test_damaged_at_random(monkeypatch):
    """Bytes changed anywhere, or in the header, in the EXIF: Pillow's pixels or Pillow's refusal."""
    files = [
        saved(picture(size, mode), progressive=is_progressive)
        for size in SIZES[1:4]
        for mode in ("RGB", "L")
        for is_progressive in (False, True)
    ]
    files += [data[:2] + exif(6) + data[2:] for data in files[:4]]
    draw, counts = random.Random(0), [0, 0]
    for _ in range(examples(2000)):
        data = bytearray(draw.choice(files))
        end = draw.choice((len(data), 700, 60))
        for _ in range(draw.choice((1, 1, 3))):
            data[draw.randrange(2, min(len(data), end))] = draw.choice((0, 1, 0xFF, draw.randrange(256)))
        counts[check(bytes(data), monkeypatch)] += 1
    assert min(counts) > 0


def test_segments_that_cannot_be_followed():
    """What is no sequence of segments goes to Pillow."""
    data = saved(picture((7, 9)))
    for broken in (data[:2] + b"x" + data[2:], data[:2], data[:30], data[:2] + b"\xff\xd0" + data[2:]):
        with pytest.raises((ValueError, IndexError)):
            jpeg.hide_orientation(broken)
    assert jpeg.hide_orientation(data) is data


def other_pixels(data):
    """As a decoder whose libjpeg rounds otherwise."""
    pixels = torch.from_numpy(np.array(Image.open(io.BytesIO(data))))
    return (pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)) ^ 1


def rotated(data):
    """As a decoder that turns the picture."""
    return other_pixels(data).transpose(1, 2) ^ 1


def absent():
    """As a package that is not there, or not made for this torch."""
    raise OSError("libtorch.so: undefined symbol")


@pytest.mark.parametrize("make", [lambda: other_pixels, lambda: rotated, absent], ids=["pixels", "rotated", "absent"])
def test_a_decoder_with_other_pixels_is_not_used(make, monkeypatch):
    """Nor is one that cannot be imported: Pillow decodes."""
    monkeypatch.setattr(jpeg, "_of_torchcodec", make)
    monkeypatch.delitem(sys.modules, "torchvision.io", raising=False)
    assert jpeg.find_decoder() is None
    assert check(saved(picture((16, 16))), monkeypatch)


def test_torchvision_where_the_program_has_imported_it(monkeypatch):
    """It is not imported for this, and torchcodec goes before it."""
    made = []
    monkeypatch.setattr(jpeg, "_of_torchvision", lambda: made.append(1) or (lambda data: other_pixels(data) ^ 1))
    jpeg.find_decoder()
    monkeypatch.setattr(jpeg, "_of_torchcodec", absent)
    jpeg._checked.cache_clear()
    monkeypatch.delitem(sys.modules, "torchvision.io", raising=False)
    assert jpeg.find_decoder() is None
    assert not made
    monkeypatch.setitem(sys.modules, "torchvision.io", None)
    assert check(saved(picture((16, 16))), monkeypatch)
    assert made == [1]


@pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")
def test_torchvision_itself(monkeypatch):
    """The pixels of torchvision are those of Pillow, and of damaged files nothing."""
    import torchvision.io  # noqa: F401

    monkeypatch.setattr(jpeg, "_of_torchcodec", absent)
    assert jpeg.find_decoder() is not None
    test_all_kinds(monkeypatch)
    test_damaged_at_random(monkeypatch)

"""Samples as HTML: what is shown, and that nothing in a sample becomes markup."""

import base64
import io
import pickle

import numpy as np
import pytest
from PIL import Image

from wids.core.codecs.html import class_name, show_dataset

HOSTILE = '<script>alert("1")</script>'


def sample_of(**fields):
    """An undecoded sample with these fields."""
    found = {f".{name}": io.BytesIO(data) for name, data in fields.items()}
    return {**found, "__key__": HOSTILE, "__index__": 7, "__shard__": "s.tar", "__classes__": ["cat", HOSTILE]}


def encoded(image, form):
    """An image as a file's bytes."""
    stream = io.BytesIO()
    image.save(stream, form)
    return stream.getvalue()


def show(*samples, note=""):
    """The HTML of a dataset with these samples."""
    return show_dataset(HOSTILE, [HOSTILE], samples, note)


def test_nothing_becomes_markup():
    """Titles, facts, keys, texts, names of classes and of fields, errors and notes are escaped."""
    html = show(sample_of(cls=b"1", txt=HOSTILE.encode(), **{HOSTILE: b"x"}), ValueError(HOSTILE), note=HOSTILE)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 7


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "LA", "RGBA", "1", "CMYK", "I;16", "F"])
def test_pictures_are_thumbnails(mode):
    """Of any mode and size; a large one takes some kilobytes."""
    form = {"CMYK": "JPEG", "F": "TIFF"}.get(mode, "PNG")
    name = {"JPEG": "jpg", "TIFF": "tif", "PNG": "png"}[form]
    html = show(sample_of(**{name: encoded(Image.new(mode, (900, 600)), form)}))
    assert len(html) < 8000
    if name != "tif":  # which is not decoded unless asked for
        assert 'src="data:image/jpeg;base64,' in html
        assert f"900 x 600 {mode}" in html


def test_deep_pictures_are_not_clipped():
    """A depth map of 16 bits is seen from its nearest to its farthest; it was white."""
    stream = io.BytesIO()
    Image.fromarray(np.linspace(1000, 3000, 64 * 64).reshape(64, 64).astype(np.uint16)).save(stream, "PNG")
    shown = show_dataset("d", [], [{".png": stream.getvalue(), "__key__": "a", "__index__": 0, "__shard__": "s"}], "")
    image = Image.open(io.BytesIO(base64.b64decode(shown.partition("base64,")[2].partition('"')[0])))
    low, high = image.convert("L").getextrema()
    assert (low < 10, high > 245) == (True, True)


def test_other_fields():
    """A label by its class, arrays by their shapes, the beginnings of texts; pickles are not opened."""
    array = io.BytesIO()
    np.save(array, np.zeros((2, 3), np.float32))
    html = show(
        sample_of(
            cls=b"0", npy=array.getvalue(), txt=b"a" * 1000, json=b'{"a": [1]}', bin=b"123", pkl=pickle.dumps([1])
        )
    )
    for words in (".cls: 0 (cat)", ".npy: (2, 3) float32", "... (920 more)", "{&#x27;a&#x27;: [1]}", ".bin: 3 bytes"):
        assert words in html
    assert ".pkl: not opened, since it may hold code" in html


def test_damaged_fields():
    """They say so, and the rest is shown; many fields are counted."""
    html = show(sample_of(jpg=b"no picture", txt=b"fine", **{f"x{k}": b"" for k in range(20)}))
    assert ".jpg: " in html
    assert "color:#b00020" in html
    assert "fine" in html
    assert "and 14 more fields" in html


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        (".cls", 1, "dog"),
        (".a.CLS", 0, "cat"),
        (".cls", 2, None),
        (".cls", -1, None),
        (".cls", True, None),
        (".txt", 1, None),
        (".cls", "1", None),
    ],
)
def test_names_of_classes(name, value, found):
    """Those of labels in .cls, by number."""
    assert class_name(name, value, ["cat", "dog"]) == found
    assert class_name(name, value, None) is None

"""ShardWriter: what it writes, byte by byte; what it refuses; and what is there when something goes wrong."""

import contextlib
import errno
import io
import json
import os
import subprocess
import sys
import tarfile
import zlib

import fsspec
import numpy as np
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

import wids
from tests.support import backends
from tests.support.children import call_in_child
from tests.support.clocks import PATIENCE_SECONDS
from tests.support.examples import examples
from wids.core.codecs.decode import UNASKED, SampleDecoder
from wids.core.codecs.encoders import encode_field
from wids.core.files import atomic, finalizers, system
from wids.core.readers.provider import AutoProvider
from wids.core.shard import Shard
from wids.core.tables import headers
from wids.core.tables.table import build_table
from wids.core.tables.tar import scan
from wids.core.transport.session import Session
from wids.errors import InputError, OutputError, SampleError, SpecError, WidsError
from wids.events import Opened
from wids.writing.output import parse_pattern

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
fields = st.fixed_dictionaries(
    {".txt": st.text(st.characters(exclude_categories=["Cs"]))},
    optional={
        ".cls": st.integers(),
        ".json": json_values,
        ".a.json": json_values,
        ".jsonl": st.lists(json_values, max_size=3),
        ".mp": st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.booleans(), max_size=2),
        ".bin": st.binary(max_size=1500),
        ".txt.gz": st.text(st.characters(exclude_categories=["Cs"])),
    },
)


def names_in(directory):
    """The names of all files in a directory."""
    return sorted(os.listdir(directory)) if os.path.isdir(directory) else []


def write(directory, content, **options):
    """Write samples as ``t-%03d.tar`` there; returns the index's path."""
    with wids.ShardWriter(f"{directory}/t-%03d.tar", **options) as writer:
        for sample in content:
            writer.write(sample)
    return writer.index


def texts(count, *, size=4, first=0):
    """Samples of a .txt of ``size`` letters."""
    return [{"__key__": f"{k:04d}", ".txt": f"{k:0{size}d}"} for k in range(first, first + count)]


def read_texts(index, **options):
    """The .txt of all samples of a dataset."""
    return [sample[".txt"] for sample in wids.ShardListDataset(index, **options)]


@given(
    name=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=300).filter(
        lambda name: not name.endswith("/")
    ),
    size=st.sampled_from([0, 1, 511, 512, 8**11 - 1, 8**11, 1 << 40]) | st.integers(0, 1 << 50),
)
def test_headers_are_those_of_tarfile(name, size):
    """A member's header is what stdlib tarfile writes: ustar, or PAX where that has no room; its length is known."""
    info = tarfile.TarInfo(name)
    info.size = size
    try:
        expected = info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")
    except ValueError:
        expected = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    assert headers.member_head(name.encode(), size) == expected
    assert headers.member_bytes(name.encode(), size) == len(expected) + (size + 511) // 512 * 512


def test_shard_is_what_tarfile_writes(tmp_path):
    """A whole shard, long names and a member larger than the buffer included, equals the archive of stdlib tarfile."""
    samples = [
        {"__key__": "a/1", ".txt": b"x" * 700, ".bin": b""},
        {"__key__": "é" * 120 + "/2", ".bin": b"y" * ((1 << 20) + 5)},
        {"__key__": "p" * 150 + "/3", ".txt": b"z", ".bin": b"w" * (3 << 20)},
    ]
    write(tmp_path, samples)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for sample in samples:
            for field in [name for name in sample if name != "__key__"]:
                info = tarfile.TarInfo(sample["__key__"] + field)
                info.size = len(sample[field])
                if sample["__key__"].startswith("p"):
                    archive.fileobj.write(info.tobuf(tarfile.USTAR_FORMAT))
                    archive.fileobj.write(sample[field] + bytes(-info.size % 512))
                    archive.offset = archive.fileobj.tell()
                else:
                    archive.addfile(info, io.BytesIO(sample[field]))
    assert (tmp_path / "t-000.tar").read_bytes() == stream.getvalue()


@settings(max_examples=examples(60))
@given(samples=st.lists(fields, min_size=1, max_size=5), bound=st.integers(1, 3))
def test_fields_come_back(tmp_path_factory, samples, bound):
    """What is written by extension is what the safe decoders read, in order, whatever the shards."""
    directory = tmp_path_factory.mktemp("fields")
    keyed = [{"__key__": f"k/{k}", **sample} for k, sample in enumerate(samples)]
    dataset = wids.ShardListDataset(write(directory, keyed, samples=bound), transformations=SampleDecoder(also=UNASKED))
    found = [{name: value for name, value in sample.items() if name.startswith(".")} for sample in dataset]
    for sample in found:
        if ".bin" in sample:
            sample[".bin"] = sample[".bin"].getvalue()
    assert found == samples
    assert [sample["__key__"] for sample in dataset] == [sample["__key__"] for sample in keyed]


def test_arrays_tensors_and_images_come_back(tmp_path):
    """Arrays of numpy, tensors in .pt and .pth, and images are encoded by extension and decoded to equals."""
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    tensor = torch.arange(1_000_000)[10:13]
    sample = {
        "__key__": "a",
        "npy": array,
        "npz": {"x": array, "y": pixels},
        "pt": {"t": tensor, "list": [1, "two", None]},
        "pth": tensor,
        "png": Image.fromarray(pixels),
        "raw.png": pixels,
        "jpg": Image.fromarray(pixels),
        "cls": np.int64(3),
        "__index__": 12,
    }
    found = wids.ShardListDataset(write(tmp_path, [sample]), transformations=SampleDecoder(also=".npz"))[0]
    assert (found[".npy"] == array).all()
    assert (found[".npz"]["y"] == pixels).all()
    assert (found[".pt"]["t"] == tensor).all()
    assert found[".pt"]["list"] == [1, "two", None]
    assert (found[".pth"] == tensor).all()
    assert (np.asarray(found[".png"]) == pixels).all()
    assert (np.asarray(found[".raw.png"]) == pixels).all()
    assert found[".jpg"].size == (4, 4)
    assert found[".cls"] == 3
    assert found["__index__"] == 0
    assert os.path.getsize(tmp_path / "t-000.tar") < 50_000  # the tensor was a view of 8 MB


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        (".pkl", {}, "pickles run code"),
        (".xyz", "text", "give bytes"),
        (".txt", 3, "holds text"),
        (".txt", "\ud800", "cannot hold"),
        (".cls", 1.5, "a whole number"),
        (".cls", "cat", "a whole number"),
        (".json", {1, 2}, "cannot hold"),
        (".jsonl", {"a": 1}, "a list"),
        (".npy", [1, 2], "a numpy array"),
        (".npy", np.array([{}], dtype=object), "would be pickled"),
        (".npz", [1], "a dict of numpy arrays"),
        (".pt", object(), "tensors, numbers"),
        (".jpg", Image.new("RGBA", (2, 2)), "cannot hold"),
        (".png", np.zeros((2, 2)), "8 bits a colour"),
        (".png", torch.zeros(3, 2, 2), "permute"),
        (".png", "path.png", "an image"),
        (".jpg", Image.new("LA", (2, 2)), "mode LA"),
        (".jpg", Image.new("I;16", (2, 2)), "mode I;16"),
        (".webp", Image.new("I;16", (2, 2)), "mode I;16"),
        (".webp", Image.new("CMYK", (2, 2)), "mode CMYK"),
        (".gif", Image.new("RGB", (2, 2)), "mode RGB .*quantize"),
        (".bmp", Image.new("RGBA", (2, 2)), "mode RGBA"),
        (".ppm", Image.new("RGBA", (2, 2)), "mode RGBA"),
        (".pgm", Image.fromarray(np.array([[70_000]], np.int32)), "beyond 0 to 65535"),
        (".png", np.array([[-1]], np.int16), "8 bits a colour, not int16"),
        (".png", np.zeros((2, 2), bool), "8 bits a colour, not bool"),
        (".json", {"a": float("nan")}, "which JSON lacks"),
        (".jsonl", [[float("inf")]], "which JSON lacks"),
        (".json", {1: "a"}, "the key 1 of a dict"),
        (".json", {"a": {None: 1}}, "the key None"),
        (".json", {"k" * 500: {b"b" * 500: 1}}, r"the key b'b{100}'\.\.\. \(400 more\)"),
        (".mp", {"a": {1, 2}}, "a set"),
        (".npy", np.ma.masked_equal([1, 2], 2), "without a mask"),
        (".npz", {1: np.zeros(2)}, "by text, not by 1"),
        (".ten", ["a"], "numpy arrays"),
        (".npz", {"a\0b": np.zeros(2)}, "by text, not by"),
        (".npz", {"__metadata__": np.zeros(2)}, "by text, not by"),
        (".ten", np.array([True]), "the format has no bool"),
        (".ten", [], "one array or more"),
        (".safetensors", {"a": 1}, "holds tensors, not an int"),
        (".safetensors", {"__metadata__": torch.zeros(1)}, "by text, not by"),
        (".npy", torch.zeros(2).to_sparse(), "Sparse"),
        (".cls", "1_0", "a whole number"),
        (".png", np.zeros(4, np.uint8), r"not one of shape \(4,\)"),
        (".png", np.zeros((3, 8, 8), np.uint8), r"H W 3 .*of C H W: array.transpose"),
        (".pyd", {}, "pickles run code"),
    ],
)
def test_values_that_would_not_come_back_are_refused(field, value, words):
    """What no safe decoder would give back is refused with the field's name and what to do."""
    with pytest.raises(SampleError, match=words) as caught:
        encode_field(field, value)
    assert field in str(caught.value)


def see_through(image, colour):
    """The image, with a colour that is transparent."""
    image.info["transparency"] = colour
    return image


@pytest.mark.parametrize(
    ("field", "image"),
    [
        (".jpg", see_through(Image.new("RGB", (2, 2)), (0, 0, 0))),
        (".webp", see_through(Image.new("RGB", (2, 2)), (0, 0, 0))),
        (".tif", see_through(Image.new("L", (2, 2)), 0)),
    ],
)
def test_a_transparent_colour_is_not_lost(field, image):
    """A format that has none refuses it; PNG, and WebP by an alpha channel, keep it."""
    with pytest.raises(SampleError, match="transparent colour"):
        encode_field(field, image)
    assert Image.open(io.BytesIO(encode_field(".png", image))).has_transparency_data


def test_the_alpha_of_a_palette_is_not_lost():
    """GIF, which has one transparent colour, refuses a palette whose colours have an alpha each."""
    image = see_through(Image.new("P", (2, 2)), bytes([0, 128]))
    with pytest.raises(SampleError, match=r"\.gif cannot hold an alpha for each colour"):
        encode_field(".gif", image)


def test_no_name_of_an_array_is_taken_for_something_else():
    """Arrays of an .npz have any names, also those of numpy's own arguments; the same arrays are the same bytes."""
    arrays = {name: np.arange(3) for name in ("file", "args", "kwds", "allow_pickle", "compress", "a/b", "", "x.npy")}
    data = encode_field(".npz", arrays)
    assert data == encode_field(".npz", arrays)
    found = SampleDecoder("PIL", also=".npz")({".npz": data})[".npz"]
    assert list(found) == list(arrays)
    assert all(np.array_equal(array, np.arange(3)) for array in found.values())
    with np.load(io.BytesIO(data)) as loaded:
        assert set(loaded) == set(arrays)


def test_tensors_that_are_views_are_written_with_their_values():
    """A conjugated tensor, and tensors that share memory, come back as what they show."""
    turned = torch.tensor([1 + 2j]).conj()
    assert SampleDecoder()({".npy": encode_field(".npy", turned)})[".npy"].tolist() == [1 - 2j]
    shared = torch.arange(4.0)
    found = SampleDecoder()({".safetensors": encode_field(".safetensors", {"a": shared, "b": shared[::2]})})
    assert found[".safetensors"]["b"].tolist() == [0, 2]


def test_frames_are_not_lost():
    """An animation, of which one frame would be left, is refused; a copy of that is written, and a phone's MPO."""
    frames = [Image.new("RGB", (2, 2), (80 * k, 0, 0)) for k in range(3)]
    stream = io.BytesIO()
    frames[0].save(stream, "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    image = Image.open(stream)
    with pytest.raises(SampleError, match=r"its 3 frames, but one; .*image.copy\(\)"):
        encode_field(".png", image)
    assert Image.open(io.BytesIO(encode_field(".png", image.copy()))).size == (2, 2)
    stream = io.BytesIO()
    Image.new("RGB", (2, 2)).save(stream, "MPO", save_all=True, append_images=[Image.new("RGB", (2, 2))])
    photo = Image.open(stream)
    assert photo.n_frames == 2
    assert Image.open(io.BytesIO(encode_field(".jpg", photo))).size == (2, 2)


def profile_of(space):
    """A colour profile, as far as its header goes."""
    return bytes(16) + space + bytes(108)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("field", [".jpg", ".png", ".webp", ".tif", ".bmp", ".ppm"])
def test_photos_stay_upright(field, orientation):
    """The orientation of a photo is kept, or its pixels are turned where the format has none."""
    pixels = np.arange(2 * 3, dtype=np.uint8).reshape(2, 3) * 40
    pixels = pixels.repeat(8, axis=0).repeat(8, axis=1)
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = orientation, "maker"
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG", exif=exif)
    photo = Image.open(stream)
    found = Image.open(io.BytesIO(encode_field(field, photo)))
    upright = ImageOps.exif_transpose(found).convert("L")
    expected = ImageOps.exif_transpose(photo)
    assert upright.size == expected.size
    assert np.abs(np.asarray(upright).astype(int) - np.asarray(expected)).max() < 12
    assert photo.getexif()[0x0112] == orientation  # the caller's image is as it was


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("field", [".jpg", ".png", ".webp", ".tif", ".bmp"])
@pytest.mark.parametrize("source", ["TIFF", "JPEG", "WEBP"])
def test_photos_are_turned_once(source, field, is_loaded):
    """A photo is written upright whether its pixels were loaded, which turns those of a TIFF, or not."""
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[:8, :16] = 255
    exif = Image.Exif()
    exif[0x0112] = 6
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, source, exif=exif)
    photo = Image.open(stream)
    if is_loaded:
        photo.load()
    found = ImageOps.exif_transpose(Image.open(io.BytesIO(encode_field(field, photo)))).convert("L")
    assert found.size == (16, 32)
    assert np.asarray(found)[:16, 8:].min() > 200
    assert np.asarray(found)[16:].max() < 55


@pytest.mark.parametrize("field", [".jpg", ".png", ".webp", ".tif"])
def test_colour_profiles_are_kept(field):
    """A photo keeps its profile, but not that of the image which it was converted from."""
    image = Image.new("RGB", (4, 4))
    image.info["icc_profile"] = profile_of(b"RGB ")
    assert Image.open(io.BytesIO(encode_field(field, image))).info["icc_profile"] == profile_of(b"RGB ")
    image.info["icc_profile"] = profile_of(b"CMYK")
    assert "icc_profile" not in Image.open(io.BytesIO(encode_field(field, image))).info


def test_a_colour_profile_that_has_no_place():
    """A format without profiles refuses a photo that has one, and says what helps."""
    image = Image.new("RGB", (4, 4))
    image.info["icc_profile"] = profile_of(b"RGB ")
    with pytest.raises(SampleError, match=r"\.bmp cannot hold its colour profile.*delete image.info"):
        encode_field(".bmp", image)


def test_decoded_fields_of_webdataset_can_be_written_again(tmp_path):
    """What .ten and .id decode to is encoded to what decodes to the same."""
    arrays = [np.arange(6, dtype=">f4").reshape(2, 3), torch.zeros(2), np.zeros((0, 2), np.uint8)]
    index = write(tmp_path, [{"__key__": "a", ".ten": arrays, ".id": 17, ".one.ten": arrays[0].T}])
    found = wids.ShardListDataset(index)[0]
    assert found[".id"] == 17
    assert all(map(np.array_equal, found[".ten"], arrays))
    assert np.array_equal(found[".one.ten"][0], arrays[0].T)


@pytest.mark.parametrize(
    "key", ["", "a/", "v1.2", ".hidden", "/abs", "../up", "a/../b", "nul\0", 7, None, "\ud800", "a/.x"]
)
def test_keys_that_would_not_come_back_are_refused(tmp_path, key):
    """A key that a reader would split elsewhere, or that leads out of a directory, is refused; the writer goes on."""
    with wids.ShardWriter(tmp_path / "t-%d.tar") as writer:
        with pytest.raises(SampleError, match="key"):
            writer.write({"__key__": key, ".txt": "x"})
        writer.write({"__key__": "a.b/c d/é", ".txt": "x"})
    assert [*wids.ShardListDataset(writer.index).keys()] == ["a.b/c d/é"]


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ({".txt": "x"}, "no '__key__'"),
        ({"__key__": "a"}, "no fields"),
        ({"__key__": "a", ".": b""}, "no field"),
        ({"__key__": "a", ".a/b": b""}, "no field"),
        ({"__key__": "a", "..x": b""}, None),
        ({"__key__": "a", "txt": "x", ".txt": "y"}, "two fields"),
        ({"__key__": "a", 3: b"x"}, "3 is no field"),
    ],
)
def test_samples_that_would_not_come_back_are_refused(tmp_path, sample, words):
    """A sample without key or fields, or with a field that is none or there twice, is refused and leaves no trace."""
    with wids.ShardWriter(tmp_path / "t-%d.tar") as writer:
        if words is None:
            writer.write(sample)
        else:
            with pytest.raises(SampleError, match=words):
                writer.write(sample)
        writer.write({"__key__": "b", ".txt": "x"})
    dataset = wids.ShardListDataset(writer.index, transformations=[])
    assert len(dataset) == (2 if words is None else 1)
    if words is None:
        assert "..x" in dataset[0]


def test_keys_are_unique_within_a_shard(tmp_path):
    """A key that the shard has is refused and the writer goes on; in the next shard it may come again."""
    with wids.ShardWriter(tmp_path / "t-%d.tar", samples=2) as writer:
        writer.write({"__key__": "a", ".txt": "1"})
        with pytest.raises(SampleError, match="in this shard already"):
            writer.write({"__key__": "a", ".cls": 2})
        writer.write({"__key__": "b", ".txt": "2"})
        writer.write({"__key__": "a", ".txt": "3"})
    assert read_texts(writer.index) == ["1", "2", "3"]
    assert [shard["nsamples"] for shard in writer.shards] == [2, 1]


def test_shards_are_cut_by_size(tmp_path):
    """No shard is larger than asked for but one whose only sample is; all samples are there, in order."""
    sizes = [100, 9000, 4000, 30_000, 200, 5000, 5000, 5000]
    samples = [{"__key__": str(k), ".bin": bytes(size)} for k, size in enumerate(sizes)]
    index = write(tmp_path, samples, size=20_480)
    with open(index) as file:
        shards = json.load(file)["shardlist"]
    assert [(s["nsamples"], s["filesize"]) for s in shards] == [(3, 20_480), (1, 40_960), (4, 20_480)]
    assert [os.path.getsize(tmp_path / s["url"]) for s in shards] == [s["filesize"] for s in shards]


def test_index_says_what_is_there(tmp_path):
    """The index has name, info, and of each shard URL, samples, bytes and checksums, which readers check."""
    index = write(tmp_path, texts(5), samples=2, info={"classes": ["cat"]})
    with open(index) as file:
        found = json.load(file)
    assert {**found, "shardlist": []} == {
        "wids_version": 1,
        "name": "t",
        "info": {"classes": ["cat"]},
        "shardlist": [],
    }
    for shard in found["shardlist"]:
        data = (tmp_path / shard["url"]).read_bytes()
        assert shard == backends.entry(shard["url"], data, nsamples=shard["nsamples"], crc32=f"{zlib.crc32(data):08x}")
    without = write(tmp_path / "plain", texts(1), md5=False, tables=False, name="mine")
    assert names_in(tmp_path / "plain") == ["t-000.tar", "t.json"]
    with open(without) as file:
        found = json.load(file)
    assert (found["name"], "md5sum" in found["shardlist"][0]) == ("mine", False)


def test_tables_are_used(tmp_path, events):
    """A shard is opened by the member table that was written with it, which is what its headers say."""
    write(tmp_path, texts(5))
    path = str(tmp_path / "t-000.tar")
    reader = AutoProvider(cache_dir=None, session=Session(hooks=[events])).open(Shard(url=path, nsamples=None))
    assert [event.has_saved_table for event in events if isinstance(event, Opened)] == [True]
    data = (tmp_path / "t-000.tar").read_bytes()
    built = build_table(
        scan(lambda at, size: data[at : at + size], len(data), shard="t"), identity=reader.table.identity, shard="t"
    )
    assert built.to_bytes() == reader.table.to_bytes()
    reader.close()


def test_an_exception_leaves_neither_half_shard_nor_index(tmp_path):
    """When the block fails, shards that were full stay, and nothing else is there."""
    writer = wids.ShardWriter(tmp_path / "t-%d.tar", samples=2)

    def fail():
        with writer:
            for sample in texts(3):
                writer.write(sample)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert names_in(tmp_path) == ["t-0.tar", "t-0.tar.widx"]
    with pytest.raises(ValueError, match="closed"):
        writer.write(texts(1)[0])
    writer.close()
    assert "t.json" not in names_in(tmp_path)


def test_a_writer_that_is_let_go_leaves_nothing(tmp_path):
    """A writer that nobody closed takes its part file with it; a forked process's copy does not."""
    writer = wids.ShardWriter(tmp_path / "t-%d.tar")
    writer.write(texts(1)[0])
    part = [name for name in names_in(tmp_path) if name.endswith(".part")]
    assert call_in_child(writer.discard) is None
    assert names_in(tmp_path) == part
    del writer
    finalizers.do_left()
    assert names_in(tmp_path) == []


def test_a_writer_that_nobody_closed_says_so(tmp_path, caplog):
    """What is lost is in the log: once, and not where the block ended, by itself or by an exception."""
    writer = wids.ShardWriter(tmp_path / "t-%d.tar", samples=2)
    for sample in texts(3):
        writer.write(sample)
    del writer
    assert not caplog.records  # the collector may do it anywhere
    finalizers.do_left()
    (record,) = caplog.records
    assert record.getMessage() == (
        f"{tmp_path}/t.json: its ShardWriter was never closed: 1 of 3 samples, those of the last shard, are lost, and "
        "there is no index (full shards stay: 1); write in a `with` block, or call close()"
    )
    caplog.clear()
    write(tmp_path / "closed", texts(1))
    wids.ShardWriter(tmp_path / "v-%d.tar")  # of which nothing is lost
    with contextlib.suppress(KeyError), wids.ShardWriter(tmp_path / "u-%d.tar") as writer:
        writer.write(texts(1)[0])
        raise KeyError
    del writer
    with pytest.raises(TypeError):
        wids.ShardWriter(tmp_path / "w-%d.tar", wrong=1)
    finalizers.do_left()
    assert not caplog.records


def test_a_writer_that_nobody_closed_says_so_at_the_programs_end(tmp_path):
    """Also where something holds it until then. A forked copy says nothing, nor does one that was not made."""
    program = (
        "import os, sys, wids\n"
        "writer = sys.held = wids.ShardWriter('t-%d.tar')\n"
        "writer.write({'__key__': 'a', '.txt': 'x'})\n"
        "child = os.fork()\n"
        "if not child: sys.exit()\n"
        "os.waitpid(child, 0)\n"
        "wids.ShardWriter('u-%d.tar', wrong=1)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.stderr.count("its ShardWriter was never closed: 1 of 1 samples") == 1
    assert "Exception ignored" not in done.stderr
    assert "TypeError" in done.stderr
    assert names_in(tmp_path) == []


def test_what_a_killed_writer_left_is_swept(tmp_path):
    """The next writer of a pattern removes part files that nobody writes, and no other files."""
    for name in ("t-0.tar", "t-0.tar.widx", "t.json"):
        (tmp_path / f"{name}.123-abcdef01.part").write_bytes(b"x")
    (tmp_path / "u-0.tar.123-abcdef01.part").write_bytes(b"x")
    path, fd = atomic.make_part(str(tmp_path / "t-1.tar"))
    write_index = wids.ShardWriter(tmp_path / "t-%d.tar")
    write_index.discard()
    os.close(fd)
    assert names_in(tmp_path) == sorted([os.path.basename(path), "u-0.tar.123-abcdef01.part"])


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path, monkeypatch):
    """When the disk takes no more, the error names the shard and what to do, and no part of it stays."""

    def fail(fd, data, offset):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(system, "write_all", fail)
    with pytest.raises(WidsError, match=r"t-000.tar: cannot be written .*free space"):
        write(tmp_path, texts(1))
    assert names_in(tmp_path) == []


def test_an_earlier_dataset_is_not_written_over(tmp_path):
    """A pattern that is taken is refused; with overwrite it is replaced, shards that are too many included."""
    write(tmp_path, texts(6), samples=1)
    with pytest.raises(WidsError, match=r"exists.*overwrite"):
        wids.ShardWriter(tmp_path / "t-%03d.tar")
    (tmp_path / "t-x.tar").write_bytes(b"")
    index = write(tmp_path, texts(4, first=10), samples=2, overwrite=True)
    assert read_texts(index) == ["0010", "0011", "0012", "0013"]
    assert [name for name in names_in(tmp_path) if name.endswith(".tar")] == ["t-000.tar", "t-001.tar", "t-x.tar"]


def test_no_sample_no_index(tmp_path):
    """A block that writes nothing is an error, for no reader takes an index without shards."""
    with pytest.raises(WidsError, match="no sample was written"), wids.ShardWriter(tmp_path / "t-%d.tar"):
        pass
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    "pattern", ["t.tar", "t-%d-%d.tar", "%d/t.tar", "t-%06d", "t-%06d.tgz", "t-%s.tar", "t-%d.tar\0"]
)
def test_patterns_that_are_none(pattern):
    """A pattern without one number in the file's name is refused with one that would do."""
    with pytest.raises(SpecError, match=r"train-%06d\.tar"):
        wids.ShardWriter(pattern)


@pytest.mark.parametrize(
    ("text", "url", "index"),
    [
        ("out/train-%06d.tar", "out/train-000012.tar", "out/train.json"),
        ("%d.tar", "12.tar", "index.json"),
        ("s3://b/x_%03d-v2.tar", "s3://b/x_012-v2.tar", "s3://b/x-v2.json"),
        ("a%20b/t%6d.tar", "a%20b/t000012.tar", "a%20b/t.json"),
        ("s3://b/%05d.tar", "s3://b/00012.tar", "s3://b/index.json"),
    ],
)
def test_patterns(text, url, index):
    """A pattern names shards and their index, and knows its own shards again."""
    pattern = parse_pattern(text)
    assert (pattern.url(12), pattern.index_url) == (url, index)
    assert pattern.number_of(url.rpartition("/")[2]) == 12
    assert pattern.number_of("other-12.tar") is None


@pytest.mark.parametrize("info", [{"a": float("nan")}, {"classes": {1, 2}}, {"classes": {0: "cat"}}])
def test_info_that_no_index_can_hold(tmp_path, info):
    """It is refused before any sample is written."""
    with pytest.raises(InputError, match="info cannot be in an index"):
        wids.ShardWriter(tmp_path / "t-%d.tar", info=info)


@pytest.mark.parametrize("bounds", [{"samples": 0}, {"size": -1}])
def test_bounds_are_positive(tmp_path, bounds):
    """A shard holds at least one sample."""
    with pytest.raises(ValueError, match="at least 1"):
        wids.ShardWriter(tmp_path / "t-%d.tar", **bounds)


def test_undecoded_samples_can_be_written(tmp_path):
    """Samples of a dataset, as BytesIO, are written as they are: the same bytes again."""
    source = write(tmp_path / "a", texts(5), samples=5)
    again = write(tmp_path / "b", wids.ShardListDataset(source, transformations=[]), samples=5)
    assert again != source
    assert (tmp_path / "a/t-000.tar").read_bytes() == (tmp_path / "b/t-000.tar").read_bytes()


def test_memory_store(tmp_path):
    """Shards, tables and index go to any fsspec store, and are read from there."""
    index = write("memory://writer/out", texts(5), samples=2)
    assert index == "memory://writer/out/t.json"
    assert read_texts(index, cache_dir=tmp_path) == read_texts(write(tmp_path / "l", texts(5)))
    names = fsspec.filesystem("memory").ls("/writer/out", detail=False)
    assert "/writer/out/t-002.tar.widx" in names
    with pytest.raises(WidsError, match="exists"):
        wids.ShardWriter("memory://writer/out/t-%03d.tar")
    write("memory://writer/out", texts(1), overwrite=True)
    assert sorted(os.path.basename(name) for name in fsspec.filesystem("memory").ls("/writer/out", detail=False)) == [
        "t-000.tar",
        "t-000.tar.widx",
        "t.json",
    ]


class _Streams(MemoryFileSystem):
    """A store where files grow while they are written, and whose uploads can break."""

    protocol = "streams"
    store: dict = {}  # noqa: RUF012 - as in its base class
    seen: list = []  # noqa: RUF012
    breaks = False

    def put_file(self, lpath, rpath, callback=None, mode="overwrite", **options):
        """Upload, or break off."""
        self.seen.append(rpath)
        if self.breaks:
            self.pipe_file(rpath, b"half")
            raise OSError("the line is down")
        super().put_file(lpath, rpath)


def test_a_store_that_shows_half_a_file(tmp_path, monkeypatch):
    """Where a file can be seen while it is uploaded it has another name until it is whole, and none if that fails."""
    fsspec.register_implementation("streams", _Streams, clobber=True)
    write("streams://out", texts(3))
    assert all(name.endswith(".part") for name in _Streams.seen)
    names = [name.partition("out/")[2] for name in _Streams.store]
    assert sorted(names) == ["t-000.tar", "t-000.tar.widx", "t.json"]
    monkeypatch.setattr(_Streams, "breaks", True)
    with pytest.raises(WidsError, match=r"streams://more/t-000.tar: cannot be written \(the line is down\)"):
        write("streams://more", texts(3), tables=False)
    assert [name for name in _Streams.store if "more" in name] == []


def test_s3(tmp_path, monkeypatch):
    """To a bucket and back: shards, tables and index."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with backends.s3() as store:
        place = store.place()
        index = write(place.url, texts(5), samples=2, storage_options=place.options)
        dataset = wids.ShardListDataset(index, cache_dir=tmp_path, storage_options=place.options)
        assert [sample[".txt"] for sample in dataset] == [sample[".txt"] for sample in texts(5)]
        with pytest.raises(WidsError, match="exists"):
            write(place.url, texts(1), storage_options=place.options)
        with pytest.raises(WidsError, match=r"nowhere/t-000.tar.*: cannot be written"):
            write(place.nowhere, texts(1), storage_options=place.options)


def write_one_and_vanish():
    """A process that is gone before it could clean up."""
    writer = wids.ShardWriter("memory://vanished/a-%06d.tar")
    writer.write({"__key__": "a", ".txt": "a"})
    assert [name for name in os.listdir() if name.startswith("wids-writer")]
    os._exit(0)


def test_what_a_killed_writer_left_goes_with_the_next(tmp_path):
    """Its shard under way lay in the temporary directory."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    env = {**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": os.getcwd()}
    program = "from tests.io.writing.test_writer import write_one_and_vanish; write_one_and_vanish()"
    subprocess.run([sys.executable, "-c", program], cwd=scratch, env=env, check=True, timeout=PATIENCE_SECONDS)
    assert any(path.name.startswith("wids-writer") for path in scratch.iterdir())
    program = "import wids; wids.ShardWriter('memory://other/a-%06d.tar').discard()"
    subprocess.run([sys.executable, "-c", program], cwd=scratch, env=env, check=True, timeout=PATIENCE_SECONDS)
    assert not list(scratch.iterdir())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"samples": 1.5}, "samples is 1.5; it must be a whole number"),
        ({"samples": "5"}, "samples is '5'; it must be a whole number"),
        ({"size": 1e9}, "size is 1000000000.0; it must be a whole number, or a text like '2GB'"),
        ({"size": True}, "size is True; it must be a whole number"),
    ],
)
def test_bounds_that_are_no_numbers(tmp_path, options, words):
    """They are told when the writer is made, and nothing is written."""
    with pytest.raises(TypeError, match=words):
        wids.ShardWriter(str(tmp_path / "a-%d.tar"), **options)
    assert list(tmp_path.iterdir()) == []


def test_bounds_of_numpy(tmp_path):
    """Whole numbers of other libraries are numbers, too."""
    with wids.ShardWriter(str(tmp_path / "a-%d.tar"), samples=np.int64(2), size=np.int32(1 << 20)) as writer:
        for k in range(3):
            writer.write({"__key__": f"k{k}", "txt": "a"})
    assert [shard["nsamples"] for shard in writer.shards] == [2, 1]


def test_two_writers_of_one_pattern_do_not_mix(tmp_path):
    """Of two writers at once, the one that would replace the other's shard is refused."""
    pattern = tmp_path / "x-%d.tar"
    first, second = (wids.ShardWriter(pattern, samples=1) for _ in range(2))
    first.write({"__key__": "a", ".txt": "first"})
    second.write({"__key__": "a", ".txt": "second"})
    first.close()
    with pytest.raises(WidsError, match="another one write here"):
        second.close()
    assert wids.ShardListDataset(str(tmp_path / "x.json"))[0][".txt"] == "first"
    assert sorted(os.listdir(tmp_path)) == ["x-0.tar", "x-0.tar.widx", "x.json"]


@pytest.mark.parametrize("name", ["x::y", "file::y", "SIMPLECACHE::y"])
def test_a_chain_that_leads_nowhere(name, tmp_path, monkeypatch):
    """Fsspec would write all shards into a file of the first part's name, each over the one before."""
    monkeypatch.chdir(tmp_path)
    os.mkdir(name)
    with pytest.raises(OutputError, match=rf"a file system that reads another; a file of this name is \./{name}/t-000"):
        write(name, texts(2))
    assert os.listdir(tmp_path) == [name]
    index = write(f"./{name}", texts(2))
    assert names_in(tmp_path / name) == ["t-000.tar", "t-000.tar.widx", "t.json"]
    assert read_texts(index) == ["0000", "0001"]


def test_a_picture_of_a_file_that_is_encoded_anew_is_a_warning(tmp_path, caplog):
    """Once a writer; bytes, pictures that were made or changed, and formats without loss are none."""
    made = Image.fromarray(np.random.default_rng(0).integers(0, 255, (16, 16, 3), np.uint8))
    made.save(tmp_path / "a.jpg", quality=60)
    data = (tmp_path / "a.jpg").read_bytes()
    opened = Image.open(tmp_path / "a.jpg")
    quiet = [(".jpg", data), (".jpg", made), (".png", opened), (".jpg", opened.resize((8, 8))), (".txt", "a")]
    with wids.ShardWriter(tmp_path / "a-%d.tar") as writer:
        for k, (field, value) in enumerate(quiet):
            writer.write({"__key__": f"a{k}", field: value})
        assert caplog.text == ""
        for k, field in enumerate([".left.JPG", "jpeg", ".webp"]):
            writer.write({"__key__": f"b{k}", field: opened})
    [line] = caplog.messages
    assert "sample 'b0': '.left.JPG' is a picture that was opened from a file, and is encoded anew" in line
    assert "give bytes to keep a file as it is ({'.left.JPG': open(path, 'rb').read()})" in line
    [first, *_] = wids.ShardListDataset(writer.index, transformations="raw")
    assert first[".jpg"] == data


def test_the_bytes_of_a_picture_go_to_a_field_of_their_format(tmp_path, caplog):
    """Of a picture that is encoded in another format: the advice keeps the file, and names no wrong extension."""
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    with wids.ShardWriter(tmp_path / "a-%d.tar") as writer:
        writer.write({"__key__": "a", ".jpg": Image.open(tmp_path / "a.png")})
    assert "({'.png': open(path, 'rb').read()})" in caplog.text

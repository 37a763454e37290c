"""The page of a sample, and what its script asks for."""

import gzip
import io
import json
import pickle
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

import wids
from tests.io.serve.test_previews import array, opened, picture
from tests.support.columns import make_columns
from tests.support.shards import write_json, write_tar
from wids.columns.spec import parse_spec
from wids.tools.describe import describe
from wids.tools.serve import sample as serve_sample


def packed(**arrays):
    """The bytes of an .npz."""
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def checkpoint(value):
    """The bytes of a .pt."""
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def test_the_page(pages):
    """It is there for each sample, and reads none."""
    client = pages({".txt": b"x"})
    assert client.get("/sample/0").status_code == 200
    assert 'data-index="0"' in client.get("/sample/0").text
    for index in ("1", "9" * 50):
        answer = client.get(f"/sample/{index}")
        assert (answer.status_code, "there is no sample" in answer.text) == (404, True)


def test_where_it_is(pages, tmp_path):
    """Shard, row, and of each field its bytes there; and the code that reads it."""
    client = pages({".txt": b"text", ".jpg": picture("JPEG")})
    found = client.get("/api/sample/0").json()
    assert (found["key"], found["shard"], found["row"], found["dataset"]) == ("s", 0, 0, None)
    data = (tmp_path / "a.tar").read_bytes()
    assert [data[f["offset"] : f["offset"] + f["size"]] for f in found["fields"]] == [b"text", picture("JPEG")]
    assert [(f["at"], f["name"], f["kind"]) for f in found["fields"]] == [
        ("@0", ".txt", "text"),
        ("@1", ".jpg", "image"),
    ]
    names = {}
    exec(f"import wids\n{found['code']}", names)
    assert names["sample"][".txt"] == "text"
    assert client.get("/api/sample/1").status_code == 404


@pytest.mark.parametrize(
    ("name", "data", "facts"),
    [
        (".txt", b"text", {"kind": "text"}),
        (".cls", b"1", {"kind": "number", "value": 1, "class": "dog"}),
        (".cls", b"7", {"kind": "number", "value": 7}),
        (".id", b"12345678901234567890", {"kind": "number", "value": "12345678901234567890"}),
        (".json", b'{"a": NaN}', {"kind": "json", "type": "dict"}),
        (".json", b"NaN", {"kind": "number", "value": "nan"}),
        (".json", b"[" * 100_000, {"kind": "damaged"}),
        (".json", b" " * (3 << 20), {"kind": "large"}),
        (".pkl", pickle.dumps(1), {"kind": "unopened"}),
        (".pt", checkpoint({"x": object}), {"kind": "unopened"}),
        (".npy", array(np.array([{}], object)), {"kind": "unopened"}),
        (".png", picture()[:-40], {"kind": "damaged"}),
        (".png", b"", {"kind": "damaged"}),
        (".mp4", b"no film", {"kind": "video"}),
        (".bin", b"\0", {"kind": "bytes"}),
        (".txt", b"\xff", {"kind": "damaged"}),
    ],
)
def test_what_a_field_is(pages, name, data, facts):
    """As the dataset decodes it; what is damaged, unsafe or large says so."""
    found = pages({name: data}, info={"classes": ["cat", "dog"]}).get("/api/field/0/@0").json()
    assert {key: found.get(key) for key in facts} == facts
    assert found["words"]
    assert ("class" in found) == ("class" in facts)


def test_pictures(pages):
    """How large, and whether a browser draws it as it is or we do."""
    stream = io.BytesIO()
    Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30)).save(stream, "PNG")
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010F] = "<script>\0" * 500
    moving = io.BytesIO()
    frames = [Image.new("RGB", (4, 4), (k, 0, 0)) for k in range(3)]
    frames[0].save(moving, "GIF", save_all=True, append_images=frames[1:])
    fields = {".png": picture(), ".deep.png": stream.getvalue(), ".tif": picture("TIFF"), ".gif": moving.getvalue()}
    fields[".jpg"] = picture("JPEG", exif=exif.tobytes())
    client = pages(fields)
    found = [client.get(f"/api/field/0/@{k}").json() for k in range(5)]
    assert [each["is_drawn"] for each in found] == [True, False, False, False, True]
    assert [(each["width"], each["height"]) for each in found] == [(300, 200), (30, 20), (300, 200), (4, 4), (300, 200)]
    assert (found[1]["is_scaled"], found[3]["is_moving"]) == (True, True)
    tags = dict(found[4]["exif"])
    assert (tags["Orientation"], len(tags["Make"]) < 300) == ("6", True)
    assert opened(client.get("/picture/0/@1")).size == (30, 20)
    assert opened(client.get("/picture/0/@2")).size == (300, 200)
    assert client.get("/picture/0/.nope").status_code == 404


@pytest.mark.parametrize(
    ("name", "data", "names"),
    [
        (".npy", array(np.array([1.0, np.nan])), [""]),
        (".npz", packed(a=np.arange(4), b=np.zeros((2, 2))), ["a", "b"]),
        (".pt", checkpoint(torch.arange(3)), [""]),
        (".pt", checkpoint({"w": torch.ones(2, 2, dtype=torch.bfloat16)}), ["w"]),
    ],
)
def test_tensors(pages, name, data, names):
    """Shape, type and statistics of each."""
    found = pages({name: data}).get("/api/field/0/@0").json()
    assert [each["name"] for each in found["measures"]] == names
    assert all({"shape", "dtype", "min", "mean", "max", "std", "nans"} <= set(each) for each in found["measures"])


def test_a_tree(pages):
    """A level at a time, a hundred parts at a time; numbers as they are written, whatever their size."""
    value = {
        "a": [1, {"b": None}],
        "big": 12345678901234567890,
        "nan": float("nan"),
        "s": "x" * 700,
        "l": [*range(250)],
    }
    client = pages({".json": json.dumps(value).encode(), ".txt": b"x", ".cls": b"3"})
    tree = client.get("/api/tree/0/.json").json()
    assert (tree["kind"], tree["count"]) == ("object", 5)
    assert [(part["name"], part["kind"]) for part in tree["parts"]] == [
        ("a", "array"),
        ("big", "number"),
        ("nan", "word"),
        ("s", "string"),
        ("l", "array"),
    ]
    assert tree["parts"][1]["text"] == "12345678901234567890"
    assert (tree["parts"][2]["text"], tree["parts"][3]["more"]) == ("NaN", 200)
    assert client.get("/api/tree/0/.json?at=0.1").json()["parts"] == [
        {"name": "b", "at": 0, "kind": "word", "text": "null"}
    ]
    last = client.get("/api/tree/0/.json?at=4&from=200").json()["parts"]
    assert [part["at"] for part in last] == [*range(200, 250)]
    for query, status in (("at=9", 404), ("at=1.0", 404), ("at=x", 400), ("at=-1", 400), ("from=-1", 400)):
        assert client.get(f"/api/tree/0/.json?{query}").status_code == status
    assert client.get("/api/tree/0/.cls").json() == {"kind": "number", "text": "3"}


def test_values_that_are_kept_are_small(pages, monkeypatch):
    """Each is parsed once while its parts are looked at, as long as all together have few bytes in memory."""
    described = []

    def count(name, data, **options):
        described.append(name)
        return describe(name, data, **options)

    monkeypatch.setattr(serve_sample, "describe", count)
    monkeypatch.setattr(serve_sample, "_KEPT_BYTES", 1000)
    client = pages({".a.json": b"[1]", ".b.json": b"[2]", ".large.json": json.dumps(["x"] * 20).encode(), ".txt": b"x"})
    for _ in range(2):
        for name in (".a.json", ".b.json", ".large.json"):
            assert client.get(f"/api/tree/0/{name}?at=").json()["kind"] == "array"
    assert described == [".a.json", ".b.json", ".large.json", ".large.json"]


@pytest.mark.parametrize("name", [".png", ".JPG", ".seg.png.gz", ".mp4", ".wav"])
def test_no_picture_is_decoded_for_its_parts(pages, monkeypatch, name):
    """It has none, whatever its size."""
    monkeypatch.setattr(serve_sample, "describe", None)
    answer = pages({name: b"x"}).get(f"/api/tree/0/{name}")
    assert answer.status_code == 404
    assert "it has no parts" in answer.json()["error"]


@pytest.mark.parametrize("path", ["/api/field/0/.png.gz", "/thumb/0/.png.gz", "/picture/0/.png.gz"])
def test_a_packed_picture_is_refused_by_its_size(pages, monkeypatch, path):
    """As one that is not packed, before it is decoded."""
    monkeypatch.setattr(ImageFile.ImageFile, "load", None)
    side, data = 12_000, io.BytesIO()
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    for kind, body in ((b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")):
        data.write(struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)))
    client = pages({".png.gz": gzip.compress(b"\x89PNG\r\n\x1a\n" + data.getvalue())})
    assert "12,000 x 12,000 pixels" in client.get(path).text


def test_no_columns(pages):
    """Of a dataset that has none, there are none."""
    assert pages({".txt": b"x"}).get("/api/columns/0").json() == {"columns": []}


def test_names_of_classes(tmp_path, serve_index):
    """A label among the columns has the name of its class beside it."""
    write_tar(tmp_path / "a.tar", {"0.cls": b"1", "1.txt": b""})
    header = {"wids_version": 1, "info": {"classes": ["ant", "bee"]}}
    index = write_json(tmp_path / "a.json", {**header, "shardlist": [{"url": "a.tar", "nsamples": 2}]})
    make_columns(index, spec=parse_spec(fields=[".cls=label"]))
    labels = [dict(serve_index(index).get(f"/api/columns/{k}")["columns"])["label"] for k in range(2)]
    assert labels == ["bee (1)", None]


def test_fields_of_companions(tmp_path, serve_index):
    """They are fields of the sample as any other, under their names in the join, and an empty row has none."""
    for stem, members in (("base", {"a.txt": b"one", "b.txt": b"two"}), ("more", {"a.txt": b"1", "b.empty": b""})):
        write_tar(tmp_path / f"{stem}.tar", members)
        write_json(tmp_path / f"{stem}.json", {"wids_version": 1, "shardlist": [{"url": f"{stem}.tar", "nsamples": 2}]})
    base = wids.ShardListDataset(tmp_path / "base.json")
    base.with_fields(tmp_path / "more.json", prefix="x").save(tmp_path / "joined.json")
    asking = serve_index(tmp_path / "joined.json")
    names = [[field["name"] for field in asking.get(f"/api/sample/{k}")["fields"]] for k in (0, 1)]
    assert names == [[".txt", ".x.txt"], [".txt"]]
    assert asking.client.get("/field/0/.x.txt").content == b"1"
    assert asking.get("/api/field/0/@1")["kind"] == "text"

"""The bytes of fields as a browser asks for them, their types, ranges, and the beginnings of texts."""

import gzip
import os
import zlib

import pytest
from starlette.testclient import TestClient

from tests.support import cache_shards as shards
from tests.support.shards import write_json
from tests.support.tars import publish
from wids.core.readers.local import LocalReader
from wids.tools.serve.app import make_app
from wids.tools.serve.guard import SANDBOX
from wids.tools.serve.served import Served

DATA = bytes(i * i % 251 for i in range(1_500_000))


@pytest.mark.parametrize(
    ("name", "kind", "is_saved"),
    [
        (".jpg", "image/jpeg", False),
        (".JPEG", "image/jpeg", False),
        (".seg.png", "image/png", False),
        (".svg", "text/plain; charset=utf-8", False),
        (".mp4", "video/mp4", False),
        (".wav", "audio/wav", False),
        (".html", "text/plain; charset=utf-8", False),
        (".htm", "text/plain; charset=utf-8", False),
        (".xml", "text/plain; charset=utf-8", False),
        (".json", "text/plain; charset=utf-8", False),
        (".txt", "text/plain; charset=utf-8", False),
        (".txt.gz", "application/octet-stream", True),
        (".pdf", "application/octet-stream", True),
        (".js", "application/octet-stream", True),
        (".xhtml", "application/octet-stream", True),
        (".pkl", "application/octet-stream", True),
        (".tiff", "application/octet-stream", True),
    ],
)
def test_types(pages, name, kind, is_saved):
    """A browser looks at these, in a sandbox, and saves all others; it guesses none."""
    answer = pages({name: b"<script>alert(1)</script>"}).get(f"/field/0/{name}")
    assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
    assert answer.headers.get("content-disposition", "").startswith("attachment") == is_saved
    assert answer.headers["content-security-policy"] == SANDBOX
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.content == b"<script>alert(1)</script>"


@pytest.mark.parametrize(("asked", "kind"), [("image", "image/svg+xml"), ("document", "text/plain; charset=utf-8")])
def test_a_drawing_that_could_hold_scripts(pages, asked, kind):
    """It is one where a page shows it as a picture, which runs none; by itself it is text."""
    answer = pages({".svg": b"<svg/>"}).get("/field/0/.svg", headers={"sec-fetch-dest": asked})
    assert answer.headers["content-type"] == kind


@pytest.mark.parametrize(
    ("wanted", "lo", "hi"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-", 0, len(DATA)),
        ("bytes=100-1048676", 100, 1_048_677),
        ("bytes=1499999-", 1_499_999, len(DATA)),
        ("bytes=1499990-99999999", 1_499_990, len(DATA)),
        ("bytes=-5", len(DATA) - 5, len(DATA)),
        ("bytes=-99999999", 0, len(DATA)),
    ],
)
def test_ranges(pages, wanted, lo, hi):
    """A player seeks by them."""
    answer = pages({".mp4": DATA}).get("/field/0/.mp4", headers={"range": wanted})
    assert answer.status_code == 206
    assert answer.headers["content-range"] == f"bytes {lo}-{hi - 1}/{len(DATA)}"
    assert answer.headers["content-length"] == str(hi - lo)
    assert answer.content == DATA[lo:hi]


@pytest.mark.parametrize("wanted", ["bytes=1500000-", "bytes=99999999-100000000", "bytes=-0"])
def test_ranges_behind_the_end(pages, wanted):
    """There are no such bytes."""
    answer = pages({".mp4": DATA}).get("/field/0/.mp4", headers={"range": wanted})
    assert (answer.status_code, answer.content) == (416, b"")
    assert answer.headers["content-range"] == f"bytes */{len(DATA)}"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"range": "bytes=5-3"},
        {"range": "bytes=0-1,5-6"},
        {"range": "lines=0-1"},
        {"range": "bytes=-"},
        {"range": f"bytes={'9' * 400}-"},
        {"range": "bytes=0-1", "if-range": '"x"'},
    ],
)
def test_what_is_no_range_of_ours(pages, headers):
    """All is answered, as without it."""
    answer = pages({".mp4": DATA}).get("/field/0/.mp4", headers=headers)
    assert (answer.status_code, answer.content == DATA) == (200, True)
    assert answer.headers["accept-ranges"] == "bytes"


def test_an_empty_field(pages):
    """It has no bytes, and no range."""
    client = pages({".mp4": b""})
    assert client.get("/field/0/.mp4").content == b""
    assert client.get("/field/0/.mp4", headers={"range": "bytes=0-"}).status_code == 416


def test_the_head_alone(pages, monkeypatch):
    """Without reading the field."""
    monkeypatch.setattr(LocalReader, "read_parts", lambda *_: pytest.fail("read"))
    answer = pages({".mp4": DATA}).head("/field/0/.mp4", headers={"range": "bytes=7-8"})
    assert (answer.status_code, answer.headers["content-length"], answer.content) == (206, "2", b"")


def test_what_is_not_there(pages):
    """Words, and none of a file of this machine."""
    client = pages({".txt": b"x"})
    for path in ("/field/1/.txt", "/field/0/.jpg", "/field/0/", "/field/0/../../../../etc/passwd", "/field/0/@1"):
        answer = client.get(path.replace("..", "%2e%2e"))
        assert (answer.status_code, "error" in answer.json()) == (404, True)
    assert client.get(f"/field/{'9' * 5000}/.txt").status_code in (400, 404)
    assert client.get("/field/-1/.txt").status_code == 404


@pytest.mark.parametrize(
    "name",
    [".", "..", ".\x01", ".a%2e%2e", ".a?b#c&d", ".<script>", ".\u202etxt", ".\udcff", '."', ".a b", f".{'x' * 5000}"],
)
def test_odd_names(pages, name):
    """A field is found by its number whatever its name is; the name it is saved by is harmless."""
    answer = pages({name: b"x"}).get("/field/0/@0")
    assert answer.content == b"x"
    saved = answer.headers["content-disposition"]
    assert saved.isascii()
    assert len(saved) < 120
    assert saved.count('"') == 2


def test_a_remote_shard_is_read_by_ranges(own_cache, server, tmp_path):
    """Of a film that is played from its middle, no more than is asked for is read; nothing is downloaded."""
    data = shards.shard("a", 3, 4_000_000)
    server.has_ranges = True
    url = server.add("/a.tar", data)
    publish(server, "/a.tar")
    index = {"wids_version": 1, "shardlist": [{"url": url, "nsamples": 3, "filesize": len(data)}]}
    write_json(tmp_path / "index.json", index)
    served = Served(str(tmp_path / "index.json"), cache_dir=str(tmp_path / "cache"))
    client = TestClient(make_app(served), base_url="http://127.0.0.1:8000", headers={"x-wids": "1"})
    client.head("/field/1/.bin")
    shard, _, _ = served.dataset.get_shard(1)
    before = shard.reader._source.read_bytes
    answer = client.get("/field/1/.bin", headers={"range": "bytes=2000000-2000999"})
    assert answer.content == b"a0001" * 200
    assert shard.reader._source.read_bytes - before <= 1000 + 2 * 512
    served.close()
    assert not [name for *_, names in os.walk(tmp_path / "cache") for name in names if name.endswith(".tar")]


def test_a_field_goes_out_in_pieces(pages, monkeypatch):
    """None is held as a whole."""
    real, sizes = LocalReader.read_parts, []

    def read_parts(self, parts):
        sizes.extend(part.hi - part.lo for part in parts)
        return real(self, parts)

    monkeypatch.setattr(LocalReader, "read_parts", read_parts)
    assert pages({".mp4": DATA}).get("/field/0/.mp4").content == DATA
    assert max(sizes) <= 1 << 19
    assert sum(sizes) == len(DATA)


# --- texts


@pytest.mark.parametrize(
    ("name", "data", "found"),
    [
        (".txt", "ein schöner Satz".encode(), {"text": "ein schöner Satz", "is_whole": True, "damaged": 0}),
        (".txt", b"", {"text": "", "is_whole": True, "damaged": 0}),
        (".txt", b"ab\xff\xc3", {"text": "ab\ufffd\ufffd", "is_whole": True, "damaged": 2}),
        (".txt", "ö".encode() * 5000, {"text": "ö" * 2000, "is_whole": False, "damaged": 0}),
        (".txt", "\U0001f40e".encode() * 2001, {"text": "\U0001f40e" * 2000, "is_whole": False, "damaged": 0}),
        (".txt.gz", gzip.compress(b"x" * 1_000_000, mtime=0), {"text": "x" * 2000, "is_whole": False, "damaged": 0}),
        (".txt.gz", gzip.compress(b"x", mtime=0), {"text": "x", "is_whole": True, "damaged": 0}),
        (".txt.gz", gzip.compress(b"x", mtime=0) * 2, {"text": "xx", "is_whole": True, "damaged": 0}),
        (".txt.gz", gzip.compress(b"x", mtime=0)[:-3], {"text": "x", "is_whole": False, "damaged": 0}),
        (".json", b"[" * 100_000, {"text": "[" * 2000, "is_whole": False, "damaged": 0}),
        (".txt", b"a\0\x1b[31m", {"text": "a\0\x1b[31m", "is_whole": True, "damaged": 0}),
    ],
)
def test_the_beginning_of_a_text(pages, name, data, found):
    """So many letters; what is no UTF-8 is counted; what is packed is unpacked no further."""
    answer = pages({name: data}).get(f"/api/text/0/{name}").json()
    assert answer == {**found, "size": len(data)}


def test_more_of_a_text(pages):
    """As many letters as are asked for, up to a million."""
    client = pages({".txt": b"x" * 3_000_000})
    for letters, length in (("5", 5), ("-5", 1), ("99999999999", 1_000_000), ("x", 2000)):
        assert len(client.get(f"/api/text/0/.txt?letters={letters}").json()["text"]) == length


def test_a_damaged_packed_text(pages):
    """It says so."""
    for data in (b"x" * 100, gzip.compress(b"x" * 99)[:10] + b"\xff" * 40):
        answer = pages({".txt.gz": data}).get("/api/text/0/.txt.gz")
        assert (answer.status_code, answer.json()["error"][:13]) == (422, "it is damaged")


def test_a_bomb_is_not_unpacked(pages, monkeypatch):
    """No more than is shown."""
    bomb = gzip.compress(bytes(100_000_000))
    unpacked, real = [], zlib.decompressobj

    class Watched:
        def __init__(self, wbits):
            self._real = real(wbits)

        def decompress(self, data, most):
            found = self._real.decompress(data, most)
            unpacked.append(len(found))
            return found

        def __getattr__(self, name):
            return getattr(self._real, name)

    monkeypatch.setattr(zlib, "decompressobj", Watched)
    assert len(pages({".txt.gz": bomb}).get("/api/text/0/.txt.gz").json()["text"]) == 2000
    assert sum(unpacked) < 10_000

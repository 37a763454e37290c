"""Small pictures of fields, and the field that stands for a sample."""

import asyncio
import io
import threading
import zlib
from functools import partial

import numpy as np
import pytest
from PIL import Image

from wids.core.readers.local import LocalReader
from wids.tools.serve import served as served_module
from wids.tools.serve.previews import NoPreviewError, Preview, Previews, kind_of, main_field


def picture(kind="PNG", size=(300, 200), mode="RGB", color=(200, 30, 30), **options):
    """A picture of one colour."""
    stream = io.BytesIO()
    Image.new(mode, size, color).save(stream, kind, **options)
    return stream.getvalue()


def array(value):
    """The bytes of an .npy."""
    stream = io.BytesIO()
    np.save(stream, value)
    return stream.getvalue()


def opened(answer):
    """The image of an answer."""
    assert answer.status_code == 200, answer.text
    return Image.open(io.BytesIO(answer.content))


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([".txt", ".jpg", ".cls"], (".jpg", "image")),
        ([".seg.png", ".jpg"], (".jpg", "image")),
        ([".PNG", ".JPG"], (".JPG", "image")),
        ([".cls", ".json", ".txt"], (".txt", "text")),
        ([".npy", ".txt"], (".npy", "array")),
        ([".cls"], (".cls", "text")),
        ([".mp4", ".wav", ".txt"], (".mp4", "video")),
        ([".flac", ".json"], (".flac", "audio")),
        ([".svg", ".html"], (".html", "text")),
        (["."], (".", "other")),
        ([], ("", "other")),
    ],
)
def test_the_field_that_stands_for_a_sample(names, found):
    """By its extension alone: pictures before films before sound before arrays before text; a label comes last."""
    assert main_field(names) == main_field(reversed(names)) == found


@pytest.mark.parametrize(
    ("name", "data", "is_painted"),
    [
        (".png", np.arange(48, dtype=np.uint8).reshape(6, 8) % 5, True),
        (".png", np.asarray([[0, 33], [255, 7]], np.uint8), True),
        (".seg.png", np.asarray([[0, 150], [255, 7]], np.uint8), True),
        (".seg.png", np.asarray([[0, 300], [2, 7]], np.uint16), True),
        (".png", np.asarray([[0, 150], [255, 7]], np.uint8), False),
        (".mask.png", np.asarray([[0, 255]], np.uint8), False),
        (".png", np.asarray([[0, 300], [2, 7]], np.uint16), False),
        (".seg.png", np.zeros((2, 2, 3), np.uint8), False),
    ],
    ids=str,
)
def test_masks(pages, name, data, is_painted):
    """Numbers of classes have colours, in small and in full; other grey pictures stay grey."""
    stream = io.BytesIO()
    Image.fromarray(data).save(stream, "PNG")
    browser = pages({name: stream.getvalue()})
    found = browser.get("/api/field/0/@0").json()
    assert bool(found["classes"]) == is_painted
    small, full = (opened(browser.get(f"/{size}/0/@0")).convert("RGB") for size in ("thumb", "picture"))
    is_grey = all(red == green == blue for red, green, blue in full.get_flattened_data())
    assert is_grey != is_painted
    if is_painted:
        assert small.tobytes() == full.tobytes()
        shares = {each["number"]: each["share"] * data.size for each in found["classes"]}
        assert shares == pytest.approx({int(k): int((data == k).sum()) for k in np.unique(data)})
        colours = {each["number"]: bytes.fromhex(each["colour"][1:]) for each in found["classes"]}
        assert full.tobytes() == b"".join(colours[int(number)] for number in data.ravel())


def test_kinds_of_packed_fields():
    """What is packed is of the kind of what is in it; a picture by its name only."""
    assert [kind_of(name) for name in (".txt.gz", ".NPY.GZ", ".gz", "", ".jpg.pkl")] == [
        "text",
        "array",
        "other",
        "other",
        "other",
    ]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_pictures(pages, kind):
    """Of at most 256 pixels a side, of the same shape; a small one stays as it is."""
    name = f".{kind.lower()}"
    image = opened(pages({name: picture(kind, (1200, 800))}).get(f"/thumb/0/{name}"))
    assert image.size in ((256, 171), (256, 170))
    assert np.abs(np.asarray(image.convert("RGB")).mean((0, 1)) - (200, 30, 30)).max() < 4
    assert opened(pages({name: picture(kind, (40, 20))}).get(f"/thumb/0/{name}")).size == (40, 20)


def test_deep_pictures_are_scaled(pages):
    """A depth map is seen from its nearest to its farthest."""
    stream = io.BytesIO()
    Image.fromarray(np.linspace(1000, 3000, 64 * 64).reshape(64, 64).astype(np.uint16)).save(stream, "PNG")
    found = np.asarray(opened(pages({".png": stream.getvalue()}).get("/thumb/0/.png")).convert("L"))
    assert (found.min(), found.max()) == (0, 255)


def test_transparency_shows_a_checker(pages):
    """And it stays a PNG."""
    answer = pages({".png": picture(mode="RGBA", color=(0, 0, 0, 0), size=(64, 64))}).get("/thumb/0/.png")
    assert answer.headers["content-type"] == "image/png"
    assert set(np.unique(np.asarray(opened(answer).convert("L"))).tolist()) == {205, 235}


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (np.arange(64.0).reshape(8, 8), (128, 128)),
        (np.zeros((3, 10, 20), np.float32), (120, 60)),
        (np.zeros((10, 20, 3), np.uint8), (120, 60)),
        (np.zeros((2, 5, 7, 10, 20), bool), (120, 60)),
        (np.full((4, 4), np.nan), (128, 128)),
        (np.array([[1e308, -1e308], [np.inf, 0]]), (128, 128)),
        (np.sin(np.linspace(0, 60, 5000)), (256, 96)),
        (np.zeros((4000, 2), "c8"), (1, 256)),
    ],
)
def test_arrays(pages, value, size):
    """The first plane of an array, small ones enlarged; a line of numbers as its curve."""
    assert opened(pages({".npy": array(value)}).get("/thumb/0/.npy")).size == size


def test_numbers_that_are_none_are_red(pages):
    """They are none of the greys."""
    found = np.asarray(opened(pages({".npy": array(np.array([[0.0, np.nan], [1.0, 2.0]]))}).get("/thumb/0/.npy")))
    assert [tuple(int(v) for v in found[y, x]) for y, x in ((0, 0), (0, -1), (-1, -1))] == [
        (0, 0, 0),
        (214, 40, 90),
        (255, 255, 255),
    ]


@pytest.mark.parametrize(
    ("name", "data", "status", "words"),
    [
        (".png", b"no picture", 422, "not a JPEG, PNG or other known picture"),
        (".png", picture()[:-40], 422, "damaged"),
        (".npy", array(np.zeros(3))[:-1], 422, "promises shape"),
        (".npy", array(np.float32(3)), 422, "is not a picture"),
        (".npy", array(np.array(["a"])), 422, "is not a picture"),
        (".npy", array(np.array([{}], object)), 415, "not opened"),
        (".npz", b"PK", 422, "zip"),
        (".txt", b"x", 415, "no picture by its name"),
    ],
)
def test_what_has_no_picture(pages, name, data, status, words):
    """It is said in words that a cell shows, with a status."""
    answer = pages({name: data}).get(f"/thumb/0/{name}")
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
    assert words in answer.json()["error"]


def test_what_is_not_there(pages):
    """No such sample, no such field; a field of a number."""
    client = pages({".png": picture(), ".txt": b"x"})
    assert "has 1" in client.get("/thumb/1/.png").json()["error"]
    assert "it has '.png', '.txt'" in client.get("/thumb/0/.jpg").json()["error"]
    assert client.get("/thumb/0/@7").status_code == client.get("/thumb/0/").status_code == 404
    assert opened(client.get("/thumb/0/@0")).size == (256, 171)


def test_pictures_are_kept(pages, monkeypatch):
    """The second time nothing is read; there is room for so many bytes only, and the oldest goes."""
    client, reads = pages({".png": picture(), ".jpg": picture("JPEG")}), []
    real = LocalReader.read
    monkeypatch.setattr(LocalReader, "read", lambda self, *a: reads.append(a[1]) or real(self, *a))
    for name in (".png", ".jpg", ".png", ".jpg"):
        assert client.get(f"/thumb/0/{name}").status_code == 200
    assert reads == [(".png",), (".jpg",)]


def test_there_is_room_for_so_many_bytes(pages, monkeypatch):
    """The picture that was used longest ago goes, and is made again."""
    monkeypatch.setattr(served_module, "Previews", partial(Previews, kept_bytes=1))
    client, reads = pages({".png": picture(), ".jpg": picture("JPEG")}), []
    real = LocalReader.read
    monkeypatch.setattr(LocalReader, "read", lambda self, *a: reads.append(a[1]) or real(self, *a))
    for name in (".png", ".png", ".jpg", ".png"):
        assert client.get(f"/thumb/0/{name}").status_code == 200
    assert reads == [(".png",), (".jpg",), (".png",)]


def test_a_slow_sample_stops_no_other(pages, monkeypatch):
    """Its thread waits; the others draw, and the same picture is not made twice."""
    client, go, begun, real = (
        pages({".png": picture(), ".jpg": picture("JPEG")}),
        threading.Event(),
        [],
        LocalReader.read,
    )

    def read(self, row, fields=None):
        if fields == (".png",):
            begun.append(row)
            assert go.wait(60)
        return real(self, row, fields)

    monkeypatch.setattr(LocalReader, "read", read)
    found = []
    waiting = [threading.Thread(target=lambda: found.append(client.get("/thumb/0/.png"))) for _ in range(3)]
    for thread in waiting:
        thread.start()
    assert client.get("/thumb/0/.jpg").status_code == 200
    go.set()
    for thread in waiting:
        thread.join()
    assert [answer.status_code for answer in found] == [200] * 3
    assert begun == [0]


def test_too_many_pixels_are_refused_before_they_are_decoded(pages, monkeypatch):
    """By what the header says."""
    data = bytearray(picture())
    data[16:24] = (40_000).to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    answer = pages({".png": bytes(data)}).get("/thumb/0/.png")
    assert (answer.status_code, "pixels" in answer.json()["error"]) == (422, True)


def test_what_nobody_waits_for_is_not_begun():
    """A browser that scrolls on takes its requests back; those that another still waits for are made."""

    class Request:
        def __init__(self, is_gone):
            self.is_gone = is_gone

        async def is_disconnected(self):
            return self.is_gone

    async def ask(previews, go):
        waiting = asyncio.ensure_future(previews.get(Request(is_gone=False), 1, ".png"))
        for index in (1, 2):
            with pytest.raises(NoPreviewError, match="no request waits"):
                await previews.get(Request(is_gone=True), index, ".png")
        go.set()
        assert (await waiting).data == bytes(9)

    previews, go, made = Previews(None), threading.Event(), []
    previews._make = lambda key: made.append(key[0]) or Preview(bytes(9), "image/png")
    busy = [previews._pool.submit(go.wait, 60) for _ in range(8)]
    asyncio.run(ask(previews, go))
    previews.close()
    assert all(each.result() for each in busy)
    assert made == [1]
    assert not previews._begun

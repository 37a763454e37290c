"""Decoders that read a member as a file: the recipes of the guide, against the same decoder on all bytes."""

import io
import zipfile

import av
import h5py
import numpy as np
import pytest
import soundfile
from PIL import Image

import wids
from tests.support import tools
from tests.support.cache_shards import pack
from tests.support.readme_code import at, execute
from tests.support.shards import write_json
from tests.support.tars import publish
from wids.events import RangesRead

pytestmark = pytest.mark.usefixtures("own_cache", "no_waits")

GUIDE = ".docs/guides/video.md"
FRAMES = 250


class Asked(io.RawIOBase):
    """A file that counts the bytes that a decoder asks of another one."""

    def __init__(self, file):
        super().__init__()
        self._file, self.count = file, 0
        self.seek, self.tell, self.readable, self.seekable = file.seek, file.tell, file.readable, file.seekable

    def read(self, size=-1):
        """Bytes of the other one."""
        data = self._file.read(size)
        self.count += len(data)
        return data

    def readinto(self, buffer):
        """Likewise."""
        count = self._file.readinto(buffer)
        self.count += count
        return count


def film(path, *, frames=FRAMES, **options):
    """The bytes of a film of noise, so that it is long, some 20 kB a frame; its index is at the end."""
    rng = np.random.default_rng(0)
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt, stream.gop_size, stream.bit_rate = (
            160,
            120,
            "yuv420p",
            10,
            8_000_000,
        )
        for _ in range(frames):
            frame = av.VideoFrame.from_ndarray(rng.integers(0, 255, (120, 160, 3), dtype=np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path.read_bytes()


def arrays():
    """A file of HDF5."""
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        file["states"] = np.arange(400_000.0).reshape(-1, 100)
        file["other"] = np.arange(10)
    return out.getvalue()


def sound():
    """A minute of noise."""
    out = io.BytesIO()
    soundfile.write(out, np.random.default_rng(0).uniform(-1, 1, 16_000 * 60), 16_000, format="FLAC")
    return out.getvalue()


def archive():
    """A zip of a hundred files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for k in range(100):
            file.writestr(f"{k}.bin", bytes([k]) * 30_000)
    return out.getvalue()


def picture():
    """A picture whose pixels are not compressed."""
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (1000, 1500, 3), dtype=np.uint8)).save(out, "TIFF")
    return out.getvalue()


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    """One of each kind."""
    return {
        "mp4": film(tmp_path_factory.mktemp("films") / "a.mp4"),
        "h5": arrays(),
        "flac": sound(),
        "zip": archive(),
        "tiff": picture(),
    }


@pytest.fixture(params=["local", "range"])
def opened(request, server, tmp_path, members):
    """A function: extension -> (file of the member, events of its reads)."""
    data, events = pack([(f"a.{name}", member) for name, member in members.items()]), []
    if request.param == "local":
        (tmp_path / "a.tar").write_bytes(data)
        shards, access = [(str(tmp_path / "a.tar"), 1)], "fetch"
    else:
        server.has_ranges = True
        shards, access = [(server.add("/a.tar", data), 1)], "range"
        publish(server, "/a.tar")
    dataset = wids.ShardListDataset(
        shards, access=access, transformations=wids.lazy(";".join(members)), hooks=[events.append]
    )
    return lambda name: (dataset[0][f".{name}"], events)


RECIPES = {
    "pyav": ("mp4", "frame_at", (7.3,), lambda frame: frame.to_ndarray(format="rgb24")),
    "torchcodec": ("mp4", "frames_at", ([7.3, 1.0],), np.asarray),
    "decord": ("mp4", "frames_of", ([100, 3],), np.asarray),
    "soundfile": ("flac", "stretch", (16_000 * 30, 1600), lambda found: found[0]),
    "h5py": ("h5", "rows", (100, 120), np.asarray),
    "zipfile": ("zip", "entry", ("57.bin",), lambda found: np.frombuffer(found, np.uint8)),
    "pillow": ("tiff", "size_of", (), np.asarray),
}
# They read all of a member.
WHOLE = {"decord"}


@pytest.mark.parametrize("name", RECIPES)
def test_recipes(opened, members, name):
    """The result is that of the decoder on the bytes in memory; of a remote member no more is read than it asks for."""
    extension, function, arguments, values = RECIPES[name]
    names = {"av": av, "soundfile": soundfile, "h5py": h5py, "zipfile": zipfile, "Image": Image}
    if name == "torchcodec":
        tools.program("ffmpeg")
        names["VideoDecoder"] = pytest.importorskip("torchcodec.decoders").VideoDecoder
    if name == "decord":
        names["decord"] = pytest.importorskip("decord")
    (block,) = at(f"{GUIDE}#{name}")
    recipe = execute(block, {}, **names)[function]
    wanted = values(recipe(io.BytesIO(members[extension]), *arguments))
    file, events = opened(extension)
    asked = Asked(file)
    assert np.array_equal(values(recipe(asked, *arguments)), wanted)
    if name not in WHOLE:
        assert asked.count < len(members[extension]) / 4
    read = sum(event.size_bytes for event in events if isinstance(event, RangesRead))
    assert read <= max(1.2 * asked.count, asked.count + (128 << 10)) + 4096


@pytest.mark.parametrize("options", [{}, {"movflags": "faststart"}, {"movflags": "frag_keyframe+empty_moov"}])
def test_each_frame_of_each_kind_of_film(tmp_path, options):
    """Index at the end, at the beginning, in fragments; each frame, in random order, is that of the bytes."""
    data = film(tmp_path / "b.mp4", frames=30, **options)
    (tmp_path / "b.tar").write_bytes(pack([("a.mp4", data), ("b.mp4", data)]))
    dataset = wids.ShardListDataset([(str(tmp_path / "b.tar"), 2)], fields=[wids.lazy("mp4")])
    wanted = _frames(io.BytesIO(data))
    assert len(wanted) == 30
    for k in (0, 1):
        assert np.array_equal(_frames(dataset[k][".mp4"]), wanted)


def _frames(file):
    with av.open(file) as container:
        return np.stack([frame.to_ndarray(format="gray") for frame in container.decode(video=0)])


def test_the_guide(tmp_path, members):
    """Its program, and parts."""
    (tmp_path / "a.tar").write_bytes(
        pack([(f"{k}.{name}", data) for k in range(8) for name, data in (("mp4", members["mp4"]), ("cls", b"%d" % k))])
    )
    shards = [{"url": "a.tar", "nsamples": 8}]
    index = write_json(tmp_path / "train.json", {"wids_version": 1, "shardlist": shards})
    (block,) = at(f"{GUIDE}#video-and-long-members")
    names = execute(block, {'"train.json"': repr(str(index))})
    assert (names["frame"].shape, names["label"]) == ((120, 160, 3), 0)
    (block,) = at(f"{GUIDE}#parts-without-a-decoder")
    names = execute(block, {}, dataset=names["dataset"])
    assert names["head"] == members["mp4"][:4096]
    assert names["heads"] == [members["mp4"][:4096]] * 4

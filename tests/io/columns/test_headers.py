"""Columns of videos, and what is read of long members; of pictures and sounds more is in `test_create`."""

import io

import numpy as np
import pytest
from PIL import Image

import wids
from tests.support import columns as made
from tests.support.shards import write_tar
from wids import testing
from wids.columns import extract
from wids.columns.create import create_columns
from wids.columns.headers import PartFile, find_reader
from wids.columns.spec import parse_spec
from wids.core.readers.local import LocalReader
from wids.errors import FetchError, JobError
from wids.jobs.index_create import IndexSettings, create_index

NAMES = ("width", "height", "frames", "fps", "duration", "codec")


def video(folder, form="mp4", codec="mpeg4", *, size=(64, 48), frames=30, fps=30, sound=0, **options):
    """The bytes of a video of grey pictures, with so many seconds of sound; without frames the sound alone."""
    av = pytest.importorskip("av", reason="av is not installed")
    path = folder / f"made.{form}"
    with av.open(path, "w", format=form, options=options) as container:
        pictures, tone = None, None
        if frames:
            pictures = container.add_stream(codec, rate=fps, width=size[0], height=size[1], pix_fmt="yuv420p")
        if sound:
            tone = container.add_stream("aac", rate=8000, layout="mono")
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(np.full((size[1], size[0], 3), number * 8 % 256, np.uint8), "rgb24")
            frame.pts = number
            container.mux(pictures.encode(frame))
        for start in range(0, int(sound * 8000), 1024):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
            frame.rate, frame.pts = 8000, start
            container.mux(tone.encode(frame))
        for stream in filter(None, (pictures, tone)):
            container.mux(stream.encode(None))
    return path.read_bytes()


def make(folder, members, *, missing="error", **asked):
    """The rows of the columns of a shard with these members, and what the job says."""
    write_tar(folder / "s.tar", members)
    asked = asked or {"videos": [".mp4"]}
    told = create_columns([str(folder / "s.tar")], str(folder / "s.parquet"), parse_spec(missing=missing, **asked))
    return made.read_rows(told.output), told


def values(rows, names=NAMES):
    """These columns of each row."""
    return [tuple(row[name] for name in names) for row in rows]


def test_properties_of_videos(tmp_path):
    """Of whatever a sample has, in any case; without a video null, and what a header does not say."""
    members = [
        ("a.mp4", video(tmp_path)),
        ("b.MP4", video(tmp_path, movflags="+faststart", fps=25, size=(32, 16))),
        ("c.txt", b"x"),
        ("d.webm", video(tmp_path, "webm", "libvpx", fps=10)),
        ("e.mp4", video(tmp_path, movflags="+frag_keyframe+empty_moov")),
        ("f.mp4", video(tmp_path, sound=3)),
        ("g.avi", video(tmp_path, "avi")),
        ("h.mkv", video(tmp_path, "matroska", sound=0.5)),
    ]
    rows, told = make(tmp_path, members, videos=[".mp4;.webm;.avi;.mkv"])
    assert values(rows) == [
        (64, 48, 30, 30.0, 1.0, "mpeg4"),
        (32, 16, 30, 25.0, 1.2, "mpeg4"),
        (None,) * 6,
        (64, 48, None, 10.0, 3.0, "vp8"),
        (64, 48, None, 30.0, 1.0, "mpeg4"),
        (64, 48, 30, 30.0, 1.0, "mpeg4"),
        (64, 48, 30, 30.0, 1.0, "mpeg4"),
        (64, 48, None, 30.0, rows[7]["duration"], "mpeg4"),
    ]
    assert rows[7]["duration"] == pytest.approx(1, abs=0.1)
    kinds = [told.columns[name] for name in NAMES]
    assert (kinds, told.unparsed) == (["int64", "int64", "int64", "double", "double", "string"], 0)


def test_several_videos_of_a_sample(tmp_path):
    """Each with names of its own."""
    data = video(tmp_path)
    members = [("a.mp4", data), ("a.cam.mp4", video(tmp_path, size=(16, 16)))]
    rows, _ = make(tmp_path, members, videos=[".mp4", ".cam.mp4=cam"])
    assert values(rows, ("width", "cam_width", "codec", "cam_codec")) == [(64, 16, "mpeg4", "mpeg4")]


def test_a_key_that_is_not_text(tmp_path):
    """Has a row like others, and is named as others are."""
    key = b"\xff".decode("utf-8", "surrogateescape")
    rows, _ = make(tmp_path, [(f"{key}.mp4", video(tmp_path))])
    assert (rows[0]["key"], rows[0]["width"]) == ("\\udcff", 64)
    with pytest.raises(JobError, match=r"\.mp4 is no video"):
        make(tmp_path, [(f"{key}.mp4", b"x")])


def test_what_is_no_video(tmp_path):
    """It fails its shard, or is null and named; a playlist is none, so that nothing is opened that it names."""
    whole = video(tmp_path)
    playlist = b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile:///made.ts\n#EXT-X-ENDLIST\n"
    for data in (
        *(b"", b"\0", b"a text\n" * 100, playlist, b"ffconcat version 1.0\nfile made.mp4\n", bytes(1 << 20)),
        *(whole[: len(whole) // 2], whole[:40]),
    ):
        with pytest.raises(JobError, match=r"sample 'a': \.mp4 is no video that can be read \(.*formats are"):
            make(tmp_path, [("a.mp4", data), ("b.mp4", whole)])
    for data, words in (
        (video(tmp_path, frames=0, sound=1), "it has sound alone"),
        (video(tmp_path, codec="libvpx-vp9", frames=2).replace(b"vp09", b"zz99"), "does not know its codec"),
        (whole[:-1], "its header is cut short, after .* bytes"),
    ):
        with pytest.raises(JobError, match=rf"sample 'a': \.mp4 is no video that can be read \(.*{words}"):
            make(tmp_path, [("a.mp4", data), ("b.mp4", whole)])
        rows, told = make(tmp_path, [("a.mp4", data), ("b.mp4", whole)], missing="null")
        assert values(rows) == [(None,) * 6, (64, 48, 30, 30.0, 1.0, "mpeg4")]
        assert (told.unparsed, told.nulls) == (1, dict.fromkeys(NAMES, 1))


def test_a_picture_on_the_cover_is_no_video(tmp_path):
    """A song with a cover has a stream of one picture, which is not meant."""
    av = pytest.importorskip("av", reason="av is not installed")
    with av.open(tmp_path / "song.mp4", "w") as container:
        tone = container.add_stream("aac", rate=8000, layout="mono")
        cover = container.add_stream("mjpeg", rate=1, width=16, height=16, pix_fmt="yuvj420p")
        cover.disposition = av.stream.Disposition.attached_pic.value
        frame = av.VideoFrame.from_ndarray(np.zeros((24, 16), np.uint8), "yuvj420p")
        container.mux(cover.encode(frame))
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        sound.rate = 8000
        container.mux(tone.encode(sound))
        container.mux(tone.encode(None))
    with pytest.raises(JobError, match="it has sound alone"):
        make(tmp_path, [("a.mp4", (tmp_path / "song.mp4").read_bytes())])


# --- long members

PADDING = (5_000_000).to_bytes(4, "big") + b"free" + bytes(4_999_992)


def long_video(folder, **options):
    """A video of 5 MB, whose header is at its end, or at its beginning."""
    data = video(folder, **options)
    if options:
        return data + PADDING
    at = data.index(b"moov") - 4
    return data[:at] + PADDING + data[at:]


def long_picture(form):
    """A picture of 3 MB."""
    data = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (1000, 1000, 3), np.uint8)).save(data, form)
    return data.getvalue() + bytes(2_000_000)


def long_sound(form, subtype):
    """A sound of 14 seconds."""
    soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed")
    data = io.BytesIO()
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, (14 * 48_000, 2))
    soundfile.write(data, noise, 48_000, format=form, subtype=subtype)
    return data.getvalue()


def long_members(folder):
    """Name -> bytes, how its columns are asked for, the value of a column."""
    return {
        "end.mp4": (long_video(folder), "videos", ("width", 64)),
        "start.mp4": (long_video(folder, movflags="+faststart"), "videos", ("width", 64)),
        "a.wav": (long_sound("WAV", "PCM_16"), "sounds", ("duration", 14.0)),
        "a.flac": (long_sound("FLAC", "PCM_16"), "sounds", ("duration", 14.0)),
        "a.png": (long_picture("PNG"), "pictures", ("width", 1000)),
        "a.jpg": (long_picture("JPEG"), "pictures", ("width", 1000)),
    }


@pytest.fixture
def published(tmp_path):
    """A function: members -> the URL of an index of a shard of them, and the server."""
    with testing.Server(tmp_path / "www") as server:

        def publish(members):
            write_tar(tmp_path / "www/s.tar", members)
            create_index([str(tmp_path / "www")], str(tmp_path / "www/t.json"), settings=IndexSettings(has_tables=True))
            server.sent_bytes.clear()
            return f"{server.url}/t.json"

        yield publish, server


def test_bytes_of_long_members(tmp_path, published, monkeypatch):
    """Of members of megabytes, on the disk and on a server, less than 150 kB each are read."""
    real, sizes = LocalReader.pread_all, []

    def pread_all(self, spans):
        sizes.extend(size for _, size in spans)
        return real(self, spans)

    monkeypatch.setattr(LocalReader, "pread_all", pread_all)
    publish, server = published
    for name, (data, how, (column, value)) in long_members(tmp_path).items():
        extension = f".{name.partition('.')[2]}"
        url = publish([(f"k{k}{extension}", data) for k in range(4)])
        sizes.clear()
        for index in (str(tmp_path / "www/t.json"), url):
            told = create_columns(index, str(tmp_path / "c.parquet"), parse_spec(**{how: extension}), overwrite=True)
            assert [row[column] for row in made.read_rows(told.output)] == [value] * 4, name
            (tmp_path / "c.parquet").unlink()
        assert 4 * 1000 < sum(sizes) < 4 * 150_000, name
        assert 4 * 1000 < server.sent_bytes.total() < 4 * 150_000, name
        assert told.read_bytes <= server.sent_bytes.total()


def test_short_members_are_one_request(tmp_path, published):
    """Of a server, all of them that are beside one another come together, whole."""
    publish, server = published
    data = video(tmp_path) + PADDING[:8] + bytes(200_000)
    url = publish([(f"k{k}.mp4", data) for k in range(20)])
    told = create_columns(url, str(tmp_path / "c.parquet"), parse_spec(videos=".mp4"))
    assert [row["width"] for row in made.read_rows(told.output)] == [64] * 20
    assert told.requests <= 3
    assert server.sent_bytes.total() < 20 * 210_000


def test_batches_of_bytes(tmp_path, published, monkeypatch):
    """Samples are read together until there are enough bytes, also beside members that are read whole."""
    publish, _ = published
    data = long_video(tmp_path)
    members = [each for k in range(9) for each in ((f"k{k}.mp4", data), (f"k{k}.txt", b"%d" % k * 5000))]
    url = publish(members)
    monkeypatch.setattr(extract, "_BATCH_BYTES", 150_000)
    monkeypatch.setattr(extract, "_LOOK", 2)
    for index in (str(tmp_path / "www/t.json"), url):
        told = create_columns(index, str(tmp_path / "c.parquet"), parse_spec(videos=".mp4", texts=".txt"))
        rows = made.read_rows(told.output)
        assert [(row["width"], row["txt"]) for row in rows] == [(64, str(k) * 5000) for k in range(9)]
        (tmp_path / "c.parquet").unlink()


def test_two_rules_of_one_member(tmp_path):
    """A long member of which a header is asked for twice, or that is read as a whole, too."""
    data = long_sound("WAV", "PCM_16")
    rows, _ = make(tmp_path, [("a.wav", data)], sounds=[".wav", ".wav;.flac=again"])
    assert (rows[0]["duration"], rows[0]["again_duration"]) == (14.0, 14.0)
    rows, told = make(tmp_path, [("a.wav", data), ("b.txt", b"x")], sounds=".wav", texts=".wav=text", missing="null")
    assert [(row["duration"], row["text"]) for row in rows] == [(14.0, None), (None, None)]
    assert told.unparsed == 1


@pytest.mark.parametrize("how", ["picture", "sound", "video"])
def test_errors_of_reads_are_none_of_the_member(how, capfd):
    """Whatever a decoder makes of a read that failed, its error is raised, once it has returned."""
    form = {"picture": "a.jpg", "sound": "a.wav", "video": None}[how]
    data = long_members_of(form) if form else None
    if how == "video":
        pytest.importorskip("av", reason="av is not installed")
        data = bytes.fromhex("00000018") + b"ftypmp42" + bytes(4) + b"mp42isom" + PADDING

    def fail():
        raise FetchError("no answer", url="http://h/a.tar")

    with pytest.raises(FetchError, match="no answer"):
        find_reader(how)(PartFile(data[:12], len(data), fail))
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("is_remote", [False, True])
def test_reads_that_fail_make_no_nulls(tmp_path, published, monkeypatch, is_remote):
    """They fail their shard, also where a member that cannot be parsed would be null."""

    def fail(self, size=-1):
        raise FetchError(f"no answer for {self.name}", url=self.url)

    publish, _ = published
    key = b"\xff".decode("utf-8", "surrogateescape")
    url = publish([(f"{key}.MP4", long_video(tmp_path))])
    spec, place = parse_spec(videos=".webm;.mp4", missing="null"), str(tmp_path / "c.parquet")
    with monkeypatch.context() as patched:
        patched.setattr(wids.MemberFile, "read", fail)
        with pytest.raises(JobError, match="no answer for"):
            create_columns(url if is_remote else str(tmp_path / "www/t.json"), place, spec)
    told = create_columns(url if is_remote else str(tmp_path / "www/t.json"), place, spec)
    assert [(row["key"], row["width"]) for row in made.read_rows(told.output)] == [("\\udcff", 64)]


def test_servers_that_tell_no_versions_or_give_no_ranges(tmp_path, published):
    """Long members are read with more requests, or of a copy of the shard."""
    publish, server = published
    url = publish([(f"k{k}.mp4", long_video(tmp_path)) for k in range(3)])
    for has_ranges in (True, False):
        server.validators, server.has_ranges = (), has_ranges
        told = create_columns(url, str(tmp_path / "c.parquet"), parse_spec(videos=".mp4"))
        assert [row["frames"] for row in made.read_rows(told.output)] == [30] * 3
        (tmp_path / "c.parquet").unlink()


def long_members_of(name):
    """The bytes of one of them, which needs no folder."""
    return long_picture("JPEG") if name == "a.jpg" else long_sound("WAV", "PCM_16")


def test_part_files_are_files():
    """At each position, and across the end of the part that is there; before the rest is read, it is not opened."""
    data, opened = bytes(range(200)), []

    def open_rest():
        opened.append(1)
        return io.BytesIO(data)

    file = PartFile(data[:50], len(data), open_rest)
    assert (file.read(20), file.seek(-5, 1), file.read(35), opened) == (data[:20], 15, data[15:50], [])
    assert (file.seek(40), file.read(20), file.tell()) == (40, data[40:60], 60)
    assert (file.seek(-10, 2), file.read(20), file.read(1)) == (190, data[190:], b"")
    assert (file.seek(300), file.read(5), file.seek(0), file.read()) == (300, b"", 0, data)
    assert opened == [1]
    assert io.BufferedReader(file, 7).seek(0, 2) == 200

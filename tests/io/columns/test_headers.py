"""Columns of videos, whose headers are read; those of pictures and sounds are in `test_create`."""

import numpy as np
import pytest

from tests.support import columns as made
from tests.support.shards import write_tar
from wids.columns.create import create_columns
from wids.columns.spec import parse_spec
from wids.errors import JobError

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
        cover.disposition = av.stream.Disposition.attached_pic
        frame = av.VideoFrame.from_ndarray(np.zeros((24, 16), np.uint8), "yuvj420p")
        container.mux(cover.encode(frame))
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        sound.rate = 8000
        container.mux(tone.encode(sound))
        container.mux(tone.encode(None))
    with pytest.raises(JobError, match="it has sound alone"):
        make(tmp_path, [("a.mp4", (tmp_path / "song.mp4").read_bytes())])

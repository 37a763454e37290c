"""Pictures in Parquet and Arrow files, and columns of those."""

import os
import struct
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import backends
from tests.support.packing import PICTURES, list_rows, pack, pack_rows, picture_rows, put, shown, write_arrow
from wids.errors import InputError, SampleError, WidsError
from wids.jobs.runner import RunOptions
from wids.writing.pack.run import pack_listing
from wids.writing.pack.shard import PackSettings


def write_pictures(path, *, kind="struct", files=False):
    """A Parquet of seven pictures in row groups of three, as bytes or as the Hub's struct; or one that names files."""
    if kind == "struct":
        cells = [{"bytes": data, "path": f"{k}.png"} for k, data in enumerate(PICTURES)]
        if files:
            cells[4] = {"bytes": None, "path": "four.png"}
        column = pa.array(cells, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    else:
        kinds = {"large": pa.large_binary(), "view": getattr(pa, "binary_view", pa.binary)()}
        column = pa.array(PICTURES, kinds.get(kind, pa.binary()))
        column = column.dictionary_encode() if kind == "dictionary" else column
    table = pa.table({"image": column, "label": [f"{'ab'[k % 2]}" for k in range(7)]})
    pq.write_table(table, path, row_group_size=3)
    return str(path)


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    """Without pyarrow, Parquet is refused with what to install; a column that lacks is told."""
    pq.write_table(pa.Table.from_pylist([{"a": 1}]), tmp_path / "r.parquet")
    with pytest.raises(WidsError, match="no column 'b'; it has a"):
        pack_rows(tmp_path / "r.parquet", tmp_path / "out/m-%d.tar", ".cls=b")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(WidsError, match=r"pip install 'wids\[parquet\]'"):
        pack_rows(tmp_path / "r.parquet", tmp_path / "out/m-%d.tar", ".cls=a")


@pytest.mark.parametrize(
    ("kind", "is_remote"),
    [("struct", False), ("struct", True), ("binary", False), ("large", False), ("view", False), ("dictionary", False)],
)
def test_pictures_in_parquet(tmp_path, kind, is_remote):
    """Bytes in a column are a field's bytes, whatever writes them and in which order."""
    path = write_pictures(tmp_path / "rows.parquet", kind=kind)
    if is_remote:
        path = backends.memory(f"pictures-{kind}").add("rows.parquet", Path(path).read_bytes())
    fields = (".png=image", ".cls=label")
    outcome = pack_rows(path, tmp_path / "a/x-%d.tar", *fields, samples=2)
    assert shown(outcome.index) == [
        (f"{k:09d}", {".png": data, ".cls": b"%d" % (k % 2)}) for k, data in enumerate(PICTURES)
    ]
    assert outcome.notes == []
    outcome = pack_rows(path, tmp_path / "b/x-%d.tar", *fields, size=1 << 14, seed=1)
    assert sorted(fields[".png"] for _, fields in shown(outcome.index)) == sorted(PICTURES)
    assert max(os.path.getsize(tmp_path / f"b/x-{k}.tar") for k in range(outcome.shards)) <= 1 << 14


def test_pictures_in_several_parquets_from_processes(tmp_path):
    """Several files by a glob, from two processes, and a name that says another kind is told."""
    for k in range(3):
        write_pictures(tmp_path / f"part-{k}.parquet")
    options = {"fields": [".jpg=image", ".cls=label"], "samples": 4, "engine": RunOptions(jobs=2)}
    outcome = pack(f"{tmp_path}/part-*.parquet", tmp_path / "out/x-%d.tar", **options)
    [note] = outcome.notes
    assert "column 'image' begins with a .png, which is called .jpg as you said" in note
    assert [fields[".jpg"] for _, fields in shown(outcome.index)] == PICTURES * 3


def test_pictures_that_parquet_names_or_lacks(tmp_path):
    """A struct without bytes names a file; a row with neither is a problem of that row, and shows no picture."""
    put(tmp_path, {"four.png": "from the file"})
    path = write_pictures(tmp_path / "rows.parquet", files=True)
    outcome = pack_rows(path, tmp_path / "a/x-%d.tar", ".png=image")
    assert [fields[".png"] for _, fields in shown(outcome.index)] == [*PICTURES[:4], b"from the file", *PICTURES[5:]]
    pq.write_table(pa.table({"image": [PICTURES[0], None, PICTURES[2]]}), path)
    with pytest.raises(SampleError, match=r"rows.parquet, row 1: column 'image' is empty"):
        pack_rows(path, tmp_path / "b/x-%d.tar", ".png=image")
    with pytest.raises(SampleError, match=r"rows.parquet, row 0: column 'image' holds 4,200 bytes that are no text"):
        pack_rows(path, tmp_path / "b/x-%d.tar", ".txt=image")
    put(tmp_path, {"long.csv": f"image\n{'x' * 9000}\n"})
    with pytest.raises(SampleError, match=r"File name too long") as caught:
        pack_rows(tmp_path / "long.csv", tmp_path / "b/x-%d.tar", ".png=image")
    assert len(str(caught.value)) < 800


def test_empty_pictures_in_parquet(tmp_path):
    """Bytes of no length are no picture, as an empty file is none: an error, or left out and named."""
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"image": [PICTURES[0], b"", PICTURES[2]]}), path)
    with pytest.raises(SampleError, match=r"column 'image', row 1 of row group 0: is empty, which no \.png is"):
        pack_rows(path, tmp_path / "a/x-%d.tar", ".png=image")
    outcome = pack_rows(path, tmp_path / "a/x-%d.tar", ".png=image", skips_errors=True)
    assert (outcome.samples, len(outcome.skipped)) == (2, 1)


def test_a_parquet_that_changes_while_it_is_packed(tmp_path):
    """Its pictures are refused then, and a run after that writes what is there."""
    path = write_pictures(tmp_path / "rows.parquet")
    listing = list_rows(path, ".png=image")
    pq.write_table(pa.table({"image": [b"other"]}), path)
    with pytest.raises(SampleError, match="was written to since it was listed"):
        pack_listing(listing, PackSettings(output=str(tmp_path / "out/x-%d.tar")))
    outcome = pack_rows(path, tmp_path / "out/x-%d.tar", ".png=image")
    assert shown(outcome.index) == [("000000000", {".png": b"other"})]


@pytest.mark.parametrize("kind", ["stream", "file", "remote"])
def test_pictures_in_arrow(tmp_path, kind):
    """Arrow is a manifest as Parquet is: streams, files, and those of a server."""
    path = write_arrow(tmp_path / "rows.arrow", picture_rows(), is_stream=kind != "file")
    if kind == "remote":
        path = backends.memory("pictures-arrow").add("rows.arrow", Path(path).read_bytes())
    outcome = pack_rows(path, tmp_path / "out/x-%d.tar", ".png=image", ".txt=text", samples=2)
    assert [fields[".png"] for _, fields in shown(outcome.index)] == PICTURES
    put(tmp_path, {"four.png": "from the file"})
    cells = [{"bytes": data, "path": f"{k}.png"} for k, data in enumerate(PICTURES)]
    cells[4] = {"bytes": None, "path": "four.png"}
    path = write_arrow(tmp_path / "named.arrow", pa.table({"image": cells}))
    outcome = pack_rows(path, tmp_path / "named/x-%d.tar", ".png=image")
    assert shown(outcome.index)[4] == ("000000004", {".png": b"from the file"})


def test_arrow_that_is_damaged(tmp_path):
    """It is an error, wherever the damage is: also in offsets, by which memory of others would be read."""
    data = Path(write_arrow(tmp_path / "rows.arrow", pa.table({"text": ["abcdefgh"] * 4}), rows=4)).read_bytes()
    offsets = struct.pack("<5i", 0, 8, 16, 24, 32)
    assert offsets in data
    for bad in (
        b"",
        b"no Arrow",
        data[: len(data) // 2],
        data.replace(offsets, struct.pack("<5i", 0, 8, 1 << 28, 24, 32)),
    ):
        (tmp_path / "bad.arrow").write_bytes(bad)
        with pytest.raises(InputError, match=r"bad\.arrow: (is no Arrow that can be read|has no rows)"):
            pack_rows(tmp_path / "bad.arrow", tmp_path / "out/x-%d.tar", ".txt=text")


def test_a_killed_run_of_several_manifests_goes_on(tmp_path):
    """Shards whose rows are the same are kept, whichever file they came from."""
    for k in range(2):
        write_pictures(tmp_path / f"{k}.parquet")
    put(tmp_path, {"bad.csv": "image,label\ngone.png,a\n"})
    sources = [str(tmp_path / "0.parquet"), str(tmp_path / "1.parquet"), str(tmp_path / "late.csv")]
    put(tmp_path, {"late.csv": "image,label\nlate.png,a\n", "late.png": "late"})
    listing = list_rows(sources, ".png=image")
    os.rename(tmp_path / "late.png", tmp_path / "away.png")
    with pytest.raises(SampleError, match=r"late.png: cannot be read"):
        pack_listing(listing, PackSettings(output=str(tmp_path / "out/x-%d.tar"), samples=5))
    os.rename(tmp_path / "away.png", tmp_path / "late.png")
    outcome = pack_rows(sources, tmp_path / "out/x-%d.tar", ".png=image", samples=5)
    assert outcome.kept == 2
    assert [fields[".png"] for _, fields in shown(outcome.index)] == [*PICTURES, *PICTURES, b"late"]

"""Folders of MosaicML's streaming and of LitData: their files are packed as they are, by stated rules."""

import io
import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from tests.support.foreign import MDS, ROWS, compress, write_litdata, write_mds
from tests.support.packing import PICTURES, keys_of, pack, put, shown
from wids.errors import DependencyError, InputError, SampleError
from wids.jobs.runner import RunOptions
from wids.writing.pack import chunks


def expected(row):
    """The fields of a row of `ROWS`."""
    caption, picture, label, meta, score = row
    rest = {"caption": caption.decode(), "meta": json.loads(meta), "score": np.frombuffer(score, "<f4").item()}
    return {".png": picture, ".cls": b"%d" % np.frombuffer(label, "<i8").item(), ".json": rest}


def read_json(fields):
    """Fields of a sample, with the value of ``.json``."""
    return {**fields, ".json": json.loads(fields[".json"])} if ".json" in fields else fields


def test_a_dataset_of_mosaicml(tmp_path):
    """Pictures are the same bytes, the label is .cls, all else JSON; a package of theirs is not needed."""
    outcome = pack(write_mds(tmp_path / "mds"), tmp_path / "out/x-%d.tar", samples=4, engine=RunOptions(jobs=2))
    assert outcome.facts[0] == "fields of its columns: .png=image .cls=label .json=caption,meta,score"
    found = [(key, read_json(fields)) for key, fields in shown(outcome.index)]
    assert found == [(f"{k:09d}", expected(row)) for k, row in enumerate(ROWS)]
    assert "streaming" not in sys.modules
    shuffled = pack(str(tmp_path / "mds"), tmp_path / "other/x-%d.tar", seed=1, fields=[".png=image"], key="caption")
    assert sorted(keys_of(shuffled.index)) == sorted(row[0].decode() for row in ROWS)
    one = pack(str(tmp_path / "mds/shard.00001.mds"), tmp_path / "one/x-%d.tar", fields=[".txt=caption"])
    assert [fields for _, fields in shown(one.index)] == [{".txt": row[0]} for row in ROWS[3:6]]
    few = pack(str(tmp_path / "mds"), tmp_path / "few/x-%d.tar", where=("cls = 1",))
    assert (few.samples, few.unmatched) == (2, 5)


@pytest.mark.parametrize("compression", [("zstd", "zstd"), ("gz", "gzip"), ("br", "brotli"), ("bz2", "bz2")])
def test_a_compressed_dataset_of_mosaicml(tmp_path, compression):
    """It is packed as one that is not."""
    outcome = pack(write_mds(tmp_path / "mds", compression=compression), tmp_path / "out/x-%d.tar")
    assert [read_json(fields) for _, fields in shown(outcome.index)] == [expected(row) for row in ROWS]


def test_a_dataset_of_litdata(tmp_path):
    """Likewise; an item that is no dict has numbers for names, and one integer or text beside files says what it is."""
    columns = {"image": "jpeg", "label": "int", "caption": "str", "score": "float", "ok": "bool", "raw": "bytes"}
    tail = [(np.float64(k / 2).tobytes(), bytes([k % 2]), PICTURES[-1 - k]) for k in range(7)]
    rows = [(row[1], row[2], row[0], *more) for row, more in zip(ROWS, tail, strict=True)]
    outcome = pack(write_litdata(tmp_path / "lit", rows, columns), tmp_path / "out/x-%d.tar", samples=4)
    assert outcome.facts[0] == "fields of its columns: .jpg=image .cls=label .png=raw .json=caption,score,ok"
    key, fields = shown(outcome.index)[5]
    assert (key, fields[".jpg"], fields[".cls"], fields[".png"]) == ("000000005", rows[5][0], b"2", rows[5][5])
    assert json.loads(fields[".json"]) == {"caption": "é5", "score": 2.5, "ok": True}
    assert "litdata" not in sys.modules
    pairs = write_litdata(tmp_path / "pairs", [row[:2] for row in rows], {"a": "image:webp", "b": "int"}, names=False)
    assert pack(pairs, tmp_path / "p/x-%d.tar").facts[0] == "fields of its columns: .webp=0 .cls=1"
    texts = write_litdata(tmp_path / "texts", [row[2:3] for row in rows], {"a": "str"}, names=False)
    assert shown(pack(texts, tmp_path / "t/x-%d.tar").index)[6][1] == {".txt": "é6".encode()}


def test_frames_of_litdata(tmp_path):
    """Rows that are compressed some at a time are read as others."""
    folder = write_litdata(tmp_path / "lit", [row[2:0:-1] for row in ROWS], {"y": "int", "image": "png"}, each=7)
    path, offsets = Path(folder, "chunk-0-0.bin"), 4 * 9
    data = path.read_bytes()
    ends = np.frombuffer(data, "<u4", 8, 4) - offsets
    spans = [(offsets + ends[0], offsets + ends[4]), (offsets + ends[4], offsets + ends[7])]
    frames = [compress(data[first:last], "zstd") for first, last in spans]
    head = b"LDFZ01\0\0" + np.array([1, 7, 4, 2, *ends], "<u4").tobytes() + bytes(2 * 24)
    path.write_bytes(head + b"".join(frames))
    index = json.loads(Path(folder, "index.json").read_text())
    index["config"] |= {"compression": "zstd:4", "compression_level": "batch", "compression_batch_size": 4}
    put(folder, {"index.json": json.dumps(index)})
    found = shown(pack(folder, tmp_path / "out/x-%d.tar").index)
    assert [fields for _, fields in found] == [{".cls": b"%d" % (k % 3), ".png": row[1]} for k, row in enumerate(ROWS)]


def test_rows_in_arrow_of_litdata(tmp_path):
    """Items of plain values, which later releases write as an Arrow file at the end, are read from that."""
    columns = {"image": "bytes", "label": "int", "words": "json", "text": "str"}
    folder = write_litdata(tmp_path / "lit", [(b"",) * 4] * 3, columns)
    rows = [{"image": PICTURES[k], "label": k, "words": ["a", "b"][:k], "text": f"t{k}"} for k in range(3)]
    path, sink = Path(folder, "chunk-0-0.bin"), pa.BufferOutputStream()
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    ipc, data = sink.getvalue().to_pybytes(), path.read_bytes()
    path.write_bytes(data + ipc + np.uint32(len(ipc)).tobytes() + b"LDARW01\0")
    found = shown(pack(folder, tmp_path / "out/x-%d.tar").index)
    assert [read_json(fields) for _, fields in found] == [
        {".png": row["image"], ".cls": b"%d" % k, ".json": {"words": row["words"], "text": row["text"]}}
        for k, row in enumerate(rows)
    ]
    path.write_bytes(data + ipc[:-30] + np.uint32(len(ipc) - 30).tobytes() + b"LDARW01\0")
    with pytest.raises(InputError, match="rows in Arrow cannot be read"):
        pack(folder, tmp_path / "no/x-%d.tar")


def test_arrays_are_decoded_by_the_package_that_wrote_them(tmp_path, monkeypatch):
    """They become .npy; without the package the error says how to install it, and other columns are packed."""
    values = [np.arange(3, dtype=np.float32) + k for k in range(7)]
    mds = write_mds(
        tmp_path / "mds",
        [(value.tobytes(), row[1]) for value, row in zip(values, ROWS, strict=True)],
        {"emb": "ndarray:float32:3", "image": "png"},
    )
    lit = write_litdata(
        tmp_path / "lit",
        [(value.tobytes(), b"[1, 2]") for value in values],
        {"emb": "no_header_numpy:1", "tags": "json"},
    )
    for name in ("streaming", "litdata"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DependencyError, match="pip install mosaicml-streaming"):
        pack(mds, tmp_path / "no/x-%d.tar")
    with pytest.raises(DependencyError, match="pip install litdata"):
        pack(lit, tmp_path / "no/x-%d.tar")
    assert pack(mds, tmp_path / "png/x-%d.tar", fields=[".png=image"]).samples == 7

    def decode(encoding, data):
        return np.frombuffer(data, encoding.split(":")[1])

    def serializer(read):
        return SimpleNamespace(setup=lambda _: None, deserialize=read)

    kinds = {"no_header_numpy": serializer(lambda data: np.frombuffer(data, "<f4")), "json": serializer(json.loads)}
    for name, attributes in (
        ("streaming.base.format.mds.encodings", {"mds_decode": decode}),
        ("litdata.streaming.serializers", {"_SERIALIZERS": kinds}),
    ):
        for k in range(name.count(".") + 1):
            part = name.rsplit(".", k)[0]
            monkeypatch.setitem(sys.modules, part, ModuleType(part))
        vars(sys.modules[name]).update(attributes)
    for k, (_, fields) in enumerate(shown(pack(mds, tmp_path / "out/x-%d.tar").index)):
        assert fields[".png"] == ROWS[k][1]
        np.testing.assert_array_equal(np.load(io.BytesIO(fields[".npy"])), values[k], strict=True)
    for k, (_, fields) in enumerate(shown(pack(lit, tmp_path / "lit-out/x-%d.tar").index)):
        assert json.loads(fields[".json"]) == {"tags": [1, 2]}
        np.testing.assert_array_equal(np.load(io.BytesIO(fields[".npy"])), values[k], strict=True)
    monkeypatch.setitem(kinds, "json", serializer(lambda _: 1 / 0))
    with pytest.raises(InputError, match=r"column 'tags' cannot be read \(division by zero\)"):
        pack(lit, tmp_path / "no/x-%d.tar")


def test_what_cannot_be_packed(tmp_path):
    """Pickles, pixels, unknown bytes, encryption, damage and changed files are errors that help."""
    for k, (kind, words) in enumerate(
        {
            "pkl": r"column 'raw' has the encoding 'pkl', which is not packed; name the other ones",
            "pil": r"column 'raw' has the encoding 'pil'.* write what mosaicml-streaming yields with wids\.ShardWriter",
            "bytes": r"column 'raw' holds bytes that are no pictures; .* like \.wav=raw",
        }.items()
    ):
        folder = write_mds(tmp_path / f"{k}", [(b"x", row[0]) for row in ROWS], {"raw": kind, "text": "str"})
        with pytest.raises(InputError, match=words):
            pack(folder, tmp_path / "out/x-%d.tar")
        assert pack(folder, tmp_path / f"{k}-out/x-%d.tar", fields=[".txt=text"]).samples == 7
    with pytest.raises(InputError, match="which is not packed"):
        pack(str(tmp_path / "0"), tmp_path / "out/x-%d.tar", fields=[".json=raw"])
    unread = [
        ({"encryption": "chunk"}, "encrypted"),
        ({"item_loader": "TokensLoader"}, "of 'TokensLoader', as tokens are"),
        ({"compression": "odd"}, "compressed by 'odd'"),
        ({"compression_level": "sample"}, "compressed sample by sample"),
    ]
    for k, (config, kind) in enumerate(unread):
        folder = write_litdata(tmp_path / f"l{k}", [row[:1] for row in ROWS], {"text": "str"}, **config)
        words = f"its files are {kind}, which is not read; read the samples with litdata.StreamingDataset"
        with pytest.raises(InputError, match=words):
            pack(folder, tmp_path / "out/x-%d.tar")
    folder = write_mds(tmp_path / "snappy", compression=("snappy", "gzip"))
    words = r"compressed by 'snappy', which is not read; read the samples with streaming\..* with wids\.ShardWriter"
    with pytest.raises(InputError, match=words):
        pack(folder, tmp_path / "out/x-%d.tar")
    for place in ("s3://bucket/mds/", "https://host.example/lit", "s3://bucket/mds/shard.00000.mds"):
        with pytest.raises(InputError, match="are packed from a local disk, so copy it there"):
            pack(place, tmp_path / "out/x-%d.tar")
    for name in ("../x.mds", "/x.mds"):
        folder = write_mds(tmp_path / "away")
        index = json.loads(Path(folder, "index.json").read_text())
        index["shards"][1]["raw_data"]["basename"] = name
        put(folder, {"index.json": json.dumps(index)})
        with pytest.raises(InputError, match="outside of the folder"):
            pack(folder, tmp_path / "out/x-%d.tar")
    assert not (tmp_path / "out").exists()


def test_damaged_files(tmp_path):
    """A count, a place or a size that is another one, or an early end, is an error, and never another sample."""
    folder = write_mds(tmp_path / "mds", each=7)
    path = Path(folder, "shard.00000.mds")
    data = path.read_bytes()
    first = np.frombuffer(data, "<u4", 1, 4)[0]  # of the first row, where its sizes are
    changes = [data[:place] + b"\xff\xff\xff\x7f" + data[place + 4 :] for place in (*range(0, 36, 4), first, first + 4)]
    for broken in (*changes, b"", data[:3], data[:20], data[:-1]):
        path.write_bytes(broken)
        with pytest.raises(InputError, match=r"is damaged, or not what|cannot be read"):
            pack(folder, tmp_path / "out/x-%d.tar")
    path.write_bytes(data)
    assert pack(folder, tmp_path / "out/x-%d.tar").samples == 7


def test_a_file_that_changes(tmp_path, monkeypatch):
    """A file that is written to between listing and packing is an error."""
    folder, read = write_mds(tmp_path / "mds"), chunks.InChunk.read

    def change(field, session):
        os.utime(field.manifest, ns=(1, 1))
        return read(field, session)

    monkeypatch.setattr(chunks.InChunk, "read", change)
    with pytest.raises(SampleError, match="was written to since it was listed"):
        pack(folder, tmp_path / "out/x-%d.tar")


@pytest.mark.outside
def test_real_datasets_of_mosaicml(tmp_path):
    """What the package writes is packed as it reads it."""
    streaming = pytest.importorskip("streaming", reason="mosaicml-streaming is not installed")
    columns = {**MDS, "image": "bytes", "emb": "ndarray", "fixed": "ndarray:int16:2,2"}
    arrays = [np.random.default_rng(k).random((k + 1, 2)) for k in range(7)]
    fixed = np.arange(4, dtype=np.int16).reshape(2, 2)
    for compression in (None, "zstd", "br:1", "gz:3", "bz2"):
        folder = tmp_path / f"{compression}".replace(":", "-")
        with streaming.MDSWriter(out=str(folder), columns=columns, compression=compression, size_limit=600) as writer:
            for k, row in enumerate(ROWS):
                values = (row[0].decode(), row[1], k % 3, {"a": k}, np.float32(k / 2), arrays[k], fixed)
                writer.write(dict(zip(columns, values, strict=True)))
        for k, (_, fields) in enumerate(shown(pack(str(folder), tmp_path / f"{folder}-out/x-%d.tar").index)):
            np.testing.assert_array_equal(np.load(io.BytesIO(fields.pop(".npy"))), arrays[k], strict=True)
            np.testing.assert_array_equal(np.load(io.BytesIO(fields.pop(".fixed.npy"))), fixed, strict=True)
            assert read_json(fields) == expected(ROWS[k])


@pytest.mark.outside
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves files open
def test_real_datasets_of_litdata(tmp_path):
    """What the package writes is packed as it reads it."""
    litdata = pytest.importorskip("litdata", reason="litdata is not installed")
    for level in (None, "chunk", "batch"):
        folder, how = tmp_path / f"{level}", {"compression": "zstd", "compression_level": level} if level else {}
        litdata.optimize(make_item, list(range(7)), str(folder), chunk_size=3, num_workers=1, **how)
        plain = tmp_path / f"{level}-plain"
        litdata.optimize(make_plain, list(range(7)), str(plain), chunk_size=3, num_workers=1, **how)
        found = shown(pack(str(plain), tmp_path / f"{level}-plain-out/x-%d.tar").index)
        assert [fields for _, fields in found] == [{".png": PICTURES[k], ".cls": b"%d" % k} for k in range(7)]
        theirs = litdata.StreamingDataset(str(folder))
        for k, (_, fields) in enumerate(shown(pack(str(folder), tmp_path / f"{level}-out/x-%d.tar").index)):
            assert fields[".png"] == bytes(theirs[k]["image"]) == PICTURES[k]
            assert fields[".cls"] == b"%d" % theirs[k]["label"]
            assert json.loads(fields[".json"]) == {name: theirs[k][name] for name in ("caption", "ok", "score")}
            np.testing.assert_array_equal(np.load(io.BytesIO(fields[".npy"])), theirs[k]["emb"], strict=True)


def make_item(k):
    """An item of a dataset of LitData."""
    emb = np.arange(4, dtype=np.float32).reshape(2, 2) + k
    return {"image": PICTURES[k], "label": k % 3, "caption": f"text {k}", "ok": k > 2, "score": k / 2, "emb": emb}


def make_plain(k):
    """An item of plain values alone."""
    return {"image": PICTURES[k], "label": k}

"""``wids columns create``: rows against lists of Python, what is read, what is not read again, what fails."""

import errno
import gzip
import io
import json
import math
import os
import random
import resource
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import wids
from tests.support import columns as made
from tests.support.children import child, kill, receive, stop_here
from tests.support.examples import examples
from tests.support.servers import shard_requests
from tests.support.shards import write_tar
from wids import testing
from wids.columns import create as creating
from wids.columns import sql
from wids.columns.create import create_columns
from wids.columns.file import open_table
from wids.columns.spec import ColumnSpec, parse_spec
from wids.core.files import atomic
from wids.errors import ColumnsError, InputError, JobError, OutputError, OutputExistsError
from wids.jobs.index_create import IndexSettings, create_index
from wids.jobs.runner import RunOptions

COUNTS = (3, 0, 5, 2)


@pytest.fixture
def index(tmp_path):
    """An index of four shards, one of them empty."""
    return made.write_dataset(tmp_path / "d", COUNTS)


def table_of(index):
    """Where its columns are."""
    return index.replace(".json", ".columns.parquet")


@pytest.mark.parametrize("options", [RunOptions(jobs=1), RunOptions(jobs=3), RunOptions(engine="processes", jobs=2)])
def test_rows(index, options):
    """One for each sample in index order, typed; what a sample lacks is null."""
    told = made.make_columns(index, engine=options)
    assert made.read_rows(table_of(index)) == made.rows_of(COUNTS)
    assert told.columns == {
        "index": "int64",
        "shard": "int32",
        "row": "int32",
        "key": "string",
        "bytes": "int64",
        "label": "int64",
        "width": "int64",
        "tag": "string",
        "any": "json",
        "caption": "string",
        **dict.fromkeys(("bin_bytes", "cls_bytes", "json_bytes", "txt_bytes"), "int64"),
    }
    assert (told.samples, told.surveyed, told.unchanged, told.failed) == (10, 4, 0, {})
    assert sorted(os.listdir(os.path.dirname(index))) == [
        *(f"s{k}.tar" for k in range(4)),
        *("train.columns.parquet", "train.columns.parquet.state", "train.json"),
    ]


def test_without_members(index):
    """What member tables say is there for free."""
    made.make_columns(index, spec=ColumnSpec())
    asked = ("label", "width", "tag", "any", "caption")
    expected = [{name: value for name, value in row.items() if name not in asked} for row in made.rows_of(COUNTS)]
    assert made.read_rows(table_of(index)) == expected


def test_no_samples(tmp_path):
    """An empty table, of the same columns as far as they are known."""
    told = made.make_columns(made.write_dataset(tmp_path / "d", (0, 0)))
    assert (told.samples, made.read_rows(told.output)) == (0, [])
    assert list(told.columns)[:6] == ["index", "shard", "row", "key", "bytes", "label"]


def test_row_groups_hold_whole_shards(index, monkeypatch):
    """Small shards share one, a large one has several; either is read back by the next run."""
    monkeypatch.setattr(creating, "_GROUP_ROWS", 4)
    made.make_columns(index)
    file = open_table(table_of(index)).file
    assert [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)] == [4, 4, 2]
    file.close()
    made.write_shard_of(os.path.join(os.path.dirname(index), "s3.tar"), 8, 2, payload=9)
    told = made.make_columns(index)
    assert (told.surveyed, told.unchanged) == (1, 3)
    rows = made.rows_of(COUNTS)[:8] + made.rows_of(COUNTS, payload=9)[8:]
    assert made.read_rows(table_of(index)) == rows


def test_keys_of_any_bytes(tmp_path):
    """Bytes that are no UTF-8 are escaped; others stay as they are."""
    write_tar(tmp_path / "s.tar", [("ä.txt", b"x"), (b"\xff".decode("utf-8", "surrogateescape") + ".txt", b"y")])
    told = create_columns([str(tmp_path / "s.tar")], str(tmp_path / "s.parquet"))
    assert [row["key"] for row in made.read_rows(told.output)] == ["ä", "\\udcff"]


def test_many_kinds_of_fields(tmp_path, caplog):
    """Beyond 256 extensions there are no columns of sizes, and it is said."""
    write_tar(tmp_path / "s.tar", [(f"a.{k}", b"x") for k in range(257)])
    told = create_columns([str(tmp_path / "s.tar")], str(tmp_path / "s.parquet"))
    assert list(told.columns) == ["index", "shard", "row", "key", "bytes"]
    assert "no columns of their sizes" in caplog.text


def picture(form, mode, size):
    """The bytes of a picture."""
    data = io.BytesIO()
    Image.new(mode, size).save(data, form)
    return data.getvalue()


def test_properties_of_pictures(tmp_path):
    """Width, height and mode, of whatever a sample has; without a picture null. No pixel is needed."""
    whole = picture("JPEG", "RGB", (640, 480))
    members = [
        *(("a.jpg", whole[:-100]), ("b.PNG", picture("PNG", "P", (3, 5)))),
        *(("c.txt", b"x"), ("d.jpg", picture("JPEG", "L", (1, 2)))),
    ]
    write_tar(tmp_path / "s.tar", members)
    asked, output = parse_spec(pictures=[".jpg;.png"]), str(tmp_path / "s.parquet")
    told = create_columns([str(tmp_path / "s.tar")], output, asked)
    rows = [tuple(row[name] for name in ("width", "height", "mode")) for row in made.read_rows(told.output)]
    assert rows == [(640, 480, "RGB"), (3, 5, "P"), (None, None, None), (1, 2, "L")]
    assert (told.columns["width"], told.columns["mode"], told.unparsed) == ("int64", "string", 0)
    assert create_columns([str(tmp_path / "s.tar")], output, asked).surveyed == 0


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"", "it is empty"), (b"GIF", "not a JPEG"), (picture("PNG", "L", (9, 9))[:20], "Truncated|not a JPEG")],
)
def test_what_is_no_picture(tmp_path, data, words):
    """It fails its shard, or is null and named."""
    write_tar(tmp_path / "s.tar", [("a.png", data), ("b.png", picture("PNG", "L", (7, 8)))])
    output = str(tmp_path / "s.parquet")
    with pytest.raises(JobError, match=f"'a': .png is no picture that can be read .*({words})"):
        create_columns([str(tmp_path / "s.tar")], output, parse_spec(pictures=[".png"]))
    told = create_columns([str(tmp_path / "s.tar")], output, parse_spec(pictures=[".png"], missing="null"))
    assert [row["width"] for row in made.read_rows(told.output)] == [None, 7]
    assert (told.unparsed, told.nulls) == (1, {"width": 1, "height": 1, "mode": 1})


def sound(form, kind, *, rate=8000, channels=2):
    """The bytes of a sound of half a second."""
    soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed")
    data = io.BytesIO()
    soundfile.write(data, np.zeros((rate // 2, channels), np.float32), rate, format=form, subtype=kind)
    return data.getvalue()


def test_properties_of_sounds(tmp_path):
    """Duration in seconds, rate and channels, of whatever a sample has; a stream without an end has no duration."""
    streamed = bytearray(sound("FLAC", "PCM_16"))
    streamed[21:26] = bytes([streamed[21] & 0xF0, 0, 0, 0, 0])  # the number of samples, of 36 bits
    members = [
        *(("a.wav", sound("WAV", "PCM_16", rate=16_000)), ("b.FLAC", sound("FLAC", "PCM_24", channels=1))),
        *(("c.txt", b"x"), ("d.flac", bytes(streamed)), ("e.ogg", sound("OGG", "VORBIS", rate=48_000))),
        ("f.mp3", sound("MP3", "MPEG_LAYER_III", rate=44_100, channels=1)),
    ]
    write_tar(tmp_path / "s.tar", members)
    asked = parse_spec(sounds=[".wav;.flac;.ogg;.mp3"])
    told = create_columns([str(tmp_path / "s.tar")], str(tmp_path / "s.parquet"), asked)
    rows = [tuple(row[name] for name in ("duration", "sample_rate", "channels")) for row in made.read_rows(told.output)]
    assert rows == [
        *((0.5, 16_000, 2), (0.5, 8000, 1), (None, None, None)),
        *((None, 8000, 2), (0.5, 48_000, 2), (0.5, 44_100, 1)),
    ]
    assert (told.columns["duration"], told.columns["channels"], told.unparsed) == ("double", "int64", 0)


@pytest.mark.parametrize("data", [b"", b"RIFF", b"no sound"])
def test_what_is_no_sound(tmp_path, data):
    """It fails its shard, or is null and named."""
    write_tar(tmp_path / "s.tar", [("a.wav", data), ("b.wav", sound("WAV", "PCM_16"))])
    output = str(tmp_path / "s.parquet")
    with pytest.raises(JobError, match=r"'a': \.wav is no sound that can be read \(.*ormat.*\)"):
        create_columns([str(tmp_path / "s.tar")], output, parse_spec(sounds=[".wav"]))
    told = create_columns([str(tmp_path / "s.tar")], output, parse_spec(sounds=[".wav"], missing="null"))
    assert [row["duration"] for row in made.read_rows(told.output)] == [None, 0.5]
    assert (told.unparsed, told.nulls) == (1, {"duration": 1, "sample_rate": 1, "channels": 1})


def test_types_follow_all_shards(tmp_path):
    """A column is mixed as long as one shard makes it so, in whatever order shards change."""
    directory = tmp_path / "d"
    spec = parse_spec(jsons=[".json:v"])

    def put(k, *values):
        write_tar(
            directory / f"s{k}.tar", [(f"{k}{i}.json", json.dumps({"v": v}).encode()) for i, v in enumerate(values)]
        )

    def make():
        index = [(str(directory / f"s{k}.tar"), 2) for k in range(2)]
        told = create_columns(index, str(directory / "c.parquet"), spec)
        return told.columns["v"], [row["v"] for row in made.read_rows(told.output)], told.surveyed

    put(0, 1, 2)
    put(1, 3, None)
    assert make() == ("int64", [1, 2, 3, None], 2)
    put(1, 3.5, 4)
    assert make() == ("double", [1.0, 2.0, 3.5, 4.0], 1)
    put(1, "a", {"b": 1.0})
    assert make() == ("json", ["1", "2", '"a"', '{"b": 1.0}'], 1)
    put(1, 2**53 + 1, 4)
    assert make() == ("int64", [1, 2, 2**53 + 1, 4], 1)


def make(directory, **asked):
    """Make the columns of the index in a directory."""
    output = str(directory / "train.columns.parquet")
    return create_columns(str(directory / "train.json"), output, parse_spec(**asked))


def test_fields_in_any_case(tmp_path):
    """Extensions that differ in case alone are one field: one column of sizes, one of values, whatever is asked for."""
    members = {}
    for g in range(10):
        image, label = (".JPG", ".CLS") if g in (0, 7) else (".jpg", ".cls")
        members |= {f"k{g}{image}": bytes(g + 1), f"k{g}{label}": b"%d" % g}
    items = list(members.items())
    for k, part in enumerate((items[:6], items[6:])):
        write_tar(tmp_path / f"s{k}.tar", part)
    create_index([str(tmp_path)], str(tmp_path / "train.json"))
    dataset = wids.ShardListDataset(tmp_path / "train.json")
    told = make(tmp_path, fields=[".cls=label", ".Cls=again"])
    assert (told.empty, told.nulls, told.doubled) == ({}, {}, 0)
    rows = made.read_rows(told.output)
    assert [row["label"] for row in rows] == [row["again"] for row in rows] == list(range(10))
    assert [row["jpg_bytes"] for row in rows] == list(range(1, 11))
    assert not any("JPG" in name or name.endswith("_2") for name in rows[0])
    assert len(dataset.where("jpg_bytes >= 1")) == 10
    assert len(dataset.where("JPG_BYTES >= 1 and label <= 8")) == 9


def test_a_field_that_a_sample_has_twice(tmp_path):
    """In upper and lower case: its sizes are added, and counted; which of the two is its value nobody knows."""
    write_tar(tmp_path / "s0.tar", {"a.cls": b"1", "a.CLS": b"22", "b.CLS": b"3", "c.txt": b"x"})
    create_index([str(tmp_path)], str(tmp_path / "train.json"))
    told = make(tmp_path)
    assert told.doubled == 1
    assert [row["cls_bytes"] for row in made.read_rows(told.output)] == [3, 1, None]
    with pytest.raises(
        JobError, match=r"sample 'a': \.\w+ is no .* \(the sample has \.\w+, too, and they are one field\)"
    ):
        make(tmp_path, fields=[".cls=label"])
    told = make(tmp_path, fields=[".cls=label"], missing="null")
    assert (told.unparsed, told.nulls) == (1, {"label": 2})
    assert [row["label"] for row in made.read_rows(told.output)] == [None, 3, None]


def test_what_is_not_there_is_counted(tmp_path):
    """Values that samples lack, and those that are no numbers, by column."""
    texts = ['{"w": 1, "m": {"t": 1}}', '{"w": NaN}', '{"w": null, "m": "text"}', "{}", '{"w": 2.5, "m": {}}']
    for k, part in enumerate((texts[:2], texts[2:])):
        write_tar(tmp_path / f"s{k}.tar", {f"k{k}{g}.json": text.encode() for g, text in enumerate(part)})
    create_index([str(tmp_path)], str(tmp_path / "train.json"))
    for surveyed in (2, 0):  # also where no shard is read again
        told = make(tmp_path, jsons=[".json:w,m.t=t"], texts=[".json=whole"])
        assert (told.surveyed, told.nulls, told.nans) == (surveyed, {"w": 2, "t": 4}, {"w": 1})


def test_nan_within_json_is_counted(tmp_path):
    """Its text has words that JSON lacks, however deep it is."""
    texts = [
        '{"v": {"a": [1, {"b": NaN}]}}',
        '{"v": [NaN, NaN]}',
        '{"v": NaN}',
        '{"v": "NaN"}',
        '{"v": [1e400, "NaN"]}',
    ]
    write_tar(tmp_path / "s0.tar", {f"k{g}.json": text.encode() for g, text in enumerate(texts)})
    create_index([str(tmp_path)], str(tmp_path / "train.json"))
    told = make(tmp_path, jsons=[".json:v"], fields=[".json=whole"])
    assert (told.columns["v"], told.nans) == ("json", {"v": 3, "whole": 3})


# --- again


def test_a_second_run_reads_nothing(index):
    """The table is not even written again; other columns, or a lost state, are read anew."""
    made.make_columns(index)
    before = os.stat(table_of(index))
    told = made.make_columns(index)
    assert (told.surveyed, told.unchanged) == (0, 4)
    assert os.stat(table_of(index)).st_ino == before.st_ino
    assert made.make_columns(index, spec=parse_spec(fields=[".cls=other"], texts=[".bin"])).surveyed == 4
    assert made.make_columns(index, drop=["other", "bin"]).surveyed == 0
    os.unlink(table_of(index) + ".state")
    assert made.make_columns(index).surveyed == 4
    assert made.read_rows(table_of(index)) == made.rows_of(COUNTS)


def test_earlier_columns_stay(index):
    """In any order of runs, the table is what one run with all rules makes; only what a shard lacks is read of it."""
    whole = index.replace("train.json", "whole.columns.parquet")
    made.make_columns(index, output=whole)
    told = made.make_columns(index, spec=parse_spec(fields=[".cls=label"]))
    assert (told.surveyed, told.kept) == (4, [])
    told = made.make_columns(index, spec=parse_spec(jsons=[".json:width,meta.tag=tag,any"]))
    assert (told.surveyed, told.kept, told.changed, told.dropped) == (4, ["label"], {}, [])
    assert (told.nulls, list(told.columns)[5:9]) == ({"width": 4, "tag": 4, "any": 4}, ["label", "width", "tag", "any"])
    told = made.make_columns(index, spec=parse_spec(texts=[".txt=caption"]))
    assert told.kept == ["label", "width", "tag", "any"]
    assert Path(table_of(index)).read_bytes() == Path(whole).read_bytes()
    told = made.make_columns(index, spec=ColumnSpec())
    assert (told.surveyed, told.unchanged, len(told.kept)) == (0, 4, 5)


def test_earlier_columns_of_new_and_changed_shards(index):
    """Have their rules, too, though only another column is asked for."""
    made.make_columns(index)
    shards = json.loads(Path(index).read_text())
    home = os.path.dirname(index)
    shards["shardlist"].append(made.write_shard_of(os.path.join(home, "s4.tar"), 10, 4))
    shards["shardlist"][3] = made.write_shard_of(os.path.join(home, "s3.tar"), 8, 2, payload=9)
    Path(index).write_text(json.dumps(shards))
    told = made.make_columns(index, spec=parse_spec(texts=[".cls=word"]))
    assert (told.surveyed, told.unchanged, told.samples) == (5, 0, 14)
    expected = made.rows_of((*COUNTS, 4))
    expected[8:10] = made.rows_of(COUNTS, payload=9)[8:]
    rows = made.read_rows(table_of(index))
    assert [row.pop("word") for row in rows] == [str(row["label"]) for row in expected]
    assert rows == expected


def test_only_members_of_new_rules_are_read(remote, tmp_path):
    """Of unchanged shards: a column of small members costs no byte of those that the table has columns of."""
    url, server = remote
    output = str(tmp_path / "c.parquet")
    made.make_columns(url, output=output, spec=parse_spec(texts=[".bin"], missing="null"))
    before = server.sent_bytes.total()
    assert before > 400_000
    told = made.make_columns(url, output=output, spec=parse_spec(fields=[".cls=label"]))
    assert (told.surveyed, told.kept) == (4, ["bin"])
    assert server.sent_bytes.total() - before < 60_000
    rows = made.read_rows(output)
    assert [(row["label"], row["bin"]) for row in rows] == [(g % 5, chr(g) * 50_000) for g in range(10)]


def test_columns_that_are_left_out(index):
    """By name, in any case; no shard is read for it; a name that is not there is refused, and nothing changes."""
    made.make_columns(index)
    before = Path(table_of(index)).read_bytes()
    for name in ("nothing", "key", "cls_bytes"):
        with pytest.raises(InputError, match=f"drop: there is no column '{name}' .*; there are label, width, tag, any"):
            made.make_columns(index, drop=name)
    assert Path(table_of(index)).read_bytes() == before
    told = made.make_columns(index, spec=ColumnSpec(), drop=["Tag", "caption"])
    assert (told.surveyed, told.dropped, told.kept) == (0, ["tag", "caption"], ["label", "width", "any"])
    rows = [{name: row[name] for name in row if name not in ("tag", "caption")} for row in made.rows_of(COUNTS)]
    assert made.read_rows(table_of(index)) == rows
    with pytest.raises(InputError, match="drop: there is no column 'tag'"):
        made.make_columns(index, drop="tag")
    with pytest.raises(InputError, match="there are none"):
        made.make_columns(index, output=index.replace("train.json", "other.parquet"), drop="tag")


def test_another_rule_for_a_column(index, caplog):
    """Replaces the earlier one, in its place, and says which it was; a new name of the same values reads nothing."""
    made.make_columns(index)
    told = made.make_columns(index, spec=parse_spec(jsons=[".json:meta.tag=Width"], fields=[".cls=number"]))
    assert told.changed == {"Width": "json .json:width"}
    assert caplog.messages == ["the column 'Width' is now json .json:meta.tag; it was json .json:width"]
    assert (told.kept, told.surveyed) == (["label", "tag", "any", "caption"], 0)
    assert list(told.columns)[5:11] == ["label", "Width", "tag", "any", "caption", "number"]
    rows = made.read_rows(table_of(index))
    assert [(row["Width"], row["number"]) for row in rows] == [
        (row["tag"] if row["width"] else None, row["label"]) for row in made.rows_of(COUNTS)
    ]


def test_each_column_keeps_its_way_with_bad_members(tmp_path):
    """Members that were null for an earlier column stay so; they fail a column that does not allow it."""
    shards, output = write_bad(tmp_path)
    create_columns(shards, output, parse_spec(jsons=[".json:v"], missing="null"))
    with pytest.raises(JobError, match=r"sample 'b1': \.txt is no UTF-8 text"):
        create_columns(shards, output, parse_spec(texts=[".txt"]))
    write_tar(tmp_path / "b.tar", [("b0.json", b"{"), ("b3.txt", b"fine")])
    told = create_columns(shards, output, parse_spec(texts=[".txt"]))
    assert (told.unparsed, told.kept) == (1, ["v"])
    assert [(row["v"], row["txt"]) for row in made.read_rows(output)] == [(1, "fine"), (None, None), (None, "fine")]


def test_a_table_whose_rules_are_not_known(index, caplog):
    """Of an older version: its columns have to be asked for again. A damaged one is replaced, and that is said."""
    made.make_columns(index)
    table = pq.read_table(table_of(index))
    facts = json.loads(table.schema.metadata[b"wids"])
    del facts["rules"]
    pq.write_table(table.replace_schema_metadata({b"wids": json.dumps(facts)}), table_of(index))
    assert len(wids.ShardListDataset(index).where("label = 1")) == 2
    with pytest.raises(ColumnsError, match=r"does not say from what its columns label, width, .* were made"):
        made.make_columns(index, spec=ColumnSpec())
    assert made.make_columns(index).samples == 10
    Path(table_of(index)).write_bytes(b"PAR1 nothing PAR1")
    made.make_columns(index, spec=parse_spec(fields=[".cls"]))
    assert "which columns it has cannot be read, and none is kept" in caplog.text


@pytest.mark.parametrize("seed", range(examples(10)))
def test_histories_of_columns(tmp_path, seed):
    """Whatever columns are asked for and left out between runs, the table has the values that one run gives."""
    rng = random.Random(seed)
    rules = [{"jsons": [".json:v"]}, {"jsons": [".json:w=x"]}, {"texts": [".txt"]}, {"texts": [".json=t"]}]
    shards = [str(tmp_path / f"s{k}.tar") for k in range(4)]
    for path in shards:
        put_random_shard(path, rng)
    names, spec = ("v", "x", "txt", "t"), {}
    for step in range(5):
        left = [name for name in spec if rng.random() < 0.2]
        asked = {names[k]: rules[k] for k in range(4) if rng.random() < 0.4}
        spec = {name: rule for name, rule in {**spec, **asked}.items() if name in asked or name not in left}
        if rng.random() < 0.5:
            put_random_shard(rng.choice(shards), rng)
        now = [parse_spec(**rule).rules[0] for rule in asked.values()]
        create_columns(shards, str(tmp_path / "c.parquet"), ColumnSpec(rules=tuple(now)), drop=left)
        whole = tuple(parse_spec(**rule).rules[0] for rule in spec.values())
        create_columns(shards, str(tmp_path / f"{step}.parquet"), ColumnSpec(rules=whole), engine=RunOptions(jobs=1))
        found, expected = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("c", step))
        assert sorted(found.column_names) == sorted(expected.column_names)
        assert repr(found.select(expected.column_names).to_pylist()) == repr(expected.to_pylist())


def test_a_table_that_is_not_the_state_s(index, tmp_path):
    """A state beside a table of another run, or a damaged one, is not used."""
    made.make_columns(index)
    shutil.copy(table_of(index), tmp_path / "kept")
    made.write_shard_of(os.path.join(os.path.dirname(index), "s3.tar"), 8, 2, payload=9)
    made.make_columns(index)
    shutil.copy(tmp_path / "kept", table_of(index))
    assert made.make_columns(index).surveyed == 4
    Path(table_of(index)).write_bytes(b"PAR1 nothing PAR1")
    assert made.make_columns(index).surveyed == 4


def test_the_directory_may_move(index, tmp_path):
    """With its shards: none is read again."""
    made.make_columns(index)
    moved = tmp_path / "moved"
    os.rename(os.path.dirname(index), moved)
    told = made.make_columns(str(moved / "train.json"))
    assert (told.surveyed, told.unchanged) == (0, 4)


def _make_until(connection, index, count):
    """Make columns, and stop when ``count`` shards are written down."""
    keep = creating.KnownParts.add_part
    kept = []

    def add(self, part):
        keep(self, part)
        kept.append(part)
        if len(kept) == count:
            stop_here(connection)

    creating.KnownParts.add_part = add
    made.make_columns(index, engine=RunOptions(jobs=1))


@pytest.mark.parametrize("count", [1, 3])
def test_a_killed_run_goes_on(index, count):
    """Shards that were written down are not read again, though the journal's last line was cut."""
    with child(_make_until, index, count) as (process, connection):
        assert receive(connection) == "here"
        kill(process)
    with open(table_of(index) + ".journal", "ab") as file:
        file.write(b'{"url": "s2.t')
    assert not os.path.exists(table_of(index))
    told = made.make_columns(index)
    assert (told.surveyed, told.unchanged) == (4 - count, count)
    assert made.read_rows(table_of(index)) == made.rows_of(COUNTS)
    assert not {".journal", ".parts"} & {os.path.splitext(name)[1] for name in os.listdir(os.path.dirname(index))}


def _merge_until(connection, index):
    """Make columns, and stop when half of the table is written."""
    rows = creating._ColumnLayout.rows

    def stop(self, k, *args):
        if k == 2:
            stop_here(connection)
        return rows(self, k, *args)

    creating._ColumnLayout.rows = stop
    made.make_columns(index)


def test_a_run_that_is_killed_while_it_merges(index):
    """The table of before stays; the next run reads nothing."""
    made.make_columns(index, spec=ColumnSpec())
    before = Path(table_of(index)).read_bytes()
    with child(_merge_until, index) as (process, connection):
        assert receive(connection) == "here"
        kill(process)
    assert Path(table_of(index)).read_bytes() == before
    assert [name for name in os.listdir(os.path.dirname(index)) if name.endswith(".part")]
    assert made.make_columns(index).surveyed == 0
    assert not [name for name in os.listdir(os.path.dirname(index)) if name.endswith(".part")]
    assert made.read_rows(table_of(index)) == made.rows_of(COUNTS)


# --- remote shards


@pytest.fixture
def remote(tmp_path):
    """(index URL, its server): shards of large samples, member tables beside them."""
    index = made.write_dataset(tmp_path / "www", COUNTS, payload=50_000)
    create_index([str(tmp_path / "www")], str(tmp_path / "www/again.json"), settings=IndexSettings(has_tables=True))
    with testing.Server(tmp_path / "www") as server:
        yield f"{server.url}/{os.path.basename(index)}", server


def test_only_the_members_that_are_asked_for(remote, tmp_path):
    """Of shards of 500 kB some headers, tables and small members come; a second run asks for no byte of a member."""
    url, server = remote
    told = made.make_columns(url, output=str(tmp_path / "c.parquet"))
    assert made.read_rows(told.output) == made.rows_of(COUNTS, payload=50_000)
    assert server.sent_bytes.total() < 60_000
    assert 0 < told.read_bytes < 50_000
    before = len(server.requests), server.sent_bytes.total()
    told = made.make_columns(url, output=str(tmp_path / "c.parquet"))
    assert (told.surveyed, told.unchanged, told.requests) == (0, 4, 0)
    assert len(server.requests) - before[0] <= 1 + 2 * len(COUNTS)
    assert server.sent_bytes.total() - before[1] < 3_000


def test_shards_of_small_samples_are_copied(tmp_path):
    """A request for each sample would take longer."""
    index = made.write_dataset(tmp_path / "www", (200, 300))
    create_index([str(tmp_path / "www")], str(tmp_path / "www/again.json"), settings=IndexSettings(has_tables=True))
    with testing.Server(tmp_path / "www") as server:
        url = f"{server.url}/{os.path.basename(index)}"
        told = made.make_columns(url, output=str(tmp_path / "c.parquet"))
        assert made.read_rows(told.output) == made.rows_of((200, 300))
        assert told.requests <= 8


def test_servers_without_ranges(remote, tmp_path):
    """Their shards are copied to a temporary directory, each once, and gone afterwards."""
    url, server = remote
    server.has_ranges = False
    told = made.make_columns(url, output=str(tmp_path / "c.parquet"))
    assert made.read_rows(told.output) == made.rows_of(COUNTS, payload=50_000)
    assert sum(target.endswith("s2.tar") for target in shard_requests(server)) <= 3


def test_a_missing_shard(remote, tmp_path):
    """Is named; the others are not read again when it is there."""
    url, server = remote
    os.rename(tmp_path / "www/s2.tar", tmp_path / "s2.tar")
    with pytest.raises(JobError, match=r"1 of 4 shards could not be read; the first: .*s2\.tar") as failed:
        made.make_columns(url, output=str(tmp_path / "c.parquet"))
    assert list(failed.value.found) == [f"{server.url}/s2.tar"]
    assert not (tmp_path / "c.parquet").exists()
    os.rename(tmp_path / "s2.tar", tmp_path / "www/s2.tar")
    told = made.make_columns(url, output=str(tmp_path / "c.parquet"))
    assert (told.surveyed, told.unchanged) == (1, 3)


# --- bad input


def write_bad(tmp_path):
    """Two shards, in one of them members that cannot be parsed."""
    write_tar(tmp_path / "a.tar", [("a.json", b'{"v": 1}'), ("a.txt", b"fine")])
    bad = [
        ("b0.json", b"{"),
        ("b1.json", b"[1]"),
        ("b1.txt", b"\xff"),
        ("b2.json", b"[" * 100_000),
        ("b3.txt", b"fine"),
    ]
    write_tar(tmp_path / "b.tar", bad)
    return [str(tmp_path / "a.tar"), str(tmp_path / "b.tar")], str(tmp_path / "c.parquet")


def test_members_that_cannot_be_parsed(tmp_path):
    """Fail their shard; the report names shard, key and field of each."""
    shards, output = write_bad(tmp_path)
    with pytest.raises(JobError) as failed:
        create_columns(shards, output, parse_spec(jsons=[".json:v"], texts=[".txt"]))
    why = failed.value.found[shards[1]]
    assert "b.tar: sample 'b0': .json is no JSON object that can be read" in why
    for words in ("'b1' .json", "'b1' .txt", "'b2' .json"):
        assert words in why
    assert "b3" not in why


def test_members_that_cannot_be_parsed_as_null(tmp_path):
    """``missing="null"``: they are null, counted, and the first of a shard is told."""
    shards, output = write_bad(tmp_path)
    told = create_columns(shards, output, parse_spec(jsons=[".json:v"], texts=[".txt"], missing="null"))
    rows = [(row["key"], row["v"], row["txt"]) for row in made.read_rows(output)]
    assert rows == [("a", 1, "fine"), ("b0", None, None), ("b1", None, None), ("b2", None, None), ("b3", None, "fine")]
    assert told.unparsed == 4
    assert list(told.troubles) == [shards[1]]
    assert create_columns(shards, output, parse_spec(jsons=[".json:v"], texts=[".txt"], missing="null")).unparsed == 4


@pytest.mark.parametrize(
    ("name", "data"), [(".jpg", b"no picture"), (".pkl", b"cos\n"), (".cls", b"x"), (".xyz", b"x")]
)
def test_fields_that_are_no_values(tmp_path, name, data):
    """Pictures, pickles and what has no decoder cannot be columns."""
    write_tar(tmp_path / "a.tar", [(f"a{name}", data)])
    with pytest.raises(JobError, match=f"sample 'a': {name} is no value of a column"):
        create_columns([str(tmp_path / "a.tar")], str(tmp_path / "c.parquet"), parse_spec(fields=[name]))


def test_fields_that_are_lists(tmp_path):
    """Are JSON text."""
    write_tar(tmp_path / "a.tar", [("a.json", b'{"v": [1, null]}'), ("b.json", b"3")])
    create_columns([str(tmp_path / "a.tar")], str(tmp_path / "c.parquet"), parse_spec(fields=[".json=v"]))
    assert [row["v"] for row in made.read_rows(tmp_path / "c.parquet")] == ['{"v": [1, null]}', "3"]


def npy_of(array):
    """The bytes of an array's file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["float16", "float32", "int64", "uint8", "bool"])
def test_vectors(tmp_path, caplog, kind):
    """Arrays of one type and length are vectors: in SQL, in samples, as one array; also of shards that are known."""
    vectors = (np.arange(20).reshape(5, 4) % 3).astype(kind)
    for k, rows in enumerate((range(3), range(3, 5))):
        write_tar(tmp_path / f"s{k}.tar", {f"k{g}.npy": npy_of(vectors[g]) for g in rows} | {f"z{k}.cls": b"1"})
    create_index([str(tmp_path)], str(tmp_path / "train.json"))
    told = make(tmp_path, fields=[".npy=clip"])
    assert (told.columns["clip"], told.nulls, told.nans) == (f"{kind}[4]", {"clip": 2}, {})
    assert make(tmp_path, fields=[".cls=label"]).columns["clip"] == f"{kind}[4]"
    dataset = wids.ShardListDataset(tmp_path / "train.json").with_columns(["clip"])
    has = [0, 1, 2, 4, 5]
    assert dataset.find_rows("clip is not null").tolist() == has
    asked = dataset.query('select clip from samples where clip is not null order by "index"')["clip"].to_pylist()
    assert asked == vectors.tolist()
    for row, vector in zip(has, vectors, strict=True):
        assert (dataset[row]["clip"].dtype, dataset[row]["clip"].tolist()) == (vectors.dtype, vector.tolist())
    assert dataset[3]["clip"] is None
    column = dataset.select(has).read_column("clip")
    assert (column.dtype, column.tolist()) == (vectors.dtype, vectors.tolist())
    assert dataset.read_column("clip").shape == ((7, 4) if vectors.dtype.kind == "f" else (7,))
    assert not caplog.messages


def test_arrays_that_are_no_vectors(tmp_path):
    """Of another length or type: JSON text for all, and vectors again when that shard has changed."""
    spec, output = parse_spec(fields=[".npy=v"]), str(tmp_path / "c.parquet")
    shards = [(str(tmp_path / f"s{k}.tar"), 2) for k in range(2)]

    def put(*arrays):
        write_tar(tmp_path / "s1.tar", {f"b{k}.npy": npy_of(array) for k, array in enumerate(arrays)})
        told = create_columns(shards, output, spec)
        return told.columns["v"], told.nans, [row["v"] for row in made.read_rows(output)]

    nan = np.array([0.1, np.nan], np.float32)
    write_tar(tmp_path / "s0.tar", {"a.npy": npy_of(nan), "b.cls": b"1"})
    kind, nans, values = put(np.ones(2, np.float32), np.zeros(2, np.float32))
    assert (kind, nans, values[1:]) == ("float32[2]", {"v": 1}, [None, [1.0, 1.0], [0.0, 0.0]])
    own = f"[{float(nan[0])!r}, NaN]"
    assert put(np.ones(3, np.float32), np.array(7)) == ("json", {"v": 1}, [own, None, "[1.0, 1.0, 1.0]", "7"])
    assert put(np.ones(2), np.ones(0)) == ("json", {"v": 1}, [own, None, "[1.0, 1.0]", "[]"])
    kind, nans, values = put(np.ones(2, np.float32), nan)
    assert (kind, nans, repr(values)) == ("float32[2]", {"v": 2}, repr([nan.tolist(), None, [1.0, 1.0], nan.tolist()]))


def test_compressed_members(tmp_path):
    """Are inflated first; what is not compressed is an error."""
    data = [
        ("a.json.gz", gzip.compress(b'{"v": 1}')),
        ("a.txt.gz", gzip.compress(b"text")),
        ("a.cls.gz", gzip.compress(b"7")),
    ]
    write_tar(tmp_path / "a.tar", [*data, ("b.txt.gz", b"text")])
    spec = parse_spec(fields=[".cls.gz=c"], jsons=[".json.gz:v"], texts=[".txt.gz=t"], missing="null")
    told = create_columns([str(tmp_path / "a.tar")], str(tmp_path / "c.parquet"), spec)
    assert [(row["c"], row["v"], row["t"]) for row in made.read_rows(told.output)] == [
        (7, 1, "text"),
        (None, None, None),
    ]
    assert "'b': .txt.gz is no UTF-8 text" in told.troubles[str(tmp_path / "a.tar")]


def test_pages_that_are_damaged(index):
    """A table whose rows cannot be read again is an error that says what to do."""
    made.make_columns(index)
    data = bytearray(Path(table_of(index)).read_bytes())
    column = pq.read_metadata(table_of(index)).row_group(0).column(5)  # of those before it, the places of rows are read
    first = column.dictionary_page_offset or column.data_page_offset
    data[first : first + column.total_compressed_size] = bytes(column.total_compressed_size)
    Path(table_of(index)).write_bytes(data)
    made.write_shard_of(os.path.join(os.path.dirname(index), "s3.tar"), 8, 2, payload=9)
    with pytest.raises(ColumnsError, match=r"is damaged \((.|\n)*\); delete .*\.state, and run it again"):
        made.make_columns(index)
    os.unlink(table_of(index) + ".state")
    assert made.make_columns(index, spec=ColumnSpec()).kept == ["label", "width", "tag", "any", "caption"]
    assert made.read_rows(table_of(index)) == made.rows_of(COUNTS)[:8] + made.rows_of(COUNTS, payload=9)[8:]


def test_a_wrong_count(index):
    """The index says another number than the shard has."""
    made.write_shard_of(os.path.join(os.path.dirname(index), "s3.tar"), 8, 3)
    text = Path(index).read_text()
    Path(index).write_text(text.replace(text[text.rindex('"filesize"') : text.rindex("}]")], '"info": 1'))
    with pytest.raises(JobError, match="holds 3 samples, and the index says 2; write the index again"):
        made.make_columns(index)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("gs://b/c.parquet", "local"),
        ("c.csv", r"\.parquet"),
        ("no/c.parquet", "no directory"),
        ("\udcff.parquet", "has to be UTF-8"),
    ],
)
def test_outputs_that_cannot_be(index, output, words):
    """Are refused before the work."""
    with pytest.raises(OutputError, match=words):
        made.make_columns(index, output=output)


def _make_with(connection, index, bytes_):
    """Make columns where no file may have more than so many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, bytes_))
    try:
        connection.send(made.make_columns(index, engine=RunOptions(jobs=1)).samples)
    except OutputError as error:
        connection.send(str(error))


@pytest.mark.parametrize("bytes_", [0, 200, 2000, 8000])
def test_a_full_disk(tmp_path, bytes_):
    """While the journal, a part or the table is written: an error that says so; the next run makes the table."""
    counts = (300, 0, 300)
    index = made.write_dataset(tmp_path / "d", counts)
    with child(_make_with, index, bytes_) as (process, connection):
        assert "cannot be written" in receive(connection)
        process.join()
    assert not os.path.exists(table_of(index))
    assert made.make_columns(index).samples == 600
    assert made.read_rows(table_of(index)) == made.rows_of(counts)
    assert len(os.listdir(os.path.dirname(index))) == len(counts) + 3


def end_at(patch, where, index, error):
    """Have a run end by ``error`` when it writes: a second part or its record, the table, the state; or publishes."""
    calls = []

    def failing(function, is_meant, after=0):
        def call(*args, **options):
            if is_meant(*args):
                calls.append(args)
                if len(calls) > after:
                    raise error
            return function(*args, **options)

        return call

    put, table = atomic.write_atomically, table_of(index)
    places = {
        "part": (atomic, "write_atomically", failing(put, lambda path, _: path.endswith(".arrow"), after=1)),
        "journal": (os, "write", failing(os.write, lambda _, data: b'"columns"' in data, after=1)),
        "table": (pq.ParquetWriter, "write_table", failing(None, lambda *_: True)),
        "synced": (os, "fsync", failing(None, lambda *_: True)),
        "state": (atomic, "write_atomically", failing(put, lambda path, _: path.endswith(".state"))),
        "published": (os, "replace", failing(os.replace, lambda _, path: path == table)),
    }
    patch.setattr(*places[where])


# How many shards the next run reads: of two that were written anew, those that were not kept; without the state of the
# table that is there, the two others.
@pytest.mark.parametrize(
    ("where", "again"), [("part", 1), ("journal", 1), ("table", 0), ("synced", 0), ("state", 0), ("published", 2)]
)
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "no space"), KeyboardInterrupt()], ids=str)
def test_a_run_that_ends_in_the_middle(index, monkeypatch, where, again, error):
    """By a full disk or by Ctrl-C, at any write: the table of before stays, nothing else is there, a rerun goes on."""
    made.make_columns(index)
    before, home = Path(table_of(index)).read_bytes(), Path(index).parent
    for name, first, count in (("s0.tar", 20, 3), ("s3.tar", 30, 2)):
        made.write_shard_of(home / name, first, count)
        os.utime(home / name, ns=(1, 1))
    with monkeypatch.context() as patch:
        end_at(patch, where, index, error)
        with pytest.raises(OutputError if isinstance(error, OSError) else KeyboardInterrupt):
            made.make_columns(index, engine=RunOptions(jobs=1))
    assert Path(table_of(index)).read_bytes() == before
    assert not [name for name in os.listdir(home) if name.endswith(".part")]
    assert made.make_columns(index).surveyed == again
    numbers = [20, 21, 22, 3, 4, 5, 6, 7, 30, 31]
    assert [row["key"] for row in made.read_rows(table_of(index))] == [f"k{g:04d}" for g in numbers]
    assert len(os.listdir(home)) == len(COUNTS) + 3


def test_tables_of_others(tmp_path, index):
    """Are not replaced."""
    path = tmp_path / "scores.parquet"
    pq.write_table(pa.table({"score": [1]}), path)
    with pytest.raises(
        OutputExistsError, match="is no table that `wids columns create` made; write elsewhere, or pass o"
    ):
        made.make_columns(index, output=str(path))
    assert pq.read_table(path)["score"].to_pylist() == [1]
    assert sorted(os.listdir(tmp_path)) == ["d", "scores.parquet"]


VALUES = [1, 2, 2.5, -0.0, True, None, "a", "1", "\ud800", {"a": 1.0}, [1], 2**60, 2**63, math.nan, 1e300]


def put_random_shard(path, rng):
    """A shard of some samples whose values are of few kinds; its time is another one than before."""
    few = rng.sample(VALUES, 2)
    members = []
    for i in range(rng.randrange(6)):
        found = {"v": rng.choice(few), "w": rng.choice(VALUES)}
        name = f"{os.path.basename(path)[:-4]}-{i}"
        members.append((f"{name}.json", json.dumps(found if rng.random() < 0.8 else {}).encode()))
        members += [(f"{name}.txt", b"text")] * (rng.random() < 0.5)
    write_tar(path, members)
    os.utime(path, ns=(0, rng.randrange(10**15)))


@pytest.mark.parametrize("seed", range(examples(10)))
def test_histories(tmp_path, monkeypatch, seed):
    """Whatever shards come, go, change and move between runs, the table is what one run over all of them makes."""
    monkeypatch.setattr(creating, "_GROUP_ROWS", 5)
    rng = random.Random(seed)
    spec = parse_spec(jsons=[".json:v,w=x"], texts=[".txt"])
    shards = []
    for step in range(5):
        before = set(shards)
        for _ in range(rng.randrange(1, 4)):
            what = rng.choice(["add", "add", "change", "remove", "move"]) if shards else "add"
            if what == "add":
                path = str(tmp_path / f"s{step}{rng.randrange(10**6)}.tar")
                put_random_shard(path, rng)
                shards.insert(rng.randrange(len(shards) + 1), path)
            elif what == "change":
                put_random_shard(rng.choice(shards), rng)
            elif what == "remove":
                shards.remove(rng.choice(shards))
            else:
                rng.shuffle(shards)
        is_other = before.isdisjoint(shards)  # such a table is replaced only if that is said
        create_columns(shards, str(tmp_path / "c.parquet"), spec, overwrite=is_other, engine=RunOptions(jobs=2))
        create_columns(shards, str(tmp_path / f"{step}.parquet"), spec, engine=RunOptions(jobs=1))
        assert (tmp_path / "c.parquet").read_bytes() == (tmp_path / f"{step}.parquet").read_bytes()


def test_shards_that_are_listed_twice(tmp_path):
    """Have their rows twice, also when they are known from before."""
    write_tar(tmp_path / "a.tar", [("a.json", b'{"v": 1}'), ("b.json", b'{"v": 2}')])
    shards, output = [str(tmp_path / "a.tar")] * 3, str(tmp_path / "c.parquet")
    for spec in (parse_spec(jsons=[".json:v"]), parse_spec(jsons=[".json:v"])):
        create_columns(shards, output, spec)
        assert [(row["shard"], row["v"]) for row in made.read_rows(output)] == [(k // 2, 1 + k % 2) for k in range(6)]
    write_tar(tmp_path / "a.tar", [("a.json", b'{"v": "x"}'), ("b.json", b'{"v": 2}')])
    assert create_columns([*shards, *shards], output, parse_spec(jsons=[".json:v"])).columns["v"] == "json"
    assert [row["v"] for row in made.read_rows(output)] == ['"x"', "2"] * 6


ODD_VALUES = [
    (["NaN", "Infinity", "1"], "double", [math.nan, math.inf, 1.0]),
    (['{"a": NaN}', "1"], "json", ['{"a": NaN}', "1"]),
    (["1e400", "-0.0"], "double", [math.inf, -0.0]),
    (["9223372036854775808", "1"], "json", ["9223372036854775808", "1"]),
    (['"a\\u0000b"', '"\\ud800"'], "string", ["a\0b", "\\ud800"]),
    (['{"\\ud800": 1}', "true"], "json", ['{"\\\\ud800": 1}', "true"]),
    (['1, "v": 2', "3"], "int64", [2, 3]),  # a key that repeats: the last one holds
    (["null", "null"], "string", [None, None]),
]


@pytest.mark.parametrize(("texts", "kind", "values"), ODD_VALUES)
def test_odd_json(tmp_path, texts, kind, values):
    """What JSON of the world has: its columns can be read, and asked by SQL."""
    write_tar(tmp_path / "a.tar", [(f"{k}.json", f'{{"v": {text}}}'.encode()) for k, text in enumerate(texts)])
    output = str(tmp_path / "c.parquet")
    told = create_columns([str(tmp_path / "a.tar")], output, parse_spec(jsons=[".json:v"]))
    assert (told.columns["v"], repr([row["v"] for row in made.read_rows(output)])) == (kind, repr(values))
    assert list(told.empty) == (["v"] if values == [None, None] else [])
    found = sql.run_query(sql.SampleTable(samples=len(values), path=output), "select v from samples order by index")
    assert repr(found["v"].to_pylist()) == repr(values)
    if kind == "json":
        whole = sql.SampleTable(samples=len(values), path=output)
        assert len(sql.run_query(whole, "select json_extract(v, '$.a') from samples")) == len(values)


def test_two_runs_for_one_table(index):
    """While one makes it, another is refused."""
    with child(_make_until, index, 1) as (process, connection):
        assert receive(connection) == "here"
        with pytest.raises(OutputExistsError, match="another wids columns create is writing there"):
            made.make_columns(index)
        kill(process)


def test_parts_of_another_length(index):
    """A part that was tampered with is not made into rows."""
    with child(_make_until, index, 3) as (process, connection):
        assert receive(connection) == "here"
        kill(process)
    parts = Path(table_of(index) + ".parts")
    names = sorted(parts.iterdir(), key=lambda path: path.stat().st_size)
    shutil.copy(names[0], names[-1])
    with pytest.raises(InputError, match="delete the parts"):
        made.make_columns(index)


def test_alternatives(tmp_path):
    """A sample's first one counts, in the order of the rule, in any case; a sample without any has no value."""
    members = {"a.cls": b"1", "a.label": b"9", "b.LABEL": b"2", "c.txt": b"x", "d.json": b'{"w": 4}', "e.meta": b"{}"}
    write_tar(tmp_path / "s0.tar", members)
    create_index([str(tmp_path)], str(tmp_path / "train.json"))
    told = make(tmp_path, texts=[".cls;label", "label;.cls=other"], jsons=[".meta;.json:w"])
    rows = made.read_rows(told.output)
    assert [row["cls"] for row in rows] == ["1", "2", None, None, None]
    assert [row["other"] for row in rows] == ["9", "2", None, None, None]
    assert [row["w"] for row in rows] == [None, None, None, 4, None]
    with pytest.raises(InputError, match="names no field"):
        parse_spec(fields=[".cls;=label"])

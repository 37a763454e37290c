"""A dataset in new shards: which samples, in which order, with which members; and what is not replaced."""

import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

import wids
from tests.support import columns as made
from tests.support.shards import write_json, write_tar
from wids import jobs
from wids.errors import (
    ColumnsError,
    InputError,
    OutputError,
    OutputExistsError,
    QueryError,
    SampleError,
)
from wids.jobs.runner import RunOptions
from wids.testing import Server
from wids.writing.pack import run as pack_run

COUNTS = (5, 0, 8, 3)
ONE = RunOptions(engine="threads", jobs=1)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch, own_cache):
    """The directory of the test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def index():
    """A dataset with columns."""
    path = made.write_dataset("old", COUNTS, payload=700)
    made.make_columns(path)
    return path


def rewrite(index, output="new/train.json", *, engine=ONE, **settings):
    """Write a dataset anew."""
    return jobs.rewrite_shards(index, output, settings=jobs.RewriteSettings(**settings), engine=engine)


def samples_of(index):
    """(key, fields) of each sample."""
    dataset = wids.ShardListDataset(index, transformations=[])
    return [
        (each["__key__"], {name: data.read() for name, data in each.items() if name.startswith(".")})
        for each in dataset.__getitems__(range(len(dataset)))
    ]


def files_in(directory):
    """Name -> bytes; the tables of shards say when the shards were written."""
    return {path.name: path.read_bytes() for path in Path(directory).iterdir() if path.suffix != ".widx"}


def test_shards_of_a_size_have_all_samples(index):
    """In their order, with the bytes that they had; the old ones stay."""
    before = files_in("old")
    outcome = rewrite(index, size=7000)
    shards = sorted(Path("new").glob("*.tar"))
    assert [path.name for path in shards] == [f"train-{k:06d}.tar" for k in range(len(shards))]
    assert max(path.stat().st_size for path in shards) <= 10240  # an archive has blocks of that
    assert samples_of("new/train.json") == samples_of(index)
    assert (outcome.shards, outcome.new, outcome.samples, outcome.removed) == (len(shards), len(shards), 16, 0)
    assert (outcome.unchanged, outcome.written, outcome.dropped, outcome.known) == (0, {}, [], 0)
    assert outcome.bytes == sum(path.stat().st_size for path in shards)
    assert outcome.facts == ["not all samples have all fields: .json in 10, .txt in 12"]
    assert not jobs.verify("new/train.json").wrong
    listed = json.loads(Path("new/train.json").read_text())["shardlist"]
    assert all({"crc32", "md5sum", "filesize", "nsamples"} <= entry.keys() for entry in listed)
    assert all(Path(f"{path}.widx").exists() for path in shards)
    found = []
    for path in shards:
        with tarfile.open(path) as archive:
            found += [(each.name, archive.extractfile(each).read()) for each in archive]
    assert found == [(key + name, data) for key, fields in samples_of(index) for name, data in fields.items()]
    assert files_in("old") == before


def test_a_view_and_some_fields(index):
    """The samples of the view, without those of --exclude; some have none of the optional fields."""
    whole = samples_of(index)
    wids.ShardListDataset(index).exclude([0, 7]).save("view.json")
    Path("out.txt").write_text("k0003\n")
    outcome = rewrite("view.json", "new", samples=4, fields=[".cls", ".txt"], exclude=("out.txt",))
    assert outcome.index == str(Path("new/train.json").absolute())
    assert (outcome.samples, outcome.removed, outcome.shards) == (13, 3, 4)
    kept = [each for k, each in enumerate(whole) if k not in (0, 3, 7)]
    assert samples_of("new/train.json") == [
        (key, {name: data for name, data in fields.items() if name in (".cls", ".txt")}) for key, fields in kept
    ]


@pytest.mark.parametrize("engine", [RunOptions(engine="threads", jobs=3), RunOptions(engine="processes", jobs=2)])
def test_a_shuffle_is_the_same_everywhere(index, engine):
    """With any engine; another seed gives another order."""
    settings = {"samples": 6, "seed": 3, "columns": ("label", "tag")}
    rewrite(index, **settings)
    rewrite(index, "same/train.json", engine=engine, **settings)
    assert files_in("new") == files_in("same")
    keys = [key for key, _ in samples_of("new/train.json")]
    assert sorted(keys) == [f"k{k:04d}" for k in range(16)] != keys
    rewrite(index, "other/train.json", **{**settings, "seed": 4})
    assert [key for key, _ in samples_of("other/train.json")] != keys


def test_an_order_of_columns_and_fields(index):
    """Missing values are last, and what is equal stays in its order, or is shuffled."""
    rows = made.rows_of(COUNTS, payload=700)

    def order(**settings):
        rewrite(index, "sorted/train.json", **settings)
        keys = [key for key, _ in samples_of("sorted/train.json")]
        for path in Path("sorted").iterdir():
            path.unlink()
        return keys

    def keys_by(rows, key):
        return [row["key"] for row in sorted(rows, key=key)]

    assert order(order_by="label") == keys_by(rows, lambda row: row["label"])
    expected = keys_by(rows, lambda row: (-row["label"], row["width"] is None, row["width"] or 0))
    assert order(order_by="label desc, width") == expected
    assert order(order_by="cls, index desc") == keys_by(rows, lambda row: (row["label"], -row["index"]))
    some = order(order_by="label", where="label < 3", seed=1)
    labels = {row["key"]: row["label"] for row in rows}
    assert [labels[key] for key in some] == sorted(row["label"] for row in rows if row["label"] < 3)
    assert some != keys_by([row for row in rows if row["label"] < 3], lambda row: row["label"])
    assert some == order(order_by="label", where=["label < 2 or cls = 2", "label < 3"], seed=1)
    assert len(order(where="has_json and width > 105")) == sum((row["width"] or 0) > 105 for row in rows)


def test_columns_become_members(index):
    """One JSON object in each sample, of the values, also null; the rest stays."""
    whole, rows = samples_of(index), made.rows_of(COUNTS, payload=700)
    outcome = rewrite(index, size=8000, columns=["label", "caption", "index"], into=".about.json", seed=1)
    assert max(path.stat().st_size for path in Path("new").glob("*.tar")) <= 10240
    before, values = dict(whole), {row["key"]: row for row in rows}
    found = samples_of("new/train.json")
    assert outcome.samples == len(found) == 16
    for key, fields in found:
        assert json.loads(fields.pop(".about.json")) == {
            name: values[key][name] for name in ("label", "caption", "index")
        }
        assert fields == before[key]


def test_columns_become_keys_of_an_object(index):
    """The text of the object stays as it is, and the keys follow; a sample without one gets one."""
    before = dict(samples_of(index))
    rewrite(index, columns=["label", "width"])  # width is in it, with the same value
    for key, fields in samples_of("new/train.json"):
        old = before[key].get(".json")
        label = b'"label":%d' % (int(key[1:]) % 5)
        assert fields[".json"] == (b'{%s,"width":null}' % label if old is None else old[:-1] + b", " + label + b"}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b' {"b" : 1e400, "b": [NaN]} \n', b' {"b" : 1e400, "b": [NaN], "x":5}'),
        (b"{ }", b'{"x":5}'),
        (b'{"x": 5.0}\n', b'{"x": 5.0}\n'),
        (b'{"x": 6}', "has 'x': 6, and the column 5"),
        (b'{"x": null}', "has 'x': None, and the column 5"),
        (b"[1]", "is no JSON object in UTF-8"),
        (b"\xff\xfe{\0}\0", "is no JSON object in UTF-8"),
        (b"", "is no JSON object in UTF-8"),
    ],
)
def test_objects_of_all_kinds(text, expected):
    """Numbers that Python has not, spaces, and keys that are there."""
    write_tar("old/s0.tar", {"a.JSON": text, "a.cls": b"5"})
    jobs.create_index("old/s0.tar", "old/train.json")
    jobs.create_columns("old/train.json", spec=made.parse_spec(fields=[".cls=x"]))
    if isinstance(expected, bytes):
        rewrite("old/train.json", columns="x")
        assert samples_of("new/train.json") == [("a", {".JSON": expected, ".cls": b"5"})]
        return
    with pytest.raises(SampleError, match=rf"into: the member .json of sample 'a' {expected}.*'.columns.json'"):
        rewrite("old/train.json", columns="x")
    assert os.listdir("new") == []


def test_vectors_and_what_json_has_not():
    """Vectors are lists, not-a-number is null."""
    with wids.ShardWriter("old/train-%d.tar") as writer:
        writer.write({"__key__": "a", ".npy": np.array([0.5, 1], np.float32), ".nan.npy": np.array(np.nan)})
    jobs.create_columns("old/train.json", spec=made.parse_spec(fields=[".npy=vector", ".nan.npy=nan"]))
    rewrite("old/train.json", columns=["vector", "nan"])
    assert samples_of("new/train.json")[0][1][".json"] == b'{"vector":[0.5,1.0],"nan":null}'


def test_a_trial_writes_nothing(index):
    """It says the same."""
    settings = {"size": 7000, "where": "label > 1", "columns": "label", "into": ".c.json", "seed": 2}
    trial = rewrite(index, is_trial=True, **settings)
    assert not os.path.exists("new")
    outcome = rewrite(index, **settings)
    for name in ("index", "shards", "new", "samples", "removed"):
        assert getattr(trial, name) == getattr(outcome, name) != 0
    assert trial.bytes >= outcome.bytes > 0


def fail_at(monkeypatch, number):
    """Let the writing of a shard fail, by its turn."""
    real, turns = pack_run.write_shard, []

    def write(*args):
        turns.append(args)
        if len(turns) == number:
            raise OutputError("the disk is full")
        return real(*args)

    monkeypatch.setattr(pack_run, "write_shard", write)


def test_a_run_goes_on_and_replaces_the_index_last(index, monkeypatch):
    """An index of other shards is replaced only with leave, and last; shards of a run that was ended are kept."""
    settings = {"samples": 4, "seed": 1, "columns": "label"}
    rewrite(index, "whole/train.json", **settings)
    os.mkdir("new")
    old = write_json("new/train.json", {"wids_version": 1, "shardlist": [{"url": "x.tar", "nsamples": 1}]})
    with pytest.raises(OutputExistsError, match="is an index of 1 shard"):
        rewrite(index, **settings)
    before = Path(old).read_bytes()
    with monkeypatch.context() as patched:
        fail_at(patched, 3)
        with pytest.raises(OutputError, match="full"):
            rewrite(index, overwrite=True, **settings)
    assert Path(old).read_bytes() == before
    outcome = rewrite(index, overwrite=True, **settings)
    assert (outcome.known, outcome.new) == (2, 4)
    assert files_in("new") == files_in("whole")


def test_shards_that_are_there_are_not_replaced(index):
    """Whatever the caller allows; nor is what the dataset is made of."""
    rewrite(index, samples=4)
    before = files_in("new")
    for overwrite in (False, True):
        with pytest.raises(OutputExistsError, match=r"train-000000.tar and 3 more: exists, and is not replaced"):
            rewrite(index, samples=5, overwrite=overwrite)
        with pytest.raises(OutputExistsError, match="is the index that it is made of"):
            rewrite(index, index, samples=5, overwrite=overwrite)
    assert files_in("new") == before
    wids.ShardListDataset(index).select([1]).save("view.json")
    with pytest.raises(OutputExistsError, match=r"is the index that .* is a view of"):
        rewrite("view.json", index, samples=5, overwrite=True)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"samples": 0}, InputError, "settings: samples=0"),
        ({"fields": ()}, InputError, "settings: fields"),
        ({"fields": ".jpg;;"}, InputError, "fields"),
        ({"fields": ".jpg"}, SampleError, "has none of the fields to keep"),
        ({"columns": "lable"}, InputError, "columns: there is no column 'lable'"),
        ({"columns": "label", "into": ".cls"}, InputError, "into='.cls': give an extension of JSON"),
        ({"samples": 3, "into": ".c.json"}, InputError, "into='.c.json': is for columns, of which none is named"),
        ({"where": "lable = 3"}, QueryError, "there is no column 'lable'"),
        ({"where": "label > 9"}, InputError, "of 16 samples none meets"),
        ({"order_by": " "}, QueryError, "this is empty"),
        ({"order_by": "lable"}, QueryError, "there is no column 'lable'"),
        ({"order_by": "label limit 3"}, QueryError, "as after ORDER BY, and this is more"),
        ({"order_by": "label; select 1"}, QueryError, "as after ORDER BY, and this is more"),
        ({"order_by": "label union select 1"}, QueryError, "this is more|syntax error"),
        ({"order_by": "random()"}, QueryError, "random has another value each time"),
        ({"output": "new/a%06d.json", "samples": 3}, InputError, "shards cannot be named after this index"),
        ({"output": "new/a-.json", "samples": 3}, InputError, "shards cannot be named after this index"),
        ({"output": "new/a.widsx", "samples": 3}, OutputError, "this is the name of a compiled index"),
    ],
)
def test_what_is_refused(index, settings, error, words):
    """Nothing is written."""
    with pytest.raises(error, match=words):
        rewrite(index, **settings)
    assert not [name for name in os.listdir("new") if name.endswith(".tar")] if os.path.exists("new") else True


def test_without_columns():
    """The way to make them is named."""
    index = made.write_dataset("old", COUNTS)
    with pytest.raises(ColumnsError, match="wids columns create"):
        rewrite(index, columns="label")


def test_keys_that_meet_in_a_shard():
    """Two samples of one key would be one; numbers in place of keys are allowed."""
    for k in range(2):
        write_tar(f"old/s{k}.tar", {"a.txt": b"%d" % k, "b.txt": b"%d" % k})
    jobs.create_index("old", "old/train.json")
    with pytest.raises(SampleError, match=r"train-000000.tar: two samples have the key '[ab]'") as caught:
        rewrite("old/train.json", seed=1)
    assert caught.value.hint == "number_keys"
    assert rewrite("old/train.json", samples=2).samples == 4
    rewrite("old/train.json", "numbered", numbers_keys=True)
    assert [key for key, _ in samples_of("numbered/train.json")] == [f"{k:09d}" for k in range(4)]


def test_other_keys_of_the_index_stay(index):
    """Its name and info, and what wids does not know."""
    raw = json.loads(Path(index).read_text())
    write_json(index, {**raw, "name": "n", "info": {"classes": ["a"]}, "who": "me"})
    rewrite(index, samples=4)
    listed = json.loads(Path("new/train.json").read_text())
    assert (listed["name"], listed["info"], listed["who"]) == ("n", {"classes": ["a"]}, "me")
    assert listed.keys() == {"wids_version", "name", "info", "who", "shardlist"}


def test_remote_shards_and_a_remote_output(index):
    """They are read through the cache; the new ones go to the store."""
    whole = samples_of(index)
    with Server("old") as server:
        outcome = rewrite(f"{server.url}/train.json", "memory://anew", samples=6, columns="label", into=".c.json")
    assert outcome.index == "memory://anew/train.json"
    found = samples_of("memory://anew/train.json")
    assert [fields.pop(".c.json") for _, fields in found] == [b'{"label":%d}' % (k % 5) for k in range(16)]
    assert found == whole
    with pytest.raises(OutputExistsError, match="overwrite"):
        rewrite(index, "memory://anew", samples=6)


def test_many_shards_and_large_samples(monkeypatch):
    """Samples are read in batches of shards, in any order, as large as memory allows."""
    from wids.writing.pack import datasets

    monkeypatch.setattr(datasets, "_BATCH_BYTES", 40_000)
    random = np.random.default_rng(1)
    for k in range(6):
        members = {f"{k}-{j}.bin": random.bytes(int(random.choice([10, 30_000]))) for j in range(20)}
        write_tar(f"old/s{k}.tar", members)
    jobs.create_index("old", "old/train.json")
    rewrite("old/train.json", size=200_000, seed=5)
    assert sorted(samples_of("new/train.json")) == sorted(samples_of("old/train.json"))


# --- joined data sets


def write_set(stem, keys, members, counts, *, empty=()):
    """Shards of samples with these keys, and their index; those in ``empty`` have nothing."""
    entries, first = [], 0
    for k, count in enumerate(counts):
        found = {}
        for key in keys[first : first + count]:
            names = {".empty": b""} if key in empty else {name: f"{stem}{name} {key}".encode() for name in members}
            found |= {key + name: data for name, data in names.items()}
        path = write_tar(f"j/{stem}-{k}.tar", found)
        entries.append({"url": os.path.basename(path), "nsamples": count, "filesize": os.path.getsize(path)})
        first += count
    return write_json(f"j/{stem}.json", {"wids_version": 1, "shardlist": entries})


KEYS = [f"k{k:02d}" for k in range(12)]


@pytest.fixture
def joined():
    """The name of a joined index: captions by row, cut differently; vectors by key, of some, with a prefix."""
    base = write_set("base", KEYS, (".jpg", ".cls"), (5, 7))
    captions = write_set("captions", [f"other{k}" for k in range(12)], (".txt",), (3, 2, 7), empty=("other4",))
    clip = write_set("clip", [*KEYS[:1:-2], "else"], (".npy", ".json"), (4, 2))
    dataset = wids.ShardListDataset(base).with_fields(captions)
    dataset = dataset.with_fields(clip, on="key", prefix="clip", missing="none", fields=".npy")
    dataset.save("joined.json")
    return "joined.json"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"size": 12_000},
        {"samples": 5, "seed": 3},
        {"fields": [".txt;.clip.npy", ".jpg"]},
        {"fields": (".clip.npy", ".cls")},
        {"fields": (".jpg",), "size": 20_000},
        {"where": "has_clip_npy", "order_by": "txt desc"},
    ],
    ids=str,
)
def test_a_joined_index_becomes_plain_tars(joined, settings):
    """Each sample has all of its members, those of companions under their names in the join; nobody joins any more."""
    fields = settings.get("fields")
    whole = dict(samples_of(joined))
    if fields is not None:
        asked = wids.ShardListDataset(joined, fields=fields, transformations=[])
        whole = {
            each["__key__"]: {name: data.read() for name, data in each.items() if name.startswith(".")}
            for each in asked
        }
    outcome = rewrite(joined, "new", **settings)
    raw = json.loads(Path("new/base.json").read_text())
    assert raw.keys() == {"wids_version", "name", "shardlist"}
    found = samples_of(outcome.index)
    if "where" in settings:
        whole = {key: whole[key] for key in ("k09", "k07", "k05", "k03", "k11")}  # by the texts "other9", ...
    assert dict(found) == whole
    assert ([key for key, _ in found] == list(whole)) == ("seed" not in settings)
    if "size" in settings:
        assert outcome.new > 1
        assert max(path.stat().st_size for path in Path("new").glob("*.tar")) <= 20_480
    assert not jobs.verify(outcome.index).wrong


def test_the_members_of_a_joined_sample(joined):
    """By name and order, as others read them."""
    rewrite(joined, "new")
    with tarfile.open("new/base-000000.tar") as archive:
        names = archive.getnames()
        assert archive.extractfile("k03.clip.npy").read() == b"clip.npy k03"
        assert archive.extractfile("k03.txt").read() == b"captions.txt other3"
    assert names[:8] == [
        *("k00.jpg", "k00.cls", "k00.txt", "k01.jpg", "k01.cls", "k01.txt"),
        *("k02.jpg", "k02.cls"),
    ]
    assert [name for name in names if name.startswith("k04")] == ["k04.jpg", "k04.cls"]


def test_a_view_of_a_joined_index_and_its_columns(joined):
    """The samples of the view; columns of the base go into them."""
    jobs.create_columns("j/base.json", spec=made.parse_spec(texts=[".cls=label"]))
    dataset = wids.ShardListDataset(joined, transformations=[])
    dataset.select([9, 3, 4]).save("view.json")
    for name in ("view.json", joined):
        outcome = rewrite(name, f"of-{name}/x.json", columns="label", order_by="index desc", where="index < 99")
        found = samples_of(outcome.index)
        whole = [each for k, each in reversed(list(enumerate(samples_of(joined)))) if name == joined or k in (3, 4, 9)]
        assert [json.loads(fields.pop(".json")) for _, fields in found] == [
            {"label": f"base.cls {key}"} for key, _ in whole
        ]
        assert found == whole
    assert outcome.removed == 0


@pytest.mark.parametrize("engine", [RunOptions(engine="threads", jobs=2), RunOptions(engine="processes", jobs=2)])
def test_a_joined_index_anywhere(joined, engine, monkeypatch):
    """Processes have the same result, and a run that was ended goes on; a changed companion is written anew."""
    settings = {"samples": 4, "seed": 2}
    rewrite(joined, "whole/x.json", **settings)
    with monkeypatch.context() as patched:
        fail_at(patched, 2)
        with pytest.raises(OutputError, match="full"):
            rewrite(joined, "new/x.json", **settings)
    outcome = rewrite(joined, "new/x.json", engine=engine, **settings)
    assert outcome.known == 1
    assert files_in("new") == files_in("whole")
    with monkeypatch.context() as patched:
        fail_at(patched, 2)
        with pytest.raises(OutputError, match="full"):
            rewrite(joined, "changed/x.json", **settings)
    os.utime("j/captions-2.tar", (1, 1))
    assert rewrite(joined, "changed/x.json", engine=engine, **settings).known == 0


def test_joined_shards_behind_a_server(joined):
    """Those of companions are read through the cache, too."""
    whole = samples_of(joined)
    os.rename("joined.json", "j/joined.json")
    rows = [path for path in Path().iterdir() if path.suffix == ".joined"]
    raw = json.loads(Path("j/joined.json").read_text())
    for entry in [raw, *raw["companions"]]:
        entry |= {name: os.path.basename(entry[name]) for name in ("view_of", "index", "rows") if name in entry}
    for path in rows:
        os.rename(path, f"j/{path.name}")
    write_json("j/joined.json", raw)
    with Server("j") as server:
        outcome = rewrite(f"{server.url}/joined.json", "new", size=12_000, cache_dir="cache")
    assert samples_of(outcome.index) == whole


def test_files_of_companions_are_not_written_over(joined):
    """Their indexes, and their shards."""
    for output in ("j/captions.json", "j/clip.json", "j/base.json"):
        with pytest.raises(OutputExistsError, match=r"is the index (of a companion|that)"):
            rewrite(joined, output, overwrite=True)
    write_tar("new/base-000000.tar", {"a.txt": b""})
    with pytest.raises(OutputExistsError, match="exists, and is not replaced"):
        rewrite(joined, "new")


def test_a_companion_that_has_a_field_of_the_base():
    """The error names the way out."""
    base = write_set("base", KEYS, (".jpg",), (12,))
    other = write_set("other", KEYS, (".jpg",), (12,))
    wids.ShardListDataset(base).with_fields(other, fields=".jpg").save("joined.json")
    with pytest.raises(InputError, match=r"has '.jpg' twice.*prefix"):
        rewrite("joined.json", "new")


def test_pack_takes_a_joined_index(joined):
    """As any dataset."""
    whole = samples_of(joined)
    settings = jobs.PackSettings(output="packed/p-%d.tar", samples=5)
    source = jobs.PackSource(where="txt like '%other_' or has_clip_npy", cache_dir="cache")
    jobs.pack(joined, settings, source=source, engine=ONE)
    kept = [each for each in whole if each[0] not in ("k04", "k10")]
    assert samples_of("packed/p.json") == kept

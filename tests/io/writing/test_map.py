"""New fields of samples: what is in the shards and tables, what fails, and what a later run computes."""

import json
import os
import random
import secrets
import signal
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest

import wids
from tests.support import mapped
from tests.support.children import child, receive
from tests.support.shards import write_index, write_json, write_tar
from wids import jobs
from wids.errors import InputError, OutputError, OutputExistsError, TooManyErrorsError
from wids.jobs.runner import RunOptions
from wids.testing import Server

COUNTS = (5, 4, 0, 6, 3)
ONE = RunOptions(engine="threads", jobs=1)
FEW = jobs.MapSettings(max_errors=1)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch, own_cache):
    """The directory of the test, with a dataset in it."""
    monkeypatch.chdir(tmp_path)
    write_index("base", COUNTS)
    return tmp_path


def run(function=mapped.count_letters, index="base/index.json", output="new", engine=ONE, **settings):
    """The outcome of a job."""
    return jobs.map(index, function, output, settings=jobs.MapSettings(**settings), engine=engine)


def rows_of(index):
    """(key, fields) of each sample, undecoded."""
    dataset = wids.ShardListDataset(index, transformations=[])
    return [
        (each["__key__"], {name: data.getvalue() for name, data in each.items() if name.startswith(".")})
        for each in dataset
    ]


def content(directory):
    """The bytes of all files of a job but those with times in them."""
    return {
        path.name: path.read_bytes()
        for path in Path(directory).iterdir()
        if path.suffix not in (".widx", ".state") and path.is_file()
    }


def texts_of(index):
    """The new text of each row, or None for an empty row."""
    return [fields[".upper.txt"].decode() if ".upper.txt" in fields else None for _, fields in rows_of(index)]


def expected(*, skip=lambda _: False):
    """The texts that `texts_of` is to find."""
    return [None if k % 4 == 3 or skip(k) else f"TEXT {k}" for k in range(sum(COUNTS))]


def test_each_shard_has_the_rows_of_its_own():
    """The keys, in the order, with the new fields only; the index tells of them as of any shards."""
    before = content("base")
    outcome = run()
    base = wids.ShardListDataset("base/index.json")
    assert [key for key, _ in rows_of("new/index.json")] == list(base.keys)
    assert texts_of("new/index.json") == expected()
    index = json.loads(Path("new/index.json").read_text())
    assert index["fields"] == [".len.npy", ".upper.txt"]
    assert [(each["url"], each["nsamples"]) for each in index["shardlist"]] == [
        (f"s{k}.tar", count) for k, count in enumerate(COUNTS) if count
    ]
    assert jobs.verify("new/index.json").wrong == []
    assert all(Path(f"new/s{k}.tar.widx").exists() for k in (0, 1, 3, 4))
    assert content("base") == before
    assert (outcome.samples, outcome.computed, outcome.empty, outcome.errors) == (18, 18, 4, 0)
    assert outcome.fields == {".len.npy": 14, ".upper.txt": 14}
    assert np.array_equal(wids.ShardListDataset("new/index.json")[6][".len.npy"], np.full(3, 6, np.float32))


def test_rows_without_fields_have_one_empty_member():
    """For None, an empty dict, and one with names of the sample alone."""
    run(lambda sample: [None, {}, {"__key__": "x"}, {".a.txt": ""}][int(sample[".cls"]) % 4])
    names = [list(fields.items()) for _, fields in rows_of("new/index.json")]
    assert names[:4] == [[(".empty", b"")]] * 3 + [[(".a.txt", b"")]]
    with tarfile.open("new/s0.tar") as archive:
        assert [(each.name, each.size) for each in archive][:2] == [("s0-000.empty", 0), ("s0-001.empty", 0)]


@pytest.mark.parametrize("size", [1, 2, 4, 100])
def test_batches(size):
    """They are of one shard, have so many samples at most, and make what single samples make."""
    sizes = []

    def count(samples):
        sizes.append(len(samples))
        return mapped.count_batch(samples)

    run(count, batch_size=size)
    assert texts_of("new/index.json") == expected()
    assert sizes == [min(size, count - at) for count in COUNTS for at in range(0, count, size)]


@pytest.mark.parametrize("size", [None, 1, 3, 100])
def test_a_sample_that_fails_costs_itself_alone(size):
    """Its row is empty, it is counted, and named in a log that `exclude` takes, with batches of any size."""
    outcome = run(mapped.fail_some if size is None else mapped.fail_batch, batch_size=size, max_errors=1)
    failed = [k for k in range(18) if k % 5 == 2]
    assert texts_of("new/index.json") == expected(skip=lambda k: k % 5 == 2)
    assert outcome.errors == len(failed)
    assert outcome.first_error.startswith(f"s0-002 (row 2) of {os.getcwd()}/base/s0.tar: ValueError: no 2\n")
    assert outcome.first_error.splitlines()[-1].startswith("mapped.py, line ")
    dataset = wids.ShardListDataset("base/index.json")
    kept = dataset.exclude(outcome.error_log)
    assert [int(each[".cls"]) for each in kept] == [k for k in range(18) if k not in failed]
    lines = [json.loads(line) for line in Path("new/errors.jsonl").read_text().splitlines()]
    assert (lines[0]["row"], lines[0]["key"], lines[0]["error"]) == (2, "s0-002", "ValueError: no 2")


def test_samples_that_cannot_be_decoded_or_encoded():
    """They fail as others do."""
    write_tar("odd/s0.tar", [("a.json", b"{"), ("b.json", b"1"), ("c.json", b"2"), ("d.json", b"3")])
    write_json("odd/index.json", {"wids_version": 1, "shardlist": [{"url": "s0.tar", "nsamples": 4}]})
    values = {1: {"npy": object()}, 2: 7, 3: {"txt": "fine"}}
    outcome = run(lambda sample: values[sample[".json"]], "odd/index.json", max_errors=1)
    words = [json.loads(line) for line in Path("new/errors.jsonl").read_text().splitlines()]
    assert [each["error"].partition(":")[0] for each in words] == ["DecodeError", "SampleError", "SampleError"]
    assert [each["field"] for each in words] == [".json", ".npy", None]
    assert "returned an int" in words[2]["error"]
    assert outcome.empty == 3
    outcome = run(lambda samples: [None] * (len(samples) - 1), output="b", batch_size=2, max_errors=1)
    assert outcome.errors == 18
    assert "returned 1 results for 2 samples" in outcome.first_error or "0 results for 1" in outcome.first_error


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({".empty": b""}, "marks rows without fields"),
        ({".a": b"", "A": b""}, "is there twice"),
        ({3: b""}, "no name of a field"),
        ({".": b""}, "is no field"),
        ({"a/b": b""}, "is no field"),
        ({"bin.zzz": 3}, "no encoder"),
    ],
)
def test_fields_that_are_none(fields, words):
    """Each is a failure of its sample."""
    with pytest.raises(TooManyErrorsError, match=words):
        run(lambda _: fields)


def test_fields_that_samples_have_already():
    """They end the job at once, because the new shards could not be joined; a prefix makes others of them."""
    with pytest.raises(InputError, match=r"returned '\.TXT', and samples of .*s0\.tar have a '\.txt' already"):
        run(lambda _: {"TXT": b""})
    outcome = run(lambda _: {"TXT": b""}, prefix="new")
    assert outcome.fields == {".TXT": 18}
    write_tar("p/s0.tar", [("a.new.txt", b"1")])
    with pytest.raises(InputError, match=r"have a '\.new\.txt' already"):
        run(lambda _: {"txt": b""}, "p/s0.tar", "q", prefix="new")


def test_too_many_errors():
    """They end the job, whose log and finished shards stay; with more allowed, the next run goes on."""
    write_index("many", (40, 40, 40))

    def fail(sample):
        if int(sample[".cls"]) >= 60:
            raise ValueError("too late")
        return {"a.txt": "x"}

    with pytest.raises(TooManyErrorsError, match=r"20 of 80 samples failed, more than max_errors=0\.1.*too late"):
        run(fail, "many/index.json", max_errors=0.1)
    assert not Path("new/index.json").exists()
    assert len(Path("new/errors.jsonl").read_text().splitlines()) >= 10
    outcome = run(fail, "many/index.json", max_errors=0.6)
    assert (outcome.known, outcome.errors, outcome.shards) == (1, 60, 3)


def test_all_samples_fail():
    """That is an error, of however few samples."""
    with pytest.raises(TooManyErrorsError, match="5 of 5 samples failed"):
        run(lambda _: 1 / 0, "base/s0.tar")
    assert not Path("new/index.json").exists()


def test_faults_that_are_not_of_samples(monkeypatch):
    """They end the job; what is finished stays."""

    def lack(sample):
        if int(sample[".cls"]) == 7:
            raise ModuleNotFoundError("no module named torch2")
        return {"a.txt": "x"}

    with pytest.raises(wids.errors.JobError, match=r"s1\.tar: ModuleNotFoundError"):
        run(lack)
    assert run(lambda _: {"a.txt": "x"}, overwrite=True).known == 0


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_a_class_has_an_instance_in_each_process(engine, monkeypatch):
    """Threads share one; it is named, or given as it is."""
    monkeypatch.setenv("WIDS_TEST_LOG", os.path.abspath("log"))
    how = RunOptions(engine=engine, jobs=2)
    run("tests.support.mapped:Model", engine=how)
    run(mapped.Model, output="again", engine=how)
    assert content("new").keys() == content("again").keys()
    assert texts_of("again/index.json") == expected()
    made = Path("log").read_text().split()
    assert len(made) == (2 if engine == "threads" else len(set(made)))
    assert (str(os.getpid()) in made) is (engine == "threads")


def test_where_and_views():
    """Rows of other samples are empty: the new shards have all rows of the base's."""
    run(where=("has_txt", "key >= 's1'"))
    assert texts_of("new/index.json") == expected(skip=lambda k: k < 5)
    wids.ShardListDataset("base/index.json").select([0, 4, 9, 17]).save("view.json")
    outcome = run(index="view.json", output="of-view")
    assert texts_of("of-view/index.json") == expected(skip=lambda k: k not in (0, 4, 9, 17))
    assert (outcome.samples, outcome.computed, outcome.empty) == (18, 4, 14)
    outcome = run(index="view.json", output="both", where=("key >= 's3'",), columns=False)
    assert texts_of("both/index.json") == expected(skip=lambda k: k not in (9, 17))
    with pytest.raises(InputError, match="no samples to compute"):
        run(where=("key > 'x'",), output="none")


def joined_texts(index):
    """(old text, new text or None) of each sample."""
    return [(each[".txt"], each.get(".upper.txt")) for each in wids.ShardListDataset(index)]


def test_the_joined_index():
    """It has the samples that were given, with their new fields; a later run writes it again."""
    texts = [f"text {k}" for k in range(18)]
    outcome = run()
    assert outcome.joined == os.path.abspath("new/joined.json")
    assert joined_texts("new/joined.json") == list(zip(texts, expected(), strict=True))
    run(prefix="more")
    assert wids.ShardListDataset("new/joined.json")[0][".more.upper.txt"] == "TEXT 0"
    outcome = run(where=("key >= 's3'",), output="some")
    few = expected(skip=lambda k: k < 9)
    assert joined_texts("some/joined.json") == list(zip(texts, few, strict=True))
    chosen = [1, 2, 6, 17]
    wids.ShardListDataset("base/index.json").select(chosen).save("view.json")
    run(index="view.json", output="of-view")
    assert joined_texts("of-view/joined.json") == [(texts[k], expected()[k]) for k in chosen]
    assert run(index="base/s0.tar", output="one").joined
    assert joined_texts("one/joined.json") == list(zip(texts, expected(), strict=True))[:5]


def test_samples_with_companions():
    """A function gets their fields, too; new ones may not be theirs, and shards follow companions that change."""
    run(lambda sample: {"a.txt": f"a {sample['.cls']}"}, output="a")

    def extend(sample):
        return {"b.txt": f"{sample['.a.txt']} b"}

    run(extend, "a/joined.json", "b", fields=(".a.txt",))
    assert wids.ShardListDataset("b/joined.json")[7][".b.txt"] == "a 7 b"
    assert wids.ShardListDataset("b/joined.json")[7][".a.txt"] == "a 7"
    with pytest.raises(InputError, match=r"returned '\.a\.txt', and samples of .* have a '\.a\.txt' already"):
        run(lambda _: {"a.txt": ""}, "a/joined.json", "c")
    assert run(extend, "a/joined.json", "b", fields=(".a.txt",)).known == 4
    run(lambda sample: {"a.txt": f"A {sample['.cls']}"}, output="a", overwrite=True)
    assert run(extend, "a/joined.json", "b", fields=(".a.txt",)).known == 0
    assert wids.ShardListDataset("b/joined.json")[7][".b.txt"] == "A 7 b"


def test_only_fields_that_are_asked_for_are_read():
    """And they are decoded as asked; names of fields are the dataset's own."""
    seen = []

    def look(sample):
        seen.append({name: type(value) for name, value in sample.items() if not name.startswith("__")})

    run(look, "base/s0.tar", fields=(".txt",))
    assert seen[0] == {".txt": str}
    run(look, "base/s0.tar", output="raw", fields=(".cls",), decode="raw")
    assert seen[-1] == {".cls": bytes}
    run(look, "base/s0.tar", output="named", fields={"text": "caption;txt"})
    assert seen[-1] == {"text": str}
    run(look, "base/s0.tar", output="none", fields=(".cls",), decode="none")
    assert [kind.__name__ for kind in seen[-1].values()] == ["BytesIO"]


def test_a_second_run_computes_what_has_changed():
    """Shards that are new or were written again, and those with failures if asked; of others it computes nothing."""
    run(mapped.fail_some, max_errors=1)
    before = content("new")
    assert run(mapped.fail_some, max_errors=1).known == 4
    assert run(mapped.fail_some, max_errors=1, retries_errors=True).known == 0  # each has one that failed
    assert content("new") == before
    write_index("base", (*COUNTS, 2))
    assert run(mapped.fail_some, max_errors=1).known == 0  # all of them were written again
    os.utime("base/s1.tar", ns=(1, 1))
    Path("new/s4.tar").unlink()
    Path("new/s3.tar.widx").unlink()
    assert run(mapped.fail_some, max_errors=1).known == 2
    assert texts_of("new/index.json")[:18] == expected(skip=lambda k: k % 5 == 2)


def test_another_function_or_other_settings_do_not_mix():
    """With what an earlier run has written; overwriting begins anew."""
    run()
    for how in ({"decode": "raw"}, {"fields": (".txt", ".cls")}, {"batch_size": 3}):
        with pytest.raises(OutputExistsError, match="computed by the same function with other settings"):
            run(**how)
    with pytest.raises(OutputExistsError, match=r"4 of its shards were computed by 'tests\.support\.mapped:count_let"):
        run(mapped.fail_some)
    assert run(mapped.fail_some, max_errors=1, overwrite=True).known == 0
    assert texts_of("new/index.json") == expected(skip=lambda k: k % 5 == 2)
    assert run(mapped.fail_batch, max_errors=1, batch_size=2, overwrite=True).known == 0
    assert run(mapped.fail_batch, max_errors=1, batch_size=5).known == 4  # how many at a time does not matter


def test_files_of_others_stay():
    """Unless they may be replaced; the dataset itself stays in any case."""
    with pytest.raises(OutputError, match="is a part of the dataset that is computed"):
        run(output="base", overwrite=True)
    os.mkdir("new")
    Path("new/s3.tar").write_bytes(b"precious")
    with pytest.raises(OutputExistsError, match=r"new/s3\.tar: exists"):
        run()
    Path("new/s3.tar").unlink()
    Path("new/index.json").write_bytes(b"{}")
    with pytest.raises(OutputExistsError, match=r"new/index\.json: exists"):
        run()
    os.rename("new/index.json", "new/joined.json")
    with pytest.raises(OutputExistsError, match=r"new/joined\.json: exists"):
        run()
    Path("new/joined.json").unlink()
    Path("new/errors.jsonl").write_bytes(b"precious\n")
    with pytest.raises(OutputExistsError, match=r"errors\.jsonl: exists"):
        run()
    assert sorted(os.listdir("new")) == ["errors.jsonl"]
    run(overwrite=True)
    assert not Path("new/errors.jsonl").exists()


@pytest.mark.parametrize(
    ("output", "columns", "words"),
    [
        ("base/index.json", False, "name of a file"),
        ("t.parquet", False, "give columns too"),
        ("table", True, r"ends in \.parquet"),
        ("d.parquet", True, "is a directory"),
        ("file", False, "is a file"),
    ],
)
def test_places_of_the_output(output, columns, words):
    """One of the other kind is refused."""
    os.mkdir("d.parquet")
    Path("file").touch()
    with pytest.raises(OutputError, match=words):
        run(output=output, columns=columns)


def test_shards_of_one_name():
    """They have a number before it."""
    write_index("more", (2, 3))
    index = [f"{name}/s{k}.tar" for name in ("base", "more") for k in (0, 1)]
    run(index=index, output="new")
    assert sorted(path.name for path in Path("new").glob("*.tar")) == [f"{k}-s{k % 2}.tar" for k in range(4)]
    assert len(rows_of("new/index.json")) == 14


def test_keys_of_other_rules():
    """The new index says how its keys are found, as the base's does."""
    write_tar("odd/s0.tar", [("v1.5.txt", b"a"), ("v1.6.txt", b"b")])
    entry = {"url": "s0.tar", "nsamples": 2}
    write_json("odd/index.json", {"wids_version": 1, "key_rule": "last-dot", "shardlist": [entry]})
    run(lambda sample: {"npy": np.zeros(2)}, "odd/index.json")
    assert [key for key, _ in rows_of("new/index.json")] == ["v1.5", "v1.6"]
    with pytest.raises(TooManyErrorsError, match="has two dots"):
        run(lambda sample: {"a.npy": np.zeros(2)}, "odd/index.json", "other")
    write_tar("apart/s0.tar", [("a.txt", b"a"), ("b.txt", b"b"), ("a.cls", b"1"), ("b.cls", b"2")])
    write_json("apart/index.json", {"wids_version": 1, "group": "key", "shardlist": [entry]})
    run(lambda sample: {"sum.txt": sample[".txt"] * sample[".cls"]}, "apart/index.json", "grouped")
    assert rows_of("grouped/index.json") == [("a", {".sum.txt": b"a"}), ("b", {".sum.txt": b"bb"})]


def test_keys_that_would_not_come_back():
    """A key that only the base's own members keep apart is an error that names it."""
    write_tar("odd/s0.tar", [("a.txt", b"1"), ("b.txt", b"2"), ("a.cls", b"1")])
    run(lambda sample: {"npy": np.zeros(1)}, "odd/s0.tar", "fine")
    assert [key for key, _ in rows_of("fine/index.json")] == ["a", "b", "a"]


def test_values_become_a_table():
    """Rows are those of the base; types are those of columns, whatever shards they come from."""
    outcome = run(mapped.measure, output="t.parquet", columns=True)
    assert outcome.columns == {"letters": "int64", "half": "double", "vector": "float64[2]", "tag": "string"}
    dataset = wids.ShardListDataset("base/index.json").with_table("t.parquet", on="index", fields=True)
    assert [each["letters"] for each in dataset] == [len(f"text {k}") for k in range(18)]
    assert dataset[4]["vector"].tolist() == [0.5, 4.0]
    assert dataset[5]["vector"].tolist() == [5.0, 5.0]
    assert [each["tag"] for each in dataset][:4] == ["tag 0", None, None, "tag 3"]
    assert len(dataset.where("half > 4")) == 9
    by_key = wids.ShardListDataset("base/index.json").with_table("t.parquet", on="key")
    assert by_key.read_column("half").tolist() == [k / 2 for k in range(18)]
    assert not list(Path().glob("t.parquet.*"))
    with pytest.raises(OutputExistsError, match=r"t\.parquet: exists"):
        run(mapped.measure, output="t.parquet", columns=True)
    assert run(mapped.measure, output="t.parquet", columns=True, overwrite=True, where=("key < 's1'",)).empty == 13
    dataset = wids.ShardListDataset("base/index.json").with_table("t.parquet", on="index", fields=True)
    assert [each["half"] for each in dataset][3:7] == [1.5, 2.0, None, None]


def test_a_table_of_a_view():
    """It has the rows of the whole index, to which it is attached by index, and to the view by key."""
    wids.ShardListDataset("base/index.json").select([1, 6]).save("view.json")
    run(mapped.measure, "view.json", "t.parquet", columns=True)
    whole = wids.ShardListDataset("base/index.json").with_table("t.parquet", on="index", fields=["half"])
    assert [each["half"] for each in whole] == [k / 2 if k in (1, 6) else None for k in range(18)]
    view = wids.ShardListDataset("view.json").with_table("t.parquet", on="key", fields=["half"])
    assert [each["half"] for each in view] == [0.5, 3.0]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (np.float32(2.5), "double"),
        (np.arange(3, dtype=np.int16), "int16[3]"),
        (np.array(7), "int64"),
        ([1, 2], "int64[2]"),
        ((1.5, 2), "float64[2]"),
        ([], "json"),
        ([1 << 70], "json"),
        (["a", None], "json"),
        ({"a": [1.5]}, "json"),
        (True, "bool"),
    ],
)
def test_kinds_of_values(value, kind):
    """Those of columns; lists of numbers are vectors."""
    assert run(lambda _: {"v": value}, output="t.parquet", columns=True).columns == {"v": kind}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"v": np.zeros((2, 2))}, r"array of shape \(2, 2\)"),
        ({"v": np.array(["a"])}, "and type <U1"),
        ({"v": b"x"}, "a bytes"),
        ({"v": {1: 2}}, "a dict"),
        ({"Key": 2}, "cannot be called 'Key'"),
        ({"a": 1, "A": 2}, "or is there twice"),
        ({"": 2}, "cannot be called ''"),
    ],
)
def test_values_that_no_column_holds(fields, words):
    """Each is a failure of its sample."""
    with pytest.raises(TooManyErrorsError, match=words):
        run(lambda _: fields, output="t.parquet", columns=True)


def test_tensors_in_a_table():
    """They are vectors, or numbers."""
    torch = pytest.importorskip("torch")
    outcome = run(lambda _: {"v": torch.ones(2), "n": torch.tensor(2)}, output="t.parquet", columns=True)
    assert outcome.columns == {"v": "float32[2]", "n": "int64"}


def test_a_trial_writes_nothing():
    """It shows the results of the first samples."""
    before = sorted(Path().rglob("*"))
    outcome = run(mapped.fail_some, trial=7)
    assert sorted(Path().rglob("*")) == before
    assert [each.key for each in outcome.trial] == [*(f"s0-{k:03d}" for k in range(5)), "s1-000", "s1-001"]
    assert outcome.trial[0].fields == {".len.npy": "ndarray float32 (3,), 140 B", ".upper.txt": "str 'TEXT 0', 6 B"}
    assert (outcome.trial[2].error, outcome.errors) == ("ValueError: no 2", 1)
    assert outcome.trial[2].trace
    assert outcome.trial[3].fields == {}
    table = run(mapped.measure, output="t.parquet", columns=True, trial=1).trial[0]
    assert table.fields["vector"] == "ndarray float64 (2,)"
    words = run(lambda _: {"png": np.zeros((2, 3), np.uint8), "bin": b"xyz"}, output="o", trial=1, prefix="p").trial[0]
    assert words.fields[".bin"] == "bytes, 3 B"


@pytest.mark.parametrize("access", ["whole", "parts"])
def test_shards_of_a_server(access):
    """Whole shards are downloaded; of parts of samples, only these are read."""
    jobs.create_index("base/*.tar", "base/train.json", settings=jobs.IndexSettings(has_tables=True))
    with Server("base") as server:
        how = {"fields": (".txt", ".cls")} if access == "parts" else {}
        run(index=f"{server.url}/train.json", **how)
    assert texts_of("new/index.json") == expected()


def test_a_store_takes_the_output():
    """As a directory does, also of a run that goes on."""
    store = f"memory://map-{secrets.token_hex(4)}"
    outcome = run(output=f"{store}/new")
    assert (outcome.output, outcome.joined) == (f"{store}/new/index.json", None)
    assert texts_of(outcome.output) == expected()
    assert run(output=f"{store}/new").known == 4
    outcome = run(mapped.measure, output=f"{store}/t.parquet", columns=True)
    dataset = wids.ShardListDataset("base/index.json").with_table(f"{store}/t.parquet", on="index")
    assert dataset.read_column("half").tolist() == [k / 2 for k in range(18)]


def run_to_the_kill(connection, directory, output, engine):
    """Run the job of `test_kills`, and say when it has ended."""
    os.setpgrp()  # its own processes, which end with it
    os.chdir(directory)
    connection.send(os.getpid())
    how = jobs.MapSettings(batch_size=2, max_errors=1)
    function = "tests.support.mapped:fail_batch"
    jobs.map("many/index.json", function, output, settings=how, engine=RunOptions(engine=engine, jobs=2))
    connection.send("done")


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.thorough)])
def test_kills(home, kills):
    """A job that is killed again and again, with another engine each time, makes what one makes that is not."""
    write_index("many", [7] * 40)
    run(mapped.fail_batch, "many/index.json", "whole/new", batch_size=2, max_errors=1)
    chance = random.Random(kills)
    for k in range(kills):
        engine = ("threads", "processes")[k % 2]
        with child(run_to_the_kill, str(home), "new", engine) as (process, connection):
            receive(connection)
            written = len([*Path("new").glob("*.tar")])
            goal = written + chance.randrange(0, 3)
            while len([*Path("new").glob("*.tar")]) < goal and process.is_alive():
                threading.Event().wait(0.002)
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
            process.join()
    outcome = jobs.map(
        "many/index.json",
        "tests.support.mapped:fail_batch",
        "new",
        settings=jobs.MapSettings(batch_size=2, max_errors=1),
        engine=ONE,
    )
    assert outcome.known > 0
    assert content("new") == content("whole/new")
    assert outcome.errors == len(Path("new/errors.jsonl").read_text().splitlines())

"""wids pack: each kind of source, the same bytes however it runs, and going on after it was killed."""

import contextlib
import csv
import gzip
import json
import os
import signal
import struct
import sys
import threading
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import wids
from tests.support import backends, columns
from tests.support.cli import PATIENCE_SECONDS, complaint, in_one_line, run, run_apart, run_ok, spawn
from tests.support.clocks import wait_until
from tests.support.shards import write_index, write_json, write_shard, write_tar
from wids.cli.advice import with_advice
from wids.errors import InputError, SampleError, WidsError
from wids.jobs import PackSource
from wids.jobs import pack as pack_sources
from wids.jobs.runner import RunOptions
from wids.tables.fields import parse_fields
from wids.tables.table import parse_table
from wids.testing import Server
from wids.transport.session import PLAIN
from wids.writing.pack import datasets, folders, manifest
from wids.writing.pack.labels import read_classes
from wids.writing.pack.run import SUFFIX
from wids.writing.pack.run import pack_listing as pack
from wids.writing.pack.shard import PackSettings, cut


def run_pack(*args, **options):
    """Run ``wids pack``."""
    return run("pack", *args, **options)


def put(directory, files):
    """Write files, a dict of names to bytes or text."""
    for name, data in files.items():
        path = os.path.join(directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
    return str(directory)


def photos(directory, count=10):
    """Images by class, as far as their names go: seven of cats to three of dogs."""
    return put(
        directory, {f"{'dog' if k % 3 == 0 else 'cat'}/v.1/{k:03d}.JPG": f"photo {k}" * 90 for k in range(count)}
    )


def shown(index, **options):
    """Keys and undecoded fields of all samples of a dataset."""
    dataset = wids.ShardListDataset(str(index), transformations="raw", **options)
    return [
        (sample["__key__"], {name: value for name, value in sample.items() if name.startswith(".")})
        for sample in dataset
    ]


def content(directory):
    """All files of a dataset: bytes by name; tables without the time of their shard."""
    found = {}
    for name in sorted(os.listdir(directory)):
        with open(os.path.join(directory, name), "rb") as file:
            data = file.read()
        if name.endswith(".widx"):
            table = parse_table(data, shard=name)
            data = table.with_identity(
                type(table.identity)(size=table.identity.size, md5=table.identity.md5)
            ).to_bytes()
        found[name] = data
    return found


def pack_files(source, output, **settings):
    """Pack a folder of files in this process."""
    listing = folders.list_files(str(source), numbers_keys=False, keep_fields=None, tell=lambda _: None)
    return pack(listing, PackSettings(output=str(output), **settings))


def pack_rows(path, output, *fields, key=None, base=None, numbers_keys=False, classes=None, **settings):
    """Pack a manifest in this process."""
    listing = manifest.list_rows(
        str(path),
        fields=[manifest.parse_field(field) for field in fields],
        key=key,
        base=base,
        numbers_keys=numbers_keys,
        session=PLAIN,
        tell=lambda _: None,
        classes=classes,
    )
    return pack(listing, PackSettings(output=str(output), numbers_keys=numbers_keys, **settings))


def pack_dataset(source, output, *, keep_fields=None, cache_dir="nowhere", **settings):
    """Pack a dataset in this process."""
    listing = datasets.list_dataset(
        source, cache_dir=str(cache_dir), keep_fields=keep_fields, session=PLAIN, tell=lambda _: None
    )
    return pack(listing, PackSettings(output=str(output), **settings))


def test_folder_of_images(tmp_path):
    """Images by class become samples in order of their names, labels count the sorted classes, and info has these."""
    photos(tmp_path / "photos", 10)
    put(tmp_path / "photos", {"cat/readme.txt": "x", ".hidden/a.jpg": "x"})
    code, out, err = run_pack(tmp_path / "photos", "-o", tmp_path / "out/p-%03d.tar", "--samples", 4, "--no-shuffle")
    assert (code, err) == (0, "")
    assert out.startswith(f"{tmp_path}/photos, taken as images by class: 10 samples in 3 shards, ")
    assert out.endswith(
        f": {tmp_path}/out/p.json\n2 classes, numbered in sorted order from 0 (cat, dog)\n"
        f"1 file ignored ({tmp_path}/photos/cat/readme.txt)\n"
    )
    found = shown(tmp_path / "out/p.json")
    assert [key for key, _ in found[:7]] == [f"cat/v.1/{k:03d}" for k in (1, 2, 4, 5, 7, 8)] + ["dog/v.1/000"]
    assert found[0][1] == {".jpg": b"photo 1" * 90, ".cls": b"0"}
    assert found[9][1] == {".jpg": b"photo 9" * 90, ".cls": b"1"}
    with open(tmp_path / "out/p.json") as file:
        assert json.load(file)["info"] == {"classes": ["cat", "dog"]}


def test_same_bytes_whatever_the_jobs(tmp_path):
    """One process and three write the same shards, index and tables, by samples and by size, shuffled too."""
    photos(tmp_path / "photos", 40)
    for jobs in (1, 3):
        options = ("--jobs", jobs, "--shuffle", 5, "--size", "20kB", "--json")
        code, out, err = run_pack(tmp_path / "photos", "-o", tmp_path / f"{jobs}/p-%d.tar", *options)
        assert (code, err) == (0, "")
        outcome = json.loads(out)
        assert (outcome["samples"], outcome["skipped"], outcome["kept"]) == (40, [], 0)
    assert content(tmp_path / "1") == content(tmp_path / "3")
    sizes = [len(data) for name, data in content(tmp_path / "1").items() if name.endswith(".tar")]
    assert len(sizes) > 3
    assert max(sizes) <= 20_480
    keys = [key for key, _ in shown(tmp_path / "1/p.json")]
    assert len({*keys}) == 40
    assert keys != sorted(keys)


def test_files(tmp_path):
    """Files of one key are one sample, in order of keys and extensions; hidden ones, and such without one, not."""
    put(
        tmp_path / "in",
        {"b.txt": "1", "a/x.seg.png": "2", "a/x.txt": "3", "a.1/y.txt": "4", ".z.txt": "5", "README": "6"},
    )
    outcome = pack_files(tmp_path / "in", tmp_path / "out/f-%d.tar")
    assert shown(outcome.index) == [
        ("a.1/y", {".txt": b"4"}),
        ("a/x", {".seg.png": b"2", ".txt": b"3"}),
        ("b", {".txt": b"1"}),
    ]
    assert (outcome.samples, outcome.ignored) == (3, 1)


def test_only_some_fields_of_files(tmp_path):
    """With --keep-fields, other files are not packed, and not read."""
    put(tmp_path / "in", {"a.txt": "1", "a.jpg": "2", "b.jpg": "3"})
    os.chmod(tmp_path / "in/a.jpg", 0)
    code, out, _ = run_pack(tmp_path / "in", "-o", tmp_path / "out/f-%d.tar", "--keep-fields", "txt", "--json")
    assert code == 0
    assert json.loads(out)["ignored"] == 2
    assert shown(tmp_path / "out/f.json") == [("a", {".txt": b"1"})]


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_manifests(tmp_path, kind):
    """Rows of every format become the same samples: files by path, labels by number, columns as JSON."""
    put(tmp_path / "in", {f"img/{k}.png": f"png {k}" for k in range(3)})
    rows = [{"path": f"img/{k}.png", "label": "ab"[k % 2], "id": f"id-{k}", "n": str(k)} for k in range(3)]
    path = tmp_path / f"in/rows.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    else:
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if kind == "tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    fields = (".png=path", ".cls=label", ".json=n,label", ".txt=n")
    outcome = pack_rows(path, tmp_path / "out/m-%d.tar", *fields, key="id", samples=2)
    assert shown(outcome.index)[2] == (
        "id-2",
        {".png": b"png 2", ".cls": b"0", ".json": b'{"n": "2", "label": "a"}', ".txt": b"2"},
    )
    with open(outcome.index) as file:
        assert json.load(file)["info"] == {"classes": ["a", "b"]}


def test_manifest_without_keys_from_the_command_line(tmp_path):
    """Rows without a key column are numbered; @ makes a file of a field, and --base says where files are."""
    put(tmp_path, {"pics/1.jpg": "x", "pics/1.txt": "caption", "rows.csv": "image,text,label\n1.jpg,1.txt,7\n"})
    options = ("--field", ".jpg=image", "--field", ".txt=@text", "--field", "cls=label", "--base", tmp_path / "pics")
    code, _, err = run_pack(tmp_path / "rows.csv", "-o", tmp_path / "out/m-%d.tar", *options)
    assert (code, err) == (0, "")
    assert shown(tmp_path / "out/m.json") == [("000000000", {".jpg": b"x", ".txt": b"caption", ".cls": b"7"})]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("r.csv", "path,label\na.jpg,1\n", "there is no column 'nope'; it has label, path"),
        ("r.jsonl", '{"path": "r.jsonl", "nope": 1}\n{"path"', "line 2: is not JSON"),
        ("r.jsonl", "[1]", "line 1: is a JSON list"),
        ("r.csv", "path,nope\n", "has no rows"),
        ("r.csv", b"path,nope\n\xff,1\n", "is no csv that can be read"),
        ("r.csv", "path,nope\n,1\n", "line 2: column 'path' is empty"),
        ("r.csv", "path,nope\ngone.jpg,1\n", "gone.jpg: cannot be read (No such file or directory)"),
        ("r.csv", "path,nope\nr.csv,\n", "line 2: column 'nope' is empty"),
        ("r.parquet", b"PAR1", "is no Parquet that can be read"),
    ],
)
def test_manifests_that_cannot_be_packed(tmp_path, name, text, words):
    """What is wrong with a manifest is told with its name, the row, and what is there instead."""
    put(tmp_path, {name: text})
    with pytest.raises(WidsError) as caught:
        pack_rows(tmp_path / name, tmp_path / "out/m-%d.tar", ".jpg=path", ".cls=nope")
    assert words in str(caught.value)
    assert name in str(caught.value)
    assert not os.path.exists(tmp_path / "out/m.json")


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    """Without pyarrow, Parquet is refused with what to install; a column that lacks is told."""
    pq.write_table(pa.Table.from_pylist([{"a": 1}]), tmp_path / "r.parquet")
    with pytest.raises(WidsError, match="no column 'b'; it has a"):
        pack_rows(tmp_path / "r.parquet", tmp_path / "out/m-%d.tar", ".cls=b")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(WidsError, match=r"pip install 'wids\[parquet\]'"):
        pack_rows(tmp_path / "r.parquet", tmp_path / "out/m-%d.tar", ".cls=a")


def test_repeated_keys_of_a_manifest(tmp_path):
    """A key that came before is told with both rows; numbered keys do not care."""
    put(tmp_path, {"r.csv": "id,n\na,1\nb,2\na,3\n"})
    with pytest.raises(WidsError, match=r"r.csv, line 4: key 'a' is that of line 2, too"):
        pack_rows(tmp_path / "r.csv", tmp_path / "out/m-%d.tar", ".cls=n", key="id")
    outcome = pack_rows(tmp_path / "r.csv", tmp_path / "out/m-%d.tar", ".cls=n", key="id", numbers_keys=True)
    assert [key for key, _ in shown(outcome.index)] == ["000000000", "000000001", "000000002"]


@pytest.mark.parametrize("text", [".jpg", ".jpg=", ".cls=a,b", "a/b=c", ".json=a,,b"])
def test_fields_that_say_nothing(text):
    """A --field that names no column, or too many, is refused."""
    with pytest.raises(InputError, match="field"):
        manifest.parse_field(text)


def test_dataset_is_dealt_out_anew(tmp_path):
    """An index becomes other shards with the same members; a range, some fields, a shuffle and numbers change those."""
    index = write_index(tmp_path / "in", (3, 4, 2))
    same = pack_dataset(index, tmp_path / "a/s-%d.tar", samples=5)
    assert shown(same.index) == shown(index)
    code, _, err = run_pack(
        *(index, "-o", tmp_path / "b/s-%d.tar", "--range", "1:8", "--keep-fields", ".cls,.txt", "--shuffle", 1),
        *("--number-keys", "--samples", 3, "--jobs", 2),
    )
    assert (code, err) == (0, "")
    found = shown(tmp_path / "b/s.json")
    assert [key for key, _ in found] == [f"{k:09d}" for k in range(7)]
    assert {tuple(fields) for _, fields in found} == {(".txt", ".cls")}
    labels = [int(fields[".cls"]) for _, fields in found]
    assert sorted(labels) == [*range(1, 8)]
    assert labels != sorted(labels)


def test_dataset_by_size(tmp_path):
    """By size, shards of a dataset are cut as those of files are: none is larger than it may be."""
    index = write_index(tmp_path / "in", (30, 40))
    outcome = pack_dataset(index, tmp_path / "a/s-%d.tar", size=30_720)
    sizes = [os.path.getsize(tmp_path / f"a/s-{k}.tar") for k in range(outcome.shards)]
    assert len(sizes) > 3
    assert max(sizes) <= 30_720
    assert shown(outcome.index) == shown(index)


def test_tars_without_an_index(tmp_path):
    """A folder of tars, or a brace pattern, is packed as the dataset that it is."""
    write_index(tmp_path / "in", (3, 4))
    code, _, err = run_pack(tmp_path / "in", "-o", tmp_path / "a/s-%d.tar")
    assert (code, err) == (0, "")
    assert len(shown(tmp_path / "a/s.json")) == 7
    put(tmp_path / "in", {"notes.txt": "x"})
    with pytest.raises(WidsError, match="holds tars and other files"):
        folders.guess_format(str(tmp_path / "in"))
    assert pack_dataset(f"{tmp_path}/in/s{{0..1}}.tar", tmp_path / "b/s-%d.tar").samples == 7


def test_keys_that_meet_in_a_shard(tmp_path):
    """Shards with the same keys cannot become one as they are; the error says what helps."""
    tars = [write_tar(tmp_path / f"{k}.tar", {"a.txt": b"x", "b.txt": b"y"}) for k in range(2)]
    with pytest.raises(SampleError, match=r"s-0.tar: two samples have the key 'a'") as caught:
        pack_dataset(tars, tmp_path / "out/s-%d.tar")
    assert with_advice(caught.value).endswith("'a'; --number-keys numbers them")
    assert os.listdir(tmp_path / "out") == []
    assert pack_dataset(tars, tmp_path / "out/s-%d.tar", numbers_keys=True).samples == 4


def test_remote_dataset(tmp_path):
    """A remote dataset is read through the cache, and packed as a local one."""
    index = write_index(tmp_path / "in", (3, 4))
    place = backends.memory("pack-in")
    for name in os.listdir(tmp_path / "in"):
        with open(tmp_path / "in" / name, "rb") as file:
            place.add(name, file.read())
    outcome = pack_dataset(f"{place.url}/index.json", tmp_path / "a/s-%d.tar", cache_dir=tmp_path / "cache")
    assert shown(outcome.index) == shown(index)


def test_memory_output(tmp_path):
    """Shards go to a remote place; what was finished there before is kept, and the journal goes."""
    put(tmp_path / "in", {f"{k}.txt": str(k) for k in range(5)})
    listing = folders.list_files(str(tmp_path / "in"), numbers_keys=False, keep_fields=None, tell=lambda _: None)
    settings = PackSettings(output="memory://pack-out/f-%d.tar", samples=2)
    outcome = pack(listing, settings, engine=RunOptions(jobs=3))
    assert shown(outcome.index, cache_dir=tmp_path / "cache") == [(str(k), {".txt": b"%d" % k}) for k in range(5)]
    names = [os.path.basename(name) for name in fsspec.filesystem("memory").ls("/pack-out", detail=False)]
    assert sorted(names) == sorted([f"f-{k}.tar{end}" for k in range(3) for end in ("", ".widx")] + ["f.json"])
    with pytest.raises(WidsError, match="exists"):
        pack_files(tmp_path / "in", "memory://pack-out/f-%d.tar")


def test_remote_journal(tmp_path, monkeypatch):
    """A run to a remote place that fails leaves a journal there, and the next one goes on from it."""
    put(tmp_path / "in", {f"{k}.txt": str(k) for k in range(4)})
    os.rename(tmp_path / "in/3.txt", tmp_path / "3.txt")
    os.symlink(tmp_path / "3.txt", tmp_path / "in/3.txt")
    listing = folders.list_files(str(tmp_path / "in"), numbers_keys=False, keep_fields=None, tell=lambda _: None)
    settings = PackSettings(output="memory://pack-again/f-%d.tar", samples=1)
    os.rename(tmp_path / "3.txt", tmp_path / "away.txt")
    with pytest.raises(WidsError, match=r"3.txt: cannot be read"):
        pack(listing, settings)
    os.rename(tmp_path / "away.txt", tmp_path / "3.txt")
    assert pack(listing, settings).kept == 3
    assert not fsspec.filesystem("memory").exists(f"/pack-again/f.json{SUFFIX}")


def test_s3_from_several_processes(tmp_path, monkeypatch):
    """Processes upload their shards to a bucket; the dataset there is the one that was packed."""
    put(tmp_path / "in", {f"{k}.txt": str(k) for k in range(4)})
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with backends.s3() as store:
        place = store.place()
        options = ("--samples", 2, "--jobs", 2, "--storage-options", json.dumps(place.options))
        code, _, err = run_pack(tmp_path / "in", "-o", f"{place.url}/f-%d.tar", *options)
        assert (code, err) == (0, "")
        found = shown(f"{place.url}/f.json", cache_dir=tmp_path / "cache", storage_options=place.options)
    assert found == [(str(k), {".txt": b"%d" % k}) for k in range(4)]


@contextlib.contextmanager
def rows_with_a_stop(directory):
    """A manifest of 30 rows, and two events: the file of row 10 was asked for, and its server waits for the other."""
    asked, go_on = threading.Event(), threading.Event()

    def stop(reply, body):
        asked.set()
        reply.wait(go_on)
        reply.end(reply.begin(body))

    with Server() as server:
        url = server.add("/x", b"remote", stop)
        put(directory, {f"{k}.txt": f"text {k}" for k in range(30)})
        names = [url if k == 10 else f"{k}.txt" for k in range(30)]
        path = os.path.join(put(directory, {"rows.csv": "\n".join(["name", *names])}), "rows.csv")
        yield path, asked, go_on


def count_done(journal):
    """How many shards a journal has."""
    with contextlib.suppress(FileNotFoundError), open(journal) as file:
        return file.read().count("inputs")
    return 0


@contextlib.contextmanager
def stopped(source, output, asked):
    """``wids pack`` when it has finished 29 of 30 shards and waits for the last one."""
    journal = f"{os.path.dirname(output)}/rows.json{SUFFIX}"
    with spawn("pack", source, "-o", output, "--field", ".txt=@name", "--samples", 1, "--jobs", 2) as process:
        wait_until(lambda: count_done(journal) >= 29 or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        assert asked.wait(PATIENCE_SECONDS)
        yield process


def test_goes_on_after_a_kill(tmp_path):
    """Killed in the middle, with nobody left at work; run again, it keeps what was finished, and ends up the same."""
    output = tmp_path / "out/rows-%02d.tar"
    with rows_with_a_stop(tmp_path / "in") as (source, asked, go_on):
        with stopped(source, output, asked) as process:
            process.kill()
            process.wait(PATIENCE_SECONDS)
            go_on.set()
            process.communicate(timeout=PATIENCE_SECONDS)  # ends when all its processes have
        names = os.listdir(tmp_path / "out")
        assert not {"rows.json", "rows-10.tar"} & {*names}
        options = ("--field", ".txt=@name", "--samples", 1, "--jobs", 2, "--json")
        code, out, err = run_pack(source, "-o", output, *options)
        assert (code, err) == (0, "")
        assert json.loads(out)["kept"] == 29
        pack_rows(source, tmp_path / "whole/rows-%02d.tar", ".txt=@name", samples=1)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_leave_no_half_shard(tmp_path, number, code):
    """Ctrl-C and SIGTERM end it and its processes; whole shards and the journal stay, and no part of a file."""
    output = tmp_path / "out/rows-%02d.tar"
    with rows_with_a_stop(tmp_path / "in") as (source, asked, _), stopped(source, output, asked) as process:
        assert [name for name in os.listdir(tmp_path / "out") if name.endswith(".part")]
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == code
    assert err.splitlines()[-1].endswith("; run it again to continue")
    assert "Traceback" not in err
    tars = [f"rows-{k:02d}.tar" for k in range(30) if k != 10]
    expected = [*tars, *(f"{name}.widx" for name in tars), f"rows.json{SUFFIX}"]
    assert sorted(os.listdir(tmp_path / "out")) == sorted(expected)


# Killed when all is written, the index too, and only the journal is left to be removed.
KILLED_LAST = f"""
import os
from wids.writing.pack import run
run.JobJournal.remove = lambda _: os.kill(os.getpid(), {signal.SIGKILL:d})
"""


def killed_last(*args):
    """A whole run of ``wids pack`` that is killed when all that is left to be done is to remove its journal."""
    assert run_apart("pack", *args, before=KILLED_LAST).code == -signal.SIGKILL


def test_killed_when_all_was_there(tmp_path):
    """The same run keeps all shards, and its journal goes; then the dataset is there as any other one."""
    put(tmp_path / "in", {f"{k}.txt": str(k) for k in range(4)})
    args = (tmp_path / "in", "-o", tmp_path / "out/f-%d.tar", "--samples", 2, "--json")
    killed_last(*args)
    assert f"f.json{SUFFIX}" in os.listdir(tmp_path / "out")
    before = content(tmp_path / "out")
    code, out, err = run_pack(*args)
    assert (code, err) == (0, "")
    assert json.loads(out)["kept"] == 2
    del before[f"f.json{SUFFIX}"]
    assert content(tmp_path / "out") == before
    code, out, err = run_pack(*args)
    assert (code, out) == (1, "")
    assert "--overwrite" in err


@pytest.mark.parametrize("options", [("--samples", 1), ("--samples", 2, "--range", ":2")])
def test_killed_when_all_was_there_and_another_run(tmp_path, options):
    """A run that would write something else is refused as by any dataset that is there, and the journal goes."""
    put(tmp_path / "in", {f"{k}.txt": str(k) for k in range(4)})
    killed_last(tmp_path / "in", "-o", tmp_path / "out/f-%d.tar", "--samples", 2)
    code, out, err = run_pack(tmp_path / "in", "-o", tmp_path / "out/f-%d.tar", *options)
    assert (code, out) == (1, "")
    assert "--overwrite" in err
    assert sorted(os.listdir(tmp_path / "out")) == ["f-0.tar", "f-0.tar.widx", "f-1.tar", "f-1.tar.widx", "f.json"]
    assert len(shown(tmp_path / "out/f.json")) == 4


def test_what_changed_is_written_again(tmp_path):
    """Of an unfinished run, only shards whose files are the same, and that nobody touched, are kept."""
    put(tmp_path / "in", {f"{k}.txt": str(k) for k in range(4)})
    broken = tmp_path / "in/5.txt"
    os.symlink(tmp_path / "gone", broken)
    listing = folders.list_files(str(tmp_path / "in"), numbers_keys=False, keep_fields=None, tell=lambda _: None)
    assert [problem.why for problem in listing.problems] == [f"{broken}: cannot be read (No such file or directory)"]
    os.unlink(broken)
    put(tmp_path / "in", {"5.txt": "5"})

    def attempt():
        return pack_files(tmp_path / "in", tmp_path / "out/f-%d.tar", samples=1)

    stopped = folders.list_files(str(tmp_path / "in"), numbers_keys=False, keep_fields=None, tell=lambda _: None)
    os.unlink(tmp_path / "in/5.txt")
    with pytest.raises(WidsError, match=r"5.txt: cannot be read"):
        pack(stopped, PackSettings(output=str(tmp_path / "out/f-%d.tar"), samples=1))
    put(tmp_path / "in", {"5.txt": "5", "1.txt": "one"})
    put(tmp_path / "out", {"f-2.tar": "junk"})
    with open(tmp_path / "out" / f"f.json{SUFFIX}", "ab") as file:
        file.write(b'{"k": 3, "inp')  # cut short
    outcome = attempt()
    assert outcome.kept == 2
    assert shown(outcome.index)[1:3] == [("1", {".txt": b"one"}), ("2", {".txt": b"2"})]
    with pytest.raises(WidsError, match="exists"):
        attempt()


def test_fewer_shards_than_before(tmp_path):
    """What an unfinished run wrote, and this one does not, goes; so does an earlier dataset with --overwrite."""
    put(tmp_path / "in", {f"{k}.txt": str(k) for k in range(4)})
    pack_files(tmp_path / "in", tmp_path / "out/f-%d.tar", samples=1)
    os.unlink(tmp_path / "in/3.txt")
    outcome = pack_files(tmp_path / "in", tmp_path / "out/f-%d.tar", samples=2, overwrite=True)
    assert outcome.removed == 2
    assert sorted(os.listdir(tmp_path / "out")) == ["f-0.tar", "f-0.tar.widx", "f-1.tar", "f-1.tar.widx", "f.json"]
    assert len(shown(outcome.index)) == 3


def test_two_runs_to_one_place(tmp_path):
    """While one run writes a dataset, another one is refused."""
    put(tmp_path / "in", {"0.txt": "0", "1.txt": "1"})
    told = []

    def show(_):
        if not told:
            with pytest.raises(WidsError, match="another wids pack is writing there") as caught:
                pack_files(tmp_path / "in", tmp_path / "out/f-%d.tar")
            told.append(caught.value)

    listing = folders.list_files(str(tmp_path / "in"), numbers_keys=False, keep_fields=None, tell=lambda _: None)
    assert pack(listing, PackSettings(output=str(tmp_path / "out/f-%d.tar")), progress=show).samples == 2
    assert told


def test_where_chooses_from_a_dataset(tmp_path):
    """SQL over keys, texts, numbers and JSON; all predicates must hold, and --range counts those that meet them."""
    rows = [
        {"key": f"{'cat' if k % 2 else 'dog'}{k}", "cls": k % 5, "caption": f"No. {k}, a {'Cat' if k % 3 else 'dog'}"}
        for k in range(30)
    ]
    put(tmp_path / "in", {"rows.jsonl": "\n".join(map(json.dumps, rows))})
    fields = (".cls=cls", ".json=key,caption,cls", ".txt=caption")
    source = pack_rows(tmp_path / "in/rows.jsonl", tmp_path / "all/x-%d.tar", *fields, key="key", samples=7).index
    cases = [
        (["key like 'cat%'"], lambda row: row["key"].startswith("cat")),
        (["key not like 'cat%'", "key != 'dog2'"], lambda row: row["key"].startswith("dog") and row["key"] != "dog2"),
        (["cls = 3"], lambda row: row["cls"] == 3),
        (["CLS >= 2 and cls < 4"], lambda row: row["cls"] in (2, 3)),
        (
            ["(json->>'caption') ilike '%a cat' and (json->>'cls')::int != 0"],
            lambda row: row["cls"] and "Cat" in row["caption"],
        ),
        (["txt like '%Cat' and has_json and index >= 0"], lambda row: "Cat" in row["caption"]),
    ]
    for k, (conditions, wanted) in enumerate(cases):
        options = [part for condition in conditions for part in ("--where", condition)]
        code, out, err = run_pack(source, "-o", tmp_path / f"{k}/x-%d.tar", *options, "--keep-fields", "txt", "--json")
        assert (code, err) == (0, "")
        expected = [row["key"] for row in rows if wanted(row)]
        assert [key for key, _ in shown(tmp_path / f"{k}/x.json")] == expected
        assert json.loads(out)["unmatched"] == 30 - len(expected)
    code, out, err = run_pack(source, "-o", tmp_path / "r/x-%d.tar", "--where", "cls = 3", "--range", "1:3")
    assert (code, err) == (0, "")
    assert "24 samples not wanted" in out
    assert [key for key, _ in shown(tmp_path / "r/x.json")] == ["dog8", "cat13"]


def test_where_chooses_from_files(tmp_path):
    """Of files too; what lacks a field does not meet a condition on it, and whether it is there is one."""
    put(
        tmp_path / "in",
        {"a.txt": "one", "a.jpg": "x", "b.txt": "two\n", "c.jpg": "x", "d.json": '{"x": [{"z": "w"}]}'},
    )
    for k, (condition, keys) in enumerate(
        [
            ("has_jpg", ["a", "c"]),
            ("txt != 'one'", ["b"]),
            ("txt is null", ["c", "d"]),
            ("json_extract_string(json, '$.x[0].z') = 'w'", ["d"]),
            ("not has_txt and not has_jpg", ["d"]),
        ]
    ):
        code, _, err = run_pack(
            tmp_path / "in", "--format", "files", "-o", tmp_path / f"{k}/x-%d.tar", "--where", condition
        )
        assert (code, err) == (0, "")
        assert [key for key, _ in shown(tmp_path / f"{k}/x.json")] == keys


def test_where_names_fields_in_any_case(tmp_path):
    """Fields that differ in case alone are one; a sample that has it twice has no value for it."""
    put(tmp_path / "in", {"a.TXT": "one", "a.JPG": "x", "b.txt": "one", "c.Txt": "two", "c.jpg": "x"})
    options = ("--format", "files", "--where")
    for k, (condition, keys) in enumerate(
        [("txt = 'one'", ["a", "b"]), ("TXT = 'two'", ["c"]), ("has_jpg", ["a", "c"])]
    ):
        run_ok("pack", tmp_path / "in", "-o", tmp_path / f"{k}/x-%d.tar", *options, condition)
        assert [key for key, _ in shown(tmp_path / f"{k}/x.json")] == keys
    put(tmp_path / "in", {"b.TXT": "two"})
    code, _, err = run_pack(tmp_path / "in", "-o", tmp_path / "z/x-%d.tar", *options, "txt = 'one'")
    assert code == 1
    assert "twice, in upper and in lower case" in in_one_line(err)
    run_ok("pack", tmp_path / "in", "-o", tmp_path / "y/x-%d.tar", *options, "has_txt and key = 'b'")


def test_where_names_a_field_that_no_sample_has(tmp_path):
    """It is false for all, with a warning that lists the fields; any other unknown name is an error."""
    put(tmp_path / "in", {"a.cls": b"1", "a.jpg": b"x", "b.jpg": b"y"})
    source = (tmp_path / "in", "--format", "files", "-o")
    code, out, err = run_pack(*source, tmp_path / "out/x-%d.tar", "--where", "has_cls or has_png")
    said = in_one_line(out + err)
    assert code == 0
    assert said.count("no sample has a field for has_png: false for all; the fields of the samples are ") == 1
    assert ".cls (has_cls)" in said
    assert len(wids.ShardListDataset(str(tmp_path / "out/x.json"))) == 1
    code, _, err = run_pack(*source, tmp_path / "no/x-%d.tar", "--where", "has_cls or width > 1")
    assert code
    assert "width" in err


@pytest.mark.parametrize(
    ("condition", "code", "words"),
    [
        ("", 1, "and this is empty"),
        ("cls >", 1, "syntax error"),
        ("true; drop view samples", 1, "one expression, as after WHERE, and this is more"),
        ("key = 'z'", 1, """of 2 samples none meets "key = 'z'\""""),
        ("cls = 1", 1, "the columns of samples are index, key, bin, has_bin, txt, has_txt"),
        ("bin like 'x'", 1, ".bin of 'a' is no value that a predicate could compare"),
    ],
)
def test_where_that_cannot_be(tmp_path, condition, code, words):
    """What is no predicate, what nothing meets, and what cannot be asked is one sentence."""
    put(tmp_path / "in", {"a.bin": b"\xff", "b.txt": "1"})
    done, out, err = run_pack(
        tmp_path / "in", "--format", "files", "-o", tmp_path / "out/x-%d.tar", "--where", condition
    )
    assert (done, out) == (code, "")
    assert words in in_one_line(err)
    assert not os.path.exists(tmp_path / "out")


def test_where_asks_the_columns_beside_an_index(tmp_path, monkeypatch):
    """They go before fields; where they have all that is named, no shard is looked at."""
    source = columns.write_dataset(tmp_path / "in", (3, 5))
    columns.make_columns(source)
    rows = columns.rows_of((3, 5))
    looked = []
    look = datasets.DatasetReader.look
    monkeypatch.setattr(datasets.DatasetReader, "look", lambda *args: looked.append(args) or look(*args))
    for k, (predicate, is_wanted, is_looked_at) in enumerate(
        [
            ("label = 1 and width > 100", lambda row: row["label"] == 1 and (row["width"] or 0) > 100, False),
            ("label = 1 and key > 'k0001'", lambda row: row["label"] == 1 and row["key"] > "k0001", False),
            ("label = 1 and cls = 1 and has_json", lambda row: row["label"] == 1 and row["json_bytes"], True),
        ]
    ):
        looked.clear()
        code, _, err = run_pack(source, "-o", tmp_path / f"{k}/x-%d.tar", "--where", predicate)
        assert (code, err) == (0, "")
        assert [key for key, _ in shown(tmp_path / f"{k}/x.json")] == [row["key"] for row in rows if is_wanted(row)]
        assert bool(looked) == is_looked_at


@pytest.mark.parametrize(
    ("predicate", "is_wanted"),
    [
        ("label = 1", lambda _, row: row["label"] == 1),
        ("cls = 1 and has_bin", lambda _, row: row["label"] == 1),
        ("index % 2 = 1 and cls < 3 and label > 0", lambda number, row: number % 2 and 0 < row["label"] < 3),
    ],
)
def test_where_asks_a_view(tmp_path, predicate, is_wanted):
    """Of its own samples, by columns and by fields; they are counted from 0 on."""
    source = columns.write_dataset(tmp_path / "in", (9, 0, 14))
    columns.make_columns(source)
    rows = [row for row in columns.rows_of((9, 0, 14)) if row["width"] and row["width"] > 104]
    run_ok("view", source, "--where", "coalesce(width, 0) > 104", "-o", tmp_path / "v.json")
    code, _, err = run_pack(tmp_path / "v.json", "-o", tmp_path / "out/x-%d.tar", "--where", predicate)
    assert (code, err) == (0, "")
    expected = [row["key"] for number, row in enumerate(rows) if is_wanted(number, row)]
    assert [key for key, _ in shown(tmp_path / "out/x.json")] == expected


def test_where_leaves_out_what_cannot_be_asked(tmp_path):
    """With --skip-errors the rest is packed, and what could not be asked is told."""
    put(tmp_path / "in", {"a.bin": b"\xff", "b.bin": "1", "c.bin": "2"})
    options = ("--format", "files", "--where", "bin = '1'", "--skip-errors")
    code, out, err = run_pack(tmp_path / "in", "-o", tmp_path / "out/x-%d.tar", *options)
    assert code == 0
    assert "\n1 sample not wanted\n1 sample left out\n" in out
    assert err.startswith("wids: left out: .bin of 'a' is no value")


def test_what_cannot_be_packed_is_told(tmp_path):
    """Without --skip-errors nothing is written and the first trouble is told; with it, the rest is, and all are."""
    photos(tmp_path / "in", 4)
    put(tmp_path / "in", {"top.jpg": "x", "cat/v1.2.jpg": "x", "cat/v.1/001.png": "x"})
    os.symlink(tmp_path / "gone", tmp_path / "in/dog/gone.jpg")
    code, out, err = run_pack(tmp_path / "in", "--format", "folder", "-o", tmp_path / "out/p-%d.tar")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "(3 more samples cannot be packed); --skip-errors leaves out what cannot be packed" in err
    assert not os.path.exists(tmp_path / "out")
    code, out, err = run_pack(tmp_path / "in", "--format", "folder", "-o", tmp_path / "out/p-%d.tar", "--skip-errors")
    assert code == 0
    assert "4 samples in 1 shard" in out
    assert "\n4 samples left out\n" in out
    for words in ("in no class folder", "has a dot in its basename", "has the key 'cat/v.1/001', as", "No such file"):
        assert words in err


def test_what_cannot_be_read_later(tmp_path):
    """A file that changes after it was listed ends the run, or is left out; a shard of none but those is not there."""
    put(tmp_path / "in", {f"{k}.txt": str(k) for k in range(4)})
    listing = folders.list_files(str(tmp_path / "in"), numbers_keys=False, keep_fields=None, tell=lambda _: None)
    put(tmp_path / "in", {"0.txt": "longer"})
    os.unlink(tmp_path / "in/1.txt")
    with pytest.raises(WidsError, match=r"0.txt: had 1 bytes when it was listed, has 6 now"):
        pack(listing, PackSettings(output=str(tmp_path / "out/f-%d.tar"), samples=2), engine=RunOptions(jobs=2))
    outcome = pack(
        listing,
        PackSettings(output=str(tmp_path / "out/f-%d.tar"), samples=2, skips_errors=True),
        engine=RunOptions(jobs=2),
    )
    assert [problem.place for problem in outcome.skipped] == ["sample 0", "sample 1"]
    assert [key for key, _ in shown(outcome.index)] == ["2", "3"]
    assert sorted(os.listdir(tmp_path / "out")) == ["f-1.tar", "f-1.tar.widx", "f.json"]


def test_files_that_are_something_else_by_the_time(tmp_path):
    """A FIFO, a device without end, a directory, other bytes of the same number: none hangs, or is packed."""
    source, output = tmp_path / "in", str(tmp_path / "out/f-%d.tar")

    def other(path):
        path.write_text("b")
        os.utime(path, ns=(1, 1))

    changes = {
        "0": os.mkfifo,
        "1": lambda path: os.symlink("/dev/zero", path),
        "2": os.mkdir,
        "3": lambda path: os.symlink(path, path),
        "4": other,
    }
    put(source, {f"{k}.txt": "a" for k in range(6)})
    listing = folders.list_files(str(source), numbers_keys=False, keep_fields=None, tell=lambda _: None)
    for name, change in changes.items():
        os.unlink(source / f"{name}.txt")
        change(source / f"{name}.txt")
    outcome = pack(listing, PackSettings(output=output, samples=1, skips_errors=True))
    assert [problem.place for problem in outcome.skipped] == [f"sample {k}" for k in range(5)]
    assert shown(outcome.index) == [("5", {".txt": b"a"})]


class _Meddler:
    """The reader of a listing, in whose midst the source changes."""

    def __init__(self, reader, changes):
        self._reader, self._changes = reader, changes

    def read(self, item):
        self._changes.pop(item, lambda: None)()
        return self._reader.read(item)

    def __getattr__(self, name):
        return getattr(self._reader, name)


@pytest.mark.parametrize("change", ["replaced", "rewritten", "other count", "cut", "removed", "directory"])
@pytest.mark.parametrize("skips_errors", [False, True], ids=["", "skip"])
def test_source_shards_that_change_while_they_are_packed(tmp_path, change, skips_errors):
    """Samples of two versions of a shard never make one dataset: no index, no half shard, and a second run is right."""
    source = write_index(tmp_path / "in", (4, 4, 4))
    path = tmp_path / "in/s1.tar"
    count = 9 if change == "other count" else 4
    new = Path(write_shard(tmp_path / "new.tar", count, first=100)).read_bytes()

    def meddle():
        if change == "cut":
            os.truncate(path, 512)
        elif change == "rewritten":
            path.write_bytes(new)
        elif change in ("removed", "directory"):
            path.unlink()
            if change == "directory":
                path.mkdir()
        else:
            os.replace(tmp_path / "new.tar", path)

    listing = datasets.list_dataset(source, cache_dir="nowhere", keep_fields=None, session=PLAIN, tell=lambda _: None)
    # In the middle of the shard, which two shards are made of.
    listing.reader = _Meddler(listing.reader, {6: meddle})
    settings = PackSettings(output=str(tmp_path / "out/x-%d.tar"), samples=3, skips_errors=skips_errors)
    with pytest.raises(WidsError):
        pack(listing, settings)
    left = os.listdir(tmp_path / "out")
    assert "x.json" not in left
    assert not [name for name in left if name.endswith(".part")]
    if path.is_dir():
        path.rmdir()
    path.write_bytes(new)
    listed = [{"url": f"s{k}.tar", "nsamples": count if k == 1 else 4} for k in range(3)]
    write_json(source, {"wids_version": 1, "shardlist": listed})
    pack_dataset(source, settings.output, samples=3)
    assert shown(tmp_path / "out/x.json") == shown(source)


class _Killer:
    """A reader whose process is killed while it reads."""

    def read(self, item):
        os.kill(os.getpid(), signal.SIGKILL)

    def measure(self, item, key):
        return 1

    def identify(self, items):
        return ""


def test_a_killed_process_is_told(tmp_path):
    """When a process is killed (for its memory, say), the run ends with the shard's name and what to do."""
    listing = folders.SourceListing(items=[1, 2], reader=_Killer())
    with pytest.raises(WidsError, match=r"k-\d.tar: a process ended with exit code -9.*fewer jobs"):
        pack(listing, PackSettings(output=str(tmp_path / "k-%d.tar"), samples=1), engine=RunOptions(jobs=2))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "parameter", "given", "words"),
    [
        ("in", "fields", [".a=b"], "fields is for manifests, and the source is taken as files"),
        ("in", "classes", "names", "classes is for class folders and manifests, and the source is taken as files"),
        ("r.csv", "fields", [], "fields: say what samples of a manifest hold, like .jpg=COLUMN and .cls=COLUMN"),
        (
            "r.csv",
            "fields",
            [".a=b", "a=c"],
            "fields=['.a=b', 'a=c']: give different extensions; one field would hide the other",
        ),
        ("in", "keep_fields", ["a", ""], "keep_fields: '' has an empty extension; give them like 'jpg;png'"),
    ],
)
def test_a_program_is_told_its_argument(tmp_path, name, parameter, given, words):
    """The library names the parameter, in words and as an attribute; only the command names an option."""
    put(tmp_path, {"in/a.txt": "x", "r.csv": "b\n1\n"})
    how = PackSettings(output=str(tmp_path / "out/x-%d.tar"))
    with pytest.raises(InputError) as caught:
        pack_sources(tmp_path / name, how, source=PackSource(**{parameter: given}))
    assert (str(caught.value), caught.value.parameter) == (words, parameter)


def test_an_outcome_says_what_was_packed(tmp_path):
    """A program learns the files that a glob stands for, and their kind; the command says it in words alone."""
    put(tmp_path, {"r1.csv": "b\n1\n", "r2.csv": "b\n2\n"})
    how = PackSettings(output=str(tmp_path / "out/x-%d.tar"))
    outcome = pack_sources(f"{tmp_path}/r*.csv", how, source=PackSource(fields=[".cls=b"]), engine="threads")
    assert (outcome.form, outcome.sources) == ("manifest", [f"{tmp_path}/r1.csv", f"{tmp_path}/r2.csv"])
    args = (f"{tmp_path}/r*.csv", "--field", ".cls=b", "--jobs", 1, "-o")
    said = f"2 sources, {tmp_path}/r1.csv to {tmp_path}/r2.csv, taken as a manifest: 2 samples"
    assert run_ok("pack", *args, tmp_path / "a/x-%d.tar").startswith(said)
    told = json.loads(run_ok("pack", *args, tmp_path / "b/x-%d.tar", "--json"))
    assert not {"sources", "form"} & told.keys()


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("gone", "-o", "o/x-%d.tar"), 1, "gone: there is no such folder or file"),
        (("in", "-o", "o/x.tar"), 2, "write it like 'out/train-%06d.tar'"),
        (("in/a.txt", "-o", "o/x-%d.tar"), 1, "say what it is with --format"),
        (("in", "-o", "o/x-%d.tar", "--range", "1-2"), 2, "no range of samples; write it like 0:100"),
        (("in", "-o", "o/x-%d.tar", "--range", "5:"), 1, "no samples to pack in this range"),
        (("in", "-o", "o/x-%d.tar", "--field", ".a=b"), 2, "for manifests"),
        (("in/r.csv", "-o", "o/x-%d.tar"), 2, "say what samples of a manifest hold"),
        (("in/r.csv", "-o", "o/x-%d.tar", "--field", ".a=b", "--field", "a=c"), 2, "give different extensions"),
        (("in/r.csv", "-o", "o/x-%d.tar", "--field", ".a"), 2, "'.a' does not say which column"),
        (("in/r.csv", "-o", "o/x-%d.tar", "--field", ".a=c"), 1, "there is no column 'c'"),
        (
            ("in", "-o", "o/x-%d.tar", "--key", "b"),
            2,
            "--key is for manifests, and the source is taken as files; for a",
        ),
        (("in", "-o", "o/x-%d.tar", "--keep-fields", ".a,"), 2, "--keep-fields: '' has an empty extension"),
        (("in", "-o", ""), 2, "--output='': give text"),
        (("", "-o", "o/x-%d.tar"), 2, "SOURCE='': give a path"),
        (("in", "-o", "file/x-%d.tar"), 1, "check the path"),
        (("in/broken.json", "-o", "o/x-%d.tar"), 1, "not valid JSON"),
        (("empty", "-o", "o/x-%d.tar"), 1, "there are no files in it"),
        (("in/x.tgz", "-o", "o/x-%d.tar"), 1, "gzip"),
        (("in", "-o", "o/x-%d.tar", "--format", "folder"), 1, "no images in class folders"),
    ],
)
def test_wrong_input_is_a_sentence(tmp_path, monkeypatch, args, code, words):
    """What is wrong on the command line or in the source is a sentence and an exit code, without a traceback."""
    put(
        tmp_path,
        {
            "in/a.txt": "x",
            "in/r.csv": "b\n1\n",
            "in/broken.json": "{",
            "file": "",
            "in/x.tgz": b"\x1f\x8b" + bytes(600),
        },
    )
    os.makedirs(tmp_path / "empty")
    monkeypatch.chdir(tmp_path)
    found, out, err = run_pack(*args)
    assert (found, out) == (code, "")
    assert words in in_one_line(err)
    assert "Traceback" not in err


def test_nothing_is_written_over_what_is_packed(tmp_path):
    """Neither into the folder that is packed, nor over a dataset's own shards or index, not even with --overwrite."""
    put(tmp_path / "in", {"0.txt": "0"})
    for output in ("in/f-%d.tar", "in/more/f-%d.tar"):
        with pytest.raises(WidsError, match="into, or over, the files to be packed"):
            pack_files(tmp_path / "in", tmp_path / output, overwrite=True)
    index = write_index(tmp_path / "data", (3, 4))
    before = shown(index)
    for output in ("data/s%d.tar", "data/index-%d.tar"):
        with pytest.raises(WidsError, match="into, or over, the files to be packed"):
            pack_dataset(index, tmp_path / output, overwrite=True)
    assert shown(index) == before
    assert pack_dataset(index, tmp_path / "data/t%d.tar").samples == 7


def test_remote_manifests_name_no_local_files(tmp_path):
    """A manifest from a remote place may name remote files, and local ones only where the user said where these are."""
    put(tmp_path, {"a.txt": "mine"})
    place = backends.memory("rows")
    place.add("b.txt", b"theirs")
    url = place.add("r.csv", f"t,u\nb.txt,file://{tmp_path}/a.txt\n".encode())
    outcome = pack_rows(url, tmp_path / "1/m-%d.tar", ".txt=@t")
    assert shown(outcome.index) == [("000000000", {".txt": b"theirs"})]
    with pytest.raises(WidsError, match="may not name local files"):
        pack_rows(url, tmp_path / "2/m-%d.tar", ".txt=@u")
    with pytest.raises(InputError, match="size of a remote file is not known"):
        pack_rows(url, tmp_path / "2/m-%d.tar", ".txt=@t", size=20_480)
    outcome = pack_rows(url, tmp_path / "3/m-%d.tar", ".txt=@u", base=str(tmp_path))
    assert shown(outcome.index) == [("000000000", {".txt": b"mine"})]


def test_help_teaches():
    """--help shows an example of each kind of source."""
    code, out, _ = run_pack("--help")
    assert code == 0
    assert "wids pack photos -o 'out/train-%06d.tar'" in " ".join(out.split())


def test_listing_follows_links_but_not_in_circles(tmp_path):
    """A link to a folder is followed; one to a folder above it does not go round for ever."""
    put(tmp_path / "in", {"a/0.txt": "0"})
    os.symlink(tmp_path / "in", tmp_path / "in/a/up")
    os.symlink(tmp_path / "in/a", tmp_path / "in/b")
    outcome = pack_files(tmp_path / "in", tmp_path / "out/f-%d.tar")
    assert [key for key, _ in shown(outcome.index)] == ["a/0", "b/0"]


@pytest.mark.parametrize(
    ("count", "bounds", "expected"),
    [
        (0, {"samples": 3}, []),
        (7, {"samples": 3}, [(0, 3), (3, 6), (6, 7)]),
        (4, {"size": 10_240, "sizes": [4096, 4096, 8192, 99_999]}, [(0, 2), (2, 3), (3, 4)]),
        (4, {"size": 1 << 20, "samples": 3, "sizes": [512] * 4}, [(0, 3), (3, 4)]),
    ],
)
def test_cut(count, bounds, expected):
    """Shards are full, by samples or by bytes, and nothing is lost."""
    assert cut(count, **{"samples": None, "size": None, "sizes": None, **bounds}) == expected


def test_closing_ends_the_processes(tmp_path):
    """Whoever closes the iterator in the middle ends the processes, and their part files go."""
    put(tmp_path / "in", {f"{k:03d}.txt": str(k) for k in range(200)})
    told = []

    def show(progress):
        told.append(progress.done)
        if progress.done:
            raise KeyboardInterrupt

    listing = folders.list_files(str(tmp_path / "in"), numbers_keys=False, keep_fields=None, tell=lambda _: None)
    os.makedirs(tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        pack(
            listing,
            PackSettings(output=str(tmp_path / "out/f-%d.tar"), samples=50),
            progress=show,
            engine=RunOptions(jobs=2),
        )
    assert told[-1]
    assert [name for name in os.listdir(tmp_path / "out") if name.endswith((".part", ".json"))] == []


# --- labels, and rows that do not fit


def labels_of(index):
    """The .cls of all samples of a dataset."""
    return [sample[".cls"] for sample in wids.ShardListDataset(str(index), fields=(".cls",))]


def pack_labels(directory, labels, *, kind="csv", **settings):
    """Pack rows of texts with these labels; in this process."""
    path = directory / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({"text": ["x"] * len(labels), "label": labels}), path)
    elif kind == "jsonl":
        path.write_text("\n".join(json.dumps({"text": "x", "label": label}) for label in labels))
    else:
        path.write_text("\n".join(["text,label", *(f"x,{label}" for label in labels)]))
    return pack_rows(path, directory / "out/x-%d.tar", ".txt=text", ".cls=label", **settings)


@pytest.mark.parametrize(
    ("kind", "labels", "expected"),
    [
        ("csv", [f"{k}.0" for k in range(12)], [*range(12)]),
        ("csv", ["0", " 2", "10 ", "02", "-1", "+3", "1e1", "4."], [0, 2, 10, 2, -1, 3, 10, 4]),
        ("csv", [*range(12)], [*range(12)]),
        ("jsonl", [0, 1.0, "2", "10", True], [0, 1, 2, 10, 1]),
        ("parquet", [0.0, 10.0, 2.0], [0, 10, 2]),
        ("parquet", [b"10", b"2"], [10, 2]),
        ("csv", ["b", " a", "b ", "10a"], [2, 1, 2, 0]),
        ("csv", ["\uff12", "\u0661\u0660", "3"], [2, 10, 3]),
        ("csv", [f"{2**70}", f"{2**53}.0"], [2**70, 2**53]),
    ],
)
def test_labels_are_the_numbers_that_they_say(tmp_path, kind, labels, expected):
    """Whole floats and padded numbers are numbers; only a column of words alone is numbered, in sorted order."""
    outcome = pack_labels(tmp_path, labels, kind=kind)
    assert labels_of(outcome.index) == expected
    assert outcome.facts == (
        ["label: 3 classes, numbered in sorted order from 0 (10a, a, b)"] if " a" in labels else []
    )


@pytest.mark.parametrize(
    ("labels", "row", "words"),
    [
        ([*range(7), "unknown", *range(8, 12)], 7, "'unknown' is a word, and most labels are numbers"),
        ([0, "2.5", 1], 1, "'2.5' is not a whole number"),
        ([0, "", 1], 1, "column 'label' is empty"),
        (["a", "NaN", "b"], 1, "column 'label' is empty"),
        (["cat", "dog", "7", "cat"], 2, "'7' is a number, and most labels are words"),
        ([0, 1, "x" * 5000], 2, f"'{'x' * 100}'... (4,900 more) is a word"),
        ([0, 1, "1.2345678901234568e+18"], 2, "is a float, too large to have all its digits"),
        ([0, ".5", 1], 1, "'.5' is not a whole number"),
        ([0, "1e-05", 1], 1, "'1e-05' is not a whole number"),
        ([0, '"1,000"', 2], 1, "'1,000' is several values, or a number with separators"),
        (["cat", "1|2", "dog"], 1, "'1|2' is several values"),
        (["cat", "1 000", "dog"], 1, "'1 000' is several values"),
        (["cat", "\"['cat', 'dog']\"", "dog"], 1, "is several values"),
        (["cat", "[]", "dog"], 1, "is several values"),
    ],
)
def test_a_label_that_does_not_fit(tmp_path, labels, row, words):
    """It is an error that names its row, and the others keep their numbers where it is left out."""
    with pytest.raises(SampleError) as caught:
        pack_labels(tmp_path, labels)
    assert f"rows.csv, line {row + 2}: " in str(caught.value)
    assert words in str(caught.value)
    assert not os.path.exists(tmp_path / "out")
    outcome = pack_labels(tmp_path, labels, skips_errors=True)
    assert [problem.place for problem in outcome.skipped] == [f"line {row + 2}"]
    rest = [label for k, label in enumerate(labels) if k != row]
    words = sorted(label for label in {*rest} if isinstance(label, str))
    assert labels_of(outcome.index) == [words.index(label) if label in words else label for label in rest]


def test_labels_that_differ_in_case_alone(tmp_path):
    """One of them is hardly meant, so they are no two classes, unless a list says so."""
    with pytest.raises(InputError, match="the classes 'Cat' and 'cat' differ in case alone"):
        pack_labels(tmp_path, ["cat", "Cat", "dog"])
    put(tmp_path, {"h/cat/1.jpg": "x", "h/Cat/1.jpg": "x"})
    with pytest.raises(InputError, match="the classes 'Cat' and 'cat' differ in case alone"):
        folders.list_images(str(tmp_path / "h"), numbers_keys=False, tell=lambda _: None)


@pytest.mark.parametrize(
    ("one", "other"),
    [("caf\u00e9", "cafe\u0301"), ("cat", "cat\u200b"), ("big cat", "big  cat"), ("\uff21", "A"), ("x\u00a0y", "x y")],
)
def test_classes_that_look_alike(tmp_path, one, other):
    """One of them is hardly meant; both are written so that the difference is seen, and one that a list lacks, too."""
    with pytest.raises(InputError, match="look alike; make them one") as caught:
        pack_labels(tmp_path, [one, other, "dog"])
    assert all(ascii(name)[1:-1] in str(caught.value) for name in (one, other))
    put(tmp_path, {f"h/{one}/1.jpg": "x", f"h/{other}/1.jpg": "x"})
    with pytest.raises(InputError, match="look alike"):
        folders.list_images(str(tmp_path / "h"), numbers_keys=False, tell=lambda _: None)
    with pytest.raises(SampleError, match="is none of the 2 classes") as caught:
        pack_labels(tmp_path, [one], classes=[other, "dog"])
    assert str(caught.value).endswith(f"; it looks like {other!a}, and is {one!a}")
    with pytest.raises(InputError, match="; it looks like"):
        folders.list_images(str(tmp_path / "h"), numbers_keys=False, tell=lambda _: None, classes=[one])
    assert labels_of(pack_labels(tmp_path, [other, one], classes=[one, other]).index) == [1, 0]


@pytest.mark.parametrize(("labels", "expected"), [(["True", "true", "False"], [1, 1, 0]), (["TRUE", "True"], [1, 1])])
def test_truth_is_one(tmp_path, labels, expected):
    """True and False in a CSV are what they are in JSON, also where one of them is missing."""
    outcome = pack_labels(tmp_path, labels)
    assert labels_of(outcome.index) == expected
    assert outcome.facts == ["label: 2 classes, numbered in sorted order from 0 (False, True)"]


def test_several_labels_in_a_text_are_told(tmp_path):
    """A class whose parts are classes is one of its own, which is said."""
    (note,) = pack_labels(tmp_path, ["cat|dog", "cat", "dog", "a-b"]).notes
    assert note.startswith("label: 'cat|dog' is a class of its own, beside its parts")
    assert pack_labels(tmp_path, ["cat|dog", "cat"], overwrite=True).notes == []


@pytest.mark.parametrize(("names", "words"), [("0 1 10 2", "folder 10 is class 2"), ("1 2", "folder 1 is class 0")])
def test_class_folders_with_numbers_for_names(tmp_path, names, words):
    """They are numbered as all folders are, by their texts, and it is said where the numbers are others."""
    for name in names.split():
        put(tmp_path, {f"h/{name}/x.jpg": "x"})
    (note,) = folders.list_images(str(tmp_path / "h"), numbers_keys=False, tell=lambda _: None).notes
    assert words in note
    put(tmp_path, {f"good/{k:02d}/x.jpg": "x" for k in range(11)})
    assert folders.list_images(str(tmp_path / "good"), numbers_keys=False, tell=lambda _: None).notes == []


def test_what_systems_leave_in_folders_is_no_class(tmp_path):
    """Thumbnails and copies of attributes are hidden files, whatever their names."""
    put(tmp_path, {"h/cat/0.jpg": "x", "h/cat/@eaDir/0.jpg/THUMB.jpg": "x", "h/__MACOSX/cat/0.jpg": "x"})
    (tmp_path / "h/lost+found").mkdir()
    listing = folders.list_images(str(tmp_path / "h"), numbers_keys=False, tell=lambda _: None)
    assert listing.info == {"classes": ["cat"]}
    assert [item.key for item in listing.items] == ["cat/0"]


def test_keys_in_two_forms_of_unicode_are_told(tmp_path):
    """Files of one sample that a Mac and another machine named are two samples, and it is said."""
    put(tmp_path, {"h/\u00e9.txt": "x", "h/e\u0301.cls": "1", "h/a.txt": "x", "h/a.cls": "1"})
    listing = folders.list_files(str(tmp_path / "h"), numbers_keys=False, keep_fields=None, tell=lambda _: None)
    assert len(listing.items) == 3
    (note,) = listing.notes
    assert "1 key looks like another one, in a different form of Unicode (first '\\xe9')" in note


def test_lines_of_a_list_end_where_text_files_end_them(tmp_path):
    """Other marks of Unicode, and spaces around, change no number."""
    put(tmp_path, {"names.txt": "a\u2028b\rc\x0bd \r\n e\n"})
    assert read_classes(str(tmp_path / "names.txt")) == ["a\u2028b", "c\x0bd", "e"]
    with pytest.raises(InputError, match=r"ids.csv: is a table; a list of classes is a text with a name a line"):
        read_classes(str(tmp_path / "ids.csv"))


LISTS = {
    "names.txt": "\ufeffeel\r\ncat\ndog\n\n",
    "names.json": '["eel", "cat", "dog"]',
    "index.json": '{"info": {"classes": ["eel", "cat", "dog"]}, "shardlist": []}',
    "top.json": '{"classes": ["eel", "cat", "dog"]}',
}


@pytest.mark.parametrize("name", LISTS)
def test_classes_by_a_list(tmp_path, name):
    """Folders and words have the numbers that a list, or another index, gives; those that are not there count."""
    put(tmp_path, {**LISTS, "in/dog/0.jpg": "x", "in/cat/1.jpg": "x", "rows.csv": "text, label\nx, dog\ny,eel\n"})
    code, out, err = run_pack(
        tmp_path / "in", "-o", tmp_path / "a/x-%d.tar", "--no-shuffle", "--classes", tmp_path / name
    )
    assert (code, err) == (0, "")
    assert "\n3 classes, numbered as given from 0 (eel, cat, dog)\n" in out
    assert labels_of(tmp_path / "a/x.json") == [1, 2]
    options = ("--field", ".txt=text", "--field", ".cls=label", "--classes", tmp_path / name)
    code, out, err = run_pack(tmp_path / "rows.csv", "-o", tmp_path / "b/x-%d.tar", *options)
    assert (code, err) == (0, "")
    assert labels_of(tmp_path / "b/x.json") == [2, 0]
    for each in "ab":
        assert json.loads((tmp_path / f"{each}/x.json").read_text())["info"] == {"classes": ["eel", "cat", "dog"]}


def test_two_folders_number_their_classes_alike(tmp_path):
    """What val lacks does not shift the rest: by train's index, and by an empty folder."""
    put(tmp_path, {"train/cat/0.jpg": "x", "train/dog/0.jpg": "x", "train/eel/0.jpg": "x"})
    put(tmp_path, {"val/cat/1.jpg": "x", "val/eel/1.jpg": "x"})
    run_ok("pack", tmp_path / "train", "-o", tmp_path / "t/train-%d.tar")
    run_ok("pack", tmp_path / "val", "-o", tmp_path / "v/val-%d.tar", "--classes", tmp_path / "t/train.json")
    assert sorted(labels_of(tmp_path / "v/val.json")) == [0, 2]
    (tmp_path / "val/dog").mkdir()
    listing = folders.list_images(str(tmp_path / "val"), numbers_keys=False, tell=lambda _: None)
    assert listing.info == {"classes": ["cat", "dog", "eel"]}
    assert listing.notes == [f"{tmp_path}/val: 1 of 3 classes has no images; it is numbered all the same (dog)"]


@pytest.mark.parametrize(
    ("names", "args", "code", "words"),
    [
        ("cat\n", ("h",), 1, "h/dog: is none of the 1 class (cat)"),
        ("cat\nunknown\n", ("rows.csv", "--field", ".cls=label"), 1, "line 3: column 'label': 'dog' is none of the 2"),
        ("cat\ndog\ncat\n", ("h",), 1, "'cat' is class 0 and class 2"),
        ("cat\n\ndog\n", ("h",), 1, "class 1 is ''; each is a name"),
        ('["cat", 3]', ("h",), 1, "class 1 is 3; each is a name"),
        ('{"shardlist": []}', ("h",), 1, "has no classes"),
        ("", ("h",), 1, "has no classes"),
        ("[", ("h",), 1, "is no list of classes that can be read"),
        ("cat\ndog", ("h", "--format", "files"), 2, "--classes is for class folders and manifests"),
        ("cat\ndog", ("rows.csv", "--field", ".txt=label"), 1, "for one field like .cls=label, and there are 0"),
        ("a\nb", ("numbers.csv", "--field", ".cls=label"), 1, "line 4: column 'label': '2' is none of the 2 classes"),
    ],
)
def test_classes_that_do_not_fit(tmp_path, monkeypatch, names, args, code, words):
    """A list that is none, and what it lacks, is told, and nothing is written."""
    put(tmp_path, {"h/cat/0.jpg": "x", "h/dog/0.jpg": "x", "names": names, "rows.csv": "label\ncat\ndog\n"})
    put(tmp_path, {"numbers.csv": "label\n0\n1\n2\n"})
    monkeypatch.chdir(tmp_path)
    found, out, err = run_pack(*args, "-o", "out/x-%d.tar", "--classes", "names")
    assert (found, out) == (code, "")
    assert words in in_one_line(err)
    assert not os.path.exists("out")


def test_classes_of_two_fields(tmp_path):
    """Both are in the index, by their fields."""
    put(tmp_path, {"r.csv": "a,b\nx,red\ny,blue\n"})
    outcome = pack_rows(tmp_path / "r.csv", tmp_path / "out/x-%d.tar", ".cls=a", ".hue.cls=b")
    assert json.loads(Path(outcome.index).read_text())["info"] == {
        "classes": ["x", "y"],
        "classes_of": {".cls": ["x", "y"], ".hue.cls": ["blue", "red"]},
    }


@pytest.mark.parametrize(
    ("name", "text", "line", "words"),
    [
        ("r.csv", "key,text\na,b\nc,a cat, on a mat\n", 3, "has 3 fields, and the header has 2; is there a separator"),
        ("r.csv", "key,text\na,b\nc\n", 3, "has 1 fields, and the header has 2"),
        ("r.csv", 'key,text\na,"b\nb"\nc,d,e\n', 4, "has 3 fields"),
        ("r.csv", "key,text\na,b\n\ufeffkey,text\n", 3, "repeats the header"),
        ("r.tsv", "key\ttext\na\tb\tc\n", 2, "has 3 fields"),
        (
            "r.jsonl",
            '{"key": "a", "text": "b"}\n\n{"key": "c", "text": "d", "key": "e"}',
            3,
            "the key 'key' is there twice",
        ),
        ("r.jsonl", '{"key": "a", "text": "b"}\n{"key": "c", "text": true}', 2, "column 'text' holds a bool"),
        ("r.jsonl", '{"key": "a", "text": ["b"]}', 1, "column 'text' holds a list"),
        ("r.jsonl", '{"key": {"a": 1}, "text": "b"}', 1, "column 'key' holds a dict"),
        ("r.jsonl", '{"key": "a", "text": NaN}', 1, "column 'text' is empty"),
        ("r.jsonl", '{"key": "a"}\n{"key": "b", "text": "c"}', 1, "there is no column 'text' in this row"),
        ("r.jsonl", '{"key": "' + "a." * 500 + '", "text": "b"}', 1, "... (900 more) has a dot"),
        ("r.jsonl", "[" * 100_000 + "\n" + '{"key": "a", "text": "b"}', 1, "is not JSON (it is nested too deeply"),
    ],
)
def test_rows_that_do_not_fit(tmp_path, name, text, line, words):
    """Such a row is a problem of its line: an error, or left out and named; it is never cut to fit."""
    put(tmp_path, {name: text})
    with pytest.raises(WidsError) as caught:
        pack_rows(tmp_path / name, tmp_path / "out/x-%d.tar", ".txt=text", key="key")
    assert str(caught.value).startswith(f"{tmp_path}/{name}, line {line}: ")
    assert words in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("r.csv", "a,b,a\n1,2,3\n", "two columns are called 'a'"),
        ("r.tsv", "a\ta\n1\t2\n", "two columns are called 'a'"),
        ("r.csv", "a,b\n1,2\n3,4\0\n", "line 3 has a NUL byte"),
        ("r.csv", "a,b\n1,2\n".encode("utf-16"), "store it as UTF-8"),
        ("r.csv", 'a,b\n1,2\n3,"x\n4,5\n', "the row that begins in line 3 is no csv"),
        ("r.csv", "", "is empty"),
        ("r.jsonl", '{"b": 1}\n', "there is no column 'a'; it has b"),
        ("r.csv", "a;b\r\n1;2\r\n", "it has a;b; is ';' between its columns?"),
        ("r.csv", "a\tb\n1\t2\n", r"is '\t' between its columns?"),
        ("r.tsv", "a,b\n1,2\n", "is ',' between its columns?"),
        ("r.csv", "a,b\n1,2\n".encode("utf-16"), "is UTF-16; store it as UTF-8"),
        ("r.csv", gzip.compress(b"a,b\n1,2\n", mtime=0), "is compressed with gzip; unpack it"),
        ("r.csv", b"PK\x03\x04...", "is a zip or Excel file"),
        ("r.json", '[{"a": "1"}]', "is a JSON list; store it with one object a line"),
        ("r.csv", ",".join(f"c{k}" for k in range(500)) + "\n", "c124 and 470 more"),
    ],
)
def test_manifests_that_are_none(tmp_path, name, text, words):
    """What is wrong with a whole file is told with its name, and a place in it where there is one."""
    put(tmp_path, {name: text})
    with pytest.raises(InputError) as caught:
        pack_rows(tmp_path / name, tmp_path / "out/x-%d.tar", ".txt=a")
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}/{name}: ")


def test_quotes_in_a_tsv(tmp_path):
    """A quote that is closed within its field quotes it; any other one is a letter, and swallows no rows."""
    rows = ['"open quote', "a cat", '6" nails', '"so" he said', '"a ""b"" c"', '"tab\there"', '""', "last"]
    put(tmp_path, {"r.tsv": "\ufeffn\ttext\r\n" + "".join(f"{k}\t{row}\r\n" for k, row in enumerate(rows))})
    outcome = pack_rows(tmp_path / "r.tsv", tmp_path / "out/x-%d.tar", ".txt=text")
    texts = [fields[".txt"].decode() for _, fields in shown(outcome.index)]
    assert texts == ['"open quote', "a cat", '6" nails', '"so" he said', 'a "b" c', "tab\there", "", "last"]


def test_rows_of_several_lines_are_counted(tmp_path):
    """A quoted text may have line breaks; that there are such rows is said, for an open quote looks the same."""
    put(tmp_path, {"r.csv": 'a,b\n1,x\n\n2,"y\nz"\n3,"6"\n'})
    outcome = pack_rows(tmp_path / "r.csv", tmp_path / "out/x-%d.tar", ".txt=b")
    assert [fields[".txt"] for _, fields in shown(outcome.index)] == [b"x", b"y\nz", b"6"]
    assert outcome.notes == [
        f"{tmp_path}/r.csv: 1 rows are of several lines (the first is in line 4); if none should be, a quote is open"
    ]


# --- several sources, and pictures in Parquet


def test_several_manifests_are_one(tmp_path, monkeypatch):
    """Their rows follow each other in the order given, of globs in natural order; keys are unique over all of them."""
    monkeypatch.chdir(tmp_path)
    put(tmp_path, {f"p/part-{k}.csv": f"key,label\nk{k}a,b\nk{k}b,{'a' if k == 10 else 'b'}\n" for k in (0, 2, 10)})
    put(tmp_path, {"z.csv": "label,key\nb,z\n", "odd[1].csv": "key,label\no,b\n", "dup.csv": "key,label\nk2a,b\n"})
    options = ("--field", ".cls=label", "--key", "key")
    code, out, err = run_pack("z.csv", "p/part-*.csv", "odd[1].csv", "-o", "out/x-%d.tar", *options)
    assert (code, err) == (0, "")
    assert out.startswith("5 sources, z.csv to odd[1].csv, taken as a manifest: 8 samples in 1 shard")
    expected = [("z", 1), ("k0a", 1), ("k0b", 1), ("k2a", 1), ("k2b", 1), ("k10a", 1), ("k10b", 0), ("o", 1)]
    assert [(key, int(fields[".cls"])) for key, fields in shown("out/x.json")] == expected
    code, _, err = run_pack("p/part-{0,2}.csv", "dup.csv", "-o", "b/x-%d.tar", *options)
    assert code == 1
    assert f"dup.csv, line 2: key 'k2a' is that of {tmp_path}/p/part-2.csv, line 2, too" in in_one_line(err)
    code, _, err = run_pack("z.csv", "p/part-0.csv", "-o", "c/x-%d.tar", "--field", ".cls=label")
    assert code == 0
    assert [key for key, _ in shown("c/x.json")] == ["000000000", "000000001", "000000002"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("a.csv", "b.csv"), "b.csv: has other columns than a.csv (only b.csv has 'more'); make them agree"),
        (("a.csv", "c.csv"), "c.csv: there is no column 'x'; it has y"),
        (("a.csv", "./a.csv"), "a.csv: is named twice"),
        (("*.tsv",), "*.tsv: there are no files with such names"),
        (("a.csv", "gone.csv"), "gone.csv: does not exist"),
        (("a.csv", "d"), "d: is taken as files key.ext, and a.csv as a manifest; pack one kind"),
        (("d", "e"), "e: several folders are not packed at once"),
        (("i.json", "j.json"), "j.json: several indexes are one by `wids index merge`"),
        (("f.csv", "f2.csv"), "f.csv: has no rows"),
    ],
)
def test_sources_that_do_not_go_together(tmp_path, monkeypatch, args, words):
    """They are refused by name."""
    put(tmp_path, {"a.csv": "x\n1\n", "b.csv": "x,more\n1,2\n", "c.csv": "y\n1\n", "d/1.txt": "", "e/1.txt": ""})
    put(tmp_path, {"i.json": "{}", "j.json": "{}", "f.csv": "x\n", "f2.csv": "x\n"})
    monkeypatch.chdir(tmp_path)
    fields = () if args[0] in ("d", "i.json") else ("--field", ".txt=x")
    code, out, err = run_pack(*args, "-o", "out/x-%d.tar", *fields)
    assert (code, out) == (1, "")
    assert words in in_one_line(err).replace(f"{tmp_path}/", "")


def test_several_tars_from_a_shell(tmp_path):
    """What a shell makes of ``in/*.tar`` is one dataset, and so is what it is given in quotes."""
    write_index(tmp_path / "in", (3, 4))
    for k, sources in enumerate(([tmp_path / "in/s0.tar", tmp_path / "in/s1.tar"], [tmp_path / "in/*.tar"])):
        run_ok("pack", *sources, "-o", tmp_path / f"{k}/s-%d.tar")
        assert shown(tmp_path / f"{k}/s.json") == shown(tmp_path / "in/index.json")


def test_remote_manifests_by_a_glob(tmp_path):
    """Of a bucket, too; files that they name are beside them."""
    place = backends.memory("many-rows")
    for k in (2, 10, 1):
        place.add(f"in/part-{k}.csv", f"t\n{k}.txt\n".encode())
        place.add(f"in/{k}.txt", b"text %d" % k)
    sources = manifest.expand_sources([f"{place.url}/in/part-*.csv"])
    outcome = pack_rows_of(sources, tmp_path / "out/x-%d.tar", ".txt=@t")
    assert [fields[".txt"] for _, fields in shown(outcome.index)] == [b"text 1", b"text 2", b"text 10"]


def pack_rows_of(sources, output, *fields, **settings):
    """Pack several manifests in this process."""
    listing = manifest.list_rows(
        sources,
        fields=[manifest.parse_field(field) for field in fields],
        key=None,
        base=None,
        numbers_keys=False,
        session=PLAIN,
        tell=lambda _: None,
    )
    return pack(listing, PackSettings(output=str(output), **settings))


PICTURES = [b"\x89PNG picture %d" % k * 300 for k in range(7)]


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


@pytest.mark.parametrize("kind", ["struct", "binary", "large", "view", "dictionary"])
@pytest.mark.parametrize("is_remote", [False, True], ids=["local", "remote"])
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
    options = ("--field", ".jpg=image", "--field", ".cls=label", "--samples", 4, "--jobs", 2)
    code, _, err = run_pack(tmp_path / "part-*.parquet", "-o", tmp_path / "out/x-%d.tar", *options)
    assert code == 0
    assert "column 'image' begins with a .png, which is called .jpg as you said" in in_one_line(err)
    assert [fields[".jpg"] for _, fields in shown(tmp_path / "out/x.json")] == PICTURES * 3


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


def list_pictures(sources):
    """The rows of manifests whose column ``image`` is a picture, listed and not packed yet."""
    return manifest.list_rows(
        sources,
        fields=[manifest.parse_field(".png=image")],
        key=None,
        base=None,
        numbers_keys=False,
        session=PLAIN,
        tell=lambda _: None,
    )


def test_a_parquet_that_changes_while_it_is_packed(tmp_path):
    """Its pictures are refused then, and a run after that writes what is there."""
    path = write_pictures(tmp_path / "rows.parquet")
    listing = list_pictures(path)
    pq.write_table(pa.table({"image": [b"other"]}), path)
    with pytest.raises(SampleError, match="was written to since it was listed"):
        pack(listing, PackSettings(output=str(tmp_path / "out/x-%d.tar")))
    outcome = pack_rows(path, tmp_path / "out/x-%d.tar", ".png=image")
    assert shown(outcome.index) == [("000000000", {".png": b"other"})]


def write_arrow(path, table, *, is_stream=True, rows=3):
    """Write a table as an Arrow stream in batches of a few rows, as ``datasets`` do, or as an Arrow file."""
    open_writer = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as file, open_writer(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return str(path)


FEATURES = {
    "image": {"_type": "Image"},
    "label": {"names": ["cat", "dog"], "_type": "ClassLabel"},
    "text": {"dtype": "string", "_type": "Value"},
}


def save_dataset(folder, table, *, features=FEATURES, state=None):
    """Save a table as ``datasets`` do: two Arrow streams, whose names are not in the order of their rows."""
    os.makedirs(folder)
    names = ["data-b.arrow", "data-a.arrow"]
    for name, part in zip(names, (table.slice(0, 4), table.slice(4)), strict=True):
        write_arrow(folder / name, part)
    state = {"_data_files": [{"filename": name} for name in names]} if state is None else state
    put(folder, {"state.json": json.dumps(state), "dataset_info.json": json.dumps({"features": features})})
    return folder


def picture_rows(**columns):
    """A table of pictures as ``datasets`` have them, with labels, texts and more columns."""
    cells = [{"bytes": data, "path": None} for data in PICTURES]
    image = pa.array(cells, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    return pa.table({"image": image, "label": [k % 2 for k in range(7)], "text": list("abcdefg"), **columns})


def test_a_saved_dataset(tmp_path):
    """Its rows are packed in their order, without the package that saved it; what else there is, is JSON."""
    folder = save_dataset(tmp_path / "saved", picture_rows())
    code, out, _ = run_pack(folder, "-o", tmp_path / "out/x-%d.tar", "--samples", 4, "--jobs", 2)
    assert code == 0
    assert "fields of its columns: .png=image .cls=label .txt=text" in out
    assert shown(tmp_path / "out/x.json") == [
        (f"{k:09d}", {".png": data, ".cls": b"%d" % (k % 2), ".txt": b"abcdefg"[k : k + 1]})
        for k, data in enumerate(PICTURES)
    ]
    names = ("--classes", folder / "dataset_info.json", "--format", "manifest")
    assert run_pack(folder, "-o", tmp_path / "named/x-%d.tar", *names)[0] == 0
    assert json.loads((tmp_path / "named/x.json").read_text())["info"]["classes"] == ["cat", "dog"]
    table = picture_rows(mask=picture_rows()["image"], score=[k / 2 for k in range(7)])
    wide = save_dataset(tmp_path / "wide", table, features={**FEATURES, "mask": {"_type": "Image"}})
    outcome = pack_sources(str(wide), PackSettings(output=f"{tmp_path}/wide-out/x-%d.tar"), engine=RunOptions(jobs=1))
    key, fields = shown(outcome.index)[3]
    assert (key, {*fields}) == ("000000003", {".png", ".mask.png", ".cls", ".json"})
    assert json.loads(fields[".json"]) == {"text": "d", "score": 1.5}
    source = PackSource(fields=(".jpg=image",))  # one's own have precedence
    settings = PackSettings(output=f"{tmp_path}/own/x-%d.tar")
    outcome = pack_sources(str(folder), settings, source=source, engine=RunOptions(jobs=1))
    assert shown(outcome.index)[6] == ("000000006", {".jpg": PICTURES[6]})


def test_a_saved_dataset_that_cannot_be_packed(tmp_path):
    """What would be packed in another order, under a wrong name or out of another folder is an error that helps."""
    sounds = save_dataset(tmp_path / "sounds", picture_rows(), features={"image": {"_type": "Audio"}})
    with pytest.raises(
        InputError, match=r"column 'image' holds bytes that are no pictures \(Audio\).* like \.wav=image"
    ):
        pack_sources(str(sounds), PackSettings(output=f"{tmp_path}/out/x-%d.tar"))
    files = [{"filename": "data-b.arrow"}]
    states = ({}, [], {"_data_files": []}, {"_data_files": [{"filename": "../b.arrow"}]})
    for k, state in enumerate((*states, {"_data_files": files, "_indices_data_files": files})):
        folder = save_dataset(tmp_path / str(k), picture_rows(), state=state)
        with pytest.raises(InputError, match=r"names no Arrow files with its rows in order; save it again"):
            pack_sources(str(folder), PackSettings(output=f"{tmp_path}/out/x-%d.tar"))
    put(tmp_path / "0", {"state.json": "{"})
    with pytest.raises(InputError, match=r"state\.json"):
        pack_sources(str(tmp_path / "0"), PackSettings(output=f"{tmp_path}/out/x-%d.tar"))


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
    listing = list_pictures(sources)
    os.rename(tmp_path / "late.png", tmp_path / "away.png")
    with pytest.raises(SampleError, match=r"late.png: cannot be read"):
        pack(listing, PackSettings(output=str(tmp_path / "out/x-%d.tar"), samples=5))
    os.rename(tmp_path / "away.png", tmp_path / "late.png")
    outcome = pack_rows_of(sources, tmp_path / "out/x-%d.tar", ".png=image", samples=5)
    assert outcome.kept == 2
    assert [fields[".png"] for _, fields in shown(outcome.index)] == [*PICTURES, *PICTURES, b"late"]


# --- what else is told


def test_what_only_some_samples_have_is_counted(tmp_path):
    """Fields that samples lack, and fields to keep that none has, are in the report."""
    put(tmp_path / "in", {"a.JPG": "x", "b.jpg": "x", "a.txt": "1", "b.txt": "", "c.txt": "3"})
    options = ("--keep-fields", ".jpg,txt,.jepg", "--samples", 2)
    code, out, err = run_pack(tmp_path / "in", "-o", tmp_path / "out/f-%d.tar", *options)
    assert code == 0
    assert "\nnot all samples have all fields: .JPG in 1, .jpg in 1\n" in out
    assert err == "wids: note: no sample has the field .jepg that is to be kept\n"
    for size in (("--size", "10kB"), ()):
        args = ("-o", tmp_path / f"c{len(size)}/f-%d.tar", "--keep-fields", "JPG", "--range", ":2", *size)
        run_ok("pack", tmp_path / "out/f.json", *args)
        assert shown(tmp_path / f"c{len(size)}/f.json") == [("a", {".JPG": b"x"}), ("b", {".jpg": b"x"})]
    code, _, err = run_pack(tmp_path / "out/f.json", "-o", tmp_path / "b/f-%d.tar", "--keep-fields", ".tiff")
    assert code == 1
    assert "sample 'a' has none of the fields to keep" in in_one_line(err)


def test_of_alternatives_to_keep_the_first_is_packed(tmp_path):
    """As in ``fields=``, of files and of datasets, cut by size too; a field of which no sample has any is told."""
    put(tmp_path / "in", {"a.jpg": "1", "a.PNG": "2", "b.PNG": "3", "b.txt": "x", "c.txt": "x"})
    expected = [("a", {".jpg": b"1"}), ("b", {".PNG": b"3", ".txt": b"x"}), ("c", {".txt": b"x"})]
    out = run_ok("pack", tmp_path / "in", "-o", tmp_path / "f/f-%d.tar", "--keep-fields", "jpg;png,.txt")
    assert f"1 file ignored ({tmp_path}/in/a.PNG)\n" in out
    assert shown(tmp_path / "f/f.json") == expected
    run_ok("pack", tmp_path / "in", "-o", tmp_path / "all/f-%d.tar")
    for size in ((), ("--size", "10kB")):
        args = ("-o", tmp_path / f"d{len(size)}/f-%d.tar", "--keep-fields", ".jpg;.png,.txt", *size)
        run_ok("pack", tmp_path / "all/f.json", *args)
        assert shown(tmp_path / f"d{len(size)}/f.json") == expected
    args = ("-o", tmp_path / "g/f-%d.tar", "--keep-fields", "txt,tif;webp", "--range", "1:")
    code, _, err = run_pack(tmp_path / "all/f.json", *args)
    assert (code, err) == (0, "wids: note: no sample has the field .tif or .webp that is to be kept\n")
    for wrong in ("jpg;", "jpg,png;jpg"):
        assert "fields: " in complaint(2, "pack", tmp_path / "in", "-o", tmp_path / "x-%d.tar", "--keep-fields", wrong)


def test_alternatives_are_another_dataset_than_all_of_them(tmp_path):
    """A run that was ended with one of the two is not continued with the other."""
    put(tmp_path / "in", {"a.jpg": "1", "a.png": "2"})
    run_ok("pack", tmp_path / "in", "-o", tmp_path / "in-%d.tar")
    digests = [
        datasets.list_dataset(
            str(tmp_path / "in.json"),
            cache_dir="nowhere",
            keep_fields=fields,
            session=PLAIN,
            tell=lambda _: None,
        ).reader.identify([0])
        for fields in (
            parse_fields("jpg;png"),
            parse_fields(("png", "jpg")),
            parse_fields(("jpg", "png")),
            parse_fields("png;jpg"),
        )
    ]
    assert digests[1] == digests[2]
    assert len(set(digests)) == 3


def test_ignored_files_are_named(tmp_path):
    """The first ones in the line, a thousand for programs, all of them in the number."""
    put(tmp_path / "in", {"a/0.jpg": "x", **{f"a/{k}.txt": "x" for k in range(1100)}})
    out = run_ok("pack", tmp_path / "in", "--format", "folder", "-o", tmp_path / "out/f-%d.tar")
    assert "\n1,100 files ignored (" in out
    assert ".txt, ...)\n" in out
    out = run_ok("pack", tmp_path / "in", "--format", "folder", "-o", tmp_path / "b/f-%d.tar", "--json")
    found = json.loads(out)
    assert (found["ignored"], len(found["ignored_files"])) == (1100, 1000)
    assert {*found["ignored_files"]} <= {f"{tmp_path}/in/a/{k}.txt" for k in range(1100)}


def test_files_of_no_bytes_are_told(tmp_path):
    """An image or a label of no bytes cannot be meant; an empty text can."""
    put(tmp_path / "in", {"a/1.jpg": "", "a/2.jpg": "x", "a/2.txt": ""})
    with pytest.raises(SampleError, match=r"a/1.jpg: is empty, which no .jpg is"):
        pack_files(tmp_path / "in", tmp_path / "out/f-%d.tar")
    assert pack_files(tmp_path / "in", tmp_path / "out/f-%d.tar", skips_errors=True).samples == 1
    put(tmp_path, {"r.csv": "p\nin/a/1.jpg\n"})
    with pytest.raises(SampleError, match=r"r.csv, line 2: .*a/1.jpg: is empty, which no .jpg is"):
        pack_rows(tmp_path / "r.csv", tmp_path / "out/m-%d.tar", ".jpg=p")


def test_why_nothing_is_left_is_told(tmp_path):
    """Where all samples are left out, the first one's reason is the error, and not that there are none."""
    put(tmp_path, {"r.csv": "a\nfolder\\\\0.jpg\nb.jpg\n", "r.json": '{"a": "x"}\n{"a": "y"}\n'})
    with pytest.raises(
        SampleError, match=r"line 2: column 'a' names a file, .*it has backslashes.*\(1 more sample cann"
    ):
        pack_rows(tmp_path / "r.csv", tmp_path / "o/x-%d.tar", ".jpg=a", skips_errors=True)
    assert pack_rows(tmp_path / "r.json", tmp_path / "o/x-%d.tar", ".txt=a").samples == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("r.csv.gz", "r.csv.gz: is compressed; unpack it first"),
        ("r.xlsx", "r.xlsx: is a spreadsheet; store it as CSV, in UTF-8"),
        (
            "h",
            (
                "h/c/a.b.jpg: key 'c/a.b' has a dot in its basename, where the extension would begin (dots in folders "
                "are fine); rename it, or number the keys; --number-keys numbers them"
            ),
        ),
    ],
)
def test_what_helps_is_told(tmp_path, monkeypatch, name, words):
    """Sources that are nearly right are refused with what makes them right."""
    put(tmp_path, {"r.csv.gz": "x", "r.xlsx": "x", "h/c/a.b.jpg": "x"})
    monkeypatch.chdir(tmp_path)
    assert complaint(1, "pack", name, "-o", "out/x-%d.tar").replace(f"{tmp_path}/", "") == f"wids: {words}"


def test_rows_that_name_one_file_are_counted(tmp_path):
    """That may be meant (several captions of a picture), and is said."""
    put(tmp_path, {"a.jpg": "x", "b.jpg": "y", "r.csv": "p,t\na.jpg,1\nb.jpg,2\na.jpg,3\n"})
    outcome = pack_rows(tmp_path / "r.csv", tmp_path / "out/m-%d.tar", ".jpg=p", ".txt=t")
    assert outcome.samples == 3
    assert outcome.notes == [
        f"1 row names a file that an earlier row names (line 4 names {tmp_path}/a.jpg, as line 2 does)"
    ]


@pytest.mark.parametrize("stray", ["h/cat/notes.txt", "h/cat/1.json", "h/cat/9.heic", "h/readme.md"])
def test_a_stray_file_does_not_undo_classes(tmp_path, monkeypatch, stray):
    """Folders of images stay class folders, and the file that is left out is named."""
    monkeypatch.chdir(tmp_path)
    put(tmp_path, {f"h/{name}/{k}.jpg": "x" for name in ("cat", "dog") for k in range(2)} | {stray: "x"})
    out = run_ok("pack", "h", "-o", "out/h-%d.tar")
    assert out.startswith("h, taken as images by class: 4 samples")
    assert f"1 file ignored ({stray})" in out
    assert sorted(labels_of("out/h.json")) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("cat/0.jpg", "cat/1.jpg", "dog/0.jpg", "0.jpg"), "h/0.jpg: is in no class folder; put it into one, "),
        (
            ("images/0.jpg", "images/1.jpg", "labels/0.txt", "labels/1.txt"),
            "h: holds 2 images in folders (images/0.jpg), 2 other files in folders (labels/0.txt); say whether ",
        ),
        (
            ("a/0.jpg", "a/0.txt", "a/1.jpg", "a/1.txt", "b/2.jpg", "b/3.jpg"),
            "h: holds 4 images in folders (a/0.jpg), 2 of them with other files of the same name, 2 other files in ",
        ),
        (
            ("a/0.jpg", "a/1.jpg", "2.jpg", "3.jpg"),
            "h: holds 2 images in folders (a/0.jpg), 2 images in no folder; say whether ",
        ),
    ],
)
def test_what_may_be_classes_or_files_is_asked(tmp_path, monkeypatch, names, words):
    """Neither labels nor files are dropped by a guess."""
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "h", dict.fromkeys(names, "x"))
    told = complaint(1, "pack", "h", "-o", "out/x-%d.tar").replace(f"{tmp_path}/", "")
    assert told.startswith(f"wids: {words}")
    assert told.endswith(("--format folder, or --format files", "--skip-errors leaves out what cannot be packed"))
    assert not (tmp_path / "out").exists()
    run_ok("pack", "h", "-o", "out/x-%d.tar", "--format", "files")


@pytest.mark.parametrize(
    "names",
    [("a/0.jpg", "a/0.json"), ("a/0.jpg", "a/0.txt", "b/1.jpg", "b/1.txt"), ("0.jpg", "1.jpg"), ("a/0.wav", "a/0.txt")],
)
def test_images_with_files_of_their_names_are_files(tmp_path, names):
    """So are images in no folder, and what is no image."""
    put(tmp_path / "h", dict.fromkeys(names, "x"))
    assert folders.guess_format(str(tmp_path / "h")) == "files"


@pytest.mark.parametrize(
    ("names", "options", "words"),
    [
        (("train/cat/0.jpg", "val/cat/0.jpg"), (), "h: train, val are parts of a dataset, not classes; did you mean "),
        (("val/0.jpg", "Train/0.jpg"), (), "h: Train, val are parts of a dataset, not classes; did you mean "),
        (("train/cat/0.jpg", "val/cat/0.jpg"), ("--format", "folder"), "h: train, val are parts of a dataset, not "),
        (("train/cat/0.jpg",), (), "h: train is a part of a dataset, not a class; did you mean h/train? If this is "),
        (("in/cat/0.jpg", "in/dog/0.jpg"), (), "h: in is the only folder in it, and has folders with images in it; "),
    ],
)
def test_parts_of_a_dataset_are_no_classes(tmp_path, monkeypatch, names, options, words):
    """A folder with train and val in it, and one around the class folders, are refused: it is said what is meant."""
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "h", dict.fromkeys(names, "x"))
    told = complaint(1, "pack", "h", "-o", "out/x-%d.tar", *options).replace(f"{tmp_path}/", "")
    assert told.startswith(f"wids: {words}")
    assert "did you mean h/" in told
    (tmp_path / "classes.txt").write_text("train\nval\nTrain\nin\n")
    run_ok("pack", "h", "-o", "out/x-%d.tar", *options, "--classes", "classes.txt")


def test_class_folders_are_shuffled(tmp_path):
    """By default with seed 0, which is said; --no-shuffle keeps the order, of other sources too."""
    put(tmp_path / "h", {f"{name}/{k}.jpg": "x" for name in ("cat", "dog") for k in range(20)})
    out = run_ok("pack", tmp_path / "h", "-o", tmp_path / "a/h-%d.tar")
    assert "\nshuffled with seed 0\n" in out
    assert sum(map(int, labels_of(tmp_path / "a/h.json")[:20])) in range(4, 17)
    out = run_ok("pack", tmp_path / "h", "-o", tmp_path / "b/h-%d.tar", "--no-shuffle", "--samples", 20)
    assert "shuffled" not in out
    assert labels_of(tmp_path / "b/h.json") == [0] * 20 + [1] * 20
    found = json.loads(run_ok("pack", tmp_path / "h", "-o", tmp_path / "c/h-%d.tar", "--shuffle", 0, "--json"))
    assert (found["seed"], content(tmp_path / "c")) == (0, content(tmp_path / "a"))
    found = json.loads(run_ok("pack", tmp_path / "b/h.json", "-o", tmp_path / "d/h-%d.tar", "--json"))
    assert (found["seed"], labels_of(tmp_path / "d/h.json")) == (None, [0] * 20 + [1] * 20)
    told = complaint(2, "pack", tmp_path / "h", "-o", tmp_path / "e/h-%d.tar", "--shuffle", 1, "--no-shuffle")
    assert "--shuffle and --no-shuffle are given; take one of them" in told


@pytest.mark.parametrize("shards", [1, 5])
def test_info_tells_how_classes_are_spread(tmp_path, monkeypatch, shards):
    """Sorted by class within shards or over them, or mixed; of many samples, by a part of the labels."""
    put(tmp_path / "h", {f"{name}/{k}.jpg": "x" for name in ("cat", "dog", "eel", "fox") for k in range(25)})
    options = ("pack", tmp_path / "h", "--samples", 100 // shards)
    run_ok(*options, "-o", tmp_path / "a/h-%d.tar", "--no-shuffle")
    run_ok(*options, "-o", tmp_path / "b/h-%d.tar")
    each = {1: "4", 5: "1.6"}[shards]
    words = f"4 over all, {each} a shard on average (by 100 labels of {shards} shard{'s' * (shards > 1)})"
    out = run_ok("info", tmp_path / "a/h.json")
    assert f"classes      sorted by class: {words}; `wids pack --shuffle SEED` mixes them" in out
    found = json.loads(run_ok("info", tmp_path / "b/h.json", "--json"))["classes"]
    assert found == {
        "count": 4,
        "per_shard": 4,
        "shards": shards,
        "samples": 100,
        "is_sorted": False,
        "is_whole": True,
    }
    monkeypatch.setattr("wids.collection.facts._LABELS", 80)
    monkeypatch.setattr("wids.collection.facts._RUN", 4)
    for name, is_sorted in (("a", True), ("b", False)):
        found = json.loads(run_ok("info", tmp_path / f"{name}/h.json", "--json"))["classes"]
        assert (found["is_sorted"], found["samples"], found["is_whole"]) == (is_sorted, 80, False)
    put(tmp_path / "t", {"a.txt": "x"})
    run_ok("pack", tmp_path / "t", "-o", tmp_path / "c/h-%d.tar")
    assert json.loads(run_ok("info", tmp_path / "c/h.json", "--json"))["classes"] is None


def test_pages_that_were_saved_as_pictures(tmp_path):
    """What a server answered that had no picture: packed as it is, and counted."""
    put(tmp_path / "in", {"cat/0.jpg": "<!doctype html><p>", "dog/1.JPG": '  {"error": 404}', "dog/2.jpg": "x"})
    code, _, err = run_pack(tmp_path / "in", "-o", tmp_path / "x-%d.tar", "--no-shuffle")
    assert code == 0
    assert "note: 2 pictures are web pages or JSON by the first bytes, as cat/0.jpg; `wids verify --decode`" in err


def test_names_with_dots_that_are_one_sample_are_noted(tmp_path):
    """Pictures that a number after a dot tells apart become one sample, and the note shows two of them."""
    put(tmp_path / "h", {"20.00.wav": "x", "20.25.wav": "y", "21.00.wav": "z"})
    outcome = pack_sources(tmp_path / "h", PackSettings(output=f"{tmp_path}/o/x-%d.tar"), engine=RunOptions(jobs=1))
    assert outcome.samples == 2
    [note] = [note for note in outcome.notes if "one sample" in note]
    assert "20.00.wav and 20.25.wav are one sample, because a key ends at the first dot of a name" in note


def test_keys_with_a_dot_of_a_dataset_are_numbered(tmp_path):
    """An index with a key rule may have them: the message names the option that helps, and it does."""
    write_tar(tmp_path / "a.tar", {"sp0.9-a.txt": b"a", "sp0.9-b.txt": b"b"})
    assert run("index", "create", tmp_path / "a.tar", "--key-rule", "last-dot", "-o", tmp_path / "i.json")[0] == 0
    command = ("pack", tmp_path / "i.json", "-o", tmp_path / "o/x-%d.tar")
    assert "--number-keys" in complaint(1, *command)
    assert run(*command, "--number-keys")[0] == 0


# Format -> the files of a dataset, and words of the way from it.
FOREIGN = {
    "mosaicml": ({"index.json": '{"shards": [], "version": 2}', "shard.00000.mds": "x"}, "streaming.StreamingDataset"),
    "mosaicml in parts": ({"train/index.json": "{}", "train/shard.00000.mds.zstd": "x"}, "streaming.StreamingDataset"),
    "litdata": ({"index.json": '{"chunks": [], "config": {}}', "chunk-0-0.bin": "x"}, "litdata.StreamingDataset"),
    "arrow in splits": ({"dataset_dict.json": "{}", "train/state.json": "{}"}, "the folder of each"),
    "arrow in a cache": ({"imdb-train.arrow": "x", "dataset_info.json": "{}"}, "wids pack 'FOLDER/*.arrow'"),
    "array_record": ({"a.array_record-00000-of-00002": "x"}, "package array_record"),
    "tfrecord": ({"a.tfrecord-00000-of-00002": "x"}, "tf.data.TFRecordDataset"),
    "lance": ({"_versions/1.manifest": "x", "data/1.lance": "x"}, "lance.dataset"),
    "ffcv": ({"train.beton": "x"}, "ffcv"),
    "lmdb": ({"data.mdb": "x", "lock.mdb": "x"}, "package lmdb"),
    "megatron": ({"a_text_document.bin": "x", "a_text_document.idx": "x"}, "indexed_dataset.IndexedDataset"),
    "mxnet": ({"train.rec": "x", "train.idx": "x", "train.lst": "x"}, "mxnet.recordio.MXIndexedRecordIO"),
    "zarr 2": ({".zgroup": "{}", "image/.zarray": "{}", "image/0.0": "x"}, "zarr.open"),
    "zarr 2, an array": ({"image/.zarray": "{}", "image/0.0": "x"}, "zarr.open"),
    "zarr 3": ({"x.zarr/zarr.json": "{}", "x.zarr/image/c/0": "x"}, "zarr.open"),
    "avro": ({"part-0.avro": "x"}, "package fastavro"),
    "parquet": ({"a.parquet": "x", "b.parquet": "x", "README.md": "x"}, "wids pack 'FOLDER/*.parquet'"),
}


@pytest.mark.parametrize(("files", "words"), FOREIGN.values(), ids=FOREIGN)
def test_datasets_of_other_tools_are_no_samples(tmp_path, files, words):
    """They are refused with the way to shards, by all commands; asked for, --format files packs their files."""
    put(tmp_path / "h", files)
    for command in (("pack", tmp_path / "h", "-o", tmp_path / "o/x-%d.tar"), ("info", tmp_path / "h")):
        told = complaint(1, *command)
        assert words in told
        assert "which wids does not read" in told
        assert "give its file" not in told
    if "index.json" in files:
        assert words in complaint(1, "info", tmp_path / "h/index.json")
    for name in files.keys() & {"index.json", "a_text_document.bin", "train.rec", "part-0.avro"}:
        assert words in complaint(1, "pack", tmp_path / "h" / name, "-o", tmp_path / "o/x-%d.tar")
    assert not (tmp_path / "o").exists()
    assert run("pack", tmp_path / "h", "-o", tmp_path / "o/x-%d.tar", "--format", "files")[0] == 0


@pytest.mark.parametrize("files", [{"a.bin": "x", "b.bin": "y", "b.idx": "z"}, {"a.rec": "x"}, {"a.zattrs": "x"}])
def test_files_that_only_look_like_those_of_other_tools(tmp_path, files):
    """A .bin or .rec without its .idx is a field, as any other file."""
    put(tmp_path / "h", files)
    assert run("pack", tmp_path / "h", "-o", tmp_path / "o/x-%d.tar")[0] == 0


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            ["train.csv"],
            "holds train.csv, and no other files; pack its rows: wids pack {}/train.csv --field .jpg=COLUMN",
        ),
        (["data.jsonl", "README.md", ".x"], "data.jsonl, and no other files; pack its rows: wids pack {}/data.jsonl"),
        (["a/x.TSV", "b/x.ndjson", "c/x.csv"], "holds a/x.TSV (and 2 more), and no other files; pack its rows"),
        (["x.csv", "y.parquet"], "holds x.csv (and 1 more), and no"),
        (["x.csv.gz", "y.jsonl.zst"], "holds x.csv.gz (and 1 more), and no"),
    ],
)
def test_a_folder_of_tables_is_not_packed_file_by_file(tmp_path, files, words):
    """Their rows may be meant: the error says how these are packed, and how the files are."""
    put(tmp_path / "h", dict.fromkeys(files, "x,y\n1,2\n"))
    told = complaint(1, "pack", tmp_path / "h", "-o", tmp_path / "o/x-%d.tar")
    assert words.format(tmp_path / "h") in told
    assert told.rstrip().endswith("; if each file is a sample, say --format files")
    assert not (tmp_path / "o").exists()
    assert run("pack", tmp_path / "h", "-o", tmp_path / "o/x-%d.tar", "--format", "files")[0] == 0
    put(tmp_path / "h", {"0.json": "{}"})
    assert run("pack", tmp_path / "h", "-o", tmp_path / "p/x-%d.tar")[0] == 0


@pytest.mark.parametrize("name", ["metadata.jsonl", "metadata.csv"])
def test_the_table_of_an_imagefolder_is_no_sample(tmp_path, name):
    """What it says of pictures is packed by that table, which the error names; asked for files, it is left out."""
    text = '{"file_name": "0.jpg", "text": "a"}\n' if name.endswith("jsonl") else "file_name,text\n0.jpg,a\n"
    put(tmp_path / "h", {"0.jpg": "x", "1.jpg": "y", name: text})
    told = complaint(1, "pack", tmp_path / "h", "-o", tmp_path / "o/x-%d.tar")
    assert f"wids pack {tmp_path}/h/{name} --field .jpg=file_name" in told
    assert not (tmp_path / "o").exists()
    outcome = pack_sources(
        tmp_path / "h",
        PackSettings(output=f"{tmp_path}/o/x-%d.tar"),
        source=PackSource(form="files"),
        engine=RunOptions(jobs=1),
    )
    assert (outcome.samples, outcome.ignored, outcome.ignored_files) == (2, 1, [f"{tmp_path}/h/{name}"])
    assert "is a table of the files beside it" in outcome.notes[0]
    outcome = pack_sources(
        tmp_path / f"h/{name}",
        PackSettings(output=f"{tmp_path}/p/x-%d.tar"),
        source=PackSource(fields=[".jpg=file_name", ".txt=text"]),
        engine=RunOptions(jobs=1),
    )
    assert shown(outcome.index) == [("000000000", {".jpg": b"x", ".txt": b"a"})]


def test_a_table_without_file_names_is_a_file(tmp_path):
    """Other files that are called metadata.csv are what they were."""
    put(tmp_path / "h", {"0.wav": "x", "metadata.csv": "0|a text\n"})
    outcome = pack_sources(tmp_path / "h", PackSettings(output=f"{tmp_path}/o/x-%d.tar"), engine=RunOptions(jobs=1))
    assert (outcome.samples, outcome.ignored) == (2, 0)

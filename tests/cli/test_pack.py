"""wids pack: its options, what it prints, and going on after it was killed. Packing itself: tests/io/writing/pack."""

import contextlib
import json
import os
import signal
import threading

import pytest

from tests.support import backends
from tests.support.cli import PATIENCE_SECONDS, complaint, in_one_line, run, run_apart, run_ok, spawn
from tests.support.clocks import wait_until
from tests.support.packing import content, labels_of, pack_rows, photos, put, shown
from tests.support.shards import write_index, write_tar
from wids.testing import Server
from wids.writing.pack.run import SUFFIX


def run_pack(*args, **options):
    """Run ``wids pack``."""
    return run("pack", *args, **options)


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


def test_options_reach_the_packing(tmp_path):
    """All of them at once; one process and two write the same bytes."""
    index = write_index(tmp_path / "in", (3, 4, 2))
    for jobs in (1, 2):
        code, out, err = run_pack(
            *(index, "-o", tmp_path / f"{jobs}/s-%d.tar", "--range", "1:8", "--keep-fields", ".cls,.txt"),
            *("--shuffle", 1, "--number-keys", "--size", "10KiB", "--jobs", jobs, "--json"),
            *("--name", "some", "--no-md5", "--no-tables"),
        )
        assert (code, err) == (0, "")
        outcome = json.loads(out)
        assert (outcome["samples"], outcome["shards"], outcome["seed"], outcome["skipped"]) == (7, 2, 1, [])
    assert content(tmp_path / "1") == content(tmp_path / "2")
    assert sorted(os.listdir(tmp_path / "1")) == ["s-0.tar", "s-1.tar", "s.json"]
    index = json.loads((tmp_path / "1/s.json").read_text())
    assert index["name"] == "some"
    assert not [entry for entry in index["shardlist"] if "md5" in entry]
    found = shown(tmp_path / "1/s.json")
    assert [key for key, _ in found] == [f"{k:09d}" for k in range(7)]
    assert {tuple(fields) for _, fields in found} == {(".txt", ".cls")}
    labels = [int(fields[".cls"]) for _, fields in found]
    assert sorted(labels) == [*range(1, 8)]
    assert labels != sorted(labels)


def test_only_some_fields_of_files(tmp_path):
    """With --keep-fields, other files are not packed, and not read."""
    put(tmp_path / "in", {"a.txt": "1", "a.jpg": "2", "b.jpg": "3"})
    os.chmod(tmp_path / "in/a.jpg", 0)
    code, out, _ = run_pack(tmp_path / "in", "-o", tmp_path / "out/f-%d.tar", "--keep-fields", "txt", "--json")
    assert code == 0
    assert json.loads(out)["ignored"] == 2
    assert shown(tmp_path / "out/f.json") == [("a", {".txt": b"1"})]


def test_manifest_without_keys_from_the_command_line(tmp_path):
    """Rows without a key column are numbered; @ makes a file of a field, and --base says where files are."""
    put(tmp_path, {"pics/1.jpg": "x", "pics/1.txt": "caption", "rows.csv": "image,text,label\n1.jpg,1.txt,7\n"})
    options = ("--field", ".jpg=image", "--field", ".txt=@text", "--field", "cls=label", "--base", tmp_path / "pics")
    code, _, err = run_pack(tmp_path / "rows.csv", "-o", tmp_path / "out/m-%d.tar", *options)
    assert (code, err) == (0, "")
    assert shown(tmp_path / "out/m.json") == [("000000000", {".jpg": b"x", ".txt": b"caption", ".cls": b"7"})]


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
            process.communicate(timeout=PATIENCE_SECONDS)  # ends when all its processes have
            go_on.set()
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


def test_samples_are_chosen_by_sql(tmp_path):
    """All conditions must hold; the others are counted, and what could not be asked is left out and told."""
    put(tmp_path / "in", {"a.bin": b"\xff", "b.bin": "1", "c.bin": "2", "d.bin": "1"})
    options = ("--format", "files", "--where", "bin = '1'", "--where", "key != 'd'", "--skip-errors")
    code, out, err = run_pack(tmp_path / "in", "-o", tmp_path / "out/x-%d.tar", *options)
    assert code == 0
    assert "\n2 samples not wanted\n1 sample left out\n" in out
    assert err.startswith("wids: left out: .bin of 'a' is no value")
    assert [key for key, _ in shown(tmp_path / "out/x.json")] == ["b"]


def test_several_sources_are_told_in_words(tmp_path):
    """The first and the last of them; a program has them from the library, and not from --json."""
    put(tmp_path, {"r1.csv": "b\n1\n", "r2.csv": "b\n2\n"})
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
        (("in", "-o", "o/x-%d.tar", "--field", "a=c"), 2, "--field is for manifests, and the source is taken as files"),
        (("in", "-o", "o/x-%d.tar", "--key", "b"), 2, "taken as files; for a manifest with another suffix say"),
        (("in", "-o", "o/x-%d.tar", "--keep-fields", ".a,"), 2, "--keep-fields: '' has an empty extension"),
        (
            ("in", "-o", "o/x-%d.tar", "--where", "true; drop view samples"),
            1,
            "one expression is needed, as after WHERE",
        ),
        (("in", "-o", ""), 2, "--output='': expected `str` of length >= 1"),
        (("", "-o", "o/x-%d.tar"), 2, "SOURCE='': give a path"),
        (("in", "-o", "o/x-%d.tar", "--shuffle", 1, "--no-shuffle"), 2, "--shuffle and --no-shuffle are given; take"),
    ],
)
def test_wrong_input_is_a_sentence(tmp_path, monkeypatch, args, code, words):
    """What is wrong on the command line or in the source is a sentence and an exit code, without a traceback."""
    put(tmp_path, {"in/a.txt": "x"})
    monkeypatch.chdir(tmp_path)
    found, out, err = run_pack(*args)
    assert (found, out) == (code, "")
    assert words in in_one_line(err)
    assert "Traceback" not in err


def test_help_teaches():
    """--help shows an example of each kind of source."""
    code, out, _ = run_pack("--help")
    assert code == 0
    assert "wids pack photos -o 'out/train-%06d.tar'" in " ".join(out.split())


def test_ignored_files_are_named(tmp_path):
    """The first three in the line, all that the library has for programs."""
    put(tmp_path / "in", {"a/0.jpg": "x", **{f"a/{k}.txt": "x" for k in range(5)}})
    out = run_ok("pack", tmp_path / "in", "--format", "folder", "-o", tmp_path / "out/f-%d.tar")
    assert "\n5 files ignored (" in out
    assert out.count(".txt") == 3
    assert ".txt, ...)\n" in out
    found = json.loads(run_ok("pack", tmp_path / "in", "--format", "folder", "-o", tmp_path / "b/f-%d.tar", "--json"))
    assert (found["ignored"], len(found["ignored_files"])) == (5, 5)


def test_classes_by_a_list(tmp_path):
    """--classes numbers folders as the list does; they are shuffled, which is said, and kept in order if asked."""
    put(tmp_path, {"names.txt": "eel\ncat\ndog\n", "in/dog/0.jpg": "x", "in/cat/1.jpg": "x"})
    args = ("pack", tmp_path / "in", "--classes", tmp_path / "names.txt", "-o")
    out = run_ok(*args, tmp_path / "a/x-%d.tar", "--no-shuffle")
    assert "\n3 classes, numbered as given from 0 (eel, cat, dog)\n" in out
    assert "shuffled" not in out
    assert labels_of(tmp_path / "a/x.json") == [1, 2]
    assert "\nshuffled with seed 0\n" in run_ok(*args, tmp_path / "b/x-%d.tar")


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
    monkeypatch.setattr("wids.tools.summary._LABELS", 80)
    monkeypatch.setattr("wids.tools.summary._RUN", 4)
    for name, is_sorted in (("a", True), ("b", False)):
        found = json.loads(run_ok("info", tmp_path / f"{name}/h.json", "--json"))["classes"]
        assert (found["is_sorted"], found["samples"], found["is_whole"]) == (is_sorted, 80, False)
    put(tmp_path / "t", {"a.txt": "x"})
    run_ok("pack", tmp_path / "t", "-o", tmp_path / "c/h-%d.tar")
    assert json.loads(run_ok("info", tmp_path / "c/h.json", "--json"))["classes"] is None


def test_keys_with_a_dot_of_a_dataset_are_numbered(tmp_path):
    """An index with a key rule may have them: the message names the option that helps, and it does."""
    write_tar(tmp_path / "a.tar", {"sp0.9-a.txt": b"a", "sp0.9-b.txt": b"b"})
    assert run("index", "create", tmp_path / "a.tar", "--key-rule", "last-dot", "-o", tmp_path / "i.json")[0] == 0
    command = ("pack", tmp_path / "i.json", "-o", tmp_path / "o/x-%d.tar")
    assert "--number-keys" in complaint(1, *command)
    assert run(*command, "--number-keys")[0] == 0


def test_datasets_of_other_tools_are_no_samples(tmp_path):
    """They are refused with the way to shards, also by their index; asked for, --format files packs their files."""
    put(tmp_path / "h", {"index.json": '{"shards": [], "version": 2}', "shard.00000.mds": "x"})
    for place in (tmp_path / "h", tmp_path / "h/index.json"):
        for command in (("pack", place, "-o", tmp_path / "o/x-%d.tar"), ("info", place)):
            told = complaint(1, *command)
            assert "streaming.StreamingDataset" in told
            assert "which wids does not read" in told
            assert "give its file" not in told
    assert not (tmp_path / "o").exists()
    assert run("pack", tmp_path / "h", "-o", tmp_path / "o/x-%d.tar", "--format", "files")[0] == 0

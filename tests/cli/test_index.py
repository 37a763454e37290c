"""``wids index`` as a user has it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

import wids
from tests.support.cache_shards import pack
from tests.support.cli import PATIENCE_SECONDS, run, run_ok, run_on_terminal, spawn
from tests.support.servers import status, whole
from tests.support.shards import write_index, write_json, write_shard, write_shards, write_tar
from wids import ShardListDataset
from wids.core.files import atomic
from wids.jobs.index_create import IndexSettings, create_index


def run_index(*args, **options):
    """Run ``wids index``."""
    return run("index", *args, **options)


def read(path):
    """The JSON in a file."""
    return json.loads(Path(path).read_text())


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Commands run in a directory of their own."""
    monkeypatch.chdir(tmp_path)


def test_create_tells_what_it_wrote():
    """Two lines on stdout, nothing on stderr in a pipe, and an index that a dataset reads."""
    write_shards("d", (3, 4))
    code, out, err = run_index("create", "d", "-o", "d/train.json")
    assert (code, err) == (0, "")
    first, second = out.splitlines()
    assert first.endswith("d/train.json: 2 shards, 7 samples, 40.9 kB") or "2 shards, 7 samples" in first
    assert second.startswith("2 read in ")
    written = read("d/train.json")
    assert (written["name"], [entry["url"] for entry in written["shardlist"]]) == ("train", ["s0.tar", "s1.tar"])
    assert len(ShardListDataset("d/train.json")) == 7
    code, out, _ = run_index("create", "d", "-o", "d/train.json", "--md5", "--members", "--name", "", "--json")
    told = json.loads(out)
    assert (code, told["shards"], told["samples"], told["surveyed"], told["failed"]) == (0, 2, 7, 2, {})
    assert "md5sum" in read("d/train.json")["shardlist"][0]
    assert "name" not in read("d/train.json")
    assert os.path.exists("d/s0.tar.widx")


def test_create_names_what_it_leaves_out():
    """On stderr what looks wrong, on stdout counts; all of it with --json."""
    write_shards("d", (3,))
    Path("d/s1.tar").write_bytes(pack([("a.txt", b"1"), ("README", b"2")]) + pack([("b.txt", b"1")]))
    Path("d/s2.tar").write_bytes(pack([("README", b"1")]))
    os.symlink("s0.tar", "d/s3.tar")
    Path("d/s9.tar").write_bytes(pack([("a.txt", b"1")])[:1024] + bytes(204_800))
    write_json("d/sizes.json", {"s4.tar": 7, "s0.tar": 3})
    code, out, err = run_index("create", "d", "-o", "i.json", "--counts", "d")
    assert code == 0
    for words in (
        *("s1.tar: goes on behind its end marker, at byte 10,240", "s2.tar: has no sample; its 1 file: "),
        "s9.tar: ends with 204,800 zeros, more than any writer appends; the samples there were lost",
        *("s3.tar: is the same file as ", "1 count of shards that are not in the index: s4.tar"),
    ):
        assert words in err
    for words in ("3 read, 1 not read, by their counts in ", "1 count from ", "2 files of the shards in no sample"):
        assert words in out
    told = json.loads(run_index("create", "d", "-o", "i.json", "--no-checksums", "--json")[1])
    assert (len(told["behind"]), len(told["empty"]), len(told["repeated"]), told["left_files"]) == (1, 1, 1, 2)
    assert "crc32" not in Path("i.json").read_text()
    code, _, err = run_index("create", "d", "-o", "i.json", "--counts", "d", "--checksums")
    assert (code, "shards that have counts are not read" in err) == (1, True)


def test_create_of_a_list_on_stdin():
    """- stands for the lines of stdin; --info takes a file's text; --base says where shards will be."""
    shards = write_shards("d", (1, 1))
    Path("about.txt").write_text("words")
    given = "".join(f"{shard['url']}\n" for shard in shards) + "\n"
    code, out, err = run_index("create", "-", "-o", "i.json", "-i", "about.txt", "-b", "gs://b/x", given=given)
    assert (code, err) == (0, ""), out
    written = read("i.json")
    assert (written["info"], written["base"], [e["url"] for e in written["shardlist"]]) == (
        "words",
        "gs://b/x",
        ["s0.tar", "s1.tar"],
    )


@pytest.mark.parametrize("output", ["about.txt", "./about.txt", "link.txt"])
def test_create_over_its_own_text(output):
    """The file that --info names is not replaced, whatever --overwrite says."""
    write_shards("d", (1, 1))
    Path("about.txt").write_text("words")
    Path("link.txt").symlink_to("about.txt")
    code, out, err = run_index("create", "d", "-o", output, "-i", "about.txt", "--overwrite")
    assert (code, out) == (1, "")
    assert f"{output}: is the text of the dataset (--info); give the output another name" in err
    assert Path("about.txt").read_text() == "words"
    assert Path("link.txt").is_symlink()
    assert run_index("create", "d", "-o", "i.json", "-i", "about.txt")[0] == 0


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["create", "nowhere.tar"], 1, "nowhere.tar: there is no file"),
        (["create", "empty"], 1, "no .tar files in this directory"),
        (["create", "junk.tar"], 1, "not a tar header"),
        (["create", "text"], 1, "or give another file: this one holds less than one header of a tar"),
        (["create", "d", "-o", "no/i.json"], 1, "make it first"),
        (["create", "d", "-o", "empty"], 1, "is a directory"),
        (["create", "-"], 1, "no shards to index"),
        (["create", "d", "--engine", "slow"], 2, "is not one of"),
        (["create", "d", "--ray-address", "auto"], 2, "goes with --engine ray"),
        (["create"], 2, "SOURCE"),
        (["update", "junk.tar"], 2, "name of a shard"),
        (["update", "broken.json"], 1, "not valid JSON"),
        (["merge", "broken.json", "-o", "x.json"], 1, "broken.json: not valid JSON"),
        (["split", "broken.json"], 2, "say how"),
        (["split", "broken.json", "--fractions", "a"], 2, "are no numbers"),
        (["rebase", "none.json", "--base", "x"], 1, "none.json"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(args, code, words):
    """On stderr, with the exit code of its kind, and nothing is written."""
    Path("junk.tar").write_bytes(b"x" * 2000)
    Path("broken.json").write_text("{")
    Path("text").write_text("words")
    Path("empty").mkdir()
    write_shards("d", (1,))
    before = sorted(os.listdir())
    done, out, err = run_index(*args, given="")
    assert (done, out) == (code, "")
    assert words in " ".join(err.replace("│", " ").split())
    assert code == 2 or len(err.splitlines()) == 1
    assert sorted(os.listdir()) == before


def test_skipped_errors_are_told():
    """Each on a line of stderr with its shard; the index has the others, and the exit code is 0."""
    write_shards("d", (1, 2))
    Path("d/s2.tar").write_bytes(b"x" * 2000)
    code, out, err = run_index("create", "d", "-o", "i.json", "--skip-errors")
    assert (code, out.splitlines()[1][:19]) == (0, "2 read, 1 left out ")
    assert err.startswith("wids: left out: ")
    assert "s2.tar" in err


def test_update_merge_split_rebase(tmp_path):
    """Each tells in a line what it wrote; --json tells it to programs."""
    write_index("a", (3, 4), name="a.json")
    write_index("b", (2,), name="b.json")
    write_shard("a/s2.tar", 5)
    code, out, err = run_index("update", "a/a.json", "--add", "a/s2.tar", "--drop", "s0.tar")
    assert (code, err) == (0, "")
    assert "2 shards, 9 samples" in out
    assert "2 read, 1 added, 1 dropped" in out
    assert run_index("merge", "a/a.json", "b/b.json", "-o", "c.json") == (0, "c.json: 3 shards, 11 samples\n", "")
    parts = "c-0.json: 2 shards, 9 samples\nc-1.json: 1 shard, 2 samples\n"
    assert run_index("split", "c.json", "--by", "2") == (0, parts, "")
    code, out, _ = run_index("split", "c.json", "--fractions", "0.8,0.2", "-o", "t.json", "-o", "v.json", "--json")
    assert [part["samples"] for part in json.loads(out)] == [9, 2]
    assert run_index("rebase", "a/a.json", "--base", "https://h/d") == (0, "a/a.json: 2 shards, 9 samples\n", "")
    assert read("a/a.json")["base"] == "https://h/d"


def test_convert():
    """What the commands say of a compiled index is what they say of the one that it was made of."""
    write_index("a", (3, 4), name="a.json")
    assert run_index("convert", "a/a.json", "-o", "a/a.widsx") == (0, "a/a.widsx: 2 shards, 7 samples\n", "")
    for words in (
        ("info", "{}", "--json"),
        ("ls", "{}"),
        ("ls", "{}", "--shards"),
        ("show", "{}", "4"),
        ("locate", "{}", "s1-003"),
        ("at", "{}", "--step", "1", "--batch-size", "2"),
        ("when", "{}", "5"),
        ("verify", "{}", "--quick"),
        ("simulate", "{}", "--world-size", "2", "--json"),
    ):
        told = [run(*(word.format(name) for word in words)) for name in ("a/a.json", "a/a.widsx")]
        assert [(done.code, done.err) for done in told] == [(0, "")] * 2
        if words[0] not in ("verify", "simulate"):  # which tell seconds
            assert told[1].out == told[0].out.replace("a.json", "a.widsx")
    code, _, err = run_index("convert", "a/a.json", "-o", "b.json")
    assert (code, "a compiled index has a name that ends in .widsx" in err) == (2, True)
    code, _, err = run_index("convert", "a/s{0..1}.tar", "-o", "b.widsx")
    assert (code, "is not an index; make one first" in err) == (1, True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_the_old_index(server, number, code):
    """What was read is in the journal, no half index is there, and the next run reads the rest."""
    server.has_ranges = True
    gate = server.gate()
    urls = [server.add("/a.tar", pack([("a.txt", b"1")])), server.add("/b.tar", pack([("b.txt", b"1")]), gate)]
    old = json.dumps({"wids_version": 1, "shardlist": [{"url": urls[0], "nsamples": 1}]})
    Path("i.json").write_text(old)
    with spawn("index", "create", *urls, "-o", "i.json", "--jobs", 2) as process:
        assert gate.entered.wait(PATIENCE_SECONDS)
        while not (os.path.exists("i.json.journal") and os.stat("i.json.journal").st_size):
            assert process.poll() is None
        process.send_signal(number)
        gate.go.set()
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == code
    assert err.splitlines()[-1].endswith("; run it again to continue")
    assert "Traceback" not in err
    assert Path("i.json").read_text() == old
    assert sorted(os.listdir()) == ["i.json", "i.json.journal"]
    server.faults.clear()
    told = create_index(urls, "i.json", settings=IndexSettings())
    assert (told.surveyed, told.unchanged) == (1, 1)
    assert sorted(os.listdir()) == ["i.json", "i.json.state"]


def test_a_terminal_sees_a_bar(server):
    """On stderr, which is a terminal; stdout stays clean for a pipe. Tries that failed draw no lines into it."""
    server.has_ranges = True
    url = server.add("/a.tar", pack([("a.txt", b"1")]), status(503), whole)
    with open("out", "w+b") as pipe:
        code, shown = run_on_terminal("index", "create", url, "-o", "i.json", stdout=pipe)
    out = Path("out").read_text()
    assert code == 0
    assert "1/1" in shown
    assert "Retried" not in shown
    assert "\x1b" not in out
    assert "1 shard, 1 sample" in out


def test_help_teaches():
    """Each command's help has an example of it."""
    for command in ("create", "update", "merge", "split", "rebase"):
        code, out, _ = run_index(command, "--help")
        assert code == 0
        assert f"wids index {command} " in out.replace("│", "")


def test_a_killed_run_leaves_nothing_for_long(tmp_path, server, monkeypatch):
    """What a run that was killed had in the temporary directory goes with the next run that needs one."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    gate = server.gate()
    url = server.add("/x.tar", pack([("a.txt", b"x" * 5000)]), whole, gate, whole)
    with spawn("index", "create", url, "-o", "i.json") as process:
        assert gate.entered.wait(PATIENCE_SECONDS)
        process.kill()
        process.communicate(timeout=PATIENCE_SECONDS)
    gate.go.set()
    assert len(os.listdir(scratch)) == 2
    assert run_index("create", url, "-o", "i.json")[0] == 0
    assert os.listdir(scratch) == []
    assert sorted(os.listdir()) == ["i.json", "i.json.state", "scratch"]


def test_two_runs_for_one_index(server):
    """While one makes an index, another one for it is refused, and the first one's journal stays."""
    gate = server.gate()
    url = server.add("/x.tar", pack([("a.txt", b"x" * 5000)]), whole, gate, whole)
    with spawn("index", "create", url, "-o", "i.json") as process:
        assert gate.entered.wait(PATIENCE_SECONDS)
        code, out, err = run_index("create", url, "-o", "i.json")
        assert (code, out) == (1, "")
        assert err.endswith("i.json.journal: another wids index is writing there; wait for it, or write elsewhere\n")
        gate.go.set()
        process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert sorted(os.listdir()) == ["i.json", "i.json.state"]


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
@pytest.mark.parametrize(
    ("index", "path"),
    [
        ('{"wids_version": 1, "shardlist": [{"url": "a.tar", "nsamples": 1, "x": {"y": [0, N]}}]}', "[0].x.y[1]"),
        ('{"wids_version": 1, "note": N, "shardlist": [{"url": "a.tar", "nsamples": 1}]}', "note"),
    ],
)
def test_numbers_that_json_does_not_have(index, path, number):
    """An index with infinity or NaN in it is not written on: the error says where it stands, and nothing is there."""
    Path("i.json").write_text(index.replace("N", number))
    for command in (
        ["split", "i.json", "--by", "1"],
        ["rebase", "i.json", "-b", "x", "-o", "o.json"],
        ["update", "i.json"],
    ):
        code, out, err = run_index(*command)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert f"{path} is {float(number)}, which is not a number in JSON" in err
        assert "i.json: " in err
    code, _, err = run_index("merge", "i.json", "-o", "o.json")
    assert (code, path in err) == ((0, False) if path == "note" else (1, True))
    assert sorted(os.listdir()) == (["i.json", "o.json"] if path == "note" else ["i.json"])


def test_create_prints_what_the_library_warns_of():
    """After the bar, each once; events are in the report."""
    write_shards("d", (3, 2))
    os.mkdir("d/.nv-meta")
    Path("d/.nv-meta/split.yaml").write_text("exclude: [s1.tar]\n")
    code, out, err = run_index("create", "d", "-o", "i.json")
    assert (code, "1 shard," in out, err.count("\n")) == (0, True, 1)
    assert "split.yaml: excludes 1 of 2 shards of this directory, which are left out: 's1.tar'" in err


def test_more_samples_than_can_be_counted():
    """No command writes such an index on."""
    entries = [{"url": f"{k}.tar", "nsamples": (1 << 53) - 1, "filesize": (1 << 63) - 1} for k in range(1 << 11)]
    write_json("i.json", {"wids_version": 1, "shardlist": entries})
    for command in (
        ["split", "i.json", "--by", "1"],
        ["rebase", "i.json", "-b", "x"],
        ["merge", "i.json", "-o", "o.json"],
    ):
        code, out, err = run_index(*command)
        assert (code, out) == (1, "")
        assert "more than can be counted" in err
    assert os.listdir() == ["i.json"]


@pytest.mark.outside
@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "[::1]:1"])
def test_ray_that_is_not_there(address):
    """An address where nobody listens is one sentence, long before Ray itself gives up."""
    write_shards("d", (1,))
    code, out, err = run_index("create", "d", "-o", "i.json", "--engine", "ray", "--ray-address", address)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"no Ray cluster at {address} " in err
    assert sorted(os.listdir()) == ["d"]


def test_write_json_is_an_index(tmp_path):
    """An index with sub-datasets alone cannot be rebased, and says so."""
    write_json("i.json", {"wids_version": 1, "shardlist": [], "datasets": [{"source_url": "x.json"}]})
    code, _, err = run_index("rebase", "i.json", "--base", "x")
    assert (code, "sub-datasets" in err) == (1, True)


def test_tables_tells_what_it_packed():
    """Two lines, or JSON; the index names the pack."""
    write_shards("d", (3, 4))
    run_index("create", "d", "-o", "d/train.json")
    code, out, err = run_index("tables", "d/train.json")
    assert (code, err) == (0, "")
    first, second = out.splitlines()
    assert first.startswith("d/train.tables: 2 member tables of 2 shards, ")
    assert first.endswith("; d/train.json names it")
    assert second.startswith("2 from the shards in ")
    assert read("d/train.json")["member_tables"] == "train.tables"
    run_index("create", "d", "-o", "d/train.json", "--members")  # which keeps the name of the pack
    Path("d/mine.tables").write_text("notes")
    code, out, err = run_index("tables", "d/train.json", "-o", "d/mine.tables")
    assert (code, out) == (1, "")
    assert "exists, and is no pack of this index" in err
    assert "or pass --overwrite" in err
    code, out, _ = run_index("tables", "d/train.json", "--json", "--jobs", "1")
    told = json.loads(out)
    assert (code, told["tables"], told["beside"], told["failed"]) == (0, 2, 2, {})
    code, out, _ = run_index("tables", "d/train.json", "-o", "other.tables")
    assert (code, read("d/train.json")["member_tables"]) == (0, str(Path("other.tables").absolute()))


def test_tables_leaves_out_what_it_is_told_to():
    """And names it."""
    write_shards("d", (3, 4))
    run_index("create", "d", "-o", "d/train.json")
    os.unlink("d/s1.tar")
    code, out, err = run_index("tables", "d/train.json")
    assert (code, out) == (1, "")
    assert "s1.tar: there is no file" in err
    code, out, err = run_index("tables", "d/train.json", "--skip-errors")
    assert code == 0
    assert "left out: " in err
    assert "1 member table of 2 shards" in out
    assert "1 left out in" in out
    code, _, err = run_index("tables", "none.json")
    assert code == 1
    assert "none.json" in err


@pytest.mark.parametrize("name", ["\ud800.tar", "a\0.tar"])
def test_a_name_that_no_file_can_have_is_not_there(tmp_path, name):
    """A name that an index has, and that the file system refuses, is that of a missing file."""
    index = write_json(tmp_path / "i.json", {"wids_version": 1, "shardlist": [{"url": name, "nsamples": 1}]})
    with pytest.raises(FileNotFoundError):
        atomic.open_file(str(tmp_path / name))
    assert run("verify", index)[0] == 1
    for args in (("info", index), ("index", "update", index)):
        code, _, told = run(*args)
        assert code == 1
        assert "i.json" in told or "there is no file" in told
    assert run("pack", index, "-o", tmp_path / "out/x-%d.tar")[0] == 1


def test_create_uploads(stand_in, monkeypatch):
    """It says what became of the file, and how to open the data set; and what right is missing, before it reads."""
    name = "hf://datasets/org/set"
    stand_in.put({"train/0.tar": pack([("a.txt", b"1"), ("b.txt", b"2")])})
    stand_in.repository.write_token = "hf_writer"
    code, out, err = run_index("create", name, "-o", "t.json", "--upload")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "a commit needs a token with write access, and none was found" in err
    assert not os.path.exists("t.json")
    monkeypatch.setenv("HF_TOKEN", "hf_writer")
    code, out, err = run_index("create", name, "-o", "t.json", "--upload")
    commit = stand_in.repository.find("main")
    assert (code, err) == (0, "")
    assert out.splitlines()[2:] == [
        f"{name}: train.json added by commit {commit[:12]}: {stand_in.url}/datasets/org/set/commit/{commit}",
        f'wids.ShardListDataset("{name}", split="train") opens it without reading a shard',
    ]
    code, out, _ = run_index("create", name, "-o", "t.json", "--upload")
    assert f"{name}: train.json is there already, as it is (commit {commit[:12]})" in out
    told = json.loads(run_index("create", name, "-o", "t.json", "--upload", "--json")[1])
    assert (told["samples"], told["upload"]["change"], told["upload"]["path"]) == (2, "unchanged", "train.json")
    code, _, err = run_index("create", name, "--upload", "--base", "https://host/data")
    assert (code, "leave --base out" in err) == (2, True)


@pytest.mark.parametrize("name", ["i.json", "i.widsx"])
def test_an_index_in_the_place_of_shards(name, tmp_path, server):
    """It is named as one, with what to give, by `create` and by `update --add`; --skip-errors leaves it out."""
    write_shards("d", (1, 2))
    run_ok("index", "create", "d/s0.tar", "-o", "i.json")
    run_ok("index", "convert", "i.json", "-o", "i.widsx")
    url = server.add(f"/{name}", Path(name).read_bytes())
    told = "is an index, not a shard; give the shards that it lists; wids index update reads them again"
    for place in (name, url, f"{url}?signed=1"):
        for command in (("create", place, "-o", "i.json"), ("update", "i.json", "--add", place)):
            code, _, err = run_index(*command)
            assert (code, err.count(told)) == (1, 1), err
    code, out, err = run_index("create", "d/s1.tar", name, "-o", "j.json", "--skip-errors")
    assert (code, "1 shard, 2 samples" in out, f"left out: {tmp_path / name}: is an index" in err) == (0, True, True)


def test_a_shard_in_the_place_of_an_index():
    """`rebase` names a tar as one, as other commands do."""
    write_shards("d", (1,))
    code, _, err = run_index("rebase", "d/s0.tar", "-b", "x")
    assert (code, "d/s0.tar: is a tar, not an index; " in err, "wids index create" in err) == (1, True, True)


def test_a_key_rule_that_takes_samples_apart_is_a_warning():
    """With the first two samples that look like one, and the option that makes one of them."""
    Path("d").mkdir()
    for name in ("s", "t"):
        members = [(f"{name}{k}.{kind}", b"1") for k in range(2) for kind in ("jpg", "jpg.json")]
        Path(f"d/{name}.tar").write_bytes(pack(members))
    code, out, err = run_index("create", "d", "-o", "i.json", "--key-rule", "last-dot")
    assert (code, "8 samples" in out) == (0, True)
    assert "s.tar (and 1 more shard): 's0' and 's0.jpg' are two samples, because a key ends at the last dot" in err
    assert "(4 such samples); if they are one, --key-rule first-dot puts their files together" in err
    code, out, err = run_index("create", "d", "-o", "i.json", "--key-rule", "first-dot")
    assert (code, "4 samples" in out, err) == (0, True, "")


def test_a_key_rule_is_kept_for_all_commands():
    """A warning names the option; with it, the index has it, and no other command needs to be told."""
    Path("d").mkdir()
    Path("d/s.tar").write_bytes(pack([(f"{k}.{q:02d}.txt", b"1") for k in (20, 21) for q in (0, 25, 50)]))
    code, out, err = run_index("create", "d", "-o", "i.json")
    assert (code, "1 shard, 2 samples" in out) == (0, True)
    assert "sample '20' has the fields .00.txt and .25.txt" in err
    assert "--key-rule last-dot takes them apart" in err
    code, out, err = run_index("create", "d", "-o", "i.json", "--key-rule", "last-dot")
    assert (code, err) == (0, "")
    assert "1 shard, 6 samples" in out
    assert "key rule last-dot, which the index keeps" in out
    assert "all is well" in run_ok("verify", "i.json")
    assert "20.25" in run_ok("ls", "i.json")
    assert "sample 4: 21.25" in run_ok("show", "i.json", "4")
    assert "6 samples" in run_index("update", "i.json")[1]
    assert json.loads(run_index("create", "d", "-o", "i.json", "--json")[1])["apart"] == {}
    Path("g").mkdir()
    Path("g/s.tar").write_bytes(pack([("a.jpg", b"1"), ("b.jpg", b"1"), ("a.txt", b"2"), ("b.txt", b"2")]))
    assert "1 shard, 4 samples" in run_index("create", "g", "-o", "g.json")[1]
    assert "1 shard, 2 samples" in run_index("create", "g", "-o", "g.json", "--group", "key")[1]
    assert wids.ShardListDataset("g.json", transformations="raw")[1][".txt"] == b"2"
    code, _, err = run_index("create", "d", "-o", "i.json", "--key-rule", "last-dot", "--upload")
    assert (code, "groups members in the standard way" in err) == (2, True)


@pytest.fixture
def joined(tmp_path, monkeypatch):
    """A base of 9 samples, a companion by row, one by key of 6 of them, and their join; the current directory."""
    monkeypatch.chdir(tmp_path)
    keys = [f"k{n}" for n in range(9)]
    for stem, name, counts in (("base", ".txt", (4, 5)), ("row", ".cap", (2, 7)), ("key", ".npy", (6,))):
        rows, left = [], keys[8:2:-1] if stem == "key" else list(keys)
        for k, count in enumerate(counts):
            members = [(key + name, f"{stem} {key}".encode()) for key in left[:count]]
            path = write_tar(f"{stem}-{k}.tar", members)
            rows.append({"url": path, "nsamples": count, "filesize": os.path.getsize(path)})
            del left[:count]
        write_json(f"{stem}.json", {"wids_version": 1, "shardlist": rows})
    said = run_ok("index", "join", "base.json", "row.json", "--prefix", "x", "-o", "first.json")
    assert said == "first.json: 9 samples, with .x.cap\n"
    by_key = ("--on", "key", "--missing", "none", "-o", "joined.json")
    code, said, told = run("index", "join", "first.json", "key.json", *by_key)
    assert (code, said) == (0, "joined.json: 9 samples, with .x.cap, .npy\n")
    assert "3 of 9 samples have no sample with their key in key.json, such as 'k0', 'k1', 'k2': they have none" in told
    return tmp_path


def test_commands_on_a_joined_index(joined):
    """They see one dataset."""
    assert run_ok("cat", "joined.json", "4", "x.cap") == "row k4"
    assert run_ok("cat", "joined.json", "4", "npy") == "key k4"
    shown = run_ok("show", "joined.json", "1")
    assert ".x.cap" in shown
    assert ".npy" not in shown
    listed = run_ok("ls", "joined.json").splitlines()
    assert listed[2].endswith(".txt=7 .x.cap=6")
    assert listed[9].endswith(".txt=7 .x.cap=6 .npy=6")
    told = run_ok("info", "joined.json")
    assert "row.json, by row: .x.cap" in told
    assert "key.json, by key: .npy" in told
    assert "5 shards" in run_ok("verify", "joined.json")
    assert "5 shards" in run_ok("cache", "warm", "joined.json")
    run_ok("view", "joined.json", "--select", "0:2", "-o", "view.json")
    assert "2 shards" in run_ok("verify", "view.json")
    sizes = [json.loads(run_ok("simulate", name, "--json"))["size_bytes"] for name in ("base.json", "joined.json")]
    assert sizes[1] > 2 * sizes[0]
    os.unlink("row-1.tar")
    code, out, _ = run("verify", "joined.json")
    assert code == 1
    assert "row-1.tar" in out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("merge joined.json base.json -o m.json", "has companions; do that with base.json, and join again"),
        ("split few.json --by 1", "has companions; do that with base.json, and join again"),
        ("rebase joined.json -b x -o m.json", "has companions; do that with base.json, and join again"),
        ("tables joined.json", "is a view of"),
        ("convert joined.json -o c.widsx", "is a view of"),
        ("join base.json key.json --on key -o m.json", "3 of 9 samples have no sample with their key in key.json"),
        ("join base.json key.json -o m.json", "key.json has 6 samples, and the dataset 9"),
        ("join base.json base.json --on keys -o m.json", "on is 'keys'; it is 'row' or 'key'"),
    ],
)
def test_joins_that_cannot_be(joined, command, words):
    """A command that would lose companions names the index to change; a join that does not fit says why."""
    by_key = ("--on", "key", "--missing", "skip", "--prefix", "y", "-o", "few.json")
    code, said, _ = run("index", "join", "joined.json", "key.json", *by_key)
    assert (code, said) == (0, "few.json: 6 of 9 samples, with .x.cap, .npy, .y.npy\n")
    code, _, err = run("index", *command.split())
    assert code in (1, 2)
    assert words in err

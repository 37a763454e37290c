"""``wids index`` as a user has it: each command in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cache_shards import pack
from tests.servers import status, whole
from tests.shards import write_index, write_json, write_shard, write_shards
from wids import ShardListDataset
from wids.jobs.index_create import Wanted, create_index

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PATIENCE_SECONDS = 60
USUAL = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"


@contextlib.contextmanager
def started(*args, **options):
    """Start the command line, and end it with the block."""
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    process = subprocess.Popen(
        [sys.executable, "-c", f"{USUAL}\nfrom wids.cli import main\nmain()", "index", *map(str, args)],
        env={**os.environ, "PYTHONPATH": ROOT, "COLUMNS": "100", "TERM": "xterm", "WIDS_DEBUG": "0"},
        **options,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def run(*args, given=None, **options):
    """Run a command: (exit code, stdout, stderr); there is never a traceback."""
    options = {**options, "stdin": subprocess.PIPE} if given is not None else options
    with started(*args, text=True, **options) as process:
        out, err = process.communicate(given, timeout=PATIENCE_SECONDS)
    assert "Traceback" not in err
    return process.returncode, out, err


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
    code, out, err = run("create", "d", "-o", "d/train.json")
    assert (code, err) == (0, "")
    first, second = out.splitlines()
    assert first.endswith("d/train.json: 2 shards, 7 samples, 40.9 kB") or "2 shards, 7 samples" in first
    assert second.startswith("2 read in ")
    index = read("d/train.json")
    assert (index["name"], [entry["url"] for entry in index["shardlist"]]) == ("train", ["s0.tar", "s1.tar"])
    assert len(ShardListDataset("d/train.json")) == 7
    code, out, _ = run("create", "d", "-o", "d/train.json", "--md5", "--members", "--name", "", "--json")
    told = json.loads(out)
    assert (code, told["shards"], told["samples"], told["surveyed"], told["failed"]) == (0, 2, 7, 2, {})
    assert "md5sum" in read("d/train.json")["shardlist"][0]
    assert "name" not in read("d/train.json")
    assert os.path.exists("d/s0.tar.widx")


def test_create_of_a_list_on_stdin():
    """- stands for the lines of stdin; --info takes a file's text; --base says where shards will be."""
    shards = write_shards("d", (1, 1))
    Path("about.txt").write_text("words")
    given = "".join(f"{shard['url']}\n" for shard in shards) + "\n"
    code, out, err = run("create", "-", "-o", "i.json", "-i", "about.txt", "-b", "gs://b/x", given=given)
    assert (code, err) == (0, ""), out
    index = read("i.json")
    assert (index["info"], index["base"], [e["url"] for e in index["shardlist"]]) == (
        "words",
        "gs://b/x",
        ["s0.tar", "s1.tar"],
    )


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["create", "nowhere.tar"], 1, "nowhere.tar: there is no file"),
        (["create", "empty"], 1, "no .tar files in this directory"),
        (["create", "junk.tar"], 1, "not a tar header"),
        (["create", "d", "-o", "no/i.json"], 1, "make it first"),
        (["create", "d", "-o", "empty"], 1, "is a directory"),
        (["create", "-"], 1, "no shards to index"),
        (["create", "d", "--engine", "slow"], 2, "is not one of"),
        (["create", "d", "--ray-address", "auto"], 2, "goes with --engine ray"),
        (["create"], 2, "SOURCE"),
        (["update", "junk.tar"], 1, "name of a shard"),
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
    Path("empty").mkdir()
    write_shards("d", (1,))
    before = sorted(os.listdir())
    done, out, err = run(*args, given="")
    assert (done, out) == (code, "")
    assert words in " ".join(err.replace("│", " ").split())
    assert code == 2 or len(err.splitlines()) == 1
    assert sorted(os.listdir()) == before


def test_skipped_errors_are_told():
    """Each on a line of stderr with its shard; the index has the others, and the exit code is 0."""
    write_shards("d", (1, 2))
    Path("d/s2.tar").write_bytes(b"x" * 2000)
    code, out, err = run("create", "d", "-o", "i.json", "--skip-errors")
    assert (code, out.splitlines()[1][:19]) == (0, "2 read, 1 left out ")
    assert err.startswith("wids: left out: ")
    assert "s2.tar" in err


def test_update_merge_split_rebase(tmp_path):
    """Each tells in a line what it wrote; --json tells it to programs."""
    write_index("a", (3, 4), name="a.json")
    write_index("b", (2,), name="b.json")
    write_shard("a/s2.tar", 5)
    code, out, err = run("update", "a/a.json", "--add", "a/s2.tar", "--drop", "s0.tar")
    assert (code, err) == (0, "")
    assert "2 shards, 9 samples" in out
    assert "2 read, 1 added, 1 dropped" in out
    assert run("merge", "a/a.json", "b/b.json", "-o", "c.json") == (0, "c.json: 3 shards, 11 samples\n", "")
    assert run("split", "c.json", "--by", "2")[1] == "c-0.json: 2 shards, 9 samples\nc-1.json: 1 shard, 2 samples\n"
    code, out, _ = run("split", "c.json", "--fractions", "0.8,0.2", "-o", "t.json", "-o", "v.json", "--json")
    assert [part["samples"] for part in json.loads(out)] == [9, 2]
    assert run("rebase", "a/a.json", "--base", "https://h/d") == (0, "a/a.json: 2 shards, 9 samples\n", "")
    assert read("a/a.json")["base"] == "https://h/d"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_the_old_index(server, number, code):
    """What was read is in the journal, no half index is there, and the next run reads the rest."""
    server.has_ranges = True
    gate = server.gate()
    urls = [server.add("/a.tar", pack([("a.txt", b"1")])), server.add("/b.tar", pack([("b.txt", b"1")]), gate)]
    Path("i.json").write_text("old")
    with started("create", *urls, "-o", "i.json", "--jobs", 2) as process:
        assert gate.entered.wait(PATIENCE_SECONDS)
        while not (os.path.exists("i.json.journal") and os.stat("i.json.journal").st_size):
            assert process.poll() is None
        process.send_signal(number)
        gate.go.set()
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == code
    assert b"Traceback" not in err
    assert Path("i.json").read_text() == "old"
    assert sorted(os.listdir()) == ["i.json", "i.json.journal"]
    server.faults.clear()
    told = create_index(urls, "i.json", wanted=Wanted())
    assert (told.surveyed, told.unchanged) == (1, 1)
    assert sorted(os.listdir()) == ["i.json", "i.json.state"]


def test_a_terminal_sees_a_bar(server):
    """On stderr, which is a terminal; stdout stays clean for a pipe. Tries that failed draw no lines into it."""
    server.has_ranges = True
    url = server.add("/a.tar", pack([("a.txt", b"1")]), status(503), whole)
    ours, its = pty.openpty()
    with started("create", url, "-o", "i.json", stderr=its) as process:
        os.close(its)
        shown = b""
        with contextlib.suppress(OSError):  # EIO: the other side is closed
            while data := os.read(ours, 65536):
                shown += data
        out = process.stdout.read()
        process.wait(PATIENCE_SECONDS)
    os.close(ours)
    assert process.returncode == 0
    assert b"1/1" in shown
    assert b"Retried" not in shown
    assert b"\x1b" not in out
    assert b"1 shard, 1 sample" in out


def test_help_teaches():
    """Each command's help has an example of it."""
    for command in ("create", "update", "merge", "split", "rebase"):
        code, out, _ = run(command, "--help")
        assert code == 0
        assert f"wids index {command} " in out.replace("│", "")


def test_ray_runs_the_same_function(tmp_path):
    """On a cluster of two nodes: the same index as by threads, and a bad shard is told with its name."""
    write_shards("d", (3, 1, 2, 4))
    create_index(["d"], "a.json", name="n")
    program = write_program(tmp_path)
    done = subprocess.run(
        [sys.executable, program],
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "PYTHONPATH": ROOT, "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": ray_directory()},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"nodes": 2, "shards": 4, "failed": ["s4.tar"], "code": 0}
    assert Path("a.json").read_bytes() == Path("b.json").read_bytes()


def test_a_killed_run_leaves_nothing_for_long(tmp_path, server, monkeypatch):
    """What a run that was killed had in the temporary directory goes with the next run that needs one."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    gate = server.gate()
    url = server.add("/x.tar", pack([("a.txt", b"x" * 5000)]), whole, gate, whole)
    with started("create", url, "-o", "i.json") as process:
        assert gate.entered.wait(PATIENCE_SECONDS)
        process.kill()
        process.communicate(timeout=PATIENCE_SECONDS)
    gate.go.set()
    assert len(os.listdir(scratch)) == 2
    assert run("create", url, "-o", "i.json")[0] == 0
    assert os.listdir(scratch) == []
    assert sorted(os.listdir()) == ["i.json", "i.json.state", "scratch"]


def test_two_runs_for_one_index(server):
    """While one makes an index, another one for it is refused, and the first one's journal stays."""
    gate = server.gate()
    url = server.add("/x.tar", pack([("a.txt", b"x" * 5000)]), whole, gate, whole)
    with started("create", url, "-o", "i.json", text=True) as process:
        assert gate.entered.wait(PATIENCE_SECONDS)
        code, out, err = run("create", url, "-o", "i.json")
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
        code, out, err = run(*command)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert f"{path} is {float(number)}, a number that JSON does not have" in err
        assert "i.json: " in err
    code, _, err = run("merge", "i.json", "-o", "o.json")
    assert (code, path in err) == ((0, False) if path == "note" else (1, True))
    assert sorted(os.listdir()) == (["i.json", "o.json"] if path == "note" else ["i.json"])


def test_more_samples_than_can_be_counted():
    """No command writes such an index on."""
    entries = [{"url": f"{k}.tar", "nsamples": (1 << 63) - 1} for k in range(2)]
    write_json("i.json", {"wids_version": 1, "shardlist": entries})
    for command in (
        ["split", "i.json", "--by", "1"],
        ["rebase", "i.json", "-b", "x"],
        ["merge", "i.json", "-o", "o.json"],
    ):
        code, out, err = run(*command)
        assert (code, out) == (1, "")
        assert "more than can be counted" in err
    assert os.listdir() == ["i.json"]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "[::1]:1"])
def test_ray_that_is_not_there(address):
    """An address where nobody listens is one sentence, long before Ray itself gives up."""
    write_shards("d", (1,))
    code, out, err = run("create", "d", "-o", "i.json", "--engine", "ray", "--ray-address", address)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"no Ray cluster at {address} " in err
    assert sorted(os.listdir()) == ["d"]


def ray_directory():
    """Short, for a socket's name has 107 bytes at most."""
    return "/tmp"


def write_program(tmp_path):
    """A program with a cluster of its own, for Ray warns and leaves threads in whatever process it is used."""
    program = tmp_path / "cluster.py"
    program.write_text(
        """
import json, os, subprocess, sys
import ray
from ray.cluster_utils import Cluster
from wids.jobs.index_create import Wanted, create_index

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1)
cluster.wait_for_nodes()
try:
    wanted = Wanted(engine="ray", ray_address=cluster.address)
    told = create_index(["d"], "b.json", name="n", wanted=wanted)
    open("d/s4.tar", "wb").write(b"x" * 2000)
    command = [sys.executable, "-m", "wids.cli", "index", "create", "d", "-o", "c.json", "--engine", "ray"]
    command += ["--ray-address", cluster.address, "--skip-errors", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    failed = [os.path.basename(place) for place in json.loads(done.stdout)["failed"]]
    nodes = len(cluster.list_all_nodes())
finally:
    cluster.shutdown()
print(json.dumps({"nodes": nodes, "shards": told.shards, "failed": failed, "code": done.returncode}))
"""
    )
    return program


def test_write_json_is_an_index(tmp_path):
    """An index with sub-datasets alone cannot be rebased, and says so."""
    write_json("i.json", {"wids_version": 1, "shardlist": [], "datasets": [{"source_url": "x.json"}]})
    code, _, err = run("rebase", "i.json", "--base", "x")
    assert (code, "sub-datasets" in err) == (1, True)


@pytest.mark.timeout(300)
def test_the_benchmark_runs(tmp_path):
    """`index.py --quick` measures local and remote shards, says what was read of them, and leaves no files behind."""
    figures, scratch = tmp_path / "figures.json", tmp_path / "scratch"
    scratch.mkdir()
    done = subprocess.run(
        [sys.executable, os.path.join(ROOT, "benchmarks/index.py"), "--quick", "--only-ours", "--json", figures],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["what"]: row for row in read(figures)["rows"]}
    assert len(rows) == 8
    assert rows["remote films"]["fraction"] < 0.5
    assert rows["remote films --md5"]["fraction"] == pytest.approx(1, abs=0.01)
    assert "too small" in done.stdout
    assert os.listdir(scratch) == []

"""`wids map`: what it says of its work, of samples that fail, and of a trial."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

import wids
from tests.support.cli import complaint, in_one_line, run, run_ok, spawn
from tests.support.clocks import PATIENCE_SECONDS, wait_until
from tests.support.shards import write_index

MODULE = """
import os, time

def count(sample):
    return {"len.json": len(sample[".txt"])} if int(sample[".cls"]) % 4 else None

def fail(sample):
    if int(sample[".cls"]) == 2:
        raise ValueError("two")
    return count(sample)

def measure(sample):
    return {"letters": len(sample[".txt"])}

def wait(sample):
    while int(sample[".cls"]) > 4 and not os.path.exists("go"):
        open("reached", "w").close()
        time.sleep(0.01)
    return count(sample)
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch, own_cache):
    """A dataset, and a module of the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    write_index("d", (3, 4, 5))
    Path("functions.py").write_text(MODULE)
    yield tmp_path
    sys.modules.pop("functions", None)


def test_what_it_says():
    """The index, the rows, the fields; a second run finds all done."""
    said = run_ok("map", "d/index.json", "functions:count", "-o", "new")
    assert said.startswith("new/index.json: 12 rows, 30.7 kB\n3 shards in ")
    last = "fields: .len.json in 9\nno fields: 3 rows\nwith the fields of d/index.json: new/joined.json\n"
    assert said.endswith(last)
    assert "3 shards, 3 of an earlier run in " in run_ok("map", "d/index.json", "functions:count", "-o", "new")
    told = json.loads(run_ok("map", "d/index.json", "functions.py:count", "-o", "more", "--json"))
    assert (told["samples"], told["fields"], told["known"]) == (12, {".len.json": 9}, 0)
    words = complaint(1, "map", "d/index.json", "functions:fail", "-o", "new")
    assert "3 of its shards were computed by 'functions:count'" in words
    assert words.endswith("or pass --overwrite")


def test_samples_that_fail():
    """The first is shown with its line of the function, all are counted and in a file."""
    code, out, err = run("map", "d/index.json", "functions:fail", "-o", "new")
    assert code == 0
    assert "no fields: 4 rows\n" in out
    assert out.endswith("failed: 1 sample; new/errors.jsonl names them\n")
    first, line = err.splitlines()
    assert first == f"wids: s0-002 (row 2) of {os.getcwd()}/d/s0.tar: ValueError: two"
    assert line == 'wids: functions.py, line 9, in fail: raise ValueError("two")'
    assert len(wids.ShardListDataset("d/index.json").exclude("new/errors.jsonl")) == 11
    (Path() / "all.py").write_text("def f(sample):\n    return {'cls': 1}['x']\n")
    words = complaint(1, "map", "d/index.json", "all:f", "-o", "all")
    assert "12 of 12 samples failed, more than --max-errors 0.001" in words
    assert "all.py, line 2, in f: return {'cls': 1}['x']" in words


def test_a_trial():
    """A line for each field; nothing is written."""
    code, out, err = run("map", "d/index.json", "functions:fail", "-o", "new", "--dry-run", "3")
    assert (code, sorted(os.listdir())) == (0, ["__pycache__", "d", "functions.py"])
    lines = [line.split() for line in out.splitlines()]
    assert lines[:3] == [
        ["index", "key", "field", "value"],
        ["0", "s0-000", "no", "fields"],
        ["1", "s0-001", ".len.json", "int", "6,", "1", "B"],
    ]
    assert out.endswith("3 samples computed, 1 failed; nothing was written\n")
    assert "sample 2 failed: ValueError: two" in err
    told = json.loads(run("map", "d/index.json", "functions:fail", "-o", "new", "--dry-run", "3", "--json").out)
    assert told["trial"][1]["fields"] == {".len.json": "int 6, 1 B"}


def test_options():
    """They are those of the library."""
    run_ok("map", "d/index.json", "functions:count", "-o", "new", "--where", "key >= 's2'", "--fields", ".txt,.cls")
    rows = wids.ShardListDataset("new/index.json")
    assert [".len.json" in row for row in rows] == [False] * 7 + [True, False, True, True, True]
    said = run_ok("map", "d/index.json", "functions:measure", "-o", "t.parquet", "--columns")
    assert said.startswith("t.parquet: 12 rows, ")
    assert said.endswith("columns: letters (int64)\n")
    words = complaint(1, "map", "d/index.json", "functions:measure", "-o", "t.parquet")
    assert "name of a file" in words
    words = complaint(1, "map", "d/index.json", "functions:nothing", "-o", "x")
    assert "function 'functions:nothing' cannot be imported (AttributeError" in words
    words = complaint(2, "map", "d/index.json", "functions:count", "-o", "x", "--num-gpus", "1")
    assert "--num-gpus and --num-cpus go with --engine ray" in words


def test_an_interrupt():
    """The command says that it goes on, leaves no part of a file, and goes on."""
    command = ("map", "d/index.json", "functions:wait", "-o", "new", "--engine", "processes", "--jobs", "1")
    with spawn(*command) as process:
        wait_until(lambda: Path("reached").exists())
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    assert "run it again to continue" in in_one_line(err if isinstance(err, str) else err.decode())
    left = sorted(os.listdir("new"))
    assert left == ["index.json.mapping", "s0.tar", "s0.tar.widx"]
    Path("go").touch()
    assert "3 shards, 1 of an earlier run in " in run_ok(*command)

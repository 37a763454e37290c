"""The comparison with other loaders runs from end to end on tiny data, and its figures follow from its rounds."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import types

import numpy as np
import pytest

from tests.support import paths

pytestmark = pytest.mark.outside

HERE = str(paths.ROOT / "benchmarks")


@pytest.fixture
def module(request, monkeypatch):
    """The benchmark's module that the test asks for, gone from the interpreter afterwards, with all it imported."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.syspath_prepend(os.path.join(HERE, "contenders"))
    yield importlib.import_module(request.param)
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(HERE):
            del sys.modules[name]


def test_quick_run_measures_and_checks_every_kind_of_row(tmp_path):
    """`--quick` of this package and the bare loop: all samples come once, in all rows; nothing is left behind."""
    # Not in tmp_path: multiprocessing puts sockets there, whose names have 107 letters at most, or workers hang.
    with tempfile.TemporaryDirectory() as scratch:
        check_quick_run(tmp_path, scratch)


def check_quick_run(tmp_path, scratch):
    """One run with temporary files in ``scratch``."""
    figures, picture = tmp_path / "figures.json", tmp_path / "peers.png"
    run = subprocess.run(
        [
            *(sys.executable, os.path.join(HERE, "peers.py"), "--quick", "--only", "wids,bare", "--delay-ms", "1"),
            *("--python", f"wids={sys.executable}", "--python", f"bare={sys.executable}"),
            *(
                "--rows",
                "random-text,epoch2-text,first-cold,bytes-cold,first-hub,bytes-hub,prepare,open,open-again,memory,resume",
            ),
            *("--json", str(figures), "--png", str(picture)),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": scratch},
    )
    assert run.returncode == 0, run.stdout + run.stderr
    told = json.loads(figures.read_text())
    assert told["errors"] == {}
    rows = {row["name"]: row for row in told["rows"]}
    for name in ("random-text", "epoch2-text", "prepare", "memory"):
        assert set(rows[name]["figures"]) == {"wids", "bare"}
        assert rows[name]["ratios"]["bare"] > 0
    for name in ("first-cold", "first-hub", "open", "open-again", "resume"):
        assert set(rows[name]["figures"]) == {"wids"}
    for name in ("bytes-cold", "bytes-hub"):
        assert rows[name]["figures"]["wids"]["median"] >= 1
    assert told["texts"] == {"resume-same": {"wids": "exact"}, "resume-other": {"wids": "exact"}}
    assert "not measured: bare, job" in run.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert os.listdir(scratch) == []


def test_quick_run_of_accelerators(tmp_path):
    """`au.py --quick`: each contender has a rate, and the utilisation of the number of accelerators that follows."""
    figures = tmp_path / "figures.json"
    with tempfile.TemporaryDirectory() as scratch:
        run = subprocess.run(
            [
                *(sys.executable, os.path.join(HERE, "au.py"), "--quick", "--only", "wids,bare", "--delay-ms", "1"),
                *("--python", f"wids={sys.executable}", "--python", f"bare={sys.executable}", "--json", str(figures)),
            ],
            capture_output=True,
            text=True,
            env={**os.environ, "TMPDIR": scratch},
        )
        assert run.returncode == 0, run.stdout + run.stderr
        assert os.listdir(scratch) == []
    rows = json.loads(figures.read_text())["rows"]
    assert [(row["place"], set(row["contenders"])) for row in rows] == [
        ("local", {"wids", "bare"}),
        ("remote", {"wids"}),
        ("cached", {"wids"}),
    ]
    for one in [one for row in rows for one in row["contenders"].values()]:
        assert one["accelerators"] == pytest.approx(one["samples_per_second"] * 0.005 / 5 / 0.9)
        assert all(0 < value <= 1 for values in one["utilisations"].values() for value in values)
    assert "| ResNet-50, tiny, local: accelerators for each core at 90 % |" in run.stdout


@pytest.mark.parametrize("module", ["au"], indirect=True)
def test_the_search_for_the_largest_number_of_accelerators(module):
    """It goes up from a number that is kept at work, down from one that is not, and ends between both."""
    assert module._next({3: [0.95, 0.93]}) == 4
    assert module._next({3: [0.5, 0.93, 0.6]}) == 2
    assert module._next({1: [0.5]}) is None
    assert module._next({3: [0.95], 4: [0.8]}) is None


@pytest.mark.parametrize("module", ["peer_worker"], indirect=True)
def test_accelerators_compute_at_the_same_time(module, monkeypatch):
    """Batches that are there at once keep any number of them at work; if one comes in each step, one works of three."""
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    def slowly(batches):
        for each in batches:
            sleep(0.02)
            yield each

    monkeypatch.setattr(module, "time", types.SimpleNamespace(perf_counter=lambda: now[0], sleep=sleep))
    batches = [([0] * 4, np.arange(4))] * 9
    found = module._feed(batches, now[0], accelerators=3, step=0.02, batch=4)
    assert (found["units"], found["labels"]) == (36, 54)
    assert found["utilisation"] == pytest.approx(1)
    found = module._feed(slowly(batches), now[0], accelerators=3, step=0.02, batch=4)
    assert found["utilisation"] == pytest.approx(1 / 3)
    assert module._feed(batches, now[0], accelerators=0, step=0.02, batch=4)["utilisation"] == 0


def test_unknown_names_are_refused_with_those_there_are():
    """A misspelt contender or row is an error that lists them, before anything is made."""
    for arguments, known in ((["--only", "wid"], "webdataset"), (["--rows", "cold"], "first-cold")):
        run = subprocess.run(
            [sys.executable, os.path.join(HERE, "peers.py"), *arguments], capture_output=True, text=True
        )
        assert run.returncode == 2
        assert known in run.stderr


@pytest.mark.parametrize("module", ["peer_report"], indirect=True)
def test_ratios_are_of_the_same_rounds(module):
    """A ratio is the median of the rounds' own, or of medians after fewer rounds; two runs are compared by ratios."""
    row = importlib.import_module("peer_cases").ROWS[0]
    found = {"wids": [1.0, 2.0, 4.0], "fast": [0.5, 1.0, 8.0], "some": [1.0, 1.0]}
    one = module.summarise([row], {row.name: found}, {}, {})
    assert one["rows"][0]["ratios"] == {"fast": 0.5, "some": 0.5}
    assert one["rows"][0]["figures"]["wids"]["median"] == 2.0
    other = module.summarise([row], {row.name: {**found, "fast": [1.0, 2.0, 4.0]}}, {}, {})
    assert module.agreement(one, other) == [(row.name, "fast", 2.0), (row.name, "some", 1.0)]


@pytest.mark.parametrize("module", ["peer_report"], indirect=True)
def test_the_page_shows_the_committed_figures(module, tmp_path):
    """The tables of the page are those of `peers.json`, and its picture can be drawn from it."""
    folder = paths.ROOT / "benchmarks"
    results = json.loads((folder / "peers.json").read_text())
    assert module.as_markdown(results) in (folder / "README.md").read_text()
    assert set(results["contenders"]) == set(importlib.import_module("peer_cases").PEERS)
    module.draw(results, str(tmp_path / "peers.png"))
    assert (tmp_path / "peers.png").stat().st_size > 10_000
    assert (folder / "peers.png").exists()


@pytest.mark.parametrize("module", ["peer_measure"], indirect=True)
def test_what_a_resumed_job_lost_or_repeated_is_counted(module):
    """Every sample once is exact; else what is missing and what came twice is said."""
    assert module._compare([0, 1], [2, 3], 4) == "exact"
    assert module._compare([0, 1], [1, 2], 4) == "1 lost, 1 again, of 2"


@pytest.mark.parametrize("module", ["tree_memory"], indirect=True)
def test_memory_of_a_process_and_its_children_is_seen(module):
    """What a child has for itself counts for its parent."""
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', {!r}])"
    child = "data = bytearray(b'x') * 50_000_000; print('ready', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code.format(child)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        with module.TreeMemory(process.pid) as seen:
            while not seen.peak_bytes:
                seen.join(0.01)
        process.communicate(b"\n")
    assert seen.peak_bytes > 50_000_000

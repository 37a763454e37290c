"""The benchmark of remote shards runs from end to end on tiny data; its server is as slow as told, and counts."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import urllib.request

import pytest

from tests.support import paths

pytestmark = pytest.mark.outside

HERE = str(paths.ROOT / "benchmarks")


def load(monkeypatch, name):
    """One of the benchmark's modules; the caller forgets it."""
    monkeypatch.syspath_prepend(HERE)
    return importlib.import_module(name)


@pytest.fixture
def module(request, monkeypatch):
    """The benchmark's module that the test asks for, gone from the interpreter afterwards, with all it imported."""
    before = set(sys.modules)
    yield load(monkeypatch, request.param)
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(HERE):
            del sys.modules[name]


def test_quick_run_tells_every_figure(tmp_path):
    """`--quick` yields each sample once to every contender, counts what was fetched, and leaves no files behind."""
    # Not in tmp_path: multiprocessing puts sockets there, whose names have 107 letters at most, or workers hang.
    with tempfile.TemporaryDirectory() as scratch:
        check_quick_run(tmp_path / "figures.json", scratch)


def check_quick_run(figures, scratch):
    """One run with temporary files in ``scratch``."""
    run = subprocess.run(
        [
            *(sys.executable, os.path.join(HERE, "cold.py"), "--quick", "--delay-ms", "1"),
            *(
                "--before",
                str(paths.ROOT),
                "--only",
                "ours,local,second,quarter,hub,hub-name,mix,before-second",
                "--json",
                str(figures),
            ),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": scratch},
    )
    assert run.returncode == 0, run.stdout + run.stderr
    told = json.loads(figures.read_text())
    assert told["errors"] == {}
    assert list(told["rounds"]) == ["local", "ours", "second", "quarter", "hub", "hub-name", "mix", "before-second"]
    for name, rounds in told["rounds"].items():
        assert [figures["samples"] for figures in rounds] == [told["data"]["samples"]]
        assert 0 < rounds[0]["first"] <= rounds[0]["epoch"]
        assert rounds[0]["cpu"] > 0
        assert set(told["medians"][name]) >= {"worst", "speed", "server_requests", "server_cpu_seconds"}
    local, ours, second, quarter, hub, named, mix, before = (rounds[0] for rounds in told["rounds"].values())
    assert local["fetched"] == local["server"]["requests"] == 0
    assert ours["fetched"] >= 1
    assert ours["server"]["requests"] >= told["data"]["shards"]
    assert ours["peak"] > told["data"]["bytes"] / 2  # the epoch may end before its last shard is here
    assert second["fetched"] < 0.5  # nor is that shard in the cache, then
    assert before["fetched"] < 0.5  # as above
    assert quarter["fetched"] >= 1
    assert quarter["peak"] > 0
    for found in (hub, named):  # each shard is asked for at the Hub, which leads to its store
        assert found["fetched"] >= 1
        assert found["server"]["requests"] >= 2 * told["data"]["shards"]
    assert mix["fetched"] >= 1
    assert {"ours", "second", "quarter", "hub", "hub-name", "before-second"} == set(told["ratios"])
    assert len(told["targets"]) == 17
    assert "cache_size 1/4" in run.stdout
    assert os.listdir(scratch) == []


def test_unknown_contender_is_refused_by_name():
    """A misspelt contender is an error that lists those there are, before anything is made."""
    run = subprocess.run(
        [sys.executable, os.path.join(HERE, "cold.py"), "--only", "our"], capture_output=True, text=True
    )
    assert run.returncode == 2
    assert "quarter" in run.stderr


@pytest.mark.parametrize("module", ["slow_server"], indirect=True)
def test_server_process_ends_with_who_started_it(module, tmp_path):
    """The child process serves until its stdin is closed, and ends by itself then."""
    (tmp_path / "a").write_bytes(b"1234")
    with module.SlowServer(str(tmp_path), delay_ms=0, mbps=1000) as server:
        with urllib.request.urlopen(f"{server.url}/a") as reply:
            assert reply.read() == b"1234"
        told = server.stats()
        assert (told["requests"], told["bytes"]) == (1, 4)
        assert server.stats()["bytes"] == 0
    assert server._process.returncode == 0


@pytest.mark.parametrize("module", ["cold_report"], indirect=True)
def test_verdicts_follow_from_the_rounds(module):
    """Ratios are medians of the rounds' ratios; targets are met, missed or left open by them."""

    def rounds(*epochs, peak=0):
        return [
            {"epoch": epoch, "samples": 10, "peak": peak, "others": None, "server": {"bytes": 0}} for epoch in epochs
        ]

    found = {
        "local": rounds(1.0, 2.0, 3.0),
        "ours": rounds(1.1, 2.2, 9.0),
        "quarter": rounds(1.4, 2.8, 4.2, peak=251),
        "original": rounds(2.2, 8.8, 18.0),
    }
    told = module.summarise(found, 1000, 1e6)
    assert told["ratios"] == pytest.approx({"ours": 1.1, "quarter": 1.4, "original": 4.4})
    assert [target["met"] for target in told["targets"]] == [
        *(True, False, *[None] * 13),
        *(True, False),
    ]
    assert told["medians"]["ours"]["speed"] == pytest.approx(10 / 2.2)
    slow = module.summarise({"local": rounds(1.0), "ours": rounds(2.0)}, 1000, 50.0)
    assert slow["targets"][0]["limit"] == "<= 2.5x"
    assert slow["targets"][0]["met"] is True


@pytest.mark.parametrize("module", ["cold_report"], indirect=True)
def test_disturbed_rounds_are_named(module):
    """Rounds in which others took more than a twentieth of the machine are named; unknown is not disturbed."""
    rounds = {
        "local": [{"epoch": 10.0, "others": 0.9}, {"epoch": 10.0, "others": 1.1}],
        "ours": [{"epoch": 10.0, "others": None}],
    }
    assert module.disturbed(rounds, cores=2) == {"local": [2]}


@pytest.mark.parametrize("module", ["cold_watch"], indirect=True)
def test_all_files_of_a_directory_are_counted(module, tmp_path):
    """The cache's size is that of all files in it, at any depth; a directory that is not there has none."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.part").write_bytes(b"123")
    (tmp_path / "y").write_bytes(b"12")
    assert module.directory_bytes(str(tmp_path)) == 5
    assert module.directory_bytes(str(tmp_path / "none")) == 0
    with module.CachePeak(str(tmp_path)) as seen:
        (tmp_path / "z").write_bytes(b"1")
    assert seen.peak_bytes == 6

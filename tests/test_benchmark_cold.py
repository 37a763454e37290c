"""The benchmark of remote shards runs from end to end on tiny data; its server is as slow as told, and counts."""

from __future__ import annotations

import http.client
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading

import pytest

HERE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "benchmarks")
CONTENT = bytes(range(256)) * 400


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


class Clock:
    """Time that passes only by sleeping; stands in for the module ``time``."""

    def __init__(self):
        self.now = 1000.0

    def perf_counter(self):
        """Seconds, as they were told."""
        return self.now

    def sleep(self, seconds):
        """Let them pass."""
        self.now += seconds

    def process_time(self):
        """None is used."""
        return 0.0


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A server in this process of 102,400 bytes at 1 MB/s after 30 ms, and the clock that it goes by."""
    slow_server = load(monkeypatch, "slow_server")
    clock = Clock()
    monkeypatch.setattr(slow_server, "time", clock)
    (tmp_path / "shard.tar").write_bytes(CONTENT)
    server = slow_server.Server(str(tmp_path), delay_seconds=0.03, bytes_per_second=1e6, port=0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server, clock
    server.shutdown()
    thread.join()
    server.server_close()
    del sys.modules["slow_server"]


@pytest.fixture
def connection(served):
    """One connection to the server, kept open."""
    connection = http.client.HTTPConnection(*served[0].server_address, timeout=30)
    yield connection
    connection.close()


def ask(connection, method="GET", path="/shard.tar", **headers):
    """Status, headers and body of one request."""
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    reply = connection.getresponse()
    return reply.status, reply.headers, reply.read()


@pytest.mark.timeout(300)
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
            *("--only", "ours,local,second,quarter", "--json", str(figures)),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": scratch},
    )
    assert run.returncode == 0, run.stdout + run.stderr
    told = json.loads(figures.read_text())
    assert told["errors"] == {}
    assert list(told["rounds"]) == ["local", "ours", "second", "quarter"]
    for name, rounds in told["rounds"].items():
        assert [figures["samples"] for figures in rounds] == [told["data"]["samples"]]
        assert 0 < rounds[0]["first"] <= rounds[0]["epoch"]
        assert rounds[0]["cpu"] > 0
        assert set(told["medians"][name]) >= {"worst", "speed", "server_requests", "server_cpu_seconds"}
    local, ours, second, quarter = (rounds[0] for rounds in told["rounds"].values())
    assert local["fetched"] == local["server"]["requests"] == 0
    assert ours["fetched"] >= 1
    assert ours["server"]["requests"] >= told["data"]["shards"]
    assert ours["peak"] >= told["data"]["bytes"]
    assert second["fetched"] == 0
    assert quarter["fetched"] >= 1
    assert quarter["peak"] > 0
    assert {"ours", "second", "quarter"} == set(told["ratios"])
    assert len(told["targets"]) == 5
    assert "cache_size 1/4" in run.stdout
    assert os.listdir(scratch) == []


def test_unknown_contender_is_refused_by_name():
    """A misspelt contender is an error that lists those there are, before anything is made."""
    run = subprocess.run(
        [sys.executable, os.path.join(HERE, "cold.py"), "--only", "our"], capture_output=True, text=True
    )
    assert run.returncode == 2
    assert "quarter" in run.stderr


@pytest.mark.parametrize(
    ("asked", "status", "lo", "hi"),
    [
        (None, 200, 0, 102_400),
        ("bytes=0-", 206, 0, 102_400),
        ("bytes=10-19", 206, 10, 20),
        ("bytes=102000-999999", 206, 102_000, 102_400),
        ("bytes=-5", 206, 102_395, 102_400),
        ("bytes=0-1,5-6", 200, 0, 102_400),
        ("bytes=9-3", 200, 0, 102_400),
        ("lines=1-2", 200, 0, 102_400),
    ],
)
def test_ranges_are_served(connection, asked, status, lo, hi):
    """One range that lies in the file is served as such, anything else as the whole file."""
    headers = {} if asked is None else {"Range": asked}
    found, told, body = ask(connection, **headers)
    assert (found, body) == (status, CONTENT[lo:hi])
    assert told["Accept-Ranges"] == "bytes"
    assert told["Content-Range"] == (f"bytes {lo}-{hi - 1}/102400" if status == 206 else None)


def test_range_outside_the_file_is_refused(connection):
    """A range behind the end is 416 with the file's size, and the connection goes on."""
    status, told, body = ask(connection, Range="bytes=102400-")
    assert (status, told["Content-Range"], body) == (416, "bytes */102400", b"")
    assert ask(connection, "HEAD")[0] == 200


def test_range_of_another_version_is_the_whole_file(connection):
    """`If-Range` with the file's tag keeps the range, with another tag the whole file is sent."""
    _, told, body = ask(connection, "HEAD")
    assert (told["Content-Length"], body) == ("102400", b"")
    assert told["Last-Modified"].endswith("GMT")
    assert ask(connection, Range="bytes=0-9", If_Range=told["ETag"])[0] == 206
    assert ask(connection, Range="bytes=0-9", If_Range='"other"')[0] == 200


@pytest.mark.parametrize("path", ["/none.tar", "/../shard.tar", "/a/shard.tar", "/.hidden", "/"])
def test_what_is_not_there_is_404(connection, path):
    """Only files of the directory itself are served."""
    assert ask(connection, path=path)[0] == 404


def test_requests_and_bytes_are_counted(served, connection):
    """Requests, bodies' bytes and connections are counted until the next reset; asking for them is not."""
    ask(connection, "HEAD")
    ask(connection)
    ask(connection, Range="bytes=0-99")
    told = json.loads(ask(connection, path="/stats")[2])
    counts = {"requests": 3, "heads": 1, "ranges": 1, "bytes": 102_500, "connections": 1, "at_once": 1}
    assert {name: told[name] for name in counts} == counts
    other = http.client.HTTPConnection(*served[0].server_address, timeout=30)
    ask(other, "HEAD")
    other.close()
    assert json.loads(ask(connection, "DELETE", "/stats")[2])["connections"] == 2
    assert set(json.loads(ask(connection, path="/stats")[2]).values()) == {0}


def test_replies_take_as_long_as_told(served, connection):
    """Each reply begins after the delay, and its bytes take their time on the connection's link."""
    _, clock = served
    begin = clock.now
    ask(connection, "HEAD")
    assert clock.now - begin == pytest.approx(0.03)
    ask(connection)
    assert clock.now - begin == pytest.approx(0.06 + 0.1024)
    ask(connection, Range="bytes=0-9999")
    assert clock.now - begin == pytest.approx(0.09 + 0.1024 + 0.01)
    ask(connection, path="/none.tar")
    assert clock.now - begin == pytest.approx(0.12 + 0.1024 + 0.01)


@pytest.mark.parametrize("module", ["slow_server"], indirect=True)
def test_server_process_ends_with_who_started_it(module, tmp_path):
    """The child process serves until its stdin is closed, and ends by itself then."""
    (tmp_path / "a").write_bytes(b"1234")
    with module.SlowServer(str(tmp_path), delay_ms=0, mbps=1000) as server:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30)
        assert ask(connection, path="/a")[2] == b"1234"
        assert ask(connection, "HEAD", path="/a")[0] == 200  # now the bytes before it have been counted
        connection.close()
        assert server.stats(reset=True)["bytes"] == 4
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
    assert [target["met"] for target in told["targets"]] == [True, False, None, True, False]
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

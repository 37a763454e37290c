"""The command line of the cache, as a user has it."""

from __future__ import annotations

import configparser
import contextlib
import io
import json
import os
import queue
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import typer
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tests.support.cache_dirs import files_in, keep_mark_of, names_in, put_file, put_garbage, put_shard
from tests.support.cache_shards import described, shard, texts, texts_of, write
from tests.support.cli import PATIENCE_SECONDS, complaint, in_one_line, run, run_apart, run_ok, run_on_terminal, spawn
from tests.support.paths import ROOT
from tests.support.readmes import blocks
from tests.support.servers import Server, status, whole
from wids.core.cache import usage_hints
from wids.core.cache.cleanup import keep_most_recent_files
from wids.core.cache.directory import CacheDirectory
from wids.core.collection.shard_collection import load_shards
from wids.core.files import locks, system
from wids.core.files.holders import Holder
from wids.core.readers.provider import AutoProvider
from wids.core.shard import Shard
from wids.jobs.cache_warm import part_bytes
from wids.tools.cli.cache import listing
from wids.tools.cli.format import count_of, format_seconds, format_size, parse_size, print_table, printable

# What stands before the command line in its process: whoever runs the tests may be root.
DEAF = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGHUP, signal.SIG_IGN)"
MORTAL = """
import ctypes, os, sys
if os.getuid() == 0 and "again" not in os.environ:  # from the next exec on, without the right to read and write all
    lacks = [ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) for capability in (1, 2)]
    assert lacks == [0, 0], "cannot drop capabilities"
    os.execve(sys.executable, sys.orig_argv, {**os.environ, "again": ""})
"""


@contextlib.contextmanager
def leased(path):
    """Have a cached shard open, as a reader has it."""
    with open(path, "rb") as file:
        assert locks.lease(file.fileno())
        yield


@contextlib.contextmanager
def planned(directory, uses):
    """A live job that comes to shards: name -> in how many seconds."""
    plan = usage_hints.PlanFile(str(directory))
    plan.write({name: time.time() + seconds for name, seconds in uses.items()})
    try:
        yield
    finally:
        plan.close()


@pytest.fixture
def cache(tmp_path):
    """A cache directory."""
    path = tmp_path / "cache"
    path.mkdir()
    return path


@pytest.fixture
def full(cache):
    """A cache directory with shards a to d of 1000 bytes, a used last."""
    for number, name in enumerate("dcba"):
        put_shard(cache, f"{name}.tar", 900, table_size=100, used=1_000_000 + number)
    return cache


@pytest.fixture
def server():
    """A server of shards."""
    server = Server()
    yield server
    server.close()


def publish(server, tags, **facts):
    """Serve a shard for each letter, and an index of them; returns its URL."""
    listed = []
    for tag in tags:
        data = shard(tag)
        server.add(f"/{tag}.tar", data)
        told = described(f"{tag}.tar", data, **facts)
        listed.append(
            {name: value for name in ("url", "nsamples", "filesize", "md5sum") if (value := getattr(told, name))}
        )
    return server.add("/index.json", json.dumps({"wids_version": 1, "shardlist": listed}).encode())


def shards_asked(server):
    """The shards that a server was asked for, in order of their names."""
    return sorted(path for path in server.requests if path.endswith(".tar"))


# --- words


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("4096B", 4096),
        ("10GB", 10**10),
        ("10 g", 10**10),
        ("500MiB", 500 << 20),
        ("1.5T", 1_500_000_000_000),
        (".5kb", 500),
        ("1e9", 10**9),
        (" 2Ki ", 2048),
        ("0", 0),
    ],
)
def test_sizes_that_can_be_read(text, size):
    """Sizes in tens and twos, with a unit or without, in any case."""
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "GB", "-1", "+1", "1 X", "ten", "1e-3", "nan", "1,000", "1_000", "٣GB", "1 0", "1e999"]
)
def test_sizes_that_cannot_be_read(text):
    """What is no size is refused with an example of one."""
    with pytest.raises(typer.BadParameter, match="write it like 10GB"):
        parse_size(text)


def test_words():
    """Sizes, ages, counts and names as people read them."""
    sizes = [format_size(count) for count in (0, 999, 1000, 123_456, 999_600, 10**9, 2.5e15, 1e21)]
    assert sizes == ["0 B", "999 B", "1 kB", "123 kB", "1 MB", "1 GB", "2.5 PB", "1e+06 PB"]
    ages = [format_seconds(seconds) for seconds in (-5, 0.4, 1, 119, 120, 7199, 7200, 172_799, 172_800)]
    assert ages == ["now", "now", "1 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 d"]
    assert [count_of(number, "shard") for number in (0, 1, 3001)] == ["0 shards", "1 shard", "3,001 shards"]
    assert printable("a\x1b[2J\n\u202eé\udcff") == "a\\x1b[2J\\n\\u202eé\\udcff"


def test_a_long_table_is_written_line_by_line(monkeypatch, capsys):
    """In a pipe, and of more rows than anybody reads, rich lays nothing out: it takes a minute for 100,000 rows."""
    columns = ("name", ">size", "state")
    rows = [("a", "1 B", ""), ("ab\ncd", "10 B", "open"), ("日本", "1 B", ""), ("", "", "x  y ")]
    print_table(columns, rows)
    told = capsys.readouterr().out
    console = Console(width=200, file=io.StringIO())
    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for name in columns:
        table.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
    assert told == console.file.getvalue()
    monkeypatch.setattr(Table, "add_row", None)
    monkeypatch.setattr(Console, "is_terminal", True)
    print_table(columns, rows * 300)
    assert capsys.readouterr().out.splitlines()[1:6] == [*told.splitlines()[1:]]


# --- ls


def test_a_directory_is_listed_once(full, monkeypatch):
    """However many shards there are, ``ls`` and a cleaning look at each once, and a long look keeps its lock."""
    looks, touches = [], []
    real = CacheDirectory.inventory
    monkeypatch.setattr(CacheDirectory, "inventory", lambda self: looks.append(self.path) or real(self))
    monkeypatch.setattr(locks.HeldLock, "touch", lambda held: touches.append(held))  # noqa: PLW0108 - a method
    run_ok("cache", "ls", full)
    assert looks == [str(full)]
    assert len(touches) == 4
    looks.clear()
    keep_most_recent_files(str(full), maxsize=10_000)
    assert looks == [str(full)]


def test_cache_alone_shows_its_commands():
    """`wids cache` alone is its help, and succeeds."""
    out = run_ok("cache")
    assert all(name in out for name in ("ls", "clean", "warm", "daemon"))


def test_ls_of_an_empty_directory(cache):
    """An empty directory is listed as one, and stays empty."""
    lines = run_ok("cache", "ls", cache).splitlines()
    assert lines[0] == f"{cache}: 0 shards, 0 B"
    assert lines[1].endswith("free on the disk")
    assert len(lines) == 2
    assert os.listdir(cache) == []


def test_ls_in_a_pipe(full):
    """In a pipe each shard is a line with its whole name, the one used last first; then the total."""
    name = "0123456789abcdef" * 2 + "-train-" + "0" * 100 + ".tar"
    put_shard(full, name, 20_000, used=2_000_000)
    before = files_in(full)
    lines = run_ok("cache", "ls", full, env={"COLUMNS": "40"}).splitlines()
    assert lines[0].split() == ["shard", "size", "last", "used", "state"]
    assert [line.split()[0] for line in lines[1:6]] == [name, "a.tar", "b.tar", "c.tar", "d.tar"]
    assert lines[1].split()[1:3] == ["20", "kB"]
    assert lines[1].split()[-2:] == ["d", "ago"]
    assert lines[6:8] == ["", f"{full}: 5 shards, 24 kB"]
    assert not any("\x1b" in line for line in lines)
    assert files_in(full) == before


def test_ls_on_a_terminal(full):
    """On a terminal the digest in a name is cut short, and the table fits."""
    put_shard(full, "0123456789abcdef" * 2 + "-train.tar", 20_000, used=2_000_000)
    code, shown = run_on_terminal("cache", "ls", full, env={"COLUMNS": "60"})
    assert code == 0
    assert "01234567...-train.tar" in shown
    assert all(len(line) <= 60 or "\x1b" in line or line.startswith(str(full)) for line in shown.split("\r\n"))


def test_ls_as_json(full):
    """--json has each shard with its path, size and state, and the totals."""
    with leased(full / "a.tar"):
        found = json.loads(run_ok("cache", "ls", full, "--json"))
    assert [item["name"] for item in found["shards"]] == ["a.tar", "b.tar", "c.tar", "d.tar"]
    assert found["shards"][0] == {
        "name": "a.tar",
        "path": str(full / "a.tar"),
        "size_bytes": 1000,
        "used_seconds": 1_000_003.0,
        "is_open": True,
        "is_kept": False,
        "coming_seconds": None,
    }
    assert found["shards"][1]["is_open"] is False
    assert (found["directory"], found["used_bytes"], found["jobs"], found["unknown"]) == (str(full), 4000, 0, "")
    assert 0 < found["free_bytes"] <= found["disk_bytes"]


def test_ls_tells_states(full):
    """Open, kept, needed by a live job; what was left behind, what is under way, what is of others."""
    put_file(full, keep_mark_of(full / "b.tar"))
    put_garbage(str(full / "x.tar"), 5000)
    put_file(full, "notes.txt", bytes(300))
    with (
        leased(full / "a.tar"),
        leased(full / "c.tar"),
        planned(full, {"c.tar": 5.5 * 3600, "d.tar": -1}),
        open(put_garbage(str(full / "y.tar"), 7000), "rb") as part,
    ):
        assert system.try_lock(part.fileno(), is_shared=False)
        lines = run_ok("cache", "ls", full).splitlines()
    states = {line.split()[0]: line.partition("d ago")[2].strip() for line in lines[1:5]}
    assert states == {"a.tar": "open", "b.tar": "kept", "c.tar": "open, in 5 h", "d.tar": "needed now"}
    assert lines[6] == f"{full}: 4 shards, 4 kB, for 1 live job"
    assert lines[7] == "1 part file under way, 7 kB"
    assert lines[8].startswith("1 file left behind by processes that are gone")
    assert lines[8].endswith(", 5 kB")
    assert lines[9] == "1 file of others, which no cache command touches, 300 B"
    if os.path.exists("/proc/locks"):
        assert lines[10].startswith(f"2 shards open in process {os.getpid()} (")


def test_ls_names_who_has_shards_open(full, monkeypatch):
    """Processes that have shards open are named, also in JSON; those that cannot be seen are counted."""
    holders = [
        Holder(pid=7, program="python x.py", started_seconds=None, is_orphan=True, files=[str(full / "a.tar")]),
        *(
            Holder(pid=pid, program="", started_seconds=None, is_orphan=False, files=[str(full / "b.tar")])
            for pid in range(100, 120)
        ),
    ]
    monkeypatch.setattr(listing, "find_holders", lambda paths: holders[: 21 * bool(list(paths))])
    with leased(full / "a.tar"), leased(full / "b.tar"), leased(full / "c.tar"):
        lines = run_ok("cache", "ls", full).splitlines()
        found = json.loads(run_ok("cache", "ls", full, "--json"))
    assert (
        lines[7]
        == "1 shard open in process 7 (python x.py), whose parent is process 1: what started it has ended, or is that"
    )
    assert lines[8] == "1 shard open in process 100"
    assert lines[23:25] == [
        "others open in 5 more processes",
        "1 shard open in processes that cannot be seen from here",
    ]
    assert found["holders"][0] == {
        "pid": 7,
        "program": "python x.py",
        "started_seconds": None,
        "is_orphan": True,
        "files": ["a.tar"],
    }
    assert json.loads(run_ok("cache", "ls", full, "--json"))["holders"] == []


def test_ls_shows_names_and_obeys_none(cache):
    """Control characters and markup in a file's name are shown, in the table and in JSON."""
    put_shard(cache, "a\x1b[31m\n[bold]é.tar")
    assert "a\\x1b[31m\\n[bold]é.tar " in run_ok("cache", "ls", cache, env={"PYTHONIOENCODING": "utf-8"})
    _, shown = run_on_terminal("cache", "ls", cache)
    assert "a\\x1b[31m\\n[bold]" in shown
    assert json.loads(run_ok("cache", "ls", cache, "--json"))["shards"][0]["name"] == "a\x1b[31m\n[bold]é.tar"


def test_the_default_directory(full, tmp_path):
    """Without a directory it is $WIDS_CACHE, else the user's own, and a missing one is told with its name."""
    assert run_ok("cache", "ls", env={"WIDS_CACHE": str(full)}).splitlines()[-2] == f"{full}: 4 shards, 4 kB"
    own = tmp_path / f"wids-cache-{os.getuid()}"
    assert complaint(1, "cache", "ls", env={"WIDS_CACHE": "", "TMPDIR": str(tmp_path)}).startswith(
        f"wids: {own}: there is no"
    )
    assert not own.exists()


@pytest.mark.parametrize(
    "command", [("ls", "{}"), ("clean", "--all", "{}"), ("daemon", "--max-files", "1", "{}/*.tar")]
)
def test_a_directory_that_is_a_url_elsewhere(command, tmp_path, monkeypatch):
    """It is refused, not taken for a relative path; and so is $WIDS_CACHE. Credentials in it are not shown."""
    monkeypatch.chdir(tmp_path)
    args = [word.format("s3://user:secret@bucket/cache") for word in command]
    words = complaint(1, "cache", *args)
    assert words.startswith("wids: cache_dir is 's3://bucket/cache")
    assert words.endswith("not a URL; where none is given, it is $WIDS_CACHE")
    if command[0] != "daemon":
        assert "cache_dir is 's3://b'" in complaint(1, "cache", *command[:-1], env={"WIDS_CACHE": "s3://b"})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("begin", ["file://", "FILE://localhost"])
def test_a_directory_as_a_file_url(begin, full):
    """It means the same directory to all commands, as it does to a dataset."""
    url = f"{begin}{full}"
    assert run_ok("cache", "ls", url) == run_ok("cache", "ls", full)
    assert run_ok("cache", "ls", env={"WIDS_CACHE": url}) == run_ok("cache", "ls", full)
    run_ok("cache", "clean", url, "--max-files", "1")
    assert len([name for name in os.listdir(full) if name.endswith(".tar")]) == 1


@pytest.mark.parametrize("command", [("ls",), ("clean", "--all")])
def test_paths_that_are_no_directory(command, full):
    """A missing directory and a file are told as such, and nothing is made."""
    missing, file = full.parent / "cahce", full / "a.tar"
    assert complaint(1, "cache", *command, missing) == (
        f"wids: {missing}: there is no such directory; name a cache directory, or set WIDS_CACHE"
    )
    assert f"wids: {file}: is not a directory" in complaint(1, "cache", *command, file)
    assert not missing.exists()
    assert len(names_in(full)) == 4


def complaint_of_mortal(*args):
    """What a command complains of that fails for a user who has no more rights than others."""
    code, out, err = run_apart(*args, before=MORTAL)
    assert (code, out) == (1, "")
    return in_one_line(err)


def test_a_directory_that_may_not_be_read(full):
    """A directory that the user may not list is told as such by each command."""
    full.chmod(0)
    try:
        for command in (("ls",), ("clean", "--all"), ("warm", "http://127.0.0.1:1/a.tar", "--cache-dir")):
            told = complaint_of_mortal("cache", *command, full)
            assert told.startswith(f"wids: {full}: cannot be listed")
            assert "Permission denied" in told
    finally:
        full.chmod(0o700)


@contextlib.contextmanager
def unwritable(cache):
    """Let no file be made or deleted in a cache directory."""
    folders = [cache, cache / ".wids", cache / ".wids" / "tables"]
    for folder in folders:
        folder.chmod(0o555)
    try:
        yield
    finally:
        for folder in folders:
            folder.chmod(0o700)


def test_a_directory_that_may_not_be_written(full):
    """It is listed without knowing what is open; nothing is cleaned or fetched there, and the reason is told."""
    with unwritable(full):
        code, out, err = run_apart("cache", "ls", full, before=MORTAL)
        assert (code, err) == (0, "")
        assert [line.split()[-1] for line in out.splitlines()[1:5]] == ["?"] * 4
        assert "?: it is unknown whether the shard is open" in out
        assert "is the directory writable?" in complaint_of_mortal("cache", "clean", full, "--all")
        below = full / "below"
        told = complaint_of_mortal("cache", "warm", "http://127.0.0.1:1/a.tar", "--cache-dir", below)
        assert told.startswith(f"wids: {below}: cannot be made")
    assert len(names_in(full)) == 4


@pytest.mark.parametrize("is_json", [False, True])
def test_output_that_nobody_reads(is_json, full):
    """A reader that has gone is no error to talk about, a full disk is one line."""
    args = ["cache", "ls", full, *(["--json"] if is_json else [])]
    ours, its = os.pipe()
    os.close(ours)
    assert run_apart(*args, stdout=its) == (1, None, "")
    os.close(its)
    with open("/dev/full", "w") as disk:
        assert run_apart(*args, stdout=disk) == (1, None, "wids: [Errno 28] No space left on device\n")


def test_ls_is_light(full):
    """The commands do not wait for torch."""
    before = (
        "import atexit, sys; sys.argv[1:1] = ['cache', 'ls']; "
        "atexit.register(lambda: print('heavy:', {'torch', 'PIL'} & set(sys.modules)))"
    )
    code, out, err = run_apart(full, before=before)
    assert (code, out.splitlines()[-1], err) == (0, "heavy: set()", "")


# --- clean


def test_clean_by_size(full):
    """--max-size deletes what was used longest ago, until the rest fits; each shard is a line."""
    assert run_ok("cache", "clean", full, "--max-size", "2.5kB").splitlines() == [
        "deleted d.tar (1 kB)",
        "deleted c.tar (1 kB)",
        f"{full}: deleted 2 shards (2 kB); 2 shards (2 kB) stay",
    ]
    assert names_in(full) == ["a.tar", "b.tar"]


def test_clean_by_number(full):
    """--max-files likewise; a bound that holds already deletes nothing."""
    put_file(full, "notes.txt")
    run_ok("cache", "clean", full, "--max-files", 1)
    assert names_in(full) == ["a.tar"]
    assert run_ok("cache", "clean", full, "--max-files", 1, "--max-size", "1TB") == (
        f"{full}: deleted 0 shards (0 B); 1 shard (1 kB) stay\n"
    )
    assert (full / "notes.txt").exists()


def test_clean_dry_run(full):
    """--dry-run says what would go, and nothing does."""
    garbage = put_garbage(str(full / "x.tar"), 5000)
    with leased(full / "d.tar"):
        assert run_ok("cache", "clean", full, "--max-files", 2, "--dry-run").splitlines() == [
            "would delete d.tar (1 kB, open: stays as long as it is read)",
            "would delete c.tar (1 kB)",
            "would delete 1 file left behind by processes that are gone (5 kB)",
            f"{full}: would delete 2 shards (2 kB); 2 shards (2 kB) would stay",
        ]
    assert names_in(full) == ["a.tar", "b.tar", "c.tar", "d.tar"]
    assert os.path.exists(garbage)


def test_clean_all(full):
    """--all deletes all that may go, sweeps what was left behind, and leaves what is of others."""
    put_garbage(str(full / "x.tar"), 5000)
    put_file(full, "notes.txt")
    lines = run_ok("cache", "clean", full, "--all").splitlines()
    assert lines[4:] == [
        "deleted 1 file left behind by processes that are gone (5 kB)",
        f"{full}: deleted 4 shards (4 kB); 0 shards (0 B) stay",
    ]
    assert files_in(full) == ["notes.txt"]


def test_clean_of_a_directory_without_a_cache(cache):
    """A directory that is no cache stays as it is, without even a lock."""
    put_file(cache, "notes.txt")
    assert run_ok("cache", "clean", cache, "--all").endswith("0 shards (0 B) stay\n")
    assert os.listdir(cache) == ["notes.txt"]


def test_clean_tells_why_something_stays(full):
    """What is open or kept stays, the exit code is 1, and the reasons are told."""
    put_file(full, keep_mark_of(full / "b.tar"))
    with leased(full / "a.tar"):
        code, out, err = run("cache", "clean", full, "--all")
        assert (code, out.splitlines()[-1]) == (1, f"{full}: deleted 2 shards (2 kB); 2 shards (2 kB) stay")
        assert err.startswith(
            f"wids: {full}: something stays: 1 shard (1 kB) marked as kept "
            "(wids cache clean --unkeep removes the marks); 1 shard (1 kB) open in some process: 1 shard open in "
        )
        assert err.count("\n") == 1
        code, out, err = run("cache", "clean", full, "--max-size", 500, "--json")
    assert (code, json.loads(out)["is_reached"], json.loads(out)["stays"]) == (
        1,
        False,
        {"shards": 2, "used_bytes": 2000},
    )
    assert err.startswith(f"wids: {full}: more than 500 B stays: ")
    assert names_in(full) == ["a.tar", "b.tar"]


def test_clean_unkeep(full):
    """--unkeep removes the marks, so that those shards may go too."""
    put_file(full, keep_mark_of(full / "b.tar"))
    lines = run_ok("cache", "clean", full, "--all", "--unkeep").splitlines()
    assert lines[-2:] == ["1 shard no longer marked as kept", f"{full}: deleted 4 shards (4 kB); 0 shards (0 B) stay"]
    assert files_in(full) == []


def test_clean_spares_what_a_job_comes_to(full):
    """What no live job comes to goes first, whenever it was used."""
    with planned(full, {"d.tar": 10.0}):
        run_ok("cache", "clean", full, "--max-files", 1)
    assert names_in(full) == ["d.tar"]


def test_clean_as_json(full):
    """--json has what went, what was swept and what stays."""
    put_garbage(str(full / "x.tar"), 5000)
    assert json.loads(run_ok("cache", "clean", full, "--max-files", 3, "--json")) == {
        "directory": str(full),
        "is_dry_run": False,
        "deleted": [{"name": "d.tar", "size_bytes": 1000}],
        "swept": {"files": 1, "bytes": 5000},
        "unkept": 0,
        "stays": {"shards": 3, "used_bytes": 3100},
        "is_reached": True,
        "why": [],
    }


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "say what to keep: --max-size 10GB, --max-files 100, or --all"),
        (("--all", "--max-files", "1"), "--all keeps nothing"),
        (("--all", "--unkeep", "--dry-run"), "give one of them"),
        (("--max-size", "lots"), "'lots' is not a size; write it like 10GB"),
        (("--max-files", "-1"), "--max-files"),
    ],
)
def test_clean_with_wrong_options(args, words, full):
    """Options that make no sense are exit code 2 with what would, and nothing is deleted."""
    assert words in complaint(2, "cache", "clean", full, *args)
    assert len(names_in(full)) == 4


# --- warm


def test_warm_from_an_index(server, tmp_path):
    """The shards of an index come into a new directory; a second time they are found, and a job fetches nothing."""
    index, cache = publish(server, "abc"), tmp_path / "new"
    out = run_ok("cache", "warm", index, "--cache-dir", cache)
    assert out.startswith(f"{cache}: 3 shards: 3 fetched (")
    assert len(names_in(cache)) == 3
    asked = shards_asked(server)
    assert run_ok("cache", "warm", index, "--cache-dir", cache).startswith(f"{cache}: 3 shards: 3 found there in ")
    _, listed, _ = load_shards(index)
    store = AutoProvider(cache_dir=str(cache))
    assert [texts(store.open(each)) for each in listed] == [texts_of(tag) for tag in "abc"]
    assert shards_asked(server) == asked


def test_warm_part_of_a_pattern(server, cache):
    """A brace pattern, and --shards of it, counted from either end."""
    publish(server, "abcd")
    run_ok("cache", "warm", server.url + "/{a,b,c,d}.tar", "--cache-dir", cache, "--shards", "1:3")
    assert shards_asked(server) == ["/b.tar", "/c.tar"]
    found = json.loads(
        run_ok("cache", "warm", server.url + "/{a,b,c,d}.tar", "--cache-dir", cache, "--shards=-2:", "--json")
    )
    assert (found["shards"], found["fetched"], found["cached"], found["failed"]) == (2, 1, 1, {})
    assert found["fetched_bytes"] == len(shard("d"))
    assert texts(AutoProvider(cache_dir=str(cache)).open(Shard(url=server.url + "/d.tar", nsamples=3))) == texts_of("d")
    assert shards_asked(server) == ["/b.tar", "/c.tar", "/d.tar"]


def test_warm_into_the_default_directory(server, tmp_path):
    """Without --cache-dir the shards go to $WIDS_CACHE."""
    run_ok("cache", "warm", publish(server, "a"), env={"WIDS_CACHE": str(tmp_path / "mine")})
    assert len(names_in(tmp_path / "mine")) == 1


@pytest.mark.parametrize("engine", [(), ("--engine", "ray")])
def test_warm_into_a_url(engine, server, tmp_path, monkeypatch):
    """A ``file:`` URL is a directory; another one is refused before a shard is fetched, on a cluster as well."""
    monkeypatch.chdir(tmp_path)
    index = publish(server, "ab")
    words = complaint(1, "cache", "warm", index, "--cache-dir", "s3://bucket/cache", *engine)
    assert words.startswith("wids: cache_dir is 's3://bucket/cache'; it must be a directory of this machine, not a URL")
    assert shards_asked(server) == []
    assert os.listdir(tmp_path) == []
    if not engine:
        run_ok("cache", "warm", index, "--cache-dir", f"file://{tmp_path}/c%20d")
        assert len(names_in(tmp_path / "c d")) == 2


@pytest.mark.parametrize("jobs", [1, 3])
def test_warm_some_at_a_time(jobs, server, cache):
    """--jobs is how many shards are fetched at a time."""
    index = publish(server, "abcd")
    if jobs == 3:  # the bodies of three wait for each other
        meeting = server.meeting(3)
        server.faults.update({f"/{tag}.tar": [meeting] for tag in "abc"})
    run_ok("cache", "warm", index, "--cache-dir", cache, "--jobs", jobs)
    assert len(names_in(cache)) == 4
    assert server.max_open == jobs


def test_warm_on_a_terminal(server, cache):
    """A terminal sees a bar, and in the end the same line as a pipe."""
    code, shown = run_on_terminal("cache", "warm", publish(server, "ab"), "--cache-dir", cache)
    assert code == 0
    assert "2 of 2 shards" in shown
    assert f"{cache}: 2 shards: 2 fetched (" in shown


def test_warm_tries_again(server, cache):
    """A server in trouble is asked again, which is counted and no line of its own."""
    index = publish(server, "a")
    server.faults["/a.tar"] = [status(503), whole]
    out = run_ok("cache", "warm", index, "--cache-dir", cache)
    assert "1 fetched (" in out
    assert ", 1 tried again in " in out


def test_warm_with_a_missing_shard(server, cache):
    """A shard that is not there is told with its URL, the others come, and the exit code is 1."""
    index = publish(server, "abc")
    del server.files["/b.tar"]
    code, out, err = run("cache", "warm", index, "--cache-dir", cache)
    assert code == 1
    assert out.startswith(f"{cache}: 3 shards: 2 fetched (")
    assert ", 1 failed in " in out
    first, last = err.splitlines()
    assert first.startswith(f"wids: {server.url}/b.tar: does not exist")
    assert last == "wids: 1 of 3 shards could not be fetched"
    code, out, _ = run("cache", "warm", index, "--cache-dir", cache, "--json")
    assert (code, list(json.loads(out)["failed"])) == (1, [server.url + "/b.tar"])


def test_warm_with_many_missing_shards(server, cache):
    """Of many failures the first are told, in the order of the index, and how many more there are."""
    code, _, err = run("cache", "warm", server.url + "/{00..14}.tar", "--cache-dir", cache)
    lines = err.splitlines()
    assert (code, len(lines)) == (1, 12)
    assert [line.split(".tar")[0][-2:] for line in lines[:10]] == [f"{k:02d}" for k in range(10)]
    assert lines[10:] == ["wids: and 5 more; --json lists them all", "wids: 15 of 15 shards could not be fetched"]


def test_warm_more_than_may_be_there(server, cache):
    """Shards that do not fit into --cache-size are refused before any is fetched, with how many do."""
    index, size = publish(server, "abc"), len(shard("a"))
    args = ("cache", "warm", index, "--cache-dir", cache, "--cache-size")
    told = complaint(1, *args, 3 * size)  # their tables come on top
    assert "3 shards of " in told
    assert complaint(1, *args, size - 1).endswith("; take a larger --cache-size")
    told = complaint(1, *args, 3 * size - 1)
    assert "take fewer (--shards 0:2 fit) or a larger --cache-size" in told
    assert (shards_asked(server), files_in(cache)) == ([], [])
    run_ok(*args, 3 * size - 1, "--shards", "0:2")
    assert len(names_in(cache)) == 2


def test_warm_makes_room(server, cache):
    """What no job needs goes for the shards that come, and these for none of each other."""
    index, size = publish(server, "ab"), len(shard("a"))
    put_shard(cache, "old.tar", 2 * size)
    run_ok("cache", "warm", index, "--cache-dir", cache, "--cache-size", 3 * size)
    assert "old.tar" not in names_in(cache)
    assert len(names_in(cache)) == 2


def test_warm_into_a_full_cache(server, cache):
    """Where no room can be made, that is told once, what came stays, and the rest is not tried one by one."""
    publish(server, "abcdef")
    size, pattern = len(shard("a")), server.url + "/{a,b,c,d,e,f}.tar"
    args = ("--cache-dir", cache, "--cache-size", int(1.5 * size), "--jobs", 1)
    code, out, err = run("cache", "warm", pattern, *args)
    assert (code, len(names_in(cache))) == (1, 1)
    assert out.startswith(f"{cache}: 6 shards: 1 fetched (")
    assert "bytes too few for" in err.splitlines()[0]
    assert [line.partition(".tar: ")[2] for line in err.splitlines()[1:5]] == [
        "not tried, because the cache is full"
    ] * 4
    assert set(shards_asked(server)) == {"/a.tar", "/b.tar"}


def test_warm_of_local_shards(tmp_path, cache):
    """Local shards are read where they are, and there is nothing to fetch."""
    path = write(str(tmp_path / "www" / "a.tar"), shard("a"))
    out = run_ok("cache", "warm", path, "--cache-dir", cache)
    assert out.startswith(f"{cache}: 1 shard: 1 local in ")
    assert os.listdir(cache) == []


def test_warm_of_local_shards_that_cannot_be_read(tmp_path, cache):
    """A shard that is missing, or has another size than the index says, fails, and costs no other one."""
    paths = [write(str(tmp_path / "www" / f"{tag}.tar"), shard(tag)) for tag in "abc"]
    index = tmp_path / "www" / "index.json"
    run_ok("index", "create", *paths, "-o", index)
    os.remove(paths[0])
    with open(paths[1], "ab") as file:
        file.write(bytes(512))
    code, out, err = run("cache", "warm", index, "--cache-dir", cache)
    assert code == 1
    assert out.startswith(f"{cache}: 3 shards: 1 local, 2 failed in ")
    assert "a.tar: there is no file" in err
    assert "b.tar: " in err
    assert "the index says filesize" in err


def test_warm_with_what_is_no_index(server, cache, tmp_path):
    """No JSON, another JSON, nothing there, a directory: one line that names it, and exit code 1."""
    page = server.add("/page.json", b"<html>no</html>")
    other = write(str(tmp_path / "www" / "list.json"), b"[1, 2]")
    for index, words in (
        (page, "not valid JSON"),
        (other, "must be an object"),
        (server.url + "/none.json", "does not exist"),
        (tmp_path / "none.json", "does not exist"),
        (tmp_path, "there are no .tar files in this directory"),
    ):
        told = complaint(1, "cache", "warm", index, "--cache-dir", cache)
        assert told.startswith(f"wids: {index}: ")
        assert words in told
    assert os.listdir(cache) == []


def test_warm_with_a_shard_that_is_none(server, cache):
    """A web page in a shard's place is told, and nothing of it stays."""
    url = server.add("/a.tar", bytes(range(256)) * 8)
    code, _, err = run("cache", "warm", url, "--cache-dir", cache)
    assert (code, names_in(cache), files_in(cache)) == (1, [], [])
    assert err.startswith(f"wids: {url}: ")


def test_warm_with_wrong_options(server, full):
    """Bad ranges, sizes and places are told with what would do."""
    index = publish(server, "ab")
    for args, code, words in (
        (("--shards", "3"), 2, "'3' is no range of shards; write it like 0:100"),
        (("--shards", "a:b"), 2, "is no range of shards"),
        (("--shards", "7:"), 1, "there are no such shards; the index has 2"),
        (("--cache-size", "all"), 2, "'all' is not a size"),
        (("--jobs", "0"), 2, "--jobs"),
        (("--cache-dir", full / "a.tar"), 1, "cannot be made"),
    ):
        place = () if "--cache-dir" in args else ("--cache-dir", full)
        assert words in complaint(code, "cache", "warm", index, *place, *args)
    assert shards_asked(server) == []


def gated(server):
    """An index of three shards, of which the last two stop half-way; returns it and their gates."""
    index, gates = publish(server, "abc"), [server.gate(), server.gate()]
    server.faults.update({"/b.tar": [gates[0]], "/c.tar": [gates[1]]})
    return index, gates


def test_bytes_of_downloads_under_way_have_arrived(full):
    """Bytes written to part files count: not the size that they will have, and not those of other processes."""
    put_file(full, ".wids/y.tar.1-0123abcd.part", bytes(1 << 19))
    with open(put_garbage(full / "x.tar", 1 << 20), "r+b") as file:
        file.write(bytes(8192))
    assert 8192 <= part_bytes(str(full)) < 1 << 19


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [("INT", 130, "interrupted"), ("TERM", 143, "ended by SIGTERM"), ("HUP", 129, "ended by SIGHUP")],
)
def test_warm_that_is_ended(number, code, words, server, cache):
    """Ctrl-C, SIGTERM and a closed terminal end it at once; what came whole stays, and nothing half."""
    index, gates = gated(server)
    with spawn("cache", "warm", index, "--cache-dir", cache, "--jobs", 2) as process:
        for gate in gates:
            assert gate.entered.wait(PATIENCE_SECONDS)
        process.send_signal(getattr(signal, f"SIG{number}"))
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, out, err) == (code, "", f"wids: {words}; run it again to continue\n")
    (name,) = names_in(cache)
    assert files_in(cache) == [f".wids/tables/{name}.widx", name]


def test_warm_under_nohup(server, cache):
    """A signal that was ignored when it started does not end it."""
    index, gates = gated(server)
    with spawn("cache", "warm", index, "--cache-dir", cache, "--jobs", 2, before=DEAF) as process:
        for gate in gates:
            assert gate.entered.wait(PATIENCE_SECONDS)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGINT)
        for gate in gates:
            gate.go.set()
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, err) == (0, "")
    assert "3 fetched" in out


# --- daemon

LOGGED = re.compile(r"^[0-9-]{10}T[0-9:.]{12}[+-][0-9]{2}:[0-9]{2} (INFO|WARNING) wids: ")


class Daemon:
    """A running daemon, and the lines that it logs, without their time and level."""

    def __init__(self, *args, **options):
        self._ending = contextlib.ExitStack()
        self.process = self._ending.enter_context(spawn("cache", "daemon", *args, **options))
        self._lines = queue.Queue()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        for line in self.process.stderr:
            self._lines.put(LOGGED.sub("", line.rstrip("\n")))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self._thread.join()  # it has read all
        self._ending.close()

    def line(self):
        """The next line."""
        return self._lines.get(timeout=PATIENCE_SECONDS)

    def until(self, words):
        """The lines up to one with these words."""
        lines = [self.line()]
        while words not in lines[-1]:
            lines.append(self.line())
        return lines

    def send(self, name):
        """Send it a signal."""
        self.process.send_signal(getattr(signal, f"SIG{name}"))

    def end(self, name="TERM"):
        """End it; returns the exit code, what it printed, and the lines since."""
        self.send(name)
        code = self.process.wait(PATIENCE_SECONDS)
        self._thread.join()
        return code, self.process.stdout.read(), list(self._lines.queue)


@pytest.mark.parametrize("name", ["TERM", "INT"])
def test_daemon(name, full):
    """It logs what it keeps, each deletion and what stays; it looks again when asked to, and ends well by signals."""
    put_file(full, "notes.txt")
    with Daemon(full, "--max-size", "3kB", "--max-files", 3, "--every", 3600) as daemon:
        assert daemon.until("d.tar") == [
            f"cleanup: keeping {full} at 3 kB and 3 shards at most, looking every 3600 s",
            f"cleanup: deleted {full}/d.tar (1 kB)",
        ]
        stay = "cleanup: deleted 1 shard (1 kB); 3 shards (3 kB) stay, limit 3 kB and 3 shards"
        assert daemon.line() == stay
        put_shard(full, "e.tar", 1000)
        daemon.send("HUP")
        assert daemon.until("e.tar") == [
            "cleanup: SIGHUP, looking now",
            f"cleanup: deleted {full}/e.tar (1 kB)",
        ]
        assert daemon.line() == stay
        assert daemon.end(name) == (0, "", [f"cleanup: ended by SIG{name}"])
    assert names_in(full) == ["a.tar", "b.tar", "c.tar"]
    assert (full / "notes.txt").exists()


def test_daemon_looks_again_by_itself(full):
    """It looks every so many seconds, with no signal."""
    with Daemon(full, "--max-files", 4, "--every", 0.1) as daemon:
        daemon.until("4 shards (4 kB) stay")
        put_shard(full, "e.tar", 1000, used=1)
        assert daemon.until("e.tar")[-1] == f"cleanup: deleted {full}/e.tar (1 kB)"
        assert daemon.end()[0] == 0


FORGED = "x\n2000-01-01T00:00:00.000+00:00 INFO wids: cleanup: all is well.tar"


def test_daemon_tells_time_and_level(full):
    """Each line has the time with its zone and a level; the journal, which has them, a priority. A name breaks none."""
    put_shard(full, FORGED, used=1)
    put_file(full, keep_mark_of(full / "a.tar"))
    ours, its = os.pipe()
    stream = os.fstat(its)
    for env in (
        {"JOURNAL_STREAM": "8:1", "TZ": "Asia/Kolkata"},
        {"JOURNAL_STREAM": f"{stream.st_dev}:{stream.st_ino}"},
    ):
        with spawn("cache", "daemon", full, "--max-files", 4, env=env, stderr=its) as process:
            read = b""
            while read.count(b"\n") < 3:
                read += os.read(ours, 10_000)
            process.terminate()
            assert process.wait(PATIENCE_SECONDS) == 0
        lines = [*read.decode().splitlines(), *os.read(ours, 10_000).decode().splitlines()]
        begin = r"<6>cleanup: " if "TZ" not in env else r"[0-9-]{10}T[0-9:.]{12}\+05:30 INFO wids: cleanup: "
        assert [bool(re.match(begin, line)) for line in lines] == [True] * 4
        assert f"cleanup: deleted {full}/{printable(FORGED)} (10 B)" in lines[1]
        put_shard(full, FORGED, used=1)
    with Daemon(full, "--max-size", 0, "--log-level", "warning") as daemon:
        assert daemon.line().startswith(
            "cleanup: deleted 4 shards (3.01 kB); 1 shard (1 kB) stay, more than 0 B: 1 shard"
        )
        assert daemon.end() == (0, "", [])
    os.close(ours)
    os.close(its)


def test_second_daemon_waits(full):
    """Of two on one directory one cleans; the other takes over when the first is gone, however it went."""
    with (
        Daemon(full, "--max-files", 4, "--every", 3600) as first,
        contextlib.ExitStack() as stack,
    ):
        put_shard(full, "e.tar", used=1)
        first.until("keeping")
        first.send("HUP")  # it may have looked before there were five
        first.until("deleted")
        second = stack.enter_context(Daemon(full, "--max-files", 2, "--every", 0.1))
        assert second.until("waiting")[-1] == f"cleanup: another process cleans {full}; waiting for its turn"
        assert names_in(full) == ["a.tar", "b.tar", "c.tar", "d.tar"]
        first.process.kill()
        first.process.wait()
        assert second.until("c.tar") == [
            f"cleanup: it is this process's turn to clean {full}",
            f"cleanup: deleted {full}/d.tar (1 kB)",
            f"cleanup: deleted {full}/c.tar (1 kB)",
        ]
        assert second.end()[0] == 0


def test_daemon_outlives_its_directory(full):
    """A directory that does not exist yet is waited for, and one that is deleted too."""
    elsewhere = full.parent / "elsewhere"
    full.rename(elsewhere)
    with Daemon(full, "--max-files", 2, "--every", 3600) as daemon:
        assert daemon.until("exist")[-1] == f"cleanup: {full} does not exist yet; waiting for it"
        for _ in range(2):
            shutil.copytree(elsewhere, f"{full}.new")
            os.rename(f"{full}.new", full)  # all at once: it may look at any moment
            daemon.send("HUP")
            assert daemon.until("c.tar")[-2:] == [
                f"cleanup: deleted {full}/d.tar (1 kB)",
                f"cleanup: deleted {full}/c.tar (1 kB)",
            ]
            daemon.until("2 shards (2.2 kB) stay")
            os.rename(full, f"{full}.gone")  # first, for it may still write into it
            shutil.rmtree(f"{full}.gone")
            daemon.send("HUP")
            daemon.until("SIGHUP")
        assert daemon.end()[0] == 0


def test_daemon_with_a_pattern(full):
    """A pattern says which files count, and may go."""
    with Daemon(full / "[cd].tar", "--max-files", 1, "--every", 3600) as daemon:
        daemon.until("d.tar (")
        assert daemon.line() == "cleanup: deleted 1 file (1 kB); 1 file (1 kB) stay, limit 1 shard"
        assert daemon.end() == (0, "", ["cleanup: ended by SIGTERM"])
    assert names_in(full) == ["a.tar", "b.tar", "c.tar"]


def test_daemon_in_a_directory_that_may_not_be_written(full):
    """That is a warning in each round, not its end: the next round may do."""
    with unwritable(full), Daemon(full, "--max-files", 2, "--every", 0.1, before=MORTAL) as daemon:
        for _ in range(2):
            assert "is the directory writable?" in daemon.until("cleanup of")[-1]
        assert daemon.end()[0] == 0
    assert len(names_in(full)) == 4


def test_daemon_in_the_background(full):
    """Where a shell lets its background jobs ignore Ctrl-C, it does."""
    with Daemon(full, "--max-files", 3, "--every", 3600, before=DEAF) as daemon:
        daemon.until(") stay")
        daemon.send("INT")
        assert daemon.end() == (0, "", ["cleanup: ended by SIGTERM"])


def test_daemon_with_wrong_options(full):
    """No bound, a bad one, no time between looks, a file: told, and nothing starts."""
    for args, code, words in (
        ((full, "--max-files", 1, "--log-format", "xml"), 2, "'xml' is not one of 'text', 'json'"),
        (
            (full, "--max-files", 1, "--metrics", full / "wids.txt"),
            2,
            "files whose names end in .prom",
        ),
        ((full, "--max-files", 1, "--metrics", full / "no/wids.prom"), 1, f"{full}/no/wids.prom: cannot be written"),
        ((full,), 2, "say what to keep: --max-size 10GB or --max-files 100"),
        ((full, "--max-size", "big"), 2, "'big' is not a size"),
        ((full, "--max-files", 1, "--every", 0), 2, "--every"),
        ((full / "a.tar", "--max-files", 1), 1, "is a file; name a cache directory"),
    ):
        assert words in complaint(code, "cache", "daemon", *args)
    assert len(names_in(full)) == 4


def test_daemon_says_what_stays_and_why(full):
    """Above the limit, a cleaning is a warning: what is kept, open and under way; of a pattern, too."""
    put_file(full, keep_mark_of(full / "b.tar"))
    put_garbage(str(full / "x.tar"), 5000)
    with leased(full / "a.tar"), open(put_garbage(str(full / "y.tar"), 7000), "rb") as part:
        assert system.try_lock(part.fileno(), is_shared=False)
        with Daemon(full, "--max-size", "1kB", "--every", 3600) as daemon:
            said = daemon.until(") stay")[-1]
            assert said.startswith(
                "cleanup: deleted 2 shards (2 kB) and 1 file left behind (5 kB); 2 shards (9 kB) stay, more than 1 kB: "
                "1 shard (1 kB) marked as kept (wids cache clean --unkeep removes the marks); "
                f"1 shard (1 kB) open in some process: 1 shard open in process {os.getpid()} ("
            )
            assert said.endswith("; 1 part file (7 kB) under way")
            assert daemon.end()[0] == 0
        with Daemon(full / "*.tar", "--max-files", 0, "--every", 3600) as daemon:
            assert daemon.until(") stay")[-1].startswith(
                "cleanup: deleted 0 files (0 B); 2 files (2 kB) stay, more than 0 shards: "
                f"1 file (1 kB) marked as kept; 1 file (1 kB) open in some process, process {os.getpid()} ("
            )
            assert daemon.end()[0] == 0


def test_daemon_logs_json(full):
    """--log-format json: an object on each line, with the facts of deletions and cleanings."""
    put_shard(full, FORGED, used=1)
    with Daemon(full, "--max-size", "4kB", "--log-format", "json") as daemon:
        lines = [json.loads(line) for line in daemon.until(") stay")]
        code, _, rest = daemon.end()
    lines += map(json.loads, rest)
    assert code == 0
    assert {(line["level"], line["logger"]) for line in lines} == {("info", "wids")}
    assert all(re.fullmatch(r"[0-9-]{10}T[0-9:.]{12}[+-][0-9]{2}:[0-9]{2}", line["time"]) for line in lines)
    assert [line["message"].split()[1] for line in lines] == ["keeping", "deleted", "deleted", "ended"]
    assert (lines[1]["path"], lines[1]["size_bytes"]) == (str(full / FORGED), 10)
    assert {name: lines[2][name] for name in ("deleted", "swept", "stays", "limit", "is_reached", "why")} == {
        "deleted": {"shards": 1, "bytes": 10},
        "swept": {"files": 0, "bytes": 0},
        "stays": {"shards": 4, "used_bytes": 4000},
        "limit": {"bytes": 4000, "shards": None},
        "is_reached": True,
        "why": [],
    }


def metrics_in(path):
    """Name -> value, as a program that knows the format reads it."""
    found = {}
    for family in text_string_to_metric_families(path.read_text(encoding="utf-8")):
        assert family.documentation
        assert (family.type == "counter") == all(sample.name.endswith("_total") for sample in family.samples)
        for sample in family.samples:
            found[sample.name.removeprefix("wids_cache_")] = sample.value, sample.labels["cache"]
    return found


def test_daemon_writes_metrics(full, tmp_path):
    """After each cleaning, and each that fails; totals go on, and no other file lies beside the one that is read."""
    metrics = tmp_path / "metrics" / "wids.prom"
    metrics.parent.mkdir()
    put_garbage(str(full / "x.tar"), 5000)
    with Daemon(full, "--max-size", "3kB", "--every", 3600, "--metrics", metrics) as daemon:
        daemon.until(") stay")
        put_shard(full, "e.tar", 1000, used=1)
        put_shard(full, "f.tar", 1000, used=2)
        daemon.send("HUP")
        daemon.until(") stay")
        found = metrics_in(metrics)
        assert {label for _, label in found.values()} == {str(full)}
        values = {name: value for name, (value, _) in found.items()}
        assert time.time() - 600 < values.pop("last_cleaning_timestamp_seconds") <= time.time()
        assert 0 <= values.pop("cleaning_seconds") < 600
        assert values == {
            "cleanings_total": 2,
            "bytes": 3000,
            "shards": 3,
            "limit_bytes": 3000,
            "over_limit": 0,
            "deleted_shards_total": 3,
            "deleted_bytes_total": 8000,
            "failures_total": 0,
        }
        assert os.listdir(metrics.parent) == ["wids.prom"]
        metrics.parent.rename(tmp_path / "gone")
        daemon.send("HUP")
        assert "the metrics cannot be written" in daemon.until("cannot be")[-1]
        assert daemon.end()[0] == 0


def test_metrics_of_cleanings_that_fail(full, tmp_path):
    """They are counted, and the last good numbers stay."""
    with (
        unwritable(full),
        Daemon(full, "--max-files", 2, "--every", 0.1, "--metrics", tmp_path / "wids.prom", before=MORTAL) as daemon,
    ):
        for _ in range(8):  # a cleaning may say it twice, and its metrics are written after it
            daemon.until("is the directory writable?")
        values = metrics_in(tmp_path / "wids.prom")
        assert values["failures_total"][0] >= 2
        assert values["cleanings_total"][0] == 0
        assert "bytes" not in values
        assert daemon.end()[0] == 0


def test_metrics_without_the_package(full, monkeypatch):
    """The error names the extra, before anything is deleted."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    told = complaint(1, "cache", "daemon", full, "--max-files", 1, "--metrics", full / "wids.prom")
    assert told == "wids: --metrics needs prometheus_client; install it with: pip install 'wids[prometheus]'"
    assert len(names_in(full)) == 4


class Systemd:
    """What a service tells the one that started it: `env` is for its process."""

    def __init__(self, address):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0"))
        self._socket.settimeout(PATIENCE_SECONDS)
        self.env = {"NOTIFY_SOCKET": address}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close()

    def heard(self):
        """The next message: name -> value."""
        return dict(line.split("=", 1) for line in self._socket.recv(10_000).decode().splitlines())


@pytest.mark.parametrize("is_abstract", [False, True], ids=["a path", "an abstract name"])
def test_daemon_under_systemd(full, tmp_path, is_abstract):
    """It says when it is ready, also while it waits for the directory; that it is alive, if asked; and that it ends."""
    address = f"@{tmp_path.name}-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    with Systemd(address) as systemd:
        env = {**systemd.env, "WATCHDOG_USEC": "100000"}  # of each 0.1 s
        with Daemon(full, "--max-files", 3, "--every", 3600, env=env) as daemon:
            told = systemd.heard()
            assert told == {"READY": "1", "STATUS": "deleted 1 shard (1 kB); 3 shards (3.1 kB) stay, limit 3 shards"}
            assert [systemd.heard() for _ in range(3)] == [{"WATCHDOG": "1"}] * 3
            assert daemon.end()[0] == 0
            while "STOPPING" not in told:
                told = systemd.heard()
            assert told == {"STOPPING": "1", "STATUS": "ended by SIGTERM"}
        env = {**systemd.env, "WATCHDOG_USEC": "100000", "WATCHDOG_PID": "1"}  # another process's
        with Daemon(full / "none", "--max-files", 3, "--every", 3600, env=env) as daemon:
            assert systemd.heard()["READY"] == "1"
            assert daemon.end()[0] == 0
            assert "STOPPING" in systemd.heard()


def shown_for_operators(language):
    """The text of the only block of a language in the guide to shared caches."""
    [block] = [block for block in blocks(language) if block.readme == ".docs/guides/shared-caches.md"]
    return block.text


def test_the_unit_for_systemd(full, tmp_path):
    """Systemd finds no fault with it, and what it starts does what a service of its type has to."""
    text, program = shown_for_operators("ini"), tmp_path / "wids"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m wids.tools.cli "$@"\n')
    program.chmod(0o755)
    for shown, here in (
        ("/opt/venv/bin/wids", program),
        ("/data/wids-cache", full),
        ("/var/lib/node_exporter", tmp_path),
    ):
        assert shown in text
        text = text.replace(shown, str(here))
    unit = tmp_path / "wids-cache.service"
    unit.write_text(text)
    if analyze := shutil.which("systemd-analyze"):
        done = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        assert (done.returncode, done.stderr) == (0, "")
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.optionxform = str
    parsed.read_string(text)
    service = parsed["Service"]
    assert (service["Type"], service["WatchdogSec"]) == ("notify", "10min")
    with Systemd(str(tmp_path / "notify")) as systemd:
        env = {**os.environ, **systemd.env, "PYTHONPATH": str(ROOT), "WATCHDOG_USEC": "600000000"}
        with subprocess.Popen(shlex.split(service["ExecStart"]), env=env, stderr=subprocess.DEVNULL) as process:
            try:
                assert systemd.heard() == {
                    "READY": "1",
                    "STATUS": "deleted 0 shards (0 B); 4 shards (4 kB) stay, limit 200 GB",
                }
                assert metrics_in(tmp_path / "wids.prom")["bytes"][0] == 4000
                process.terminate()  # KillSignal's default
                assert process.wait(PATIENCE_SECONDS) == 0
            finally:
                process.kill()


def test_the_image_for_containers(full):
    """What it installs exists, and its command runs."""
    steps = [line.split(maxsplit=1) for line in shown_for_operators("dockerfile").splitlines()]
    assert [name for name, _ in steps] == ["FROM", "COPY", "RUN", "USER", "ENTRYPOINT", "CMD"]
    step = dict(steps)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    python = re.fullmatch(r"python:(3\.[0-9]+)-slim", step["FROM"])[1]
    assert f'"Programming Language :: Python :: {python}"' in project
    source, place = step["COPY"].split()
    assert source == "."
    *_, requirement = shlex.split(step["RUN"])
    path, extras = re.fullmatch(r"(.*)\[([\w,]+)\]", requirement).groups()
    assert path == place
    for extra in extras.split(","):
        assert f"\n{extra} = [" in project.partition("[project.optional-dependencies]")[2]
    words = json.loads(step["ENTRYPOINT"]) + json.loads(step["CMD"])
    assert words[:4] == ["wids", "cache", "daemon", "/cache"]
    with Daemon(full, *words[4:]) as daemon:
        assert json.loads(daemon.until(") stay")[-1])["stays"] == {"shards": 4, "used_bytes": 4000}
        assert daemon.end()[0] == 0

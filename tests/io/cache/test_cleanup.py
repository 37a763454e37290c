"""Cleanup: the newest files stay within both bounds, and the background process lives exactly as long as it should."""

import contextlib
import fcntl
import hashlib
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import wids
from tests.support.cache_dirs import (
    files_in,
    keep_mark_of,
    names_in,
    put_file,
    put_shard,
    put_table,
    staging_of,
    table_of,
)
from tests.support.children import call_in_child
from tests.support.clocks import PATIENCE_SECONDS, wait_until
from tests.support.shards import digests, serve, survey_shard, write_index, write_shard
from wids.core.cache import cleanup, limits, usage_hints
from wids.core.files import atomic, locks
from wids.core.files.holders import Holder
from wids.core.transport.session import Session

ROOT = str(Path(wids.__file__).parents[1])


def fill(directory, names, *, size=10):
    """Shards as a cache has them, of ``size`` bytes, each newer than the one before; returns their paths."""
    paths = []
    for number, name in enumerate(names):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        paths.append(put_shard(directory, name, size, used=1_000_000 + number))
    return paths


def date(path, seconds):
    """Let a shard have been used last at this time."""
    for file in (path, table_of(path)):
        os.utime(file, (seconds, seconds))


def left(directory):
    """As `files_in`, without member tables."""
    return [name for name in files_in(directory) if not name.endswith(".widx")]


# --- keep_most_recent_files


@pytest.mark.parametrize(
    ("maxsize", "maxfiles", "kept"),
    [
        (1000, 1000, "abcd"),
        (1000, 2, "cd"),
        (25, 1000, "cd"),
        (20, 1000, "cd"),  # exactly full is not too full
        (25, 1, "d"),
        (9, 1000, ""),
        (0, 1000, ""),
        (1000, 0, ""),
    ],
)
def test_the_newest_files_stay_within_both_bounds(tmp_path, maxsize, maxfiles, kept):
    """Counted from the newest; the returned paths are those deleted, oldest first."""
    paths = fill(tmp_path, [f"{name}.tar" for name in "abcd"])
    gone = cleanup.keep_most_recent_files(str(tmp_path / "*.tar"), maxsize=maxsize, maxfiles=maxfiles)
    assert gone == [path for path in paths if path[-5] not in kept]
    assert left(tmp_path) == [f"{name}.tar" for name in kept]


def test_a_limit_that_cannot_be_reached_is_told(tmp_path, caplog, monkeypatch, set_limits):
    """Who has shards open is named, each change once; what is kept or under way, too. A limit that is kept is none."""
    paths = fill(tmp_path, ["a.tar", "b.tar"])
    monkeypatch.setattr(cleanup, "_told", {})  # other tests of this process clean, too
    holder = Holder(pid=7, program="x", started_seconds=None, is_orphan=False, files=paths[:1])
    monkeypatch.setattr(cleanup, "find_holders", lambda found: [holder] if paths[0] in found else [])
    set_limits(limits, heard_seconds=0.0)
    for pattern in (str(tmp_path), str(tmp_path / "*.tar")):
        caplog.clear()
        with open(paths[0], "rb") as one, open(paths[1], "rb") as two:
            assert locks.lease(one.fileno())
            assert locks.lease(two.fileno())
            for _ in range(3):
                assert cleanup.keep_most_recent_files(pattern, maxsize=5) == []
            assert cleanup.keep_most_recent_files(pattern, maxsize=5, dry_run=True) == paths
        [record] = [record for record in caplog.records if "more than the limit" in record.message]
        assert record.levelname == "WARNING"
        assert record.message == (
            f"cleanup: {pattern}: 15 B more than the limit stay: 1 open in process 7 (x); "
            "1 open in processes that cannot be seen from here, or cannot be deleted"
        )
        caplog.clear()
        put_file(tmp_path, keep_mark_of(paths[0]))
        put_file(tmp_path, keep_mark_of(paths[1]))
        cleanup.keep_most_recent_files(pattern, maxfiles=1)
        assert "1 files more than the limit stay: they are marked as kept, or are downloads" in caplog.text
        cleanup.keep_most_recent_files(pattern)
        os.unlink(keep_mark_of(paths[0]))
        os.unlink(keep_mark_of(paths[1]))
    assert cleanup._told == {}


def test_the_oldest_go_until_the_rest_fits(tmp_path):
    """What was not used for longest goes first, be it small."""
    fill(tmp_path, ["old.tar"], size=1)
    for name, size, when in (("big.tar", 100, 2_000_000), ("new.tar", 10, 3_000_000)):
        [path] = fill(tmp_path, [name], size=size)
        date(path, when)
    cleanup.keep_most_recent_files(str(tmp_path / "*.tar"), maxsize=50)
    assert left(tmp_path) == ["new.tar"]


def test_use_counts_and_not_age(tmp_path):
    """A shard that was fetched first and used last stays."""
    paths = fill(tmp_path, ["a.tar", "b.tar", "c.tar"])
    os.utime(table_of(paths[0]), (3_000_000, 3_000_000))
    assert cleanup.keep_most_recent_files(tmp_path, maxfiles=1) == paths[1:]


def test_what_no_cache_put_there_stays(tmp_path):
    """In a directory: a user's tars, tables, directories, links, locks; a shard takes its table along."""
    paths = fill(tmp_path, ["a.tar", "b.tar"])
    put_table(paths[0], 10)
    date(paths[0], 1_000_000)
    mine = {"mine.tar", "mine.tar.widx", "notes.part", "x.lock", "locked.tar", "locked.tar.lock", "a.tar.keep"}
    for name in mine:
        (tmp_path / name).write_bytes(b"mine")
    (tmp_path / "sub.tar").mkdir()
    (tmp_path / "link.tar").symlink_to(tmp_path / "mine.tar")
    assert cleanup.keep_most_recent_files(tmp_path, maxsize=29) == paths[:1]
    assert not os.path.exists(table_of(paths[0]))
    assert cleanup.keep_most_recent_files(tmp_path, maxsize=0) == paths[1:]
    assert mine < set(os.listdir(tmp_path))
    assert (tmp_path / "link.tar").read_bytes() == b"mine"


def write_files(directory, names, *, size=10):
    """Files that no cache made, each newer than the one before; returns their paths."""
    paths = [directory / name for name in names]
    for number, path in enumerate(paths):
        path.write_bytes(bytes(size))
        os.utime(path, (1_000_000 + number, 1_000_000 + number))
    return [str(path) for path in paths]


def test_a_glob_deletes_the_oldest_files_that_it_matches(tmp_path):
    """Whoever put them there, and no others; nothing is made in a directory that is not a cache."""
    paths = write_files(tmp_path, ["c.bin", "a.bin", "b.bin", "other.txt"])
    assert cleanup.keep_most_recent_files(tmp_path / "*.bin", maxsize=20) == paths[:1]
    assert cleanup.keep_most_recent_files(str(tmp_path / "*.bin"), maxfiles=0) == paths[1:3]
    assert os.listdir(tmp_path) == ["other.txt"]
    assert cleanup.keep_most_recent_files(paths[3], maxfiles=0) == paths[3:]
    assert cleanup.keep_most_recent_files(tmp_path, maxfiles=0) == []


def test_a_glob_without_a_directory_is_of_this_one(tmp_path, monkeypatch):
    """A bare ``*`` is taken in the working directory."""
    write_files(tmp_path, ["a", "b"])
    monkeypatch.chdir(tmp_path)
    assert cleanup.keep_most_recent_files("*", maxfiles=1) == ["a"]
    assert os.listdir(tmp_path) == ["b"]


def test_what_a_glob_matches_and_does_not_delete(tmp_path):
    """What is leased, kept or locked, and directories, FIFOs, lock files and marks; others go for the bound."""
    names = ["leased", "flocked", "kept", "kept.keep", "locked", "locked.lock", "free.lock", "dangling", "free", "new"]
    paths = dict(zip(names, write_files(tmp_path, names), strict=True))
    os.unlink(paths["dangling"])
    os.symlink(tmp_path / "gone", paths["dangling"])
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "directory")
    os.mkfifo(tmp_path / "fifo")
    before = set(os.listdir(tmp_path))
    with (
        open(paths["leased"], "rb") as reader,
        open(paths["flocked"], "rb+") as writer,
        locks.acquire(paths["locked.lock"], is_kept=True),
    ):
        assert locks.lease(reader.fileno())
        fcntl.flock(writer, fcntl.LOCK_EX)
        # Six files count: the two free ones go for those that stay.
        assert cleanup.keep_most_recent_files(tmp_path / "*", maxfiles=5) == [paths["free"]]
        assert cleanup.keep_most_recent_files(tmp_path / "*", maxfiles=0) == [paths["new"]]
        assert set(os.listdir(tmp_path)) == before - {"free", "new"}
    gone = cleanup.keep_most_recent_files(tmp_path / "*", maxfiles=0)
    assert gone == [paths[name] for name in ("leased", "flocked", "locked")]


def test_a_glob_deletes_a_link_and_not_what_it_leads_to(tmp_path):
    """As the original's unlink did."""
    [target] = write_files(tmp_path, ["target.bin"])
    (tmp_path / "link").symlink_to(target)
    assert cleanup.keep_most_recent_files(tmp_path / "l*", maxfiles=0) == [str(tmp_path / "link")]
    assert os.listdir(tmp_path) == ["target.bin"]


def test_a_glob_on_a_cache_takes_tables_along(tmp_path):
    """Last use counts there, not age; a table counts with its shard and goes with it, and is not matched by itself."""
    paths = fill(tmp_path, ["a.tar", "b.tar"])
    [mine] = write_files(tmp_path, ["mine.tar"])
    os.utime(table_of(paths[0]), (3_000_000, 3_000_000))
    assert cleanup.keep_most_recent_files(tmp_path / "*", maxfiles=1) == [mine, paths[1]]
    assert files_in(tmp_path) == [".wids/tables/a.tar.widx", "a.tar"]


def test_what_is_open_kept_or_coming_stays(tmp_path):
    """A leased shard stays, one that is marked too; one that a live job is coming to goes last."""
    paths = fill(tmp_path, ["a.tar", "b.tar", "c.tar", "d.tar"])
    put_file(tmp_path, keep_mark_of(paths[1]))
    plan = usage_hints.PlanFile(str(tmp_path))
    plan.write({"c.tar": time.time() + 5})
    with open(paths[0], "rb") as reader:
        assert locks.lease(reader.fileno())
        assert cleanup.keep_most_recent_files(tmp_path, maxfiles=3) == paths[3:]
        assert cleanup.keep_most_recent_files(tmp_path, maxfiles=0) == paths[2:3]
    plan.close()
    assert cleanup.keep_most_recent_files(tmp_path, maxfiles=0) == paths[:1]
    assert left(tmp_path) == [".wids/tables/b.tar.keep", "b.tar"]


def test_what_killed_processes_left_is_swept(tmp_path):
    """Part files, plans and lock files without an owner, and tables without a shard go; those of live ones stay."""
    [path] = fill(tmp_path, ["a.tar"])
    for name in ("a.tar.1-0123abcd.part", "7-0123abcd.plan", "gone.tar.lock", "tables/gone.tar.keep"):
        put_file(tmp_path / ".wids", name, b"{}")
    put_table(tmp_path / "gone.tar", 10)
    with atomic.part_file(staging_of(path)) as (part, _):
        assert cleanup.keep_most_recent_files(tmp_path) == []
        assert files_in(tmp_path) == [os.path.relpath(part, tmp_path), ".wids/tables/a.tar.widx", "a.tar"]
    assert not (tmp_path / ".wids" / "gone.tar.lock").exists()


def test_debug_says_what_goes(tmp_path, caplog):
    """As in the original, files are deleted with ``debug`` too; each is a warning, which is seen by default."""
    paths = fill(tmp_path, ["a.tar", "b.tar", "c.tar"])
    for given, path in ((tmp_path / "*.tar", paths[0]), (tmp_path, paths[1])):
        assert cleanup.keep_most_recent_files(given, maxfiles=2 - paths.index(path), debug=True) == [path]
        assert f"deleted {path}" in caplog.records[-1].getMessage()
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2


def test_a_dry_run_only_says_what_would_go(tmp_path, caplog):
    """Nothing is deleted; the paths come back and are logged."""
    caplog.set_level(logging.INFO, logger="wids")
    paths = fill(tmp_path, ["a.tar", "b.tar"])
    for given in (tmp_path / "*.tar", tmp_path):
        assert cleanup.keep_most_recent_files(given, maxfiles=1, dry_run=True) == paths[:1]
    assert left(tmp_path) == ["a.tar", "b.tar"]
    messages = [record.getMessage() for record in caplog.records]
    assert [f"would delete {paths[0]} (10 B)" in message for message in messages] == [True, True]


@pytest.mark.parametrize("form", ["str", "path", "home", "magic name"])
def test_a_directory_stands_for_all_its_files(tmp_path, monkeypatch, form):
    """As a str or path-like, with ``~``, and with letters in its name that mean something in a pattern."""
    directory = tmp_path / ("x[1]*" if form == "magic name" else "x")
    fill(directory, ["a", "b", "c"])
    monkeypatch.setenv("HOME", str(tmp_path))
    given = {"str": str(directory), "path": directory, "home": "~/x", "magic name": str(directory)}[form]
    cleanup.keep_most_recent_files(given, maxfiles=1)
    assert left(directory) == ["c"]


def test_a_pattern_without_matches_is_nothing_to_do(tmp_path):
    """A directory that does not exist (yet), and an empty one."""
    assert cleanup.keep_most_recent_files(str(tmp_path / "none" / "*.tar")) == []
    assert cleanup.keep_most_recent_files(tmp_path) == []


@pytest.mark.parametrize("call", ["lstat", "unlink"])
def test_files_that_vanish_meanwhile_are_not_missed(tmp_path, monkeypatch, call):
    """Another cleaner took a file between the listing and the look at it, or the deletion: the rest goes on."""
    fill(tmp_path, ["a.tar", "b.tar", "c.tar"])
    real = getattr(os, call)

    def racing(path, *args, **options):
        if str(path).endswith("b.tar"):
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
        return real(path, *args, **options)

    monkeypatch.setattr(cleanup.os, call, racing)
    cleanup.keep_most_recent_files(str(tmp_path / "*.tar"), maxfiles=0)
    assert left(tmp_path) == []


def test_a_file_that_cannot_be_deleted_does_not_keep_the_rest(tmp_path, monkeypatch, caplog):
    """It stays, is logged, and is not among those returned; the bound is kept by others."""
    paths = fill(tmp_path, ["a.tar", "b.tar", "c.tar"])
    real = os.unlink

    def refusing(path, *args, **options):
        if str(path) == paths[0]:
            raise PermissionError(13, "not yours", path)
        real(path, *args, **options)

    monkeypatch.setattr(cleanup.os, "unlink", refusing)
    assert cleanup.keep_most_recent_files(str(tmp_path / "*.tar"), maxfiles=1) == paths[1:]
    assert left(tmp_path) == ["a.tar"]
    assert any("a.tar: cannot be deleted" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("pattern", ["c", "c/*"])
def test_a_dataset_lets_go_of_what_it_does_not_read(tmp_path, set_limits, pattern):
    """A shard that is open and not being read is given up for the cleaner; read again, it is fetched again."""
    set_limits(limits, heard_seconds=60.0)  # as long as it takes on this machine
    write_index(tmp_path / "data", (2, 2))
    with serve(tmp_path / "data") as server:
        dataset = wids.ShardListDataset(
            f"{server.url}/index.json", cache_dir=tmp_path / "c", lru_size=1, early_reads=False
        )
        assert dataset[0][".cls"] == 0
        assert len(cleanup.keep_most_recent_files(tmp_path / pattern, maxsize=0)) == 1
        assert not list((tmp_path / "c").rglob("*.widx"))
        assert dataset[1][".cls"] == 1
        assert [dataset[i][".cls"] for i in (3, 0)] == [3, 0]
        assert server.requests.count("/s0.tar") == 2


# --- the background process


@pytest.fixture
def started():
    """Processes to end, whatever becomes of the test."""
    processes = []
    yield processes
    for process in processes:
        process.kill()
        process.join(PATIENCE_SECONDS)


def is_alive(pid):
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_background_process_cleans_until_terminated(tmp_path, monkeypatch, started, method):
    """Under each start method it cleans at once and then again and again; terminate() ends it."""
    monkeypatch.setattr(multiprocessing, "Process", multiprocessing.get_context(method).Process)
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda: method)
    fill(tmp_path, ["a.tar", "b.tar"])
    process = cleanup.create_cleanup_background_process(tmp_path / "*.tar", maxfiles=1, every=0.05)
    started.append(process)
    wait_until(lambda: left(tmp_path) == ["b.tar"])
    fill(tmp_path, ["old.tar"])
    wait_until(lambda: left(tmp_path) == ["b.tar"])
    assert process.daemon
    process.terminate()
    process.join(PATIENCE_SECONDS)
    assert process.exitcode == -signal.SIGTERM


def test_background_process_ignores_the_program_s_signal_handlers(tmp_path, started):
    """A forked cleaner neither runs the program's SIGTERM handler nor ends at the terminal's Ctrl-C."""
    before = signal.signal(signal.SIGTERM, lambda *_: (tmp_path / "handled").write_text(""))
    try:
        context = multiprocessing.get_context("fork")
        process = context.Process(target=cleanup._clean_forever, args=(str(tmp_path / "*.tar"), 0, 0, 0.05))
        process.start()
        started.append(process)
    finally:
        signal.signal(signal.SIGTERM, before)
    wait_until((tmp_path / ".cleanup.lock").exists)
    os.kill(process.pid, signal.SIGINT)
    fill(tmp_path, ["a.tar"])
    wait_until(lambda: left(tmp_path) == [])
    process.terminate()
    process.join(PATIENCE_SECONDS)
    assert process.exitcode == -signal.SIGTERM
    assert not (tmp_path / "handled").exists()


class Slow(multiprocessing.get_context("fork").Process):
    """A process that begins when its SIGTERM has come."""

    def run(self):
        """Wait for the signal, held back or swallowed."""
        tick = threading.Event()
        while signal.SIGTERM not in signal.sigpending() and not swallowed:
            tick.wait(0.01)
        super().run()


swallowed = []


def test_background_process_may_be_terminated_at_once(tmp_path, monkeypatch, started):
    """Before it has handlers of its own, in a program whose handler swallows the signal: it ends all the same."""
    monkeypatch.setattr(multiprocessing, "Process", Slow)
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda: "fork")
    before = signal.signal(signal.SIGTERM, lambda *_: swallowed.append(1))
    try:
        process = cleanup.create_cleanup_background_process(tmp_path, every=0.02)
        started.append(process)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
        process.terminate()
        process.join(PATIENCE_SECONDS)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert process.exitcode == -signal.SIGTERM


PARENT = """
import multiprocessing, os, signal, sys
from wids.core.cache.cleanup import create_cleanup_background_process

def pause():
    signal.pause()

if __name__ == "__main__":
    multiprocessing.set_start_method({method!r})
    cleaner = create_cleanup_background_process({directory!r}, every=3600)
    pids = [cleaner.pid]
    if {has_sibling}:
        # It holds copies of all descriptors of this process, also of those that say that it lives.
        sibling = multiprocessing.Process(target=pause)
        sibling.start()
        pids.append(sibling.pid)
    print(*pids, flush=True)
    {end}
"""


@pytest.mark.parametrize(
    ("method", "end", "has_sibling"),
    [
        ("fork", "kill", False),
        ("fork", "kill", True),
        ("spawn", "kill", False),
        ("forkserver", "kill", False),
        ("fork", "exit", False),
    ],
)
def test_background_process_ends_with_its_parent(tmp_path, method, end, has_sibling):
    """By kill -9, also when a sibling outlives the parent, and at the program's ordinary end."""
    script = tmp_path / "program.py"
    (tmp_path / "cache").mkdir()
    last = "signal.pause()" if end == "kill" else "pass"
    script.write_text(
        textwrap.dedent(PARENT).format(
            method=method, directory=str(tmp_path / "cache"), has_sibling=has_sibling, end=last
        )
    )
    parent = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": ROOT}
    )
    pids = []
    try:
        pids = [int(word) for word in parent.stdout.readline().split()]
        if end == "kill":
            wait_until((tmp_path / "cache" / ".cleanup.lock").exists)
            assert is_alive(pids[0])
            parent.kill()
        assert parent.wait(PATIENCE_SECONDS) == (-signal.SIGKILL if end == "kill" else 0)
        wait_until(lambda: not is_alive(pids[0]))
        assert all(map(is_alive, pids[1:]))
    finally:
        parent.kill()
        parent.wait(PATIENCE_SECONDS)
        parent.stdout.close()
        for pid in pids[1:]:
            os.kill(pid, signal.SIGKILL)


def test_a_directory_that_does_not_exist_yet_is_waited_for(tmp_path, started):
    """It is not made, neither by its name nor by a pattern; cleaning begins when it is there."""
    for pattern in (tmp_path / "one", tmp_path / "two" / "*.tar"):
        started.append(cleanup.create_cleanup_background_process(pattern, maxfiles=1, every=0.02))
    assert os.listdir(tmp_path) == []
    fill(tmp_path / "one", ["a.tar", "b.tar"])
    fill(tmp_path / "two", ["a.tar", "b.tar"])
    for name in ("one", "two"):
        wait_until(lambda name=name: left(tmp_path / name) == ["b.tar"])
    wait_until(lambda: all((tmp_path / name / ".cleanup.lock").exists() for name in ("one", "two")))
    assert sorted(os.listdir(tmp_path)) == ["one", "two"]


def test_two_cleaners_take_turns(tmp_path, started):
    """The second one waits without ending, whatever the first one's pattern, and takes over when that is killed."""
    first = cleanup.create_cleanup_background_process(tmp_path / "*.tar", maxfiles=2, every=0.02)
    started.append(first)
    wait_until(lambda: is_locked(tmp_path))
    second = cleanup.create_cleanup_background_process(tmp_path, maxfiles=1, every=0.02)
    started.append(second)
    fill(tmp_path, ["a.tar", "b.tar", "c.tar"])
    wait_until(lambda: left(tmp_path) == ["b.tar", "c.tar"])
    put_shard(tmp_path, "d.tar", 10, used=1_000_003)
    wait_until(lambda: left(tmp_path) == ["c.tar", "d.tar"])
    assert second.is_alive()
    first.kill()
    wait_until(lambda: left(tmp_path) == ["d.tar"])


def is_locked(directory):
    """Whether some process holds a directory's cleanup lock."""
    path = directory / ".cleanup.lock"
    if not path.exists():
        return False
    with open(path, "rb") as file:
        return not cleanup_lock_is_free(file.fileno())


def cleanup_lock_is_free(fd):
    """Try for it and give it back."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# --- the loop's steps, one by one


def test_turn_without_locks_cleans_all_the_same(tmp_path, monkeypatch, caplog):
    """A file system without locks, or a directory that cannot be written: two cleaners merely look twice."""
    caplog.set_level(logging.DEBUG, logger="wids")

    def refuse(*args, **options):
        raise PermissionError(13, "read-only")

    monkeypatch.setattr(locks, "_open", refuse)
    assert cleanup._Turn(str(tmp_path)).take()
    assert "read-only" in caplog.text or "has no lock" in caplog.text


def test_turn_is_kept_and_excludes(tmp_path, caplog):
    """Once taken it stays; another one is refused until then."""
    caplog.set_level(logging.DEBUG, logger="wids")
    with locks.acquire(str(tmp_path / ".cleanup.lock")):
        turn = cleanup._Turn(str(tmp_path))
        assert not turn.take()
        assert "another process cleans" in caplog.text
    assert turn.take()
    assert turn.take()
    assert not cleanup._Turn(str(tmp_path / "*.tar")).take()


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("d", "d"),
        ("d/*.tar", "d"),
        ("*/*.tar", ""),
        ("d/[x]", "d/[x]"),
        ("d/f", "d"),
        ("none", None),
        ("none/*.tar", None),
    ],
)
def test_the_lock_lies_where_all_matches_do(tmp_path, pattern, expected):
    """In the directory itself, or the last part of the path before one that is a pattern; None where there is none."""
    fill(tmp_path / "d", ["f"])
    (tmp_path / "d" / "[x]").mkdir()
    found = cleanup._directory_of(str(tmp_path / pattern))
    assert found == (None if expected is None else str(tmp_path / expected).rstrip("/"))


def test_the_lock_of_a_bare_pattern_lies_here(tmp_path, monkeypatch):
    """``*.tar`` is in the working directory."""
    monkeypatch.chdir(tmp_path)
    assert cleanup._directory_of("*.tar") == "."


def test_trouble_in_one_round_leaves_the_next(tmp_path, monkeypatch, caplog):
    """An error of the file system is logged, and the loop goes on until the parent is gone."""
    rounds = iter([True, True, False])

    def fail(*args, **options):
        raise OSError(5, "the disk is in trouble")

    monkeypatch.setattr(cleanup, "clean", fail)
    monkeypatch.setattr(cleanup, "_wait_with_parent", lambda *args: next(rounds))
    monkeypatch.setattr(cleanup.signal, "signal", lambda *args: None)
    cleanup._clean_forever(str(tmp_path), 1, 1, 0.0)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    assert "the disk is in trouble" in caplog.text
    assert next(rounds, None) is None


def test_a_round_without_a_turn_cleans_nothing(tmp_path, monkeypatch):
    """Where the directory does not exist, or another one cleans it."""
    monkeypatch.setattr(cleanup, "_wait_with_parent", lambda *args: False)
    monkeypatch.setattr(cleanup.signal, "signal", lambda *args: None)
    cleanup._clean_forever(str(tmp_path / "none" / "*.tar"), 0, 0, 0.0)
    fill(tmp_path, ["a.tar"])
    with locks.acquire(str(tmp_path / ".cleanup.lock")):
        cleanup._clean_forever(str(tmp_path), 0, 0, 0.0)
    assert left(tmp_path) == ["a.tar"]


def test_the_wait_ends_with_the_round_or_the_parent(monkeypatch, set_limits):
    """True when the time is over; False when the sentinel speaks, or the parent has another number than it had."""
    set_limits(limits, watch_seconds=0.001)
    now = time.monotonic()
    assert cleanup._wait_with_parent(now - 1, os.getppid())
    assert cleanup._wait_with_parent(now + 0.02, os.getppid())
    assert time.monotonic() >= now + 0.02
    assert not cleanup._wait_with_parent(now + 3600, -1)

    class Parent:
        sentinel, _end = os.pipe()

    monkeypatch.setattr(cleanup.multiprocessing, "parent_process", Parent)
    assert cleanup._wait_with_parent(now - 1, os.getppid())
    os.close(Parent._end)
    assert not cleanup._wait_with_parent(now + 3600, os.getppid())
    os.close(Parent.sentinel)


# --- survey


def test_survey_of_a_shard(tmp_path):
    """What an index says of it: url as given, samples, bytes, and its checksums if asked for."""
    path = write_shard(tmp_path / "s.tar", 3)
    data = Path(path).read_bytes()
    md5 = hashlib.md5(data).hexdigest()
    assert survey_shard(path) == {"url": path, "nsamples": 3, "filesize": len(data), **digests(data)}
    assert survey_shard(path, checksums=()) == {"url": path, "nsamples": 3, "filesize": len(data)}
    assert survey_shard(path, rule=lambda name: ("all", "." + name), checksums=())["nsamples"] == 1
    assert survey_shard(path, group="key", checksums=())["nsamples"] == 3
    with serve(tmp_path) as server:
        assert survey_shard(f"{server.url}/s.tar")["md5sum"] == md5
    assert survey_shard(f"pipe:cat {path}", session=Session(allow_pipe=True))["md5sum"] == md5
    assert os.listdir(tmp_path) == ["s.tar"]


def test_one_directory_by_two_names_is_cleaned(tmp_path):
    """A pattern that finds a cache directory twice, through a link, is no reason to wait or to fail."""
    (tmp_path / "cache1").mkdir()
    (tmp_path / "cache2").symlink_to("cache1")
    for name in "abc":
        put_shard(tmp_path / "cache1", f"{name}.tar", 1000)
    gone = call_in_child(wids.keep_most_recent_files, str(tmp_path / "cache*" / "*.tar"), 2000)
    assert len(names_in(tmp_path / "cache1")) == 2, gone

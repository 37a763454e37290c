"""Who holds a lock on a file: as this system tells it, as Linux writes it down, and as macOS is asked."""

import contextlib
import os
import shutil
import time
from types import SimpleNamespace

import pytest

from tests.support.cache_dirs import put_file
from tests.support.children import child, receive
from wids.core.files import holders, locks, system

needs_proc = pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="this system has no /proc/locks")
needs_tools = pytest.mark.skipif(
    not (shutil.which("lsof") and shutil.which("ps")), reason="the programs lsof and ps are not installed"
)


def hold(connection, paths):
    """Lease files until the other end closes."""
    with contextlib.ExitStack() as stack:
        assert all(locks.lease(stack.enter_context(open(path, "rb")).fileno()) for path in paths)
        connection.send("held")
        connection.recv()


@pytest.fixture
def files(tmp_path):
    """Three files."""
    return [put_file(tmp_path, f"{tag}.tar") for tag in "abc"]


@pytest.fixture(params=[pytest.param("proc", marks=needs_proc), pytest.param("tools", marks=needs_tools)])
def _way(request, monkeypatch):
    """Each way to ask a system, on a narrow terminal."""
    monkeypatch.setenv("COLUMNS", "60")
    if request.param == "tools":
        monkeypatch.setattr(holders, "_PROC", "/nonexistent")


@pytest.mark.usefixtures("_way")
def test_processes_that_lease_files_are_named(files):
    """Each with its number, its program, when it was started, and its files; a file that is free has none."""
    began = time.time()
    with child(hold, files[:2]) as (one, first), child(hold, files[1:2]) as (two, second):
        assert [receive(first), receive(second)] == ["held", "held"]
        found = {holder.pid: holder for holder in holders.find_holders([*files, files[0] + ".gone"])}
        assert {pid: holder.files for pid, holder in found.items()} == {one.pid: files[:2], two.pid: files[1:2]}
        for holder in found.values():
            # The directory of the interpreter may fill the line.
            assert "python" in holder.program or len(holder.program) == 60
            assert len(holder.program) <= 60
            assert abs(holder.started_seconds - began) < 3600
            assert not holder.is_orphan
    assert holders.find_holders(files) == []
    assert holders.find_holders([]) == []


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """A /proc by hand: ``add(pid, parent, command, path)`` is a process that has a file locked."""
    home = tmp_path / "proc"
    home.mkdir()
    (home / "stat").write_text("cpu 1 2 3\nbtime 1000000\nprocesses 5\n")
    (home / "locks").touch()
    monkeypatch.setattr(holders, "_PROC", str(home))
    ticks = os.sysconf("SC_CLK_TCK")

    def add(pid, parent, command, path, line="{0}: FLOCK  ADVISORY  READ {1} {2:02x}:{3:02x}:{4} 0 EOF\n"):
        status = os.stat(path)
        with open(home / "locks", "a") as file:
            file.write(line.format(1, pid, os.major(status.st_dev), os.minor(status.st_dev), status.st_ino))
        (home / str(pid)).mkdir(exist_ok=True)
        fields = ["S", str(parent), *["0"] * 17, str(50 * ticks), "0"]
        (home / str(pid) / "stat").write_text(f"{pid} (a (b) c) {' '.join(fields)}")
        (home / str(pid) / "cmdline").write_bytes(b"\0".join(map(os.fsencode, command)) + b"\0" * bool(command))

    return SimpleNamespace(home=home, add=add)


def test_a_process_without_a_parent_is_marked(proc, files):
    """Its parent is process 1: a loader's worker whose job was killed. The words say it; a name may have brackets."""
    proc.add(7, 1, ["python", "train.py"], files[0])
    proc.add(8, 7, [], files[1])
    [left, other] = holders.find_holders(files)
    assert (left.pid, left.is_orphan, left.started_seconds, other.is_orphan) == (7, True, 1000050.0, False)
    assert str(left).startswith("process 7 (python train.py), started 1970-01-")
    assert "parent is process 1" in str(left)
    assert (other.program, "parent" in str(other)) == ("a (b) c", False)


def test_what_is_no_lease_is_passed_over(proc, files):
    """A process that waits for a lock has none, nor has one with a lock of another kind, or on another file."""
    proc.add(7, 1, ["a"], files[0], "1: -> FLOCK  ADVISORY  WRITE {1} {2:02x}:{3:02x}:{4} 0 EOF\n")
    proc.add(8, 1, ["a"], files[0], "1: POSIX  ADVISORY  READ {1} {2:02x}:{3:02x}:{4} 0 EOF\n")
    proc.add(9, 1, ["a"], files[1])
    proc.add(10, 1, ["a"], files[2], "garbage\n")
    assert holders.find_holders(files[:1]) == []
    assert holders.find_holders([files[0], files[2]]) == []


def test_command_lines_show_no_secrets(proc, files):
    """What a log gets is one line, short, without the signature of a URL."""
    proc.add(7, 2, ["python", "x\ny", "https://user:word@h/a.tar?sig=secret", "long" * 40], files[0])
    [found] = holders.find_holders(files)
    assert found.program.startswith("python x?y https://h/a.tar longlong")
    assert len(found.program) == 60


def test_a_process_that_has_just_gone(proc, files):
    """Nothing is known of it but its number."""
    proc.add(7, 2, ["python"], files[0])
    shutil.rmtree(proc.home / "7")
    [found] = holders.find_holders(files)
    assert str(found) == "process 7"
    (proc.home / "locks").chmod(0)
    if system.user_id():
        assert holders.find_holders(files) == []


def test_without_the_programs_nobody_is_named(files, monkeypatch):
    """Where there is neither /proc nor lsof, there is no answer, and no error."""
    monkeypatch.setattr(holders, "_PROC", "/nonexistent")
    monkeypatch.setenv("PATH", "/nonexistent")
    with open(files[0], "rb") as file:
        assert locks.lease(file.fileno())
        assert holders.find_holders(files) == []

"""Files that one process makes and the others map."""

import contextlib
import errno
import os

import pytest

from tests.support.children import child, kill
from wids.core.files import system
from wids.core.files.shared_files import SharedFiles
from wids.errors import CacheError, OutputError

KEY = "0" * 64


@pytest.fixture
def files(tmp_path):
    """Files in a directory that does not exist yet."""
    return SharedFiles(str(tmp_path / "cache"), ".thing")


def writes(data, made=None):
    """A function that makes a file."""

    def make(_, fd):
        system.write_all(fd, data, 0)
        if made is not None:
            made.append(os.getpid())

    return make


def content(file):
    """Its bytes."""
    return bytes(file.data)


def refuse(*_):
    """Make nothing."""
    raise AssertionError("there is a file")


def test_made_once(files, tmp_path):
    """The first look makes it, the next ones map it; it is its user's alone, and nothing else is left."""
    made = []
    assert files.get(KEY, writes(b"x", made), content) == b"x"
    assert files.get(KEY, refuse, content) == b"x"
    assert len(made) == 1
    assert files.find(KEY, content) == b"x"
    assert os.stat(files.path(KEY)).st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path / "cache" / ".wids") == ["indexes"]
    assert files.get(KEY, writes(b"y"), content, is_new=True) == b"y"


def make_and_tell(connection, directory):
    """Say ready, wait for the others, ask for the file, and say whether this process made it."""
    made = []
    connection.send("ready")
    connection.recv()
    found = SharedFiles(directory, ".thing").get(KEY, writes(b"x", made), content)
    connection.send((found, len(made)))


def test_eight_processes_make_it_once(tmp_path):
    """One makes it while the others wait."""
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(child(make_and_tell, str(tmp_path)))[1] for _ in range(8)]
        assert [connection.recv() for connection in connections] == ["ready"] * 8
        for connection in connections:
            connection.send("go")
        answers = [connection.recv() for connection in connections]
    assert [found for found, _ in answers] == [b"x"] * 8
    assert sum(made for _, made in answers) == 1


def write_half(connection, directory):
    """Begin to make the file, and wait for the end."""

    def make(_, fd):
        os.write(fd, b"half")
        connection.send("half")
        connection.recv()

    SharedFiles(directory, ".thing").get(KEY, make, content)


def test_a_maker_that_is_killed(files, tmp_path):
    """The next process makes the file, waits for nobody, and deletes what the other one left."""
    with child(write_half, str(tmp_path / "cache")) as (process, connection):
        assert connection.recv() == "half"
        assert [name.endswith((".part", ".lock")) for name in os.listdir(tmp_path / "cache" / ".wids")].count(True) == 2
        kill(process)
    assert files.get(KEY, writes(b"x"), content) == b"x"
    assert os.listdir(tmp_path / "cache" / ".wids") == ["indexes"]


def test_a_full_disk(files, tmp_path):
    """There is no file, nothing of it is left, and the caller keeps in memory what it would hold."""

    def make(_, fd):
        os.write(fd, b"half")
        raise OSError(errno.ENOSPC, "no space left")

    assert files.get(KEY, make, content) is None
    assert files.open(KEY) is None
    assert os.listdir(tmp_path / "cache" / ".wids") == ["indexes"]
    assert files.get(KEY, writes(b"x"), content) == b"x"


def test_a_directory_that_cannot_be_made(tmp_path):
    """Nothing is raised; what is made stays with the caller."""
    (tmp_path / "file").write_bytes(b"")
    files = SharedFiles(str(tmp_path / "file" / "cache"), ".thing")
    assert files.get(KEY, writes(b"x"), content) is None
    assert not files.is_used()
    with files.trying(KEY) as is_alone:
        assert is_alone


@pytest.mark.parametrize("error", [OutputError("x"), ZeroDivisionError()])
def test_errors_of_the_maker(files, tmp_path, error):
    """They are the caller's; no file is published."""

    def make(*_):
        raise error

    with pytest.raises(type(error)):
        files.get(KEY, make, content)
    assert files.open(KEY) is None
    assert os.listdir(tmp_path / "cache" / ".wids") == ["indexes"]


def test_a_maker_that_needs_no_file(files):
    """It says so, or the cache says that it has no room."""
    assert files.get(KEY, lambda *_: False, content) is None

    def make(*_):
        raise CacheError("full")

    assert files.get(KEY, make, content) is None
    assert files.open(KEY) is None


def test_a_damaged_file_is_made_again(files):
    """Once; one that is as bad again is no file, without an end of tries."""
    made = []

    def take(file):
        if file.data != b"good":
            raise ValueError("bad")
        return content(file)

    assert files.get(KEY, writes(b"bad", made), take) is None
    assert len(made) == 1
    files.put(KEY, b"bad")
    assert files.find(KEY, take) is None
    assert files.open(KEY) is None
    files.put(KEY, b"bad")
    assert files.get(KEY, writes(b"good"), take) == b"good"
    assert files.get(KEY, writes(b"other"), lambda file: content(file) if file.data == b"other" else None) == b"other"


def test_another_user_s_file_is_not_looked_at(files, monkeypatch):
    """Whoever may write to the directory could have put it there."""
    files.put(KEY, b"x")
    monkeypatch.setattr(system, "user_id", lambda: -1)
    assert files.open(KEY) is None


def test_files_that_nobody_opens_go_in_the_end(files):
    """A month after the last use, when another one is written; a use in between counts, another's files stay."""
    used, unused = "1" * 64, "2" * 64
    files.put(used, b"x")
    files.put(unused, b"x")
    stranger = os.path.join(os.path.dirname(files.path(KEY)), "mine.txt")
    with open(stranger, "w"):
        pass
    for path in (files.path(used), files.path(unused), stranger):
        os.utime(path, (1, 1))
    assert files.open(used) is not None
    files.put(KEY, b"x")
    assert files.open(unused) is None
    assert files.open(used) is not None
    assert os.path.exists(stranger)


def test_one_at_a_time(files):
    """While a file is made, no other process may; then one may."""
    with files.alone(KEY), files.trying(KEY) as is_alone:
        assert not is_alone
    with files.trying(KEY) as is_alone:
        assert is_alone


def test_a_file_under_another_name_is_not_used(files, tmp_path):
    """Other users of the directory may rename it, of the same kind or of another; it is made again."""
    other, kind = "1" * 64, SharedFiles(str(tmp_path / "cache"), ".other")
    files.put(KEY, b"x")
    os.rename(files.path(KEY), files.path(other))
    assert files.open(other) is None
    assert files.get(other, writes(b"y"), content) == b"y"
    os.rename(files.path(other), kind.path(other))
    assert kind.open(other) is None

"""Directories for what is there only while something runs: gone at the end, or when the next one is made."""

import os
import tempfile

import pytest

from tests.support.children import child, kill, receive, stop_here
from wids.core.files import system, tempdirs
from wids.errors import CacheError


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """The system's temporary directory is the test's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def hold(connection):
    """Make a directory with a file in it, say where it is, and go no further."""
    with tempdirs.directory("verify") as place:
        with open(os.path.join(place, "x.tar"), "w") as file:
            file.write("half")
        connection.send(place)
        stop_here(connection)


def test_it_is_gone_at_the_end(tmp_path):
    """With all that is in it, also when the block fails; it is its user's alone."""
    with tempdirs.directory("verify") as place:
        assert os.path.basename(place).startswith("wids-verify.")
        assert os.stat(place).st_mode & 0o777 == 0o700
        open(os.path.join(place, "x"), "w").close()
    assert os.listdir(tmp_path) == []
    with pytest.raises(KeyboardInterrupt), tempdirs.directory("verify"):
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []


def test_one_that_is_in_use_stays_and_one_of_a_killed_process_goes(tmp_path):
    """The next one that needs a directory removes what nobody holds, and nothing else."""
    (tmp_path / "wids-verify-old").mkdir()
    with child(hold) as (process, connection):
        place = receive(connection)
        assert receive(connection) == "here"
        with tempdirs.directory("survey"):
            assert os.path.exists(os.path.join(place, "x.tar"))
        kill(process)
    assert os.path.exists(os.path.join(place, "x.tar"))
    with tempdirs.directory("survey"):
        assert not os.path.exists(place)
    assert os.listdir(tmp_path) == ["wids-verify-old"]


def test_one_killed_before_its_directory_was_made_leaves_nothing(tmp_path):
    """A mark alone goes too."""
    (tmp_path / "wids-pack.12-0123abcd.part").touch()
    with tempdirs.directory("pack"):
        pass
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("answer", [None, False])
def test_without_locks_nothing_is_swept(tmp_path, monkeypatch, answer):
    """Where nobody can tell whether it is in use, it stays."""
    (tmp_path / "wids-pack.12-0123abcd").mkdir()
    (tmp_path / "wids-pack.12-0123abcd.part").touch()
    monkeypatch.setattr(system, "try_lock", lambda _, is_shared: answer)
    tempdirs.sweep(str(tmp_path))
    assert len(os.listdir(tmp_path)) == 2


def test_those_of_others_stay(tmp_path, monkeypatch):
    """Another user's are not touched, and a link is not followed."""
    (tmp_path / "wids-pack.12-0123abcd.part").touch()
    (tmp_path / "precious").touch()
    os.symlink(tmp_path / "precious", tmp_path / "wids-pack.13-0123abcd.part")
    user = system.user_id()
    monkeypatch.setattr(system, "user_id", lambda: user + 1)
    tempdirs.sweep(str(tmp_path))
    monkeypatch.undo()
    tempdirs.sweep(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == ["precious", "wids-pack.13-0123abcd.part"]


def test_a_thread_that_writes_on_is_cleaned_up_after_later(tmp_path, monkeypatch):
    """What cannot be removed at the end keeps its mark, and goes the next time."""
    with tempdirs.directory("verify") as place:
        monkeypatch.setattr(tempdirs.shutil, "rmtree", lambda *_, **__: None)
    monkeypatch.undo()
    assert os.path.exists(place)
    tempdirs.sweep(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_no_place_for_it_is_one_error(tmp_path, monkeypatch):
    """It says what to do."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(CacheError, match=r"TMPDIR"), tempdirs.directory("verify"):
        pass

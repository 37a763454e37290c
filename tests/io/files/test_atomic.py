"""Part files: a signal may come at any moment, and none is left by that."""

import errno
import os

import pytest

from wids.errors import CacheError
from wids.files import atomic


@pytest.mark.parametrize("where", [(os, "open"), (atomic.system, "try_lock"), (os, "fstat")], ids=lambda pair: pair[1])
def test_a_signal_while_a_part_file_is_made_leaves_none(tmp_path, monkeypatch, where):
    """It raises when a call of the system returns, which has done its work."""
    module, name = where
    real = getattr(module, name)

    def then_signal(*arguments, **options):
        result = real(*arguments, **options)
        if name == "open":
            opened.append(result)
        raise KeyboardInterrupt

    opened = []
    monkeypatch.setattr(module, name, then_signal)
    with pytest.raises(KeyboardInterrupt), atomic.part_file(str(tmp_path / "a.tar")):
        raise AssertionError("made")
    monkeypatch.undo()
    for fd in opened:
        os.close(fd)
    assert os.listdir(tmp_path) == []


def test_a_part_file_of_the_same_name_is_not_deleted(tmp_path, monkeypatch):
    """Chance gave another process the same name: that file is its own."""
    monkeypatch.setattr(atomic.secrets, "token_hex", lambda _: "00000000")
    with atomic.part_file(str(tmp_path / "a.tar")) as (part, _):
        with pytest.raises(CacheError, match="cannot be made"), atomic.part_file(str(tmp_path / "a.tar")):
            raise AssertionError("made")
        assert os.listdir(tmp_path) == [os.path.basename(part)]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("code", "advice"),
    [(errno.ENOSPC, r"free space or inodes \(df -i\)"), (errno.EROFS, r"is the directory writable\?")],
)
def test_a_part_file_that_cannot_be_made(tmp_path, monkeypatch, code, advice):
    """The error says what to do: a file system may be out of inodes, too."""

    def refused(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(CacheError, match=rf"cannot be made .*; {advice}"), atomic.part_file(str(tmp_path / "a")):
        pass

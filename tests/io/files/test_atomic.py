"""Part files that cannot be made; `tests/faults/test_signals.py` has those that are interrupted."""

import errno
import os

import pytest

from wids.core.files import atomic
from wids.errors import CacheError


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

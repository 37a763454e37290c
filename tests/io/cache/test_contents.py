"""What is known of a cache directory without listing it, against listing it."""

import contextlib
import errno
import os
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cache_dirs import put_file, put_shard, put_table, table_of
from tests.support.children import call_in_child
from wids.core.cache import limits
from wids.core.cache.contents import Contents, LoggedChange
from wids.core.cache.directory import CacheDirectory
from wids.core.files import system


@pytest.fixture
def listed(monkeypatch):
    """The directories that were listed."""
    found = []
    real = CacheDirectory.inventory
    monkeypatch.setattr(CacheDirectory, "inventory", lambda self: found.append(self.path) or real(self))
    return found


def refreshed(home, contents=None):
    """The contents of a directory, brought up to date."""
    contents = Contents(CacheDirectory(str(home))) if contents is None else contents
    CacheDirectory(str(home)).make()
    contents.refresh()
    return contents


def publish(contents, home, name, size=10, used=1_000_000):
    """Publish a shard as a cache does."""
    with contents.changing() as note:
        put_shard(home, name, size, used=used)
        note(LoggedChange(name, size))


def delete(contents, home, name):
    """Delete a shard as a cache does."""
    with contents.changing() as note:
        os.unlink(os.path.join(home, name))
        note(LoggedChange(name, 0))
    os.unlink(table_of(os.path.join(home, name)))


def raise_after(function, *args):
    """Be interrupted once something is done."""
    function(*args)
    raise KeyboardInterrupt


def refuse(*_):
    """What a full disk says."""
    raise OSError(errno.ENOSPC, "No space left on device")


def names_by_use(contents):
    """All names, least recently used first."""
    return [entry.name for entry in contents.shards.oldest_first()]


def test_changes_of_others_are_known_without_listing(tmp_path, listed):
    """A directory is listed once by each that asks; what others publish and delete comes from the log."""
    one, two = refreshed(tmp_path), refreshed(tmp_path)
    assert len(listed) == 2
    for number in range(5):
        publish(one, tmp_path, f"{number}.tar", used=1000 - number)
    delete(two, tmp_path, "3.tar")
    for contents in (one, two):
        contents.refresh()
        assert contents.used_bytes == 40
        assert names_by_use(contents) == ["4.tar", "2.tar", "1.tar", "0.tar"]
    assert len(listed) == 2


def test_a_shard_that_is_used_again_is_no_longer_the_oldest(tmp_path, listed):
    """Its table is touched, which no log says: its time is looked up when its turn comes."""
    for place, name in enumerate("abc"):
        put_shard(tmp_path, name, used=1000 + place)
    contents = refreshed(tmp_path)
    os.utime(table_of(tmp_path / "a"), (2000, 2000))
    assert names_by_use(contents) == ["b", "c", "a"]
    assert names_by_use(contents) == ["b", "c", "a"]
    assert len(listed) == 1


def test_only_the_shards_that_are_asked_for_are_looked_at(tmp_path, monkeypatch):
    """The first two of a hundred cost two looks, however often they are asked for."""
    for number in range(100):
        put_shard(tmp_path, f"{number:03d}.tar", used=1000 + number)
    contents = refreshed(tmp_path)
    looks = []
    real = os.stat
    monkeypatch.setattr(os, "stat", lambda path, **options: looks.append(path) or real(path, **options))
    for _ in range(3):
        found = contents.shards.oldest_first()
        assert [next(found).name for _ in range(2)] == ["000.tar", "001.tar"]
        found.close()
    assert len([path for path in looks if str(path).endswith(".widx")]) == 6


@pytest.mark.parametrize("change", ["a file comes", "a shard goes", "a shard goes, unnoted", "the log goes", "torn"])
def test_changes_that_the_log_does_not_tell_are_found(tmp_path, listed, change):
    """Users, cleaners of old files, a process that was killed before it wrote its line: the directory is listed."""
    contents, other = refreshed(tmp_path), Contents(CacheDirectory(str(tmp_path)))
    publish(contents, tmp_path, "a.tar")
    publish(contents, tmp_path, "b.tar")
    contents.refresh()
    before, log = len(listed), CacheDirectory(str(tmp_path)).changes
    if change == "a file comes":
        put_file(tmp_path, "mine")
    elif change == "a shard goes":
        os.unlink(tmp_path / "a.tar")
    elif change == "a shard goes, unnoted":
        with pytest.raises(KeyboardInterrupt), other.changing():
            raise_after(os.unlink, tmp_path / "a.tar")
    elif change == "the log goes":
        os.unlink(log)
    else:
        os.truncate(log, os.path.getsize(log) - 3)
    contents.refresh()
    assert contents.used_bytes == (10 if "goes" in change and change != "the log goes" else 20)
    assert len(listed) == before + 1
    contents.refresh()
    publish(contents, tmp_path, "c.tar")
    contents.refresh()
    assert len(listed) == before + 1


def test_a_directory_is_listed_again_now_and_then(tmp_path, listed, set_limits):
    """Every ten minutes: some file systems do not note the time of every change."""
    contents = refreshed(tmp_path)
    put_table(tmp_path / "gone.tar", 7)
    set_limits(limits, listed_again_seconds=-1.0)
    contents.refresh()
    assert len(listed) == 2
    assert not os.path.exists(table_of(tmp_path / "gone.tar"))


def test_the_log_stays_short(tmp_path, listed, set_limits):
    """It begins anew beyond a size, and the others list the directory once more."""
    set_limits(limits, max_log_bytes=2000)
    one, two = refreshed(tmp_path), refreshed(tmp_path)
    for number in range(100):
        publish(one, tmp_path, f"{number}.tar")
        one.refresh()
        assert os.path.getsize(CacheDirectory(str(tmp_path)).changes) < 2500
    two.refresh()
    assert (one.used_bytes, two.used_bytes) == (1000, 1000)
    assert len(listed) < 20


@pytest.mark.parametrize("trouble", ["killed", "disk full", "not readable", "its end not readable"])
def test_a_change_without_a_line_is_found_under_a_clock_that_stands_still(tmp_path, listed, monkeypatch, trouble):
    """Where the directory's time shows no change, either: the log itself says that a line is missing."""
    contents = refreshed(tmp_path)
    publish(contents, tmp_path, "a.tar")
    contents.refresh()
    before = os.stat(tmp_path).st_mtime_ns
    with contextlib.suppress(KeyboardInterrupt), monkeypatch.context() as patched:
        if trouble == "disk full":
            patched.setattr(system, "pwrite", refuse)
        if "readable" in trouble:
            whole = system.pread if "end" in trouble else refuse
            patched.setattr(system, "pread", lambda *args: whole(*args) if args[2] == 0 else refuse())
        with contents.changing() as note:
            put_shard(tmp_path, "b.tar")
            os.utime(tmp_path, ns=(before, before))
            if trouble == "killed":
                raise KeyboardInterrupt
            note(LoggedChange("b.tar", 10))
    contents.refresh()
    assert contents.used_bytes == 20
    assert len(listed) == 2
    publish(contents, tmp_path, "c.tar")
    contents.refresh()
    assert len(listed) == 2


def test_a_change_that_was_not_made_is_none(tmp_path, listed):
    """A shard of another user, which cannot be deleted: the directory need not be listed for it."""
    one, two = refreshed(tmp_path), refreshed(tmp_path)
    publish(one, tmp_path, "a.tar")
    with one.changing():
        pass
    publish(two, tmp_path, "b.tar")
    for contents in (one, two):
        contents.refresh()
        assert contents.used_bytes == 20
    assert len(listed) == 2


@pytest.mark.parametrize(
    "line",
    [b"10 0 ..%2Fmine.tar", b"10 0 %2Fmine.tar", b"10 0 a%00.tar", b"-10 0 a.tar", b"0 -1 a.tar", b"10", b"0 0 /"],
)
def test_a_line_that_no_cache_wrote(tmp_path, listed, line):
    """A name that is none, or lies elsewhere, would be opened or deleted; fewer bytes than none would hide others."""
    contents = refreshed(tmp_path)
    publish(contents, tmp_path, "a.tar")
    with open(CacheDirectory(str(tmp_path)).changes, "ab") as log:
        log.write(b"%d %s\n" % (os.stat(tmp_path).st_mtime_ns, line))
    contents.refresh()
    assert names_by_use(contents) == ["a.tar"]
    assert contents.used_bytes == 10
    assert len(listed) == 2


@pytest.mark.parametrize("kind", ["directory", "FIFO", "link"])
def test_a_log_that_cannot_be_written(tmp_path, listed, kind):
    """Where it is not a file that can be opened, the directory is listed for each use; a link is not followed."""
    home = tmp_path / "cache"
    home.mkdir()
    directory, own = CacheDirectory(str(home)), tmp_path / "own"
    directory.make()
    own.write_bytes(b"of the user")
    {"directory": os.mkdir, "FIFO": os.mkfifo, "link": lambda path: os.symlink(own, path)}[kind](directory.changes)
    contents = refreshed(home)
    publish(contents, home, "a.tar")
    contents.refresh()
    assert contents.used_bytes == 10
    assert len(listed) == 2
    assert own.read_bytes() == b"of the user"


def test_a_forked_copy_lists_the_directory_itself(tmp_path):
    """Another thread of the parent may have been in the middle of a change."""
    put_shard(tmp_path, "a.tar")
    contents = refreshed(tmp_path)
    contents.shards.bytes = 12345

    def count():
        contents.refresh()
        return contents.used_bytes

    assert call_in_child(count) == 10


names = st.sampled_from(["a.tar", "b.tar", "c\n.tar", os.fsdecode(b"\xe9 %2F.tar"), "d"])
steps = st.lists(
    st.tuples(
        st.sampled_from(["publish", "delete", "touch", "refresh", "remove", "foreign"]), names, st.integers(1, 9)
    ),
    max_size=30,
)


@given(steps, st.integers(0, 1))
def test_two_processes_always_know_what_is_there(story, asks):
    """Oracle: the directory itself, after each step, for two that change it in turn and one that only looks."""
    with tempfile.TemporaryDirectory() as home:
        directory = CacheDirectory(home)
        parties = [refreshed(home), refreshed(home), refreshed(home)]
        for number, (what, name, size) in enumerate(story):
            party, path = parties[number % 2], os.path.join(home, name)
            if what == "publish":
                publish(party, home, name, size, used=1000 + size)
            elif what == "delete" and os.path.exists(path):
                delete(party, home, name)
            elif what == "touch" and os.path.exists(table_of(path)):
                os.utime(table_of(path), (5000 + number, 5000 + number))
            elif what == "remove" and os.path.exists(path):
                os.unlink(path)
            elif what == "foreign":
                put_file(home, f"mine-{number}")
            elif what == "refresh":
                parties[asks].refresh()
            if what in ("remove", "foreign"):  # the clock that files are dated by may stand still for milliseconds
                os.utime(home, ns=(0, os.stat(home).st_mtime_ns + number))
        for contents in parties:
            contents.refresh()
            found = sorted(directory.inventory().entries, key=lambda entry: (entry.used_ns, entry.name))
            assert list(contents.shards.oldest_first()) == found
            assert contents.used_bytes == sum(entry.size_bytes for entry in found)

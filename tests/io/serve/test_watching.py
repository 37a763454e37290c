"""A cache directory is looked at while it is used: nothing is made or locked; what is not known is not said."""

import contextlib
import os
import time
from pathlib import Path

import pytest

from tests.support.cache_dirs import files_in, put_file, put_garbage, put_shard, table_of
from tests.support.clocks import set_limits
from wids.core.cache.directory import CacheDirectory
from wids.core.cache.space import Space
from wids.core.cache.usage_hints import PlanFile
from wids.core.files import atomic, holders, locks, system
from wids.errors import CacheError
from wids.tools.serve import watching
from wids.tools.serve.watching import CacheWatch


@pytest.fixture
def home(tmp_path):
    """A cache directory that does not exist yet."""
    return str(tmp_path / "cache")


def evict(space, name):
    """A shard goes as an evictor would have it."""
    [entry] = [entry for entry in space.directory.inventory().entries if entry.name == name]
    assert space.delete(entry)


def changes_of(look):
    """(name, whether it came, whether a cache noted it) of each change."""
    return [(change.name, change.has_come, change.is_noted) for change in look.changes]


def test_no_directory_is_an_empty_cache(home):
    """It is not made by looking, either."""
    found = CacheWatch(home).look()
    assert (found.exists, found.shards, found.used_bytes, found.shown, found.changes) == (False, 0, 0, [], [])
    assert found.free_bytes > 0
    assert not os.path.exists(home)


def test_a_file_is_no_cache(tmp_path):
    """It is an error that names it."""
    path = put_file(tmp_path, "file")
    with pytest.raises(CacheError, match=r"file: is not a directory"):
        CacheWatch(path).look()


def test_looking_makes_nothing(tmp_path):
    """Not even in a directory in which shards are; nor does it change the time of any file."""
    put_shard(tmp_path, "a.tar")

    def state():
        return {
            name: os.stat(os.path.join(folder, name)).st_mtime_ns
            for folder, _, names in os.walk(tmp_path)
            for name in names
        }

    before = state(), os.stat(tmp_path).st_mtime_ns
    CacheWatch(str(tmp_path)).look()
    assert (state(), os.stat(tmp_path).st_mtime_ns) == before


def test_looking_waits_for_no_lock(tmp_path):
    """An evictor may hold the directory for as long as it likes."""
    put_shard(tmp_path, "a.tar")
    with Space(str(tmp_path), limit=None).lock():
        assert CacheWatch(str(tmp_path)).look().shards == 1


def test_shards(tmp_path):
    """Size, age and marks; what is not the cache's is counted apart."""
    put_shard(tmp_path, "a.tar", 10, table_size=3, used=1000)
    put_shard(tmp_path, "b.tar", 20, used=2000, is_kept=True)
    put_file(tmp_path, "mine.txt", b"x" * 100)
    found = CacheWatch(str(tmp_path)).look()
    assert [(each.name, each.size_bytes, each.used_seconds, each.is_kept) for each in found.shown] == [
        ("b.tar", 20, 2000, True),
        ("a.tar", 13, 1000, False),
    ]
    assert (found.shards, found.used_bytes, found.strangers) == (2, 33, 1)


def test_what_comes_and_goes(tmp_path, monkeypatch):
    """What happened before the first look is told by the log; later changes come once each, with their bytes."""
    set_limits(watching.CacheWatch, monkeypatch.setattr, listing_pauses=0.0)
    space = Space(str(tmp_path), limit=None)
    for name in ("a.tar", "b.tar"):
        with space.lock():
            space._contents.refresh()
        with space.publishing(name, 100):
            put_shard(tmp_path, name, 100)
    watch = CacheWatch(str(tmp_path))
    first = watch.look()
    assert changes_of(first)[-1:] == [("b.tar", True, True)]
    with space.lock():
        space._contents.refresh()
        evict(space, "a.tar")
    found = watch.look()
    assert changes_of(found)[len(first.changes) :] == [("a.tar", False, True)]
    assert (found.changes[-1].size_bytes, found.shards, found.used_bytes) == (100, 1, 100)
    assert abs(found.changes[-1].seconds - time.time()) < 3600
    os.unlink(tmp_path / "b.tar")
    os.unlink(table_of(tmp_path / "b.tar"))
    put_shard(tmp_path, "c.tar", 7)
    last = watch.look()
    assert sorted(changes_of(last)[len(found.changes) :]) == [("b.tar", False, False), ("c.tar", True, False)]
    assert (last.shards, last.used_bytes) == (1, 7)
    assert changes_of(watch.look()) == changes_of(last)


def test_readers(tmp_path):
    """Who has a shard open is seen, without a lock of our own."""
    path = put_shard(tmp_path, "a.tar")
    put_shard(tmp_path, "b.tar")
    fd = os.open(path, os.O_RDONLY)
    try:
        assert locks.lease(fd)
        found = CacheWatch(str(tmp_path)).look()
    finally:
        os.close(fd)
    if not found.sees_all:
        pytest.skip("this system has no list of locks")
    assert found.readers == {"a.tar": [os.getpid()]}
    assert [(holder.pid, holder.files) for holder in found.holders] == [(os.getpid(), ["a.tar"])]
    assert CacheWatch(str(tmp_path)).look().readers == {}


def test_readers_where_there_is_no_list_of_locks(tmp_path, monkeypatch):
    """Tools are asked of the shards that are shown, now and then, and the answer says that it is not whole."""
    monkeypatch.setattr(holders, "list_locks", lambda _: None)
    asked = []
    holder = holders.Holder(pid=7, program="train", started_seconds=None, is_orphan=False, files=[])

    def find(paths):
        asked.append(sorted(paths))
        return [holders.Holder(**{**{k: getattr(holder, k) for k in holder.__struct_fields__}, "files": asked[-1][:1]})]

    monkeypatch.setattr(holders, "find_holders", find)
    paths = [put_shard(tmp_path, name) for name in ("a.tar", "b.tar")]
    watch = CacheWatch(str(tmp_path))
    found = [watch.look(), watch.look()][-1]
    assert (found.sees_all, found.readers, asked) == (False, {"a.tar": [7]}, [paths])


def test_downloads(tmp_path):
    """How much has come of how much, and by whom; one that was left behind is seen as such. Tables are not listed."""
    name = "a.tar"
    CacheDirectory(str(tmp_path)).make()
    part, fd = atomic.make_part(CacheDirectory(str(tmp_path)).staging(name))
    system.write_all(fd, bytes(8192), 0)
    os.ftruncate(fd, 1 << 20)
    with contextlib.closing(open(atomic.make_part(CacheDirectory(str(tmp_path)).staging("a.tar.widx"))[1], "rb")):
        put_garbage(str(tmp_path / "old.tar"), 5)
        found = CacheWatch(str(tmp_path)).look()
    by_name = {each.name: each for each in found.downloads}
    assert set(by_name) == {"a.tar", "old.tar"}
    live = by_name["a.tar"]
    assert (live.pid, live.size_bytes, live.written_bytes) == (os.getpid(), 1 << 20, 8192)
    assert found.used_bytes == (1 << 20) + 5
    if found.sees_all:
        assert (live.is_locked, by_name["old.tar"].is_locked) == (True, False)
    os.close(fd)
    assert os.path.basename(part) in "".join(files_in(tmp_path))


def test_plans_and_figures(tmp_path):
    """When live jobs use a shard next, and what their datasets say; a dataset of two samplers counts once."""
    put_shard(tmp_path, "a.tar")
    when = time.time() + 500
    with contextlib.ExitStack() as stack:
        for hits in (3, 5):
            plan = stack.enter_context(contextlib.closing(PlanFile(str(tmp_path))))
            plan.write({"a.tar": when, "not here.tar": when}, {}, {"d": {"hits": hits, "cache_size": 100}})
        found = CacheWatch(str(tmp_path)).look()
    assert (found.uses, found.plans) == ({"a.tar": pytest.approx(when)}, 2)
    assert [(job.pid, job.figures) for job in found.jobs] == [(os.getpid(), {"hits": 5, "cache_size": 100})]
    gone = CacheWatch(str(tmp_path)).look()
    assert (gone.uses, gone.plans, gone.jobs) == ({}, 0, [])


def test_a_plan_of_before_has_no_figures(tmp_path):
    """One of another version is read all the same."""
    put_shard(tmp_path, "a.tar")
    with contextlib.closing(PlanFile(str(tmp_path))) as plan:
        plan.write({"a.tar": time.time() + 5})
        data = Path(plan.path).read_bytes().replace(b',"figures":{}', b"")
        with open(plan.path, "r+b") as file:
            file.truncate()
            file.write(data)
        found = CacheWatch(str(tmp_path)).look()
    assert (list(found.uses), found.jobs, b"figures" in data) == (["a.tar"], [], False)


def test_many_shards_are_listed_when_they_change(tmp_path, monkeypatch):
    """A look at a directory that is as it was lists nothing, and what is shown has an end."""
    for k in range(30):
        put_shard(tmp_path, f"{k:02d}.tar", used=1000 + k)
    watch = CacheWatch(str(tmp_path), most=10)
    assert [shard.name for shard in watch.look().shown] == [f"{k:02d}.tar" for k in range(29, 19, -1)]
    monkeypatch.setattr(watching, "_names", None)
    os.utime(table_of(tmp_path / "03.tar"), (5000, 5000))
    found = [watch.look(), watch.look()][-1]
    assert (found.shards, found.shown[0].name, len(found.shown)) == (30, "03.tar", 10)


def test_a_hostile_log_names_nothing_outside(tmp_path):
    """Lines that no cache wrote are passed over; so is what is no file."""
    put_shard(tmp_path, "a.tar")
    home = CacheDirectory(str(tmp_path))
    lines = b"%s\n1 5 0 ..%%2Fetc\nrubbish\n\xff\n2 -1 0 a.tar\n3000000000 7 0 a.tar\n3000000000 9 0 cut" % (b"f" * 32)
    put_file(home.folder, "changes", lines)
    assert [(each.name, each.size_bytes) for each in CacheWatch(str(tmp_path)).look().changes] == [("a.tar", 7)]
    os.unlink(home.changes)
    os.mkfifo(home.changes)
    assert CacheWatch(str(tmp_path)).look().changes == []

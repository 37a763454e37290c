"""Room in a cache directory: who waits, what goes for it, and what never does."""

import contextlib
import errno
import math
import os
import tempfile
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import cache_shards as shards
from tests.support.cache_dirs import (
    files_in,
    keep_mark_of,
    names_in,
    put_file,
    put_garbage,
    put_shard,
    put_table,
    staging_of,
    table_of,
)
from tests.support.cache_shards import described, files_open_in, texts, texts_of
from tests.support.children import child, receive
from tests.support.clocks import set_limits, wait_until
from wids.core.cache import limits, usage_hints
from wids.core.cache import space as spaces
from wids.core.cache.directory import CacheDirectory
from wids.core.cache.eviction import Entry
from wids.core.cache.space import Space, evict_from, table_allowance
from wids.core.cache.usage_hints import PlanFile
from wids.core.files import atomic, locks, system
from wids.core.readers.pool import OpenShards
from wids.core.readers.provider import AutoProvider
from wids.core.shard import Shard
from wids.core.tables import member_tables
from wids.core.transport.session import Session
from wids.errors import CacheError, CacheFull
from wids.events import Evicted, Swept, WaitedForRoom

A, B = shards.shard("a"), shards.shard("b")


@pytest.fixture
def home(tmp_path):
    """A cache directory."""
    path = tmp_path / "cache"
    path.mkdir()
    return str(path)


class Clock:
    """Time that passes only while somebody sleeps; ``on_sleep`` is what others do meanwhile."""

    def __init__(self):
        self.now = time.time()
        self.sleeps = 0
        self.on_sleep = lambda: None

    def rule(self, monkeypatch):
        """Be the clock of whoever waits for space, for at most seven seconds, and of plans."""
        monkeypatch.setattr(spaces, "time", self)
        monkeypatch.setattr(usage_hints, "time", self)
        set_limits(limits, patch=monkeypatch.setattr, wait_seconds=7.0)

    def time(self):
        """Seconds since 1970."""
        return self.now

    monotonic = time

    def sleep(self, seconds):
        """Let time pass."""
        self.sleeps += 1
        self.now += seconds
        self.on_sleep()


@pytest.fixture
def clock(monkeypatch):
    """The clock of `wids.core.cache.space` and of plans, which stands still until somebody sleeps."""
    clock = Clock()
    clock.rule(monkeypatch)
    return clock


@pytest.fixture
def disk(monkeypatch, home):
    """The file system: ``disk.size`` bytes, of which files in the directory take what is written of them."""
    disk = SimpleNamespace(size=1 << 40, others=0)

    def free_bytes(directory):
        assert directory == home
        taken = sum(os.stat(os.path.join(home, name)).st_size for name in os.listdir(home) if name != ".wids")
        return disk.size - disk.others - taken, disk.size

    monkeypatch.setattr(system, "free_bytes", free_bytes)
    return disk


@contextlib.contextmanager
def leased(path):
    """A reader of a shard, in this or any other process."""
    with open(path, "rb") as file:
        assert locks.lease(file.fileno()) is not False
        yield


@contextlib.contextmanager
def planned(home, **uses):
    """The plan of a live job: name without ``.tar`` -> when."""
    plan = PlanFile(home)
    plan.write({f"{name}.tar": when for name, when in uses.items()})
    yield
    plan.close()


def reserve(space, size, **options):
    """Make room for a shard of ``size`` bytes, and give it up again; how large its part file was."""
    space.directory.make()
    with atomic.part_file(space.directory.staging("new.tar")) as (_, fd):
        space.reserve([(fd, size)], url="u://new.tar", **options)
        return os.fstat(fd).st_size


def fill(home, names="abcd", size=10):
    """Shards of one letter each, every one used later than the one before."""
    return [put_shard(home, f"{name}.tar", size, used=1_000_000 + place) for place, name in enumerate(names)]


def left(home):
    """The letters of the shards that are there."""
    return "".join(name.removesuffix(".tar") for name in names_in(home))


# --- the bound


@pytest.mark.parametrize(
    ("limit", "stays"), [(None, "abcd"), (52, "abcd"), (51, "bcd"), (42, "bcd"), (41, "cd"), (12, "")]
)
def test_just_as_many_go_as_have_to(home, events, limit, stays):
    """The bound holds to the byte, with what is coming; what was used longest ago goes first, with its table."""
    paths = fill(home)
    assert reserve(Space(home, limit=limit, hooks=[events]), 12) == 12
    assert left(home) == stays
    gone = paths[: 4 - len(stays)]
    assert events == [Evicted(path=path, size_bytes=10) for path in gone]
    assert not any(os.path.exists(table_of(path)) for path in gone)


def test_several_files_at_once(home):
    """A shard and its table get their room together; files that are long enough already want none."""
    fill(home)
    space = Space(home, limit=50)
    staging = space.directory.staging("n.tar")
    space.directory.make()
    with atomic.part_file(staging) as (_, one), atomic.part_file(f"{staging}.widx") as (_, other):
        space.reserve([(one, 12), (other, 8)], url="u")
        assert left(home) == "bcd"
        assert (os.fstat(one).st_size, os.fstat(other).st_size) == (12, 8)
        space.reserve([(one, 10), (other, 8)], url="u")
        assert (left(home), os.fstat(one).st_size) == ("bcd", 12)
        space.reserve([(one, 13)], url="u")
        assert (left(home), os.fstat(one).st_size) == ("cd", 13)


def test_what_weighs_and_what_does_not(home):
    """Downloads of others count with the size they will have; strangers, locks, marks and plans do not count."""
    fill(home, "ab")
    put_file(home, "mine.tar", bytes(1000))
    with atomic.part_file(staging_of(f"{home}/other.tar")) as (_, fd), planned(home, a=5.0):
        os.truncate(fd, 100)
        reserve(Space(home, limit=131), 11)
        assert left(home) == "ab"
        reserve(Space(home, limit=130), 11)
        assert left(home) == "a"
    assert os.path.getsize(f"{home}/mine.tar") == 1000


def test_what_was_left_behind_goes_before_any_shard(home, events):
    """Part files of killed downloads and tables without shards make room first."""
    fill(home)
    put_garbage(f"{home}/x.tar", 1000)
    put_table(f"{home}/y.tar", 1000)
    reserve(Space(home, limit=50, hooks=[events]), 10)
    assert left(home) == "abcd"
    assert [(type(event), event.size_bytes) for event in events] == [(Swept, 1000)]
    assert not os.path.exists(table_of(f"{home}/y.tar"))


def test_a_bound_below_one_shard_lets_it_in(home, clock, caplog):
    """Old programs give a cache_size of 0 or 4: all that may go goes, the shard comes, and there is one warning."""
    fill(home)
    for limit in (0, 4):
        caplog.clear()
        space = Space(home, limit=limit)
        assert [reserve(space, 12) for _ in range(3)] == [12] * 3
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert f"cache_size is {limit} B, and a shard needs 12 B" in caplog.text
    assert left(home) == ""
    assert clock.sleeps == 0


def test_a_bound_below_one_shard_while_others_are_read(home, clock):
    """What is being read stays, and is no reason to wait for ever: what no bound could hold is let in beside it."""
    paths = fill(home, "ab")
    with leased(paths[0]):
        assert reserve(Space(home, limit=5), 12) == 12
        assert left(home) == "a"
    assert clock.sleeps == 0


def test_a_table_that_is_longer_than_was_kept_free(tmp_path, home, clock, caplog):
    """Many small members have a longer table than expected; a bound below one shard lets it in all the same."""
    data = shards.pack([(f"{row:05d}.{member:03d}", b"") for row in range(3) for member in range(200)])
    url = shards.write(tmp_path / "a.tar", data)
    store = AutoProvider(cache_dir=home, cache_local=True, cache_size=len(data) // 2)
    reader = store.open(Shard(url=url, nsamples=3, filesize=len(data)))
    table_size = os.path.getsize(table_of(reader.path))
    assert table_size > table_allowance(len(data), 3)
    assert len(reader) == 3
    assert caplog.text.count("admitted over the limit") == 1


def test_a_table_for_which_a_shard_must_go(tmp_path, home, events):
    """The bytes of a table beyond what was kept free are within the bound, too."""
    data = shards.pack([(f"{row:05d}.{member:03d}", b"") for row in range(3) for member in range(200)])
    url = shards.write(tmp_path / "a.tar", data)
    reader = AutoProvider(cache_dir=str(tmp_path / "other"), cache_local=True).open(described(url, data))
    limit = len(data) + os.path.getsize(table_of(reader.path))
    paths = fill(home, "a", limit - len(data) - table_allowance(len(data), 3))
    events.clear()
    reader = AutoProvider(cache_dir=home, cache_local=True, cache_size=limit, session=Session(hooks=[events])).open(
        described(url, data)
    )
    assert names_in(home) == [os.path.basename(reader.path)]
    assert events[0] == Evicted(path=paths[0], size_bytes=limit - len(data) - table_allowance(len(data), 3))


# --- the disk


def test_a_hundredth_of_the_disk_stays_free(home, disk):
    """Without a bound, shards go only so that a hundredth of the disk is free afterwards."""
    fill(home)
    disk.size, disk.others = 10_000, 10_000 - 40 - 100 - 12
    reserve(Space(home, limit=None), 12)
    assert left(home) == "abcd"
    disk.others += 1
    reserve(Space(home, limit=None), 12)
    assert left(home) == "bcd"


def test_at_most_one_gigabyte_stays_free(home, disk):
    """On a disk of many terabytes a hundredth would be too much."""
    fill(home)
    disk.size = 1 << 50
    disk.others = disk.size - (1 << 30) - 52
    reserve(Space(home, limit=None), 12)
    assert left(home) == "abcd"
    disk.others += 1
    reserve(Space(home, limit=None), 12)
    assert left(home) == "bcd"


def test_a_bound_needs_no_floor_but_the_disk_has_an_end(home, disk):
    """With a bound the disk may be filled up; beyond its end, shards go although the bound allows them."""
    fill(home)
    disk.size, disk.others = 10_000, 10_000 - 40 - 12
    reserve(Space(home, limit=1000), 12)
    assert left(home) == "abcd"
    disk.others += 15
    reserve(Space(home, limit=1000), 12)
    assert left(home) == "cd"


def test_blocks_for_the_files_of_the_cache_stay_free(home, disk):
    """Lock files and logs of downloads under way need some: a bound beyond the disk does not let shards take them."""
    fill(home)
    disk.size, disk.others = 1 << 20, (1 << 20) - (64 << 10) - 40 - 12
    reserve(Space(home, limit=1 << 30), 12)
    assert left(home) == "abcd"
    disk.others += 1
    reserve(Space(home, limit=1 << 30), 12)
    assert left(home) == "bcd"


def test_bytes_that_are_promised_to_downloads_are_not_free(home, disk):
    """A part file that is still empty will fill the disk: its bytes are not promised twice."""
    fill(home)
    disk.size, disk.others = 100_000, 100_000 - 40 - 1000 - 5000
    with atomic.part_file(staging_of(f"{home}/other.tar")) as (_, fd):
        os.truncate(fd, 4995)
        reserve(Space(home, limit=None), 5)
        assert left(home) == "abcd"
        reserve(Space(home, limit=None), 6)
        assert left(home) == "bcd"


def test_a_disk_that_others_have_filled(home, disk, clock, caplog):
    """Where nothing of ours is left to go, a shard is let in below the floor, with one warning; not beyond the end."""
    fill(home)
    disk.size, disk.others = 10_000, 10_000 - 20
    space = Space(home, limit=None)
    assert [reserve(space, 15) for _ in range(2)] == [15, 15]
    assert left(home) == ""
    assert [record.getMessage().count("the disk is nearly full") for record in caplog.records] == [1]
    with pytest.raises(CacheFull, match=r": 2 more bytes are needed for u://new\.tar, and its file system has 20 free"):
        reserve(space, 22)
    assert clock.now > 0


def test_a_shard_longer_than_the_disk_is_refused_at_once(home, disk, clock):
    """No wait makes room for it."""
    disk.size = 1000
    with pytest.raises(CacheFull, match=r": 1 more bytes are needed for u://new\.tar, .* needs 1001;"):
        reserve(Space(home, limit=None), 1001)
    assert clock.sleeps == 0


@pytest.mark.parametrize("limit", [None, 500])
def test_a_disk_full_of_other_files_is_refused_at_once(home, disk, clock, caplog, limit):
    """No shard of the cache that goes would make enough room, and the error names the disk, not the limit."""
    fill(home, "ab")
    disk.size, disk.others = 1000, 970
    with leased(f"{home}/a.tar"), pytest.raises(CacheFull) as caught:
        reserve(Space(home, limit=limit), 31)
    assert (clock.sleeps, left(home), caplog.records) == (0, "ab", [])
    assert str(caught.value) == (
        f"{home}: 21 more bytes are needed for u://new.tar, and its file system has 10 free; the shard needs 31; the "
        "cache has 20, and other files 970. Free space on the disk, or choose another cache_dir"
    )
    assert (caught.value.expected, caught.value.found) == (31, 10)


def test_a_full_disk_under_a_limit_below_one_shard(home, disk, clock):
    """A larger limit would help nothing, so the error names the disk."""
    disk.size, disk.others = 1000, 990
    with pytest.raises(CacheFull, match=r": 2 more bytes are needed .* has 10 free; .* Free space on the disk, or"):
        reserve(Space(home, limit=5), 12)
    assert clock.sleeps == 0


@pytest.mark.parametrize("seconds", [5, 15])
def test_a_full_disk_is_waited_for_where_a_shard_can_go(home, disk, clock, caplog, monkeypatch, seconds):
    """Once that is no longer read; a wait of some seconds is told once, with what is missing where."""
    set_limits(limits, patch=monkeypatch.setattr, wait_seconds=60.0)
    fill(home, "a")
    disk.size, disk.others = 1000, 980
    reader, began = contextlib.ExitStack(), clock.now
    reader.enter_context(leased(f"{home}/a.tar"))
    clock.on_sleep = lambda: clock.now - began > seconds and reader.close()
    reserve(Space(home, limit=None), 20)
    assert left(home) == ""
    assert seconds < clock.now - began < seconds + 1
    told = (
        f"{home}: 10 more bytes are needed for u://new.tar, and its file system has 10 free; the shard needs 20; the "
        "cache has 10, and other files 980; waiting for up to 60 s"
    )
    found = [record.getMessage() for record in caplog.records if "waiting" in record.getMessage()]
    assert found == [told] * (seconds > 10)


def test_a_large_disk_is_not_looked_through_for_each_shard(home, disk, monkeypatch):
    """Without a bound and with plenty of space, a directory is looked at once for each process: to sweep it."""
    put_garbage(f"{home}/x.tar", 10)
    looks = []
    real = CacheDirectory.inventory
    monkeypatch.setattr(CacheDirectory, "inventory", lambda self: looks.append(self.path) or real(self))
    space = Space(home, limit=None)
    for _ in range(5):
        reserve(space, 12)
    assert looks == []
    assert not any(name.endswith(".part") for name in files_in(home))


# --- who stays


def test_what_is_kept_stays(home, clock):
    """A mark keeps a shard whatever the bound, and is no reason to ring: nobody can let go of it."""
    fill(home, "ac")
    put_shard(home, "b.tar", 10, used=5, is_kept=True)
    space = Space(home, limit=20)
    reserve(space, 10)
    assert left(home) == "b"
    with pytest.raises(CacheFull, match=r"10 bytes are marked by keep=True"):
        reserve(space, 11)
    assert (left(home), space.directory.release_request_time()) == ("b", 0)
    assert clock.sleeps == 0  # nor does a wait help


def test_what_is_kept_is_not_waited_for_but_downloads_are(home, clock):
    """A download that another process has under way may become a shard that can be evicted."""
    put_shard(home, "b.tar", 10, used=5, is_kept=True)
    space = Space(home, limit=30)
    with atomic.part_file(staging_of(f"{home}/l.tar")) as (_, fd):
        os.truncate(fd, 10)
        with pytest.raises(CacheFull):
            reserve(space, 21)  # more than that shard would have
        assert clock.sleeps == 0
        with pytest.raises(CacheFull):
            reserve(space, 20)
    assert clock.sleeps > 0


def test_what_jobs_are_coming_to_goes_last(home):
    """What no live job plans to use goes first, then what is used farthest ahead, whatever was used last."""
    fill(home)
    now = time.time()
    with planned(home, a=now + 100, c=now + 200, d=now + 50):
        for limit, stays in ((40, "acd"), (30, "ad"), (20, "d"), (10, "")):
            reserve(Space(home, limit=limit), 10)
            assert left(home) == stays


def test_a_plan_without_a_job_protects_nothing(home):
    """A job that was killed does not come to its shards any more."""
    fill(home, "ab")
    plan = put_file(CacheDirectory(home).folder, "1-0123abcd.plan", b'{"uses": {"a.tar": 1e12}, "busy": {}}')
    reserve(Space(home, limit=20), 10)
    assert left(home) == "b"
    assert not os.path.exists(plan)


def test_strangers_stay_whatever_is_missing(home, clock):
    """Files that no cache put there are never deleted, and are no reason to make more of them."""
    mine = {
        "mine.tar": b"1",
        "mine.tar.widx": b"2",
        "x.lock": b"3",
        "x.part": b"4",
        "y.tar.keep": b"5",
        "n.wids-plan": b"6",
    }
    for name, data in mine.items():
        put_file(home, name, data)
    os.mkdir(f"{home}/sub.tar")
    os.symlink("mine.tar", f"{home}/link.tar")
    reserve(Space(home, limit=0), 10)
    for name, data in mine.items():
        with open(f"{home}/{name}", "rb") as file:
            assert file.read() == data
    assert os.path.isdir(f"{home}/sub.tar")
    assert os.readlink(f"{home}/link.tar") == "mine.tar"


# --- waiting


def test_who_finds_no_room_waits_and_then_says_what_is_missing(home, clock, events):
    """All leased: it rings, lets go of its own, waits as long as it may, and raises with the numbers."""
    paths = fill(home, "ab")
    let_go = []
    space = Space(home, limit=25, hooks=[events], release_idle=lambda: let_go.append(clock.now))
    began = clock.now
    with leased(paths[0]), leased(paths[1]), pytest.raises(CacheFull) as caught:
        reserve(space, 12)
    error = caught.value
    assert (error.url, error.path, error.expected, error.found) == ("u://new.tar", home, 12, 5)
    assert f"{home}: 7 bytes too few for u://new.tar, which needs 12: the cache may have 25 bytes and has 20" in str(
        error
    )
    assert 7.0 < clock.now - began < 8.0
    assert clock.sleeps == len(let_go) > 20
    assert space.directory.release_request_time() > 0
    assert (left(home), events) == ("ab", [])
    assert files_in(home) == [".wids/tables/a.tar.widx", ".wids/tables/b.tar.widx", "a.tar", "b.tar"]


def test_nobody_waits_where_there_is_room(home, clock, events):
    """No pause, no bell, no word."""
    space = Space(home, limit=100, hooks=[events])
    reserve(space, 12)
    assert (clock.sleeps, space.directory.release_request_time(), events) == (0, 0, [])


def test_who_waits_goes_on_when_another_lets_go(home, clock, events):
    """A reader elsewhere hears the bell and closes: its shard goes, and the wait is told with its length."""
    [path] = fill(home, "a")
    reader = contextlib.ExitStack()
    reader.enter_context(leased(path))
    space = Space(home, limit=15, hooks=[events])

    def hear():
        if clock.sleeps == 3:
            assert space.directory.release_request_time() > 0
            reader.close()

    clock.on_sleep = hear
    began = clock.now
    assert reserve(space, 12) == 12
    assert left(home) == ""
    assert clock.sleeps == 3
    assert events == [
        Evicted(path=path, size_bytes=10),
        WaitedForRoom(url="u://new.tar", path=home, seconds=clock.now - began),
    ]


def test_who_waits_lets_go_of_its_own(home, clock, events):
    """What this process has open and does not read is no obstacle to itself."""
    [path] = fill(home, "a")
    reader = contextlib.ExitStack()
    reader.enter_context(leased(path))

    def release():
        reader.close()
        return True

    space = Space(home, limit=15, hooks=[events], release_idle=release)
    assert reserve(space, 12) == 12
    assert (clock.sleeps, space.directory.release_request_time()) == (0, 0)  # nor does any other process
    assert events == [Evicted(path=path, size_bytes=10)]


@pytest.mark.parametrize("limit", [0.5, 1, 1.5, 2, 3, 4])
def test_a_reader_alone_waits_for_nobody(tmp_path, home, clock, limit):
    """Whatever the limit: of a process that reads shard after shard, only idle shards of its own are in the way."""
    tags = "abcdefgh"
    listed = [described(shards.write(tmp_path / f"{tag}.tar", shards.shard(tag)), shards.shard(tag)) for tag in tags]
    each = len(A) + table_allowance(len(A), None)
    provider = AutoProvider(cache_dir=home, cache_local=True, cache_size=int(limit * each))
    pool = OpenShards(provider, capacity=None, find=None, hooks=())
    for _ in range(2):
        for tag, shard in zip(tags, listed, strict=True):
            assert texts(pool.open(shard)) == texts_of(tag)
    assert clock.sleeps == 0


def test_a_thread_that_opens_its_shard_again_is_waited_for(home, clock):
    """Where what was released is open again at once, there is a pause between tries."""
    [path] = fill(home, "a")
    tries = []
    space = Space(home, limit=15, release_idle=lambda: tries.append(clock.sleeps) or True)
    with leased(path), pytest.raises(CacheFull):
        reserve(space, 12)
    assert len(tries) in (clock.sleeps, clock.sleeps + 1)
    assert clock.sleeps > 20


def test_who_waits_goes_on_when_a_download_ends(home, clock):
    """A download of another process takes the room for now: no bell, for nobody can let go of it, but a wait."""
    space = Space(home, limit=25)
    part = atomic.part_file(staging_of(f"{home}/other.tar"))
    _, fd = part.__enter__()
    os.truncate(fd, 20)

    def end():
        if clock.sleeps == 5:
            part.__exit__(None, None, None)

    clock.on_sleep = end
    assert reserve(space, 12) == 12
    assert (clock.sleeps, space.directory.release_request_time()) == (5, 0)


def hold_open(connection, home, url, data):
    """A job that has a shard open and does not read it; it says when somebody made it let go."""
    pool = OpenShards(AutoProvider(cache_dir=home, cache_local=True), capacity=3, find=None, hooks=())
    reader = pool.open(described(url, data))
    assert texts(reader) == texts_of()
    del reader
    connection.send("open")
    wait_until(lambda: not len(pool))
    connection.send("let go")
    connection.recv()


def test_other_processes_hear_the_bell(tmp_path, home):
    """A shard that another process has open and does not read goes when somebody needs its space."""
    url, other = shards.write(tmp_path / "a.tar", A), shards.write(tmp_path / "b.tar", B)
    with child(hold_open, home, url, A) as (_, connection):
        assert receive(connection) == "open"
        assert len(names_in(home)) == 1
        store = AutoProvider(cache_dir=home, cache_local=True, cache_size=2 * len(A))
        assert texts(store.open(described(other, B))) == texts_of("b")
        assert receive(connection) == "let go"
        connection.send("end")
    assert names_in(home) == [os.path.basename(store.cache.placement.local_path(other))]


# --- what is about to be used


def test_what_is_used_at_once_stays_while_something_else_may_go(home, clock):
    """Of a shard that is needed in a moment and one that is only open, the second goes, as soon as it is closed."""
    paths = fill(home, "ab")
    reader = contextlib.ExitStack()
    reader.enter_context(leased(paths[1]))
    clock.on_sleep = reader.close
    with planned(home, a=clock.now + 0.3):
        assert reserve(Space(home, limit=22), 12) == 12
    assert (left(home), clock.sleeps) == ("a", 1)


def test_what_is_used_at_once_goes_if_nothing_else_will(home, clock):
    """When what is open stays open, the grace ends, which is half as long as a download at most."""
    paths = fill(home, "ab")
    space, waits = Space(home, limit=22), []
    for seconds in (0.0, 0.02, 3.0):
        put_shard(home, "a.tar", 10, used=1_000_000)
        space.note_download(12, seconds)
        began = clock.now
        with leased(paths[1]), planned(home, a=clock.now + 0.3):
            assert reserve(space, 12) == 12
        assert left(home) == "b"
        waits.append(clock.now - began)
    assert waits[0] < 0.01 <= waits[1] < 0.02
    assert 0.5 <= waits[2] < 0.8


def test_nobody_waits_for_what_only_its_own_plan_says(home, clock):
    """The shards that a process may still be reading, by its own plan, are not waited for by itself."""
    fill(home, "a")
    plan = PlanFile(home)
    space = Space(home, limit=15)
    space.note_download(12, 3.0)
    plan.write({"a.tar": clock.now + 0.3}, {"x.tar": clock.now + 60})
    assert reserve(space, 12) == 12
    assert clock.sleeps == 0
    fill(home, "a")
    with child(plan_and_wait, home, {"a.tar": clock.now + 0.3}, {"x.tar": clock.now + 60}) as (_, connection):
        assert receive(connection) == "written"
        assert reserve(space, 12) == 12
    assert clock.sleeps > 1
    plan.close()


def plan_and_wait(connection, home, uses, busy):
    """A job that is busy with a shard, in a process of its own."""
    plan = PlanFile(home)
    plan.write(uses, busy)
    connection.send("written")
    connection.recv()


@pytest.mark.parametrize(("limit", "others"), [(5, 0), (None, 9_975)])
def test_who_is_admitted_over_the_limit_is_not_refused_while_a_job_is_busy(home, disk, clock, limit, others):
    """A limit below one shard, and the floor of a disk that others have filled, are no reason to refuse it."""
    fill(home, "a")
    disk.size, disk.others = 10_000, others
    space = Space(home, limit=limit)
    space.note_download(12, 3.0)
    with child(plan_and_wait, home, {"a.tar": clock.now + 0.3}, {"x.tar": clock.now + 60}) as (_, connection):
        assert receive(connection) == "written"
        assert reserve(space, 12) == 12
    assert clock.sleeps > 0


def test_what_is_used_at_once_goes_if_there_is_nothing_to_wait_for(home, clock):
    """Nothing is open: there is no grace."""
    fill(home, "a")
    with planned(home, a=clock.now + 0.3):
        assert reserve(Space(home, limit=15), 12) == 12
    assert (left(home), clock.sleeps) == ("", 0)


# --- ahead


def test_who_fetches_ahead_never_waits(home, clock):
    """No room now: it says so at once, whether shards are open or kept."""
    paths = fill(home, "a")
    space = Space(home, limit=15)
    with leased(paths[0]), pytest.raises(CacheFull):
        reserve(space, 12, after=0.0)
    put_file(home, keep_mark_of(f"{home}/a.tar"))
    with pytest.raises(CacheFull):
        reserve(space, 12, after=0.0)
    assert (left(home), clock.sleeps) == ("a", 0)


def test_who_fetches_ahead_takes_nothing_that_is_used_sooner(home, clock):
    """Only what is used later goes for it, or by nobody."""
    fill(home)
    now = clock.now
    with planned(home, a=now + 10, b=now + 20, c=now + 30):
        with pytest.raises(CacheFull):
            reserve(Space(home, limit=40), 21, after=now + 30)
        assert left(home) == "abcd"  # one would have been too few
        assert reserve(Space(home, limit=40), 20, after=now + 20) == 20
        assert left(home) == "ab"
        assert reserve(Space(home, limit=40), 20, after=now + 20) == 20
        with pytest.raises(CacheFull):
            reserve(Space(home, limit=40), 21, after=now + 20)
    assert (left(home), clock.sleeps) == ("ab", 0)


def test_who_fetches_ahead_does_not_exceed_a_bound(home, clock, caplog):
    """A bound below one shard lets in what is being read, not what may be needed."""
    with pytest.raises(CacheFull):
        reserve(Space(home, limit=5), 12, after=0.0)
    assert caplog.records == []


def test_a_table_that_comes_ahead_is_not_worth_a_wait(tmp_path, home, clock):
    """Where the table of a shard that is fetched ahead has no space, the fetch ends, and takes nothing used sooner."""
    data = shards.pack([(f"{row:05d}.{member:03d}", b"") for row in range(3) for member in range(200)])
    url = shards.write(tmp_path / "a.tar", data)
    fill(home, "a", 1000)
    limit = len(data) + table_allowance(len(data), 3) + 1000
    store = AutoProvider(cache_dir=home, cache_local=True, cache_size=limit)
    with planned(home, a=clock.now + 10), pytest.raises(CacheFull):
        store.cache.download_ahead(
            store.cache.locate(described(url, data)), after=clock.now + 20, is_cancelled=lambda: False
        )
    assert (left(home), clock.sleeps) == ("a", 0)
    assert not any(name.endswith(".part") for name in files_in(home))


# --- against a simulation


@st.composite
def scenes(draw):
    """A directory and a wish: shards with all that matters of them, downloads, garbage, and what is wanted."""
    names = draw(st.lists(st.sampled_from("abcdef"), unique=True))
    now = time.time()
    uses = st.none() | st.sampled_from([now - 10, now + 0.2, now + 10, now + 20])
    return SimpleNamespace(
        shards={
            name: SimpleNamespace(
                size=draw(st.integers(0, 9)),
                table=draw(st.integers(0, 3)),
                is_kept=draw(st.integers(0, 3)) == 0,
                is_leased=draw(st.integers(0, 3)) == 0,
                use=draw(uses),
            )
            for name in names
        },
        order=draw(st.permutations(names)),
        garbage=draw(st.lists(st.integers(0, 20), max_size=2)),
        live=draw(st.lists(st.integers(0, 20), max_size=2)),
        orphan=draw(st.none() | st.integers(0, 9)),
        limit=draw(st.integers(0, 60)),
        wanted=draw(st.integers(1, 30)),
        after=draw(st.none() | st.sampled_from([now, now + 10, math.inf])),
    )


def simulate(scene):
    """Oracle: (the shards that go, whether there is room in the end)."""
    used = sum(shard.size + shard.table for shard in scene.shards.values()) + sum(scene.live)

    def next_use(name):
        use = scene.shards[name].use
        return math.inf if use is None else use

    order = sorted(scene.order, key=lambda name: -next_use(name))  # stable: last use decides among equals
    gone = set()
    later = [
        name
        for name in order
        if not scene.shards[name].is_kept and (scene.after is None or next_use(name) > scene.after)
    ]
    is_let_in = scene.after is None and scene.wanted > scene.limit
    most = sum(scene.shards[name].size + scene.shards[name].table for name in later)
    if used + scene.wanted - most > scene.limit and not is_let_in:
        return gone, False  # nothing goes in vain
    for name in later:
        shard = scene.shards[name]
        if used + scene.wanted > scene.limit and not shard.is_leased:
            gone.add(name)
            used -= shard.size + shard.table
    return gone, used + scene.wanted <= scene.limit or is_let_in


@given(scenes())
def test_room_is_made_as_a_simulation_makes_it(scene):
    """Oracle: one list in order, from which the first that may go goes until it fits, if all of it were enough."""
    with contextlib.ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        Clock().rule(patch)
        home = stack.enter_context(tempfile.TemporaryDirectory())
        for place, name in enumerate(scene.order):
            shard = scene.shards[name]
            path = put_shard(
                home, f"{name}.tar", shard.size, table_size=shard.table, used=1000 + place, is_kept=shard.is_kept
            )
            if shard.is_leased:
                stack.enter_context(leased(path))
        for size in scene.garbage:
            put_garbage(f"{home}/g.tar", size)
        for size in scene.live:
            os.truncate(stack.enter_context(atomic.part_file(staging_of(f"{home}/l.tar")))[1], size)
        if scene.orphan is not None:
            put_table(f"{home}/o.tar", scene.orphan)
        put_file(home, "mine.tar", b"mine")
        uses = {name: shard.use for name, shard in scene.shards.items() if shard.use is not None}
        stack.enter_context(planned(home, **uses))
        gone, has_room = simulate(scene)
        with contextlib.nullcontext() if has_room else pytest.raises(CacheFull):
            assert reserve(Space(home, limit=scene.limit), scene.wanted, after=scene.after) == scene.wanted
        assert set(left(home)) == set(scene.shards) - gone
        assert os.path.exists(f"{home}/mine.tar")
        assert not os.path.exists(table_of(f"{home}/o.tar"))
        assert len(CacheDirectory(home).transients().parts) == len(scene.live)


# --- tables of evicted shards


def remembered(home):
    """The letters of the evicted shards whose tables are there."""
    folder = CacheDirectory(home).remembered
    return (
        "".join(sorted(name.removesuffix(".tar.widx") for name in os.listdir(folder))) if os.path.isdir(folder) else ""
    )


def put_remembered(home, name, size):
    """The table of an evicted shard."""
    directory = CacheDirectory(home)
    os.makedirs(directory.remembered, exist_ok=True)
    put_file(directory.path, directory.remembered_table(name), bytes(size))


def fill_with_tables(home, names="abcd"):
    """Shards of 100 bytes with tables of 4, every one used later than the one before."""
    return [
        put_shard(home, f"{name}.tar", 100, table_size=4, used=1_000_000 + place) for place, name in enumerate(names)
    ]


def test_tables_of_evicted_shards_stay_up_to_a_hundredth(home):
    """Counted in the limit, those used longest ago go first; another process knows of them by the log alone."""
    fill_with_tables(home, "abcdefgh")
    one, two = Space(home, limit=900), Space(home, limit=900)
    assert reserve(one, 68 + 100) == 168
    assert (left(home), remembered(home)) == ("bcdefgh", "a")
    assert reserve(two, 68 + 300) == 368  # seven and a table left 168
    assert (left(home), remembered(home)) == ("defgh", "bc")
    used = CacheDirectory(home).inventory().used_bytes
    assert used == 5 * 104 + 2 * 4
    assert reserve(one, 900 - used) == 900 - used  # full to the byte: nothing goes
    assert (left(home), remembered(home)) == ("defgh", "bc")
    os.utime(CacheDirectory(home).remembered_table("b.tar"), (3_000_000, 3_000_000))  # it was used again
    reserve(two, 900 - used + 1)
    assert (left(home), remembered(home)) == ("defgh", "b")  # a byte is missing: that is a table's, not a shard's


def test_no_shard_goes_for_the_sake_of_tables(home):
    """Where the limit is one of shards to the byte, as many of them fit as would without remembered tables."""
    fill_with_tables(home, "abcde")
    space = Space(home, limit=5 * 104)
    for name in "fghi":
        assert reserve(space, 104) == 104
        put_shard(home, f"{name}.tar", 100, table_size=4, used=2_000_000 + ord(name))
        assert len(left(home)) == 5
    assert (left(home), remembered(home)) == ("efghi", "")


@pytest.mark.parametrize("after", [None, 0.0], ids=["a reader", "a download ahead"])
def test_no_shard_is_refused_for_the_sake_of_tables(home, after):
    """Where one has the whole limit once all others have gone, tables go, too, and nobody waits."""
    put_shard(home, "a.tar", 380, table_size=4, used=1_000_000)
    put_remembered(home, "z.tar", 4)
    assert reserve(Space(home, limit=400), 400, after=after) == 400
    assert (left(home), remembered(home)) == ("", "")


def test_a_process_that_is_killed_leaves_no_more_tables_than_may_be(home, monkeypatch):
    """Old ones go before the new one comes: at each moment they have a hundredth at most."""
    fill_with_tables(home, "abcdef")
    space, most = Space(home, limit=600), []
    replace = os.replace

    def watched(source, target):
        replace(source, target)
        most.append(CacheDirectory(home).inventory())

    monkeypatch.setattr("wids.core.cache.space.os.replace", watched)
    reserve(space, 600)
    assert [sum(table.size_bytes for table in found.remembered) for found in most] == [4] * 6


def test_cleaners_evict_no_shard_for_the_sake_of_tables(home):
    """Where the shards fit to the byte, the tables go."""
    fill_with_tables(home, "abcde")
    put_remembered(home, "z.tar", 4)
    assert evict_from([Space(home, limit=None)], limit=5 * 104, maximum=100) == []
    assert (left(home), remembered(home)) == ("abcde", "")
    put_remembered(home, "z.tar", 4)
    assert evict_from([Space(home, limit=None)], limit=5 * 104 + 4, maximum=100) == []
    assert (left(home), remembered(home)) == ("abcde", "z")


def test_a_shard_that_comes_again_has_one_table(home):
    """The remembered one goes when the shard is published; so does the one that an open shard had."""
    path = fill_with_tables(home, "ab")[0]
    space = Space(home, limit=400)
    reserve(space, 250)
    assert (left(home), remembered(home)) == ("b", "a")
    with space.publishing("a.tar", 104):
        put_shard(home, "a.tar", 100, table_size=4)
    assert (left(home), remembered(home)) == ("ab", "")
    assert os.path.exists(table_of(path))


@pytest.mark.parametrize(("limit", "stays", "tables"), [(1000, "bcdefghij", "a"), (600, "fghij", "e"), (0, "", "")])
def test_cleaners_keep_tables_too(home, limit, stays, tables):
    """A hundredth of their limit, and the rest fits; with nothing to be left, nothing is left."""
    fill_with_tables(home, "abcdefghij")
    left_over = []
    evict_from([Space(home, limit=None)], limit=limit, maximum=100, report=left_over.append)
    assert (left(home), remembered(home)) == (stays, tables)
    used = CacheDirectory(home).inventory().used_bytes
    assert used == len(stays) * 104 + len(tables) * 4 <= limit
    assert left_over[0].bytes == used - limit


def test_a_table_that_cannot_be_remembered_goes(home, monkeypatch):
    """A disk without space for a folder: the shard goes, and its table with it."""
    paths = fill_with_tables(home, "ab")
    monkeypatch.setattr(CacheDirectory, "make_folders", lambda *_: None)
    space = Space(home, limit=400)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CacheDirectory, "make", lambda _: None)
        with space.lock():
            assert space.delete(entry_of(paths[0]), max_remembered=100)
    assert (left(home), remembered(home)) == ("b", "")
    assert not os.path.exists(table_of(paths[0]))


# --- deleting


def entry_of(path):
    """A shard's entry."""
    return Entry(name=os.path.basename(path), size_bytes=10, used_ns=0)


def test_deleting_says_whether_the_shard_is_gone(home, events):
    """Gone already: yes. Open anywhere, a directory by now: no, and nothing of it is touched."""
    paths = fill(home, "abc")
    space = Space(home, limit=None, hooks=[events])
    assert space.delete(entry_of(paths[0]))
    assert space.delete(entry_of(paths[0]))
    with leased(paths[1]):
        assert not space.delete(entry_of(paths[1]))
    assert os.path.exists(table_of(paths[1]))
    os.unlink(paths[2])
    os.mkdir(paths[2])
    assert not space.delete(entry_of(paths[2]))
    assert events == [Evicted(path=paths[0], size_bytes=10)]
    assert files_open_in(home) == []


def test_a_shard_that_cannot_be_deleted(home, monkeypatch, caplog):
    """Another user's: it stays, with its table, and a word in the log; the next one goes."""
    paths = fill(home, "ab")
    real = os.unlink

    def refusing(path, **options):
        if path == paths[0]:
            raise PermissionError(errno.EPERM, "Operation not permitted", path)
        real(path, **options)

    monkeypatch.setattr(os, "unlink", refusing)
    reserve(Space(home, limit=20), 10)
    assert left(home) == "a"
    assert f"{paths[0]}: cannot be deleted" in caplog.text


def test_a_process_that_is_killed_while_it_deletes_leaves_no_table(home, monkeypatch):
    """Between the shard and its table: the log does not say that all is told, so the next one finds the table."""
    [path] = fill(home, "a")
    space, real = Space(home, limit=100), os.unlink
    reserve(space, 10)

    def killed(name, **options):
        if name == table_of(path):
            raise KeyboardInterrupt
        real(name, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            space.delete(entry_of(path))
    reserve(space, 10)
    assert not os.path.exists(table_of(path))


def test_a_shard_that_cannot_be_written_is_deleted_all_the_same(home, monkeypatch):
    """Files of mode 0444 cannot be opened for writing, which some file systems want for a lock."""
    [path] = fill(home, "a")
    real = os.open

    def read_only(name, flags, *args, **options):
        if name == path and flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "Permission denied", name)
        return real(name, flags, *args, **options)

    monkeypatch.setattr(os, "open", read_only)
    assert Space(home, limit=None).delete(entry_of(path))
    assert left(home) == ""


def test_sweeping_takes_nothing_that_is_alive(home, events):
    """Part files that are locked, plans of live jobs, tables of shards: all stay; garbage goes, and is told."""
    fill(home, "a")
    garbage = put_garbage(f"{home}/x.tar", 7)
    with atomic.part_file(staging_of(f"{home}/y.tar")) as (part, _), planned(home, a=5.0):
        before = files_in(home)
        Space(home, limit=None, hooks=[events]).sweep()
        assert files_in(home) == [name for name in before if name != os.path.relpath(garbage, home)]
        assert os.path.exists(part)
    assert events == [Swept(path=garbage, size_bytes=7)]


def test_a_part_file_that_was_published_while_others_sweep(home, events, monkeypatch):
    """Where nobody can lock the directory, a download may get its name between the look at it and its deletion."""
    part, fd = atomic.make_part(staging_of(f"{home}/a.tar"))
    real = usage_hints.is_abandoned

    def late(other, **options):
        os.replace(part, f"{home}/a.tar")
        system.unlock(fd)
        return real(other, **options)

    monkeypatch.setattr(usage_hints, "is_abandoned", late)
    Space(home, limit=None, hooks=[events]).sweep()
    os.close(fd)
    assert os.path.exists(f"{home}/a.tar")


@pytest.mark.parametrize("lost", ["the table", "what the table knew"])
def test_a_shard_that_was_proved_by_its_md5_is_leased(tmp_path, home, lost):
    """However a shard was found to be right, it cannot be deleted while it is open."""
    store = AutoProvider(cache_dir=home, cache_local=True)
    shard = described(shards.write(tmp_path / "a.tar", A), A)
    if lost == "the table":
        path = store.open(shard).path
        os.unlink(table_of(path))
    else:
        path = store.open(described(shard.url, A, md5sum=None)).path
    reader = store.open(shard)
    assert not Space(home, limit=None).delete(entry_of(path))
    assert texts(reader) == texts_of()
    reader.close()
    assert Space(home, limit=None).delete(entry_of(path))


# --- from outside: evict_from


def test_cleaning_keeps_both_bounds_over_several_directories(tmp_path):
    """Bytes and shards are counted over all of them, and the oldest of all goes first."""
    homes = [str(tmp_path / name) for name in ("one", "two")]
    for number, home in enumerate(homes):
        os.mkdir(home)
        for place, name in enumerate("abc"):
            put_shard(home, f"{name}.tar", 10, used=1000 + 2 * place + number)
    cleaned = [Space(home, limit=None) for home in reversed(homes)]
    assert evict_from(cleaned, limit=50, maximum=99) == [(f"{homes[0]}/a.tar", 10)]
    assert evict_from(cleaned, limit=99, maximum=3) == [(f"{homes[1]}/a.tar", 10), (f"{homes[0]}/b.tar", 10)]
    assert evict_from(cleaned, limit=0, maximum=0, is_dry=True) == [
        (f"{homes[1]}/b.tar", 10),
        (f"{homes[0]}/c.tar", 10),
        (f"{homes[1]}/c.tar", 10),
    ]
    assert [left(home) for home in homes] == ["c", "bc"]


def test_cleaning_does_not_count_what_it_sweeps(home):
    """The garbage of killed downloads, and tables without shards, go first: no shard goes for their bytes."""
    fill(home)
    put_garbage(f"{home}/x.tar", 1000)
    put_table(f"{home}/y.tar", 1000)
    assert evict_from([Space(home, limit=None)], limit=40, maximum=99) == []
    assert left(home) == "abcd"


def test_cleaning_counts_downloads_under_way(home):
    """What others are fetching is within the bound, too."""
    fill(home)
    with atomic.part_file(staging_of(f"{home}/x.tar")) as (_, fd):
        os.truncate(fd, 15)
        evict_from([Space(home, limit=None)], limit=40, maximum=99)
    assert left(home) == "cd"


def test_cleaning_goes_round_what_is_open_and_rings(home):
    """An open shard is passed over, the next one goes; if that is not enough, the bell is rung."""
    paths = fill(home)
    space = Space(home, limit=None)
    with leased(paths[0]):
        assert evict_from([space], limit=30, maximum=99) == [(paths[1], 10)]
        assert space.directory.release_request_time() == 0
        assert len(evict_from([space], limit=5, maximum=99)) == 2
        assert space.directory.release_request_time() > 0
    assert left(home) == "a"


# --- directories in trouble


@pytest.mark.parametrize("limit", [None, 100])
@pytest.mark.parametrize("trouble", ["it cannot be listed", "nobody says what is free"])
def test_a_directory_that_cannot_be_looked_at(home, monkeypatch, limit, trouble):
    """It is an error of the cache, which says what to do, and not of the system."""

    def failing(*args):
        raise PermissionError(errno.EACCES, "Permission denied", home)

    space = Space(home, limit=limit)
    reserve(space, 5)
    monkeypatch.setattr(*((os, "scandir") if "listed" in trouble else (system, "free_bytes")), failing)
    monkeypatch.setattr(space, "_has_swept", trouble != "it cannot be listed")
    with pytest.raises(CacheError, match="choose another cache_dir") as caught:
        reserve(space, 12)
    assert not isinstance(caught.value, CacheFull)
    assert isinstance(caught.value.__cause__, PermissionError)


def test_a_directory_that_goes_while_room_is_made(tmp_path, home):
    """It may be emptied or deleted at any moment: the shard is fetched again into a new one."""
    url = shards.write(tmp_path / "a.tar", A)
    store = AutoProvider(cache_dir=home, cache_local=True)
    store.open(described(shards.write(tmp_path / "b.tar", B), B))
    real = Space.reserve
    wiped = []

    def late(self, *args, **options):
        if not wiped:
            wiped.append(home)
            os.rename(home, f"{home}.gone")
        real(self, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Space, "reserve", late)
        assert texts(store.open(described(url, A))) == texts_of()
    assert wiped == [home]


def test_a_disk_that_refuses_the_bytes(home, monkeypatch):
    """What the file system said it had, it has not: an error of the cache."""

    def failing(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "ftruncate", failing)
    with pytest.raises(CacheError, match="free space"):
        reserve(Space(home, limit=100), 12)


# --- without locks


def test_without_locks_what_is_open_may_go(home, monkeypatch, clock):
    """Where files cannot be locked nobody knows what is open: shards go, and whoever reads one reads on."""
    monkeypatch.setattr(system, "try_lock", lambda fd, *, is_shared: None)
    paths = fill(home, "ab")
    with open(paths[0], "rb") as reader:
        assert locks.lease(reader.fileno()) is None
        reserve(Space(home, limit=20), 10)
        assert left(home) == "b"
        assert reader.read() == bytes(10)
    assert clock.sleeps == 0


def test_without_locks_downloads_go_by_their_age(home, monkeypatch):
    """A part file that was written to today is somebody's; one that is older is nobody's."""
    monkeypatch.setattr(system, "try_lock", lambda fd, *, is_shared: None)
    young, old = put_garbage(f"{home}/a.tar", 5), put_garbage(f"{home}/b.tar", 5)
    os.utime(old, (time.time() - 90_000,) * 2)
    Space(home, limit=None).sweep()
    assert files_in(home) == [os.path.relpath(young, home)]


@pytest.mark.parametrize("limit", [None, 3 * len(A)])
def test_a_store_without_locks(tmp_path, home, monkeypatch, limit):
    """Everything works without file locks, those of shards and directories too; twice the work at worst."""
    import fcntl

    def flock(fd, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    urls = {tag: shards.write(tmp_path / f"{tag}.tar", shards.shard(tag)) for tag in "abc"}
    store = AutoProvider(cache_dir=home, cache_local=True, cache_size=limit)
    for tag in "abcabc":
        reader = store.open(described(urls[tag], shards.shard(tag)))
        assert texts(reader) == texts_of(tag)
    assert len(names_in(home)) == (3 if limit is None else 2)
    assert not any(name.endswith(".part") for name in files_in(home))


def test_a_table_that_cannot_be_saved_is_told_of_once(home, monkeypatch, caplog):
    """The shard stays foreign, and its checksum is taken again at each opening, which may take long."""
    path = put_file(home, "a.tar", A)
    fd, facts = atomic.open_file(path)
    table = member_tables.scan_table(fd, "a", facts)
    os.close(fd)
    space = Space(home, limit=None)

    def failing(*args):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "replace", failing)
    for _ in range(3):
        space.adopt("a.tar", table)
    assert [record.levelname for record in caplog.records if "cannot be saved" in record.message][:1] == ["WARNING"]
    assert sum(record.levelname == "WARNING" for record in caplog.records) == 1


def ring(directory):
    """Ring the bell."""
    Space(directory, limit=None).request_release()
    return True


def test_a_bell_that_is_no_file(tmp_path):
    """A FIFO in the bell's place stops nobody."""
    CacheDirectory(str(tmp_path)).make()
    os.mkfifo(CacheDirectory(str(tmp_path)).release_request)
    with child(answer_ring, str(tmp_path)) as (_, connection):
        assert receive(connection)


def answer_ring(connection, directory):
    """`ring`, and say so."""
    connection.send(ring(directory))


def test_nothing_goes_ahead_for_what_does_not_fit(tmp_path):
    """What is fetched ahead, and cannot be let in whatever goes, evicts nothing."""
    for name in "abc":
        put_shard(tmp_path, f"{name}.tar", 1000)
    _, fd = atomic.make_part(str(tmp_path / "new.tar"))
    try:
        with pytest.raises(CacheFull):
            Space(str(tmp_path), limit=4000).reserve([(fd, 5000)], url="http://x/new.tar", after=time.time())
    finally:
        os.close(fd)
    assert names_in(tmp_path) == ["a.tar", "b.tar", "c.tar"]


@given(st.integers(0, 1 << 40), st.none() | st.integers(0, 1 << 20))
def test_the_size_of_a_shard_by_what_it_needs(size, nsamples):
    """What is kept free for its table is taken off again, but for a rounding."""
    found = spaces.shard_bytes(size + table_allowance(size, nsamples), nsamples)
    assert abs(found - size) <= 1


@pytest.mark.parametrize("limit", [5 * 104, 400], ids=["another shard goes", "nothing else can go"])
def test_a_table_that_cannot_be_deleted_is_not_free_space(home, monkeypatch, clock, limit):
    """Its bytes had been granted already: the limit was exceeded by them."""
    fill_with_tables(home, "abcde" if limit == 5 * 104 else "a")
    space, unlink = Space(home, limit=limit), os.unlink

    def failing(path, **options):
        if os.path.basename(os.path.dirname(path)) == "remembered":
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        unlink(path, **options)

    monkeypatch.setattr("wids.core.cache.space.os.unlink", failing)
    if limit == 400:
        with pytest.raises(CacheFull):
            reserve(space, limit)
    else:
        assert reserve(space, 104) == 104
        assert (left(home), remembered(home)) == ("cde", "a")
    assert CacheDirectory(home).inventory().used_bytes <= limit

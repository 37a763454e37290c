import gc
import os
import threading
from functools import partial
from types import SimpleNamespace

import pytest

import wids
from tests.support import cache_shards as shards
from tests.support.cache_shards import described, texts, texts_of
from tests.support.children import call_in_child
from tests.support.clocks import threads_named, wait_until
from wids.core.cache import leases as lease_module
from wids.core.cache.directory import CacheDirectory
from wids.core.cache.leases import Leases, leases
from wids.core.cache.space import Space
from wids.core.readers.pool import OpenShards
from wids.core.readers.provider import AutoProvider

TAGS = "abcde"
WATCH = Leases._watch


@pytest.fixture
def home(tmp_path):
    """A cache directory."""
    os.mkdir(tmp_path / "cache")
    return str(tmp_path / "cache")


@pytest.fixture
def local(tmp_path):
    """Shards, to be copied into a cache."""
    return [described(shards.write(tmp_path / f"{tag}.tar", shards.shard(tag)), shards.shard(tag)) for tag in TAGS]


class FakePool:
    """Leases a shard in each of its directories, and is asked for space as the test says."""

    def __init__(self, *directories):
        self.leased = set(directories)
        self.requests, self.looks, self.released = {}, [], []

    def has_leases(self, directory):
        """As `wids.core.cache.leases.LeasingPool`."""
        return directory in self.leased

    def release_idle(self, directory):
        """As `wids.core.cache.leases.LeasingPool`."""
        self.released.append(directory)
        is_any = directory in self.leased
        self.leased.discard(directory)
        return is_any

    def request_time(self, directory):
        """As `wids.core.cache.leases.LeasingPool`."""
        self.looks.append(directory)
        return self.requests.get(directory, 0)


@pytest.fixture(autouse=True)
def _nothing_of_other_tests():
    """Datasets that other tests of this process left open lease nothing here."""
    gc.collect()
    leases.begin()


@pytest.fixture
def notes(monkeypatch):
    """`Leases` without a thread: tests take its steps."""
    monkeypatch.setattr(Leases, "_watch", lambda _: None)
    return Leases()


def open_pool(home, shard, **options):
    """A pool with a cached shard open, which nobody reads."""
    pool = OpenShards(AutoProvider(cache_dir=home, cache_local=True, **options), capacity=3, find=None, hooks=())
    pool.open(shard)
    return pool


def listeners():
    """The threads that look for requests."""
    return threads_named("wids-leases")


# --- what is noted


def test_a_directory_is_looked_at_once_for_all_pools(notes):
    """However many pools lease shards in a directory, it is asked for requests once each time."""
    pools = [FakePool("d") for _ in range(40)]
    for pool in pools:
        notes.register("d", pool)
    before = sum(len(pool.looks) for pool in pools)
    assert before == 1
    assert not notes._answer()
    assert sum(len(pool.looks) for pool in pools) == before + 1


def test_a_request_is_passed_on_once(notes):
    """All pools of the directory release what they lease there, those of others nothing; the next request, again."""
    first, second, other = FakePool("d", "e"), FakePool("d"), FakePool("f")
    for directory, pool in (("d", first), ("e", first), ("d", second), ("f", other)):
        notes.register(directory, pool)
    for pool in (first, second):
        pool.requests["d"] = 7
    assert notes._answer()
    assert not notes._answer()
    assert (first.released, second.released, other.released) == (["d"], ["d"], [])
    for pool in (first, second):
        pool.requests["d"] = 8
    assert notes._answer()
    assert (first.released, second.released, other.released) == (["d"] * 2, ["d"] * 2, [])


def test_a_request_before_the_first_lease_is_none(notes):
    """What was asked for earlier was not asked of this process; what comes before the first look is."""
    pool = FakePool("d")
    pool.requests["d"] = 5
    notes.register("d", pool)
    assert not notes._answer()
    other = FakePool("e")
    notes.register("e", other)
    other.requests["e"] = 1
    assert notes._answer()
    assert (pool.released, other.released) == ([], ["e"])


def test_pools_without_leases_are_forgotten(notes):
    """A pool that leases nothing any more is noted no longer, nor is its directory; after the last the thread ends."""
    first, second = FakePool("d", "e"), FakePool("d")
    for directory, pool in (("d", first), ("e", first), ("d", second)):
        notes.register(directory, pool)
    first.leased.clear()
    assert notes._drop_unused()
    assert (notes._pools_of("d"), notes._pools_of("e")) == ([second], [])
    del second, pool
    assert not notes._drop_unused()
    assert (notes._pools, notes._seen, notes._thread) == ({}, {}, None)


def test_a_pool_may_come_back(notes):
    """After the thread's end the next lease starts another one, and requests in between are no concern of it."""
    pool = FakePool("d")
    notes.register("d", pool)
    pool.leased.clear()
    assert not notes._drop_unused()
    pool.leased.add("d")
    pool.requests["d"] = 3
    notes.register("d", pool)
    assert notes._thread is not None
    assert not notes._answer()


def test_a_series_of_requests_is_answered_fast(notes, monkeypatch):
    """Who has just begun to lease, or has just been asked, looks for requests more often; then less again."""
    pool, clock, sleeps = FakePool("d"), SimpleNamespace(now=100.0), []
    busy, idle = lease_module._BUSY_SECONDS, lease_module._IDLE_SECONDS

    def sleep(seconds):
        sleeps.append(seconds)
        clock.now += seconds
        if sleeps.count(idle) == 2 and not pool.requests:
            pool.requests["d"] = 1
            pool.release_idle = lambda _: True  # it is being read, and closes later
        elif sleeps.count(idle) == 3:
            pool.leased.clear()

    monkeypatch.setattr(lease_module, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    notes.register("d", pool)
    WATCH(notes)
    first = sleeps.index(idle)
    series = pytest.approx(lease_module._SERIES_SECONDS, abs=2 * busy)
    assert set(sleeps[:first]) == {busy}
    assert sum(sleeps[:first]) == series
    assert sleeps[first : first + 2] == [idle, idle]
    assert set(sleeps[first + 2 : -1]) == {busy}
    assert sum(sleeps[first + 2 : -1]) == series


# --- pools, threads, processes


def test_one_thread_for_all_pools(home, local):
    """Five pools with leases have one thread; when the last lease is gone it ends, and a new lease has one again."""
    pools = [open_pool(home, shard) for shard in local]
    assert len(listeners()) == 1
    for pool in pools[1:]:
        pool.clear()
    del pools[1:], pool
    pools[0].clear()
    wait_until(lambda: not listeners())
    pools[0].open(local[0])
    assert len(listeners()) == 1
    del pools
    wait_until(lambda: not listeners())


def test_shards_of_all_pools_close_for_another_process(home, local):
    """A process that needs space gets that of all idle shards of another one, in whichever datasets they are open."""
    pools = [open_pool(home, shard) for shard in local]
    call_in_child(ask_for_space, home)
    wait_until(lambda: not any(map(len, pools)))
    wait_until(lambda: shards.files_open_in(home) == [])


def ask_for_space(home):
    """As who needs more than may be deleted."""
    Space(home, limit=None).request_release()


def test_a_dataset_that_waits_takes_the_space_of_another(home, local, monkeypatch):
    """Two datasets of one process share a directory: one gives way to the other, without a thread and at once."""

    def start(_):
        raise RuntimeError("can't start new thread")

    wait_until(lambda: not listeners())
    monkeypatch.setattr(threading.Thread, "start", start)
    first = open_pool(home, local[0])
    size = CacheDirectory(home).inventory().used_bytes
    second = open_pool(home, local[1], cache_size=2 * size - 1)
    assert (len(first), len(second)) == (0, 1)
    assert texts(second.open(local[1])) == texts_of("b")


def test_a_shard_at_hand_is_no_lease_for_good(home, local):
    """A shard that left the pool while its dataset read from it closes, although nothing in the pool is leased."""
    dataset = wids.ShardListDataset([(local[0].url, 3)], cache_dir=home, cache_local=True, transformations=[])
    assert dataset[0][".txt"].read() == b"a0"
    dataset.cache.clear()
    wait_until(lambda: shards.files_open_in(home) == [])
    assert dataset[1][".txt"].read() == b"a1"


def test_a_forked_process_listens_for_itself(home, local):
    """A child starts without leases and without the thread; with its first lease it has one that is heard."""
    pools = [open_pool(home, shard) for shard in local]
    assert call_in_child(partial(listen_in_child, pools, home, local))
    assert list(map(len, pools)) == [1] * len(pools)


def listen_in_child(pools, home, local):
    """Open a shard, and close it because space is asked for; True."""
    assert (listeners(), leases._pools, leases._thread) == ([], {}, None)
    assert list(map(len, pools)) == [0] * len(pools)
    pools[0].open(local[0])
    assert len(listeners()) == 1
    directory = os.path.join(home, "other")
    os.mkdir(directory)
    pools[1].provider.cache.placement.cache_dir = directory
    pools[1].open(local[1])
    assert len(listeners()) == 1
    Space(directory, limit=None).request_release()
    wait_until(lambda: len(pools[1]) == 0)
    assert len(pools[0]) == 1
    return True

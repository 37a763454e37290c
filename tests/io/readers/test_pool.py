import copy
import errno
import functools
import gc
import operator
import os
import pickle
import random
import resource
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

import wids
from tests.support import cache_shards
from tests.support import cache_shards as shards
from tests.support.cache_shards import texts, texts_of
from tests.support.children import PATIENCE_SECONDS, call_in_child
from tests.support.shards import write_shards
from wids.core.files import system
from wids.core.readers import lru as lru_module
from wids.core.readers.pool import LRUCache, OpenShards, default_capacity
from wids.core.readers.provider import AutoProvider
from wids.core.shard import Shard
from wids.core.transport.session import Session
from wids.errors import CacheError, FetchDeniedError, ShardNotFoundError
from wids.events import Closed

TAGS = "abcdef"


@pytest.fixture
def paths(tmp_path):
    """Six local shards."""
    return [shards.write(tmp_path / f"{tag}.tar", shards.shard(tag)) for tag in TAGS]


@pytest.fixture
def many(tmp_path):
    """Twelve local shards, all of the text of shard ``a``."""
    return [shards.write(tmp_path / "many" / f"{k:02d}.tar", shards.shard("a")) for k in range(12)]


@pytest.fixture
def few_descriptors(monkeypatch):
    """The process may have 64 descriptors, so that 16 shards may be open; pools that tests left behind are gone."""
    gc.collect()
    monkeypatch.setattr(system, "descriptor_limit", lambda: 64)


def make_pool(paths, *, capacity=3, hooks=()):
    """A pool for local shards."""
    known = {path: Shard(url=path, nsamples=3) for path in paths}
    return OpenShards(
        AutoProvider(cache_dir=None, session=Session(hooks=hooks)),
        capacity=capacity,
        find=functools.partial(operator.getitem, known),
        hooks=hooks,
    )


# --- the mapping


def test_lru_forgets_the_least_recently_used():
    """Beyond its capacity it forgets what was used longest ago, by look-up or by assignment."""
    released = []
    lru = LRUCache(2, lambda key, value: released.append((key, value)))
    lru["a"], lru["b"] = 1, 2
    assert lru["a"] == 1
    lru["c"] = 3
    assert released == [("b", 2)]
    assert (list(lru.keys()), list(lru.values()), list(lru.items())) == (["a", "c"], [1, 3], [("a", 1), ("c", 3)])
    assert (lru["b"], "b" in lru, "a" in lru, len(lru)) == (None, False, True, 2)


def test_lru_releases_what_is_replaced_deleted_or_cleared():
    """Every value that leaves is released once; one that is assigned again is not."""
    released = []
    lru = LRUCache(5, lambda key, value: released.append((key, value)))
    one = object()
    lru["a"] = one
    lru["a"] = one
    assert released == []
    lru["a"] = 2
    assert released == [("a", one)]
    del lru["a"]
    del lru["a"]
    assert released == [("a", one), ("a", 2)]
    lru["b"], lru["c"] = 3, 4
    lru.clear()
    assert released[2:] == [("b", 3), ("c", 4)]
    assert len(lru) == 0


@pytest.mark.parametrize("capacity", [1, 0, -5])
def test_lru_keeps_the_newest(capacity):
    """However small the capacity, what was just put in is there; without a handler nobody is told."""
    lru = LRUCache(capacity)
    for key in "abc":
        lru[key] = key
        assert list(lru.keys()) == [key]


def test_lru_capacity_may_change():
    """A smaller capacity holds from the next assignment on."""
    lru = LRUCache(4)
    for key in "abcd":
        lru[key] = key
    lru.capacity = 2
    lru["e"] = "e"
    assert list(lru.keys()) == ["d", "e"]


def test_lru_handler_errors_are_the_caller_s():
    """A release handler that fails is not silenced, whatever it raises."""

    def fail(key, value):
        raise KeyError("mine")

    lru = LRUCache(1, fail)
    lru["a"] = 1
    with pytest.raises(KeyError, match="mine"):
        lru["b"] = 2
    assert list(lru.keys()) == ["b"]


def test_lru_steps_that_another_thread_undoes():
    """An entry that goes between two steps of a look-up or an assignment is no error, and its value is still good."""

    class Meddled(lru_module.OrderedDict):
        def move_to_end(self, key, last=True):
            self.pop(key, None)
            super().move_to_end(key, last)

        def __len__(self):
            return super().__len__() + 5

    lru = LRUCache(1)
    lru.cache = Meddled(a=1)
    assert lru["a"] == 1
    lru["a"] = 2
    assert list(lru.cache) == []


def test_lru_snapshot_while_the_collector_runs():
    """A finalizer that the collector runs in the middle of it may close shards: the list is of one moment."""

    class Owner:
        def __init__(self):
            self.cycle = self

        def __del__(self):
            lru.forget(1)

    count = 10_000  # more pairs than Python keeps for reuse
    lru = LRUCache(count)
    thresholds, is_enabled = gc.get_threshold(), gc.isenabled()
    gc.disable()
    try:
        for key in range(count):
            lru[key] = str(key)
        gc.collect()
        Owner()
        gc.set_threshold(count // 2)  # objects, and so in the middle
        gc.enable()
        found = lru.snapshot()
    finally:
        gc.set_threshold(*thresholds)
        if not is_enabled:
            gc.disable()
    first = found[0][0]
    assert first in (0, 1)
    assert found == [(key, str(key)) for key in range(first, count)]


def test_lru_of_bytes():
    """The last used stay, up to so many bytes, and at least one; a look at a value is no use of it."""
    lru = lru_module.SizedLRUCache(10)
    for key, size in (("a", 4), ("b", 4), ("a", 4), ("c", 6)):
        lru.keep(key, key.upper(), size)
    assert list(lru.keys()) == ["a", "c"]
    assert [lru.use("a"), lru.peek("c"), lru.peek("b"), lru.use("b")] == ["A", "C", None, None]
    lru.keep("d", "D", 3)
    assert list(lru.keys()) == ["a", "d"]
    lru.keep("e", "E", 100)
    assert [lru.use(key) for key in "ade"] == [None, None, "E"]
    lru.keep("f", "F", 1)
    assert list(lru.keys()) == ["f"]


@pytest.mark.parametrize("number", range(1, 6))
def test_lru_loses_nothing_that_another_thread_sets_meanwhile(number):
    """Wherever in an assignment another thread assigns the same key, each value is kept or released."""
    steps = iter(range(1, 100))

    class Meddled(lru_module.OrderedDict):
        def step(self):
            if next(steps) == number:
                lru["a"] = "theirs"

        def get(self, key, default=None):
            self.step()
            return super().get(key, default)

        def __setitem__(self, key, value):
            self.step()
            super().__setitem__(key, value)

        def setdefault(self, key, default=None):
            self.step()
            if key not in self:
                super().__setitem__(key, default)
            return super().__getitem__(key)

        def pop(self, key, *default):
            self.step()
            return super().pop(key, *default)

        def move_to_end(self, key, last=True):
            self.step()
            super().move_to_end(key, last)

    released = []
    lru = LRUCache(4, lambda key, value: released.append(value))
    lru.cache = Meddled()
    lru["a"] = "ours"
    set_ = ["ours", "theirs"] if next(steps) > number else ["ours"]
    assert sorted([*released, *lru.values()]) == set_


def test_lru_in_many_threads():
    """Threads that look up, assign, delete and clear at once never see an error or a value under another key."""
    released, wrong = [], []
    lru = LRUCache(4, lambda key, value: released.append((key, value)))
    barrier = threading.Barrier(4)

    def work(seed):
        barrier.wait(PATIENCE_SECONDS)
        for step in range(4000):
            key = (step * seed) % 9
            try:
                value = lru[key]
                if value is None:
                    lru[key] = (key, seed, step)
                elif value[0] != key:
                    wrong.append((key, value))
                if step % 97 == 0:
                    del lru[key]
                if step % 501 == 0:
                    lru.clear()
            except BaseException as error:
                wrong.append(error)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, [1, 2, 5, 7]))
    assert wrong == []
    lru.clear()
    assert len({value for _, value in released}) == len(released)


# --- its size


@pytest.mark.parametrize(
    ("limit", "capacity"), [(resource.RLIM_INFINITY, 512), (1 << 20, 512), (1024, 256), (256, 64), (40, 16), (0, 16)]
)
def test_default_capacity(monkeypatch, limit, capacity):
    """A quarter of the descriptors that the process may have, between 16 and 512."""
    monkeypatch.setattr(system, "descriptor_limit", lambda: limit)
    assert default_capacity() == capacity


def test_pools_share_the_descriptors(many, few_descriptors, events):
    """Beyond a quarter of the descriptors, the shard used longest ago is closed, in whichever pool it is."""
    first, second = (make_pool(many, capacity=None, hooks=[events]) for _ in range(2))
    for path in [*many, *many[:2]]:
        first.get_shard(path)
    for path in many:
        second.get_shard(path)
    assert list(first.lru.keys()) == [*many[10:], *many[:2]]
    assert list(second.lru.keys()) == many
    assert [event.url for event in events if isinstance(event, Closed)] == many[2:10]
    assert len(shards.files_open_in(os.path.dirname(many[0]))) == 16
    first.get_shard(many[10])
    first.get_shard(many[2])
    assert list(first.lru.keys()) == [*many[:2], many[10], many[2]]
    second.get_shard(many[0])
    second.get_shard(many[0])
    assert (len(first), len(second)) == (4, 12)


def test_a_capacity_that_was_given_is_not_shared(many, few_descriptors):
    """Who says how many shards are to be open gets them, and takes none from pools that share the descriptors."""
    own, shared = make_pool(many, capacity=12), make_pool(many, capacity=None)
    for opened in (own, shared, own, shared):
        read_all_of(opened, many)
    assert (len(own), len(shared), own.misses, shared.misses) == (12, 12, 12, 12)


def test_a_pool_that_is_gone_gives_its_share_back(many, few_descriptors):
    """What was open in a dataset that is deleted counts no more."""
    first, second = (make_pool(many, capacity=None) for _ in range(2))
    read_all_of(first, many)
    del first
    read_all_of(second, many)
    third = make_pool(many, capacity=None)
    for path in many[:4]:
        third.get_shard(path)
    assert (len(second), len(third)) == (12, 4)


def test_a_dataset_does_not_keep_a_shard_at_hand_that_is_to_close(many, few_descriptors):
    """A shard closes for others' sake although its dataset read from it last, and opens again when it is read."""
    first, *others = (wids.ShardListDataset([(path, 3) for path in many], transformations=[]) for _ in range(3))
    found = first[0]["__key__"]
    for dataset in others:
        assert len(list(dataset)) == 36
    assert len(first.cache) == 0
    assert len(shards.files_open_in(os.path.dirname(many[0]))) == 16
    assert first[0]["__key__"] == found


def test_a_copy_shares_as_its_original_does(many, few_descriptors):
    """A pool that travelled to another process shares that one's descriptors."""
    first, second = (pickle.loads(pickle.dumps(make_pool(many, capacity=None))) for _ in range(2))
    read_all_of(first, many)
    read_all_of(second, many)
    assert (len(first), len(second)) == (4, 12)


def test_threads_share_the_descriptors(many, few_descriptors):
    """Threads that read through pools of their own close one another's shards, and read the right bytes."""
    pools = [make_pool(many, capacity=None) for _ in range(4)]
    barrier = threading.Barrier(4)

    def work(opened):
        barrier.wait(PATIENCE_SECONDS)
        return [texts(opened.get_shard(path)) == texts_of("a") for _ in range(25) for path in many]

    with ThreadPoolExecutor(4) as threads:
        assert [all(found) for found in threads.map(work, pools)] == [True] * 4
    pools[0].get_shard(many[0])
    assert sum(map(len, pools)) <= 16


SIX_DATASETS = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
import torch, wids
from torch.utils.data import ConcatDataset, DataLoader
sets = [wids.ShardListDataset([(path, 3) for path in sys.argv[1:]], transformations=[]) for _ in range(6)]
for dataset in sets:
    assert sum(1 for _ in dataset) == 210
print(sum(len(dataset.cache) for dataset in sets))
loader = DataLoader(ConcatDataset(sets), batch_size=15, shuffle=True, num_workers=3, collate_fn=len)
for _ in range(2):
    print(sum(loader))
"""


def test_many_datasets_leave_descriptors_to_the_program(tmp_path):
    """Six datasets of 70 shards under a limit of 256 open 64 at most, and a loader has what its workers need."""
    paths = [shards.write(tmp_path / f"{k}.tar", shards.shard("a")) for k in range(70)]
    done = subprocess.run(
        [sys.executable, "-c", SIX_DATASETS, *paths], capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert (done.returncode, done.stdout.split()) == (0, ["64", "1260", "1260"]), done.stderr


# --- open shards


def test_shards_stay_open(paths, tmp_path, events):
    """A shard is opened once while it is in the pool; the one used longest ago is closed for a fourth."""
    opened = make_pool(paths, hooks=[events])
    for path in [*paths[:3], *paths[:3]]:
        assert texts(opened.get_shard(path)) == texts_of(path[-5])
    assert (opened.accesses, opened.misses, len(opened)) == (6, 3, 3)
    opened.get_shard(paths[0])
    opened.get_shard(paths[3])
    assert list(opened.lru.keys()) == [paths[2], paths[0], paths[3]]
    assert sorted(shards.files_open_in(tmp_path)) == [paths[0], paths[2], paths[3]]
    assert events.names() == ["Opened"] * 4 + ["Closed"]
    assert events[-1] == Closed(url=paths[1])
    opened.clear()
    assert shards.files_open_in(tmp_path) == []
    assert events.names()[5:] == ["Closed"] * 3
    opened.reset_stats()
    assert (opened.accesses, opened.misses) == (0, 0)


def test_a_shard_may_be_given_itself(paths):
    """With the shard in hand no look-up is needed; it is opened once and counts as no access to a sample."""
    opened = make_pool(paths)
    shard = Shard(url=paths[0], nsamples=3)
    assert opened.open(shard) is opened.open(shard) is opened.get_shard(paths[0])
    assert (opened.accesses, opened.misses) == (1, 1)


def test_an_unknown_url_is_a_key_error(paths):
    """A URL that the dataset does not have is a KeyError."""
    with pytest.raises(KeyError):
        make_pool(paths).get_shard("nosuch")


def test_a_reader_in_use_survives_its_eviction(paths):
    """Who holds a reader reads on when the pool lets go of it."""
    opened = make_pool(paths, capacity=1)
    held = opened.get_shard(paths[0])
    for path in paths:
        opened.get_shard(path)
    opened.clear()
    assert texts(held) == texts_of("a")


def test_readers_of_a_pool_share_their_blocks(paths):
    """All readers of a pool read ahead into the same bounded memory."""
    opened = make_pool(paths)
    first, second = opened.get_shard(paths[0]), opened.get_shard(paths[1])
    assert first.reader._blocks is second.reader._blocks
    for _ in range(30):
        assert (texts(first), texts(second)) == (texts_of("a"), texts_of("b"))
    assert len(first.reader._blocks.kept) == 2


ROWS = 5


def read_at_once(dataset, seed, rounds, spoil):
    """What was wrong in samples read one by one and in batches, in an order of the thread's own."""
    random_ = random.Random(seed)
    wrong = []
    for step in range(rounds):
        indices = [random_.randrange(len(TAGS) * ROWS) for _ in range(random_.choice([1, 1, 7]))]
        samples = dataset.__getitems__(indices) if len(indices) > 1 else [dataset[indices[0]]]
        for index, sample in zip(indices, samples, strict=True):
            tag, row = TAGS[index // ROWS], index % ROWS
            expected = (index, shards.text(tag, row), (tag.encode() + b"%04d" % row) * 2000)
            if (sample["__index__"], sample[".txt"], sample[".bin"]) != expected:
                wrong.append((index, sample["__index__"], sample["__shard__"]))
        if seed == 0 and step % 5 == 0:
            dataset.cache.clear()
        spoil()
    return wrong


@pytest.mark.parametrize("mode", ["local", "mapped", "cached", "range", "auto"])
@pytest.mark.parametrize("rounds", [15, pytest.param(600, marks=pytest.mark.long)], ids=["", "long"])
def test_threads_with_room_for_one_shard(server, tmp_path, mode, rounds):
    """Eight threads that close each other's only open shard all the time read the right bytes, from no other file."""
    server.has_ranges = True
    listed = []
    for tag in TAGS:
        data = shards.shard(tag, ROWS, 10_000)
        if mode in ("local", "mapped"):
            url = shards.write(tmp_path / f"{tag}.tar", data)
        else:
            url = server.add(f"/{tag}.tar", data)
        listed.append({"url": url, "nsamples": ROWS, "filesize": len(data)})
    dataset = wids.ShardListDataset(
        listed,
        cache_dir=tmp_path / "cache",
        lru_size=1,
        transformations="raw",
        use_mmap=mode == "mapped",
        access=mode if mode in ("range", "auto") else "fetch",
    )
    junk = shards.write(tmp_path / "junk", bytes(100_000))

    def take_free_descriptors():  # so that a read through a number that was closed meanwhile is of another file
        for fd in [os.open(junk, os.O_RDONLY) for _ in range(5)]:
            os.close(fd)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as threads:
            tasks = [threads.submit(read_at_once, dataset, seed, rounds, take_free_descriptors) for seed in range(8)]
            assert [task.result(PATIENCE_SECONDS * 10) for task in tasks] == [[]] * 8
    finally:
        sys.setswitchinterval(interval)
    assert len(dataset.cache) <= 1
    dataset.close()
    gc.collect()
    assert shards.files_open_in(tmp_path) == []


def test_threads_share_a_pool(paths):
    """Threads that read through a pool too small for them evict one another's shards, and read the right bytes."""
    opened = make_pool(paths, capacity=2)
    barrier = threading.Barrier(4)

    def work(seed):
        barrier.wait(PATIENCE_SECONDS)
        wrong = []
        for step in range(300):
            path = paths[(step * seed) % len(paths)]
            if texts(opened.get_shard(path)) != texts_of(path[-5]):
                wrong.append((step, path))
            assert len(opened) <= 3
        return wrong

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, [1, 2, 3, 5])) == [[], [], [], []]


def test_an_eviction_while_another_thread_reads(paths, monkeypatch):
    """A shard evicted by one thread in the middle of another's read does not make it a read of another file."""
    opened = make_pool(paths, capacity=1)
    reading, evicted = threading.Event(), threading.Event()
    real = os.pread
    inode = os.stat(paths[0]).st_ino

    def pread(fd, size, offset):
        if threading.current_thread() is thread and os.fstat(fd).st_ino == inode and offset:
            reading.set()
            assert evicted.wait(PATIENCE_SECONDS)
        return real(fd, size, offset)

    found = []
    thread = threading.Thread(target=lambda: found.append(texts(opened.get_shard(paths[0]))))
    monkeypatch.setattr(system, "pread", pread)
    thread.start()
    assert reading.wait(PATIENCE_SECONDS)
    for path in paths[1:]:
        opened.get_shard(path)
    evicted.set()
    thread.join(PATIENCE_SECONDS)
    assert found == [texts_of("a")]


def test_two_threads_that_open_one_shard(paths, monkeypatch, events):
    """Two threads that miss at once both open it; one reader stays, the other is closed, and both are good."""
    opened = make_pool(paths, hooks=[events])
    barrier = threading.Barrier(2)
    real = AutoProvider.open

    def open_together(self, shard):
        barrier.wait(PATIENCE_SECONDS)
        return real(self, shard)

    monkeypatch.setattr(AutoProvider, "open", open_together)
    with ThreadPoolExecutor(2) as threads:
        readers = list(threads.map(opened.get_shard, [paths[0]] * 2))
    assert [texts(reader) for reader in readers] == [texts_of("a")] * 2
    assert len(opened) == 1
    assert sorted(events.names()) == ["Closed", "Opened", "Opened"]


# --- descriptors


def test_more_shards_than_descriptors(tmp_path):
    """A pool larger than the process's descriptors closes what it used longest ago instead of failing."""
    paths = [shards.write(tmp_path / f"{k}.tar", shards.shard("a")) for k in range(60)]

    def read_all():
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, most))
        opened = make_pool(paths, capacity=1000)
        found = [texts(opened.get_shard(path)) for path in paths * 2]
        return found == [texts_of("a")] * 120, len(opened)

    is_right, count = call_in_child(read_all)
    assert is_right
    assert 1 <= count < 60


def test_descriptors_are_taken_from_other_pools(many, few_descriptors):
    """Where the process has none left, shards of other datasets are closed, too, those used longest ago first."""
    first, second = make_pool(many, capacity=12), make_pool(many)
    read_all_of(first, many)
    second.get_shard(many[0])
    real, failures = second.provider.open, [OSError(errno.EMFILE, "Too many open files")]

    def open_late(shard):
        if failures:
            raise failures.pop()
        return real(shard)

    second.provider.open = open_late
    assert texts(second.get_shard(many[1])) == texts_of("a")
    assert list(first.lru.keys()) == many[7:]
    assert list(second.lru.keys()) == many[:2]


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_descriptors_that_are_all_elsewhere(paths, code):
    """When closing all shards does not help, the error says what is missing."""

    def no_more(shard):
        try:
            raise OSError(code, os.strerror(code))
        except OSError as error:
            raise CacheError("cannot be opened") from error

    opened = make_pool(paths)
    for path in paths[:3]:
        opened.get_shard(path)
    opened.provider = SimpleNamespace(open=no_more)
    with pytest.raises(CacheError) as caught:
        opened.get_shard(paths[5])
    assert caught.value.__cause__.errno == code
    assert len(opened) == 0


def test_other_errors_close_nothing(paths, tmp_path):
    """A shard that is not there or cannot be opened leaves the others open."""
    (tmp_path / "dir.tar").mkdir()
    others = [str(tmp_path / "none.tar"), str(tmp_path / "dir.tar")]
    opened = make_pool([*paths, *others])
    for path in paths[:3]:
        opened.get_shard(path)
    for path, kind in zip(others, (ShardNotFoundError, FetchDeniedError), strict=True):
        with pytest.raises(kind):
            opened.get_shard(path)
    assert len(opened) == 3


# --- copies and processes


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda opened: pickle.loads(pickle.dumps(opened))])
def test_a_copy_opens_its_own(paths, tmp_path, duplicate):
    """A pickle made with shards open, which have been read from, gives a pool with the same rules and nothing open."""
    opened = make_pool(paths)
    for path in paths[:3]:
        texts(opened.get_shard(path))
    again = duplicate(opened)
    assert (len(again), again.lru.capacity, again.accesses, again.misses) == (0, 3, 0, 0)
    assert texts(again.get_shard(paths[0])) == texts_of("a")
    for path in paths[1:4]:
        again.get_shard(path)
    assert len(again) == len(opened) == 3
    assert len(shards.files_open_in(tmp_path)) == 6


def test_a_pickle_while_threads_read(paths):
    """A pool can be pickled at any moment, also while other threads open and close shards."""
    opened = make_pool(paths, capacity=2)
    stop = threading.Event()
    wrong = []

    def work():
        while not stop.is_set():
            wrong.extend(path for path in paths if texts(opened.get_shard(path)) != texts_of(path[-5]))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(50):
            assert texts(pickle.loads(pickle.dumps(opened)).get_shard(paths[0])) == texts_of("a")
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    assert wrong == []


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_pool_in_another_process(paths, method):
    """A pool with open shards works in a forked process, and travels to a new one, and neither harms the parent."""
    opened = make_pool(paths)
    first = texts(opened.get_shard(paths[0]))
    assert call_in_child(read_all_of, opened, paths, method=method) == [texts_of(tag) for tag in TAGS]
    assert texts(opened.get_shard(paths[0])) == first == texts_of("a")


def read_all_of(opened, paths):
    """The text of all samples of all shards."""
    return [texts(opened.get_shard(path)) for path in paths]


def test_forks_at_any_moment(paths):
    """Processes forked while threads open, read and evict work at once: the pool has no lock that a fork could keep."""
    opened = make_pool(paths, capacity=2)
    stop = threading.Event()

    def work():
        while not stop.is_set():
            read_all_of(opened, paths)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            assert call_in_child(read_all_of, opened, paths) == [texts_of(tag) for tag in TAGS]
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)


def read_all_with_few_descriptors(shards, cache_dir):
    """Keys of all samples, read by a process that may open 34 files, however many it has inherited."""
    inherited = {int(name) for name in os.listdir("/proc/self/fd")}
    limit, free = 0, 0
    while free < 34:
        free += limit not in inherited
        limit += 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    dataset = wids.ShardListDataset(shards, cache_dir=cache_dir, transformations=[], lru_size=10**9)
    return [dataset[k][".txt"].read() for k in range(len(dataset))]


def test_few_file_descriptors_are_enough(server, tmp_path):
    """The pool gives way when there are none left, for local and for remote shards."""
    local = write_shards(tmp_path, [2] * 50)
    assert call_in_child(read_all_with_few_descriptors, local, None) == [b"text %d" % k for k in range(100)]
    tags = [chr(ord("a") + k) for k in range(26)]
    remote = [(server.add(f"/{tag}.tar", cache_shards.shard(tag, 2)), 2) for tag in tags]
    found = call_in_child(read_all_with_few_descriptors, remote, str(tmp_path / "cache"))
    assert found == [cache_shards.text(tag, row) for tag in tags for row in range(2)]

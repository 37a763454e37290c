"""The cache under faults: downloads, prefetching, space and eviction lose nothing, leak nothing, and end."""

import contextlib
import copy
import gc
import math
import multiprocessing
import os
import threading
import time

import pytest
from torch.utils.data import Dataset

import wids
from tests.support import cache_shards as shards
from tests.support.cache_dirs import files_in, names_in, put_shard
from tests.support.cache_shards import described
from tests.support.children import PATIENCE_SECONDS, call_in_child, child, receive, stop_here
from tests.support.clocks import threads_named, wait_until
from tests.support.range_faults import unsized
from tests.support.servers import shard_requests, whole, whole_unannounced
from wids.cache import background, prefetch, shard_download, space
from wids.cache.directory import CacheDirectory
from wids.cache.space import Space
from wids.errors import CacheFull, SizeMismatchError, WidsError
from wids.files import atomic, forks, locks, system
from wids.index.spec import Shard
from wids.policy import prefetching
from wids.readers import pool
from wids.readers.provider import AutoProvider
from wids.tables import member_tables
from wids.transport import download, retrying
from wids.transport.download import Transfer

pytestmark = pytest.mark.usefixtures("no_waits", "own_cache")


def serve_shards(server, count, rows=3, size=100):
    """An index of shards behind HTTP."""
    entries = []
    for k in range(count):
        data = shards.shard(chr(ord("a") + k), rows, size)
        url = server.add(f"/{chr(ord('a') + k)}.tar", data)
        entries.append({"url": url, "nsamples": rows, "filesize": len(data)})
    return entries


def is_free(path):
    """Whether nobody has a lease of a file."""
    fd = os.open(path, os.O_RDWR)
    try:
        return bool(system.try_lock(fd, is_shared=False))
    finally:
        os.close(fd)


# --- forks


def test_a_fork_while_a_shard_is_checked_takes_no_lease_along(server, tmp_path, monkeypatch):
    """A process forked while another thread has a shard that is not yet published takes no lease of it along."""
    url = server.add("/a.tar", shards.shard("a"))
    opener = AutoProvider(cache_dir=str(tmp_path / "cache"))
    entered, go = threading.Event(), threading.Event()
    real = member_tables.scan_table

    def held(*args, **options):
        entered.set()
        assert go.wait(PATIENCE_SECONDS)
        return real(*args, **options)

    monkeypatch.setattr(member_tables, "scan_table", held)
    shard = described(url, shards.shard("a"))
    thread = threading.Thread(
        target=lambda: opener.cache.download_ahead(shard, after=-math.inf, is_cancelled=lambda: False)
    )
    thread.start()
    try:
        assert entered.wait(PATIENCE_SECONDS)
        with child(stop_here) as (_, connection):
            receive(connection)
            go.set()
            thread.join(PATIENCE_SECONDS)
            assert is_free(opener.cache.place(url)[0])
    finally:
        go.set()
        thread.join(PATIENCE_SECONDS)


# --- who is asked what comes


class Filtered(Dataset):
    """A wrapper as programs write it: some of the samples, and all else is the dataset's."""

    def __init__(self, dataset, chosen):
        self.inner, self.chosen = dataset, chosen

    def __getattr__(self, name):
        if name in ("inner", "chosen"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __len__(self):
        return len(self.chosen)

    def __getitem__(self, index):
        return self.inner[self.chosen[index]]


class FilteredList(wids.ShardListDataset):
    """The same by inheritance."""

    chosen = range(9, 15)

    def __len__(self):
        return len(self.chosen)

    def __getitem__(self, index):
        return super().__getitem__(self.chosen[index])


@pytest.mark.parametrize("form", ["wrapper", "subclass"])
def test_what_is_never_read_is_not_fetched(server, tmp_path, form):
    """A dataset that chooses samples by itself does not have the first shards fetched in their place."""
    index = serve_shards(server, 5)
    if form == "wrapper":
        dataset = Filtered(wids.ShardListDataset(index, cache_dir=tmp_path / "cache"), range(9, 15))
    else:
        dataset = FilteredList(index, cache_dir=tmp_path / "cache")
    sampler = wids.ChunkedSampler(dataset, shuffle=False)
    drawn = iter(sampler)
    first = next(drawn)
    for thread in threads_named("wids-prefetch"):
        thread.join(1)
    assert dataset[first][".txt"] is not None
    for thread in threads_named("wids-prefetch"):
        thread.join(1)
    assert [dataset[i]["__key__"] for i in drawn]
    assert set(shard_requests(server)) <= {"/d.tar", "/e.tar"}


# --- room


def test_nothing_goes_for_what_can_never_fit(tmp_path, monkeypatch):
    """A server that announces more than the disk has does not cost all that is in the cache."""
    monkeypatch.setattr(space, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(prefetching, "GRACE_SECONDS", 0.0)
    for name in "abc":
        put_shard(tmp_path, f"{name}.tar", 1000)
    _, fd = atomic.make_part(str(tmp_path / "new.tar"))
    try:
        with pytest.raises(CacheFull):
            Space(str(tmp_path), limit=None).reserve([(fd, 1 << 60)], url="http://x/new.tar")
    finally:
        os.close(fd)
    assert names_in(tmp_path) == ["a.tar", "b.tar", "c.tar"]


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


def test_keep_holds_for_what_came_ahead(server, tmp_path):
    """A shard of a dataset that keeps its shards is kept from its arrival on."""
    url, data = server.add("/a.tar", shards.shard("a")), shards.shard("a")
    opener = AutoProvider(cache_dir=str(tmp_path / "cache"), keep=True)
    assert opener.cache.download_ahead(described(url, data), after=time.time(), is_cancelled=lambda: False)
    assert [entry.is_kept for entry in CacheDirectory(str(tmp_path / "cache")).inventory().entries] == [True]


# --- transfers


def test_a_stream_that_is_too_long_ends_there(server, tmp_path):
    """Where the index says how long a shard is, no room is made for a stream that goes on behind that."""
    asked = []
    target = tmp_path / "target"
    target.touch()
    url = server.add("/a.tar", bytes(10_000_000), whole_unannounced)
    with pytest.raises(SizeMismatchError):
        Transfer(url, str(target), size=1000, reserve=asked.append).run()
    assert max(asked, default=0) <= 1000
    assert target.stat().st_size <= 1000


def test_a_drip_ends(server, tmp_path, monkeypatch):
    """A server that sends a byte now and then does not keep a shard's lock for good."""
    monkeypatch.setattr(retrying, "TOTAL_SECONDS", 0.3)
    monkeypatch.setattr(retrying, "SLOWEST_BYTES", 1 << 30)
    sent = []

    def drip(handler, body):
        data = handler.begin(body)
        for k in range(len(data)):
            if server.closing.wait(0.02):
                return
            handler.wfile.write(data[k : k + 1])
            sent.append(k)

    target = tmp_path / "target"
    target.touch()
    url = server.add("/a.tar", bytes(200), drip)
    with contextlib.suppress(WidsError):
        download.download_to(url, str(target), check=lambda: None)
    assert len(sent) < 150


def test_a_server_that_never_says_how_long_the_whole_is(server, tmp_path):
    """Ranges of nobody knows how much: the shard is read in one go, as it was before there were ranges."""
    server.has_ranges = True

    def odd(handler, body):
        (unsized if handler.span else whole)(handler, body)

    target = tmp_path / "target"
    target.touch()
    body = shards.shard("a")
    download.download_to(server.add("/a.tar", body, odd), str(target), check=lambda: None)
    assert target.read_bytes() == body


# --- threads


@pytest.fixture
def no_threads(monkeypatch):
    """The system has no more threads for us, as in a container with a bound on them."""
    real = threading.Thread.start

    def start(self):
        if self.name.startswith("wids-"):
            raise RuntimeError("can't start new thread")
        real(self)

    monkeypatch.setattr(threading.Thread, "start", start)


def test_without_threads_samples_are_read_all_the_same(server, tmp_path, no_threads):
    """The threads that listen and prefetch are not needed for reading."""
    dataset = wids.ShardListDataset(serve_shards(server, 2), cache_dir=tmp_path / "cache")
    assert dataset[0][".txt"]
    assert len([dataset[i] for i in wids.ChunkedSampler(dataset)]) == 6


def test_a_fetch_whose_thread_cannot_start_ends_nothing(server, tmp_path, monkeypatch, caplog):
    """When there is no thread for one shard, prefetching goes on or ends quietly, and the interpreter's exit too."""
    real = threading.Thread.start

    def start(self):
        if self.name == "wids-prefetch-one":
            raise RuntimeError("can't start new thread")
        real(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    dataset = wids.ShardListDataset(serve_shards(server, 2), cache_dir=tmp_path / "cache")
    drawn = iter(wids.ChunkedSampler(dataset))
    next(drawn)
    live = [p for p in background._live if isinstance(p, prefetch.Prefetcher)]
    found = [p for p in live if p._sources[0].store is dataset.cache.provider.cache]
    found[0]._thread.join(1)
    background._end_all()
    assert [dataset[i] for i in drawn]
    assert not [record for record in caplog.records if record.exc_info]


# --- directories


def test_one_directory_by_two_names_is_cleaned(tmp_path):
    """A pattern that finds a cache directory twice, through a link, is no reason to wait or to fail."""
    (tmp_path / "cache1").mkdir()
    (tmp_path / "cache2").symlink_to("cache1")
    for name in "abc":
        put_shard(tmp_path / "cache1", f"{name}.tar", 1000)
    gone = call_in_child(wids.keep_most_recent_files, str(tmp_path / "cache*" / "*.tar"), 2000)
    assert len(names_in(tmp_path / "cache1")) == 2, gone


def ring(directory):
    """Ring the bell."""
    Space(directory, limit=None).request_release()
    return True


def test_a_bell_that_is_no_file(tmp_path):
    """A FIFO in the bell's place stops nobody."""
    CacheDirectory(str(tmp_path)).make()
    os.mkfifo(CacheDirectory(str(tmp_path)).release_request)
    with child(answer_ring, str(tmp_path)) as (_, connection):
        assert connection.poll(3)


def answer_ring(connection, directory):
    """`ring`, and say so."""
    connection.send(ring(directory))


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_process_that_ends_leaves_no_download(server, tmp_path, method):
    """A process of multiprocessing that ends while shards come ahead leaves neither part files nor plans."""
    index = serve_shards(server, 4)
    gate = server.gate()
    server.faults["/a.tar"] = [gate]
    context = multiprocessing.get_context(method)
    process = context.Process(target=begin_and_end, args=(index, str(tmp_path / "cache")))
    process.start()
    process.join(PATIENCE_SECONDS)
    assert process.exitcode == 0
    assert not [name for name in files_in(tmp_path / "cache") if name.endswith((".part", ".plan"))]


_held = []


def begin_and_end(index, cache_dir):
    """Begin an epoch, and end while its shards come."""
    dataset = wids.ShardListDataset(index, cache_dir=cache_dir)
    drawn = iter(wids.ChunkedSampler(dataset, shuffle=False))
    next(drawn)
    _held.append(drawn)
    wait_until(lambda: os.path.isdir(cache_dir) and any(n.endswith(".part") for n in files_in(cache_dir)))


# --- what datasets cost


def test_a_dataset_costs_no_descriptor(index):
    """A join of a thousand small datasets does not use up the process's descriptors."""
    wids.ShardListDataset(index)
    before = len(os.listdir("/proc/self/fd"))
    datasets = [wids.ShardListDataset(index) for _ in range(20)]
    assert len(datasets) == 20
    assert len(os.listdir("/proc/self/fd")) - before <= 2


def test_shallow_copies_leave_nothing_behind(index):
    """A dataset that is copied for each epoch, with other transformations, does not grow."""
    dataset = wids.ShardListDataset(index)
    before = len(list(forks._objects)), len(pool._pools)
    for _ in range(100):
        copy.copy(dataset)
    gc.collect()
    assert (len(list(forks._objects)), len(pool._pools)) <= before


def test_a_shallow_copy_may_have_other_shards(index):
    """Assigned to a copy, they are not its original's."""
    dataset = wids.ShardListDataset(index)
    count = len(dataset)
    twin = copy.copy(dataset)
    twin.shards = dataset.shards[:1]
    assert len(twin) < count == len(dataset)
    assert len(list(dataset)) == count


@pytest.mark.parametrize(
    "options", [{"cache_size": math.nan}, {"cache_size": "10 gallons"}, {"prefetch": "all"}, {"prefetch": -1}]
)
def test_settings_that_mean_nothing_are_refused(index, options):
    """A bound that is no number is told at once, not at the first fetch or never."""
    with pytest.raises((ValueError, TypeError)):
        wids.ShardListDataset(index, **options)


def test_an_odd_local_world_size(server, tmp_path, monkeypatch, caplog):
    """A variable that is no number does not end prefetching."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "²")
    assert prefetch._environ_int("LOCAL_WORLD_SIZE") == 0


# --- many processes, and files that change


@pytest.mark.parametrize("what", ["space", "md5"])
def test_a_download_that_waits_for_long_keeps_its_lock(server, tmp_path, monkeypatch, what):
    """While it waits for space, or reads for a checksum, others see that it runs, and download nothing themselves."""
    data = shards.shard("a")
    url, cache = server.add("/a.tar", data), tmp_path / "cache"
    monkeypatch.setattr(locks, "_TOUCH_SECONDS", 0.0)
    touched, real = [], locks.HeldLock.touch

    def touch(held):
        real(held)
        touched.append(os.stat(held._path).st_mtime_ns)

    monkeypatch.setattr(locks.HeldLock, "touch", touch)
    if what == "md5":
        real_digest = shard_download.file_digest

        def file_digest(file, key, **options):
            touched.clear()
            digest = real_digest(file, key, **options)
            assert touched
            return digest

        monkeypatch.setattr(shard_download, "file_digest", file_digest)
        AutoProvider(cache_dir=str(cache)).open(described(url, data)).close()
        [path] = [each for each in cache.iterdir() if each.suffix == ".tar"]
        os.utime(path)  # it may be another one now: the md5 decides
        AutoProvider(cache_dir=str(cache)).open(described(url, data)).close()
        assert len(server.requests) == 1
        return
    other = shards.shard("b")
    provider = AutoProvider(cache_dir=str(cache), cache_size=len(data) * 3 // 2)
    reader = provider.open(described(server.add("/b.tar", other), other))
    rounds = []

    def wait(seconds):
        rounds.append(len(touched))
        if len(rounds) == 3:
            reader.close()

    monkeypatch.setattr(space.time, "sleep", wait)
    provider.open(described(url, data)).close()
    assert rounds[0] < rounds[1] < rounds[2]


def test_a_local_shard_that_is_written_to_while_it_is_copied(tmp_path):
    """As by ``rsync --inplace``: the copy is made anew, and is one version or the other."""
    before, after = (shards.pack([("a.bin", each * (9 << 20))]) for each in (b"1", b"2"))
    path = shards.write(str(tmp_path / "data" / "a.tar"), before)
    os.utime(path, (1e9, 1e9))
    real, reads = system.pread, []

    def pread(fd, size, offset):
        data = real(fd, size, offset)
        if size >= 1 << 20 and not reads:
            reads.append(offset)
            with open(path, "r+b") as file:
                file.write(after)
        return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(system, "pread", pread)
        reader = AutoProvider(cache_dir=str(tmp_path / "cache"), cache_local=True).open(Shard(url=path, nsamples=1))
    assert reads == [0]
    assert set(reader.read(0)[".bin"].read()) == {ord("2")}
    reader.close()

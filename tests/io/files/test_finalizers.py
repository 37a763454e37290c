"""What was abandoned is freed wherever the collector comes, and cleaned up by code that may wait."""

import asyncio
import contextlib
import gc
import logging
import multiprocessing
import os
import queue
import selectors
import sys
import threading
import time
import types
import urllib.request
from asyncio import base_events, events, selector_events
from concurrent.futures import _base as futures_base
from concurrent.futures import thread as futures_thread
from functools import partial

import fsspec
import pyarrow as pa
import pytest
from torch.utils.data import DataLoader

import wids
import wids.serve
from tests.support.cache_dirs import files_in
from tests.support.children import PATIENCE_SECONDS, call_in_child
from tests.support.clocks import join_threads, threads_named, wait_until
from tests.support.collector import Collector, collect_at_each_place
from tests.support.shards import write_shards
from wids import loader_threads, wids_mmtar
from wids.columns import sql
from wids.core.cache import leases, shard_download, space
from wids.core.cache.leases import Lease
from wids.core.collection import batches
from wids.core.files import finalizers, forks, locks, open_file
from wids.core.files.open_file import OpenFile
from wids.core.prefetch import prefetcher as prefetch
from wids.core.readers import arrivals, remote_counts
from wids.core.readers.arrivals import Arrivals
from wids.core.shard import Shard
from wids.core.transport import download, filesystems, retrying, stores
from wids.core.transport.session import Session
from wids.jobs import engines, runner
from wids.tools.cli.look import listed


class Place:
    """A directory with shards, and a server of them."""

    def __init__(self, home, server):
        self.home, self.server = home, server
        self.shards = write_shards(home, [4, 4])
        for shard in self.shards:
            with open(shard["url"], "rb") as file:
                server.add("/" + os.path.basename(shard["url"]), file.read())
        self.path = self.shards[0]["url"]
        self.remote = [{**shard, "url": f"{server.url}/{os.path.basename(shard['url'])}"} for shard in self.shards]

    def local(self):
        """A dataset of local shards."""
        return wids.ShardListDataset(self.shards, transformations=[])

    def cached(self):
        """A dataset of remote shards, both of which are cached."""
        dataset = wids.ShardListDataset(self.remote, cache_dir=self.home / "cache", transformations=[])
        [dataset[index] for index in range(len(dataset))]
        return dataset

    def half(self):
        """An iteration that has begun."""
        indices = iter(wids.ChunkedSampler(self.cached()))
        next(indices)
        return indices

    def ahead(self):
        """Indices of one's own, of which some are drawn."""
        indices = self.cached().prefetch(range(8))
        next(indices)
        return indices

    def answer(self):
        """A source that keeps an answer, and so a connection."""
        source = stores.open_source(self.remote[0]["url"], Session(), go_on=lambda: None)
        source.stat()
        return source

    def writer(self):
        """A writer that nobody has closed."""
        writer = wids.ShardWriter(self.home / "out-%d.tar")
        writer.write({"__key__": "a", ".txt": "x"})
        return writer

    def columns(self):
        """Columns in a file of this process."""
        return self.local().with_table(pa.table({"index": range(8), "n": range(8)}), on="index")


KINDS = {
    "open file": lambda place: OpenFile.open(place.path)[0],
    "lease": lambda place: Lease.open(place.path)[0],
    "iteration": Place.half,
    "indices of one's own": Place.ahead,
    "early reads": lambda place: Arrivals(place.cached()._collection.provider.cache, lambda: False),
    "answer": Place.answer,
    "writer": Place.writer,
    "columns": Place.columns,
    "archive": lambda place: wids_mmtar.MMIndexedTar(place.path),
}


@pytest.fixture
def place(tmp_path, server):
    """Shards, local and remote; when the test is over, nothing is left of what was abandoned."""
    gc.unfreeze()  # what other tests of this process left in cycles keeps threads alive, which tests here wait for
    gc.collect()
    finalizers.do_left()
    others = set(threads_named("wids-prefetch"))
    yield Place(tmp_path, server)
    finalizers.do_left()
    wait_until(lambda: others.issuperset(threads_named("wids-prefetch")))
    assert [name for name in files_in(tmp_path) if name.endswith((".part", ".plan"))] == []


@contextlib.contextmanager
def all_locks():
    """Hold, in this thread, what a thread may hold when the collector comes in it, or wait for."""
    with contextlib.ExitStack() as held:
        handlers = [handler for name in (None, "wids") for handler in logging.getLogger(name).handlers]
        locks = [forks.lock, threading._active_limbo_lock, logging._lock, *(handler.lock for handler in handlers)]
        for lock in filter(None, locks):
            held.enter_context(lock)
        yield


@pytest.mark.parametrize("kind", KINDS)
def test_to_free_something_waits_for_nobody(place, monkeypatch, kind):
    """Whatever locks another thread holds, and whatever disk does not answer; there is no exception either."""
    errors, given, done = [], queue.SimpleQueue(), queue.SimpleQueue()
    monkeypatch.setattr(sys, "unraisablehook", lambda found: errors.append(found.exc_value))

    def free():
        thing = given.get()
        done.put("taken")
        given.get()  # this thread alone has it
        del thing
        done.put("freed")

    threading.Thread(target=free, daemon=True).start()
    thing = KINDS[kind](place)
    with monkeypatch.context() as patch:
        stuck = threading.Event()
        patch.setattr(os, "unlink", lambda *_: stuck.wait())
        with all_locks():
            given.put(thing)
            assert done.get(timeout=PATIENCE_SECONDS) == "taken"
            del thing
            given.put(None)
            try:
                assert done.get(timeout=PATIENCE_SECONDS) == "freed"
            finally:
                stuck.set()
    assert errors == []


def descriptors(path):
    """How many this process has open of a file: of others, threads of other tests may have and close any."""
    return sum(_has(int(fd), path) for fd in os.listdir("/dev/fd"))


@pytest.mark.parametrize("kind", ["open file", "lease"])
def test_a_file_is_closed_soon(place, kind):
    """At once, if no other thread has the lock of forks; else by the next code that may wait."""
    thing = KINDS[kind](place)
    assert descriptors(place.path) == 1
    del thing
    assert descriptors(place.path) == 0
    thing = KINDS[kind](place)
    go, gone = queue.SimpleQueue(), queue.SimpleQueue()

    def hold():
        with forks.lock:
            gone.put(None)
            go.get()

    thread = threading.Thread(target=hold)
    thread.start()
    gone.get(timeout=PATIENCE_SECONDS)
    fd = thing.fd
    del thing
    os.fstat(fd)
    go.put(None)
    thread.join()
    assert call_in_child(_has, fd, place.path) is False  # a fork copies no descriptor for good
    finalizers.do_left()
    assert descriptors(place.path) == 0


def _has(fd, path):
    """Whether a descriptor is of a file."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(fd), os.stat(path))
    return False


def test_what_was_left_and_fails_is_told(caplog):
    """And the rest is done."""
    done = []
    finalizers.leave(lambda: 1 / 0)
    finalizers.leave(lambda: done.append(1))
    finalizers.do_left()
    assert done == [1]
    assert "a forgotten object cannot be cleaned up" in caplog.text
    finalizers.leave(done.clear, is_ending=lambda: True)
    finalizers.end(done.clear, is_ending=lambda: True)
    finalizers.do_left()
    assert done == [1]


def test_a_child_leaves_the_connections_of_its_parent(place):
    """What it frees of them starts no thread there, and sends nothing."""
    held = [place.answer()]

    def free():
        held.clear()
        return [thread.name for thread in threading.enumerate()]

    assert call_in_child(free) == ["MainThread"]
    assert held[0].stat().size == os.path.getsize(place.path)


def test_a_file_of_a_store_is_closed_with_its_source(monkeypatch):
    """Not by a stream that was abandoned: the server of such a store is waited for."""
    fsspec.filesystem("memory").pipe("/finalizers/a", b"x" * (stores.BLOCK_BYTES + 1))
    source = stores.open_source("memory://finalizers/a", Session(), go_on=lambda: None)
    opened, closed = [], []
    real = source._filesystem.open
    monkeypatch.setattr(source._filesystem, "open", lambda *args: opened.append(real(*args)) or opened[-1])
    monkeypatch.setattr(type(real("/finalizers/a")), "close", lambda file: closed.append(file))  # noqa: PLW0108 - a method
    stream = source.stream()
    next(stream)
    del stream
    assert closed == []
    source.close()
    assert closed == opened
    assert sum(map(len, source.stream())) == stores.BLOCK_BYTES + 1
    assert closed == opened
    assert len(opened) == 2


def _abandon(home):
    Place.writer(type("Home", (), {"home": home}))


def test_a_worker_cleans_up_at_its_end(tmp_path):
    """Workers of multiprocessing leave without the functions of atexit."""
    worker = multiprocessing.get_context("fork").Process(target=_abandon, args=(tmp_path,))
    worker.start()
    worker.join(PATIENCE_SECONDS)
    assert (worker.exitcode, files_in(tmp_path)) == (0, [])


def make_all(place):
    """One of each kind; those that take long are tried elsewhere."""
    return [make(place) for kind, make in KINDS.items() if kind not in ("iteration", "indices of one's own", "columns")]


def test_downloads_go_on_whatever_is_freed_in_their_threads(place):
    """All threads of an epoch over a small cache: what looks ahead, downloads, reads, and watches leases."""
    modules = [prefetch, leases, arrivals, shard_download, space, locks, open_file, download, retrying, filesystems]
    collector = Collector("wids-", *modules, finalizers)
    size, others = os.path.getsize(place.path), set(threads_named("wids-"))
    count = 0
    with collector.watching():
        for early_reads in (False, True):
            # Each answer that is kept is one of the requests that a process may have under way.
            collector.stock += [KINDS[kind](place) for _ in range(50) for kind in ("open file", "lease", "answer")]
            before = len(collector.stock)
            dataset = wids.ShardListDataset(
                place.remote,
                cache_dir=place.home / f"small-{early_reads}",
                cache_size=size + size // 2,
                early_reads=early_reads,
                transformations=[],
            )
            found = [dataset[index]["__index__"] for index in wids.ChunkedSampler(dataset, shuffle=True)]
            assert sorted(found) == list(range(8))
            dataset.close()
            wait_until(lambda: others.issuperset(threads_named("wids-")))
            count += before - len(collector.stock)
            collector.stock.clear()
            collector.places.clear()
    assert collector.errors == []
    assert count > 150


def ask_in_sql(place):
    """Ask for columns."""
    assert len(place.columns().query("select n from samples where n > 3")) == 4


def read_a_batch(place):
    """Read samples of two shards by byte ranges at a time."""
    place.server.has_ranges = True
    with contextlib.closing(wids.ShardListDataset(place.remote, access="range", transformations=[])) as dataset:
        assert [sample["__index__"] for sample in dataset.__getitems__([0, 5])] == [0, 5]


def train_with_threads(place):
    """Have threads make batches of local samples, of which a loop reads some."""
    dataset = place.local()
    loader = DataLoader(dataset, 1, sampler=wids.ChunkedSampler(dataset), num_workers=2, collate_fn=list)
    for _ in range(2):
        assert len(list(zip(range(6), wids.resumable(loader, workers="threads"), strict=False))) == 6
    join_threads("wids-loader")


def read_tables(place):
    """Ask a server for member tables, which it does not have."""
    assert [number for number, _ in place.cached()._collection.member_tables(range(2))] == [0, 1]


def count_samples(place):
    """Count the samples of remote shards, which have no index."""
    place.server.has_ranges = True
    urls = [shard["url"] for shard in place.remote]
    assert len(wids.ShardListDataset(urls, cache_dir=place.home / "counted")) == 8


def look_at_pages(place):
    """Answer requests for pages."""
    with wids.serve.start(place.local()) as pages:
        for _ in range(2):
            with urllib.request.urlopen(pages.url) as answer:
                assert answer.status == 200


def draw_a_bar(place):
    """Show how far a download is."""
    drawn = threading.Event()
    bar = types.SimpleNamespace(is_shown=True, update=lambda *_, **__: drawn.set())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listed, "progress", lambda *_, **__: contextlib.nullcontext(bar))
        with listed.download_bar(Shard(url=place.path, nsamples=4), str(place.home), is_shown=True):
            assert drawn.wait(PATIENCE_SECONDS)


def read_from_a_store(place):
    """Wait for coroutines, in a loop that is new."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("loop", "iothread"):
            patch.setattr(fsspec.asyn, name, [None])
        found = filesystems.run(asyncio.sleep(0, "awake"))
        new = fsspec.asyn.loop[0]
        new.call_soon_threadsafe(new.stop)
        fsspec.asyn.iothread[0].join()
        new.close()
    assert found == "awake"


POOLS = [futures_thread, futures_base]
LOOPS = [base_events, events, selector_events, selectors, filesystems]


@pytest.mark.parametrize(
    ("name", "modules", "use"),
    [
        ("wids-sql", [sql, *POOLS], ask_in_sql),
        ("wids-read", [batches, *POOLS], read_a_batch),
        ("wids-loader", [loader_threads, batches], train_with_threads),
        ("wids-tables", POOLS, read_tables),
        ("wids-count", [remote_counts, *POOLS], count_samples),
        ("wids-serve", LOOPS, look_at_pages),
        ("wids-bar", [listed], draw_a_bar),
        ("fsspecIO", LOOPS, read_from_a_store),
    ],
)
def test_what_runs_for_a_moment_goes_on_whatever_is_freed_in_it(place, name, modules, use):
    """Threads of SQL, of batches, of pools, of pages, of bars, and the event loop: one thing at each of their steps."""
    collector = Collector(name, *modules)
    collector.stock += [KINDS[kind](place) for _ in range(40) for kind in ("open file", "lease", "answer", "archive")]
    before = len(collector.stock)
    with collector.watching():
        use(place)
    assert len(collector.stock) <= before - 4
    collector.stock.clear()
    assert collector.errors == []


def hold_leases(place):
    """Have the thread that watches leases run; a function that ends it."""
    dataset = place.cached()
    dataset[0]
    return dataset.close


def run_tasks(place):
    """Have threads run tasks; a function that ends them."""
    results = engines.run(lambda task, context: task, iter(range(10**9)), runner.RunOptions(jobs=2, engine="threads"))
    done = threading.Event()

    def draw():
        with contextlib.closing(results):
            for _ in results:
                if done.is_set():
                    return

    threading.Thread(target=draw, daemon=True).start()
    return done.set


@pytest.mark.parametrize(
    ("name", "modules", "start"),
    [("wids-leases", [leases, finalizers], hold_leases), ("wids-job", [runner], run_tasks)],
    ids=["leases", "jobs"],
)
def test_all_may_be_freed_at_any_step_of_a_thread(place, monkeypatch, name, modules, start):
    """Whatever the thread is doing then, it goes on, and what it frees is gone."""
    collector = Collector(name, *modules)
    soon = types.SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: time.sleep(0.001))
    monkeypatch.setattr(leases, "time", soon)
    wait_until(lambda: threads_named(name) == [])
    with collector.watching():
        stop = start(place)
        count = collect_at_each_place(collector, partial(make_all, place), finalizers.do_left, most=100)
        stop()
        wait_until(lambda: threads_named(name) == [])
    assert count > 5

"""Prefetching: what comes is fetched once, in order, not too far ahead, and it ends with whoever draws."""

import contextlib
import functools
import gc
import itertools
import json
import os
import string
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, random_split

import wids
from tests.support import cache_shards as shards
from tests.support.cache_dirs import files_in
from tests.support.cache_shards import described
from tests.support.children import PATIENCE_SECONDS, child, kill, receive
from tests.support.clocks import PrefetchClock, threads_named, wait_until
from tests.support.collector import Collector, collect_at_each_place
from tests.support.servers import instead, shard_requests, status, whole
from wids.core.cache import limits, space, usage_hints
from wids.core.cache.directory import CacheDirectory
from wids.core.files import background
from wids.core.order import epoch
from wids.core.order.layout import Shards
from wids.core.prefetch import distance
from wids.core.prefetch import prefetcher as prefetch
from wids.core.readers.provider import AutoProvider
from wids.core.shard import Shard
from wids.core.transport import concurrency, filesystems
from wids.dataset import ShardListDataset
from wids.errors import ShardNotFoundError
from wids.events import Evicted, Fetched, NotFetchedAhead
from wids.samplers import ChunkedSampler, DistributedChunkedSampler, ShardListSampler

pytestmark = pytest.mark.usefixtures("nothing_left")

TAGS = string.ascii_lowercase[:12]
ROWS = 5
PATHS = [f"/{tag}.tar" for tag in TAGS]
BODIES = [shards.shard(tag, count=ROWS) for tag in TAGS]
SIZE = len(BODIES[0])
SAMPLERS = [ChunkedSampler, functools.partial(DistributedChunkedSampler, num_replicas=1, rank=0), ShardListSampler]
each_sampler = pytest.mark.parametrize("make_sampler", SAMPLERS, ids=["chunked", "distributed", "shards"])


@pytest.fixture
def web(server):
    """The server, with twelve shards of five samples."""
    server.has_ranges = True
    for path, body in zip(PATHS, BODIES, strict=True):
        server.add(path, body)
    return server


@pytest.fixture
def make(web, tmp_path):
    """A function: the dataset of some of the shards, in the cache of this test."""

    def dataset(tags=TAGS, *, cache="cache", has_sizes=True, **options):
        listed = describe(web, tags, has_sizes=has_sizes)
        return ShardListDataset(listed, cache_dir=tmp_path / cache, transformations=[], early_reads=False, **options)

    return dataset


def describe(server, tags, *, has_sizes=True, rows=ROWS):
    """The shards of some tags, as an index has them."""
    sizes = {tag: {"filesize": len(server.files[f"/{tag}.tar"])} if has_sizes else {} for tag in tags}
    return [{"url": f"{server.url}/{tag}.tar", "nsamples": rows, **sizes[tag]} for tag in tags]


@pytest.fixture
def one_at_a_time(monkeypatch, set_limits):
    """One fetch at a time, so that the order of requests is that of the fetches."""
    set_limits(concurrency, connections=1, min_under_way=1)
    monkeypatch.setattr(filesystems, "_connections", weakref.WeakKeyDictionary())


@pytest.fixture
def nothing_left(tmp_path):
    """When a test is over, no thread fetches, and there is neither a part file nor a plan."""
    yield
    gc.collect()
    wait_until(lambda: threads() == [])
    assert left(tmp_path) == []


def threads():
    """The names of the threads that fetch ahead."""
    return [thread.name for thread in threads_named("wids-prefetch")]


def left(directory):
    """Part files and plans below a directory."""
    names = [name for _, _, names in os.walk(directory) for name in names]
    return [name for name in names if name.endswith((".part", ".plan"))]


def in_order(dataset, indices):
    """The paths of the shards that the indices come to, by first use."""
    found = Shards(dataset, lambda _: True)
    [visits] = found.visits([np.array(indices)])
    ways = [found.datasets[visit.dataset].shards[visit.shard]["url"] for visit in visits]
    return ["/" + url.rpartition("/")[2] for url in ways]


def text_of(sample):
    """What a sample says of itself."""
    return sample[".txt"].read()


def expected_text(index, *, tags=TAGS, rows=ROWS):
    """What sample ``index`` says."""
    return shards.text(tags[index // rows], index % rows)


def as_it_is(batch):
    """A collate function."""
    return [(sample["__index__"], text_of(sample)) for sample in batch]


# --- what is fetched, and when


WAYS = {
    "no workers": {},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "fork, kept": {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True},
    "forkserver": {"num_workers": 2, "multiprocessing_context": "forkserver"},
    "forkserver, kept": {"num_workers": 2, "multiprocessing_context": "forkserver", "persistent_workers": True},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_each_shard_once(web, make, way):
    """The process that draws and its workers together fetch each shard once, in however many epochs."""
    dataset = make()
    sampler = DistributedChunkedSampler(dataset, num_replicas=1, rank=0, chunksize=3)
    loader = DataLoader(dataset, sampler=sampler, batch_size=4, collate_fn=as_it_is, **way)
    for _ in range(2):
        found = [pair for batch in loader for pair in batch]
        assert sorted(index for index, _ in found) == list(range(len(dataset)))
        assert all(text == expected_text(index) for index, text in found)
    assert sorted(web.requests) == PATHS


@each_sampler
def test_in_the_order_of_the_sampler(web, make, one_at_a_time, make_sampler):
    """When nobody reads, the shards come in the order in which the samples will need them."""
    indices = list(make_sampler(make(prefetch=False), seed=5))
    iteration = iter(make_sampler(make(), seed=5))
    assert next(iteration) == indices[0]
    wait_until(lambda: len(web.requests) == len(PATHS))
    assert web.requests == in_order(make(), indices)
    assert [indices[0], *iteration] == indices


FORMS = {
    "subset": lambda one, other: Subset(one, [*range(12, 30), *range(7)]),
    "random split": lambda one, other: random_split(one, [20, 10], torch.Generator().manual_seed(0))[0],
    "join": lambda one, other: ConcatDataset([one, other]),
    "part of a join": lambda one, other: Subset(ConcatDataset([one, other]), range(-5, -40, -1)),
    "join of parts": lambda one, other: ConcatDataset([Subset(other, range(9)), Subset(one, [3, 2, 29])]),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_in_the_order_of_parts_and_joins(web, make, one_at_a_time, form):
    """Through subsets and joins, of several shard lists with caches of their own."""

    def sampler(**options):
        dataset = form(make(TAGS[:6], **options), make(TAGS[6:], cache="other", **options))
        return DistributedChunkedSampler(dataset, num_replicas=1, rank=0, chunksize=4)

    indices = list(sampler(prefetch=False))
    ahead = sampler()
    iteration = iter(ahead)
    next(iteration)
    wanted = in_order(ahead.dataset, indices)
    wait_until(lambda: len(web.requests) == len(wanted))
    assert web.requests == wanted


@pytest.mark.parametrize("has_sizes", [True, False], ids=["sizes", "no sizes"])
def test_indices_of_one_s_own(web, make, one_at_a_time, has_sizes):
    """A sequence of the caller's own is drawn as it is, and fetched ahead."""
    dataset = make(has_sizes=has_sizes)
    indices = [7, 3, -1, 30, 7, 0]
    with dataset.prefetch(index for index in indices) as ahead:
        assert next(ahead) == 7
        wait_until(lambda: len(web.requests) == 4)
        assert web.requests == in_order(dataset, indices)
        assert ahead.__length_hint__() == 5
        assert list(ahead) == [3, 59, 30, 7, 0]
    with pytest.raises(IndexError):
        dataset.prefetch([60])
    assert list(dataset.prefetch([])) == []


@pytest.mark.parametrize("count", [1, 2, 5])
def test_never_further_than_allowed(web, make, monkeypatch, count):
    """``prefetch=`` so many bytes: what was fetched, and what is drawn from, never go beyond, and do reach it."""
    dataset = make(prefetch=count * SIZE + SIZE // 2)
    numbers = np.random.default_rng(count).permutation(len(TAGS)).tolist()
    indices = [number * ROWS + row for number in numbers for row in (3, 0, 4)]
    drawn, seen = [], []

    def note(handler, body):
        seen.append((len(drawn), handler.name))  # what was drawn by now: it may be more than when this was asked for
        whole(handler, body)

    web.faults = {path: [note] for path in PATHS}

    def window(position):
        """The shards that may be there or under way."""
        return set(in_order(dataset, indices[position:])[:count])

    ahead = dataset.prefetch(indices)
    for position in range(len(indices)):
        wanted = window(position)
        wait_until(lambda wanted=wanted: wanted <= {name for _, name in seen})
        drawn.append(next(ahead))
    assert drawn == indices
    assert len(seen) == len({name for _, name in seen})
    allowed = [
        set().union(*(window(earlier) for earlier in range(position + 1))) for position in range(len(indices) + 1)
    ]
    assert all(name in allowed[position] for position, name in seen)


def test_less_than_a_shard_is_nothing(web, make, one_at_a_time):
    """Where not even one shard may be ahead, each is fetched when it is read."""
    dataset, other = make(TAGS[:6], prefetch=SIZE - 1), make(TAGS[6:])
    joined = ConcatDataset([dataset, other])
    sampler = ChunkedSampler(joined, chunksize=1, shuffle=False)
    iteration = iter(sampler)
    next(iteration)
    wait_until(lambda: len(web.requests) == 6)
    assert web.requests == PATHS[6:]
    assert text_of(dataset[0]) == expected_text(0)
    assert web.requests[6:] == PATHS[:1]


@each_sampler
def test_switched_off(web, make, make_sampler):
    """``prefetch=False``: no thread, and no request before somebody reads."""
    dataset = make(prefetch=False)
    iteration = iter(make_sampler(dataset))
    index = next(iteration)
    assert threads() == []
    assert len(list(iteration)) == len(dataset) - 1
    assert list(dataset.prefetch([1, 2])) == [1, 2]
    assert (threads(), web.requests) == ([], [])
    assert text_of(dataset[index]) == expected_text(index)
    assert len(web.requests) == 1


@each_sampler
def test_local_shards(tmp_path, make_sampler):
    """What is read in place needs no thread; what is copied into the cache is fetched ahead like all else."""
    listed = [
        {"url": shards.write(tmp_path / "data" / path[1:], body), "nsamples": ROWS, "filesize": len(body)}
        for path, body in zip(PATHS, BODIES, strict=True)
    ]
    iteration = iter(make_sampler(ShardListDataset(listed)))
    next(iteration)
    assert threads() == []
    cache = tmp_path / "cache"
    cache.mkdir()
    iteration = iter(make_sampler(ShardListDataset(listed, cache_local=True, cache_dir=cache)))
    next(iteration)
    wait_until(lambda: len(cached(cache)) == len(PATHS))


@each_sampler
def test_who_only_lists_the_indices_fetches_nothing(web, make, set_limits, make_sampler):
    """As bucketing, logging and tests do."""
    set_limits(limits, start_seconds=PATIENCE_SECONDS)
    assert sorted(make_sampler(make())) == list(range(len(PATHS) * ROWS))
    wait_until(lambda: threads() == [])
    assert web.requests == []


def test_a_shard_that_fails_disturbs_no_other(web, make, events, one_at_a_time):
    """All others come; who reads the one that does not gets its error, with a try of its own."""
    web.faults["/c.tar"] = [status(404)]
    dataset = make(hooks=[events])
    sampler = ChunkedSampler(dataset, shuffle=False)
    iteration = iter(sampler)
    next(iteration)
    wait_until(lambda: len(web.requests) == len(PATHS))
    assert web.requests == PATHS
    wait_until(lambda: sum(isinstance(event, Fetched) for event in events) == len(PATHS) - 1)
    assert [event.url for event in events if isinstance(event, NotFetchedAhead)] == [web.url + "/c.tar"]
    assert all(event.is_ahead for event in events if isinstance(event, Fetched))
    for index in [0, *iteration]:
        if index // ROWS == 2:
            with pytest.raises(ShardNotFoundError, match=r"c\.tar.*does not exist"):
                dataset[index]
        else:
            assert text_of(dataset[index]) == expected_text(index)
    assert web.requests == [*PATHS, *["/c.tar"] * ROWS]


@pytest.mark.usefixtures("no_waits")
def test_a_shard_that_failed_is_tried_again(web, make, events, set_limits):
    """A server that was away for longer than a fetch is tried costs no shard its place ahead."""
    set_limits(limits, failed_seconds=0.01)
    web.faults["/c.tar"] = [*[status(503)] * 40, whole]
    dataset = make(hooks=[events])
    iteration = iter(ChunkedSampler(dataset, shuffle=False))
    next(iteration)
    wait_until(lambda: sum(isinstance(event, Fetched) for event in events) == len(PATHS))
    assert {event.url for event in events if isinstance(event, NotFetchedAhead)} == {web.url + "/c.tar"}
    assert all(event.is_ahead for event in events if isinstance(event, Fetched))
    assert len(list(iteration)) == len(dataset) - 1


def test_damage_is_not_fetched_ahead_again(web, make, events, set_limits):
    """A shard whose bytes are wrong would come again and again, whole."""
    set_limits(limits, failed_seconds=0.0)
    web.faults["/c.tar"] = [instead(b"x" * SIZE)]
    iteration = iter(ChunkedSampler(make(hooks=[events]), shuffle=False))
    next(iteration)
    wait_until(lambda: sum(isinstance(event, Fetched) for event in events) == len(PATHS) - 1)
    wait_until(lambda: any(isinstance(event, NotFetchedAhead) for event in events))
    wait_until(lambda: threads() == ["wids-prefetch"] or threads() == [])
    assert sum(isinstance(event, NotFetchedAhead) for event in events) == 1
    assert len(list(iteration)) > 0


def test_who_reads_waits_for_what_is_coming(web, make, events):
    """A shard that is on its way ahead is not fetched a second time."""
    gate = web.gate()
    web.faults = {PATHS[0]: [gate]}
    dataset, found = make(hooks=[events]), []
    sampler = ChunkedSampler(dataset, shuffle=False)
    iteration = iter(sampler)
    index = next(iteration)
    wait_until(lambda: PATHS[0] in web.requests)
    thread = threading.Thread(target=lambda: found.append(text_of(dataset[index])))
    thread.start()
    gate.go.set()
    thread.join(PATIENCE_SECONDS)
    assert found == [expected_text(index)]
    assert web.requests.count(PATHS[0]) == 1


# --- how it ends


@pytest.fixture
def held(web):
    """Bodies of the first shards are whole, those of the others stop half-way, eight of them at a time."""
    gate = web.gate()
    web.faults = {path: [gate] for path in PATHS[2:]}
    return gate


def by_break(sampler):
    """Leave the loop."""
    for index in sampler:
        yield index
        break


def by_exception(sampler):
    """Leave it by an error."""
    try:
        for index in sampler:
            yield index
            _ = 1 // index
    except ZeroDivisionError:
        return


def by_del(sampler):
    """Forget the iteration, and the sampler."""
    iteration = iter(sampler)
    yield next(iteration)
    del iteration, sampler


def by_a_new_epoch(sampler):
    """Begin another iteration while somebody still holds the first, and list it, which fetches nothing."""
    iteration = iter(sampler)
    yield next(iteration)
    list(sampler)
    assert next(iteration) is not None


def by_loader(sampler):
    """Leave the loop over a loader that reads by itself."""
    for batch in DataLoader(sampler.dataset, sampler=sampler, batch_size=2, collate_fn=as_it_is):
        yield batch[0][0]
        break


def by_workers(sampler):
    """Leave the loop over a loader with workers, which have drawn ahead."""
    loader = DataLoader(
        sampler.dataset,
        sampler=sampler,
        batch_size=2,
        num_workers=2,
        prefetch_factor=1,
        collate_fn=as_it_is,
        multiprocessing_context="fork",
    )
    for batch in loader:
        yield batch[0][0]
        break


@pytest.mark.parametrize(
    "leave",
    [by_break, by_exception, by_del, by_a_new_epoch, by_loader, by_workers],
    ids=lambda leave: leave.__name__,
)
def test_it_ends_with_the_iteration(web, make, held, tmp_path, monkeypatch, set_limits, leave):
    """However an iteration ends: no thread, no part file, no plan, and not one request more."""
    set_limits(filesystems, read_seconds=10 * PATIENCE_SECONDS)
    story = leave(ChunkedSampler(make(), chunksize=ROWS, shuffle=False))
    assert next(story) == 0
    wait_until(lambda: len(web.requests) == 2 + concurrency.LIMITS.connections)
    wait_until(lambda: any(name.endswith(".plan") for name in left(tmp_path)))
    assert "wids-prefetch" in threads()
    with monkeypatch.context() as patch:
        set_limits(limits, patch=patch.setattr, start_seconds=PATIENCE_SECONDS)  # of the new epoch
        assert list(story) == []
    wait_until(lambda: threads() == [])
    assert left(tmp_path) == []
    assert len(web.requests) == 2 + concurrency.LIMITS.connections
    assert not held.go.is_set()


def test_an_iteration_may_be_freed_at_any_step_of_its_thread(make, set_limits):
    """The collector may come while the thread holds the lock of what it waits for; the thread ends all the same."""
    set_limits(limits, start_seconds=0.001, tick_seconds=0.001)
    dataset, collector = make(TAGS[:2]), Collector("wids-prefetch", prefetch)
    [dataset[index] for index in range(len(dataset))]  # nothing is left to fetch: the thread only waits

    def abandon():
        half = iter(ChunkedSampler(dataset))
        next(half)
        return half

    with collector.watching():
        count = collect_at_each_place(collector, abandon, lambda: wait_until(lambda: threads() == []))
    assert count > 30


@pytest.mark.parametrize("way", ["close", "with", "del", "exception"])
def test_one_s_own_indices_end(web, make, held, tmp_path, set_limits, way):
    """A sequence of the caller's own ends when it is closed, left or forgotten."""
    set_limits(filesystems, read_seconds=10 * PATIENCE_SECONDS)
    ahead = make().prefetch(range(60))
    wait_until(lambda: len(web.requests) == 2 + concurrency.LIMITS.connections)
    if way == "close":
        ahead.close()
        ahead.close()
    elif way == "with":
        with ahead:
            next(ahead)
    elif way == "exception":
        with pytest.raises(ZeroDivisionError), ahead:
            _ = 1 // next(ahead)
    else:
        del ahead
    wait_until(lambda: threads() == [])
    assert left(tmp_path) == []
    assert len(web.requests) == 2 + concurrency.LIMITS.connections


def test_what_is_under_way_at_the_end_arrives(web, make, held):
    """When the last index was drawn, what is half there comes whole, and nothing else is begun."""
    ahead = make().prefetch(range(60))
    wait_until(lambda: len(web.requests) == 2 + concurrency.LIMITS.connections)
    assert list(ahead) == list(range(60))
    held.go.set()
    wait_until(lambda: threads() == [])
    assert len(web.requests) == 2 + concurrency.LIMITS.connections
    for row in range(2 + concurrency.LIMITS.connections):
        assert text_of(make()[row * ROWS]) == expected_text(row * ROWS)
    assert len(web.requests) == 2 + concurrency.LIMITS.connections


SCRIPT = """
import json, sys
from tests.support.clocks import set_limits
from wids.core.transport import filesystems
from wids.dataset import ShardListDataset
from wids.samplers import ChunkedSampler

shards, cache, way = json.loads(sys.argv[1])
set_limits(filesystems, read_seconds=600.0)
dataset = ShardListDataset(shards, cache_dir=cache)
iteration = iter(ChunkedSampler(dataset, shuffle=False))
next(iteration)
sys.stdin.read()
if way == "error":
    raise ZeroDivisionError
if way == "exit":
    sys.exit(0)
"""


@pytest.mark.parametrize("way", ["end", "exit", "error"])
def test_it_ends_with_the_program(web, held, tmp_path, way):
    """A program that ends in the middle of an epoch ends at once, and leaves nothing."""
    arguments = json.dumps([describe(web, TAGS), str(tmp_path / "cache"), way])
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", SCRIPT, arguments], **pipes) as process:
        try:
            wait_until(lambda: len(web.requests) == 2 + concurrency.LIMITS.connections)
            _, complaints = process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
    assert process.returncode == (way == "error")
    assert (b"ZeroDivisionError" in complaints) if way == "error" else complaints == b""
    assert left(tmp_path) == []


# --- several jobs


def run_job(connection, listed, cache, indices):
    """A job that has drawn one index, and goes on to fetch, until it is told to end."""
    dataset = ShardListDataset(listed, cache_dir=cache, transformations=[])
    ahead = dataset.prefetch(indices)
    next(ahead)
    connection.send("begun")
    connection.recv()
    ahead.close()
    wait_until(lambda: threads() == [])
    connection.send("ended")


def planned(cache):
    """The names of the shards that are in the plans of a directory, one list for each plan."""
    found = []
    for name in files_in(cache):
        if name.endswith(".plan"):
            with contextlib.suppress(OSError), open(f"{cache}/{name}", "rb") as file:
                found.append(sorted(json.loads(file.read())["uses"]))
    return sorted(found)


def cached(cache):
    """The tags of the shards in a cache directory."""
    return sorted(name[-5] for name in os.listdir(cache) if name.endswith(".tar"))


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_what_any_job_comes_to_stays(web, tmp_path, method):
    """Of two jobs in one directory each keeps what it comes to, until it ends; then that goes."""
    cache = str(tmp_path / "cache")
    listed = describe(web, TAGS)
    own = AutoProvider(cache_dir=cache)

    def fetch(tag, **options):
        facts = {"url": f"{web.url}/{tag}.tar", "nsamples": ROWS, "filesize": SIZE}
        AutoProvider(cache_dir=cache, **options).open(Shard(**facts)).close()

    def is_planned(*tags):
        names = [
            sorted(os.path.basename(own.cache.placement.local_path(f"{web.url}/{tag}.tar")) for tag in pair)
            for pair in tags
        ]
        return lambda: planned(cache) == sorted(names)

    bound = 5 * (SIZE + space.table_allowance(SIZE, ROWS))
    with (
        child(run_job, listed, cache, [0, 1, 5], method=method) as (_, one),
        child(run_job, listed, cache, [10, 11, 15], method=method) as (_, two),
    ):
        assert receive(one) == receive(two) == "begun"
        wait_until(lambda: len(web.requests) == 4)
        wait_until(is_planned("ab", "cd"))
        wait_until(lambda: cached(cache) == list("abcd"))
        fetch("e")
        fetch("f", cache_size=bound)
        assert cached(cache) == list("abcdf")  # e was used last, and nobody comes to it
        one.send("end")
        assert receive(one) == "ended"
        wait_until(is_planned("cd"))
        fetch("f")
        fetch("g", cache_size=bound)
        fetch("h", cache_size=bound)
        assert cached(cache) == list("cdfgh")
        two.send("end")
        assert receive(two) == "ended"
        assert planned(cache) == []


def run_rank(connection, listed, cache, rank):
    """One of two ranks of a node, whose loader has two workers; the texts of what it reads."""
    os.environ |= {"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
    dataset = ShardListDataset(listed, cache_dir=cache, transformations=[])
    sampler = DistributedChunkedSampler(dataset, num_replicas=2, rank=rank, chunksize=2, seed=1)
    connection.recv()
    loader = DataLoader(dataset, sampler=sampler, batch_size=2, num_workers=2, collate_fn=as_it_is)
    connection.send([pair for batch in loader for pair in batch])


@pytest.mark.parametrize("has_sizes", [True, False], ids=["sizes", "no sizes"])
def test_a_node_asks_for_each_shard_once(web, tmp_path, has_sizes):
    """Two ranks with two workers each begin an epoch with an empty cache, and each shard is read by both ranks.

    Nor is anything beside a shard asked for twice.
    """
    arguments = describe(web, TAGS, has_sizes=has_sizes), str(tmp_path / "cache")
    with contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(child(run_rank, *arguments, rank))[1] for rank in range(2)]
        for connection in ranks:
            connection.send("go")
        found = [pair for connection in ranks for pair in receive(connection)]
    assert sorted(found) == [(index, expected_text(index)) for index in range(len(TAGS) * ROWS)]
    assert sorted(shard_requests(web)) == PATHS
    assert len(set(web.requests)) == len(web.requests)


def test_a_plan_is_there_before_the_first_index(make, tmp_path, set_limits):
    """Workers read at once what is drawn: they must not evict what comes next because nobody has said so."""
    set_limits(limits, start_seconds=PATIENCE_SECONDS)
    dataset = make(cache_size=6 * SIZE)
    assert text_of(dataset[0]) == expected_text(0)
    iteration = iter(ChunkedSampler(dataset, chunksize=ROWS, shuffle=False))
    next(iteration)
    names = [os.path.basename(dataset.cache.provider.cache.placement.local_path(row["url"])) for row in dataset.shards]
    assert planned(tmp_path / "cache") == [sorted(names)]
    del iteration
    wait_until(lambda: planned(tmp_path / "cache") == [])


def test_a_plan_follows_the_directory(make, tmp_path, set_limits):
    """Where there is none when an epoch begins, the plan is written as soon as a reader has made it."""
    set_limits(limits, plan_seconds=1e9)  # nothing else would renew it
    dataset = make(prefetch=SIZE - 1)  # too little for a shard: none is downloaded ahead
    iteration = iter(ChunkedSampler(dataset, chunksize=ROWS, shuffle=False))
    index = next(iteration)
    wait_until(lambda: "wids-prefetch" in threads())
    assert text_of(dataset[index]) == expected_text(index)
    wait_until(lambda: [len(names) for names in planned(tmp_path / "cache")] == [len(TAGS)])
    del iteration


def test_a_shard_of_unknown_size_that_finds_no_space_is_asked_for_once(web, make, monkeypatch, set_limits):
    """The server has said how large it is: nothing is asked of it again before there is space for that."""
    set_limits(limits, start_seconds=0.0)
    refused, real = [], space.Space._raise_full

    def note(self, url, needed, missing):
        refused.append(url[-6:])
        real(self, url, needed, missing)

    monkeypatch.setattr(space.Space, "_raise_full", note)
    dataset = make(cache_size=int(2.5 * (SIZE + space.table_allowance(SIZE, ROWS))), has_sizes=False, lru_size=2)
    assert [text_of(dataset[row]) for row in (0, ROWS)] == [expected_text(0), expected_text(ROWS)]
    with contextlib.ExitStack() as being_read:
        for row in (0, ROWS):
            being_read.enter_context(dataset.get_shard(row)[0].pinned())
        with dataset.prefetch([2 * ROWS]):
            wait_until(lambda: refused.count("/c.tar") >= 5)
    assert web.requests.count("/c.tar") == 1


def test_a_killed_job_s_plan_is_swept(web, held, tmp_path):
    """Plan and part files of a job that was killed count no more, and go with the next look at the directory."""
    cache = str(tmp_path / "cache")
    with child(run_job, describe(web, TAGS), cache, range(60)) as (process, connection):
        assert receive(connection) == "begun"
        wait_until(lambda: len(web.requests) == 2 + concurrency.LIMITS.connections)
        wait_until(lambda: planned(cache) != [])
        kill(process)
    assert len(left(cache)) > 2 * concurrency.LIMITS.connections
    AutoProvider(cache_dir=cache).open(Shard(url=web.url + "/a.tar", nsamples=ROWS)).close()
    web.faults = {}
    AutoProvider(cache_dir=cache).open(Shard(url=web.url + "/c.tar", nsamples=ROWS)).close()
    assert left(cache) == []


# --- under a bound


def test_what_goes_is_what_is_used_last(server, tmp_path, monkeypatch, set_limits):  # noqa: C901 - the oracle stands beside
    """With room for three shards of eight, the one goes that is used farthest in the future, as nobody could do better.

    The oracle looks through the sampler's whole order. Time is counted in samples: one a second.
    """
    rows, chunk, tags = 600, 200, TAGS[:8]
    monkeypatch.setattr(epoch, "_BLOCK", chunk)  # visits are told apart within so many samples
    set_limits(distance, max_burst=distance.LIMITS.min_burst)
    steady = property(lambda self: 1.0, lambda self, rate: None)
    monkeypatch.setattr(distance.RateEstimator, "rate", steady, raising=False)
    for tag in tags:
        server.add(f"/{tag}.tar", shards.pack([(f"{row:04d}.txt", shards.text(tag, row)) for row in range(rows)]))
    size = len(server.files["/a.tar"])
    room_for_three = 3 * (size + space.table_allowance(size, rows))
    cache = tmp_path / "cache"
    drawn, wrong, fetched, gone = [], [], [], []

    def note(event):
        if isinstance(event, Fetched):
            fetched.append(event)
        if not isinstance(event, Evicted):
            return
        position, tag = max(len(drawn) - 1, 0), event.path[-5]
        leased = {url[-5] for url in dataset.cache.lru.keys()}  # noqa: SIM118 - not a dict
        others = set(cached(cache)) - leased
        gone.append(tag)
        if any(next_use(other, position) > next_use(tag, position) for other in others):
            wrong.append((position, tag, sorted(others)))

    def next_use(tag, position):
        return next((at for at in range(position, len(order)) if order[at] == tag), len(order))

    def soonest(position):
        """The three shards that are used first from a position on."""
        return set(list(dict.fromkeys(order[position:]))[:3])

    listed = describe(server, tags, rows=rows)
    options = {"cache_dir": cache, "transformations": [], "cache_size": room_for_three, "lru_size": 1}
    options["early_reads"] = False  # shards that come too late would be left to byte ranges
    dataset = ShardListDataset(listed, hooks=[note], **options)

    def sampler(**more):
        found = ShardListDataset(listed, **options, **more) if more else dataset
        return ChunkedSampler(found, chunksize=chunk, window=1, seed=3)

    indices = list(sampler(prefetch=False))
    order = [tags[index // rows] for index in indices]
    for position, index in enumerate(sampler()):
        drawn.append(index)
        assert text_of(dataset[index]) == expected_text(index, tags=tags, rows=rows)
        if position % chunk == chunk - 2:
            wait_until(lambda position=position: set(cached(cache)) >= soonest(position + 1))
    assert drawn == indices
    assert wrong == []
    entered = [soonest(at) - soonest(at - chunk) for at in range(chunk, len(order), chunk)]
    expected = 3 + sum(map(len, entered))
    wait_until(lambda: len(fetched) >= expected)  # a shard can be read before the event of its download
    assert len(fetched) == expected
    assert all(event.is_ahead for event in fetched[3:])
    assert len(gone) == len(fetched) - 3 > 8


@pytest.mark.parametrize("is_read_here", [True, False])
def test_only_a_loader_that_draws_ahead_is_busy_with_what_was_drawn(server, tmp_path, set_limits, is_read_here):
    """Who reads each sample as it is drawn does not wait for space that only its own passed shards take."""
    rows, tags = 200, TAGS[:4]
    set_limits(distance, burst_seconds=3600.0)  # all that is drawn is drawn in the first moments
    set_limits(distance, first_rate=0.01, rate_seconds=3600.0)
    for tag in tags:
        server.add(f"/{tag}.tar", shards.shard(tag, rows))
    cache = tmp_path / "cache"
    listed = describe(server, tags, rows=rows)
    dataset = ShardListDataset(listed, cache_dir=cache, transformations=[], early_reads=False)
    iteration = iter(ChunkedSampler(dataset, chunksize=rows, shuffle=False))
    for index in itertools.islice(iteration, 2 * rows + distance.LIMITS.min_burst + 1):
        if is_read_here:
            assert text_of(dataset[index]) == expected_text(index, tags=tags, rows=rows)

    def planned():
        """The shards that are used soon, or that may be in use now."""
        home = CacheDirectory(str(cache))
        return "".join(sorted(name[-5] for name in usage_hints.read(home.folder, home.transients().plans)))

    wait_until(lambda: planned() == ("cd" if is_read_here else "abcd"))


@pytest.mark.parametrize("share", [0.5, 0.99, 1.02])
def test_a_limit_below_one_shard_holds_no_more_than_two(make, tmp_path, share):
    """Shards that this process has open and does not read go for the next one, as with any larger limit."""
    dataset, most = make(cache_size=int(share * SIZE), prefetch=False), 0
    for index in range(0, len(dataset), ROWS):
        _ = dataset[index]
        most = max(most, len([name for name in os.listdir(tmp_path / "cache") if name.endswith(".tar")]))
    assert most <= 2


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
def test_what_is_never_read_is_not_fetched(server, tmp_path, form, monkeypatch):
    """A dataset that chooses samples by itself does not have the first shards fetched in their place."""
    index = shards.serve_shards(server, 5)
    if form == "wrapper":
        dataset = Filtered(wids.ShardListDataset(index, cache_dir=tmp_path / "cache"), range(9, 15))
    else:
        dataset = FilteredList(index, cache_dir=tmp_path / "cache")
    clock = PrefetchClock(monkeypatch.setattr)
    sampler = wids.ChunkedSampler(dataset, shuffle=False)
    drawn = iter(sampler)
    first = next(drawn)
    clock.move(1)
    assert dataset[first][".txt"] is not None
    clock.move(1)
    assert [dataset[i]["__key__"] for i in drawn]
    assert set(shard_requests(server)) <= {"/d.tar", "/e.tar"}


def test_keep_holds_for_what_came_ahead(server, tmp_path):
    """A shard of a dataset that keeps its shards is kept from its arrival on."""
    url, data = server.add("/a.tar", shards.shard("a")), shards.shard("a")
    opener = AutoProvider(cache_dir=str(tmp_path / "cache"), keep=True)
    assert opener.cache.download_ahead(
        opener.cache.locate(described(url, data)), after=time.time(), is_cancelled=lambda: False
    )
    assert [entry.is_kept for entry in CacheDirectory(str(tmp_path / "cache")).inventory().entries] == [True]


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
    dataset = wids.ShardListDataset(shards.serve_shards(server, 2), cache_dir=tmp_path / "cache")
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
    dataset = wids.ShardListDataset(shards.serve_shards(server, 2), cache_dir=tmp_path / "cache")
    drawn = iter(wids.ChunkedSampler(dataset))
    next(drawn)
    live = [p for p in background._live if isinstance(p, prefetch.Prefetcher)]
    found = [p for p in live if p._sources[0].store is dataset.cache.provider.cache]
    found[0]._thread.join(1)
    background._end_all()
    assert [dataset[i] for i in drawn]
    assert not [record for record in caplog.records if record.exc_info]

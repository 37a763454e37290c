"""What dataset.stats() says, over processes and copies."""

import copy
import multiprocessing
import pickle

import pytest
import torch

import wids
from tests.support.clocks import PATIENCE_SECONDS
from tests.support.shards import write_index
from wids.core.collection.stats import Stats, Tally
from wids.dataset import _SharedTally
from wids.events import (
    Closed,
    Evicted,
    Fetched,
    Hit,
    PrefetchBegun,
    RangesRead,
    Rejected,
    Retried,
    TableRead,
    Waited,
    WaitedForRoom,
)

EVENTS = {
    Fetched(url="u", path="p", size_bytes=10, seconds=0.5): {
        "fetches": 1,
        "fetched_bytes": 10,
        "fetch_requests": 1,
        "stalled_seconds": 0.5,
    },
    RangesRead(url="u", requests=3, size_bytes=10, seconds=0.5): {
        "range_requests": 3,
        "range_bytes": 10,
        "stalled_seconds": 0.5,
    },
    TableRead(url="u", requests=2, size_bytes=10, seconds=0.5): {
        "table_requests": 2,
        "table_bytes": 10,
        "stalled_seconds": 0.5,
    },
    Fetched(url="u", path="p", size_bytes=10, seconds=0.5, is_ahead=True, requests=4): {
        "fetches": 1,
        "fetched_bytes": 10,
        "fetch_requests": 4,
        "fetched_ahead": 1,
    },
    Hit(url="u", path="p"): {"hits": 1},
    Retried(url="u", attempt=1, cause="c"): {"retries": 1},
    Rejected(url="u", path="p", cause="c"): {"rejections": 1},
    Evicted(path="p", size_bytes=7): {"evictions": 1, "evicted_bytes": 7},
    Waited(path="p", seconds=0.25): {"waits": 1, "stalled_seconds": 0.25},
    WaitedForRoom(url="u", path="p", seconds=9.0): {"waits": 1},
    Closed(url="u"): {},
}


@pytest.mark.parametrize(("event", "expected"), EVENTS.items(), ids=repr)
def test_what_each_event_adds(event, expected):
    """One event, one or a few numbers; the wait for room is part of the fetch that waited."""
    tally = Tally()
    tally(event)
    assert tally.total() == Stats(**expected)


@pytest.mark.parametrize("method", [None, "fork", "spawn", "forkserver"])
def test_workers_count_with_the_main_process(web, tmp_path, method):
    """Whoever fetches and wherever: each of the three shards once."""
    dataset = wids.ShardListDataset(f"{web.url}/index.json", cache_dir=tmp_path / "cache", transformations="raw")
    sampler = wids.DistributedChunkedSampler(dataset)
    count = 1 if method == "spawn" else 2  # each imports everything anew
    workers = {} if method is None else {"num_workers": count, "multiprocessing_context": method}
    loader = torch.utils.data.DataLoader(dataset, batch_size=2, sampler=sampler, collate_fn=len, **workers)
    assert sum(loader) == len(dataset)
    stats = dataset.stats()
    assert stats.fetches == 3
    assert stats.fetched_bytes == sum(path.stat().st_size for path in (tmp_path / "data").glob("*.tar"))
    assert (stats.evictions, stats.rejections, stats.retries) == (0, 0, 0)
    assert sum(loader) == len(dataset)
    assert dataset.stats().fetches == 3
    assert dataset.stats().hits > stats.hits or method is None


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda dataset: pickle.loads(pickle.dumps(dataset))])
def test_a_copy_counts_for_itself(web, tmp_path, duplicate):
    """A copied or pickled dataset begins with zeros, and leaves the original's alone."""
    dataset = wids.ShardListDataset(f"{web.url}/index.json", cache_dir=tmp_path / "cache", transformations="raw")
    dataset[0]
    other = duplicate(dataset)
    assert (dataset.stats().fetches, other.stats()) == (1, Stats())
    other[0]
    assert (dataset.stats().hits, other.stats().hits) == (0, 1)


def test_local_shards_count_nothing(tmp_path):
    """Nothing is fetched, found or evicted where shards are read in place."""
    dataset = wids.ShardListDataset(write_index(tmp_path, (2, 2)))
    assert len(list(dataset)) == 4
    assert dataset.stats() == Stats()


def test_the_price_is_a_line():
    """Requests and bytes of each kind; those of a real epoch add up to what the server has seen."""
    stats = Stats(fetch_requests=1200, fetched_bytes=10**9, range_requests=3, range_bytes=10**5, table_requests=1)
    words = "shards: 1,200 requests, 1,000.0 MB; samples: 3 requests, 0.1 MB; member tables: 1 requests, 0.0 MB"
    assert stats.price() == words


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_see_what_steers(method):
    """Signals are of all processes that read a dataset, and no figure: a tally of zeros has none."""
    tally = _SharedTally()
    assert not tally.is_prefetching()
    assert not tally.has_substituted()
    context = multiprocessing.get_context(method)
    process = context.Process(target=tally, args=(PrefetchBegun(),))
    process.start()
    process.join(PATIENCE_SECONDS)
    assert process.exitcode == 0
    assert tally.is_prefetching()
    assert not tally.has_substituted()
    assert tally.total() == Stats(prefetches=1)

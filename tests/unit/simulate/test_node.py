"""A node whose loaders read by byte ranges: what is asked for so, when it comes, and what is downloaded meanwhile."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import cache_shards as shards
from tests.support.clocks import PrefetchClock
from tests.support.examples import examples
from tests.support.tars import publish
from wids import DistributedChunkedSampler, ShardListDataset
from wids.core.cache.space import table_allowance
from wids.core.prefetch import distance
from wids.core.transport import pace
from wids.events import Fetched, RangesRead
from wids.tools.simulate import job
from wids.tools.simulate.run import Simulation


def describe(lengths, size=1000, **options):
    """A job over shards with these counts."""
    sizes = np.full(len(lengths), size)
    return job.TrainingJob(lengths=np.array(lengths), sizes=sizes, footprints=sizes, **options)


def simulate(described):
    """The outcome of a job."""
    return Simulation(described, job.read_epochs(described, described.courses())).run()


# --- by hand: one rank, and one shard of 100 samples of 10 bytes


def one_shard(**options):
    """Batches of 10 samples, a second each; 0.5 s to a first byte, and 100 bytes a second."""
    return describe([100], **{"batch_size": 10, "step_seconds": 1.0, "bandwidth": 100.0, "latency": 0.5, **options})


def test_nodes_share_what_is_known_of_shards():
    """A thousand nodes of a million shards fit into memory: no list of all shards is a node's own."""
    described = describe([3] * 50, world=20, ranks_per_node=2)
    nodes = Simulation(described, job.read_epochs(described, described.courses())).nodes
    assert len(nodes) == 10
    known = [3] * 50, [1000] * 50
    lists = [
        {id(value) for value in (*vars(node).values(), *vars(node.cache).values()) if value in known} for node in nodes
    ]
    assert lists[0]
    assert len(set().union(*lists)) == len(lists[0])


def test_without_workers_each_batch_waits_for_its_ranges():
    """There is no space for the shard: 0.5 s to the first byte and 1 s for 100 bytes, then the step; ten times."""
    found = simulate(one_shard(cache_size=500))
    assert found.first_seconds == pytest.approx([1.5])
    assert found.epoch_seconds == pytest.approx([25.0])
    assert found.waits == pytest.approx(dict.fromkeys(range(10), 1.5))
    assert (found.total("shards"), found.total("range_requests"), found.total("range_bytes")) == (0, 100, 1000)


def test_a_worker_asks_for_the_batches_that_are_drawn():
    """Two batches are under way at the first step, and so each is there when its step is due."""
    found = simulate(one_shard(cache_size=500, workers=1))
    assert found.first_seconds == pytest.approx([1.5])
    assert found.epoch_seconds == pytest.approx([11.5])
    assert list(found.waits) == [0]


def test_a_slow_link_is_all_that_is_waited_for():
    """At 50 bytes a second batches come 2 s apart, whatever else is asked for."""
    found = simulate(one_shard(cache_size=500, workers=2, bandwidth=50.0))
    assert found.first_seconds == pytest.approx([2.5])
    assert found.epoch_seconds == pytest.approx([0.5 + 10 * 2.0 + 1.0])


@pytest.mark.parametrize("prefetch", [None, 0])
def test_what_has_arrived_is_read_from_the_cache(prefetch):
    """The first batch comes after 0.1 + 0.05 s, then its shard, in 0.5 s; it is there for the second one."""
    found = simulate(one_shard(bandwidth=2000.0, latency=0.1, prefetch=prefetch))
    assert found.first_seconds == pytest.approx([0.15])
    assert found.epoch_seconds == pytest.approx([10.15])
    assert (found.total("range_requests"), found.total("range_bytes")) == (10, 100)
    assert (found.total("shards"), found.total("waited")) == (1, 0)
    assert found.log[0][-1] == (pytest.approx(0.65), 1000, 1100)


def test_workers_without_prefetching_wait_for_shards():
    """Nothing would bring what they read early: as in a real job, they download it."""
    found = simulate(one_shard(bandwidth=2000.0, latency=0.1, prefetch=0, workers=1))
    assert found.first_seconds == pytest.approx([0.6])
    assert (found.total("range_requests"), found.total("waited")) == (0, 1)


def test_batches_that_are_under_way_do_not_stop_for_their_shard():
    """A worker has two batches drawn when the shard is still to come; only the third is read from the cache."""
    found = simulate(one_shard(bandwidth=2000.0, latency=0.1, workers=1))
    # Both batches until 0.2; the third is drawn at 0.15, the fourth at 1.15, and the shard came at 0.7 or later.
    assert found.total("range_requests") == 30
    assert found.epoch_seconds == pytest.approx([10.15])


def test_a_node_that_has_spent_its_share_of_requests_waits_for_its_shard(set_limits):
    """The first batch comes by ranges, twice its share; the next ones when it is their turn: 5 requests a second."""
    set_limits(pace.Pace, job_rate=5.0)
    found = simulate(one_shard(bandwidth=100.0, latency=0.1, workers=1))
    assert (found.total("range_requests"), found.total("shards")) == (100, 1)
    assert found.first_seconds == pytest.approx([1.1])
    assert found.waits == pytest.approx({0: 1.1, 1: 1.2, 2: 3.0, 5: 3.0, 8: 3.0})
    assert found.requests[0] == 11
    assert max(count for second, count in found.requests.items() if second) == 10


def test_a_shard_that_comes_first_is_not_asked_for_again(set_limits):
    """The next batches wait for the shard alone, which comes before it is their turn."""
    set_limits(pace.Pace, job_rate=1.0)
    found = simulate(one_shard(bandwidth=400.0, latency=0.1, workers=1))
    assert (found.total("range_requests"), found.total("shards")) == (10, 1)
    assert list(found.waits) == [0, 1]


def test_no_latency_and_all_the_time():
    """A link that is fast enough delays no step, whatever is read by ranges."""
    found = simulate(one_shard(cache_size=500, workers=1, latency=0.0, bandwidth=1e9))
    assert found.epoch_seconds == pytest.approx([10.0], abs=1e-5)
    assert found.total("range_bytes") == 1000


# --- what batches consist of

OPTIONS = st.fixed_dictionaries(
    {
        "world": st.integers(1, 4),
        "seed": st.integers(0, 3),
        "chunksize": st.sampled_from([3, 7, 10_000]),
        "window": st.integers(1, 4),
        "batch_size": st.integers(1, 9),
        "tail": st.sampled_from(["pad", "drop"]),
        "workers": st.integers(0, 2),
        "epochs": st.integers(1, 2),
    }
)
LENGTHS = st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(lambda lengths: sum(lengths) > 5)


@settings(max_examples=examples(60))
@given(lengths=LENGTHS, options=OPTIONS)
def test_batches_hold_all_samples(lengths, options):
    """Counted, they are those of the order; spread over visits, each batch has as many, of shards that it is near."""
    described = describe(lengths, **options)
    size = described.batch_size
    for epoch in job.read_epochs(described, described.courses()):
        for rank, read in enumerate(epoch.shards):
            counted = job.count_shards(read, epoch.edges(rank, size))
            spread = job.spread_shards(epoch.visits[rank], lengths, count=epoch.counts[rank], size=size)
            assert len(read) == epoch.counts[rank]
            for batch in range(epoch.steps[rank]):
                exact, close = counted(batch), spread(batch)
                assert exact == {k: read[batch * size :][:size].tolist().count(k) for k in exact}
                assert sum(close.values()) == pytest.approx(sum(exact.values()))
                assert exact.keys() <= close.keys()


@settings(max_examples=examples(60))
@given(lengths=LENGTHS, options=OPTIONS, is_exact=st.booleans())
def test_without_space_all_samples_are_read_by_ranges(lengths, options, is_exact):
    """Each once, in every epoch; and no shard is downloaded."""
    with pytest.MonkeyPatch.context() as patch:
        if not is_exact:
            patch.setattr(job, "MAX_EXACT", 0)
        described = describe(lengths, 1260, cache_size=1000, **options)
        epochs = job.read_epochs(described, described.courses())
        found = Simulation(described, epochs).run()
    read = sum(map(sum, (epoch.counts for epoch in epochs)))
    rounding = 0 if is_exact else sum(map(max, (epoch.steps for epoch in epochs)))
    assert found.total("range_requests") == pytest.approx(read, abs=rounding)
    assert (found.total("shards"), found.total("waited"), found.stopped_at) == (0, 0, None)
    if is_exact and len(set(lengths)) == 1:
        assert found.total("range_bytes") == pytest.approx(read * 1260 / lengths[0], abs=read)


@settings(max_examples=examples(60))
@given(
    lengths=LENGTHS,
    options=OPTIONS,
    cache=st.none() | st.integers(1, 7),
    prefetch=st.sampled_from([None, 0]),
    bandwidth=st.sampled_from([1e3, 1e4, 1e6]),
)
def test_a_job_ends_and_waits_for_no_shard(lengths, options, cache, prefetch, bandwidth):
    """However small the cache and slow the link: no sample is read twice by ranges, and no step waits longer for them
    than the link takes for all that was asked for.
    """
    size = None if cache is None else cache * 1000
    options = options if prefetch is None else {**options, "workers": 0}
    described = describe(lengths, cache_size=size, prefetch=prefetch, bandwidth=bandwidth, **options)
    epochs = job.read_epochs(described, described.courses())
    found = Simulation(described, epochs).run()
    assert found.stopped_at is None
    assert found.total("waited") == 0
    assert found.total("range_requests") <= sum(map(sum, (epoch.counts for epoch in epochs)))
    asked = len(found.marks) * described.latency + found.total("range_bytes") / bandwidth
    assert sum(found.waits.values()) <= asked + 1e-6
    assert all(used <= (size or 1e9) for log in found.log for _, used, _ in log)


# --- on a busy link


def busy(**options):
    """8 ranks that read 256 MB a second, of 200 shards of 100 MB, and a cache of 60 of them."""
    own = {"world": 8, "workers": 4, "batch_size": 64, "step_seconds": 0.2, "cache_size": 6_000_000_000}
    return describe([1000] * 200, 100_000_000, **{**own, **options})


def test_a_saturated_link_carries_samples():
    """At 200 MB/s the epoch takes what its 20 GB take; the first batch comes at once, and steps follow evenly."""
    found = simulate(busy(bandwidth=200e6))
    batch = 8 * 64 * 100_000 / 200e6
    assert found.first_seconds == pytest.approx([0.03 + batch])
    assert found.epoch_seconds[0] == pytest.approx(0.03 + 20e9 / 200e6 + 0.2, rel=0.001)
    assert max(wait for step, wait in found.waits.items() if step) <= batch - 0.2 + 0.01
    waiting = simulate(busy(bandwidth=200e6, early_reads=False))
    assert found.epoch_seconds[0] < 0.95 * waiting.epoch_seconds[0]


def test_downloads_come_in_time_or_not_at_all(monkeypatch):
    """Where the link has less to spare than is read, shards that would come too late leave it to later ones.

    Else most shards would be read by ranges and downloaded afterwards.
    """
    found = simulate(busy(bandwidth=400e6))
    assert found.total("size_bytes") + found.total("range_bytes") < 1.25 * 20e9
    assert found.total("range_bytes") < 0.5 * 20e9
    assert list(found.waits) == [0]
    monkeypatch.setattr(distance, "is_in_time", lambda *_, **__: True)
    late = simulate(busy(bandwidth=400e6))
    assert late.total("size_bytes") + late.total("range_bytes") > 1.6 * 20e9


def test_a_fast_link_downloads_all():
    """Only the first batches are read by ranges, and each shard comes once."""
    found = simulate(busy(bandwidth=2e9))
    assert (found.total("shards"), found.total("again")) == (200, 0)
    assert found.total("range_requests") < 0.05 * 200_000
    assert list(found.waits) == [0]


def test_a_cache_of_fewer_shards_than_are_read():
    """What has no space is read by ranges to its end: no step waits on a link that is fast enough."""
    found = simulate(busy(bandwidth=1e9, cache_size=1_600_000_000))
    assert list(found.waits) == [0]
    assert found.total("shards") > 0
    assert found.total("size_bytes") + found.total("range_bytes") < 1.5 * 20e9


# --- without published tables


def test_shards_whose_tables_are_not_known_are_waited_for_once():
    """A cache of three shards, where four are read: each is downloaded, and then read by ranges where it has gone."""
    own = {
        "window": 4,
        "cache_size": 330_000_000,
        "batch_size": 50,
        "step_seconds": 0.1,
        "epochs": 2,
        "bandwidth": 500e6,
    }
    job = describe([1000] * 12, 100_000_000, **own)
    published, found = simulate(job), simulate(replace(job, has_tables=False))
    waiting = simulate(replace(job, early_reads=False))
    assert found.traffic[0][0].shards >= 12
    assert published.total("shards") < found.total("shards") < waiting.total("shards") / 2
    assert found.total("range_requests") > 0
    first, second = found.epoch_seconds
    assert published.epoch_seconds[0] <= first < waiting.epoch_seconds[0]
    assert second < first


def test_without_a_limit_tables_are_of_no_use():
    """Nothing is evicted: all is as without early reads."""
    job = describe([100] * 12, 1_000_000, batch_size=50)
    found, waiting = simulate(replace(job, has_tables=False)), simulate(replace(job, early_reads=False))
    assert found == waiting


# --- against a real cache

ROWS, SHARDS, WINDOW, STEP_SECONDS = 6, 8, 4, 0.12


class Watch:
    """Samples and bytes that were read by ranges, and shards that were downloaded."""

    def __init__(self):
        """Nothing yet."""
        self.samples = self.size_bytes = self.shards = 0

    def __call__(self, event):
        """See the class; each sample is read by itself here."""
        if isinstance(event, RangesRead):
            self.samples += 1
            self.size_bytes += event.size_bytes
        self.shards += isinstance(event, Fetched)


def list_with_tables(server, size):
    """What an index says of shards with samples of about ``size`` bytes, whose member tables lie beside them."""
    server.has_ranges = True
    listed = []
    for k in range(SHARDS):
        body, path = shards.shard(f"{k:02}", ROWS, size), f"/{k}.tar"
        listed.append({"url": server.add(path, body), "nsamples": ROWS, "filesize": len(body)})
        publish(server, path)
    return listed


def read_slowly(listed, directory, limit, clock):
    """An epoch with steps that are longer than the downloads, by a clock that stands still meanwhile."""
    watch = Watch()
    with contextlib.closing(
        ShardListDataset(listed, cache_dir=directory, cache_size=limit, transformations=[], hooks=[watch])
    ) as dataset:
        for index in DistributedChunkedSampler(dataset, num_replicas=1, rank=0, window=WINDOW):
            _ = dataset[index]
            clock.move(STEP_SECONDS)
    return watch


@pytest.mark.parametrize("places", [2, 3])
def test_as_much_is_read_by_ranges_as_in_a_real_job(server, tmp_path, monkeypatch, set_limits, places):
    """Through a cache of fewer shards than are read at a time, four: as many samples and bytes, within a half.

    The model says 21 and 10 of 48 samples. A real run has up to 2 more or fewer: of the shards that are downloaded at a
    time, any may have its room first.
    """
    set_limits(distance, min_burst=1)  # nothing draws ahead here
    listed = list_with_tables(server, 20_000)
    size = listed[0]["filesize"]
    room = size + table_allowance(size, ROWS)
    limit = places * room + room // 2
    described = job.TrainingJob(
        lengths=np.full(SHARDS, ROWS),
        sizes=np.full(SHARDS, size),
        footprints=np.full(SHARDS, room),
        batch_size=1,
        window=WINDOW,
        cache_size=limit,
        step_seconds=STEP_SECONDS,
        latency=0.001,
    )
    found = simulate(described)
    samples, size_bytes = found.total("range_requests"), found.total("range_bytes")
    assert 0 < samples < ROWS * SHARDS
    watch = read_slowly(listed, tmp_path / "cache", limit, PrefetchClock(monkeypatch.setattr))
    assert samples / 1.5 <= watch.samples <= samples * 1.5
    assert size_bytes / 1.5 <= watch.size_bytes <= size_bytes * 1.5
    assert abs(watch.shards - found.total("shards")) <= 2

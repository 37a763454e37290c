"""Local shards on a network file system: read into memory ahead of a sampler, in order, within limits."""

import gc
import itertools
import logging
import os

import pytest
from torch.utils.data import DataLoader, Subset

from tests.support import cache_shards as shards
from tests.support.clocks import threads_named, wait_until
from wids.core.files import page_cache, ranks
from wids.core.order.layout import interface_of
from wids.core.prefetch import distance, upcoming
from wids.core.prefetch.ahead import CollectionSource
from wids.core.transport import concurrency
from wids.dataset import ShardListDataset
from wids.samplers import ChunkedSampler, DistributedChunkedSampler

COUNT, ROWS = 12, 20


@pytest.fixture
def paths(tmp_path):
    """Twelve local shards of twenty samples."""
    return [str(shards.write(tmp_path / f"{k:02d}.tar", shards.shard(str(k), count=ROWS))) for k in range(COUNT)]


@pytest.fixture
def read(monkeypatch):
    """All files lie on a network file system; the (path, begin, end) that were read ahead."""
    found = []
    monkeypatch.setattr(page_cache, "is_network", lambda _path: True)
    monkeypatch.setattr(
        page_cache, "read_ahead", lambda path, begin, end, *, is_cancelled: found.append((path, begin, end))
    )
    return found


def make(paths, **options):
    """A dataset of shards."""
    return ShardListDataset([(path, ROWS) for path in paths], transformations=[], **options)


def order_of(dataset, indices):
    """The shards of some indices, each once, as they come."""
    return list(dict.fromkeys(dataset.shards[dataset.locate(index).shard]["url"] for index in indices))


def end(indices):
    """Take the rest of an iterator, whose threads have ended then."""
    for _ in indices:
        pass
    wait_until(lambda: not threads_named("wids-prefetch"))


@pytest.mark.parametrize("make_sampler", [ChunkedSampler, DistributedChunkedSampler])
def test_each_shard_is_read_ahead(paths, read, make_sampler):
    """Whole, once in an epoch, before the first index of those that come later is drawn."""
    dataset = make(paths)
    options = {} if make_sampler is ChunkedSampler else {"num_replicas": 1, "rank": 0, "shuffle": True}
    sampler = make_sampler(dataset, **options)
    drawn = iter(sampler)
    indices = [next(drawn)]
    wait_until(lambda: len(read) == COUNT)
    indices += list(drawn)
    end(drawn)
    assert sorted(read) == sorted((path, 0.0, 1.0) for path in paths)
    assert set(order_of(dataset, indices)) == set(paths)


def test_in_the_order_of_use(paths, read, set_limits):
    """The shard that is needed first comes first."""
    set_limits(concurrency, min_under_way=1, connections=1)
    dataset = make(paths)
    indices = [row + ROWS * k for k in (5, 3, 9, 0) for row in range(ROWS)]
    with dataset.prefetch(indices) as ahead:
        wait_until(lambda: len(read) == 4)
        assert list(ahead) == indices
    assert [path for path, _, _ in read] == [paths[k] for k in (5, 3, 9, 0)]


def test_parts_of_shards(paths, read):
    """Of a shard read in parts at several times each part when it comes; of one that is read sparsely: none."""
    dataset = make(paths)
    halves = [[*range(10)], [*range(20, 40)], [*range(10, 20)]]
    sparse = [60, 67, 74, 79]
    drawn = dataset.prefetch([*itertools.chain(*halves), *sparse])
    assert next(drawn) == 0
    wait_until(lambda: len(read) >= 3)
    end(drawn)
    found = {(path, begin, stop) for path, begin, stop in read if stop > begin}
    assert found <= {(paths[0], 0.0, 1.0), (paths[1], 0.0, 1.0), (paths[0], 0.0, 0.5), (paths[0], 0.5, 1.0)}
    assert (paths[1], 0.0, 1.0) in found


def test_samples_here_and_there_of_a_whole_shard(paths, read, set_limits):
    """Several shards are mixed, a few samples of each in a block of the order: each is read whole, once."""
    set_limits(distance, block=8)
    dataset = make(paths)
    order = [row * 7 % ROWS + ROWS * k for row in range(ROWS) for k in range(4)]
    drawn = dataset.prefetch(order)
    next(drawn)
    wait_until(lambda: len(read) >= 4)
    end(drawn)
    assert sorted(path for path, begin, stop in read if stop > begin) == paths[:4]
    assert all(stop - begin > 0.9 for _, begin, stop in read if stop > begin)


def test_the_limit_is_kept(paths, read):
    """``prefetch`` bytes ahead, and more once the reader goes on."""
    size = len(shards.shard("0", count=ROWS))
    dataset = make(paths, prefetch=3 * size)
    drawn = dataset.prefetch(range(len(dataset)))
    wait_until(lambda: len(read) == 3)
    for _ in range(5 * ROWS):
        next(drawn)
    wait_until(lambda: len(read) > 5)
    assert len(read) < COUNT
    drawn.close()
    wait_until(lambda: not threads_named("wids-prefetch"))


def test_no_more_than_memory_allows(paths, read, monkeypatch):
    """A quarter of what is free, of all ranks of the node together."""
    size = len(shards.shard("0", count=ROWS))
    monkeypatch.setattr(page_cache, "free_memory", lambda: 16 * size + 8)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with make(paths).prefetch(range(COUNT * ROWS)):
        wait_until(lambda: len(read) == 2)
    wait_until(lambda: not threads_named("wids-prefetch"))
    assert len(read) == 2


def test_what_is_near_or_not_wanted_is_left(paths, read, monkeypatch):
    """``prefetch=False`` or 0, shards on a disk of this machine, and copies in the cache."""
    for options in ({"prefetch": False}, {"prefetch": 0}):
        assert interface_of(make(paths, **options)).prefetch_source() is None
    monkeypatch.setattr(page_cache, "is_network", lambda _path: False)
    assert interface_of(make(paths)).prefetch_source() is None
    assert interface_of(make([])).prefetch_source() is None
    assert read == []


def test_the_cache_has_no_part_in_it(paths, read, tmp_path, caplog):
    """Its size limits nothing, no warning is given of it, and nothing is written there."""
    dataset = make(paths, cache_dir=tmp_path / "cache", cache_size=1)
    with caplog.at_level(logging.WARNING, logger="wids"):
        drawn = iter(ChunkedSampler(dataset))
        next(drawn)
        wait_until(lambda: len(read) == COUNT)
        end(drawn)
    assert caplog.records == []
    assert not (tmp_path / "cache").exists()


def test_copies_for_the_cache_are_downloads(paths, read, tmp_path):
    """With ``cache_local=True`` shards are copied ahead, as remote ones are."""
    dataset = make(paths, cache_dir=tmp_path / "cache", cache_local=True)
    assert type(interface_of(dataset).prefetch_source()) is CollectionSource
    assert read == []


def test_a_file_that_goes_away_is_its_readers_error(paths, monkeypatch):
    """What cannot be read ahead ends no epoch."""
    monkeypatch.setattr(page_cache, "is_network", lambda _path: True)

    def fail(*_, **__):
        raise OSError(5, "the server is gone")

    monkeypatch.setattr(page_cache, "read_ahead", fail)
    dataset = make(paths)
    assert sorted(ChunkedSampler(dataset)) == list(range(len(dataset)))
    wait_until(lambda: not threads_named("wids-prefetch"))


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_are_what_they_are(paths, monkeypatch, workers):
    """With the kernel's own calls, whatever reads them."""
    monkeypatch.setattr(page_cache, "is_network", lambda _path: True)
    dataset = make(paths)
    loader = DataLoader(dataset, batch_size=8, sampler=ChunkedSampler(dataset), num_workers=workers, collate_fn=list)
    found = sorted(sample["__key__"] + sample[".txt"].read().decode() for batch in loader for sample in batch)
    assert found == sorted(s["__key__"] + s[".txt"].read().decode() for s in dataset)
    gc.collect()
    wait_until(lambda: not threads_named("wids-prefetch"))


@pytest.mark.parametrize("kind", ["subset", "view"])
def test_a_view_of_few_samples_reads_no_whole_files(paths, read, kind):
    """Of each shard two samples of twenty are chosen, far apart: nothing but them is worth reading."""
    dataset = make(paths)
    chosen = [k * ROWS + row for k in range(COUNT) for row in (2, 17)]
    few = Subset(dataset, chosen) if kind == "subset" else dataset.select(chosen)
    drawn = iter(ChunkedSampler(few))
    next(drawn)
    wait_until(lambda: len(read) >= COUNT)
    end(drawn)
    assert {(begin, last) for _, begin, last in read} == {(0.0, 0.0)}


def test_the_part_of_a_view_is_read(paths, read):
    """Of samples that stand together in a file, these bytes; of a view of all, whole files."""
    dataset = make(paths[:2])
    for rows, part in ((range(5, 15), (0.25, 0.75)), (range(ROWS), (0.0, 1.0))):
        read.clear()
        drawn = iter(ChunkedSampler(dataset.select([k * ROWS + row for k in range(2) for row in rows])))
        next(drawn)
        wait_until(lambda: len(read) == 2)
        end(drawn)
        assert sorted(read) == [(path, *part) for path in paths[:2]]


def test_few_fields_read_no_whole_files(paths, read):
    """Which bytes they are is not known before the member tables are."""
    drawn = iter(ChunkedSampler(make(paths, fields=(".txt",))))
    next(drawn)
    assert threads_named("wids-prefetch") == []
    end(drawn)
    assert read == []


def test_sizes_that_the_index_has_are_not_asked_for(paths, read, monkeypatch):
    """One look at each of many files, one after the other, would keep the first read ahead waiting."""
    sizes = {path: os.path.getsize(path) for path in paths}
    dataset = ShardListDataset(
        [{"url": path, "nsamples": ROWS, "filesize": sizes[path]} for path in paths], transformations=[]
    )
    looked, real = [], os.stat
    monkeypatch.setattr(upcoming.os, "stat", lambda path, **options: looked.append(path) or real(path, **options))
    drawn = iter(ChunkedSampler(dataset))
    next(drawn)
    wait_until(lambda: len(read) == COUNT)
    monkeypatch.undo()
    end(drawn)
    assert not set(looked[1:]) & set(paths[1:])


def test_an_odd_local_world_size(monkeypatch):
    """A variable that is no number does not end prefetching."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "²")
    assert ranks.ranks_of_node() == 1

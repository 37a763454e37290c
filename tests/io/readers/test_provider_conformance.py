"""What every way to open a shard does alike: in place, from the cache, by byte ranges, and the choice among them."""

import contextlib
import gc
import os
import pickle

import pytest

import wids
from tests.support import cache_shards as shards
from tests.support.cache_dirs import table_of
from tests.support.cache_shards import described, texts, texts_of
from tests.support.children import PATIENCE_SECONDS, call_in_child
from tests.support.clocks import set_limits
from wids.cache import limits
from wids.cache.directory import CacheDirectory
from wids.cache.leases import leases
from wids.cache.space import Space, table_allowance
from wids.errors import (
    CacheFull,
    ChangedShardError,
    CountMismatchError,
    DigestMismatchError,
    FetchError,
    ShardError,
    SizeMismatchError,
)
from wids.readers.pool import OpenShards
from wids.readers.provider import AutoProvider
from wids.tables import table as tables

DATA = shards.shard("a", 3, 40_000)


def test_a_missing_shard_is_a_fetch_error(way):
    """It names the shard, and nothing stays open."""
    url = way.put("a.tar", DATA)
    way.remove(url)
    with pytest.raises(FetchError) as caught:
        way.make().open(described(url, DATA))
    assert caught.value.url == url
    assert shards.files_open_in(way.home) == []


def test_a_shard_of_another_size_is_refused(way):
    """What the index says of its size is compared before a sample is read."""
    url = way.put("a.tar", DATA)
    with pytest.raises((ChangedShardError, SizeMismatchError)):
        texts(way.make().open(described(url, DATA, filesize=len(DATA) + 512, md5sum=None)))
    assert shards.files_open_in(way.home) == []


def test_a_shard_that_changed_gives_no_wrong_byte(way):
    """Another shard under the same name is an error, or is read as what it is; never by the table of the first."""
    url = way.put("a.tar", DATA)
    first = way.make()
    first.open(described(url, DATA)).close()
    other = shards.shard("b", 3, 40_000)
    way.put("a.tar", other)
    try:
        found = texts(first.open(described(url, other)))
    except (ShardError, DigestMismatchError):
        found = texts(way.make().open(described(url, other)))
    assert found == texts_of("b")


def test_what_is_no_tar_is_a_shard_error(way):
    """Bytes that are no archive are refused, and nothing stays open."""
    data = b"x" * 2048
    url = way.put("a.tar", data)
    with pytest.raises(ShardError):
        way.make().open(described(url, data))
    assert shards.files_open_in(way.home) == []


def test_a_wrong_count_is_for_the_collection_to_refuse(way):
    """The reader says how many samples there are; a dataset compares."""
    url = way.put("a.tar", DATA)
    with contextlib.closing(way.make().open(described(url, DATA, nsamples=5))) as reader:
        assert len(reader) == 3
    with wids_dataset(way, [{"url": url, "nsamples": 5}]) as dataset, pytest.raises(CountMismatchError) as caught:
        _ = dataset[0]
    assert (caught.value.expected, caught.value.found) == (5, 3)
    assert shards.files_open_in(way.home) == []


@pytest.mark.parametrize("damage", [b"", b"\x89WIDS\r\n\x1a" + bytes(200), b"x" * 5000])
def test_a_damaged_table_is_none(way, damage):
    """A saved or published table that cannot be read is not used."""
    url = way.put("a.tar", DATA)
    way.put("a.tar" + tables.SUFFIX, damage)
    if way.is_cached:
        reader = way.make().open(described(url, DATA))
        path = reader.path
        reader.close()
        with open(table_of(path), "wb") as file:
            file.write(damage)
    with contextlib.closing(way.make().open(described(url, DATA))) as reader:
        assert texts(reader) == texts_of("a")


@contextlib.contextmanager
def wids_dataset(way, listed, **options):
    """A dataset that reads in this way."""
    options = {"cache_dir": way.home / "cache", "transformations": [], **way.options, **options}
    dataset = wids.ShardListDataset(listed, **options)
    yield dataset
    dataset.close()


# --- pools, processes


def test_a_pool_gives_way(way):
    """Space that is needed closes what is leased and idle at once; what `get_shard` gave is opened again."""
    shard = described(way.put("a.tar", DATA), DATA)
    pool = OpenShards(way.make(), capacity=3, find=lambda _: shard, hooks=())
    found = pool.get_shard(shard.url)
    assert texts(found) == texts_of("a")
    os.makedirs(way.home / "cache", exist_ok=True)
    leases.release(str(way.home / "cache"))
    assert len(pool) == (0 if way.is_cached else 1)
    if way.is_cached:
        assert shards.files_open_in(way.home) == []
        assert Space(str(way.home / "cache"), limit=None).delete(
            Space(str(way.home / "cache"), limit=None).directory.inventory().entries[0]
        )
    assert texts(found) == texts_of("a")
    pool.clear()
    assert shards.files_open_in(way.home) == []


def test_a_reader_in_use_closes_after_its_use(way):
    """A pool that gives way in the middle of a read lets it end."""
    shard = described(way.put("a.tar", DATA), DATA)
    pool = OpenShards(way.make(), capacity=3, find=lambda _: shard, hooks=())
    with pool.open(shard).pinned() as reader:
        pool.clear()
        assert texts(reader) == texts_of("a")
    assert shards.files_open_in(way.home) == []


def test_a_forked_child_reads_on(way):
    """A dataset that was read from works in a forked child, and the child's copy of a lease keeps nothing."""
    url = way.put("a.tar", DATA)
    with wids_dataset(way, [{"url": url, "nsamples": 3, "filesize": len(DATA)}]) as dataset:
        assert dataset[0][".txt"].read() == b"a0"
        assert call_in_child(lambda: [sample[".txt"].read() for sample in dataset]) == texts_of("a")
        assert call_in_child(lambda: bool(shards.files_open_in(way.home))) == way.is_local
        assert dataset[1][".txt"].read() == b"a1"


def test_a_dataset_travels(way):
    """A pickled dataset opens its own shards, whatever its original has open or closes."""
    url = way.put("a.tar", DATA)
    with wids_dataset(way, [{"url": url, "nsamples": 3, "filesize": len(DATA)}]) as dataset:
        assert dataset[0][".txt"].read() == b"a0"
        twin = pickle.loads(pickle.dumps(dataset))
        dataset.close()
        assert [sample[".txt"].read() for sample in twin] == texts_of("a")
        twin.close()
    assert shards.files_open_in(way.home) == []


@pytest.mark.parametrize(
    "touch",
    [lambda _: None, lambda dataset: dataset.shards, lambda dataset: dataset.spec],
    ids=["alone", "shards", "spec"],
)
def test_a_dataset_that_goes_closes_its_files(way, touch):
    """Without the collector: no cycle keeps a dataset, or its pool, alive."""
    url = way.put("a.tar", DATA)
    gc.disable()
    try:
        dataset = wids.ShardListDataset(
            [{"url": url, "nsamples": 3}], cache_dir=way.home / "cache", transformations=[], **way.options
        )
        _ = dataset[0], dataset.__getitems__([1, 2]), touch(dataset)
        del dataset, _
        assert shards.files_open_in(way.home) == []
    finally:
        gc.enable()


# --- another process


def make_space(home, limit, seconds):
    """As a process that downloads a shard into a cache of ``limit`` bytes: its samples, or "full" in the end."""
    data = shards.shard("c", 3, 40_000)
    set_limits(limits, wait_seconds=seconds)  # in this process, which ends
    provider = AutoProvider(cache_dir=str(home / "cache"), cache_local=True, cache_size=limit)
    try:
        with contextlib.closing(provider.open(described(shards.write(home / "c.tar", data), data))) as reader:
            return texts(reader)
    except CacheFull:
        return "full"


def full_limit(way):
    """The limit of a cache that has no space for another shard, and would have it without one that is there."""
    if not way.is_cached:
        return None
    used = CacheDirectory(str(way.home / "cache")).inventory().used_bytes
    return used + table_allowance(len(DATA), 3)  # tables of shards to come are given more than they take


def test_another_process_takes_the_space_of_what_is_idle(way):
    """An idle shard gives way to another process that asks the directory for space; one that is being read stays."""
    data = {tag: shards.shard(tag, 3, 40_000) for tag in "ab"}
    idle, read = [described(way.put(f"{tag}.tar", data[tag]), data[tag]) for tag in "ab"]
    pool = OpenShards(way.make(), capacity=3, find=lambda _: idle, hooks=())
    found, path = pool.open(idle), pool.open(read).path
    with pool.open(read).pinned() as reader:
        assert call_in_child(make_space, way.home, full_limit(way), PATIENCE_SECONDS) == texts_of("c")
        assert (idle.url in pool.lru) == (not way.is_cached)
        assert os.path.exists(found.path) == way.is_local
        assert os.path.exists(path) == (way.is_local or way.is_cached)
        assert texts(reader) == texts_of("b")
    assert texts(found) == texts_of("a")
    pool.clear()
    assert shards.files_open_in(way.home) == []


def test_another_process_deletes_nothing_that_is_read(way):
    """Where all is being read, a process that needs space is told so in the end; the reads go on."""
    shard = described(way.put("a.tar", DATA), DATA)
    pool = OpenShards(way.make(), capacity=3, find=lambda _: shard, hooks=())
    with pool.open(shard).pinned() as reader:
        found = call_in_child(make_space, way.home, full_limit(way), 0.5)
        assert found == ("full" if way.is_cached else texts_of("c"))
        assert os.path.exists(reader.path) == (way.is_local or way.is_cached)
        assert texts(reader) == texts_of("a")
    pool.clear()
    assert shards.files_open_in(way.home) == []

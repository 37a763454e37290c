"""Samples of shards that are still on their way, or have no space in the cache: read by byte ranges meanwhile."""

import asyncio
import contextlib
import gc
import multiprocessing
import os
import pickle
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from torch.utils.data import DataLoader

import wids
from tests.support import cache_shards as shards
from tests.support.clocks import PATIENCE_SECONDS, join_threads, threads_named, wait_until
from tests.support.range_faults import WEAK, said
from tests.support.servers import stall, status, whole
from tests.support.tars import lying_table, publish, publish_pack
from wids.core.cache import limits
from wids.core.cache.space import Space
from wids.core.cache.usage_hints import PlanFile
from wids.core.collection import batches
from wids.core.files import ranks
from wids.core.readers import provider, range_provider
from wids.core.transport import concurrency, download, pace
from wids.core.transport.failures import CancelledTransferError
from wids.core.transport.range_client import ShardBytes
from wids.errors import (
    CacheError,
    ChangedShardError,
    CountMismatchError,
    DigestMismatchError,
    ShardNotFoundError,
    SizeMismatchError,
)
from wids.events import Fetched

pytestmark = pytest.mark.usefixtures("own_cache")

ROWS, SIZE = 20, 3000
TAGS = "abcd"


class Held:
    """A fault: whole shards wait until the test lets them go on, parts of them do not."""

    def __init__(self):
        self.go = threading.Event()

    def __call__(self, reply, body):
        """Answer; see the class."""
        data = reply.begin(body)
        if len(data) > len(body) // 2:
            reply.wait(self.go)
        reply.end(data)


@pytest.fixture
def held():
    """The fault of all shards' downloads."""
    found = Held()
    yield found
    found.go.set()


@pytest.fixture
def web(server, held):
    """A server of four shards with their tables, whose downloads wait."""
    server.has_ranges = True
    for tag in TAGS:
        server.add(f"/{tag}.tar", shards.shard(tag, ROWS, SIZE), held)
        publish(server, f"/{tag}.tar")
    return server


@pytest.fixture
def make(web, held, tmp_path):
    """A function: the dataset of the shards."""
    made, before = [], threading.enumerate()

    def dataset(tags=TAGS, facts=None, **options):
        listed = [
            {
                "url": f"{web.url}/{tag}.tar",
                "nsamples": ROWS,
                "filesize": len(web.files[f"/{tag}.tar"]),
                **(facts or {}),
            }
            for tag in tags
        ]
        options = {"cache_dir": tmp_path / "cache", "transformations": "raw", **options}
        made.append(wids.ShardListDataset(listed, **options))
        return made[-1]

    yield dataset
    held.go.set()
    for each in made:
        end_downloads(each)
    gc.collect()  # iterations that were left, and with them what they download
    join_threads("wids-prefetch", "wids-download", but=before)  # nothing may ask a server that is gone


def end_downloads(dataset):
    """End what a dataset of this process downloads in the background."""
    downloads = dataset._collection.provider._arrivals
    if downloads is not None:
        downloads.end(is_finished=False)
        downloads.join()


def text_of(index):
    """What ``.txt`` of a sample of the dataset holds."""
    return shards.text(TAGS[index // ROWS], index % ROWS)


def downloads(web, tag):
    """How often a whole shard was asked for."""
    size = len(web.files[f"/{tag}.tar"])
    return sum(hi - lo > size // 2 for path, lo, hi in web.ranges if path == f"/{tag}.tar")


def wait_for_cached(dataset, count=1):
    """Wait until so many shards are in the cache."""
    wait_until(lambda: sum(name.endswith(".tar") for name in os.listdir(dataset.cache_dir)) >= count)


def test_a_sample_comes_before_its_shard(web, make, held):
    """It is read by ranges; the shard is downloaded meanwhile, once, and then read from the cache."""
    dataset = make()
    assert dataset[3][".txt"] == text_of(3)
    assert dataset[5][".bin"] == b"a0005" * (SIZE // 5)
    stats = dataset.stats()
    assert (stats.fetches, stats.range_requests) == (0, 2)
    held.go.set()
    wait_for_cached(dataset)
    requests = len(web.requests)
    assert [dataset[row][".txt"] for row in range(ROWS)] == [text_of(row) for row in range(ROWS)]
    assert len(web.requests) == requests
    assert downloads(web, "a") == 1


def test_a_process_that_has_spent_its_share_waits_for_the_shard(web, make, held, set_limits, monkeypatch):
    """One read is let in; the next one comes from the shard, which is on its way, and no more ranges are asked for."""
    set_limits(pace.Pace, job_rate=0.001)
    dataset, looks = make("a"), threading.Semaphore(0)
    monkeypatch.setattr(provider, "_pause", types.SimpleNamespace(wait=lambda _: looks.release() or time.sleep(0.001)))
    assert dataset[3][".txt"] == text_of(3)
    wait_until(lambda: downloads(web, "a"))
    with ThreadPoolExecutor() as pool:
        found = pool.submit(dataset.__getitem__, 5)
        for _ in range(3):
            assert looks.acquire(timeout=PATIENCE_SECONDS)
        assert not found.done()
        held.go.set()
        assert found.result(PATIENCE_SECONDS)[".txt"] == text_of(5)
    assert dataset.stats().range_requests == 1


def test_a_process_goes_on_asking_when_its_turn_comes(web, make, set_limits):
    """Though the shard does not come."""
    set_limits(pace.Pace, job_rate=50.0, burst_seconds=0.02)
    dataset = make("a")
    assert dataset[3][".txt"] == text_of(3)
    wait_until(lambda: downloads(web, "a"))
    assert [dataset[row][".txt"] for row in range(8, 12)] == [text_of(row) for row in range(8, 12)]
    assert dataset.stats().range_requests == 5


def test_the_share_of_a_process(monkeypatch):
    """Of as many as the job has ranks, and of some in a worker of a loader."""
    monkeypatch.setenv("WORLD_SIZE", "16")
    assert ranks.processes_of_job() == 16
    monkeypatch.setattr(multiprocessing, "parent_process", object)
    assert ranks.processes_of_job() == 16 * 8
    monkeypatch.delenv("WORLD_SIZE")
    assert ranks.processes_of_job() == 8


@pytest.mark.parametrize(("code", "part"), [(503, 0.5), (429, 0.5), (500, 1.0)])
@pytest.mark.usefixtures("no_waits")
def test_a_store_that_has_too_many_requests(web, make, held, code, part):
    """Halves what the process asks for."""
    refusals = [status(code)]

    def refuse_a_sample(reply, body):
        is_sample = reply.span and reply.span[1] - reply.span[0] < len(body) // 2
        (refusals.pop() if is_sample and refusals else held)(reply, body)

    dataset = make("a")
    assert dataset[3][".txt"] == text_of(3)
    web.faults["/a.tar"] = [refuse_a_sample]
    assert dataset[9][".txt"] == text_of(9)
    assert dataset._collection.provider._by_ranges._pace._part == part


def test_the_names_of_a_sample_are_the_same(web, make, held):
    """Read by ranges or from the cache, a sample is the same dict in the same order."""
    dataset = make()
    early = dataset[7]
    held.go.set()
    wait_for_cached(dataset)
    assert list(dataset[7].items()) == list(early.items())


def test_a_batch_over_many_shards_waits_once(web, make):
    """Tables and samples of all its shards are asked for at the same time."""
    dataset = make()
    meeting = web.meeting(len(TAGS))
    for tag in TAGS:
        web.faults[f"/{tag}.tar.widx"] = [meeting]
    wanted = [0, 1, ROWS, 2 * ROWS + 3, 3 * ROWS]
    found = dataset.__getitems__(wanted)
    assert [sample[".txt"] for sample in found] == [text_of(index) for index in wanted]
    assert [sample["__index__"] for sample in found] == wanted
    assert meeting.missing <= 0
    assert dataset.stats().fetches == 0


def test_samples_of_a_batch_are_asked_for_once(web, make):
    """What two places of a batch, or two fields of a sample, need is one request; so is what lies side by side."""
    dataset = make("a")
    found = dataset.__getitems__([4, 5, 4, 6, 5])
    assert [sample[".txt"] for sample in found] == [text_of(index) for index in (4, 5, 4, 6, 5)]
    assert dataset.stats().range_requests == 1


def test_fields(web, make):
    """Only the members that are asked for are read."""
    dataset = make(fields=[".txt"])
    assert {name for name in dataset[2] if name.startswith(".")} == {".txt"}
    assert dataset.stats().range_bytes < SIZE


def test_without_tables_a_sample_waits_for_its_shard(web, make, held):
    """The first three shards tell that there are none here; others are not asked for theirs."""
    held.go.set()
    for tag in TAGS:
        del web.files[f"/{tag}.tar.widx"]
    dataset = make()
    for index in (0, ROWS, 2 * ROWS, 3 * ROWS):
        assert dataset[index][".txt"] == text_of(index)
    assert sum(path.endswith(".widx") for path in web.requests) == 3
    assert dataset.stats().range_requests == 0
    assert dataset.stats().fetches == 4


def test_turned_off(web, make, held):
    """`early_reads=False`: nothing but whole shards is asked for."""
    held.go.set()
    dataset = make(early_reads=False)
    assert dataset[0][".txt"] == text_of(0)
    assert dataset.stats().range_requests == 0
    assert not any(path.endswith(".widx") for path in web.requests)


def test_a_shard_that_cannot_be_downloaded_is_an_error(web, make, held):
    """A wrong checksum is found by the download in the background, and raised by the next read."""
    held.go.set()
    dataset = make("a", facts={"md5sum": "0" * 32})
    for _ in range(2):
        with pytest.raises(DigestMismatchError):
            [dataset[0] for _ in range(1_000_000)]
    for row in range(3):  # what is known to be of another md5 is not read any more
        with pytest.raises(DigestMismatchError):
            dataset[row]


def test_many_threads_meet_a_failed_download(web, make, held):
    """Each gets the error, none of them another one."""
    held.go.set()
    dataset = make("a", facts={"md5sum": "0" * 32})
    errors = set()

    def read():
        for row in range(ROWS):
            try:
                dataset[row]
            except Exception as error:
                errors.add(type(error))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert errors <= {DigestMismatchError}
    with pytest.raises(DigestMismatchError):
        [dataset[0] for _ in range(1_000_000)]


def test_a_shard_that_is_missing(web, make):
    """A table without its shard."""
    del web.files["/a.tar"]
    web.faults["/a.tar"] = [whole]
    dataset = make("b")
    dataset.shards = [{**row, "url": f"{web.url}/a.tar"} for row in dataset.shards]
    web.files["/a.tar.widx"] = web.files["/b.tar.widx"]
    with pytest.raises(ShardNotFoundError):
        dataset[0]


def test_a_table_with_another_count(web, make, held):
    """The shard itself says which of table and index is right."""
    held.go.set()
    dataset = make("a", facts={"nsamples": ROWS - 1})
    with pytest.raises(CountMismatchError):
        dataset[0]
    assert dataset.stats().range_requests == 0
    dataset.close()
    for name in os.listdir(dataset.cache_dir):
        if name.endswith(".tar"):
            os.unlink(os.path.join(dataset.cache_dir, name))
    with pytest.raises(CountMismatchError):
        _ = dataset[0]
    assert sum(path.endswith(".widx") for path in web.requests) == 1  # nor is it asked for again


def test_a_table_in_another_order(web, make, held, caplog):
    """Rows permuted, all else right: it is named, and the samples are those of the shard."""
    held.go.set()
    web.add("/a.tar.widx", lying_table(web.files["/a.tar"], [1, 0, *range(2, ROWS)]).to_bytes())
    dataset = make("a")
    assert [dataset[k][".txt"] for k in (0, 1)] == [text_of(0), text_of(1)]
    assert dataset.stats().range_requests == 0
    assert "another order than the archive" in caplog.text


def test_a_stale_table(web, make, held):
    """It is found out by the headers, and the shard is downloaded: no wrong byte, no error."""
    held.go.set()
    other = shards.pack([(f"a{row:04d}.{kind}", b"x" * 512) for row in range(ROWS) for kind in ("bin", "txt")])
    data = web.files["/a.tar"]
    other += bytes(max(len(data) - len(other), 0))
    publish(web, "/a.tar", other[: len(data)])
    dataset = make("a")
    assert [dataset[row][".txt"] for row in range(ROWS)] == [text_of(row) for row in range(ROWS)]
    assert dataset.stats().fetches == 1


def test_the_shard_changes_while_it_is_read(web, make, held):
    """Samples read before and after are each of one version; the download decides which one it is."""
    dataset = make("a")
    assert dataset[0][".txt"] == text_of(0)
    members = [(f"a{row:04d}.{kind}", b"new") for row in range(ROWS) for kind in ("txt", "bin")]
    data = shards.pack(members)
    data += bytes(len(web.files["/a.tar"]) - len(data))
    held.go.set()
    web.add("/a.tar", data)
    assert dataset[1][".txt"] in (text_of(1), b"new")
    wait_for_cached(dataset)
    found = [dataset[row][".txt"] for row in range(ROWS)]
    assert found in ([text_of(row) for row in range(ROWS)], [b"new"] * ROWS)


def test_a_server_without_ranges(web, make, held):
    """Nothing is read early from one."""
    held.go.set()
    web.has_ranges = False
    for tag in TAGS:
        web.faults[f"/{tag}.tar"] = [whole]
    dataset = make()
    assert dataset[0][".txt"] == text_of(0)
    assert dataset.stats().fetches == 1


def test_a_server_that_fails_for_samples(web, make, held, monkeypatch):
    """The download has more patience, and brings the sample."""
    held.go.set()

    def fail_parts(reply, body):
        (whole_again if reply.span and reply.span[1] - reply.span[0] > len(body) // 2 else status(404))(reply, body)

    def whole_again(reply, body):
        reply.end(reply.begin(body))

    web.faults["/a.tar"] = [fail_parts]
    dataset = make("a")
    assert dataset[0][".txt"] == text_of(0)
    assert dataset.stats().fetches == 1


@pytest.mark.parametrize("limit", [1, 2])
def test_a_limit_that_holds_fewer_shards_than_are_read(web, make, held, limit):
    """Those that fit are downloaded once; samples of the others come by ranges, and the limit holds."""
    held.go.set()
    size = len(web.files["/a.tar"])
    dataset = make(cache_size=int(limit * 1.2 * size + 4096))
    order = [tag * ROWS + row for row in range(ROWS) for tag in range(len(TAGS))]
    sampler = ListSampler(dataset, order)
    assert [dataset[index][".txt"] for index in sampler] == [text_of(index) for index in order]
    stats = dataset.stats()
    assert stats.fetches <= len(TAGS)
    assert stats.range_requests > 0
    assert sum(name.endswith(".tar") for name in os.listdir(dataset.cache_dir)) <= limit


@pytest.fixture
def bare(web, held):
    """The server without tables beside its shards; downloads do not wait."""
    held.go.set()
    for tag in TAGS:
        del web.files[f"/{tag}.tar.widx"]
    return web


def requested(web, start, tag):
    """The bytes of the ranges of a shard that were asked for since ``start`` requests."""
    return [hi - lo for path, lo, hi in web.ranges[start:] if path == f"/{tag}.tar"]


def evict(dataset):
    """Evict all shards, as another job would; readers in this process let go first."""
    dataset.close()
    space = Space(dataset.cache_dir, limit=None)
    with space.lock():
        for entry in space.directory.inventory().entries:
            assert space.delete(entry, max_remembered=1 << 20) is not None


def test_an_evicted_shard_is_read_by_ranges(bare, make, held):
    """No table is published: the first visit downloads the shard; the next one, and a restart, read samples only."""
    first = make()
    assert [first[index][".txt"] for index in (0, ROWS)] == [text_of(0), text_of(ROWS)]
    evict(first)
    held.go.clear()  # what is read from here on comes without a whole shard
    for dataset in (make(), pickle.loads(pickle.dumps(first))):
        start = len(bare.ranges)
        assert dataset[3][".txt"] == text_of(3)
        assert dataset.stats().fetches == 0
        assert min(requested(bare, start, "a")) < SIZE * 3
    assert not [path for path in bare.requests if path.endswith(".widx")][len(TAGS) :]


@pytest.mark.parametrize("access", ["fetch", "auto", "range"])
@pytest.mark.parametrize("size", [SIZE, SIZE + 600])
def test_a_remembered_table_of_another_version(bare, make, held, size, access):
    """The shard was replaced at its server: headers say so, and the new one is read; no byte is wrong, nor an error."""
    first = make(facts={"filesize": None})
    assert first[0][".txt"] == text_of(0)
    evict(first)
    members = [
        (f"a{row:04d}.{end}", data) for row in range(ROWS) for end, data in (("txt", b"new"), ("bin", bytes(size)))
    ]
    bare.add("/a.tar", shards.pack(members), held)
    dataset = make(facts={"filesize": None}, access=access)
    assert {(sample[".txt"], len(sample[".bin"])) for sample in map(dataset.__getitem__, range(ROWS))} == {
        (b"new", size)
    }


def test_a_remembered_table_that_is_too_long(bare, make):
    """A file that is none is not read into memory, where the index does not say how long its shard is."""
    first = make(facts={"filesize": None})
    assert first[0][".txt"] == text_of(0)
    evict(first)
    (table,) = Path(first.cache_dir, ".wids", "remembered").iterdir()
    os.truncate(table, 1 << 40)
    assert make(facts={"filesize": None})[0][".txt"] == text_of(0)


def test_a_shard_of_the_same_layout_is_another_version(bare, make, held):
    """Replaced by one with other bytes at the same places: its server's version says so, as no header can."""
    md5 = shards.md5(bare.files["/a.tar"])
    first = make("a", {"md5sum": md5})
    assert first[0][".txt"] == text_of(0)
    evict(first)
    members = [
        (f"a{row:04d}.{end}", data)
        for row in range(ROWS)
        for end, data in (("txt", b"z" * len(text_of(row))), ("bin", bytes(SIZE)))
    ]
    bare.add("/a.tar", shards.pack(members), held)
    assert make("a")[1][".txt"] == b"zz"  # what the index says of its bytes is right
    evict(first)
    with pytest.raises(DigestMismatchError):
        make("a", {"md5sum": md5})[1]


@pytest.mark.parametrize("fact", ["md5sum", "filesize", "nsamples"])
def test_a_remembered_table_that_the_index_contradicts(bare, make, fact, caplog):
    """An index of another version: the table that the cache remembers is not used for it, and stays for others."""
    first = make()
    assert first[0][".txt"] == text_of(0)
    evict(first)
    wrong = {"md5sum": "0" * 32, "filesize": 512, "nsamples": ROWS + 1}[fact]
    with pytest.raises((DigestMismatchError, SizeMismatchError, CountMismatchError)):
        make(tags="a", facts={fact: wrong})[0]
    assert make(tags="a")[0][".txt"] == text_of(0)


@pytest.mark.parametrize(("seconds", "stays"), [(5, True), (600, False)])
def test_a_reader_leaves_what_a_job_needs_soon(web, make, held, set_limits, seconds, stays):
    """It reads samples by ranges rather than have a job's shard downloaded again; one of much later goes."""
    set_limits(limits, full_seconds=0.0)
    held.go.set()
    limit = int(1.2 * len(web.files["/a.tar"])) + 4096
    dataset = make(cache_size=limit)
    assert dataset[0][".txt"] == text_of(0)
    wait_for_cached(dataset)
    (name,) = [name for name in os.listdir(dataset.cache_dir) if name.endswith(".tar")]
    dataset.close()  # its lease on the shard ends
    with contextlib.closing(PlanFile(str(dataset.cache_dir))) as plan:
        plan.write({name: time.time() + seconds})
        other = make(cache_size=limit)
        assert other[ROWS][".txt"] == text_of(ROWS)
        wait_until(lambda: not threads_named("wids-download"))
        found = [each for each in os.listdir(dataset.cache_dir) if each.endswith(".tar")]
        assert (found == [name]) is stays
        assert other[ROWS + 1][".txt"] == text_of(ROWS + 1)
    assert other.stats().range_requests >= (2 if stays else 1)


@pytest.mark.parametrize(("has_tables", "limit"), [(True, 2.5), (False, 2.5), (True, None)])
def test_a_prefetcher_knows_whether_samples_are_read_early(web, make, held, has_tables, limit):
    """It then leaves shards that would come too late to ranges, where the cache is limited."""
    held.go.set()
    if not has_tables:
        del web.files["/a.tar.widx"]
    dataset = make(cache_size=None if limit is None else int(limit * len(web.files["/a.tar"])))
    sampler = wids.DistributedChunkedSampler(dataset, num_replicas=1, rank=0, shuffle=False)
    iteration = iter(sampler)
    next(iteration)
    prefetcher = sampler._prefetcher()
    for _ in iteration:
        pass
    prefetcher.join(PATIENCE_SECONDS)
    provider = dataset._collection.provider
    reads_early = provider.reads_early(provider.cache.locate(dataset._collection.shards[0]))
    assert reads_early == (has_tables and limit is not None)


class ListSampler:
    """Indices in a given order, their shards downloaded ahead."""

    def __init__(self, dataset, order):
        self.dataset, self.order = dataset, order

    def __iter__(self):
        return iter(self.dataset.prefetch(self.order))


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers(web, make, held, method):
    """Workers read by ranges what the process with the sampler downloads, whatever they are started by."""
    dataset = make()
    sampler = wids.DistributedChunkedSampler(dataset, chunksize=ROWS, shuffle=True, seed=1, num_replicas=1, rank=0)
    loader = DataLoader(
        dataset,
        batch_size=8,
        sampler=sampler,
        num_workers=2,
        collate_fn=list,
        multiprocessing_context=multiprocessing.get_context(method),
    )
    seen = []
    for batch in loader:
        seen += [(sample["__index__"], sample[".txt"]) for sample in batch]
    assert sorted(seen) == [(index, text_of(index)) for index in range(len(dataset))]
    assert dataset.stats().range_requests > 0


def test_copies(web, make):
    """A pickled dataset reads early too."""
    dataset = pickle.loads(pickle.dumps(make()))
    assert dataset[0][".txt"] == text_of(0)
    assert dataset.stats().range_requests == 1


def test_a_hook_sees_the_download(web, make, held):
    """It is one ahead of its use."""
    events = []
    dataset = make("a", hooks=[events.append])
    dataset[0]
    held.go.set()
    wait_until(lambda: any(isinstance(event, Fetched) for event in events))
    assert [event.is_ahead for event in events if isinstance(event, Fetched)] == [True]


@pytest.mark.parametrize("headers", WEAK.values(), ids=WEAK)
def test_a_server_that_tells_no_versions(web, make, held, headers):
    """Two ranges of a sample might be of two versions: nothing is read early from one."""
    held.go.set()
    web.faults["/a.tar"] = [said(whole, **headers)]
    dataset = make("a")
    assert [dataset[row][".txt"] for row in range(ROWS)] == [text_of(row) for row in range(ROWS)]
    assert (dataset.stats().fetches, dataset.stats().range_bytes) == (1, 0)


def test_workers_that_live_shortly(web, make, held):
    """Without a sampler that downloads ahead, a worker waits for shards: it might end before they are here."""
    held.go.set()
    dataset = make("ab")
    for _ in range(2):
        loader = DataLoader(dataset, batch_size=2, sampler=[0, 1, ROWS], num_workers=1, collate_fn=list)
        assert [sample[".txt"] for batch in loader for sample in batch] == [text_of(0), text_of(1), text_of(ROWS)]
    assert (dataset.stats().fetches, dataset.stats().range_requests) == (2, 0)


def test_a_dataset_that_goes_ends_its_downloads(web, make, tmp_path):
    """In a moment, and nothing is left of them."""
    url, size = f"{web.url}/a.tar", len(web.files["/a.tar"])
    dataset = wids.ShardListDataset(
        [{"url": url, "nsamples": ROWS, "filesize": size}], cache_dir=tmp_path / "c", transformations="raw"
    )
    assert dataset[0][".txt"] == text_of(0)
    wait_until(lambda: downloads(web, "a") == 1)
    del dataset
    gc.collect()
    wait_until(lambda: not threads_named("wids-download"))
    assert not any(name.endswith(".part") for name in os.listdir(tmp_path / "c" / ".wids"))


def test_threads(web, make, held):
    """Many threads read the same shards early, and from the cache in mid-course."""
    dataset = make()
    errors = []

    def read(start):
        try:
            for step in range(ROWS):
                index = (start + step * 13) % len(dataset)
                assert dataset[index][".txt"] == text_of(index)
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=read, args=(7 * k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    held.go.set()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert not errors


def test_no_more_downloads_at_a_time_than_pay(web, make):
    """Random access over many shards starts a few downloads, not one for each."""
    dataset = make()
    dataset.__getitems__([0, ROWS, 2 * ROWS, 3 * ROWS])
    wait_until(lambda: sum(downloads(web, tag) for tag in TAGS) == concurrency.LIMITS.min_under_way)
    dataset.__getitems__([1, ROWS + 1, 2 * ROWS + 1, 3 * ROWS + 1])
    assert sum(downloads(web, tag) for tag in TAGS) == concurrency.LIMITS.min_under_way


@pytest.mark.parametrize(("places", "window"), [(3, 2), (1, 0)])
def test_a_limit_below_the_window_is_told_once(web, make, held, caplog, places, window):
    """With the limit, and the window, that would do."""
    held.go.set()
    size = len(web.files["/a.tar"])
    dataset = make(cache_size=places * size)
    for epoch in range(2):
        sampler = wids.DistributedChunkedSampler(dataset, num_replicas=1, rank=0, window=4)
        sampler.set_epoch(epoch)
        assert sorted(dataset[index]["__index__"] for index in sampler) == list(range(len(dataset)))
    told = [record.getMessage() for record in caplog.records if "at a time" in record.getMessage()]
    assert len(told) == 1
    assert f"cache_size={5 * size:_} would do" in told[0]
    assert (f"window={window}" in told[0]) == (window > 0)


def test_a_limit_below_the_blocks_of_batches_names_a_block(web, make, held, caplog):
    """A window of one shard, and two shards in a block, of which the next two are to come."""
    held.go.set()
    size = len(web.files["/a.tar"])
    for block, expected in ((2 * ROWS, f"cache_size={5 * size:_} would do, or block={ROWS}."), (ROWS, None)):
        caplog.clear()
        sampler = wids.DistributedChunkedSampler(make(cache_size=4 * size), num_replicas=1, rank=0, window=1)
        batches = wids.BucketBatchSampler(sampler, batch_size=3, block=block)
        next(iter(batches))
        told = [record.getMessage() for record in caplog.records if "at a time" in record.getMessage()]
        assert len(told) == (expected is not None)
        assert not told or ("read 3 at a time" in told[0] and expected in told[0])


def test_a_limit_that_holds_the_window_is_not(web, make, held, caplog):
    """As the next smaller one is."""
    held.go.set()
    size = len(web.files["/a.tar"])
    for count, expected in ((3, 0), (2, 1)):
        dataset = make(cache_size=count * size)
        next(iter(wids.DistributedChunkedSampler(dataset, num_replicas=1, rank=0, window=2)))
        assert sum("at a time" in record.getMessage() for record in caplog.records) == expected


class Changing(MemoryFileSystem):
    """A store that tells versions apart, as S3 does, and has another one after the first range was read."""

    protocol = "wids-changing"
    cachable = False

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.partition("://")[2] or path)

    def info(self, path, **options):
        """With a version."""
        return {**super().info(path, **options), "ETag": hash(self.cat(path))}

    def cat_file(self, path, start=None, end=None, **options):
        """Likewise, and the object changes."""
        data = super().cat_file(path, start=start, end=end, **options)
        if end is not None:
            self.pipe_file(path, b"2" * 2_000_000)
        return data


def test_versions_are_not_mixed_in_a_first_read():
    """Where answers do not say of which version they are, the store is asked before the first read as well as after."""
    fsspec.register_implementation(Changing.protocol, Changing, clobber=True)
    Changing().pipe_file("/changing/a.tar", b"1" * 2_000_000)
    found = ShardBytes(f"{Changing.protocol}://changing/a.tar", size=2_000_000)
    with pytest.raises(ChangedShardError):
        found.read_many([(0, 100), (1_900_000, 1_900_100)])


def test_a_table_that_does_not_come(web, make, held, set_limits):
    """The shard is downloaded instead, soon, and the table is not waited for again."""
    held.go.set()
    set_limits(range_provider.RangeProvider, table_seconds=0.3)
    web.faults["/a.tar.widx"] = [stall]
    dataset = make("a")
    start = time.monotonic()
    assert dataset[0][".txt"] == text_of(0)
    assert time.monotonic() - start < PATIENCE_SECONDS / 2
    assert (dataset.stats().fetches, dataset.stats().range_requests) == (1, 0)
    dataset.close()
    os.unlink(
        next(os.path.join(dataset.cache_dir, name) for name in os.listdir(dataset.cache_dir) if name.endswith(".tar"))
    )
    assert dataset[0][".txt"] == text_of(0)
    assert sum(path.endswith(".widx") for path in web.requests) == 1


def test_a_directory_that_cannot_be_used(web, make, held, tmp_path):
    """The reader meets the error of the download, which says what to do."""
    held.go.set()
    (tmp_path / "file").write_text("")
    dataset = make("a", cache_dir=tmp_path / "file" / "cache")
    for _ in range(2):
        with pytest.raises(CacheError):
            [dataset[0] for _ in range(1_000_000)]


def test_a_batch_over_very_many_shards(web, make, held, monkeypatch, set_limits):
    """It takes a limited number of threads."""
    held.go.set()
    set_limits(concurrency, max_requests=2)
    begun, begin = [], batches._Apart.begin
    monkeypatch.setattr(batches._Apart, "begin", lambda self, groups: begun.append(len(groups)) or begin(self, groups))
    dataset = make()
    wanted = [3 * ROWS, 0, 1, ROWS, 2 * ROWS]
    assert [sample[".txt"] for sample in dataset.__getitems__(wanted)] == [text_of(index) for index in wanted]
    assert begun == [2, 1]


def test_after_an_outage_samples_are_read_early_again(web, make, held, set_limits):
    """Where the limit has no space for the shard, it would be downloaded again and again from then on."""
    held.go.set()
    set_limits(range_provider.RangeProvider, answer_seconds=0.1, again_seconds=0.0)
    dataset = make("a")
    web.faults["/a.tar"] = [status(503), status(503), whole]
    assert dataset[0][".txt"] == text_of(0)
    wait_for_cached(dataset)
    dataset.close()
    web.faults["/a.tar"] = [held]
    held.go.clear()
    os.unlink(
        next(os.path.join(dataset.cache_dir, name) for name in os.listdir(dataset.cache_dir) if name.endswith(".tar"))
    )
    before = dataset.stats().range_requests
    assert dataset[1][".txt"] == text_of(1)
    assert dataset.stats().range_requests > before


def test_a_signed_url_says_nothing_of_others(web, make, held):
    """It has no table beside it; the shards in the same directory may."""
    dataset = make("ab")
    signed = dataset.shards[0]["url"] + "?signature=1"
    found = wids.ShardListDataset(
        [{"url": signed, "nsamples": ROWS}, {"url": f"{web.url}/b.tar", "nsamples": ROWS}],
        cache_dir=dataset.cache_dir,
        transformations="raw",
    )
    threading.Timer(0.2, held.go.set).start()
    assert found[0][".txt"] == text_of(0)
    held.go.clear()
    assert found[ROWS][".txt"] == text_of(ROWS)
    assert found.stats().range_requests > 0
    end_downloads(found)


class Slow(AsyncFileSystem):
    """An asynchronous store whose long ranges do not come."""

    protocol = "wids-slow"
    cachable = False
    asked = 0

    async def _info(self, path, **options):
        return {"name": path, "size": 64 << 20, "type": "file", "ETag": "1"}

    async def _cat_file(self, path, start=None, end=None, **options):
        if end - start > 1 << 10:
            Slow.asked += 1
            await asyncio.sleep(PATIENCE_SECONDS)
        return bytes(end - start)


def test_samples_of_any_store_do_not_wait_for_downloads(tmp_path):
    """Downloads take all their connections; requests for samples have their own."""
    fsspec.register_implementation(Slow.protocol, Slow, clobber=True)
    url, is_over = f"{Slow.protocol}://a.tar", threading.Event()
    (tmp_path / "part").touch()

    def fetch():
        with contextlib.suppress(CancelledTransferError):
            download.download_to(url, str(tmp_path / "part"), check=lambda: None, is_cancelled=is_over.is_set)

    thread = threading.Thread(target=fetch)
    thread.start()
    try:
        wait_until(lambda: Slow.asked >= concurrency.LIMITS.connections)
        ends = time.monotonic() + PATIENCE_SECONDS / 4
        found = ShardBytes(url, size=64 << 20, is_cancelled=lambda: time.monotonic() > ends)
        assert found.read_many([(0, 100)]) == [bytes(100)]
    finally:
        is_over.set()
        thread.join()


def packed(web, tags=TAGS):
    """The options of a dataset whose tables are in a pack, and none beside the shards."""
    url = publish_pack(web, "/train.tables", {f"/{tag}.tar": None for tag in tags})
    for tag in TAGS:
        del web.files[f"/{tag}.tar.widx"]
    return {"options": {"member_tables": url}}


def test_tables_in_a_pack(web, make):
    """A batch over all shards: one request for the directory, one for each table, none beside the shards."""
    dataset = make(**packed(web))
    wanted = [k * ROWS + 1 for k in range(len(TAGS))]
    assert [sample[".txt"] for sample in dataset.__getitems__(wanted)] == [text_of(index) for index in wanted]
    assert sum(path == "/train.tables" for path in web.requests) == 1 + len(TAGS)
    assert not any(path.endswith(".widx") for path in web.requests)
    stats = dataset.stats()
    assert (stats.fetches, stats.table_requests) == (0, 1 + len(TAGS))


def test_a_pack_that_lacks_shards(web, make, held):
    """These are downloaded; that each has no table is found out once, and says nothing of the others."""
    dataset = make(**packed(web, tags="bd"))
    assert dataset[ROWS][".txt"] == text_of(ROWS)
    held.go.set()
    for index in (0, 2 * ROWS):
        assert dataset[index][".txt"] == text_of(index)
    held.go.clear()
    assert dataset[3 * ROWS][".txt"] == text_of(3 * ROWS)
    assert sum(path.endswith(".widx") for path in web.requests) == 2


def test_the_time_of_a_directory_is_not_that_of_a_table(web, make, monkeypatch, set_limits):
    """A directory that takes long, once, does not use up the time of the table that it was asked for."""
    set_limits(range_provider.RangeProvider, table_seconds=2.0)
    options, clock = packed(web), time.perf_counter
    late = []

    def slow(reply, body):
        late.append(10.0)
        reply.end(reply.begin(body))

    web.faults["/train.tables"] = [slow, whole_range]
    monkeypatch.setattr(range_provider.time, "perf_counter", lambda: clock() + sum(late))
    dataset = make("a", **options)
    assert dataset[0][".txt"] == text_of(0)
    assert dataset.stats().fetches == 0


def whole_range(reply, body):
    """The answer as it should be."""
    reply.end(reply.begin(body))


def test_shards_of_unknown_size_come_into_a_small_cache(make, held, web):
    """An index of pairs (url, samples) says no sizes: a guess that is larger than the cache would keep all out."""
    held.go.set()
    web.latency_seconds, fetched = 0.02, []
    hooks = [lambda event: fetched.append(event.url) if isinstance(event, Fetched) and event.is_ahead else None]
    dataset = make(facts={"filesize": None}, cache_size=3 * len(web.files["/a.tar"]), hooks=hooks)
    for index in wids.ChunkedSampler(dataset):
        assert dataset[index][".txt"] == text_of(index)
    assert len(fetched) >= 2

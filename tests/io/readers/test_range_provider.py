"""Samples read where they are: `access="range"` and `"auto"`, beside what whole shards give."""

import gc
import io
import os
import pickle
import tarfile

import pytest
from torch.utils.data import DataLoader

import wids
from tests.support import cache_shards as shards
from tests.support import tars
from tests.support.servers import status
from tests.support.tars import publish
from wids.core.transport import filesystems
from wids.errors import ChangedShardError, CountMismatchError, FetchError, ShardNotFoundError, UnsupportedMemberError
from wids.samplers import ChunkedSampler

pytestmark = pytest.mark.usefixtures("own_cache")

ROWS, SIZE = 20, 3000


def pack(tag, rows=ROWS, size=SIZE):
    """A shard of samples with a text, a large member and an empty one."""
    members = []
    for row in range(rows):
        key = f"{tag}{row:03d}"
        members += [(f"{key}.txt", shards.text(tag, row)), (f"{key}.bin", os.urandom(size)), (f"{key}.e", b"")]
    return shards.pack(members)


@pytest.fixture
def web(server):
    """A server that gives ranges, with two shards."""
    server.has_ranges = True
    for tag in "ab":
        server.add(f"/{tag}.tar", pack(tag))
    return server


@pytest.fixture
def far(monkeypatch):
    """Another request costs as much as 600 bytes."""
    monkeypatch.setattr(filesystems.Connections, "gap_bytes", lambda self, host: 600)


@pytest.fixture
def make(web, tmp_path):
    """A function: the dataset of both shards."""

    def dataset(access="range", **options):
        listed = [
            {"url": f"{web.url}/{tag}.tar", "nsamples": ROWS, "filesize": len(web.files[f"/{tag}.tar"])} for tag in "ab"
        ]
        options = {"cache_dir": tmp_path / "cache", "transformations": "raw", **options}
        return wids.ShardListDataset(listed, access=access, **options)

    return dataset


def cached(directory):
    """Names of the shards in a cache directory."""
    return [name for name in os.listdir(directory) if name != ".wids"] if os.path.isdir(directory) else []


def test_samples_are_those_of_whole_shards(make, far, tmp_path):
    """One by one, in batches, out of order, with fields: all as if fetched; and nothing is downloaded."""
    whole, ranged = make("fetch", cache_dir=tmp_path / "other"), make()
    for index in (0, 39, 20, 19, -1):
        assert ranged[index] == whole[index]
    order = [3, 25, 4, 4, 39, -40, 20]
    assert ranged.__getitems__(order) == whole.__getitems__(order)
    assert list(ranged) == list(whole)
    few = make(fields=".txt")
    assert few[7] == {name: value for name, value in whole[7].items() if name not in (".bin", ".e")}
    assert ranged.keys[21] == whole.keys[21]
    assert cached(tmp_path / "cache") == []
    stats = ranged.stats()
    assert (stats.fetches, stats.hits) == (0, 0)
    assert 0 < stats.range_requests < 500


def test_one_sample_is_a_few_requests(web, make, far):
    """With a published table: a look, the table, the sample; bytes of a few samples, not of the shard."""
    publish(web, "/a.tar")
    before = len(web.requests)
    dataset = make()
    assert dataset[5][".txt"] == shards.text("a", 5)
    assert len(web.requests) - before == 3
    size = SIZE + 4 * 1024
    assert dataset.stats().range_bytes < size
    assert dataset.stats().range_requests == 1
    dataset.__getitems__([6, 7, 8])
    assert dataset.stats().range_requests == 2


def test_fields_touch_no_other_bytes(web, make, far):
    """A text beside a large member costs as much as a text."""
    publish(web, "/a.tar")
    dataset = make(fields=".txt")
    dataset.__getitems__(range(ROWS))
    assert dataset.stats().range_bytes < ROWS * 1024


def test_a_stale_table_gives_no_wrong_byte(web, make, far):
    """One of another version with the same size is found out by the headers."""
    publish(web, "/a.tar", pack("x"))
    with pytest.raises(ChangedShardError, match="not where its member table says"):
        make()[0]
    other = shards.pack([("a000.txt", b"1" * 2000), ("a001.txt", b"2")])
    shard = shards.pack([("a000.txt", b"1"), ("a001.txt", b"2" * 2000)])
    assert len(other) == len(shard)
    web.add("/c.tar", shard)
    publish(web, "/c.tar", other)
    dataset = wids.ShardListDataset([(web.url + "/c.tar", 2)], access="range", transformations="raw")
    with pytest.raises(ChangedShardError):
        dataset[1]


def test_a_table_that_is_damaged_or_of_another_size_is_not_used(web, make, far, caplog):
    """The headers are read instead, with a warning."""
    web.add("/a.tar.widx", b"garbage")
    publish(web, "/b.tar", pack("b", rows=3))
    dataset = make()
    assert dataset[0][".txt"] == shards.text("a", 0)
    assert dataset[ROWS][".txt"] == shards.text("b", 0)
    assert caplog.text.count("widx") + caplog.text.count("another version") >= 2


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax", "gnu"])
def test_names_that_do_not_fit_a_header(web, far, tmp_path, form):
    """Long ones, and beyond ASCII: looked at once in the headers, and read."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name in ("a.txt", "é.txt", "d" * 150 + ".txt", "e" * 99 + "/f.txt"):
            info = tarfile.TarInfo(name)
            info.size = len(name)
            archive.addfile(info, io.BytesIO(name.encode()))
    path = shards.write(tmp_path / "long.tar", out.getvalue())
    url = web.add("/long.tar", out.getvalue())
    publish(web, "/long.tar")
    ranged = wids.ShardListDataset([(url, 4)], access="range", transformations="raw")
    local = wids.ShardListDataset([(path, 4)], transformations="raw")
    for one, other in zip(ranged, local, strict=True):
        assert {**one, "__shard__": ""} == {**other, "__shard__": ""}


def test_a_shard_that_changes_is_an_error(web, make, far):
    """While it is read: the next read says so."""
    dataset = make()
    assert dataset[0][".txt"] == shards.text("a", 0)
    web.add("/a.tar", pack("a"))
    with pytest.raises(ChangedShardError):
        dataset[1]


def test_what_is_cached_is_read_from_there(web, make, far):
    """Ranges are for what is not there."""
    make("fetch")[0]
    before = len(web.requests)
    dataset = make()
    assert dataset[1][".txt"] == shards.text("a", 1)
    assert (len(web.requests), dataset.stats().hits) == (before, 1)


def test_no_ranges(web, make):
    """An error by "range", a fetch by "auto"."""
    web.has_ranges = False
    with pytest.raises(FetchError, match="access='fetch'"):
        make()[0]
    dataset = make("auto")
    assert dataset[0][".txt"] == shards.text("a", 0)
    assert dataset.stats().fetches == 1


def test_auto_fetches_what_is_read_often(web, make, monkeypatch):
    """A few samples by ranges; once as much was asked for as the shard is long, it is fetched, once."""
    monkeypatch.setattr(filesystems.Connections, "request_bytes", lambda self, host: 5000)
    publish(web, "/a.tar")
    publish(web, "/b.tar")
    dataset = make("auto")
    assert dataset[3][".txt"] == shards.text("a", 3)
    assert (dataset.stats().fetches, dataset.stats().range_requests) == (0, 1)
    for row in range(ROWS):
        assert dataset[row][".txt"] == shards.text("a", row)
    stats = dataset.stats()
    assert stats.fetches == 1
    assert 1 < stats.range_requests < ROWS
    assert dataset[ROWS][".txt"] == shards.text("b", 0)
    assert dataset.stats().fetches == 1


def test_auto_scans_no_headers_that_cost_as_much_as_the_shard(web, make, monkeypatch):
    """Without a table beside the shard: it is fetched, unless its samples are large."""
    monkeypatch.setattr(filesystems.Connections, "request_bytes", lambda self, host: 5000)
    dataset = make("auto")
    assert dataset[3][".txt"] == shards.text("a", 3)
    assert (dataset.stats().fetches, dataset.stats().range_requests) == (1, 0)
    monkeypatch.setattr(filesystems.Connections, "request_bytes", lambda self, host: 600)
    assert dataset[ROWS][".txt"] == shards.text("b", 0)
    assert (dataset.stats().fetches, dataset.stats().range_requests) == (1, 1)


def test_auto_keeps_no_shard_open_that_was_closed(web, make, monkeypatch, tmp_path):
    """A shard that has no table beside it, and so was fetched, is closed with the pool: it may be evicted at once."""
    monkeypatch.setattr(filesystems.Connections, "request_bytes", lambda self, host: 5000)
    dataset = make("auto")
    gc.disable()  # what is closed only by the collector is a lease that others wait for
    try:
        assert dataset[3][".txt"] == shards.text("a", 3)
        assert dataset[ROWS][".txt"] == shards.text("b", 0)
        assert dataset.stats().fetches == 2
        assert len(shards.files_open_in(tmp_path)) == 2
        dataset.close()
        assert shards.files_open_in(tmp_path) == []
    finally:
        gc.enable()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("access", ["range", "auto"])
def test_loaders_and_samplers(make, access, method):
    """Each sample once through two workers, whatever is fetched on the way."""
    dataset = make(access)
    assert dataset[0][".txt"] == shards.text("a", 0)
    sampler = ChunkedSampler(dataset, chunksize=7, shuffle=True)
    loader = DataLoader(
        dataset, sampler=sampler, batch_size=5, num_workers=2, collate_fn=list, multiprocessing_context=method
    )
    found = sorted(sample["__index__"] for batch in loader for sample in batch)
    assert found == list(range(2 * ROWS))
    if access == "range":
        assert dataset.stats().fetches == 0


def test_local_shards_and_other_indexes(tmp_path, web, far):
    """Local shards are read in place; a wrong count, a missing shard, an unknown access are typed errors."""
    path = shards.write(tmp_path / "a.tar", pack("a"))
    dataset = wids.ShardListDataset([(path, ROWS)], access="range", transformations=[])
    assert isinstance(dataset[0][".txt"], io.BytesIO)
    with pytest.raises(CountMismatchError):
        wids.ShardListDataset([(web.url + "/a.tar", 3)], access="range")[0]
    with pytest.raises(ShardNotFoundError):
        wids.ShardListDataset([(web.url + "/none.tar", 3)], access="range")[0]
    with pytest.raises(ValueError, match="'auto'"):
        wids.ShardListDataset([(path, ROWS)], access="stream")


def test_copies(make, far):
    """Deep and pickled copies read on their own."""
    dataset = make()
    first = dataset[0]
    assert pickle.loads(pickle.dumps(dataset))[0] == first


@pytest.mark.usefixtures("no_waits")
def test_faults(web, make, far, events):
    """A 503 is tried again, and told."""
    dataset = make(hooks=[events])
    assert dataset[0][".txt"] == shards.text("a", 0)
    web.faults["/a.tar"] = [status(503)]
    with pytest.raises(FetchError, match="503"):
        dataset[1]
    assert "RangesRead" in events.names()
    assert "Retried" in events.names()


def test_a_hard_link_where_versions_are_not_told_apart(server):
    """The header before its bytes has another name, and nothing says whose they are: refused, its fields alone; with
    strong versions it is read.
    """
    server.has_ranges = True
    linked = tars.header(b"b.txt", kind=b"1", link=b"a.txt")
    data = tars.member(b"a.txt", b"1") + tars.member(b"b.cls", b"2") + linked + tars.END
    url = server.add("/a.tar", data)
    options = {"access": "range", "transformations": "raw"}
    assert wids.ShardListDataset([(url, 2)], **options)[1][".txt"] == b"1"
    server.validators = ()
    dataset = wids.ShardListDataset([(url, 2)], **options)
    assert dataset[0][".txt"] == b"1"
    with pytest.raises(UnsupportedMemberError, match=r"b\.txt is a hard link, .* access='fetch'"):
        _ = dataset[1]
    assert wids.ShardListDataset([(url, 2)], **options, fields=(".cls",))[1][".cls"] == b"2"

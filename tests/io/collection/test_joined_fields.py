"""Companions behind a server: what is requested, downloads ahead, early reads, byte ranges, substitutes, windows."""

from __future__ import annotations

import os

import pytest
from torch.utils.data import DataLoader

import wids
from tests.support.clocks import wait_until
from tests.support.servers import Server, shard_requests
from tests.support.shards import write_tar
from wids import jobs
from wids.errors import ShardNotFoundError
from wids.events import Fetched

KEYS = [f"k{n:02d}" for n in range(24)]


def make_set(directory, stem, extensions, counts, *, size=400):
    """Shards of all keys, and their index with member tables beside them."""
    first = 0
    for k, count in enumerate(counts):
        members = [
            (key + name, f"{stem}{name} {key}".encode().ljust(size))
            for key in KEYS[first : first + count]
            for name in extensions
        ]
        write_tar(directory / f"{stem}-{k}.tar", members)
        first += count
    shards = [directory / f"{stem}-{k}.tar" for k in range(len(counts))]
    jobs.create_index(shards, directory / f"{stem}.json", settings=jobs.IndexSettings(has_tables=True))


@pytest.fixture
def web(tmp_path):
    """A server of a base of 4 shards, a companion of 3, the join of both by row, and one by key; with its directory."""
    make_set(tmp_path, "base", (".jpg", ".txt"), (6, 6, 6, 6))
    make_set(tmp_path, "more", (".npy",), (8, 8, 8))
    base = wids.ShardListDataset(tmp_path / "base.json")
    base.with_fields(tmp_path / "more.json", prefix="m").save(tmp_path / "row.json")
    base.with_fields(tmp_path / "more.json", on="key").save(tmp_path / "key.json")
    with Server(has_ranges=True) as server:
        for path in tmp_path.iterdir():
            server.add(f"/{path.name}", path.read_bytes())
        server.directory = tmp_path
        yield server


def opened(web, name, **options):
    """The data set of an index on the server."""
    cache = web.directory / f"cache{len(list(web.directory.glob('cache*')))}"
    cache.mkdir()
    return wids.ShardListDataset(f"{web.url}/{name}", cache_dir=cache, **{"transformations": "raw", **options})


def asked(web, stem):
    """The shards of a set that were requested, each once."""
    return sorted({os.path.basename(target) for target in shard_requests(web) if f"/{stem}-" in target})


@pytest.mark.parametrize("how", ["fetch", "range", "auto"])
@pytest.mark.parametrize("name", ["row.json", "key.json"])
def test_what_is_not_asked_for_costs_no_request(web, name, how):
    """Not its index, not a table, not a shard."""
    dataset = opened(web, name, fields=(".txt",), access=how)
    loader = DataLoader(dataset, 4, sampler=wids.ChunkedSampler(dataset), collate_fn=list)
    assert sorted(sample[".txt"].strip() for batch in loader for sample in batch) == [
        f"base.txt {key}".encode() for key in KEYS
    ]
    dataset.get_stats()
    assert [target for target in web.requests if "/more" in target] == []


def test_a_notebook_shows_fields_that_are_here(web):
    """Those of a companion, too, if its shard is on the disk: nothing is fetched for it."""
    local = wids.ShardListDataset(web.directory / "row.json")
    assert [sample[".m.npy"].read().strip() for sample in local.select([7, 20]).preview(9)] == [
        b"more.npy k07",
        b"more.npy k20",
    ]
    for name, field in (("row.json", ".m.npy"), ("key.json", ".npy")):
        options = {"early_reads": False, "prefetch": False}
        far = opened(web, name, **options)
        narrow = wids.ShardListDataset(f"{web.url}/{name}", cache_dir=far.cache_dir, fields=(".txt",), **options)
        assert narrow[6][".txt"]
        before = len(web.requests)
        assert all(field not in sample for sample in far.preview(9))
        assert len(far.preview(9)) == 6
        assert len(web.requests) == before
        assert far[6][field]  # of a shard with 6 and 7, and not with 8
        before = len(web.requests)
        assert [field in sample for sample in far.preview(9)] == [True, True, False, False, False, False]
        assert len(web.requests) == before


@pytest.mark.parametrize("how", ["fetch", "range", "auto"])
@pytest.mark.parametrize("name", ["row.json", "key.json"])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch(web, name, how, workers):
    """All fields of all samples, each shard of both downloaded once."""
    dataset = opened(web, name, access=how)
    sampler = wids.DistributedChunkedSampler(dataset, num_replicas=1, rank=0, chunksize=6)
    loader = DataLoader(dataset, 4, sampler=sampler, collate_fn=list, num_workers=workers)
    field = ".m.npy" if name == "row.json" else ".npy"
    samples = [sample for batch in loader for sample in batch]
    assert sorted((sample[".txt"].strip(), sample[field].strip()) for sample in samples) == [
        (f"base.txt {key}".encode(), f"more.npy {key}".encode()) for key in KEYS
    ]
    assert all(len({sample[name].split()[-1] for name in (".jpg", ".txt", field)}) == 1 for sample in samples)
    assert asked(web, "more") == [f"more-{k}.tar" for k in range(3)]
    if how == "fetch":
        assert dataset.stats().fetches == 7


@pytest.mark.parametrize("of", ["samples", "view", "mixture", "windows"])
def test_both_shards_come_ahead(web, of, events):
    """Before a sample is read, the shards of base and companion that it and the next ones need are here."""
    dataset = opened(web, "row.json", hooks=[events], early_reads=False)
    if of == "view":
        dataset = dataset.select(range(6, 12))
    upcoming = {"mixture": wids.mix({"a": dataset}), "windows": dataset.windows(3)}.get(of, dataset)
    drawn = iter(wids.DistributedChunkedSampler(upcoming, num_replicas=1, rank=0, shuffle=False))
    first = next(drawn)
    more = ["more-0.tar", "more-1.tar"] if of == "view" else ["more-0.tar", "more-1.tar", "more-2.tar"]
    shards = len(more) + (1 if of == "view" else 4)
    wait_until(lambda: sum(isinstance(event, Fetched) for event in events) == shards)
    assert asked(web, "more") == more
    before = len(web.requests)
    values = upcoming[first][".m.npy"]
    assert values == (values if of == "windows" else f"more.npy {KEYS[6 if of == 'view' else 0]}".encode().ljust(400))
    assert len(web.requests) == before
    list(drawn)


def test_limits_count_both(web, caplog):
    """The warning about a small cache counts the shards of base and companion that are open at a time."""
    size = os.path.getsize(web.directory / "base-0.tar")
    alone = opened(web, "base.json", cache_size=int(2.5 * size))
    next(iter(wids.DistributedChunkedSampler(alone, num_replicas=1, rank=0, chunksize=6, shufflefirst=False)))
    said = caplog.text
    joined = opened(web, "row.json", cache_size=int(2.5 * size))
    next(iter(wids.DistributedChunkedSampler(joined, num_replicas=1, rank=0, chunksize=6, shufflefirst=False)))
    assert len(caplog.text) > len(said)


def test_a_damaged_member_substitutes_the_whole_sample(web):
    """A member of the companion that cannot be decoded: all fields are those of the sample in its place."""
    path = web.directory / "more-1.tar"
    dataset = wids.ShardListDataset(
        web.directory / "row.json", transformations="raw", on_error="substitute", max_errors=0.5
    ).add_transform(refuse)
    samples = dataset.__getitems__(range(24))
    for sample in (*samples, *map(dataset.__getitem__, (9, 10))):
        assert len({sample[name].split()[-1] for name in (".jpg", ".txt", ".m.npy")}) == 1
    assert [sample["__index__"] for sample in samples if sample["__substitute_for__"] >= 0] != []
    assert [sample["__substitute_for__"] for sample in samples if sample["__substitute_for__"] >= 0] == [10]
    os.unlink(path)
    with pytest.raises(ShardNotFoundError, match=r"more-1\.tar"):
        wids.ShardListDataset(web.directory / "row.json", on_error="substitute", transformations="raw")[10]


def refuse(sample):
    """Fail for one sample, by its field of the companion."""
    if sample[".m.npy"].split()[-1] == b"k10":
        raise ValueError("damaged")
    return sample


def test_statistics_count_both(web):
    """Of a data set that was opened by itself, too."""
    base, more = (opened(web, name, early_reads=False) for name in ("base.json", "more.json"))
    joined = base.with_fields(more)
    assert joined[3][".npy"].split()[-1] == b"k03"
    assert (more.stats().fetches, joined.stats().fetches, base.stats().fetches) == (1, 2, 1)


@pytest.mark.parametrize("has_table", [False, True])
def test_columns_of_members(tmp_path, has_table):
    """SQL sees the fields of companions, their sizes, and fields with alternatives in both."""
    base = {"a.jpg": b"1", "b.jpg": b"22", "c.txt": b"3"}
    for stem, each in (("base", base), ("more", {"a.npy": b"4", "b.empty": b"", "c.png": b"55"})):
        write_tar(tmp_path / f"{stem}.tar", each)
        jobs.create_index(tmp_path / f"{stem}.tar", tmp_path / f"{stem}.json")
    if has_table:
        jobs.create_columns(tmp_path / "base.json")
    base = wids.ShardListDataset(tmp_path / "base.json", fields={"image": "jpg;png", "more": "x.npy", "text": "txt"})
    joined = base.with_fields(tmp_path / "more.json", fields=[".png"])
    joined = joined.with_fields(tmp_path / "more.json", prefix="x", fields=[".npy"])
    assert joined.find_rows("has_x_npy").tolist() == [0]
    assert joined.find_rows("not has_x_npy").tolist() == [1, 2]
    assert joined.find_rows("has_image").tolist() == [0, 1, 2]
    assert base.find_rows("has_image").tolist() == [0, 1]
    assert joined.find_rows("has_image and has_more").tolist() == [0]
    assert joined.query("select x_npy_bytes from samples order by index").column(0).to_pylist() == [1, None, None]
    assert len(joined.where("has_x_npy")) == 1
    assert joined.select([1, 2]).find_rows("has_image and not has_more").tolist() == [0, 1]
    few = base.with_fields(tmp_path / "more.json", on="key", prefix="x").exclude([0])
    assert few.find_rows("has_x_png").tolist() == [1]

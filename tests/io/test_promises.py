"""Faults of the original that hurt its users, one by one, end to end through the public API."""

import errno
import fcntl
import gzip
import io
import json
import logging
import multiprocessing
import os
import pickle
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, random_split
from torch.utils.data.distributed import DistributedSampler

import wids
import wids.wids
from tests.support import servers, tars
from tests.support.clocks import PATIENCE_SECONDS
from tests.support.servers import shard_requests
from tests.support.shards import serve, write_index, write_shard, write_shards, write_tar
from wids.core.files import locks, system
from wids.core.tables import tar
from wids.errors import (
    CompressedShardError,
    CountMismatchError,
    DigestMismatchError,
    DuplicateMemberError,
    EmptyShardError,
    FetchError,
    SizeMismatchError,
    TruncatedShardError,
)
from wids.events import Evicted, Fetched, Opened, Rejected


@pytest.fixture(autouse=True)
def _own_places(tmp_path, monkeypatch):
    """The cache and the system's temporary directory are the test's own."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.delenv("WIDS_CACHE", raising=False)
    monkeypatch.delenv("WIDS_VERBOSE", raising=False)


def labels(samples):
    """The .cls of each sample: its number in the dataset."""
    return [sample[".cls"] for sample in samples]


@pytest.mark.parametrize("place", ["cache_dir", "default", "DefaultLocalname", "CacheLocalname", "hash_localname"])
def test_pain_01_two_shards_with_one_basename_do_not_overwrite_each_other(tmp_path, place):
    """In one cache, whoever chose its file names: each URL keeps its own samples."""
    for number, name in enumerate(("a", "b", "a/c")):
        write_shard(tmp_path / "www" / name / "train-0.tar", 2, first=10 * number)
    options = {}
    if place == "cache_dir":
        options = {"cache_dir": tmp_path / "cache"}
    elif place != "default":
        options = {"localname": getattr(wids.wids, place)(str(tmp_path / "cache"))}
    with serve(tmp_path / "www") as server:
        urls = [f"{server.url}/{name}/train-0.tar" for name in ("a", "b", "a/c")]
        dataset = wids.ShardListDataset([(url, 2) for url in [*urls, urls[0] + "?v=2"]], lru_size=1, **options)
        for _ in range(2):
            assert labels(dataset) == [0, 1, 10, 11, 20, 21, 0, 1]
        paths = {dataset.get_shard(2 * k)[0].path for k in range(4)}
    assert len(paths) == 4
    assert len(shard_requests(server)) == 4


def test_pain_02_local_tars_are_not_copied(tmp_path):
    """Not to the temporary directory, not to a cache_dir: they are read where they are, and left as they were."""
    index = write_index(tmp_path / "data", (3, 4))
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "data").iterdir()}
    for options in ({}, {"cache_dir": tmp_path / "cache"}, {"keep": True}):
        dataset = wids.ShardListDataset(index, **options)
        assert labels(dataset) == list(range(7))
        assert dataset.get_shard(4)[0].path == str(tmp_path / "data" / "s1.tar")
    assert wids.wids.compute_num_samples(dataset.shards[0]["url"]) == 3
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "data").iterdir()} == before
    assert os.listdir(tmp_path / "tmp") == []
    assert not (tmp_path / "cache").exists()


def received(dataset, world, **options):
    """What a DataLoader hands to each rank, as lists of labels, and the length it announces; for two epochs."""
    epochs = []
    for epoch in range(2):
        rows = []
        for rank in range(world):
            sampler = wids.DistributedChunkedSampler(dataset, num_replicas=world, rank=rank, **options)
            sampler.set_epoch(epoch)
            loader = DataLoader(dataset, sampler=sampler, batch_size=4, collate_fn=labels)
            rows.append([label for batch in loader for label in batch])
            assert len(rows[-1]) == len(sampler)
        epochs.append(rows)
    return epochs


def test_pain_03_ranks_get_equal_counts(tmp_path):
    """10 samples on 4 ranks, 5 on 8, and any other: as many on each rank as len says, each sample seen."""
    for counts in [(10,), (5,), (1,), (3, 0, 4), (7, 6), (2, 2, 2)]:
        dataset = wids.ShardListDataset(write_shards(tmp_path / "-".join(map(str, counts)), counts))
        n = sum(counts)
        for world in (1, 2, 3, 4, 8):
            for rows in received(dataset, world):
                assert {len(row) for row in rows} == {-(-n // world)}
                assert {label for row in rows for label in row} == set(range(n))
            for rows in received(dataset, world, drop_last=True):
                seen = [label for row in rows for label in row]
                assert {len(row) for row in rows} == {n // world}
                assert len(set(seen)) == len(seen) == n // world * world


@pytest.mark.parametrize("has_group", [False, True])
def test_pain_04_explicit_ranks_are_obeyed(tmp_path, monkeypatch, has_group):
    """rank=0 and any other, with num_replicas, whether a process group says something else or there is none."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    dataset = wids.ShardListDataset(write_shards(tmp_path / "d", (5, 5, 2)))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: has_group)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda *_: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda *_: 2)
    parts = [
        list(wids.DistributedChunkedSampler(dataset, num_replicas=3, rank=rank, shuffle=False)) for rank in range(3)
    ]
    assert parts == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    found = list(wids.DistributedChunkedSampler(dataset, shuffle=False))
    assert found == (list(range(6, 12)) if has_group else list(range(12)))
    first = list(wids.DistributedChunkedSampler(dataset, rank=0, shuffle=False))
    assert first == (list(range(6)) if has_group else list(range(12)))


def test_pain_04_explicit_ranks_win_over_the_launcher_and_over_a_state(tmp_path, monkeypatch):
    """Over $RANK and $WORLD_SIZE, which count where nothing is given; a state of other ranks changes neither."""
    dataset = wids.ShardListDataset(write_shards(tmp_path / "d", (5, 5, 2)))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    launched = wids.DistributedChunkedSampler(dataset, shuffle=False)
    assert list(launched) == list(range(6, 12))
    given = wids.DistributedChunkedSampler(dataset, num_replicas=3, rank=0, shuffle=False)
    assert list(given) == [0, 1, 2, 3]
    state = wids.DistributedChunkedSampler(dataset, num_replicas=4, rank=3, shuffle=False).state_dict()
    given.load_state_dict(state)
    assert (given.num_replicas, given.rank) == (3, 0)
    # The first of every three of the four lanes' order.
    assert list(given) == [0, 9, 7, 5]


def count_sections(path, box):
    """Go through critical sections, and note each that somebody else was in."""
    for _ in range(60):
        with locks.acquire(path), open(box, "r+b", buffering=0) as file:
            inside = file.read(1)
            file.seek(0)
            file.write(b"1")
            if inside != b"0":
                file.seek(0, os.SEEK_END)
                file.write(b"x")
            file.seek(0)
            file.write(b"0")


def test_pain_05_sections_under_a_lock_do_not_overlap(tmp_path):
    """Of 360 in six processes, none (1,790 of 1,800 did, for the lock file was deleted while others waited for it)."""
    box = tmp_path / "box"
    box.write_bytes(b"0")
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=count_sections, args=(str(tmp_path / "s.tar"), str(box))) for _ in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE_SECONDS)
    assert [process.exitcode for process in processes] == [0] * 6
    assert box.read_bytes() == b"0"


def test_pain_05_without_locks_shards_are_read_all_the_same(tmp_path, monkeypatch):
    """A network file system that has none: no error, and the right samples, bounded or not."""

    def none(*args):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    write_index(tmp_path / "d", (40,) * 4)
    size = max(path.stat().st_size for path in (tmp_path / "d").glob("*.tar"))
    with serve(tmp_path / "d") as server:
        for name, bound in (("a", None), ("b", 2 * size)):
            dataset = wids.ShardListDataset(f"{server.url}/index.json", cache_dir=tmp_path / name, cache_size=bound)
            assert labels(dataset) == list(range(160))
    assert len(list((tmp_path / "b").glob("*.tar"))) < 4


@pytest.mark.parametrize("fault", ["cut", "cut_unannounced", "reset"])
def test_pain_06_a_download_that_failed_half_way_is_no_hit(tmp_path, server, no_waits, fault):
    """Nothing of it stays; the next access fetches again and gets the shard whole."""
    body = Path(write_shard(tmp_path / "s.tar", 50)).read_bytes()
    url = server.add("/s.tar", body, getattr(servers, fault))
    dataset = wids.ShardListDataset([(url, 50)], cache_dir=tmp_path / "cache")
    for _ in range(2):
        with pytest.raises((FetchError, TruncatedShardError)):
            dataset[0]
        assert not list((tmp_path / "cache").glob("*.tar"))
        assert not list((tmp_path / "cache").glob("*.part"))
    server.faults.clear()
    assert labels(dataset) == list(range(50))


@pytest.mark.parametrize(
    ("facts", "error", "words"),
    [
        ({"filesize": 5}, SizeMismatchError, "filesize 5"),
        ({"md5sum": "0" * 32}, DigestMismatchError, "the index says " + "0" * 32),
    ],
)
def test_pain_06_size_and_md5_of_the_index_are_checked(tmp_path, server, no_waits, facts, error, words):
    """A shard that is not what the index says is refused with both facts, every time, and never kept."""
    url = server.add("/s.tar", Path(write_shard(tmp_path / "s.tar", 3)).read_bytes())
    dataset = wids.ShardListDataset([{"url": url, "nsamples": 3, **facts}], cache_dir=tmp_path / "cache")
    for _ in range(2):
        with pytest.raises(error, match=words) as caught:
            dataset[0]
        assert url in str(caught.value)
    assert not list((tmp_path / "cache").glob("*.tar"))


@pytest.mark.parametrize("is_remote", [False, True])
def test_pain_07_a_wrong_count_says_which_shard_and_both_counts(tmp_path, is_remote):
    """At the first touch, whichever sample it is, and in a worker too; not an IndexError far away."""
    shards = write_shards(tmp_path / "d", (3, 4))
    with serve(tmp_path / "d") as server:
        url = f"{server.url}/s1.tar" if is_remote else shards[1]["url"]
        for count in (3, 6):
            dataset = wids.ShardListDataset([(shards[0]["url"], 3), (url, count)], cache_dir=tmp_path / "cache")
            assert labels(dataset.__getitems__([0, 1, 2])) == [0, 1, 2]
            with pytest.raises(CountMismatchError) as caught:
                dataset[3]
            assert f"{url}: holds 4 samples, and the index says {count} (shard 1 of 2)" in str(caught.value)
            assert (caught.value.expected, caught.value.found) == (count, 4)
            batches = iter(DataLoader(dataset, num_workers=1, multiprocessing_context="fork", sampler=[4]))
            with pytest.raises(CountMismatchError, match=f"holds 4 samples, and the index says {count}"):
                next(batches)
            batches._shutdown_workers()


LONG = "d/" + "x" * 180


@pytest.mark.parametrize("form", ["gnu", "pax", "ustar"])
def test_pain_08_long_names_give_all_samples_with_their_keys(tmp_path, form):
    """However the archive stores a name of more than 100 bytes."""
    names = {"gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT, "ustar": tarfile.USTAR_FORMAT}
    stem = "/".join(["x" * 60] * 3) if form == "ustar" else LONG
    data = {f"{stem}{k}.{name}": b"%d" % k for k in range(3) for name in ("cls", "txt")}
    (tmp_path / "s.tar").write_bytes(tars.files(data, names[form]))
    dataset = wids.ShardListDataset([(tmp_path / "s.tar", 3)])
    assert labels(dataset) == [0, 1, 2]
    assert [sample["__key__"] for sample in dataset] == [f"{stem}{k}" for k in range(3)]


def test_pain_08_names_in_latin_1_and_sizes_in_base_256(tmp_path):
    """A name that is not UTF-8 is a key all the same, found by itself; a size too large for octal digits is read."""
    block = tars.header(b"caf\xe9.cls", 1, size_field=b"\x80" + bytes(10) + b"\x01") + tars.padded(b"7")
    (tmp_path / "s.tar").write_bytes(block + tars.END)
    dataset = wids.ShardListDataset([(tmp_path / "s.tar", 1)])
    assert dataset[0][".cls"] == 7
    key = dataset[0]["__key__"]
    assert key == "caf\udce9"
    assert dataset.keys.index(key) == 0


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("empty", EmptyShardError, "s.tar"),
        ("gzipped", CompressedShardError, "gzip"),
        ("duplicate", DuplicateMemberError, "sample 'a' has two members '.txt'"),
        ("cut", TruncatedShardError, "byte"),
    ],
)
def test_pain_08_what_cannot_be_read_says_so(tmp_path, kind, error, words):
    """Empty files, gzipped archives, repeated members, cut archives: the shard, what is wrong, what to do."""
    path = tmp_path / "s.tar"
    whole = Path(write_shard(path, 3)).read_bytes()
    if kind == "duplicate":
        write_tar(path, [("a.txt", b"1"), ("a.txt", b"2")])
    else:
        path.write_bytes({"empty": b"", "gzipped": gzip.compress(whole), "cut": whole[:600]}[kind])
    with pytest.raises(error, match=words) as caught:
        wids.ShardListDataset([(path, 3)])[0]
    assert str(path) in str(caught.value)
    assert caught.value.shard == str(path)


def test_pain_09_grouping_is_a_parameter(tmp_path, caplog):
    """By adjacency or by key, split at the first dot, the last one, or by the user's rule; repeats are reported."""
    names = ["v1.0/img.7.jpg", "v1.0/txt.7.cls", "v1.0/img.7.seg.png", "README"]
    path = write_tar(tmp_path / "s.tar", [(name, b"1") for name in names])

    def groups(count, **options):
        dataset = wids.ShardListDataset([(path, count)], transformations=[], **options)
        return [(s["__key__"], *sorted(name for name in s if name[0] == ".")) for s in dataset]

    assert groups(3) == [("v1.0/img", ".7.jpg"), ("v1.0/txt", ".7.cls"), ("v1.0/img", ".7.seg.png")]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "RepeatedKeys" in caplog.text
    assert groups(2, group="key") == [("v1.0/img", ".7.jpg", ".7.seg.png"), ("v1.0/txt", ".7.cls")]
    assert groups(3, key_rule="last-dot")[0] == ("v1.0/img.7", ".jpg")

    def by_number(name):
        folder, _, base = name.rpartition("/")
        kind, _, rest = base.partition(".")
        number, _, extension = rest.partition(".")
        return (f"{folder}/{number}", f".{kind}.{extension}") if number else None

    assert groups(1, key_rule=by_number) == [("v1.0/7", ".img.jpg", ".img.seg.png", ".txt.cls")]


def test_pain_11_the_default_order_opens_each_shard_about_once(tmp_path, events):
    """With far fewer open shards than shards: misses stay low in each epoch, in items, batches and for each rank."""
    shards = write_shards(tmp_path / "d", (25,) * 40)
    for world in (1, 4):
        for make in (wids.DistributedChunkedSampler, wids.ChunkedSampler, wids.ShardListSampler):
            if make is not wids.DistributedChunkedSampler and world > 1:
                continue
            del events[:]
            dataset = wids.ShardListDataset(shards, lru_size=8, hooks=[events], transformations="raw")
            options = {"num_replicas": world, "rank": 0} if make is wids.DistributedChunkedSampler else {}
            sampler = make(dataset, **options)
            for _ in range(2):
                loader = DataLoader(dataset, sampler=sampler, batch_size=8, collate_fn=len)
                assert sum(loader) == len(sampler) == 1000 // world
            accesses, misses = dataset.get_stats()
            assert accesses == 2000 // world
            # ChunkedSampler knows no shard boundaries: its chunks of 2,000 hold all of these shards.
            assert misses == sum(isinstance(event, Opened) for event in events)
            if make is not wids.ChunkedSampler:
                assert misses <= 2 * (40 // world)


@pytest.mark.parametrize("kind", ["random_split", "joined"])
def test_pain_11_parts_and_joins_are_read_shard_by_shard(tmp_path, events, kind):
    """A random_split's training part and ds1 + ds2 are shuffled, and yet each shard is opened about once an epoch."""
    one, two = (
        wids.ShardListDataset(write_shards(tmp_path / name, (25,) * 20), lru_size=8, hooks=[events], fields=[".cls"])
        for name in "ab"
    )
    part = one + two if kind == "joined" else random_split(one, [400, 100], torch.Generator().manual_seed(1))[0]
    sampler = wids.DistributedChunkedSampler(part, num_replicas=1, rank=0)
    for _ in range(2):
        del events[:]
        loader = DataLoader(part, sampler=sampler, batch_size=8, collate_fn=labels)
        seen = [label for batch in loader for label in batch]
        wanted = [*range(500), *range(500)] if kind == "joined" else part.indices
        assert sorted(seen) == sorted(wanted)
        assert seen != sorted(seen)
        opened = sum(isinstance(event, Opened) for event in events)
        assert opened <= (40 if kind == "joined" else 20)


def test_pain_11_a_shard_that_is_opened_again_is_not_scanned_again(tmp_path, monkeypatch, events):
    """Uniformly random access over many more shards than may be open: each one's headers are read once."""
    scans = []
    real = tar.scan

    def counting(*args, **options):
        scans.append(options["shard"])
        return real(*args, **options)

    monkeypatch.setattr(tar, "scan", counting)
    shards = write_shards(tmp_path / "d", (5,) * 30)
    order = np.random.default_rng(0).integers(0, 150, 300).tolist()
    local = wids.ShardListDataset(shards, lru_size=2, hooks=[events])
    assert labels(local[i] for i in order) == order
    assert sum(isinstance(event, Opened) for event in events) > 200
    assert sorted(scans) == sorted({local.shards[i // 5]["url"] for i in order})
    del scans[:], events[:]
    with serve(tmp_path / "d") as server:
        remote = [(f"{server.url}/s{k}.tar", 5) for k in range(30)]
        dataset = wids.ShardListDataset(remote, lru_size=2, hooks=[events], cache_dir=tmp_path / "cache")
        assert labels(dataset[i] for i in order) == order
    assert len(scans) == len(set(scans)) == len(shard_requests(server)) <= 30
    again = wids.ShardListDataset(remote, cache_dir=tmp_path / "cache", hooks=[events])
    del scans[:], events[:]
    assert labels(again[i] for i in order) == order
    assert scans == []
    assert all(event.has_saved_table for event in events if isinstance(event, Opened))


@pytest.mark.parametrize("workers", [0, 2])
def test_pain_12_a_run_goes_on_in_mid_epoch(tmp_path, workers):
    """Stopped after any batch, on 3 ranks, and resumed on 2 with other batches: what is left, each sample once."""
    dataset = wids.ShardListDataset(write_shards(tmp_path / "d", (20, 11, 30)))
    for stop in (1, 3, 5):
        had, states = set(), []
        for rank in range(3):
            sampler = wids.DistributedChunkedSampler(dataset, num_replicas=3, rank=rank)
            loader = DataLoader(dataset, sampler=sampler, batch_size=4, collate_fn=labels, num_workers=workers)
            running = iter(loader)
            had.update(label for _ in range(stop) for label in next(running))
            states.append(json.dumps(sampler.state_dict(consumed=stop * 4)))
            if workers:
                running._shutdown_workers()
        assert len(had) == 3 * 4 * stop
        assert len(set(states)) == 1
        left = []
        for rank in range(2):
            sampler = wids.DistributedChunkedSampler(dataset, num_replicas=2, rank=rank)
            sampler.load_state_dict(json.loads(states[0]))
            left.append(
                [label for b in DataLoader(dataset, sampler=sampler, batch_size=5, collate_fn=labels) for label in b]
            )
        assert len(left[0]) == len(left[1])
        rest = set(range(61)) - had
        assert set(left[0]) | set(left[1]) >= rest
        assert len(left[0]) * 2 - len(rest) in (0, 1)


def test_pain_13_a_dataset_in_use_reaches_spawned_workers(tmp_path):
    """After ds[0], and through a sampler that is itself in use: it pickles, and a spawned worker reads all of it."""
    dataset = wids.ShardListDataset(write_index(tmp_path / "d", (3, 4)), fields=(".cls",))
    assert dataset[0][".cls"] == 0
    copy = pickle.loads(pickle.dumps(dataset))
    assert labels(copy) == list(range(7))
    sampler = wids.ChunkedSampler(dataset, chunksize=3)
    loader = DataLoader(
        dataset, sampler=sampler, batch_size=3, collate_fn=list, num_workers=1, multiprocessing_context="spawn"
    )
    assert sorted(sample[".cls"] for batch in loader for sample in batch) == list(range(7))
    assert labels(dataset) == list(range(7))


@pytest.fixture
def reads(monkeypatch):
    """(offset, size) of every read of a shard's bytes."""
    found = []
    real = os.pread

    def noting(fd, size, offset):
        found.append((offset, size))
        return real(fd, size, offset)

    monkeypatch.setattr(system, "pread", noting)
    return found


@pytest.mark.parametrize("way", ["items", "batch", "loader"])
def test_pain_14_fields_read_no_other_bytes(tmp_path, reads, way):
    """Of each sample only the member asked for: those bytes, each once, and nothing is decoded beside it."""
    members = [
        (f"{k:02d}.{name}", data)
        for k in range(20)
        for name, data in (("jpg", b"not an image" * 500), ("json", b'{"k": %d}' % k), ("npy", bytes(3000)))
    ]
    path = write_tar(tmp_path / "s.tar", members)
    dataset = wids.ShardListDataset([(path, 20)], fields=(".json",))
    table = dataset.get_shard(0)[0].table
    wanted = sorted((offset, size) for row in range(20) for name, offset, size in table.members(row) if name == ".json")
    del reads[:]
    samples = {
        "items": lambda: [dataset[i] for i in range(20)],
        "batch": lambda: dataset.__getitems__(list(range(20))),
        "loader": lambda: [s for batch in DataLoader(dataset, batch_size=6, collate_fn=list) for s in batch],
    }[way]()
    assert [sample[".json"]["k"] for sample in samples] == list(range(20))
    assert sorted(reads) == wanted
    assert sum(size for _, size in reads) == sum(len(data) for name, data in members if name.endswith(".json"))


@pytest.mark.parametrize("extension", ["jpeg", "webp", "JPG", "jpg", "png"])
def test_pain_14_images_of_every_common_extension_are_decoded(tmp_path, extension):
    """.jpeg and .webp as well as .jpg and .png, in either case."""
    kind = {"jpeg": "JPEG", "jpg": "JPEG", "webp": "WEBP", "png": "PNG"}[extension.lower()]
    buffer = io.BytesIO()
    Image.new("RGB", (6, 4), (200, 10, 10)).save(buffer, kind)
    dataset = wids.ShardListDataset([(write_tar(tmp_path / "s.tar", {f"a.{extension}": buffer.getvalue()}), 1)])
    assert dataset[0][f".{extension}"].size == (6, 4)
    dataset.transformations = "numpy"
    assert dataset[0][f".{extension}"].shape == (4, 6, 3)


def test_pain_15_cache_size_is_a_bound(tmp_path, events):
    """Never more bytes in the directory than given, part files and tables included, also while shards arrive."""
    write_index(tmp_path / "d", (40,) * 6)
    cache = tmp_path / "cache"
    sizes = [path.stat().st_size for path in (tmp_path / "d").glob("*.tar")]
    bound, seen = 3 * max(sizes), []

    def look(event):
        seen.append(sum(path.stat().st_size for path in cache.iterdir()))

    with serve(tmp_path / "d") as server:
        options = {"cache_dir": cache, "cache_size": bound, "prefetch": False, "hooks": [events, look]}
        dataset = wids.ShardListDataset(f"{server.url}/index.json", **options)
        for _ in range(2):
            assert labels(dataset) == list(range(240))
    assert len(seen) > 6
    assert max(seen) <= bound
    assert any(isinstance(event, Evicted) for event in events)


def test_pain_15_keep_keeps(tmp_path):
    """Shards of a dataset with keep=True stay, whoever else needs room."""
    for name in ("mine", "other"):
        write_index(tmp_path / name, (40,) * 3)
    cache = tmp_path / "cache"
    size = max(path.stat().st_size for path in tmp_path.glob("*/*.tar"))
    with serve(tmp_path) as server:
        mine = wids.ShardListDataset(f"{server.url}/mine/index.json", cache_dir=cache, keep=True)
        assert labels(mine) == list(range(120))
        other = wids.ShardListDataset(
            f"{server.url}/other/index.json", cache_dir=cache, cache_size=5 * size, lru_size=1
        )
        assert labels(other) == list(range(120))
        wids.keep_most_recent_files(cache, maxsize=0)
        before = len(server.requests)
        mine.close()
        assert labels(mine) == list(range(120))
        assert len(server.requests) == before


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_pain_15_the_cleanup_process_lives_under_fork_and_spawn(tmp_path, monkeypatch, method):
    """Two of them on one cache that is in use: neither dies of the other's lock, and reading goes on."""
    monkeypatch.setattr(multiprocessing, "Process", multiprocessing.get_context(method).Process)
    write_index(tmp_path / "d", (2,) * 6)
    cleaners = [
        wids.create_cleanup_background_process(tmp_path / "cache" / "*.tar", maxfiles=2, every=0.01) for _ in range(2)
    ]
    try:
        with serve(tmp_path / "d") as server:
            dataset = wids.ShardListDataset(f"{server.url}/index.json", cache_dir=tmp_path / "cache", lru_size=2)
            for _ in range(3):
                assert labels(dataset) == list(range(12))
        assert all(cleaner.is_alive() for cleaner in cleaners)
    finally:
        for cleaner in cleaners:
            cleaner.terminate()
            cleaner.join(PATIENCE_SECONDS)
    assert [cleaner.exitcode for cleaner in cleaners] == [-15, -15]


@pytest.mark.parametrize("known_by", ["filesize", "md5sum", "nsamples"])
def test_pain_15_regenerated_shards_are_not_served_stale(tmp_path, events, known_by):
    """The index says another size, digest or count than the cached copy has: it is fetched again, once."""
    source = tmp_path / "d" / "s.tar"
    count = 4 if known_by == "nsamples" else 3

    def index(first, count):
        write_tar(source, [(f"{k}.cls", b"%d" % (first + k)) for k in range(count)])
        if known_by == "filesize":
            source.write_bytes(source.read_bytes() + bytes(512 * first))
        facts = {"md5sum": wids.wids.compute_file_md5sum(source), "filesize": source.stat().st_size}
        row = {"url": f"{server.url}/s.tar", "nsamples": count, **{k: v for k, v in facts.items() if k == known_by}}
        return io.StringIO(json.dumps({"wids_version": 1, "shardlist": [row]}))

    with serve(tmp_path / "d") as server:
        options = {"cache_dir": tmp_path / "cache", "hooks": [events]}
        assert labels(wids.ShardListDataset(index(0, 3), **options)) == [0, 1, 2]
        given = index(5, count)
        text = given.getvalue()
        for _ in range(2):
            assert labels(wids.ShardListDataset(io.StringIO(text), **options)) == list(range(5, 5 + count))
    assert sum(isinstance(event, Fetched) for event in events) == len(shard_requests(server)) == 2
    assert sum(isinstance(event, Rejected) for event in events) == 1


def test_pain_15_local_shards_written_anew_are_read_anew(tmp_path):
    """Read in place: a dataset opened afterwards sees the new shard, also where the old one was known in memory."""
    path = write_shard(tmp_path / "s.tar", 3)
    dataset = wids.ShardListDataset([(path, 3)], lru_size=1)
    assert labels(dataset) == [0, 1, 2]
    write_shard(path, 3, first=7)
    os.utime(path, ns=(1, 1))
    assert labels(wids.ShardListDataset([(path, 3)])) == [7, 8, 9]
    dataset.close()
    assert labels(dataset) == [7, 8, 9]


def test_pain_16_importing_wids_needs_no_torch_makes_no_directory_and_says_nothing(tmp_path):
    """Nor does the cleanup, nor constructing a dataset make one; every warning is an error here."""
    index = write_index(tmp_path / "d", (2,))
    code = (
        "import sys, wids\n"
        "assert 'torch' not in sys.modules\n"
        "wids.keep_most_recent_files('nowhere/*.tar')\n"
        "assert 'torch' not in sys.modules\n"
        "import wids.wids_cleanup, wids.wids_lru, wids.wids_specs\n"
        "assert 'torch' not in sys.modules\n"
        f"ds = wids.ShardListDataset({index!r})\n"
        "assert ds[1]['.cls'] == 1\n"
    )
    home = tmp_path / "home"
    home.mkdir()
    env = {**os.environ, "HOME": str(home), "TMPDIR": str(home), "PYTHONPATH": str(Path(wids.__file__).parents[1])}
    env.pop("WIDS_CACHE", None)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=env, cwd=home, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert os.listdir(home) == []


def test_pain_16_the_warning_about_misses_gives_a_percentage(tmp_path, caplog):
    """Not "5000.0%%": at most 100, once, through logging."""
    dataset = wids.ShardListDataset(write_shards(tmp_path / "d", (20, 20)), lru_size=1)
    for i in range(300):
        _ = dataset[(i % 2) * 20]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    words = record.getMessage().split()
    (share,) = (word for word in words if word.endswith("%"))
    assert 30 < float(share.rstrip("%")) <= 100


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"drop_last": False}, {"num_samples": 7}])
def test_pain_17_samplers_have_a_length_and_lightning_leaves_ours_alone(tmp_path, options):
    """The exact number of indices, on every rank; and a DistributedSampler, which Lightning does not replace."""
    dataset = wids.ShardListDataset(write_shards(tmp_path / "d", (3, 4, 3)))
    for world in (1, 3, 4, 16):
        samplers = [
            wids.DistributedChunkedSampler(dataset, num_replicas=world, rank=rank, **options) for rank in range(world)
        ]
        counts = {len(list(sampler)) for sampler in samplers}
        assert counts == {len(sampler) for sampler in samplers}
        assert len(counts) == 1
    assert isinstance(samplers[0], DistributedSampler)
    assert isinstance(samplers[0], wids.ChunkedSampler)
    for sampler in (wids.ChunkedSampler(dataset, num_samples=(2, 9)), wids.ShardListSampler(dataset)):
        assert len(list(sampler)) == len(sampler)
    assert len(DataLoader(dataset, batch_size=4, sampler=wids.ShardListSampler(dataset))) == 3


def test_pain_17_lengths_count_whole_epochs_around_a_resume(tmp_path):
    """Trainers size an epoch by len(loader): after a resume it is the whole epoch's, what was had before included."""
    dataset = wids.ShardListDataset(write_shards(tmp_path / "d", (9, 4, 10)))
    for rank in range(2):
        sampler = wids.DistributedChunkedSampler(dataset, num_replicas=2, rank=rank)
        loader = DataLoader(dataset, sampler=sampler, batch_size=4, collate_fn=labels)
        whole = [len(loader), len(sampler)]
        assert whole == [3, 12]
        running = iter(loader)
        had = [next(running), next(running)]
        state = sampler.state_dict(consumed=8)
        again = wids.DistributedChunkedSampler(dataset, num_replicas=2, rank=rank)
        loader = DataLoader(dataset, sampler=again, batch_size=4, collate_fn=labels)
        again.load_state_dict(state)
        assert [len(loader), len(again)] == whole
        rest = list(loader)
        assert [len(had) + len(rest), sum(map(len, had + rest))] == whole
        assert [len(loader), len(again)] == whole
        assert [len(list(loader)), len(again)] == whole


def test_pain_18_epochs_are_shuffled_and_set_epoch_decides(tmp_path):
    """Epoch 0 is shuffled too, iterating and set_epoch agree, and a rank need not keep its slice for ever."""
    dataset = wids.ShardListDataset(write_shards(tmp_path / "d", (10,) * 24))

    def make(**options):
        return wids.DistributedChunkedSampler(dataset, num_replicas=2, rank=1, chunksize=10, window=1, **options)

    sampler = make()
    epochs = [list(sampler) for _ in range(5)]
    shards = [[order[k] // 10 for k in range(0, 120, 10)] for order in epochs]
    assert all(order != sorted(order) for order in shards)
    assert len({tuple(order) for order in shards}) == 5
    for epoch in (3, 0, 4):
        again = make()
        again.set_epoch(epoch)
        assert list(again) == epochs[epoch]
        assert again.epoch == epoch
    assert {frozenset(order) for order in shards} == {frozenset(range(12, 24))}
    dealt = make(reshuffle="epoch")
    assert len({frozenset(i // 10 for i in dealt) for _ in range(5)}) == 5

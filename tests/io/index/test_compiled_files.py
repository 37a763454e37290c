"""Large indexes, compiled once in a cache directory and mapped by all; compiled indexes that are opened themselves."""

import copy
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from torch.utils.data import DataLoader

from tests.support import clocks
from tests.support.children import call_in_child, child, kill
from tests.support.clocks import PATIENCE_SECONDS
from tests.support.shards import serve, write_index, write_json
from wids import DistributedChunkedSampler, ShardListDataset
from wids.core.collection import shard_collection
from wids.core.collection.shard_collection import load_shards
from wids.core.files import container, system
from wids.core.files.shared_files import SharedFiles
from wids.core.index import compiled, compiled_files, loading
from wids.core.index.spec import list_shards
from wids.core.order.layout import interface_of
from wids.core.transport.session import Session
from wids.errors import FetchError, NotAllowedError, OutputError, SpecError
from wids.jobs.index_edit import convert_index, merge_indexes, rebase_index, split_index
from wids.testing import Server

COUNTS = (3, 4, 2, 5)


@pytest.fixture(autouse=True)
def few(set_limits):
    """Two shards are many, and a file that was just written is taken for settled."""
    set_limits(compiled_files, min_shards=2, settled_ns=-PATIENCE_SECONDS * 10**9)


@pytest.fixture
def index(tmp_path):
    """An index of four local shards, with a header of its own."""
    (tmp_path / "d").mkdir()
    raw = Path(write_index(tmp_path / "d", COUNTS, name="train.json"))
    return write_json(raw, {**json.loads(raw.read_text()), "name": "train", "info": {"a": [1]}})


@pytest.fixture
def cache(tmp_path):
    """A cache directory that does not exist yet."""
    return str(tmp_path / "cache")


@pytest.fixture
def reads(monkeypatch):
    """What is read and parsed: a list of ("read", URL) and ("parse", URL)."""
    seen = []

    def note(kind, function):
        def call(*args, **options):
            seen.append((kind, os.path.basename(options.get("index_url") or args[0])))
            return function(*args, **options)

        return call

    monkeypatch.setattr(loading, "read_bytes", note("read", loading.read_bytes))
    monkeypatch.setattr(loading, "parse_index", note("parse", loading.parse_index))
    return seen


def files(cache, suffix=compiled.SUFFIX):
    """The names of compiled indexes in a cache directory."""
    folder = Path(cache, ".wids", "indexes")
    return sorted(path.name for path in folder.glob("*" + suffix)) if folder.is_dir() else []


def part_files(cache):
    """The names of files that are under way, or were left so."""
    return [name for name in os.listdir(os.path.join(cache, ".wids")) if name.endswith(".part")]


def is_mapped(dataset):
    """Whether a dataset's shards are mapped."""
    return dataset._collection.shards.origin is not None


def parsed(monkeypatch, *args, **options):
    """The same dataset, its shards parsed."""
    with monkeypatch.context() as patch:
        clocks.set_limits(compiled_files, patch=patch.setattr, min_shards=1 << 30)
        return ShardListDataset(*args, **options)


def test_compiled_once_then_mapped(index, cache, reads):
    """The first opening reads and parses, the second one does neither; a touched file is read, and not parsed."""
    first = ShardListDataset(index, cache_dir=cache)
    assert reads == [("read", "train.json"), ("parse", "train.json")]
    (name,) = files(cache)
    assert len(files(cache, ".source")) == 1
    assert os.stat(os.path.join(cache, ".wids", "indexes", name)).st_mode & 0o777 == 0o600
    second = ShardListDataset(index, cache_dir=cache)
    assert len(reads) == 2
    assert is_mapped(first)
    assert is_mapped(second)
    os.utime(index)
    assert is_mapped(ShardListDataset(index, cache_dir=cache))
    assert reads[2:] == [("read", "train.json")]
    assert ShardListDataset(index, cache_dir=cache).fingerprint == first.fingerprint
    assert len(reads) == 3
    assert part_files(cache) == []


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel says what a process has in memory in /proc")
def test_who_compiles_gives_the_memory_back(tmp_path, cache):
    """Of an index of 11 MB, the first process has as little as one that maps it: neither heap nor pages of the file."""
    rows = [{"url": f"{k:07}.tar", "nsamples": 9, "filesize": 10**6 + k, "md5sum": f"{k:032x}"} for k in range(100_000)]
    index = write_json(tmp_path / "train.json", {"wids_version": 1, "shardlist": rows})
    code = (
        "import sys, wids, wids.dataset\n"
        "def private():\n"
        "    lines = [line.split() for line in open('/proc/self/smaps')]\n"
        "    at, found = '', 0\n"
        "    for words in lines:\n"
        "        at = at if words[0].endswith(':') else words[-1]\n"
        "        is_ours = at == '[heap]' or at.endswith('.widsx') or '/' not in at\n"
        "        found += int(words[1]) if words[0].startswith('Private') and is_ours else 0\n"
        "    return found << 10\n"
        "before = private()\n"
        "dataset = wids.ShardListDataset(sys.argv[1], cache_dir=sys.argv[2])\n"
        "assert dataset._collection.shards.origin is not None\n"
        "print(private() - before)\n"
    )
    command = [sys.executable, "-c", code, index, cache]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    assert int(done.stdout) < 12 << 20


def test_a_changed_index_is_compiled_again(index, cache, reads):
    """Of the same size, in the same file, a moment later; who has the old one keeps it."""
    old = ShardListDataset(index, cache_dir=cache)
    text = Path(index).read_text()
    with open(index, "r+") as file:
        file.write(text.replace('"nsamples": 5', '"nsamples": 6'))
    new = ShardListDataset(index, cache_dir=cache)
    assert (list(old.lengths), list(new.lengths)) == ([3, 4, 2, 5], [3, 4, 2, 6])
    assert [kind for kind, _ in reads] == ["read", "parse"] * 2
    assert len(files(cache)) == 2
    assert pickle.loads(pickle.dumps(old)).lengths == old.lengths


def test_a_file_that_was_just_written_is_not_remembered(index, cache, set_limits):
    """It may change again without its times showing it."""
    set_limits(compiled_files, settled_ns=PATIENCE_SECONDS * 10**9)
    assert is_mapped(ShardListDataset(index, cache_dir=cache))
    assert files(cache, ".source") == []


def test_a_changed_sub_dataset_is_seen(tmp_path, cache, reads):
    """Sub-datasets are read at each opening; if one is another, all is compiled again."""
    os.mkdir(tmp_path / "d")
    write_index(tmp_path / "d", (3, 4), name="part.json")
    whole = write_json(tmp_path / "whole.json", {"wids_version": 1, "datasets": [{"source_url": "d/part.json"}]})
    assert is_mapped(ShardListDataset(whole, cache_dir=cache))
    assert len(ShardListDataset(whole, cache_dir=cache)) == 7
    assert [kind for kind, _ in reads].count("parse") == 1
    write_index(tmp_path / "d", (3, 5, 1), name="part.json")
    assert len(ShardListDataset(whole, cache_dir=cache)) == 9
    assert [kind for kind, _ in reads].count("parse") == 2
    (tmp_path / "d" / "part.json").unlink()
    with pytest.raises(FetchError, match=r"part\.json"):
        ShardListDataset(whole, cache_dir=cache)


def test_small_indexes_are_parsed(index, cache, monkeypatch):
    """No cache directory is made for one."""
    assert not is_mapped(parsed(monkeypatch, index, cache_dir=cache))
    assert not os.path.exists(cache)


def test_every_public_api_says_the_same(tmp_path, index, cache, monkeypatch):
    """Of a mapped and of a parsed dataset, whose items are made when they are asked for, or before."""
    convert_index(index, str(tmp_path / "d" / "train.widsx"))
    one = parsed(monkeypatch, index, cache_dir=cache)
    monkeypatch.setattr(shard_collection, "MANY", 2)
    for place in (index, tmp_path / "d" / "train.widsx"):
        other = ShardListDataset(place, cache_dir=cache)
        assert is_mapped(other)
        n = len(one)
        assert len(other) == other.total_length == n
        assert other.lengths == one.lengths
        assert other.shards == one.shards
        assert one.shards == other.shards
        assert other.shards[1:3] == one.shards[1:3]
        more = [{}]
        assert (other.shards + more, more + other.shards) == (one.shards + more, more + one.shards)
        assert copy.deepcopy(other.shards) == one.shards
        assert pickle.loads(pickle.dumps(other.shards)) == one.shards
        assert other.cum_lengths.tolist() == interface_of(other).shard_ends.tolist() == one.cum_lengths.tolist()
        assert {**other.spec, "shardlist": list(other.spec["shardlist"])} == one.spec
        assert (other.fingerprint, other.dataset_name, other.base) == (one.fingerprint, one.dataset_name, one.base)
        assert [other.locate(i) for i in range(-n, n)] == [one.locate(i) for i in range(-n, n)]
        assert [sorted(other[i]) for i in range(n)] == [sorted(one[i]) for i in range(n)]
        assert [sample["__shard__"] for sample in other] == [sample["__shard__"] for sample in one]
        assert [s["__key__"] for s in other.__getitems__([9, 0, 5])] == [
            s["__key__"] for s in one.__getitems__([9, 0, 5])
        ]
        assert list(other.keys) == list(one.keys)
        assert other.get_shard(4)[1:] == one.get_shard(4)[1:]
        assert other.cache.get_shard(one.shards[2]["url"]).url == one.shards[2]["url"]
        assert (interface_of(other).prefetch_source(), interface_of(one).prefetch_source()) == (None, None)
        orders = [list(DistributedChunkedSampler(each, num_replicas=2, rank=1, chunksize=2)) for each in (one, other)]
        assert orders[0] == orders[1]
        with pytest.raises(IndexError):
            other[n]
        with pytest.raises(KeyError):
            other.cache.get_shard("/no/such.tar")


def test_shards_are_read_only(index, cache, monkeypatch):
    """Rows of a mapped index are made when they are asked for; it stays mapped with another header alone."""
    monkeypatch.setattr(shard_collection, "MANY", 2)
    dataset = ShardListDataset(index, cache_dir=cache)
    shards = dataset.shards
    for change in (
        lambda: shards.append({}),
        lambda: shards.__setitem__(0, {}),
        lambda: shards[3].update(nsamples=1),
        lambda: dataset.spec.update(info="new"),
    ):
        with pytest.raises(TypeError, match=r"read-only(, and so are its rows)?; assign a new"):
            change()
    assert not isinstance(shards, list)
    dataset.spec = {**dataset.spec, "info": "new"}
    for each in (dataset, pickle.loads(pickle.dumps(dataset))):
        assert is_mapped(each)
        assert (each.spec["info"], len(each)) == ("new", 14)
    dataset.shards = [*shards[:3], {**shards[3], "nsamples": 1, "own": 7}]
    for each in (dataset, pickle.loads(pickle.dumps(dataset))):
        assert not is_mapped(each)
        assert (each.lengths, len(each), each.cum_lengths.tolist()) == ([3, 4, 2, 1], 10, [3, 7, 9, 10])
        assert (each.spec["info"], each.shards[3]["own"]) == ("new", 7)
    dataset.shards = dataset.shards[:2]
    assert (len(dataset), len(shards)) == (7, 4)


def test_a_pickle_is_a_path(index, cache, reads):
    """Not longer for more shards; where the compiled file is gone it is made again, unless the index is another."""
    dataset = ShardListDataset(index, cache_dir=cache)
    data = pickle.dumps(dataset)
    assert b"s3.tar" not in data
    assert is_mapped(pickle.loads(data))
    assert len(reads) == 2
    shutil.rmtree(cache)
    again = pickle.loads(data)
    assert is_mapped(again)
    assert again.shards == dataset.shards
    shutil.rmtree(cache)
    write_json(index, {"wids_version": 1, "shardlist": [{"url": "s0.tar", "nsamples": 3}] * 2})
    with pytest.raises(SpecError, match="the index has changed since the dataset was made, and its compiled form"):
        pickle.loads(data)
    os.unlink(index)
    with pytest.raises(FetchError, match=r"train\.json"):
        pickle.loads(data)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_map_it(index, cache, method):
    """They read what the process itself does, forked or new ones."""
    dataset = ShardListDataset(index, cache_dir=cache, transformations=[])
    loader = DataLoader(dataset, batch_size=5, num_workers=1, collate_fn=list, multiprocessing_context=method)
    keys = [sample["__key__"] for batch in loader for sample in batch]
    assert keys == list(dataset.keys)


def test_a_cache_that_cannot_be_used(index, tmp_path, monkeypatch):
    """The index is parsed, as a small one is; so it is where the disk is full."""
    (tmp_path / "file").write_bytes(b"")
    dataset = ShardListDataset(index, cache_dir=tmp_path / "file" / "cache")
    assert not is_mapped(dataset)
    assert len(dataset) == 14

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(system, "write_parts", refuse)
    assert len(ShardListDataset(index, cache_dir=tmp_path / "cache")) == 14
    assert files(tmp_path / "cache") == []
    assert part_files(tmp_path / "cache") == []


def test_what_cannot_be_trusted_is_made_again(index, cache, reads, monkeypatch):
    """A damaged file, a damaged note, another user's files."""
    ShardListDataset(index, cache_dir=cache)
    (name,) = files(cache)
    path = Path(cache, ".wids", "indexes", name)
    good = path.read_bytes()
    for bad in (b"", good[:100], good[:40] + b"#" + good[41:]):
        path.unlink()
        path.write_bytes(bad)
        assert is_mapped(ShardListDataset(index, cache_dir=cache))
        assert path.read_bytes() == good
    assert [kind for kind, _ in reads].count("parse") == 4
    (note,) = files(cache, ".source")
    for bad in (
        b"",
        b"{}",
        b'{"status": 1}',
        Path(path.parent, note).read_bytes().replace(name[:64].encode(), b"\xff"),
        Path(path.parent, note).read_bytes().replace(name[:64].encode(), b"../x"),
    ):
        Path(path.parent, note).write_bytes(bad)
        assert is_mapped(ShardListDataset(index, cache_dir=cache))
    assert [kind for kind, _ in reads].count("parse") == 4
    monkeypatch.setattr(system, "user_id", lambda: -1)
    assert not is_mapped(ShardListDataset(index, cache_dir=cache))


def die_while_writing(connection, index, cache):
    """Write half of a compiled index, and wait for the end."""

    def half(fd, parts):
        os.write(fd, parts[0][:50])
        connection.send("half")
        connection.recv()

    clocks.set_limits(compiled_files, min_shards=2)
    system.write_parts = half
    ShardListDataset(index, cache_dir=cache)


def test_a_process_that_is_killed_leaves_nothing_wrong(index, cache):
    """Its part file is no index, and goes with the next one that is written."""
    with child(die_while_writing, index, cache) as (process, connection):
        assert connection.recv() == "half"
        kill(process)
    assert files(cache) == []
    assert len(part_files(cache)) == 1
    dataset = ShardListDataset(index, cache_dir=cache)
    assert is_mapped(dataset)
    assert len(dataset) == 14
    assert part_files(cache) == []
    assert [name for name in os.listdir(os.path.join(cache, ".wids")) if name.endswith(".lock")] == []


def open_and_tell(index, cache):
    """What another process finds."""
    clocks.set_limits(compiled_files, min_shards=2)
    dataset = ShardListDataset(index, cache_dir=cache)
    return is_mapped(dataset), dataset.fingerprint


def test_one_of_several_compiles(index, cache, monkeypatch):
    """One that waited for the lock finds the file there, and does not parse."""
    answers = []
    real = loading.parse_index

    def parse(*args, **options):
        answers.append(1)
        return real(*args, **options)

    alone = SharedFiles.alone

    def slow(self, key):
        if not answers:  # another process was first
            answers.append(call_in_child(open_and_tell, index, cache, method="forkserver"))
        return alone(self, key)

    monkeypatch.setattr(loading, "parse_index", parse)
    monkeypatch.setattr(SharedFiles, "alone", slow)
    dataset = ShardListDataset(index, cache_dir=cache)
    assert answers == [(True, dataset.fingerprint)]
    assert is_mapped(dataset)


def test_unused_ones_are_deleted(index, cache):
    """A month after they were opened last, when the next one is written; the cleaner leaves them alone."""
    ShardListDataset(index, cache_dir=cache)
    (name,) = files(cache)
    path = Path(cache, ".wids", "indexes", name)
    stranger = path.with_name("mine.txt")
    stranger.write_text("x")
    for each in (path, stranger):
        os.utime(each, (1, 1))
    write_json(index, {**json.loads(Path(index).read_text()), "name": "new"})
    ShardListDataset(index, cache_dir=cache)
    assert name not in files(cache)
    assert len(files(cache)) == 1
    assert stranger.exists()


def test_options_go_to_the_same_servers(tmp_path, cache, set_limits):
    """Those that the index named when it was compiled; a remote index names none."""
    os.mkdir(tmp_path / "d")
    write_index(tmp_path / "d", (1, 1), name="part.json")
    with serve(tmp_path / "d") as server:
        shards = [{"url": "https://mine.invalid/a.tar", "nsamples": 1}]
        parts = [{"source_url": f"{server.url}/part.json"}]
        raw = {"wids_version": 1, "shardlist": shards, "datasets": parts}
        place = write_json(tmp_path / "whole.json", raw)
        given = {"headers": {"X": "1"}}
        found = [load_shards(place, session=Session(given), cache_dir=cache) for _ in range(2)]
        assert [shards.origin is not None for _, shards, _ in found] == [True, True]
        set_limits(compiled_files, min_shards=1 << 30)
        _, _, expected = load_shards(place, session=Session(given), cache_dir=cache)
        assert [options for _, _, options in found] == [expected] * 2
        assert "https://mine.invalid" in expected.storage_options


# --- compiled indexes that are opened themselves


@pytest.fixture
def converted(index, tmp_path):
    """A compiled index beside its shards."""
    path = str(tmp_path / "d" / "train.widsx")
    told = convert_index(index, path)
    assert (told.shards, told.samples) == (4, 14)
    return path


def test_it_may_be_moved_with_its_shards(converted, tmp_path, cache):
    """URLs are relative to where it lies; ``base=`` and options override."""
    shutil.move(tmp_path / "d", tmp_path / "e")
    place = str(tmp_path / "e" / "train.widsx")
    dataset = ShardListDataset(place, cache_dir=cache)
    assert dataset.shards[1]["url"] == str(tmp_path / "e" / "s1.tar")
    assert not os.path.exists(cache)
    assert [sample["__key__"] for sample in dataset] == list(dataset.keys)
    for options in ({"base": "gs://b/x"}, {"options": {"base": "gs://b/x", "name": "other", "info": None}}):
        other = ShardListDataset(place, cache_dir=cache, prefetch=False, **options)
        assert other.shards[1]["url"] == "gs://b/x/s1.tar"
        assert other.base == "gs://b/x"
        assert pickle.loads(pickle.dumps(other)).shards == other.shards
    assert (other.dataset_name, other.spec["info"], other.shards[0]["name"]) == ("other", None, "other")
    with pytest.raises(SpecError, match="the shardlist of a compiled index cannot be changed"):
        ShardListDataset(place, options={"shardlist": []})


def test_a_local_one_that_changes(converted, tmp_path, index):
    """A pickle belongs to the file as it was, or to one of the same shards."""
    dataset = ShardListDataset(converted)
    data = pickle.dumps(dataset)
    convert_index(index, converted)
    assert pickle.loads(data).shards == dataset.shards
    write_index(tmp_path / "d", (1, 2), name="train.json")
    convert_index(index, converted)
    assert len(dataset) == 14
    with pytest.raises(SpecError, match="the index has changed since the dataset was made"):
        pickle.loads(data)
    Path(converted).write_bytes(b"{}")
    with pytest.raises(SpecError, match="this compiled index is none, or was cut short"):
        ShardListDataset(converted)
    os.unlink(converted)
    with pytest.raises(FetchError, match=r"train\.widsx"):
        ShardListDataset(converted)
    with pytest.raises(FetchError, match=r"train\.widsx"):
        pickle.loads(data)


def test_no_damage_is_taken_for_an_index(converted, tmp_path, index, cache):
    """Any byte changed, with its checksums or without: refused at the first opening, or in a cache made again."""
    raw = json.loads(Path(index).read_text())
    for k, entry in enumerate(raw["shardlist"]):
        entry |= {"crc32": f"{k:08x}", "md5sum": f"{k * 7:032x}", "own": k}
    write_json(index, raw)
    convert_index(index, converted)
    good, random = Path(converted).read_bytes(), np.random.default_rng(0)
    wanted = list(map(dict, ShardListDataset(converted).shards))
    assert [shard["crc32"] for shard in wanted] == [f"{k:08x}" for k in range(4)]
    spots = [*range(96), *random.integers(96, len(good), 904).tolist()]
    assert len(good) < 4000  # most bytes are hit
    for at in spots:
        bad = bytearray(good)
        bad[at] ^= int(random.integers(1, 256))
        Path(converted).write_bytes(bad)
        with pytest.raises(SpecError, match="this compiled index"):
            load_shards(converted)
    first = list(map(dict, ShardListDataset(index, cache_dir=cache).shards))
    (name,) = files(cache)
    path = Path(cache, ".wids", "indexes", name)
    good = path.read_bytes()
    for at in random.integers(0, len(good), 100).tolist():
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        found = ShardListDataset(index, cache_dir=cache)
        assert is_mapped(found)
        assert list(map(dict, found.shards)) == first
        assert path.read_bytes() == good


@pytest.mark.parametrize("kind", ["its own", "compiled here", "downloaded"])
def test_a_checksum_is_compared_once(converted, index, tmp_path, cache, monkeypatch, set_limits, kind):
    """Each machine does so at the first opening, and when the file is another one; pickles too go by that."""
    set_limits(compiled_files, checked_bytes=0)
    summed = []
    monkeypatch.setattr(container, "crc32", lambda data, *rest: summed.append(len(data)) or crc32(data, *rest))
    with serve(tmp_path / "d") as server:
        place = {"its own": converted, "compiled here": index, "downloaded": f"{server.url}/train.widsx"}[kind]

        def open_it(make=lambda: ShardListDataset(place, cache_dir=cache)):
            """Whether all of the file is summed; the dataset."""
            summed.clear()
            dataset = make()
            assert dataset.lengths == list(COUNTS)
            return len(summed) == 3, dataset

        first = ShardListDataset(place, cache_dir=cache)
        path = converted if kind == "its own" else os.path.join(cache, ".wids", "indexes", files(cache)[0])
        is_summed, again = open_it()
        assert not is_summed
        data = pickle.dumps(again)
        assert not open_it(lambda: pickle.loads(data))[0]
        os.utime(path)
        assert open_it()[0]
        assert not open_it()[0]
        set_limits(compiled_files, settled_ns=PATIENCE_SECONDS * 10**9)
        os.utime(path)
        assert open_it()[0]
        assert open_it()[0]  # written just now, it may change without its times showing it
        assert first.fingerprint == again.fingerprint


def test_a_remote_one_is_downloaded_once(converted, index, tmp_path, cache, monkeypatch):
    """Into the cache directory, checked; a new version is downloaded anew."""
    downloads = []
    real = loading.download_to

    def download(url, *args, **options):
        downloads.append(url)
        real(url, *args, **options)

    monkeypatch.setattr(loading, "download_to", download)
    with serve(tmp_path / "d") as server:
        place = f"{server.url}/train.widsx"
        first = ShardListDataset(place, cache_dir=cache, prefetch=False)
        assert first.shards[2]["url"] == f"{server.url}/s2.tar"
        assert is_mapped(first)
        again = ShardListDataset(place, cache_dir=cache, prefetch=False)
        assert again.shards == first.shards
        assert len(files(cache)) == 1
        assert len(downloads) == 1
        assert first[0]["__key__"] == "s0-000"
        data = pickle.dumps(first)
        write_index(tmp_path / "d", (1, 2), name="train.json")
        convert_index(index, converted)
        assert len(ShardListDataset(place, cache_dir=cache, prefetch=False)) == 3
        assert len(pickle.loads(data)) == 14
        assert len(downloads) == 2


def test_a_remote_one_without_a_version(converted, index, tmp_path, cache):
    """Where a server does not say which version it has, it is downloaded each time; a pickle is of one of them."""
    with Server(tmp_path / "d", has_ranges=False, validators=()) as server:
        place = f"{server.url}/train.widsx"
        first = ShardListDataset(place, cache_dir=cache, prefetch=False)
        assert is_mapped(first)
        data = pickle.dumps(first)
        assert pickle.loads(data).shards == first.shards
        write_index(tmp_path / "d", (1, 2), name="train.json")
        convert_index(index, converted)
        assert len(ShardListDataset(place, cache_dir=cache, prefetch=False)) == 3
        assert len(first) == 14
        with pytest.raises(SpecError, match="the index has changed since the dataset was made"):
            pickle.loads(data)


def test_a_remote_one_where_nothing_can_be_written(converted, tmp_path):
    """It is read into memory, and pickled as its URL."""
    (tmp_path / "file").write_bytes(b"")
    with serve(tmp_path / "d") as server:
        dataset = ShardListDataset(f"{server.url}/train.widsx", cache_dir=tmp_path / "file" / "cache", prefetch=False)
        assert dataset.lengths == list(COUNTS)
        assert pickle.loads(pickle.dumps(dataset)).shards == dataset.shards


def test_a_remote_one_is_checked(converted, index, tmp_path, cache):
    """To its last byte, and whether it points at this machine."""
    with serve(tmp_path / "d") as server:
        place = f"{server.url}/train.widsx"
        good = Path(converted).read_bytes()
        Path(converted).write_bytes(good[:-9] + b"#" + good[-8:])
        with pytest.raises(SpecError, match="the checksum of its sections is another"):
            ShardListDataset(place, cache_dir=cache)
        assert files(cache) == []
        shards = list_shards([(f"file:///x/{k}.tar", 1) for k in range(3)])
        Path(converted).write_bytes(b"".join(compiled.pack(shards, texts=shards.urls)))
        with pytest.raises(NotAllowedError, match=r"shardlist\[0\]\.url is 'file:///x/0\.tar'"):
            ShardListDataset(place, cache_dir=cache)
        assert files(cache) == []
        assert len(ShardListDataset(place, cache_dir=cache, allow_local=True)) == 3


def test_other_commands_on_indexes(converted, index, tmp_path):
    """Merge and split take one and write JSON; to be changed it is made anew."""
    merge_indexes([converted], str(tmp_path / "d" / "merged.json"))
    assert len(ShardListDataset(tmp_path / "d" / "merged.json")) == 14
    split_index(converted, [str(tmp_path / "d" / "part-{}.json")], parts=lambda _: [range(2), range(2, 4)])
    assert json.loads((tmp_path / "d" / "part-1.json").read_text())["info"] == {"a": [1]}
    with pytest.raises(SpecError, match="is a compiled index; change the one it was made of, and convert it"):
        rebase_index(converted, "gs://b")
    with pytest.raises(OutputError, match=r"a compiled index has a name that ends in \.widsx"):
        convert_index(index, str(tmp_path / "x.json"))
    with pytest.raises(OutputError, match="this is the name of a compiled index"):
        merge_indexes([index], str(tmp_path / "x.widsx"))


def test_who_writes_one_has_its_checksum(index, cache, set_limits):
    """The next opening does not compare it again, though the file was written just now."""
    set_limits(compiled_files, settled_ns=PATIENCE_SECONDS * 10**9)
    load_shards(index, cache_dir=cache)
    (name,) = files(cache)
    path = os.path.join(cache, ".wids", "indexes", name)
    assert compiled_files.CompiledIndexes(cache).is_checked(path, os.stat(path))
    with open(path, "ab") as file:
        file.write(b"x")
    assert not compiled_files.CompiledIndexes(cache).is_checked(path, os.stat(path))

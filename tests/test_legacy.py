"""The original's submodules: every name of the project's list of calls (CLIENTS.md), and where they refuse."""

import functools
import gzip
import io
import os
import random
from collections import Counter
from pathlib import Path

import pytest

import wids
import wids.wids
import wids.wids_cleanup
import wids.wids_decode
import wids.wids_dl
import wids.wids_lru
import wids.wids_mmtar
import wids.wids_specs
from tests.cache_dirs import put_shard
from tests.shards import write_shard, write_tar
from wids.errors import CountMismatchError, DigestMismatchError, NotAllowedError, SpecError, TruncatedShardError

COUNTS = (3, 4, 2)
EXPECTED = [f"text {g}" for g in range(sum(COUNTS))]


pytestmark = pytest.mark.usefixtures("own_cache")


# --- wids.wids


def test_wids_wids_names():
    """The datasets and samplers are the same objects under the original's module."""
    for name in ("ShardListDataset", "ChunkedSampler", "DistributedChunkedSampler", "ShardListSampler"):
        assert getattr(wids.wids, name) is getattr(wids, name)
    assert wids.wids.ShardedSampler is wids.wids.ShardListSampler


def test_wids_wids_indexed_tar_samples(tmp_path):
    """By path (keyword or positional) with md5sum and expected_size, or by stream; reader.by_index holds members."""
    path = write_shard(tmp_path / "s.tar", 3)
    md5 = wids.wids.compute_file_md5sum(path)
    for samples in (
        wids.wids.IndexedTarSamples(path=path, md5sum=md5, expected_size=3),
        wids.wids.IndexedTarSamples(path, md5, 3),
        wids.wids.IndexedTarSamples(Path(path), md5sum=md5.upper()),
        wids.wids.IndexedTarSamples(path=path, use_mmap=True),
        wids.wids.IndexedTarSamples(stream=open(path, "rb")),  # noqa: SIM115 - it owns the stream
    ):
        assert len(samples) == 3
        assert samples[1][".txt"].read() == b"text 1"
        assert samples[-1]["__key__"] == "s-002"
        assert [s["__key__"] for s in samples] == ["s-000", "s-001", "s-002"]
        assert samples.path == path
        assert samples.samples == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
        name, offset, size = samples.reader.by_index[3]
        assert (name, offset % 512, size) == ("s-001.txt", 0, 6)
        with pytest.raises(IndexError):
            samples[3]
        samples.close()
        samples.close()
        assert samples.stream.closed


def test_wids_wids_indexed_tar_samples_refuses(tmp_path):
    """A wrong digest, a wrong count, a file that is no tar, and no file at all; nothing stays open."""
    path = write_shard(tmp_path / "s.tar", 3)
    junk = tmp_path / "junk.tar"
    junk.write_bytes(b"x" * 2000)
    twice = write_tar(tmp_path / "twice.tar", [("a.txt", b"1"), ("a.txt", b"2")])
    with open(path, "rb") as stream:
        with pytest.raises(DigestMismatchError, match="its md5 is"):
            wids.wids.IndexedTarSamples(stream=stream, md5sum="0" * 32)
        assert stream.closed
    with pytest.raises(CountMismatchError, match="holds 3 samples, not 4"):
        wids.wids.IndexedTarSamples(path=path, expected_size=4)
    with pytest.raises(wids.errors.TarError):
        wids.wids.IndexedTarSamples(path=junk)
    with pytest.raises(wids.errors.DuplicateMemberError):
        wids.wids.IndexedTarSamples(path=twice)
    with pytest.raises(TypeError, match="a path or a stream"):
        wids.wids.IndexedTarSamples()


def test_wids_wids_counts_and_digests_read_in_place(tmp_path):
    """compute_num_samples and compute_file_md5sum, by path, path-like and stream; nothing is copied."""
    path = write_shard(tmp_path / "s.tar", 3)
    assert wids.wids.compute_num_samples(path) == wids.wids.compute_num_samples(Path(path)) == 3
    with open(path, "rb") as stream:
        stream.seek(7)
        digests = {wids.wids.compute_file_md5sum(each) for each in (path, Path(path), stream)}
        assert wids.wids.compute_file_md5sum(stream, 100) in digests
    assert len(digests) == 1
    assert not (tmp_path / "default-cache").exists()


def test_wids_wids_names_and_groups():
    """The first dot of the basename; files without one belong to no sample."""
    assert wids.wids.splitname("a.b/c.seg.png") == ("a.b/c", ".seg.png")
    with pytest.raises(ValueError, match="'README' has no extension"):
        wids.wids.splitname("README")
    names = ["a.jpg", "a.cls", "README", "b.jpg", "a.json"]
    assert wids.wids.group_by_key(names) == [[0, 1], [3], [4]]
    assert wids.wids.group_by_key([]) == []


def test_wids_wids_ranges():
    """iterate_ranges and lengths_to_ranges, shuffled by the generator given or not at all."""
    ranges = wids.wids.lengths_to_ranges([2, 0, 3])
    assert ranges == [(0, 2), (2, 2), (2, 5)]
    plain = wids.wids.iterate_ranges(ranges, random.Random(0), indexshuffle=False, shardshuffle=False)
    assert list(plain) == [0, 1, 2, 3, 4]
    shuffled = [list(wids.wids.iterate_ranges(ranges, random.Random(seed))) for seed in (1, 1, 2)]
    assert shuffled[0] == shuffled[1]
    assert sorted(shuffled[2]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["hash_localname", "default_localname", "cache_localname", "CacheLocalname"])
def test_wids_wids_localnames(web, tmp_path, name):
    """Each makes a function URL -> path in its directory, and serves as localname=."""
    localname = getattr(wids.wids, name)(str(tmp_path / "names"))
    urls = ["http://a/x.tar", "http://b/x.tar", "gs://a/x.tar"]
    paths = {localname(url) for url in urls}
    assert len(paths) == 3
    assert {os.path.dirname(path) for path in paths} == {str(tmp_path / "names")}
    dataset = wids.ShardListDataset(f"{web.url}/index.json", localname=localname)
    assert [sample[".txt"] for sample in dataset] == EXPECTED
    keyword = "cachedir" if name.lower().startswith("cache") else "dldir"
    assert getattr(wids.wids, name)(**{keyword: str(tmp_path / "names")})(urls[0]) in paths
    assert wids.wids.DefaultLocalname()("gs://a/x.tar").startswith(str(tmp_path / "default-cache"))


def test_wids_wids_lru_shards(web, tmp_path):
    """A pool of its own for any URL: remote ones through the default cache, local ones in place."""
    pool = wids.wids.LRUShards(2, keep=True)
    assert pool.get_shard(f"{web.url}/s1.tar")[0][".txt"].read() == b"text 3"
    local = str(tmp_path / "data" / "s0.tar")
    assert pool.get_shard(local).path == local
    assert (pool.accesses, pool.misses, len(pool)) == (2, 2, 2)
    pool.clear()
    assert len(pool) == 0
    own = wids.wids.LRUShards(2, localname=wids.wids.DefaultLocalname(tmp_path / "own"))
    assert own.get_shard(f"{web.url}/s1.tar").path.startswith(str(tmp_path / "own"))


# --- wids.wids_mmtar, wids.wids_lru, wids.wids_decode


def test_wids_mmtar(tmp_path):
    """All accessors of MMIndexedTar, by path, path-like and stream."""
    path = write_tar(tmp_path / "m.tar", {"a.txt": b"one", "b.txt": b"", "c.txt": b"three"})
    for given in (path, Path(path), open(path, "rb")):  # noqa: SIM115 - it owns the stream
        tar = wids.wids_mmtar.MMIndexedTar(given)
        assert list(tar.names()) == ["a.txt", "b.txt", "c.txt"]
        name, stream = tar.get_file(2)
        assert (name, stream.read()) == ("c.txt", b"three")
        assert tar.get_at_index(0) == tar[0] == tar["a.txt"] == tar.get_by_name("a.txt") == ("a.txt", b"one")
        assert [(name, size) for name, _, size in tar.by_index] == [("a.txt", 3), ("b.txt", 0), ("c.txt", 5)]
        assert tar.get_at_offset(tar.by_index[2][1]) == ("c.txt", b"three")
        assert list(tar) == [("a.txt", b"one"), ("b.txt", b""), ("c.txt", b"three")]
        assert len(tar) == 3
        tar.close()
        tar.close()
        assert tar.stream.closed


def test_wids_mmtar_refuses_what_is_no_tar_and_sees_a_cut(tmp_path):
    """The stream is closed again; a member cut off while open is an error, never short data."""
    junk = tmp_path / "junk.tar"
    junk.write_bytes(b"x" * 2000)
    with pytest.raises(wids.errors.TarError):
        wids.wids_mmtar.MMIndexedTar(junk)
    path = write_tar(tmp_path / "m.tar", {"a.txt": b"x" * 600})
    tar = wids.wids_mmtar.MMIndexedTar(path)
    os.truncate(path, 700)
    with pytest.raises(TruncatedShardError, match="member 0 at byte 512 was cut off"):
        tar[0]
    tar.close(dispose=True)
    assert not os.path.exists(path)
    path = write_tar(tmp_path / "n.tar", {"a.txt": b"x"})
    tar = wids.wids_mmtar.MMIndexedTar(path)
    os.unlink(path)
    tar.close(dispose=True)


def test_wids_mmtar_keep_while_reading(tmp_path):
    """As cleanup_callback: the last reader to close deletes the file, none before it."""
    keep = wids.wids_mmtar.keep_while_reading
    path = write_tar(tmp_path / "m.tar", {"a.txt": b"x"})
    one, two = (wids.wids_mmtar.MMIndexedTar(path, cleanup_callback=keep) for _ in range(2))
    one.close()
    assert os.path.exists(path)
    assert two[0] == ("a.txt", b"x")
    two.close()
    assert not os.path.exists(path)
    keep(None, 3, "start")
    keep(path, -1, "end")
    with pytest.raises(ValueError, match="'middle'"):
        keep(path, 3, "middle")
    with pytest.raises(ValueError, match="only 0"):
        keep(path, 3, "start", delay=1.0)


def test_wids_lru():
    """LRUCache(capacity, release_handler): None for what is not there, the oldest out first, each released once."""
    released = Counter()
    lru = wids.wids_lru.LRUCache(2, release_handler=lambda key, value: released.update([(key, value)]))
    lru["a"], lru["b"] = 1, 2
    assert lru["a"] == 1
    lru["c"] = 3
    assert list(lru.keys()) == ["a", "c"]
    assert list(lru.values()) == [1, 3]
    assert dict(lru.items()) == {"a": 1, "c": 3}
    assert lru["b"] is None
    assert "a" in lru
    assert len(lru) == 2
    del lru["a"]
    lru.clear()
    assert released == {("b", 2): 1, ("a", 1): 1, ("c", 3): 1}


def test_wids_decode():
    """default_decoder(sample, format=...), which drops .gz from names of inflated fields when asked to."""
    sample = {"__key__": "k", ".cls": io.BytesIO(b"3"), ".txt.gz": io.BytesIO(gzip.compress(b"t")), ".gz": b"g"}
    decode = wids.wids_decode.default_decoder
    assert decode(sample, format="PIL") == {"__key__": "k", ".cls": 3, ".txt.gz": "t", ".gz": b"g"}
    assert decode(sample, "numpy", gz_update_key=True) == {"__key__": "k", ".cls": 3, ".txt": "t", ".gz": b"g"}
    assert functools.partial(decode, format="PIL")({".txt": b"x"}) == {".txt": "x"}


# --- wids.wids_specs, wids.wids_dl


def test_wids_specs(index, web, tmp_path):
    """load_remote_dsdesc_raw gives the JSON as written, load_dsdesc_and_resolve the shards with their URLs."""
    text = Path(index).read_text()
    for source in (index, Path(index), f"{web.url}/index.json", io.StringIO(text), io.BytesIO(text.encode())):
        raw = wids.wids_specs.load_remote_dsdesc_raw(source)
        assert [shard["url"] for shard in raw["shardlist"]] == ["s0.tar", "s1.tar", "s2.tar"]
    found = wids.wids_specs.load_dsdesc_and_resolve(f"{web.url}/index.json", options={"name": "n"})
    assert (found["name"], found["shardlist"][1]["url"]) == ("n", f"{web.url}/s1.tar")
    with open(index, "rb") as stream:
        found = wids.wids_specs.load_dsdesc_and_resolve(stream, base="gs://b/d")
    assert found["shardlist"][2]["url"] == "gs://b/d/s2.tar"
    assert wids.wids_specs.urldir("gs://b/d/index.json") == "gs://b/d"
    for text in ("[1]", "{"):
        bad = tmp_path / "bad.json"
        bad.write_text(text)
        with pytest.raises(SpecError, match=r"bad\.json"):
            wids.wids_specs.load_remote_dsdesc_raw(bad)


def test_wids_dl(web, tmp_path, caplog):
    """download_file and download_and_open, into a directory that need not exist; recent_downloads remembers."""
    local = tmp_path / "there" / "s.tar"
    url = f"{web.url}/s0.tar"
    assert wids.wids_dl.download_file(url, str(local)) == str(local)
    remote, path, when, seconds = wids.wids_dl.recent_downloads[-1]
    assert (remote, path) == (url, str(local))
    assert when > seconds >= 0
    source = str(tmp_path / "data" / "s0.tar")
    assert local.read_bytes() == Path(source).read_bytes()
    assert wids.wids_dl.download_file(source, source) == source
    other = tmp_path / "else" / "s.tar"
    for _ in range(2):
        with wids.wids_dl.download_and_open(source, other, verbose=True) as stream:
            assert stream.read() == local.read_bytes()
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    with pytest.raises(NotAllowedError):
        wids.wids_dl.download_file("pipe:true", tmp_path / "p")
    assert wids.wids_dl.download_file("pipe:true", tmp_path / "p", allow_pipe=True) == str(tmp_path / "p")


# --- wids.wids_cleanup: what it does is in test_cleanup.py


def test_wids_cleanup_calls(tmp_path):
    """Both functions with the original's keywords."""
    for name in ("a.tar", "b.tar", "c.tar"):
        put_shard(tmp_path, name)
    pattern = str(tmp_path / "*.tar")
    assert len(wids.wids_cleanup.keep_most_recent_files(pattern, maxsize=int(1e9), maxfiles=2, debug=True)) == 1
    assert len(wids.wids_cleanup.keep_most_recent_files(pattern, maxsize=int(1e9), maxfiles=2)) == 1
    process = wids.wids_cleanup.create_cleanup_background_process(pattern, maxsize=int(1e9), maxfiles=2, every=60)
    process.terminate()
    process.join(30)
    assert not process.is_alive()

"""The original's submodules: every name that programs build on, and where they refuse."""

import argparse
import functools
import gzip
import importlib
import io
import os
import pickle
import random
import subprocess
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

import wids
import wids.wids
import wids.wids_cleanup
import wids.wids_decode
import wids.wids_dir
import wids.wids_dl
import wids.wids_index
import wids.wids_lru
import wids.wids_mmtar
import wids.wids_specs
import wids.wids_tar
from tests.support import tools
from tests.support.cache_dirs import put_shard
from tests.support.clocks import PATIENCE_SECONDS
from tests.support.shards import write_shard, write_tar
from wids.errors import (
    CountMismatchError,
    DecodeError,
    DigestMismatchError,
    FetchError,
    NotAllowedError,
    SpecError,
    TruncatedShardError,
    UnsafeFormatError,
)
from wids.jobs.index_create import create_index

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
    odd = {
        ".": ("", "."),
        "./": ("", "./"),
        ".hidden": ("", ".hidden"),
        "x/.hidden": ("x/", ".hidden"),
        "a.b/c": ("a", ".b/c"),
        "x/a.b/c/d": ("x/a", ".b/c/d"),
        "./README": ("", "./README"),
        "./a.jpg": ("./a", ".jpg"),
        "line\nbreak.txt": ("line\nbreak", ".txt"),
    }
    assert {name: wids.wids.splitname(name) for name in odd} == odd
    with pytest.raises(ValueError, match="'README' has no extension"):
        wids.wids.splitname("README")
    names = ["a.jpg", "a.cls", "README", "b.jpg", "a.json"]
    assert wids.wids.group_by_key(names) == [[0, 1], [3], [4]]
    assert wids.wids.group_by_key([".", "./a.jpg", "./.hidden", "./a.cls", "a.b/c", "b.x"]) == [[1, 3], [5]]
    assert wids.wids.group_by_key([]) == []


def test_archives_of_a_directory_as_tar_packs_it(tmp_path):
    """``tar -C DIR .``, a ``./`` entry, members ``./a.jpg``; counted, read and indexed alike, by programs too."""
    (tmp_path / "data").mkdir()
    for name in ("a.cls", "a.txt", "b.cls", "b.txt", ".hidden", "README"):
        (tmp_path / "data" / name).write_text("1")
    shard = str(tmp_path / "s.tar")
    subprocess.run([tools.program("tar"), "-C", tmp_path / "data", "--sort=name", "-cf", shard, "."], check=True)
    with tarfile.open(shard) as archive:
        names = archive.getnames()
    assert names[0] == "."
    assert [wids.wids.splitname(name)[0] for name in names if "." in name] == ["", "./", "", *["./a"] * 2, *["./b"] * 2]
    assert [[names[i] for i in group] for group in wids.wids.group_by_key(names)] == [
        ["./a.cls", "./a.txt"],
        ["./b.cls", "./b.txt"],
    ]
    assert wids.wids.compute_num_samples(shard) == 2
    samples = wids.wids.IndexedTarSamples(path=shard, expected_size=2)
    assert [sample["__key__"] for sample in samples] == ["./a", "./b"]
    samples.close()
    tar = wids.wids_mmtar.MMIndexedTar(shard)
    groups = wids.wids.group_by_key(tar.names())
    assert [[wids.wids.splitname(tar.get_file(i)[0]) for i in group] for group in groups] == [
        [("./a", ".cls"), ("./a", ".txt")],
        [("./b", ".cls"), ("./b", ".txt")],
    ]
    tar.close()
    for make_index in (
        lambda index: create_index([shard], index),
        lambda index: wids.wids_index.main(["create", shard, "-o", index]),
    ):
        index = str(tmp_path / "s.json")
        make_index(index)
        dataset = wids.ShardListDataset(index)
        assert [(sample["__key__"], sample[".cls"], sample[".txt"]) for sample in dataset] == [
            ("./a", 1, "1"),
            ("./b", 1, "1"),
        ]
        os.unlink(index)


def test_wids_wids_ranges():
    """iterate_ranges and lengths_to_ranges, shuffled by the generator given or not at all."""
    ranges = wids.wids.lengths_to_ranges([2, 0, 3])
    assert ranges == [(0, 2), (2, 2), (2, 5)]
    plain = wids.wids.iterate_ranges(ranges, random.Random(0), indexshuffle=False, shardshuffle=False)
    assert list(plain) == [0, 1, 2, 3, 4]
    shuffled = [list(wids.wids.iterate_ranges(ranges, random.Random(seed))) for seed in (1, 1, 2)]
    assert shuffled[0] == shuffled[1]
    assert sorted(shuffled[2]) == [0, 1, 2, 3, 4]
    assert wids.wids.intersect_range((0, 5), (3, 9)) == (3, 5)
    assert wids.wids.intersect_range((0, 3), (3, 9)) is None
    assert wids.wids.intersect_ranges([(0, 2), (2, 6), (8, 9)], (1, 4)) == [(1, 2), (2, 4)]


def test_wids_wids_transformations_and_names():
    """interpret_transformations gives functions, as transformations= takes them; hash_dataset_name 16 letters."""
    interpret = wids.wids.interpret_transformations
    assert interpret(None) == interpret([]) == []
    [decode, plain] = interpret(["PIL", len])
    assert decode({".cls": b"3"}) == {".cls": 3}
    assert plain is len
    assert interpret("numpy")[0]({".txt": b"x"}) == {".txt": "x"}
    for wrong in (3, [3], ["no format"]):
        with pytest.raises((TypeError, ValueError)):
            interpret(wrong)
    assert wids.wids.hash_dataset_name("train.json") == "Yhgt8en7etMCAWcj"


def test_modules_have_what_they_imported():
    """Names of a module's neighbours that programs take from it are the neighbours' own."""
    for module, names in {
        wids.wids_decode: ["default_decoder"],
        wids.wids_dl: ["download_and_open"],
        wids.wids_lru: ["LRUCache"],
        wids.wids_mmtar: ["MMIndexedTar"],
        wids.wids_specs: ["load_dsdesc_and_resolve", "urldir"],
        wids.wids_tar: ["TarFileReader", "find_index_file"],
    }.items():
        for name in names:
            assert getattr(wids.wids, name) is getattr(module, name)
    assert wids.wids_index.load_remote_dsdesc_raw is wids.wids_specs.load_remote_dsdesc_raw
    assert wids.wids_index.urldir is wids.wids_specs.urldir
    assert wids.wids_specs.download_and_open is wids.wids_dl.download_and_open


@pytest.mark.parametrize(
    ("module", "name", "instead"),
    [
        ("wids", "open_itfs", "dataset.cache.lru"),
        ("wids_mmtar", "TarHeader", "by_index"),
        ("wids_mmtar", "parse_tar_header", "by_index"),
        ("wids_mmtar", "next_header", "by_index"),
        ("wids_dl", "pipe_download", "allow_pipe=True"),
        ("wids_dl", "default_cmds", "storage_options"),
        ("wids_index", "maybe_decode", "'raw'"),
        ("wids_dir", "DirectoryDataset", r"ShardListDataset\(sorted"),
    ],
)
def test_what_is_left_out_says_what_to_use(module, name, instead):
    """By ``from ... import`` and as an attribute; a name that never was fails as in any module."""
    with pytest.raises(ImportError, match=f"wids.{module}.{name} is not part of wids any more: .*{instead}"):
        exec(f"from wids.{module} import {name}")
    with pytest.raises(ImportError, match=instead):
        getattr(importlib.import_module(f"wids.{module}"), name)
    assert not hasattr(importlib.import_module(f"wids.{module}"), "no_such_name")
    with pytest.raises(ImportError, match="cannot import name 'no_such_name'"):
        exec(f"from wids.{module} import no_such_name")


def test_a_module_that_is_left_out_says_what_to_use():
    """wids_bench was a script."""
    with pytest.raises(ImportError, match=r"wids\.wids_bench is not part of wids any more: .*ShardListDataset"):
        importlib.import_module("wids.wids_bench")
    assert not hasattr(wids, "wids_bench")


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
        names = tar.names()
        assert list(names) == ["a.txt", "b.txt", "c.txt"]
        assert names & {"c.txt", "d.txt"} == {"c.txt"}
        assert names - {"a.txt"} == {"b.txt", "c.txt"}
        assert names == dict.fromkeys(["c.txt", "b.txt", "a.txt"]).keys()
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


def test_wids_mmtar_takes_the_original_s_parameters(tmp_path):
    """index_file and verbose, by position too; neither does anything, as there."""
    path = write_tar(tmp_path / "m.tar", {"a.txt": b"one"})
    called = []
    tar = wids.wids_mmtar.MMIndexedTar(path, None, False, lambda *facts: called.append(facts[2]))
    tar.close()
    assert called == ["start", "end"]
    tar = wids.wids_mmtar.MMIndexedTar(path, index_file="x.index", verbose=True)
    assert "a.txt" in tar.names()
    tar.close()
    assert os.listdir(tmp_path) == ["m.tar"]


def test_wids_tar(tmp_path, capsys):
    """TarFileReader by path and stream: fnames, index (data offset, size), get_file; no index is pickled beside it."""
    path = write_tar(tmp_path / "m.tar", {"a.txt": b"one", "b.txt": b"four"})
    for given in (path, open(path, "rb")):  # noqa: SIM115 - it owns the stream
        reader = wids.wids_tar.TarFileReader(given, index_file=wids.wids_tar.find_index_file)
        assert reader.names() == reader.fnames == ["a.txt", "b.txt"]
        assert reader.index.tolist() == [[512, 3], [1536, 4]]
        name, stream = reader.get_file(1)
        assert (name, stream.read(), len(reader)) == ("b.txt", b"four", 2)
        reader.close()
    samples = wids.wids.IndexedTarSamples(path=path, use_mmap=False, index_file=wids.wids_tar.find_index_file)
    assert len(samples) == 2
    samples.close()
    assert wids.wids_tar.find_index_file(path) == f"{path}.index"
    assert os.listdir(tmp_path) == ["m.tar"]
    assert capsys.readouterr().out == ""


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


def sample_of_all(**fields):
    """A sample as a dataset has it, with image and text, one of them zipped."""
    image = io.BytesIO()
    PIL.Image.new("RGB", (4, 3), (9, 8, 7)).save(image, "PNG")
    return {
        "__key__": "k",
        "__shard__": "s.tar.gz",
        ".png": image,
        ".cls": io.BytesIO(b"3"),
        ".txt.gz": io.BytesIO(gzip.compress(b"text")),
        ".json": b'{"a": 1}',
        ".bin": b"b",
        **fields,
    }


def test_wids_decode_basic(tmp_path):
    """In place and returned: all but images, of the original's extensions; what is decoded stays as it is."""
    sample = sample_of_all(**{".jsonl": b"{}", ".NPY": npy(np.arange(3))})
    image = sample[".png"]
    for _ in range(2):
        assert wids.wids_decode.decode_basic(sample) is sample
        array = sample[".NPY"]
        assert array.tolist() == [0, 1, 2]
        assert {**sample, ".NPY": None} == {
            "__key__": "k",
            "__shard__": "s.tar.gz",
            ".png": image,
            ".cls": 3,
            ".txt.gz": "text",
            ".json": {"a": 1},
            ".bin": b"b",
            ".jsonl": b"{}",
            ".NPY": None,
        }
    path = write_shard(tmp_path / "s.tar", 2)
    dataset = wids.ShardListDataset([(path, 2)], transformations=[wids.wids_decode.decode_basic])
    assert dataset[1][".txt"] == "text 1"


def test_wids_decode_images():
    """decode_images_to_pil and _to_numpy change images alone."""
    for decode, kind in (
        (wids.wids_decode.decode_images_to_pil, PIL.Image.Image),
        (wids.wids_decode.decode_images_to_numpy, np.ndarray),
    ):
        sample = sample_of_all()
        others = {name: value for name, value in sample.items() if name != ".png"}
        assert decode(sample) is sample
        assert isinstance(sample[".png"], kind)
        assert np.asarray(sample.pop(".png")).tolist() == [[[9, 8, 7]] * 4] * 3
        assert sample == others


@pytest.mark.filterwarnings("ignore:a field with the plain name .gz")
def test_wids_decode_all_gz():
    """Inflated under the inner name, or the old one; decode_basic decodes either."""
    sample = wids.wids_decode.decode_all_gz(sample_of_all(**{".gz": b"g"}))
    assert sample[".txt"].read() == b"text"
    assert ".txt.gz" not in sample
    assert (sample[".gz"], sample["__shard__"]) == (b"g", "s.tar.gz")
    assert wids.wids_decode.decode_basic(sample)[".txt"] == "text"
    sample = wids.wids_decode.decode_all_gz(sample_of_all(), update_key=False)
    assert sample[".txt.gz"].getvalue() == b"text"
    assert wids.wids_decode.decode_basic(sample)[".txt.gz"] == "text"


def test_wids_decode_steps_refuse():
    """A field without its dot, a damaged member and a pickle: each names sample and field."""
    steps = wids.wids_decode
    assert steps.check_keys({"__key__": "k", ".a": 1}) == {"__key__": "k", ".a": 1}
    for step in (steps.check_keys, steps.decode_basic, steps.decode_images_to_pil, steps.decode_all_gz):
        with pytest.raises(DecodeError, match=r"sample 'k' has a field 'jpg'; .* '\.jpg'"):
            step({"__key__": "k", "jpg": b""})
    for step, name in (
        (steps.decode_basic, ".cls"),
        (steps.decode_images_to_numpy, ".jpg"),
        (steps.decode_all_gz, ".x.gz"),
    ):
        with pytest.raises(DecodeError, match=f"{name} of sample 'k'") as caught:
            step({"__key__": "k", name: b"junk"})
        assert caught.value.field == name
    pickled = {".pkl": pickle.dumps([1])}
    with pytest.raises(UnsafeFormatError, match="allow_pickle=True"):
        steps.decode_basic(dict(pickled))
    assert steps.decode_basic(dict(pickled), allow_pickle=True) == {".pkl": [1]}


def npy(array):
    """The bytes of a .npy file."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


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


def test_wids_specs_in_memory(index, tmp_path):
    """resolve_dsdesc of an index that is loaded; rebase_shardlist, set_all, check_shards on its list."""
    specs = wids.wids_specs
    raw = specs.load_remote_dsdesc_raw(index)
    found = specs.resolve_dsdesc(raw, base="gs://b/d", options={"name": "n"})
    assert (found["name"], found["shardlist"][2]["url"]) == ("n", "gs://b/d/s2.tar")
    assert raw == specs.load_remote_dsdesc_raw(index)
    (tmp_path / "top.json").write_text("{}")
    nested = {"wids_version": 1, "datasets": [{"source_url": index, "weight": 2.0}, {"shardlist": raw["shardlist"]}]}
    found = specs.resolve_dsdesc(nested)
    assert [shard["url"] for shard in found["shardlist"][2:4]] == [str(Path(index).parent / "s2.tar"), "s0.tar"]
    assert found["shardlist"][0]["weight"] == 2.0
    with pytest.raises(SpecError, match="wids_version"):
        specs.resolve_dsdesc({"shardlist": raw["shardlist"]})
    shards = raw["shardlist"]
    assert specs.check_shards(shards) is shards
    assert specs.rebase_shardlist(shards, None) is specs.rebase_shardlist(shards, "http://h/d") is shards
    assert shards[0]["url"] == "http://h/d/s0.tar"
    shards[0]["weight"] = 3
    specs.set_all(shards, "weight", 1)
    specs.set_all(shards, "name", None)
    assert [shard["weight"] for shard in shards] == [3, 1, 1]
    assert "name" not in shards[0]
    for wrong, place in (({"url": "x"}, "a dict"), ([{"url": "x"}], "shards\\[0\\].nsamples")):
        with pytest.raises(SpecError, match=place):
            specs.check_shards(wrong)


def test_wids_index_in_programs(index, tmp_path, capsys):
    """main_create and main_update with a namespace of the program's own; AtomicJsonUpdate; format_with_suffix."""
    tools = wids.wids_index
    output = str(tmp_path / "made.json")
    facts = {"name": "n", "info": None, "base": None}
    tools.main_create(argparse.Namespace(files=[str(Path(index).parent / "s1.tar")], output=output, **facts))
    tools.main_info(argparse.Namespace(filenames=[output], table=True))
    assert capsys.readouterr().out.splitlines()[-1].split("\t")[:2] == [output, "n"]
    before = Path(output).read_text()
    with pytest.raises(KeyError), tools.AtomicJsonUpdate(output) as data:
        data["name"] = data["no such key"]
    assert Path(output).read_text() == before
    with tools.AtomicJsonUpdate(output) as data:
        data["name"] = "new"
    assert wids.wids_specs.load_remote_dsdesc_raw(output)["name"] == "new"
    assert Path(output + ".bak").read_text() == before
    assert [tools.format_with_suffix(number) for number in (999, 1500, 2_000_000)] == ["999.0", "1.5k", "2.0M"]


def test_wids_dl_local_files_and_locks(tmp_path):
    """copy_file copies local files alone; ULockFile is held within its block, and its file stays."""
    (tmp_path / "a").write_bytes(b"x")
    wids.wids_dl.copy_file(f"file://{tmp_path}/a", str(tmp_path / "b"))
    wids.wids_dl.copy_file(str(tmp_path / "a"), str(tmp_path / "a"))
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes() == b"x"
    with pytest.raises(FetchError, match="not a local file; use download_file"):
        wids.wids_dl.copy_file("http://h/a", str(tmp_path / "c"))
    lock = str(tmp_path / "x.lock")
    with wids.wids_dl.ULockFile(lock) as held:
        assert held.lockfile_path == lock
        assert not wids.wids_cleanup.ExclusiveLock(lock).try_lock()
    exclusive = wids.wids_cleanup.ExclusiveLock(lock)
    assert exclusive.try_lock()
    assert not wids.wids_cleanup.ExclusiveLock(lock).try_lock()
    exclusive.release_lock()
    assert wids.wids_cleanup.ExclusiveLock(lock).try_lock()
    assert os.path.exists(lock)


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
    assert len(wids.wids_cleanup.keep_most_recent_files(pattern, maxsize=int(1e9), maxfiles=1)) == 1
    process = wids.wids_cleanup.create_cleanup_background_process(pattern, maxsize=int(1e9), maxfiles=2, every=60)
    process.terminate()
    process.join(PATIENCE_SECONDS)
    assert not process.is_alive()

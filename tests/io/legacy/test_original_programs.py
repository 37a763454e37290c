"""Every call that programs written for wids 0.1 were found to make."""

import functools
import io
import json
import logging
import os
import pickle
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Subset

import wids
import wids.wids
import wids.wids_specs
from tests.support.clocks import PATIENCE_SECONDS
from tests.support.launch import PROGRAMS, environment, run_all
from tests.support.shards import serve, write_json, write_shard, write_shards, write_tar
from wids.errors import (
    CountMismatchError,
    NotAllowedError,
    UnsafeFormatError,
)
from wids.events import fallback, format_size

COUNTS = (3, 4, 2)
TOTAL = sum(COUNTS)


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def ds(index):
    """The dataset of that index, undecoded."""
    return wids.ShardListDataset(index, transformations=[])


def texts(dataset):
    """What each sample says of itself, decoded or not."""
    return [value if isinstance(value := s[".txt"], str) else value.getvalue().decode() for s in dataset]


EXPECTED = [f"text {g}" for g in range(TOTAL)]


# --- wids.ShardListDataset("index.json" | "gs://...json" | "https://...json" | path-like)


def test_dataset_from_an_index_path(index):
    """A str and a path-like give the same dataset."""
    for given in (index, Path(index)):
        dataset = wids.ShardListDataset(given)
        assert len(dataset) == TOTAL
        assert texts(dataset) == EXPECTED


def test_dataset_from_a_home_path(index, monkeypatch):
    """``~`` in the index's path expands."""
    monkeypatch.setenv("HOME", str(Path(index).parent))
    assert texts(wids.ShardListDataset("~/index.json")) == EXPECTED


def test_dataset_from_an_http_index(web):
    """An index behind a server: its relative URLs are the server's, and the samples come from there."""
    dataset = wids.ShardListDataset(f"{web.url}/index.json")
    assert [shard["url"] for shard in dataset.shards] == [f"{web.url}/s{k}.tar" for k in range(3)]
    assert dataset.base == web.url
    assert texts(dataset) == EXPECTED


def test_dataset_from_a_bucket_index(index):
    """An index in a bucket (here in fsspec's memory) brings its shards from the same bucket."""
    memory = fsspec.filesystem("memory")
    for path in Path(index).parent.iterdir():
        memory.pipe_file(f"/bucket/data/{path.name}", path.read_bytes())
    dataset = wids.ShardListDataset("memory://bucket/data/index.json")
    assert dataset.shards[0]["url"] == "memory://bucket/data/s0.tar"
    assert texts(dataset) == EXPECTED


def test_gs_urls_are_joined_as_they_stand():
    """URLs of an index in a bucket, relative, upwards and absolute, without any access to it."""
    raw = {"wids_version": 1, "shardlist": [{"url": u, "nsamples": 1} for u in ("a.tar", "../b.tar", "gs://x/c.tar")]}
    dataset = wids.ShardListDataset(io.StringIO(json.dumps(raw)), base="gs://bucket/sets/one")
    assert [s["url"] for s in dataset.shards] == [
        "gs://bucket/sets/one/a.tar",
        "gs://bucket/sets/b.tar",
        "gs://x/c.tar",
    ]
    assert wids.wids_specs.urlmerge("gs://bucket/sets", "a.tar") == "gs://bucket/sets/a.tar"


# --- lists of dicts and of pairs


def test_dataset_from_dicts_with_extra_keys(tmp_path):
    """Dicts with any further keys; they come back in ds.shards and in get_shard's desc."""
    shards = [{**shard, "vila_meta": "m", "weight": 2} for shard in write_shards(tmp_path, COUNTS)]
    dataset = wids.ShardListDataset(shards, transformations=[])
    assert dataset.shards == shards
    assert dataset.get_shard(0)[2]["vila_meta"] == "m"
    assert texts(dataset) == EXPECTED


def test_dataset_from_pairs(tmp_path):
    """(url, nsamples) pairs, as the original's documentation has it; path-likes and numpy counts too."""
    shards = write_shards(tmp_path, COUNTS)
    pairs = [(s["url"], s["nsamples"]) for s in shards]
    assert texts(wids.ShardListDataset(pairs)) == EXPECTED
    others = [(Path(url), np.int64(count)) for url, count in pairs]
    dataset = wids.ShardListDataset(others)
    assert texts(dataset) == EXPECTED
    assert [type(n) for n in dataset.lengths] == [int] * 3


# --- cache_dir, keep, localname


@pytest.mark.parametrize("kind", [str, Path])
def test_cache_dir_with_keep(web, tmp_path, kind):
    """Shards of a remote index are kept in cache_dir, given as a str or a Path."""
    cache = tmp_path / "_cache"
    dataset = wids.ShardListDataset(f"{web.url}/index.json", cache_dir=kind(cache), keep=True)
    assert texts(dataset) == EXPECTED
    assert len(list(cache.glob("*.tar"))) == 3
    assert dataset.cache_dir == str(cache)
    assert isinstance(dataset.cache_dir, str)


def test_cache_dir_expands_home(web, tmp_path, monkeypatch):
    """``~`` in cache_dir is the home directory, and not a directory of that name."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    dataset = wids.ShardListDataset(f"{web.url}/index.json", cache_dir="~/cache")
    assert texts(dataset) == EXPECTED
    assert dataset.cache_dir == str(tmp_path / "home" / "cache")
    assert not (tmp_path / "~").exists()


def test_cache_dir_none_is_the_default_place(web, tmp_path):
    """``cache_dir=None`` means $WIDS_CACHE; it appears with the first download, not before."""
    dataset = wids.ShardListDataset(f"{web.url}/index.json", cache_dir=None)
    assert dataset.cache_dir == str(tmp_path / "default-cache")
    assert not (tmp_path / "default-cache").exists()
    _ = dataset[0]
    assert len(list((tmp_path / "default-cache").glob("*.tar"))) == 1


def test_wids_cache_decides_where_shards_go(web, tmp_path, monkeypatch):
    """$WIDS_CACHE is read when a dataset is made; ``~`` in it expands; an empty one counts as none."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WIDS_CACHE", "~/shards")
    assert wids.ShardListDataset(f"{web.url}/index.json")[0]["__key__"] == "s0-000"
    assert len(list((tmp_path / "home" / "shards").glob("*.tar"))) == 1
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    for unset in (True, False):
        monkeypatch.delenv("WIDS_CACHE") if unset else monkeypatch.setenv("WIDS_CACHE", "")
        found = wids.ShardListDataset(f"{web.url}/index.json").cache_dir
        assert os.path.dirname(found) == str(tmp_path / "tmp")
        assert str(os.getuid()) in os.path.basename(found)


def test_cache_dir_is_relative_to_the_working_directory(web, tmp_path, monkeypatch):
    """``cache_dir="./_cache"`` is a directory here."""
    monkeypatch.chdir(tmp_path)
    dataset = wids.ShardListDataset(f"{web.url}/index.json", cache_dir="./_cache")
    assert dataset[0]["__key__"] == "s0-000"
    assert len(list((tmp_path / "_cache").glob("*.tar"))) == 1


class InDirectory:
    """A localname as a class instance."""

    def __init__(self, directory):
        self.directory = directory

    def __call__(self, url):
        """The URL's last part in the directory."""
        return os.path.join(self.directory, url.rpartition("/")[2])


def in_directory(directory, url):
    """The same as a function of two arguments."""
    return os.path.join(directory, os.path.basename(url))


def test_localname_that_reads_in_place(index, tmp_path):
    """``localname=lambda url: url``: the shards themselves are read, nothing is written anywhere."""
    before = sorted(os.listdir(tmp_path / "data"))
    dataset = wids.ShardListDataset(index, localname=lambda url: url)
    assert texts(dataset) == EXPECTED
    assert dataset.cache_dir is None
    assert dataset.get_shard(0)[0].path == str(tmp_path / "data" / "s0.tar")
    assert sorted(os.listdir(tmp_path / "data")) == before
    assert not (tmp_path / "default-cache").exists()


@pytest.mark.parametrize("form", ["partial", "instance", "lambda", "pathlib"])
def test_localname_in_any_form(web, tmp_path, form):
    """functools.partial, an instance with __call__, a lambda, and one that gives a Path: each decides the place."""
    place = tmp_path / "mine"
    localname = {
        "partial": functools.partial(in_directory, str(place)),
        "instance": InDirectory(str(place)),
        "lambda": lambda url: f"{place}/{url.rpartition('/')[2]}",
        "pathlib": lambda url: place / url.rpartition("/")[2],
    }[form]
    dataset = wids.ShardListDataset(f"{web.url}/index.json", localname=localname)
    assert texts(dataset) == EXPECTED
    assert sorted(path.name for path in place.glob("*.tar")) == ["s0.tar", "s1.tar", "s2.tar"]
    assert dataset.get_shard(5)[0].path == str(place / "s1.tar")


# --- transformations


def plus(sample):
    """A transformation that leaves a mark."""
    return {**sample, "plus": True}


def times(sample):
    """A transformation that looks for the mark."""
    return {**sample, "times": sample.get("plus", False)}


@pytest.mark.parametrize(("given", "count"), [([], 0), ((), 0), (None, 0), (plus, 1), ([plus, times], 2), ("PIL", 1)])
def test_transformations_in_every_form(index, given, count):
    """Nothing, a function, a list of them, a format name; the property is a list."""
    dataset = wids.ShardListDataset(index, transformations=given)
    assert len(dataset.transformations) == count
    assert all(map(callable, dataset.transformations))
    sample = dataset[1]
    assert ("plus" in sample) == (given in (plus, [plus, times]))
    assert sample.get("times", None) == (True if count == 2 else None)
    assert isinstance(sample[".cls"], int if given == "PIL" else io.BytesIO)


@pytest.mark.parametrize("form", ["PIL", "numpy", "torch", "raw"])
def test_transformation_by_name(tmp_path, form):
    """The four format names, and that a list may hold them too."""
    buffer = io.BytesIO()
    Image.new("RGB", (5, 3)).save(buffer, "PNG")
    path = write_tar(tmp_path / "i.tar", {"a.png": buffer.getvalue()})
    for given in (form, [form], (form,)):
        value = wids.ShardListDataset([(path, 1)], transformations=given)[0][".png"]
        shape = {"PIL": (5, 3), "numpy": (3, 5, 3), "torch": (3, 3, 5)}.get(form)
        got = value.size if form == "PIL" else None if form == "raw" else tuple(value.shape)
        assert got == shape
        assert isinstance(value, {"PIL": Image.Image, "numpy": np.ndarray, "torch": torch.Tensor, "raw": bytes}[form])


def test_default_transformation_is_pil(index):
    """Without the argument, members are decoded."""
    sample = wids.ShardListDataset(index)[4]
    assert (sample[".cls"], sample[".txt"]) == (4, "text 4")
    assert isinstance(sample[".bin"], io.BytesIO)


def test_transformations_that_are_neither_are_refused(index):
    """A name nobody knows, and a value that cannot be called."""
    with pytest.raises(ValueError, match="PIL, numpy, torch, raw"):
        wids.ShardListDataset(index, transformations="pill")
    with pytest.raises(TypeError, match="42 is neither one of"):
        wids.ShardListDataset(index, transformations=[42])


def test_add_transform_is_fluent(ds):
    """add_transform returns the dataset and appends."""
    assert ds.add_transform(plus).add_transform(times) is ds
    assert ds[0]["times"] is True
    assert ds.transformations == [plus, times]


def test_transformations_are_assigned_and_put_back(index):
    """Programs take the decoder off for one look at the raw bytes, and put it back."""
    dataset = wids.ShardListDataset(index)
    saved = dataset.transformations
    dataset.transformations = []
    assert dataset[0][".txt"].read() == b"text 0"
    dataset.transformations = saved
    assert dataset[0][".txt"] == "text 0"
    dataset.transformations = "raw"
    assert dataset[0][".txt"] == b"text 0"
    dataset.transformations.append(plus)
    assert dataset[0]["plus"] is True


# --- lru_size, cache_size, dataset_name, base, options


def test_the_original_s_other_keywords(index, tmp_path):
    """lru_size, cache_size, dataset_name, base and options in one call."""
    dataset = wids.ShardListDataset(
        index,
        lru_size=10,
        cache_size=int(1e12),
        dataset_name="mine",
        base=str(tmp_path / "data"),
        options={"info": "i"},
    )
    assert texts(dataset) == EXPECTED
    assert dataset.cache.lru.capacity == 10
    assert dataset.dataset_name == "mine"
    assert dataset.base == str(tmp_path / "data")
    assert dataset.spec["info"] == "i"


@pytest.mark.parametrize("size", [0, 4, int(1e12)])
def test_cache_size_of_any_value_still_reads(web, tmp_path, size):
    """Old programs pass a number of shards: a bound below one shard lets in the one that is read."""
    dataset = wids.ShardListDataset(f"{web.url}/index.json", cache_dir=tmp_path / "c", cache_size=size)
    assert dataset[0]["__key__"] == "s0-000"


# --- attributes


def test_attributes_and_their_types(ds, index, tmp_path):
    """What programs read off a dataset; ints are plain ints, for JSON and for torch."""
    assert len(ds) == ds.total_length == TOTAL
    assert type(ds.total_length) is int
    assert type(len(ds)) is int
    assert ds.lengths == [3, 4, 2]
    assert list(ds.cum_lengths) == [3, 7, 9]
    assert int(np.searchsorted(ds.cum_lengths, 5, side="right")) == 1
    assert [shard["url"] for shard in ds.shards] == [str(tmp_path / "data" / f"s{k}.tar") for k in range(3)]
    assert json.loads(json.dumps(ds.shards)) == ds.shards
    assert ds.spec["shardlist"] == ds.shards
    assert ds.spec["wids_version"] == 1
    assert ds.base == str(tmp_path / "data")
    assert ds.cache_dir == str(tmp_path / "default-cache")
    assert isinstance(ds.dataset_name, str)
    assert len(ds.dataset_name) == 16
    assert ds.dataset_name == wids.ShardListDataset(index).dataset_name
    assert "9 samples in 3 shards" in repr(ds)


def test_the_pool_of_open_shards(ds):
    """ds.cache.get_shard(url), .lru.capacity (also set), .lru.keys()."""
    url = ds.shards[1]["url"]
    shard = ds.cache.get_shard(url)
    assert len(shard) == 4
    assert shard[0][".txt"].read() == b"text 3"
    assert ds.cache.get_shard(url) is shard
    assert list(ds.cache.lru.keys()) == [url]
    assert ds.cache.lru.capacity >= 16
    ds.cache.lru.capacity = 1
    _ = [ds[i] for i in range(TOTAL)]
    assert list(ds.cache.lru.keys()) == [ds.shards[2]["url"]]
    with pytest.raises(KeyError, match=r"nowhere\.tar is not a shard of this dataset"):
        ds.cache.get_shard("nowhere.tar")


def test_get_shard(ds):
    """(shard, row, desc) of a sample: desc["url"], shard.path, shard[row]; negative counts from the end."""
    shard, row, desc = ds.get_shard(5)
    assert row == 2
    assert desc["url"] == ds.shards[1]["url"] == shard.path
    assert shard[row][".txt"].read() == b"text 5"
    assert shard[row]["__key__"] == "s1-002"
    assert ds.get_shard(-1)[1] == 1
    with pytest.raises(IndexError, match="sample 4 of 4"):
        shard[4]


def test_get_stats_counts_accesses_and_misses(ds):
    """(accesses, misses): every sample asked for, every shard opened for it, also through get_shard."""
    assert ds.get_stats() == (0, 0)
    for i in (0, 1, 2, 3, 0):
        _ = ds[i]
    assert ds.get_stats() == (5, 2)
    ds.__getitems__([0, 8])
    assert ds.get_stats() == (7, 3)
    ds.get_shard(1)
    ds.cache.get_shard(ds.shards[0]["url"])
    assert ds.get_stats() == (9, 3)


def test_check_cache_misses_may_be_called_at_any_time(ds):
    """It returns nothing and says nothing about an order with locality."""
    assert ds.check_cache_misses() is None
    _ = texts(ds)
    assert ds.check_cache_misses() is None


def test_close_and_use_again(ds):
    """close() lets go of every shard; the next access opens what it needs."""
    assert texts(ds) == EXPECTED
    ds.close()
    assert len(ds.cache.lru) == 0
    assert texts(ds) == EXPECTED
    ds.close()
    ds.close()


# --- indices


def test_iteration_ends(ds):
    """``for s in ds`` ends after the last sample, and so does list(); past the end is an IndexError."""
    assert [s["__index__"] for s in ds] == list(range(TOTAL))
    for index in (TOTAL, TOTAL + 5, -TOTAL - 1):
        with pytest.raises(IndexError, match=f"sample {index} of a dataset of {TOTAL}; indices are 0 to {TOTAL - 1} "):
            ds[index]


def test_negative_indices(ds):
    """ds[-1] is the last sample, and says which one that is."""
    assert ds[-1][".txt"].read() == b"text 8"
    assert ds[-1]["__index__"] == 8
    assert ds[-TOTAL]["__key__"] == "s0-000"


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, torch.tensor, np.array])
def test_numpy_and_torch_integers_index(ds, kind):
    """Integers of numpy and torch count as integers; what the sample says is a plain int."""
    sample = ds[kind(5)]
    assert sample[".txt"].read() == b"text 5"
    assert type(sample["__index__"]) is int
    assert type(sample["__shardindex__"]) is int
    assert [s["__index__"] for s in ds.__getitems__([kind(8), kind(0)])] == [8, 0]


# --- subclasses and torch's own wrappers


class Counting(wids.ShardListDataset):
    """Overrides __getitem__, with an __init__ of its own."""

    def __init__(self, path, factor):
        super().__init__(path, transformations=[])
        self.factor = factor

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return int(sample[".cls"].read()) * self.factor


class Routed(wids.ShardListDataset):
    """Overrides get_shard, as the original wrote it."""

    def get_shard(self, index):
        """Find the shard by cum_lengths, and ask the pool for it."""
        number = np.searchsorted(self.cum_lengths, index, side="right")
        row = index if number == 0 else index - self.cum_lengths[number - 1]
        desc = {**self.shards[number], "dataset": "routed"}
        return self.cache.get_shard(desc["url"]), row, desc


def test_subclass_with_its_own_getitem(index):
    """It is a ShardListDataset; the override is used by indexing, iteration, slicing wrappers and batch fetch."""
    dataset = Counting(index, 10)
    assert isinstance(dataset, wids.ShardListDataset)
    assert isinstance(dataset, torch.utils.data.Dataset)
    expected = [10 * g for g in range(TOTAL)]
    assert list(dataset) == expected
    assert dataset.__getitems__([8, 1]) == [80, 10]
    assert list(DataLoader(dataset, batch_size=None)) == expected
    assert torch.cat(list(DataLoader(dataset, batch_size=4))).tolist() == expected
    assert torch.cat(list(DataLoader(Subset(dataset, [7, 2]), batch_size=2))).tolist() == [70, 20]


def test_subclass_with_its_own_get_shard(index):
    """What get_shard returns is what is read, one by one and by batches; the sample's facts follow it."""
    dataset = Routed(index, transformations=[])
    assert texts(dataset) == EXPECTED
    assert texts(dataset.__getitems__([8, 0, 8])) == ["text 8", "text 0", "text 8"]
    sample = dataset[-1]
    assert (sample["__dataset__"], sample["__index__"], sample["__shardindex__"]) == ("routed", 8, 1)
    assert type(sample["__shardindex__"]) is int
    assert dataset.get_stats() == (TOTAL + 4, 3)
    with pytest.raises(IndexError):
        dataset[TOTAL]
    with pytest.raises(IndexError, match="sample -10 of a dataset of 9"):
        dataset[-10]


def test_subclass_whose_get_shard_returns_the_original_s_readers(index):
    """A shard may be anything with shard[row]; with fields, only those are given on."""

    class Own(wids.ShardListDataset):
        def get_shard(self, index):
            _, row, desc = super().get_shard(index)
            return wids.wids.IndexedTarSamples(path=desc["url"]), row, desc

    assert texts(Own(index, transformations=[])) == EXPECTED
    sample = Own(index, fields=".cls")[4]
    assert {name for name in sample if name.startswith(".")} == {".cls"}
    assert (sample[".cls"], sample["__key__"], sample["__shard__"]) == (4, "s1-001", Own(index).shards[1]["url"])


def test_subclass_that_repeats_its_samples(index):
    """A subclass may claim another length and map indices in get_shard; iteration goes by len()."""

    class Twice(wids.ShardListDataset):
        def __len__(self):
            return 2 * self.total_length

        def get_shard(self, index):
            return super().get_shard(index % self.total_length)

    dataset = Twice(index)
    assert texts(dataset) == EXPECTED * 2
    assert dataset[-1]["__index__"] == 2 * TOTAL - 1


def run_program(name, *arguments, tmp_path):
    """What a program of the tests writes into the file that is its last argument."""
    path = tmp_path / "found.json"
    command = [sys.executable, str(PROGRAMS / name), *map(str, arguments), str(path)]
    run_all([command], env=environment(), output=tmp_path / "output.txt")
    return json.loads(path.read_text())


def test_a_program_whose_sampler_keeps_settings_before_super(index, tmp_path):
    """Ranks that it divides itself read their own halves; those of the base read what they read without a subclass."""
    found = run_program("with_own_settings.py", index, 2, tmp_path=tmp_path)
    local, ranked = found["LocalSampler"], found["RankSampler"]
    assert [[sorted(epoch) for epoch in rank] for rank in local] == [[[0, 1, 2, 3]] * 2, [[4, 5, 6, 7]] * 2]
    dataset = wids.ShardListDataset(index)
    for rank, epochs in enumerate(ranked):
        plain = wids.DistributedChunkedSampler(dataset, rank=rank, num_replicas=2, window=2, seed=3, drop_last=True)
        assert epochs == [list(plain) for _ in range(2)]


def test_a_program_with_attributes_by_names_that_are_new(index, tmp_path):
    """It finds in them what it has put there, and reads each sample in the order of the plain classes."""
    found = run_program("with_own_attributes.py", index, tmp_path=tmp_path)
    plain = wids.DistributedChunkedSampler(wids.ShardListDataset(index), rank=0, num_replicas=1, chunksize=2, seed=1)
    assert found["labels"] == list(plain)
    assert found["state"] == plain.state_dict()
    names = [".cls", ".txt"]
    assert found["own"] == [
        {".cls": 0, ".txt": 1},
        names,
        "captions of 2",
        dict.fromkeys(names, "text"),
        *(TOTAL, TOTAL, 0),
    ]


def test_subset_concat_and_plus(index, tmp_path):
    """Subset, ConcatDataset and ``ds1 + ds2`` index through."""
    one = wids.ShardListDataset(index)
    two = wids.ShardListDataset(write_shards(tmp_path / "more", (2,), prefix="t"))
    assert texts(Subset(one, [8, 0])) == ["text 8", "text 0"]
    for both in (ConcatDataset([one, two]), one + two):
        assert len(both) == TOTAL + 2
        assert both[TOTAL]["__key__"] == "t0-000"
        assert both[-1]["__key__"] == "t0-001"


# --- samples


def test_sample_keys(tmp_path):
    """Extensions with their leading dot, compound ones too, and the five dunder keys."""
    path = write_tar(tmp_path / "d.tar", {"a/x.jpg": b"j", "a/x.seg.png": b"p", "a/y.jpg": b"k"})
    raw = {"wids_version": 1, "datasets": [{"name": "part", "shardlist": [{"url": path, "nsamples": 2}]}]}
    dataset = wids.ShardListDataset(write_json(tmp_path / "i.json", raw), transformations=[])
    sample = dataset[0]
    assert sample[".jpg"].read() == b"j"
    assert sample[".seg.png"].getvalue() == b"p"
    assert sample["__key__"] == "a/x"
    assert sample["__index__"] == 0
    assert sample["__shard__"] == path
    assert sample["__shardindex__"] == 0
    assert sample["__dataset__"] == "part"
    assert set(dataset[1]) == {".jpg", "__key__", "__index__", "__shard__", "__shardindex__", "__dataset__"}


def test_shard_is_the_source_url_never_a_cache_path(web, tmp_path):
    """``sample["__shard__"].replace(".tar", "_x.json")`` finds what lies beside the shard at its source."""
    dataset = wids.ShardListDataset(f"{web.url}/index.json", cache_dir=tmp_path / "c")
    (tmp_path / "data" / "s1_x.json").write_text("{}")
    shard = dataset[3]["__shard__"]
    assert shard == f"{web.url}/s1.tar"
    with fsspec.open(shard.replace(".tar", "_x.json")) as file:
        assert file.read() == b"{}"
    assert dataset.get_shard(3)[0].path.startswith(str(tmp_path / "c"))


def test_undecoded_members_are_bytesio(ds):
    """.read() and .getvalue() both give the bytes; each access is a fresh stream."""
    member = ds[0][".txt"]
    assert type(member) is io.BytesIO
    assert member.read() == b"text 0"
    assert member.getvalue() == b"text 0"
    assert ds[0][".txt"].read() == b"text 0"


# --- samplers: their own tests are in test_samplers.py; here, that each call of the list is accepted


def test_the_most_copied_line(ds):
    """``DistributedChunkedSampler(ds, chunksize=1000, shuffle=True)`` in a DataLoader sees each sample once."""
    sampler = wids.DistributedChunkedSampler(ds, chunksize=1000, shuffle=True)
    loader = DataLoader(ds, batch_size=4, sampler=sampler, collate_fn=list)
    assert sorted(s["__index__"] for batch in loader for s in batch) == list(range(TOTAL))


def test_sampler_calls(ds):
    """All keywords of the list, on a dataset and on anything with len()."""
    distributed = wids.DistributedChunkedSampler(
        ds, num_replicas=2, rank=1, shuffle=True, seed=1, drop_last=False, num_samples=8, shufflefirst=True
    )
    assert len(list(distributed)) == len(distributed) == 4
    for given in (9, (2, 7), [2, 7]):
        sampler = wids.ChunkedSampler(
            range(9), num_samples=given, chunksize=2, seed=3, shuffle=True, shufflefirst=False, dslength_per_replica=-1
        )
        assert sorted(sampler) == list(range(9) if given == 9 else range(2, 7))
        assert sampler.ranges[0][0] == (0 if given == 9 else 2)
        assert (sampler.seed, sampler.shuffle, sampler.shufflefirst) == (3, True, False)
        sampler.set_epoch(4)
        assert sampler.epoch == 4
        assert isinstance(sampler.rng, random.Random)
    assert sorted(wids.ShardListSampler(ds)) == list(range(TOTAL))
    assert wids.ShardedSampler(None, lengths=[2, 1], seed=0, shufflefirst=True).ranges == [(0, 2), (2, 3)]


# --- what this package adds to the dataset


def test_fields_give_only_the_members_asked_for(index):
    """As one name or several, with or without the dot; a name that a sample lacks is absent."""
    for fields in (".cls", "cls", (".cls",), ["cls", ".none"]):
        sample = wids.ShardListDataset(index, fields=fields)[2]
        assert {name for name in sample if name.startswith(".")} == {".cls"}
        assert sample[".cls"] == 2
    assert not [name for name in wids.ShardListDataset(index, fields=())[2] if name.startswith(".")]


@pytest.mark.parametrize("fields", [None, (".txt",)])
def test_getitems_keeps_the_order_asked_for(index, fields):
    """Results stand in request order: across shards, with duplicates, negatives, and torch's integers."""
    dataset = wids.ShardListDataset(index, transformations=[], fields=fields)
    indices = [8, 0, 5, 0, -1, np.int64(3), torch.tensor(7)]
    got = dataset.__getitems__(indices)
    assert [s["__index__"] for s in got] == [8, 0, 5, 0, 8, 3, 7]
    assert texts(got) == [f"text {g}" for g in (8, 0, 5, 0, 8, 3, 7)]
    assert [s["__shardindex__"] for s in got] == [1, 0, 2, 0, 1, 0, 0]
    assert [set(s) for s in got] == [set(dataset[0])] * 7
    assert got[1] is not got[3]
    assert got[1][".txt"] is not got[3][".txt"]
    assert dataset.__getitems__([]) == []
    assert texts(dataset.__getitems__(iter((1, 2)))) == ["text 1", "text 2"]


@pytest.mark.parametrize("fields", [None, (".txt",)])
def test_getitems_reads_shard_by_shard_in_offset_order(index, fields):
    """Each shard is opened once for a batch however its indices are mixed, even with room for one."""
    dataset = wids.ShardListDataset(index, transformations=[], lru_size=1, fields=fields)
    dataset.__getitems__([8, 0, 4, 7, 1, 5, 2, 3, 6])
    assert dataset.get_stats() == (9, 3)


@pytest.mark.parametrize("bad", [[0, 9], [-10], [0, "x"], [1.5]])
def test_getitems_checks_its_indices(ds, bad):
    """One index out of range or of another type fails the batch, as ds[i] would."""
    with pytest.raises((IndexError, TypeError)):
        ds.__getitems__(bad)


def test_locate_opens_nothing(ds):
    """(shard, row) by arithmetic; the same bounds as ds[i]."""
    assert [tuple(ds.locate(i)) for i in (0, 2, 3, 8, -1)] == [(0, 0), (0, 2), (1, 0), (2, 1), (2, 1)]
    assert ds.locate(6).shard == 1
    assert ds.locate(6).row == 3
    assert ds.get_stats() == (0, 0)
    with pytest.raises(IndexError):
        ds.locate(9)


def test_keys_look_up_both_ways(tmp_path):
    """keys[i], index, find, in, len, iteration, and as a method; a key in two shards is found twice."""
    shards = [
        (write_shard(tmp_path / "one" / "k.tar", 2), 2),
        (write_shard(tmp_path / "empty.tar", 0), 0),
        (write_shard(tmp_path / "two" / "k.tar", 3), 3),
    ]
    dataset = wids.ShardListDataset(shards)
    keys = dataset.keys
    assert list(keys) == list(keys()) == ["k-000", "k-001", "k-000", "k-001", "k-002"]
    assert len(keys) == 5
    assert (keys[1], keys[-1], keys[np.int64(2)]) == ("k-001", "k-002", "k-000")
    assert keys.index("k-001") == 1
    assert keys.find("k-001") == [1, 3]
    assert keys.find("nobody") == []
    assert "k-002" in keys
    assert "nobody" not in keys
    assert 3 not in keys
    with pytest.raises(KeyError, match="no sample has the key 'nobody'"):
        keys.index("nobody")
    with pytest.raises(IndexError):
        keys[5]
    assert dataset.get_stats() == (0, 0)


def test_pickles_are_refused_unless_allowed(tmp_path):
    """A .pkl member takes allow_pickle=True, also when the transformation is assigned later."""
    path = write_tar(tmp_path / "p.tar", {"a.pkl": pickle.dumps([1, 2])})
    with pytest.raises(UnsafeFormatError, match="allow_pickle"):
        wids.ShardListDataset([(path, 1)])[0]
    dataset = wids.ShardListDataset([(path, 1)], allow_pickle=True, transformations=[])
    dataset.transformations = ["PIL"]
    assert dataset[0][".pkl"] == [1, 2]


def test_pipe_urls_run_only_when_allowed(tmp_path):
    """``pipe:`` takes allow_pipe=True; then the program's output, or the file it writes, is the shard."""
    path = write_shard(tmp_path / "p.tar", 2)
    for url in (f"pipe:cat {path}", f"pipe:cp {path} {{local}}"):
        with pytest.raises(NotAllowedError, match="allow_pipe=True"):
            wids.ShardListDataset([(url, 2)])[0]
        dataset = wids.ShardListDataset([(url, 2)], allow_pipe=True)
        assert texts(dataset) == ["text 0", "text 1"]
        assert dataset[0]["__shard__"] == url


def test_storage_options_reach_the_index_and_the_shards(tmp_path, index):
    """Credentials go with every request: a server that wants a header hands out index and shards."""
    with serve(tmp_path / "data", token="secret") as server:
        options = {"client_kwargs": {"headers": {"X-Token": "secret"}}}
        dataset = wids.ShardListDataset(f"{server.url}/index.json", storage_options=options)
        assert texts(dataset) == EXPECTED
        with pytest.raises(wids.errors.FetchDeniedError, match="storage_options"):
            wids.ShardListDataset(f"{server.url}/index.json")


def test_cache_local_copies_local_shards(index, tmp_path):
    """With cache_local they are read from the cache, and the source is still what __shard__ says."""
    dataset = wids.ShardListDataset(index, cache_local=True, cache_dir=tmp_path / "nvme")
    assert texts(dataset) == EXPECTED
    assert len(list((tmp_path / "nvme").glob("*.tar"))) == 3
    assert dataset.get_shard(0)[0].path.startswith(str(tmp_path / "nvme"))
    assert dataset[0]["__shard__"] == str(tmp_path / "data" / "s0.tar")


def test_group_and_key_rule(tmp_path):
    """Members apart are merged by group="key"; key_rule says where a name splits, by name or by function."""
    members = [("v1.0.jpg", b"j"), ("b.txt", b"b"), ("v1.0.cls", b"1")]
    path = write_tar(tmp_path / "g.tar", members)

    def keys(count, **options):
        return list(wids.ShardListDataset([(path, count)], **options).keys)

    assert keys(3) == ["v1", "b", "v1"]
    assert keys(3, key_rule="last-dot") == ["v1.0", "b", "v1.0"]
    assert keys(2, key_rule="last-dot", group="key") == ["v1.0", "b"]
    dataset = wids.ShardListDataset(
        [(path, 2)], transformations=[], group="key", key_rule=lambda name: (name[:1], "." + name[-3:])
    )
    assert {name: value.read() for name, value in dataset[0].items() if name[0] == "."} == {".jpg": b"j", ".cls": b"1"}
    with pytest.raises(ValueError, match="key_rule"):
        keys(2, key_rule="dot")


@pytest.mark.parametrize(
    "touch",
    [lambda d: d[3], lambda d: d.__getitems__([3]), lambda d: d.get_shard(3), lambda d: d.keys[3]],
    ids=["item", "items", "get_shard", "keys"],
)
def test_a_count_that_differs_is_told_at_the_first_touch(tmp_path, touch):
    """It names the shard, what the index says and what is there; the other shards go on working."""
    shards = write_shards(tmp_path, COUNTS)
    shards[1]["nsamples"] = 5
    dataset = wids.ShardListDataset(shards)
    assert dataset[0][".cls"] == 0
    for _ in range(2):
        with pytest.raises(CountMismatchError) as caught:
            touch(dataset)
        error = caught.value
        assert (error.shard, error.expected, error.found) == (shards[1]["url"], 5, 4)
        assert f"{shards[1]['url']}: holds 4 samples, and the index says 5 (shard 1 of 3)" in str(error)
    assert dataset[8]["__key__"] == "s2-000"
    dataset.cache.get_shard(shards[1]["url"])
    with pytest.raises(CountMismatchError):
        touch(dataset)


@pytest.mark.parametrize(
    ("members", "count", "options"),
    [
        (["a.txt", "b.txt", "a.cls", "b.cls"], 2, {"group": "key"}),
        (["v1.0.txt", "v1.1.txt"], 2, {"key_rule": "last-dot"}),
        (["v1.0.txt", "v1.1.txt", "v1.0.cls"], 2, {"key_rule": "last-dot", "group": "key"}),
        (["a.txt", "b.txt"], 3, {}),
    ],
)
def test_a_count_that_differs_hints_at_the_grouping_only_where_that_is_why(tmp_path, members, count, options):
    """The message names the key_rule and group with which the shard holds as many; none, if there are none such."""
    path = write_tar(tmp_path / "g.tar", [(name, b"1") for name in members])
    with pytest.raises(CountMismatchError, match=r"wids index create.*on_count_mismatch='warn'") as caught:
        wids.ShardListDataset([(path, count)])[0]
    named = ", ".join(f"{name}={value!r}" for name, value in options.items())
    assert (f"; with {named} it would be as many" in str(caught.value)) == bool(options)
    assert ("key_rule" in str(caught.value)) == ("key_rule" in options)
    if options:
        assert len(list(wids.ShardListDataset([(path, count)], **options))) == count


# --- quiet, and what $WIDS_VERBOSE and $WIDS_CACHE do


USE = """
import wids
ds = wids.ShardListDataset({path!r})
s = [wids.DistributedChunkedSampler(ds, shuffle=True), wids.ChunkedSampler(ds), wids.ShardListSampler(ds)]
assert sum(len(list(x)) for x in s) == 27 and len(list(ds)) == 9 and ds.keys.index("s1-000") == 3
ds.close()
"""


def test_quiet_by_default(web):
    """A fresh process that downloads and reads prints nothing, and would fail at any warning."""
    code = USE.format(path=f"{web.url}/index.json")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_wids_verbose_speaks_where_nobody_set_up_logging(index, capsys, monkeypatch):
    """$WIDS_VERBOSE=1 says on stderr what was opened; once for each dataset, however many there are."""
    logger = logging.getLogger("wids")
    monkeypatch.setattr(logger, "propagate", False)  # pytest's own handlers hang above
    monkeypatch.setattr(logger, "handlers", [fallback])  # and what another test's libraries have hung there
    monkeypatch.setattr(fallback, "level", fallback.level)
    monkeypatch.setattr(logger, "disabled", False)
    monkeypatch.setenv("WIDS_VERBOSE", "1")
    try:
        names = [wids.ShardListDataset(index).dataset_name for _ in range(2)]
    finally:
        logger.setLevel(logging.NOTSET)
    out, err = capsys.readouterr()
    assert out == ""
    size = format_size(sum(shard["filesize"] for shard in json.loads(Path(index).read_text())["shardlist"]))
    said = f"wids: {index[:50]}: 3 shards, 9 samples, {size}, name {names[0]}, base {os.path.dirname(index)}, cache "
    assert [line.startswith(said) for line in err.splitlines()] == [True, True]


def test_log_records_are_under_the_wids_logger(index, caplog, monkeypatch):
    """A program that sets up logging sees them; WIDS_VERBOSE=0 and empty mean quiet."""
    logger = logging.getLogger("wids")
    before = list(logger.handlers)  # commands that tests ran in this process add some
    for value in ("0", ""):
        monkeypatch.setenv("WIDS_VERBOSE", value)
        wids.ShardListDataset(index)
        assert not caplog.records
        assert logger.level == logging.NOTSET
    monkeypatch.setenv("WIDS_VERBOSE", "1")
    try:
        wids.ShardListDataset(index)
    finally:
        logger.setLevel(logging.NOTSET)
    assert {record.name for record in caplog.records} == {"wids"}
    assert logger.handlers == before

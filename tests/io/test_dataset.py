"""ShardListDataset where programs really use it: sources, working directories, loaders, workers, threads, forks."""

import contextlib
import copy
import gc
import gzip
import inspect
import io
import json
import logging
import multiprocessing
import multiprocessing.reduction
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import typing
import weakref
from pathlib import Path
from urllib.parse import quote

import fsspec
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Sampler, Subset

import wids
from tests.support import cache_shards, chaos, tars
from tests.support.children import call_in_child, child, receive
from tests.support.cli import run_ok
from tests.support.clocks import PATIENCE_SECONDS
from tests.support.launch import run_script
from tests.support.shards import serve, write_index, write_json, write_shard, write_shards, write_tar
from wids import dataset as module
from wids.core.collection import arguments
from wids.core.files import atomic, forks, page_cache
from wids.core.index.fingerprint import fingerprint
from wids.core.order import layout
from wids.core.order.layout import interface_of
from wids.core.place import Place
from wids.core.readers import pool
from wids.core.transport import download, retrying
from wids.errors import (
    ChangedShardError,
    CompressedShardError,
    CountMismatchError,
    DecodeError,
    FetchError,
    InputError,
    NoRangesError,
    ShardNotFoundError,
    SpecError,
    TarError,
    UnsafeFormatError,
)
from wids.events import Fetched, Opened
from wids.testing import Server

COUNTS = (3, 4, 2)
TOTAL = sum(COUNTS)


pytestmark = pytest.mark.usefixtures("own_cache")


def labels(samples):
    """The .cls of each sample: its number in the dataset."""
    return [sample[".cls"] for sample in samples]


# --- what the shards may be given as


def test_local_tars_without_an_index_are_counted(tmp_path, monkeypatch):
    """One tar, a brace pattern, a list of both, path-likes; base= places them; statistics start from zero."""
    write_shards(tmp_path / "d", COUNTS)
    monkeypatch.chdir(tmp_path)
    names = [f"d/s{k}.tar" for k in range(3)]
    for given in ("d/s{0..2}.tar", names, [Path(name) for name in names], iter(names), ["d/s0.tar", "d/s{1..2}.tar"]):
        dataset = wids.ShardListDataset(given)
        assert dataset.lengths == list(COUNTS)
        assert dataset.get_stats() == (0, 0)
        assert labels(dataset) == list(range(TOTAL))
        assert [shard["nsamples"] for shard in dataset.shards] == list(COUNTS)
    assert labels(wids.ShardListDataset("d/s1.tar")) == [3, 4, 5, 6]
    based = wids.ShardListDataset(["s{0..2}.tar"], base=tmp_path / "d")
    assert based.shards[0]["url"] == str(tmp_path / "d" / "s0.tar")
    assert based.base == str(tmp_path / "d")
    assert len(based) == TOTAL


def test_local_tars_to_be_copied_are_counted_where_they_are(tmp_path):
    """With cache_local, or a localname elsewhere, counting copies nothing; reading does."""
    paths = [shard["url"] for shard in write_shards(tmp_path / "d", COUNTS)]
    for number, options in enumerate(
        ({"cache_local": True, "cache_dir": tmp_path / "c0"}, {"localname": lambda url: f"{tmp_path}/c1/{url[-6:]}"})
    ):
        dataset = wids.ShardListDataset(paths, **options)
        assert len(dataset) == TOTAL
        assert not (tmp_path / f"c{number}").exists()
        assert dataset[3][".cls"] == 3
        assert len(list((tmp_path / f"c{number}").glob("*.tar"))) == 1


def test_remote_tars_without_an_index_whose_server_gives_no_ranges_are_refused(web):
    """Counting them would download them all; the message says what to do."""
    with pytest.raises(NoRangesError, match=r"s1\.tar: no index says how many .* no byte ranges .*wids index create"):
        wids.ShardListDataset([(f"{web.url}/s0.tar", 3), f"{web.url}/s1.tar"])


def test_open_files_and_what_is_left_of_them(index, tmp_path):
    """Text and binary files, in memory or on disk; they stay open, relative URLs mean the working directory or base."""
    text = Path(index).read_text()
    for file in (io.StringIO(text), io.BytesIO(text.encode())):
        dataset = wids.ShardListDataset(file, base=tmp_path / "data")
        assert labels(dataset) == list(range(TOTAL))
        assert not file.closed
    with open(index, encoding="utf-8") as file:
        dataset = wids.ShardListDataset(file)
    assert dataset.base is None
    assert dataset.shards[0]["url"] == "s0.tar"


def test_open_file_in_the_working_directory(index, monkeypatch):
    """Its relative URLs are found from here."""
    monkeypatch.chdir(Path(index).parent)
    with open("index.json", "rb") as file:
        assert labels(wids.ShardListDataset(file)) == list(range(TOTAL))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"wids_version": 1, "shardlist": []}, r"shards is a dict; give .*index\['shardlist'\]"),
        (None, "shards is None; give an index"),
        (7, "shards is 7; give an index"),
        (b"index.json", "give an index"),
        ([7], r"shards\[0\]"),
        ([{"url": "a.tar"}], "nsamples"),
        ([{"nsamples": 1}], "url"),
        ([("a.tar", -1)], "nsamples"),
        ([("a.tar", "many")], "nsamples"),
        (["x{0..1.tar"], "brace pattern"),
        ("", "shards is an empty text"),
        ("no/*.tar", r"no/\*\.tar: no file has a name like this; that directory does not exist"),
        (["no/*.tar"], "no file has a name like this"),
        ("wids/core/order/*.tar", r"no file has a name like this; the directory has 'README\.md', .* and \d+ more"),
        (["train.json"], r"train\.json: is an index, not a shard; .*wids index merge\), or mix"),
        (["memory://b/train.widsx"], r"train\.widsx: is an index, not a shard"),
        (
            "wids/core/order",
            r"wids/core/order: there are no \.tar files in this directory; wids pack makes shards of other",
        ),
        (["wids/core/order"], r"there are no \.tar files in this directory"),
        ("memory://none/", r"memory://none/: there are no \.tar files at this prefix"),
        ("pipe:cat *.tar", r"shards\[0\] \(pipe:cat \*\.tar\) has no nsamples.*wids index create"),
        ("a.tar::b.tar", r"several places in one text; give a list of them: \['a\.tar', 'b\.tar'\]"),
        (["a-{0..3}.tar::b-{0..3}.tar"], "several places in one text"),
        ("a.json::s3://b/b.json", r"several indexes in one text; merge them .*wids\.mix"),
    ],
)
def test_what_is_no_list_of_shards_is_refused_with_a_sentence(given, message):
    """A dict, None, a number, bytes, items that say too little, and places that are no index and no shard."""
    with pytest.raises(SpecError, match=message):
        wids.ShardListDataset(given)


@pytest.mark.parametrize(
    "make", [str, Path, lambda place: [place], "file://{}".format], ids=["str", "Path", "list", "URL"]
)
@pytest.mark.parametrize("pattern", ["", "/s*.tar", "/**/*.tar", "/{s2,s}*.tar"])
def test_a_directory_or_glob_of_tars(tmp_path, make, pattern):
    """Its tars, each once, in natural order, are counted; no index, and so no columns, belong to it."""
    home = tmp_path / "d"
    home.mkdir()
    for k in (10, 2, 1):
        write_tar(home / f"s{k}.tar", [(f"{k}.txt", b"%d" % k)] * 1 + [(f"{k}b.txt", b"b")])
    (home / "notes.txt").write_text("none")
    dataset = wids.ShardListDataset(make(f"{home}{pattern}"), transformations=[])
    first = ["s2.tar", "s1.tar", "s10.tar"] if "{" in pattern else ["s1.tar", "s2.tar", "s10.tar"]
    assert [os.path.basename(shard["url"]) for shard in dataset.shards] == first
    assert [*dataset.lengths] == [2, 2, 2]
    assert dataset[4]["__key__"] == "10"
    dataset.select([0, 5]).save(tmp_path / "view.json")
    assert [sample["__key__"] for sample in wids.ShardListDataset(tmp_path / "view.json")] == [
        first[0][1:-4],
        "10b",
    ]


@pytest.fixture
def bucket(tmp_path):
    """A directory of fsspec's memory with ten tars of two samples, an index of nine and a table: its URL."""
    filesystem, root = fsspec.filesystem("memory"), f"/{tmp_path.name}"
    for k in range(10):
        path = write_tar(tmp_path / "s.tar", [(f"{k}.txt", b"%d" % k), (f"{k}b.txt", b"b")])
        filesystem.pipe_file(f"{root}/d/s{k + 1}.tar", Path(path).read_bytes())
    index = {"wids_version": 1, "shardlist": [{"url": f"s{k}.tar", "nsamples": 2} for k in range(1, 10)]}
    filesystem.pipe_file(f"{root}/d/train.json", json.dumps(index).encode())
    filesystem.pipe_file(f"{root}/d/s1.tar.idx", b"1")
    yield f"memory:/{root}/d"
    filesystem.rm(root, recursive=True)


@pytest.mark.parametrize(
    ("given", "base", "names"),
    [
        ("{}/", None, ["s1", "s2", *(f"s{k}" for k in range(3, 11))]),
        ("{}/s?.tar", None, [f"s{k}" for k in range(1, 10)]),
        ("{}/*", None, [f"s{k}" for k in range(1, 11)]),
        (["{}/s{{9..10}}.tar", "{}/s[12].tar"], None, ["s9", "s10", "s1", "s2"]),
        ("s1*.tar", "{}", ["s1", "s10"]),
        ("../d/", "{}", [f"s{k}" for k in range(1, 11)]),
    ],
)
def test_a_directory_or_glob_of_a_store(bucket, tmp_path, given, base, names):
    """As of this machine: its tars, in natural order, counted by byte ranges; what stands beside them is no shard."""
    fill = lambda text: text.format(bucket)  # noqa: E731
    given, base = [*map(fill, given)] if isinstance(given, list) else fill(given), base and fill(base)
    dataset = wids.ShardListDataset(given, base=base, cache_dir=tmp_path / "c", transformations=[])
    assert [os.path.basename(shard["url"])[:-4] for shard in dataset.shards] == names
    assert [*dataset.lengths] == [2] * len(names)
    assert dataset[1]["__key__"] == f"{int(names[0][1:]) - 1}b"


def test_a_store_s_directories_and_globs_that_hold_no_shards(bucket):
    """What is there is named."""
    with pytest.raises(SpecError, match=r"no file has a name like this; the directory has 's1\.tar', .* and 9 more"):
        wids.ShardListDataset(f"{bucket}/t*.tar")
    with pytest.raises(SpecError, match=r"is an index, not a shard: 'train\.json'"):
        wids.ShardListDataset(f"{bucket}/*.json")
    with pytest.raises(SpecError, match=r"matches no shards, only files that belong to shards \('s1\.tar\.idx'\)"):
        wids.ShardListDataset(f"{bucket}/*.idx")
    with pytest.raises(FetchError, match=r"/d: .*for the shards in a directory, give its name with / at its end"):
        wids.ShardListDataset(bucket)


def test_a_web_directory_without_an_index(tmp_path):
    """A page with links is a directory, for the dataset and for commands."""
    write_shards(tmp_path / "d", (3, 2))
    with serve(tmp_path) as server:
        server.has_ranges = True
        server.add("/d/", b'<a href="s0.tar">s0.tar</a> <a href="s1.tar">s1.tar</a>')
        url = f"{server.url}/d/"
        assert [*wids.ShardListDataset(url, cache_dir=tmp_path / "c").lengths] == [3, 2]
        assert json.loads(run_ok("info", url, "--cache-dir", tmp_path / "c", "--json"))["samples"] == 5
        shown = run_ok("show", url, "4", "--cache-dir", tmp_path / "c")
        assert "s1-001" in shown


def test_local_globs_are_relative_to_a_base(tmp_path):
    """As single tars are; what is beside shards is none, and an index of this machine is no directory of the base."""
    write_index(tmp_path / "d", (2, 3))
    (tmp_path / "d/s0.tar.idx").write_text("")
    for given in ("*", "s*.tar", "../d", ".", ["s{0..1}.*"]):
        assert [*wids.ShardListDataset(given, base=tmp_path / "d").lengths] == [2, 3], given
    os.mkdir(tmp_path / "d/none")
    with pytest.raises(SpecError, match=r"none: there are no \.tar files"):
        wids.ShardListDataset("none", base=tmp_path / "d")


def test_a_directory_of_what_is_no_shard(tmp_path):
    """What has an archive's name counts, as for `wids index create`: a compressed one is refused, not skipped."""
    write_tar(tmp_path / "a.tar", [("a.txt", b"a")])
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress((tmp_path / "a.tar").read_bytes()))
    with pytest.raises(CompressedShardError, match=r"b\.tar\.gz"):
        wids.ShardListDataset(tmp_path)
    odd = tmp_path / "odd{0..3}"
    odd.mkdir()
    write_tar(odd / "x{0..2}[y].tar", [("a.txt", b"a")])
    assert len(wids.ShardListDataset(odd)) == 1


def test_names_that_only_look_odd(tmp_path, monkeypatch):
    """Files whose names have brackets or colons, and whose endings are in capitals, are shards."""
    monkeypatch.chdir(tmp_path)
    for name in ("a[1].tar", "b*.tar", "c.TAR"):
        write_shard("x.tar", 2)
        os.rename("x.tar", name)
        assert len(wids.ShardListDataset(name)) == 2
        assert len(wids.ShardListDataset([name])) == 2


def test_an_index_that_cannot_be_read(tmp_path, monkeypatch):
    """No such file, a directory, and a file that is no index: each named."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ShardNotFoundError, match=r"none\.json"):
        wids.ShardListDataset("none.json")
    with pytest.raises(SpecError, match=f"{tmp_path}: there are no .tar files in this directory"):
        wids.ShardListDataset(tmp_path)
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(SpecError, match=r"x\.json: not valid JSON"):
        wids.ShardListDataset("x.json")
    (tmp_path / "x.tar.gz").write_bytes(b"\x1f\x8b" + bytes(100))
    with pytest.raises(TarError, match="gzip"):
        wids.ShardListDataset("x.tar.gz")


@pytest.mark.parametrize("size", [0, 1])
def test_datasets_of_no_samples(tmp_path, size):
    """No shards, or shards of nothing: a dataset of length 0 that every loader takes."""
    shards = [(write_shard(tmp_path / "e.tar", 0), 0)] * size
    dataset = wids.ShardListDataset(shards)
    assert len(dataset) == dataset.total_length == 0
    assert list(dataset) == list(DataLoader(dataset, batch_size=2)) == list(dataset.keys) == []
    assert dataset.__getitems__([]) == []
    assert len(wids.DistributedChunkedSampler(dataset)) == 0
    assert len(pickle.loads(pickle.dumps(dataset))) == 0
    for bad in (0, -1):
        with pytest.raises(IndexError, match="of a dataset of 0"):
            dataset[bad]
    assert isinstance(dataset.dataset_name, str)


def test_shards_of_no_samples_in_between(tmp_path):
    """They are skipped, wherever they stand, and never opened."""
    shards = write_shards(tmp_path, (0, 3, 0, 0, 2, 0))
    for k in (0, 2, 3, 5):
        os.unlink(shards[k]["url"])
    dataset = wids.ShardListDataset(shards)
    assert labels(dataset) == list(range(5))
    assert labels(dataset.__getitems__([4, 0, 3])) == [4, 0, 3]
    assert [dataset.locate(i).shard for i in range(5)] == [1, 1, 1, 4, 4]
    assert dataset.keys.find("s4-001") == [4]
    assert len(list(dataset.keys)) == 5


def test_one_sample_shards(tmp_path, caplog):
    """Each access opens a shard, as it must; that is no lack of locality, and nobody is told so."""
    dataset = wids.ShardListDataset(write_shards(tmp_path, (1,) * 120), lru_size=4)
    assert labels(dataset) == list(range(120))
    assert labels(dataset.__getitems__(range(119, -1, -1))) == list(range(119, -1, -1))
    assert dataset.get_stats()[1] >= 236
    assert not caplog.records


def test_ten_thousand_shards_construct_in_linear_work(tmp_path):
    """Without opening any; the same as pairs, dicts, and an index; a pickle of it is small."""
    pairs = [(f"gs://bucket/train-{k:06d}.tar", 10) for k in range(10_000)]
    rows = [{"url": url, "nsamples": count} for url, count in pairs]
    index = write_json(tmp_path / "i.json", {"wids_version": 1, "shardlist": rows})
    for given in (pairs, rows, index):
        dataset = wids.ShardListDataset(given)
        assert len(dataset) == 100_000
        assert tuple(dataset.locate(99_999)) == (9_999, 9)
    assert len(pickle.dumps(dataset)) < 1_000_000


def test_one_shard_listed_twice(tmp_path):
    """A shard may stand in the index more than once: it is opened once."""
    (shard,) = write_shards(tmp_path, (3,))
    dataset = wids.ShardListDataset([shard, shard])
    assert labels(dataset) == [0, 1, 2, 0, 1, 2]
    assert dataset.get_stats() == (6, 1)
    assert dataset[4]["__index__"] == 4


# --- base=, options=, names, working directory


@pytest.mark.parametrize("form", ["str", "slash", "path", "home", "relative"])
def test_base_in_every_form(tmp_path, monkeypatch, form):
    """It wins over the index's own base and place."""
    write_index(tmp_path / "real", COUNTS)
    elsewhere = tmp_path / "elsewhere.json"
    raw = json.loads((tmp_path / "real" / "index.json").read_text())
    write_json(elsewhere, {**raw, "base": "gs://nowhere"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    real = tmp_path / "real"
    base = {"str": str(real), "slash": f"{real}/", "path": real, "home": "~/real", "relative": "real"}[form]
    dataset = wids.ShardListDataset(elsewhere, base=base)
    assert dataset.base == os.fspath(base)
    assert labels(dataset) == list(range(TOTAL))


def test_base_of_an_index(tmp_path):
    """Without base=, ds.base says what relative URLs were resolved against: the index's own base, else its place."""
    write_index(tmp_path / "shards", COUNTS)
    raw = json.loads((tmp_path / "shards" / "index.json").read_text())
    for key in ("base", "base_path"):
        dataset = wids.ShardListDataset(write_json(tmp_path / "i.json", {**raw, key: "shards"}))
        assert dataset.base == str(tmp_path / "shards")
        assert labels(dataset) == list(range(TOTAL))
    dataset = wids.ShardListDataset(io.StringIO(json.dumps({**raw, "base": str(tmp_path / "shards")})))
    assert dataset.base == str(tmp_path / "shards")
    assert labels(dataset) == list(range(TOTAL))
    shards = [(f"s{k}.tar", n) for k, n in enumerate(COUNTS)]
    assert labels(wids.ShardListDataset(shards, base=tmp_path / "shards")) == list(range(TOTAL))


def test_options_override_the_index(tmp_path):
    """Top-level keys of the JSON: its name, its base, its shards; for a list of shards they are the spec."""
    path = write_index(tmp_path, COUNTS, name="i.json", info="old")
    options = {"name": "n", "info": "new", "shardlist": [{"url": "s1.tar", "nsamples": 4}]}
    dataset = wids.ShardListDataset(path, options=options)
    assert (dataset.dataset_name, dataset.spec["info"], len(dataset)) == ("n", "new", 4)
    listed = wids.ShardListDataset([(str(tmp_path / "s1.tar"), 4)], options={"name": "n", "info": "x"})
    assert (listed.dataset_name, listed.spec["info"]) == ("n", "x")
    assert listed.spec["shardlist"] == listed.shards


def test_dataset_name(tmp_path):
    """The caller's, else the index's, else a digest that says the same for the same shards, however they came."""
    pairs = [(f"gs://b/{k}.tar", 1) for k in range(3)]
    row = {"wids_version": 1, "shardlist": [{"url": "a.tar", "nsamples": 1}]}
    path = write_json(tmp_path / "i.json", {**row, "name": "from the index"})
    assert wids.ShardListDataset(path, dataset_name="mine").dataset_name == "mine"
    assert wids.ShardListDataset(path).dataset_name == "from the index"
    names = {wids.ShardListDataset(given).dataset_name for given in (pairs, iter(pairs), [list(p) for p in pairs])}
    assert len(names) == 1
    assert len(names.pop()) == 16
    text = json.dumps(row)
    files = [wids.ShardListDataset(io.StringIO(text)).dataset_name for _ in range(2)]
    assert files[0] == files[1] != wids.ShardListDataset(pairs).dataset_name
    odd = wids.ShardListDataset([("caf\udce9.tar", 1)])
    assert len(odd.dataset_name) == 16


def test_relative_paths_survive_a_change_of_directory(tmp_path, monkeypatch):
    """A program that changes directory after construction (hydra does): relative places keep their meaning."""
    write_index(tmp_path / "one" / "data", COUNTS)
    (tmp_path / "two").mkdir()
    monkeypatch.chdir(tmp_path / "one")
    with serve(tmp_path / "one" / "data") as server:
        remote = f"{server.url}/index.json"
        datasets = [
            wids.ShardListDataset("data/index.json"),
            wids.ShardListDataset("./data/../data/index.json"),
            wids.ShardListDataset("data/s{0..2}.tar"),
            wids.ShardListDataset([(f"data/s{k}.tar", n) for k, n in enumerate(COUNTS)]),
            wids.ShardListDataset("data/index.json", localname=lambda url: url),
            wids.ShardListDataset(remote, cache_dir="c1"),
            wids.ShardListDataset(remote, localname=lambda url: "c2/" + url.rpartition("/")[2]),
        ]
        monkeypatch.chdir(tmp_path / "two")
        for dataset in datasets:
            assert labels(dataset) == list(range(TOTAL))
            twin = copy.deepcopy(dataset)
            assert labels(twin) == list(range(TOTAL))
    assert os.listdir(tmp_path / "two") == []
    assert len(list((tmp_path / "one" / "c1").glob("*.tar"))) == 3
    assert len(list((tmp_path / "one" / "c2").glob("*.tar"))) == 3


# --- an index that counts wrongly, of somebody else's


@pytest.fixture
def miscounted(tmp_path):
    """Shards of 3, 4 and 2 samples in an index that says 7, 3 and 2."""
    shards = write_shards(tmp_path / "data", COUNTS)
    for shard, count in zip(shards, (7, 3, 2), strict=True):
        shard["nsamples"] = count
    return shards


WANTED = [0, 1, 2, 0, 1, 2, 0, 3, 4, 5, 7, 8]


def test_shards_repeat_or_leave_out_samples_where_the_index_is_wrong(miscounted, caplog):
    """on_count_mismatch="warn": lengths are the index's; items, batches and keys agree; each shard says so once."""
    dataset = wids.ShardListDataset(miscounted, on_count_mismatch="warn", lru_size=1)
    assert (dataset.lengths, len(dataset)) == ([7, 3, 2], 12)
    assert labels(dataset) == labels(dataset.__getitems__(range(12))) == WANTED
    order = np.random.default_rng(0).integers(0, 12, 100).tolist()
    for fields in (None, ".cls"):
        dataset.fields = None if fields is None else (fields,)
        for sample, i in zip(dataset.__getitems__(order), order, strict=True):
            assert (sample[".cls"], sample["__index__"]) == (WANTED[i], i)
            assert {**dataset[i]}.keys() == sample.keys()
            assert sample["__shardindex__"] == dataset[i]["__shardindex__"] == dataset.get_shard(i)[1]
    assert [dataset[i]["__shardindex__"] for i in range(12)] == [0, 1, 2, 0, 1, 2, 0, 0, 1, 2, 0, 1]
    keys = [dataset[i]["__key__"] for i in range(12)]
    assert list(dataset.keys) == [dataset.keys[i] for i in range(12)] == keys
    assert [dataset.keys.find(key) for key in ("s0-000", "s0-002", "s1-002", "s1-003")] == [[0, 3, 6], [2, 5], [9], []]
    told = [record.getMessage() for record in caplog.records if "the index says" in record.getMessage()]
    assert [text.partition("s0.tar: ")[2] or text.partition("s1.tar: ")[2] for text in told] == [
        "holds 3 samples, and the index says 7 (shard 0 of 3); they are repeated, from the first one on",
        "holds 4 samples, and the index says 3 (shard 1 of 3); the last ones are left out",
    ]


@pytest.mark.parametrize("world", [1, 2, 5])
def test_ranks_are_equal_where_the_index_is_wrong(miscounted, world):
    """Samplers and their states go by the index, whatever has been opened where, as if its counts were right."""
    right = wids.ShardListDataset([(f"s{k}.tar", count) for k, count in enumerate((7, 3, 2))])
    orders, plain = [], []
    for rank in range(world):
        dataset = wids.ShardListDataset(miscounted, on_count_mismatch="warn")
        _ = labels(dataset) if rank % 2 else None
        sampler = wids.DistributedChunkedSampler(dataset, num_replicas=world, rank=rank, chunksize=2)
        orders.append(list(sampler))
        plain.append(list(wids.DistributedChunkedSampler(right, num_replicas=world, rank=rank, chunksize=2)))
        assert labels(dataset.__getitems__(orders[-1])) == [WANTED[i] for i in orders[-1]]
        assert dataset.fingerprint == right.fingerprint
    assert orders == plain
    assert len(set(map(len, orders))) == 1


def test_workers_agree_where_the_index_is_wrong(web, tmp_path):
    """Remote shards, two workers, two epochs: every sample as the index counts, and no shard is fetched twice."""
    pairs = [(f"{web.url}/s{k}.tar", count) for k, count in enumerate((7, 3, 2))]
    dataset = wids.ShardListDataset(pairs, cache_dir=tmp_path / "c", on_count_mismatch="warn", prefetch=False)
    for _ in range(2):
        assert flat(batched(dataset, workers=2, method="fork", batch_size=3)) == WANTED
    assert sorted(path for path in web.requests if path.endswith(".tar")) == [f"/data/s{k}.tar" for k in range(3)]


def test_a_shard_without_samples_has_none_to_repeat(tmp_path):
    """The index says 2 and there is none: an error that says what to do; the other shards are read."""
    shards = [(write_shard(tmp_path / "e.tar", 0), 2), *write_shards(tmp_path, (1,))]
    dataset = wids.ShardListDataset(shards, on_count_mismatch="warn")
    for touch in (
        dataset.__getitem__,
        lambda i: dataset.__getitems__([i, 2]),
        dataset.get_shard,
        lambda i: dataset.keys[i],
    ):
        with pytest.raises(
            CountMismatchError, match=r"holds 0 samples.*says 2 .*leave the shard out \(dataset.shards ="
        ):
            touch(1)
    assert dataset[2][".cls"] == 0
    with pytest.raises(ValueError, match="on_count_mismatch is 'ignore'; it must be 'error' or 'warn'"):
        wids.ShardListDataset(shards, on_count_mismatch="ignore")


def test_shards_with_other_counts_reach_all_samples(miscounted, caplog):
    """Who knows better than the index says so: then nothing is repeated, left out or told."""
    dataset = wids.ShardListDataset(miscounted)
    dataset.shards = [{**row, "nsamples": count} for row, count in zip(dataset.shards, COUNTS, strict=True)]
    assert dataset.lengths == list(COUNTS)
    assert dataset.cum_lengths.tolist() == [3, 7, 9]
    assert labels(dataset) == list(range(TOTAL))
    assert not caplog.records


# --- shards that a program changes


def test_assigned_shards_take_the_place_of_the_others(tmp_path):
    """Lengths, locate, keys, the pool, fingerprint, pickles and samplers follow; what is left is still right."""
    dataset = wids.ShardListDataset(write_index(tmp_path, COUNTS, name="i.json", info="kept"))
    assert labels(dataset) == list(range(TOTAL))
    before, held = dataset.fingerprint, dataset.shards
    dataset.shards = dataset.shards[1:]
    assert (len(dataset), dataset.total_length, dataset.lengths, dataset.cum_lengths.tolist()) == (6, 6, [4, 2], [4, 6])
    assert labels(dataset) == labels(dataset.__getitems__(range(6))) == [3, 4, 5, 6, 7, 8]
    assert tuple(dataset.locate(4)) == (1, 0)
    assert dataset.keys.find("s0-000") == []
    assert dataset.keys.find("s2-000") == [4]
    assert list(dataset.cache.lru.keys()) == [shard["url"] for shard in held[1:]]
    assert dataset.fingerprint != before
    assert dataset.spec["info"] == "kept"
    assert dataset.spec["shardlist"] == dataset.shards == held[1:]
    assert sorted(wids.DistributedChunkedSampler(dataset)) == list(range(6))
    assert labels(pickle.loads(pickle.dumps(dataset))) == [3, 4, 5, 6, 7, 8]
    assert len(held) == 3
    dataset.shards = [(held[2]["url"], 2), str(tmp_path / "s1.tar")]
    assert labels(dataset) == [7, 8, 3, 4, 5, 6]
    dataset.shards = []
    assert len(dataset) == 0


def test_an_assigned_spec(index):
    """Its shards and other keys hold; one without shards is refused, and so is what is written into one."""
    dataset = wids.ShardListDataset(index)
    dataset.spec = {**dataset.spec, "shardlist": dataset.shards[:1], "info": "new"}
    assert labels(dataset) == [0, 1, 2]
    assert dataset.spec["info"] == "new"
    dataset.spec = {**dataset.spec, "note": 7}
    assert labels(dataset) == [0, 1, 2]
    dataset.spec = {**dataset.spec, "shardlist": dataset.spec["shardlist"] * 2}
    assert labels(dataset) == [0, 1, 2] * 2
    assert (dataset.spec["info"], dataset.spec["note"]) == ("new", 7)
    before = json.loads(json.dumps(dataset.spec))
    with pytest.raises(SpecError, match="has its shards in 'shardlist'"):
        dataset.spec = {"wids_version": 1}
    with pytest.raises(SpecError, match=r"shards\[0\]"):
        dataset.shards = [7]
    with pytest.raises(SpecError, match="'shardlist' and no 'datasets'"):
        dataset.spec = {**dataset.spec, "datasets": [{"source_url": "more.json"}]}
    for change in (
        lambda spec: spec.__setitem__("note", 8),
        lambda spec: spec.__delitem__("note"),
        lambda spec: spec.__ior__({"note": 8}),
        lambda spec: spec.update(note=8),
        lambda spec: spec.pop("note"),
    ):
        with pytest.raises(TypeError, match=r"a new one, as in dataset\.spec = \{\*\*dataset\.spec, \.\.\.\}"):
            change(dataset.spec)
    assert dataset.spec == before
    assert labels(dataset) == [0, 1, 2] * 2


@pytest.mark.parametrize("is_open", [False, True])
def test_shards_are_read_and_replaced(tmp_path, is_open):
    """Rows are dicts, copies of them can be changed; a new list holds from the next sample on, also for workers."""
    paths = [shard["url"] for shard in write_shards(tmp_path / "here", COUNTS)]
    write_shards(tmp_path / "there", (9, *COUNTS))
    index = write_json(
        tmp_path / "i.json",
        {
            "wids_version": 1,
            "name": "whole",
            "shardlist": [{"url": paths[0], "nsamples": 3}],
            "datasets": [
                {"name": "part", "shardlist": [{"url": paths[k], "nsamples": COUNTS[k], "own": k} for k in (1, 2)]}
            ],
        },
    )
    dataset = wids.ShardListDataset(index)
    plain = json.loads(json.dumps(dataset.shards))
    for other in (copy.deepcopy(dataset.shards), copy.copy(dataset.shards), pickle.loads(pickle.dumps(dataset.shards))):
        assert other == plain == [dict(row) for row in dataset.shards]
        assert type(other) is list
        row = other[1]
        for each in (copy.copy(row), copy.deepcopy(row), pickle.loads(pickle.dumps(row)), row.copy(), row | {}):
            assert type(each) is dict
            assert (each["own"], each.get("more"), "own" in each, [*each]) == (1, None, True, [*plain[1]])
    if is_open:
        assert labels(dataset) == list(range(TOTAL))
        assert dataset[0][".cls"] == 0
    dataset.shards = [
        {**row, "url": row["url"].replace("/here/s", "/there/s").replace(f"s{k}", f"s{k + 1}")}
        for k, row in enumerate(dataset.shards)
    ]
    there = list(range(9, 18))
    assert dataset[0][".cls"] == 9
    assert labels(dataset) == labels(dataset.__getitems__(range(TOTAL))) == there
    assert flat(batched(dataset, workers=1, method="fork")) == labels(pickle.loads(pickle.dumps(dataset))) == there
    assert dataset.keys.find("s1-000") == [0]
    assert dataset[0]["__shard__"] == dataset.get_shard(0)[2]["url"] == str(tmp_path / "there" / "s1.tar")
    assert [sample["__dataset__"] for sample in dataset] == [""] * 3 + ["part"] * 6
    assert [row.get("own") for row in dataset.shards] == [None, 1, 2]
    first, second, third = dataset.shards
    dataset.shards = [first, {**second, "dataset": "mine", "filesize": 5}, third]
    with pytest.raises(ChangedShardError, match="filesize 5"):
        dataset[3]
    dataset.shards = [first, {**second, "dataset": "mine"}, {**third, "nsamples": 1}]
    assert (dataset[3]["__dataset__"], dataset.lengths) == ("mine", [3, 4, 1])
    assert pickle.loads(pickle.dumps(dataset)).shards == dataset.shards


def test_an_index_does_not_change(index):
    """What writes into a row, or into the list, raises a TypeError that says what to do; and nothing has changed."""
    dataset = wids.ShardListDataset(index)
    before, view = json.loads(json.dumps(dataset.shards)), dataset.select([0])
    changes_of_rows = (
        lambda row: row.__setitem__("url", "x.tar"),
        lambda row: row.__delitem__("url"),
        lambda row: row.__ior__({"nsamples": 1}),
        lambda row: row.update(nsamples=1),
        lambda row: row.setdefault("md5sum", "xyz"),
        lambda row: row.pop("url"),
        lambda row: row.popitem(),
        lambda row: row.clear(),
    )
    changes_of_lists = (
        lambda shards: shards.append(before[0]),
        lambda shards: shards.extend(before),
        lambda shards: shards.insert(0, before[0]),
        lambda shards: shards.remove(before[0]),
        lambda shards: shards.pop(),
        lambda shards: shards.clear(),
        lambda shards: shards.sort(key=str),
        lambda shards: shards.reverse(),
        lambda shards: random.Random(0).shuffle(shards),
        lambda shards: shards.__setitem__(0, shards[1]),
        lambda shards: shards.__setitem__(slice(1), shards[1:2]),
        lambda shards: shards.__delitem__(slice(2)),
        lambda shards: shards.__iadd__(before),
        lambda shards: shards.__imul__(2),
    )
    told = (
        r"read-only, and so are its rows; assign a new list, as in dataset\.shards = \[\{\*\*row, \.\.\.\} for row in"
    )
    for each in (dataset, view):
        for change in changes_of_rows:
            for row in (each.shards[0], each.spec["shardlist"][0], each.get_shard(0)[2]):
                with pytest.raises(TypeError, match=told):
                    change(row)
        for change in changes_of_lists:
            with pytest.raises(TypeError, match=told):
                change(each.shards)
    with pytest.raises(AttributeError, match="header"):
        dataset._collection.shards.header = {}
    assert dataset.shards == view.shards == before
    assert labels(dataset) == list(range(TOTAL))


def test_what_cannot_be_a_shard_is_refused(index):
    """A list that has one is not assigned."""
    dataset = wids.ShardListDataset(index)
    before = [dict(row) for row in dataset.shards]
    wrong = [{**before[1], **more} for more in ({"nsamples": -1}, {"md5sum": "xyz"}, {"nsamples": (1 << 63) - 1})]
    for row in ({"nsamples": 3}, {}, *wrong):
        with pytest.raises(SpecError, match=r"shards\[1\]|samples in all"):
            dataset.shards = [before[0], row, before[2]]
    assert dataset.shards == before
    assert labels(dataset) == list(range(TOTAL))


def test_prefetching_follows_changed_shards(web, tmp_path):
    """What is fetched ahead is what the list says now."""
    write_shards(tmp_path / "data" / "more", (9, *COUNTS))
    dataset = wids.ShardListDataset(f"{web.url}/index.json", cache_dir=tmp_path / "c")
    source = interface_of(dataset).prefetch_source()
    first, second = dataset.shards[1:]
    dataset.shards = [{**first, "url": f"{web.url}/more/s2.tar"}, second]
    assert source.shard(0).url == interface_of(dataset).prefetch_source().shard(0).url == f"{web.url}/more/s2.tar"
    assert [sample["__index__"] for sample in map(dataset.__getitem__, dataset.prefetch(range(6)))] == list(range(6))
    assert labels(dataset) == [12, 13, 14, 15, 7, 8]
    dataset.shards = [str(tmp_path / "data" / "s0.tar")]
    assert interface_of(dataset).prefetch_source() is None


def test_localname_is_a_function_also_where_none_was_given(web, tmp_path):
    """As in the original: URL -> the file that the shard is, or will be, in; it pickles with the dataset."""
    dataset = wids.ShardListDataset(f"{web.url}/index.json", cache_dir=tmp_path / "c")
    path = dataset.localname(dataset.shards[0]["url"])
    assert os.path.dirname(path) == str(tmp_path / "c")
    assert not os.path.exists(path)
    assert dataset[0][".cls"] == 0
    assert os.path.exists(path)
    assert pickle.loads(pickle.dumps(dataset)).localname(dataset.shards[0]["url"]) == path
    local = wids.ShardListDataset(str(tmp_path / "data" / "s0.tar"))
    assert local.localname(local.shards[0]["url"]) == str(tmp_path / "data" / "s0.tar")
    assert wids.ShardListDataset(f"{web.url}/index.json", localname=os.path.basename).localname is os.path.basename


class Unready(wids.ShardListDataset):
    """An ``__init__`` of its own that calls nobody's."""

    def __init__(self, **attributes):
        for name, value in attributes.items():
            setattr(self, name, value)


@pytest.mark.parametrize(
    "use",
    [
        lambda: Unready()[0],
        lambda: Unready().__getitems__([0]),
        lambda: len(Unready()),
        lambda: Unready().keys[0],
        lambda: Unready().get_stats(),
        lambda: Unready().stats(),
        lambda: Unready().locate(0),
        lambda: Unready(total_length=3, lengths=[3]).get_shard(0),
        lambda: list(wids.DistributedChunkedSampler(Unready())),
        lambda: next(iter(DataLoader(Unready(total_length=3)))),
        lambda: pickle.loads(pickle.dumps(Unready())),
        lambda: len(Unready(shards=[("a.tar", 1)])),
        lambda: len(Unready(spec={"shardlist": []})),
        lambda: len(Unready(spec={})),
        lambda: len(Unready(spec={"datasets": [{}], "shardlist": []})),
        lambda: Unready(lengths=[3], total_length=3, keys={}, spec={})[0],
        lambda: len(Unready(shards="no such index")),
        lambda: Unready().split(-1),
        lambda: Unready().select("no such file"),
        lambda: Unready().column_names,
        lambda: Unready().read_column("width"),
        lambda: Unready().with_table({}, on="key"),
        lambda: Unready().fingerprint,
        lambda: Unready().add_transform(3),
        lambda: len(Unready(transformations=3)),
        lambda: len(Unready(transformations="PIL")),
    ],
    ids=[
        "item",
        "items",
        "len",
        "keys",
        "get_stats",
        "stats",
        "locate",
        "get_shard",
        "sampler",
        "loader",
        "pickle",
        "set shards",
        "set spec",
        "set spec without shards",
        "set spec of parts",
        "set spec after others",
        "set shards that are none",
        "split",
        "select",
        "column_names",
        "read_column",
        "with_table",
        "fingerprint",
        "add_transform",
        "set transforms that are none",
        "set transforms",
    ],
)
def test_a_subclass_that_never_initializes_the_dataset(use):
    """It is told so at its first use, by name, with what to do."""
    with pytest.raises(RuntimeError, match=r"^Unready is a ShardListDataset that was never initialized: .*super"):
        use()


OWN_NAMES = ("keys", "column_names", "fingerprint", "contents")


class OwnAttributes(wids.ShardListDataset):
    """A subclass that has something of its own under names of ours, before its base is there or after."""

    def __init__(self, *args, early, **options):
        self.is_early = early
        if early:
            self.note()
        super().__init__(*args, **options)
        if not early:
            self.note()

    def note(self):
        """Assign them."""
        for name in OWN_NAMES:
            setattr(self, name, [name])


@pytest.mark.parametrize("early", [True, False])
def test_attributes_of_a_subclass_by_names_of_ours(index, early, tmp_path):
    """They are the subclass's own, in copies and views, too; nothing of the dataset reads them."""
    plain, dataset = wids.ShardListDataset(index), OwnAttributes(index, early=early)
    for each in (dataset, pickle.loads(pickle.dumps(dataset)), dataset.select([0, 5]), copy.copy(dataset)):
        assert [getattr(each, name) for name in OWN_NAMES] == [[name] for name in OWN_NAMES]
    keys = ["s0-001", "s2-000"]
    assert labels(dataset.select(keys)) == labels(plain.select(keys)) == [1, 7]
    assert [len(part) for part in dataset.split(0.5, 0.5)] == [len(part) for part in plain.split(0.5, 0.5)]
    dataset.exclude(keys).save(tmp_path / "view.json")
    assert labels(wids.ShardListDataset(tmp_path / "view.json")) == labels(plain.exclude(keys))
    assert [layout.fingerprint(dataset), layout.contents(dataset)] == [plain.fingerprint, plain.contents]
    state = wids.ChunkedSampler(dataset).state_dict()
    assert state == wids.ChunkedSampler(plain).state_dict()
    mixed = wids.mix({"a": (dataset, 1), "b": (dataset.select([0]), 1)})
    assert wids.ChunkedSampler(mixed).state_dict()["order"]["sources"]["a"]["dataset"] == plain.fingerprint


@pytest.mark.parametrize("name", ["shards", "spec", "transformations"])
def test_what_a_subclass_has_by_names_that_may_be_assigned(index, name):
    """It is read until the constructor of the base has run, which replaces it, be it of the object or of the class."""

    class Early(wids.ShardListDataset):
        def __init__(self, where):
            setattr(self, name, where)
            super().__init__(getattr(self, name))

    class Stated(wids.ShardListDataset):
        def __init__(self):
            super().__init__(getattr(self, name))

    setattr(Stated, name, index)
    plain = wids.ShardListDataset(index)
    for dataset in (Early(index), Stated(), Stated(), copy.copy(Stated())):
        assert labels(dataset) == list(range(TOTAL))
        assert list(getattr(dataset, name)) == list(getattr(plain, name)) or name == "transformations"
        dataset.shards = dataset.shards[:1]
        dataset.transformations = ["PIL", label_of]
        assert (len(dataset.spec["shardlist"]), dataset[1]) == (1, 1)
    for early in (Early.__new__(Early), wids.ShardListDataset.__new__(wids.ShardListDataset)):
        with pytest.raises(AttributeError, match=rf"has no attribute '{name}' yet: its __init__ has to call super"):
            getattr(early, name)


def test_lengths_of_a_subclass_s_own(index):
    """Those that are no counts of its shards leave the order what it is: shard by shard."""
    plain, dataset = wids.ShardListDataset(index), wids.ShardListDataset(index)
    dataset.lengths = [300] * TOTAL
    assert list(wids.ChunkedSampler(dataset)) == list(wids.ChunkedSampler(plain))
    orders = [list(wids.DistributedChunkedSampler(each, window=1, rank=0, num_replicas=1)) for each in (dataset, plain)]
    assert orders[0] == orders[1]


class Numbers(wids.ShardListDataset[int]):
    """A subclass that says what its samples are."""

    def __getitem__(self, index):
        return super().__getitem__(index)[".cls"]


def test_the_dataset_is_generic_in_its_samples(index):
    """ShardListDataset[X] is subscriptable, callable and inheritable, and all of them pickle."""
    T = typing.TypeVar("T")
    assert typing.get_args(wids.ShardListDataset[dict]) == (dict,)
    assert typing.get_args(wids.ShardListDataset[T][str]) == (str,)
    dataset = wids.ShardListDataset[int](index, transformations=["PIL", label_of])
    for each in (
        dataset,
        pickle.loads(pickle.dumps(dataset)),
        Numbers(index),
        pickle.loads(pickle.dumps(Numbers(index))),
    ):
        assert isinstance(each, wids.ShardListDataset)
        assert list(each) == each.__getitems__(range(TOTAL)) == list(range(TOTAL))
    loader = DataLoader(Numbers(index), batch_size=9, num_workers=1, multiprocessing_context="forkserver")
    assert next(iter(loader)).tolist() == list(range(TOTAL))


def label_of(sample):
    """A transformation that pickles."""
    return sample[".cls"]


# --- what is no list of shards, and what is no index


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda dataset: dataset,
            "shards is a ShardListDataset, not its index: give the index, or",
        ),
        (lambda dataset: dataset.select([0]), r"view\.save\('part\.json'\)"),
        (lambda dataset: wids.mix([dataset]), "shards is a Mixture, and no list of shards"),
        (
            lambda dataset: Subset(dataset, [0]),
            "shards is a Subset, and no list of shards: give the index",
        ),
        (DataLoader, "shards is a DataLoader, and no list of shards"),
        (wids.ChunkedSampler, "shards is a ChunkedSampler, and no list of shards"),
        (lambda dataset: [dataset], r"shards\[0\] is a ShardListDataset; it must be"),
        (lambda _: [5], r"shards\[0\] is an int; it must be"),
        (lambda _: [None], r"shards\[0\] is None; it must be"),
        (lambda _: [{"__key__": "a", ".txt": b""}], r"shards\[0\]\.url is missing; it is a sample, and no shard"),
        (lambda _: [{"path": "a.tar"}], r"shards\[0\]\.url is missing; its keys are \['path'\]"),
        (lambda _: {"shardlist": []}, "shards is a dict; give the index's path, or its list of shards"),
        (lambda _: 5, "shards is 5; give an index"),
        (lambda _: None, "shards is None; give an index"),
        (lambda _: b"a.tar", "shards is b'a.tar'; give an index"),
        (lambda _: (each for each in [0.5]), r"shards\[0\] is a float; it must be"),
    ],
)
def test_what_is_no_list_of_shards(index, make, words):
    """The error says what was given, and what would do; no sample is decoded for it."""
    decoded = []
    given = make(wids.ShardListDataset(index).add_transform(decoded.append))
    with pytest.raises(SpecError, match=words):
        wids.ShardListDataset(given)
    assert decoded == []


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda dataset: dataset, r"sources is a ShardListDataset; give datasets in a dict or a list: wids\.mix\("),
        (lambda dataset: Subset(dataset, [0]), "sources is a Subset; give datasets in"),
        (lambda _: "train.json", "sources is a str; give datasets in"),
        (lambda _: None, "sources is None; give datasets in"),
        (lambda _: ["train.json"], r"source '0' is a str; .*ShardListDataset\(\.\.\.\) opens an index"),
        (lambda dataset: [DataLoader(dataset)], "source '0' is a DataLoader; it must be a dataset"),
    ],
)
def test_what_is_no_list_of_datasets(index, make, words):
    """Likewise for a mixture."""
    decoded = []
    given = make(wids.ShardListDataset(index).add_transform(decoded.append))
    with pytest.raises(TypeError, match=words):
        wids.mix(given)
    assert decoded == []


def test_a_typo_in_a_path(index, monkeypatch):
    """The nearest name is told, of an index and of a shard; nothing is said about an index that is not there."""
    monkeypatch.chdir(Path(index).parent)
    (Path(index).parent / "one.tar").touch()
    name = os.path.basename(index)
    with pytest.raises(ShardNotFoundError, match=f"does not exist; there is {name}; check"):
        wids.ShardListDataset(name.upper())
    with pytest.raises(ShardNotFoundError, match=r"onee\.tar; there is .*one\.tar; check the path") as caught:
        _ = wids.ShardListDataset([("onee.tar", 1)])[0]
    assert "check the index" not in str(caught.value)


def forgetful(sample):
    """A transformation whose author forgot to return the sample."""
    sample[".txt"] = ""


def test_a_transformation_that_returns_none(index, caplog):
    """It is named once, where torch's collation or the next transformation fails with other words."""
    arguments.warn_of_none.cache_clear()
    dataset = wids.ShardListDataset(index).add_transform(forgetful)
    assert [dataset[k] for k in range(3)] == [None] * 3
    (said,) = caplog.messages
    assert "the transformation forgetful returned None: it has to return the sample" in said
    caplog.clear()
    dataset.add_transform(label_of)
    with pytest.raises(TypeError):
        _ = dataset[0]
    assert "the transformation before label_of returned None" in caplog.text
    caplog.clear()
    arguments.warn_of_none.cache_clear()
    mixture = wids.mix([wids.ShardListDataset(index)]).add_transform(forgetful)
    assert mixture[0] is None
    assert "the transformation forgetful returned None" in caplog.text


# --- indices that are none


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (slice(0, 2), "integers, not slice; for a range use dataset.select"),
        (1.0, "1.0 is not an index: dataset indices are integers, not float"),
        (None, "integers, not NoneType"),
        ("s0-000", r"integers, not str; for a key use dataset\[dataset.keys.index\(key\)\]"),
        (Image.new("RGB", (1, 1)), r"an Image is not an index: .*a sampler yields indices"),
        ({"__index__": 7}, "this is a sample, whose index is 7; a sampler yields indices"),
        ([1, 2], r"integers, not list; for several samples use dataset.__getitems__"),
        (np.array([1, 2]), "integers, not ndarray"),
        (torch.tensor(1.5), "integers, not Tensor"),
        (np.float32(1), "integers, not float32"),
    ],
)
def test_what_is_no_index_is_a_type_error_with_a_sentence(index, bad, message):
    """For ds[x], locate, a batch and a subclass's own get_shard alike."""

    class Own(wids.ShardListDataset):
        def get_shard(self, index):
            return super().get_shard(index)

    dataset, own = wids.ShardListDataset(index), Own(index)
    for use in (dataset.__getitem__, dataset.locate, lambda x: dataset.__getitems__([0, x]), own.__getitem__):
        with pytest.raises(TypeError, match=message):
            use(bad)


def test_booleans_count_as_the_integers_they_are(index):
    """As in a list."""
    dataset = wids.ShardListDataset(index)
    assert (dataset[True][".cls"], dataset[True]["__index__"]) == (1, 1)
    assert type(dataset[True]["__index__"]) is int


def test_an_index_error_from_a_transformation_does_not_end_a_loop(index):
    """Python ends a for loop over a sequence at any IndexError; that would cut the data off without a word."""

    def stumble(sample):
        return [][sample["__index__"]] if sample["__index__"] == 4 else sample

    dataset = wids.ShardListDataset(index, transformations=["PIL", stumble])
    seen = []
    with pytest.raises(IndexError, match="list index"):
        seen.extend(iter(dataset))
    assert [sample[".cls"] for _, sample in zip(range(4), dataset, strict=False)] == [0, 1, 2, 3]


# --- transformations on batches, fields, member facts


def refuse_5(sample):
    """A transformation that fails, and has replaced what it was given."""
    number = sample[".cls"]
    sample.clear()
    if number == 5:
        raise OSError(28, "no more of this")
    return {"number": number}


def test_an_error_of_a_transformation_names_the_sample(index):
    """Index, key, row and shard, in a note: type, message and attributes stay. Also in the loop, from a worker."""
    words = f"sample 5, key 's1-002', row 2 of {os.path.dirname(index)}/s1.tar"
    dataset = wids.ShardListDataset(index, transformations=["PIL", dict, refuse_5])
    mixture = wids.mix({"here": wids.ShardListDataset(index)}).add_transform(dict).add_transform(refuse_5)
    named = words.replace("sample 5", "sample 5 of 'here'")
    for read, expected in (
        (lambda: dataset[5], words),
        (lambda: dataset.__getitems__([4, 5]), words),
        (lambda: list(dataset), words),
        (lambda: mixture[5], named),
    ):
        with pytest.raises(OSError, match="no more of this") as caught:
            read()
        assert type(caught.value) is OSError
        assert (caught.value.args, caught.value.__notes__) == ((28, "no more of this"), [expected])
    stopped = wids.ShardListDataset(index, transformations=[iter, next, lambda _: next(iter(()))])
    with pytest.raises(RuntimeError) as caught:
        stopped[5]
    assert caught.value.__notes__ == [words]
    if sys.version_info >= (3, 11):  # whose tracebacks show notes
        with pytest.raises(Exception, match="no more of this") as caught:
            list(DataLoader(dataset, num_workers=1, collate_fn=list))
        assert words in str(caught.value)


@pytest.mark.parametrize("transformations", ["raw", "numpy", "torch"])
def test_a_sample_as_it_comes_can_be_collated(index, transformations):
    """By torch's own function, in workers too, as far as its fields are decoded: no value of its names is None."""
    fields = None if transformations == "raw" else (".txt", ".cls")
    dataset = wids.ShardListDataset(index, transformations=transformations, fields=fields)
    for workers in (0, 1):
        batch = next(iter(DataLoader(dataset, batch_size=4, num_workers=workers)))
        assert batch["__dataset__"] == [""] * 4
        assert batch["__key__"] == ["s0-000", "s0-001", "s0-002", "s1-000"]
    named = wids.mix({"here": dataset})
    assert next(iter(DataLoader(named, batch_size=2)))["__dataset__"] == ["here"] * 2


def test_batches_are_transformed_one_by_one(index):
    """What __getitems__ gives is what ds[i] gives, after transformations."""
    dataset = wids.ShardListDataset(index, transformations=["PIL", lambda sample: sample[".cls"] * 2])
    assert dataset.__getitems__(range(TOTAL)) == [dataset[i] for i in range(TOTAL)] == [2 * i for i in range(TOTAL)]


def test_large_and_small_samples_read_alike_in_every_way(tmp_path):
    """Members above and below what is read in one go, empty ones, and shards of 600 samples: items equal batches."""
    big = {f"b{k}.{name}": os.urandom(size) for k in range(12) for name, size in (("x", 30_000), ("y", 0), ("z", 7))}
    small = {f"s{k:04d}.x": b"%d" % k for k in range(600)}
    shards = [(write_tar(tmp_path / "b.tar", big), 12), (write_tar(tmp_path / "s.tar", small), 600)]
    order = np.random.default_rng(0).permutation(612).tolist() * 2
    for options in ({}, {"fields": ".x"}, {"use_mmap": True}):
        dataset = wids.ShardListDataset(shards, transformations="raw", **options)
        batch = dataset.__getitems__(order)
        assert batch == [dataset[i] for i in order]
        assert all(sample["__index__"] == i for sample, i in zip(batch, order, strict=True))
        for sample in batch:
            got = {sample["__key__"] + name: value for name, value in sample.items() if name[0] == "."}
            members = {**big, **small}
            assert got.items() <= members.items()
            assert len(got) == (1 if options.get("fields") or sample["__shardindex__"] >= 12 or len(got) == 1 else 3)


@pytest.mark.parametrize("access", ["local", "fetch", "range"])
def test_fields_in_any_case(tmp_path, access):
    """``.jpg`` reads ``.JPG``, under the name that the member has; a sample that has both keeps both."""
    members = {"a.JPG": b"1", "a.txt": b"x", "b.jpg": b"2", "b.Jpg": b"3", "c.seg.JPG": b"4", "c.Txt": b"y"}
    expected = [{".JPG": b"1"}, {".jpg": b"2", ".Jpg": b"3"}, {".seg.JPG": b"4"}]
    write_tar(tmp_path / "w/t.tar", members)
    with contextlib.ExitStack() as stack:
        place, options = tmp_path / "w/t.tar", {}
        if access != "local":
            place = f"{stack.enter_context(Server(str(tmp_path / 'w'))).url}/t.tar"
            options = {"access": access, "cache_dir": tmp_path / "c"}
        for fields in ((".jpg", ".Seg.jpg"), ("JPG", "seg.jpg")):
            dataset = wids.ShardListDataset([(str(place), 3)], transformations="raw", fields=fields, **options)
            for samples in ([*dataset], dataset.__getitems__([0, 1, 2])):
                found = [{name: value for name, value in each.items() if name[0] == "."} for each in samples]
                assert found == expected
            dataset.close()


def test_fields_that_no_sample_has_are_told(tmp_path, caplog):
    """Of the first shard that is opened, once, with what its samples have; right ones are not mentioned."""
    index = write_index(tmp_path, (3, 3))
    dataset = wids.ShardListDataset(index, fields=(".CLS", ".jepg", "x" * 500))
    assert not caplog.records
    assert [sample[".cls"] for sample in dataset] == [0, 1, 2, 3, 4, 5]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        f"fields: no sample of {tmp_path}/s0.tar has '.jepg', '.{'x' * 99}'... (401 more); "
        "its samples have .bin, .cls, .txt (other shards were not looked at)"
    )
    caplog.clear()
    for fields in (None, ".txt", (".cls", ".bin")):
        assert len([*wids.ShardListDataset(index, fields=fields)]) == 6
    assert not caplog.records
    assert wids.ShardListDataset(index, fields=(".tcls",))[0]["__key__"]
    assert caplog.records[-1].getMessage().endswith("(other shards were not looked at); did you mean .cls?")
    with pytest.raises(TypeError, match=r"fields has 3; it holds extensions"):
        wids.ShardListDataset(index, fields=(".cls", 3))


def test_a_field_that_nobody_looks_at_does_not_fail_its_sample(tmp_path):
    """Members that wids 0.1 left alone may be something else than their extension says; they stay streams."""
    members = {"a.cls": b"3", "a.index": b"text", "a.jsonl": b"{", "a.npz": b"x", "a.gif": b"x", "a.tif": b"x"}
    (sample,) = wids.ShardListDataset([(write_tar(tmp_path / "t.tar", members), 1)])
    assert sample[".cls"] == 3
    assert {name: sample[name[1:]].read() for name in members if name != "a.cls"} == {
        name: data for name, data in members.items() if name != "a.cls"
    }


# --- statistics and the one warning


def test_an_order_without_locality_is_told_once(tmp_path, caplog):
    """More than 30 % of more than 100 accesses opened a shard that had been open before."""
    dataset = wids.ShardListDataset(write_shards(tmp_path, (20, 20)), lru_size=1)
    for i in range(100):
        _ = dataset[(i % 2) * 20]
    assert not caplog.records
    dataset.__getitems__([0, 20])
    for i in range(10):
        _ = dataset[(i % 2) * 20]
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("wids", "WARNING")
    assert "100.0% of accesses opened a shard" in record.getMessage()
    assert "lru_size (1)" in record.getMessage()


class Info:
    """What torch tells a worker of itself."""

    def __init__(self, number):
        self.id = number


@pytest.mark.parametrize(("worker", "count"), [(0, 1), (1, 0)])
def test_of_many_workers_only_the_first_tells(tmp_path, caplog, monkeypatch, worker, count):
    """The others would say the same once more each, every epoch."""
    monkeypatch.setattr(module, "get_worker_info", lambda: Info(worker))
    dataset = wids.ShardListDataset(write_shards(tmp_path, (20, 20)), lru_size=1)
    for i in range(110):
        _ = dataset[(i % 2) * 20]
    assert len(caplog.records) == count


# --- loaders


class Given(Sampler):
    """Yields what it is given."""

    def __init__(self, indices):
        self.indices = indices

    def __iter__(self):
        return iter(self.indices)

    def __len__(self):
        return len(self.indices)


def batched(dataset, *, workers, method=None, **options):
    """A loader whose batches are lists of samples; ``list`` pickles, so it reaches spawned workers."""
    return DataLoader(
        dataset,
        collate_fn=list,
        num_workers=workers,
        multiprocessing_context=method if workers else None,
        **{"batch_size": 4, **options},
    )


def flat(loader):
    """The labels of a whole epoch, in order."""
    return [sample[".cls"] for batch in loader for sample in batch]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batching", ["fetch", "sampler", "one"])
def test_loader_over_two_epochs(index, workers, batching):
    """Batches, a batch sampler, and no batches at all: each epoch gives every sample, in order."""
    dataset = wids.ShardListDataset(index)
    if batching == "one":
        loader = DataLoader(dataset, batch_size=None, num_workers=workers)
        epochs = [labels(loader) for _ in range(2)]
    else:
        options = {} if batching == "fetch" else {"batch_size": 1, "batch_sampler": Given([[8, 0], [3, 3, 1]])}
        loader = batched(dataset, workers=workers, method="fork", **options)
        epochs = [flat(loader) for _ in range(2)]
    assert epochs == [[8, 0, 3, 3, 1] if batching == "sampler" else list(range(TOTAL))] * 2


def test_loader_with_persistent_workers_and_shuffling(web, tmp_path):
    """Two epochs of two lasting workers over a remote index: another order each, every sample once a time."""
    dataset = wids.ShardListDataset(f"{web.url}/index.json", cache_dir=tmp_path / "c")
    sampler = wids.DistributedChunkedSampler(dataset, chunksize=1000, shuffle=True, seed=1)
    loader = batched(dataset, workers=2, method="fork", sampler=sampler, persistent_workers=True)
    epochs = [flat(loader) for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert [sorted(epoch) for epoch in epochs] == [list(range(TOTAL))] * 2
    del loader
    assert sorted(path for path in web.requests if path.endswith(".tar")) == [f"/data/s{k}.tar" for k in range(3)]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_share_one_cache_and_download_each_shard_once(web, tmp_path, method):
    """Two workers, started in each way, that all want all shards at once; the dataset was in use before."""
    dataset = wids.ShardListDataset(f"{web.url}/index.json", cache_dir=tmp_path / "c")
    assert dataset[0][".cls"] == 0
    order = [0, 3, 7, 8, 0, 3, 7, 8]
    loader = batched(dataset, workers=2, method=method, sampler=Given(order), batch_size=1)
    assert flat(loader) == order
    assert sorted(path for path in web.requests if path.endswith(".tar")) == [f"/data/s{k}.tar" for k in range(3)]
    assert not list((tmp_path / "c").glob("*.part"))


def failing_datasets(directory):
    """By name: (shards, index of a bad sample, error type, words of its message)."""
    shards = write_shards(directory, COUNTS)
    wrong = [{**shards[0], "nsamples": 2}, *shards[1:]]
    gone = [*shards[:2], {"url": str(directory / "gone.tar"), "nsamples": 2}]
    other = [{**shards[0], "filesize": 5}]
    junk = directory / "junk.tar"
    junk.write_bytes(b"x" * 1024)
    pickled = [(write_tar(directory / "p.tar", {"a.pkl": b"x"}), 1)]
    damaged = [(write_tar(directory / "d.tar", {"a.jpg": b"x"}), 1)]
    return {
        "count": (wrong, 0, CountMismatchError, ["s0.tar: holds 3 samples, and the index says 2"]),
        "missing": (gone, 8, ShardNotFoundError, ["gone.tar", "there is no file"]),
        "changed": (other, 0, ChangedShardError, ["s0.tar", "filesize 5; upload or copy the shard again"]),
        "junk": ([(str(junk), 1)], 0, TarError, ["junk.tar"]),
        "unsafe": (pickled, 0, UnsafeFormatError, [".pkl", "'a'", "p.tar"]),
        "damaged": (damaged, 0, DecodeError, [".jpg", "'a'", "d.tar"]),
    }


@pytest.mark.parametrize("kind", ["count", "missing", "changed", "junk", "unsafe", "damaged"])
def test_errors_cross_from_workers_as_what_they_are(tmp_path, kind):
    """Their type, so that except clauses hold, and their whole message; the same as without workers."""
    shards, bad, expected, words = failing_datasets(tmp_path)[kind]
    dataset = wids.ShardListDataset(shards)
    for workers in (0, 1):
        batches = iter(batched(dataset, workers=workers, method="fork", sampler=Given([bad]), batch_size=2))
        with pytest.raises(expected) as caught:
            next(batches)
        if workers:
            batches._shutdown_workers()  # left to the garbage collector, torch waits five seconds for them
        assert isinstance(caught.value, wids.WidsError)
        for word in words:
            assert word in str(caught.value)


SUBCLASS = """
import wids

class Doubled(wids.ShardListDataset):
    def __init__(self, path, factor):
        super().__init__(path, transformations=["PIL", self.pick])
        self.factor = factor

    def pick(self, sample):
        return sample[".cls"]

    def __getitem__(self, index):
        return super().__getitem__(index) * self.factor
"""


def test_subclass_with_its_own_init_reaches_spawned_workers(index, tmp_path, monkeypatch):
    """A dataset that refers to itself in its transformations pickles, and its override holds over there."""
    (tmp_path / "their_module.py").write_text(SUBCLASS)
    monkeypatch.syspath_prepend(tmp_path)
    import their_module

    dataset = their_module.Doubled(index, 10)
    twin = pickle.loads(pickle.dumps(dataset))
    assert list(twin) == list(range(0, 90, 10))
    assert twin.transformations[1].__self__ is twin
    loader = DataLoader(dataset, batch_size=5, num_workers=1, multiprocessing_context="spawn")
    assert torch.cat(list(loader)).tolist() == list(range(0, 90, 10))


# --- pickles, forks, threads, closing in between


@pytest.mark.parametrize("is_used", [False, True])
def test_pickling_before_and_after_use(web, tmp_path, is_used):
    """A copy has everything but the open shards; it counts for itself; the original goes on."""
    dataset = wids.ShardListDataset(
        f"{web.url}/index.json", cache_dir=tmp_path / "c", lru_size=3, fields=(".cls",), dataset_name="n"
    )
    if is_used:
        assert labels(dataset) == list(range(TOTAL))
        _ = dataset.shards, dataset.keys.find("s0-000")
    twin = pickle.loads(pickle.dumps(dataset))
    assert twin.get_stats() == (0, 0)
    assert len(twin.cache.lru) == 0
    assert twin.cache.lru.capacity == 3
    for attribute in ("lengths", "total_length", "shards", "spec", "base", "cache_dir", "dataset_name", "fields"):
        assert getattr(twin, attribute) == getattr(dataset, attribute)
    assert twin.cum_lengths.tolist() == dataset.cum_lengths.tolist()
    assert labels(twin) == labels(dataset) == list(range(TOTAL))
    assert twin.get_stats() == (TOTAL, 3)
    twin.close()
    assert labels(dataset) == list(range(TOTAL))


def test_close_in_the_middle_of_a_loop(index):
    """The loop goes on; also that of a reader that was taken out before."""
    dataset = wids.ShardListDataset(index)
    shard, row, _ = dataset.get_shard(1)
    got = []
    for sample in dataset:
        got.append(sample[".cls"])
        dataset.close()
    assert got == list(range(TOTAL))
    assert shard[row]["__key__"] == "s0-001"
    assert dataset.get_stats() == (TOTAL + 1, TOTAL + 1)  # it was closed, and is opened again


def test_close_frees_the_descriptors(tmp_path):
    """Of all shards read, as many are open as lru_size says, and none after close()."""

    def count():
        number = 0
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # the listing's own, and those of other threads
                number += os.readlink(f"/proc/self/fd/{name}").startswith(str(tmp_path))
        return number

    dataset = wids.ShardListDataset(write_shards(tmp_path, (2,) * 30), lru_size=10)
    assert count() == 0
    assert labels(dataset) == list(range(60))
    assert count() == 10
    dataset.close()
    assert count() == 0


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy])
def test_copies_read_on_their_own(index, how):
    """Frameworks copy datasets; either one goes on when the other is closed."""
    dataset = wids.ShardListDataset(index)
    assert dataset[0][".cls"] == 0
    other = how(dataset)
    dataset.close()
    assert labels(other) == list(range(TOTAL))
    other.close()
    assert labels(dataset) == list(range(TOTAL))
    other.transformations = []
    assert dataset[0][".cls"] == 0


def test_threads_read_at_once(web, tmp_path):
    """Eight threads in one dataset with room for two shards, one closing it all the while: every sample is right."""
    dataset = wids.ShardListDataset(f"{web.url}/index.json", cache_dir=tmp_path / "c", lru_size=2)
    start, failures = threading.Barrier(8), []

    def read(number):
        try:
            start.wait(PATIENCE_SECONDS)
            order = np.random.default_rng(number).integers(0, TOTAL, 200).tolist()
            for at, i in enumerate(order):
                assert dataset[i][".cls"] == i
                if at % 20 == number:
                    dataset.close()
            assert labels(dataset.__getitems__(order)) == order
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert failures == []
    dataset.close()


def test_fork_after_use(index):
    """A child goes on with the shards that are open; neither side's reading or closing disturbs the other."""
    dataset = wids.ShardListDataset(index)
    assert labels(dataset) == list(range(TOTAL))

    def work(connection):
        got = labels(dataset)
        dataset.close()
        connection.send((got, labels(dataset)))

    context = multiprocessing.get_context("fork")
    ours, its = context.Pipe()
    process = context.Process(target=work, args=(its,))
    process.start()
    try:
        assert labels(dataset) == list(range(TOTAL))
        assert ours.poll(PATIENCE_SECONDS)
        assert ours.recv() == (list(range(TOTAL)),) * 2
        assert labels(dataset) == list(range(TOTAL))
    finally:
        process.join(PATIENCE_SECONDS)
        process.kill()
        process.join()


# --- events and logging


def test_hooks_see_what_happens(web, tmp_path, events):
    """Fetched once a shard, Opened each time; a hook that fails is logged and harms nothing."""

    def broken(event):
        raise RuntimeError("a hook's own bug")

    dataset = wids.ShardListDataset(f"{web.url}/index.json", cache_dir=tmp_path / "c", hooks=[broken, events])
    logging.getLogger("wids").disabled = True
    try:
        assert labels(dataset) == list(range(TOTAL))
        dataset.close()
        assert labels(dataset) == list(range(TOTAL))
    finally:
        logging.getLogger("wids").disabled = False
    assert sum(isinstance(event, Fetched) for event in events) == 3
    assert sum(isinstance(event, Opened) for event in events) == 6


def test_logging_of_a_dataset_says_where_it_reads(index, caplog):
    """At INFO, under ``wids``: shards, samples, bytes, name, base, cache."""
    caplog.set_level(logging.INFO, logger="wids")
    dataset = wids.ShardListDataset(index, dataset_name="mine")
    (record,) = caplog.records
    assert sum(shard["filesize"] for shard in dataset.shards) == 40_960
    told = f": 3 shards, 9 samples, 41 kB, name mine, base {dataset.base}, cache {dataset.cache_dir}"
    assert told in record.getMessage()


def test_a_program_that_reads_and_exits(index):
    """Nothing is left for the interpreter's end to complain of, with shards open and a generator half-way."""
    code = (
        "import sys, wids\n"
        "ds = wids.ShardListDataset(sys.argv[1], use_mmap=True)\n"
        "loop = iter(ds); next(loop); ds.keys.find('s0-000')\n"
        "print(ds[-1]['.cls'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", code, index], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "8\n", "")


def test_default_capacity_follows_the_descriptors(index):
    """lru_size is a quarter of them by default; programs that give it are obeyed, 0 still reads."""
    assert 16 <= wids.ShardListDataset(index).cache.lru.capacity <= 512
    for size in (0, 1, 1000):
        dataset = wids.ShardListDataset(index, lru_size=size)
        assert dataset.cache.lru.capacity == size
        assert labels(dataset) == list(range(TOTAL))
        assert len(dataset.cache.lru) == min(max(1, size), 3)


def test_the_bound_of_compressed_members(tmp_path):
    """max_inflate_bytes holds for the formats that the dataset decodes itself."""
    path = write_tar(tmp_path / "a.tar", {"0.txt.gz": gzip.compress(b"a" * 1000)})
    assert len(wids.ShardListDataset([path])[0][".txt.gz"]) == 1000
    with pytest.raises(DecodeError, match="max_inflate_bytes=999"):
        wids.ShardListDataset([path], max_inflate_bytes=999)[0]
    with pytest.raises(ValueError, match="max_inflate_bytes"):
        wids.ShardListDataset([path], max_inflate_bytes=-1)


def test_a_worker_knows_the_servers_that_have_answered(tmp_path, no_waits, monkeypatch):
    """A process that is started is as patient with them as the one that started it."""
    dataset = wids.ShardListDataset(write_index(tmp_path), transformations=[])
    retrying.note_answered(["http://known"])
    data = pickle.dumps(dataset)
    monkeypatch.setattr(retrying, "_answered", set())
    pickle.loads(data)
    assert retrying.answered() == {"http://known"}


@pytest.mark.parametrize("read", [lambda ds, i: ds[i], lambda ds, i: ds.__getitems__([i])], ids=["item", "batch"])
def test_an_error_has_no_other_one_behind_it(tmp_path, read):
    """What goes wrong when a shard is opened is not told as something that happened while another error was handled."""
    shards = write_shards(tmp_path, (3, 4))
    dataset = wids.ShardListDataset(shards)
    read(dataset, 0)
    os.unlink(shards[1]["url"])
    with pytest.raises(wids.errors.ShardNotFoundError) as caught:
        read(dataset, 4)
    behind, error = [], caught.value
    while error is not None:
        behind.append(type(error))
        error = error.__cause__ or error.__context__
    assert behind == [wids.errors.ShardNotFoundError, FileNotFoundError]
    dataset.close()
    with pytest.raises(wids.errors.ShardNotFoundError) as caught:
        read(dataset, 4)
    assert caught.value.__cause__.__context__ is None


# --- streams that workers send


class Named(io.BytesIO):
    """A subclass goes its own way."""


def test_streams_are_sent_as_they_are():
    """Bytes, position and attributes of a stream arrive, also of an empty one and of a subclass; it can be written."""
    moved, marked, own = io.BytesIO(b"abc"), io.BytesIO(b"d"), Named(b"e")
    moved.seek(2)
    marked.name = "x"
    sent = [io.BytesIO(b"whole"), io.BytesIO(), moved, marked, own]
    got = pickle.loads(multiprocessing.reduction.ForkingPickler.dumps(sent))
    assert [stream.getvalue() for stream in got] == [stream.getvalue() for stream in sent]
    assert [stream.tell() for stream in got] == [0, 0, 2, 0, 0]
    assert (got[3].name, type(got[4])) == ("x", Named)
    got[0].write(b"W")
    assert (got[0].getvalue(), sent[0].getvalue()) == (b"Whole", b"whole")
    sent[1].close()
    with pytest.raises(ValueError, match="closed"):
        multiprocessing.reduction.ForkingPickler.dumps(sent)


# --- names of shards that mean something in a URL

ODD_NAMES = [
    "a#1.tar",
    "what?.tar",
    "100%.tar",
    "a%20b.tar",
    "b%23.tar",
    "x.y?z=1.tar",
    "sub#dir/50%25 c.tar",
    "plain.tar",
]
# What would be read as other URLs or a home directory, if an index had these names as they are.
MISREAD_NAMES = ["x::y.tar", "d::e/x.tar", "~t.tar", "~/t.tar", "pipe:x.tar", "a.tar?x=1.tar"]


def write_odd_names(root, names):
    """Shards of these names, and what each sample is, by the name of its shard."""
    for number, name in enumerate(names):
        write_tar(root / name, [(f"k{number}.txt", name.encode())])
    return [name.encode() for name in names]


def texts_at(place, **options):
    """The texts of all samples, whole shards and by range."""
    found = []
    for access in ("fetch", "range"):
        dataset = wids.ShardListDataset(place, transformations="raw", access=access, **options)
        found.append([sample[".txt"] for sample in dataset])
    assert found[0] == found[1]
    return found[0]


def test_odd_names_are_published(tmp_path, own_cache):
    """An index beside its shards holds on a disk, below a ``file:`` URL and on a server, with all that is beside it."""
    root = tmp_path / "d"
    names = ODD_NAMES + MISREAD_NAMES
    wanted = write_odd_names(root, names)
    places = [str(root / name) for name in names]
    run_ok("index", "create", *places, "-o", root / "train.json", "--members")
    run_ok("index", "tables", root / "train.json", "-o", root / "t%20.tables")
    run_ok("index", "convert", root / "train.json", "-o", root / "train.widsx")
    wids.ShardListDataset(root / "train.json").select(range(len(wanted))).save(root / "v%20.json")
    with Server(root) as server:
        for home in (root, f"file://{root}", server.url):
            for name in ("train.json", "train.widsx"):
                assert texts_at(f"{home}/{name}") == wanted
        assert texts_at(f"{server.url}/v%2520.json") == texts_at(root / "v%20.json") == wanted
        assert not any(path.endswith(".widx") for path in server.requests)  # the pack has them all
        local, far = (wids.ShardListDataset(f"{home}/train.json") for home in (root, server.url))
        assert fingerprint(local._collection.shards) == fingerprint(far._collection.shards)


def test_odd_names_below_another_base(tmp_path, own_cache):
    """``rebase``, ``create --base`` and back: the files are the same ones."""
    root = tmp_path / "d"
    names = ODD_NAMES + MISREAD_NAMES
    wanted = write_odd_names(root, names)
    places = [str(root / name) for name in names]
    with Server(root) as server:
        run_ok("index", "create", *places, "-o", tmp_path / "base.json", "--base", server.url)
        assert texts_at(tmp_path / "base.json") == wanted
        run_ok("index", "create", *places, "-o", root / "train.json")
        (tmp_path / "e").mkdir()
        run_ok("index", "create", *places, "-o", tmp_path / "e" / "absolute.json")
        for source in (root / "train.json", tmp_path / "e" / "absolute.json"):
            run_ok("index", "rebase", source, "--base", server.url, "-o", tmp_path / "far.json")
            assert texts_at(tmp_path / "far.json") == wanted
            run_ok("index", "merge", tmp_path / "far.json", "-o", tmp_path / "merged.json")
            assert texts_at(tmp_path / "merged.json") == wanted
            run_ok("index", "rebase", tmp_path / "merged.json", "--base", root, "-o", tmp_path / "near.json")
            assert texts_at(tmp_path / "near.json") == wanted
        # An index that another program wrote, with the names of files as they are.
        wanted = wanted[: len(ODD_NAMES)]
        rows = [{"url": name, "nsamples": 1} for name in ODD_NAMES]
        (root / "plain.json").write_text(json.dumps({"wids_version": 1, "shardlist": rows}))
        run_ok("index", "rebase", root / "plain.json", "--base", server.url, "-o", tmp_path / "far.json")
        assert texts_at(root / "plain.json") == texts_at(tmp_path / "far.json") == wanted


def test_quoted_names_of_an_index_on_a_server(tmp_path, own_cache):
    """Those that are written as URLs are read as such: letters that are quoted stay so, and a query is one."""
    write_tar(tmp_path / "a b#.tar", [("k.txt", b"x")])
    rows = [{"url": url, "nsamples": 1} for url in ("a%20b%23.tar", "a b#.tar", "a%20b%23.tar?sig=1#2")]
    (tmp_path / "train.json").write_text(json.dumps({"wids_version": 1, "shardlist": rows}))
    with Server(tmp_path) as server:
        assert texts_at(f"{server.url}/train.json") == [b"x"] * 3


def test_a_writer_of_odd_names(tmp_path, own_cache):
    """ShardWriter's index, likewise."""
    with wids.ShardWriter(tmp_path / "d" / "a%20?#%d.tar", samples=1) as writer:
        for key in "ab":
            writer.write({"__key__": key, "txt": key})
    with Server(tmp_path / "d") as server:
        (index,) = (name for name in os.listdir(tmp_path / "d") if name.endswith(".json"))
        for home in (str(tmp_path / "d"), server.url):
            place = f"{home}/{quote(index) if home == server.url else index}"
            assert texts_at(place) == [b"a", b"b"]


# --- options that do not fit


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *(
            ({name: "no"}, f"{name} is 'no'; it must be True or False")
            for name in ("keep", "allow_pickle", "allow_pipe", "allow_local", "cache_local", "use_mmap", "early_reads")
        ),
        ({"lru_size": -1}, "lru_size is -1; it must be at least 0"),
        ({"lru_size": 1.5}, "lru_size is 1.5; it must be an integer"),
        ({"cache_size": "200 sheep"}, "cache_size: '200 sheep' is not a size; write it like 10GB"),
        ({"prefetch": "much"}, "prefetch: 'much' is not a size; write it like 10GB"),
        ({"cache_size": True}, "cache_size is True; it must be a number of bytes"),
        ({"hooks": [print, 5]}, "hooks is .*; it must be a list of functions"),
        ({"hooks": print}, "hooks is .*; it must be a list of functions"),
        ({"storage_options": "key"}, "storage_options is a str; it must be a dict"),
        ({"options": "name"}, "options is a str; it must be a dict"),
        ({"cache_size": [1]}, r"cache_size is \[1\]; it must be a number of bytes"),
        ({"cache_dir": 5}, "cache_dir is 5; it must be the path of a directory"),
        ({"cache_dir": "s3://bucket/cache"}, "cache_dir is 's3://bucket/cache'; it must be a directory of this"),
        ({"localname": "/cache"}, "localname is '/cache'; it must be a function URL -> path"),
        ({"base": 5}, "base is 5; it must be a URL or a path"),
        ({"key_rule": "dots"}, "key_rule is 'dots'; it must be one of"),
        ({"group": "adjacnt"}, "group is 'adjacnt'; it must be 'adjacent' or 'key'"),
        ({"max_inflate_bytes": -1}, "max_inflate_bytes is -1; it must be a number of bytes"),
        ({"max_inflate_bytes": "much", "transformations": []}, "max_inflate_bytes is 'much'; it must be"),
        ({"access": "ranges"}, "access is 'ranges'; it is 'fetch'"),
        ({"on_error": "skip"}, "on_error is 'skip'; it must be 'raise' or 'substitute'"),
        ({"on_count_mismatch": "skip"}, "on_count_mismatch is 'skip'; it must be 'error' or 'warn'"),
        ({"on_error": "substitute", "max_errors": 2}, "max_errors is 2; it is a share of the samples"),
        ({"transformations": "JPG"}, "unknown format 'JPG'; choose one of"),
    ],
    ids=str,
)
def test_an_option_that_does_not_fit_is_named(options, words):
    """When the dataset is made, and before its index is read; it is not taken for something else."""
    with pytest.raises((ValueError, TypeError), match=words):
        wids.ShardListDataset("/there/is/none.json", **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_errors": 0.5}, "max_errors needs on_error='substitute'"),
        ({"error_log": "bad.jsonl"}, "error_log needs on_error='substitute'"),
        ({"cache_size": "1GB", "access": "range"}, "cache_size is for shards that go into the cache, and with"),
        ({"cache_local": True, "access": "range"}, "cache_local is for shards that go into the cache, and with"),
    ],
    ids=str,
)
def test_an_option_that_means_nothing_beside_another_is_an_error(options, words):
    """It says which one it is for; nothing is left without effect in silence."""
    with pytest.raises(InputError, match=words):
        wids.ShardListDataset("/there/is/none.json", **options)


def test_a_cache_directory_may_be_a_file_url(web, tmp_path):
    """As an index may."""
    dataset = wids.ShardListDataset(f"{web.url}/index.json", cache_dir=f"file://{tmp_path}/c", prefetch=False)
    assert dataset[0][".cls"] == 0
    assert dataset.cache_dir == f"{tmp_path}/c"
    assert os.path.dirname(dataset.get_shard(0)[0].path) == f"{tmp_path}/c"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (".jpeg", "; it has the fields .jpg, .cls"),
        (".JPG", "; it has the fields .jpg, .cls"),
        ("jpg", "; it has the fields .jpg, .cls"),
        ("dog", ""),  # of another dict, most likely
        (3, ""),
        (".jpg", ""),
    ],
)
def test_an_error_for_a_field_that_a_sample_lacks_says_what_it_has(tmp_path, asked, words):
    """A program asks for ``.jpg`` of ``.jpeg``; nothing is said where something else lacks the key."""
    write_tar(tmp_path / "a.tar", {"0.jpg": b"", "0.cls": b"3", "0.txt": b""})
    dataset = wids.ShardListDataset(str(tmp_path / "a.tar"), transformations="raw", fields=(".jpg", ".cls"))

    def fail(sample):
        return {**sample, asked: {}[asked]} if asked in sample else sample[asked]

    with pytest.raises(KeyError) as caught:
        dataset.add_transform(fail)[0]
    (note,) = caught.value.__notes__
    assert note.endswith(f"row 0 of {tmp_path}/a.tar{words}")


def test_the_fields_that_a_sample_has_are_not_listed_without_end(tmp_path):
    """Twelve of them are."""
    names = [f".f{k:02}" + "x" * (90 * (k == 0)) for k in range(40)]
    write_tar(tmp_path / "a.tar", [(f"a{name}", b"") for name in names])
    dataset = wids.ShardListDataset(str(tmp_path / "a.tar"), transformations=["raw", lambda sample: sample[".jpg"]])
    with pytest.raises(KeyError) as caught:
        dataset[0]
    (note,) = caught.value.__notes__
    assert note.endswith(", .f10, .f11, ...")


def test_one_is_no_plural(tmp_path):
    """In what a dataset is shown as."""
    write_shard(tmp_path / "a.tar", 1)
    place = str(tmp_path / "a.tar")
    assert repr(wids.ShardListDataset(place, dataset_name="d")) == "<ShardListDataset 'd': 1 sample in 1 shard>"
    pair = [(place, 1), (place, 1)]
    assert repr(wids.ShardListDataset(pair, dataset_name="d")) == "<ShardListDataset 'd': 2 samples in 2 shards>"


def test_sizes_may_be_texts(index):
    """As on the command line."""
    dataset = wids.ShardListDataset(index, cache_size="200GB", prefetch="1.5 MiB", cache_local=True)
    source = interface_of(dataset).prefetch_source()
    assert (source.cache_size, source.ahead_bytes) == (200_000_000_000, 1_572_864)


@pytest.mark.parametrize(
    ("make", "name", "words"),
    [
        (wids.ShardListDataset, "cachedir", "'cachedir'; did you mean cache_dir?"),
        (wids.ChunkedSampler, "chunk_size", "'chunk_size'; did you mean chunksize?"),
        (wids.DistributedChunkedSampler, "chunk_size", "'chunk_size'; did you mean chunksize?"),
        (wids.ShardListSampler, "length", "'length'; did you mean lengths?"),
        (wids.ShardWriter, "storage_option", "'storage_option'; did you mean storage_options?"),
        (wids.ShardListDataset, "zebra", "'zebra'; it takes shards, split, config, revision, "),
        # Names of webdataset, unlike any here.
        (wids.ShardListDataset, "shardshuffle", "'shardshuffle'; it takes shards, split, config, revision, "),
        (wids.ShardWriter, "maxcount", "'maxcount'; it takes pattern, samples, size, "),
    ],
)
def test_an_argument_that_is_misspelt(index, make, name, words):
    """The error names the one with a similar spelling, or all of them; signatures stay as they are."""
    with pytest.raises(TypeError) as caught:
        make(index, **{name: 1})
    message = str(caught.value)
    assert message.startswith(f"{make.__name__}.__init__() got an unexpected keyword argument {words}")
    parameters = [name for name in inspect.signature(make.__init__).parameters if name != "self"]
    assert "did you mean" in message or message.endswith(f"; it takes {', '.join(parameters)}")
    assert name not in inspect.signature(make.__init__).parameters
    assert len(inspect.signature(make.__init__).parameters) > 4


def test_misspelt_arguments_of_all_that_is_public(index):
    """Whatever takes more than one argument suggests the one that is meant, methods too, before it does anything."""
    dataset = wids.ShardListDataset(index)
    mixture = wids.mix([dataset])
    owners = [dataset, mixture, wids.MixtureBatchSampler(mixture, 2), wids.DistributedChunkedSampler(dataset)]
    owners += [wids.ChunkedSampler(dataset), wids.ShardListSampler(dataset)]
    functions = [
        getattr(owner, name)
        for owner in owners
        for name in dir(type(owner))
        if not name.startswith("_") and inspect.isfunction(inspect.getattr_static(owner, name))
    ]
    functions += [getattr(wids, name) for name in wids.__all__]
    asked = set()
    for function in functions:
        is_ours = (getattr(function, "__module__", None) or "").startswith("wids")
        if not is_ours or not callable(function) or (inspect.isclass(function) and issubclass(function, Exception)):
            continue
        named = inspect.signature(function.__init__ if inspect.isclass(function) else function).parameters.values()
        if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in named):  # what takes those looks at them
            continue
        names = [one.name for one in named if one.kind is not inspect.Parameter.VAR_POSITIONAL and one.name != "self"]
        if len(names) > 1:
            with pytest.raises(TypeError, match=f"'{names[-1]}_'; did you mean {names[-1]}"):
                function(**{f"{names[-1]}_": 1})
            asked.add(function.__name__)
    assert asked >= {"balance", "split", "save", "with_table", "with_columns", "state_dict", "SampleDecoder", "Mixture"}
    for function, word in ((wids.mix, "source"), (dataset.select, "sample"), (dataset.where, "predicat")):
        with pytest.raises(TypeError, match=f"'{word}'; did you mean {word}"):
            function(**{word: 1})


def test_a_sampler_of_a_dataset_that_has_grown(index):
    """Is an error, for it would read a part; not where a part, or lengths, were asked for."""
    dataset = wids.ShardListDataset(index)
    shards = dataset.shards
    dataset.shards = shards[:1]
    samplers = [wids.DistributedChunkedSampler(dataset), wids.ChunkedSampler(dataset), wids.ShardListSampler(dataset)]
    lasting = [wids.ChunkedSampler(dataset, num_samples=3), wids.ShardListSampler(dataset, lengths=[3])]
    lasting.append(wids.ChunkedSampler(dataset))
    lasting[-1].ranges = [(0, 3)]
    dataset.shards = shards
    for sampler in samplers:
        for ask in (len, list, lambda sampler: sampler.state_dict()):
            with pytest.raises(InputError, match=r"made for all 3 samples of its dataset, which has 9 now; make the"):
                ask(sampler)
    for sampler in lasting:
        assert sorted(sampler) == [0, 1, 2]


def test_a_sampler_of_another_dataset_than_the_loaders(index):
    """Is an error where the two differ in length; a dataset around the sampler's own may be anything."""
    dataset = wids.ShardListDataset(index)
    part = dataset.select(range(4))
    for sampler, loaded in ((wids.ChunkedSampler(part), dataset), (wids.ChunkedSampler(dataset), part)):
        told = (
            f"reads a dataset of {len(loaded)} samples, and its sampler was made for one of {len(sampler)}; give both"
        )
        with pytest.raises(InputError, match=told):
            wids.resumable(DataLoader(loaded, sampler=sampler))
    sampler = wids.ChunkedSampler(part)
    for right in (part, wids.ShardListDataset(index).select(range(4)), torch.utils.data.ConcatDataset([dataset])):
        loader = wids.resumable(DataLoader(right, sampler=sampler, collate_fn=list))
        assert sorted(sample["__index__"] for (sample,) in loader) == [0, 1, 2, 3]


def test_a_sampler_of_a_dataset_that_has_shrunk(index):
    """Is an error when it is iterated or asked for its length, not when a sample is missing in the middle."""
    dataset = wids.ShardListDataset(index)
    samplers = [
        wids.DistributedChunkedSampler(dataset),
        wids.ChunkedSampler(dataset, num_samples=(2, 8)),
        wids.ShardListSampler(dataset),
    ]
    lasting = wids.ChunkedSampler(dataset, num_samples=3)
    dataset.shards = dataset.shards[:1]
    for sampler in samplers:
        for ask in (len, list, lambda sampler: sampler.state_dict()):
            with pytest.raises(InputError, match=r"made for samples up to [89], and the dataset has 3;.*anew"):
                ask(sampler)
    assert sorted(lasting) == [0, 1, 2]


def test_a_notebook_shows_samples_that_are_here(tmp_path, web):
    """Of a local dataset its first ones; of a remote one those of shards in the cache: nothing is fetched for it."""
    local = wids.ShardListDataset(tmp_path / "data" / "index.json", transformations="raw")
    html = local._repr_html_()
    assert "9 samples in 3 shards" in html
    assert html.count("display:inline-block") == 8
    view = local.select([4, 8])
    assert "2 samples in 3 shards" in view._repr_html_()
    assert [sample["__index__"] for sample in view.preview(9)] == [0, 1]
    assert "a 50.0%" in wids.mix({"a": (local, 1), "b": (view, 1)})._repr_html_()
    far = wids.ShardListDataset(f"{web.url}/index.json", cache_dir=tmp_path / "cache", prefetch=False)
    asked = len(web.requests)
    assert far.preview(3) == []
    assert "No shard is on this machine" in far._repr_html_()
    assert len(web.requests) == asked
    far[3]
    asked = len(web.requests)
    assert [sample["__index__"] for sample in far.preview(9)] == [3, 4, 5, 6]
    assert len(web.requests) == asked


def test_what_a_notebook_shows_is_small(tmp_path):
    """Whatever the samples are, and however many sources a mixture has; texts are escaped, errors are shown."""
    rng = np.random.default_rng(0)
    noise = []
    for _ in range(2):
        data = io.BytesIO()
        Image.fromarray(rng.integers(0, 255, (300, 300, 3), dtype=np.uint8)).save(data, "PNG")
        noise.append(data.getvalue())
    members = {f"k{i}.f{j}.png": noise[j % 2] for i in range(8) for j in range(6)}
    dataset = wids.ShardListDataset(write_tar(tmp_path / "noise.tar", members))
    html = dataset._repr_html_()
    assert len(html) < 60_000
    assert html.count("<img ") >= 8
    assert html.count("300 x 300 RGB") == 48
    mixture = wids.mix({f"source {k}": (dataset, 1) for k in range(40)})
    assert len(mixture._repr_html_()) < 60_000
    odd = {"<b>k.txt": b"<script>alert(1)</script>", "broken.jpg": b"no image", "deep.json": b"[" * 100_000}
    html = wids.ShardListDataset(write_tar(tmp_path / "odd.tar", odd))._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "&lt;b&gt;k" in html
    assert html.count("#b00020") == 2
    assert "its 8 bytes are not a JPEG" in html
    rows = [{"url": "gone.tar", "nsamples": 1}, {"url": "noise.tar", "nsamples": 8}]
    gone = wids.ShardListDataset(write_json(tmp_path / "i.json", {"wids_version": 1, "shardlist": rows}))
    assert "there is no file" in gone._repr_html_()


def test_a_notebook_fetches_nothing_anew(tmp_path, web):
    """Nor is a cached shard downloaded again that is another one by now, or a local one copied."""
    dataset = wids.ShardListDataset(f"{web.url}/index.json", cache_dir=tmp_path / "cache", prefetch=False)
    dataset[0]
    dataset.close()
    for name in os.listdir(tmp_path / "cache"):
        if name.endswith(".tar"):
            os.truncate(tmp_path / "cache" / name, 512)
    asked = len(web.requests)
    assert dataset.preview(3) == []
    assert len(web.requests) == asked
    index = tmp_path / "data" / "index.json"
    copied = wids.ShardListDataset(index, cache_local=True, cache_dir=tmp_path / "other")
    assert copied.preview(3) == []
    assert not [name for name in os.listdir(tmp_path) if name == "other"]


def test_a_dataset_costs_no_descriptor(index):
    """A join of a thousand small datasets does not use up the process's descriptors."""
    wids.ShardListDataset(index)
    before = len(os.listdir("/proc/self/fd"))
    datasets = [wids.ShardListDataset(index) for _ in range(20)]
    assert len(datasets) == 20
    assert len(os.listdir("/proc/self/fd")) - before <= 2


def test_shallow_copies_leave_nothing_behind(index):
    """A dataset that is copied for each epoch, with other transformations, does not grow."""
    dataset = wids.ShardListDataset(index)
    before = len(list(forks._objects)), len(pool._pools)
    for _ in range(100):
        copy.copy(dataset)
    gc.collect()
    assert (len(list(forks._objects)), len(pool._pools)) <= before


def test_a_shallow_copy_may_have_other_shards(index):
    """Assigned to a copy, they are not its original's."""
    dataset = wids.ShardListDataset(index)
    count = len(dataset)
    twin = copy.copy(dataset)
    twin.shards = dataset.shards[:1]
    assert len(twin) < count == len(dataset)
    assert len(list(dataset)) == count


# `fork_inside(work)` forks while a thread of `work` is in `meet_fork`, and has the child do `work`, too: the exit
# status of that. Where the thread holds the lock of forks, it goes on once the fork waits for that; without the lock,
# it goes on when there is a child, which has the thread's other locks held for good, and which the alarm ends.
FORKING = f"""
PATIENCE = {PATIENCE_SECONDS}
import os, signal, threading
from wids.core.files import forks
inside, waiting, forked = threading.Event(), threading.Event(), threading.Event()
os.register_at_fork(before=waiting.set, after_in_parent=forked.set)  # the hook that is registered last runs first
def meet_fork():
    inside.set()
    (waiting if forks.lock._is_owned() else forked).wait()
def fork_inside(work):
    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(PATIENCE)
    pid = os.fork()
    if pid == 0:
        signal.alarm(PATIENCE)
        work()
        os._exit(0)
    thread.join()
    return os.waitpid(pid, 0)[1]
"""


def test_a_fork_while_the_temporary_directory_is_looked_for_leaves_no_lock_held():
    """The standard library looks for it under a lock; a child that was forked meanwhile waited for that for ever."""
    script = """
        import tempfile
        from wids.core.files import atomic
        look = tempfile._get_default_tempdir
        def look_and_meet():
            meet_fork()
            return look()
        tempfile._get_default_tempdir = look_and_meet
        raise SystemExit(fork_inside(atomic.private_dir))
    """
    run_script(FORKING + textwrap.dedent(script))


def test_opening_a_first_shard_imports_nothing_late():
    """A module that is imported at the first use is imported in a thread, some day, while another one forks."""
    run_script("""
        import sys, tempfile, os
        import wids
        from tests.support import cache_shards
        with tempfile.TemporaryDirectory() as directory:
            path = cache_shards.write(os.path.join(directory, "s.tar"), cache_shards.shard("a"))
            wids.ShardListDataset
            before = set(sys.modules)
            dataset = wids.ShardListDataset([(path, 3)], transformations=[])
            dataset[0], dataset.__getitems__([1, 2])
            late = sorted(name for name in set(sys.modules) - before if not name.startswith("encodings"))
            assert not late, late
    """)


@pytest.mark.parametrize(("field", "module"), [(".png", "PIL.Image"), (".mp", "msgspec.msgpack")])
def test_a_fork_while_a_decoder_is_imported_leaves_no_lock_held(field, module):
    """A thread that decodes its first image imports Pillow; a child that was forked meanwhile waited for ever."""
    script = f"""
        import importlib.abc, importlib.machinery, sys
        from wids.core.codecs.decode import SampleDecoder
        class Finder(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path, target=None):
                if name == {module!r}:
                    spec = importlib.machinery.PathFinder.find_spec(name, path)
                    run = spec.loader.exec_module
                    spec.loader.exec_module = lambda module: (meet_fork(), run(module))
                    return spec
        sys.meta_path.insert(0, Finder())
        def decode():
            try:
                SampleDecoder()({{{field!r}: b"damaged"}})
            except ValueError:
                pass
        raise SystemExit(fork_inside(decode))
    """
    run_script(FORKING + textwrap.dedent(script))


def check_samples(dataset, seed, count, *, tell=lambda: None):
    """Read samples of shards a, b, c (200 each) at random, one by one and in batches; False where one is wrong.

    ``tell`` is called ``count`` times, before each reading.
    """
    rng = random.Random(seed)
    for _ in range(count):
        tell()
        indices = [rng.randrange(600) for _ in range(8)]
        for index, sample in zip(indices[1:], dataset.__getitems__(indices[1:]), strict=True):
            if sample[".txt"].read() != cache_shards.text("abc"[index // 200], index % 200):
                return False
        if dataset[indices[0]][".txt"].read() != cache_shards.text("abc"[indices[0] // 200], indices[0] % 200):
            return False
    return True


def read_and_fork(connection, shards, cache_dir, seed, use_mmap, call=0):
    """Read in threads and in a child of this process; send whether all was right. ``call``: see `die_at_call`."""
    chaos.die_at_call(call)
    dataset = wids.ShardListDataset(
        shards, cache_dir=cache_dir, transformations=[], use_mmap=use_mmap, lru_size=1 + seed % 3
    )
    dataset._has_warned = True
    wrong = []
    threads = [
        threading.Thread(target=lambda k=k: check_samples(dataset, seed + k, 10) or wrong.append(k)) for k in range(3)
    ]
    for thread in threads:
        thread.start()
    is_right = call_in_child(check_samples, dataset, seed, 10)
    for thread in threads:
        thread.join()
    connection.send(is_right and not wrong)


# Of a process that downloads the shards, or reads them from the cache, where it takes a lease and notes the use.
MOST_CALLS = 120


def test_processes_killed_at_random_while_they_fetch_leave_nothing_wrong(server, tmp_path):
    """Threads, forks and SIGKILL at any call: the survivor ends, reads right, and the cache holds what was served."""
    blobs = {server.add(f"/{tag}.tar", data): data for tag in "abc" if (data := cache_shards.shard(tag, 200, 4000))}
    shards = [(url, 200) for url in blobs]
    download.read_bytes(next(iter(blobs)))  # imports here, so that the children are in the middle of their work
    rng, ends = random.Random(5), []
    for number in range(20):
        cache_dir = str(tmp_path / f"cache{number // 2}")
        call = rng.randrange(1, MOST_CALLS)
        with (
            child(read_and_fork, shards, cache_dir, number, number % 2 == 1, call) as (victim, _),
            child(read_and_fork, shards, cache_dir, number + 100, number % 2 == 0) as (_, answer),
        ):
            assert receive(answer)
            victim.join(PATIENCE_SECONDS)
            ends.append(victim.exitcode)
        for url, data in blobs.items():
            path = Path(cache_dir, Place(url).cache_name())
            assert not path.exists() or path.read_bytes() == data
    assert -signal.SIGKILL in ends


def test_closing_and_pickling_while_others_read_does_no_harm(tmp_path):
    """Threads read while another closes the dataset, copies it and changes its capacity; nobody gets a wrong sample."""
    shards = []
    for tag in "abc":
        path = cache_shards.write(str(tmp_path / f"{tag}.tar"), cache_shards.shard(tag, 200))
        shards.append((path, 200))
    dataset = wids.ShardListDataset(shards, transformations=[])
    dataset._has_warned = True
    results, readings, count = [], threading.Semaphore(0), 100

    def read(number):
        results.append(check_samples(dataset, number, count, tell=readings.release))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for number in range(3 * count):
        assert readings.acquire(
            timeout=PATIENCE_SECONDS
        )  # or this thread had the locks all the time: they are not fair
        dataset.close()
        assert pickle.loads(pickle.dumps(dataset))[number % 600]["__index__"] == number % 600
        dataset.cache.lru.capacity = number % 4 - 1
    for thread in threads:
        thread.join()
    assert results == [True] * 3


def stop(_):
    """What ``next(name for name in sample if ...)`` does where no name fits."""
    raise StopIteration


# A loader that an exception refers to waits five seconds for its worker.
@pytest.mark.parametrize("workers", [0, 1])
def test_a_stop_iteration_in_a_transformation_does_not_end_the_loop(tmp_path, workers):
    """It ended the epoch of this rank, unseen, and left the other ranks waiting for it."""
    dataset = wids.ShardListDataset(write_shards(tmp_path, (3, 4)), transformations=[])
    dataset.add_transform(lambda sample: sample["__index__"] if sample["__index__"] < 4 else stop(sample))
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(dataset)
    for batch_size in (None, 2):
        with pytest.raises(RuntimeError, match="StopIteration"):
            list(DataLoader(dataset, batch_size=batch_size, num_workers=workers))


def test_a_stop_iteration_in_a_key_rule_or_localname_does_not_end_the_loop(tmp_path):
    """The same for the other functions of the caller."""
    shards = write_shards(tmp_path, (3, 4))
    for options in ({"key_rule": stop}, {"localname": stop}):
        dataset = wids.ShardListDataset(shards, **options)
        with pytest.raises(RuntimeError, match="StopIteration"):
            list(dataset)


def test_what_a_caller_does_to_a_sample_does_not_reach_the_next_access(tmp_path):
    """Streams are the caller's own, also when they were cut from a block that is kept."""
    dataset = wids.ShardListDataset(write_shards(tmp_path, (30, 30)), transformations=[])
    for _ in range(20):
        for sample in dataset:
            g = sample["__index__"]
            assert sample[".bin"].getvalue() == bytes([g]) * 40
            sample[".bin"].getbuffer()[:] = b"X" * 40
            sample[".txt"].write(b"longer than it was")
            sample.clear()
    assert dataset.get_shard(0)[0].reader._blocks.kept


def test_names_are_keys_and_never_paths(tmp_path):
    """Absolute, climbing, broken and very long names are keys of samples, and nothing is made of them on disk."""
    names = [b"/abs", b"../../up", b"new\nline", b"\xff\xfe", b"L" * 10_000]
    data = b"".join(
        (tars.long_name(name + b".txt") if len(name) > 90 else b"") + tars.member(name + b".txt", b"%d" % k)
        for k, name in enumerate(names)
    )
    path = cache_shards.write(str(tmp_path / "x" / "s.tar"), data + tars.END)
    dataset = wids.ShardListDataset([path], transformations=[], cache_local=True, cache_dir=tmp_path / "cache")
    dataset = pickle.loads(pickle.dumps(dataset))
    loader = DataLoader(dataset, batch_size=None, num_workers=1)
    assert [sample["__key__"] for sample in loader] == [os.fsdecode(name) for name in names]
    assert [dataset[k][".txt"].read() for k in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
    assert sorted(os.listdir(tmp_path)) == ["cache", "x"]


def test_a_working_directory_that_was_deleted_is_not_needed(tmp_path, monkeypatch):
    """Absolute paths and URLs do not depend on it."""
    shards = write_shards(tmp_path, (3,))
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert wids.ShardListDataset(shards, transformations=[])[0]["__index__"] == 0


def test_without_a_temporary_directory_an_own_cache_directory_and_local_shards_work(tmp_path, monkeypatch):
    """A container whose file systems are read-only but for the volume of the cache."""

    def fail():
        raise FileNotFoundError(2, "No usable temporary directory found")

    shards = write_shards(tmp_path, (3,))
    monkeypatch.setattr(tempfile, "gettempdir", fail)
    assert wids.ShardListDataset(shards, transformations=[])[0]["__index__"] == 0
    dataset = wids.ShardListDataset(shards, cache_dir=tmp_path / "cache", cache_local=True, transformations=[])
    assert dataset[2]["__key__"] == "s0-002"
    assert atomic.private_dir() == f"/tmp/wids-cache-{os.getuid()}"


def alive_before_each(dataset, indices):
    """How many samples of a batch were in memory when each was transformed; the batch must be right."""
    files, alive = [], []

    def first_byte(sample):
        alive.append(sum(file() is not None for file in files))
        files.append(weakref.ref(sample[".bin"]))
        return sample["__index__"], sample[".bin"].read()[0]

    dataset.transformations = [first_byte]
    assert dataset.__getitems__(indices) == [(k % len(dataset), k % len(dataset)) for k in indices]
    return alive


def write_sized(directory, count, nbytes):
    """A shard whose samples have so many bytes each, all of them the sample's number; its entry in an index."""
    path = write_tar(directory / "a.tar", {f"{k:03}.bin": bytes([k]) * nbytes for k in range(count)})
    return {"url": path, "nsamples": count, "filesize": os.path.getsize(path)}


@pytest.mark.parametrize("has_size", [True, False])
@pytest.mark.parametrize(
    ("count", "nbytes", "is_large"), [(3, 1 << 20, True), (70, 32 << 10, True), (3, 32 << 10, False)]
)
def test_large_samples_are_transformed_one_by_one(tmp_path, count, nbytes, is_large, has_size):
    """A batch that is large by its samples never has the bytes of two at once; of another, all are read first."""
    shard = write_sized(tmp_path, count, nbytes)
    indices = [-1, *range(count - 2, -1, -1)]
    alive = alive_before_each(
        wids.ShardListDataset([shard if has_size else {**shard, "filesize": None}], transformations=[]), indices
    )
    assert alive == ([0] * count if is_large else list(range(count)))


@pytest.mark.parametrize("access", ["fetch", "range"])
def test_large_remote_samples_are_transformed_one_by_one_once_they_are_here(tmp_path, access):
    """Not before: what is read by byte ranges is asked for together."""
    shard = write_sized(tmp_path, 70, 32 << 10)
    with Server(tmp_path) as server:
        listed = [{**shard, "url": f"{server.url}/a.tar"}]
        dataset = wids.ShardListDataset(listed, cache_dir=tmp_path / "cache", access=access)
        order = random.Random(0).sample(range(70), 70)
        assert alive_before_each(dataset, order) == list(range(70))
        assert alive_before_each(dataset, order) == ([0] * 70 if access == "fetch" else list(range(70)))


@pytest.mark.filterwarnings("ignore:.*samples")
@pytest.mark.parametrize("first", [0, 69, 99])
def test_large_samples_of_a_shard_with_fewer_than_the_index_says(tmp_path, first):
    """It repeats its samples, whichever of its passes was read before."""
    shard = {**write_sized(tmp_path, 70, 32 << 10), "nsamples": 100}
    dataset = wids.ShardListDataset([shard], on_count_mismatch="warn", transformations=[dict])
    keys = [dataset[k]["__key__"] for k in range(100)]
    _ = dataset[first]
    assert [sample["__key__"] for sample in dataset.__getitems__([*range(100)])] == keys


def test_large_samples_of_more_shards_than_may_be_open(tmp_path):
    """Each shard is opened once for a batch, and not for each sample."""
    listed = []
    for name in "abc":
        (tmp_path / name).mkdir()
        listed.append(write_sized(tmp_path / name, 30, 32 << 10))
    dataset = wids.ShardListDataset(listed, lru_size=1, transformations=[lambda sample: sample["__index__"]])
    order = random.Random(0).sample(range(90), 90)
    assert dataset.__getitems__(order) == order
    assert dataset.cache.misses == 3


def test_a_cold_disk_is_asked_for_large_samples_in_file_order(tmp_path, monkeypatch):
    """The kernel reads them ahead while the first are transformed; the order of transformations is the batch's."""
    asked = []
    monkeypatch.setattr(page_cache, "begin_reading", lambda fd, offset, size: asked.append((offset, size)))
    dataset = wids.ShardListDataset([write_sized(tmp_path, 140, 32 << 10)], transformations=[])
    view = dataset.select(range(0, 140, 2)).add_transform(lambda sample: sample["__index__"])
    order = random.Random(0).sample(range(70), 70)
    assert [view.__getitems__(order) for _ in range(2)] == [order, order]
    assert asked == [(512 + 2 * k * (512 + (32 << 10)), 32 << 10) for k in range(70)]
    with pytest.raises(IndexError, match="sample 70 of a dataset of 70"):
        view.__getitems__([*order, 70])

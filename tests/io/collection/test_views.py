"""Parts of a dataset: chains of them against lists of Python, saved and opened, in samplers and workers."""

import gc
import hashlib
import json
import multiprocessing
import os
import pickle
import random
import shutil
from collections import Counter
from decimal import Decimal
from itertools import accumulate, chain, pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset

import wids
from tests.support import cache_shards
from tests.support.examples import some
from tests.support.servers import Server
from tests.support.shards import serve, write_index, write_shards, write_tar
from tests.support.tars import publish
from wids.core.index import loading
from wids.core.index.selection import Selection, hash_values
from wids.core.index.view_file import pack_rows, unpack_rows
from wids.core.transport import filesystems
from wids.errors import ColumnsError, InputError, NotAllowedError, OutputError, OutputExistsError, SpecError

pytestmark = pytest.mark.usefixtures("own_cache")

COUNTS = (3, 0, 5, 1, 8, 2)


# 1,000 chains in all; outside of CI a third of them.
PARTS, CHAINS = 10, 100
# Of so many, one view is saved and opened again: most of the time would be the disk's.
SAVED = 10
SHARDS, ROWS, MEMBER_BYTES = 20, 40, 8000


@pytest.fixture
def dataset(tmp_path):
    """Six shards, one of them empty."""
    with_index = write_index(tmp_path / "data", COUNTS)
    return wids.ShardListDataset(with_index, transformations=[])


def names(dataset):
    """What a sample is in any view: (shard, row, key) of each."""
    return [(each["__shard__"], each["__shardindex__"], each["__key__"]) for each in dataset]


def keys(dataset):
    """The key of each sample, in order."""
    return [each["__key__"] for each in dataset]


def test_a_state_knows_its_view(dataset):
    """The state of a sampler over one view is refused by a sampler over another, and by one over the dataset."""
    sampler = wids.DistributedChunkedSampler(dataset.select(range(10)), num_replicas=1, rank=0)
    next(iter(sampler))
    state = sampler.state_dict()
    for other in (dataset.select(range(1, 11)), dataset):
        with pytest.raises(ValueError, match="dataset"):
            wids.DistributedChunkedSampler(other, num_replicas=1, rank=0).load_state_dict(state)
    wids.DistributedChunkedSampler(dataset.select(range(10)), num_replicas=1, rank=0).load_state_dict(state)


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_workers(dataset, context):
    """Workers of either start method read the view; a new process maps its rows."""
    view = dataset.select([1, 4, 5, 11, 17]).add_transform(read_number)
    loader = DataLoader(view, batch_size=2, num_workers=2, multiprocessing_context=context)
    assert torch.cat(list(loader)).tolist() == [1, 4, 5, 11, 17]
    assert dataset.transformations == []


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_a_view_that_is_gone_before_its_worker_reads_it(dataset, context):
    """A process that is being started has the rows, also if nothing else has."""
    process = multiprocessing.get_context(context).Process(target=check_rows, args=(dataset.select([1, 4, 17]),))
    process.start()
    gc.collect()
    process.join()
    assert process.exitcode == 0


def check_rows(view):
    """In a process of its own."""
    assert [read_number(each) for each in view] == [1, 4, 17]
    assert not view._collection.shards.selection.arrays[1].flags.writeable or not os.path.isdir("/proc/self/fd")


def read_number(sample):
    """The number of a sample."""
    return int(sample[".cls"].read())


def test_torch_s_own_parts(dataset):
    """`Subset` and `ConcatDataset` of views keep boundaries between shards."""
    view = dataset.select(range(2, 17))
    joined = ConcatDataset([Subset(view, range(3, 12)), dataset.select([0])])
    sampler = wids.DistributedChunkedSampler(joined, num_replicas=1, rank=0, chunksize=100, window=1)
    order = [joined[i]["__shard__"] for i in sampler]
    assert len(order) == 10
    changes = sum(a != b for a, b in pairwise(order))
    assert changes == len(set(order)) - 1 == 3


def test_shards_without_a_row_are_not_fetched(tmp_path):
    """A view of two shards downloads these two, by index and through a loader that prefetches."""
    write_index(tmp_path / "data", COUNTS)
    with serve(tmp_path) as server:
        dataset = wids.ShardListDataset(
            f"{server.url}/data/index.json", cache_dir=tmp_path / "cache", transformations=[]
        )
        view = dataset.select([0, 1, 8, 9])
        sampler = wids.DistributedChunkedSampler(view, num_replicas=1, rank=0)
        loader = DataLoader(view, sampler=sampler, num_workers=2, batch_size=2, collate_fn=list)
        found = [each["__key__"] for batch in loader for each in batch]
        assert sorted(found) == ["s0-000", "s0-001", "s3-000", "s4-000"]
        view.close()
    cached = {name[-6:] for name in os.listdir(tmp_path / "cache") if name.endswith(".tar")}
    assert cached == {"s0.tar", "s3.tar", "s4.tar"}


def test_from_a_server(tmp_path):
    """A view, its rows and the index that it is of are opened from URLs; local files are not, from there."""
    index = write_index(tmp_path / "data", COUNTS)
    view = wids.ShardListDataset(index, transformations=[]).select([2, 3, 9])
    view.save(tmp_path / "data" / "good.json")
    view.save(tmp_path / "far.json")
    with serve(tmp_path) as server:
        far = wids.ShardListDataset(f"{server.url}/data/good.json", cache_dir=tmp_path / "cache", transformations=[])
        assert keys(far) == keys(view)
        far.save(tmp_path / "of-far.json")
        assert keys(wids.ShardListDataset(tmp_path / "of-far.json", transformations=[])) == keys(view)
        text = json.loads((tmp_path / "far.json").read_text())
        (tmp_path / "far.json").write_text(json.dumps({**text, "view_of": f"file://{index}"}))
        with pytest.raises(NotAllowedError, match="view_of"):
            wids.ShardListDataset(f"{server.url}/far.json")


def test_a_view_of_shards_without_an_index(tmp_path):
    """It lists them itself."""
    shards = write_shards(tmp_path / "data", COUNTS)
    view = wids.ShardListDataset(shards, transformations=[]).select([0, 5])
    view.save(tmp_path / "view.json")
    assert "view_of" not in json.loads((tmp_path / "view.json").read_text())
    assert names(wids.ShardListDataset(tmp_path / "view.json", transformations=[])) == names(view)


def test_indices_that_come_again(dataset, tmp_path, caplog):
    """Each sample is there once, and a warning counts the rest; numbers in the place of a mask are refused."""
    assert keys(dataset.select([3, 0, 3, -len(dataset)])) == [keys(dataset)[i] for i in (0, 3)]
    assert caplog.messages == ["2 of 4 indices come again, and count once"]
    caplog.clear()
    np.save(tmp_path / "twice.npy", np.array([1, 1]))
    dataset.exclude(tmp_path / "twice.npy")
    assert caplog.messages == [f"{tmp_path}/twice.npy: 1 of 2 indices come again, and count once"]
    caplog.clear()
    mask = np.arange(len(dataset)) < 5
    for numbers in (mask.astype(np.uint8), mask.astype(np.int64), mask.astype(int).tolist()):
        for use in (dataset.select, dataset.exclude):
            with pytest.raises(InputError, match="which are all 0 or 1: a mask is of bools"):
                use(numbers)
    assert keys(dataset.select(mask)) == keys(dataset)[:5]
    assert not caplog.records
    assert len(dataset.select([])) == 0
    assert caplog.messages == [f"a view without samples: select: 0 of {len(dataset)}"]


def test_how_it_was_made(dataset, tmp_path):
    """Each step is in the file, those of views that were opened, too; one file of rows is left."""
    path = tmp_path / "view.json"
    dataset.select(range(10)).save(path)
    opened = wids.ShardListDataset(path)
    opened.split(0.5, 0.5, by="index", seed=3)[1].exclude([0]).save(path)
    told = json.loads(path.read_text())
    assert [step.split(":")[0] for step in told["made_by"]] == [
        "select",
        "part 1 of split(0.5, 0.5, by='index', seed=3)",
        "exclude",
    ]
    assert [name for name in os.listdir(tmp_path) if name.endswith(".rows")] == [told["rows"]]


def test_keys_that_several_samples_have(tmp_path, caplog):
    """All samples with a key are meant, in whichever shard, and a warning counts them."""
    for name in "ab":
        write_tar(tmp_path / f"{name}.tar", {f"{k}.cls": b"7" for k in range(3)})
    dataset = wids.ShardListDataset([(str(tmp_path / f"{name}.tar"), 3) for name in "ab"], transformations=[])
    (tmp_path / "out.txt").write_text("1\n2\n")
    assert keys(dataset.exclude(tmp_path / "out.txt")) == ["0", "0"]
    said = "2 of 2 keys are each of several samples, like '1': 4 samples have one of the keys, and all count"
    assert caplog.messages == [f"{tmp_path}/out.txt: {said}"]
    caplog.clear()
    assert len(dataset.select(range(3)).select(["1"])) == 1
    assert not caplog.records


def test_exclude_takes_files(dataset, tmp_path, caplog):
    """A key a line, and arrays of indices or a mask."""
    everything = keys(dataset)
    (tmp_path / "out.txt").write_text("s0-001\ns4-003\n\nnobody\n")
    assert keys(dataset.exclude(tmp_path / "out.txt")) == [k for k in everything if k not in ("s0-001", "s4-003")]
    assert keys(dataset.select(tmp_path / "out.txt")) == ["s0-001", "s4-003"]
    assert caplog.messages == [f"{tmp_path}/out.txt: 1 of 3 keys are in no sample, like 'nobody'"] * 2
    caplog.clear()
    (tmp_path / "out.txt").write_bytes(b"\xef\xbb\xbfs0-001\r\ns4-003\r\ns0-001\r\n")
    assert keys(dataset.select(tmp_path / "out.txt")) == ["s0-001", "s4-003"]
    assert not caplog.records
    (tmp_path / "out.txt").write_text("data/s0-001.jpg\ns0-001 \n")  # no keys: the form that keys have is told
    assert len(dataset.exclude(tmp_path / "out.txt")) == len(dataset)
    said = "2 of 2 keys are in no sample, like 'data/s0-001.jpg'; the first sample's key is 's0-000'"
    assert caplog.messages == [f"{tmp_path}/out.txt: {said}"]
    np.save(tmp_path / "out.npy", np.array([0, 2, -1]))
    assert keys(dataset.exclude(str(tmp_path / "out.npy"))) == [*everything[1:2], *everything[3:-1]]
    np.save(tmp_path / "mask.npy", np.arange(len(dataset)) < 18)
    assert keys(dataset.exclude(tmp_path / "mask.npy")) == everything[18:]
    (tmp_path / "bad.npy").write_bytes(b"no array")
    for name in ("bad.npy", "missing.txt"):
        with pytest.raises(InputError, match=name):
            dataset.exclude(tmp_path / name)
    with open(tmp_path / "huge.npy", "wb") as file:  # which claims 256 TiB
        np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": (1 << 45,)})
        file.write(bytes(80))
    with pytest.raises(InputError, match="huge"):
        dataset.exclude(tmp_path / "huge.npy")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0:100", r"a range of samples is select\(slice\(0, 100\)\)"),
        (":-5", r"select\(slice\(None, -5\)\)"),
        ("::2", r"select\(slice\(None, None, 2\)\)"),
        ("3", r"select\(\[3\]\)"),
        ("width >= 512", r"SQL to where\(\)"),
        ("opted_out.txt", r"; there is .*/opted-out\.txt"),
        ("https://h/out.txt", "a list of samples is read from a local file; download it first"),
    ],
)
def test_what_is_no_file_of_samples(dataset, tmp_path, monkeypatch, text, words):
    """The error says what it may have been meant as."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "opted-out.txt").write_text("s0-001")
    for choose in (dataset.select, dataset.exclude):
        with pytest.raises(InputError, match=words):
            choose(str(tmp_path / text) if text.startswith("opted") else text)


def test_split_by_key_is_not_moved_by_new_shards(tmp_path):
    """Samples stay in their part when shards are added; so do shards with by="shard"."""
    old = wids.ShardListDataset(write_shards(tmp_path, (40, 40, 40)), transformations=[])
    new = wids.ShardListDataset(write_shards(tmp_path, (40, 40, 40, 40, 40)), transformations=[])
    for by in ("key", "shard"):
        for before, after in zip(old.split(1, 3, by=by), new.split(1, 3, by=by), strict=True):
            assert {*keys(before)} <= {*keys(after)}
    shares = [len(part) / len(new) for part in new.split(1, 3)]
    assert 0.15 < shares[0] < 0.35
    assert names(new.split(1, 3, seed=1)[0]) != names(new.split(1, 3)[0])


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ([0.5], InputError),
        ([[0]], InputError),
        ("s0-001", InputError),
        (3, InputError),
        ([True, False], InputError),
        ([0, 19], IndexError),
        ([-20], IndexError),
        ([None], InputError),
        ([2**70], InputError),
    ],
    ids=str,
)
def test_what_selects_nothing(dataset, bad, error):
    """Bad selections say what would do."""
    with pytest.raises(error, match=r"indices|mask|sample \S+ of a dataset of 19"):
        dataset.select(bad)


KINDS = {"list": list, "set": set, "tuple": tuple, "iterator": iter, "numpy": np.array, "arrow": pa.array}


@pytest.mark.parametrize("kind", [*KINDS.values(), lambda some: pa.chunked_array([some])], ids=[*KINDS, "chunks"])
def test_samples_are_named_in_many_ways(dataset, kind):
    """Indices and keys, in whatever holds them; slices."""
    some, everything = [3, 7, 12], keys(dataset)
    assert keys(dataset.select(kind(some))) == [everything[i] for i in some]
    assert keys(dataset.select(kind([everything[i] for i in some]))) == [everything[i] for i in some]
    assert keys(dataset.exclude(kind([everything[i] for i in some]))) == keys(dataset.exclude(some))
    assert keys(dataset.select(slice(3, -2, 4))) == everything[3:-2:4]


def test_bad_splits(dataset):
    """Shares and ways that are none."""
    for shares in ((), (0.9,), (0, 0), (-1, 2), (float("nan"),), (float("inf"), 1), ([0.9, 0.1],), ("0.9", "0.1")):
        with pytest.raises(InputError, match="shares"):
            dataset.split(*shares)
    with pytest.raises(InputError, match="seed is 'x'; it is an integer"):
        dataset.split(1, 1, seed="x")
    with pytest.raises(ColumnsError, match="columns create"):
        dataset.split(1, 1, by="patient")


def test_a_view_s_shards_are_not_changed(dataset):
    """They are the dataset's, which says so."""
    view = dataset.select([0])
    with pytest.raises(SpecError, match="view"):
        view.shards = [("x.tar", 3)]


def test_empty_views(dataset, tmp_path):
    """A view of nothing has a length, is saved, and split."""
    view = dataset.select([])
    assert (len(view), list(view), keys(view.split(1, 1)[0])) == (0, [], [])
    view.save(tmp_path / "none.json")
    assert len(wids.ShardListDataset(tmp_path / "none.json")) == 0
    with pytest.raises(IndexError):
        view[0]


def test_a_changed_index_is_refused(tmp_path):
    """A view of an index that lists other shards by now is an error that says what has changed."""
    index = write_index(tmp_path, (3, 4))
    wids.ShardListDataset(index).select([0, 5]).save(tmp_path / "view.json")
    write_index(tmp_path, (3, 5))
    with pytest.raises(SpecError, match="it had 2 shards and 7 samples, and has 2 and 8 now"):
        wids.ShardListDataset(tmp_path / "view.json")
    write_index(tmp_path, (4, 3))
    with pytest.raises(SpecError, match="it has the same numbers of shards and samples, but"):
        wids.ShardListDataset(tmp_path / "view.json")


def test_where_views_are_not_saved(dataset, tmp_path):
    """Not over the index itself, not at a URL, not in a directory that is not there."""
    view = dataset.select([0])
    with pytest.raises(OutputExistsError):
        view.save(tmp_path / "data" / "index.json")
    os.mkfifo(tmp_path / "pipe")
    for path in ("http://host/x.json", tmp_path / "no" / "x.json", tmp_path, tmp_path / "pipe"):
        with pytest.raises(OutputError):
            view.save(path)


@pytest.mark.parametrize("link", ["directory", "file", "hard"])
def test_a_view_replaces_nothing_that_it_is_made_of(tmp_path, link):
    """Not through links: not its index, nor a part of that; another view, and itself, are replaced."""
    write_index(tmp_path / "data" / "a", (3, 4), name="a.json")
    index = tmp_path / "data" / "all.json"
    index.write_text(json.dumps({"wids_version": 1, "datasets": [{"name": "a", "source_url": "a/a.json"}]}))
    dataset = wids.ShardListDataset(index, transformations=[])
    dataset.select([5, 6]).save(tmp_path / "data" / "part.json")
    before = {path: path.read_bytes() for path in (index, tmp_path / "data" / "a" / "a.json")}
    os.symlink(tmp_path / "data", tmp_path / "linked")
    for path in before:
        output = tmp_path / "linked" / path.relative_to(tmp_path / "data")
        if link != "directory":
            output = tmp_path / f"other-{path.name}"
            (os.link if link == "hard" else os.symlink)(path, output)
        for view in (dataset.select([0]), wids.ShardListDataset(tmp_path / "data" / "part.json").select([0])):
            for overwrite in (False, True):
                with pytest.raises(OutputExistsError, match="index that this is a view of; give the output another"):
                    view.save(output, overwrite=overwrite)
    part = wids.ShardListDataset(tmp_path / "linked" / "part.json", transformations=[])
    part.select([1]).save(tmp_path / "linked" / "part.json")
    assert keys(wids.ShardListDataset(tmp_path / "data" / "part.json", transformations=[])) == keys(dataset)[6:7]
    assert {path: path.read_bytes() for path in before} == before


def test_directories_with_colons(tmp_path):
    """What lies beside a view is named relative to it: the directory may be moved."""
    home = tmp_path / "a::b"
    dataset = wids.ShardListDataset(write_index(home, (3, 4), member_tables="x.tables"), transformations=[])
    dataset.select([0, 4, 5]).save(home / "view.json")
    view = wids.ShardListDataset(home / "view.json", transformations=[])
    view.select([1, 2]).save(home / "again.json")
    assert json.loads((home / "again.json").read_text())["view_of"] == "index.json"
    listed = wids.ShardListDataset([{"url": str(home / "s0.tar"), "nsamples": 3}], transformations=[])
    listed.select([2]).save(home / "listed.json")
    assert json.loads((home / "listed.json").read_text())["shardlist"][0]["url"] == "s0.tar"
    expected = keys(dataset)[4:6], keys(dataset)[2:3]
    home.rename(tmp_path / "moved::c")
    for name, found in zip(("again.json", "listed.json"), expected, strict=True):
        assert keys(wids.ShardListDataset(tmp_path / "moved::c" / name, transformations=[])) == found


def test_damaged_files(dataset, tmp_path):
    """Each cut and each changed byte of the rows is noticed; so are a view of a view, and a file that is gone."""
    view, path = dataset.select([0, 4, 9]), tmp_path / "view.json"
    view.save(path)
    told = json.loads(path.read_text())
    rows = tmp_path / told["rows"]
    data = rows.read_bytes()
    for at in range(len(data)):
        rows.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(SpecError, match="rows"):
            wids.ShardListDataset(path)
        rows.write_bytes(data[:at])
        with pytest.raises(SpecError, match="rows"):
            wids.ShardListDataset(path)
    os.unlink(rows)
    with pytest.raises(SpecError, match="cannot be read"):
        wids.ShardListDataset(path)
    rows.write_bytes(data)
    for key, value in (("rows", 3), ("nsamples", 7), ("view_of", 1), ("view_of_counts", [1])):
        path.write_text(json.dumps({**told, key: value}))
        with pytest.raises(SpecError, match=key):
            wids.ShardListDataset(path)
    view.save(tmp_path / "inner.json")
    path.write_text(json.dumps({**told, "view_of": "inner.json"}))
    with pytest.raises(SpecError, match="is a view, and must be an index of shards"):
        wids.ShardListDataset(path)


@pytest.mark.parametrize(
    ("ends", "rows"),
    [
        ([2, 1], [0]),
        ([2, 2], [1, 0]),
        ([2, 2], [0, 0]),
        ([1, 2], [0, 9]),
        ([1, 3], [0, -1, 0]),
        ([1, 2], [0]),
        ([1, -(2**63), -1, 2], [0, 1]),
    ],
    ids=str,
)
def test_rows_that_contradict_the_shards(ends, rows):
    """Rows out of order, twice, beyond their shard or their number are refused, though the checksum is right."""
    data = b"".join(pack_rows(np.array(ends), np.array(rows, np.int64)))
    with pytest.raises(SpecError, match=r"rows that its shards do not have|points outside itself"):
        unpack_rows(data, counts=[3, 4, 5, 6][: len(ends)], file_url="x.rows")


def test_rows_of_another_number_of_shards():
    """They are of another index."""
    data = b"".join(pack_rows(np.array([1, 1]), np.array([0], np.uint32)))
    ends, rows, _ = unpack_rows(data, counts=[3, 4], file_url="x.rows")
    assert (ends.tolist(), rows.tolist(), Selection(ends, rows).rows_of(0).tolist()) == ([1, 1], [0], [0])
    with pytest.raises(SpecError, match="2 shards"):
        unpack_rows(data, counts=[3], file_url="x.rows")


def test_a_shard_that_is_shorter_than_promised(tmp_path):
    """With on_count_mismatch="warn" its rows repeat, in views as in the dataset."""
    shards = write_shards(tmp_path, (3, 4))
    shards[0]["nsamples"] = 7
    dataset = wids.ShardListDataset(shards, transformations=[], on_count_mismatch="warn")
    for chosen in ([0, 4, 6, 8], [5], range(11)):
        view = dataset.select(chosen)
        assert names(view) == [names(dataset)[i] for i in chosen]
        assert names(view.__getitems__(range(len(view)))) == names(view)
        assert [view.keys.find(key) for key in keys(view)] == [
            [i for i, other in enumerate(keys(view)) if other == key] for key in keys(view)
        ]
    strict = wids.ShardListDataset(shards, transformations=[]).select([1])
    with pytest.raises(wids.errors.CountMismatchError):
        strict[0]


@pytest.mark.parametrize("by", ["key", "shard", "index"])
def test_a_part_is_split_again(tmp_path, by):
    """By the same numbers all of it would fall into one part. A part that was saved is split as it was before."""
    dataset = wids.ShardListDataset(write_shards(tmp_path, (4,) * 60), transformations=[])
    rest = dataset.split(0.5, 0.5, by=by)[1]
    parts = rest.split(0.5, 0.5, by=by)
    assert all(0.2 < len(part) / len(rest) < 0.8 for part in parts)
    rest.save(tmp_path / "rest.json")
    again = wids.ShardListDataset(tmp_path / "rest.json", transformations=[])
    assert list(map(names, again.split(0.5, 0.5, by=by))) == list(map(names, parts))


def test_shards_that_were_changed_are_saved_as_they_are(dataset, tmp_path):
    """A view has the shards of when it was made, and is saved so; the dataset, and views of it, as they are now."""
    view, (other,) = dataset.select([0, 4, 18]), write_shards(tmp_path / "other", (2,))
    before = names(view)
    dataset.shards = [*dataset.shards[:5], {**dataset.shards[5], "url": other["url"]}]
    assert names(view) == before
    assert dataset[18]["__shard__"] == other["url"]
    view.save(tmp_path / "view.json")
    dataset.select([18]).save(tmp_path / "changed.json")
    dataset.shards = dataset.shards[4:]
    dataset.save(tmp_path / "whole.json")
    assert names(view) == before
    for name, expected in (("view", before), ("changed", [(other["url"], 1, "s0-001")]), ("whole", names(dataset))):
        assert names(wids.ShardListDataset(tmp_path / f"{name}.json", transformations=[])) == expected


def test_a_view_that_is_read_elsewhere_is_saved_so(dataset, tmp_path):
    """With ``base=``, shards lie where it says, also for a view of the view."""
    dataset.select([0, 4, 18]).save(tmp_path / "view.json")
    shutil.copytree(tmp_path / "data", tmp_path / "moved")
    moved = wids.ShardListDataset(tmp_path / "view.json", base=tmp_path / "moved", transformations=[])
    moved.select([1]).save(tmp_path / "one.json")
    one = wids.ShardListDataset(tmp_path / "one.json", transformations=[])
    assert names(one) == [(str(tmp_path / "moved" / "s2.tar"), 1, "s2-001")]


@pytest.mark.parametrize("own", [{"made_by": "john"}, {"made_by": 3}, {"view_of": "the sea"}], ids=str)
def test_an_index_with_keys_of_its_own(tmp_path, own):
    """They are no facts of a view."""
    wids.ShardListDataset(write_index(tmp_path, (2,), **own)).select([1]).save(tmp_path / "view.json")
    assert json.loads((tmp_path / "view.json").read_text())["made_by"] == ["select: 1 of 2"]
    assert keys(wids.ShardListDataset(tmp_path / "view.json", transformations=[])) == ["s0-001"]


def test_lengths_are_a_list(dataset):
    """As those of a dataset: programs compare and write them. What was set for the whole is not the view's."""
    view = dataset.select([0, 4])
    assert view.lengths == [1, 0, 1, 0, 0, 0] == json.loads(json.dumps(view.lengths))
    dataset.lengths, dataset.total_length = [1], 1
    view = dataset.select([0, 4])
    assert (len(view), view.lengths, len(keys(view))) == (2, [1, 0, 1, 0, 0, 0], 2)


def test_the_rows_of_a_copy_stay(dataset, tmp_path):
    """A view that is saved in the place of a copy takes the rows from no other view."""
    dataset.select([0]).save(tmp_path / "good.json")
    shutil.copy(tmp_path / "good.json", tmp_path / "best.json")
    dataset.select([1]).save(tmp_path / "best.json")
    assert keys(wids.ShardListDataset(tmp_path / "good.json", transformations=[])) == ["s0-000"]


def test_a_view_of_itself(dataset, tmp_path):
    """It is refused, and not followed."""
    path = tmp_path / "view.json"
    dataset.select([0]).save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "view_of": "view.json"}))
    with pytest.raises(SpecError, match="is a view, and must be an index of shards"):
        wids.ShardListDataset(path)


def test_keys_to_leave_out(dataset, tmp_path):
    """Files of other systems have a mark in front and other ends of lines; arrays may have keys, too."""
    (tmp_path / "out.txt").write_bytes(b"\xef\xbb\xbfs0-000\r\ns0-001\r\n")
    assert len(dataset.exclude(tmp_path / "out.txt")) == 17
    assert len(dataset.exclude(np.array(["s0-000", "s0-001"]))) == 17
    assert len(dataset.exclude(np.array(["s0-000", "s0-001"], object))) == 17


@pytest.mark.parametrize(("again", "found"), [(4, "s2-001"), (0, "s0-000")])
def test_a_view_that_is_saved_again_while_it_is_opened(dataset, tmp_path, monkeypatch, again, found):
    """The opener has read which rows it has, and these are gone by then: it takes those that are there."""
    path, read = tmp_path / "view.json", loading.read_bytes
    dataset.select([0]).save(path)

    def read_and_save(*arguments, **options):
        data = read(*arguments, **options)
        monkeypatch.setattr(loading, "read_bytes", save_and_read)
        dataset.select([4]).save(path)
        return data

    def save_and_read(*arguments, **options):
        dataset.select([again]).save(path)
        return read(*arguments, **options)

    monkeypatch.setattr(loading, "read_bytes", read_and_save)
    assert keys(wids.ShardListDataset(path, transformations=[])) == [found]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """Datasets of one to nine shards, some of them empty, and what each of their samples is."""
    rng, found = random.Random(0), []
    for k in range(12):
        counts = [rng.choice((0, 1, 2, 3, 5, 9)) for _ in range(rng.randrange(1, 10))]
        directory = tmp_path_factory.mktemp("chains") / f"{k}"
        index = write_index(directory, counts)
        expected = [
            (f"{directory}/s{k}.tar", row, f"s{k}-{row:03d}") for k, count in enumerate(counts) for row in range(count)
        ]
        found.append((wids.ShardListDataset(index, transformations=[]), expected))
    return found


def placed(samples):
    """What a sample is in any view: (shard, row, key) of each."""
    return [(each["__shard__"], each["__shardindex__"], each["__key__"]) for each in samples]


def take(rng, view, expected):
    """(a part of ``view``, its samples by the same choice from a list), by a random way of selecting."""
    n, way = len(expected), rng.randrange(5)
    if way == 0:
        chosen = [rng.randrange(-n, n) for _ in range(rng.randrange(2 * n))] if n else []
        return view.select(chosen), [expected[i] for i in sorted({i % n for i in chosen})]
    if way == 1:
        mask = [rng.random() < 0.7 for _ in range(n)]
        return view.select(np.array(mask, bool)), [each for each, is_in in zip(expected, mask, strict=True) if is_in]
    if way == 2 and n:
        gone = {rng.choice(expected)[2] for _ in range(2)}
        return view.exclude(list(gone)), [each for each in expected if each[2] not in gone]
    if way == 3:
        gone = [rng.randrange(n)] if n else []
        return view.exclude(gone), [each for i, each in enumerate(expected) if i not in gone]
    parts = view.split(0.3, 0.7, by=rng.choice(["key", "shard", "index"]), seed=rng.randrange(9))
    found = [placed(part.__getitems__(range(len(part)))) for part in parts]
    assert sorted(found[0] + found[1], key=expected.index) == expected
    return parts[1], [each for each in expected if each in found[1]]


@pytest.mark.parametrize("part", range(PARTS))
def test_chains_of_selections(datasets, tmp_path, part):
    """A chain leaves what the same choices leave of a list; ranks are equal, local, see all, and resume anywhere."""
    for number in some(range(CHAINS), every=3):
        rng = random.Random(part * CHAINS + number)
        view, expected = rng.choice(datasets)
        for _ in range(rng.randrange(1, 5)):
            view, expected = take(rng, view, expected)
        check_samples(rng, view, expected)
        if number % SAVED == 0:
            view.save(tmp_path / "view.json", overwrite=True)
            again = wids.ShardListDataset(tmp_path / "view.json", transformations=[])
            assert again.fingerprint == view.fingerprint == pickle.loads(pickle.dumps(view)).fingerprint
            check_samples(rng, again, expected)
        if expected:
            check_samplers(rng, view)


def check_samples(rng, view, expected):
    """All of them, by each way to read them."""
    assert list(view.lengths) == [Counter(shard for shard, _, _ in expected)[each["url"]] for each in view.shards]
    assert placed(view) == expected
    drawn = [rng.randrange(-len(expected), len(expected)) for _ in range(5)] if expected else []
    found = view.__getitems__(drawn)
    assert placed(found) == [expected[i] for i in drawn]
    assert [each["__index__"] for each in found] == [i % len(expected) for i in drawn]
    for i in drawn:
        shard, row = view.locate(i)
        assert (view.shards[shard]["url"], row, view.keys[i]) == expected[i]


def check_samplers(rng, view):
    """Equal counts, all samples, few shards at a time; and a resume on other ranks that reads the rest."""
    before, after, window = rng.randrange(1, 5), rng.randrange(1, 5), rng.randrange(1, 4)
    tail = rng.choice(["pad", "drop", "mask"])
    options = {"window": window, "tail": tail, "seed": rng.randrange(99)}

    def ranks(world, chunksize):
        return [
            wids.DistributedChunkedSampler(view, num_replicas=world, rank=rank, chunksize=chunksize, **options)
            for rank in range(world)
        ]

    samplers, n = ranks(before, 99), len(view)
    orders = [list(sampler) for sampler in samplers]
    assert {len(order) for order in orders} == {len(samplers[0])}
    check_coverage(tail, [chain.from_iterable(orders)], n, lost=before)
    ends = list(accumulate(view.lengths))
    for order in orders:
        assert most_open(order, ends) <= window
    chunksize = rng.randrange(1, 5)
    steps, seen = rng.randrange(len(samplers[0]) + 1), []
    for sampler in ranks(before, chunksize):
        indices = iter(sampler)
        seen += [next(indices) for _ in range(steps)]
        state = sampler.state_dict()
    rest = []
    for sampler in ranks(after, chunksize):
        sampler.load_state_dict(state)
        rest.append(list(sampler))
    assert len(set(map(len, rest))) == 1
    left = n - steps * before
    if left >= (after if tail == "drop" else 1):  # else the epoch is over, and these are of the next one
        check_coverage(tail, [seen, *rest], n, lost=before + after)


def check_coverage(tail, orders, n, *, lost):
    """All samples; each counts once with "mask", and is there once at most with "drop"."""
    indices = list(chain.from_iterable(orders))
    if tail == "mask":
        indices = [index for index in indices if index.is_valid]
        assert sorted(indices) == list(range(n))
    elif tail == "drop":
        assert len(set(indices)) == len(indices) > n - lost
    else:
        assert set(indices) == set(range(n))


def most_open(order, ends):
    """How many shards are between their first and their last sample at a time, at most; repeated samples aside."""
    first, last = {}, {}
    for at, index in enumerate(dict.fromkeys(map(int, order))):
        shard = int(np.searchsorted(ends, index, side="right"))
        first.setdefault(shard, at)
        last[shard] = at
    return max((sum(first[other] <= at <= last[other] for other in first) for at in first.values()), default=0)


@pytest.fixture(scope="module")
def shards():
    """Shards whose bytes cannot be guessed: path -> bytes."""
    rng = random.Random(3)
    return {
        f"/s{k:02d}.tar": cache_shards.pack(
            [(f"{k:02d}{row:02d}.bin", rng.randbytes(MEMBER_BYTES)) for row in range(ROWS)]
        )
        for k in range(SHARDS)
    }


@pytest.fixture
def web(shards):
    """A server of these shards and their member tables."""
    with Server(has_ranges=True) as server:
        for path, data in shards.items():
            server.add(path, data)
            publish(server, path)
        yield server


def clustered(n):
    """5 % of the samples, in three shards: one of them whole, two in part."""
    return np.arange(n // 2 + ROWS // 2, n // 2 + ROWS // 2 + n // 20)


def spread(n):
    """5 % of the samples, two in each shard."""
    return np.arange(n).reshape(SHARDS, ROWS)[:, [11, 29]].ravel()


@pytest.mark.parametrize(
    ("choose", "access", "share"),
    [(clustered, "fetch", 0.15), (clustered, "auto", 0.15), (clustered, "range", 0.08), (spread, "auto", 0.15)],
)
def test_an_epoch_over_a_twentieth(web, shards, tmp_path, monkeypatch, choose, access, share):
    """It fetches what it reads, and not the rest."""
    # On a network where a request costs as much as half a sample.
    monkeypatch.setattr(filesystems.Connections, "request_bytes", lambda self, host: MEMBER_BYTES // 2)
    listed = [{"url": web.url + path, "nsamples": ROWS, "filesize": len(data)} for path, data in shards.items()]
    dataset = wids.ShardListDataset(listed, cache_dir=tmp_path / "cache", access=access, transformations="raw")
    view = dataset.select(choose(len(dataset)))
    assert len(view) == len(dataset) // 20
    sampler, seen = wids.DistributedChunkedSampler(view, num_replicas=1, rank=0), []
    batch = []
    for index in sampler:
        batch.append(index)
        if len(batch) == 8:
            seen += [sample["__key__"] for sample in view.__getitems__(batch)]
            batch.clear()
    view.close()
    assert sorted(seen) == [f"{i // ROWS:02d}{i % ROWS:02d}" for i in choose(len(dataset))]
    whole = sum(map(len, shards.values()))
    assert web.sent_bytes.total() < share * whole


# --- parts by values


def patients_of(rng, count):
    """A text or a number for each sample, of some groups of very different sizes; a few of them by hand."""
    kind = rng.choice(["text", "integer", "float", "object"])
    groups = [rng.randrange(10**6) for _ in range(rng.choice([3, 20, 200]))]
    values = [groups[int(len(groups) * rng.random() ** 2)] for _ in range(count)]
    if kind == "text":
        return [f"p{value}" for value in values]
    if kind == "float":
        return np.array(values) / 8
    return np.array(values, rng.choice([np.int64, np.int32, object]) if kind == "integer" else object)


@pytest.mark.parametrize("number", some(range(40)))
def test_split_by_values(tmp_path, number):
    """None lies in two parts, and no sample is lost; a dataset that grows keeps each sample in its part."""
    rng = random.Random(number)
    values = patients_of(rng, 120)
    shares, seed = [rng.choice([1, 2, 8]) for _ in range(rng.randint(2, 4))], rng.randrange(5)
    url = write_shards(tmp_path, (40, 40, 40))
    whole = wids.ShardListDataset(url, transformations=[])
    parts = whole.split(*shares, by=values, seed=seed)
    assert sorted(chain.from_iterable(map(names, parts))) == sorted(names(whole))
    by_name = dict(zip(names(whole), values, strict=True))
    found = [{by_name[name] for name in names(part)} for part in parts]
    assert all(a.isdisjoint(b) for k, a in enumerate(found) for b in found[:k])
    old = whole.select(range(50)).split(*shares, by=values[:50], seed=seed)
    for before, after in zip(old, parts, strict=True):
        assert {*names(before)} <= {*names(after)}


def test_shares_of_values_are_near():
    """Of 20,000 values; the hash is the stated one, whatever the type of the column."""
    values = np.arange(20_000)
    draws = hash_values(values, 3)
    edges = np.array([0.8, 0.9])
    counts = np.bincount(np.searchsorted(edges, draws / 2.0**64, side="right"))
    assert np.abs(counts / len(values) - [0.8, 0.1, 0.1]).max() < 0.01
    digest = hashlib.blake2b(b"17", digest_size=8, key=(3).to_bytes(8, "little")).digest()
    assert draws[17] == int.from_bytes(digest, "little")
    for same in ([17], [17.0], ["17"], np.array([17], np.uint8), np.array([17, None], object)[:1], [Decimal("17.0")]):
        assert hash_values(np.asarray(same), 3)[0] == draws[17]
    assert hash_values(np.array([True, 1, 1.0], object), 0).tolist() == hash_values(np.array(["1"] * 3), 0).tolist()
    assert hash_values(np.array([-0.0, 0.0]), 0).tolist() == hash_values(np.array(["0", "0"]), 0).tolist()
    assert hash_values(np.array([0.1]), 0) == hash_values(np.array(["0.1"]), 0)
    assert hash_values(np.array([2**64 - 1], np.uint64), 0) == hash_values(np.array([str(2**64 - 1)]), 0)
    assert hash_values(np.array([17]), -1) == hash_values(np.array([17]), 2**64 - 1) != draws[17]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["a", None, "b", None], "by: 2 of 4 samples have no value, such as sample 1; leave them out first"),
        (np.array([1.0, 2.0, np.nan, 4.0]), r"1 of 4 samples have no value, such as sample 2.*coalesce\(column, key\)"),
        ([pd.NA, 1, 2, 3], "a NAType.*without missing ones"),
        (np.ma.masked_array([1, 2, 3, 4], [0, 0, 0, 1]), "sample 3 is masked"),
        (np.zeros(4, "M8[s]"), r"datetime64\[s\].*cast\(column as varchar\)"),
        ([b"a", b"b", b"c", b"d"], "type"),
        (np.array([[1], [2], None, 3], object), "unhashable|is a list"),
        (np.zeros((4, 2)), r"shape \(4, 2\)"),
        (np.zeros(4, complex), "complex128"),
        ([1, 2, 3], "3 values for 4 samples"),
    ],
)
def test_values_that_split_nothing(tmp_path, values, words):
    """Missing ones, dates, lists, too few: each says what to do."""
    dataset = wids.ShardListDataset(write_shards(tmp_path, (4,)), transformations=[])
    with pytest.raises(InputError, match=words):
        dataset.split(0.9, 0.1, by=values)


def test_an_empty_part_is_named(tmp_path, caplog):
    """As each view without samples is."""
    dataset = wids.ShardListDataset(write_shards(tmp_path, (40,)), transformations=[])
    assert [len(part) for part in dataset.split(0.5, 0.5, by=["one"] * 40)] == [0, 40]
    words = "a view without samples: part 0 of split(0.5, 0.5, by=values, seed=0): 0 of 40"
    assert [record.getMessage() for record in caplog.records] == [words]

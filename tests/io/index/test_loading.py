"""Indexes from servers that nobody vouches for: what they may not name, and how long they may be; data sets by name."""

import json
import os
import pickle
import re
import threading

import pytest

import wids
from tests.support import cache_shards, tars
from tests.support.cache_shards import pack
from tests.support.cli import run_ok
from tests.support.clocks import PATIENCE_SECONDS
from tests.support.hub import begin_run
from tests.support.servers import bomb, endless, whole
from tests.support.shards import write_shards
from wids import errors
from wids.columns import file
from wids.core.collection.shard_collection import load_shards
from wids.core.index import discovery, loading, repository
from wids.core.index.discovery import find_shards
from wids.core.transport import download, hub
from wids.errors import InputError, ShardNotFoundError, SpecError
from wids.jobs import scan

LOCAL = ["file://{}", "FILE://{}", "local://{}", "~/..{}", "pipe:cat {}", "pipe://cat {}", "simplecache::{}"]
LOCAL += ["simplecache::file://{}", "tar://s0.tar::file://{}", "generic://{}", "dir::{}"]
LOCAL += ["reference://{}", "async_wrapper::file://{}", "asynclocal::{}", "::{}", "git://{}", "filecache::local://{}"]
REMOTE = ["{}", "file:{}", "PIPE:cat {}", " file://{}", "../../../..{}", "f\u0131le://{}", "\tfile://{}"]
REMOTE += ["http://127.0.0.1:1/x::file://{}"]


@pytest.mark.parametrize("form", LOCAL + REMOTE)
def test_a_remote_index_reads_nothing_local(server, tmp_path, no_waits, form):
    """However a URL, a base or a sub-dataset is written: it is refused, or it means a file of the server."""
    secret = write_shards(tmp_path, (3,))[0]["url"]
    url, base = form.format(secret), form.format(tmp_path)
    shards, relative = [{"url": url, "nsamples": 3}], [{"url": "s0.tar", "nsamples": 3}]
    for index in (
        {"shardlist": shards},
        {"shardlist": relative, "base": base},
        {"datasets": [{"shardlist": relative, "base_path": base}]},
        {"datasets": [{"source_url": url}]},
    ):
        place = server.add("/index.json", json.dumps({"wids_version": 1, **index}).encode())
        with pytest.raises((errors.NotAllowedError, errors.FetchError, errors.SpecError)) as raised:
            wids.ShardListDataset(place, cache_dir=tmp_path / "cache")[0]
        assert form in REMOTE or raised.type is errors.NotAllowedError


@pytest.mark.parametrize("fault", [endless, bomb])
@pytest.mark.parametrize(
    "name",
    ["train.json", ".nv-meta/.info.json", ".nv-meta/.info.yaml", "train.widsx", "part.json", "parent.json", "v.rows"],
)
def test_files_of_an_index_that_are_too_long(server, tmp_path, monkeypatch, name, fault):
    """Each has a limit, also where it is named by another; the error names it, and nothing stays in the cache."""
    for module in (download, loading):
        monkeypatch.setattr(module, "MAX_READ_BYTES", 1 << 20)
    place = server.add(f"/{name}", b"{}", fault)
    if name == "part.json":
        place = server.add("/index.json", json.dumps({"wids_version": 1, "datasets": [{"source_url": name}]}).encode())
    elif name in ("parent.json", "v.rows"):
        server.add("/parent.json", b"{}", *server.faults.get("/parent.json", []))
        path = tmp_path / "source.json"
        path.write_text(json.dumps({"wids_version": 1, "shardlist": [{"url": "a.tar", "nsamples": 3}]}))
        wids.ShardListDataset(path).select([0, 2]).save(tmp_path / "v.json")
        told = {**json.loads((tmp_path / "v.json").read_text()), "view_of": "parent.json"}
        if name == "v.rows":
            server.faults["/parent.json"], server.files["/parent.json"] = [whole], path.read_bytes()
            told["rows"] = name
        place = server.add("/v.json", json.dumps(told).encode())
    with pytest.raises(errors.TooLongError, match=re.escape(name)):
        wids.ShardListDataset(place, cache_dir=tmp_path / "cache")
    assert [
        name for _, _, names in os.walk(tmp_path / "cache") for name in names if name.endswith((".part", ".rows"))
    ] == []


def test_parts_of_an_index_that_are_too_long_together(server, tmp_path, monkeypatch):
    """The limit holds for all of them."""
    monkeypatch.setattr(loading, "MAX_READ_BYTES", 2500)
    for number in range(3):
        text = json.dumps({"wids_version": 1, "shardlist": [{"url": "a.tar", "nsamples": 1}], "note": " " * 900})
        server.add(f"/part{number}.json", text.encode())
    for count in (2, 3):
        listed = {"wids_version": 1, "datasets": [{"source_url": f"part{number}.json"} for number in range(count)]}
        place = server.add("/index.json", json.dumps(listed).encode())
        if count == 2:
            assert len(wids.ShardListDataset(place, cache_dir=tmp_path / "cache")) == 2
        else:
            with pytest.raises(errors.TooLongError, match=r"part2\.json"):
                wids.ShardListDataset(place, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("fault", [endless, bomb])
def test_tables_that_are_too_long(server, tmp_path, monkeypatch, fault):
    """Member tables beside shards are done without; a table of columns says so."""
    server.has_ranges = True
    url = server.add("/a.tar", cache_shards.shard("a"))
    server.add("/a.tar.widx", b"", fault)
    dataset = wids.ShardListDataset([(url, 3)], access="range", cache_dir=tmp_path / "cache", transformations="raw")
    assert dataset[0][".txt"] == cache_shards.text("a", 0)
    listed = {"wids_version": 1, "shardlist": [{"url": "a.tar", "nsamples": 3}]}
    place = server.add("/train.json", json.dumps(listed).encode())
    server.add("/train.columns.parquet", b"", fault)
    monkeypatch.setattr(file, "_TABLE_BYTES", 1 << 20)
    with pytest.raises(errors.TooLongError, match=r"train\.columns\.parquet"):
        wids.ShardListDataset(place, cache_dir=tmp_path / "cache").query("select count(*) from samples")
    assert server.sent_bytes["/train.columns.parquet"] < 48 << 20


def test_counts_that_overflow_in_all_are_refused(tmp_path):
    """Each count was fine, their sum was not: the length became -2."""
    first, second = (shard["url"] for shard in write_shards(tmp_path, (3, 4)))
    with pytest.raises(errors.SpecError, match="more than can be counted"):
        wids.ShardListDataset([(first, 2**63 - 1), (second, 2**63 - 1)])


# --- data sets of the Hub by name

HUB = "hf://datasets/org/set"


def tar(rows, first=0):
    """A shard of so many samples, whose texts say their numbers."""
    return pack([(f"{row:03d}.txt", b"%d" % row) for row in range(first, first + rows)])


SHARDS = {"train/0.tar": tar(3), "train/1.tar": tar(2, 3), "val/0.tar": tar(1, 5)}
COUNTS = dict(zip(SHARDS, (3, 2, 1), strict=True))
CARD = "---\nconfigs:\n- config_name: default\n  data_files:\n  - {split: train, path: 'train/*'}\n---\n"


def webshart(name):
    """What webshart has beside a shard."""
    members = {f"{row:03d}.txt": {"offset": 512 + 1024 * row, "length": 1} for row in range(COUNTS[name])}
    return {"path": name, "filesize": len(SHARDS[name]), "files": members}


LAYOUTS = {
    "wids": {"train.json": {"wids_version": 1, "shardlist": [{"url": n, "nsamples": c} for n, c in COUNTS.items()]}},
    "timm": {
        "_info.json": {
            "splits": {
                "train": {"filenames": ["train/0.tar", "train/1.tar"], "shard_lengths": [3, 2], "num_samples": 5},
                "validation": {"filenames": ["val/0.tar"], "shard_lengths": [1], "num_samples": 1},
            }
        }
    },
    "open_clip": {"train/sizes.json": {"0.tar": 3, "1.tar": 2}},
    "img2dataset": {f"train/{k}_stats.json": {"successes": 3 - k} for k in range(2)},
    "webshart": {f"train/{k}.json": webshart(f"train/{k}.tar") for k in range(2)},
    "energon": {".nv-meta/.info.json": {"shard_counts": COUNTS}},
}


def fill(stand_in, files=None, **more):
    """Put the shards, and these files, into the repository; returns the commit."""
    texts = {
        name: value.encode() if isinstance(value, str) else json.dumps(value).encode()
        for name, value in (files or {}).items()
    }
    return stand_in.put({**SHARDS, **texts, **more})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layouts_open_by_name(stand_in, caplog, layout):
    """With the right length, and no shard is asked for it."""
    fill(stand_in, LAYOUTS[layout])
    dataset = wids.ShardListDataset(HUB, transformations="raw")
    assert [*dataset.lengths] == [3, 2]
    assert dataset.dataset_name == "org/set train"
    assert stand_in.requests["resolvers"] == len(LAYOUTS[layout])
    assert [dataset[k][".txt"] for k in (0, 4)] == [b"0", b"4"]
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_shards_of_no_split_are_named_with_their_folders(stand_in, caplog):
    """Those of different folders may have one last name; the first few stand for all."""
    stand_in.put({f"{folder}/0.tar": SHARDS["train/1.tar"] for folder in ("train", "a", "b", "c", "d")})
    wids.ShardListDataset(HUB)
    assert "4 .tar files belong to no split: 'a/0.tar', 'b/0.tar', 'c/0.tar' and 1 more" in caplog.text


def test_a_file_for_each_shard_is_read_with_others_and_once_for_a_commit(stand_in, monkeypatch, caplog):
    """Several at a time; the next run reads none of them."""
    count, together, read = 40, threading.Barrier(8), discovery.read_bytes

    def read_with_others(url, **options):
        if url.endswith("_stats.json"):
            together.wait(PATIENCE_SECONDS)
        return read(url, **options)

    monkeypatch.setattr(discovery, "read_bytes", read_with_others)
    monkeypatch.setattr(repository, "_MANY", count)
    stand_in.put({f"train/{k}.tar": SHARDS["train/1.tar"] for k in range(count)})
    stand_in.put({f"train/{k}_stats.json": b'{"successes": 2}' for k in range(count)})
    assert [*wids.ShardListDataset(HUB).lengths] == [2] * count
    assert "40 files are read, each with the sample count of one shard" in caplog.text
    asked = stand_in.requests["resolvers"]
    assert asked == count
    begin_run(monkeypatch)
    assert len(wids.ShardListDataset(HUB)) == 2 * count
    assert stand_in.requests["resolvers"] == asked


def test_counts_that_cannot_be_read_are_not_taken_for_none(stand_in, no_waits, monkeypatch):
    """A Hub that fails is an error, and half of the counts are not kept; a spent budget is waited for."""
    fill(stand_in, LAYOUTS["img2dataset"])
    stand_in.budgets["resolvers"] = 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub.retrying._Tries, "find_delay", lambda *_: None)
        with pytest.raises(errors.FetchError, match="429"):
            wids.ShardListDataset(HUB)
    stand_in.budgets["resolvers"] = 1
    original = hub.retrying.pause

    def pause(seconds, is_cancelled):
        stand_in.budgets.clear()
        original(seconds, is_cancelled)

    monkeypatch.setattr(hub.retrying, "pause", pause)
    begin_run(monkeypatch)
    assert [*wids.ShardListDataset(HUB).lengths] == [3, 2]
    assert {round(wait) for wait in no_waits} == {40}


def test_shards_that_no_file_counts_are_counted_once_for_a_machine(stand_in, monkeypatch, caplog):
    """By their headers; the next run asks for the commit alone, and another commit is counted anew."""
    fill(stand_in)
    assert len(wids.ShardListDataset(HUB)) == 5
    assert "the repository has no sample counts of 2 of 2 shards of the split train" in caplog.text
    assert "wids index create 'hf://datasets/org/set?split=train' --upload" in caplog.text
    caplog.clear()
    begin_run(monkeypatch)
    stand_in.requests.clear()
    assert len(wids.ShardListDataset(HUB)) == 5
    assert (stand_in.requests, caplog.text) == ({"api": 1}, "")
    fill(stand_in, **{"train/1.tar": tar(7)})
    begin_run(monkeypatch)
    assert [*wids.ShardListDataset(HUB).lengths] == [3, 7]


def test_splits_and_revisions(stand_in):
    """As arguments and in the name; a card goes before names."""
    first = fill(stand_in)
    assert [*wids.ShardListDataset(HUB, split="validation").lengths] == [1]
    assert [*wids.ShardListDataset(f"{HUB}@{first}?split=val").lengths] == [1]
    second = fill(stand_in, {"README.md": CARD}, **{"train/1.tar": tar(7)})
    assert [*wids.ShardListDataset(HUB, revision=second).lengths] == [3, 7]
    with pytest.raises(SpecError, match=r"no split 'val'; .*: train \(2\)"):
        wids.ShardListDataset(HUB, split="val", revision=second)
    assert [*wids.ShardListDataset(HUB, revision=first).lengths] == [3, 2]
    with pytest.raises(
        InputError, match="split, config and revision are only for the name of a data set of the Hugging Face Hub"
    ):
        wids.ShardListDataset([("a.tar", 1)], split="val")
    with pytest.raises(ShardNotFoundError, match="org/none"):
        wids.ShardListDataset("hf://datasets/org/none")


def test_a_dataset_by_name_goes_to_workers_and_is_saved_as_a_view(stand_in, tmp_path):
    """A pickle asks nobody; a view is of its list of shards."""
    fill(stand_in, LAYOUTS["timm"])
    dataset = wids.ShardListDataset(HUB, transformations="raw")
    stand_in.requests.clear()
    assert len(pickle.loads(pickle.dumps(dataset))) == 5
    assert stand_in.requests == {}
    dataset.select([4, 0]).save(tmp_path / "view.json")
    assert [sample[".txt"] for sample in wids.ShardListDataset(tmp_path / "view.json", transformations="raw")] == [
        b"0",
        b"4",
    ]


def test_commands_take_names(stand_in, tmp_path):
    """As they take an index; `index create` makes the file that the repository lacks."""
    fill(stand_in)
    index = tmp_path / "train.json"
    assert json.loads(run_ok("index", "create", HUB, "-o", index, "--json"))["samples"] == 5
    rows = json.loads(index.read_text())["shardlist"]
    assert [(row["url"], row["nsamples"]) for row in rows] == [(f"{HUB}/train/0.tar", 3), (f"{HUB}/train/1.tar", 2)]
    stand_in.put({**SHARDS, "train.json": index.read_bytes()})
    hub.forget()
    commit = stand_in.repository.find("main")
    name = f"{HUB}@{commit}"
    assert json.loads(run_ok("info", name, "--json"))["samples"] == 5
    assert [json.loads(line)["nsamples"] for line in run_ok("ls", name, "--shards", "--json").splitlines()] == [3, 2]
    assert "004" in run_ok("show", name, "4")
    assert json.loads(run_ok("verify", name, "--json"))["wrong"] == 0
    run_ok("columns", "create", name, "-o", tmp_path / "c.parquet")
    assert json.loads(run_ok("info", f"{name}?split=val", "--json"))["shards"] == 1


def test_folders_and_globs_of_the_hub_come_from_its_listing(stand_in):
    """With sizes and versions, without a request of their own."""
    fill(stand_in, LAYOUTS["timm"])
    assert [each.url for each in find_shards([f"{HUB}/*/0.tar"])] == [f"{HUB}/train/0.tar", f"{HUB}/val/0.tar"]
    (found,) = find_shards([f"{HUB}/val/"])
    assert (found.size, found.mark) == (len(SHARDS["val/0.tar"]), scan.look_remote(found.url).mark)
    assert [each.url for each in find_shards([HUB])] == [f"{HUB}/train/0.tar", f"{HUB}/train/1.tar"]
    with pytest.raises(SpecError, match=r"the directory has '0\.tar', '1\.tar'"):
        find_shards([f"{HUB}/train/x*.tar"])
    assert "api" in stand_in.requests
    assert stand_in.requests["api"] <= 2


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_shard_in_the_place_of_an_index(is_remote, tmp_path, server):
    """A tar without its ending is known by its first block, and the error says how to give it."""
    data = tars.files({"x.txt": b"1"}) + b"\0" * (8 << 20)
    (tmp_path / "get").write_bytes(data)
    place = server.add("/get", data) if is_remote else str(tmp_path / "get")
    with pytest.raises(SpecError, match=r"is a tar, not an index; give it in a list: ShardListDataset\(\["):
        load_shards(place)
    zeros = server.add("/zeros", b"\0" * (8 << 20))
    with pytest.raises(SpecError, match="not valid JSON"):
        load_shards(zeros)

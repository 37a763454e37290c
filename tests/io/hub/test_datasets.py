"""Data sets of the Hugging Face Hub by name: their layouts, counts, splits and revisions."""

import json
import pickle
import threading

import pytest

import wids
from tests.support.cache_shards import pack
from tests.support.cli import run_ok
from tests.support.clocks import PATIENCE_SECONDS
from tests.support.hub import begin_run
from wids import errors
from wids.core.index.discovery import find_shards
from wids.core.transport import retrying
from wids.errors import InputError, ShardNotFoundError, SpecError
from wids.hub import datasets, repository, source
from wids.jobs import scan

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
    count, together, read = 40, threading.Barrier(8), datasets.read_bytes

    def read_with_others(url, **options):
        if url.endswith("_stats.json"):
            together.wait(PATIENCE_SECONDS)
        return read(url, **options)

    monkeypatch.setattr(datasets, "read_bytes", read_with_others)
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
        patch.setattr(retrying._Tries, "find_delay", lambda *_: None)
        with pytest.raises(errors.FetchError, match="429"):
            wids.ShardListDataset(HUB)
    stand_in.budgets["resolvers"] = 1
    original = retrying.pause

    def pause(seconds, is_cancelled):
        stand_in.budgets.clear()
        original(seconds, is_cancelled)

    monkeypatch.setattr(retrying, "pause", pause)
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
    source.forget()
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

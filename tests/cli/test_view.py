"""`wids view`, and the other commands on a view."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import wids
from tests.support.cli import complaint, run_ok
from tests.support.shards import serve, write_index, write_shards

pytestmark = pytest.mark.usefixtures("own_cache")

COUNTS = (3, 0, 5, 4)


@pytest.fixture
def index(tmp_path):
    """An index of four shards."""
    return write_index(tmp_path / "data", COUNTS)


@pytest.fixture
def view(index, tmp_path):
    """A view of samples 1, 2 and 9, of two of its shards."""
    wids.ShardListDataset(index).select([1, 2, 9]).save(tmp_path / "view.json")
    return str(tmp_path / "view.json")


def keys(path):
    """The keys of an index's samples."""
    return [each["__key__"] for each in wids.ShardListDataset(path, transformations=[])]


def test_view(index, tmp_path):
    """Ranges, arrays and files of keys choose; the result is an index."""
    out = str(tmp_path / "v.json")
    assert run_ok("view", index, "--select", "2:-1", "-o", out).endswith("v.json: 9 of 12 samples, in 3 shards\n")
    everything = keys(index)
    assert keys(out) == everything[2:-1]
    np.save(tmp_path / "some.npy", np.array([0, 4, 7, 8]))
    (tmp_path / "gone.txt").write_text(f"{everything[4]}\n")
    np.save(tmp_path / "first.npy", np.array([0]))
    arguments = [
        "--select",
        tmp_path / "some.npy",
        "--exclude",
        tmp_path / "gone.txt",
        "--exclude",
        tmp_path / "first.npy",
    ]
    assert "2 of 12 samples, in 2 shards" in run_ok("view", index, *map(str, arguments), "-o", out)
    assert keys(out) == [everything[7], everything[8]]
    assert "1 of 2 samples" in run_ok("view", out, "--select", ":1", "-o", str(tmp_path / "w.json"))
    assert "1 of 12 samples" in run_ok("view", index, "--select", str(tmp_path / "gone.txt"), "-o", out)
    assert keys(out) == [everything[4]]


def test_wrong_input(index, tmp_path):
    """Bad choices and outputs are complaints of one line."""
    out = str(tmp_path / "v.json")
    assert "no range" in complaint(2, "view", index, "--select", "x", "-o", out)
    for option in ("--exclude", "--select"):
        assert "cannot be read" in complaint(1, "view", index, option, str(tmp_path / "none.txt"), "-o", out)
    assert "give the output another name" in complaint(1, "view", index, "--select", ":1", "-o", index)
    assert "say which samples: --select, --where, --exclude" in complaint(2, "view", index, "-o", out)
    assert "--columns is for --where" in complaint(2, "view", index, "--select", ":1", "--columns", "x", "-o", out)
    assert not os.path.exists(out)


def test_info(view, index):
    """What it is a view of, and how it was made."""
    out = run_ok("info", view)
    assert [line.split(maxsplit=2) for line in out.splitlines() if "view" in line.split()[:1]] == [
        ["view", "of", index]
    ]
    assert "select: 3 of 12" in out
    assert "12 samples in 4 shards" in out
    size = sum(os.path.getsize(os.path.join(os.path.dirname(index), f"s{k}.tar")) for k in (0, 3))
    assert json.loads(run_ok("info", view, "--json"))["bytes_per_sample"] == size / 7  # of what the shards hold
    told = json.loads(run_ok("info", view, "--json"))
    assert (told["samples"], told["shards"], told["of_shards"], told["view_of"]) == (3, 2, 4, index)


def test_ls_and_show(view):
    """The rows are those of the view."""
    rows = [json.loads(line) for line in run_ok("ls", view, "--json").splitlines()]
    assert [(each["index"], each["key"], each["shard"], each["row"]) for each in rows] == [
        (0, "s0-001", 0, 1),
        (1, "s0-002", 0, 2),
        (2, "s3-001", 3, 1),
    ]
    lines = [line.split()[:4] for line in run_ok("ls", view, "--range", "1:").splitlines()]
    assert lines == [["index", "shard", "row", "key"], ["1", "0", "2", "s0-002"], ["2", "3", "1", "s3-001"]]
    shards = [json.loads(line)["selected"] for line in run_ok("ls", view, "--shards", "--json").splitlines()]
    assert shards == [2, 0, 0, 1]
    assert "s3-001" in run_ok("show", view, "2")
    assert json.loads(run_ok("locate", view, "s3-001", "--json"))[0]["found"][0]["index"] == 2
    assert "no sample has the key" in complaint(1, "locate", view, "s0-000")


def test_order(view):
    """`at` and `when` follow the view's order."""
    sampler = wids.DistributedChunkedSampler(wids.ShardListDataset(view), num_replicas=1, rank=0)
    expected = list(sampler)
    for step, index in enumerate(expected):
        told = json.loads(run_ok("at", view, "--step", str(step), "--json"))
        assert str(index) in json.dumps(told)


def test_shards_with_rows_are_verified_and_warmed(index, tmp_path):
    """Of the others nothing is fetched."""
    wids.ShardListDataset(index).select([1, 2, 9]).save(tmp_path / "data" / "view.json")
    with serve(tmp_path) as server:
        url, cache = f"{server.url}/data/view.json", str(tmp_path / "cache")
        assert "2 shards" in run_ok("verify", url)
        run_ok("cache", "warm", url, "--cache-dir", cache)
        assert sorted(name[-6:] for name in os.listdir(cache) if name.endswith(".tar")) == ["s0.tar", "s3.tar"]
    os.unlink(tmp_path / "data" / "s2.tar")
    assert "2 shards" in run_ok("verify", str(tmp_path / "data" / "view.json"))


def test_pack(view, tmp_path):
    """A view is packed into shards of its own."""
    run_ok("pack", view, "-o", str(tmp_path / "new" / "n-%d.tar"))
    [packed] = [name for name in os.listdir(tmp_path / "new") if name.endswith(".json")]
    assert keys(str(tmp_path / "new" / packed)) == keys(view)


def test_simulate(view):
    """The job has the view's samples."""
    assert "samples read  3 " in " ".join(run_ok("simulate", view, "--world-size", "1").split()).replace(
        "read 3", "read  3"
    )


@pytest.mark.parametrize(
    "command",
    [
        ("index", "convert", "{}", "-o", "x.widsx"),
        ("index", "tables", "{}"),
        ("index", "update", "{}"),
    ],
    ids=lambda command: command[1],
)
@pytest.mark.parametrize("has_index", [True, False])
def test_indexes_are_made_of_no_views(view, command, has_index, tmp_path, monkeypatch):
    """What changes an index refuses a view, also one that lists its shards itself, and says what to do."""
    monkeypatch.chdir(tmp_path)
    if not has_index:
        wids.ShardListDataset(write_shards(tmp_path / "data", COUNTS)).select([1]).save(view)
    before = Path(view).read_bytes()
    said = complaint(1, *(word.format(view) for word in command))
    assert "is a view" in said
    assert "make the view again" in said
    assert Path(view).read_bytes() == before


def test_views_are_split_and_merged(index, view, tmp_path):
    """Parts are views, by their shards; merged they are the view again, and with the rest the whole."""
    parts = [str(tmp_path / f"part-{k}.json") for k in range(2)]
    out = run_ok("index", "split", view, "--by", "1", "-o", str(tmp_path / "part-{}.json"))
    assert [line.partition(": ")[2] for line in out.splitlines()] == ["1 shard, 2 samples", "1 shard, 1 sample"]
    assert keys(parts[0]) + keys(parts[1]) == keys(view)
    again = str(tmp_path / "again.json")
    out = run_ok("index", "merge", *parts, view, "-o", again)
    assert out.endswith("again.json: 2 shards, 3 samples (3 samples that came twice left out)\n")
    assert keys(again) == keys(view)
    assert "merge (part-0.json, part-1.json, view.json): 3 of 12" in run_ok("info", again)
    told = json.loads(run_ok("index", "merge", view, index, "-o", again, "--json"))[0]
    assert (told["samples"], told["repeated"], told["repeated_samples"]) == (12, 0, 3)
    assert keys(again) == keys(index)
    assert "give the output another name" in complaint(1, "index", "merge", view, "-o", index)


def test_views_of_several_indexes_are_merged(view, tmp_path):
    """The result is taken wherever an index is."""
    other = write_index(tmp_path / "other", (2,))
    merged = str(tmp_path / "merged.json")
    assert run_ok("index", "merge", other, view, "-o", merged).endswith("merged.json: 3 shards, 5 samples\n")
    assert keys(merged) == keys(other) + keys(view)
    assert json.loads(run_ok("info", merged, "--json"))["samples"] == 5
    assert "3 shards" in run_ok("verify", merged)
    assert "1 of 5 samples" in run_ok("view", merged, "--select", "4:", "-o", str(tmp_path / "last.json"))


def test_a_view_is_rebased(index, view, tmp_path):
    """Its index may lie elsewhere by then."""
    before = keys(view)
    os.rename(tmp_path / "data", tmp_path / "moved")
    assert run_ok("index", "rebase", view, "--base", "moved").endswith("view.json: 2 shards, 3 samples\n")
    assert keys(view) == before


def test_a_view_of_itself_that_another_program_saves(index, view, tmp_path, monkeypatch):
    """What was saved while it was read is not lost: it is said, and stays."""

    def exclude(dataset, samples):
        wids.ShardListDataset(index).select([1, 9]).save(view)
        return real(dataset, samples)

    real = wids.ShardListDataset.exclude
    monkeypatch.setattr(wids.ShardListDataset, "exclude", exclude)
    (tmp_path / "bad.txt").write_text(f"{keys(view)[0]}\n")
    words = complaint(1, "view", view, "--exclude", str(tmp_path / "bad.txt"), "-o", view)
    assert "another program has written it since it was read" in words
    assert len(keys(view)) == 2
    monkeypatch.undo()
    run_ok("view", view, "--exclude", str(tmp_path / "bad.txt"), "-o", view)
    assert len(keys(view)) == 1


def test_unseen(index, tmp_path):
    """The rest of a checkpoint's epoch, of JSON or of torch.save, with the samples that are new."""
    import torch

    before = wids.ShardListDataset(index)
    sampler = wids.ChunkedSampler(before, seed=2)
    indices = iter(sampler)
    read = {before.locate(next(indices)) for _ in range(5)}
    torch.save({"model": torch.zeros(2), "train": {"loader": sampler.state_dict()}}, tmp_path / "c.pt")
    (tmp_path / "c.json").write_text(json.dumps(sampler.state_dict()))
    old = tmp_path / "old.json"
    os.rename(index, old)
    now = write_index(tmp_path / "data", (*COUNTS, 2), name="now.json")
    entries = json.loads(Path(old).read_text())
    Path(old).write_text(json.dumps({**entries, "base": str(tmp_path / "data")}))
    right = [(shard, row) for shard, count in enumerate((*COUNTS, 2)) for row in range(count)]
    right = [place for place in right if place not in read]
    for name in ("c.pt", "c.json"):
        state, rest = str(tmp_path / name), str(tmp_path / "rest.json")
        told = run_ok("view", now, "--unseen", state, "--old", str(old), "-o", rest, "--overwrite")
        assert f"{len(right)} of 14 samples" in told
        view = wids.ShardListDataset(rest)
        assert [view.locate(i) for i in range(len(view))] == right
        diff = json.loads(run_ok("index", "diff", str(old), now, "--state", state, "--json"))
        assert diff["unseen"] == len(right)


def test_states_that_are_none(index, tmp_path):
    """A file without a state, with two, or of another kind is named."""
    state = wids.ChunkedSampler(wids.ShardListDataset(index)).state_dict()
    cases = {
        "none.json": ({"a": [1, 2]}, "holds no state of a sampler or loader"),
        "two.json": ([state, {**state, "position": 3}], "holds 2 states that differ"),
        "text.json": ("x", "holds no state"),
    }
    view = str(tmp_path / "v.json")
    for name, (content, words) in cases.items():
        (tmp_path / name).write_text(json.dumps(content))
        assert words in complaint(1, "view", index, "--unseen", str(tmp_path / name), "--old", index, "-o", view)
    rubbish = tmp_path / "rubbish.pt"
    rubbish.write_bytes(b"\x80\x02rubbish")
    assert "is neither JSON nor a checkpoint" in complaint(1, "index", "diff", index, index, "--state", str(rubbish))
    assert "belong together" in complaint(2, "view", index, "--unseen", str(rubbish), "-o", view)

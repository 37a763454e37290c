"""Where pages jump to: an index, a shard, a key."""

import os

import pytest

from tests.support.columns import make_columns, write_dataset
from tests.support.shards import write_index, write_json, write_shards, write_tar
from wids.dataset import ShardListDataset


def test_an_index_and_a_shard(tmp_path, serve_index):
    """Their place in the list that is shown, or that of the next sample there."""
    pages = serve_index(write_index(tmp_path, (3, 0, 4)))
    assert pages.get("/api/place", index=5) == {"at": 5, "index": 5, "is_shown": True}
    assert pages.get("/api/place", shard=2) == {"at": 3, "index": 3, "is_shown": True}
    assert pages.get("/api/place", shard=1) == {"at": 3, "index": 3, "is_shown": False}
    assert pages.get("/api/place", index=5, where="row = 1") == {"at": 2, "index": 5, "is_shown": False}
    assert pages.get("/api/place", index=4, where="row = 1") == {"at": 1, "index": 4, "is_shown": True}
    assert "no sample 7" in pages.get("/api/place", 404, index=7)["error"]
    assert "no shard 3" in pages.get("/api/place", 404, shard=3)["error"]
    assert "missing" in pages.get("/api/place", 400)["error"]
    assert "'-1'" in pages.get("/api/place", 400, index=-1)["error"]


@pytest.mark.parametrize("has_columns", [False, True])
def test_a_key(tmp_path, serve_index, has_columns):
    """All samples that have it, by columns or by the tables of all shards."""
    index = write_dataset(tmp_path)
    if has_columns:
        make_columns(index)
    pages = serve_index(index)
    found = pages.lines("/api/find", key="k0004")[-1]
    assert found == {
        "done": 4,
        "shards": 4,
        "way": "columns" if has_columns else "tables",
        "found": 1,
        "indices": [4],
        "errors": 0,
        "why": [],
    }
    for key in ("k000", "0004", "k0004k", "'", "' or true --", "\udcff".encode("utf-8", "surrogatepass")):
        assert pages.lines("/api/find", key=key)[-1]["indices"] == []
    assert "missing" in pages.get("/api/find", 400, key="")["error"]


def test_a_key_of_several(tmp_path, serve_index):
    """Of a view those that it has; a key in another encoding is found as pages show it."""
    write_tar(tmp_path / "0.tar", [("b.txt", b""), ("a.txt", b""), ("b.txt", b"")])
    write_tar(tmp_path / "1.tar", [("b.txt", b""), (b"\xff.txt".decode("utf-8", "surrogateescape"), b"")])
    shards = [{"url": "0.tar", "nsamples": 3}, {"url": "1.tar", "nsamples": 2}]
    index = write_json(tmp_path / "a.json", {"wids_version": 1, "shardlist": shards})
    ShardListDataset(index).select([1, 2, 3, 4]).save(tmp_path / "view.json")
    assert serve_index(index).lines("/api/find", key="b")[-1]["indices"] == [0, 2, 3]
    pages = serve_index(tmp_path / "view.json")
    assert pages.lines("/api/find", key="b")[-1]["indices"] == [1, 2]
    assert pages.lines("/api/find", key="\\udcff")[-1]["indices"] == [3]


def test_a_shard_that_is_gone(tmp_path, serve_index):
    """The others are searched; it is counted and named."""
    shards = write_shards(tmp_path, (2, 2, 2))
    index = write_json(tmp_path / "a.json", {"wids_version": 1, "shardlist": shards})
    os.unlink(shards[1]["url"])
    found = serve_index(index).lines("/api/find", key="s2-001")[-1]
    assert (found["indices"], found["errors"]) == ([5], 1)
    assert "s1.tar" in found["why"][0]


def test_progress(tmp_path, serve_index, monkeypatch):
    """How far a search is, is told while tables come slowly."""
    monkeypatch.setattr("wids.tools.serve.places._LINE_SECONDS", 0.0)
    pages = serve_index(write_index(tmp_path, (2,) * 5))
    steps = pages.lines("/api/find", key="s4-001")
    assert steps[0]["shards"] == 5
    assert [step["done"] for step in steps] == sorted(step["done"] for step in steps)
    assert len(steps) > 1
    assert steps[-1]["indices"] == [9]

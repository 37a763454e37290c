"""Indexes from servers that nobody vouches for: what they may not name, and how long they may be; data sets by name."""

import json
import os
import re

import pytest

import wids
from tests.support import cache_shards, tars
from tests.support.servers import bomb, endless, whole
from tests.support.shards import write_shards
from wids import errors
from wids.columns import file
from wids.core.collection.shard_collection import load_shards
from wids.core.index import loading
from wids.core.transport import download
from wids.errors import SpecError

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

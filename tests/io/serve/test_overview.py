"""The first page: what an index says, and what member tables of some shards add; nothing is downloaded."""

import json
import os

import pytest
from starlette.testclient import TestClient

from tests.support.cli import run_ok
from tests.support.clocks import wait_until
from tests.support.shards import mixture_index, write_index, write_json, write_shards, write_tar
from wids import ShardListDataset
from wids.core.index.shardlist import ShardList
from wids.testing import Server
from wids.tools.serve.app import make_app
from wids.tools.serve.served import Served


@pytest.fixture
def open_pages(tmp_path):
    """Serve an index; each is closed at the end."""
    opened = []

    def open_one(index, **options):
        opened.append(Served(str(index), **{"cache_dir": tmp_path / "cache", **options}))
        return TestClient(make_app(opened[-1]), base_url="http://localhost", headers={"x-wids": "1"})

    yield open_one
    for served in opened:
        served.close()


def looked(pages):
    """What the tables say, once they have been looked at."""
    found = {}
    wait_until(lambda: found.update(pages.get("/api/overview/samples").json()) or found["is_done"])
    return found


def write_list(path, shards, **header):
    """An index of these shards; returns its path."""
    return write_json(path, {"wids_version": 1, "shardlist": shards, **header})


def test_it_says_what_wids_info_says(tmp_path, open_pages):
    """The facts of the index are those of the command."""
    index = write_index(tmp_path, (3, 4, 2), info="words", name="train.json")
    said = json.loads(run_ok("info", index, "--json"))
    found = open_pages(index).get("/api/overview").json()
    assert found["samples"] == 9
    same = set(said) & set(found) - {"datasets", "mixture"}
    assert {"bytes", "bytes_per_sample", "with_md5sum", "first_shard", "samples_per_shard", "info"} <= same
    assert {name: found[name] for name in same} == {name: said[name] for name in same}


def test_fields(tmp_path, open_pages):
    """Each field with its share of the samples and its sizes; what one sample alone has is there, too."""
    members = [(f"{k}.txt", b"x" * 2**k) for k in range(4)] + [("3.seg.png", b"y" * 10)]
    write_tar(tmp_path / "a.tar", members)
    found = looked(open_pages(tmp_path / "a.tar"))
    assert (found["samples"], found["shards"], found["chosen"], found["failed"], found["absent"]) == (4, 1, 1, 0, 0)
    text, mask = found["fields"]
    assert (text["name"], text["share"], text["least"], text["largest"], text["mean"]) == (".txt", 1, 1, 8, 15 / 4)
    assert (mask["name"], mask["samples"], mask["share"], mask["bytes"]) == (".seg.png", 1, 0.25, 10)
    assert sum(number for *_, number in text["bins"]) == 4
    for size in (1, 2, 4, 8):
        assert [number for low, high, number in text["bins"] if low <= size < high] == [1]


def test_of_a_view_its_own_samples(tmp_path, open_pages):
    """The shares are those of the samples that a view has; it says how it was made."""
    write_tar(tmp_path / "a.tar", [("0.txt", b"x"), ("1.cls", b"1"), ("2.txt", b"xyz")])
    write_list(tmp_path / "train.json", [{"url": "a.tar", "nsamples": 3}])
    dataset = ShardListDataset(str(tmp_path / "train.json"))
    dataset.select([0, 2]).save(str(tmp_path / "view.json"))
    pages = open_pages(tmp_path / "view.json")
    assert [(each["name"], each["samples"]) for each in looked(pages)["fields"]] == [(".txt", 2)]
    said = pages.get("/api/overview").json()
    assert (said["samples"], said["of_samples"], len(said["made_by"])) == (2, 3, 1)


def test_nothing_is_downloaded(tmp_path, open_pages):
    """A remote shard without a published table is named; it is not fetched, and no cache directory is made."""
    shards = write_shards(tmp_path / "data", (30, 30))
    with Server(tmp_path / "data") as server:
        rows = [{**each, "url": f"{server.url}/{os.path.basename(each['url'])}"} for each in shards]
        pages = open_pages(write_list(tmp_path / "far.json", rows))
        found = looked(pages)
        assert (found["samples"], found["absent"], found["fields"], found["failed"]) == (0, 2, [], 0)
        assert not [path for path in server.sent_bytes if path.endswith(".tar")]
    assert pages.get("/api/overview").json()["samples"] == 60


def test_published_tables(tmp_path, open_pages):
    """They say what a remote shard holds."""
    write_index(tmp_path / "data", (30, 30), name="train.json")
    run_ok("index", "create", tmp_path / "data" / "s{0..1}.tar", "-o", tmp_path / "data" / "all.json", "--members")
    with Server(tmp_path / "data") as server:
        found = looked(open_pages(f"{server.url}/all.json"))
        assert (found["samples"], found["absent"]) == (60, 0)
        assert {each["name"]: each["share"] for each in found["fields"]} == {".txt": 1, ".cls": 1, ".bin": 1}
        assert not [path for path in server.sent_bytes if path.endswith(".tar")]


def test_a_damaged_shard_is_named(tmp_path, open_pages):
    """The others are looked at all the same."""
    index = write_index(tmp_path, (3, 4, 2))
    (tmp_path / "s1.tar").write_bytes(b"no tar")
    found = looked(open_pages(index))
    assert (found["samples"], found["shards"], found["chosen"], found["failed"]) == (5, 2, 3, 1)
    assert "s1.tar" in found["errors"][0]


def test_classes(tmp_path, open_pages):
    """How often each label was seen, with its name where the index has it."""
    write_tar(tmp_path / "a.tar", [(f"{k:02d}.cls", b"%d" % (k % 3 == 0)) for k in range(30)])
    shards = [{"url": "a.tar", "nsamples": 30}]
    write_list(tmp_path / "train.json", shards, info={"classes": ["cat", "<b>dog</b>"]})
    found = looked(open_pages(tmp_path / "train.json"))["classes"]
    assert [(row["label"], row["name"], row["samples"]) for row in found["labels"]] == [
        ("0", "cat", 20),
        ("1", "<b>dog</b>", 10),
    ]
    assert (found["count"], found["samples"], found["is_sorted"]) == (2, 30, False)


def test_parts(tmp_path, open_pages):
    """Sub-datasets, and the shares of a mixture."""
    index = mixture_index({"a": ((4, 4), 1), "b": ((2,), 3)})
    found = open_pages(write_json(tmp_path / "mix.json", index)).get("/api/overview").json()
    assert [(part["name"], part["shards"], part["samples"]) for part in found["datasets"]] == [("a", 2, 8), ("b", 1, 2)]
    assert [(part["name"], part["share"]) for part in found["mixture"]] == [("a", 0.25), ("b", 0.75)]


def test_no_secret_is_shown(tmp_path, open_pages):
    """Of a signed URL and of a password, nothing."""
    shards = [{"url": "http://u:s3cret@localhost:1/a.tar?X-Amz-Signature=s3cret", "nsamples": 3}]
    pages = open_pages(write_list(tmp_path / "train.json", shards, base="http://u:s3cret@h/"))
    assert "a.tar" in pages.get("/api/overview").text
    for text in (pages.get("/").text, pages.get("/api/overview").text, str(looked(pages))):
        assert "s3cret" not in text


def test_an_empty_view(tmp_path, open_pages):
    """It has a page, too."""
    ShardListDataset(write_index(tmp_path)).select([]).save(str(tmp_path / "none.json"))
    pages = open_pages(tmp_path / "none.json")
    assert pages.get("/").status_code == 200
    found = pages.get("/api/overview").json()
    assert (found["samples"], found["shards"], found["first_shard"]) == (0, 0, None)
    assert looked(pages)["fields"] == []


def test_many_shards_are_not_looked_at_one_by_one(tmp_path, open_pages, monkeypatch):
    """What the index says is summed in columns: only the shards that are shown are made."""
    shards = [{"url": f"s{k}.tar", "nsamples": 10, "filesize": 1000} for k in range(3000)]
    pages, made = open_pages(write_list(tmp_path / "train.json", shards)), []
    real = ShardList.__getitem__
    monkeypatch.setattr(ShardList, "__getitem__", lambda self, k: made.append(k) or real(self, k))
    monkeypatch.setattr(ShardList, "dataset_of", None)
    found = pages.get("/api/overview").json()
    assert (found["samples"], found["bytes"], found["with_filesize"]) == (30_000, 3_000_000, 3000)
    assert len(made) < 5


def test_names_that_are_no_text(tmp_path, open_pages):
    """Names of shards, fields and datasets may have letters that UTF-8 lacks: pages and answers show them escaped."""
    write_tar(tmp_path / "a.tar", [("k.t\udcffxt", b"x")])
    lost = {"url": "gone\udcff.tar", "nsamples": 1}
    index = tmp_path / "i\udcff.json"
    write_json(index, {"wids_version": 1, "name": "n\udcff", "shardlist": [{"url": "a.tar", "nsamples": 1}, lost]})
    pages = open_pages(index)
    assert pages.get("/api/overview").json()["name"] == "n\udcff"
    found = looked(pages)
    assert [field["name"] for field in found["fields"]] == [".t\udcffxt"]
    assert len(found["errors"]) == 1
    for path in ("/", "/samples", "/sample/1", "/epoch", "/cache"):
        answer = pages.get(path)
        assert answer.status_code == 200
        assert "i\\udcff.json" in answer.text
    assert pages.get("/api/place?shard=9").status_code == 404


@pytest.mark.parametrize("path", ["sample", "api/sample", "thumb", "field", "api/text"])
def test_an_index_of_thousands_of_digits(tmp_path, open_pages, path):
    """It is no page, as any other that no sample has."""
    pages = open_pages(write_index(tmp_path, (2,)))
    assert pages.get(f"/{path}/{'9' * 5000}{'' if 'sample' in path else '/.txt'}").status_code == 404

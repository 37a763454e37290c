"""The cache page: what is asked for again and again, and what of it is sent."""

import contextlib
import os
import time

import pytest
from starlette.testclient import TestClient

from tests.support.cache_dirs import put_file, put_shard, table_of
from tests.support.clocks import set_limits
from tests.support.shards import write_index, write_json
from wids.core.cache.usage_hints import PlanFile
from wids.core.place import Place
from wids.tools.serve import cache
from wids.tools.serve.app import make_app
from wids.tools.serve.served import Served


@pytest.fixture
def home(tmp_path):
    """A cache directory that does not exist yet."""
    return str(tmp_path / "cache")


@pytest.fixture
def pages(tmp_path, home, monkeypatch):
    """The pages of a dataset with that directory; each request looks anew."""
    set_limits(cache.Live, monkeypatch.setattr, pause_seconds=0.0)
    served = Served(write_index(tmp_path), cache_dir=home)
    yield TestClient(make_app(served), base_url="http://localhost", headers={"x-wids": "1"})
    served.close()


def ask(pages, before=None):
    """An answer, to a page that has had one before."""
    last = max((change["number"] for change in before["changes"]), default=0) if before else 0
    query = f"?boot={before['boot']}&since={before['revision']}&changes={last}" if before else ""
    return pages.get(f"/api/cache{query}").json()


def names(answer):
    """The shards whose rows were sent."""
    return sorted(row["name"] for row in answer["rows"])


def test_a_directory_that_is_not_there(pages, home):
    """It is an empty cache; it is not made."""
    found = ask(pages)
    assert (found["exists"], found["shards"], found["rows"], found["used_bytes"]) == (False, 0, [], 0)
    assert pages.get("/cache").status_code == 200
    assert not os.path.exists(home)


def test_shards_by_their_urls(tmp_path, home, monkeypatch):
    """Those of the dataset, without passwords; two of one name are told apart. Others have the names of their files."""
    set_limits(cache.Live, monkeypatch.setattr, pause_seconds=0.0)
    urls = [f"https://me:secret@example.com/{folder}/s0.tar" for folder in "ab"]
    shards = [{"url": url, "nsamples": 1} for url in urls]
    index = write_json(tmp_path / "a.json", {"wids_version": 1, "shardlist": shards})
    served = Served(str(index), cache_dir=home)
    os.mkdir(home)
    for name in (*(Place(url).cache_name() for url in urls), "c.tar"):
        put_shard(home, name, 1000)
    found = ask(TestClient(make_app(served), base_url="http://localhost", headers={"x-wids": "1"}))
    assert found["urls"] == {Place(url).cache_name(): Place(url).public for url in urls}
    assert "secret" not in str(found["urls"].values())
    served.close()


def test_a_file_in_its_place(pages, home):
    """The answer says so."""
    put_file(*os.path.split(home))
    answer = pages.get("/api/cache")
    assert (answer.status_code, "is not a directory" in answer.json()["error"]) == (400, True)


def test_only_what_has_changed_is_sent(pages, home):
    """A row, and the order of rows, are sent once; then those that changed. A new page is sent all."""
    os.mkdir(home)
    for name in ("a.tar", "b.tar"):
        put_shard(home, name)
    first = ask(pages)
    assert (names(first), len(first["order"])) == (["a.tar", "b.tar"], 2)
    second = ask(pages, first)
    assert (second["rows"], second["order"]) == ([], None)
    os.utime(table_of(f"{home}/a.tar"), (2_000_000, 2_000_000))
    ask(pages, second)
    third = ask(pages, second)
    assert names(third) == ["a.tar"]
    with contextlib.closing(PlanFile(home)) as plan:
        plan.write({"b.tar": time.time() + 100}, {}, {"d": {"hits": 3, "fetches": 1}})
        fourth = ask(pages, third)
        assert names(fourth) == ["b.tar"]
        assert fourth["jobs"] == [{"pid": os.getpid(), "figures": {"hits": 3, "fetches": 1}}]
        plan.write({"b.tar": time.time() + 101})
        assert ask(pages, fourth)["rows"] == []  # an estimate that moves a little is no news
    assert names(ask(pages)) == ["a.tar", "b.tar"]
    assert names(ask(pages, {**third, "boot": "another"})) == ["a.tar", "b.tar"]


def test_the_rows_have_an_end(tmp_path, pages, home, monkeypatch):
    """Of many shards some are shown, and all are counted."""
    monkeypatch.setattr(cache, "ROWS", 5)
    os.mkdir(home)
    for k in range(9):
        put_shard(home, f"{k}.tar", used=1000 + k)
    found = cache.Live(home).describe("", 0, 0)
    assert (found["shards"], len(found["rows"]), len(found["order"])) == (9, 5, 5)


def test_pages_that_are_open_share_a_look(home, monkeypatch):
    """However many ask, the directory is looked at once for all."""
    os.mkdir(home)
    put_shard(home, "a.tar")
    set_limits(cache.Live, monkeypatch.setattr, pause_seconds=1000.0)
    live, looks = cache.Live(home), []
    real = live._watch.look
    monkeypatch.setattr(live._watch, "look", lambda: looks.append(1) or real())
    assert [names(live.describe("", 0, 0)) for _ in range(3)] == [["a.tar"]] * 3
    assert looks == [1]


@pytest.mark.parametrize("query", ["since=x", "since=-1", "changes=9999999999999999999", "since=²"])
def test_what_is_asked_is_a_number(pages, query):
    """Else the answer says so."""
    answer = pages.get(f"/api/cache?{query}")
    assert (answer.status_code, "is a number" in answer.json()["error"]) == (400, True)

"""Tags: what can have one, undoing, the file that they are kept in, what can be saved, who may not change them."""

import io
import os
import re
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.support.shards import write_index
from wids.core.files import locks, replaced
from wids.dataset import ShardListDataset
from wids.errors import InputError, OutputError, OutputExistsError
from wids.testing import Server
from wids.tools.serve import tagging
from wids.tools.serve import tags as serve_tags
from wids.tools.serve.served import Served


@pytest.fixture
def index(tmp_path):
    """An index of two shards."""
    return write_index(tmp_path, (3, 4))


def tag(pages, *indices, is_set=True, number=1, status=200):
    """Set a tag on samples, or remove it: the answer."""
    return pages.post("/api/tags", {"tag": number, "is_set": is_set, "indices": [*indices]}, status)


def tagged(pages, number=None):
    """The samples with a tag, or with any."""
    return [row["index"] for row in pages.get("/api/rows", tag=number or "any")["rows"]]


def test_set_and_remove(index, serve_index):
    """On one sample, or several; the answer counts; pages show only these, of a filter too."""
    pages = serve_index(index)
    assert tag(pages, 5)["count"] == 1
    assert tag(pages, 1, 5, 2)["count"] == 3
    assert tag(pages, 5, 6, number=3)["count"] == 4
    found = pages.get("/api/tags", indices="0,1,5,6")
    assert (found["count"], found["file"], found["of"]) == (4, "", {"0": [], "1": [1], "5": [1, 3], "6": [3]})
    assert [each["count"] for each in found["tags"]] == [3, 0, 2, *[0] * 6]
    found = pages.get("/api/rows", tag="1")
    assert [(row["at"], row["index"], row["tags"]) for row in found["rows"]] == [
        (0, 1, [1]),
        (1, 2, [1]),
        (2, 5, [1, 3]),
    ]
    assert tagged(pages) == [1, 2, 5, 6]
    assert pages.get("/api/rows", tag="1", where="shard = 1")["total"] == 1
    assert tag(pages, 1, is_set=False)["count"] == 3
    assert tag(pages, 1, is_set=False)["changed"] == 0
    assert "any or 1 to 9" in pages.get("/api/rows", 400, tag="10")["error"]


def test_a_range(tmp_path, serve_index):
    """From one sample to another of the list that a page shows, in either direction and in any order; or all of it."""
    pages = serve_index(write_index(tmp_path, (3, 4)))

    def change(status=200, *, is_set=True, **samples):
        return pages.post("/api/tags", {"tag": 1, "is_set": is_set, **samples}, status)

    assert change(list={"where": "shard = 1"}, first=5, last=4)["count"] == 2
    assert tagged(pages) == [4, 5]
    assert change(list={"tag": "1"}, is_set=False)["count"] == 0
    assert change(list={"sort": "index", "desc": "1"}, first=6, last=5)["count"] == 2
    assert "look at it again" in change(404, list={"tag": "1"}, first=4, last=5)["error"]
    assert change(list={})["count"] == 7
    assert "no sample 7" in change(404, list={}, first=0, last=7)["error"]
    assert "no columns" in change(400, list={"where": "nowhere > 1"})["error"]


def test_undo(index, serve_index):
    """A change is undone, and done again, whatever others have changed meanwhile."""
    pages = serve_index(index)
    first = tag(pages, 1, 2)
    second = tag(pages, 2, 3)
    tag(pages, 2, is_set=False)
    undone = pages.post("/api/tags", {"undo": first["change"]})
    assert (undone["tag"], undone["is_set"], undone["changed"], tagged(pages)) == (1, False, 1, [3])
    again = pages.post("/api/tags", {"undo": undone["change"]})
    assert (again["is_set"], tagged(pages)) == (True, [1, 3])
    pages.post("/api/tags", {"undo": second["change"]})
    assert tagged(pages) == [1]
    assert "started again" in pages.post("/api/tags", {"undo": "x"}, 404)["error"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("bad label", "bad label"),
        (" bad\n label\t", "bad label"),
        ("", ""),
        ("<img src=x onerror=alert(1)>\"'&", "<img src=x onerror=alert(1)>\"'&"),
        ("плохо 👩\u200d🔬", "плохо 👩\u200d🔬"),
        ("a" * 60, "a" * 60),
    ],
)
def test_names(index, tmp_path, serve_index, name, found):
    """They are kept with white space as single spaces."""
    pages = serve_index(index, tags=str(tmp_path / "t.npy"))
    tag(pages, 1, number=2)
    assert pages.post("/api/tags", {"tag": 2, "name": name})["tags"][1] == {"name": found, "count": 1}
    again = serve_index(index, tags=str(tmp_path / "t.npy"))
    assert again.get("/api/tags", indices="1")["tags"][1] == {"name": found, "count": 1}
    answer = again.client.get("/api/list.npy", params={"tag": "2"})
    assert re.fullmatch(r'attachment; filename="[A-Za-z0-9._-]+\.npy"', answer.headers["content-disposition"])
    assert np.load(io.BytesIO(answer.content)).tolist() == [1]


@pytest.mark.parametrize("name", ["a" * 61, "a" * 10_000, "a\0b", "a\x1b[31m"])
def test_names_that_cannot_be(index, serve_index, name):
    """They are refused, and nothing is changed."""
    pages = serve_index(index)
    assert "the name of a tag has" in pages.post("/api/tags", {"tag": 2, "name": name}, 400)["error"]
    assert pages.client.post("/api/tags", content=b'{"tag": 2, "name": "\\ud800"}').status_code == 400
    assert pages.get("/api/tags")["tags"][1]["name"] == ""


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"tag": 1, "is_set": True, "indices": [7]}, 404, "no sample 7"),
        ({"tag": 1, "is_set": True, "indices": [-1]}, 400, "-1 is no index"),
        ({"tag": 1, "is_set": True, "indices": [True]}, 400, "True is no index"),
        ({"tag": 1, "is_set": True, "indices": ["0"]}, 400, "'0' is no index"),
        ({"tag": 1, "is_set": True}, 400, "None is no index"),
        ({"tag": 1, "is_set": 1, "indices": [0]}, 400, "a request to tag"),
        ({"tag": 1, "indices": [0]}, 400, "a request to tag"),
        ([0], 400, "a request to tag"),
        ({"tag": 10, "is_set": True, "indices": [0]}, 400, "10 is no tag"),
        ({"tag": 0, "is_set": True, "indices": [0]}, 400, "0 is no tag"),
        ({"tag": True, "is_set": True, "indices": [0]}, 400, "True is no tag"),
        ({"tag": "1", "name": "a"}, 400, "'1' is no tag"),
        ({"tag": 1, "is_set": True, "list": {"tag": "x"}}, 400, "tag is 'x'"),
        ({"undo": 5}, 400, "None is no tag"),
    ],
)
def test_what_cannot_be_tagged(index, serve_index, body, status, words):
    """It is said why, and nothing is changed."""
    pages = serve_index(index)
    assert words in pages.post("/api/tags", body, status)["error"]
    assert pages.get("/api/tags")["count"] == 0


def test_what_is_no_request(index, serve_index, monkeypatch):
    """No JSON, or a body that is longer than any request."""
    pages = serve_index(index)
    assert pages.client.post("/api/tags", content=b"\xff{").status_code == 400
    assert pages.client.post("/api/tags", content=b"[" * 100_000).status_code == 400
    monkeypatch.setattr(tagging, "_MAX_BODY", 10)
    assert pages.client.post("/api/tags", content=b" " * 11).status_code == 400


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-wids": "1", "origin": "http://evil.example"},
        {"x-wids": "1", "sec-fetch-site": "cross-site"},
        {"content-type": "text/plain"},
    ],
)
def test_other_sites_change_nothing(index, serve_index, headers):
    """Neither a form nor a script of another page."""
    pages = serve_index(index)
    own = pages.client.headers.pop("x-wids")
    answer = pages.client.post("/api/tags", content=b'{"tag": 1, "is_set": true, "indices": [0]}', headers=headers)
    assert answer.status_code == 403
    pages.client.headers["x-wids"] = own
    assert pages.get("/api/tags")["count"] == 0


def test_too_many(index, serve_index, monkeypatch):
    """It is said what to use instead."""
    monkeypatch.setattr(serve_tags, "MAX_TAGGED", 3)
    pages = serve_index(index)
    assert "wids view" in pages.post("/api/tags", {"tag": 1, "is_set": True, "indices": [0, 1, 2, 3]}, 400)["error"]
    assert "wids view" in pages.post("/api/tags", {"tag": 1, "is_set": True, "list": {}}, 400)["error"]
    assert pages.post("/api/tags", {"tag": 1, "is_set": True, "indices": [0, 1, 2]})["count"] == 3


def test_a_file(index, tmp_path, serve_index):
    """It has each change before the answer, is read at the next start, and is what select and exclude take."""
    path = tmp_path / "tags.npy"
    pages = serve_index(index, tags=str(path))
    assert not path.exists()
    pages.post("/api/tags", {"tag": 1, "is_set": True, "indices": [4, 1]})
    dataset = ShardListDataset(index)
    assert list(dataset.select(path).keys) == ["s0-001", "s1-001"]
    assert len(dataset.exclude(path)) == 5
    pages.post("/api/tags", {"tag": 1, "is_set": False, "indices": [4]})
    assert list(dataset.select(path).keys) == ["s0-001"]
    again = serve_index(index, tags=str(path))
    assert tagged(again) == [1]
    assert again.get("/api/tags")["file"] == "tags.npy"
    again.post("/api/tags", {"tag": 1, "is_set": False, "indices": [1]})
    assert serve_index(index, tags=str(path)).get("/api/tags")["count"] == 0
    assert not [each for each in os.listdir(tmp_path) if "part" in each]


def test_tags_of_a_view(index, tmp_path, serve_index):
    """They are counted as the view does; a file of more samples than it has is refused."""
    ShardListDataset(index).select([0, 2, 4, 6]).save(tmp_path / "view.json")
    pages = serve_index(tmp_path / "view.json", tags=str(tmp_path / "m.npy"))
    pages.post("/api/tags", {"tag": 1, "is_set": True, "indices": [1, 3]})
    again = serve_index(tmp_path / "view.json", tags=str(tmp_path / "m.npy"))
    assert tagged(again) == [1, 3]
    np.save(tmp_path / "m.npy", np.array([1, 6]))
    with pytest.raises(OutputExistsError, match="beyond 4 samples"):
        Served(str(tmp_path / "view.json"), tags=str(tmp_path / "m.npy"))


@pytest.mark.parametrize("name", ["m.json", "m.txt", "m"])
def test_a_file_of_another_kind(index, tmp_path, name):
    """Is refused at the start, whether it is there or not, and stays as it is."""
    for path in (tmp_path / name, Path(index)):
        before = path.read_bytes() if path.exists() else None
        with pytest.raises(InputError, match=r"a name that ends in \.npy"):
            Served(index, tags=str(path))
        assert (path.read_bytes() if path.exists() else None) == before


@pytest.mark.parametrize("data", [b"PK", b"\x93NUMPY", b"s0-000\n"])
def test_a_file_that_is_not_ours(index, tmp_path, data):
    """It is refused at the start, and stays as it is."""
    path = tmp_path / "m.npy"
    path.write_bytes(data)
    with pytest.raises(OutputExistsError, match="no file of tags"):
        Served(index, tags=str(path))
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    "values",
    [
        np.array([1.0]),
        np.array([2, 1]),
        np.array([1, 1]),
        np.array([7]),
        np.array([-1]),
        np.array([[0]]),
        np.zeros(7, bool),
    ],
)
def test_an_array_that_is_not_ours(index, tmp_path, values):
    """Likewise: of labels, say."""
    np.save(tmp_path / "m.npy", values)
    with pytest.raises(OutputExistsError, match="no file of tags"):
        Served(index, tags=str(tmp_path / "m.npy"))


@pytest.mark.parametrize(
    "rest",
    [
        [np.array([1, 1], np.uint16)],
        [np.array([1, 0], np.uint16), np.array([""] * 9)],
        [np.array([1, 512], np.uint16), np.array([""] * 9)],
        [np.array([1], np.uint16), np.array([""] * 9)],
        [np.array([1, 1]), np.array([""] * 9)],
        [np.array([1, 1], np.uint16), np.array([""] * 8)],
        [np.array([1, 1], np.uint16), np.zeros(9)],
    ],
)
def test_a_file_with_other_tags(index, tmp_path, rest):
    """It is refused, and so is one that is cut, or not of NumPy behind its indices."""
    path = tmp_path / "m.npy"
    data = serve_tags.pack_arrays(np.array([1, 2]), *rest)
    for bad in (data, data[:-3], serve_tags.pack_arrays(np.array([1, 2])) + b"x"):
        path.write_bytes(bad)
        with pytest.raises(OutputExistsError, match=r"no file of tags.*are no tags"):
            Served(index, tags=str(path))


def test_a_file_of_indices_alone(index, tmp_path, serve_index):
    """Its samples have tag 1."""
    np.save(tmp_path / "m.npy", np.array([1, 4]))
    pages = serve_index(index, tags=str(tmp_path / "m.npy"))
    assert tagged(pages, 1) == [1, 4]
    tag(pages, 4, 5, number=9)
    again = serve_index(index, tags=str(tmp_path / "m.npy"))
    assert (tagged(again, 1), tagged(again, 9)) == ([1, 4], [4, 5])
    assert len(ShardListDataset(index).exclude(tmp_path / "m.npy")) == 4


@pytest.mark.parametrize("place", ["folder.npy", "nowhere/m.npy", "https://host/m.npy"])
def test_a_place_that_cannot_be_a_file(index, tmp_path, place):
    """It is an error at the start."""
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(OutputError):
        Served(index, tags=place if "://" in place else str(tmp_path / place))


def test_too_many_in_a_file(index, tmp_path, monkeypatch):
    """They are not cut."""
    np.save(tmp_path / "m.npy", np.arange(4))
    monkeypatch.setattr(serve_tags, "MAX_TAGGED", 3)
    with pytest.raises(InputError, match="3 can have a tag"):
        Served(index, tags=str(tmp_path / "m.npy"))


def test_a_file_that_cannot_be_written(index, tmp_path, serve_index):
    """A tag that is not in the file is not shown."""
    folder = tmp_path / "f"
    folder.mkdir()
    pages = serve_index(index, tags=str(folder / "m.npy"))
    folder.rmdir()
    assert (
        "check the path and its permissions"
        in pages.post("/api/tags", {"tag": 1, "is_set": True, "indices": [1]}, 400)["error"]
    )
    assert tagged(pages) == []
    folder.mkdir()
    assert pages.post("/api/tags", {"tag": 1, "is_set": True, "indices": [1]})["count"] == 1


def test_what_can_be_saved(index, tmp_path, serve_index):
    """A view that opens wherever it is unpacked, and indices."""
    pages = serve_index(index)
    pages.post("/api/tags", {"tag": 1, "is_set": True, "indices": [6, 0]})
    tag(pages, 3, number=2)
    pages.post("/api/tags", {"tag": 2, "name": "../bad label"})
    answer = pages.client.get("/api/list.zip", params={"tag": "1"})
    assert answer.headers["content-disposition"] == 'attachment; filename="tag-1.zip"'
    folder = tmp_path / "elsewhere" / "deep"
    zipfile.ZipFile(io.BytesIO(answer.content)).extractall(folder)
    assert list(ShardListDataset(folder / "tag-1.json").keys) == ["s0-000", "s1-003"]
    for query, name, found in (
        ({"tag": "any"}, "tagged", [0, 3, 6]),
        ({"tag": "2"}, "bad-label", [3]),
        ({"tag": "1", "where": "shard = 1", "sort": "index", "desc": "1"}, "tag-1", [6]),
        ({"where": "shard = 0", "sort": "index", "desc": "1"}, "filtered", [0, 1, 2]),
    ):
        answer = pages.client.get("/api/list.npy", params=query)
        assert answer.headers["content-disposition"] == f'attachment; filename="{name}.npy"'
        assert np.load(io.BytesIO(answer.content)).tolist() == found
    (tmp_path / "bad.npy").write_bytes(pages.client.get("/api/list.npy", params={"tag": "2"}).content)
    assert len(ShardListDataset(index).exclude(tmp_path / "bad.npy")) == 6
    for query in ({}, {"tag": "3"}, {"where": "shard = 9"}):
        assert "nothing to save" in pages.get("/api/list.npy", 400, **query)["error"]


def test_a_view_of_tars_without_an_index(tmp_path, serve_index):
    """Its file lists the shards itself, where they are."""
    write_index(tmp_path / "d", (3, 4))
    pages = serve_index(tmp_path / "d" / "s{0..1}.tar")
    pages.post("/api/tags", {"tag": 1, "is_set": True, "indices": [3]})
    zipfile.ZipFile(io.BytesIO(pages.client.get("/api/list.zip", params={"tag": "1"}).content)).extractall(
        tmp_path / "e"
    )
    assert list(ShardListDataset(tmp_path / "e" / "tag-1.json").keys) == ["s1-000"]


def test_many_at_once(index, tmp_path, serve_index):
    """Of changes that come at the same time none is lost, in memory and in the file."""
    path = tmp_path / "m.npy"
    pages = serve_index(index, tags=str(path))
    threads = [
        threading.Thread(target=pages.served.tags.change, args=(1, [k]), kwargs={"is_set": True}) for k in range(7)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(np.load(path)) == len(pages.served.tags) == 7


def test_a_remote_index(tmp_path, serve_index):
    """Tags of remote shards are kept here, and read again."""
    write_index(tmp_path, (3, 4))
    with Server(tmp_path) as server:
        url = f"{server.url}/index.json"
        (tmp_path / "m").mkdir()
        path = str(tmp_path / "m" / "m.npy")
        serve_index(url, tags=path, cache_dir=tmp_path / "c").post(
            "/api/tags", {"tag": 1, "is_set": True, "indices": [4]}
        )
        assert np.load(path).tolist() == [4]
        again = serve_index(url, tags=path, cache_dir=tmp_path / "c")
        assert tagged(again) == [4]


def test_two_servers_of_one_file(tmp_path, index, serve_index):
    """What another one has changed meanwhile is not overwritten; a file that was deleted is written again."""
    file = tmp_path / "m.npy"
    first, second = (serve_index(index, tags=str(file)) for _ in range(2))
    first.post("/api/tags", {"tag": 1, "is_set": True, "indices": [1]})
    assert "another program" in second.post("/api/tags", {"tag": 1, "is_set": True, "indices": [2]}, 400)["error"]
    assert second.get("/api/tags")["count"] == 0
    first.post("/api/tags", {"tag": 1, "is_set": True, "indices": [3]})
    assert tagged(serve_index(index, tags=str(file))) == [1, 3]
    file.unlink()
    first.post("/api/tags", {"tag": 1, "is_set": True, "indices": [4]})
    assert serve_index(index, tags=str(file)).get("/api/tags")["count"] == 3


def test_two_servers_at_once(tmp_path, index, serve_index, monkeypatch):
    """One that looks at the file while another is about to replace it waits; no change that was answered is lost."""
    file, answers = tmp_path / "m.npy", {}
    first, second = (serve_index(index, tags=str(file)) for _ in range(2))
    is_waiting = threading.Event()
    other = threading.Thread(target=lambda: answers.update(second=change(second, 2)))

    def change(pages, sample):
        return pages.client.post("/api/tags", json={"tag": 1, "is_set": True, "indices": [sample]}).status_code

    def look(path):
        found = version_of(path)
        if threading.current_thread() is not other and not other.ident:
            other.start()
            while other.is_alive() and not is_waiting.wait(0.01):
                pass
        return found

    should_end = locks._Wait.should_end
    monkeypatch.setattr(locks._Wait, "should_end", lambda self: is_waiting.set() or should_end(self))
    version_of = replaced._version_of
    monkeypatch.setattr(replaced, "_version_of", look)
    answers["first"] = change(first, 1)
    other.join()
    assert answers == {"first": 200, "second": 400}
    assert tagged(serve_index(index, tags=str(file))) == [1]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_to_a_file(tmp_path, index, serve_index, is_there):
    """Tags are in the file that it leads to, and it stays a link."""
    file, link = tmp_path / "kept.npy", tmp_path / "m.npy"
    link.symlink_to(file)
    if is_there:
        np.save(file, np.array([2]))
    serve_index(index, tags=str(link)).post("/api/tags", {"tag": 1, "is_set": True, "indices": [1]})
    assert link.is_symlink()
    assert np.load(file).tolist() == ([1, 2] if is_there else [1])

"""Marked samples: what may be marked, the file that they are kept in, what can be saved, who may not mark."""

import io
import os
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
from wids.tools.serve import marking
from wids.tools.serve import marks as serve_marks
from wids.tools.serve.served import Served


@pytest.fixture
def index(tmp_path):
    """An index of two shards."""
    return write_index(tmp_path, (3, 4))


def test_mark_and_unmark(index, serve_index):
    """One sample, or several; the answer counts; pages show only these, of a filter too."""
    pages = serve_index(index)
    assert pages.post("/api/marks", {"index": 5, "is_marked": True})["count"] == 1
    assert pages.post("/api/marks", {"indices": [1, 5, 2], "is_marked": True})["count"] == 3
    assert pages.get("/api/marks", indices="0,1,2") == {"count": 3, "file": "", "marked": [1, 2]}
    found = pages.get("/api/rows", marked="1")
    assert [(row["at"], row["index"], row["is_marked"]) for row in found["rows"]] == [
        (0, 1, True),
        (1, 2, True),
        (2, 5, True),
    ]
    assert pages.get("/api/rows", marked="1", where="shard = 1")["total"] == 1
    assert pages.post("/api/marks", {"index": 1, "is_marked": False})["count"] == 2
    assert pages.post("/api/marks", {"index": 1, "is_marked": False})["count"] == 2


def test_a_range(tmp_path, serve_index):
    """From one place to another of the list that a page shows, which a filter and the marks may have made."""
    pages = serve_index(write_index(tmp_path, (3, 4)))
    body = {"start": 1, "end": 3, "where": "shard = 1", "is_marked": True}
    assert pages.post("/api/marks", body)["count"] == 2
    assert [row["index"] for row in pages.get("/api/rows", marked="1")["rows"]] == [4, 5]
    assert pages.post("/api/marks", {"start": 0, "end": 1, "marked": True, "is_marked": False})["count"] == 1
    assert pages.post("/api/marks", {"start": 0, "end": 7, "is_marked": True})["count"] == 7
    pages.post("/api/marks", {"start": 0, "end": 8, "is_marked": True}, 404)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"index": 7, "is_marked": True}, 404, "no sample 7"),
        ({"index": -1, "is_marked": True}, 400, "-1 is no index"),
        ({"index": True, "is_marked": True}, 400, "True is no index"),
        ({"index": "0", "is_marked": True}, 400, "'0' is no index"),
        ({"is_marked": True}, 400, "None is no index"),
        ({"index": 0, "is_marked": 1}, 400, "a request to mark"),
        ({"index": 0}, 400, "a request to mark"),
        ([0], 400, "a request to mark"),
        ({"start": 3, "end": 1, "is_marked": True}, 404, "no range"),
        ({"start": 0, "end": 1, "where": "nowhere > 1", "is_marked": True}, 400, "no columns"),
    ],
)
def test_what_cannot_be_marked(index, serve_index, body, status, words):
    """It is said why, and nothing is marked."""
    pages = serve_index(index)
    assert words in pages.post("/api/marks", body, status)["error"]
    assert pages.get("/api/marks")["count"] == 0


def test_what_is_no_request(index, serve_index, monkeypatch):
    """No JSON, or a body that is longer than any request."""
    pages = serve_index(index)
    assert pages.client.post("/api/marks", content=b"\xff{").status_code == 400
    assert pages.client.post("/api/marks", content=b"[" * 100_000).status_code == 400
    monkeypatch.setattr(marking, "_MAX_BODY", 10)
    assert pages.client.post("/api/marks", content=b" " * 11).status_code == 400


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-wids": "1", "origin": "http://evil.example"},
        {"x-wids": "1", "sec-fetch-site": "cross-site"},
        {"content-type": "text/plain"},
    ],
)
def test_other_sites_mark_nothing(index, serve_index, headers):
    """Neither a form nor a script of another page."""
    pages = serve_index(index)
    own = pages.client.headers.pop("x-wids")
    answer = pages.client.post("/api/marks", content=b'{"index": 0, "is_marked": true}', headers=headers)
    assert answer.status_code == 403
    pages.client.headers["x-wids"] = own
    assert pages.get("/api/marks")["count"] == 0


def test_too_many(index, serve_index, monkeypatch):
    """It is said what to use instead."""
    monkeypatch.setattr(serve_marks, "MAX_MARKS", 3)
    pages = serve_index(index)
    assert "wids view" in pages.post("/api/marks", {"indices": [0, 1, 2, 3], "is_marked": True}, 400)["error"]
    assert "wids view" in pages.post("/api/marks", {"start": 0, "end": 4, "is_marked": True}, 400)["error"]
    assert pages.post("/api/marks", {"indices": [0, 1, 2], "is_marked": True})["count"] == 3


def test_a_file_of_marks(index, tmp_path, serve_index):
    """It has each change before the answer, is read at the next start, and is what select and exclude take."""
    path = tmp_path / "marks.npy"
    pages = serve_index(index, marks=str(path))
    assert not path.exists()
    pages.post("/api/marks", {"indices": [4, 1], "is_marked": True})
    dataset = ShardListDataset(index)
    assert list(dataset.select(path).keys) == ["s0-001", "s1-001"]
    assert len(dataset.exclude(path)) == 5
    pages.post("/api/marks", {"index": 4, "is_marked": False})
    assert list(dataset.select(path).keys) == ["s0-001"]
    again = serve_index(index, marks=str(path))
    assert again.get("/api/marks", indices="1,4")["marked"] == [1]
    assert again.get("/api/marks")["file"] == "marks.npy"
    again.post("/api/marks", {"index": 1, "is_marked": False})
    assert serve_index(index, marks=str(path)).get("/api/marks")["count"] == 0
    assert not [each for each in os.listdir(tmp_path) if "part" in each]


def test_marks_of_a_view(index, tmp_path, serve_index):
    """They are counted as the view does; a file of more samples than it has is refused."""
    ShardListDataset(index).select([0, 2, 4, 6]).save(tmp_path / "view.json")
    pages = serve_index(tmp_path / "view.json", marks=str(tmp_path / "m.npy"))
    pages.post("/api/marks", {"indices": [1, 3], "is_marked": True})
    again = serve_index(tmp_path / "view.json", marks=str(tmp_path / "m.npy"))
    assert again.get("/api/marks", indices="0,1,2,3")["marked"] == [1, 3]
    np.save(tmp_path / "m.npy", np.array([1, 6]))
    with pytest.raises(OutputExistsError, match="beyond 4 samples"):
        Served(str(tmp_path / "view.json"), marks=str(tmp_path / "m.npy"))


@pytest.mark.parametrize("name", ["m.json", "m.txt", "m"])
def test_a_file_of_another_kind(index, tmp_path, name):
    """Is refused at the start, whether it is there or not, and stays as it is."""
    for path in (tmp_path / name, Path(index)):
        before = path.read_bytes() if path.exists() else None
        with pytest.raises(InputError, match=r"a name that ends in \.npy"):
            Served(index, marks=str(path))
        assert (path.read_bytes() if path.exists() else None) == before


@pytest.mark.parametrize("data", [b"PK", b"\x93NUMPY", b"s0-000\n"])
def test_a_file_that_is_not_ours(index, tmp_path, data):
    """It is refused at the start, and stays as it is."""
    path = tmp_path / "m.npy"
    path.write_bytes(data)
    with pytest.raises(OutputExistsError, match="no file of marks"):
        Served(index, marks=str(path))
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
    with pytest.raises(OutputExistsError, match="no file of marks"):
        Served(index, marks=str(tmp_path / "m.npy"))


@pytest.mark.parametrize("place", ["folder.npy", "nowhere/m.npy", "https://host/m.npy"])
def test_a_place_that_cannot_be_a_file(index, tmp_path, place):
    """It is an error at the start."""
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(OutputError):
        Served(index, marks=place if "://" in place else str(tmp_path / place))


def test_too_many_in_a_file(index, tmp_path, monkeypatch):
    """They are not cut."""
    np.save(tmp_path / "m.npy", np.arange(4))
    monkeypatch.setattr(serve_marks, "MAX_MARKS", 3)
    with pytest.raises(InputError, match="3 can be marked"):
        Served(index, marks=str(tmp_path / "m.npy"))


def test_a_file_that_cannot_be_written(index, tmp_path, serve_index):
    """A mark that is not in the file is not shown as one."""
    folder = tmp_path / "f"
    folder.mkdir()
    pages = serve_index(index, marks=str(folder / "m.npy"))
    folder.rmdir()
    assert (
        "check the path and its permissions" in pages.post("/api/marks", {"index": 1, "is_marked": True}, 400)["error"]
    )
    assert pages.get("/api/marks", indices="1")["marked"] == []
    folder.mkdir()
    assert pages.post("/api/marks", {"index": 1, "is_marked": True})["count"] == 1


def test_what_can_be_saved(index, tmp_path, serve_index):
    """A view that opens wherever it is unpacked, and indices."""
    pages = serve_index(index)
    pages.post("/api/marks", {"indices": [6, 0], "is_marked": True})
    answer = pages.client.get("/api/marks/marked.zip")
    assert answer.headers["content-disposition"] == 'attachment; filename="marked.zip"'
    folder = tmp_path / "elsewhere" / "deep"
    zipfile.ZipFile(io.BytesIO(answer.content)).extractall(folder)
    assert list(ShardListDataset(folder / "marked.json").keys) == ["s0-000", "s1-003"]
    assert np.load(io.BytesIO(pages.client.get("/api/marks/marked.npy").content)).tolist() == [0, 6]
    assert pages.client.get("/api/marks/nothing").status_code == 404


def test_a_view_of_tars_without_an_index(tmp_path, serve_index):
    """Its file lists the shards itself, where they are."""
    write_index(tmp_path / "d", (3, 4))
    pages = serve_index(tmp_path / "d" / "s{0..1}.tar")
    pages.post("/api/marks", {"index": 3, "is_marked": True})
    zipfile.ZipFile(io.BytesIO(pages.client.get("/api/marks/marked.zip").content)).extractall(tmp_path / "e")
    assert list(ShardListDataset(tmp_path / "e" / "marked.json").keys) == ["s1-000"]


def test_many_at_once(index, tmp_path, serve_index):
    """Of marks that come at the same time none is lost, in memory and in the file."""
    path = tmp_path / "m.npy"
    pages = serve_index(index, marks=str(path))
    threads = [
        threading.Thread(target=pages.served.marks.change, args=([k],), kwargs={"is_marked": True}) for k in range(7)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(np.load(path)) == len(pages.served.marks) == 7


def test_a_remote_index(tmp_path, serve_index):
    """Marks of remote shards are kept here, and read again."""
    write_index(tmp_path, (3, 4))
    with Server(tmp_path) as server:
        url = f"{server.url}/index.json"
        (tmp_path / "m").mkdir()
        path = str(tmp_path / "m" / "m.npy")
        serve_index(url, marks=path, cache_dir=tmp_path / "c").post("/api/marks", {"index": 4, "is_marked": True})
        assert np.load(path).tolist() == [4]
        again = serve_index(url, marks=path, cache_dir=tmp_path / "c")
        assert again.get("/api/marks", indices="3,4")["marked"] == [4]


def test_two_servers_of_one_file(tmp_path, index, serve_index):
    """What another one has marked meanwhile is not overwritten; a file that was deleted is written again."""
    file = tmp_path / "m.npy"
    first, second = (serve_index(index, marks=str(file)) for _ in range(2))
    first.post("/api/marks", {"index": 1, "is_marked": True})
    assert "another program" in second.post("/api/marks", {"index": 2, "is_marked": True}, 400)["error"]
    assert second.get("/api/marks")["count"] == 0
    first.post("/api/marks", {"index": 3, "is_marked": True})
    assert serve_index(index, marks=str(file)).get("/api/marks", indices="1,2,3")["marked"] == [1, 3]
    file.unlink()
    first.post("/api/marks", {"index": 4, "is_marked": True})
    assert serve_index(index, marks=str(file)).get("/api/marks")["count"] == 3


def test_two_servers_at_once(tmp_path, index, serve_index, monkeypatch):
    """One that looks at the file while another is about to replace it waits; no mark that was answered is lost."""
    file, answers = tmp_path / "m.npy", {}
    first, second = (serve_index(index, marks=str(file)) for _ in range(2))
    is_waiting = threading.Event()
    other = threading.Thread(target=lambda: answers.update(second=mark(second, 2)))

    def mark(pages, sample):
        return pages.client.post("/api/marks", json={"index": sample, "is_marked": True}).status_code

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
    answers["first"] = mark(first, 1)
    other.join()
    assert answers == {"first": 200, "second": 400}
    assert serve_index(index, marks=str(file)).get("/api/marks", indices="1,2")["marked"] == [1]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_to_a_file(tmp_path, index, serve_index, is_there):
    """Marks are in the file that it leads to, and it stays a link."""
    file, link = tmp_path / "kept.npy", tmp_path / "m.npy"
    link.symlink_to(file)
    if is_there:
        np.save(file, np.array([2]))
    serve_index(index, marks=str(link)).post("/api/marks", {"index": 1, "is_marked": True})
    assert link.is_symlink()
    assert np.load(file).tolist() == ([1, 2] if is_there else [1])

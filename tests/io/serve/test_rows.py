"""Rows of facts of samples, as pages with many of them ask for: ``/api/rows``."""

import threading

import pytest

from tests.support.columns import make_columns, write_dataset
from tests.support.shards import write_index, write_json, write_mixture, write_shards, write_tar
from wids.dataset import ShardListDataset
from wids.testing import Server
from wids.tools.serve import rows as serve_rows


@pytest.fixture
def ask(serve_index):
    """Ask for rows of an index."""
    opened = {}

    def ask(index, path, status=200, **query):
        if str(index) not in opened:
            opened[str(index)] = serve_index(index)
        return opened[str(index)].get(path, status, **query)

    return ask


def test_a_row(tmp_path, ask):
    """Each sample: where it is, its key, the bytes of its fields, and which of them a page shows."""
    index = write_index(tmp_path, (3, 4))
    found = ask(index, "/api/rows", start=2, count=2)
    assert found["total"] == 7
    assert found["rows"][1] == {
        "at": 3,
        "index": 3,
        "key": "s1-000",
        "shard": 1,
        "row": 0,
        "dataset": "",
        "fields": {".txt": 6, ".cls": 1, ".bin": 40},
        "columns": {},
        "tags": [],
        "main": {"field": ".txt", "kind": "text", "number": 0},
    }
    assert [row["key"] for row in found["rows"]] == ["s0-002", "s1-000"]
    assert ask(index, "/api/rows", start=5, count=200)["rows"][-1]["index"] == 6
    assert ask(index, "/api/rows", start=7) == {"total": 7, "rows": []}
    assert ask(index, "/api/rows", start=10**17) == {"total": 7, "rows": []}


def test_indices(tmp_path, ask):
    """Samples of a list stand in its order, repeats too."""
    index = write_index(tmp_path, (3, 4))
    found = ask(index, "/api/rows", indices="5, 0,5")
    assert [(row["at"], row["index"], row["key"]) for row in found["rows"]] == [
        (0, 5, "s1-002"),
        (1, 0, "s0-000"),
        (2, 5, "s1-002"),
    ]
    assert ask(index, "/api/rows", indices="") == {"total": 0, "rows": []}


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ({"count": 201}, 400, "200 at most"),
        ({"count": "-1"}, 400, "count is '-1'"),
        ({"start": "x"}, 400, "start is 'x'"),
        ({"start": "9" * 5000}, 400, "start is '999"),
        ({"start": "٣"}, 400, "start is"),
        ({"indices": "7"}, 404, "no sample 7"),
        ({"indices": "1,x"}, 400, "'x' is no index"),
        ({"indices": ",".join(["1"] * 201)}, 400, "200 at most"),
        ({"where": "width >"}, 400, "syntax error"),
        ({"where": "true; select 1"}, 400, "one expression"),
        ({"where": "width > 3"}, 400, "wids columns create"),
    ],
)
def test_what_cannot_be_asked(tmp_path, ask, query, status, words):
    """It is said what is wrong, for the place where it was typed; a value that is long is not all repeated."""
    error = ask(write_index(tmp_path, (3, 4)), "/api/rows", status, **query)["error"]
    assert words in error
    assert len(error) < 500


def test_a_predicate(tmp_path, ask):
    """The samples for which it is true, numbered by their place among them; columns are told where asked for."""
    index = write_dataset(tmp_path)
    make_columns(index)
    found = ask(index, "/api/rows", where='label = 2 or "index" = 0', count=2, columns=["label", "width"])
    assert found["total"] == 3
    assert [(row["at"], row["index"], row["columns"]) for row in found["rows"]] == [
        (0, 0, {"label": 0, "width": None}),
        (1, 2, {"label": 2, "width": 102}),
    ]
    assert ask(index, "/api/rows", where="label = 99") == {"total": 0, "rows": []}
    assert "nowhere" in ask(index, "/api/rows", 400, columns="nowhere")["error"]


def test_a_predicate_without_columns(tmp_path, ask):
    """Which fields samples have is known from member tables."""
    write_tar(tmp_path / "a.tar", {"0.txt": b"", "1.txt": b"", "1.jpg": b"x", "2.jpg": b"y"})
    index = write_json(tmp_path / "a.json", {"wids_version": 1, "shardlist": [{"url": "a.tar", "nsamples": 3}]})
    assert [row["key"] for row in ask(index, "/api/rows", where="has_jpg")["rows"]] == ["1", "2"]


def test_the_chosen_field(tmp_path, ask):
    """A page may show another field than the first that can be shown; samples without it have none."""
    write_tar(tmp_path / "a.tar", {"0.txt": b"", "0.jpg": b"x", "1.TXT": b"y", "2.jpg": b"z", "3": b""})
    index = write_json(tmp_path / "a.json", {"wids_version": 1, "shardlist": [{"url": "a.tar", "nsamples": 3}]})
    mains = [row["main"] for row in ask(index, "/api/rows")["rows"]]
    assert mains == [
        {"field": ".jpg", "kind": "image", "number": 1},
        {"field": ".TXT", "kind": "text", "number": 0},
        {"field": ".jpg", "kind": "image", "number": 0},
    ]
    mains = [row["main"] for row in ask(index, "/api/rows", field=".txt")["rows"]]
    assert mains == [
        {"field": ".txt", "kind": "text", "number": 0},
        {"field": ".TXT", "kind": "text", "number": 0},
        None,
    ]


def test_a_view_and_a_mixture(tmp_path, ask):
    """A view counts anew; rows of a mixture name their sub-dataset."""
    index = write_index(tmp_path, (3, 4))
    ShardListDataset(index).select([6, 1, 4]).save(tmp_path / "view.json")
    found = ask(tmp_path / "view.json", "/api/rows")["rows"]
    assert [(row["index"], row["key"], row["shard"], row["row"]) for row in found] == [
        (0, "s0-001", 0, 1),
        (1, "s1-001", 1, 1),
        (2, "s1-003", 1, 3),
    ]
    mixture = write_mixture(tmp_path, {"web": ((2,), 0.7), "books": ((1, 1), 0.3)})
    assert [row["dataset"] for row in ask(mixture, "/api/rows")["rows"]] == ["web", "web", "books", "books"]


def test_a_shard_that_cannot_be_had(tmp_path, ask):
    """Its rows are errors; the others are there. So is a shard of another number of samples than the index says."""
    shards = write_shards(tmp_path, (2, 2, 2))
    shards[1]["url"] = str(tmp_path / "gone.tar")
    shards[2]["nsamples"] = 3
    index = write_json(tmp_path / "a.json", {"wids_version": 1, "shardlist": shards})
    found = ask(index, "/api/rows")["rows"]
    assert [row.get("key") for row in found] == ["s0-000", "s0-001", *[None] * 5]
    assert all("gone.tar" in row["error"] for row in found[2:4])
    assert all("holds 2 samples" in row["error"] for row in found[4:])
    assert [row["index"] for row in found] == list(range(7))


def test_names_that_are_no_text(tmp_path, ask):
    """A key in another encoding, and one with letters that JSON has not, are shown with these escaped."""
    write_tar(tmp_path / "a.tar", {b"\xff<b>.txt".decode("utf-8", "surrogateescape"): b"x"})
    index = write_json(tmp_path / "a.json", {"wids_version": 1, "shardlist": [{"url": "a.tar", "nsamples": 1}]})
    assert ask(index, "/api/rows")["rows"][0]["key"] == "\\udcff<b>"


def test_a_remote_set(tmp_path, ask):
    """Of a remote shard its member table is read, once; the shard itself is not downloaded."""
    write_tar(tmp_path / "big.tar", {f"{row}.bin": bytes(1 << 20) for row in range(4)})
    size = (tmp_path / "big.tar").stat().st_size
    write_json(tmp_path / "a.json", {"wids_version": 1, "shardlist": [{"url": "big.tar", "nsamples": 4}]})
    with Server(tmp_path) as server:
        assert len(ask(f"{server.url}/a.json", "/api/rows", start=2, count=2)["rows"]) == 2
        before = len(server.requests)
        assert ask(f"{server.url}/a.json", "/api/rows")["rows"][1]["fields"] == {".bin": 1 << 20}
        assert len(server.requests) == before
        assert 0 < server.sent_bytes["/big.tar"] < size / 2


def test_a_slow_shard(tmp_path, serve_index, monkeypatch):
    """Rows of other shards do not wait for it; its own are pending, and asked for again."""
    monkeypatch.setattr(serve_rows.ServedRows, "limits", serve_rows.RowLimits(wait_seconds=0.05))
    write_index(tmp_path, (2, 2))
    pages = serve_index(tmp_path / "index.json")
    served = pages.served
    go, load = threading.Event(), served.collection.open
    monkeypatch.setattr(served.collection, "open", lambda k: (go.wait() if k else None, load(k))[1])
    found = pages.get("/api/rows")["rows"]
    assert [row.get("key") for row in found] == ["s0-000", "s0-001", None, None]
    assert [row.get("is_pending", False) for row in found] == [False, False, True, True]
    go.set()
    served.rows.table(1)
    assert [row["key"] for row in pages.get("/api/rows")["rows"]][2:] == ["s1-000", "s1-001"]


def test_a_predicate_is_asked_once(tmp_path, serve_index, monkeypatch):
    """All pages of what it chooses come of one answer."""
    index = write_dataset(tmp_path)
    make_columns(index)
    pages, asked = serve_index(index), []
    served = pages.served
    find = served.dataset.find_rows
    monkeypatch.setattr(served.dataset, "find_rows", lambda where: (asked.append(where), find(where))[1])
    for start in (0, 1, 0):
        assert pages.get("/api/rows", where=" label < 3 ", start=start)["total"] == 6
    assert asked == ["label < 3"]

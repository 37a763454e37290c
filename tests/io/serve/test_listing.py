"""The order of the samples of a page: `choose`; how samples of a table are told: ``/api/values``."""

import json

import pyarrow as pa
import pytest

from tests.support.columns import make_columns
from tests.support.shards import write_index, write_json, write_tar
from wids.columns.spec import parse_spec
from wids.dataset import ShardListDataset
from wids.tools.serve import facets, listing


def valued(folder, values):
    """An index of samples in two shards, with a column ``x`` of these values."""
    half, shards = len(values) // 2, []
    for k, (first, part) in enumerate(((0, values[:half]), (half, values[half:]))):
        members = {f"{first + row:04d}.json": json.dumps({"x": value}).encode() for row, value in enumerate(part)}
        write_tar(folder / f"{k}.tar", members)
        shards.append({"url": f"{k}.tar", "nsamples": len(part)})
    index = write_json(folder / "a.json", {"wids_version": 1, "shardlist": shards})
    make_columns(index, spec=parse_spec(jsons=[".json:x"]))
    return index


def order(pages, **query):
    """The indices of a list."""
    return [row["index"] for row in pages.get("/api/rows", count=200, **query)["rows"]]


@pytest.mark.parametrize(
    ("values", "ascending", "descending"),
    [
        ([3, 1, None, 2, 3, 1], [1, 5, 3, 0, 4, 2], [0, 4, 3, 1, 5, 2]),
        ([1.5, float("nan"), None, -1, float("inf"), 0], [3, 5, 0, 4, 1, 2], [4, 0, 5, 3, 1, 2]),
        (["b", "a", None, "B", "", "ä"], [4, 3, 1, 0, 5, 2], [5, 0, 1, 3, 4, 2]),
        ([True, False, None, True, False, True], [1, 4, 0, 3, 5, 2], [0, 3, 5, 1, 4, 2]),
        (["1", 1, None, [2], {"a": 1}, True], None, None),
        ([None] * 6, [*range(6)], [*range(6)]),
    ],
)
def test_order(tmp_path, serve_index, values, ascending, descending):
    """Samples without a value are last in both directions; NaN before them; equal ones are in the order of indices."""
    pages = serve_index(valued(tmp_path, values))
    up, down = order(pages, sort="x"), order(pages, sort="x", desc="1")
    assert sorted(up) == sorted(down) == [*range(6)]
    assert up[-1] == down[-1] == next(k for k in reversed(range(6)) if values[k] is None)
    if ascending is not None:
        assert (up, down) == (ascending, descending)


def test_order_of_a_part(tmp_path, serve_index):
    """Of what a filter chooses, of tagged ones, by pages; jumps go by it."""
    pages = serve_index(valued(tmp_path, [5, 4, 3, 2, 1, 0]))
    assert order(pages, sort="x", where="x > 1 or shard = 1") == [5, 4, 3, 2, 1, 0]
    found = pages.get("/api/rows", sort="x", where="x > 1", start=1, count=2)
    assert (found["total"], [(row["at"], row["index"]) for row in found["rows"]]) == (4, [(1, 2), (2, 1)])
    pages.post("/api/tags", {"tag": 1, "is_set": True, "indices": [0, 2, 5]})
    assert order(pages, sort="x", tag="1") == [5, 2, 0]
    assert pages.get("/api/place", sort="x", index=1) == {"at": 4, "index": 1, "is_shown": True}
    assert pages.get("/api/place", sort="x", where="x > 3", index=1) == {"at": 0, "index": 1, "is_shown": True}
    assert pages.get("/api/place", sort="x", where="x > 3", index=2) == {"at": 2, "index": 2, "is_shown": False}


def test_by_index(tmp_path, serve_index):
    """It needs no columns; columns of member tables do where they are at hand."""
    pages = serve_index(write_index(tmp_path, (3, 4)))
    assert order(pages, sort="index") == [*range(7)]
    assert order(pages, sort="index", desc="1") == [*range(6, -1, -1)]
    assert order(pages, sort="index", desc="1", where="shard = 0") == [2, 1, 0]
    assert order(pages, sort="key", desc="1") == [*range(6, -1, -1)]
    assert pages.get("/api/place", sort="index", desc="1", index=6)["at"] == 0


def test_a_view(tmp_path, serve_index):
    """Indices are the view's own."""
    ShardListDataset(valued(tmp_path, [5, 4, 3, 2, 1, 0])).select([1, 3, 5]).save(tmp_path / "view.json")
    assert order(serve_index(tmp_path / "view.json"), sort="x") == [2, 1, 0]


def test_what_cannot_be_sorted(tmp_path, serve_index, monkeypatch):
    """It is said why: no such column, one without an order, too many samples, member tables of many shards."""
    pages = serve_index(valued(tmp_path, [1, 2, 3, 4]))
    assert "no column 'idex' to sort by (did you mean 'index'?)" in pages.get("/api/rows", 404, sort="idex")["error"]
    assert "no column" in pages.get("/api/rows", 404, sort='x" desc, "x')["error"]
    monkeypatch.setattr(listing, "MAX_SORTED", 3)
    for name in ("x", "index"):
        assert "filter them first" in pages.get("/api/rows", 400, sort=name, desc="1")["error"]
    assert order(pages, sort="x", desc="1", where="x < 4") == [2, 1, 0]
    monkeypatch.undo()
    (tmp_path / "b").mkdir()
    pages = serve_index(write_index(tmp_path / "b", (3, 4)))
    assert not pages.get("/api/columns")["columns"][-1]["unsortable"]
    monkeypatch.setattr(facets, "_FEW_SHARDS", 1)
    assert "wids columns create" in pages.get("/api/rows", 400, sort="key")["error"]
    assert "wids columns create" in pages.get("/api/columns")["columns"][-1]["unsortable"]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.float32(), 4),
        pa.list_(pa.int8()),
        pa.large_list(pa.int8()),
        pa.struct([("a", pa.int8())]),
        pa.map_(pa.string(), pa.int8()),
        pa.binary(),
        pa.binary(4),
        pa.large_binary(),
    ],
    ids=str,
)
def test_types_without_an_order(tmp_path, serve_index, monkeypatch, kind):
    """Lists and bytes are not sorted."""
    pages = serve_index(valued(tmp_path, [1, 2]))
    monkeypatch.setattr(pages.served, "columns", lambda: {"x": str(kind)})
    assert "no order" in pages.get("/api/rows", 400, sort="x")["error"]


def test_an_order_is_made_once(tmp_path, serve_index, monkeypatch):
    """All its pages come of one query."""
    pages, asked = serve_index(valued(tmp_path, [3, 2, 1, 0])), []
    served = pages.served
    query = served.dataset.query
    monkeypatch.setattr(served.dataset, "query", lambda sql: (asked.append(sql), query(sql))[1])
    for start in (0, 1, 2, 0):
        assert pages.get("/api/rows", sort="x", start=start)["total"] == 4
    assert len(asked) == 1


def test_values_are_short(tmp_path, serve_index):
    """A row has the beginning of a long text, and of lists as JSON."""
    pages = serve_index(valued(tmp_path, ["a" * 5000, "b"]))
    assert len(pages.get("/api/rows", columns="x", count=1)["rows"][0]["columns"]["x"]) < 400


def test_small_fields(tmp_path, serve_index):
    """Texts as far as a line shows them, labels with the name of their class; nothing of pictures."""
    members = {"0.txt": b"<b>" + b"a" * 5000, "0.cls": b"1", "0.jpg": b"x", "0.json": b'{"a":\n1}', "1.cls": b"7 "}
    write_tar(tmp_path / "a.tar", members | {b"1.\xff.txt".decode("utf-8", "surrogateescape"): b"\xff"})
    header = {"wids_version": 1, "info": {"classes": ["ant", "bee"]}}
    pages = serve_index(write_json(tmp_path / "a.json", {**header, "shardlist": [{"url": "a.tar", "nsamples": 2}]}))
    found = pages.get("/api/values/0")
    assert found == {".txt": "<b>" + "a" * 197, ".cls": "bee (1)", ".json": '{"a":\n1}'}
    assert pages.get("/api/values/1")[".cls"] == "7 "
    assert "\ufffd" in pages.get("/api/values/1").values()
    assert "no sample 2" in pages.get("/api/values/2", 404)["error"]

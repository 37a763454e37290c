"""The columns beside a grid, and how their values are distributed."""

import json

import pytest

from tests.support.columns import make_columns, write_dataset
from tests.support.shards import write_index, write_json, write_tar
from wids.columns.spec import parse_spec
from wids.tools.serve import facets


def labelled(folder, values, *, classes=None):
    """An index of one shard whose samples have a ``.json`` with ``x``, and its columns."""
    write_tar(folder / "a.tar", {f"{k:04d}.json": json.dumps({"x": value}).encode() for k, value in enumerate(values)})
    info = {} if classes is None else {"info": {"classes": classes}}
    shards = [{"url": "a.tar", "nsamples": len(values)}]
    index = write_json(folder / "a.json", {"wids_version": 1, "shardlist": shards, **info})
    make_columns(index, spec=parse_spec(jsons=[".json:x=label"]))
    return index


def chosen(pages, sql):
    """How many samples a predicate chooses."""
    return pages.get("/api/rows", where=sql, count=1)["total"]


def test_columns(tmp_path, serve_index):
    """Name and type of each; those that a user made come first."""
    index = write_dataset(tmp_path)
    make_columns(index)
    found = serve_index(index).get("/api/columns")
    assert [(each["name"], each["type"]) for each in found["columns"]][:3] == [
        ("label", "int64"),
        ("width", "int64"),
        ("tag", "string"),
    ]
    assert {"index", "key", "jpg_bytes"} & {each["name"] for each in found["columns"]} == {"index", "key"}
    assert not found["words"]
    assert ".txt" in found["fields"]


def test_without_columns(tmp_path, serve_index):
    """What member tables tell, and how to make more; such a column is counted, too."""
    write_tar(tmp_path / "a.tar", {"0.txt": b"", "1.txt": b"", "1.jpg": b"x", "2.jpg": b"y"})
    index = write_json(tmp_path / "a.json", {"wids_version": 1, "shardlist": [{"url": "a.tar", "nsamples": 3}]})
    pages = serve_index(index)
    found = pages.get("/api/columns")
    assert "wids columns create" in found["words"]
    assert [each["name"] for each in found["columns"]][:4] == ["has_jpg", "has_txt", "jpg_bytes", "txt_bytes"]
    values = pages.get("/api/facet", column="has_jpg")["values"]
    assert [(each["words"], each["count"]) for each in values] == [("yes", 2), ("no", 1)]
    assert [chosen(pages, each["sql"]) for each in values] == [2, 1]
    assert pages.get("/api/facet", column="has_jpg", where="has_txt")["values"][0]["count"] == 1


@pytest.mark.parametrize(
    "values",
    [
        [3, 1, 3, 2, 3, None],
        ["a", "it's", "", "a", None, "true"],
        [True, False, True, None],
        [0.5, 0.1, 0.1, 1e-9, -2.0],
        [1 << 60, (1 << 60) + 1, 5],
        [None, None],
    ],
)
def test_few_values(tmp_path, serve_index, values):
    """Each with its count, and SQL that chooses just these."""
    pages = serve_index(labelled(tmp_path, values))
    found = pages.get("/api/facet", column="label")["values"]
    assert [each["count"] for each in found] == sorted((each["count"] for each in found), reverse=True)
    assert sum(each["count"] for each in found) == len(values)
    assert len(found) == len(set(values))
    for each in found:
        assert chosen(pages, each["sql"]) == each["count"]


@pytest.mark.parametrize(
    "values",
    [
        list(range(200)),
        [k * k for k in range(200)],
        [k / 7 for k in range(200)],
        [10**15 + k for k in range(130)],
        [*range(-100, 100), None],
        [1e300, -1e300, *(float(k) for k in range(200))],
        [(1 << 62) - k for k in range(130)],
    ],
)
def test_many_numbers(tmp_path, serve_index, values):
    """A histogram; each bar's SQL chooses what it counts, and a range of bars their sum."""
    pages = serve_index(labelled(tmp_path, values))
    found = pages.get("/api/facet", column="label")
    bins = found["bins"]
    assert sum(each["count"] for each in bins) + found["others"] == len(values)
    assert len(bins) <= 24
    for k in (0, len(bins) // 2, len(bins) - 1):
        assert chosen(pages, f"{bins[k]['from']} and {bins[k]['to']}") == bins[k]["count"]
    some = bins[3:9]
    assert chosen(pages, f"{some[0]['from']} and {some[-1]['to']}") == sum(each["count"] for each in some)


def test_many_texts(tmp_path, serve_index, monkeypatch):
    """How many there are: exactly, or of a great many about, and never more than there are samples."""
    values = [f"t{k % 299}" for k in range(300)]
    pages = serve_index(labelled(tmp_path, values))
    found = pages.get("/api/facet", column="label")
    assert (found["distinct"], found["is_about"]) == (299, False)
    monkeypatch.setattr(facets, "_COUNTED", 10)
    found = pages.get("/api/facet", column="label")
    assert 250 < found["distinct"] <= 300
    assert found["is_about"]


def test_classes(tmp_path, serve_index):
    """Labels have the names that the index gives them, unless one has none."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    pages = serve_index(labelled(tmp_path / "a", [1, 0, 1], classes=["cat", "dog"]))
    assert [each["words"] for each in pages.get("/api/facet", column="label")["values"]] == ["dog (1)", "cat (0)"]
    pages = serve_index(labelled(tmp_path / "b", [1, 2, 1], classes=["cat", "dog"]))
    assert [each["words"] for each in pages.get("/api/facet", column="label")["values"]] == ["1", "2"]


def test_over_a_filter(tmp_path, serve_index):
    """Values are those of the samples that are shown; the filter may end in a comment."""
    pages = serve_index(labelled(tmp_path, [3, 1, 3, 2]))
    found = pages.get("/api/facet", column="label", where="label < 3 -- small")["values"]
    assert sorted(each["value"] for each in found) == [1, 2]


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ({}, 400, "column is missing"),
        ({"column": "nowhere"}, 404, "no column 'nowhere'"),
        ({"column": "label", "where": "label <"}, 400, "syntax error"),
        (
            {"column": "label", "where": "true) or (select count(*) > 0 from samples"},
            400,
            "syntax error",
        ),
        ({"column": 'label" from samples --'}, 404, "no column"),
    ],
)
def test_what_cannot_be_asked(tmp_path, serve_index, query, status, words):
    """It is said why; a filter is a predicate and nothing more, here too."""
    pages = serve_index(labelled(tmp_path, [3, 1]))
    assert words in pages.get("/api/facet", status, **query)["error"]


def test_columns_of_other_samples(tmp_path, serve_index):
    """A file that is not of these shards is said to be so; the page lives."""
    index = write_dataset(tmp_path)
    make_columns(index)
    write_dataset(tmp_path, (3, 0, 5, 1))
    found = serve_index(index).get("/api/columns")
    assert found["columns"] == []
    assert "wids columns create" in found["words"]


def test_no_samples(tmp_path, serve_index):
    """Nothing to count is no error."""
    pages = serve_index(write_index(tmp_path, (0,)))
    assert pages.get("/api/columns")["fields"] == []
    assert pages.get("/api/rows") == {"total": 0, "rows": []}


def test_numbers_for_scripts():
    """What JavaScript would round, or JSON lacks, comes as text."""
    assert facets.as_json([1 << 53, (1 << 53) + 1, float("nan"), float("inf"), True, {"a": None}]) == [
        1 << 53,
        str((1 << 53) + 1),
        "nan",
        "inf",
        True,
        {"a": None},
    ]

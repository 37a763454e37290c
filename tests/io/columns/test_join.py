"""Tables joined to samples, and columns in samples, against dicts of Python; in every start method; bad tables."""

import copy
import datetime as dt
import gc
import gzip
import json
import os
import pickle
import random
import shutil
from pathlib import Path

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

import wids
from tests.support import columns as made
from tests.support.children import call_in_child
from tests.support.shards import write_tar
from wids import testing
from wids.columns import join, mapped
from wids.columns.file import fetch_table
from wids.core.files import finalizers
from wids.core.transport.session import Session
from wids.errors import ColumnsError, InputError, OutputError

COUNTS = (3, 0, 40, 2)
ROWS = made.rows_of(COUNTS)
TOTAL = len(ROWS)
LABELS = pa.table({"index": range(TOTAL), "label_of": [row["label"] for row in ROWS]})


@pytest.fixture
def index(tmp_path):
    """A dataset with columns."""
    index = made.write_dataset(tmp_path / "d", COUNTS)
    made.make_columns(index)
    return index


@pytest.fixture
def dataset(index):
    """The same, open."""
    return wids.ShardListDataset(index, fields=(".cls",))


def scores_of(numbers):
    """A table with a row for each of these samples, in a mixed order."""
    numbers = list(numbers)
    random.Random(3).shuffle(numbers)
    return pa.table(
        {
            "index": numbers,
            "key": [f"k{g:04d}" for g in numbers],
            "score": [g / 4 for g in numbers],
            "name": [f"n{g}" for g in numbers],
        }
    )


class Stream:
    """What polars, DuckDB and others have: rows as a stream of Arrow batches."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


def write_lines(table, path):
    """The rows of a table as lines of JSON."""
    open_ = gzip.open if str(path).endswith(".gz") else open
    with open_(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in table.to_pylist())
    return path


def write_parts(table, directory, count=3):
    """The rows of a table in several Parquet files of a folder, beside what other tools leave there."""
    os.makedirs(directory / "more", exist_ok=True)
    rows = -(-len(table) // count)
    for k in range(count):
        name = f"part-{k}.parquet" if k else "more/part-0.parquet"
        pq.write_table(table.slice(k * rows, rows), directory / name)
    (directory / "_SUCCESS").write_bytes(b"")
    (directory / ".part.parquet").write_bytes(b"hidden")
    return directory


def forms(table, tmp_path):
    """The same table as an object, a frame, in several pieces, with a dictionary, as a stream, and as files."""
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=3)
    coded = table.set_column(1, "key", table["key"].dictionary_encode())
    yield from (table, table.to_pandas(), pa.concat_tables([table.slice(0, 5), table.slice(5)]), coded)
    yield from (str(tmp_path / "t.parquet"), tmp_path / "t.parquet")
    keys = table["key"].combine_chunks().cast(pa.string_view())
    views = table.set_column(1, "key", pa.DictionaryArray.from_arrays(pa.array(range(len(table))), keys))
    yield from (Stream(views), Stream(table), table.combine_chunks().to_batches()[0], table.to_reader(max_chunksize=4))
    yield from (table.to_pydict(), {name: np.array(values) for name, values in table.to_pydict().items()})
    yield from (write_lines(table, tmp_path / "t.jsonl"), str(write_lines(table, tmp_path / "t.ndjson.gz")))
    parts = write_parts(table, tmp_path / "parts")
    yield from (parts, f"{parts}/", f"{parts}/**/*.parquet")


@pytest.mark.parametrize("on", ["key", "index"])
def test_joined_columns(dataset, tmp_path, on, monkeypatch):
    """Each sample has the values of its row, in SQL and in itself; null where it has none."""
    monkeypatch.setattr(mapped, "BATCH_BITS", 3)
    monkeypatch.setattr(mapped, "BATCH_ROWS", 8)
    there = set(range(0, TOTAL, 2)) | {3}
    for table in forms(scores_of(there), tmp_path):
        joined = dataset.with_table(table, on=on, columns=["score", "name"], fields=["name"])
        assert joined.column_names[-2:] == ["score", "name"]
        assert joined.find_rows("score is not null").tolist() == sorted(there)
        assert joined.query("select score from samples order by index")["score"].to_pylist() == [
            g / 4 if g in there else None for g in range(TOTAL)
        ]
        expected = [f"n{g}" if g in there else None for g in range(TOTAL)]
        assert [sample["name"] for sample in joined] == expected
        assert [joined[-1]["name"], joined[np.int64(3)]["name"]] == [expected[-1], "n3"]
        order = random.Random(1).sample(range(TOTAL), TOTAL)
        assert [sample["name"] for sample in joined.__getitems__(order)] == [expected[g] for g in order]
        assert "score" not in joined[0]
        assert "name" not in dataset[0]


def test_parts_in_folders_with_values(dataset, tmp_path):
    """A folder ``label=3`` is a column; parts may have other types of one kind, and have to have the same columns."""
    for k in range(3):
        rows = pa.table(
            {"index": pa.array([k, 10 + k], [pa.int64(), pa.int32()][k % 2]), "score": [k, 0.5 if k else None]}
        )
        os.makedirs(tmp_path / "p" / f"fold={k}")
        pq.write_table(rows, tmp_path / "p" / f"fold={k}" / "0.parquet")
    joined = dataset.with_table(tmp_path / "p", on="index", fields=True)
    found = [(joined[i]["score"], joined[i]["fold"]) for i in (0, 1, 2, 10, 11, 12, 13)]
    assert found == [(0, 0), (1, 1), (2, 2), (None, 0), (0.5, 1), (0.5, 2), (None, None)]
    pq.write_table(pa.table({"index": [5], "scores": [1.0]}), tmp_path / "p" / "fold=2" / "1.parquet")
    with pytest.raises(InputError, match=r"1\.parquet: differs from .*0\.parquet in the column 'score'"):
        dataset.with_table(tmp_path / "p", on="index")


def test_remote_tables(dataset, tmp_path):
    """Lines of JSON, and parts in a folder of a server that lists it, or of a store, are downloaded."""
    scores = scores_of(range(TOTAL))
    write_lines(scores, tmp_path / "www.jsonl")
    write_parts(scores, tmp_path / "www", 2)
    pq.write_table(scores, tmp_path / "www" / "whole.pq")
    expected = [f"n{g}" for g in range(TOTAL)]
    with testing.Server(tmp_path) as server:
        joined = dataset.with_table(f"{server.url}/www.jsonl", on="key", fields=True)
        assert [sample["name"] for sample in joined] == expected
    store = fsspec.filesystem("memory")
    for k, name in enumerate(("a.parquet", "b.parquet")):
        pq.write_table(scores.slice(k * 20, 20 + k * 40), tmp_path / name)
        store.pipe_file(f"/tables/{name}", (tmp_path / name).read_bytes())
    for place in ("memory://tables/", "memory://tables/*.parquet"):
        joined = dataset.with_table(place, on="key", fields=True)
        assert [sample["name"] for sample in joined] == expected
    store.pipe_file("/tables/fold=1/c.parquet", b"")
    with pytest.raises(InputError, match="has partitions"):
        dataset.with_table("memory://tables/", on="key")


def test_arrays_of_a_dict(dataset):
    """Those of several dimensions are vectors, and tensors are arrays."""
    vectors = np.arange(TOTAL * 3, dtype=np.float32).reshape(TOTAL, 3)
    joined = dataset.with_table(
        {"index": torch.arange(TOTAL), "v": vectors, "w": torch.from_numpy(vectors)}, on="index"
    )
    asked = joined.query("select v, w from samples where index = 7").to_pylist()
    assert asked == [{"v": vectors[7].tolist(), "w": vectors[7].tolist()}]


def test_all_columns_and_several_tables(dataset):
    """One after the other; the index's own come by `with_columns`."""
    first = dataset.with_table(scores_of(range(TOTAL)), on="index", fields=True)
    second = first.with_table(pd.DataFrame({"key": ["k0001"], "emb": [[1.0, 2.0]]}), on="key", fields="emb")
    third = second.with_columns(["caption", "label"])
    sample = third[1]
    assert (sample["score"], sample["name"], sample["emb"].tolist()) == (0.25, "n1", [1.0, 2.0])
    assert (sample["caption"], sample["label"], sample[".cls"]) == ("text of 1", 1, 1)
    assert (second[2]["emb"], "emb" in first[2], "caption" in second[2]) == (None, False, False)
    assert third.find_rows("label = 1 and score < 5 and emb is null").tolist() == [6, 11, 16]
    assert [sample["width"] for sample in dataset.with_columns()] == [row["width"] for row in ROWS]


def test_it_is_the_same_dataset_otherwise(index):
    """Class, cache, settings, transformations; what is done to one's transformations does not reach the other."""

    class Mine(wids.ShardListDataset):
        extra = 0

    dataset = Mine(index, transformations=[lambda sample: {**sample, "seen": sorted(set(sample) & {"label"})}])
    dataset.extra = 3
    joined = dataset.with_columns(["label"])
    assert (type(joined), joined.extra, joined.cache is dataset.cache) == (Mine, 3, True)
    assert (joined[0]["seen"], dataset[0]["seen"]) == (["label"], [])
    joined.add_transform(lambda sample: sample["label"])
    assert (joined[1], len(dataset.transformations)) == (1, 1)


def test_missing_rows(dataset, caplog):
    """Are counted in one warning, or an error."""
    dataset.with_table(scores_of(range(40)), on="key", columns=["score"])
    assert [record.getMessage() for record in caplog.records] == [
        "5 of 45 samples have no row in the table: index 40, 41, 42, 43, 44; their columns are null"
    ]
    for on in ("key", "index"):
        with pytest.raises(ColumnsError, match="5 of 45 samples have no row in the table: index 40, 41"):
            dataset.with_table(scores_of(range(40)), on=on, columns=["score"], missing="error")
    caplog.clear()
    more = pa.table({"key": [f"k{g:04d}" for g in range(60)], "score": range(60)})
    assert dataset.with_table(more, on="key", missing="error").find_rows("score > 42").tolist() == [43, 44]
    said = "15 of 60 rows of the table are of no sample, like key 'k0045'"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [("WARNING", said)]
    caplog.clear()
    with caplog.at_level("INFO", "wids"):  # a view has few of the samples that a table is of
        dataset.select(range(20)).with_table(more, on="key")
    said = "40 of 60 rows of the table are of no sample, like key 'k0020'"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [("INFO", said)]


def test_keys_that_repeat(dataset, tmp_path):
    """In the table or in the dataset: an error that names some, and says how many."""
    table = pa.table({"key": ["k0001", "k0002", "k0001"], "a": [1, 2, 3]})
    with pytest.raises(ColumnsError, match="the table has 1 keys in several rows: 'k0001'"):
        dataset.with_table(table, on="key")
    with pytest.raises(ColumnsError, match="the table has several rows for 1 samples: 7"):
        dataset.with_table(pa.table({"index": [7, 1, 7], "a": [1, 2, 3]}), on="index")
    names = [f"{row % 7}.cls" for row in range(14)]
    write_tar(tmp_path / "r.tar", [(name, b"1") for name in names])
    repeated = wids.ShardListDataset(str(tmp_path / "r.tar"))
    with pytest.raises(
        ColumnsError, match=r"the dataset has 7 keys of several samples; join on='index': '0', .*, \.\.\."
    ):
        repeated.with_table(pa.table({"key": ["0"], "a": [1]}), on="key")
    assert len(repeated.with_table(pa.table({"index": [0], "a": [1]}), on="index").find_rows("a = 1")) == 1


def test_without_columns(tmp_path, index):
    """Keys of local shards come from their member tables; those of remote shards are not known."""
    write_tar(tmp_path / "s.tar", [("a.cls", b"1"), ("b.cls", b"2"), ("c.cls", b"3")])
    dataset = wids.ShardListDataset(str(tmp_path / "s.tar"))
    joined = dataset.with_table(pa.table({"key": ["c", "a"], "v": [3, 1]}), on="key", fields=True)
    assert ([sample["v"] for sample in joined], joined.column_names) == ([1, None, 3], ["index", "v"])
    assert joined.find_rows("v > 1").tolist() == [2]
    os.unlink(index.replace(".json", ".columns.parquet"))
    with testing.Server(os.path.dirname(index)) as server:
        remote = wids.ShardListDataset(f"{server.url}/train.json", cache_dir=tmp_path / "cache")
        with pytest.raises(ColumnsError, match="the keys of remote shards are not known"):
            remote.with_table(pa.table({"key": ["c"], "v": [3]}), on="key")
        with pytest.raises(ColumnsError, match="make them: wids columns create"):
            remote.with_columns()


NOT_UTF8 = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff"))
UNION = pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])])
BAD_TABLES = [
    ({"index": ["1"], "a": [1]}, {"on": "index"}, InputError, "index is of type string"),
    ({"index": [1.0], "a": [1]}, {"on": "index"}, InputError, "index is of type double"),
    ({"index": [1, None], "a": [1, 2]}, {"on": "index"}, ColumnsError, "index is null in 1 rows"),
    (
        {"index": [45, 1, -1], "a": [1, 2, 3]},
        {"on": "index"},
        ColumnsError,
        "names 2 samples that are not there: 45, -1",
    ),
    ({"index": pa.array([2**64 - 1], pa.uint64()), "a": [1]}, {"on": "index"}, ColumnsError, "there: 18446"),
    ({"key": [1], "a": [1]}, {"on": "key"}, InputError, "key is of type int64"),
    ({"key": ["k0001", None], "a": [1, 2]}, {"on": "key"}, ColumnsError, "key is null in 1 rows"),
    ({"key": ["k0001"], "a": [1]}, {"on": "index"}, InputError, "no column 'index'; it has key, a"),
    ({"key": ["k0001"], "a": [1]}, {"on": "row"}, InputError, "on is 'row'"),
    ({"key": ["k0001"], "a": [1]}, {"on": "key", "missing": "drop"}, InputError, "missing is 'drop'"),
    ({"key": ["k0001"], "a": [1]}, {"on": "key", "columns": ["b"]}, InputError, "no column 'b'"),
    ({"key": ["k0001"], "a": [1]}, {"on": "key", "columns": "a"}, InputError, "list of names"),
    ({"key": ["k0001"], "a": [1]}, {"on": "key", "fields": ["b"]}, InputError, "fields: there is no column 'b'"),
    ({"key": ["k0001"], "Label": [1]}, {"on": "key"}, InputError, "two columns would be called 'Label'"),
    ({"key": ["k0001"], "a": [1], "A": [1]}, {"on": "key"}, InputError, "two columns would be called 'A'"),
    ({"key": ["k0001"]}, {"on": "key"}, InputError, "no column is to be joined; the table has key"),
    ({"key": ["k0001"], "a": [1]}, {"on": "key", "columns": []}, InputError, "no column is to be joined"),
    ({"key": ["k0001"], "a": [1]}, {"on": "key", "columns": 3}, InputError, "columns is 3; give a list of names"),
    ({"key": ["k0001"], "a": [1]}, {"on": "key", "fields": None}, InputError, "fields is None; give a list of names"),
    ({"key": ["k0001"], "__index__": [1]}, {"on": "key", "fields": True}, InputError, "'__index__' of their own"),
    ({"key": ["k0001"], ".cls": [1]}, {"on": "key", "fields": True}, InputError, r"'\.cls' of their own"),
    ({"key": ["k0001"], "a\0b": [1]}, {"on": "key"}, InputError, "cannot be called"),
    ({"key": ["k0001"], "": [1]}, {"on": "key"}, InputError, "cannot be called ''"),
    ({"index": [0], "a": NOT_UTF8}, {"on": "index"}, ColumnsError, "none of its types .*UTF8"),
    ({"key": NOT_UTF8, "a": [1]}, {"on": "key"}, ColumnsError, "none of its types .*UTF8"),
    ({"index": [0], "a": pa.array([1], pa.decimal256(60))}, {"on": "index"}, InputError, "'a' is of type decimal256"),
    ({"index": [0], "a": UNION}, {"on": "index"}, InputError, "'a' is of type dense_union"),
    (
        {"index": [0], "a": pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([[1]]))},
        {"on": "index"},
        InputError,
        "cannot be joined .*; choose its columns, or cast them",
    ),
]


@pytest.mark.parametrize(("columns", "options", "kind", "words"), BAD_TABLES)
def test_bad_tables(dataset, columns, options, kind, words):
    """Say what is wrong, and what there is."""
    with pytest.raises(kind, match=words):
        dataset.with_table(pa.table(columns), **options)


@pytest.mark.parametrize("thing", [None, 3, [1], {"key": ["a"], "a": [1, 2]}])
def test_what_is_no_table(dataset, thing):
    """Lists and numbers are none, and neither are arrays of different lengths."""
    with pytest.raises(InputError, match=r"give a Parquet file, a folder .*, a pyarrow\.Table or a DataFrame"):
        dataset.with_table(thing, on="key")


HALVES = pa.array([1.5, 2.0], pa.float16())
TYPES = {
    "half": (HALVES, 1.5),
    "halves": (pa.FixedSizeListArray.from_arrays(HALVES, 1), [1.5]),
    "halves in a struct": (
        pa.StructArray.from_arrays([pa.ListArray.from_arrays([0, 1, 2], HALVES)], ["e"]),
        {"e": [1.5]},
    ),
    "tensor": (pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((2, 2, 1))), [1.0, 1.0]),
    "view": (pa.array(["a", "b"], pa.string_view()), "a"),
    "list view": (pa.array([[1], [2]], pa.list_view(pa.int64())), [1]),
    "dictionary": (pa.array(["a", "b"]).dictionary_encode(), "a"),
    "struct of dictionary": (pa.StructArray.from_arrays([pa.array(["a", "b"]).dictionary_encode()], ["e"]), {"e": "a"}),
    "map": (pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())), [("a", 1)]),
    "blob": (pa.array([b"\0\xff", b""]), b"\0\xff"),
    "null": (pa.nulls(2), None),
    "largest": (pa.array([2**64 - 1, 0], pa.uint64()), 2**64 - 1),
    "day": (pa.array([1, 2], pa.date32()), dt.date(1970, 1, 2)),
}


@pytest.mark.parametrize("name", TYPES)
def test_types(dataset, tmp_path, name):
    """Values are Python's in samples, and vectors arrays; SQL has them too, and other columns beside them."""
    values, expected = TYPES[name]
    joined = dataset.with_table(pa.table({"index": [1, 2], name: values}), on="index", fields=True)
    found = joined[1][name]
    assert (found.reshape(-1).tolist() if isinstance(found, np.ndarray) else found) == expected
    assert joined[0][name] is None
    assert joined.find_rows("label = 1").tolist() == [row["index"] for row in ROWS if row["label"] == 1]
    assert joined.query(f'select "{name}" v from samples where index = 1')["v"].to_pylist() == [expected]


VECTORS = np.arange(TOTAL * 6).reshape(TOTAL, 6)


def lists_of(array, form):
    """Vectors as an Arrow column: of fixed length, as lists, as tensors."""
    flat, size = pa.array(array.reshape(-1)), array.shape[1]
    if form == "fixed":
        return pa.FixedSizeListArray.from_arrays(flat, size)
    if form == "tensor":
        return pa.FixedShapeTensorArray.from_numpy_ndarray(array.reshape(len(array), 2, 3))
    return pa.ListArray.from_arrays(pa.array(np.arange(0, array.size + 1, size), pa.int32()), flat)


@pytest.mark.parametrize(
    ("form", "kinds"),
    [
        ("fixed", ("float16", "float32", "int64", "bool")),
        ("list", ("float16", "float64", "uint8")),
        ("tensor", ("float32", "int16")),
        ("file", ("float16", "float32")),
    ],
)
def test_vectors(dataset, tmp_path, monkeypatch, form, kinds):
    """Are arrays of their own, of the column's type; a column of them is one array; in views and workers, too."""
    monkeypatch.setattr(mapped, "BATCH_BITS", 3)
    monkeypatch.setattr(mapped, "BATCH_ROWS", 8)
    for kind in kinds:
        array = VECTORS.astype(kind)
        table = pa.table({"index": range(TOTAL), "v": lists_of(array, "fixed" if form == "file" else form)})
        if form == "file":
            pq.write_table(table, tmp_path / "v.parquet")
            table = tmp_path / "v.parquet"
        joined = dataset.with_table(table, on="index", fields=True)
        expected = array.reshape(TOTAL, 2, 3) if form == "tensor" else array
        part = range(5, 40, 3)
        copied = pickle.loads(pickle.dumps(joined))
        for each, rows in ((joined, range(TOTAL)), (joined.select(part), part), (copied, range(TOTAL))):
            for found, row in zip(each, rows, strict=True):
                assert (found["v"].dtype, found["v"].tolist()) == (array.dtype, expected[row].tolist())
                assert found["v"].flags.writeable
                assert found["v"].base is None or found["v"].base.size == 6
            column = each.read_column("V")
            assert column.dtype == array.dtype
            np.testing.assert_array_equal(column, expected[list(rows)])


@pytest.mark.parametrize("form", ["fixed", "list"])
def test_vectors_that_are_missing(dataset, form):
    """Are None in samples; in a column NaN, or None where no number says that. Lists with a null in them stay lists."""
    there = [row for row in range(TOTAL) if row % 3]
    halves, numbers = (lists_of(VECTORS[there].astype(kind), form) for kind in ("float16", "int32"))
    holes = pa.array([[1.5, None]] * len(there))
    table = pa.table({"index": there, "h": halves, "n": numbers, "holes": holes})
    joined = dataset.with_table(table, on="index", fields=True)
    assert [joined[0][name] for name in ("h", "n", "holes")] == [None] * 3
    one = VECTORS[1].tolist()
    assert (joined[1]["h"].tolist(), joined[1]["n"].tolist(), joined[1]["holes"]) == (one, one, [1.5, None])
    column = joined.read_column("h")
    assert (column.shape, column.dtype, np.isnan(column).all(1).tolist()) == (
        (TOTAL, 6),
        np.float16,
        [row % 3 == 0 for row in range(TOTAL)],
    )
    np.testing.assert_array_equal(column[there], VECTORS[there])
    column = joined.read_column("n")
    assert (column.shape, column[0], column[1].tolist(), column[1].dtype) == ((TOTAL,), None, one, np.int32)
    assert joined.read_column("holes")[:2].tolist() == [None, [1.5, None]]
    assert joined.select(there).read_column("n").shape == (len(there), 6)


def test_vectors_of_several_lengths(dataset):
    """Boxes, tokens: an array for each sample; a column is one of objects."""
    tokens = [list(range(row % 4)) for row in range(TOTAL)]
    table = pa.table({"index": range(TOTAL), "t": pa.array(tokens, pa.list_(pa.int16())), "words": [["a"]] * TOTAL})
    joined = dataset.with_table(table, on="index", fields=True)
    assert [sample["t"].tolist() for sample in joined] == tokens
    assert {sample["t"].dtype for sample in joined} == {np.dtype("int16")}
    column = joined.read_column("t")
    assert (column.dtype, [each.tolist() for each in column]) == (object, tokens)
    assert joined[0]["words"] == ["a"]


def test_values_that_python_has_not(dataset):
    """Are an error of the sample that has one, and none of SQL."""
    far = pa.table({"index": [1, 2], "day": pa.array([2**31 - 1, 1], pa.date32())})
    joined = dataset.with_table(far, on="index", fields=True)
    assert joined[2]["day"] == dt.date(1970, 1, 2)
    with pytest.raises(ColumnsError, match="'day' has a value in row 1, of type date32"):
        joined[1]
    assert joined.find_rows("day > date '3000-01-01'").tolist() == [1]


@pytest.mark.parametrize("on", ["key", "index"])
@pytest.mark.parametrize(
    "empty", [pa.table({"key": [], "index": [], "a": []}), pd.DataFrame({"key": [], "index": [], "a": []})]
)
def test_tables_without_rows(dataset, on, empty):
    """Of whatever types: all is null."""
    assert dataset.with_table(empty, on=on, fields=True)[0]["a"] is None
    with pytest.raises(ColumnsError, match="45 of 45 samples have no row"):
        dataset.with_table(empty, on=on, missing="error")


def test_keys_of_any_bytes(tmp_path):
    """Are escaped, as in the file of columns, where there is none."""
    write_tar(tmp_path / "s.tar", [("ä.cls", b"1"), (b"\xff".decode("utf-8", "surrogateescape") + ".cls", b"2")])
    dataset = wids.ShardListDataset(str(tmp_path / "s.tar"))
    joined = dataset.with_table(pa.table({"key": ["\\udcff", "ä"], "v": [2, 1]}), on="key", fields=True)
    assert [sample["v"] for sample in joined] == [1, 2]


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_file(dataset, index, tmp_path, make):
    """Is not opened: reading it might never end."""
    own = index.replace(".json", ".columns.parquet")
    os.unlink(own)
    for path in (own, str(tmp_path / "t.parquet")):
        make(path)
    for use in (
        lambda: dataset.with_table(tmp_path / "t.parquet", on="key"),
        lambda: dataset.find_rows("true"),
        lambda: dataset.with_columns(place=own),
    ):
        with pytest.raises(ColumnsError, match="is a directory or a device; give one Parquet file"):
            use()
    with pytest.raises(OutputError, match=r"give a file|is a device, not a file"):
        made.make_columns(index)


def test_files_that_are_no_tables(dataset, tmp_path):
    """Missing, empty, cut, or with bytes of something else in it; folders and patterns without a file, or with such."""
    path = tmp_path / "t.parquet"
    for place in (tmp_path / "empty", f"{tmp_path}/*.parquet", "memory://nothing/*.parquet"):
        os.makedirs(tmp_path / "empty", exist_ok=True)
        with pytest.raises(ColumnsError, match="there are no Parquet files"):
            dataset.with_table(place, on="key")
    (tmp_path / "t.jsonl").write_text('{"key": "a"}\n{"key": \n')
    with pytest.raises(ColumnsError, match=r"t\.jsonl: is no file of JSON lines that can be read"):
        dataset.with_table(tmp_path / "t.jsonl", on="key")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "0.parquet").write_bytes(b"PAR1 PAR1")
    with pytest.raises(ColumnsError, match="bad: is no Parquet that can be read"):
        dataset.with_table(tmp_path / "bad", on="key")
    with pytest.raises(ColumnsError, match=r"there is no such file$"):
        dataset.with_table(path, on="key")
    pq.write_table(scores_of(range(TOTAL)), path)
    whole = path.read_bytes()
    for data in (b"", b"PAR1", whole[: len(whole) // 2], whole[:100] + bytes(400) + whole[500:]):
        path.write_bytes(data)
        with pytest.raises(ColumnsError, match="no Parquet that can be read"):
            dataset.with_table(path, on="key")


# --- the index's own table


def test_the_wrong_table(index, tmp_path):
    """Of another index, damaged, or of another tool: each use says so; the dataset itself is not affected."""
    path = Path(index.replace(".json", ".columns.parquet"))
    other = made.write_dataset(tmp_path / "e", (3, 0, 40, 3))
    told = made.make_columns(other)
    renamed = tmp_path / "f"
    shutil.copytree(tmp_path / "d", renamed)
    text = (renamed / "train.json").read_text()
    (renamed / "train.json").write_text(text.replace("s2.tar", "t2.tar"))
    whole = path.read_bytes()
    plain = tmp_path / "plain.parquet"
    pq.write_table(scores_of(range(TOTAL)), plain)
    for data, words in (
        (Path(told.output).read_bytes(), "has 46 rows, and the index 45 samples; make it again"),
        (whole[:-200], "no Parquet that can be read"),
        (b"", "no Parquet that can be read"),
        (plain.read_bytes(), "was not made by `wids columns create`"),
    ):
        path.write_bytes(data)
        dataset = wids.ShardListDataset(index)
        assert len(dataset) == TOTAL
        for use in (dataset.with_columns, lambda: dataset.find_rows("true"), lambda: dataset.column_names):  # noqa: B023
            with pytest.raises(ColumnsError, match=words):
                use()
    with pytest.raises(ColumnsError, match="is of an index with other shards"):
        wids.ShardListDataset(str(renamed / "train.json")).find_rows("true")


def reordered(table):
    """The rows of a table as a careless tool leaves them: what was done -> the table; its metadata stays."""
    half = len(table) // 2
    swapped = [1, 0, *range(2, len(table))]
    numbers = pa.array(range(len(table)))
    yield "sorted", table.sort_by([("label", "ascending"), ("key", "descending")])
    yield "two rows of one row group swapped", table.take(swapped)
    yield "halves swapped", pa.concat_tables([table.slice(half), table.slice(0, half)])
    yield "sorted and numbered anew", table.take(swapped).set_column(0, "index", numbers)
    yield "an index of zeros", table.set_column(0, "index", pa.array([0] * len(table)))
    yield "an index with a null", table.set_column(0, "index", pa.array([None, *range(1, len(table))]))
    yield "a row twice", pa.concat_tables([table.slice(0, 1), table.slice(0, len(table) - 1)])
    yield "rows numbered through", table.set_column(2, "row", numbers.cast(pa.int32()))


@pytest.mark.parametrize("groups", [7, 1000])
def test_rows_in_another_order(index, groups):
    """No value of another sample is given: each use refuses a file whose rows were moved, and it is made anew."""
    path = Path(index.replace(".json", ".columns.parquet"))
    table = pq.read_table(path)
    scores = scores_of(range(TOTAL))
    for what, moved in reordered(table):
        pq.write_table(moved, path, row_group_size=groups)
        dataset = wids.ShardListDataset(index, fields=(".cls",))
        for use in (
            lambda: dataset.with_columns(["label"]),  # noqa: B023
            lambda: dataset.with_table(scores, on="key"),  # noqa: B023
            lambda: dataset.select([1, 2]).query("select label from samples"),  # noqa: B023
            lambda: dataset.where("label = 1"),  # noqa: B023
        ):
            with pytest.raises(ColumnsError, match=r"rows are not in the order of the samples.*make it again"):
                pytest.fail(f"{what}: {use()}")
        told = made.make_columns(index)
        assert (told.surveyed, told.unchanged) == (len(COUNTS), 0), what
        assert made.read_rows(path) == ROWS, what
    pq.write_table(table, path, row_group_size=groups, compression="none")  # the same rows are the same columns
    labels = [sample["label"] for sample in wids.ShardListDataset(index).with_columns(["label"])]
    assert labels == [row["label"] for row in ROWS]


def test_a_damaged_page(index):
    """A value that the disk has changed is an error and no value, whichever byte of its page it is."""
    path = Path(index.replace(".json", ".columns.parquet"))
    sound = path.read_bytes()
    chunk = pq.read_metadata(path).row_group(0).column(pq.read_schema(path).get_field_index("label"))
    begin = chunk.data_page_offset
    if chunk.has_dictionary_page:
        begin = chunk.dictionary_page_offset
    end = min(chunk.data_page_offset, begin) + chunk.total_compressed_size
    labels = [row["label"] for row in ROWS]
    noticed = 0
    for at in range(begin, end):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
        try:
            found = [sample["label"] for sample in wids.ShardListDataset(index).with_columns(["label"])]
        except ColumnsError:
            noticed += 1
        else:
            assert found == labels, at  # a byte of a page's header that no reader needs
    assert noticed > (end - begin) // 2


def test_shards_that_were_written_anew(index, tmp_path, caplog):
    """Columns of shards of another size are refused; those of shards of another time are warned of, once a dataset."""
    home = Path(index).parent
    path = index.replace(".json", ".columns.parquet")
    ask = "select count(*) from samples"
    status = os.stat(home / "s3.tar")
    made.write_shard_of(home / "s3.tar", 43, 2)
    os.utime(home / "s3.tar", ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))
    dataset = wids.ShardListDataset(index)
    for _ in range(2):
        assert dataset.query(ask).column(0).to_pylist() == [TOTAL]
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"{path}: 1 of 4 shards have another time than when it was made, such as {home}/s3.tar:")
    assert said.endswith("make it again (wids columns create), which reads only those")
    assert made.make_columns(index).surveyed == 1
    caplog.clear()
    assert wids.ShardListDataset(index).query(ask).column(0).to_pylist() == [TOTAL]
    assert not caplog.records
    other = made.write_dataset(tmp_path / "e", COUNTS, payload=600)  # of the same names and counts
    made.write_shard_of(home / "s3.tar", 43, 2, payload=5000)
    for use in (
        lambda: wids.ShardListDataset(index).query(ask),
        lambda: wids.ShardListDataset(index).select([0]).with_columns(),
        lambda: wids.ShardListDataset(other).with_columns(place=path),
    ):
        with pytest.raises(ColumnsError, match=r"of 4 shards have another size than when it was made, such as .*tar"):
            use()


@pytest.mark.parametrize(
    ("sql", "is_read"),
    [
        ("SELECT label FROM samples", True),
        ('SELECT "LABEL" FROM samples', True),
        ("SELECT * FROM samples", True),
        ("SELECT samples FROM samples", True),
        ("SELECT COLUMNS('l.*') FROM samples", True),
        ("SELECT width FROM samples", False),
        ("SELECT count(key) FROM samples", False),
        ("SELECT count(*) FROM samples", False),
    ],
)
def test_sql_over_a_changed_page(index, sql, is_read):
    """DuckDB does not compare checksums of pages: a value that the disk has changed is an error all the same."""
    path = Path(index.replace(".json", ".columns.parquet"))
    data = bytearray(path.read_bytes())
    chunk = pq.read_metadata(path).row_group(0).column(pq.read_schema(path).get_field_index("label"))
    data[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 1
    path.write_bytes(data)
    dataset = wids.ShardListDataset(index)
    if is_read:
        with pytest.raises(ColumnsError, match="column 'label' is damaged"):
            dataset.query(sql)
        with pytest.raises(ColumnsError, match="column 'label' is damaged"):
            dataset.where("label = 3")
    else:
        assert dataset.query(sql).num_rows > 0
        dataset.where("width > 0")


def test_pages_that_are_damaged(index):
    """What only reading finds out is an error of the query."""
    path = Path(index.replace(".json", ".columns.parquet"))
    data = bytearray(path.read_bytes())
    data[4:800] = bytes(796)
    path.write_bytes(data)
    dataset = wids.ShardListDataset(index)
    with pytest.raises((ColumnsError, wids.errors.QueryError)):
        dataset.query("from samples")
    with pytest.raises(ColumnsError, match="is damaged"):
        dataset.with_columns()


def test_a_remote_table(index, tmp_path):
    """Is asked for when columns are, downloaded once into the cache directory, and again when it has changed."""
    with testing.Server(os.path.dirname(index)) as server:
        cache = tmp_path / "cache"
        dataset = wids.ShardListDataset(f"{server.url}/train.json", cache_dir=cache)
        assert not any("columns" in target for target in server.requests)
        assert dataset.find_rows("label = 1").tolist() == [row["index"] for row in ROWS if row["label"] == 1]
        sent = server.sent_bytes["/train.columns.parquet"]
        assert sent > 0
        again = wids.ShardListDataset(f"{server.url}/train.json", cache_dir=cache)
        assert len(again.find_rows("true")) == TOTAL
        assert server.sent_bytes["/train.columns.parquet"] - sent < sent / 2
        assert [name for name in os.listdir(cache / ".wids/indexes") if name.endswith(".parquet")]
        made.make_columns(index, spec=made.parse_spec(fields=[".cls=other"]))
        assert "other" in again.column_names
        pq.write_table(scores_of(range(TOTAL)), tmp_path / "d/scores.parquet")
        joined = again.with_table(f"{server.url}/scores.parquet", on="key", fields=["score"])
        assert joined.find_rows("score = 1 and other = 4").tolist() == [4]
        elsewhere = wids.ShardListDataset(index).with_columns(False, place=f"{server.url}/train.columns.parquet")
        assert len(elsewhere.find_rows("true")) == TOTAL
        with pytest.raises(ColumnsError, match="there is no such file"):
            again.with_columns(place=f"{server.url}/none.parquet")


# --- other processes, and the files


def read_names(dataset, numbers):
    """The column ``name`` of some samples."""
    return [sample["name"] for sample in dataset.__getitems__(numbers)]


def read_and_find(dataset, numbers, predicate):
    """`read_names`, and the rows that a predicate finds."""
    return read_names(dataset, numbers), dataset.find_rows(predicate).tolist()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_processes(dataset, method):
    """Another process maps the same file, whatever starts it; what is sent to it has no rows."""
    joined = dataset.with_table(scores_of(range(0, TOTAL, 2)), on="key", columns=["name"], fields=True)
    assert len(pickle.dumps(joined)) < len(pickle.dumps(dataset)) + 1000
    predicate = "name is null and label = 1"
    names, found = call_in_child(read_and_find, joined, [0, 3, 44], predicate, method=method)
    assert names == ["n0", None, "n44"]
    assert read_names(joined, [2]) == ["n2"]
    assert found == joined.find_rows(predicate).tolist()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_loaders(dataset, method):
    """Workers of a DataLoader have the columns."""
    joined = dataset.with_table(scores_of(range(TOTAL)), on="index", columns=["score"], fields=True)
    loader = DataLoader(joined, batch_size=5, num_workers=2, multiprocessing_context=method, collate_fn=list)
    assert [sample["score"] for batch in loader for sample in batch] == [g / 4 for g in range(TOTAL)]


def test_files_go_with_their_datasets(dataset, monkeypatch, tmp_path):
    """The file of a join goes when no dataset of this process has it; a copy that was made before reads on."""
    joined = dataset.with_table(scores_of(range(TOTAL)), on="index", columns=["name"], fields=True)
    path = joined._columns.joined[0].path
    shallow, pickled = copy.copy(joined), pickle.loads(pickle.dumps(joined))
    data = pickle.dumps(joined)
    del joined
    gc.collect()
    assert os.path.exists(path)
    del shallow
    gc.collect()
    finalizers.do_left()
    assert not os.path.exists(path)
    assert read_names(pickled, [1, 2]) == ["n1", "n2"]
    with pytest.raises(ColumnsError, match="live as long as the process that attached them"):
        pickle.loads(data)


def test_deep_copies(dataset):
    """Keep the file, as shallow ones do."""
    copied = copy.deepcopy(dataset.with_table(scores_of(range(TOTAL)), on="index", columns=["name"], fields=True))
    gc.collect()
    assert read_names(copied, [1]) == read_names(pickle.loads(pickle.dumps(copied)), [1]) == ["n1"]


def test_no_room(dataset, monkeypatch):
    """For the file: a typed error, and nothing is left."""
    before = set(os.listdir(mapped._home.directory()))

    def fail(*_):
        raise OSError(28, "No space left on device")
        yield

    monkeypatch.setattr(join, "_aligned", fail)
    with pytest.raises(ColumnsError, match=r"No space left .* set \$TMPDIR"):
        dataset.with_table(scores_of(range(TOTAL)), on="index")
    assert set(os.listdir(mapped._home.directory())) == before


def test_shards_stay_as_they_are(dataset):
    """Tables belong to the samples that they were joined to; a dataset's new shards are not those of others."""
    joined = dataset.with_columns(["label"])
    with pytest.raises(ColumnsError, match="assign shards before"):
        joined.shards = list(joined.shards)[:1]
    with pytest.raises(ColumnsError, match="assign shards before"):
        joined.spec = joined.spec
    assert joined[0]["label"] == 0


@pytest.mark.parametrize("is_own", [True, False])
def test_shards_that_become_others(dataset, tmp_path, is_own):
    """Of the dataset that tables were joined to: the joined one has those of before, and their values."""
    joined = dataset.with_columns(["label"]) if is_own else dataset.with_table(LABELS, on="index", fields=True)
    name = "label" if is_own else "label_of"
    keys = list(joined.keys)
    made.write_shard_of(tmp_path / "other.tar", 90, 2)
    dataset.shards = [*dataset.shards[:3], {"url": str(tmp_path / "other.tar"), "nsamples": 2}]
    assert dataset[TOTAL - 1]["__shard__"] == str(tmp_path / "other.tar")
    assert [sample["__key__"] for sample in joined.__getitems__(range(TOTAL))] == keys
    assert joined[TOTAL - 1][name] == ROWS[-1]["label"]
    assert joined.query("from samples").num_rows == TOTAL


def test_a_copy_that_is_renamed_to_another_s(tmp_path, server):
    """In a cache directory that users share, a remote table is not taken for another one; it is downloaded again."""
    for name, value in (("one", 1), ("two", 2)):
        pq.write_table(pa.table({"x": [value]}), tmp_path / name)
        server.add(f"/{name}.parquet", (tmp_path / name).read_bytes())
    cache = str(tmp_path / "cache")

    def fetch(name):
        return fetch_table(f"{server.url}/{name}.parquet", cache_dir=cache, session=Session())

    one, two = fetch("one"), fetch("two")
    before = os.stat(one).st_ino
    assert (fetch("one"), os.stat(one).st_ino) == (one, before)
    os.replace(one, two)
    assert fetch("two") == two
    assert pq.read_table(two).to_pydict() == {"x": [2]}

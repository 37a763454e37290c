"""SQL that chooses samples to pack, over keys, fields and columns."""

import json
import re

import pytest

import wids
from tests.support import columns
from tests.support.packing import keys_of, pack, pack_rows, put
from wids.errors import QueryError, SampleError, WidsError
from wids.writing.pack import datasets


def test_where_chooses_from_a_dataset(tmp_path):
    """SQL over keys, texts, numbers and JSON; all predicates must hold, and a range counts those that meet them."""
    rows = [
        {"key": f"{'cat' if k % 2 else 'dog'}{k}", "cls": k % 5, "caption": f"No. {k}, a {'Cat' if k % 3 else 'dog'}"}
        for k in range(30)
    ]
    put(tmp_path / "in", {"rows.jsonl": "\n".join(map(json.dumps, rows))})
    fields = (".cls=cls", ".json=key,caption,cls", ".txt=caption")
    source = pack_rows(tmp_path / "in/rows.jsonl", tmp_path / "all/x-%d.tar", *fields, key="key", samples=7).index
    cases = [
        (["key like 'cat%'"], lambda row: row["key"].startswith("cat")),
        (["key not like 'cat%'", "key != 'dog2'"], lambda row: row["key"].startswith("dog") and row["key"] != "dog2"),
        (["cls = 3"], lambda row: row["cls"] == 3),
        (["CLS >= 2 and cls < 4"], lambda row: row["cls"] in (2, 3)),
        (
            ["(json->>'caption') ilike '%a cat' and (json->>'cls')::int != 0"],
            lambda row: row["cls"] and "Cat" in row["caption"],
        ),
        (["txt like '%Cat' and has_json and index >= 0"], lambda row: "Cat" in row["caption"]),
    ]
    for k, (conditions, wanted) in enumerate(cases):
        outcome = pack(source, tmp_path / f"{k}/x-%d.tar", where=conditions, keep_fields=["txt"])
        expected = [row["key"] for row in rows if wanted(row)]
        assert keys_of(outcome.index) == expected
        assert outcome.unmatched == 30 - len(expected)
    outcome = pack(source, tmp_path / "r/x-%d.tar", where=["cls = 3"], selected=slice(1, 3))
    assert outcome.unmatched == 24
    assert keys_of(outcome.index) == ["dog8", "cat13"]


def test_where_chooses_from_files(tmp_path):
    """Of files too; what lacks a field does not meet a condition on it, and whether it is there is one."""
    put(
        tmp_path / "in",
        {"a.txt": "one", "a.jpg": "x", "b.txt": "two\n", "c.jpg": "x", "d.json": '{"x": [{"z": "w"}]}'},
    )
    for k, (condition, keys) in enumerate(
        [
            ("has_jpg", ["a", "c"]),
            ("txt != 'one'", ["b"]),
            ("txt is null", ["c", "d"]),
            ("json_extract_string(json, '$.x[0].z') = 'w'", ["d"]),
            ("not has_txt and not has_jpg", ["d"]),
        ]
    ):
        outcome = pack(tmp_path / "in", tmp_path / f"{k}/x-%d.tar", form="files", where=[condition])
        assert keys_of(outcome.index) == keys


def test_where_names_fields_in_any_case(tmp_path):
    """Fields that differ in case alone are one; a sample that has it twice has no value for it."""
    put(tmp_path / "in", {"a.TXT": "one", "a.JPG": "x", "b.txt": "one", "c.Txt": "two", "c.jpg": "x"})
    for k, (condition, keys) in enumerate(
        [("txt = 'one'", ["a", "b"]), ("TXT = 'two'", ["c"]), ("has_jpg", ["a", "c"])]
    ):
        outcome = pack(tmp_path / "in", tmp_path / f"{k}/x-%d.tar", form="files", where=[condition])
        assert keys_of(outcome.index) == keys
    put(tmp_path / "in", {"b.TXT": "two"})
    with pytest.raises(SampleError, match="twice, in upper and in lower case"):
        pack(tmp_path / "in", tmp_path / "z/x-%d.tar", form="files", where=["txt = 'one'"])
    pack(tmp_path / "in", tmp_path / "y/x-%d.tar", form="files", where=["has_txt and key = 'b'"])


def test_where_names_a_field_that_no_sample_has(tmp_path):
    """It is false for all, with a warning that lists the fields; any other unknown name is an error."""
    put(tmp_path / "in", {"a.cls": b"1", "a.jpg": b"x", "b.jpg": b"y"})
    outcome = pack(tmp_path / "in", tmp_path / "out/x-%d.tar", form="files", where=["has_cls or has_png"])
    [note] = outcome.notes
    assert note.startswith("no sample has a field for has_png: false for all; the fields of the samples are ")
    assert ".cls (has_cls)" in note
    assert keys_of(outcome.index) == ["a"]
    with pytest.raises(QueryError, match="width"):
        pack(tmp_path / "in", tmp_path / "no/x-%d.tar", form="files", where=["has_cls or width > 1"])


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("", "and this is empty"),
        ("cls >", "syntax error"),
        ("true; drop view samples", "one expression is needed, as after WHERE, and this is more"),
        ("key = 'z'", """of 2 samples none meets "key = 'z'\""""),
        ("cls = 1", "the columns of samples are index, key, bin, has_bin, txt, has_txt"),
        ("bin like 'x'", ".bin of 'a' is no value that a predicate could compare"),
    ],
)
def test_where_that_cannot_be(tmp_path, condition, words):
    """What is no predicate, what nothing meets, and what cannot be asked is one sentence."""
    put(tmp_path / "in", {"a.bin": b"\xff", "b.txt": "1"})
    with pytest.raises(WidsError, match=re.escape(words)):
        pack(tmp_path / "in", tmp_path / "out/x-%d.tar", form="files", where=[condition])
    assert not (tmp_path / "out").exists()


def test_where_asks_the_columns_beside_an_index(tmp_path, monkeypatch):
    """They go before fields; where they have all that is named, no shard is looked at."""
    source = columns.write_dataset(tmp_path / "in", (3, 5))
    columns.make_columns(source)
    rows = columns.rows_of((3, 5))
    looked = []
    look = datasets.DatasetReader.look
    monkeypatch.setattr(datasets.DatasetReader, "look", lambda *args: looked.append(args) or look(*args))
    for k, (predicate, is_wanted, is_looked_at) in enumerate(
        [
            ("label = 1 and width > 100", lambda row: row["label"] == 1 and (row["width"] or 0) > 100, False),
            ("label = 1 and key > 'k0001'", lambda row: row["label"] == 1 and row["key"] > "k0001", False),
            ("label = 1 and cls = 1 and has_json", lambda row: row["label"] == 1 and row["json_bytes"], True),
        ]
    ):
        looked.clear()
        outcome = pack(source, tmp_path / f"{k}/x-%d.tar", where=[predicate])
        assert keys_of(outcome.index) == [row["key"] for row in rows if is_wanted(row)]
        assert bool(looked) == is_looked_at


@pytest.mark.parametrize(
    ("predicate", "is_wanted"),
    [
        ("label = 1", lambda _, row: row["label"] == 1),
        ("cls = 1 and has_bin", lambda _, row: row["label"] == 1),
        ("index % 2 = 1 and cls < 3 and label > 0", lambda number, row: number % 2 and 0 < row["label"] < 3),
    ],
)
def test_where_asks_a_view(tmp_path, predicate, is_wanted):
    """Of its own samples, by columns and by fields; they are counted from 0 on."""
    source = columns.write_dataset(tmp_path / "in", (9, 0, 14))
    columns.make_columns(source)
    rows = [row for row in columns.rows_of((9, 0, 14)) if row["width"] and row["width"] > 104]
    wids.ShardListDataset(source).where("coalesce(width, 0) > 104").save(tmp_path / "v.json")
    outcome = pack(tmp_path / "v.json", tmp_path / "out/x-%d.tar", where=[predicate])
    assert keys_of(outcome.index) == [row["key"] for number, row in enumerate(rows) if is_wanted(number, row)]


def test_where_leaves_out_what_cannot_be_asked(tmp_path):
    """Where errors are skipped, the rest is packed, and what could not be asked is told."""
    put(tmp_path / "in", {"a.bin": b"\xff", "b.bin": "1", "c.bin": "2"})
    options = {"form": "files", "where": ["bin = '1'"], "skips_errors": True}
    outcome = pack(tmp_path / "in", tmp_path / "out/x-%d.tar", **options)
    assert (keys_of(outcome.index), outcome.unmatched) == (["b"], 1)
    [problem] = outcome.skipped
    assert problem.why.startswith(".bin of 'a' is no value")

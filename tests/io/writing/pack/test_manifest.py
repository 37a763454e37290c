"""Manifests to pack: tables of paths, labels and keys, and what is wrong with a row or a file."""

import csv
import gzip
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import backends
from tests.support.packing import keys_of, pack, pack_rows, put, shown
from wids.errors import InputError, SampleError, WidsError
from wids.writing.pack import manifest


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_manifests(tmp_path, kind):
    """Rows of every format become the same samples: files by path, labels by number, columns as JSON."""
    put(tmp_path / "in", {f"img/{k}.png": f"png {k}" for k in range(3)})
    rows = [{"path": f"img/{k}.png", "label": "ab"[k % 2], "id": f"id-{k}", "n": str(k)} for k in range(3)]
    path = tmp_path / f"in/rows.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    else:
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if kind == "tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    fields = (".png=path", ".cls=label", ".json=n,label", ".txt=n")
    outcome = pack_rows(path, tmp_path / "out/m-%d.tar", *fields, key="id", samples=2)
    assert shown(outcome.index)[2] == (
        "id-2",
        {".png": b"png 2", ".cls": b"0", ".json": b'{"n": "2", "label": "a"}', ".txt": b"2"},
    )
    with open(outcome.index) as file:
        assert json.load(file)["info"] == {"classes": ["a", "b"]}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("r.csv", "path,label\na.jpg,1\n", "there is no column 'nope'; it has label, path"),
        ("r.jsonl", '{"path": "r.jsonl", "nope": 1}\n{"path"', "line 2: is not JSON"),
        ("r.jsonl", "[1]", "line 1: is a JSON list"),
        ("r.csv", "path,nope\n", "has no rows"),
        ("r.csv", b"path,nope\n\xff,1\n", "is no csv that can be read"),
        ("r.csv", "path,nope\n,1\n", "line 2: column 'path' is empty"),
        ("r.csv", "path,nope\ngone.jpg,1\n", "gone.jpg: cannot be read (No such file or directory)"),
        ("r.csv", "path,nope\nr.csv,\n", "line 2: column 'nope' is empty"),
        ("r.parquet", b"PAR1", "is no Parquet that can be read"),
    ],
)
def test_manifests_that_cannot_be_packed(tmp_path, name, text, words):
    """What is wrong with a manifest is told with its name, the row, and what is there instead."""
    put(tmp_path, {name: text})
    with pytest.raises(WidsError) as caught:
        pack_rows(tmp_path / name, tmp_path / "out/m-%d.tar", ".jpg=path", ".cls=nope")
    assert words in str(caught.value)
    assert name in str(caught.value)
    assert not os.path.exists(tmp_path / "out/m.json")


def test_repeated_keys_of_a_manifest(tmp_path):
    """A key that came before is told with both rows; numbered keys do not care."""
    put(tmp_path, {"r.csv": "id,n\na,1\nb,2\na,3\n"})
    with pytest.raises(WidsError, match=r"r.csv, line 4: key 'a' is that of line 2, too"):
        pack_rows(tmp_path / "r.csv", tmp_path / "out/m-%d.tar", ".cls=n", key="id")
    outcome = pack_rows(tmp_path / "r.csv", tmp_path / "out/m-%d.tar", ".cls=n", key="id", numbers_keys=True)
    assert keys_of(outcome.index) == ["000000000", "000000001", "000000002"]


@pytest.mark.parametrize("text", [".jpg", ".jpg=", ".cls=a,b", "a/b=c", ".json=a,,b"])
def test_fields_that_say_nothing(text):
    """A --field that names no column, or too many, is refused."""
    with pytest.raises(InputError, match="field"):
        manifest.parse_field(text)


@pytest.mark.parametrize(
    ("name", "text", "line", "words"),
    [
        ("r.csv", "key,text\na,b\nc,a cat, on a mat\n", 3, "has 3 fields, and the header has 2; is there a separator"),
        ("r.csv", "key,text\na,b\nc\n", 3, "has 1 fields, and the header has 2"),
        ("r.csv", 'key,text\na,"b\nb"\nc,d,e\n', 4, "has 3 fields"),
        ("r.csv", "key,text\na,b\n\ufeffkey,text\n", 3, "repeats the header"),
        ("r.tsv", "key\ttext\na\tb\tc\n", 2, "has 3 fields"),
        (
            "r.jsonl",
            '{"key": "a", "text": "b"}\n\n{"key": "c", "text": "d", "key": "e"}',
            3,
            "the key 'key' is there twice",
        ),
        ("r.jsonl", '{"key": "a", "text": "b"}\n{"key": "c", "text": true}', 2, "column 'text' holds a bool"),
        ("r.jsonl", '{"key": "a", "text": ["b"]}', 1, "column 'text' holds a list"),
        ("r.jsonl", '{"key": {"a": 1}, "text": "b"}', 1, "column 'key' holds a dict"),
        ("r.jsonl", '{"key": "a", "text": NaN}', 1, "column 'text' is empty"),
        ("r.jsonl", '{"key": "a"}\n{"key": "b", "text": "c"}', 1, "there is no column 'text' in this row"),
        ("r.jsonl", '{"key": "' + "a." * 500 + '", "text": "b"}', 1, "... (900 more) has a dot"),
        ("r.jsonl", "[" * 100_000 + "\n" + '{"key": "a", "text": "b"}', 1, "is not JSON (it is nested too deeply"),
    ],
)
def test_rows_that_do_not_fit(tmp_path, name, text, line, words):
    """Such a row is a problem of its line: an error, or left out and named; it is never cut to fit."""
    put(tmp_path, {name: text})
    with pytest.raises(WidsError) as caught:
        pack_rows(tmp_path / name, tmp_path / "out/x-%d.tar", ".txt=text", key="key")
    assert str(caught.value).startswith(f"{tmp_path}/{name}, line {line}: ")
    assert words in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("r.csv", "a,b,a\n1,2,3\n", "two columns are called 'a'"),
        ("r.tsv", "a\ta\n1\t2\n", "two columns are called 'a'"),
        ("r.csv", "a,b\n1,2\n3,4\0\n", "line 3 has a NUL byte"),
        ("r.csv", "a,b\n1,2\n".encode("utf-16"), "store it as UTF-8"),
        ("r.csv", 'a,b\n1,2\n3,"x\n4,5\n', "the row that begins in line 3 is no csv"),
        ("r.csv", "", "is empty"),
        ("r.jsonl", '{"b": 1}\n', "there is no column 'a'; it has b"),
        ("r.csv", "a;b\r\n1;2\r\n", "it has a;b; is ';' between its columns?"),
        ("r.csv", "a\tb\n1\t2\n", r"is '\t' between its columns?"),
        ("r.tsv", "a,b\n1,2\n", "is ',' between its columns?"),
        ("r.csv", "a,b\n1,2\n".encode("utf-16"), "is UTF-16; store it as UTF-8"),
        ("r.csv", gzip.compress(b"a,b\n1,2\n", mtime=0), "is compressed with gzip; unpack it"),
        ("r.csv", b"PK\x03\x04...", "is a zip or Excel file"),
        ("r.json", '[{"a": "1"}]', "is a JSON list; store it with one object a line"),
        ("r.csv", ",".join(f"c{k}" for k in range(500)) + "\n", "c124 and 470 more"),
    ],
)
def test_manifests_that_are_none(tmp_path, name, text, words):
    """What is wrong with a whole file is told with its name, and a place in it where there is one."""
    put(tmp_path, {name: text})
    with pytest.raises(InputError) as caught:
        pack_rows(tmp_path / name, tmp_path / "out/x-%d.tar", ".txt=a")
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}/{name}: ")


def test_quotes_in_a_tsv(tmp_path):
    """A quote that is closed within its field quotes it; any other one is a letter, and swallows no rows."""
    rows = ['"open quote', "a cat", '6" nails', '"so" he said', '"a ""b"" c"', '"tab\there"', '""', "last"]
    put(tmp_path, {"r.tsv": "\ufeffn\ttext\r\n" + "".join(f"{k}\t{row}\r\n" for k, row in enumerate(rows))})
    outcome = pack_rows(tmp_path / "r.tsv", tmp_path / "out/x-%d.tar", ".txt=text")
    texts = [fields[".txt"].decode() for _, fields in shown(outcome.index)]
    assert texts == ['"open quote', "a cat", '6" nails', '"so" he said', 'a "b" c', "tab\there", "", "last"]


def test_rows_of_several_lines_are_counted(tmp_path):
    """A quoted text may have line breaks; that there are such rows is said, for an open quote looks the same."""
    put(tmp_path, {"r.csv": 'a,b\n1,x\n\n2,"y\nz"\n3,"6"\n'})
    outcome = pack_rows(tmp_path / "r.csv", tmp_path / "out/x-%d.tar", ".txt=b")
    assert [fields[".txt"] for _, fields in shown(outcome.index)] == [b"x", b"y\nz", b"6"]
    assert outcome.notes == [
        f"{tmp_path}/r.csv: 1 rows are of several lines (the first is in line 4); if none should be, a quote is open"
    ]


def test_several_manifests_are_one(tmp_path):
    """Their rows follow each other in the order given, of globs in natural order; keys are unique over all of them."""
    put(tmp_path, {f"p/part-{k}.csv": f"key,label\nk{k}a,b\nk{k}b,{'a' if k == 10 else 'b'}\n" for k in (0, 2, 10)})
    put(tmp_path, {"z.csv": "label,key\nb,z\n", "odd[1].csv": "key,label\no,b\n", "dup.csv": "key,label\nk2a,b\n"})

    def pack_named(*names, key="key"):
        return pack(
            [f"{tmp_path}/{name}" for name in names], tmp_path / f"{key}/x-%d.tar", fields=[".cls=label"], key=key
        )

    outcome = pack_named("z.csv", "p/part-*.csv", "odd[1].csv")
    assert (len(outcome.sources), outcome.form) == (5, "manifest")
    expected = [("z", 1), ("k0a", 1), ("k0b", 1), ("k2a", 1), ("k2b", 1), ("k10a", 1), ("k10b", 0), ("o", 1)]
    assert [(key, int(fields[".cls"])) for key, fields in shown(outcome.index)] == expected
    with pytest.raises(
        SampleError, match=rf"dup.csv, line 2: key 'k2a' is that of {tmp_path}/p/part-2.csv, line 2, too"
    ):
        pack_named("p/part-{0,2}.csv", "dup.csv")
    outcome = pack_named("z.csv", "p/part-0.csv", key=None)
    assert keys_of(outcome.index) == ["000000000", "000000001", "000000002"]


def test_remote_manifests_name_no_local_files(tmp_path):
    """A manifest from a remote place may name remote files, and local ones only where the user said where these are."""
    put(tmp_path, {"a.txt": "mine"})
    place = backends.memory("rows")
    place.add("b.txt", b"theirs")
    url = place.add("r.csv", f"t,u\nb.txt,file://{tmp_path}/a.txt\n".encode())
    outcome = pack_rows(url, tmp_path / "1/m-%d.tar", ".txt=@t")
    assert shown(outcome.index) == [("000000000", {".txt": b"theirs"})]
    with pytest.raises(WidsError, match="may not name local files"):
        pack_rows(url, tmp_path / "2/m-%d.tar", ".txt=@u")
    with pytest.raises(InputError, match="size of a remote file is not known"):
        pack_rows(url, tmp_path / "2/m-%d.tar", ".txt=@t", size=20_480)
    outcome = pack_rows(url, tmp_path / "3/m-%d.tar", ".txt=@u", base=str(tmp_path))
    assert shown(outcome.index) == [("000000000", {".txt": b"mine"})]


def test_remote_manifests_by_a_glob(tmp_path):
    """Of a bucket, too; files that they name are beside them."""
    place = backends.memory("many-rows")
    for k in (2, 10, 1):
        place.add(f"in/part-{k}.csv", f"t\n{k}.txt\n".encode())
        place.add(f"in/{k}.txt", b"text %d" % k)
    sources = manifest.expand_sources([f"{place.url}/in/part-*.csv"])
    outcome = pack_rows(sources, tmp_path / "out/x-%d.tar", ".txt=@t")
    assert [fields[".txt"] for _, fields in shown(outcome.index)] == [b"text 1", b"text 2", b"text 10"]


def test_rows_that_name_one_file_are_counted(tmp_path):
    """That may be meant (several captions of a picture), and is said."""
    put(tmp_path, {"a.jpg": "x", "b.jpg": "y", "r.csv": "p,t\na.jpg,1\nb.jpg,2\na.jpg,3\n"})
    outcome = pack_rows(tmp_path / "r.csv", tmp_path / "out/m-%d.tar", ".jpg=p", ".txt=t")
    assert outcome.samples == 3
    assert outcome.notes == [
        f"1 row names a file that an earlier row names (line 4 names {tmp_path}/a.jpg, as line 2 does)"
    ]

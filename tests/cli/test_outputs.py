"""Files that commands write: they replace what such a command wrote before, and anything else only with --overwrite."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import wids
from tests.support import columns as made
from tests.support.cli import complaint, run, run_ok
from tests.support.shards import write_shard
from wids.core.files import atomic
from wids.errors import CacheError

NOTES = b"notes of a month\n"
SMALL = ("simulate", "--shards", "3", "--samples", "30", "--shard-size", "1MB")
# What the file is called, and the command that writes it.
COMMANDS = {
    "view": ("v.json", ("view", "d/train.json", "--select", ":3", "-o")),
    "create": ("new.json", ("index", "create", "d/s0.tar", "-o")),
    "merge": ("all.json", ("index", "merge", "d/train.json", "-o")),
    "merge of a view": ("all.json", ("index", "merge", "d/part.json", "d/train.json", "-o")),
    "split": ("a.json", ("index", "split", "d/train.json", "--by", "9", "-o")),
    "split of a view": ("a.json", ("index", "split", "d/part.json", "--by", "9", "-o")),
    "join": ("joined.json", ("index", "join", "d/train.json", "d/train.json", "--prefix", "twin", "-o")),
    "rebase": ("moved.json", ("index", "rebase", "d/train.json", "--base", "https://host/d", "-o")),
    "convert": ("train.widsx", ("index", "convert", "d/train.json", "-o")),
    "rewrite": ("less.json", ("rewrite", "d/part.json", "-o")),
    "columns": ("c.parquet", ("columns", "create", "d/train.json", "--field", ".cls=label", "-o")),
    "query": ("q.parquet", ("query", "d/train.json", "select key from samples", "-o")),
    "page": ("job.html", (*SMALL, "--html")),
    "picture": ("job.png", (*SMALL, "--plot")),
    "report": ("bad.jsonl", ("verify", "d/train.json", "--decode", "--report")),
}
# Likewise, of an index of another one, or with a list.
OF_OTHERS = {
    "merge of a part": ("all.json", ("index", "merge", "d/top.json", "-o")),
    "split of a part": ("a.json", ("index", "split", "d/top.json", "--by", "9", "-o")),
    "list": ("v.json", ("view", "d/train.json", "--exclude", "d/out.txt", "-o")),
    "counts": ("new.json", ("index", "create", "d/s0.tar", "--counts", "d/sizes.json", "-o")),
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch, own_cache):
    """A dataset with columns and a view in the directory of the test."""
    monkeypatch.chdir(tmp_path)
    os.mkdir("d")
    made.make_columns(made.write_dataset("d", (3, 0, 5)))
    wids.ShardListDataset("d/train.json").select([1, 4]).save("d/part.json")
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_other_files_stay(name):
    """Unless they are empty, or --overwrite is there; what the command wrote is replaced without it."""
    output, command = COMMANDS[name]
    Path(output).write_bytes(NOTES)
    said = complaint(1, *command, output)
    assert f"{output}: exists, and is no " in said
    assert said.endswith("; write elsewhere, or pass --overwrite")
    assert Path(output).read_bytes() == NOTES
    assert run(*command, output, "--overwrite").code == 0
    written = Path(output).read_bytes()
    assert written != NOTES
    assert run(*command, output).code == 0
    Path(output).write_bytes(b"")
    assert run(*command, output).code == 0


OTHER = {
    "index": "is an index of 2 shards, and ",
    "view": "is a view of ",
    "parts": "is an index of sub-datasets",
}


@pytest.mark.parametrize("kind", OTHER)
@pytest.mark.parametrize(
    "name", ["view", "create", "merge", "merge of a view", "split", "split of a view", "rebase", "convert"]
)
def test_indexes_of_other_data_stay(name, kind):
    """And views where the output is an index, or the reverse, unless --overwrite is there."""
    output, command = COMMANDS[name]
    other = made.write_dataset("e", (7, 8))
    if name == "convert":
        run_ok("index", "convert", other, "-o", output)
    elif kind == "view":
        run_ok("view", other, "--select", ":3", "-o", output)
    elif kind == "parts":
        Path(output).write_text('{"wids_version": 1, "datasets": [{"source_url": "e/train.json"}]}')
    else:
        run_ok("index", "merge", other, "-o", output)
    before = Path(output).read_bytes()
    said = complaint(1, *command, output)
    assert ("is a compiled index of 2 other shards" if name == "convert" else OTHER[kind]) in said
    assert said.endswith("; write elsewhere, or pass --overwrite")
    assert Path(output).read_bytes() == before
    run_ok(*command, output, "--overwrite")
    run_ok(*command, output)


@pytest.mark.parametrize("name", ["view", "create", "merge", "split", "rebase"])
@pytest.mark.parametrize(
    "text", ['{"a": 1}', '{"datasets": ["a", "b"]}', '{"shardlist": "none"}', "[1]", '{"shardlist"']
)
def test_json_that_is_no_index(name, text):
    """Stays, too."""
    output, command = COMMANDS[name]
    Path(output).write_text(text)
    assert "exists, and is no index" in complaint(1, *command, output)
    assert Path(output).read_text() == text


def test_a_table_of_other_shards_stays():
    """Unless --overwrite is there; one whose index was moved is not of others."""
    output, command = COMMANDS["columns"]
    run_ok(*command, output)
    os.rename("d", "moved")
    run_ok("columns", "create", "moved/train.json", "-o", output)
    before, other = Path(output).read_bytes(), made.write_dataset("e", (7, 8))
    create = ("columns", "create", other, "--field", ".cls=label", "-o", output)
    assert "is a table of the columns of 3 other shards; write elsewhere, or pass --over" in complaint(1, *create)
    assert Path(output).read_bytes() == before
    run_ok(*create, "--overwrite")


def test_tables_of_others():
    """A Parquet file that neither command wrote stays, and neither replaces what the other wrote."""
    pq.write_table(pa.table({"score": [1]}), "scores.parquet")
    query, columns = COMMANDS["query"][1], COMMANDS["columns"][1]
    run_ok(*query, "q.parquet")
    run_ok(*columns, "c.parquet")
    for command, outputs in ((query, ("scores.parquet", "c.parquet")), (columns, ("scores.parquet", "q.parquet"))):
        for output in outputs:
            before = Path(output).read_bytes()
            assert "exists, and is no " in complaint(1, *command, output)
            assert Path(output).read_bytes() == before


@pytest.mark.parametrize(
    ("source", "command", "words"),
    [
        ("d/train.json", "view", "the index that this is a view of"),
        ("d/train.columns.parquet", "view", "the table of this dataset's columns"),
        ("d/s2.tar", "view", "one of the shards"),
        ("d/s0.tar", "create", "one of the shards"),
        ("d/out.txt", "list", "a list that this view is made by"),
        ("d/train.json", "merge", "one of the indexes that it is made of"),
        ("d/train.json", "merge of a part", "a part of d/top.json"),
        ("d/part.json", "merge of a view", "one of the indexes that it is made of"),
        ("d/s0.tar", "merge", "one of the shards"),
        ("d/train.json", "split", "one of the indexes that it is made of"),
        ("d/train.json", "split of a part", "a part of d/top.json"),
        ("d/part.json", "split of a view", "one of the indexes that it is made of"),
        ("d/sizes.json", "counts", "one of the files of counts"),
        ("d/s0.tar", "split", "one of the shards"),
        ("d/train.json", "convert", "the index itself"),
        ("d/s0.tar", "convert", "one of the shards"),
        ("d/s0.tar", "columns", "one of the shards"),
        ("d/train.json", "columns", "the index itself"),
        ("d/train.columns.parquet", "query", "the table of columns that is asked"),
        ("d/train.json", "query", "the index itself"),
    ],
)
@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_what_an_output_is_made_of(source, command, words, link):
    """Is never replaced, by whatever path it is named."""
    Path("d/top.json").write_text('{"wids_version": 1, "datasets": [{"source_url": "train.json"}]}')
    Path("d/sizes.json").write_text('{"s0.tar": 3}')
    Path("d/out.txt").write_text("k0001\n")
    output, command = {**COMMANDS, **OF_OTHERS}[command]
    before = Path(source).read_bytes()
    link(Path(source).absolute(), output)
    assert f"is {words}; give the output another name" in complaint(1, *command, output, "--overwrite")
    assert Path(source).read_bytes() == before
    assert Path(output).read_bytes() == before


BESIDE = {
    "new.json.state": COMMANDS["create"],
    "new.json.journal": COMMANDS["create"],
    "c.parquet.state": COMMANDS["columns"],
    "c.parquet.journal": COMMANDS["columns"],
    "d/train.tables.spool": ("d/train.tables", ("index", "tables", "d/train.json", "-o")),
    "d/train.tables.journal": ("d/train.tables", ("index", "tables", "d/train.json", "-o")),
    "d/s0.tar.widx": ("new.json", ("index", "create", "d/s0.tar", "--members", "-o")),
    "p.json.packing": ("p-%d.tar", ("pack", "d/train.json", "-o")),
    "p-0.tar.widx": ("p-%d.tar", ("pack", "d/train.json", "-o")),
}


@pytest.mark.parametrize("notes", [NOTES, b"\n" + NOTES, b'{"my": "notes"}\n', b"\x89PNG\r\n\x1a\n"])
@pytest.mark.parametrize("name", BESIDE)
def test_other_files_beside_an_output_stay(name, notes):
    """What a command writes beside its output replaces and deletes nothing else, though --overwrite is there."""
    output, command = BESIDE[name]
    Path(name).write_bytes(notes)
    for more in ((), ("--overwrite",)):
        said = complaint(1, *command, output, *more)
        assert f"{name}: exists, and is no " in said
        assert Path(name).read_bytes() == notes
    os.unlink(name)
    assert run(*command, output).code == 0
    assert run(*command, output, "--overwrite").code == 0


def test_a_directory_of_parts_with_other_files():
    """Only the parts in it go."""
    output, command = COMMANDS["columns"]
    os.mkdir(f"{output}.parts")
    Path(f"{output}.parts/notes").write_bytes(NOTES)
    run_ok(*command, output)
    assert os.listdir(f"{output}.parts") == ["notes"]
    os.unlink(f"{output}.parts/notes")
    run_ok(*command, output, "--field", ".cls=other")
    assert not os.path.exists(f"{output}.parts")


def test_a_journal_that_is_none():
    """The file that --journal names is deleted in the end: only a journal is."""
    Path("notes").write_bytes(NOTES)
    assert "exists, and is no journal of wids verify" in complaint(1, "verify", "d/train.json", "--journal", "notes")
    assert Path("notes").read_bytes() == NOTES


def test_an_error_log_that_is_none():
    """Lines are added to a log, and to no other file."""
    Path("captions.jsonl").write_bytes(b'{"caption": "a cat"}\n')
    options = {"on_error": "substitute", "error_log": "captions.jsonl"}
    with pytest.raises(
        wids.errors.OutputExistsError, match=r"exists, and is no log of samples that failed; write elsewhere$"
    ):
        wids.ShardListDataset("d/train.json", **options)


def test_a_device_is_not_replaced_by_a_file(tmp_path):
    """Whoever may write to /dev does not lose /dev/null to an index or a page."""
    os.mkfifo(tmp_path / "null")  # stands for a device, which only root can make
    with pytest.raises(CacheError, match="not a file"):
        atomic.write_atomically(str(tmp_path / "null"), b"x")
    write_shard(tmp_path / "a.tar", 3)
    assert run("index", "create", tmp_path / "a.tar", "-o", tmp_path / "null")[0] == 1
    assert not os.path.isfile(tmp_path / "null")

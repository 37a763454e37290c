"""``wids columns create`` and ``wids query``: what they print, where they write, what they complain of."""

import json
import os
import signal

import pyarrow.parquet as pq
import pytest

from tests.support import columns as made
from tests.support.cli import PATIENCE_SECONDS, complaint, run, run_ok, spawn
from tests.support.shards import write_tar
from wids import testing

ASKED = ("--field", ".cls=label", "--json", ".json:width,meta.tag=tag,any", "--text", ".txt=caption")
COUNTS = (3, 0, 5)


@pytest.fixture
def index(tmp_path, monkeypatch, own_cache):
    """A dataset in the directory of the test."""
    monkeypatch.chdir(tmp_path)
    made.write_dataset(".", COUNTS)
    return "train.json"


def test_create_and_query(index):
    """The table stands beside the index; a second run reads nothing; what is asked is printed as a table."""
    out = run_ok("columns", "create", index, *ASKED)
    assert "label       int64 \n" in out
    assert "any         json  \n" in out
    assert "train.columns.parquet: 8 rows, 14 columns\n3 read in " in out
    assert made.read_rows("train.columns.parquet") == made.rows_of(COUNTS)
    assert "3 unchanged in " in run_ok("columns", "create", index, *ASKED, "--jobs", "2", "--engine", "threads")
    lines = run_ok(
        "query", index, "select label, count(*) n, max(tag) from samples group by label order by label limit 2"
    )
    assert [line.split() for line in lines.splitlines()] == [
        ["label", "n", "max(tag)"],
        ["0", "2", "blue"],
        ["1", "2", "red"],
    ]


def test_formats(index):
    """CSV, lines of JSON, Parquet; a null is nothing, null, null."""
    run_ok("columns", "create", index, *ASKED)
    sql = "select key, caption, [index] as numbers from samples order by index limit 2"
    assert run_ok("query", index, sql, "--csv") == "key,caption,numbers\nk0000,,[0]\nk0001,text of 1,[1]\n"
    lines = run_ok("query", index, sql, "--json").splitlines()
    assert [json.loads(line) for line in lines] == [
        {"key": "k0000", "caption": None, "numbers": [0]},
        {"key": "k0001", "caption": "text of 1", "numbers": [1]},
    ]
    assert run_ok("query", index, sql, "-o", "found.parquet") == "found.parquet: 2 rows, 3 columns\n"
    assert pq.read_table("found.parquet")["key"].to_pylist() == ["k0000", "k0001"]
    row = json.loads(
        run_ok("query", index, "select date '2024-02-03' d, 'x'::blob b, {'a': 1} s, 0.1::decimal(3, 1) c", "--json")
    )
    assert row == {"d": "2024-02-03", "b": "b'x'", "s": {"a": 1}, "c": "0.1"}


def test_long_results(index):
    """A table has 200 rows; the others are counted."""
    run_ok("columns", "create", index)
    out = run_ok("query", index, "select range from range(1000)")
    assert (len(out.splitlines()), out.splitlines()[-1]) == (202, "and 800 more rows; --csv prints all")


def test_report_for_programs(index):
    """One JSON object."""
    told = json.loads(run_ok("columns", "create", index, "--report-json", "-o", "c.parquet"))
    assert (told["samples"], told["surveyed"], told["columns"]["bytes"]) == (8, 3, "int64")
    assert run_ok("query", index, "select count(*) c from samples", "--columns", "c.parquet", "--csv") == "c\n8\n"


def test_remote_indexes(index, tmp_path):
    """The table goes where -o says; beside a remote index it is found and downloaded."""
    with testing.Server(tmp_path) as server:
        url = f"{server.url}/train.json"
        assert "say where the table goes (-o FILE)" in complaint(2, "columns", "create", url)
        assert "8 rows" in run_ok("columns", "create", url, *ASKED, "-o", "train.columns.parquet")
        assert run_ok("query", url, "select count(*) c from samples", "--csv") == "c\n8\n"


def test_failures(tmp_path, monkeypatch):
    """Each shard that failed is told once; nothing is written. --missing null goes on, and says what is null."""
    monkeypatch.chdir(tmp_path)
    write_tar("a.tar", [("a.json", b"{")])
    write_tar("b.tar", [("b.json", b"[]")])
    assert run("index", "create", "a.tar", "b.tar", "-o", "i.json").code == 0
    code, out, err = run("columns", "create", "i.json", "--json", ".json:v")
    assert (code, out, len(err.splitlines())) == (1, "", 2)
    assert err.count("a.tar: sample 'a': .json is no JSON object") == 1
    assert err.count("b.tar: sample 'b': .json is no JSON object") == 1
    assert "with --missing null, what cannot be parsed is null" in err
    assert "2 of 2 shards could not be read" in err
    assert not os.path.exists("i.columns.parquet")
    code, out, err = run("columns", "create", "i.json", "--json", ".json:v", "--missing", "null")
    assert (code, len(err.splitlines())) == (0, 3)  # and that all of the column is null
    assert out.endswith("null, for they cannot be parsed: 2 members\n")


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("query", "train.json", "select 1"), 1, "make them: wids columns create"),
        (("query", "train.json", "select 1", "--csv", "--json"), 2, "exclude each other"),
        (("query", "train.json", "select 1", "-o", "x.csv"), 2, "ends in .parquet"),
        (("query", ".", "select 1"), 1, "there are no columns of these samples"),
        (("query", "d", "select 1"), 1, "there are no .tar files in this directory"),
        (("query", "train.json", "select 1", "--columns", "no.parquet"), 1, "there is no such file"),
        (("columns", "create", "train.json", "--json", ".json"), 2, "names no keys of a JSON object"),
        (("columns", "create", "train.json", "--field", ".cls=key"), 2, "two columns would be called 'key'"),
        (("columns", "create", "none.json"), 1, "none.json"),
        (
            ("columns", "create", "train.json", "--field", ".json:width=width"),
            2,
            "--field: '.json:width=width' has ':' in an extension; give keys of a JSON object to --json",
        ),
        (
            ("columns", "create", "s0.tar"),
            2,
            "say where the table goes (-o FILE), or make an index of these shards first",
        ),
    ],
)
def test_complaints(index, args, code, words):
    """One line that says what to do."""
    os.mkdir("d")
    assert words in complaint(code, *args)


def test_values_that_python_has_not(index):
    """Are printed as text; what Parquet has not, and columns that their names do not tell apart, are complained of."""
    run_ok("columns", "create", index)
    sql = "select date '20000-01-02' d, 'infinity'::timestamp t"
    assert run_ok("query", index, sql, "--csv").startswith("d,t\n20000-01-02,<value out of range")
    assert json.loads(run_ok("query", index, sql, "--json"))["d"] == "20000-01-02"
    assert "20000-01-02" in run_ok("query", index, sql)
    assert "cast it to varchar" in complaint(1, "query", index, "select interval 1 month i", "-o", "x.parquet")
    for flags in (("--json",), ("-o", "x.parquet")):
        assert "several columns are called 'a'" in complaint(1, "query", index, "select 1 a, 2 a", *flags)
    assert not os.path.exists("x.parquet")
    assert run_ok("query", index, "select 1 a, 2 a", "--csv") == "a,a\n1,2\n"


def test_a_misspelt_field(index):
    """Is told, with its rule: all of its column is null. So is one that an earlier run asked for."""
    for rules in (("--field", ".clss=label", "--json", ".json:meta.tags"), ()):
        code, _, err = run("columns", "create", index, *rules)
        assert code == 0
        assert err.splitlines() == [
            f"wids: no sample has a value for the column '{name}' ({rule}): all of it is null"
            for name, rule in (("label", "field .clss"), ("tags", "json .json:meta.tags"))
        ]


def test_a_second_run_keeps_columns(index):
    """It adds what it asks for, and says what is there from before, what is left out, and what has another rule."""
    run_ok("columns", "create", index, "--field", ".cls=label", "--json", ".json:width")
    out = run_ok("columns", "create", index, "--text", ".txt=caption", "--drop", "width")
    assert out.endswith(
        "columns of an earlier run: label\ncolumns that are left out: width\n" + out.splitlines()[-1] + "\n"
    )
    assert run_ok("query", index, "select label, caption from samples limit 1", "--csv").startswith("label,caption\n")
    code, _, err = run("columns", "create", index, "--text", ".cls=label")
    assert (code, err) == (0, "wids: the column 'label' is now text .cls; it was field .cls\n")
    assert "--drop: there is no column 'width'" in complaint(2, "columns", "create", index, "--drop", "width")


def test_columns_of_a_view(index):
    """Are those of its index: the command says so."""
    run_ok("columns", "create", index)
    run_ok("view", index, "--where", '"row" > 1', "-o", "v.json")
    assert run_ok("query", "v.json", 'select count(*) c, max("index") m from samples', "--csv") == "c,m\n4,3\n"
    words = f"v.json: is a view of {index}, and has the columns of that index; make those: wids columns create {index}"
    assert words in complaint(1, "columns", "create", "v.json")
    assert not os.path.exists("v.columns.parquet")
    run_ok("index", "join", index, index, "--prefix", "x", "-o", "joined.json")
    words = f"wids columns create {index}; for fields of {index}, make its columns, and join that table (with_table)"
    assert words in complaint(1, "columns", "create", "joined.json", "--field", ".x.cls=label")


def test_ctrl_c_ends_a_query(index):
    """That would never end by itself; nothing is left of it."""
    run_ok("columns", "create", index)
    sql = "select count(*) from samples, range(10000000000000) r where hash(r.range) = 1"
    begun = (
        "from wids.columns import sql; make = sql._make_view; "
        "sql._make_view = lambda *a: print('begun', make(*a), flush=True)"
    )
    with spawn("query", index, sql, before=begun, env={"TMPDIR": os.getcwd()}) as process:
        assert process.stdout.readline() == "begun None\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, out, err) == (130, "", "wids: interrupted\n")
    assert not [name for name in os.listdir() if name.startswith("wids-sql")]


def test_bad_sql(index):
    """DuckDB's sentence, the SQL, the columns."""
    run_ok("columns", "create", index)
    words = complaint(1, "query", index, "select wdth from samples")
    assert "there is no column 'wdth'" in words
    assert "in: select wdth from samples; the columns of samples are index, shard, row, key, bytes, bin_bytes" in words
    assert "this is DROP" in complaint(1, "query", index, "drop view samples")


def test_columns_that_are_not_there(index):
    """Are named by all commands that take the name of one."""
    run_ok("columns", "create", index, "--field", ".cls=label")
    told = "there is no column 'lable' (did you mean 'label'?); the columns are index, shard, row, key, bytes, label"
    schedule = ("--step", "0")
    for args in (
        ("at", index, *schedule, "--lengths", "lable", "--max-tokens", "9"),
        ("at", index, *schedule, "--buckets", "lable", "--batch-size", "2"),
        ("at", index, *schedule, "--weights", "lable"),
        ("when", index, "0", "--world-size", "2", "--weights", "lable"),
        ("simulate", index, "--world-size", "2", "--lengths", "lable", "--max-tokens", "9"),
    ):
        assert told in complaint(1, *args)


def test_a_condition_is_no_query(index):
    """It is said which command takes one."""
    run_ok("columns", "create", index, "--field", ".cls=label")
    told = complaint(1, "query", index, "label = 3")
    assert told.endswith("a condition alone is for `wids view INDEX --where`; a query is a whole SELECT")
    assert "--where" not in complaint(1, "query", index, "select nothing from samples")

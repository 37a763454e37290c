"""SQL over columns, against lists of Python; and what SQL cannot do."""

import itertools
import os
import re
import shutil
import signal
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import wids
from tests.support import columns as made
from tests.support.children import call_in_child
from tests.support.clocks import PATIENCE_SECONDS, threads_named
from tests.support.examples import some
from wids.columns import sql as sql_module
from wids.columns.sql import SampleTable, find_rows, run_query, within
from wids.errors import ColumnsError, DependencyError, QueryError, is_harmless

COUNTS = (3, 0, 40, 2)
ROWS = made.rows_of(COUNTS)
PREDICATES = {
    "width >= 120 and caption ilike '%OF 3%'": lambda row: (
        (row["width"] or 0) >= 120 and "of 3" in (row["caption"] or "")
    ),
    "label in (1, 3)": lambda row: row["label"] in (1, 3),
    "caption is null or tag = 'red'": lambda row: row["caption"] is None or row["tag"] == "red",
    "not (width > 120)": lambda row: row["width"] is not None and row["width"] <= 120,
    "shard = 2 and row % 7 = 0": lambda row: row["shard"] == 2 and row["row"] % 7 == 0,
    "bytes = (select max(bytes) from samples)": lambda row: row["bytes"] == max(each["bytes"] for each in ROWS),
    "\"key\" > 'k0030' -- a comment": lambda row: row["key"] > "k0030",
    "true": lambda _: True,
    "null": lambda _: False,
    "caption = null": lambda _: False,
    "width <> 103": lambda row: row["width"] not in (None, 103),
    "width is distinct from 103": lambda row: row["width"] != 103,
    "label": lambda row: row["label"] != 0,  # a number is true where it is not 0
    "label in (select label from samples group by label having min(index) < 2);": lambda row: row["label"] < 2,
    "caption like '%\0%' or index = 3::hugeint": lambda row: row["index"] == 3,
}
# What is no single expression, and what reaches beyond the columns.
BAD_PREDICATES = [
    *("", " ", "--", "width >", "'", "(width", "width)", "wdth > 3", "count(*) > 1", "? = 1", "$1", "width > 3\0"),
    *(
        "1=1) union select 1 --",
        "1=1 union select 1",
        "1=1) union (select 1",
        "1=1; drop view samples",
        "1=1; select 1",
    ),
    *("1=1 order by 1", "1=1 limit 3", "1=1 group by 1", "1=1 qualify true", "a) or (b", "1=1 using sample 10%"),
    *(
        "exists(from read_csv('/etc/passwd'))",
        "exists(from '/etc/passwd')",
        "getenv('HOME') = 'x'",
        "exists(from glob('/*'))",
    ),
    *("row_number() over () = 1", "unnest([true])", "caption", "[true]", "label = (select label from samples)"),
    *("true /*", "e'\\x00' = key", "\udcff = key", "caption ~ '('", "caption::int = 1", "index in (from joined_0)"),
    *("exists(from read_text('http://127.0.0.1:1/x'))", "exists(from read_parquet('s3://b/x.parquet'))"),
]
BAD_QUERIES = [
    *("", "drop view samples", "create table t as select 1", "insert into samples values (1)", "select 1; select 2"),
    *(
        "set memory_limit = '10GB'",
        "reset enable_external_access",
        "pragma database_list",
        "attach 'x.db'",
        "call pragma_version()",
    ),
    *(
        "install httpfs",
        "load httpfs",
        "export database 'x'",
        "import database 'x'",
        "prepare v as select 1",
        "use memory",
    ),
    *(
        "copy samples to 'x.csv'",
        "copy (select 1) to 'x.parquet'",
        "copy samples from 'x.csv'",
        "explain analyze select 1",
    ),
    *("create secret (type s3)", "checkpoint", "vacuum", "update extensions", "begin", "detach memory"),
    *("from read_csv('/etc/passwd')", "from '/etc/passwd'", "from read_blob('/etc/passwd')", "from glob('*')"),
    *("from sniff_csv('/etc/passwd')", "from parquet_metadata('other.parquet')", "from 'https://host/x.csv'"),
    *("from enable_logging('QueryLog', storage => 'file', storage_config => {'path': 'log'})", "explain select 1"),
    *("from enable_profiling(save_location => 'p.json', format => 'json')", "from duckdb_secrets()", "select '\udcff'"),
    *(
        "with x as (copy samples to 'x.csv') select 1",
        "from read_duckdb('x.db')",
        "pivot samples on label using sum(row)",
    ),
    *("from query('drop view samples')", "from arrow_scan(1, 2, 3)", "select " + "(" * 5000 + "1" + ")" * 5000),
    *("select getenv('HOME')", "from secret_table", "with x as (insert into samples values (1)) select 1"),
]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """A dataset with columns."""
    index = made.write_dataset(tmp_path_factory.mktemp("sql"), COUNTS)
    made.make_columns(index)
    return index


@pytest.fixture
def dataset(index):
    """The same, open."""
    return wids.ShardListDataset(index)


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """The directory in which hostile SQL would leave something."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("predicate", PREDICATES)
def test_predicates(dataset, predicate):
    """The indices in order, each once."""
    found = dataset.find_rows(predicate)
    assert found.dtype == np.int64
    assert found.tolist() == [row["index"] for row in ROWS if PREDICATES[predicate](row)]


@pytest.mark.parametrize("predicate", BAD_PREDICATES)
def test_bad_predicates(dataset, scratch, predicate):
    """Are errors that have the SQL and the columns; nothing is read or written."""
    with pytest.raises(QueryError) as failed:
        dataset.find_rows(predicate)
    assert failed.value.found == predicate
    told = str(failed.value)
    assert "the columns of samples are index, shard, row, key, bytes, label" in told or "UTF-8 lacks" in told
    assert os.listdir(scratch) == []


@pytest.mark.parametrize("query", BAD_QUERIES)
def test_bad_queries(dataset, scratch, query):
    """Likewise. A variable of the program is no table."""
    secret_table = pa.table({"a": [1]})
    with pytest.raises(QueryError) as failed:
        dataset.query(query)
    assert len(secret_table) == 1
    assert (failed.value.found, os.listdir(scratch)) == (query, [])


def test_texts_of_samples_do_not_act_on_a_terminal(dataset):
    """DuckDB's errors have them, and a traceback shows the cause of an error."""
    with pytest.raises(QueryError, match="there is") as failed:
        dataset.find_rows("error('there is ' || chr(27) || '[31m')")
    assert is_harmless("".join(traceback.format_exception(failed.value)))


NEVER = [
    ("find_rows", "exists(select 1 from range(10000000000000) r where hash(r.range) = index)"),
    ("find_rows", "sleep_ms(100000000) is null"),
    ("query", "select count(*) from range(10000000000000) r where hash(r.range) = 1"),
    ("query", "from range(10000000000000) r where hash(r.range) = 1"),
    ("query", "with recursive t(i) as (select 1 union all select i + 1 from t) select max(i) from t"),
]


def interrupted(ask, sql):
    """What becomes of SQL that never ends when SIGINT comes while DuckDB is at it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a script ignore it
    begun = threading.Event()
    make = sql_module._make_view
    sql_module._make_view = lambda *args: (make(*args), begun.set())

    def interrupt():
        begun.wait(PATIENCE_SECONDS)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    try:
        ask(sql)
    except KeyboardInterrupt:
        return "interrupted", [thread.name for thread in threads_named("wids-sql")]


@pytest.mark.parametrize(("name", "never"), NEVER)
def test_ctrl_c(dataset, name, never):
    """Ends it, as KeyboardInterrupt; DuckDB has stopped by then, and the next query is answered."""
    assert call_in_child(interrupted, getattr(dataset, name), never) == ("interrupted", [])
    assert len(dataset.find_rows("true")) == len(ROWS)


@pytest.mark.parametrize(("name", "never"), NEVER)
def test_a_limit_of_time(dataset, name, never):
    """Ends it, and says so; DuckDB has stopped by then, and the next query is answered."""
    with within(0.05), pytest.raises(QueryError, match=r"longer than 0\.05 seconds"):
        getattr(dataset, name)(never)
    assert threads_named("wids-sql") == []
    assert len(dataset.find_rows("true")) == len(ROWS)


def test_threads(dataset):
    """May ask one dataset at a time."""
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(dataset.find_rows, ["label = 1", "label = 2"] * 12))
    expected = [[row["index"] for row in ROWS if row["label"] == label] for label in (1, 2)] * 12
    assert [rows.tolist() for rows in found] == expected


@pytest.mark.parametrize("not_text", [None, 3, b"true", ["true"]])
def test_what_is_no_text(dataset, not_text):
    """Is no SQL."""
    with pytest.raises(QueryError, match="text"):
        dataset.find_rows(not_text)
    with pytest.raises(QueryError, match="text"):
        dataset.query(not_text)


def test_the_table_itself_stays(index, dataset):
    """SQL may read its file, and cannot write it."""
    path = index.replace(".json", ".columns.parquet")
    before = os.stat(path)
    with pytest.raises(QueryError, match="one SELECT statement is run, and this is COPY"):
        dataset.query(f"copy (select 1) to '{path}'")
    assert os.stat(path) == before


def test_long_sql(dataset):
    """Is cut in messages, not in attributes."""
    predicate = f"index in ({', '.join(map(str, range(10_000)))})"
    assert len(dataset.find_rows(predicate)) == len(ROWS)
    with pytest.raises(QueryError) as failed:
        dataset.find_rows(f"{predicate} and")
    assert (len(str(failed.value)) < 5000, failed.value.found) == (True, f"{predicate} and")


def test_queries(dataset):
    """Aggregates, keywords as names, statements that begin with other words."""
    found = dataset.query("select label, count(*) n from samples group by label order by n desc, label").to_pylist()
    counts = {label: sum(row["label"] == label for row in ROWS) for label in range(5)}
    assert found == [
        {"label": label, "n": n} for label, n in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    ]
    assert dataset.query("from samples order by index").to_pylist() == ROWS
    assert dataset.query("with x as (select max(row) as m from samples) select m from x;").to_pylist() == [{"m": 39}]
    assert dataset.query('select "any" from samples where index = 4').to_pylist() == [{"any": '"1"'}]
    assert dataset.query("describe samples").num_rows == len(ROWS[0])


def test_names_that_are_keywords(dataset):
    """Work in double quotes."""
    more = dataset.with_table(pa.table({"index": [1, 2], "select": [5, 6], "a b": [1, 1], 'q"': [2, 2]}), on="index")
    assert more.find_rows('"select" = 6 and "a b" = 1 and "q""" = 2').tolist() == [2]
    with pytest.raises(QueryError):
        more.find_rows("select = 6")


@pytest.mark.parametrize("name", ["with'quote", "star*[a]?", "label=3", "a space"])
def test_paths_of_any_letters(index, tmp_path, name):
    """A place is a name: no pattern, no text of SQL, no partition of a data set."""
    shutil.copytree(os.path.dirname(index), tmp_path / name)
    dataset = wids.ShardListDataset(str(tmp_path / name / "train.json"))
    assert dataset.query("from samples order by index").to_pylist() == ROWS


def test_no_more_memory_than_allowed():
    """What does not fit, nor the temporary directory, is an error, not the end of the process."""
    with pytest.raises(QueryError, match=r"(?i)memory"):
        run_query(SampleTable(samples=3), "select list(a.range) from range(100000000) a", memory_bytes=1 << 25)


def test_it_spills(monkeypatch, tmp_path):
    """What is more than the memory goes to the temporary directory, which is empty afterwards."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    table = SampleTable(samples=3_000_000)
    query = "select count(*) n from (select index + 0.5 as x from samples order by hash(index)) where x > 0"
    assert run_query(table, query, memory_bytes=48 << 20).to_pylist() == [{"n": 3_000_000}]
    assert os.listdir(tmp_path) == []


def test_without_columns(tmp_path):
    """Neither a file nor a table: the error says what to do."""
    dataset = wids.ShardListDataset(made.write_dataset(tmp_path, (2,)))
    assert dataset.column_names == ["index"]
    for ask in (dataset.find_rows, dataset.query):
        with pytest.raises(ColumnsError, match="make them: wids columns create, or attach a table by with_table"):
            ask("true")
    for shards in (str(tmp_path), [(shard["url"], shard["nsamples"]) for shard in dataset.shards]):
        plain = wids.ShardListDataset(shards, base=None if shards == str(tmp_path) else tmp_path)
        for ask in (plain.where, plain.query):
            with pytest.raises(
                ColumnsError, match=r"make an index and them \(wids index create, wids columns create\) and"
            ):
                ask("label = 3" if ask == plain.where else "select label from samples")


def test_no_samples(tmp_path):
    """Of nothing, nothing."""
    index = made.write_dataset(tmp_path, (0, 0))
    made.make_columns(index)
    dataset = wids.ShardListDataset(index)
    assert dataset.find_rows("true").tolist() == []
    assert dataset.query("select count(*) n from samples").to_pylist() == [{"n": 0}]
    assert (
        dataset.with_table(pa.table({"key": pa.array([], pa.string()), "a": []}), on="key").find_rows("a = 1").tolist()
        == []
    )


WRONG = {
    "index": pa.array(list("ab") * 22 + ["c"]),
    "key": pa.array(range(45)),
    "shard": pa.array(range(45), pa.int64()),
    "label": pa.array([{"a": 1}] * 45),
    "cls_bytes": pa.array([1.5] * 45),
}


@pytest.mark.parametrize("name", WRONG)
def test_columns_of_other_types(index, tmp_path, name):
    """Than the file says of itself: it is not taken."""
    shutil.copytree(os.path.dirname(index), tmp_path / "d")
    path = tmp_path / "d/train.columns.parquet"
    table = pq.read_table(path)
    changed = table.set_column(table.column_names.index(name), name, WRONG[name])
    pq.write_table(changed.replace_schema_metadata(table.schema.metadata), path)
    dataset = wids.ShardListDataset(str(tmp_path / "d/train.json"))
    for use in (lambda: dataset.find_rows("true"), dataset.with_columns, lambda: dataset.column_names):
        with pytest.raises(ColumnsError, match="contradicts itself"):
            use()


def test_samples_that_are_grouped_otherwise(index):
    """The file has those of `wids columns create`; it is used only if a program names it."""
    dataset = wids.ShardListDataset(index, key_rule="last-dot")
    with pytest.raises(ColumnsError, match="key_rule or group of its own"):
        dataset.find_rows("true")
    named = dataset.with_columns(False, place=index.replace(".json", ".columns.parquet"))
    assert len(named.find_rows("true")) == len(ROWS)


def test_an_index_that_lies(tmp_path, index):
    """A column index with other numbers than those of samples is found out."""
    path = tmp_path / "x.parquet"
    table = pq.read_table(index.replace(".json", ".columns.parquet"))
    pq.write_table(table.set_column(0, "index", pa.array(range(5, 5 + len(table)))), path)
    with pytest.raises(QueryError, match="numbers that no sample has"):
        find_rows(SampleTable(samples=len(table), path=str(path)), "true")
    pq.write_table(table.set_column(0, "index", pa.array([7] * len(table))), path)
    assert find_rows(SampleTable(samples=len(table), path=str(path)), "true").tolist() == [7]
    pq.write_table(table.set_column(0, "index", pa.array([None] * len(table), pa.int64())), path)
    with pytest.raises(QueryError, match="numbers that no sample has"):
        find_rows(SampleTable(samples=len(table), path=str(path)), "true")


def test_without_duckdb(dataset, monkeypatch):
    """The sentence names the extra; importing wids imports neither package."""
    real = sql_module.import_duckdb.__globals__["importlib"].import_module

    def import_module(name):
        if name == "duckdb":
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr("wids.columns.packages.importlib.import_module", import_module)
    with pytest.raises(DependencyError, match=r"SQL takes duckdb; install it: pip install 'wids\[views\]'"):
        dataset.find_rows("true")


@pytest.mark.parametrize("where", ["pages", "footer"])
def test_damaged_values(index, tmp_path, where):
    """A bit that the disk has changed, of values or of what the footer says of them, is an error or changes nothing."""
    sound, path = Path(index.replace(".json", ".columns.parquet")).read_bytes(), tmp_path / "damaged.parquet"
    path.write_bytes(sound)
    chunk = pq.read_metadata(path).row_group(0).column(pq.read_schema(path).get_field_index("label"))
    begin, bits = chunk.dictionary_page_offset, (8,)
    places = range(begin, begin + chunk.total_compressed_size)
    if where == "footer":  # the largest and the smallest label as eight bytes each, after the same in an older form
        footer, bits = len(sound) - 8 - int.from_bytes(sound[-8:-4], "little"), (1, 2)
        limits = b"\x08" + (4).to_bytes(8, "little") + b"\x18\x08" + (0).to_bytes(8, "little")
        at = sound.index(limits, sound.index(limits, footer) + 1)
        places = range(at + 1, at + len(limits))
    noticed, changes = 0, some(itertools.product(places, bits), every=4 if where == "pages" else 1)
    for number, (at, bit) in enumerate(changes, 1):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ bit]) + sound[at + 1 :])
        os.utime(path, ns=(number, number))
        try:
            found = find_rows(SampleTable(samples=len(ROWS), path=os.fspath(path)), "label = 4")
            (largest,) = run_query(
                SampleTable(samples=len(ROWS), path=os.fspath(path)), "select max(label) from samples"
            )
        except (ColumnsError, QueryError):
            noticed += 1
        else:
            assert found.tolist() == [row["index"] for row in ROWS if row["label"] == 4], (at, bit)
            assert largest.to_pylist() == [4], (at, bit)
    assert noticed > len(changes) // (2 * len(bits))


def test_columns_that_are_not_read(index, tmp_path):
    """Are not verified: a damaged one does not keep others from being asked, and is found where all are read."""
    path = tmp_path / "damaged.parquet"
    shutil.copy(index.replace(".json", ".columns.parquet"), path)
    chunk = pq.read_metadata(path).row_group(0).column(pq.read_schema(path).get_field_index("caption"))
    with open(path, "r+b") as file:
        file.seek(chunk.dictionary_page_offset)
        file.write(bytes(chunk.total_compressed_size))
    table = SampleTable(samples=len(ROWS), path=os.fspath(path))
    assert find_rows(table, "Label = 4 and index >= 0").tolist() == [r["index"] for r in ROWS if r["label"] == 4]
    ask = "select label as l, count(*) n from samples s group by l order by n desc, s.label limit 1"
    assert run_query(table, ask).to_pylist() == [{"l": 0, "n": 9}]
    for sql in (
        *("from samples", "select s from samples s", "select columns('c.*') from samples", "select #8 from samples"),
        *(
            "select count(*) from samples natural join samples b",
            "select label from samples s(a, b, c, d, e, f, g, label)",
        ),
        *(
            "unpivot (select * from samples) on label",
            "select max(caption) from samples",
            'select "Caption" from samples',
        ),
        "select label from samples where exists (from samples b where b.caption = samples.key)",
    ):
        with pytest.raises(ColumnsError, match="is damaged"):
            run_query(table, sql)


def test_duckdb_runs_what_it_is_given():
    """The statements that are refused here are ones that DuckDB knows: else the tests above would show nothing."""
    connection = duckdb.connect()
    kinds = {
        sql_module._kind_of(statement)
        for query in BAD_QUERIES[1:]
        if "\udcff" not in query and "((" not in query
        for statement in connection.extract_statements(query)
    }
    assert {"DROP", "CREATE", "INSERT", "SET", "PRAGMA", "ATTACH", "COPY", "EXPLAIN", "EXPORT", "PREPARE"} <= kinds
    connection.close()


CLASSES = ("cat", "dog", "it's", "köp", "dog 2", "twice", "twice")


@pytest.fixture
def labelled():
    """The labels 0 to 6 and null, as a table; also as texts."""
    labels = [*range(7), None]
    table = pa.table({"label": labels, "caption": ["dog" if label == 3 else f"ü{label}" for label in labels]})
    return SampleTable(samples=8, joined=(table,), classes=CLASSES)


@pytest.mark.parametrize(
    ("predicate", "rows"),
    [
        ("label = 'dog'", [1]),
        ("'dog' = LABEL", [1]),
        ("label = 'it''s'", [2]),
        ("caption <> 'ü5' and \"label\" in ('köp', 'cat', 4)", [0, 3, 4]),
        ("label not in ('cat', 'dog', 'it''s', 'köp')", [4, 5, 6]),
        ("label <> 'cat' and label < 2", [1]),
        ("label is not distinct from 'köp'", [3]),
        ("samples.label = 'dog 2' or label = '5'", [4, 5]),
        ("caption = 'dog'", [3]),
        ("caption in ('dog', 'ü0') and label = 'cat'", [0]),
    ],
)
def test_names_of_classes(labelled, predicate, rows):
    """A column of their numbers is compared with them as if the numbers were written; other columns are not."""
    assert find_rows(labelled, predicate).tolist() == rows
    query = f'select s."index" from samples s where {predicate.replace("samples.", "s.")} order by 1'
    assert run_query(labelled, query).column(0).to_pylist() == rows
    assert sql_module.count_nulls(labelled, "label = 'dog'") == 1


@pytest.mark.parametrize(
    ("predicate", "words"),
    [
        ("label = 'cats'", "there is no class 'cats' (did you mean 'cat'?)"),
        ("label in ('cat', 'nobody')", "there is no class 'nobody'"),
        ("label = 'twice'", "2 classes are called 'twice'"),
    ],
)
def test_names_that_no_class_has(labelled, predicate, words):
    """The error names the class, and one with a similar name."""
    with pytest.raises(QueryError, match=re.escape(words)):
        find_rows(labelled, predicate)


def test_a_name_that_a_statement_gives(labelled):
    """A column that it calls like one of classes is not of classes."""
    query = "select count(*) from (select caption as label from samples) where label = 'dog'"
    assert run_query(labelled, query).column(0).to_pylist() == [1]

"""Columns that member tables give: which fields samples have, with a file of columns beside the index and without."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import wids
from tests.support.cli import complaint, run, run_ok
from tests.support.columns import make_columns, rows_of, write_dataset
from tests.support.shards import write_json, write_tar
from wids.core.tables.published_tables import PublishedTables
from wids.errors import ColumnsError, FetchError, InputError, QueryError
from wids.testing import Server

pytestmark = pytest.mark.usefixtures("own_cache")

COUNTS = (9, 0, 14, 7)
ROWS = rows_of(COUNTS, payload=3)
# Predicates that need no column that was made of members, and what they say of a row.
CONDITIONS = {
    "has_txt": lambda row: row["caption"] is not None,
    "HAS_CLS and not has_json": lambda row: row["width"] is None,
    "txt_bytes > 9 or json_bytes is null": lambda row: len(row["caption"] or "") > 9 or row["width"] is None,
    "bytes > 60": lambda row: row["bytes"] > 60,
    "key >= 'k0007' and has_txt": lambda row: row["key"] >= "k0007" and row["caption"] is not None,
    'shard = 2 and "row" < 3': lambda row: row["shard"] == 2 and row["row"] < 3,
    'has_txt and "index" < 5': lambda row: row["caption"] is not None and row["index"] < 5,
}


@pytest.fixture(params=[False, True], ids=["without a file", "with a file"])
def dataset(request, tmp_path):
    """The samples, with columns beside their index or without."""
    index = write_dataset(tmp_path, COUNTS, payload=3)
    if request.param:
        make_columns(index)
    return wids.ShardListDataset(index, transformations=[])


@pytest.mark.parametrize("predicate", CONDITIONS)
def test_predicates(dataset, predicate):
    """They choose the same samples, of the dataset and of a view, whether a file of columns is there or not."""
    expected = [row["index"] for row in ROWS if CONDITIONS[predicate](row)]
    assert expected
    assert dataset.find_rows(predicate).tolist() == expected
    kept = [each for each in range(len(ROWS)) if each % 3]
    view = dataset.select(kept)
    if "index" not in predicate:  # which a view counts anew
        assert [sample["__key__"] for sample in view.where(predicate)] == [
            ROWS[each]["key"] for each in kept if each in expected
        ]


def test_queries(dataset):
    """Names of columns may stand anywhere, and names of a query's own are let alone."""
    sql = """with t as (select has_txt as has_words, txt_bytes from samples)
             select has_words, count(*) as n, sum(txt_bytes)::bigint as all_bytes
             from t group by 1 order by all_bytes"""
    texts = [len(row["caption"]) for row in ROWS if row["caption"] is not None]
    assert dataset.query(sql).to_pylist() == [
        {"has_words": True, "n": len(texts), "all_bytes": sum(texts)},
        {"has_words": False, "n": len(ROWS) - len(texts), "all_bytes": None},
    ]
    assert dataset.read_column("has_txt").tolist() == [row["caption"] is not None for row in ROWS]
    assert dataset.select([5, 8]).query('select "index", key, has_txt from samples order by 1').to_pylist() == [
        {"index": 0, "key": "k0005", "has_txt": True},
        {"index": 1, "key": "k0008", "has_txt": False},
    ]


def test_fields_that_no_sample_has(dataset, caplog):
    """Are false for all samples, so that one predicate fits many data sets; one warning says which fields there are."""
    assert dataset.find_rows("has_jpg or has_txt or has_png").tolist() == dataset.find_rows("has_txt").tolist()
    words = (
        "no sample has a field for has_jpg, has_png: false for all; the fields of the samples are .bin (has_bin), "
        ".cls (has_cls), .json (has_json), .txt (has_txt)"
    )
    assert caplog.messages == [words]
    caplog.clear()
    assert len(dataset.where("not has_Text and has_cls")) == len(ROWS)
    assert dataset.read_column("has_text").tolist() == [False] * len(ROWS)
    assert [message.partition(";")[0] for message in caplog.messages] == [
        "no sample has a field for has_text: false for all"
    ] * 2


def test_names_that_are_no_fields(dataset, caplog):
    """Sizes of fields that no sample has are an error; names that a query gives itself are let alone."""
    words = r"no column 'text_bytes'.*the fields of the samples are \.bin \(has_bin\), "
    for ask in (
        lambda: dataset.where("has_cls and text_bytes > 3"),
        lambda: dataset.query("select text_bytes, has_cls from samples"),
    ):
        with pytest.raises(QueryError, match=words):
            ask()
    with pytest.raises(QueryError, match="syntax error"):
        dataset.where("has_txt and (")
    caplog.clear()
    for sql in (
        "with t as (select has_txt as has_words from samples) select has_words from t where has_words",
        "with t(has_words) as (select has_txt from samples) select t.has_words from t where t.has_words",
        "select has_words from (select has_txt from samples) as t(has_words) where has_words",
        "select has_txt as has_words from samples where has_words",
    ):
        assert dataset.query(sql).num_rows == 22, sql
    assert not caplog.messages


def test_fields_by_the_names_of_the_dataset(dataset, caplog):
    """``fields={"words": "text;txt"}``: has_words is true where a sample has one of these; views know it, too."""
    named = {"words": "caption;txt", "meta": ".JSON", "image": "jpg;png", ".bin": "bin"}
    named = wids.ShardListDataset(dataset._collection.index_url, transformations=[], fields=named)
    expected = dataset.find_rows("has_txt or has_json").tolist()
    assert named.find_rows("has_words or has_meta").tolist() == expected
    assert named.find_rows("has_bin and has_txt").tolist() == dataset.find_rows("has_txt").tolist()
    assert (
        named.select(range(9)).find_rows("has_meta").tolist() == dataset.select(range(9)).find_rows("has_json").tolist()
    )
    assert not caplog.messages
    assert named.find_rows("has_image or has_words").tolist() == dataset.find_rows("has_txt").tolist()
    assert caplog.messages[0].startswith(
        "no sample has a field for has_image: false for all; the fields of the samples"
    )
    twice = wids.ShardListDataset(dataset._collection.index_url, fields={"a.b": "txt", "a_b": "cls"})
    with pytest.raises(InputError, match=r"a\.b and a_b would both be has_a_b"):
        twice.where("has_a_b")


def test_columns_that_are_not_there(dataset):
    """Are named, with the one that was meant and all that there are, wherever a program names one."""
    table = pa.table({"index": list(range(len(ROWS))), "length": list(range(len(ROWS)))})
    dataset = dataset.with_table(table, on="index")
    told = r"there is no column 'lenght' \(did you mean 'length'\?\); (in: .*; )?the columns (of samples )?are index, "
    sampler = wids.ChunkedSampler(dataset)
    for ask in (
        lambda: dataset.read_column("lenght"),
        lambda: dataset.find_rows("lenght > 3"),
        lambda: dataset.query("select lenght from samples"),
        lambda: dataset.query("select samples.lenght from samples"),
        lambda: wids.ChunkedSampler(dataset, weights="lenght"),
        lambda: wids.BucketBatchSampler(sampler, lengths="lenght", max_tokens=30),
        lambda: wids.BucketBatchSampler(sampler, buckets="lenght", batch_size=3),
    ):
        with pytest.raises((InputError, QueryError), match=told):
            ask()
    with pytest.raises(InputError, match=r"there is no column 3; the columns are index"):
        dataset.read_column(3)
    with pytest.raises(QueryError, match="there is no column 'red'; a text has single quotes: 'red'"):
        dataset.where('key = "red"')


def test_with_tables_of_the_users(dataset):
    """Joined columns go first; a name of theirs is theirs."""
    table = pa.table({"index": list(range(len(ROWS))), "score": list(range(len(ROWS))), "has_cls": [False] * len(ROWS)})
    scored = dataset.with_table(table, on="index")
    assert scored.find_rows("score < 6 and has_txt").tolist() == [1, 2, 3, 5]
    assert scored.find_rows("has_cls").tolist() == []


def test_what_is_left_out_is_counted(dataset, caplog):
    """Where the size of a field that a sample lacks is compared."""
    assert len(dataset.where("txt_bytes < 1000")) == 22
    assert "8 of 30 samples are left out because 'txt_bytes < 1000' is null" in caplog.text


def test_other_columns_are_not_looked_for_in_shards(tmp_path):
    """A predicate with a name that member tables cannot have is refused before one is read."""
    index = write_dataset(tmp_path, (3, 2))
    dataset = wids.ShardListDataset(index)
    for k in range(2):
        os.remove(tmp_path / f"s{k}.tar")
    for predicate in ("label = 1", "has_txt and label = 1"):
        with pytest.raises(
            ColumnsError, match=r"there are no (other )?columns of these samples.*; make them: wids columns"
        ):
            dataset.where(predicate)
    with pytest.raises(wids.errors.ShardNotFoundError):
        dataset.where("has_txt")
    assert dataset.find_rows("shard = 1").tolist() == [3, 4]  # for that no shard is needed


def write_odd(directory):
    """Two samples with names that SQL would need quotes for, or that differ in case, and their index."""
    members = {"a.seg.png": b"1", "a.left-eye.JPG": b"22", "b.left-eye.jpg": b"333", "b.x.y": b"", "b.x_y": b""}
    write_tar(directory / "s.tar", members)
    return write_json(directory / "i.json", {"wids_version": 1, "shardlist": [{"url": "s.tar", "nsamples": 2}]})


@pytest.mark.parametrize("has_file", [False, True])
def test_names_of_fields(tmp_path, has_file):
    """Dots and dashes are underscores, case does not matter; two fields of one name are an error."""
    index = write_odd(tmp_path)
    if has_file:
        run_ok("columns", "create", index)
    dataset = wids.ShardListDataset(index)
    assert dataset.find_rows("has_seg_png").tolist() == [0]
    assert dataset.find_rows("has_left_eye_jpg").tolist() == [0, 1]
    assert dataset.read_column("left_eye_jpg_bytes").tolist() == [2, 3]
    with pytest.raises(InputError, match=r"\.x\.y and \.x_y would both be has_x_y; ask for their sizes"):
        dataset.where("has_x_y")
    assert dataset.find_rows("x_y_bytes is not null and x_y_bytes_2 is not null").tolist() == [1]


def test_samples_that_are_grouped_otherwise(tmp_path):
    """Of a dataset with a rule of its own, fields are those of its samples."""
    index = write_odd(tmp_path)
    rows = [{"url": "s.tar", "nsamples": 5}]
    dataset = wids.ShardListDataset(write_json(index, {"wids_version": 1, "shardlist": rows}), key_rule="last-dot")
    assert [dataset.keys[int(i)] for i in dataset.find_rows("has_jpg")] == ["a.left-eye", "b.left-eye"]
    assert not len(dataset.where("has_seg_png"))


def test_more_fields_than_a_file_has_sizes_of(tmp_path):
    """A file of columns says nothing of them, and member tables do."""
    write_tar(tmp_path / "s.tar", {f"{k}.f{k}": b"x" for k in range(300)})
    index = write_json(tmp_path / "i.json", {"wids_version": 1, "shardlist": [{"url": "s.tar", "nsamples": 300}]})
    code, _, err = run("columns", "create", index)
    assert (code, err) == (0, "wids: the samples have more than 256 different fields: no columns of their sizes\n")
    assert wids.ShardListDataset(index).find_rows("has_f7 or has_f299").tolist() == [7, 299]


def test_counts_that_are_wrong(tmp_path, caplog):
    """Samples that are repeated, because a shard has fewer than the index says, have their fields."""
    write_tar(tmp_path / "s.tar", {"a.txt": b"", "b.cls": b"1"})
    rows = [{"url": "s.tar", "nsamples": 5}]
    index = write_json(tmp_path / "i.json", {"wids_version": 1, "shardlist": rows})
    with pytest.raises(wids.errors.CountMismatchError):
        wids.ShardListDataset(index).where("has_cls")
    dataset = wids.ShardListDataset(index, on_count_mismatch="warn")
    assert dataset.find_rows("has_cls").tolist() == [1, 3]
    assert dataset.read_column("key").tolist() == [dataset[i]["__key__"] for i in range(5)]
    assert "holds 2 samples, and the index says 5" in caplog.text


def test_sizes_that_are_damaged_in_the_file(tmp_path):
    """has_FIELD is made of a column of the file, whose checksums are compared for it, too."""
    index = write_dataset(tmp_path, COUNTS, payload=3)
    make_columns(index)
    path = tmp_path / "train.columns.parquet"
    data = bytearray(path.read_bytes())
    chunk = pq.read_metadata(path).row_group(0).column(pq.read_schema(path).get_field_index("txt_bytes"))
    data[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 1
    path.write_bytes(data)
    dataset = wids.ShardListDataset(index)
    for ask in (lambda: dataset.where("has_txt"), lambda: dataset.query("select has_txt from samples")):
        with pytest.raises(ColumnsError, match="column 'txt_bytes' is damaged"):
            ask()
    assert len(dataset.where("has_cls")) == len(ROWS)


# --- remote shards


@pytest.fixture
def server(tmp_path):
    """A server of the shards; `index create` of each test says what there is beside them."""
    os.mkdir(tmp_path / "www")
    write_dataset(tmp_path / "www", COUNTS, payload=3)
    with Server(tmp_path / "www") as found:
        yield found


def tars_asked(server):
    """The shards of which something was asked for."""
    return {path for path in server.requests if path.endswith(".tar")}


@pytest.mark.parametrize("is_packed", [False, True])
def test_published_tables(server, tmp_path, is_packed):
    """They are read, several at a time, and no byte of a shard is."""
    index = tmp_path / "www" / "train.json"
    shards = [tmp_path / "www" / f"s{k}.tar" for k in (0, 2, 3)]
    os.unlink(index)
    run_ok("index", "create", *shards, "-o", index, *["--members"][is_packed:])
    if is_packed:
        run_ok("index", "tables", index)
    dataset = wids.ShardListDataset(f"{server.url}/train.json")
    assert dataset.find_rows("has_txt").tolist() == [row["index"] for row in ROWS if row["caption"] is not None]
    assert len(dataset.select(range(9)).where("not has_txt")) == 3
    assert not tars_asked(server)


def test_without_published_tables(server, tmp_path):
    """It is an error that says what helps, and nothing is downloaded; what is in the cache is known."""
    dataset = wids.ShardListDataset(f"{server.url}/train.json", prefetch=False)
    words = (
        r"s0\.tar: the shard is not on this machine, .* publish tables \(wids index create --members.*columns create"
    )
    with pytest.raises(ColumnsError, match=words):
        dataset.where("has_txt")
    assert not tars_asked(server)
    dataset[0]
    dataset.close()
    assert len(dataset.select(range(9)).where("has_txt")) == 6
    with pytest.raises(ColumnsError, match=r"s2\.tar: "):
        dataset.where("has_txt")
    assert tars_asked(server) == {"/s0.tar"}


def test_a_table_of_another_version(server, tmp_path):
    """It is not taken for the shard's."""
    index = tmp_path / "www" / "train.json"
    os.unlink(index)
    run_ok("index", "create", tmp_path / "www" / "s0.tar", "-o", index, "--members")
    write_tar(tmp_path / "www" / "s0.tar", {"a.cls": b"1" * 20_000})
    run_ok("index", "create", tmp_path / "www" / "s0.tar", "-o", index)
    with pytest.raises(wids.errors.TableError, match="another version"):
        wids.ShardListDataset(f"{server.url}/train.json").where("has_cls")


def test_a_server_that_fails(server, monkeypatch):
    """Is not taken for one without tables."""

    def fail(*_, **__):
        raise FetchError("the server is down")

    dataset = wids.ShardListDataset(f"{server.url}/train.json")
    monkeypatch.setattr(PublishedTables, "read", fail)
    with pytest.raises(FetchError, match="the server is down"):
        dataset.where("has_txt")
    assert not tars_asked(server)


def test_local_shards_that_are_to_be_copied(tmp_path):
    """Are read where they are, and not copied for that."""
    index = write_dataset(tmp_path, (3, 2))
    dataset = wids.ShardListDataset(index, cache_local=True, cache_dir=tmp_path / "cache")
    assert dataset.find_rows("has_cls").tolist() == [0, 1, 2, 3, 4]
    assert not os.path.exists(tmp_path / "cache") or not [f for f in os.listdir(tmp_path / "cache") if "tar" in f]


# --- commands


def test_commands(tmp_path):
    """`wids view --where` and `wids query`, of an index and of a directory of tars, without a file of columns."""
    index = write_dataset(tmp_path, (4, 3))
    for place in (index, tmp_path):
        told = run_ok("view", place, "--where", "has_txt AND NOT has_json", "-o", tmp_path / "view.json")
        assert "2 of 7 samples, in 2 shards" in told
        os.remove(tmp_path / "view.json")
        assert run_ok("query", place, "select key from samples where not has_txt", "--csv") == "key\nk0000\nk0004\n"
    error = complaint(1, "query", index, "select label, key from samples")
    assert "the fields of the samples are .bin (has_bin)" in error
    assert "other columns: wids columns create" in error

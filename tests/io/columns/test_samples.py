"""Views by SQL, the columns of views, and what samplers read of columns."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch.utils.data
from torch.utils.data import DataLoader

import wids
from tests.support.cli import complaint, run_ok
from tests.support.columns import make_columns, rows_of, write_dataset
from tests.support.examples import examples
from tests.support.shards import write_index, write_tar
from wids.columns import mapped
from wids.columns.create import create_columns
from wids.columns.spec import parse_spec
from wids.errors import ColumnsError, InputError, QueryError
from wids.jobs.index_create import create_index

pytestmark = pytest.mark.usefixtures("own_cache")

COUNTS = (9, 0, 14, 7)
ROWS = rows_of(COUNTS)
SIZES = np.array([row["label"] * 2 + 1 for row in ROWS])
CONDITIONS = {
    "label = 3": lambda row: row["label"] == 3,
    "width >= 110 and caption is not null": lambda row: (row["width"] or 0) >= 110 and row["caption"] is not None,
    "tag in ('red', 'blue')": lambda row: row["tag"] in ("red", "blue"),
    '"row" % 2 = 0 or shard = 2': lambda row: row["row"] % 2 == 0 or row["shard"] == 2,
    "false": lambda _: False,
}


@pytest.fixture
def index(tmp_path):
    """An index with columns beside it."""
    path = write_dataset(tmp_path, COUNTS)
    make_columns(path)
    return path


@pytest.fixture
def dataset(index):
    """The dataset of that index."""
    return wids.ShardListDataset(index, transformations=[])


def keys(dataset):
    """The key of each sample."""
    return [sample["__key__"] for sample in dataset]


@pytest.mark.parametrize("seed", range(examples(40)))
def test_chains(index, tmp_path, seed):
    """Chains of predicates and other selections leave what the same choices leave of a list; saved ones, too."""
    rng = random.Random(seed)
    view, left = wids.ShardListDataset(index, transformations=[]), ROWS
    for _ in range(rng.randrange(1, 4)):
        if rng.random() < 0.7:
            text = rng.choice(list(CONDITIONS))
            view, left = view.where(text), [row for row in left if CONDITIONS[text](row)]
        else:
            chosen = sorted(rng.sample(range(len(left)), len(left) // 2))
            view, left = view.select(chosen), [left[i] for i in chosen]
    assert keys(view) == [row["key"] for row in left]
    told = view.query('select "index", key, label from samples order by 1').to_pylist()
    assert told == [{"index": i, "key": row["key"], "label": row["label"]} for i, row in enumerate(left)]
    assert view.find_rows("label < 2").tolist() == [i for i, row in enumerate(left) if row["label"] < 2]
    view.save(tmp_path / "view.json")
    opened = wids.ShardListDataset(tmp_path / "view.json", transformations=[])
    assert keys(opened) == keys(view)
    assert keys(opened.where("label = 1")) == [row["key"] for row in left if row["label"] == 1]


def test_split_by_a_column(index, tmp_path):
    """Of a view as of the dataset; by SQL over columns, by which missing values get one; and by a command."""
    dataset = wids.ShardListDataset(index, transformations=[])
    labels = {row["key"]: row["label"] for row in ROWS}
    parts = dataset.split(0.5, 0.5, by="label", seed=1)
    assert sorted(keys(parts[0]) + keys(parts[1])) == sorted(labels)
    found = [{labels[key] for key in keys(part)} for part in parts]
    assert found[0]
    assert found[1]
    assert found[0].isdisjoint(found[1])
    of_a_view = dataset.where("label < 3").split(0.5, 0.5, by="label", seed=1)
    assert [keys(part) for part in of_a_view] == [[key for key in keys(part) if labels[key] < 3] for part in parts]
    by_text = dataset.split(0.5, 0.5, by="cast(label as varchar)", seed=1)
    assert [keys(part) for part in by_text] == [keys(part) for part in parts]
    with pytest.raises(InputError, match=r"by='tag': \d+ of 30 samples have no value.*coalesce\(column, key\)"):
        dataset.split(0.5, 0.5, by="tag")
    assert sum(map(len, dataset.split(0.5, 0.5, by="coalesce(tag, key)"))) == len(ROWS)
    with pytest.raises(InputError, match="labl"):
        dataset.split(0.5, 0.5, by="labl")
    paths = [str(tmp_path / name) for name in ("a.json", "b.json")]
    outputs = [word for path in paths for word in ("-o", path)]
    text = run_ok("index", "split", index, "--fractions", "0.5,0.5", "--by", "label", "--seed", "1", *outputs)
    assert [line.partition(": ")[2].partition(", ")[2] for line in text.splitlines()] == [
        f"{len(part)} samples" for part in parts
    ]
    assert [keys(wids.ShardListDataset(path, transformations=[])) for path in paths] == [keys(part) for part in parts]
    assert "part 0 of split(0.5, 0.5, by='label', seed=1)" in str(json.loads(Path(paths[0]).read_text())["made_by"])
    for bad in (["--by", "label"], ["--by", "3", "--fractions", "0.5,0.5"], ["--by", "0"]):
        assert "say how" in complaint(2, "index", "split", index, *bad)
    assert "--columns and --seed" in complaint(2, "index", "split", index, "--by", "2", "--seed", "3")


def test_nulls_are_counted(index, caplog):
    """Samples that a predicate leaves out because a column has no value; those for which it is false are no news."""
    dataset = wids.ShardListDataset(index, transformations=[])
    without = sum(row["tag"] is None for row in ROWS)
    view = dataset.where("tag <> 'red' -- any")
    assert keys(view) == [row["key"] for row in ROWS if row["tag"] == "blue"]
    said = f"where: {without} of {len(ROWS)} samples are left out because \"tag <> 'red' -- any\" is null for them"
    assert caplog.messages == [f"{said}: a column that it names has no value"]
    caplog.clear()
    dataset.where("label = 3")
    dataset.where("tag <> 'red' or tag is null")
    assert not caplog.records
    dataset.where("label = 33")
    assert "a view without samples: where label = 33: 0 of 30" in caplog.text


def test_large_integers_of_which_some_are_missing(tmp_path):
    """Are read as they are, and not as the floats that are next to them."""
    write_tar(
        tmp_path / "s.tar", {f"{k}.cls": text for k, text in enumerate((b"9007199254740993", b"2"))} | {"z.txt": b""}
    )
    index = tmp_path / "train.json"
    create_index([str(tmp_path)], str(index))
    create_columns(str(index), str(tmp_path / "train.columns.parquet"), parse_spec(fields=[".cls=label"]))
    dataset = wids.ShardListDataset(index)
    assert dataset.read_column("label").tolist() == [9007199254740993, 2, None]
    assert dataset.select([1, 2]).read_column("label").dtype == np.float64


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_columns_come_into_samples_of_views(index, context):
    """The row of the sample, not of its place in the view; own and joined ones, in workers too."""
    scores = pa.table({"key": [row["key"] for row in ROWS], "score": [row["index"] * 2 for row in ROWS]})
    dataset = wids.ShardListDataset(index, transformations=[]).with_columns(["label"])
    view = dataset.with_table(scores, on="key", fields=True).where("score >= 10 and label = 2")
    expected = [(row["label"], row["index"] * 2) for row in ROWS if row["index"] >= 5 and row["label"] == 2]
    assert [(sample["label"], sample["score"]) for sample in view] == expected
    loader = DataLoader(view, batch_size=3, num_workers=2, multiprocessing_context=context, collate_fn=list)
    assert [(sample["label"], sample["score"]) for batch in loader for sample in batch] == expected


@pytest.mark.parametrize("has_columns", [True, False])
def test_a_table_is_joined_to_a_view(index, tmp_path, caplog, has_columns):
    """By key, also to one that was opened from its file; the samples of the view alone have to be in it."""
    if not has_columns:
        index = write_dataset(tmp_path / "plain", COUNTS)
    chosen = ROWS[4:20:3]
    wids.ShardListDataset(index).select([row["index"] for row in chosen]).save(tmp_path / "view.json")
    scores = pa.table({"key": [row["key"] for row in chosen], "score": [row["index"] * 2 for row in chosen]})
    opened = wids.ShardListDataset(tmp_path / "view.json", transformations=[])
    view = opened.with_table(scores, on="key", missing="error", fields=True)
    assert [sample["score"] for sample in view] == [row["index"] * 2 for row in chosen]
    assert keys(view.where("score >= 20")) == [row["key"] for row in chosen if row["index"] >= 10]
    with pytest.raises(ColumnsError, match=r"2 of 6 samples have no row in the table: index 0, 1;"):
        opened.with_table(scores.slice(2), on="key", missing="error")
    assert not caplog.records


@pytest.mark.parametrize("kind", [str, Path])
def test_columns_that_lie_elsewhere(index, tmp_path, kind):
    """They are told by a path, of either kind."""
    place = shutil.move(index.removesuffix(".json") + ".columns.parquet", tmp_path / "elsewhere.parquet")
    view = wids.ShardListDataset(index, transformations=[]).with_columns(fields=False, place=kind(place))
    assert keys(view.where("label = 1")) == [row["key"] for row in ROWS if row["label"] == 1]
    assert "label" not in view[0]


def table_of(left, rng):
    """A table for about half of these rows, in any order, and for others that are not there: (on, table, values)."""
    on = rng.choice(["key", "index"])
    chosen = rng.sample(range(len(left)), len(left) // 2)
    values = {i: rng.randrange(1000) for i in chosen}
    names = [left[i]["key"] if on == "key" else i for i in chosen] + (["nobody"] if on == "key" else [])
    kind = pa.string() if on == "key" else pa.int64()
    return on, pa.table({on: pa.array(names, kind), "score": [*values.values(), *([-1] * (on == "key"))]}), values


@pytest.mark.parametrize("seed", range(examples(15)))
def test_tables_of_views(index, tmp_path, seed, monkeypatch):
    """A table joined to a view is one of its samples, by its own index, or by keys; so are selections of it."""
    monkeypatch.setattr(mapped, "BATCH_BITS", 2)
    monkeypatch.setattr(mapped, "BATCH_ROWS", 4)
    rng = random.Random(seed)
    if seed % 3 == 0:  # keys come from member tables
        os.unlink(index.replace(".json", ".columns.parquet"))
    view, left = wids.ShardListDataset(index, transformations=[]), ROWS
    for _ in range(rng.randrange(1, 3)):
        chosen = sorted(rng.sample(range(len(left)), len(left) * 2 // 3))
        view, left = view.select(chosen), [left[i] for i in chosen]
    on, table, values = table_of(left, rng)
    joined = view.with_table(table, on=on, fields=True)
    assert [sample["score"] for sample in joined] == [values.get(i) for i in range(len(left))]
    assert joined.find_rows("score >= 0").tolist() == sorted(values)
    assert "score" not in view[0]
    best = joined.where("score >= 500")
    assert [sample["score"] for sample in best] == [values[i] for i in sorted(values) if values[i] >= 500]
    part = joined.select(range(0, len(left), 2))
    asked = part.query('select "index", score from samples order by 1').to_pylist()
    assert asked == [{"index": i, "score": values.get(2 * i)} for i in range(len(part))]
    again = part.with_table(pa.table({"index": [1], "other": [7]}), on="index", fields=True)
    assert [(sample["score"], sample["other"]) for sample in again] == [
        (values.get(2 * i), 7 if i == 1 else None) for i in range(len(part))
    ]
    with pytest.raises(ColumnsError, match="not there"):
        view.with_table(pa.table({"index": [len(left)], "other": [7]}), on="index")


def test_keys_that_repeat_outside_of_a_view(tmp_path):
    """Are no matter: only the keys of its own samples have to differ."""
    write_tar(tmp_path / "s.tar", [(f"{row % 3}.cls", b"%d" % row) for row in range(6)])
    dataset = wids.ShardListDataset(str(tmp_path / "s.tar"))
    table = pa.table({"key": ["0", "2"], "a": [5, 7]})
    assert [sample["a"] for sample in dataset.select([1, 3, 5]).with_table(table, on="key", fields=True)] == [
        None,
        5,
        7,
    ]
    with pytest.raises(ColumnsError, match="1 keys of several samples"):
        dataset.select([0, 1, 3]).with_table(table, on="key")


def test_own_columns_in_samples_of_views(index):
    """As `query` has them: ``index`` is the view's, ``shard`` and ``row`` stay."""
    view = wids.ShardListDataset(index, transformations=[]).select([8, 9, 29]).with_columns(["index", "shard", "row"])
    asked = view.query('select "index", shard, "row" from samples order by 1').to_pylist()
    assert [{name: sample[name] for name in ("index", "shard", "row")} for sample in view] == asked
    assert [row["index"] for row in asked] == [0, 1, 2]


def test_what_is_refused(index, tmp_path):
    """Bad predicates, and views of what has no columns."""
    dataset = wids.ShardListDataset(index)
    with pytest.raises(QueryError, match="nothing_here"):
        dataset.where("nothing_here = 1")
    plain = wids.ShardListDataset(write_dataset(tmp_path / "plain", (3,)))
    with pytest.raises(ColumnsError, match="wids columns create"):
        plain.select([1]).where("label = 1")


def test_columns_of_views(index, tmp_path):
    """A view that lists its shards itself has its own."""
    view, merged = str(tmp_path / "v.json"), str(tmp_path / "merged.json")
    wids.ShardListDataset(index).where("label = 3").save(view)
    other = write_dataset(tmp_path / "other", (3,))
    assert run_ok("index", "merge", view, other, "-o", merged).endswith("9 samples\n")
    run_ok("columns", "create", merged, "--field", ".cls=label")
    dataset = wids.ShardListDataset(merged, transformations=[])
    assert dataset.query("select label from samples")["label"].to_pylist().count(3) == 6
    assert len(dataset.where("label = 3")) == 6


def test_view_command(index, tmp_path):
    """`wids view --where`, and how it was made; columns may lie elsewhere."""
    out, elsewhere = str(tmp_path / "v.json"), str(tmp_path / "elsewhere.parquet")
    assert "6 of 30 samples" in run_ok("view", index, "--where", "label = 3", "-o", out)
    assert "where label = 3: 6 of 30" in run_ok("info", out)
    shutil.move(index.removesuffix(".json") + ".columns.parquet", elsewhere)
    assert "wids columns create" in complaint(1, "view", index, "--where", "label = 3", "-o", out)
    told = run_ok("view", index, "--where", "label = 3", "--columns", elsewhere, "-o", out)
    assert "6 of 30 samples" in told
    assert keys(wids.ShardListDataset(out, transformations=[])) == [r["key"] for r in ROWS if r["label"] == 3]


def test_samples_that_are_shown_have_the_names_of_fields(tmp_path):
    """Also where no column was asked for before."""
    dataset = wids.ShardListDataset(write_index(tmp_path), fields={"words": "txt"})
    assert len(dataset._undecoded().find_rows("has_words")) == len(dataset)


def test_a_rule_that_is_assigned(tmp_path):
    """The columns stay those of the index that was given, whether or not one was asked for before."""
    index = write_index(tmp_path)
    before, after = wids.ShardListDataset(index), wids.ShardListDataset(index)
    assert before.column_names
    for dataset in (before, after):
        dataset.spec = {**dataset.spec, "key_rule": "last-dot"}
    assert after.column_names == before.column_names
    assert after._own_columns().index == before._own_columns().index == index


def test_a_dataset_of_a_path_is_pickled(tmp_path):
    """As its text."""

    class Held:
        def __init__(self, path):
            self.path, self.lock = path, threading.Lock()

        def __fspath__(self):
            return self.path

    dataset = wids.ShardListDataset(Held(write_index(tmp_path)))
    assert len(pickle.loads(pickle.dumps(dataset))) == len(dataset)


# --- expressions, wherever a sampler takes a value for each sample


def batches(dataset, **options):
    """Those of an epoch."""
    return list(wids.BucketBatchSampler(wids.ChunkedSampler(dataset), **options))


def test_all_that_batches_are_cut_by(dataset):
    """Lengths, buckets and limits by SQL are those of arrays."""
    images = np.array([row["label"] % 3 for row in ROWS])
    names = np.array(["even" if row["label"] % 2 == 0 else "odd" for row in ROWS])
    by_arrays = batches(
        dataset, lengths=SIZES, max_tokens=30, cost="sum", buckets=names, limits={"images": (images, 4)}
    )
    by_sql = batches(
        dataset,
        lengths="label * 2 + 1",
        max_tokens=30,
        cost="sum",
        buckets="case when label % 2 = 0 then 'even' else 'odd' end",
        limits={"images": ("label % 3", 4)},
    )
    assert by_sql == by_arrays
    assert batches(dataset, limits={"label": 8}) == batches(dataset, limits={"label": ("label", 8)})
    assert batches(dataset, lengths="label / 2 + 1.5", max_tokens=9) == batches(
        dataset, lengths=np.array([row["label"] / 2 + 1.5 for row in ROWS]), max_tokens=9
    )


def test_weights(dataset):
    """A sample's copies follow an expression, too."""
    by_sql = wids.ChunkedSampler(dataset, weights="label + 1", epoch_size=200)
    by_array = wids.ChunkedSampler(dataset, weights=np.array([row["label"] + 1 for row in ROWS]), epoch_size=200)
    assert list(by_sql) == list(by_array)


@pytest.mark.parametrize("kind", ["view", "subset", "join", "mixture"])
def test_parts_and_joins(dataset, kind):
    """An expression is evaluated for the samples of each part."""
    where = list(range(3, 28, 2))
    if kind == "view":
        made, sizes = dataset.select(where), SIZES[where]
    elif kind == "subset":
        made, sizes = torch.utils.data.Subset(dataset, where), SIZES[where]
    elif kind == "join":
        made = torch.utils.data.ConcatDataset([dataset.select(where), dataset])
        sizes = np.concatenate([SIZES[where], SIZES])
    else:
        made = wids.mix({"a": (dataset.select(where), 1), "b": (dataset, 2)})
        sizes = np.concatenate([SIZES[where], SIZES])
    assert batches(made, lengths="label * 2 + 1", max_tokens=30) == batches(made, lengths=sizes, max_tokens=30)


def test_a_column_of_this_name_comes_first(dataset):
    """Whatever letters it has."""
    joined = dataset.with_table({"index": np.arange(30), "label + 1": SIZES}, on="index", columns=["label + 1"])
    assert batches(joined, lengths="label + 1", max_tokens=30) == batches(dataset, lengths=SIZES, max_tokens=30)
    assert batches(joined, lengths='"label + 1" * 1', max_tokens=30) == batches(dataset, lengths=SIZES, max_tokens=30)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("lable", InputError, r"{}: there is no column 'lable' \(did you mean 'label'\?\)"),
        ("lable + 1", QueryError, r"{}: there is no column 'lable' \(did you mean 'label'\?\); in: lable \+ 1"),
        ("label + ", QueryError, "{}: .*syntax error"),
        ("label + 1, 2", QueryError, "{}: "),
        ("label; select 1", QueryError, "{}: "),
        ("sum(label)", QueryError, "{}: "),
        ("", QueryError, "{}: .*empty"),
        ("label + RANDOM()", QueryError, r"{}: .*random has another value each time.*hash\(key\)"),
        ("length(uuid()::text)", QueryError, r"{}: .*uuid has another value each time"),
        ("extract(microsecond from now())", QueryError, r"{}: .*now has another value each time"),
        ("extract(day from current_date)", QueryError, "{}: .*has another value each time"),
        ("epoch(CURRENT_TIMESTAMP)", QueryError, "{}: .*has another value each time"),
        ("unnest([1, 2])", QueryError, "{}: .*60 values for 30 samples|{}: .*UNNEST"),
        ("(select max(x) from read_csv('/etc/passwd'))", QueryError, "{}: "),
        ("width * 1", InputError, "sample 0 is nan"),
        ("caption || 'x'", InputError, r"{} are of type object"),
        ("-label - 1", InputError, "sample 0 is -1"),
    ],
    ids=str,
)
@pytest.mark.parametrize("parameter", ["lengths", "limits['crops']"])
def test_what_is_no_expression(dataset, text, kind, words, parameter):
    """The error names the parameter."""
    options = {"lengths": text} if parameter == "lengths" else {"limits": {"crops": (text, 99)}}
    with pytest.raises(kind, match=words.replace("{}", parameter.replace("[", r"\[").replace("]", r"\]"))):
        batches(dataset, batch_size=4, **options)


def test_a_filter_has_one_value(dataset):
    """All processes of a job select the same samples."""
    with pytest.raises(QueryError, match=r"random has another value each time"):
        dataset.where("random() < 0.5")
    assert 0 < len(dataset.where("hash(key) % 2 = 0")) < len(dataset)
    assert dataset.query("select count(*) from samples where random() < 2").column(0).to_pylist() == [30]


def test_limits_of_data_that_change(tmp_path, dataset):
    """An epoch goes on over what was not read; the limits of the earlier data are the columns, or are given."""
    index = tmp_path / "train.json"
    said = json.loads(index.read_text())
    del said["shardlist"][2]
    (tmp_path / "less.json").write_text(json.dumps(said))
    now = wids.ShardListDataset(str(tmp_path / "less.json"), transformations=[])
    sizes = np.concatenate([SIZES[:9], SIZES[23:]])
    sampler = wids.BucketBatchSampler(wids.ChunkedSampler(dataset), limits={"size": ("label * 2 + 1", 30)}, block=10)
    iterator = iter(sampler)
    read = next(iterator)
    state = sampler.state_dict()

    def resume(limit, **more):
        resumed = wids.BucketBatchSampler(wids.ChunkedSampler(now), limits={"size": (limit, 30)}, block=10)
        resumed.load_state_dict(state, old=dataset, **more)
        return sorted(index for batch in resumed for index in batch)

    with pytest.raises(InputError, match=r"give old_limits\['size'\]="):
        resume(sizes)
    rest = resume(sizes, old_limits={"size": "label * 2 + 1"})
    assert resume(sizes, old_limits={"size": SIZES}) == rest
    earlier = [*range(9), *range(23, 30)]
    assert rest == [k for k, index in enumerate(earlier) if index not in read]
    unseen = now.unseen(state, old=dataset, old_limits={"size": SIZES})
    assert len(unseen) == len(rest)
    with pytest.raises(InputError, match="old_limits"):
        now.unseen(state, old=dataset)

"""Expressions over columns, wherever a sampler takes a value for each sample."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch.utils.data

import wids
from tests.support.columns import make_columns, rows_of, write_dataset
from wids.errors import InputError, QueryError

pytestmark = pytest.mark.usefixtures("own_cache")

COUNTS = (9, 0, 14, 7)
ROWS = rows_of(COUNTS)
SIZES = np.array([row["label"] * 2 + 1 for row in ROWS])


@pytest.fixture
def dataset(tmp_path):
    """A dataset with columns."""
    path = write_dataset(tmp_path, COUNTS)
    make_columns(path)
    return wids.ShardListDataset(path, transformations=[])


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

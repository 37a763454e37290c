"""The page of an epoch: its batches are those of loaders and commands, its numbers those of the samples."""

import inspect
import itertools
import json
import random
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient
from torch.utils.data import DataLoader

from tests.support import columns
from tests.support.cli import run_ok
from tests.support.clocks import PATIENCE_SECONDS
from tests.support.shards import write_index, write_json, write_mixture
from wids import BucketBatchSampler, DistributedChunkedSampler, PackSampler, ShardListDataset
from wids.tools.serve import epoch
from wids.tools.serve.app import make_app
from wids.tools.serve.epoch_settings import Settings
from wids.tools.serve.served import Served
from wids.tools.simulate import trace

COUNTS = (30, 0, 12, 21)
PARTS = {"web": ((20, 0, 11), 0.6), "books": ((9,), 0.3), "rest": ((14, 3), 0.1)}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The path of an index with columns: label, bytes and others."""
    index = columns.write_dataset(tmp_path_factory.mktemp("plain"), COUNTS)
    columns.make_columns(index)
    return index


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """The path of an index whose sub-datasets have weights."""
    return write_mixture(tmp_path_factory.mktemp("mixed"), PARTS)


class Pages:
    """What the page of an epoch asks for."""

    def __init__(self, index):
        self.served = Served(str(index))
        self._client = TestClient(make_app(self.served), base_url="http://localhost", headers={"x-wids": "1"})

    def get(self, path, status=200, **query):
        """An answer."""
        found = self._client.get(f"/api/epoch{path}", params=query)
        assert found.status_code == status, found.text
        return found.json()

    def batch(self, rank, step, **query):
        """The indices of a batch."""
        return [one["index"] for one in self.get("/batch", rank=rank, step=step, **query)["samples"]]


@pytest.fixture
def open_pages(set_limits):
    """Serve an index, whose answers may take as long as they do; each is closed at the end."""
    set_limits(epoch.Answers, seconds=PATIENCE_SECONDS)
    opened = []

    def open_one(index):
        opened.append(Pages(index))
        return opened[-1]

    yield open_one
    for pages in opened:
        pages.served.close()


def read(index, rank, *, batches=None, batch_size=1, number=0, **options):
    """The indices in each batch that a DataLoader yields to a rank in epoch ``number``."""
    dataset = ShardListDataset(index, transformations=[]).add_transform(lambda sample: sample["__index__"])
    sampler = DistributedChunkedSampler(dataset, rank=rank, **options)
    sampler.set_epoch(number)
    if batches is None:
        loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler)
    else:
        kind = PackSampler if "pack_tokens" in batches else BucketBatchSampler
        loader = DataLoader(dataset, batch_sampler=kind(sampler, **batches))
    return [batch.tolist() for batch in loader]


def draw_settings(chance, kind):
    """Settings of a page, and the same for `read`."""
    order = {
        "seed": chance.randint(0, 9),
        "window": chance.randint(1, 4),
        "chunksize": chance.choice([1, 5, 9, 10_000]),
        "tail": chance.choice(["pad", "drop", "mask"]),
        "reshuffle": chance.choice(["fixed", "epoch"]),
        "lanes": chance.choice([None, None, 4]),
        "epoch_size": chance.choice([None, None, 40]),
    }
    world, number, size = chance.randint(1, 5), chance.randint(0, 4), chance.randint(1, 7)
    is_shuffled, rule = chance.random() < 0.8, None
    if kind == "mixture":
        order |= {"source_batch": chance.choice([1, 3])}
        if order["source_batch"] > 1:
            order["lanes"] = None
    elif kind == "weights":
        order |= {"weights": "label"}
    elif kind == "batches":
        rule = chance.choice(
            [
                {"lengths": "bytes", "max_tokens": 500},
                {"lengths": "bytes", "max_tokens": 120, "cost": "sum", "too_long": "skip"},
                {"lengths": "bytes", "max_tokens": 600, "batch_size": 4, "block": 11},
                {"buckets": "label", "batch_size": {0: 2, 1: 3, 2: 4, 3: 5, 4: 1}},
                {"lengths": "bytes", "max_tokens": 400, "limits": {"label": 5}},
                {"limits": {"classes": ("label", 7), "bytes": 300}},
            ]
        )
    elif kind == "packs":
        rule = chance.choice(
            [
                {"lengths": "bytes", "pack_tokens": 200, "separators": 1},
                {"lengths": "bytes", "pack_tokens": 90, "batch_size": 2, "block": 11},
                {"lengths": "bytes", "pack_tokens": 300, "cut": False, "batch_size": 3},
                {"lengths": "bytes", "pack_tokens": 120, "cut": False, "too_long": "skip"},
            ]
        )
    page = {**order, "world_size": world, "epoch": number, "shuffle": "yes" if is_shuffled else "no"}
    options = {**order, "num_replicas": world, "number": number, "shuffle": is_shuffled, "batches": rule}
    if rule is None:
        page["batch_size"] = options["batch_size"] = size
    else:
        page |= {"batch_size": "", **rule}
        if isinstance(rule.get("batch_size"), dict):
            page["batch_size"] = ",".join(f"{name}={count}" for name, count in rule["batch_size"].items())
        if "cut" in rule:
            page["cut"] = "no"
        if "limits" in rule:
            limits = {name: said if isinstance(said, tuple) else (name, said) for name, said in rule["limits"].items()}
            page["limits"] = ", ".join(f"{name}={column}:{most}" for name, (column, most) in limits.items())
    return {name: value for name, value in page.items() if value is not None}, options


def to_flags(page):
    """The options of a command for the settings of a page."""
    flags = []
    for name, value in page.items():
        if name in ("shuffle", "cut"):
            flags += [] if value == "yes" else [f"--no-{name}"]
        elif name == "limits":
            flags += [flag for limit in value.split(", ") for flag in ("--limit", limit)]
        elif value != "":
            flags += [f"--{name.replace('_', '-')}", value]
    return flags


@pytest.mark.parametrize("kind", ["plain", "mixture", "weights", "batches", "packs"])
@pytest.mark.parametrize("seed", range(5))
def test_batches_are_those_of_loaders_and_commands(open_pages, plain, mixture, kind, seed):
    """With whatever settings: each batch of each rank, what of it is repeated, and when each sample is read."""
    index = mixture if kind == "mixture" else plain
    page, options = draw_settings(random.Random(f"{kind} {seed}"), kind)
    pages, world, expected = open_pages(index), options["num_replicas"], {}
    seen = Counter()
    for rank in range(world):
        batches = read(index, rank, **options)
        facts = pages.get("", **page)
        assert (facts["steps"], facts["is_whole"], facts["world_size"]) == (len(batches), True, world)
        for step, batch in enumerate(batches):
            told = pages.get("/batch", rank=rank, step=step, **page)["samples"]
            assert [one["index"] for one in told] == batch
            for place, one in enumerate(told):
                piece = {name: one[name] for name in ("pack", "piece", "length") if name in one}
                found = {"rank": rank, "step": step, "place": place, "is_repeated": one["is_repeated"], **piece}
                expected.setdefault(one["index"], []).append(found)
                seen[one["is_repeated"]] += 1
        if kind != "weights" and batches:
            said = json.loads(run_ok("at", index, "--rank", rank, "--step", -1, *to_flags(page), "--json"))["samples"]
            for one in said:
                del one["url"]
            assert said == told
    for asked in range(0, sum(COUNTS) if kind != "mixture" else 57, 7):
        [found] = pages.get("/find", samples=asked, **page)["samples"]
        order = [(one["step"], one["rank"]) for one in found["readings"]]
        assert sorted(order) == sorted((one["step"], one["rank"]) for one in expected.get(asked, []))
        assert all(one in expected.get(asked, []) for one in found["readings"])
        assert found["times"] == len(order)
    assert seen[False]


def test_what_lies_where(open_pages, plain):
    """Shard and row of a sample are those of the index."""
    pages = open_pages(plain)
    for one in pages.get("/batch", batch_size=63)["samples"]:
        assert (one["shard"], one["row"]) == tuple(pages.served.dataset.locate(one["index"]))


@pytest.mark.parametrize(
    "more", [{"lengths": "bytes", "max_tokens": "500", "limits": "label=6"}, {"batch_size": "5"}], ids=str
)
def test_looks(open_pages, plain, more):
    """Costs, padding, lengths and classes of steps are those of their samples."""
    pages = open_pages(plain)
    query = {"world_size": "3", "batch_size": "", **more}
    sizes, labels = (pages.served.dataset.read_column(name) for name in ("bytes", "label"))
    steps = list(range(pages.get("", **query)["steps"]))
    found = pages.get("/looks", rank=2, steps=",".join(map(str, steps)), label="label", **query)
    names = [str(name) for name, _ in Counter(labels.tolist()).most_common()]
    assert sorted(found["names"]) == sorted(names)
    assert [look["step"] for look in found["looks"]] == steps
    for look in found["looks"]:
        batches = [pages.batch(rank, look["step"], **query) for rank in range(3)]
        own = Counter(str(labels[k]) for k in batches[2])
        assert look["samples"] == len(batches[2])
        assert dict(zip(found["names"], look["classes"]["counts"], strict=True)) == {name: own[name] for name in names}
        assert look["classes"]["distinct"] == len(own)
        if "lengths" in more:
            costs = [sizes[batch].max() * len(batch) for batch in batches]
            assert look["costs"] == costs
            assert look["sums"] == [[labels[batch].sum() for batch in batches]]
            assert max(look["sums"][0]) <= 6
            assert look["padding"] == pytest.approx(sum(costs) / sum(sizes[batch].sum() for batch in batches))
            lengths = sizes[batches[2]]
            assert look["lengths"] == pytest.approx([lengths.min(), lengths.mean(), lengths.max()])
        else:
            assert not look.keys() & {"costs", "padding", "lengths"}


def test_packs(open_pages, plain):
    """Pieces of a batch are the sampler's, and what its ranks have at a step are their tokens."""
    pages = open_pages(plain)
    query = {"world_size": "3", "batch_size": "2", "lengths": "bytes", "pack_tokens": "150", "separators": "1"}
    ranks = []
    for rank in range(3):
        sampler = DistributedChunkedSampler(pages.served.dataset, num_replicas=3, rank=rank)
        packs = PackSampler(sampler, lengths="bytes", pack_tokens=150, batch_size=2, separators=1)
        ranks.append(list(packs))
    described = pages.get("", **query)
    assert (described["steps"], described["pack_tokens"], described["max_tokens"]) == (len(ranks[0]), 150, 300)
    steps = range(described["steps"])
    looks = pages.get("/looks", rank=2, steps=",".join(map(str, steps)), **query)["looks"]
    for step, look in zip(steps, looks, strict=True):
        assert look["costs"] == [sum(i.piece[2] - i.piece[1] for i in batches[step]) for batches in ranks]
        assert look["samples"] == len(ranks[2][step])
        told = pages.get("/batch", rank=1, step=step, **query)
        expected = [(index.piece[0], list(index.piece[1:3]), index.piece[3]) for index in ranks[1][step]]
        assert [(one["pack"], one["piece"], one["length"]) for one in told["samples"]] == expected
        assert told["costs"] == [look["costs"][1]]
    assert pages.get("/open", rank=1, step=0, **query)["bands"]


def test_classes_have_names(open_pages, tmp_path):
    """Of the index, in plots and in batches."""
    index = columns.write_dataset(tmp_path, (30, 12))
    header = json.loads(Path(index).read_text())
    names = [f"class {k}" for k in range(1 + max(columns.facts_of(k)["label"] for k in range(42)))]
    write_json(index, {**header, "info": {"classes": names}})
    columns.make_columns(index)
    pages = open_pages(index)
    labels = pages.served.dataset.read_column("label").tolist()
    batch = pages.get("/batch", batch_size=42, label="label")
    words = [f"{names[label]} ({label})" for label in labels]
    assert batch["labels"] == [words[one["index"]] for one in batch["samples"]]
    assert set(pages.get("/looks", steps="0", batch_size=42, label="label")["names"]) <= set(words)


@pytest.mark.parametrize("column", ["width", "tag", "caption"])
def test_classes_of_which_some_are_missing(open_pages, plain, column):
    """Those are a class of their own, in columns of numbers and of words; the most frequent classes are named."""
    pages = open_pages(plain)
    facts = [columns.facts_of(k)[column] for k in range(63)]
    found = pages.get("/looks", steps="0", batch_size=63, label=column)
    words = Counter("missing" if value is None else str(value) for value in facts)
    [look] = found["looks"]
    assert look["classes"]["distinct"] == len(words)
    assert "missing" in found["names"]
    assert look["classes"]["counts"] == [words[name] for name in found["names"]]
    assert len(found["names"]) == min(len(words), 7)


def test_shares_of_sources(open_pages, mixture):
    """What is counted before each step is what the ranks have read by then; batches of like length are looked at."""
    pages, query = open_pages(mixture), {"world_size": "2", "batch_size": "3", "epoch": "2"}
    facts = pages.get("", **query)
    assert [one["name"] for one in facts["sources"]] == ["web", "books", "rest"]
    assert [one["share"] for one in facts["sources"]] == pytest.approx([0.6, 0.3, 0.1])
    found = pages.get("/shares", **query)
    assert found["edges"] == list(range(facts["steps"] + 1))
    bounds, counts = [0, 31, 40, 57], np.zeros(3, int)
    for step, told in enumerate(found["counts"]):
        assert told == counts.tolist()
        for rank in range(2 if step < facts["steps"] else 0):
            counts += np.histogram(pages.batch(rank, step, **query), bounds)[0]
    assert found["counts"][-1] == counts.tolist()
    assert pages.get("/shares", **query, **{"from": 4})["counts"] == found["counts"][4:]


def test_open_shards(open_pages, plain, set_limits):
    """The shards of a batch are open at its step; of a long epoch only steps around the one that is asked for."""
    pages, query = open_pages(plain), {"world_size": "2", "batch_size": "2", "chunksize": "5"}
    steps = pages.get("", **query)["steps"]

    def is_open(found, step):
        return {band["shard"] for band in found["bands"] if band["first"] <= step <= band["last"]}

    whole = pages.get("/open", rank=1, step=3, **query)
    assert (whole["first"], whole["last"]) == (0, steps)
    set_limits(epoch.Answers, open_samples=10)
    for step in range(steps):
        shards = {one["shard"] for one in pages.get("/batch", rank=1, step=step, **query)["samples"]}
        assert shards <= is_open(whole, step)
        part = pages.get("/open", rank=1, step=step, **query)
        assert part["last"] - part["first"] == 5
        assert part["first"] <= step < part["last"]
        assert shards <= is_open(part, step) <= is_open(whole, step)
    assert whole["bands"][0]["name"].startswith("s")


def test_a_long_epoch_of_few_samples(open_pages, plain, monkeypatch):
    """It reads them again and again: which shards are open is asked of the passes of some steps, not of all."""
    pages, made, segment = open_pages(plain), [], trace.Segment

    def count(*facts):
        made.append(facts)
        assert len(made) < 100_000, "all passes are gone through"
        return segment(*facts)

    monkeypatch.setattr(trace, "Segment", count)
    for step in (0, -1):
        found = pages.get("/open", epoch_size=10**12, step=step)
        samples = pages.get("/batch", epoch_size=10**12, step=step)["samples"]
        at = step % found["steps"]
        is_open = {band["shard"] for band in found["bands"] if band["first"] <= at <= band["last"]}
        assert {one["shard"] for one in samples} <= is_open


def test_open_shards_of_one_sample(tmp_path, open_pages, monkeypatch):
    """A long epoch reads it at each position: only so many steps are looked at as can be drawn."""
    made, segment = [], trace.Segment
    monkeypatch.setattr(trace, "Segment", lambda *facts: (made.append(1), segment(*facts))[1])
    found = open_pages(write_index(tmp_path, (1,))).get("/open", epoch_size=10**12, step=10**9)
    assert found["first"] <= 10**9 < found["last"]
    assert len(made) < 2000


def test_a_billion_samples(tmp_path, open_pages):
    """A batch in the middle of an epoch of 1e9 samples, and the step of one of them, are found at once."""
    shards = [{"url": f"s{k}.tar", "nsamples": 1_000_000, "filesize": 1} for k in range(1000)]
    pages = open_pages(write_json(tmp_path / "big.json", {"wids_version": 1, "shardlist": shards}))
    query = {"world_size": 8, "batch_size": 256, "epoch": 3}
    assert pages.get("", **query)["steps"] == 488_282
    batch = pages.batch(5, 400_123, **query)
    [found] = pages.get("/find", samples=batch[7], **query)["samples"]
    assert found["readings"] == [{"rank": 5, "step": 400_123, "place": 7, "is_repeated": False}]
    part = pages.get("/open", rank=5, step=400_123, **query)
    assert part["first"] <= 400_123 < part["last"] < 488_282


def test_an_epoch_that_takes_long_to_cut(open_pages, plain, set_limits):
    """Batches of like length are cut for as long as an answer may take, and further when asked for more."""
    query = {"lengths": "bytes", "max_tokens": "300", "batch_size": "", "block": "5", "world_size": "2"}
    whole = open_pages(plain)
    steps = whole.get("", **query)["steps"]
    set_limits(epoch.Answers, seconds=0.0)
    pages = open_pages(plain)
    facts = pages.get("", **query)
    assert not facts["is_whole"]
    assert 0 < facts["done"] < facts["total"]
    assert 0 < facts["steps"] < steps
    for rank, step in itertools.product(range(2), range(facts["steps"])):
        assert pages.batch(rank, step, **query) == whole.batch(rank, step, **query)
    assert f"steps are 0 to {facts['steps'] - 1}" in pages.get("/batch", 400, step=steps - 1, **query)["error"]
    looks = pages.get("/looks", steps="0,0", **query)["looks"]
    assert [look["step"] for look in looks] == [0]  # a step at least, so that who asks again comes to an end
    for _ in range(63):
        facts = pages.get("", more=1, **query)
    assert (facts["is_whole"], facts["steps"]) == (True, steps)


@pytest.mark.parametrize(
    ("query", "name", "words"),
    [
        ({"world_size": "two"}, "world_size", "must be an integer from 1"),
        ({"world_size": "0"}, "world_size", "must be an integer from 1"),
        ({"world_size": "9" * 5000}, "world_size", "must be an integer from 1"),
        ({"tail": "cut"}, "tail", "pad or drop or mask"),
        ({"batch_size": ""}, "batch_size", "is missing"),
        ({"batch_size": "0"}, "batch_size", "neither a number"),
        ({"batch_size": "a=3"}, "batch_size", "goes with buckets"),
        ({"batch_size": "0=3", "buckets": "label"}, "batch_size", "has none of bucket 1"),
        ({"epoch_size": "2", "world_size": "3"}, "epoch_size", "less than one for each"),
        ({"epoch": "-1", "epoch_size": "9"}, "epoch", "epoch is -1"),
        ({"source_batch": "4"}, "source_batch", "no sub-datasets"),
        ({"weights": "caption"}, "weights", "must be a number"),
        ({"limits": "label"}, "limits", "is no limit; write NAME=NUMBER"),
        ({"limits": "label=0"}, "limits", "must be a number above 0"),
        ({"limits": "label=3"}, "limits", "more than the 3 of a whole batch"),
        ({"limits": "lable=3"}, "limits", "there is no column"),
        ({"limits": "x=caption:3"}, "limits", "they must be numbers"),
        ({"weights": "../../etc/passwd"}, "weights", "no column"),
        ({"lengths": "/etc/hosts.npy", "max_tokens": "9"}, "lengths", "no column"),
        ({"lengths": "label", "max_tokens": "9"}, "lengths", "lengths are numbers above 0"),
        ({"lengths": "bytes", "max_tokens": "9"}, "max_tokens", "too_long='skip'"),
        ({"pack_tokens": "9"}, "lengths", "pack_tokens counts tokens of lengths"),
        ({"lengths": "bytes", "pack_tokens": "9", "cut": "no"}, "pack_tokens", "too_long='skip'"),
        ({"lengths": "bytes", "pack_tokens": "9", "max_tokens": "9"}, "max_tokens", "pack_tokens for packs; say one"),
        ({"lengths": "bytes", "pack_tokens": "9", "share": "tokens"}, "share", "no mixture"),
        ({"separators": "1"}, "separators", "is for packs"),
        ({"lengths": "bytes", "batch_size": ""}, "batch_size", "how large a batch may be"),
        ({"max_tokens": "9"}, "max_tokens", "no lengths are given"),
        ({"lengths": "bytes", "max_tokens": "many"}, "max_tokens", "must be a number above 0"),
        ({"cost": "sum"}, "cost", "for batches of like length"),
        ({"block": "3"}, "block", "for batches of like length"),
        ({"rank": "1"}, "rank", "there is no rank 1"),
        ({"rank": "-1"}, "rank", "must be an integer from 0"),
        ({"step": "2"}, "step", "steps are 0 to 1"),
        ({"step": "x"}, "step", "must be an integer"),
    ],
    ids=str,
)
def test_wrong_settings(open_pages, plain, query, name, words):
    """A sentence, and at which of the settings it belongs; a column is never a file."""
    found = open_pages(plain).get("/batch", 400, **query)
    assert words in found["error"]
    assert found["name"] == name


def test_the_form(open_pages, plain, mixture):
    """The address fills it in, and what is no value of it stays visible, as text; a mixture's settings are its own."""
    pages = open_pages(plain)._client
    page = pages.get("/epoch", params={"world_size": '"><script>', "tail": "drop", "weights": "label"}).text
    assert 'name="world_size" value="&#34;&gt;&lt;script&gt;"' in page
    assert '<option value="drop" selected>' in page
    assert '<option value="label" selected>' in page
    assert 'name="source_batch"' not in page
    weights, buckets = (page.split(f'name="{name}"')[1].split("</select>")[0] for name in ("weights", "buckets"))
    assert '"caption"' in buckets
    assert '"caption"' not in weights
    other = open_pages(mixture)._client.get("/epoch").text
    assert 'name="source_batch"' in other
    assert 'name="weights"' not in other
    assert "There are no columns" in other


def test_defaults_are_the_samplers():
    """What the form leaves out is what programs leave out; the size of a batch alone is another one."""
    ours = {name: value for name, value in asdict(Settings()).items() if name not in ("batch_size", "shuffle")}
    ours = {name: None if value == "" else value for name, value in ours.items()}
    theirs = {
        name: parameter.default
        for kind in (PackSampler, BucketBatchSampler, DistributedChunkedSampler)
        for name, parameter in inspect.signature(kind).parameters.items()
    }
    theirs |= {
        "pack_tokens": None,
        "cut": "yes",
        "world_size": 1,
        "epoch": 0,
        "tail": DistributedChunkedSampler(range(3), num_replicas=1).tail,
    }
    assert ours == {name: theirs[name] for name in ours}


def test_no_sources_no_samples(tmp_path, open_pages, plain):
    """What is not there is said: sources of what is no mixture, steps of no samples."""
    assert "no sources" in open_pages(plain).get("/shares", 404)["error"]
    pages = open_pages(write_index(tmp_path, (0,)))
    assert pages.get("")["steps"] == 0
    assert "the epoch has none" in pages.get("/batch", 400)["error"]
    assert "there is no sample 0" in pages.get("/find", 404, samples="0")["error"]

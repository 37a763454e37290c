"""Mixtures over real shards: samples and their names, loaders, pickles, states, and indexes with weights."""

from __future__ import annotations

import itertools
import json
import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset, random_split

import wids
from tests.support.shards import write_index, write_json, write_mixture, write_shards, write_tar
from wids.core.cache.space import table_allowance
from wids.core.order.layout import mixed_parts
from wids.errors import InputError, OutputError, SpecError, StateError
from wids.events import Fetched, format_size
from wids.jobs.index_edit import convert_index, merge_indexes, split_index
from wids.testing import Server


def facts_of(sample):
    """What a sample says of itself, without its bytes."""
    return sample["__dataset__"], sample["__index__"], int(sample[".cls"].read())


def same(batch):
    """A collate function."""
    return batch


def mark(sample):
    """A transformation of a mixture."""
    return (*sample, "mixed")


class Squares(Dataset):
    """Some torch dataset whose samples are dicts."""

    def __len__(self):
        """How many."""
        return 5

    def __getitem__(self, index):
        """A sample."""
        return {"square": index * index}


@pytest.fixture
def shards(tmp_path):
    """Name -> the shards of a source: 12 samples of web, 6 of books, 5 of code."""
    counts = {"web": (7, 0, 5), "books": (6,), "code": (2, 3)}
    return {name: write_shards(tmp_path, each, prefix=f"{name}-") for name, each in counts.items()}


@pytest.fixture
def mixture(shards):
    """The three of them in shares, each sample as (source, its index there, the number in it)."""
    weights = {"web": 0.5, "books": 0.3, "code": 0.2}
    return wids.mix(
        {
            name: (wids.ShardListDataset(listed, transformations=facts_of), weights[name])
            for name, listed in shards.items()
        }
    )


ALL = [*((("web", k, k)) for k in range(12)), *(("books", k, k) for k in range(6)), *(("code", k, k) for k in range(5))]


def sampler_of(dataset, **options):
    """A sampler of one rank."""
    return wids.DistributedChunkedSampler(dataset, **{"num_replicas": 1, "rank": 0, "chunksize": 3, **options})


def loaders(name):
    """Options of a DataLoader."""
    return {
        "alone": {},
        "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
        "forkserver": {"num_workers": 2, "multiprocessing_context": "forkserver"},
    }[name]


# --- samples


def test_samples_of_a_mixture(mixture):
    """The sources' samples one after another, by whatever counts as an index, alone or together."""
    assert (len(mixture), mixture.names, mixture.lengths) == (23, ["web", "books", "code"], [12, 6, 5])
    assert [mixture[k] for k in range(23)] == list(mixture) == ALL
    assert mixture[-1] == mixture[np.int64(22)] == mixture[torch.tensor(22)] == ("code", 4, 4)
    asked = [22, -23, np.int32(12), 3, 3]
    assert mixture.__getitems__(asked) == [mixture[k] for k in asked]
    assert mixture.__getitems__([]) == []
    for index, error in (
        (23, IndexError),
        (-24, IndexError),
        ("web", TypeError),
        (slice(2), TypeError),
        (1.0, TypeError),
    ):
        with pytest.raises(error):
            mixture[index]
    assert repr(mixture) == "<Mixture of 23 samples: web 50.0%, books 30.0%, code 20.0%>"


def test_each_source_has_its_own_transformations_and_settings(shards):
    """They see the source's name; the mixture's come last; those that are added to a source later are not its."""
    seen = []

    def note(sample):
        seen.append(sample["__dataset__"])
        return sample

    web = wids.ShardListDataset(shards["web"], transformations=[note], fields=".cls")
    books = wids.ShardListDataset(shards["books"])  # decoded
    mixture = wids.mix({"web": (web, 1), "books": (books, 1)}).add_transform(sorted)
    web.add_transform(len)
    assert mixture[0] == [".cls", "__dataset__", "__index__", "__key__", "__shard__", "__shardindex__"]
    assert mixture[12][:3] == [".bin", ".cls", ".txt"]
    assert seen == ["web"]
    assert (web[0], books[0]["__dataset__"], books[0][".cls"]) == (6, "", 0)
    assert web.cache is mixture.datasets[0].cache  # the open shards are shared


def test_a_dataset_may_be_two_sources(shards):
    """Under two names, as two views, too."""
    whole = wids.ShardListDataset(shards["web"], transformations=facts_of)
    mixture = wids.mix(
        {"first": (whole.select(range(4)), 1), "rest": (whole.select(range(4, 12)), 3), "again": (whole, 0)}
    )
    assert mixture.lengths == [4, 8, 12]
    assert [mixture[0], mixture[4], mixture[12]] == [("first", 0, 0), ("rest", 0, 4), ("again", 0, 0)]
    counts = Counter(sample[0] for sample in mixture.__getitems__(list(sampler_of(mixture, epoch_size=16))))
    assert counts == {"first": 4, "rest": 12}


def test_sources_that_are_no_shard_lists():
    """A list, a torch dataset of dicts, one of tuples: dicts get the source's name, unless they have one."""
    named = [{"__dataset__": "own"}]
    numbers = TensorDataset(torch.arange(3))
    mixture = wids.mix({"squares": (Squares(), 2), "named": (named, 1), "numbers": (numbers, 1)})
    assert mixture[2] == {"square": 4, "__dataset__": "squares"}
    assert mixture[5] == {"__dataset__": "own"}
    assert mixture[6] == (torch.tensor(0),)
    samples = mixture.__getitems__(list(sampler_of(mixture, epoch_size=40)))
    assert sum(isinstance(sample, dict) and "square" in sample for sample in samples) == 20
    assert mixture.stats() == {}
    mixture.close()
    with pytest.raises(ValueError, match="is not known to pass the sampler's indices on"):
        sampler_of(mixture, tail="mask")


def test_marks_reach_the_samples(shards):
    """A mixture's nominal epochs repeat nothing to fill up a tail; joined with others it is read like any dataset."""
    mixture = wids.mix(
        {name: (wids.ShardListDataset(shards[name], transformations=[]), 1) for name in ("web", "books")}
    )
    rows = []
    for rank in range(3):
        sampler = sampler_of(mixture, num_replicas=3, rank=rank, tail="mask", epoch_size=20)
        rows += mixture.__getitems__(list(sampler))
        assert sampler.num_valid == len(sampler) == 7
    assert all(sample["__valid__"] for sample in rows)
    joined = ConcatDataset([mixture, wids.ShardListDataset(shards["code"], transformations=[])])
    marks = []
    for rank in range(4):
        marks += [joined[k]["__valid__"] for k in sampler_of(joined, num_replicas=4, rank=rank, tail="mask")]
    assert Counter(marks) == {True: 23, False: 1}


def test_parts_and_joins_of_a_mixture_are_plain_datasets(mixture):
    """Each sample once, shard by shard: shares are the mixture's own."""
    for dataset in (Subset(mixture, range(3, 20)), ConcatDataset([mixture, mixture]), *random_split(mixture, [10, 13])):
        assert sorted(sampler_of(dataset)) == list(range(len(dataset)))
    half, _ = random_split(mixture, [10, 13], generator=torch.Generator().manual_seed(0))
    assert sorted(half[k] for k in sampler_of(half)) == sorted(ALL[k] for k in half.indices)


# --- loaders


@pytest.mark.parametrize("name", ["alone", "fork", "forkserver"])
def test_a_loader_yields_what_the_sampler_names(mixture, name):
    """In the process itself and in workers of either kind; transformations of the mixture travel along."""
    mixture.add_transform(mark)
    expected = [(*ALL[k], "mixed") for k in sampler_of(mixture)]
    loader = DataLoader(mixture, sampler=sampler_of(mixture), batch_size=4, collate_fn=same, **loaders(name))
    assert [sample for batch in loader for sample in batch] == expected
    mixture.close()
    assert mixture[0] == ("web", 0, 0, "mixed")


@pytest.mark.parametrize("name", ["alone", "fork"])
def test_a_loop_resumes_where_it_was(mixture, name):
    """By ``consumed=``, on other ranks and batch sizes: the rest, in the same order, and on into later epochs."""
    endless = mixture.__getitems__(list(itertools.islice(sampler_of(mixture, epochs=None, lanes=2), 92)))
    sampler = sampler_of(mixture, lanes=2)
    loader = DataLoader(mixture, sampler=sampler, batch_size=4, collate_fn=same, **loaders(name))
    states = [sampler.state_dict(consumed=min(4 * step, 23)) for step, _ in enumerate(loader, 1)]
    for state in states[::2]:
        rows = []
        for rank in range(3):
            again = sampler_of(mixture, num_replicas=3, rank=rank)
            again.load_state_dict(json.loads(json.dumps(state)))
            others = DataLoader(mixture, sampler=again, batch_size=5, collate_fn=same)
            rows.append([sample for _ in range(2) for batch in others for sample in batch])
        assert len({len(row) for row in rows}) == 1
        read = list(itertools.chain(*zip(*rows, strict=True)))
        assert read == endless[state["position"] : state["position"] + len(read)]


def test_a_pickle_is_the_same_mixture(mixture):
    """With names, weights and order."""
    copied = pickle.loads(pickle.dumps(mixture))
    assert (list(copied), copied.names, copied.weights) == (ALL, mixture.names, mixture.weights)
    assert list(sampler_of(copied)) == list(sampler_of(mixture))
    assert sampler_of(copied).state_dict() == sampler_of(mixture).state_dict()


# --- caches and figures


def test_each_source_has_its_own_cache_and_figures(tmp_path):
    """Downloads go to each source's directory and are counted in its ``stats()``; hooks are the source's own."""
    events = {"web": [], "books": []}
    with Server(tmp_path / "files") as server:
        datasets = {}
        for name, counts in (("web", (4, 4)), ("books", (6,))):
            index = write_index(tmp_path / "files" / name, counts)
            datasets[name] = wids.ShardListDataset(
                f"{server.url}/{name}/{index.rpartition('/')[2]}",
                cache_dir=tmp_path / f"cache-{name}",
                transformations=facts_of,
                hooks=[events[name].append],
            )
        mixture = wids.mix({name: (dataset, 1) for name, dataset in datasets.items()})
        read = mixture.__getitems__(list(sampler_of(mixture)))
    assert Counter(name for name, *_ in read) == {"web": 7, "books": 7}
    stats = mixture.stats()
    assert {name: stats[name].fetches for name in stats} == {"web": 2, "books": 1}
    for name, dataset in datasets.items():
        assert dataset.stats() == stats[name]
        assert sum(isinstance(event, Fetched) for event in events[name]) == stats[name].fetches
        assert len(list((tmp_path / f"cache-{name}").glob("*.tar"))) == stats[name].fetches


# --- indexes whose sub-datasets have weights


PARTS = {"web": ((7, 0, 5), 0.5), "books": ((6,), 0.3), "code": ((2, 3), 0.2), "rest": ((4,), 0)}


@pytest.fixture
def index(tmp_path):
    """The path of an index of four sub-datasets, one of which has a weight of 0."""
    return write_mixture(tmp_path, PARTS)


def names_of(dataset, sampler):
    """How many samples of each source a sampler yields."""
    return Counter(dataset[k]["__dataset__"] for k in sampler)


def test_an_index_with_weights_is_a_mixture_for_samplers(index):
    """Its order is that of `wids.mix` with its sub-datasets; without a sampler it is a dataset like any other."""
    dataset = wids.ShardListDataset(index, transformations=[])
    assert names_of(dataset, range(len(dataset))) == {"web": 12, "books": 6, "code": 5, "rest": 4}
    assert names_of(dataset, sampler_of(dataset, epoch_size=100)) == {"web": 50, "books": 30, "code": 20}
    rows = [0, 12, 18, 23, 27]
    views = [dataset.select(range(*pair)) for pair in itertools.pairwise(rows)]
    mixture = wids.mix({name: (view, PARTS[name][1]) for name, view in zip(PARTS, views, strict=True)})
    assert list(sampler_of(dataset, epoch_size=100)) == list(sampler_of(mixture, epoch_size=100))


def test_weights_that_are_lost_are_named(tmp_path, index, caplog):
    """An index that is merged or split lists all shards itself, and is no mixture; a compiled one is."""
    plain = write_index(tmp_path / "plain", (2,))
    view = str(tmp_path / "view.json")
    wids.ShardListDataset(index).select(range(20)).save(view)
    output = str(tmp_path / "out.json")
    parts = [str(tmp_path / f"{k}.json") for k in range(2)]
    for write, is_told in (
        (lambda: merge_indexes([index], output, overwrite=True), True),
        (lambda: merge_indexes([view, plain], output, overwrite=True), True),
        (lambda: merge_indexes([view, index], output, overwrite=True), False),
        (lambda: split_index(index, parts, parts=lambda _: [range(4), range(4, 7)], overwrite=True), True),
        (
            lambda: split_index(view, parts, parts=lambda counts: [range(2), range(2, len(counts))], overwrite=True),
            False,
        ),
        (lambda: convert_index(index, str(tmp_path / "c.widsx")), False),
    ):
        caplog.clear()
        write()
        told = [record.getMessage() for record in caplog.records if "has no weights" in record.getMessage()]
        assert [("web 0.5, books 0.3, code 0.2, rest 0" in message) for message in told] == [True] * is_told


def test_a_state_knows_the_sources_of_an_index(tmp_path, index):
    """It is refused where one of them has other shards, which it names; it is the same wherever the shards lie."""
    state = sampler_of(wids.ShardListDataset(index)).state_dict()
    marks = {name: source["dataset"] for name, source in state["order"]["sources"].items()}
    assert len(set(marks.values())) == 4
    assert all(isinstance(mark, str) for mark in marks.values())
    elsewhere = write_mixture(tmp_path / "elsewhere", PARTS)
    assert sampler_of(wids.ShardListDataset(elsewhere)).state_dict() == state
    other = write_mixture(tmp_path / "other", {**PARTS, "books": ((2, 4), 0.3)})
    with pytest.raises(StateError, match=r"sources\.books\.dataset"):
        sampler_of(wids.ShardListDataset(other)).load_state_dict(state)
    # As with wids.mix of datasets of these shards.
    books = wids.ShardListDataset([{"url": f"{tmp_path}/books-0.tar", "nsamples": 6}])
    assert books.fingerprint == marks["books"]


def test_a_view_of_an_index_with_weights_is_a_mixture(index):
    """Of the samples it has; of a source that it has whole the state says the same."""
    dataset = wids.ShardListDataset(index, transformations=[])
    view = dataset.exclude(range(12, 15))
    assert names_of(view, sampler_of(view, epoch_size=100)) == {"web": 50, "books": 30, "code": 20}
    whole, part = (sampler_of(each).state_dict()["order"]["sources"] for each in (dataset, view))
    assert [name for name in whole if whole[name]["dataset"] != part[name]["dataset"]] == ["books"]
    with pytest.raises(StateError, match=r"sources\.books\.samples: 6 there, 3 here"):
        sampler_of(view).load_state_dict(sampler_of(dataset).state_dict())
    other = dataset.exclude([12, 13, 15])  # as many samples, of the same shard
    with pytest.raises(StateError, match=r"sources\.books\.dataset"):
        sampler_of(other).load_state_dict(sampler_of(view).state_dict())
    loaded = sampler_of(view)
    loaded.load_state_dict(pickle.loads(pickle.dumps(loaded)).state_dict())


def test_a_view_without_a_source(index):
    """What is left keeps its shares; without any source that has a weight the view is no mixture."""
    dataset = wids.ShardListDataset(index, transformations=[])
    view = dataset.select(range(12, 27))
    assert names_of(view, sampler_of(view, epoch_size=100)) == {"books": 60, "code": 40}
    assert names_of(view.select(range(6)), sampler_of(view.select(range(6)), epoch_size=10)) == {"books": 10}
    rest = dataset.select(range(23, 27))
    assert sorted(sampler_of(rest)) == list(range(4))


def test_a_mixture_of_shards_that_were_edited(index):
    """A list of an index's shards, or one whose shard was changed, is the mixture that the index was."""
    dataset = wids.ShardListDataset(index, transformations=[])
    order = list(sampler_of(dataset))
    assert list(sampler_of(wids.ShardListDataset(list(dataset.shards)))) == order
    dataset.shards = [{**row, "md5sum": ""} for row in dataset.shards]
    assert list(sampler_of(dataset)) == order
    dataset.shards = dataset.shards[:4]
    assert names_of(dataset, sampler_of(dataset, epoch_size=80)) == {"web": 50, "books": 30}


def test_indexes_without_a_mixture(tmp_path):
    """Weights of one dataset, or none at all, and local tars without an index: samplers read each sample once."""
    shards = write_shards(tmp_path, (4, 3))
    alone = write_json(tmp_path / "alone.json", {"wids_version": 1, "weight": 3, "shardlist": shards})
    plain = write_mixture(tmp_path, {"a": ((3,), None), "b": ((4,), None)})
    own = [{**shard, "weight": "mine"} for shard in shards]
    for given in (alone, plain, own, [shard["url"] for shard in shards], f"{tmp_path}/s{{0..1}}.tar"):
        dataset = wids.ShardListDataset(given)
        assert mixed_parts(dataset) is None
        assert sorted(sampler_of(dataset)) == list(range(7))


def test_bad_weights_of_an_index(tmp_path):
    """Are an error of the index, where a sampler asks."""
    for weights, words in (
        ((-1, 1), "weight of source 'a' is -1"),
        ((0, 0), "all weights"),
        ((0.5, None), "is a share"),
    ):
        parts = dict(zip("ab", (((3,), weight) for weight in weights), strict=True))
        dataset = wids.ShardListDataset(write_mixture(tmp_path, parts), transformations=[])
        assert len(list(dataset)) == 6
        with pytest.raises(SpecError, match=words):
            sampler_of(dataset)


def test_weights_within_a_source_are_not_looked_at(index):
    """A mixture, or an index with weights, as a source: its samples come evenly."""
    dataset = wids.ShardListDataset(index, transformations=[])
    own = [{}, {}]
    inner = wids.mix({"x": (dataset, 1), "y": (own, 0)})
    mixture = wids.mix({"index": (dataset, 1), "inner": (inner, 1)})
    counts = Counter(sampler_of(mixture, epoch_size=2 * 27 * 29))
    assert set(counts) == set(range(27 + 29))
    assert {counts[k] for k in range(27)} == {29}
    assert {counts[k] for k in range(27, 56)} == {27}
    assert names_of(mixture, range(56)) == {"index": 27, "x": 27, "y": 2}
    assert own == [{}, {}]  # what a source holds is not written into


# --- prefetching, and what a limited cache needs

REMOTE = {"web": (8, 0.4), "books": (6, 0.3), "code": (4, 0.2), "talks": (3, 0.1)}
ROWS = 60


@pytest.fixture(scope="module")
def remote(tmp_path_factory):
    """A server of four sources' shards of 60 samples; and bytes of a shard, and those that it takes in a cache."""
    directory, noise = tmp_path_factory.mktemp("remote"), np.random.default_rng(0)
    for name, (count, _) in REMOTE.items():
        for k in range(count):
            write_tar(directory / f"{name}-{k}.tar", [(f"{row:02d}.bin", noise.bytes(2500)) for row in range(ROWS)])
    size = (directory / "web-0.tar").stat().st_size
    with Server(directory) as server:
        yield server, size, size + table_allowance(size, ROWS)


def remote_mixture(remote, directory_of, limit_of, **options):
    """The four sources, each with a directory and a limit (in shards) of its own."""
    server, size, footprint = remote
    sources = {}
    for name, (count, weight) in REMOTE.items():
        shards = [{"url": f"{server.url}/{name}-{k}.tar", "nsamples": ROWS, "filesize": size} for k in range(count)]
        places = {"cache_dir": directory_of(name), "cache_size": limit_of(name) * footprint}
        sources[name] = wids.ShardListDataset(shards, transformations=[], **places, **options), weight
    return wids.mix(sources)


def needed_shards(mixture, order):
    """How many shards a sequence of indices reads, counted anew in each pass over a source."""
    ends, needed = np.array(mixture.cumulative_sizes), 0
    sources = np.searchsorted(ends, order, side="right")
    for source, length in enumerate(mixture.lengths):
        own = np.array(order)[sources == source]
        needed += sum(len(set((own[at : at + length] // ROWS).tolist())) for at in range(0, len(own), length))
    return needed


@pytest.mark.parametrize("early_reads", [False, True])
@pytest.mark.parametrize(
    ("is_shared", "limit"), [(True, 16), (True, 12), (False, 4)], ids=["two windows", "window + 1", "own directories"]
)
def test_a_cold_epoch_downloads_each_shard_once(remote, tmp_path, is_shared, limit, early_reads):
    """Through a cache of two windows of each source (of window + 1, too) no more than 5 % beyond what is read."""
    server, size, _ = remote
    mixture = remote_mixture(
        remote, lambda name: tmp_path / ("all" if is_shared else name), lambda _: limit, early_reads=early_reads
    )
    sampler = wids.DistributedChunkedSampler(mixture, num_replicas=1, rank=0, window=2, seed=1)
    before, read = sum(server.sent_bytes.values()), []
    for batch in DataLoader(mixture, batch_size=32, sampler=sampler, collate_fn=same):
        read += [sample["__dataset__"] for sample in batch]
    order = list(wids.DistributedChunkedSampler(mixture, num_replicas=1, rank=0, window=2, seed=1))
    needed = needed_shards(mixture, order) * size
    assert Counter(read) == {"web": 504, "books": 378, "code": 252, "talks": 126}
    assert needed / 1.5 < sum(server.sent_bytes.values()) - before <= 1.05 * needed


def warnings_of(caplog, mixture, **options):
    """What is said of limits when a sampler of one rank begins to draw."""
    caplog.clear()
    next(iter(wids.DistributedChunkedSampler(mixture, num_replicas=1, rank=0, window=2, **options)))
    return [record.getMessage() for record in caplog.records if "has space for" in record.getMessage()]


def test_the_limit_is_held_against_all_sources_of_its_directory(remote, tmp_path, caplog):
    """Window + 1 shards of each source with a weight; named once; sources without one need nothing."""
    _, size, footprint = remote
    mixture = remote_mixture(remote, lambda _: tmp_path, lambda _: 8)
    [said] = warnings_of(caplog, mixture)
    assert f"cache_size ({format_size(8 * footprint)}) has space for {8 * footprint // size} shards" in said
    assert "read 8 at a time, out of 4 sources" in said
    assert f"cache_size={12 * size:_} would do, or window=1" in said
    assert warnings_of(caplog, mixture) == []
    assert warnings_of(caplog, remote_mixture(remote, lambda _: tmp_path, lambda _: 12)) == []
    two = remote_mixture(remote, lambda _: tmp_path, lambda _: 6)
    sampler = wids.DistributedChunkedSampler(two, num_replicas=1, rank=0, window=2)
    sampler.reweight({"books": 0, "talks": 0})
    caplog.clear()
    next(iter(sampler))
    assert [record for record in caplog.records if "has space for" in record.getMessage()] == []


def test_sources_with_directories_of_their_own_have_limits_of_their_own(remote, tmp_path, caplog):
    """Each needs its own window + 1 shards, and no more than it has."""
    enough = {"web": 3, "books": 3, "code": 3, "talks": 3}
    assert warnings_of(caplog, remote_mixture(remote, tmp_path.__truediv__, enough.__getitem__)) == []
    assert warnings_of(caplog, remote_mixture(remote, tmp_path.__truediv__, enough.__getitem__), lanes=2) != []
    few = {**enough, "code": 2}
    [said] = warnings_of(caplog, remote_mixture(remote, tmp_path.__truediv__, few.__getitem__))
    assert "has space for 2 shards" in said
    assert "out of" not in said
    [said] = warnings_of(
        caplog, remote_mixture(remote, tmp_path.__truediv__, {**enough, "talks": 2}.__getitem__), lanes=9
    )[-1:]
    assert "read 3 at a time" in said  # of nine lanes with windows of two, three shards
    assert f"cache_size={4 * remote[1]:_} would do" in said


def test_an_index_with_weights_needs_a_window_of_each_source(remote, tmp_path, caplog):
    """One dataset of one cache, whose limit is held against all of its sources."""
    server, size, _ = remote
    parts = [
        {
            "name": name,
            "weight": weight,
            "shardlist": [
                {"url": f"{server.url}/{name}-{k}.tar", "nsamples": ROWS, "filesize": size} for k in range(count)
            ],
        }
        for name, (count, weight) in REMOTE.items()
    ]
    index = write_json(tmp_path / "mix.json", {"wids_version": 1, "datasets": parts})
    for shards, count in ((11, 1), (12, 0)):
        dataset = wids.ShardListDataset(index, cache_dir=tmp_path / "cache", cache_size=shards * size)
        assert len(warnings_of(caplog, dataset)) == count


@pytest.mark.parametrize("world", [1, 3])
def test_a_saved_mixture_opens_as_the_mixture(tmp_path, world):
    """With its names and weights, in the same order; a state of either is one of the other."""
    a = wids.ShardListDataset(write_index(tmp_path / "a", (6, 5), name="train.json"))
    b = wids.ShardListDataset([{**row, "own": 1} for row in write_shards(tmp_path / "b", (4, 3, 9))])
    mixture = wids.mix({"web": (a, 3), "books": (b, 0.5), "later": (a, 0)})
    mixture.save(tmp_path / "mix.json")
    opened = wids.ShardListDataset(tmp_path / "mix.json")
    assert len(opened) == len(mixture) == 38
    assert [opened[i]["__dataset__"] for i in range(38)] == ["web"] * 11 + ["books"] * 16 + ["later"] * 11
    assert [opened[i][".cls"] for i in range(38)] == [mixture[i][".cls"] for i in range(38)]
    assert opened.shards[2]["own"] == 1
    for rank in range(world):
        options = {"num_replicas": world, "rank": rank, "seed": 3, "window": 2}
        one, other = (wids.DistributedChunkedSampler(each, **options) for each in (mixture, opened))
        drawn = iter(one)
        next(drawn), next(drawn)
        other.load_state_dict(one.state_dict())
        assert list(other) == list(drawn)
        one.load_state_dict(other.state_dict())
        assert list(one) == list(other)
    again = tmp_path / "again.json"  # where the sources of the first have names and weights no more
    wids.mix({"again": (opened, 1), "b": (b, 1)}).save(again)
    assert [part.name for part in mixed_parts(wids.ShardListDataset(again))] == ["again", "b"]


def test_a_mixture_that_no_index_can_say(tmp_path):
    """A typed error names the source; nothing is written, and no file is replaced that it is made of."""
    a = wids.ShardListDataset(write_index(tmp_path / "a", (6, 5), name="train.json"))
    path = tmp_path / "mix.json"
    for source, words in (
        (list(range(5)), "source 'b' is a list"),
        (a.select([1, 2]), "source 'b' is a view"),
        (wids.mix({"x": a, "y": a}), "source 'b' is a Mixture"),
    ):
        with pytest.raises(InputError, match=words):
            wids.mix({"a": (a, 1), "b": (source, 1)}).save(path)
    with pytest.raises(InputError, match="the mixture has one source, 'a'"):
        wids.mix({"a": a}).save(path)
    for taken in (tmp_path / "a" / "train.json", tmp_path / "a" / "s0.tar"):
        before = taken.read_bytes()
        with pytest.raises(OutputError):
            wids.mix({"a": (a, 1), "b": (a, 1)}).save(taken)
        assert taken.read_bytes() == before
    assert not path.exists()

"""Marks: repeated samples say so (tail="mask"), so that all ranks count what one process counts; samples have seeds."""

import copy
import hashlib
import json
import pickle
from collections import Counter, defaultdict
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset

import wids
from tests.support.examples import some
from tests.support.goldens import read_golden
from tests.support.launch import PROGRAMS, environment, forked_ranks, run_all
from tests.support.numbers import Numbers, alone
from tests.support.shards import write_index, write_shards
from wids.core.order.mask import MarkedIndex, OwnIndex, RepeatedIndex, SeededIndex, mark, seeds_of
from wids.core.order.permutation import SEEDS, random_words
from wids.errors import InputError

COUNTS = [0, 1, 2, 3, 16, 17, 18, 19]
GOLDEN = read_golden("seeds.json")


def accuracy_of(indices):
    """Samples and right answers of the programs' classifier."""
    return [len(indices), sum(i % 5 < 2 for i in indices)]


def test_accuracy_on_three_ranks_is_that_of_one(tmp_path):
    """For counts that 3 divides and not, fewer than 3 and none: to the sample; padding alone counts some twice."""
    index = write_index(tmp_path / "d", (7, 0, 12))
    program = [str(PROGRAMS / "with_evaluation.py"), index]
    for world in (3, 1):
        command = [*forked_ranks(world), *program, str(tmp_path / f"{world}.json"), json.dumps(COUNTS)]
        run_all([command], env=environment(), output=tmp_path / "output.txt")
    three, one = (json.loads((tmp_path / f"{world}.json").read_text()) for world in (3, 1))
    for count in COUNTS:
        assert three[f"mask {count}"] == one[f"mask {count}"] == one[f"pad {count}"] == accuracy_of(range(count))
    assert three["pad 17"][0] == three["pad 16"][0] == 18
    assert three["pad 17"][1] / 18 != one["pad 17"][1] / 17


def collatable(sample):
    """A sample without what default_collate does not know."""
    return {name: value for name, value in sample.items() if value is not None}


def samplers(dataset, world, **options):
    """The samplers of all ranks."""
    return [
        wids.DistributedChunkedSampler(dataset, num_replicas=world, rank=rank, tail="mask", **options)
        for rank in range(world)
    ]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.thorough)])
def test_valid_samples_are_each_sample_once(tmp_path, workers):
    """Through a DataLoader with workers and default collation, shuffled, for several epochs and world sizes."""
    dataset = wids.ShardListDataset(write_shards(tmp_path / "d", (7, 4, 12)), fields=[".cls"]).add_transform(collatable)
    for world in (1, 2, 3, 5) if workers == 0 else (3,):
        for epoch in range(2):
            valid, repeated = Counter(), Counter()
            for sampler in samplers(dataset, world, chunksize=3):
                sampler.set_epoch(epoch)
                own = 0
                for batch in DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=workers):
                    assert batch["__valid__"].dtype == torch.bool
                    assert batch["__index__"].tolist() == batch[".cls"].tolist()
                    valid.update(batch[".cls"][batch["__valid__"]].tolist())
                    repeated.update(batch[".cls"][~batch["__valid__"]].tolist())
                    own += int(batch["__valid__"].sum())
                sampler.set_epoch(epoch)
                assert own == sampler.num_valid
            assert valid == Counter(range(23))
            assert repeated.total() == -23 % world


def test_marks_are_seen_by_transformations(tmp_path):
    """__valid__ is in the dict that transformations get, in batches and out, and only from a sampler that masks."""
    shards = write_shards(tmp_path / "d", (3, 2))
    seen = wids.ShardListDataset(shards, transformations=[lambda sample: sample.get("__valid__", "absent")])
    assert [seen[OwnIndex(1)], seen[RepeatedIndex(4)], seen[1]] == [True, False, "absent"]
    indices = [RepeatedIndex(4), OwnIndex(0), OwnIndex(4), RepeatedIndex(0)]
    assert seen.__getitems__(indices) == [False, True, True, False]
    assert seen.__getitems__([4, 0]) == ["absent", "absent"]
    assert seen.__getitems__([]) == []


def test_a_marked_index_reads_what_its_number_reads(tmp_path):
    """All but __valid__ is the same, __index__ is a plain int, and negative or wrong numbers are what they are."""
    dataset = wids.ShardListDataset(write_shards(tmp_path / "d", (3, 2)), transformations="raw")
    for i in (0, 2, 4, -1, 2):
        marked, plain = dataset[RepeatedIndex(i)], dataset[i]
        assert marked.pop("__valid__") is False
        assert type(marked["__index__"]) is int
        assert marked == plain
        marked = dataset.__getitems__([OwnIndex(i)])[0]
        assert marked.pop("__valid__") is True
        assert type(marked["__index__"]) is int
        assert marked == plain
    with pytest.raises(IndexError, match="sample 5 of a dataset of 5"):
        dataset[OwnIndex(5)]


def test_subclasses_with_access_of_their_own(tmp_path):
    """A subclass that goes through super() or has its own get_shard masks like the class itself."""

    class Own(wids.ShardListDataset):
        def __getitem__(self, index):
            return super().__getitem__(index)

    class Shard(wids.ShardListDataset):
        def get_shard(self, index):
            return super().get_shard(index)

    shards = write_shards(tmp_path / "d", (3, 2))
    for make in (Own, Shard):
        dataset = make(shards)
        for get in (dataset.__getitem__, lambda i, dataset=dataset: dataset.__getitems__([i])[0]):
            assert [get(kind(1)).get("__valid__") for kind in (OwnIndex, RepeatedIndex, int)] == [True, False, None]


@pytest.mark.parametrize("way", ["PIL", "numpy", "torch", "raw", "list", "none", "fluent", "fields"])
def test_every_way_to_decode_keeps_the_mark(tmp_path, way):
    """Whatever decodes and transforms the members: the same sample as unmarked, and the mark beside it."""

    def relabel(sample):
        return {**sample, "label": len(sample["__key__"])}

    options = {
        "list": {"transformations": ["numpy", relabel]},
        "none": {"transformations": []},
        "fluent": {},
        "fields": {"fields": (".txt",)},
    }.get(way, {"transformations": way})
    dataset = wids.ShardListDataset(write_shards(tmp_path / "d", (3, 2)), **options)
    if way == "fluent":
        dataset.add_transform(relabel)

    def comparable(sample):
        values = {name: value.getvalue() if hasattr(value, "getvalue") else value for name, value in sample.items()}
        return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in values.items()}

    for i in range(5):
        plain = comparable(dataset[i])
        assert "__valid__" not in plain
        for kind in (OwnIndex, RepeatedIndex):
            for sample in (dataset[kind(i)], *dataset.__getitems__([kind(i)])):
                assert comparable(sample) == {**plain, "__valid__": kind.is_valid}


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_loader_over_joined_datasets_masks_too(tmp_path, workers):
    """ConcatDataset subtracts from indices; marks come through that, through workers and through collation."""
    parts = [
        wids.ShardListDataset(write_shards(tmp_path / name, counts), fields=[".cls"]).add_transform(collatable)
        for name, counts in (("a", (3, 2)), ("b", (4,)), ("c", (1, 1)))
    ]
    joined = ConcatDataset([parts[0], parts[1] + parts[2]])
    valid, repeated = Counter(), 0
    for sampler in samplers(joined, 4):
        for batch in DataLoader(joined, batch_size=2, sampler=sampler, num_workers=workers):
            assert batch["__valid__"].dtype == torch.bool
            pairs = zip(batch["__shard__"], batch["__shardindex__"].tolist(), strict=True)
            own = batch["__valid__"].tolist()
            valid.update(pair for pair, counts in zip(pairs, own, strict=True) if counts)
            repeated += own.count(False)
    assert (len(valid), set(valid.values()), repeated) == (11, {1}, 1)


def test_joined_datasets_mask_too(tmp_path):
    """ds1 + ds2 hands the marks on: each sample of both counts once over the ranks."""
    one = wids.ShardListDataset(write_shards(tmp_path / "a", (3, 2)), fields=[".cls"])
    two = wids.ShardListDataset(write_shards(tmp_path / "b", (4,)), fields=[".cls"])
    joined = one + two
    valid = Counter()
    for sampler in samplers(joined, 4):
        for i in sampler:
            sample = joined[i]
            if sample["__valid__"]:
                valid[sample["__shard__"], sample["__shardindex__"]] += 1
    assert set(valid.values()) == {1}
    assert len(valid) == 9


def test_a_marked_index_is_an_int_in_all_respects():
    """It equals, hashes, sorts, prints and pickles as the number it is, and calculates to plain ints."""
    for kind in (OwnIndex, RepeatedIndex):
        index = kind(7)
        assert isinstance(index, int)
        assert (index, hash(index), repr(index), f"{index:03d}", json.dumps(index)) == (7, hash(7), "7", "007", "7")
        assert {7: "x"}[index] == list("abcdefgx")[index] == "x"
        assert [type(found) for found in (index + 1, 1 + index, 9 - index, index * 2, -index)] == [int] * 5
        assert torch.tensor([index]).dtype == torch.int64
        for found in (pickle.loads(pickle.dumps(index)), copy.copy(index), copy.deepcopy(index), index - 0):
            assert (found, found.is_valid) == (7, kind.is_valid)


def test_num_valid_of_a_subset_gives_the_same_accuracy(tmp_path):
    """The first num_valid samples that a loader hands to each rank, summed: what one process finds, for every n."""
    shards = wids.ShardListDataset(write_shards(tmp_path / "d", (7, 0, 12)), fields=[".cls"])
    for count in COUNTS:
        subset = Subset(shards, list(range(count))[::-1])
        for options in ({"shuffle": False}, {"chunksize": 3}):
            found = []
            for rank in range(3):
                sampler = wids.DistributedChunkedSampler(subset, num_replicas=3, rank=rank, **options)
                valid = sampler.num_valid
                loader = DataLoader(subset, batch_size=4, sampler=sampler, collate_fn=list)
                found += [sample[".cls"] for batch in loader for sample in batch][:valid]
            assert sorted(found) == list(range(count))
            assert accuracy_of(found) == accuracy_of(range(count))


def test_other_datasets_are_refused_and_counted_instead(tmp_path):
    """Where marks would be lost the error says what to do instead, and that is exact too: the first num_valid count."""
    shards = wids.ShardListDataset(write_shards(tmp_path / "d", (7, 4)))
    for dataset in (Subset(shards, range(10)), list(range(10)), ConcatDataset([shards, Subset(shards, [1])])):
        with pytest.raises(ValueError, match=r"tail='mask' .* sampler\.num_valid"):
            samplers(dataset, 3)
        n, valid = len(dataset), Counter()
        for rank in range(3):
            sampler = wids.DistributedChunkedSampler(dataset, num_replicas=3, rank=rank)
            count = sampler.num_valid
            valid.update(list(sampler)[:count])
        assert valid == Counter(range(n))


def test_masks_in_a_stream_and_in_a_resume(tmp_path):
    """Nothing of a stream is repeated; after a resume on other ranks the pads alone are."""
    dataset = wids.ShardListDataset(write_shards(tmp_path / "d", (7, 4)))
    for sampler in samplers(dataset, 3, epoch_size=10):
        assert {index.is_valid for index in sampler} == {True}
    first = samplers(dataset, 2)[0]
    next(iter(first))
    found = Counter()
    for sampler in samplers(dataset, 4):
        sampler.load_state_dict(first.state_dict())
        found.update(index.is_valid for index in sampler)
    assert found == {True: 9, False: 3}


@pytest.mark.parametrize("indices", [[OwnIndex(2), 1], [1, RepeatedIndex(2)]])
def test_marked_and_plain_indices_in_one_batch(tmp_path, indices):
    """Each sample is as its own index says, in a batch as alone."""
    dataset = wids.ShardListDataset(write_shards(tmp_path / "d", (4,)), fields=[".cls"])
    together = [sample.get("__valid__") for sample in dataset.__getitems__(indices)]
    assert together == [dataset[index].get("__valid__") for index in indices]


def test_masking_is_settled_when_an_iteration_begins():
    """A tail, or seeds, that are assigned later do not mark half of a running iteration."""
    sampler = alone(Numbers(9000))
    running = iter(sampler)
    next(running)
    sampler.tail, sampler.sample_seeds = "mask", True
    assert not any(isinstance(index, MarkedIndex) for index in running)


# --- seeds


class Sharded:
    """A dataset of shards of 7, 0, 13 and 9 numbers that hands indices on."""

    takes_marked_indices = True
    lengths = (7, 0, 13, 9)

    def __len__(self):
        return 29

    def __getitem__(self, index):
        return index


class Backwards(Sharded):
    """The same numbers as a part of others, in another order."""

    def __init__(self):
        self.dataset, self.indices = Sharded(), list(range(29))[::-1]


def seed_of(sample, *, seed=0, number=0, copy=0):
    """A seed by its definition, one at a time."""
    words = random_words(4 * copy + 1, seed=seed, epoch=number, stream=SEEDS, position=sample)
    return int(words[-1]) >> 1


def own_seed(seed, name):
    """The seed of a mixture's source."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest(), "little")


def seeded(dataset, world=1, **options):
    """The seeded samplers of all ranks."""
    options = {"chunksize": 5, "seed": 3, "sample_seeds": True, **options}
    return [wids.DistributedChunkedSampler(dataset, num_replicas=world, rank=rank, **options) for rank in range(world)]


def pairs_of(samplers, most=None):
    """(index, seed) of the ranks' samples, as they are dealt."""
    rows = [[(int(index), index.seed) for index in islice(sampler, most)] for sampler in samplers]
    return [pair for step in zip(*rows, strict=True) for pair in step]


def test_seeds_are_pinned():
    """They never change: a program that is run again makes the same samples."""
    indices = np.array([0, 1, 2, 1_281_166, 10**12])
    assert seeds_of(indices, seed=0, number=0).tolist() == GOLDEN["first"]
    numbers, copies = np.array([0, 1, 2, 3, 4]), np.array([0, 1, 0, 2, 1])
    assert seeds_of(indices, seed=-5, number=numbers, copy=copies).tolist() == GOLDEN["copies"]


def test_seeds_are_the_raw_words_of_philox():
    """One by one, for any seed and epoch, and never above what an int64 tensor holds."""
    for seed in (0, -1, 1 << 70):
        for number in (0, 3, -2, 1 << 65):
            found = seeds_of(np.arange(50), seed=seed, number=number, copy=2).tolist()
            assert found == [seed_of(i, seed=seed, number=number, copy=2) for i in range(50)]
            assert torch.tensor(found).tolist() == found
    assert len(set(seeds_of(np.arange(10_000), seed=0, number=0).tolist())) == 10_000


@pytest.mark.parametrize("dataset", [Sharded(), Backwards()])
def test_the_seed_of_a_sample_in_an_epoch(dataset):
    """Whatever else: ranks, lanes, window, chunks, tails, shuffled or not, a resume; repeated samples have it again."""
    settings = [
        {"world": world, "lanes": lanes, "window": window, "chunksize": size, "tail": tail, "shuffle": shuffle}
        for world in (1, 2, 3)
        for lanes in (1, 4, 30)
        for window, size in ((1, 3), (4, 100))
        for tail in ("pad", "drop", "mask")
        for shuffle in (True, False)
    ]
    for options in some(settings, every=5):
        for epoch in (0, 4, -2):
            samplers = seeded(dataset, **options)
            for sampler in samplers:
                sampler.set_epoch(epoch)
                sampler.load_state_dict(sampler.state_dict())
            found = pairs_of(samplers, 3)
            for sampler in samplers:
                sampler.load_state_dict(sampler.state_dict())
            found += pairs_of(samplers)
            assert len({index for index, _ in found}) >= 29 - (options["world"] - 1)
            assert found == [(i, seed_of(i, seed=3, number=epoch)) for i, _ in found]


def test_the_seed_does_not_mind_a_range_nor_an_epoch_that_is_repeated():
    """Of a part of the range, of assigned chunks and of more samples than there are: those of the dataset's samples."""
    part, chunks, long = seeded(Sharded(), num_samples=(5, 20)) + seeded(Sharded()) + seeded(Sharded())
    chunks.ranges = [(20, 29), (3, 4)]
    long.dslength_per_replica = 70
    for sampler, samples in ((part, range(5, 20)), (chunks, [3, *range(20, 29)]), (long, range(29))):
        found = pairs_of([sampler])
        assert found == [(i, seed_of(i, seed=3)) for i, _ in found]
        assert {i for i, _ in found} == set(samples)


@pytest.mark.parametrize("options", [{"epochs": 3}, {"epochs": None}, {"epoch_size": 40}, {"epoch_size": 11}])
def test_passes_without_a_seam(options):
    """The k-th time a sample comes it has the seed of pass k, for any ranks, through nominal epochs and resumes."""
    for world in (1, 2, 3):
        samplers, times, state = seeded(Sharded(), world, lanes=3, **options), Counter(), None
        for part in range(8):
            if part % 2:  # half of the time by other ranks
                samplers = seeded(Sharded(), world % 3 + 1, lanes=3, **options)
            for sampler in samplers:
                if state is not None:
                    sampler.load_state_dict(state)
            for index, seed in pairs_of(samplers, 6):
                assert seed == seed_of(index, seed=3, number=times[index])
                times[index] += 1
            state = samplers[0].state_dict()
        assert len(times) == 29


@pytest.mark.parametrize("options", [{}, {"source_batch": 4}])
def test_sources_of_a_mixture(options):
    """The k-th time a sample comes it has the seed of pass k of its source, which is known by its name alone."""
    weights = {"a": 0.7, "b": 0.2, "c": 0.1}
    sources = {name: (Sharded(), weight) for name, weight in weights.items()}
    mixture, times = wids.mix(sources), defaultdict(Counter)
    samplers = seeded(mixture, 2, epoch_size=96, **options)
    found = [pair for _ in range(2) for pair in pairs_of(samplers)]
    for index, seed in found:
        name, own = "abc"[index // 29], index % 29
        assert seed == seed_of(own, seed=own_seed(3, name), number=times[name][own])
        times[name][own] += 1
    assert max(times["a"].values()) > 2
    other = wids.mix({"new": (Sharded(), 0.3), **dict(list(sources.items())[1:])})
    for sampler in seeded(other, 1, epoch_size=96):
        for index, seed in pairs_of([sampler], 90):
            name = ("new", "b", "c")[index // 29]
            assert seed in {seed_of(index % 29, seed=own_seed(3, name), number=k) for k in range(4)}


@pytest.mark.parametrize("options", [{}, {"epochs": 2}, {"epoch_size": 100}, {"tail": "mask", "epoch_size": 31}])
def test_copies_by_weights(options):
    """Copies of a sample in a pass have seeds of their own, numbered from 0, the same for any ranks and order."""
    weights = np.arange(29) % 5 * 1.7
    size = options.get("epoch_size", 29)
    for world, window in ((1, 4), (2, 1), (3, 2)):
        samplers = seeded(Sharded(), world, weights=weights, window=window, lanes=world + 1, **options)
        found = pairs_of(samplers)
        passes = [found[at : at + size] for at in range(0, len(found), size)]
        for number, seeds in enumerate(passes[: options.get("epochs", 1)]):
            times = Counter(index for index, _ in seeds)
            assert sorted(seeds) == sorted(
                (i, seed_of(i, seed=3, number=number, copy=k)) for i, total in times.items() for k in range(total)
            )
            assert max(times.values()) > 1
        single = pairs_of(seeded(Sharded(), weights=weights, **options))
        assert set(found[:size]) == set(single[:size])


def test_batches_of_a_mixture_have_seeds():
    """wids.MixtureBatchSampler hands the option on."""
    batches = wids.MixtureBatchSampler(wids.mix([Sharded(), Sharded()]), 4, sample_seeds=True, num_replicas=1, rank=0)
    assert {type(index) for batch in batches for index in batch} == {SeededIndex}


def test_a_state_does_not_know_of_seeds():
    """A state that was taken without seeds goes on with them, and the other way; off, indices are plain ints."""
    plain, found = seeded(Sharded(), sample_seeds=False)[0], seeded(Sharded())[0]
    assert plain.state_dict() == found.state_dict()
    assert {type(index) for index in islice(plain, 9)} == {int}
    found.load_state_dict(plain.state_dict())
    rest = list(found)
    assert len(rest) == 20
    plain.load_state_dict(plain.state_dict())
    assert list(plain) == rest


def read(dataset, indices):
    """A batch as a loader reads it."""
    return dataset.__getitems__(indices) if hasattr(dataset, "__getitems__") else [dataset[i] for i in indices]


def test_seeds_are_in_the_samples(tmp_path):
    """Alone, in batches, through joins, mixtures, views and subclasses, with __valid__; collation takes them."""
    shards = write_shards(tmp_path / "d", (3, 2))

    class Own(wids.ShardListDataset):
        def __getitem__(self, index):
            return super().__getitem__(index)

    class Shard(wids.ShardListDataset):
        def get_shard(self, index):
            return super().get_shard(index)

    plain = wids.ShardListDataset(shards)
    datasets = [make(shards, fields=[".cls"]) for make in (wids.ShardListDataset, Own, Shard)]
    datasets += [plain.select([4, 2, 0, 1, 3]), plain + plain, wids.mix([plain, plain]), wids.mix([plain + plain])]
    for dataset in datasets:
        for index in (SeededIndex(4, 11), SeededIndex(0, 12, True), SeededIndex(2, 13, False)):
            for sample in (dataset[index], *read(dataset, [index])):
                assert type(sample["__index__"]) is int
                assert (sample["__seed__"], sample.get("__valid__")) == (index.seed, index.is_valid)
                assert {name: sample[name] for name in index.marks()} == index.marks()
            assert dataset[index][".cls"] == dataset[int(index)][".cls"]
    twice = datasets[0].__getitems__([SeededIndex(1, 7), SeededIndex(1, 8), 1])
    assert [sample.get("__seed__") for sample in twice] == [7, 8, None]
    dataset = datasets[0].add_transform(collatable)
    loader = DataLoader(dataset, batch_size=2, sampler=seeded(dataset, tail="mask")[0])
    found = {
        i: seed for batch in loader for i, seed in zip(batch[".cls"].tolist(), batch["__seed__"].tolist(), strict=True)
    }
    assert found == {i: seed_of(i, seed=3) for i in range(5)}


def test_an_index_with_a_seed_is_an_int_in_all_respects():
    """It equals, hashes, prints and pickles as its number, keeps its marks in copies, and is small for workers."""
    for is_valid in (None, True, False):
        index = SeededIndex(7, 1 << 62, is_valid)
        assert isinstance(index, MarkedIndex)
        assert (index, hash(index), repr(index), f"{index:03d}", json.dumps(index)) == (7, hash(7), "7", "007", "7")
        assert [type(found) for found in (index + 1, 9 - index, index * 2, -index)] == [int] * 4
        for found in (pickle.loads(pickle.dumps(index)), copy.copy(index), copy.deepcopy(index), index - 0):
            assert (found, found.seed, found.is_valid) == (7, 1 << 62, is_valid)
    batch = [SeededIndex(10**9 + k, (1 << 62) + k) for k in range(64)]
    assert len(pickle.dumps(batch)) < 64 * 32


def test_marks_are_made_when_they_are_drawn():
    """What is left of an iterator of indices, or of seeds, stays in it."""
    indices, seeds = iter(range(5)), iter(range(100, 200))
    own = mark(islice(indices, 2), seeds=seeds, is_valid=True)
    assert [(index, index.seed, index.is_valid) for index in own] == [(0, 100, True), (1, 101, True)]
    rest = mark(indices, seeds=seeds)
    assert [(index, index.seed, index.is_valid) for index in rest] == [(2, 102, None), (3, 103, None), (4, 104, None)]
    assert [type(next(mark([1], is_valid=is_valid))) for is_valid in (None, True, False)] == [
        int,
        OwnIndex,
        RepeatedIndex,
    ]


def test_datasets_that_would_lose_seeds_are_refused():
    """A typed error, that says what to take instead."""
    for dataset in (
        Subset(Sharded(), range(10)),
        list(range(10)),
        ConcatDataset([Sharded(), range(3)]),
        wids.mix([[1]]),
    ):
        with pytest.raises(InputError, match=r"sample_seeds=True .* dataset\.select\(indices\)"):
            seeded(dataset)
    with pytest.raises(ValueError, match="sample_seeds is 'yes'"):
        seeded(Sharded(), sample_seeds="yes")

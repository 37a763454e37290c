"""tail="mask": repeated samples say so, so that what is counted over all ranks is what one process counts."""

import copy
import json
import pickle
from collections import Counter

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset

import wids
from tests.support.launch import PROGRAMS, environment, forked_ranks, run_all
from tests.support.numbers import Numbers, alone
from tests.support.shards import write_index, write_shards
from wids.order.mask import MarkedIndex, OwnIndex, RepeatedIndex

COUNTS = [0, 1, 2, 3, 16, 17, 18, 19]


def accuracy_of(indices):
    """Samples and right answers of the programs' classifier."""
    return [len(indices), sum(i % 5 < 2 for i in indices)]


@pytest.mark.e2e
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


@pytest.mark.parametrize("workers", [0, 2])
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


@pytest.mark.parametrize("workers", [0, 2])
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
    """A tail that is assigned later does not mark half of a running iteration."""
    sampler = alone(Numbers(9000))
    running = iter(sampler)
    next(running)
    sampler.tail = "mask"
    assert not any(isinstance(index, MarkedIndex) for index in running)

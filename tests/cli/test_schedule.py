"""`wids at` and `wids when`: which samples made up a batch, and when a sample is read; against samplers and loaders."""

from __future__ import annotations

import inspect
import itertools
import json
import random
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, get_worker_info

from tests.support import columns
from tests.support.cli import complaint, in_one_line, run, run_apart, run_ok
from tests.support.examples import examples, some
from tests.support.shards import mixture_index, serve, write_index, write_json
from wids import BucketBatchSampler, DistributedChunkedSampler, PackSampler, ShardListDataset
from wids.core.collection.changes import find_earlier
from wids.core.order import batching
from wids.core.order.batch_epochs import BatchEpochs
from wids.core.order.batching import make_rule
from wids.core.order.layout import ShardCounts, SourceSpan
from wids.core.order.packing import make_pack_rule
from wids.core.order.population import sampler_epochs
from wids.core.order.settings import SamplerSettings
from wids.tools.cli.look.schedule import show_batch, show_readings
from wids.tools.simulate.resume import Resume
from wids.tools.simulate.schedule import BatchTimetable, Piece, Reading, Timetable, make_timetable


class Numbers(Dataset):
    """Samples that are (their index, the worker that read them)."""

    def __init__(self, lengths):
        """Of shards with these counts."""
        self.lengths = lengths

    def __len__(self):
        """How many."""
        return sum(self.lengths)

    def __getitem__(self, index):
        """The index, and the worker."""
        worker = get_worker_info()
        return index, -1 if worker is None else worker.id


def timetable(lengths, *, world, batch_size=1, epoch=0, samples=None, tail="pad", lanes=None, **options):
    """The timetable of a sampler with these arguments."""
    order = {"num_replicas": world, "lanes": lanes or world, "tail": tail, "seed": 0, "window": 4, "chunksize": 10_000}
    config = sampler_epochs(ShardCounts(lengths), None, SamplerSettings(**{**order, **options}), span=samples)
    return Timetable(config, epoch=epoch, batch_size=batch_size)


def batches_of(lengths, rank, *, world, batch_size=1, epoch=0, samples=None, workers=0, **options):
    """What a DataLoader of a rank yields in an epoch: a list of (indices, workers) for each batch."""
    dataset = Numbers(lengths)
    sampler = DistributedChunkedSampler(dataset, num_replicas=world, rank=rank, num_samples=samples, **options)
    sampler.set_epoch(epoch)
    loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler, num_workers=workers)
    return [(indices.tolist(), workers.tolist()) for indices, workers in loader]


ORDERS = st.fixed_dictionaries(
    {
        "world": st.integers(1, 7),
        "batch_size": st.integers(1, 5),
        "epoch": st.integers(0, 3),
        "seed": st.integers(0, 3),
        "chunksize": st.sampled_from([1, 3, 7, 10_000]),
        "window": st.integers(1, 4),
        "lanes": st.none() | st.integers(1, 9),
        "tail": st.sampled_from(["pad", "drop"]),
        "shuffle": st.booleans(),
        "reshuffle": st.sampled_from(["fixed", "epoch"]),
    }
)


@settings(max_examples=examples(60))
@given(lengths=st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(sum), options=ORDERS, data=st.data())
def test_batches_are_the_loaders(lengths, options, data):
    """Every batch of every rank holds what a DataLoader over the sampler yields there, for whatever settings."""
    lo = data.draw(st.integers(0, sum(lengths) - 1))
    samples = data.draw(st.none() | st.tuples(st.just(lo), st.integers(lo + 1, sum(lengths))))
    table = timetable(lengths, samples=samples, **options)
    for rank in range(options["world"]):
        expected = [indices for indices, _ in batches_of(lengths, rank, samples=samples, **options)]
        assert table.steps == len(expected)
        assert [table.batch(rank, step)[0].tolist() for step in range(table.steps)] == expected


@settings(max_examples=examples(60))
@given(lengths=st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(sum), options=ORDERS)
def test_finding_is_the_inverse(lengths, options):
    """Each sample is found exactly where the batches hold it, repeats marked as the batches mark them."""
    table = timetable(lengths, **options)
    expected = {index: [] for index in range(sum(lengths))}
    for rank, step in itertools.product(range(options["world"]), range(table.steps)):
        indices, marks = table.batch(rank, step)
        for place, (index, is_repeated) in enumerate(zip(indices.tolist(), marks, strict=True)):
            expected[index].append(Reading(rank, step, place, is_repeated))
    together = table.find(range(sum(lengths)))
    assert {index: sorted(found) for index, found in together.items()} == {
        index: sorted(found) for index, found in expected.items()
    }
    one = sum(lengths) // 2
    assert table.find([one]) == {one: together[one]}


def test_repeats_are_those_that_a_masking_sampler_marks():
    """What is said to be repeated is what comes with `__valid__` False under tail="mask"."""

    class Marked(Numbers):
        takes_marked_indices = True

    for rank in range(4):
        sampler = DistributedChunkedSampler(Marked([5, 5]), num_replicas=4, rank=rank, tail="mask", chunksize=3)
        expected = [(int(index), not index.is_valid) for index in sampler]
        indices, marks = timetable([5, 5], world=4, batch_size=9, tail="mask", chunksize=3).batch(rank, 0)
        assert list(zip(indices.tolist(), marks, strict=True)) == expected


def test_a_billion_samples_are_not_iterated():
    """A batch of 1e9 samples in 1e5 shards is found from a few windows; so is the lane of a sample among 4,096."""
    table = timetable([10_000] * 100_000, world=64, batch_size=32, epoch=3)
    indices, _ = table.batch(7, 400_000)
    assert len(indices) == 32
    many = timetable([10_000] * 100_000, world=4096, batch_size=32, epoch=3)
    found = many.find([123_456_789])[123_456_789]
    assert [many.batch(rank, step)[0][place] for rank, step, place, *_ in found] == [123_456_789]


def test_a_sample_of_a_billion_is_found_without_going_through_a_lane():
    """One rank has one lane of 1e9 samples, which takes half a minute to read; a sample's windows take none."""
    table = timetable([10_000] * 100_000, world=1, batch_size=32, epoch=3)
    found = table.find([123_456_789, 5])
    for index, [(rank, step, place, *_)] in found.items():
        assert table.batch(rank, step)[0][place] == index


@settings(max_examples=examples(40))
@given(lengths=st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(sum), options=ORDERS, data=st.data())
def test_samples_by_weights(lengths, options, data):
    """Batches are those of a sampler with weights, and samples are found at all places where the batches have them."""
    options["epoch_size"] = data.draw(st.none() | st.integers(8, 70))
    n, world, epoch, batch_size = sum(lengths), *map(options.pop, ("world", "epoch", "batch_size"))
    weights = data.draw(st.lists(st.sampled_from([0, 0.3, 1, 2.5]), min_size=n, max_size=n).filter(any))
    order = SamplerSettings(**{**options, "lanes": options["lanes"] or world}, num_replicas=world)
    table = make_timetable(ShardCounts(lengths), None, order, epoch=epoch, batch_size=batch_size, weights=weights)
    expected = {index: [] for index in range(n)}
    for rank in range(world):
        sampler = DistributedChunkedSampler(Numbers(lengths), num_replicas=world, rank=rank, weights=weights, **options)
        sampler.set_epoch(epoch)
        read = list(sampler)
        assert table.samples == len(read)
        for step in range(table.steps):
            indices, marks = table.batch(rank, step)
            assert indices.tolist() == read[step * batch_size : (step + 1) * batch_size]
            for place, (index, is_repeated) in enumerate(zip(indices.tolist(), marks, strict=True)):
                expected[index].append(Reading(rank, step, place, is_repeated))
    assert {k: sorted(v) for k, v in table.find(range(n)).items()} == {k: sorted(v) for k, v in expected.items()}


def test_the_first_block_is_cut_once(monkeypatch):
    """A timetable that has cut the first block of an epoch gives its batches without cutting it again."""
    cut = []
    block = batching.Block
    monkeypatch.setattr(batching, "Block", lambda rows, rule: cut.append(rows.position) or block(rows, rule))
    rule = make_rule(152, lengths=np.random.default_rng(1).integers(1, 100, 152), max_tokens=160)
    config = batch_timetable([30, 0, 41, 22, 9, 50], rule, world=3, block=9, chunksize=10, window=2).epochs
    cut.clear()
    table = BatchTimetable(config, epoch=0, on_block=lambda _: True)
    for step, rank in itertools.product(range(table.steps), range(3)):
        table.batch(rank, step)
    assert cut == [0]


def test_an_empty_epoch():
    """Nothing is read of no samples."""
    table = timetable([0, 0], world=2)
    assert (table.samples, table.steps, table.find([0])) == (0, 0, {0: []})


# --- batches of like length


def batch_timetable(lengths, rule, *, world, epoch=0, lanes=None, tail="pad", block=None, **options):
    """The timetable of a BucketBatchSampler with these arguments."""
    order = SamplerSettings(num_replicas=world, lanes=lanes or world, tail=tail, seed=0, **options)
    config = sampler_epochs(ShardCounts(lengths), None, order)
    return BatchTimetable(BatchEpochs.of(config, rule, seed=0, block=block), epoch=epoch)


@pytest.mark.parametrize(
    ("tail", "world", "lanes", "rule"),
    [
        ("pad", 1, 1, {"batch_size": 3}),
        ("mask", 3, 4, {"max_tokens": 60, "too_long": "skip"}),
        ("drop", 3, 4, {"max_tokens": 160}),
    ],
    ids=["pad", "mask", "drop"],
)
def test_batches_of_like_length_are_the_samplers(tail, world, lanes, rule):
    """Every batch of every rank is that of a BucketBatchSampler, and each sample is found where the batches have it.

    Both are of `BatchEpochs`, whose blocks and ranks of any number tests/unit/test_batch_samplers.py has.
    """
    lengths = [30, 0, 41, 22, 9, 50]
    rule = {"lengths": np.random.default_rng(1).integers(1, 100, 152), **rule}
    table = batch_timetable(
        lengths, make_rule(152, **rule), world=world, lanes=lanes, tail=tail, epoch=2, block=9, chunksize=10, window=2
    )
    expected = {index: [] for index in range(152)}
    for rank in range(world):
        dataset = Numbers(lengths)
        dataset.takes_marked_indices = True
        sampler = DistributedChunkedSampler(
            dataset, num_replicas=world, rank=rank, lanes=lanes, tail=tail, chunksize=10, window=2
        )
        batches = BucketBatchSampler(sampler, block=9, **rule)
        batches.set_epoch(2)
        found = list(batches)
        assert table.steps == len(found)
        for step, batch in enumerate(found):
            indices, marks = table.batch(rank, step)
            assert indices.tolist() == batch
            if tail == "mask":
                assert marks == [not index.is_valid for index in batch]
            for place, (index, is_repeated) in enumerate(zip(batch, marks, strict=True)):
                expected[index].append(Reading(rank, step, place, is_repeated))
    together = table.find(range(152))
    assert {index: sorted(readings) for index, readings in together.items()} == {
        index: sorted(readings) for index, readings in expected.items()
    }
    assert table.find([40]) == {40: together[40]}


@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_an_epoch_that_is_not_cut_to_its_end(tail):
    """What is known of it is as in the whole one, and going on makes it whole."""
    rule = make_rule(152, lengths=np.random.default_rng(1).integers(1, 100, 152), max_tokens=160)
    options = {"world": 3, "tail": tail, "block": 9, "chunksize": 10, "window": 2}
    whole = batch_timetable([30, 0, 41, 22, 9, 50], rule, **options)
    seen = []
    part = BatchTimetable(whole.epochs, epoch=0, on_block=lambda at: seen.append(at) or len(seen) == 2)
    assert whole.is_whole
    assert not part.is_whole
    assert 0 < part.done < whole.done
    assert 0 < part.steps < whole.steps
    for rank, step in itertools.product(range(3), range(part.steps)):
        assert part.batch(rank, step)[0].tolist() == whole.batch(rank, step)[0].tolist()
    known = part.find(range(152))
    assert known != whole.find(range(152))
    for index, readings in known.items():
        assert readings == [one for one in whole.find([index])[index] if one.step < part.steps]
    part.go_on()
    assert (part.is_whole, part.done, part.steps) == (True, whole.done, whole.steps)
    assert part.find(range(152)) == whole.find(range(152))


# --- packs


class Documents(Numbers):
    """Documents, of which pieces are read: (their index, the worker, the piece)."""

    takes_marked_indices = True

    def __getitem__(self, index):
        """The index, the worker, and the piece."""
        return (*super().__getitem__(int(index)), tuple(index.piece))


def read_of_packs(samplers):
    """(rank, step) -> (indices, pieces, which are repeated) of the batches of all ranks."""
    return {
        (rank, step): (
            list(map(int, batch)),
            [Piece(*index.piece) for index in batch],
            [not index.marks().get("__valid__", True) for index in batch],
        )
        for rank, sampler in enumerate(samplers)
        for step, batch in enumerate(sampler)
    }


def check_packs(table, expected, samples):
    """A timetable has these batches and no others, and finds every piece of each sample where they have it."""
    assert {(rank, step) for rank in range(table.world) for step in range(table.steps)} == set(expected)
    readings = {index: [] for index in range(samples)}
    for (rank, step), (indices, pieces, marks) in expected.items():
        batch = table.contents(rank, step)
        assert batch.samples.tolist() == indices
        assert table.pieces(rank, step) == pieces
        if table.epochs.tail == "mask":
            assert batch.fills.tolist() == marks
        for place, (index, piece) in enumerate(zip(indices, pieces, strict=True)):
            readings[index].append(Reading(rank, step, place, bool(batch.fills[place]), piece))
    found = table.find(range(samples))
    assert {index: sorted(each) for index, each in found.items()} == {
        index: sorted(each) for index, each in readings.items()
    }
    one = samples // 2
    assert table.find([one]) == {one: found[one]}


@pytest.mark.parametrize("seed", some(range(120), every=5))
def test_packs_are_the_samplers(seed):
    """Random bounds, orders, tails, lanes, ranks and epochs, against the PackSamplers of all ranks."""
    draws = random.Random(seed)
    is_cut, size, separators = draws.random() < 0.6, draws.choice([2, 7, 32, 100]), draws.randint(0, 1)
    counts = [draws.randint(0, 40) for _ in range(draws.randint(1, 5))]
    counts[0] += 2
    most = draws.choice([3, 10, 50, 200]) if is_cut else size - separators
    tokens = np.array([draws.randint(0, most) for _ in range(sum(counts))])
    tokens[0] = 1
    world, epoch, block = draws.randint(1, 6), draws.randint(0, 2), draws.choice([None, 3, 20])
    order = {
        "lanes": draws.choice([world, world, 1, 3, 8]),
        "tail": draws.choice(["pad", "mask", "drop"]),
        "chunksize": draws.choice([3, 10, 1000]),
        "window": draws.randint(1, 4),
        "seed": draws.randint(0, 9),
        "shuffle": draws.random() < 0.7,
        "epochs": draws.choice([1, 1, 2]),
        "reshuffle": draws.choice(["fixed", "epoch"]),
    }
    if draws.random() < 0.2:
        order["weights"] = [draws.randint(1, 3) for _ in range(sum(counts))]
    bounds = {
        "lengths": tokens,
        "pack_tokens": size,
        "cut": is_cut,
        "separators": separators,
        "batch_size": draws.choice([1, 1, 3]),
    }
    samplers = [
        PackSampler(
            DistributedChunkedSampler(Documents(counts), num_replicas=world, rank=rank, **order), block=block, **bounds
        )
        for rank in range(world)
    ]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    weights = order.pop("weights", None)
    settings = SamplerSettings(num_replicas=world, **order)
    rule = make_pack_rule(sum(counts), **bounds)
    table = make_timetable(ShardCounts(counts), None, settings, epoch=epoch, rule=rule, block=block, weights=weights)
    check_packs(table, read_of_packs(samplers), sum(counts))


@pytest.mark.parametrize("seed", some(range(40), every=5))
def test_packs_that_go_on_are_the_samplers(seed):
    """A state of any ranks, over data of which some shards are gone and others new, or over the same data."""
    draws = random.Random(seed)
    tokens = {url: np.array([draws.randint(1, 60) for _ in range(12)]) for url in range(12)}

    def shards(numbers):
        listed = [{"url": f"/nowhere/{k}.tar", "nsamples": 12, "filesize": k + 1000} for k in numbers]
        return ShardListDataset(listed), np.concatenate([tokens[k] for k in numbers])

    (old, before), (new, now) = shards(range(8)), shards(draws.choice([range(8), range(3, 12), range(2, 8)]))
    is_same = len(new) == len(old)
    bounds = {
        "pack_tokens": draws.choice([16, 64, 100]),
        "cut": draws.random() < 0.6,
        "separators": draws.randint(0, 1),
        "batch_size": draws.choice([1, 2]),
        "too_long": "skip",
    }
    order = {"chunksize": draws.choice([5, 12]), "window": 2, "tail": draws.choice(["pad", "mask", "drop"])}
    first = draws.randint(1, 4)
    world, block = first if is_same else draws.randint(1, 5), draws.choice([None, 10])

    def make(dataset, lengths, rank, world):
        sampler = DistributedChunkedSampler(dataset, num_replicas=world, rank=rank, **order)
        return PackSampler(sampler, lengths=lengths, block=block, **bounds)

    sampler = make(old, before, 0, first)
    drawn = iter(sampler)
    count = sum(1 for _ in itertools.islice(drawn, draws.randint(1, 9)))
    state = sampler.state_dict()
    resumed = [make(new, now, rank, world) for rank in range(world)]
    for each in resumed:
        each.load_state_dict(state, old=old, old_lengths=before)
    expected = read_of_packs(resumed)
    resume = Resume(new, state, find_earlier(new, old, values={"lengths": lambda: before}))
    settings = SamplerSettings(num_replicas=world, lanes=world, seed=0, **order)
    rule = make_pack_rule(len(new), lengths=now, **bounds)
    table = make_timetable(ShardCounts(new.lengths), None, settings, epoch=0, rule=rule, block=block, resume=resume)
    if is_same:  # steps count from the beginning of the epoch, or of the next one if that was over
        past = count if table.epoch == 0 else 0
        expected = {(rank, step + past): batch for (rank, step), batch in expected.items()}
        for (rank, step), (indices, pieces, _) in expected.items():
            assert table.batch(rank, step)[0].tolist() == indices
            assert table.pieces(rank, step) == pieces
        assert not expected or table.steps == 1 + max(step for _, step in expected)
    else:
        check_packs(table, expected, len(new))


# --- the commands


def run_json(*args, **options):
    """What a command prints as JSON, which succeeds."""
    return json.loads(run_ok(*args, "--json", **options))


@pytest.fixture
def big(tmp_path):
    """An index of 1,003 samples in shards that are nowhere."""
    shards = [{"url": f"s{k}.tar", "nsamples": count} for k, count in enumerate([300, 0, 303, 400])]
    return write_json(tmp_path / "big.json", {"wids_version": 1, "shardlist": shards})


LENGTHS = [300, 0, 303, 400]


def test_at_tells_what_a_loader_with_workers_read(big):
    """`wids at` names the samples, and the worker, of batches of a real loader, on every rank, the last batch too."""
    for rank, step in ((0, 3), (1, 10), (2, 33)):
        batches = batches_of(LENGTHS, rank, world=3, batch_size=10, epoch=2, seed=7, chunksize=50, workers=2)
        order = ["--world-size", 3, "--batch-size", 10, "--epoch", 2, "--seed", 7, "--chunksize", 50, "--workers", 2]
        told = run_json("at", big, "--rank", rank, "--step", step, *order)
        assert [sample["index"] for sample in told["samples"]] == batches[step][0]
        assert {told["worker"]} == set(batches[step][1])
        assert (told["steps"], told["rank"], told["step"]) == (len(batches), rank, step)


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ((), {}),
        (("--tail", "drop", "--window", "2", "--chunksize", "7"), {"tail": "drop", "window": 2, "chunksize": 7}),
        (
            ("--lanes", "4", "--no-shuffle", "--num-samples", "100:900"),
            {"lanes": 4, "shuffle": False, "samples": (100, 900)},
        ),
        (("--reshuffle", "epoch", "--num-samples", "57"), {"reshuffle": "epoch", "samples": (0, 57)}),
    ],
)
def test_at_and_when_agree_with_samplers(big, flags, options):
    """Every setting of the sampler has an option of its name; without any, the defaults are the sampler's."""
    order = ["--world-size", 2, "--batch-size", 5, *flags]
    batches = batches_of(LENGTHS, 1, world=2, batch_size=5, **options)
    told = run_json("at", big, "--rank", 1, "--step", -1, *order)
    assert [sample["index"] for sample in told["samples"]] == batches[-1][0]
    asked = batches[-1][0][0]
    [found] = run_json("when", big, asked, *order)["samples"]
    assert {"rank": 1, "step": len(batches) - 1, "place": 0, "is_repeated": False, "worker": None} in found["readings"]


@pytest.fixture
def mixture(tmp_path):
    """The path of an index whose sub-datasets have weights, and shards that are nowhere."""
    parts = {"web": ([300, 0, 303], 0.7), "books": ([40, 7], 0.2), "code": ([500], 0.1), "rest": ([5], 0)}
    return write_json(tmp_path / "mix.json", mixture_index(parts))


def read_of(mixture, rank, *, world, epoch, **options):
    """The indices that a sampler yields to a rank in a nominal epoch."""
    sampler = DistributedChunkedSampler(ShardListDataset(mixture), num_replicas=world, rank=rank, **options)
    sampler.set_epoch(epoch)
    return list(sampler)


@pytest.mark.parametrize(
    ("flags", "options", "world", "epoch"),
    [
        ((), {}, 1, 0),
        (("--seed", "4", "--chunksize", "50"), {"seed": 4, "chunksize": 50}, 3, 7),
        (("--epoch-size", "101", "--lanes", "4"), {"epoch_size": 101, "lanes": 4}, 3, 5),
        (("--reshuffle", "epoch", "--window", "1"), {"reshuffle": "epoch", "window": 1}, 2, 1),
        (("--source-batch", "8"), {"source_batch": 8}, 3, 2),
        (("--source-batch", "5", "--epoch-size", "77"), {"source_batch": 5, "epoch_size": 77}, 2, 4),
    ],
)
def test_at_and_when_of_a_mixture_agree_with_samplers(mixture, flags, options, world, epoch):
    """Of every sample of a nominal epoch: all its readings, at the places where the sampler has it."""
    order = ["--world-size", world, "--batch-size", 8, "--epoch", epoch, *flags]
    rows = [read_of(mixture, rank, world=world, epoch=epoch, **options) for rank in range(world)]
    expected = {}
    for at, rank in itertools.product(range(len(rows[0])), range(world)):
        place = {"rank": rank, "step": at // 8, "place": at % 8, "is_repeated": False, "worker": None}
        expected.setdefault(rows[rank][at], []).append(place)
    told = run_json("when", mixture, *range(1155), *order)
    assert {one["index"]: one["readings"] for one in told["samples"] if one["readings"]} == expected
    at = run_json("at", mixture, "--rank", world - 1, "--step", -1, *order)
    last = (len(rows[0]) - 1) // 8 * 8
    assert [one["index"] for one in at["samples"]] == rows[world - 1][last:]


BATCH_LENGTHS = np.random.default_rng(4).integers(1, 200, 1003)


@pytest.mark.parametrize(
    ("flags", "rule", "options"),
    [
        (("--max-tokens", 2000), {"max_tokens": 2000}, {}),
        (("--max-tokens", 150, "--cost", "sum", "--too-long", "skip", "--tail", "drop"),
         {"max_tokens": 150, "cost": "sum", "too_long": "skip"}, {"tail": "drop"}),
        (("--batch-size", 8, "--block", 40, "--lanes", 4, "--seed", 5), {"batch_size": 8, "block": 40},
         {"lanes": 4, "seed": 5}),
    ],
    ids=str,
)  # fmt: skip
def test_at_and_when_of_batches_of_like_length(big, tmp_path, flags, rule, options):
    """The options are the parameters of a BucketBatchSampler; a loader over it reads what they say."""
    np.save(tmp_path / "lengths.npy", BATCH_LENGTHS)
    order = ["--world-size", 3, "--epoch", 1, "--workers", 2, "--lengths", tmp_path / "lengths.npy", *flags]
    dataset = Numbers(LENGTHS)
    sampler = DistributedChunkedSampler(dataset, num_replicas=3, rank=2, **options)
    batches = BucketBatchSampler(sampler, lengths=BATCH_LENGTHS, **rule)
    sampler.set_epoch(1)
    read = [tuple(map(torch.Tensor.tolist, pair)) for pair in DataLoader(dataset, batch_sampler=batches, num_workers=2)]
    for step in (0, 1, -1):
        told = run_json("at", big, "--rank", 2, "--step", step, *order)
        indices, workers = read[step]
        assert [sample["index"] for sample in told["samples"]] == indices
        assert {told["worker"]} == set(workers)
        assert (told["steps"], told["batch_size"]) == (len(read), rule.get("batch_size"))
    asked = read[1][0][-1]
    [found] = run_json("when", big, asked, *order)["samples"]
    assert {"rank": 2, "step": 1, "place": len(read[1][0]) - 1, "is_repeated": False, "worker": 1} in found["readings"]
    said = run_ok("when", big, asked, *order)
    assert f"{len(read)} steps on each of 3 ranks" in said
    too_long = sum(length > rule.get("max_tokens", 200) for length in BATCH_LENGTHS.tolist())
    assert (f"{too_long} samples of the dataset longer than --max-tokens" in said) is (too_long > 0)
    assert told["too_long"] == too_long
    assert "the last batch" not in run_ok("at", big, "--rank", 2, "--step", -1, *order)


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        (("--pack-tokens", 2000), {"pack_tokens": 2000}),
        (("--pack-tokens", 150, "--no-cut", "--too-long", "skip", "--batch-size", 2, "--tail", "drop", "--block", 90),
         {"pack_tokens": 150, "cut": False, "too_long": "skip", "batch_size": 2, "block": 90}),
        (("--pack-tokens", 64, "--separators", 1, "--batch-size", 3),
         {"pack_tokens": 64, "separators": 1, "batch_size": 3}),
    ],
    ids=str,
)  # fmt: skip
def test_at_and_when_of_packs(big, tmp_path, flags, rule):
    """The options are the parameters of a PackSampler; the pieces of a batch, and of a sample, are what it has."""
    np.save(tmp_path / "lengths.npy", BATCH_LENGTHS)
    order = ["--world-size", 3, "--epoch", 1, "--workers", 2, "--lengths", tmp_path / "lengths.npy", *flags]
    tail = "drop" if "drop" in flags else "pad"
    samplers = []
    for rank in range(3):
        sampler = DistributedChunkedSampler(Documents(LENGTHS), num_replicas=3, rank=rank, tail=tail)
        samplers.append(PackSampler(sampler, lengths=BATCH_LENGTHS, **rule))
        sampler.set_epoch(1)
    batches = list(samplers[2])
    for step in (0, 1, -1):
        told = run_json("at", big, "--rank", 2, "--step", step, *order)
        expected = [(int(index), [index.piece[1], index.piece[2]], index.piece[0]) for index in batches[step]]
        assert [(one["index"], one["piece"], one["pack"]) for one in told["samples"]] == expected
        assert [one["length"] for one in told["samples"]] == BATCH_LENGTHS[[index for index, *_ in expected]].tolist()
        assert told["worker"] == step % len(batches) % 2
        assert (told["steps"], told["batch_size"]) == (len(batches), rule.get("batch_size"))
    skipped = samplers[0].skipped
    assert told["too_long"] == skipped
    longest = int(np.argmax(np.where(BATCH_LENGTHS < 150, BATCH_LENGTHS, 0)))
    [found] = run_json("when", big, longest, *order)["samples"]
    expected = [
        {"rank": rank, "step": step, "place": place, "is_repeated": False, "worker": step % 2, "pack": index.piece[0],
         "piece": list(index.piece[1:3]), "length": index.piece[3]}
        for rank, sampler in enumerate(samplers)
        for step, batch in enumerate(sampler)
        for place, index in enumerate(batch)
        if index == longest
    ]  # fmt: skip
    assert found["readings"] == sorted(expected, key=lambda one: (one["step"], one["rank"]))
    assert sum(last - first for first, last in (one["piece"] for one in expected)) == (
        BATCH_LENGTHS[longest] + rule.get("separators", 0)
    )
    said = run_ok("at", big, "--rank", 2, "--step", 1, *order)
    first, last = batches[1][0].piece[1:3]
    assert f"{first:,} to {last:,} of {BATCH_LENGTHS[batches[1][0]]:,}" in said
    tokens = sum(index.piece[2] - index.piece[1] for index in batches[1])
    packs, samples = batches[1][-1].piece[0] + 1, len(set(batches[1]))
    words = f"{packs} pack{'s' * (packs > 1)}, {len(batches[1])} pieces of {samples} samples, {tokens:,} tokens"
    assert words in said
    assert (f"{skipped} samples of the dataset without a token" in said) is (skipped > 0)
    said = run_ok("when", big, longest, "--world-size", 3, "--epoch", 1, *order[6:])
    assert all(f"{one['piece'][0]:,} to {one['piece'][1]:,} of" in said for one in expected)


def test_packs_of_a_mixture_in_shares_of_tokens(mixture, tmp_path):
    """`--share tokens` is that of a PackSampler over the mixture."""
    lengths = np.resize([500, 20, 90], 1155)
    np.save(tmp_path / "lengths.npy", lengths)
    order = ["--lengths", tmp_path / "lengths.npy", "--pack-tokens", 512, "--world-size", 2, "--rank", 1]
    seen = {}
    for share in ("samples", "tokens"):
        sampler = DistributedChunkedSampler(ShardListDataset(mixture), num_replicas=2, rank=1)
        batches = list(PackSampler(sampler, lengths=lengths, pack_tokens=512, share=share))
        told = run_json("at", mixture, "--step", 20, "--share", share, *order)
        seen[share] = [one["index"] for one in told["samples"]]
        assert seen[share] == batches[20]
        assert told["steps"] == len(batches)
    assert seen["samples"] != seen["tokens"]


@pytest.mark.parametrize("options", [{}, {"epoch_size": 90}], ids=str)
def test_at_and_when_of_weighted_samples(tmp_path, options):
    """Weights are a column of any table, or an array; batches are those of a sampler that has them."""
    index = columns.write_dataset(tmp_path, [30, 12])
    columns.make_columns(index)
    values = ShardListDataset(index).read_column("label")
    np.save(tmp_path / "values.npy", values)
    sampler = DistributedChunkedSampler(Numbers([30, 12]), num_replicas=2, rank=1, weights=values, **options)
    sampler.set_epoch(1)
    read = list(sampler)
    order = ["--world-size", 2, "--epoch", 1, "--batch-size", 4]
    order += [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
    table = f"{index.removesuffix('.json')}.columns.parquet"
    for flags in (["--weights", "label"], ["--weights", "label", "--columns", table], ["--weights", "values.npy"]):
        flags[1] = str(tmp_path / flags[1]) if flags[1].endswith("npy") else flags[1]
        told = run_json("at", index, "--rank", 1, "--step", 2, *order, *flags)
        assert [sample["index"] for sample in told["samples"]] == read[8:12]
        [found] = run_json("when", index, read[9], *order, *flags)["samples"]
        assert {"rank": 1, "step": 2, "place": 1, "is_repeated": False, "worker": None} in found["readings"]


def test_batches_of_one_bucket(tmp_path):
    """Lengths and buckets come from columns of the index, or arrays; a bucket's batch size is said by its name."""
    index = columns.write_dataset(tmp_path, [30, 12])
    columns.make_columns(index)
    values = ShardListDataset(index).read_column("label")
    order = ["--buckets", "label", "--batch-size", "0=2,1=3,2=4,3=5,4=6", "--lengths", "index_plus.npy"]
    np.save(tmp_path / "index_plus.npy", np.arange(1, 43))
    order[-1] = tmp_path / "index_plus.npy"
    sampler = DistributedChunkedSampler(Numbers([30, 12]), num_replicas=1, rank=0)
    sizes = {0: 2, 1: 3, 2: 4, 3: 5, 4: 6}
    expected = list(BucketBatchSampler(sampler, lengths=np.arange(1, 43), buckets=values, batch_size=sizes))
    for step, batch in enumerate(expected):
        told = run_json("at", index, "--step", step, *order)
        assert [sample["index"] for sample in told["samples"]] == batch
        assert len(set(values[batch].tolist())) == 1
    assert told["batch_size"] == {str(name): size for name, size in sizes.items()}


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("--max-tokens", 5), 2, "--max-tokens counts units of --lengths"),
        (("--lengths", "L"), 2, "Give --max-tokens, --limit or --batch-size"),
        (("--batch-size", "a=3"), 2, "give --lengths, --buckets or --limit too"),
        (("--batch-size", "a=3", "--lengths", "L"), 2, "goes with --buckets"),
        (("--batch-size", "a=3,a=4", "--buckets", "L"), 2, "twice"),
        (("--batch-size", "a=0", "--buckets", "L"), 2, "nor BUCKET=N"),
        (("--batch-size", "3,4"), 2, "nor BUCKET=N"),
        (("--cost", "sum"), 2, "--cost is for batches of like length"),
        (("--block", 3), 2, "--block is for batches of like length"),
        (("--no-cut",), 2, "--no-cut is for packs: give --pack-tokens"),
        (("--separators", 1, "--lengths", "L", "--max-tokens", 300), 2, "--separators is for packs"),
        (("--share", "tokens"), 2, "--share is for packs"),
        (("--pack-tokens", 64), 2, "--pack-tokens counts tokens of --lengths"),
        (("--pack-tokens", 64, "--lengths", "L", "--max-tokens", 300), 2, "--max-tokens is for batches of like length"),
        (("--pack-tokens", 64, "--buckets", "L"), 2, "--buckets is for batches of like length, and --pack-tokens"),
        (("--pack-tokens", 64, "--lengths", "L", "--limit", "a=3"), 2, "--limit is for batches of like length"),
        (("--pack-tokens", 64, "--lengths", "L", "--cost", "sum"), 2, "--cost is for batches of like length"),
        (("--pack-tokens", 64, "--lengths", "L", "--batch-size", "a=3"), 2, "goes with --buckets"),
        (("--pack-tokens", 64, "--lengths", "L", "--no-cut"), 1, "leave out such samples by --too-long skip"),
        (("--pack-tokens", 64, "--lengths", "S"), 1, "the dataset 1,003 samples"),
        (("--pack-tokens", 64, "--lengths", "L", "--share", "tokens"), 2, "no mixture"),
        (("--separators", 2), 2, "--separators"),
        (("--lengths", "L", "--max-tokens", 0), 1, "must be a number above 0"),
        (("--lengths", "L", "--max-tokens", 100), 1, "leave out such samples by --too-long skip"),
        (("--lengths", "missing.npy", "--max-tokens", 100), 1, "missing.npy: --lengths cannot be read"),
        (("--lengths", "S", "--max-tokens", 100), 1, "the dataset 1,003 samples"),
        (("--lengths", "X", "--max-tokens", 100), 1, "--lengths cannot be read"),
        (("--lengths", "tokens", "--max-tokens", 100), 1, "wids columns create"),
    ],
    ids=str,
)
def test_wrong_batches(big, tmp_path, flags, code, words):
    """What does not go together, or is no array, is a sentence that says what to do, of all commands alike."""
    np.save(tmp_path / "L.npy", BATCH_LENGTHS)
    np.save(tmp_path / "S.npy", BATCH_LENGTHS[1:])
    (tmp_path / "X.npy").write_text("1 2 3")
    flags = [str(tmp_path / f"{flag}.npy") if flag in ("L", "S", "X") else flag for flag in flags]
    for command in (("at", big, "--step", 0), ("when", big, 5), ("simulate", big, "--shard-size", "1MB")):
        done = run(*command, *flags)
        assert (done.code, done.out) == (code, "")
        assert words in in_one_line(done.err)


def test_a_sample_of_a_mixture_may_come_often_or_not_at_all(mixture):
    """Sub-datasets with large shares begin again; of those with small ones some samples do not come."""
    said = run_ok("when", mixture, "604", "1150", "--world-size", 2, "--batch-size", 8)
    assert sum(line.startswith("604 ") for line in said.splitlines()) >= 4  # 231 of 1,155 are of 47 books
    assert "not read in this epoch" in said


def test_a_saved_view_of_a_mixture(tmp_path, mixture):
    """Has the order of its samplers: the samples that it has of each sub-dataset, in their shares."""
    ShardListDataset(mixture).exclude(range(100, 640)).save(tmp_path / "some.json")
    rows = read_of(tmp_path / "some.json", 0, world=1, epoch=2)
    told = run_json("at", tmp_path / "some.json", "--batch-size", 1000, "--step", 0, "--epoch", 2)
    assert [one["index"] for one in told["samples"]] == rows
    assert len(rows) == 615


def test_nominal_epochs_of_any_index(big):
    """--epoch-size is the sampler's epoch_size."""
    batches = batches_of(LENGTHS, 1, world=2, batch_size=5, epoch=4, epoch_size=300)
    order = ["--world-size", 2, "--batch-size", 5, "--epoch", 4, "--epoch-size", 300]
    told = run_json("at", big, "--rank", 1, "--step", 3, *order)
    assert [sample["index"] for sample in told["samples"]] == batches[3][0]
    [found] = run_json("when", big, batches[3][0][2], *order)["samples"]
    assert {"rank": 1, "step": 3, "place": 2, "is_repeated": False, "worker": None} in found["readings"]


def test_what_a_mixture_has_not(mixture):
    """A part of a mixture by indices, an epoch before the first one, less than a sample for each rank."""
    for flags, words in (
        (("--num-samples", "5"), "make a view of it"),
        (("--epoch", "-1"), "epoch is -1"),
        (("--epoch-size", "2", "--world-size", "3", "--rank", "0"), "less than one for each"),
    ):
        assert words in complaint(2, "at", mixture, "--step", "0", *flags)


def test_turns_of_what_is_no_mixture(big):
    """Other indexes have no sources to take turns."""
    assert "no sub-datasets with weights" in complaint(2, "at", big, "--step", "0", "--source-batch", "4")
    assert "no sub-datasets with weights" in complaint(2, "simulate", big, "--shard-size", "1MB", "--source-batch", "4")


def test_when_of_a_large_mixture_is_searched_by_lanes(tmp_path):
    """35 sources of 10**7 samples, and ten that come all the time: when a sample comes in a late nominal epoch."""
    parts = [
        SourceSpan("few", 0, 10, 100),
        *(SourceSpan(f"s{k}", 10 + k * 10**7, 10 + (k + 1) * 10**7, 1 + k) for k in range(35)),
    ]
    order = SamplerSettings(num_replicas=64, lanes=64, chunksize=10_000, window=4, seed=0)
    table = Timetable(sampler_epochs(ShardCounts([10, *[10_000] * 35_000]), parts, order), epoch=50, batch_size=32)
    asked = 34 * 10**7 + 4711
    found = table.find([asked])[asked]
    assert found
    for rank, step, place, *_ in found:
        assert table.batch(rank, step)[0][place] == asked


def test_keys_are_those_of_the_dataset(tmp_path):
    """The indices and keys told for a step are those of the samples that the dataset's own loader yields there."""
    parts = [{"name": "a", "source_url": "a/a.json"}, {"name": "b", "source_url": "b/b.json"}]
    write_index(tmp_path / "a", (3, 4, 2), name="a.json")
    write_index(tmp_path / "b", (5, 6), name="b.json")
    index = write_json(tmp_path / "all.json", {"wids_version": 1, "datasets": parts})
    dataset = ShardListDataset(index, transformations=[], fields=())
    sampler = DistributedChunkedSampler(dataset, num_replicas=2, rank=1, chunksize=3, seed=5)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, collate_fn=list)
    expected = [[(sample["__index__"], sample["__key__"]) for sample in batch] for batch in loader][1]
    order = ["--world-size", 2, "--rank", 1, "--batch-size", 4, "--chunksize", 3, "--seed", 5]
    told = run_json("at", index, "--step", 1, "--keys", *order)
    assert [(sample["index"], sample["key"]) for sample in told["samples"]] == expected


def test_defaults_are_the_samplers(big):
    """The options' defaults are those of DistributedChunkedSampler, and DataLoader's batch size."""
    sampler = inspect.signature(DistributedChunkedSampler).parameters
    for command in (show_batch, show_readings):
        ours = inspect.signature(command).parameters
        for name in ("chunksize", "window", "seed", "lanes", "shuffle", "reshuffle", "source_batch", "epoch_size"):
            assert ours[name].default == sampler[name].default
        assert sampler["tail"].default is None
        assert DistributedChunkedSampler(range(3), num_replicas=1).tail == ours["tail"].default
        assert ours["batch_size"].default is None
    told = run_json("when", big, 0)
    assert told["batch_size"] == inspect.signature(DataLoader).parameters["batch_size"].default


def test_when_says_what_is_repeated_and_what_is_left_out(big):
    """A sample that fills up the tail is read twice; one that is dropped, or outside num_samples, is not read."""
    order = ["--world-size", 4, "--batch-size", 8]
    pad = {sample["index"]: sample["readings"] for sample in run_json("when", big, *range(1003), *order)["samples"]}
    assert sorted(map(len, pad.values()))[-2:] == [1, 2]  # 1,003 samples, 4 ranks
    twice = next(index for index, readings in pad.items() if len(readings) == 2)
    assert [reading["is_repeated"] for reading in pad[twice]] == [False, True]
    drop = run_json("when", big, *range(1003), *order, "--tail", "drop")["samples"]
    dropped = [sample["index"] for sample in drop if not sample["readings"]]
    assert len(dropped) == 3
    code, out, _ = run("when", big, dropped[0], twice, *order, "--tail", "drop")
    assert code == 0
    assert re.search(rf"\n{dropped[0]} .* not read in this epoch", out)
    code, out, _ = run("when", big, twice, *order)
    assert out.count("repeated, to fill up the tail") == 1


def test_words(big):
    """For people: which step of how many, which worker, the shard and row of each sample; a short last batch."""
    code, out, _ = run("at", big, "--world-size", 2, "--rank", 1, "--step", -1, "--batch-size", 100, "--workers", 4)
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "epoch 0, step 5 of 6, rank 1 of 2: 2 samples, by worker 1 of 4"
    assert lines[1] == "the last batch, which a loader with drop_last=True leaves out"
    assert lines[3].split() == ["index", "shard", "row", "url"]
    assert len(lines) == 6
    code, out, _ = run("when", big, "0", "-1", "--world-size", 2, "--workers", 4)
    lines = out.splitlines()
    assert lines[0] == "epoch 0: 502 steps on each of 2 ranks, batch size 1"
    assert lines[2].split() == ["sample", "index", "rank", "step", "place", "worker"]
    assert [line.split()[:2] for line in lines[3:]] == [["0", "0"], ["-1", "1002"]]


def test_nothing_is_fetched_without_keys(tmp_path):
    """Of a remote index nothing but itself is read; --keys takes the tables."""
    write_index(tmp_path / "data", (3, 4, 2))
    with serve(tmp_path / "data") as server:
        url, cache = f"{server.url}/index.json", {"WIDS_CACHE": str(tmp_path / "cache")}
        told = run_json("at", url, "--step", 0, "--batch-size", 9, env=cache)
        assert len(told["samples"]) == 9
        assert "key" not in told["samples"][0]
        run_json("when", url, 5, env=cache)
        assert set(server.requests) == {"/index.json"}
        assert "--fetch" in run("at", url, "--step", 0, "--batch-size", 9, "--keys", env=cache)[2]
        told = run_json("at", url, "--step", 0, "--batch-size", 9, "--keys", "--fetch", env=cache)
        keys = {sample["index"]: sample["key"] for sample in told["samples"]}
        assert [keys[index] for index in (0, 3, 8)] == ["s0-000", "s1-000", "s2-001"]
        [found] = run_json("when", url, "s1-001", env=cache)["samples"]
        assert (found["sample"], found["index"], found["shard"], found["row"]) == ("s1-001", 4, 1, 1)


def test_what_is_not_there(big):
    """A step, a rank, a sample or a range that is not there is told with what there is."""
    told = complaint(1, "at", big, "--step", 1003)
    assert "there is no step 1003" in told
    assert "steps are 0 to 1002" in told
    assert "the last one is 1" in complaint(2, "at", big, "--step", 0, "--rank", 2, "--world-size", 2)
    assert "--rank is missing" in complaint(2, "at", big, "--step", 0, "--world-size", 2)
    assert "indices are 0 to 1002" in complaint(1, "when", big, "1003")
    assert "which has 1,003 samples" in complaint(1, "when", big, "0", "--num-samples", "1004")
    assert "neither a number nor a range" in complaint(2, "when", big, "0", "--num-samples", "all")
    assert "it has none" in complaint(1, "at", big, "--step", 0, "--num-samples", "0")


def test_the_order_needs_no_torch(big):
    """`wids when` answers without torch, which takes seconds to import."""
    before = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules))"
    code, out, _ = run_apart("when", big, "7", before=before)
    assert (code, out.splitlines()[-1]) == (0, "False")


@pytest.mark.parametrize("kind", ["samples", "batches", "packs", "whole packs"])
def test_a_job_that_goes_on_over_changed_data(tmp_path, kind):
    """`wids at` and `wids when` with a state and the earlier index, against the samplers that load it."""
    places = [str(tmp_path / name) for name in ("old.json", "new.json")]
    for place, numbers in zip(places, (range(6), range(2, 8)), strict=True):
        listed = [{"url": f"/nowhere/{k}.tar", "nsamples": 10, "filesize": 1000 + k} for k in numbers]
        write_json(place, {"wids_version": 1, "shardlist": listed})
    old, new = map(ShardListDataset, places)
    lengths = np.resize([1, 2, 3], 60)
    np.save(tmp_path / "lengths.npy", lengths)
    path = str(tmp_path / "lengths.npy")
    more = {} if kind == "samples" else {"old_lengths": lengths}

    def make(dataset, rank, world):
        sampler = DistributedChunkedSampler(dataset, num_replicas=world, rank=rank)
        if kind == "batches":
            return BucketBatchSampler(sampler, lengths=lengths, max_tokens=9)
        if kind == "samples":
            return sampler
        return PackSampler(sampler, lengths=lengths, pack_tokens=4, cut=kind == "packs", block=5)

    flags = {
        "samples": ["--batch-size", 4],
        "batches": ["--lengths", path, "--max-tokens", 9],
        "packs": ["--lengths", path, "--pack-tokens", 4, "--block", 5],
        "whole packs": ["--lengths", path, "--pack-tokens", 4, "--block", 5, "--no-cut"],
    }
    sampler = make(old, 0, 3)
    drawn = iter(sampler)
    for _ in range(3):
        next(drawn)
    state = write_json(tmp_path / "state.json", sampler.state_dict())
    args = ["--state", state, "--old", places[0], "--world-size", 2, *flags[kind]]
    args += ["--old-lengths", path] if more else []
    for rank in range(2):
        own = make(new, rank, 2)
        own.load_state_dict(sampler.state_dict(), old=old, **more)
        batches = list(own)
        batches = [batches[at : at + 4] for at in range(0, len(batches), 4)] if kind == "samples" else batches
        for step in (0, len(batches) - 1):
            seen = json.loads(run_ok("at", places[1], "--rank", rank, "--step", step, *args, "--json"))
            assert [row["index"] for row in seen["samples"]] == batches[step]
            assert seen["steps"] == len(batches)
            if "packs" in kind:
                assert [row["piece"] for row in seen["samples"]] == [list(one.piece[1:3]) for one in batches[step]]
        index = int(batches[1][0])
        (row,) = json.loads(run_ok("when", places[1], index, *args, "--json"))["samples"]
        assert (rank, 1) in {(reading["rank"], reading["step"]) for reading in row["readings"]}
    assert run_json("simulate", places[1], *args)["batches"] == [[len(batches)]] * 2
    assert "--old and --old-lengths are of a --state" in complaint(2, "at", places[1], "--step", 0, "--old", places[0])
    for other in flags.keys() - {kind, "whole packs" if kind == "packs" else "packs"}:
        lines = ["at", places[1], "--step", 0, "--state", state, "--old", places[0], *flags[other]]
        assert "the state is of" in complaint(2, *lines)

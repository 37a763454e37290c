"""The simulation of a job: its visits against the samplers, its cache against a real one, and its time."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
import os
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import wids
from tests.support import cache_shards as shards
from tests.support.cache_dirs import table_of
from tests.support.children import PATIENCE_SECONDS
from tests.support.clocks import PrefetchClock
from tests.support.examples import examples
from tests.support.servers import shard_requests
from wids import DistributedChunkedSampler, ShardListDataset, ShardListSampler
from wids.core.cache.directory import CacheDirectory
from wids.core.cache.leases import Leases
from wids.core.cache.space import table_allowance
from wids.core.collection.changes import find_earlier
from wids.core.order.batching import make_rule
from wids.core.order.layout import ShardCounts, SourceSpan
from wids.core.order.packing import make_pack_rule
from wids.core.order.settings import SamplerSettings
from wids.core.prefetch import distance
from wids.events import Evicted, Fetched
from wids.tools.simulate import figures, job
from wids.tools.simulate.node_cache import NodeCache
from wids.tools.simulate.resume import Resume
from wids.tools.simulate.run import Simulation
from wids.tools.simulate.schedule import make_timetable
from wids.tools.simulate.trace import open_shards


class Numbers:
    """A dataset of which a sampler knows the shards."""

    def __init__(self, lengths):
        """Of shards with these counts."""
        self.lengths = lengths

    def __len__(self):
        """How many samples."""
        return sum(self.lengths)

    def __getitem__(self, index):
        """A sample."""
        return index


def describe(lengths, size=1000, **options):
    """A job over shards with these counts, which are waited for unless the options say another thing."""
    sizes = np.full(len(lengths), size)
    options = {"early_reads": False, **options}
    return job.TrainingJob(lengths=np.array(lengths), sizes=sizes, footprints=sizes, **options)


def simulate(described):
    """(epochs, outcome) of a job."""
    epochs = job.read_epochs(described, described.courses())
    return epochs, Simulation(described, epochs).run()


ORDERS = st.fixed_dictionaries(
    {
        "world": st.integers(1, 5),
        "seed": st.integers(0, 3),
        "chunksize": st.sampled_from([1, 3, 7, 10_000]),
        "window": st.integers(1, 4),
        "lanes": st.none() | st.integers(1, 7),
        "tail": st.sampled_from(["pad", "drop"]),
        "epochs": st.integers(1, 3),
    }
)
LENGTHS = st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(lambda lengths: sum(lengths) > 5)


@settings(max_examples=examples(60))
@given(lengths=LENGTHS, options=ORDERS, shuffle=st.booleans(), reshuffle=st.sampled_from(["fixed", "epoch"]))
def test_indices_are_the_samplers(lengths, options, shuffle, reshuffle):
    """A rank's course is what its DistributedChunkedSampler yields, epoch by epoch; so are the shards it visits."""
    described = describe(lengths, shuffle=shuffle, reshuffle=reshuffle, **options)
    own = {name: options[name] for name in ("seed", "chunksize", "window", "lanes", "tail")}
    own |= {"shuffle": shuffle, "reshuffle": reshuffle}
    ends = np.cumsum(lengths)
    for rank, course in enumerate(described.courses()):
        sampler = DistributedChunkedSampler(Numbers(lengths), num_replicas=options["world"], rank=rank, **own)
        for epoch in range(options["epochs"]):
            sampler.set_epoch(epoch)
            expected = list(sampler)
            found = [index for block in course.blocks(epoch) for index in block.tolist()]
            assert found == expected
            assert course.count(epoch) == len(expected)
            where = np.searchsorted(ends, expected, side="right")
            check_visits(course.visits(epoch, is_exact=True), where)
            check_visits(course.coming(epoch), where)


@settings(max_examples=examples(60))
@given(
    lengths=LENGTHS,
    options=ORDERS,
    end=st.none() | st.sampled_from(["passes", "nbatches", "epoch_size"]),
    data=st.data(),
)
def test_samples_with_weights_are_the_samplers(lengths, options, end, data):
    """A rank's course is that of a sampler with weights, whatever ends an epoch; so are its visits and the figures."""
    n, world, number = sum(lengths), options["world"], options["epochs"]
    weights = data.draw(st.lists(st.sampled_from([0, 0.3, 1, 2.5]), min_size=n, max_size=n).filter(any))
    reshuffle = data.draw(st.sampled_from(["fixed", "epoch"]))
    more = {} if end is None else {end: data.draw(st.integers(world if end == "epoch_size" else 1, 30))}
    described = describe(lengths, weights=weights, batch_size=2, reshuffle=reshuffle, **options, **more)
    own = {name: options[name] for name in ("seed", "chunksize", "window", "lanes", "tail")}
    if end is not None:
        own |= {"epochs": more[end]} if end == "passes" else {"epoch_size": described.nominal}
    courses, ends, read = described.courses(), np.cumsum(lengths), [[] for _ in range(number)]
    epochs = job.read_epochs(described, courses)
    for rank, course in enumerate(courses):
        sampler = DistributedChunkedSampler(
            Numbers(lengths), num_replicas=world, rank=rank, weights=weights, reshuffle=reshuffle, **own
        )
        for k, epoch in enumerate(epochs):
            sampler.set_epoch(k)
            expected = list(sampler)
            assert [index for block in course.blocks(k) for index in block.tolist()] == expected
            assert (epoch.counts[rank], epoch.steps[rank]) == (len(expected), -(-len(expected) // 2))
            where = np.searchsorted(ends, expected, side="right")
            check_visits(epoch.visits[rank], where)
            check_visits(epoch.coming[rank], where)
            read[k] += expected
    # A pass that is an epoch begins anew: its samples are counted by themselves.
    some = read[0] if end is None or more == {"passes": 1} else list(itertools.chain(*read))
    counts = figures.count_samples(described, courses, epochs)
    expected = (n, sum(map(len, read)), n - len(set(some)), len(some) - len(set(some)))
    assert dataclasses.astuple(counts) == expected


@pytest.mark.parametrize("epoch_size", [None, 400])
def test_batches_of_like_length_by_weights_are_the_samplers(epoch_size):
    """Samples without a weight are in no batch, and others are in several."""
    weights = np.random.default_rng(2).choice([0, 0.3, 1, 2.5], 152)
    rule = {"lengths": np.random.default_rng(1).integers(1, 100, 152), "max_tokens": 300}
    described = describe(
        [30, 0, 41, 22, 9, 50], world=3, rule=make_rule(152, **rule), batch_size=3, epochs=2, chunksize=7, window=2,
        weights=weights, epoch_size=epoch_size,
    )  # fmt: skip
    epochs = check_batches(described, Numbers([30, 0, 41, 22, 9, 50]), rule, weights=weights, epoch_size=epoch_size)
    drawn = np.concatenate([own.samples for epoch in epochs for own in epoch.batches])
    assert (weights[drawn] > 0).all()
    assert np.bincount(drawn[: len(drawn) // 2]).max() > 1
    _, found = simulate(described)
    assert found.stopped_at is None


def test_a_shard_without_weights_is_not_downloaded():
    """Shards of which no sample comes cost neither a download nor room."""
    weights = np.repeat([1.0, 0.0, 2.0, 0.0], 50)
    epochs, outcome = simulate(describe([50] * 4, weights=weights, epochs=2))
    assert {k for epoch in epochs for k in epoch.visits[0].shard.tolist()} == {0, 2}
    assert outcome.total("shards") == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weights": [1.0] * 3}, r"shape \(3,\); it must be \(20,\)"),
        ({"weights": [0.0] * 20}, "no weight is above 0"),
        ({"weights": [1.0] * 19 + [-1.0]}, r"weights\[19\] is -1.0"),
        ({"parts": (SourceSpan("a", 0, 10, 1.0), SourceSpan("b", 10, 20, 1.0))}, "sources have weights of their own"),
        ({"is_by_shards": True}, "read each sample once; weights do not go with it"),
        ({"epoch_size": 2, "world": 3}, "an epoch of 2 samples on 3 ranks has less than one for each"),
        ({"epoch_size": 5_000_000}, "samples with weights are looked at sample by sample, and these are more than"),
        ({"nbatches": 500_000}, r"simulate fewer batches \(nbatches\) or epochs"),
    ],
    ids=str,
)  # fmt: skip
def test_weights_that_cannot_be_simulated(options, words):
    """They are refused, most of them in the words of a sampler."""
    with pytest.raises(ValueError, match=words):
        describe([10, 10], **{"weights": [1.0] * 20, **options}).courses()


@pytest.mark.parametrize(("nbatches", "source_batch"), [(None, 1), (None, 8), (7, 1)])
@pytest.mark.parametrize("world", [1, 3])
def test_a_mixture_is_read_as_the_sampler_reads_it(world, nbatches, source_batch):
    """Every visit is a stretch in which a rank reads the shard; a sample more, and it would be another one's."""
    lengths = [30, 41, 22, 9, 9, 50]
    sources = {"a": ([30, 41], 0.5), "b": ([22, 9, 9], 0.375), "c": ([50], 0.125)}
    parts = [SourceSpan("a", 0, 71, 0.5), SourceSpan("b", 71, 111, 0.375), SourceSpan("c", 111, 161, 0.125)]
    job_options = {"parts": tuple(parts), "nbatches": nbatches, "source_batch": source_batch}
    described = describe(lengths, world=world, epochs=3, chunksize=10, **job_options)
    epochs, outcome = simulate(described)
    mixture = wids.mix({name: (Numbers(counts), weight) for name, (counts, weight) in sources.items()})
    size = None if nbatches is None else nbatches * 32 * world
    for rank in range(world):
        options = {"num_replicas": world, "rank": rank, "epoch_size": size, "source_batch": source_batch}
        sampler = DistributedChunkedSampler(mixture, chunksize=10, **options)
        for epoch in epochs:
            read = np.searchsorted(np.cumsum(lengths), list(sampler), side="right")
            assert epoch.counts[rank] == len(read)
            covered = np.zeros(len(read), bool)
            for first, last, shard in zip(*epoch.visits[rank], strict=True):
                assert read[first] == read[last] == shard
                covered[first : last + 1] |= read[first : last + 1] == shard
            assert covered.all()
    assert outcome.total("shards") == len(lengths)


def test_too_large_a_mixture_is_refused():
    """A mixture is looked at sample by sample."""
    parts = (SourceSpan("a", 0, 10**7, 1.0), SourceSpan("b", 10**7, 2 * 10**7, 1.0))
    with pytest.raises(ValueError, match="sample by sample, and these are more than 4,000,000"):
        describe([10**7, 10**7], parts=parts)
    describe([10**7, 10**7], parts=parts, nbatches=100)
    with pytest.raises(ValueError, match="no common order"):
        describe([10, 10], parts=(SourceSpan("a", 0, 10, 1.0), SourceSpan("b", 10, 20, 1.0)), is_by_shards=True)


def batch_sampler(dataset, rule, block, **options):
    """The sampler of a rank."""
    kind = wids.PackSampler if "pack_tokens" in rule else wids.BucketBatchSampler
    return kind(DistributedChunkedSampler(dataset, **options), block=block, **rule)


def check_batches(described, dataset, rule, **options):
    """See that the batches of each rank and epoch are the sampler's, and that visits cover the shards of each."""
    epochs, ends = job.read_epochs(described, described.courses()), np.cumsum(described.lengths)
    for rank in range(described.world):
        sampler = batch_sampler(
            dataset, rule, described.block, num_replicas=described.world, rank=rank, chunksize=7, window=2, **options
        )
        for number, epoch in enumerate(epochs):
            sampler.set_epoch(number)
            expected, read = list(sampler), epoch.batches[rank]
            assert [batch.tolist() for batch in np.split(read.samples, read.edges[1:-1])][: len(expected)] == expected
            if "pack_tokens" in rule:
                pieces = np.stack(read.pieces, axis=1).tolist()
                assert pieces == [list(index.piece) for batch in expected for index in batch]
            assert epoch.steps[rank] == len(expected) == len(sampler)
            where = [set(np.searchsorted(ends, batch, side="right").tolist()) for batch in expected]
            shards_of = job.count_shards(epoch.shards[rank], epoch.edges(rank, described.batch_size))
            assert [set(shards_of(step)) for step in range(len(expected))] == where
            for visits in (epoch.visits[rank], epoch.coming[rank]):
                steps = [column // described.batch_size for column in visits[:2]]
                covered = [set() for _ in expected]
                for first, last, shard in zip(*(column.tolist() for column in (*steps, visits.shard)), strict=True):
                    assert shard in where[first]
                    assert shard in where[last]
                    for step in range(first, last + 1):
                        covered[step].add(shard)
                assert all(found >= shards for found, shards in zip(covered, where, strict=True))
    return epochs


@pytest.mark.parametrize(
    ("tail", "world", "lanes", "rule", "more"),
    [("pad", 3, 4, {"max_tokens": 60, "too_long": "skip"}, {}), ("drop", 4, 3, {"batch_size": 4}, {"passes": 2})],
    ids=["pad", "drop"],
)
def test_batches_of_like_length_are_the_samplers(tail, world, lanes, rule, more):
    """Both are of `BatchEpochs` (tests/unit/test_batch_samplers.py); a shard is visited in all steps that read it."""
    lengths = [30, 0, 41, 22, 9, 50]
    rule = {"lengths": np.random.default_rng(1).integers(1, 100, 152), **rule}
    described = describe(
        lengths, world=world, lanes=lanes, tail=tail, rule=make_rule(152, **rule), batch_size=3, block=10, epochs=2,
        chunksize=7, window=2, **more,
    )  # fmt: skip
    own = {"epochs" if name == "passes" else name: value for name, value in more.items()}
    epochs = check_batches(described, Numbers(lengths), rule, lanes=lanes, tail=tail, **own)
    _, found = simulate(described)
    assert found.stopped_at is None
    assert found.total("shards") == 5
    assert len(found.marks) >= sum(max(epoch.steps) for epoch in epochs) / 2


def test_batches_of_a_mixture_are_the_samplers():
    """Of the nominal epochs of a mixture, whose samples come again."""
    parts = [SourceSpan("a", 0, 71, 0.75), SourceSpan("b", 71, 161, 0.25)]
    mixture = wids.mix({"a": (Numbers([30, 41]), 0.75), "b": (Numbers([22, 18, 50]), 0.25)})
    rule = {"lengths": np.random.default_rng(1).integers(1, 100, 161), "max_tokens": 300}
    described = describe(
        [30, 41, 22, 18, 50], parts=tuple(parts), world=2, rule=make_rule(161, **rule), batch_size=3, epochs=3,
        chunksize=7, window=2,
    )  # fmt: skip
    check_batches(described, mixture, rule)


class Documents(Numbers):
    """A dataset whose samples may be read in pieces."""

    takes_marked_indices = True


@pytest.mark.parametrize(
    ("tail", "world", "lanes", "rule", "more"),
    [
        ("pad", 5, 4, {"pack_tokens": 90, "batch_size": 2, "separators": 1}, {}),
        ("mask", 5, 3, {"pack_tokens": 100, "cut": False}, {"passes": 2}),
        ("drop", 4, 3, {"pack_tokens": 7}, {}),
    ],
    ids=["pad", "whole", "drop"],
)
def test_packs_are_the_samplers(tail, world, lanes, rule, more):
    """Batches and pieces of all ranks, those of the last round too; a shard is visited in all steps that read it."""
    lengths = [30, 0, 41, 22, 9, 50]
    rule = {"lengths": np.random.default_rng(1).integers(0, 100, 152), **rule}
    described = describe(
        lengths, world=world, lanes=lanes, tail=tail, rule=make_pack_rule(152, **rule), batch_size=3, block=10,
        epochs=2, chunksize=7, window=2, **more,
    )  # fmt: skip
    own = {"epochs" if name == "passes" else name: value for name, value in more.items()}
    epochs = check_batches(described, Documents(lengths), rule, lanes=lanes, tail=tail, **own)
    _, found = simulate(described)
    assert (found.stopped_at, found.total("shards")) == (None, 5)
    packing = figures.measure_packs(described, epochs)
    due = int(rule["lengths"].sum()) + 152 * rule.get("separators", 0)
    if tail == "pad":
        assert (packing.tokens, packing.repeated_tokens) == (2 * due, 0)
    elif tail == "mask":
        assert packing.tokens >= 4 * due
    else:
        assert packing.tokens < 2 * due


@pytest.mark.parametrize("share", ["samples", "tokens"])
def test_packs_of_a_mixture_are_the_samplers(share):
    """Weights are shares of samples, or of tokens."""
    parts = [SourceSpan("a", 0, 71, 0.75), SourceSpan("b", 71, 161, 0.25)]
    mixture = wids.mix({"a": (Documents([30, 41]), 0.75), "b": (Documents([22, 18, 50]), 0.25)})
    lengths = np.append(np.full(71, 90), np.full(90, 10))
    rule = {"lengths": lengths, "pack_tokens": 128, "share": share}
    described = describe(
        [30, 41, 22, 18, 50], parts=tuple(parts), world=3, rule=make_pack_rule(161, **rule), batch_size=3, epochs=3,
        chunksize=7, window=2,
    )  # fmt: skip
    check_batches(described, mixture, rule)


def test_what_packs_consist_of():
    """How full they are, pieces, cuts, balance and tokens of a step, by hand."""
    lengths = np.array([3, 5, 0, 4, 2, 9])
    described = describe([6], world=1, rule=make_pack_rule(6, lengths=lengths, pack_tokens=4), shuffle=False)
    [epoch] = job.read_epochs(described, described.courses())
    found = figures.measure_packs(described, [epoch])
    [own] = epoch.batches
    packs = [part.tolist() for part in np.split(own.tokens, own.edges[1:-1])]
    assert packs == [[3, 1], [4], [4], [2, 2], [4], [3]]
    told = dataclasses.asdict(found)
    assert [costs.tolist() for costs in told.pop("costs")] == [[4, 4, 4, 4, 4, 3]]
    assert told == {
        "packs": 6, "batches": 6, "tokens": 23, "pack_tokens": 4, "fill": 23 / 24, "fill_least": 3 / 4, "short": 1,
        "pieces_mean": 8 / 6, "pieces_most": 2, "cut": 2, "step_tokens": 23 / 6, "imbalance_mean": 1.0,
        "imbalance_worst": 1.0, "skipped": 1, "repeated_tokens": 0,
    }  # fmt: skip
    counts = figures.count_samples(described, described.courses(), [epoch])
    assert dataclasses.astuple(counts) == (6, 5, 1, 0)
    assert figures.measure_batches(described, [epoch]) is None
    few = describe([1], world=3, rule=make_pack_rule(1, lengths=np.array([2]), pack_tokens=4))
    [epoch] = job.read_epochs(few, few.courses())
    assert epoch.steps == [1, 1, 1]
    assert figures.measure_packs(few, [epoch]).repeated_tokens == 1


def test_what_batches_consist_of():
    """Padding, balance, use of the budget and what is left out, by hand; batches that a tail repeats are counted."""
    lengths = np.array([1, 2, 4, 4, 9, 3, 3, 1])
    rule = make_rule(8, lengths=lengths, max_tokens=8, too_long="skip")
    described = describe([8], world=2, rule=rule, shuffle=False, batch_size=2)
    [epoch] = job.read_epochs(described, described.courses())
    found = figures.measure_batches(described, [epoch])
    ranks = [np.split(own.samples, own.edges[1:-1]) for own in epoch.batches]
    assert [[lengths[batch].tolist() for batch in batches] for batches in ranks] == [[[4, 4], [1, 2]], [[3, 3], [1]]]
    assert [own.tolist() for own in found.costs] == [[8, 4], [6, 1]]
    assert (found.batches, found.smallest, found.median, found.largest) == (4, 1, 2, 2)
    assert found.padding == 19 / 18
    assert (found.imbalance_mean, found.imbalance_worst) == pytest.approx(((8 / 7 + 4 / 2.5) / 2, 4 / 2.5))
    assert (found.used_mean, found.used_least) == (19 / 32, 1 / 8)
    assert (found.too_long, found.repeated_in_tail) == (1, 0)
    counts = figures.count_samples(described, described.courses(), [epoch])
    assert dataclasses.astuple(counts) == (8, 7, 1, 0)
    padded = describe([8], world=3, lanes=2, rule=rule, shuffle=False, batch_size=2)
    [epoch] = job.read_epochs(padded, padded.courses())
    assert epoch.steps == [2, 2, 2]
    counts = figures.count_samples(padded, padded.courses(), [epoch])
    repeated = figures.measure_batches(padded, [epoch]).repeated_in_tail
    assert repeated == counts.repeated == counts.read - 7 > 0


def test_what_does_not_go_with_batches_of_like_length():
    """Is said: more samples than can be looked at, ranks with shards of their own, a number of batches."""
    rule = make_rule(40, lengths=np.ones(40), max_tokens=8)
    for options, words in (
        ({"is_by_shards": True}, "in lanes"),
        ({"nbatches": 3}, "say epoch_size"),
        ({"epoch_size": 5_000_000}, "looked at sample by sample.*epoch_size"),
        ({"epoch_size": 3, "passes": 2}, "one of them"),
    ):
        with pytest.raises(ValueError, match=words):
            describe([20, 20], **{"rule": rule, **options})


def check_visits(visits, where):
    """Visits begin and end with their shard, and cover every sample of it."""
    covered = [set() for _ in where]
    for first, last, shard in zip(*(column.tolist() for column in visits), strict=True):
        assert where[first] == where[last] == shard
        for k in range(first, last + 1):
            covered[k].add(shard)
    assert all(shard in found for shard, found in zip(where.tolist(), covered, strict=True))


@settings(max_examples=examples(40))
@given(lengths=LENGTHS, world=st.integers(1, 4), passes=st.integers(2, 3), nbatches=st.none() | st.integers(1, 9))
def test_endless_passes_are_the_samplers(lengths, world, passes, nbatches):
    """With repeat or nbatches an epoch is what a sampler with epochs= or epoch_size= yields."""
    own = {"epochs": passes} if nbatches is None else {"epoch_size": nbatches * 2 * world}
    described = describe(
        lengths, world=world, batch_size=2, passes=passes if nbatches is None else 1, nbatches=nbatches, epochs=3
    )
    for rank, course in enumerate(described.courses()):
        sampler = DistributedChunkedSampler(Numbers(lengths), num_replicas=world, rank=rank, chunksize=10_000, **own)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            assert [index for block in course.blocks(epoch) for index in block.tolist()] == list(sampler)
            course.visits(epoch, is_exact=True)


def test_shards_of_ones_own_are_the_shard_samplers():
    """By shards, a rank reads what ShardListSampler yields over its own shards."""
    lengths = [5, 3, 4, 6, 2]
    described = describe(lengths, world=2, is_by_shards=True, window=2, seed=3)
    starts = np.cumsum([0, *lengths]).tolist()
    for rank, course in enumerate(described.courses()):
        sampler = ShardListSampler(Numbers(lengths), window=2, seed=3)
        sampler.ranges = list(itertools.pairwise(starts))[rank::2]
        assert [index for block in course.blocks(0) for index in block.tolist()] == list(sampler)


@pytest.mark.parametrize("lanes", [None, 3, 8])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("options", [{}, {"passes": 2}, {"reshuffle": "epoch"}, {"chunksize": 250}], ids=str)
def test_visits_from_windows_are_nearly_the_exact_ones(lanes, shuffle, options):
    """Without looking at indices, each window's shards are the same, and begin and end within a few samples."""
    described = describe([700] * 40, world=4, lanes=lanes, shuffle=shuffle, **options)
    for course in described.courses():
        exact, close = (course.visits(0, is_exact=way) for way in (True, False))
        a, b = (np.lexsort((v.first, v.shard)) for v in (exact, close))
        assert exact.shard[a].tolist() == close.shard[b].tolist()
        # A piece of a few samples, cut off by a lane's end, may begin anywhere in its window.
        assert np.quantile(np.abs(exact.first[a] - close.first[b]), 0.9) <= 40
        assert np.quantile(np.abs(exact.last[a] - close.last[b]), 0.9) <= 40


def test_defaults_are_the_samplers():
    """A job that says nothing of its order has the sampler's."""
    own = {field.name: field.default for field in dataclasses.fields(job.TrainingJob)}
    theirs = {
        name: parameter.default for name, parameter in inspect.signature(DistributedChunkedSampler).parameters.items()
    }
    for name in ("chunksize", "window", "lanes", "seed", "shuffle", "reshuffle"):
        assert own[name] == theirs[name]
    assert theirs["tail"] is None  # "pad", for drop_last is None
    assert own["tail"] == "pad"


# --- a node's cache


def test_what_is_being_read_has_a_lease():
    """A shard that is being read is evicted for no other, but where all who read wait for space themselves."""
    node = NodeCache(2, [1, 1, 1])
    for shard in (0, 1):
        assert node.reserve(shard, now=0)
        node.arrive(shard, shard)
    node.begin((0, 0), 0, (0, 9))
    node.begin((0, 1), 1, (0, 9))
    assert not node.reserve(2, now=5)
    node.finish((0, 1), 1, is_read=True)
    assert node.reserve(2, now=5)
    assert (sorted(node.cached), node.evicted, node.again) == ([0], 1, set())
    node.arrive(2, 2)
    assert node.reserve(1, now=5, has_leases=False)
    assert (sorted(node.cached), node.again, node.missing) == ([2], {0}, {0})


def test_what_is_used_soon_has_a_grace():
    """A loader that begins to wait evicts a shard that is not used soon, in the order of the library, or nothing."""
    node = NodeCache(3, [1] * 4, is_busy=lambda: True)
    for shard, use in enumerate((10, 500, 90)):
        assert node.reserve(shard, now=0)
        node.arrive(shard, shard)
        node.plan(shard, use)
    assert not node.reserve(3, now=0, second=1200, waited=0)  # soon is half a second
    assert sorted(node.cached) == [0, 1, 2]
    assert node.reserve(3, now=0, second=100, waited=0)
    assert sorted(node.cached) == [0, 2]


def test_a_download_ahead_costs_nothing_sooner():
    """It evicts only shards that are used later, and asks again once something has changed."""
    node = NodeCache(2, [1] * 4)
    for shard, use in enumerate((10, 500)):
        assert node.reserve(shard, now=0)
        node.arrive(shard, shard)
        node.plan(shard, use)
    assert not node.reserve(2, now=0, use=600)
    assert not node.reserve(2, now=0, use=700)
    node.unplan(1, 500)
    assert node.reserve(2, now=0, use=600)
    assert sorted(node.cached) == [0]


def test_a_rank_reads_up_to_what_is_missing():
    """While a step waits, visits end that lie before the first missing sample of their rank, and no others."""
    node = NodeCache(None, [1] * 4)
    for shard in (0, 1, 3):
        node.reserve(shard, now=0)
        node.arrive(shard, 0)
    node.begin((0, 0), 0, (0, 19))
    node.begin((0, 1), 1, (20, 39))
    node.begin((0, 2), 2, (20, 39))
    node.begin((1, 0), 3, (0, 39))
    assert node.unread(16) == {0: 20}
    assert (node.can_read(0, 0, 19), node.can_read(0, 1, 39), node.can_read(1, 3, 39)) == (True, False, True)
    node.finish_read(node.unread(16), 32)
    assert sorted(node.open) == [1, 2, 3]
    assert node.finished == {(0, 0)}


def test_a_window_that_does_not_fit_beside_the_last_one_waits():
    """A cache of one window fetches no shard twice: the next window waits until the last one was read."""
    lengths = [650] * 24
    for workers in (0, 2, 8):
        described = describe(lengths, cache_size=4000, workers=workers, batch_size=64, bandwidth=1e5)
        epochs, found = simulate(described)
        assert figures.needed_bytes(described, epochs) == 4000
        assert (found.total("shards"), found.total("again"), found.stopped_at) == (24, 0, None)
        _, free = simulate(dataclasses.replace(described, cache_size=24_000))
        assert found.epoch_seconds[0] >= free.epoch_seconds[0]


@pytest.mark.parametrize("has_tables", [True, False])
@pytest.mark.parametrize("early_reads", [True, False])
def test_no_batch_is_read_before_it_is_drawn(early_reads, has_tables):
    """Visits of few batches end before as many batches have gone as are drawn ahead: the first step waits for them."""
    options = {"chunksize": 10, "workers": 8, "batch_size": 4, "cache_size": 5000, "latency": 0.5}
    _, found = simulate(describe([50] * 24, early_reads=early_reads, has_tables=has_tables, **options))
    assert found.first_seconds[0] > 0.5


def test_a_visit_that_is_over_before_its_prefetcher_looks_again():
    """While a step waits, windows go on to visits that end before the next look: plans do not count them."""
    options = {"chunksize": 7, "window": 3, "batch_size": 7, "workers": 2, "latency": 0.5, "decode_seconds": 0.3}
    described = describe(
        [20, 6, 12, 20, 6, 30, 12, 20], world=2, cache_size=2000, early_reads=True, has_tables=False, **options
    )
    epochs = job.read_epochs(described, described.courses())
    simulation = Simulation(described, epochs)
    assert simulation.run().stopped_at is None
    assert [node.cache.plans for node in simulation.nodes] == [{}]


def test_less_than_a_window_comes_again_and_again():
    """A cache that does not hold what is read at a time fetches it again without end, and that is said."""
    _, found = simulate(describe([650] * 24, cache_size=3000, workers=2, batch_size=64))
    assert found.total("again") > 100


# --- against a real cache

ROWS = 5
# Runs of the real program: on a busy machine a worker may not run for half a second, and so loses its grace.
RUNS = 4


@pytest.fixture
def web(server):
    """A server with twelve shards of five samples; returns how an index describes them, and the bytes of each."""
    server.has_ranges = True
    bodies = [shards.shard(chr(97 + k), count=ROWS) for k in range(12)]
    listed = [
        {"url": server.add(f"/{k}.tar", body), "nsamples": ROWS, "filesize": len(body)} for k, body in enumerate(bodies)
    ]
    return listed, len(bodies[0])


class Watch:
    """What becomes of shards: names in the order of events."""

    def __init__(self):
        """Nothing yet."""
        self.fetched, self.evicted = [], []

    def __call__(self, event):
        """See the class."""
        if isinstance(event, Fetched):
            self.fetched.append(event.url)
        elif isinstance(event, Evicted):
            self.evicted.append(os.path.basename(event.path))

    def counts(self):
        """(fetched, fetched again, evicted)."""
        return len(self.fetched), len(self.fetched) - len(set(self.fetched)), len(self.evicted)


def measure_room(listed, directory):
    """Bytes that a shard takes in a cache, with its table; they are all alike."""
    with contextlib.closing(ShardListDataset(listed, cache_dir=directory, transformations=[])) as dataset:
        _ = dataset[0]
    [name] = [name for name in os.listdir(directory) if name.endswith(".tar")]
    return sum(os.stat(path).st_size for path in (directory / name, table_of(directory / name)))


@pytest.mark.parametrize("places", [5, 8, 11])
@pytest.mark.parametrize("order", [{"chunksize": 2, "window": 1}, {"chunksize": 3, "window": 2}, {}], ids=str)
def test_a_cache_without_plans_is_the_real_one(web, tmp_path, monkeypatch, places, order):
    """Without prefetching, two epochs through a bounded cache fetch, evict and fetch again what the simulation says."""
    listed, size = web
    last = 0

    def touch(directory, name):
        # A file system's clock is coarse; of shards used in the same tick none would be the older one.
        nonlocal last
        last = max(time.time_ns(), last + 1)
        os.utime(directory.table(name), ns=(last, last))

    monkeypatch.setattr(CacheDirectory, "touch", touch)
    # It closes what is open a moment after a process waited for space, for the sake of other processes.
    monkeypatch.setattr(Leases, "_answer", lambda _: False)
    room = measure_room(listed, tmp_path / "one")
    limit = places * room + room // 2
    watch = Watch()
    with contextlib.closing(
        ShardListDataset(
            listed,
            cache_dir=tmp_path / "two",
            cache_size=limit,
            transformations=[],
            prefetch=False,
            early_reads=False,
            hooks=[watch],
        )
    ) as dataset:
        sampler = DistributedChunkedSampler(dataset, num_replicas=1, rank=0, **order)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for index in sampler:
                _ = dataset[index]
    described = job.TrainingJob(
        lengths=np.full(12, ROWS),
        sizes=np.full(12, size),
        footprints=np.full(12, room),
        cache_size=limit,
        prefetch=0,
        batch_size=1,
        epochs=2,
        early_reads=False,
        **order,
    )
    _, found = simulate(described)
    assert (found.total("shards"), found.total("again"), found.total("evicted")) == watch.counts()


class Trace:
    """A collate function that keeps what was read: of each batch, (indices, shards)."""

    def __init__(self):
        """Nothing yet."""
        self.batches = []

    def __call__(self, samples):
        """See the class."""
        self.batches.append(([s["__index__"] for s in samples], [s["__shard__"] for s in samples]))


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("order", [{"chunksize": 5, "window": 2}, {"chunksize": 3, "window": 3}], ids=str)
def test_batches_of_like_length_are_read_as_simulated(web, tmp_path, world, order):
    """A DataLoader over a BucketBatchSampler reads those samples and shards, has as many open, and fetches them so."""
    listed, size = web
    lengths = np.random.default_rng(2).integers(1, 50, 12 * ROWS)
    described = describe(
        [ROWS] * 12, size=size, world=world, rule=make_rule(60, lengths=lengths, max_tokens=100), batch_size=3,
        prefetch=0, epochs=2, **order,
    )  # fmt: skip
    epochs, outcome = simulate(described)
    fetched = []
    for rank in range(world):
        watch, trace = Watch(), Trace()
        cache = tmp_path / "cache"
        with contextlib.closing(
            ShardListDataset(listed, cache_dir=cache, transformations=[], prefetch=False, hooks=[watch])
        ) as dataset:
            sampler = DistributedChunkedSampler(dataset, num_replicas=world, rank=rank, **order)
            batches = wids.BucketBatchSampler(sampler, lengths=lengths, max_tokens=100)
            loader = wids.resumable(DataLoader(dataset, batch_sampler=batches, collate_fn=trace))
            for epoch in epochs:
                trace.batches.clear()
                assert len(list(loader)) == epoch.steps[rank]
                read = epoch.batches[rank]
                simulated = np.split(read.samples, read.edges[1:-1])
                assert [indices for indices, _ in trace.batches] == [batch.tolist() for batch in simulated]
                shards_of = [[listed[k]["url"] for k in (batch // ROWS).tolist()] for batch in simulated]
                assert [urls for _, urls in trace.batches] == shards_of
                # Open is a shard from the first step that reads one of its chunks to the last.
                opened = figures.open_at_a_time(described, [epoch], rank)
                assert all(len(set(urls)) <= count for (_, urls), count in zip(trace.batches, opened, strict=True))
                assert opened.max() <= 2 * order["window"]
        fetched += watch.fetched
    assert len(fetched) == outcome.total("shards") == 12
    # Each is fetched at the step that first reads it; of one step, in any order.
    steps, before = [], 0
    for rank, visits in enumerate(epochs[0].visits):
        for first, shard in zip(visits.first.tolist(), visits.shard.tolist(), strict=True):
            steps.append((before + first // described.batch_size, listed[shard]["url"]))
        before += epochs[0].steps[rank]
    first_steps = {url: step for step, url in sorted(steps, reverse=True)}
    assert [first_steps[url] for url in fetched] == sorted(first_steps.values())


@pytest.mark.parametrize("order", [{"chunksize": 2, "window": 1}, {"chunksize": 2, "window": 3}, {}], ids=str)
def test_the_smallest_cache_is_enough_for_a_real_one(web, tmp_path, monkeypatch, set_limits, order):
    """A prefetched epoch through a cache of the size that is said to be the smallest one fetches no shard again."""
    # Nothing draws ahead here. On a busy machine shards would be kept for a loader that might, and none would come.
    set_limits(distance, min_burst=1)
    listed, size = web
    room = measure_room(listed, tmp_path / "one")
    described = job.TrainingJob(
        lengths=np.full(12, ROWS),
        sizes=np.full(12, size),
        footprints=np.full(12, room),
        batch_size=1,
        step_seconds=1.0,
        early_reads=False,
        **order,
    )
    epochs = job.read_epochs(described, described.courses())
    smallest = figures.smallest_cache(described, epochs)
    assert figures.needed_bytes(described, epochs) <= smallest <= 12 * room
    _, found = simulate(dataclasses.replace(described, cache_size=smallest))
    assert (found.total("shards"), found.total("again")) == (12, 0)
    watch, clock = Watch(), PrefetchClock(monkeypatch.setattr)
    options = {"cache_size": smallest + room // 2, "transformations": [], "hooks": [watch]}
    with contextlib.closing(ShardListDataset(listed, cache_dir=tmp_path / "two", **options)) as dataset:
        for index in DistributedChunkedSampler(dataset, num_replicas=1, rank=0, **order):
            clock.move(1.0)  # a step is longer than a download, as in the simulation
            _ = dataset[index]
    assert watch.counts()[:2] == (12, 0)


SHARDS, WINDOW, BATCH, WORKERS = 24, 4, 8, 2


@pytest.mark.thorough
@pytest.mark.parametrize("places", [5, 6, 8, 12, 24])
def test_as_many_shards_come_as_in_a_real_job(server, tmp_path, places):
    """A loader with workers, through caches from one window up to all of the data, fetches what the simulation says.

    The difference is a seventh at most. Both fetch each shard at least once. In a real job a worker that waits may take
    a shard that the other worker has not begun: that is left to the machine's scheduler and not simulated; so the least
    of some runs counts. Where the cache has the window and one shard, there is no place for what two workers draw
    ahead, nearly a shard here: that costs a real job 30 to 35 downloads of 24 shards, and the simulated one none.
    """
    server.has_ranges = True
    rows = 40
    bodies = [shards.shard(f"{k:02}", count=rows) for k in range(SHARDS)]
    listed = [
        {"url": server.add(f"/{k}.tar", body), "nsamples": rows, "filesize": len(body)} for k, body in enumerate(bodies)
    ]
    size = len(bodies[0])
    room = size + table_allowance(size, rows)
    limit = places * room + room // 2
    _, found = simulate(
        job.TrainingJob(
            lengths=np.full(SHARDS, rows),
            sizes=np.full(SHARDS, size),
            footprints=np.full(SHARDS, room),
            batch_size=BATCH,
            workers=WORKERS,
            window=WINDOW,
            cache_size=limit,
            step_seconds=0.01,
            latency=0.001,
            early_reads=False,
        )
    )
    simulated, counts = found.total("shards"), []
    most = simulated * (1.5 if places == WINDOW + 1 else 1.15)
    while len(counts) < RUNS and (not counts or min(counts) > most):
        counts.append(fetch_for_real(server, listed, tmp_path / str(len(counts)), limit))
    assert SHARDS <= min(counts) <= most
    assert simulated <= min(counts) * 1.15


def fetch_for_real(server, listed, directory, limit):
    """How many shards a loader with workers fetches in an epoch, from an empty cache on; tiny ones take one request."""
    server.requests.clear()
    with contextlib.closing(
        ShardListDataset(listed, cache_dir=directory, cache_size=limit, transformations=[], early_reads=False)
    ) as dataset:
        sampler = DistributedChunkedSampler(dataset, num_replicas=1, rank=0, window=WINDOW)
        loader = DataLoader(
            dataset,
            batch_size=BATCH,
            sampler=sampler,
            num_workers=WORKERS,
            collate_fn=len,
            multiprocessing_context="fork",
            timeout=PATIENCE_SECONDS,
        )
        assert sum(loader) == len(dataset)
    return len(shard_requests(server))


@pytest.mark.parametrize("kind", ["plain", "dealt", "mixture", "batches", "weights", "packs"])
def test_open_shards_of_some_steps(kind):
    """They are the visits that are simulated, also by weights, and of a part of the steps what of them lies there."""
    lengths, options = [40, 0, 33, 70, 9, 51], {"seed": 3, "lanes": 4, "chunksize": 20, "window": 2, "tail": "pad"}
    options["reshuffle"] = "epoch" if kind == "dealt" else "fixed"
    parts = [SourceSpan("a", 0, 73, 0.7), SourceSpan("b", 73, 203, 0.3)] if kind == "mixture" else None
    rule = make_rule(203, lengths=np.arange(1, 204), max_tokens=900) if kind == "batches" else None
    if kind == "packs":
        rule = make_pack_rule(203, lengths=np.arange(1, 204), pack_tokens=500)
    weights = np.arange(203) % 3 if kind == "weights" else None
    order = SamplerSettings(num_replicas=3, **options)
    table = make_timetable(ShardCounts(lengths), parts, order, epoch=0, batch_size=5, rule=rule, weights=weights)
    ends = np.cumsum(lengths)
    for rank in range(3):
        whole = open_shards(table, ends, rank, 0, table.steps)
        plan = {"parts": None if parts is None else tuple(parts), "rule": rule, "weights": weights}
        simulated = describe(lengths, world=3, batch_size=5, **options, **plan)
        [epoch] = job.read_epochs(simulated, simulated.courses())
        visits = epoch.visits[rank]
        expected = zip(visits.first // 5, visits.last // 5, visits.shard, strict=True)
        assert sorted(zip(*whole, strict=True)) == sorted(expected)
        for step in range(table.steps):
            read = set(np.searchsorted(ends, table.batch(rank, step)[0], side="right").tolist())
            assert read <= {k for first, last, k in zip(*whole, strict=True) if first <= step <= last}
            assert read == set(open_shards(table, ends, rank, step, step + 1).shard.tolist())


def entries(numbers, count=700):
    """Shards of an index, which are nowhere."""
    return [{"url": f"/nowhere/{k}.tar", "nsamples": count, "filesize": k + 1000} for k in numbers]


@pytest.mark.parametrize(
    "options", [{}, {"passes": 2}, {"nbatches": 60}, {"reshuffle": "epoch"}, {"has_batches": True}], ids=str
)
def test_a_job_that_goes_on_over_changed_data(options):
    """Its ranks read what the samplers read that load the state, and its visits are those of their samples."""
    options = dict(options)
    rule = {"max_tokens": 9, "lengths": np.resize([1, 2, 3], 700 * 40)} if options.pop("has_batches", False) else None
    old, new = (ShardListDataset(entries(numbers)) for numbers in (range(40), range(3, 43)))
    setting = {"epochs": options.get("passes", 1), "reshuffle": options.get("reshuffle", "fixed"), "seed": 0}
    setting |= {"epoch_size": options["nbatches"] * 4 * 8, "epochs": 1} if "nbatches" in options else {}

    def make(dataset, rank, world=4):
        sampler = DistributedChunkedSampler(dataset, num_replicas=world, rank=rank, **setting)
        return sampler if rule is None else wids.BucketBatchSampler(sampler, **rule)

    sampler = make(old, 0, world=3)
    items = iter(sampler)
    for _ in range(400):
        next(items)
    state, lengths = sampler.state_dict(), None if rule is None else lambda: rule["lengths"]
    resume = Resume(new, state, find_earlier(new, old, values={"lengths": lengths}))
    more = {} if rule is None else {"rule": make_rule(700 * 40, lengths=rule["lengths"], max_tokens=9)}
    described = describe([700] * 40, world=4, lanes=3, batch_size=8, resume=resume, **options, **more)
    courses = described.courses()
    epochs = job.read_epochs(described, courses)
    for rank, course in enumerate(courses):
        own = make(new, rank)
        own.load_state_dict(state, old=old, **({} if rule is None else {"old_lengths": rule["lengths"]}))
        expected = [index for item in own for index in (item if rule else [item])]
        if rule is not None:
            assert epochs[0].batches[rank].samples.tolist() == expected
            continue
        assert [index for block in course.blocks(0) for index in block.tolist()] == expected
        exact, close = (course.visits(0, is_exact=way) for way in (True, False))
        assert sorted(set(exact.shard.tolist())) == sorted({index // 700 for index in expected})
        a, b = (np.lexsort((v.first, v.shard)) for v in (exact, close))
        assert exact.shard[a].tolist() == close.shard[b].tolist()
        assert np.quantile(np.abs(exact.first[a] - close.first[b]), 0.8) <= 40

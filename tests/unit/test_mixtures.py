"""Batches of a mixture, each of one source: shares of batches, equal ranks, resume."""

import itertools
import json
import random
from collections import Counter

import numpy as np
import pytest
import torch.utils.data

import wids
from wids.errors import StateError


def mixture_of(rng, **weights):
    """A mixture of lists of random lengths."""
    return wids.mix({name: ([(name, k) for k in range(rng.randint(1, 70))], w) for name, w in weights.items()})


def samplers_of(mixture, world, batch_size, **options):
    """The batch samplers of all ranks."""
    return [wids.MixtureBatchSampler(mixture, batch_size, num_replicas=world, rank=r, **options) for r in range(world)]


def read(samplers, mixture, count=None):
    """The global batches: a list of samples each."""
    rows = [list(itertools.islice(iter(sampler), count)) for sampler in samplers]
    return [
        mixture.__getitems__([i for row in zip(*parts, strict=True) for i in row]) for parts in zip(*rows, strict=True)
    ]


@pytest.mark.parametrize("seed", range(10))
def test_every_global_batch_is_of_one_source_and_shares_are_those_of_batches(seed):
    """Every global batch is of one source and shares are those of batches."""
    rng = random.Random(seed)
    mixture = mixture_of(rng, a=0.5, b=0.3, c=0.2)
    world, size = rng.randint(1, 4), rng.randint(1, 9)
    samplers, seen = samplers_of(mixture, world, size), []
    for _ in range(3):
        assert len({len(sampler) for sampler in samplers}) == 1
        batches = read(samplers, mixture)
        assert len(batches) == len(samplers[0])
        assert {len(batch) for batch in batches} == {world * size}
        seen += batches
    counts = Counter()
    for step, batch in enumerate(seen, 1):
        (name,) = {name for name, _ in batch}
        counts[name] += 1
        assert all(abs(counts[n] - mixture.weights[n] * step) < 1 + 1e-6 for n in mixture.names)
    for name, dataset in zip(mixture.names, mixture.datasets, strict=True):
        mine = [k for batch in seen for source, k in batch if source == name]
        for first in range(0, len(mine), len(dataset)):
            part = mine[first : first + len(dataset)]
            assert len(set(part)) == len(part)


def test_a_state_after_assigned_numpy_integers_is_json():
    """Ranks of a numpy type that are assigned before a length leave the state's numbers plain ints."""
    sampler = wids.DistributedChunkedSampler(mixture_of(random.Random(1), a=2, b=1), num_replicas=3, rank=0)
    sampler.num_replicas = np.int64(2)
    sampler.dslength_per_replica = 5
    next(iter(sampler))
    assert json.loads(json.dumps(sampler.state_dict()))["position"] == 2


def test_a_resume_on_another_number_of_ranks_keeps_the_global_batch():
    """A resume on another number of ranks keeps the global batch."""
    mixture = mixture_of(random.Random(3), a=2, b=1)
    whole = read(samplers_of(mixture, 2, 6, epochs=None), mixture, 40)
    first = samplers_of(mixture, 2, 6, epochs=None)
    assert read(first, mixture, 5) == whole[:5]
    state = first[0].state_dict(batches=5)
    for world, size in ((1, 12), (3, 4), (4, 3), (2, 6)):
        again = samplers_of(mixture, world, size, epochs=None)
        for sampler in again:
            sampler.load_state_dict(state)
        assert read(again, mixture, 35) == whole[5:]
    for world, size in ((1, 6), (2, 5)):
        with pytest.raises(StateError, match="ranks times source_batch has to be 12"):
            samplers_of(mixture, world, size, epochs=None)[0].load_state_dict(state)
    with pytest.raises(StateError, match="within a global batch"):
        samplers_of(mixture, 2, 6, epochs=None)[0].load_state_dict({**state, "position": 61})


def test_mixed_batches_and_a_loader():
    """Mixed batches and a loader."""
    mixture = mixture_of(random.Random(1), a=1, b=1)
    mixed = wids.MixtureBatchSampler(mixture, 8, batches="mixed")
    loader = torch.utils.data.DataLoader(mixture, batch_sampler=mixed, collate_fn=list)
    assert len(loader) == len(list(loader)) == -(-len(mixture) // 8)
    assert {len({name for name, _ in batch}) for batch in itertools.islice(loader, 4)} == {2}
    whole = wids.MixtureBatchSampler(mixture, 8)
    iteration = iter(whole)
    batches = list(iteration)
    again = iter(wids.MixtureBatchSampler(mixture, 8))
    head = [next(again), next(again)]
    rest = iter(wids.MixtureBatchSampler(mixture, 8))
    rest.load_state_dict(again.state_dict())
    assert head + list(rest) == batches


def test_weights_change_at_whole_batches():
    """Weights change at whole batches."""
    mixture = mixture_of(random.Random(2), a=1, b=1)
    samplers = samplers_of(mixture, 2, 4, epoch_size=80)
    assert {sampler.reweight({"b": 0}, at=41) for sampler in samplers} == {48}
    batches = read(samplers, mixture)
    assert {batch[0][0] for batch in batches[6:]} == {"a"}
    assert Counter(batch[0][0] for batch in batches[:6]) == {"a": 3, "b": 3}


def test_bad_options_are_refused():
    """Bad options are refused."""
    mixture = mixture_of(random.Random(1), a=1)
    with pytest.raises(ValueError, match="batches is 'all'"):
        wids.MixtureBatchSampler(mixture, 4, batches="all")
    with pytest.raises(ValueError, match="batch_size is 0"):
        wids.MixtureBatchSampler(mixture, 0)
    with pytest.raises(ValueError, match="a list is no mixture"):
        wids.MixtureBatchSampler([1, 2], 4)
    with pytest.raises(ValueError, match="source_batch is 4, and a list is no mixture"):
        wids.DistributedChunkedSampler([1, 2], source_batch=4)


def test_batches_are_of_one_source_with_any_lanes_that_divide_them():
    """Also with more or fewer lanes than ranks; other lanes are refused."""
    mixture = mixture_of(random.Random(4), a=2, b=1, c=1)
    for world, size, lanes in ((2, 4, 8), (3, 4, 2), (2, 4, 1), (1, 6, 3)):
        samplers = samplers_of(mixture, world, size, lanes=lanes)
        batches = read(samplers, mixture)
        assert {len({name for name, _ in batch}) for batch in batches} == {1}
        assert {len(batch) for batch in batches} == {world * size}
        state = samplers_of(mixture, world, size, lanes=lanes)[0].state_dict()
        samplers[0].load_state_dict(state)
    with pytest.raises(ValueError, match="lanes is 5, and does not divide the 8 samples of a global batch"):
        samplers_of(mixture, 2, 4, lanes=5)
    first = samplers_of(mixture, 2, 4)[0].state_dict()
    with pytest.raises(StateError, match="of 8 samples in 100 lanes; it is damaged"):
        samplers_of(mixture, 2, 4)[0].load_state_dict({**first, "lanes": 100})


class Numbers(list):
    """A source that has something of its own by the names of a dataset's methods."""

    stats = close = 3


class OwnLengths(wids.Mixture):
    """A subclass with lengths of its own, assigned before its base is there or after."""

    def __init__(self, *args, early):
        self.lengths = early and "mine"
        super().__init__(*args)
        self.lengths = "mine"


@pytest.mark.parametrize("early", [True, False])
def test_attributes_of_a_subclass_or_source_by_names_of_ours(early):
    """They stay what they are, and the mixture reads the same samples."""
    sources, weights = {"a": Numbers(range(9)), "b": list(range(5))}, {"a": 2, "b": 1}
    plain, own = wids.Mixture(sources, weights), OwnLengths(sources, weights, early=early)
    assert (plain.lengths, own.lengths, len(own)) == ([9, 5], "mine", 14)
    assert list(wids.ChunkedSampler(own)) == list(wids.ChunkedSampler(plain))
    assert own[10] == 1
    assert own.stats() == {}
    own.close()

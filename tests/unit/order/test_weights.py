"""Weights of samples: floor or ceiling of the expected copies, whole passes, locality, resume."""

import itertools
import random

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, Subset

import wids
from tests.support.examples import some
from wids.core.order.layout import ShardCounts
from wids.core.order.weights import Copies
from wids.errors import StateError
from wids.samplers import DistributedChunkedSampler


def ranks(dataset, world, **options):
    """The samplers of all ranks."""
    return [DistributedChunkedSampler(dataset, num_replicas=world, rank=r, **options) for r in range(world)]


def random_case(rng):
    """A dataset of shards and weights of its samples."""
    lengths = [rng.randint(0, 60) for _ in range(rng.randint(1, 12))]
    lengths[0] += 1
    n = sum(lengths)
    weights = np.array([rng.choice([0, 1, rng.random(), rng.random() ** 4, 7 * rng.random()]) for _ in range(n)])
    weights[rng.randrange(n)] = 0.3
    return ShardCounts(lengths), weights


@pytest.mark.parametrize("seed", range(10))
def test_each_sample_comes_floor_or_ceiling_of_its_expected_copies(seed):
    """Each sample comes floor or ceiling of its expected copies."""
    rng = random.Random(seed)
    for _ in some(range(20), every=4):
        dataset, weights = random_case(rng)
        world, size = rng.randint(1, 7), rng.choice([None, rng.randint(7, 900)])
        options = {"window": rng.randint(1, 4), "chunksize": rng.choice([7, 1000]), "shuffle": rng.random() < 0.8}
        samplers = ranks(dataset, world, weights=weights, lanes=rng.randint(1, 7), epoch_size=size, **options)
        count = size or len(dataset)
        expected = weights / weights.sum() * count
        endless = ranks(dataset, 1, weights=weights, lanes=samplers[0].lanes, epoch_size=size, **options)[0]
        for epoch in range(3):
            for sampler in (*samplers, endless):
                sampler.set_epoch(epoch)
            copies = np.bincount(list(endless), minlength=len(dataset))
            assert copies.sum() == count
            assert (copies >= np.floor(expected - 1e-6)).all()
            assert (copies <= np.ceil(expected + 1e-6)).all()
            if size is None:
                rows = [list(sampler) for sampler in samplers]
                assert len({len(row) for row in rows}) == 1
                assert [i for step in zip(*rows, strict=True) for i in step][:count] == list(endless_of(endless, epoch))


def endless_of(sampler, epoch):
    """The sampler, at an epoch."""
    sampler.set_epoch(epoch)
    return sampler


@pytest.mark.thorough
def test_shares_over_many_draws_are_those_of_the_weights():
    """Shares over many draws are those of the weights."""
    weights = np.random.default_rng(0).random(1000) ** 3
    sampler = DistributedChunkedSampler(ShardCounts([100] * 10), weights=weights, epochs=None, num_replicas=1, rank=0)
    drawn = np.fromiter(itertools.islice(sampler, 10**6), np.int64)
    groups = np.arange(1000) // 100
    found = np.bincount(groups[drawn], minlength=10) / 1e6
    expected = np.bincount(groups, weights) / weights.sum()
    assert abs(found - expected).max() < 0.001 * expected.min()
    copies, mean = np.bincount(drawn, minlength=1000), weights / weights.sum() * 1e6
    assert abs(copies - mean).max() < 5


def test_other_samples_come_in_each_pass():
    """Other samples come in each pass."""
    sampler = DistributedChunkedSampler(ShardCounts([1000]), weights=np.full(1000, 0.5), epoch_size=500)
    first, second = set(sampler), set(sampler)
    assert len(first) == len(second) == 500
    assert len(first & second) < 300


def test_no_more_shards_are_open_at_a_time_than_without_weights():
    """No more shards are open at a time than without weights."""
    rng = np.random.default_rng(1)
    dataset = ShardCounts([100] * 64)
    for weights in (rng.random(6400) ** 4, np.where(rng.random(6400) < 0.05, 1.0, 0.0)):
        sampler = DistributedChunkedSampler(dataset, weights=weights, window=4)
        shards = np.array(list(sampler)) // 100
        first = {s: np.flatnonzero(shards == s)[0] for s in set(shards.tolist())}
        last = {s: np.flatnonzero(shards == s)[-1] for s in first}
        open_at = [sum(first[s] <= t <= last[s] for s in first) for t in range(0, len(shards), 37)]
        assert max(open_at) <= 1.5 * 4


def test_a_resume_goes_on_exactly_on_any_number_of_ranks():
    """A resume goes on exactly on any number of ranks."""
    dataset, weights = random_case(random.Random(5))
    (whole,) = ranks(dataset, 1, weights=weights, lanes=4)
    order = list(whole)
    for position in (0, 1, 13, len(order) - 3):
        for world in (1, 2, 3):
            samplers = ranks(dataset, world, weights=weights)
            state = ranks(dataset, 1, weights=weights, lanes=4)[0].state_dict()
            for sampler in samplers:
                sampler.load_state_dict({**state, "position": position})
            rows = [list(sampler) for sampler in samplers]
            assert [i for step in zip(*rows, strict=True) for i in step][: len(order) - position] == order[position:]
    with pytest.raises(StateError, match="sample_weights"):
        ranks(dataset, 1, weights=weights * 2 + 1, lanes=4)[0].load_state_dict(whole.state_dict())
    ranks(dataset, 1, weights=weights * 2, lanes=4)[0].state_dict()


def test_a_range_and_an_unsorted_subset_have_their_own_weights():
    """A range and an unsorted subset have their own weights."""
    dataset, weights = ShardCounts([10] * 10), np.arange(100.0)
    sampler = DistributedChunkedSampler(dataset, weights=weights, num_samples=(20, 40))
    assert set(sampler) <= set(range(20, 40))
    assert np.bincount(list(sampler), minlength=40)[30:].sum() > 10
    subset = Subset(dataset, random.Random(0).sample(range(100), 50))
    heavy = np.array([50.0 if i >= 90 else 0.0 for i in subset.indices])
    assert {subset.indices[i] // 10 for i in DistributedChunkedSampler(subset, weights=heavy)} == {9}


def test_places_and_offsets_add_up_exactly_to_the_last_place():
    """Places and offsets add up exactly to the last place."""
    weights = np.random.default_rng(2).random(1000)
    copies = Copies(weights, count=2**36, first=0, boundaries=None, seed=3)
    for number in range(50):
        draw = copies.draw(number)
        found = draw.samples(np.array([0, 2**36 - 1]))
        assert 0 <= found[0] <= found[1] == 999


def test_equal_weights_are_one_copy_of_each_however_many():
    """Sums are not rounded on the way, and no offset is where whole stretches end."""
    for weight in (0.1, 0.3, 1e308, 5e-324):
        copies = Copies(np.full(10**6, weight), count=10**6, first=0, boundaries=None, seed=1)
        assert abs(copies._ends - np.arange(1, 10**6 + 1)).max() < 1e-9
        for number in range(3):
            assert (copies.draw(number).samples(np.arange(10**6)) == np.arange(10**6)).all()


def test_weights_of_all_sizes():
    """Weights of all sizes."""
    for weights, expected in (
        ([1e-300, 1e300, 1], [0, 3, 0]),
        ([0, 0, 1e-310, 0], [0, 0, 4, 0]),
        ([1e308, 1e308], [1, 1]),
        ([1, 2**50, 2**50, 2**50, 2**50, 0], None),
    ):
        found = np.bincount(list(DistributedChunkedSampler(ShardCounts([len(weights)]), weights=weights)))
        assert expected is None or found.tolist() == expected[: len(found)]
        assert found.sum() == len(weights)


def test_bad_weights_are_refused():
    """Bad weights are refused."""
    dataset = ShardCounts([3, 4])
    for weights, words in (
        ([1.0] * 6, r"shape \(6,\); it must be \(7,\)"),
        ([1, 2, 3, -1, 0, 0, 0], r"weights\[3\] is -1.0 \(1 such\)"),
        ([1, 2, 3, None, 0, 0, 0], r"weights\[3\] is nan"),
        (np.zeros(7), "no weight is above 0"),
        ("column", "a ShardCounts has no columns"),
        (["a"] * 7, "a number for each sample"),
    ):
        with pytest.raises(ValueError, match=words):
            DistributedChunkedSampler(dataset, weights=weights)
    with pytest.raises(ValueError, match="mixture's sources have weights"):
        DistributedChunkedSampler(wids.mix([[1, 2]]), weights=[1, 1])
    with pytest.raises(ValueError, match="no chunks are a rank's own"):
        DistributedChunkedSampler(dataset, weights=[1] * 7).ranges  # noqa: B018
    with pytest.raises(ValueError, match=r"range 0 \.\. 3"):
        DistributedChunkedSampler(dataset, weights=[0, 0, 0, 1, 1, 1, 1], num_samples=3)


class Columns(ShardCounts):
    """A dataset with a column."""

    def read_column(self, name):
        """How often each sample comes."""
        assert name == "often"
        return np.arange(len(self)) % 2 * 2


def test_a_column_is_read_through_joins_and_subsets():
    """As the lengths of `wids.BucketBatchSampler` are."""
    whole = Columns([3, 4])
    join = ConcatDataset([whole, Subset(whole, [6, 5, 1])])
    often = np.bincount(list(DistributedChunkedSampler(join, weights="often")), minlength=10)
    assert often.tolist() == [0, 2, 0, 2, 0, 2, 0, 0, 2, 2]
    batches = wids.BucketBatchSampler(DistributedChunkedSampler(join), buckets="often", batch_size=2)
    values = [0, 2, 0, 2, 0, 2, 0, 0, 2, 2]
    assert all(len({values[i] for i in batch}) == 1 for batch in batches)
    with pytest.raises(ValueError, match="weights is 'often', and a ShardCounts has no columns"):
        DistributedChunkedSampler(ConcatDataset([whole, ShardCounts([2])]), weights="often")


def test_an_error_about_weights_is_one_line():
    """However numpy prints them."""
    words = np.array([["a", "b"], ["c", "d"]])
    with pytest.raises(ValueError, match=r"^weights is array\(\[\['a', 'b'\], \['c', 'd'\]\].*; it must be a number"):
        DistributedChunkedSampler(ShardCounts([4]), weights=words)


def test_balance_evens_out_classes():
    """Balance evens out classes."""
    labels = np.array([0] * 90 + [1] * 9 + [2])
    weights = wids.balance(labels)
    assert np.allclose(np.bincount(labels, weights), 100 / 3)
    assert np.allclose(wids.balance(labels, power=0), 1)
    half = np.bincount(labels, wids.balance(labels, power=0.5))
    assert np.allclose(half / half.sum(), np.sqrt([90, 9, 1]) / np.sqrt([90, 9, 1]).sum())
    assert np.allclose(wids.balance(["a", "b", "b"]), [1.5, 0.75, 0.75])
    assert np.allclose(wids.balance(np.array(["a", None, None], object)), [1.5, 0.75, 0.75])
    labels_of_floats = np.array(["a", float("nan"), float("nan"), None], object)  # each nan another object
    assert np.allclose(wids.balance(labels_of_floats), [2, 2 / 3, 2 / 3, 2 / 3])
    assert wids.balance([]).shape == (0,)
    for bad, words in (([[1]], "shape"), ([1], "power is nan")):
        with pytest.raises(ValueError, match=words):
            wids.balance(bad, power=float("nan"))
    drawn = labels[list(DistributedChunkedSampler(ShardCounts([100]), weights=weights, epoch_size=300))]
    assert (abs(np.bincount(drawn) - 100) <= 1).all()

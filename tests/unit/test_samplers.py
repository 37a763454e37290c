"""Samplers: equal counts, exact lengths, whole coverage and pure orders, for every length, world and option."""

import copy
import inspect
import os
import pickle
import random
import tracemalloc
import warnings
from collections import Counter
from itertools import islice, pairwise, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, Sampler, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import wids
from tests.support.examples import some
from tests.support.goldens import golden_lines
from tests.support.numbers import Numbers, alone
from wids.errors import InputError
from wids.samplers import ChunkedSampler, DistributedChunkedSampler, ShardedSampler, ShardListSampler
from wids.wids import iterate_ranges, lengths_to_ranges


class Shards:
    """A dataset that has only its lengths."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return sum(self.lengths)


class Sized:
    """A dataset of which nothing but the length may be asked."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    """No test takes the rank of whatever launched the tests."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def group(monkeypatch):
    """Stand in for an initialised process group: ``group(rank, world)``."""

    def pretend(rank, world):
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: world)

    return pretend


def lane_bounds(lo, hi, *, rank, world):
    """The part of lo .. hi that lane `rank` of `world` owns: the first (hi - lo) % world are longer by one."""
    each, longer = divmod(hi - lo, world)
    first = lo + rank * each + min(rank, longer)
    return first, first + each + (rank < longer)


def ranks(dataset, world, **options):
    """The samplers of all ranks."""
    return [DistributedChunkedSampler(dataset, num_replicas=world, rank=rank, **options) for rank in range(world)]


def check_epoch(samplers, *, lo, hi, drop_last, epoch):
    """What holds for all ranks' indices of one epoch of the range lo .. hi."""
    n, world = hi - lo, len(samplers)
    each = n // world if drop_last else -(-n // world)
    epochs = [list(sampler) for sampler in samplers]
    for rank, (sampler, indices) in enumerate(zip(samplers, epochs, strict=True)):
        assert sampler.epoch == epoch
        assert len(indices) == len(sampler) == sampler.num_samples == each
        assert sampler.total_size == each * world
        first, last = lane_bounds(lo, hi, rank=rank, world=world)
        own = [i for i in indices if first <= i < last]
        assert len(own) == each or first == last
        # Only a repetition may come twice, and only after the lane's own samples: it is what the epoch began with.
        fresh = indices[: max(last - first, 1)]
        assert len(set(fresh)) == len(fresh)
        assert indices[len(fresh) :] == indices[: len(indices) - len(fresh)]
    counts = Counter(i for indices in epochs for i in indices)
    assert all(type(i) is int for i in counts)
    assert sum(counts.values()) == each * world
    if drop_last:
        assert len(counts) == each * world
        assert counts.keys() <= set(range(lo, hi))
    else:
        assert counts.keys() == set(range(lo, hi))
        assert sum(count - 1 for count in counts.values()) == world * each - n


@pytest.mark.parametrize("drop_last", [False, True, None])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_rank_yields_the_same_count(shuffle, drop_last):
    """For every n to 60 and world to 9: equal counts, exact len, each sample once but for the tail, lanes kept."""
    sizes = [1, 2, 3, 7, 16, 70]
    for n, world in some(product([*range(61), 127, 1009], range(1, 10)), every=13):
        chunksize = sizes[(n + world) % len(sizes)]
        samplers = ranks(Sized(n), world, chunksize=chunksize, shuffle=shuffle, drop_last=drop_last, seed=n)
        for epoch in range(2):
            check_epoch(samplers, lo=0, hi=n, drop_last=drop_last, epoch=epoch)


@given(
    lengths=st.lists(st.integers(0, 25), min_size=1, max_size=10),
    places=st.none() | st.tuples(st.integers(0, 250), st.integers(0, 250)),
    world=st.integers(1, 9),
    chunksize=st.integers(1, 70),
    shuffle=st.booleans(),
    drop_last=st.sampled_from([None, False, True]),
    seed=st.integers(-5, 1 << 65),
    epoch=st.integers(-3, 1 << 40),
    has_shards=st.booleans(),
)
def test_every_rank_yields_its_share_of_any_range(
    lengths, places, world, chunksize, shuffle, drop_last, seed, epoch, has_shards
):
    """The same holds of any part of a dataset of shards, any epoch and any seed."""
    n = sum(lengths)
    lo, hi = (0, n) if places is None else sorted(min(place, n) for place in places)
    dataset = Shards(lengths) if has_shards else Sized(n)
    options = {"chunksize": chunksize, "shuffle": shuffle, "drop_last": drop_last, "seed": seed}
    samplers = ranks(dataset, world, num_samples=None if places is None else (lo, hi), **options)
    for sampler in samplers:
        sampler.set_epoch(epoch)
    check_epoch(samplers, lo=lo, hi=hi, drop_last=drop_last, epoch=epoch)
    check_epoch(samplers, lo=lo, hi=hi, drop_last=drop_last, epoch=epoch + 1)


def test_num_samples_as_a_count():
    """num_samples=k shares out the first k samples; 0 is none, not all."""
    for k in (0, 1, 7, 20):
        check_epoch(ranks(Sized(20), 3, num_samples=k), lo=0, hi=k, drop_last=False, epoch=0)


@given(
    n=st.integers(0, 60),
    num_samples=st.none() | st.integers(0, 60) | st.tuples(st.integers(0, 60), st.integers(0, 60)),
    chunksize=st.integers(1, 70),
    shuffle=st.booleans(),
)
def test_a_chunked_sampler_covers_its_range(n, num_samples, chunksize, shuffle):
    """ChunkedSampler yields each index of its range once, in every epoch, cut as the original cut it."""
    if isinstance(num_samples, tuple):
        num_samples = tuple(sorted(min(place, n) for place in num_samples))
        lo, hi = num_samples
    else:
        num_samples = None if num_samples is None else min(num_samples, n)
        lo, hi = 0, n if num_samples is None else num_samples
    sampler = ChunkedSampler(Sized(n), num_samples=num_samples, chunksize=chunksize, shuffle=shuffle)
    assert sampler.ranges == [(i, min(i + chunksize, hi)) for i in range(lo, hi, chunksize)]
    for epoch in range(2):
        indices = list(sampler)
        assert sampler.epoch == epoch
        assert len(indices) == len(sampler) == sampler.dslength_per_replica == hi - lo
        assert (sorted(indices) if shuffle else indices) == list(range(lo, hi))


@pytest.mark.parametrize("lengths", [[], [5], [3, 0, 4, 1], [0, 0], np.array([2, 2])])
def test_a_shard_list_sampler_covers_the_shards(lengths):
    """ShardListSampler yields each index once, shard after shard, from the dataset's lengths or from its own."""
    total = int(sum(lengths))
    for sampler in (ShardListSampler(Shards(lengths)), ShardedSampler(None, lengths=lengths, seed=3)):
        assert sampler.ranges == lengths_to_ranges(lengths)
        assert [hi - lo for lo, hi in sampler.ranges] == list(lengths)
        for _ in range(3):
            indices = list(sampler)
            assert len(indices) == len(sampler) == total
            assert sorted(indices) == list(range(total))
            check_chunks_come_whole(indices, sampler.ranges)


def test_lengths_win_over_the_dataset():
    """ShardListSampler(lengths=) are used where the dataset has some too."""
    assert ShardListSampler(Shards([9, 9]), lengths=[2, 1]).ranges == [(0, 2), (2, 3)]


def check_chunks_come_whole(indices, ranges):
    """No chunk is left before it is finished, and none is come back to."""
    chunk = {i: k for k, (lo, hi) in enumerate(ranges) for i in range(lo, hi)}
    arrivals = indices[:1] + [b for a, b in pairwise(indices) if chunk[a] != chunk[b]]
    assert len(arrivals) == len({chunk[i] for i in indices})


def test_chunks_are_finished_one_by_one():
    """Within an epoch a rank finishes a chunk before the next, whatever order the chunks come in."""
    dataset = Shards([30, 0, 17, 50, 3, 41])
    for world in (1, 2, 3, 5):
        for sampler in ranks(dataset, world, chunksize=8, window=1, drop_last=True):
            for _ in range(3):
                check_chunks_come_whole(list(sampler), sampler.ranges)


def test_chunks_are_cut_at_shard_boundaries():
    """No chunk of a dataset with lengths spans two shards, and none is larger than chunksize."""
    dataset = Shards([30, 0, 17, 50, 3, 41])
    edges = set(np.cumsum(dataset.lengths).tolist())
    for world in (1, 2, 4):
        covered = []
        for sampler in ranks(dataset, world, chunksize=20):
            for lo, hi in sampler.ranges:
                assert 0 < hi - lo <= 20
                assert not edges & set(range(lo + 1, hi))
                covered += range(lo, hi)
        assert covered == list(range(len(dataset)))


def test_chunks_that_are_dealt_anew_are_no_ranks_own():
    """Unless all are of one rank, or they are not shuffled, and so not dealt."""
    own = [(0, 25), (25, 50)]
    options = {"reshuffle": "epoch", "chunksize": 25}
    for rank, sampler in enumerate(ranks(Sized(50), 2, **options)):
        with pytest.raises(
            ValueError, match="no chunks are this rank's own: 2 ranks read 2 lanes, reshuffle is 'epoch'"
        ):
            _ = sampler.ranges
        unshuffled = DistributedChunkedSampler(Sized(50), num_replicas=2, rank=rank, shuffle=False, **options)
        assert unshuffled.ranges == own[rank : rank + 1]
        assert list(unshuffled) == list(range(*own[rank]))
    [alone] = ranks(Sized(50), 1, **options)
    assert alone.ranges == own


class Odd(Sized):
    """Datasets whose `lengths` mean something else."""

    def __init__(self, lengths):
        super().__init__(9)
        self.lengths = lengths


@pytest.mark.parametrize("lengths", [[3, 3], [10, -1], [4.5, 4.5], [], len, "333", [[4, 5]], None])
def test_lengths_of_another_meaning_are_left_alone(lengths):
    """Lengths that are not counts, or do not add up to the dataset, do not cut it."""
    sampler = DistributedChunkedSampler(Odd(lengths), num_replicas=1, rank=0, chunksize=4)
    assert sampler.ranges == [(0, 4), (4, 8), (8, 9)]
    assert sorted(sampler) == list(range(9))


# --- orders


def makers():
    """Each sampler class, as a function of a seed."""
    data = Shards([100, 60, 90])
    return [
        lambda seed=0: ChunkedSampler(data, chunksize=10, seed=seed),
        lambda seed=0: DistributedChunkedSampler(data, num_replicas=2, rank=1, chunksize=10, seed=seed),
        lambda seed=0: ShardListSampler(data, lengths=[10] * 25, seed=seed),
    ]


every_sampler = pytest.mark.parametrize("make", makers(), ids=["chunked", "distributed", "shards"])


def orders(sampler, count):
    """The orders of the next `count` epochs."""
    return [list(sampler) for _ in range(count)]


@every_sampler
def test_no_epoch_is_like_another(make):
    """Ten epochs have ten orders, and ten orders of their chunks, the first epoch among them."""
    sampler = make()
    found = orders(sampler, 10)
    assert len({tuple(order) for order in found}) == 10
    shapes = {tuple(i // 10 for i in order) for order in found}
    assert len(shapes) == 10
    assert not any(list(shape) == sorted(shape) for shape in shapes)


@every_sampler
def test_an_order_is_a_function_of_seed_and_epoch(make):
    """Two samplers agree in every epoch, however each came to it; other seeds differ."""
    found = orders(make(), 4)
    assert orders(make(), 4) == found
    late = make()
    late.set_epoch(3)
    assert list(late) == found[3]
    late.set_epoch(1)
    assert list(late) == found[1]
    assert len({tuple(make(seed)) for seed in range(20)}) == 20
    # A seed is no epoch: (seed, epoch + 1) and (seed + 1, epoch) are different orders.
    assert list(make(1)) not in found


@every_sampler
def test_numpy_integers_are_integers(make):
    """Seeds and epochs of numpy's types give the order that plain ints give."""
    sampler = make(np.int32(7))
    sampler.set_epoch(np.uint64(2))
    plain = make(7)
    plain.set_epoch(2)
    assert list(sampler) == list(plain)
    assert type(sampler.epoch) is int
    sampler.seed = np.int64(7)
    plain.epoch = 0
    sampler.epoch = np.int64(0)
    assert list(sampler) == list(plain)


def test_numpy_integers_as_arguments():
    """All integer arguments may be numpy's, and a flag too."""
    sampler = DistributedChunkedSampler(
        Sized(20),
        num_replicas=np.int64(3),
        rank=np.int64(1),
        num_samples=(np.int32(2), np.int32(20)),
        chunksize=np.int16(4),
        drop_last=np.bool_(True),
        shuffle=np.bool_(True),
    )
    plain = DistributedChunkedSampler(
        Sized(20), num_replicas=3, rank=1, num_samples=(2, 20), chunksize=4, drop_last=True
    )
    assert list(sampler) == list(plain)
    assert [type(x) for x in (sampler.rank, sampler.num_replicas, sampler.num_samples, sampler.total_size)] == [int] * 4
    assert len(ChunkedSampler(Sized(20), dslength_per_replica=np.int64(30))) == 30


def test_unshuffled_epochs_are_in_order():
    """shuffle=False yields the lane as it lies, in every epoch."""
    for sampler in ranks(Sized(20), 2, shuffle=False, chunksize=3):
        lo = 10 * sampler.rank
        assert orders(sampler, 2) == [list(range(lo, lo + 10))] * 2


def test_shufflefirst_is_accepted():
    """The original's shufflefirst changes nothing: the first epoch is shuffled either way."""
    for make in (
        lambda first: ChunkedSampler(Sized(50), chunksize=5, shufflefirst=first),
        lambda first: DistributedChunkedSampler(Sized(50), num_replicas=1, chunksize=5, shufflefirst=first),
        lambda first: ShardListSampler(None, lengths=[5] * 10, shufflefirst=first),
    ):
        assert make(True).shufflefirst is True
        assert orders(make(True), 2) == orders(make(False), 2)


def pinned(line):
    """The sampler of a line of `orders.txt`."""
    kind, *options = line.split()
    facts = dict(option.split("=") for option in options)
    facts = {name: int(text) if text.lstrip("-").isdigit() else text for name, text in facts.items()}
    data, epoch = Shards([5, 0, 9, 9]), facts.pop("epoch")
    make = {"distributed": DistributedChunkedSampler, "chunked": ChunkedSampler, "shards": ShardListSampler}[kind]
    sampler = make(data, **facts) if kind == "shards" else make(data, chunksize=4, **facts)
    sampler.set_epoch(epoch)
    return sampler


def test_orders_are_pinned():
    """The orders of `orders.txt` never change: a run that resumes goes on with the order it began with."""
    lines = golden_lines("orders.txt")
    assert len(lines) == 22
    for line in lines:
        what, indices = line.split(":")
        assert list(pinned(what)) == [int(i) for i in indices.split()], what


# --- epochs


@every_sampler
def test_set_epoch_decides_the_next_iteration(make):
    """After set_epoch the next iteration is that epoch, the ones after it follow on, and going back is possible."""
    found = orders(make(), 6)
    sampler = make()
    assert sampler.epoch == 0
    sampler.set_epoch(4)
    assert sampler.epoch == 4
    assert orders(sampler, 2) == found[4:6]
    assert sampler.epoch == 5
    sampler.set_epoch(5)
    assert list(sampler) == found[5]
    sampler.set_epoch(0)
    sampler.set_epoch(2)
    assert orders(sampler, 2) == found[2:4]


@every_sampler
def test_assigning_the_epoch_is_set_epoch(make):
    """`sampler.epoch = e` means the same as set_epoch(e), also where e is the epoch that has just ended."""
    found = orders(make(), 3)
    sampler = make()
    for epoch in (0, 0, 2, 1, 1):
        sampler.epoch = epoch
        assert list(sampler) == found[epoch]


@every_sampler
def test_set_epoch_leaves_a_running_iteration_alone(make):
    """An iteration that has begun goes on as it was while epoch, seed and ranges change."""
    found = orders(make(), 6)
    sampler = make()
    running = iter(sampler)
    head = list(islice(running, 17))
    sampler.set_epoch(5)
    assert head + list(islice(running, 20)) == found[0][:37]
    sampler.seed = 99
    ranges = sampler.ranges
    sampler.ranges = ranges[:1]
    assert list(running) == found[0][37:]
    sampler.seed = 0
    sampler.ranges = ranges
    assert list(sampler) == found[5]


@every_sampler
def test_set_epoch_between_iter_and_next(make):
    """An iterator takes its epoch with its first index, so set_epoch still reaches one that is made but not begun."""
    found = orders(make(), 4)
    sampler = make()
    waiting = iter(sampler)
    sampler.set_epoch(3)
    assert list(waiting) == found[3]


@every_sampler
def test_two_iterators_at_once(make):
    """Iterators that are alive together are two epochs, each whole."""
    found = orders(make(), 3)
    sampler = make()
    pairs = list(zip(sampler, sampler, strict=True))
    assert [a for a, _ in pairs] == found[0]
    assert [b for _, b in pairs] == found[1]
    assert list(sampler) == found[2]


@every_sampler
def test_an_abandoned_iterator_has_used_its_epoch(make):
    """An iteration that was begun counts as an epoch, one that was only made does not."""
    found = orders(make(), 3)
    sampler = make()
    iter(sampler)
    iter(sampler)
    assert next(iter(sampler)) == found[0][0]
    assert list(sampler) == found[1]
    begun = iter(sampler)
    next(begun)
    del begun
    assert sampler.epoch == 2


@every_sampler
def test_pickled_samplers_go_on(make):
    """A copy through pickle goes on where the original stands: the chosen epoch, or the one after the last."""
    found = orders(make(), 4)
    sampler = make()
    assert list(pickle.loads(pickle.dumps(sampler))) == found[0]
    list(sampler)
    assert orders(pickle.loads(pickle.dumps(sampler)), 2) == found[1:3]
    sampler.set_epoch(3)
    sampler.rng.random()
    copy = pickle.loads(pickle.dumps(sampler))
    assert copy.rng.random() == sampler.rng.random()
    assert list(copy) == list(sampler) == found[3]
    assert len(copy) == len(sampler)


# --- lengths


def test_dslength_per_replica():
    """So many indices come out: the epoch's first ones again where the range holds fewer, fewer where it holds more."""
    whole = orders(ChunkedSampler(Sized(10), chunksize=3), 2)
    for length in (1, 9, 10, 11, 25):
        sampler = ChunkedSampler(Sized(10), chunksize=3, dslength_per_replica=length)
        assert len(sampler) == sampler.dslength_per_replica == length
        assert orders(sampler, 2) == [(order * 3)[:length] for order in whole]
    for length in (-1, 0, -7):
        assert len(ChunkedSampler(Sized(10), dslength_per_replica=length)) == 10


def test_dslength_per_replica_of_nothing():
    """A range without samples cannot be repeated: an error at once, for a rank that yields nothing hangs the others."""
    with pytest.raises(ValueError, match=r"^dslength_per_replica is 3, and the range 4 \.\. 4 has no samples$"):
        ChunkedSampler(Sized(10), num_samples=(4, 4), dslength_per_replica=3)
    sampler = ChunkedSampler(Sized(10), num_samples=(4, 4))
    assert (len(sampler), list(sampler)) == (0, [])
    sampler.dslength_per_replica = 2
    with pytest.raises(ValueError, match=r"samples are asked for out of ranges that hold none"):
        list(sampler)


def test_dslength_per_replica_may_be_assigned():
    """The length is an attribute, as it was: assigning it is believed."""
    sampler = ChunkedSampler(Sized(10), chunksize=3)
    sampler.dslength_per_replica = 4
    assert len(sampler) == len(list(sampler)) == 4
    sampler = DistributedChunkedSampler(Sized(10), num_replicas=2, rank=0)
    sampler.dslength_per_replica = 7
    assert len(list(sampler)) == len(sampler) == sampler.num_samples == 7


def test_empty_datasets():
    """No samples are an empty epoch on every rank, in every class."""
    for sampler in [ChunkedSampler([]), ShardListSampler(Shards([])), *ranks([], 3), *ranks(Shards([]), 2)]:
        assert orders(sampler, 2) == [[], []]
        assert len(sampler) == 0
        assert sampler.ranges == []


def test_fewer_samples_than_ranks():
    """5 samples on 8 ranks: one index each with pad, all seen; none with drop. The original left ranks without any."""
    padded = [list(sampler) for sampler in ranks(Sized(5), 8)]
    assert [len(indices) for indices in padded] == [1] * 8
    assert {i for indices in padded for i in indices} == set(range(5))
    assert [list(sampler) for sampler in ranks(Sized(5), 8, drop_last=True)] == [[]] * 8


def test_a_large_dataset_costs_one_lane():
    """A billion samples in 100,000 shards, rank 7 of 64: an epoch begins within the memory of the lane's chunks."""
    dataset = Shards([10_000] * 100_000)
    for options in ({}, {"chunksize": 100}, {"chunksize": 1_000_000_000}):
        tracemalloc.start()
        try:
            sampler = DistributedChunkedSampler(dataset, num_replicas=64, rank=7, **options)
            first = next(iter(sampler))
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        lo, hi = lane_bounds(0, len(dataset), rank=7, world=64)
        assert lo <= first < hi
        assert len(sampler) == hi - lo
        assert peak_bytes < 50e6


# --- rank and world


def rank_and_world(**options):
    """What a sampler without a dataset to speak of takes as (rank, world)."""
    sampler = DistributedChunkedSampler(Sized(64), **options)
    return sampler.rank, sampler.num_replicas


def test_alone_is_rank_0_of_1():
    """Without arguments, process group or launcher there is one replica; no warning is given."""
    assert rank_and_world() == (0, 1)


def test_explicit_rank_and_world_need_no_group():
    """Explicit rank and num_replicas are honoured without a process group, rank 0 like any other."""
    for rank in range(4):
        assert rank_and_world(num_replicas=4, rank=rank) == (rank, 4)


def test_the_launcher_tells_rank_and_world(monkeypatch):
    """$RANK and $WORLD_SIZE are used before a process group exists."""
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert rank_and_world() == (2, 3)


def test_the_group_wins_over_the_launcher(monkeypatch, group):
    """An initialised process group wins over the environment, even over one that makes no sense."""
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "three")
    group(1, 4)
    assert rank_and_world() == (1, 4)


@pytest.mark.parametrize("has_group", [True, False])
def test_arguments_win_over_everything(monkeypatch, group, has_group):
    """Each explicit argument wins by itself; what is not given comes from the group, else the launcher."""
    if has_group:
        group(3, 4)
    monkeypatch.setenv("RANK", "2" if has_group else "3")
    monkeypatch.setenv("WORLD_SIZE", "8" if has_group else "4")
    assert rank_and_world() == (3, 4)
    assert rank_and_world(rank=0) == (0, 4)
    assert rank_and_world(num_replicas=7) == (3, 7)
    assert rank_and_world(num_replicas=2, rank=0) == (0, 2)
    assert rank_and_world(num_replicas=2, rank=1) == (1, 2)
    # One replica has one rank: every process may read all, for an evaluation say.
    assert rank_and_world(num_replicas=1) == (0, 1)


def test_arguments_win_over_a_bad_environment(monkeypatch):
    """Explicit arguments never look at the environment."""
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "all")
    assert rank_and_world(num_replicas=4, rank=0) == (0, 4)
    with pytest.raises(ValueError, match=r"^\$RANK is 'first'; it must be an integer$"):
        rank_and_world(num_replicas=4)
    with pytest.raises(ValueError, match=r"^\$WORLD_SIZE is 'all'; it must be an integer$"):
        rank_and_world(rank=0)


def test_an_empty_variable_is_none(monkeypatch):
    """Variables that are set to nothing say nothing."""
    monkeypatch.setenv("RANK", "")
    monkeypatch.setenv("WORLD_SIZE", " ")
    assert rank_and_world() == (0, 1)


def test_half_an_environment(monkeypatch):
    """$WORLD_SIZE completes an explicit rank; a stray $RANK is not the rank of one replica."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert rank_and_world(rank=2) == (2, 4)
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setenv("RANK", "2")
    assert rank_and_world() == (0, 1)


def test_an_unknown_rank_is_an_error(monkeypatch):
    """Several replicas and nothing that says which this is: an error, not lane 0 for everybody."""
    with pytest.raises(ValueError, match=r"^rank is not given: num_replicas is 4, without a process group or"):
        rank_and_world(num_replicas=4)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match=r"^rank is not given: num_replicas is 4"):
        rank_and_world()


@pytest.mark.parametrize(("rank", "world"), [(4, 4), (-1, 4), (1, None), (9, 1), (0, 0), (None, 0), (0, -2)])
def test_a_rank_outside_the_world(rank, world):
    """A rank that is not below num_replicas, and a world of no ranks, are refused, in torch's first words."""
    world_found = 1 if world is None else world
    with pytest.raises(ValueError, match=f"^Invalid rank {rank or 0} where num_replicas is {world_found}"):
        rank_and_world(num_replicas=world, rank=rank)


def test_a_group_that_comes_after_the_sampler(group):
    """Where no ranks were given, a group of another size or rank is an error, for all that depends on them."""
    mixture = wids.mix({name: TensorDataset(torch.arange(10)) for name in "ab"})
    makes = [
        lambda **ranks: DistributedChunkedSampler(Sized(10), **ranks),
        lambda **ranks: DistributedChunkedSampler(mixture, **ranks),
        lambda **ranks: wids.MixtureBatchSampler(mixture, 2, **ranks),
    ]
    found = [make() for make in makes]
    given_ranks = [make(num_replicas=1, rank=0) for make in makes]
    running = iter(makes[0]())
    first = next(running)
    assigned, chunked, own = DistributedChunkedSampler(Sized(10)), ChunkedSampler(Sized(10)), makes[0]()
    own.ranges = [(2, 5)]
    counts = list(map(len, found))
    states = [sampler.state_dict() for sampler in found]
    group(0, 1)
    assert list(map(len, found)) == counts
    group(1, 2)
    asks = [len, lambda sampler: next(iter(sampler)), lambda sampler: sampler.state_dict()]
    for sampler, state in zip(found, states, strict=True):
        for ask in (*asks, lambda sampler, state=state: sampler.load_state_dict(state)):
            for each in (sampler, pickle.loads(pickle.dumps(sampler))):
                with pytest.raises(InputError, match=r"1 rank\(s\).*has 2.*after init_process_group.*num_replicas="):
                    ask(each)
    assert [first, *running] == list(given_ranks[0])
    assert [len(sampler) for sampler in (*given_ranks, chunked, own)] == [*counts, 10, 3]
    assigned.num_replicas, assigned.rank = 2, 1
    assert len(list(assigned)) == len(makes[0]()) == 5
    two = makes[0]()
    group(0, 2)
    with pytest.raises(InputError, match="this is rank 1, and"):
        len(two)
    with_rank = makes[0](rank=1)
    group(1, 2)
    assert len(with_rank) == 5


def test_a_real_group(tmp_path):
    """A real process group of one, over a file, is found and left alone."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert rank_and_world() == (0, 1)
        assert rank_and_world(num_replicas=4, rank=2) == (2, 4)
    finally:
        torch.distributed.destroy_process_group()
    assert rank_and_world() == (0, 1)


# --- bad arguments


@pytest.mark.parametrize("make", [ChunkedSampler, DistributedChunkedSampler])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("chunksize", 0),
        ("chunksize", -3),
        ("chunksize", 2.5),
        ("chunksize", None),
        ("num_samples", 11),
        ("num_samples", -1),
        ("num_samples", (3, 11)),
        ("num_samples", (5, 3)),
        ("num_samples", "all"),
        ("num_samples", (1, 2, 3)),
        ("seed", None),
        ("seed", 0.5),
    ],
)
def test_bad_arguments_are_named(make, name, value):
    """A value out of range, or of no integer type, is a ValueError that begins with the argument's name."""
    with pytest.raises(ValueError, match=f"^{name} is "):
        make(Sized(10), **{name: value})


def test_texts_are_no_datasets_and_no_flags():
    """A path has a length, and a text that says no is true: both are named."""
    with pytest.raises(TypeError, match=r"the dataset is 'train\.json'"):
        DistributedChunkedSampler("train.json")
    for option in ("shuffle", "drop_last"):
        with pytest.raises(ValueError, match=f"{option} is 'no'; it must be True or False"):
            DistributedChunkedSampler(Sized(10), **{option: "no"})
    data = TensorDataset(torch.arange(3))
    for source in ("train.json", (data, 1, 2), {"a": 1}):
        with pytest.raises(TypeError, match=f"source 'a' is a {type(source).__name__}; it must be a dataset"):
            wids.mix({"a": source})
    with pytest.raises(InputError, match="up to 12, and the dataset has 10"):
        len(ShardListSampler(Sized(10), lengths=[5, 7]))


@pytest.mark.parametrize(("name", "value"), [("num_replicas", 2.0), ("rank", 0.0), ("rank", "0")])
def test_bad_worlds_are_named(name, value):
    """num_replicas and rank are checked in the same way."""
    with pytest.raises(ValueError, match=f"^{name} is "):
        DistributedChunkedSampler(Sized(10), **{name: value})


def test_bad_dslength_is_named():
    """dslength_per_replica is an integer."""
    with pytest.raises(ValueError, match=r"^dslength_per_replica is 1.5"):
        ChunkedSampler(Sized(10), dslength_per_replica=1.5)


@pytest.mark.parametrize("lengths", [[3, -1], [1.5], "ab", 7])
def test_bad_lengths_are_named(lengths):
    """ShardListSampler refuses lengths that are no counts."""
    with pytest.raises(ValueError, match=r"^lengths is .* it must be the number of samples in each shard"):
        ShardListSampler(None, lengths=lengths)


def test_missing_lengths_are_named():
    """ShardListSampler says what a dataset without shards lacks."""
    with pytest.raises(ValueError, match=r"^lengths is None; "):
        ShardListSampler([1, 2, 3])


@every_sampler
def test_bad_epochs_are_named(make):
    """An epoch is an integer, however it is set; the sampler stays as it was."""
    sampler = make()
    sampler.set_epoch(3)
    with pytest.raises(ValueError, match=r"^epoch is 1.5"):
        sampler.set_epoch(1.5)
    with pytest.raises(ValueError, match=r"^epoch is None"):
        sampler.epoch = None
    assert sampler.epoch == 3


# --- subclasses, as programs write them


@every_sampler
def test_ranges_may_be_assigned(make):
    """Assigned ranges are what is yielded, each index once, and the length is theirs."""
    sampler = make()
    sampler.ranges = [(90, 95), (3, 3), (7, 10)]
    assert sampler.ranges == [(90, 95), (3, 3), (7, 10)]
    assert len(sampler) == 8
    for order in orders(sampler, 3):
        assert sorted(order) == [7, 8, 9, 90, 91, 92, 93, 94]
    sampler.ranges = []
    assert (len(sampler), list(sampler)) == (0, [])
    with pytest.raises(ValueError, match=r"^ranges holds "):
        sampler.ranges = [(5, 3)]


@pytest.mark.parametrize(
    ("name", "value"),
    [("window", 0), ("chunksize", 2.5), ("seed", "7"), ("tail", "cut"), ("reshuffle", True), ("num_replicas", 0)],
)
def test_settings_are_checked_when_they_are_assigned(name, value):
    """A bad value is refused where it is assigned, and the sampler stays as it was."""
    sampler = alone(Sized(30))
    before = getattr(sampler, name), list(sampler)
    with pytest.raises(ValueError, match=f"^{name} is "):
        setattr(sampler, name, value)
    sampler.set_epoch(0)
    assert (getattr(sampler, name), list(sampler)) == before


def test_ranges_are_a_list_of_the_callers():
    """The list that `ranges` gives is a new one: changing it changes no epoch."""
    sampler = ChunkedSampler(Sized(10), chunksize=5)
    sampler.ranges.clear()
    assert sampler.ranges == [(0, 5), (5, 10)]


def test_assigned_ranges_keep_num_samples_true():
    """num_samples and total_size follow ranges that a subclass assigns."""

    class Every(DistributedChunkedSampler):
        def __init__(self, dataset, **options):
            super().__init__(dataset, **options)
            self.ranges = [(lo, lo + 1) for lo in range(self.rank, len(dataset), self.num_replicas)]

    samplers = [Every(Sized(12), num_replicas=3, rank=rank) for rank in range(3)]
    for sampler in samplers:
        assert sorted(sampler) == list(range(sampler.rank, 12, 3))
        assert (len(sampler), sampler.num_samples, sampler.total_size) == (4, 4, 12)


SETTABLE = [
    *("chunksize", "seed", "shuffle", "shufflefirst", "window", "lanes", "tail", "reshuffle", "sample_seeds"),
    *("rank", "num_replicas", "epoch", "ranges", "dslength_per_replica", "rng", "drop_last", "dataset"),
    *("num_samples", "total_size", "num_valid"),
]
# Attributes that are a program's own where the constructor sets none.
OWN = {
    "chunked": {"rank", "num_replicas", "rng", "drop_last", "num_samples", "total_size", "num_valid"},
    "distributed": {"rng", "num_samples", "total_size", "num_valid"},
    "shards": {"rank", "num_replicas", "rng", "drop_last", "num_samples", "total_size", "num_valid"},
}
KINDS = {
    "chunked": (ChunkedSampler, {"chunksize": 5, "seed": 7}),
    "distributed": (DistributedChunkedSampler, {"chunksize": 5, "num_replicas": 2, "rank": 1, "seed": 7}),
    "shards": (ShardListSampler, {"lengths": [15, 15], "seed": 7}),
}


@pytest.mark.parametrize("name", SETTABLE)
@pytest.mark.parametrize("kind", KINDS)
def test_attributes_that_a_subclass_assigns_before_super(kind, name):
    """They are held until the constructor has run, as torch's samplers have it; the order is as without them."""
    base, options = KINDS[kind]
    value = object()

    class Early(base):
        def __init__(self, *args, **kwargs):
            setattr(self, name, value)
            self.seen = getattr(self, name)
            super().__init__(*args, **kwargs)

    early, plain = Early(Sized(30), **options), base(Sized(30), **options)
    assert early.seen is value
    assert (getattr(early, name) is value) == (name in OWN[kind])
    if name not in OWN[kind]:
        assert getattr(early, name) == getattr(plain, name) or name == "dataset"
    assert (len(early), orders(early, 2)) == (len(plain), orders(plain, 2))
    assert early.state_dict() == plain.state_dict()
    assert list(pickle.loads(pickle.dumps(plain))) == list(plain)


def test_settings_that_a_subclass_has_in_its_class():
    """They are defaults for its own constructor, which hides them; to assign them holds, as where there are none."""

    class Own(DistributedChunkedSampler):
        shuffle, seed, chunksize = True, 3, 5

        def __init__(self, dataset):
            super().__init__(dataset, num_replicas=1, rank=0, seed=self.seed, chunksize=self.chunksize)

    plain = DistributedChunkedSampler(Sized(30), num_replicas=1, rank=0, seed=3, chunksize=5)
    for sampler in (Own(Sized(30)), Own(Sized(30))):
        assert (Own.chunksize, sampler.chunksize, list(sampler)) == (5, 5, list(copy.deepcopy(plain)))
        sampler.shuffle = False
        assert (sampler.shuffle, list(sampler)) == (False, list(range(30)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["num_samples", "total_size", "num_valid"])
def test_counts_that_a_subclass_assigns(kind, name):
    """They are the subclass's own; nothing here reads them."""
    base, options = KINDS[kind]
    sampler, plain = base(Sized(30), **options), base(Sized(30), **options)
    setattr(sampler, name, "mine")
    assert (getattr(sampler, name), len(sampler), list(sampler)) == ("mine", len(plain), list(plain))
    other = base(Sized(30), **options)
    other.load_state_dict(sampler.state_dict())
    assert list(other) == list(plain)


@pytest.mark.parametrize("base", [ChunkedSampler, ShardListSampler])
def test_ranks_of_a_sampler_without_ranks_are_a_program_s_own(base):
    """A subclass that divides the range itself may keep its rank: the rest is not divided again."""

    class Divided(base):
        def __init__(self, lengths, *, rank, world):
            options = {"lengths": lengths} if base is ShardListSampler else {"num_samples": (20 * rank, 20 * rank + 20)}
            super().__init__(Sized(60), **options)
            self.rank, self.num_replicas = rank, world

    sampler = Divided([10, 10], rank=2, world=3)
    first = 0 if base is ShardListSampler else 40
    assert (sampler.rank, sampler.num_replicas, sorted(sampler)) == (2, 3, list(range(first, first + 20)))


class Never(ChunkedSampler):
    """An ``__init__`` of its own that calls nobody's."""

    def __init__(self, **attributes):
        for name, value in attributes.items():
            setattr(self, name, value)


USES = {
    "len": len,
    "iter": lambda sampler: next(iter(sampler)),
    "state_dict": lambda sampler: sampler.state_dict(),
    "load_state_dict": lambda sampler: sampler.load_state_dict(alone(Sized(3)).state_dict()),
    "reweight": lambda sampler: sampler.reweight({"a": 1}),
    "num_valid": lambda sampler: sampler.num_valid,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_sampler_that_was_never_initialized(use):
    """It is told so at its first use, whatever was assigned to it, by name, with what to do."""
    for attributes in ({}, {"ranges": [(0, 3)], "epoch": 1, "chunksize": 2, "dataset": Sized(3)}):
        with pytest.raises((RuntimeError, AttributeError), match=r"Never.*__init__ has to call super"):
            use(Never(**attributes))


def test_a_sampler_that_needs_nothing_of_its_base():
    """As with torch's: one with a loop and a length of its own keeps its attributes, and set_epoch sets the epoch."""

    class Alone(Never):
        def __iter__(self):
            return iter(range(self.epoch, self.chunksize))

        def __len__(self):
            return self.chunksize

    sampler = Alone(chunksize=4)
    sampler.set_epoch(2)
    assert (list(sampler), len(sampler), sampler.num_replicas) == ([2, 3], 4, 1)


# --- ChunkedSampler: the options of one rank


@pytest.mark.parametrize(
    "options",
    [
        {"weights": np.arange(50) % 7},
        {"weights": np.arange(50) % 7, "epoch_size": 80, "num_samples": (3, 40)},
        {"epochs": 3},
        {"epochs": None},
        {"epoch_size": 33},
        {"lanes": 4},
        {"lanes": 4, "reshuffle": "epoch"},
        {"lanes": 3, "tail": "drop"},
        {"tail": "mask", "sample_seeds": True, "epochs": 2},
        {"sample_seeds": True, "weights": np.arange(50) % 3},
    ],
)
def test_chunked_samplers_have_the_options_of_one_rank(options):
    """Order, length, marks, seeds and states are those of DistributedChunkedSampler with one rank."""
    marked = Sized(50)
    marked.takes_marked_indices = True
    options = {"chunksize": 6, "seed": 3, **options}
    plain = ChunkedSampler(marked, **options)
    ranked = DistributedChunkedSampler(marked, num_replicas=1, rank=0, **options)
    seen = [[list(islice(sampler, 120)) for _ in range(2)] for sampler in (plain, ranked)]
    assert seen[0] == seen[1]
    marks = [[getattr(i, "__dict__", repr(i)) for i in found[0]] for found in seen]
    assert marks[0] == marks[1]
    if options.get("epochs", 1) is not None:
        assert len(plain) == len(ranked)
    half = ChunkedSampler(marked, **options)
    first = list(islice(iter(half), 20))
    again = ChunkedSampler(marked, **options)
    again.load_state_dict(half.state_dict())
    assert first + list(islice(again, 100)) == seen[0][0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": 2, "epoch_size": 3}, "only one of them can set the end"),
        ({"dslength_per_replica": 5, "epochs": 2}, "one of them can set the end"),
        ({"dslength_per_replica": 5, "epoch_size": 7}, "one of them can set the end"),
        ({"weights": [1, 2]}, "weights"),
        ({"tail": "cut"}, "tail is 'cut'"),
        ({"tail": "mask"}, "puts __valid__"),
        ({"sample_seeds": True}, "puts __seed__"),
    ],
)
def test_chunked_samplers_check_the_options_of_one_rank(options, words):
    """As DistributedChunkedSampler does."""
    with pytest.raises((ValueError, InputError), match=words):
        ChunkedSampler(Sized(50), **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: ChunkedSampler(Sized(n)),
        lambda n: ChunkedSampler(Sized(n), shuffle=False, lanes=2),
        lambda n: DistributedChunkedSampler(Shards([n]), num_replicas=2, rank=1),
        lambda n: DistributedChunkedSampler(Shards([n]), num_replicas=2, rank=1, reshuffle="epoch"),
        lambda n: DistributedChunkedSampler(wids.mix({"a": (Many(n), 1), "b": ([1], 1)}), num_replicas=1, rank=0),
        lambda n: wids.BucketBatchSampler(ChunkedSampler(Many(n)), batch_size=4),
        lambda n: ShardListSampler(Shards([5, n])),
        lambda n: ChunkedSampler(Sized(n), chunksize=n, window=1),
        lambda n: DistributedChunkedSampler(Shards([n]), num_replicas=2, rank=1, chunksize=n),
        lambda n: ChunkedSampler(Sized(n), chunksize=n, shuffle=False, lanes=2),
    ],
    ids=["chunked", "in order", "ranks", "dealt", "mixture", "batches", "shards", "one", "one a rank", "one in order"],
)
def test_a_dataset_that_promises_any_number_of_samples(make):
    """A typed error instead of minutes and all memory; as many as there are in any real one are read at once."""
    with pytest.raises(InputError, match=r"(raise|lower) chunksize, or see whether|see whether the lengths"):
        next(iter(make(1 << 48)))
    assert next(iter(make(1 << 20))) is not None


class Many(Sized):
    """A dataset of its indices."""

    def __getitem__(self, index):
        return index


class Original(ChunkedSampler):
    """The original's own __iter__, which assigns rng and counts epochs by itself."""

    def __iter__(self):
        self.rng = random.Random(self.seed + 1289738273 * self.epoch)
        yield from iterate_ranges(self.ranges, self.rng, indexshuffle=self.shuffle, shardshuffle=self.shuffle)
        self.epoch += 1


def test_a_subclass_with_the_original_loop():
    """A subclass that carries the original's __iter__ works: it assigns rng and advances epoch."""
    sampler = Original(Sized(40), chunksize=7, seed=2)
    found = orders(sampler, 3)
    assert sampler.epoch == 3
    assert all(sorted(order) == list(range(40)) for order in found)
    assert len({tuple(order) for order in found}) == 3
    sampler.set_epoch(1)
    assert list(sampler) == found[1]


class Shuffler(DistributedChunkedSampler):
    """Shuffles by itself, with the generator that it finds."""

    def __iter__(self):
        return iterate_ranges(self.ranges, self.rng)


def test_a_subclass_that_uses_rng():
    """`rng` shuffles anew in each iteration, and set_epoch makes it begin again as for that epoch."""
    sampler = Shuffler(Sized(60), num_replicas=2, rank=1, chunksize=7)
    found = orders(sampler, 3)
    assert all(sorted(order) == list(range(30, 60)) for order in found)
    assert len({tuple(order) for order in found}) == 3
    sampler.set_epoch(0)
    assert orders(sampler, 3) == found
    sampler.set_epoch(1)
    assert list(sampler) not in found


@every_sampler
def test_rng_is_one_generator_an_epoch(make):
    """Within an epoch `rng` is one generator with its state; another epoch or seed has another, iterations included."""
    sampler = make()
    rng = sampler.rng
    first = [rng.random(), sampler.rng.random()]
    assert first[0] != first[1]
    assert sampler.rng is rng
    again = make()
    assert [again.rng.random(), again.rng.random()] == first
    list(sampler)
    assert sampler.rng is rng
    list(sampler)
    assert sampler.rng is not rng
    sampler.set_epoch(0)
    assert sampler.rng.random() == first[0]
    assert make(1).rng.random() != first[0]


@every_sampler
def test_an_assigned_rng_stays(make):
    """A generator that a caller assigned is not replaced by an epoch's own."""
    sampler = make()
    mine = sampler.rng = random.Random(5)
    sampler.set_epoch(3)
    list(sampler)
    list(sampler)
    assert sampler.rng is mine


def test_a_subclass_that_counts_epochs_after_super():
    """A subclass that says `self.epoch += 1` after super().__iter__() skips no epoch."""

    class Counting(ChunkedSampler):
        def __iter__(self):
            yield from super().__iter__()
            self.epoch += 1

    plain = ChunkedSampler(Sized(50), chunksize=5)
    assert orders(Counting(Sized(50), chunksize=5), 3) == orders(plain, 3)


def test_global_random_state_is_left_alone():
    """Neither random, numpy nor torch is seeded or drawn from by an epoch."""
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - the global state is what this is about
    torch.manual_seed(1)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    for make in makers():
        sampler = make()
        list(sampler)
        sampler.rng.random()
    assert states == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # noqa: NPY002


# --- what torch makes of them


def test_the_types_that_frameworks_ask_for():
    """A DistributedChunkedSampler is a ChunkedSampler and a DistributedSampler, which Lightning leaves alone."""
    data = Shards([4, 6])
    sampler = DistributedChunkedSampler(data, num_replicas=2, rank=1, seed=3, drop_last=True)
    assert isinstance(sampler, ChunkedSampler)
    assert isinstance(sampler, DistributedSampler)
    assert isinstance(sampler, Sampler)
    assert isinstance(ShardListSampler(data), Sampler)
    assert ShardedSampler is ShardListSampler
    found = {name: getattr(sampler, name) for name in ("dataset", "num_replicas", "rank", "epoch", "drop_last")}
    assert found == {"dataset": data, "num_replicas": 2, "rank": 1, "epoch": 0, "drop_last": True}
    assert (sampler.num_samples, sampler.total_size, sampler.shuffle, sampler.seed) == (5, 10, True, 3)


def test_it_has_all_that_a_distributed_sampler_has():
    """Every attribute that torch's own DistributedSampler sets is there."""
    theirs = DistributedSampler(range(10), num_replicas=2, rank=0)
    ours = DistributedChunkedSampler(range(10), num_replicas=2, rank=0)
    assert [name for name in vars(theirs) if not hasattr(ours, name)] == []
    assert {name: getattr(ours, name) for name in vars(theirs)} == vars(theirs)


def test_the_calls_of_the_original():
    """The keywords of the original's constructors are all there."""
    names = {
        ChunkedSampler: "dslength_per_replica num_samples chunksize seed shuffle shufflefirst",
        DistributedChunkedSampler: "num_replicas num_samples rank shuffle shufflefirst seed drop_last chunksize",
        ShardListSampler: "lengths seed shufflefirst",
    }
    for cls, expected in names.items():
        dataset, *keywords = inspect.signature(cls).parameters.values()
        assert (dataset.name, dataset.kind) == ("dataset", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        # A superset: new keywords may come.
        assert set(expected.split()) <= {p.name for p in keywords if p.kind is inspect.Parameter.KEYWORD_ONLY}
        assert getattr(wids, cls.__name__) is cls


def test_torch_datasets_of_many_kinds():
    """Lists, ranges, TensorDataset, ConcatDataset, Subset and random_split parts have a length, which is enough."""
    tensors = TensorDataset(torch.arange(23))
    joined = ConcatDataset([tensors, Subset(tensors, range(8))])
    for dataset in (["x"] * 31, range(31), joined, Subset(joined, range(31)), TensorDataset(torch.zeros(31))):
        check_epoch(ranks(dataset, 4, chunksize=3), lo=0, hi=31, drop_last=False, epoch=0)
        assert sorted(ChunkedSampler(dataset)) == list(range(31))
        assert all(dataset[i] is not None for i in ranks(dataset, 4)[3])


LOADERS = [
    {"num_workers": 0},
    {"num_workers": 2},
    pytest.param({"num_workers": 2, "persistent_workers": True}, marks=pytest.mark.thorough),
]
loaders = pytest.mark.parametrize("workers", LOADERS, ids=["none", "two", "persistent"])


def flat(loader):
    """What an epoch of a loader yields, batches opened."""
    return [int(i) for batch in loader for i in (batch if batch.ndim else [batch])]


def close(loader):
    """Stop the workers that persist."""
    if loader._iterator is not None:
        loader._iterator._shutdown_workers()


@loaders
@pytest.mark.parametrize("batching", ["batch_size", "batch_sampler", "batch_size=None"])
def test_in_a_dataloader(workers, batching):
    """A DataLoader gets epoch after epoch in order, and the one set_epoch chose, with any workers and batching."""
    dataset = list(range(53))
    found = orders(DistributedChunkedSampler(dataset, num_replicas=2, rank=1, chunksize=5), 8)
    sampler = DistributedChunkedSampler(dataset, num_replicas=2, rank=1, chunksize=5)
    options = {
        "batch_size": {"sampler": sampler, "batch_size": 4},
        "batch_sampler": {"batch_sampler": BatchSampler(sampler, batch_size=4, drop_last=False)},
        "batch_size=None": {"sampler": sampler, "batch_size": None, "collate_fn": torch.tensor},
    }[batching]
    loader = DataLoader(dataset, **options, **workers)
    try:
        assert len(loader) == (27 if batching == "batch_size=None" else 7)
        assert [flat(loader), flat(loader)] == found[:2]
        sampler.set_epoch(6)
        assert [flat(loader), flat(loader)] == found[6:8]
        sampler.set_epoch(0)
        assert flat(loader) == found[0]
    finally:
        if workers.get("persistent_workers"):
            close(loader)


def test_the_environment_is_read_only(monkeypatch):
    """A sampler sets no variable and changes none."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    before = dict(os.environ)
    list(DistributedChunkedSampler(Sized(10)))
    assert dict(os.environ) == before


def test_more_lanes_than_samples(caplog):
    """Lanes of one sample cannot be shuffled: a warning says so; as many lanes as ranks are no choice of the user's."""
    wids.DistributedChunkedSampler(list(range(100)), rank=0, num_replicas=2, lanes=64)
    assert "lanes is 64, and there are 100 samples" in caplog.text
    caplog.clear()
    wids.DistributedChunkedSampler(list(range(10)), rank=0, num_replicas=64)
    wids.DistributedChunkedSampler(list(range(100)), rank=0, num_replicas=2, lanes=8)
    wids.DistributedChunkedSampler(list(range(10)), rank=0, num_replicas=2, lanes=8, shuffle=False)
    assert caplog.text == ""


def test_chunks_larger_than_any_integer_of_numpy():
    """`chunksize` has no upper end: everything is one chunk."""
    sampler = wids.DistributedChunkedSampler(range(10), num_replicas=3, rank=1, chunksize=2**70, seed=2**90)
    sampler.set_epoch(-(10**30))
    assert len(list(sampler)) == len(sampler) == 4


def test_an_endless_iteration_that_is_left_and_begun_again():
    """Leaving the loop to evaluate and coming back sees every sample equally often, or there is a warning."""
    sampler = alone(Numbers(6), epochs=None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [index for _ in range(4) for index in islice(sampler, 9)]
    counts = np.bincount(found, minlength=6)
    assert counts.max() - counts.min() <= 1 or caught


def test_nominal_epochs_below_zero_are_not_empty():
    """A stream has no part before its beginning: an epoch there is refused, or holds as much as any."""
    sampler = alone(Numbers(10), epoch_size=4)
    try:
        sampler.set_epoch(-1)
        found = list(sampler)
    except ValueError:
        return
    assert len(found) == 4


def test_nominal_epochs_are_not_empty():
    """An epoch_size below the number of ranks is refused, or each epoch has an index for each rank."""
    try:
        sampler = DistributedChunkedSampler(Numbers(10), num_replicas=4, rank=0, epoch_size=1)
    except ValueError:
        return
    assert [len(list(sampler)) for _ in range(5)] == [1] * 5


class NoLength:
    """Has a length for those who look, and none for those who ask."""

    def __len__(self):
        raise TypeError("no length")


class Columns(Numbers):
    """Looks unknown attributes up in a dict, and forgets to say AttributeError."""

    def __getattr__(self, name):
        return {}[name]


def looped():
    """A dataset that names itself as its part."""
    dataset = Numbers(10)
    dataset.datasets = [dataset]
    return dataset


def looped_subset():
    """A dataset that names itself as what it is a part of."""
    dataset = Numbers(10, indices=list(range(10)))
    dataset.dataset = dataset
    return dataset


@pytest.mark.parametrize(
    "make",
    [lambda: Numbers(10, datasets=[NoLength(), NoLength()]), lambda: Columns(10), looped, looped_subset],
    ids=["parts without a length", "attributes by key", "joined with itself", "subset of itself"],
)
def test_anything_with_a_length_will_do(make):
    """Attributes of other meanings do not get in the way."""
    dataset = make()
    samplers = [DistributedChunkedSampler(dataset, num_replicas=2, rank=rank) for rank in range(2)]
    assert sorted(index for sampler in samplers for index in sampler) == list(range(10))


@pytest.mark.parametrize("options", [{"lanes": 3}, {"reshuffle": "epoch"}])
def test_ranges_that_are_assigned_back_are_the_rank_s_own(options):
    """Ranges are the rank's chunks: assigned again on all ranks they hold each sample once; or they say they cannot."""
    found = []
    for rank in range(2):
        sampler = DistributedChunkedSampler(Numbers(24), num_replicas=2, rank=rank, chunksize=4, **options)
        try:
            sampler.ranges = sampler.ranges[::-1]
        except ValueError:
            return
        found += sampler
    assert sorted(found) == list(range(24))


# --- a mesh of devices


def mesh_of(size, coordinate, ndim=1):
    """What a sampler asks of a DeviceMesh; tests/e2e/test_loaders.py has real ones."""
    return SimpleNamespace(mesh_dim_names=("dp",), ndim=ndim, size=lambda: size, get_coordinate=lambda: coordinate)


def test_a_mesh_says_rank_and_number():
    """As if both had been given; `MixtureBatchSampler` takes it, too."""
    sampler = wids.DistributedChunkedSampler(range(50), mesh=mesh_of(4, [3]))
    assert (sampler.num_replicas, sampler.rank) == (4, 3)
    assert list(sampler) == list(wids.DistributedChunkedSampler(range(50), num_replicas=4, rank=3))
    mixture = wids.mix([list(range(9)), list(range(9))])
    assert wids.MixtureBatchSampler(mixture, 2, mesh=mesh_of(2, [1])).sampler.rank == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mesh": mesh_of(4, [1, 1], 2)}, r"has 2 dimensions, \('dp',\); give the one .*device_mesh\['dp'\]"),
        ({"mesh": mesh_of(4, None)}, r"this process is not in the mesh \('dp',\)"),
        ({"mesh": mesh_of(4, [1]), "rank": 1}, "given together with num_replicas=None, rank=1"),
        ({"mesh": mesh_of(4, [1]), "num_replicas": 4}, "given together with num_replicas=4"),
        ({"mesh": "dp"}, "mesh is 'dp'; it must be a DeviceMesh of one dimension"),
    ],
)
def test_a_mesh_that_says_no_rank(options, words):
    """It is a typed error, and a ValueError."""
    with pytest.raises(wids.errors.InputError, match=words):
        wids.DistributedChunkedSampler(range(50), **options)


def test_another_dataset_is_that_of_the_state():
    """One that is assigned with its ranges, also after a state was taken."""
    one, other, ranges = Shards([7, 3, 12]), Shards([4, 8, 11]), [(0, 5), (9, 12)]
    sampler, expected = ChunkedSampler(one), ChunkedSampler(other)
    sampler.state_dict()
    sampler.dataset, sampler.ranges, expected.ranges = other, ranges, ranges
    assert sampler.state_dict() == expected.state_dict()
    expected.load_state_dict(sampler.state_dict())


class Keeps(DistributedChunkedSampler):
    """It keeps the dataset in its own way."""

    @property
    def dataset(self):
        """The dataset."""
        return self._mine

    @dataset.setter
    def dataset(self, dataset):
        self._mine = dataset


@pytest.mark.parametrize("options", [{}, {"tail": "drop"}])
def test_a_subclass_that_keeps_the_dataset_itself(options):
    """It is given the dataset."""
    sampler = Keeps(Shards([7, 3]), num_replicas=2, rank=0, **options)
    assert (len(sampler), len(sampler.dataset)) == (5, 10)

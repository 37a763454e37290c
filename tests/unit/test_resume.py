"""Resuming: a sampler's state, on any rank, for any number of ranks, at any position, in epochs and in streams."""

import copy
import gc
import io
import json
import multiprocessing
import pickle
import random
import time
import warnings
from dataclasses import replace
from itertools import accumulate, chain, islice, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, Subset, random_split
from torchdata.stateful_dataloader import StatefulDataLoader

import wids
from tests.model.order import BEGINNING, Job, Order, State
from tests.support.examples import examples, some
from tests.support.numbers import Numbers, alone
from tests.support.shards import write_shards
from wids.errors import StateError
from wids.samplers import ChunkedSampler, DistributedChunkedSampler, ShardListSampler


class Shards:
    """A dataset that has only its lengths and a name, and says that marked indices reach it."""

    takes_marked_indices = True

    def __init__(self, lengths, fingerprint="name"):
        self.lengths, self.fingerprint = lengths, fingerprint

    def __len__(self):
        return sum(self.lengths)


def ranks(dataset, world, **options):
    """The samplers of all ranks."""
    return [DistributedChunkedSampler(dataset, num_replicas=world, rank=rank, **options) for rank in range(world)]


def deal(rows):
    """The global order of what the ranks got; they got equally many."""
    return list(chain(*zip(*rows, strict=True)))


def order_of(dataset, **options):
    """The order of a dataset's samples, as the model has it."""
    options = {name: value for name, value in options.items() if name != "tail"}
    return Order(hi=len(dataset), shard_ends=tuple(accumulate(getattr(dataset, "lengths", ()))), **options)


def whole(dataset, lanes, epoch, **options):
    """G of an epoch, as the model has it."""
    order = order_of(dataset, lanes=lanes, **options)
    return [order.sample(t, epoch) for t in range(len(dataset))]


def through_json(state):
    """The state as another program gets it."""
    return json.loads(json.dumps(state))


TAILS = ("pad", "drop", "mask")


def check_rest(found, rest, world, tail):
    """What ``world`` ranks read of the rest of G: all of it, and its tail."""
    if tail == "drop":
        assert found == rest[: len(rest) // world * world]
    else:
        assert found[: len(rest)] == rest
        assert len(found) == -(-len(rest) // world) * world


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("reshuffle", ["fixed", "epoch"])
def test_every_world_reads_the_same_sequence(reshuffle, tail):
    """For all n to 40 and some more, all W and L to 9: G does not know W; equal counts, exact len; tails as stated."""
    sizes = [*range(41), 59, 60, 1013] if tail != "mask" else [*range(22), 60]
    for k, (n, lanes) in some(enumerate(product(sizes, range(1, 10))), every=25):
        options = {"chunksize": (1, 3, 16, 70)[k % 4], "window": (1, 2, 5)[k % 3], "seed": k, "reshuffle": reshuffle}
        dataset = Shards([n // 3, n - n // 3])
        sequence = whole(dataset, lanes, 2, **options)
        assert sorted(sequence) == list(range(n))
        for world in range(1, 10) if n < 100 else (k % 9 + 1,):
            samplers = ranks(dataset, world, lanes=lanes, tail=tail, **options)
            rows = []
            for sampler in samplers:
                sampler.set_epoch(2)
                rows.append(list(sampler))
                assert len(rows[-1]) == len(sampler) == sampler.num_samples == sampler.total_size // world
                own = len(range(sampler.rank, min(n, len(sampler) * world), world))
                assert sampler.num_valid == own
                if tail == "mask":
                    assert [i.is_valid for i in rows[-1]] == [at < own for at in range(len(rows[-1]))]
            check_rest(deal(rows), sequence, world, tail)
            assert {i for row in rows for i in row} <= set(range(n))


@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_resume_at_every_position_with_every_world(tail):
    """Whatever the position and the world sizes before and after, the rest of G comes, equal on all ranks."""
    options = {"chunksize": 5, "window": 2, "seed": 4, "tail": tail}
    dataset = Shards([7, 0, 13, 9])
    for before in some(range(1, 10), every=4):
        sequence = whole(dataset, before, 3, **{**options, "tail": "pad"})
        following = whole(dataset, before, 4, **options)
        running = ranks(dataset, before, **options)
        iterators = []
        for sampler in running:
            sampler.set_epoch(3)
            iterators.append(iter(sampler))
        for step in range(len(running[0]) + 1):
            states = [sampler.state_dict() for sampler in running] if step else [running[0].state_dict()]
            assert all(state == states[0] for state in states)
            for after in some(range(1, 10), every=2):
                resumed = ranks(dataset, after, **options)
                rows = []
                for sampler in resumed:
                    sampler.load_state_dict(through_json(states[0]))
                    sampler.set_epoch(3)
                    length = len(sampler)
                    rows.append(list(sampler))
                    assert length == step + len(rows[-1])
                check_rest(deal(rows), sequence[step * before :], after, tail)
                # And the next epoch is whole again.
                check_rest(deal([list(sampler) for sampler in resumed]), following, after, tail)
            for iterator in iterators:
                next(iterator, None)


@pytest.mark.parametrize("reshuffle", ["fixed", "epoch"])
def test_resume_at_every_position_with_lanes_of_ones_own(reshuffle):
    """The same with lanes that are given, more and fewer than ranks, and with the mask tail: each valid sample once."""
    dataset = Shards([7, 0, 13, 9])
    for before, lanes, after in ((3, 5, 4), (2, 7, 9), (6, 4, 1), (1, 40, 5), (9, 2, 2)):
        options = {"chunksize": 5, "window": 2, "lanes": lanes, "reshuffle": reshuffle}
        sequence = whole(dataset, epoch=0, **options)
        running = ranks(dataset, before, **options)[-1]
        for state in (running.state_dict() for _ in running):
            resumed = ranks(dataset, after, tail="mask", **options)
            for sampler in resumed:
                sampler.load_state_dict(through_json(state))
                sampler.set_epoch(0)
            left = deal([list(sampler) for sampler in resumed])
            assert [i for i in left if i.is_valid] == sequence[state["position"] :]


@pytest.mark.parametrize("before", [1, 2, 3, 4, 6])
def test_as_many_ranks_as_lanes_read_a_lane_each(before):
    """Resumed at any position, each rank of W = L stays in one lane for the rest of the epoch, pads included."""
    dataset, lanes = Shards([11, 12, 14]), 4
    edges = [0, 10, 19, 28, 37]
    running = ranks(dataset, before, lanes=lanes, chunksize=3)[0]
    for state in (running.state_dict() for _ in running):
        found = []
        for sampler in ranks(dataset, lanes, chunksize=3):
            sampler.load_state_dict(state)
            sampler.set_epoch(0)
            row = list(sampler)
            found.append({int(np.searchsorted(edges, i, side="right")) - 1 for i in row})
            assert len(found[-1]) == (1 if row else 0)
            assert row == [] or found[-1] == {(state["position"] + sampler.rank) % lanes}


@settings(max_examples=examples(600))
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    part=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    lanes=st.none() | st.integers(1, 9),
    shuffle=st.sampled_from([True, True, True, False]),
    reshuffle=st.sampled_from(["fixed", "epoch"]),
    tail=st.sampled_from(TAILS),
    mode=st.sampled_from([{}, {}, {"epochs": 2}, {"epoch_size": 10}, {"epoch_size": 31}]),
    epoch=st.integers(0, 3),
    hops=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12), st.booleans()), min_size=1, max_size=5),
    window=st.integers(1, 4),
    chunksize=st.integers(1, 9),
)
def test_ranks_read_what_the_model_says(
    lengths, part, lanes, shuffle, reshuffle, tail, mode, epoch, hops, window, chunksize
):
    """However often a run stops and goes on with another world size, in whatever part of the samples."""
    dataset = Shards([*lengths, 9 + sum(part)])  # no epoch has fewer samples than ranks
    lo, hi = part[0], len(dataset) - part[1]
    options = {"chunksize": chunksize, "window": window, "shuffle": shuffle, "reshuffle": reshuffle, "seed": 5}
    order = replace(order_of(dataset, lanes=lanes or hops[0][0], **options), lo=lo, hi=hi)
    size = mode.get("epoch_size", mode.get("epochs", 0) * (hi - lo)) or None
    state = place = None
    for world, steps, is_named in hops:
        samplers = ranks(dataset, world, num_samples=(lo, hi), tail=tail, lanes=lanes, **mode, **options)
        job = Job(order=order, world=world, tail=tail, epoch_size=size, loaded=place or BEGINNING)
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(state)
            if state is None or is_named:
                sampler.set_epoch(epoch)
        if place is None or not (is_named or job.rows(place)):
            place = job.begin(epoch if place is None else epoch + 1)
        lengths = [len(sampler) for sampler in samplers]
        rows = [list(islice(sampler, steps)) for sampler in samplers]
        assert rows == [job.samples(place, rank)[:steps] for rank in range(world)]
        assert lengths == [place.yielded + job.rows(place)] * world
        if tail == "mask":
            valid = [[bool(size) or t < hi - lo for t in job.positions(place, rank)[:steps]] for rank in range(world)]
            assert [[i.is_valid for i in row] for row in rows] == valid
        place, epoch = job.after(place, len(rows[0])), place.epoch
        state = through_json(random.Random(world).choice(samplers).state_dict())
        assert State(*(state[name] for name in State._fields)) == place


@given(
    n=st.integers(5, 40),
    lanes=st.none() | st.integers(1, 9),
    mode=st.sampled_from([{"epochs": 2}, {"epochs": None}, {"epoch_size": 9}, {"epoch_size": 17}, {"epoch_size": 90}]),
    hops=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 40)), min_size=2, max_size=5),
    is_named=st.booleans(),
)
def test_a_stream_loses_and_repeats_nothing(n, lanes, mode, hops, is_named):
    """Nominal epochs of any size, at any world sizes, resumed anywhere: together they are the stream."""
    options = {"chunksize": 4, "window": 2}
    lanes = lanes or hops[0][0]
    order = order_of(range(n), lanes=lanes, **options)
    stream = [order.stream(t) for t in range(1000)]
    for number in range(1000 // n):
        assert sorted(stream[number * n : (number + 1) * n]) == list(range(n))
    state, found, epoch = None, [], 0
    for world, steps in hops:
        samplers = ranks(range(n), world, lanes=lanes, **mode, **options)
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(state)
                if is_named:
                    sampler.set_epoch(epoch)
        left = steps
        while left > 0 and len(found) < 600:
            rows = [list(islice(sampler, left)) for sampler in samplers]
            found += deal(rows)
            left -= max(len(rows[0]), 1)
        state, epoch = through_json(samplers[-1].state_dict()), samplers[-1].epoch
        assert state["position"] == len(found)
    assert found == stream[: len(found)]


def test_nominal_epochs():
    """Lengths are exact, differ by at most one row, and set_epoch finds each epoch's beginning."""
    for world in (1, 2, 3, 4, 7):
        samplers = ranks(range(23), world, epoch_size=10, chunksize=4)
        stream = []
        starts = []
        for epoch in range(9):
            starts.append(len(stream))
            for sampler in samplers:
                sampler.set_epoch(epoch)
            lengths = [len(sampler) for sampler in samplers]
            assert lengths == [sampler.num_valid for sampler in samplers]
            rows = [list(sampler) for sampler in samplers]
            assert lengths == [len(row) for row in rows]
            assert lengths[0] in (10 // world, -(-10 // world), -(-10 // world) + 1)
            assert [sampler.epoch for sampler in samplers] == [epoch] * world
            stream += deal(rows)
        assert sorted(stream[:23]) == sorted(stream[23:46]) == list(range(23))
        for epoch in (5, 0, 8, 3):
            late = ranks(range(23), world, epoch_size=10, chunksize=4)
            for sampler in late:
                sampler.set_epoch(epoch)
            rows = deal([list(sampler) for sampler in late])
            assert rows == stream[starts[epoch] : starts[epoch] + len(rows)]


def test_passes_in_one_iteration():
    """epochs=3 is three passes without a tail; each sample comes three times, whatever the world size."""
    for world in (1, 2, 4, 5):
        found = deal([list(sampler) for sampler in ranks(range(20), world, epochs=3, chunksize=4)])
        for number in range(3):
            assert sorted(found[20 * number : 20 * (number + 1)]) == list(range(20))


def test_an_endless_sampler():
    """It has no length, says so, and goes on; a rank with W = L stays in its lane, give or take the lanes' ends."""
    samplers = ranks(range(103), 4, epochs=None, chunksize=5)
    for sampler in samplers:
        with pytest.raises(TypeError, match=r"endless \(epochs=None\)"):
            len(sampler)
        indices = list(islice(sampler, 1000))
        lo = min(indices)
        assert 26 * sampler.rank - 4 <= lo <= max(indices) < 26 * (sampler.rank + 1) + 4
        counts = np.bincount(indices, minlength=103)[lo + 4 : max(indices) - 3]
        assert counts.max() - counts.min() <= 1


FAR = (2**53 - 1, 2**53 + 1, 2**63 - 5, 2**63, 2**64 + 7, 2**70 + 1, 10**30)


def saved(state):
    """The state as it comes back from a checkpoint that holds no code."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("position", FAR)
@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("mode", [{"epochs": None}, {"epoch_size": 2**80}], ids=str)
def test_a_stream_far_out(position, lanes, mode):
    """Past the integers of a double and of 64 bits a place stays exact, in memory, in JSON and in a checkpoint."""
    n, options = 60, {"lanes": lanes, "chunksize": 4, "window": 2, **mode}
    order = order_of(range(n), lanes=lanes, chunksize=4, window=2)
    stream = [order.stream(t) for t in range(position, position + 200)]
    state = ranks(range(n), 1, **options)[0].state_dict()
    state.update(position=position, epoch=position // mode.get("epoch_size", n))
    found = []
    for world in (2, 7, 3):
        samplers = ranks(range(n), world, **options)
        rows = []
        for sampler in samplers:
            sampler.load_state_dict(through_json(state))
            rows.append(list(islice(sampler, 9)))
        found += deal(rows)
        states = [sampler.state_dict() for sampler in samplers]
        assert all(each == states[0] for each in states)
        state = saved(states[0])
        assert through_json(state) == states[0]
        assert state["position"] == position + len(found)
    assert found == stream[: len(found)]


@pytest.mark.parametrize("epoch", [*FAR, 2**127, 2**128 - 1])
@pytest.mark.parametrize("mode", [{}, {"reshuffle": "epoch"}, {"epochs": 2}, {"epoch_size": 30}], ids=str)
def test_epochs_far_out(epoch, mode):
    """Any epoch may be set, has an order of its own, and is resumed in."""
    first, again = (ranks(range(53), 3, chunksize=6, window=2, **mode)[1] for _ in range(2))
    first.set_epoch(epoch)
    begun = iter(first)
    before = list(islice(begun, 7))
    state = through_json(first.state_dict())
    assert (state["epoch"], state["yielded"]) == (epoch, 7)
    again.load_state_dict(state)
    assert list(again) == list(begun)
    again.set_epoch(epoch)
    assert list(islice(again, 7)) == before
    again.set_epoch(epoch + 1)
    assert list(islice(again, 7)) != before


@pytest.mark.parametrize("n", [2**53 + 3, 2**63 - 1])
def test_indices_far_out(n):
    """The last samples of a dataset that is as long as can be counted are yielded exactly."""
    for mode in ({}, {"epochs": None}, {"reshuffle": "epoch"}, {"shuffle": False}):
        options = {"num_samples": (n - 100, n), "chunksize": 7, "window": 2, **mode}
        found = deal([list(islice(sampler, 20)) for sampler in ranks(Endless(n), 5, **options)])
        assert sorted(found) == list(range(n - 100, n))


class Endless:
    """A dataset that has a length and nothing else."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n


def test_streams_of_nothing():
    """No samples cannot be repeated: an error, not a loop that never yields."""
    for mode in ({"epochs": None}, {"epochs": 2}, {"epoch_size": 5}):
        with pytest.raises(ValueError, match="no sample to repeat"):
            next(iter(DistributedChunkedSampler([], num_replicas=1, rank=0, **mode)))


def test_states_of_nothing():
    """No samples, or fewer than ranks that drop: a state is taken and loaded like any other, and nothing comes."""
    for n, world, tail in ((0, 3, "pad"), (0, 2, "drop"), (0, 2, "mask"), (2, 3, "drop")):
        for sampler in ranks(Shards([n]), world, tail=tail):
            for state in (sampler.state_dict(), list(sampler) or sampler.state_dict()):
                assert (state["position"], state["yielded"]) == (0, 0)
                again = ranks(Shards([n]), world, tail=tail)[0]
                again.load_state_dict(through_json(state))
                assert (len(again), again.num_valid, list(again), list(again)) == (0, 0, [], [])
                again.load_state_dict(through_json(state))
                again.set_epoch(0)
                assert (list(again), again.epoch) == ([], 0)
    sampler = DistributedChunkedSampler([], num_replicas=2, rank=0, epoch_size=5)
    again = DistributedChunkedSampler([], num_replicas=2, rank=0, epoch_size=5)
    again.load_state_dict(sampler.state_dict())
    with pytest.raises(ValueError, match="no sample to repeat"):
        list(again)


# --- what a state is


def begun(count=0, *, dataset=None, **options):
    """A sampler of rank 1 of 3, after ``count`` indices."""
    options = {"num_replicas": 3, "rank": 1, "chunksize": 5, **options}
    sampler = DistributedChunkedSampler(Shards([20, 31]) if dataset is None else dataset, **options)
    running = iter(sampler)
    for _ in range(count):
        next(running)
    return sampler


def test_a_state_is_small_and_plain():
    """It goes through JSON, torch.save with weights_only, and pickle, and stays under a kilobyte for many shards."""
    state = begun(5, dataset=Shards([10] * 10_000)).state_dict()
    assert len(json.dumps(state)) < 1000
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True) == state == through_json(state) == pickle.loads(pickle.dumps(state))
    assert (state["epoch"], state["position"], state["yielded"], state["lanes"]) == (0, 15, 5, 3)


DIFFERENT = {
    "dataset": {"dataset": Shards([20, 31], "other")},
    "samples": {"dataset": Shards([20, 32])},
    "shards": {"dataset": Shards([21, 30])},
    "seed": {"seed": 1},
    "chunksize": {"chunksize": 6},
    "window": {"window": 1},
    "shuffle": {"shuffle": False},
    "reshuffle": {"reshuffle": "epoch"},
    "first": {"num_samples": (1, 51)},
    "epochs": {"epochs": None},
    "epoch_size": {"epoch_size": 10},
    "lanes": {"lanes": 4},
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_state_of_another_order_is_refused(name):
    """The error names what differs, with both values, and the sampler stays as it was."""
    state = begun(4).state_dict()
    other = begun(2, **DIFFERENT[name])
    before = other.state_dict()
    with pytest.raises(StateError, match=rf"another order \(.*\b{name}: .* there, .* here"):
        other.load_state_dict(state)
    assert other.state_dict() == before
    untouched = begun(2, **DIFFERENT[name])
    assert list(islice(other, 30)) == list(islice(untouched, 30))
    assert other.state_dict() == untouched.state_dict()


def test_a_refused_state_leaves_the_one_before_it():
    """A state that was loaded stays loaded, lanes and all, when the next one is refused; so does an iterator's."""
    epoch = list(begun())
    sampler = begun(num_replicas=3)
    sampler.load_state_dict(begun(4).state_dict())
    for refused in (begun(2, seed=9, num_replicas=5).state_dict(), {}, {**begun(2).state_dict(), "lanes": 0}):
        running = iter(sampler)
        for target in (sampler, running):
            with pytest.raises(StateError):
                target.load_state_dict(refused)
        assert (sampler.lanes, running.state_dict()["position"], sampler.state_dict()["position"]) == (3, 12, 12)
    assert list(sampler) == epoch[4:]


def test_a_second_state_replaces_the_first():
    """Of two states the later one counts, whatever its epoch, and that is no reason to warn."""
    reference = begun()
    epochs = [list(reference) for _ in range(3)]
    other = begun()
    other.set_epoch(2)
    list(islice(other, 7))
    sampler = begun()
    for first, second, rest in ((begun(4), other, epochs[2][7:]), (other, begun(4), epochs[0][4:])):
        sampler.load_state_dict(first.state_dict())
        sampler.load_state_dict(second.state_dict())
        assert list(sampler) == rest


def test_shards_of_other_names_with_equal_counts(tmp_path):
    """Real datasets tell theirs apart by name and count; the same shards elsewhere are the same dataset."""
    for place in ("here", "there"):
        write_shards(tmp_path / place, (4, 3))
    names = sorted(path.name for path in (tmp_path / "here").glob("*.tar"))
    datasets = [
        wids.ShardListDataset(
            [(str(tmp_path / place / name), count) for name, count in zip(order, counts, strict=True)]
        )
        for place, order, counts in (("here", names, (4, 3)), ("there", names, (4, 3)), ("here", names[::-1], (4, 3)))
    ]
    state = DistributedChunkedSampler(datasets[0], num_replicas=1).state_dict()
    DistributedChunkedSampler(datasets[1], num_replicas=1).load_state_dict(state)
    with pytest.raises(StateError, match=r"another order \(dataset: '\w+' there, '\w+' here\)"):
        DistributedChunkedSampler(datasets[2], num_replicas=1).load_state_dict(state)
    one = DistributedChunkedSampler(Subset(datasets[0], range(5)), num_replicas=1)
    with pytest.raises(StateError, match="dataset"):
        DistributedChunkedSampler(Subset(datasets[0], range(1, 6)), num_replicas=1).load_state_dict(one.state_dict())


@pytest.mark.parametrize("change", [{"rank": 0}, {"num_replicas": 7}, {"tail": "drop"}, {"lanes": 3}])
def test_what_may_differ(change):
    """Rank, world size and tail are free; lanes that are given and agree are, too."""
    state = begun(4).state_dict()
    other = begun(**change)
    other.load_state_dict(state)
    assert other.state_dict()["position"] == 12
    assert other.lanes == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "torch"}, "not the state of a wids sampler"),
        ({"version": 3}, "version is 3 and this wids reads version 2"),
        ({"position": -1}, "position is -1, below 0"),
        ({"yielded": "5"}, "yielded is '5', not an integer"),
        ({"lanes": 0}, "lanes is 0, below 1"),
        ({"epoch": None}, "epoch is None, not an integer"),
        ({"order": [1]}, "not a mapping"),
    ],
)
def test_a_damaged_state_is_refused(change, words):
    """A value that makes no sense is named; so is one that is missing."""
    sampler = begun(4)
    state = {**sampler.state_dict(), **change}
    with pytest.raises(StateError, match=words):
        sampler.load_state_dict(state)
    (name,) = change
    del state[name]
    with pytest.raises(StateError):
        sampler.load_state_dict(state)
    for nothing in (None, {}, [], "state", 5):
        with pytest.raises(StateError, match="not the state of a wids sampler"):
            sampler.load_state_dict(nothing)


@pytest.mark.parametrize("options", [{"epochs": 3}, {"epoch_size": 20}, {"epochs": None}])
def test_a_state_before_its_nominal_epoch_is_refused(options):
    """Nominal epochs follow each other, so that the first position of each is known."""
    sampler = begun(4, **options)
    state = sampler.state_dict()
    for epoch in (-1, 1, 2**62, 10**30):
        with pytest.raises(StateError, match=rf"epoch={epoch}, position=12.* it is damaged"):
            sampler.load_state_dict({**state, "epoch": epoch})
    assert sampler.state_dict() == state


def test_a_state_error_is_a_value_error_of_the_family():
    """Callers may catch either; it is rebuilt from its message."""
    assert issubclass(StateError, wids.WidsError)
    assert issubclass(StateError, ValueError)
    assert str(pickle.loads(pickle.dumps(StateError("what differs")))) == "what differs"


def test_each_kind_of_sampler_resumes():
    """ChunkedSampler, also longer or shorter than its range, ShardListSampler, and ranges that were assigned."""

    def assigned():
        sampler = DistributedChunkedSampler(range(60), num_replicas=3, rank=2)
        sampler.ranges = [(4, 9), (30, 41)]
        return sampler

    makers = [
        lambda: ChunkedSampler(range(40), chunksize=7, num_samples=(3, 40)),
        lambda: ChunkedSampler(range(40), chunksize=7, dslength_per_replica=95),
        lambda: ChunkedSampler(range(40), chunksize=7, dslength_per_replica=9),
        lambda: ShardListSampler(Shards([5, 0, 12, 8])),
        lambda: ShardListSampler(None, lengths=[5, 0, 12, 8], window=2),
        assigned,
        lambda: ChunkedSampler(range(40), shuffle=False),
    ]
    for make in makers:
        reference = make()
        epochs = [list(reference) for _ in range(3)]
        for count in range(len(epochs[1]) + 1):
            sampler = make()
            sampler.set_epoch(1)
            list(islice(sampler, count))
            again = make()
            again.load_state_dict(through_json(sampler.state_dict()))
            again.set_epoch(1)
            assert list(again) == epochs[1][count:]
            assert list(again) == epochs[2]


def test_assigned_ranges_are_part_of_the_order():
    """A state of some ranges does not fit others."""
    sampler = ChunkedSampler(range(40))
    state = sampler.state_dict()
    sampler.ranges = [(0, 20), (20, 40)]
    with pytest.raises(StateError, match="ranges: None there"):
        sampler.load_state_dict(state)


# --- consumed


def test_consumed_counts_what_the_loop_received():
    """A sampler that was drawn from ahead goes on where the loop is, on any number of ranks."""
    sequence = whole(Shards([20, 31]), 3, 0, chunksize=5)
    for count in range(13):
        state = begun(12).state_dict(consumed=count)
        assert (state["position"], state["yielded"]) == (3 * count, count)
        resumed = ranks(Shards([20, 31]), 2, chunksize=5)
        for sampler in resumed:
            sampler.load_state_dict(state)
        check_rest(deal([list(sampler) for sampler in resumed]), sequence[3 * count :], 2, "pad")


def test_consumed_counts_from_where_the_iteration_began():
    """After a resume it counts the resumed iteration alone."""
    sampler = begun()
    sampler.load_state_dict(begun(5).state_dict())
    list(islice(sampler, 7))
    state = sampler.state_dict(consumed=4)
    assert (state["position"], state["yielded"]) == (27, 9)


def test_more_than_was_drawn_cannot_be_consumed():
    """Counting the samples of all ranks, say, is noticed; a last, smaller batch counted as a whole one is no error."""
    sampler = begun(6)
    with pytest.raises(ValueError, match="consumed is 7, and from 0 to 6 indices were drawn"):
        sampler.state_dict(consumed=7)
    with pytest.raises(ValueError, match="consumed is -1; it must be at least 0"):
        sampler.state_dict(consumed=-1)
    sampler = begun()
    assert sampler.state_dict(consumed=0)["position"] == 0
    with pytest.raises(ValueError, match="from 0 to 0 indices were drawn"):
        sampler.state_dict(consumed=1)
    assert len(list(sampler)) == 17
    assert sampler.state_dict(consumed=20)["yielded"] == 17


def test_yielded_counts_from_the_beginning_of_the_epoch():
    """What a trainer that counts the epoch's batches knows: what was received before a resume is in it."""
    sampler = begun()
    sampler.load_state_dict(begun(5).state_dict())
    assert sampler.state_dict(yielded=5)["position"] == 15
    list(islice(sampler, 7))
    for count in range(5, 13):
        state = sampler.state_dict(yielded=count)
        assert (state["position"], state["yielded"]) == (3 * count, count)
    for count in (4, 13):
        with pytest.raises(ValueError, match=f"yielded is {count}, and from 5 to 12 indices were drawn"):
            sampler.state_dict(yielded=count)
    with pytest.raises(ValueError, match="one of them"):
        sampler.state_dict(consumed=1, yielded=6)


def test_an_epoch_that_is_named_after_it_was_drawn():
    """A loader's workers may have drawn all of it by then: what the loop has had counts; what was drawn, if it ran."""
    sampler = begun()
    running = iter(sampler)
    next(running)
    sampler.set_epoch(0)
    list(running)
    assert sampler.state_dict()["position"] == 51
    assert sampler.state_dict(consumed=2)["position"] == 6
    sampler = begun()
    list(sampler)
    sampler.set_epoch(0)
    assert sampler.state_dict()["position"] == 0
    assert sampler.state_dict(consumed=2)["position"] == 6
    assert sampler.state_dict(yielded=2)["position"] == 6


# --- epochs and states


def test_set_epoch_after_a_load():
    """The state's epoch goes on; another one begins at its beginning, with a warning that the rest is left out."""
    reference = begun()
    epochs = [list(reference) for _ in range(4)]
    state = begun(5).state_dict()
    sampler = begun()
    sampler.load_state_dict(state)
    assert sampler.epoch == 0
    sampler.set_epoch(0)
    sampler.set_epoch(0)
    assert [list(sampler) for _ in range(2)] == [epochs[0][5:], epochs[1]]
    sampler.load_state_dict(state)
    with pytest.warns(UserWarning, match="epoch 2 was set after a state in the middle of epoch 0 was loaded"):
        sampler.set_epoch(2)
    assert [list(sampler) for _ in range(2)] == [epochs[2], epochs[3]]
    sampler.set_epoch(0)
    assert list(sampler) == epochs[0]


def test_the_end_of_an_epoch():
    """Nothing is left: the next iteration is the next epoch; set_epoch with the finished one yields nothing."""
    reference = begun()
    epochs = [list(reference) for _ in range(4)]
    finished = begun()
    list(finished)
    all_drawn = begun(17)
    assert finished.state_dict() == all_drawn.state_dict()
    state = finished.state_dict()
    sampler = begun()
    sampler.load_state_dict(state)
    assert (len(sampler), sampler.epoch) == (17, 0)
    assert [list(sampler) for _ in range(2)] == epochs[1:3]
    sampler.load_state_dict(state)
    sampler.set_epoch(0)
    assert [list(sampler) for _ in range(2)] == [[], epochs[1]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sampler.load_state_dict(state)
        sampler.set_epoch(1)
        assert list(sampler) == epochs[1]


def test_states_between_epochs():
    """Before the first iteration, and after set_epoch, a state means the beginning of the epoch to come."""
    reference = begun()
    epochs = [list(reference) for _ in range(6)]
    sampler = begun()
    fresh = sampler.state_dict()
    list(islice(sampler, 5))
    sampler.set_epoch(4)
    chosen = sampler.state_dict()
    assert (chosen["epoch"], chosen["position"]) == (4, 0)
    for state, epoch in ((fresh, 0), (chosen, 4)):
        again = begun()
        again.load_state_dict(state)
        assert [list(again) for _ in range(2)] == epochs[epoch : epoch + 2]


def test_a_set_epoch_for_the_epoch_under_way_changes_nothing():
    """Lightning calls it after a loader with workers has begun the epoch: the state is still that of the iteration."""
    sampler = begun(5)
    sampler.set_epoch(0)
    assert sampler.state_dict()["position"] == 15
    assert sampler.state_dict(consumed=2)["position"] == 6


def test_the_state_of_an_iteration_is_its_own():
    """What is set while it runs does not reach its state."""
    sampler = begun(5)
    before = sampler.state_dict()
    sampler.seed, sampler.shuffle = 99, False
    assert sampler.state_dict() == before


def test_two_iterations_at_once():
    """The one that began last is the sampler's; each knows its own place."""
    sampler = begun()
    first, second = iter(sampler), iter(sampler)
    next(first)
    assert sampler.state_dict()["epoch"] == 0
    list(islice(second, 3))
    next(first)
    assert (sampler.state_dict()["epoch"], sampler.state_dict()["yielded"]) == (1, 3)
    assert (first.state_dict()["epoch"], first.state_dict()["yielded"]) == (0, 2)
    third = iter(sampler)
    assert (third.state_dict()["epoch"], third.state_dict()["yielded"]) == (2, 0)


def test_an_iteration_is_drawn_from_in_any_way():
    """By next, by loops, by islice as BatchSampler does, in turns: one sequence, and its state is right in between."""
    sampler, reference = begun(tail="mask"), list(begun(tail="mask"))
    running = iter(sampler)
    found = [next(running), *islice(running, 4), next(running), *islice(iter(running), 2)]
    assert running.state_dict()["yielded"] == sampler.state_dict()["yielded"] == 8
    for index in running:
        found.append(index)
        if len(found) == 12:
            break
    assert running.state_dict()["yielded"] == sampler.state_dict()["yielded"] == 12
    found += running
    assert found == reference
    assert [index.is_valid for index in found] == [index.is_valid for index in reference]


def test_a_state_loaded_into_an_iteration():
    """Before it begins it may be told where; it wins over the sampler's; after that it may not."""
    reference = begun()
    epochs = [list(reference) for _ in range(3)]
    state = begun(5).state_dict()
    sampler = begun()
    running = iter(sampler)
    running.load_state_dict(state)
    sampler.set_epoch(2)
    assert running.state_dict() == state
    assert list(running) == epochs[0][5:]
    assert list(sampler) == epochs[1]
    with pytest.raises(StateError, match="has begun"):
        running.load_state_dict(state)


def test_loading_leaves_a_running_iteration_alone():
    """A state that is loaded is for the next iteration."""
    reference = begun()
    epochs = [list(reference) for _ in range(2)]
    sampler = begun()
    running = iter(sampler)
    head = list(islice(running, 4))
    sampler.load_state_dict(begun(9).state_dict())
    assert head + list(running) == epochs[0]
    assert list(sampler) == epochs[0][9:]


def test_copies_and_pickles_in_mid_epoch():
    """A sampler in use can be copied and pickled; the copy's next iteration is the next epoch, the original goes on."""
    reference = begun()
    epochs = [list(reference) for _ in range(2)]
    for clone in (copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        sampler = begun()
        running = iter(sampler)
        head = list(islice(running, 4))
        twin = clone(sampler)
        assert list(twin) == epochs[1]
        assert head + list(running) == epochs[0]
        loaded = begun()
        loaded.load_state_dict(begun(9).state_dict())
        assert list(clone(loaded)) == epochs[0][9:]


def test_lengths_around_a_resume():
    """Len is the whole epoch's for this rank: what was yielded before and what is left, and then the next one's."""
    state = begun(6).state_dict()
    sampler = begun(num_replicas=5)
    assert len(sampler) == 11
    sampler.load_state_dict(state)
    left = -(-(51 - 18) // 5)
    assert (len(sampler), sampler.num_samples, sampler.dslength_per_replica) == (6 + left,) * 3
    assert sampler.num_valid == 6 + len(range(18 + 1, 51, 5))
    running = iter(sampler)
    next(running)
    assert len(sampler) == 6 + left
    assert len(list(running)) == left - 1
    assert len(sampler) == 6 + left  # the epoch that `epoch` names; a trainer may still be at it
    sampler.set_epoch(1)
    assert len(sampler) == len(list(sampler)) == 11


# --- subsets and joins


def changes(indices, ends):
    """How often the shard changes along indices."""
    shards = np.searchsorted(ends, indices, side="right")
    return int((np.diff(shards) != 0).sum())


def test_subsets_and_joins_are_read_shard_by_shard():
    """A rank goes from shard to shard no more often than it has chunks, in a random split too; all is covered."""
    shards = Shards([100] * 20)
    ends = np.cumsum(shards.lengths)
    part = random_split(shards, [1500, 500], torch.Generator().manual_seed(0))[0]
    for dataset, places in (
        (Subset(shards, range(150, 1950)), np.arange(150, 1950)),
        (part, np.array(part.indices)),
        (ConcatDataset([shards, shards]), np.arange(4000) % 2000),
    ):
        samplers = ranks(dataset, 2, window=1, chunksize=100)
        rows = [list(sampler) for sampler in samplers]
        assert sorted(deal(rows)) == list(range(len(dataset)))
        for sampler, row in zip(samplers, rows, strict=True):
            assert changes(places[row], ends) <= len(sampler.ranges)
            assert len(sampler.ranges) <= len(dataset) / 2 / 50
            again = DistributedChunkedSampler(dataset, num_replicas=2, rank=sampler.rank, window=1, chunksize=100)
            list(islice(sampler, 40))
            again.load_state_dict(sampler.state_dict())
            sampler.set_epoch(1)
            assert list(again) == list(sampler)[40:]
    unshuffled = deal([list(sampler) for sampler in ranks(part, 1, shuffle=False)])
    assert unshuffled == list(range(1500))


# --- arguments


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"window": 0}, "window is 0; it must be at least 1"),
        ({"window": 1.5}, "window is 1.5; it must be an integer"),
        ({"lanes": 0}, "lanes is 0; it must be at least 1"),
        ({"tail": "wrap"}, "tail is 'wrap'; it must be 'pad', 'drop' or 'mask'"),
        ({"tail": "pad", "drop_last": True}, "tail is 'pad' and drop_last True; they contradict"),
        ({"tail": "drop", "drop_last": False}, "tail is 'drop' and drop_last False; they contradict"),
        ({"reshuffle": True}, "reshuffle is True; it must be 'fixed' or 'epoch'"),
        ({"lanes": "2"}, "lanes is '2'; it must be an integer"),
        ({"lanes": 2.0}, "lanes is 2.0; it must be an integer"),
        ({"tail": ""}, "tail is ''; it must be 'pad', 'drop' or 'mask'"),
        ({"tail": "mask", "drop_last": True}, "tail is 'mask' and drop_last True; they contradict"),
        ({"tail": "mask"}, "tail='mask' puts __valid__ into the samples of a ShardListDataset, and a range"),
        ({"reshuffle": None}, "reshuffle is None; it must be 'fixed' or 'epoch'"),
        ({"epochs": 1.5}, "epochs is 1.5; it must be an integer"),
        ({"epoch_size": "10"}, "epoch_size is '10'; it must be an integer"),
        ({"epochs": 0}, "epochs is 0; it must be at least 1"),
        ({"epoch_size": 0}, "epoch_size is 0; it must be at least 1"),
        ({"epochs": 2, "epoch_size": 5}, "epochs is 2 and epoch_size 5; only one of them"),
        ({"epochs": None, "epoch_size": 5}, "epochs is None and epoch_size 5; only one of them"),
    ],
)
def test_bad_arguments_are_named(options, words):
    """A ValueError names the argument, what it was, and what it may be."""
    with pytest.raises(ValueError, match=words):
        DistributedChunkedSampler(range(10), num_replicas=2, rank=0, **options)


def test_tails_and_drop_last_that_agree():
    """Either says it, or both."""
    for options, tail in (
        ({}, "pad"),
        ({"drop_last": True}, "drop"),
        ({"drop_last": False}, "pad"),
        ({"tail": "drop", "drop_last": True}, "drop"),
        ({"tail": "pad", "drop_last": False}, "pad"),
    ):
        sampler = DistributedChunkedSampler(range(10), num_replicas=3, rank=0, **options)
        assert (sampler.tail, sampler.drop_last) == (tail, tail == "drop")
        assert len(list(sampler)) == (3 if tail == "drop" else 4)


class OwnLoop(ChunkedSampler):
    """As programs write it for the original: goes through `ranges` by itself."""

    def __iter__(self):
        rng = random.Random(self.seed + 1000 * self.epoch)
        ranges = self.ranges
        rng.shuffle(ranges)
        for lo, hi in ranges:
            indices = list(range(lo, hi))
            rng.shuffle(indices)
            yield from indices


def own_loader():
    """A loader over `OwnLoop`."""
    dataset = Numbers(12)
    return StatefulDataLoader(dataset, batch_size=3, sampler=OwnLoop(dataset, chunksize=4))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_loop_of_a_subclass_s_own_is_not_resumed_at_its_beginning():
    """StatefulDataLoader resumes it exactly (by drawing what was drawn), or is told that there is no state."""
    whole = [batch.tolist() for batch in own_loader()]
    loader = own_loader()
    running = iter(loader)
    next(running), next(running)
    try:
        state = loader.state_dict()
    except (StateError, TypeError, AttributeError):
        return
    again = own_loader()
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == whole[2:]


class Half(ChunkedSampler):
    """A loop that draws from the class's own, and yields something else."""

    def __iter__(self):
        for index in super().__iter__():
            if index % 2:
                yield index


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_loop_of_a_subclass_s_own_has_no_state_unless_it_says_so():
    """What it yields is not counted here. StatefulDataLoader draws again what was drawn, exactly."""
    assert Half.state_dict is None
    assert Half.load_state_dict is None
    assert OwnLoop.state_dict is None

    class Plain(ChunkedSampler):
        def __len__(self):
            return super().__len__()

    assert Plain(Numbers(4)).state_dict()["position"] == 0

    def loader():
        return StatefulDataLoader(Numbers(24), batch_size=3, sampler=Half(Numbers(24), chunksize=4))

    whole = [batch.tolist() for batch in loader()]
    interrupted = loader()
    running = iter(interrupted)
    next(running), next(running)
    again = loader()
    again.load_state_dict(interrupted.state_dict())
    assert [batch.tolist() for batch in again] == whole[2:]


class Drawing(DistributedChunkedSampler):
    """A loop that draws from the class's own, and says that it may be resumed as that is."""

    state_dict = DistributedChunkedSampler.state_dict
    load_state_dict = DistributedChunkedSampler.load_state_dict

    def __iter__(self):
        yield from super().__iter__()


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_loop_that_draws_from_super_skips_no_epoch():
    """StatefulDataLoader, state of a finished epoch, ``set_epoch`` of the next: that one is read, not the one after."""
    dataset = Numbers(12)
    epochs = [[batch.tolist() for batch in StatefulDataLoader(dataset, batch_size=3, sampler=alone(dataset))]]
    sampler = Drawing(dataset, num_replicas=1, rank=0)
    loader = StatefulDataLoader(dataset, batch_size=3, sampler=sampler)
    assert [batch.tolist() for batch in loader] == epochs[0]
    state = loader.state_dict()
    epochs.append([batch.tolist() for batch in loader])
    sampler = Drawing(dataset, num_replicas=1, rank=0)
    loader = StatefulDataLoader(dataset, batch_size=3, sampler=sampler)
    loader.load_state_dict(state)
    sampler.set_epoch(1)
    assert [batch.tolist() for batch in loader] == epochs[1]


@pytest.mark.parametrize(
    ("name", "value"), [("seed", 5), ("shuffle", False), ("chunksize", 2), ("window", 1), ("lanes", 3)]
)
def test_what_is_assigned_after_a_load_is_checked_too(name, value):
    """A setting that changes the order between load and iteration is refused, not resumed in another order."""
    sampler = alone(Numbers(40), chunksize=5)
    head = list(islice(sampler, 16))
    again = alone(Numbers(40), chunksize=5)
    again.load_state_dict(sampler.state_dict())
    setattr(again, name, value)
    try:
        rest = list(again)
    except StateError:
        return
    assert sorted(head + rest) == list(range(40))


def test_a_finished_epoch_that_was_named_before_the_load():
    """``set_epoch(e)``, load of the state at the end of e: no epoch is read twice without a word."""
    sampler = alone(Numbers(6))
    epochs = [list(sampler)]
    state = sampler.state_dict()
    epochs.append(list(sampler))
    again, found = alone(Numbers(6)), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for epoch in range(2):
            again.set_epoch(epoch)
            if epoch == 0:
                again.load_state_dict(state)
            found.append(list(again))
    assert found == [[], epochs[1]] or caught


def test_states_of_assigned_numpy_integers_are_plain():
    """Settings assigned as numpy integers reach a state as ints that JSON takes."""
    sampler = alone(Numbers(40))
    sampler.num_replicas, sampler.chunksize, sampler.window = np.int64(2), np.int64(5), np.int32(2)
    next(iter(sampler))
    assert json.loads(json.dumps(sampler.state_dict()))["position"] == 2


@pytest.mark.parametrize("batching", ["batch_size", "batch_sampler", "batch_size=None"])
def test_a_state_of_batches_that_the_loop_has_not_had_is_warned_of(batching):
    """While workers are ahead, and after the loop was left; not where the loop counts, nor at the end of an epoch."""
    sampler = alone(Numbers(60))
    options = {
        "batch_size": {"sampler": sampler, "batch_size": 2},
        "batch_sampler": {"batch_sampler": BatchSampler(sampler, batch_size=2, drop_last=False)},
        "batch_size=None": {"sampler": sampler, "batch_size": None},
    }[batching]
    loader = DataLoader(Numbers(60), num_workers=1, **options)
    batches = iter(loader)
    next(batches)
    with pytest.warns(UserWarning, match=r"drawn ahead, .* write state_dict\(consumed=samples that the loop has recei"):
        sampler.state_dict()
    assert sampler.state_dict(consumed=2)["position"] == sampler.state_dict(yielded=2)["position"] == 2
    del batches
    gc.collect()
    with pytest.warns(UserWarning, match="drawn ahead"):
        sampler.state_dict()
    sampler.set_epoch(1)
    for _ in loader:
        pass
    assert sampler.state_dict()["position"] == 60


def test_a_loop_that_is_left_after_all_was_drawn_is_warned_of():
    """Its last batches were drawn and not received, also where its iterator is gone; with any order of batches."""
    sampler = alone(Numbers(20))
    for _ in zip(range(8), DataLoader(Numbers(20), sampler=sampler, batch_size=2, num_workers=2), strict=False):
        pass
    gc.collect()
    with pytest.warns(UserWarning, match="drawn ahead"):
        assert sampler.state_dict()["position"] == 20


def test_a_loop_that_persistent_workers_are_ahead_of():
    """It is warned of while they are, and not after its epoch, when they wait for the next one."""
    sampler = alone(Numbers(20))
    loader = DataLoader(Numbers(20), sampler=sampler, batch_size=2, num_workers=2, persistent_workers=True)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for k, _ in enumerate(loader):
            if k < 9:
                with pytest.warns(UserWarning, match="drawn ahead"):
                    sampler.state_dict()
            if k == 5 and epoch == 1:
                break
        else:
            assert sampler.state_dict()["position"] == 20


def test_other_processes_are_not_warned_of():
    """Workers of another loader, in mid-epoch; a daemon of the program's own."""
    other = alone(Numbers(20))
    batches = iter(DataLoader(Numbers(20), sampler=other, batch_size=2, num_workers=2, persistent_workers=True))
    next(batches)
    daemon = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
    daemon.start()
    try:
        sampler = alone(Numbers(20))
        for k, _ in enumerate(DataLoader(Numbers(20), sampler=sampler, batch_size=2)):
            assert sampler.state_dict()["position"] == 2 * k + 2
        for _ in DataLoader(Numbers(20), sampler=sampler, batch_size=2, num_workers=1):
            pass
        assert sampler.state_dict()["position"] == 20
        with pytest.warns(UserWarning, match="drawn ahead"):
            other.state_dict()
    finally:
        daemon.kill()
        daemon.join()


@pytest.mark.filterwarnings("ignore:.*set_vital.*:UserWarning")
def test_loops_that_no_workers_are_ahead_of_are_not_warned_of():
    """Without workers, and in a loader that asks by itself."""
    sampler = alone(Numbers(60))
    for _ in zip(range(3), DataLoader(Numbers(60), sampler=sampler, batch_size=2), strict=False):
        assert sampler.state_dict()["position"] % 2 == 0
    for workers in (0, 1):
        sampler = alone(Numbers(60))
        loader = StatefulDataLoader(Numbers(60), sampler=sampler, batch_size=2, num_workers=workers)
        for _ in zip(range(3), loader, strict=False):
            assert loader.state_dict()

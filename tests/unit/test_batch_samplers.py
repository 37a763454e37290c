"""Batches of like length and shape: what they hold, that ranks have equally many, and that a resume is exact."""

import copy
import json
import pickle
import random
from itertools import chain, islice

import numpy as np
import pytest
import torch.utils.data

import wids
from tests.support.examples import examples
from wids.core.order.layout import SamplerInterface
from wids.core.order.mask import seeds_of
from wids.errors import InputError, StateError


class Samples:
    """A dataset of shards of these lengths; a sample is its index."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return sum(self.lengths)

    def __getitem__(self, index):
        return int(index)

    def __wids__(self):
        return SamplerInterface(shard_ends=np.cumsum(self.lengths), takes_marks=True)


DATASET = Samples([50, 60, 70, 80] * 3)
LENGTHS = np.random.default_rng(0).integers(1, 100, len(DATASET))


def make(dataset=DATASET, *, world=1, rank=0, options=None, **rule):
    """A sampler of batches."""
    sampler = wids.DistributedChunkedSampler(dataset, num_replicas=world, rank=rank, **(options or {}))
    return wids.BucketBatchSampler(sampler, **(rule or {"lengths": LENGTHS, "max_tokens": 500}))


class Setting:
    """A random dataset or mixture, rule and order."""

    def __init__(self, seed, *, may_be_mixture=True):
        draws, numbers = random.Random(seed), np.random.default_rng(seed)
        shards = [draws.choice([0, 1, 5, 30, 100, draws.randint(1, 200)]) for _ in range(draws.randint(1, 20))]
        self.dataset = Samples(shards if sum(shards) else [3])
        self.is_mixture = draws.random() < 0.2 and may_be_mixture
        if self.is_mixture:
            parts = {name: (Samples([draws.randint(1, 80)] * 3), draws.randint(1, 5)) for name in "abc"}
            self.dataset = wids.mix(dict([*parts.items()][: draws.randint(1, 3)]))
        self.n = n = len(self.dataset)
        self.lengths = np.exp(numbers.normal(3, draws.choice([0.1, 1, 2]), n)).clip(1, 2000)
        if draws.random() < 0.7:
            self.lengths = self.lengths.astype(int)
        self.budget = float(draws.choice([1, 3, 20]) * self.lengths.max())
        self.images = numbers.integers(0, 9, n)
        self.names = numbers.choice(["a", "b", "c", "d"][: draws.randint(1, 4)], n)
        self.sizes = {name: draws.randint(1, 9) for name in "abcd"}
        self.rule = draws.choice(
            [
                {"lengths": self.lengths, "max_tokens": self.budget},
                {"lengths": self.lengths, "batch_size": draws.randint(1, 20)},
                {"buckets": self.names, "batch_size": self.sizes},
                {"lengths": self.lengths, "max_tokens": self.budget, "buckets": self.names, "batch_size": self.sizes},
                {"lengths": self.lengths, "max_tokens": self.budget, "limits": {"images": (self.images, 12)}},
                {"limits": {"images": (self.images, 12)}, "buckets": self.names, "batch_size": self.sizes},
            ]
        )
        self.rule = {**self.rule, "cost": draws.choice(["padded", "sum"])}
        if draws.random() < 0.5:
            self.rule["block"] = draws.randint(1, 300)
        self.lanes, self.tail = draws.randint(1, 9), draws.choice(["pad", "drop", "mask"])
        self.options = {"chunksize": draws.choice([7, 50, 10_000]), "window": draws.randint(1, 5), "seed": seed}
        self.options |= {"shuffle": draws.random() < 0.9, "reshuffle": draws.choice(["fixed", "epoch"])}
        self.options["tail"] = self.tail
        self.is_stream = self.is_mixture or (n > 8 and draws.random() < 0.25)
        if self.is_mixture:
            self.options["epoch_size"] = max(9, draws.randint(n // 2, 2 * n))
        elif self.is_stream:
            self.options |= draws.choice([{"epochs": 2}, {"epoch_size": max(9, draws.randint(n // 2, 2 * n))}])

    def make(self, world, rank, lanes=None):
        """The sampler of a rank."""
        return make(self.dataset, world=world, rank=rank, options={**self.options, "lanes": lanes}, **self.rule)

    def check(self, batch):
        """See that a batch is one that the rule allows."""
        own, padded = self.lengths[batch], self.rule["cost"] == "padded"
        assert batch
        if "max_tokens" in self.rule:
            assert (own.max() * len(own) if padded else own.sum()) <= self.budget * (1 + 1e-12)
        if "limits" in self.rule:
            assert self.images[batch].sum() <= 12
        if "buckets" in self.rule:
            assert len(set(self.names[batch])) == 1
            assert len(batch) <= self.sizes[self.names[batch[0]]]
        elif "batch_size" in self.rule:
            assert len(batch) <= self.rule["batch_size"]


@pytest.mark.parametrize(
    ("shard", "options", "rows"),
    [
        (50, {}, 200),  # a window of 4
        (50, {"window": 3}, 150),
        (50, {"window": 3, "shuffle": False}, 150),
        (50, {"chunksize": 20}, 80),
        (1000, {}, 64 * 5),
    ],
)
def test_a_block_has_some_64_batches_within_a_window(shard, options, rows):
    """Of shards, or chunks, with few samples; a larger window gives less padding, and a state of other rows says so."""
    dataset = Samples([shard] * 40)
    rule = {"lengths": np.exp(np.random.default_rng(1).normal(3, 1, len(dataset))), "max_tokens": None, "batch_size": 5}
    batches = make(dataset, world=2, options=options, **rule)
    epochs = batches.__wids__().epochs()
    assert epochs.rows == rows
    iterator = iter(batches)
    drawn = [next(iterator) for _ in range(20)]
    state, rest = batches.state_dict(), list(iterator)
    other = make(dataset, world=2, options=options, block=rows // 2, **rule)
    with pytest.raises(
        StateError, match=rf"\(rows: {rows} there, {rows // 2} here\).*BucketBatchSampler\(block={rows}\)"
    ):
        other.load_state_dict(state)
    again = make(dataset, world=2, options=options, block=rows, **rule)
    again.load_state_dict(state)
    assert list(again) == rest
    assert drawn[0] == next(iter(make(dataset, world=2, options=options, **rule)))


@pytest.mark.parametrize("seed", range(examples(40)))
def test_a_rank_has_no_more_shards_open_than_it_says(seed):
    """Of shards that are alike: those of a window, and those that begin in a block."""
    draws = random.Random(seed)
    shard, world, window = draws.randint(5, 60), draws.randint(1, 4), draws.randint(1, 5)
    dataset, block = Samples([shard] * 12 * world), draws.randint(1, 5 * shard)
    options = {"window": window, "seed": seed, "shuffle": draws.random() < 0.8}
    for rank in range(world):
        batches = make(
            dataset, world=world, rank=rank, options=options, lengths=np.ones(len(dataset)), batch_size=4, block=block
        )
        epochs = batches.__wids__().epochs()
        [mixed] = epochs.mixed_ranges(epochs.first_place(0))
        read = [{index // shard for index in batch} for batch in batches]
        first, last = {}, {}
        for step, shards in enumerate(read):
            for number in shards:
                first.setdefault(number, step)
                last[number] = step
        opened = [sum(first[number] <= step <= last[number] for number in first) for step in range(len(read))]
        assert max(opened) <= mixed.open == (window if options["shuffle"] else 1) - (-block // shard)
        assert mixed.needed == mixed.open - (-block // shard)


def test_a_source_has_its_share_of_a_block():
    """In a mixture: of 120 rows of 3:1, 90 of one with shards of 50, and 30 of the other with shards of 10."""
    mixture = wids.mix({"a": (Samples([50] * 20), 3), "b": (Samples([10] * 20), 1), "c": (Samples([10]), 0)})
    options = {"window": 2, "epochs": None}
    lengths = np.ones(len(mixture))
    epochs = make(mixture, options=options, lengths=lengths, batch_size=5, block=120).__wids__().epochs()
    first, second = epochs.mixed_ranges(epochs.first_place(0))
    assert (first.first, first.last, first.window, first.block, first.rows) == (0, 1000, 2, 2, 66)
    assert (second.first, second.last, second.window, second.block, second.rows) == (1000, 1200, 2, 3, 40)
    assert make(mixture, options=options, lengths=lengths, batch_size=5).__wids__().epochs().rows == 20


@pytest.mark.parametrize("seed", range(examples(40)))
def test_any_setting(seed):
    """Within the rule, none lost or repeated beyond the tail, equal counts; a rank reads what it would read anyway."""
    setting = Setting(seed)
    world = setting.lanes
    samplers = [setting.make(world, rank, world) for rank in range(world)]
    ranks = [list(sampler) for sampler in samplers]
    assert {len(batches) for batches in ranks} == {len(sampler) for sampler in samplers}
    for batches in ranks:
        for batch in batches:
            setting.check(batch)
    drawn = [[index for batch in batches for index in batch] for batches in ranks]
    for rank, indices in enumerate(drawn):
        plain = wids.DistributedChunkedSampler(
            setting.dataset, num_replicas=world, rank=rank, lanes=world, **setting.options
        )
        if not setting.is_stream:
            assert sorted(indices) == sorted(plain)
    if not setting.is_stream and setting.tail != "drop":
        assert set(range(setting.n)) == {index for indices in drawn for index in indices}
    if not setting.is_stream and setting.tail == "mask":
        own = [index for indices in drawn for index in indices if type(index).__name__ == "OwnIndex"]
        assert sorted(own) == list(range(setting.n))


@pytest.mark.parametrize("seed", range(examples(40)))
def test_chains_of_resumes(seed):
    """On other numbers of ranks each time, with batches drawn ahead: the batches of one unbroken run, in its order."""
    setting, draws = Setting(seed), random.Random(~seed)
    whole = [list(setting.make(setting.lanes, rank, setting.lanes)) for rank in range(setting.lanes)]
    expected = [batch for step in zip(*whole, strict=True) for batch in step]
    found, state = [], None
    while True:
        world = draws.randint(1, 9)
        samplers = [setting.make(world, rank, setting.lanes if state is None else None) for rank in range(world)]
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(json.loads(json.dumps(state)))
        if state is not None and samplers[0].epoch == 0 and _is_over(samplers[0]):
            break
        iterators = [iter(sampler) for sampler in samplers]
        counts = {len(sampler) for sampler in samplers}
        assert len(counts) == 1
        done = 0
        for _ in range(draws.randint(0, 12)):
            step = [next(iterator, None) for iterator in iterators]
            if None in step:
                assert step == [None] * world
                break
            found += step
            done += 1
        for iterator in iterators:
            for _ in range(draws.randint(0, 2) if done else 0):
                next(iterator, None)
        states = [sampler.state_dict(batches=done) for sampler in samplers]
        assert all(other == states[0] for other in states)
        state = states[0]
    # Some ranks' tails repeat, or leave out, less than a batch of each rank.
    common = min(len(found), len(expected))
    assert found[:common] == expected[:common]
    assert abs(len(found) - len(expected)) < 9 if setting.tail == "drop" else 0 <= len(found) - len(expected) < 9


def _is_over(sampler):
    """Whether the state that was loaded is at its epoch's end."""
    return sampler.__wids__().epochs().is_over(sampler.__wids__().cursor.place)


def test_like_lengths_and_like_costs():
    """Padding, the steps' balance and the share of the budget that is used, for 40,000 lognormal lengths."""
    n, budget, world = 40_000, 32_768, 4
    lengths = np.exp(np.random.default_rng(0).normal(np.log(300), 1, n)).astype(int).clip(1, budget)
    dataset = Samples([10_000] * 4)
    for cost in ("padded", "sum"):
        ranks = [
            list(make(dataset, world=world, rank=rank, lengths=lengths, max_tokens=budget, cost=cost))
            for rank in range(world)
        ]
        own = np.array([[lengths[batch].sum() for batch in batches] for batches in ranks])
        padded = np.array([[lengths[batch].max() * len(batch) for batch in batches] for batches in ranks])
        costs = padded if cost == "padded" else own
        assert (costs.max(axis=0) / costs.mean(axis=0)).mean() <= 1.08
        assert costs.mean() / budget >= 0.88
        if cost == "padded":
            assert padded.sum() / own.sum() <= 1.06


def test_epochs_differ_and_an_epoch_is_chosen_through_either():
    """Each epoch has another order; trainers say the epoch to the sampler underneath."""
    sampler = make()
    first, second = list(sampler), list(sampler)
    assert first != second
    sampler.set_epoch(0)
    assert list(sampler) == first
    sampler.sampler.set_epoch(1)
    assert sampler.epoch == 1
    assert list(sampler) == second
    assert len(sampler) == len(second)
    sampler.sampler.set_epoch(0)
    assert [batch for batch in sampler] == first  # noqa: C416 - `list` asks for the length first, loaders do not


def test_at_an_epoch_s_end_the_state_begins_the_next():
    """A resumed run does not read the epoch again."""
    sampler = make()
    list(sampler)
    other = make()
    other.load_state_dict(sampler.state_dict())
    assert list(other) == list(sampler)


def test_resumable():
    """A loader with workers counts its batches; within the loop its state is that of the next batch."""

    def loader(workers):
        return wids.resumable(
            torch.utils.data.DataLoader(DATASET, batch_sampler=make(), num_workers=workers, collate_fn=list)
        )

    expected, found, begun = list(loader(0)), [], loader(2)
    assert len(begun) == len(expected)
    for number, batch in enumerate(begun):
        found.append(batch)
        if number == 7:
            state = begun.state_dict()
            break
    assert len(json.dumps(state)) < 1024
    other = loader(0)
    other.load_state_dict(state)
    assert found + list(other) == expected


def test_without_an_end():
    """Passes follow each other; a loop that was left goes on where it was, and so does a state."""
    sampler = make(options={"epochs": None})
    with pytest.raises(TypeError, match="endless"):
        len(sampler)
    iterator, found = iter(sampler), []
    while len(found) < 250:
        found.append(next(iterator))
    again = iter(make(options={"epochs": None}))
    assert [next(again) for _ in range(250)] == found
    other = make(options={"epochs": None})
    other.load_state_dict(sampler.state_dict(batches=170))
    rest = iter(other)
    assert [next(rest) for _ in range(80)] == found[170:]


def test_samples_that_are_too_long_are_left_out(caplog):
    """Where asked for, and counted; otherwise they are an error that names the first."""
    lengths = LENGTHS.copy()
    lengths[[3, 500]] = 501
    with pytest.raises(InputError, match=r"sample 3 has length 501, more than max_tokens=500"):
        make(lengths=lengths, max_tokens=500)
    sampler = make(lengths=lengths, max_tokens=500, too_long="skip")
    assert sampler.skipped == 2
    assert "2 of 780 samples are longer" in caplog.text
    assert sorted(index for batch in sampler for index in batch) == [k for k in range(780) if k not in (3, 500)]


@pytest.mark.parametrize("seed", range(examples(60)))
def test_lanes_of_which_much_is_left_out(seed):
    """Equal counts, no empty batch, none lost, none valid twice, none twice by ``drop``; also after a resume."""
    draws, numbers = random.Random(seed), np.random.default_rng(seed)
    n, world, tail = draws.randint(1, 80), draws.randint(1, 4), draws.choice(["pad", "drop", "mask"])
    dataset, lengths, most = Samples([n]), numbers.integers(1, 100, n), draws.choice([10, 20, 50, 80])
    lengths[draws.randrange(n)] = 1
    rule = {"lengths": lengths, "max_tokens": most, "cost": draws.choice(["padded", "sum"]), "too_long": "skip"}
    rule["block"] = draws.choice([None, 1, 2, 5, 10])
    options = {"lanes": draws.choice([None, draws.randint(1, 5)]), "tail": tail, "shuffle": draws.random() < 0.7}
    samplers = [make(dataset, world=world, rank=rank, options=options, **rule) for rank in range(world)]
    ranks = [list(sampler) for sampler in samplers]
    assert {len(batches) for batches in ranks} == {len(sampler) for sampler in samplers}
    batches = [batch for step in zip(*ranks, strict=True) for batch in step]
    assert all(batches)
    assert all(sum(lengths[batch]) <= most for batch in batches)
    drawn = list(chain(*batches))
    kept = np.flatnonzero(lengths <= most).tolist()
    if tail == "drop":
        assert len(set(drawn)) == len(drawn)
    else:
        assert sorted(set(drawn)) == kept
    if tail == "mask":
        assert sorted(index for index in drawn if index.is_valid) == kept
    done, states = draws.randint(0, len(ranks[0])), []
    for rank in range(world):
        sampler = make(dataset, world=world, rank=rank, options=options, **rule)
        iterator = iter(sampler)
        list(islice(iterator, done))
        states.append(sampler.state_dict())
    state = states[0]
    assert states == [state] * world
    for rank, found in enumerate(ranks):
        again = make(dataset, world=world, rank=rank, options=options, **rule)
        again.set_epoch(0)
        again.load_state_dict(state)
        assert list(again) == found[done:]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"lengths": LENGTHS}, "none of max_tokens, limits and batch_size"),
        ({"max_tokens": 5}, "no lengths are given"),
        ({"lengths": LENGTHS[:-1], "max_tokens": 500}, "779"),
        ({"lengths": -LENGTHS, "max_tokens": 500}, "the length of sample 0 is -"),
        ({"lengths": [float("nan")] * 780, "max_tokens": 500}, "the length of sample 0 is nan"),
        ({"lengths": ["a"] * 780, "max_tokens": 500}, "they must be numbers"),
        ({"lengths": "tokens", "max_tokens": 500}, "has no columns"),
        ({"lengths": LENGTHS, "max_tokens": 0}, "max_tokens is 0"),
        ({"lengths": LENGTHS, "max_tokens": 500, "cost": "mean"}, "cost is 'mean'"),
        ({"lengths": LENGTHS, "max_tokens": 500, "too_long": "drop"}, "too_long is 'drop'"),
        ({"lengths": LENGTHS + 9, "max_tokens": 9, "too_long": "skip"}, "all 780 samples are longer"),
        ({"batch_size": {"a": 3}}, "there are no buckets"),
        ({"buckets": ["a", "b"] * 390, "batch_size": {"a": 3}}, "none of bucket 'b'"),
        ({"buckets": ["a", None] * 390, "batch_size": 3}, "the bucket of sample 1 is missing"),
        ({"buckets": [1.0, float("nan")] * 390, "batch_size": 3}, "the bucket of sample 1 is missing"),
        ({"buckets": np.array([1, float("nan")] * 390, object), "batch_size": 3}, "the bucket of sample 1 is missing"),
        ({"buckets": ["a", float("nan")] * 390, "batch_size": 3}, "the bucket of sample 1 is missing"),
        ({"buckets": np.array(["2001", "NaT"] * 390, "M8[Y]"), "batch_size": 3}, "the bucket of sample 1 is missing"),
        ({"buckets": np.ma.array([1, 2] * 390, mask=[0, 1] * 390), "batch_size": 3}, "sample 1 is masked"),
        ({"lengths": np.ma.array(LENGTHS, mask=LENGTHS > 98), "max_tokens": 500}, "of sample .* is masked"),
        ({"buckets": [1, "1"] * 390, "batch_size": 3}, "cannot be compared"),
        ({"lengths": [[1], [1, 2]] * 390, "max_tokens": 500}, "give an array"),
        ({"lengths": torch.ones(780, requires_grad=True), "max_tokens": 500}, "give an array"),
    ],
)
def test_what_makes_no_batches(rule, words):
    """A typed error that says what to do."""
    with pytest.raises(InputError, match=words):
        make(**rule)


def test_a_block_of_which_all_is_left_out_is_no_place():
    """A rank may know of it, and another not: their states are the same."""
    lengths, states = [1, 1, 9, 9, 1, 1, 1], []
    for rank in range(2):
        options = {"lanes": 1, "shuffle": False}
        sampler = make(
            Samples([7]), world=2, rank=rank, options=options, lengths=lengths, max_tokens=1, too_long="skip", block=1
        )
        iterator = iter(sampler)
        assert next(iterator) == [rank]
        states.append(sampler.state_dict())
    assert states[0] == states[1]


def test_numbers_of_any_kind():
    """Those of numpy make a state of plain values; a limit may be beyond all costs; no sample makes no batch."""
    for size in (np.int64(3), {"a": np.int64(3)}):
        state = make(buckets=["a"] * 780, batch_size=size).state_dict()
        assert json.loads(json.dumps(state)) == state
    assert sorted(chain(*make(lengths=LENGTHS * 1e-320, max_tokens=1e10))) == list(range(780))
    assert list(make(Samples([0]), lengths=[], max_tokens=5)) == []
    assert list(make(Samples([0]), buckets=[], batch_size={"a": 5})) == []


def test_a_sampler_that_is_somewhere_already():
    """Its chosen epoch is that of the batches; a state that was loaded into it has no place between batches."""
    sampler = wids.DistributedChunkedSampler(DATASET, num_replicas=1, rank=0)
    sampler.set_epoch(3)
    batches = wids.BucketBatchSampler(sampler, batch_size=4)
    assert batches.epoch == 3
    state = batches.state_dict()
    sampler.load_state_dict(sampler.state_dict())
    with pytest.raises(StateError, match="loaded into the sampler under"):
        iter(batches).__next__()
    with pytest.raises(StateError, match="loaded into the sampler under"):
        wids.BucketBatchSampler(sampler, batch_size=4)
    batches.load_state_dict(state)
    assert next(iter(batches)) == next(iter(wids.BucketBatchSampler(_chosen(3), batch_size=4)))


def _chosen(epoch):
    sampler = wids.DistributedChunkedSampler(DATASET, num_replicas=1, rank=0)
    sampler.set_epoch(epoch)
    return sampler


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_begins_where_its_original_would(copied):
    """At the state that was loaded, though another epoch was chosen before."""
    first = make()
    iterator = iter(first)
    list(islice(iterator, 4))
    second = make()
    second.set_epoch(5)
    second.load_state_dict(first.state_dict())
    assert list(copied(second)) == list(iterator)


def test_a_sampler_of_another_kind():
    """Of a stranger's, the order is not known."""
    with pytest.raises(TypeError, match="give a ChunkedSampler"):
        wids.BucketBatchSampler(torch.utils.data.RandomSampler(DATASET), batch_size=3)
    sampler = wids.DistributedChunkedSampler(DATASET, num_replicas=1, rank=0)
    sampler.ranges = [(0, 10)]
    with pytest.raises(InputError, match="were assigned"):
        wids.BucketBatchSampler(sampler, batch_size=3)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"lengths": LENGTHS, "max_tokens": 501}, "max_tokens: 500"),
        ({"lengths": LENGTHS, "max_tokens": 500, "cost": "sum"}, "cost: 'padded' there, 'sum' here"),
        (
            {"lengths": np.roll(LENGTHS, 1), "max_tokens": 500},
            "lengths, limits or buckets of the samples .* have changed",
        ),
        ({"lengths": LENGTHS + 1, "max_tokens": 500}, "lengths.total"),
    ],
)
def test_a_state_of_other_batches_is_refused(rule, words):
    """It would stand for other samples; so would the state of the sampler underneath."""
    sampler = make()
    iterator = iter(sampler)
    for _ in range(5):
        next(iterator)
    with pytest.raises(StateError, match=words):
        make(**rule).load_state_dict(sampler.state_dict(batches=3))
    with pytest.raises(StateError, match=r"not the state of a wids\.BucketBatchSampler"):
        make().load_state_dict(wids.DistributedChunkedSampler(DATASET, num_replicas=1, rank=0).state_dict())
    with pytest.raises(ValueError, match="batches and consumed"):
        sampler.state_dict(3, consumed=3)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("offset",), 10**6, "offset=1000000.*, in a block of .* batches; it is damaged"),
        (("offset",), 2**70, "offset is 1180591620717411303424, above 4611686018427387904; it is damaged"),
        (("offset",), -1, "offset is -1, below 0; it is damaged"),
        (("yielded",), 2.5, r"yielded is 2\.5, not an integer"),
        (("order", "fact"), 1, "order has fact, which this wids does not know"),
        (("order", "rule", "fact"), 1, "fact: 1 there, nothing here"),
        (("order", "sampler", "lanes"), 2**40, "30 turns of 1099511627776 are not"),
        (("order", "sampler", "position"), 2**60, "have changed"),
        (("order", "sampler", "epoch"), 3, r"epoch=3.*; it is damaged"),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(path, value, words):
    """Also the sampler underneath keeps its lanes, its nominal epochs and its weights."""
    parts = {"a": (Samples([90, 60]), 1), "b": (Samples([40, 80, 30]), 1)}
    lengths = np.random.default_rng(1).integers(1, 50, 300)
    before, sampler = (
        make(wids.mix(parts), options={"lanes": None}, lengths=lengths, max_tokens=200, block=40) for _ in range(2)
    )
    other = make(wids.mix(parts), world=3, lengths=lengths, max_tokens=200, block=40)
    other.sampler.reweight({"a": 5}, at=90)
    iterator = iter(other)
    for _ in range(7):
        next(iterator)
    state = other.state_dict()
    assert state["offset"]
    facts = state
    for name in path[:-1]:
        facts = facts[name]
    facts[path[-1]] = value
    with pytest.raises(StateError, match=words):
        sampler.load_state_dict(state)
    assert sampler.state_dict() == before.state_dict()
    assert list(sampler) == list(before)


def test_a_state_of_more_lanes_than_an_epoch_has_samples_is_refused():
    """Each lane has a sample at least, as each rank of the first run had."""
    sampler = make(options={"epoch_size": 100})
    state = sampler.state_dict()
    state["order"]["sampler"]["lanes"] = 2**40
    with pytest.raises(StateError, match=r"the state has 1099511627776 lanes, and an epoch of 100 .*; it is damaged"):
        sampler.load_state_dict(state)
    assert sampler.sampler.lanes == 1


@pytest.mark.parametrize(("name", "value", "epochs"), [("lanes", 2**40, 1), ("position", 2**100, 3)])
def test_a_state_of_more_than_a_block_can_hold_is_refused(name, value, epochs):
    """As damaged, before its lanes are read."""
    sampler = make(options={"epochs": epochs})
    iterator = iter(sampler)
    next(iterator)
    state = sampler.state_dict()
    assert state["offset"]
    state["order"]["sampler"][name] = value
    with pytest.raises(StateError, match="it is damaged"):
        make(options={"epochs": epochs}).load_state_dict(state)


def test_counts_of_a_state_may_be_integers_of_numpy():
    """As the other numbers of a state."""
    sampler, again = make(), make()
    iterator = iter(sampler)
    for _ in range(3):
        next(iterator)
    state = sampler.state_dict()
    again.load_state_dict({**state, **{name: np.int64(state[name]) for name in ("offset", "yielded")}})
    assert json.dumps(again.state_dict()) == json.dumps(state)
    assert list(again) == list(iterator)


def test_mixtures_also_after_other_weights():
    """Of a mixture, too; weights that change hold from the end of the block that has begun, on any number of ranks."""
    sources = {"a": Samples([90, 60]), "b": Samples([40, 80, 30])}
    lengths = np.random.default_rng(1).integers(1, 50, 300)

    def mixed(world, rank, weights):
        mixture = wids.mix({name: (source, weights[name]) for name, source in sources.items()})
        return make(mixture, world=world, rank=rank, lengths=lengths, max_tokens=200, block=40)

    before, after = {"a": 1, "b": 1}, {"a": 1, "b": 9}
    samplers = [mixed(2, rank, before) for rank in range(2)]
    iterators = [iter(sampler) for sampler in samplers]
    found = [[next(iterator) for iterator in iterators] for _ in range(3)]
    state = samplers[0].state_dict(batches=3)
    assert state["offset"]
    resumed = mixed(1, 0, before)
    resumed.load_state_dict(state)
    rest = list(resumed)
    unbroken = [list(mixed(2, rank, before)) for rank in range(2)]
    expected = [batch for step in zip(*unbroken, strict=True) for batch in step]
    assert [batch for step in found for batch in step] + rest == expected
    other = mixed(1, 0, after)
    with pytest.raises(StateError, match="weights"):
        other.load_state_dict(state)
    other = mixed(1, 0, after)
    other.load_state_dict(state, reweight=True)
    again = list(other)
    assert again != rest
    assert again[0] == rest[0]  # the block that has begun stays what it is
    share = np.mean(np.concatenate(again[10:]) >= 150)
    assert share > 0.7
    assert sampler_reweights(mixed(1, 0, before))


def endless(world, rank):
    """Batches of a mixture, without an end."""
    mixture = wids.mix({"a": (Samples([90, 60]), 1), "b": (Samples([40, 80, 30]), 1)})
    lengths = np.random.default_rng(1).integers(1, 50, 300)
    return make(mixture, world=world, rank=rank, options={"epochs": None}, lengths=lengths, max_tokens=200, block=40)


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("drawn", [0, 1, 3, 40])
@pytest.mark.parametrize("is_at", [False, True])
def test_weights_that_change_without_an_end(world, drawn, is_at):
    """After the sampler's own state was loaded: from the end of the block that has begun, or from a position on."""
    samplers, found, starts = [endless(world, rank) for rank in range(world)], [], []
    unbroken = [list(islice(endless(world, rank), 100)) for rank in range(world)]
    for sampler in samplers:
        first = list(islice(sampler, drawn))
        if drawn:
            with pytest.raises(ValueError, match="load the sampler's own state_dict"):
                sampler.reweight({"a": 0.1, "b": 0.9})
        state = sampler.state_dict(batches=drawn)
        sampler.load_state_dict(state)
        progress = sampler.__wids__()
        place = progress.cursor.place
        end = progress.epochs().decided(place)
        if place.offset:
            with pytest.raises(ValueError, match=f"up to {end} is decided: samples of a block that has begun"):
                sampler.reweight({"a": 0.1, "b": 0.9}, at=end - 1)
        starts.append(sampler.reweight({"a": 0.1, "b": 0.9}, at=end + 80 * world if is_at else None))
        assert starts[-1] == end + 80 * world * is_at
        found.append(first + list(islice(sampler, 60)))
    assert len(set(starts)) == 1
    for batches, before in zip(found, unbroken, strict=True):
        kept = drawn + bool(state["offset"])
        assert batches[:kept] == before[:kept]
        assert np.mean(np.concatenate(batches[-20:]) >= 150) > 0.75
    again = [endless(world, rank) for rank in range(world)]
    for sampler, batches in zip(again, found, strict=True):  # a state from after the change goes on there
        sampler.load_state_dict(samplers[0].state_dict(batches=30))
        assert list(islice(sampler, 30)) == batches[drawn + 30 :]


def sampler_reweights(sampler):
    """Whether other weights hold from the next nominal epoch on."""
    list(sampler)
    sampler.reweight({"a": 1, "b": 9})
    return np.mean(np.concatenate(list(sampler)) >= 150) > 0.8


def test_what_is_prefetched_is_what_is_drawn():
    """The indices that the prefetcher follows, and how far the loop is, counted in samples."""
    sampler = make(world=3, rank=1)
    drawn = []
    iteration = iter(sampler)
    while batch := next(iteration, None):
        drawn += batch
        assert iteration.run.drawn_samples == len(drawn)
    run = iteration.run
    assert np.concatenate([block.samples for block in run.blocks()]).tolist() == drawn


@pytest.mark.parametrize("seed", range(examples(40)))
def test_seeds_of_samples_in_batches(seed):
    """Those that samples have without batches, for any ranks; the batches, marks and states are those without seeds."""
    setting = Setting(seed, may_be_mixture=False)  # whose seeds go by its sources
    words = [seeds_of(np.arange(setting.n), seed=seed, number=number).tolist() for number in range(4)]
    for world in (1, 3, setting.lanes):
        found = []
        for rank in range(world):
            seeded, plain = (setting.make(world, rank, setting.lanes) for _ in range(2))
            seeded.sampler.sample_seeds = True
            batches = list(seeded)
            expected = list(plain)
            assert batches == expected
            assert seeded.state_dict() == plain.state_dict()
            for index, other in zip(chain(*batches), chain(*expected), strict=True):
                assert index.is_valid == getattr(other, "is_valid", None)
                assert index.seed in [each[index] for each in words[: 4 if setting.is_stream else 1]]
                found.append((int(index), index.seed))
        if setting.is_stream and world == setting.lanes:  # nothing of a stream is repeated
            assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (DATASET, {"weights": np.arange(len(DATASET)) % 7, "epoch_size": 900}),
        (wids.mix({"a": (Samples([30]), 0.5), "b": (Samples([200, 300]), 0.5)}), {"epoch_size": 400}),
    ],
)
def test_seeds_of_samples_that_come_again(dataset, options):
    """In a mixture, and by weights: each time the one that it has without batches."""
    lengths, found, expected = np.arange(len(dataset)) % 90 + 10, [], []
    for rank in range(2):
        batches = make(
            dataset, world=2, rank=rank, options={**options, "sample_seeds": True}, lengths=lengths, max_tokens=500
        )
        found += [(int(index), index.seed) for batch in batches for index in batch]
        expected += [(int(index), index.seed) for index in batches.sampler]
    assert sorted(found) == sorted(expected)
    assert len(set(found)) == len(found) > len({index for index, _ in found})


def test_the_epoch_may_be_assigned():
    """To assign it is `set_epoch`; before a subclass has called super, it is held until the constructor has run."""

    class Early(wids.BucketBatchSampler):
        def __init__(self, *args, **options):
            self.epoch = 7
            super().__init__(*args, **options)

    early, other = Early(wids.ChunkedSampler(DATASET), batch_size=4), make(batch_size=4)
    assert early.epoch == 0
    for batches in (early, other):
        first = list(batches)
        batches.epoch = 3
        assert (batches.epoch, batches.sampler.epoch) == (3, 3)
        third = list(batches)
        batches.set_epoch(3)
        assert list(batches) == third != first


def mixture_batches():
    """A sampler of batches of a mixture, and the mixture."""
    mixture = wids.mix({"a": (Samples([20]), 1), "b": (Samples([20]), 1)})
    return wids.MixtureBatchSampler(mixture, 4, num_replicas=1, rank=0), mixture


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "sampler_of", [lambda: (make(batch_size=4), DATASET), mixture_batches], ids=["BucketBatchSampler", "Mixture"]
)
def test_a_sampler_of_batches_that_is_given_as_one_of_samples(sampler_of, workers):
    """The error says which parameter takes it, when the loader is made resumable."""
    sampler, dataset = sampler_of()
    words = rf"a {type(sampler).__name__} yields batches, .*: give it as DataLoader\(dataset, batch_sampler="
    for options in ({"batch_size": 2}, {"batch_size": None}):
        with pytest.raises(InputError, match=words):
            wids.resumable(torch.utils.data.DataLoader(dataset, sampler=sampler, **options))
    right = torch.utils.data.DataLoader(dataset, batch_sampler=sampler, num_workers=workers)
    assert len(next(iter(right))) == 4


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_sampler_of_another_library_without_a_sampler(workers):
    """Accelerate divides the batches of one among processes by such an object; a loader reads it as ever."""

    class Shard(torch.utils.data.BatchSampler):
        def __init__(self, batches):
            self.batches, self.batch_size, self.drop_last = batches, 2, False

        def __iter__(self):
            return iter(self.batches)

        def __len__(self):
            return len(self.batches)

    whole = torch.utils.data.BatchSampler(wids.ChunkedSampler(range(6), shuffle=False), 2, drop_last=False)
    loader = torch.utils.data.DataLoader(range(6), batch_sampler=Shard(whole), num_workers=workers)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("epochs", [1, None])
def test_a_block_that_no_memory_holds(epochs):
    """It is refused before it is cut; one that the epoch's end makes smaller is not."""
    sampler = wids.ChunkedSampler(range(100), epochs=epochs)
    batches = wids.BucketBatchSampler(sampler, batch_size=3, block=1 << 62)
    if epochs:
        assert len(list(batches)) == 34
    else:
        with pytest.raises(InputError, match=r"4,611,686,018,427,387,904 samples of 1 lane.*268,435,456; lower block"):
            next(iter(batches))


# --- the sampler underneath


def test_another_sampler_is_followed():
    """One that is assigned says the order, and its epochs are chosen through the batches."""
    batches, other = make(), make(options={"seed": 5})
    batches.sampler, expected = other.sampler, make(options={"seed": 5})
    assert list(batches) == list(expected)
    for each in (batches, expected):
        each.set_epoch(7)
    assert (batches.epoch, list(batches)) == (7, list(expected))


class Cyclic(wids.ChunkedSampler):
    """It has the batches of which it says the order."""

    def __init__(self, dataset):
        super().__init__(dataset)
        self.batches = wids.BucketBatchSampler(self, batch_size=3)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
@pytest.mark.parametrize("of_batches", [False, True])
def test_a_sampler_that_has_its_batches_is_copied(copied, of_batches):
    """Whichever of them is; an epoch that is chosen for the copy is the batches', too."""
    sampler = Cyclic(DATASET)
    twin = copied(sampler.batches).sampler if of_batches else copied(sampler)
    sampler.set_epoch(3)
    twin.set_epoch(3)
    assert twin.batches.sampler is twin
    assert list(twin.batches) == list(sampler.batches)


def test_settings_that_differ_from_a_loaded_state():
    """They are named, also where the state's place means nothing in the other order."""
    batches = make(world=3)
    list(islice(batches, 2))
    loaded = make()
    loaded.load_state_dict(batches.state_dict(2))
    loaded.sampler.lanes = 2
    with pytest.raises(StateError, match="lanes: 3 there, 2 here"):
        next(iter(loaded))


def test_what_was_assigned_for_one_rank_is_named():
    """With the names of the arguments that do it for all."""
    batches = make()
    batches.sampler.ranges = [(0, 4)]
    with pytest.raises(InputError, match=r"use num_samples, a view, or epoch_size$"):
        list(batches)

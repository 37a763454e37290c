"""Batches under several budgets: each is kept exactly, none is empty, steps are equal, and the tightest is filled."""

import json
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wids
from tests.support.examples import examples
from wids.core.order.batch import BlockRows
from wids.core.order.batching import make_rule
from wids.core.order.budgets import in_units, parse_limits
from wids.core.order.layout import SamplerInterface
from wids.errors import InputError, StateError


class Samples:
    """A dataset of shards of these lengths."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return sum(self.lengths)

    def __getitem__(self, index):
        return int(index)

    def __wids__(self):
        return SamplerInterface(shard_ends=np.cumsum(self.lengths), takes_marks=True)


class Setting:
    """A random dataset under one to four budgets."""

    def __init__(self, seed):
        draws, numbers = random.Random(seed), np.random.default_rng(seed)
        self.dataset = Samples([draws.randint(1, 120) for _ in range(draws.randint(1, 9))])
        n = len(self.dataset)
        self.lengths = np.exp(numbers.normal(3, draws.choice([0.1, 1, 2]), n)).clip(1, 2000)
        self.lengths = self.lengths.astype(int) if draws.random() < 0.5 else self.lengths
        self.budget = float(self.lengths.max() * draws.choice([0.6, 1, 1.5, 4, 20]))
        self.limits = {name: self._limit(numbers, draws, n) for name in "abc"[: draws.randint(1, 3)]}
        self.rule = {"limits": self.limits, "cost": draws.choice(["padded", "sum"]), "too_long": "skip"}
        if has_lengths := draws.random() < 0.8:
            self.rule["lengths"] = self.lengths
        self.has_budget = has_lengths and draws.random() < 0.8
        if self.has_budget:
            self.rule["max_tokens"] = self.budget
        self.size = draws.choice([None, None, 1, 5, 40])
        if self.size is not None or not any(values.any() for values, _ in self.limits.values()):
            self.size = self.rule["batch_size"] = self.size or 5
        self.names = None
        if draws.random() < 0.4:
            self.names = self.rule["buckets"] = numbers.integers(0, draws.randint(1, 5), n)
        if draws.random() < 0.5:
            self.rule["block"] = draws.randint(1, 200)
        self.tail = draws.choice(["pad", "drop", "mask"])
        self.options = {"seed": seed, "tail": self.tail, "chunksize": draws.choice([20, 10_000])}
        self.lanes = draws.randint(1, 8)
        self.left_out = np.zeros(n, bool)
        if self.has_budget:
            self.left_out |= self.lengths > self.budget
        for values, most in self.limits.values():
            self.left_out |= values > most

    @staticmethod
    def _limit(numbers, draws, n):
        values = draws.choice(
            [
                lambda: numbers.integers(0, 9, n),
                lambda: numbers.random(n) < 0.3,
                lambda: numbers.exponential(3, n),
                lambda: np.round(numbers.random(n), 1),
                lambda: numbers.choice([0.0, 0.1, 0.3, 29.97], n).astype(draws.choice(["f4", "f8"])),
                lambda: np.zeros(n, int),
                lambda: 10.0 ** numbers.integers(-300, 290, n),
            ]
        )()
        top = float(values.max()) or 1.0
        return values, draws.choice([0.5, 1, 1, 1.6, 3, 7, 50]) * top

    def samplers(self, world, lanes=None):
        """Those of all ranks."""
        made = []
        for rank in range(world):
            inner = wids.DistributedChunkedSampler(
                self.dataset, num_replicas=world, rank=rank, lanes=lanes, **self.options
            )
            made.append(wids.BucketBatchSampler(inner, **self.rule))
        return made

    def check(self, batch):
        """See that a batch keeps every budget, by fractions."""
        assert batch
        assert self.size is None or len(batch) <= self.size
        assert self.names is None or len(set(self.names[batch])) == 1
        assert not self.left_out[batch].any()
        for values, most in self.limits.values():
            assert sum(Fraction(float(values[i])) for i in batch) <= Fraction(most)
        if self.has_budget:
            own = [Fraction(float(self.lengths[i])) for i in batch]
            cost = max(own) * len(own) if self.rule["cost"] == "padded" else sum(own)
            assert cost <= Fraction(self.budget)


@pytest.mark.parametrize("seed", range(examples(60)))
def test_any_setting(seed):
    """Every budget is kept, each sample comes once, ranks have equally many batches; a resume is exact."""
    setting, draws = Setting(seed), random.Random(~seed)
    if setting.left_out.all():
        with pytest.raises(InputError, match="none is left"):
            setting.samplers(1)
        return
    world = setting.lanes
    samplers = setting.samplers(world)
    assert {sampler.skipped for sampler in samplers} == {int(setting.left_out.sum())}
    ranks = [list(sampler) for sampler in samplers]
    assert {len(batches) for batches in ranks} == {len(sampler) for sampler in samplers}
    for batches in ranks:
        for batch in batches:
            setting.check(batch)
    drawn = [index for batches in ranks for batch in batches for index in batch]
    kept = set(np.flatnonzero(~setting.left_out).tolist())
    if setting.tail == "drop":
        assert set(drawn) <= kept
        assert len(drawn) == len(set(drawn))
    else:
        assert set(drawn) == kept
    if setting.tail == "mask":
        assert sorted(index for index in drawn if type(index).__name__ == "OwnIndex") == sorted(kept)
    # A resume, on another number of ranks, after some steps.
    done, others = draws.randint(0, max(len(ranks[0]) - 1, 0)), draws.randint(1, 8)
    iterators = [iter(sampler) for sampler in setting.samplers(world)]
    for iterator in iterators:
        for _ in range(done):
            next(iterator)
    state = json.loads(json.dumps(iterators[0].state_dict()))
    rest = [batch for step in zip(*(batches[done:] for batches in ranks), strict=True) for batch in step]
    resumed = setting.samplers(others)
    for sampler in resumed:
        sampler.load_state_dict(state)
    progress = resumed[0].__wids__()
    if progress.epochs().is_over(progress.cursor.place):  # fewer are left than ranks, and left out
        assert setting.tail == "drop" or not rest
        return
    steps = zip(*map(list, resumed), strict=True)
    again = [batch for step in steps for batch in step]
    common = min(len(rest), len(again))
    assert again[:common] == rest[:common]
    assert abs(len(again) - len(rest)) < 9


@given(
    st.lists(st.one_of(st.floats(0, 1e300), st.integers(0, 1 << 53), st.sampled_from([0.1, 0.3, 5e-324])), min_size=1),
    st.floats(1, 1e6),
)
def test_units_are_never_too_few(values, share):
    """Sums of units are those of fractions, or above; exactly those, of numbers that are not far below the budget."""
    values = np.array(values, np.float64)
    most = max(float(values.max()), 5e-324) * share
    if most > 1e300:
        return
    units, budget = in_units(values, most)
    one = Fraction(most) / budget
    for value, unit in zip(values.tolist(), units.tolist(), strict=True):
        assert Fraction(value) <= unit * one < Fraction(value) + one
        if value == int(value) and value >= most / (1 << 8):
            assert unit * one == Fraction(value)


def lognormal(rows, *, seed=0):
    """Lengths with a median of 300, and zero to eight images."""
    numbers = np.random.default_rng(seed)
    lengths = np.exp(numbers.normal(np.log(300), 0.8, rows)).astype(int).clip(1, 8000)
    return lengths, numbers.integers(0, 9, rows)


@pytest.mark.parametrize("cost", ["padded", "sum"])
@pytest.mark.parametrize("images", [16, 32, 64, 80, 100, 150])
def test_the_tighter_budget_is_filled(cost, images):
    """To nine tenths, whichever it is; steps cost about the same on all ranks."""
    budget, lanes = 8192, 4
    lengths, counts = lognormal(20_000)
    used, tightest, balance = [], [], []
    ranks = []
    for rank in range(lanes):
        inner = wids.DistributedChunkedSampler(Samples([5000] * 4), num_replicas=lanes, rank=rank)
        rule = {"lengths": lengths, "max_tokens": budget, "cost": cost, "limits": {"images": (counts, images)}}
        batches = list(wids.BucketBatchSampler(inner, **rule))
        costs = [lengths[b].max() * len(b) if cost == "padded" else lengths[b].sum() for b in batches]
        ranks.append([(text / budget, counts[b].sum() / images) for text, b in zip(costs, batches, strict=True)])
    shares = np.array(ranks)  # (lanes, steps, budgets)
    used = shares.mean(axis=(0, 1))
    tightest = shares.max(axis=2)
    balance = (tightest.max(axis=0) / tightest.mean(axis=0)).mean()
    assert tightest.mean() >= 0.9
    assert cost == "padded" or used.max() >= 0.9
    assert balance <= 1.08


@pytest.mark.parametrize("cost", ["padded", "sum"])
def test_limits_that_never_bind_change_nothing_of_padded_batches(cost):
    """Runs of like lengths are those of one budget; sums are dealt otherwise, to as many batches."""
    lengths, counts = lognormal(4000)
    dataset = Samples([1000] * 4)

    def batches(**more):
        inner = wids.ChunkedSampler(dataset)
        return list(wids.BucketBatchSampler(inner, lengths=lengths, max_tokens=8192, cost=cost, **more))

    alone, limited = batches(), batches(limits={"images": (counts, 1e6)})
    assert len(limited) == len(alone)
    if cost == "padded":
        assert limited == alone


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"images": ([1, np.nan, 2], 9)}, r"limits\['images'\]: the value of sample 1 is nan"),
        ({"images": ([1, 2, -1], 9)}, "the value of sample 2 is -1"),
        ({"images": ([np.inf, 2, 1], 9)}, "the value of sample 0 is inf"),
        ({"images": ([1, 2], 9)}, r"has the shape \(2,\), and the dataset 3 samples"),
        ({"images": ([[1], [2], [3]], 9)}, r"has the shape \(3, 1\)"),
        ({"images": (["a", "b", "c"], 9)}, r"limits\['images'\] are of type object"),
        ({"images": ([1, 2, 1 << 60], 1 << 61)}, "too large to be added up"),
        ({"images": ([1, 2, 1e300], 1e300)}, "too large to be added up"),
        ({"images": ([1, 12, 3], 9)}, "sample 1 has 12, more than the 9 of a whole batch"),
        ({"images": ([1, 2, 3], 0)}, r"limits\['images'\] is 0; it must be a number above 0"),
        ({"images": ([1, 2, 3], np.nan)}, r"limits\['images'\] is nan"),
        ({"images": ([1, 2, 3], "many")}, r"limits\['images'\] is 'many'"),
        ({"images": ([0, 0, 0], 9)}, "limits bound no batch: all values of 'images' are 0; give batch_size"),
        ({"images": ([1, 2, 3], 9, 1)}, "give a number for each column, or"),
        ({"images": 9}, r"limits\['images'\] is 'images', and .*Samples has no columns"),
        ({3: 9}, "limits have the name 3"),
        ("images", "limits are 'images'; give a dict"),
        ({}, "none of max_tokens, limits and batch_size"),
    ],
    ids=str,
)
def test_limits_that_are_none(limits, words):
    """They are refused, by name and sample."""
    with pytest.raises(InputError, match=words):
        wids.BucketBatchSampler(wids.ChunkedSampler(Samples([3])), limits=limits)


def test_samples_above_a_limit_are_left_out(caplog):
    """Each is counted once, whatever the budget."""
    rule = {"lengths": [50, 1, 1, 50], "max_tokens": 9, "limits": {"images": ([0, 20, 1, 20], 9)}}
    sampler = wids.BucketBatchSampler(wids.ChunkedSampler(Samples([4])), too_long="skip", **rule)
    assert sampler.skipped == 3
    assert "3 of 4 samples are longer than max_tokens=9 or limits['images']=9" in caplog.text
    assert list(sampler) == [[2]]


def test_a_state_names_the_limits():
    """One of other limits, or of other values in the block that has begun, is refused."""
    dataset, (lengths, counts) = Samples([1000]), lognormal(1000)

    def make(limits):
        return wids.BucketBatchSampler(wids.ChunkedSampler(dataset), lengths=lengths, max_tokens=8192, limits=limits)

    sampler = make({"images": (counts, 16)})
    iterator = iter(sampler)
    next(iterator)
    state = sampler.state_dict()
    make({"images": (counts, 16)}).load_state_dict(state)
    for limits, words in (
        (None, "limits.images"),
        ({"images": (counts, 17)}, "limits.images: 16.0 there, 17.0 here"),
        ({"crops": (counts, 16)}, "limits.crops"),
        ({"images": (np.minimum(counts + 1, 8), 16)}, "values.images.total"),
        ({"images": (counts[::-1], 16)}, "limits or buckets of the samples .* have changed"),
    ):
        with pytest.raises(StateError, match=words):
            make(limits).load_state_dict(state)


def test_rows_that_cost_nothing_are_shared_out():
    """With limits alone, batches of samples without images are about as large as each other."""
    counts = np.array([0, 0, 0, 4] * 100)
    rule = make_rule(400, limits={"images": (counts, 40)})
    where = {"seed": 1, "epoch": 0, "position": 0, "is_shuffled": True, "is_dropping": False}
    block = rule.cut(BlockRows(np.arange(400).reshape(400, 1), None, 400, **where))
    sizes = [len(block.batch(number).samples) for number in range(len(block))]
    assert sizes == [40] * 10


def test_a_limit_is_parsed():
    """As a number for a column, or a pair."""
    assert parse_limits({"a": 3, "b": ("x + y", 2)}) == {"a": ("a", 3), "b": ("x + y", 2)}
    assert parse_limits(None) == {}

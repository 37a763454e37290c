"""The order of mixtures: shares by brute force, sources by the model; changes of weights, any number of ranks."""

import itertools
import json
import random
from collections import Counter

import numpy as np
import pytest

import wids
from tests.model.order import Order, source_seed
from tests.support.examples import some
from wids.core.order import shares
from wids.core.order.layout import ShardCounts
from wids.core.order.mixture import name_parts
from wids.errors import StateError
from wids.samplers import ChunkedSampler, DistributedChunkedSampler, ShardListSampler


class Numbers(ShardCounts):
    """A dataset whose samples say which they are."""

    def __init__(self, name, lengths):
        super().__init__(lengths)
        self.name, self.fingerprint = name, f"{name} {list(lengths)}"

    def __getitem__(self, index):
        return self.name, index


def numbers(name, size, rng=None):
    """A dataset of ``size`` samples in shards of random lengths."""
    lengths = []
    while sum(lengths) < size:
        lengths.append(min((rng or random).randint(1, 60), size - sum(lengths)))
    return Numbers(name, lengths)


def random_mixture(rng, nsources):
    """A mixture of random sources, some empty or without weight."""
    sizes = [rng.choice([0, 1, 2, rng.randint(1, 40), rng.randint(1, 400)]) for _ in range(nsources)]
    weights = [0 if not n else rng.choice([0, 1, rng.random(), rng.random() ** 3, np.pi * rng.random()]) for n in sizes]
    if not any(weights):
        sizes[0], weights[0] = 7, 0.1
    return wids.mix(
        {f"s{k}": (numbers(f"s{k}", n, rng), w) for k, (n, w) in enumerate(zip(sizes, weights, strict=True))}
    )


def ranks(mixture, world, **options):
    """The samplers of all ranks."""
    return [DistributedChunkedSampler(mixture, num_replicas=world, rank=r, **options) for r in range(world)]


def read(sampler, count, mixture):
    """So many samples of a sampler, as (source, sample)."""
    return mixture.__getitems__(list(itertools.islice(iter(sampler), count)))


def deal(rows):
    """The global order of what ranks read."""
    return list(itertools.chain(*zip(*rows, strict=True)))


def check_sources(samples, mixture, *, seed=0, **options):
    """Each source is read in the order that the model has of it, pass after pass."""
    for name, dataset in zip(mixture.names, mixture.datasets, strict=True):
        ends = tuple(itertools.accumulate(dataset.lengths))
        order = Order(hi=len(dataset), shard_ends=ends, seed=source_seed(seed, name), **options)
        read = [k for source, k in samples if source == name]
        assert read == [order.stream(t) for t in range(len(read))], name


@pytest.mark.parametrize("seed", some(range(20)))
def test_shares_passes_and_counts_of_random_mixtures(seed, monkeypatch):
    """Shares passes and counts of random mixtures."""
    monkeypatch.setattr(shares, "_MIN_ROWS", 16)  # few rows are read, of many mixtures
    rng = random.Random(seed)
    for _ in some(range(50), every=25):
        mixture = random_mixture(rng, rng.randint(1, 40))
        world, lanes = rng.randint(1, 9), rng.choice([None, rng.randint(1, 9)])
        options = {"window": rng.randint(1, 4), "chunksize": rng.choice([5, 1000]), "seed": rng.randrange(9)}
        options["shuffle"] = rng.random() < 0.8
        samplers = ranks(mixture, world, lanes=lanes, epochs=None, **options)
        count = rng.randint(1, 60)
        rows = [read(sampler, count, mixture) for sampler in samplers]
        total = sum(mixture.weights.values())
        bound = 1 if all(w == 0 or w / total >= 2**-14 for w in mixture.weights.values()) else 2
        order = deal(rows)
        check_sources(order, mixture, lanes=lanes or world, **options)
        check_shares(order, mixture, bound * (lanes or world))
        if (lanes or world) == world:
            for row in rows:
                check_shares(row, mixture, bound)


def check_shares(samples, mixture, bound):
    """In every prefix each source's count is closer to its share than the bound."""
    names = np.array([mixture.names.index(name) for name, _ in samples])
    counts = np.cumsum(names[:, None] == np.arange(len(mixture.names)), axis=0)
    weights = np.array(list(mixture.weights.values()))
    due = np.arange(1, len(samples) + 1)[:, None] * (weights / weights.sum())
    assert (abs(counts - due) < bound + 1e-6).all()


def test_nominal_epochs_follow_each_other_without_a_seam():
    """Nominal epochs follow each other without a seam."""
    mixture = wids.mix({"a": (numbers("a", 50), 0.7), "b": (numbers("b", 30), 0.3)})
    for world in (1, 2, 3, 7):
        samplers = ranks(mixture, world)
        assert {len(sampler) for sampler in samplers} == {-(-80 // world)}
        epochs = [[mixture.__getitems__(list(sampler)) for sampler in samplers] for _ in range(4)]
        (endless,) = ranks(mixture, 1, lanes=world, epochs=None)
        order = [sample for epoch in epochs for sample in deal(epoch)]
        assert order == read(endless, len(order), mixture)


@pytest.mark.parametrize("seed", some(range(10)))
def test_chains_of_resumes_on_other_ranks_with_other_weights_and_sources(seed):
    """Whatever is saved and loaded, each source goes on where it was: no gap, no repeat."""
    rng = random.Random(seed)
    for _ in some(range(5), every=3):
        sources = {f"s{k}": numbers(f"s{k}", rng.randint(1, 90), rng) for k in range(rng.randint(1, 5))}
        weights = {name: rng.random() for name in sources}
        mixture, state, order = wids.mix({n: (d, weights[n]) for n, d in sources.items()}), None, []
        lanes = rng.randint(1, 5)
        for _ in range(8):
            world = rng.randint(1, 7)
            samplers = ranks(mixture, world, epoch_size=40, **({} if state else {"lanes": lanes}))
            is_changed = state is not None and rng.random() < 0.4
            if is_changed:
                if rng.random() < 0.5:
                    name = f"s{len(sources)}"
                    sources[name] = numbers(name, rng.randint(1, 90), rng)
                weights = {name: rng.choice([0, rng.random()]) for name in sources}
                weights["s0"] = 0.5
                mixture = wids.mix({n: (d, weights[n]) for n, d in sources.items()})
                samplers = ranks(mixture, world, epoch_size=40)
            for sampler in samplers:
                if state is not None:
                    sampler.load_state_dict(json.loads(json.dumps(state)), reweight=is_changed)
                if rng_of(seed, len(order)).random() < 0.2:
                    sampler.reweight({"s0": 2.0})
            count = rng.randint(1, 40 // world)
            iterators = [iter(sampler) for sampler in samplers]
            rows = [mixture.__getitems__(list(itertools.islice(it, count))) for it in iterators]
            order += deal(rows)
            states = [sampler.state_dict(consumed=len(row)) for sampler, row in zip(samplers, rows, strict=True)]
            assert all(other == states[0] for other in states)
            state = states[0]
            assert state["position"] == len(order)
        check_sources(order, mixture, lanes=lanes)


def rng_of(*key):
    """A generator for these facts."""
    return random.Random(repr(key))


def test_weights_change_at_a_position_and_the_state_knows():
    """Weights change at a position and the state knows."""
    mixture = wids.mix({"a": (numbers("a", 500), 0.5), "b": (numbers("b", 500), 0.5)})
    samplers = ranks(mixture, 2, epoch_size=100)
    assert {sampler.reweight({"a": 0.9, "b": 0.1}, at=151) for sampler in samplers} == {152}
    order = [s for _ in range(3) for s in deal([mixture.__getitems__(list(sampler)) for sampler in samplers])]
    assert Counter(name for name, _ in order[:152]) == {"a": 76, "b": 76}
    assert Counter(name for name, _ in order[152:252]) == {"a": 90, "b": 10}
    check_sources(order, mixture, lanes=2)
    weights = [[0, {"a": 0.5, "b": 0.5}, {}], [152, {"a": 0.9, "b": 0.1}, {"a": 38, "b": 38}]]
    assert samplers[0].state_dict()["order"]["weights"] == {"own": {"a": 0.5, "b": 0.5}, "from": weights}
    again = DistributedChunkedSampler(mixture, num_replicas=1, rank=0, epoch_size=100)
    again.load_state_dict({**samplers[0].state_dict(), "epoch": 1, "position": 100, "yielded": 0})
    assert read(again, 100, mixture) == order[100:200]


def test_reweight_without_a_position_begins_with_the_next_nominal_epoch():
    """Reweight without a position begins with the next nominal epoch."""
    mixture = wids.mix({"a": (numbers("a", 50), 1), "b": (numbers("b", 50), 1)})
    (sampler,) = ranks(mixture, 1, epoch_size=40)
    assert sampler.reweight({"b": 0}) == 0  # nothing has begun
    assert Counter(name for name, _ in read(sampler, 40, mixture)) == {"a": 40}
    sampler.reweight({"b": 3})  # an iteration was left: its epoch keeps its weights
    assert sampler.state_dict(consumed=10)["order"]["weights"]["from"][-1] == [
        40,
        {"a": 1.0, "b": 3.0},
        {"a": 40, "b": 0},
    ]
    assert Counter(name for name, _ in read(sampler, 40, mixture)) == {"a": 10, "b": 30}


def test_what_was_read_keeps_its_weights():
    """After an epoch, and between epochs, weights change from the next one on."""
    mixture = wids.mix({"a": (numbers("a", 50), 1), "b": (numbers("b", 50), 1)})
    (sampler,) = ranks(mixture, 1, epoch_size=40)
    first = read(sampler, 41, mixture)
    sampler.reweight({"b": 0})
    assert sampler.state_dict()["order"]["weights"]["from"][-1] == [
        40,
        {"a": 1.0, "b": 0.0},
        {"a": 20, "b": 20},
    ]
    assert Counter(name for name, _ in read(sampler, 40, mixture)) == {"a": 40}
    sampler.set_epoch(0)
    assert read(sampler, 41, mixture) == first
    sampler.set_epoch(7)
    sampler.reweight({"a": 0, "b": 1})
    assert sampler.state_dict()["order"]["weights"]["from"][-1][0] == 280


def test_what_is_decided_cannot_be_reweighted():
    """What is decided cannot be reweighted."""
    mixture = wids.mix({"a": (numbers("a", 50), 1), "b": (numbers("b", 50), 1)})
    (sampler,) = ranks(mixture, 1, epoch_size=40)
    read(sampler, 3, mixture)
    with pytest.raises(ValueError, match="at is 39, and the order up to 40 is decided"):
        sampler.reweight({"a": 2}, at=39)
    sampler.load_state_dict(sampler.state_dict(consumed=3))
    assert sampler.reweight({"a": 2}, at=39) == 39
    (endless,) = ranks(mixture, 1, epochs=None)
    read(endless, 3, mixture)
    with pytest.raises(ValueError, match="iteration without end has begun"):
        endless.reweight({"a": 2}, at=10**6)
    with pytest.raises(ValueError, match="is no mixture"):
        DistributedChunkedSampler(numbers("a", 5)).reweight({"a": 1})


def test_a_state_of_other_weights_or_sources_says_what_differs():
    """A state of other weights or sources says what differs."""
    a, b, c = numbers("a", 50), numbers("b", 50), numbers("c", 5)
    state = DistributedChunkedSampler(wids.mix({"a": (a, 1), "b": (b, 1)})).state_dict()
    for other, words in (
        ({"a": (a, 1), "b": (b, 2)}, r"b: 1.0 there, 2.0 here.*reweight=True"),
        ({"a": (a, 1), "b": (b, 1), "c": (c, 1)}, r"sources\.c.*reweight=True"),
        ({"a": (a, 1)}, r"sources\.b.*reweight=True"),
        ({"a": (a, 1), "b": (numbers("b", 51), 1)}, r"sources\.b\.samples: 50 there, 51 here"),
    ):
        with pytest.raises(StateError, match=words):
            DistributedChunkedSampler(wids.mix(other)).load_state_dict(state)
    with pytest.raises(StateError, match=r"sources\.b\.samples"):  # the same name, other samples
        DistributedChunkedSampler(wids.mix({"b": (numbers("b", 51), 1)})).load_state_dict(state, reweight=True)
    damaged = {**state, "order": {**state["order"], "weights": {"own": {"a": 1, "b": 1}, "from": [[3, {"a": 1}]]}}}
    sampler = DistributedChunkedSampler(wids.mix({"a": (a, 1), "b": (b, 1)}))
    with pytest.raises(StateError, match="weights are damaged"):
        sampler.load_state_dict(damaged)


def test_an_iteration_resumes_anywhere_as_if_it_had_gone_on():
    """An iteration resumes anywhere as if it had gone on."""
    mixture = wids.mix({"a": (numbers("a", 50), 0.6), "b": (numbers("b", 13), 0.3), "c": (numbers("c", 1), 0.1)})
    whole = read(ranks(mixture, 1, lanes=4, epochs=None)[0], 600, mixture)
    for position in (0, 1, 7, 64, 333):
        for world in (1, 2, 3, 5):
            samplers = ranks(mixture, world, lanes=None, epochs=None)
            state = ranks(mixture, 1, lanes=4, epochs=None)[0].state_dict()
            for sampler in samplers:
                sampler.load_state_dict({**state, "position": position})
            rows = [read(sampler, 40, mixture) for sampler in samplers]
            assert deal(rows) == whole[position : position + 40 * world]


def test_a_source_keeps_its_lanes_chunks_and_windows():
    """With as many ranks as lanes, a rank reads its own part of each source."""
    mixture = wids.mix({"a": (Numbers("a", [100] * 8), 0.5), "b": (Numbers("b", [50] * 4), 0.5)})
    for rank in range(4):
        sampler = DistributedChunkedSampler(mixture, num_replicas=4, rank=rank, epochs=None)
        seen = read(sampler, 400, mixture)
        assert {k // 200 for name, k in seen if name == "a"} == {rank}
        assert {k // 50 for name, k in seen if name == "b"} == {rank}


def test_bad_mixtures_are_refused():
    """Bad mixtures are refused."""
    a, empty = numbers("a", 5), numbers("empty", 0)
    for sources, error, words in (
        ({}, ValueError, "one source at least"),
        ({"a": (a, -1)}, ValueError, "'a' is -1"),
        ({"a": (a, float("nan"))}, ValueError, "'a' is nan"),
        ({"a": (a, "much")}, ValueError, "'a' is 'much'; it must be a number"),
        ({"a": (a, 0)}, ValueError, "all weights of a mixture are 0"),
        ({"e": (empty, 1), "a": (a, 1)}, ValueError, "'e' has a weight of 1 and no samples"),
        ({"a": (a, 0.7), "b": a}, ValueError, "'b' has no weight, which counts as its length, 5; and 'a'"),
        ({"a": (iter([]), 1)}, TypeError, "'a' is a list_iterator"),
        ({3: a}, TypeError, "name is 3"),
    ):
        with pytest.raises(error, match=words):
            wids.mix(sources)
    assert wids.mix([a, (numbers("b", 3), 10)]).weights == {"0": 5.0, "1": 10.0}
    assert wids.mix({"a": a, "e": empty}).weights == {"a": 5.0, "e": 0.0}
    mixture = wids.mix([a])
    for make, words in (
        (lambda: DistributedChunkedSampler(mixture, num_samples=3), "num_samples is 3"),
        (lambda: ChunkedSampler(mixture, num_samples=(1, 3)), "num_samples is"),
        (lambda: setattr(ChunkedSampler(mixture), "ranges", [(0, 1)]), "cannot be assigned"),
        (lambda: ChunkedSampler(mixture).ranges, "a mixture has no chunks of its own"),
        (lambda: ChunkedSampler(mixture).reweight({"x": 1}), "weights name 'x'"),
    ):
        with pytest.raises(ValueError, match=words):
            make()


def test_a_state_keeps_its_order_whatever_happens_to_its_keys():
    """JSON with sorted keys, say: turns go by the names of sources."""
    mixture = wids.mix({name: (numbers(name, 40), 1) for name in "zmaq"})
    (sampler,), (again,) = ranks(mixture, 1, epochs=None), ranks(mixture, 1, epochs=None)
    first = list(itertools.islice(sampler, 50))
    again.load_state_dict(json.loads(json.dumps({**sampler.state_dict(), "position": 0, "yielded": 0}, sort_keys=True)))
    assert list(itertools.islice(again, 50)) == first


def test_thousands_of_changes_cost_nothing_later():
    """A change is computed once; where it begins is in the state. The same weights again are no change."""
    mixture = wids.mix({f"s{k}": (numbers(f"s{k}", 30), k + 1) for k in range(20)})
    (sampler,) = ranks(mixture, 1, epoch_size=40)
    for epoch in range(300):
        sampler.set_epoch(epoch)
        sampler.reweight({"s0": 1 + epoch // 3 % 2})
    state = json.loads(json.dumps(sampler.state_dict()))
    assert len(state["order"]["weights"]["from"]) == 100
    (again,) = ranks(mixture, 1, epoch_size=40)
    again.load_state_dict(state)
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wids.core.order.mixture.Turns", lambda of: made.append(of) or shares.Turns(of))
        next(iter(again))
    assert len(made) == 1


@pytest.mark.parametrize(
    ("segments", "words"),
    [
        ([[0, {"z": 1}, {}]], "'z' has a weight of 1 and no samples"),
        ([[0, {"a": 1}, {}], [2**70, {"a": 1}, {"a": 2**70}]], "are not the 1180591620717411303424 samples before"),
        ([[0, {"a": 1}, {}], [6, {"a": 2}, {"a": 5}]], "5 turns of 1 are not the 6 samples before"),
        ([[0, {"a": 1}, {}], [6, {"a": 2}, {"a": 7, "b": -1}]], "turns of source 'b' is -1"),
        ([[0, {"a": 1}]], "not enough values"),
        ([[0, {"a": float("nan")}, {}]], "'a' is nan"),
        ([[0, {"a": 1}, {}], [0, {"a": 1}, {}]], r"begin at positions \[0, 0\]"),
        ([[0, None, {}]], "damaged"),
        ([[0, {"a": 1}, 3]], "damaged"),
        ([[0, {"a": 1, 5: 1}, {}]], "name is 5; it must be a string"),
        ([[0, {"a": 1}, {5: 0}]], "name is 5; it must be a string"),
        ([], "damaged"),
        (None, "damaged"),
    ],
)
def test_damaged_weights_of_a_state_are_refused_and_change_nothing(segments, words):
    """Damaged weights of a state are refused and change nothing."""
    mixture = wids.mix({"a": (numbers("a", 50), 1), "b": (numbers("b", 50), 1)})
    (sampler,) = ranks(mixture, 1)
    before = sampler.state_dict()
    order = {**before["order"], "weights": {"own": mixture.weights, "from": segments}}
    for is_reweighted in (False, True) if "no samples" not in words else (False,):
        with pytest.raises(StateError, match=words):
            sampler.load_state_dict({**before, "order": order}, reweight=is_reweighted)
    assert sampler.state_dict() == before


def test_damaged_numbers_of_a_state_are_refused():
    """Damaged numbers of a state are refused."""
    mixture = wids.mix({"a": (numbers("a", 50), 1), "b": (numbers("b", 50), 1)})
    (sampler,) = ranks(mixture, 1)
    state = sampler.state_dict()
    for change in ({"position": 2**70}, {"lanes": 2**70}, {"epoch": -1}, {"epoch": 2**70}, {"yielded": 2**70}):
        with pytest.raises(StateError, match="is damaged"):
            sampler.load_state_dict({**state, **change})
    for weights in (None, [], 3, np.int64(3)):
        with pytest.raises(StateError, match="not a mapping; they are damaged"):
            sampler.load_state_dict({**state, "order": {**state["order"], "weights": weights}})
    for change in ({"epoch_size": "x"}, {"epoch_size": 0}, {"epoch_size": -3}, {"sources": 3}):
        with pytest.raises(StateError, match="is damaged"):
            sampler.load_state_dict({**state, "order": {**state["order"], **change}}, reweight=True)
    with pytest.raises(ValueError, match="it must be at most"):
        sampler.reweight({"a": 1}, at=2**70)


def test_a_fact_of_weights_that_a_later_version_has_added_is_refused():
    """The weights would mean another order to that version."""
    (sampler,) = ranks(wids.mix({"a": (numbers("a", 50), 1)}), 1)
    state = sampler.state_dict()
    state["order"]["weights"]["rule"] = "other"
    state["wids"] = "1.9"
    for is_reweighted in (False, True):
        with pytest.raises(StateError, match=r"weights has rule, which this wids does not know\. wids 1\.9 wrote"):
            sampler.load_state_dict(state, reweight=is_reweighted)


def test_what_was_read_of_a_source_that_is_gone_cannot_be_read_again():
    """What was read of a source that is gone cannot be read again."""
    a, b = numbers("a", 50), numbers("b", 50)
    (sampler,) = ranks(wids.mix({"a": (a, 1), "b": (b, 1)}), 1)
    read(sampler, 101, sampler.dataset)
    (again,) = ranks(wids.mix({"a": (a, 1)}), 1)
    again.load_state_dict({**sampler.state_dict(), "epoch": 1}, reweight=True)
    assert len(list(again)) == 100
    again.set_epoch(0)
    with pytest.raises(StateError, match="positions from 0 on read source 'b'"):
        next(iter(again))


def test_one_dataset_under_two_names():
    """Samples that the source keeps are not changed, so each has the name it was asked for by."""
    kept = [{"n": k} for k in range(3)]
    mixture = wids.mix({"p": (kept, 1), "q": (kept, 1)})
    assert [mixture[i]["__dataset__"] for i in range(6)] == ["p"] * 3 + ["q"] * 3
    assert kept[0] == {"n": 0}


def test_names_that_repeat_get_names_of_their_own():
    """Names that repeat get names of their own."""
    parts = name_parts([("a (2)", 0, 5, 1, None), ("a", 5, 9, 1, None), ("a", 9, 12, 1, None)])
    assert [part.first for part in parts] == [0, 5, 9]
    assert len({part.name for part in parts}) == 3


def test_a_length_is_that_of_nominal_epochs():
    """The next epoch goes on where one of another length ends."""
    mixture = wids.mix({"a": (numbers("a", 50), 3), "b": (numbers("b", 50), 1)})
    (endless,) = ranks(mixture, 1, epochs=None)
    for length in (5, 230):
        sampler = ChunkedSampler(mixture, dslength_per_replica=length)
        found = [*sampler, *sampler, *sampler]
        assert len(sampler) == length
        assert found == list(itertools.islice(ChunkedSampler(mixture, dslength_per_replica=3 * length), 3 * length))
    assert len(list(itertools.islice(endless, 300))) == 300
    endless.dslength_per_replica = 7
    assert len(list(endless)) == 7
    with pytest.raises(ValueError, match="7 samples are no whole batches of 4"):
        DistributedChunkedSampler(mixture, num_replicas=1, rank=0, source_batch=4).dslength_per_replica = 7


def test_one_rank_and_shards_in_turn():
    """One rank and shards in turn."""
    mixture = wids.mix({"a": (numbers("a", 50), 3), "b": (numbers("b", 50), 1)})
    sampler = ChunkedSampler(mixture)
    assert len(sampler) == 100
    assert Counter(name for name, _ in mixture.__getitems__(list(sampler))) == {"a": 75, "b": 25}
    with pytest.raises(ValueError, match="mixture"):
        ShardListSampler(mixture)

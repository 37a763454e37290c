"""Brute force: chains of selections against lists of Python, and samplers over what they leave."""

import pickle
import random
from collections import Counter
from itertools import accumulate, chain

import numpy as np
import pytest

import wids
from tests.support.examples import some
from tests.support.shards import write_index

# 1,000 chains in all; outside of CI a third of them.
PARTS, CHAINS = 10, 100
# Of so many, one view is saved and opened again: most of the time would be the disk's.
SAVED = 10


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """Datasets of one to nine shards, some of them empty, and what each of their samples is."""
    rng, found = random.Random(0), []
    for k in range(12):
        counts = [rng.choice((0, 1, 2, 3, 5, 9)) for _ in range(rng.randrange(1, 10))]
        directory = tmp_path_factory.mktemp("chains") / f"{k}"
        index = write_index(directory, counts)
        expected = [
            (f"{directory}/s{k}.tar", row, f"s{k}-{row:03d}") for k, count in enumerate(counts) for row in range(count)
        ]
        found.append((wids.ShardListDataset(index, transformations=[]), expected))
    return found


def names(samples):
    """What a sample is in any view: (shard, row, key) of each."""
    return [(each["__shard__"], each["__shardindex__"], each["__key__"]) for each in samples]


def take(rng, view, expected):
    """(a part of ``view``, its samples by the same choice from a list), by a random way of selecting."""
    n, way = len(expected), rng.randrange(5)
    if way == 0:
        chosen = [rng.randrange(-n, n) for _ in range(rng.randrange(2 * n))] if n else []
        return view.select(chosen), [expected[i] for i in sorted({i % n for i in chosen})]
    if way == 1:
        mask = [rng.random() < 0.7 for _ in range(n)]
        return view.select(np.array(mask, bool)), [each for each, is_in in zip(expected, mask, strict=True) if is_in]
    if way == 2 and n:
        gone = {rng.choice(expected)[2] for _ in range(2)}
        return view.exclude(list(gone)), [each for each in expected if each[2] not in gone]
    if way == 3:
        gone = [rng.randrange(n)] if n else []
        return view.exclude(gone), [each for i, each in enumerate(expected) if i not in gone]
    parts = view.split(0.3, 0.7, by=rng.choice(["key", "shard", "index"]), seed=rng.randrange(9))
    found = [names(part.__getitems__(range(len(part)))) for part in parts]
    assert sorted(found[0] + found[1], key=expected.index) == expected
    return parts[1], [each for each in expected if each in found[1]]


@pytest.mark.parametrize("part", range(PARTS))
def test_chains_of_selections(datasets, tmp_path, part):
    """A chain leaves what the same choices leave of a list; ranks are equal, local, see all, and resume anywhere."""
    for number in some(range(CHAINS), every=3):
        rng = random.Random(part * CHAINS + number)
        view, expected = rng.choice(datasets)
        for _ in range(rng.randrange(1, 5)):
            view, expected = take(rng, view, expected)
        check_samples(rng, view, expected)
        if number % SAVED == 0:
            view.save(tmp_path / "view.json")
            again = wids.ShardListDataset(tmp_path / "view.json", transformations=[])
            assert again.fingerprint == view.fingerprint == pickle.loads(pickle.dumps(view)).fingerprint
            check_samples(rng, again, expected)
        if expected:
            check_samplers(rng, view)


def check_samples(rng, view, expected):
    """All of them, by each way to read them."""
    assert list(view.lengths) == [Counter(shard for shard, _, _ in expected)[each["url"]] for each in view.shards]
    assert names(view) == expected
    drawn = [rng.randrange(-len(expected), len(expected)) for _ in range(5)] if expected else []
    found = view.__getitems__(drawn)
    assert names(found) == [expected[i] for i in drawn]
    assert [each["__index__"] for each in found] == [i % len(expected) for i in drawn]
    for i in drawn:
        shard, row = view.locate(i)
        assert (view.shards[shard]["url"], row, view.keys[i]) == expected[i]


def check_samplers(rng, view):
    """Equal counts, all samples, few shards at a time; and a resume on other ranks that reads the rest."""
    before, after, window = rng.randrange(1, 5), rng.randrange(1, 5), rng.randrange(1, 4)
    tail = rng.choice(["pad", "drop", "mask"])
    options = {"window": window, "tail": tail, "seed": rng.randrange(99)}

    def ranks(world, chunksize):
        return [
            wids.DistributedChunkedSampler(view, num_replicas=world, rank=rank, chunksize=chunksize, **options)
            for rank in range(world)
        ]

    samplers, n = ranks(before, 99), len(view)
    orders = [list(sampler) for sampler in samplers]
    assert {len(order) for order in orders} == {len(samplers[0])}
    check_coverage(tail, [chain.from_iterable(orders)], n, lost=before)
    ends = list(accumulate(view.lengths))
    for order in orders:
        assert most_open(order, ends) <= window
    chunksize = rng.randrange(1, 5)
    steps, seen = rng.randrange(len(samplers[0]) + 1), []
    for sampler in ranks(before, chunksize):
        indices = iter(sampler)
        seen += [next(indices) for _ in range(steps)]
        state = sampler.state_dict()
    rest = []
    for sampler in ranks(after, chunksize):
        sampler.load_state_dict(state)
        rest.append(list(sampler))
    assert len(set(map(len, rest))) == 1
    left = n - steps * before
    if left >= (after if tail == "drop" else 1):  # else the epoch is over, and these are of the next one
        check_coverage(tail, [seen, *rest], n, lost=before + after)


def check_coverage(tail, orders, n, *, lost):
    """All samples; each counts once with "mask", and is there once at most with "drop"."""
    indices = list(chain.from_iterable(orders))
    if tail == "mask":
        indices = [index for index in indices if index.is_valid]
        assert sorted(indices) == list(range(n))
    elif tail == "drop":
        assert len(set(indices)) == len(indices) > n - lost
    else:
        assert set(indices) == set(range(n))


def most_open(order, ends):
    """How many shards are between their first and their last sample at a time, at most; repeated samples aside."""
    first, last = {}, {}
    for at, index in enumerate(dict.fromkeys(map(int, order))):
        shard = int(np.searchsorted(ends, index, side="right"))
        first.setdefault(shard, at)
        last[shard] = at
    return max((sum(first[other] <= at <= last[other] for other in first) for at in first.values()), default=0)

"""Shards to come: the visits of a sequence of indices, against a look at each index by itself."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Dataset, Subset, random_split

from tests.support.examples import examples
from wids.order.layout import Inside, Shards
from wids.samplers import DistributedChunkedSampler


class Leaf(Dataset):
    """A shard list; ``leaf[i]`` is (leaf, shard) as anybody would find it."""

    def __init__(self, lengths, *, is_wanted=True):
        self.lengths, self.is_wanted = list(lengths), is_wanted

    def __wids__(self):
        return Inside(shard_ends=np.cumsum(self.lengths, dtype=np.int64))

    def __len__(self):
        return sum(self.lengths)

    def __getitem__(self, index):
        return self, [k for k, length in enumerate(self.lengths) for _ in range(length)][index]

    def __repr__(self):
        return f"Leaf({self.lengths}, is_wanted={self.is_wanted})"


class Stranger(Dataset):
    """A dataset of which nothing is known but its length."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return range(self.count)[index], None

    def __repr__(self):
        return f"Stranger({self.count})"


def expected(dataset, blocks):
    """The visits of each block: (first, last, leaf, shard), each leaf's shard once, looked up one index at a time."""
    at = itertools.count()
    for block in blocks:
        found = {}
        for index in block:
            position, (leaf, shard) = next(at), dataset[index]
            if isinstance(leaf, Leaf) and leaf.is_wanted:
                first, _ = found.setdefault((id(leaf), shard), (position, position))
                found[id(leaf), shard] = first, position
        yield found


def actual(dataset, blocks):
    """What `Shards.visits` says, in the same form."""
    shards = Shards(dataset, lambda leaf: leaf.is_wanted)
    for visits in shards.visits([np.array(block, np.int64) for block in blocks]):
        assert visits == sorted(visits)
        found = {}
        for first, last, number, shard, _ in visits:
            leaf = id(shards.datasets[number])
            before = found.get((leaf, shard), (first, last))  # a leaf that is joined twice has two visits
            found[leaf, shard] = min(first, before[0]), max(last, before[1])
        yield found


lengths = st.lists(st.integers(0, 5), max_size=6)
leaves = st.builds(Leaf, lengths, is_wanted=st.booleans()) | st.builds(Stranger, st.integers(0, 5))


def subsets(inner):
    """Parts of a dataset: any indices, negative ones too, as a list, array, tensor or range."""
    n = len(inner)
    if not n:
        return st.builds(Subset, st.just(inner), st.sampled_from([[], range(0), np.zeros(0, np.int64)]))
    chosen = st.lists(st.integers(-n, n - 1), max_size=12)
    steps = st.builds(range, st.integers(0, n - 1), st.integers(0, n), st.integers(1, 3))
    backwards = st.builds(range, st.integers(0, n - 1), st.just(-1), st.integers(-3, -1))
    forms = st.sampled_from([list, tuple, np.array, torch.tensor])
    listed = st.builds(lambda indices, form: form(indices) if indices else [], chosen, forms)
    return st.builds(Subset, st.just(inner), listed | steps | backwards)


datasets = st.recursive(
    leaves,
    lambda inner: inner.flatmap(subsets) | st.builds(ConcatDataset, st.lists(inner, min_size=1, max_size=3)),
    max_leaves=6,
)


@st.composite
def sequences(draw):
    """A dataset, and blocks of indices into it."""
    dataset = draw(datasets)
    n = len(dataset)
    blocks = st.lists(st.lists(st.integers(-n, n - 1), max_size=10), max_size=4) if n else st.just([[], []])
    return dataset, draw(blocks)


@settings(max_examples=examples(400))
@given(sequences())
def test_visits_are_what_each_index_says(sequence):
    """For any join and part of shard lists, and any indices: the same shards at the same positions, block by block."""
    dataset, blocks = sequence
    assert list(actual(dataset, blocks)) == list(expected(dataset, blocks))


@settings(max_examples=examples(100))
@given(lengths, st.data())
def test_visits_of_one_list(counts, data):
    """Of one shard list they come in order of their first positions, each shard once in a block."""
    leaf = Leaf(counts)
    n = len(leaf)
    blocks = data.draw(st.lists(st.lists(st.integers(-n, n - 1), max_size=10) if n else st.just([]), max_size=3))
    for visits, found in zip(
        Shards(leaf, lambda _: True).visits(map(np.array, blocks)), expected(leaf, blocks), strict=True
    ):
        assert places(visits) == sorted((first, last, 0, shard) for (_, shard), (first, last) in found.items())


@settings(max_examples=examples(100))
@given(lengths, st.data())
def test_parts_of_shards(counts, data):
    """A visit says which part of its shard the samples lie in, and what share of the shard they are."""
    leaf = Leaf(counts)
    rows = [(row / length, (row + 1) / length) for length in counts for row in range(length)]
    n = len(leaf)
    block = data.draw(st.lists(st.integers(-n, n - 1), max_size=12) if n else st.just([]))
    [visits] = Shards(leaf, lambda _: True).visits([np.array(block, np.int64)])
    for visit in visits:
        own = [rows[index] for index in block if leaf[index][1] == visit.shard]
        expected_part = min(own)[0], max(own)[1], len(own) / counts[visit.shard]
        assert visit.part == pytest.approx(expected_part)


def places(visits):
    """Positions and shards of visits."""
    return [visit[:4] for visit in visits]


@pytest.mark.parametrize("counts", [(), (0,), (0, 0, 0)])
def test_nothing_to_visit(counts):
    """Shard lists without samples, and sequences without indices."""
    leaf = Leaf(counts)
    for dataset in (leaf, Subset(leaf, []), ConcatDataset([leaf, leaf]), Subset(ConcatDataset([leaf]), range(0))):
        shards = Shards(dataset, lambda _: True)
        assert shards.datasets == [leaf]
        assert list(shards.visits([])) == []
        assert list(shards.visits([np.zeros(0, np.int64)] * 2)) == [[], []]


def test_lists_are_found_once():
    """A shard list that is joined with a part of itself is one; those that are not wanted are none."""
    one, two, unwanted = Leaf([2, 2]), Leaf([3]), Leaf([4], is_wanted=False)
    joined = ConcatDataset([unwanted, Subset(one, [3, 0]), two, one])
    shards = Shards(joined, lambda leaf: leaf.is_wanted)
    assert shards.datasets == [one, two]
    [visits] = shards.visits([np.arange(len(joined))])
    assert places(visits) == [(4, 4, 0, 1), (5, 5, 0, 0), (6, 8, 1, 0), (9, 10, 0, 0), (11, 12, 0, 1)]


def test_only_what_is_asked_for_is_looked_at():
    """The sequence may be endless."""
    blocks = (np.array([n % 7]) for n in itertools.count())
    found = Shards(Leaf([3, 4]), lambda _: True).visits(blocks)
    assert places(list(itertools.islice(found, 9))[-1]) == [(8, 8, 0, 0)]


def test_random_split_and_samplers():
    """What a sampler yields over a random part is visited where it says."""
    leaf = Leaf([5, 0, 7, 3, 9])
    part, _ = random_split(leaf, [0.5, 0.5], generator=torch.Generator().manual_seed(0))
    indices = list(DistributedChunkedSampler(part, num_replicas=1, rank=0, chunksize=3, window=2))
    assert sorted(indices) == list(range(len(part)))
    assert list(actual(part, [indices])) == list(expected(part, [indices]))

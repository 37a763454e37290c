"""Where the samples of shard lists, of their parts and joins lie, through torch's own Subset and ConcatDataset."""

import itertools
import pickle
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset, random_split

import wids
from tests.support.examples import examples
from tests.support.numbers import Numbers
from wids.core.order.layout import (
    SamplerInterface,
    ShardCounts,
    Shards,
    fingerprint,
    interface_of,
    layout,
    mixed_parts,
    takes_marks,
)
from wids.core.order.mask import MarkedIndex, OwnIndex, RepeatedIndex
from wids.samplers import DistributedChunkedSampler

lengths = st.lists(st.integers(0, 5), max_size=6)


class Counted(Dataset):
    """A dataset that has only its lengths."""

    takes_marked_indices = True

    def __init__(self, lengths, fingerprint="f"):
        self.lengths = lengths
        self.fingerprint = fingerprint

    def __len__(self):
        return int(sum(self.lengths))

    def __getitem__(self, index):
        return index


def shard_of(dataset, i):
    """Which shard an index ends up in: a path of numbers through subsets and joins, found by asking one by one."""
    if isinstance(dataset, ConcatDataset):
        for number, part in enumerate(dataset.datasets):
            if i < len(part):
                return (number, *shard_of(part, i))
            i -= len(part)
    if isinstance(dataset, Subset):
        i = int(dataset.indices[i])
        return shard_of(dataset.dataset, i + len(dataset.dataset) if i < 0 else i)
    return (int(np.searchsorted(np.cumsum(dataset.lengths), i, side="right")),)


def check_layout(dataset, lo, hi):
    """Sorted, each run between boundaries is of one shard, and no shard is in two of them; indices are all there."""
    boundaries, order = layout(dataset).arrange(lo, hi, is_sorted=True)
    indices = (np.arange(lo, hi) if order is None else order.take(np.arange(lo, hi))).tolist()
    assert sorted(indices) == list(range(lo, hi))
    edges = sorted({lo, hi, *(int(b) for b in boundaries if lo < b < hi)})
    seen = []
    for first, last in pairwise(edges):
        shards = {shard_of(dataset, i) for i in indices[first - lo : last - lo]}
        assert len(shards) == 1
        seen += shards
    assert len(set(seen)) == len(seen)
    return order


def some_datasets():
    """Datasets of shards as people build them, and whether their indices have to be put in order."""
    a, b = Counted([3, 0, 5, 4]), Counted([2, 7])
    return {
        "list": (a, False),
        "joined": (ConcatDataset([a, b]), False),
        "plus": (a + b, False),
        "range": (Subset(a, range(2, 11)), False),
        "steps": (Subset(a, range(1, 12, 3)), False),
        "backwards": (Subset(a, range(11, 0, -2)), True),
        "sorted": (Subset(a, [0, 2, 3, 9, 10]), False),
        "repeated": (Subset(a, [0, 0, 3, 3, 3, 9]), False),
        "mixed": (Subset(a, [9, 0, 11, 3, 4, 1]), True),
        "tensor": (Subset(a, torch.tensor([9, 0, 11])), True),
        "array": (Subset(a, np.array([1, 2, 8], np.uint8)), False),
        "negative": (Subset(a, [-1, -12, -4]), True),
        "subset of subset": (Subset(Subset(a, [9, 0, 11, 3, 4, 1]), [5, 1, 0, 2]), True),
        "subset of range": (Subset(Subset(a, range(2, 11)), range(1, 7)), False),
        "subset of joined": (Subset(ConcatDataset([a, b, a]), list(range(30, 2, -1))), True),
        "joined of subsets": (ConcatDataset([Subset(a, [9, 0, 11]), b, Subset(b, range(4))]), True),
        "split": (random_split(ConcatDataset([a, b]), [15, 6], torch.Generator().manual_seed(1))[0], True),
    }


@pytest.mark.parametrize("name", some_datasets())
def test_every_shard_is_found_and_stands_together(name):
    """In the whole and in any part of it: boundaries where shards end, and an order only where indices have none."""
    dataset, is_mixed = some_datasets()[name]
    assert (check_layout(dataset, 0, len(dataset)) is not None) is is_mixed
    for lo in range(len(dataset) + 1):
        for hi in range(lo, len(dataset) + 1):
            check_layout(dataset, lo, hi)


@given(data=st.data(), lengths=st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(any))
def test_any_subset_of_any_shards(data, lengths):
    """Whatever indices a subset has, in whatever order and however often."""
    dataset = Counted(lengths)
    n = len(dataset)
    indices = data.draw(st.lists(st.integers(-n, n - 1), min_size=1, max_size=30))
    check_layout(Subset(dataset, indices), 0, len(indices))


def test_unsorted_indices_stay_where_they_are_if_asked():
    """Not sorted, indices out of shard order have no boundaries; those in order have them all the same."""
    a = Counted([3, 5])
    assert layout(Subset(a, [5, 0])).arrange(0, 2, is_sorted=False) == (None, None)
    boundaries, order = layout(Subset(a, [1, 2, 4])).arrange(0, 3, is_sorted=False)
    assert (boundaries.tolist(), order) == ([0, 2, 3], None)


def test_a_range_of_a_large_dataset_costs_nothing():
    """Subset(dataset, range(lo, hi)) of 1e12 samples is arithmetic."""
    part = Subset(Counted([10**11] * 10), range(5, 10**12 - 5))
    boundaries, order = layout(part).arrange(0, len(part), is_sorted=True)
    assert order is None
    assert boundaries.tolist() == [0, *(k * 10**11 - 5 for k in range(1, 10)), 10**12 - 10]


class Odd:
    """Attributes that mean something else."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def __len__(self):
        return 9


@pytest.mark.parametrize(
    "dataset",
    [
        range(9),
        TensorDataset(torch.zeros(9)),
        Subset(range(20), range(9)),
        Odd(lengths=[3, 3]),
        Odd(lengths=[10, -1]),
        Odd(lengths=[]),
        Odd(datasets=[[1, 2], [3]]),
        Odd(datasets={"a": range(9)}),
        Odd(datasets=[3, 4]),
        Odd(dataset=Counted([9]), indices=None),
        Odd(dataset=Counted([9]), indices=7),
        Odd(dataset=Counted([9]), indices=[1, 2]),
        Odd(dataset=Counted([9]), indices=["a"] * 9),
        Odd(dataset=Counted([9]), indices=[[1]] * 9),
        Odd(dataset=Counted([9]), indices=[9] * 9),
        Odd(dataset=Counted([9]), indices=[-10] * 9),
        Odd(dataset=Counted([9]), indices=[0.5] * 9),
        Odd(dataset="train", indices=range(9)),
    ],
)
def test_other_datasets_have_no_layout(dataset):
    """What is not shards, or does not add up, is left alone."""
    assert layout(dataset) is None
    assert takes_marks(dataset) is False


def test_a_join_with_others():
    """A dataset without shards counts as one in a join; a join of nothing but such is several."""
    boundaries, order = layout(ConcatDataset([TensorDataset(torch.zeros(4)), Counted([2, 3])])).arrange(
        0, 9, is_sorted=True
    )
    assert (boundaries.tolist(), order) == ([0, 4, 6, 9], None)


def test_stacks():
    """A sampler goes by the boundaries of all datasets in a stack; a state knows which these are, and their order."""
    a, b = Counted([4, 6], "a"), Counted([5, 5], "b")
    for stacked in (StackDataset(a, b), StackDataset(x=a, y=b)):
        found = layout(stacked)
        assert found.arrange(0, 10, is_sorted=True)[0].tolist() == [0, 4, 5, 10]
        assert takes_marks(stacked)
        sampler = DistributedChunkedSampler(stacked, num_replicas=1, rank=0, window=1)
        order = list(sampler)
        runs = [{0, 1, 2, 3}, {4}, {5, 6, 7, 8, 9}]
        assert sorted(order) == list(range(10))
        assert all(np.ptp([order.index(i) for i in run]) == len(run) - 1 for run in runs)
    assert not takes_marks(StackDataset(a, TensorDataset(torch.arange(10))))
    marks = [fingerprint(StackDataset(*parts)) for parts in ((a, b), (b, a), (a, a))]
    assert len({*marks, fingerprint(ConcatDataset([a, b]))}) == 4
    mixed = StackDataset(Subset(a, [9, 0, 8, 1]), Subset(b, [0, 1, 2, 3]))  # not all in order: by the first
    boundaries, regrouping = layout(mixed).arrange(0, 4, is_sorted=True)
    assert (boundaries.tolist()[-1], regrouping.take(np.arange(4)).tolist()) == (4, [1, 3, 2, 0])


def test_empty_datasets():
    """No samples, no trouble."""
    for dataset in (Counted([]), Counted([0, 0]), Subset(Counted([3]), []), Subset(Counted([3]), range(0))):
        found = layout(dataset)
        if found is not None:
            boundaries, order = found.arrange(0, 0, is_sorted=True)
            assert order is None
            assert boundaries is not None


def test_fingerprints_tell_datasets_apart():
    """Other shards, another choice of them or another join is another fingerprint; the same again is the same."""
    a, b = Counted([3, 4], "a"), Counted([3, 4], "b")

    def make():
        return [a, b, a + b, b + a, Subset(a, [0, 1]), Subset(a, [1, 0]), Subset(b, [0, 1]), Subset(a + b, range(2))]

    marks = list(map(fingerprint, make()))
    assert len(set(marks)) == len(marks)
    assert list(map(fingerprint, make())) == marks
    assert fingerprint(Subset(a, range(2))) == fingerprint(Subset(a, torch.tensor([0, 1])))
    assert fingerprint(range(7)) is None


def test_who_takes_marks():
    """A shard list does, and a join of such; a subset looks indices up, so the mark is lost."""
    a = Counted([3])
    assert takes_marks(a)
    assert takes_marks(a + a)
    assert not takes_marks(Subset(a, [0]))
    assert not takes_marks(ConcatDataset([a, Subset(a, [0])]))


@pytest.mark.parametrize("kind", [OwnIndex, RepeatedIndex])
def test_a_marked_index_is_an_int(kind):
    """In arithmetic, hashing, comparing and indexing; pickle and a join's subtraction keep the mark."""
    index = kind(5)
    assert isinstance(index, MarkedIndex)
    assert isinstance(index, int)
    assert (index, hash(index), index + 1, [10, 11, 12, 13, 14, 15][index]) == (5, hash(5), 6, 15)
    again = pickle.loads(pickle.dumps(index))
    assert type(again) is type(index - 2) is kind
    assert (again, index - 2, index.is_valid) == (5, 3, kind is OwnIndex)
    joined = ConcatDataset([Counted([3]), Counted([4])])
    assert type(joined[index]) is kind
    assert joined[index] == 2


@pytest.mark.parametrize("kind", [OwnIndex, RepeatedIndex])
@pytest.mark.parametrize("other", [0.5, np.array([1, 2]), 1j])
def test_a_marked_index_subtracts_what_is_no_integer_as_an_int_does(kind, other):
    """A float, an array or a complex number is subtracted as from any int; only integers keep the mark."""
    found, plain = kind(5) - other, 5 - other
    assert type(found) is type(plain)
    assert np.array_equal(found, plain)


def test_the_fingerprint_of_a_range_of_a_large_dataset_costs_nothing():
    """A state of Subset(dataset, range(lo, hi)) does not list the range."""
    part = Subset(Counted([10**6] * 10), range(5, 10**7 - 5))
    tracemalloc.start()
    try:
        fingerprint(part)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10e6


@pytest.mark.parametrize("indices", [range(8), range(0, 20, 9), range(-1, 3), [0, 7], [-8]])
def test_indices_outside_a_dataset_have_no_layout_or_a_true_one(indices):
    """Past the end, in a range or a list, there is none: the dataset will say so. Below 0 counts from the end."""
    found = layout(Subset(Counted([3, 4]), indices))
    if max(indices) >= 7 or min(indices) < -7:
        assert found is None
    else:
        assert found.places_of(np.arange(len(indices))).tolist() == [i % 7 for i in indices]


def test_a_range_is_arranged_once():
    """Asked again, a random part of many samples is not sorted again."""
    part, _ = random_split(Counted([30, 40]), [50, 20], torch.Generator().manual_seed(0))
    found = layout(part)
    assert found.arrange(0, 50, is_sorted=True) is found.arrange(0, 50, is_sorted=True)
    assert found.arrange(0, 50, is_sorted=False) == (None, None)


class Wrapper:
    """What hands on the attributes of another dataset, and chooses samples by itself."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getattr__(self, name):
        if name == "inner":  # not made yet
            raise AttributeError(name)
        return getattr(self.inner, name)


class Deaf(wids.ShardListDataset):
    """A subclass that makes plain integers of its indices."""

    takes_marked_indices = False


def test_the_interface_of_a_dataset_is_its_class_s_own():
    """A wrapper has no shards and no sources; marked indices may reach samples through it, unless a class says no."""
    dataset = wids.ShardListDataset([("a.tar", 3), ("b.tar", 4)])
    mixture = wids.mix({"x": dataset})
    assert (interface_of(dataset).shard_ends.tolist(), mixed_parts(dataset)) == ([3, 7], None)
    assert (interface_of(mixture).shard_ends, [part.name for part in mixed_parts(mixture)]) == (None, ["x"])
    for wrapper in (Wrapper(dataset), Wrapper(mixture), range(3)):
        assert (interface_of(wrapper), mixed_parts(wrapper)) == (None, None)
    for marked in (dataset, mixture, Wrapper(dataset), ConcatDataset([dataset, mixture])):
        assert takes_marks(marked)
    for plain in (range(3), Deaf([("a.tar", 3)]), ConcatDataset([dataset, TensorDataset(torch.zeros(3))])):
        assert not takes_marks(plain)


@pytest.mark.parametrize("make", [list, np.array])
def test_counts_alone_are_a_dataset(make):
    """A dataset of known counts has a length, lengths and shard ends, as a sampler and prefetching ask for them."""
    counts = ShardCounts(make([3, 0, 4]))
    assert (len(counts), interface_of(counts).shard_ends.tolist()) == (7, [3, 3, 7])
    assert layout(counts).arrange(1, 6, is_sorted=True)[0].tolist() == [1, 3, 3, 6]
    assert (len(ShardCounts([])), layout(ShardCounts([]))) == (0, None)


class Leaf(Dataset):
    """A shard list; ``leaf[i]`` is (leaf, shard) as anybody would find it."""

    def __init__(self, lengths, *, is_wanted=True):
        self.lengths, self.is_wanted = list(lengths), is_wanted

    def __wids__(self):
        return SamplerInterface(shard_ends=np.cumsum(self.lengths, dtype=np.int64))

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


def pairs(sample):
    """The (leaf, shard) of all datasets that a sample is from: those of a stack have one each."""
    return [pair for each in sample for pair in pairs(each)] if isinstance(sample[0], tuple) else [sample]


def stack(inner):
    """Stacks on a dataset: of itself, and of shards, or others, of the same number of samples."""
    n = len(inner)
    others = [inner, Leaf([1] * n), Leaf([n]), Stranger(n), Subset(Leaf([2, n]), range(n + 1, 1, -1))]
    return st.builds(lambda more: StackDataset(inner, *more), st.lists(st.sampled_from(others), max_size=3))


def expected(dataset, blocks):
    """The visits of each block: (first, last, leaf, shard), each leaf's shard once, looked up one index at a time."""
    at = itertools.count()
    for block in blocks:
        found = {}
        for index in block:
            position = next(at)
            for leaf, shard in pairs(dataset[index]):
                if isinstance(leaf, Leaf) and leaf.is_wanted:
                    first, _ = found.setdefault((id(leaf), shard), (position, position))
                    found[id(leaf), shard] = first, position
        yield found


def actual(dataset, blocks):
    """What `Shards.visits` says, in the same form."""
    shards = Shards(dataset, lambda leaf: leaf.is_wanted or None)
    for visits in shards.visits([np.array(block, np.int64) for block in blocks]):
        assert visits == sorted(visits)
        found = {}
        for first, last, number, shard, _ in visits:
            leaf = id(shards.datasets[number])
            before = found.get((leaf, shard), (first, last))  # a leaf that is joined twice has two visits
            found[leaf, shard] = min(first, before[0]), max(last, before[1])
        yield found


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
    lambda inner: (
        inner.flatmap(subsets)
        | inner.flatmap(stack)
        | st.builds(ConcatDataset, st.lists(inner, min_size=1, max_size=3))
    ),
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
    """A shard list that is joined with a part of itself is one, asked once; those that are not wanted are none."""
    one, two, unwanted = Leaf([2, 2]), Leaf([3]), Leaf([4], is_wanted=False)
    joined = ConcatDataset([unwanted, Subset(one, [3, 0]), two, one])
    asked = []
    shards = Shards(joined, lambda leaf: asked.append(leaf) or (len(asked) if leaf.is_wanted else None))
    assert (shards.datasets, shards.results, asked) == ([one, two], [2, 3], [unwanted, one, two])
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


def peak(make):
    """The most bytes in use while making a sampler and drawing its first index."""
    tracemalloc.start()
    try:
        next(iter(make()))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_large_dataset_beside_a_small_subset_costs_nothing():
    """Joined with a few samples in another order, ten million samples are not listed one by one."""
    large = Numbers(10**7, lengths=np.full(1000, 10**4), fingerprint="large")
    small = Subset(Numbers(10, lengths=[5, 5]), [7, 2, 5])
    assert peak(lambda: DistributedChunkedSampler(ConcatDataset([large, small]), num_replicas=64, rank=3)) < 16e6


def test_every_kth_sample_of_a_large_dataset_costs_nothing():
    """A subset in equal steps is not listed one by one either."""
    large = Numbers(10**7, lengths=np.full(1000, 10**4), fingerprint="large")
    subset = Subset(large, range(1, 10**7, 4))
    assert peak(lambda: DistributedChunkedSampler(subset, num_replicas=64, rank=3)) < 16e6

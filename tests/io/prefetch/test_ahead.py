"""An order that a loop draws and a prefetcher looks at ahead: computed once, and however either ends."""

import gc
import itertools
import threading
import weakref
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, StackDataset, Subset

import wids
from tests.support import cache_shards as shards
from tests.support.children import PATIENCE_SECONDS, call_in_child
from tests.support.clocks import threads_named, wait_until
from wids.core.order import batching
from wids.core.prefetch import distance
from wids.core.prefetch.ahead import SharedBlocks


class Block(NamedTuple):
    """A block of a run."""

    number: int
    samples: np.ndarray


class Order:
    """A run of blocks of some lengths, which counts how many of them were computed."""

    def __init__(self, lengths, *, on_block=lambda _: None):
        self.lengths, self.on_block = lengths, on_block
        self.computed = []

    def blocks(self):
        """The blocks: number k has indices from its first position on."""
        first = 0
        for k, length in enumerate(self.lengths):
            self.on_block(k)
            self.computed.append(k)
            yield Block(k, np.arange(first, first + length))
            first += length

    def share(self):
        """As a sampler begins it."""
        return SharedBlocks(self)


@given(st.lists(st.integers(0, 40), max_size=30), st.lists(st.booleans(), max_size=80), st.integers(0, 60))
def test_each_block_is_computed_once(lengths, turns, burst):
    """In any turns, the loop gets all blocks, and the prefetcher all that a loader may still have to read."""
    order = Order(lengths)
    shared = order.share()
    drawn, looked = [], []
    loop, prefetcher = shared.draw(), shared.look()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distance, "LIMITS", distance.DistanceLimits(max_burst=burst))
        for is_loop in turns:
            if is_loop:
                drawn += [k for k, _ in itertools.islice(loop, 1)]
                continue
            due = sum(lengths[: max(len(drawn) - 1, 0)]) - burst
            for first, indices in itertools.islice(prefetcher, 1):
                assert indices.tolist() == [*range(first, first + len(indices))]
                skipped = [*range(looked[-1] + 1 if looked else 0, first)]
                assert all(position < due for position in skipped)
                looked += [*skipped, *indices.tolist()]
        assert drawn == [*range(len(drawn))]
        assert [k for k, _ in loop] == [*range(len(drawn), len(lengths))]
    assert order.computed == [*range(len(lengths))]


def test_threads_that_race():
    """Nothing is computed twice, lost or out of turn, and neither waits for the other's end."""
    order = Order([3] * 3000)
    shared, looked = order.share(), []
    thread = threading.Thread(target=lambda: looked.extend(first for first, _ in shared.look()))
    thread.start()
    drawn = [k for k, _ in shared.draw()]
    thread.join(PATIENCE_SECONDS)
    assert drawn == order.computed == [*range(3000)]
    assert looked == sorted(set(looked))
    assert looked[-1] == 3 * 2999


def test_a_loop_takes_what_is_there_while_another_block_is_computed():
    """However long the prefetcher's thread takes for one that is far ahead."""
    begun, go = threading.Event(), threading.Event()

    def wait(k):
        if k == 2:
            begun.set()
            assert go.wait(PATIENCE_SECONDS)

    shared = Order([5] * 4, on_block=wait).share()
    thread = threading.Thread(target=lambda: [*shared.look()])
    thread.start()
    try:
        assert begun.wait(PATIENCE_SECONDS)
        loop = shared.draw()
        assert [k for k, _ in itertools.islice(loop, 2)] == [0, 1]
    finally:
        go.set()
        thread.join(PATIENCE_SECONDS)
    assert [k for k, _ in loop] == [2, 3]


def test_a_prefetcher_that_does_not_look_costs_no_memory():
    """It ended, or is slow: what loaders have read is dropped for it, one block after the other."""
    order = Order([1000] * 500)
    shared = order.share()
    held = [sum(len(indices) for _, indices in shared._to_look) for _ in shared.draw()]
    assert max(held) <= distance.LIMITS.max_burst + 2000
    assert next(shared.look())[0] >= 499_000 - distance.LIMITS.max_burst - 1000


@pytest.mark.parametrize("is_loop_first", [True, False])
def test_an_error_is_not_the_end(is_loop_first):
    """Whoever comes to it first, the loop gets all blocks before it, and it."""

    def fail(k):
        if k == 3:
            raise MemoryError("no more")

    shared = Order([2] * 5, on_block=fail).share()
    loop, found = shared.draw(), []
    if is_loop_first:
        found += itertools.islice(loop, 3)
        with pytest.raises(MemoryError):
            next(loop)
    with pytest.raises(MemoryError):
        [*shared.look()]
    if not is_loop_first:
        with pytest.raises(MemoryError):
            found.extend(loop)
    assert [k for k, _ in found] == [0, 1, 2]


def test_a_forked_child_goes_on_by_itself():
    """Also where the parent's thread computes a block at that moment, which it never ends in the child."""
    begun, go = threading.Event(), threading.Event()

    def wait(k):
        if k == 3 and not begun.is_set():
            begun.set()
            assert go.wait(PATIENCE_SECONDS)

    shared = Order([2] * 6, on_block=wait).share()
    loop = shared.draw()
    next(loop)
    thread = threading.Thread(target=lambda: [*shared.look()])
    thread.start()
    try:
        assert begun.wait(PATIENCE_SECONDS)
        assert call_in_child(lambda: [k for k, _ in loop]) == [1, 2, 3, 4, 5]
    finally:
        go.set()
        thread.join(PATIENCE_SECONDS)
    assert [k for k, _ in loop] == [1, 2, 3, 4, 5]


def test_batches_are_planned_once(server, tmp_path, monkeypatch):
    """By the prefetcher or the loop, for it takes long; and what is prefetched is what is read."""
    planned, real = [], batching.Block

    def note(rows, rule):
        planned.append(rows.position)
        return real(rows, rule)

    monkeypatch.setattr(batching, "Block", note)
    rows, tags = 40, "abcdef"
    listed = [
        {"url": server.add(f"/{tag}.tar", shards.shard(tag, rows)), "nsamples": rows, "dataset": "d"} for tag in tags
    ]
    dataset = wids.ShardListDataset(listed, cache_dir=tmp_path / "cache", transformations=[], early_reads=False)
    sampler = wids.DistributedChunkedSampler(dataset, num_replicas=1, rank=0, chunksize=rows, window=1)
    lengths = np.arange(len(dataset)) % 7 + 1
    batches = wids.BucketBatchSampler(sampler, lengths=lengths, max_tokens=20, block=rows)
    found = []
    for batch in batches:
        found += [dataset[index]["__index__"] for index in batch]
    assert sorted(found) == [*range(len(dataset))]
    wait_until(lambda: not threads_named("wids-prefetch"))
    assert len(planned) == len(set(planned)) == len(tags)
    assert sorted(server.requests) == [f"/{tag}.tar" for tag in tags]


def test_an_iteration_that_is_left_is_freed(server, tmp_path):
    """With the blocks that were looked at ahead of it, and its prefetching, at once."""
    listed = [{"url": server.add("/a.tar", shards.shard("a", 40)), "nsamples": 40}]
    dataset = wids.ShardListDataset(listed, cache_dir=tmp_path / "cache", transformations=[])
    iteration = iter(wids.ChunkedSampler(dataset))
    next(iteration)
    gone = weakref.ref(iteration)
    gc.disable()
    try:
        del iteration
        assert gone() is None
    finally:
        gc.enable()
    wait_until(lambda: not threads_named("wids-prefetch"))


def remote(server, tmp_path, tags, rows=10, **options):
    """A dataset of remote shards of these names, with a cache of its own."""
    listed = [{"url": server.add(f"/{tag}.tar", shards.shard(tag, rows)), "nsamples": rows} for tag in tags]
    directory = tmp_path / f"cache of {tags}"
    return wids.ShardListDataset(listed, cache_dir=directory, transformations=[], **options)


@pytest.mark.parametrize("kind", ["tuple", "dict", "subset", "join"])
def test_all_datasets_of_a_stack_are_prefetched(server, tmp_path, kind):
    """An index of torch's StackDataset is one of each, also below a subset or a join: their shards come before use."""
    a, b = remote(server, tmp_path, "ab"), remote(server, tmp_path, "cd")
    dataset = StackDataset(x=a, y=b) if kind == "dict" else StackDataset(a, b)
    if kind == "subset":
        dataset = Subset(dataset, range(19, -1, -1))
    if kind == "join":
        dataset = ConcatDataset([dataset, StackDataset(b, a)])
    drawn = iter(wids.ChunkedSampler(dataset))
    first = next(drawn)
    wait_until(lambda: sorted(server.requests) == ["/a.tar", "/b.tar", "/c.tar", "/d.tar"])
    wait_until(lambda: not threads_named("wids-fetch"))
    assert len(dataset[first]) == 2
    assert sorted([first, *drawn]) == list(range(len(dataset)))


class Wrapper:
    """A program's own dataset over another one, which it holds somehow."""

    def __init__(self, held, count, **attributes):
        self.held, self.count = held, count
        vars(self).update(attributes)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return index


class Repeated(wids.ShardListDataset):
    """A subclass with a length of its own."""

    def __len__(self):
        return 2 * self.total_length


HOLDS = {
    "itself": lambda dataset: dataset,
    "list": lambda dataset: [dataset],
    "dict": lambda dataset: {"train": (dataset, 1)},
    "wrapper": lambda dataset: Wrapper(dataset, 20),
}


@pytest.mark.parametrize("hold", HOLDS.values(), ids=HOLDS)
def test_a_wrapper_that_hides_a_dataset_is_told_of(server, tmp_path, caplog, hold):
    """Once, with what to do; nothing is told of one whose shards are prefetched, or have no need to be."""
    dataset = remote(server, tmp_path, "ab")
    wrapper = Wrapper(hold(dataset), 20)
    for _ in range(2):
        next(iter(wids.ChunkedSampler(wrapper)))
    [told] = [record.getMessage() for record in caplog.records]
    assert told.startswith("a Wrapper reads a ShardListDataset, and which of its samples is not known")
    caplog.clear()
    shown = Wrapper(hold(dataset), 20, dataset=remote(server, tmp_path, "cd"), indices=range(20))
    drawn = iter(wids.ChunkedSampler(shown))
    next(drawn)
    wait_until(lambda: {"/c.tar", "/d.tar"} <= {*server.requests})
    for quiet in (Wrapper(remote(server, tmp_path, "ef", prefetch=False), 20), Wrapper([1, "x", None], 20)):
        next(iter(wids.ChunkedSampler(quiet)))
    assert not caplog.records


def test_a_dataset_is_not_searched_in_each_epoch(server, tmp_path, caplog):
    """Twice is enough, also for one that opens what it reads with its first sample."""

    class Asked:
        searches = 0

        def __wids__(self):
            Asked.searches += 1

    wrapper = Wrapper(Asked(), 20, late=None)
    sampler = wids.ChunkedSampler(wrapper)
    next(iter(sampler))
    wrapper.late = remote(server, tmp_path, "ab")
    for _ in range(4):
        next(iter(sampler))
    assert Asked.searches == 2
    assert "a Wrapper reads a ShardListDataset" in caplog.text
    listed = [Asked()] * 3
    for _ in range(4):  # these have no weak references
        next(iter(wids.ChunkedSampler(listed)))
    assert Asked.searches == 2 + 4 * 3


def test_a_subclass_with_a_length_of_its_own_is_told_of(server, tmp_path, caplog):
    """Which samples its indices are is as unknown."""
    listed = [{"url": server.add("/a.tar", shards.shard("a", 10)), "nsamples": 10}]
    dataset = Repeated(listed, cache_dir=tmp_path / "cache", transformations=[])
    next(iter(wids.ChunkedSampler(dataset)))
    assert "a Repeated reads a ShardListDataset" in caplog.text

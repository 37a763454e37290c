"""The order at its limits: nothing that an epoch, a state or a resume loses, repeats or costs unseen."""

import gc
import json
import random
import sys
import tracemalloc
import warnings
import weakref
from itertools import islice

import numpy as np
import pytest
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, Subset
from torchdata.stateful_dataloader import StatefulDataLoader

import wids
from tests.support.shards import write_shards
from wids.errors import StateError
from wids.order.mask import MarkedIndex, OwnIndex, RepeatedIndex
from wids.samplers import ChunkedSampler, DistributedChunkedSampler


class Numbers:
    """A dataset of its own indices; attributes are given."""

    def __init__(self, n, **attributes):
        self.n = n
        self.__dict__.update(attributes)

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return index


def alone(dataset, **options):
    """The sampler of the only rank."""
    return DistributedChunkedSampler(dataset, num_replicas=1, rank=0, **options)


# --- a subclass's own loop


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


# --- a state at any moment


@pytest.mark.parametrize("mode", [{}, {"epoch_size": 7000}])
@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_state_at_any_moment_is_true(mode, is_resumed):
    """Asked for between any two lines (by a signal handler, or another thread), a state is right to the sample."""
    sampler, before = alone(Numbers(9000), shuffle=False, **mode), 0
    if is_resumed:
        first = alone(Numbers(9000), shuffle=False, **mode)
        before = len(list(islice(first, 1000)))
        sampler.load_state_dict(first.state_dict())
    drawn, wrong, is_asking = before, [], False

    def ask(frame, event, _):
        nonlocal is_asking
        if is_asking or not frame.f_code.co_filename.endswith(("cursor.py", "iteration.py", "samplers.py")):
            return None if is_asking else ask
        is_asking = True
        try:
            position = sampler.state_dict()["position"]
            # An index that is on its way out may or may not be counted.
            if not drawn <= position <= drawn + 1:
                wrong.append(f"{frame.f_code.co_name}:{frame.f_lineno} {event}: {position} after {drawn}")
        except AttributeError as error:
            wrong.append(f"{frame.f_code.co_name}:{frame.f_lineno} {event}: {error}")
        finally:
            is_asking = False
        return ask

    running = iter(sampler)
    tracer = sys.gettrace()
    sys.settrace(ask)
    try:
        for _ in islice(running, 5000):
            drawn += 1
    finally:
        sys.settrace(tracer)
    assert drawn == before + 5000
    assert not wrong


# --- a state and what is set around it


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


# --- which dataset a state belongs to


def test_shards_of_the_same_names_in_other_places_of_the_list_are_another_dataset(tmp_path):
    """Two directories with shards of the same names and counts, listed the other way round: refused."""
    one, two = write_shards(tmp_path / "one", (6,)), write_shards(tmp_path / "two", (6,))
    sampler = alone(wids.ShardListDataset(one + two))
    list(islice(sampler, 5))
    with pytest.raises(StateError, match="dataset"):
        alone(wids.ShardListDataset(two + one)).load_state_dict(sampler.state_dict())


@pytest.mark.parametrize("form", ["https://example.com/get?name={}.tar", "/data/part#{}.tar"])
def test_shards_that_differ_behind_a_mark_are_another_dataset(form):
    """What tells shards apart may stand in a query, or behind a # in a file's name: another order is seen."""
    shards = [(form.format(k), 5) for k in range(2)]
    assert wids.ShardListDataset(shards).fingerprint != wids.ShardListDataset(shards[::-1]).fingerprint


def test_a_fingerprint_is_the_same_wherever_the_shards_lie():
    """Another place, and other signatures, are the same dataset; this is to stay when the two tests above pass."""
    places = ["/data/{}/{}.tar", "https://example.com/v2/{}/{}.tar?sig=a{}", "gs://bucket/{}/{}.tar"]
    prints = {
        wids.ShardListDataset([(place.format(name, k, k), 5) for name in "ab" for k in range(2)]).fingerprint
        for place in places
    }
    assert len(prints) == 1


# --- what stays in memory


@pytest.mark.parametrize("use", [iter, lambda sampler: next(iter(sampler)), list], ids=["made", "begun", "finished"])
def test_a_dataset_goes_with_the_last_that_holds_it(use):
    """An iteration leaves no reference cycle: a dataset's open files and leases end with it, not at some collection."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        dataset = Numbers(100)
        sampler, seen = alone(dataset), weakref.ref(dataset)
        use(sampler)
        del dataset, sampler
        assert seen() is None
    finally:
        if was_enabled:
            gc.enable()


def test_iterations_that_are_left_free_their_windows():
    """Epochs that a loop leaves early do not pile up, with the collector off as training programs run."""
    sampler = alone(Numbers(200_000), chunksize=200_000)
    next(iter(sampler))
    was_enabled = gc.isenabled()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(4):
            next(iter(sampler))
        # A window is 1.6 MB, and one of them is in use.
        assert tracemalloc.get_traced_memory()[0] < 2 * 1.6e6
    finally:
        tracemalloc.stop()
        if was_enabled:
            gc.enable()


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


# --- streams


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


# --- other datasets


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


# --- masks


@pytest.mark.parametrize("indices", [[OwnIndex(2), 1], [1, RepeatedIndex(2)]])
def test_marked_and_plain_indices_in_one_batch(tmp_path, indices):
    """Each sample is as its own index says, in a batch as alone."""
    dataset = wids.ShardListDataset(write_shards(tmp_path / "d", (4,)), fields=[".cls"])
    together = [sample.get("__valid__") for sample in dataset.__getitems__(indices)]
    assert together == [dataset[index].get("__valid__") for index in indices]


def test_masking_is_settled_when_an_iteration_begins():
    """A tail that is assigned later does not mark half of a running iteration."""
    sampler = alone(Numbers(9000))
    running = iter(sampler)
    next(running)
    sampler.tail = "mask"
    assert not any(isinstance(index, MarkedIndex) for index in running)


# --- a state that a loop's workers are ahead of


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

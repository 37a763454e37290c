"""`wids.resumable`: a loader that counts what it delivers, whose state is the place after its last batch."""

import copy
import gc
import itertools
import json
import multiprocessing
import pickle
import random
from functools import partial

import pytest
from torch.distributed.checkpoint.stateful import Stateful
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

import wids
from wids.errors import InputError, StateError

N = 53
pytestmark = pytest.mark.filterwarnings("error")


def lists(batches):
    """Batches as lists."""
    return [batch.tolist() if hasattr(batch, "tolist") else batch for batch in batches]


def make(kind="plain", *, workers=0, world=2, rank=1, size=4, data=None, **options):
    """A fresh loader, as a program that starts makes it; ``workers`` may be ``"threads"``: two of them."""
    more = {"num_workers": 2 if workers == "threads" else workers, "collate_fn": list, **options}
    resumable = partial(wids.resumable, workers="threads" if workers == "threads" else "processes")
    data = list(range(N)) if data is None else data
    settings = {"num_replicas": world, "rank": rank, "chunksize": 6, "window": 2}
    if workers:
        more["persistent_workers"] = kind == "persistent"
    if kind.startswith("mixture"):
        data = wids.mix({"a": (data[:22], 0.7), "b": (data[22:], 0.3)})
    if kind == "mixture, by source":
        return resumable(DataLoader(data, batch_sampler=wids.MixtureBatchSampler(data, size, **settings), **more))
    if kind == "buckets":
        sampler = wids.DistributedChunkedSampler(data, **settings)
        sampler = wids.BucketBatchSampler(sampler, lengths=[1 + k % 7 for k in range(N)], max_tokens=16)
        return resumable(DataLoader(data, batch_sampler=sampler, **more))
    if kind == "endless by source":
        data = wids.mix({"a": (data[:22], 0.7), "b": (data[22:], 0.3)})
        sampler = wids.MixtureBatchSampler(data, size, epochs=None, **settings)
        return resumable(DataLoader(data, batch_sampler=sampler, **more))
    settings |= {"epoch_size": 30} if kind == "stream" else {"epochs": None} if kind == "endless" else {}
    settings |= {"reshuffle": "epoch", "lanes": 5} if kind == "dealt" else {}
    sampler = wids.DistributedChunkedSampler(data, **settings)
    if kind == "batch sampler":
        sampler = BatchSampler(sampler, size, drop_last=True)
        return resumable(DataLoader(data, batch_sampler=sampler, **more))
    if kind == "no batches":
        return resumable(DataLoader(data, batch_size=None, sampler=sampler, **{**more, "collate_fn": None}))
    if kind == "chunked":
        sampler = wids.ChunkedSampler(data, chunksize=6)
    drop_last = kind == "drop_last"
    return resumable(DataLoader(data, batch_size=size, sampler=sampler, drop_last=drop_last, **more))


KINDS = ["plain", "drop_last", "batch sampler", "no batches", "stream", "dealt", "chunked", "persistent"]
KINDS += ["mixture", "mixture, by source", "buckets"]


def saved(loader):
    """The state, as a file has it."""
    text = json.dumps(loader.state_dict())
    assert len(text) < 1000
    return json.loads(text)


@pytest.mark.parametrize("workers", [0, "threads", pytest.param(2, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("kind", KINDS)
def test_every_batch_of_two_epochs_can_be_resumed_at(kind, workers):
    """Before the first, within the loop, after it: what is left of the epoch, then the next, with other workers."""
    loader, states, epochs = make(kind, workers=workers), [], []
    states.append((0, 0, saved(loader)))
    for epoch in range(3):
        epochs.append([])
        assert len(loader) == len(loader._loader)
        for batch in loader:
            epochs[-1] += lists([batch])
            states.append((epoch, len(epochs[-1]), saved(loader)))
        assert saved(loader) == states[-1][2]
        assert len(epochs[-1]) == len(loader)
    assert len({str(epoch) for epoch in epochs}) == 3
    rng = random.Random(kind)
    for epoch, step, state in [states[0], *rng.sample(states, 4), *(s for s in states if s[1] == len(epochs[s[0]]))]:
        if (epoch, step) >= (1, len(epochs[1])):
            continue
        again = make(kind, workers=rng.choice([0, 2, "threads"]) if workers == 2 else workers)
        again.load_state_dict(state)
        rest = epochs[epoch][step:]
        assert len(again) == len(epochs[epoch if rest else epoch + 1])
        assert lists(again) == (rest or epochs[epoch + 1])
        assert lists(again) == epochs[epoch + (1 if rest else 2)]


@pytest.mark.parametrize("kind", ["plain", "mixture, by source"])
def test_the_state_is_the_samplers_and_the_same_on_every_rank(kind):
    """Whatever workers have drawn ahead."""
    states = []
    for rank, workers in ((0, 0), (1, 2), (1, 1), (0, "threads")):
        loader = make(kind, rank=rank, workers=workers)
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        states.append(saved(loader))
    assert states == states[:1] * 4
    sampler = make(kind).batch_sampler
    sampler = sampler if kind != "plain" else sampler.sampler
    sampler.load_state_dict(states[0])
    assert {**sampler.state_dict(), "order": 0}.items() <= {**states[0], "order": 0}.items()
    loader = make(kind, rank=0)
    loader.load_state_dict(sampler.state_dict())
    assert saved(loader) == states[0]


@pytest.mark.parametrize("world", [1, 3, 5])
def test_other_ranks_and_batch_sizes(world):
    """The rest of the epoch in the same global order; ``len`` is what the epoch has had and will have."""
    whole = list(wids.DistributedChunkedSampler(range(N), num_replicas=1, lanes=2, chunksize=6, window=2))
    first = make(world=2, rank=0)
    batches = iter(first)
    next(batches), next(batches)
    rest = []
    for rank in range(world):
        loader = make(world=world, rank=rank, size=7)
        loader.load_state_dict(saved(first))
        rest.append(lists(loader))
        assert len(loader) == 2 + len(rest[-1])
        assert saved(loader)["batches"] == len(loader)
    rows = [list(itertools.chain(*batches)) for batches in rest]
    assert [i for row in zip(*rows, strict=True) for i in row][: N - 16] == whole[16:]


def test_chains_of_resumes():
    """Stopped at random batches again and again, and resumed by other ranks: the order of a run that was not."""
    rng, data, found = random.Random(0), list(range(60)), []
    state = saved(make(world=3, data=data))  # whose lanes all others take over
    whole = []
    for epoch in range(5):
        sampler = wids.DistributedChunkedSampler(data, num_replicas=1, lanes=3, chunksize=6, window=2)
        sampler.set_epoch(epoch)
        whole += list(sampler)
    while len(found) < len(whole):
        world = rng.choice([1, 2, 3])
        loaders = [make(world=world, rank=rank, size=2, data=data) for rank in range(world)]
        for loader in loaders:
            loader.load_state_dict(state)
        for batches in itertools.islice(zip(*loaders, strict=True), rng.randint(1, 6)):
            rows = [i for row in zip(*batches, strict=True) for i in row]
            found += rows[: 60 - len(found) % 60]  # the last may be repeated, for equal counts
        states = [saved(loader) for loader in loaders]
        assert all(each == states[0] for each in states)
        state = states[0]
    assert found == whole


# --- loops


@pytest.mark.parametrize("workers", [0, 2, "threads"])
@pytest.mark.parametrize("kind", ["plain", "persistent", "mixture, by source"])
def test_a_loop_that_is_left(kind, workers):
    """Its state is exact afterwards; a kept iterator goes on, another loop is the next epoch, and a load goes back."""
    epochs = [lists(make_epoch(kind, epoch)) for epoch in range(2)]
    loader = make(kind, workers=workers)
    batches = iter(loader)
    for step, batch in enumerate(batches, 1):
        assert batch == epochs[0][step - 1]
        if step == 2:
            break
    state = saved(loader)
    assert next(batches) == epochs[0][2]
    del batches
    gc.collect()
    after = saved(loader)
    again = make(kind)
    again.load_state_dict(after)
    assert lists(again) == epochs[0][3:]
    assert lists(loader) == epochs[1]
    loader.load_state_dict(state)
    assert saved(loader) == state
    assert lists(loader) == epochs[0][2:]


def make_epoch(kind, epoch):
    """A loader at an epoch."""
    loader = make(kind)
    loader.set_epoch(epoch)
    return loader


@pytest.mark.parametrize("workers", [0, "threads", pytest.param(2, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("kind", ["endless", "endless by source"])
def test_an_epoch_without_end_goes_on_with_the_next_batch(kind, workers):
    """A loop over it is left, and the next one loses nothing that workers have drawn ahead."""
    whole = list(itertools.islice(make(kind), 30))
    loader, found = make(kind, workers=workers), []
    for _ in range(3):
        found += [batch for _, batch in zip(range(7), loader, strict=False)]
    # zip() asks the range first, so no batch is taken and dropped.
    assert found == whole[:21]
    with pytest.raises(TypeError, match="it has no length"):
        len(loader)
    again = make(kind)
    again.load_state_dict(saved(loader))
    assert next(iter(again)) == whole[21]


@pytest.mark.parametrize("workers", [0, 2, "threads"])
def test_several_iterators(workers):
    """The state is that of the one which delivered last; one that was only made is none."""
    epochs = [lists(make_epoch("plain", epoch)) for epoch in range(2)]
    loader = make(workers=workers)
    first = iter(loader)
    assert lists([next(first), next(first)]) == epochs[0][:2]
    state = saved(loader)
    second = iter(loader)
    assert saved(loader) == state
    assert next(second) == epochs[1][0]
    again = make()
    again.load_state_dict(saved(loader))
    assert lists(again) == epochs[1][1:]
    assert next(first) == epochs[0][2]
    again.load_state_dict(saved(loader))
    assert lists(again) == epochs[0][3:]


def test_persistent_workers_have_one_iterator():
    """A loop that goes on after another has begun takes the batches of that one, and they count there."""
    epoch = lists(make_epoch("plain", 1))
    loader = make("persistent", workers=2)
    first, second = iter(loader), iter(loader)
    next(first)
    assert lists([next(second), next(first), next(second)]) == epoch[:3]
    again = make()
    again.load_state_dict(saved(loader))
    assert lists(again) == epoch[3:]


class Stranger(wids.MixtureBatchSampler):
    """A batch sampler whose state is its own."""

    def state_dict(self, batches=None):
        """As of the class."""
        return super().state_dict(batches)


def test_two_loops_over_a_strangers_batch_sampler_are_refused():
    """It knows the place of the newest alone."""
    data = wids.mix({"a": (list(range(22)), 0.7), "b": (list(range(22, N)), 0.3)})
    sampler = Stranger(data, 4, num_replicas=2, rank=1)
    loader = wids.resumable(DataLoader(data, batch_sampler=sampler, collate_fn=list))
    first, second = iter(loader), iter(loader)
    next(first), next(second)
    state = saved(loader)
    next(first)
    with pytest.raises(StateError, match="two loops read this loader at the same time"):
        loader.state_dict()
    next(second)
    assert saved(loader)["position"] == state["position"] + 8
    with pytest.raises(InputError, match="counted by the loader's batch_sampler, a Stranger; ask that"):
        _ = loader.batches_done


@pytest.mark.parametrize("workers", [0, "threads", pytest.param(2, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("kind", ["plain", "mixture, by source", "buckets"])
def test_a_sampler_of_several_loops(kind, workers):
    """Each loader says where its own loop is, whoever iterates their sampler, or chooses its epoch, meanwhile."""
    whole = lists(make(kind))
    loader = make(kind, workers=workers)
    first = iter(loader)
    assert lists(itertools.islice(first, 3)) == whole[:3]
    states = [saved(loader)]
    inner = loader.batch_sampler if kind != "plain" else loader.sampler
    other = {"sampler": inner, "batch_size": 4} if kind == "plain" else {"batch_sampler": inner}
    beside = wids.resumable(DataLoader(loader.dataset, collate_fn=list, **other))
    second = iter(beside)
    assert lists(itertools.islice(second, 2)) == lists(make_epoch(kind, 1))[:2]
    states.append(saved(loader))
    lists(second)
    states.append(saved(loader))
    inner.set_epoch(7)
    states.append(saved(loader))
    assert states == [states[0]] * 4
    again = make(kind)
    again.load_state_dict(states[0])
    assert lists(again) == whole[3:] == lists(first)


@pytest.mark.parametrize("workers", [0, "threads", pytest.param(2, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("kind", ["plain", "mixture, by source"])
def test_set_epoch(kind, workers):
    """It goes through to the sampler; one that is chosen after a loop was left is where the loader is then."""
    loader = make(kind, workers=workers)
    loader.set_epoch(3)
    assert lists(loader) == lists(make_epoch(kind, 3))
    for _ in loader:
        break
    loader.set_epoch(1)
    again = make(kind)
    again.load_state_dict(saved(loader))
    assert lists(again) == lists(make_epoch(kind, 1)) == lists(loader)
    state = saved(loader)
    loader.set_epoch(1)  # once more
    assert saved(loader)["position"] < state["position"]
    loader.load_state_dict(state)  # whose epoch was named, and nothing of it is left
    assert lists(loader) == []
    assert lists(loader) == lists(make_epoch(kind, 2))


def test_the_end_of_an_epoch_that_is_named():
    """Nothing is left of it: a loop that names the state's epoch goes on with the next."""
    loader = make()
    lists(loader)
    again = make()
    again.load_state_dict(saved(loader))
    again.set_epoch(0)
    assert lists(again) == []
    again.set_epoch(1)
    assert lists(again) == lists(make_epoch("plain", 1))


class Failing:
    """Numbers, of which one cannot be read."""

    bad: int | None = None

    def __len__(self):
        return N

    def __getitem__(self, index):
        if index == self.bad:
            raise RuntimeError("a sample that cannot be read")
        return index


@pytest.mark.parametrize("workers", [0, "threads", pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("step", [0, 2])
def test_a_batch_that_fails_was_not_delivered(step, workers):
    """A program that is mended begins with it, also where it is the first after a resume."""
    epoch = lists(make())
    data = Failing()
    loader = make(data=data, workers=workers)
    loader.load_state_dict(make_state(1))
    data.bad = epoch[1 + step][0]
    with pytest.raises(RuntimeError, match="a sample that cannot be read"):
        list(loader)
    state = saved(loader)
    assert state["batches"] == 1 + step
    again = make()
    again.load_state_dict(state)
    assert lists(again) == epoch[1 + step :]


def make_state(batches):
    """The state after so many batches."""
    loader = make()
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return saved(loader)


@pytest.mark.parametrize("kind", ["plain", "mixture, by source", "buckets", "no batches"])
def test_the_batches_of_the_epoch_are_counted(kind):
    """Those before a resume, too: a loop that accumulates gradients goes on with its count."""
    loader, counts = make(kind), []
    for step, _ in enumerate(loader, 1):
        counts.append(loader.batches_done)
        if step == 3:
            state = saved(loader)
    assert counts == list(range(1, len(loader) + 1))
    again = make(kind)
    again.load_state_dict(state)
    assert again.batches_done == 3
    assert [again.batches_done for _ in again] == counts[3:]


@pytest.mark.parametrize("kind", ["plain", "persistent"])
def test_a_loader_that_is_closed(kind):
    """Its workers end, as does the loop over it; the state stays, and another loop has new workers."""
    before, found = set(multiprocessing.active_children()), []

    def started():
        """Processes that are not of a test before: those may end at any moment."""
        return set(multiprocessing.active_children()) - before

    with make(kind, workers=2) as loader:
        for batch in loader:
            found.append(batch)
            assert len(started()) == 2
            if len(found) == 2:
                loader.close()
    assert not started()
    loader.close()
    assert found == lists(make())[:2]
    assert saved(loader) == make_state(2)
    assert lists(loader) == lists(make_epoch("plain", 1))
    loader.close()
    assert not started()


def test_validation_in_between_changes_nothing():
    """Another loader has a sampler of its own; the same dataset may be read by both."""
    loader, plain = make(workers=2), lists(make())
    validation = make("chunked")
    for step, batch in enumerate(loader, 1):
        assert batch == plain[step - 1]
        if step == 3:
            list(validation)
            assert saved(loader) == make_state(3)


# --- what it is


@pytest.mark.parametrize("kind", ["plain", "endless", "mixture, by source", "endless by source"])
def test_a_loop_that_reads_ahead(kind):
    """A prefetcher holds one batch more than was trained on: the state is the place before that."""

    def trained(loader):
        """Batches, each when the next was drawn."""
        batches = iter(loader)
        held = next(batches, None)
        while held is not None:
            batch, held = held, next(batches, None)
            yield batch

    def make_one():
        return wids.resumable(make(kind)._loader, reads_ahead=True)

    loader, found, states = make_one(), [], []
    for batch in itertools.islice(trained(loader), 10):
        found += lists([batch])
        states.append(saved(loader))
    for step, state in enumerate(states, 1):
        again = make_one()
        again.load_state_dict(state)
        if rest := found[step:]:
            assert lists(itertools.islice(trained(again), len(rest))) == rest
            assert saved(again) == states[-1]
    with pytest.raises(InputError, match="resumable already"):
        wids.resumable(loader)
    assert wids.resumable(loader, reads_ahead=True) is loader


class Ahead(DataLoader):
    """As that of Ray Train's `prepare_data_loader`: it is its own iterator, and has drawn a batch more."""

    def __iter__(self):
        self.batches = super().__iter__()
        self.held = next(self.batches, None)
        return self

    def __next__(self):
        batch, self.held = self.held, next(self.batches, None)
        if batch is None:
            raise StopIteration
        return batch


def test_a_loader_that_is_its_own_iterator():
    """Its epochs are those that were chosen, and what it has drawn ahead is not counted."""

    def make_one():
        plain = make()._loader
        return wids.resumable(Ahead(plain.dataset, batch_size=4, sampler=plain.sampler, collate_fn=list))

    loader, states = make_one(), []
    for epoch in range(2):
        loader.set_epoch(epoch)
        whole = lists(make_epoch("plain", epoch))
        for step, batch in enumerate(loader, 1):
            assert batch == whole[step - 1]
            states.append((saved(loader), whole[step:]))
        assert step == len(whole)
    for state, rest in states:
        again = make_one()
        again.load_state_dict(state)
        again.set_epoch(state["epoch"])
        assert lists(again) == rest


def test_it_has_what_its_loader_has():
    """Attributes are read and assigned there; it is a Stateful of torch's checkpoints, and no DataLoader."""
    loader = make(workers=2, pin_memory=False)
    assert (loader.batch_size, loader.num_workers, len(loader.dataset), loader.drop_last) == (4, 2, N, False)
    loader.num_workers = 0
    assert loader._loader.num_workers == 0
    assert isinstance(loader, Stateful)
    assert not isinstance(loader, DataLoader)
    assert wids.resumable(loader) is loader
    assert repr(loader).startswith("wids.resumable(<torch.utils.data.dataloader.DataLoader")
    with pytest.raises(AttributeError, match="no attribute 'numworkers'"):
        _ = loader.numworkers


@pytest.mark.parametrize("how", ["copy", "deepcopy", "pickle"])
def test_copies(how):
    """A copy has the sampler's place, as a copy of a DataLoader has: that of a deep one is the next iteration."""
    loader = make(collate_fn=None)
    batches = iter(loader)
    next(batches)
    makers = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda each: pickle.loads(pickle.dumps(each))}
    twin = makers[how](loader)
    assert saved(twin)["epoch"] == saved(twin.sampler)["epoch"] == (0 if how == "copy" else 1)
    assert lists(twin) == lists(make_epoch("plain", 1))
    assert lists([next(batches)]) == lists(make())[1:2]


class Stream(IterableDataset):
    """A dataset without indices."""

    def __iter__(self):
        return iter(range(3))


class Own(wids.ChunkedSampler):
    """One with an order of its own."""

    def __iter__(self):
        return reversed(list(super().__iter__()))


class Same(wids.ChunkedSampler):
    """One that yields what the sampler does."""

    state_dict, load_state_dict = wids.ChunkedSampler.state_dict, wids.ChunkedSampler.load_state_dict

    def __iter__(self):
        return map(int, super().__iter__())


class Batches(BatchSampler):
    """One that does something of its own."""


DATA = list(range(9))


def unordered():
    """As torch 2.6 makes it with ``in_order=False``; older versions lack the argument."""
    loader = DataLoader(DATA, sampler=wids.ChunkedSampler(DATA), num_workers=2)
    loader.in_order = False
    return loader


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (lambda: DATA, "the loader is a list; it must be a torch.utils.data.DataLoader"),
        (lambda: DataLoader(Stream()), "reads a Stream, whose order no sampler knows"),
        (unordered, "in_order=False: batches come as its workers finish them"),
        (lambda: DataLoader(DATA, shuffle=True), "sampler is a RandomSampler, whose position is not known; give"),
        (lambda: DataLoader(DATA), "sampler is a SequentialSampler, .* shuffle=False there"),
        (lambda: DataLoader(DATA, batch_size=None), "sampler is a SequentialSampler"),
        (lambda: DataLoader(DATA, sampler=Own(DATA)), "sampler, Own, has an __iter__ of its own"),
        (
            lambda: DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 2, drop_last=False)),
            "sampler is a RandomSampler",
        ),
        (
            lambda: DataLoader(DATA, batch_sampler=Batches(wids.ChunkedSampler(DATA), 2, drop_last=False)),
            r"batch_sampler is a Batches, .* needs state_dict\(batches=...\)",
        ),
        (lambda: DataLoader(DATA, batch_sampler=wids.ChunkedSampler(DATA)), "batch_sampler is a ChunkedSampler"),
    ],
)
def test_what_cannot_be_counted_is_refused(loader, words):
    """At once, with what to do."""
    with pytest.raises(InputError, match=words):
        wids.resumable(loader())


def test_a_subclass_that_keeps_the_state_is_counted():
    """As samplers say it of themselves."""
    make_one = lambda: wids.resumable(DataLoader(DATA, sampler=Same(DATA), batch_size=2, collate_fn=list))  # noqa: E731
    whole, loader = lists(make_one()), make_one()
    batches = iter(loader)
    next(batches)
    again = make_one()
    again.load_state_dict(saved(loader))
    assert lists(again) == whole[1:]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batches": "x"}, "the state's batches is 'x', not an integer"),
        ({"batches": -1}, "batches is -1, below 0"),
        ({"batches": 2**70}, "batches is 1180591620717411303424, above"),
        ({"order": "{"}, "order is '{', not a mapping; it is damaged"),
        ({"order": "[]"}, "order is .*, not a mapping; it is damaged"),
        ({"kind": "x"}, "not the state of a wids sampler"),
        ({"position": None}, "position is None, not an integer"),
    ],
)
def test_damaged_states(change, words):
    """Are refused, and leave the loader where it is."""
    loader = make()
    with pytest.raises(StateError, match=words):
        loader.load_state_dict({**make_state(2), **change})
    assert saved(loader) == saved(make())


def test_a_state_of_another_order_is_refused():
    """The message names what differs."""
    state = make_state(2)
    other = DataLoader(range(N), sampler=wids.DistributedChunkedSampler(range(N), shuffle=False, chunksize=6))
    with pytest.raises(StateError, match=r"shuffle.*: True there, False here"):
        wids.resumable(other).load_state_dict(state)


def test_a_mixture_is_reweighted_on_load():
    """``reweight=True`` goes through to the sampler."""
    loader = make("mixture")
    next(iter(loader))
    data = wids.mix({"a": (list(range(22)), 0.5), "b": (list(range(22, N)), 0.5)})
    sampler = wids.DistributedChunkedSampler(data, num_replicas=2, rank=1, chunksize=6, window=2)
    again = wids.resumable(DataLoader(data, sampler=sampler, batch_size=4))
    with pytest.raises(StateError, match="weights are not the mixture's"):
        again.load_state_dict(saved(loader))
    again.load_state_dict(saved(loader), reweight=True)
    assert len(json.loads(saved(again)["order"])["weights"]["from"]) == 2


def test_without_it_the_warning_names_it():
    """The state of a sampler whose loader's workers are ahead."""
    loader = make(workers=2)._loader
    batches = iter(loader)
    next(batches)
    with pytest.warns(UserWarning, match=r"take the state of wids.resumable\(loader\), which counts"):
        loader.sampler.state_dict()
    loader = make(workers=2)
    for _ in range(2):
        saved(loader)
        next(iter(loader))

"""Augmentation that repeats exactly: `wids.seeded` and `wids.rng`, in loops, loaders, ranks, resumes and mixtures."""

import functools
import hashlib
import multiprocessing
import pickle
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import wids
from tests.support.clocks import PATIENCE_SECONDS
from tests.support.goldens import read_golden
from tests.support.shards import write_shard, write_shards, write_tar
from wids.errors import InputError, TooManyErrorsError

COUNTS = (9, 0, 14, 13)
STARTS = [(0, None), (2, "fork"), (4, "fork"), (2, "spawn")]
# random.random(), numpy.random.random() and the bits of `wids.rng` for the seed 5.
GOLDEN = tuple(read_golden("seeds.json")["generators"])


def draw():
    """A number of each generator of the process."""
    return random.random(), float(np.random.random()), float(torch.rand(()))  # noqa: NPY002 - what transforms use


def augment(sample):
    """A sample's number in the data, its index, and what is random about it."""
    return int(sample[".cls"]), sample["__index__"], *draw(), int(wids.rng(sample).integers(1 << 40))


@wids.seeded
def augment_at_once(sample):
    """The same by a decorator."""
    return augment(sample)


def fail(sample):
    """Draws, and fails."""
    draw()
    raise KeyError(sample[".cls"])


def states():
    """The generators of the process, to compare."""
    arrays = np.random.get_state()  # noqa: NPY002
    return random.getstate(), arrays[1].tobytes(), arrays[2:], torch.get_rng_state().numpy().tobytes()


def samples_of(dataset, world=1, start=STARTS[0], *, state=None, most=None, epoch=None, **options):
    """What the ranks' loaders yield, as it is dealt; and the state after that."""
    rows = []
    for rank in range(world):
        sampler = wids.DistributedChunkedSampler(
            dataset, num_replicas=world, rank=rank, lanes=3, chunksize=4, seed=1, sample_seeds=True, **options
        )
        if state is not None:
            sampler.load_state_dict(state)
        if epoch is not None:
            sampler.set_epoch(epoch)
        workers, context = start
        loader = DataLoader(
            *(dataset, 4), sampler=sampler, num_workers=workers, multiprocessing_context=context, collate_fn=list
        )
        rows.append(list(chain.from_iterable(islice(loader, most))))
    return list(chain(*zip(*rows, strict=True))), sampler.state_dict(consumed=len(rows[-1]))


def digest(samples):
    """Of samples in order."""
    return hashlib.blake2b(repr(samples).encode(), digest_size=8).hexdigest()


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """The shards of 36 samples."""
    return write_shards(tmp_path_factory.mktemp("seeds") / "d", COUNTS)


@pytest.fixture
def dataset(shards):
    """Of augmented samples."""
    return wids.ShardListDataset(shards).add_transform(wids.seeded(augment))


CASES = [
    pytest.param(world, start, resumes, marks=pytest.mark.thorough if start[1] == "spawn" else ())
    for start in STARTS
    for world in (1, 3)
    for resumes in (False, True)
    if resumes or start[1] != "spawn"
]


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")  # of machines with less cores
@pytest.mark.parametrize(("world", "start", "resumes"), CASES)
def test_an_augmented_epoch(dataset, world, start, resumes):
    """Its digest is the same for any workers, start method and ranks, and in parts of different ones."""
    expected, _ = samples_of(dataset)
    assert sorted(number for number, *_ in expected) == list(range(36))
    assert len({sample[2:] for sample in expected}) == 36
    before, state = samples_of(dataset, 4 - world, STARTS[1], most=2 if world == 1 else 3) if resumes else ([], None)
    found, _ = samples_of(dataset, world, start, state=state)
    assert digest(before + found) == digest(expected)


def test_the_next_pass_is_another_one(dataset):
    """In the next epoch every sample is another one, and the same again in the same epoch; so in passes of a stream."""
    first, second, again = (sorted(samples_of(dataset, epoch=epoch)[0]) for epoch in (0, 1, 0))
    assert first == again
    assert [sample[:2] for sample in first] == [sample[:2] for sample in second]
    assert not {value for sample in first for value in sample[2:]} & {
        value for sample in second for value in sample[2:]
    }
    stream, _ = samples_of(dataset, 3, epochs=2)
    assert (sorted(stream[:36]), sorted(stream[36:])) == (first, second)


def test_a_mixture_that_repeats_samples(shards, tmp_path):
    """Each time a sample comes it is another one, for any ranks and workers; here by a mixture's transformation."""
    small = wids.ShardListDataset(write_shards(tmp_path / "d", (3,)))
    mixture = wids.mix({"all": (wids.ShardListDataset(shards), 0.5), "small": (small, 0.5)})
    mixture.add_transform(wids.seeded(augment))
    found, _ = samples_of(mixture, epoch_size=48)
    assert len([index for _, index, *_ in found]) == 48
    assert len({sample[2:] for sample in found}) == 48
    for world, start in ((3, STARTS[0]), (2, STARTS[1])):
        assert samples_of(mixture, world, start, epoch_size=48)[0] == found


def test_copies_of_a_sample_by_weights(dataset):
    """They differ, and are the same for any ranks."""
    weights = np.arange(36) % 4
    found, _ = samples_of(dataset, weights=weights)
    assert len({sample[0] for sample in found}) < len({sample[2:] for sample in found}) == 36
    assert samples_of(dataset, 3, STARTS[1], weights=weights)[0] == found


def test_repeated_samples_are_the_same_again(dataset):
    """With tail="mask" they can be told apart by that alone."""
    dataset.transformations = [wids.seeded(lambda sample: (sample["__index__"], sample["__valid__"], *draw()))]
    found, _ = samples_of(dataset, 5, tail="mask")
    assert [valid for _, valid, *_ in found] == [True] * 36 + [False] * 4
    assert {(i, *values) for i, _, *values in found[36:]} < {(i, *values) for i, _, *values in found[:36]}


def test_a_substitute_has_the_seed_of_the_sample_it_stands_for(tmp_path):
    """For any ranks; and a sample without a seed is no bad sample: that is raised at once."""
    good = {f"{k}.cls": b"%d" % k for k in range(8)}
    shard = write_tar(tmp_path / "d.tar", {**good, "3.cls": b"not a number"})
    dataset = wids.ShardListDataset([(shard, 8)], on_error="substitute", max_errors=1.0)
    dataset.add_transform(wids.seeded(lambda sample: (sample["__substitute_for__"], sample["__seed__"], *draw())))
    whole = wids.ShardListDataset([(write_shard(tmp_path / "e.tar", 8), 8)])
    whole.add_transform(wids.seeded(lambda sample: (sample["__index__"], sample["__seed__"], *draw())))
    expected = {seed: values for _, seed, *values in samples_of(whole)[0]}
    for world in (1, 2):
        found, _ = samples_of(dataset, world)
        assert {seed: values for _, seed, *values in found} == expected
        assert [place for place, *_ in found if place >= 0] == [3]
    for read in (lambda: dataset[0], lambda: dataset.__getitems__([0, 1])):
        with pytest.raises(InputError, match="no __seed__"):
            read()
    with pytest.raises(TooManyErrorsError):
        wids.ShardListDataset([(shard, 8)], on_error="substitute", max_errors=0.01).add_transform(fail)[0]


@pytest.mark.parametrize("sample", [{"__key__": "a", "__index__": 4}, (1, 2), 7, None])
def test_without_a_seed(sample):
    """A typed error that names the sample and says what to do; the generators are as they were."""
    before = states()
    for function in (wids.rng, wids.seeded(augment)):
        with pytest.raises(InputError, match=r"no __seed__; .*sample_seeds=True") as caught:
            function(sample)
        notes = getattr(caught.value, "__notes__", [])
        assert [note[:19] for note in notes] == (["sample 4, key 'a', "] if isinstance(sample, dict) else [])
    assert states() == before
    with pytest.raises(TypeError, match="transform is 7; it must be a function"):
        wids.seeded(7)


@pytest.mark.parametrize("seed", ["5", None, 1.5, -1, 1 << 63, [5], torch.tensor([5, 6]), np.array([5, 6])])
def test_a_seed_that_no_sampler_gave(seed):
    """A typed error, such as for a batch; the generators are as they were."""
    before = states()
    for function in (wids.rng, wids.seeded(augment)):
        with pytest.raises(InputError, match=r"__seed__ is .*; it must be an integer"):
            function({"__seed__": seed})
    assert states() == before


@pytest.mark.parametrize("seed", [np.int64(5), np.uint64(5), torch.tensor(5)])
def test_a_seed_of_another_type(seed):
    """The same numbers."""
    drawn = wids.seeded(lambda sample: (*draw(), wids.rng(sample).random()))
    assert drawn({"__seed__": seed}) == drawn({"__seed__": 5})


def test_a_generator_function():
    """What it yields would be drawn from generators that were put back."""

    def late(sample):
        yield sample, random.random()

    class Late:
        def __call__(self, sample):
            yield from late(sample)

    for function in (late, Late(), functools.partial(late)):
        with pytest.raises(TypeError, match="a generator function"):
            wids.seeded(function)


class Noise:
    """Augmentation with a setting."""

    def __init__(self, scale):
        self.scale = scale

    @wids.seeded
    def add(self, sample):
        """A number of the sample's own."""
        return random.random() * self.scale


def test_a_method():
    """A decorator in a class; also in another process."""
    sample = {"__seed__": 5}
    one, ten = Noise(1), Noise(10)
    assert ten.add(sample) == one.add(sample) * 10
    assert pickle.loads(pickle.dumps(ten.add))(sample) == ten.add(sample)
    assert Noise.add is Noise.__dict__["add"]


def test_generators_are_put_back():
    """After a call, a failed one, and one within another, the program's own numbers go on as if there were none."""
    random.gauss(0, 1)  # which keeps a second number for the next call
    before = states()
    first = wids.seeded(lambda _: draw())({"__seed__": 5})
    with pytest.raises(KeyError):
        wids.seeded(fail)({"__seed__": 5, ".cls": "3"})
    inner = wids.seeded(lambda sample: [draw(), wids.seeded(lambda _: draw())({"__seed__": 6}), draw()])
    found = inner({"__seed__": 5})
    assert states() == before
    assert found[0] == first
    assert found[1] == wids.seeded(lambda _: draw())({"__seed__": 6})
    assert found[2] == wids.seeded(lambda _: [draw(), draw()][1])({"__seed__": 5})


def test_generators_are_independent():
    """The three of the process and `wids.rng` have numbers of their own, and other ones for other samples."""
    found = [wids.seeded(lambda sample: (*draw(), wids.rng(sample).random()))({"__seed__": k}) for k in range(50)]
    assert len({value for values in found for value in values}) == 200


def test_numbers_are_pinned():
    """What generators promise never to change, as long as seeds do not."""
    sample = {"__seed__": 5}
    found = wids.seeded(lambda _: (random.random(), np.random.random()))(sample)  # noqa: NPY002
    assert (*found, wids.rng(sample).bit_generator.random_raw()) == GOLDEN
    assert wids.rng(sample).random(3).tolist() == wids.rng(sample).random(3).tolist()


def test_threads_take_turns():
    """Each has its sample's numbers, however many draw at the same time."""
    function = wids.seeded(lambda _: [draw() for _ in range(20)])
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(function, [{"__seed__": k} for k in range(200)]))
    assert found == [function({"__seed__": k}) for k in range(200)]


def test_a_process_that_is_forked_in_the_middle_of_a_call():
    """Another thread has the generators, and stays in its call: the child does not wait for it."""
    arrived, leave = threading.Event(), threading.Event()

    def stay(_):
        arrived.set()
        assert leave.wait(PATIENCE_SECONDS)

    expected = wids.seeded(lambda _: draw())({"__seed__": 5})
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(wids.seeded(stay), {"__seed__": 1})
        assert arrived.wait(PATIENCE_SECONDS)
        try:
            context = multiprocessing.get_context("fork")
            here, there = context.Pipe()
            child = context.Process(target=lambda: there.send(wids.seeded(lambda _: draw())({"__seed__": 5})))
            child.start()
            assert here.poll(PATIENCE_SECONDS)
            assert here.recv() == expected
            child.join(PATIENCE_SECONDS)
        finally:
            leave.set()
        call.result()


def test_functions_go_to_other_processes():
    """Given or by a decorator; they print as what they are."""
    sample = {"__seed__": 5, "__index__": 0, ".cls": "1"}
    assert pickle.loads(pickle.dumps(augment_at_once)) is augment_at_once
    given = pickle.loads(pickle.dumps(wids.seeded(augment)))
    assert given(sample) == augment_at_once(sample) == wids.seeded(augment)(sample)
    assert (repr(given), augment_at_once.__name__) == ("wids.seeded(augment)", "augment_at_once")


def test_torch_is_not_needed():
    """Where nothing has imported it, nothing does."""
    program = """if True:
        import random, sys, wids
        sample = {"__seed__": 5}
        print(wids.seeded(lambda _: random.random())(sample), wids.rng(sample).bit_generator.random_raw())
        assert "torch" not in sys.modules
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(GOLDEN[0]), str(GOLDEN[2])]

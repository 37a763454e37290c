"""Threads in place of worker processes; that each batch of each kind can be resumed at is in `test_loaders`."""

import copy
import multiprocessing
import pickle
import queue
import random
import subprocess
import sys
import threading
import warnings
from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader

import wids
from tests.support.clocks import PATIENCE_SECONDS, join_threads, threads_named, wait_until
from tests.support.shards import write_index
from wids import loader_threads
from wids.errors import InputError, StateError

N = 48
pytestmark = pytest.mark.filterwarnings("error")


class Numbers:
    """Numbers; each thread that comes to a closed gate waits there.

    Attributes:
        asked: the numbers, in the order in which they were asked for. gate: is open at first.
    """

    def __init__(self):
        self.asked, self.gate = [], threading.Event()
        self.gate.set()

    def __len__(self):
        return N

    def __getitem__(self, index):
        self.asked.append(int(index))
        assert self.gate.wait(PATIENCE_SECONDS)
        return int(index)


class Drawn(wids.ChunkedSampler):
    """A sampler that counts what is drawn."""

    drawn = 0

    def __iter__(self):
        for index in super().__iter__():
            self.drawn += 1
            yield index

    state_dict, load_state_dict = wids.ChunkedSampler.state_dict, wids.ChunkedSampler.load_state_dict


def make(data, *, count=2, size=4, sampler=None, **options):
    """A loader with threads."""
    sampler = wids.ChunkedSampler(data, chunksize=8, shuffle=True) if sampler is None else sampler
    given = {"batch_size": size, "sampler": sampler, "collate_fn": list, **options}
    return wids.resumable(DataLoader(data, num_workers=count, **given), workers="threads")


@pytest.fixture(autouse=True)
def _none_is_left():
    """Threads end with their iteration."""
    yield
    join_threads("wids-loader")


def test_batches_are_made_at_the_same_time_and_come_in_order():
    """The second is there before the first."""
    data, first, done = Numbers(), threading.Event(), queue.SimpleQueue()
    expected = list(wids.resumable(DataLoader(data, 4, sampler=wids.ChunkedSampler(data), collate_fn=list)))

    def collate(samples):
        if samples == expected[0]:
            assert first.wait(PATIENCE_SECONDS)
        elif samples == expected[1]:
            first.set()
        done.put(samples)
        return samples

    assert list(make(data, collate_fn=collate, sampler=wids.ChunkedSampler(data))) == expected
    assert done.get() == expected[1]


@pytest.mark.parametrize(("factor", "count"), [(None, 2), (3, 2), (1, 1)])
def test_as_many_batches_are_made_ahead_as_with_processes(factor, count):
    """``prefetch_factor`` for each thread, two by default; and no more, however long the loop takes."""
    data = Numbers()
    sampler = Drawn(data)
    loader = make(data, sampler=sampler, count=count, prefetch_factor=factor)
    ahead = count * (factor or 2)
    assert [sampler.drawn for _ in loader] == [min(4 * (k + ahead), N) for k in range(1, 13)]


def test_a_sampler_says_that_its_state_is_ahead():
    """As with processes: the loader's is the one."""
    data = Numbers()
    loader = make(data)
    next(batches := iter(loader))
    with pytest.warns(UserWarning, match="batches that workers of a DataLoader have drawn ahead"):
        assert loader.sampler.state_dict()["position"] == 20
    assert loader.state_dict()["position"] == 4
    batches.close()


def test_a_loop_that_is_left_ends_its_threads():
    """After the batch at hand, and nothing else is read."""
    data = Numbers()
    loader = make(data)
    for _ in loader:
        data.gate.clear()
        break
    assert threads_named("wids-loader")
    data.gate.set()
    join_threads("wids-loader")
    assert len(data.asked) <= 4 * (1 + 2 * 2)
    assert not loader_threads._running
    assert loader.state_dict()["position"] == 4


@pytest.mark.parametrize("how", ["close", "del", "error", "over"])
def test_an_iteration_that_is_over_has_no_threads(how):
    """However it ends, and before the iterator itself is forgotten."""
    data, batches = Numbers(), None

    def collate(samples):
        if how == "error" and len(data.asked) > 20:
            raise ValueError("no use")
        return samples

    loader = make(data, collate_fn=collate)
    batches = iter(loader)
    next(batches)
    if how == "close":
        loader.close()
        assert list(batches) == []
    elif how == "error":
        with pytest.raises(ValueError, match="no use"):
            list(batches)
    elif how == "over":
        assert len(list(batches)) == 11
    else:
        del batches
    join_threads("wids-loader")
    assert not loader_threads._running


PROGRAM = """
import atexit, os, signal, sys, threading, time
import torch
from torch.utils.data import DataLoader
import wids
from wids import loader_threads

if sys.argv[1] == "stuck":
    atexit.unregister(loader_threads._end)
    atexit.register(loader_threads._end, 0.05)
data, never, began = list(range(48)), threading.Event(), threading.Event()
loaded = []

def collate(samples):
    loaded.append(samples)
    if sys.argv[1] == "stuck" and len(loaded) > 1:
        never.wait()
    if sys.argv[1] in ("busy", "interrupted") and len(loaded) > 1:
        began.set()
        while True:  # hours of short calls of torch, which would abort the process if they lost the interpreter
            torch.rand(64, 64) @ torch.rand(64, 64)
    return samples

sampler = wids.ChunkedSampler(data, shuffle=False)
loader = DataLoader(data, 4, sampler=sampler, num_workers=2, collate_fn=collate)
loader = wids.resumable(loader, workers="threads")
batches = iter(loader)
print(next(batches))
if sys.argv[1] == "raises":
    raise ValueError("of the program")
if sys.argv[1] in ("busy", "interrupted"):
    assert began.wait(60)
if sys.argv[1] == "interrupted":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    end, join = loader_threads._end, threading.Thread.join

    def interrupt(thread, timeout=None):
        threading.Thread.join = join
        os.kill(os.getpid(), signal.SIGINT)
        join(thread, timeout)

    threading.Thread.join = interrupt
if sys.argv[1] == "busy":
    sys.exit(3)
"""


@pytest.mark.parametrize(("how", "code"), [("left", 0), ("raises", 1), ("stuck", 0), ("busy", 3), ("interrupted", 0)])
def test_a_program_that_ends_within_its_loop(how, code):
    """Ends with its own exit code, also where a batch would take hours, or a thread never ends; after Ctrl-C, too."""
    program = [sys.executable, "-W", "error", "-c", PROGRAM, how]
    done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert (done.returncode, done.stdout) == (code, "[0, 1, 2, 3]\n")
    assert done.stderr.count("\n") <= (4 if code else 0), done.stderr


def test_the_error_of_a_sample_says_which_it_is(tmp_path):
    """As without workers: the exception itself, with the sample's notes; the batches before it have come."""
    index = write_index(tmp_path, (8, 8))

    def fail(sample):
        if sample["__index__"] == 9:
            raise KeyError("no use")
        return sample["__index__"]

    dataset = wids.ShardListDataset(index, transformations=fail)
    found, loader = [], make(dataset, sampler=wids.ChunkedSampler(dataset, shuffle=False))
    with pytest.raises(KeyError, match="no use") as raised:
        found.extend(loader)
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert any("key 's" in note and "sample 9" in note for note in raised.value.__notes__), raised.value.__notes__
    assert loader.state_dict()["position"] == 8


def test_the_error_of_a_sampler_comes_in_its_turn():
    """The batches before it are not lost."""
    data = Numbers()

    class Failing(Drawn):
        state_dict, load_state_dict = wids.ChunkedSampler.state_dict, wids.ChunkedSampler.load_state_dict

        def __iter__(self):
            for index in super().__iter__():
                if self.drawn == 10:
                    raise ValueError("no order")
                yield index

    found, loader = [], make(data, sampler=Failing(data))
    with pytest.raises(ValueError, match="no order"):
        found.extend(loader)
    assert len(found) == 2


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, KeyboardInterrupt])
def test_a_sampler_that_ends_the_program(error):
    """The batches before it are not lost, but to Ctrl-C; and no thread is left, whoever keeps the error."""
    data = Numbers()

    class Ending(Drawn):
        state_dict, load_state_dict = wids.ChunkedSampler.state_dict, wids.ChunkedSampler.load_state_dict

        def __iter__(self):
            for index in super().__iter__():
                if self.drawn == 24:
                    raise error
                yield index

    found, loader = [], make(data, sampler=Ending(data))
    with pytest.raises(error) as kept:
        found.extend(loader)
    join_threads("wids-loader")
    assert kept.value is not None
    assert len(found) == (1 if error is KeyboardInterrupt else 5)
    assert loader.state_dict()["position"] == 4 * len(found)


def test_a_batch_that_takes_too_long():
    """The DataLoader's ``timeout``, and its error."""
    data = Numbers()
    data.gate.clear()
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.01 seconds"):
        next(iter(make(data, timeout=0.01)))
    data.gate.set()


@pytest.mark.parametrize("step", ["_set_up", "start"])
def test_a_thread_that_cannot_begin(monkeypatch, step):
    """Is an error of the loop, which waits for none; those that have begun end."""
    calls = []

    def fail(*_):
        calls.append(step)
        if len(calls) == 2:
            raise RuntimeError("can't start new thread")
        return before(*_)

    owner = loader_threads._Work if step == "_set_up" else threading.Thread
    before = getattr(owner, step)
    monkeypatch.setattr(owner, step, fail)
    threads = torch.get_num_threads()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        next(iter(make(Numbers())))
    monkeypatch.undo()
    join_threads("wids-loader")
    assert torch.get_num_threads() == threads
    loader_threads._end()
    assert len(list(make(Numbers()))) == 12


def test_a_batch_that_raises_stop_iteration():
    """Does not end the epoch, as if it were over."""

    def collate(samples):
        return next(iter(())) if len(samples) == 4 else samples

    loader = make(Numbers(), collate_fn=collate)
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        list(loader)
    assert loader.state_dict()["position"] == 0


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_modes_of_the_loop(mode):
    """Hold in its threads, as in a process that is forked then."""
    with mode():
        expected = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        loader = make(Numbers(), collate_fn=lambda _: (torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        assert set(loader) == {expected}


def test_settings_that_are_assigned_later():
    """Are looked at when an iteration begins: no epoch is empty."""
    loader = make(Numbers())
    loader.num_workers = 0
    with pytest.raises(InputError, match="needs num_workers of at least 1"):
        list(loader)


def test_pinned_memory(monkeypatch):
    """In the threads, which use the device of the loop."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None:
        monkeypatch.setattr(accelerator, "is_available", lambda: True)
        monkeypatch.setattr(accelerator, "current_accelerator", lambda: torch.device("cuda"))
    devices = queue.SimpleQueue()
    monkeypatch.setattr(torch.cuda, "set_device", devices.put)

    class Batch:
        pinned = None

        def __init__(self, samples):
            self.samples = samples

        def pin_memory(self):
            self.pinned = threading.current_thread().name
            return self

    names = [batch.pinned for batch in make(Numbers(), collate_fn=Batch, pin_memory=True)]
    assert all(name.startswith("wids-loader") for name in names)
    assert [devices.get(), devices.get()] == [3, 3]
    assert [batch.pinned for batch in make(Numbers(), collate_fn=Batch)] == [None] * 12


def test_threads_of_torch():
    """One in each of ours, as in torch's workers; the loop has as many as before, and so have threads after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        counts = list(make(Numbers(), collate_fn=lambda _: torch.get_num_threads()))
        assert (set(counts), torch.get_num_threads()) == ({1}, 3)
        found = queue.SimpleQueue()
        thread = threading.Thread(target=lambda: found.put(torch.get_num_threads()))
        thread.start()
        thread.join(PATIENCE_SECONDS)
        assert found.get() == 3
    finally:
        torch.set_num_threads(before)


def test_the_generators_of_the_loop_are_as_with_processes():
    """Each iteration takes one number of torch's generator, or of the loader's own."""
    found = []
    for count, workers in ((0, "processes"), (2, "threads")):
        own = torch.Generator().manual_seed(3)
        torch.manual_seed(3)
        for generator in (None, own):
            data = Numbers()
            loader = DataLoader(data, 4, sampler=wids.ChunkedSampler(data), num_workers=count, generator=generator)
            list(wids.resumable(loader, workers=workers))
        found.append([torch.rand(2, generator=own).tolist(), torch.rand(2).tolist()])
    assert found[0] == found[1]


def test_seeds_of_samples(tmp_path):
    """`wids.rng` has the numbers that it has without threads; `wids.seeded` would set the generators of the loop."""
    dataset = wids.ShardListDataset(
        write_index(tmp_path, (8, 8)), transformations=lambda sample: wids.rng(sample).random()
    )
    sampler = wids.ChunkedSampler(dataset, sample_seeds=True)
    expected = list(DataLoader(dataset, 4, sampler=sampler, collate_fn=list))
    assert list(make(dataset, sampler=wids.ChunkedSampler(dataset, sample_seeds=True))) == expected
    dataset.transformations = wids.seeded(lambda sample: random.random())
    random.seed(5)
    with pytest.raises(InputError, match=r"with workers='threads' use wids\.rng\(sample\), or worker processes"):
        list(make(dataset, sampler=wids.ChunkedSampler(dataset, sample_seeds=True)))
    assert random.random() == random.Random(5).random()
    assert len(list(DataLoader(dataset, 4, sampler=sampler, collate_fn=list))) == 4


@pytest.mark.skipif(not hasattr(multiprocessing.get_context("fork"), "Process"), reason="needs forks")
@pytest.mark.filterwarnings("default:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_has_no_threads_of_its_parent():
    """An iteration that it has a copy of says so, instead of waiting for ever; one of its own is whole."""
    data = Numbers()
    loader = make(data)
    batches = iter(loader)
    next(batches)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=partial(_in_child, loader, batches, answers))
    child.start()
    assert (answers.get(), answers.get()) == ("StateError", 12)
    child.join(PATIENCE_SECONDS)
    assert child.exitcode == 0
    assert len(list(batches)) == 11


def _in_child(loader, batches, answers):
    try:
        next(batches)
    except StateError as error:
        answers.put(type(error).__name__)
    answers.put(len(list(loader)))


class Own(DataLoader):
    """A loader with an iteration of its own."""

    def __iter__(self):
        yield from super().__iter__()


@pytest.mark.parametrize(
    ("kind", "options", "error", "words"),
    [
        (DataLoader, {"num_workers": 0}, InputError, "workers='threads' needs num_workers of at least 1"),
        (DataLoader, {"worker_init_fn": print}, InputError, "worker_init_fn is called in worker processes, and"),
        (Own, {}, InputError, "the loader is an Own, which has an iteration of its own, and workers='threads' needs"),
        (DataLoader, {"workers": "thread"}, ValueError, "workers is 'thread'; it must be 'processes' or 'threads'"),
    ],
)
def test_what_threads_cannot_be(kind, options, error, words):
    """Is an error when the loader is made resumable."""
    options, data = dict(options), Numbers()
    workers = options.pop("workers", "threads")
    loader = kind(data, 4, sampler=wids.ChunkedSampler(data), **{"num_workers": 2, **options})
    with pytest.raises(error, match=words.replace("(", r"\(")):
        wids.resumable(loader, workers=workers)


def test_what_it_is():
    """It says so, and keeps it in copies; to make it resumable otherwise is an error."""
    data = list(range(N))
    loader = make(data)
    assert repr(loader).endswith(", workers='threads')")
    assert wids.resumable(loader, workers="threads") is loader
    with pytest.raises(InputError, match="another reads_ahead, workers or old"):
        wids.resumable(loader)
    for again in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert list(again) == list(make(data))
        assert again._workers == "threads"


def test_samples_come_once_from_many_threads(tmp_path):
    """Over real shards, of which few may be open, in several epochs; the dataset counts what it read."""
    dataset = wids.ShardListDataset(
        write_index(tmp_path, (24,) * 8), lru_size=2, transformations=lambda s: s["__index__"]
    )
    sampler = wids.DistributedChunkedSampler(dataset, chunksize=12, window=4, num_replicas=1, rank=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that there are fewer cores
        loader = make(dataset, count=8, size=5, sampler=sampler)
    for epoch in range(4):
        assert sorted(index for batch in loader for index in batch) == list(range(192))
        wait_until(lambda done=epoch + 1: dataset.get_stats()[0] == 192 * done)

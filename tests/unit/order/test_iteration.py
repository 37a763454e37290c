"""A job in all its lives: drawn from, stopped, copied, named epochs, resumed on other ranks, against a model."""

import gc
import json
import pickle
import sys
import tracemalloc
import warnings
import weakref
from itertools import accumulate, islice

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.model import order as model
from tests.model.order import State
from tests.support.examples import examples
from tests.support.numbers import Numbers, alone
from wids.samplers import DistributedChunkedSampler

MODES = [{}, {}, {"epochs": 2}, {"epoch_size": 7}, {"epoch_size": 30}]


class Shards:
    """A dataset that has only its lengths."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return sum(self.lengths)


def through_json(state):
    """The state as another program gets it."""
    return json.loads(json.dumps(state))


class Job(RuleBasedStateMachine):
    """All ranks of a job step together; the test knows where they are, and the model what they read."""

    @initialize(
        lengths=st.lists(st.integers(0, 9), min_size=1, max_size=4),
        world=st.integers(1, 5),
        lanes=st.none() | st.integers(1, 6),
        mode=st.sampled_from(MODES),
        tail=st.sampled_from(["pad", "drop"]),
        reshuffle=st.sampled_from(["fixed", "epoch"]),
        chunksize=st.integers(1, 6),
        window=st.integers(1, 3),
    )
    def start(self, lengths, world, lanes, mode, tail, reshuffle, chunksize, window):
        """A run begins, from nothing."""
        self.dataset = Shards(lengths if not mode else [*lengths, 3])  # no epoch is of fewer samples than ranks
        self.mode = mode
        self.size = mode.get("epoch_size", len(self.dataset) * mode.get("epochs", 1)) if mode else None
        self.lanes, self.has_lanes = lanes or world, lanes is not None
        order = {"chunksize": chunksize, "window": window, "reshuffle": reshuffle, "seed": 3}
        self.options = {**order, "tail": tail}
        ends = tuple(accumulate(self.dataset.lengths))
        self.order = model.Order(hi=len(self.dataset), shard_ends=ends, lanes=self.lanes, **order)
        self.epoch, self.is_begun = 0, False
        self.loaded, self.is_named, self.origin = None, False, State()
        self.make(world)

    def make(self, world):
        """The samplers of all ranks, fresh."""
        self.world = world
        lanes = {"lanes": self.lanes} if self.has_lanes else {}
        self.ranks = [
            DistributedChunkedSampler(self.dataset, num_replicas=world, rank=rank, **lanes, **self.mode, **self.options)
            for rank in range(world)
        ]
        self.running, self.spot, self.count, self.is_over = None, None, 0, False
        self.is_stale = False

    # --- where the ranks are

    @property
    def job(self):
        """The job as the model has it."""
        tail = self.options["tail"]
        return model.Job(order=self.order, world=self.world, tail=tail, epoch_size=self.size, loaded=self.origin)

    def next_spot(self):
        """Where an iteration that begins now begins."""
        if self.loaded is None:
            return self.job.begin(self.epoch + self.is_begun)
        is_kept = self.is_named or self.job.rows(self.loaded)
        return self.loaded if is_kept else self.job.begin(self.loaded.epoch + 1)

    def now(self):
        """What a state taken now says."""
        if self.spot is None or self.is_stale:
            return self.next_spot()
        return self.job.after(self.spot, self.count)

    # --- what happens

    @rule(count=st.integers(0, 9))
    def draw(self, count):
        """All ranks draw so many; an iteration begins if none is there."""
        if self.running is None:
            self.running = [iter(sampler) for sampler in self.ranks]
            self.is_waiting = True
        rows = [list(islice(iterator, count)) for iterator in self.running]
        if count and self.is_waiting:
            self.spot, self.count, self.is_over, self.is_stale = self.next_spot(), 0, False, False
            self.epoch, self.is_begun, self.loaded = self.spot.epoch, True, None
            self.is_waiting = False
        if not count:
            return
        end = self.count + count
        assert rows == [self.job.samples(self.spot, rank)[self.count : end] for rank in range(self.world)]
        self.count = min(end, self.job.rows(self.spot))
        if self.count < end:
            self.is_over, self.running = True, None

    @precondition(lambda self: self.running)
    @rule()
    def abandon(self):
        """The loop breaks; another iteration comes."""
        self.running = None

    @rule(step=st.integers(-1, 2))
    def set_epoch(self, step):
        """An epoch is named for the next iteration; the loop that runs, if any, is left."""
        epoch = max(self.epoch + step, self.origin.epoch if self.size else 0)
        self.running = None
        is_lost = (
            self.loaded is not None
            and epoch != self.loaded.epoch
            and self.loaded.yielded
            and self.job.rows(self.loaded)
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for sampler in self.ranks:
                sampler.set_epoch(epoch)
        if not self.size:
            assert len(caught) == (len(self.ranks) if is_lost else 0)
        if self.loaded is not None:
            self.is_named = self.loaded.epoch == epoch
            if not self.is_named:
                self.loaded = None
        # The epoch that runs may be named while it runs.
        self.is_stale = self.spot is None or self.spot.epoch != epoch or self.is_over
        self.epoch, self.is_begun = epoch, False

    @rule(world=st.integers(1, 6), how=st.sampled_from(["drawn", "consumed", "yielded"]), data=st.data())
    def resume(self, world, how, data):
        """The job is stopped, and goes on with other ranks; all of them load what one of them saved."""
        saved = self.now()
        source = data.draw(st.sampled_from(self.ranks))
        if how == "drawn" or self.spot is None or self.is_stale:
            state = source.state_dict()
        else:
            had = data.draw(st.integers(0, self.count))
            saved = self.job.after(self.spot, had)
            state = source.state_dict(consumed=had) if how == "consumed" else source.state_dict(yielded=saved.yielded)
        self.make(world)
        self.loaded, self.is_named, self.origin = saved, False, saved
        self.epoch, self.is_begun = saved.epoch, False
        for sampler in self.ranks:
            sampler.load_state_dict(through_json(state))

    @rule()
    def copy(self):
        """The samplers go to another process; which iteration runs stays behind."""
        self.ranks = pickle.loads(pickle.dumps(self.ranks))
        self.running, self.spot, self.is_stale = None, None, False

    # --- what holds

    @invariant()
    def all_ranks_say_the_same(self):
        """States, epochs and lengths agree with the model and with each other."""
        states = [sampler.state_dict() for sampler in self.ranks]
        assert all(state == states[0] for state in states)
        assert State(*(states[0][name] for name in State._fields)) == self.now()
        assert states[0]["lanes"] == self.lanes
        assert [sampler.epoch for sampler in self.ranks] == [self.epoch] * self.world
        spot = self.next_spot() if self.spot is None or self.is_stale else self.spot
        assert [len(sampler) for sampler in self.ranks] == [spot.yielded + self.job.rows(spot)] * self.world


Job.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=25)
TestJob = Job.TestCase


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
        if is_asking or not frame.f_code.co_filename.endswith(
            ("cursor.py", "iteration.py", "progress.py", "rank_epochs.py", "samplers.py")
        ):
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

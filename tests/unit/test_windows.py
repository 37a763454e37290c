"""Windows of consecutive samples: against a naive model, through all samplers, and on any number of ranks."""

import copy
import json
import pickle
import random
from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

import wids
from tests.support.examples import some
from wids.core.order.layout import SamplerInterface, Shards, fingerprint, interface_of, layout
from wids.core.order.windowing import find_runs, parse_rule
from wids.errors import InputError, StateError
from wids.windows import Windows


class Frames:
    """A dataset of shards, whose sample i has ``x`` (i) and ``y`` (10 * i), and says which were read."""

    def __init__(self, shards, gaps=()):
        self.shards, self.gaps, self.read = shards, gaps, []

    def __len__(self):
        return sum(self.shards)

    def __getitems__(self, indices):
        self.read.append(list(indices))
        return [{"x": i, "y": 10 * i, "__key__": str(i), "__index__": i} for i in indices]

    def __wids__(self):
        return SamplerInterface(
            shard_ends=np.cumsum(self.shards),
            breaks=lambda: np.array(self.gaps, np.int64),
            takes_marks=True,
            fingerprint=lambda: f"{self.shards} {self.gaps}",
            evaluate=lambda name: np.arange(len(self)) if name == "number" else np.array(self.values),
        )


class Setting:
    """Random shards, episodes, gaps and windows, and a model of them in plain Python."""

    def __init__(self, seed):
        draws = random.Random(seed)
        self.draws = draws
        self.shards = [draws.choice([0, 1, 2, 3, 7, 20]) for _ in range(draws.randint(1, 8))]
        if not sum(self.shards):
            self.shards.append(1)
        n = sum(self.shards)
        self.gaps = sorted({draws.randint(1, n - 1) for _ in range(draws.choice([0, 0, 1, 3]))} if n > 1 else ())
        self.values = None
        if draws.random() < 0.7:
            self.values, k = [], 0
            while len(self.values) < n:
                self.values += [k % 3] * draws.choice([1, 2, 5, 12, 30])
                k += 1
            self.values = self.values[:n]
            if draws.random() < 0.3:
                self.values = [f"episode {value}" for value in self.values]
        self.step = draws.choice([1, 1, 2, 3, 8])
        self.pad = draws.choice([None, "repeat"])
        self.options, self.fields, stride = {"step": self.step, "pad": self.pad}, None, draws.choice([1, 1, 2, 4])
        kind = draws.choice(["length", "offsets", "fields"])
        if kind == "length":
            length = draws.choice([1, 2, 3, 5, 9])
            self.options.update(length=length, stride=stride)
            self.offsets = [stride * k for k in range(length)]
        elif kind == "offsets":
            self.offsets = self.some_offsets()
            self.options.update(offsets=self.offsets)
        else:
            self.fields = {name: self.some_offsets() for name in draws.choice([["x"], ["y"], ["x", "y"]])}
            self.offsets = sorted({0, *(each for some in self.fields.values() for each in some)})
            self.options.update(offsets=self.fields)
        if self.values is not None:
            self.options["by"] = self.values

    def some_offsets(self):
        """One offset or several, in any order, some twice."""
        return [self.draws.randint(-4, 6) for _ in range(self.draws.randint(1, 5))]

    def make(self):
        """The windows."""
        return Windows(Frames(self.shards, self.gaps), **self.options)

    def runs(self):
        """The runs, as lists of samples."""
        shard_of = [k for k, count in enumerate(self.shards) for _ in range(count)]
        runs = []
        for i in range(len(shard_of)):
            values = shard_of if self.values is None else self.values
            if i == 0 or i in self.gaps or values[i] != values[i - 1]:
                runs.append([])
            runs[-1].append(i)
        return runs

    def windows(self):
        """(anchor, offset -> (sample, whether it is repeated)) of each window."""
        found = []
        for run in self.runs():
            first = max(0, -min(0, *self.offsets)) if self.pad is None else 0
            for at in range(first, len(run), self.step):
                inside = [0 <= at + offset < len(run) for offset in self.offsets]
                if self.pad or all(inside):
                    there = {o: run[min(max(at + o, 0), len(run) - 1)] for o in self.offsets}
                    found.append(
                        (run[at], {o: (there[o], not is_in) for o, is_in in zip(self.offsets, inside, strict=True)})
                    )
        return found


def check(setting):
    """Windows are those of the model."""
    model = setting.windows()
    if not model:
        with pytest.raises(InputError, match="pad='repeat'"):
            setting.make()
        return 0
    windows = setting.make()
    assert len(windows) == len(model)
    assert windows.anchors().tolist() == [anchor for anchor, _ in model]
    anchored = interface_of(windows).anchored
    assert anchored.windows(np.arange(len(windows.dataset))).tolist() == list(range(len(model)))
    assert anchored.anchors(np.arange(len(model))).tolist() == windows.anchors().tolist()
    asked = list(range(len(windows)))
    setting.draws.shuffle(asked)
    asked = asked[:40]
    frames = windows.dataset
    for i, window in zip(asked, windows.__getitems__(asked), strict=True):
        anchor, there = model[i]
        assert window["__window__"] == i
        if setting.fields is None:
            samples = [there[o][0] for o in setting.offsets]
            assert windows.samples(i).tolist() == samples == window["x"] == window["__index__"]
            assert window["y"] == [10 * k for k in samples]
            assert window["__key__"] == list(map(str, samples))
            pads = [there[o][1] for o in setting.offsets]
            assert ("__pad__" in window) == (setting.pad is not None)
            assert setting.pad is None or window["__pad__"].tolist() == pads
        else:
            assert (window["__index__"], window["__key__"]) == (anchor, str(anchor))
            for name, factor in (("x", 1), ("y", 10)):
                offsets = setting.fields.get(name)
                if offsets is None:
                    assert window[name] == factor * anchor
                    continue
                samples = [there[o][0] for o in offsets]
                assert window[name] == [factor * k for k in samples]
                assert windows.samples(i)[name].tolist() == samples
                if setting.pad:
                    assert window["__pad__"][name].tolist() == [there[o][1] for o in offsets]
    read = [k for batch in frames.read for k in batch]
    assert len(frames.read) == 1
    assert read == sorted({k for i in asked for k, _ in model[i][1].values()})
    check_layout(setting, windows, model)
    return len(model)


def check_layout(setting, windows, model):
    """A sampler sees the shard of each window's first sample; downloads ahead, all shards of its samples."""
    ends = np.cumsum(setting.shards)
    first = min(setting.offsets)
    shards = [[int(np.searchsorted(ends, k, "right")) for k, _ in there.values()] for _, there in model]
    firsts = [int(np.searchsorted(ends, there[first][0], "right")) for _, there in model]
    placed = layout(windows)
    assert np.searchsorted(placed.ends, np.arange(len(model)), "right").tolist() == firsts
    visited = Shards(windows, lambda dataset: dataset)
    assert visited.datasets == [windows]
    for i in range(len(model)):
        there = {visit.shard for visit in visited.visits_of(np.array([i]), first=0)}
        assert there == set(shards[i]), (i, there, shards[i])


@pytest.mark.parametrize("block", range(10))
def test_windows_are_those_of_a_naive_model(block):
    """In 1,000 random settings: samples, repeated ones, fields, and each sample read once; also what samplers see."""
    counts = [check(Setting(seed)) for seed in range(100 * block, 100 * block + 100)]
    assert sum(count > 0 for count in counts) > 50


# --- through samplers


def sampler_of(dataset, world=1, rank=0, **options):
    """The sampler of a rank."""
    return wids.DistributedChunkedSampler(
        dataset, num_replicas=world, rank=rank, **{"chunksize": 7, "window": 2, **options}
    )


class Chain:
    """A random setting that is killed and resumed on other numbers of ranks until an epoch is over."""

    def __init__(self, seed):
        self.setting, draws = Setting(seed), random.Random(seed)
        self.draws = draws
        self.kind = draws.choice(["samples", "samples", "cost", "packs"])
        self.options = {
            "seed": draws.randint(0, 9),
            "shuffle": draws.random() < 0.8,
            "tail": draws.choice(["pad", "mask", "drop"]),
            "lanes": draws.randint(1, 8),
            "sample_seeds": draws.random() < 0.3,
        }

    def make(self, world, rank):
        """The sampler of a rank, of windows or of batches of them."""
        windows = self.setting.make()
        sampler = sampler_of(windows, world, rank, **self.options)
        lengths = 1 + windows.anchors() % 5
        if self.kind == "cost":
            return wids.BucketBatchSampler(sampler, lengths=lengths, max_tokens=10)
        if self.kind == "packs":
            return wids.PackSampler(sampler, lengths=lengths, pack_tokens=7)
        return sampler

    def run(self):
        """(window -> number of reads, ranks that read the end, ranks that found nothing more)."""
        state, is_over, read, hops, last = None, False, Counter(), 0, 1
        while not is_over:
            world, ended = self.draws.randint(1, 8), 0
            samplers = [self.make(world, rank) for rank in range(world)]
            count = self.draws.randint(0, 5) if hops < 40 else 10**9
            for sampler in samplers:
                if state is not None:
                    sampler.load_state_dict(json.loads(json.dumps(state)))
                sampler.set_epoch(0)
                iterator, taken = iter(sampler), []
                while len(taken) < count and (each := next(iterator, None)) is not None:
                    taken.append(each)
                ended += len(taken) < count
                last = world if taken else last
                self.read(read, samplers[0], taken)
            states = [sampler.state_dict() for sampler in samplers]
            assert states == states[:1] * world
            assert ended in (0, world)
            state, is_over, hops = states[0], ended > 0, hops + 1
        return read, last, world

    def read(self, read, sampler, taken):
        """Count what was drawn; packs by the tokens of each window."""
        if self.kind == "samples":
            read.update(map(int, taken))
        elif self.kind == "cost":
            read.update(int(index) for batch in taken for index in batch)
        else:
            read.update((int(i), k) for batch in taken for i in batch for k in range(i.piece[1], i.piece[2]))


@pytest.mark.parametrize("seed", some(range(400), every=8))
def test_chains_of_resumes(seed):
    """On 1 to 8 ranks that change at each save, all windows of an epoch come, each once but for the tail."""
    chain = Chain(seed)
    model = chain.setting.windows()
    if not model:
        return
    read, last, world = chain.run()
    due = Counter(range(len(model)))
    if chain.kind == "packs":
        due = Counter((i, k) for i, (anchor, _) in enumerate(model) for k in range(1 + anchor % 5))
    again = read - due
    if chain.options["tail"] == "drop":
        assert not again
        if chain.kind == "samples":
            assert (due - read).total() < max(last, world)
    else:
        assert not due - read
        assert again.total() < last or chain.kind != "samples"


def test_marks_belong_to_the_window():
    """``__valid__``, ``__seed__`` and pieces are one value for each window, and its samples are without."""
    windows = Windows(Frames([5, 8]), 3)
    ranks = [sampler_of(windows, 2, rank, tail="mask", sample_seeds=True) for rank in range(2)]
    got = [windows.__getitems__(list(sampler)) for sampler in ranks]
    every = [window for part in got for window in part]
    assert {type(window["__valid__"]) for window in every} == {bool}
    assert sorted(window["__window__"] for window in every if window["__valid__"]) == list(range(9))
    assert sum(not window["__valid__"] for window in every) == 1
    assert len({window["__seed__"] for window in every}) == 9
    packs = wids.PackSampler(sampler_of(windows), lengths=[3] * 9, pack_tokens=4)
    pieces = [window for batch in packs for window in windows.__getitems__(batch)]
    assert all(window["__length__"] == 3 and len(window["__piece__"]) == 2 for window in pieces)
    joined, one = ConcatDataset([windows, Windows(Frames([4]), 2)]), sampler_of(windows, tail="mask")
    assert all(joined[index]["__valid__"] for index in one)


def test_seeded_transforms_are_of_the_window():
    """A transformation of windows finds the seed of the window, and draws the same in each process."""
    windows = Windows(Frames([20]), 4).add_transform(wids.seeded(lambda w: (w["__window__"], random.random())))
    a, b = ([*windows.__getitems__(list(sampler_of(windows, sample_seeds=True)))] for _ in range(2))
    assert a == b
    assert len({value for _, value in a}) == len(a) == 17


def test_weights():
    """Weights are an array with one for each window, or a column, read at the anchor."""
    windows = Windows(Frames([30]), offsets=[-1, 1], step=2)
    weights = np.where(windows.anchors() > 15, 1.0, 0.0)
    assert {windows.samples(i)[0] > 14 for i in sampler_of(windows, weights=weights)} == {True}
    by_name = [int(i) for i in sampler_of(windows, weights="number", epoch_size=200)]
    assert by_name == [int(i) for i in sampler_of(windows, weights=windows.anchors(), epoch_size=200)]
    buckets = wids.BucketBatchSampler(sampler_of(windows), lengths="number", max_tokens=60)
    assert sorted(int(i) for batch in buckets for i in batch) == list(range(len(windows)))


def test_parts_and_joins_of_windows():
    """Subset, ConcatDataset and mixtures of windows have the shards of their windows."""
    one, two = Windows(Frames([5, 5]), 3, by=[0] * 10), Windows(Frames([4, 4]), 2)
    joined = ConcatDataset([one, Subset(two, [5, 0, 3])])
    shards = Shards(joined, lambda dataset: dataset)
    assert shards.datasets == [one, two]
    seen = [{(visit.dataset, visit.shard) for visit in shards.visits_of(np.array([i]), first=0)} for i in range(11)]
    expected = [{(0, 0)}] * 3 + [{(0, 0), (0, 1)}] * 2 + [{(0, 1)}] * 3 + [{(1, 1)}, {(1, 0)}, {(1, 1)}]
    assert seen == expected
    mixture = wids.mix({"one": (one, 3), "two": (two, 1)})
    sources = [mixture[index]["__dataset__"] for index in sampler_of(mixture, epoch_size=400)]
    assert sources.count("one") == 300
    assert len({str(mixture[i]) for i in range(len(mixture))}) == 14


def test_mixtures_of_windows_resume():
    """Shares and windows go on on other ranks where a state was saved."""
    parts = {"a": (Windows(Frames([9, 12]), 4, by=[0] * 9 + [1] * 12), 2), "b": (Windows(Frames([30]), 2, step=3), 1)}
    whole = list(sampler_of(wids.mix(parts), lanes=6, epoch_size=120))
    for before, after in ((1, 2), (3, 4), (4, 3), (8, 1)):
        ranks = [sampler_of(wids.mix(parts), before, rank, lanes=6, epoch_size=120) for rank in range(before)]
        rows = [[next(iterator) for _ in range(5)] for iterator in map(iter, ranks)]
        state = json.loads(json.dumps(ranks[0].state_dict()))
        others = [sampler_of(wids.mix(parts), after, rank, lanes=6, epoch_size=120) for rank in range(after)]
        for sampler in others:
            sampler.load_state_dict(state)
        rest = list(zip(*map(list, others), strict=True))
        got = [int(i) for row in zip(*rows, strict=True) for i in row] + [int(i) for row in rest for i in row]
        assert got[:120] == [int(i) for i in whole]


OTHERS = {
    "the same": ([9, 9], {"length": 3}),
    "the same offsets": ([9, 9], {"offsets": [0, 1, 2]}),
    "other offsets": ([9, 9], {"offsets": [0, 1, 3]}),
    "another order": ([9, 9], {"offsets": [0, 2, 1]}),
    "a field": ([9, 9], {"offsets": {"x": [0, 1, 2]}}),
    "pads": ([9, 9], {"length": 3, "pad": "repeat"}),
    "a step": ([9, 9], {"length": 3, "step": 2}),
    "the same runs": ([9, 9], {"length": 3, "by": [0] * 9 + [1] * 9}),
    "other runs": ([9, 9], {"length": 3, "by": [0] * 8 + [1] * 10}),
    "other shards": ([10, 8], {"length": 3}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_states_are_of_the_same_windows(name):
    """A state that was saved over other windows is refused, even of as many; the same ones take it."""
    sampler = sampler_of(Windows(Frames([9, 9]), 3))
    whole = list(sampler)
    state = sampler.state_dict(yielded=5)
    shards, options = OTHERS[name]
    other = sampler_of(Windows(Frames(shards), **options))
    if "the same" in name:
        other.load_state_dict(state)
        assert list(other) == whole[5:]
    else:
        with pytest.raises(StateError):
            other.load_state_dict(state)


# --- what windows are


def test_each_form_of_an_index():
    """Negative ones, numpy's and torch's; out of range, or no integer, is an error."""
    windows = Windows(Frames([6, 5]), 2, stride=2)
    assert len(windows) == 7
    assert windows[-1] == windows[np.int64(6)] == windows[torch.tensor(6)]
    assert [window["x"] for window in windows] == [[0, 2], [1, 3], [2, 4], [3, 5], [6, 8], [7, 9], [8, 10]]
    assert windows.samples([0, -1]).tolist() == [[0, 2], [8, 10]]
    assert windows.__getitems__([]) == []
    assert windows.samples(np.int64(1)).tolist() == windows.samples(torch.tensor(1)).tolist() == [1, 3]
    for index, error in (
        (7, IndexError),
        (-8, IndexError),
        ("a", TypeError),
        (slice(2), TypeError),
        (1.0, TypeError),
    ):
        with pytest.raises(error):
            windows[index]
    with pytest.raises(IndexError, match="window 1180591620717411303424 of 7"):
        windows[1 << 70]
    assert repr(windows).startswith("<Windows: 7 windows of 2 with stride 2, step 1, of <")


def test_stack():
    """A function of each list, or of the lists of some fields; names such as ``__key__`` stay lists."""
    windows = Windows(Frames([6]), 3, stack=np.array)
    assert windows[1]["y"].tolist() == [10, 20, 30]
    assert windows[1]["__key__"] == ["1", "2", "3"]
    window = Windows(Frames([6]), 3, stack={"x": torch.tensor})[1]
    assert torch.equal(window["x"], torch.tensor([1, 2, 3]))
    assert window["y"] == [10, 20, 30]
    window = Windows(Frames([6]), offsets={"x": [-1, 0]}, stack=np.array)[0]
    assert (window["x"].tolist(), window["y"]) == ([0, 1], 10)
    with pytest.raises(InputError, match="has no field 'z'; it has"):
        Windows(Frames([6]), 3, stack={"z": np.array})[0]
    with pytest.raises(InputError, match="'y', which has no offsets"):
        Windows(Frames([6]), offsets={"x": [0]}, stack={"y": np.array})
    with pytest.raises(InputError, match="function of a list"):
        Windows(Frames([6]), 3, stack="torch")


def test_stack_names_the_field_that_it_fails_for():
    """A function of tensors, say, which finds texts; fields may have names of any kind."""
    with pytest.raises(RuntimeError) as caught:
        Windows(Frames([6]), 3, stack={"x": list, "y": refuse})[0]
    assert caught.value.__notes__[0] == "stack, of the field 'y'"

    class Numbered(Frames):
        def __getitems__(self, indices):
            return [{0: i} for i in indices]

    assert Windows(Numbered([6]), 3, stack=tuple)[1] == {0: (1, 2, 3), "__window__": 1}
    with pytest.raises(InputError, match=r"its anchor has \[0\]"):
        Windows(Numbered([6]), offsets={"x": [0]})[0]


def refuse(values):
    """A function of a list that fails."""
    raise RuntimeError(f"no place for {values}")


def test_an_error_names_the_sample():
    """Of a function of lists, or of windows."""
    for windows in (Windows(Frames([6]), 2, stack=refuse), Windows(Frames([6]), 2).add_transform(refuse)):
        with pytest.raises(RuntimeError, match="no place for") as caught:
            windows[3]
        assert "sample 3, key '3'" in caught.value.__notes__[-1]
    for function in ("torch", [refuse], None):
        with pytest.raises(TypeError, match="give a function of a window"):
            windows.add_transform(function)


class Odd(Frames):
    """Samples of which some lack a field, or are none."""

    def __getitems__(self, indices):
        return (
            [{"x": i, "z": i} if i % 2 else {"x": i} for i in indices] if self.gaps == () else [(1, 2)] * len(indices)
        )


def test_samples_without_a_field():
    """The list has None there; a field that no sample has is an error, as are samples that are no dicts."""
    assert Windows(Odd([6]), 3)[1] == {"x": [1, 2, 3], "z": [1, None, 3], "__window__": 1}
    windows = Windows(Odd([6]), offsets={"z": [0, 1]})
    assert (windows[0]["z"], windows[1]["z"]) == ([None, 1], [1, None])
    with pytest.raises(InputError, match=r"no sample of window 0 has the field 'w'; its anchor has \['x'\]"):
        Windows(Odd([6]), offsets={"w": [0, 1]})[0]
    with pytest.raises(InputError, match=r"tuple after the dataset's transformations"):
        Windows(Odd([6], gaps=[3]), 2)[0]


def test_windows_that_do_not_fit(caplog):
    """Runs that are too short are counted in a warning; if all are, it is an error with advice."""
    with pytest.raises(InputError, match=r"windows of 8 with stride 4 span 29 samples, .* shards has 20: give pad="):
        Windows(Frames([20, 3]), 8, stride=4)
    with pytest.raises(InputError, match=r"longest of the runs of equal by has 3"):
        Windows(Frames([8]), 4, by=[0, 0, 0, 1, 1, 1, 2, 2])
    assert not caplog.records
    assert len(Windows(Frames([20, 3]), 4)) == 17
    assert (
        "windows of 4 span 4 samples: 1 of the shards are shorter, and their 3 of 23 samples are in no" in caplog.text
    )
    caplog.clear()
    assert len(Windows(Frames([20, 3]), 4, pad="repeat")) == 23
    assert len(Windows(Frames([0]), 4)) == 0
    assert not caplog.records


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "neither"),
        ({"length": 2, "offsets": [0]}, "both"),
        ({"length": 0}, "length is 0"),
        ({"length": 2.5}, "length is 2.5"),
        ({"length": 2, "stride": 0}, "stride is 0"),
        ({"length": 2, "step": 0}, "step is 0"),
        ({"length": 2, "step": 1 << 50}, "step"),
        ({"length": 1 << 20, "stride": 1 << 30}, "span more samples"),
        ({"length": 10**9}, "a window may have 16,777,216"),
        ({"offsets": range(10**9), "pad": "repeat"}, "a window may have 16,777,216"),
        ({"offsets": [0, 1 << 70]}, "more samples"),
        ({"offsets": [0, None]}, "has None, which is no integer"),
        ({"length": 2, "pad": "zero"}, "pad is 'zero'"),
        ({"offsets": [0], "stride": 2}, "stride=2"),
        ({"offsets": []}, "one integer or more"),
        ({"offsets": [0, 0.5]}, "multiply seconds by the frames"),
        ({"offsets": "01"}, "is a text"),
        ({"offsets": 3}, "no list of integers"),
        ({"offsets": [[0, 1]]}, "no list of one integer"),
        ({"offsets": [True]}, "no integer"),
        ({"offsets": [1 << 50]}, "more samples"),
        ({"offsets": {}}, "empty dict"),
        ({"offsets": {1: [0]}}, "a field is 1"),
        ({"offsets": {"__index__": [0]}}, "is no field"),
        ({"offsets": {"x": [0.1]}}, "offsets of 'x'"),
        ({"length": 2, "by": [1, 2]}, "2 values for 9 samples"),
        ({"length": 2, "by": [[1, 2]] * 9}, "shape"),
        ({"length": 2, "by": [1, 1, float("nan"), *range(6)]}, "sample 2 has no value"),
        ({"length": 2, "by": ["a", None, *"abcdefg"]}, "sample 1 has no value"),
        ({"length": 2, "by": np.array(["2020"] * 8 + ["NaT"], "M8[s]")}, "sample 8 has no value"),
        ({"length": 2, "by": np.ma.masked_equal(np.arange(9), 3)}, "sample 3 is masked"),
    ],
)
def test_arguments(options, match):
    """A bad argument is named, with what to do."""
    with pytest.raises((InputError, ValueError), match=match):
        Windows(Frames([9]), **options)
    with pytest.raises(TypeError, match=r"did you mean stride\?"):
        Windows(Frames([9]), 2, strides=2)


def test_what_windows_are_made_of():
    """A mixture, a wrapper of torch's, or windows are refused with the form that works."""
    for dataset, match in (
        ([1, 2, 3], r"dataset\.select\(indices\)\.windows"),
        (Subset(Frames([3]), [0]), r"dataset\.select\(indices\)\.windows"),
        (wids.mix([[1, 2, 3]]), r"mix these: wids\.mix"),
        (Windows(Frames([3]), 2), r"dataset\.select"),
    ):
        with pytest.raises(TypeError, match=match):
            Windows(dataset, 2)


def test_windows_of_another_dataset_by_now():
    """A dataset that has other samples than when its windows were made is an error."""
    frames = Frames([3, 6])
    windows = Windows(frames, 2)
    assert pickle.loads(pickle.dumps(windows))[0]["x"] == [0, 1]
    frames.shards = [5]
    with pytest.raises(InputError, match="has 5 samples now, and had 9"):
        windows[0]
    frames.shards = [6, 3]
    with pytest.raises(InputError, match="other shards now"):
        windows[0]


def test_copies():
    """Windows and their samplers can be pickled and copied, and a copy does not share transformations."""
    windows = Windows(Frames([9, 4]), 3, by=[0] * 5 + [1] * 8, pad="repeat")
    assert layout(windows) is not None  # what it keeps of that travels, too
    for other in (pickle.loads(pickle.dumps(windows)), copy.deepcopy(windows)):
        assert [other[i]["x"] for i in range(13)] == [windows[i]["x"] for i in range(13)]
        assert fingerprint(other) == fingerprint(windows)


def test_shards_that_are_smaller_than_a_window_cost_little():
    """Where one small shard is among many, no ends of all shards are kept for each offset; nor where no window has it.

    A shard that holds less than a 32nd of a window is not looked for ahead, and all others are.
    """
    shards = np.full(1000, 1000)
    shards[500:502] = 1, 1999
    windows = Windows(Frames(shards), 1000, by=np.zeros(10**6))
    assert len(interface_of(windows).further_ends) <= 32
    visited = Shards(windows, lambda dataset: dataset)
    for i in range(499_000, 501_000, 7):
        there = {visit.shard for visit in visited.visits_of(np.array([i]), first=0)}
        all_shards = np.unique(np.searchsorted(np.cumsum(shards), windows.samples(i), "right")).tolist()
        assert {*all_shards} - {500} <= there <= {*all_shards}
    windows = Windows(Frames(shards), 1000, by=np.arange(10**6) // 1000)  # the small shard ends an episode
    assert len(interface_of(windows).further_ends) == 1
    assert not interface_of(Windows(Frames(shards[:500]), 1000)).further_ends


def test_a_hundred_million_samples_cost_what_their_runs_cost():
    """No object and no number is kept for a sample or a window."""
    windows = Windows(Frames(np.full(10_000, 10_000)), 16, stride=4, step=3)
    assert len(windows) == 10_000 * -(-(10_000 - 60) // 3)
    assert windows.samples(len(windows) - 1)[-1] >= 10**8 - 3
    assert len(pickle.dumps(windows)) < 1_000_000
    sampler = sampler_of(windows, 8, 3, chunksize=10_000)
    assert windows.samples(next(iter(sampler))).shape == (16,)


def test_runs():
    """Values are compared with those before them, also over the borders of blocks; texts, numbers and booleans."""
    none = np.zeros(0, np.int64)
    assert find_runs(5, none, np.array([1, 1, 2, 2, 1]), of="by").tolist() == [0, 2, 4]
    assert find_runs(4, np.array([3]), np.array(["a", "a", "b", "b"], object), of="by").tolist() == [0, 2, 3]
    assert find_runs(3, none, np.array([True, False, False]), of="by").tolist() == [0, 1]
    assert find_runs(0, none, None, of="by").tolist() == []
    assert find_runs(3, np.array([0, 3]), None, of="by").tolist() == [0]
    assert parse_rule(3, stride=2, step=1, offsets=None, pad=None).span == 5
    assert parse_rule(None, stride=1, step=1, offsets=[2, 3], pad=None).reach == (0, 3)


def test_runs_over_the_borders_of_blocks(monkeypatch):
    """Where values are compared in parts, no border begins a run, and none is missed."""
    from wids.core.order import windowing

    draws = np.random.default_rng(0)
    values = draws.integers(0, 2, 200)
    whole = find_runs(200, np.zeros(0, np.int64), values, of="by")
    for size in (1, 2, 3, 7, 200, 1000):
        monkeypatch.setattr(windowing, "_BLOCK", size)
        assert find_runs(200, np.zeros(0, np.int64), values, of="by").tolist() == whole.tolist()
        with pytest.raises(InputError, match="sample 150 has no value"):
            find_runs(200, np.zeros(0, np.int64), np.where(np.arange(200) == 150, np.nan, values), of="by")

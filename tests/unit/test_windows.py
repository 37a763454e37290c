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
from wids.core.order.layout import Shards, SamplerInterface, fingerprint, layout
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
        for i, shard in enumerate(shard_of):
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
                    found.append((run[at], {o: (there[o], not is_in) for o, is_in in zip(self.offsets, inside)}))
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

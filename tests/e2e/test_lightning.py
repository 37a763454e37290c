"""Lightning's Trainer with strategy="ddp" on two CPU processes: the sampler is left alone, and resumes exactly."""

import json
import sys
from collections import Counter

import pytest

from tests.support.launch import PROGRAMS, environment, forked_ranks, run_all
from tests.support.shards import write_index

pytestmark = pytest.mark.outside

N, BATCHES, EPOCHS = 21, 6, range(3)
# Checkpoints: (epoch, batches had); "end": at the epoch's end.
POINTS = [(0, 5), (0, "end"), (1, 2), (1, "end")]
LAST_BATCH = (0, BATCHES)


def runs_of(kind, workers):
    """A whole run, runs from its checkpoints, and one from a checkpoint of one of these, as the program wants them."""
    name = f"{kind}-{workers}"
    points = [*POINTS, LAST_BATCH] if kind == "plain" else POINTS
    resumed = [(f"{name}-{epoch}-{at}", kind, workers, f"{name}-{epoch}-{at}") for epoch, at in points]
    return [(name, kind, workers), *resumed, (f"{name}-1-2-1-4", kind, workers, f"{name}-1-2-1-4")]


def launch(directory, devices, runs):
    """The answers of each rank. Lightning starts the other ranks only where no launcher has done that."""
    launcher = [sys.executable] if devices == 1 else forked_ranks(devices, "lightning")
    program = [str(PROGRAMS / "with_lightning.py"), str(directory / "data/index.json"), str(directory)]
    run_all(
        [[*launcher, *program, str(devices), json.dumps(runs)]],
        env=environment(),
        output=directory / f"output-{devices}.txt",
    )
    return [json.loads((directory / f"{devices}-{rank}.json").read_text()) for rank in range(devices)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Where the data, the checkpoints and the answers are."""
    directory = tmp_path_factory.mktemp("lightning")
    write_index(directory / "data", (7, 0, 5, 9))
    return directory


@pytest.fixture(scope="module")
def ranks(directory):
    """Both ranks' answers for all kinds of loaders, in one launch."""
    return launch(directory, 2, [run for kind in ("stateful", "plain") for w in (0, 2) for run in runs_of(kind, w)])


@pytest.fixture(scope="module")
def alone(directory, ranks):
    """One device's answers, from checkpoints of two."""
    names = [f"{kind}-{w}-{at}" for kind in ("stateful", "plain") for w in (0, 2) for at in ("1-2", "0-5", "0-end")]
    runs = [(name, name.split("-")[0], int(name.split("-")[1]), name) for name in names]
    return launch(directory, 1, [(f"alone-{name}", *run) for name, *run in runs])[0]


def epoch_of(answer, epoch):
    """The indices that a rank's steps had in an epoch."""
    return [i for e, indices in answer["steps"] if e == epoch for i in indices]


LOADERS = pytest.mark.parametrize("loader", ["stateful-0", "stateful-2", "plain-0", "plain-2"])


@LOADERS
def test_sampler_is_left_alone(ranks, loader):
    """The loader keeps the very sampler made in train_dataloader, which knows its rank; set_epoch is called."""
    for rank, answers in enumerate(ranks):
        answer = answers[loader]
        assert answer["left alone"]
        assert answer["rank"] == [rank, 2]
        assert answer["len"] == [11, BATCHES, BATCHES]
        assert answer["epoch"] == EPOCHS[-1]


@LOADERS
def test_each_sample_once_in_each_epoch(ranks, loader):
    """21 samples on 2 ranks: 11 steps' worth each, one sample repeated, another order in each epoch."""
    for epoch in EPOCHS:
        counts = Counter(i for answers in ranks for i in epoch_of(answers[loader], epoch))
        assert counts.keys() == set(range(N))
        assert counts.total() == N + 1
    for answers in ranks:
        assert len({tuple(epoch_of(answers[loader], epoch)) for epoch in EPOCHS}) == len(EPOCHS)


@LOADERS
def test_resumes_as_if_never_stopped(ranks, loader):
    """From mid-epoch, also of a resumed run, and from an epoch's end: just what the whole run had from there on."""
    points = [*POINTS, LAST_BATCH] if loader.startswith("plain") else POINTS
    for answers in ranks:
        steps = answers[loader]["steps"]
        for epoch, at in points:
            done = epoch * BATCHES + (BATCHES if at == "end" else at)
            assert answers[f"{loader}-{epoch}-{at}"]["steps"] == steps[done:], (epoch, at)
        assert answers[f"{loader}-1-2-1-4"]["steps"] == steps[BATCHES + 4 :]


@LOADERS
def test_resumes_on_one_device(ranks, alone, loader):
    """One device reads what two had left of the epoch, each sample once, and then whole epochs."""
    for epoch, batches, name in [(1, 2, "1-2"), (0, 5, "0-5"), (1, 0, "0-end")]:
        answer = alone[f"alone-{loader}-{name}"]
        had = {i for answers in ranks for i in epoch_of(answers[loader], epoch)[: 2 * batches]}
        assert sorted(epoch_of(answer, epoch)) == sorted(set(range(N)) - had)
        for later in EPOCHS[epoch + 1 :]:
            assert sorted(epoch_of(answer, later)) == list(range(N))

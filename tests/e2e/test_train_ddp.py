"""notebooks/train_ddp.py: ranks end together on any number of ranks, learn, and go on from a checkpoint."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.support import paths
from tests.support.launch import environment, forked_ranks, run_all

pytestmark = pytest.mark.outside

PROGRAM = str(paths.ROOT / "notebooks" / "train_ddp.py")
SAMPLES = 1347


@pytest.fixture
def run(tmp_path):
    """Run the program on so many ranks to its end, and give what it said."""
    (tmp_path / "t").mkdir()

    def run(world, *options):
        command = [*([sys.executable] if world == 1 else forked_ranks(world)), PROGRAM, *map(str, options)]
        output = tmp_path / "output.txt"
        run_all([command], env=environment(TMPDIR=str(tmp_path / "t")), output=output)
        assert not list((tmp_path / "t").glob("wids-*")), "temporary directories are left"
        return output.read_text()

    return run


def order_of(log, world, epoch=0):
    """The global sequence of an epoch: rank r of W had G[r], G[r + W], ..."""
    ranks = []
    for rank in range(world):
        lines = [json.loads(line) for line in Path(f"{log}.{rank}").read_text().splitlines()]
        ranks.append([index for at, indices in lines if at == epoch for index in indices])
    assert len({len(rank) for rank in ranks}) == 1, "ranks had unequally many samples"
    return [index for turn in zip(*ranks, strict=True) for index in turn]


def test_digits_are_learned_by_two_ranks(run):
    """On two ranks the program tells most digits of the test set apart."""
    # Most of a step of the default's model, which its notebook trains, is the exchange of gradients.
    said = run(2, "--epochs", 3, "--batch-size", 32, "--model", "shufflenet_v2_x0_5", "--lr", 1e-2)
    accuracy, count = re.findall(r"test accuracy ([\d.]+)% of (\d+)", said)[-1]
    assert int(count) == 450
    assert float(accuracy) >= 80


def test_resumed_on_another_number_of_ranks(run, tmp_path):
    """Three ranks go on where two were ended, with the very samples that two would have had next."""
    options = ("--epochs", 1, "--seed", 5, "--model", "shufflenet_v2_x0_5")  # less to compute and to exchange
    run(2, *options, "--batch-size", 48, "--log-samples", tmp_path / "whole")
    halves = (*options, "--checkpoint", tmp_path / "run.pt")
    first = run(2, *halves, "--batch-size", 48, "--steps", 5, "--log-samples", tmp_path / "first")
    assert "ended after 5 steps" in first
    second = run(3, *halves, "--batch-size", 32, "--log-samples", tmp_path / "second")
    assert "goes on after 480 samples" in second

    whole = order_of(tmp_path / "whole", 2)
    assert len(set(whole)) == len(whole) > SAMPLES - 2 * 48  # less than a batch of each rank is left out
    pieces = order_of(tmp_path / "first", 2) + order_of(tmp_path / "second", 3)
    common = min(len(whole), len(pieces))
    assert common > SAMPLES - 3 * 48
    assert pieces[:common] == whole[:common]
    # What is there to be resumed says that the epoch is over.
    assert "epoch 0" not in run(1, *halves)


def test_a_train_index_needs_a_test_index(tmp_path):
    """Half of the data's place is refused with a sentence."""
    run_all([[sys.executable, PROGRAM, "--train", "x.json"]], env=environment(), output=tmp_path / "out.txt", code=2)
    assert "--train and --test go together" in (tmp_path / "out.txt").read_text()


def test_fewer_samples_than_a_batch_are_refused(tmp_path):
    """An epoch without a step would learn nothing, and say nothing of it."""
    command = [sys.executable, PROGRAM, "--batch-size", str(SAMPLES + 1)]
    run_all([command], env=environment(TMPDIR=str(tmp_path)), output=tmp_path / "out.txt", code=1)
    assert f"{SAMPLES:,} samples are not a batch" in (tmp_path / "out.txt").read_text()
    assert not list(tmp_path.glob("wids-*"))


def test_zero_steps_are_refused(tmp_path):
    """Nothing would count down to 0, and the run would not end."""
    run_all([[sys.executable, PROGRAM, "--steps", "0"]], env=environment(), output=tmp_path / "out.txt", code=2)
    assert "--steps has to be at least 1" in (tmp_path / "out.txt").read_text()

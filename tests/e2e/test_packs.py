"""A language model that is trained on packs, and killed again and again, reads each token once an epoch."""

import os
import random
import signal
import subprocess

import numpy as np
import pytest
import torch

import wids
from tests.support.launch import PROGRAMS, environment, forked_ranks

PROGRAM = str(PROGRAMS / "with_packs.py")
SAMPLES = 400


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """An index of documents of token numbers, and their lengths beside it."""
    folder, numbers = tmp_path_factory.mktemp("documents"), np.random.default_rng(0)
    lengths = np.exp(numbers.normal(4, 1, SAMPLES)).astype(int).clip(1, 900)
    with wids.ShardWriter(folder / "train-%04d.tar", samples=40) as writer:
        for k, length in enumerate(lengths):
            writer.write({"__key__": f"{k:05d}", ".npy": numbers.integers(1, 64, length).astype(np.uint16)})
    np.save(folder / "train.json.npy", lengths)
    return folder / "train.json"


def run(index, checkpoint, *, world, lines=None):
    """Run the program on so many ranks, and kill all of them after so many steps; True: it came to its end."""
    command = [*forked_ranks(world, "wids"), PROGRAM, str(index), str(checkpoint), str(world % 2)]
    env = environment()
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        for number, _ in enumerate(process.stdout, 1):
            if number == lines:
                os.killpg(process.pid, signal.SIGKILL)
        return process.wait() == 0


def result(checkpoint):
    """The number and the digest of all tokens that were read."""
    saved = torch.load(checkpoint, weights_only=True)
    return saved["count"], saved["read"]


@pytest.mark.thorough
def test_a_model_that_is_killed_twenty_times(index, tmp_path):
    """On ranks that change each time, the digest of all tokens is that of the unbroken run."""
    assert run(index, tmp_path / "whole", world=2)
    tokens = 2 * (int(np.load(f"{index}.npy").sum()) + SAMPLES)
    assert result(tmp_path / "whole")[0] == tokens
    draws, kills, is_over = random.Random(1), 0, False
    while not is_over:
        steps = draws.randint(1, 4) if kills < 20 else None
        is_over = run(index, tmp_path / "killed", world=draws.choice([1, 2, 3, 4, 6]), lines=steps)
        kills += not is_over
    assert kills == 20
    assert result(tmp_path / "killed") == result(tmp_path / "whole")

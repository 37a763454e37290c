"""Gradient accumulation over batches of which an epoch is no multiple, in each trainer that READMEs name."""

import json
import math
import sys

import pytest

from tests.support.launch import PROGRAMS, environment, forked_ranks, run_all
from tests.support.programs.with_accumulation import ACCUMULATED, EPOCHS, EVALUATED
from tests.support.programs.with_accumulation import PROGRAMS as TRAINERS

pytestmark = pytest.mark.outside


@pytest.mark.parametrize(("name", "world"), [*((name, 1) for name in TRAINERS), ("hugging_face", 2)])
def test_a_resumed_run_counts_as_one_that_was_not_stopped(tmp_path, name, world):
    """After each optimizer step, once and again: the same batches, steps, weights and counters of the trainer."""
    launcher = [sys.executable] if world == 1 else forked_ranks(world, "transformers")
    command = [*launcher, str(PROGRAMS / "with_accumulation.py"), name, str(tmp_path)]
    variables = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_V2_ENABLED": "1", "TRANSFORMERS_VERBOSITY": "error"}
    run_all([command], env=environment(**variables), output=tmp_path / "output.txt")
    epoch = {1: 13, 2: 7}[world]  # batches
    steps = math.ceil(epoch / ACCUMULATED)  # of an epoch
    for rank in range(world):
        answers = json.loads((tmp_path / f"{rank}.json").read_text())
        whole, once, twice = answers["whole"], answers["once"], answers["twice"]
        batches = whole["batches"]
        assert whole["counters"]["steps"] == EPOCHS * steps
        assert len(batches) == (EPOCHS * steps * ACCUMULATED if name == "torchtitan" else EPOCHS * epoch)
        assert (len(once), len(twice)) == (EPOCHS * steps - 1, EPOCHS * steps - 3)
        for step, found in [*once.items(), *twice.items()]:
            epochs, more = divmod(int(step), steps if name != "torchtitan" else sys.maxsize)
            assert found == {**whole, "batches": batches[epochs * epoch + more * ACCUMULATED :]}, step
        if name == "hugging_face":
            evaluated = whole["counters"]["evaluated"]  # nothing is cut, and one is there twice for equal ranks
            assert (len(evaluated), sorted(set(evaluated))) == (EVALUATED + world - 1, list(range(EVALUATED)))

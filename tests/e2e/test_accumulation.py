"""Gradient accumulation over batches of which an epoch is no multiple, in each trainer that READMEs name."""

import json
import sys

import pytest

from tests.support.launch import PROGRAMS, environment, run_all
from tests.support.programs import with_accumulation


@pytest.mark.parametrize("name", with_accumulation.PROGRAMS)
def test_a_resumed_run_counts_as_one_that_was_not_stopped(tmp_path, name):
    """After each optimizer step, once and again: the same batches, steps, weights and counters of the trainer."""
    command = [sys.executable, str(PROGRAMS / "with_accumulation.py"), name, str(tmp_path)]
    variables = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_V2_ENABLED": "1", "TRANSFORMERS_VERBOSITY": "error"}
    run_all([command], env=environment(**variables), output=tmp_path / "output.txt")
    answers = json.loads((tmp_path / "found.json").read_text())
    whole = answers["whole"]
    batches = whole["batches"]
    assert whole["counters"]["steps"] == 8
    assert len(batches) == (32 if name == "torchtitan" else 26)
    assert (len(answers["once"]), len(answers["twice"])) == (7, 5)
    for step, found in [*answers["once"].items(), *answers["twice"].items()]:
        done = 4 * int(step) - (3 if name != "torchtitan" and int(step) >= 4 else 0)  # the fourth step has one batch
        assert found == {**whole, "batches": batches[done:]}, step

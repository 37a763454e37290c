"""`RunnerSuite` as the author of an engine runs it: a right one passes, wrong ones are told what they break."""

import pytest

from tests.support.suites import run_suites

# Engine -> a test that fails, and what it says.
WRONG = {
    "OtherNumbers": ("test_every_task_has_its_result_once[20]", "each of 20 tasks has its result once"),
    "Raises": ("test_a_failure_costs_its_own_task", "a task that fails costs its own result; found ValueError: one"),
    "GoesOn": ("test_closing_cancels_what_runs", "tasks have cleaned up when `close` returns"),
    "FromAnywhere": (
        "test_reports_come_while_a_task_is_under_way",
        "reports come in the thread that takes results",
    ),
    "Silent": ("test_reports_come_while_a_task_is_under_way", "a report is heard while its task is under way"),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What becomes of the suite for each of them: see `run_suites`."""
    lines = ["from tests.support import toy_runners", "from wids.testing import RunnerSuite"]
    for name in WRONG:
        lines += [f"class Test{name}(toy_runners.Toy):", f"    kind = toy_runners.{name}"]
    lines += ["class TestNothing(RunnerSuite):", "    pass"]
    return run_suites(tmp_path_factory.mktemp("toys"), "\n".join(lines))


def test_a_right_engine_passes(tmp_path):
    """All of it, but for what it declares that it cannot: that is said."""
    lines = ["from tests.support import toy_runners", "class TestThreads(toy_runners.Toy):", "    pass"]
    failed, skipped = run_suites(tmp_path, "\n".join(lines))
    assert failed["TestThreads"] == {}
    words = {"test_a_worker_that_is_killed_costs_its_own_task": "TestThreads.has_processes is False"}
    assert skipped["TestThreads"] == words


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_engine_is_told_what_it_breaks(found, name):
    """In the words of the promise."""
    test, promise = WRONG[name]
    assert f"AssertionError: broken promise: {promise}" in found[0][f"Test{name}"][test]


def test_a_hook_that_is_missing_is_named(found):
    """With what to do."""
    failed, _ = found
    assert all("override `start`" in message for message in failed["TestNothing"].values())
    assert failed["TestNothing"]

"""Engines for tests of `wids.testing.RunnerSuite` that do not keep its promises."""

import os

import pytest

from tests.support.clocks import wait_until
from wids.jobs.runner import SerialRunner, TaskResult, ThreadRunner, call
from wids.testing import RunnerSuite


class Toy(RunnerSuite):
    """The suite, for an engine in this process."""

    is_in_process, has_processes = True, False
    kind = ThreadRunner

    @pytest.fixture(autouse=True)
    def _end(self, monkeypatch):
        """Let no task wait for what cannot come; in the end, end those that go on."""
        if self.kind in (OtherNumbers, Raises, Silent):
            monkeypatch.setattr("wids.testing.runners.PATIENCE_SECONDS", 0)
        self._started = []
        yield
        for runner in self._started:
            if isinstance(runner, ThreadRunner):
                ThreadRunner.close(runner)

    def start(self, function, on_report):
        """One of them."""
        self._started.append(self.kind(function, on_report or (lambda *_: None)))
        return self._started[-1]


class OtherNumbers(SerialRunner):
    """Its results have other tasks' numbers."""

    def take(self, seconds):
        """All are of the first task."""
        return [TaskResult(0, result.value, result.error) for result in super().take(seconds)]


class Raises(SerialRunner):
    """A task that fails ends all of them."""

    def take(self, seconds):
        """Or its error."""
        results = super().take(seconds)
        for result in results:
            result.get()
        return results


class GoesOn(ThreadRunner):
    """It leaves what runs alone."""

    def give(self, k, task):
        """Start it; one of `touch_and_wait` has begun when this returns: `close` finds it under way."""
        super().give(k, task)
        if isinstance(task, str):
            wait_until(lambda: os.path.exists(f"{task}.begun"))

    def close(self):
        """No more tasks."""
        for _ in self._ends:
            self._tasks.put(None)


class FromAnywhere(ThreadRunner):
    """Its reports come in the threads of the tasks."""

    def _work(self, end):
        while (given := self._tasks.get()) is not None:
            self._answers.put(call(self._function, *given, self._cancelled.is_set, self._on_report))
        end.set()


class Silent(ThreadRunner):
    """It passes no report on."""

    def __init__(self, function, on_report):
        super().__init__(function, lambda *_: None)

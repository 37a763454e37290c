"""The promises of `wids.jobs.runner.Runner` as a class of tests, for the author of an engine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from wids.errors import ClusterError, JobError, WorkerError
from wids.jobs.runner import run_with
from wids.testing.promises import PATIENCE_SECONDS, check, promised, refused

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from pathlib import Path

    from wids.jobs.runner import OnReport, Runner, TaskContext, TaskResult


class RunnerSuite:
    """The promises of every `Runner`; a subclass in a file of tests makes pytest run it against an engine.

    - Each task that is given has one result, under its number, as soon as it ends; there may be more tasks than jobs.
    - A task that fails costs its own result, be it by an error, by a value or a task that cannot be pickled, or by the
      end of its process. The others continue.
    - Reports reach ``on_report`` while their task is under way, in the thread that takes results; the last stands for
      those before it.
    - ``close`` cancels unfinished tasks and waits for them: tasks clean up, and nothing is written afterwards.

    A subclass has `start`.

    Attributes:
        is_in_process: tasks run in this process: what they take and return may be anything.
        can_cancel: tasks run beside the thread that takes results, so that ``close`` finds some under way.
        has_processes: a task may end its own process.
        cleans_up: also a task that is cancelled as it begins cleans up.
    """

    is_in_process: bool = False
    can_cancel: bool = True
    has_processes: bool = True
    cleans_up: bool = True

    def start(self, function: Callable[..., Any], on_report: OnReport | None) -> Runner:
        """A runner of ``function(task, context)``; ``on_report(k, *report)``: None if no report is wanted.

        Args:
            function: takes a task and its context.
            on_report: takes the number of a task and what that reports; None if no report is wanted.
        """
        raise NotImplementedError("override `start`: it returns a new runner")

    @pytest.mark.parametrize("count", [0, 1, 20])
    def test_every_task_has_its_result_once(self, count: int) -> None:
        """In any order of their ends, each task's number comes with its value, with fewer jobs than tasks, or more."""
        found = sorted((result.k, result.get()) for result in _run(self, double, range(count)))
        check(found == [(k, 2 * k) for k in range(count)], f"each of {count} tasks has its result once", found)

    def test_a_failure_costs_its_own_task(self) -> None:
        """Errors are results, those that cannot be pickled by their words; other tasks continue."""
        with promised("a task that fails costs its own result"):
            found = {result.k: result for result in _run(self, _fail_sometimes, range(8))}
            others = [found[k].get() for k in (0, 4, 5, 6, 7)]
        check(others == [0, 4, 5, 6, 7], "other tasks have their results", others)
        check(isinstance(found[1].error, ValueError), "an error of a task is its result", found[1])
        promise = "an error that cannot be pickled is a JobError of its words"
        with refused((_StubbornError, JobError), promise, naming="two 2"):
            found[2].get()
        promise = "a value that cannot be pickled is an error, unless the task ran here"
        check((found[3].error is None) == self.is_in_process, promise, found[3])

    def test_a_task_that_cannot_be_pickled_fails_alone(self) -> None:
        """It is not sent, and the worker that was to have it takes the next one."""
        with promised("a task that cannot be pickled fails alone"):
            found = sorted(_run(self, _name_of, [1, _Unpicklable(), 3]), key=lambda result: result.k)
            others = [found[0].get(), found[2].get()]
        check(others == ["int", "int"], "other tasks have their results", others)
        is_right = found[1].error is None if self.is_in_process else "stays here" in str(found[1].error)
        check(is_right, "a task that cannot be pickled has an error that says why, unless it ran here", found[1])

    def test_no_result_is_waited_for_in_vain(self) -> None:
        """Tasks come one by one: a task is taken from the list when an earlier one has ended, not before."""
        taken = []

        def tasks() -> Iterator[int]:
            for k in range(6):
                taken.append(k)
                yield k

        with contextlib.closing(_run(self, double, tasks(), jobs=1)) as results:
            for count, result in enumerate(results, 1):
                check(result.get() == 2 * result.k, "a result has the number of its task", result)
                check(len(taken) == count, "a result comes before the next task is begun", (len(taken), count))

    def test_closing_cancels_what_runs(self, tmp_path: Path) -> None:
        """Tasks under way are ended and clean up, and when `close` returns they have; others never begin."""
        if not self.can_cancel:
            pytest.skip(f"{type(self).__name__}.can_cancel is False")
        names = [str(tmp_path / str(k)) for k in range(4)]
        results = _run(self, touch_and_wait, [None, *names])
        check(next(results).get() is None, "a task that ends has its result while others run")
        results.close()
        if not self.cleans_up:  # one that is interrupted in its first moment is killed
            for path in tmp_path.glob("*.begun"):
                path.unlink()
        begun = [path.name for path in tmp_path.glob("*.begun")]
        check(not begun, "tasks have cleaned up when `close` returns", begun)
        place = tmp_path / "again"
        place.mkdir()

        class EnoughError(Exception):
            """All that can begin have."""

        def tick() -> None:
            if len(list(place.glob("*.begun"))) == 2:
                raise EnoughError

        results = _run(self, touch_and_wait, [str(place / str(k)) for k in range(4)], tick=tick)
        with pytest.raises(EnoughError), contextlib.closing(results):
            next(results)
        ended = sorted(path.name for path in place.iterdir())
        check(ended == ["0.ended", "1.ended"], "tasks under way clean up, and others never begin", ended)
        left = multiprocessing.active_children()
        check(left == [], "no process is left", left)

    def test_reports_come_while_a_task_is_under_way(self, tmp_path: Path) -> None:
        """To the thread that takes results, with the task's number; a task's last word stands for those before it."""
        seen: dict[int, tuple[str, str]] = {}
        threads = set()

        def note(k: int, path: str, word: str) -> None:
            check(word == "b" or seen.get(k) != (path, "b"), "reports of a task come in order", (word, seen.get(k)))
            seen[k] = path, word
            threads.add(threading.get_ident())
            if word == "b":
                (tmp_path / path).touch()

        tasks = [(str(tmp_path / name), name) for name in ("x", "y", "z")]
        with contextlib.closing(_run(self, _report_twice, tasks, on_report=note)) as results:
            check(all(result.get() for result in results), "a report is heard while its task is under way")
        wanted = {0: ("x", "b"), 1: ("y", "b"), 2: ("z", "b")}
        check(seen == wanted, "the last report of each task comes, with its number", seen)
        check(threads == {threading.get_ident()}, "reports come in the thread that takes results", threads)

    def test_a_worker_that_is_killed_costs_its_own_task(self) -> None:
        """The next tasks continue in another process; the error says how it ended."""
        if not self.has_processes:
            pytest.skip(f"{type(self).__name__}.has_processes is False")
        with promised("a process that is killed costs its own task"):
            found = {result.k: result for result in _run(self, _end_at_two, range(6))}
            others = [found[k].get() for k in (0, 1, 3, 4, 5)]
        check(others == [0, 1, 3, 4, 5], "other tasks have their results", others)
        with refused((WorkerError, ClusterError), "the end of a task's process is its error"):
            found[2].get()
        how = getattr(found[2].error, "found", None)
        check(how in (None, -signal.SIGKILL), "the error says how the process ended, if that is known", how)


def _run(
    suite: RunnerSuite,
    function: Callable[..., Any],
    tasks: Iterable[Any],
    *,
    jobs: int = 2,
    on_report: OnReport | None = None,
    tick: Callable[[], None] = lambda: None,
) -> Generator[TaskResult[Any], None, None]:
    return run_with(suite.start(function, on_report), tasks, jobs=jobs, tick=tick)


# The functions below are sent to workers, by name.


def double(number: int, context: TaskContext) -> int:
    """A task."""
    check(not context.is_cancelled(), "a task that is wanted is not cancelled")
    return 2 * number


class _StubbornError(Exception):
    """An error that cannot be pickled."""

    def __init__(self, one: object, two: object) -> None:
        super().__init__(f"{one} {two}")
        self.lock = threading.Lock()


def _fail_sometimes(number: int, context: TaskContext) -> Any:
    """A task that fails, by an error or by a value that no other process can have."""
    del context
    if number == 1:
        raise ValueError("one")
    if number == 2:
        raise _StubbornError("two", 2)
    return threading.Lock() if number == 3 else number


class _Unpicklable:
    """A task that no other process can have."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("stays here")


def _name_of(task: object, context: TaskContext) -> str:
    """A task of any type."""
    del context
    return type(task).__name__


def touch_and_wait(path: str | None, context: TaskContext) -> int | None:
    """A task that says that it has begun, waits to be ended, and cleans up after itself."""
    if path is None:
        return None
    until = PATIENCE_SECONDS * 20
    try:
        with open(f"{path}.begun", "w"):
            pass
        while until and not context.is_cancelled():
            until -= 1
            threading.Event().wait(0.05)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}.begun")
        with open(f"{path}.ended", "w"):
            pass
    return until


def _report_twice(task: tuple[str, str], context: TaskContext) -> bool:
    """A task that says how far it is, until that was heard."""
    path, name = task
    context.report(name, "a")
    context.report(name, "b")
    until = time.monotonic() + PATIENCE_SECONDS
    while not (is_heard := os.path.exists(path)) and time.monotonic() < until:
        threading.Event().wait(0.02)
    return is_heard


def _end_at_two(number: int, context: TaskContext) -> int:
    """A task whose process is killed."""
    del context
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number

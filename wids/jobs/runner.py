"""One function on many tasks: here, in threads, in processes of this machine, or on a Ray cluster.

`run_with` yields each task's result as soon as it is available, in any order. A failed task loses only its own result.
When the iterator is closed, waiting tasks never start, and running tasks are cancelled and waited for, so that nothing
is written afterwards. The function takes the task and a `TaskContext`. For processes and Ray, the function, the tasks
and the results are pickled.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import pickle
import queue
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, Protocol, TypeAlias, TypeVar, get_args

import msgspec

from wids.errors import InputError, JobError
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

T = TypeVar("T")
R = TypeVar("R")

EngineName: TypeAlias = Literal["auto", "local", "threads", "processes", "ray"]
_ENGINES = (*get_args(EngineName), "here")
ENGINE_WORDS = "'auto', 'threads', 'processes', 'ray' or RunOptions"
UNGUARDED = 'a script that uses processes needs `if __name__ == "__main__":` around its work'
# Called with the number of a task and with its report.
OnReport: TypeAlias = "Callable[..., None]"
# Tasks at a time on a Ray cluster, unless the caller sets ``jobs``.
_RAY_JOBS = 64
MAX_JOBS = 1 << 20
# `run` calls ``tick`` at least this often; a runner that is closed waits this long for its tasks.
POLL_SECONDS, END_SECONDS = 0.25, 10.0


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The engine of a job.

    Attributes:
        jobs: tasks at a time, 2^20 at most; None: the job chooses.
        engine: ``"threads"`` or ``"processes"`` of this machine; ``"auto"`` or ``"local"``: the job chooses one of
            them; ``"ray"``: a Ray cluster, whose nodes need wids and access to the shards.
        ray_address: of the cluster; see `wids.jobs.ray_cluster.connect`.
        num_cpus: of Ray: processors that a task takes; None: 1.
        num_gpus: of Ray: accelerators that a task takes, also a part of one; None: 0.

    Example:
        >>> jobs.verify("train.json", engine=jobs.RunOptions(jobs=2, engine="threads")).wrong
        []
    """

    jobs: Annotated[int, msgspec.Meta(ge=1, le=MAX_JOBS)] | None = None
    engine: EngineName = "auto"
    ray_address: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    num_cpus: Annotated[float, msgspec.Meta(ge=0)] | None = None
    num_gpus: Annotated[float, msgspec.Meta(ge=0)] | None = None

    @property
    def is_ray(self) -> bool:
        """True if a Ray cluster runs it."""
        return self.engine == "ray"

    @property
    def is_automatic(self) -> bool:
        """True if the job decides between threads and processes."""
        return self.engine in ("auto", "local")

    def resolve(self, engine: Literal["here", "threads", "processes"], jobs: int) -> RunOptions:
        """These options, with the job's defaults for open ones.

        Args:
            engine: in place of ``"auto"`` and ``"local"``.
            jobs: in place of None; on Ray there is another default.
        """
        chosen: Any = engine if self.is_automatic else self.engine
        return msgspec.structs.replace(self, jobs=self.jobs or (_RAY_JOBS if self.is_ray else jobs), engine=chosen)


# The ``engine`` argument of a job.
Engine: TypeAlias = EngineName | RunOptions


def run_options(engine: Engine) -> RunOptions:
    """The options for an ``engine`` argument.

    Raises:
        InputError: no such engine exists; or a starting worker process runs the caller's script again, because the
            script has no ``if __name__ == "__main__":``.
    """
    process = multiprocessing.current_process()
    if process.name == "wids-job" and getattr(process, "_inheriting", False):
        raise InputError(f"a job began while one of its processes started: {UNGUARDED}")
    options = engine if isinstance(engine, RunOptions) else RunOptions(engine=engine)
    if options.engine not in _ENGINES:
        raise InputError(f"engine={options.engine!r}: give {ENGINE_WORDS}")
    if not options.is_ray:
        for name in ("num_cpus", "num_gpus"):
            if getattr(options, name) is not None:
                raise InputError(f"{name} is of a Ray cluster: give engine='ray' too", parameter=name)
    return options


@dataclass(frozen=True)
class TaskContext:
    """The functions that a runner gives to a task.

    Attributes:
        is_cancelled: returns whether the result is no longer wanted. On Ray, cancelling raises an exception instead.
        report: passes its arguments to ``on_report`` of `run`, in the process that called `run`. Reports may be lost,
            so each one includes all progress so far.
    """

    is_cancelled: Callable[[], bool] = lambda: False
    report: Callable[..., None] = lambda *_: None

    def wait_cancelled(self, seconds: float) -> bool:
        """Wait until the task is cancelled or the time is over; return whether it is cancelled."""
        until = time.monotonic() + seconds
        while not (is_cancelled := self.is_cancelled()) and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, POLL_SECONDS))
        return is_cancelled


@dataclass(frozen=True)
class TaskResult(Generic[R]):
    """The result of a task.

    Attributes:
        k: the number of the task.
        value: the function's result.
        error: the exception that it raised instead.
    """

    k: int
    value: R | None = None
    error: BaseException | None = None

    def get(self) -> R:
        """Return the function's result, or raise its exception."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


class Runner(Protocol):
    """The interface of engines: runs tasks. One thread uses it."""

    def give(self, k: int, task: Any) -> None:
        """Start task number ``k``. `run` has at most ``jobs`` tasks started at a time.

        Raises:
            JobError: no task can run.
        """

    def take(self, seconds: float) -> list[TaskResult[Any]]:
        """The results of the tasks that have ended; waits at most ``seconds`` for the first."""

    def close(self) -> None:
        """Cancel the running tasks, and wait some seconds for their end."""


def run_with(
    runner: Runner, tasks: Iterable[T], *, jobs: int, tick: Callable[[], None] = lambda: None
) -> Generator[TaskResult[Any], None, None]:
    """Run all tasks on a runner, ``jobs`` at a time, and close it; see `run`."""
    waiting = enumerate(tasks)
    under_way = 0
    try:
        while True:
            for k, task in itertools.islice(waiting, jobs - under_way):
                runner.give(k, task)
                under_way += 1
            if not under_way:
                return
            for result in runner.take(POLL_SECONDS):
                under_way -= 1
                yield result
            tick()
    finally:
        runner.close()


def ignore_report(*_: Any) -> None:
    """Drop a report."""


def call(
    function: Callable[..., Any],
    k: int,
    task: Any,
    is_cancelled: Callable[[], bool] = lambda: False,
    report: Callable[..., None] = ignore_report,
) -> TaskResult[Any]:
    """Run the function on task number ``k``, which is the first argument of ``report``."""
    try:
        return TaskResult(k, function(task, TaskContext(is_cancelled, partial(report, k))))
    except Exception as error:  # noqa: BLE001 - it is the task's result
        logger.debug("task %d failed", k, exc_info=True)
        return TaskResult(k, error=error)


def portable(result: TaskResult[Any]) -> TaskResult[Any]:
    """A result that can be pickled: a `JobError` with the message replaces an error that cannot."""
    if result.error is None:
        return result
    with contextlib.suppress(Exception):
        if type(pickle.loads(pickle.dumps(result.error))) is type(result.error):  # noqa: S301 - our own
            return result
    return TaskResult(result.k, error=JobError(f"{type(result.error).__name__}: {result.error}"))


class SerialRunner:
    """Runs each task in `take`, in the caller's thread."""

    def __init__(self, function: Callable[..., Any], on_report: OnReport) -> None:
        self._function, self._on_report = function, on_report
        self._waiting: list[tuple[int, Any]] = []

    def give(self, k: int, task: Any) -> None:
        """Queue a task."""
        self._waiting.append((k, task))

    def take(self, seconds: float) -> list[TaskResult[Any]]:  # noqa: ARG002 - it takes as long as the task
        """Run the next task."""
        return [call(self._function, *self._waiting.pop(0), report=self._on_report)]

    def close(self) -> None:
        """There is nothing to end."""


class ThreadRunner:
    """Runs tasks in threads of this process: for work that waits for a network or a disk."""

    def __init__(self, function: Callable[..., Any], on_report: OnReport) -> None:
        self._function, self._on_report = function, on_report
        self._tasks: queue.SimpleQueue[tuple[int, Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[TaskResult[Any] | tuple[Any, ...]] = queue.SimpleQueue()
        self._cancelled = threading.Event()
        self._under_way = 0
        # Not joined: a join that an exception ends takes its thread for ended from then on (Python 3.11).
        self._ends: list[threading.Event] = []

    def give(self, k: int, task: Any) -> None:
        """Start a task, in a new thread if all threads are busy."""
        self._under_way += 1
        self._tasks.put((k, task))
        if self._under_way > len(self._ends):
            self._ends.append(threading.Event())
            # Not concurrent.futures: the interpreter waits at its exit for the threads of its pools, without a limit.
            threading.Thread(target=self._work, args=(self._ends[-1],), daemon=True, name="wids-job").start()

    def take(self, seconds: float) -> list[TaskResult[Any]]:
        """The results of the tasks that have ended."""
        results = []
        with contextlib.suppress(queue.Empty):
            answer = self._answers.get(timeout=seconds)
            while True:
                if isinstance(answer, TaskResult):
                    self._under_way -= 1
                    results.append(answer)
                else:
                    self._on_report(*answer)
                answer = self._answers.get_nowait()
        return results

    def close(self) -> None:
        """Cancel the running tasks, and wait some seconds for their threads."""
        self._cancelled.set()
        for _ in self._ends:
            self._tasks.put(None)
        until = time.monotonic() + END_SECONDS
        for end in self._ends:
            end.wait(max(until - time.monotonic(), 0.0))

    def _work(self, end: threading.Event) -> None:
        def report(*state: Any) -> None:
            self._answers.put(state)

        try:
            while (given := self._tasks.get()) is not None and not self._cancelled.is_set():
                try:
                    self._answers.put(call(self._function, *given, self._cancelled.is_set, report))
                except BaseException as error:  # noqa: BLE001 - without an answer, `take` would wait for ever
                    self._answers.put(TaskResult(given[0], error=error))
        finally:
            end.set()

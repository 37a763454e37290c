"""One function on many tasks: here, in threads, in processes of this machine, or on a Ray cluster.

`run` yields the result of each task as soon as it is available, in any order. A failed task loses only its own result.
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
UNGUARDED = 'a script that uses processes needs `if __name__ == "__main__":` around what it does'
# Takes a task's number and what it reports.
OnReport: TypeAlias = "Callable[..., None]"
# Tasks at a time on a Ray cluster, unless that is said.
_RAY_JOBS = 64
# How long `run` waits before it calls ``tick`` again, and how long a runner waits for its tasks to end.
POLL_SECONDS, END_SECONDS = 0.25, 10.0


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The engine of a job.

    Attributes:
        jobs: tasks at a time; None: as many as the job thinks best.
        engine: ``"auto"`` and ``"local"``: this machine, in threads or processes as the job thinks best; ``"ray"``: a
            Ray cluster, whose nodes need wids and can reach the shards.
        ray_address: of the cluster; see `wids.jobs.ray_cluster.connect`.
    """

    jobs: Annotated[int, msgspec.Meta(ge=1)] | None = None
    engine: EngineName = "auto"
    ray_address: str | None = None

    @property
    def is_ray(self) -> bool:
        """Whether a Ray cluster runs it."""
        return self.engine == "ray"

    @property
    def is_automatic(self) -> bool:
        """Whether the job decides between threads and processes."""
        return self.engine in ("auto", "local")

    def resolve(self, engine: Literal["here", "threads", "processes"], jobs: int) -> RunOptions:
        """These options, with the job's defaults for open ones."""
        chosen: Any = engine if self.is_automatic else self.engine
        return msgspec.structs.replace(self, jobs=self.jobs or (_RAY_JOBS if self.is_ray else jobs), engine=chosen)


# What runs a job: a name, or options that say more.
Engine: TypeAlias = EngineName | RunOptions


def run_options(engine: Engine) -> RunOptions:
    """The options that a name stands for.

    Raises:
        InputError: it is none, or this is a script that a process of a job reads again, as it is not guarded.
    """
    process = multiprocessing.current_process()
    if process.name == "wids-job" and getattr(process, "_inheriting", False):
        raise InputError(f"a job began while one of its processes started: {UNGUARDED}")
    options = engine if isinstance(engine, RunOptions) else RunOptions(engine=engine)
    if options.engine not in _ENGINES:
        raise InputError(f"engine {options.engine!r} is none of threads, processes and ray")
    return options


@dataclass(frozen=True)
class TaskContext:
    """The interface of a function to the runner of its task.

    Attributes:
        is_cancelled: whether the result is no longer wanted. On Ray, an exception is raised instead.
        report: tells the task's progress. Its arguments are passed to ``on_report`` of `run`, in the process that
            called it. A report includes all earlier ones, some of which may be lost.
    """

    is_cancelled: Callable[[], bool] = lambda: False
    report: Callable[..., None] = lambda *_: None

    def wait_cancelled(self, seconds: float) -> bool:
        """Wait; whether it was cancelled."""
        until = time.monotonic() + seconds
        while not (is_cancelled := self.is_cancelled()) and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, POLL_SECONDS))
        return is_cancelled


@dataclass(frozen=True)
class TaskResult(Generic[R]):
    """The end of a task.

    Attributes:
        k: its number. value: the function's result. error: its exception instead.
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
    """The interface of engines: works on tasks; used by one thread."""

    def give(self, k: int, task: Any) -> None:
        """Begin a task, ``k`` being its number; never more at a time than ``jobs`` of `run`.

        Raises:
            JobError: no task can be run at all.
        """

    def take(self, seconds: float) -> list[TaskResult[Any]]:
        """The tasks that have ended; waits for the first of them, but no longer than ``seconds``."""

    def close(self) -> None:
        """Cancel tasks that have not ended, and wait for them, but not for ever."""


def run(
    function: Callable[[T, TaskContext], R],
    tasks: Iterable[T],
    options: RunOptions,
    *,
    tick: Callable[[], None] = lambda: None,
    on_report: OnReport | None = None,
    node_of: Callable[[T], str] | None = None,
) -> Generator[TaskResult[R], None, None]:
    """Run ``function`` on all tasks; to be closed, as by `contextlib.closing`.

    Args:
        function: takes a task and a `TaskContext`.
        tasks: taken one by one, as others end.
        options: with ``jobs`` and an engine that is not automatic.
        tick: called after each wait for results, several times a second, by the thread that takes the results.
        on_report: called in that thread with the number of a task under way and what it reports.
        node_of: the id of the Ray node that must run a task.

    Raises:
        JobError: no task can be run at all.
    """
    yield from run_with(_start(function, options, on_report, node_of), tasks, jobs=options.jobs or 1, tick=tick)


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


def _start(
    function: Callable[..., Any],
    options: RunOptions,
    on_report: OnReport | None,
    node_of: Callable[..., str] | None,
) -> Runner:
    engine: str = options.engine
    if engine == "ray":
        from wids.jobs.ray_cluster import RayRunner

        return RayRunner(function, on_report, address=options.ray_address, node_of=node_of)
    local: dict[str, Callable[..., Runner]] = {"threads": ThreadRunner, "here": SerialRunner}
    if engine == "processes":
        from wids.jobs.processes import ProcessRunner

        local[engine] = ProcessRunner
    if engine not in local:
        raise InputError(f"engine {engine!r} is none of threads, processes and ray")
    return local[engine](function, on_report or _ignore)


def _ignore(*_: Any) -> None:
    """No report is wanted."""


def call(
    function: Callable[..., Any],
    k: int,
    task: Any,
    is_cancelled: Callable[[], bool] = lambda: False,
    report: Callable[..., None] = _ignore,
) -> TaskResult[Any]:
    """Run the function on task number ``k``; ``report`` gets that number first."""
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
    """Runs a task in the thread that takes the results: it begins when they are waited for."""

    def __init__(self, function: Callable[..., Any], on_report: OnReport) -> None:
        self._function, self._on_report = function, on_report
        self._waiting: list[tuple[int, Any]] = []

    def give(self, k: int, task: Any) -> None:
        """Note a task."""
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
        """Begin a task, in a new thread if all others are at work."""
        self._under_way += 1
        self._tasks.put((k, task))
        if self._under_way > len(self._ends):
            self._ends.append(threading.Event())
            # Not those of concurrent.futures: an interpreter that ends waits for them, however long they take.
            threading.Thread(target=self._work, args=(self._ends[-1],), daemon=True, name="wids-job").start()

    def take(self, seconds: float) -> list[TaskResult[Any]]:
        """The tasks that have ended."""
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
        """Cancel tasks that have not ended, and wait for their threads for some seconds."""
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

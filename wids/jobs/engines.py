"""The engines that run tasks, by name: threads and processes of this machine, a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wids.errors import InputError
from wids.jobs.runner import ENGINE_WORDS, SerialRunner, ThreadRunner, ignore_report, run_with

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from wids.jobs.runner import OnReport, R, Runner, RunOptions, T, TaskContext, TaskResult


def run(
    function: Callable[[T, TaskContext], R],
    tasks: Iterable[T],
    options: RunOptions,
    *,
    tick: Callable[[], None] = lambda: None,
    on_report: OnReport | None = None,
    node_of: Callable[[T], str] | None = None,
) -> Generator[TaskResult[R], None, None]:
    """Run ``function`` on all tasks. Close the generator, for instance with `contextlib.closing`.

    Args:
        function: takes a task and a `TaskContext`.
        tasks: iterated as earlier tasks end.
        options: with ``jobs`` and an engine that is not automatic.
        tick: called several times a second, in the caller's thread.
        on_report: called in the caller's thread with the number of a running task and its report.
        node_of: the id of the Ray node that must run a task.

    Raises:
        JobError: no task can run.
    """
    yield from run_with(_start(function, options, on_report, node_of), tasks, jobs=options.jobs or 1, tick=tick)


def _start(
    function: Callable[..., Any],
    options: RunOptions,
    on_report: OnReport | None,
    node_of: Callable[..., str] | None,
) -> Runner:
    engine: str = options.engine
    if engine == "ray":
        from wids.jobs.ray_cluster import RayRunner

        return RayRunner(
            function,
            on_report,
            address=options.ray_address,
            node_of=node_of,
            num_cpus=1 if options.num_cpus is None else options.num_cpus,
            num_gpus=options.num_gpus or 0,
        )
    local: dict[str, Callable[..., Runner]] = {"threads": ThreadRunner, "here": SerialRunner}
    if engine == "processes":
        from wids.jobs.processes import ProcessRunner

        local[engine] = ProcessRunner
    if engine not in local:
        raise InputError(f"engine={engine!r}: give {ENGINE_WORDS}")
    return local[engine](function, on_report or ignore_report)

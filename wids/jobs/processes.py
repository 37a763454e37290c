"""Worker processes. A pipe connects each of them with its parent.

A worker ends when its parent ends, even by a kill. When a worker dies, only its current task fails. Signals from a
terminal reach the parent alone, which ends its workers.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from wids.errors import JobError, WorkerError
from wids.jobs.runner import UNGUARDED, TaskResult, call, portable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from wids.jobs.runner import OnReport

_END_SECONDS = 5.0
_OF_TERMINALS = (signal.SIGINT, signal.SIGHUP)


class _Worker(NamedTuple):
    """A process, and the parent's end of its pipe."""

    process: SpawnProcess
    connection: Connection


class ProcessRunner:
    """Runs tasks in processes of this machine: for work that is CPU-bound or may crash."""

    def __init__(self, function: Callable[..., Any], on_report: OnReport) -> None:
        self._function, self._on_report = function, on_report
        self._context = multiprocessing.get_context("spawn")  # a fork would copy the locks that other threads hold
        self._idle: list[_Worker] = []
        self._at_work: dict[Connection, tuple[int, _Worker]] = {}
        self._refused: list[TaskResult[Any]] = []
        self._is_serving = False  # whether any process has started to take tasks

    def give(self, k: int, task: Any) -> None:
        """Start a task, in a new process if all processes are busy."""
        worker = self._idle.pop() if self._idle else self._begin()
        self._at_work[worker.connection] = k, worker
        try:
            worker.connection.send((k, task))
        except OSError:  # the process has ended, which `take` reports
            pass
        except Exception as error:  # noqa: BLE001 - the task cannot be pickled, and nothing was sent
            del self._at_work[worker.connection]
            self._idle.append(worker)
            self._refused.append(portable(TaskResult(k, error=error)))

    def take(self, seconds: float) -> list[TaskResult[Any]]:
        """The results of the tasks that have ended, or whose process has ended."""
        results, self._refused = self._refused, []
        wait = 0.0 if results else seconds
        for connection in multiprocessing.connection.wait([*self._at_work], wait):
            k, worker = self._at_work[connection]  # type: ignore[index]
            try:
                answer = worker.connection.recv()
            except (EOFError, OSError):
                del self._at_work[worker.connection]
                error = _lost(worker)
                if error.found == 1 and not self._is_serving:  # the exit code of Python after an uncaught exception
                    raise JobError(
                        f"no process could begin its work: {UNGUARDED}; otherwise see its error above"
                    ) from error
                results.append(TaskResult(k, error=error))
                continue
            except Exception as unpickled:  # noqa: BLE001 - the result cannot be unpickled
                answer = TaskResult(k, error=unpickled)
            if answer is None:
                self._is_serving = True
            elif isinstance(answer, TaskResult):
                del self._at_work[worker.connection]
                self._idle.append(worker)
                results.append(answer)
            else:
                self._on_report(*answer)
        return results

    def close(self) -> None:
        """End the processes. Busy ones get SIGTERM, after which they delete their part files."""
        at_work = [worker for _, worker in self._at_work.values()]
        workers = [*self._idle, *at_work]
        self._idle, self._at_work = [], {}
        for worker in at_work:
            worker.process.terminate()
        for worker in workers:
            worker.connection.close()
        until = time.monotonic() + _END_SECONDS
        for worker in workers:
            worker.process.join(max(until - time.monotonic(), 0.0))
            if worker.process.exitcode is None:
                worker.process.kill()
                worker.process.join()
            worker.process.close()

    def _begin(self) -> _Worker:
        ours, its = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(its, self._function), daemon=True, name="wids-job")
        with signals_blocked():
            process.start()
        its.close()
        return _Worker(process, ours)


def _lost(worker: _Worker) -> WorkerError:
    worker.process.join(_END_SECONDS)
    if worker.process.exitcode is None:  # it closed its pipe and still runs
        worker.process.kill()
        worker.process.join()
    code = worker.process.exitcode
    worker.connection.close()
    worker.process.close()
    return WorkerError(
        f"a process ended with exit code {code} in the middle of a task; is there enough memory for all processes?",
        found=code,
    )


def _serve(connection: Connection, function: Callable[..., Any]) -> None:
    """In a worker: run the function on the tasks from the pipe, until the parent closes it."""
    for number in _OF_TERMINALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_end_with_parent, daemon=True, name="wids-parent").start()

    def report(*state: Any) -> None:
        connection.send(state)

    with contextlib.suppress(EOFError, OSError):
        connection.send(None)
        while True:
            k, task = connection.recv()
            result = portable(call(function, k, task, connection.poll, report))
            try:
                connection.send(result)
            except OSError:
                raise
            except Exception as error:  # noqa: BLE001 - the result cannot be pickled
                connection.send(portable(TaskResult(k, error=error)))


def _end(*_: object) -> NoReturn:
    """Leave all blocks, so that part files are removed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + signal.SIGTERM)


def _end_with_parent() -> None:
    """End this worker after its parent: a kill of the parent sends no signal to its workers."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """In this block, a new process inherits a mask that blocks the signals of a terminal.

    A signal that this process receives is handled after the block: its handler would interrupt the start, and the new
    process would print an error.
    """
    came: list[int] = []
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if callable(handler := signal.getsignal(number)):
                handlers[number] = handler
                signal.signal(number, lambda got, _: came.append(got))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_TERMINALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for one in came[:1]:
            signal.raise_signal(one)

"""Processes that write shards.

Rules: each has a pipe of its own to the process that started it, so that either notices when the other is gone: who is
killed leaves nobody behind who goes on. Ctrl-C reaches the starting process alone, which ends the others.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import multiprocessing
import multiprocessing.connection
import os
import signal
from typing import TYPE_CHECKING, Any

from wids.errors import WidsError
from wids.transport.upload import local_path
from wids.writing.pack.shard import write_shard

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from multiprocessing.connection import Connection

    from typing_extensions import Self

    from wids.writing.pack.plan import Task
    from wids.writing.pack.shard import Done, Job

_END_SECONDS = 5.0


def write_shards(
    job: Job, tasks: Iterable[Task], *, jobs: int, tell: Callable[[int, int], None]
) -> Generator[Done, None, None]:
    """Write shards, several at a time, in whatever order they get done; closing the iterator ends the processes.

    Args:
        job: of the run.
        tasks: the shards.
        jobs: processes; 1: none but this one.
        tell: called with (samples, bytes) that were written since the last call.

    Raises:
        WidsError: a shard cannot be written, or a process was killed.
    """
    if jobs <= 1:
        for task in tasks:
            yield write_shard(job, task, tell)
        return
    with _Workers(job) as workers:
        yield from workers.run(tasks, jobs, tell)


class _Workers:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.context = multiprocessing.get_context("spawn")  # this process may have threads: fsspec's
        self.processes: dict[Connection, Any] = {}
        self.at_work: dict[Connection, int] = {}

    def run(self, tasks: Iterable[Task], jobs: int, tell: Callable[[int, int], None]) -> Iterator[Done]:
        waiting = iter(tasks)
        for task in waiting:
            self.give(self.start(), task)
            if len(self.processes) >= jobs:
                break
        while self.at_work:
            for ready in multiprocessing.connection.wait(list(self.at_work)):
                connection: Any = ready
                try:
                    kind, value = connection.recv()
                except (EOFError, OSError):
                    self.raise_lost(connection)
                if kind == "told":
                    tell(*value)
                    continue
                if kind == "failed":
                    raise value
                del self.at_work[connection]
                for task in itertools.islice(waiting, 1):
                    self.give(connection, task)
                yield value

    def start(self) -> Connection:
        ours, its = self.context.Pipe()
        process = self.context.Process(target=_serve, args=(its, self.job), daemon=True, name="wids-pack")
        with _interrupts_blocked():
            process.start()
        its.close()
        self.processes[ours] = process
        return ours

    def give(self, connection: Connection, task: Task) -> None:
        self.at_work[connection] = task.k
        try:
            connection.send(task)
        except OSError:
            self.raise_lost(connection)

    def raise_lost(self, connection: Connection) -> None:
        process = self.processes[connection]
        process.join(_END_SECONDS)
        url = self.job.pattern.url(self.at_work[connection])
        raise WidsError(
            f"{url}: the process that wrote it ended with exit code {process.exitcode}; is there memory for all of "
            "them? Run it again, with fewer --jobs: what is done stays"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection, process in self.processes.items():
            if connection in self.at_work:
                process.terminate()
            connection.close()
        for process in self.processes.values():
            process.join(_END_SECONDS)
            if process.exitcode is None:
                process.kill()
                process.join()
            self.remove_parts(process.pid)

    def remove_parts(self, pid: int) -> None:
        """Remove what a process that was ended had under way; a remote shard's is in a directory that goes anyway."""
        if self.job.directory is None:
            directory = os.path.dirname(local_path(self.job.pattern.url(0)))
            for path in glob.glob(f"{glob.escape(directory)}/*.tar*.{pid}-*.part"):
                with contextlib.suppress(OSError):
                    os.unlink(path)


def _serve(connection: Connection, job: Job) -> None:
    """In a process of its own: write what comes through the pipe, until it is closed."""

    def tell(samples: int, size: int) -> None:
        connection.send(("told", (samples, size)))

    with contextlib.suppress(EOFError, OSError):  # nobody is there any more
        while True:
            task = connection.recv()
            answer: tuple[str, Any]
            try:
                answer = "done", write_shard(job, task, tell)
            except BrokenPipeError:
                return
            except WidsError as error:
                answer = "failed", error
            except Exception as error:  # noqa: BLE001 - the edge of a process; it is raised in the other one
                answer = "failed", WidsError(f"{job.pattern.url(task.k)}: {type(error).__name__}: {error}")
            connection.send(answer)


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """A process that is started meanwhile never gets SIGINT: not while Python starts, nor later."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

"""The demo's ranks: started, listened to, and ended together.

Rules: a signal to a rank's process group reaches its workers too, even when the rank itself is dead; Ctrl-C in a
terminal reaches the parent alone, which decides. Messages are pickled values in one pipe for each rank: no lock is
shared that a killed process could leave locked.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.resource_tracker
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

from wids.cli.demo.process import Failure, log_path, run_rank
from wids.cli.demo.train import Progress, Result
from wids.errors import WidsError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess
    from types import TracebackType

    from typing_extensions import Self

    from wids.cli.demo.train import Job
    from wids.cli.signals import Signals

_POLL_SECONDS = 0.2
_GRACE_SECONDS = 2.0
_BLAME_SECONDS = 5.0


class Ranks:
    """The running ranks of one job; leaving the ``with`` block ends whatever still runs."""

    def __init__(self, job: Job, *, signals: Signals) -> None:
        self._job = job
        self._signals = signals
        self._processes: list[SpawnProcess] = []
        self._receivers: list[Connection] = []

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        _start_tracker()
        try:
            with self._signals.held(), _interrupts_blocked():
                for rank in range(self._job.ranks):
                    receiver, sender = context.Pipe(duplex=False)
                    self._receivers.append(receiver)
                    process = context.Process(target=run_rank, args=(self._job, rank, sender))
                    process.start()
                    self._processes.append(process)
                    sender.close()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        """End every rank and its workers: asked first, then killed. It must not be interrupted, and takes seconds."""
        self._signals.hold()
        for process in self._processes:
            _signal_group(process, signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_SECONDS
        while time.monotonic() < deadline and any(_is_running(process) for process in self._processes):
            time.sleep(0.02)
        for process in self._processes:
            _signal_group(process, signal.SIGKILL)
            process.join()
            process.close()
        for receiver in self._receivers:
            receiver.close()

    def watch(self) -> Iterator[Progress | Result]:
        """What the ranks send, until each has sent its result.

        Raises:
            WidsError: a rank failed or died.
        """
        waiting: dict[Any, int] = {receiver: rank for rank, receiver in enumerate(self._receivers)}
        while waiting:
            # Not on the processes' sentinels: a dead rank's workers hold theirs open for seconds.
            for receiver in multiprocessing.connection.wait(list(waiting), timeout=_POLL_SECONDS):
                message = _receive(receiver)
                if isinstance(message, Failure):
                    self._raise(message)
                elif message is None:
                    self._raise_death(waiting[receiver])
                else:
                    if isinstance(message, Result):
                        del waiting[receiver]
                    yield message
            for receiver, rank in waiting.items():
                if not self._processes[rank].is_alive() and not receiver.poll():
                    self._raise_death(rank)
        for process in self._processes:
            process.join(_GRACE_SECONDS)  # they have nothing left to do

    def _raise(self, failure: Failure) -> NoReturn:
        # A rank that lost its partner complains at once; what befell the partner is the news, and may take longer.
        others: dict[Any, int] = {one: rank for rank, one in enumerate(self._receivers) if rank != failure.rank}
        deadline = time.monotonic() + _BLAME_SECONDS
        while others and _is_about_partner(failure) and time.monotonic() < deadline:
            ready = multiprocessing.connection.wait(list(others), timeout=_POLL_SECONDS)
            heard = {receiver: _receive(receiver) for receiver in ready}
            failure = next((message for message in heard.values() if isinstance(message, Failure)), failure)
            for receiver, rank in list(others.items()):
                if rank != failure.rank and self._processes[rank].exitcode:
                    self._raise_death(rank)
                has_more = receiver.poll() and heard.get(receiver, failure) is not None  # its end can be read, too
                if not has_more and not self._processes[rank].is_alive():
                    del others[receiver]
        raise WidsError(f"rank {failure.rank} failed: {failure.message}") from RuntimeError(failure.trace)

    def _raise_death(self, rank: int) -> NoReturn:
        self._processes[rank].join(_GRACE_SECONDS)
        code = self._processes[rank].exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        last = "" if code == -signal.SIGKILL else _last_line(log_path(self._job, rank))  # that leaves no last words
        raise WidsError(
            f"rank {rank} {how} in mid-run; the others were ended" + (f" (it said: {last})" if last else "")
        )


def _receive(receiver: Any) -> Progress | Result | Failure | None:
    """The next message; None when whoever could send one is gone."""
    try:
        return receiver.recv()  # type: ignore[no-any-return]
    except (EOFError, OSError):
        return None


def _is_about_partner(failure: Failure) -> bool:
    return not failure.is_told and "by peer" in failure.message


def _last_line(path: str) -> str:
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        lines = [line.strip() for line in file.read().splitlines() if line.strip()]
        return lines[-1] if lines else ""
    return ""


def _start_tracker() -> None:
    """Start the process that frees what killed processes leave, before any signal is blocked: it would unblock them.

    It warns of each such thing on our stderr, where it would look like an error; it inherits the option not to.
    """
    sys.warnoptions.append("ignore::UserWarning:multiprocessing.resource_tracker")
    try:
        multiprocessing.resource_tracker.ensure_running()
    finally:
        sys.warnoptions.pop()


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Processes started here inherit the block: Ctrl-C before a rank has its own group must not reach it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _signal_group(process: SpawnProcess, number: int) -> None:
    """Signal a rank and its workers; also those that outlived their rank."""
    pid = process.pid
    if pid is None:
        return
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):  # it has no group yet, or all are gone
        if process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _is_running(process: SpawnProcess) -> bool:
    if process.is_alive():
        return True
    try:
        os.killpg(process.pid or 0, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True

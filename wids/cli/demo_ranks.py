"""The demo's processes: started, listened to, and ended together.

Rules: each rank leads a process group that its DataLoader workers belong to, so that a signal reaches them all even
when their rank is dead, and Ctrl-C in a terminal reaches the parent alone, which decides. A rank whose parent is gone
ends itself. What ranks print goes to a file. Messages are pickled values in one pipe for each rank: no lock is shared
that a killed process could leave locked.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.resource_tracker
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from wids.cli.demo_train import Progress, Result, leave, train
from wids.errors import WidsError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess
    from types import TracebackType

    from typing_extensions import Self

    from wids.cli.demo_signals import Signals
    from wids.cli.demo_train import Job

_POLL_SECONDS = 0.2
_GRACE_SECONDS = 2.0
_BLAME_SECONDS = 5.0
# Together they fit in PIPE_BUF, so that a message is written whole or not at all.
_LONGEST_MESSAGE = _LONGEST_TRACE = 1200
# A socket in a temporary directory of a rank has 32 more characters; the kernel takes 107.
_LONGEST_SOCKET_HOME = 75


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a rank gave up. ``is_told``: by an error of wids, whose message says all."""

    rank: int
    message: str
    is_told: bool
    trace: str


class Ranks:
    """The running ranks of one job; leaving the ``with`` block ends whatever still runs."""

    def __init__(self, job: Job, *, signals: Signals) -> None:
        self._job = job
        self._signals = signals
        self._processes: list[SpawnProcess] = []
        self._receivers: list[Connection] = []

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        # Started by itself: it would unblock the signals that are blocked for the ranks below.
        multiprocessing.resource_tracker.ensure_running()
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

    @property
    def pids(self) -> list[int]:
        """The ranks' process ids."""
        return [process.pid or 0 for process in self._processes]

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
            for receiver in multiprocessing.connection.wait(list(others), timeout=_POLL_SECONDS):
                message = _receive(receiver)
                if isinstance(message, Failure):
                    failure = message
                elif message is None:
                    del others[receiver]
            for rank, process in enumerate(self._processes):
                if rank != failure.rank and process.exitcode:
                    self._raise_death(rank)
        raise WidsError(f"rank {failure.rank} failed: {failure.message}") from RuntimeError(failure.trace)

    def _raise_death(self, rank: int) -> NoReturn:
        self._processes[rank].join(_GRACE_SECONDS)
        code = self._processes[rank].exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        last = _last_line(_log_path(self._job, rank))
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


def run_rank(job: Job, rank: int, sender: Connection) -> None:
    """The main function of a rank's process: train, send the result or the failure, end."""
    os.setpgid(0, 0)
    # A spawned process spawns its workers too, each of which would import torch anew; a rank that torchrun or a
    # scheduler starts has the platform's default, and so has this one.
    multiprocessing.set_start_method(None, force=True)
    multiprocessing.set_forkserver_preload(["torch", "wids.dataset"])
    signal.signal(signal.SIGTERM, leave)
    _end_with_parent()
    _redirect_output(_log_path(job, rank))
    if len(job.directory) <= _LONGEST_SOCKET_HOME:
        # multiprocessing puts the sockets that tensors come through there, and a killed process would leave them.
        os.environ["TMPDIR"] = tempfile.tempdir = job.directory
    try:
        sender.send(train(job, rank, sender.send))
    except Exception as error:  # noqa: BLE001 - the edge of the process: whatever it was, the parent tells it
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would raise again, in the middle of sending
        trace = traceback.format_exc()
        print(trace, file=sys.stderr, flush=True)
        message, is_told = explain(error)
        sender.send(Failure(rank=rank, message=message, is_told=is_told, trace=trace[-_LONGEST_TRACE:]))
    except SystemExit:  # asked to end, and so were the workers
        os._exit(128 + signal.SIGTERM)
    os._exit(0)  # all that matters is sent or on disk, and torch takes the interpreter's own way out for seconds


def explain(error: Exception) -> tuple[str, bool]:
    """(one line, whether that says all): an error from a DataLoader worker arrives as a whole traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    is_told = isinstance(error, WidsError)
    if lines[0].startswith("Caught ") and len(lines) > 1:
        name, _, message = lines[-1].partition(": ")
        return (message if is_told else f"{name}: {message}")[:_LONGEST_MESSAGE], is_told
    return (lines[0] if is_told else f"{type(error).__name__}: {lines[0]}")[:_LONGEST_MESSAGE], is_told


def _end_with_parent() -> None:
    """Have a thread kill this process group when the parent is gone, however it went."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    sentinel = parent.sentinel

    def wait() -> None:
        multiprocessing.connection.wait([sentinel])
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def _redirect_output(path: str) -> None:
    """Send what this process and its libraries print to a file: gloo writes to stdout as it likes."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def _log_path(job: Job, rank: int) -> str:
    return os.path.join(job.directory, f"rank-{rank}.log")


def _last_line(path: str) -> str:
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        lines = [line.strip() for line in file.read().splitlines() if line.strip()]
        return lines[-1] if lines else ""
    return ""


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

"""The process of one rank of the demo: the frame around its training, from its first step to its last.

Rules: it leads a process group that its DataLoader workers belong to, ends itself when its parent is gone, and prints
to a file. Whatever happens in it, the parent is told in one message, or finds it dead.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import tempfile
import threading
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wids.cli.demo.train import leave, train
from wids.errors import WidsError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from wids.cli.demo.train import Job

# Together they fit in PIPE_BUF (4,096 bytes), so that a message is written whole or not at all.
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


def run_rank(job: Job, rank: int, sender: Connection) -> None:
    """The main function of a rank's process: train, send the result or the failure, end."""
    os.setpgid(0, 0)
    # A spawned process spawns its workers too, each of which would import torch anew; a rank that torchrun or a
    # scheduler starts has the platform's default, and so has this one.
    multiprocessing.set_start_method(None, force=True)
    multiprocessing.set_forkserver_preload(["torch", "wids.dataset"])
    signal.signal(signal.SIGTERM, leave)
    _end_with_parent()
    _redirect_output(log_path(job, rank))
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


def log_path(job: Job, rank: int) -> str:
    """Where a rank and its workers print to."""
    return os.path.join(job.directory, f"rank-{rank}.log")

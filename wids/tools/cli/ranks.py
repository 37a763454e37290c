"""Ranks of this machine for ``wids demo`` and ``wids bench``: torchrun starts them, watches them and ends them."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from typing import IO, TYPE_CHECKING, Any, cast

from wids.errors import JobError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wids.tools.cli.signals import Signals

# Of prctl, on Linux: the signal that a process gets when its parent ends. Where there is no prctl, `max` does nothing.
_DEATH = 1
# A rank's sockets add 51 characters to this directory's path, and the kernel allows 107 in all.
_MAX_TEMPORARY_LENGTH = 50
# A rank in torchrun's report of a failure: its number, its exit code, and what it said.
_FAILURE = re.compile(r"rank +: (\d+) .*\n +exitcode +: (-?\d+) .*\n.*\n +traceback +: ((?s:.*?))\n(?=\[|-{9}|={9})")


@contextmanager
def torchrun(
    program: str, job: dict[str, Any], *, ranks: int, directory: str, signals: Signals, **environment: str
) -> Iterator[Iterator[str]]:
    """Start the ranks; at the end of the block they are ended, with their workers.

    Args:
        program: what each rank runs; it calls `end_with_stdin` in a thread.
        job: its argument, as JSON.
        ranks: how many.
        directory: for torchrun's files, and ``log``, what is written to stderr.
        signals: held back while they start and end.
        environment: variables of the ranks.

    Yields:
        The lines that they print, until all have ended.

    Raises:
        JobError: a rank failed or was killed.
    """
    # With this process's sys.path: python -m would put the current directory first.
    die = f"getattr(ctypes.CDLL(None), 'prctl', max)({_DEATH}, {int(signal.SIGTERM)})"  # when this process ends
    start = f"import ctypes, sys; {die}; sys.path[:] = {sys.path!r}; from torch.distributed.run import main; main()"
    flags = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={ranks}", f"--log-dir={directory}"]
    usual = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "2", "PYTHONPATH": os.pathsep.join(sys.path)}
    if ranks > 1:
        usual["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")  # as torchrun does, with a warning
    environment = {**os.environ, **usual, **environment}
    for _, name in socket.if_nameindex():
        if name in ("lo", "lo0"):  # else gloo looks up the host's name, which fails on a machine without network
            environment |= {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}
    with open(os.path.join(directory, "log"), "w+", encoding="utf-8", errors="replace") as log, ExitStack() as stack:
        with signals.held():
            process = subprocess.Popen(  # noqa: S603 - a fixed program, without a shell
                [sys.executable, "-c", start, *flags, program, json.dumps(job)],
                stdin=subprocess.PIPE,  # the ranks end when it is closed
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                text=True,
                start_new_session=True,  # Ctrl-C in a terminal reaches this process alone
            )
            stack.callback(_end, process, signals)
        yield cast("IO[str]", process.stdout)
        if process.wait():
            log.seek(0)
            raise JobError(explain(log.read()))


def _end(process: subprocess.Popen[str], signals: Signals) -> None:
    signals.hold()  # the rest must not be interrupted, and takes a few seconds at most
    process.terminate()
    process.communicate()  # closes stdin, and reads until every process has ended


def explain(log: str) -> str:
    """Say which rank failed first and why, by torchrun's report; the loss of a partner is not the cause."""
    found = [(int(rank), int(code), text.rstrip().rpartition("\n")[2]) for rank, code, text in _FAILURE.findall(log)]
    if not found:
        return f"the ranks could not be started: {log.rstrip().rpartition(chr(10))[2]}"
    # The last in the report is the first that torchrun saw; it ends the other ranks by SIGTERM, then SIGKILL.
    rank, code, text = min(
        reversed(found), key=lambda one: (one[1] >= 0 or one[1] == -signal.SIGTERM, "by peer" in one[2])
    )
    if code < 0:
        return f"rank {rank} was killed by {signal.Signals(-code).name} in mid-run; the others were ended"
    if text.lstrip().startswith("To enable traceback"):  # it left without an exception
        return f"rank {rank} ended with exit code {code} in mid-run; the others were ended"
    return f"rank {rank} failed: {text.strip().removeprefix('wids.errors.JobError: ')}"


def end_with_stdin() -> None:
    """In a rank: wait until the command closes stdin, or ends, which closes it too; then kill the process group.

    Earlier versions of torch hold the GIL while ranks meet; there, Linux kills a rank whose torchrun has ended.
    """
    getattr(ctypes.CDLL(None), "prctl", max)(_DEATH, int(signal.SIGKILL))
    while os.read(0, 1):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


@contextmanager
def temporary_directory(signals: Signals) -> Iterator[str]:
    """A directory for the block, in /tmp if the path of $TMPDIR is too long for the sockets in it."""
    usual = tempfile.gettempdir()
    parent = next((name for name in (usual, "/tmp") if len(os.fsencode(name)) <= _MAX_TEMPORARY_LENGTH), usual)  # noqa: S108
    with ExitStack() as stack:
        with signals.held():
            made = tempfile.TemporaryDirectory(prefix="wids-ranks-", dir=parent, ignore_cleanup_errors=True)
            directory = stack.enter_context(made)
            stack.callback(signals.hold)
        yield directory

"""Start the demo's ranks, watch them, and end them together.

Each rank has a session of its own, so that Ctrl-C in a terminal reaches the parent alone, and a signal to the rank's
process group reaches its workers too, even when the rank is dead.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from wids.errors import JobError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wids.cli.demo.train import DemoJob
    from wids.cli.signals import Signals

_POLL_SECONDS = 0.1
_GRACE_SECONDS = 2.0


@contextlib.contextmanager
def started(job: DemoJob, signals: Signals) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start the ranks; at the end of the block, those that still run are ended, with their workers."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with signals.held():
            for rank in range(job.ranks):
                processes.append(_start(job, rank))  # noqa: PERF401 - if the next rank cannot start, this one is in the list to be ended
        yield processes
    finally:
        signals.hold()  # the rest must not be interrupted, and takes a few seconds at most
        for number in (signal.SIGTERM, signal.SIGKILL):
            end = time.monotonic() + _GRACE_SECONDS
            groups = [process for process in processes if process.poll() != 0 and _signal_group(process, number)]
            while groups and time.monotonic() < end:
                time.sleep(0.02)
                groups = [process for process in groups if _signal_group(process, 0)]
        for process in processes:
            with process:  # closes its stdin, and waits
                pass


def watch(job: DemoJob, processes: list[subprocess.Popen[bytes]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the last report of each rank (see `train.train`) every 0.1 s, and once more when all have ended.

    Raises:
        JobError: a rank failed or was killed.
    """
    failed_at = math.inf
    while True:
        codes = [process.poll() for process in processes]
        has_ended = None not in codes
        if any(codes):
            failed_at = min(failed_at, time.monotonic())
            # A rank that failed for losing its partner may be seen before the partner: wait for the other exit codes.
            is_clear = has_ended or any(code is not None and code < 0 for code in codes)
            if is_clear or time.monotonic() - failed_at > _GRACE_SECONDS:
                raise JobError(explain(codes, [_last_line(job.log_path(rank)) for rank in range(job.ranks)]))
        yield [_last_report(job, rank) for rank in range(job.ranks)]
        if has_ended:
            return
        time.sleep(_POLL_SECONDS)


def explain(codes: list[int | None], last_lines: list[str]) -> str:
    """Say which rank failed first and why; a rank that failed because it lost its partner is not the cause.

    Args:
        codes: the exit code of each rank; None if it still runs, 0 if it succeeded.
        last_lines: the last line of each rank's log.
    """
    failed = [rank for rank, code in enumerate(codes) if code]
    rank = min(failed, key=lambda rank: ((codes[rank] or 0) > 0, "by peer" in last_lines[rank]))
    code = codes[rank] or 0
    if code < 0:
        return f"rank {rank} was killed by {signal.Signals(-code).name} in mid-run; the others were ended"
    return f"rank {rank} failed: {last_lines[rank] or f'exit code {code}'}"


def _start(job: DemoJob, rank: int) -> subprocess.Popen[bytes]:
    # With this process's sys.path: python -c would put the current directory first.
    code = f"import sys; sys.path[:] = {sys.path!r}; from wids.cli.demo.train import main; main()"
    with open(job.log_path(rank), "ab") as log:
        return subprocess.Popen(  # noqa: S603 - a fixed program, without a shell
            [sys.executable, "-c", code, json.dumps(asdict(job)), str(rank)],
            stdin=subprocess.PIPE,  # it is closed when this process ends, and so ends the rank
            stdout=log,  # gloo prints to it
            stderr=log,
            env={**os.environ, "TMPDIR": job.directory},  # where a killed rank leaves its sockets, to be removed
            start_new_session=True,
        )


def _signal_group(process: subprocess.Popen[bytes], number: int) -> bool:
    """Signal a rank's process group, with workers that outlived the rank; returns whether it has any process."""
    process.poll()  # else a zombie would count as a process of the group
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _last_report(job: DemoJob, rank: int) -> dict[str, Any]:
    try:
        with open(job.progress_path(rank), encoding="utf-8") as file:
            whole_lines = file.read().split("\n")[:-1]
    except FileNotFoundError:
        return {}
    return json.loads(whole_lines[-1]) if whole_lines else {}


def _last_line(path: str) -> str:
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return ([""] + [line.strip() for line in file if line.strip()])[-1]
    return ""

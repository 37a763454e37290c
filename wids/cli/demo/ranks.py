"""The demo's ranks: started, watched, and ended together.

Rules: each rank has a session of its own, so that Ctrl-C in a terminal reaches the parent alone, and a signal to the
rank's process group reaches its workers too, even when the rank is dead.
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

from wids.errors import WidsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wids.cli.demo.train import Job
    from wids.cli.signals import Signals

_POLL_SECONDS = 0.1
_GRACE_SECONDS = 2.0


@contextlib.contextmanager
def started(job: Job, signals: Signals) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes of the ranks; all that still run at the end of the block are ended, with their workers."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with signals.held():
            for rank in range(job.ranks):
                processes.append(_start(job, rank))  # noqa: PERF401 - if the next one cannot start, this one is known
        yield processes
    finally:
        signals.hold()  # what follows must not be interrupted, and takes seconds at most
        for number in (signal.SIGTERM, signal.SIGKILL):
            end = time.monotonic() + _GRACE_SECONDS
            groups = [process for process in processes if process.poll() != 0 and _signal_group(process, number)]
            while groups and time.monotonic() < end:
                time.sleep(0.02)
                groups = [process for process in groups if _signal_group(process, 0)]
        for process in processes:
            with process:  # closes its stdin, and waits
                pass


def watch(job: Job, processes: list[subprocess.Popen[bytes]]) -> Iterator[list[dict[str, Any]]]:
    """What each rank told last (see `train.train`), now and then, and once more when all have ended.

    Raises:
        WidsError: a rank failed or was killed.
    """
    failed_at = math.inf
    while True:
        codes = [process.poll() for process in processes]
        has_ended = None not in codes
        if any(codes):
            failed_at = min(failed_at, time.monotonic())
            # Of two ranks that fail one after the other, the one that lost its partner may be seen first.
            is_clear = has_ended or any(code is not None and code < 0 for code in codes)
            if is_clear or time.monotonic() - failed_at > _GRACE_SECONDS:
                raise WidsError(explain(codes, [_last_line(job.log_path(rank)) for rank in range(job.ranks)]))
        yield [_last_told(job, rank) for rank in range(job.ranks)]
        if has_ended:
            return
        time.sleep(_POLL_SECONDS)


def explain(codes: list[int | None], last_lines: list[str]) -> str:
    """Which rank failed first and why, by all exit codes and logs: that of a lost partner follows from the partner's.

    Args:
        codes: of each rank; None if it still runs, 0 if it ended well.
        last_lines: what each printed last.
    """
    failed = [rank for rank, code in enumerate(codes) if code]
    rank = min(failed, key=lambda rank: ((codes[rank] or 0) > 0, "by peer" in last_lines[rank]))
    code = codes[rank] or 0
    if code < 0:
        return f"rank {rank} was killed by {signal.Signals(-code).name} in mid-run; the others were ended"
    return f"rank {rank} failed: {last_lines[rank] or f'exit code {code}'}"


def _start(job: Job, rank: int) -> subprocess.Popen[bytes]:
    # With our sys.path: it may begin with another directory than the current one, which -c puts first.
    code = f"import sys; sys.path[:] = {sys.path!r}; from wids.cli.demo.train import main; main()"
    with open(job.log_path(rank), "ab") as log:
        return subprocess.Popen(  # noqa: S603 - our own program, without a shell
            [sys.executable, "-c", code, json.dumps(asdict(job)), str(rank)],
            stdin=subprocess.PIPE,  # its end tells the rank that this process has gone
            stdout=log,  # gloo prints there as it likes
            stderr=log,
            env={**os.environ, "TMPDIR": job.directory},  # a killed rank would leave its sockets
            start_new_session=True,
        )


def _signal_group(process: subprocess.Popen[bytes], number: int) -> bool:
    """Signal a rank and its workers, also those that outlived it; returns whether there was one."""
    process.poll()  # a dead one that was not waited for would count
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _last_told(job: Job, rank: int) -> dict[str, Any]:
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

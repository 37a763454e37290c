"""The ranks of `wids demo` and `wids bench`, with other programs in their place: torchrun starts and ends them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile

import pytest

from tests.support import paths
from tests.support.clocks import PATIENCE_SECONDS, wait_until
from wids.errors import WidsError
from wids.tools.cli.ranks import explain, temporary_directory, torchrun
from wids.tools.cli.signals import Signals

ROOT = str(paths.ROOT)


@contextlib.contextmanager
def started(tmp_path, code, ranks=2):
    """What the ranks print that run this code, which finds ``rank``, ``job`` (a dict) and ``worker``: it starts one."""
    program = tmp_path / "program.py"
    program.write_text(
        "import json, os, signal, subprocess, sys, threading, time\n"
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "from wids.tools.cli import ranks\n"
        "threading.Thread(target=ranks.end_with_stdin, daemon=True).start()\n"
        "rank, job = int(os.environ['RANK']), json.loads(sys.argv[1])\n"
        "def worker():\n"
        "    print(subprocess.Popen(['sleep', '1000'], stdout=subprocess.DEVNULL).pid, flush=True)\n"
        "@record\n"
        "def main():\n" + "".join(f"    {line}\n" for line in code.splitlines()) + "main()\n"
    )
    with (
        Signals() as signals,
        torchrun(str(program), {"x": 1}, ranks=ranks, directory=str(tmp_path), signals=signals, NAME="value") as lines,
    ):
        yield lines


def is_gone(pid):
    """Whether a process has ended, waited for or not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.thorough
def test_ranks_are_read_to_their_end(tmp_path):
    """What they print is passed on until all have ended; they get the job and variables; stderr is in a file."""
    code = "print(job['x'], os.environ['NAME'], flush=True)\nprint('aside', file=sys.stderr)"
    with started(tmp_path, code) as lines:
        assert [*lines] == ["1 value\n"] * 2
    assert (tmp_path / "log").read_text().count("aside") == 2


@pytest.mark.thorough
@pytest.mark.parametrize("is_deaf", [False, True])
def test_a_killed_rank_ends_all(tmp_path, is_deaf):
    """When a rank is killed, that is said, and the other rank and its worker are ended, even if SIGTERM is ignored."""
    code = (
        f"signal.signal(signal.SIGTERM, signal.{'SIG_IGN' if is_deaf else 'SIG_DFL'})\n"
        "(worker(), open(f'{__file__}.begun', 'w')) if not rank else None\n"
        "while not os.path.exists(f'{__file__}.begun'): time.sleep(0.01)\n"
        "os.kill(os.getpid(), signal.SIGKILL) if rank else time.sleep(1000)"
    )
    lines = []
    with (
        pytest.raises(WidsError, match=r"^rank 1 was killed by SIGKILL in mid-run; the others were ended$"),
        started(tmp_path, code) as reports,
    ):
        lines += reports
    wait_until(lambda: is_gone(int(lines[0])))


@pytest.mark.thorough
def test_a_rank_that_fails_is_named_with_its_error(tmp_path):
    """The message of the first exception is the error, whatever the other rank says."""
    code = "if rank: raise ValueError('what went wrong')\ntime.sleep(1000)"
    with (
        pytest.raises(WidsError, match=r"^rank 1 failed: ValueError: what went wrong$"),
        started(tmp_path, code) as told,
    ):
        assert [*told] == []


def test_a_program_that_cannot_be_started_is_said(tmp_path, monkeypatch):
    """Where torchrun itself fails, its last line is the error."""
    monkeypatch.setattr(sys, "path", [])
    with (
        pytest.raises(WidsError, match=r"^the ranks could not be started: ModuleNotFoundError: "),
        started(tmp_path, ""),
    ):
        pass


def test_a_rank_ends_with_its_parent():
    """When the parent has gone, which ends the rank's stdin, the rank and its workers are killed."""
    code = (
        "import subprocess, threading\n"
        "from wids.tools.cli import ranks\n"
        "threading.Thread(target=ranks.end_with_stdin, daemon=True).start()\n"
        "print(subprocess.Popen(['sleep', '1000']).pid, flush=True)\n"
        "threading.Event().wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True
    ) as process:
        worker = int(process.stdout.readline())
        process.stdin.close()
        assert process.stdout.read() == b""  # both have closed it
        assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    wait_until(lambda: is_gone(worker))


def report(*failures):
    """What torchrun says of failures: (rank, exit code, text) of each, the first last."""
    texts = [
        f"  time      : 2026-01-01_00:00:00\n  host      : h\n  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : {code} (pid: 7)\n  error_file: /x/error.json\n  traceback : {text}\n"
        for rank, code, text in failures
    ]
    rest = "".join(f"[{k}]:\n{text}" for k, text in enumerate(texts[:-1], 1)) or "  <NO_OTHER_FAILURES>\n"
    line = "-" * 60
    root = f"Root Cause (first observed failure):\n[0]:\n{texts[-1]}{'=' * 60}\n"
    return f"x FAILED\n{line}\nFailures:\n{rest}{line}\n{root}"


LOST = "Traceback (most recent call last):\n    x = [\n  RuntimeError: Connection closed by peer"


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        (
            [(1, 1, "Traceback:\n  ...\n  RuntimeError: worker is killed"), (0, 1, LOST)],
            "rank 1 failed: RuntimeError: w",
        ),
        ([(1, -9, "Signal 9 (SIGKILL) received"), (0, 1, LOST)], "rank 1 was killed by SIGKILL in mid-run; the others"),
        ([(0, -15, "Signal 15 (SIGTERM) received"), (1, 1, "ValueError: x")], "rank 1 failed: ValueError: x$"),
        ([(0, 1, LOST)], "rank 0 failed: RuntimeError: Connection closed"),
        ([(0, 1, "Traceback:\n  ...\n  wids.errors.JobError: x is y")], "rank 0 failed: x is y$"),
        ([(0, 5, "To enable traceback see: https://x")], "rank 0 ended with exit code 5 in mid-run; the others"),
    ],
)
def test_the_rank_that_failed_first_is_named(failures, expected):
    """Of torchrun's report, the cause is named, not the loss of a partner that follows from it."""
    assert re.match(expected, explain(report(*failures)))


@pytest.mark.parametrize("length", [1, 100])
def test_work_is_done_where_sockets_have_short_names(length, tmp_path, monkeypatch):
    """The work directory is in $TMPDIR unless that is long, and goes when an error or a signal ends the work."""
    home = str(tmp_path / ("x" * length)) if length > 1 else tempfile.mkdtemp(prefix="w", dir="/tmp")
    os.makedirs(home, exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", home)
    directories = []
    with pytest.raises(SystemExit):
        terminate_at_work(directories)
    (directory,) = directories
    assert len(f"{directory}/run/pymp-12345678/listener-12345678") <= 107
    assert (os.path.dirname(directory) == home) == (length == 1)
    assert not os.path.exists(directory)
    os.rmdir(home)


def terminate_at_work(directories):
    """Send SIGTERM to this process when it has a work directory, which is added to the list, with a file in it."""
    with Signals() as signals, temporary_directory(signals) as directory:
        directories.append(directory)
        with open(f"{directory}/file", "w"):
            signal.raise_signal(signal.SIGTERM)

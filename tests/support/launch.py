"""How tests start programs of several processes, alone or by torchrun, and end them whatever happens.

To import torch and torchvision takes a process four seconds, more than most of these programs need for their work. So
a program of Python is a fork of a process that has imported them, which multiprocessing's forkserver is.
"""

import atexit
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import wids

# How long a program may take: long, for the machine may be busy, and shorter than the time-out of a test.
LIMIT_SECONDS = 500
PROGRAMS = Path(__file__).parent / "programs"


def environment(**variables):
    """For child processes: this wids, loopback, and no rank from whatever launched the tests."""
    launcher = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    kept = {name: value for name, value in os.environ.items() if name not in launcher}
    path = [str(Path(wids.__file__).parents[1]), *filter(None, [kept.get("PYTHONPATH")])]
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(path),
        "GLOO_SOCKET_IFNAME": loopback,
        "TP_SOCKET_IFNAME": loopback,
        **variables,
    }


def torchrun(world):
    """The command that starts a program on ``world`` ranks of this machine."""
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes=1", f"--nproc-per-node={world}", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"),
        *("--local-addr=127.0.0.1", "--max-restarts=0"),
    ]


def forked_ranks(world, *modules):
    """The command that starts a program on ``world`` ranks faster than torchrun, which is for tests of just that.

    What the program imports is imported once for all ranks: torch, and ``modules``.
    """
    return [sys.executable, str(PROGRAMS / "forked_ranks.py"), ",".join([str(world), *modules])]


class Program:
    """A process of ``multiprocessing`` that runs, with the methods of ``subprocess.Popen`` that are called here."""

    def __init__(self, process):
        self._process = process
        process.start()
        self.pid, self.terminate, self.kill = process.pid, process.terminate, process.kill

    def poll(self):
        """The exit code, as of a process of one's own; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout=None):
        """Wait for the end: the exit code."""
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self.poll()

    def send_signal(self, number):
        """Send a signal to the process, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)


def become(command, env, output):
    """In a process of ``multiprocessing`` with its own session: make all as if Python had been started with it."""
    multiprocessing.set_start_method(None, force=True)  # Python's default, whatever is the tests' own
    with open(output, "ab") as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(env)
    sys.argv, sys.path[:0] = command, [os.path.dirname(os.path.abspath(command[0]))]
    try:
        runpy.run_path(command[0], run_name="__main__")
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()


def _run(*arguments):
    os.setsid()
    become(*arguments)


def start(command, *, env, output):
    """Start a command in a session of its own, which adds what it prints to the file ``output``."""
    if command[0] == sys.executable and command[1].endswith(".py"):
        arguments = list(map(str, command[1:])), dict(env), str(output)
        return Program(multiprocessing.get_context("forkserver").Process(target=_run, args=arguments))
    with open(output, "ab") as stream:
        return subprocess.Popen(command, env=env, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)


def run_all(commands, *, env, output, code=0, limit=LIMIT_SECONDS):
    """Run the commands at the same time; each must end with ``code``, well within ``limit`` s. None is left behind."""
    started = []
    Path(output).write_bytes(b"")
    try:
        started.extend(start(command, env=env, output=output) for command in commands)
        codes = [process.wait(limit) for process in started]
    finally:
        # A launcher ends its workers on SIGTERM; SIGKILL would orphan them.
        for process in started:
            if process.poll() is None:
                process.terminate()
        for process in started:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    assert codes == [code] * len(commands), Path(output).read_text(errors="replace")


def run_script(text):
    """Run a program in a fresh interpreter, which must end well."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr

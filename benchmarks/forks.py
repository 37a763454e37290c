"""Contenders of quick runs, as forks of one process that has imported torch: to import it is most of such a run.

Only processes of this benchmark's own interpreter are forked. Their figures would mean little, as all figures of a
quick run do.
"""

from __future__ import annotations

import faulthandler
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from typing import Any, NoReturn


class ForkedProcess:
    """A fork, with the methods and attributes of ``subprocess.Popen`` that `children.Child` uses."""

    def __init__(self, pid: int, stdin: int, stdout: int):
        self.pid = pid
        self.stdin, self.stdout = os.fdopen(stdin, "w"), os.fdopen(stdout)
        try:
            self._ended = os.pidfd_open(pid)
        except ProcessLookupError:  # so soon
            self._ended = os.open(os.devnull, os.O_RDONLY)

    def wait(self, timeout: float | None = None) -> None:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        if not select.select([self._ended], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)

    def kill(self) -> None:
        """End it at once."""
        os.kill(self.pid, signal.SIGKILL)


class ForkServer:
    """The process that is forked; it ends with the ``with`` block."""

    def __enter__(self) -> ForkServer:  # noqa: PYI034  (typing.Self needs Python 3.11)
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, os.path.abspath(__file__), str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        return self

    def __exit__(self, *_exc: object) -> None:
        self._socket.close()
        self._process.wait()

    def popen(self, command: list[str], *, stderr: Any, cwd: str, env: dict[str, str], **popen: Any) -> Any:
        """A process as of ``subprocess.Popen``, with pipes for text; a fork if it would be of this interpreter."""
        if command[0] != sys.executable:
            return subprocess.Popen(command, stderr=stderr, cwd=cwd, env=env, **popen)
        (stdin, requests), (replies, stdout) = os.pipe(), os.pipe()
        try:
            message = json.dumps({"command": command[1:], "cwd": cwd, "env": env}).encode()
            self._socket.sendall(len(message).to_bytes(8, "big"))
            socket.send_fds(self._socket, [message], [stdin, stdout, stderr.fileno()])
            pid = int.from_bytes(self._socket.recv(8), "big")
            if not pid:
                raise OSError("the process that is forked has ended")
        finally:
            os.close(stdin)
            os.close(stdout)
        return ForkedProcess(pid, requests, replies)


def main() -> None:
    """Fork for each message, until there are no more."""
    import torch  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing has to wait for a fork
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the benchmark ends it
    connection = socket.socket(fileno=int(sys.argv[1]))
    while size := int.from_bytes(connection.recv(8), "big"):
        message, descriptors, *_ = socket.recv_fds(connection, size, 3)
        while len(message) < size:
            message += connection.recv(size - len(message))
        pid = os.fork()
        if not pid:
            connection.close()
            _become(descriptors, **json.loads(message))
        for descriptor in descriptors:
            os.close(descriptor)
        connection.sendall(pid.to_bytes(8, "big"))


def _become(descriptors: list[int], *, command: list[str], cwd: str, env: dict[str, str]) -> NoReturn:
    """Run a script, as if Python had been started with it."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    faulthandler.enable()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None
    sys.argv = command
    sys.path[:1] = [os.path.dirname(command[0]), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    code = 1
    try:
        runpy.run_path(command[0], run_name="__main__")
        code = 0
    except BaseException:  # noqa: BLE001 - what Python does with it
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()

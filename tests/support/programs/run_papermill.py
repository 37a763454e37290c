"""Papermill's command line. It and the notebook's kernel are forks of a process that has imported what both need.

The kernel is forked before papermill has an event loop, which no other process could use, and waits for its command.
"""

import multiprocessing
import os

import ipykernel_launcher
from jupyter_client.provisioning import local_provisioner
from papermill.cli import papermill

from tests.support.launch import Program, become


def be_kernel(connection, papermills):
    """In the kernel's process: run the command that comes; none comes if papermill ends before."""
    papermills.close()
    os.setsid()
    connection.send("ready")
    arguments, env, directory = connection.recv()
    os.chdir(directory)
    become([ipykernel_launcher.__file__, *arguments], env, "/dev/fd/1")


class Kernel(Program):
    """The process, with what jupyter_client wants of one that it has started."""

    stdin = stdout = stderr = None

    def __init__(self):
        ours, its = multiprocessing.Pipe()
        super().__init__(multiprocessing.get_context("fork").Process(target=be_kernel, args=(its, ours)))
        its.close()
        ours.recv()
        self.close = ours.close
        self._send = ours.send

    def launch(self, command, *, env, cwd=None, **_):
        """Instead of a new process."""
        arguments = command[command.index("ipykernel_launcher") + 1 :]
        self._send((arguments, {**env, "JPY_PARENT_PID": str(os.getpid())}, cwd or os.getcwd()))
        return self


if __name__ == "__main__":
    kernel = Kernel()
    local_provisioner.launch_kernel = kernel.launch
    try:
        papermill()
    finally:
        kernel.close()

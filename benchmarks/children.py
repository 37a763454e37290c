"""The child process of a contender: started once, it answers one request at a time, and ends with the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envs import Entry
    from forks import ForkServer

REPLY_SECONDS = 300.0
_DUMP_SECONDS = 2.0
_MAX_LOG_LINES = 200


class ChildError(Exception):
    """A contender's process reported an error, died, or timed out."""


class Child:
    """One contender's process; the end of the ``with`` block ends it.

    Args:
        entry: the contender.
        python: its interpreter.
        manifest: path of the JSON file that its script is given.
        scratch: an existing directory, for its own files.
        reply_seconds: for one request.
        forks: of a quick run.

    Attributes:
        name: the contender's name.
        kinds: the kinds of work that it supports.
        versions: the versions of Python and of its packages.
    """

    def __init__(
        self,
        entry: Entry,
        python: str,
        manifest: str,
        scratch: str,
        *,
        reply_seconds: float = REPLY_SECONDS,
        forks: ForkServer | None = None,
    ):
        self.name, self.reply_seconds = entry.name, reply_seconds
        self.python = python
        home = os.path.join(scratch, entry.name)
        os.makedirs(home)
        # An inherited PYTHONPATH could make the original import this repository's package.
        # Without bytecode a first batch would be one of a package that is compiled at each start.
        left_out = {"PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE"}
        inherited = {key: value for key, value in os.environ.items() if key not in left_out}
        self._log = os.path.join(home, "stderr.log")
        with open(self._log, "wb") as log:
            popen = forks.popen if forks else subprocess.Popen
            self._process = popen(
                [python, entry.script, manifest, os.path.join(home, "files")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=home,
                env={
                    **inherited,
                    "WIDS_CACHE": os.path.join(home, "cache"),
                    "PYTHONFAULTHANDLER": "1",
                    **entry.environ,
                },
                start_new_session=True,  # so that its workers can be ended with it
            )
        self.kinds: list[str] = []
        self.versions: dict[str, str] = {}

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def __enter__(self) -> Child:  # noqa: PYI034  (typing.Self needs Python 3.11)
        return self

    def __exit__(self, *_exc: object) -> None:
        with suppress(BrokenPipeError):  # it died before it read the last request; `ask` reports that
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with suppress(ProcessLookupError):  # worker processes that it has left behind
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.stdout.close()

    def greet(self) -> None:
        """Ask for the contender's kinds of work and its versions.

        Raises:
            ChildError: a package is missing in its environment.
        """
        reply = self.ask("hello")
        self.kinds, self.versions = reply["kinds"], reply["versions"]

    def ask(self, op: str, **request: object) -> dict:
        """Send one request and wait for its reply.

        Raises:
            ChildError: with the contender's error and the end of its stderr.
        """
        timer = threading.Timer(self.reply_seconds, self._end_hung)
        timer.start()
        try:
            self._process.stdin.write(json.dumps({"op": op, **request}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        try:
            reply = json.loads(line) if line else {"error": "the process ended"}
        except ValueError:  # a package wrote to stdout when it was imported
            reply = {"error": f"not a reply: {line!r}"}
        if "error" in reply:
            raise ChildError(f"{self.name}, {op}: {reply['error']}\n{self._stderr_tail()}")
        return reply

    def _end_hung(self) -> None:
        """Kill the process and its workers, which ends the blocking read of its reply; their stacks go to its log."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGABRT)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_DUMP_SECONDS)
            os.killpg(self._process.pid, signal.SIGKILL)

    def _stderr_tail(self) -> str:
        with open(self._log, encoding="utf-8", errors="replace") as stream:
            return "".join(stream.readlines()[-_MAX_LOG_LINES:])

"""Byte source of ``pipe:`` URLs: a program's output is the shard, or the program fills the file ``{local}``.

No shell is used. The program and all its children are ended when the download is cancelled, or when there is no output
for too long.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

from wids.core.transport import retrying
from wids.core.transport.source import HEAD, ByteSource, Stat
from wids.errors import FetchDeniedError, FetchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wids.core.transport.source import Sink
    from wids.core.transport.spans import Span

_POLL_SECONDS = 0.1
_BLOCK_BYTES = 1 << 20


class PipeSource(ByteSource):
    """The program of a ``pipe:`` URL, which `stream` runs.

    Args:
        url: of the program and its arguments.
        path: the file that the program may fill.
        go_on: see `ByteSource`.
    """

    is_blocking: bool = True
    answers_have_stat: bool = False
    url: str
    go_on: Callable[[], None]
    fills_file: bool

    def __init__(self, url: str, path: str, *, go_on: Callable[[], None]) -> None:
        self.url, self.go_on, self._path = url, go_on, path
        self.fills_file = "{local}" in url
        self._resources = contextlib.ExitStack()

    def stat(self, first: Span | None = HEAD, *, is_fresh: bool = True) -> Stat:
        """An empty stat: nothing is known before the program has ended."""
        return Stat(None, None, has_ranges=False)

    async def read(self, span: Span, sink: Sink) -> None:
        """Not possible."""
        raise FetchError(f"{self.url}: the output of a program has no positions; fetch it as a whole", url=self.url)

    def stream(self, end: int | None = None, *, in_one_request: bool = False) -> Iterator[bytes]:
        """The program's output; empty if it fills the file itself.

        Raises:
            ValueError: the URL has no program, or unmatched quotes.
            FetchDeniedError: it cannot be started. FetchError: it failed, or wrote nothing for too long.
        """
        words = shlex.split(self.url.removeprefix("pipe:"))
        if not words:
            raise ValueError("there is no command after pipe:")
        argv = [word.replace("{local}", self._path) for word in words]
        complaints = self._resources.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - it is closed there
        try:
            process = subprocess.Popen(  # noqa: S603 - allowed by the caller, argv without a shell
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if self.fills_file else subprocess.PIPE,
                stderr=complaints,
                start_new_session=True,
            )
        except OSError as error:
            raise FetchDeniedError(
                f"{self.url}: the program {argv[0]!r} cannot be started ({error})", url=self.url
            ) from error
        self._resources.callback(_end, process)
        yield from self._wait(process) if self.fills_file else self._read(process, end)
        if end is None and (code := process.wait()):
            complaints.seek(0)
            last = complaints.read().decode("utf-8", "replace").strip()[-500:]
            raise FetchError(f"{self.url}: exit code {code}; it said: {last}", url=self.url)

    def close(self) -> None:
        """End the program."""
        self._resources.close()

    def _read(self, process: subprocess.Popen[bytes], end: int | None) -> Iterator[bytes]:
        output: Any = process.stdout
        left = sys.maxsize if end is None else end
        deadline = time.monotonic() + retrying.LIMITS.silent_seconds
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while left > 0:
                self.go_on()
                if not selector.select(_POLL_SECONDS):
                    if time.monotonic() > deadline:
                        raise FetchError(
                            f"{self.url}: no output for {retrying.LIMITS.silent_seconds:.0f} s", url=self.url
                        )
                    continue
                block = os.read(output.fileno(), min(left, _BLOCK_BYTES))
                if not block:
                    return
                deadline = time.monotonic() + retrying.LIMITS.silent_seconds
                yield block
                left -= len(block)

    def _wait(self, process: subprocess.Popen[bytes]) -> Iterator[bytes]:
        deadline = time.monotonic() + retrying.LIMITS.silent_seconds
        while process.poll() is None:
            self.go_on()
            if time.monotonic() > deadline:
                raise FetchError(f"{self.url}: not done after {retrying.LIMITS.silent_seconds:.0f} s", url=self.url)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_SECONDS)
        yield from ()


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)  # its session: the program and its children
        process.wait()
    if process.stdout is not None:
        process.stdout.close()

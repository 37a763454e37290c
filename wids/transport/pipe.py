"""``pipe:`` URLs: the output of a program is the shard, or the program writes the file that ``{local}`` stands for.

Rules: only with leave, and never through a shell. The program is ended, with all that it started, when the transfer
is cancelled or when nothing comes for too long.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import signal
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING, Any

from wids.errors import FetchDeniedError, FetchError
from wids.transport.failures import CancelledTransferError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SILENT_SECONDS = 600.0
_POLL_SECONDS = 0.1
_BLOCK_BYTES = 1 << 20


def has_own_file(url: str) -> bool:
    """Whether the program writes the file itself."""
    return "{local}" in url


@contextlib.contextmanager
def run(url: str, path: str, *, is_cancelled: Callable[[], bool]) -> Iterator[Iterator[bytes]]:
    """Run the program of a ``pipe:`` URL; gives its output in blocks, which must be read to the end.

    Raises:
        ValueError: there is no program, or its quotes do not match.
        FetchDeniedError: it cannot be started. FetchError: it failed, or fell silent.
    """
    words = shlex.split(url.removeprefix("pipe:"))
    if not words:
        raise ValueError("there is no command after pipe:")
    argv = [word.replace("{local}", path) for word in words]
    with tempfile.TemporaryFile() as complaints:
        try:
            process = subprocess.Popen(  # noqa: S603 - allowed by the caller, argv without a shell
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if has_own_file(url) else subprocess.PIPE,
                stderr=complaints,
                start_new_session=os.name != "nt",
            )
        except OSError as error:
            raise FetchDeniedError(f"{url}: the program {argv[0]!r} cannot be started ({error})", url=url) from error
        try:
            yield _wait(process, url, is_cancelled) if process.stdout is None else _read(process, url, is_cancelled)
            code = process.wait()
        finally:
            _end(process)
        if code:
            complaints.seek(0)
            last = complaints.read().decode("utf-8", "replace").strip()[-500:]
            raise FetchError(f"{url}: exit code {code}; it said: {last}", url=url)


def _read(process: subprocess.Popen[bytes], url: str, is_cancelled: Callable[[], bool]) -> Iterator[bytes]:
    output: Any = process.stdout
    deadline = time.monotonic() + SILENT_SECONDS
    with selectors.DefaultSelector() as selector:
        if os.name != "nt":  # there, only sockets can be waited for
            selector.register(output, selectors.EVENT_READ)
        while True:
            if is_cancelled():
                raise CancelledTransferError
            if os.name != "nt" and not selector.select(_POLL_SECONDS):
                if time.monotonic() > deadline:
                    raise FetchError(f"{url}: nothing came for {SILENT_SECONDS:.0f} s", url=url)
                continue
            block = os.read(output.fileno(), _BLOCK_BYTES)
            if not block:
                return
            deadline = time.monotonic() + SILENT_SECONDS
            yield block


def _wait(process: subprocess.Popen[bytes], url: str, is_cancelled: Callable[[], bool]) -> Iterator[bytes]:
    deadline = time.monotonic() + SILENT_SECONDS
    while process.poll() is None:
        if is_cancelled():
            raise CancelledTransferError
        if time.monotonic() > deadline:
            raise FetchError(f"{url}: not done after {SILENT_SECONDS:.0f} s", url=url)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_SECONDS)
    yield from ()


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(OSError):
            if os.name == "nt":
                process.kill()
            else:
                os.killpg(process.pid, signal.SIGKILL)  # a session of its own: all that it started
        process.wait()
    if process.stdout is not None:
        process.stdout.close()

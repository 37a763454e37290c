"""``wids cache daemon``: keep a cache directory below a limit, from a process that systemd may run.

The loop is in `wids.cache.cleanup`. SIGTERM and SIGINT end it at any point: the next cleaning removes half-deleted
files, and the kernel releases the locks of a process that ends. Signals that were ignored at the start stay ignored.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

from wids.cache.cleanup import clean_repeatedly
from wids.cli.format import count_of, format_size, printable
from wids.errors import CacheError
from wids.events import logger

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


class _EndSignal(BaseException):
    """A signal that ends the daemon arrived; the message is its name."""


def clean_until_signal(pattern: str, *, max_size: int | None, max_files: int | None, every: float) -> None:
    """Clean now and every ``every`` seconds, until SIGTERM or SIGINT.

    Args:
        pattern: a cache directory, or a glob pattern, whose matches may all be deleted.
        max_size: bytes to keep at most; None for no limit.
        max_files: shards to keep at most; None for no limit.
        every: seconds from the start of one cleaning to the next.

    Raises:
        CacheError: the pattern is the path of a file.
    """
    limits = [format_size(max_size)] if max_size is not None else []
    limits += [count_of(max_files, "shard")] if max_files is not None else []
    pattern = os.path.abspath(os.path.expanduser(pattern))
    if os.path.isfile(pattern):  # a shell expanded the pattern, and later matches would never be deleted
        raise CacheError(f"{pattern}: is a file; name a cache directory, or a pattern in quotes ('DIR/*.tar')")
    with _LogToStderr():
        try:
            with _DaemonSignals() as signals:
                logger.info(
                    "cleanup: keeping %s at %s at most, looking every %g s",
                    pattern,
                    " and ".join(limits),
                    every,
                )
                clean_repeatedly(
                    pattern,
                    maxsize=sys.maxsize if max_size is None else max_size,
                    maxfiles=sys.maxsize if max_files is None else max_files,
                    every=every,
                    wait=signals.wait,
                )
        except _EndSignal as end:
            logger.info("cleanup: ended by %s", end)


class _PrintableFormatter(logging.Formatter):
    """Escapes line breaks and control characters of file names, which could forge lines of the log."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return printable(super().formatMessage(record))


class _LogToStderr:
    """Within the ``with`` block, the ``wids`` logger writes to stderr."""

    def __enter__(self) -> None:
        self._handler = logging.StreamHandler()
        # journald writes the time itself.
        form = "%(message)s" if "JOURNAL_STREAM" in os.environ else "%(asctime)s %(message)s"
        self._handler.setFormatter(_PrintableFormatter(form))
        self._before = logger.level
        logger.addHandler(self._handler)
        logger.setLevel(logging.DEBUG if os.environ.get("WIDS_DEBUG", "0") not in ("", "0") else logging.INFO)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logger.removeHandler(self._handler)
        logger.setLevel(self._before)


class _DaemonSignals:
    """Within the ``with`` block, SIGTERM and SIGINT raise `_EndSignal`, and SIGHUP ends a wait."""

    def __enter__(self) -> Self:
        self._reader, self._writer = socket.socketpair()  # the interpreter writes the number of each signal
        for end in (self._reader, self._writer):
            end.setblocking(False)
        self._has_terminal = sys.stderr.isatty()
        self._before: dict[int, Any] = {}
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:  # a shell starts background jobs with SIGINT ignored
                self._before[number] = signal.signal(number, _end)
        if hasattr(signal, "SIGHUP"):
            self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._hang_up)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        self._reader.close()
        self._writer.close()

    def wait(self, end: float) -> bool:
        """Wait until ``end`` (of the monotonic clock) or for SIGHUP; a SIGHUP since the last wait ends it at once."""
        while select.select([self._reader], [], [], max(end - time.monotonic(), 0.0))[0]:
            numbers = self._reader.recv(4096)
            for number in (signal.SIGTERM, signal.SIGINT):
                if number in numbers:  # the handler's exception was lost, for example in a finalizer
                    _end(number, None)
            if hasattr(signal, "SIGHUP") and signal.SIGHUP in numbers:
                logger.info("cleanup: SIGHUP, looking now")
                break
        return True

    def _hang_up(self, number: int, _: Any) -> None:
        if self._has_terminal and not sys.stderr.isatty():  # the terminal was closed, which ends its processes
            _end(number, None)


def _end(number: int, _: Any) -> NoReturn:
    # A second signal must not interrupt the log line about the first.
    for other in (signal.SIGTERM, signal.SIGINT):
        signal.signal(other, signal.SIG_IGN)
    raise _EndSignal(signal.Signals(number).name)

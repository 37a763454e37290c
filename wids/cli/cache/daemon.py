"""``wids cache daemon``: keep a cache directory bounded from a process of its own, as systemd runs it.

Rules: the loop is `wids.cache.cleanup`'s. SIGTERM and SIGINT end it wherever it is: what is half deleted is garbage
that the next one sweeps, and its locks end with the process. What was ignored when it started stays ignored.
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


class _Ended(BaseException):
    """A signal came that ends the daemon; says which."""


def clean_until_told(pattern: str, *, max_size: int | None, max_files: int | None, every: float) -> None:
    """Clean now and every so many seconds, until a signal comes.

    Args:
        pattern: a cache directory, or a glob pattern, whose matches may all be deleted.
        max_size: bytes to keep at most; None: any number.
        max_files: shards to keep at most; likewise.
        every: seconds from the start of one round to the next.

    Raises:
        CacheError: there is a file of that name.
    """
    bounds = [format_size(max_size)] if max_size is not None else []
    bounds += [count_of(max_files, "shard")] if max_files is not None else []
    pattern = os.path.abspath(os.path.expanduser(pattern))
    if os.path.isfile(pattern):  # a shell made one name of the pattern, and only this shard would ever be looked at
        raise CacheError(f"{pattern}: is a file; name a cache directory, or a pattern in quotes ('DIR/*.tar')")
    with _Log():
        try:
            with _Signals() as signals:
                logger.info(
                    "cleanup: keeping %s at %s at most, looking every %g s",
                    pattern,
                    " and ".join(bounds),
                    every,
                )
                clean_repeatedly(
                    pattern,
                    maxsize=sys.maxsize if max_size is None else max_size,
                    maxfiles=sys.maxsize if max_files is None else max_files,
                    every=every,
                    wait=signals.wait,
                )
        except _Ended as end:
            logger.info("cleanup: ended by %s", end)


class _Line(logging.Formatter):
    """A line that a file's name can neither break nor forge."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return printable(super().formatMessage(record))


class _Log:
    """Within the ``with`` block, the ``wids`` logger writes to stderr."""

    def __enter__(self) -> None:
        self._handler = logging.StreamHandler()
        # journald writes the time itself.
        form = "%(message)s" if "JOURNAL_STREAM" in os.environ else "%(asctime)s %(message)s"
        self._handler.setFormatter(_Line(form))
        self._before = logger.level
        logger.addHandler(self._handler)
        logger.setLevel(logging.DEBUG if os.environ.get("WIDS_DEBUG", "0") not in ("", "0") else logging.INFO)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logger.removeHandler(self._handler)
        logger.setLevel(self._before)


class _Signals:
    """Within the ``with`` block, SIGTERM and SIGINT raise `_Ended`, and SIGHUP ends a wait."""

    def __enter__(self) -> Self:
        self._ours, self._its = socket.socketpair()
        for side in (self._ours, self._its):
            side.setblocking(False)
        self._has_terminal = sys.stderr.isatty()
        self._before: dict[int, Any] = {}
        self._wakeup = signal.set_wakeup_fd(self._its.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:  # a shell's background job is not for its Ctrl-C
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
        self._ours.close()
        self._its.close()

    def wait(self, end: float) -> bool:
        """Wait until ``end`` (of the monotonic clock), or for SIGHUP, also one that came before."""
        while select.select([self._ours], [], [], max(end - time.monotonic(), 0.0))[0]:
            numbers = self._ours.recv(4096)
            for number in (signal.SIGTERM, signal.SIGINT):
                if number in numbers:  # its handler ran where exceptions are lost, in some finalizer
                    _end(number, None)
            if hasattr(signal, "SIGHUP") and signal.SIGHUP in numbers:
                logger.info("cleanup: SIGHUP, looking now")
                break
        return True

    def _hang_up(self, number: int, _: Any) -> None:
        if self._has_terminal and not sys.stderr.isatty():  # its terminal is closed: nobody would see it go on
            _end(number, None)


def _end(number: int, _: Any) -> NoReturn:
    # A second signal changes nothing: what is left to do is to say so.
    for other in (signal.SIGTERM, signal.SIGINT):
        signal.signal(other, signal.SIG_IGN)
    raise _Ended(signal.Signals(number).name)

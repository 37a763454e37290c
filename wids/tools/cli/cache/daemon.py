"""``wids cache daemon``: keep a cache directory below a limit, from a process that systemd may run.

The loop is in `wids.core.cache.cleanup`. SIGTERM and SIGINT end it at any point: the next cleaning removes half-deleted
files, and the kernel releases the locks of a process that ends. Signals that were ignored at the start stay ignored.
A supervisor learns that it is ready, alive, and at its end (sd_notify(3)); what it measures is in a file in the text
format of Prometheus, for node_exporter's textfile collector.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import signal
import socket
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from wids.core.cache.cleanup import clean_repeatedly, list_matches
from wids.core.files import locks
from wids.core.files.holders import find_holders
from wids.core.place import cache_directory
from wids.errors import CacheError, DependencyError, OutputError
from wids.events import logger
from wids.tools.cli.cache.listing import take_listing
from wids.tools.cli.cache.show import MaxFiles, MaxSize, reasons_of
from wids.tools.cli.format import count_of, format_size, is_debug, printable, to_json
from wids.tools.cli.plain_help import App
from wids.tools.cli.signals import EndedBySignal, Signals

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from typing_extensions import Self

    from wids.core.cache.cleanup import Cleaning

# Name -> (help). Those that end in _total only grow while the daemon runs.
_HELP = {
    "cache_bytes": "Bytes of the shards, with their tables, and of downloads under way.",
    "cache_shards": "Shards in the cache, or files that the pattern matches.",
    "cache_limit_bytes": "Bytes that may stay when it was cleaned.",
    "cache_limit_shards": "Shards that may stay when it was cleaned.",
    "cache_over_limit": "1 if the last cleaning could not get below the limit.",
    "cache_cleaning_seconds": "Seconds that the last cleaning took.",
    "cache_last_cleaning_timestamp_seconds": "When the last cleaning ended, in seconds since 1970.",
    "cache_cleanings_total": "Cleanings.",
    "cache_failures_total": "Cleanings that failed.",
    "cache_deleted_shards_total": "Shards that were deleted.",
    "cache_deleted_bytes_total": "Bytes of the shards that were deleted.",
}


class Metrics:
    """Numbers of one cache directory, written to a file at once: readers see the old or the new ones.

    Args:
        path: of the file; the collector reads names that end in .prom.
        cache: the directory or pattern, which each number names.

    Raises:
        DependencyError: prometheus_client is not installed.
        OutputError: there is no such directory.
    """

    def __init__(self, path: str, cache: str) -> None:
        try:
            import prometheus_client
        except ImportError as error:
            raise DependencyError(
                "--metrics needs prometheus_client; install it with: pip install 'wids[prometheus]'"
            ) from error
        self._path, self._cache = os.path.abspath(os.path.expanduser(path)), cache
        self._write = prometheus_client.write_to_textfile
        self._registry = prometheus_client.CollectorRegistry()
        self._registry.register(self)
        self._values: dict[str, float] = {name: 0 for name in _HELP if name.endswith("_total")}
        if not os.path.isdir(os.path.dirname(self._path)):
            raise OutputError(f"{self._path}: cannot be written, there is no such directory")

    def update(self, *, more: dict[str, float], now: dict[str, float]) -> None:
        """Write the numbers.

        Args:
            more: additions to totals.
            now: what numbers are from here on.
        """
        for name, value in more.items():
            self._values[name] += value
        self._values |= now
        try:
            self._write(self._path, self._registry)
        except OSError as error:  # a full disk, say: the next round may do
            logger.warning("%s: the metrics cannot be written (%s)", self._path, error)

    def collect(self) -> Iterator[Any]:
        """The metrics, for `prometheus_client`."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, value in self._values.items():
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            metric = family(f"wids_{name}", _HELP[name], labels=["cache"])
            metric.add_metric([self._cache], value)
            yield metric


class Supervisor:
    """The process that started this one and wants to know its state.

    Attributes:
        alive_seconds: how often it wants a sign of life (``WatchdogSec`` of the unit); infinity: never.
    """

    alive_seconds: float

    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        microseconds = os.environ.get("WATCHDOG_USEC", "")
        is_ours = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        # Twice within the time after which it gives us up.
        self.alive_seconds = int(microseconds) / 2e6 if is_ours and microseconds.isdecimal() else math.inf

    def tell(self, **state: str) -> None:
        """Say ``READY="1"``, ``STATUS="..."`` and the like."""
        if not self._address.startswith(("/", "@")):
            return
        text = "\n".join(f"{name}={value}" for name, value in state.items())
        # A name with @ is an abstract one, which begins with a zero byte.
        address = self._address.replace("@", "\0", 1) if self._address[0] == "@" else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(text.encode(errors="backslashreplace"), address)


def is_journal() -> bool:
    """True if stderr goes to systemd's journal."""
    try:
        status = os.fstat(sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM", "") == f"{status.st_dev}:{status.st_ino}"


# As syslog counts; the journal reads them from the beginning of a line.
_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3}


app: App = App()


@app.command("daemon")
def run_daemon(
    pattern: Annotated[
        str, typer.Argument(metavar="DIR_OR_PATTERN", help="A cache directory, or a glob pattern of files to delete.")
    ],
    max_size: MaxSize = None,
    max_files: MaxFiles = None,
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Time between cleanings.")] = 60,
    log_format: Annotated[
        Literal["text", "json"], typer.Option(help="Lines of text, or JSON, one object on each line.")
    ] = "text",
    log_level: Annotated[
        Literal["debug", "info", "warning"], typer.Option(help="The lowest level in the log; --debug is for debug.")
    ] = "info",
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write numbers for Prometheus to this file after each cleaning (node_exporter's textfile collector).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Keep a cache directory below a limit: clean it now and every --every seconds, in the foreground.

    For systemd (Type=notify) and other supervisors. Each deletion is a line on stderr, and so is each cleaning: what
    was deleted, what stays, and why, if that is more than the limit. SIGTERM and SIGINT end it, SIGHUP cleans at once.
    The directory need not exist yet. Of several daemons on one directory, one cleans and the others wait.
    """
    if max_size is None and max_files is None:
        raise typer.BadParameter("say what to keep: --max-size 10GB or --max-files 100")
    if metrics is not None and not metrics.endswith(".prom"):
        raise typer.BadParameter(f"--metrics {metrics}: node_exporter reads files whose names end in .prom")
    pattern = os.path.abspath(cache_directory(pattern))
    if os.path.isfile(pattern):  # a shell expanded the pattern, and later matches would never be deleted
        raise CacheError(f"{pattern}: is a file; name a cache directory, or a pattern in quotes ('DIR/*.tar')")
    supervisor = Supervisor()
    numbers = None if metrics is None else Metrics(metrics, pattern)
    rounds = _Rounds(pattern, max_size, max_files, numbers, supervisor)
    with _LogToStderr(log_format, "debug" if is_debug() else log_level):
        try:
            with _DaemonSignals(supervisor) as signals:
                logger.info("cleanup: keeping %s at %s at most, looking every %g s", pattern, rounds.limit, every)
                clean_repeatedly(
                    pattern,
                    maxsize=sys.maxsize if max_size is None else max_size,
                    maxfiles=sys.maxsize if max_files is None else max_files,
                    every=every,
                    wait=signals.wait,
                    report=rounds.report,
                )
        except (KeyboardInterrupt, EndedBySignal) as end:
            name = getattr(end, "name", "SIGINT")
            supervisor.tell(STOPPING="1", STATUS=f"ended by {name}")
            logger.info("cleanup: ended by %s", name)


class _Rounds:
    """Tells of each round: a line of the log, numbers for Prometheus, and a word to the supervisor.

    Attributes:
        limit: in words.
    """

    def __init__(
        self, pattern: str, max_size: int | None, max_files: int | None, metrics: Metrics | None, supervisor: Supervisor
    ) -> None:
        self._pattern, self._max_size, self._max_files = pattern, max_size, max_files
        self._metrics, self._supervisor = metrics, supervisor
        limits = [format_size(max_size)] if max_size is not None else []
        limits += [count_of(max_files, "shard")] if max_files is not None else []
        self.limit = " and ".join(limits)

    def report(self, outcome: Cleaning | OSError | None) -> None:
        """Tell of a round that has just ended; see `clean_repeatedly`."""
        status = "another process cleans it, or it does not exist yet"
        if isinstance(outcome, OSError):
            status = f"failed: {outcome}"
        elif outcome is not None:
            try:
                status = self._tell(outcome)
            except OSError as error:  # the directory is gone, say
                logger.warning("cleanup of %s: %s", self._pattern, error)
                outcome, status = error, f"failed: {error}"
        if isinstance(outcome, OSError) and self._metrics is not None:
            self._metrics.update(more={"cache_failures_total": 1}, now={})
        self._supervisor.tell(READY="1", STATUS=printable(status))

    def _tell(self, done: Cleaning) -> str:
        """Log what a cleaning did; returns it in words.

        Raises:
            OSError: it is not to be seen what stays.
        """
        shards, used, why = self._look()
        limits = {"bytes": self._max_size, "shards": self._max_files}
        is_reached = not any(
            limit is not None and there > limit for limit, there in zip(limits.values(), (used, shards), strict=True)
        )
        freed, swept = (sum(size for _, size in files) for files in (done.deleted, done.swept))
        noun = "shard" if os.path.isdir(self._pattern) else "file"
        words = f"deleted {count_of(len(done.deleted), noun)} ({format_size(freed)})"
        if done.swept:
            words += f" and {count_of(len(done.swept), 'file')} left behind ({format_size(swept)})"
        words += f"; {count_of(shards, noun)} ({format_size(used)}) stay, "
        excess = f"more than {self.limit}: {'; '.join(why) or 'added meanwhile'}"
        words += f"limit {self.limit}" if is_reached else excess
        details = {
            "deleted": {"shards": len(done.deleted), "bytes": freed},
            "swept": {"files": len(done.swept), "bytes": swept},
            "stays": {"shards": shards, "used_bytes": used},
            "limit": limits,
            "is_reached": is_reached,
            "why": [] if is_reached else why,
        }
        if self._metrics is not None:
            known = {f"cache_limit_{what}": limit for what, limit in limits.items() if limit is not None}
            self._metrics.update(
                more={
                    "cache_cleanings_total": 1,
                    "cache_deleted_shards_total": len(done.deleted),
                    "cache_deleted_bytes_total": freed + swept,
                },
                now={
                    "cache_bytes": used,
                    "cache_shards": shards,
                    **known,
                    "cache_over_limit": float(not is_reached),
                    "cache_cleaning_seconds": done.seconds,
                    "cache_last_cleaning_timestamp_seconds": time.time(),
                },
            )
        level = logging.INFO if is_reached else logging.WARNING
        logger.log(level, "cleanup: %s", words, extra={"details": details})
        return words

    def _look(self) -> tuple[int, int, list[str]]:
        """Remaining shards and bytes, and why they were not deleted."""
        if os.path.isdir(self._pattern):
            listing = take_listing(self._pattern)
            return len(listing.shards), listing.used_bytes, reasons_of(listing.shards, listing)
        found = list_matches(self._pattern)
        kept = [entry for entry in found if entry.is_kept]
        used = [entry for entry in found if not entry.is_kept and locks.is_locked(entry.name)]
        holders = "".join(f", {holder}" for holder in find_holders(entry.name for entry in used))
        why = [
            f"{count_of(len(entries), 'file')} ({format_size(sum(entry.size_bytes for entry in entries))}) {words}"
            for entries, words in ((kept, "marked as kept"), (used, f"open in some process{holders}"))
            if entries
        ]
        return len(found), sum(entry.size_bytes for entry in found), why


class _TextFormatter(logging.Formatter):
    """``2026-05-01T12:00:00+02:00 INFO wids: ...``; for the journal a priority, for it has the rest itself.

    Line breaks and control characters of file names, which could forge lines, are escaped.
    """

    def __init__(self, *, is_journal: bool) -> None:
        super().__init__("%(message)s" if is_journal else "%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._is_journal = is_journal

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802 - logging's
        return _time_of(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        priority = f"<{_PRIORITIES.get(record.levelno, 5)}>" if self._is_journal else ""
        return priority + printable(super().formatMessage(record))


class _JsonFormatter(logging.Formatter):
    """A JSON object on each line: time, level, logger, message, and the details of the record where it has some."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "details", {}),
        }
        if record.exc_info:
            line["exception"] = record.exc_text or self.formatException(record.exc_info)
        return to_json(line)


def _time_of(record: logging.LogRecord) -> str:
    """The local time of a record, with its zone."""
    return datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")


class _LogToStderr:
    """Within the ``with`` block, the ``wids`` logger writes to stderr."""

    def __init__(self, form: Literal["text", "json"], level: Literal["debug", "info", "warning"]) -> None:
        self._handler = logging.StreamHandler()
        self._handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter(is_journal=is_journal()))
        self._level = getattr(logging, level.upper())

    def __enter__(self) -> None:
        self._before = logger.level
        logger.addHandler(self._handler)
        logger.setLevel(self._level)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logger.removeHandler(self._handler)
        logger.setLevel(self._before)


class _DaemonSignals(Signals):
    """`Signals` in which SIGHUP ends a wait, unless the terminal was closed, which ends its processes."""

    def __init__(self, supervisor: Supervisor) -> None:
        super().__init__()
        self._supervisor = supervisor

    def __enter__(self) -> Self:
        self._reader, self._writer = socket.socketpair()  # the interpreter writes the number of each signal
        for end in (self._reader, self._writer):
            end.setblocking(False)
        self._has_terminal = sys.stderr.isatty()
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        super().__enter__()
        self._before.setdefault(signal.SIGHUP, signal.signal(signal.SIGHUP, self.take))  # also where it was ignored
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        signal.set_wakeup_fd(self._wakeup)
        self._reader.close()
        self._writer.close()

    def take(self, number: int, frame: Any) -> None:
        """Handle a signal, in the main thread."""
        if number != signal.SIGHUP or (self._has_terminal and not sys.stderr.isatty()):
            super().take(number, frame)

    def wait(self, end: float) -> bool:
        """Wait until ``end`` (of the monotonic clock) or for SIGHUP; a SIGHUP since the last wait ends it at once."""
        while True:
            if self._supervisor.alive_seconds < math.inf:
                self._supervisor.tell(WATCHDOG="1")
            left = max(end - time.monotonic(), 0.0)
            if not select.select([self._reader], [], [], min(left, self._supervisor.alive_seconds))[0]:
                if left <= self._supervisor.alive_seconds:
                    break
                continue
            numbers = self._reader.recv(4096)
            for number in self._before:
                if number in numbers and number != signal.SIGHUP:  # its exception was lost, for example in a finalizer
                    self.end(number)
            if signal.SIGHUP in numbers:
                logger.info("cleanup: SIGHUP, looking now")
                break
        return True

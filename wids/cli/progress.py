"""A progress bar with rate and time left, for what takes more than a second; the same one for all jobs.

It is on stderr, and only where that is a terminal: a pipe, a log and a program that reads JSON see nothing of it. It is
gone when the block ends, however it ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Literal

from wids.cli.format import count_of, format_size
from wids.cli.signals import Signals, resumable
from wids.errors import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wids.jobs.outcome import JobProgress


# Below so many columns a bar shows no rate and no time left.
_MIN_COLUMNS = 76


class Bar:
    """What a command shows of its work; without a terminal it shows nothing."""

    def __init__(self, shown: Any = None, task: Any = None) -> None:
        self._shown, self._task = shown, task
        self._most = 0.0

    @property
    def is_shown(self) -> bool:
        """Whether there is a terminal to show it on."""
        return self._shown is not None

    def update(self, done: float, *, total: float | None = None, words: str = "") -> None:
        """Bring it up to date.

        Args:
            done: so far, in all; it never goes back.
            total: what there is to do, as far as is known by now.
            words: before the bar.
        """
        if self._shown is None:
            return
        self._most = max(self._most, done)
        whole = None if total is None else max(total, self._most)
        self._shown.update(self._task, completed=self._most, total=whole, description=without_secrets(words))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without log lines (of each try that failed, say) in the bar, unless they are asked for by --debug."""
    logger, handler = logging.getLogger("wids"), logging.NullHandler()
    if os.environ.get("WIDS_DEBUG", "0") in ("", "0"):
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextlib.contextmanager
def progress(unit: Literal["bytes", "items"] = "items", *, is_shown: bool = True) -> Iterator[Bar]:
    """A bar while the block runs.

    Args:
        unit: of the counts: bytes, whose rate is shown in MB/s, or things.
        is_shown: False: never; True: where stderr is a terminal.
    """
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    # rich takes $FORCE_COLOR, which notebooks and CI set, for a terminal.
    if not (is_shown and console.is_terminal and sys.stderr.isatty()):
        yield Bar()
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            shown = "" if speed is None else f"{speed:,.3g}/s" if speed < 1000 else f"{speed:,.0f}/s"
            return Text(shown, style="progress.data.speed")

    counts: list[ProgressColumn] = [MofNCompleteColumn(), Rate()]
    if unit == "bytes":
        counts = [DownloadColumn(), TransferSpeedColumn()]
    counts.append(TimeRemainingColumn())
    shown = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        *(counts if console.width >= _MIN_COLUMNS else counts[:1]),  # they would be cut and broken
        console=console,
        transient=True,
        expand=True,
    )
    task = shown.add_task("", total=None)
    with shown:
        yield Bar(shown, task)


@contextlib.contextmanager
def job_bar(
    verb: str, unit: Literal["bytes", "items"] = "items", *, is_shown: bool = True, resumes: bool = True
) -> Iterator[Callable[[JobProgress], None]]:
    """The bar of a job while the block runs, without log lines in it, and signals end the block as `Signals` has it.

    It gives the function that brings the bar up to date.

    Args:
        verb: the work on the shards, as ``indexing``.
        unit: see `progress`.
        is_shown: likewise.
        resumes: the same command goes on where one was that a signal ended, which then says so.
    """
    start = time.monotonic()
    with Signals(), quiet(), progress(unit, is_shown=is_shown) as bar:

        def show(job: JobProgress) -> None:
            if not bar.is_shown:
                return
            words = f"{verb} {job.ended:,} of {count_of(job.shards, 'shard')}"
            if unit == "items" and job.bytes:
                words += f", {format_size(job.bytes / max(time.monotonic() - start, 1e-3))}/s"
            words += f", failed: {job.failed:,}" if job.failed else ""
            words += f", tried again: {job.retries:,}" if job.retries else ""
            if unit == "bytes" or job.total is not None:
                bar.update(job.done, total=job.total, words=words)
            else:
                bar.update(job.ended, total=job.shards, words=words)

        with resumable(is_so=resumes):
            yield show

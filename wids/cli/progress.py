"""A progress bar with rate and time left, for whatever takes more than a second.

Rules: on stderr, and only where that is a terminal: a pipe, a log and a program that reads JSON see nothing of it. It
is gone when the block ends, however it ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Literal

from wids.errors import without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator


class Bar:
    """What a command tells of its work; without a terminal it tells nobody."""

    def __init__(self, shown: Any = None, task: Any = None) -> None:
        self._shown, self._task = shown, task
        self._most = 0.0

    @property
    def is_shown(self) -> bool:
        """Whether there is a terminal to tell."""
        return self._shown is not None

    def update(self, done: float, *, total: float | None = None, words: str = "") -> None:
        """Bring it up to date.

        Args:
            done: what is done so far, in all; what was done once stays done.
            total: what there is to do, as far as is known by now.
            words: what stands before the bar.
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
        unit: what is counted: bytes, whose rate is told in MB/s, or things.
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
            return Text("" if speed is None else f"{speed:,.3g}/s", style="progress.data.speed")

    counts: list[ProgressColumn] = [MofNCompleteColumn(), Rate()]
    if unit == "bytes":
        counts = [DownloadColumn(), TransferSpeedColumn()]
    shown = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        *counts,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        expand=True,
    )
    task = shown.add_task("", total=None)
    with shown:
        yield Bar(shown, task)

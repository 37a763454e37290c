"""A progress bar with rate and time left, for work of more than a second; the same one for commands and programs.

In a notebook it is below the cell, else on stderr, and only where that is a terminal: a pipe, a log and a program that
reads JSON see nothing of it. It is gone when the block ends, however it ends. One is shown at a time: work within work
that has a bar has none.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Literal

from wids.errors import printable, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Below so many columns a bar shows no rate and no time left.
_MIN_COLUMNS = 76
# A notebook is sent the bar no more often.
_DRAW_SECONDS = 0.25


class Bar:
    """Progress of some work on a terminal or in a notebook; elsewhere it prints nothing.

    Args:
        shown: a ``rich.progress.Progress``.
        task: the task in it.
        draw: called after changes.
    """

    def __init__(self, shown: Any = None, task: Any = None, draw: Callable[[], None] = lambda: None) -> None:
        self._shown, self._task, self._draw = shown, task, draw
        self._most = 0.0

    @property
    def is_shown(self) -> bool:
        """True if there is a terminal or a notebook to show it on."""
        return self._shown is not None

    def update(self, done: float, *, total: float | None = None, words: str = "") -> None:
        """Bring it up to date.

        Args:
            done: so far, in all; it never goes back.
            total: all that there is to do, as far as known.
            words: before the bar.
        """
        if self._shown is None:
            return
        self._most = max(self._most, done)
        whole = None if total is None else max(total, self._most)
        self._shown.update(self._task, completed=self._most, total=whole, description=printable(without_secrets(words)))
        self._draw()


_is_taken = threading.Lock()


@contextlib.contextmanager
def progress(unit: Literal["bytes", "items"] = "items", *, is_shown: bool = True) -> Iterator[Bar]:
    """A bar while the block runs.

    Args:
        unit: of the counts: bytes, whose rate is shown in MB/s, or things.
        is_shown: False: never; True: where stderr is a terminal, and in a notebook.
    """
    # rich takes $FORCE_COLOR, which notebooks and CI set, for a terminal.
    if not (is_shown and (_is_notebook() or _is_terminal()) and _is_taken.acquire(blocking=False)):
        yield Bar()
        return
    try:
        with _drawn(unit) as bar:
            yield bar
    finally:
        _is_taken.release()


def _is_notebook() -> bool:
    if "IPython" not in sys.modules:
        return False
    from rich.console import Console

    return Console().is_jupyter


def _is_terminal() -> bool:
    if sys.stderr is None or sys.stderr.closed or not sys.stderr.isatty():
        return False
    from rich.console import Console

    return Console(stderr=True).is_terminal


@contextlib.contextmanager
def _drawn(unit: Literal["bytes", "items"]) -> Iterator[Bar]:
    from rich.console import Console
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

    console = Console(stderr=True, highlight=False)

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
    if console.is_jupyter:
        with _below_the_cell(shown) as draw:
            yield Bar(shown, task, draw)
        return
    with shown:
        yield Bar(shown, task)


@contextlib.contextmanager
def _below_the_cell(shown: Any) -> Iterator[Callable[[], None]]:
    """Display for a notebook while the block runs. rich's own way there needs ipywidgets."""
    import IPython.display

    put: Any = IPython.display.display
    handle, drawn = put(shown, display_id=True), time.monotonic()

    def draw() -> None:
        nonlocal drawn
        if time.monotonic() - drawn > _DRAW_SECONDS:
            handle.update(shown)
            drawn = time.monotonic()

    try:
        yield draw
    finally:
        handle.update({"text/plain": ""}, raw=True)

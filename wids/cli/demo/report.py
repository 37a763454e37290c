"""What the demo shows: steps, a progress bar, a table, a sentence.

Rules: on a terminal things move, elsewhere there are plain lines. Figures come from counts, never from what should have
happened; nothing is claimed that the counts do not bear out.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wids.cli.demo.train import Job, Progress
    from wids.cli.demo.verdict import Outcome

_LINE_SECONDS = 30.0


class Display:
    """The terminal, or whatever stdout is; ``console`` takes its place."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)

    def say(self, text: str) -> None:
        """Print one line, as it is."""
        self.console.print(Text(text), soft_wrap=not self.console.is_terminal)

    @contextlib.contextmanager
    def busy(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show ``text`` while the block runs; yields a function that changes it."""
        if not self.console.is_terminal:
            yield lambda _: None
            return
        with self.console.status(Text(text)) as status:
            yield lambda changed: status.update(Text(changed))

    @contextlib.contextmanager
    def training(self, job: Job) -> Iterator[Callable[[Progress], None]]:
        """Show the ranks' progress while the block runs; yields a function to be told of it."""
        state = _State(job)
        if not self.console.is_terminal:
            yield lambda progress: self._say_progress(state, progress)
            return
        bar = ProgressBar(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[rate]}", markup=False),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            expand=True,
        )
        with bar:
            task = bar.add_task(f"starting {count_of(job.ranks, 'rank')}", total=None, rate="")

            def show(progress: Progress) -> None:
                state.take(progress)
                bar.update(task, total=state.total, completed=state.done, description=state.words, rate=state.rate)

            yield show

    def _say_progress(self, state: _State, progress: Progress) -> None:
        has_ended = state.take(progress)
        if has_ended or time.monotonic() - state.said > _LINE_SECONDS:
            state.said = time.monotonic()
            self.say(f"{state.words}, {state.rate}")

    def show_table(self, outcome: Outcome) -> None:
        """The closing table: a line for each rank, and one for all."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for name in ("", "samples", "batches", "samples\nper s", "shards\nfetched", "cache\nhits", "accuracy"):
            table.add_column(name, justify="right" if name else "left", overflow="fold")
        if outcome.surveyed:
            count, events = outcome.surveyed
            table.add_row("labels", f"{count:,}", "", "", f"{events['Fetched']:,}", f"{events['Hit']:,}", "")
        for result, events in zip(outcome.results, outcome.events, strict=True):
            table.add_row(
                f"rank {result.rank}",
                f"{result.samples:,}",
                f"{result.batches:,}",
                f"{result.samples / result.seconds:,.0f}",
                f"{events['Fetched']:,}",
                f"{events['Hit']:,}",
                "",
            )
        samples = sum(result.samples for result in outcome.results)
        table.add_row(
            "all",
            f"{samples:,}",
            f"{sum(result.batches for result in outcome.results):,}",
            f"{samples / max(result.seconds for result in outcome.results):,.0f}",
            f"{outcome.total('Fetched'):,}",
            f"{outcome.total('Hit'):,}",
            f"{outcome.accuracy:.1%}",
            style="bold",
        )
        self.console.print(table)


class _State:
    """Where all ranks are, from what each told last."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._last: dict[int, Progress] = {}
        self._ended = 0
        self.said = time.monotonic()

    def take(self, progress: Progress) -> bool:
        """Take note; returns whether with this all ranks have ended one more epoch."""
        self._last[progress.rank] = progress
        if len(self._last) < self._job.ranks:
            return False
        ended = min(known.epoch + (known.batch == known.batches) for known in self._last.values())
        is_news = ended > self._ended
        self._ended = ended
        return is_news

    @property
    def total(self) -> int:
        return self._job.epochs * self._job.ranks * next(iter(self._last.values())).batches

    @property
    def done(self) -> int:
        return sum(known.epoch * known.batches + known.batch for known in self._last.values())

    @property
    def words(self) -> str:
        known = self._last.values()
        epoch = min(one.epoch for one in known) + 1
        return f"epoch {epoch}/{self._job.epochs}: loss {sum(one.loss for one in known) / len(known):.3f}"

    @property
    def rate(self) -> str:
        known = self._last.values()
        seconds = max(one.seconds for one in known)
        return f"{sum(one.samples for one in known) / max(seconds, 1e-9):,.0f} samples/s"


def count_of(number: int, noun: str) -> str:
    """``1 rank``, ``2 batches``, ``3,001 samples``."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}es" if noun.endswith("ch") else f"{number:,} {noun}s"

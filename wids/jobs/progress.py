"""Shows the progress of a job to its caller: calls a function, or draws a bar."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Literal, TypeAlias

from wids.core.files.terminal import progress
from wids.errors import InputError
from wids.events import count_of, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wids.core.files.terminal import Bar
    from wids.jobs.outcome import JobProgress

    ShowProgress: TypeAlias = Callable[[JobProgress], None]
# A function, called regularly; "bar": a bar in a terminal or a notebook; None: no reports.
Progress: TypeAlias = "ShowProgress | Literal['bar'] | None"


@contextlib.contextmanager
def showing(asked: Progress, verb: str, unit: Literal["bytes", "items"] = "items") -> Iterator[ShowProgress]:
    """The function to call with the progress of a job, in the block.

    Args:
        asked: the argument of the job's caller.
        verb: the work on the shards, as ``indexing``.
        unit: see `wids.core.files.terminal.progress`.

    Raises:
        InputError: it is none of these.
    """
    check_progress(asked)
    if asked is None:
        yield lambda _: None
    elif callable(asked):
        yield asked
    else:
        with progress(unit) as bar:
            yield _shown_by(bar, verb, unit)


def check_progress(asked: Progress) -> None:
    """Check a ``progress`` argument.

    Raises:
        InputError: it is none of these.
    """
    if asked not in (None, "bar") and not callable(asked):
        raise InputError(f'progress={asked!r}: give a function that takes a JobProgress, "bar", or None')


def _shown_by(bar: Bar, verb: str, unit: Literal["bytes", "items"]) -> ShowProgress:
    """The function that updates a bar; see `showing`."""
    start = time.monotonic()

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

    return show

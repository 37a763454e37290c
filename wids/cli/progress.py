"""What commands show of their work: the bar of `wids.files.terminal`, without log lines in it; the bar of all jobs."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from typing import TYPE_CHECKING, Literal

from wids.cli.format import count_of, format_size
from wids.cli.signals import Signals, resumable
from wids.files.terminal import progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wids.jobs.outcome import JobProgress


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

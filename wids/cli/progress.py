"""What a command has around a job, whose bar is `wids.jobs.progress`."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from wids.cli.format import is_debug
from wids.cli.signals import Signals, resumable

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without log lines (of each try that failed, say) in the bar, unless they are asked for by --debug."""
    logger, handler = logging.getLogger("wids"), logging.NullHandler()
    if not is_debug():
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextlib.contextmanager
def job_signals(*, resumes: bool = True) -> Iterator[None]:
    """Around a job: signals end it as `Signals` has it, and its bar has no log lines in it.

    Args:
        resumes: the same command goes on where one was that a signal ended, which then says so.
    """
    with Signals(), quiet(), resumable(is_so=resumes):
        yield

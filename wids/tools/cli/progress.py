"""The frame of a command around a job, whose bar is `wids.jobs.progress`."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from wids.tools.cli.format import is_debug, print_errors
from wids.tools.cli.signals import Signals, resumable

if TYPE_CHECKING:
    from collections.abc import Iterator


class _KeptWarnings(logging.Handler):
    """Keeps the texts of warnings, each once, but of those that the bar or the report of a command has."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if not getattr(record, "is_reported", False):
            self.texts[record.getMessage()] = None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without log lines in the bar, unless --debug asks for them; warnings are printed when the block ends."""
    logger, kept = logging.getLogger("wids"), _KeptWarnings()
    if not is_debug():
        logger.addHandler(kept)
    try:
        yield
    finally:
        logger.removeHandler(kept)
        print_errors([*kept.texts], others="--debug shows them all")


@contextlib.contextmanager
def job_signals(*, resumes: bool = True) -> Iterator[None]:
    """Around a job: signals end it as `Signals` has it, and its bar has no log lines in it.

    Args:
        resumes: the same command goes on where one was that a signal ended, which then says so.
    """
    with Signals(), quiet(), resumable(is_so=resumes):
        yield

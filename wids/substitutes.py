"""Samples in the place of those that cannot be read, decoded or transformed (``on_error="substitute"``).

Which sample takes the place of sample i is a function of i, of the number of the attempt, and of how many samples its
shard has in the dataset: it is the same on any rank, in any worker, at any time. Without torch.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from wids.errors import CacheError, FetchError, ShardError, ShardReadError, TooManyErrorsError
from wids.events import SampleSubstituted, emit, logger
from wids.order.permutation import SUBSTITUTES, permutation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.events import Hook
    from wids.readers.base import Sample

# So many other samples are tried.
MAX_ATTEMPTS = 16
# Before so many have failed, a share of failures says nothing.
_MIN_FAILURES = 10


def pick(index: int, attempt: int, lo: int, hi: int) -> int | None:
    """The sample of ``lo .. hi`` that takes the place of ``index``; None: there is none left to try.

    Args:
        index: which one's.
        attempt: from 0 on; each gives another sample.
        lo: the first index of its shard.
        hi: one past the last.
    """
    others = hi - lo - 1
    if attempt >= min(others, MAX_ATTEMPTS):
        return None
    step = int(permutation(others, seed=index, epoch=0, stream=SUBSTITUTES)[attempt])
    return lo + (index - lo + 1 + step) % (hi - lo)


def is_of_sample(error: Exception) -> bool:
    """Whether an error is one sample's own, and not of a whole shard, of a server, the cache or the machine."""
    if isinstance(error, ShardError):
        return isinstance(error, ShardReadError)
    return not isinstance(error, (FetchError, CacheError, MemoryError, TooManyErrorsError))


class Substitutes:
    """What is done about samples that fail, and how many have, in this process.

    Args:
        max_errors: the share of samples that may fail; not looked at before ten have.
        error_log: a file to which a line of JSON is added for each failure: index, shard, row, key, field, error.
        hooks: called with `SampleSubstituted` events.
    """

    def __init__(self, *, max_errors: float, error_log: str | None, hooks: Sequence[Hook]) -> None:
        self._max_errors, self._hooks = max_errors, hooks
        self._log = None if error_log is None else os.path.abspath(os.path.expanduser(error_log))
        self._count = self._failures = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_count": 0, "_failures": 0}

    def finish(
        self,
        sample: Sample | Exception,
        index: int,
        *,
        span: Callable[[], tuple[int, int]],
        read: Callable[[int], Sample],
        transform: Callable[[Sample], Any],
        valid: bool | None = None,
    ) -> Any:
        """A sample after its transformations, or another one in its place.

        Args:
            sample: sample ``index`` as it was read, or why it could not be.
            index: which.
            span: gives the indices of the samples in its shard, half-open.
            read: reads the sample of an index.
            transform: applies the transformations.
            valid: ``__valid__`` of the sample.

        Raises:
            TooManyErrorsError: too many samples have failed.
            Exception: what the last sample that was tried failed with.
        """
        self._count += 1
        place, attempt, found = -1, 0, index
        while True:
            where = _where(sample)
            try:
                return transform(_mark(sample, place, valid=valid))
            except Exception as error:
                if not is_of_sample(error):
                    raise
                other = pick(index, attempt, *span())
                self._note(error, found, other, where)
                if other is None:
                    raise
            place, attempt, found = index, attempt + 1, other
            try:
                sample = read(other)
            except ShardReadError as error:
                sample = error

    def _note(self, error: Exception, index: int, other: int | None, where: dict[str, Any]) -> None:
        self._failures += 1
        field, words = getattr(error, "field", None), f"{type(error).__name__}: {error}"
        where = {"shard": getattr(error, "shard", None), "row": None, "key": getattr(error, "key", None), **where}
        emit(self._hooks, SampleSubstituted(index=index, by=other, **where, field=field, cause=words))
        self._write({"index": index, **where, "field": field, "error": words})
        if self._failures == 1:
            logger.warning(
                "sample %d failed, and another one takes its place; more are not warned of: %s", index, words
            )
        if self._failures >= _MIN_FAILURES and self._failures > self._max_errors * self._count:
            log = f"; {self._log} names them" if self._log else ""
            raise TooManyErrorsError(
                f"{self._failures} of {self._count:,} samples failed in this process, more than max_errors="
                f"{self._max_errors:g}{log}; the last one was sample {index}: {words}",
                path=self._log,
            ) from error

    def _write(self, line: dict[str, Any]) -> None:
        if self._log is None:
            return
        try:
            fd = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                os.write(fd, json.dumps(line, default=str).encode() + b"\n")  # at once: all workers write to it
            finally:
                os.close(fd)
        except OSError as error:
            logger.warning("%s: the failure of a sample could not be written (%s)", self._log, error)


def _mark(sample: Sample | Exception, place: int, *, valid: bool | None) -> Sample:
    """A sample with what is said of it; ``place``: whose place it takes, or -1.

    Raises:
        Exception: it is why the sample could not be read.
    """
    if isinstance(sample, Exception):
        raise sample
    sample["__substitute_for__"] = place
    if valid is not None:
        sample["__valid__"] = valid
    return sample


def _where(sample: Sample | Exception) -> dict[str, Any]:
    if isinstance(sample, Exception):
        return {}
    return {"shard": sample["__shard__"], "row": sample["__shardindex__"], "key": sample["__key__"]}

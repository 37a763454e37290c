"""Samples in the place of those that cannot be read, decoded or transformed (``on_error="substitute"``).

Which sample takes the place of sample i is a function of i, of the number of the attempt, and of how many samples its
shard has in the dataset: it is the same on any rank, in any worker, at any time. So an error that is not the sample's
own (of the machine, a server, a whole shard) is raised, and no other sample taken. Without torch.
"""

from __future__ import annotations

import errno
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

from wids.core.collection import error_log
from wids.core.files import atomic, forks
from wids.core.order.permutation import SUBSTITUTES, permutation
from wids.errors import (
    CacheError,
    ColumnsError,
    FetchError,
    InputError,
    ShardError,
    ShardReadError,
    TooManyErrorsError,
    WidsError,
)
from wids.events import SampleSubstituted, emit, logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wids.core.collection.shard_collection import ShardCollection
    from wids.core.readers.base import Sample
    from wids.events import Hook

# The most other samples that are tried.
MAX_ATTEMPTS = 16
# With fewer failures, their share means nothing.
_MIN_FAILURES = 10
# Faults of the machine, of a server, or of the program's setup: other samples would fail in the same way, or only here.
_NOT_OF_SAMPLES = (
    *(FetchError, CacheError, ColumnsError, InputError, TooManyErrorsError),
    *(MemoryError, ImportError, CancelledError),
)
_LACKING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT})
_MAX_CAUSES = 20


def pick(index: int, attempt: int, lo: int, hi: int) -> int | None:
    """The sample of ``lo .. hi`` that takes the place of ``index``; None: none is left to try.

    Args:
        index: of the sample.
        attempt: from 0 on; each gives another sample.
        lo: the first index of its shard.
        hi: one past the last.
    """
    others = hi - lo - 1
    if attempt >= min(others, MAX_ATTEMPTS):
        return None
    # Not steps of one length: of every other sample bad, these could all be.
    step = int(permutation(others, seed=index, epoch=0, stream=SUBSTITUTES)[attempt])
    return lo + (index - lo + 1 + step) % (hi - lo)


def is_of_sample(error: Exception) -> bool:
    """True if an error is one sample's own, and not of a whole shard, of a server, the cache or the machine."""
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if isinstance(cause, _NOT_OF_SAMPLES) or (isinstance(cause, OSError) and cause.errno in _LACKING):
            return False
        cause = None if cause is None else cause.__cause__
    return isinstance(error, ShardReadError) or not isinstance(error, ShardError)


class Substitutes:
    """Replaces samples that fail, and counts them, in this process.

    Args:
        max_errors: the share of samples that may fail; not looked at before ten have.
        log: the path of a file to which a line is added for each failure (`wids.core.collection.error_log`); None:
            there is none.
        hooks: called with `SampleSubstituted` events.
        has_failed: True if one has failed in any process of the job, which is logged once.
    """

    def __init__(
        self, *, max_errors: float, log: str | None, hooks: Sequence[Hook], has_failed: Callable[[], bool]
    ) -> None:
        self._max_errors, self._log, self._hooks, self._has_failed = max_errors, log, hooks, has_failed
        self._begin()

    def _begin(self) -> None:
        self._has_warned = False
        self.start_child()
        forks.reset_in_child(self)

    def start_child(self) -> None:
        """Count from zero in a process of its own, however it was started; see `wids.core.files.forks.Inherited`."""
        self._count = self._failures = 0

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("_max_errors", "_log", "_hooks", "_has_failed")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def finish(
        self,
        sample: Sample | Exception,
        index: int,
        *,
        collection: ShardCollection,
        read: Callable[[int], Sample],
        transform: Callable[[Sample], Any],
        marks: Mapping[str, Any],
    ) -> Any:
        """A sample after its transformations, or another one in its place.

        Args:
            sample: sample ``index`` as it was read, or the error of reading it.
            index: its index.
            collection: of the samples.
            read: reads the sample of an index.
            transform: applies the transformations.
            marks: keys about its place in the order (``__valid__``, ``__seed__``), which one in its place has too.

        Raises:
            TooManyErrorsError: too many samples have failed, or all that could take this one's place.
            Exception: an error that is not a sample's own.
        """
        replaced, failed, attempt = -1, index, 0
        while True:
            self._count += 1
            key = None if isinstance(sample, Exception) else sample.get("__key__")
            try:
                return transform(_mark(sample, replaced, marks))
            except Exception as error:
                if not is_of_sample(error):
                    raise
                other = pick(index, attempt, *collection.span_of(index))
                words = self._note(error, failed, key, other, collection)
                if other is None:
                    raise self._failed(f"sample {index} failed, and {_tried(attempt)}: {words}") from error
            replaced, failed, attempt = index, other, attempt + 1
            try:
                sample = read(other)
            except ShardReadError as error:
                sample = error

    def _note(self, error: Exception, index: int, key: Any, other: int | None, collection: ShardCollection) -> str:
        """Count and log a failure; return its words.

        Raises:
            TooManyErrorsError: it is one too many.
        """
        self._failures += 1
        is_first = not self._has_failed()
        shard, row = collection.locate(index)
        url, words = collection.shards.urls[shard], error_log.describe(error)
        field = error.field if isinstance(error, WidsError) else None
        event = SampleSubstituted(index=index, by=other, shard=url, row=row, key=key, field=field, cause=words)
        emit(self._hooks, event)
        if self._log is not None:
            self._write(self._log, error_log.format_line(url, index=index, row=row, key=key, field=field, error=words))
        if is_first:
            logger.warning("sample %d failed, and another one takes its place (said once): %s", index, words)
        if self._failures >= _MIN_FAILURES and self._failures > self._max_errors * self._count:
            raise self._failed(
                f"{self._failures} of {self._count:,} samples failed in this process, more than max_errors="
                f"{self._max_errors:g}. If so many may fail, give the dataset a larger max_errors= (of these, "
                f"{self._failures / self._count:.2g} failed). The last one was sample {index}: {words}"
            ) from error
        return words

    def _failed(self, what: str) -> TooManyErrorsError:
        return TooManyErrorsError(f"{what}{f' ({self._log} names them)' if self._log else ''}", path=self._log)

    def _write(self, path: str, line: bytes) -> None:
        try:
            atomic.append_line(path, line)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "%s: failures of samples cannot be written (%s); said once for each process", path, error
                )


def _tried(count: int) -> str:
    return f"so did the {count} of its shard that were to take its place" if count else "its shard has no other one"


def _mark(sample: Sample | Exception, replaced: int, marks: Mapping[str, Any]) -> Sample:
    """A sample with its marks; ``replaced``: the index whose place it takes, or -1.

    Raises:
        Exception: it is why the sample could not be read.
    """
    if isinstance(sample, Exception):
        raise sample
    sample["__substitute_for__"] = replaced
    if marks:
        sample.update(marks)
    return sample

"""Patience: the errors that are tried again, and the time for that.

Transient errors (time-outs, resets, 408/429/5xx, short or damaged transfers) are retried with backoff and jitter, and
the bytes that have arrived stay; final ones are raised at once, with advice. Time limits end the retries, see
`RetryLimits`. If the server has answered this process before, or sends ``Retry-After``, retries continue for
``patience_seconds`` without a new byte, so that a restart of a server ends no training. If it never has, they continue
for ``first_seconds``, and there are few of them where not even a connection was made, so that a wrong host or port is
reported soon. All tries together have a time limit as well.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from wids.core.place import Place
from wids.core.transport.failures import (
    DAMAGE,
    CancelledTransferError,
    explain,
    find_retry_after,
    forget_frames,
    is_transient,
    is_unreached,
    public_cause,
    words_of,
)
from wids.errors import WidsError
from wids.events import Retried, emit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from wids.events import Hook

T = TypeVar("T")


class RetryLimits(NamedTuple):
    """The limits of retries; the default applies; tests replace it.

    Attributes:
        first_seconds: for a server that never answered this process.
        patience_seconds: for others, without a new byte.
        wait_seconds: before the second try.
        wait_max_seconds: before any try.
        retry_after_max_seconds: the most that a server may add to the wait.
        total_seconds: a transfer may take this, plus the time of its bytes at ``slowest_bytes``.
        slowest_bytes: a rate in bytes per second.
        silent_seconds: the longest time without output of a ``pipe:`` program.
    """

    first_seconds: float = 10.0
    patience_seconds: float = 300.0
    wait_seconds: float = 0.2
    wait_max_seconds: float = 15.0
    retry_after_max_seconds: float = 120.0
    total_seconds: float = 600.0
    slowest_bytes: int = 64 << 10
    silent_seconds: float = 600.0


LIMITS = RetryLimits()
# A known server gets at least this many tries, however long each one takes: a stream may break after minutes.
_ATTEMPTS = 6
# One that never answered, and to which no connection can be made: its host or port is probably wrong.
_FIRST_ATTEMPTS = 4
_POLL_SECONDS = 0.1
_DAMAGE_ATTEMPTS = 2


def try_repeatedly(
    once: Callable[[], T],
    *,
    url: str | Place,
    path: str | None,
    hooks: Sequence[Hook],
    seconds: float = LIMITS.total_seconds,
    kept: Callable[[], int] = lambda: 0,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> T:
    """The result of ``once``, called until it returns or another try is pointless.

    Args:
        once: one try.
        url: for messages, and for the name of the server.
        path: the file that it writes.
        hooks: called for each retry.
        seconds: for all tries together.
        kept: the number of bytes that another try need not fetch; a try that increased it made progress.
        is_cancelled: called before each try, and during the wait for it.
    """
    place = Place.of(url)
    url, tries = str(place), _Tries(place.origin, path, seconds, kept)
    while True:
        if is_cancelled():
            raise CancelledTransferError
        try:
            result = once()
        except CancelledTransferError:
            raise
        except Exception as error:
            delay = tries.find_delay(error)
            if delay is None and isinstance(error, WidsError):
                raise
            if delay is None:
                raise explain(error, url, path, tries=tries.count) from public_cause(error, url)
            emit(hooks, Retried(url=url, attempt=tries.count, cause=words_of(error, url), pause_seconds=delay))
            forget_frames(error)
        else:
            note_answered([tries.origin])
            return result
        pause(delay, is_cancelled)


class _Tries:
    """The results of the tries so far, which decide about another one.

    Args:
        origin: the server, or "".
        path: see `try_repeatedly`.
        seconds: see there.
        kept: see there.
    """

    def __init__(self, origin: str, path: str | None, seconds: float, kept: Callable[[], int]) -> None:
        self.origin, self.count = origin, 0
        self._path, self._kept = path, kept
        self._ends = now() + seconds
        self._kept_bytes = self._damaged = self._fruitless = 0
        self._failing_since = 0.0

    def find_delay(self, error: Exception) -> float | None:
        """Seconds from a failed try to the next one; None: no more tries."""
        is_damage = isinstance(error, DAMAGE)
        self.count += 1
        self._damaged += is_damage
        before, self._kept_bytes = self._kept_bytes, max(self._kept(), self._kept_bytes)
        has_progress = self._kept_bytes > before and not is_damage
        self._fruitless = 0 if has_progress else self._fruitless + 1
        if has_progress or self.count == 1:
            self._failing_since = now()
        if has_progress:
            note_answered([self.origin])
        if self._damaged >= _DAMAGE_ATTEMPTS or not is_transient(error, self._path):
            return None
        asked = find_retry_after(error)
        ends = self._ends
        if self.origin not in _answered and asked is None:
            if self._fruitless >= _FIRST_ATTEMPTS and is_unreached(error):
                return None
            ends = min(ends, self._failing_since + LIMITS.first_seconds)
        elif self._fruitless >= _ATTEMPTS:
            ends = min(ends, self._failing_since + LIMITS.patience_seconds)
        # Twice as long each time, and not in step with other processes.
        backoff = LIMITS.wait_seconds * 2.0 ** min(max(self._fruitless - 1, 0), 30)
        delay = min(backoff, LIMITS.wait_max_seconds) * spread() + min(asked or 0.0, LIMITS.retry_after_max_seconds)
        if now() + delay < ends:
            return delay
        if now() + delay >= self._failing_since + LIMITS.patience_seconds:
            _answered.discard(self.origin)  # otherwise each of a thousand shards would wait as long for the same server
        return None


# Servers that have answered this process, or the one that it was forked from; see the rules above.
_answered: set[str] = set()


def answered() -> frozenset[str]:
    """The servers that have answered so far, to be passed to a new process."""
    return frozenset(_answered)


def note_answered(origins: Iterable[str]) -> None:
    """Record that these servers have answered this process, or its parent."""
    _answered.update(origin for origin in origins if origin)


def now() -> float:
    """The clock of retries, in seconds."""
    return time.monotonic()


def spread() -> float:
    """Random factor by which a wait is shorter than it might be."""
    return random.uniform(0.5, 1.0)  # noqa: S311 - no secret


def pause(seconds: float, is_cancelled: Callable[[], bool]) -> None:
    """Wait before another try.

    Raises:
        CancelledTransferError: it was cancelled meanwhile.
    """
    ends = now() + seconds
    while (left := ends - now()) > 0:
        if is_cancelled():
            raise CancelledTransferError
        time.sleep(min(left, _POLL_SECONDS))

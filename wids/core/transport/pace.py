"""The number of byte ranges that a process asks for while shards are on their way: its share of what a job may.

Thousands of processes that begin at a time would ask a store for more single samples in the first second than it
answers in minutes. So a process has a share of the job's requests, in advance for some time and then at a rate. Once it
has spent that, it waits for shards that are being downloaded; samples of shards that nobody downloads it reads as
before. An answer that a store is overloaded halves its share for a while. Pure.
"""

from __future__ import annotations

from typing import NamedTuple


class PaceLimits(NamedTuple):
    """The default is in force; tests put another in its place.

    Attributes:
        job_rate: requests in a second of all processes of a job, about as many as a store answers for one prefix.
        burst_seconds: requests of so many seconds come in advance.
        least: the smallest part of its share that a process keeps.
        refusal_seconds: refusals within this time count as one.
        again_seconds: after so long the share doubles again.
    """

    job_rate: float = 5_000.0
    burst_seconds: float = 1.0
    least: float = 1 / 64
    refusal_seconds: float = 1.0
    again_seconds: float = 30.0


class Pace:
    """The requests of one process; several threads may use it, and miscount a little."""

    limits: PaceLimits = PaceLimits()

    def __init__(self) -> None:
        self._left: float | None = None  # requests that may be made at once; below 0: that were made too early
        self._at = 0.0
        self._part, self._refused_at = 1.0, float("-inf")

    def may_ask(self, now: float, rate: float) -> bool:
        """True if another request may be made.

        Args:
            now: in seconds of a clock that does not go back.
            rate: the share of the process, in requests a second.
        """
        rate *= self._part_at(now)
        most = max(rate * self.limits.burst_seconds, 1.0)
        self._left = most if self._left is None else min(self._left + (now - self._at) * rate, most)
        self._at = now
        return self._left >= 1

    def seconds_left(self, now: float, rate: float) -> float:
        """Seconds until it may ask, of a process that may not now; arguments as of `may_ask`."""
        return max(1.0 - (self._left or 0.0), 0.0) / (rate * self._part_at(now))

    def spend(self, count: float) -> None:
        """Note that so many requests were made."""
        self._left = (self._left or 0.0) - count

    def note_refusal(self, now: float) -> None:
        """Note that the store has answered that there are too many requests (429, 503)."""
        if now - self._refused_at >= self.limits.refusal_seconds:
            self._part = max(self._part_at(now) / 2, self.limits.least)
            self._refused_at, self._left = now, min(self._left or 0.0, 0.0)

    def _part_at(self, now: float) -> float:
        """The part of its share that the process has after refusals."""
        if self._part == 1.0:
            return 1.0
        part: float = self._part * 2.0 ** ((now - self._refused_at) // self.limits.again_seconds)
        return min(part, 1.0)

"""What a run of the demo amounts to: its counts held against what there was, and one sentence.

Rules: pure. What was counted decides; a sentence claims only what the counts bear out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wids.cli.demo.report import count_of
from wids.errors import WidsError

if TYPE_CHECKING:
    from collections import Counter

    from wids.cli.demo.source import Source
    from wids.cli.demo.train import Job, Result

# What a network that learns reaches on the drawn shapes with much to spare.
_ENOUGH = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The counts of a run.

    Attributes:
        results: of each rank.
        events: of each rank and its workers, by the name of the event's type.
        surveyed: samples whose labels were read beforehand, and the events of that; None where labels were known.
    """

    results: tuple[Result, ...]
    events: tuple[Counter[str], ...]
    surveyed: tuple[int, Counter[str]] | None

    @property
    def accuracy(self) -> float:
        """Right answers among the held-out samples, 0 .. 1."""
        return self.results[0].correct / self.results[0].tested

    def total(self, event: str) -> int:
        """How often an event happened in all processes."""
        return sum(counts[event] for counts in self.events) + (self.surveyed[1][event] if self.surveyed else 0)


def judge(outcome: Outcome, source: Source, job: Job) -> str:
    """One sentence that says what the run showed.

    Raises:
        WidsError: the ranks' counts differ, samples were left out of the test, or drawn shapes were not learned.
    """
    first = outcome.results[0]
    for result in outcome.results[1:]:
        if (result.samples, result.batches) != (first.samples, first.batches):
            raise WidsError(
                f"the ranks' shares differ: rank 0 had {first.samples} samples in {first.batches} batches, "
                f"rank {result.rank} had {result.samples} in {result.batches}"
            )
    if first.samples * job.ranks < source.trained * job.epochs or first.tested != source.tested:
        raise WidsError(
            f"samples were left out: {job.ranks} x {first.samples} of {source.trained} x {job.epochs} epochs to train "
            f"on, {first.tested} of {source.tested} to test on"
        )
    if source.server is not None and outcome.accuracy < _ENOUGH:
        raise WidsError(
            f"too little was learned: {outcome.accuracy:.1%} of the held-out shapes were told apart, and "
            f"{_ENOUGH:.0%} is expected; give it more --epochs than {job.epochs}"
        )
    return f"{_tell_shares(first, source, job)}; {_tell_fetches(outcome, source)}; {_tell_test(outcome, source)}."


def _tell_shares(first: Result, source: Source, job: Job) -> str:
    each = f"{count_of(first.samples, 'sample')} in {count_of(first.batches, 'batch')}"
    shards = count_of(len(source.lengths), "shard")
    if min(source.lengths) != max(source.lengths):
        shards += f" of {min(source.lengths):,} to {max(source.lengths):,} samples"
    if job.ranks == 1:
        return f"1 rank had {each}, from {shards}"
    return f"{job.ranks} ranks on {_devices(first)} had {each} each, from {shards}"


def _tell_fetches(outcome: Outcome, source: Source) -> str:
    fetched, hits = outcome.total("Fetched"), outcome.total("Hit")
    if source.server is None:
        if not fetched and not hits:
            return "all shards were read in place"
        return f"{count_of(fetched, 'shard')} fetched, and found in the cache {count_of(hits, 'time')}"
    served = source.server.requests
    times = "once" if set(served.values()) == {1} else f"{sum(served.values())} times in all"
    return (
        f"{count_of(len(served), 'shard')} went over HTTP {times} ({source.server.sent_bytes / 1e6:.1f} MB) and "
        f"came from the cache {count_of(hits, 'time')}"
    )


def _tell_test(outcome: Outcome, source: Source) -> str:
    noun = "shapes" if source.server is not None else f"samples of {len(source.data.classes)} classes"
    return f"{outcome.accuracy:.1%} of {source.tested:,} held-out {noun} were told apart"


def _devices(result: Result) -> str:
    return "GPUs" if result.device.startswith("cuda") else "the CPU"

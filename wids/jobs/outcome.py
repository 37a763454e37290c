"""The results of a job: counts, and a reason for each failed shard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from wids.errors import JobError, WidsError, without_secrets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


class JobOutcome(msgspec.Struct, kw_only=True):
    """The outcome of any job; a job adds its own counts.

    Attributes:
        shards: their number.
        failed: URL of a shard -> the reason of its failure.
        seconds: the duration of the job.

    Example:
        >>> outcome = jobs.verify("train.json")
        >>> isinstance(outcome, jobs.JobOutcome), outcome.shards, outcome.failed
        (True, 3, {})
    """

    shards: int = 0
    failed: dict[str, str] = msgspec.field(default_factory=dict)
    seconds: float = 0.0

    def fail(self, url: str, error: BaseException) -> None:
        """Record the reason of a shard's failure.

        Args:
            url: of the shard.
            error: the reason.
        """
        self.failed[url] = reason_of(url, error)

    def sort_failed(self, urls: Iterable[str]) -> None:
        """Sort failures by the order of the job's shards.

        Args:
            urls: of all shards, in that order.
        """
        self.failed = {url: self.failed[url] for url in dict.fromkeys(urls) if url in self.failed}


class JobProgress(msgspec.Struct, kw_only=True):
    """The progress of a job.

    Attributes:
        shards: their number.
        ended: shards that succeeded or failed.
        failed: shards that failed.
        bytes: read or written so far.
        retries: of downloads.
        total: samples or bytes in all, for jobs whose shards differ in size.
        done: samples or bytes so far, likewise.

    Example:
        >>> seen = []
        >>> outcome = jobs.verify("train.json", progress=seen.append)
        >>> seen[-1].ended, seen[-1].shards
        (3, 3)
    """

    shards: int = 0
    ended: int = 0
    failed: int = 0
    bytes: int = 0
    retries: int = 0
    total: float | None = None
    done: float = 0.0


def sum_progress(parts: Collection[JobProgress]) -> JobProgress:
    """The progress of a job of several parts; its total is known when all parts know theirs."""
    counts: dict[str, Any] = {
        name: sum(getattr(part, name) for part in parts) for name in JobProgress.__struct_fields__ if name != "total"
    }
    totals = [part.total for part in parts if part.total is not None]
    return JobProgress(total=sum(totals) if len(totals) == len(parts) else None, **counts)


def reason_of(url: str, error: BaseException) -> str:
    """The reason of a failure, with the shard's URL: the error's message, and the name of an error of another package.

    The message of a `JobError` (a lost worker) does not name the shard, so the URL is added.
    """
    if isinstance(error, JobError):
        return f"{url}: {error}"
    if isinstance(error, WidsError):
        return str(error)
    return without_secrets(f"{url}: {type(error).__name__}: {error}", url)


def raise_failure(url: str, error: BaseException) -> NoReturn:
    """End a job because a shard failed.

    Raises:
        WidsError: the failure, with the shard's URL.
    """
    if isinstance(error, WidsError) and not isinstance(error, JobError):
        raise error
    kind = type(error) if isinstance(error, JobError) else JobError
    raise kind(reason_of(url, error), **{**getattr(error, "__dict__", {}), "url": url}) from error

"""What became of the shards of a job: counts, and a reason for each shard that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from wids.errors import JobError, WidsError, without_secrets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


class JobOutcome(msgspec.Struct, kw_only=True):
    """What all jobs have in common; a job adds its own counts.

    Attributes:
        shards: how many there are.
        failed: URL of a shard -> why it failed.
        seconds: that the job took.
    """

    shards: int = 0
    failed: dict[str, str] = msgspec.field(default_factory=dict)
    seconds: float = 0.0

    def fail(self, url: str, error: BaseException) -> None:
        """Note why a shard failed."""
        self.failed[url] = reason_of(url, error)

    def sort_failed(self, urls: Iterable[str]) -> None:
        """Put failures in the order of the job's shards, not in that of their ends."""
        self.failed = {url: self.failed[url] for url in dict.fromkeys(urls) if url in self.failed}


class JobProgress(msgspec.Struct, kw_only=True):
    """How far a job is.

    Attributes:
        shards: how many there are. ended: those that are done with, well or not. failed: of them.
        bytes: that were read or written so far. retries: of downloads.
        total, done: of samples or bytes, where those say better how far it is.
    """

    shards: int = 0
    ended: int = 0
    failed: int = 0
    bytes: int = 0
    retries: int = 0
    total: float | None = None
    done: float = 0.0


def sum_progress(parts: Collection[JobProgress]) -> JobProgress:
    """How far a job of several parts is; its total is known when those of all parts are."""
    counts: dict[str, Any] = {
        name: sum(getattr(part, name) for part in parts) for name in JobProgress.__struct_fields__ if name != "total"
    }
    totals = [part.total for part in parts if part.total is not None]
    return JobProgress(total=sum(totals) if len(totals) == len(parts) else None, **counts)


def reason_of(url: str, error: BaseException) -> str:
    """Why a shard failed: an error of wids says it itself, any other one is called by its name.

    A lost worker knows of no shards.
    """
    if isinstance(error, JobError):
        return f"{url}: {error}"
    if isinstance(error, WidsError):
        return str(error)
    return without_secrets(f"{url}: {type(error).__name__}: {error}", url)


def raise_failure(url: str, error: BaseException) -> NoReturn:
    """End a job because a shard failed.

    Raises:
        WidsError: it names the shard.
    """
    if isinstance(error, WidsError) and not isinstance(error, JobError):
        raise error
    kind = type(error) if isinstance(error, JobError) else JobError
    raise kind(reason_of(url, error), **{**getattr(error, "__dict__", {}), "url": url}) from error

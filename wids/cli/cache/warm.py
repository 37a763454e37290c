"""``wids cache warm``: fetch the shards of an index into a cache, with a progress bar, and say what became of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from wids import jobs
from wids.cli.format import count_of, format_rate, format_size, print_errors, print_json, printable
from wids.cli.progress import job_signals
from wids.errors import CacheError, JobError
from wids.jobs.cache_warm import WarmSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wids.jobs.cache_warm import WarmOutcome
    from wids.jobs.runner import RunOptions
    from wids.transport.session import Session


def warm(
    index: str,
    *,
    directory: str | None,
    cache_size: int | None,
    selected: slice,
    options: RunOptions,
    excluded: Sequence[str],
    session: Session,
    is_json: bool,
) -> None:
    """Fetch shards into a cache directory, and print what became of them.

    Args:
        index: its URL or path, or tars by a brace pattern.
        directory: the cache; None: the default one of the machine.
        cache_size: bytes that it may hold; None: what the disk has space for.
        selected: which shards of the index.
        options: what runs it.
        excluded: nodes of a Ray cluster to leave out.
        session: what opens URLs.
        is_json: print JSON, and no progress.

    Raises:
        WidsError: the index cannot be read, the shards do not fit, or some did not come.
    """
    settings = WarmSettings(directory=directory, cache_size=cache_size, session=session)
    try:
        with job_signals():
            outcome = jobs.warm(
                index,
                settings,
                shards=selected,
                excluded=excluded,
                engine=options,
                progress=None if is_json else "bar",
            )
    except CacheError as error:
        if error.hint == "fewer_shards":  # those that fit, as --shards names them
            error.__dict__["fitting"] = f" (--shards {error.found.start}:{error.found.stop} fit)"
        raise
    if is_json:
        print_json(msgspec.to_builtins(outcome))
    else:
        for one in outcome.nodes if options.is_ray else [outcome]:
            _report(one)
    if outcome.failed:
        print_errors([*outcome.failed.values()])
        lost = len(outcome.failed) - sum(len(one.failed) for one in outcome.nodes) if options.is_ray else 0
        if lost:
            raise JobError(f"{count_of(lost, 'node')} of the Ray cluster did not fetch all shards; run it again")
        raise JobError(f"{len(outcome.failed)} of {count_of(outcome.shards, 'shard')} could not be fetched")


def _report(outcome: WarmOutcome) -> None:
    parts = []
    if outcome.fetched:
        rate = format_rate(outcome.fetched_bytes, outcome.seconds)
        size = format_size(outcome.fetched_bytes)
        parts.append(f"{outcome.fetched:,} fetched ({size} in {outcome.seconds:,.3g} s, {rate})")
    if outcome.cached:
        parts.append(f"{outcome.cached:,} found there")
    if outcome.in_place:
        parts.append(f"{outcome.in_place:,} local, read in place")
    if outcome.failed:
        parts.append(f"{len(outcome.failed):,} failed")
    if outcome.retries:
        parts.append(f"tried again: {outcome.retries:,}")
    place = f"{outcome.node} {outcome.directory}".strip()
    print(f"{printable(place)}: {count_of(outcome.shards, 'shard')}: {', '.join(parts) or 'nothing to do'}")

"""``wids cache warm``: fetch the shards of an index into a cache, with a progress bar, and say what became of them."""

from __future__ import annotations

import bisect
import itertools
import os
from typing import TYPE_CHECKING, Any

import msgspec

from wids.cache.directory import CacheDirectory
from wids.cache.space import table_allowance
from wids.cli.format import complain_each, count_of, format_size, print_json, printable
from wids.cli.options import check_index
from wids.cli.progress import progress, quiet
from wids.cli.signals import Signals
from wids.collection import load_shards
from wids.errors import CacheError, WidsError
from wids.jobs.warm import Warming
from wids.osfiles import system

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wids.cli.progress import Bar
    from wids.index.spec import Shard, ShardList
    from wids.jobs.warm import Outcome


def warm(
    index: str,
    *,
    directory: str,
    cache_size: int | None,
    selected: slice,
    jobs: int,
    storage_options: dict[str, Any] | None,
    is_json: bool,
) -> None:
    """Fetch shards into a cache directory, and print what became of them.

    Args:
        index: its URL or path, or tars by a brace pattern.
        directory: the cache.
        cache_size: bytes that it may hold; None: what the disk has room for.
        selected: which shards of the index.
        jobs: shards to fetch at a time.
        storage_options: for fsspec.
        is_json: print JSON, and no progress.

    Raises:
        WidsError: the index cannot be read, the shards do not fit, or some did not come.
    """
    directory = os.path.abspath(os.path.expanduser(directory))
    check_index(index)
    _, listed, storage_options = load_shards(index, storage_options=storage_options)
    chosen = _select(listed, selected)
    warming = Warming(directory, chosen, cache_size=cache_size, storage_options=storage_options)
    _check_fits(warming, index, cache_size, start=selected.indices(len(listed))[0])
    known = [shard.filesize for shard in warming.missing if shard.filesize is not None]
    with Signals(), quiet(), progress("bytes", is_shown=not is_json and bool(warming.missing)) as bar:
        _show(bar, warming, known)
        warming.run(jobs, lambda: _show(bar, warming, known))
    outcome = warming.outcome
    if is_json:
        print_json(msgspec.to_builtins(outcome))
    else:
        _say(outcome)
    if outcome.failed:
        complain_each([*outcome.failed.values()])
        raise WidsError(f"{len(outcome.failed)} of {count_of(outcome.shards, 'shard')} could not be fetched")


def _select(listed: ShardList, selected: slice) -> list[Shard]:
    """The selected shards, each URL once."""
    numbers = range(len(listed))[selected]
    if len(listed) and not numbers:
        lo, hi = ("" if end is None else end for end in (selected.start, selected.stop))
        raise WidsError(f"--shards {lo}:{hi}: there are no such shards; the index has {len(listed)}")
    return list({(shard := listed[k]).url: shard for k in numbers}.values())


def _check_fits(warming: Warming, index: str, cache_size: int | None, *, start: int) -> None:
    """Refuse what cannot fit, before anything is fetched for it.

    Raises:
        CacheError: the shards are larger than the bound, or than the disk has room for; or the directory is no one
            that can be listed.
    """
    sizes = [shard.filesize or 0 for shard, _ in warming.cacheable]
    tables = min((_table_bytes(shard) for shard in warming.missing), default=0)  # when the last one comes
    if cache_size is not None and sum(sizes) + tables > cache_size:
        most = [(shard.filesize or 0) + _table_bytes(shard) for shard, _ in warming.cacheable]
        fitting = bisect.bisect_right(list(itertools.accumulate(most)), cache_size)
        advice = f"take fewer (--shards {start}:{start + fitting} fit) or" if fitting else "take"
        raise CacheError(
            f"{index}: {count_of(len(sizes), 'shard')} of {format_size(sum(sizes))} and their member tables do not fit "
            f"into --cache-size {format_size(cache_size)}; {advice} a larger --cache-size",
            path=warming.directory,
        )
    if not os.path.isdir(warming.directory):
        return
    missing = sum(shard.filesize or 0 for shard in warming.missing)
    try:
        found, (free, _) = CacheDirectory(warming.directory).inventory(), system.free_bytes(warming.directory)
    except OSError as error:
        raise CacheError(
            f"{warming.directory}: cannot be listed ({error}); choose another --cache-dir", path=warming.directory
        ) from error
    if missing > free + found.used_bytes:
        raise CacheError(
            f"{index}: {format_size(missing)} are to be fetched, and the disk of {warming.directory} has "
            f"{format_size(free)} free, {format_size(found.used_bytes)} more if all that is cached there goes; "
            "take fewer with --shards, or another --cache-dir",
            path=warming.directory,
        )


def _table_bytes(shard: Shard) -> int:
    """What is kept free for a shard's member table while the shard is fetched."""
    return table_allowance(shard.filesize or 0, shard.nsamples)


def _show(bar: Bar, warming: Warming, known: Sequence[int]) -> None:
    """Bring the bar up to date; shards of which no index says how long they are count as much as the others."""
    if not bar.is_shown:
        return
    outcome = warming.outcome
    typical = sum(known) / len(known) if known else outcome.fetched_bytes / max(outcome.fetched, 1)
    total = sum(known) + (len(warming.missing) - len(known)) * typical
    done = outcome.fetched + outcome.cached + len(outcome.failed)
    words = f"{done:,} of {count_of(len(warming.cacheable), 'shard')}"
    words += f", tried again: {outcome.retries:,}" if outcome.retries else ""
    bar.update(warming.arrived_bytes(), total=total or None, words=words)


def _say(outcome: Outcome) -> None:
    parts = []
    if outcome.fetched:
        rate = format_size(outcome.fetched_bytes / max(outcome.seconds, 1e-9))
        size = format_size(outcome.fetched_bytes)
        parts.append(f"{outcome.fetched:,} fetched ({size} in {outcome.seconds:,.3g} s, {rate}/s)")
    if outcome.cached:
        parts.append(f"{outcome.cached:,} found there")
    if outcome.in_place:
        parts.append(f"{outcome.in_place:,} local, read in place")
    if outcome.failed:
        parts.append(f"{len(outcome.failed):,} failed")
    if outcome.retries:
        parts.append(f"tried again: {outcome.retries:,}")
    print(f"{printable(outcome.directory)}: {count_of(outcome.shards, 'shard')}: {', '.join(parts) or 'nothing to do'}")

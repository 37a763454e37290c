"""``wids cache``: list a cache directory, clean it, fill it, keep it below a limit.

Heavy modules are imported when a command runs, and torch never. Cleaning evicts by the code of the cache itself.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wids.core.transport.session import PLAIN
from wids.errors import CacheError, JobError
from wids.tools.cli.cache import daemon, show
from wids.tools.cli.cache.show import Directory, MaxFiles, MaxSize, directory_of, reasons_of, short_name
from wids.tools.cli.format import (
    count_of,
    format_rate,
    format_size,
    parse_range,
    parse_size,
    print_errors,
    print_json,
    print_outcome,
    printable,
)
from wids.tools.cli.options import CacheDir, Index, Json, RunFlags, SessionFlag, Shards
from wids.tools.cli.plain_help import App
from wids.tools.cli.progress import job_signals

if TYPE_CHECKING:
    from wids.tools.cli.cache.listing import ListedShard, Listing

app: App = App(help="List, clean, fill and limit cache directories.")
app.registered_commands += show.app.registered_commands


@app.command("clean")
def clean_cache(
    directory: Directory = "",
    max_size: MaxSize = None,
    max_files: MaxFiles = None,
    is_all: Annotated[bool, typer.Option("--all", help="Delete every shard that may be evicted.")] = False,
    unkeep: Annotated[
        bool, typer.Option("--unkeep", help="First remove the marks by which datasets keep their shards.")
    ] = False,
    is_dry: Annotated[bool, typer.Option("--dry-run", help="Print the deletions and delete nothing.")] = False,
    is_json: Json = False,
) -> None:
    """Delete cached shards until the rest is below the limit.

    First those that no running job needs, least recently used first; then those that jobs need last. Open shards,
    shards marked as kept, and files that no cache downloaded are not deleted. If the limit cannot be reached, the exit
    code is 1, and the reasons are printed.
    """
    if not (is_all or max_size is not None or max_files is not None):
        raise typer.BadParameter(
            "say what to keep: --max-size 10GB, --max-files 100, or --all to delete all that can be evicted"
        )
    if is_all and not (max_size is None and max_files is None):
        raise typer.BadParameter("--all keeps nothing; give either --all, or --max-size and --max-files")
    if unkeep and is_dry:
        raise typer.BadParameter("--unkeep changes the directory, and --dry-run does not; give one of them")
    from wids.core.cache.cleanup import clean
    from wids.tools.cli.cache.listing import take_listing

    default = 0 if is_all else sys.maxsize
    size = default if max_size is None else max_size
    files = default if max_files is None else max_files
    before = take_listing(directory_of(directory))
    directory = before.directory
    has_any = before.shards or before.under_way.files or before.left_behind.files
    unkept = _unkeep(before) if unkeep else 0
    paths: list[str] = []
    if has_any:  # else the directory is not a cache, and not even a lock file is made in it
        paths = [path for path, _ in clean(directory, size, files, is_dry=is_dry).deleted]
    shards = {os.path.join(directory, shard.name): shard for shard in before.shards}
    deleted = [shards[path] for path in paths if path in shards]
    after = before if is_dry else take_listing(directory)
    names = {shard.name for shard in deleted} if is_dry else set()
    remaining = [shard for shard in after.shards if shard.name not in names]
    used = after.used_bytes - (sum(shard.size_bytes for shard in deleted) + before.left_behind.bytes if is_dry else 0)
    is_reached = used <= size and len(remaining) <= files
    why = [] if is_reached else reasons_of(remaining, after)
    if is_json:
        print_json(
            {
                "directory": directory,
                "is_dry_run": is_dry,
                "deleted": [{"name": shard.name, "size_bytes": shard.size_bytes} for shard in deleted],
                "swept": {"files": before.left_behind.files, "bytes": before.left_behind.bytes},
                "unkept": unkept,
                "stays": {"shards": len(remaining), "used_bytes": used},
                "is_reached": is_reached,
                "why": why,
            }
        )
    else:
        _print_cleaning(before, deleted, remaining, unkept=unkept, is_dry=is_dry)
    if not is_reached:
        excess = "something" if size == files == 0 else f"more than {_limits(size, files)}"
        raise CacheError(
            f"{directory}: {excess} {'would stay' if is_dry else 'stays'}: {'; '.join(why)}", path=directory
        )


@app.command("warm")
def warm_cache(
    index: Index,
    run: RunFlags,
    cache_dir: CacheDir = "",
    cache_size: Annotated[
        Any, typer.Option(parser=parse_size, metavar="SIZE", help="Limit of the directory. Default: the free space.")
    ] = None,
    shards: Shards = ":",
    excluded: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude-node", metavar="NODE", help="Of a Ray cluster: an address, a host or an id; repeatable."
        ),
    ] = None,
    session: SessionFlag = PLAIN,
    is_json: Json = False,
) -> None:
    """Download the shards of an index into the cache, before a job needs them.

    Shards in the cache are checked and not downloaded again; by default 8 are downloaded at a time. Ctrl-C ends it at
    once; complete shards stay. With --engine ray each node of the cluster downloads them into its own cache.
    """
    from wids import jobs
    from wids.jobs.cache_warm import WarmSettings

    selected, options = parse_range(shards, "--shards", "shards"), run.options()
    settings = WarmSettings(directory=cache_dir or None, cache_size=cache_size, session=session)
    try:
        with job_signals():
            outcome = jobs.warm(
                index,
                settings,
                shards=selected,
                excluded=excluded or (),
                engine=options,
                progress=None if is_json else "bar",
            )
    except CacheError as error:
        if error.hint == "fewer_shards":  # those that fit, as --shards names them
            error.__dict__["fitting"] = f" (--shards {error.found.start}:{error.found.stop} fit)"
        raise
    for one in outcome.nodes if options.is_ray and not is_json else [outcome]:
        rate = f"{format_size(one.fetched_bytes)}, {format_rate(one.fetched_bytes, one.seconds)}"
        print_outcome(
            one,
            f"{printable(f'{one.node} {one.directory}'.strip())}: {count_of(one.shards, 'shard')}:",
            is_json=is_json,
            counts={
                "fetched": f"fetched ({rate})",
                "cached": "found there",
                "in_place": "local",
                "failed": "failed",
                "retries": "tried again",
            },
        )
    if outcome.failed:
        print_errors([*outcome.failed.values()])
        lost = len(outcome.failed) - sum(len(one.failed) for one in outcome.nodes) if options.is_ray else 0
        if lost:
            raise JobError(f"{count_of(lost, 'node')} of the Ray cluster did not fetch all shards; run it again")
        raise JobError(f"{len(outcome.failed)} of {count_of(outcome.shards, 'shard')} could not be fetched")


def _unkeep(listing: Listing) -> int:
    """Remove the marks by which datasets keep their shards; returns their number."""
    from wids.core.cache.directory import CacheDirectory

    count = 0
    for shard in listing.shards:
        if shard.is_kept:
            with contextlib.suppress(FileNotFoundError):
                try:
                    os.unlink(CacheDirectory(listing.directory).keep_mark(shard.name))
                except PermissionError as error:
                    raise CacheError(
                        f"{listing.directory}: a mark cannot be removed ({error})", path=listing.directory
                    ) from error
                count += 1
    return count


def _print_cleaning(
    before: Listing, deleted: list[ListedShard], remaining: list[ListedShard], *, unkept: int, is_dry: bool
) -> None:
    verb = "would delete" if is_dry else "deleted"
    for shard in deleted:
        note = ", open: stays as long as it is read" if is_dry and shard.is_open else ""
        print(f"{verb} {short_name(shard.name)} ({format_size(shard.size_bytes)}{note})")
    if unkept:
        print(f"{count_of(unkept, 'shard')} no longer marked as kept")
    left = before.left_behind
    if left.files:
        print(
            f"{verb} {count_of(left.files, 'file')} left behind by processes that are gone ({format_size(left.bytes)})"
        )
    freed, rest = (format_size(sum(shard.size_bytes for shard in shards)) for shards in (deleted, remaining))
    print(
        f"{printable(before.directory)}: {verb} {count_of(len(deleted), 'shard')} ({freed}); "
        f"{count_of(len(remaining), 'shard')} ({rest}) {'would stay' if is_dry else 'stay'}"
    )


def _limits(max_size: int, max_files: int) -> str:
    sizes = [format_size(max_size)] if max_size < sys.maxsize else []
    counts = [count_of(max_files, "shard")] if max_files < sys.maxsize else []
    return " or ".join([*sizes, *counts])


app.registered_commands += daemon.app.registered_commands

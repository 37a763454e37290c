"""``wids cache ls``: the contents of a cache directory; and why shards stay in it, for the commands that clean."""

from __future__ import annotations

import os
import re
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from wids.tools.cli.format import count_of, format_seconds, format_size, parse_size, print_json, print_table, printable
from wids.tools.cli.options import Json
from wids.tools.cli.plain_help import App

if TYPE_CHECKING:
    from wids.tools.cli.cache.listing import ListedShard, Listing

Directory = Annotated[
    str, typer.Argument(metavar="DIR", help="Default: $WIDS_CACHE, else your own in the temporary directory.")
]
MaxSize = Annotated[
    Any,
    typer.Option(
        "--max-size", parser=parse_size, metavar="SIZE", help="Bytes to keep at most: 10GB, 500MiB.", show_default=False
    ),
]
MaxFiles = Annotated[
    int | None, typer.Option("--max-files", min=0, metavar="N", help="Shards to keep at most.", show_default=False)
]

_MAX_HOLDERS = 16
_DIGEST = re.compile(r"([0-9a-f]{8})[0-9a-f]{24}(?=-)")


app: App = App()


@app.command("ls")
def list_cache(directory: Directory = "", is_json: Json = False) -> None:
    """List the shards in a cache directory: size, last use, and state.

    States: "open": a process has the shard open. "kept": a dataset marked it. Neither kind is evicted. "in 12 s": a
    running job needs it then. Below the table: totals, downloads under way, files left behind by killed processes,
    files that are not the cache's, and the free space of the disk.
    """
    from wids.tools.cli.cache.listing import take_listing

    listing = take_listing(directory_of(directory))
    if is_json:
        print_json(_as_json(listing))
        return
    now = time.time()
    if listing.shards:
        rows = (
            (
                short_name(shard.name),
                format_size(shard.size_bytes),
                _ago(now - shard.used_seconds),
                ", ".join(_states(shard)),
            )
            for shard in listing.shards
        )
        print_table(("shard", ">size", ">last used", "state"), rows)
        print()
    for line in _totals(listing):
        print(line)


def directory_of(given: str) -> str:
    """The directory that was given, or the default one."""
    from wids.core.files.own_folder import default_cache_dir

    return given or default_cache_dir()


def short_name(name: str) -> str:
    """Return a shard's name in the cache; on a terminal the digest is shortened to 8 digits."""
    if sys.stdout.isatty():
        name = _DIGEST.sub(r"\1...", name, count=1) if _DIGEST.match(name) else name
    return printable(name)


def _ago(seconds: float) -> str:
    words = format_seconds(seconds)
    return words if words == "now" else f"{words} ago"


def _states(shard: ListedShard) -> list[str]:
    states = [] if shard.is_open is False else ["open" if shard.is_open else "?"]
    if shard.is_kept:
        states.append("kept")
    if shard.coming_seconds is not None:
        when = format_seconds(shard.coming_seconds)
        states.append("needed now" if when == "now" else f"in {when}")
    return states


def _totals(listing: Listing) -> list[str]:
    used = sum(shard.size_bytes for shard in listing.shards)
    lines = [
        f"{printable(listing.directory)}: {count_of(len(listing.shards), 'shard')}, {format_size(used)}"
        + (f", for {count_of(listing.jobs, 'live job')}" if listing.jobs else "")
    ]
    for count, noun, note in (
        (listing.under_way, "part file", "under way"),
        (listing.left_behind, "file", "left behind by processes that are gone; the next job or clean deletes them"),
        (listing.remembered, "member table", "of evicted shards, which are read by ranges with them"),
        (listing.strangers, "file", "of others, which no cache command touches"),
    ):
        if count.files:
            lines.append(f"{count_of(count.files, noun)} {note}, {format_size(count.bytes)}")
    lines += holder_lines(listing)
    lines.append(f"{format_size(listing.free_bytes)} of {format_size(listing.disk_bytes)} free on the disk")
    if listing.shards and any(shard.is_open is None for shard in listing.shards):
        why = listing.unknown or "this file system has no locks"
        lines.append(f"?: it is unknown whether the shard is open ({printable(why)})")
    return lines


def holder_lines(listing: Listing) -> list[str]:
    """Say which processes have shards open."""
    lines = [f"{count_of(len(holder.files), 'shard')} open in {holder}" for holder in listing.holders]
    if len(lines) > _MAX_HOLDERS:
        lines[_MAX_HOLDERS:] = [
            f"others open in {count_of(len(lines) - _MAX_HOLDERS, 'more process', 'more processes')}"
        ]
    seen = {name for holder in listing.holders for name in holder.files}
    unseen = sum(shard.is_open is True and shard.name not in seen for shard in listing.shards)
    if unseen:
        lines.append(f"{count_of(unseen, 'shard')} open in processes that cannot be seen from here")
    return [printable(line) for line in lines]


def _as_json(listing: Listing) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(listing)
    for shard in found["shards"]:
        shard["path"] = os.path.join(listing.directory, shard["name"])
    return found


def reasons_of(remaining: list[ListedShard], listing: Listing) -> list[str]:
    """Say why each remaining shard was not deleted."""
    from wids.core.cache.directory import CacheDirectory

    kept = [shard for shard in remaining if shard.is_kept]
    is_open = [shard for shard in remaining if shard.is_open and not shard.is_kept]
    rest = [shard for shard in remaining if not (shard.is_kept or shard.is_open)]
    may_delete = CacheDirectory(listing.directory).deletable()
    foreign = [shard for shard in rest if not may_delete(shard.name)]
    others = [shard for shard in rest if may_delete(shard.name)]
    reasons = []
    for shards, why in (
        (kept, "marked as kept (wids cache clean --unkeep removes the marks)"),
        (is_open, "open in some process" + f": {'; '.join(holder_lines(listing))}" * bool(is_open)),
        (foreign, "of other users, which the directory's sticky bit keeps you from deleting"),
        (others, "could not be deleted, or were added meanwhile"),
    ):
        if shards:
            size = format_size(sum(shard.size_bytes for shard in shards))
            reasons.append(f"{count_of(len(shards), 'shard')} ({size}) {why}")
    if listing.under_way.files:
        size = format_size(listing.under_way.bytes)
        reasons.append(f"{count_of(listing.under_way.files, 'part file')} ({size}) under way")
    return reasons

"""``wids cache ls``: the contents of a cache directory, as a table or as JSON."""

from __future__ import annotations

import os
import re
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec

from wids.cli.format import count_of, format_seconds, format_size, print_json, print_table, printable

if TYPE_CHECKING:
    from wids.cache.listing import ListedShard, Listing

_MAX_HOLDERS = 16
_DIGEST = re.compile(r"([0-9a-f]{8})[0-9a-f]{24}(?=-)")


def show_listing(directory: str, *, is_json: bool) -> None:
    """Print the contents of a cache directory.

    Raises:
        CacheError: there is no such directory, or it cannot be listed.
    """
    from wids.cache.listing import take_listing

    listing = take_listing(directory)
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

"""``wids cache clean``: clean a cache directory once, and print the deleted and the remaining shards, with reasons."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

from wids.cache.cleanup import clean
from wids.cache.directory import CacheDirectory
from wids.cache.listing import take_listing
from wids.cli.cache.show import holder_lines, short_name
from wids.cli.format import count_of, format_size, print_json, printable
from wids.errors import CacheError

if TYPE_CHECKING:
    from wids.cache.listing import ListedShard, Listing


def clean_once(directory: str, *, max_size: int, max_files: int, unkeep: bool, is_dry: bool, is_json: bool) -> None:
    """Delete cached shards beyond the limits, and print the deleted and the remaining ones.

    Args:
        directory: a cache directory.
        max_size: bytes to keep at most.
        max_files: shards to keep at most.
        unkeep: first remove the marks by which datasets keep their shards.
        is_dry: print the deletions and delete nothing.
        is_json: print JSON.

    Raises:
        CacheError: there is no such directory, it cannot be written, or a limit could not be reached.
    """
    before = take_listing(directory)
    directory = before.directory
    has_any = before.shards or before.under_way.files or before.left_behind.files
    unkept = _unkeep(before) if unkeep else 0
    paths: list[str] = []
    if has_any:  # else the directory is not a cache, and not even a lock file is made in it
        paths = [path for path, _ in clean(directory, max_size, max_files, is_dry=is_dry).deleted]
    shards = {os.path.join(directory, shard.name): shard for shard in before.shards}
    deleted = [shards[path] for path in paths if path in shards]
    after = before if is_dry else take_listing(directory)
    names = {shard.name for shard in deleted} if is_dry else set()
    remaining = [shard for shard in after.shards if shard.name not in names]
    used = after.used_bytes - (sum(shard.size_bytes for shard in deleted) + before.left_behind.bytes if is_dry else 0)
    is_reached = used <= max_size and len(remaining) <= max_files
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
        _print(before, deleted, remaining, unkept=unkept, is_dry=is_dry)
    if not is_reached:
        excess = "something" if max_size == max_files == 0 else f"more than {_limits(max_size, max_files)}"
        raise CacheError(
            f"{directory}: {excess} {'would stay' if is_dry else 'stays'}: {'; '.join(why)}", path=directory
        )


def _unkeep(listing: Listing) -> int:
    """Remove the marks by which datasets keep their shards; returns their number."""
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


def _print(
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


def reasons_of(remaining: list[ListedShard], listing: Listing) -> list[str]:
    """Say why each remaining shard was not deleted."""
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

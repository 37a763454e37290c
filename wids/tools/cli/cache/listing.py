"""The contents and the state of a cache directory, for people and programs.

Rules: looking changes nothing, and makes no file where there is nothing of ours. Who has a shard open is found out as
an evictor would: by a lock without waiting, under the directory's own lock. Where that cannot be taken (a directory of
another user, a read-only one), the rest is listed, and states are unknown.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

import msgspec

from wids.core.cache import usage_hints
from wids.core.cache.directory import CacheDirectory
from wids.core.cache.space import Space
from wids.core.files import locks, system
from wids.core.files.holders import Holder, find_holders
from wids.core.place import cache_directory
from wids.errors import CacheError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wids.core.cache.directory import Inventory


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """Files, and their bytes."""

    files: int
    bytes: int


class ListedShard(msgspec.Struct, frozen=True, kw_only=True):
    """A cached shard.

    Attributes:
        name: its file's name.
        size_bytes: with its member table.
        used_seconds: when it was used last, in seconds since 1970.
        is_open: whether some process has it open; None: unknown.
        is_kept: it is marked as not to be evicted.
        coming_seconds: in how many seconds a live job uses it next, by its plan (0: now); None: none will.
    """

    name: str
    size_bytes: int
    used_seconds: float
    is_open: bool | None
    is_kept: bool
    coming_seconds: float | None


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a cache directory.

    Attributes:
        directory: its path.
        shards: the one used last first.
        used_bytes: all that counts against a limit: shards with their tables, remembered tables, downloads, files left
            behind.
        under_way: downloads with the sizes that they will have; where states are unknown, all part files.
        left_behind: by processes that are gone: part files, plans, tables without a shard. The next job sweeps them.
        remembered: member tables of evicted shards.
        strangers: files that no cache made.
        jobs: live jobs with plans in this directory.
        free_bytes: those that the file system has left.
        disk_bytes: size of the file system.
        holders: the processes that have shards open, as far as they can be seen; ``files`` are names of shards.
        unknown: the reason for states that are unknown; "" if they are not.
    """

    directory: str
    shards: list[ListedShard]
    used_bytes: int
    under_way: Count
    left_behind: Count
    remembered: Count
    strangers: Count
    jobs: int
    free_bytes: int
    disk_bytes: int
    holders: list[Holder] = []
    unknown: str = ""


def take_listing(directory: str) -> Listing:
    """Look at a cache directory.

    Raises:
        CacheError: none exists, or it cannot be listed.
    """
    directory = os.path.abspath(cache_directory(directory))
    try:
        if not os.path.isdir(CacheDirectory(directory).folder):
            return _describe(directory, _take(directory))
        try:
            with Space(directory, limit=None).lock() as held:
                return _describe(directory, _take(directory), held)
        except CacheError as error:
            return _describe(directory, _take(directory), unknown=str(error))
    except OSError as error:
        if isinstance(error, CacheError):
            raise
        raise CacheError(f"{directory}: cannot be listed ({error})", path=directory) from error


def _take(directory: str) -> Inventory:
    if not os.path.isdir(directory):
        what = "is not a directory" if os.path.lexists(directory) else "there is no such directory"
        raise CacheError(f"{directory}: {what}; name a cache directory, or set WIDS_CACHE", path=directory)
    return CacheDirectory(directory).inventory()


def _describe(directory: str, found: Inventory, held: locks.HeldLock | None = None, *, unknown: str = "") -> Listing:
    is_known = not unknown
    here, transients = CacheDirectory(directory), found.transients
    parts = [here.staging(name) for name in transients.parts]
    planned = [here.staging(name) for name in transients.plans]
    orphans = [os.path.join(here.tables, name) for name in found.orphans]
    now, uses = time.time(), usage_hints.read(here.folder, transients.plans)
    sizes = dict(_sizes_of([*parts, *orphans, *planned]))
    left = [path for path in [*parts, *planned] if is_known and locks.is_locked(path) is False]
    gone = {*left, *orphans} & sizes.keys()
    shards = [
        ListedShard(
            name=entry.name,
            size_bytes=entry.size_bytes,
            used_seconds=entry.used_ns / 1e9,
            is_open=_is_open(here.shard(entry.name), held) if is_known else None,
            is_kept=entry.is_kept,
            coming_seconds=max(uses[entry.name] - now, 0.0) if entry.name in uses else None,
        )
        for entry in sorted(found.entries, key=lambda entry: (-entry.used_ns, entry.name))
    ]
    holders = find_holders(here.shard(shard.name) for shard in shards if shard.is_open)
    free, total = system.free_bytes(directory)
    return Listing(
        directory=directory,
        shards=shards,
        used_bytes=found.used_bytes,
        under_way=_count(sizes[path] for path in parts if path in sizes and path not in gone),
        left_behind=_count(sizes[path] for path in gone),
        remembered=_count(entry.size_bytes for entry in found.remembered),
        strangers=Count(files=found.strangers, bytes=found.stranger_bytes),
        jobs=sum(path in sizes and path not in gone for path in planned),
        free_bytes=free,
        disk_bytes=total,
        holders=[
            msgspec.structs.replace(holder, files=[os.path.basename(path) for path in holder.files])
            for holder in holders
        ],
        unknown=unknown,
    )


def _is_open(path: str, held: locks.HeldLock | None) -> bool | None:
    if held is not None:
        held.touch()  # a hundred thousand take seconds
    return locks.is_locked(path)


def _count(sizes: Iterable[int]) -> Count:
    found = list(sizes)
    return Count(files=len(found), bytes=sum(found))


def _sizes_of(paths: Iterable[str]) -> Iterator[tuple[str, int]]:
    """(path, bytes) of those files that are still there: their writers publish them, or give up."""
    for path in paths:
        with contextlib.suppress(OSError):
            yield path, os.stat(path, follow_symlinks=False).st_size

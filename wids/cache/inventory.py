"""What is in a cache directory, by one look at it.

Rules: measured, never counted, so no crash can make it wrong. A shard of ours is a file that has its lock and its
member table beside it; part files and plans are known by their names. All else is someone else's.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from typing import TYPE_CHECKING

import msgspec

from wids.cache import locks
from wids.cache.evict import Entry
from wids.index import table as tables

if TYPE_CHECKING:
    from collections.abc import Iterator

KEEP_SUFFIX = ".keep"
PLAN_SUFFIX = ".wids-plan"
BELL_NAME = ".room.bell"
# All of the name: what ends in a line feed, or has the digits of another script, is not of our making.
_PART = re.compile(r".+\.[0-9]+-[0-9a-f]{8}\.part", re.DOTALL)
_PLAN = re.compile(r"\.[0-9]+-[0-9a-f]{8}" + re.escape(PLAN_SUFFIX))


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a directory.

    Attributes:
        entries: the shards.
        parts: names of downloads (and small files) under way, or left behind.
        orphans: names of member tables whose shard is gone.
        plans: names of the plans of jobs.
        used_bytes: of shards with their tables, parts and orphans.
        promised_bytes: of part files, bytes that they will have and have not yet taken from the file system.
        strangers: files that nobody here made.
        stranger_bytes: of those.
    """

    entries: list[Entry]
    parts: list[str]
    orphans: list[str]
    plans: list[str]
    used_bytes: int
    promised_bytes: int
    strangers: int
    stranger_bytes: int


def take(directory: str) -> Inventory:
    """Look at a directory; one that is not there is empty.

    Raises:
        OSError: it cannot be listed.
    """
    files: dict[str, os.stat_result] = {}
    with contextlib.suppress(FileNotFoundError):
        files = dict(_list(directory))
    entries, parts, orphans, plans = [], [], [], []
    used = promised = strangers = stranger_bytes = 0
    for name, status in files.items():
        beside = files.get(name + tables.SUFFIX)
        if beside is not None and name + locks.SUFFIX in files:  # whatever its name ends in
            size = status.st_size + beside.st_size
            used += size
            last = max(status.st_mtime_ns, beside.st_mtime_ns)
            entries.append(Entry(name=name, size_bytes=size, used_ns=last, is_kept=name + KEEP_SUFFIX in files))
        elif _PART.fullmatch(name):
            parts.append(name)
            used += status.st_size
            promised += max(status.st_size - getattr(status, "st_blocks", 0) * 512, 0)
        elif _PLAN.fullmatch(name):
            plans.append(name)
        elif name.endswith((locks.SUFFIX, KEEP_SUFFIX)) or name == BELL_NAME:
            pass
        elif name.endswith(tables.SUFFIX) and name.removesuffix(tables.SUFFIX) + locks.SUFFIX in files:
            if name.removesuffix(tables.SUFFIX) not in files:
                orphans.append(name)
                used += status.st_size
        else:
            strangers += 1
            stranger_bytes += status.st_size
    return Inventory(
        entries=entries,
        parts=parts,
        orphans=orphans,
        plans=plans,
        used_bytes=used,
        promised_bytes=promised,
        strangers=strangers,
        stranger_bytes=stranger_bytes,
    )


def _list(directory: str) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(directory) as found:
        for item in found:
            with contextlib.suppress(FileNotFoundError):
                status = item.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    yield item.name, status

"""Saving a view: an index that names another one and the rows of its shards, and the file of rows beside it.

Rules: an index that is there is whole, also while it is replaced: the rows come first, under a name of their own, and
those of before go last. One process at a time saves at a path; what one that was killed left half written goes with
the next one. No password and no signature of a URL is written. Without torch.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Any

import msgspec

from wids.errors import OutputError, OutputExistsError, SpecError
from wids.events import logger
from wids.index import urls, view_file, writing
from wids.index.fingerprint import fingerprint
from wids.index.spec import parse_json
from wids.index.view_file import SUFFIX, View, pack_rows
from wids.osfiles import atomic, locks, system
from wids.osfiles.index_paths import absolute, check_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wids.collection import ShardCollection
    from wids.index.selection import Selection

_OWN_ROWS = re.compile(r"\.[0-9a-f]{16}\.rows")
_OWN_PART = re.compile(r"(?:\.json|\.[0-9a-f]{16}\.rows)?\.[0-9]+-[0-9a-f]{8}\.part")
_LOCK_SUFFIX = ".saving"


def save(collection: ShardCollection, selection: Selection, path: str, *, made_by: Sequence[str]) -> None:
    """Write a view: its index at ``path``, and its rows beside it.

    Args:
        collection: the view, or a whole dataset.
        selection: its samples.
        path: a local path.
        made_by: how it was made, a step each.

    Raises:
        OutputError: the output is no local file, or in a directory that does not exist. OSError: it cannot be written.
    """
    path = check_output(path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise OutputError(f"{path}: is a device, not a file; choose another name", path=path)
    if collection.place == path:
        raise OutputExistsError(f"{path}: is the index that this is a view of; give the view another name", path=path)
    home, rows, parts = os.path.dirname(path), f"{_stem(path)}.{selection.digest}{SUFFIX}", pack_rows(*selection.arrays)
    shards = collection.shards
    view = View(
        rows=os.path.basename(rows),
        rows_checksum=view_file.checksum_of(parts[0]),
        nsamples=len(selection),
        view_of=_parent_of(collection, home),
        view_of_fingerprint=fingerprint(shards),
        view_of_counts=(len(shards), sum(shards.nsamples)),
        made_by=list(made_by),
        name=shards.header.get("name"),
    )
    index = {"__kind__": writing.KIND, "wids_version": 1, **msgspec.to_builtins(view)}
    if view.view_of is None:
        index["shardlist"] = _entries_of(collection, home)
    text = writing.dump_index({key: value for key, value in index.items() if value is not None})
    with locks.acquire(path + _LOCK_SUFFIX):
        _sweep(path)
        _publish(path, text, rows, parts)


def _parent_of(collection: ShardCollection, home: str) -> str | None:
    """How the view names the index of its shards; None: they have none."""
    place = collection.place
    if place is None:
        return None
    shown = place if urls.is_local(place) else urls.without_access(place)
    if shown != place:
        logger.warning(
            "%s: what gives access to this index is not saved with a view of it; open the view with storage_options, "
            "or with options={'view_of': URL}",
            shown,
        )
    return writing.writable(writing.relative_to(absolute(shown), home))


def _entries_of(collection: ShardCollection, home: str) -> list[dict[str, Any]]:
    """The shards as the view lists them."""
    entries = [collection.shards.describe(k) for k in range(len(collection.shards))]
    places = [absolute(url if urls.is_local(url := entry["url"]) else urls.without_access(url)) for entry in entries]
    written = writing.place_entries(places, home=home)
    return [{**entry, "url": url} for entry, url in zip(entries, written, strict=True)]


def _publish(path: str, text: bytes, rows: str, parts: Sequence[bytes | memoryview]) -> None:
    with atomic.part_file(rows) as (part, fd):
        system.write_parts(fd, parts)
        os.fsync(fd)
        os.replace(part, rows)
    before = _rows_at(path)
    atomic.write_atomically(path, text)
    if before not in (None, rows):
        with contextlib.suppress(OSError):
            os.unlink(before)


def _sweep(path: str) -> None:
    """Delete the part files of processes that were killed while they saved a view here."""
    home, stem = os.path.split(_stem(path))
    with contextlib.suppress(OSError):
        for name in os.listdir(home):
            part = os.path.join(home, name)
            if name.startswith(stem) and _OWN_PART.fullmatch(name[len(stem) :]) and locks.is_locked(part) is False:
                with contextlib.suppress(OSError):
                    os.unlink(part)


def _rows_at(path: str) -> str | None:
    """The rows of the view that is at a path, if this module wrote them there."""
    try:
        fd, _ = atomic.open_file(path)
        with open(fd, "rb") as file:
            found = view_file.parse_view(parse_json(file.read(), path), path)
    except (OSError, SpecError):
        return None
    stem = os.path.basename(_stem(path))  # of a copy they are another view's
    if found is None or not found.rows.startswith(stem) or not _OWN_ROWS.fullmatch(found.rows[len(stem) :]):
        return None
    return os.path.join(os.path.dirname(path), found.rows)


def _stem(path: str) -> str:
    return path.removesuffix(".json")

"""Saving a view: an index that names another one and the rows of its shards, and the file of rows beside it.

Rules: an index that is there is whole, also while it is replaced: the rows come first, under a name of their own, and
those of before go last. One process at a time saves at a path; what one that was killed left half written goes with
the next one. No password and no signature of a URL is written. Without torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from wids.core.files import atomic, locks, system
from wids.core.files.replaced import ReplacedFile
from wids.core.index import companion_file, view_file, writing
from wids.core.index.earlier import COMPUTED
from wids.core.index.fingerprint import contents, fingerprint
from wids.core.index.paths import ViewShards, absolute, check_index_replaceable, check_output, named_packs, public_place
from wids.core.index.shardlist import GROUPING_KEYS
from wids.core.index.spec import parse_json
from wids.core.index.view_file import KEY, SUFFIX, View, pack_rows
from wids.core.place import Place, relative_name
from wids.core.transport.upload import check_replaceable
from wids.errors import SpecError
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from wids.core.index.companion_file import CompanionEntry
    from wids.core.index.selection import Selection
    from wids.core.index.shardlist import ShardList

# A companion, and the rows that go beside the index that names it; None: it needs none.
NamedCompanion: TypeAlias = "tuple[CompanionEntry, npt.NDArray[Any] | None]"
_OWN_ROWS = re.compile(r"\.[0-9a-f]{16}\.(?:rows|joined)")
_OWN_FILES = rf"|\.json|{_OWN_ROWS.pattern}"
# Keys of a shard that say which sub-dataset it is of.
_OF_A_PART = frozenset(("dataset", "weight", "source_url"))


def save(
    shards: ShardList,
    selection: Selection | None,
    path: str,
    *,
    index_url: str | None,
    made_by: Sequence[str],
    companions: Callable[[Callable[[str], str]], list[NamedCompanion]] | None = None,
    inputs: Sequence[tuple[str, str]] = (),
    overwrite: bool = False,
    file: ReplacedFile | None = None,
) -> None:
    """Write a view: its index at ``path``, and its rows beside it. Keys of an earlier version that no view has stay.

    Args:
        shards: all that the rows are of.
        selection: its samples; None: all, which have companions.
        path: a local path.
        index_url: of the index that lists these shards; None: the view lists them itself.
        made_by: the steps that made it.
        companions: finds the companions and the rows that go beside the view, given what makes the text of a place;
            None: there are none.
        inputs: (URL or path, words for it) of other files that are never replaced.
        overwrite: also replace a file that is no view, or a view of other shards.
        file: see `write_view`.

    Raises:
        OutputError: the output is no local file, or in a directory that does not exist. OSError: it cannot be written.
        OutputExistsError: see `wids.core.transport.upload.check_replaceable`.
    """
    path = check_output(path)
    parts = {name for keys in shards.defaults if isinstance(name := keys.get("source_url"), str)}
    digest = fingerprint(shards)
    home = os.path.dirname(path)
    view = View(
        name=shards.header.get("name"),
        view_of=None if index_url is None else writing.written(name_parent(absolute(index_url)), home),
        view_of_fingerprint=digest,
        view_of_counts=(len(shards), sum(shards.nsamples)),
        view_of_contents=contents(shards),
        nsamples=sum(shards.nsamples) if selection is None else len(selection),
        made_by=list(made_by),
    )
    said = {key: shards.header.get(key) for key in GROUPING_KEYS.values()}
    index = {"__kind__": writing.KIND, "wids_version": 1, **msgspec.to_builtins(view), **said}
    named = [] if companions is None else companions(lambda url: writing.written(public_place(url), home))
    more = dict[str, Any]()
    if index_url is None:
        more = {key: value for key, value in shards.header.items() if key not in COMPUTED and key != "weight"}
        entries = [shards.describe(k) for k in range(len(shards))]
        written = writing.place_entries([public_place(entry["url"]) for entry in entries], home=home)
        index |= named_packs(map(public_place, shards.all_packs()), home)
        index["shardlist"] = [{**entry, "url": url} for entry, url in zip(entries, written, strict=True)]
    with (file or ReplacedFile(path, advice=None)).alone():
        earlier = check_index_replaceable(
            path,
            inputs=[*inputs, *((name, "a part of the index that this is a view of") for name in parts)],
            shards=itertools.chain(shards.urls, shards.all_packs()),
            view=ViewShards(index_url, digest),
            overwrite=overwrite,
        )
        kept = {**earlier.own_keys(), **more}
        kept.pop(KEY, None)
        index = {**{key: kept[key] for key in kept if key not in index}, **index}
        _write_view({key: value for key, value in index.items() if value is not None}, selection, path, named)


def save_mixture(
    parts: Sequence[tuple[str, float, ShardList, str | None]], path: str, *, overwrite: bool = False
) -> None:
    """Write an index of sub-datasets with weights, each with the shards of a source.

    Args:
        parts: (name, weight, shards, URL of the index that lists them, or None) of each source.
        path: a local path.
        overwrite: a file that is no index is replaced.

    Raises:
        OutputError, OutputExistsError, OSError: see `save`.
    """
    path = check_output(path)
    home, inputs, datasets = os.path.dirname(path), [], []
    for name, weight, shards, index_url in parts:
        inputs += [(index_url, f"the index of source {name!r}")] if index_url is not None else []
        entries = [shards.describe(k) for k in range(len(shards))]
        urls = writing.place_entries([public_place(entry["url"]) for entry in entries], home=home)
        rows = [
            {**{key: value for key, value in entry.items() if key not in _OF_A_PART}, "url": url}
            for entry, url in zip(entries, urls, strict=True)
        ]
        packs = named_packs(map(public_place, shards.all_packs()), home)
        datasets.append({"name": name, "weight": weight, **packs, "shardlist": rows})
    every = (url for _, _, shards, _ in parts for url in (*shards.urls, *shards.all_packs()))
    with ReplacedFile(path, advice=None).alone():
        earlier = check_index_replaceable(path, inputs=inputs, shards=every, has_parts=True, overwrite=overwrite)
        index = {
            "__kind__": writing.KIND,
            "wids_version": 1,
            **earlier.own_keys(),
            "shardlist": [],
            "datasets": datasets,
        }
        atomic.write_atomically(path, writing.dump_index(index))


def write_view(index: dict[str, Any], selection: Selection, path: str, file: ReplacedFile | None = None) -> None:
    """Write the index of a view, and its rows beside it under a name of their own.

    Args:
        index: as JSON has it; its ``rows`` are named here.
        selection: the rows.
        path: an absolute path, as `check_output` gives it.
        file: at the path, as it was read; None: any file there is replaced.

    Raises:
        OutputExistsError: the output is the index that this is a view of. OutputError: it is a device, or another
            program has written ``file``.
        OSError: it cannot be written.
    """
    with (file or ReplacedFile(path, advice=None)).alone():
        _write_view(index, selection, path)


def _write_view(
    index: dict[str, Any], selection: Selection | None, path: str, companions: Sequence[NamedCompanion] = ()
) -> None:
    """`write_view`, with the lock of the path held."""
    check_not_parent(path, str(Place(os.path.dirname(path)).join(index["view_of"])) if "view_of" in index else None)
    files: dict[str, list[bytes | memoryview]] = {}

    def name(suffix: str, digest: str, parts: list[bytes | memoryview]) -> dict[str, str]:
        file = f"{_stem(path)}.{digest}{suffix}"
        files[file] = parts
        return {"rows": relative_name(os.path.basename(file)), "rows_checksum": view_file.checksum_of(parts[0])}

    if selection is not None:
        index = {**index, **name(SUFFIX, selection.digest, pack_rows(*selection.arrays))}
    entries = []
    for entry, rows in companions:
        beside = {}
        if rows is not None:
            digest = hashlib.blake2b(rows.tobytes(), digest_size=8).hexdigest()
            beside = name(companion_file.SUFFIX, digest, companion_file.pack_joined(rows))
        entries.append({key: each for key, each in msgspec.to_builtins(entry).items() if each is not None} | beside)
    text = writing.dump_index({**index, KEY: entries} if entries else index)
    locks.remove_parts(_stem(path), more=_OWN_FILES)
    _publish(path, text, files)


def check_not_parent(path: str, parent: str | None, view: str = "this") -> None:
    """Refuse an output that would replace the index that a view is of.

    Args:
        path: of the output, absolute.
        parent: URL or path of that index; None: none exists.
        view: of the view, in words.

    Raises:
        OutputExistsError: it would. OutputError: there is a device.
    """
    inputs = [] if parent is None else [(parent, f"the index that {view} is a view of")]
    check_replaceable(path, "index", lambda _: True, inputs=inputs)


def name_parent(url: str) -> str:
    """The name of the index of a view in the view's file; the index is at a URL or path."""
    shown = Place(url).unsigned
    if shown != url:
        logger.warning(
            "%s: what gives access to this index is not saved with a view of it; open the view with storage_options, "
            "or with options={'view_of': URL}",
            shown,
        )
    return shown


def _publish(path: str, text: bytes, files: Mapping[str, Sequence[bytes | memoryview]]) -> None:
    for name, parts in files.items():
        with atomic.part_file(name) as (part, fd):
            system.write_parts(fd, parts)
            os.fsync(fd)
            os.replace(part, name)
    before = _rows_at(path)
    atomic.sync_directory(os.path.dirname(path))  # what the index names is on the disk before it, and
    atomic.write_atomically(path, text, is_synced=True)
    for name in before - files.keys():  # it itself before what the index of before names is gone
        with contextlib.suppress(OSError):
            os.unlink(name)


def _rows_at(path: str) -> set[str]:
    """The files of rows of the view that is at a path, which this module wrote there."""
    try:
        fd, _ = atomic.open_file(path)
        with open(fd, "rb") as file:
            raw = parse_json(file.read(), path)
        view = view_file.parse_view(raw, path)
        companions = companion_file.parse_companions(raw, path)
    except (OSError, SpecError):
        return set()
    stem = os.path.basename(_stem(path))  # of a copy they are another view's
    named = (rows for rows in (None if view is None else view.rows, *(each.rows for each in companions)) if rows)
    names = (rows.removeprefix("./") for rows in named)
    written = [name for name in names if name.startswith(stem) and _OWN_ROWS.fullmatch(name[len(stem) :])]
    return {os.path.join(os.path.dirname(path), name) for name in written}


def _stem(path: str) -> str:
    return path.removesuffix(".json")

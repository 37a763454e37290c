"""From what a program passes as ``shards`` to the shard list.

Rules: an index and the sub-datasets it names are read once, here; a file that is passed open stays the caller's. What
is neither an index nor a list of shards is refused with a sentence that says what would do. Options go to the servers
that the caller names, in the call or in a local index; whom a remote index names gets none. An index may also be the
``.nv-meta/.info.json`` of a Megatron-Energon dataset, which is known by its name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from wids.errors import SpecError
from wids.index import energon, urls
from wids.index.shardlist import MAX_COUNT
from wids.index.spec import list_shards, parse_index
from wids.transport.retrying import read_bytes

if TYPE_CHECKING:
    from wids.index.spec import ShardList

# A string that ends so is a shard (the compressed ones are refused where they are opened), any other one an index.
_ARCHIVES = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4")


def load_shards(
    shards: Any,
    *,
    base: str | os.PathLike[str] | None = None,
    options: dict[str, Any] | None = None,
    allow_local: bool = False,
    storage_options: dict[str, Any] | None = None,
) -> tuple[str | None, ShardList, dict[str, Any] | None]:
    """(base, shard list, options): what relative URLs were resolved against, if anything; shards; `storage_options`.

    Args:
        shards: an index (URL, path, path-like, open file), or shards (list of dicts, of pairs, of tars; one tar or
            brace pattern).
        base: overrides the index's own ``base`` and its place.
        options: top-level keys that override the index's; for a list of shards, its only ones.
        allow_local: let an index from a remote place point at local files.
        storage_options: for fsspec; see `wids.index.urls.options_for`. What is returned of them holds for the index's
            server and for those that the caller names.

    Raises:
        SpecError: it is none of these, or malformed. FetchError: the index cannot be read.
    """
    base = None if base is None else os.fspath(base)
    if isinstance(shards, os.PathLike):
        shards = os.fspath(shards)
    place: str | None = None
    if isinstance(shards, str):
        if urls.basename_of(shards).endswith(_ARCHIVES):
            return base, _list([shards], base, options), storage_options
        place, data = shards, read_bytes(shards, storage_options=storage_options)
        if energon.is_info(place):
            data = energon.convert_info(data, place=place)
    elif hasattr(shards, "read"):
        data = shards.read()
    else:
        return base, _list(shards, base, options), storage_options
    named: set[str] | None = None if storage_options is None else set()
    narrowed = storage_options

    def load(url: str) -> bytes:
        nonlocal narrowed
        if not urls.is_local(url):  # from here on there are names that are not the caller's
            narrowed = urls.narrow_options(storage_options, named or ())
        return read_bytes(url, storage_options=narrowed)

    found = parse_index(
        data,
        place=place,
        load=load,
        base=base,
        options=options,
        allow_local=allow_local,
        named=named,
    )
    if narrowed is not storage_options or not (place is None or urls.is_local(place)):
        narrowed = urls.narrow_options(storage_options, named or ())
    return base if base is not None else _own_base(found.header, place), found, narrowed


def _list(shards: Any, base: str | None, options: dict[str, Any] | None) -> ShardList:
    if isinstance(shards, Mapping):
        raise SpecError("shards is a dict; give the index's path, or its list of shards (index['shardlist'])", path="")
    if isinstance(shards, (bytes, bytearray)) or not isinstance(shards, Iterable):
        raise SpecError(
            f"shards is {shards!r}; give an index (URL, path or open file) or a list of shards (dicts, pairs or tars)",
            path="",
        )
    found = list_shards(shards, base=base)
    if sum(found.nsamples) > MAX_COUNT:
        raise SpecError(f"shards promise {sum(found.nsamples)} samples in all, more than can be counted", path="shards")
    found.header.update(options or {})
    return found


def _own_base(header: dict[str, Any], place: str | None) -> str | None:
    """What an index's relative URLs are relative to when the caller does not say: its own base, else its place."""
    home = urls.directory_of(place) if place is not None else None
    own = header.get("base") or header.get("base_path")
    return urls.join(home, own) if own else home

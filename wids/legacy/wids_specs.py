"""``wids.wids_specs`` of the original: reading shard indexes, joining URLs."""

from __future__ import annotations

import os
from typing import IO, Any

from wids.cache.fetch import read_bytes
from wids.index.spec import parse_index, parse_json
from wids.index.urls import directory_of as urldir
from wids.index.urls import join as urlmerge

__all__ = ["load_dsdesc_and_resolve", "load_remote_dsdesc_raw", "urldir", "urlmerge"]


def load_remote_dsdesc_raw(source: str | os.PathLike[str] | IO[Any]) -> dict[str, Any]:
    """The JSON index at a URL, path or open file, as it is written."""
    place, data = _read(source)
    return parse_json(data, place)


def load_dsdesc_and_resolve(
    source: str | os.PathLike[str] | IO[Any], *, options: dict[str, Any] | None = None, base: str | None = None
) -> dict[str, Any]:
    """The index with its sub-datasets read in and its URLs resolved; ``shardlist`` holds all shards."""
    place, data = _read(source)
    found = parse_index(data, place=place, load=read_bytes, base=base, options=options)
    return {**found.header, "shardlist": [found.describe(k) for k in range(len(found))]}


def _read(source: str | os.PathLike[str] | IO[Any]) -> tuple[str | None, bytes | str]:
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source), read_bytes(os.fspath(source))
    return None, source.read()

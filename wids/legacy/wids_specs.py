"""``wids.wids_specs`` of the original: reading shard indexes, joining URLs."""

from __future__ import annotations

import json
import os
from typing import IO, Any

from wids.core.index.spec import ShardList, list_shards, parse_index, parse_json
from wids.core.place import Place
from wids.core.transport.download import read_bytes
from wids.errors import SpecError, a_kind
from wids.wids_dl import download_and_open  # by the name that it has for users, as in `wids.wids`

__all__ = [
    "check_shards",
    "download_and_open",
    "load_dsdesc_and_resolve",
    "load_remote_dsdesc_raw",
    "rebase_shardlist",
    "resolve_dsdesc",
    "set_all",
    "urldir",
    "urlmerge",
]


def urldir(url: str) -> str:
    """The directory of a URL or path, without query."""
    return str(Place(url).directory)


def urlmerge(base: str | None, url: str) -> str:
    """A URL, resolved against the directory ``base``."""
    return str(Place(base or "").join(url))


def load_remote_dsdesc_raw(source: str | os.PathLike[str] | IO[Any]) -> dict[str, Any]:
    """The JSON index at a URL, path or open file, as it is written."""
    url, data = _read(source)
    return parse_json(data, url)


def load_dsdesc_and_resolve(
    source: str | os.PathLike[str] | IO[Any], *, options: dict[str, Any] | None = None, base: str | None = None
) -> dict[str, Any]:
    """The index with its sub-datasets read in and its URLs resolved; ``shardlist`` holds all shards."""
    url, data = _read(source)
    return _describe(parse_index(data, index_url=url, load=read_bytes, base=base, options=options))


def resolve_dsdesc(
    dsdesc: dict[str, Any], *, options: dict[str, Any] | None = None, base: str | None = None
) -> dict[str, Any]:
    """`load_dsdesc_and_resolve` of an index that is here already; it is not changed."""
    return _describe(parse_index(json.dumps(dsdesc), index_url=None, load=read_bytes, base=base, options=options))


def check_shards(l: list[dict[str, Any]]) -> list[dict[str, Any]]:  # noqa: E741 - the original's parameter
    """The same list, each of whose shards has a ``url`` and ``nsamples``; else `SpecError` names the bad value."""
    if not isinstance(l, list):
        raise SpecError(f"the shards are {a_kind(l)}; they must be a list of dicts with url and nsamples")
    list_shards(l)
    return l


def rebase_shardlist(shardlist: list[dict[str, Any]], base: str | None) -> list[dict[str, Any]]:
    """The same list, its URLs resolved against ``base`` in place."""
    for shard in shardlist:
        shard["url"] = urlmerge(base, shard["url"])
    return shardlist


def set_all(l: list[dict[str, Any]], k: str, v: Any) -> None:  # noqa: E741 - the original's parameter
    """Set a key in all dicts that lack it; None sets nothing."""
    if v is not None:
        for shard in l:
            shard.setdefault(k, v)


def _describe(found: ShardList) -> dict[str, Any]:
    return {**found.header, "shardlist": [found.describe(k) for k in range(len(found))]}


def _read(source: str | os.PathLike[str] | IO[Any]) -> tuple[str | None, bytes | str]:
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source), read_bytes(os.fspath(source))
    return None, source.read()

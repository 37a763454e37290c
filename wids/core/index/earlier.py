"""The index that an output replaces: the check that the output is a later version of it, and its keys that stay.

Rules: an index is a later version if it has a shard in common, a view if it is of the same index. Keys that wids does
not compute stay, those of the index and those of shards that are still listed.
"""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from wids.core.files import atomic
from wids.core.index import checksums, compiled, writing
from wids.core.index.shardlist import GROUPING_KEYS, KNOWN_KEYS
from wids.core.index.spec import PACKS, own_packs, parse_json
from wids.core.index.view_file import KEY, View
from wids.core.place import Place
from wids.errors import SpecError, WidsError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    Entry = Mapping[str, Any]

# Top-level keys that are computed for each index or view, and hold for no other one.
COMPUTED = frozenset({
    *("__kind__", "wids_version", "base", "base_path", "shardlist", "datasets", PACKS),
    *GROUPING_KEYS.values(),
    *(key for key in View.__struct_fields__ if key != "name"),
    KEY,
})  # fmt: skip
_SHOWN = 3


class CarriedOver(NamedTuple):
    """Keys of an earlier index that stay in a later version, and shards that go.

    Attributes:
        keys: top-level ones that wids does not compute, without name and info.
        packs: the key of its packs of member tables; {}: none.
        shard_keys: URL of a shard of the later version -> the keys of the earlier entry that wids does not compute.
        gone: the plain URLs of shards that the later version does not name.
    """

    keys: dict[str, Any]
    packs: dict[str, Any]
    shard_keys: dict[str, dict[str, Any]]
    gone: list[str]


class EarlierIndex:
    """An index (JSON) as it is written; it may be malformed.

    Args:
        path: absolute.
        keys: its top-level keys; {}: there is none that can be read.
    """

    path: str
    keys: dict[str, Any]

    def __init__(self, path: str, keys: dict[str, Any]) -> None:
        self.path, self.keys = path, keys

    @classmethod
    def read(cls, path: str) -> EarlierIndex:
        """The index at a path."""
        try:
            fd, _ = atomic.open_file(path)  # does not wait for a FIFO
            with open(fd, "rb") as file:
                return cls(path, parse_json(file.read(), path))
        except (OSError, WidsError):
            return cls(path, {})

    @property
    def base(self) -> str:
        """The base of its relative URLs; "": it has none."""
        base = self.keys.get("base") or self.keys.get("base_path")
        return base if isinstance(base, str) else ""

    @functools.cached_property
    def entries(self) -> dict[str, Entry]:
        """The shards that it lists itself, or as sub-datasets: plain URL -> entry."""
        parts, root = self.keys.get("datasets"), Place(os.path.dirname(self.path)).join(self.base)
        entries: dict[str, Entry] = {}
        for part in (self.keys, *(parts if isinstance(parts, list) else ())):
            rows = part.get("shardlist") if isinstance(part, dict) else None
            for row in rows if isinstance(rows, list) else ():
                if isinstance(row, dict) and isinstance(row.get("url"), str):
                    with contextlib.suppress(ValueError, WidsError):  # no name of a file
                        entries[_plain(root.join(row["url"]))] = row
        return entries

    def find(self, urls: Sequence[str]) -> dict[str, str]:
        """The shards at ``urls`` that it lists: URL -> plain URL. If none is, they are looked for as below its base."""
        plain_urls = {url: plain for url in urls if (plain := _plain(url)) in self.entries}
        if plain_urls or not self.base:
            return plain_urls
        home = os.path.dirname(self.path)
        with contextlib.suppress(SpecError):  # they have no directory in common
            names = writing.place_entries([str(Place(url).absolute) for url in urls], home=home, base=self.base)
            root = Place(home).join(self.base)
            joined = zip(urls, (_plain(root.join(name)) for name in names), strict=True)
            return {url: plain for url, plain in joined if plain in self.entries}
        return plain_urls

    def lists(self, urls: Iterable[str]) -> bool:
        """True if it lists a shard at one of ``urls``."""
        return any(_plain(url) in self.entries for url in urls)

    def is_like(self, entries: Iterable[Entry]) -> bool:
        """True if it lists one of these shards at whatever place, by name, count, size and checksums."""
        known = set(filter(None, map(_properties_of, self.entries.values())))
        return any(_properties_of(entry) in known for entry in entries)

    def other_kind(self, *, is_view: bool, has_parts: bool = False) -> str | None:
        """Words for an index of another kind than the output: a view, one of sub-datasets, or one of shards alone."""
        parent = self.keys.get("view_of")
        if "view_of_fingerprint" in self.keys:
            return None if is_view else f"is a view{f' of {parent}' if parent else ''}, and no index of shards"
        if bool(self.keys.get("datasets")) != has_parts or (has_parts and not self.entries):
            return "is an index of sub-datasets" if self.keys.get("datasets") else f"is {self._size()}"
        return f"is {self._size()}, and no view" if is_view and self.entries else None

    def other_shards(self) -> str:
        """Words for it, if the output has none of its shards."""
        names = ", ".join(str(entry["url"]) for entry in list(self.entries.values())[:_SHOWN])
        more = ", ..." if len(self.entries) > _SHOWN else ""
        return f"is {self._size()}, and none of them is listed now ({names}{more})"

    def _size(self) -> str:
        return f"an index of {len(self.entries):,} shard{'s' * (len(self.entries) != 1)}"

    def other_parent(self, parent: str | None, digest: str, shards: Iterable[str]) -> str | None:
        """Words for a view of another index.

        Args:
            parent: URL or path of the index that the output is a view of; None: it lists its shards itself.
            digest: the fingerprint of these.
            shards: their URLs.
        """
        written = self.keys.get("view_of")
        if self.keys.get("view_of_fingerprint") == digest:
            return None
        if isinstance(written, str):
            plain = _plain(Place(os.path.dirname(self.path)).join(written))
            return None if parent is not None and plain == _plain(parent) else f"is a view of {written}"
        return None if parent is None and self.lists(shards) else "is a view of other shards"

    def own_keys(self) -> dict[str, Any]:
        """The top-level keys that wids does not compute, with name and info."""
        return {key: value for key, value in self.keys.items() if key not in COMPUTED}

    def carry_over(self, urls: Iterable[str], *, others: Iterable[str], taken: Container[str]) -> CarriedOver:
        """The keys that stay in a later version of it.

        As after an update, its packs of member tables lack new shards, and readers ignore their tables of changed ones.

        Args:
            urls: the shards of that version.
            others: further shards that are named, and not in it.
            taken: the top-level keys that it has already.
        """
        urls = list(urls)
        plain_urls = self.find([*urls, *others])
        packs = {}
        with contextlib.suppress(SpecError):  # no names of packs
            if plain_urls and own_packs(self.keys, self.path, None):
                packs = {PACKS: self.keys[PACKS]}
        return CarriedOver(
            keys={key: value for key, value in self.own_keys().items() if key not in taken and key != "name"},
            packs=packs,
            shard_keys={url: self.own_keys_of(plain_urls[url]) for url in urls if url in plain_urls},
            gone=[plain for plain in self.entries if plain not in {*plain_urls.values()}],
        )

    def own_keys_of(self, plain: str) -> dict[str, Any]:
        """The keys of a shard that wids does not compute."""
        return {key: value for key, value in self.entries[plain].items() if key not in KNOWN_KEYS}


def other_compiled(path: str, shards: Iterable[str]) -> str | None:
    """Words for a compiled index that has none of these shards; None for one that has, or is damaged."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        listed = compiled.unpack(data, file_url=path, home=os.path.dirname(path)).shards
    except WidsError:
        return None
    there = {_plain(url) for url in listed.urls}
    if any(_plain(url) in there for url in shards):
        return None
    return f"is a compiled index of {len(there):,} other shard{'s' * (len(there) != 1)}"


def _plain(url: str | Place) -> str:
    """The URL or path of a shard, by which it is compared: absolute, without credentials."""
    return Place(url).absolute.unsigned


def _properties_of(entry: Entry) -> tuple[Any, ...] | None:
    """The properties by which a shard is known at another place; None: they are too few."""
    if entry.get("filesize") is None:
        return None
    return Place(entry["url"]).name, *(entry.get(key) for key in ("nsamples", "filesize", *checksums.KEYS))

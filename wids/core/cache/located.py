"""`Located`: a shard and the path of its bytes on this machine; made once when it is opened, and handed on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from wids.core.cache.directory import CacheDirectory
from wids.core.files.lazy import Lazy

if TYPE_CHECKING:
    from wids.core.cache.book import ShardBook, ShardRecord
    from wids.core.place import Place
    from wids.core.shard import Shard


class Located(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A shard and the path of its bytes, now or later.

    Attributes:
        shard: as its index describes it.
        expected: the shard as a cached file is compared with it: without its count, where another rule groups samples.
        path: of its file on this machine, absolute; the file need not exist.
        is_in_place: the file is read in its place, and is none of a cache.
        book: knowledge of this process about each shard.
    """

    shard: Shard
    expected: Shard
    path: str
    is_in_place: bool
    book: ShardBook

    @property
    def url(self) -> str:
        """The shard's resolved URL."""
        return self.shard.url

    @property
    def place(self) -> Place:
        """Its URL, parsed."""
        return self.shard.place

    @property
    def record(self) -> ShardRecord:
        """Present knowledge of this process about it."""
        return self.book.of(self.shard.url)

    def exists(self) -> bool:
        """True if there is a file at its path; what the file is worth, `ShardCache.open` finds out."""
        return os.path.exists(self.path)

    @Lazy
    def directory(self) -> CacheDirectory:
        """The cache directory of its path."""
        return CacheDirectory(os.path.dirname(self.path))

    @Lazy
    def name(self) -> str:
        """Its name in the cache directory."""
        return os.path.basename(self.path)

"""The place of the bytes of a shard, now or later: in place, or under a name in a cache directory."""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import TYPE_CHECKING

from wids.core.cache import freshness
from wids.core.cache.directory import directory_of
from wids.core.place import Place
from wids.core.transport.schemes import find_store
from wids.errors import CacheError

if TYPE_CHECKING:
    from collections.abc import Callable

    from wids.core.transport.session import Session


class Placement:
    """The path of each shard on this machine.

    Args:
        cache_dir: directory for remote shards; None: only ``localname`` decides.
        localname: URL -> path, the caller's own choice; wins over ``cache_dir``.
        cache_local: copy local shards to the cache directory too (NAS to NVMe).
        session: opens URLs; the same name on two servers is two shards.
    """

    cache_dir: str | None
    localname: Callable[[str], str] | None
    cache_local: bool

    def __init__(
        self,
        *,
        cache_dir: str | None,
        localname: Callable[[str], str] | None,
        cache_local: bool,
        session: Session,
    ) -> None:
        self.cache_dir, self.localname, self.cache_local = cache_dir, localname, cache_local
        self._session = session
        # Relative paths mean what they meant here, wherever the program or a worker goes later.
        try:
            self._home = os.getcwd()
        except FileNotFoundError:  # someone deleted it; absolute paths and URLs do not need it
            self._home = ""

    @property
    def directory(self) -> str | None:
        """The cache directory, absolute; None: ``localname`` decides for each shard, or none exists."""
        return None if self.localname is not None or self.cache_dir is None else self._absolute(self.cache_dir)

    def find(self, place: Place) -> tuple[str, bool]:
        """The path of the file for a shard's URL; and True if it is read in place.

        Raises:
            CacheError: no directory for it exists.
        """
        own_path = self._absolute(place.path) if place.is_local else None
        if self.localname is not None:
            chosen = Place(os.fspath(self.localname(str(place))))
            path = self._absolute(chosen.path if chosen.is_local else str(chosen))
            if path == own_path:
                return path, True
            directory, name = directory_of(path)
            return path, os.path.exists(path) and not directory.is_downloaded(name)
        if own_path is not None and not self.cache_local:
            return own_path, True
        if self.cache_dir is None:
            raise CacheError(f"{place}: there is neither a cache_dir nor a localname to put it")
        # A relative path means another shard in another directory, and must not share its name in the cache.
        endpoint = self._session.endpoint_of(place) if own_path is None else ""
        name = (place if own_path is None else Place(own_path)).cache_name(endpoint=endpoint)
        return os.path.join(self._absolute(self.cache_dir), name), False

    def local_path(self, url: str) -> str:
        """The path of the file for a shard's URL; see `find`."""
        return self.find(Place(url))[0]

    def origin(self, place: Place) -> str | None:
        """Words for what a cached copy must have come from, with spaces between; None: its path says it all.

        - Of a local shard: the size, time and inode of its file as it is now; nothing where it cannot be seen.
        - Of a shard of a store with versions: the one that this process reads, once that is known.
        - Where ``localname`` may give two shards one path, a digest of the URL, its query aside (signatures change).
        """
        words: list[str] = []
        path = self._absolute(place.path) if place.is_local else ""
        if self.localname is not None:
            name = path if place.is_local else place.without_query
            words.append("url:" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32])
        if place.is_local:
            with contextlib.suppress(OSError, ValueError):
                status = os.stat(path)
                words.append(f"{freshness.FILE}{status.st_size}-{status.st_mtime_ns}-{status.st_ino}")
        elif (store := find_store(place)) is not None:
            known = store.known_file(str(place), self._session)
            words += [] if known is None else [f"{freshness.VERSION}{known.tag}"]
        return " ".join(words) or None

    def _absolute(self, path: str) -> str:
        if path.startswith("/"):  # as most are, and each opening of a shard asks
            return path
        return os.path.join(self._home, os.path.expanduser(path))

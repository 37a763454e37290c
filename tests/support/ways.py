"""The ways to open a shard: each provider of readers, and how shards get where it finds them."""

import os

import pytest

import wids
from tests.support import cache_shards as shards
from wids.core.readers.provider import AutoProvider, LocalFiles
from wids.core.readers.range_provider import RangeProvider
from wids.core.transport.session import Session

KINDS = ("in place", "mapped", "cached", "cached and mapped", "ranges", "auto local", "auto cached", "auto ranges")


class _One:
    """A provider that opens each shard in one way.

    Args:
        auto: says where it is.
        open_located: opens a `Located`.
    """

    def __init__(self, auto, open_located):
        self._locate, self._open = auto.cache.locate, open_located

    def open(self, shard):
        """See `ShardProvider`."""
        return self._open(self._locate(shard))


class Way:
    """The hooks of `wids.testing.ReaderSuite` and `ShardProviderSuite`, for each of `KINDS`."""

    @pytest.fixture(autouse=True, params=KINDS)
    def _way(self, request, server):
        self._kind, self._server = request.param, server
        server.has_ranges = True
        self.is_local = self._kind in ("in place", "mapped", "auto local")
        self.has_ranges = "ranges" in self._kind

    def put(self, name, data):
        """Where the provider finds it."""
        if self.is_local:
            return shards.write(self.home / "data" / name, data)
        return self._server.add(f"/{name}", data)

    def remove(self, url):
        """From there."""
        if self.is_local:
            os.unlink(url)
        else:
            self._server.files.pop(url.removeprefix(self._server.url))

    def make(self, hooks=()):
        """A provider."""
        is_mapped = "mapped" in self._kind
        access = {"auto ranges": "range", "auto cached": "fetch"}.get(self._kind, "auto")
        auto = AutoProvider(
            cache_dir=str(self.home / "cache"), access=access, session=Session(hooks=hooks), use_mmap=is_mapped
        )
        files = LocalFiles(hooks=hooks, use_mmap=is_mapped)
        if self._kind in ("in place", "mapped"):
            return _One(auto, lambda located: files.open_in_place(located.shard, located.path))
        if self._kind in ("cached", "cached and mapped"):
            return _One(auto, lambda located: files.open_cached(located, auto.cache))
        if self._kind == "ranges":
            session = Session(hooks=hooks)
            return _One(auto, RangeProvider(is_final=True, session=session, rule="first-dot", group="adjacent").find)
        return auto

    def open_dataset(self, listed):
        """A dataset that reads so."""
        options = {"access": "range" if self.has_ranges else "fetch", "use_mmap": "mapped" in self._kind}
        return wids.ShardListDataset(listed, cache_dir=self.home / "cache", transformations=[], **options)

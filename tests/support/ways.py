"""The ways to open a shard: each provider of readers, and how shards get where it finds them."""

import os
from types import SimpleNamespace

from tests.support import cache_shards as shards
from wids.readers.provider import AutoProvider, CachedProvider, InPlaceProvider, LocalFiles
from wids.readers.range_provider import RangeProvider

KINDS = ("in place", "mapped", "cached", "cached and mapped", "ranges", "auto local", "auto cached", "auto ranges")


def make_way(kind, *, server, home, events):
    """One of `KINDS`: ``put`` a shard, ``remove`` it, ``make`` a provider.

    Args:
        kind: which.
        server: serves the shards of the remote ones.
        home: a directory for shards and cache.
        events: a hook.
    """
    server.has_ranges = True
    is_local = kind in ("in place", "mapped", "auto local")

    def put(name, data):
        return shards.write(home / "data" / name, data) if is_local else server.add(f"/{name}", data)

    def remove(url):
        if is_local:
            os.unlink(url)
        else:
            server.files.pop(url.removeprefix(server.url))

    def make():
        cache_dir = str(home / "cache")
        access = {"auto ranges": "range", "auto cached": "fetch"}.get(kind, "auto")
        auto = AutoProvider(cache_dir=cache_dir, access=access, hooks=[events], use_mmap="mapped" in kind)
        files = LocalFiles(hooks=[events], use_mmap="mapped" in kind)
        ranges = {"storage_options": None, "rule": "first-dot", "group": "adjacent", "hooks": [events]}
        return {
            "in place": lambda: InPlaceProvider(files, auto.cache.placement),
            "mapped": lambda: InPlaceProvider(files, auto.cache.placement),
            "cached": lambda: CachedProvider(files, auto.cache),
            "cached and mapped": lambda: CachedProvider(files, auto.cache),
            "ranges": lambda: RangeProvider(is_final=True, **ranges),
        }.get(kind, lambda: auto)()

    has_ranges = "ranges" in kind
    return SimpleNamespace(
        kind=kind,
        put=put,
        remove=remove,
        make=make,
        home=home,
        is_local=is_local,
        has_ranges=has_ranges,
        is_cached=not (is_local or has_ranges),
        options={"access": "range" if has_ranges else "fetch", "use_mmap": "mapped" in kind},
    )

"""Cache directories made by hand: what a cache, processes that were killed, and users leave in one."""

import os

from wids.core.cache.directory import CacheDirectory, directory_of
from wids.core.files import atomic


def put_file(directory, name, data=b""):
    """Write a file; returns its path."""
    path = os.path.join(directory, name)
    with open(path, "wb") as file:
        file.write(data)
    return path


def put_shard(directory, name, size=10, *, table_size=0, used=1_000_000, is_kept=False):
    """A shard as the cache has it, last used at ``used`` seconds since 1970; returns its path."""
    home = CacheDirectory(str(directory))
    home.make()
    path = put_file(directory, name, bytes(size))
    table = put_file(directory, home.table(name), bytes(table_size))
    if is_kept:
        put_file(directory, home.keep_mark(name))
    for file in (path, table):
        os.utime(file, (used, used))
    return path


def staging_of(path):
    """What the path of a part file of a download to ``path`` begins with."""
    home, name = directory_of(str(path))
    home.make()
    return home.staging(name)


def put_garbage(path, size=0):
    """The part file of a download to ``path`` that was killed; returns its path."""
    part, fd = atomic.make_part(staging_of(path))
    os.truncate(fd, size)
    os.close(fd)
    return part


def table_of(path):
    """The path of the member table of a cached shard."""
    home, name = directory_of(str(path))
    return home.table(name)


def keep_mark_of(path):
    """The path of the mark that a cached shard is not to be evicted."""
    home, name = directory_of(str(path))
    return home.keep_mark(name)


def put_table(path, size=0):
    """A member table of a cached shard, which may not be there; returns its path."""
    home, name = directory_of(str(path))
    home.make()
    return put_file(home.tables, os.path.basename(home.table(name)), bytes(size))


def names_in(directory):
    """The names of the shards in a cache directory, in order."""
    return sorted(entry.name for entry in CacheDirectory(str(directory)).inventory().entries)


def files_in(directory):
    """The files in a cache directory, in order; those of the cache's own by their paths in ``.wids``.

    What is there at any time is left out: lock files, the log of changes, the request to release shards.
    """
    home = CacheDirectory(str(directory))
    always = {home.space_lock, home.release_request, home.changes}
    found = [
        os.path.join(folder, name)
        for folder in (home.path, home.folder, home.tables, home.remembered)
        if os.path.isdir(folder)
        for name in os.listdir(folder)
        if name not in ("tables", "remembered")
    ]
    return sorted(
        os.path.relpath(path, home.path)
        for path in found
        if path not in {home.folder, *always} and not path.endswith(".lock")
    )

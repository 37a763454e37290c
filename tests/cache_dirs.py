"""Cache directories made by hand: what a cache, processes that were killed, and users leave in one."""

import os

from wids.cache import files, inventory


def put_file(directory, name, data=b""):
    """Write a file; returns its path."""
    path = os.path.join(directory, name)
    with open(path, "wb") as file:
        file.write(data)
    return path


def put_shard(directory, name, size=10, *, table_size=0, used=1_000_000, is_kept=False):
    """A shard as the cache has it, last used at ``used`` seconds since 1970; returns its path."""
    path = put_file(directory, name, bytes(size))
    put_file(directory, f"{name}.lock")
    table = put_file(directory, f"{name}.widx", bytes(table_size))
    if is_kept:
        put_file(directory, f"{name}.keep")
    for file in (path, table):
        os.utime(file, (used, used))
    return path


def put_garbage(path, size=0):
    """The part file of a download to ``path`` that was killed; returns its path."""
    part, fd = files.make_part(path)
    os.truncate(fd, size)
    os.close(fd)
    return part


def names_in(directory):
    """The names of the shards in a cache directory, in order."""
    return sorted(entry.name for entry in inventory.take(str(directory)).entries)


def files_in(directory):
    """All that is in a cache directory but locks and the bell, in order."""
    return sorted(name for name in os.listdir(directory) if not name.endswith(".lock") and name != ".room.bell")

"""Small shards for tests of the cache, and what is in them."""

import os

from wids.testing.promises import files_open_in
from wids.testing.shards import described, md5, pack, shard, text, texts, texts_of

__all__ = ["described", "files_open_in", "md5", "pack", "shard", "text", "texts", "texts_of", "write"]


def write(path, data):
    """Write a file; returns its path as str."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
    return str(path)


def serve_shards(server, count, rows=3, size=100):
    """An index of shards behind HTTP."""
    entries = []
    for k in range(count):
        data = shard(chr(ord("a") + k), rows, size)
        url = server.add(f"/{chr(ord('a') + k)}.tar", data)
        entries.append({"url": url, "nsamples": rows, "filesize": len(data)})
    return entries

"""Fetch, read and evict with what Windows has: no fcntl, resource, pread or fork, and nothing that is open can go.

Usage: as_on_windows.py INDEX_URL CACHE_DIR. It stands in for the system as far as wids can tell; the locks are those of
filelock, which has its own for Windows.
"""

import os
import sys
import threading

import filelock  # noqa: F401 - before the system changes
import torch.utils.data  # noqa: F401 - likewise


class Absent:
    """Modules that the system does not have."""

    def find_spec(self, name, path=None, target=None):
        """As `importlib.abc.MetaPathFinder` asks for."""
        if name in ("fcntl", "resource"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def open_files():
    """(device, inode) of each file that this process has open."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            status = os.stat(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        found.add((status.st_dev, status.st_ino))
    return found


def refusing(call):
    """The call of the os module, for files that nobody has open."""

    def checked(*paths, **options):
        for path in paths:
            if os.path.exists(path):
                status = os.stat(path)
                if (status.st_dev, status.st_ino) in open_files():
                    raise PermissionError(13, "The process cannot access the file because it is being used", path)
        return call(*paths, **options)

    return checked


def become_windows():
    """Take away what is not there, and let wids see the name of the system while it is imported."""
    for name in ("fcntl", "resource"):
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Absent())
    for attribute in ("pread", "pwrite", "getuid", "register_at_fork", "fork"):
        delattr(os, attribute)
    before = sys.platform, os.name, os.O_CLOEXEC, os.O_NONBLOCK
    sys.platform, os.name = "win32", "nt"
    del os.O_CLOEXEC, os.O_NONBLOCK
    try:
        import wids.cache.system
    finally:  # what stands in for the system's own modules needs them
        sys.platform, os.name, os.O_CLOEXEC, os.O_NONBLOCK = before
    assert not wids.cache.system.RENAMES_OPEN_FILES
    os.replace, os.unlink, os.rename = refusing(os.replace), refusing(os.unlink), refusing(os.rename)


def main():
    """Read all, unbounded and bounded, and say what happened."""
    become_windows()
    import wids

    evicted, fetched = [], []

    def hook(event):
        name = type(event).__name__
        if name in ("Evicted", "Fetched"):
            (evicted if name == "Evicted" else fetched).append(event.path)

    index, cache_dir = sys.argv[1:3]
    dataset = wids.ShardListDataset(index, cache_dir=cache_dir, transformations="raw", lru_size=1, hooks=[hook])
    expected = [sample[".cls"] for sample in dataset]
    size = max(os.path.getsize(os.path.join(cache_dir, name)) for name in os.listdir(cache_dir))
    bounded = wids.ShardListDataset(
        index, cache_dir=cache_dir + "-2", cache_size=2 * size, transformations="raw", lru_size=1, hooks=[hook]
    )
    assert [bounded[i][".cls"] for i in range(len(bounded))] == expected
    with dataset.prefetch(range(len(dataset))) as indices:
        assert [dataset[i][".cls"] for i in indices] == expected
    dataset.close()
    wids.keep_most_recent_files(cache_dir, maxsize=0)
    left = [name for name in os.listdir(cache_dir) if name.endswith((".tar", ".part", ".widx"))]
    assert threading.active_count() < 50
    sys.stdout.write(f"{len(expected)} {len(fetched)} {len(evicted)} {left}\n")


if __name__ == "__main__":
    main()

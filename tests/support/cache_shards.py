"""Small shards for tests of the cache, and what is in them."""

import hashlib
import io
import os
import tarfile

from wids.index.spec import Shard


def pack(members):
    """The bytes of a tar of (name, data) pairs."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def shard(tag="a", count=3, size=100):
    """A shard of ``count`` samples with two members, whose bytes tell where they belong; ``tag`` is one letter."""
    members = []
    for row in range(count):
        members.append((f"{tag}{row:04d}.txt", text(tag, row)))
        members.append((f"{tag}{row:04d}.bin", (tag.encode() + b"%04d" % row) * (size // 5)))
    return pack(members)


def text(tag, row):
    """What member ``.txt`` of sample ``row`` holds."""
    return f"{tag}{row}".encode()


def texts(reader):
    """Member ``.txt`` of each sample of an open shard."""
    return [sample[".txt"].read() for sample in reader]


def texts_of(tag="a", count=3):
    """What `texts` gives for a shard that is what it should be."""
    return [text(tag, row) for row in range(count)]


def described(url, data, **facts):
    """A shard as an index describes it, with its true size and md5; ``facts`` override."""
    return Shard(**{"url": url, "nsamples": 3, "filesize": len(data), "md5sum": md5(data), **facts})


def md5(data):
    """Hexadecimal md5."""
    return hashlib.md5(data).hexdigest()


def write(path, data):
    """Write a file; returns its path as str."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
    return str(path)


def files_open_in(directory):
    """The files below ``directory`` that this process has open, once for each descriptor."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
        if path.startswith(f"{directory}/"):
            found.append(path)
    return found

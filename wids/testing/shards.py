"""Small shards whose bytes tell where they belong, for the suites of readers."""

from __future__ import annotations

import hashlib
import io
import tarfile
from typing import TYPE_CHECKING, Any

from wids.core.shard import Shard

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wids.core.readers.base import Rows


def pack(members: Iterable[tuple[str, bytes]]) -> bytes:
    """The bytes of a tar of (name, data) pairs."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def shard(tag: str = "a", count: int = 3, size: int = 100) -> bytes:
    """A shard of ``count`` samples with two members, ``.txt`` and a ``.bin`` of ``size`` bytes; ``tag``: a letter."""
    members = []
    for row in range(count):
        members.append((f"{tag}{row:04d}.txt", text(tag, row)))
        members.append((f"{tag}{row:04d}.bin", (tag.encode() + b"%04d" % row) * (size // 5)))
    return pack(members)


def text(tag: str, row: int) -> bytes:
    """Contents of member ``.txt`` of sample ``row``."""
    return f"{tag}{row}".encode()


def texts(reader: Rows) -> list[bytes]:
    """Member ``.txt`` of each sample of an open shard."""
    return [sample[".txt"].read() for sample in reader]


def texts_of(tag: str = "a", count: int = 3) -> list[bytes]:
    """The result of `texts` for an undamaged shard."""
    return [text(tag, row) for row in range(count)]


def described(url: str, data: bytes, **keys: Any) -> Shard:
    """A shard as an index describes it, with its true size and md5; ``keys`` override."""
    return Shard(**{"url": url, "nsamples": 3, "filesize": len(data), "md5sum": md5(data), **keys})


def md5(data: bytes) -> str:
    """Hexadecimal md5."""
    return hashlib.md5(data).hexdigest()

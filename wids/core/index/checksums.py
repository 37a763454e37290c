"""The checksums of a shard in an index: CRC-32, which takes a seventh of the time, and md5.

Pure. Their names are their keys in the index; the digests are hexadecimal, in lower case.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Protocol
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wids.core.shard import Shard

# The fastest first.
KEYS = ("crc32", "md5sum")


class Checksum(Protocol):
    """A running checksum, with the interface of hashlib."""

    def update(self, data: bytes, /) -> object:
        """Go on with these bytes."""

    def hexdigest(self) -> str:
        """The checksum of all bytes so far."""


class _Crc32:
    def __init__(self) -> None:
        self._sum = 0

    def update(self, data: bytes) -> None:
        self._sum = crc32(data, self._sum)

    def hexdigest(self) -> str:
        return f"{self._sum:08x}"


def new(key: str) -> Checksum:
    """A new checksum, of no bytes."""
    if key == "md5sum":
        return hashlib.md5(usedforsecurity=False)
    if key == "sha256":  # from a store; no index has it
        return hashlib.sha256()
    assert key == "crc32"  # noqa: S101 - a new one is to be entered here
    return _Crc32()


def word(key: str) -> str:
    """Its name in messages."""
    return key.removesuffix("sum")


class Checksums:
    """Several running checksums of one shard.

    Args:
        keys: of the checksums.
    """

    def __init__(self, keys: Iterable[str] = KEYS) -> None:
        self._sums = {key: new(key) for key in keys}

    def update(self, data: bytes) -> None:
        """Go on with these bytes."""
        for each in self._sums.values():
            each.update(data)

    def digests(self) -> dict[str, str]:
        """Key -> the checksum of all bytes so far."""
        return {key: each.hexdigest() for key, each in self._sums.items()}


def promised(shard: Shard) -> dict[str, str]:
    """Key -> the checksum in the index, the fastest first; empty: the index has none."""
    return {key: digest for key in KEYS if (digest := getattr(shard, key))}

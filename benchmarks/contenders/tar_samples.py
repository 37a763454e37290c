"""The samples of a tar of `peer_data`, for loaders that convert them, and a number that tells them apart."""

from __future__ import annotations

import hashlib
import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULUS = 1 << 256


def read(path: str) -> Iterator[dict]:
    """Yield ``key``, ``payload`` and ``label`` of each sample; its label is the last member."""
    payload = b""
    with tarfile.open(path) as tar:
        for info in tar:
            key, _, field = info.name.partition(".")
            content = tar.extractfile(info).read()
            if field == "cls":
                yield {"key": key, "payload": payload, "label": int(content)}
            else:
                payload = content


def digest_of(key: str, payload: bytes, label: int) -> int:
    """A number for one sample; their sum modulo 2**256 tells one multiset of samples from another."""
    head = hashlib.sha256(f"{key}\0{label}\0{len(payload)}\0".encode())
    head.update(payload)
    return int.from_bytes(head.digest(), "big")

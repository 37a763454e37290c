"""The samples of a tar of `peer_data`, for loaders that convert them to a format of their own."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


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

"""What the pages are about: a dataset and the directory of its cache, opened once and read by many threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wids.dataset import ShardListDataset
from wids.errors import without_secrets
from wids.serve.previews import Previews

if TYPE_CHECKING:
    import os
    from collections.abc import Callable


class Served:
    """A dataset that is looked at.

    Samples are read by byte ranges where their shard is not on this machine; nothing downloads a shard.

    Args:
        index: as `wids.ShardListDataset` takes it, as a text.
        cache_dir, storage_options: as there.

    Attributes:
        name: the index as people may see it, without passwords. dataset: its samples, undecoded.
        cache_dir: the directory of its cache. collection: its samples and shards.
        previews: small pictures of its fields. closing: called by `close`, for what a page has begun.
    """

    def __init__(
        self,
        index: str,
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        self.name = without_secrets(index, index)
        self.dataset: ShardListDataset[dict[str, Any]] = ShardListDataset(
            index, cache_dir=cache_dir, storage_options=storage_options, transformations=[], access="range"
        )
        self.cache_dir = self.dataset.cache_dir
        self.collection = self.dataset._collection  # noqa: SLF001 - what `wids info` and its like go by, too
        self.previews = Previews(self.dataset)
        self.closing: list[Callable[[], None]] = [self.previews.close]

    def close(self) -> None:
        """Close the shards."""
        for end in self.closing:
            end()
        self.dataset.close()

"""The data of the pages: a dataset and the directory of its cache, opened once and read by many threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wids.core.place import Place
from wids.dataset import ShardListDataset
from wids.errors import InputError
from wids.hub.repository import parse_name
from wids.tools.serve.previews import Previews
from wids.tools.serve.rows import ServedRows
from wids.tools.serve.tags import Tags

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from wids.core.collection.shard_collection import ShardCollection


class Served:
    """A dataset that is looked at.

    Samples are read by byte ranges where their shard is not on this machine; nothing downloads a shard.

    Args:
        index: as `wids.ShardListDataset` takes it, as a text; or such a dataset, whose samples, columns, cache
            directory and credentials are taken as they are.
        cache_dir: as there; of an index only.
        storage_options: likewise.
        tags: path of the file that tags are kept in; see `wids.tools.serve.tags.Tags`.

    Attributes:
        index: as given, or that of the dataset; None: it is of none.
        name: it as people may see it, without passwords.
        dataset: its samples, undecoded.
        opening: Python that makes the dataset; "": it was made by a program.
        cache_dir: the directory of its cache.
        collection: its samples and shards.
        previews: small pictures of its fields.
        rows: values of its samples.
        tags: of its samples.
        closing: called by `close`, for what a page has begun.
    """

    collection: ShardCollection
    cache_dir: str | None
    name: str
    opening: str
    previews: Previews
    rows: ServedRows
    tags: Tags

    def __init__(
        self,
        index: str | ShardListDataset[Any],
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        storage_options: dict[str, Any] | None = None,
        tags: str = "",
    ) -> None:
        if isinstance(index, str):
            self.index: str | None = index
            self.dataset: ShardListDataset[dict[str, Any]] = ShardListDataset(
                index, cache_dir=cache_dir, storage_options=storage_options, transformations=[], access="range"
            )
        else:
            if cache_dir is not None or storage_options is not None:
                raise InputError("cache_dir and storage_options are the dataset's own; give them with an index only")
            self.dataset = index._undecoded()  # noqa: SLF001 - as below
            self.index = self.dataset._collection.index_url  # noqa: SLF001
        self.cache_dir = self.dataset.cache_dir
        self.collection = self.dataset._collection  # noqa: SLF001 - what `wids info` and its like go by, too
        known = self.index or self.dataset.dataset_name
        if self.index is not None and (named := parse_name(self.index)) is not None:
            known = named.text
        self.name = Place(known).public
        is_whole = self.index is not None and self.collection.shards.selection is None
        self.opening = f"wids.ShardListDataset({self.name!r})" if isinstance(index, str) or is_whole else ""
        self.previews = Previews(self.dataset)
        self.tags = Tags(self.dataset, self.name, tags)
        self.rows = ServedRows(self.dataset, self.collection, self.tags.of)
        self.closing: list[Callable[[], None]] = [self.previews.close, self.rows.close]

    def columns(self) -> dict[str, str]:
        """The columns of the file beside the index: name -> type, as Arrow calls it; none where there is no file.

        Raises:
            ColumnsError: it cannot be used. DependencyError: pyarrow is not installed.
        """
        return self.dataset._own_columns().types(self.collection)  # noqa: SLF001 - likewise

    def close(self) -> None:
        """Close the shards."""
        for end in self.closing:
            end()
        self.dataset.close()

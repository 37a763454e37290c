"""Look at a dataset, an epoch and a cache in a browser: ``wids serve``, and `start` for notebooks.

Rules: all that is shown comes from the collection, the columns, the order and the simulation that programs and commands
use. Only the shown samples are downloaded. Nothing in a shard is executed, and no request names a file.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wids.dataset import ShardListDataset
    from wids.tools.serve.running import PageServer


def start(
    index: str | os.PathLike[str] | ShardListDataset[Any],
    *,
    port: int = 0,
    cache_dir: str | os.PathLike[str] | None = None,
    storage_options: dict[str, Any] | None = None,
    tags: str | os.PathLike[str] = "",
) -> PageServer:
    """Serve the pages of a dataset to this machine's browsers, from a thread of this process.

    ``wids.serve.start("train.json").show()`` at the end of a notebook's cell shows them there. To start the same again,
    as a cell that is run again does, closes the one before; all are closed when the process ends.

    Args:
        index: as `wids.ShardListDataset` takes it, a text or a path; or a dataset, such as a view: its samples are
            shown undecoded with its joined columns, and nothing is downloaded by it.
        port: where to listen; 0: any free port.
        cache_dir: where remote shards may be, as there; of an index only.
        storage_options: for fsspec, as there; of an index only.
        tags: a ``.npy`` that the tags of samples are kept in.

    Returns:
        The server: ``url`` to open, ``show(height=)`` for a notebook, ``close()``; also a ``with`` block.

    Raises:
        DependencyError: ``wids[serve]`` is not installed. WidsError: the index, or the file of tags, cannot be read.
        TypeError: ``index`` is neither an index nor such a dataset.
        InputError: ``cache_dir`` or ``storage_options`` beside a dataset. OutputError: the port is taken or forbidden.
    """
    from wids.tools.serve.running import PageServer, check_packages, start_alone

    check_packages()
    from wids.dataset import ShardListDataset
    from wids.errors import a_kind
    from wids.tools.serve.served import Served

    index, tags = os.fspath(index) if isinstance(index, os.PathLike) else index, os.fspath(tags)
    if not isinstance(index, (str, ShardListDataset)):
        raise TypeError(f"pages are made of an index, or of a ShardListDataset and its views, not of {a_kind(index)}")
    steps = () if isinstance(index, str) else (index.dataset_name, len(index), *index._steps)  # noqa: SLF001 - of a view
    place = index if isinstance(index, str) else index._collection.index_url  # noqa: SLF001

    def make() -> PageServer:
        served = Served(index, cache_dir=cache_dir, storage_options=storage_options, tags=tags)
        try:
            return PageServer(served, port=port, has_frames=True)
        except BaseException:
            served.close()
            raise

    return start_alone((place, steps, str(cache_dir), tags), make)

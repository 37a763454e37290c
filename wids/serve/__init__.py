"""Look at a dataset, an epoch and a cache in a browser: ``wids serve``, and `start` for notebooks.

Rules: all that is shown comes from the collection, the columns, the order and the simulation that programs and commands
use. Nothing is downloaded but what is looked at. Nothing in a shard is run, and nothing of a request names a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os

    from wids.serve.running import Server


def start(
    index: str,
    *,
    port: int = 0,
    cache_dir: str | os.PathLike[str] | None = None,
    storage_options: dict[str, Any] | None = None,
    marks: str = "",
) -> Server:
    """Serve the pages of a dataset to this machine's browsers, from a thread of this process.

    ``wids.serve.start("train.json").show()`` at the end of a notebook's cell shows them there.

    Args:
        index: as `wids.ShardListDataset` takes it.
        port: where to listen; 0: any free port.
        cache_dir: where remote shards may be, as there.
        storage_options: for fsspec, as there.
        marks: a file that marked samples are kept in: ``.json``: a view; ``.npy``: indices; any other: a key a line.

    Returns:
        The server: ``url`` to open, ``show(height=)`` for a notebook, ``close()``; also a ``with`` block.

    Raises:
        DependencyError: ``wids[serve]`` is not installed. WidsError: the index, or the file of marks, cannot be read.
    """
    from wids.serve.running import Server
    from wids.serve.served import Served

    served = Served(index, cache_dir=cache_dir, storage_options=storage_options, marks=marks)
    return Server(served, port=port, has_frames=True).start()

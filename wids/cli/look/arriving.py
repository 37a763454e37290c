"""A bar while a shard may be on its way into the cache, of the bytes that have come."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from wids.cli.format import printable
from wids.cli.progress import progress
from wids.index import urls
from wids.jobs.warm import Warming

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wids.index.spec import Shard

_LOOK_SECONDS = 0.2


@contextlib.contextmanager
def arriving(shard: Shard, directory: str, *, is_shown: bool) -> Iterator[None]:
    """Show what comes of a shard while the block runs, if anybody sees it.

    Args:
        shard: which.
        directory: of the cache.
        is_shown: False: never; there is one bar at a time.
    """
    with progress("bytes", is_shown=is_shown) as bar:
        if not bar.is_shown:
            yield
            return
        arrivals, is_over = Warming(directory, [], cache_size=None), threading.Event()
        words = f"fetching {printable(urls.basename_of(shard.url))}"

        def watch() -> None:
            while not is_over.wait(_LOOK_SECONDS):
                bar.update(arrivals.arrived_bytes(), total=shard.filesize, words=words)

        watcher = threading.Thread(target=watch, daemon=True, name="wids-bar")
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join()

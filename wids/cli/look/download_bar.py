"""A progress bar of the bytes of one shard while it is downloaded into the cache."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from wids.cli.format import printable
from wids.cli.progress import progress
from wids.jobs.warm import part_bytes
from wids.transport import urls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wids.index.spec import Shard

_UPDATE_SECONDS = 0.2


@contextlib.contextmanager
def download_bar(shard: Shard, directory: str, *, is_shown: bool) -> Iterator[None]:
    """Show how much of a shard is downloaded while the block runs, where stderr is a terminal.

    Args:
        shard: the shard that the block may download.
        directory: the cache directory.
        is_shown: False for no bar, because another one is shown already.
    """
    with progress("bytes", is_shown=is_shown) as bar:
        if not bar.is_shown:
            yield
            return
        is_over = threading.Event()
        words = f"fetching {printable(urls.basename_of(shard.url))}"

        def watch() -> None:
            while not is_over.wait(_UPDATE_SECONDS):
                bar.update(part_bytes(directory), total=shard.filesize, words=words)

        watcher = threading.Thread(target=watch, daemon=True, name="wids-bar")
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join()

"""What an index says of a shard, read from the shard itself.

Rules: a function of the shard's bytes alone. Local shards are read in place; a remote one is fetched into a directory
of its own, which is gone afterwards.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

from wids.cache import fetch
from wids.cache.store import Store
from wids.index.spec import Shard

if TYPE_CHECKING:
    from wids.index.table import Group, KeyRule


def survey_shard(
    url: str,
    *,
    has_md5: bool = True,
    rule: KeyRule = "first-dot",
    group: Group = "adjacent",
    storage_options: dict[str, Any] | None = None,
    allow_pipe: bool = False,
) -> dict[str, Any]:
    """The entry of one shard in a shard list: ``url``, ``nsamples``, ``filesize`` (bytes), and ``md5sum`` if asked for.

    Raises:
        FetchError: it cannot be had. ShardError: it is not a readable tar.
    """
    with tempfile.TemporaryDirectory(prefix="wids-survey-") as directory:
        store = Store(
            cache_dir=directory, rule=rule, group=group, storage_options=storage_options, allow_pipe=allow_pipe
        )
        reader = store.open(Shard(url=url, nsamples=None))
        entry = {"url": url, "nsamples": len(reader), "filesize": reader.table.identity.size}
        if has_md5:
            entry["md5sum"] = fetch.file_md5(reader.path)
    return entry

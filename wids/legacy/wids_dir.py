"""``wids.wids_dir`` of the original, which held no code; the classes it sketched say what to use instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wids.legacy import refuse

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

__getattr__: Callable[[str], NoReturn] = refuse(
    __name__,
    {
        "DirectoryDataset": "pass the shards themselves: wids.ShardListDataset(sorted(glob.glob('DIR/*.tar')))",
        "DirectoryQueueDataset": "pass the shards to wids.ShardListDataset; its samplers choose among them",
    },
)

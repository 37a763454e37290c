"""``wids.wids_dir`` of the original, which held no code; the classes it sketched say what to use instead."""

from wids.legacy import refuse

__getattr__ = refuse(
    __name__,
    {
        "DirectoryDataset": "pass the shards themselves: wids.ShardListDataset(sorted(glob.glob('DIR/*.tar')))",
        "DirectoryQueueDataset": "pass the shards to wids.ShardListDataset; its samplers choose among them",
    },
)

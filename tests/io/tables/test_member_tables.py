"""Member tables beside shards."""

import wids
from tests.support.shards import write_shards


def test_a_table_longer_than_its_shard_could_have_is_not_read(tmp_path):
    """A sparse file of terabytes beside a local shard would have been read into memory."""
    shard = write_shards(tmp_path, (3,))[0]
    with open(shard["url"] + ".widx", "wb") as file:
        file.truncate(1 << 42)
    assert wids.ShardListDataset([shard], transformations=[])[2]["__key__"] == "s0-002"

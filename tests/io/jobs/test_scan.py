"""The scan of one shard: bytes that are missing, and changes meanwhile."""

import pytest

from tests.support.servers import endless
from tests.support.shards import write_shard
from wids.core.files import atomic
from wids.core.index import checksums
from wids.errors import ChangedShardError, CorruptHeaderError, FetchDeniedError
from wids.jobs import scan
from wids.jobs.scan import ScanTask, scan_shard


def test_a_link_in_a_circle_is_tried_once(tmp_path, monkeypatch):
    """What another try cannot mend is not tried again for seconds."""
    (tmp_path / "a.tar").symlink_to("a.tar")
    tries = []
    real = atomic.open_file
    monkeypatch.setattr(atomic, "open_file", lambda path: tries.append(path) or real(path))
    with pytest.raises(FetchDeniedError, match="symbolic links"):
        scan_shard(ScanTask(url=str(tmp_path / "a.tar")))
    assert len(tries) == 1


def test_a_copy_of_no_shard_ends_at_its_first_block(server, tmp_path):
    """An endless answer does not fill the disk."""
    url = server.add("/a.tar", b"", endless)
    with pytest.raises(CorruptHeaderError):
        scan_shard(ScanTask(url=url))
    assert server.sent_bytes["/a.tar"] < 64 << 20


@pytest.mark.parametrize("keys", [(), ("md5sum",), checksums.KEYS])
def test_a_shard_that_changes_while_it_is_read_is_told(tmp_path, monkeypatch, keys):
    """The size and digest in an index are of one and the same file, or there is no entry."""
    shard = tmp_path / "a.tar"
    write_shard(shard, 2)
    write_shard(tmp_path / "b.tar", 200)
    more = (tmp_path / "b.tar").read_bytes()
    real = scan.tables.build_table

    def late(*args, **options):
        table = real(*args, **options)
        shard.write_bytes(more)
        return table

    monkeypatch.setattr(scan.tables, "build_table", late)
    with pytest.raises(ChangedShardError, match="changed while it was read"):
        scan_shard(ScanTask(url=str(shard), checksums=keys))

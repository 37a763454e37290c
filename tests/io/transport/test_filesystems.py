"""File systems of stores, as they are set up here."""

import asyncio
import logging

import pytest

from wids.core.transport import filesystems


def test_what_kind_a_bucket_is_has_a_limit_of_time(set_limits, caplog):
    """The client asks for a minute where no server answers; then, or after a failure, it is an ordinary bucket."""
    kinds = pytest.importorskip("gcsfs.extended_gcsfs").BucketType
    asked = []

    async def ask(bucket):
        asked.append(bucket)
        logging.getLogger("gcsfs").warning("Could not determine bucket type for bucket name %s", bucket)
        if bucket == "away":
            await asyncio.get_running_loop().create_future()
        return kinds.UNKNOWN if bucket == "refused" else kinds.HIERARCHICAL

    set_limits(filesystems, bucket_seconds=0.01)
    look = filesystems._BucketTypes(ask)
    for bucket, found in (("away", kinds.UNKNOWN), ("refused", kinds.UNKNOWN), ("b", kinds.HIERARCHICAL)):
        assert [asyncio.run(look(bucket)) for _ in range(2)] == [found] * 2
    assert asked == ["away", "refused", "b", "b"]  # of the first two it is not asked again soon
    assert not caplog.records  # what the client says of it is no fault
    logging.getLogger("gcsfs").warning("other words of it")
    assert caplog.messages == ["other words of it"]


@pytest.mark.parametrize("protocol", ["filecache", ("filecache",), ["blockcache", "x-file"]])
def test_a_protocol_that_has_the_word_file(protocol, monkeypatch):
    """It is not the file system of local files, which would read only the first part of a chain."""
    import fsspec

    filesystem = type("Filesystem", (), {"protocol": protocol})()
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda *_, **__: (filesystem, "x"))
    assert filesystems.open_filesystem("filecache::memory://x")[0] is filesystem

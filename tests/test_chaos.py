"""The cache under all that goes wrong at once: killed processes, full disks, bad servers, forks, wiped directories.

Each test ends in bounded time, whatever happens. What is random follows from a seed, which a failure shows.
"""

import pytest

from tests.chaos import ROWS, Job, check, entries, serve, shard_bytes
from wids.cache import room

ONE = len(shard_bytes(0))


@pytest.fixture
def cache(tmp_path):
    """The cache directory; it is not there yet."""
    return str(tmp_path / "cache")


@pytest.fixture
def no_patience(monkeypatch):
    """Who finds no room in this process gives up soon."""
    monkeypatch.setattr(room, "WAIT_SECONDS", 2.0)


# --- what chaos has found


@pytest.mark.usefixtures("no_patience", "no_waits")
def test_a_reader_that_waits_for_room_keeps_no_shard(server, cache):
    """Where one shard has room, one after the other is read: the one before is let go of while the next one waits."""
    serve(server, range(3))
    dataset = Job(shards=entries(server, range(3)), directory=cache, limit=ONE + ONE // 5).dataset(is_hurried=False)
    for index in (0, ROWS, 2 * ROWS, 1, ROWS + 1):
        assert check(dataset[index])[0] == index // ROWS
    batch = [0, ROWS, 2 * ROWS, 1]
    assert [check(sample)[0] for sample in dataset.__getitems__(batch)] == [index // ROWS for index in batch]
    dataset.close()

"""The cache under all that goes wrong at once: killed processes, full disks, bad servers, forks, wiped directories.

Each test ends in bounded time, whatever happens. What is random follows from a seed, which a failure shows.
"""

import contextlib
import os
import shutil

import pytest

from tests import chaos
from tests.chaos import (
    ROWS,
    Job,
    check,
    check_directory,
    check_shard,
    entries,
    in_program,
    serve,
    shard_bytes,
    shard_of,
)
from wids.cache import files, room, system
from wids.cache.store import Store
from wids.errors import CacheFull

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


def reserve_what_is_promised(directory):
    """In a process: promise bytes of a small disk to two downloads that have written nothing yet; gives the error."""
    chaos.enter_own_mounts()
    chaos.mount_memory(directory, "size=300k")
    chaos.hurry(wait_seconds=0.1)
    place = room.Room(directory, limit=None)
    with (
        files.part_file(os.path.join(directory, "a")) as (_, a),
        files.part_file(os.path.join(directory, "b")) as (_, b),
    ):
        place.reserve([(a, 1000)], url="a")
        place.reserve([(a, 200_000)], url="a")
        try:
            place.reserve([(b, 200_000)], url="b")
        except CacheFull as error:
            return error.expected, error.found
    raise AssertionError("400,000 bytes are promised, and there are 300,000")


def test_room_is_promised_once(cache):
    """Two downloads under way are not promised the same free bytes of a disk, also where no size bounds the cache."""
    expected, found = in_program(reserve_what_is_promised, cache)
    assert expected == 200_000
    assert 80_000 < found < 300 * 1024 - 200_000


def test_a_directory_that_vanishes_while_room_is_made(server, cache, no_waits, monkeypatch):
    """A cache directory that is deleted when the room in it is looked at is made again, and the shard is fetched."""
    serve(server, [0])
    free_bytes = system.free_bytes
    times = iter([True, False])

    def wiped(directory):
        if next(times, False):
            shutil.rmtree(directory)
        return free_bytes(directory)

    monkeypatch.setattr(system, "free_bytes", wiped)
    with contextlib.closing(Store(cache_dir=cache).open(shard_of(*entries(server, [0])))) as reader:
        check_shard(reader, 0)
    assert next(times, None) is None
    check_directory(cache)

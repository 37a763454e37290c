"""The way to a sample: the calls, functions and files that it leads through, and how often a URL is parsed on it."""

import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

import wids
from tests.support import cache_shards as shards
from tests.support.clocks import PATIENCE_SECONDS
from tests.support.tars import publish
from wids.core.place import Place

ROOT = str(Path(wids.__file__).parent)


class Trip(NamedTuple):
    """Calls of functions of ours in this thread. Comprehensions count as functions, as they do in Python 3.11."""

    calls: int
    functions: int
    files: int
    places: int


def trip(work):
    """What ``work`` leads through."""
    calls = Counter()

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(ROOT):
            calls[frame.f_code] += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    files = {code.co_filename for code in calls}
    return Trip(sum(calls.values()), len(calls), len(files), calls[Place.__init__.__code__])


@pytest.fixture
def listed(server):
    """Two shards of a server with their member tables, as an index lists them."""
    server.has_ranges = True
    urls = [server.add(f"/{tag}.tar", shards.shard(tag, 3, 3000)) for tag in "ab"]
    for tag in "ab":
        publish(server, f"/{tag}.tar")
    return [{"url": url, "nsamples": 3, "filesize": len(server.files[url.removeprefix(server.url)])} for url in urls]


@pytest.mark.parametrize(
    ("options", "bounds"),
    [
        ({"access": "range"}, Trip(600, 280, 52, 5)),
        ({"early_reads": True}, Trip(700, 335, 58, 5)),
        ({"early_reads": False}, Trip(900, 300, 55, 5)),
    ],
    ids=["by ranges", "by ranges until it is cached", "downloaded"],
)
def test_the_first_touch_of_a_remote_shard(listed, tmp_path, options, bounds):
    """Its URL is parsed once, and that of its table; whoever needs to know where it is gets a `Located`."""
    dataset = wids.ShardListDataset(listed, cache_dir=tmp_path / "cache", transformations="raw", **options)
    found = trip(lambda: dataset[0])
    arrivals = dataset._collection.provider._arrivals
    if arrivals is not None:
        arrivals.join(PATIENCE_SECONDS)
    dataset.close()
    assert all(count <= most for count, most in zip(found, bounds, strict=True)), found


def test_a_sample_of_an_open_shard(tmp_path):
    """It leads through three files, and parses nothing."""
    path = shards.write(tmp_path / "a.tar", shards.shard("a"))
    dataset = wids.ShardListDataset([path], transformations="raw")
    for i in range(2):  # opened, and its decoders made
        dataset[i]
    found = trip(lambda: dataset[2])
    assert all(count <= most for count, most in zip(found, Trip(8, 8, 3, 0), strict=True)), found

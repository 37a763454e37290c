"""Attack 25: the prefetch window, limits of the cache, and shards on network file systems."""

import contextlib
import os
import subprocess
import sys
import time
import weakref

import pytest
from torch.utils.data import Subset

from tests.support import cache_shards as shards
from tests.support.clocks import threads_named, wait_until
from wids.cache import background
from wids.dataset import ShardListDataset
from wids.events import Fetched, RangesRead
from wids.index import table as tables
from wids.order.layout import Visit
from wids.osfiles import page_cache
from wids.policy.prefetch_window import AheadLimits, PrefetchWindow
from wids.samplers import ChunkedSampler

COUNT, ROWS = 12, 20


def bytes_in(directory):
    """Of all files below it."""
    return sum(os.path.getsize(os.path.join(root, name)) for root, _, names in os.walk(directory) for name in names)


@pytest.fixture
def bodies():
    """Twelve shards of twenty samples."""
    return [shards.shard("abcdefghijkl"[k], count=ROWS, size=2000) for k in range(COUNT)]


@pytest.fixture
def web(server, bodies):
    """A server with them."""
    server.has_ranges = True
    for k, body in enumerate(bodies):
        server.add(f"/{k}.tar", body)
    return server


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_a_limit_below_one_shard_holds_no_more_than_a_shard(web, bodies, tmp_path, share):
    """Shards that this process has open and does not read go for the next one, as with any larger limit."""
    size = len(bodies[0])
    dataset = ShardListDataset(
        [{"url": f"{web.url}/{k}.tar", "nsamples": ROWS, "filesize": size} for k in range(COUNT)],
        transformations=[],
        cache_dir=tmp_path / "cache",
        cache_size=int(share * size),
        prefetch=False,
    )
    most = 0
    for index in range(0, len(dataset), ROWS):
        _ = dataset[index]
        most = max(most, bytes_in(tmp_path / "cache"))
    assert most < 2 * size + 16_384  # today: all twelve


def test_shards_of_unknown_size_come_into_a_small_cache(web, bodies, tmp_path):
    """64 MiB are taken for each, which no cache of less has space for, and readers leave them to the prefetcher."""
    fetched, ranges = [], []

    def note(event):
        if isinstance(event, Fetched):
            fetched.append(event.url)
        if isinstance(event, RangesRead):
            ranges.append(event.url)

    for k, body in enumerate(bodies):  # member tables beside the shards
        path = shards.write(tmp_path / "source" / f"{k}.tar", body)
        program = os.path.join(os.path.dirname(sys.executable), "wids")
        options = ["index", "create", "--members", path, "-o", path.replace(".tar", ".json")]
        subprocess.run([program, *options], check=True, capture_output=True)
        with open(path + tables.SUFFIX, "rb") as file:
            web.add(f"/{k}.tar{tables.SUFFIX}", file.read())
    web.latency_seconds = 0.02
    dataset = ShardListDataset(
        [(f"{web.url}/{k}.tar", ROWS) for k in range(COUNT)],
        transformations=[],
        cache_dir=tmp_path / "cache",
        cache_size=10 * len(bodies[0]),
        hooks=[note],
    )
    for index in ChunkedSampler(dataset):
        _ = dataset[index]
    wait_until(lambda: not threads_named("wids-prefetch"))
    assert len(ranges) < len(dataset) / 2, (len(fetched), len(ranges))  # today: 1 or 2 come, 190 of 240 by ranges


@pytest.fixture
def paths(tmp_path):
    """Twelve local shards of twenty samples."""
    return [str(shards.write(tmp_path / f"{k:02d}.tar", shards.shard(str(k), count=ROWS))) for k in range(COUNT)]


@pytest.fixture
def read(monkeypatch):
    """All files lie on a network file system; the shares of files that were read ahead."""
    found = []
    monkeypatch.setattr(page_cache, "is_network", lambda _path: True)
    monkeypatch.setattr(page_cache, "read_ahead", lambda path, begin, end, *, is_cancelled: found.append(end - begin))
    return found


@pytest.mark.parametrize("kind", ["subset", "view"])
def test_a_view_of_few_samples_reads_no_whole_files(paths, read, kind):
    """Of each shard one sample of twenty is chosen, in the middle: a `Subset` of them reads nothing ahead."""
    dataset = ShardListDataset([(path, ROWS) for path in paths], transformations=[])
    chosen = [k * ROWS + row for k in range(COUNT) for row in (2, 17)]
    few = Subset(dataset, chosen) if kind == "subset" else dataset.select(chosen)
    drawn = iter(ChunkedSampler(few))
    next(drawn)
    wait_until(lambda: len(read) >= COUNT)
    assert len(list(drawn)) == len(chosen) - 1
    wait_until(lambda: not threads_named("wids-prefetch"))
    assert sum(read) < COUNT / 2, read  # today, of a view: all of all twelve


def test_few_fields_read_no_whole_files(tmp_path, read):
    """A thousandth of each file is asked for."""
    path = str(
        shards.write(
            tmp_path / "a.tar",
            shards.pack([(f"{k:04d}.{end}", b"x" * size) for k in range(ROWS) for end, size in [("cls", 1), ("jpg", 200_000)]]),
        )
    )
    dataset = ShardListDataset([(path, ROWS)], transformations=[], fields=(".cls",))
    drawn = iter(ChunkedSampler(dataset))
    next(drawn)
    with contextlib.suppress(AssertionError):  # nothing need be asked for
        wait_until(lambda: len(read) > 0)
    _ = list(drawn)
    wait_until(lambda: not threads_named("wids-prefetch"))
    assert sum(read) < 0.5, read  # today: all of it


def test_files_far_away_are_not_judged_by_downloads_of_other_sources():
    """They have no byte ranges that would be read instead; a mixture with a limited, remote source reads them ahead."""
    far, remote = AheadLimits(None, 1 << 40), AheadLimits(None, 100)
    visits = [[Visit(k, 1000, 1, k) for k in range(3)], [Visit(150 + 50 * k, 199 + 50 * k, 0, k) for k in range(20)]]
    window = PrefetchWindow(
        iter(visits),
        [far, remote],
        size_of=lambda _: 10,
        needs_download=lambda _: True,
        slots_of=lambda _: 1,
        connections=5,
        has_early_reads=True,  # as `Prefetcher._has_early_reads` says: all *limited* sources are read early
    )
    window.advance(0, rate=0.0, read_before=0)
    begun = []
    while (visit := window.take()) is not None:
        begun.append((visit.dataset, visit.shard))
    assert begun == [(1, 0), (1, 1), (1, 2), (0, 0), (0, 1)]
    for shard in range(2):  # a file is read in no time; the downloads go on
        window.end_download((0, shard), is_complete=True)
        window.report((0, shard), is_present=True)
    window.advance(140, rate=0.0, read_before=0)
    visit = window.take()
    assert (visit.dataset, visit.shard) == (0, 2)  # today: 3, of which half is unread at 280, when a download would be here


def test_the_end_of_a_process_waits_once_for_all_that_is_stuck(monkeypatch):
    """As long for four prefetchers whose file system hangs as for one."""
    monkeypatch.setattr(background, "_live", weakref.WeakKeyDictionary())
    waited = []

    class Stuck:
        def end(self, *, is_finished):
            """Change nothing."""

        def join(self, seconds=None):
            """Wait in vain."""
            waited.append(seconds)
            time.sleep(seconds)

    stuck = [Stuck() for _ in range(4)]
    for each in stuck:
        background._live[each] = os.getpid()
    monkeypatch.setattr(background, "_END_SECONDS", 0.3)
    begin = time.monotonic()
    background._end_all()
    assert time.monotonic() - begin < 0.8, waited  # today: 4 x 0.3

"""Threads that download, when a process ends."""

import multiprocessing
import os
import types
import weakref

import pytest

import wids
from tests.support import cache_shards as shards
from tests.support.cache_dirs import files_in
from tests.support.children import PATIENCE_SECONDS
from tests.support.clocks import wait_until
from wids.core.files import background

_held = []


def test_the_end_of_a_process_waits_once_for_all_that_is_stuck(monkeypatch):
    """As long for four prefetchers whose file system hangs as for one."""
    monkeypatch.setattr(background, "_live", weakref.WeakKeyDictionary())
    monkeypatch.setattr(background, "time", types.SimpleNamespace(monotonic=lambda: sum(waited)))
    waited = []

    class Stuck:
        def end(self, *, is_finished):
            """Change nothing."""

        def join(self, seconds=None):
            """Wait in vain."""
            waited.append(seconds)

    stuck = [Stuck() for _ in range(4)]
    for each in stuck:
        background._live[each] = os.getpid()
    background._end_all()
    assert waited == [background.END_SECONDS, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_process_that_ends_leaves_no_download(server, tmp_path, method):
    """A process of multiprocessing that ends while shards come ahead leaves neither part files nor plans."""
    index = shards.serve_shards(server, 4)
    gate = server.gate()
    server.faults["/a.tar"] = [gate]
    context = multiprocessing.get_context(method)
    process = context.Process(target=begin_and_end, args=(index, str(tmp_path / "cache")))
    process.start()
    process.join(PATIENCE_SECONDS)
    assert process.exitcode == 0
    assert not [name for name in files_in(tmp_path / "cache") if name.endswith((".part", ".plan"))]


def begin_and_end(index, cache_dir):
    """Begin an epoch, and end while its shards come."""
    dataset = wids.ShardListDataset(index, cache_dir=cache_dir)
    drawn = iter(wids.ChunkedSampler(dataset, shuffle=False))
    next(drawn)
    _held.append(drawn)
    wait_until(lambda: os.path.isdir(cache_dir) and any(n.endswith(".part") for n in files_in(cache_dir)))

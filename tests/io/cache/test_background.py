"""Threads that download, when a process ends."""

import os
import time
import weakref

from wids.cache import background


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
    assert time.monotonic() - begin < 0.8, waited

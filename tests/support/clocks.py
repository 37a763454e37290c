"""How long tests wait, other clocks and limits, and time as retries see it: without waiting."""

import contextlib
import queue
import threading
import time

from wids.core.cache import shard_download, space, usage_hints
from wids.core.files import background
from wids.core.prefetch import prefetcher as prefetch
from wids.core.readers import arrivals, provider, range_provider
from wids.testing.promises import PATIENCE_SECONDS, skip_waits

__all__ = [
    "PATIENCE_SECONDS",
    "PrefetchClock",
    "join_threads",
    "set_limits",
    "skip_waits",
    "threads_named",
    "wait_until",
]


def wait_until(condition):
    """Wait for something that another thread or process does; a test that failed ends here."""
    end, pause = time.monotonic() + PATIENCE_SECONDS, threading.Event()
    while not condition():
        assert time.monotonic() < end, "it never came"
        pause.wait(0.005)


def set_limits(owner, patch=setattr, **changes):
    """Put other clocks and limits into force: ``limits`` of a class, or ``LIMITS`` of a module, with changed fields.

    Tests have a fixture of this name, which puts them back.

    Args:
        owner: the class or module that has them.
        patch: a monkeypatch's ``setattr``; in a child process the plain one does.
        changes: fields of them; there are no others.
    """
    name = "limits" if isinstance(owner, type) else "LIMITS"
    patch(owner, name, getattr(owner, name)._replace(**changes))


class PrefetchClock:
    """The time of caches and of their prefetchers in this process, which stands still but for `move`.

    Args:
        patch: a monkeypatch's ``setattr``.
    """

    def __init__(self, patch):
        self._now, self._looks, self._looked = time.time(), 0, threading.Condition()
        for module in (arrivals, prefetch, provider, range_provider, shard_download, space, usage_hints):
            patch(module, "time", self)
        patch(prefetch.Prefetcher, "_wait", lambda prefetcher, _: self._wait(prefetcher))

    def time(self):
        """Seconds since 1970."""
        return self._now

    monotonic = perf_counter = time

    def move(self, seconds):
        """Let time pass; when this returns, all downloads have ended that are due by then."""
        self._now += seconds
        while True:
            join_threads("wids-prefetch-one", "wids-download")
            live = [one for one in list(background._live) if isinstance(one, prefetch.Prefetcher)]
            if all(self._looks_once(one) for one in live if one._thread.is_alive()):
                return

    def _looks_once(self, prefetcher):
        """Have it look at what is due: whether there was nothing."""
        seen = self._looks
        prefetcher._woken.put(None)
        with self._looked:
            has_looked = self._looked.wait_for(
                lambda: self._looks > seen or not prefetcher._thread.is_alive(), PATIENCE_SECONDS
            )
        assert has_looked
        return prefetcher._woken.empty() and prefetcher._ended.empty() and not prefetcher._downloading

    def _wait(self, prefetcher):
        """In a prefetcher's thread, which has looked at what is due: wait until it is to look again."""
        with self._looked:
            self._looks += 1
            self._looked.notify_all()
        prefetcher._woken.get()
        with contextlib.suppress(queue.Empty):
            while True:  # all that woke it meanwhile
                prefetcher._woken.get_nowait()


def threads_named(prefix):
    """The threads of this process whose names begin so; with one of several prefixes."""
    return [thread for thread in threading.enumerate() if thread.name.startswith(prefix)]


def join_threads(*names, but=()):
    """Wait for the end of this process's threads whose names begin so, those too that are about to start.

    Args:
        names: beginnings of names.
        but: threads that go on.
    """
    for thread in threads_named(names):
        if thread not in but:
            # Nobody can join one that `threading.enumerate` has, and that has not started yet.
            wait_until(lambda thread=thread: thread.is_alive() or thread not in threading.enumerate())
            thread.join(PATIENCE_SECONDS)

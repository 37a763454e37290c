"""What tests of the cache run in processes of their own, and how they start and end them."""

import logging
import os
import signal

from tests.support.cache_shards import texts
from tests.support.clocks import PATIENCE_SECONDS, set_limits, skip_waits
from wids.core.files import locks
from wids.core.readers.provider import AutoProvider
from wids.core.shard import Shard
from wids.testing.promises import call_in_child, child

__all__ = [
    "PATIENCE_SECONDS",
    "call_in_child",
    "child",
    "fetch_saying_when_waiting",
    "fetch_texts",
    "kill",
    "receive",
    "stop_here",
]


def receive(connection):
    """The next message, which must come."""
    assert connection.poll(PATIENCE_SECONDS), "nothing came from the process"
    return connection.recv()


def stop_here(connection):
    """Tell the test that the point is reached, and go no further."""
    connection.send("here")
    while True:
        signal.pause()


def kill(process):
    """End it with SIGKILL, which nothing can catch."""
    os.kill(process.pid, signal.SIGKILL)
    process.join(PATIENCE_SECONDS)
    assert process.exitcode == -signal.SIGKILL


def fetch_texts(url, cache_dir):
    """Member ``.txt`` of all samples of a remote shard, fetched as a process that knows nothing else would."""
    return texts(AutoProvider(cache_dir=cache_dir).open(Shard(url=url, nsamples=None)))


def fetch_saying_when_waiting(connection, url, cache_dir):
    """Send "waiting" if the shard's lock is held by another, in the end `fetch_texts`."""

    class Handler(logging.Handler):
        def emit(self, record):
            if "still waiting" in record.getMessage():
                connection.send("waiting")
                set_limits(locks, report_seconds=1e9)

    set_limits(locks, report_seconds=0.0)
    skip_waits()
    handler = Handler()
    locks.logger.addHandler(handler)
    try:
        connection.send(fetch_texts(url, cache_dir))
    finally:
        locks.logger.removeHandler(handler)
        connection.close()

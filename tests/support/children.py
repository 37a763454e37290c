"""What tests of the cache run in processes of their own, and how they start and end them."""

import contextlib
import logging
import multiprocessing
import os
import signal

from tests.support.cache_shards import texts
from tests.support.clocks import PATIENCE_SECONDS, set_limits, skip_waits
from wids.files import locks
from wids.index.spec import Shard
from wids.readers.provider import AutoProvider


@contextlib.contextmanager
def child(function, *args, method="fork"):
    """Run ``function(connection, *args)`` in a process; gives (process, connection), and ends it."""
    context = multiprocessing.get_context(method)
    ours, its = context.Pipe()
    process = context.Process(target=function, args=(its, *args))
    process.start()
    its.close()
    try:
        yield process, ours
    finally:
        if process.is_alive():
            process.kill()
        process.join(PATIENCE_SECONDS)
        process.close()
        ours.close()


def call_in_child(function, *args, method="fork"):
    """What ``function(*args)`` returns in a process of its own; its exception is raised here."""
    with child(_answer, function, args, method=method) as (process, connection):
        if not connection.poll(PATIENCE_SECONDS):
            os.kill(process.pid, signal.SIGABRT)  # faulthandler, which pytest enables, says where it stands
        answer = receive(connection)
        process.join(PATIENCE_SECONDS)
    if isinstance(answer, Exception):
        raise answer
    return answer


def _answer(connection, function, args):
    try:
        answer = function(*args)
    except Exception as error:
        answer = error
    connection.send(answer)
    connection.close()


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

"""How long tests wait, and time as the retries of `wids.transport.retrying` see it, without waiting."""

import threading
import time

from wids.transport import retrying
from wids.transport.failures import CancelledTransferError

# How long a test waits for something that another thread or process does; only a test that failed gets there. It is
# long, for the machine may be busy, and shorter than the time-out of a test, which ends all tests of its process.
PATIENCE_SECONDS = 200


def wait_until(condition):
    """Wait for something that another thread or process does; a test that failed ends here."""
    end, pause = time.monotonic() + PATIENCE_SECONDS, threading.Event()
    while not condition():
        assert time.monotonic() < end, "it never came"
        pause.wait(0.005)


def skip_waits(patch=setattr):
    """Waits between tries pass at once, nothing else takes time, and no server has answered yet.

    Args:
        patch: a monkeypatch's ``setattr``; in a child process the plain one does.

    Returns:
        The list of the waits, in seconds, in order.
    """
    clock, waits = threading.local(), []

    def pause(seconds, is_cancelled):
        if is_cancelled():
            raise CancelledTransferError
        waits.append(seconds)
        clock.seconds = now() + seconds

    def now():
        return getattr(clock, "seconds", 0.0)

    patch(retrying, "pause", pause)
    patch(retrying, "now", now)
    patch(retrying, "_answered", set())
    patch(retrying, "spread", lambda: 1.0)
    return waits


def threads_named(prefix):
    """The threads of this process whose names begin so; with one of several prefixes."""
    return [thread for thread in threading.enumerate() if thread.name.startswith(prefix)]

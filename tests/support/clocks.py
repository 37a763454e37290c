"""How long tests wait, other clocks and limits, and time as retries see it: without waiting."""

import threading
import time
from dataclasses import replace

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


def set_limits(module, patch=setattr, **changes):
    """Put other clocks and limits into force: ``module.LIMITS`` with these fields changed.

    Tests have a fixture of this name, which puts them back.

    Args:
        module: the one that has them.
        patch: a monkeypatch's ``setattr``; in a child process the plain one does.
        changes: fields of ``module.LIMITS``; it has no others.
    """
    patch(module, "LIMITS", replace(module.LIMITS, **changes))


def threads_named(prefix):
    """The threads of this process whose names begin so; with one of several prefixes."""
    return [thread for thread in threading.enumerate() if thread.name.startswith(prefix)]

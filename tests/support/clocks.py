"""How long tests wait, other clocks and limits, and time as retries see it: without waiting."""

import threading
import time
from dataclasses import replace

from wids.testing.promises import PATIENCE_SECONDS, skip_waits

__all__ = ["PATIENCE_SECONDS", "set_limits", "skip_waits", "threads_named", "wait_until"]


def wait_until(condition):
    """Wait for something that another thread or process does; a test that failed ends here."""
    end, pause = time.monotonic() + PATIENCE_SECONDS, threading.Event()
    while not condition():
        assert time.monotonic() < end, "it never came"
        pause.wait(0.005)


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

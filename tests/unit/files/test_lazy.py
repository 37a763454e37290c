"""Attributes that are computed once for each object."""

import threading

from tests.support.children import call_in_child
from wids.files.lazy import Lazy


class Numbers:
    """Counts how often its attribute is computed."""

    def __init__(self, compute):
        self.compute, self.count = compute, 0

    @Lazy
    def value(self):
        """What `compute` gives."""
        self.count += 1
        return self.compute()


def test_a_value_is_computed_once():
    """It may be None; the class has the description."""
    for found in (7, None):
        one = Numbers(lambda found=found: found)
        assert (one.value, one.value, one.count) == (found, found, 1)
    assert Numbers.value.__doc__ == "What `compute` gives."


def test_a_fork_while_another_thread_computes():
    """The child computes its own."""
    begun, done = threading.Event(), threading.Event()

    def wait():
        begun.set()
        done.wait()

    thread = threading.Thread(target=lambda: Numbers(wait).value)
    thread.start()
    begun.wait()
    try:
        assert call_in_child(lambda: Numbers(lambda: 5).value) == 5
    finally:
        done.set()
        thread.join()

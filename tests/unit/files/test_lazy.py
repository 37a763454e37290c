"""Attributes that are computed, once for each object or on each access."""

import copy
import threading

from tests.support.children import call_in_child
from wids.core.files.lazy import Computed, Lazy


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


class Counted:
    """Has an attribute that follows from another."""

    def __init__(self, count):
        self.count = count

    @Computed
    def double(self):
        """Twice as many."""
        return 2 * self.count


def test_an_attribute_that_is_computed_on_each_access():
    """Until a program assigns its own to the object, which a copy has, too."""
    one, other = Counted(2), Counted(3)
    assert (one.double, Counted.double.__doc__) == (4, "Twice as many.")
    one.count = 5
    assert one.double == 10
    one.double = "mine"
    assert (one.double, copy.copy(one).double, other.double) == ("mine", "mine", 6)
    del one.double
    assert one.double == 10

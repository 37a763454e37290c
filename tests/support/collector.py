"""The collector, forced: what a program has abandoned is freed just before a chosen line of one of our threads."""

import contextlib
import queue
import sys
import threading


class Collector:
    """Frees things in threads whose names begin in a way, at lines of some modules and of `threading` and `queue`.

    Args:
        name: how the threads' names begin.
        modules: of ours.

    Attributes:
        places: (file, line) of the steps that such threads have come to, in order of the first time.
        at: before which of these it comes; None: never. abandoned: what it frees then.
        stock: of which it frees one thing at each step that is new.
        steps: how many there were.
        errors: what finalizers have raised.
    """

    def __init__(self, name, *modules):
        self._name, self._files = name, {module.__file__ for module in (threading, queue, *modules)}
        self.places, self.at, self.abandoned, self.stock, self.steps, self.errors = {}, None, [], [], 0, []

    @contextlib.contextmanager
    def watching(self):
        """In this block, it watches threads that are started."""
        before, sys.unraisablehook = sys.unraisablehook, lambda found: self.errors.append(found.exc_value)
        threading.settrace(self._enter)
        try:
            yield self
        finally:
            threading.settrace(None)
            sys.unraisablehook = before

    def _enter(self, frame, _event, _argument):
        thread = threading._active.get(threading.get_ident())
        is_watched = thread is not None and thread.name.startswith(self._name)
        return self._step if is_watched and frame.f_code.co_filename in self._files else None

    def _step(self, frame, event, _):
        if event == "line":
            self.steps += 1
            place = frame.f_code.co_filename, frame.f_lineno
            if self.stock and place not in self.places:
                self.stock.pop()
            self.places[place] = None
            if place == self.at:
                self.abandoned.clear()
        return self._step


def collect_at_each_place(collector, abandon, wait, *, most=1500):
    """Have something abandoned, and freed at each place in turn that the threads come to.

    Args:
        collector: it watches.
        abandon: makes a thing whose threads then run, and returns it.
        wait: returns once what was freed has come to its end.
        most: steps after which the threads do not come to a place again.

    Returns:
        At how many places it was freed.
    """
    count = 0
    places = [None]
    for place in places:  # which become more
        thing = abandon()
        collector.at, first = place, collector.steps
        collector.abandoned.append(thing)
        del thing
        while collector.abandoned and collector.steps - first < most:
            threading.Event().wait(0.001)
        count += not collector.abandoned
        collector.abandoned.clear()
        wait()
        assert collector.errors == []
        places += [each for each in list(collector.places) if each not in places]
    return count

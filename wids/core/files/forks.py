"""Resources that a forked child inherits and must not use unchanged: the only module that handles forks.

A fork copies one thread, all memory and all descriptors. So four things are said here, and nowhere else:

- ``with lock:`` a fork waits while this is locked. A lock that another thread holds in that moment, the import lock of
  a module say, is never released in the child, and a wait for it never ends. It goes around what takes such locks, and
  around steps that a child must not find half done; it is short. A thread may fork under it, or take it twice.
- `wait_for`: a fork waits for another lock, which a client of others is used under that no child may find at work.
- `call_in_child`: a module that keeps state about this process says which function resets it in a child.
- `reset_in_child`: an object that holds a lock, or a descriptor that a child's copy would keep locked, is reset there.
  It is remembered weakly.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Inherited(Protocol):
    """An object that a forked child has a copy of."""

    def start_child(self) -> None:
        """In a forked child, in its only thread: close or reset the parent's resources."""


lock: threading.RLock = threading.RLock()
_functions: list[Callable[[], None]] = []
_waited: list[threading.Lock] = []


class _Weakly:
    """Objects as long as they live.

    Those that are gone are dropped when the list has doubled: a `WeakSet` calls a function for each, and each shard
    that is opened is one.
    """

    def __init__(self) -> None:
        self._references: list[weakref.ref[Inherited]] = []
        self._max = _MIN_SWEPT

    def add(self, thing: Inherited) -> None:
        self._references.append(weakref.ref(thing))
        if len(self._references) > self._max:
            self._references = [each for each in self._references if each() is not None]
            self._max = max(_MIN_SWEPT, 2 * len(self._references))

    def __iter__(self) -> Iterator[Inherited]:
        return iter([thing for each in self._references if (thing := each()) is not None])


_MIN_SWEPT = 1024
_objects = _Weakly()


def wait_for(held: threading.Lock) -> None:
    """Let each fork wait until a lock is free, which it then is in the child; for a module's own lock.

    Who holds it takes no other lock of wids. A fork may wait as long as a server takes to answer.
    """
    with lock:
        _waited.append(held)


def call_in_child(function: Callable[[], None]) -> None:
    """Call ``function`` in each forked child, in its only thread."""
    _functions.append(function)


def reset_in_child(thing: Inherited) -> None:
    """Call ``thing.start_child()`` in each forked child, as long as the object lives."""
    with lock:
        _objects.add(thing)


def _prepare() -> None:
    for held in _waited:  # before `lock`, which others need meanwhile
        held.acquire()
    lock.acquire()


def _resume() -> None:
    lock.release()
    for held in _waited:
        held.release()


def _start_child() -> None:
    _resume()
    for function in _functions:
        function()
    for thing in _objects:
        thing.start_child()


if hasattr(os, "register_at_fork"):  # where there are forks
    os.register_at_fork(before=_prepare, after_in_parent=_resume, after_in_child=_start_child)

"""Two actors that take turns just before a call that changes a file or a lock, so that each order comes about for sure.

Besides, `interrupted`: nobody but one, to whom a signal comes just after a call, as its handler raises then.

Rules: an actor is a function, in a thread of its own; one of the two runs at a time. Its turn ends at the call before
which it is to be stopped, whenever it sleeps (all waits for locks and for room are sleeps between tries), and when it
has ended. One that is to be killed is a process, with an actor here in its place; it is forked before anything runs, so
that it has no copies of descriptors that the other one locked.
"""

import builtins
import contextlib
import fcntl
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback

import pytest

from tests.support.children import PATIENCE_SECONDS, child
from wids.core.files import system
from wids.core.tables import table as tables

# What changes a file or a lock. Between two of these the disk is the same.
_CALLS = ("open", "replace", "unlink", "ftruncate", "pwrite", "utime", "fsync", "mkdir")
# After which of these a signal comes: the same, and whatever makes, opens, names, looks at or deletes a file.
_INTERRUPTED = {
    os: (
        *("open", "close", "replace", "rename", "link", "unlink", "mkdir", "rmdir", "fstat", "ftruncate", "pwrite"),
        *("write", "utime", "fsync", "chmod", "fchmod", "dup2", "stat", "lstat"),
    ),
    builtins: ("open",),
    fcntl: ("flock",),
    tempfile: ("mkdtemp",),
    system: ("pwrite",),
}
# So often does nobody wait who will ever go on.
_MOST_NAPS = 2000

_acting = threading.local()
_sleep, _close = time.sleep, os.close


class Stuck(BaseException):
    """The actors wait for each other; no error that anything but a test would handle."""


def watch_calls(monkeypatch):
    """Let actors be stopped at their calls; nothing changes for other threads, but that no disk is waited for."""
    for name in _CALLS:
        monkeypatch.setattr(os, name, _watched(name, getattr(os, name)))
    monkeypatch.setattr(os, "fsync", _watched("fsync", lambda fd: None))
    monkeypatch.setattr(system, "pwrite", os.pwrite)
    monkeypatch.setattr(fcntl, "flock", _watched("flock", fcntl.flock))
    monkeypatch.setattr(time, "sleep", nap)


def _watched(name, real):
    def call(*args, **options):
        if hasattr(_acting, "actor") and (name != "open" or _is_a_step(*args)):
            arrive(name, lambda: real(args[0], bytes(args[1])[: len(args[1]) // 2], args[2]))
        return real(*args, **options)

    return call


def _is_a_step(path, flags, *_):
    """Whether a file is made, opened to be locked or written, or a table is read, which another one may replace."""
    return flags & (os.O_CREAT | os.O_RDWR) or path.endswith(tables.SUFFIX)


@contextlib.contextmanager
def interrupted(call):
    """In this block, KeyboardInterrupt is raised when call number ``call`` of this thread has returned, and once.

    Gives a list: the names of the calls so far. What the call has opened is closed, as nobody has seen it: a program
    loses such a descriptor, unless it belongs to a file object.
    """
    calls, thread = [], threading.get_ident()

    def watched(name, real):
        def then_interrupt(*args, **options):
            result = real(*args, **options)
            # If it is interrupted then, shutil.rmtree closes again what it has closed: no code of ours can help that.
            is_closed_again = name == "close" and sys._getframe(1).f_code.co_filename == shutil.__file__
            if threading.get_ident() == thread and not is_closed_again:
                calls.append(name)
                if len(calls) == call:
                    if name == "open":
                        _close(result) if isinstance(result, int) else result.close()
                    raise KeyboardInterrupt
            return result

        return then_interrupt

    with pytest.MonkeyPatch.context() as patch:
        for module, names in _INTERRUPTED.items():
            for name in names:
                patch.setattr(module, name, watched(name, getattr(module, name)))
        yield calls


def arrive(name, tear=None):
    """The actor in this thread, if any, is about to do ``name``; ``tear`` does half of it, if it is a write."""
    actor = getattr(_acting, "actor", None)
    if actor is not None:
        actor.arrive(name, tear)


def nap(seconds):
    """As `time.sleep`; an actor ends its turn instead."""
    actor = getattr(_acting, "actor", None)
    if actor is None:
        _sleep(seconds)
    else:
        actor.nap()


class Actor:
    """One of two.

    Args:
        name: for messages.
        act: what it does.
        stop_at: the number of the call before which its first turn ends, from 1; 0: it is not stopped.
        watch: called before each call.

    Attributes:
        calls: names of the calls so far.
    """

    other = None

    def __init__(self, name, act, *, stop_at=0, watch=lambda: None):
        self.name, self.act, self.stop_at, self.watch = name, act, stop_at, watch
        self.calls = []
        self.naps = 0
        self.is_done = False
        self.error = None
        self._turn = threading.Semaphore(0)

    def arrive(self, name, _):
        """It is about to make a call."""
        self.calls.append(name)
        self.watch()
        if len(self.calls) == self.stop_at:
            self.pass_turn()

    def nap(self):
        """It waits for something, which is the other's if that has not ended."""
        self.naps += 1
        if self.naps > _MOST_NAPS:
            raise Stuck(f"{self.name} waits for ever")
        if self.other.is_done:
            _sleep(0.001)
        else:
            self.pass_turn()

    def pass_turn(self):
        """Let the other one run until its turn ends."""
        if not self.other.is_done:
            self.other.begin_turn()
            self._await_turn()

    def begin_turn(self):
        """It may go on."""
        self._turn.release()

    def _await_turn(self):
        if not self._turn.acquire(timeout=PATIENCE_SECONDS):
            raise Stuck(f"{self.name} waits for its turn")

    def run(self):
        """Run to the end, turn by turn; for a thread of its own."""
        _acting.actor = self
        try:
            self._await_turn()
            self.act()
        except BaseException as error:  # raised again by `play`
            self.error = error
        finally:
            self.is_done = True
            if not self.other.is_done:
                self.other.begin_turn()


def play(first, second):
    """Run two actors to their ends, the first one having the first turn.

    Raises:
        AssertionError: one of them failed, or does not end.
    """
    first.other, second.other = second, first
    threads = [threading.Thread(target=actor.run, daemon=True) for actor in (first, second)]
    for thread in threads:
        thread.start()
    first.begin_turn()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert not any(thread.is_alive() for thread in threads), f"{first.name} and {second.name} do not end"
    for actor in (first, second):
        if actor.error is not None:
            raise AssertionError(f"{actor.name}, after {actor.calls}: {actor.error!r}") from actor.error


@contextlib.contextmanager
def doomed(act, call):
    """A process that waits to do ``act`` and is killed just before its call number ``call``; a write is left torn.

    Gives a function that runs it to its end, and returns how many calls it had made, or None if it was killed.
    """
    with child(_live_to_call, act, call) as (process, connection):
        yield lambda: _let_live(process, connection)


def _let_live(process, connection):
    try:
        while True:
            connection.send("go")
            assert connection.poll(PATIENCE_SECONDS), "the process does not end"
            answer = connection.recv()
            if answer != "nap":
                assert isinstance(answer, int), f"the process failed:\n{answer}"
                return answer
            time.sleep(0.001)  # a nap of the actor that stands for it
    except (EOFError, ConnectionResetError):
        process.join(PATIENCE_SECONDS)  # its locks are free once it has gone
        assert process.exitcode == -signal.SIGKILL
        return None


def _live_to_call(connection, act, call):
    assert connection.recv() == "go"
    _acting.actor = _Mortal(connection, call)
    try:
        act()
        answer = _acting.actor.count
    except BaseException:
        answer = traceback.format_exc()
    connection.send(answer)
    connection.close()


class _Mortal:
    """What an actor is in the process that is to be killed."""

    def __init__(self, connection, call):
        self.connection, self.call = connection, call
        self.count = 0

    def arrive(self, name, tear):
        self.count += 1
        if self.count == self.call:
            if name == "pwrite":
                tear()
            os.kill(os.getpid(), signal.SIGKILL)

    def nap(self):
        self.connection.send("nap")
        self.connection.recv()

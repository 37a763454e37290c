"""The error of a suite for a broken promise, and the tools of its tests: time without waiting, other processes."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from wids.core.files import finalizers
from wids.core.transport import retrying
from wids.core.transport.failures import CancelledTransferError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

# How long a test waits for something that another thread or process does; only a test that failed gets there. It is
# long, for the machine may be busy, and shorter than the time-out of a test, which ends all tests of its process.
PATIENCE_SECONDS = 200
_MAX_SHOWN = 300


def check(is_kept: bool, promise: str, found: object = None) -> None:  # noqa: FBT001 - as `assert` takes it
    """Fail with the words of a promise and the result, unless the promise is kept."""
    if not is_kept:
        raise AssertionError(f"broken promise: {promise}" + _shown(found))


@contextlib.contextmanager
def promised(promise: str) -> Iterator[None]:
    """Fail with the words of a promise if an exception is raised in the block."""
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"broken promise: {promise}{_shown(error)}") from error


@contextlib.contextmanager
def refused(
    kinds: type[Exception] | tuple[type[Exception], ...], promise: str, *, naming: str = ""
) -> Iterator[list[Exception]]:
    """Fail with the words of a promise unless the block raises such an exception; gives a list that will have it.

    Args:
        kinds: classes of exceptions.
        promise: in words.
        naming: what the message of the exception has to say.
    """
    caught: list[Exception] = []
    try:
        yield caught
    except AssertionError:
        raise
    except kinds as error:
        caught.append(error)
        check(naming in str(error), f"{promise}, in a message that says {naming!r}", error)
    except Exception as error:
        raise AssertionError(f"broken promise: {promise}{_shown(error)}") from error
    else:
        check(is_kept=False, promise=promise, found="no error")


def _shown(found: object) -> str:
    if found is None:
        return ""
    words = f"{type(found).__name__}: {found}" if isinstance(found, BaseException) else repr(found)
    return f"; found {words[:_MAX_SHOWN]}"


def skip_waits(patch: Callable[..., None] = setattr) -> list[float]:
    """Waits between tries pass at once, nothing else takes time, and no server has answered yet.

    Args:
        patch: a monkeypatch's ``setattr``; in a child process the plain one does.

    Returns:
        The list of the waits, in seconds, in order.
    """
    clock, waits = threading.local(), []

    def pause(seconds: float, is_cancelled: Callable[[], bool]) -> None:
        if is_cancelled():
            raise CancelledTransferError
        waits.append(seconds)
        clock.seconds = now() + seconds

    def now() -> float:
        return getattr(clock, "seconds", 0.0)

    patch(retrying, "pause", pause)
    patch(retrying, "now", now)
    patch(retrying, "_answered", set())
    patch(retrying, "spread", lambda: 1.0)
    return waits


def files_open_in(directory: str | os.PathLike[str]) -> list[str]:
    """The files below ``directory`` that this process has open, once for each descriptor."""
    finalizers.do_left()  # a file that was freed while another thread held the lock of forks is closed here
    found = []
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            found.append(_path_of(int(name)))
    return [path for path in found if path.startswith(f"{os.fspath(directory)}/")]


def _path_of(fd: int) -> str:
    if sys.platform == "darwin":
        return os.fsdecode(fcntl.fcntl(fd, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
    return os.readlink(f"/proc/self/fd/{fd}")


@contextlib.contextmanager
def child(function: Callable[..., Any], *args: Any, method: str = "fork") -> Iterator[tuple[BaseProcess, Connection]]:
    """Run ``function(connection, *args)`` in a process; gives (process, connection), and ends it."""
    context: Any = multiprocessing.get_context(method)
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


def call_in_child(function: Callable[..., Any], *args: Any, method: str = "fork") -> Any:
    """Run ``function(*args)`` in a process of its own and return its result; its exception is raised here."""
    with child(_answer, function, args, method=method) as (process, connection):
        if not connection.poll(PATIENCE_SECONDS):
            if process.pid is not None:
                os.kill(process.pid, signal.SIGABRT)  # faulthandler, which pytest enables, says where it stands
            raise AssertionError("nothing came from the process")
        answer = connection.recv()
        process.join(PATIENCE_SECONDS)
    if isinstance(answer, Exception):
        raise answer
    return answer


def _answer(connection: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        answer = function(*args)
    except Exception as error:  # noqa: BLE001 - it is raised where the answer is taken
        answer = error
    connection.send(answer)
    connection.close()

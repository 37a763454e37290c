"""Running one function on many tasks: in threads, in processes, on a Ray cluster.

Rules: an engine gives (number of the task, what the function returned) as they finish, in any order. When its iterator
is closed, tasks that have not begun never do, and the others are told to end and waited for, so that nothing is
written afterwards. The function takes the task and ``is_cancelled``; it and the tasks can be pickled.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import queue
import signal
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlsplit

from wids.errors import WidsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    IsCancelled = Callable[[], bool]

T = TypeVar("T")
R = TypeVar("R")

_POLL_SECONDS, _END_SECONDS, _CONNECT_SECONDS = 0.5, 10.0, 10.0
_GRPC_PORT = 443  # where a client goes that is told no other
_ADDRESSES = "write it like 10.0.0.1:6379, ray://10.0.0.1:10001 or auto"


class Engine(Protocol):
    """One way to run things."""

    def __call__(
        self, function: Callable[[T, IsCancelled], R], tasks: Sequence[T], *, jobs: int
    ) -> Iterator[tuple[int, R]]:
        """Run ``function`` on all tasks, ``jobs`` at a time."""


def run_in_threads(
    function: Callable[[T, IsCancelled], R], tasks: Sequence[T], *, jobs: int
) -> Iterator[tuple[int, R]]:
    """In threads of this process: for what waits for a network or a disk."""
    waiting = deque(enumerate(tasks))
    answers: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()
    cancelled = threading.Event()
    ends: list[threading.Event] = []

    def work(end: threading.Event) -> None:
        try:
            while not cancelled.is_set():
                with contextlib.suppress(IndexError):
                    k, task = waiting.popleft()
                    answers.put((k, *_call(function, task, cancelled.is_set)))
                    continue
                return
        finally:
            end.set()

    try:
        for _ in range(min(jobs, len(tasks))):
            ends.append(threading.Event())
            # Not those of concurrent.futures: an interpreter that ends waits for them, however long they take.
            threading.Thread(target=work, args=(ends[-1],), daemon=True, name="wids-index").start()
        for _ in range(len(tasks)):
            k, answer, error = _take(answers)
            if error is not None:
                raise error
            yield k, answer
    finally:
        cancelled.set()
        until = time.monotonic() + _END_SECONDS
        for end in ends:
            end.wait(max(until - time.monotonic(), 0.0))


def _call(function: Callable[..., R], task: Any, is_cancelled: IsCancelled) -> tuple[R | None, BaseException | None]:
    try:
        return function(task, is_cancelled), None
    except BaseException as error:  # noqa: BLE001 - raised again where the answers are taken
        return None, error


def _take(answers: queue.SimpleQueue[T]) -> T:
    """The next answer; waiting in short pieces, so that Ctrl-C comes through on every system."""
    while True:
        with contextlib.suppress(queue.Empty):
            return answers.get(timeout=_POLL_SECONDS)


_cancelled_by_parent: Any = None


def _begin(cancelled: Any) -> None:
    """In each process, first."""
    global _cancelled_by_parent  # noqa: PLW0603 - one for each process, given by whoever started it
    _cancelled_by_parent = cancelled
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed ends nobody, and a process waits for its next task for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _call_in_process(function: Callable[[T, IsCancelled], R], task: T) -> R:
    return function(task, _cancelled_by_parent.is_set)


def run_in_processes(
    function: Callable[[T, IsCancelled], R], tasks: Sequence[T], *, jobs: int
) -> Iterator[tuple[int, R]]:
    """In processes of this machine: for what the processor does."""
    from concurrent import futures

    context = multiprocessing.get_context("spawn")  # a fork would copy other threads' locks
    cancelled = context.Event()
    pool = futures.ProcessPoolExecutor(
        min(jobs, len(tasks)) or 1, mp_context=context, initializer=_begin, initargs=(cancelled,)
    )
    try:
        under_way = {pool.submit(_call_in_process, function, task): k for k, task in enumerate(tasks)}
        while under_way:
            done, _ = futures.wait(under_way, timeout=_POLL_SECONDS, return_when=futures.FIRST_COMPLETED)
            for future in done:
                try:
                    yield under_way.pop(future), future.result()
                except futures.BrokenExecutor as error:
                    raise WidsError(f"a process ended in its work ({error}); was it killed for its memory?") from error
    finally:
        cancelled.set()
        pool.shutdown(wait=True, cancel_futures=True)


def on_ray(address: str | None = None) -> Engine:
    """The engine that runs tasks on a Ray cluster.

    Args:
        address: ``ray.init``'s: ``auto`` for the cluster this machine belongs to, ``ray://host:port``, or None:
            $RAY_ADDRESS, else a cluster of this machine alone.

    Raises:
        WidsError: ray is not installed, or the cluster cannot be reached.
    """

    def run(function: Callable[[T, IsCancelled], R], tasks: Sequence[T], *, jobs: int) -> Iterator[tuple[int, R]]:
        ray, is_ours = _connect(address)
        # A module's function is sent by name: each node needs wids. Its shards must be within reach of each, too.
        remote = ray.remote(num_cpus=1, max_retries=2)(_call_on_node)
        waiting = deque(enumerate(tasks))
        under_way: dict[Any, int] = {}
        try:
            while waiting or under_way:
                while waiting and len(under_way) < jobs:
                    k, task = waiting.popleft()
                    under_way[remote.remote(function, task)] = k
                done, _ = ray.wait(list(under_way), timeout=_POLL_SECONDS)
                for reference in done:
                    yield under_way.pop(reference), _get(ray, reference)
        finally:
            for reference in under_way:
                ray.cancel(reference, force=False)
            if is_ours:
                ray.shutdown()

    return run


def _call_on_node(function: Callable[[T, IsCancelled], R], task: T) -> R:
    return function(task, lambda: False)


def _connect(address: str | None) -> tuple[Any, bool]:
    """(ray, whether the connection is ours to end)."""
    try:
        import ray
    except ImportError as error:
        raise WidsError("--engine ray needs Ray; install it with: pip install 'wids[ray]'") from error
    if ray.is_initialized():
        return ray, False
    _check_reachable(address, ray.util.get_node_ip_address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise WidsError(f"no Ray cluster at {address or 'this machine'} ({error})") from error
    return ray, True


def _check_reachable(address: str | None, own_host: Callable[[], str]) -> None:
    """See that somebody listens there: Ray itself tries for more than a minute before it says no.

    Args:
        address: as for `on_ray`.
        own_host: the name that Ray has for this machine; it takes loopback addresses for that one.

    Raises:
        WidsError: nobody does.
    """
    address = address or os.environ.get("RAY_ADDRESS", "")
    place = address.removeprefix("ray://")
    try:
        found = urlsplit(f"//{place}")
        host, port = found.hostname, found.port
    except ValueError as error:
        raise WidsError(f"{address!r} is no address of a Ray cluster ({error}); {_ADDRESSES}") from error
    if place != address and port is None:
        port = _GRPC_PORT
    elif port is None and (place in ("", "auto", "local") or "://" in place):  # Ray knows these by itself
        return
    if not host or port is None:
        raise WidsError(f"{address!r} is no address of a Ray cluster; {_ADDRESSES}")
    try:
        try:
            socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
        except OSError:
            if host not in ("localhost", "127.0.0.1", "::1"):
                raise
            socket.create_connection((own_host(), port), timeout=_CONNECT_SECONDS).close()
    except (OSError, UnicodeError) as error:
        raise WidsError(f"no Ray cluster at {address} ({error}); check the address, and that its head runs") from error


def _get(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        raise WidsError(f"a task failed on the Ray cluster ({type(error).__name__}: {error})") from error

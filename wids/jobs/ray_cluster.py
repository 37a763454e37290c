"""Tasks on a Ray cluster: on any node, or each on a given node.

A task whose node dies runs again on another node, and other results stay. A task starts in the working directory of
the process that submitted it, so that relative paths work if the nodes share a file system. An actor stores the reports
of tasks until the runner asks for them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import urlsplit

from wids.errors import ClusterError, DependencyError, WidsError
from wids.events import logger
from wids.jobs.runner import END_SECONDS, TaskResult, call, portable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from wids.jobs.runner import OnReport

_CONNECT_SECONDS, _AGAIN_SECONDS, _SETTLE_SECONDS = 10.0, 5.0, 0.5
_GRPC_PORT = 443  # the default of a Ray client
_ADDRESSES = "write it like 10.0.0.1:6379, ray://10.0.0.1:10001 or auto"
# A task fails after so many retries, each after the death of its node.
_MAX_RETRIES = 3


class ClusterNode(NamedTuple):
    """A node: its id in the cluster, its address, its host's name."""

    node_id: str
    address: str
    host: str


class RayRunner:
    """Runs tasks on a Ray cluster.

    Args:
        function: a module's function is sent by name, so each node needs wids.
        on_report: called regularly with the last report of each running task; None: reports are dropped.
        address: see `connect`.
        node_of: the id of the node that must run a task; None: any node with a free CPU.
        num_cpus: processors that a task takes, of any node.
        num_gpus: accelerators that it takes.

    Raises:
        DependencyError: ray is not installed. ClusterError: the cluster cannot be reached.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        on_report: OnReport | None = None,
        *,
        address: str | None,
        node_of: Callable[[Any], str] | None = None,
        num_cpus: float = 1,
        num_gpus: float = 0,
    ) -> None:
        self._connection = connect(address)
        self._ray = self._connection.__enter__()
        self._node_of, self._on_report = node_of, on_report
        self._reports, self._asked = None, None
        self._under_way: dict[Any, int] = {}
        self._refused: list[TaskResult[Any]] = []
        try:
            # Without `max_calls`, a process that had an accelerator ends with its task, and its model with it.
            how = {"num_cpus": num_cpus, "num_gpus": num_gpus, "max_retries": _MAX_RETRIES, "max_calls": 0}
            self._remote = self._ray.remote(**how)(_call_on_node)
            self._function, self._directory = self._ray.put(function), os.getcwd()
            if on_report is not None:
                self._reports = self._ray.remote(num_cpus=0, max_restarts=-1)(_Reports).remote()
        except BaseException:
            self._connection.__exit__(None, None, None)
            raise

    def give(self, k: int, task: Any) -> None:
        """Start a task when a node has a free CPU. A task for a given node needs no CPU."""
        remote = self._remote
        if self._node_of is not None:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            pinned = NodeAffinitySchedulingStrategy(self._node_of(task), soft=False)
            remote = remote.options(num_cpus=0, scheduling_strategy=pinned)
        try:
            reference = remote.remote(self._function, k, task, self._directory, self._reports)
        except TypeError as error:  # the task cannot be pickled
            self._refused.append(portable(TaskResult(k, error=error)))
        else:
            self._under_way[reference] = k

    def take(self, seconds: float) -> list[TaskResult[Any]]:
        """The results of the tasks that have ended."""
        refused, self._refused = self._refused, []
        done = self._ray.wait([*self._under_way], timeout=0 if refused else seconds)[0] if self._under_way else []
        self._pass_reports()
        return [*refused, *(self._result(reference) for reference in done)]

    def close(self) -> None:
        """Interrupt the running tasks, and kill those that do not end within some seconds."""
        try:
            if self._under_way:
                self._cancel()
            if self._reports is not None:
                with contextlib.suppress(self._ray.exceptions.RayError):
                    self._ray.kill(self._reports)
        finally:
            self._connection.__exit__(None, None, None)

    def _pass_reports(self) -> None:
        """Pass on the reports that have arrived, and ask for the next ones, without waiting."""
        if self._reports is None or self._on_report is None:
            return
        if self._asked is not None:
            if not self._ray.wait([self._asked], timeout=0)[0]:
                return
            with contextlib.suppress(self._ray.exceptions.RayError):  # the actor's node died; Ray restarts the actor
                numbers = set(self._under_way.values())
                for k, report in self._ray.get(self._asked).items():
                    if k in numbers:
                        self._on_report(k, *report)
        self._asked = self._reports.take.remote()

    def _result(self, reference: Any) -> TaskResult[Any]:
        k = self._under_way.pop(reference)
        try:
            result: TaskResult[Any] = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            why = " ".join(str(error).split())
            return TaskResult(k, error=ClusterError(f"the Ray cluster lost a task ({type(error).__name__}: {why})"))
        return result

    def _cancel(self) -> None:
        """Interrupt the tasks. Those that wait for a CPU are first, so that none of them starts meanwhile.

        Ray ends the whole process if a task is cancelled at the moment of its start or end. Tasks that may be running
        are therefore given a moment, in which short ones end.
        """
        left, until = [*self._under_way], time.monotonic() + END_SECONDS
        with contextlib.suppress(Exception):  # the cluster may be down
            at_work = int(self._ray.cluster_resources().get("CPU", 0)) or 1
            if self._node_of is None and len(left) > at_work:
                self._interrupt(left[at_work:], force=False)
        left = self._wait(left, _SETTLE_SECONDS)
        # Repeated, because an interruption is lost in code in which Python ignores exceptions.
        while left and (seconds := until - time.monotonic()) > 0:
            self._interrupt(left, force=False)
            left = self._wait(left, min(seconds, _AGAIN_SECONDS))
        if left:
            self._interrupt(left, force=True)
            self._wait(left, 1.0)

    def _interrupt(self, references: list[Any], *, force: bool) -> None:
        for reference in references:
            with contextlib.suppress(Exception):  # the task has ended
                self._ray.cancel(reference, force=force)

    def _wait(self, references: list[Any], seconds: float) -> list[Any]:
        """The tasks that have not ended after this time."""
        try:
            return cast("list[Any]", self._ray.wait(references, num_returns=len(references), timeout=seconds)[1])
        except Exception:  # noqa: BLE001 - the cluster is down, so no task is left to wait for
            return []


class _Reports:
    """An actor that stores the last report of each task."""

    def __init__(self) -> None:
        self._reports: dict[int, tuple[Any, ...]] = {}

    def put(self, k: int, *report: Any) -> None:
        """Store a report of task ``k``."""
        self._reports[k] = report

    def take(self) -> dict[int, tuple[Any, ...]]:
        """Return and forget the stored reports."""
        taken, self._reports = self._reports, {}
        return taken


def _call_on_node(function: Callable[..., Any], k: int, task: Any, directory: str, reports: Any) -> TaskResult[Any]:
    """In a worker of Ray."""

    def report(*state: Any) -> None:
        if reports is not None:
            reports.put.remote(*state)

    # Ray interrupts tasks with SIGINT, which its processes ignore if a background job of a shell started Ray.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.suppress(OSError):  # on a node without this directory, paths are absolute
        os.chdir(directory)
    return portable(call(function, k, task, report=report))


def alive_nodes(ray: Any, excluded: Collection[str] = ()) -> list[ClusterNode]:
    """The live nodes with the head, except those whose id, address or host name is in ``excluded``.

    Raises:
        ClusterError: no node is left, or ``excluded`` names a node that does not exist.
    """
    found = [
        ClusterNode(node["NodeID"], node["NodeManagerAddress"], node["NodeManagerHostname"])
        for node in ray.nodes()
        if node["Alive"]
    ]
    unknown = sorted(set(excluded).difference(*found))
    if unknown:
        names = ", ".join(node.address for node in found)
        raise ClusterError(f"the Ray cluster has no node {unknown[0]!r} to leave out; it has {names}")
    chosen = sorted(node for node in found if not set(node) & set(excluded))
    if not chosen:
        raise ClusterError("all nodes of the Ray cluster are left out")
    return chosen


@contextlib.contextmanager
def connect(address: str | None = None) -> Iterator[Any]:
    """Ray, connected to a cluster within the block. An existing connection is used and stays.

    Args:
        address: as for ``ray.init``: ``auto`` for this machine's cluster, or ``ray://host:port``. None: $RAY_ADDRESS,
            or else a new cluster of this machine.

    Raises:
        DependencyError: ray is not installed. ClusterError: the cluster cannot be reached.
    """
    try:
        import ray
    except ImportError as error:
        raise DependencyError("Ray is not installed; install it with: pip install 'wids[ray]'") from error
    if ray.is_initialized():
        yield ray
        return
    check_reachable(address, ray.util.get_node_ip_address)
    with _without_prints(ray):
        try:
            with _keeping_handlers():
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except WidsError:  # of a signal handler of the program
            raise
        except Exception as error:  # a bare one, where a node of this machine does not start
            raise ClusterError(f"no Ray cluster at {address or 'this machine'} ({error})") from error
        try:
            yield ray
        finally:
            ray.shutdown()


@contextlib.contextmanager
def _without_prints(ray: Any) -> Iterator[None]:
    """Send Ray's messages about dead workers to the log in this block, and not to stdout, which has results."""
    worker = ray._private.worker  # noqa: SLF001 - Ray has no option for this
    before = worker.print_to_stdstream

    def tell(data: dict[str, Any], *_: Any, **__: Any) -> None:
        for line in data.get("lines", ()):
            logger.info("Ray: %s", line)

    worker.print_to_stdstream = tell
    try:
        yield
    finally:
        worker.print_to_stdstream = before


@contextlib.contextmanager
def _keeping_handlers() -> Iterator[None]:
    """Restore the program's signal handlers after the block: ``ray.init`` replaces them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    ours = {number: handler for number, handler in found.items() if callable(handler)}
    try:
        yield
    except SystemExit as end:  # raised by Ray's handler
        if end.code == signal.SIGTERM and signal.SIGTERM in ours:
            ours[signal.SIGTERM](signal.SIGTERM, None)
        raise
    finally:  # this also replaces the handlers of Ray's C++ code, which print stacks
        for number, handler in ours.items():
            signal.signal(number, handler)


def check_reachable(address: str | None, own_host: Callable[[], str]) -> None:
    """Check that the port is open: Ray itself tries for more than a minute.

    Args:
        address: as for `connect`.
        own_host: returns Ray's name for this machine, which Ray uses for loopback addresses.

    Raises:
        ClusterError: the address is malformed, or the port is closed.
    """
    address = address or os.environ.get("RAY_ADDRESS", "")
    place = address.removeprefix("ray://")
    try:
        found = urlsplit(f"//{place}")
        host, port = found.hostname, found.port
    except ValueError as error:
        raise ClusterError(f"{address!r} is no address of a Ray cluster ({error}); {_ADDRESSES}") from error
    if place != address and port is None:
        port = _GRPC_PORT
    elif port is None and (place in ("", "auto", "local") or "://" in place):  # Ray finds these itself
        return
    if not host or port is None:
        raise ClusterError(f"{address!r} is no address of a Ray cluster; {_ADDRESSES}")
    try:
        try:
            socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
        except OSError:
            if host not in ("localhost", "127.0.0.1", "::1"):
                raise
            socket.create_connection((own_host(), port), timeout=_CONNECT_SECONDS).close()
    except (OSError, UnicodeError) as error:
        raise ClusterError(
            f"no Ray cluster at {address} ({error}); check the address, and that its head runs"
        ) from error

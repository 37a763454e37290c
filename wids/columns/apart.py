"""SQL in processes of their own, for text that others may have written: pages run the filters that browsers send.

Rules: a process runs one query at a time and is kept for the next one. The kernel limits its memory (on Linux;
elsewhere only DuckDB does), so a query that takes too much is an error of that query. It is killed as soon as its query
should end (`wids.columns.sql.REASON_TO_STOP`), whatever it does then, and ends with the process that started it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from wids.columns import sql
from wids.columns.packages import import_arrow, import_duckdb
from wids.core.files import tempdirs
from wids.errors import QueryError, WidsError
from wids.events import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (sql.find_rows, sql.count_nulls, sql.run_query, sql.compute, sql.names_of, sql.names_in)
}
_START = "import sys; sys.path[:] = {path!r}; from wids.columns.apart import run_child; run_child({fd}, {parent})"
_LOOK_SECONDS, _IDLE_SECONDS = 0.05, 1.0
# Beside what DuckDB counts: what it does not count, as a value that is made; and for each row, its index in the result,
# sorted, and packed.
_MORE_BYTES, _ROW_BYTES = 512 << 20, 32
_STACK_BYTES = 8 << 20  # of each of its threads
_SPILL_BYTES = 8 << 30
_MAX_ANSWER_BYTES = 256 << 20


class SqlProcesses:
    """A value for `wids.columns.sql.RUNNER`; threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._busy = set[_Process]()

    def __call__(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Call a function of `wids.columns.sql` with these arguments.

        Raises:
            QueryError: the query should end, or took too much. WidsError: as the function does.
        """
        with self._lock:
            process = self._idle.pop() if self._idle else _Process()
            self._busy.add(process)
        is_whole = False
        try:
            is_error, found = process.ask(pickle.dumps((name, args, options), pickle.HIGHEST_PROTOCOL))
            is_whole = True
        except _EndedError as error:
            text = next((each for each in args if isinstance(each, str)), "")
            raise QueryError(f"{error}; in: {sql.shorten_sql(text)}", found=text) from None
        finally:
            with self._lock:
                if process in self._busy:
                    self._busy.remove(process)
                    if is_whole:
                        self._idle.append(process)
                is_kept = process in self._idle
            if not is_kept:
                process.close()
        if is_error:
            raise found
        return found

    def close(self) -> None:
        """End all processes; a query that runs fails."""
        with self._lock:
            idle, busy = [*self._idle], [*self._busy]
            self._idle.clear()
            self._busy.clear()
        for process in idle:
            process.close()
        for process in busy:
            process.end()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Have these processes run the SQL of the block."""
        before = sql.RUNNER.set(self)
        try:
            yield
        finally:
            sql.RUNNER.reset(before)


class _EndedError(Exception):
    """A query has ended without a result."""


class _Process:
    def __init__(self) -> None:
        ours, its = socket.socketpair()
        with its:
            self._connection = Connection(ours.detach())
            code = _START.format(path=sys.path, fd=its.fileno(), parent=os.getpid())
            self._process = subprocess.Popen(  # noqa: S603 - our own program, without a shell
                [sys.executable, "-I", "-c", code],
                pass_fds=(its.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # what a C++ library says at its end
                start_new_session=True,  # Ctrl-C is for who asks
            )

    def ask(self, request: bytes) -> tuple[bool, Any]:
        """(whether it is an error, the result).

        Raises:
            _EndedError: none came.
        """
        try:
            self._connection.send_bytes(request)
            while not self._connection.poll(_LOOK_SECONDS):
                if reason := sql.REASON_TO_STOP.get()():
                    raise _EndedError(reason)
            answer: tuple[bool, Any] = pickle.loads(self._connection.recv_bytes())  # noqa: S301 - of our own process
        except (EOFError, OSError) as error:
            code = self._process.wait()
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            raise _EndedError(f"its process ended {how}, maybe for want of memory") from error
        return answer

    def end(self) -> None:
        """End it; who waits for it hears so."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it, and remove what it has left."""
        self.end()
        self._connection.close()
        tempdirs.sweep(tempfile.gettempdir())


def run_child(fd: int, parent: int) -> None:
    """Answer in this process until its parent has ended.

    Args:
        fd: a socket to the parent.
        parent: its process id.
    """

    def check_parent() -> str:
        if os.getppid() != parent:
            os._exit(1)
        return ""

    connection = Connection(fd)
    import_duckdb()
    import_arrow()
    sql.REASON_TO_STOP.set(check_parent)
    sql.SPILL_BYTES.set(_SPILL_BYTES)
    with contextlib.suppress(EOFError, OSError):
        while True:
            while not connection.poll(_IDLE_SECONDS):
                check_parent()
            connection.send_bytes(_answer(connection.recv_bytes()))


def _answer(request: bytes) -> bytes:
    name, args, options = pickle.loads(request)  # noqa: S301 - of the parent
    rows = max((each.samples for each in args if isinstance(each, sql.SampleTable)), default=0)
    most = options.get("memory_bytes", sql.DEFAULT_MEMORY_BYTES) + _MORE_BYTES + _ROW_BYTES * rows
    found: tuple[bool, Any]
    try:
        with _limited(most):
            found = False, _FUNCTIONS[name](*args, **options)
            packed = pickle.dumps(found, pickle.HIGHEST_PROTOCOL)
        if len(packed) <= _MAX_ANSWER_BYTES + _ROW_BYTES * rows:
            return packed
        found = True, QueryError(f"the result has {format_size(len(packed))}, which is too much")
    except WidsError as error:
        found = True, error
    except MemoryError:
        found = True, QueryError(f"it takes more memory than the {format_size(most)} that it may")
    except Exception as error:  # noqa: BLE001 - the parent is told, and this process goes on
        found = True, QueryError(f"{type(error).__name__}: {error}")
    return pickle.dumps(found, pickle.HIGHEST_PROTOCOL)


@contextlib.contextmanager
def _limited(most: int) -> Iterator[None]:
    """Limit how much memory this process may take in the block, beside what it has: bytes that are written to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            taken = int(file.read().split()[5]) * resource.getpagesize()
    except OSError:  # only Linux has it, and only there the limit is for all memory
        yield
        return
    most += taken + _STACK_BYTES * (os.cpu_count() or 1)
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

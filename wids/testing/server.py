"""A loopback HTTP server for tests of code that reads shards: exact counts, slow links, failures on demand.

It needs the standard library only. Counts are complete before a client has the last byte that they count. Threads and
connections end with the ``with`` block, even if a client or a fault still waits.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import os
import re
import socket
import socketserver
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import unquote

from wids.core.order.validation import suggest_names

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    _Socket = socket.socket

    from typing_extensions import Self

# A body at a limited rate is sent in pieces of this duration. A late wake-up is made up for by at most that much, or
# the rate would be below the one that was set.
_PIECE_SECONDS = 0.01
_BURST_SECONDS = 0.05
_POLL_SECONDS = 0.02


class Server:
    """Serves a directory, bytes in memory, or both, over HTTP/1.1 with keep-alive, from threads of this process.

    It serves from its construction until `close`, or the end of a ``with`` block. What the constructor sets may be
    changed at any time; it counts from the next request on.

    Args:
        directory: its files are served, with those in its subdirectories.
        has_ranges: whether a ``Range`` is answered with 206; else it is ignored.
        validators: what tells two versions of a file apart, of "ETag" and "Last-Modified".
        latency_seconds: time from a request to the first byte of its reply.
        bytes_per_second: of bodies, for each connection.
        required_headers: requests without these headers are answered with 403.
        host: "127.0.0.1" or "::1".
        tls: a context with a certificate; the server then serves https.

    Attributes:
        url: ``http://HOST:PORT``, without a slash at the end.
        files: path -> body, served before those of the directory; a path is as sent, without its query.
        faults: path -> how the next GETs of it are answered, one each, then the last one for ever; see `Fault`.
        requests: the target of each GET, in order, letter for letter.
        headers: the headers of each of these, names in lower case.
        heads: the target of each HEAD.
        ranges: (path, lo, hi) of each range that was requested, half-open, whether or not it was answered so.
        sent_bytes: path -> bytes of bodies that were sent; ``.total()`` is their sum.
        max_open: the largest number of GETs that were under way at a time.
        closing: set when the server closes.
    """

    closing: threading.Event
    directory: str | None
    required_headers: dict[str, str]
    lock: threading.Lock
    url: str

    @suggest_names
    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        has_ranges: bool = True,
        validators: tuple[str, ...] = ("ETag", "Last-Modified"),
        latency_seconds: float = 0.0,
        bytes_per_second: float = math.inf,
        required_headers: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.directory = None if directory is None else os.path.expanduser(directory)
        self.has_ranges = has_ranges
        self.validators = validators
        self.latency_seconds = latency_seconds
        self.bytes_per_second = bytes_per_second
        self.required_headers = dict(required_headers or {})
        self.files: dict[str, bytes] = {}
        self.versions: Counter[str] = Counter()
        self.faults: dict[str, list[Fault]] = {}
        self.requests: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.heads: list[str] = []
        self.ranges: list[tuple[str, int, int]] = []
        self.sent_bytes: Counter[str] = Counter()
        self.open = self.max_open = 0
        self.closing = threading.Event()
        self.lock = threading.Lock()
        self._tcp = _TcpServer(self, host, tls)
        name = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if tls else 'http'}://{name}:{self._tcp.server_address[1]}"
        self._thread = threading.Thread(target=self._tcp.serve_forever, args=(_POLL_SECONDS,), daemon=True)
        self._thread.start()

    def add(self, path: str, body: bytes, *faults: Fault) -> str:
        """Serve ``body`` at ``path``, as a new version if there is one already; returns its URL.

        Args:
            path: ``"/a.tar"``.
            body: the bytes there.
            *faults: of the next requests for it, one each; the last one holds from then on.
        """
        with self.lock:
            self.files[path] = body
            self.versions[path] += 1
        if faults:
            self.faults[path] = list(faults)
        return self.url + path

    def find_fault(self, reply: Reply) -> Fault:
        """The fault of a GET, from `faults`; a subclass may look at the request. `whole` costs no copy.

        Args:
            reply: of the request.
        """
        with self.lock:
            faults = self.faults.get(reply.name) or [whole]
            return faults.pop(0) if len(faults) > 1 else faults[0]

    def close(self) -> None:
        """End all connections and threads; a second time, do nothing."""
        if self.closing.is_set():
            return
        self.closing.set()
        self._tcp.shutdown()
        self._tcp.end_connections()
        self._tcp.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _TcpServer(socketserver.ThreadingTCPServer):
    """One thread for each connection; not `http.server.HTTPServer`, which looks up the host's name in DNS."""

    allow_reuse_address = True
    address_family: int
    socket: _Socket
    request_queue_size = 128  # a connection beyond these would wait a second for its next try

    def __init__(self, owner: Server, host: str, tls: ssl.SSLContext | None) -> None:
        self.owner = owner
        self.connections: set[socket.socket] = set()
        self._handlers: list[threading.Thread] = []
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, 0), Reply)
        if tls is not None:
            # Each connection shakes hands in its own thread: one that does not must not hold the others.
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def process_request(self, request: Any, client_address: Any) -> None:
        # A daemon, or an interpreter that ends without close() would wait for a connection that is kept alive. The
        # standard library does not join daemons.
        thread = threading.Thread(target=self.process_request_thread, args=(request, client_address), daemon=True)
        self._handlers = [handler for handler in self._handlers if handler.is_alive()]
        self._handlers.append(thread)
        thread.start()

    def end_connections(self) -> None:
        """Shut all connections down, and wait for their threads."""
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._handlers:
            thread.join()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is nothing to report; an error in a fault is."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Reply(BaseHTTPRequestHandler):
    """One request and the answer to it, as a `Fault` gets it; see also ``headers`` and ``wfile`` of `http.server`.

    Attributes:
        owner: the server.
        name: the path that was requested, without its query.
        span: the range that was requested, half-open; its end may lie behind the body's. None for all of it.
        number: which of the server's requests this is, from 1.
        close_connection: set it to end the connection after this answer.
    """

    owner: Server
    number: int
    name: str
    version: int
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer in several writes would wait 40 ms for an acknowledgement
    server: _TcpServer

    def setup(self) -> None:
        """Begin a connection."""
        super().setup()
        self.owner = self.server.owner
        self.server.connections.add(self.connection)
        self.span: tuple[int, int] | None = None
        self._tag = ""
        self._mtime: float | None = None
        self._is_open = False  # a GET under way, which counts in owner.open
        self._sent_at = 0.0  # when a link of the given rate has carried all that was sent
        if self.owner.closing.is_set():  # it came too late to be shut down with the others
            self.connection.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        """End a connection."""
        self.server.connections.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the standard library
        """Print nothing."""

    def do_HEAD(self) -> None:
        """Answer with the head of the whole file."""
        self.span = None
        with self._find() as stream:
            with self.owner.lock:
                self.owner.heads.append(self.path)
            if not self._is_allowed():
                self.start(403, Content_Length=0)
            elif stream is None:
                self.start(404, Content_Length=0)
            else:
                self._begin(_size_of(stream), {})

    def do_GET(self) -> None:
        """Answer with a file or a part of it, or with the fault that is up."""
        owner = self.owner
        with self._find() as stream:
            size = _size_of(stream) if stream else 0
            self.span = _parse_range(self.headers.get("Range"), size)
            if self.headers.get("If-Range", self._tag) != self._tag:
                self.span = None
            with owner.lock:
                owner.requests.append(self.path)
                owner.headers.append({name.lower(): value for name, value in self.headers.items()})
                if self.span:
                    owner.ranges.append((self.name, *self.span))
                self.number = len(owner.requests)
                self._is_open = True
                owner.open += 1
                owner.max_open = max(owner.open, owner.max_open)
            try:
                fault = owner.find_fault(self)
                if not self._is_allowed():
                    status(403)(self, b"")
                elif fault is not whole:
                    fault(self, stream.read() if stream else b"")
                elif stream is None:
                    status(404)(self, b"")
                else:
                    self._send_last(stream, *self._begin(size, {}))
            finally:
                self._count_out()

    def start(self, code: int = 200, **headers: object) -> None:
        """Send the head of an answer; ``_`` in names of headers stands for ``-``.

        Args:
            code: the status.
            **headers: name -> value.
        """
        self._wait_until(self._first_byte_at)
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def begin(self, body: bytes, **headers: object) -> bytes:
        """Send the head of a good answer, ``headers`` in place of its own; returns the bytes that are to follow.

        A header that is None is left out.

        Args:
            body: the whole of what is asked for.
            **headers: name -> value.
        """
        if self._mtime is None:
            self._tag = _tag_of(body)
        lo, hi = self._begin(len(body), headers)
        return body[lo:hi]

    def end(self, data: bytes) -> None:
        """Send the last bytes of an answer.

        Args:
            data: these bytes.
        """
        self._send_last(io.BytesIO(data), 0, len(data))

    def send(self, data: bytes) -> None:
        """Send bytes that are not the last ones.

        Args:
            data: these bytes.
        """
        self._send(io.BytesIO(data), 0, len(data))

    def wait(self, event: threading.Event | None = None) -> None:
        """Wait for ``event``, or for the end of the server.

        Args:
            event: of another thread; None: only the end of the server.
        """
        event = event or self.owner.closing
        while not event.wait(_POLL_SECONDS) and not self.owner.closing.is_set():
            pass

    @contextlib.contextmanager
    def _find(self) -> Iterator[BinaryIO | None]:
        """The requested body as an open file, or None if none exists; notes its version."""
        self._first_byte_at = time.perf_counter() + self.owner.latency_seconds
        self.name = self.path.partition("?")[0]
        self._tag, self._mtime = "", None
        with self.owner.lock:
            body, self.version = self.owner.files.get(self.name), self.owner.versions[self.name]
        with contextlib.ExitStack() as stack:
            stream: BinaryIO | None = None
            if body is not None:
                stream, self._tag = io.BytesIO(body), _tag_of(body)
            elif (path := self._file_path()) is not None:
                with contextlib.suppress(OSError, ValueError):  # not a file, or a name that no file can have
                    stream = stack.enter_context(open(path, "rb", 0))
                    status = os.fstat(stream.fileno())
                    self._tag, self._mtime = f'"{status.st_mtime_ns:x}-{status.st_size:x}"', status.st_mtime
            yield stream

    def _file_path(self) -> str | None:
        """The path of the requested file in the directory; None if it would be outside."""
        parts = [part for part in unquote(self.name).split("/") if part not in ("", ".")]
        if self.owner.directory is None or ".." in parts:
            return None
        return os.path.join(self.owner.directory, *parts)

    def _is_allowed(self) -> bool:
        return all(self.headers.get(name) == value for name, value in self.owner.required_headers.items())

    def _begin(self, size: int, headers: Mapping[str, object]) -> tuple[int, int]:
        """Send the head of a good answer for a body of that size; bytes ``lo`` to ``hi`` of it have to follow."""
        modified = 1_700_000_000 + self.version if self._mtime is None else self._mtime
        known = {"ETag": self._tag, "Last-Modified": formatdate(modified, usegmt=True)}
        answered: dict[str, object] = {name.replace("-", "_"): known[name] for name in self.owner.validators}
        code, lo, hi = 200, 0, size
        if self.owner.has_ranges:
            answered["Accept_Ranges"] = "bytes"
            if self.span:
                code, lo, hi = 206, self.span[0], min(self.span[1], size)
                answered["Content_Range"] = f"bytes {lo}-{hi - 1}/{size}"
        if lo >= hi and code == 206:
            self.start(416, Content_Length=0, Content_Range=f"bytes */{size}")
            return 0, 0
        answered.update({"Content_Length": hi - lo, **headers})
        self.start(code, **{name: value for name, value in answered.items() if value is not None})
        return lo, hi

    def _send_last(self, stream: BinaryIO, lo: int, hi: int) -> None:
        """Send the rest of an answer; it is no longer under way when its last byte leaves: a client may ask by then."""
        self._send(stream, lo, hi - 1)
        self._count_out()
        self._send(stream, max(hi - 1, lo), hi)

    def _send(self, stream: BinaryIO, lo: int, hi: int) -> None:
        """Send bytes ``lo`` to ``hi``; each piece leaves when a link of the given rate would have carried it."""
        rate = self.owner.bytes_per_second
        piece = hi - lo if math.isinf(rate) else max(1, int(rate * _PIECE_SECONDS))
        self._sent_at = max(self._sent_at, time.perf_counter())
        while lo < hi:
            count = min(piece, hi - lo)
            self._sent_at = max(self._sent_at, time.perf_counter() - _BURST_SECONDS) + count / rate
            self._wait_until(self._sent_at)
            with self.owner.lock:
                self.owner.sent_bytes[self.name] += count
            if self.connection.sendfile(stream, lo, count) < count:  # from the page cache, without a copy in Python
                raise ConnectionAbortedError("the file became shorter")
            lo += count

    def _wait_until(self, moment: float) -> None:
        if (seconds := moment - time.perf_counter()) > 0 and self.owner.closing.wait(seconds):
            raise ConnectionAbortedError("the server closes")

    def _count_out(self) -> None:
        with self.owner.lock:
            self.owner.open -= self._is_open
            self._is_open = False


Fault = Callable[[Reply, bytes], None]
"""How a GET is answered: a function of the `Reply` and the body at its path (empty if there is none)."""


def whole(reply: Reply, body: bytes) -> None:
    """A good answer.

    Args:
        reply: of the request.
        body: at its path.
    """
    reply.end(reply.begin(body))


def cut(reply: Reply, body: bytes) -> None:
    """Half of the bytes that were announced, then the end of the connection.

    Args:
        reply: of the request.
        body: at its path.
    """
    _send_half(reply, body)
    reply.close_connection = True


def stall(reply: Reply, body: bytes) -> None:
    """Half of the bytes that were announced, then nothing.

    Args:
        reply: of the request.
        body: at its path.
    """
    _send_half(reply, body)
    reply.wait()
    reply.close_connection = True


def reset(reply: Reply, body: bytes) -> None:
    """Half of the bytes that were announced, then a TCP reset.

    Args:
        reply: of the request.
        body: at its path.
    """
    _send_half(reply, body)
    reply.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    os.close(reply.connection.detach())  # at once: the server would first say that it is done
    reply.close_connection = True


def status(code: int, **headers: object) -> Fault:
    """An answer with this status and headers (``_`` for ``-``), and a page that says so.

    Args:
        code: the status.
        **headers: name -> value.
    """
    return instead(f"<html>{code}</html>".encode(), code=code, Content_Type="text/html", **headers)


def redirect(location: str) -> Fault:
    """Status 302 to a URL.

    Args:
        location: the URL.
    """
    return status(302, Location=location)


def instead(data: bytes, *, code: int = 200, **headers: object) -> Fault:
    """An answer with other bytes, instead of the requested ones.

    Args:
        data: the bytes.
        code: the status.
        **headers: name -> value.
    """

    def fault(reply: Reply, _: bytes) -> None:
        reply.start(code, Content_Length=len(data), **headers)
        reply.end(data)

    return fault


class Gate:
    """A fault that stops half-way: ``entered`` is set when half of the body was sent, the rest waits for ``go``."""

    entered: threading.Event
    go: threading.Event

    def __init__(self) -> None:
        self.entered, self.go = threading.Event(), threading.Event()

    def __call__(self, reply: Reply, body: bytes) -> None:
        """Answer a request; see the class."""
        rest = _send_half(reply, body)
        self.entered.set()
        reply.wait(self.go)
        reply.end(rest)


def _send_half(reply: Reply, body: bytes) -> bytes:
    """Send the head of a good answer and half of what it announces; returns the rest."""
    data = reply.begin(body)
    reply.send(data[: len(data) // 2])
    return data[len(data) // 2 :]


def _tag_of(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


def _size_of(stream: BinaryIO) -> int:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    return size


def _parse_range(text: str | None, size: int) -> tuple[int, int] | None:
    """The half-open range of a Range header, which may begin or end behind ``size``; None for the whole body.

    Several ranges, and headers that cannot be parsed, are answered with the whole body (RFC 9110, 14.2).
    """
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", (text or "").strip())
    if not match or match[0] == "bytes=-":
        return None
    first, last = match.groups()
    if not first:
        return max(0, size - int(last)), size
    if last and int(last) < int(first):
        return None
    return int(first), int(last) + 1 if last else max(size, int(first))

"""A loopback HTTP server that does what servers and networks do wrong, one request at a time."""

import contextlib
import gzip
import hashlib
import os
import re
import socket
import struct
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# How long a handler waits for its test; only a test that failed gets there.
PATIENCE_SECONDS = 60


class Server:
    """Serves ``files`` (path -> bytes) on the loopback interface.

    Args:
        context: for TLS; None: without.

    Attributes:
        files: what is served; the path is as sent, without its query.
        faults: path -> the faults of the coming requests, one each, then the last one for ever (``whole`` to stop).
        requests: targets asked for, letter for letter.
        headers: the headers of each of them, names in lower case.
        has_ranges: whether ``Range`` is answered with 206; else it is ignored.
        marks: what then tells two versions of a body apart, of ``ETag`` and ``Last-Modified``.
        ranges: (path, lo, hi) of each range asked for, half-open, answered so or not.
        most_open: the most answers that were under way at a time.
    """

    def __init__(self, *, context=None):
        self.files, self.faults = {}, {}
        self.requests, self.headers = [], []
        self.has_ranges, self.marks, self.ranges = False, ("ETag", "Last-Modified"), []
        self.versions, self.lock = {}, threading.Lock()
        self.open = self.most_open = 0
        self.closing = threading.Event()
        self.connections = set()
        self._gates = []
        self._http = _Http(("127.0.0.1", 0), _Handler)
        self._http.owner, self._scheme = self, "http"
        if context is not None:
            self._http.socket, self._scheme = context.wrap_socket(self._http.socket, server_side=True), "https"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def add(self, path, body, *faults):
        """Serve ``body`` at ``path`` (a new version, if there is one), with faults; returns its URL."""
        with self.lock:
            self.files[path] = body
            self.versions[path] = self.versions.get(path, 0) + 1
        if faults:
            self.faults[path] = list(faults)
        return self.url(path)

    def url(self, path=""):
        """The URL of a path."""
        return f"{self._scheme}://127.0.0.1:{self._http.server_port}{path}"

    def gate(self):
        """A fault that stops half-way until the test lets it go on."""
        self._gates.append(Gate())
        return self._gates[-1]

    def meeting(self, count):
        """A fault for the coming answers: their bodies wait until there are ``count`` of them."""
        self._gates.append(Meeting(count))
        return self._gates[-1]

    def close(self):
        """End all connections and threads."""
        self.closing.set()
        for gate in self._gates:
            gate.go.set()
        self._http.shutdown()
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._http.server_close()
        self._thread.join()


class _Http(ThreadingHTTPServer):
    daemon_threads = False  # so that closing waits for the handlers
    request_queue_size = 64  # more at once would wait a second for their next try

    def handle_error(self, request, client_address):
        """A client that went away is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer in several writes would wait 40 ms

    def setup(self):
        super().setup()
        self.server.owner.connections.add(self.connection)

    def finish(self):
        self.server.owner.connections.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, format, *args):  # noqa: A002 - the signature of http.server
        pass

    def do_GET(self):
        owner = self.server.owner
        self.name = self.path.partition("?")[0]
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        self.span = asked and (int(asked[1]), int(asked[2]) + 1)
        with owner.lock:
            owner.requests.append(self.path)
            owner.headers.append({name.lower(): value for name, value in self.headers.items()})
            if self.span:
                owner.ranges.append((self.name, *self.span))
            owner.open += 1
            owner.most_open = max(owner.open, owner.most_open)
            faults = owner.faults.get(self.name, [whole])
            fault = faults.pop(0) if len(faults) > 1 else faults[0]
            body, self.version = owner.files.get(self.name), owner.versions.get(self.name, 0)
            self.number = len(owner.requests)
        self.is_open = True
        if body is None and fault is whole:
            fault, body = status(404), b""
        try:
            fault(self, body)
        finally:
            self.is_over()

    def do_HEAD(self):
        owner = self.server.owner
        self.name, self.span = self.path.partition("?")[0], None
        with owner.lock:
            body, self.version = owner.files.get(self.name), owner.versions.get(self.name, 0)
        if body is None:
            self.start(404, Content_Length=0)
        else:
            self.begin(body)

    def is_over(self):
        """Count this answer as under way no more; who asked may know by the last byte, so before that is sent."""
        owner = self.server.owner
        with owner.lock:
            owner.open -= self.is_open
            self.is_open = False

    def begin(self, body, **headers):
        """Send the head of a good answer, with ``headers`` instead of its own; returns the bytes that are to follow."""
        owner, span, code = self.server.owner, self.span, 200
        facts = {"Content_Length": len(body)}
        if owner.has_ranges:
            known = {
                "ETag": f'"{hashlib.md5(body).hexdigest()}"',
                "Last-Modified": formatdate(1_700_000_000 + self.version, usegmt=True),
            }
            facts.update({name.replace("-", "_"): known[name] for name in owner.marks}, Accept_Ranges="bytes")
        if owner.has_ranges and span:
            lo, hi = span[0], min(span[1], len(body))
            if lo >= hi:
                self.start(416, Content_Length=0, Content_Range=f"bytes */{len(body)}")
                return b""
            facts.update(Content_Length=hi - lo, Content_Range=f"bytes {lo}-{hi - 1}/{len(body)}")
            code, body = 206, body[lo:hi]
        self.start(code, **{**facts, **headers})
        return body

    def end(self, data):
        """Send the last bytes of an answer."""
        self.wfile.write(data[:-1])
        self.is_over()
        self.wfile.write(data[-1:])

    def start(self, code=200, **headers):
        """Send the head of an answer; ``_`` in names stands for ``-``."""
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.flush()


class Gate:
    """Sends half the body, waits for ``go``, then sends the rest."""

    def __init__(self):
        self.entered, self.go = threading.Event(), threading.Event()

    def __call__(self, handler, body):
        """See the class."""
        data = send_half(handler, body)
        self.entered.set()
        self.go.wait(PATIENCE_SECONDS)
        handler.end(data[len(data) // 2 :])


class Meeting:
    """Sends the head of each answer, and the bodies when there are enough of them, or when ``go`` is set."""

    def __init__(self, count):
        self.missing, self.go, self._lock = count, threading.Event(), threading.Lock()

    def __call__(self, handler, body):
        """See the class."""
        data = handler.begin(body)
        with self._lock:
            self.missing -= 1
        if self.missing <= 0:
            self.go.set()
        self.go.wait(PATIENCE_SECONDS)
        handler.end(data)


def whole(handler, body):
    """No fault."""
    handler.end(handler.begin(body))


def whole_unannounced(handler, body):
    """All of the body, no length announced: the connection's end is its end."""
    handler.start(Connection="close")
    handler.end(body)
    handler.close_connection = True


def send_half(handler, body):
    """Half of what was announced, which is returned."""
    data = handler.begin(body)
    handler.wfile.write(data[: len(data) // 2])
    handler.wfile.flush()
    return data


def status(code, **headers):
    """An answer with this status, and a page that says so."""

    def fault(handler, body):
        page = f"<html>{code}</html>".encode()
        handler.start(code, Content_Type="text/html", Content_Length=len(page), **headers)
        handler.wfile.write(page)

    return fault


def instead(data, **headers):
    """Status 200, and other bytes."""

    def fault(handler, body):
        handler.start(Content_Length=len(data), **headers)
        handler.wfile.write(data)

    return fault


def redirect(location):
    """Status 302 to ``location``."""
    return status(302, Location=location)


def zipped(handler, body):
    """The right bytes under ``Content-Encoding: gzip``, asked for or not."""
    instead(gzip.compress(body), Content_Encoding="gzip")(handler, body)


def cut(handler, body):
    """Half the body, where all of it was announced."""
    send_half(handler, body)
    handler.close_connection = True


def cut_unannounced(handler, body):
    """Half the body and the end of the connection, no length announced."""
    handler.start(Connection="close")
    handler.wfile.write(body[: len(body) // 2])
    handler.close_connection = True


def cut_chunked(handler, body):
    """Half the body in chunks, without the last one."""
    handler.start(Transfer_Encoding="chunked")
    half = body[: len(body) // 2]
    handler.wfile.write(b"%x\r\n%b\r\n" % (len(half), half))
    handler.close_connection = True


def reset(handler, body):
    """Half the body, then a TCP reset."""
    send_half(handler, body)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    os.close(handler.connection.detach())  # at once: the server would first say that it is done
    handler.close_connection = True


def stall(handler, body):
    """Half the body, then nothing."""
    send_half(handler, body)
    handler.server.owner.closing.wait(PATIENCE_SECONDS)
    handler.close_connection = True


def mute(handler, body):
    """Nothing at all."""
    handler.server.owner.closing.wait(PATIENCE_SECONDS)
    handler.close_connection = True

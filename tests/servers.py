"""A loopback HTTP server that does what servers and networks do wrong, one request at a time."""

import contextlib
import gzip
import os
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# How long a handler waits for its test; only a test that failed gets there.
PATIENCE_SECONDS = 60


class Server:
    """Serves ``files`` (path -> bytes) on the loopback interface.

    Attributes:
        files: what is served; the path is as sent, without its query.
        faults: path -> the faults of the coming requests, one each, then the last one for ever (``whole`` to stop).
        requests: targets asked for, letter for letter.
        headers: the headers of each of them, names in lower case.
    """

    def __init__(self):
        self.files, self.faults = {}, {}
        self.requests, self.headers = [], []
        self.closing = threading.Event()
        self.connections = set()
        self._gates = []
        self._http = _Http(("127.0.0.1", 0), _Handler)
        self._http.owner = self
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def add(self, path, body, *faults):
        """Serve ``body`` at ``path``, with faults; returns its URL."""
        self.files[path] = body
        if faults:
            self.faults[path] = list(faults)
        return self.url(path)

    def url(self, path=""):
        """The URL of a path."""
        return f"http://127.0.0.1:{self._http.server_port}{path}"

    def gate(self):
        """A fault that stops half-way until the test lets it go on."""
        self._gates.append(Gate())
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

    def handle_error(self, request, client_address):
        """A client that went away is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

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
        owner.requests.append(self.path)
        owner.headers.append({name.lower(): value for name, value in self.headers.items()})
        path = self.path.partition("?")[0]
        faults = owner.faults.get(path, [whole])
        fault = faults.pop(0) if len(faults) > 1 else faults[0]
        body = owner.files.get(path)
        if body is None and fault is whole:
            fault, body = status(404), b""
        fault(self, body)

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
        handler.start(Content_Length=len(body))
        handler.wfile.write(body[: len(body) // 2])
        handler.wfile.flush()
        self.entered.set()
        self.go.wait(PATIENCE_SECONDS)
        handler.wfile.write(body[len(body) // 2 :])


def whole(handler, body):
    """No fault."""
    handler.start(Content_Length=len(body))
    handler.wfile.write(body)


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
    handler.start(Content_Length=len(body))
    handler.wfile.write(body[: len(body) // 2])
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
    handler.start(Content_Length=len(body))
    handler.wfile.write(body[: len(body) // 2])
    handler.wfile.flush()
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    os.close(handler.connection.detach())  # at once: the server would first say that it is done
    handler.close_connection = True


def stall(handler, body):
    """Half the body, then nothing."""
    handler.start(Content_Length=len(body))
    handler.wfile.write(body[: len(body) // 2])
    handler.wfile.flush()
    handler.server.owner.closing.wait(PATIENCE_SECONDS)
    handler.close_connection = True


def mute(handler, body):
    """Nothing at all."""
    handler.server.owner.closing.wait(PATIENCE_SECONDS)
    handler.close_connection = True

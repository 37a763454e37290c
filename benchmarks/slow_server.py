"""A file server on loopback that answers late and sends slowly, as object stores do; a process of its own.

    python benchmarks/slow_server.py DIR --delay-ms 30 --mbps 40

Rules: every reply's first byte comes ``--delay-ms`` after its request, and each connection carries ``--mbps`` megabytes
(1e6) a second, however many there are. Bodies go from the page cache to the socket by sendfile, because the machine's
cores belong to what is measured. ``GET /stats`` tells what was asked and sent, ``DELETE /stats`` tells it and begins
anew; neither is counted or delayed. The process ends with its stdin, so that it cannot outlive who started it.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO
from urllib.parse import unquote, urlsplit

# What goes out at a time: small enough that the rate is even, large enough that few wake-ups are needed.
CHUNK_SECONDS = 0.01
# A wake-up that comes late may be made up for by this much, or the rate would lie below the one asked for.
BURST_SECONDS = 0.05


class Tally:
    """What has been asked and sent since the last reset. One for all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._active = 0
        self._begin()

    def _begin(self) -> None:
        self._counts = dict.fromkeys(("requests", "heads", "ranges", "bytes", "connections"), 0)
        self._at_once = self._active
        self._cpu_begin = time.process_time()

    def add(self, **counts: int) -> None:
        """Add to the counts named."""
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    @contextlib.contextmanager
    def transfer(self):
        """One body on its way; the most of them at a time are told."""
        with self._lock:
            self._active += 1
            self._at_once = max(self._at_once, self._active)
        try:
            yield
        finally:
            with self._lock:
                self._active -= 1

    def read(self, *, reset: bool) -> dict:
        """All figures, which begin anew with ``reset``; see `SlowServer.stats`."""
        with self._lock:
            told = {**self._counts, "at_once": self._at_once, "cpu_seconds": time.process_time() - self._cpu_begin}
            if reset:
                self._begin()
            return told


class Server(ThreadingHTTPServer):
    """One thread for each connection."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, root: str, *, delay_seconds: float, bytes_per_second: float, port: int):
        super().__init__(("127.0.0.1", port), Handler)
        self.root = root
        self.delay_seconds = delay_seconds
        self.bytes_per_second = bytes_per_second
        self.tally = Tally()

    def handle_error(self, request, client_address) -> None:
        """A client that hangs up is nothing to report."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """The requests of one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def setup(self) -> None:
        """Begin a connection, with nothing sent on it."""
        super().setup()
        self._clear_at = 0.0  # when the link will have carried all that was sent
        self._is_counted = False

    def log_message(self, *_args: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        """A file or a part of it, or the figures."""
        if self.path == "/stats":
            self._tell(self.server.tally.read(reset=False))
        else:
            self._answer(has_body=True)

    def do_HEAD(self) -> None:
        """A file's size, tag and date."""
        self._answer(has_body=False)

    def do_DELETE(self) -> None:
        """The figures, which begin anew."""
        if self.path == "/stats":
            self._tell(self.server.tally.read(reset=True))
        else:
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED)

    def _tell(self, figures: dict) -> None:
        body = json.dumps(figures).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, status: HTTPStatus, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _answer(self, *, has_body: bool) -> None:
        tally = self.server.tally
        first_byte_at = time.perf_counter() + self.server.delay_seconds
        tally.add(requests=1, heads=int(not has_body), connections=int(not self._is_counted))
        self._is_counted = True
        stream = self._open()
        _sleep_until(first_byte_at)
        if stream is None:
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        with stream:
            lo, hi = self._head(os.fstat(stream.fileno()))
            if has_body and lo < hi:
                with tally.transfer():
                    self._send(stream.fileno(), lo, hi)

    def _open(self) -> IO[bytes] | None:
        """The file that is asked for; None if there is none of that name in the directory itself."""
        name = unquote(urlsplit(self.path).path).removeprefix("/")
        if "/" in name or name.startswith("."):
            return None
        with contextlib.suppress(OSError):
            return open(os.path.join(self.server.root, name), "rb", buffering=0)
        return None

    def _head(self, status: os.stat_result) -> tuple[int, int]:
        """Send the reply's head for a file of that status; the bytes ``lo`` to ``hi`` have to follow a GET."""
        size = status.st_size
        tag = f'"{status.st_mtime_ns:x}-{size:x}"'
        has_range = self.command == "GET" and self.headers.get("If-Range", tag) == tag
        part = parse_range(self.headers.get("Range") if has_range else None, size)
        if part is not None and part[0] >= part[1]:
            self._refuse(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, Content_Range=f"bytes */{size}")
            return 0, 0
        lo, hi = part or (0, size)
        self.send_response(HTTPStatus.PARTIAL_CONTENT if part else HTTPStatus.OK)
        if part:
            self.server.tally.add(ranges=1)
            self.send_header("Content-Range", f"bytes {lo}-{hi - 1}/{size}")
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(hi - lo))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", tag)
        self.send_header("Last-Modified", formatdate(status.st_mtime, usegmt=True))
        self.end_headers()
        return lo, hi

    def _send(self, descriptor: int, lo: int, hi: int) -> None:
        """Send bytes ``lo`` to ``hi``; each chunk leaves when a link of the given rate would have carried it."""
        rate = self.server.bytes_per_second
        chunk = max(4096, int(rate * CHUNK_SECONDS))
        out = self.connection.fileno()
        clear_at = max(self._clear_at, time.perf_counter())
        while lo < hi:
            wanted = min(chunk, hi - lo)
            begin = max(clear_at, time.perf_counter() - BURST_SECONDS)
            _sleep_until(begin + wanted / rate)
            sent = os.sendfile(out, descriptor, lo, wanted)
            if not sent:
                raise ConnectionAbortedError("the file became shorter")
            clear_at = begin + sent / rate
            lo += sent
            self.server.tally.add(bytes=sent)
        self._clear_at = clear_at


def _sleep_until(moment: float) -> None:
    wait = moment - time.perf_counter()
    if wait > 0:
        time.sleep(wait)


def parse_range(text: str | None, size: int) -> tuple[int, int] | None:
    """Half-open range ``lo, hi`` of a Range header; empty if it lies outside, None for the whole file.

    Several ranges, and what is not understood, are answered with the whole file (RFC 9110, 14.2).
    """
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", (text or "").strip())
    if not match or match[0] == "bytes=-":
        return None
    first, last = match.groups()
    if not first:
        return max(0, size - int(last)), size
    if last and int(last) < int(first):
        return None
    return int(first), min(size, int(last) + 1 if last else size)


class SlowServer:
    """The server as a child process. ``with`` ends it.

    Attributes:
        url: where its files are, without a slash at the end.
    """

    def __init__(self, root: str, *, delay_ms: float, mbps: float):
        command = [sys.executable, os.path.abspath(__file__), root, "--delay-ms", str(delay_ms), "--mbps", str(mbps)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            self.__exit__()
            raise SystemExit("the server did not start")

    def __enter__(self) -> SlowServer:  # noqa: PYI034  (typing.Self needs Python 3.11)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def stats(self, *, reset: bool = False) -> dict:
        """What was asked and sent since the last reset.

        Returns:
            requests (files; heads among them, ranges answered as such), bytes (of bodies), connections (that asked for
            a file), at_once (the most bodies on their way at a time), cpu_seconds (of the server).
        """
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=10)
        try:
            connection.request("DELETE" if reset else "GET", "/stats")
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve the files of a directory slowly, on loopback.")
    parser.add_argument("root")
    parser.add_argument("--delay-ms", type=float, default=30.0, help="from a request to the first byte of its reply")
    parser.add_argument("--mbps", type=float, default=40.0, help="megabytes (1e6) a second for each connection")
    parser.add_argument("--port", type=int, default=0, help="default: one that is free")
    given = parser.parse_args()
    server = Server(given.root, delay_seconds=given.delay_ms / 1e3, bytes_per_second=given.mbps * 1e6, port=given.port)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    main()

"""A file server on loopback for the demo's shards, which counts what it serves.

Rules: it runs in threads of this process and ends with the ``with`` block. Counts are exact: bytes as sent, one request
for each GET of a tar that was answered.
"""

from __future__ import annotations

import os
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


class ShardServer:
    """Serves the files of a directory at ``url`` while the ``with`` block lasts.

    Attributes:
        url: ``http://127.0.0.1:PORT``, without a trailing slash.
        requests: path -> how often it was asked for, of tars only.
        sent_bytes: bytes of tars that went out.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self.requests: dict[str, int] = {}
        self.sent_bytes = 0

    def __enter__(self) -> Self:
        self._server = _Server(("127.0.0.1", 0), partial(_Handler, directory=self._directory))
        self._server.count = self._count
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        # The interval is how long leaving waits for the thread.
        self._thread = threading.Thread(target=partial(self._server.serve_forever, poll_interval=0.05), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _count(self, path: str, size_bytes: int) -> None:
        with self._lock:
            self.requests[path] = self.requests.get(path, 0) + 1
            self.sent_bytes += size_bytes


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # More workers than the default of 5 may connect in the same instant.
    request_queue_size = 128
    count: Any = None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is not worth a traceback on the terminal."""


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # A client that keeps its connection open must not hold a thread for good.
    timeout = 30

    def copyfile(self, source: Any, outputfile: Any) -> None:
        start = source.tell()
        super().copyfile(source, outputfile)
        if self.path.endswith(".tar") and isinstance(self.server, _Server):
            self.server.count(os.path.basename(self.path), source.tell() - start)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the standard library
        """Be quiet."""

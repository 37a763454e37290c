"""A stand-in for the Hugging Face Hub: one data set repository, served on loopback for ``hf://`` URLs.

It answers the requests that `huggingface_hub.HfFileSystem` makes to read: for facts about the repository and about
paths, for lists of files, and for files and byte ranges of them. It does not take uploads. ``HF_ENDPOINT`` must be set
to its URL before huggingface_hub is imported.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
DATE = "2026-01-01T00:00:00.000Z"


class Hub:
    """Serves a directory as the data set repository ``name`` until the process ends.

    Attributes:
        url: the value for ``HF_ENDPOINT``.
        requests: the number of requests of each kind: repository, paths-info, tree, file, range of a file.
        sent_bytes: bytes of files sent.
    """

    def __init__(self, directory: str, name: str = "digits/digits") -> None:
        self.directory, self.name = directory, name
        self.requests: Counter[str] = Counter()
        self.sent_bytes = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.hub = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        atexit.register(self._server.shutdown)

    def entry(self, path: str) -> dict[str, Any] | None:
        """Return the Hub's description of a path; None if there is no such path."""
        place = os.path.join(self.directory, path)
        if os.path.isdir(place):
            return {"type": "directory", "oid": COMMIT, "size": 0, "path": path}
        if not os.path.isfile(place):
            return None
        oid = hashlib.sha1(path.encode()).hexdigest()
        return {"type": "file", "oid": oid, "size": os.path.getsize(place), "path": path}

    def count(self, kind: str, sent_bytes: int = 0) -> None:
        """Count a request that was answered."""
        with self._lock:
            self.requests[kind] += 1
            self.sent_bytes += sent_bytes


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def do_GET(self) -> None:
        self._answer(b"")

    def _answer(self, body: bytes) -> None:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        path = unquote(urlsplit(self.path).path)
        repository = re.escape(hub.name)
        if re.fullmatch(rf"/api/datasets/{repository}(/revision/[^/]+)?", path):
            hub.count("repository")
            about = {"id": hub.name, "sha": COMMIT, "lastModified": DATE, "private": False, "gated": False}
            self._send_json({**about, "downloads": 0, "likes": 0, "tags": [], "siblings": []})
        elif re.fullmatch(rf"/api/datasets/{repository}/paths-info/[^/]+", path):
            hub.count("paths-info")
            is_json = "json" in self.headers.get("Content-Type", "")
            paths = (json.loads(body) if is_json else parse_qs(body.decode())).get("paths", [])
            found = [hub.entry(each) for each in ([paths] if isinstance(paths, str) else paths)]
            self._send_json([each for each in found if each is not None])
        elif under := re.fullmatch(rf"/api/datasets/{repository}/tree/[^/]+(?:/(.*))?", path):
            hub.count("tree")
            folder = under[1] or ""
            names = sorted(os.listdir(os.path.join(hub.directory, folder)))
            self._send_json([hub.entry(os.path.join(folder, each)) for each in names])
        elif (asked := re.fullmatch(rf"/datasets/{repository}/resolve/[^/]+/(.+)", path)) and hub.entry(asked[1]):
            self._send_file(hub, asked[1])
        else:
            self._send(404, b"{}", {"Content-Type": "application/json", "X-Error-Code": "EntryNotFound"})

    def _send_file(self, hub: Hub, path: str) -> None:
        entry = hub.entry(path)
        with open(os.path.join(hub.directory, path), "rb") as file:
            data = file.read()
        headers = {"ETag": f'"{entry["oid"]}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            hub.count("range of a file", last + 1 - first)
            self._send(206, data[first : last + 1], headers)
        else:
            hub.count("file", 0 if self.command == "HEAD" else len(data))
            self._send(200, data, headers)

    def _send_json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, code: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the standard library
        """Log nothing."""

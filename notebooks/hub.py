"""A stand-in for the Hugging Face Hub on loopback: repositories with commits, buckets, and the store behind them.

It answers the requests that read: for facts about repositories and paths, for lists of files, in pages, and for files
and byte ranges of them. As the Hub does it, it keeps large files elsewhere: their URL leads to another port, by a
redirect that is signed for some time. It takes the commits of huggingface_hub to repositories. ``HF_ENDPOINT`` must be
set to its URL before huggingface_hub is imported.
"""

from __future__ import annotations

import atexit
import base64
import hashlib
import json
import math
import mmap
import os
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from wids import testing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

DATE = "2026-01-01T00:00:00.000Z"
KINDS = "datasets|models|spaces|buckets"
MAX_INLINE_BYTES = 1 << 20


@dataclass(frozen=True)
class File:
    """A file of a repository. Large ones, and all tars, are in the store."""

    path: str
    data: bytes | mmap.mmap

    @property
    def is_stored(self) -> bool:
        """Whether its URL leads elsewhere."""
        return self.path.endswith(".tar") or len(self.data) > MAX_INLINE_BYTES

    @cached_property
    def sha256(self) -> str:
        """Of its bytes."""
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def oid(self) -> str:
        """Its name in git."""
        data = (
            b"version https://git-lfs.github.com/spec/v1 " + self.sha256.encode()
            if self.is_stored
            else bytes(self.data)
        )
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def entry(self, *, is_bucket: bool) -> dict[str, Any]:
        """What a listing says of it."""
        about: dict[str, Any] = {"type": "file", "path": self.path, "size": len(self.data)}
        if is_bucket:
            return {**about, "xetHash": hashlib.sha3_256(self.data).hexdigest(), "mtime": DATE, "uploadedAt": DATE}
        lfs = {"oid": self.sha256, "size": len(self.data), "pointerSize": 130}
        return {**about, "oid": self.oid, **({"lfs": lfs} if self.is_stored else {})}


class Repository:
    """A repository, or a bucket.

    Attributes:
        commits: what each commit holds, by its name; the last one is ``main``. Of a bucket, the last one is all.
        branches, tags: the commits of other revisions.
        is_gated: readers need to be let in. token: they need this one; "" for none.
        write_token: who commits needs this one; "": nobody may. messages: those of the commits that came in.
    """

    def __init__(self) -> None:
        self.commits: dict[str, dict[str, File]] = {}
        self.branches: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.is_gated, self.token, self.write_token = False, "", ""
        self.messages: list[str] = []

    def commit(self, files: dict[str, File], branch: str = "main") -> str:
        """Let these be all files; returns the commit's name."""
        words = f"{len(self.commits)} " + " ".join(sorted(files))
        name, main = hashlib.sha1(words.encode()).hexdigest(), self.find("main")
        self.commits[name] = files
        if branch != "main":
            self.branches[branch] = name
            if main is not None:
                self.commits[main] = self.commits.pop(main)
        return name

    def find(self, revision: str) -> str | None:
        """The commit of a revision, if there is one."""
        if revision == "main":
            return next(reversed(self.commits), None)
        own = revision if revision in self.commits else None
        return self.branches.get(revision, self.tags.get(revision, own))


class Hub:
    """Serves repositories until it is closed, or the process ends.

    Args:
        directory: its files are the first repository's.
        name: of that.
        kind: of that: datasets, models, spaces or buckets.
        latency_seconds: from a request to the first byte of its reply, of the Hub and of the store.
        bytes_per_second: of a connection to the store.

    Attributes:
        url: the value for ``HF_ENDPOINT``.
        store: the server of large files.
        repositories: KIND/ORG/NAME -> each.
        page_size: of listings.
        requests: how many the Hub got: "api", "resolvers"; and the store: "store".
        authorizations: those that came with these requests, "" where none did.
        budgets: how many of each the Hub answers; then it says 429, and to come back after ``wait_seconds``.
        wait_header: how it says that: "RateLimit" or "Retry-After".
        is_away: it answers everything with 503.
        knows_no_token: requests with any are refused.
        seconds: how long a redirect's signature is good.
    """

    def __init__(
        self,
        directory: str = "",
        name: str = "digits/digits",
        *,
        kind: str = "datasets",
        latency_seconds: float = 0.0,
        bytes_per_second: float = math.inf,
    ) -> None:
        self.repositories: dict[str, Repository] = {f"{kind}/{name}": Repository()}
        self._first = f"{kind}/{name}"
        self.page_size, self.wait_seconds, self.seconds = 1000, 40, 3600
        self.requests: Counter[str] = Counter()
        self.authorizations: dict[str, list[str]] = {"api": [], "resolvers": [], "store": []}
        self.budgets: dict[str, int] = {}
        self.wait_header, self.is_away, self.knows_no_token = "RateLimit", False, False
        self.inline_bytes = self._epoch = 0
        self._uploaded: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._folder = tempfile.TemporaryDirectory()  # not in memory: each answer would make a tag of all of it
        self.latency_seconds = latency_seconds
        speed = {"latency_seconds": latency_seconds, "bytes_per_second": bytes_per_second}
        self.store = _Store(self, self._folder.name, **speed)
        self.store_fault: testing.Fault = testing.whole
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.hub = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        atexit.register(self.close)
        self.put(_files_of(directory) if directory else {})

    def close(self) -> None:
        """End both servers; a second time, do nothing."""
        atexit.unregister(self.close)
        self._server.shutdown()
        self._server.server_close()
        self.store.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def repository(self) -> Repository:
        """The first one."""
        return self.repositories[self._first]

    @property
    def sent_bytes(self) -> int:
        """Bytes of files that were sent, by the Hub and by the store."""
        return self.inline_bytes + self.store.sent_bytes.total()

    def put(self, files: Mapping[str, bytes | mmap.mmap], name: str = "") -> str:
        """Add or replace files by a commit to a repository (KIND/ORG/NAME); returns the commit's name."""
        repository = self.repositories.setdefault(name or self._first, Repository())
        before = repository.commits.get(repository.find("main") or "", {})
        new = {path: File(path, data) for path, data in files.items()}
        is_bucket = (name or self._first).startswith("buckets/")
        for file in new.values():
            if file.is_stored or is_bucket:
                self._store(file)
        return repository.commit({**before, **new})

    def _store(self, file: File) -> None:
        path = os.path.join(self._folder.name, file.sha256)
        if not os.path.exists(path):
            with open(path, "wb") as stored:
                stored.write(file.data)

    def remove(self, path: str, name: str = "") -> str:
        """Delete a file by a commit."""
        repository = self.repositories[name or self._first]
        files = dict(repository.commits[repository.find("main") or ""])
        del files[path]
        return repository.commit(files)

    def upload(self, sha256: str, data: bytes) -> None:
        """Take a large file that a commit will name."""
        self._uploaded[sha256] = data

    def take(self, repository: Repository, branch: str, lines: list[dict[str, Any]]) -> str:
        """Take a commit as a client sends it, an object for each operation; returns the commit's name."""
        files = dict(repository.commits.get(repository.find(branch) or "", {}))
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                repository.messages.append(value["summary"])
            elif line["key"] == "deletedFile":
                del files[value["path"]]
            else:
                is_large = line["key"] == "lfsFile"
                data = self._uploaded[value["oid"]] if is_large else base64.b64decode(value["content"])
                files[value["path"]] = file = File(value["path"], data)
                if is_large:
                    self._store(file)
        return repository.commit(files, branch)

    def expire(self) -> None:
        """Refuse all signatures from before."""
        self._epoch += 1

    def signed(self, file: File) -> str:
        """Where a large file is, for some time."""
        # At another host, as the Hub's store is: clients of the Hub take all ports of a host for one.
        store = self.store.url.replace("127.0.0.1", "localhost")
        return f"{store}/{file.sha256}?Expires={int(time.time()) + self.seconds}&Signature={self._epoch}~secret"

    def count(self, part: str, authorization: str | None) -> bool:
        """Count a request; whether its part has budget left."""
        with self._lock:
            self.requests[part] += 1
            self.authorizations[part].append(authorization or "")
            left = self.budgets.get(part)
            if left is not None:
                self.budgets[part] = max(left - 1, 0)
            return left is None or left > 0

    def take_counts(self) -> dict[str, int]:
        """Requests to the Hub itself, and bytes that it sent, since the last call; for benchmarks."""
        with self._lock:
            taken = {"requests": self.requests["api"] + self.requests["resolvers"], "bytes": self.inline_bytes}
            self.requests.clear()
            self.inline_bytes = 0
            return taken

    def accepts(self, query: str) -> bool:
        """Whether a signature is good."""
        given = parse_qs(query)
        return given.get("Signature") == [f"{self._epoch}~secret"] and int(given["Expires"][0]) > time.time()


class _Store(testing.Server):
    """The server of large files, by their sha256. Bodies come from the disk, as those of any other such server."""

    def __init__(self, hub: Hub, directory: str, **options: Any) -> None:
        super().__init__(directory, **options)
        self._hub = hub

    def find_fault(self, reply: testing.Reply) -> testing.Fault:
        """See `testing.Server`."""
        self._hub.count("store", reply.headers.get("Authorization"))
        return self._hub.store_fault if self._hub.accepts(urlsplit(reply.path).query) else testing.status(403)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # a connection beyond these would wait a second for its next try
    hub: Hub

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is nothing to report."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_HEAD(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def do_GET(self) -> None:
        self._answer(b"")

    def do_PUT(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _answer(self, body: bytes) -> None:
        hub = self.server.hub
        self._first_byte_at = time.perf_counter() + hub.latency_seconds
        path, _, query = self.path.partition("?")
        part = "api" if path.startswith("/api/") else "resolvers"
        # What huggingface_hub asks by itself, where an agent runs it, does not count.
        has_budget = path == "/api/agent-harnesses" or hub.count(part, self.headers.get("Authorization"))
        if hub.is_away:
            return self._send(503, b"", {})
        if hub.knows_no_token and self.headers.get("Authorization"):
            return self._send(401, b"", {"X-Error-Message": "Invalid credentials in Authorization header"})
        if not has_budget:
            wait = str(hub.wait_seconds)
            said = f'"{part}";r=0;t={wait}' if hub.wait_header == "RateLimit" else wait
            return self._send(
                429, b"{}", {hub.wait_header: said, "RateLimit-Policy": f'"fixed window";"{part}";q=1;w=300'}
            )
        asked = re.fullmatch(
            rf"/api/({KINDS})/([^/]+/[^/]+)(?:/(revision|tree|paths-info)(?:/([^/]+))?(?:/(.*))?)?", path
        )
        if asked:
            return self._answer_api(
                hub, f"{asked[1]}/{asked[2]}", asked[3] or "", unquote(asked[4] or "main"), asked[5], query, body
            )
        asked = re.fullmatch(rf"/(?:({KINDS})/)?([^/]+/[^/]+)/resolve/(.+)", path)
        if asked is None:
            return self._answer_writer(hub, path, body)
        kind = asked[1] or "models"
        revision, _, name = ("main", "", asked[3]) if kind == "buckets" else asked[3].partition("/")
        return self._answer_file(hub, f"{kind}/{asked[2]}", unquote(revision), unquote(name))

    def _find(self, hub: Hub, name: str, revision: str) -> tuple[str, dict[str, File]] | None:
        """The commit and its files; else the refusal is sent."""
        repository, given = hub.repositories.get(name), self.headers.get("Authorization")
        if repository is None or (
            repository.token and given != f"Bearer {repository.token}" and not repository.is_gated
        ):
            self._refuse("RepoNotFound", 404 if given else 401)
        elif repository.is_gated and given != f"Bearer {repository.token}":
            self._refuse("GatedRepo", 403 if given else 401)
        elif (commit := repository.find(revision)) is None:
            self._refuse("RevisionNotFound")
        else:
            return commit, repository.commits[commit]
        return None

    def _answer_api(
        self, hub: Hub, name: str, what: str, revision: str, folder: str | None, query: str, body: bytes
    ) -> None:
        is_bucket = name.startswith("buckets/")
        if is_bucket and what == "tree":  # it has no revision
            folder, revision = "/".join(filter(None, (revision if revision != "main" else "", folder))), "main"
        found = self._find(hub, name, revision)
        if found is None:
            return None
        commit, files = found
        given = parse_qs(query)
        if what == "paths-info":
            is_json = "json" in self.headers.get("Content-Type", "")
            paths = (json.loads(body) if is_json else parse_qs(body.decode())).get("paths", [])
            return self._send_json(_entries(files, [paths] if isinstance(paths, str) else paths, is_bucket=is_bucket))
        if what == "tree":
            is_recursive = given.get("recursive", [""])[0].lower() == "true"
            return self._send_tree(
                hub, files, unquote(folder or ""), given, is_recursive=is_recursive, is_bucket=is_bucket
            )
        about: dict[str, Any] = {"id": name.partition("/")[2], "sha": commit}
        if "expand" not in given:
            repository = hub.repositories[name]
            about |= {"lastModified": DATE, "private": bool(repository.token), "downloads": 0, "likes": 0, "tags": []}
            about |= {"gated": "manual" if repository.is_gated else False, "size": 0, "totalFiles": len(files)}
            about |= {"createdAt": DATE, "siblings": [{"rfilename": path} for path in files]}
        return self._send_json(about)

    def _answer_writer(self, hub: Hub, path: str, body: bytes) -> None:
        """What is asked for a commit."""
        if asked := re.fullmatch(r"/([^/]+/[^/]+/[^/]+)\.git/info/lfs/objects/(.+)", path):
            return self._answer_lfs(hub, asked[2], body)
        asked = re.fullmatch(r"/api/(\w+/[^/]+/[^/]+)/(preupload|commit|auth-check|refs)(?:/(.+))?", path)
        if asked is None:
            return self._refuse("EntryNotFound")
        name, what, revision = asked[1], asked[2], unquote(asked[3] or "main")
        found = self._find(hub, name, "main" if what == "auth-check" else revision)
        if found is None:
            return None
        repository, given = hub.repositories[name], self.headers.get("Authorization")
        if (what != "refs" and asked[3]) and given != f"Bearer {repository.write_token}":
            words = "Forbidden: you do not have the rights to write here" if given else "Invalid username or password."
            self._send(403 if given else 401, json.dumps({"error": words}).encode(), {})
        elif what == "commit":
            self._answer_commit(hub, name, revision, found[0], [json.loads(line) for line in body.splitlines()])
        elif what == "preupload":
            files = [File(each["path"], bytes(each["size"])) for each in json.loads(body)["files"]]
            self._send_json({"files": [_upload_of(file, found[1].get(file.path)) for file in files]})
        else:
            kinds = {"branches": {"main": repository.find("main"), **repository.branches}, "tags": repository.tags}
            refs = {
                kind: [{"name": own, "ref": own, "targetCommit": commit} for own, commit in names.items()]
                for kind, names in kinds.items()
            }
            self._send_json({**refs, "converts": []})
        return None

    def _answer_commit(self, hub: Hub, name: str, branch: str, now: str, lines: list[dict[str, Any]]) -> None:
        repository = hub.repositories[name]
        if lines[0]["value"].get("parentCommit") not in (None, now):
            return self._send(412, b'{"error": "A commit has happened since. Please refresh and try again."}', {})
        if branch != "main" and branch not in repository.branches:
            return self._send(400, b'{"error": "Commits are made to branches"}', {})
        commit = hub.take(repository, branch, lines)
        page = f"{hub.url}/{name}/commit/{commit}"
        return self._send_json({"success": True, "commitOid": commit, "commitUrl": page, "hookOutput": ""})

    def _answer_lfs(self, hub: Hub, what: str, body: bytes) -> None:
        """Where large files go, and these."""
        if what != "batch":
            hub.upload(what, body)
            return self._send(200, b"", {})
        url = f"{hub.url}{self.path.removesuffix('batch')}"
        objects = [
            {"oid": each["oid"], "size": each["size"], "actions": {"upload": {"href": url + each["oid"], "header": {}}}}
            for each in json.loads(body)["objects"]
        ]
        return self._send_json({"transfer": "basic", "objects": objects})

    def _send_tree(
        self,
        hub: Hub,
        files: dict[str, File],
        folder: str,
        given: dict[str, list[str]],
        *,
        is_recursive: bool,
        is_bucket: bool,
    ) -> None:
        start = f"{folder}/" if folder else ""
        inside = [path for path in sorted(files) if path.startswith(start)]
        folders = {path[:at] for path in inside for at in range(len(start), len(path)) if path[at] == "/"}
        names = [name for name in sorted({*inside, *folders}) if is_recursive or "/" not in name[len(start) :]]
        if folder and not names:
            return self._refuse("EntryNotFound")
        at = int(given.get("cursor", ["0"])[0])
        headers = {}
        if at + hub.page_size < len(names):
            here = f"{hub.url}{self.path.partition('?')[0]}?recursive={str(is_recursive).lower()}"
            headers["Link"] = f'<{here}&cursor={at + hub.page_size}>; rel="next"'
        return self._send_json(_entries(files, names[at : at + hub.page_size], is_bucket=is_bucket), headers)

    def _answer_file(self, hub: Hub, name: str, revision: str, path: str) -> None:
        found = self._find(hub, name, revision)
        if found is None:
            return None
        commit, files = found
        file = files.get(path)
        is_bucket = name.startswith("buckets/")
        headers = {} if is_bucket else {"X-Repo-Commit": commit}
        if file is None:
            return self._refuse("EntryNotFound", headers=headers)
        if file.is_stored or is_bucket:
            headers |= {"X-Linked-Size": str(len(file.data)), "X-Linked-Etag": f'"{file.sha256}"'}
            return self._send(302, b"", {**headers, "Location": hub.signed(file)})
        data = file.data
        headers |= {"ETag": f'"{file.oid}"', "Accept-Ranges": "bytes"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and int(asked[1]) >= len(data):
            return self._send(416, b"", {**headers, "Content-Range": f"bytes */{len(data)}"})
        first, last = (int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)) if asked else (0, len(data) - 1)
        if asked:
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        hub.inline_bytes += 0 if self.command == "HEAD" else last + 1 - first
        return self._send(206 if asked else 200, data[first : last + 1], headers)

    def _refuse(self, code: str, status: int = 404, *, headers: dict[str, str] | None = None) -> None:
        """Say no, as the Hub does it: it tells nobody who gives no token that a repository is missing."""
        self._send(status, json.dumps({"error": code}).encode(), {**(headers or {}), "X-Error-Code": code})

    def _send_json(self, value: Any, headers: dict[str, str] | None = None) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _send(self, code: int, data: bytes, headers: dict[str, str]) -> None:
        time.sleep(max(self._first_byte_at - time.perf_counter(), 0))
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the standard library
        """Log nothing."""


def _upload_of(file: File, now: File | None) -> dict[str, Any]:
    """How a file is to be uploaded, and what is there now."""
    mode = "lfs" if file.is_stored else "regular"
    return {"path": file.path, "uploadMode": mode, "shouldIgnore": False, "oid": now and now.oid}


def _entries(files: dict[str, File], names: list[str], *, is_bucket: bool) -> list[dict[str, Any]]:
    """What is said of files and folders that are there."""
    found: list[dict[str, Any]] = []
    for name in names:
        if name in files:
            found.append(files[name].entry(is_bucket=is_bucket))
        elif any(path.startswith(f"{name}/") for path in files):
            about = {"uploadedAt": DATE} if is_bucket else {"oid": hashlib.sha1(name.encode()).hexdigest(), "size": 0}
            found.append({"type": "directory", "path": name, **about})
    return found


def _files_of(directory: str) -> dict[str, bytes | mmap.mmap]:
    """All files of a directory, by their paths in it; large ones stay on the disk."""
    found: dict[str, bytes | mmap.mmap] = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                is_large = os.path.getsize(path) > MAX_INLINE_BYTES
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if is_large else file.read()
            found[os.path.relpath(path, directory)] = data
    return found

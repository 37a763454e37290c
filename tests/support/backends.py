"""Real stores on the loopback interface: nginx, S3 (moto) and Google Cloud Storage (gcp-storage-emulator).

Rules: a store serves a whole test module, and each test gets a `Place` of its own in it, so no test sees what another
one put there. No port is guessed: each server listens on one that the kernel chose. What is started is ended.
"""

import contextlib
import itertools
import json
import os
import socket
import subprocess
import threading
import urllib.request
from functools import partial
from http.server import ThreadingHTTPServer
from urllib.parse import quote

import fsspec
import pytest
from gcp_storage_emulator.server import RequestHandler
from gcp_storage_emulator.storage import Storage
from moto.server import ThreadedMotoServer
from s3fs import S3FileSystem

from tests.support import tools
from tests.support.cache_shards import md5
from tests.support.clocks import PATIENCE_SECONDS

# Of buckets: all S3 servers of a process show the same ones.
_NAMES = map("bucket-{}".format, itertools.count())

_CONF = """
daemon off;
@USER@
pid nginx.pid;
error_log error.log info;
events { worker_connections 256; }
http {
  log_format facts escape=json '{"target": "$request_uri", "status": $status, "range": "$http_range",'
                               ' "encoding": "$sent_http_content_encoding", "connection": $connection,'
                               ' "authorization": "$http_authorization"}';
  access_log access.log facts;
  client_body_temp_path temp/body;  proxy_temp_path temp/proxy;  fastcgi_temp_path temp/fastcgi;
  uwsgi_temp_path temp/uwsgi;  scgi_temp_path temp/scgi;
  types { application/x-tar tar; text/html html; }
  default_type application/octet-stream;
  server {
    listen 127.0.0.1:@PORT@;
    root "@FILES@";
    location = /ready  { return 204; }
    location = /login.html { return 200 "<!DOCTYPE html><title>Log in</title>"; }
    # The same files once more, each time served in another way.
    location /denied/  { alias "@FILES@/"; deny all; }
    location /secret/  { alias "@FILES@/"; auth_basic "shards"; auth_basic_user_file users; }
    location /moved/   { rewrite ^/moved/(.*)$ /$1?signature=a%2Fb%3D redirect; }
    location /loop/    { rewrite ^ /loop/again redirect; }
    location /login/   { return 302 /login.html; }
    location /page/    { error_page 404 =200 /login.html; return 404; }
    location /gone/    { return 410; }
    location /busy/    { return 503; }
    location /deflated/ { alias "@FILES@/"; gzip on; gzip_types application/x-tar; gzip_min_length 1; }
    location /zipped/  { alias "@FILES@/"; gzip_static always; }
    location /closing/ { alias "@FILES@/"; keepalive_timeout 0; }
    location /slow/    { alias "@FILES@/"; limit_rate 2m; }
    location /halting/ { alias "@FILES@/"; include halting; }
    location /whole/   { alias "@FILES@/"; max_ranges 0; }
    # As an endpoint of Google Cloud Storage: buckets that nobody may read.
    location ~ ^(/download)?/storage/v1/b/forbidden/    { return 403 '{"error": {"code": 403, "message": "No."}}'; }
    location ~ ^(/download)?/storage/v1/b/unauthorized/ { return 401 '{"error": {"code": 401, "message": "No."}}'; }
  }
}
"""


class Place:
    """Somewhere that holds files by name.

    Args:
        url: where; no trailing slash.
        put: function (name, bytes) that puts a file there, also in place of another one.
        options: the ``storage_options`` that reach it.
        requests: function (URL) that tells what was asked for there: see `Nginx.requests`, `Buckets.requests`.
        nowhere: a URL like it with nothing behind it; of a bucket that does not exist where there are buckets.
    """

    def __init__(self, url, put, *, options=None, requests=None, nowhere=None):
        self.url, self.put, self.options, self.requests = url, put, options, requests
        self.nowhere = nowhere or f"{url}/nowhere"

    def add(self, name, data):
        """Put a file there; returns its URL."""
        self.put(name, data)
        return f"{self.url}/{name}"

    def add_index(self, shards, name="train.json"):
        """Put an index of ``shards`` (dicts, see `entry`) there; returns its URL."""
        return self.add(name, json.dumps({"wids_version": 1, "shardlist": shards}).encode())


def entry(url, data, **facts):
    """A shard as an index lists it, with its true size and md5; ``facts`` override, and None leaves out."""
    known = {"url": url, "nsamples": 3, "filesize": len(data), "md5sum": md5(data), **facts}
    return {name: value for name, value in known.items() if value is not None}


def ranges_of(requests):
    """The byte ranges that were asked for, half-open, in order of their place; of requests that all had one."""
    spans = [one["range"].removeprefix("bytes=").split("-") for one in requests]
    return sorted((int(first), int(last) + 1) for first, last in spans)


class Nginx:
    """An nginx that serves ``files`` in many ways, one for each of its locations; see `nginx`.

    Args:
        directory: holds its configuration, logs and files.
        listener: the socket that it listens on; stays the caller's.

    Attributes:
        url: of the server; no trailing slash.
    """

    def __init__(self, directory, listener):
        self._directory, self._listener, self._process = directory, listener, None
        self._files, self._log = os.path.join(directory, "files"), os.path.join(directory, "access.log")
        self._names = map("place-{}".format, itertools.count())
        port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        for name in (self._files, os.path.join(directory, "temp")):
            os.makedirs(name)
        # The process that answers would not be root, and only its user may enter pytest's directories.
        facts = {"PORT": str(port), "FILES": self._files, "USER": "user root;" if os.geteuid() == 0 else ""}
        conf = _CONF
        for name, value in facts.items():
            conf = conf.replace(f"@{name}@", value)
        self._write("nginx.conf", conf)
        self._write("users", "me:{PLAIN}open sesame\n")

    def start(self, *, halts=True):
        """Start it, and wait until it answers.

        Args:
            halts: location ``halting`` sends 256 KiB of each answer, then next to nothing; else it is as any other.
        """
        binary = tools.program("nginx")
        self._write("halting", "limit_rate_after 256k; limit_rate 1;" if halts else "")
        output = os.path.join(self._directory, "output")
        with open(output, "ab") as out:
            # As when a running nginx starts a new version of itself, it takes the socket that is listening already.
            self._process = subprocess.Popen(
                [binary, "-p", self._directory, "-c", "nginx.conf"],
                env={**os.environ, "NGINX": f"{self._listener.fileno()};"},
                pass_fds=[self._listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        with open(output, encoding="utf-8") as out:
            # The listener is this process's too: without nginx, who connects waits for ever.
            while True:
                try:
                    self._wait(1)
                except OSError as error:
                    if self._process.poll() is not None:
                        raise RuntimeError(f"nginx does not run: {out.read()}") from error
                else:
                    return

    def stop(self):
        """End it at once, in the middle of what it sends; who connects then waits until it is started again."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE_SECONDS)

    def place(self):
        """A directory of its own for one test."""
        name = next(self._names)
        directory = os.path.join(self._files, name)

        def put(file, data):
            path = os.path.join(directory, file)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(f"{path}.new", "wb") as out:
                out.write(data)
            os.replace(f"{path}.new", path)

        return Place(f"{self.url}/{name}", put, requests=self.requests)

    def served(self, url, way):
        """A URL of a place, served by another location: ``denied``, ``slow``, ... (see the configuration)."""
        return f"{self.url}/{way}/{url.removeprefix(self.url).lstrip('/')}"

    def requests(self, url):
        """The requests for ``url`` that were answered, as dicts of what the log says, in order."""
        # One process answers, one thing after the other: when this is answered, all that was before is in the log.
        self._wait(PATIENCE_SECONDS)
        with open(self._log, encoding="utf-8") as log:
            lines = [json.loads(line) for line in log]
        return [line for line in lines if line["target"] == url.removeprefix(self.url)]

    def _wait(self, seconds):
        with urllib.request.urlopen(f"{self.url}/ready", timeout=seconds):
            pass

    def _write(self, name, words):
        with open(os.path.join(self._directory, name), "w", encoding="utf-8") as file:
            file.write(words)


@contextlib.contextmanager
def nginx(directory):
    """An `Nginx` that has its configuration, logs and files in ``directory``."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        server = Nginx(os.fspath(directory), listener)
        try:
            server.start()
            yield server
        finally:
            server.stop()


class Buckets:
    """Buckets behind one endpoint.

    Attributes:
        endpoint: the server's URL. options: the ``storage_options`` that reach it.
        seen: all requests that were answered, as dicts; whoever runs the server writes them down.
    """

    scheme = target = ""

    def __init__(self, endpoint, seen, **options):
        self.endpoint, self.seen, self.options = endpoint, seen, {"endpoint_url": endpoint, **options}

    def place(self, bucket=None):
        """A bucket of its own for one test, by that name or any."""
        bucket = bucket or next(_NAMES)
        self.make(bucket)
        return Place(
            f"{self.scheme}://{bucket}",
            partial(self.put, bucket),
            options=self.options,
            requests=self.requests,
            nowhere=f"{self.scheme}://nowhere",
        )

    def requests(self, url):
        """The requests for the bytes of ``url`` (a plain name) that were answered, in order.

        Dicts of ``method``, ``target``, ``status``, ``range`` and ``authorization``, "" where there was none.
        """
        bucket, _, name = url.removeprefix(f"{self.scheme}://").partition("/")
        target = self.target.format(bucket=bucket, name=quote(name, safe=""))
        return [one for one in list(self.seen) if (one["method"], one["target"]) == ("GET", target)]

    def send(self, method, target, data=None, **headers):
        """Make a request, which must be granted; returns the headers of the answer."""
        headers.setdefault("Content-Type", "application/octet-stream")  # urllib's own announces a form
        request = urllib.request.Request(self.endpoint + target, data=data, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return answer.headers


class _S3(Buckets):
    scheme, target = "s3", "/{bucket}/{name}"
    # Who does not sign may put objects there, but none in place of another one.
    _SIGNED = "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=y"

    def make(self, bucket):
        self.send("PUT", f"/{bucket}")

    def put(self, bucket, name, data):
        self.send("PUT", f"/{bucket}/{quote(name)}", data, Authorization=self._SIGNED)

    def show_to_all(self, url):
        """Let those read an object who do not sign, too."""
        headers = {"Authorization": self._SIGNED, "X-Amz-Acl": "public-read"}
        self.send("PUT", f"{url.removeprefix('s3:/')}?acl", b"", **headers)

    @contextlib.contextmanager
    def nobody_is_known(self):
        """No key may do anything, but for this."""
        self.send("POST", "/moto-api/reset-auth", b"0")
        try:
            yield
        finally:
            self.send("POST", "/moto-api/reset-auth", b"inf")


class _GoogleStorage(Buckets):
    scheme, target = "gs", "/download/storage/v1/b/{bucket}/o/{name}?alt=media"

    def make(self, bucket):
        about = json.dumps({"name": bucket}).encode()
        self.send("POST", "/storage/v1/b", about, **{"Content-Type": "application/json"})

    def put(self, bucket, name, data):
        # The other ways of the emulator take no empty objects.
        target = f"/upload/storage/v1/b/{bucket}/o?uploadType=resumable&name={quote(name, safe='')}"
        self.send("PUT", self.send("POST", target)["Location"].removeprefix(self.endpoint), data)


@contextlib.contextmanager
def s3():
    """`Buckets` in S3."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("AWS_PROFILE", raising=False)  # the user's own, which may not be there
            host, port = server.get_host_and_port()
            seen = []
            server._server.app = _written_down(server._server.app, seen)
            yield _S3(f"http://{host}:{port}", seen, key="x", secret="y")
    finally:
        server.stop()
        S3FileSystem.clear_instance_cache()


def _written_down(app, seen):
    """A WSGI application that puts what is asked of it into ``seen``."""

    def call(environ, start_response):
        def start(status, *rest):
            facts = {"method": environ["REQUEST_METHOD"], "target": environ["PATH_INFO"], "status": int(status[:3])}
            headers = {name: environ.get(f"HTTP_{name.upper()}", "") for name in ("range", "authorization")}
            seen.append({**facts, **headers})
            return start_response(status, *rest)

        return app(environ, start)

    return call


@contextlib.contextmanager
def gs():
    """`Buckets` in Google Cloud Storage."""
    # The emulator's own server takes one connection after another, and lets five wait: a sixth would for a second.
    seen = []
    handler = partial(_Handler, Storage(use_memory_fs=True), seen=seen)
    with _Emulator(("127.0.0.1", 0), handler) as server, plain_gcsfs():
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield _GoogleStorage(f"http://127.0.0.1:{server.server_port}", seen, token="anon")
        finally:
            server.shutdown()
            thread.join()


class _Handler(RequestHandler):
    def __init__(self, *args, seen):
        self._seen = seen
        super().__init__(*args)

    def send_response(self, code, message=None):
        """Write down what is answered."""
        headers = {name: self.headers.get(name, "") for name in ("range", "authorization")}
        self._seen.append({"method": self.command, "target": self.path, "status": int(code), **headers})
        super().send_response(code, message)


class _Emulator(ThreadingHTTPServer):
    daemon_threads = False  # so that closing waits for the handlers
    request_queue_size = 64

    def handle_error(self, request, client_address):
        """Gcsfs hangs up on the slower of two requests whenever it looks for an object."""


@contextlib.contextmanager
def plain_gcsfs():
    """Gcsfs without its look at the kind of bucket over gRPC, which no emulator answers: each call would take 60 s.

    The variable is read when gcsfs is imported, here and in the processes that are started; this process may have
    imported it before.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        from gcsfs.core import GCSFileSystem

        before = {scheme: fsspec.registry.get(scheme, GCSFileSystem) for scheme in ("gs", "gcs")}
        try:
            for scheme in before:
                fsspec.register_implementation(scheme, GCSFileSystem, clobber=True)
            yield
        finally:
            for scheme, filesystem in before.items():
                fsspec.register_implementation(scheme, filesystem, clobber=True)
            GCSFileSystem.clear_instance_cache()


def memory(name):
    """A `Place` in this process's memory (fsspec's)."""
    filesystem = fsspec.filesystem("memory")
    return Place(f"memory://{name}", lambda file, data: filesystem.pipe_file(f"/{name}/{file}", data))

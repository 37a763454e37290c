"""Each kind of store keeps the promises of `wids.testing.ByteSourceSuite`, or says that it cannot.

To add a kind of store: a class like those below.
"""

import asyncio
import contextlib
import json
import os
import shlex

import fsspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from s3fs import S3FileSystem

from tests.support import backends
from tests.support.children import PATIENCE_SECONDS
from tests.support.hub import begin_run, standing_in
from tests.support.range_faults import held, short
from tests.support.servers import cut, stall, status
from wids.errors import FetchError
from wids.testing import ByteSourceSuite
from wids.testing.sources import DATA


class Store(ByteSourceSuite):
    """The suite, with pieces of any kind."""

    @settings(
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.too_slow,
            HealthCheck.differing_executors,
        ],
        deadline=None,
        max_examples=15,
    )
    @given(
        pieces=st.lists(st.tuples(st.integers(0, len(DATA) + 100), st.integers(0, 3000)), max_size=8),
        gap=st.integers(0, 2000),
    )
    def test_any_pieces(self, target, pieces, gap):
        """As in the suite, where they are a few."""
        self.check_pieces(pieces, gap=gap)


class TestLocal(Store):
    """A file."""

    @pytest.fixture(autouse=True)
    def _store(self, tmp_path, monkeypatch):
        self._path, self._patch = tmp_path / "a.tar", monkeypatch
        self.url = str(self._path)

    def put(self, data):
        """By another file in its place, as writers of shards do it; of another time."""
        new = self._path.with_suffix(".new")
        new.write_bytes(data)
        seconds = os.stat(self._path).st_mtime + 1 if self._path.exists() else 1_000_000_000
        os.utime(new, (seconds, seconds))
        os.replace(new, self._path)

    def remove(self):
        """No file."""
        self._path.unlink()

    def deny(self):
        """Not by its mode, which says nothing to root."""
        real = os.open

        def refuse(path, *args, **kwargs):
            if path == self.url:
                raise PermissionError(13, "Permission denied", path)
            return real(path, *args, **kwargs)

        self._patch.setattr(os, "open", refuse)
        return contextlib.nullcontext()

    def shorten(self):
        """It is cut when it is read."""
        real = os.pread

        def read(fd, count, at):
            os.truncate(self.url, len(DATA) // 2)
            return real(fd, count, at)

        self._patch.setattr("wids.core.files.system.pread", read)


class TestMemory(Store):
    """fsspec's memory, which blocks, and tells no version."""

    has_version = False

    @pytest.fixture(autouse=True)
    def _store(self, tmp_path, monkeypatch):
        self._filesystem, self._patch = fsspec.filesystem("memory"), monkeypatch
        self._name = f"/{tmp_path.name}/a.tar"
        self.url = f"memory:/{self._name}"
        yield
        self._filesystem.store.pop(self._name, None)

    def put(self, data):
        """As any program would."""
        self._filesystem.pipe_file(self._name, data)

    def remove(self):
        """Likewise."""
        self._filesystem.rm_file(self._name)

    def deny(self):
        """Its methods refuse."""

        def refuse(*args, **kwargs):
            raise PermissionError(13, "Permission denied", self._name)

        self._patch.setattr(type(self._filesystem), "info", refuse)
        self._patch.setattr(type(self._filesystem), "open", refuse)
        return contextlib.nullcontext()

    def shorten(self):
        """The object is half as long for all that read, and not for those that ask how long it is."""
        kind = type(self._filesystem)
        info = self._filesystem.info(self._name)
        self._patch.setattr(kind, "info", lambda *args, **kwargs: info)
        self._patch.setitem(self._filesystem.store, self._name, _file(DATA[: len(DATA) // 2]))


def _file(data):
    """A file of fsspec's memory."""
    from fsspec.implementations.memory import MemoryFile

    return MemoryFile(fsspec.filesystem("memory"), "/x", data)


class TestHttp(Store):
    """A server with ranges."""

    path = "/a.tar"

    @pytest.fixture(autouse=True)
    def _store(self, server):
        self.server = server
        self.server.has_ranges = self.has_ranges
        self.url = self.server.url + self.path

    def put(self, data):
        """As a new version."""
        self.server.add(self.path, data)

    def remove(self):
        """404."""
        del self.server.files[self.path]

    def deny(self):
        """403."""
        self.server.faults[self.path] = [status(403)]
        return contextlib.nullcontext()

    def shorten(self):
        """A proper head, and half of the body."""
        self.server.faults[self.path] = [short]

    def stop(self):
        """A proper head, and nothing more."""
        self.server.faults[self.path] = [held]


class TestHttpWithoutRanges(TestHttp):
    """A server that answers with all of it."""

    has_ranges = False

    def shorten(self):
        """Half of what was announced, and the end of the connection."""
        self.server.faults["/a.tar"] = [cut]

    def stop(self):
        """Half, and nothing more."""
        self.server.faults["/a.tar"] = [stall]


class TestHub(Store):
    """A file of a repository of the Hugging Face Hub, at the commit that each run finds."""

    kind = "datasets"

    @pytest.fixture(autouse=True)
    def _store(self, tmp_path, monkeypatch):
        self._patch = monkeypatch
        with standing_in(monkeypatch, tmp_path / "hub", kind=self.kind) as self.hub:
            self.url = f"hf://{self.kind}/org/set/a.tar"
            yield

    def put(self, data):
        """By a commit, for a run that begins after it."""
        self.hub.put({"a.tar": data})
        begin_run(self._patch)

    def remove(self):
        """Likewise."""
        self.hub.remove("a.tar")
        begin_run(self._patch)

    def deny(self):
        """For all but those who have a token."""
        self.hub.repository.is_gated, self.hub.repository.token = True, "secret"
        return contextlib.nullcontext()

    def shorten(self):
        """The store behind the Hub gives half of it."""
        self.hub.store_fault = short

    def stop(self):
        """It gives nothing more."""
        self.hub.store_fault = held


class TestHubBucket(TestHub):
    """A file of a bucket, which has no commits."""

    kind = "buckets"


class TestS3(TestHttp):
    """A bucket, over HTTP with its client's signatures; the server is any that does not look at them."""

    path = "/bucket/a.tar"

    @pytest.fixture(autouse=True)
    def _store(self, server):
        self.server, server.has_ranges = server, True
        self.url = "s3://bucket/a.tar"
        self.storage_options = {"endpoint_url": server.url, "key": "x", "secret": "y"}


class TestGoogleStorage(TestHttp):
    """A bucket, over HTTP with its client's tokens; its size and version are another request."""

    path, _about = "/download/storage/v1/b/bucket/o/a.tar", "/storage/v1/b/bucket/o/a.tar"

    @pytest.fixture(autouse=True)
    def _store(self, server):
        self.server, server.has_ranges = server, True
        self.url = "gs://bucket/a.tar"
        self.storage_options = {"endpoint_url": server.url, "token": "anon"}
        with backends.plain_gcsfs():
            yield

    def put(self, data):
        """As a new generation."""
        super().put(data)
        generation = str(self.server.versions[self.path])
        self.server.add(
            self._about, json.dumps({"name": "a.tar", "size": len(data), "generation": generation}).encode()
        )

    def remove(self):
        """404, of both."""
        super().remove()
        del self.server.files[self._about]


class TestS3ByItsClient(Store):
    """A bucket, through an asynchronous client: options of its own connections are for it alone."""

    @pytest.fixture(autouse=True)
    def _store(self, s3, monkeypatch):
        self._buckets, self._place, self._patch = s3, s3.place(), monkeypatch
        self.url = f"{self._place.url}/a.tar"
        self.storage_options = {**s3.options, "config_kwargs": {"retries": {"max_attempts": 0}}}

    def put(self, data):
        """As any program would."""
        self._place.put("a.tar", data)

    def remove(self):
        """Likewise."""
        self._buckets.send("DELETE", self.url.removeprefix("s3:/"), Authorization=self._buckets._SIGNED)

    def deny(self):
        """No key counts."""
        return self._buckets.nobody_is_known()

    def shorten(self):
        """The client gives half of it."""
        real = S3FileSystem._cat_file

        async def read(*args, **kwargs):
            data = await real(*args, **kwargs)
            return data[: len(data) // 2]

        self._patch.setattr(S3FileSystem, "_cat_file", read)

    def stop(self):
        """The client waits."""

        async def wait(*args, **kwargs):
            await asyncio.sleep(10 * PATIENCE_SECONDS)

        self._patch.setattr(S3FileSystem, "_cat_file", wait)


class TestPipe(Store):
    """A program's output."""

    has_ranges = has_size = has_version = False
    missing = FetchError

    @pytest.fixture(autouse=True)
    def _store(self, tmp_path):
        self._path = tmp_path / "a.tar"
        self._program = "cat"

    @property
    def url(self):
        """The program with its file."""
        return f"pipe:{self._program} {shlex.quote(str(self._path))}"

    def put(self, data):
        """The file that it writes out."""
        self._path.write_bytes(data)

    def remove(self):
        """No such file."""
        self._path.unlink()

    def deny(self):
        """The program may not be run."""
        self._program = str(self._path)
        return contextlib.nullcontext()

    def shorten(self):
        """It fails half-way."""
        self._program = f"sh -c 'head -c {len(DATA) // 2} \"$0\"; exit 1'"

    def stop(self):
        """It stops half-way."""
        self._program = f"sh -c 'head -c {len(DATA) // 2} \"$0\"; sleep 1000'"

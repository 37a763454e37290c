"""What every byte source holds to: each kind of store passes all of this, or says that it cannot.

To add a kind of store: a class like those below, in `STORES`.
"""

import asyncio
import contextlib
import os
import shlex
import threading

import aiohttp
import fsspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from s3fs import S3FileSystem

from tests.support import backends
from tests.support.children import PATIENCE_SECONDS
from tests.support.range_faults import held, short
from tests.support.servers import cut, stall, status
from wids.errors import ChangedShardError, FetchDeniedError, FetchError, ShardNotFoundError, SizeMismatchError
from wids.transport import download, filesystems, retrying, stores
from wids.transport.download import Transfer
from wids.transport.failures import CancelledTransferError
from wids.transport.range_client import ShardBytes
from wids.transport.scheduler import read_spans
from wids.transport.source import Sink, Stat
from wids.transport.spans import Span
from wids.transport.stores import open_source

pytestmark = pytest.mark.usefixtures("no_waits")

DATA = bytes(k * k % 251 for k in range(20_000))
OTHER = DATA[::-1] + b"more"


class Store:
    """One kind of store, with one object.

    Attributes:
        url: of the object. options: the ``storage_options`` that reach it.
        has_ranges: spans can be read. has_size: the size is known before the bytes. has_version: so is the version.
        missing: the error where there is no object.
    """

    has_ranges = has_size = has_version = True
    missing = ShardNotFoundError
    options = None

    def put(self, data):
        """Make ``data`` the object, in the place of what it was."""
        raise NotImplementedError

    def remove(self):
        """Let there be no object."""
        raise NotImplementedError

    def deny(self):
        """Let nobody read it; a context."""
        raise NotImplementedError

    def shorten(self):
        """Give half of the bytes that are asked for, from now on."""
        raise NotImplementedError

    def stop(self):
        """Give nothing more, or only a beginning, and wait; a store that blocks gives all at once."""


class Local(Store):
    """A file."""

    def __init__(self, request):
        self._path = request.getfixturevalue("tmp_path") / "a.tar"
        self._patch = request.getfixturevalue("monkeypatch")
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

        self._patch.setattr("wids.files.system.pread", read)


class Memory(Store):
    """fsspec's memory, which blocks, and tells no version."""

    has_version = False

    def __init__(self, request):
        self._filesystem = fsspec.filesystem("memory")
        self._name = f"/{request.getfixturevalue('tmp_path').name}/a.tar"
        self._patch = request.getfixturevalue("monkeypatch")
        self.url = f"memory:/{self._name}"
        request.addfinalizer(lambda: self._filesystem.store.pop(self._name, None))

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


class Http(Store):
    """A server with ranges."""

    def __init__(self, request):
        self.server = request.getfixturevalue("server")
        self.server.has_ranges = self.has_ranges
        self.url = self.server.url + "/a.tar"

    def put(self, data):
        """As a new version."""
        self.server.add("/a.tar", data)

    def remove(self):
        """404."""
        del self.server.files["/a.tar"]

    def deny(self):
        """403."""
        self.server.faults["/a.tar"] = [status(403)]
        return contextlib.nullcontext()

    def shorten(self):
        """A proper head, and half of the body."""
        self.server.faults["/a.tar"] = [short]

    def stop(self):
        """A proper head, and nothing more."""
        self.server.faults["/a.tar"] = [held]


class HttpWithoutRanges(Http):
    """A server that answers with all of it."""

    has_ranges = False

    def shorten(self):
        """Half of what was announced, and the end of the connection."""
        self.server.faults["/a.tar"] = [cut]

    def stop(self):
        """Half, and nothing more."""
        self.server.faults["/a.tar"] = [stall]


class S3(Store):
    """A bucket, through an asynchronous client."""

    def __init__(self, request):
        self._buckets = request.getfixturevalue("s3")
        self._patch = request.getfixturevalue("monkeypatch")
        self._place = self._buckets.place()
        self.url, self.options = f"{self._place.url}/a.tar", self._buckets.options

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


class Pipe(Store):
    """A program's output."""

    has_ranges = has_size = has_version = False
    missing = FetchError

    def __init__(self, request):
        self._path = request.getfixturevalue("tmp_path") / "a.tar"
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


STORES = [Local, Memory, Http, HttpWithoutRanges, S3, Pipe]


@pytest.fixture(scope="module")
def s3():
    """See `backends.s3`."""
    with backends.s3() as buckets:
        yield buckets


@pytest.fixture(params=STORES, ids=lambda kind: kind.__name__)
def store(request):
    """Each kind of store, which holds DATA; no connection stays taken."""
    found = request.param(request)
    found.put(DATA)
    yield found
    ended = threading.Event()
    for _ in range(100 * PATIENCE_SECONDS):
        if is_idle():
            return
        ended.wait(0.01)
    pytest.fail("a connection is still taken")


def is_idle():
    """Whether no request is under way."""
    connections = filesystems.connections()
    return connections.slots.free == connections.count


class Written:
    """A sink that keeps what it gets.

    Attributes:
        stats: what the store said with the bytes. data: position -> bytes.
    """

    def __init__(self, learn=lambda stat: None):
        self.stats, self.data = [], {}
        self.sink = Sink(lambda stat: (self.stats.append(stat), learn(stat)), self.write)

    def write(self, at, data):
        """Each byte once."""
        positions = dict(enumerate(data, at))
        assert not positions.keys() & self.data.keys()
        self.data.update(positions)

    def holds(self, spans, data=DATA):
        """Whether it has the bytes of these spans, and no other."""
        return self.data == {k: data[k] for lo, hi in spans for k in range(lo, hi)}

    def is_true(self, data=DATA):
        """Whether all it has are bytes of the object."""
        return all(data[at] == byte for at, byte in self.data.items())


def opened(store, tmp_path, **options):
    """The store's object."""
    return open_source(store.url, store.options, path=str(tmp_path / "target"), **options)


def tried(store, function):
    """What a function returns, with the retries and the typed errors of all that fetches."""
    return retrying.try_repeatedly(function, url=store.url, path=None, hooks=())


def downloaded(store, tmp_path, **options):
    """The object in a file."""
    target = tmp_path / "target"
    target.write_bytes(b"before" * 10)
    download.download_to(
        store.url, str(target), check=lambda: None, storage_options=store.options, allow_pipe=True, **options
    )
    return target.read_bytes()


# --- what all of them give


def test_size_and_version(store, tmp_path):
    """What the store says of it: the same each time, and another thing of another object."""
    with opened(store, tmp_path) as source:
        first = source.stat()
        assert first == source.stat()
    assert first.size == (len(DATA) if store.has_size else None)
    assert (first.version is not None) == store.has_version
    assert first.has_ranges == store.has_ranges
    store.put(OTHER[: len(DATA)])
    with opened(store, tmp_path) as source:
        assert (source.stat() != first) == store.has_version


@pytest.mark.parametrize("data", [b"", b"x", DATA, 3 * DATA], ids=len)
def test_all_of_it(store, tmp_path, data):
    """In blocks, or a beginning of it, with or without a look at it before; and by a download into a file."""
    store.put(data)
    for end in (None, 1, 10, len(data), len(data) + 10):
        for has_looked in (False, True):
            with opened(store, tmp_path) as source:
                if has_looked:
                    source.stat()
                assert b"".join(source.stream(end)) == data[:end]
    assert downloaded(store, tmp_path) == data
    assert downloaded(store, tmp_path, size=len(data)) == data


def test_spans(store, tmp_path):
    """The first byte and the last one, one in the middle, several, all; where there are none, that is said."""
    some = [Span(0, 1), Span(7, 600), Span(600, 700), Span(9000, 9001), Span(len(DATA) - 1, len(DATA))]
    for spans in ([], *([span] for span in some), some, [Span(0, len(DATA))]):
        with opened(store, tmp_path) as source:
            if store.has_ranges:
                stat = source.stat(spans[0] if spans else Span(0, 1))
                written = Written()
                read_spans(source, spans, written.sink)
                assert written.holds(spans)
                assert set(written.stats) <= {stat}
                assert written.stats or (source.answers_have_stat and not spans)
            elif store.has_size and spans == [Span(0, len(DATA))]:  # all of it is a range, too
                written = Written(refuse)
                read_spans(source, spans, written.sink)
                assert written.holds(spans)
            elif spans:
                written = Written(refuse)
                with pytest.raises(FetchError, match=r"no ranges|no positions"):
                    read_spans(source, spans, written.sink)
                assert written.data == {}


def refuse(stat):
    """A sink that needs ranges."""
    if not stat.has_ranges:
        raise FetchError("no ranges")


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=15
)
@given(
    pieces=st.lists(st.tuples(st.integers(0, len(DATA) + 100), st.integers(0, 3000)), max_size=8),
    gap=st.integers(0, 2000),
)
def test_any_pieces(store, pieces, gap):
    """Overlapping, empty, past the end: what a slice of the bytes would be. Without ranges, a typed error."""
    wanted = [(lo, lo + count) for lo, count in pieces]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filesystems.Connections, "gap_bytes", lambda self, host: gap)
        if not store.has_ranges:
            with pytest.raises(FetchError, match=r"no byte ranges|no positions"):
                shard_of(store).read_many([*wanted, (0, 1)])
            return
        with shard_of(store) as shard:
            assert shard.read_many(wanted) == [DATA[lo:hi] for lo, hi in wanted]
            assert [shard.read(lo, hi - lo) for lo, hi in wanted] == [DATA[lo:hi] for lo, hi in wanted]


def shard_of(store, **options):
    """The object, by position."""
    return ShardBytes(store.url, storage_options=store.options, **options)


@pytest.mark.parametrize("span", [Span(len(DATA), len(DATA) + 9), Span(len(DATA) - 9, len(DATA) + 9)], ids=str)
def test_past_the_end(store, tmp_path, span):
    """A source that is asked for more than there is gives no byte that is not there, and does not pass for whole."""
    written = Written(refuse)
    with opened(store, tmp_path) as source, pytest.raises((OSError, ValueError, FetchError)):
        read_spans(source, [span], written.sink)
    assert written.is_true()


def test_an_empty_object(store, tmp_path):
    """No bytes, and no error."""
    store.put(b"")
    with opened(store, tmp_path) as source:
        assert source.stat().size == (0 if store.has_size else None)
        assert list(source.stream()) in ([], [b""])
    if store.has_ranges:
        with shard_of(store) as shard:
            assert (shard.size, shard.read(0, 10), shard.read_many([(0, 5)])) == (0, b"", [b""])


# --- what goes wrong


def test_no_object(store, tmp_path):
    """A typed error that names it, of a look and of a read."""
    store.remove()

    def look():
        with opened(store, tmp_path) as source:
            return source.stat()

    def read():
        with opened(store, tmp_path) as source:
            return list(source.stream())

    for once in (look, read):
        if once is look and not store.has_size:  # a program says nothing before it runs
            assert tried(store, once) == Stat(None, None, has_ranges=False)
            continue
        with pytest.raises(store.missing, match=r"a\.tar") as caught:
            tried(store, once)
        assert type(caught.value) is store.missing


def test_no_permission(store, tmp_path):
    """Likewise."""

    def once():
        with opened(store, tmp_path) as source:
            source.stat()
            return list(source.stream())

    with store.deny(), pytest.raises(FetchDeniedError, match=r"a\.tar"):
        tried(store, once)


def test_another_object_between_look_and_read(store, tmp_path):
    """No bytes of two versions: those of the first one, or the sink learns that it is another one."""
    with opened(store, tmp_path) as source:
        before = source.stat(Span(0, 100) if store.has_ranges else None)
        store.put(OTHER)
        if not store.has_ranges:
            found = b"".join(source.stream())
            assert found == (DATA if store.has_size else OTHER)  # a program has not run yet
            return
        written = Written()
        read_spans(source, [Span(0, 100), Span(100, len(DATA))], written.sink)
    assert written.holds([Span(0, len(DATA))]) or set(written.stats) - {before}


def test_another_object_between_two_reads(store, tmp_path):
    """A reader refuses it; a download brings the new one."""
    if store.has_ranges:
        with shard_of(store) as shard:
            assert shard.read(5, 5) == DATA[5:10]
            store.put(OTHER)
            with pytest.raises(ChangedShardError):
                shard.read(5, 5)
    store.put(OTHER)
    assert downloaded(store, tmp_path) == OTHER


def test_an_index_that_is_wrong(store, tmp_path):
    """Another size than the index says is found by all."""
    with pytest.raises(SizeMismatchError, match="filesize 77"):
        downloaded(store, tmp_path, size=77)
    if store.has_ranges:
        with pytest.raises(ChangedShardError):
            shard_of(store, size=77).read(0, 5)


def test_half_of_it(store, tmp_path):
    """What ends early is an error, and what came is true."""
    store.shorten()
    written = Written(refuse)

    def by_spans(source):
        read_spans(source, [Span(0, len(DATA))], written.sink)

    def by_stream(source):
        at = 0
        for block in source.stream():
            written.write(at, block)
            at += len(block)

    with opened(store, tmp_path) as source, pytest.raises((OSError, FetchError, aiohttp.ClientError)):
        (by_spans if store.has_ranges else by_stream)(source)
    assert written.is_true()
    with contextlib.suppress(FetchError):  # or it goes on where it ended
        assert downloaded(store, tmp_path, size=len(DATA)) == DATA


# --- the end


@pytest.mark.parametrize("count", [0, 1], ids=["at once", "in the middle"])
def test_cancelled(store, tmp_path, count):
    """A read ends soon after the caller wants it no more, and what came before is true."""
    store.stop()
    answers = iter([None] * count)

    def go_on():
        if next(answers, "no") == "no":
            raise CancelledTransferError

    written = Written()
    spans = [Span(lo, lo + 1000) for lo in range(0, len(DATA), 1000)]
    with opened(store, tmp_path, go_on=go_on) as source, pytest.raises(CancelledTransferError):
        read_spans(source, spans, written.sink) if store.has_ranges else list(source.stream())
    assert written.is_true()
    assert len(written.data) < len(DATA)


def test_a_download_cancelled(store, tmp_path, monkeypatch):
    """Likewise, of all the ways to fetch a file."""
    monkeypatch.setattr(stores, "BLOCK_BYTES", 1000)
    store.stop()
    answers = iter([False, False])
    (tmp_path / "target").write_bytes(b"")
    transfer = Transfer(
        store.url,
        str(tmp_path / "target"),
        storage_options=store.options,
        is_cancelled=lambda: next(answers, True),
    )
    with pytest.raises(CancelledTransferError):
        transfer.run()
    assert transfer.kept_bytes < len(DATA)


def test_nothing_stays_open(store, tmp_path):
    """A source that is closed has no descriptor and no connection, read or not."""
    with opened(store, tmp_path) as source:
        source.stat()
        list(source.stream())
    before = len(os.listdir("/proc/self/fd"))
    reads = (lambda source: None, lambda source: source.stat(), lambda source: next(iter(source.stream())))
    for read in 4 * reads:
        with opened(store, tmp_path) as source:
            read(source)
    assert len(os.listdir("/proc/self/fd")) <= before + 3  # connections of a client's pool, not one for each source

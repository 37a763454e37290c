"""Bytes by position: of local files, over HTTP, and from fsspec's other file systems."""

import fsspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import cache_shards as shards
from tests.support.examples import examples
from tests.support.servers import reset, status, whole
from wids.core.transport import concurrency, filesystems
from wids.core.transport.range_client import ShardBytes
from wids.core.transport.session import Session
from wids.errors import ChangedShardError, FetchError, ShardNotFoundError

DATA = bytes(i * i % 251 for i in range(50_000))


@pytest.fixture
def web(server):
    """A server that gives ranges."""
    server.has_ranges = True
    return server


@pytest.fixture
def memory(tmp_path):
    """The URL of ``DATA`` in fsspec's memory."""
    name = f"/{tmp_path.name}/a.tar"
    filesystem = fsspec.filesystem("memory")
    filesystem.pipe_file(name, DATA)
    yield f"memory:/{name}"
    filesystem.rm(name)


@pytest.fixture(params=["file", "http", "memory"])
def url(request, tmp_path):
    """``DATA`` in several places."""
    if request.param == "http":
        web = request.getfixturevalue("web")
        return web.add("/a.tar", DATA)
    if request.param == "memory":
        return request.getfixturevalue("memory")
    (tmp_path / "a.tar").write_bytes(DATA)
    return str(tmp_path / "a.tar")


@pytest.fixture
def close_gaps(monkeypatch):
    """Pieces more than 100 bytes apart are two requests."""
    monkeypatch.setattr(filesystems.Connections, "gap_bytes", lambda self, host: 100)


pieces = st.lists(st.tuples(st.integers(0, 50_100), st.integers(0, 3000)), max_size=8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(40))
@given(wanted=pieces)
def test_pieces_are_the_bytes_there(url, close_gaps, wanted):
    """Any pieces, in any order, overlapping, empty, beyond the end: what a slice of the bytes would be."""
    with ShardBytes(url) as source:
        assert source.read_many([(lo, lo + n) for lo, n in wanted]) == [DATA[lo : lo + n] for lo, n in wanted]
        assert source.size == len(DATA)


def test_close_pieces_are_one_request(web, close_gaps):
    """What lies between costs less than another request; what lies apart is asked for at the same time."""
    source = ShardBytes(web.add("/a.tar", DATA), size=len(DATA))
    pieces = [(9000, 9400), (0, 300), (380, 500)]
    assert source.read_many(pieces) == [DATA[lo:hi] for lo, hi in pieces]
    assert sorted(web.ranges) == [("/a.tar", 0, 500), ("/a.tar", 9000, 9400)]
    assert (source.requests, source.read_bytes) == (2, 900)


def test_no_more_than_half_is_read_beside(web, monkeypatch):
    """However long a request takes: at most 1.5 times the bytes asked for, the smallest gaps filled first."""
    monkeypatch.setattr(filesystems.Connections, "gap_bytes", lambda self, host: 1 << 20)
    source = ShardBytes(web.add("/a.tar", DATA), size=len(DATA))
    pieces = [(0, 100), (110, 200), (260, 300), (5000, 5100)]
    assert source.read_many(pieces) == [DATA[lo:hi] for lo, hi in pieces]
    assert sorted(web.ranges) == [("/a.tar", 0, 300), ("/a.tar", 5000, 5100)]


def test_much_comes_over_all_connections(web, set_limits):
    """One long read is several ranges at a time, as long as those of a fetch, which hold each byte once."""
    set_limits(concurrency, min_range_bytes=1, first_range_bytes=2 * 40_000 // concurrency.LIMITS.connections)
    source = ShardBytes(web.add("/a.tar", DATA), size=len(DATA))
    assert source.read(10, 40_000) == DATA[10:40_010]
    found = sorted(web.ranges)
    assert len(found) == concurrency.LIMITS.connections
    assert [lo for _, lo, _ in found] == [10, *(hi for _, _, hi in found[:-1])]


def test_the_size_of_the_index_saves_a_request(web):
    """Who knows it asks for nothing but the bytes; who does not asks once."""
    url = web.add("/a.tar", DATA)
    ShardBytes(url, size=len(DATA)).read(5, 5)
    assert len(web.requests) == 1
    source = ShardBytes(url)
    assert (source.read(5, 5), source.read(9, 1)) == (DATA[5:10], DATA[9:10])
    assert len(web.requests) == 4


def test_another_version_is_refused(web):
    """An object that is written anew, at its size or another, gives no byte more."""
    url = web.add("/a.tar", DATA)
    source = ShardBytes(url, size=len(DATA))
    assert source.read(0, 5) == DATA[:5]
    web.add("/a.tar", DATA[::-1])
    with pytest.raises(ChangedShardError, match="open the dataset again"):
        source.read(0, 5)
    web.add("/a.tar", DATA[:100])
    with pytest.raises(ChangedShardError):
        ShardBytes(url, size=len(DATA)).read(0, 5)
    with pytest.raises(ChangedShardError):
        ShardBytes(url, size=len(DATA)).read(5000, 5)


def test_another_version_in_memory_is_refused(memory):
    """Of file systems that tell no version with their bytes, it is asked for afterwards."""
    source = ShardBytes(memory)
    assert source.read(0, 5) == DATA[:5]
    fsspec.filesystem("memory").pipe_file(memory.removeprefix("memory:/"), DATA[:-1])
    with pytest.raises(ChangedShardError):
        source.read(0, 5)


def test_a_server_without_ranges_is_refused(server):
    """Not a gigabyte for one sample."""
    source = ShardBytes(server.add("/a.tar", DATA))
    assert source.size == len(DATA)
    with pytest.raises(FetchError, match="no byte ranges"):
        source.read(0, 5)


@pytest.mark.usefixtures("no_waits")
def test_faults_are_tried_again(web, events, close_gaps):
    """Only what failed is asked for again; what fails for good says so."""
    url = web.add("/a.tar", DATA, status(503), reset, whole)
    source = ShardBytes(url, size=len(DATA), session=Session(hooks=[events]))
    assert source.read_many([(20, 30_020)]) == [DATA[20:30_020]]
    assert events.names() == ["Retried"] * 2
    web.faults["/a.tar"] = [whole, status(503), whole]
    before = len(web.ranges)
    assert source.read_many([(0, 9), (9000, 9009)]) == [DATA[:9], DATA[9000:9009]]
    assert len(web.ranges) == before + 3
    web.faults["/a.tar"] = [status(503)]
    with pytest.raises(FetchError, match="503"):
        source.read(0, 10)


def test_what_is_not_there(web, tmp_path, memory):
    """A typed error that names it."""
    for url in (web.url + "/none.tar", str(tmp_path / "none.tar"), memory + ".none"):
        with pytest.raises(ShardNotFoundError, match="none"):
            _ = ShardBytes(url).size
    with pytest.raises(FetchError, match="program"):
        ShardBytes("pipe:cat x")


def test_an_empty_object(web, tmp_path):
    """It has no bytes, and that is no error here."""
    (tmp_path / "e").write_bytes(b"")
    for url in (web.add("/e.tar", b""), str(tmp_path / "e")):
        source = ShardBytes(url)
        assert (source.size, source.read(0, 10), source.read_many([])) == (0, b"", [])


def test_it_leaves_nothing_open(tmp_path):
    """A file is closed, also when it turns out to be another one."""
    path = tmp_path / "a"
    path.write_bytes(DATA)
    with ShardBytes(str(path)) as source:
        assert source.read(0, 3) == DATA[:3]
    with pytest.raises(ChangedShardError):
        ShardBytes(str(path), size=3).read(0, 1)
    assert shards.files_open_in(tmp_path) == []

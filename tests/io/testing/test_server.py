"""The loopback server of `wids.testing`: what it serves, counts, delays and does wrong, and that it ends."""

import contextlib
import http.client
import math
import os
import socket
import threading

import pytest

from tests.support.clocks import PATIENCE_SECONDS
from wids import testing
from wids.testing import Gate, Server
from wids.testing import server as server_module

CONTENT = bytes(range(256)) * 400


@pytest.fixture
def root(tmp_path):
    """A directory with a shard, and another one below it."""
    (tmp_path / "sub dir").mkdir()
    (tmp_path / "shard.tar").write_bytes(CONTENT)
    (tmp_path / "sub dir" / "b.tar").write_bytes(b"1234")
    return tmp_path


@pytest.fixture
def server(root):
    """A server of that directory."""
    with Server(root) as server:
        yield server


def connect(server):
    """A client's connection to a server."""
    host, port = server.url.removeprefix("http://").rsplit(":", 1)
    return http.client.HTTPConnection(host.strip("[]"), int(port), timeout=PATIENCE_SECONDS)


@pytest.fixture
def connection(server):
    """One connection to the server, kept open."""
    with contextlib.closing(connect(server)) as connection:
        yield connection


def ask(connection, method="GET", path="/shard.tar", **headers):
    """Status, headers and body of one request."""
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    reply = connection.getresponse()
    return reply.status, reply.headers, reply.read()


# --- what is served


def as_a_fault(reply, body):
    """What `testing.whole` does, as a user's own fault."""
    reply.end(reply.begin(body))


@pytest.mark.parametrize(
    ("asked", "status", "lo", "hi"),
    [
        (None, 200, 0, 102_400),
        ("bytes=0-", 206, 0, 102_400),
        ("bytes=10-19", 206, 10, 20),
        ("bytes=102000-999999", 206, 102_000, 102_400),
        ("bytes=-5", 206, 102_395, 102_400),
        ("bytes=0-1,5-6", 200, 0, 102_400),
        ("bytes=9-3", 200, 0, 102_400),
        ("lines=1-2", 200, 0, 102_400),
    ],
)
@pytest.mark.parametrize("fault", [None, testing.whole, as_a_fault])
@pytest.mark.parametrize("is_in_memory", [False, True])
def test_ranges_are_served(server, connection, asked, status, lo, hi, fault, is_in_memory):
    """One range is served as such, anything else as the whole body, from a file, memory or a fault alike."""
    if is_in_memory:
        server.add("/shard.tar", CONTENT)
    if fault:
        server.faults["/shard.tar"] = [fault]
    headers = {} if asked is None else {"Range": asked}
    found, told, body = ask(connection, **headers)
    assert (found, body) == (status, CONTENT[lo:hi])
    assert told["Accept-Ranges"] == "bytes"
    assert told["Content-Range"] == (f"bytes {lo}-{hi - 1}/102400" if status == 206 else None)


def test_range_outside_the_file_is_refused(connection):
    """A range behind the end is 416 with the file's size, and the connection goes on."""
    status, told, body = ask(connection, Range="bytes=102400-")
    assert (status, told["Content-Range"], body) == (416, "bytes */102400", b"")
    assert ask(connection, "HEAD")[0] == 200


def test_range_of_another_version_is_the_whole_file(connection):
    """`If-Range` with the file's tag keeps the range, with another tag the whole file is sent."""
    _, told, body = ask(connection, "HEAD")
    assert (told["Content-Length"], body) == ("102400", b"")
    assert ask(connection, Range="bytes=0-9", If_Range=told["ETag"])[0] == 206
    assert ask(connection, Range="bytes=0-9", If_Range='"other"')[0] == 200


def test_without_ranges(server, connection):
    """With ``has_ranges`` off, all of the body comes, whatever was asked for, and the range is noted all the same."""
    server.has_ranges = False
    status, told, body = ask(connection, Range="bytes=5-9")
    assert (status, body, told["Accept-Ranges"]) == (200, CONTENT, None)
    assert server.ranges == [("/shard.tar", 5, 10)]


def validators(connection):
    """What the answer to a GET says of the version."""
    told = ask(connection)[1]
    return told["ETag"], told["Last-Modified"]


def test_versions_have_their_own_validators(server, connection, root):
    """Another body has another tag and date; the same body the same ones, from a fault too; some can be left out."""
    from_file = validators(connection)
    server.faults["/shard.tar"] = [as_a_fault]
    assert validators(connection) == from_file
    os.utime(root / "shard.tar", (1, 1))
    assert all(new != old for new, old in zip(validators(connection), from_file, strict=True))
    server.add("/shard.tar", b"one")
    one = validators(connection)
    server.add("/shard.tar", b"two")
    two = validators(connection)
    assert len({*from_file, *one, *two}) == 6
    server.validators = ("ETag",)
    assert validators(connection) == (two[0], None)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/sub%20dir/b.tar?signature=1", b"1234"),
        ("/sub%20dir/../shard.tar", None),
        ("/sub%20dir/%2e%2e/shard.tar", None),
        ("/none.tar", None),
        ("/sub%20dir", None),
        ("/", None),
        ("/%00", None),
    ],
)
def test_files_of_the_directory_alone_are_served(connection, path, expected):
    """Files of the directory and those below it are served, nothing beside it; the connection goes on after a 404."""
    status, _, body = ask(connection, path=path)
    assert (status, body if status == 200 else None) == (404 if expected is None else 200, expected)
    assert ask(connection, "HEAD", path)[0] == status


def test_memory_comes_before_the_directory(server, connection):
    """What is added is served in place of a file of that name, by its path as sent; ``add`` gives the URL."""
    assert server.add("/a%20b.tar", b"added") == f"{server.url}/a%20b.tar"
    assert ask(connection, path="/a%20b.tar")[2] == b"added"
    server.add("/shard.tar", b"")
    assert ask(connection)[::2] == (200, b"")


def test_required_headers(server, connection):
    """Without the headers that the server requires, GET and HEAD are denied."""
    server.required_headers["X-Token"] = "secret"
    assert [ask(connection, method)[0] for method in ("GET", "HEAD")] == [403, 403]
    assert ask(connection, X_Token="other")[0] == 403
    assert ask(connection, X_Token="secret")[0] == 200


def test_ipv6(root):
    """It serves on the IPv6 loopback too."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 on this machine")
    with Server(root, host="::1") as server, contextlib.closing(connect(server)) as connection:
        assert server.url.startswith("http://[::1]:")
        assert ask(connection)[2] == CONTENT


# --- what is counted


def test_requests_and_bytes_are_counted(server, connection):
    """GETs, their headers and ranges, HEADs and bytes are there as soon as the client has its answer."""
    ask(connection, "HEAD")
    ask(connection, path="/shard.tar?a=1", X_Name="Value")
    ask(connection, Range="bytes=0-99")
    ask(connection, path="/none")
    assert server.requests == ["/shard.tar?a=1", "/shard.tar", "/none"]
    assert server.headers[0]["x-name"] == "Value"
    assert server.heads == ["/shard.tar"]
    assert server.ranges == [("/shard.tar", 0, 100)]
    assert server.sent_bytes["/shard.tar"] == 102_500
    assert (server.open, server.max_open) == (0, 1)


def test_answers_at_a_time_are_counted(server):
    """``max_open`` is how many GETs were under way together."""
    gates = [Gate() for _ in range(3)]
    server.add("/a", b"1234", *gates)
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(contextlib.closing(connect(server))) for _ in gates]
        for connection, gate in zip(connections, gates, strict=True):
            connection.request("GET", "/a")
            assert gate.entered.wait(PATIENCE_SECONDS)
        for connection, gate in zip(connections, gates, strict=True):
            gate.go.set()
            assert connection.getresponse().read() == b"1234"
    assert (server.open, server.max_open) == (0, 3)


# --- how long it takes


class Clock(threading.Event):
    """Time that passes only by waiting for this event; stands in for the module ``time`` and a server's ``closing``."""

    now = 1000.0

    def perf_counter(self):
        """Seconds."""
        return self.now

    def wait(self, timeout=None):
        """Let them pass."""
        self.now += timeout
        return self.is_set()


def test_replies_take_as_long_as_they_should(root, monkeypatch):
    """Each reply begins after the latency, and its bytes take their time on the connection's link."""
    clock = Clock()
    monkeypatch.setattr(server_module, "time", clock)
    with (
        Server(root, latency_seconds=0.03, bytes_per_second=1e6) as server,
        contextlib.closing(connect(server)) as connection,
    ):
        server.closing = clock
        begin = clock.now
        ask(connection, "HEAD")
        assert clock.now - begin == pytest.approx(0.03)
        ask(connection)
        assert clock.now - begin == pytest.approx(0.06 + 0.1024)
        ask(connection, Range="bytes=0-9999")
        assert clock.now - begin == pytest.approx(0.09 + 0.1024 + 0.01)
        ask(connection, path="/sub%20dir")
        assert clock.now - begin == pytest.approx(0.12 + 0.1024 + 0.01, abs=0.001)
        server.latency_seconds, server.bytes_per_second = 0, math.inf
        before = clock.now
        ask(connection)
        assert clock.now == before


# --- what it does wrong


def test_faults_come_in_order(server, connection):
    """Faults answer one request each, the last one for ever; other paths are served."""
    server.add("/a", b"good", testing.status(503, Retry_After=7), testing.instead(b"other"), testing.whole)
    status, told, body = ask(connection, path="/a")
    assert (status, told["Retry-After"], body) == (503, "7", b"<html>503</html>")
    assert [ask(connection, path=path)[2] for path in ("/sub%20dir/b.tar", "/a", "/a", "/a")] == [
        b"1234",
        b"other",
        b"good",
        b"good",
    ]


def test_redirect(server, connection):
    """A redirect names the other URL, also where there is no body."""
    server.faults["/b"] = [testing.redirect("/shard.tar")]
    status, told, _ = ask(connection, path="/b")
    assert (status, told["Location"]) == (302, "/shard.tar")


@pytest.mark.parametrize(
    ("fault", "error"), [(testing.cut, http.client.IncompleteRead), (testing.reset, ConnectionResetError)]
)
def test_cut_bodies(server, connection, fault, error):
    """All of the body is announced, half of it comes, then the connection ends or is reset; the next one is good."""
    server.faults["/shard.tar"] = [fault, testing.whole]
    with pytest.raises(error):
        ask(connection)
    assert server.sent_bytes["/shard.tar"] == len(CONTENT) // 2
    connection.close()
    assert ask(connection)[2] == CONTENT


def test_gate(server):
    """A gate has sent half of the body when it is entered, and sends the rest when it may."""
    gate = Gate()
    url = server.add("/a", b"12345678", gate)
    with contextlib.closing(connect(server)) as connection:
        connection.request("GET", url.removeprefix(server.url))
        reply = connection.getresponse()
        assert gate.entered.wait(PATIENCE_SECONDS)
        assert reply.read(4) == b"1234"
        assert server.sent_bytes["/a"] == 4
        gate.go.set()
        assert reply.read() == b"5678"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_in_a_fault_is_reported(server, connection, capfd):
    """An exception in a fault ends its connection and is printed; a client that goes away is not worth a word."""

    def bad(reply, body):
        raise ValueError("a fault's own fault")

    server.add("/a", CONTENT * 100, bad, testing.whole)
    with pytest.raises(http.client.RemoteDisconnected):
        ask(connection, path="/a")
    with contextlib.closing(connect(server)) as other:
        other.request("GET", "/a")
        other.getresponse().read(10)
    server.close()
    err = capfd.readouterr().err
    assert "a fault's own fault" in err
    assert err.count("Traceback") == 1


# --- that it ends


@pytest.mark.parametrize("moment", ["idle", "stall", "gate", "latency", "slow", "no request"])
def test_all_threads_end_with_the_block(root, moment):
    """Whatever a connection waits for, leaving the block ends its thread, and the port is closed."""
    before = set(threading.enumerate())
    gate = Gate()
    with Server(root) as server, contextlib.closing(connect(server)) as connection:
        connection.connect() if moment == "no request" else ask(connection)
        server.faults.update({"/stall": [testing.stall], "/gate": [gate]})
        server.files.update({"/stall": b"1234", "/gate": b"1234"})
        if moment in ("latency", "slow"):
            server.latency_seconds, server.bytes_per_second = (1e6, math.inf) if moment == "latency" else (0, 1e-3)
            connection.request("GET", "/shard.tar")
        elif moment not in ("idle", "no request"):
            connection.request("GET", f"/{moment}")
            assert connection.getresponse().read(2) == b"12"
    assert set(threading.enumerate()) == before
    with pytest.raises(ConnectionRefusedError), contextlib.closing(connect(server)) as late:
        late.connect()
    server.close()  # a second time does nothing

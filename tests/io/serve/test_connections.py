"""Connections of browsers: there are few at a time, and none waits for ever."""

import contextlib
import socket
import urllib.request

import pytest

from tests.support.clocks import PATIENCE_SECONDS, wait_until
from tests.support.shards import write_index, write_json, write_tar
from wids.serve import start
from wids.tools.serve.connections import LimitedProtocol


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The pages, for at most twenty connections."""
    monkeypatch.setattr(LimitedProtocol, "most", 20)
    with start(write_index(tmp_path)) as found:
        yield found


def connect(server, data=b""):
    """A connection that sends some bytes."""
    port = int(server.url.rstrip("/").rpartition(":")[2])
    connection = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
    connection.sendall(data)
    return connection


def is_closed(connection):
    """Whether the server has closed a connection, or closes it now."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def count(server):
    """Connections that the server has."""
    return len(server._server.server_state.connections)


ASKING = b"POST /api/tags HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Wids: 1\r\nContent-Length: 100\r\n\r\n{"
TAKING = b"GET /field/0/.bin HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Wids: 1\r\n\r\n"


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\n"])
def test_many_silent_connections(server, data):
    """They leave descriptors to shards, and a browser is answered, because the first ones make room."""
    with contextlib.ExitStack() as held:
        for _ in range(300):
            with contextlib.suppress(ConnectionError):
                held.enter_context(connect(server, data))
        with urllib.request.urlopen(server.url, timeout=PATIENCE_SECONDS) as answer:
            assert answer.status == 200
        wait_until(lambda: count(server) <= 20)


def test_requests_that_run_stay(server):
    """One that waits makes room, never one whose answer is under way."""
    with contextlib.ExitStack() as held:
        asking = held.enter_context(connect(server, ASKING))
        wait_until(lambda: count(server) == 1)
        for _ in range(60):
            with contextlib.suppress(ConnectionError):
                held.enter_context(connect(server))
        asking.sendall(b" " * 99)
        assert asking.recv(100).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("what", ["answers that nobody takes", "requests without an end"])
def test_who_lets_the_server_wait(tmp_path, monkeypatch, what):
    """Running requests make room, too, once their browser has done nothing for long."""
    monkeypatch.setattr(LimitedProtocol, "most", 5)
    write_tar(tmp_path / "a.tar", {"a.bin": bytes(64 << 20)})
    index = write_json(tmp_path / "i.json", {"wids_version": 1, "shardlist": [{"url": "a.tar", "nsamples": 1}]})
    data = ASKING if what == "requests without an end" else TAKING
    with start(str(index)) as server, contextlib.ExitStack() as held:
        for _ in range(5):
            held.enter_context(connect(server, data))
        connections = server._server.server_state.connections
        wait_until(lambda: all(each._is_running() for each in [*connections]) and len(connections) == 5)
        if data is TAKING:
            wait_until(lambda: all(each._full_since for each in [*connections]))
        for each in [*connections]:  # a minute passes
            each._waits_since -= 60
            each._full_since = each._full_since and each._full_since - 60
        with urllib.request.urlopen(server.url, timeout=PATIENCE_SECONDS) as answer:
            assert answer.status == 200


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", ASKING])
def test_a_silent_connection(server, data, monkeypatch):
    """It is closed after a while, whatever part of a request it has sent."""
    monkeypatch.setattr(LimitedProtocol, "seconds", 0.1)
    with connect(server, data) as connection:
        assert is_closed(connection)
    wait_until(lambda: count(server) == 0)


def test_a_request_in_small_parts(server, monkeypatch):
    """A part now and then keeps no connection open."""
    monkeypatch.setattr(LimitedProtocol, "seconds", 0.2)
    with connect(server, b"GET / HTTP/1.1\r\n") as connection, contextlib.suppress(ConnectionError):
        connection.settimeout(0.02)
        for _ in range(int(PATIENCE_SECONDS / 0.02)):
            connection.sendall(b"a: b\r\n")
            with contextlib.suppress(TimeoutError):
                assert connection.recv(1) == b"", "an answer to a part of a request"
                break
        else:
            pytest.fail("it is still open")

"""The server of a notebook's process: its end, a cell that is run again, a dataset in the place of an index."""

import logging
import socket
import subprocess
import sys
import urllib.request
from urllib.parse import quote

import pytest

from tests.support.children import call_in_child
from tests.support.clocks import PATIENCE_SECONDS, threads_named, wait_until
from tests.support.shards import write_index, write_json, write_shards
from wids import ShardListDataset, mix
from wids.errors import DependencyError, InputError, OutputError
from wids.serve import start
from wids.testing import Server
from wids.tools.serve.running import PageServer
from wids.tools.serve.served import Served


def get(server, path="api/overview"):
    """An answer of a server, as text."""
    request = urllib.request.Request(server.url + path, headers={"X-Wids": "1"})
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        return answer.read().decode()


def is_gone(server):
    """Whether nobody answers any more."""
    try:
        get(server)
    except OSError:
        return True
    return False


def test_a_cell_that_is_run_again(tmp_path):
    """It closes the server before it; another index, or another view, has one of its own."""
    index, other = write_index(tmp_path / "a"), write_index(tmp_path / "b")
    dataset, before = ShardListDataset(index), threads_named("wids-serve")
    with start(other) as apart, start(dataset.select([0, 1])) as view:
        servers = [start(index) for _ in range(3)]
        assert [is_gone(server) for server in (*servers, apart, view)] == [True, True, False, False, False]
        assert len(threads_named("wids-serve")) >= 3
        port = int(servers[-1].url.rsplit(":", 1)[1].strip("/"))
        servers[-1].close()
        with start(index, port=port) as first, start(index, port=port) as second:
            assert first.url == second.url
            assert '"samples":9' in get(second)
    assert all(map(is_gone, (*servers, apart, view)))
    assert not [one for one in threads_named("wids-serve") if one.name == "wids-serve" and one not in before]


def test_a_port_that_is_in_use(tmp_path):
    """The error says so, and nothing is left open."""
    with start(write_index(tmp_path / "a")) as server:
        port = int(server.url.rsplit(":", 1)[1].strip("/"))
        with pytest.raises(OutputError, match=f"port {port} "):
            start(write_index(tmp_path / "b"), port=port)


def _fork_holds(server):
    """In a forked child, which has a copy of the socket."""
    return server.url


def test_a_forked_worker_does_not_hold_the_port(tmp_path):
    """It has a copy of the socket for as long as it lives."""
    index = write_index(tmp_path)
    server = start(index)
    assert call_in_child(_fork_holds, server) == server.url
    server.close()
    assert is_gone(server)


def test_the_end_of_the_process(tmp_path):
    """It ends at once though a server runs."""
    program = f"import wids.serve; print(wids.serve.start({write_index(tmp_path)!r}))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    assert "wids serve: " in done.stdout
    assert done.stderr == ""


def test_a_dataset(tmp_path):
    """A view of a remote dataset: its samples alone, undecoded, with all fields; nothing is downloaded, nor counted."""
    shards = write_shards(tmp_path / "data", (3, 4))
    write_json(
        tmp_path / "data" / "train.json",
        {"wids_version": 1, "shardlist": [{**shard, "url": shard["url"].rsplit("/", 1)[1]} for shard in shards]},
    )
    with Server(tmp_path / "data") as files:
        dataset = ShardListDataset(
            f"{files.url}/train.json", cache_dir=tmp_path / "cache", fields=(".txt",), transformations=[str]
        )
        view = dataset.select([1, 5])
        with start(view) as server:
            served = server._served
            assert served.opening == ""
            assert served.dataset[1][".bin"].getvalue() == bytes([5]) * 40
            assert '"samples":2' in get(server)
            assert served.cache_dir == dataset.cache_dir
        assert dataset.stats().range_requests == 0
        assert view[0].startswith("{")
        with start(dataset) as server:
            assert server._served.opening == f"wids.ShardListDataset('{files.url}/train.json')"
    assert dataset.stats().fetches == 1  # by view[0], not by the pages


def test_a_dataset_has_its_own_cache(tmp_path):
    """Another one beside it is a mistake."""
    with pytest.raises(InputError, match="cache_dir"):
        start(ShardListDataset(write_index(tmp_path)), cache_dir=tmp_path)


def test_what_has_no_pages(tmp_path):
    """Windows, a mixture or a list are no index; the message says what is one."""
    dataset = ShardListDataset(write_index(tmp_path))
    for other in (dataset.windows(2), mix([dataset]), [1, 2]):
        with pytest.raises(TypeError, match="made of an index, or of a ShardListDataset and its views, not of a"):
            start(other)


def test_a_frame(tmp_path, monkeypatch):
    """It shows a page of the server; where there is no notebook, an error says what to do."""
    with start(write_index(tmp_path)) as server:
        assert server.url + "samples" in server.show(300, "/samples")._repr_html_()
        monkeypatch.setitem(sys.modules, "IPython.display", None)
        with pytest.raises(DependencyError, match="open the server's url"):
            server.show()


ENDLESS = "row >= 0 and (select count(*) from range(100000000000000) t(n) where n % 7 = 3) > 0"


def queries(server):
    """The processes that run its queries now."""
    return server._served.rows._processes._busy


def begin(server, path):
    """A connection that asks, and does not read."""
    port = int(server.url.rstrip("/").rpartition(":")[2])
    asking = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
    asking.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Wids: 1\r\n\r\n".encode())
    return asking


@pytest.mark.parametrize("is_same", [True, False])
def test_endless_filters(tmp_path, is_same):
    """A query ends when its page is left, whoever else has waited for it or for its turn; others are answered then."""
    with PageServer(Served(write_index(tmp_path), cache_dir=tmp_path / "cache"), port=0).start() as server:
        wheres = [ENDLESS if is_same else f"{ENDLESS} or {k} > {k}" for k in range(50)]
        asking = [begin(server, f"/api/rows?where={quote(where)}") for where in wheres]
        wait_until(lambda: queries(server))
        for connection in asking:
            connection.close()
        assert '"total":' in get(server, "api/rows?where=row<9")
        wait_until(lambda: not queries(server))


def test_the_end_of_a_server_with_an_endless_filter(tmp_path, caplog):
    """Its query ends with it, and is no error of the program."""
    with PageServer(Served(write_index(tmp_path), cache_dir=tmp_path / "cache"), port=0).start() as server:
        asking = begin(server, f"/api/rows?where={quote(ENDLESS)}")
        wait_until(lambda: queries(server))
    wait_until(lambda: not queries(server))
    with asking:
        assert asking.recv(100).startswith(b"HTTP/1.1 503 ")
    assert "Traceback" not in caplog.text


def test_a_token_is_in_no_log(tmp_path, caplog):
    """A program that logs everything does not log who may look."""
    caplog.set_level(logging.DEBUG)
    served = Served(write_index(tmp_path), cache_dir=tmp_path / "cache")
    with PageServer(served, port=0, has_token=True).start() as server:
        token = server.url.rpartition("=")[2]
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with browser.open(server.url, timeout=PATIENCE_SECONDS) as answer:
            assert (answer.status, answer.url) == (200, server.url.partition("?")[0])
    assert len(token) > 20
    assert token not in caplog.text


def test_odd_requests(tmp_path, caplog):
    """Any page can send some, such as for a websocket; the terminal does not fill with words about them."""
    with start(write_index(tmp_path)) as server:
        port = int(server.url.rsplit(":", 1)[1].strip("/"))
        for request in (
            "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
            "\0\r\n\r\n",
        ):
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as asking:
                asking.sendall(request.encode())
                assert asking.recv(100).startswith(b"HTTP/1.1 ")
    assert not caplog.records

"""One cache directory, many processes: each shard is fetched once, and a process killed anywhere leaves no trouble."""

import contextlib
import fcntl
import multiprocessing.connection
import os
import threading

import pytest

from tests.support import cache_shards as shards
from tests.support.cache_dirs import files_in
from tests.support.cache_shards import described, texts, texts_of
from tests.support.children import (
    PATIENCE_SECONDS,
    call_in_child,
    child,
    fetch_saying_when_waiting,
    fetch_texts,
    kill,
    receive,
    stop_here,
)
from tests.support.servers import whole
from wids.core.cache import shard_download
from wids.core.cache.directory import CacheDirectory
from wids.core.cache.store import ShardCache
from wids.core.files import atomic
from wids.core.readers.provider import AutoProvider
from wids.core.shard import Shard
from wids.core.transport import download, filesystems
from wids.core.transport.session import Session

pytestmark = pytest.mark.usefixtures("no_waits")

A, B = shards.shard("a"), shards.shard("b")


@pytest.fixture
def cache(tmp_path):
    """The cache directory; it is not there yet."""
    return str(tmp_path / "cache")


def path_of(cache, url):
    """Where a shard is in the cache."""
    return AutoProvider(cache_dir=cache).cache.placement.local_path(url)


def garbage(cache):
    """Part files, which must be free to be swept: their writers are dead."""
    found = [name for name in files_in(cache) if name.endswith(".part")]
    for name in found:
        with open(os.path.join(cache, name), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return found


# --- at once


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_processes_fetch_a_shard_once(server, cache, method):
    """Of three processes that want a shard at the same time one fetches it, and the others wait for that."""
    gate = server.gate()
    url = server.add("/a.tar", A, gate)
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(child(fetch_saying_when_waiting, url, cache, method=method))[1] for _ in range(3)
        ]
        assert gate.entered.wait(PATIENCE_SECONDS)
        answers = []
        waiting = list(connections)
        while len(answers) < 2:  # two wait for the lock while the third is in the middle of its download
            ready = multiprocessing.connection.wait(waiting, PATIENCE_SECONDS)
            assert ready
            answers += [connection.recv() for connection in ready]
            waiting = [connection for connection in waiting if connection not in ready]
        assert answers == ["waiting"] * 2
        gate.go.set()
        assert [receive(connection) for connection in connections] == [texts_of()] * 3
    assert server.requests == ["/a.tar"]
    assert CacheDirectory(cache).transients().locks == []
    assert garbage(cache) == []


def test_threads_fetch_a_shard_once(server, cache, events):
    """Threads of one process, with one store, do the same; those that waited were told for how long."""
    gate = server.gate()
    url = server.add("/a.tar", A, gate)
    opener = AutoProvider(cache_dir=cache, session=Session(hooks=[events]))
    found = []
    threads = [threading.Thread(target=lambda: found.append(texts(opener.open(described(url, A))))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert gate.entered.wait(PATIENCE_SECONDS)
    gate.go.set()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert found == [texts_of()] * 4
    assert server.requests == ["/a.tar"]
    names = events.names()
    assert (names.count("Fetched"), names.count("Hit"), names.count("Opened")) == (1, 3, 4)


def test_a_shard_that_came_while_waiting_is_found(server, cache, events, monkeypatch):
    """Who gets the lock looks again: what another process published meanwhile is not fetched a second time."""
    url = server.add("/a.tar", A)
    look = ShardCache.find
    calls = []

    def late(self, located):
        found = look(self, located)
        if not calls:
            calls.append("in the child, which has this function, too")
            calls[0] = call_in_child(fetch_texts, url, cache)
        return found

    monkeypatch.setattr(ShardCache, "find", late)
    assert (
        texts(AutoProvider(cache_dir=cache, session=Session(hooks=[events])).open(described(url, A, md5sum=None)))
        == texts_of()
    )
    assert calls == [texts_of()]
    assert server.requests == ["/a.tar"]
    assert events.names() == ["Hit", "Opened"]
    assert events[-1].has_saved_table


def test_a_holder_that_fails_passes_the_turn_on(server, cache):
    """When the process that fetches fails, the next one tries for itself."""
    url = server.url + "/a.tar"
    with pytest.raises(FileNotFoundError):
        call_in_child(fetch_texts, url, cache)
    server.add("/a.tar", A)
    assert call_in_child(fetch_texts, url, cache) == texts_of()


def test_a_fork_in_the_middle_of_a_fetch(server, cache):
    """A process forked while a thread of its parent fetches: it waits for that shard, and takes others at once."""
    gate = server.gate()
    url, other = server.add("/a.tar", A, gate), server.add("/b.tar", B)
    opener = AutoProvider(cache_dir=cache)
    found = []
    thread = threading.Thread(target=lambda: found.append(texts(opener.open(described(url, A)))))
    thread.start()
    assert gate.entered.wait(PATIENCE_SECONDS)
    with child(fetch_saying_when_waiting, url, cache) as (_, connection):
        assert receive(connection) == "waiting"
        assert call_in_child(lambda: texts(opener.open(described(other, B)))) == texts_of("b")
        gate.go.set()
        assert receive(connection) == texts_of()
    thread.join(PATIENCE_SECONDS)
    assert found == [texts_of()]
    assert sorted(server.requests) == ["/a.tar", "/b.tar"]


def test_a_shard_is_free_while_a_process_forked_during_its_fetch_lives(server, cache):
    """What was published is not locked by a process that was forked while it was written."""
    gate = server.gate()
    url = server.add("/a.tar", A, gate)
    thread = threading.Thread(target=fetch_texts, args=(url, cache))
    thread.start()
    assert gate.entered.wait(PATIENCE_SECONDS)
    with child(stop_here) as (_, connection):
        receive(connection)
        gate.go.set()
        thread.join(PATIENCE_SECONDS)
        with open(path_of(cache, url), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


# --- killed


def before(owner, name, is_point=lambda *args: True):
    """In the child: stop when ``owner.name`` is called with arguments that are the point."""

    def prepare(connection):
        real = getattr(owner, name)

        def stop_or_go_on(*args, **options):
            if is_point(*args):
                stop_here(connection)
            return real(*args, **options)

        setattr(owner, name, stop_or_go_on)

    return prepare


def is_publishing(source, target):
    """Whether this `os.replace` makes the shard appear."""
    return target.endswith(".tar")


POINTS = {
    "with the lock": before(atomic, "part_file"),
    "with an empty part file": before(download, "download_to"),
    "with all bytes, not checked": before(shard_download, "check_file"),
    "with the table in its part file": before(os, "replace"),
    "with the table published": before(os, "replace", is_publishing),
    "with the shard published": before(os, "unlink", lambda path: ".tar." in path and ".widx" not in path),
}


def open_in_child(connection, prepare, cache, shard):
    """Fetch a shard up to the point."""
    prepare(connection)
    AutoProvider(cache_dir=cache).open(shard)


@pytest.mark.parametrize("is_update", [False, True], ids=["first", "update"])
@pytest.mark.parametrize("point", POINTS)
def test_killed_in_the_middle_of_a_fetch(server, cache, point, is_update):
    """A process killed at any point leaves no lock, no half shard and no wrong table: the next one has the shard."""
    url = server.add("/a.tar", A)
    if is_update:
        AutoProvider(cache_dir=cache).open(described(url, A))
    server.add("/a.tar", B)
    server.requests.clear()
    path = path_of(cache, url)
    with child(open_in_child, POINTS[point], cache, described(url, B)) as (process, connection):
        assert receive(connection) == "here"
        published = B if point == "with the shard published" else A if is_update else None
        if published is None:
            assert not os.path.exists(path)
        else:
            with open(path, "rb") as file:
                assert file.read() == published
        kill(process)
    assert len(garbage(cache)) <= 2
    assert texts(AutoProvider(cache_dir=cache).open(described(url, B))) == texts_of("b")
    has_fetched = point not in ("with the lock", "with an empty part file")
    is_published = point == "with the shard published"
    assert len(server.requests) == has_fetched + (not is_published)
    assert call_in_child(fetch_texts, url, cache) == texts_of("b")


@pytest.mark.parametrize("what", ["old index", "no index"])
def test_killed_between_table_and_shard(server, cache, what):
    """The old shard under the new shard's table is not read by it, whatever the reader's index knows."""
    url = server.add("/a.tar", A)
    AutoProvider(cache_dir=cache).open(described(url, A))
    new = shards.shard("b", 5)
    server.add("/a.tar", new)
    shard = described(url, new, nsamples=5)
    with child(open_in_child, POINTS["with the table published"], cache, shard) as (process, connection):
        receive(connection)
        kill(process)
    server.add("/a.tar", A)
    facts = {} if what == "old index" else {"filesize": None, "md5sum": None, "nsamples": None}
    assert texts(AutoProvider(cache_dir=cache).open(described(url, A, **facts))) == texts_of("a")


def test_killed_in_the_middle_of_the_body(server, cache):
    """A process killed with half the bytes here leaves a part file that nobody takes for a shard."""
    gate = server.gate()
    url = server.add("/a.tar", A, gate, whole)
    with child(lambda connection: fetch_texts(url, cache)) as (process, _):
        assert gate.entered.wait(PATIENCE_SECONDS)
        kill(process)
    gate.go.set()
    assert len(garbage(cache)) == 2  # the shard's, and its table's
    assert fetch_texts(url, cache) == texts_of()
    assert len(server.requests) == 2
    assert garbage(cache) == []


def test_killed_while_others_wait(server, cache):
    """When the process that fetches is killed, one of those that wait takes over at once."""
    gate = server.gate()
    url = server.add("/a.tar", A, gate, whole)
    with child(lambda connection: fetch_texts(url, cache)) as (process, _):
        assert gate.entered.wait(PATIENCE_SECONDS)
        with child(fetch_saying_when_waiting, url, cache) as (_, connection):
            assert receive(connection) == "waiting"
            kill(process)
            assert receive(connection) == texts_of()
    assert len(server.requests) == 2


def fetch_by_name(connection, url, cache_dir):
    """`fetch_texts` by a process whose requests say which one it is."""
    store = AutoProvider(cache_dir=cache_dir, session=Session({"headers": {"X-Process": str(os.getpid())}}))
    connection.send(texts(store.open(Shard(url=url, nsamples=None))))
    connection.close()


@pytest.mark.parametrize("killed", [pytest.param(0, marks=pytest.mark.thorough), 2])
def test_many_processes_and_one_cold_shard(server, cache, killed, set_limits):
    """A node of 64 processes downloads a shard once, and once more for each downloader that is killed half-way."""
    set_limits(filesystems, read_seconds=600.0)  # the first one waits for as long as the others start
    gates = [server.gate() for _ in range(killed + 1)]
    url = server.add("/a.tar", A, *gates)
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(child(fetch_by_name, url, cache)) for _ in range(64)]
        waiting = {process.pid: (process, connection) for process, connection in children}
        for number, gate in enumerate(gates):
            assert gate.entered.wait(PATIENCE_SECONDS)
            if number < killed:
                kill(waiting.pop(int(server.headers[-1]["x-process"]))[0])
        gates[-1].go.set()
        assert [receive(connection) for _, connection in waiting.values()] == [texts_of()] * (64 - killed)
    assert server.requests == ["/a.tar"] * (killed + 1)
    assert garbage(cache) == []


def test_killed_while_its_forked_child_lives(server, cache):
    """A process forked during a fetch, whose parent is then killed, neither waits for ever nor keeps others out."""
    gate = server.gate()
    url = server.add("/a.tar", A, gate, whole)

    def fetch_and_fork(connection):
        thread = threading.Thread(target=fetch_texts, args=(url, cache))
        thread.start()
        gate_entered.wait(PATIENCE_SECONDS)
        if not os.fork():
            try:
                connection.send("forked")
                connection.send(fetch_texts(url, cache))
            finally:
                os._exit(0)
        thread.join()

    gate_entered = multiprocessing.get_context("fork").Event()
    with child(fetch_and_fork) as (process, connection):
        assert gate.entered.wait(PATIENCE_SECONDS)
        gate_entered.set()
        assert receive(connection) == "forked"
        kill(process)
        assert receive(connection) == texts_of()
    assert len(server.requests) == 2

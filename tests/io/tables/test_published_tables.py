"""What is not beside remote shards is asked for once for a machine: 404s, counted by a server, of several processes."""

import contextlib
import json
import os
import threading

import pytest

from tests.support import cache_shards as shards
from tests.support import tars
from tests.support.cache_shards import described, texts, texts_of
from tests.support.children import child, receive
from tests.support.clocks import wait_until
from tests.support.containers import mangled
from tests.support.servers import Server, status
from wids.core.cache.directory import CacheDirectory
from wids.core.files import locks
from wids.core.files.shared_files import SharedFiles
from wids.core.place import Place
from wids.core.readers.provider import AutoProvider
from wids.core.tables import published_tables
from wids.core.tables import table as tables
from wids.core.tables.published_tables import ENOUGH, MissingTables, PublishedTables
from wids.core.transport.failures import CancelledTransferError
from wids.core.transport.session import Session
from wids.errors import FetchError, ShardNotFoundError

TAGS = "abcdefgh"


@pytest.fixture
def web():
    """A server of eight shards without tables."""
    with Server(has_ranges=True) as server:
        for tag in TAGS:
            server.add(f"/{tag}.tar", shards.shard(tag))
        yield server


@pytest.fixture
def home(tmp_path):
    """A cache directory that a cache has used."""
    path = str(tmp_path / "cache")
    os.mkdir(path)
    CacheDirectory(path).make()
    return path


@pytest.fixture
def clock(monkeypatch):
    """The time by which is remembered what is missing; it may be changed."""
    now = [1_000_000.0]
    real = published_tables.time

    class Time:
        time = staticmethod(lambda: now[0])
        sleep = staticmethod(real.sleep)
        perf_counter = staticmethod(real.perf_counter)

    monkeypatch.setattr(published_tables, "time", Time)
    return now


def publish(web, tags):
    """Put tables beside shards."""
    for tag in tags:
        data = web.files[f"/{tag}.tar"]
        web.add(f"/{tag}.tar{tables.SUFFIX}", tars.table_of(data).to_bytes())


def asked(web):
    """The shards whose tables were asked for, in order."""
    return "".join(path[1] for path in web.requests if path.endswith(tables.SUFFIX))


def shard_of(web, tag):
    """A shard of the server."""
    return described(f"{web.url}/{tag}.tar", web.files[f"/{tag}.tar"])


def read_all(connection, listed, home, access):
    """A worker: it waits for the others and reads all shards."""
    provider = AutoProvider(cache_dir=home, access=access)
    connection.send("ready")
    connection.recv()
    connection.send([texts(provider.open(shard)) for shard in listed])


@pytest.mark.parametrize("access", ["range", "auto"])
def test_workers_ask_for_three_missing_tables_together(web, home, access):
    """However many processes and shards there are: the first three of a directory tell that there are none."""
    listed = [shard_of(web, tag) for tag in TAGS]
    with (
        child(read_all, listed, home, access) as (_, one),
        child(read_all, listed[::-1], home, access) as (_, two),
        child(read_all, listed[3:] + listed[:3], home, access) as (_, three),
    ):
        for connection in (one, two, three):
            assert receive(connection) == "ready"
        for connection in (one, two, three):
            connection.send("go")
        assert receive(one) == [texts_of(tag) for tag in TAGS]
        assert receive(two) == [texts_of(tag) for tag in TAGS[::-1]]
        assert receive(three) == [texts_of(tag) for tag in TAGS[3:] + TAGS[:3]]
    assert len(asked(web)) == len(set(asked(web))) == ENOUGH
    with child(read_all, listed, home, access) as (_, later):
        assert receive(later) == "ready"
        later.send("go")
        assert receive(later) == [texts_of(tag) for tag in TAGS]
    assert len(asked(web)) == ENOUGH


def read(published, shard):
    """Whether there is a table beside a shard, for one more process."""
    try:
        published.read(shard, shard_bytes=shard.filesize, seconds=0)
    except ShardNotFoundError:
        return False
    return True


def process(home):
    """The tables as a process sees them that has just begun."""
    return PublishedTables(cache_dir=home)


def test_where_some_have_tables_each_missing_one_is_asked_for_once(web, home):
    """One that is there tells that the others may be, too: none of them is missed."""
    publish(web, "cg")
    for tag in TAGS * 2:
        assert read(process(home), shard_of(web, tag)) == (tag in "cg")
    assert asked(web) == "abcdefgh" + "cg"


def test_three_that_are_missing_hide_the_others_for_some_minutes(web, home, clock):
    """After that they are asked for again, and those that were published meanwhile are found."""
    for tag in TAGS:
        assert not read(process(home), shard_of(web, tag))
    assert asked(web) == "abc"
    publish(web, TAGS)
    clock[0] += published_tables.AGAIN_SECONDS - 1
    assert not process(home).may_have(shard_of(web, "a")) or not read(process(home), shard_of(web, "a"))
    clock[0] += 1
    assert [read(process(home), shard_of(web, tag)) for tag in TAGS] == [True] * 8
    assert asked(web) == "abc" + TAGS


def test_another_directory_is_another_question(web, home):
    """What holds for one directory says nothing of one below it, of a server's other name, or of an endpoint."""
    for tag in "abcd":
        assert not read(process(home), shard_of(web, tag))
    web.add("/x/a.tar", shards.shard("a"))
    assert not read(process(home), described(f"{web.url}/x/a.tar", web.files["/x/a.tar"]))
    assert [path for path in web.requests if path.endswith(tables.SUFFIX)][3:] == [f"/x/a.tar{tables.SUFFIX}"]
    missing = MissingTables(cache_dir=home, session=Session({"endpoint_url": "http://other"}))
    with missing.asking(Place(f"{web.url}/d.tar"), bool):
        pass


def test_trouble_is_no_answer(web, home):
    """An error of a server does not tell that there is no table."""
    publish(web, "a")
    web.faults[f"/a.tar{tables.SUFFIX}"] = [status(500)]
    with pytest.raises(FetchError):
        read(process(home), shard_of(web, "a"))
    web.faults.clear()
    assert read(process(home), shard_of(web, "a"))


def test_a_table_that_cannot_be_parsed_is_a_warning(web, home, caplog):
    """A byte that is no UTF-8, under right checksums: the shard is opened without the table."""
    web.add(f"/a.tar{tables.SUFFIX}", mangled(tars.table_of(web.files["/a.tar"]).to_bytes()))
    shard = shard_of(web, "a")
    assert process(home).load(shard, shard_bytes=shard.filesize) is None
    assert "has a header that is none" in caplog.text
    assert texts(AutoProvider(cache_dir=home, access="range").open(shard)) == texts_of("a")


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"shards": 5}', b'{"found": "x"}', b"\xff" * 100, b'{"shards": {"\xff": 1}}']
)
def test_a_damaged_note_is_none(web, home, data):
    """Whatever it holds, the shards are asked about again, and it is replaced."""
    missing = MissingTables(cache_dir=home, session=Session())
    kept = SharedFiles(home, published_tables.UNTABLED_SUFFIX)
    name = missing._directory_of(Place(f"{web.url}/a.tar")).name
    kept.publish(name, lambda path, fd: os.write(fd, data))
    assert not read(process(home), shard_of(web, "a"))
    assert asked(web) == "a"
    assert list(json.loads(bytes(kept.open(name).data))) == ["shards", "found"]


def test_notes_of_another_time_do_not_count(web, home, clock):
    """A clock that was wrong, ahead or behind."""
    for tag in "abc":
        assert not read(process(home), shard_of(web, tag))
    for moved in (-10.0, -1e6, 1e6):
        clock[0] = 1_000_000.0 + moved
        other = process(home)._missing
        assert other._look(other._directory_of(Place(f"{web.url}/a.tar"))).shards == {}


def test_a_note_has_an_end(home, monkeypatch):
    """Of a large directory in which some shards have tables, the newest missing ones are remembered."""
    monkeypatch.setattr(published_tables, "_MAX_SHARDS", 5)
    missing = MissingTables(cache_dir=home, session=Session())
    with missing.asking(Place("http://h/d/t.tar"), bool):
        pass
    for number in range(9):
        with pytest.raises(ShardNotFoundError), missing.asking(Place(f"http://h/d/{number}.tar"), bool):
            raise ShardNotFoundError("none")
    other = MissingTables(cache_dir=home, session=Session())
    assert len(other._look(other._directory_of(Place("http://h/d/t.tar"))).shards) == 5
    with pytest.raises(ShardNotFoundError), other.asking(Place("http://h/d/8.tar"), bool):
        raise AssertionError("asked")
    with other.asking(Place("http://h/d/0.tar"), bool):
        pass


@pytest.mark.parametrize("directory", [None, "/proc/none"])
def test_without_a_directory_each_process_remembers(web, directory):
    """In memory, or where nothing can be written."""
    published = PublishedTables(cache_dir=directory)
    for tag in TAGS:
        assert not read(published, shard_of(web, tag))
    assert asked(web) == "abc"
    assert not published.may_have(shard_of(web, "h"))
    assert published.may_have(described("http://127.0.0.1:1/other/a.tar", b""))


def test_nothing_is_made_where_nothing_is_missing(web, tmp_path):
    """A directory that no cache has used stays as it is while all tables are there."""
    publish(web, TAGS)
    for tag in TAGS:
        assert read(process(str(tmp_path / "new")), shard_of(web, tag))
    assert not (tmp_path / "new").exists()


def test_who_waits_for_another_process_may_give_up(web, home, caplog, set_limits):
    """While one process asks, another waits for its answer, says so, and not for longer than it would for its own."""
    set_limits(locks, report_seconds=0.0)
    first, second = (MissingTables(cache_dir=home, session=Session()) for _ in range(2))
    url, asks = f"{web.url}/a.tar", []
    note = first._kept.path(first._directory_of(Place(url)).name)
    with first.asking(Place(url), bool):
        with first.asking(Place(f"{web.url}/b.tar"), bool):  # a batch of this process waits once
            pass
        first._known.clear()
        os.unlink(note)
        with (
            pytest.raises(CancelledTransferError),
            second.asking(Place(url), lambda: asks.append(1) or len(asks) > 3),
        ):
            raise AssertionError("asked")
    assert len(asks) == 4
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "still waiting after 0 s for another process, which asks the server for member tables"
    ]
    entered, go = threading.Event(), threading.Event()

    def ask():
        with contextlib.suppress(ShardNotFoundError), first.asking(Place(url), bool):
            entered.set()
            go.wait()
            raise ShardNotFoundError("none")

    os.unlink(note)
    first._known.clear()
    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(entered.is_set)
    with pytest.raises(ShardNotFoundError), second.asking(Place(url), lambda: go.set() or False):
        raise AssertionError("asked")
    thread.join()


def test_a_process_asks_until_the_last_of_its_threads_has_its_answer(home):
    """A batch asks for two tables, and the second answer comes late: no other process asks for that table meanwhile."""
    first, second = (MissingTables(cache_dir=home) for _ in range(2))
    joined, go = threading.Event(), threading.Event()

    def ask():
        with contextlib.suppress(ShardNotFoundError), first.asking(Place("http://host/b.tar"), bool):
            joined.set()
            go.wait()
            raise ShardNotFoundError("none")

    thread = threading.Thread(target=ask)
    with first.asking(Place("http://host/a.tar"), bool):
        thread.start()
        wait_until(joined.is_set)
    first._known.clear()
    os.unlink(first._kept.path(first._directory_of(Place("http://host/a.tar")).name))  # a.tar had one: all may ask
    with pytest.raises(ShardNotFoundError), second.asking(Place("http://host/b.tar"), lambda: go.set() or False):
        raise AssertionError("asked")
    thread.join()
    with (
        second.asking(Place("http://host/c.tar"), bool),
        pytest.raises(CancelledTransferError),
        first.asking(Place("http://host/d.tar"), lambda: True),
    ):
        raise AssertionError("asked")


@pytest.mark.parametrize("is_cached", [True, False])
def test_one_process_asks_also_in_a_directory_that_no_cache_has_used(tmp_path, is_cached):
    """At the beginning of a first epoch all of them would; where nothing is cached, nothing is made for that."""
    one, other = (MissingTables(cache_dir=str(tmp_path / "cache"), is_cached=is_cached) for _ in range(2))
    with one.asking(Place("http://host/a.tar"), lambda: False):
        waits = pytest.raises(CancelledTransferError) if is_cached else contextlib.nullcontext()
        with waits, other.asking(Place("http://host/b.tar"), lambda: True):
            pass
        assert (tmp_path / "cache").exists() is is_cached

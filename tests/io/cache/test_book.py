"""What a process knows of its shards: bounded, and what of it a child or a pickle has."""

import pickle
import threading

import pytest

from tests.support import cache_shards as shards
from tests.support.children import call_in_child
from tests.support.clocks import PATIENCE_SECONDS
from wids.core.cache import book as books
from wids.core.cache.book import ShardBook
from wids.core.files.identity import Identity
from wids.core.tables import tar
from wids.core.tables.table import build_table


def table(tag="a", count=3):
    """A member table of a shard."""
    data = shards.shard(tag, count)
    members = tar.scan(lambda at, size: data[at : at + size], len(data), shard=tag)
    return build_table(members, identity=Identity(size=len(data)), shard=tag)


@pytest.fixture
def book():
    """A book with everything known of one shard."""
    book = ShardBook()
    book.learn_table("u", table(), is_proven=True)
    record = book.of("u")
    record.lacks_ranges = record.lacks_table = record.was_read = record.is_spent = record.has_failed = True
    record.retry_at = record.since = record.look_at = 5.0
    record.miscounted, record.thread, record.refusals = Identity(size=1), threading.current_thread(), 2
    return book


def test_a_pickle_has_what_is_known_of_the_server(book):
    """Tables, times and downloads are found again; an empty book is one."""
    assert pickle.loads(pickle.dumps(ShardBook())).of("u").table is None
    found = pickle.loads(pickle.dumps(book)).of("u")
    assert (found.lacks_ranges, found.lacks_table, found.was_read, found.is_spent) == (True,) * 4
    assert (found.table, found.thread, found.has_failed, found.miscounted) == (None, None, False, None)
    assert found.retry_at < 0 < found.since


def test_a_child_has_all_but_downloads(book):
    """Their threads are the parent's."""

    def look():
        found = book.of("u")
        book.learn_table("v", table("b"))  # the lock is free
        return found.table is not None, found.lacks_ranges, found.retry_at, found.thread is None, found.has_failed

    assert call_in_child(look) == (True, True, 5.0, True, False)


def test_tables_are_bounded(monkeypatch):
    """Those learned longest ago go first, with records that say nothing more; a table is learned again."""
    book, size = ShardBook(), table().nbytes
    monkeypatch.setattr(books, "MAX_BYTES", 3 * size)
    for tag in "abc":
        book.learn_table(tag, table())
    book.of("b").is_spent = True
    book.learn_table("a", table())  # now the newest
    for tag in "de":
        book.learn_table(tag, table())
    assert [tag for tag in "abcde" if book.of(tag).table is not None] == ["a", "d", "e"]
    assert book.of("b").is_spent
    book.learn_table("huge", table("h", 100))
    assert [tag for tag in "ade" if book.of(tag).table is not None] == []
    assert book.of("huge").table is not None


def test_a_table_in_doubt():
    """It is forgotten, and known again if it comes back from elsewhere; another version's is not."""
    book = ShardBook()
    book.learn_table("u", table())
    record = book.of("u")
    record.doubt_table()
    assert record.table is None
    assert record.wrong_table == table().identity != table(count=30).identity


def test_threads_that_learn_at_a_time(monkeypatch):
    """The bytes of all tables are known afterwards, and within the limit."""
    book, one = ShardBook(), table()
    monkeypatch.setattr(books, "MAX_BYTES", 50 * one.nbytes)

    def learn(first):
        for number in range(200):
            book.learn_table(f"{(first + number) % 90}", one)

    threads = [threading.Thread(target=learn, args=(20 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert sum(book.of(str(number)).table is not None for number in range(90)) == 50
    book.learn_table("more", one)
    assert sum(book.of(str(number)).table is not None for number in range(90)) == 49

"""A collection of shards, without torch: what it counts of shards of which no index says how many samples they hold."""

import itertools
import os
import threading

from tests.support.clocks import PATIENCE_SECONDS
from tests.support.shards import serve, write_shards
from wids.core.collection.shard_collection import ShardCollection, load_shards
from wids.core.readers.provider import AutoProvider
from wids.core.transport.session import PLAIN
from wids.writing.pack.datasets import list_dataset


def test_unknown_counts_are_counted_and_noted(tmp_path):
    """Those of local shards from the shards, those of remote ones by what opens them; known ones are left alone."""
    paths = [shard["url"] for shard in write_shards(tmp_path, (3, 2, 4))]
    noted = []
    with serve(tmp_path) as server:
        _, shards, _ = load_shards([paths[0], f"{server.url}/s1.tar", (paths[2], 9)])
        provider = AutoProvider(cache_dir=str(tmp_path / "cache"))
        collection = ShardCollection(shards, provider)
        collection.count_unknown(open_remote=lambda k: provider.open(shards[k]), on_count=noted.append, has_sizes=True)
        assert noted == [3, 2]
        assert collection.shards.nsamples == [3, 2, 9]
        sizes = [os.path.getsize(path) for path in paths]
        assert collection.shards.filesizes == [*sizes[:2], -1]
        assert shards.nsamples == [-1, -1, 9]
        assert (len(collection), collection.locate(4), collection.pool.misses) == (14, (1, 1), 0)
        collection.close()


def test_tables_that_are_asked_for_no_more_are_not_waited_for(tmp_path):
    """The collector may end it: the threads of the rest end by themselves."""
    _, shards, _ = load_shards([(f"http://127.0.0.1:1/{number}.tar", 3) for number in range(3)])
    collection = ShardCollection(shards, AutoProvider(cache_dir=str(tmp_path / "cache")))
    numbers, go = itertools.count(), threading.Event()
    collection._table_at_hand = lambda k: None if next(numbers) == 0 else go.wait()
    tables = collection.member_tables(range(3))
    assert next(tables) == (0, None)
    closing = threading.Thread(target=tables.close, daemon=True)
    closing.start()
    closing.join(PATIENCE_SECONDS)
    is_stuck = closing.is_alive()
    go.set()
    assert not is_stuck


def test_remote_tars_are_packed_without_an_index(tmp_path):
    """They are fetched to be counted, and how many samples there are is said while that goes on."""
    write_shards(tmp_path, (3, 2))
    told = []
    with serve(tmp_path) as server:
        listing = list_dataset(
            f"{server.url}/s{{0..1}}.tar",
            cache_dir=str(tmp_path / "cache"),
            keep_fields=None,
            session=PLAIN,
            tell=told.append,
        )
        assert (listing.items, told) == (range(5), [3, 5])
        keys = [listing.reader.read(item)[0] for item in listing.items]
    assert keys == ["s0-000", "s0-001", "s0-002", "s1-000", "s1-001"]

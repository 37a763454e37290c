"""What every reader does alike, whichever provider opened it: from a file, through a map, by byte ranges."""

import contextlib
import copy
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support import cache_shards as shards
from tests.support import tars
from tests.support.cache_shards import described, texts, texts_of
from tests.support.children import PATIENCE_SECONDS
from wids.errors import ClosedReaderError
from wids.tables.table import SUFFIX

DATA = shards.shard("a", 3, 40_000)


def values(sample):
    """A sample with the bytes of its members."""
    return {name: value.getvalue() if name.startswith(".") else value for name, value in sample.items()}


def test_open_reads_samples(way, events):
    """A reader says what it reads, and gives each sample, alone, among others, or some fields of it."""
    url = way.put("a.tar", DATA)
    with contextlib.closing(way.make().open(described(url, DATA))) as reader:
        assert (reader.url, len(reader), reader.table.nsamples) == (url, 3, 3)
        assert reader.path == url if way.is_local or way.has_ranges else os.path.isfile(reader.path)
        assert reader.is_leased == way.is_cached
        assert texts(reader) == texts_of("a")
        alone = [values(reader.read(row)) for row in (0, 2, 2)]
        assert [values(sample) for sample in reader.read_rows([0, 2, 2])] == alone
        assert list(alone[0]) == [".txt", ".bin", "__key__"]
        assert alone[1] == {".txt": b"a2", ".bin": b"a0002" * 8000, "__key__": "a0002"}
        assert values(reader.read(1, (".txt", ".nosuch"))) == {".txt": b"a1", "__key__": "a0001"}
        assert [values(s) for s in reader.read_rows([0, 1], (".txt",))] == [
            {".txt": b"a0", "__key__": "a0000"},
            {".txt": b"a1", "__key__": "a0001"},
        ]
        with pytest.raises(IndexError):
            _ = reader[3]
    [opened] = [event for event in events if type(event).__name__ == "Opened"]
    assert (opened.url, opened.nsamples) == (url, 3)


def test_a_part_of_a_member(way):
    """Its bytes from one to another, fewer at its end, none behind it; of a name that it has."""
    url = way.put("a.tar", DATA)
    with contextlib.closing(way.make().open(described(url, DATA))) as reader:
        whole = b"a0002" * 8000
        for lo, hi in ((0, 5), (0, 1 << 40), (3, 3), (39_990, 50_000), (40_000, 40_001), (70_000, 80_000), (7, 39_000)):
            assert reader.read_part(2, ".bin", lo, hi) == whole[lo:hi]
        assert reader.read_part(0, ".txt", 1, 9) == b"0"
        with pytest.raises(KeyError):
            reader.read_part(0, ".BIN", 0, 1)
    with pytest.raises(ClosedReaderError):
        reader.read_part(0, ".txt", 0, 1)


def test_a_hard_link_has_the_bytes_of_its_file(way):
    """Of an earlier sample, its own or of none, near and far; by a saved or published table, too. Oracle: tarfile."""
    parts = [tars.member(b"README", b"read me"), tars.member(b"a.txt", b"text")]
    parts += [tars.member(b"a.bin", b"data" * 20_000), tars.member(b"b.bin", b"b")]
    links = {b"a.copy": b"a.bin", b"b.txt": b"a.txt", b"c.txt": b"b.txt", b"c.doc": b"README", b"d.bin": b"b.bin"}
    parts.insert(3, tars.header(b"a.copy", kind=b"1", link=b"a.bin"))
    parts += [tars.header(name, kind=b"1", link=links[name]) for name in (b"b.txt", b"c.txt", b"c.doc", b"d.bin")]
    data = b"".join([*parts, tars.member(b"d.txt", b"d"), tars.END])
    wanted = {}
    for name, _, at, size in tars.expected(data)[1:]:
        key, dot, extension = name.decode().partition(".")
        wanted.setdefault(key, {"__key__": key})[dot + extension] = data[at : at + size]
    assert [len(sample) for sample in wanted.values()] == [4, 3, 3, 3]
    url = way.put("a.tar", data)
    provider, shard = way.make(), described(url, data)
    for _ in range(2):  # the second time by the table that the first one saved, if it did
        with contextlib.closing(provider.open(shard)) as reader:
            found = [values(reader.read(row)) for row in (0, 3, 1, 2)]
            assert found == [wanted[key] for key in "adbc"]
            assert [values(sample) for sample in reader.read_rows([0, 1, 2, 3, 1])] == [wanted[k] for k in "abcdb"]
            assert values(reader.read(2, (".doc",))) == {".doc": b"read me", "__key__": "c"}
            assert reader.read_part(2, ".doc", 2, 6) == b"ad m"
        way.put("a.tar" + SUFFIX, tars.table_of(data, url).to_bytes())
        provider = way.make()


# --- closing


def test_close_is_final_and_may_be_repeated(way):
    """After it, reads are errors of their own type, nothing is open, and another reader can be opened."""
    url = way.put("a.tar", DATA)
    provider = way.make()
    reader = provider.open(described(url, DATA))
    reader.close()
    reader.close()
    assert shards.files_open_in(way.home) == []
    assert not reader.pin()
    for read in (lambda: reader.read(0), lambda: reader.read_rows([0]), lambda: reader.read(0, (".txt",))):
        with pytest.raises(ClosedReaderError):
            read()
    assert texts(provider.open(described(url, DATA))) == texts_of("a")


def test_a_held_reader_closes_when_it_is_dropped(way):
    """A close takes effect after the last use, and lets nobody else begin one."""
    url = way.put("a.tar", DATA)
    reader = way.make().open(described(url, DATA))
    assert reader.pin()
    reader.close()
    assert not reader.pin()
    assert texts(reader) == texts_of("a")
    reader.unpin()
    assert shards.files_open_in(way.home) == []
    with pytest.raises(ClosedReaderError):
        reader.read(0)


def test_a_reader_has_no_copies(way):
    """Two owners would close it under one another."""
    reader = way.make().open(described(way.put("a.tar", DATA), DATA))
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="copy the dataset"):
            duplicate(reader)
    reader.close()


def test_two_threads_read_while_a_third_closes(way):
    """Each read is right, or says that the reader was closed."""
    url = way.put("a.tar", DATA)
    provider, wanted = way.make(), texts_of("a")
    for _ in range(10):
        reader = provider.open(described(url, DATA))
        meeting = threading.Barrier(3, timeout=PATIENCE_SECONDS)

        def read(reader=reader, meeting=meeting):
            meeting.wait()
            found = []
            with contextlib.suppress(ClosedReaderError):
                for row in (0, 1, 2) * 5:
                    found.append(reader.read(row)[".txt"].read() == wanted[row])  # noqa: PERF401 - until it is closed
            return found

        def close(reader=reader, meeting=meeting):
            meeting.wait()
            reader.close()
            return []

        with ThreadPoolExecutor(3) as threads:
            found = [task.result(PATIENCE_SECONDS) for task in [threads.submit(each) for each in (read, read, close)]]
        assert all(map(all, found))
        assert shards.files_open_in(way.home) == []

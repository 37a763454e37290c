"""The promises of `ShardProvider` and `Reader` as classes of tests, for the author of a way to open shards."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import os
import pickle
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from wids.core.cache import limits
from wids.core.cache.directory import CacheDirectory
from wids.core.cache.leases import leases
from wids.core.cache.space import Space, table_allowance
from wids.core.files.identity import Identity
from wids.core.readers.base import RowPart
from wids.core.readers.pool import OpenShards
from wids.core.readers.provider import AutoProvider
from wids.core.tables.table import SUFFIX, build_table
from wids.core.tables.tar import scan
from wids.errors import (
    CacheFull,
    ChangedShardError,
    ClosedReaderError,
    CountMismatchError,
    DigestMismatchError,
    FetchError,
    ShardError,
    SizeMismatchError,
)
from wids.testing import shards
from wids.testing.promises import PATIENCE_SECONDS, call_in_child, check, files_open_in, promised, refused
from wids.testing.shards import described, texts, texts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from wids.core.readers.base import Reader, Sample
    from wids.core.readers.provider import ShardProvider
    from wids.dataset import ShardListDataset
    from wids.events import Event, Hook

DATA = shards.shard("a", 3, 40_000)


class _WayToOpen:
    """The needs of both suites: a place for shards, and a provider that opens them there.

    Attributes:
        home: a directory for each test; shards and caches of it go below. It is set before a hook is called.
        is_local: shards are read where `put` writes them, as files.
        has_ranges: they are read in a store by byte ranges. A way that is neither reads files of the cache in the
            directory ``cache`` of ``home``, and holds a lease on each.
    """

    home: Path
    is_local: bool = False
    has_ranges: bool = False

    def put(self, name: str, data: bytes) -> str:
        """Make ``data`` the shard (or, ``name`` + ".widx", its table) of that name; returns its URL.

        Args:
            name: of the shard, ``"a.tar"``, or of its table, ``"a.tar.widx"``.
            data: its bytes.
        """
        raise NotImplementedError("override `put`: it makes bytes a shard that the provider finds, and returns its URL")

    def make(self, hooks: Sequence[Hook] = ()) -> ShardProvider:
        """A new provider, which tells ``hooks`` of what it opens.

        Args:
            hooks: functions of an event.
        """
        raise NotImplementedError("override `make`: it returns a new provider")

    @pytest.fixture(autouse=True)
    def _suite_home(self, tmp_path: Path) -> None:
        self.home = tmp_path

    @property
    def is_cached(self) -> bool:
        """True if it reads leased files of the cache."""
        return not (self.is_local or self.has_ranges)


class ReaderSuite(_WayToOpen):
    """The promises of every `Reader`; a subclass in a file of tests makes pytest run it against those of a provider.

    - It is complete when it is made, and says what it reads: URL, path, member table.
    - ``read`` gives a sample with all its members, or those asked for and no other; ``read_rows`` gives as much for
      each row; ``read_parts`` the bytes of a slice of one member. Hard links have the bytes of their file.
    - ``close`` takes effect when the last read or ``pin`` ends, may be repeated, and leaves no file open; from then on
      reads are a ClosedReaderError. Threads may read while another closes.
    - It can be neither copied nor pickled.

    A subclass has `put` and `make`, and declares ``is_local`` or ``has_ranges``.

    Attributes:
        home: the fixture ``tmp_path``; see `put` and `make`.
        is_local: see `make`.
        has_ranges: see `make`.
    """

    def test_open_reads_samples(self) -> None:
        """A reader says what it reads, and gives each sample, alone, among others, or some fields of it."""
        events: list[Event] = []
        url = self.put("a.tar", DATA)
        with contextlib.closing(self.make([events.append]).open(described(url, DATA))) as reader:
            actual = (reader.url, len(reader), reader.table.nsamples)
            check(actual == (url, 3, 3), "a reader has the URL, length and table of its shard", actual)
            is_there = reader.path == url if self.is_local or self.has_ranges else os.path.isfile(reader.path)
            check(is_there, "`path` is the file that is read, or the URL", reader.path)
            check(reader.is_leased == self.is_cached, "`is_leased` says whether its file is in the cache")
            check(texts(reader) == texts_of("a"), "iteration gives the samples in order", texts(reader))
            alone = [_values(reader.read(row)) for row in (0, 2, 2)]
            together = [_values(sample) for sample in reader.read_rows([0, 2, 2])]
            check(together == alone, "`read_rows` gives what `read` of each row gives", together)
            check(list(alone[0]) == [".txt", ".bin", "__key__"], "a sample has its members and its key", [*alone[0]])
            wanted = {".txt": b"a2", ".bin": b"a0002" * 8000, "__key__": "a0002"}
            check(alone[1] == wanted, "a sample has the bytes of its members", alone[1])
            some = _values(reader.read(1, (".txt", ".nosuch")))
            check(some == {".txt": b"a1", "__key__": "a0001"}, "`fields` are those that are read, if any", some)
            several = [_values(sample) for sample in reader.read_rows([0, 1], (".txt",))]
            wanted_rows = [{".txt": b"a0", "__key__": "a0000"}, {".txt": b"a1", "__key__": "a0001"}]
            check(several == wanted_rows, "`fields` are those that are read of each row", several)
            with refused(IndexError, "row 3 of 3 is an IndexError"):
                _ = reader[3]
        opened = [event for event in events if type(event).__name__ == "Opened"]
        opened_shards = [(getattr(event, "url", None), getattr(event, "nsamples", None)) for event in opened]
        check(opened_shards == [(url, 3)], "hooks receive each opened shard once", opened_shards)

    def test_a_part_of_a_member(self) -> None:
        """Its bytes from one to another, fewer at its end, none behind it; of a name that it has."""
        url = self.put("a.tar", DATA)
        spans = ((0, 5), (0, 1 << 40), (3, 3), (39_990, 50_000), (40_000, 40_001), (70_000, 80_000), (7, 39_000))
        with contextlib.closing(self.make().open(described(url, DATA))) as reader:
            whole = b"a0002" * 8000
            for lo, hi in spans:
                found = reader.read_parts([RowPart(2, ".bin", lo, hi)])[0]
                check(found == whole[lo:hi], f"`read_parts` gives bytes {lo} to {hi} of {len(whole)}", len(found))
            check(reader.read_parts([RowPart(0, ".txt", 1, 9)])[0] == b"0", "`read_parts` gives a slice of the member")
            several = reader.read_parts([RowPart(2, ".bin", 4, 9), RowPart(0, ".txt", 0, 2), RowPart(2, ".bin", 0, 5)])
            check(several == [whole[4:9], b"a0", whole[:5]], "`read_parts` gives each part, in their order", several)
            check(reader.read_parts([]) == [], "no parts are an empty list")
            with refused(KeyError, "a name that the sample does not have is a KeyError"):
                reader.read_parts([RowPart(0, ".BIN", 0, 1)])
        with refused(ClosedReaderError, "a read after `close` is a ClosedReaderError"):
            reader.read_parts([RowPart(0, ".txt", 0, 1)])

    def test_a_hard_link_has_the_bytes_of_its_file(self) -> None:
        """A file of an earlier sample, its own or none, near and far; saved, published tables, too. Oracle: tarfile."""
        data, wanted = _with_links()
        url = self.put("a.tar", data)
        provider, shard = self.make(), described(url, data)
        promise = "hard links have the bytes of their file"
        for _ in range(2):  # the second time by the table that the first one saved, if it did
            with contextlib.closing(provider.open(shard)) as reader:
                found = [_values(reader.read(row)) for row in (0, 3, 1, 2)]
                check(found == [wanted[key] for key in "adbc"], promise, found)
                several = [_values(sample) for sample in reader.read_rows([0, 1, 2, 3, 1])]
                check(several == [wanted[key] for key in "abcdb"], promise, several)
                one = _values(reader.read(2, (".doc",)))
                check(one == {".doc": b"read me", "__key__": "c"}, promise, one)
                check(reader.read_parts([RowPart(2, ".doc", 2, 6)])[0] == b"ad m", promise)
            self.put("a.tar" + SUFFIX, _table_of(data, url))
            provider = self.make()

    # --- closing

    def test_close_is_final_and_may_be_repeated(self) -> None:
        """After it, reads are errors of their own type, nothing is open, and another reader can be opened."""
        url = self.put("a.tar", DATA)
        provider = self.make()
        reader = provider.open(described(url, DATA))
        reader.close()
        reader.close()
        _check_closed(self.home)
        check(not reader.pin(), "`pin` of a closed reader says False")
        reads: list[Callable[[], object]] = [
            lambda: reader.read(0),
            lambda: reader.read_rows([0]),
            lambda: reader.read(0, (".txt",)),
        ]
        for read in reads:
            with refused(ClosedReaderError, "a read after `close` is a ClosedReaderError"):
                read()
        found = texts(provider.open(described(url, DATA)))
        check(found == texts_of("a"), "a shard that was closed can be opened again", found)

    def test_a_held_reader_closes_when_it_is_dropped(self) -> None:
        """A close takes effect after the last use, and prevents any new use."""
        url = self.put("a.tar", DATA)
        reader = self.make().open(described(url, DATA))
        check(reader.pin(), "`pin` of an open reader says True")
        reader.close()
        check(not reader.pin(), "a closed reader cannot be pinned")
        with promised("reads go on until `unpin`"):
            found = texts(reader)
        check(found == texts_of("a"), "reads go on until `unpin`", found)
        reader.unpin()
        _check_closed(self.home)
        with refused(ClosedReaderError, "a read after the last `unpin` of a closed reader is a ClosedReaderError"):
            reader.read(0)

    def test_a_reader_has_no_copies(self) -> None:
        """Two owners would close it under one another."""
        reader = self.make().open(described(self.put("a.tar", DATA), DATA))
        copies: tuple[Callable[[Reader], object], ...] = (copy.copy, copy.deepcopy, pickle.dumps)
        for duplicate in copies:
            promise = f"{duplicate.__name__} of a reader is a TypeError"
            with refused(TypeError, promise, naming="copy the dataset"):
                duplicate(reader)
        reader.close()

    def test_two_threads_read_while_a_third_closes(self) -> None:
        """Each read is right, or says that the reader was closed."""
        url = self.put("a.tar", DATA)
        provider, wanted = self.make(), texts_of("a")
        for _ in range(10):
            reader = provider.open(described(url, DATA))
            meeting = threading.Barrier(3, timeout=PATIENCE_SECONDS)

            def read(reader: Reader = reader, meeting: threading.Barrier = meeting) -> list[bool]:
                meeting.wait()
                found = []
                with contextlib.suppress(ClosedReaderError):
                    for row in (0, 1, 2) * 5:
                        found.append(reader.read(row)[".txt"].read() == wanted[row])  # noqa: PERF401 - until closed
                return found

            def close(reader: Reader = reader, meeting: threading.Barrier = meeting) -> list[bool]:
                meeting.wait()
                reader.close()
                return []

            promise = "reads are right, or a ClosedReaderError, while another thread closes"
            with promised(promise), ThreadPoolExecutor(3) as threads:
                tasks = [threads.submit(each) for each in (read, read, close)]
                found = [task.result(PATIENCE_SECONDS) for task in tasks]
            check(all(map(all, found)), promise, "other bytes")
            _check_closed(self.home)


class ShardProviderSuite(_WayToOpen):
    """The promises of every `ShardProvider`; a subclass in a file of tests makes pytest run it against one.

    - ``open`` gives a reader of the shard that the index describes. A shard that is missing, of another size or no tar
      is a typed error, and leaves no file open; one that changed gives no byte of one by the table of the other.
    - A member table that cannot be read is as none.
    - Pools close its readers, in this process or for another one that needs their space, and open them again.
    - With a dataset that reads in this way: forks, copies and the collector leave neither files nor errors behind.

    A subclass has `put`, `remove` and `make`, and declares ``is_local`` or ``has_ranges``; and `open_dataset`, or
    ``has_dataset = False`` as long as no dataset uses the provider.

    Attributes:
        home: see `ReaderSuite`.
        is_local: see there.
        has_ranges: see there.
        has_dataset: `open_dataset` gives a dataset; else the tests that need one are skipped and say so.
    """

    has_dataset: bool = True

    def remove(self, url: str) -> None:
        """Let there be no shard at a URL.

        Args:
            url: that `put` has returned.
        """
        raise NotImplementedError("override `remove`: it takes the shard at a URL away")

    def open_dataset(self, listed: list[dict[str, Any]]) -> ShardListDataset:
        """A dataset of these shards (rows of an index) that reads in this way, without transformations.

        Args:
            listed: rows of an index.
        """
        raise NotImplementedError("override `open_dataset`, or declare that there is none: has_dataset = False")

    def test_a_missing_shard_is_a_fetch_error(self) -> None:
        """It names the shard, and nothing stays open."""
        url = self.put("a.tar", DATA)
        self.remove(url)
        with refused(FetchError, "a shard that is missing is a FetchError") as caught:
            self.make().open(described(url, DATA))
        found = getattr(caught[0], "url", None)
        check(found == url, "the error of a missing shard has its URL", found)
        _check_closed(self.home)

    def test_a_shard_of_another_size_is_refused(self) -> None:
        """The size in the index is compared before a sample is read."""
        url = self.put("a.tar", DATA)
        promise = "a shard of another size than the index says is refused"
        with refused((ChangedShardError, SizeMismatchError), promise):
            texts(self.make().open(described(url, DATA, filesize=len(DATA) + 512, md5sum=None)))
        _check_closed(self.home)

    def test_a_shard_that_changed_gives_no_wrong_byte(self) -> None:
        """Another shard under the same name is an error, or is read as what it is; never by the table of the first."""
        url = self.put("a.tar", DATA)
        first = self.make()
        first.open(described(url, DATA)).close()
        other = shards.shard("b", 3, 40_000)
        self.put("a.tar", other)
        try:
            found = texts(first.open(described(url, other)))
        except (ShardError, DigestMismatchError):
            found = texts(self.make().open(described(url, other)))
        check(found == texts_of("b"), "a shard that changed is an error, or is read as what it is", found)

    def test_what_is_no_tar_is_a_shard_error(self) -> None:
        """Bytes that are no archive are refused, and nothing stays open."""
        data = b"x" * 2048
        url = self.put("a.tar", data)
        with refused(ShardError, "bytes that are no tar are a ShardError"):
            self.make().open(described(url, data))
        _check_closed(self.home)

    def test_a_wrong_count_is_for_the_collection_to_refuse(self) -> None:
        """The reader says how many samples there are; a dataset compares."""
        url = self.put("a.tar", DATA)
        with contextlib.closing(self.make().open(described(url, DATA, nsamples=5))) as reader:
            check(len(reader) == 3, "a reader says how many samples there are, not what the index says", len(reader))
        if self.has_dataset:
            promise = "a dataset refuses a shard of another count"
            with _dataset(self, url, nsamples=5) as dataset, refused(CountMismatchError, promise) as caught:
                _ = dataset[0]
            counts = (getattr(caught[0], "expected", None), getattr(caught[0], "found", None))
            check(counts == (5, 3), "the error has both counts", counts)
        _check_closed(self.home)

    @pytest.mark.parametrize("damage", [b"", b"\x89WIDS\r\n\x1a" + bytes(200), b"x" * 5000])
    def test_a_damaged_table_is_none(self, damage: bytes) -> None:
        """A saved or published table that cannot be read is not used."""
        url = self.put("a.tar", DATA)
        self.put("a.tar" + SUFFIX, damage)
        if self.is_cached:
            reader = self.make().open(described(url, DATA))
            place, name = os.path.split(reader.path)
            reader.close()
            with open(CacheDirectory(place).table(name), "wb") as file:
                file.write(damage)
        promise = "a member table that cannot be read is as none"
        with promised(promise), contextlib.closing(self.make().open(described(url, DATA))) as reader:
            found = texts(reader)
        check(found == texts_of("a"), promise, found)

    # --- pools, processes

    def test_a_pool_gives_way(self) -> None:
        """A need for space closes leased idle shards at once; a shard of ``get_shard`` is opened again."""
        shard = described(self.put("a.tar", DATA), DATA)
        cache = str(self.home / "cache")
        pool = OpenShards(self.make(), capacity=3, find=lambda _: shard, hooks=())
        found = pool.get_shard(shard.url)
        check(texts(found) == texts_of("a"), "a pool reads the shard")
        os.makedirs(cache, exist_ok=True)
        leases.release(cache)
        check(
            len(pool) == (0 if self.is_cached else 1), "readers with a lease, and no other, close for others", len(pool)
        )
        if self.is_cached:
            _check_closed(self.home)
            space = Space(cache, limit=None)
            is_deleted = space.delete(space.directory.inventory().entries[0])
            check(bool(is_deleted), "a file whose lease was given up can be deleted")
        check(texts(found) == texts_of("a"), "a shard that gave way is opened again")
        pool.clear()
        _check_closed(self.home)

    def test_a_reader_in_use_closes_after_its_use(self) -> None:
        """A pool that gives way in the middle of a read lets it end."""
        shard = described(self.put("a.tar", DATA), DATA)
        pool = OpenShards(self.make(), capacity=3, find=lambda _: shard, hooks=())
        promise = "a read that is under way ends before its reader closes"
        with promised(promise), pool.open(shard).pinned() as reader:
            pool.clear()
            found = texts(reader)
        check(found == texts_of("a"), promise, found)
        _check_closed(self.home)

    def test_a_forked_child_reads_on(self) -> None:
        """A dataset that was read from works in a forked child, and the child's copy of a lease keeps nothing."""
        url = self.put("a.tar", DATA)
        with _dataset(self, url, filesize=len(DATA)) as dataset:
            check(dataset[0][".txt"].read() == b"a0", "a dataset reads in this way")
            promise = "a dataset reads on in a forked child"
            with promised(promise):
                found = call_in_child(lambda: [sample[".txt"].read() for sample in dataset])
            check(found == texts_of("a"), promise, found)
            has_open = call_in_child(lambda: bool(files_open_in(self.home)))
            check(has_open == self.is_local, "a child's copy of a leased file is closed", has_open)
            check(dataset[1][".txt"].read() == b"a1", "a dataset reads on after a fork")

    def test_a_dataset_travels(self) -> None:
        """A pickled dataset opens its shards itself, independently of the original's open or closed ones."""
        url = self.put("a.tar", DATA)
        with _dataset(self, url, filesize=len(DATA)) as dataset:
            check(dataset[0][".txt"].read() == b"a0", "a dataset reads in this way")
            promise = "a pickled dataset reads in the same way"
            with promised(promise):
                twin = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - our own
                dataset.close()
                found = [sample[".txt"].read() for sample in twin]
            check(found == texts_of("a"), promise, found)
            twin.close()
        _check_closed(self.home)

    @pytest.mark.parametrize("name", ["", "shards", "spec"], ids=["alone", "shards", "spec"])
    def test_a_dataset_that_goes_closes_its_files(self, name: str) -> None:
        """Without the collector: no cycle keeps a dataset, or its pool, alive."""
        _needs_dataset(self)
        url = self.put("a.tar", DATA)
        gc.disable()
        try:
            dataset = self.open_dataset([{"url": url, "nsamples": 3}])
            _ = dataset[0], dataset.__getitems__([1, 2]), getattr(dataset, name) if name else None
            del dataset, _
            _check_closed(self.home)
        finally:
            gc.enable()

    # --- another process

    def test_another_process_takes_the_space_of_what_is_idle(self) -> None:
        """An idle shard gives way to another process that asks for space; one that is being read stays."""
        data = {tag: shards.shard(tag, 3, 40_000) for tag in "ab"}
        idle, read = [described(self.put(f"{tag}.tar", data[tag]), data[tag]) for tag in "ab"]
        pool = OpenShards(self.make(), capacity=3, find=lambda _: idle, hooks=())
        found, path = pool.open(idle), pool.open(read).path
        with pool.open(read).pinned() as reader:
            theirs = call_in_child(_make_space, self.home, _full_limit(self), PATIENCE_SECONDS)
            check(theirs == texts_of("c"), "an idle shard gives way to another process that needs space", theirs)
            check(
                (idle.url in pool.lru) == (not self.is_cached), "readers with a lease, and no other, close for others"
            )
            check(os.path.exists(found.path) == self.is_local, "what gave way is deleted, and no file of the user")
            check(os.path.exists(path) == (self.is_local or self.is_cached), "a shard that is read stays")
            check(texts(reader) == texts_of("b"), "a shard that is read stays")
        check(texts(found) == texts_of("a"), "a shard that gave way is opened again")
        pool.clear()
        _check_closed(self.home)

    def test_another_process_deletes_nothing_that_is_read(self) -> None:
        """If all shards are being read, a process that needs space gets an error in the end; the reads continue."""
        shard = described(self.put("a.tar", DATA), DATA)
        pool = OpenShards(self.make(), capacity=3, find=lambda _: shard, hooks=())
        with pool.open(shard).pinned() as reader:
            found = call_in_child(_make_space, self.home, _full_limit(self), 0.5)
            wanted = "full" if self.is_cached else texts_of("c")
            check(found == wanted, "a shard that is read does not give way", found)
            check(os.path.exists(reader.path) == (self.is_local or self.is_cached), "a shard that is read stays")
            check(texts(reader) == texts_of("a"), "a shard that is read stays")
        pool.clear()
        _check_closed(self.home)


@contextlib.contextmanager
def _dataset(suite: ShardProviderSuite, url: str, **keys: Any) -> Iterator[ShardListDataset]:
    """A dataset of one shard; ``keys``: of its row."""
    _needs_dataset(suite)
    dataset = suite.open_dataset([{"url": url, "nsamples": 3, **keys}])
    yield dataset
    dataset.close()


def _needs_dataset(suite: ShardProviderSuite) -> None:
    if not suite.has_dataset:
        pytest.skip(f"{type(suite).__name__}.has_dataset is False")


def _full_limit(suite: ShardProviderSuite) -> int | None:
    """The limit of a cache that has no space for another shard, and would have it without one that is there."""
    if not suite.is_cached:
        return None
    used = CacheDirectory(str(suite.home / "cache")).inventory().used_bytes
    return used + table_allowance(len(DATA), 3)  # tables of shards to come are given more than they take


def _make_space(home: Path, limit: int | None, seconds: float) -> list[bytes] | str:
    """Download a shard into a cache of ``limit`` bytes, as another process: its samples, or "full" in the end."""
    data = shards.shard("c", 3, 40_000)
    limits.LIMITS = limits.LIMITS._replace(wait_seconds=seconds)  # in this process, which ends
    provider = AutoProvider(cache_dir=str(home / "cache"), cache_local=True, cache_size=limit)
    (home / "c.tar").write_bytes(data)
    try:
        with contextlib.closing(provider.open(described(str(home / "c.tar"), data))) as reader:
            return texts(reader)
    except CacheFull:
        return "full"


def _check_closed(home: Path) -> None:
    found = files_open_in(home)
    check(not found, "no file stays open", found)


def _values(sample: Sample) -> dict[str, Any]:
    """A sample with the bytes of its members."""
    return {name: value.getvalue() if name.startswith(".") else value for name, value in sample.items()}


def _with_links() -> tuple[bytes, dict[str, dict[str, Any]]]:
    """A shard with hard links, and its samples by their keys, as tarfile reads them."""
    files = {"README": b"read me", "a.txt": b"text", "a.bin": b"data" * 20_000, "b.bin": b"b", "d.txt": b"d"}
    links = {"a.copy": "a.bin", "b.txt": "a.txt", "c.txt": "b.txt", "c.doc": "README", "d.bin": "b.bin"}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in ("README", "a.txt", "a.bin", "a.copy", "b.bin", "b.txt", "c.txt", "c.doc", "d.bin", "d.txt"):
            info = tarfile.TarInfo(name)
            if name in links:
                info.type, info.linkname = tarfile.LNKTYPE, links[name]
            else:
                info.size = len(files[name])
            archive.addfile(info, io.BytesIO(files.get(name, b"")))
    wanted: dict[str, dict[str, Any]] = {}
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as archive:
        for member in archive.getmembers()[1:]:
            key, dot, extension = member.name.partition(".")
            file = archive.extractfile(member)
            wanted.setdefault(key, {"__key__": key})[dot + extension] = file.read() if file else None
    return out.getvalue(), wanted


def _table_of(data: bytes, url: str) -> bytes:
    """The member table of a shard."""

    def read(at: int, count: int) -> bytes:
        return data[at : at + count]

    return build_table(scan(read, len(data), shard=url), identity=Identity(size=len(data)), shard=url).to_bytes()

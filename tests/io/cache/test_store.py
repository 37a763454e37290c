import errno
import functools
import itertools
import logging
import math
import os
import pickle
import stat
import tempfile
import zlib

import fsspec
import msgspec
import pytest

import wids
from tests.support import cache_shards
from tests.support import cache_shards as shards
from tests.support.cache_dirs import files_in, table_of
from tests.support.cache_shards import described, texts, texts_of
from tests.support.servers import cut_unannounced, instead, redirect, status, whole
from wids.core.cache import book, shard_download
from wids.core.cache.store import ShardCache
from wids.core.files import atomic, locks, system
from wids.core.files.own_folder import default_cache_dir
from wids.core.readers.provider import AutoProvider
from wids.core.shard import Shard
from wids.core.tables import member_tables
from wids.core.transport.session import Session
from wids.errors import (
    CacheError,
    ChangedShardError,
    CompressedShardError,
    CorruptHeaderError,
    DigestMismatchError,
    DuplicateMemberError,
    EmptyShardError,
    FetchDeniedError,
    FetchError,
    NotAllowedError,
    ShardError,
    ShardNotFoundError,
    SizeMismatchError,
    TruncatedShardError,
    WrongContentError,
)
from wids.events import Fetched, Hit, Opened, Rejected, RepeatedKeys

pytestmark = pytest.mark.usefixtures("no_waits")

A, B = shards.shard("a"), shards.shard("b")


@pytest.fixture
def cache(tmp_path):
    """The cache directory; it is not there yet."""
    return tmp_path / "cache"


@pytest.fixture
def opened(cache, events):
    """A function: open a shard as a process would that has opened none yet, and give the text of its samples."""

    def open_and_read(shard, **options):
        events.clear()
        return texts(
            AutoProvider(**{"cache_dir": str(cache), "session": Session(hooks=[events]), **options}).open(shard)
        )

    return open_and_read


def cached_files(cache):
    """As `files_in`, each name without the part that tells shards apart; no lock file is left of a download."""
    assert [name for name in os.listdir(cache / ".wids") if name.endswith(".lock")] == []
    found = map(os.path.split, files_in(cache))
    return sorted(os.path.join(directory, name.partition("-")[2]) for directory, name in found)


def cached_path(cache, url):
    """Where a shard is in the cache."""
    return AutoProvider(cache_dir=str(cache)).cache.placement.local_path(url)


def age(path):
    """Make a file look written at another time, as any later writer would, however fast the test is."""
    os.utime(path, ns=(0, os.stat(path).st_mtime_ns + 1_000_000_000))


# --- in place


def test_local_shards_are_read_in_place(tmp_path, cache, opened, events):
    """A path or a file: URL is opened where it is; nothing is copied, written or made anywhere."""
    path = shards.write(tmp_path / "data" / "ä b.tar", A)
    before = os.stat(path)
    for url in (path, f"file://{path}", f"file://localhost{path}".replace(" ", "%20")):
        reader = AutoProvider(cache_dir=str(cache), session=Session(hooks=[events])).open(described(url, A))
        assert (texts(reader), reader.path, reader.url) == (texts_of(), path, url)
    assert os.listdir(tmp_path / "data") == ["ä b.tar"]
    assert os.stat(path) == before
    assert not cache.exists()
    assert events.names() == ["Opened"] * 3
    assert (events[0].nsamples, events[0].has_saved_table) == (3, False)


def test_relative_paths_mean_what_they_meant(tmp_path, monkeypatch, cache):
    """A relative path is relative to where the store was made, wherever the program goes, also in a copy; ~ expands."""
    shards.write(tmp_path / "here" / "a.tar", A)
    shards.write(tmp_path / "there" / "a.tar", B)
    monkeypatch.chdir(tmp_path / "here")
    made_here = AutoProvider(cache_dir=str(cache))
    monkeypatch.chdir(tmp_path / "there")
    copy = pickle.loads(pickle.dumps(made_here))
    shard = Shard(url="a.tar", nsamples=3)
    assert texts(made_here.open(shard)) == texts(copy.open(shard)) == texts_of("a")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert texts(copy.open(Shard(url="~/there/a.tar", nsamples=3))) == texts_of("b")


def test_a_local_shard_of_another_size_is_refused(tmp_path, opened):
    """A filesize in the index that does not hold is an error before any byte is read as a sample."""
    path = shards.write(tmp_path / "a.tar", A)
    with pytest.raises(ChangedShardError, match="write the index again") as caught:
        opened(described(path, A, filesize=len(A) + 512))
    assert (caught.value.expected, caught.value.found) == (len(A) + 512, len(A))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (A[:700], TruncatedShardError),
        (b"<html>" * 500, CorruptHeaderError),
        (b"\x1f\x8b" + bytes(600), CompressedShardError),
        (shards.pack([("a.txt", b"1"), ("a.txt", b"2")]), DuplicateMemberError),
    ],
)
def test_a_local_shard_that_is_no_shard(tmp_path, opened, data, kind):
    """Damage to a local shard is a typed error, and no descriptor stays open."""
    path = shards.write(tmp_path / "a.tar", data)
    with pytest.raises(kind) as caught:
        opened(Shard(url=path, nsamples=3))
    assert caught.value.shard == path
    assert shards.files_open_in(tmp_path) == []


def test_what_is_there_instead_of_a_local_shard(tmp_path, opened):
    """Nothing, a directory, a FIFO, a path below a file: typed errors, and nobody waits."""
    os.mkfifo(tmp_path / "fifo.tar")
    (tmp_path / "dir.tar").mkdir()
    path = shards.write(tmp_path / "a.tar", A)
    with pytest.raises(ShardNotFoundError, match="check the path"):
        opened(Shard(url=str(tmp_path / "none.tar"), nsamples=3))
    for name in ("fifo.tar", "dir.tar"):
        with pytest.raises(FetchDeniedError, match="not a regular file"):
            opened(Shard(url=str(tmp_path / name), nsamples=3))
    with pytest.raises(FetchDeniedError, match="Not a directory"):
        opened(Shard(url=f"{path}/b.tar", nsamples=3))


def test_a_saved_table_saves_the_scan(tmp_path, opened, events, monkeypatch):
    """A table published beside a local shard is used, as long as it is the shard's own."""
    path = shards.write(tmp_path / "a.tar", A)
    fd, facts = atomic.open_file(path)
    atomic.write_atomically(path + ".widx", member_tables.scan_table(fd, path, facts).to_bytes())
    os.close(fd)
    assert opened(described(path, A)) == texts_of()
    assert events[0].has_saved_table
    other = shards.write(tmp_path / "b.tar", B)
    os.replace(path + ".widx", other + ".widx")
    age(other)
    assert opened(described(other, B)) == texts_of("b")
    assert not events[0].has_saved_table


@pytest.mark.parametrize("damage", [b"", b"no table", b"\x89WIDS\r\n\x1a" + bytes(200)])
def test_a_damaged_table_is_passed_over(tmp_path, opened, events, damage):
    """A saved table that cannot be read is no obstacle."""
    path = shards.write(tmp_path / "a.tar", A)
    shards.write(path + ".widx", damage)
    assert opened(described(path, A)) == texts_of()
    assert not events[0].has_saved_table


def test_a_table_that_is_no_file(tmp_path, opened):
    """A FIFO in the place of the table does not make anybody wait."""
    path = shards.write(tmp_path / "a.tar", A)
    os.mkfifo(path + ".widx")
    assert opened(described(path, A)) == texts_of()


def test_tables_are_remembered(tmp_path, monkeypatch, cache):
    """A shard without a saved table is scanned once for each store, until it changes, and up to a bound."""
    scans = []
    real = member_tables.scan_table
    monkeypatch.setattr(
        member_tables,
        "scan_table",
        lambda fd, url, *args, **options: scans.append(url) or real(fd, url, *args, **options),
    )
    paths = [shards.write(tmp_path / f"{tag}.tar", shards.shard(tag)) for tag in "abc"]
    opener = AutoProvider(cache_dir=str(cache))
    for path in paths * 2:
        opener.open(Shard(url=path, nsamples=3))
    assert scans == paths
    atomic.write_atomically(paths[0], shards.shard("z", 4))
    age(paths[0])
    assert texts(opener.open(Shard(url=paths[0], nsamples=4))) == texts_of("z", 4)
    assert scans == [*paths, paths[0]]
    monkeypatch.setattr(book, "MAX_BYTES", 1)
    scans.clear()
    opener = AutoProvider(cache_dir=str(cache))
    for path in paths * 2:
        opener.open(Shard(url=path, nsamples=None))
    assert scans == paths * 2
    each = max(opener.find_table(Shard(url=path, nsamples=None)).nbytes for path in paths)
    monkeypatch.setattr(book, "MAX_BYTES", 2 * each)
    for path in paths:
        opener.open(Shard(url=path, nsamples=None))
    scans.clear()
    for path in reversed(paths):
        opener.open(Shard(url=path, nsamples=None))
    assert scans == paths[:1]


def test_grouping_and_key_rules(tmp_path, opened, events):
    """Another key rule or grouping gives its own samples, whatever table is saved; repeated keys are reported."""
    data = shards.pack([("a.1.txt", b"1"), ("b.1.txt", b"2"), ("a.2.txt", b"3")])
    path = shards.write(tmp_path / "a.tar", data)
    fd, facts = atomic.open_file(path)
    atomic.write_atomically(path + ".widx", member_tables.scan_table(fd, path, facts).to_bytes())
    os.close(fd)
    shard = Shard(url=path, nsamples=3)
    opener = AutoProvider(cache_dir=None, session=Session(hooks=[events]))
    assert [s["__key__"] for s in opener.open(shard)] == ["a", "b", "a"]
    assert events == [RepeatedKeys(url=path, count=1), events[1]]
    merged = AutoProvider(cache_dir=None, group="key").open(shard)
    assert [sorted(s) for s in merged] == [[".1.txt", ".2.txt", "__key__"], [".1.txt", "__key__"]]
    assert opened(shard, rule="last-dot") == [b"1", b"2", b"3"]
    assert events.names() == ["Opened"]
    with pytest.raises(ValueError, match="key_rule"):
        AutoProvider(cache_dir=None, rule="no-dot")


# --- places


def test_the_default_place(monkeypatch, tmp_path):
    """$WIDS_CACHE, with ~, else a directory of the user's own."""
    monkeypatch.setenv("WIDS_CACHE", "~/c")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache_dir() == f"{tmp_path}/c"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for unset in (lambda: monkeypatch.setenv("WIDS_CACHE", ""), lambda: monkeypatch.delenv("WIDS_CACHE")):
        unset()
        assert default_cache_dir() == f"{tmp_path}/wids-cache-{os.getuid()}"


@pytest.mark.parametrize("chosen", [None, ""])
def test_the_default_place_is_private(monkeypatch, tmp_path, server, opened, chosen):
    """The user's own directory is made for the user alone, also when $WIDS_CACHE is set to nothing."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if chosen is None:
        monkeypatch.delenv("WIDS_CACHE", raising=False)
    else:
        monkeypatch.setenv("WIDS_CACHE", chosen)
    assert opened(described(server.add("/a.tar", A), A), cache_dir=default_cache_dir()) == texts_of()
    assert stat.S_IMODE(os.stat(default_cache_dir()).st_mode) == 0o700


def test_another_user_s_directory_is_refused(monkeypatch, tmp_path, server, opened):
    """What another user put where ours belongs is neither read nor written, also through a link."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("WIDS_CACHE", raising=False)
    shard = described(server.add("/a.tar", A), A)
    opened(shard, cache_dir=default_cache_dir())
    theirs = default_cache_dir()
    me = os.getuid()
    monkeypatch.setattr(system, "user_id", lambda: me + 1)
    os.rename(theirs, default_cache_dir())
    with pytest.raises(CacheError, match="another user"):
        opened(shard, cache_dir=default_cache_dir())
    os.rename(default_cache_dir(), tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", default_cache_dir())
    with pytest.raises(CacheError, match="another user"):
        opened(shard, cache_dir=default_cache_dir())
    assert len(server.requests) == 1


def test_a_chosen_place_may_be_shared(server, cache, opened):
    """A cache_dir that the user names is made as the umask has it, with what leads to it."""
    assert opened(described(server.add("/a.tar", A), A), cache_dir=str(cache / "x" / "y")) == texts_of()
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(os.stat(cache / "x" / "y").st_mode) == 0o777 & ~umask


def test_no_two_shards_share_a_name(server, cache, opened):
    """Shards of one basename, and URLs that differ in their query alone, lie side by side in one directory."""
    urls = [server.add(path, A) for path in ("/x/a.tar", "/y/a.tar")]
    server.add("/y/a.tar", B)
    for _ in range(2):
        assert opened(described(urls[0], A)) == texts_of("a")
        assert opened(described(urls[1], B)) == texts_of("b")
        assert opened(Shard(url=urls[1] + "?v=1", nsamples=3)) == texts_of("b")
    assert server.requests == ["/x/a.tar", "/y/a.tar", "/y/a.tar?v=1"]


def test_a_place_must_be_known():
    """Without cache_dir and localname there is nowhere to put a remote shard."""
    with pytest.raises(CacheError, match="neither a cache_dir nor a localname"):
        AutoProvider(cache_dir=None).open(Shard(url="memory://a.tar", nsamples=3))


@pytest.mark.parametrize("form", ["lambda", "partial", "method", "path"])
def test_localname(tmp_path, server, form, events):
    """The caller says where a shard is, and where it goes if it is not there: any callable, any path."""

    def under(directory, url):
        return os.path.join(directory, os.path.basename(url))

    place = {
        "lambda": lambda url: under(str(tmp_path), url),
        "partial": functools.partial(under, str(tmp_path)),
        "method": {server.url + "/a.tar": f"{tmp_path}/a.tar"}.get,
        "path": lambda url: tmp_path / "a.tar",
    }[form]
    shard = described(server.add("/a.tar", A), A)
    for _ in range(2):
        reader = AutoProvider(cache_dir=None, localname=place, session=Session(hooks=[events])).open(shard)
        assert (texts(reader), reader.path) == (texts_of(), f"{tmp_path}/a.tar")
    assert len(server.requests) == 1
    assert events.names() == ["Fetched", "Opened", "Hit", "Opened"]


def test_a_file_that_came_after_the_look_is_the_program_s(tmp_path, server):
    """With localname: a download ahead that was planned before does not replace it, whatever is in it."""
    path = tmp_path / "mine.tar"
    store = AutoProvider(cache_dir=None, localname=lambda _: str(path)).cache
    located = store.locate(described(server.add("/a.tar", A), A))
    assert not located.is_in_place
    path.write_bytes(b"mine")
    assert not store.download_ahead(located, after=0.0, is_cancelled=lambda: False)
    assert (path.read_bytes(), server.requests) == (b"mine", [])


def test_localname_in_place(tmp_path, server, events):
    """A file that is there already is read as it is, never fetched, replaced or provided with a table."""
    path = shards.write(tmp_path / "a.tar", A)
    opener = AutoProvider(cache_dir=None, localname=lambda url: path, session=Session(hooks=[events]))
    for _ in range(2):
        assert texts(opener.open(Shard(url=server.url + "/a.tar", nsamples=3))) == texts_of()
    with pytest.raises(ChangedShardError):
        opener.open(Shard(url=server.url + "/a.tar", nsamples=3, filesize=5))
    assert os.listdir(tmp_path) == ["a.tar"]
    assert server.requests == []


@pytest.mark.parametrize("url", ["{}", "file://{}", "a.tar"])
def test_localname_that_gives_the_url(tmp_path, monkeypatch, url):
    """``localname=lambda url: url``, the idiom for local shards, reads them in place in every spelling."""
    path = shards.write(tmp_path / "a.tar", A)
    monkeypatch.chdir(tmp_path)
    opener = AutoProvider(cache_dir=None, localname=lambda url: url)
    assert texts(opener.open(Shard(url=url.format(path), nsamples=3))) == texts_of()
    assert os.listdir(tmp_path) == ["a.tar"]


def test_localname_never_overwrites_what_the_user_put_there(tmp_path, server, events):
    """A file put where a fetch failed before, or beside a table that was published with it, is the user's."""
    path = str(tmp_path / "a.tar")
    opener = AutoProvider(cache_dir=None, localname=lambda url: path, session=Session(hooks=[events]))
    shard = Shard(url=server.url + "/a.tar", nsamples=4)
    with pytest.raises(ShardNotFoundError):
        opener.open(shard)
    server.add("/a.tar", A)
    shards.write(path, B)
    assert texts(opener.open(shard)) == texts_of("b")
    with pytest.raises(ChangedShardError):
        opener.open(msgspec.structs.replace(shard, filesize=5))
    shards.write(path + ".widx", b"theirs")
    assert texts(opener.open(shard)) == texts_of("b")
    with open(path, "rb") as file:
        assert file.read() == B


def test_localname_of_a_shard_that_was_fetched(tmp_path, server, opened):
    """What was fetched to a localname is kept up to date like any cached shard."""
    place = {"localname": lambda url: tmp_path / "a.tar", "cache_dir": None}
    url = server.add("/a.tar", A)
    assert opened(described(url, A), **place) == texts_of("a")
    server.add("/a.tar", B)
    assert opened(described(url, B), **place) == texts_of("b")


def test_cache_local(tmp_path, cache, opened, monkeypatch):
    """cache_local copies local shards, which are then read from the copy; those of one name in two places are two."""
    path = shards.write(tmp_path / "x" / "a.tar", A)
    other = shards.write(tmp_path / "y" / "a.tar", B)
    assert opened(described(path, A), cache_local=True) == texts_of("a")
    assert opened(described(f"file://{other}", B), cache_local=True) == texts_of("b")
    os.rename(path, path + ".gone")
    assert opened(described(path, A), cache_local=True) == texts_of("a")
    for directory, tag in (("x", "a"), ("y", "b")):
        monkeypatch.chdir(tmp_path / directory)
        shards.write(tmp_path / directory / "r.tar", shards.shard(tag))
        assert opened(Shard(url="r.tar", nsamples=3), cache_local=True) == texts_of(tag)
    assert sorted(os.listdir(tmp_path / "y")) == ["a.tar", "r.tar"]
    os.mkfifo(tmp_path / "fifo.tar")
    with pytest.raises(FetchError, match="not a regular file"):
        opened(Shard(url=str(tmp_path / "fifo.tar"), nsamples=3), cache_local=True)


def kinds(events):
    """The names of the events before a shard was open."""
    return [type(event).__name__ for event in events if not isinstance(event, Opened)]


@pytest.mark.parametrize("step", ["open", "scan"])
def test_a_file_system_that_fails_once_is_asked_again(tmp_path, opened, monkeypatch, caplog, step):
    """A stale handle in the course of opening a local shard is no end of a training; one that stays is an error."""
    path = shards.write(tmp_path / "a.tar", A)
    module, name = (atomic, "open_file") if step == "open" else (system, "pread")
    real, failures = getattr(module, name), []

    def failing(*args):
        if len(failures) < most and (step == "scan" or args[0] == path):
            failures.append(args)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(*args)

    monkeypatch.setattr(module, name, failing)
    most = 1
    assert opened(Shard(url=path, nsamples=3)) == texts_of("a")
    assert caplog.text.count("; it is opened again") == 1
    most = 100
    with pytest.raises((FetchDeniedError, ShardError), match=os.strerror(errno.ESTALE)):
        opened(Shard(url=path, nsamples=3))
    assert len(failures) == 3


def test_a_local_shard_that_is_written_anew_is_copied_again(tmp_path, cache, opened, events, monkeypatch):
    """The copy knows the size, time and inode of its source: one look at each opening, none for a sample."""
    path = shards.write(tmp_path / "a.tar", A)
    shard = Shard(url=path, nsamples=3)
    when = os.stat(path).st_mtime_ns
    assert opened(shard, cache_local=True) == texts_of("a")
    looks, real = [], os.stat
    monkeypatch.setattr(os, "stat", lambda name, **options: looks.append(name) or real(name, **options))
    assert opened(shard, cache_local=True) == texts_of("a")
    assert looks.count(path) == 1
    assert kinds(events) == ["Hit"]
    for tag, moved in (("b", 10**9), ("a", 0)):  # with another time; with another inode alone
        shards.write(tmp_path / "new.tar", shards.shard(tag))
        os.utime(tmp_path / "new.tar", ns=(when + moved, when + moved))
        os.replace(tmp_path / "new.tar", path)
        assert opened(shard, cache_local=True) == texts_of(tag)
        assert kinds(events) == ["Rejected", "Fetched"]
        assert events[0].cause == "its source was rewritten"
        assert opened(shard, cache_local=True) == texts_of(tag)
        assert kinds(events) == ["Hit"]
    os.unlink(path)
    assert opened(shard, cache_local=True) == texts_of("a")


def test_a_copy_with_the_checksum_of_the_index_is_not_made_anew(tmp_path, cache, opened, events):
    """Where the index has a checksum, it says which version is meant; the source's time is learned."""
    path = shards.write(tmp_path / "a.tar", A)
    assert opened(described(path, A), cache_local=True) == texts_of("a")
    os.utime(path, (1, 1))
    os.rename(path, path + ".new")
    shards.write(path, B)
    for _ in range(2):
        assert opened(described(path, A), cache_local=True) == texts_of("a")
        assert kinds(events) == ["Hit"]


def test_a_local_shard_that_is_written_while_it_is_copied(tmp_path, cache, opened, monkeypatch):
    """What came is not kept: it may be of two versions."""
    path = shards.write(tmp_path / "a.tar", A)
    writes = []

    def during(fd, size, offset, *, pread=os.pread):
        data = pread(fd, size, offset)
        if not writes and os.fstat(fd).st_ino == os.stat(path).st_ino:
            writes.append(shards.write(path, B))
            os.utime(path, (1, 1))
        return data

    monkeypatch.setattr(system, "pread", during)
    assert opened(Shard(url=path, nsamples=3), cache_local=True) == texts_of("b")
    assert len(writes) == 1


# --- fetched


def test_a_remote_shard_is_fetched_once(server, cache, opened, events):
    """First use fetches, later ones, also of other processes, find it; shard and table stay."""
    shard = described(server.add("/dir/a.tar", A), A)
    assert opened(shard) == texts_of()
    fetched, first = events
    assert isinstance(fetched, Fetched)
    assert (fetched.url, fetched.path, fetched.size_bytes) == (shard.url, cached_path(cache, shard.url), len(A))
    assert (type(first), first.has_saved_table, first.path) == (Opened, False, fetched.path)
    for _ in range(2):
        assert opened(shard) == texts_of()
        hit, again = events
        assert (type(hit), hit.path, again.has_saved_table) == (Hit, fetched.path, True)
    assert cached_files(cache) == [".wids/tables/a.tar.widx", "a.tar"]
    assert server.requests == ["/dir/a.tar"]


def test_a_shard_that_is_being_evicted_is_fetched_again(server, cache, opened):
    """Its bytes are free again already for whoever evicts it: the cache would hold more than its limit by one read."""
    shard = described(server.add("/a.tar", A), A)
    opened(shard)
    fd = locks.open_to_lock(cached_path(cache, shard.url))
    try:
        assert system.try_lock(fd, is_shared=False)
        assert opened(shard) == texts_of()
        assert os.fstat(fd).st_nlink == 0
    finally:
        os.close(fd)
    assert server.requests == ["/a.tar"] * 2


@pytest.mark.parametrize("facts", [{}, {"filesize": None}, {"md5sum": None}, {"filesize": None, "md5sum": None}])
def test_whatever_the_index_knows(server, opened, facts):
    """An index with or without size and md5 does, and what one process fetched serves another that knows less."""
    url = server.add("/a.tar", A)
    assert opened(described(url, A, **facts)) == texts_of()
    assert opened(described(url, A, filesize=None, md5sum=None, nsamples=None)) == texts_of()
    assert len(server.requests) == 1


def test_other_sources(opened, tmp_path, events):
    """Any file system of fsspec, and programs if they are allowed."""
    fsspec.filesystem("memory").pipe("/store/a.tar", A)
    try:
        assert opened(described("memory://store/a.tar", A)) == texts_of()
    finally:
        fsspec.filesystem("memory").rm("/store", recursive=True)
    path = shards.write(tmp_path / "b.tar", B)
    with pytest.raises(NotAllowedError):
        opened(described(f"pipe:cat {path}", B))
    assert opened(described(f"pipe:cat {path}", B), session=Session(hooks=[events], allow_pipe=True)) == texts_of("b")
    # A program that makes a new file of its own and moves it in place, as many downloaders do.
    script = f"cp {path} $1.own; mv $1.own $1"
    assert opened(
        described(f"pipe:sh -c '{script}' x {{local}}", B), session=Session(hooks=[events], allow_pipe=True)
    ) == texts_of("b")
    assert events.names() == ["Fetched", "Opened"]


def test_storage_options_reach_the_file_system(server, cache, opened):
    """Headers given for the file system are sent."""
    opened(described(server.add("/a.tar", A), A), session=Session({"headers": {"X-Token": "t"}}))
    assert server.headers[0]["x-token"] == "t"


def test_a_redirected_shard_keeps_its_name(server, opened):
    """The cache knows a shard by the URL of the index, wherever that leads."""
    server.add("/b.tar", A)
    url = server.add("/a.tar", b"", redirect(server.url + "/b.tar"))
    for _ in range(2):
        assert opened(described(url, A)) == texts_of()
    assert server.requests == ["/a.tar", "/b.tar"]


DAMAGE = {
    "size": ({"filesize": len(A) + 512}, [whole], SizeMismatchError),
    "md5": ({"md5sum": shards.md5(B)}, [whole], DigestMismatchError),
    "half": ({}, [cut_unannounced], SizeMismatchError),
    "half, index silent": ({"filesize": None, "md5sum": None}, [cut_unannounced], TruncatedShardError),
    "page, index silent": ({"filesize": None, "md5sum": None}, [instead(b"<html>" * 500)], WrongContentError),
}


@pytest.mark.parametrize(("facts", "faults", "kind"), DAMAGE.values(), ids=DAMAGE)
def test_a_wrong_shard_is_never_published(server, cache, opened, events, facts, faults, kind):
    """What is not what the index says is fetched twice and refused; nothing stays, nothing is open."""
    url = server.add("/a.tar", A, *faults)
    with pytest.raises(kind) as caught:
        opened(described(url, A, **facts))
    assert url in str(caught.value)
    assert len(server.requests) == 2
    assert events.names() == ["Retried"]
    assert cached_files(cache) == []
    assert shards.files_open_in(cache) == []


def test_a_wrong_shard_does_not_harm_the_next_try(server, cache, opened):
    """After a refused download (pain 6: it was served for ever) the next one is fetched, and right."""
    url = server.add("/a.tar", A, cut_unannounced, cut_unannounced, whole)
    shard = described(url, A, filesize=None, md5sum=None)
    with pytest.raises(TruncatedShardError):
        opened(shard)
    assert opened(shard) == texts_of()
    assert len(server.requests) == 3


def test_wrong_once_then_right(server, opened, events):
    """Bytes that were wrong on the way are fetched again without a word to the caller."""
    assert opened(described(server.add("/a.tar", A, instead(A[:-1] + b"x"), whole), A)) == texts_of()
    assert events.names() == ["Retried", "Fetched", "Opened"]


def test_a_shard_that_nobody_could_read_is_final(server, cache, opened):
    """A compressed shard, or one with twice the same member, is fetched once and refused."""
    for data, kind in (
        (b"\x1f\x8b" + bytes(600), CompressedShardError),
        (shards.pack([("a.txt", b"1"), ("a.txt", b"2")]), DuplicateMemberError),
    ):
        server.requests.clear()
        with pytest.raises(kind):
            opened(described(server.add("/a.tar", data), data))
        assert len(server.requests) == 1
    assert cached_files(cache) == []


def test_what_cannot_be_fetched_leaves_nothing(server, cache, opened):
    """After a download that failed for good nothing is there."""
    for fault in (status(404), status(403), status(503)):
        with pytest.raises(FetchError):
            opened(described(server.add("/a.tar", A, fault), A))
    assert cached_files(cache) == []


# --- stale


CHANGES = {
    "md5": ({"md5sum": None, "filesize": None}, {"filesize": None}),
    "md5, same size": ({}, {}),
    "crc32, same size": ({"md5sum": None}, {"md5sum": None}),
    "size": ({"md5sum": None}, {"md5sum": None}),
    "count": ({"md5sum": None, "filesize": None}, {"md5sum": None, "filesize": None}),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_shard_written_anew_is_fetched_again(server, opened, events, what):
    """Another md5, size or number of samples in the index than the cached shard has brings the new shard."""
    count = 3 if "same size" in what else 30
    new = shards.shard("n", count)
    before, after = CHANGES[what]
    url = server.add("/a.tar", A)
    has_crc32 = what.startswith("crc32")
    assert opened(described(url, A, crc32=crc32_of(A) if has_crc32 else None, **before)) == texts_of("a")
    server.add("/a.tar", new)
    shard = described(url, new, nsamples=count, crc32=crc32_of(new) if has_crc32 else None, **after)
    assert opened(shard) == texts_of("n", count)
    assert events.names() == ["Rejected", "Fetched", "Opened"]
    assert what.partition(",")[0].replace("count", "samples").replace("size", "bytes") in events[0].cause
    assert opened(shard) == texts_of("n", count)
    assert events.names() == ["Hit", "Opened"]
    assert len(server.requests) == 2


def test_a_new_index_with_an_old_server(server, cache, opened):
    """When the new shard cannot be had, the old one is not served in its place, and not lost for the old index."""
    url = server.add("/a.tar", A)
    opened(described(url, A))
    with pytest.raises(DigestMismatchError):
        opened(described(url, B))
    assert opened(described(url, A)) == texts_of("a")
    assert len(server.requests) == 3


def test_an_index_with_a_wrong_count_costs_one_fetch(server, cache, events):
    """A shard that holds another count than the index says is handed out for its reader to refuse, fetched once."""
    url = server.add("/a.tar", A)
    opener = AutoProvider(cache_dir=str(cache), session=Session(hooks=[events]))
    for _ in range(3):
        assert len(opener.open(described(url, A, nsamples=4))) == 3
    assert len(server.requests) == 1
    assert events.names() == ["Fetched", "Opened", "Hit", "Opened", "Hit", "Opened"]
    copy = pickle.loads(pickle.dumps(opener))  # another process: what it has not fetched it does not know
    copy.open(described(url, A, nsamples=4))
    assert len(server.requests) == 2


def crc32_of(data):
    """As an index holds it."""
    return f"{zlib.crc32(data):08x}"


@pytest.mark.parametrize("has_localname", [False, True], ids=["", "localname"])
def test_checksums_that_the_index_learns_are_proved(server, cache, events, has_localname):
    """A shard cached without one is hashed, not fetched, when an index has it; and from then on it is known.

    Also where one index has the md5 and another one the CRC-32: neither forgets what the other found out.
    """
    place = {"localname": lambda url: str(cache / "a.tar")} if has_localname else {}
    opener = AutoProvider(cache_dir=str(cache), session=Session(hooks=[events]), **place)
    url = server.add("/a.tar", A)
    none, md5 = described(url, A, md5sum=None), described(url, A)
    crc32 = described(url, A, md5sum=None, crc32=crc32_of(A))
    both = described(url, A, crc32=crc32_of(A))
    opener.open(none).close()
    found = []
    for shard in (md5, md5, crc32, crc32, md5, both, none):
        events.clear()
        reader = opener.open(shard)
        assert texts(reader) == texts_of()
        reader.close()
        assert events.names() == ["Hit", "Opened"]
        found.append(events[-1].has_saved_table)
    assert found == [False, True, False, True, True, True, True]
    assert len(server.requests) == 1


# --- damaged in the cache


def overwrite(path):
    """Other bytes, same size."""
    with open(path, "r+b") as file:
        file.seek(512)
        file.write(b"??")


def append(path):
    """Bytes more."""
    with open(path, "ab") as file:
        file.write(bytes(512))


HARMS = {
    "truncated": lambda path: os.truncate(path, 700),
    "emptied": lambda path: os.truncate(path, 0),
    "appended to": append,
    "overwritten": overwrite,
    "touched": lambda path: None,
    "table of another shard": lambda path: None,
    "table overwritten": lambda path: None,
}


@pytest.mark.parametrize("has_md5", [True, False], ids=["md5", "no md5"])
@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_cached_shard_is_never_served(server, cache, opened, events, harm, has_md5):
    """Whatever happened to the cached file or its table, the next process gets the right bytes."""
    url = server.add("/a.tar", A)
    shard = described(url, A, **({} if has_md5 else {"md5sum": None, "filesize": None}))
    opened(shard)
    path = cached_path(cache, url)
    HARMS[harm](path)
    age(path)
    if harm == "table of another shard":
        opened(described(server.add("/b.tar", B), B))
        os.replace(table_of(cached_path(cache, server.url + "/b.tar")), table_of(path))
        server.requests.pop()
    elif harm == "table overwritten":
        shards.write(table_of(path), b"\x89WIDS\r\n\x1a" + bytes(300))
    assert opened(shard) == texts_of()
    is_whole = harm in ("touched", "table of another shard", "table overwritten")
    can_be_proved = is_whole and has_md5  # and then it need not come over the wire again
    assert len(server.requests) == (1 if can_be_proved else 2)
    assert [event for event in events if isinstance(event, Rejected)] == [] if can_be_proved else [events[0]]
    assert opened(shard) == texts_of()
    assert events.names() == ["Hit", "Opened"]
    assert cached_files(cache)[:2] == [".wids/tables/a.tar.widx", "a.tar"]


@pytest.mark.parametrize("has_md5", [True, False], ids=["md5", "no md5"])
@pytest.mark.parametrize("harm", [None, "truncated", "emptied", "overwritten"])
def test_a_cached_shard_without_its_table(server, cache, opened, events, harm, has_md5):
    """A cached shard whose table is gone is used if an md5 proves it, and fetched again if none does."""
    url = server.add("/a.tar", A)
    opened(described(url, A))
    path = cached_path(cache, url)
    os.unlink(table_of(path))
    if harm:
        HARMS[harm](path)
    assert opened(described(url, A, filesize=None, **({} if has_md5 else {"md5sum": None}))) == texts_of()
    is_proved = has_md5 and not harm
    assert events.names() == (["Hit", "Opened"] if is_proved else ["Rejected", "Fetched", "Opened"])
    assert len(server.requests) == 2 - is_proved


def test_zeros_in_place_of_a_shard(server, cache, opened, no_waits):
    """Without an md5 they are an empty tar of the right size: refused, fetched once more, and never published."""
    zeros = instead(b"\0" * len(A))
    url = server.add("/a.tar", A, zeros, whole)
    assert opened(described(url, A, md5sum=None)) == texts_of()
    url = server.add("/b.tar", A, zeros)
    with pytest.raises(EmptyShardError, match="without a sample"):
        opened(described(url, A, md5sum=None))
    assert not [name for name in cached_files(cache) if "b.tar" in name]
    server.faults["/b.tar"] = [whole]
    assert opened(described(url, A, md5sum=None)) == texts_of()


def test_a_cached_shard_of_another_size_is_not_hashed(server, opened, monkeypatch):
    """Where the size tells that it is another shard, its md5 is not taken."""
    url = server.add("/a.tar", A)
    opened(described(url, A))
    new = shards.shard("b", 30)
    server.add("/a.tar", new)
    digests = []
    real = shard_download.file_digest

    def file_digest(file, key, **options):
        digests.append(real(file, key, **options))
        return digests[-1]

    monkeypatch.setattr(shard_download, "file_digest", file_digest)
    assert opened(described(url, new, nsamples=30)) == texts_of("b", 30)
    assert digests == [shards.md5(new)]


def test_a_crc32_is_compared_instead_of_an_md5(server, cache, opened, monkeypatch):
    """Of the checksums in the index the quickest one is, of what arrives; of a file that may be another one, both."""
    keys, real = [], shard_download.file_digest

    def file_digest(file, key, **options):
        keys.append(key)
        return real(file, key, **options)

    monkeypatch.setattr(shard_download, "file_digest", file_digest)
    url = server.add("/a.tar", A)
    shard = described(url, A, crc32=f"{zlib.crc32(A):08x}")
    assert opened(shard) == texts_of("a")
    os.utime(cached_path(cache, url))
    assert opened(shard) == texts_of("a")
    assert keys == ["crc32", "crc32", "md5sum"]
    assert server.requests == ["/a.tar"]


def test_another_crc32_is_refused(server, opened, no_waits):
    """With both sides of it, and its name; nothing is kept."""
    url = server.add("/a.tar", A)
    with pytest.raises(DigestMismatchError, match="the crc32 of the received bytes is") as caught:
        opened(described(url, A, crc32="0badcafe"))
    assert (caught.value.expected, caught.value.found) == ("0badcafe", f"{zlib.crc32(A):08x}")


def test_a_proved_shard_that_is_none(server, cache, opened, events):
    """An md5 that holds does not make a shard of what cannot be one."""
    data = shards.pack([("a.txt", b"1"), ("a.txt", b"2")])
    url = server.add("/a.tar", data)
    shards.write(cached_path(cache, url), data)
    with pytest.raises(DuplicateMemberError):
        opened(described(url, data))
    assert "two members" in events[0].cause
    assert shards.files_open_in(cache) == []


def test_a_cached_shard_on_a_bad_disk(server, cache, opened, events, monkeypatch):
    """A cached shard whose bytes the disk does not give back is fetched again."""
    url = server.add("/a.tar", A)
    opened(described(url, A))
    path = cached_path(cache, url)
    os.unlink(table_of(path))
    inode = os.stat(path).st_ino
    real = os.pread

    def pread(fd, size, offset):
        if os.fstat(fd).st_ino == inode:
            raise OSError(errno.EIO, "Input/output error")
        return real(fd, size, offset)

    monkeypatch.setattr(system, "pread", pread)
    assert opened(described(url, A)) == texts_of()
    assert "Input/output error" in events[0].cause


def test_what_is_in_the_way(server, cache, opened):
    """A directory or a FIFO where the cached shard belongs is a typed error; it is not removed."""
    shard = described(server.add("/a.tar", A), A)
    path = cached_path(cache, shard.url)
    os.makedirs(path)
    with pytest.raises(CacheError, match="remove it"):
        opened(shard)
    os.rmdir(path)
    os.mkfifo(path)
    with pytest.raises(CacheError, match="not a regular file"):
        opened(shard)
    assert server.requests == []


def test_a_shard_deleted_while_the_lock_was_awaited(server, cache, opened, monkeypatch):
    """A file that goes between the look and the proof is fetched."""
    url = server.add("/a.tar", A)
    opened(described(url, A))
    path = cached_path(cache, url)
    os.unlink(table_of(path))
    find = ShardCache.find

    def late(self, located, *, lock=None):
        if lock is not None:
            os.unlink(path)
        return find(self, located, lock=lock)

    monkeypatch.setattr(ShardCache, "find", late)
    assert opened(described(url, A)) == texts_of()
    assert len(server.requests) == 2


def test_readers_of_the_old_shard_go_on(server, cache):
    """A shard that is fetched again leaves who has the old one open with the old one, whole."""
    url = server.add("/a.tar", A)
    opener = AutoProvider(cache_dir=str(cache))
    old = opener.open(described(url, A))
    server.add("/a.tar", B)
    new = opener.open(described(url, B))
    assert (texts(old), texts(new)) == (texts_of("a"), texts_of("b"))


def test_other_groupings_of_cached_shards(server, opened, events, cache):
    """With another key rule or grouping a cached shard gives its samples, is fetched once, and is shared."""
    data = shards.pack([("a.1.txt", b"1"), ("b.1.txt", b"2"), ("a.2.txt", b"3")])
    url = server.add("/a.tar", data)
    rules = itertools.cycle([{"group": "key"}, {"rule": "last-dot"}, {"rule": rule_of_one}, {}])
    counts = []
    for options in itertools.islice(rules, 8):
        standard = {"nsamples": 3} if not options else {"nsamples": 2}
        opener = AutoProvider(cache_dir=str(cache), session=Session(hooks=[events]), **options)
        counts.append(len(opener.open(described(url, data, **standard))))
        opener.open(described(url, data, **standard))
    assert counts == [2, 3, 1, 3] * 2
    assert len(server.requests) == 1
    assert "Rejected" not in events.names()


def rule_of_one(name):
    """A key rule that takes one member and leaves out the others."""
    return ("only", ".txt") if name == "a.1.txt" else None


def test_a_failing_grouping_leaves_nothing_open(server, cache, opened):
    """A rule that fails on a cached shard is the caller's error, and its descriptor is closed."""
    url = server.add("/a.tar", A)
    with pytest.raises(DuplicateMemberError):
        opened(described(url, A), rule=lambda name: ("same", ".same"))
    assert shards.files_open_in(cache) == []


# --- directories that cannot be written


def test_a_directory_that_cannot_be_made(server, tmp_path, opened):
    """A cache_dir that is a file, or below one, is a typed error that says what to do."""
    path = shards.write(tmp_path / "file", b"")
    shard = described(server.add("/a.tar", A), A)
    for directory in (path, f"{path}/below"):
        with pytest.raises(CacheError, match="choose another cache_dir"):
            opened(shard, cache_dir=directory)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "at" / "all")
    with pytest.raises(CacheError, match="choose another cache_dir"):
        opened(shard, cache_dir=str(tmp_path / "link"))
    assert server.requests == []


def test_a_read_only_directory_still_serves(server, cache, opened, monkeypatch):
    """From a cache that cannot be written shards are served; what is not there cannot be fetched, and says so."""
    shard = described(server.add("/a.tar", A), A)
    opened(shard)
    real = os.open

    def read_only(path, flags, *args, **options):
        if flags & (os.O_CREAT | os.O_RDWR | os.O_WRONLY) and str(path).startswith(str(cache)):
            raise OSError(errno.EROFS, "Read-only file system", path)
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", read_only)
    assert opened(shard) == texts_of()
    with pytest.raises(CacheError, match="Read-only file system"):
        opened(described(server.add("/b.tar", B), B))


def test_a_table_that_cannot_be_saved_is_done_without(server, cache, opened, monkeypatch, caplog):
    """A cached shard is proved and served also where its table cannot be written."""
    caplog.set_level(logging.DEBUG, logger="wids")
    shard = described(server.add("/a.tar", A), A)
    opened(shard)
    os.unlink(table_of(cached_path(cache, shard.url)))
    monkeypatch.setattr(os, "replace", full)
    assert opened(shard) == texts_of()
    assert "cannot be saved" in caplog.text
    assert cached_files(cache) == ["a.tar"]


def full(*args):
    """A write or fsync on a full disk."""
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("call", ["ftruncate", "fsync", "replace"])
def test_a_disk_that_is_full_at_the_end(server, cache, opened, monkeypatch, call):
    """No space for the table, the last bytes or the name: a typed error with what to do, one try, and nothing stays."""
    shard = described(server.add("/a.tar", A), A)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(CacheError, match="free space"):
            opened(shard)
    assert len(server.requests) == (call != "ftruncate")  # no room is seen before anything is asked for
    assert cached_files(cache) == []
    assert shards.files_open_in(cache) == []
    assert opened(shard) == texts_of()


def test_a_part_file_that_cannot_be_made(server, cache, opened, monkeypatch):
    """A directory that takes a lock but no part file is a typed error."""
    real = os.open

    def no_parts(path, *args, **options):
        if str(path).endswith(".part"):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", no_parts)
    with pytest.raises(CacheError, match="free space or inodes"):
        opened(described(server.add("/a.tar", A), A))


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_without_locks_shards_are_fetched_all_the_same(server, cache, opened, monkeypatch, code):
    """On a file system without locks everything works."""
    import fcntl

    def flock(fd, operation):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    shard = described(server.add("/a.tar", A), A)
    for _ in range(2):
        assert opened(shard) == texts_of()
    assert len(server.requests) == 1


def test_another_version_published_meanwhile_is_no_matter(server, cache, monkeypatch):
    """Without locks another process may publish other bytes at the same moment: each reads what it verified."""
    url = server.add("/a.tar", A)
    real = os.replace
    path = cached_path(cache, url)

    def replace(source, target):
        real(source, target)
        if target == path:
            atomic.write_atomically(table_of(path), b"of another")
            shards.write(path + ".other", B)
            real(path + ".other", path)

    opener = AutoProvider(cache_dir=str(cache))
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        reader = opener.open(described(url, A))
    assert texts(reader) == texts_of("a")
    assert texts(AutoProvider(cache_dir=str(cache)).open(described(url, A))) == texts_of("a")


# --- hooks


def test_hooks_that_fail_change_nothing(server, opened, caplog):
    """Hooks that raise are logged; the shard is fetched, published and served."""

    def broken(event):
        raise RuntimeError("mine")

    shard = described(server.add("/a.tar", A, status(500), whole), A)
    for _ in range(2):
        assert opened(shard, session=Session(hooks=[broken])) == texts_of()
    assert len(server.requests) == 2
    assert caplog.text.count("RuntimeError: mine") == 5


def test_hooks_may_open_what_they_are_told_of(server, cache):
    """A hook that opens the very shard it hears of does not wait for the lock that its own thread holds."""
    url = server.add("/a.tar", A)
    seen = []

    def curious(event):
        if not seen:
            seen.append(type(event).__name__)
            seen.extend(texts(opener.open(described(url, A))))

    opener = AutoProvider(cache_dir=str(cache), session=Session(hooks=[curious]))
    opener.open(described(url, A))
    assert seen == ["Fetched", *texts_of()]


def test_a_hook_that_would_wait_for_itself(server, cache, caplog):
    """A hook that opens the shard while it is being fetched is told so; the fetch goes on."""
    url = server.add("/a.tar", A, status(500), whole)

    def hasty(event):
        if event.__class__.__name__ == "Retried":
            AutoProvider(cache_dir=str(cache)).open(described(url, A))

    reader = AutoProvider(cache_dir=str(cache), session=Session(hooks=[hasty])).open(described(url, A))
    assert texts(reader) == texts_of()
    assert "does a hook open shards?" in caplog.text


def test_a_hook_that_stops_the_program(server, cache):
    """Ctrl-C in a hook leaves no descriptor open, no lock held and no part file."""

    def stop(event):
        raise KeyboardInterrupt

    shard = described(server.add("/a.tar", A), A)
    with pytest.raises(KeyboardInterrupt):
        AutoProvider(cache_dir=str(cache), session=Session(hooks=[stop])).open(shard)
    assert shards.files_open_in(cache) == []
    assert texts(AutoProvider(cache_dir=str(cache)).open(shard)) == texts_of()
    assert cached_files(cache) == [".wids/tables/a.tar.widx", "a.tar"]


def test_a_store_that_reads_through_maps(tmp_path, server, cache):
    """use_mmap gives mapped readers, of local and cached shards."""
    path = shards.write(tmp_path / "a.tar", A)
    opener = AutoProvider(cache_dir=str(cache), use_mmap=True)
    for shard in (described(path, A), described(server.add("/a.tar", A), A)):
        reader = opener.open(shard)
        assert reader._file.mapped is not None
        assert texts(reader) == texts_of()


def test_nothing_stays_open(server, tmp_path, cache, opened):
    """After hits, fetches, proofs and failures no file of the cache or of the data is open."""
    path = shards.write(tmp_path / "data" / "a.tar", A)
    url = server.add("/a.tar", A)
    for shard in (described(path, A), described(url, A), described(url, A, md5sum=None), described(url, A)):
        opened(shard)
    for shard in (described(path, A, filesize=1), described(url, B), described(server.url + "/x.tar", A)):
        with pytest.raises((FetchError, ChangedShardError)):
            opened(shard)
    assert shards.files_open_in(tmp_path) == []


@pytest.mark.parametrize(
    "options", [{"endpoint_url": "http://b"}, {"client_kwargs": {"endpoint_url": "http://b"}}, {"host": "b"}]
)
def test_one_key_on_two_servers_has_two_places(tmp_path, options):
    """Where the URL does not say which server holds a bucket, the options do, and the cache keeps the shards apart."""
    stores = [
        AutoProvider(cache_dir=str(tmp_path), session=Session(given)) for given in (None, {}, {"anon": True}, options)
    ]
    *same, other = [store.cache.placement.local_path("s3://bucket/a.tar") for store in stores]
    assert len(set(same)) == 1
    assert other not in same
    assert other.endswith("-a.tar")


@pytest.mark.parametrize(
    "options", [{"cache_size": math.nan}, {"cache_size": "10 gallons"}, {"prefetch": "all"}, {"prefetch": -1}]
)
@pytest.mark.usefixtures("own_cache")
def test_settings_that_mean_nothing_are_refused(index, options):
    """A bound that is no number is told at once, not at the first fetch or never."""
    with pytest.raises((ValueError, TypeError)):
        wids.ShardListDataset(index, **options)


def test_a_localname_that_gives_two_urls_one_place_mixes_nothing_up(tmp_path):
    """Two shards that a caller's localname puts in one file are fetched in turn, never taken for one another."""
    urls = []
    for name in "xy":
        os.mkdir(tmp_path / name)
        (tmp_path / name / "s.tar").write_bytes(cache_shards.pack([("k.txt", name.encode())]))
        urls.append((str(tmp_path / name / "s.tar"), 1))
    place = str(tmp_path / "cache.tar")
    dataset = wids.ShardListDataset(urls, localname=lambda _: place, lru_size=1)
    for _ in range(2):
        assert [sample[".txt"] for sample in dataset] == ["x", "y"]
    again = wids.ShardListDataset(urls[:1], localname=lambda _: place)
    assert again[0][".txt"] == "x"

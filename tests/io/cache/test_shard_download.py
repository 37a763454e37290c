"""One download into the cache: how it ends, whatever the server sends, the directory holds or another process does."""

import contextlib
import gzip
import math
import os
import threading

import pytest

from tests.support import cache_shards as shards
from tests.support.cache_dirs import names_in, put_shard
from tests.support.cache_shards import described
from tests.support.children import PATIENCE_SECONDS, child, receive, stop_here
from tests.support.range_faults import unsized
from tests.support.servers import endless, whole, whole_unannounced
from wids.core.cache import limits, reservation, shard_download, space
from wids.core.cache.space import Space
from wids.core.files import atomic, locks, system
from wids.core.readers.provider import AutoProvider
from wids.core.shard import Shard
from wids.core.tables import member_tables
from wids.core.transport import concurrency, download, retrying
from wids.core.transport.download import Transfer
from wids.errors import (
    CacheFull,
    CompressedShardError,
    CorruptHeaderError,
    EmptyShardError,
    SizeMismatchError,
    WidsError,
    WrongContentError,
)

pytestmark = pytest.mark.usefixtures("no_waits", "own_cache")


def is_free(path):
    """Whether nobody has a lease of a file."""
    fd = os.open(path, os.O_RDWR)
    try:
        return bool(system.try_lock(fd, is_shared=False))
    finally:
        os.close(fd)


def test_a_fork_while_a_shard_is_checked_takes_no_lease_along(server, tmp_path, monkeypatch):
    """A process forked while another thread has a shard that is not yet published takes no lease of it along."""
    url = server.add("/a.tar", shards.shard("a"))
    opener = AutoProvider(cache_dir=str(tmp_path / "cache"))
    entered, go = threading.Event(), threading.Event()
    real = member_tables.scan_table

    def held(*args, **options):
        entered.set()
        assert go.wait(PATIENCE_SECONDS)
        return real(*args, **options)

    monkeypatch.setattr(member_tables, "scan_table", held)
    shard = described(url, shards.shard("a"))
    thread = threading.Thread(
        target=lambda: opener.cache.download_ahead(
            opener.cache.locate(shard), after=-math.inf, is_cancelled=lambda: False
        )
    )
    thread.start()
    try:
        assert entered.wait(PATIENCE_SECONDS)
        with child(stop_here) as (_, connection):
            receive(connection)
            go.set()
            thread.join(PATIENCE_SECONDS)
            assert is_free(opener.cache.placement.local_path(url))
    finally:
        go.set()
        thread.join(PATIENCE_SECONDS)


def test_nothing_goes_for_what_can_never_fit(tmp_path, set_limits):
    """A server that announces more than the disk has does not cost all that is in the cache."""
    set_limits(limits, wait_seconds=0.0)
    set_limits(reservation, grace_seconds=0.0)
    for name in "abc":
        put_shard(tmp_path, f"{name}.tar", 1000)
    _, fd = atomic.make_part(str(tmp_path / "new.tar"))
    try:
        with pytest.raises(CacheFull):
            Space(str(tmp_path), limit=None).reserve([(fd, 1 << 60)], url="http://x/new.tar")
    finally:
        os.close(fd)
    assert names_in(tmp_path) == ["a.tar", "b.tar", "c.tar"]


def test_a_stream_that_is_too_long_ends_there(server, tmp_path):
    """Where the index says how long a shard is, no room is made for a stream that goes on behind that."""
    asked = []
    target = tmp_path / "target"
    target.touch()
    url = server.add("/a.tar", bytes(10_000_000), whole_unannounced)
    with pytest.raises(SizeMismatchError):
        Transfer(url, str(target), size=1000, reserve=asked.append).run()
    assert max(asked, default=0) <= 1000
    assert target.stat().st_size <= 1000


def unending(start, block=bytes(1 << 20)):
    """A fault: a body of ``start`` and 64 MiB more, no length announced."""

    def fault(handler, _):
        handler.start(Connection="close")
        handler.send(start)
        for _ in range(64):
            handler.send(block)
        handler.close_connection = True

    return fault


NO_SHARD = {
    "spaces": (endless, CorruptHeaderError),
    "a page": (unending(b"<!DOCTYPE html>", b"<p>" * (1 << 18)), WrongContentError),
    "zeros": (unending(b""), EmptyShardError),
    "gzip": (unending(gzip.compress(bytes(10_000_000))), CompressedShardError),
}


@pytest.mark.parametrize(("fault", "kind"), NO_SHARD.values(), ids=NO_SHARD)
def test_a_stream_that_cannot_be_a_shard_ends_at_its_first_block(server, tmp_path, fault, kind):
    """Neither the index nor the server says how long it is: its first bytes tell, and no others are written."""
    url = server.add("/a.tar", b"", fault)
    provider = AutoProvider(cache_dir=str(tmp_path / "cache"))
    with pytest.raises(kind):
        provider.open(Shard(url=url, nsamples=3))
    assert server.sent_bytes["/a.tar"] < 64 << 20
    assert server.requests.count("/a.tar") == (1 if kind is CompressedShardError else 2)


def test_a_compressed_shard_is_not_downloaded_to_its_end(server, tmp_path, set_limits):
    """Its ranges are read at the same time, and the first of them ends them all."""
    set_limits(concurrency, first_range_bytes=1 << 20, min_range_bytes=1 << 20, max_range_bytes=1 << 20)
    server.has_ranges = True
    body = b"\x1f\x8b" + bytes(64 << 20)
    url = server.add("/a.tar", body)
    with pytest.raises(CompressedShardError):
        AutoProvider(cache_dir=str(tmp_path / "cache")).open(Shard(url=url, nsamples=3, filesize=len(body)))
    assert server.sent_bytes["/a.tar"] < len(body) // 2


def test_a_shard_without_end_stays_within_the_limit(server, tmp_path):
    """A shard that starts well and goes on for ever gets what the limit has, and no more, by the disk's word."""
    cache, data = tmp_path / "cache", shards.shard("a")
    url = server.add("/a.tar", data, unending(data))
    sizes, real = [], system.write_all

    def write_all(fd, block, at):
        real(fd, block, at)
        sizes.append(sum(each.stat().st_size for each in cache.rglob("*") if each.is_file()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(system, "write_all", write_all)
        with pytest.raises(CacheFull, match="neither the index nor the server says how long this shard is"):
            AutoProvider(cache_dir=str(cache), cache_size=20_000_000).open(Shard(url=url, nsamples=None))
    assert 10_000_000 < max(sizes) < 20_100_000


def test_a_shard_of_unknown_length_that_just_fits(server, tmp_path):
    """Space is reserved in steps, and the last one need not fit."""
    data = shards.pack([(f"{row}.bin", bytes(1 << 20)) for row in range(9)])
    url = server.add("/a.tar", data, whole_unannounced)
    limit = len(data) + space.table_allowance(len(data), 9)
    AutoProvider(cache_dir=str(tmp_path / "cache"), cache_size=limit).open(Shard(url=url, nsamples=9)).close()


def test_a_drip_ends(server, tmp_path, set_limits):
    """A server that sends a byte now and then does not keep a shard's lock for good."""
    set_limits(retrying, total_seconds=0.3, slowest_bytes=1 << 30)
    sent = []

    def drip(handler, body):
        data = handler.begin(body)
        for k in range(len(data)):
            if server.closing.wait(0.02):
                return
            handler.wfile.write(data[k : k + 1])
            sent.append(k)

    target = tmp_path / "target"
    target.touch()
    url = server.add("/a.tar", bytes(200), drip)
    with contextlib.suppress(WidsError):
        download.download_to(url, str(target), check=lambda: None)
    assert len(sent) < 150


def test_a_server_that_never_says_how_long_the_whole_is(server, tmp_path):
    """Ranges of nobody knows how much: the shard is read in one go, as it was before there were ranges."""
    server.has_ranges = True

    def odd(handler, body):
        (unsized if handler.span else whole)(handler, body)

    target = tmp_path / "target"
    target.touch()
    body = shards.shard("a")
    download.download_to(server.add("/a.tar", body, odd), str(target), check=lambda: None)
    assert target.read_bytes() == body


@pytest.mark.parametrize("what", ["space", "md5"])
def test_a_download_that_waits_for_long_keeps_its_lock(server, tmp_path, monkeypatch, set_limits, what):
    """While it waits for space, or reads for a checksum, others see that it runs, and download nothing themselves."""
    data = shards.shard("a")
    url, cache = server.add("/a.tar", data), tmp_path / "cache"
    set_limits(locks, touch_seconds=0.0)
    touched, real = [], locks.HeldLock.touch

    def touch(held):
        real(held)
        touched.append(os.stat(held._path).st_mtime_ns)

    monkeypatch.setattr(locks.HeldLock, "touch", touch)
    if what == "md5":
        real_digest = shard_download.file_digest

        def file_digest(file, key, **options):
            touched.clear()
            digest = real_digest(file, key, **options)
            assert touched
            return digest

        monkeypatch.setattr(shard_download, "file_digest", file_digest)
        AutoProvider(cache_dir=str(cache)).open(described(url, data)).close()
        [path] = [each for each in cache.iterdir() if each.suffix == ".tar"]
        os.utime(path)  # it may be another one now: the md5 decides
        AutoProvider(cache_dir=str(cache)).open(described(url, data)).close()
        assert len(server.requests) == 1
        return
    other = shards.shard("b")
    provider = AutoProvider(cache_dir=str(cache), cache_size=len(data) * 3 // 2)
    reader = provider.open(described(server.add("/b.tar", other), other))
    rounds = []

    def wait(seconds):
        rounds.append(len(touched))
        if len(rounds) == 3:
            reader.close()

    monkeypatch.setattr(space.time, "sleep", wait)
    provider.open(described(url, data)).close()
    assert rounds[0] < rounds[1] < rounds[2]


def test_a_local_shard_that_is_written_to_while_it_is_copied(tmp_path):
    """As by ``rsync --inplace``: the copy is made anew, and is one version or the other."""
    before, after = (shards.pack([("a.bin", each * (9 << 20))]) for each in (b"1", b"2"))
    path = shards.write(str(tmp_path / "data" / "a.tar"), before)
    os.utime(path, (1e9, 1e9))
    real, reads = system.pread, []

    def pread(fd, size, offset):
        data = real(fd, size, offset)
        if size >= 1 << 20 and not reads:
            reads.append(offset)
            with open(path, "r+b") as file:
                file.write(after)
        return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(system, "pread", pread)
        reader = AutoProvider(cache_dir=str(tmp_path / "cache"), cache_local=True).open(Shard(url=path, nsamples=1))
    assert reads == [0]
    assert set(reader.read(0)[".bin"].read()) == {ord("2")}
    reader.close()

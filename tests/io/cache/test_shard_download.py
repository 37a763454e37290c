"""One download into the cache: how it ends, whatever the server sends, the directory holds or another process does."""

import contextlib
import math
import os
import threading

import pytest

from tests.support import cache_shards as shards
from tests.support.cache_dirs import names_in, put_shard
from tests.support.cache_shards import described
from tests.support.children import PATIENCE_SECONDS, child, receive, stop_here
from tests.support.range_faults import unsized
from tests.support.servers import whole, whole_unannounced
from wids.cache import limits, shard_download, space
from wids.cache.space import Space
from wids.errors import CacheFull, SizeMismatchError, WidsError
from wids.files import atomic, locks, system
from wids.index.spec import Shard
from wids.policy import prefetching
from wids.readers.provider import AutoProvider
from wids.tables import member_tables
from wids.transport import download, retrying
from wids.transport.download import Transfer

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
        target=lambda: opener.cache.download_ahead(shard, after=-math.inf, is_cancelled=lambda: False)
    )
    thread.start()
    try:
        assert entered.wait(PATIENCE_SECONDS)
        with child(stop_here) as (_, connection):
            receive(connection)
            go.set()
            thread.join(PATIENCE_SECONDS)
            assert is_free(opener.cache.place(url)[0])
    finally:
        go.set()
        thread.join(PATIENCE_SECONDS)


def test_nothing_goes_for_what_can_never_fit(tmp_path, set_limits):
    """A server that announces more than the disk has does not cost all that is in the cache."""
    set_limits(limits, wait_seconds=0.0)
    set_limits(prefetching, grace_seconds=0.0)
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

"""A cache directory that several users share, and what cleaners of old files take out of one."""

import os
import stat

import pytest

from tests.support import cache_shards as shards
from tests.support.cache_dirs import names_in, put_file, table_of
from tests.support.cache_shards import described, texts, texts_of
from tests.support.children import call_in_child
from wids.cache.cleanup import keep_most_recent_files
from wids.cache.directory import CacheDirectory
from wids.cache.space import Space
from wids.errors import CacheFull, WidsError
from wids.readers.provider import AutoProvider
from wids.transport import download

ALICE, BOB = 60_001, 60_002
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")


@pytest.fixture
def world(tmp_path_factory, tmp_path):
    """A directory that every user can reach, with a shard for each of some letters, and a place for a cache."""
    for folder in (tmp_path, *tmp_path.parents):
        if stat.S_IMODE(os.stat(folder).st_mode) & 0o055 != 0o055:
            os.chmod(folder, stat.S_IMODE(os.stat(folder).st_mode) | 0o055)
    os.mkdir(tmp_path / "shards")
    return tmp_path


def write(world, tag):
    """The URL of a shard."""
    return shards.write(world / "shards" / f"{tag}.tar", shards.shard(tag))


def as_user(user, function, *args):
    """What ``function(*args)`` returns in a process of a user whose umask is 022; WidsErrors come back as texts."""

    def run():
        os.setgid(user)
        os.setuid(user)
        os.umask(0o022)
        try:
            return function(*args)
        except WidsError as error:
            return f"{type(error).__name__}: {error}"

    return call_in_child(run)


def read_all(cache, urls, limit=None):
    """The texts of shards that are read one after the other through a cache."""
    store = AutoProvider(cache_dir=str(cache), cache_local=True, cache_size=limit)
    found = []
    for url in urls:
        reader = store.open(described(url, b"", md5sum=None, filesize=None))
        found.append(texts(reader))
        reader.close()
    return found


@needs_root
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o2777])
def test_two_users_share_a_directory(world, mode):
    """Whoever comes first, both find what the other fetched, and fetch what is missing."""
    cache = world / "cache"
    cache.mkdir()
    cache.chmod(mode)
    one, two, three = (write(world, tag) for tag in "abc")
    assert as_user(ALICE, read_all, cache, [one]) == [texts_of("a")]
    assert as_user(BOB, read_all, cache, [one, two]) == [texts_of("a"), texts_of("b")]
    assert as_user(ALICE, read_all, cache, [one, two, three]) == [texts_of(tag) for tag in "abc"]
    assert len(names_in(cache)) == 3


@needs_root
def test_two_users_share_a_limit(world):
    """In a directory without a sticky bit each evicts what the other fetched."""
    cache = world / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    urls = [write(world, tag) for tag in "abcd"]
    limit = 3 * len(shards.shard("a"))
    for user in (ALICE, BOB, ALICE):
        assert as_user(user, read_all, cache, urls, limit) == [texts_of(tag) for tag in "abcd"]
        assert len(names_in(cache)) == 2


@needs_root
def test_a_sticky_directory_is_named_where_it_is_in_the_way(world, monkeypatch):
    """There only the owner of a file may delete it: the error says what to do."""
    from wids.cache import space

    monkeypatch.setattr(space, "WAIT_SECONDS", 0.2)
    cache = world / "cache"
    cache.mkdir()
    cache.chmod(0o1777)
    urls = [write(world, tag) for tag in "abc"]
    limit = 3 * len(shards.shard("a"))
    as_user(ALICE, read_all, cache, urls[:2], limit)
    told = as_user(BOB, read_all, cache, urls, limit)
    assert told.startswith(CacheFull.__name__), told
    assert "chmod -t" in told


@needs_root
def test_a_private_umask_does_not_lock_the_others_out(world):
    """A user with umask 077 shares what is fetched into a directory that is shared."""
    cache = world / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    url = write(world, "a")

    def closed():
        os.umask(0o077)
        return read_all(cache, [url])

    assert as_user(ALICE, closed) == [texts_of("a")]
    assert as_user(BOB, read_all, cache, [url, write(world, "b")]) == [texts_of("a"), texts_of("b")]


@needs_root
def test_what_a_killed_process_of_another_user_left_is_swept(world):
    """Whatever the umask of that user: its part files count against the limit for as long as they are there."""
    cache = world / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    url = write(world, "a")

    def be_killed():
        os.umask(0o077)
        pid = os.fork()
        if not pid:
            download.download_to = lambda *_args, **_options: os._exit(9)
            read_all(cache, [url])
        os.waitpid(pid, 0)
        return len(CacheDirectory(str(cache)).transients().parts)

    assert as_user(ALICE, be_killed) == 2
    as_user(BOB, lambda: Space(str(cache), limit=None).sweep())
    assert CacheDirectory(str(cache)).transients().parts == []


def age(path):
    """Make a file look as if it had not been used for a month."""
    os.utime(path, (1.0, 1.0))


@pytest.mark.parametrize("gone", ["lock files", "the log", "everything old but shards and tables"])
def test_the_limit_survives_a_cleaner_of_old_files(tmp_path, gone):
    """Such as systemd's for /tmp: shards that are used stay counted, whatever else is deleted."""
    cache = tmp_path / "cache"
    home = CacheDirectory(str(cache))
    urls = [shards.write(tmp_path / f"{tag}.tar", shards.shard(tag)) for tag in "abcdef"]
    limit = int(3.5 * len(shards.shard("a")))
    store = AutoProvider(cache_dir=str(cache), cache_local=True, cache_size=limit)
    for url in urls * 2:
        store.open(described(url, b"", md5sum=None, filesize=None)).close()
        for name in os.listdir(home.own):
            path = os.path.join(home.own, name)
            is_lock = path == home.space_lock or name.endswith(".lock")
            is_log = path == home.changes
            if os.path.isfile(path) and (is_lock if gone == "lock files" else is_log if gone == "the log" else True):
                os.unlink(path)
        assert home.inventory().used_bytes <= limit
        assert home.inventory().strangers == 0


@pytest.mark.parametrize("make", ["clean", "evict"])
def test_a_shard_that_no_cache_fetched_is_never_deleted(tmp_path, make):
    """Not even with a member table and a lock file beside it, which other programs make, too."""
    cache = tmp_path / "cache"
    cache.mkdir()
    for suffix in ("", ".widx", ".lock", ".keep"):
        age(put_file(cache, f"x.tar{suffix}", b"mine"))
    if make == "clean":
        assert keep_most_recent_files(str(cache), maxsize=0, maxfiles=0) == []
        assert sorted(os.listdir(cache)) == ["x.tar", "x.tar.keep", "x.tar.lock", "x.tar.widx"]
    else:
        urls = [shards.write(tmp_path / f"{tag}.tar", shards.shard(tag)) for tag in "abc"]
        read_all(cache, urls, limit=len(shards.shard("a")))
    assert (cache / "x.tar").read_bytes() == b"mine"


def test_lock_files_of_many_downloads_do_not_pile_up(tmp_path):
    """After ten shards were fetched and evicted there are as many files as for one."""
    cache = tmp_path / "cache"
    urls = [shards.write(tmp_path / f"{number}.tar", shards.shard("a")) for number in range(10)]
    limit = int(1.5 * len(shards.shard("a")))
    counts = set()
    for url in urls:
        read_all(cache, [url], limit=limit)
        counts.add(sum(len(files) for _, _, files in os.walk(cache)))
    assert len(counts) <= 2
    assert max(counts) <= 5


def test_a_hit_dates_the_shard(tmp_path):
    """Its table is touched, by which the least recently used shard is found."""
    url = shards.write(tmp_path / "a.tar", shards.shard("a"))
    read_all(tmp_path / "cache", [url])
    [name] = names_in(tmp_path / "cache")
    table = table_of(tmp_path / "cache" / name)
    age(table)
    read_all(tmp_path / "cache", [url])
    assert os.stat(table).st_mtime > 1_000_000

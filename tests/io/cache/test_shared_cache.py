"""A cache directory that several users share, and what cleaners of old files take out of one."""

import logging
import os

import pytest

from tests.support import cache_shards as shards
from tests.support.cache_dirs import names_in, put_file, table_of
from tests.support.cache_shards import described, texts, texts_of
from tests.support.children import call_in_child
from tests.support.cli import run
from wids.core.cache.cleanup import keep_most_recent_files
from wids.core.cache.directory import CacheDirectory
from wids.core.cache.space import Space
from wids.core.files import locks
from wids.core.readers.provider import AutoProvider
from wids.core.transport import download
from wids.errors import CacheFull, WidsError
from wids.events import logger
from wids.tools.cli.cache.listing import take_listing

ALICE, BOB = 60_001, 60_002
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")


@pytest.fixture
def world(open_path):
    """A directory that every user can reach, with a folder for shards, and a place for a cache."""
    os.mkdir(open_path / "shards")
    return open_path


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


@pytest.fixture
def sticky(world):
    """A cache directory in which every user may make files, and delete none of another."""
    cache = world / "cache"
    cache.mkdir()
    cache.chmod(0o1777)
    return cache


def lock_and_leave(path):
    """Lock a file that stays, as that of a killed process does."""
    with locks.acquire(path, mode=0o666, is_kept=True):
        return True


@needs_root
def test_a_lock_that_a_killed_process_of_another_user_left(sticky):
    """Others cannot delete its file there, and lock it all the same."""
    path = str(sticky / "a.lock")
    assert [as_user(user, lock_and_leave, path) for user in (ALICE, BOB, ALICE)] == [True] * 3


def read_and_tell(cache, urls, limit):
    """As `read_all`: (what it returned or raised, the seconds that were slept for space, the log)."""
    from wids.core.cache import space

    slept, told = [], []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(f"{record.levelname}: {record.getMessage()}")
    logger.addHandler(handler)
    space.time.sleep = slept.append
    try:
        found = read_all(cache, urls, limit)
    except CacheFull as error:
        found = str(error)
    return found, slept, told


@needs_root
def test_a_sticky_directory_is_named_where_it_is_in_the_way(world, sticky):
    """There only the owner of a file may delete it: the error comes at once, and says what to do."""
    urls = [write(world, tag) for tag in "abc"]
    limit = 3 * len(shards.shard("a"))
    as_user(ALICE, read_all, sticky, urls[:2], limit)
    before = CacheDirectory(str(sticky)).inventory()
    told, slept, log = as_user(BOB, read_and_tell, sticky, urls, limit)
    size = sum(entry.size_bytes for entry in before.entries)
    assert f"read, downloaded or kept, or other users' ({size} bytes)" in told
    assert "chmod -t" in told
    assert slept == []
    assert not [line for line in log if line.startswith("WARNING")]
    assert CacheDirectory(str(sticky)).inventory().used_bytes == before.used_bytes


@needs_root
def test_each_user_of_a_sticky_directory_has_what_the_others_leave(world, sticky):
    """Hits on the other's shards; of one's own, as many as the limit leaves, which never is exceeded."""
    urls = {tag: write(world, tag) for tag in "abcdef"}
    limit = int(4.5 * len(shards.shard("a")))
    assert as_user(ALICE, read_all, sticky, [urls["a"], urls["b"]], limit) == [texts_of("a"), texts_of("b")]
    for _ in range(2):
        wanted = [urls[tag] for tag in "abcdefab"]
        assert as_user(BOB, read_all, sticky, wanted, limit) == [texts_of(tag) for tag in "abcdefab"]
        assert CacheDirectory(str(sticky)).inventory().used_bytes <= limit
    assert as_user(ALICE, read_all, sticky, [urls["a"]], limit) == [texts_of("a")]
    owners = sorted(os.stat(sticky / name).st_uid for name in names_in(sticky))
    assert owners.count(ALICE) == 2
    assert BOB in owners


def evict_all(cache):
    """Evict all shards; their tables are remembered."""
    space = Space(str(cache), limit=None)
    with space.lock():
        assert all(space.delete(entry, max_remembered=1 << 20) for entry in space.directory.inventory().entries)


@needs_root
def test_remembered_tables_of_others_stay_in_a_sticky_directory(world, sticky):
    """They count, so that the limit holds, and nothing is said of each of them; nor are there more for them."""
    urls = [write(world, tag) for tag in "abcdefgh"]
    as_user(ALICE, read_all, sticky, urls)
    as_user(ALICE, evict_all, sticky)
    before = CacheDirectory(str(sticky)).inventory()
    assert len(before.remembered) == len(urls)
    limit = int(2.5 * len(shards.shard("a")))
    found, _, log = as_user(BOB, read_and_tell, sticky, urls, limit)
    assert found == [texts_of(tag) for tag in "abcdefgh"]
    assert [line for line in log if line.startswith("WARNING")] == []
    after = CacheDirectory(str(sticky)).inventory()
    assert after.used_bytes <= limit
    assert {entry.name for entry in after.remembered} <= {entry.name for entry in before.remembered}


@needs_root
def test_what_another_user_reads_stays(world, sticky):
    """A lease of one user's process is seen by another user's, and by a cleaner of root, who may delete all."""
    urls = [write(world, tag) for tag in "ab"]

    def hold():
        store = AutoProvider(cache_dir=str(sticky), cache_local=True)
        reader = store.open(described(urls[0], b"", md5sum=None, filesize=None))
        assert [shard.is_open for shard in call_in_child(take_listing, str(sticky)).shards] == [True]
        reader.close()
        return [shard.is_open for shard in call_in_child(take_listing, str(sticky)).shards]

    as_user(ALICE, read_all, sticky, urls[:1])
    assert as_user(BOB, hold) == [False]
    assert as_user(BOB, take_listing, str(sticky)).unknown == ""


@needs_root
def test_cleaning_a_sticky_directory(world, sticky):
    """Own shards go, those of others stay and are counted in a warning; root deletes both."""
    urls = [write(world, tag) for tag in "abcd"]
    as_user(ALICE, read_all, sticky, urls[:2])
    as_user(BOB, read_all, sticky, urls[2:])

    def clean():
        told = []
        handler = logging.Handler()
        handler.emit = lambda record: told.append(record.getMessage())
        logger.addHandler(handler)
        return len(keep_most_recent_files(str(sticky), maxfiles=1)), told

    gone, told = as_user(BOB, clean)
    assert gone == 2
    assert sum("2 of other users, which the directory's sticky bit" in line for line in told) == 1
    assert not any("cannot be deleted" in line for line in told)
    assert [os.stat(sticky / name).st_uid for name in names_in(sticky)] == [ALICE] * 2
    assert as_user(BOB, lambda: clean()[0]) == 0
    code, _, err = run("cache", "clean", sticky, "--all")
    assert (code, err, names_in(sticky)) == (0, "", [])


@needs_root
def test_a_shard_of_another_user_that_has_changed(world, sticky):
    """It cannot be replaced: the error names its owner and what helps, and the next shard is none the worse."""
    url, other = write(world, "a"), write(world, "b")
    as_user(ALICE, read_all, sticky, [url])
    shards.write(url, shards.shard("c"))
    told = as_user(BOB, read_all, sticky, [url])
    assert told.startswith("CacheError: ")
    assert f"user {ALICE} put " in told
    assert "chmod -t" in told
    assert as_user(BOB, read_all, sticky, [other]) == [texts_of("b")]
    assert as_user(ALICE, read_all, sticky, [url]) == [texts_of("c")]
    assert CacheDirectory(str(sticky)).transients().parts == []


@needs_root
def test_what_another_user_left_in_a_sticky_directory_is_told_of_once(world, sticky):
    """Part files of a killed process count, and cannot be swept: no error, and no line for each shard."""
    urls = [write(world, tag) for tag in "abcd"]

    def be_killed():
        pid = os.fork()
        if not pid:
            download.download_to = lambda *_args, **_options: os._exit(9)
            read_all(sticky, urls[:1])
        os.waitpid(pid, 0)

    as_user(ALICE, be_killed)
    assert len(CacheDirectory(str(sticky)).transients().parts) == 2
    limit = 4 * len(shards.shard("a"))
    found, _, told = as_user(BOB, read_and_tell, sticky, urls, limit)
    assert found == [texts_of(tag) for tag in "abcd"]
    lines = [line for line in told if "cannot be deleted" in line and line.startswith("WARNING")]
    assert len(lines) == len(set(lines)) == 3  # two part files and the lock of the download
    assert CacheDirectory(str(sticky)).inventory().used_bytes <= limit


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
        for name in os.listdir(home.folder):
            path = os.path.join(home.folder, name)
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

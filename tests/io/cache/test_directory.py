"""What is in a cache directory, against a model of one; and names made to be taken for something else."""

import contextlib
import errno
import os
import stat
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wids
from tests.support import cache_shards
from tests.support.cache_dirs import put_file, put_garbage, put_shard
from tests.support.servers import shard_requests
from wids import errors
from wids.core.cache import directory as directories
from wids.core.cache.directory import CacheDirectory
from wids.core.cache.eviction import Entry
from wids.core.files import atomic

HEX = "0123456789abcdef"
STEMS = [
    "a.tar",
    "b",
    "a.tar\n",
    "two\nlines.tar",
    os.fsdecode(b"latin-\xe9.tar"),
    "ä.tar",
    "x" * 200,
    ".",
    "",
    "..tar",
    "$(rm -rf ~).tar",
    "a.lock",
    "a.keep",
    "a.widx",
    "space",
    "changes",
    "a.1-0123abcd.part",
    "1-0123abcd.plan",
]
SUFFIXES = [
    "",
    ".lock",
    ".widx",
    ".keep",
    ".1-0123abcd.part",
    "-1-0123abcd.part",
    ".1-0123ABCD.part",
    ".1-0123abcd.part\n",
    ".\u0661-0123abcd.part",
    ".1-0123abc.part",
    "7-0123abcd.plan",
    ".plan",
]
KINDS = ["file", "file", "file", "file", "sparse", "symlink", "dangling", "fifo", "directory", "second name"]
HOME, OWN, TABLES = "", ".wids", ".wids/tables"


@st.composite
def trees(draw):
    """Paths of things -> (kind, size). Shards that are whole are frequent, and so are those that lack something."""
    tree = {}
    for stem in draw(st.lists(st.sampled_from(STEMS), max_size=6, unique=True)):
        for folder, suffix in draw(st.sets(st.sampled_from([(HOME, ""), (TABLES, ".widx"), (TABLES, ".keep")]))):
            tree[folder, stem + suffix] = "file", draw(st.integers(0, 3))
    for folder, stem, first, second, kind, size in draw(
        st.lists(
            st.tuples(
                st.sampled_from([HOME, OWN, TABLES]),
                st.sampled_from(STEMS),
                st.sampled_from(SUFFIXES),
                st.sampled_from(SUFFIXES),
                st.sampled_from(KINDS),
                st.integers(0, 9000),
            ),
            max_size=8,
        )
    ):
        tree[folder, stem + first + second] = kind, size
    return {
        (folder, name): found
        for (folder, name), found in tree.items()
        if name not in ("", ".", "..") and len(os.fsencode(name)) <= 255
    }


def plant(directory, tree):
    """Make it so."""
    CacheDirectory(directory).make()
    for number, ((folder, name), (kind, size)) in enumerate(tree.items()):
        path = os.path.join(directory, folder, name)
        if kind == "file":
            put_file(os.path.dirname(path), name, bytes(size))
        elif kind == "sparse":
            os.truncate(put_file(os.path.dirname(path), name), size)
        elif kind == "symlink":
            os.symlink(put_file(f"{directory}-beside", str(number), bytes(size)), path)
        elif kind == "dangling":
            os.symlink("nothing is there", path)
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "directory":
            os.mkdir(path)
        else:
            os.link(put_file(f"{directory}-beside", str(number), bytes(size)), path)
        if kind in ("file", "sparse", "second name"):
            os.utime(path, ns=(0, number * 1_000_000_000 + 1))


def is_mark(text):
    """Whether it is ``<pid>-<random>``."""
    pid, dash, random = text.partition("-")
    is_pid = pid != "" and all(letter in "0123456789" for letter in pid)
    return is_pid and dash == "-" and len(random) == 8 and all(letter in HEX for letter in random)


def is_part(name):
    """Whether a name is ``NAME.<pid>-<random>.part``."""
    stem, _, mark = name.removesuffix(".part").rpartition(".")
    return name.endswith(".part") and stem != "" and is_mark(mark)


def is_plan(name):
    """Whether a name is ``<pid>-<random>.plan``."""
    return name.endswith(".plan") and is_mark(name.removesuffix(".plan"))


def expected_of(directory, tree):
    """The inventory by definition: sets of names."""
    status = {key: os.lstat(os.path.join(directory, *key)) for key in tree}
    there = {key for key, (kind, _) in tree.items() if kind in ("file", "sparse", "second name")}
    every = {folder: {name for place, name in there if place == folder} for folder in (HOME, OWN, TABLES)}
    parts = {name for name in every[OWN] if is_part(name)}
    plans = {name for name in every[OWN] if is_plan(name)}
    orphans = {
        name for name in every[TABLES] if name.endswith((".widx", ".keep")) and name[: -len(".widx")] not in every[HOME]
    }
    shards = {name for name in every[HOME] if f"{name}.widx" in every[TABLES]}
    entries = [
        Entry(
            name=name,
            size_bytes=status[HOME, name].st_size + status[TABLES, f"{name}.widx"].st_size,
            used_ns=status[TABLES, f"{name}.widx"].st_mtime_ns,
            is_kept=f"{name}.keep" in every[TABLES],
        )
        for name in sorted(shards)
    ]
    return {
        "entries": entries,
        "parts": sorted(parts),
        "orphans": sorted(orphans),
        "plans": sorted(plans),
        "locks": sorted(name for name in every[OWN] - parts - plans if name.endswith(".lock")),
        "used_bytes": sum(entry.size_bytes for entry in entries)
        + sum(status[OWN, name].st_size for name in parts)
        + sum(status[TABLES, name].st_size for name in orphans),
        "promised_bytes": sum(max(status[OWN, name].st_size - status[OWN, name].st_blocks * 512, 0) for name in parts),
        "stranger_bytes": sum(status[HOME, name].st_size for name in every[HOME] - shards),
    }


def taken(directory):
    """What an inventory gives, each list in order of names."""
    found = CacheDirectory(str(directory)).inventory()
    return {
        "entries": sorted(found.entries, key=lambda entry: entry.name),
        "parts": sorted(found.transients.parts),
        "orphans": sorted(found.orphans),
        "plans": sorted(found.transients.plans),
        "locks": sorted(found.transients.locks),
        "used_bytes": found.used_bytes,
        "promised_bytes": found.transients.promised_bytes,
        "stranger_bytes": found.stranger_bytes,
    }


@given(trees())
def test_an_inventory_is_what_the_definitions_say(tree):
    """Oracle: the definitions of shard, part, plan, lock and table, over hostile names and things that are no file."""
    with tempfile.TemporaryDirectory() as home:
        directory = os.path.join(home, "cache")
        os.mkdir(directory)
        os.mkdir(f"{directory}-beside")
        plant(directory, tree)
        assert taken(directory) == expected_of(directory, tree)


def test_a_shard_with_its_table_and_mark(tmp_path):
    """Its size is that of the shard and its table; it was used when the table was touched last."""
    put_shard(tmp_path, "a.tar", 10, table_size=3, used=5, is_kept=True)
    os.utime(CacheDirectory(str(tmp_path)).table("a.tar"), ns=(0, 7_000_000_001))
    put_shard(tmp_path, "b.tar", 20, used=9)
    found = CacheDirectory(str(tmp_path)).inventory()
    assert sorted(found.entries, key=lambda entry: entry.name) == [
        Entry(name="a.tar", size_bytes=13, used_ns=7_000_000_001, is_kept=True),
        Entry(name="b.tar", size_bytes=20, used_ns=9_000_000_000, is_kept=False),
    ]
    assert (found.used_bytes, found.stranger_bytes) == (33, 0)


def test_a_shard_with_the_user_s_own_table_and_lock_beside_it_is_the_user_s(tmp_path):
    """``x.tar.widx`` and ``x.tar.lock`` beside ``x.tar`` are what other programs make; only a download marks it."""
    for suffix in ("", ".widx", ".lock", ".keep"):
        put_file(tmp_path, f"x.tar{suffix}", b"mine")
    found = CacheDirectory(str(tmp_path)).inventory()
    assert (found.entries, found.orphans, found.used_bytes, found.stranger_bytes) == ([], [], 0, 16)


def test_a_shard_without_its_table_is_the_user_s(tmp_path):
    """Nothing else tells that a file was downloaded."""
    put_shard(tmp_path, "a.tar", 10, table_size=3)
    os.unlink(CacheDirectory(str(tmp_path)).table("a.tar"))
    found = CacheDirectory(str(tmp_path)).inventory()
    assert (found.entries, found.orphans, found.used_bytes, found.stranger_bytes) == ([], [], 0, 10)


@pytest.mark.parametrize("beside", ["symlink", "directory", "fifo"])
@pytest.mark.parametrize("what", ["shard", "table"])
def test_what_is_no_file_makes_no_shard(tmp_path, what, beside):
    """A link, a directory or a FIFO in the place of the shard or its table."""
    put_shard(tmp_path, "a.tar", 10)
    path = getattr(CacheDirectory(str(tmp_path)), what)("a.tar")
    os.rename(path, tmp_path / "elsewhere")
    if beside == "symlink":
        os.symlink(tmp_path / "elsewhere", path)
    elif beside == "directory":
        os.mkdir(path)
    else:
        os.mkfifo(path)
    assert CacheDirectory(str(tmp_path)).inventory().entries == []


@pytest.mark.parametrize(
    "name", ["a.lock", "a.keep", "a.widx", "space", "changes", "a.1-0123abcd.part", "1-0123abcd.plan"]
)
def test_a_shard_may_have_any_name(tmp_path, name):
    """A shard whose URL ends as the cache's own files do is a shard all the same, and its lock is a file of its own."""
    home = CacheDirectory(str(tmp_path))
    put_shard(tmp_path, name, 10, table_size=2)
    found = home.inventory()
    assert [(entry.name, entry.size_bytes) for entry in found.entries] == [(name, 12)]
    assert (found.transients.parts, found.transients.plans, found.orphans, found.used_bytes) == ([], [], [], 12)
    own = {home.space_lock, home.release_request, home.changes, home.tables}
    assert not own & {home.lock(name), home.table(name), home.keep_mark(name)}


@pytest.mark.parametrize(
    "name",
    [
        "a.tar.1-0123abcd.part\n",
        "a.tar.\u0661-0123abcd.part",
        "a.tar.1-0123ABCD.part",
        ".1-0123abcd.part",
        "notes.plan",
        "1-0123abcd.plan\n",
        "1-0123abcd.plan.bak",
    ],
)
def test_a_name_that_the_cache_would_not_give_is_left_alone(tmp_path, name):
    """However near it comes: what is the cache's own may be deleted."""
    home = CacheDirectory(str(tmp_path))
    home.make()
    put_file(home.folder, name, b"mine")
    found = home.inventory()
    assert (found.transients.parts, found.transients.plans, found.used_bytes) == ([], [], 0)


def test_the_names_that_the_cache_gives_are_known(tmp_path):
    """Part files of any shard's name, of its table and of a plan are parts."""
    shards = ["a.tar", "a.tar\n", os.fsdecode(b"\xe9"), "a.1-0123abcd.part", "1-0123abcd.plan"]
    parts = [put_garbage(str(tmp_path / name)) for shard in shards for name in (shard, f"{shard}.widx")]
    assert sorted(CacheDirectory(str(tmp_path)).transients().parts) == sorted(map(os.path.basename, parts))


def test_what_a_part_file_is_promised(tmp_path):
    """Bytes that a download will have count as used at once, and as promised until they are written."""
    home = CacheDirectory(str(tmp_path))
    home.make()
    with atomic.part_file(home.staging("a.tar")) as (_, fd):
        os.truncate(fd, 1 << 20)
        found = home.transients()
        assert (found.used_bytes, found.promised_bytes) == (1 << 20, 1 << 20)
        os.pwrite(fd, b"x" * (1 << 20), 0)
        os.fsync(fd)
        found = home.transients()
        assert (found.used_bytes, found.promised_bytes) == (1 << 20, 0)


def test_directories_that_cannot_be_looked_at(tmp_path):
    """One that is not there is empty; what is no directory is an error."""
    empty = {"entries": [], "parts": [], "orphans": [], "plans": [], "locks": []}
    numbers = {"used_bytes": 0, "promised_bytes": 0, "stranger_bytes": 0}
    assert taken(tmp_path / "none") == {**empty, **numbers}
    assert taken(tmp_path) == {**empty, **numbers}
    put_file(tmp_path, "file")
    with pytest.raises(NotADirectoryError):
        CacheDirectory(str(tmp_path / "file")).inventory()


@pytest.mark.parametrize("what", ["shard", "table"])
def test_files_that_go_while_the_directory_is_read(tmp_path, monkeypatch, what):
    """What is deleted between the listing and the look at it is not there; the rest is."""
    put_shard(tmp_path, "a.tar", 10)
    put_shard(tmp_path, "b.tar", 20)
    victim = getattr(CacheDirectory(str(tmp_path)), what)("a.tar")
    real = os.scandir

    @contextlib.contextmanager
    def late(directory):
        with real(directory) as found:
            items = list(found)
            if directory == os.path.dirname(victim):
                os.unlink(victim)
            yield items

    monkeypatch.setattr(directories.os, "scandir", late)
    assert [entry.name for entry in CacheDirectory(str(tmp_path)).inventory().entries] == ["b.tar"]


def test_a_directory_that_another_user_is_making(tmp_path, monkeypatch):
    """For a moment ``.wids`` has the permissions of that user's umask."""
    directory, real = CacheDirectory(str(tmp_path)), os.mkdir
    denied = [directory.tables] * 2

    def refusing(path, *args, **options):
        if path in denied:
            denied.remove(path)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        real(path, *args, **options)

    monkeypatch.setattr(os, "mkdir", refusing)
    directory.make()
    assert os.path.isdir(directory.tables)


@pytest.mark.parametrize(
    ("mode", "shard", "own"),
    [(0o755, 0o600, 0o600), (0o777, 0o644, 0o666), (0o1777, 0o644, 0o666), (0o775, 0o644, 0o664)],
)
def test_who_may_use_the_files_of_a_shared_directory(tmp_path, mode, shard, own):
    """Whoever may write to the directory: shards can be read, the cache's own files written, whatever the umask is."""
    home = tmp_path / "cache"
    home.mkdir()
    home.chmod(mode)
    before = os.umask(0o077)
    try:
        directory = CacheDirectory(str(home))
        directory.make()
        made = [os.open(home / name, os.O_CREAT | os.O_RDWR, 0o666) for name in "ab"]
        directory.share_for_reading(made[0])
        directory.share(made[1])
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(os.fstat(fd).st_mode) for fd in made]
    for fd in made:
        os.close(fd)
    assert modes == [shard, own]
    assert [stat.S_IMODE(os.stat(folder).st_mode) for folder in (directory.folder, directory.tables)] == [mode, mode]


def test_a_shard_that_cannot_be_marked_is_told_of_once(tmp_path, monkeypatch, caplog):
    """What was to be kept may be evicted then: a warning for the directory, not for each shard."""
    home = CacheDirectory(str(tmp_path))
    home.make()
    real = os.open

    def refusing(path, flags, *args, **options):
        if path.endswith(".keep"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", refusing)
    for name in ("a.tar", "b.tar", "a.tar"):
        home.keep(name)
        assert not home.is_kept(name)
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert f"{tmp_path}: shards cannot be marked as kept" in record.message


@pytest.mark.parametrize(
    "place", ["/proc/self", "/sys", "/dev/null", "{}/link", "{}/file", "{}/loop", "{}/" + "n" * 300]
)
def test_a_cache_directory_that_cannot_be_used_is_told(server, tmp_path, place):
    """Whatever stands there: an error that names it, no wait without end."""
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").touch()
    url = server.add("/s.tar", cache_shards.shard("a"))
    with pytest.raises(errors.CacheError):
        wids.ShardListDataset([(url, 3)], cache_dir=place.format(tmp_path))[0]


@pytest.mark.parametrize("name", ["sp ace", "new\nline", "q?#%41", "\udcff", "~x", "-rf", "{a..b}", "x::y", "[a]*"])
def test_a_cache_directory_may_have_any_name(server, tmp_path, name):
    """Nothing in a path is a pattern, a URL or an option."""
    url = server.add("/s.tar", cache_shards.shard("a"))
    for _ in range(2):
        dataset = wids.ShardListDataset([(url, 3)], cache_dir=str(tmp_path / name), transformations=[])
        assert dataset[1][".txt"].read() == b"a1"
    assert os.listdir(tmp_path) == [name]
    assert len(shard_requests(server)) == 1

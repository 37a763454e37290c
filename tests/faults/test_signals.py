"""A signal just after a call, whichever it is: its exception leaves nothing behind, nothing open and nothing locked.

A handler raises when a call has returned, and before what it has opened or made has an owner. All that makes part
files, temporary directories and locks is interrupted so, here in the thread in which signals are handled. What may stay
is whole, or says where the next run goes on, which then ends as if there had been no signal.
"""

import contextlib
import gc
import os
import re
import shutil
import tempfile
import time

import fsspec
import pytest

import wids
from tests.support import cache_shards as shards
from tests.support.cache_shards import described, files_open_in, texts
from tests.support.examples import some
from tests.support.interleave import interrupted
from tests.support.shards import write_index
from wids.columns.create import create_columns
from wids.core.cache import usage_hints
from wids.core.cache.cleanup import keep_most_recent_files
from wids.core.cache.directory import CacheDirectory
from wids.core.cache.space import Space
from wids.core.files import atomic, locks, system, tempdirs
from wids.core.files.own_folder import OwnFolder
from wids.core.files.replaced import ReplacedFile
from wids.core.files.shared_files import SharedFiles
from wids.core.readers.provider import AutoProvider
from wids.jobs import engines, index_edit, runner
from wids.jobs.index_create import IndexSettings, create_index
from wids.jobs.index_tables import create_tables
from wids.jobs.index_verify import verify
from wids.jobs.runner import RunOptions
from wids.legacy import wids_dl
from wids.writing.pack.folders import list_files
from wids.writing.pack.run import pack_listing
from wids.writing.pack.shard import PackSettings

# Of more calls than these, only some are interrupted outside of the tier `thorough`.
MOST_CALLS = 25
LIMIT = 14_000  # of a cache: two shards, and tables of others


def path_of(*names):
    """A function: the path of a file in a directory."""
    return lambda home: os.path.join(home, *names)


FILE, OTHER, INDEX, NEW = path_of("f"), path_of("g"), path_of("index.json"), path_of("new.json")


# --- what is there before


def nothing(home):
    """An empty directory."""


def a_file(home):
    """A file of some bytes."""
    shards.write(FILE(home), b"before")


def what_was_killed(home):
    """A temporary directory, a part file and a lock that nobody has."""
    CacheDirectory(home).make()
    os.makedirs(os.path.join(home, "wids-pack.12-0123abcd", "more"))
    for name in (
        "wids-pack.12-0123abcd.part",
        "f.12-0123abcd.part",
        ".wids/a.tar.12-0123abcd.part",
        ".wids/a.tar.lock",
    ):
        shards.write(os.path.join(home, name), b"half")


def three_shards(home):
    """Shards that caches copy."""
    for tag in "abc":
        shards.write(os.path.join(home, "source", f"{tag}.tar"), shards.shard(tag, 3))


def two_cached(home):
    """A cache that has two of three shards."""
    three_shards(home)
    for tag in "bc":
        read(home, tag)


def one_damaged(home):
    """A cache whose shard is another one by now."""
    three_shards(home)
    read(home, "a")
    [name] = [name for name in os.listdir(cache(home)) if name.endswith(".tar")]
    shards.write(os.path.join(cache(home), name), bytes(512))


def an_index(home):
    """Two shards, and their index."""
    write_index(home, (3, 3))


def tables_too(home):
    """Another index of these, and their tables."""
    an_index(home)
    index(home)


def columns_too(home):
    """And columns."""
    tables_too(home)
    create_columns(NEW(home))


def a_store(home):
    """Two shards at a store that is not this machine's disk."""
    an_index(home)
    fsspec.filesystem("memory").put(os.path.join(home, "*"), "/signals/", recursive=True)


def a_folder(home):
    """Files to pack."""
    for k in range(4):
        shards.write(os.path.join(home, "in", f"{k}.txt"), b"%d" % k)
    os.mkdir(os.path.join(home, "out"))


# --- what is done


def publish(home):
    """Write a part file, and give it its name."""
    with atomic.part_file(FILE(home)) as (part, fd):
        system.write_all(fd, b"x", 0)
        os.replace(part, FILE(home))


def fail(home):
    """Begin a part file that is of no use."""
    with contextlib.suppress(ValueError), atomic.part_file(FILE(home)):
        raise ValueError


def use_directory(home):
    """Have a temporary directory, with files in it."""
    with tempdirs.directory("verify") as place:
        shards.write(os.path.join(place, "more", "x"), b"x")
        shards.write(os.path.join(place, "x"), b"x")


def lock(home, **options):
    """Hold a lock."""
    with locks.acquire(FILE(home), **options):
        pass


def try_lock(home):
    """Hold a lock that is free."""
    with locks.try_acquire(FILE(home)):
        pass


def share(home):
    """Have a file that all processes map."""
    write = lambda _, fd: system.write_all(fd, b"abc", 0)  # noqa: E731
    assert SharedFiles(home, ".columns").get("0" * 64, write, lambda file: bytes(file.data)) == b"abc"


def replace(home):
    """Replace a file that was read."""
    with ReplacedFile(FILE(home)).alone():
        atomic.write_atomically(FILE(home), b"after")


def cache(home):
    """The directory of a cache."""
    return os.path.join(home, "cache")


def store(home, **options):
    """A cache."""
    return AutoProvider(cache_dir=cache(home), cache_local=True, **options)


def shard_of(home, tag):
    """A shard, as an index lists it."""
    return described(os.path.join(home, "source", f"{tag}.tar"), shards.shard(tag, 3))


def read(home, tag="a", **options):
    """Read a shard through a cache."""
    with contextlib.closing(store(home, **options).open(shard_of(home, tag))) as reader:
        assert texts(reader) == shards.texts_of(tag, 3)


def download_ahead(home):
    """Download a shard that is needed later, in the place of another one."""
    caching, later = store(home, cache_size=LIMIT).cache, time.time() + 60
    caching.download_ahead(caching.locate(shard_of(home, "a")), after=later, is_cancelled=lambda: False)


def plan(home):
    """Say twice when shards are used, and take it back."""
    CacheDirectory(home).make()
    file = usage_hints.PlanFile(home)
    with contextlib.closing(file):
        file.write({"a.tar": 1.0})
        file.write({"a.tar": 2.0})


def write(pattern, *, is_discarded=False):
    """Write shards; or one, that is given up."""
    writer = wids.ShardWriter(pattern, samples=2, overwrite=True)
    with contextlib.closing(writer) if not is_discarded else contextlib.ExitStack() as stack:
        if is_discarded:
            stack.callback(writer.discard)
        for k in range(2 if is_discarded else 3):
            writer.write({"__key__": str(k), ".txt": b"x"})


def pack(home):
    """Pack a folder."""
    listing = list_files(os.path.join(home, "in"), numbers_keys=False, keep_fields=None, tell=lambda _: None)
    settings = PackSettings(output=os.path.join(home, "out", "p-%d.tar"), samples=2, overwrite=True)
    pack_listing(listing, settings, engine=RunOptions(jobs=1))


def index(home, place=None):
    """Write an index, and tables where shards are local."""
    place = home if place is None else place
    settings = IndexSettings(has_tables=place == home, has_md5=True)
    create_index([f"{place}/s0.tar", f"{place}/s1.tar"], NEW(home), settings=settings, engine="threads")


def save_view(home):
    """Save a view."""
    wids.ShardListDataset(INDEX(home), transformations=[]).select([0, 2, 4]).save(os.path.join(home, "v.json"))


def find(home):
    """Find samples by their columns."""
    with contextlib.closing(wids.ShardListDataset(NEW(home), transformations=[])) as dataset:
        assert len(dataset.where("key > 'a'")) == 6


# What of it may stay when it is interrupted: its results so far, and what says how far it was.
SHARDS = r".*\.tar(\.widx)?"
RECORDS = rf"{SHARDS}|.*\.(journal|state|packing)|.*\.parts(/.*\.arrow)?"
# Name -> what is there before, what is done, and what may stay.
ACTS = {
    "part file": (nothing, publish, ""),
    "part file of no use": (nothing, fail, ""),
    "file": (a_file, lambda home: atomic.write_atomically(FILE(home), b"x", is_synced=True), ""),
    "line": (a_file, lambda home: atomic.append_line(FILE(home), b"x\n"), ""),
    "map": (a_file, lambda home: atomic.map_file(FILE(home)), ""),
    "temporary directory": (nothing, use_directory, ""),
    "temporary directory of a killed process": (what_was_killed, tempdirs.sweep, ""),
    "part file of a killed process": (what_was_killed, lambda home: locks.remove_parts(FILE(home)), ""),
    "lock": (nothing, lock, ""),
    "lock that is kept": (nothing, lambda home: lock(home, is_kept=True), ""),
    "lock that is tried": (nothing, try_lock, ""),
    "question for a lock": (a_file, lambda home: locks.is_locked(FILE(home)), ""),
    "shared file": (nothing, share, ""),
    "replaced file": (a_file, replace, ""),
    "own file": (nothing, lambda home: os.close(OwnFolder(home).open_own(FILE(home))), ""),
    "download": (three_shards, read, ""),
    "cached shard": (two_cached, lambda home: read(home, "b"), ""),
    "eviction": (two_cached, lambda home: read(home, cache_size=LIMIT), ""),
    "download ahead": (two_cached, download_ahead, ""),
    "download again": (one_damaged, read, ""),
    "cleaning": (two_cached, lambda home: keep_most_recent_files(cache(home), maxsize=0), ""),
    "sweeping": (what_was_killed, lambda home: Space(home, limit=None).sweep(), ""),
    "bell": (two_cached, lambda home: Space(cache(home), limit=None).request_release(), ""),
    "plan": (nothing, plan, ""),
    "shards": (nothing, lambda home: write(f"{home}/a-%d.tar"), SHARDS),
    "shards again": (lambda home: write(f"{home}/a-%d.tar"), lambda home: write(f"{home}/a-%d.tar"), SHARDS),
    "discarded shard": (nothing, lambda home: write(f"{home}/a-%d.tar", is_discarded=True), ""),
    "shards at a store": (nothing, lambda home: write("memory://signals/a-%d.tar"), ""),
    "discarded shard of a store": (nothing, lambda home: write("memory://signals/a-%d.tar", is_discarded=True), ""),
    "packing": (a_folder, pack, RECORDS),
    "copy": (an_index, lambda home: wids_dl.download_file(f"{home}/s0.tar", f"{home}/there/s.tar"), ""),
    "index": (an_index, index, RECORDS),
    "index of a store": (a_store, lambda home: index(home, "memory://signals"), RECORDS),
    "updated index": (tables_too, lambda home: index_edit.update_index(NEW(home)), RECORDS),
    "merged index": (tables_too, lambda home: index_edit.merge_indexes([NEW(home), INDEX(home)], OTHER(home)), ""),
    "rebased index": (tables_too, lambda home: index_edit.rebase_index(NEW(home), "gs://b/"), ""),
    "compiled index": (tables_too, lambda home: index_edit.convert_index(NEW(home), f"{home}/c.widsx"), ""),
    "pack of tables": (tables_too, lambda home: create_tables(NEW(home), engine="threads"), rf"{RECORDS}|.*\.spool"),
    "verification": (tables_too, lambda home: verify(NEW(home), journal=FILE(home), engine="threads"), "f"),
    "verification of a store": (a_store, lambda home: verify("memory://signals/index.json", engine="threads"), ""),
    "view": (an_index, save_view, r".*\.rows"),
    "columns": (tables_too, lambda home: create_columns(NEW(home), engine="threads"), RECORDS),
    "rows": (columns_too, find, ""),
}


def names_in(home):
    """The paths of all in a directory, from there on."""
    found = [(folder, name) for folder, folders, files in os.walk(home) for name in folders + files]
    return {os.path.relpath(os.path.join(*each), home) for each in found}


class Place:
    """A directory that is made anew for each call, and the system's temporary directory beside it."""

    def __init__(self, home, name):
        """Prepare it."""
        self.home, self.template, self.temporary = (str(home / each) for each in ("home", "template", "temporary"))
        prepare, self.act, self.stays = ACTS[name]
        os.mkdir(self.home)
        prepare(self.home)
        os.rename(self.home, self.template)
        self.before = names_in(self.template)

    def begin(self):
        """All as it was at first."""
        for path in (self.home, self.temporary):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.template, self.home)
        os.mkdir(self.temporary)

    def run(self, call):
        """Do it, interrupted after a call; gives whether it was, and the calls."""
        with interrupted(call) as calls:
            try:
                self.act(self.home)
            except KeyboardInterrupt:
                return True, calls
        return False, calls

    def check(self, finished):
        """All that holds after an interrupt."""
        gc.collect()
        left = names_in(self.home) - self.before - finished
        assert [name for name in left if not re.fullmatch(self.stays, name)] == []
        assert os.listdir(self.temporary) == []
        for home in (self.home, self.temporary):
            assert files_open_in(home) == []
        files = (os.path.join(self.home, name) for name in names_in(self.home))
        assert [path for path in files if os.path.isfile(path) and locks.is_locked(path)] == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the finalizer closed a file object
@pytest.mark.parametrize("name", ACTS)
def test_an_interrupt_after_any_call_leaves_nothing(name, tmp_path, monkeypatch):
    """Neither part files and temporary directories, nor locks and descriptors; and then it can be done again."""
    engine = lambda work, _, on_report, __: runner.SerialRunner(work, on_report or runner.ignore_report)  # noqa: E731
    monkeypatch.setattr(engines, "_start", engine)
    place = Place(tmp_path, name)
    monkeypatch.setattr(tempfile, "tempdir", place.temporary)
    for _ in range(2):  # the first time, modules are imported
        place.begin()
        was_interrupted, calls = place.run(0)
        assert not was_interrupted
    count, finished = len(calls), names_in(place.home)
    for call in some(range(1, count + 1), every=1 + count // MOST_CALLS):
        place.begin()
        try:
            was_interrupted, calls = place.run(call)
            assert was_interrupted, "the interrupt was swallowed"
            place.check(finished)
            place.act(place.home)
            assert names_in(place.home) == finished
        except Exception as error:
            raise AssertionError(f"interrupted after call {call} of {count}, {calls[-1]}: {error!r}") from error

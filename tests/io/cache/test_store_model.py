"""Stores over one directory, step by step against a model: what is opened, fetched, evicted, killed, harmed and wiped.

What goes for a download, and whether there is room, is what `tests.model.cache` says. Beside it is a dictionary of what
is known of each shard's file: it foresees whether a shard is found or fetched, and which tables of evicted shards are
remembered. Each step is held against both.
``WIDS_MODEL_EXAMPLES`` sets the number of stories that are tried; without it they are few, and always the same.
"""

import contextlib
import functools
import math
import os
import pickle
import shutil
import tempfile
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.conftest import Events
from tests.model.cache import Cache, Shard
from tests.support import cache_shards as shards
from tests.support import tars
from tests.support.cache_dirs import files_in, put_file, put_garbage, staging_of
from tests.support.cache_shards import described, files_open_in
from tests.support.clocks import set_limits, skip_waits
from tests.support.examples import examples
from wids.core.cache import limits as cache_limits
from wids.core.cache import reservation, space
from wids.core.cache.directory import CacheDirectory
from wids.core.cache.space import Space, evict_from, table_allowance
from wids.core.cache.usage_hints import PlanFile
from wids.core.files import atomic, system
from wids.core.files.identity import Identity
from wids.core.readers.provider import AutoProvider
from wids.core.readers.remote import are_same
from wids.core.tables import member_tables
from wids.core.transport.session import Session
from wids.errors import CacheFull, FetchError, ShardError

KEYS, VERSIONS, ROWS = range(3), range(6), 2
# Later than any file is really written, so that the order of use is the model's, to the step.
FIRST_TICK = 2_000_000_000
FAR = 3_000_000_000.0


@functools.cache
def data_of(key, version):
    """The bytes of a shard; versions that are three apart are of one size."""
    size = 512 * (1 + (version + key) % 3)
    members = [(f"{row}.txt", text_of(key, version, row)) for row in range(ROWS)]
    return shards.pack([*members, ("z.bin", bytes([version]) * size)])


def text_of(key, version, row):
    """What member ``.txt`` of a sample holds."""
    return b"%d %d %d" % (key, version, row)


def texts_of(key, version):
    """What a reader of the shard gives."""
    return [text_of(key, version, row) for row in range(ROWS)]


def read(reader):
    """Member ``.txt`` of the samples that have one."""
    return [sample[".txt"].read() for sample in reader if ".txt" in sample]


NSAMPLES = ROWS + 1
ONE = max(len(data_of(key, version)) for key in KEYS for version in VERSIONS)
# One shard has all of the second limit, while it is downloaded.
LIMITS = [None, 0, ONE, ONE + table_allowance(ONE, NSAMPLES), 2 * ONE, 3 * ONE, 10 * ONE]
# Tables of such small shards are large: no limit, one, two, or all of them.
SHARE = 28
KNOWN = {
    "all": {},
    "md5": {"filesize": None},
    "size": {"md5sum": None},
    "nothing": {"md5sum": None, "filesize": None, "nsamples": None},
}


def append(path):
    """Bytes more."""
    with open(path, "ab") as file:
        file.write(bytes(512))


def overwrite(path):
    """Other bytes in the member that is no text, unless it was cut off before."""
    if os.path.getsize(path) > 4000:
        with open(path, "r+b") as file:
            file.seek(5 * 512)
            file.write(b"??")


HARMS = {
    "touch": lambda path: None,
    "truncate": lambda path: os.truncate(path, 700),
    "append": append,
    "overwrite": overwrite,
}
numbers, keys = st.integers(0, 3), st.sampled_from(KEYS)


@dataclass
class File:
    """A cached shard's file.

    Attributes:
        version: whose bytes it has; None: nobody's.
        serial: which file it is, of all that had this name.
        is_tied: its table is there, and was made of these bytes.
        has_md5: its table knows its md5.
        source: when the file that its table knows as its source was written.
        described: the version that its table was made of, as a download does it; None: of no use without the file.
    """

    version: int | None
    serial: int
    source: int
    is_tied: bool = True
    has_md5: bool = False
    described: int | None = None


@dataclass
class Table:
    """A table that is remembered: of which version, if it is of use; see `File` for the others."""

    described: int | None
    source: int
    has_md5: bool


@dataclass
class User:
    """A program with a store: its options, and the versions that its index describes."""

    store: AutoProvider
    limit: int | None
    is_keeping: bool
    knows: str
    index: dict = field(default_factory=dict)


class Directory(RuleBasedStateMachine):
    """One cache directory, and all who use it."""

    has_locks = True

    def __init__(self):
        super().__init__()
        self.home = tempfile.mkdtemp(prefix="wids-model-")
        self.cache = os.path.join(self.home, "cache")
        self.patch = pytest.MonkeyPatch()
        skip_waits(self.patch.setattr)
        set_limits(cache_limits, patch=self.patch.setattr, wait_seconds=-1.0)
        set_limits(reservation, patch=self.patch.setattr, grace_seconds=0.0)
        self.patch.setattr(os, "fsync", lambda fd: None)
        if not self.has_locks:
            self.patch.setattr(system, "try_lock", lambda fd, *, is_shared: None)
        self.tick = FIRST_TICK
        self.serial = 0
        self.patch.setattr(space, "_REMEMBERED_SHARE", SHARE)
        self.server, self.files, self.written = dict.fromkeys(KEYS, 0), {}, {}
        self.remembered = {}
        self.users, self.events = [], Events()
        self.held, self.downloads, self.garbage, self.strangers = [], [], set(), {}
        self.left_locks, self.is_always_listed = set(), False
        self.plan, self.uses = None, {}
        for key in KEYS:
            self.serve(key, 0)

    def teardown(self):
        """All let go."""
        for held in self.held:
            held.reader.close()
        for _, fd in self.downloads:
            os.close(fd)
        if self.plan is not None:
            self.plan.close()
        self.patch.undo()
        shutil.rmtree(self.home)

    # --- what the model knows

    def url(self, key):
        """Where a shard comes from."""
        return os.path.join(self.home, f"{key}.tar")

    @functools.cache  # noqa: B019 - goes with the machine, which lives for one story
    def path(self, key):
        """Where it goes."""
        return AutoProvider(cache_dir=self.cache, cache_local=True).cache.placement.local_path(self.url(key))

    def serve(self, key, version):
        """Put a version where the shard comes from."""
        shards.write(self.url(key), data_of(key, version))
        self.server[key], self.written[key] = version, self.next_tick()
        os.utime(self.url(key), (self.tick, self.tick))

    def next_tick(self):
        """A later time."""
        self.tick += 1
        return self.tick

    def note_use(self, key):
        """What was just used is the last used, however fast the test is."""
        os.utime(self.file(key, "table"), (self.next_tick(),) * 2)

    def note_outside(self):
        """Somebody has changed the directory: its time tells, however fast the test is, so that it is listed again.

        Where it always is, the change need not be one of the directory itself.
        """
        if not self.is_always_listed and os.path.isdir(self.cache):
            os.utime(self.cache, (self.next_tick(),) * 2)

    def file(self, key, what):
        """Where a shard, its table, its lock or its mark is."""
        return getattr(CacheDirectory(self.cache), what)(os.path.basename(self.path(key)))

    def has(self, key, what="shard"):
        """Whether a shard, its table, its lock or its mark is there."""
        return os.path.exists(self.file(key, what))

    def is_ours(self, key):
        """Whether a cleaner would take it for a cached shard."""
        return self.has(key) and self.has(key, "table")

    def is_leased(self, key):
        """Whether anybody has just this file open, and others can see that."""
        serial = self.files[key].serial
        return self.has_locks and any((held.key, held.serial) == (key, serial) for held in self.held)

    def size(self, key):
        """Bytes of a shard and its table."""
        return os.path.getsize(self.path(key)) + os.path.getsize(self.file(key, "table"))

    def last_use(self, key):
        """When a cleaner thinks that it was used."""
        return os.stat(self.file(key, "table")).st_mtime_ns

    def cached(self, limit=None):
        """The cache as its model has it, when what was left behind has gone."""
        cache = Cache(limit=limit)
        for key in filter(self.is_ours, KEYS):
            is_kept, use = self.has(key, "keep_mark"), self.uses.get(key, math.inf)
            cache.shards[key] = Shard(self.size(key), self.last_use(key), use, is_kept, self.is_leased(key))
        for part in [part for part, _ in self.downloads] + ([] if self.has_locks else list(self.garbage)):
            cache.others[part] = os.path.getsize(part) if os.path.exists(part) else 0
        return cache

    def used(self):
        """Bytes that count against a bound, when what was left behind has gone."""
        return self.cached().used

    def foresee_room(self, wanted, limit, after):
        """(the shards that go, whether there is room then)."""
        cache = self.cached(limit)
        order, said = cache.victims(), cache.reserve("a download", wanted, use=after)
        return [key for key in order if key not in cache.shards], said in ("granted", "over the limit")

    def foresee_tables(self, gone, limit, room):
        """What is remembered once these shards were evicted, and then of all tables what has ``room``, if it has to."""
        status = {key: os.stat(self.file(key, "remembered_table")) for key in self.remembered}
        found, most = dict(self.remembered), limit // SHARE

        def forget(most):
            for key in sorted(found, key=lambda key: status[key].st_mtime_ns):
                if sum(status[key].st_size for key in found) > most:
                    del found[key]

        for key in gone:
            file, table = self.files[key], os.stat(self.file(key, "table"))
            may_stay = table.st_size <= most
            forget(most - table.st_size * may_stay)
            if may_stay:
                status[key], found[key] = table, Table(file.described, file.source, file.has_md5)
        if room is not None:
            forget(max(room, 0))
        return found

    def remembered_bytes(self):
        """Bytes of the tables of evicted shards."""
        return sum(os.path.getsize(self.file(key, "remembered_table")) for key in self.remembered)

    def is_found(self, user, key):
        """(whether a store uses what is there, and whether it takes the md5 to see that)."""
        file, version = self.files.get(key), user.index[key]
        if file is None or (self.knows(user, "filesize") and self.file_size(key) != len(data_of(key, version))):
            return False, False
        has_md5 = self.knows(user, "md5sum")
        is_tied = file.is_tied and file.source == self.written[key]
        is_known = is_tied and (not has_md5 or (file.has_md5 and file.version == version))
        return is_known or (has_md5 and file.version == version), not is_known

    def knows(self, user, fact):
        """Whether the index of a program has a fact."""
        return fact not in KNOWN[user.knows]

    def file_size(self, key):
        """Bytes of a shard's file."""
        return os.path.getsize(self.path(key))

    def shard(self, user, key):
        """A shard as a program's index describes it."""
        data = data_of(key, user.index[key])
        return described(self.url(key), data, **{"nsamples": NSAMPLES, **KNOWN[user.knows]})

    def forget(self, keys):
        """These were deleted."""
        for key in keys:
            del self.files[key]
            assert not self.has(key)
            assert not self.has(key, "table")

    # --- programs

    @initialize(
        limits=st.lists(st.sampled_from(LIMITS), min_size=2, max_size=2),
        knows=st.sampled_from(list(KNOWN)),
        there=st.lists(st.sampled_from(KEYS), unique=True),
        is_always_listed=st.sampled_from([False, False, False, True]),
    )
    def begin(self, limits, knows, there, is_always_listed):
        """Two programs, one of which knows all; some shards are there from before.

        What has changed is read from the log of changes, or the directory is listed each time.
        """
        self.is_always_listed = is_always_listed
        if is_always_listed:
            set_limits(cache_limits, patch=self.patch.setattr, listed_again_seconds=-1.0)
        self.start(limits[0], is_keeping=False, knows="all")
        self.start(limits[1], is_keeping=False, knows=knows)
        for key in there:
            with contextlib.suppress(CacheFull):
                self.open(0, key, is_held=False)

    @precondition(lambda self: len(self.users) < 4)
    @rule(limit=st.sampled_from(LIMITS), is_keeping=st.booleans(), knows=st.sampled_from(list(KNOWN)))
    def start(self, limit, is_keeping, knows):
        """A program with an index of what is served now."""
        store = AutoProvider(
            cache_dir=self.cache,
            cache_local=True,
            cache_size=limit,
            keep=is_keeping,
            session=Session(hooks=[self.events]),
        )
        self.users.append(User(store, limit, is_keeping, knows, dict(self.server)))

    @rule(number=numbers)
    def restart(self, number):
        """A program that ends and begins again, or a copy in another process: it remembers nothing."""
        user = self.user(number)
        user.store = pickle.loads(pickle.dumps(user.store))
        user.store.cache.hooks = user.store.files._hooks = [self.events]

    @rule(key=keys, version=st.sampled_from(VERSIONS), readers=st.sets(numbers))
    def change(self, key, version, readers):
        """A shard is written anew (or not), and some read the index again."""
        self.serve(key, version)
        for number in readers:
            self.user(number).index[key] = version

    def user(self, number):
        """One of the programs."""
        return self.users[number % len(self.users)]

    # --- opening

    @rule(what=st.lists(st.tuples(numbers, keys, st.booleans()), min_size=1, max_size=4))
    def open_some(self, what):
        """Shards are opened, by one program or several."""
        for number, key, is_held in what:
            self.open(number, key, is_held=is_held)
            self.check()

    def open(self, number, key, *, is_held):
        """A shard is opened: it is what the index says, and whatever it took is what the model says."""
        user = self.user(number)
        is_found, is_proved = self.is_found(user, key)
        if is_found:
            reader = self.open_shard(user, key, ["Hit", "Opened"])
            version = self.files[key].version
            if is_proved:
                self.files[key].is_tied = self.files[key].has_md5 = True
                self.files[key].source = self.written[key]
                self.files[key].described = version
        else:
            reader = self.fetch(user, key, None, lambda: self.open_shard(user, key, None))
            if reader is None:
                return
            version = self.server[key]
        assert read(reader) == texts_of(key, version)
        if self.knows(user, "md5sum"):
            assert version == user.index[key]
        assert reader.is_leased
        assert os.path.samestat(os.fstat(reader.fileno()), os.stat(self.path(key)))
        assert self.has(key, "keep_mark") or not user.is_keeping
        self.note_use(key)
        if is_held and len(self.held) < 3:
            serial = self.files[key].serial
            self.held.append(SimpleNamespace(reader=reader, key=key, version=version, serial=serial, is_harmed=False))
        else:
            reader.close()

    def open_shard(self, user, key, expected):
        """Open it, and see what the hooks were told."""
        self.events.clear()
        reader = user.store.open(self.shard(user, key))
        assert expected is None or self.events.names() == expected
        return reader

    def fetch(self, user, key, after, act):
        """What ``act``, which fetches a shard, gives; None if it cannot."""
        was_there = key in self.files
        served, wanted = data_of(key, self.server[key]), data_of(key, user.index[key])
        size = len(wanted) if self.knows(user, "filesize") else len(served)
        needed = size + table_allowance(size, NSAMPLES if self.knows(user, "nsamples") else None)
        gone, has_room = self.foresee_room(needed, user.limit, after)
        is_right = (not self.knows(user, "filesize") or len(served) == len(wanted)) and (
            not self.knows(user, "md5sum") or served == wanted
        )
        paths = [self.path(lost) for lost in gone]
        remembered = self.remembered
        if user.limit is not None:
            room = user.limit - needed - self.used() + sum(map(self.size, gone))
            remembered = self.foresee_tables(gone, user.limit, room if has_room else None)
        if not has_room:
            expected = pytest.raises(CacheFull)
        elif not is_right:
            expected = pytest.raises(FetchError)
        else:
            expected = contextlib.nullcontext()
        result = None
        with expected:
            result = act()
        assert [event.path for event in self.events if type(event).__name__ == "Evicted"] == paths
        self.remembered = remembered
        assert ("Rejected" in self.events.names()) == was_there
        assert ("Fetched" in self.events.names()) == (result is not None)
        if result is None:
            self.forget(gone)
        else:
            self.forget(lost for lost in gone if lost != key)
            self.serial += 1
            has_md5 = self.knows(user, "md5sum")
            version = self.server[key]
            self.files[key] = File(version, self.serial, self.written[key], has_md5=has_md5, described=version)
            self.remembered.pop(key, None)
            self.note_use(key)
        assert not self.has(key, "lock")
        if user.limit is not None:
            self.note_sweep(has_listed=self.is_always_listed)
            assert not has_room or needed > user.limit or self.used() + self.remembered_bytes() <= user.limit
            self.check_bound(user, key, result is not None and needed > user.limit)
        return result

    def check_bound(self, user, key, is_too_large):
        """The bound holds, as far as it can: what is beyond it is read, kept, under way, or the shard itself."""
        if self.used() > user.limit and is_too_large:
            assert all(self.is_leased(other) or other == key for other in self.cached().victims())

    @rule(number=numbers, key=keys, after=st.sampled_from([0.0, FAR, FAR + 2, math.inf]))
    def download_ahead(self, number, key, after):
        """A shard is fetched that may be needed: never at the cost of one that is needed sooner."""
        user = self.user(number)
        self.events.clear()

        def act():
            located = user.store.cache.locate(self.shard(user, key))
            is_fetched = user.store.cache.download_ahead(located, after=after, is_cancelled=lambda: False)
            return True if is_fetched else None

        is_found, is_proved = self.is_found(user, key)
        if (is_found and not is_proved) or (key in self.files and self.knows(user, "md5sum")):
            assert act() is None  # the md5 is taken when somebody needs the shard
            assert self.events == []
        else:
            self.fetch(user, key, after, act)

    @precondition(lambda self: self.held)
    @rule(number=numbers, is_released=st.booleans())
    def read_again(self, number, is_released):
        """What is open gives the bytes that it had when it was opened, whatever became of the file's name."""
        held = self.held[number % len(self.held)]
        self.check_held(held)
        if is_released:
            self.held.remove(held)
            held.reader.close()

    def check_held(self, held):
        """One that was cut short says so, or still has its bytes at hand."""
        with pytest.raises(ShardError) if held.is_harmed else contextlib.nullcontext():
            assert read(held.reader) == texts_of(held.key, held.version)
            if held.is_harmed:
                raise ShardError("it had all of its bytes in memory")

    @rule(number=numbers, key=keys)
    def recall(self, number, key):
        """The table that is remembered of a shard is that of the shard in the index, or there is none."""
        user = self.user(number)
        table = user.store.cache.remembered_table(user.store.cache.locate(self.shard(user, key)))
        known = self.remembered.get(key)
        if known is None or not self.is_its_own(user, key, known):
            assert table is None
        else:
            assert are_same(table, tars.table_of(data_of(key, known.described)))
            os.utime(self.file(key, "remembered_table"), (self.next_tick(),) * 2)

    def is_its_own(self, user, key, table):
        """Whether a table can be that of a shard as a program's index describes it, and of its source now."""
        if table.described is None or table.source != self.written[key]:
            return False
        size, version = len(data_of(key, table.described)), user.index[key]
        if self.knows(user, "filesize") and size != len(data_of(key, version)):
            return False
        return not self.knows(user, "md5sum") or (table.has_md5 and table.described == version)

    # --- cleaners

    @precondition(lambda self: os.path.isdir(self.cache))
    @rule(limit=st.sampled_from([None, 0, ONE, 3 * ONE, 10 * ONE]), most=st.integers(0, 4))
    def clean(self, limit, most):
        """A cleaner takes what is beyond its bounds, in order, as far as it may go; or what killed processes left."""
        if limit is None:
            Space(self.cache, limit=None).sweep()
        else:
            used, count, gone = self.used(), sum(map(self.is_ours, KEYS)), []
            for key in self.cached().victims():
                if (used > limit or count > most) and not self.is_leased(key):
                    used, count = used - self.size(key), count - 1
                    gone.append(key)
            expected = [(self.path(key), self.size(key)) for key in gone]
            self.remembered = self.foresee_tables(gone, limit, min(limit // SHARE, limit - used))
            assert evict_from([Space(self.cache, limit=None)], limit=limit, maximum=most) == expected
            self.forget(gone)
        self.note_sweep(has_listed=True)

    def note_sweep(self, *, has_listed):
        """Garbage has gone, where locks tell what it is; and tables without a shard, where the directory was listed."""
        if self.has_locks:
            assert not any(map(os.path.exists, self.garbage | self.left_locks))
            self.garbage.clear()
        for key in KEYS:
            assert self.has(key) or not (has_listed and (self.has(key, "table") or self.has(key, "keep_mark")))

    # --- killed processes, and those that are at work

    @precondition(lambda self: os.path.isdir(self.cache) and len(self.garbage) < 3)
    @rule(
        key=keys,
        point=st.sampled_from(["shard", "table", "between"]),
        size=st.integers(0, 2 * ONE),
        has_md5=st.booleans(),
    )
    def crash(self, key, point, size, has_md5):
        """A process is killed with so many bytes here, or when it has published the new table and not yet the shard."""
        if point == "between":
            self.crash_in_publishing(key, has_md5=has_md5)
        else:
            self.garbage.add(put_garbage(self.path(key) + (".widx" if point == "table" else ""), size))
        self.left_locks.add(put_file(self.cache, self.file(key, "lock")))

    def crash_in_publishing(self, key, *, has_md5):
        """The new table is there, and the old shard, or none."""
        data = data_of(key, self.server[key])
        before = self.size(key) if self.is_ours(key) else None
        self.garbage.add(put_garbage(self.path(key)))
        put_file(self.home, "new", data)
        fd, facts = atomic.open_file(os.path.join(self.home, "new"))
        md5 = shards.md5(data) if has_md5 else None
        facts = Identity(size=facts.size, mtime_ns=self.next_tick() * 1_000_000_000, md5=md5)
        atomic.write_atomically(self.file(key, "table"), member_tables.scan_table(fd, self.url(key), facts).to_bytes())
        os.close(fd)
        if key in self.files:
            self.files[key].is_tied, self.files[key].described = False, None
            self.note_use(key)
            if self.size(key) != before:  # it was damaged
                self.note_outside()

    @precondition(lambda self: os.path.isdir(self.cache))
    @rule(key=keys, size=st.integers(0, 2 * ONE), is_killed=st.booleans())
    def download(self, key, size, is_killed):
        """Another process begins on a shard of its own, for which it has room; or it gives up, or is killed."""
        if not self.downloads:
            part, fd = atomic.make_part(staging_of(self.path(key) + "-other"))
            os.truncate(fd, size)
            self.downloads.append((part, fd))
            return
        part, fd = self.downloads.pop()
        if is_killed and os.path.exists(part):
            self.garbage.add(part)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)
        os.close(fd)

    @precondition(lambda self: os.path.isdir(self.cache))
    @rule(uses=st.none() | st.dictionaries(keys, st.sampled_from([FAR + 1, FAR + 2, FAR + 3]), min_size=1))
    def plan_ahead(self, uses):
        """A job says what it is going to read; or it ends."""
        if uses is not None:
            self.plan = self.plan or PlanFile(self.cache)
            self.plan.write({os.path.basename(self.path(key)): when for key, when in uses.items()})
        elif self.plan is not None:
            self.plan.close()
            self.plan = None
        self.uses = uses or {}

    # --- from outside

    @rule(key=keys, what=st.sampled_from(["shard", "table", "lock", "keep_mark", "remembered_table"]))
    def delete(self, key, what):
        """Somebody deletes a file of the cache."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.file(key, what))
        if what == "shard":
            self.files.pop(key, None)
        elif what == "table" and key in self.files:
            self.files[key].is_tied, self.files[key].described = False, None
        elif what == "remembered_table":
            self.remembered.pop(key, None)
        self.note_outside()

    @precondition(lambda self: self.remembered)
    @rule(key=keys)
    def harm_what_is_remembered(self, key):
        """Somebody writes to the table of an evicted shard."""
        if key in self.remembered:
            put_file(self.cache, self.file(key, "remembered_table"), b"\x89WIDS\r\n\x1a" + bytes(200))
            self.remembered[key].described = None
            os.utime(self.file(key, "remembered_table"), (self.next_tick(),) * 2)
            self.note_outside()

    @precondition(lambda self: self.files)
    @rule(key=keys, how=st.sampled_from(["use", "table", *HARMS]))
    def harm(self, key, how):
        """Somebody writes to a file of the cache; its time tells, as with any writer. Or a pool lets go of it."""
        if how == "use":
            CacheDirectory(self.cache).touch(os.path.basename(self.path(key)))
        elif how == "table" and self.has(key, "table"):
            self.harm_table(key)
        if key in self.files and how in HARMS:
            HARMS[how](self.path(key))
            os.utime(self.path(key), (self.next_tick(),) * 2)
            if how != "touch":
                self.files[key].version = None
            if how == "truncate":
                for held in self.held:
                    held.is_harmed = held.is_harmed or (held.key, held.serial) == (key, self.files[key].serial)
        if key in self.files and how != "use":
            self.files[key].is_tied = False
        if self.has(key, "table"):
            self.note_use(key)
        if how != "use":
            self.note_outside()

    def harm_table(self, key):
        """Nothing is known of it any more."""
        put_file(self.cache, self.file(key, "table"), b"\x89WIDS\r\n\x1a" + bytes(200))
        if key in self.files:
            self.files[key].described = None

    @rule()
    def wipe(self):
        """Somebody deletes the directory with all that is in it."""
        shutil.rmtree(self.cache, ignore_errors=True)
        self.files, self.garbage, self.left_locks, self.strangers, self.uses = {}, set(), set(), {}, {}
        self.remembered = {}

    @precondition(lambda self: os.path.isdir(self.cache))
    @rule(name=st.sampled_from(["mine.tar", "mine.tar.widx", "x.lock", "x.part", "y.keep", "n.plan"]))
    def put_stranger(self, name):
        """Somebody keeps files of their own in the directory."""
        self.strangers[name] = b"%d" % self.next_tick()
        put_file(self.cache, name, self.strangers[name])

    # --- always

    @invariant()
    def check(self):
        """All that always holds."""
        self.strangers_stay()
        self.the_directory_is_the_model()
        self.what_is_open_stays()
        self.nothing_leaks()

    def strangers_stay(self):
        """Nobody touches what no cache put there."""
        for name, data in self.strangers.items():
            with open(os.path.join(self.cache, name), "rb") as file:
                assert file.read() == data

    def the_directory_is_the_model(self):
        """Each file is there that should be, and nothing else is: no part of a transfer that has ended."""
        if not os.path.isdir(self.cache):
            assert self.files == self.remembered == {}
            return
        assert {key for key in KEYS if self.has(key, "remembered_table")} == set(self.remembered)
        assert {key for key in KEYS if self.has(key)} == set(self.files)
        found = {os.path.join(self.cache, name) for name in files_in(self.cache)}
        kinds = ("shard", "table", "keep_mark", "remembered_table")
        known = {self.file(key, what) for key in KEYS for what in kinds}
        known |= {os.path.join(self.cache, name) for name in self.strangers}
        parts = self.garbage | {part for part, _ in self.downloads}
        own = {self.plan.path} if self.plan is not None else set()
        assert found <= known | parts | own
        self.garbage = {part for part in self.garbage if os.path.exists(part)}
        assert {self.file(key, "lock") for key in KEYS if self.has(key, "lock")} <= self.left_locks
        self.left_locks = set(filter(os.path.exists, self.left_locks))

    def what_is_open_stays(self):
        """A leased file has its name as long as nobody deleted it from outside or published another one."""
        for held in self.held:
            file = self.files.get(held.key)
            if file is not None and file.serial == held.serial:
                assert os.path.samestat(os.fstat(held.reader.fileno()), os.stat(self.path(held.key)))

    def nothing_leaks(self):
        """Nothing is open but what is held."""
        expected = len(self.held) + len(self.downloads) + (self.plan is not None and self.plan._fd >= 0)
        assert len(files_open_in(self.home)) == expected


class DirectoryWithoutLocks(Directory):
    """The same where files cannot be locked: leases are not seen, and what is left behind goes by its age."""

    has_locks = False


EXAMPLES = int(os.environ.get("WIDS_MODEL_EXAMPLES", "0"))
profile = settings(
    max_examples=EXAMPLES or examples(250),
    stateful_step_count=50 if EXAMPLES else 30,
    derandomize=not EXAMPLES,
    suppress_health_check=list(HealthCheck),
)
TestDirectory = Directory.TestCase
TestDirectory.settings = profile
TestDirectoryWithoutLocks = DirectoryWithoutLocks.TestCase
TestDirectoryWithoutLocks.settings = settings(profile, max_examples=EXAMPLES or examples(120))

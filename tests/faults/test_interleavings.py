"""What shares a cache directory, two at a time: one is stopped before each of its calls in turn, or killed there.

The calls are those that change a file or a lock, so this is each order in which the second one's work can lie in the
first one's. What holds at the end holds for all of them: whatever was read and whatever is there is whole, nothing is
left behind, everybody finds all shards, and a remembered table is that of the shard it is taken for.
"""

import contextlib
import functools
import itertools
import os
import shutil

import pytest

from tests.conftest import Events
from tests.support import cache_shards as shards
from tests.support import tars
from tests.support.cache_dirs import table_of
from tests.support.cache_shards import described, files_open_in
from tests.support.examples import PROFILE
from tests.support.interleave import Actor, arrive, doomed, play, watch_calls
from wids.core.cache import space
from wids.core.cache.cleanup import keep_most_recent_files
from wids.core.cache.directory import CacheDirectory
from wids.core.cache.space import Space
from wids.core.files import atomic
from wids.core.readers.provider import AutoProvider
from wids.core.readers.remote import are_same
from wids.core.tables import member_tables
from wids.core.transport.session import Session

ROWS = 3
# Letter of a shard -> tags of its versions, which are of one size. The first one of ``a`` is cached, and out of date;
# ``e`` and ``f`` were evicted, and the table of the first one of ``e`` is out of date.
VERSIONS = {"a": "aA", "b": "b", "c": "c", "d": "d", "e": "eE", "f": "f"}
REMEMBERED = "ef"
# One shard has room, with its table and two of others; two have not.
LIMIT = 14_000
TABLES = 1400
# Of whoever does least: it takes a lease, opens the table, reads three samples, and notes the use.
LEAST_CALLS = 6


@functools.cache
def data_of(tag):
    """The bytes of a shard."""
    return shards.shard(tag, ROWS)


@functools.cache
def samples_of(tag):
    """What a reader of it gives."""
    return [(f"{tag}{row:04d}", shards.text(tag, row), (tag.encode() + b"%04d" % row) * 20) for row in range(ROWS)]


class Place:
    """A cache directory that is made anew for each order, and what acts in it."""

    def __init__(self, home):
        self.home, self.cache = str(home), str(home / "cache")
        self.urls = {letter: str(home / "source" / f"{letter}.tar") for letter in VERSIONS}
        self.events = Events()
        self.over = []
        self.is_replaced = False
        self._crashed = {}
        for letter, tags in VERSIONS.items():
            shards.write(self.urls[letter], data_of(tags[0]))
        for letter in (*REMEMBERED, "a"):
            self.store(LIMIT).open(self.shard(letter)).close()
        assert self.remembered() == [f"{letter}.tar" for letter in REMEMBERED]
        for letter in "ae":
            shards.write(self.urls[letter], data_of(VERSIONS[letter][-1]))
        self.template = os.path.join(home, "template")
        os.rename(self.cache, self.template)

    def begin(self, template=None, *, actors=()):
        """The directory as it is at first, or as a crash left it; ``actors`` are who will act at the same time."""
        self.is_replaced = "update" in actors
        if os.path.isdir(self.cache):
            shutil.rmtree(self.cache)
        shutil.copytree(template or self.template, self.cache)
        self.events.clear()
        self.over.clear()

    def store(self, limit=None):
        """A store of its own for whoever opens."""
        return AutoProvider(
            cache_dir=self.cache, cache_local=True, cache_size=limit, session=Session(hooks=[self.events])
        )

    def shard(self, letter):
        """A shard as the index lists it now."""
        with open(self.urls[letter], "rb") as file:
            return described(self.urls[letter], file.read())

    def read(self, store, shard, tags):
        """Open a shard and read it sample by sample; it is whole, and one of the versions."""
        reader = store.open(shard)
        try:
            found = []
            for row in range(ROWS):
                arrive("read")
                # Others delete nothing that is open; only a newer version may take its name.
                assert self.is_replaced or os.path.samestat(os.fstat(reader.fileno()), os.stat(reader.path))
                sample = reader[row]
                found.append((sample["__key__"], sample[".txt"].read(), sample[".bin"].read()))
            assert found in [samples_of(tag) for tag in tags]
        finally:
            reader.close()

    def remembered(self):
        """The shards that were evicted, whose tables are still there: how their names end."""
        return sorted(entry.name.rpartition("-")[2] for entry in CacheDirectory(self.cache).inventory().remembered)

    # --- who acts; ``role`` is 0 for the first, 1 for the second

    def open(self, role):
        """Read the cached shard, knowing its name only."""
        shard = described(self.urls["a"], b"", filesize=None, md5sum=None, nsamples=None)
        self.read(self.store(), shard, VERSIONS["a"])

    def update(self, role):
        """Read it as the index lists it now: what is cached is out of date, and another file takes its name."""
        self.read(self.store(), self.shard("a"), VERSIONS["a"][-1])

    def publish(self, role):
        """Read a shard that is not there."""
        self.read(self.store(), self.shard("b"), "b")

    def evict(self, role):
        """Read one under a bound, for which all others have to go; two of these are after different ones."""
        letter = "cd"[role]
        self.read(self.store(LIMIT), self.shard(letter), letter)

    def clean(self, role):
        """Clean all of the directory."""
        keep_most_recent_files(self.cache, maxsize=0)

    def recall(self, role):
        """Ask what is remembered of each shard, as who reads it early does: its own table, or nothing."""
        cache = self.store(LIMIT).cache
        for letter in VERSIONS:
            shard = self.shard(letter)
            table = cache.remembered_table(cache.locate(shard))
            assert table is None or are_same(table, tars.table_of(data_of(VERSIONS[letter][-1])))

    def act(self, name, role):
        """What an actor of this name does."""
        return functools.partial(getattr(self, name), role)

    def crashes(self, killed):
        """What is left when an actor is killed before each of its calls, in order: paths of copies of the directory."""
        if killed not in self._crashed:
            found = []
            while self._crash(killed, len(found) + 1):
                found.append(os.path.join(self.home, f"{killed}-{len(found) + 1}"))
                os.rename(self.cache, found[-1])
            assert len(found) >= LEAST_CALLS
            self._crashed[killed] = found
        return self._crashed[killed]

    def _crash(self, killed, call):
        self.begin()
        with doomed(self.act(killed, 0), call) as live:
            return live() is None

    # --- what holds

    def note_bound(self):
        """Note when the directory has more than its bound, where all who fetch have one."""
        used = CacheDirectory(self.cache).inventory().used_bytes
        if used > LIMIT:
            self.over.append(used)

    def check(self, *, has_crashed):
        """All that holds in the end."""
        assert has_crashed or self.left_behind() == []
        assert CacheDirectory(self.cache).inventory().strangers == 0
        self.check_files(has_crashed=has_crashed)
        self.check_remembered()
        Space(self.cache, limit=None).sweep()
        assert self.left_behind() == []
        assert files_open_in(self.home) == []
        fresh = self.store()
        for letter, tags in VERSIONS.items():
            self.read(fresh, self.shard(letter), tags[-1])
        self.check_files(has_crashed=False)
        # Who is killed in the middle of publishing may leave the table that was remembered until then.
        assert has_crashed or self.remembered() == []
        assert files_open_in(self.home) == []

    def check_remembered(self):
        """The tables of evicted shards are whole, and no more than may be."""
        found = CacheDirectory(self.cache).inventory().remembered
        assert sum(entry.size_bytes for entry in found) <= TABLES
        for entry in found:
            path = CacheDirectory(self.cache).remembered_table(entry.name)
            letter = entry.name.rpartition("-")[2][0]
            table = member_tables.load_table(path, path, shard_bytes=None)
            assert any(are_same(table, tars.table_of(data_of(tag))) for tag in VERSIONS[letter])

    def left_behind(self):
        """Names of files that belong to processes that have ended."""
        found = CacheDirectory(self.cache).inventory()
        return [*found.transients.parts, *found.transients.plans, *found.transients.locks, *found.orphans]

    def check_files(self, *, has_crashed):
        """Each shard is whole, and has a table that says so; a crash may leave it with one that is of no use to it."""
        for letter, tags in VERSIONS.items():
            path = self.store().cache.placement.local_path(self.urls[letter])
            if not os.path.exists(path):
                continue
            with open(path, "rb") as file:
                data = file.read()
                assert data in [data_of(tag) for tag in tags]
                facts = atomic.identify(file.fileno())
                table = member_tables.load_table(table_of(path), path, shard_bytes=len(data))
                assert table is not None
                is_tied = table.identity.is_same(facts)
                assert is_tied or has_crashed
                if is_tied:
                    assert table.identity.md5 in (None, shards.md5(data))  # who knew no more than the name had no md5
                    assert table.to_bytes() == member_tables.scan_table(file.fileno(), path, table.identity).to_bytes()

    @contextlib.contextmanager
    def telling(self, words):
        """Say in which order it was that something failed."""
        try:
            yield
        except Exception as error:
            raise AssertionError(f"{words}: {error}; {self.events.names()}") from error


ACTORS = ("open", "update", "publish", "evict", "clean", "recall")
BOUNDED = {("evict", "evict"), ("evict", "clean"), ("clean", "evict")}
# Of where one is stopped and the other killed not all pairs are tried, but each place with some others. Outside of the
# tier `thorough` it is some of the places, others for each pair.
STEP = 5
STRIDE = 1 if PROFILE == "all" else 5


def in_both_forms(test):
    """A test of the tier `default`, and in its full form of the tier `thorough`."""
    return pytest.mark.default(pytest.mark.thorough(test))


def first_step(first, second):
    """The first call to try, such that the pairs together come to all calls."""
    return 1 + (ACTORS.index(first) + ACTORS.index(second)) % STEP


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The place, and what crashes left in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(space, "_REMEMBERED_SHARE", LIMIT // TABLES)  # tables of such small shards are large
        yield Place(tmp_path_factory.mktemp("interleavings"))


@pytest.fixture
def place(home, monkeypatch):
    """The place, where actors can be stopped."""
    watch_calls(monkeypatch)
    return home


@in_both_forms
@pytest.mark.parametrize("second", ACTORS)
@pytest.mark.parametrize("first", ACTORS)
def test_one_while_another_is_stopped(place, caplog, first, second):
    """One is stopped before a call, whichever it is, while another does all it can without it; then it goes on."""
    is_bounded = (first, second) in BOUNDED
    watch = place.note_bound if is_bounded else lambda: None
    for call in itertools.count(1 + ACTORS.index(second) % STRIDE, STRIDE):
        place.begin(actors=(first, second))
        one = Actor(first, place.act(first, 0), stop_at=call, watch=watch)
        other = Actor(second, place.act(second, 1), watch=watch)
        with place.telling(f"{first} stopped before call {call}, then {second}"):
            play(one, other)
            assert place.over == []
            assert "trying again" not in caplog.text  # nobody's files vanish, so that it has to begin again
            if first == second in ("publish", "update"):
                assert place.events.names().count("Fetched") == 1
            place.check(has_crashed=False)
        caplog.clear()
        if len(one.calls) < call:
            break
    assert call > LEAST_CALLS


@in_both_forms
@pytest.mark.parametrize("second", ACTORS)
@pytest.mark.parametrize("killed", ACTORS)
def test_one_after_another_was_killed(place, killed, second):
    """One is killed before a call, whichever it is; another finds nothing that stops or misleads it."""
    for call, directory in [*enumerate(place.crashes(killed), 1)][ACTORS.index(second) % STRIDE :: STRIDE]:
        place.begin(directory)
        with place.telling(f"{killed} killed before call {call}, then {second}"):
            place.act(second, 1)()
            place.check(has_crashed=True)


@in_both_forms
@pytest.mark.parametrize("killed", ACTORS)
@pytest.mark.parametrize("first", ACTORS)
def test_one_is_killed_while_another_is_stopped(place, first, killed):
    """One is stopped before a call, another is killed before one of its own, and the first goes on as if alone."""
    count = len(place.crashes(killed))
    for call in itertools.count(first_step(first, killed), STEP * STRIDE):
        place.begin(actors=(first, killed))
        death = 1 + call * 7 % count
        with (
            doomed(place.act(killed, 1), death) as live,
            place.telling(f"{first} stopped before call {call}, {killed} killed before call {death}"),
        ):
            one = Actor(first, place.act(first, 0), stop_at=call)
            play(one, Actor(killed, live))
            place.check(has_crashed=True)
        if len(one.calls) < call:
            break
    assert call > LEAST_CALLS


@in_both_forms
@pytest.mark.parametrize("again", ACTORS)
@pytest.mark.parametrize("killed", ACTORS)
def test_one_is_killed_after_another_was_killed(place, killed, again):
    """Two are killed one after the other, and what they leave together is in nobody's way."""
    count = len(place.crashes(again))
    left = place.crashes(killed)
    for call in range(first_step(killed, again), len(left) + 1, STEP * STRIDE):
        place.begin(left[call - 1])
        death = 1 + call * 7 % count
        with place.telling(f"{killed} killed before call {call}, {again} before call {death}"):
            with doomed(place.act(again, 1), death) as live:
                live()
            place.check(has_crashed=True)

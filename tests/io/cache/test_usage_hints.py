"""Plans of jobs: what live ones say is known to all, and nothing that is wrong with one does harm."""

import errno
import json
import math
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cache_dirs import files_in, put_file
from tests.support.cache_shards import files_open_in
from tests.support.children import child, kill, receive, stop_here
from wids.core.cache import limits, usage_hints
from wids.core.cache.directory import CacheDirectory
from wids.core.cache.space import Space
from wids.core.cache.usage_hints import PlanFile
from wids.core.files import atomic, system

LONG_AGO, IN_AN_HOUR = 1_000_000.0, time.time() + 3600.0
NAME = "1-0123abcd.plan"


@pytest.fixture
def home(tmp_path):
    """A cache directory."""
    return str(tmp_path)


@pytest.fixture
def plan(home):
    """A plan, which is taken back in the end."""
    plan = PlanFile(home)
    yield plan
    plan.close()


def read_all(directory):
    """What the plans of a directory say."""
    home = CacheDirectory(directory)
    return usage_hints.read(home.folder, home.transients().plans)


def name_of(plan):
    """The name of a plan's file, from the cache directory."""
    return os.path.join(".wids", os.path.basename(plan.path))


def sweep(directory):
    """Delete what is left behind, as everybody does who wants room."""
    Space(directory, limit=None).sweep()


@pytest.fixture
def locked_file(home):
    """A function: put a file where a live plan would be, locked as if by its job."""
    held = []

    def make(data, name=NAME):
        CacheDirectory(home).make()
        fd = os.open(put_file(CacheDirectory(home).folder, name, data), system.WRITE_FLAGS)
        held.append(fd)
        assert system.try_lock(fd, is_shared=False)

    yield make
    for fd in held:
        os.close(fd)


# --- what live jobs say


def test_a_plan_is_there_from_its_first_word_to_its_end(home):
    """Before it is written there is no file; then there is one, which says the last that was written; then none."""
    plan = PlanFile(home)
    assert files_in(home) == []
    for uses in ({"a.tar": 5.0}, {"a.tar": 7.0, "b.tar": 6.0}, {}):
        plan.write(uses)
        assert files_in(home) == [name_of(plan)]
        assert read_all(home) == uses
        sweep(home)
    plan.close()
    plan.close()
    assert files_in(home) == []
    assert files_open_in(home) == []


texts = st.text(st.characters(exclude_categories=()), max_size=8)
moments = st.floats(allow_nan=True, allow_infinity=True)


def is_told(name, when):
    """Whether JSON has a way to say it."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return math.isfinite(when)


@given(st.lists(st.dictionaries(texts, moments, max_size=4), max_size=3))
def test_the_earliest_use_of_all_jobs_counts(tmp_path_factory, said):
    """Oracle: for each shard the minimum over all plans. What JSON cannot say (no Unicode, no number) is left out."""
    home = str(tmp_path_factory.mktemp("plans"))
    live = [PlanFile(home) for _ in said]
    try:
        for plan, uses in zip(live, said, strict=True):
            plan.write(uses)
        expected = {}
        for uses in said:
            for name, when in uses.items():
                if is_told(name, when):
                    expected.setdefault(name, []).append(when)
        assert read_all(home) == {name: min(times) for name, times in expected.items()}
    finally:
        for plan in live:
            plan.close()


def test_what_is_in_use_now_is_used_at_once(home, plan, monkeypatch):
    """A shard that a job is busy with counts as used now, until the time that the job says; not after it.

    The wait for its end is for other processes: the job itself would wait for itself.
    """
    plan.write(
        {"a.tar": IN_AN_HOUR, "b.tar": IN_AN_HOUR}, {"a.tar": IN_AN_HOUR, "b.tar": LONG_AGO, "c.tar": IN_AN_HOUR}
    )
    before = time.time()
    found = read_all(home)
    assert before <= found["a.tar"] == found["c.tar"] <= time.time()
    assert (found["b.tar"], found.busy_until) == (IN_AN_HOUR, 0.0)
    monkeypatch.setattr(usage_hints, "_own_names", set())  # as in another process
    assert read_all(home).busy_until == IN_AN_HOUR
    plan.write({"a.tar": LONG_AGO}, {"a.tar": IN_AN_HOUR})
    assert read_all(home)["a.tar"] == LONG_AGO
    plan.write({"a.tar": 5.0})
    assert read_all(home).busy_until == 0.0


# --- jobs that are gone


def write_and_stop(connection, home):
    """A job that writes a plan, and hangs."""
    plan = PlanFile(home)
    plan.write({"a.tar": 5.0})
    stop_here(connection)


def test_the_plan_of_a_killed_job_counts_no_more(home):
    """As long as the job lives its plan is read and stays; killed, it is neither read nor kept."""
    with child(write_and_stop, home) as (process, connection):
        receive(connection)
        sweep(home)
        assert read_all(home) == {"a.tar": 5.0}
        kill(process)
    assert len(files_in(home)) == 1
    assert read_all(home) == {}
    sweep(home)
    assert files_in(home) == []


def close_and_tell(connection, plan):
    """A forked child that ends as its parent would, and stays a while."""
    plan.close()
    stop_here(connection)


def test_a_forked_child_does_not_take_its_parent_s_plan_back(home, plan):
    """It may close its copy; the plan is the parent's, and goes when the parent says so, whoever else lives."""
    plan.write({"a.tar": 5.0})
    with child(close_and_tell, plan) as (_, connection):
        receive(connection)
        assert read_all(home) == {"a.tar": 5.0}
        with child(stop_here) as (_, other):
            receive(other)
            plan.close()
            assert files_in(home) == []


# --- a plan that is replaced at the wrong moment


def test_a_plan_that_is_replaced_while_it_is_read(home, plan, monkeypatch):
    """Between the opening of a plan and the look at its lock its job writes another one: that is what counts."""
    plan.write({"a.tar": 5.0})
    real = atomic.open_file

    def late(path):
        opened = real(path)
        if len(seen) < 1:
            seen.append(path)
            plan.write({"a.tar": 6.0})
        return opened

    seen = []
    monkeypatch.setattr(atomic, "open_file", late)
    assert read_all(home) == {"a.tar": 6.0}
    assert files_open_in(home) == [plan.path]


@pytest.mark.parametrize("end", ["closes", "goes on writing"])
def test_a_plan_that_changes_whenever_it_is_looked_at(home, plan, monkeypatch, end):
    """Whoever reads it goes on without it, and leaves nothing open."""
    plan.write({"a.tar": 5.0})
    names = CacheDirectory(home).transients().plans
    real = atomic.open_file

    def late(path):
        opened = real(path)
        if end == "closes":
            plan.close()
        else:
            plan.write({"a.tar": 6.0})
        return opened

    monkeypatch.setattr(atomic, "open_file", late)
    assert usage_hints.read(CacheDirectory(home).folder, names) == {}
    assert files_open_in(home) == ([] if end == "closes" else [plan.path])


def test_a_plan_that_is_replaced_while_others_sweep(home, plan, monkeypatch):
    """A sweeper that holds the plan before, which is nobody's now, does not delete the one that took its name."""
    plan.write({"a.tar": 5.0})
    real = usage_hints.is_abandoned

    def late(fd, **options):
        plan.write({"a.tar": 6.0})
        return real(fd, **options)

    with monkeypatch.context() as patch:
        patch.setattr(usage_hints, "is_abandoned", late)
        sweep(home)
    assert files_in(home) == [name_of(plan)]
    assert read_all(home) == {"a.tar": 6.0}


# --- what is no plan


@pytest.mark.parametrize(
    "data",
    [
        b"",
        json.dumps({"uses": {"a.tar": 5.0}, "busy": {}}).encode()[:-3],
        b'{"uses": {"\xff": 1.0}, "busy": {}}',
        b'{"uses": {"\\udcff": 1.0}, "busy": {}}',
        b'{"uses": {"a.tar": null}, "busy": {}}',
        b'{"uses": {"a.tar": "soon"}, "busy": {}}',
        b'{"uses": {"a.tar": 1e999}, "busy": {}}',
        b'{"uses": ["a.tar"], "busy": {}}',
        b'{"a.tar": 5.0}',
        b"[" * 100_000,
        b'{"uses": {"a": ' + b"[" * 100_000,
        b"no plan at all\0",
        bytes(range(256)),
    ],
    ids=range(13),
)
def test_a_plan_that_cannot_be_understood_is_passed_over(home, plan, locked_file, data):
    """Torn, not JSON, not Unicode, of another version, deeply nested: the others are read all the same."""
    locked_file(data)
    plan.write({"b.tar": 7.0})
    assert len(CacheDirectory(home).transients().plans) == 2
    assert read_all(home) == {"b.tar": 7.0}


def test_a_plan_that_is_too_long_is_not_read(home, plan, locked_file, set_limits):
    """Nobody reads gigabytes into memory because they have the right name; up to the bound, all is read."""
    data = b'{"uses": {"a.tar": 5.0}, "busy": {}}'
    locked_file(data)
    plan.write({})
    set_limits(limits, max_hint_bytes=len(data))
    assert read_all(home) == {"a.tar": 5.0}
    set_limits(limits, max_hint_bytes=len(data) - 1)
    assert read_all(home) == {}


def test_what_is_no_file(home):
    """A directory, a FIFO, a link to nothing: nobody waits, nobody fails."""
    own = CacheDirectory(home).folder
    CacheDirectory(home).make()
    os.mkdir(os.path.join(own, "1-00000000.plan"))
    os.mkfifo(os.path.join(own, "2-00000000.plan"))
    os.symlink("nothing", os.path.join(own, "3-00000000.plan"))
    before = files_in(home)
    assert usage_hints.read(home, [*before, "not there"]) == {}
    sweep(home)
    assert files_in(home) == before


# --- directories that cannot be written


def test_a_directory_that_is_not_there(home):
    """It goes without a plan, and is not made."""
    plan = PlanFile(os.path.join(home, "none"))
    plan.write({"a.tar": 5.0})
    plan.close()
    assert files_in(home) == []


@pytest.mark.parametrize("call", ["open", "replace", "pwrite"])
def test_a_plan_that_cannot_be_written(home, plan, monkeypatch, call):
    """A full or read-only directory: the plan before stays, nothing else does, and nothing more is open."""
    plan.write({"a.tar": 5.0})

    def failing(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(*((system, "pwrite") if call == "pwrite" else (os, call)), failing)
        plan.write({"a.tar": 6.0})
    assert files_in(home) == [name_of(plan)]
    assert files_open_in(home) == [plan.path]
    assert read_all(home) == {"a.tar": 5.0}
    plan.write({"a.tar": 7.0})
    assert read_all(home) == {"a.tar": 7.0}


def test_a_plan_that_somebody_deleted(home, plan):
    """The job writes it again, and takes back what is not there without a word."""
    plan.write({"a.tar": 5.0})
    os.unlink(plan.path)
    plan.write({"a.tar": 6.0})
    assert read_all(home) == {"a.tar": 6.0}
    os.unlink(plan.path)
    plan.close()
    assert files_open_in(home) == []


# --- no locks


def test_without_locks_a_plan_counts_for_some_minutes(home, plan, monkeypatch):
    """Where files cannot be locked a plan is a live job's as long as it is young, and swept when it is a day old."""
    monkeypatch.setattr(system, "try_lock", lambda fd, *, is_shared: None)
    plan.write({"a.tar": 5.0})
    now = time.time()
    ages = {}
    for age in (0, 590, 610, 80_000, 90_000):
        os.utime(plan.path, (now - age, now - age))
        found = read_all(home)
        sweep(home)
        ages[age] = found, files_in(home)
    name = [name_of(plan)]
    assert ages == {
        0: ({"a.tar": 5.0}, name),
        590: ({"a.tar": 5.0}, name),
        610: ({}, name),
        80_000: ({}, name),
        90_000: ({}, []),
    }


def test_where_nothing_that_is_open_can_be_renamed(home, monkeypatch):
    """A file system that renames no open file goes without plans, and without their part files."""

    def refusing(source, target):
        raise PermissionError(errno.EACCES, "it is being used by another process", source)

    monkeypatch.setattr(os, "replace", refusing)
    plan = PlanFile(home)
    plan.write({"a.tar": 5.0})
    plan.close()
    assert files_in(home) == []
    assert files_open_in(home) == []


# --- many at once


def write_for_ever(connection, home):
    """A job that replaces its plan without pause, each saying all of it at one and the same time."""
    plan = PlanFile(home)
    for round_ in range(1, 1_000_000):
        plan.write(dict.fromkeys(("a.tar", "b.tar", "c.tar"), float(round_)))
        if round_ == 1:
            connection.send("here")
        if connection.poll():
            plan.close()
            connection.send(round_)
            return


def test_plans_are_whole_whenever_they_are_read(home):
    """While jobs replace their plans as fast as they can, each is read whole, and swept by nobody."""
    with child(write_for_ever, home) as (_, one), child(write_for_ever, home) as (_, other):
        receive(one)
        receive(other)
        for _ in range(200):
            sweep(home)
            found = read_all(home)
            assert len(set(found.values())) <= 1
            assert set(found) in (set(), {"a.tar", "b.tar", "c.tar"})
        for connection in (one, other):
            connection.send("end")
        assert receive(one) > 1
        assert receive(other) > 1
    assert files_in(home) == []


def test_a_job_that_is_killed_while_it_writes(home):
    """What is left of a plan under way is swept as any download is."""

    def write_half(connection):
        os.replace = lambda source, target: stop_here(connection)
        PlanFile(home).write({"a.tar": 5.0})

    with child(write_half) as (process, connection):
        receive(connection)
        sweep(home)
        assert len(CacheDirectory(home).transients().parts) == 1
        kill(process)
    sweep(home)
    assert files_in(home) == []

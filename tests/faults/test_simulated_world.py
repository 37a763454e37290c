"""The cache under schedules that follow from one integer each; see `tests.support.simulated_world`.

``$WIDS_SCHEDULE`` names the one that is played, instead of many.
"""

import fcntl
import os
import subprocess
import sys
import types

import pytest

from tests.support import simulated_world
from tests.support.examples import examples
from tests.support.paths import ROOT
from tests.support.simulated_os import Disk, Machine, SimulationError

ONE = os.environ.get("WIDS_SCHEDULE")
SEEDS = [int(ONE)] if ONE else range(examples(1500))


@pytest.mark.parametrize("part", range(1 if ONE else 4))
def test_schedules(part):
    """Nothing that must hold is broken in any of them."""
    *_, failures = simulated_world.play_all(SEEDS[part :: 1 if ONE else 4])
    assert not failures, "\n".join(failures.values())


# --- what they find


def lease_released_early(process):
    """The lock on an open shard is dropped at once."""
    locks, system = process["wids.core.files.locks"], process["wids.core.files.system"]

    def lease(before):
        def begin(self):
            is_leased = locks.lease(self.fd)
            system.unlock(self.fd)
            return is_leased is not False

        return begin

    process.patch("wids.core.cache.leases", "Lease.begin", lease)


def locks_are_not_heeded(process):
    """Who is to have a file for itself does not look whether others have it."""
    process.patch(
        "wids.core.files.system",
        "try_lock",
        lambda before: lambda fd, *, is_shared: before(fd, is_shared=is_shared) if is_shared else True,
    )


def table_of_another_version(process):
    """The table of an evicted shard stays, and counts for any file of that size that comes in its place."""
    process.patch(
        "wids.core.files.identity", "Identity.is_same", lambda before: lambda self, other: self.size == other.size
    )
    process.patch("wids.core.readers.local", "LocalReader._check_layout", lambda before: lambda self: None)
    process.patch("wids.core.cache.directory", "CacheDirectory.remove_orphans", lambda before: lambda self, found: None)

    def keeping(system):
        def replace(part, path):
            if not (path.endswith(".widx") and system.path.exists(path)):
                system.replace(part, path)

        def unlink(path):
            if not path.endswith(".widx"):
                system.unlink(path)

        return types.SimpleNamespace(**{**vars(system), "replace": replace, "unlink": unlink})

    for module in ("wids.core.cache.shard_download", "wids.core.cache.space"):
        process.patch(module, "os", keeping)


def headers_not_compared(process):
    """A remembered or published table counts for whatever the server has: no header is compared with it."""
    process.patch("wids.core.readers.remote", "RangeReader._check", lambda before: lambda self, *args, **options: None)


def reservation_forgotten(process):
    """What downloads under way have reserved does not count."""

    def without_parts(before):
        def transients(self):
            found = before(self)
            return type(found)(parts=found.parts, plans=found.plans, locks=found.locks, used_bytes=0, promised_bytes=0)

        return transients

    process.patch("wids.core.cache.directory", "CacheDirectory.transients", without_parts)


def published_unsynced(process):
    """A shard gets its name before its bytes are on the disk."""

    def without_sync(system):
        return types.SimpleNamespace(**{**vars(system), "fsync": lambda fd: None})

    process.patch("wids.core.cache.shard_download", "os", without_sync)


def published_unverified(process):
    """What arrived is not compared with the index."""
    process.patch("wids.core.cache.shard_download", "check_file", lambda before: lambda *args, **options: None)


def name_not_locked(process):
    """A shard's lock file is of no use."""

    def without_names(before):
        return lambda self, name: before(self, f"{name}.{process.pid}")

    process.patch("wids.core.files.own_folder", "OwnFolder.lock", without_names)


def requests_not_heard(process):
    """Idle shards stay open, whoever needs the space."""
    process.patch("wids.core.cache.leases", "Leases._answer", lambda before: lambda self: False)


def strangers_are_entries(process):
    """Every file in the directory is taken for a shard of the cache."""

    def with_strangers(before):
        def inventory(self):
            found = before(self)
            names = {entry.name for entry in found.entries}
            entry = process["wids.core.cache.eviction"].Entry
            own = [entry(name=name, size_bytes=10, used_ns=0) for name in simulated_world.FOREIGN if name not in names]
            found.entries[:0] = own
            return found

        return inventory

    process.patch("wids.core.cache.directory", "CacheDirectory.inventory", with_strangers)


def finalizer_sets_an_event(process):
    """The thread that fetches ahead waits for an event, which the end of an abandoned iteration sets."""
    threading = process["wids.core.prefetch.prefetcher"].threading

    def woken(prefetcher):
        return vars(prefetcher).setdefault("woken", threading.Event())

    def waiting(before):
        def wait(self, seconds):
            woken(self).wait(seconds)
            woken(self).clear()

        return wait

    def ending(before):
        def end(self, *, is_finished):
            before(self, is_finished=is_finished)
            woken(self).set()

        return end

    process.patch("wids.core.prefetch.prefetcher", "Prefetcher._wait", waiting)
    process.patch("wids.core.prefetch.prefetcher", "Prefetcher.end", ending)


# Each with a part of what is then said, and by how many schedules at most.
FAULTS = [
    (lease_released_early, "is being read, and was evicted", 1000),
    (locks_are_not_heeded, "", 1000),
    (table_of_another_version, "sample ", 3000),
    (headers_not_compared, "sample ", 1000),
    (reservation_forgotten, "bytes are in the cache, and the limit is", 1000),
    (published_unsynced, "sample ", 3000),
    (published_unverified, "and the index says another one", 1000),
    (name_not_locked, "is downloaded by", 1000),
    (requests_not_heard, "nothing went wrong, and yet: CacheFull", 1000),
    (strangers_are_entries, "is no shard of the cache, and was deleted", 1000),
    (finalizer_sets_an_event, "these have not ended", 1000),
]
# The schedules that found them last, where many do not: they are played first. Other code may need other ones.
FOUND = {table_of_another_version: 590, published_unsynced: 2298}


def find(fault, words, most):
    """(seed, message) of a schedule that finds a fault."""
    for seed in (FOUND.get(fault, 0), *range(most)):
        try:
            simulated_world.play(seed, fault=fault)
        except SimulationError as error:
            if words in str(error):
                return seed, str(error)
    pytest.fail(f"{most} schedules do not find it")


@pytest.mark.parametrize(("fault", "words", "most"), FAULTS, ids=[fault.__name__ for fault, *_ in FAULTS])
def test_a_fault_is_found(fault, words, most):
    """And the integer that it is found by finds it again, after any others."""
    seed, said = find(fault, words, most)
    assert said.startswith(f"schedule {seed}: ")
    simulated_world.play(seed + 1)
    with pytest.raises(SimulationError) as again:
        simulated_world.play(seed, fault=fault)
    assert str(again.value) == said


# --- an integer is enough


def test_a_schedule_is_the_same_in_another_process():
    """Whatever was played before it, and whatever the hashes of texts are."""
    command = [sys.executable, "-m", "tests.support.simulated_world", "--seeds", "17", "--trace"]
    runs = [
        subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True)
        for seed in ("1", "2")
    ]
    simulated_world.play_all(range(10))
    trace = []
    digest = simulated_world.play(17, trace=trace).digest()
    assert {run.stdout for run in runs} == {"\n".join([*trace, digest, ""])}


# --- the operating system


def test_disk_and_locks():
    """What the library relies on: locks belong to open files, names may go while files are open, disks are full."""
    machine = Machine(simulated_world.random.Random(0))
    sizes = {}
    machine.disk = Disk(4 * 4096, lambda *place: sizes.update({place[:2]: place[2]}), lambda: machine.now)
    machine.disk.put("/d/other", b"")
    one, two = simulated_world.process_number(0), simulated_world.process_number(1)
    for number, process in enumerate((one, two)):
        process.begin(machine, str(number), number)

    def act():
        flags = os.O_RDWR | os.O_CREAT
        fd = one.open_file("/d/a", flags)
        with pytest.raises(FileExistsError):
            two.open_file("/d/a", flags | os.O_EXCL)
        other = two.open_file("/d/a", os.O_RDWR)
        assert one.pwrite(fd, bytes(5000), 0) == 5000
        assert sizes["/d", "a"] == 5000
        one.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        two.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError):
            one.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        two.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the other one has lost its own
        with pytest.raises(BlockingIOError):
            one.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        two.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
        one.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        one.close(fd)
        two.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        two.unlink("/d/a")
        assert (two.fstat(other).st_nlink, sizes["/d", "a"], machine.disk.used_blocks) == (0, None, 2)
        assert two.pread(other, 10, 4995) == bytes(5)
        two.ftruncate(other, 1 << 20)
        assert [two.pwrite(other, bytes(3000), at) for at in (8192, 11192, 14192)] == [3000, 3000, 2192]
        with pytest.raises(OSError, match="No space"):
            two.pwrite(other, b"x", 16384)
        two.close(other)
        assert machine.disk.used_blocks == 0

    machine.run([one.spawn(act)], 10)
    machine.end_tasks(None)


def test_threads_that_wait_for_each_other_are_found():
    """A deadlock ends the schedule, and names who waits."""
    machine = Machine(simulated_world.random.Random(0), switch_rate=1.0)
    process = simulated_world.process_number(0)
    process.begin(machine, "p", 1)
    threading = process["wids.core.files.forks"].threading
    locks = [threading.Lock(), threading.Lock()]

    def act(first, second):
        with locks[first]:
            threading.Event().wait(0.01)
            with locks[second]:
                pass

    tasks = [process.spawn(lambda order=order: act(*order), f"t{order[0]}") for order in ((0, 1), (1, 0))]
    with pytest.raises(SimulationError, match="these wait for ever: p/t0, p/t1"):
        machine.run(tasks, 10)
    machine.end_tasks(None)


def test_what_is_not_simulated_says_so():
    """Instead of reaching the real system."""
    process = simulated_world.process_number(0)
    with pytest.raises(NotImplementedError, match=r"no os\.fork"):
        _ = process["wids.core.cache.space"].os.fork
    with pytest.raises(NotImplementedError, match="relative"):
        process["wids.core.cache.space"].os.path.realpath("x")

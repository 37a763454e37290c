"""The cache under all that goes wrong at once: killed processes, full disks, bad servers, forks, wiped directories.

Each test ends in bounded time, whatever happens. What is random follows from a seed, which a failure shows. The tests
that are marked ``long`` are the same with more rounds: ``pytest -m long tests/faults/test_chaos.py``.
"""

import contextlib
import errno
import functools
import gc
import itertools
import os
import random
import shutil
import threading
import time

import pytest

from tests.support import chaos, tools
from tests.support.cache_dirs import files_in, staging_of
from tests.support.cache_shards import files_open_in, write
from tests.support.chaos import (
    ROWS,
    Job,
    check,
    check_directory,
    check_shard,
    entries,
    in_program,
    left_behind,
    program,
    serve,
    shard_bytes,
    shard_of,
    used_bytes,
    watched,
)
from tests.support.clocks import PATIENCE_SECONDS, wait_until
from tests.support.range_faults import ignored, short, within
from tests.support.servers import (
    cut,
    cut_chunked,
    cut_unannounced,
    instead,
    mute,
    reset,
    stall,
    status,
    whole,
    zipped,
)
from wids.core.cache import limits, space
from wids.core.cache.directory import CacheDirectory
from wids.core.files import atomic, system
from wids.core.readers.provider import AutoProvider
from wids.core.transport import download
from wids.errors import CacheError, CacheFull

ONE = len(shard_bytes(0))


def rounds(few, many, *, some=None):
    """How often: in every run, in the full form if it has one, and in the long one."""
    marks = [pytest.mark.long, pytest.mark.timeout(3600)]
    cases = [pytest.param(few, id="few"), pytest.param(many, id="many", marks=marks)]
    if some is not None:
        cases.insert(1, pytest.param(some, id="some", marks=pytest.mark.thorough))
    return pytest.mark.parametrize("rounds", cases)


# Where there are tables, shards are downloaded, too: samples are read by ranges until they are there.
with_tables = pytest.mark.parametrize(
    "has_tables",
    [pytest.param(False, id="whole shards", marks=pytest.mark.thorough), pytest.param(True, id="early reads")],
)


@pytest.fixture(scope="module")
def mounts():
    """The right to mount file systems, for a test that needs one of its own."""
    if why := in_program(chaos.why_no_mounts):
        tools.missing(why)


@pytest.fixture
def cache(tmp_path):
    """The cache directory; it is not there yet."""
    return str(tmp_path / "cache")


@pytest.fixture
def choose(request):
    """Randomness by a seed that is always the same, and another one in each long run; ``$WIDS_CHAOS_SEED`` decides."""
    is_long = request.node.get_closest_marker("long") is not None
    seed = int(os.environ.get("WIDS_CHAOS_SEED") or (time.time_ns() % 1_000_000 if is_long else 1))
    request.node.add_report_section("setup", "chaos", f"WIDS_CHAOS_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def no_patience(monkeypatch, set_limits):
    """In this process: who finds no room gives up soon, and the disk is not waited for."""
    set_limits(limits, wait_seconds=2.0)
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def no_collector():
    """Cycles of objects stay: nobody knows when the collector comes."""
    gc.disable()
    yield
    gc.enable()


# --- killed

LIMIT = 2 * ONE + ONE // 2


@pytest.fixture
def prepared(server, cache, no_patience, no_waits):
    """A cache with old versions of two shards and what killed processes left; gives (entries of these, of two more)."""
    serve(server, range(2))
    store = AutoProvider(cache_dir=cache)
    for entry in entries(server, range(2)):
        store.open(shard_of(entry)).close()
    for name in ("x.tar.1-01234567.part", "7-01234567.plan", "tables/gone.tar.widx", "gone.tar.lock"):
        write(os.path.join(cache, ".wids", name), b"left behind")
    serve(server, range(4), 2)
    return entries(server, range(2), 2), entries(server, range(2, 4), 2)


def check_next_run(cache, shards, versions=(2,)):
    """See that all shards can be had, the bound holds all along, and nothing is left of those who were killed."""
    store = AutoProvider(cache_dir=cache, cache_size=LIMIT)
    for entry in shards:
        with contextlib.closing(store.open(shard_of(entry))) as reader:
            check_shard(reader, int(entry["url"][-6:-4]), versions)
        assert used_bytes(cache)[0] <= LIMIT
    assert CacheDirectory(cache).inventory().remembered
    assert left_behind(cache) == []


@rounds(15, 1000, some=40)
def test_killed_at_each_call(prepared, cache, choose, rounds, tmp_path):
    """A process that dies at any call that changes a file or a lock leaves no wrong byte; the next run clears up."""
    old, new = prepared
    os.rename(cache, tmp_path / "template")
    shutil.copytree(tmp_path / "template", cache)
    count = in_program(chaos.live_to_call, 0, cache, LIMIT, old, new)
    assert count > 150
    for call in sorted(choose.sample(range(1, count + 1), min(rounds, count))):
        shutil.rmtree(cache)
        shutil.copytree(tmp_path / "template", cache)
        with program(chaos.live_to_call, call, cache, LIMIT, old, new) as running:
            running.process.join(PATIENCE_SECONDS)
            assert running.process.exitcode in (0, -9), f"call {call}"  # the last calls may have been left out
        try:
            check_directory(cache, versions=(1, 2))
            assert used_bytes(cache)[0] <= LIMIT
            check_next_run(cache, [*old, *new])
        except Exception as error:
            raise AssertionError(f"killed at call {call}: {error}") from error


@rounds(3, 300, some=6)
@with_tables
@pytest.mark.usefixtures("no_patience", "no_waits")
def test_killed_at_random(server, cache, choose, rounds, has_tables):
    """Two jobs with workers are killed at random moments, alone or with their workers; the others go on."""
    serve(server, range(8), has_tables=has_tables)
    shards = entries(server, range(8))
    for number in range(rounds):
        jobs = [Job(shards=shards, directory=cache, limit=LIMIT - k * 5000, seed=number + k) for k in range(2)]
        with contextlib.ExitStack() as stack:
            running = [stack.enter_context(program(chaos.train_forever, job)) for job in jobs]
            for each in running:  # they download for ever: the limit is a third of what they read
                asked = len(server.requests) + choose.randrange(40)
                wait_until(lambda asked=asked: len(server.requests) >= asked)
                each.kill(is_alone=choose.random() < 0.3)
            check_directory(cache)
            assert used_bytes(cache)[0] <= LIMIT, number
            # Workers whose loader was killed live a little longer, and are in nobody's way.
            (seen,) = in_program(
                chaos.train, Job(shards=shards, directory=cache, limit=LIMIT), seconds=PATIENCE_SECONDS
            )
            assert sorted(seen) == list(range(8 * ROWS))
        check_next_run(cache, shards, versions=(1,))


# --- full disks


def on_small_disk(function, directory, *args, options="size=300k"):
    """In a process: call a function with its cache on a file system of its own, which goes with the process."""
    chaos.enter_own_mounts()
    chaos.mount_memory(directory, options)
    chaos.hurry(wait_seconds=0.5)
    return function(directory, *args)


def cycle(directory, shards, limit, seed, count, nthreads):
    """Read shards in random order in some threads, each of which has a cache of its own; gives what went wrong."""
    errors = []

    def read(number):
        choose = random.Random(f"{seed} {number}")
        store = AutoProvider(cache_dir=directory, cache_size=limit)
        try:
            for _ in range(count):
                number = choose.randrange(len(shards))
                with contextlib.closing(store.open(shard_of(shards[number]))) as reader:
                    check_shard(reader, number)
        except Exception as error:
            errors.append(repr(error))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(nthreads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_directory(directory)
    assert left_behind(directory) == []
    return errors


@rounds(1, 20)
@pytest.mark.parametrize("limit", [None, 100 * ONE], ids=["no bound", "a bound beyond it"])
@pytest.mark.usefixtures("mounts")
def test_a_disk_smaller_than_the_shards(server, cache, choose, rounds, limit):
    """Three downloads at a time go round on a disk that holds a third of the shards: none of them runs into its end."""
    serve(server, range(20))
    shards = entries(server, range(20))
    for _ in range(rounds):
        args = (shards, limit, choose.random(), 40, 3)
        assert in_program(on_small_disk, cycle, cache, *args, seconds=PATIENCE_SECONDS) == []


def fill_and_free(directory, shards, limit):
    """Have others fill the disk, and free it again; gives the error meanwhile, and what was there then."""
    store = AutoProvider(cache_dir=directory, cache_size=limit)
    for shard in shards[:4]:
        store.open(shard_of(shard)).close()
    filler = os.path.join(directory, "of-others")
    free_bytes, _ = system.free_bytes(directory)
    write(filler, bytes(free_bytes))
    with contextlib.closing(store.open(shard_of(shards[0]))) as reader:
        check_shard(reader, 0)  # it is there, and needs no room
    for number in (4, 5, 6):  # room is made for these by evicting
        with contextlib.closing(store.open(shard_of(shards[number]))) as reader:
            check_shard(reader, number)
    for name in files_in(directory):
        if name.endswith((".tar", ".widx")):
            os.unlink(os.path.join(directory, name))
    free_bytes, _ = system.free_bytes(directory)
    write(f"{filler}-2", bytes(free_bytes - ONE // 2))
    with pytest.raises(CacheFull) as caught:
        store.open(shard_of(shards[7]))
    found = files_in(directory)
    os.unlink(filler)
    with contextlib.closing(store.open(shard_of(shards[7]))) as reader:
        check_shard(reader, 7)
    return caught.value, found


@pytest.mark.parametrize("limit", [None, 100 * ONE], ids=["no bound", "a bound beyond it"])
@pytest.mark.usefixtures("mounts")
def test_a_disk_that_others_fill(server, cache, limit):
    """Where others fill the disk, cached shards make room; then it is an error in bytes, until there is room again."""
    serve(server, range(8))
    error, found = in_program(on_small_disk, fill_and_free, cache, entries(server, range(8)), limit)
    assert found == ["of-others", "of-others-2"]
    assert error.path == cache
    assert error.expected >= ONE > error.found >= 0
    for count in (error.expected, error.expected - error.found):
        assert f"{count} more bytes" in str(error) or f"needs {count}" in str(error)


def fill_while_fetching(directory, shards):
    """Have others fill the disk when room was made and no byte has come; gives the error, and what is left."""
    store = AutoProvider(cache_dir=directory)
    filler = os.path.join(directory, "of-others")
    learn = download.Transfer._learn

    def fill(self, stat):
        learn(self, stat)
        with open(filler, "wb") as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    download.Transfer._learn = fill
    with pytest.raises(CacheError) as caught:
        store.open(shard_of(shards[0]))
    download.Transfer._learn = learn
    found = files_in(directory)
    os.unlink(filler)
    with contextlib.closing(store.open(shard_of(shards[0]))) as reader:
        check_shard(reader, 0)
    return caught.value, found


@pytest.mark.usefixtures("mounts")
def test_a_disk_that_fills_up_meanwhile(server, cache):
    """Where others take the room that was made, the error says which file could not be written; nothing is left."""
    serve(server, [0])
    error, found = in_program(on_small_disk, fill_while_fetching, cache, entries(server, [0]))
    assert found == ["of-others"]
    assert "No space left" in str(error)
    assert "free space or move cache_dir" in str(error)


def run_out_of_names(directory, shards):
    """Fetch until the file system has no room for another file; gives the error."""
    store = AutoProvider(cache_dir=directory)
    for number, shard in enumerate(shards):
        try:
            with contextlib.closing(store.open(shard_of(shard))) as reader:
                check_shard(reader, number)
        except CacheError as error:
            check_directory(directory)
            assert left_behind(directory) == []
            return error
    raise AssertionError("there was room for all")


@pytest.mark.usefixtures("mounts")
def test_a_disk_without_room_for_another_file(server, cache):
    """Where there are bytes and no inodes, the error says so."""
    serve(server, range(20))
    on_disk = functools.partial(on_small_disk, options="size=10m,nr_inodes=20")
    assert "No space left" in str(in_program(on_disk, run_out_of_names, cache, entries(server, range(20))))


# --- many processes


@rounds(1, 15)
@with_tables
@pytest.mark.parametrize("others", ["fork", "spawn"])
def test_two_jobs_of_many_processes(server, cache, choose, rounds, has_tables, others):
    """Two jobs of four processes, forked, with workers and prefetching, in a quarter of what they read.

    With ``others``, one process and the workers of another one begin with nothing. Their shards overlap, and each job
    has a bound of its own. What the directory has stays within the larger one.
    """
    serve(server, range(24), has_tables=has_tables)
    numbers, limits = (range(16), range(8, 24)), (6 * ONE + ONE // 2, 5 * ONE)
    epochs = 1 + rounds
    for _ in range(rounds):
        seeds = choose.randrange(1000), choose.randrange(1000)
        with contextlib.ExitStack() as stack:
            watch = stack.enter_context(watched(cache))
            with contextlib.ExitStack() as programs:
                running = []
                for rank, number in itertools.product(range(4), range(2)):
                    job = Job(
                        shards=entries(server, numbers[number]),
                        directory=cache,
                        limit=limits[number],
                        rank=rank,
                        world=4,
                        epochs=epochs,
                        seed=seeds[number],
                        method=others if (rank, number) == (0, 1) else "fork",
                        is_persistent=rank % 2 == 1,
                    )
                    is_other = others == "spawn" and (rank, number) == (1, 0)
                    method = "forkserver" if is_other else "fork"
                    running.append(programs.enter_context(program(chaos.train, job, method=method)))
                end = time.monotonic() + PATIENCE_SECONDS * (1 + epochs)
                seen = [each.answer(end) for each in running]
        for number, epoch in itertools.product(range(2), range(epochs)):
            found = [index for each in seen[number::2] for index in each[epoch]]
            assert sorted(found) == list(range(16 * ROWS))
        assert watch.looks > 100
        assert watch.used <= max(limits)
        assert left_behind(cache) == []
        check_directory(cache)


# --- bad servers

FAULTS = [
    *(cut, cut_unannounced, cut_chunked, reset, stall, mute, zipped, ignored, short, within(100, 0)),
    *(status(500), status(503), status(429, Retry_After=0), status(404), status(403)),
    *(instead(b"<html>log in</html>"), instead(bytes(ONE)), instead(b"")),
]
# What may be said of a shard that such a server does not hand out.
ERRORS = {
    *("FetchError", "ShardNotFoundError", "FetchDeniedError", "WrongContentError", "UnreachableError"),
    *("SizeMismatchError", "DigestMismatchError", "CountMismatchError"),
    *("EmptyShardError", "TruncatedShardError", "CorruptHeaderError"),
}


@rounds(1, 40)
@with_tables
def test_a_server_gone_mad(server, cache, choose, rounds, has_tables):
    """Two jobs, one by the index of before, while the server fails in all ways and changes its mind about shards.

    Nobody reads a wrong byte; who waits for whole shards, none of another version than the index means. Without digests
    in the index, a sample is of one version. In the end what can be had is had, and of the rest it is said that it is
    another.
    """
    numbers = range(6)
    for _ in range(rounds):
        serve(server, numbers, has_tables=has_tables)
        common = {"directory": cache, "limit": 3 * ONE, "read_seconds": 0.2, "early_reads": False}
        old = Job(shards=entries(server, numbers), seed=choose.randrange(1000), **common)
        new = Job(shards=entries(server, numbers, 2), seed=choose.randrange(1000), versions=(2,), **common)
        any_ = Job(
            shards=entries(server, numbers, has_md5=False),
            seed=choose.randrange(1000),
            **{**common, "directory": f"{cache}-2", "early_reads": True},
            versions=(1, 2),
        )
        with contextlib.ExitStack() as stack:
            running = [stack.enter_context(program(chaos.read_at_random, job, 3)) for job in (old, new, any_)]
            while not all(each.connection.poll(0.01) for each in running):
                number, faults = choose.choice(numbers), choose.choices(FAULTS, k=choose.randrange(3))
                serve(server, [number], choose.choice((1, 2)), *faults, whole, has_tables=has_tables)
            for each in running:
                right, errors = each.answer(time.monotonic() + PATIENCE_SECONDS)
                assert set(errors) <= ERRORS, errors
                assert right > 0
        serve(server, numbers, 2, whole)
        check_directory(cache, (1, 2))
        check_directory(f"{cache}-2", (1, 2))
        assert in_program(chaos.read_all, new) == [None] * 6
        assert set(in_program(chaos.read_all, old)) <= {"DigestMismatchError"}
        assert in_program(chaos.read_all, new) == [None] * 6


# --- directories


@rounds(1, 60)
@pytest.mark.parametrize("limit", [None, LIMIT], ids=["no bound", "bound"])
def test_a_directory_that_is_wiped(server, cache, choose, rounds, limit):
    """Somebody deletes the cache directory of running jobs again and again: they go on, or say that it was deleted."""
    serve(server, range(6))
    shards = entries(server, range(6))
    for number in range(rounds):
        with contextlib.ExitStack() as stack:
            jobs = [Job(shards=shards, directory=cache, limit=limit, seed=3 * number + k) for k in range(3)]
            running = [stack.enter_context(program(chaos.read_at_random, job, 1.5)) for job in jobs]
            most_seconds = 0.05
            while not all(each.connection.poll(choose.random() * most_seconds) for each in running):
                shutil.rmtree(cache, ignore_errors=True)
                most_seconds *= 1.01  # a slow machine has time for a download at last
            for each in running:
                right, errors = each.answer(time.monotonic() + PATIENCE_SECONDS)
                assert right > 0
                assert set(errors) <= {"CacheError"}
        assert in_program(chaos.read_all, jobs[0]) == [None] * 6
        check_directory(cache)
        assert left_behind(cache) == []


def read_where_nothing_can_be_written(directory, job):
    """Read where the directory is read-only in the meantime: gives what `read_all` says before, then and afterwards."""
    first = Job(shards=job.shards[:2], directory=directory)
    before = chaos.read_all(first)
    chaos.set_read_only(directory, is_read_only=True)
    meanwhile = chaos.read_all(job)
    chaos.set_read_only(directory, is_read_only=False)
    return before, meanwhile, chaos.read_all(job)


@pytest.mark.usefixtures("mounts")
def test_a_directory_that_becomes_read_only(server, cache):
    """What is cached is read from a read-only file system, what is not is an error at once, and comes when it can."""
    serve(server, range(4))
    job = Job(shards=entries(server, range(4)), directory=cache)
    before, meanwhile, afterwards = in_program(on_small_disk, read_where_nothing_can_be_written, cache, job)
    assert before == [None] * 2
    assert meanwhile == [None, None, "CacheError", "CacheError"]
    assert afterwards == [None] * 4


def read_as_a_stranger(job):
    """Read as a user who may not write into the directory; root, who may, becomes one to whom it does not belong."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    return chaos.read_all(job)


def test_a_directory_of_another_user(server, open_path):
    """What is cached is read by a user who may not write there, what is not is an error at once."""
    serve(server, range(3))
    job = Job(shards=entries(server, range(3)), directory=str(open_path / "cache"))
    assert chaos.read_all(Job(shards=job.shards[:2], directory=job.directory), is_hurried=False) == [None] * 2
    if os.getuid() == 0:
        assert in_program(read_as_a_stranger, job) == [None, None, "CacheError"]
        return
    directories = [path for path, *_ in os.walk(job.directory)]
    for directory in directories:  # this user cannot become another one, and gives its own right away instead
        os.chmod(directory, 0o555)
    try:
        assert in_program(read_as_a_stranger, job) == [None, None, "CacheError"]
    finally:
        for directory in directories:
            os.chmod(directory, 0o755)


def read_by_two_names(directory, other, is_link, shards, seed):
    """Two jobs read from one directory that each calls by another name; gives the most bytes that it had."""
    if is_link:
        os.symlink(directory, other)
    else:
        chaos.mount_again(directory, other)
    with watched(directory) as watch, contextlib.ExitStack() as stack:
        jobs = [Job(shards=shards, directory=name, limit=LIMIT, seed=seed, epochs=4) for name in (directory, other)]
        running = [stack.enter_context(program(chaos.train, job)) for job in jobs]
        seen = [each.answer(time.monotonic() + PATIENCE_SECONDS) for each in running]
    assert [[sorted(epoch) for epoch in each] for each in seen] == [[list(range(len(shards) * ROWS))] * 4] * 2
    check_directory(directory)
    assert left_behind(directory) == []
    return watch.used


@rounds(1, 20)
@pytest.mark.parametrize("is_link", [True, False], ids=["a link", "a mount"])
@pytest.mark.usefixtures("mounts")
def test_a_directory_with_two_names(server, cache, choose, rounds, is_link):
    """Two jobs that call their directory by different names keep one bound, and have each other's shards."""
    serve(server, range(6))
    shards = entries(server, range(6))
    for number in range(rounds):
        args = (f"{cache}-{number}", f"{cache}-{number}-2", is_link, shards, choose.randrange(1000))
        on_disk = functools.partial(on_small_disk, options="size=10m")
        assert in_program(on_disk, read_by_two_names, *args, seconds=2 * PATIENCE_SECONDS) <= LIMIT


@rounds(1, 30)
@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS], ids=["ENOLCK", "ENOSYS"])
def test_a_file_system_without_locks(server, cache, choose, rounds, code):
    """Where there are no locks, jobs download shards twice and delete them under each other, and read no wrong byte."""
    serve(server, range(6))
    common = {"shards": entries(server, range(6)), "directory": cache, "limit": LIMIT, "no_locks": code}
    for _ in range(rounds):
        with contextlib.ExitStack() as stack:
            jobs = [Job(seed=choose.randrange(1000), epochs=2, **common) for _ in range(2)]
            running = [stack.enter_context(program(chaos.train, job)) for job in jobs]
            reader = stack.enter_context(program(chaos.read_at_random, Job(seed=choose.randrange(1000), **common), 1))
            for each in running:
                for epoch in each.answer(time.monotonic() + PATIENCE_SECONDS):
                    assert sorted(epoch) == list(range(6 * ROWS))
            right, errors = reader.answer(time.monotonic() + PATIENCE_SECONDS)
            assert right > 0
            assert errors == {}
        check_directory(cache)


# --- what chaos has found


@pytest.mark.usefixtures("no_patience", "no_waits")
def test_a_reader_that_waits_for_room_keeps_no_shard(server, cache):
    """Where one shard has room, one after the other is read: the one before is let go of while the next one waits."""
    serve(server, range(3))
    dataset = Job(shards=entries(server, range(3)), directory=cache, limit=ONE + ONE // 5).dataset(is_hurried=False)
    for index in (0, ROWS, 2 * ROWS, 1, ROWS + 1):
        assert check(dataset[index])[0] == index // ROWS
    batch = [0, ROWS, 2 * ROWS, 1]
    assert [check(sample)[0] for sample in dataset.__getitems__(batch)] == [index // ROWS for index in batch]
    dataset.close()


def reserve_what_is_promised(directory):
    """Promise bytes of a small disk to two downloads that have written nothing yet; gives the error."""
    place = space.Space(directory, limit=None)
    with (
        atomic.part_file(staging_of(os.path.join(directory, "a"))) as (_, a),
        atomic.part_file(staging_of(os.path.join(directory, "b"))) as (_, b),
    ):
        place.reserve([(a, 1000)], url="a")
        place.reserve([(a, 200_000)], url="a")
        try:
            place.reserve([(b, 200_000)], url="b")
        except CacheFull as error:
            return error.expected, error.found
    raise AssertionError("400,000 bytes are promised, and there are 300,000")


@pytest.mark.usefixtures("mounts")
def test_room_is_promised_once(cache):
    """Two downloads under way are not promised the same free bytes of a disk, also where no size bounds the cache."""
    expected, found = in_program(on_small_disk, reserve_what_is_promised, cache)
    assert expected == 200_000
    assert 80_000 < found < 300 * 1024 - 200_000


@pytest.mark.usefixtures("no_patience", "no_waits", "no_collector")
def test_a_directory_that_vanishes_while_room_is_made(server, cache, monkeypatch):
    """A cache directory that is deleted when the room in it is looked at is made again, and the shards are fetched."""
    serve(server, range(2))
    free_bytes = system.free_bytes
    times = iter([True, False])

    def wiped(directory):
        if next(times, False):
            shutil.rmtree(directory)
        return free_bytes(directory)

    monkeypatch.setattr(system, "free_bytes", wiped)
    dataset = Job(shards=entries(server, range(2)), directory=cache, limit=ONE + ONE // 5).dataset(is_hurried=False)
    for index in (0, ROWS):
        assert check(dataset[index])[0] == index // ROWS
    assert next(times, None) is None
    check_directory(cache)
    dataset.close()


@pytest.mark.parametrize(
    "fault",
    [cut, cut_unannounced, reset, short, status(503), instead(b"<html>")],
    ids=["cut", "cut, unannounced", "reset", "short", "status", "a page"],
)
@pytest.mark.usefixtures("no_patience", "no_waits", "no_collector")
def test_a_try_that_failed_keeps_no_shard(server, cache, monkeypatch, fault):
    """What is left of a try that failed does not keep the shard open that the next one brought, nor its room."""
    serve(server, range(2))
    serve(server, [0], 1, fault, whole)
    dataset = Job(shards=entries(server, range(2)), directory=cache, limit=ONE + ONE // 5).dataset(is_hurried=False)
    for index in (0, ROWS):
        assert check(dataset[index])[0] == index // ROWS
    dataset.close()


@pytest.mark.usefixtures("no_patience", "no_waits", "no_collector")
def test_a_lack_of_descriptors_keeps_no_shard(server, cache, monkeypatch):
    """The shard that is opened when others were closed for its descriptor is not kept open by the error before."""
    gc.collect()  # datasets of earlier tests, whose shards would be closed first
    serve(server, range(2))
    dataset = Job(shards=entries(server, range(2)), directory=cache).dataset(is_hurried=False)
    check(dataset[0])
    errors = [OSError(errno.EMFILE, "too many open files")]
    errors[0].itself = errors[0]
    opened = dataset.cache.provider.open
    monkeypatch.setattr(dataset.cache.provider, "open", lambda shard: raise_one_of(errors) or opened(shard))
    check(dataset[ROWS])
    assert errors == []
    assert len(files_open_in(cache)) == 1
    dataset.close()
    assert files_open_in(cache) == []


def raise_one_of(errors):
    """Raise an error, as long as there are any."""
    if errors:
        raise errors.pop()

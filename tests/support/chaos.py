"""What tests of chaos need: shards whose every byte is known, programs for child processes, a look at what is left.

Rules: shards are numbered and come in versions of the same size; whoever reads a sample checks it, in the process where
it is read. What a program cannot stand for it raises, and its parent raises that again.
"""

import contextlib
import ctypes
import fcntl
import functools
import gc
import hashlib
import multiprocessing
import os
import random
import re
import signal
import stat
import time
import traceback
from dataclasses import dataclass
from multiprocessing import resource_tracker

from torch.utils.data import DataLoader
from torch.utils.data._utils import worker

from tests.support import tars
from tests.support.cache_dirs import keep_mark_of, table_of
from tests.support.cache_shards import md5, pack
from tests.support.children import child, receive
from tests.support.clocks import PATIENCE_SECONDS, set_limits, skip_waits, threads_named, wait_until
from wids import DistributedChunkedSampler, ShardListDataset
from wids.core.cache import limits, space, usage_hints
from wids.core.cache.directory import PLAN_SUFFIX, CacheDirectory
from wids.core.files import system
from wids.core.files.own_folder import LOCK_SUFFIX
from wids.core.readers.provider import AutoProvider
from wids.core.readers.remote import are_same
from wids.core.shard import Shard
from wids.core.tables import member_tables
from wids.core.transport import concurrency, filesystems
from wids.errors import WidsError

ROWS = 6
# Samples are of about this size, shards of seven times that.
SIZE = 5000


# --- shards


@functools.cache
def shard_bytes(number, version=1):
    """The tar of a shard."""
    members = []
    for row in range(ROWS):
        key = f"{number:02d}-{row}"
        members += [(f"{key}.txt", b"%d %d %d" % (number, version, row)), (f"{key}.bin", noise(number, version, row))]
    return pack(members)


def noise(number, version, row):
    """What member ``.bin`` of a sample holds."""
    return hashlib.shake_128(b"%d %d %d" % (number, version, row)).digest(SIZE)


def path_of(number):
    """The path of a shard on its server."""
    return f"/{number:02d}.tar"


def entries(server, numbers, version=1, *, has_md5=True):
    """Shards as an index lists them."""
    found = []
    for number in numbers:
        data = shard_bytes(number, version)
        entry = {"url": server.url + path_of(number), "nsamples": ROWS, "filesize": len(data), "md5sum": md5(data)}
        found.append(entry if has_md5 else {**entry, "md5sum": None})
    return found


def serve(server, numbers, version=1, *faults, has_tables=False):
    """Put shards on a server, which answers to ranges; with their member tables, their samples can be read early."""
    server.has_ranges = True
    for number in numbers:
        server.add(path_of(number), shard_bytes(number, version), *faults)
        if has_tables:
            server.add(f"{path_of(number)}.widx", table_bytes(number, version), *faults)


@functools.cache
def table_bytes(number, version=1):
    """The member table of a shard, as it is published."""
    return tars.table_of(shard_bytes(number, version)).to_bytes()


def check(sample, versions=(1,)):
    """See that a sample, undecoded or raw, is what it should be; gives (shard, version, row)."""
    text, data = (value if isinstance(value, bytes) else value.read() for value in (sample[".txt"], sample[".bin"]))
    number, version, row = map(int, text.split())
    assert data == noise(number, version, row), f"wrong bytes in shard {number}, row {row}"
    assert version in versions, f"shard {number} is of version {version}, which is none of {versions}"
    assert sample["__key__"] == f"{number:02d}-{row}"
    return number, version, row


def check_shard(reader, number, versions=(1,)):
    """See that an open shard is what it should be, and of one version."""
    found = [check(sample, versions) for sample in reader]
    assert found == [(number, found[0][1], row) for row in range(ROWS)]


# --- in child processes


def hurry(*, read_seconds=60.0, wait_seconds=30.0):
    """In a child: no pauses between tries, short patience, and ranges so small that each shard has several.

    Tables of such small shards are large: some are remembered all the same. The disk is not waited for: these processes
    are killed, and the machine goes on.
    """
    os.fsync = lambda fd: None
    skip_waits()
    worker.MP_STATUS_CHECK_INTERVAL = 0.5  # how soon a worker whose loader was killed sees that
    space._REMEMBERED_SHARE = 40
    set_limits(filesystems, read_seconds=read_seconds)
    set_limits(limits, wait_seconds=wait_seconds)
    set_limits(concurrency, min_range_bytes=SIZE * 2, first_range_bytes=SIZE * 2)


def lose_locks(code):
    """In a child: file systems have no locks, and say so with this error code."""

    def flock(fd, operation):
        raise OSError(code, os.strerror(code))

    fcntl.flock = flock


# --- what is in a directory


def list_files(directory):
    """Path -> (inode, size) of each file in a cache directory but the small ones that no limit counts."""
    home, found = CacheDirectory(directory), {}
    for folder in (home.path, home.folder, home.tables, home.remembered):
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as items:
            for item in items:
                with contextlib.suppress(FileNotFoundError):
                    status = item.stat(follow_symlinks=False)
                    is_small = item.path in (home.changes, home.space_lock) or item.name.endswith(LOCK_SUFFIX)
                    if stat.S_ISREG(status.st_mode) and not is_small:
                        found[item.path] = status.st_ino, status.st_size
    return found


def used_bytes(directory):
    """(bytes of all files of the cache, those of plans) that a directory has had at one moment, or a little less.

    What two looks in a row have in common was there between them; a single one adds what came to what had gone.
    """
    first, second = list_files(directory), list_files(directory)
    common = [name for name, (inode, _) in first.items() if name in second and second[name][0] == inode]
    sizes = {name: min(first[name][1], second[name][1]) for name in common}
    planned = sum(size for name, size in sizes.items() if PLAN_SUFFIX in name)
    return sum(sizes.values()) - planned, planned


def check_directory(directory, versions=(1,)):
    """See that each shard and each remembered table is whole; a directory that nobody has made yet has none."""
    names = os.listdir(directory) if os.path.isdir(directory) else []
    for name in names:
        if name.endswith(".tar"):
            number = int(re.search(r"(\d\d)\.tar$", name)[1])
            try:
                with open(os.path.join(directory, name), "rb") as file:
                    data = file.read()
            except FileNotFoundError:  # a worker that outlived its loader evicted it just now
                continue
            assert data in [shard_bytes(number, version) for version in versions], f"{name} is damaged"
    remembered = CacheDirectory(directory).remembered
    for name in os.listdir(remembered) if os.path.isdir(remembered) else []:
        number = int(re.search(r"(\d\d)\.tar\.widx$", name)[1])
        path = os.path.join(remembered, name)
        table = member_tables.load_table(path, path, shard_bytes=None)
        if table is not None or os.path.exists(path):  # a worker that outlived its loader may have deleted it just now
            assert any(are_same(table, tars.table_of(shard_bytes(number, version))) for version in versions), name


def left_behind(directory):
    """Names of files that belong to processes: part files, plans, locks of downloads, tables without a shard."""
    found = CacheDirectory(directory).inventory()
    transients = found.transients
    return sorted([*transients.parts, *transients.plans, *transients.locks, *found.orphans])


# --- processes

_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def program(function, *args, method="fork"):
    """Run ``function(connection, *args)`` in a process group of its own; gives a `Program`, and ends all of it."""
    context = multiprocessing.get_context(method)
    ours, its = context.Pipe()
    process = context.Process(target=_run, args=(its, function, args))
    process.start()
    its.close()
    found = Program(process, ours)
    try:
        yield found
    finally:
        found.kill()
        process.close()
        ours.close()


class Program:
    """A program in a process group of its own."""

    def __init__(self, process, connection):
        self.process, self.connection = process, connection
        self.pid = process.pid

    def answer(self, deadline):
        """What it returned, which must be there before the ``deadline`` (of the monotonic clock)."""
        assert self.connection.poll(max(deadline - time.monotonic(), 0)), f"process {self.pid} does not end"
        try:
            is_good, value = self.connection.recv()
        except EOFError:
            self.process.join(max(deadline - time.monotonic(), 0))
            raise AssertionError(f"process {self.pid} ended with {self.process.exitcode}") from None
        self.process.join(max(deadline - time.monotonic(), 0))
        assert not self.process.is_alive(), f"process {self.pid} has answered, and does not end"
        assert is_good, f"process {self.pid} failed:\n{value}"
        return value

    def kill(self, *, is_alone=False):
        """End it with SIGKILL, and all that it started, unless it is to be alone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL) if is_alone else os.killpg(self.pid, signal.SIGKILL)
        if self.process.is_alive():  # it may not have come as far as to have a group
            self.process.kill()
        self.process.join()  # with a time-out it would wait for its children, too


def _run(connection, function, args):
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # no test leaves one behind, however it ends
    try:
        answer = True, function(*args)
    except BaseException:
        answer = False, traceback.format_exc()
    with contextlib.suppress(BrokenPipeError):
        connection.send(answer)
    connection.close()


def in_program(function, *args, seconds=30, method="fork"):
    """What ``function(*args)`` returns in a process of its own, within so many seconds."""
    with program(function, *args, method=method) as running:
        return running.answer(time.monotonic() + seconds)


# --- dying at a call

# What changes a file or a lock. Between two of these, the disk is the same.
_CALLS = ("open", "replace", "unlink", "ftruncate", "pwrite", "utime", "fsync", "mkdir")


def die_at_call(count):
    """Kill this process just before its call number ``count`` that changes a file or a lock; a write is left torn.

    0: it lives. A forked child goes on counting from where its parent was.

    Returns:
        The names of the calls so far, which grows.
    """
    calls = []

    def counted(name, real):
        def call(*args, **options):
            if name != "open" or args[1] & os.O_CREAT:
                calls.append(name)
                if 0 < count <= len(calls):  # several threads may count at once
                    if name == "pwrite":
                        real(args[0], bytes(args[1])[: len(args[1]) // 2], args[2])
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        return call

    for name in _CALLS:
        setattr(os, name, counted(name, getattr(os, name)))
    system.pwrite = os.pwrite
    fcntl.flock = counted("flock", fcntl.flock)
    return calls


def live_to_call(count, directory, limit, old, new):
    """Do everything that changes a cache directory, and die at a call; gives how many calls there were.

    Args:
        count: of the call.
        directory: the cache.
        limit: its bound.
        old: entries of shards that are there in other versions.
        new: entries of shards that are not there.
    """
    hurry()
    calls = die_at_call(count)
    store = AutoProvider(cache_dir=directory, cache_size=limit)
    plan = usage_hints.PlanFile(directory)
    later = {
        os.path.basename(store.cache.placement.local_path(url)): time.time() + 60
        for url in (old[0]["url"], new[0]["url"])
    }
    plan.write(later)
    store.open(shard_of(old[0])).close()  # an update: the old version is in the way
    store.cache.download_ahead(store.cache.locate(shard_of(new[0])), after=time.time(), is_cancelled=lambda: False)
    plan.write({name: when + 1 for name, when in later.items()})
    store.open(shard_of({**new[0], "filesize": None})).close()
    with open(table_of(store.cache.placement.local_path(new[0]["url"])), "r+b") as file:
        file.write(b"damaged")
    store.open(shard_of(new[0])).close()  # proved by its md5
    AutoProvider(cache_dir=directory, cache_size=limit, keep=True).open(shard_of(new[1])).close()
    plan.close()
    os.unlink(keep_mark_of(store.cache.placement.local_path(new[1]["url"])))
    store.open(shard_of(old[1])).close()
    for entry in (*old, *new):  # some of them were evicted
        store.cache.remembered_table(store.cache.locate(shard_of(entry)))
    space.evict_from([space.Space(directory, limit=None)], limit=limit // 2, maximum=100)
    return len(calls)


def shard_of(entry):
    """A shard, from the entry of an index."""
    return Shard(**entry)


# --- jobs


@dataclass(kw_only=True)
class Job:
    """A training: which shards (as an index lists them), in which cache, and how."""

    shards: list
    directory: str
    limit: int | None = None
    seed: int = 0
    rank: int = 0
    world: int = 1
    epochs: int = 1
    workers: int = 1
    method: str = "fork"
    versions: tuple = (1,)
    read_seconds: float = 60.0
    is_persistent: bool = False
    no_locks: int = 0
    early_reads: bool = True

    def dataset(self, *, is_hurried=True):
        """Its dataset; in a process of its own, which it makes hurry."""
        if is_hurried:
            hurry(read_seconds=self.read_seconds)
        if self.no_locks:
            lose_locks(self.no_locks)
        return ShardListDataset(
            self.shards,
            cache_dir=self.directory,
            cache_size=self.limit,
            transformations=[],
            dataset_name="chaos",
            early_reads=self.early_reads,
        )

    def sampler(self, dataset):
        """Its sampler, which fetches ahead."""
        return DistributedChunkedSampler(
            dataset, num_replicas=self.world, rank=self.rank, chunksize=ROWS, window=2, seed=self.seed
        )

    def loader(self, dataset, sampler):
        """A loader whose workers check what they read."""
        return DataLoader(
            dataset,
            sampler=sampler,
            batch_size=4,
            num_workers=self.workers,
            collate_fn=functools.partial(check_batch, self.versions),
            multiprocessing_context=self.method if self.workers else None,
            persistent_workers=self.is_persistent and self.workers > 0,
            timeout=PATIENCE_SECONDS if self.workers else 0,
        )


def check_batch(versions, samples):
    """Check samples; gives their indices."""
    for sample in samples:
        check(sample, versions)
    return [sample["__index__"] for sample in samples]


def train(job):
    """Train; gives the indices of all samples that were seen, epoch by epoch. Nothing of it is left in the process."""
    resource_tracker.ensure_running()  # it is started with the first spawned worker, and stays
    before = open_files()
    seen = []
    dataset = job.dataset()
    sampler = job.sampler(dataset)
    loader = job.loader(dataset, sampler)
    for epoch in range(job.epochs):
        sampler.set_epoch(epoch)
        seen.append([index for batch in loader for index in batch])
    dataset.close()
    del loader, sampler, dataset
    check_nothing_left(before)
    return seen


def train_forever(job, begun=lambda: None):
    """Train until killed; ``begun`` is called after the first batch."""
    dataset = job.dataset()
    loader = job.loader(dataset, job.sampler(dataset))
    while True:
        for _ in loader:
            begun()


def read_at_random(job, seconds):
    """Read samples in a random order for so long, and until one was right; a few of them are fetched ahead.

    Returns:
        (how many were right, type of error -> words).
    """
    before = open_files()
    choose = random.Random(job.seed)
    dataset = job.dataset()
    end = time.monotonic() + seconds
    right, errors = 0, {}
    while time.monotonic() < end or not right:
        with dataset.prefetch(choose.choices(range(len(dataset)), k=choose.randrange(1, 20))) as indices:
            for index in indices:
                try:
                    check(dataset[index], job.versions)
                    right += 1
                except WidsError as error:
                    errors.setdefault(type(error).__name__, str(error))
                if time.monotonic() > end and right:
                    break
        if choose.random() < 0.3:
            dataset.close()
    dataset.close()
    del dataset, indices
    check_nothing_left(before)
    return right, errors


def read_all(job, *, is_hurried=True):
    """Read the first sample of each shard; gives for each the name of the error, or None if it was right."""
    dataset = job.dataset(is_hurried=is_hurried)
    found = []
    for index in range(0, len(dataset), ROWS):
        try:
            check(dataset[index], job.versions)
            found.append(None)
        except WidsError as error:
            found.append(type(error).__name__)
    dataset.close()
    return found


# --- what is left


def check_nothing_left(before):
    """See that no thread, process or open file of ours is left in this process; ``before``: what was open before."""
    left = []

    def is_clean():
        gc.collect()
        threads = [thread.name for thread in threads_named("wids-")]
        left[:] = [*threads, *sorted(set(open_files()) - set(before)), *multiprocessing.active_children()]
        return not left

    try:
        wait_until(is_clean)
    except AssertionError as error:
        raise AssertionError(f"left in the process: {left}") from error


def open_files():
    """The files that this process has open, not its sockets and what an event loop has."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            path = os.readlink(f"/proc/self/fd/{name}")
            if not path.startswith(("socket:", "anon_inode:")):
                found.append(f"{name} {path}")
    return found


class Watch:
    """What a directory held at most: ``used`` bytes of shards, tables and part files, ``planned`` of plans."""

    used = planned = looks = 0


@contextlib.contextmanager
def watched(directory):
    """Look at a directory again and again, in a process; gives a `Watch`, filled in at the end."""
    with child(_watch, directory) as (_, connection):
        receive(connection)
        found = Watch()
        yield found
        connection.send("stop")
        found.used, found.planned, found.looks = receive(connection)


def _watch(connection, directory):
    used = planned = looks = 0
    connection.send("watching")
    while not connection.poll(0.001):
        now, now_planned = used_bytes(directory)
        used, planned, looks = max(used, now), max(planned, now_planned), looks + 1
    connection.send((used, planned, looks))
    connection.close()


# --- file systems

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_REC, _MS_PRIVATE, _MS_BIND, _MS_REMOUNT, _MS_RDONLY = 0x4000, 0x40000, 0x1000, 0x20, 0x1


def why_no_mounts():
    """Why a process may not mount a file system here; "" if it may."""
    try:
        enter_own_mounts()
    except (AttributeError, OSError, RuntimeError) as error:  # not Linux, or not without more rights
        return str(error)
    return ""


def enter_own_mounts():
    """Give this process, which has one thread, mounts of its own; they go when it and its children have ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWNS):
        if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS):
            raise RuntimeError(f"this test mounts a file system, which is not allowed here ({_last_error()})")
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)


def mount_memory(path, options):
    """Mount a tmpfs, for this process and its children."""
    os.makedirs(path, exist_ok=True)
    _mount("wids-chaos", path, "tmpfs", 0, options)


def mount_again(path, other):
    """Give a directory another name."""
    os.makedirs(other, exist_ok=True)
    _mount(path, other, "", _MS_BIND)


def set_read_only(path, *, is_read_only):
    """Make a mounted file system read-only, or writable again."""
    _mount("none", path, "", _MS_REMOUNT | (_MS_RDONLY if is_read_only else 0))


def _mount(source, path, kind, flags, options=""):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), path.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()):
        raise RuntimeError(f"{path} cannot be mounted ({_last_error()})")


def _last_error():
    return os.strerror(ctypes.get_errno())

"""A world in which the real code of the cache runs, in one thread, by a schedule that follows from one integer.

Some simulated processes read samples through one small cache directory, at random or with downloads ahead; a cleaner
bounds it, an owner replaces shards at the server, processes are killed at any call or stopped for seconds, the power is
cut, and calls and requests fail. What was abandoned is freed in the middle of any call. The model of the cache,
`tests.model.cache`, follows each change of a file, each read and each download, and ends the schedule at what it
forbids. Beside that, each sample is that of one version of its shard; everybody ends, with samples or a typed error,
and without an error where nothing went wrong; the user's own files stay; and a new process then finds the shards, and
leaves nothing behind.

    python -m tests.support.simulated_world --seeds 0..100000      in as many processes as there are processors
    python -m tests.support.simulated_world --seeds 4711 --trace   one, and each call that was made in it
"""

import argparse
import contextlib
import errno
import functools
import gc
import hashlib
import itertools
import multiprocessing
import os
import random
import sys
import time

from tests.model.cache import Cache, RuleError
from tests.support.cache_shards import md5, pack
from tests.support.simulated_os import Disk, Killed, Machine, Process, SimulationError
from wids.core.files.identity import Identity
from wids.core.tables import table as tables
from wids.core.tables import tar

CACHE = "/data/cache"
# Where local shards are that are copied into the cache.
_SLOW_DISK = "/nas/train"
ROWS = 3
_SECOND = 1_000_000_000
# Modules that a process needs, and all that these import.
MODULES = (
    "wids.core.readers.provider",
    "wids.core.readers.pool",
    "wids.core.cache.cleanup",
    "wids.core.prefetch.prefetcher",
    "wids.core.transport.source",
    "wids.core.prefetch.ahead",
    "wids.core.collection.shard_collection",
    "wids.core.index.shardlist",
)
# Everybody has ended by then, in simulated time.
MOST_SECONDS = 600
# The server is well again after so many calls: those who wait for it cost time, and find nothing.
_TROUBLED_CALLS = 2000
# Files of the user, in the directory of the cache.
FOREIGN = {"notes.txt": b"mine", "own.tar": b"also mine", "b.tar.lock": b"", "x.1-01234567.part": b"mine"}


# Calls that fail now and then, and how.
_FAILING = [
    *((call, errno.EIO) for call in ("pwrite", "pread", "fsync", "unlink", "open", "replace", "ftruncate", "utime")),
    *(("pwrite", errno.ENOSPC), ("ftruncate", errno.ENOSPC), ("open", errno.EMFILE), ("replace", errno.EACCES)),
]


# --- the shards

LETTERS = "abcd"
# Bytes of the members ``.txt`` and ``.bin`` of each sample, by version. The first two make files of one size.
_SIZES = [[(700, 90), (20, 1100), (512, 512)], [(90, 700), (1100, 20), (500, 500)], [(900, 1500), (30, 600), (7, 2000)]]
VERSIONS = range(len(_SIZES))


def _text(letter, version, row, extension, size):
    word = f"{letter}{version}{row}{extension}|".encode()
    return (word * (size // len(word) + 1))[:size]


@functools.cache
def sample_of(letter, version, row):
    """The members of a sample."""
    sizes = _SIZES[version][row]
    return {name: _text(letter, version, row, name, size) for name, size in zip((".txt", ".bin"), sizes, strict=True)}


@functools.cache
def shard_bytes(letter, version):
    """A shard: three samples of two members."""
    members = [
        (f"{letter}{row}{name}", data) for row in range(ROWS) for name, data in sample_of(letter, version, row).items()
    ]
    data = pack(members).rstrip(b"\0")
    return data + bytes(-len(data) % 512 + 1024)


@functools.cache
def table_bytes(letter, version):
    """Its member table, as it lies beside it on a server."""
    data, url = shard_bytes(letter, version), url_of(letter)
    members = tar.scan(lambda offset, count: data[offset : offset + count], len(data), shard=url)
    return tables.build_table(members, identity=Identity(size=len(data), md5=md5(data)), shard=url).to_bytes()


def url_of(letter):
    """Where it is."""
    return f"https://store.example/train/{letter}.tar"


LARGEST = max(len(shard_bytes(letter, version)) for letter in LETTERS for version in VERSIONS)
# A shard with the space that is kept free for its table.
NEED = LARGEST + 1024 + LARGEST // 8


# --- the server

_STEP = 2500


class Server:
    """The objects, their versions, and how well it answers.

    Args:
        machine: whose clock its answers take.
        cache: the model of the cache, which knows of downloads under way.
        has_tables: member tables lie beside the shards.
        answers_have_stat: each answer says which version it is of, as HTTP's; else that is asked for by itself.
        latency: seconds to the first byte.
        fault_rate: at how many of all requests something goes wrong.

    Attributes:
        current: letter -> version that is there. seen: letter -> those that ever were.
        requests: how many came. asked: the letters that they were for.
        may_meet: two may download a shard at once.
        is_well: nothing goes wrong.
    """

    def __init__(self, machine, cache, *, has_tables, answers_have_stat, latency, fault_rate):
        self.machine, self._cache = machine, cache
        self.has_tables, self.answers_have_stat = has_tables, answers_have_stat
        self._latency, self.fault_rate = latency, fault_rate
        self.current = dict.fromkeys(LETTERS, 0)
        self.seen = {letter: {0} for letter in LETTERS}
        self.requests, self.asked, self.is_well, self.may_meet = 0, [], False, False

    def replace(self, letter, version):
        """Another version of a shard is there."""
        self.machine.note("REPLACED", f"{letter} by version {version}")
        self.current[letter] = version
        self.seen[letter].add(version)

    def object(self, url):
        """(bytes, entity tag) of what is there now.

        Raises:
            FileNotFoundError: nothing is.
        """
        letter, is_table = url.rpartition("/")[2][0], url.endswith(tables.SUFFIX)
        version = self.current[letter]
        if is_table and not self.has_tables:
            raise FileNotFoundError(errno.ENOENT, "Not Found", url)
        return (table_bytes if is_table else shard_bytes)(letter, version), f'"{letter}{version}{is_table:d}"'

    def request(self, process, url, go_on):
        """A request is made: the first byte comes, or an error."""
        process.step("request", url)
        self.requests += 1
        self.asked.append(url.rpartition("/")[2][0])
        self.wait(self._latency * (0.5 + self.machine.random.random()), go_on)
        fault = self._draw_fault()
        if fault == "reset":
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        if fault == "busy":
            error = OSError("Service Unavailable")
            error.status = 503
            raise error
        if fault == "late":
            self.wait(1.0, go_on)
        return fault

    def wait(self, seconds, go_on):
        """Nothing comes for so long; as in all clients, ``go_on()`` is called meanwhile."""
        while seconds > 0:
            go_on()
            self.machine.sleep(min(seconds, 0.1))
            seconds -= 0.1

    def begin_download(self, url, source):
        """A process downloads a whole shard; no other one may do so."""
        if not self.may_meet:
            with as_model(self.machine):
                self._cache.begin(url, source)

    def end_download(self, url, source):
        """It has ended, if it was one."""
        self._cache.end(url, source)

    def _draw_fault(self):
        choose = self.machine.random
        if self.is_well or choose.random() >= self.fault_rate:
            return ""
        return choose.choice(("reset", "busy", "late", "cut", "slow"))


class SimulatedSource:
    """One object of the server, for a process; see `wids.core.transport.source.ByteSource`."""

    is_blocking, fills_file, precedence, packed_bytes = True, False, None, None

    def __init__(self, process, server, url, path, go_on):
        self._process, self._server, self.url, self._path, self.go_on = process, server, url, path, go_on
        self.answers_have_stat = server.answers_have_stat
        self._kept = None

    def __str__(self):
        return self._process.name

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _ask(self):
        """The object as it is while an answer begins, and what goes wrong with the rest of it."""
        fault = self._server.request(self._process, self.url, self.go_on)
        return *self._server.object(self.url), fault

    def _stat_of(self, data, tag):
        return self._process["wids.core.transport.source"].Stat(len(data), tag, has_ranges=True, is_strong=True)

    def stat(self, first=None, *, is_fresh=True):
        """See `ByteSource.stat`."""
        asked = self._ask()
        self._kept = asked if self.answers_have_stat else None
        return self._stat_of(*asked[:2])

    async def read(self, span, sink):
        """See `ByteSource.read`."""
        data, tag, fault = self._ask()
        if self.answers_have_stat:
            sink.learn(self._stat_of(data, tag))
        part = data[span.lo : span.hi]
        sink.write(span.lo, part[: len(part) // 2] if fault == "cut" else part)

    def stream(self, end=None, *, in_one_request=False):
        """See `ByteSource.stream`."""
        server = self._server
        data, _, fault = self._kept or self._ask()
        self._kept = None
        if self._path is not None:
            server.begin_download(self.url, self)
        end = len(data) if end is None else min(end, len(data))
        for at in range(0, end, _STEP):
            yield data[at : min(at + _STEP, end)]
            if fault == "cut" and at + _STEP > end // 2:
                raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
            server.wait(0.5 if fault == "slow" else 0.002, self.go_on)
            self._process.step("receive", self.url)
            if not self.answers_have_stat:  # a client that asks for block after block
                data, _ = server.object(self.url)

    def range_bytes(self, size):
        """See `ByteSource.range_bytes`."""
        return _STEP

    def close(self):
        """See `ByteSource.close`."""
        self._server.end_download(self.url, self)


# --- the world


@contextlib.contextmanager
def as_model(machine):
    """End the schedule where something happens in the block that the model forbids."""
    try:
        yield
    except RuleError as error:
        machine.fail(str(error))


class Dataset:
    """What a program has of a dataset, but for torch: the shards of the index as it is now, and the open ones.

    Args:
        world: which index.
        process: where it is read.
        capacity: shards that are open at a time.

    Attributes:
        pool: the open ones.
    """

    def __init__(self, world, process, capacity):
        self._process, module = process, process["wids.core.collection.shard_collection"]
        _, shards, _ = module.load_shards([world.row(letter) for letter in world.shards])
        self._collection = module.ShardCollection(shards, world.provider(process), capacity=capacity)
        self.pool = self._collection.pool

    def __len__(self):
        return len(self._collection)

    def __wids__(self):
        return self._process["wids.core.order.layout"].SamplerInterface(
            shard_ends=self._collection.cum_lengths,
            prefetch_source=lambda: self._process["wids.core.prefetch.ahead"].source_of(self._collection, None),
        )


@functools.cache
def process_number(number):
    """A process that worlds use in turn: to import the library takes longer than most schedules."""
    return Process(MODULES)


class World:
    """One schedule.

    Args:
        seed: what is drawn follows from it.
        fault: called with each process, in which it may put a fault (`Process.patch`).
        trace: a list that gets each call; None: no.

    Attributes:
        is_copying: the shards are local files, copied into the cache.
        is_calm: nothing goes wrong, so that each read must give its sample.
        machine, disk, server: see there. limit: of the cache directory, in bytes.
        samples, errors: how many samples were read, and typed errors met.
    """

    def __init__(self, seed, *, fault=lambda process: None, trace=None):
        self.seed, self._fault = seed, fault
        choose = self.choose = random.Random(seed)
        self.machine = Machine(
            choose,
            switch_rate=choose.choice((0.01, 0.03, 0.1, 0.3)),
            jump_rate=choose.choice((0.0, 0.02, 0.2)),
            short_rate=choose.choice((0.0, 0.0, 0.2)),
            trace=trace,
        )
        self.samples = self.errors = 0
        self._abandoned = []  # by which process, and what
        self._numbers = itertools.count()
        # --- what this schedule is about
        self.is_calm = choose.random() < 0.25
        self.shards = LETTERS[: choose.choice((2, 3, 3, 4))]
        self.limit = int(NEED * choose.choice((1.0, 1.0, 1.3, 2.0, 2.5, 3.5)))
        # Programs may have limits of their own; the largest one holds.
        self._other_limit = self.limit if self.is_calm or choose.random() < 0.8 else int(1.5 * self.limit)
        self.is_copying = choose.random() < 0.1
        self._keeps = not self.is_calm and choose.random() < 0.05
        self.index_says = choose.choice(("counts", "sizes", "checksums"))
        self.access = choose.choice(("fetch", "fetch", "fetch", "auto"))
        self.early_reads = choose.random() < 0.6
        self._remembered_share = choose.choice((100, 8, 8))  # a hundredth of these limits has no table
        self.cache = Cache(limit=max(self.limit, self._other_limit))
        self.server = Server(
            self.machine,
            self.cache,
            has_tables=choose.random() < 0.5,
            answers_have_stat=choose.random() < 0.6,
            latency=choose.choice((0.005, 0.02, 0.2)),
            fault_rate=0.0 if self.is_calm else choose.choice((0.0, 0.0, 0.05, 0.2)),
        )
        self.grain = choose.choice((1, 1, 4_000_000))
        is_small = not (self.is_calm or self.is_copying) and choose.random() < 0.3
        self.disk = Disk(24 * 4096 if is_small else 1 << 30, self._note_file, self._stamp)
        self.machine.disk = self.disk
        self.index = dict(self.server.current)
        for letter in LETTERS if self.is_copying else ():
            self.disk.put(f"{_SLOW_DISK}/{letter}.tar", shard_bytes(letter, 0))
        for name, data in FOREIGN.items():
            self.disk.put(f"{CACHE}/{name}", data)
        self.disk.put("/tmp/x", b"")

    # --- what holds at any time

    @staticmethod
    def _counts(directory, name):
        """Whether a file counts against the limit: all but the user's, and what is there at any time."""
        if directory == CACHE:
            return name not in FOREIGN
        if not directory.startswith(CACHE + "/.wids") or directory.endswith("/indexes"):
            return False
        return directory != CACHE + "/.wids" or (name.endswith(".part") and ".tar." in name)

    def _note_file(self, directory, name, size):
        """Have the model follow a change of a file; see `Disk`."""
        if not self._counts(directory, name) and (directory != CACHE or size is not None):
            return  # what is the user's may be there; the model sees it only if it is deleted
        with as_model(self.machine):
            if directory != CACHE:
                self.cache.resize(f"{directory}/{name}", size or 0)
            elif size is None:
                if name in self.cache.shards:
                    marks = self.disk.directories[CACHE + "/.wids/tables"].entries
                    self.cache.shards[name].is_kept = f"{name}.keep" in marks
                self.cache.evict(name)
            else:
                self.cache.publish(name, size)

    def _stamp(self):
        return self.machine.now // self.grain * self.grain

    def _check_sample(self, letter, row, sample, shard, *, is_proven=True):
        """See that a sample is that of one version of its shard; ``is_proven``: of that which the index means."""
        found = {name: data.read() for name, data in sample.items() if not name.startswith("__")}
        versions = [version for version in VERSIONS if found == sample_of(letter, version, row)]
        said = sample["__key__"]
        if not versions or said != f"{letter}{row}":
            self.machine.fail(f"sample {row} of {letter} is {shorten(found)} with the key {said}")
        if (
            is_proven
            and shard.md5sum
            and all(md5(shard_bytes(letter, version)) != shard.md5sum for version in versions)
        ):
            self.machine.fail(f"sample {row} of {letter} is of version {versions}, and the index says another one")
        if not set(versions) & self.server.seen[letter]:
            self.machine.fail(f"sample {row} of {letter} is of a version {versions} that never was there")
        self.samples += 1

    # --- who acts

    def process(self, name):
        """A new process."""
        number = next(self._numbers)
        process = process_number(number)
        process.begin(self.machine, f"{name}{number}", 100 + number)
        process["wids.core.transport.filesystems"].loop = lambda: process
        open_source = functools.partial(self._open_source, process)
        if not self.is_copying:
            process.put_in_place_of(process["wids.core.transport.stores"].open_source, open_source)
        # All that is read is its own server's.
        process.patch("wids.core.transport.plain_http", "open_plain", lambda _: lambda *_, **__: None)
        limits = process["wids.core.cache.limits"]
        limits.LIMITS = type(limits.LIMITS)(wait_seconds=60.0 if self.is_calm else 6.0, stopped_seconds=4.0)
        locks = process["wids.core.files.locks"]
        locks.LIMITS = type(locks.LIMITS)(stopped_seconds=4.0, touch_seconds=0.5, poll_seconds=0.05)
        process.patch("wids.core.cache.leases", "_BUSY_SECONDS", lambda before: 0.02)
        process.patch("wids.core.cache.space", "_REMEMBERED_SHARE", lambda before: self._remembered_share)
        retrying = process["wids.core.transport.retrying"]
        retrying.LIMITS = type(retrying.LIMITS)(first_seconds=2.0, patience_seconds=5.0, wait_max_seconds=1.0)
        retrying.note_answered(["https://store.example"])
        self._fault(process)
        return process

    def url_of(self, letter):
        """Where a shard is."""
        return f"{_SLOW_DISK}/{letter}.tar" if self.is_copying else url_of(letter)

    def replace(self, letter, version):
        """Another version of a shard is there."""
        self.server.replace(letter, version)
        if self.is_copying:  # as writers of shards do it: another file takes the name
            self.disk.put(f"{_SLOW_DISK}/{letter}.new", shard_bytes(letter, version))
            self.disk.replace(f"{_SLOW_DISK}/{letter}.new", f"{_SLOW_DISK}/{letter}.tar")

    def _open_source(self, process, place, *_, go_on=lambda: None, path=None, **__):
        return SimulatedSource(process, self.server, str(place), path, go_on)

    def shard(self, process, letter):
        """A shard as the index describes it now."""
        return process["wids.core.index.shardlist"].Shard(**self.row(letter))

    def row(self, letter):
        """The row of a shard in the index as it is now."""
        data, row = shard_bytes(letter, self.index[letter]), {"url": self.url_of(letter), "nsamples": ROWS}
        if self.index_says != "counts":
            row["filesize"] = len(data)
        if self.index_says == "checksums":
            row["md5sum"] = md5(data)
        return row

    def provider(self, process, **options):
        """What opens shards in a process."""
        options = {"access": self.access, "early_reads": self.early_reads, "keep": self._keeps, **options}
        options["cache_local"] = self.is_copying
        limit = self.limit if process.pid % 2 else self._other_limit
        return process["wids.core.readers.provider"].AutoProvider(cache_dir=CACHE, cache_size=limit, **options)

    def job(self):
        """A process that reads, in one thread or two, or in the order of a sampler, with downloads ahead."""
        process, choose = self.process("job"), self.choose
        seed, nthreads, is_ahead = choose.random(), choose.choice((1, 1, 2)), choose.random() < 0.25
        capacity, count = choose.choice((1, 2, 10)), choose.choice((1, 2, 2, 4))
        begins, ends_well = choose.choice((0.05, 0.6)) * choose.random(), choose.random() < 0.5

        def act():
            self.machine.sleep(begins)
            readers = []
            if is_ahead:
                self.read_ahead(process, Dataset(self, process, capacity), random.Random(seed))
            else:
                dataset = Dataset(self, process, capacity)
                for number in range(nthreads):
                    own = random.Random(f"{seed} {number}")
                    each = functools.partial(self.read_at_random, process, dataset, own, count)
                    readers.append(process.spawn(each, f"reader{number}"))
            for each in readers:
                self.machine.wait_for(each)
            if ends_well:  # as a program does that ends by itself
                process["wids.core.files.background"]._end_all()

        return process, process.spawn(act)

    def read_at_random(self, process, dataset, choose, count):
        """Read samples in an order of one's own; after errors, perhaps with the index as it is then."""
        for _ in range(count):
            letter, row = choose.choice(self.shards + self.shards[:2]), choose.randrange(ROWS)
            rows, pause = [row, (row + 1) % ROWS][: choose.choice((1, 2))], choose.choice((0.0, 0.001, 0.05))
            for _ in range(3):
                if self.has_read(process, dataset, letter, rows):
                    break
                if choose.random() < 0.5:
                    dataset.pool.clear()
                    dataset = Dataset(self, process, dataset.pool.lru.capacity)
            self.machine.sleep(pause)
        dataset.pool.clear()

    def read_ahead(self, process, dataset, choose):
        """Read all samples once, shard by shard, while the next shards are downloaded; perhaps not to the end."""
        order = [
            number * ROWS + row
            for number in choose.sample(range(len(self.shards)), len(self.shards))
            for row in choose.sample(range(ROWS), ROWS)
        ]
        most, pause = choose.choice((2, 5, 100)), choose.choice((0.0, 0.002, 0.02))
        indices = process["wids.core.prefetch.ahead"].Ahead(dataset, order)
        for index in itertools.islice(indices, most):
            for _ in range(3):
                if self.has_read(process, dataset, self.shards[index // ROWS], [index % ROWS]):
                    break
            self.machine.sleep(pause)
        if choose.random() < 0.5:
            indices.close()
            dataset.pool.clear()
        else:
            self.abandon(process, indices, dataset)
            del indices, dataset
            self.machine.sleep(0.2)

    def abandon(self, process, *things):
        """Have things freed as by the collector, in a thread of the process: at some call, or in its next wait."""
        self._abandoned.append((process, things))
        collect = functools.partial(self._collect, process)
        self.machine.faults[self.choose.choice(("wait", "get", "join"))] = collect
        self.machine.plan(self.machine.calls + 1 + int(self.choose.expovariate(1 / 20)), collect)

    def _collect(self, process):
        current = self.machine.current.process
        if current is not process and process.is_alive:  # the collector runs in each process by itself
            self.machine.plan(self.machine.calls + 1, functools.partial(self._collect, process))
            return
        self.machine.note("COLLECTED", process.name)
        self._abandoned = [each for each in self._abandoned if each[0] is not process]

    def has_read(self, process, dataset, letter, rows):
        """Read some samples of a shard, which stays open meanwhile; whether there was no error."""
        errors = process["wids.errors"]
        try:
            self._read(process, dataset, letter, rows)
        except errors.WidsError as error:
            words = f"{type(error).__name__}: {error}"
            self.machine.note("error", words)
            self.errors += 1
            if self.is_calm:
                self.machine.fail(f"nothing went wrong, and yet: {words}")
        else:
            return True
        self.machine.sleep(0.05)
        return False

    def _read(self, process, dataset, letter, rows):
        found = dataset.pool.get_shard(self.url_of(letter))
        with found.pinned() as reader, contextlib.ExitStack() as leases:
            for row in rows:
                try:
                    sample, is_proven = reader.read(row), not reader.is_remote
                except process["wids.errors"].ClosedReaderError:
                    sample, is_proven = found.read(row), False
                file = process.open[reader.fileno()].file if is_proven else None
                # Not where another shard has taken its name. Who was stopped between publishing a shard and its lease
                # lost the lock, and reads what was evicted.
                if is_proven and (file.place or file.is_deleted) and not self.server.may_meet:
                    with as_model(self.machine):
                        leases.callback(self.cache.release, self.cache.lease(file.place[1] if file.place else letter))
                self._check_sample(letter, row, sample, found.shard, is_proven=is_proven)
                process.step("work")

    def cleaner(self):
        """A process that bounds the directory, to less than its limit, now and again."""
        process = self.process("cleaner")
        most, every = self.choose.randrange(self.limit), 0.02 + self.choose.random() * 0.3

        def act():
            for _ in range(3):
                process.machine.sleep(every)
                with contextlib.suppress(process["wids.errors"].CacheError):
                    process["wids.core.cache.cleanup"].clean(CACHE, most, 10)

        return process, process.spawn(act)

    def owner(self):
        """Who replaces shards at the server, and writes the index anew, before or after."""
        choose, server = self.choose, self.server
        plan = [
            (choose.randrange(12), choose.random()) for _ in range(0 if self.is_calm else choose.choice((0, 1, 2, 3)))
        ]
        delay, most = choose.choice((0.0, 0.0, 0.1)), choose.choice((2, 2, 3))

        def act():
            for count, at in sorted(plan):
                for _ in range(50):  # after so many requests
                    if server.requests >= count:
                        break
                    self.machine.sleep(0.01)
                letter = server.asked[int(at * len(server.asked))] if server.asked else "a"
                version = server.current[letter] + 1
                if server.answers_have_stat:  # else who asks before and after does not see what came back between
                    version %= most
                if version in VERSIONS:
                    self.replace(letter, version)
                self.machine.sleep(delay)
                self.index[letter] = server.current[letter]

        return self.machine.spawn(None, "owner", act)

    def plan_trouble(self, processes):
        """Draw who is killed when, and which calls fail."""
        choose, machine = self.choose, self.machine

        def sometime(event, mean=500):
            machine.plan(1 + int(choose.expovariate(1 / mean)), event)

        def at_next(call, event):
            sometime(functools.partial(machine.faults.__setitem__, call, event))

        for process in choose.sample(processes, choose.choice((0, 0, 1, 1, 2)) % (len(processes) + 1)):
            if choose.random() < 0.5:
                sometime(functools.partial(machine.doom, process))
            else:  # whoever makes such a call next
                at_next(
                    choose.choice(("replace", "replace", "replace", "unlink", "pwrite", "flock")), machine.doom_current
                )
        for _ in range(choose.choice((0, 0, 0, 1, 3))):
            call, number = choose.choice(_FAILING)
            at_next(call, functools.partial(_fail, number))
        if choose.random() < 0.15:
            sometime(machine.cut_power, 800)
        if choose.random() < 0.05:
            self.server.may_meet = True  # a lock is taken from who does not run
            self.cache.limit = None
            process, begin = choose.choice(processes), choose.random()

            def act():
                machine.sleep(begin)
                machine.stop(process)
                machine.sleep(1.0 + 8.0 * choose.random())
                machine.go_on(process)

            machine.spawn(None, "stopper", act)

    # --- from beginning to end

    def run(self):
        """Play the schedule.

        Raises:
            SimulationError: something that must hold did not.
        """
        try:
            jobs = [self.job() for _ in range(self.choose.choice((1, 2, 2, 2, 2, 3)))]
            jobs += [self.cleaner() for _ in range(self.choose.choice((0, 0, 1)))]
            owner = self.owner()
            if not self.is_calm:
                self.plan_trouble([process for process, _ in jobs])
            self.machine.plan(_TROUBLED_CALLS, functools.partial(setattr, self.server, "is_well", True))
            self.machine.run([task for _, task in jobs], MOST_SECONDS)
            self.machine.faults.clear()
            self.machine.events.clear()
            self.machine.run([owner], MOST_SECONDS)
            for process, _ in jobs:
                if process.is_alive:
                    process.end()
            self.server.is_well = True
            self._check_next_run()
        finally:
            for process in self.machine.processes:
                process.is_alive = False
            self.machine.end_tasks(None)

    def _check_next_run(self):
        """A new process finds all shards; after it, nothing is left behind, and the user's files are there."""
        process = self.process("next")
        self.index = dict(self.server.current)

        def act():
            provider = self.provider(process, access="fetch", early_reads=False)
            names = self.disk.directories[CACHE].entries
            cached = [letter for letter in self.shards if any(name.endswith(f"-{letter}.tar") for name in names)]
            found = "" if self._keeps else self.choose.choice(cached or self.shards)  # what is kept may leave no space
            for letter in found * 2:  # the second time, it is there
                shard = self.shard(process, letter)
                with contextlib.closing(provider.open(shard)) as reader:
                    for row in range(ROWS):
                        self._check_sample(letter, row, reader.read(row), shard)
            process["wids.core.cache.space"].Space(CACHE, limit=None).sweep()

        self.machine.run([process.spawn(act)], MOST_SECONDS)
        process.end()
        for name, data in FOREIGN.items():
            file = self.disk.directories[CACHE].entries.get(name)
            if file is None or file.data != data:
                raise SimulationError(f"the user's file {name} is gone, or another one")
        left = [path for path, _ in self.disk.files(CACHE + "/.wids") if path.endswith((".part", ".plan"))]
        if left:
            raise SimulationError(f"left behind: {left}")

    def digest(self):
        """What came of it: equal for equal seeds."""
        facts = (self.machine.calls, self.machine.now, self.samples, self.errors, self.server.requests)
        files = sorted((path, bytes(file.data)) for path, file in self.disk.files(""))
        return hashlib.sha256(repr((facts, files)).encode()).hexdigest()[:16]


def shorten(sample):
    """The members of a sample, for a message."""
    return {name: data[:12] for name, data in sample.items()}


def _fail(number):
    raise OSError(number, os.strerror(number))


# --- many schedules

_PART = 500  # that a process plays at a time


def play(seed, **options):
    """Play a schedule; gives the world. For options see `World`.

    Raises:
        SimulationError: something that must hold did not; its message has the seed.
    """
    is_collecting = gc.isenabled()
    gc.disable()  # nobody knows when it comes
    before = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: None if unraisable.exc_type is Killed else before(unraisable)
    try:
        world = World(seed, **options)
        try:
            world.run()
        except SimulationError as error:
            raise SimulationError(f"schedule {seed}: {error}") from error.__cause__
        return world
    finally:
        sys.unraisablehook = before
        if is_collecting:
            gc.enable()


def play_all(seeds):
    """Play schedules; gives (how many, calls, samples, typed errors, failures by seed)."""
    calls = samples = errors = 0
    failures = {}
    for count, seed in enumerate(seeds):
        try:
            world = play(seed)
        except SimulationError as error:
            failures[seed] = str(error)
        else:
            calls, samples, errors = calls + world.machine.calls, samples + world.samples, errors + world.errors
        if count % 200 == 0:
            gc.collect()
    return len(seeds), calls, samples, errors, failures


def main():
    """The command."""
    parser = argparse.ArgumentParser(description="Play schedules of the simulated world.")
    parser.add_argument("--seeds", required=True, help="one, or A..B: from A on, and below B")
    parser.add_argument("--trace", action="store_true", help="print each call that is made")
    parser.add_argument("--within", type=float, default=float("inf"), metavar="SECONDS", help="then end, with a part")
    given = parser.parse_args()
    first, _, last = given.seeds.partition("..")
    seeds = range(int(first), int(last) if last else int(first) + 1)
    if given.trace:
        trace = []
        try:
            world = play(seeds[0], trace=trace)
        finally:
            print("\n".join(trace))
        print(world.digest())
        return 0
    begin = time.perf_counter()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = [seeds[at : at + _PART] for at in range(0, len(seeds), _PART)]
    totals, failures, done = [0, 0, 0], {}, 0
    with multiprocessing.get_context("spawn").Pool(min(cores, len(parts))) as pool:
        for part, *counts, failed in pool.imap_unordered(play_all, parts):
            totals = [total + count for total, count in zip(totals, counts, strict=True)]
            for words in failed.values():
                print(words, flush=True)
            failures.update(failed)
            done += part
            if done % (20 * _PART) == 0:
                print(f"{done} of {len(seeds)} schedules", flush=True)
            if time.perf_counter() - begin > given.within:
                break
    seconds = time.perf_counter() - begin
    print(
        f"{done} schedules of {len(seeds)}: {totals[0]} calls, {totals[1]} samples, {totals[2]} typed errors, "
        f"{len(failures)} failures, {seconds:.0f} s, {1000 * seconds / done:.2f} ms each"
    )
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())

"""Samples that cannot be decoded, read or transformed, and those that take their place; damage at random."""

import asyncio
import concurrent.futures
import errno
import functools
import json
import logging
import multiprocessing
import os
import pickle
import random
import struct
import zlib

import pytest
from torch.utils.data import ConcatDataset, DataLoader, Subset

import wids
from tests.support.bad_samples import COUNTS, bad_ones, halved, opened, picture, write_damaged
from tests.support.cli import run
from tests.support.servers import Server, instead, whole
from tests.support.shards import serve, write_index, write_json, write_shards, write_tar
from wids.core.collection.substitutes import MAX_ATTEMPTS, pick
from wids.core.files import system
from wids.errors import ColumnsError, FetchError, ShardError, ShardReadError, TooManyErrorsError, TruncatedShardError
from wids.events import logger

pytestmark = pytest.mark.usefixtures("own_cache")

LENGTHS = (40, 1, 60, 100)
BAD = frozenset({3, 40, 41, 42, 150, 199})


def write(directory, bad=BAD, counts=LENGTHS):
    """An index of samples with a number in JSON; those of ``bad`` are no JSON."""
    shards, first = [], 0
    for k, count in enumerate(counts):
        members = [(f"{i:04d}.json", b"{" if i in bad else b"%d" % i) for i in range(first, first + count)]
        write_tar(directory / f"s{k}.tar", members)
        shards.append({"url": f"s{k}.tar", "nsamples": count})
        first += count
    return write_json(directory / "index.json", {"wids_version": 1, "shardlist": shards})


def span_of(index):
    """The indices of a sample's shard."""
    lo = 0
    for count in LENGTHS:
        if index < lo + count:
            return lo, lo + count
        lo += count
    raise AssertionError


def expected(index):
    """The number that is read at an index: its own, or that of the first good sample that takes its place."""
    lo, hi = span_of(index)
    found, attempt = index, 0
    while found in BAD:
        found = pick(index, attempt, lo, hi)
        attempt += 1
    return found


@pytest.mark.parametrize("n", [1, 2, 3, 17])
def test_who_takes_a_place(n):
    """Others of the same shard, each once, never the sample itself; always the same ones."""
    for index in range(5, 5 + n):
        found = [pick(index, attempt, 5, 5 + n) for attempt in range(20)]
        real = [each for each in found if each is not None]
        assert len(real) == len(set(real)) == min(n - 1, 16)
        assert set(real) <= set(range(5, 5 + n)) - {index}
        assert found[len(real) :] == [None] * (20 - len(real))
    assert [pick(7, k, 0, 100) for k in range(3)] == [pick(7, k, 0, 100) for k in range(3)]


def test_samples_are_replaced(tmp_path, events):
    """By index, in batches and in loops; each says for whom it stands; each failure is told and logged."""
    log = tmp_path / "bad.jsonl"
    index = write(tmp_path, BAD - {40})
    dataset = opened(index, error_log=log, hooks=[events])
    for samples in (
        [dataset[i] for i in range(len(dataset))],
        dataset.__getitems__(range(len(dataset))),
        list(dataset),
    ):
        for i, sample in enumerate(samples):
            stands_in = i in BAD and i != 40
            assert sample["__substitute_for__"] == (i if stands_in else -1)
            assert sample[".json"] == sample["__index__"] == (expected(i) if stands_in else i)
    told = [json.loads(line) for line in log.read_text().splitlines()]
    assert {each["index"] for each in told} >= BAD - {40}
    assert told[0] == {
        "index": 3,
        "shard": str(tmp_path / "s0.tar"),
        "row": 3,
        "key": "0003",
        "field": ".json",
        "error": told[0]["error"],
    }
    assert dataset.stats().substitutions == len(told) == events.names().count("SampleSubstituted")


def test_the_only_sample_of_a_shard(tmp_path):
    """There is nothing to take its place, which the error says, and why it failed."""
    dataset = opened(write(tmp_path))
    with pytest.raises(TooManyErrorsError, match=r"sample 40 failed, and its shard has no other one: .*0040"):
        dataset[40]


def test_transformations_that_fail(tmp_path):
    """Their errors count as the sample's; those of servers, of the cache and of memory do not."""
    index = write(tmp_path, bad=())
    dataset = opened(index).add_transform(fail_at_7)
    assert [sample["__substitute_for__"] for sample in dataset][5:9] == [-1, -1, 7, -1]
    for error in (FetchError("gone"), MemoryError(), TruncatedShardError("short")):

        def fail(_, error=error):
            raise error

        with pytest.raises(type(error)):
            opened(index).add_transform(fail)[0]
    with pytest.raises(KeyboardInterrupt):
        opened(index).add_transform(interrupt)[0]


def fail_at_7(sample):
    """Fail at one sample."""
    if sample["__index__"] == 7:
        raise KeyError("x")
    return sample


def interrupt(_):
    """As Ctrl-C does."""
    raise KeyboardInterrupt


def test_bytes_that_the_disk_does_not_give(tmp_path, monkeypatch):
    """A block that cannot be read is a sample's failure; so it is in a batch."""
    dataset = opened(write(tmp_path, bad=()), transformations=[])
    strict = wids.ShardListDataset(tmp_path / "index.json", transformations=[])
    first = sum(dataset.lengths[:3])
    offset, _ = dataset.get_shard(first)[0].table.offsets[7], strict.get_shard(first)
    real = system.pread

    def pread(fd, size, at):
        if at <= offset < at + size and size < 1000:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if size >= 1000:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, size, at)

    monkeypatch.setattr(system, "pread", pread)
    bad = 101 + 7
    assert dataset[bad]["__substitute_for__"] == bad
    found = dataset.__getitems__([bad - 1, bad, bad + 1])
    assert [each["__substitute_for__"] for each in found] == [-1, bad, -1]
    with pytest.raises(ShardReadError):
        strict[bad]


def test_a_shard_that_is_missing(tmp_path):
    """Is an error: no sample takes the place of a whole shard's."""
    dataset = opened(write(tmp_path))
    os.unlink(tmp_path / "s3.tar")
    with pytest.raises(FetchError):
        dataset[150]


def test_too_many(tmp_path):
    """Once ten have failed, a share beyond max_errors is an error that names the log."""
    index = write(tmp_path, bad=range(0, 200, 4), counts=(201,))
    log = tmp_path / "bad.jsonl"
    dataset = wids.ShardListDataset(index, on_error="substitute", max_errors=0.1, error_log=log)
    with pytest.raises(TooManyErrorsError, match=r"1\d of [2-4]\d samples failed.*bad.jsonl"):
        list(dataset)
    assert len(log.read_text().splitlines()) >= 10
    patient = wids.ShardListDataset(index, on_error="substitute", max_errors=0.9)
    assert len(list(patient)) == 201
    assert pickle.loads(pickle.dumps(patient))[0]["__substitute_for__"] == 0


def test_too_many_says_what_to_do(tmp_path):
    """It names the option, and the share that failed."""
    dataset = wids.ShardListDataset(write(tmp_path, bad=range(0, 40, 2), counts=(40,)), on_error="substitute")
    words = r"samples failed.*max_errors=0\.001\. If so many may fail.*larger max_errors= \(of these, 0\.\d+ failed\)"
    with pytest.raises(TooManyErrorsError, match=words):
        list(dataset)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_first_failure_is_told_once_a_job(tmp_path, method):
    """Not by each worker of each iteration: they tell it to a file here, for their logs are their own."""
    dataset = opened(write(tmp_path, bad={3, 42, 150}))
    told = tmp_path / "told"
    for _ in range(2):
        loader = DataLoader(
            dataset,
            num_workers=1,
            collate_fn=list,
            multiprocessing_context=method,
            worker_init_fn=functools.partial(log_to, str(told)),
        )
        assert len(list(loader)) == sum(LENGTHS)
    assert dataset.stats().substitutions >= 6
    assert told.read_text().count("another one takes its place") == 1


def log_to(path, _):
    """In a worker: its warnings go to a file."""
    logger.addHandler(logging.FileHandler(path))


def test_bad_options(tmp_path):
    """Values that are none."""
    index = write(tmp_path)
    with pytest.raises(ValueError, match="on_error"):
        wids.ShardListDataset(index, on_error="skip")
    for share in (-1, 2, float("nan"), "few"):
        with pytest.raises(ValueError, match="max_errors"):
            wids.ShardListDataset(index, on_error="substitute", max_errors=share)
    with pytest.raises(ValueError, match="error_log needs on_error='substitute'"):
        wids.ShardListDataset(index, error_log=tmp_path / "bad.jsonl")


def test_left_out_the_next_time(tmp_path):
    """The log of a run and the report of `wids verify --decode` are lists of samples to exclude; of a view, too."""
    index, log, report = write(tmp_path, BAD - {40}), tmp_path / "bad.jsonl", tmp_path / "report.jsonl"
    list(opened(index, error_log=log))
    assert run("verify", index, "--decode", "--report", str(report)).code == 1
    dataset = wids.ShardListDataset(index)
    good = [i for i in range(sum(LENGTHS)) if i not in BAD or i == 40]
    for path in (log, report):
        assert [sample[".json"] for sample in dataset.exclude(path)] == good
        some = random.Random(1).sample(range(sum(LENGTHS)), 100)
        view = dataset.select(some).exclude(path)
        assert [sample[".json"] for sample in view] == sorted({*some} & {*good})
    dataset.exclude(report).save(tmp_path / "good.json")
    dataset.select([3, 4, 41, 42]).save(tmp_path / "bad.json")
    assert run("verify", str(tmp_path / "good.json"), "--decode").code == 0
    assert run("verify", str(tmp_path / "bad.json"), "--decode").err.endswith("2 of 2 shards are wrong (decode 3)\n")
    for text in ("{", '{"shard": 3}\n'):
        log.write_text(text)
        with pytest.raises(wids.errors.InputError, match="log of errors"):
            dataset.exclude(log)


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """700 samples of four members, of which one in a hundred is damaged."""
    return write_damaged(tmp_path_factory.mktemp("damaged"))


def substitutes(strict):
    """Which sample is to be read for each index: itself, or the first good one that takes its place."""
    bad, found, lo = bad_ones(strict), {}, 0
    for count in strict.lengths:
        for i in range(lo, lo + count):
            found[i], attempt = i, 0
            while found[i] in bad:
                found[i] = pick(i, attempt, lo, lo + count)
                attempt += 1
        lo += count
    assert bad
    return found


def facts(sample):
    """(the index that was asked for, the one that came, whether it counts)."""
    for_whom = sample["__substitute_for__"]
    return sample["__index__"] if for_whom < 0 else for_whom, sample["__index__"], sample["__valid__"]


def same(dataset):
    """The dataset itself."""
    return dataset


@pytest.mark.parametrize(
    ("part", "world", "workers", "context"),
    [
        (same, 1, 0, None),
        (same, 2, 2, "fork"),
        (same, 3, 1, "fork"),
        (same, 2, 1, "forkserver"),
        (same, 1, 2, "forkserver"),
        (halved, 3, 0, None),
        (halved, 2, 2, "fork"),
        (halved, 1, 1, "forkserver"),
    ],
)
def test_one_member_in_a_hundred(index, part, world, workers, context):
    """Every rank yields its number of batches, with the same substitutes for any world, workers and start method."""
    expected = substitutes(part(wids.ShardListDataset(index)))
    dataset = part(opened(index)).add_transform(facts)
    found, batches = [], set()
    for rank in range(world):
        sampler = wids.DistributedChunkedSampler(dataset, num_replicas=world, rank=rank, chunksize=40, tail="mask")
        loader = DataLoader(
            dataset,
            batch_size=16,
            sampler=sampler,
            num_workers=workers,
            multiprocessing_context=context,
            collate_fn=list,
        )
        mine = list(loader)
        assert sum(map(len, mine)) == len(sampler)
        batches.add(len(mine))
        found += [each for batch in mine for each in batch]
    assert len(batches) == 1
    assert {asked: came for asked, came, _ in found} == expected
    assert sorted(asked for asked, _, is_valid in found if is_valid) == list(range(len(dataset)))


def test_batches_and_single_samples(index):
    """A batch, its samples one by one, repeated, and counted from the end, are the same samples."""
    dataset, n = opened(index), sum(COUNTS)
    expected = substitutes(wids.ShardListDataset(index))
    wanted = random.Random(1).choices(range(-n, n), k=300)
    for samples in (dataset.__getitems__(wanted), [dataset[i] for i in wanted]):
        for i, sample in zip(wanted, samples, strict=True):
            assert sample["__index__"] == expected[i % n]
            assert sample["__substitute_for__"] == (-1 if expected[i % n] == i % n else i % n)


def test_torch_s_own_parts(index):
    """In `Subset` and `ConcatDataset` each dataset counts by itself."""
    dataset = opened(index)
    expected = substitutes(wids.ShardListDataset(index))
    joined = ConcatDataset([Subset(dataset, range(100, 300)), dataset])
    sampler = wids.DistributedChunkedSampler(joined, num_replicas=1, rank=0, chunksize=50)
    came = {i: joined[i]["__index__"] for i in sampler}
    assert came == {**{i: expected[i + 100] for i in range(200)}, **{i + 200: expected[i] for i in range(sum(COUNTS))}}


def test_shown_columns_are_those_of_the_sample_that_came(index):
    """Not of the one whose place it takes."""
    arrow = pytest.importorskip("pyarrow")
    n = sum(COUNTS)
    table = arrow.table({"index": list(range(n)), "number": list(range(n))})
    for dataset in (opened(index).with_table(table, on="index", fields=True),):
        for part in (dataset, halved(dataset)):
            expected = substitutes(halved(wids.ShardListDataset(index)) if part is not dataset else strict_of(index))
            for i, sample in enumerate(part):
                assert sample["__index__"] == expected[i]
                assert sample["number"] == expected[i] * (1 if part is dataset else 2)


def strict_of(index):
    """The dataset, whose bad samples are errors."""
    return wids.ShardListDataset(index)


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt,
        SystemExit,
        GeneratorExit,
        asyncio.CancelledError,
        concurrent.futures.CancelledError,
        MemoryError,
        ModuleNotFoundError,
        ColumnsError,
        lambda: OSError(errno.EMFILE, "too many open files"),
        lambda: OSError(errno.ENOSPC, "no space left"),
    ],
    ids=range(10),
)
def test_errors_that_are_not_of_a_sample(tmp_path, error):
    """They are raised as they are, also where another one has them as its cause; no sample is replaced."""
    dataset = opened(write_shards(tmp_path, (9,)), transformations=[])
    failure = error()

    def fail(_):
        raise failure

    def fail_by_it(_):
        raise RuntimeError("decoding failed") from failure

    with pytest.raises(type(failure)):
        dataset.add_transform(fail)[0]
    if isinstance(failure, Exception):
        dataset.transformations = [fail_by_it]
        with pytest.raises(RuntimeError, match="decoding failed"):
            dataset[0]
    assert dataset.stats().substitutions == 0


@pytest.mark.parametrize("error", [StopIteration, RecursionError, AssertionError, OSError, UserWarning, LookupError])
def test_errors_that_are(tmp_path, error):
    """They are the sample's, whatever they are called."""

    def fail(sample):
        if sample["__index__"] == 4:
            raise error("no")
        return sample

    dataset = opened(write_shards(tmp_path, (9,)), transformations=[fail])
    assert [each["__substitute_for__"] for each in dataset] == [-1, -1, -1, -1, 4, -1, -1, -1, -1]


class HostileError(Exception):
    """It cannot be pickled or printed, and has attributes that are called as ours are."""

    def __init__(self, *_, kind=0):
        super().__init__()
        self.field, self.shard, self.key = object(), object(), lambda: 0
        self.kind = kind

    def __str__(self):
        """As its kind has it."""
        if self.kind == 0:
            raise ValueError("no words")
        return "https://user:pass@host/a.tar?sig=secret " + "x" * 10_000_000 if self.kind == 1 else "\udc80\n{"

    def __reduce__(self):
        raise TypeError("cannot be pickled")


def fail_hostilely(sample):
    """Empty the sample, and fail at every fifth one."""
    index = sample["__index__"]
    if index % 5 == 0:
        sample.clear()
        raise HostileError(kind=index // 5 % 3)
    return index


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_that_can_be_neither_printed_nor_pickled(tmp_path, workers):
    """They are told in a line of plain words each, with the sample that failed, though it was emptied before."""
    log = tmp_path / "bad.jsonl"
    dataset = opened(write_shards(tmp_path, (30, 30)), transformations=fail_hostilely, error_log=log)
    found = [each for batch in DataLoader(dataset, 6, num_workers=workers) for each in batch.tolist()]
    assert len(found) == 60
    assert all(each % 5 for each in found)
    text = log.read_text("ascii")
    assert "pass" not in text
    assert "secret" not in text
    assert len(text) < 100_000
    for line in map(json.loads, text.splitlines()):
        shard, row = divmod(line["index"], 30)
        assert (line["shard"], line["row"], line["key"]) == (
            str(tmp_path / f"s{shard}.tar"),
            row,
            f"s{shard}-{row:03d}",
        )
        assert line["error"].startswith("HostileError")
        assert line["field"] is None
    good = wids.ShardListDataset(write_shards(tmp_path, (30, 30)), transformations=[]).exclude(log)
    assert len(good) == 48


def test_a_subclass_s_own_access(tmp_path):
    """The sample that takes a place is read as the one that failed was: through ``get_shard``."""
    asked = []

    class Watched(wids.ShardListDataset):
        def get_shard(self, index):
            asked.append(index)
            return super().get_shard(index)

    def fail(sample):
        if sample["__index__"] == 2:
            raise ValueError
        return sample

    dataset = Watched(write_shards(tmp_path, (9,)), transformations=fail, on_error="substitute", max_errors=1)
    other = dataset[2]["__index__"]
    assert asked == [2, other]


def test_no_sample_of_a_shard_is_good(tmp_path):
    """So many are tried, and no more; the error names the sample that was asked for, why it ended and the log."""
    log, seen = tmp_path / "bad.jsonl", []

    def fail(sample):
        seen.append(sample["__index__"])
        if sample["__index__"] < 40:
            raise ValueError("bad")
        return sample

    dataset = opened(write_shards(tmp_path, (40, 3, 1)), transformations=fail, error_log=log)
    with pytest.raises(TooManyErrorsError, match=rf"sample 7 .* the {MAX_ATTEMPTS} of its shard.*bad.jsonl names them"):
        dataset[7]
    assert len(seen) == len(set(seen)) == MAX_ATTEMPTS + 1
    assert dataset[41]["__substitute_for__"] == -1
    small = wids.ShardListDataset(
        write_shards(tmp_path / "small", (2,)), transformations=fail, on_error="substitute", max_errors=1
    )
    with pytest.raises(TooManyErrorsError, match="the 1 of its shard"):
        small[-1]


def test_what_is_counted(tmp_path):
    """Samples that are read, substitutes too: their share never passes 1. A pickle, a fork and a view: see below."""

    def fail(sample):
        if sample["__index__"] % 2:
            raise ValueError
        return sample

    def read(dataset, count):
        for i in range(count):
            dataset[i]

    shards = write_shards(tmp_path, (400,))
    read(opened(shards, transformations=fail), 400)
    strict = opened(shards, transformations=fail, max_errors=0.3)
    with pytest.raises(
        TooManyErrorsError, match=r"\d\d of \d\d samples failed in this process, more than max_errors=0.3"
    ):
        read(strict, 400)
    with pytest.raises(TooManyErrorsError):  # it goes on to be an error
        strict[1]
    few = opened(shards, transformations=fail_below_8, max_errors=0)
    read(few, 8)  # eight failures say nothing, and those of each process are its own
    assert few.stats().substitutions == 8
    read(pickle.loads(pickle.dumps(few)), 8)
    assert in_a_fork(lambda: read(few, 8)) == 0
    view = few.select(range(6, 40))
    with pytest.raises(TooManyErrorsError):  # it is the same process, and the same setting
        view.__getitems__([0, 1])


def fail_below_8(sample):
    """Fail at the first eight samples."""
    if sample["__shardindex__"] < 8:
        raise ValueError
    return sample


def fail_at_odd(sample):
    """Fail at every other sample."""
    if sample["__index__"] % 2:
        raise ValueError
    return sample


def in_a_fork(function):
    """Run a function in a forked process; its exit code."""
    process = multiprocessing.get_context("fork").Process(target=function)
    process.start()
    process.join()
    return process.exitcode


def test_a_shard_that_came_damaged_is_fetched_again(tmp_path):
    """And nothing is replaced; one that stays damaged, or is not there, is an error."""
    write_index(tmp_path / "data", (5, 5, 5))
    with serve(tmp_path) as server:
        whole_shard = (tmp_path / "data" / "s0.tar").read_bytes()
        junk = instead(whole_shard[:1024] + b"\xff" * 600 + whole_shard[1624:])
        server.faults["/data/s0.tar"] = [junk, whole]
        server.faults["/data/s1.tar"] = [junk] * 50
        dataset = opened(f"{server.url}/data/index.json", cache_dir=tmp_path / "cache", transformations=[])
        assert [dataset[i]["__substitute_for__"] for i in range(5)] == [-1] * 5
        os.unlink(tmp_path / "data" / "s2.tar")
        for i in (5, 10):
            with pytest.raises((ShardError, FetchError)) as found:
                dataset[i]
            assert not isinstance(found.value, ShardReadError)
            with pytest.raises((ShardError, FetchError)):
                dataset.__getitems__([i, i + 1])
        assert dataset.stats().substitutions == 0
        assert server.requests.count("/data/s0.tar") == 2


def test_a_local_shard_that_is_cut_while_it_is_read(tmp_path):
    """It is damaged as a whole: an error, one by one and in batches."""
    shards = write_shards(tmp_path, (50,))
    dataset = opened(shards, transformations=[])
    assert dataset[0]["__substitute_for__"] == -1
    os.truncate(shards[0]["url"], 4096)
    for read in (lambda: dataset[40], lambda: dataset.__getitems__([41, 45])):
        with pytest.raises(ShardError):
            read()


def bomb(width, height):
    """A PNG that says that it is very large."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("form", ["PIL", "numpy", "torch"])
def test_images(tmp_path, form):
    """Cut at any place, other than they say, or too large to be opened: each is replaced."""
    good = {kind: picture(3, kind.upper()) for kind in ("jpeg", "png")}
    bad = [("png", bomb(100_000, 100_000)), ("png", b""), ("jpeg", good["png"][:45])]
    bad += [("png", good["png"][:size]) for size in (7, 20, 50)] + [("jpeg", good["jpeg"][:size]) for size in (9, 300)]
    members = [(f"{k:02d}.{kind}", data) for k, (kind, data) in enumerate(bad)]
    members += [(f"{k:02d}.{kind}", data) for k, (kind, data) in enumerate(good.items(), len(bad))]
    path = write_tar(tmp_path / "s.tar", members)
    dataset = opened([(path, len(members))], transformations=form)
    places = [sample["__substitute_for__"] for sample in dataset]
    assert places == [*range(len(bad)), -1, -1]


def test_too_many_errors_in_a_worker(tmp_path):
    """The error that arrives is of its own kind, and names the log."""
    log = tmp_path / "bad.jsonl"
    dataset = opened(write_shards(tmp_path, (60,)), transformations=fail_at_odd, max_errors=0.01, error_log=log)
    with pytest.raises(TooManyErrorsError, match=r"10 of \d\d samples failed in this process.*bad.jsonl names them"):
        list(DataLoader(dataset, num_workers=1, multiprocessing_context="fork", collate_fn=len))


@pytest.mark.parametrize(("before", "after", "tail"), [(2, 3, "mask"), (3, 1, "drop"), (1, 2, "pad")])
def test_a_resume_on_other_ranks(index, before, after, tail):
    """What was read before and what is read after it are the substitutes of one run, and ranks stay equal."""
    dataset, expected, steps = opened(index), substitutes(wids.ShardListDataset(index)), 101
    options = {"chunksize": 40, "tail": tail}
    asked, state = [], None
    for rank in range(before):
        sampler = wids.DistributedChunkedSampler(dataset, num_replicas=before, rank=rank, **options)
        indices = iter(sampler)
        asked += [next(indices) for _ in range(steps)]
        state = sampler.state_dict()
    counts = set()
    for rank in range(after):
        sampler = wids.DistributedChunkedSampler(dataset, num_replicas=after, rank=rank, **options)
        sampler.load_state_dict(state)
        rest = list(sampler)
        counts.add(len(rest))
        asked += rest
    assert len(counts) == 1
    assert {int(i): sample["__index__"] for i, sample in zip(asked, map(dataset.__getitem__, asked), strict=True)} == {
        int(i): expected[i] for i in asked
    }
    assert len(set(asked)) > sum(COUNTS) - after


@pytest.mark.parametrize("access", ["fetch", "range", "auto"])
def test_remote_shards(index, tmp_path, access):
    """By whatever way their bytes come, the same samples take the places."""
    expected = substitutes(wids.ShardListDataset(index))
    with Server(directory=os.path.dirname(index), has_ranges=True) as server:
        dataset = opened(f"{server.url}/index.json", cache_dir=tmp_path / "cache", access=access)
        for lo in range(0, sum(COUNTS), 100):
            wanted = range(lo, min(lo + 100, sum(COUNTS)))
            assert [sample["__index__"] for sample in dataset.__getitems__(wanted)] == [expected[i] for i in wanted]
        dataset.close()


def test_threads(index):
    """Threads that share a dataset have the same samples as one."""
    dataset, expected = opened(index), substitutes(wids.ShardListDataset(index))
    wanted = random.Random(2).choices(range(sum(COUNTS)), k=2000)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: dataset[i]["__index__"], wanted))
    assert found == [expected[i] for i in wanted]

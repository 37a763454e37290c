"""Attacks on the handling of bad samples: damage at random, errors of all kinds, logs that cannot be written."""

import asyncio
import concurrent.futures
import errno
import io
import json
import logging
import multiprocessing
import os
import pickle
import random
import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Subset

import wids
from tests.support.cli import run
from tests.support.servers import Server, instead, whole
from tests.support.shards import serve, write_index, write_json, write_shards, write_tar
from wids.collection import error_log
from wids.collection.substitutes import MAX_ATTEMPTS, pick
from wids.errors import (
    ColumnsError,
    DecodeError,
    FetchError,
    InputError,
    OutputError,
    ShardError,
    ShardReadError,
    TooManyErrorsError,
)
from wids.files import atomic
from wids.jobs.journal import JobJournal

pytestmark = pytest.mark.usefixtures("own_cache")

COUNTS = (150, 1, 200, 90, 259)


def picture(color, kind):
    """The bytes of a small picture."""
    stream = io.BytesIO()
    Image.new("RGB", (16, 12), (color % 256, 9, 99)).save(stream, kind)
    return stream.getvalue()


def array(number):
    """The bytes of a small array."""
    stream = io.BytesIO()
    np.save(stream, np.full(3, number))
    return stream.getvalue()


def damaged(rng, data):
    """The same number of bytes, wrong: cut, or other ones."""
    cut = data[: len(data) // 2]
    return rng.choice([bytes(len(data)), cut.ljust(len(data), b"\0"), rng.randbytes(len(data))])


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """700 samples of four members, of which one in a hundred is damaged."""
    directory, rng, shards, first = tmp_path_factory.mktemp("damaged"), random.Random(5), [], 0
    for k, count in enumerate(COUNTS):
        members = []
        for i in range(first, first + count):
            parts = {"jpg": picture(i, "JPEG"), "png": picture(i, "PNG"), "npy": array(i), "json": b'{"i": %d}' % i}
            for extension, data in parts.items():
                is_bad = rng.random() < 0.01 and count > 1
                members.append((f"{i:04d}.{extension}", damaged(rng, data) if is_bad else data))
        write_tar(directory / f"s{k}.tar", members)
        shards.append({"url": f"s{k}.tar", "nsamples": count})
        first += count
    return write_json(directory / "index.json", {"wids_version": 1, "shardlist": shards})


def opened(index, **options):
    """The dataset, whose bad samples are replaced."""
    return wids.ShardListDataset(index, **{"on_error": "substitute", "max_errors": 1, **options})


def bad_ones(strict):
    """The indices of samples that cannot be decoded."""
    found = set()
    for i in range(len(strict)):
        try:
            strict[i]
        except DecodeError:
            found.add(i)
    return found


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


def halved(dataset):
    """A view of every other sample."""
    return dataset.select(range(0, len(dataset), 2))


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


# --- whole shards


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


# --- images


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


# --- logs


@pytest.mark.parametrize("name", ["", "no/bad.jsonl", "pipe.jsonl", "bad.log", "http://host/bad.jsonl"])
def test_where_no_log_can_be(tmp_path, name):
    """It is said when the dataset is made, or the report asked for, and not after hours."""
    index = write_index(tmp_path / "data", (3,))
    os.mkfifo(tmp_path / "pipe.jsonl")
    place = name if "://" in name else str(tmp_path / name)
    with pytest.raises(OutputError):
        opened(index, error_log=place)
    code, _, err = run("verify", index, "--decode", "--report", place)
    assert code == 1
    assert "verifying" not in err


@pytest.mark.parametrize("what", ["gone", "fifo", "directory", "full"])
def test_a_log_that_cannot_be_written_any_more(tmp_path, monkeypatch, caplog, what):
    """It is warned of once, nothing waits, and samples are replaced as before."""
    place = tmp_path / "logs" / "bad.jsonl"
    place.parent.mkdir()
    dataset = opened(write_shards(tmp_path, (30,)), transformations=fail_at_odd, error_log=place)
    if what == "gone":
        place.parent.rmdir()
    elif what == "fifo":
        os.mkfifo(place)
    elif what == "directory":
        place.mkdir()
    else:
        real = os.write
        monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:20]))
    assert len(list(dataset)) == 30
    monkeypatch.undo()
    told = [record for record in caplog.records if "cannot be written" in record.message]
    assert len(told) == 1
    if what == "full":
        dataset[1]
        assert 1 in error_log.read_rows(str(place))[str(tmp_path / "s0.tar")]


def test_many_processes_write_one_log(tmp_path):
    """Each line is whole, also behind one whose writer was killed."""
    log = tmp_path / "bad.jsonl"
    log.write_text('{"shard": "x", "ro')
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=write_lines, args=(str(log), n)) for n in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    lines = [line for line in log.read_bytes().split(b"\n")[1:] if line]
    found = sorted((told["row"], told["key"]) for told in map(json.loads, lines))
    assert [row for row, _ in found] == list(range(800))
    assert all(key == str(row) * 3000 for row, key in found)
    assert error_log.read_rows(str(log)) == {"/s.tar": set(range(800))}


def write_lines(path, n):
    """200 long lines."""
    for row in range(n, 800, 4):
        atomic.append_line(path, error_log.format_line("/s.tar", row=row, key=str(row) * 3000, field=None, error=""))


def test_logs_grow_over_epochs_and_are_read_the_same(tmp_path):
    """A sample that fails in each epoch has as many lines, and is left out once."""
    log, shards = tmp_path / "bad.jsonl", write_shards(tmp_path, (30,))
    dataset = opened(shards, transformations=fail_at_odd, error_log=log)
    list(dataset)
    once = wids.ShardListDataset(shards).exclude(log)
    list(dataset)
    assert len(log.read_text().splitlines()) >= 30
    again = wids.ShardListDataset(shards).exclude(log)
    assert len(once) == len(again) == 15
    assert once.fingerprint == again.fingerprint


def test_a_view_s_log_and_its_parent_s(tmp_path):
    """Each holds for the other: a log names shards and rows."""
    shards, log, other = write_shards(tmp_path, (30, 30)), tmp_path / "bad.jsonl", tmp_path / "other.jsonl"
    view = opened(shards, transformations=fail_at_ends, error_log=log).select(range(20, 50))
    list(view)
    whole_one = wids.ShardListDataset(shards, transformations=[])
    kept = whole_one.exclude(log)
    assert [
        each["__key__"] for each in whole_one if each["__shardindex__"] % 10 or each["__index__"] not in range(20, 50)
    ] == [each["__key__"] for each in kept]
    list(opened(shards, transformations=fail_at_ends, error_log=other))
    left = whole_one.select(range(20, 50)).exclude(other)
    assert [each["__shardindex__"] % 10 for each in left].count(0) == 0
    assert len(left) == 27


def fail_at_ends(sample):
    """Fail at each tenth row of a shard."""
    if sample["__shardindex__"] % 10 == 0:
        raise ValueError
    return sample


def test_a_log_of_another_dataset(tmp_path, caplog):
    """Nothing is left out, and a warning says so: shards of the same name in another directory are other ones."""
    log = tmp_path / "bad.jsonl"
    list(opened(write_shards(tmp_path / "a", (30,)), transformations=fail_at_odd, error_log=log))
    other = wids.ShardListDataset(write_shards(tmp_path / "b", (30,)), transformations=[])
    assert len(other.exclude(log)) == 30
    assert "1 of the 1 shards in it are none of this dataset's" in caplog.text


def test_shards_by_any_path(tmp_path, monkeypatch):
    """A log that was written by a relative path holds for the absolute one, and for a ``file:`` URL."""
    log, shards = tmp_path / "bad.jsonl", write_shards(tmp_path / "d \udc80", (30,))
    path = shards[0]["url"]
    monkeypatch.chdir(tmp_path / "d \udc80")
    list(opened([("s0.tar", 30)], transformations=fail_at_odd, error_log=log))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.getLogger("wids"), "disabled", True)
    for url in (path, "d \udc80/s0.tar", "file://" + os.path.dirname(path).replace(" ", "%20") + "/s0.tar"):
        assert len(wids.ShardListDataset([(url, 30)]).exclude(log)) == 15, url


@pytest.mark.parametrize(
    ("url", "again"),
    [
        ("https://u:p@h/a.tar?sig=secret", "https://h/a.tar?sig=other"),
        ("s3://key:secret@bucket/a.tar", "s3://bucket/a.tar"),
        ("https://h/get?name=a.tar", "https://h/get?name=a.tar"),
    ],
)
def test_signed_urls(url, again, tmp_path):
    """What signs a URL is not in the log, and another signature makes no other shard of it."""
    line = error_log.format_line(url, row=3, key="k", field=None, error="e")
    assert b"secret" not in line
    log = tmp_path / "bad.jsonl"
    log.write_bytes(line)
    assert len(wids.ShardListDataset([(again, 10)]).exclude(log)) == 9
    assert len(wids.ShardListDataset([("https://h/get?name=b.tar", 10)]).exclude(log)) == 10


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('{"shard": "/s.tar", "row": 3}\n{"shard": "/s.tar", "ro', 1),
        ('\n\n{"shard": "/s.tar", "row": 3}\n\0\0\0\n', 1),
        ('{"shard": "/s.tar", "row": null}\n{"shard": null, "row": 3}\n', 0),
        ("", 0),
    ],
)
def test_logs_with_damaged_lines(tmp_path, caplog, text, count):
    """These lines are left out, and counted."""
    log = tmp_path / "bad.jsonl"
    log.write_text(text)
    assert sum(map(len, error_log.read_rows(str(log)).values())) == count
    assert ("1 of its lines are cut or damaged" in caplog.text) == (count == 1)
    assert ("2 of its lines name no sample of a shard" in caplog.text) == ("null" in text)


def test_a_log_of_a_longer_shard(tmp_path, caplog):
    """Rows that the shard does not have are counted: the log is of another shard of this name."""
    log, shards = tmp_path / "bad.jsonl", write_shards(tmp_path, (30,))
    rows = (3, 29, 30, 400)
    log.write_bytes(b"".join(error_log.format_line(shards[0]["url"], row=row, key="k") for row in rows))
    dataset = wids.ShardListDataset(shards, transformations=[])
    assert len(dataset.exclude(log)) == 28
    assert len(dataset.select(range(10)).exclude(log)) == 9
    assert caplog.messages == [f"{log}: 2 samples in it are beyond the end of their shard: is it of another one?"] * 2


@pytest.mark.parametrize(
    "text",
    [
        "key\n",
        "{",
        '{"shard": 3}\n',
        '{"shard": "/s.tar", "row": -1}\n',
        '{"shard": "/s", "row": 1e99}',
        "[1]\n",
        "[" * 9999,
    ],
    ids=range(7),
)
def test_files_that_are_no_logs(tmp_path, text):
    """They are refused, and so is what is no file."""
    dataset = wids.ShardListDataset(write_shards(tmp_path, (3,)))
    log = tmp_path / "bad.jsonl"
    log.write_text(text)
    os.mkfifo(tmp_path / "pipe.jsonl")
    for path in (log, tmp_path / "pipe.jsonl", tmp_path / "none.jsonl"):
        with pytest.raises(InputError, match="log of errors"):
            dataset.exclude(path)


def test_bytes_that_cannot_be_read_are_in_the_log(tmp_path, monkeypatch):
    """With their row: `exclude` leaves the sample out."""
    log = tmp_path / "bad.jsonl"
    shards = write_shards(tmp_path, (30,))
    dataset = opened(shards, transformations=[], error_log=log)
    reader = type(dataset.get_shard(0)[0].reader)
    real = reader.read

    def read(self, row, fields=None):
        if row == 7:
            raise ShardReadError("the disk failed", shard=self.url)
        return real(self, row, fields)

    monkeypatch.setattr(reader, "read", read)
    assert dataset[7]["__substitute_for__"] == 7
    assert error_log.read_rows(str(log)) == {shards[0]["url"]: {7}}


def test_a_report_of_a_run_that_was_ended(index, tmp_path, monkeypatch):
    """Shards that were looked at before are in it, too; it says of a dataset and of a view what their own logs say."""
    reports, journal = [tmp_path / "1.jsonl", tmp_path / "2.jsonl"], str(tmp_path / "journal")
    for report in reports:
        with monkeypatch.context() as context:
            context.setattr(JobJournal, "remove", JobJournal.close)
            run("verify", index, "--decode", "--report", str(report), "--journal", journal, "--jobs", "1")
    assert reports[0].read_text() == reports[1].read_text()
    strict = wids.ShardListDataset(index)
    for part in (strict, halved(strict)):
        assert len(part.exclude(reports[1])) == len(part) - len(bad_ones(part))
        log = tmp_path / f"{len(part)}.jsonl"
        list(halved(opened(index, error_log=log)) if part is not strict else opened(index, error_log=log))
        assert part.exclude(log).fingerprint == part.exclude(reports[1]).fingerprint


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

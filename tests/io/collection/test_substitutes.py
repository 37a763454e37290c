"""Samples that cannot be decoded, read or transformed, and those that take their place."""

import errno
import functools
import json
import logging
import os
import pickle
import random

import pytest
from torch.utils.data import DataLoader

import wids
import wids.events
from tests.support.cli import run
from tests.support.shards import write_json, write_tar
from wids.collection.substitutes import pick
from wids.errors import FetchError, ShardReadError, TooManyErrorsError, TruncatedShardError
from wids.files import system

pytestmark = pytest.mark.usefixtures("own_cache")

COUNTS = (40, 1, 60, 100)
BAD = frozenset({3, 40, 41, 42, 150, 199})


def write(directory, bad=BAD, counts=COUNTS):
    """An index of samples with a number in JSON; those of ``bad`` are no JSON."""
    shards, first = [], 0
    for k, count in enumerate(counts):
        members = [(f"{i:04d}.json", b"{" if i in bad else b"%d" % i) for i in range(first, first + count)]
        write_tar(directory / f"s{k}.tar", members)
        shards.append({"url": f"s{k}.tar", "nsamples": count})
        first += count
    return write_json(directory / "index.json", {"wids_version": 1, "shardlist": shards})


def opened(index, **options):
    """The dataset, whose bad samples are replaced."""
    return wids.ShardListDataset(index, on_error="substitute", max_errors=1, **options)


def span_of(index):
    """The indices of a sample's shard."""
    lo = 0
    for count in COUNTS:
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
        assert len(list(loader)) == sum(COUNTS)
    assert dataset.stats().substitutions >= 6
    assert told.read_text().count("another one takes its place") == 1


def log_to(path, _):
    """In a worker: its warnings go to a file."""
    wids.events.logger.addHandler(logging.FileHandler(path))


def test_bad_options(tmp_path):
    """Values that are none."""
    index = write(tmp_path)
    with pytest.raises(ValueError, match="on_error"):
        wids.ShardListDataset(index, on_error="skip")
    for share in (-1, 2, float("nan"), "few"):
        with pytest.raises(ValueError, match="max_errors"):
            wids.ShardListDataset(index, on_error="substitute", max_errors=share)
    with pytest.raises(ValueError, match="error_log is for on_error='substitute'"):
        wids.ShardListDataset(index, error_log=tmp_path / "bad.jsonl")


def test_left_out_the_next_time(tmp_path):
    """The log of a run and the report of `wids verify --decode` are lists of samples to exclude; of a view, too."""
    index, log, report = write(tmp_path, BAD - {40}), tmp_path / "bad.jsonl", tmp_path / "report.jsonl"
    list(opened(index, error_log=log))
    assert run("verify", index, "--decode", "--report", str(report)).code == 1
    dataset = wids.ShardListDataset(index)
    good = [i for i in range(sum(COUNTS)) if i not in BAD or i == 40]
    for path in (log, report):
        assert [sample[".json"] for sample in dataset.exclude(path)] == good
        some = random.Random(1).sample(range(sum(COUNTS)), 100)
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

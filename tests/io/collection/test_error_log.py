"""Files of samples that failed: written by many at once, damaged, of other datasets, where no file can be."""

import json
import logging
import multiprocessing
import os

import pytest

import wids
from tests.support.bad_samples import bad_ones, halved, opened, write_damaged
from tests.support.cli import run
from tests.support.shards import write_index, write_shards
from wids.core.collection import error_log
from wids.core.files import atomic
from wids.errors import (
    InputError,
    OutputError,
    ShardReadError,
)
from wids.jobs.journal import JobJournal

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """700 samples of four members, of which one in a hundred is damaged."""
    return write_damaged(tmp_path_factory.mktemp("damaged"))


def fail_at_odd(sample):
    """Fail at every other sample."""
    if sample["__index__"] % 2:
        raise ValueError
    return sample


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

"""What has happened to the shards between two indexes, and what of them a state has not read."""

import json

import numpy as np
import pytest

import wids
from tests.support.shards import write_json
from wids import jobs
from wids.errors import InputError, StateError


def entry(k, *, count=10, content=0, folder="data", has_checksum=True, size=True):
    """A shard of an index, which is nowhere."""
    number = k * 10 + content
    sums = {"md5sum": f"{number:032x}"} if has_checksum else {}
    sums |= {"filesize": 1000 + number} if size else {}
    return {"url": f"{folder}/s{k}.tar", "nsamples": count, **sums}


def write(place, entries, **header):
    """An index."""
    return write_json(place, {"wids_version": 1, "shardlist": entries, **header})


def kinds(diff):
    """The number of shards of each kind."""
    return {kind: getattr(diff, kind).shards for kind in ("same", "moved", "replaced", "added", "dropped")}


@pytest.fixture
def places(tmp_path, monkeypatch):
    """The paths of two indexes."""
    monkeypatch.chdir(tmp_path)
    return "old.json", "new.json"


@pytest.mark.parametrize(
    ("now", "right"),
    [
        ([entry(0), entry(1)], {"same": 2}),
        ([entry(1), entry(0)], {"same": 2}),
        ([entry(0), entry(1, folder="elsewhere")], {"same": 1, "moved": 1}),
        ([entry(0), entry(1, content=1)], {"same": 1, "replaced": 1}),
        ([entry(0), entry(1), entry(2)], {"same": 2, "added": 1}),
        ([entry(1)], {"same": 1, "dropped": 1}),
        ([entry(0, content=1), entry(0, folder="kept"), entry(1)], {"same": 1, "moved": 1, "added": 1}),
        ([entry(0), entry(0), entry(1)], {"same": 2, "added": 1}),
    ],
    ids=["same", "order", "moved", "replaced", "added", "dropped", "its-place-taken", "twice"],
)
def test_kinds(places, now, right):
    """By checksum, wherever a shard lies."""
    old, new = places
    write(old, [entry(0), entry(1)])
    write(new, now)
    diff = jobs.diff_indexes(old, new)
    assert kinds(diff) == {**dict.fromkeys(kinds(diff), 0), **right}
    assert diff.samples == 10 * len(now)
    assert diff.unseen is None


@pytest.mark.parametrize(
    ("now", "right"),
    [
        ({}, {"same": 2}),
        ({"folder": "elsewhere"}, {"moved": 2}),
        ({"count": 9}, {"replaced": 2}),
        ({"content": 1}, {"replaced": 2}),
        ({"size": False}, {"same": 2}),
        ({"size": False, "folder": "elsewhere"}, {"added": 2, "dropped": 2}),
        ({"has_checksum": True}, {"same": 2}),
    ],
    ids=["same", "moved", "count", "size", "no-size", "moved-without-size", "checksums-are-new"],
)
def test_kinds_without_checksums(places, now, right):
    """By URL, size and count; of data that have moved as a whole, by name, size and count."""
    old, new = places
    write(old, [entry(k, has_checksum=False) for k in range(2)])
    write(new, [entry(k, **{"has_checksum": False, **now}) for k in range(2)])
    diff = jobs.diff_indexes(old, new)
    assert kinds(diff) == {**dict.fromkeys(kinds(diff), 0), **right}


def test_a_signature_is_no_part_of_a_url(places):
    """URLs that a server has signed anew."""
    old, new = places
    signed = [{**entry(k, has_checksum=False), "url": f"https://host/a%20b/s{k}.tar?X-Sig=1"} for k in range(2)]
    write(old, signed)
    write(new, [{**each, "url": each["url"].replace("Sig=1", "Sig=2")} for each in signed])
    assert jobs.diff_indexes(old, new).same.shards == 2


def rewritten(**changes):
    """Shard 1 without rows 2 and 5, written anew."""
    origin = {"url": "data/s1.tar", "nsamples": 10, "filesize": 1010, "md5sum": f"{10:032x}", "without": [5, 2]}
    return {**entry(1, count=8, content=5), "url": "data/s1-v2.tar", "rewritten": {**origin, **changes}}


def test_a_shard_that_was_written_anew(places):
    """What stayed of it is not new: neither in the counts, nor to a state."""
    old, new = places
    write(old, [entry(0), entry(1)])
    write(new, [entry(0), rewritten()])
    before, now = wids.ShardListDataset(old), wids.ShardListDataset(new)
    sampler = wids.ChunkedSampler(before, seed=3)
    indices = iter(sampler)
    read = {before.locate(next(indices)) for _ in range(11)}
    diff = jobs.diff_indexes(old, new, state=sampler.state_dict())
    assert (diff.replaced.shards, diff.replaced.kept, diff.added.shards, diff.dropped.shards) == (1, 8, 0, 0)
    rows = [0, 1, 3, 4, 6, 7, 8, 9]
    right = [(0, row) for row in range(10) if (0, row) not in read]
    right += [(1, k) for k, row in enumerate(rows) if (1, row) not in read]
    unseen = now.unseen(sampler.state_dict(), old=before)
    assert [unseen.locate(i) for i in range(len(unseen))] == right
    assert diff.unseen == len(right)


@pytest.mark.parametrize(
    "changes",
    [
        *({"without": [10]}, {"without": [1]}, {"without": None}, {"without": [2.9, 5]}, {"without": ["2", 5]}),
        *({"nsamples": "10"}, {"url": 3}, {"md5sum": 3.5}, {"without": [-1, 2]}, {"rewritten": {}}),
    ],
    ids=str,
)
def test_a_damaged_entry_that_was_written_anew(places, changes):
    """It is named."""
    old, new = places
    write(old, [entry(0), entry(1)])
    write(new, [entry(0), rewritten(**changes)])
    with pytest.raises(InputError, match=r"s1-v2\.tar.*rewritten"):
        jobs.diff_indexes(old, new)


@pytest.mark.parametrize("lacking", [("filesize",), ("md5sum",), ("filesize", "md5sum")], ids=str)
def test_a_shard_is_found_by_what_is_known_of_it(places, lacking):
    """By its URL as the index has it, and whatever does not contradict."""
    old, new = places
    write(old, [entry(0), entry(1)])
    said = rewritten()
    said["rewritten"] = {name: value for name, value in said["rewritten"].items() if name not in lacking}
    write(new, [entry(0), said])
    assert jobs.diff_indexes(old, new).replaced.kept == 8


def test_a_shard_that_was_written_anew_twice(places):
    """A state of before the first time: what stayed both times."""
    old, new = places
    write(old, [entry(0), entry(1)])
    first = rewritten()
    origin = {**first, "without": [0, 3]}  # rows 0 and 4 of the first one
    again = {**entry(1, count=6, content=7), "url": "data/s1-v3.tar", "rewritten": origin}
    write(new, [entry(0), again])
    before, now = wids.ShardListDataset(old), wids.ShardListDataset(new)
    sampler = wids.ChunkedSampler(before, seed=3)
    indices = iter(sampler)
    read = {before.locate(next(indices)) for _ in range(11)}
    unseen = now.unseen(sampler.state_dict(), old=before)
    right = [(0, row) for row in range(10) if (0, row) not in read]
    right += [(1, k) for k, row in enumerate((1, 3, 6, 7, 8, 9)) if (1, row) not in read]
    assert [unseen.locate(i) for i in range(len(unseen))] == right


def test_a_shard_that_was_written_anew_of_another(places, caplog):
    """All of its samples count as new, and a warning says so."""
    old, new = places
    write(old, [entry(0), entry(1)])
    write(new, [entry(0), rewritten(url="data/s9.tar", md5sum="ab" * 16)])
    diff = jobs.diff_indexes(old, new)
    assert (diff.added.shards, diff.added.kept) == (1, 0)
    assert "was written anew of 'data/s9.tar', which the earlier data do not have" in caplog.text


def test_a_state(places):
    """Its unseen samples are counted; a state of other data is refused."""
    old, new = places
    write(old, [entry(k) for k in range(4)])
    write(new, [entry(k) for k in range(1, 5)])
    before = wids.ShardListDataset(old)
    sampler = wids.BucketBatchSampler(wids.ChunkedSampler(before), lengths=np.arange(1, 41), max_tokens=100)
    batches = iter(sampler)
    read = {before.locate(i) for _ in range(5) for i in next(batches)}
    state = json.loads(json.dumps(sampler.state_dict()))
    left = {(shard, row) for shard in range(1, 5) for row in range(10)} - read
    assert jobs.diff_indexes(old, new, state=state, old_lengths=np.arange(1, 41)).unseen == len(left)
    with pytest.raises(InputError, match="give old_lengths="):
        jobs.diff_indexes(old, new, state=state)
    with pytest.raises(StateError, match="old= has to be the data that the state was saved over"):
        jobs.diff_indexes(new, old, state=state, old_lengths=np.arange(1, 41))


def test_counts_that_are_unknown(places):
    """Nothing says which samples were read."""
    old, _ = places
    write(old, [entry(0)])
    with pytest.raises(InputError, match="number of samples in the shard is unknown"):
        wids.ShardListDataset(old).unseen({}, old=["data/s0.tar"])

"""Shards written anew without some samples: what is gone, what stays as it was, and what a run reads of them."""

import io
import json
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

import wids
from tests.support.shards import write_json, write_shards, write_tar
from wids import jobs
from wids.errors import InputError, OutputError, OutputExistsError, SelectionError, ShardError
from wids.testing import Server
from wids.writing import rewrite

SECRET = b"of one person"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch, own_cache):
    """The directory of the test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make(*, counts=(5, 4, 6, 3), directory="old", **settings):
    """The index of some shards."""
    write_shards(directory, counts)
    index = f"{directory}/train.json"
    jobs.create_index(f"{directory}/s*.tar", index, settings=jobs.IndexSettings(**settings))
    return index


def without(index, gone, output="new/train.json", **settings):
    """The index rewritten without samples of these numbers or keys."""
    wids.ShardListDataset(index).exclude(gone).save("view.json", overwrite=True)
    return jobs.rewrite_shards("view.json", output, settings=jobs.RewriteSettings(**settings))


def samples_of(index):
    """(key, fields) of each sample."""
    dataset = wids.ShardListDataset(index, transformations=[])
    return [
        (each["__key__"], {name: data.read() for name, data in each.items() if name.startswith(".")})
        for each in map(dataset.__getitem__, range(len(dataset)))
    ]


def members(path):
    """(header fields, data) of each file of an archive, by Python's own module."""
    with tarfile.open(path) as archive:
        return [(each.get_info(), each.pax_headers, archive.extractfile(each).read()) for each in archive]


def entries(index):
    """The shards that an index lists."""
    return json.loads(Path(index).read_text())["shardlist"]


def new_shards(index="new/train.json"):
    """The paths of those that were written anew."""
    home = Path(index).parent
    return [home / each["url"] for each in entries(index) if "rewritten" in each]


@pytest.mark.parametrize("has_md5", [True, False])
def test_samples_are_gone_and_others_are_as_they_were(has_md5):
    """Shards that lack nothing are the old ones; one that lacks all is no more."""
    index = make(has_md5=has_md5)
    before = {path.name: path.read_bytes() for path in Path("old").iterdir()}
    whole = samples_of(index)
    gone = [1, 3, 5, 15, 16, 17]
    outcome = without(index, gone)
    assert samples_of("new/train.json") == [each for k, each in enumerate(whole) if k not in gone]
    assert (outcome.samples, outcome.removed, outcome.unchanged, outcome.shards) == (12, 6, 1, 3)
    assert [Path(url).name for url in outcome.dropped] == ["s3.tar"]
    assert [Path(url).name for url in outcome.written] == ["s0.tar", "s1.tar"]
    listed = entries("new/train.json")
    assert [each.get("rewritten", {}).get("without") for each in listed] == [[1, 3], [0], None]
    assert listed[0]["rewritten"] == {
        **{key: value for key, value in entries(index)[0].items() if key != "url"},
        "url": str(Path("old/s0.tar").absolute()),
        "without": [1, 3],
    }
    assert ("md5sum" in listed[0]) == has_md5
    assert not jobs.verify("new/train.json").wrong
    data = new_shards()[0].read_bytes()
    for k in (1, 3):
        assert whole[k][0].encode() not in data
        assert whole[k][1][".txt"] not in data
    stay = [each for each in members("old/s0.tar") if each[0]["name"][:6] not in ("s0-001", "s0-003")]
    assert members(new_shards()[0]) == stay
    assert {path.name: path.read_bytes() for path in Path("old").iterdir()} == before
    assert not [name for name in os.listdir("new") if "part" in name or "rewriting" in name]


def test_two_runs_give_the_same(home):
    """Names and bytes, also of shards of one name."""
    for folder in ("a", "b"):
        write_shards(folder, (3,))
    shards = [{"url": f"{folder}/s0.tar", "nsamples": 3} for folder in ("a", "b")]
    index = write_json("train.json", {"wids_version": 1, "shardlist": [*shards, shards[0]]})
    without(index, [0, 3, 6])
    first = {path.name: path.read_bytes() for path in Path("new").glob("*.tar")}
    assert len(first) == 2
    without(index, [0, 3, 6], "other")
    assert {path.name: path.read_bytes() for path in Path("other").glob("*.tar")} == first
    assert [each["url"] for each in entries("other/train.json")] == [each["url"] for each in entries("new/train.json")]
    assert without(index, [0, 3, 6]).samples == 6  # over itself
    assert [key for key, _ in samples_of("new/train.json")] == ["s0-001", "s0-002"] * 3


def odd_tar(path, form):
    """Samples of long names, an owner and times, a directory, a file of no sample, and a global header."""
    options = {"pax_headers": {"comment": "all"}} if form == tarfile.PAX_FORMAT else {}
    with tarfile.open(path, "w", format=form, **options) as archive:
        for k in range(4):
            folder = tarfile.TarInfo(f"d{k}")
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
            for ending in ("v1.5.jpg", "v1.5.txt"):
                info = tarfile.TarInfo(f"d{k}/{'long' * 60 * (k % 2)}-é{k}.{ending}")
                info.size, info.mtime, info.uname = len(SECRET) + k, 1_700_000_000.5 + k, f"person{k}"
                archive.addfile(info, io.BytesIO(SECRET + bytes([65 + k]) * k))
        archive.addfile(tarfile.TarInfo("README"))


@pytest.mark.parametrize("rule", ["first-dot", "last-dot"])
@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_headers_are_copied(form, rule):
    """Long names of GNU and PAX with all that their headers say; directories are left out."""
    os.mkdir("old")
    odd_tar("old/s0.tar", form)
    jobs.create_index("old/s0.tar", "old/train.json", settings=jobs.IndexSettings(rule=rule))
    whole = samples_of("old/train.json")
    without("old/train.json", [1])
    (path,) = new_shards()
    stay = [each for each in members_of_files("old/s0.tar") if not each[0]["name"].startswith("d1/")]
    assert members(path) == stay
    assert b"person1" not in path.read_bytes()
    assert samples_of("new/train.json") == [each for k, each in enumerate(whole) if k != 1]
    assert wids.ShardListDataset("new/train.json").keys[0] == whole[0][0]
    with tarfile.open(path) as archive:
        assert archive.pax_headers == ({"comment": "all"} if form == tarfile.PAX_FORMAT else {})


def members_of_files(path):
    """As `members`, of those that are files of samples."""
    with tarfile.open(path) as archive:
        files = [each for each in archive if each.isfile() and each.name != "README"]
        return [(each.get_info(), each.pax_headers, archive.extractfile(each).read()) for each in files]


@pytest.mark.parametrize("rule", ["first-dot", "last-dot"])
def test_samples_of_scattered_members(rule):
    """With group="key", members of one sample are anywhere."""
    names = [f"{key}.{ending}" for ending in ("jpg", "txt") for key in "abcd"]
    write_tar("old/s0.tar", [(name, name.encode()) for name in names])
    jobs.create_index("old/s0.tar", "old/train.json", settings=jobs.IndexSettings(group="key", rule=rule))
    without("old/train.json", ["b"])
    with tarfile.open(new_shards()[0]) as archive:
        assert archive.getnames() == [name for name in names if name[0] != "b"]
    assert [key for key, _ in samples_of("new/train.json")] == ["a", "c", "d"]


def test_what_cannot_stay_apart_is_refused():
    """Two samples of one key, between which nothing stays."""
    write_tar("old/s0.tar", [("a.jpg", b"1"), ("b.jpg", b"2"), ("a.txt", b"3"), ("c.txt", b"4")])
    jobs.create_index("old/s0.tar", "old/train.json")
    with pytest.raises(ShardError, match="would be one sample; pack the view"):
        without("old/train.json", [1])
    assert not list(Path("new").glob("*.tar*"))


@pytest.mark.parametrize("gone", ["a", "b"])
def test_hard_links(gone):
    """A link to a file that is gone becomes the file; another stays a link."""
    os.mkdir("old")
    with tarfile.open("old/s0.tar", "w") as archive:
        for key in "abc":
            info = tarfile.TarInfo(f"{key}.jpg")
            if key == "c":
                info.type, info.linkname = tarfile.LNKTYPE, "a.jpg"
            else:
                info.size = 3
            archive.addfile(info, io.BytesIO(key.encode() * 3))
    jobs.create_index("old/s0.tar", "old/train.json")
    without("old/train.json", [gone])
    assert dict(samples_of("new/train.json"))["c"] == {".jpg": b"aaa"}
    with tarfile.open(new_shards()[0]) as archive:
        assert archive.getmember("c.jpg").islnk() == (gone == "b")


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_a_run_goes_on(seed, checksums):
    """What was read does not come again, what was not comes once, what is gone never; twice in one epoch."""
    index = make(counts=(5, 4, 6, 3, 7), checksums=checksums)
    random = np.random.default_rng(seed)
    before = wids.ShardListDataset(index)
    sampler = wids.ChunkedSampler(before, seed=seed, chunksize=3)
    keys, read, gone = list(before.keys), set(), set()
    for turn in range(2):
        steps = iter(sampler)
        for _ in range(6):
            key = before.keys[next(steps)]
            assert key not in read
            assert key not in gone
            read.add(key)
        state = sampler.state_dict()
        out = random.choice(list(before.keys), 3, replace=False).tolist()
        gone.update(out)
        without(index, out, f"new{turn}/train.json")
        index = f"new{turn}/train.json"
        now = wids.ShardListDataset(index)
        assert sorted(now.keys) == sorted(set(keys) - gone)
        assert sorted(now.unseen(state, old=before).keys) == sorted(set(keys) - gone - read)
        sampler = wids.ChunkedSampler(now, seed=seed, chunksize=3)
        sampler.load_state_dict(state, old=before)
        before = now
    assert sorted(before.keys[i] for i in sampler) == sorted(set(keys) - gone - read)
    again = [each for each in entries("new1/train.json") if "new0" in each.get("rewritten", {}).get("url", "")]
    assert all(each["url"].count("-") == 1 for each in again)


def test_data_that_moved_as_a_whole():
    """Without checksums, the earlier shard is found beside the new one, wherever both are."""
    index = make(checksums=False)
    without(index, [0], "old/train-2.json")
    assert entries("old/train-2.json")[0]["rewritten"]["url"] == "s0.tar"
    os.rename("old", "moved")
    diff = jobs.diff_indexes("moved/train.json", "moved/train-2.json")
    assert (diff.replaced.kept, diff.same.shards, diff.added.shards) == (4, 3, 0)


def test_files_of_samples_and_a_trial():
    """--exclude is as of a view; a trial says the same, and writes nothing."""
    index = make()
    Path("out.txt").write_text("s0-001\ns2-000\n")
    settings = {"exclude": ("out.txt",)}
    trial = jobs.rewrite_shards(index, "new/a.json", settings=jobs.RewriteSettings(is_trial=True, **settings))
    assert not os.path.exists("new")
    outcome = jobs.rewrite_shards(index, "new/a.json", settings=jobs.RewriteSettings(**settings))
    assert outcome.bytes > 0
    for name in ("written", "removed", "shards", "samples", "unchanged", "dropped", "index"):
        assert getattr(trial, name) == getattr(outcome, name)
    assert outcome.removed == 2


def test_remote_shards_and_a_remote_output(home):
    """They are read through the cache; new ones are written to the store, and so is the index."""
    index = make()
    whole = samples_of(index)
    with Server("old") as server:
        Path("out.txt").write_text("s0-001\n")
        settings = jobs.RewriteSettings(exclude=("out.txt",))
        outcome = jobs.rewrite_shards(f"{server.url}/train.json", "memory://clean", settings=settings)
        assert outcome.index == "memory://clean/train.json"
        assert samples_of("memory://clean/train.json") == [each for each in whole if each[0] != "s0-001"]
        with pytest.raises(OutputExistsError, match="overwrite"):
            jobs.rewrite_shards(f"{server.url}/train.json", "memory://clean", settings=settings)


def test_a_run_that_fails_leaves_no_half_shard_and_goes_on(monkeypatch):
    """Finished shards are kept for the next run."""
    index = make()
    copy = rewrite._copy

    def fail(shard, reader, *rest):
        copy(shard, reader, *rest)
        if reader.url.endswith("s1.tar"):
            raise OutputError("the disk is full")

    wids.ShardListDataset(index).exclude([0, 5]).save("view.json")
    one = jobs.RunOptions(engine="threads", jobs=1)
    with monkeypatch.context() as patch:
        patch.setattr(rewrite, "_copy", fail)
        with pytest.raises(OutputError, match="full"):
            jobs.rewrite_shards("view.json", "new/train.json", engine=one)
    assert len(list(Path("new").glob("*.tar"))) == 1
    assert not os.path.exists("new/train.json")
    outcome = jobs.rewrite_shards("view.json", "new/train.json", engine=one)
    assert (outcome.known, len(outcome.written)) == (1, 2)
    assert len(samples_of("new/train.json")) == 16
    assert not [name for name in os.listdir("new") if name.endswith((".part", ".rewriting"))]


def test_what_is_refused():
    """Nothing to leave out, nothing that stays, and an output that is one of the inputs."""
    index = make()
    with pytest.raises(InputError, match="leaves out no sample"):
        jobs.rewrite_shards(index, "new/train.json")
    with pytest.raises(SelectionError, match="no samples would be left"):
        without(index, list(range(18)))
    for output in (index, "old"):
        with pytest.raises(OutputExistsError, match="is the index that"):
            without(index, [0], output, overwrite=True)
    with pytest.raises(OutputError, match="is the name of a shard"):
        without(index, [0], "old/s0.tar", overwrite=True)


def test_other_keys_stay():
    """Those of the index and of shards; packs of tables, which have keys of all samples, are not named."""
    index = make()
    raw = json.loads(Path(index).read_text())
    raw |= {"info": {"classes": ["a"]}, "name": "n"}
    raw["shardlist"][0]["who"] = "me"
    write_json(index, raw)
    jobs.create_tables(index)
    without(index, [0])
    found = json.loads(Path("new/train.json").read_text())
    assert (found["name"], found["info"], found["shardlist"][0]["who"]) == ("n", {"classes": ["a"]}, "me")
    assert "tables" not in " ".join(found)
    shutil.rmtree("new")
    without(index, [])
    assert new_shards() == []


def test_two_versions_are_skipped():
    """A new shard of a new shard says what both were made of; so does one beside another of its name."""
    index = make(checksums=False)
    without(index, [1], "old/train-2.json")
    without("old/train-2.json", [1], "new/train.json")
    origin = entries("new/train.json")[0]["rewritten"]
    assert (origin["without"], origin["rewritten"]["without"]) == ([1], [1])
    assert origin["rewritten"]["url"] == str(Path("old/s0.tar").absolute())
    assert jobs.diff_indexes(index, "new/train.json").replaced.kept == 3


@pytest.mark.parametrize("checksums", [True, False])
def test_shards_of_one_name_in_other_folders(checksums):
    """The earlier one is that beside the new one, not the first that ends with its name."""
    write_shards("all/a", (4,))
    write_shards("all", (4,))
    jobs.create_index(
        ["all/a/s0.tar", "all/s0.tar"], "all/train.json", settings=jobs.IndexSettings(checksums=checksums)
    )
    without("all/train.json", [5], "all/train-2.json")
    before, now = wids.ShardListDataset("all/train.json"), wids.ShardListDataset("all/train-2.json")
    sampler = wids.ChunkedSampler(before, shuffle=False)
    steps = iter(sampler)
    for _ in range(6):
        next(steps)
    unseen = now.unseen(sampler.state_dict(), old=before)
    assert [unseen.locate(k) for k in range(len(unseen))] == [(1, 1), (1, 2)]

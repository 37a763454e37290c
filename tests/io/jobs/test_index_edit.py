"""Indexes that are updated, merged, split and rebased."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from tests.support.shards import write_index, write_json, write_shard, write_shards
from wids import ShardListDataset
from wids.core.index import writing
from wids.errors import InputError, OutputExistsError, SelectionError, ShardNotFoundError, SpecError, WidsError
from wids.jobs.index_create import IndexSettings, create_index
from wids.jobs.index_edit import merge_indexes, rebase_index, split_index, update_index


def read(path):
    """The JSON in a file."""
    return json.loads(Path(path).read_text())


def urls_in(path):
    """The URLs that an index lists, as written."""
    return [entry["url"] for entry in read(path)["shardlist"]]


@pytest.mark.parametrize("checksums", [None, False])
def test_update_has_the_checksums_of_the_index(tmp_path, checksums):
    """New shards as those that are there: with them, or without; an index of md5s has both."""
    write_shards(tmp_path / "d", (1, 2))
    output = str(tmp_path / "i.json")
    create_index([str(tmp_path / "d")], output, settings=IndexSettings(checksums=checksums))
    write_shard(tmp_path / "d/s9.tar", 3)
    update_index(output, add=[str(tmp_path / "d")])
    assert ["crc32" in entry for entry in read(output)["shardlist"]] == [checksums is None] * 3
    update_index(output, settings=IndexSettings(has_md5=True))
    os.utime(tmp_path / "d/s0.tar", (1, 1))
    update_index(output)
    assert all({"crc32", "md5sum"} <= entry.keys() for entry in read(output)["shardlist"])


def test_update_adds_no_file_twice(tmp_path):
    """A shard that is there by another name is not added, and named."""
    write_shards(tmp_path / "d", (1, 2))
    output = str(tmp_path / "i.json")
    create_index([str(tmp_path / "d")], output)
    os.symlink("d", tmp_path / "e")
    told = update_index(output, add=[str(tmp_path / "e")])
    assert (told.shards, told.added, len(told.repeated)) == (2, 0, 2)
    os.symlink("gone.tar", tmp_path / "x.tar")
    with pytest.raises(ShardNotFoundError):  # it was never in the index
        update_index(output, add=[str(tmp_path / "x.tar")], settings=IndexSettings(is_dropping_missing=True))


def test_update_reads_what_changed_and_keeps_the_rest(tmp_path):
    """Own keys of index and shards stay; changed counts are new; what is added comes last; what is dropped goes."""
    path = write_index(tmp_path / "d", (3, 4, 2), name="i.json", other=1)
    index = read(path)
    index["shardlist"][0]["weight"] = 2
    write_json(path, index)
    write_shard(tmp_path / "d/s1.tar", 9)
    extra = write_shard(tmp_path / "d/more/s9.tar", 1)
    told = update_index(path, add=[extra, str(tmp_path / "d/s1.tar")], drop=["s2*"])
    assert (told.added, told.dropped, told.samples) == (1, 1, 13)
    index = read(path)
    assert index["other"] == 1
    assert [(e["url"], e["nsamples"], e.get("weight")) for e in index["shardlist"]] == [
        ("s0.tar", 3, 2),
        ("s1.tar", 9, None),
        ("more/s9.tar", 1, None),
    ]
    told = update_index(path)
    assert (told.unchanged, told.surveyed) == (3, 0)


def test_update_keeps_a_shard_that_is_listed_twice(tmp_path):
    """Some weigh shards so; both entries are brought up to date."""
    path = write_index(tmp_path, (3, 4))
    index = read(path)
    write_json(path, {**index, "shardlist": [*index["shardlist"], {**index["shardlist"][0], "extra": 1}]})
    write_shard(tmp_path / "s0.tar", 5)
    told = update_index(path)
    assert (told.shards, told.samples, told.surveyed, told.dropped) == (3, 14, 2, 0)
    assert [(e["url"], e["nsamples"], e.get("extra")) for e in read(path)["shardlist"]][::2] == [
        ("s0.tar", 5, None),
        ("s0.tar", 5, 1),
    ]


def test_update_of_shards_that_are_gone(tmp_path):
    """An error that leaves the index alone, unless they are to be dropped."""
    path = write_index(tmp_path, (3, 4))
    old = Path(path).read_bytes()
    os.unlink(tmp_path / "s0.tar")
    with pytest.raises(WidsError, match="there is no file"):
        update_index(path)
    assert Path(path).read_bytes() == old
    told = update_index(path, settings=IndexSettings(is_dropping_missing=True))
    assert (told.dropped, told.failed, urls_in(path)) == (1, {}, ["s1.tar"])
    with pytest.raises(SelectionError, match="no shard of the index has a name like"):
        update_index(path, drop=["x"])
    with pytest.raises(SelectionError, match="no shards would be left"):
        update_index(path, drop=["*"])


def test_update_keeps_checksums(tmp_path):
    """An index with md5 sums has them afterwards, of the new bytes and of new shards."""
    path = write_index(tmp_path, (3,))
    update_index(path, settings=IndexSettings(has_md5=True))
    write_shard(tmp_path / "s0.tar", 5)
    update_index(path, add=[write_shard(tmp_path / "s1.tar", 1)])
    for entry in read(path)["shardlist"]:
        assert entry["md5sum"] == hashlib.md5((tmp_path / entry["url"]).read_bytes()).hexdigest()


def test_merge(tmp_path):
    """Shards of all, once, in order; URLs still lead there; each knows its dataset; sub-datasets are taken apart."""
    one = write_index(tmp_path / "a", (3, 4))
    two = write_index(tmp_path / "b", (2,))
    write_json(one, {**read(one), "name": "cats"})
    parts = write_json(
        tmp_path / "parts.json", {"wids_version": 1, "datasets": [{"source_url": "b/index.json", "name": "dogs"}]}
    )
    told = merge_indexes([one, parts, two], str(tmp_path / "all.json"))
    assert (told.shards, told.samples, told.repeated) == (3, 9, 1)
    assert urls_in(told.output) == ["a/s0.tar", "a/s1.tar", "b/s0.tar"]
    assert [entry["dataset"] for entry in read(told.output)["shardlist"]] == ["cats", "cats", "dogs"]
    dataset = ShardListDataset(told.output)
    assert [dataset[i]["__dataset__"] for i in (0, 8)] == ["cats", "dogs"]
    with pytest.raises(SpecError, match="make one first"):
        merge_indexes([str(tmp_path / "a/s0.tar")], str(tmp_path / "x.json"))


def test_split(tmp_path):
    """By number and by fractions of the samples; parts hold every shard once, in order, and can be read."""
    path = write_index(tmp_path / "d", (5, 1, 2, 2), name="i.json", info="words")
    told = split_index(path, [str(tmp_path / "p-{}.json")], parts=lambda counts: writing.split_every(len(counts), 3))
    assert [(each.shards, each.samples) for each in told] == [(3, 8), (1, 2)]
    assert urls_in(tmp_path / "p-1.json") == ["d/s3.tar"]
    assert read(tmp_path / "p-0.json")["info"] == "words"
    assert len(ShardListDataset(str(tmp_path / "p-0.json"))) == 8
    outputs = [str(tmp_path / "train.json"), str(tmp_path / "val.json")]
    told = split_index(path, outputs, parts=lambda counts: writing.split_by_fractions(counts, [0.8, 0.2]))
    assert [(each.shards, each.samples) for each in told] == [(3, 8), (1, 2)]
    with pytest.raises(InputError, match="there are 2 parts, and 1 outputs"):
        split_index(path, outputs[:1], parts=lambda counts: writing.split_by_fractions(counts, [0.8, 0.2]))


@pytest.mark.parametrize("is_view", [False, True])
@pytest.mark.parametrize("name", ["p-{}.json", "{}/p-{}.json"])
def test_parts_of_an_earlier_split_do_not_stay(tmp_path, is_view, name):
    """A split into fewer parts names those that a glob would read twice, and writes nothing until they are gone."""
    index, pattern = write_index(tmp_path / "d", (1,) * 11), str(tmp_path / name)
    if is_view:  # which has a name like those of its parts
        ShardListDataset(index).select(range(11)).save(index := str(tmp_path / "p-100.json"))
    for k in range(11):
        (tmp_path / f"{k}").mkdir()
        (tmp_path / f"{k:02}").mkdir(exist_ok=True)
    for number, text in (("77", Path(write_index(tmp_path / "e", (1,))).read_text()), ("78", "no index"), ("79", "")):
        (tmp_path / f"p-{number}.json").write_text(text)

    def split(every):
        told = split_index(index, [pattern], parts=lambda counts: writing.split_every(len(counts), every))
        return [os.path.basename(each.output) for each in told]

    assert split(6) == ["p-0.json", "p-1.json"]
    assert split(5) == ["p-0.json", "p-1.json", "p-2.json"]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    with pytest.raises(OutputExistsError, match=r"p-2\.json: is of an earlier split into more parts.*; delete it, or"):
        split(6)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before
    with pytest.raises(OutputExistsError, match=r"p-0\.json and 2 more: are of an earlier split.*; delete them, or"):
        split(1)  # into p-00.json and so on
    os.unlink(pattern.replace("{}", "2"))
    assert split(6) == ["p-0.json", "p-1.json"]


@pytest.mark.parametrize(
    ("counts", "fractions", "wanted"),
    [
        ([10] * 10, [0.9, 0.1], [9, 1]),
        ([1, 1, 98], [0.5, 0.5], [2, 1]),
        ([0, 0, 0], [0.5, 0.5], [2, 1]),
        ([100, 1, 1], [0.1, 0.1, 0.8], [1, 1, 1]),
        ([5], [1.0], [1]),
    ],
)
def test_fractions(counts, fractions, wanted):
    """Each part has a shard at least, all of them together everything."""
    parts = writing.split_by_fractions(counts, fractions)
    assert [k for part in parts for k in part] == list(range(len(counts)))
    assert [len(part) for part in parts] == wanted


@pytest.mark.parametrize("fractions", [[0.5, 0.6], [1.5, -0.5], [], [0.25] * 4])
def test_fractions_that_cannot_be(fractions):
    """They are positive, add up to 1, and there are shards enough."""
    with pytest.raises(SpecError):
        writing.split_by_fractions([1, 1, 1], fractions)


def test_rebase(tmp_path):
    """Absolute URLs lose what they have in common, relative ones stay; without a base they are beside the index."""
    shards = [{"url": f"gs://b/d/{name}.tar", "nsamples": 1} for name in ("x/a", "b")]
    path = write_json(tmp_path / "i.json", {"wids_version": 1, "name": "n", "shardlist": shards})
    rebase_index(path, "https://h/e")
    assert (read(path)["base"], urls_in(path), read(path)["name"]) == ("https://h/e", ["x/a.tar", "b.tar"], "n")
    rebase_index(path, "", output=str(tmp_path / "j.json"))
    assert "base" not in read(tmp_path / "j.json")
    assert urls_in(tmp_path / "j.json") == ["x/a.tar", "b.tar"]
    path = write_json(tmp_path / "k.json", {**read(path), "shardlist": [{"url": "/d/e/a.tar", "nsamples": 1}]})
    rebase_index(path, "https://h/e")
    assert urls_in(path) == ["a.tar"]
    write_json(path, {"wids_version": 1, "shardlist": [*shards, {"url": "c.tar", "nsamples": 1}]})
    with pytest.raises(SpecError, match="some of the index's URLs are absolute") as refused:
        rebase_index(path, "x")
    assert refused.value.hint == "base"


def test_merging_indexes_that_contradict_each_other(tmp_path):
    """What both say of a shard has to be the same; what one of them does not say is none."""
    shard = write_shard(tmp_path / "s.tar", 3)
    entry = {"url": shard, "nsamples": 3, "filesize": os.stat(shard).st_size}
    one = write_json(tmp_path / "a.json", {"wids_version": 1, "shardlist": [entry]})
    two = write_json(tmp_path / "b.json", {"wids_version": 1, "shardlist": [{**entry, "filesize": None}]})
    assert merge_indexes([one, two], str(tmp_path / "m.json")).repeated == 1
    for key, value in (("nsamples", 4), ("filesize", 5)):
        write_json(tmp_path / "b.json", {"wids_version": 1, "shardlist": [{**entry, key: value}]})
        with pytest.raises(SpecError, match=rf"b\.json: says that {key} of .*s\.tar is {value}, .* says {entry[key]}"):
            merge_indexes([one, two], str(tmp_path / "n.json"))


def test_no_index_is_written_over_a_shard(tmp_path):
    """Merging and splitting refuse to replace a shard, whatever it is called."""
    write_shard(tmp_path / "shard", 3)
    shards = [{"url": "shard", "nsamples": 3}]
    index = write_json(tmp_path / "i.json", {"wids_version": 1, "shardlist": shards})
    before = (tmp_path / "shard").read_bytes()
    with pytest.raises(OutputExistsError, match="one of the shards"):
        merge_indexes([str(index)], str(tmp_path / "shard"))
    with pytest.raises(OutputExistsError, match="one of the shards"):
        split_index(str(index), [str(tmp_path / "shard")], parts=lambda counts: [range(len(counts))])
    assert (tmp_path / "shard").read_bytes() == before


def test_no_part_of_a_split_is_written_over_another(tmp_path):
    """Two spellings of one output are one file, and refused before anything is written."""
    index = write_index(tmp_path)
    outputs = [f"{tmp_path}/{name}" for name in ("a.json", "./a.json", "b.json")]
    with pytest.raises(InputError, match="one file"):
        split_index(index, outputs, parts=lambda counts: [range(k, k + 1) for k in range(len(counts))])
    assert not (tmp_path / "a.json").exists()


def test_merge_keeps_what_the_inputs_agree_in(tmp_path, caplog):
    """Other keys are left out and named; what was written into the merged index by hand stays."""
    one = write_index(tmp_path / "a", (1, 2), classes=["x", "y"], license="MIT", site="Bern")
    two = write_index(tmp_path / "b", (3,), classes=["x", "y"], license="BSD")
    output = str(tmp_path / "z.json")
    found = merge_indexes([one, two], output)
    index = read(output)
    assert index["classes"] == ["x", "y"]
    assert found.dropped_keys == ["license", "site"]
    assert {"license", "site"}.isdisjoint(index)
    assert "has no 'license' and no 'site', because the indexes that it is made of do not agree" in caplog.text
    write_json(output, {**index, "my_note": 1, "name": "both"})
    found = merge_indexes([two], output)
    assert (read(output)["my_note"], read(output)["license"], read(output)["name"]) == (1, "BSD", "both")
    assert (found.kept, found.gone) == (["my_note"], [str(tmp_path / "a/s0.tar"), str(tmp_path / "a/s1.tar")])


def test_merge_of_views_keeps_what_they_agree_in(tmp_path):
    """A view that lists its shards itself has no other place for it; a saved one keeps keys written by hand."""
    views = []
    for name in ("a", "b"):
        index = write_index(tmp_path / name, (3, 2), classes=["x"], site=name)
        ShardListDataset(index).select([1, 4]).save(view := str(tmp_path / f"{name}.json"))
        views.append(view)
    output = str(tmp_path / "z.json")
    found = merge_indexes(views, output)
    assert (read(output)["classes"], found.dropped_keys) == (["x"], ["site"])
    ShardListDataset(output).select([0, 2]).save(part := str(tmp_path / "part.json"))
    write_json(part, {**read(part), "my_note": 1})
    ShardListDataset(output).select([1]).save(part)
    assert (read(part)["classes"], read(part)["my_note"], read(part)["nsamples"]) == (["x"], 1, 1)


def test_split_and_rebase_keep_what_was_written_by_hand(tmp_path):
    """Into their outputs."""
    index = write_index(tmp_path / "d", (1, 2), classes=["x"])
    part, moved = str(tmp_path / "p.json"), str(tmp_path / "m.json")
    for number in range(2):
        split_index(index, [part], parts=lambda counts: [range(len(counts))])
        rebase_index(index, f"https://host{number}/d", output=moved)
        for path in (part, moved):
            write_json(path, {**read(path), "my_note": 1})
    rebase_index(index, "https://host/", output=moved)
    assert [(read(path)["classes"], read(path)["my_note"]) for path in (part, moved)] == [(["x"], 1)] * 2

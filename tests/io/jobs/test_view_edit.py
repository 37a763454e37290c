"""Merge, split and rebase of views: the same samples in the same order, compared with lists."""

import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

import wids
from tests.support.shards import serve, write_index, write_json, write_shards
from wids.core.index import writing
from wids.core.index.view_file import checksum_of
from wids.errors import InputError, OutputExistsError, ShardNotFoundError, SpecError
from wids.jobs import view_edit
from wids.jobs.index_edit import merge_indexes, rebase_index, split_index

pytestmark = pytest.mark.usefixtures("own_cache")

COUNTS = (3, 0, 5, 4, 2)


def opened(path):
    """The dataset of an index or view."""
    return wids.ShardListDataset(path, transformations=[])


def names(path):
    """What a sample is in any index: (shard, row, key) of each."""
    return [(each["__shard__"], each["__shardindex__"], each["__key__"]) for each in opened(path)]


def read(path):
    """What an index says."""
    return json.loads(path.read_text())


@pytest.fixture
def cats(tmp_path):
    """An index of five shards."""
    return write_index(tmp_path / "cats", COUNTS, name="cats.json")


@pytest.fixture
def dogs(tmp_path):
    """Another one; its shards have the names of the others, in another directory."""
    return write_index(tmp_path / "dogs", (4, 1), name="dogs.json")


def save_view(index, indices, path):
    """A view of some samples of an index; returns its path as a str."""
    opened(index).select(indices).save(path)
    return str(path)


def listed_by(path):
    """The index that lists the shards of an index or view; None: a view lists them itself."""
    index = json.loads(Path(path).read_text())
    if "rows" not in index:
        return path
    return os.path.join(os.path.dirname(path), index["view_of"]) if "view_of" in index else None


def merge_lists(places):
    """The samples of all, each once, in the order of the index that all are of, or else of the places."""
    parts, indexes = [names(place) for place in places], {listed_by(place) for place in places}
    index = indexes.pop()
    if not indexes and index is not None:
        return [each for each in names(index) if any(each in part for part in parts)]
    shards = list(dict.fromkeys(each[0] for part in parts for each in part))
    return sorted({each for part in parts for each in part}, key=lambda each: (shards.index(each[0]), each[1]))


@pytest.mark.parametrize("seed", range(12))
def test_merges_of_anything(cats, dogs, tmp_path, seed):
    """Indexes, views of them, views of merged views: what is written has the samples of all, each once."""
    rng, places = random.Random(seed), [cats, dogs]
    for k in range(5):
        index = rng.choice(places)
        some = [i for i in range(len(opened(index))) if rng.random() < 0.5]
        places.append(save_view(index, some, tmp_path / f"view-{k}.json"))
        chosen = rng.sample(places, rng.randrange(1, 4))
        told = merge_indexes(chosen, str(tmp_path / f"merged-{k}.json"), name="pets")
        found = names(told.output)
        assert found == merge_lists(chosen)
        assert told.samples == len(found)
        if any(opened(place)._collection.shards.selection is not None for place in chosen):
            assert told.repeated_samples == sum(len(opened(place)) for place in chosen) - len(found)
            assert told.shards == len({shard for shard, _, _ in found})
        assert opened(told.output).dataset_name == "pets"
        places.append(told.output)


def test_merge_of_views_of_one_index(cats, tmp_path):
    """The parts of a split are the whole again; it is a view of the index that they were views of."""
    parts = [str(tmp_path / f"part-{k}.json") for k in range(3)]
    for path, part in zip(parts, opened(cats).split(0.5, 0.3, 0.2), strict=True):
        part.save(path)
    told = merge_indexes(parts, str(tmp_path / "all.json"))
    assert names(told.output) == names(cats)
    merged = read(tmp_path / "all.json")
    assert (merged["view_of"], merged["name"]) == ("cats/cats.json", "all")
    assert merged["made_by"] == ["merge (part-0.json, part-1.json, part-2.json): 14 of 14"]
    assert "view_of" in read(tmp_path / "all.json")
    assert told.repeated_samples == 0


def test_merge_of_views_of_several_indexes(cats, dogs, tmp_path):
    """A view that lists the shards that it has samples of; each keeps its keys, and the name of its index."""
    write_json(
        cats, {**json.loads((tmp_path / "cats" / "cats.json").read_text()), "name": "cats", "member_tables": "t"}
    )
    some = save_view(cats, [0, 4, 5], tmp_path / "some.json")
    told = merge_indexes([some, dogs], str(tmp_path / "pets.json"))
    pets = read(tmp_path / "pets.json")
    assert [(each["url"], each["nsamples"], each.get("dataset")) for each in pets["shardlist"]] == [
        ("cats/s0.tar", 3, "cats"),
        ("cats/s2.tar", 5, "cats"),
        ("dogs/s0.tar", 4, None),
        ("dogs/s1.tar", 1, None),
    ]
    assert pets["member_tables"] == "cats/t"
    assert (told.shards, told.samples, told.repeated, told.repeated_samples) == (4, 8, 0, 0)
    assert [each["__dataset__"] for each in opened(told.output)] == ["cats"] * 3 + [""] * 5
    assert names(told.output) == names(some) + names(dogs)


def test_merges_that_cannot_be(cats, dogs, tmp_path):
    """The index of a view is not written over; nor are shards merged of which two indexes say different things."""
    view = save_view(cats, [0, 5], tmp_path / "view.json")
    before = (tmp_path / "cats" / "cats.json").read_bytes()
    for chosen in ([view], [view, dogs]):
        with pytest.raises(OutputExistsError, match="another name"):
            merge_indexes(chosen, cats)
    assert (tmp_path / "cats" / "cats.json").read_bytes() == before
    index = json.loads(before)
    index["shardlist"][0]["nsamples"] = 7
    other = write_json(tmp_path / "cats" / "other.json", index)
    with pytest.raises(SpecError, match=r"nsamples of .*s0\.tar is 7, and an index before it says 3"):
        merge_indexes([view, other], str(tmp_path / "x.json"))
    summed = []
    for name, checksum in (("cats", "00000001"), ("other", "00000002")):  # of shards that were packed again meanwhile
        index = json.loads(before)
        index["shardlist"][0]["crc32"] = checksum
        write_json(tmp_path / "cats" / f"{name}.json", index)
        summed.append(save_view(str(tmp_path / "cats" / f"{name}.json"), [0], tmp_path / f"of {name}.json"))
    with pytest.raises(SpecError, match=r"crc32 of .*s0\.tar is 00000002, and an index before it says 00000001"):
        merge_indexes(summed, str(tmp_path / "x.json"))
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize("number", [1, 2, 3])
def test_split(cats, tmp_path, number):
    """Views of the same index, of so many of the shards that the view has samples of; together they are the view."""
    view = save_view(cats, [0, 2, 3, 7, 8, 13], tmp_path / "view.json")
    told = split_index(
        view, [str(tmp_path / "p-{}.json")], parts=lambda counts: writing.split_every(len(counts), number)
    )
    assert [each.shards for each in told] == {1: [1, 1, 1, 1], 2: [2, 2], 3: [3, 1]}[number]
    assert [name for each in told for name in names(each.output)] == names(view)
    assert sum(each.samples for each in told) == 6
    first = read(tmp_path / "p-0.json")
    assert first["view_of"] == "cats/cats.json"
    assert first["made_by"] == ["select: 6 of 14", f"index split, 0 of {len(told)}: {told[0].samples} of 6"]


def test_split_by_fractions(cats, dogs, tmp_path):
    """The samples that the view has are counted; one that lists its shards itself is split as well."""
    view = save_view(cats, [0, 3, 4, 5, 6, 7], tmp_path / "view.json")
    merged = merge_indexes([view, dogs], str(tmp_path / "merged.json")).output
    outputs = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    told = split_index(merged, outputs, parts=lambda counts: writing.split_by_fractions(counts, [0.5, 0.5]))
    assert [(each.shards, each.samples) for each in told] == [(2, 6), (2, 5)]
    assert names(outputs[0]) + names(outputs[1]) == names(merged)
    nothing = save_view(cats, [], tmp_path / "nothing.json")
    with pytest.raises(InputError, match="nothing to split"):
        split_index(nothing, outputs, parts=lambda counts: writing.split_every(len(counts), 1))


def test_rebase(cats, tmp_path):
    """A view finds its index where it lies now, from a disk and from a server; neither is read."""
    view = save_view(cats, [0, 4, 5], tmp_path / "view.json")
    before = [name[1:] for name in names(view)]
    shutil.move(tmp_path / "cats", tmp_path / "moved")
    with pytest.raises(
        ShardNotFoundError, match=r"view_of: .*cats\.json does not exist; give its new place with `wids index rebase`"
    ):
        opened(view)
    told = rebase_index(view, "moved")
    assert (told.output, told.shards, told.samples) == (view, 2, 3)
    assert read(tmp_path / "view.json")["view_of"] == "moved/cats.json"
    assert [name[1:] for name in names(view)] == before
    with serve(tmp_path / "moved") as server:
        (tmp_path / "elsewhere").mkdir()
        far = rebase_index(view, server.url, output=str(tmp_path / "elsewhere" / "far.json")).output
        assert [name[1:] for name in names(far)] == before
        assert opened(far).fingerprint == opened(view).fingerprint
    assert read(tmp_path / "view.json")["view_of"] == "moved/cats.json"
    beside = rebase_index(far, "", output=str(tmp_path / "moved" / "beside.json")).output
    assert read(tmp_path / "moved" / "beside.json")["view_of"] == "cats.json"
    assert [name[1:] for name in names(beside)] == before


def test_rebase_of_a_view_that_lists_its_shards(tmp_path):
    """Its shards are where they lie now, as those of an index; samplers know it again."""
    path = tmp_path / "view.json"
    wids.ShardListDataset([*write_shards(tmp_path / "a", (3,)), *write_shards(tmp_path / "b", (4,))]).select(
        [1, 3]
    ).save(path)
    before, digest = [name[1:] for name in names(path)], opened(path).fingerprint
    for part in "ab":
        shutil.move(tmp_path / part, tmp_path / "moved" / part)
    rebase_index(str(path), "moved")
    assert [name[1:] for name in names(path)] == before
    assert opened(path).fingerprint == digest
    assert {each["url"] for each in read(path)["shardlist"]} == {"a/s0.tar", "b/s0.tar"}


def test_rebase_with_rows_that_are_damaged(cats, tmp_path):
    """Nothing is written."""
    view = save_view(cats, [0, 4, 5], tmp_path / "view.json")
    before = (tmp_path / "view.json").read_bytes()
    rows = tmp_path / read(tmp_path / "view.json")["rows"]
    data = bytearray(rows.read_bytes())
    data[-9] ^= 1
    rows.write_bytes(data)
    with pytest.raises(SpecError, match="damaged"):
        rebase_index(view, "moved")
    rows.unlink()
    with pytest.raises(SpecError, match="cannot be read"):
        rebase_index(view, "moved", output=str(tmp_path / "other.json"))
    assert (tmp_path / "view.json").read_bytes() == before
    assert not (tmp_path / "other.json").exists()


def test_rebase_of_a_view_that_is_saved_again(cats, tmp_path, monkeypatch):
    """Meanwhile: the rows that it had are gone, and what is moved is what it is now."""
    view = save_view(cats, [0, 4, 5], tmp_path / "view.json")
    load = view_edit.load_rows

    def save_before(*args):
        monkeypatch.setattr(view_edit, "load_rows", load)
        save_view(cats, [1, 7], view)
        return load(*args)

    monkeypatch.setattr(view_edit, "load_rows", save_before)
    assert rebase_index(view, "cats").samples == 2
    assert names(view) == [names(cats)[i] for i in (1, 7)]


def test_no_view_replaces_its_index(cats, tmp_path):
    """Neither the one that it is a view of, nor the one that it would be a view of."""
    view = save_view(cats, [0, 4, 5], tmp_path / "view.json")
    shutil.copytree(tmp_path / "cats", tmp_path / "copy")
    for output in (cats, str(tmp_path / "copy" / "cats.json")):
        before = Path(output).read_bytes()
        with pytest.raises(OutputExistsError, match="another name"):
            rebase_index(view, "", output=output)
        assert Path(output).read_bytes() == before


def test_what_gives_access_is_not_written(cats, dogs, tmp_path, caplog):
    """A signed URL of an index is that index all the same; no view that is made of others has a secret in it."""
    with serve(tmp_path) as server:
        signed = f"{server.url}/cats/cats.json?signature=secret"
        view = save_view(signed, [0, 4, 5], tmp_path / "view.json")
        whole = merge_indexes([view, signed], str(tmp_path / "whole.json"))
        assert (whole.samples, whole.repeated_samples) == (14, 3)
        merge_indexes([signed, save_view(dogs, [1], tmp_path / "dog.json")], str(tmp_path / "pets.json"))
        rebase_index(view, server.url.replace("://", "://me:secret@") + "/cats", output=str(tmp_path / "far.json"))
        assert [read(tmp_path / f"{name}.json")["view_of"] for name in ("view", "whole", "far")] == [
            f"{server.url}/cats/cats.json"
        ] * 3
        for name, count in (("whole", 14), ("pets", 15), ("far", 3)):
            assert "secret" not in (tmp_path / f"{name}.json").read_text()
            assert len(names(tmp_path / f"{name}.json")) == count
    assert "gives access" in caplog.text
    assert "secret" not in caplog.text


def test_rows_are_known_by_their_checksum(cats, tmp_path):
    """Those of views that are merged, split and rebased, as those of any view."""
    view = save_view(cats, [0, 4, 5], tmp_path / "view.json")
    whole = merge_indexes([view, cats], str(tmp_path / "whole.json")).output
    part = split_index(view, [str(tmp_path / "part.json")], parts=lambda counts: [range(len(counts))])[0].output
    far = rebase_index(view, "cats", output=str(tmp_path / "far.json")).output
    for path in map(Path, (whole, part, far)):
        rows = (tmp_path / read(path)["rows"]).read_bytes()
        assert read(path)["rows_checksum"] == checksum_of(rows)
    os.replace(tmp_path / read(Path(whole))["rows"], tmp_path / read(Path(far))["rows"])
    with pytest.raises(SpecError, match="rows of another view"):
        rebase_index(far, "cats")


def test_the_order_is_the_same(cats, dogs, tmp_path):
    """A state that was saved over a view is taken over what was merged of its parts."""
    view = save_view(cats, np.arange(0, 14, 2), tmp_path / "view.json")
    parts = split_index(view, [str(tmp_path / "p-{}.json")], parts=lambda counts: writing.split_every(len(counts), 2))
    merged = merge_indexes([each.output for each in parts], str(tmp_path / "merged.json")).output
    assert opened(merged).fingerprint == opened(view).fingerprint
    sampler = wids.DistributedChunkedSampler(opened(view), num_replicas=1, rank=0)
    order = list(sampler)
    again = wids.DistributedChunkedSampler(opened(merged), num_replicas=1, rank=0)
    again.load_state_dict({**sampler.state_dict()})
    first = wids.DistributedChunkedSampler(opened(merged), num_replicas=1, rank=0)
    assert list(first) == order
    assert names(merge_indexes([merged, dogs], str(tmp_path / "x.json")).output) == names(view) + names(dogs)

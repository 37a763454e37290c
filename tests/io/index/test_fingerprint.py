"""Shards that were written anew with the same names and counts, and what was saved of those of before."""

import json
import pickle
import shutil
from itertools import islice
from pathlib import Path

import pytest

import wids
from tests.support import columns as made
from tests.support.numbers import alone
from tests.support.shards import write_shards
from wids.core.index import compiled_files
from wids.errors import ColumnsError, SpecError, StateError
from wids.jobs.index_create import IndexSettings, create_index
from wids.jobs.index_edit import convert_index

COUNTS = (3, 4)


def pack(directory, *, payload=0, has_md5=True, keep=("crc32", "md5sum")):
    """Shards and an index with these kinds of checksums; with another payload, the shards have other bytes."""
    index = made.write_dataset(directory, COUNTS, payload=payload)
    create_index([str(Path(directory) / "*.tar")], str(index), overwrite=True, settings=IndexSettings(has_md5=has_md5))
    raw = json.loads(Path(index).read_text())
    for shard in raw["shardlist"]:
        for kind in {"crc32", "md5sum"} - set(keep):
            shard.pop(kind, None)
        shard.pop("filesize")  # they may be of the same size
    Path(index).write_text(json.dumps(raw))
    return str(index)


# What the checksums of before and of now are -> whether other data are noticed.
KINDS = [
    (("crc32",), ("crc32",), True),
    (("md5sum",), ("md5sum",), True),
    (("crc32", "md5sum"), ("md5sum",), True),
    (("crc32",), ("md5sum",), False),
    ((), ("crc32",), False),
    (("crc32",), (), False),
]


def open_it(index, **options):
    """The dataset of an index."""
    return wids.ShardListDataset(index, transformations="raw", **options)


def sampler_of(dataset):
    """A sampler whose states are tried."""
    return wids.DistributedChunkedSampler(dataset, rank=0, num_replicas=1, chunksize=2, seed=3)


def described(dataset, where="it"):
    """(state, loader of states) of a dataset, or of a mixture of it and another one."""
    return sampler_of(wids.mix({where: (dataset, 0.5), "same": (dataset, 0.5)}))


@pytest.mark.parametrize(("before", "now", "is_noticed"), KINDS, ids=str)
@pytest.mark.parametrize("make", [sampler_of, described], ids=["dataset", "mixture"])
def test_a_state(tmp_path, before, now, is_noticed, make):
    """It is refused where a kind of checksums that both have differs, and says how to go on; else it is taken."""
    index = pack(tmp_path / "d", keep=before)
    state = json.loads(json.dumps(make(open_it(index)).state_dict()))
    make(open_it(pack(tmp_path / "d", keep=now))).load_state_dict(state)  # the same shards
    again = make(open_it(pack(tmp_path / "d", payload=9, keep=now)))
    if not is_noticed:
        again.load_state_dict(state)
        return
    with pytest.raises(StateError, match=r"other checksums .*contents.*delete 'contents'"):
        again.load_state_dict(state)
    for order in (state["order"], *state["order"].get("sources", {}).values()):
        order.pop("contents", None)
    again.load_state_dict(state)


def test_shards_of_other_sizes(tmp_path):
    """An index without checksums, as of remote shards, has their sizes, and these tell as well."""
    shards = [{"url": f"s{k}.tar", "nsamples": n, "filesize": 10240} for k, n in enumerate(COUNTS)]
    (tmp_path / "i.json").write_text(json.dumps({"wids_version": 1, "shardlist": shards}))
    dataset = open_it(str(tmp_path / "i.json"))
    state = sampler_of(dataset).state_dict()
    assert list(state["order"]["contents"]) == ["filesize"]
    assert len(json.dumps(state)) < 1000
    dataset.select([1, 5]).save(tmp_path / "view.json")
    shards[1]["filesize"] = 20480
    (tmp_path / "i.json").write_text(json.dumps({"wids_version": 1, "shardlist": shards}))
    with pytest.raises(StateError, match="other checksums or sizes"):
        sampler_of(open_it(str(tmp_path / "i.json"))).load_state_dict(state)
    with pytest.raises(SpecError, match="other checksums or sizes"):
        open_it(str(tmp_path / "view.json"))


def test_a_state_of_a_join_and_of_a_part(tmp_path):
    """Torch's ConcatDataset and Subset hand the contents on; those of a view are its dataset's."""
    from torch.utils.data import ConcatDataset, Subset

    pack(tmp_path / "a")
    pack(tmp_path / "b")

    def make(kind):
        one, two = (open_it(str(next((tmp_path / each).glob("*.json")))) for each in "ab")
        whole = {"join": lambda: ConcatDataset([one, two]), "part": lambda: Subset(two, range(1, 6))}
        return sampler_of({**whole, "view": lambda: two.select(range(1, 6))}[kind]())

    states = {kind: make(kind).state_dict() for kind in ("join", "part", "view")}
    for kind, state in states.items():
        make(kind).load_state_dict(state)
    pack(tmp_path / "b", payload=9)
    for kind, state in states.items():
        with pytest.raises(StateError, match="other checksums"):
            make(kind).load_state_dict(state)


def test_a_state_through_a_compiled_index(tmp_path):
    """It has the contents that its JSON has, wherever it is opened."""
    index = pack(tmp_path / "d")
    state = sampler_of(open_it(index)).state_dict()
    compiled = str(tmp_path / "d" / "train.widsx")
    convert_index(index, compiled)
    assert open_it(compiled).contents == open_it(index).contents
    assert sorted(open_it(index).contents) == ["crc32", "md5"]
    sampler_of(open_it(compiled)).load_state_dict(state)
    pack(tmp_path / "d", payload=9)
    convert_index(index, compiled, overwrite=True)
    with pytest.raises(StateError, match="other checksums"):
        sampler_of(open_it(compiled)).load_state_dict(state)


def test_an_assigned_index_has_its_own(tmp_path):
    """Shards that a program assigns have the contents that they say."""
    dataset = open_it(pack(tmp_path / "d"))
    before = dataset.contents
    dataset.shards = [dict(shard) for shard in dataset.shards][:1]
    assert dataset.contents.keys() == before.keys()
    assert dataset.contents["crc32"] != before["crc32"]
    dataset.shards = [{**row, "crc32": "00000001"} for row in dataset.shards]
    assert dataset.contents["crc32"] not in (before["crc32"], "")


@pytest.mark.parametrize(("before", "now", "is_noticed"), KINDS, ids=str)
def test_a_saved_view(tmp_path, before, now, is_noticed):
    """Its rows may be other samples now: it is an error to open it, by the same rule."""
    index, view = pack(tmp_path / "d", keep=before), str(tmp_path / "d" / "view.json")
    open_it(index).select([1, 5]).save(view)
    pack(tmp_path / "d", keep=now)
    assert len(open_it(view)) == 2
    pack(tmp_path / "d", payload=9, keep=now)
    if is_noticed:
        with pytest.raises(SpecError, match=r"has changed since the view was saved: .*other checksums"):
            open_it(view)
    else:
        assert len(open_it(view)) == 2


def test_a_pickle_whose_compiled_index_is_gone(tmp_path, set_limits):
    """It is compiled again, and refused if the shards were written anew meanwhile."""
    set_limits(compiled_files, min_shards=2, min_row_bytes=1)
    index = pack(tmp_path / "d")
    data = pickle.dumps(open_it(index, cache_dir=tmp_path / "cache"))
    shutil.rmtree(tmp_path / "cache")
    assert len(pickle.loads(data)) == sum(COUNTS)
    pack(tmp_path / "d", payload=9)
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(SpecError, match="the index has changed since the dataset was made"):
        pickle.loads(data)


def test_columns(tmp_path):
    """A table of the shards of before is no table of these."""
    index = pack(tmp_path / "d")
    made.make_columns(index)
    assert len(open_it(index).where("label >= 0")) > 0
    raw = json.loads(Path(index).read_text())
    raw["shardlist"][1]["crc32"] = "00000001"  # of the same size
    Path(index).write_text(json.dumps(raw))
    with pytest.raises(ColumnsError, match="other checksums"):
        open_it(index).where("label = 3")
    pack(tmp_path / "d", payload=9)
    with pytest.raises(ColumnsError, match="1 of 2 shards have another size"):
        open_it(index).where("label = 3")


def test_shards_of_the_same_names_in_other_places_of_the_list_are_another_dataset(tmp_path):
    """Two directories with shards of the same names and counts, listed the other way round: refused."""
    one, two = write_shards(tmp_path / "one", (6,)), write_shards(tmp_path / "two", (6,))
    sampler = alone(wids.ShardListDataset(one + two))
    list(islice(sampler, 5))
    with pytest.raises(StateError, match="dataset"):
        alone(wids.ShardListDataset(two + one)).load_state_dict(sampler.state_dict())


@pytest.mark.parametrize("form", ["https://example.com/get?name={}.tar", "/data/part#{}.tar"])
def test_shards_that_differ_behind_a_mark_are_another_dataset(form):
    """What tells shards apart may stand in a query, or behind a # in a file's name: another order is seen."""
    shards = [(form.format(k), 5) for k in range(2)]
    assert wids.ShardListDataset(shards).fingerprint != wids.ShardListDataset(shards[::-1]).fingerprint


def test_a_fingerprint_is_the_same_wherever_the_shards_lie():
    """Another place, and other signatures, are the same dataset; this is to stay when the two tests above pass."""
    places = ["/data/{}/{}.tar", "https://example.com/v2/{}/{}.tar?sig=a{}", "gs://bucket/{}/{}.tar"]
    prints = {
        wids.ShardListDataset([(place.format(name, k, k), 5) for name in "ab" for k in range(2)]).fingerprint
        for place in places
    }
    assert len(prints) == 1

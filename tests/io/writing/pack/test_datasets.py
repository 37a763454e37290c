"""Datasets to pack: shards that are dealt out anew, and those that change meanwhile."""

import os
from pathlib import Path

import pytest

from tests.support import backends
from tests.support.packing import list_dataset, pack, pack_dataset, pack_files, put, shown
from tests.support.shards import write_index, write_json, write_shard, write_tar
from wids.core.tables.fields import parse_fields
from wids.errors import SampleError, WidsError
from wids.writing.pack import folders
from wids.writing.pack.listing import read_one_by_one
from wids.writing.pack.run import pack_listing
from wids.writing.pack.shard import PackSettings


def test_dataset_is_dealt_out_anew(tmp_path):
    """An index becomes other shards with the same members."""
    index = write_index(tmp_path / "in", (3, 4, 2))
    same = pack_dataset(index, tmp_path / "a/s-%d.tar", samples=5)
    assert shown(same.index) == shown(index)


def test_dataset_by_size(tmp_path):
    """By size, shards of a dataset are cut as those of files are: none is larger than it may be."""
    index = write_index(tmp_path / "in", (30, 40))
    outcome = pack_dataset(index, tmp_path / "a/s-%d.tar", size=30_720)
    sizes = [os.path.getsize(tmp_path / f"a/s-{k}.tar") for k in range(outcome.shards)]
    assert len(sizes) > 3
    assert max(sizes) <= 30_720
    assert shown(outcome.index) == shown(index)


def test_tars_without_an_index(tmp_path):
    """A folder of tars, or a brace pattern, is packed as the dataset that it is."""
    write_index(tmp_path / "in", (3, 4))
    outcome = pack(tmp_path / "in", tmp_path / "a/s-%d.tar")
    assert len(shown(outcome.index)) == outcome.samples == 7
    put(tmp_path / "in", {"notes.txt": "x"})
    with pytest.raises(WidsError, match="holds tars and other files"):
        folders.guess_format(str(tmp_path / "in"))
    assert pack_dataset(f"{tmp_path}/in/s{{0..1}}.tar", tmp_path / "b/s-%d.tar").samples == 7


def test_keys_that_meet_in_a_shard(tmp_path):
    """Shards with the same keys cannot become one as they are; the error says what helps."""
    tars = [write_tar(tmp_path / f"{k}.tar", {"a.txt": b"x", "b.txt": b"y"}) for k in range(2)]
    with pytest.raises(SampleError, match=r"s-0.tar: two samples have the key 'a'$") as caught:
        pack_dataset(tars, tmp_path / "out/s-%d.tar")
    assert caught.value.hint == "number_keys"
    assert os.listdir(tmp_path / "out") == []
    assert pack_dataset(tars, tmp_path / "out/s-%d.tar", numbers_keys=True).samples == 4


def test_remote_dataset(tmp_path):
    """A remote dataset is read through the cache, and packed as a local one."""
    index = write_index(tmp_path / "in", (3, 4))
    place = backends.memory("pack-in")
    for name in os.listdir(tmp_path / "in"):
        with open(tmp_path / "in" / name, "rb") as file:
            place.add(name, file.read())
    outcome = pack_dataset(f"{place.url}/index.json", tmp_path / "a/s-%d.tar", cache_dir=tmp_path / "cache")
    assert shown(outcome.index) == shown(index)


def test_several_tars_from_a_shell(tmp_path):
    """What a shell makes of ``in/*.tar`` is one dataset, and so is what it is given in quotes."""
    write_index(tmp_path / "in", (3, 4))
    for k, sources in enumerate(([tmp_path / "in/s0.tar", tmp_path / "in/s1.tar"], tmp_path / "in/*.tar")):
        outcome = pack(sources, tmp_path / f"{k}/s-%d.tar")
        assert shown(outcome.index) == shown(tmp_path / "in/index.json")


class _Meddler:
    """The reader of a listing, in whose midst the source changes."""

    def __init__(self, reader, changes):
        self._reader, self._changes = reader, changes

    def read(self, item):
        self._changes.pop(item, lambda: None)()
        return self._reader.read(item)

    read_each = read_one_by_one

    def __getattr__(self, name):
        return getattr(self._reader, name)


@pytest.mark.parametrize("change", ["replaced", "rewritten", "other count", "cut", "removed", "directory"])
@pytest.mark.parametrize("skips_errors", [False, True], ids=["", "skip"])
def test_source_shards_that_change_while_they_are_packed(tmp_path, change, skips_errors):
    """Samples of two versions of a shard never make one dataset: no index, no half shard, and a second run is right."""
    source = write_index(tmp_path / "in", (4, 4, 4))
    path = tmp_path / "in/s1.tar"
    count = 9 if change == "other count" else 4
    new = Path(write_shard(tmp_path / "new.tar", count, first=100)).read_bytes()

    def meddle():
        if change == "cut":
            os.truncate(path, 512)
        elif change == "rewritten":
            path.write_bytes(new)
        elif change in ("removed", "directory"):
            path.unlink()
            if change == "directory":
                path.mkdir()
        else:
            os.replace(tmp_path / "new.tar", path)

    listing = list_dataset(source)
    # In the middle of the shard, which two shards are made of.
    listing.reader = _Meddler(listing.reader, {6: meddle})
    settings = PackSettings(output=str(tmp_path / "out/x-%d.tar"), samples=3, skips_errors=skips_errors)
    with pytest.raises(WidsError):
        pack_listing(listing, settings)
    left = os.listdir(tmp_path / "out")
    assert "x.json" not in left
    assert not [name for name in left if name.endswith(".part")]
    if path.is_dir():
        path.rmdir()
    path.write_bytes(new)
    listed = [{"url": f"s{k}.tar", "nsamples": count if k == 1 else 4} for k in range(3)]
    write_json(source, {"wids_version": 1, "shardlist": listed})
    pack_dataset(source, settings.output, samples=3)
    assert shown(tmp_path / "out/x.json") == shown(source)


def test_alternatives_are_another_dataset_than_all_of_them(tmp_path):
    """A run that was ended with one of the two is not continued with the other."""
    put(tmp_path / "in", {"a.jpg": "1", "a.png": "2"})
    index = pack_files(tmp_path / "in", tmp_path / "in-%d.tar").index
    digests = [
        list_dataset(index, keep_fields=fields).reader.identify([0])
        for fields in (
            parse_fields("jpg;png"),
            parse_fields(("png", "jpg")),
            parse_fields(("jpg", "png")),
            parse_fields("png;jpg"),
        )
    ]
    assert digests[1] == digests[2]
    assert len(set(digests)) == 3

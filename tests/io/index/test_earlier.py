"""Indexes that are written again: what stays of the earlier one, and which one is none of these shards."""

import json
import os
from pathlib import Path

import pytest

from tests.support.cache_shards import pack
from tests.support.cli import run
from tests.support.shards import write_json, write_shard, write_shards
from wids.core.index import compiled
from wids.core.index.earlier import EarlierIndex, other_compiled
from wids.core.index.spec import list_shards
from wids.errors import OutputExistsError
from wids.jobs.index_create import IndexSettings, create_index
from wids.jobs.index_edit import update_index


def read(path):
    """The JSON in a file."""
    return json.loads(Path(path).read_text())


def edit(path, *, site="Bern", **keys):
    """Write keys by hand: top-level ones, and one of the second shard."""
    index = read(path)
    index["shardlist"][1]["site"] = site
    return write_json(path, {**index, **keys})


@pytest.mark.parametrize(
    "bases", [("", ""), ("", "https://host/d"), ("https://host/d", ""), ("https://a/", "https://b/")]
)
def test_what_was_written_by_hand_stays(tmp_path, bases):
    """Of the index and of listed shards, also changed ones, wherever they are to be read from; the outcome names it."""
    write_shards(tmp_path / "d", (1, 2, 3))
    output, sources = str(tmp_path / "i.json"), [str(tmp_path / "d")]
    create_index(sources, output, name="cats", info="text", base=bases[0])
    edit(output, classes=["a", "b"], my_note=1)
    write_shard(tmp_path / "d/s1.tar", 9)
    found = create_index(sources, output, base=bases[1], default_name="i")
    index = read(output)
    assert [(e["nsamples"], e.get("site")) for e in index["shardlist"]] == [(1, None), (9, "Bern"), (3, None)]
    assert (index["classes"], index["my_note"], index["name"], index["info"]) == (["a", "b"], 1, "cats", "text")
    assert (sorted(found.kept), found.kept_of_shards) == (["classes", "info", "my_note", "name"], ["site"])
    assert (found.gone, found.dropped, found.dropped_keys) == ([], 0, [])
    found = create_index(sources, output, base=bases[1], name="dogs", info="more")
    assert (read(output)["name"], read(output)["info"]) == ("dogs", "more")
    assert sorted(found.kept) == ["classes", "my_note"]


def test_a_base_that_goes_is_named(tmp_path):
    """It changes all places, so that it stays only if it is given."""
    write_shards(tmp_path / "d", (1, 2))
    output, sources = str(tmp_path / "i.json"), [str(tmp_path / "d")]
    create_index(sources, output, base="https://host/d")
    assert create_index(sources, output).dropped_keys == ["base"]
    assert [entry["url"] for entry in read(output)["shardlist"]] == ["d/s0.tar", "d/s1.tar"]
    said = run("index", "create", *sources, "-o", output, "--base", "https://host/d").err
    assert "base" not in said
    assert "the index before has a base" in run("index", "create", *sources, "-o", output).err


def test_shards_that_are_not_listed_any_more(tmp_path):
    """Are counted and named; one that cannot be read is named as such."""
    shards = [shard["url"] for shard in write_shards(tmp_path / "d", (1, 2, 3, 4))]
    output = str(tmp_path / "i.json")
    create_index(shards, output)
    Path(shards[1]).write_bytes(b"x" * 5000)
    found = create_index(shards[:2], output, settings=IndexSettings(is_skipping=True))
    assert (found.gone, found.dropped, [*found.failed]) == (shards[2:], 2, shards[1:2])
    said = run("index", "create", shards[3], shards[0], "-o", output)
    assert said.code == 0
    said = run("index", "create", shards[3], "-o", output)
    assert "warning: 1 shard of the index before is not in it any more: " in said.err
    assert "s0.tar" in said.err
    os.unlink(shards[3])
    write_shard(tmp_path / "d/s9.tar", 3)
    drops = IndexSettings(is_dropping_missing=True)
    assert update_index(output, add=str(tmp_path / "d/s9.tar"), settings=drops).gone == [shards[3]]


@pytest.mark.parametrize("base", [None, "https://host/d"])
def test_an_index_of_other_shards_stays(tmp_path, base):
    """Also where the shards have the same names; with overwrite, nothing of it is kept."""
    for name in ("cats", "dogs"):
        write_shards(tmp_path / name, (1, 2))
    output = str(tmp_path / "i.json")
    create_index([str(tmp_path / "cats")], output, base=base)
    before = Path(edit(output, classes=["a"])).read_bytes()
    with pytest.raises(OutputExistsError, match="is an index of 2 shards, and none of them is listed now") as error:
        create_index([str(tmp_path / "dogs")], output)
    assert error.value.hint == "overwrite"
    assert Path(output).read_bytes() == before
    found = create_index([str(tmp_path / "dogs")], output, overwrite=True)
    assert (found.kept, found.gone, "classes" in read(output)) == ([], [], False)


def test_signed_urls_are_the_same_shards(server, tmp_path):
    """With another signature, too."""
    server.has_ranges = True
    server.add("/a.tar", pack([("a.txt", b"1")]))
    output = str(tmp_path / "i.json")
    for k in range(2):
        assert create_index([f"{server.url}/a.tar?signature={k}"], output).shards == 1


def test_what_cannot_be_read_is_no_index(tmp_path):
    """No file, a directory, a FIFO, another JSON text: no keys, and none of it waits."""
    os.mkfifo(tmp_path / "fifo")
    for name, text in (("list", "[]"), ("cut", '{"shardlist": ['), ("bytes", "\0")):
        (tmp_path / name).write_text(text)
    for name in ("none", "", "fifo", "list", "cut", "bytes"):
        found = EarlierIndex.read(str(tmp_path / name))
        assert (found.keys, found.entries, found.base) == ({}, {}, "")
    assert EarlierIndex.read(write_json(tmp_path / "i.json", {"a": 1})).keys == {"a": 1}


def test_a_compiled_index_of_other_shards(tmp_path):
    """One that lists a shard of the output, and one that is damaged, may be replaced."""
    shards = list_shards([("https://h/a.tar", 1), ("https://h/b.tar", 1)])
    path = tmp_path / "i.widsx"
    path.write_bytes(b"".join(map(bytes, compiled.pack(shards, texts=[*shards.urls], packs=[]))))
    assert other_compiled(str(path), ["https://h/b.tar", "https://h/c.tar"]) is None
    assert other_compiled(str(path), ["https://h/c.tar"]) == "is a compiled index of 2 other shards"
    path.write_bytes(path.read_bytes()[:-9])
    assert other_compiled(str(path), ["https://h/c.tar"]) is None

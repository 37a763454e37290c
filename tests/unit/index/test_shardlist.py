"""Packs of member tables that indexes name: which hold for which shard, however the shard list is made and kept."""

import json
import pickle

import pytest

from wids.core.index import compiled
from wids.core.index.spec import parse_index
from wids.errors import NotAllowedError, SpecError

PLACE = "https://host/d/train.json"


def row(name):
    """A shard as an index has it."""
    return {"url": name, "nsamples": 1}


def parse(index, *, index_url=PLACE, texts=None, **options):
    """The shard list of an index; ``texts``: those of its sub-datasets."""
    data = json.dumps({"wids_version": 1, "shardlist": [row("a.tar"), row("b.tar")], **index})
    found = {url: json.dumps(text).encode() for url, text in (texts or {}).items()}
    return parse_index(data, index_url=index_url, load=found.__getitem__, **options)


def packs_of(shards):
    """The packs of each shard."""
    return [shards[k].packs for k in range(len(shards))]


@pytest.mark.parametrize(
    ("named", "packs"),
    [
        ("train.tables", ("https://host/d/train.tables",)),
        ("../x.tables", ("https://host/x.tables",)),
        ("s3://b/x.tables", ("s3://b/x.tables",)),
        (["a.tables", "gs://b/b.tables", "a.tables"], ("https://host/d/a.tables", "gs://b/b.tables")),
        (None, ()),
        ([], ()),
    ],
)
def test_relative_to_the_index(named, packs):
    """Not to its base, where the shards are."""
    shards = parse({"member_tables": named, "base": "gs://elsewhere"})
    assert packs_of(shards) == [packs] * 2
    assert shards.all_packs() == packs
    assert shards.header["member_tables"] == named


@pytest.mark.parametrize("bad", [7, {"a": 1}, [7], "", ["", "x"], True])
def test_a_bad_value(bad):
    """The error names the index and the key."""
    with pytest.raises(SpecError, match=rf"^{PLACE}: member_tables") as caught:
        parse({"member_tables": bad})
    assert caught.value.path.startswith("member_tables")
    assert caught.value.url == PLACE


def test_a_remote_index_may_not_point_at_local_files():
    """Nor run programs; it may where that is allowed."""
    for bad in ("file:///etc/passwd", "pipe:cat x"):
        with pytest.raises(NotAllowedError, match="member_tables"):
            parse({"member_tables": bad})
        assert parse({"member_tables": bad}, allow_local=True).all_packs() == (bad,)
        assert parse({"member_tables": bad}, index_url="/d/train.json").all_packs() == (bad,)


def test_sub_datasets():
    """Their own pack, else that of the index they stand in; one that is loaded has it beside itself."""
    parts = [
        {"shardlist": [row("c.tar")]},
        {"shardlist": [row("d.tar")], "member_tables": "own.tables"},
        {"source_url": "sub/one.json"},
        {"source_url": "sub/two.json"},
    ]
    texts = {
        "https://host/d/sub/one.json": {"shardlist": [row("e.tar")]},
        "https://host/d/sub/two.json": {"shardlist": [row("f.tar")], "member_tables": "f.tables"},
    }
    whole, own, theirs = (f"https://host/d/{name}.tables" for name in ("train", "own", "sub/f"))
    shards = parse({"member_tables": "train.tables", "datasets": parts}, texts=texts)
    assert packs_of(shards) == [(whole,)] * 3 + [(own,), (whole,), (theirs,)]
    assert shards.all_packs() == (whole, own, theirs)
    shards = parse({"datasets": parts}, texts=texts)
    assert packs_of(shards) == [(), (), (), (own,), (), (theirs,)]


def test_servers_that_a_local_index_names():
    """They may get credentials; those of a remote index may not."""
    named = set()
    parse({"member_tables": "https://tables.host/x.tables"}, index_url="/d/train.json", named=named)
    assert "https://tables.host" in named
    named = set()
    parse({"member_tables": "https://tables.host/x.tables"}, named=named)
    assert "https://tables.host" not in named


def test_kept_in_copies_and_compiled():
    """A pickle, a compiled list, and a list of which one shard was counted."""
    parts = [{"shardlist": [row("c.tar")], "member_tables": "own.tables"}]
    shards = parse({"member_tables": "train.tables", "datasets": parts})
    expected = packs_of(shards)
    assert packs_of(pickle.loads(pickle.dumps(shards))) == expected
    again = compiled.unpack(b"".join(compiled.pack(shards)), file_url="x.widsx", home=None).shards
    assert packs_of(again) == expected
    counted = again.with_known({0: 5}, {})
    assert packs_of(counted) == expected
    assert counted[-1].packs == expected[-1]


def test_compiled_before_there_were_packs():
    """Its shards have none; and what packs say is checked."""
    shards = parse({})
    data = b"".join(compiled.pack(shards))
    assert compiled.unpack(data, file_url="x.widsx", home=None).shards.packs == []
    for bad in ([(9, ("x",))], [(1, ("x",)), (0, ("y",))], [(0, (7,))]):
        broken = b"".join(compiled.pack(shards, packs=bad))
        with pytest.raises(SpecError, match="header"):
            compiled.unpack(broken, file_url="x.widsx", home=None)


def test_one_pack_for_all():
    """`with_packs` replaces what components have."""
    shards = parse({"member_tables": "train.tables"})
    assert packs_of(shards.with_packs(["x.tables"])) == [("x.tables",)] * 2
    assert packs_of(shards.with_packs([])) == [()] * 2

"""The index that an output replaces: its shards, whether the output is a later version of it, and what stays."""

import pytest

from wids.core.index.earlier import CarriedOver, EarlierIndex


def row(url, **keys):
    """A shard as an index has it."""
    return {"url": url, "nsamples": 1, **keys}


def index(*urls, **keys):
    """The earlier index at /d/i.json with these shards."""
    return EarlierIndex("/d/i.json", {"shardlist": [row(url) for url in urls], **keys})


def carry(earlier, *urls, others=(), taken=()):
    """What is carried over into an index of these shards."""
    return earlier.carry_over(urls, others=others, taken=taken)


@pytest.mark.parametrize(
    ("base", "url", "place"),
    [
        (None, "a.tar", "/d/a.tar"),
        ("", "/e/a.tar", "/e/a.tar"),
        ("e", "a.tar", "/d/e/a.tar"),
        ("https://h/e", "a.tar?signature=1", "https://h/e/a.tar"),
        (7, "s3://b/a.tar", "s3://b/a.tar"),
    ],
)
@pytest.mark.parametrize("key", ["base", "base_path"])
def test_entries_by_their_places(key, base, url, place):
    """Absolute, below the base, without what gives access; as sub-datasets too."""
    keys = {} if base is None else {key: base}
    assert [*index(url, **keys).entries] == [place]
    assert [*index(datasets=[{"shardlist": [row(url)]}], **keys).entries] == [place]


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"shardlist": 5, "datasets": "x"},
        {"shardlist": [5, {}, {"url": 7}, {"url": "a\0"}], "datasets": [5, {"shardlist": {}}]},
    ],
)
def test_malformed_entries_are_none(keys):
    """Whatever stands in their place: it lists nothing."""
    found = EarlierIndex("/d/i.json", keys)
    assert not found.lists(["/d/a.tar", "https://h/a.tar"])
    assert found.find(["/d/a.tar"]) == {}


def test_shards_are_found_where_they_lie_and_below_the_base():
    """By their places, however they are signed; if none is there, as those of a directory that was given a base."""
    found = index("a.tar", "https://h/b.tar")
    urls = ["/d/a.tar", "https://h/b.tar?sig=1", "/d/c.tar"]
    assert found.find(urls) == {"/d/a.tar": "/d/a.tar", "https://h/b.tar?sig=1": "https://h/b.tar"}
    assert (found.lists(urls), found.lists(urls[2:])) == (True, False)
    based = index("x/a.tar", "y/b.tar", base="https://h/e")
    local = ["/s/x/a.tar", "/s/y/b.tar"]
    assert based.find(local) == {"/s/x/a.tar": "https://h/e/x/a.tar", "/s/y/b.tar": "https://h/e/y/b.tar"}
    assert not based.lists(local)
    assert based.find(["/s/x/a.tar", "s3://b/c.tar"]) == {}  # they have no directory in common
    assert index("x/a.tar", "y/b.tar").find(local) == {}


@pytest.mark.parametrize(
    ("entry", "is_like"),
    [
        ({"url": "https://h/a.tar", "nsamples": 1, "filesize": 5, "crc32": "c"}, True),
        ({"url": "b.tar", "nsamples": 1, "filesize": 5, "crc32": "c"}, False),
        ({"url": "a.tar", "nsamples": 2, "filesize": 5, "crc32": "c"}, False),
        ({"url": "a.tar", "nsamples": 1, "filesize": 5}, False),
        ({"url": "z.tar", "nsamples": 1}, False),  # without a size it is not known
    ],
)
def test_a_shard_at_another_place_is_known_by_its_facts(entry, is_like):
    """Name, count, size and checksums, all of them."""
    found = EarlierIndex("/d/i.json", {"shardlist": [row("a.tar", filesize=5, crc32="c"), row("z.tar")]})
    assert found.is_like([entry]) is is_like
    assert not found.is_like([])


VIEW = {"view_of": "i.json", "view_of_fingerprint": "f"}
PARTS = {"datasets": [{"shardlist": [row("a.tar")]}]}


@pytest.mark.parametrize(
    ("keys", "output", "words"),
    [
        ({"shardlist": [row("a.tar")]}, "index", None),
        ({"shardlist": [row("a.tar")]}, "view", "is an index of 1 shard, and no view"),
        ({"shardlist": [row("a.tar")]}, "parts", "is an index of 1 shard"),
        (VIEW, "index", "is a view of i.json, and no index of shards"),
        (VIEW, "parts", "is a view of i.json, and no index of shards"),
        (VIEW, "view", None),
        ({"view_of_fingerprint": "f"}, "index", "is a view, and no index of shards"),
        (PARTS, "index", "is an index of sub-datasets"),
        (PARTS, "parts", None),
        ({"datasets": [{"source_url": "a.json"}]}, "parts", "is an index of sub-datasets"),
        ({}, "index", None),
        ({}, "view", None),
    ],
)
def test_an_index_of_another_kind(keys, output, words):
    """A view is no later version of an index of shards, nor of sub-datasets, nor the reverse."""
    kind = {"is_view": output == "view", "has_parts": output == "parts"}
    assert EarlierIndex("/d/i.json", keys).other_kind(**kind) == words


@pytest.mark.parametrize(
    ("keys", "parent", "digest", "words"),
    [
        (VIEW, "/d/i.json", "g", None),
        (VIEW, "/elsewhere.json", "f", None),  # the same shards
        (VIEW, "/elsewhere.json", "g", "is a view of i.json"),
        (VIEW, None, "g", "is a view of i.json"),
        ({"view_of_fingerprint": "f", "shardlist": [row("a.tar")]}, None, "g", None),
        ({"view_of_fingerprint": "f", "shardlist": [row("b.tar")]}, None, "g", "is a view of other shards"),
        ({"view_of_fingerprint": "f", "shardlist": [row("a.tar")]}, "/d/i.json", "g", "is a view of other shards"),
    ],
)
def test_a_view_of_another_index(keys, parent, digest, words):
    """A later version is of the same index, or of the same shards, or lists a shard that it lists."""
    assert EarlierIndex("/d/v.json", keys).other_parent(parent, digest, ["/d/a.tar"]) == words


def test_an_index_of_other_shards_is_named_by_the_first():
    """By their number, and three of them."""
    assert index("a.tar").other_shards() == "is an index of 1 shard, and none of them is listed now (a.tar)"
    names = [f"{k}.tar" for k in range(1000)] + ["x.tar"]
    words = "is an index of 1,001 shards, and none of them is listed now (0.tar, 1.tar, 2.tar, ...)"
    assert index(*names).other_shards() == words


def test_what_is_carried_over():
    """Keys that wids does not compute, of the index and of shards that are still named; packs; and what goes."""
    shards = [row("a.tar", site="Bern", md5sum="m", note=1), row("b.tar", site="Rome"), row("c.tar")]
    computed = {"__kind__": "x", "wids_version": 1, "key_rule": "last-dot", "base": "", "view_of": "v", "datasets": []}
    said = {"name": "n", "info": "i", "classes": ["a"], "mine": 1, "member_tables": "i.tables"}
    earlier = EarlierIndex("/d/i.json", {**computed, **said, "shardlist": shards})
    assert carry(earlier, "/d/a.tar", "/d/z.tar", others=["/d/b.tar"], taken={"info": "new"}) == CarriedOver(
        keys={"classes": ["a"], "mine": 1},
        packs={"member_tables": "i.tables"},
        shard_keys={"/d/a.tar": {"site": "Bern", "note": 1}},
        gone=["/d/c.tar"],
    )
    assert carry(earlier, "/d/a.tar").keys == {"info": "i", "classes": ["a"], "mine": 1}
    none = carry(earlier, "/d/z.tar")
    assert (none.packs, none.shard_keys, none.gone) == ({}, {}, ["/d/a.tar", "/d/b.tar", "/d/c.tar"])
    assert carry(index("a.tar", member_tables=7), "/d/a.tar").packs == {}  # no names of packs

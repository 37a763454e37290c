import codecs
import copy
import json
import pickle
from collections import OrderedDict, UserDict
from pathlib import PurePosixPath
from types import MappingProxyType

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from wids.core.index import spec
from wids.core.index.spec import list_shards, parse_index, parse_json
from wids.core.shard import Shard
from wids.errors import NotAllowedError, SpecError


@pytest.mark.parametrize(
    ("key", "meant"),
    [("md5", "md5sum"), ("MD5_sum", "md5sum"), ("file_size", "filesize"), ("crc", "crc32"), ("nsample", "nsamples")],
)
def test_keys_that_look_like_others_are_warned_of(caplog, key, meant):
    """Once for each; they are kept, as are keys that look like nothing."""
    rows = [{"url": f"{k}.tar", "nsamples": 1, key: 7, "size": 3, "dataset": "x"} for k in range(3)]
    parsed = parse_index(json.dumps({"wids_version": 1, "shardlist": rows}), index_url="t.json", load=None)
    assert parsed.describe(0)[key] == 7
    list_shards(rows)
    told = [record.getMessage() for record in caplog.records]
    words = f"has the key {key!r}, which means nothing to wids; is it {meant!r}?"
    assert told == [f"t.json: shardlist[0]: {words}", f"shards[0]: {words}"]


checked = settings(max_examples=examples(150))
MD5 = "0123456789abcdef0123456789ABCDEF"
PLACE = "gs://bucket/data/index.json"


def load_nothing(url):
    """For indexes that need no other text."""
    raise AssertionError(f"asked for {url}")


def index(**keys):
    """A minimal index of one shard, as a dict, changed by ``keys``."""
    return {"wids_version": 1, "shardlist": [{"url": "a.tar", "nsamples": 3}], **keys}


def read(raw, index_url=PLACE, files=None, **options):
    """Parse an index; ``files``: URL -> what is there, for sub-datasets."""
    text = raw if isinstance(raw, (str, bytes)) else json.dumps(raw)
    load = load_nothing if files is None else lambda url: json.dumps(files[url]).encode()
    return parse_index(text, index_url=index_url, load=load, **options)


def described(shards):
    """Every shard as its dict."""
    return [shards.describe(k) for k in range(len(shards))]


def refuse(raw, path, *, kind=SpecError, url=PLACE, **options):
    """Reading must fail with this error, which names the path and the index, in its text too; gives the text."""
    with pytest.raises(kind) as caught:
        read(raw, **options)
    error = caught.value
    assert (error.path, error.url) == (path, url)
    assert path in str(error)
    if url:
        assert url in str(error)
    return str(error)


# --- what a program passes


def test_dicts_with_any_keys():
    """Known keys are checked, all others are kept as they are, and the caller's dicts are not touched."""
    items = [
        {
            "url": "/d/a.tar",
            "nsamples": 3,
            "filesize": 5,
            "md5sum": MD5,
            "score": float("inf"),
            "dataset": "x",
            "n": None,
        },
        {"url": "/d/b.tar", "nsamples": 0},
    ]
    before = copy.deepcopy(items)
    shards = list_shards(items)
    assert items == before
    assert described(shards) == [{**items[0], "md5sum": MD5.lower()}, items[1]]
    assert [shards.dataset_of(k) for k in range(2)] == ["x", None]
    assert shards[0] == Shard(url="/d/a.tar", nsamples=3, filesize=5, md5sum=MD5.lower())
    assert shards[1] == Shard(url="/d/b.tar", nsamples=0)
    assert shards.header == {}


@pytest.mark.parametrize("md5sum", ["", None])
def test_no_digest(md5sum):
    """An empty or null md5sum is none."""
    shards = list_shards([{"url": "a.tar", "nsamples": 1, "md5sum": md5sum, "filesize": None}])
    assert shards[0] == Shard(url="a.tar", nsamples=1)
    assert shards.describe(0) == {"url": "a.tar", "nsamples": 1}


@pytest.mark.parametrize("kind", [dict, OrderedDict, UserDict, MappingProxyType])
def test_mappings_of_any_kind(kind):
    """Configuration libraries pass mappings of their own."""
    assert described(list_shards([kind({"url": "a.tar", "nsamples": 1})])) == [{"url": "a.tar", "nsamples": 1}]


@pytest.mark.parametrize("count", [3, np.int64(3), np.uint8(3), np.array(3), torch.tensor(3)])
def test_integers_of_any_kind(count):
    """Integers of numpy and torch are counts, and become plain ints."""
    pairs = list_shards([("a.tar", count), ["b.tar", count]])
    dicts = list_shards([{"url": "a.tar", "nsamples": count, "filesize": count}])
    assert pairs.nsamples == [3, 3]
    assert (dicts.nsamples, dicts.filesizes) == ([3], [3])
    assert {type(number) for number in (*pairs.nsamples, *dicts.nsamples, *dicts.filesizes)} == {int}


def test_path_likes():
    """A path-like is its path, wherever a URL may stand."""
    path = PurePosixPath("/d/a.tar")
    shards = list_shards([path, (path, 2), {"url": path, "nsamples": 2}])
    assert shards.urls == ["/d/a.tar"] * 3
    assert shards.nsamples == [-1, 2, 2]


def test_plain_paths_and_patterns():
    """Shards without an index have no count yet; patterns expand in place."""
    shards = list_shards(["x-{00..02}.tar", "gs://b/y.tar", ("z.tar", 1)], base="/d")
    assert shards.urls == ["/d/x-00.tar", "/d/x-01.tar", "/d/x-02.tar", "gs://b/y.tar", "/d/z.tar"]
    assert [shards[k].nsamples for k in range(5)] == [None, None, None, None, 1]
    assert shards.describe(0) == {"url": "/d/x-00.tar", "nsamples": None}


def test_a_generator_of_shards():
    """Anything that can be iterated does; of nothing, a list of nothing."""
    assert list_shards(f"{k}.tar" for k in range(3)).urls == ["0.tar", "1.tar", "2.tar"]
    assert len(list_shards([])) == 0


@pytest.mark.parametrize(
    ("item", "path"),
    [
        ({"nsamples": 3}, "shards[1].url"),
        ({"url": "a.tar"}, "shards[1].nsamples"),
        ({"url": 5, "nsamples": 3}, "shards[1].url"),
        ({"url": "", "nsamples": 3}, "shards[1].url"),
        ({"url": "a\0.tar", "nsamples": 3}, "shards[1].url"),
        ({"url": b"a.tar", "nsamples": 3}, "shards[1].url"),
        ({"url": None, "nsamples": 3}, "shards[1].url"),
        ({"url": "a.tar", "nsamples": -1}, "shards[1].nsamples"),
        ({"url": "a.tar", "nsamples": "3"}, "shards[1].nsamples"),
        ({"url": "a.tar", "nsamples": None}, "shards[1].nsamples"),
        ({"url": "a.tar", "nsamples": True}, "shards[1].nsamples"),
        ({"url": "a.tar", "nsamples": np.True_}, "shards[1].nsamples"),
        ({"url": "a.tar", "nsamples": np.array(True)}, "shards[1].nsamples"),
        ({"url": "a.tar", "nsamples": torch.tensor(True)}, "shards[1].nsamples"),
        ({"url": "a.tar", "nsamples": 3.5}, "shards[1].nsamples"),
        ({"url": "a.tar", "nsamples": np.array([1, 2])}, "shards[1].nsamples"),
        ({"url": "a.tar", "nsamples": torch.tensor(2.5)}, "shards[1].nsamples"),
        ({"url": "a.tar", "nsamples": 1 << 63}, "shards[1].nsamples"),
        ({"url": "a.tar", "nsamples": 3, "filesize": -5}, "shards[1].filesize"),
        ({"url": "a.tar", "nsamples": 3, "filesize": False}, "shards[1].filesize"),
        ({"url": "a.tar", "nsamples": 3, "md5sum": 5}, "shards[1].md5sum"),
        ({"url": "a.tar", "nsamples": 3, "md5sum": "abc"}, "shards[1].md5sum"),
        ({"url": "a.tar", "nsamples": 3, "crc32": 5}, "shards[1].crc32"),
        ({"url": "a.tar", "nsamples": 3, "crc32": "abc"}, "shards[1].crc32"),
        ({"url": "a.tar", "nsamples": 3, "md5sum": MD5 + "\n"}, "shards[1].md5sum"),
        (("a.tar", "3"), "shards[1].nsamples"),
        (("a.tar", None), "shards[1].nsamples"),
        ((5, 3), "shards[1].url"),
        ((None, 3), "shards[1].url"),
        (("a.tar", 3, 4), "shards[1]"),
        (("a.tar",), "shards[1]"),
        (5, "shards[1]"),
        (None, "shards[1]"),
        (b"ab", "shards[1]"),
        ("", "shards[1]"),
        ("a\0.tar", "shards[1]"),
        ("x-{0..1.tar", "shards[1]"),
    ],
)
def test_bad_items(item, path):
    """Anything else is a SpecError that names the item and its bad value."""
    with pytest.raises(SpecError) as caught:
        list_shards(["fine.tar", item])
    assert caught.value.path == path
    assert path in str(caught.value)


def test_numbers_of_5000_digits():
    """Python cannot even print them; they are a SpecError like any other."""
    for item, path in (({"url": "a.tar", "nsamples": 10**5000}, "shards[0].nsamples"), (10**5000, "shards[0]")):
        with pytest.raises(SpecError) as caught:
            list_shards([item])
        assert caught.value.path == path


def test_a_string_subclass_is_a_url():
    """A string of numpy's is a string."""
    shards = list_shards([np.str_("a.tar"), (np.str_("b.tar"), 1)])
    assert pickle.loads(pickle.dumps(shards)).urls == ["a.tar", "b.tar"]


# --- what an index says


def test_an_index_with_everything():
    """Header keys are kept, known or not; so are the keys of each shard; the index's name and weight hold for them."""
    shards = read(
        {
            "__kind__": "anything",
            "wids_version": 1,
            "name": "train",
            "info": "text",
            "weight": 0.5,
            "extra": {"a": [1]},
            "shardlist": [
                {"url": "a.tar", "nsamples": 3, "filesize": 4096, "md5sum": MD5, "crc32": "0BADCAFE", "tag": [1, None]},
                {"url": "b.tar", "nsamples": 4, "md5sum": "", "weight": 2, "name": "own"},
            ],
        }
    )
    own = {"weight": 0.5, "name": "train"}
    assert described(shards) == [
        {
            "url": "gs://bucket/data/a.tar",
            "nsamples": 3,
            "filesize": 4096,
            "md5sum": MD5.lower(),
            "crc32": "0badcafe",
            "tag": [1, None],
            **own,
        },
        {"url": "gs://bucket/data/b.tar", "nsamples": 4, "weight": 2, "name": "own"},
    ]
    assert shards.header == {
        "__kind__": "anything",
        "wids_version": 1,
        "name": "train",
        "info": "text",
        "weight": 0.5,
        "extra": {"a": [1]},
    }
    assert shards.dataset_of(0) is None


@pytest.mark.parametrize(
    ("place", "base", "url", "full"),
    [
        ("gs://b/d/i.json", None, "a.tar", "gs://b/d/a.tar"),
        ("https://h/d/i.json?sig=x", None, "a b.tar?s=1", "https://h/d/a b.tar?s=1"),
        ("/d/i.json", None, "../a.tar", "/a.tar"),
        ("i.json", None, "a.tar", "a.tar"),
        (None, None, "a.tar", "a.tar"),
        (None, "/d", "a.tar", "/d/a.tar"),
        ("gs://b/d/i.json", "s3://c/e", "a.tar", "s3://c/e/a.tar"),
        ("gs://b/d/i.json", "s3://c/e", "https://h/a.tar", "https://h/a.tar"),
        ("/d/i.json", None, "~/a.tar", "~/a.tar"),
        ("/d/i.json", None, "s3://c/a.tar", "s3://c/a.tar"),
        ("gs://b/d/i.json", None, "/a.tar", "gs://b/a.tar"),
    ],
)
def test_relative_urls(place, base, url, full):
    """Relative to the caller's base, else to where the index is; absolute ones and queries stay."""
    assert read(index(shardlist=[{"url": url, "nsamples": 1}]), place, base=base).urls == [full]


@pytest.mark.parametrize("key", ["base", "base_path"])
@pytest.mark.parametrize(
    ("place", "own", "full"),
    [
        ("gs://b/d/i.json", "shards", "gs://b/d/shards/a.tar"),
        ("gs://b/d/i.json", "../e/", "gs://b/e/a.tar"),
        ("gs://b/d/i.json", "https://h/x", "https://h/x/a.tar"),
        ("gs://b/d/i.json", "/top", "gs://b/top/a.tar"),
        ("gs://b/d/i.json", "", "gs://b/d/a.tar"),
        ("gs://b/d/i.json", None, "gs://b/d/a.tar"),
        (None, "/e", "/e/a.tar"),
        ("/d/i.json", "~/e", "~/e/a.tar"),
    ],
)
def test_own_base(key, place, own, full):
    """An index's own base comes before its place, and after the caller's."""
    assert read(index(**{key: own}), place).urls == [full]
    assert read(index(**{key: own}), place, base="s3://c").urls == ["s3://c/a.tar"]


def test_options_override_top_level_keys():
    """``options`` count as if they stood in the index."""
    shards = read(index(name="old", wids_version=7), options={"name": "new", "wids_version": 1, "base": "gs://c"})
    assert (shards.header["name"], shards.urls) == ("new", ["gs://c/a.tar"])
    rows = ({"url": "b.tar", "nsamples": 1},)
    assert read(index(), options={"shardlist": rows}).urls == ["gs://bucket/data/b.tar"]


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: text,
        lambda text: text.encode(),
        lambda text: "\ufeff" + text,
        lambda text: codecs.BOM_UTF8 + text.encode(),
        lambda text: text.encode("utf-16"),
        lambda text: text.encode("utf-16-be"),
        lambda text: text.encode("utf-32"),
    ],
    ids=["str", "bytes", "str BOM", "BOM", "UTF-16", "UTF-16 BE", "UTF-32"],
)
def test_text_in_any_encoding(encode):
    """What Python's json reads is read: text, UTF-8, a byte order mark, and what PowerShell's redirection writes."""
    text = json.dumps(index(name="Zürich 日本"), ensure_ascii=False)
    assert read(encode(text)).header["name"] == "Zürich 日本"


def test_what_python_writes_is_read():
    """json.dump writes NaN, Infinity, and names that are not UTF-8 as lone surrogates; all come through."""
    raw = index(
        score=float("nan"), top=float("inf"), shardlist=[{"url": "\udce9.tar", "nsamples": 1, "x": float("nan")}]
    )
    shards = read(raw)
    assert shards.urls == ["gs://bucket/data/\udce9.tar"]
    assert str(shards.header["score"]) == "nan"
    assert shards.header["top"] == float("inf")
    assert str(shards.describe(0)["x"]) == "nan"


def test_parse_json_gives_the_plain_object():
    """The index as it is written, for those who edit it."""
    assert parse_json(json.dumps(index()), None) == index()


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "<html></html>",
        b"\xff\xfe\xfd",
        b"\x1f\x8b\x08",
        "\udce9",
        '{"wids_version": 1,}',
        "[" * 100_000,
        '{"datasets":[' * 100_000,
        '{"a":' * 100_000 + "1" + "}" * 100_000,
        '{"wids_version": ' + "9" * 5000 + "}",
    ],
    ids=[
        "empty",
        "blank",
        "cut",
        "HTML",
        "no text",
        "gzip",
        "surrogate",
        "comma",
        "lists",
        "bomb",
        "objects",
        "digits",
    ],
)
def test_not_json(text):
    """Whatever it is, also 100,000 levels deep or a number of 5,000 digits: a SpecError that names the index."""
    message = refuse(text, "")
    assert "not valid JSON" in message
    assert ("it is a web page" in message) == (text == "<html></html>")


def test_a_table_in_the_place_of_an_index():
    """Parquet is named as what it is, and rows in JSON have the way to `wids pack`."""
    assert "is a table (Parquet), not an index" in refuse(b"PAR1\x15\x04\xa5", "")
    assert "lines of a .jsonl file" in refuse('[{"image": "a.jpg"}]', "")


def test_an_object_that_is_no_index():
    """Of other keys: what an index has is named, not its version."""
    assert 'has no "shardlist"; an index is made by `wids index create`' in refuse('{"shards": []}', "")


@pytest.mark.parametrize("text", ["[]", "5", "null", '"text"', '[{"url": "a.tar", "nsamples": 1}]'])
def test_json_but_no_object(text):
    """An index is an object; a bare list is told so."""
    assert "must be an object" in refuse(text, "")


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"wids_version": 2}, "wids_version"),
        ({"wids_version": None}, "wids_version"),
        ({"wids_version": "1"}, "wids_version"),
        ({"wids_version": True}, "wids_version"),
        ({"shardlist": {}}, "shardlist"),
        ({"shardlist": []}, "shardlist"),
        ({"shardlist": None}, "shardlist"),
        ({"shardlist": ["a.tar"]}, "shardlist[0]"),
        ({"shardlist": [None]}, "shardlist[0]"),
        ({"shardlist": [{"url": "a.tar", "nsamples": 1}] * 3 + [{"url": "a.tar"}]}, "shardlist[3].nsamples"),
        (
            {"shardlist": [{"url": "a.tar", "nsamples": 1}] * 3 + [{"url": "a.tar", "nsamples": "1"}]},
            "shardlist[3].nsamples",
        ),
        ({"shardlist": [{"nsamples": 1}]}, "shardlist[0].url"),
        ({"shardlist": [{"url": None, "nsamples": 1}]}, "shardlist[0].url"),
        ({"shardlist": [{"url": "", "nsamples": 1}]}, "shardlist[0].url"),
        ({"shardlist": [{"url": "a\0b", "nsamples": 1}]}, "shardlist[0].url"),
        ({"shardlist": [{"url": "a", "nsamples": True}]}, "shardlist[0].nsamples"),
        ({"shardlist": [{"url": "a", "nsamples": -1}]}, "shardlist[0].nsamples"),
        ({"shardlist": [{"url": "a", "nsamples": 1.0}]}, "shardlist[0].nsamples"),
        ({"shardlist": [{"url": "a", "nsamples": float("nan")}]}, "shardlist[0].nsamples"),
        ({"shardlist": [{"url": "a", "nsamples": 10**30}]}, "shardlist[0].nsamples"),
        ({"shardlist": [{"url": "a", "nsamples": 1 << 63}]}, "shardlist[0].nsamples"),
        ({"shardlist": [{"url": "a", "nsamples": 1 << 54, "filesize": (1 << 63) - 1}] * 513}, "shardlist[0].nsamples"),
        ({"shardlist": [{"url": "a", "nsamples": (1 << 54) - 1, "filesize": (1 << 63) - 1}] * 513}, "shardlist"),
        ({"shardlist": [{"url": "a", "nsamples": 1, "filesize": -1}]}, "shardlist[0].filesize"),
        ({"shardlist": [{"url": "a", "nsamples": 1, "filesize": "1"}]}, "shardlist[0].filesize"),
        ({"shardlist": [{"url": "a", "nsamples": 1, "md5sum": "xyz"}]}, "shardlist[0].md5sum"),
        ({"name": 5}, "name"),
        ({"weight": "heavy"}, "weight"),
        ({"base": ["x"]}, "base"),
        ({"base": "gs://a\0b"}, "shardlist[0].url"),
        ({"datasets": {}}, "datasets"),
        ({"datasets": [5]}, "datasets[0]"),
        ({"datasets": [{}]}, "datasets[0]"),
        ({"datasets": [{"source_url": 5}]}, "datasets[0].source_url"),
        ({"datasets": [{"source_url": ""}]}, "datasets[0].source_url"),
        ({"datasets": [{"shardlist": []}, {"shardlist": [{"url": 5, "nsamples": 1}]}]}, "datasets[1].shardlist[0].url"),
        (
            {"datasets": [{"shardlist": []}, {"shardlist": [{"url": "", "nsamples": 1}]}]},
            "datasets[1].shardlist[0].url",
        ),
        (
            {"datasets": [{"datasets": [{"shardlist": [{"url": "a"}]}]}]},
            "datasets[0].datasets[0].shardlist[0].nsamples",
        ),
        ({"datasets": [{"datasets": [{}]}]}, "datasets[0].datasets[0]"),
        (
            {"datasets": [{"shardlist": [{"url": "a", "nsamples": 1, "md5sum": "?"}]}]},
            "datasets[0].shardlist[0].md5sum",
        ),
    ],
)
def test_bad_values(keys, path):
    """Each bad value is a SpecError with the path to it, and the index's place."""
    refuse(index(**keys), path)


def test_bad_values_of_an_open_file():
    """Without a place the error goes without; with one, it begins with it."""
    message = refuse(index(name=5), "name", index_url=None, url=None)
    assert message.startswith("name: ")
    assert refuse(index(name=5), "name").startswith(f"{PLACE}: name: ")


def test_missing_version():
    """An index without a version is told that it is missing."""
    raw = index()
    del raw["wids_version"]
    assert "is missing" in refuse(raw, "wids_version")


def test_names_that_are_not_unicode():
    """Half of a surrogate pair, which JSON can spell, is refused where names are looked at."""
    assert "not Unicode" in refuse({**index(), "\ud800": 1}, "")


def test_options_nested_too_deeply():
    """What a caller puts in is bounded like what is read."""
    deep = {}
    for _ in range(5000):
        deep = {"datasets": [deep]}
    with pytest.raises(SpecError, match=r"nested too deeply|within 8 others"):  # the first of both, by the Python
        read(index(), options=deep)


@pytest.fixture(scope="module")
def crowd():
    """A function: the text of an index of 100,000 shards, in which shard 77,777 has this JSON for a key."""
    row = '{"url": "s-%06d.tar", "nsamples": 100, "filesize": 1000}'
    rows = [row % k for k in range(100_000)]

    def text(name, value):
        changed = rows.copy()
        kept = {key: was for key, was in json.loads(rows[77_777]).items() if key != name}
        changed[77_777] = f"{json.dumps(kept)[:-1]}, {json.dumps(name)}: {value}}}"
        return f'{{"wids_version": 1, "shardlist": [{", ".join(changed)}]}}'

    return text


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("nsamples", ("-1", "NaN", "null", "true", "3.0", "1" + 30 * "0")),
        ("filesize", ("10.0", f"{2**63}")),
        ("md5sum", ("5", f'"{"a" * 10**7}"')),
        ("url", ("null", '""', f'"{"x" * 10**7}"')),
        ("own", ("[" * 200 + "]" * 200, '{"a": [' * 200 + "]}" * 200)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_bad_value_among_many_shards(crowd, name, values):
    """It is found, and the message names the shard and stays short, however long the value is."""
    for value in values:
        path = "shardlist[77777]" if name == "own" else f"shardlist[77777].{name}"
        assert len(refuse(crowd(name, value), path)) < 500


def test_more_samples_than_can_be_counted():
    """Shards that are all right one by one, and together have more samples than 64 bits count; those that just fit."""
    shards = [{"url": f"{k}.tar", "nsamples": 10**16, "filesize": 512 * 10**16} for k in range(1000)]
    assert "10000000000000000000 samples" in refuse(index(shardlist=shards), "shardlist")
    assert sum(read(index(shardlist=shards[:900])).nsamples) == 9 * 10**18


@pytest.mark.parametrize(
    ("own", "count"),
    [
        ({"filesize": 10_240}, 1 << 40),
        ({"filesize": 512 << 21}, (1 << 21) + 1),
        ({"filesize": 0}, (1 << 20) + 1),
        ({}, (1 << 28) + 1),
    ],
)
def test_more_samples_than_a_shard_can_hold(own, count):
    """A sample takes 512 bytes: a sampler needs time and memory for each that is promised. Few are believed."""
    for keys, path in ((("shardlist",), "shardlist[1]"), (("datasets", 0, "shardlist"), "datasets[0].shardlist[1]")):
        shards = [{"url": "a.tar", "nsamples": 3}, {"url": "b.tar", "nsamples": count, **own}]
        raw = {"shardlist": shards} if len(keys) == 1 else {"datasets": [{"name": "a", "shardlist": shards}]}
        assert str(count) in refuse(index(**{"shardlist": [], **raw}), f"{path}.nsamples")
        shards[1]["nsamples"] -= 1 if count < 1 << 40 else count - 20
        assert read(index(**{"shardlist": [], **raw})).nsamples[1] == shards[1]["nsamples"]


def test_more_samples_than_shards_without_a_size_can_hold():
    """Those of all of them together, beside any number of shards whose size is known."""
    shards = [{"url": f"{k}.tar", "nsamples": 1 << 28} for k in range(257)]
    assert "in shards without a filesize" in refuse(index(shardlist=shards), "shardlist")
    shards[0]["filesize"] = 1 << 37
    assert sum(read(index(shardlist=shards)).nsamples) == 257 << 28


def test_nested_values_travel():
    """What an index may hold is pickled into workers: values that are nested deeper are refused, in the header too."""
    value = 1
    for _ in range(98):
        value = [value]
    shards = [{"url": "a.tar", "nsamples": 1, "own": value}]
    found = read(index(info=value, shardlist=shards))
    assert described(pickle.loads(pickle.dumps(found)))[0]["own"] == value
    assert "nested too deeply" in refuse(index(info=[[[value]]]), "")


@checked
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=5)
        | st.sampled_from(["a.tar", "i.json"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "url",
                        "nsamples",
                        "filesize",
                        "md5sum",
                        "shardlist",
                        "datasets",
                        "source_url",
                        "base",
                        "name",
                        "weight",
                    ]
                ),
                inner,
                max_size=5,
            )
        ),
        max_leaves=15,
    )
)
def test_any_json_is_a_shard_list_or_a_spec_error(value):
    """No value of any type in any place is another exception; what is read has sound columns."""
    raw = {"wids_version": 1, **value} if isinstance(value, dict) else value

    def load(url):
        if url.endswith(("/i.json", "/a.tar")):
            return json.dumps(index()).encode()
        raise FileNotFoundError(url)

    try:
        shards = parse_index(json.dumps(raw), index_url=PLACE, load=load)
    except (SpecError, NotAllowedError, FileNotFoundError):
        return
    assert all(type(count) is int and count >= 0 for count in shards.nsamples)
    assert len(described(shards)) == len(shards.urls) == len(shards.filesizes) == len(shards.md5sums)


# --- sub-datasets


def rows(*names, **keys):
    """Rows of shards of one sample."""
    return [{"url": name, "nsamples": 1, **keys} for name in names]


def test_sub_datasets_in_place():
    """As in the original: own shards first, then each part's; a part's name is its shards' ``dataset``, its weight
    theirs; the index's own name and weight are not; a shard's own keys win.
    """
    shards = read(
        {
            "wids_version": 1,
            "name": "all",
            "weight": 9,
            "shardlist": rows("a.tar"),
            "datasets": [
                {"name": "one", "weight": 0.25, "shardlist": rows("b.tar") + rows("c.tar", dataset="own", weight=7)},
                {"shardlist": rows("d.tar")},
                {"name": "none", "shardlist": []},
                {"name": "two", "base": "s3://c", "shardlist": rows("e.tar")},
            ],
        }
    )
    at = "gs://bucket/data"
    assert described(shards) == [
        {"url": f"{at}/a.tar", "nsamples": 1, "name": "all", "weight": 9},
        {"url": f"{at}/b.tar", "nsamples": 1, "dataset": "one", "weight": 0.25},
        {"url": f"{at}/c.tar", "nsamples": 1, "dataset": "own", "weight": 7},
        {"url": f"{at}/d.tar", "nsamples": 1},
        {"url": "s3://c/e.tar", "nsamples": 1, "dataset": "two"},
    ]
    assert [shards.dataset_of(k) for k in range(5)] == [None, "one", "own", None, "two"]


def test_an_index_of_sub_datasets_alone():
    """``shardlist`` may be absent where there are datasets."""
    raw = {"wids_version": 1, "datasets": [{"shardlist": rows("a.tar")}]}
    assert read(raw).urls == ["gs://bucket/data/a.tar"]


def test_sub_datasets_behind_urls():
    """As in the original: ``source_url`` and the reference's weight; the loaded index's name before the reference's.

    Its URLs are relative to its own base or place. The original kept relative source URLs relative to the working
    directory; here they are relative to the index that holds them.
    """
    files = {
        "https://h/one/i.json?sig=a/b": {"name": "one", "weight": 9, "shardlist": rows("a.tar")},
        "gs://bucket/data/two/i.json": {"wids_version": 1, "base": "s3://c/x", "shardlist": rows("b.tar", tag=1)},
        "gs://bucket/three.json": {"base_path": "sub", "shardlist": rows("c.tar")},
    }
    shards = read(
        {
            "wids_version": 1,
            "datasets": [
                {"source_url": "https://h/one/i.json?sig=a/b", "name": "reference", "weight": 0.5},
                {"source_url": "two/i.json", "name": "reference"},
                {"source_url": "../three.json"},
            ],
        },
        files=files,
    )
    one, two, three = files
    assert described(shards) == [
        {"url": "https://h/one/a.tar", "nsamples": 1, "dataset": "one", "weight": 0.5, "source_url": one},
        {"url": "s3://c/x/b.tar", "nsamples": 1, "tag": 1, "dataset": "reference", "source_url": two},
        {"url": "gs://bucket/sub/c.tar", "nsamples": 1, "source_url": three},
    ]
    assert [shards.dataset_of(k) for k in range(3)] == ["one", "reference", None]


@pytest.mark.parametrize(
    ("reference", "own", "full"),
    [
        ({"base": "gs://c"}, {"base": "gs://ignored"}, "gs://c/a.tar"),
        ({"base": "sub"}, {}, "gs://bucket/data/sub/a.tar"),
        ({"base_path": "sub"}, {"base": "gs://ignored"}, "gs://bucket/data/sub/a.tar"),
        ({"base": ""}, {"base": "own"}, "https://h/one/own/a.tar"),
        ({}, {}, "https://h/one/a.tar"),
    ],
)
def test_base_of_a_reference(reference, own, full):
    """A base beside a source_url overrides that index's own, and is relative to the index it stands in."""
    raw = {"wids_version": 1, "datasets": [{"source_url": "https://h/one/i.json", **reference}]}
    assert read(raw, files={"https://h/one/i.json": {"shardlist": rows("a.tar"), **own}}).urls == [full]


def test_source_urls_of_an_open_file():
    """Without a place, they are relative to the base, if there is one."""
    raw = {"wids_version": 1, "datasets": [{"source_url": "i.json"}]}
    assert read(raw, None, files={"i.json": {"shardlist": rows("a.tar")}}).urls == ["a.tar"]
    assert read(raw, None, files={"/d/i.json": {"shardlist": rows("a.tar")}}, base="/d").urls == ["/d/a.tar"]


def test_nested_sub_datasets():
    """Parts of parts, in place and behind URLs: what is nearest to a shard says its dataset, weight and source."""
    files = {
        "gs://o/i.json": {
            "name": "loaded",
            "shardlist": rows("a.tar"),
            "datasets": [
                {"name": "inner", "weight": 3, "shardlist": rows("b.tar")},
                {"source_url": "j.json", "name": "deeper"},
            ],
        },
        "gs://o/j.json": {"shardlist": rows("c.tar")},
    }
    raw = {
        "wids_version": 1,
        "datasets": [
            {"name": "outer", "weight": 2, "base": "sub", "datasets": [{"base": "sub", "shardlist": rows("d.tar")}]},
            {"source_url": "gs://o/i.json", "weight": 5},
        ],
    }
    i, j = files
    assert described(read(raw, files=files)) == [
        {"url": "gs://bucket/data/sub/sub/d.tar", "nsamples": 1, "dataset": "outer", "weight": 2},
        {"url": "gs://o/a.tar", "nsamples": 1, "dataset": "loaded", "weight": 5, "source_url": i},
        {"url": "gs://o/b.tar", "nsamples": 1, "dataset": "inner", "weight": 3, "source_url": i},
        {"url": "gs://o/c.tar", "nsamples": 1, "dataset": "deeper", "weight": 5, "source_url": j},
    ]


def test_one_sub_dataset_twice():
    """Listing a dataset twice is how it is made to count twice; it is no loop."""
    raw = {"wids_version": 1, "datasets": [{"source_url": "i.json"}, {"source_url": "i.json"}]}
    assert len(read(raw, files={"gs://bucket/data/i.json": {"shardlist": rows("a.tar")}})) == 2


@pytest.mark.parametrize("source_url", ["index.json", "./index.json", "../data/index.json", PLACE])
def test_an_index_that_names_itself(source_url):
    """A loop is told, not followed."""
    raw = {"wids_version": 1, "datasets": [{"source_url": source_url}]}
    assert "leads back to" in refuse(raw, "datasets[0].source_url", files={PLACE: raw})


def test_indexes_that_name_each_other():
    """The error stands in the index that closes the loop."""
    first, second = ({"wids_version": 1, "datasets": [{"source_url": name}]} for name in ("b.json", "index.json"))
    other = "gs://bucket/data/b.json"
    refuse(first, "datasets[0].source_url", url=other, files={other: second, PLACE: first})


def test_an_endless_chain_of_indexes():
    """Indexes that always name another one end at a bound."""
    loads = []

    def load(url):
        loads.append(url)
        return json.dumps({"datasets": [{"source_url": f"{len(loads)}.json"}]}).encode()

    with pytest.raises(SpecError, match="within 8 others") as caught:
        parse_index(json.dumps({"wids_version": 1, "datasets": [{"source_url": "0.json"}]}), index_url=PLACE, load=load)
    assert len(loads) == 8
    assert caught.value.path == "datasets[0]"
    assert caught.value.url == loads[-1]


def test_parts_within_parts_without_end():
    """400 levels of parts in place are JSON that can be read, and an error, not the end of the stack."""
    raw = {"shardlist": rows("a.tar")}
    for _ in range(400):
        raw = {"datasets": [raw]}
    message = refuse({"wids_version": 1, **raw}, "datasets[0]" + ".datasets[0]" * 8)
    assert "within 8 others" in message


@pytest.mark.parametrize(
    ("loaded", "path"),
    [
        ({"shardlist": [{"url": "a.tar"}]}, "shardlist[0].nsamples"),
        ({"shardlist": [{"url": "", "nsamples": 1}]}, "shardlist[0].url"),
        ({"wids_version": 2, "shardlist": []}, "wids_version"),
        ({"wids_version": "1", "shardlist": []}, "wids_version"),
        ({}, "shardlist"),
        ({"source_url": "other.json"}, "shardlist"),
        ({"datasets": [{}]}, "datasets[0]"),
        ([], ""),
    ],
)
def test_bad_values_behind_a_source_url(loaded, path):
    """The path is that in the loaded index, and the error names that index."""
    source = "gs://bucket/data/i.json"
    refuse({"wids_version": 1, "datasets": [{"source_url": "i.json"}]}, path, url=source, files={source: loaded})


def test_errors_of_loading_are_the_callers():
    """What ``load`` raises comes through."""
    with pytest.raises(AssertionError, match=r"asked for gs://bucket/data/i\.json"):
        read({"wids_version": 1, "datasets": [{"source_url": "i.json"}]})


# --- what a remote index may point at

LOCAL = [
    "~/x.tar",
    "file:///etc/passwd",
    "FILE:///etc/passwd",
    "local:///etc/passwd",
    "pipe:cat /etc/passwd",
    "simplecache::file:///etc/passwd",
    "simplecache::/etc/passwd",
    "file:///etc/passwd::https://h/x",
    "file::https://h/x",
    "reference::https://h/refs.json",
    "zip://x.tar::/etc/x.zip",
]


@pytest.mark.parametrize("url", LOCAL)
@pytest.mark.parametrize("place", ["https://h/i.json", "gs://b/d/i.json", "simplecache::https://h/i.json"])
def test_a_remote_index_does_not_reach_local_files(url, place):
    """Neither a shard, nor a sub-dataset's index or shard may; unless the caller says so."""
    shard = index(shardlist=rows("ok.tar", url))
    part = {"wids_version": 1, "datasets": [{"shardlist": rows("ok.tar", url)}]}
    source = {"wids_version": 1, "datasets": [{"source_url": url}]}
    for raw, path in (
        (shard, "shardlist[1].url"),
        (part, "datasets[0].shardlist[1].url"),
        (source, "datasets[0].source_url"),
    ):
        refuse(raw, path, kind=NotAllowedError, url=place, index_url=place)
    assert read(shard, place, allow_local=True).urls[1] == url
    assert read(part, place, allow_local=True).urls[1] == url
    assert len(read(source, place, files={url: index(shardlist=rows("/d/a.tar"))}, allow_local=True)) == 1


@pytest.mark.parametrize("url", ["a.tar", "/d/a.tar"])
def test_an_index_of_a_program_does_not_run_programs(url):
    """Beside ``pipe:cat i.json``, a relative URL is another command."""
    refuse(
        index(shardlist=rows(url)),
        "shardlist[0].url",
        kind=NotAllowedError,
        index_url="pipe:cat i.json",
        url="pipe:cat i.json",
    )


@pytest.mark.parametrize("base", ["file:///etc", "~", "simplecache::file:///etc", "pipe:cat /etc"])
def test_a_base_does_not_reach_local_files(base):
    """The whole URL counts, however it was put together."""
    refuse(index(base=base), "shardlist[0].url", kind=NotAllowedError)
    assert len(read(index(base=base), allow_local=True)) == 1


@pytest.mark.parametrize("place", ["/d/i.json", "i.json", "file:///d/i.json", "~/i.json", None])
@pytest.mark.parametrize("url", ["/etc/passwd", *LOCAL])
def test_a_local_index_may_point_anywhere(url, place):
    """What is on this machine already is trusted; `pipe:` is judged where it is opened."""
    assert len(read(index(shardlist=rows(url)), place)) == 1


def test_a_remote_part_of_a_local_index_is_remote():
    """Each index is judged by its own place."""
    raw = {"wids_version": 1, "datasets": [{"source_url": "https://h/i.json"}]}
    files = {"https://h/i.json": {"shardlist": rows("file:///etc/passwd")}}
    refuse(raw, "shardlist[0].url", kind=NotAllowedError, url="https://h/i.json", index_url="/d/i.json", files=files)
    assert len(read(raw, "/d/i.json", files=files, allow_local=True)) == 1


def test_remote_urls_are_no_matter():
    """Chains of remote places and other buckets are what indexes hold."""
    names = ["s3://c/x.tar", "simplecache::https://h/x.tar", "zip://x.tar::https://h/x.zip", "hf://datasets/a/b/x.tar"]
    assert read(index(shardlist=rows(*names))).urls == names


# --- the list itself


@checked
@given(
    st.lists(
        st.tuples(
            st.text(st.characters(codec=None, exclude_characters="\0"), min_size=1, max_size=9),
            st.integers(0, (1 << 63) - 1),
            st.none() | st.integers(0, 1 << 62),
            st.sampled_from([None, "", MD5]),
            st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
        ),
        max_size=6,
    )
)
def test_pickled_and_read_again(items):
    """Any shard list comes through a pickle, with no shards too, and with names that are not UTF-8."""
    given_rows = [
        {"url": url, "nsamples": count, "filesize": size, "md5sum": md5, **{f"x{key}": v for key, v in more.items()}}
        for url, count, size, md5, more in items
    ]
    shards = list_shards(given_rows)
    again = pickle.loads(pickle.dumps(shards))
    assert described(again) == described(shards)
    assert len(again) == len(items)
    assert (again.urls, again.nsamples) == (shards.urls, shards.nsamples)
    assert (again.filesizes, again.md5sums, again.header) == (shards.filesizes, shards.md5sums, shards.header)


def test_an_index_pickled():
    """Header, parts and unknown keys come through."""
    shards = read(
        {
            "wids_version": 1,
            "name": "all",
            "shardlist": rows("a.tar", tag=1),
            "datasets": [{"name": "one", "shardlist": rows("b.tar", "c.tar")}],
        }
    )
    again = pickle.loads(pickle.dumps(shards))
    assert described(again) == described(shards)
    assert again.header == {"wids_version": 1, "name": "all"}
    assert [again.dataset_of(k) for k in range(3)] == [None, "one", "one"]
    assert pickle.loads(pickle.dumps(list_shards([]))).urls == []


def test_a_pickle_is_small():
    """A shard costs its URL and a few bytes: this list is sent to every worker."""
    one = list_shards([(f"s3://bucket/train-{k:06d}.tar", 1000 + k) for k in range(10_000)])
    assert len(pickle.dumps(one)) < 10_000 * 45


def test_shards_are_values():
    """A shard is compared by what it says, and does not change."""
    shard = Shard(url="a.tar", nsamples=1)
    assert shard == list_shards([("a.tar", 1)])[0]
    with pytest.raises(AttributeError):
        shard.url = "b.tar"
    assert msgspec.structs.replace(shard, nsamples=None).nsamples is None


# --- bounds, and whose servers


def test_an_index_on_an_ipv6_host():
    """Relative shards, and such with ``::`` in their query, are that host's."""
    found = read(index(shardlist=[{"url": "a.tar?s=b::c", "nsamples": 1}]), index_url="http://[::1]:8000/train.json")
    assert found.urls == ["http://[::1]:8000/a.tar?s=b::c"]


def nested(levels, width):
    """Files that name the next one ``width`` times each, so many levels deep."""
    files = {"gs://b/i0.json": index()}
    for level in range(1, levels):
        part = {"source_url": f"gs://b/i{level - 1}.json"}
        files[f"gs://b/i{level}.json"] = {"wids_version": 1, "datasets": [part] * width}
    return {"wids_version": 1, "datasets": [{"source_url": f"gs://b/i{levels - 1}.json"}] * width}, files


def test_sources_that_multiply_are_bounded():
    """Files that name each other again and again: each is loaded once, and an error comes before they are millions."""
    raw, files = nested(7, 8)
    loaded = []

    def load(url):
        loaded.append(url)
        return json.dumps(files[url]).encode()

    with pytest.raises(SpecError, match="10,000") as caught:
        parse_index(json.dumps(raw), index_url=PLACE, load=load)
    assert "source_url" in caught.value.path
    assert sorted(loaded) == sorted(files)


def test_rows_that_multiply_are_bounded(monkeypatch):
    """So are the shards that they make."""
    monkeypatch.setattr(spec, "MAX_SHARDS", 100)
    raw, files = nested(2, 10)
    assert len(read(raw, files=files)) == 100
    raw["datasets"].append(raw["datasets"][0])
    with pytest.raises(SpecError, match="more than 100 shards") as caught:
        read(raw, files=files)
    assert caught.value.path == "shardlist"


def test_servers_that_the_caller_names():
    """Those of the place, of base=, and of all that stands in local texts; never of what a remote index says."""
    remote = index(shardlist=[{"url": "https://stranger/a.tar", "nsamples": 1}])
    local = index(
        shardlist=[
            {"url": "https://own/a.tar", "nsamples": 1},
            {"url": "simplecache::https://u@cdn:1/b", "nsamples": 1},
        ],
        datasets=[{"source_url": "https://sub/i.json"}],
    )
    named = set()
    read(local, index_url="/data/i.json", files={"https://sub/i.json": remote}, named=named)
    assert named == {"https://own", "https://cdn:1", "https://sub"}
    named = set()
    read(remote, index_url="https://h/i.json", base="https://base/dir", named=named)
    assert named == {"https://h", "https://base"}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"wids_version": 1, "wids_version": 1, "shardlist": []}', "wids_version stands twice in one object, and"),
        ('{"shardlist": [{"url": "a.tar", "nsamples": 1, "nsamples": 2}]}', "nsamples stands twice .* shard 'a.tar'"),
        ('{"shardlist": [{"url": "a.tar", "url": "b.tar", "nsamples": 2}]}', "url stands twice in one object"),
    ],
)
@pytest.mark.parametrize("encode", [str, str.encode])
def test_a_key_that_stands_twice(text, what, encode):
    """JSON lets the last one win, which of two counts may be the wrong one."""
    with pytest.raises(SpecError, match=what):
        parse_index(encode(text), index_url=None, load=None)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"shardlist": [{"url": "a.tar", "nsamples": 1, "nsamples": 2}]}', "nsamples stands twice .* shard 'a.tar'"),
        ('{"datasets": [{"shardlist": [{"url": "b.tar", "crc32": "", "crc32": ""}]}]}', "crc32 stands twice"),
        ('{"a": {"url": 1}, "shardlist": [{"url": "a.tar", "x": 1, "x": 2}]}', "x stands twice"),
    ],
)
@pytest.mark.parametrize("encode", [str, str.encode])
def test_a_key_that_stands_twice_in_a_long_text(text, what, encode, monkeypatch):
    """It is looked for where keys of shards are more than shards have; a text without it is parsed once."""
    monkeypatch.setattr(spec, "_MAX_CHECKED", 0)
    with pytest.raises(SpecError, match=what):
        parse_index(encode(text), index_url=None, load=None)
    looked = []
    monkeypatch.setattr(spec, "_check_unique", lambda *_: looked.append(1))
    rows = [{"url": f"{k}.tar", "nsamples": 1, "md5sum": "0" * 32} for k in range(3)]
    index = {"wids_version": 1, "shardlist": rows, "datasets": [{"shardlist": rows[:2], "datasets": []}]}
    assert len(parse_index(encode(json.dumps(index)), index_url=None, load=None)) == 5
    assert not looked

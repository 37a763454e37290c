"""JSON of files and servers: one parser, whose only error is typed, and all that read by it."""

import itertools
import json
import math
import random
from array import array

import msgspec
import pytest

import wids
from tests.support.containers import mutate
from wids.core.cache import usage_hints
from wids.core.files.json_text import MAX_DEPTH, TOLERANT, JsonParser, parse, unique
from wids.core.files.shared_files import SharedFile
from wids.core.index import compiled_files, energon, spec, view_file
from wids.core.index.packed_columns import SparseKeys, Texts
from wids.core.readers import remote_counts
from wids.core.shard import MAX_COUNT
from wids.core.tables import published_tables, table_packs
from wids.errors import JsonError, SpecError, StateError, WidsError
from wids.hub import datasets
from wids.hub import source as hub
from wids.hub.repository import RepositorySplit, find_counts
from wids.jobs import journal
from wids.jobs.problems import Finding


class Row(msgspec.Struct):
    """What a text may have to be."""

    name: str
    count: int = 0
    rest: object = None


ROWS = JsonParser(Row, max_bytes=10_000)
DEEP = "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"name": "a"}', Row("a")),
        ('\ufeff{"name": "a"}', Row("a")),
        ('{"name": "a", "name": "b"}', Row("b")),
        ('{"name": "\\ud800"}', Row("\ud800")),
        (f'{{"name": "a", "count": {1 << 80}}}', Row("a", 1 << 80)),
    ],
)
def test_what_is_read(text, value):
    """As text, bytes, a map; with a byte order mark; in UTF-16, half a surrogate pair, and integers of any length."""
    for given in (text, text.encode(), memoryview(text.encode()), text.removeprefix("\ufeff").encode("utf-16")):
        assert ROWS.parse(given) == value


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b'{"name": "\xff"}',
        b'{"name": 5}',
        b'{"name": "a", "count": 1e5}',
        b'{"name": "a", "count": ' + b"9" * 5000 + b"}",
        b'{"name": "a", "rest": NaN}',
        b'{"name": "a", "rest": -Infinity}',
        b'{"name": "a", "rest": 1e999}',
        b'{"name": "a", "rest": ' + DEEP.encode() + b"}",
        b'{"name": "a", "rest": ' + b"[" * 4000 + b"]" * 4000 + b"}",
        b'{"name": "a"}' + b" " * 10_000,
        b'{"name": "a"} x',
        b"[]",
        b"null",
    ],
)
def test_what_is_refused(text):
    """By a `JsonError`, whose words fit on a line: nothing else may come of a text."""
    with pytest.raises(JsonError) as caught:
        ROWS.parse(text)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


def test_depth_is_counted_and_not_guessed_by_brackets():
    """Many brackets side by side, or in a text, are not deep; a typed value is walked, too."""
    assert len(parse("[" + ",".join(["[]"] * 5000) + "]")) == 5000
    assert parse(json.dumps(["[" * 5000])) == ["[" * 5000]
    assert ROWS.parse(f'{{"name": "a", "rest": {DEEP[2:-2]}}}').rest
    with pytest.raises(JsonError, match="deep"):
        parse(f"[{DEEP}]")


@pytest.mark.parametrize("text", [b'{"\xff": 1}', b"\xff\xfe\xff"])
def test_bytes_that_are_no_utf_8(text):
    """Wherever they are, in a key as in a value."""
    with pytest.raises(JsonError, match="codec can't decode"):
        parse(text)


def test_plain_texts():
    """What only Python's json reads is refused, for those who hand the texts on."""
    plain = JsonParser(Row, is_plain=True)
    assert plain.parse(b'{"name": "a"}') == Row("a")
    for text in (b'{"name": "\\ud800"}', b'\xef\xbb\xbf{"name": "a"}', b"{" * 5000):
        with pytest.raises(JsonError):
            plain.parse(text)


def test_numbers_that_are_none():
    """Python's json writes NaN into files of people and other programs, and it is read there."""
    assert math.isnan(TOLERANT.parse("[NaN]")[0])
    assert TOLERANT.parse("[1e999, -Infinity]") == [math.inf, -math.inf]


def test_keys_that_stand_twice():
    """Pairs are given as they are; `unique` refuses them; an error of the hook that is typed comes as it is."""
    assert TOLERANT.parse_pairs('{"a": 1, "a": 2}', list) == [("a", 1), ("a", 2)]
    with pytest.raises(JsonError, match="the key 'a' is there twice"):
        TOLERANT.parse_pairs('{"a": 1, "a": 2}', unique)

    def refuse(pairs):
        raise SpecError(f"{len(pairs)}", path="x")

    with pytest.raises(SpecError, match="2"):
        TOLERANT.parse_pairs('{"a": 1, "a": 2}', refuse)


# --- all that is read by it


def shared(take, *errors):
    """A reader of a shared file of this machine; it may also say None, or raise what has the file made again."""
    return lambda data: take(SharedFile("/f", memoryview(data), None)), (JsonError, *errors)


def read_index(data):
    """The shards of an index without other files."""
    return spec.parse_index(data, index_url="/d/x.json", load=lambda place, _: pytest.fail(place))


def packed_keys(data):
    """The keys of a shard in a compiled index."""
    texts = Texts(memoryview(array("q", [len(data)])), memoryview(data), file_url="x.widsx")
    return SparseKeys(memoryview(array("q", [3])), texts).get(3)


def state(data):
    """A sampler that goes on from a state."""
    found = parse(data)
    sampler = wids.ChunkedSampler(wids.ShardListDataset([("a.tar", 40)]), chunksize=4, seed=3)
    sampler.load_state_dict(found)
    assert all(0 <= index < 40 for index in itertools.islice(sampler, 50))


def counts(name):
    """A reader of a file of a repository that may have counts; one that cannot be used is a warning."""

    def read(data):
        files = {"a.tar": 10_240, "b.tar": 10_240, name: len(data)}
        split = RepositorySplit("train", ["a.tar", "b.tar"], {}, [])
        found = find_counts(files, split, lambda _: data, name="hf://datasets/org/set")
        assert all(0 <= count <= MAX_COUNT for count in found.nsamples.values())

    return read


def a_state():
    """A state, as in a checkpoint."""
    sampler = wids.ChunkedSampler(wids.ShardListDataset([("a.tar", 40)]), chunksize=4, seed=3)
    list(itertools.islice(sampler, 7))
    return sampler.state_dict()


VIEW = {
    "wids_version": 1,
    "view_of": "a.json",
    "view_of_fingerprint": "0" * 16,
    "view_of_counts": [2, 9],
    "rows": "v.rows",
    "rows_checksum": "0" * 8,
    "nsamples": 4,
}
INDEX = {
    "wids_version": 1,
    "base": "d",
    "info": {"mean": [0.5, 1e-3]},
    "shardlist": [{"url": "a-{0..2}.tar", "nsamples": 5, "filesize": 10_240, "md5sum": "0" * 32, "own": {"a": 1}}],
    "datasets": [{"name": "y", "weight": 0.5, "shardlist": [{"url": "b.tar", "nsamples": 3, "crc32": "0" * 8}]}],
}
TIMM = {"splits": {"train": {"num_samples": 7, "filenames": ["b.tar", "a.tar"], "shard_lengths": [3, 4]}}}
WEBSHART = {"filesize": 10_240, "files": {"a.txt": {"offset": 512}, "b.txt": {"offset": 0}}}
STATUS = {"size": 5, "mtime_ns": 5, "ctime_ns": 5, "inode": 5, "device": 5}
# Name -> (a text, what reads it and goes on with what it says, its errors).
READERS = {
    "index": (INDEX, lambda data: read_index(data).lengths, (SpecError,)),
    "view": (VIEW, lambda data: view_file.parse_view(spec.parse_json(data, "v"), "v"), (SpecError,)),
    "is an index": (INDEX, spec.is_index, (JsonError,)),
    "energon": ({"shard_counts": {"a.tar": 5}}, lambda data: energon.convert_info(data, url="i.json"), (SpecError,)),
    "_info.json": (TIMM, counts("_info.json"), ()),
    "sizes.json": ({"a.tar": 5, "b.tar": "6"}, counts("sizes.json"), ()),
    "a_stats.json": ({"successes": 5, "count": 6}, counts("a_stats.json"), ()),
    "a.json": (WEBSHART, counts("a.json"), ()),
    "train.json": (INDEX, counts("train.json"), ()),
    "keys of a shard": ({"own": {"a": 1}}, packed_keys, (SpecError,)),
    "journal": (
        {"url": "a.tar", "problems": [], "nsamples": 5},
        lambda data: list(journal.parse_records(data.split(b"\n"), Finding)),
        (),
    ),
    "state of a job": ({"url": "a.tar"}, lambda data: journal.holds_records(data, Finding), ()),
    "plan": (
        {"uses": {"a": 1.5}, "busy": {"b": 2.0}, "figures": {"c": {"d": 1.0}}},
        usage_hints._PLANS.parse,
        (JsonError,),
    ),
    "note": ({"status": STATUS, "digest": "0" * 64}, compiled_files._NOTES.parse, (JsonError,)),
    "pack": (
        {"url": "p", "size": 5, "version": ["a", "b"]},
        lambda data: table_packs._NOTES.parse(data).stat,
        (JsonError,),
    ),
    "missing tables": (
        {"shards": {"0": 5.0}, "found": 1.5},
        lambda data: published_tables._MISSING.parse(data).drop_old(10.0),
        (JsonError,),
    ),
    "remote counts": ([5, 6], *shared(lambda file: remote_counts._take(2, file))),
    "split": (
        {"split": "train", "shards": [["a.tar", 5, 6]], "others": {"test": 1}, "notes": []},
        datasets._SPLITS.parse,
        (JsonError,),
    ),
    "pin": ({"commit": "0" * 40, "at": 5.0}, *shared(hub._take_pin)),
    "listing": ({"a.tar": [5, "0" * 64, "tag"], "b.tar": [5, None, "tag"]}, *shared(hub._take_files)),
    "answer of the Hub": ([{"type": "file", "path": "a", "lfs": {"oid": "x"}}], hub._PAGES.parse, (JsonError,)),
    "sampler": (a_state, state, (JsonError, StateError)),
}
FEW_AND_MANY = [
    pytest.param(100, id="few"),
    pytest.param(100_000, id="many", marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
]


@pytest.mark.parametrize("count", FEW_AND_MANY)
@pytest.mark.parametrize("name", READERS)
def test_mutations(name, count):
    """Texts with one thing changed, also by a value that is absurd: they are read, or their own error says why not."""
    made, read, kinds = READERS[name]
    assert all(issubclass(kind, WidsError) for kind in kinds)
    draws, whole = random.Random(f"{name} 1"), json.dumps(made() if callable(made) else made).encode()
    read(whole)
    refused = 0
    for _ in range(count):
        changed = mutate(draws, whole)
        try:
            read(changed)
        except kinds:
            refused += 1
    assert refused > 0 or not kinds

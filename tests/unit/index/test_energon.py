"""Megatron-Energon's counts as an index: its JSON and its few lines of YAML, from a disk and a server."""

import contextlib
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import tars
from tests.support.shards import write_shard
from wids.core.collection.shard_collection import load_shards
from wids.core.index import energon
from wids.dataset import ShardListDataset
from wids.errors import NotAllowedError, SpecError

YAML = "energon_version: 7.1.0\nshard_counts:\n  parts/a.tar: 3\n  'parts/b.tar': 2\n"


def write_energon(directory, text=None, name=".info.json"):
    """A dataset of two shards as Energon has it; returns the path of its counts."""
    (directory / ".nv-meta").mkdir(parents=True)
    write_shard(directory / "parts" / "a.tar", 3)
    write_shard(directory / "parts" / "b.tar", 2, first=3)
    place = directory / ".nv-meta" / name
    counts = {"energon_version": "7.1.0", "shard_counts": {"parts/a.tar": 3, "parts/b.tar": 2}}
    place.write_text(json.dumps(counts) if text is None else text)
    return place


@pytest.mark.parametrize(("text", "name"), [(None, ".info.json"), (None, ".info.yaml"), (YAML, ".info.yaml")])
@pytest.mark.usefixtures("own_cache")
def test_energon_dataset_opens(tmp_path, monkeypatch, text, name):
    """`ShardListDataset("dir/.nv-meta/.info.json")` has the counts from there, and the shards beside it."""
    place = write_energon(tmp_path / "d", text, name)
    dataset = ShardListDataset(place)
    assert dataset.lengths == [3, 2]
    assert dataset[4][".txt"] == "text 4"
    assert dataset.shards[0]["url"] == os.fspath(tmp_path / "d" / "parts" / "a.tar")
    monkeypatch.chdir(tmp_path / "d")
    assert ShardListDataset(f".nv-meta/{name}")[3][".cls"] == 3


@pytest.mark.usefixtures("own_cache")
def test_energon_dataset_over_http(server):
    """The same behind HTTP."""
    server.add("/d/.nv-meta/.info.json", json.dumps({"shard_counts": {"a.tar": 2}}).encode())
    server.add("/d/a.tar", tars.files({"x.txt": b"1", "y.txt": b"2"}))
    assert ShardListDataset(server.url + "/d/.nv-meta/.info.json")[1][".txt"] == "2"


def test_energon_counts_from_elsewhere_reach_no_local_file(server):
    """Counts from a remote place may not name local files."""
    url = server.add("/d/.nv-meta/.info.json", json.dumps({"shard_counts": {"file:///etc/x.tar": 2}}).encode())
    with pytest.raises(NotAllowedError):
        load_shards(url)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", ""),
        ("[]", ""),
        ("{}", "shard_counts"),
        ('{"shard_counts": {}}', "shard_counts"),
        ('{"shard_counts": ["a.tar"]}', "shard_counts"),
        ('{"shard_counts": {"a.tar": -1}}', "shard_counts['a.tar']"),
        ('{"shard_counts": {"a.tar": true}}', "shard_counts['a.tar']"),
        ('{"shard_counts": {"a.tar": "3"}}', "shard_counts['a.tar']"),
        ('{"shard_counts": {"a.tar": 1e30}}', "shard_counts['a.tar']"),
    ],
)
def test_energon_counts_malformed(text, path):
    """What is wrong with counts is named."""
    with pytest.raises(SpecError) as caught:
        energon.convert_info(text.encode(), url="d/.nv-meta/.info.json")
    assert caught.value.path == path
    assert "d/.nv-meta/.info.json" in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "  a.tar: 03",
        "  a.tar: 1_000",
        "  a.tar: &x 3",
        "  ? a.tar",
        "  a: 3",
        "  a.tar : 3",
        "  'it''s.tar': 3",
        '  "a\\x41.tar": 3',
        "  b.tar: 4",
        "\ta.tar: 3",
        "shard_counts: !!python/object:os.system {}",
        "<<: *x",
        "--- ",
        "  a.tar: 3 # three",
        f"  a.tar: {'9' * 5000}",
    ],
)
def test_energon_yaml_beyond_plain_lines(line):
    """YAML that is more than plain lines is refused with its line, never guessed at."""
    text = f"shard_counts:\n  b.tar: 2\n{line}\n"
    with pytest.raises(SpecError, match=r"line 3"):
        energon.convert_info(text.encode(), url=".info.yaml")


@given(st.binary(max_size=80))
def test_any_bytes_as_counts(data):
    """Any bytes are counts or a typed error."""
    for place in (".info.json", ".info.yaml"):
        for text in (data, b"shard_counts:\n" + data):
            with contextlib.suppress(SpecError):
                json.loads(energon.convert_info(text, url=place))


@pytest.mark.parametrize("name", ["split.yaml", "split.json"])
@pytest.mark.usefixtures("own_cache")
def test_counts_without_what_the_owner_excludes(tmp_path, name):
    """The splits beside the counts are read; a sample of a shard cannot be left out, and is an error."""
    place = write_energon(tmp_path / "d")
    splits = place.parent / name
    splits.write_text(json.dumps({"split_parts": {}, "exclude": ["parts/a.tar"]}))
    assert [shard["url"] for shard in ShardListDataset(place).shards] == [os.fspath(tmp_path / "d" / "parts" / "b.tar")]
    splits.write_text(json.dumps({"exclude": ["parts/a.tar/000001"]}))
    with pytest.raises(SpecError, match="exclude leaves out 1 single samples"):
        ShardListDataset(place)
    splits.write_text(json.dumps({"exclude": ["parts/{a,b}.tar"]}))
    with pytest.raises(SpecError, match="no shard that the owner does not exclude"):
        ShardListDataset(place)


@pytest.mark.usefixtures("own_cache")
def test_counts_over_http_without_what_the_owner_excludes(server):
    """The same from a server."""
    server.add("/d/.nv-meta/.info.json", json.dumps({"shard_counts": {"a.tar": 2, "b.tar": 1}}).encode())
    server.add("/d/.nv-meta/split.yaml", b"exclude: [b.tar]")
    assert ShardListDataset(server.url + "/d/.nv-meta/.info.json").lengths == [2]


def test_unknown_keys_of_counts_are_named(caplog):
    """They may say which samples there are."""
    energon.convert_info(b'{"shard_counts": {"a.tar": 1}, "subset": [0, 1]}', url="d/.info.json")
    assert "d/.info.json: wids does not read 'subset', which could change which samples there are" in caplog.text


def test_a_line_of_spaces_is_read_in_linear_time():
    """Of YAML: spaces before a letter that may not follow them."""
    with pytest.raises(SpecError, match="line 1"):
        energon.convert_info(b"a: b" + b" " * 1_000_000 + b"#", url="d/.info.yaml")

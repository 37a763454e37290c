"""A compiled index: what is packed comes back, and no bytes are taken for it that are not one."""

import copy
import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.containers import Parts
from tests.support.examples import examples
from wids.core.index import compiled
from wids.core.index.fingerprint import fingerprint
from wids.core.index.packed_columns import REMEDY
from wids.core.index.spec import list_shards, parse_index
from wids.errors import SpecError

checked = settings(max_examples=examples(100))
PLACE = "/d/train.widsx"
MD5 = "9e107d9d372bb6826bd81d3542a419d6"

names = st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=40) | st.just("x" * 2000)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
rows = st.builds(
    lambda url, count, size, md5, crc32, more: {
        **more,
        "url": url,
        "nsamples": count,
        **({} if size is None else {"filesize": size}),
        **({} if md5 is None else {"md5sum": md5}),
        **({} if crc32 is None else {"crc32": crc32}),
    },
    names,
    st.integers(0, 1 << 40),
    st.none() | st.integers(0, (1 << 63) - 1),
    st.none() | (st.just(0) | st.integers(0, (1 << 128) - 1)).map("{:032x}".format),
    st.none() | (st.just(0) | st.integers(0, (1 << 32) - 1)).map("{:08x}".format),
    st.dictionaries(st.sampled_from(["dataset", "weight", "own", "süß"]), plain, max_size=2),
)


def pack(shards, **options):
    """The bytes of a compiled index."""
    return b"".join(compiled.pack(shards, **options))


def unpack(data, *, home=None, is_whole=True):
    """The shard list in these bytes."""
    return compiled.unpack(data, file_url=PLACE, home=home, is_whole=is_whole).shards


def described(shards):
    """Every shard as its dict."""
    return [shards.describe(k) for k in range(len(shards))]


def check_same(mapped, parsed):
    """All that a shard list says is the same for both."""
    n = len(parsed)
    assert len(mapped) == n
    assert described(mapped) == described(parsed)
    assert [mapped[k] for k in range(-n, n)] == [parsed[k] for k in range(-n, n)]
    for name in ("urls", "nsamples", "filesizes", "md5sums", "crc32s"):
        ours, theirs = getattr(mapped, name), getattr(parsed, name)
        assert ours == theirs
        assert theirs == ours
        assert ours[1:] == theirs[1:]
        assert ours[::-1] == theirs[::-1]
        assert [*ours] == [ours[k] for k in range(n)] == [*theirs]
        more = [0]
        assert (ours + more, more + ours) == (theirs + more, more + theirs)
    assert sum(mapped.nsamples) == sum(parsed.nsamples)
    assert all(type(count) is int for count in [*mapped.nsamples, mapped.nsamples[0], mapped.ends()[0]])
    assert list(mapped.ends()) == list(parsed.ends())
    assert np.asarray(mapped.nsamples).tolist() == list(parsed.nsamples)
    assert [mapped.dataset_of(k) for k in range(n)] == [parsed.dataset_of(k) for k in range(n)]
    assert [mapped.find(url) for url in parsed.urls] == [parsed.find(url) for url in parsed.urls]
    assert (mapped.header, fingerprint(mapped)) == (parsed.header, fingerprint(parsed))
    assert (mapped.unknown_counts(), parsed.unknown_counts()) == ([], [])
    with pytest.raises(KeyError, match="not a shard of this dataset"):
        mapped.find("/no/such.tar")


@checked
@given(st.lists(rows, min_size=1, max_size=12), st.sampled_from([None, "/caf\udce9", "gs://b/d"]))
def test_round_trip(items, base):
    """Any shards: long names, those of directories in no encoding, further keys."""
    parsed = list_shards(items, base=base)
    check_same(unpack(pack(parsed), is_whole=False), parsed)
    check_same(pickle.loads(pickle.dumps(unpack(pack(parsed)))), parsed)


def test_an_index_with_sub_datasets():
    """Weights, names and further keys of components, which no shard repeats."""
    raw = {
        "wids_version": 1,
        "name": "all",
        "weight": 2,
        "info": {"classes": ["a", None]},
        "base": "gs://b/d",
        "shardlist": [{"url": f"{k}.tar", "nsamples": k, "own": [k]} for k in range(5)],
        "datasets": [
            {"name": "x", "weight": 0.5, "shardlist": [{"url": "y.tar", "nsamples": 3, "dataset": "z", "md5sum": MD5}]},
            {"name": "w", "base": "more", "shardlist": [{"url": "y.tar", "nsamples": 1, "filesize": 7}]},
        ],
    }
    parsed = parse_index(json.dumps(raw), index_url=None, load=None)
    mapped = unpack(pack(parsed))
    check_same(mapped, parsed)
    assert mapped.summary.is_local is False


def test_relative_urls_follow_the_file():
    """URLs that are written relative are relative to where the file lies; the others stay."""
    written = ["a.tar", "b/c.tar", "gs://bucket/d.tar", "/e.tar", "a.tar"]
    parsed = list_shards([(f"/d/{url}", 2) for url in written])
    data = pack(parsed, texts=written)
    near = unpack(data, home="/data")
    assert near.urls == ["/data/a.tar", "/data/b/c.tar", "gs://bucket/d.tar", "/e.tar", "/data/a.tar"]
    far = unpack(data, home="https://host/x")
    assert far.urls[:4] == ["https://host/x/a.tar", "https://host/x/b/c.tar", "gs://bucket/d.tar", "https://host/e.tar"]
    for mapped in (near, far):
        assert [mapped.urls.index(url) for url in mapped.urls] == [0, 1, 2, 3, 0]
        assert fingerprint(mapped) == fingerprint(list_shards([(url, 2) for url in mapped.urls]))
    assert [unpack(data, home=home).summary.is_local for home in ("/data", "https://host")] == [False, False]
    alone = pack(list_shards([("a.tar", 1)]), texts=["a.tar"])
    assert [unpack(alone, home=home).summary.is_local for home in ("/data", "https://host")] == [True, False]


def test_counts_make_another_list():
    """A list never changes, in memory or mapped: one of which more is known is another one."""
    parsed = list_shards([{"url": f"/d/{k}.tar", "nsamples": k, "own": k} for k in range(4)])
    mapped = unpack(pack(parsed))
    for shards in (mapped, parsed):
        known = shards.with_known({2: 9}, {0: 7})
        assert (known.summary, known.nsamples, known.filesizes) == (None, [0, 1, 9, 3], [7, -1, -1, -1])
        assert list(known.ends()) == [0, 1, 10, 13]
        assert described(copy.deepcopy(known)) == described(pickle.loads(pickle.dumps(known))) == described(known)
        assert (shards.nsamples, shards.filesizes, list(shards.ends())) == ([0, 1, 2, 3], [-1] * 4, [0, 1, 3, 6])
        with pytest.raises(AttributeError):
            shards.header = {}


def refuse(data, what, **options):
    """These bytes are no index: the error names the file and says what to do."""
    with pytest.raises(SpecError) as caught:
        unpack(data, **options)
    assert str(caught.value) == f"{PLACE}: this compiled index {what}; {REMEDY}"
    assert caught.value.url == PLACE


def sample():
    """A compiled index of three shards."""
    return pack(list_shards([{"url": f"/d/{k}.tar", "nsamples": 5, "own": k} for k in range(3)]))


def changed(**columns):
    """The sample with others numbers in some columns, and the checksums that go with that."""
    parts = Parts(sample())
    parts.columns.update(columns)
    return parts.sealed()


def test_other_bytes_are_refused():
    """What is not a compiled index, or of another version, or was cut, or has another header."""
    data = sample()
    assert unpack(changed()).nsamples == [5, 5, 5]
    assert changed() == data
    for other in (b"", b"{}", b'{"wids_version": 1}' * 20, data[:31]):
        refuse(other, "is none, or was cut short")
    refuse(b"\x89WIDSX\r\n" + data[8:], "was written before wids 1.0")
    refuse(data[:8] + b"widx\0\0\0\0" + data[16:], "is a file of another kind ('widx')")
    for version in (compiled.VERSION - 1, compiled.VERSION + 1):
        other = data[:16] + version.to_bytes(4, "little") + data[20:]
        refuse(other, f"has version {version}, and this wids reads version {compiled.VERSION}")
    refuse(data[:-1], f"is damaged ({len(data) - 1} of {len(data)} bytes)")
    refuse(data + b"\0", f"is damaged ({len(data) + 1} of {len(data)} bytes)")
    refuse(data[:40] + b"\1" + data[41:], "is damaged (the checksum of its header is another)")
    refuse(data[:-20] + b"#" + data[-19:], "is damaged (the checksum of its sections is another)", is_whole=False)
    parts = Parts(data)
    for row in parts.head["sections"]:
        count, row[2] = row[2], 1 << 40
        with pytest.raises(SpecError, match="bytes"):
            unpack(parts.sealed(counts=False))
        row[2] = count


@pytest.mark.parametrize("name", ["md5s", "crc32s", "known", "filesizes", "url_ends", "hashes", "hashed", "key_ends"])
def test_columns_of_another_length_are_refused(name):
    """One of them tells the number of shards, and all others have as many."""
    refuse(changed(**{name: Parts(sample()).columns[name][:-1]}), "contradicts its own header")


@pytest.mark.parametrize("name", ["counts", "ends", "filesizes", "url_ends", "hashed", "key_rows", "key_ends"])
@pytest.mark.parametrize("value", [-2, 1 << 40, (1 << 63) - 1, -(1 << 63)])
def test_columns_that_point_outside_are_refused(name, value):
    """Counts, ends, sizes and offsets; sizes may be anything from -1 on."""
    numbers = Parts(sample()).columns[name]
    numbers[1] = value
    if name == "filesizes" and value > 0:
        assert unpack(changed(filesizes=numbers)).filesizes[1] == value
    else:
        with pytest.raises(SpecError, match=r"points outside itself|contradicts itself"):
            unpack(changed(**{name: numbers}))


def test_counts_that_do_not_fit_are_refused():
    """A sum beyond 64 bits is not one that has gone round."""
    half = 1 << 62
    refuse(changed(counts=[half, half, 5], ends=[half, -(1 << 63), 5 - (1 << 63)]), "contradicts itself (ends)")


def test_texts_are_checked_when_they_are_read():
    """A URL that is no UTF-8, keys that are no JSON, or no object."""
    urls = Parts(sample()).columns["urls"]
    urls[9] = 0xFF
    shards = unpack(changed(urls=urls))
    assert shards.urls[0] == "/d/0.tar"
    with pytest.raises(SpecError, match="has a text that is not UTF-8") as caught:
        _ = shards.urls[1]
    assert caught.value.url == PLACE
    keys = bytes(Parts(sample()).columns["keys"])
    for text, what in ((b"[}", "not JSON "), (b'["own": 0}', "not JSON "), (b'["own", 0]', "not a JSON object")):
        shards = unpack(changed(keys=text + keys[len(text) :]))
        assert shards.dataset_of(1) is None
        with pytest.raises(SpecError, match=what):
            shards.describe(0)


@checked
@given(st.data())
def test_no_bytes_do_harm(data):
    """Whatever is written into a file, sealed or not: it is refused, or gives texts and numbers, or a SpecError."""
    parts = Parts(sample())
    name = data.draw(st.sampled_from(sorted(parts.columns)))
    numbers = parts.columns[name]
    for at in data.draw(st.lists(st.integers(0, len(numbers) - 1), max_size=3)):
        numbers[at] = data.draw(st.integers(-(1 << 63), (1 << 64) - 1) | st.integers(0, 255))
    whole = parts.sealed()
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole = whole[:at] + data.draw(st.binary(min_size=1, max_size=9)) + whole[at:]
    try:
        shards = unpack(whole)
        for k in range(len(shards)):
            assert isinstance(shards.describe(k)["url"], str)
            assert isinstance(shards.find(shards.urls[k]).url, str)
    except (SpecError, KeyError):
        pass


def test_what_a_name_says():
    """Compiled indexes are known by their names, queries aside."""
    assert compiled.is_compiled("https://host/a.widsx?sig=1")
    assert compiled.is_compiled("a.widsx")
    assert not compiled.is_compiled("a.widsx/b.json")
    assert not compiled.is_compiled("train.widx")

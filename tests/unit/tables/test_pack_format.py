"""A pack of member tables: what is packed is found again, and no bytes are taken for a pack that are none."""

import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.containers import START, Parts
from tests.support.examples import examples
from wids.core.files.container import MAGIC
from wids.core.tables import pack_format
from wids.errors import TableError

checked = settings(max_examples=examples(100))
PLACE = "https://host/d/train.tables"

names = st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=20)


def packed(tables, place=PLACE):
    """The bytes of a pack of these tables (name -> bytes)."""
    head = pack_format.pack_head(list(tables), [len(data) for data in tables.values()], url=place)
    return head + b"".join(data + bytes(-len(data) % 8) for data in tables.values())


@checked
@given(st.dictionaries(names, st.binary(max_size=50), max_size=20), names)
def test_what_is_packed_is_found(tables, other):
    """Each table at a multiple of 8, whole; no other shard has one."""
    data = packed(tables, place="/train.tables")
    directory = pack_format.unpack(data, url="train.tables", size=len(data))
    assert len(directory) == len(tables)
    for name, table in tables.items():
        at, length = directory.find(name)
        assert at % 8 == 0
        assert data[at : at + length] == table
    if other not in tables:
        assert directory.find(other) is None


def test_the_directory_is_all_that_opening_needs():
    """Its end is known from the header; what lies behind it is not looked at."""
    data = packed({f"s{k}.tar": b"x" * k for k in range(100)})
    head = pack_format.head_end(data[:START], url=PLACE)
    end = pack_format.directory_end(data[:head], url=PLACE)
    assert end == head + 24 * 100
    assert pack_format.unpack(data[:end], url=PLACE, size=len(data)).find("https://host/d/s7.tar")[1] == 7


@pytest.mark.parametrize(
    ("place", "url", "name"),
    [
        ("https://host/d/train.tables", "https://host/d/a/s.tar", "a/s.tar"),
        ("https://host/d/train.tables", "https://host/dd/s.tar", "https://host/dd/s.tar"),
        ("/data/train.tables", "/data/s.tar", "s.tar"),
        ("/data/train.tables", "https://host/d/s.tar", "https://host/d/s.tar"),
    ],
)
def test_names(place, url, name):
    """Relative where the shard lies below the pack's directory, so that both may be moved together."""
    assert pack_format.name_in(place, url) == name
    data = packed({name: b"table"})
    assert pack_format.unpack(data, url=place).find(url)[1] == 5


def test_a_shard_that_has_come_below_the_pack_is_found_by_its_url():
    """It was packed under its whole URL, and pack and shards were put together since."""
    data = packed({"https://host/d/s.tar": b"table"})
    assert pack_format.unpack(data, url=PLACE).find("https://host/d/s.tar")[1] == 5


def test_an_empty_pack():
    """It has a header, and finds nothing."""
    data = packed({})
    assert len(data) == pack_format.head_end(data, url=PLACE)
    assert pack_format.unpack(data, url=PLACE, size=len(data)).find("s.tar") is None


def test_names_of_one_hash_are_refused(monkeypatch):
    """One shard would get the table of another."""
    monkeypatch.setattr(pack_format, "hash_of", len)
    with pytest.raises(TableError, match=r"bb and cc have the same hash.*rename"):
        packed({"a": b"1", "bb": b"2", "cc": b"3"})


def test_too_many(monkeypatch):
    """What no reader would open is not written."""
    monkeypatch.setattr(pack_format, "MAX_SHARDS", 1)
    with pytest.raises(TableError, match="would have 2 tables"):
        packed({"a": b"1", "b": b"2"})


@checked
@given(st.data())
def test_every_damaged_byte_is_seen(data):
    """Of header and directory; a cut one, too."""
    whole = packed({f"s{k}.tar": b"table" for k in range(5)})
    end = pack_format.directory_end(whole, url=PLACE)
    at = data.draw(st.integers(0, end - 1))
    broken = bytearray(whole)
    broken[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(TableError, match="this pack of member tables"):
        pack_format.unpack(bytes(broken), url=PLACE, size=len(whole))
    with pytest.raises(TableError, match="cut short"):
        pack_format.unpack(whole[:at], url=PLACE, size=len(whole))


HOSTILE = st.sampled_from([0, 1, 8, 40, 159, 160, 167, 168, 1 << 31, 1 << 62, 1 << 63, (1 << 64) - 1, (1 << 64) - 8])


@checked
@given(st.lists(st.integers(0, 4), min_size=1, max_size=3), HOSTILE, HOSTILE)
def test_no_number_leads_outside(places, one, other):
    """Whatever offsets and lengths say under right checksums, none is given that is not in the pack."""
    whole = packed({f"s{k}.tar": b"table" for k in range(5)})
    parts = Parts(whole)
    for place in places:
        parts.columns["offsets"][place], parts.columns["lengths"][place] = one, other
    try:
        directory = pack_format.unpack(parts.sealed(), url=PLACE, size=len(whole))
    except TableError:
        return
    for k in range(5):
        at, length = directory.find(f"https://host/d/s{k}.tar")
        assert pack_format.directory_end(whole, url=PLACE) <= at <= at + length <= len(whole)


@pytest.mark.parametrize("count", [1 << 63, (1 << 64) - 1, 1 << 40, 6, (1 << 22) + 1, -1])
def test_counts_that_the_file_has_no_bytes_for(count):
    """They are refused, before anything is made of that size."""
    parts = Parts(packed({f"s{k}.tar": b"" for k in range(5)}))
    for row in parts.head["sections"]:
        row[2] = count
    broken = parts.sealed(counts=False)
    tracemalloc.start()
    try:
        with pytest.raises(TableError, match=r"contradicts its own header|bytes"):
            pack_format.unpack(broken, url=PLACE, size=len(broken))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_hashes_that_do_not_ascend():
    """A search among them would find anything."""
    parts = Parts(packed({"a.tar": b"1", "b.tar": b"2"}))
    parts.columns["hashes"].reverse()
    with pytest.raises(TableError, match="contradicts itself"):
        pack_format.unpack(parts.sealed(), url=PLACE)


def test_another_version_and_another_size():
    """The error says which."""
    data = packed({"a.tar": b"1"})
    with pytest.raises(TableError, match="has version 7, and this wids reads version 1"):
        pack_format.unpack(data[:16] + struct.pack("<I", 7) + data[20:], url=PLACE)
    with pytest.raises(TableError, match=f"{len(data) - 1} of {len(data)} bytes"):
        pack_format.unpack(data, url=PLACE, size=len(data) - 1)
    with pytest.raises(TableError, match="is none"):
        pack_format.unpack(b"<html>" + bytes(100), url=PLACE)


@checked
@given(st.binary(max_size=200))
def test_any_bytes(data):
    """They are an error, and no crash."""
    with pytest.raises(TableError):
        pack_format.unpack(MAGIC + data, url=PLACE, size=len(data) + 8)

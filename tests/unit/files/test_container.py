"""The container of binary files: what is packed comes back, and no byte of it may change unnoticed."""

import json
import random
import struct
import sys
import tracemalloc
from zlib import crc32

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import tars
from tests.support.containers import Parts, mutate_sealed
from tests.support.examples import examples
from wids.core.files import container
from wids.core.files.container import Format, Invariant, ascending, ends, kind_of, lengths, sums, within
from wids.core.files.identity import Identity
from wids.core.index import compiled, view_file
from wids.core.index.fingerprint import contents, fingerprint
from wids.core.index.shardlist import ShardList
from wids.core.index.spec import list_shards
from wids.core.tables import pack_format
from wids.core.tables.pack_format import Directory
from wids.core.tables.table import MemberTable, build_table, parse_table
from wids.errors import SpecError, TableError


class Header(msgspec.Struct):
    """What the header of the format below says."""

    name: str
    more: dict[str, object] = {}


FORMAT = Format("test", 3, Header, {"a": "u8", "b": "i8", "c": "u4", "d": "u1", "e": "u8?"}, ())
COLUMNS = {
    "a": st.lists(st.integers(0, (1 << 64) - 1), max_size=9),
    "b": st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=9),
    "c": st.lists(st.integers(0, (1 << 32) - 1), max_size=9),
    "d": st.lists(st.integers(0, 255), max_size=9),
    "e": st.lists(st.integers(0, (1 << 64) - 1), max_size=9),
}
TYPES = {"a": "<u8", "b": "<i8", "c": "<u4", "d": "u1", "e": ">u8"}


class Broken(Exception):  # noqa: N818 - what a file is
    """What is wrong with a file."""


def packed(columns, facts=None, *, tail=b""):
    """A file of the format above."""
    arrays = {name: np.array(numbers, TYPES[name]) for name, numbers in columns.items()}
    return b"".join(FORMAT.pack(facts or Header("n"), arrays, tail=len(tail))) + tail


@settings(max_examples=examples(100))
@given(st.fixed_dictionaries(COLUMNS), st.text(max_size=5), st.binary(max_size=20))
def test_round_trip(columns, name, tail):
    """Any numbers, given in any byte order; also by a decoder that knows the text of the format alone."""
    facts = Header(name, {"x": [1, None, "\udce9"], "big": 1 << 80})
    data = packed(columns, facts, tail=tail)
    found = FORMAT.unpack(data, Broken)
    assert found.header == facts
    assert {key: list(column) for key, column in found.columns.items()} == columns
    assert data[found.end :] == tail
    assert found.end % 8 == 0
    assert FORMAT.body_end(data[: FORMAT.head_end(data, Broken)], Broken) == found.end
    assert FORMAT.unpack(data[: found.end], Broken, size=len(data)).columns == found.columns
    parts = Parts(data)
    assert {**{key: [] for key in columns}, **parts.columns} == columns
    assert parts.sealed() == data
    assert kind_of(data) == "test"
    assert kind_of(data[:31]) is None


def test_where_sections_begin():
    """Each at a multiple of 8, so that a mapped file gives aligned numbers."""
    parts = Parts(packed({"a": [1], "b": [2, 3], "c": [1], "d": [1, 2, 3], "e": [5]}))
    assert [parts.start_of(name) % 8 for name in "abcde"] == [0] * 5


def test_the_other_byte_order(monkeypatch):
    """On a big-endian machine a section is swapped when it is read."""
    data = packed({"a": [1, 2], "b": [-1], "c": [7], "d": [9]})
    monkeypatch.setattr(sys, "byteorder", "big")
    found = FORMAT.unpack(data, Broken).columns
    assert list(found["a"]) == [1 << 56, 2 << 56]
    assert list(found["b"]) == [-1]
    assert list(found["c"]) == [7 << 24]
    assert list(found["d"]) == [9]


@pytest.mark.parametrize("old", [b"\x89WIDX\r\n\x1a", b"\x89WIDSX\r\n", b"\x89WIDST\r\n", b"WIDSROWS"])
def test_files_of_before_1_0(old):
    """They are told by their magics, whatever follows."""
    with pytest.raises(Broken, match=r"was written before wids 1\.0"):
        FORMAT.unpack(old + bytes(100), Broken)


HEADERS = {
    "kind": (lambda parts: setattr(parts, "kind", b"other\0\0\0"), "is a file of another kind \\('other'\\)"),
    "version": (lambda parts: setattr(parts, "version", 4), "has version 4, and this wids reads version 3"),
    "no sections": (lambda parts: parts.head.update(sections=None), "has a header that is none"),
    "a section less": (lambda parts: parts.head["sections"].pop(), "contradicts its own header"),
    "a section twice": (lambda parts: parts.head["sections"].append(parts.head["sections"][0]), "contradicts"),
    "another order": (lambda parts: parts.head["sections"].reverse(), "contradicts its own header"),
    "another type": (lambda parts: parts.head["sections"].__setitem__(0, ["a", "i8", 1]), "contradicts"),
    "no such type": (lambda parts: parts.head["sections"].__setitem__(0, ["a", "f8", 1]), "contradicts"),
    "other facts": (lambda parts: parts.facts.update(name=5), "has a header that is none"),
    "no facts": (lambda parts: parts.head.update(facts={}), "has a header that is none"),
    "a negative tail": (lambda parts: parts.head.update(tail=-8), "contradicts its own header"),
    "a longer tail": (lambda parts: parts.head.update(tail=8), r"\\d+ of \\d+ bytes"),
}


@pytest.mark.parametrize(("change", "what"), HEADERS.values(), ids=HEADERS)
def test_headers_that_say_other_things(change, what):
    """Under right checksums: each is an error that says so."""
    parts = Parts(packed({"a": [1], "b": [2], "c": [3], "d": [4]}))
    change(parts)
    sections, parts.head["sections"] = parts.head["sections"], parts.head["sections"] or []
    known = [row for row in parts.head["sections"] if row[1] in ("u1", "u4", "u8", "i8")]
    if len(known) == len(parts.head["sections"]) and sections is not None:
        data = parts.sealed(counts=False)
    else:  # which the helper cannot lay out
        parts.head["sections"] = []
        body = parts.sealed(counts=False)
        parts.head["sections"] = sections
        data = resealed(parts, body)
    with pytest.raises(Broken, match=what.replace("\\\\", "\\")):
        FORMAT.unpack(data, Broken)


def resealed(parts, body):
    """A file with the header of ``parts`` alone."""
    head = parts._head()
    start = struct.pack("<8s8sII", parts.magic, parts.kind, parts.version, len(head))
    below = body[28:32]
    return start + struct.pack("<I", crc32(below + head, crc32(start[8:]))) + below + head


INVARIANTS = {
    "within": (within("a", 1, lambda facts, _: len(facts.name)), {"a": [1, 4, 2]}, [{"a": [0]}, {"a": [5]}]),
    "ends": (ends("a", 4), {"a": [0, 2, 2, 4]}, [{"a": [0, 3, 2, 4]}, {"a": [1, 5]}, {"a": []}]),
    "ends of none": (ends("a", 0), {"a": []}, [{"a": [1]}]),
    "ends from 0": (ends("a", 4, first=0, is_strict=True), {"a": [0, 1, 4]}, [{"a": [1, 4]}, {"a": [0, 1, 1, 4]}]),
    "ascending": (ascending("a"), {"a": [1, 2, 9]}, [{"a": [1, 1]}, {"a": [2, 1]}]),
    "sums": (sums("b", "a", 6), {"a": [1, 2, 3], "b": [1, 3, 6]}, [{"a": [1, 2, 3], "b": [1, 3, 7]}, {"a": [6]}]),
    "lengths": (lengths({"a": 2, "d": lambda _, found: len(found["a"])}), {"a": [1, 1], "d": [1, 1]}, [{"a": [1]}]),
    "others": (Invariant("is odd", lambda _, found: not sum(found["a"]) % 2), {"a": [2]}, [{"a": [1]}]),
}


@pytest.mark.parametrize("name", INVARIANTS)
@pytest.mark.parametrize("items", [1, 2, 1 << 16])
def test_invariants(name, items, monkeypatch):
    """Each holds of what it should, and of nothing else, wherever the pieces end in which columns are compared."""
    monkeypatch.setattr(container, "_CHECKED_ITEMS", items)
    invariant, sound, others = INVARIANTS[name]
    form = Format("test", 1, Header, {"a": "u8", "b": "i8", "d": "u1"}, [invariant])
    for columns in (sound, *others):
        arrays = {key: np.array(columns.get(key, []), TYPES[key]) for key in "abd"}
        data = b"".join(form.pack(Header("four"), arrays))
        if columns is sound:
            form.unpack(data, Broken)
        else:
            with pytest.raises(Broken, match=invariant.what.replace("(", "\\(").replace(")", "\\)")):
                form.unpack(data, Broken)


# --- all formats


def widx(data=None):
    """A member table of a few samples."""
    if data is not None:
        return parse_table(data, shard="s.tar")
    members = [(f"{key}.{end}".encode(), 1536 * k, 1536 * k + 512, 700) for k, (key, end) in enumerate(PAIRS)]
    identity = Identity(size=1 << 14, mtime_ns=5, md5="ab" * 16, etag='"tag"')
    return build_table(members, identity=identity, shard="s.tar").to_bytes()


PAIRS = [(key, end) for key in ("a", "b", "ü") for end in ("txt", "cls")]


def linked(data=None):
    """A member table with hard links."""
    if data is not None:
        return parse_table(data, shard="s.tar")
    link = tars.header(b"b.txt", kind=b"1", link=b"a.txt")
    return tars.table_of(tars.member(b"a.txt", b"1") + tars.member(b"b.cls", b"2") + link + tars.END).to_bytes()


def widsx(data=None):
    """A compiled index."""
    if data is not None:
        return compiled.unpack(data, file_url="x.widsx", home=None, is_whole=False).shards
    rows = [{"url": f"/d/{k}.tar", "nsamples": 5, "own": k, "crc32": f"{k:08x}"} for k in range(3)]
    return b"".join(compiled.pack(list_shards(rows)))


def tables(data=None):
    """The directory of a pack of tables."""
    if data is not None:
        return pack_format.unpack(data, url="x.tables")
    return pack_format.pack_head([f"{k}.tar" for k in range(4)], [0] * 4, url="x.tables")


def rows(data=None):
    """The rows of a view."""
    if data is not None:
        return view_file.unpack_rows(data, counts=[9, 9, 9], file_url="x.rows")
    return b"".join(view_file.pack_rows(np.array([2, 2, 5]), np.array([1, 8, 0, 3, 4], np.uint32)))


FORMATS = [widx, linked, widsx, tables, rows]


@pytest.mark.parametrize("form", FORMATS)
def test_every_changed_byte_is_seen(form):
    """Each byte of a file changed in some ways, a cut, bytes behind it: a typed error. All bytes are covered."""
    data = form()
    form(data)
    draws = random.Random(0)
    for at in range(len(data)):
        for mask in {1, 128, 255, draws.randrange(1, 256)}:
            with pytest.raises((TableError, SpecError)):
                form(data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :])
        with pytest.raises((TableError, SpecError)):
            form(data[:at])
    with pytest.raises((TableError, SpecError)):
        form(data + b"\0")


@settings(max_examples=examples(200))
@given(st.sampled_from(FORMATS), st.data())
def test_mutations(form, data):
    """Bytes put in, taken out, moved, repeated: nothing that differs is read."""
    whole = form()
    a, b = sorted(data.draw(st.tuples(*[st.integers(0, len(whole))] * 2)))
    how = data.draw(st.sampled_from(["insert", "delete", "zeros", "swap", "repeat", "bits"]))
    changed = {
        "insert": lambda: whole[:a] + data.draw(st.binary(max_size=9)) + whole[a:],
        "delete": lambda: whole[:a] + whole[b:],
        "zeros": lambda: whole[:a] + bytes(b - a) + whole[b:],
        "swap": lambda: whole[b:] + whole[a:b] + whole[:a],
        "repeat": lambda: whole[:b] + whole[a:b] + whole[b:],
        "bits": lambda: whole[:a] + bytes(255 - byte for byte in whole[a:b]) + whole[b:],
    }[how]()
    if changed != whole:
        with pytest.raises((TableError, SpecError)):
            form(changed)


@settings(max_examples=examples(100))
@given(st.sampled_from(FORMATS), st.data())
def test_numbers_under_right_checksums(form, data):
    """A hostile writer's file: a typed error, or one that is read; and no memory by a number that it claims."""
    parts = Parts(form())
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(sorted(parts.columns)))
        if parts.columns[name]:
            at = data.draw(st.integers(0, len(parts.columns[name]) - 1))
            parts.columns[name][at] = data.draw(st.integers(0, 9) | st.integers(-(1 << 63), (1 << 64) - 1))
    changed = parts.sealed()
    # Twice: the first time may import modules, and a thread of another test may end meanwhile.
    assert min(_peak_of_reading(form, changed), _peak_of_reading(form, changed)) < 1 << 21


def _peak_of_reading(form, data):
    """Bytes of memory, at most, while the file is read or refused."""
    tracemalloc.start()
    try:
        form(data)
    except (TableError, SpecError):
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


def use(form, data):
    """Read a file and all that it has."""
    found = form(data)
    if isinstance(found, MemberTable):
        for row in range(len(found)):
            found.members(row)
            found.rows_of(found.key(row))
        assert found.to_bytes()
    elif isinstance(found, Directory):
        for name in ("0.tar", "/d/1.tar"):
            found.find(name)
    elif isinstance(found, ShardList):
        for k in range(len(found.urls)):
            found.describe(k)
        fingerprint(found)
        contents(found)
        json.dumps(found.header)
    else:
        assert found.rows.sum() >= 0


FEW_AND_MANY = [
    pytest.param(300, id="few"),
    pytest.param(100_000, id="many", marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
]


@pytest.mark.parametrize("count", FEW_AND_MANY)
@pytest.mark.parametrize("form", FORMATS)
def test_mutations_under_right_checksums(form, count):
    """Headers and columns of a hostile writer: a typed error, or a file that can be read to its end."""
    draws, whole = random.Random(f"{form.__name__} 1"), form()
    refused = 0
    for _ in range(count):
        changed = mutate_sealed(draws, whole)
        try:
            use(form, changed)
        except (TableError, SpecError):
            refused += 1
    assert count // 2 < refused < count

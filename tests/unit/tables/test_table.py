import itertools
import mmap
import pickle
import struct
import tarfile
import tracemalloc
from zlib import crc32

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import tars
from tests.support.containers import Parts
from tests.support.examples import examples
from wids.core.tables import table, widx
from wids.core.tables.table import (
    Identity,
    MemberTable,
    build_table,
    decode_name,
    encode_name,
    find_apart,
    first_dot,
    last_dot,
    parse_rule,
    parse_table,
)
from wids.errors import DuplicateMemberError, TableError

checked = settings(max_examples=examples(200))
HEADER = 96


def listed(*names, size=1):
    """Members of these names, one after another as an archive has them."""
    step = 512 + (size + 511 & -512)
    return [(name, k * step, k * step + 512, size) for k, name in enumerate(names)]


def build(*names, **options):
    """The table of members of these names, one byte each."""
    members = listed(*names)
    return build_table(members, identity=Identity(size=1024 * len(members) + 1024), shard="s.tar", **options)


def contents(found):
    """Everything that a table says, through its accessors."""
    return {
        "identity": found.identity,
        "keys": list(found.keys()),
        "members": [found.members(row) for row in range(len(found))],
        "extensions": found.extensions,
        "counts": (found.nsamples, found.nmembers, found.nrepeated, len(found)),
        "starts": list(found.starts),
        "rows": {key: found.rows_of(key) for key in found.keys()},  # noqa: SIM118 - a method, not a dict's
        "nbytes": found.nbytes,
    }


# --- key rules


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        (b"a.txt", (b"a", b".txt"), (b"a", b".txt")),
        (b"a.seg.png", (b"a", b".seg.png"), (b"a.seg", b".png")),
        (b"a.b/c.d/e.seg.png", (b"a.b/c.d/e", b".seg.png"), (b"a.b/c.d/e.seg", b".png")),
        (b"./a.txt", (b"./a", b".txt"), (b"./a", b".txt")),
        (b"/abs/a.txt", (b"/abs/a", b".txt"), (b"/abs/a", b".txt")),
        (b"a.", (b"a", b"."), (b"a", b".")),
        (b"a..b", (b"a", b"..b"), (b"a.", b".b")),
        (b"\xe9.\xff", (b"\xe9", b".\xff"), (b"\xe9", b".\xff")),
        (b"no-dot", None, None),
        (b"dir.d/no-dot", None, None),
        (b".DS_Store", None, None),
        (b"d/._a.jpg", None, None),
        (b"d/..a.jpg", None, None),
        (b"d/", None, None),
        (b".", None, None),
        (b"..", None, None),
        (b"", None, None),
    ],
)
def test_key_rules(name, first, last):
    """The first or last dot of the basename splits; dotfiles and names without a dot are in no sample."""
    assert first_dot(name) == first
    assert last_dot(name) == last
    assert parse_rule("first-dot")(name) == first
    assert parse_rule("last-dot")(name) == last


@checked
@given(st.binary(max_size=30))
def test_key_and_extension_make_the_name(name):
    """Whatever the name, the two parts joined are the name, the extension starts with a dot and has no slash."""
    for rule in (first_dot, last_dot):
        parts = rule(name)
        if parts is not None:
            assert b"".join(parts) == name
            assert parts[1].startswith(b".")
            assert b"/" not in parts[1]
            assert not parts[0].endswith(b"/")
            assert parts[0]


def test_a_function_as_key_rule():
    """It sees text, also of names that are not UTF-8; for None a member is left out; extensions are as it says."""
    seen = []

    def rule(name):
        seen.append(name)
        return None if name.endswith(".bak") else (name[0], "." + name[1:])

    found = build(b"xjpg", b"xcls", b"x.bak", b"\xe9\xff", rule=rule)
    assert seen == ["xjpg", "xcls", "x.bak", "\udce9\udcff"]
    assert list(found.keys()) == ["x", "\udce9"]
    assert [[name for name, *_ in found.members(row)] for row in range(2)] == [[".jpg", ".cls"], [".\udcff"]]


@pytest.mark.parametrize("rule", ["first_dot", "", None, 3, ["first-dot"], {"first-dot"}])
def test_unknown_key_rule(rule):
    """Anything but the two names and a function is a ValueError that says what there is."""
    with pytest.raises(ValueError, match="'first-dot', 'last-dot'"):
        build(b"a.txt", rule=rule)


def test_unknown_group():
    """There are two ways to group; another is a ValueError."""
    with pytest.raises(ValueError, match="'adjacent' or 'key'"):
        build(b"a.txt", group="sorted")


def test_standard_grouping():
    """Saved tables hold the first-dot rule with adjacent members, and only that counts as standard."""
    assert table.is_standard("first-dot", "adjacent")
    assert not table.is_standard("last-dot", "adjacent")
    assert not table.is_standard("first-dot", "key")
    assert not table.is_standard(first_dot, "adjacent")


@checked
@given(st.binary(max_size=40))
def test_any_name_survives_as_text(raw):
    """Names are bytes; as text they come back the same."""
    assert encode_name(decode_name(raw)) == raw


# --- grouping

member_names = st.lists(
    st.builds(
        lambda key, dot, extension: key + dot + extension,
        st.sampled_from([b"a", b"b", b"c/d", b"\xe9", "ü".encode(), b".a", b""]),
        st.sampled_from([b".", b".", b".", b""]),
        st.sampled_from([b"jpg", b"cls", b"seg.png", b"\xff"]),
    ),
    max_size=12,
)


def model(names, rule, group):
    """Samples in order as [key, [(extension, place in the archive), ...]], or "duplicate"; a plain second opinion."""
    samples = []
    last = None
    for place, name in enumerate(names):
        parts = rule(name)
        if parts is None:
            continue
        key, extension = parts
        sample = next((found for found in samples if found[0] == key), None) if group == "key" else None
        if group == "adjacent" and key == last:
            sample = samples[-1]
        if sample is None:
            sample = [key, []]
            samples.append(sample)
        if extension in [known for known, _ in sample[1]]:
            return "duplicate"
        sample[1].append((extension, place))
        last = key
    return samples


@checked
@given(member_names, st.sampled_from(["first-dot", "last-dot"]), st.sampled_from(["adjacent", "key"]))
def test_grouping_agrees_with_a_plain_model(names, rule, group):
    """Oracle: lists of lists. Samples come in order of first appearance, members in archive order."""
    wanted = model(names, parse_rule(rule), group)
    if wanted == "duplicate":
        with pytest.raises(DuplicateMemberError):
            build(*names, rule=rule, group=group)
        return
    found = build(*names, rule=rule, group=group)
    keys = [decode_name(key) for key, _ in wanted]
    assert list(found.keys()) == keys
    assert [found.key(row) for row in range(len(found))] == keys
    assert [found.members(row) for row in range(len(found))] == [
        [(decode_name(extension), 1024 * place + 512, 1) for extension, place in sample] for _, sample in wanted
    ]
    assert found.nsamples == len(wanted)
    assert found.nmembers == sum(len(sample) for _, sample in wanted)
    assert found.nrepeated == len(keys) - len(set(keys))
    for key in [*keys, "not there"]:
        assert found.rows_of(key) == [row for row, name in enumerate(keys) if name == key]


def test_repeated_keys_are_counted_or_merged():
    """A key that comes back later starts another sample and is counted; group="key" makes it one sample."""
    names = (b"a.jpg", b"b.jpg", b"a.cls", b"b.cls", b"a.txt")
    apart, merged = build(*names), build(*names, group="key")
    assert list(apart.keys()) == ["a", "b", "a", "b", "a"]
    assert (apart.nrepeated, apart.rows_of("a")) == (3, [0, 2, 4])
    assert list(merged.keys()) == ["a", "b"]
    assert (merged.nrepeated, merged.rows_of("a")) == (0, [0])
    assert merged.members(0) == [(".jpg", 512, 1), (".cls", 2560, 1), (".txt", 4608, 1)]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ("a.jpg a.seg.png b.jpg b.seg.png b.left.png", ("a", "a.seg", 3)),
        ("a.json.gz a.txt", ("a", "a.json", 1)),  # the longer key comes first
        ("v1.2.jpg v1.2.seg.nii.gz", ("v1.2", "v1.2.seg.nii", 1)),
        ("d/é.jpg d/é.jpg.json", ("d/é", "d/é.jpg", 1)),
        ("20.png 20.25.png 20.50.png", None),  # a number tells two samples apart
        ("a.b/c.png a.jpg a1.png x..png", None),
    ],
)
def test_parts_of_a_sample_that_the_last_dot_takes_apart(names, found):
    """A key that is another one with a dot and a word behind it; the first such pair, and their number."""
    table_ = build(*map(encode_name, names.split()), rule="last-dot")
    assert find_apart(table_) == found


def test_members_without_a_key_do_not_part_a_sample():
    """A dotfile or a name without a dot between two members of one sample leaves them one sample."""
    found = build(b"a.jpg", b".DS_Store", b"README", b"a.cls")
    assert [name for name, *_ in found.members(0)] == [".jpg", ".cls"]
    assert len(found) == 1


@pytest.mark.parametrize(
    ("names", "group"),
    [
        ((b"a.jpg", b"a.jpg"), "adjacent"),
        ((b"a.jpg", b"a.cls", b"a.jpg"), "adjacent"),
        ((b"a.jpg", b"b.jpg", b"a.jpg"), "key"),
        ((b"\xe9.\xff", b"\xe9.\xff"), "adjacent"),
    ],
)
def test_duplicate_members(names, group):
    """Two members of one sample with one extension: an error that says which sample, field and byte."""
    with pytest.raises(DuplicateMemberError) as caught:
        build(*names, group=group)
    key, field = (decode_name(part) for part in first_dot(names[-1]))
    error = caught.value
    assert (error.shard, error.key, error.field) == ("s.tar", key, field)
    assert error.offset == 1024 * (len(names) - 1) + 512
    assert str(error).startswith("s.tar: ")


def test_the_same_name_later_is_another_sample():
    """Adjacent grouping: the same member name in two samples of one key is no duplicate."""
    found = build(b"a.jpg", b"b.jpg", b"a.jpg")
    assert (len(found), found.nrepeated) == (3, 1)


@pytest.mark.parametrize("group", ["adjacent", "key"])
def test_no_samples(group):
    """An archive of no members, or of none with a key, is a table of no samples, saved and read like any other."""
    for names in ((), (b"README", b".DS_Store")):
        found = build(*names, group=group)
        again = parse_table(found.to_bytes(), shard="s.tar")
        for each in (found, again):
            assert (len(each), each.nmembers, list(each.keys()), each.extensions) == (0, 0, [], ())
            assert each.rows_of("a") == []


def test_a_table_of_a_real_archive():
    """From the bytes of a tar to the bytes of its members."""
    data = tars.files({"d/a.txt": b"first", "d/a.seg.png": b"second", "d/b.txt": b"", "x" * 200 + ".txt": b"third"})
    found = build_table(tars.scanned(data), identity=Identity(size=len(data)), shard="s.tar")
    samples = {
        found.key(row): {name: data[at : at + size] for name, at, size in found.members(row)}
        for row in range(len(found))
    }
    assert samples == {
        "d/a": {".txt": b"first", ".seg.png": b"second"},
        "d/b": {".txt": b""},
        "x" * 200: {".txt": b"third"},
    }


# --- the table itself


def test_keys_are_text_or_bytes_inside():
    """Keys that are all ASCII are kept as text, so that a slice is a key; others as bytes. Outside both are text."""
    plain, other = build(b"a.txt", b"bc.txt"), build("ü.txt".encode(), b"\xe9.txt")
    assert plain.key_text == "abc"
    assert other.key_text == "ü".encode() + b"\xe9"
    assert list(other.keys()) == ["ü", "\udce9"]
    assert list(other.key_ends) == [0, 2, 3]


def test_rows_of_gives_a_list_of_its_own():
    """What a caller does to the answer does not change the next one."""
    found = build(b"a.txt")
    found.rows_of("a").append(7)
    assert found.rows_of("a") == [0]


def test_repr_and_size():
    """A table says how large it is, and what its columns take."""
    found = build(b"a.txt", b"a.cls", b"b.txt")
    assert repr(found) == "<MemberTable of 2 samples, 3 members, 4096 bytes>"
    assert found.nbytes == 3 * (8 + 8 + 4) + 3 * 4 + 3 * 8 + len("ab")


def test_with_identity():
    """The same table for another description of the same bytes; the first one stays as it was."""
    for found in (build(b"a.txt", b"b.txt", b"a.cls"), build(b"\xe9.txt")):
        before = contents(found)
        other = found.with_identity(Identity(size=9999, md5="ab" * 16))
        assert other.identity == Identity(size=9999, md5="ab" * 16)
        assert contents(other) == {**before, "identity": other.identity}
        assert contents(found) == before


IDENTITIES = st.builds(
    Identity,
    size=st.just(1 << 40),
    mtime_ns=st.none() | st.integers(-(1 << 63), (1 << 63) - 1).filter(lambda ns: ns != -1),
    md5=st.none() | st.binary(min_size=16, max_size=16).filter(any).map(bytes.hex),
    etag=st.none() | st.text(min_size=1, max_size=20) | st.just('W/"\udce9"'),
)


@checked
@given(member_names, IDENTITIES, st.sampled_from(["adjacent", "key"]), st.lists(st.integers(0, 1 << 30), max_size=12))
def test_saved_and_read_again(names, identity, group, sizes):
    """Build -> to_bytes -> parse_table says the same in every accessor, and saves to the same bytes."""
    at, members = 0, []
    for name, size in itertools.zip_longest(names, sizes[: len(names)], fillvalue=0):
        members.append((name, at, at + 512, size))
        at += 512 + (size + 511 & -512)
    try:
        found = build_table(members, identity=identity, shard="s.tar", group=group)
    except DuplicateMemberError:
        return
    data = found.to_bytes()
    again = parse_table(data, shard="s.tar")
    assert contents(again) == contents(found)
    assert again.key_text == found.key_text
    assert again.to_bytes() == data
    assert len(data) % 8 == 0


def saved():
    """A small table as it is saved: three samples, five members, every section in use."""
    identity = Identity(size=6 << 10, mtime_ns=5, md5="0123456789abcdef" * 2, etag='"tag"')
    members = listed(b"a.txt", b"a.seg.png", b"b.txt", "ü.txt".encode(), b"a.txt")
    return build_table(members, identity=identity, shard="s.tar").to_bytes()


def test_on_disk_form_stays():
    """Version 1, byte by byte, as its module says; tables saved today are read tomorrow."""
    head = (
        b'{"sections":[["offsets","u8",5],["sizes","u8",5],["extension_ids","u4",5],["starts","u4",5],'
        b'["key_ends","u8",5],["keys","u1",5]],"tail":0,"facts":{"size":6144,"mtime_ns":5,'
        b'"md5":"0123456789abcdef0123456789abcdef","etag":"\\"tag\\"","extensions":[".txt",".seg.png"],"nrepeated":1}}'
    )
    columns = [
        struct.pack("<5Q", 512, 1536, 2560, 3584, 4608),
        struct.pack("<5Q", *[1] * 5),
        struct.pack("<5I", 0, 1, 0, 0, 0),
        struct.pack("<5I", 0, 2, 3, 4, 5),
        struct.pack("<5Q", 0, 1, 2, 4, 5),
        b"ab\xc3\xbca",
    ]
    head += b" " * (-len(head) % 8)
    body = b"".join(section + bytes(-len(section) % 8) for section in columns)
    kind = b"widx\0\0\0\0" + struct.pack("<II", 1, len(head))
    below = struct.pack("<I", crc32(body))
    checksum = struct.pack("<I", crc32(head, crc32(below, crc32(kind))))
    assert saved() == b"\x89WIDS\r\n\x1a" + kind + checksum + below + head + body


def test_read_from_a_memory_map(tmp_path):
    """A table may be mapped instead of read; its columns are views of the map, at multiples of 8."""
    (tmp_path / "s.widx").write_bytes(saved())
    with open(tmp_path / "s.widx", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    found = parse_table(mapped, shard="s.tar")
    assert contents(found) == contents(parse_table(saved(), shard="s.tar"))
    start = np.frombuffer(mapped, np.uint8).ctypes.data
    for column in (found.offsets, found.sizes, found.extension_ids, found.starts, found.key_ends):
        assert (np.asarray(column).ctypes.data - start) % 8 == 0
    del found, column
    mapped.close()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_read_from_any_buffer(kind):
    """Bytes of any kind do."""
    assert contents(parse_table(kind(saved()), shard="s.tar"))["keys"] == ["a", "b", "ü", "a"]


@pytest.mark.parametrize(
    ("identity", "again"),
    [
        (Identity(size=4096), Identity(size=4096)),
        (Identity(size=4096, mtime_ns=0), Identity(size=4096, mtime_ns=0)),
        (Identity(size=4096, mtime_ns=-5), Identity(size=4096, mtime_ns=-5)),
        (Identity(size=4096, mtime_ns=-1), Identity(size=4096, mtime_ns=-1)),
        (Identity(size=4096, mtime_ns=1 << 63), Identity(size=4096, mtime_ns=1 << 63)),
        (Identity(size=4096, mtime_ns=-(1 << 63) - 1), Identity(size=4096, mtime_ns=-(1 << 63) - 1)),
        (Identity(size=4096, etag=""), Identity(size=4096)),
        (Identity(size=4096, etag="\udce9"), Identity(size=4096, etag="\udce9")),
        (Identity(size=4096, md5=""), Identity(size=4096)),
        (Identity(size=4096, md5="AB" * 16), Identity(size=4096, md5="ab" * 16)),
        (Identity(size=(1 << 64) - 1), Identity(size=(1 << 64) - 1)),
    ],
)
def test_identities_that_are_saved(identity, again):
    """Unknown facts, files dated before 1970 or past 2262, and etags that are not UTF-8 survive."""
    found = build(b"a.txt").with_identity(identity)
    assert parse_table(found.to_bytes(), shard="s.tar").identity == again


def test_a_shard_of_64_bits():
    """Offsets and sizes up to the end of a 64-bit file are inside, one byte more is not."""
    top = (1 << 64) - 1
    for size, is_inside in ((top - 512, True), (top - 511, False)):
        found = build_table([(b"a.txt", 0, 512, size)], identity=Identity(size=top), shard="s.tar")
        if is_inside:
            assert parse_table(found.to_bytes(), shard="s.tar").members(0) == [(".txt", 512, size)]
        else:
            with pytest.raises(TableError):
                parse_table(found.to_bytes(), shard="s.tar")


# --- damage


def refuse(data):
    """Reading must be a TableError that names the shard and the way out."""
    with pytest.raises(TableError) as caught:
        parse_table(data, shard="dir/s.tar")
    assert caught.value.shard == "dir/s.tar"
    assert str(caught.value).startswith("dir/s.tar: its saved member table ")
    assert ".widx" in str(caught.value)
    return str(caught.value)


def test_every_changed_byte():
    """Any one byte changed, in any way, is noticed."""
    data = saved()
    for at in range(len(data)):
        for mask in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            refuse(data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :])


def test_every_truncation_and_addition():
    """A table cut anywhere, or with something behind it, is noticed."""
    data = saved()
    for cut in range(len(data)):
        refuse(data[:cut])
    for more in (b"\0", bytes(8), data):
        refuse(data + more)


@pytest.mark.parametrize("data", [b"", b"\x89WIDS\r\n\x1a", b"\x89WIDS\n\x1a" + bytes(100), b"PK\3\4" + bytes(200)])
def test_other_files(data):
    """What is no table at all, or went through a text-mode transfer, is said to be none."""
    assert "is none, or was cut short" in refuse(data)


def test_files_of_before():
    """A table that was written before 1.0 is told by its magic, and is made anew."""
    assert "was written before wids 1.0; delete the .widx file" in refuse(b"\x89WIDX\r\n\x1a" + bytes(100))


def changed(*changes, **facts):
    """The saved table with (column, place, number) in it, and other facts, sealed: what a hostile writer can do."""
    parts = Parts(saved())
    for name, at, value in changes:
        parts.columns[name][at] = value
    parts.facts.update(facts)
    return parts.sealed()


def test_other_version():
    """A later form is told by its version, and not read on."""
    parts = Parts(saved())
    parts.version = 2
    assert "has version 2, and this wids reads version 1" in refuse(parts.sealed())


def without_last(name):
    """A column that is too short."""
    parts = Parts(saved())
    del parts.columns[name][-1]
    return parts.sealed()


@pytest.mark.parametrize("name", ["offsets", "sizes", "extension_ids", "starts", "key_ends", "keys"])
def test_columns_of_another_length(name):
    """They are of as many members, or samples, or bytes, as the others say."""
    refuse(without_last(name))


@pytest.mark.parametrize("count", [0, 4, 6, 1 << 61, (1 << 64) - 1, -1])
@pytest.mark.parametrize("column", range(6))
def test_counts_that_the_bytes_do_not_have(column, count):
    """A header that promises more or fewer."""
    parts = Parts(saved())
    parts.head["sections"][column][2] = count
    refuse(parts.sealed(counts=False))


@pytest.mark.parametrize(
    "changes",
    {
        "nrepeated": {"nrepeated": 5},
        "extensions less": {"extensions": [".txt"]},
        "extensions twice": {"extensions": [".txt", ".txt"]},
        "extension with a NUL": {"extensions": [".t\0xt", ".png"]},
        "no extensions": {"extensions": None},
        "shard too small": {"size": 4608},
        "shard empty": {"size": 0},
        "shard negative": {"size": -1},
        "shard huge": {"size": 1 << 64},
        "mtime a text": {"mtime_ns": "5"},
        "offset past the end": [("offsets", 4, 6 << 10)],
        "offset huge": [("offsets", 4, (1 << 64) - 1)],
        "size past the end": [("sizes", 4, 2 << 10)],
        "size huge": [("sizes", 4, (1 << 64) - 1)],
        "members overlap": [("sizes", 0, 1025)],
        "members run backwards": [("offsets", 0, 2048)],
        "extension id": [("extension_ids", 0, 2)],
        "starts not at 0": [("starts", 0, 1)],
        "starts beyond": [("starts", 4, 6)],
        "starts short": [("starts", 4, 4)],
        "starts fall": [("starts", 1, 4)],
        "sample of no members": [("starts", 1, 3)],
        "keys not at 0": [("key_ends", 0, 1)],
        "keys beyond": [("key_ends", 4, 6)],
        "keys fall": [("key_ends", 1, 3)],
    }.values(),
    ids=str,
)
def test_contradictions_with_a_right_checksum(changes):
    """Counts and columns that point outside the shard, the table or each other are noticed all the same."""
    refuse(changed(**changes) if isinstance(changes, dict) else changed(*changes))


def test_sound_changes_are_read():
    """The control for the tests above: sealed as it is, or with other sound values, the table is read."""
    assert changed() == saved()
    found = parse_table(
        changed(("sizes", 0, 512), ("extension_ids", 0, 1), ("extension_ids", 1, 0), nrepeated=0), shard="s.tar"
    )
    assert found.members(0) == [(".seg.png", 512, 512), (".txt", 1536, 1)]


numbers = st.integers(0, 255) | st.integers(0, 6 << 10) | st.integers(0, (1 << 64) - 1)


@settings(max_examples=examples(1000))
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4), numbers), min_size=1, max_size=6))
def test_hostile_tables_are_refused_or_harmless(changes):
    """Any numbers under a right checksum: a TableError, or a table whose samples all lie within the shard."""
    columns = list(Parts(saved()).columns)
    try:
        found = parse_table(changed(*((columns[k], at, value) for k, at, value in changes)), shard="s.tar")
    except TableError:
        return
    contents(found)
    for row in range(len(found)):
        last = 0
        for _, at, size in found.members(row):
            assert last <= at <= at + size <= found.identity.size
            last = at + size


@pytest.mark.parametrize("order", [(1, 0, 2, 3), (0, 2, 1, 3), (0, 1, 1, 3), (0, 0, 1, 2, 3), (3, 2, 1, 0)], ids=str)
def test_samples_in_another_order_than_the_archives(order):
    """Rows permuted or repeated, all else right: such a table would decide which sample has which index."""
    data = tars.files({f"{key}.{field}": b"1" * 700 for key in "abcd" for field in ("txt", "cls")})
    assert parse_table(tars.lying_table(data, range(4)).to_bytes(), shard="s.tar").nsamples == 4
    assert "another order than the archive" in refuse(tars.lying_table(data, order).to_bytes())


@pytest.mark.parametrize(
    ("row", "offset", "size"),
    [(0, 0, 1), (0, 511, 1), (1, 2048, 1), (1, 2048 + 511, 1), (1, 3072, 1025)],
    ids=["no header", "half a header", "no header between", "half a header between", "into the next header"],
)
def test_members_where_no_tar_has_them(row, offset, size):
    """Each member has a block of its own before it, and ends before the next one begins."""
    members = [(b"a.txt", 512, 1024, 1024), (b"b.txt", 2560, 3072, 512), (b"c.txt", 4096, 4608, 1)]
    assert (
        parse_table(build_table(members, identity=Identity(size=8192), shard="s").to_bytes(), shard="s").nsamples == 3
    )
    name = members[row][0]
    members[row] = (name, max(offset - 512, 0), offset, size)
    refuse(build_table(members, identity=Identity(size=8192), shard="dir/s.tar").to_bytes())


def test_fields_in_any_case():
    """A field is found by its name in any case, as writers of file names have it, and each of several alike."""
    found = build(b"a.JPG", b"b.jpg", b"c.Seg.PNG", b"c.txt")
    names = {field: [found.extensions[k] for k in sorted(found.ids_of((field,)))] for field in (".Jpg", ".seg.png")}
    assert names == {".Jpg": [".JPG", ".jpg"], ".seg.png": [".Seg.PNG"]}
    assert found.ids_of((".TXT", ".none")) == found.ids_of((".txt",))


@checked
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("jkl"), st.integers(-1, 5)), max_size=12), st.data())
def test_hard_links_are_members(wanted, more):
    """Oracle: tarfile. Members with the bytes of earlier files, in the same sample, others or none: built, saved and
    read again, in both groupings, they are what tarfile extracts.
    """
    entries, names = [], []
    for key, extension, target in wanted:
        info = tarfile.TarInfo(f"{key}.{extension}")
        info.type = tarfile.LNKTYPE if 0 <= target < len(names) else tarfile.REGTYPE
        info.linkname = names[target] if info.islnk() else ""
        text = f"{len(entries)}" * 300
        info.size = 0 if info.islnk() else len(text)
        entries.append((info, b"" if info.islnk() else text.encode()))
        names.append(info.name)
    data, _ = tars.written(entries, tarfile.USTAR_FORMAT)
    try:
        found = build_table(
            tars.scanned(data),
            identity=Identity(size=len(data)),
            shard="s.tar",
            group=more.draw(st.sampled_from(["adjacent", "key"])),
        )
    except DuplicateMemberError:
        return
    again = parse_table(found.to_bytes(), shard="s.tar")
    assert (contents(again), again.links) == (contents(found), found.links)
    values = [
        (found.key(row) + name, data[at : at + size])
        for row in range(len(found))
        for name, at, size in found.members(row)
    ]
    assert sorted(values) == sorted((name.decode(), data[at : at + size]) for name, _, at, size in tars.expected(data))
    assert len(found.links) == sum(info.islnk() for info, _ in entries)
    for row in range(len(found)):
        places = [at for _, at, _ in found.members(row)]
        assert places == sorted(places)


LINKED = tars.member(b"a.txt", b"1") + tars.member(b"b.cls", b"2") + tars.header(b"b.txt", kind=b"1", link=b"a.txt")


@pytest.mark.parametrize(
    "links",
    [(2, 2048), (1, 512), (1, 1 << 62), (3, 2048), (1, 2048, 1, 2048), (2, 2048, 1, 2048)],
    ids=["is none", "before its data", "behind the end", "no member", "twice", "falling"],
)
def test_links_that_no_tar_has(links):
    """Headers of links are behind their data, where nothing else is; else the order of samples would be anything."""
    data = tars.table_of(LINKED + tars.END).to_bytes()
    assert parse_table(data, shard="s.tar").links == {1: 2048}
    parts = Parts(data)
    parts.columns.update(linked=list(links[::2]), link_headers=list(links[1::2]))
    refuse(parts.sealed())
    parts.columns["linked"] = []
    refuse(parts.sealed())


@pytest.mark.parametrize("column", range(6))
def test_counts_allocate_nothing(column):
    """A small file that promises 2**56 members, samples or key bytes costs what its bytes cost."""
    parts = Parts(saved())
    parts.head["sections"][column][2] = 1 << 56
    data = parts.sealed(counts=False)
    refuse(data)
    tracemalloc.start()
    try:
        with pytest.raises(TableError):
            parse_table(data, shard="s.tar")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_nothing_is_copied_but_the_keys():
    """The columns of a table that was read are views of its bytes."""
    data = build(*(b"%06d.%s" % (k, e) for k in range(5000) for e in (b"jpg", b"cls"))).to_bytes()
    tracemalloc.start()
    try:
        found = parse_table(data, shard="s.tar")
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found) == 5000
    assert kept < len(data) // 4


# --- identity

A, B = "a" * 32, "b" * 32


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ({}, {}, False),
        ({"mtime_ns": 1}, {}, False),
        ({"mtime_ns": 1}, {"mtime_ns": 1}, True),
        ({"mtime_ns": 0}, {"mtime_ns": 0}, True),
        ({"mtime_ns": 1}, {"mtime_ns": 2}, False),
        ({"etag": "x"}, {"etag": "x"}, True),
        ({"etag": "x"}, {"etag": "y"}, False),
        ({"etag": "x"}, {}, False),
        ({"etag": ""}, {"etag": ""}, False),
        ({"etag": "x"}, {"mtime_ns": 1}, False),
        ({"md5": A}, {"md5": A}, True),
        ({"md5": A}, {"md5": B}, False),
        ({"md5": A}, {}, False),
        ({"md5": ""}, {"md5": ""}, False),
        ({"md5": A}, {"etag": "x"}, False),
        ({"md5": A, "mtime_ns": 1, "etag": "x"}, {"md5": A, "mtime_ns": 2, "etag": "y"}, True),
        ({"md5": A, "mtime_ns": 1, "etag": "x"}, {"md5": B, "mtime_ns": 1, "etag": "x"}, False),
        ({"md5": A, "mtime_ns": 1}, {"mtime_ns": 1}, True),
        ({"mtime_ns": 1, "etag": "x"}, {"mtime_ns": 1, "etag": "x"}, True),
        ({"mtime_ns": 1, "etag": "x"}, {"mtime_ns": 2, "etag": "x"}, False),
        ({"mtime_ns": 1, "etag": "x"}, {"mtime_ns": 1, "etag": "y"}, False),
        ({"mtime_ns": 1, "etag": "x"}, {"mtime_ns": 1}, True),
        ({"mtime_ns": 1, "etag": "x"}, {"etag": "x"}, True),
    ],
)
def test_identity_truth_table(one, other, is_same):
    """Equal size, a fact known to both, none that differs; a digest known to both decides; both ways round."""
    one, other = Identity(size=5, **one), Identity(size=5, **other)
    assert one.is_same(other) is is_same
    assert other.is_same(one) is is_same
    larger = msgspec.structs.replace(other, size=6)
    assert not one.is_same(larger)


def test_identity_travels():
    """It is pickled with what holds it."""
    identity = Identity(size=5, mtime_ns=1, md5=A, etag="x")
    assert pickle.loads(pickle.dumps(identity)) == identity


def test_suffix_and_names():
    """What other parts import from here is here."""
    assert table.SUFFIX == widx.SUFFIX == ".widx"
    assert isinstance(build(b"a.txt"), MemberTable)

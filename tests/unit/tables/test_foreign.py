"""DALI's and Energon's indexes of shards: read as their formats have it, never believed against the shard."""

from __future__ import annotations

import contextlib
import os
import re
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import tars
from tests.support.examples import examples
from wids.core.files import atomic
from wids.core.readers.provider import AutoProvider
from wids.core.shard import Shard
from wids.core.tables import foreign, member_tables, tar
from wids.errors import TableError

# --- as the tools write them, from what tarfile finds in a shard


def dali(data, version="v1.2"):
    """The .idx of a shard."""
    samples, last = [], None
    for raw, _, offset, size in tars.expected(data):
        name = raw.decode()
        dot = name.find(".", name.rfind("/") + 1)
        key, extension = name[:dot], name[dot + 1 :]
        if not key or key.endswith("/"):
            continue
        if key != last:
            samples.append([])
            last = key
        samples[-1].append(f"{extension} {offset} {size}" + (f" {name}" if version == "v1.2" else ""))
    return "".join(f"{line}\n" for line in [f"{version} {len(samples)}", *map(" ".join, samples)]).encode()


def energon_offsets(data):
    """The .tar.idx of a shard without extended headers."""
    found, last, end = [], None, 0
    for name, header, offset, size in tars.expected(data):
        match = re.fullmatch(rb"((?:.*/|)[^.]+)[.]([^/]*)", name)
        end = offset + size + -size % 512
        if match and not re.match(rb"__[^/]*__($|/)", name) and match[1] != last:
            last = match[1]
            found.append(header)
    return struct.pack(f"<{len(found) + 1}Q", *found, end)


def contents(count, size=20):
    """Names and bytes of samples; sizes differ."""
    return {
        f"d/s{k:04}.{extension}": bytes([k % 256]) * (size + k % 7)
        for k in range(count)
        for extension in ("jpg", "c.x")
    }


class Here:
    """A shard in a directory, and its .idx."""

    def __init__(self, directory, data):
        self.path, self.idx = os.fspath(directory / "x.tar"), os.fspath(directory / "x.idx")
        self.url = self.path
        self.write(data)

    def write(self, data):
        """Put a shard there."""
        with open(self.path, "wb") as file:
            file.write(data)
        self.data = data

    def put(self, index, *, age=0):
        """Put an index there, so many seconds older than the shard."""
        with open(self.idx, "wb") as file:
            file.write(index)
        written = os.stat(self.path).st_mtime_ns - age * 10**9
        os.utime(self.idx, ns=(written, written))

    def load(self):
        """The table from the index, or None."""
        fd, facts = atomic.open_file(self.path)
        try:
            return member_tables.load_foreign(fd, self.path, self.url, facts)
        finally:
            os.close(fd)

    def scan(self):
        """The table from the shard's own headers."""
        fd, facts = atomic.open_file(self.path)
        try:
            return member_tables.scan_table(fd, self.url, facts)
        finally:
            os.close(fd)


@pytest.fixture
def here(tmp_path):
    """A shard of 20 samples."""
    return Here(tmp_path, tars.files(contents(20)))


@pytest.fixture(autouse=True)
def slow_storage(set_limits):
    """Reading a header takes long, wherever the shard is."""
    set_limits(member_tables, slow_seconds=-1.0)


# --- DALI


@pytest.mark.parametrize("count", [1, 20, 33, 200])
def test_table_from_dali(tmp_path, count):
    """A DALI index gives the very table that the shard's headers give."""
    here = Here(tmp_path, tars.files(contents(count)))
    here.put(dali(here.data))
    assert here.load().to_bytes() == here.scan().to_bytes()


def test_table_from_dali_of_an_archive_with_all_sorts_of_things(tmp_path):
    """Extended headers, directories and hidden files stand between the members, and do no harm."""
    parts = []
    for k in range(150):
        parts += [tars.pax({b"mtime": b"1700000000.25"}), tars.member(b"a/k%d.jpg" % k, b"x" * k)]
        if k % 40 == 7:
            parts += [tars.member(b"a/dir/", kind=b"5"), tars.member(b"a/._k%d.jpg" % k, b"y" * 700)]
    parts += [tars.member(b"a/.DS_Store", b"z"), tars.END]
    here = Here(tmp_path, b"".join(parts))
    here.put(dali(here.data))
    assert here.load().to_bytes() == here.scan().to_bytes()


def test_store_reads_by_a_dali_index(here, monkeypatch):
    """A shard in place with its .idx beside it is opened without reading all headers."""
    here.put(dali(here.data))
    monkeypatch.setattr(member_tables, "scan_table", None)
    with contextlib.closing(AutoProvider(cache_dir=None).open(Shard(url=here.path, nsamples=20))) as reader:
        assert reader[3]["__key__"] == "d/s0003"
        assert reader[3][".c.x"].getvalue() == bytes([3]) * 23


def test_other_groupings_scan(here):
    """With a key rule of one's own, the index does not count: it leaves members out."""
    here.put(dali(here.data))
    with contextlib.closing(
        AutoProvider(cache_dir=None, rule="last-dot").open(Shard(url=here.path, nsamples=None))
    ) as reader:
        assert sorted(reader[0]) == [".jpg", "__key__"]


def change(line, old, new):
    """A change of one line of an index."""

    def apply(index):
        lines = index.split(b"\n")
        assert old in lines[line]
        lines[line] = lines[line].replace(old, new)
        return b"\n".join(lines)

    return apply


UNUSABLE = {
    "empty": lambda _: b"",
    "another version": change(0, b"v1.2", b"v1.3"),
    "binary": lambda _: bytes(800),
    "no count": change(0, b" 20", b""),
    "a count too high": change(0, b"20", b"21"),
    "a count too low": change(0, b"20", b"19"),
    "a count that is none": change(0, b"20", b"x"),
    "a huge count": change(0, b"20", b"9" * 5000),
    "cut short in a line": lambda index: index[:-3],
    "cut short at a line": lambda index: index[: index[:-1].rindex(b"\n") + 1],
    "a line that is empty": change(4, b"jpg", b"\n"),
    "a word too few": change(4, b"jpg ", b""),
    "a negative size": change(4, b" 23 ", b" -23 "),
    "a size that is wrong by one": change(4, b" 23 ", b" 24 "),
    "an offset that is no block's": change(4, b"6656 ", b"6657 "),
    "another name": change(4, b"s0003.jpg", b"s0002.jpg"),
    "another extension": change(4, b"jpg 6", b"png 6"),
    "escapes in a name": change(4, b"d/s0003.jpg", b"d\\/s0003.jpg"),
    "offsets beyond the shard": change(20, b"40448 ", b"51200000 "),
    "lines in another order": lambda index: b"\n".join(
        [index.split(b"\n")[0], *sorted(index.split(b"\n")[1:-1])[::-1], b""]
    ),
    "longer than the shard": lambda index: index + b"\n" * 100_000,
    "without names": lambda index: index.replace(b"v1.2", b"v1.1"),
}


@pytest.mark.parametrize("damage", UNUSABLE.values(), ids=UNUSABLE)
def test_dali_index_that_cannot_be_used(here, damage):
    """A malformed index, or one that is not the shard's, is passed over; the shard is read by its headers."""
    index = dali(here.data)
    assert damage(index) != index
    here.put(damage(index))
    assert here.load() is None
    with contextlib.closing(AutoProvider(cache_dir=None).open(Shard(url=here.path, nsamples=20))) as reader:
        assert reader.table.to_bytes() == here.scan().to_bytes()


def test_dali_index_without_names(here):
    """Version 1.1 is read, but its samples have no keys: no table comes from it."""
    here.put(dali(here.data, "v1.1"))
    samples = foreign.parse_dali(dali(here.data, "v1.1"), shard="x")
    assert len(samples) == 20
    assert samples[3][0] == foreign.DaliMember(b"jpg", 6656, 23, None)
    assert here.load() is None


def test_headers_that_come_at_once_are_scanned(here, set_limits):
    """From memory, the shard's own headers are read as quickly as an index."""
    set_limits(member_tables, slow_seconds=60.0)
    here.put(dali(here.data))
    assert here.load() is None


def test_older_dali_index(here):
    """Copies have any age: what counts are the headers."""
    here.put(dali(here.data), age=1)
    assert here.load().to_bytes() == here.scan().to_bytes()


@pytest.mark.parametrize("row", [0, 77, 100, 199])
def test_size_that_is_wrong_in_one_member(tmp_path, row):
    """A byte more or less in one member of hundreds, within its block: no such index is believed."""
    here = Here(tmp_path, tars.files(contents(200)))
    lines = dali(here.data).split(b"\n")
    words = lines[row + 1].split(b" ")
    words[2] = b"%d" % (int(words[2]) + 1)
    lines[row + 1] = b" ".join(words)
    here.put(b"\n".join(lines))
    assert here.load() is None


STALE = {
    "a sample more": lambda: tars.files(contents(201)),
    "a sample less": lambda: tars.files(contents(199)),
    "other names": lambda: tars.files({f"e{name[1:]}": data for name, data in contents(200).items()}),
    "another order": lambda: tars.files(dict(reversed(contents(200).items()))),
    "longer members": lambda: tars.files(contents(200, size=600)),
    "no tar": lambda: b"x" * len(tars.files(contents(200))),
    "cut short": lambda: tars.files(contents(200))[:-20480],
}


@pytest.mark.parametrize("now", STALE.values(), ids=STALE)
def test_stale_dali_index(tmp_path, now):
    """An index of a shard that was since written anew is found out."""
    here = Here(tmp_path, tars.files(contents(200)))
    index = dali(here.data)
    here.write(now())
    here.put(index)
    assert here.load() is None


def test_sample_that_a_dali_index_leaves_out(tmp_path):
    """A member more in the middle of many is found out: it stands where the others have a header only."""
    here = Here(tmp_path, tars.files(contents(200)))
    lines = dali(here.data).split(b"\n")
    del lines[77]
    here.put(b"\n".join([b"v1.2 199", *lines[1:]]))
    assert here.load() is None


def test_dali_index_is_a_directory(here):
    """Something else by the name of the index is passed over."""
    os.mkdir(here.idx)
    assert here.load() is None


SMALL = tars.files(contents(6))
SMALL_INDEX = dali(SMALL)


@given(st.data())
@settings(max_examples=examples(300))
def test_damaged_dali_index_never_gives_wrong_bytes(data):
    """Oracle: the shard's own headers. Any damage to an index of a small shard is an error, a doubt, or harmless."""
    at = data.draw(st.integers(0, len(SMALL_INDEX)))
    length = data.draw(st.integers(0, 3))
    put = data.draw(st.one_of(st.binary(max_size=3), st.sampled_from([b" ", b"\n", b"1", b"0", b"512", b"1024"])))
    index = SMALL_INDEX[:at] + put + SMALL_INDEX[at + length :]
    read = tars.reader(SMALL)
    try:
        members = foreign.list_members(foreign.parse_dali(index, shard="x"), len(SMALL), shard="x")
    except TableError:
        return
    if not foreign.find_doubt(members, read, len(SMALL), shard="x"):
        assert members == list(tar.scan(read, len(SMALL), shard="x"))


@given(st.binary(max_size=200))
def test_any_bytes_as_an_index(data):
    """Any bytes at all are an index or a typed error."""
    for text in (data, b"v1.2 1\n" + data, b"v1.1 2\n" + data):
        with contextlib.suppress(TableError):
            foreign.list_members(foreign.parse_dali(text, shard="x"), 10_000, shard="x")
    with contextlib.suppress(TableError):
        foreign.parse_offsets(data, shard="x")


# --- Energon's offsets


def test_energon_offsets(here):
    """One offset for each sample, and where the last one ends."""
    offsets = foreign.parse_offsets(energon_offsets(here.data), shard="x")
    assert list(offsets)[:2] == [0, 2048]
    assert len(offsets) == 21
    assert foreign.find_difference_in_offsets(offsets, tars.scanned(here.data)) == ""


@pytest.mark.parametrize("data", [b"", b"1234567", struct.pack("<2Q", 512, 512), struct.pack("<2Q", 0, 513)])
def test_energon_offsets_that_are_none(data):
    """What is no list of ascending offsets of blocks is a typed error."""
    with pytest.raises(TableError, match=re.escape(".tar.idx")):
        foreign.parse_offsets(data, shard="x")


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ([0, 2048], "1 samples, the shard 2"),
        ([0, 1024, 4096], "at byte 1024, the shard at byte 2048"),
        ([0, 2048, 2560], "ends"),
    ],
)
def test_energon_offsets_of_another_shard(offsets, words):
    """Offsets that are not the shard's are told."""
    members = tars.scanned(tars.files(contents(2)))
    assert words in foreign.find_difference_in_offsets(offsets, members)

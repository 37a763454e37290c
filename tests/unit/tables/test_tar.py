import bz2
import gzip
import json
import lzma
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import tars, tools
from tests.support.clocks import PATIENCE_SECONDS
from tests.support.examples import examples
from tests.support.hostile import make as hostile
from tests.support.tars import (
    BLOCK,
    END,
    GNU,
    STAR,
    USTAR,
    V7,
    attempted,
    expected,
    header,
    long_name,
    member,
    pax,
    scanned,
)
from wids import errors
from wids.core.files.identity import Identity
from wids.core.tables import tar
from wids.core.tables.table import build_table
from wids.core.tables.tar import Members

HOSTILE = Path(hostile.__file__).parent
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
BIG = 9 << 30

checked = settings(max_examples=examples(150))


# --- archives of any kind, as tarfile writes them

segments = st.one_of(
    st.sampled_from(["a", "b.txt", ".hidden", "x" * 99, "y" * 100, "z" * 101, "long" * 70, "ünï.é", "日本.jpg", " "]),
    st.binary(min_size=1, max_size=12)
    .filter(lambda raw: not {0, 0x2F} & set(raw))
    .map(lambda raw: raw.decode("utf-8", "surrogateescape")),
)
# What a file that is no archive may begin with: a cut archive whose first member is called so is taken for one.
streams = (*tar._TEXTS, *tar._COMPRESSIONS)


def is_plain(name):
    """A name that a file may have ("." and ".." are taken), and that does not look like a compressed stream's start."""
    raw = name.encode("utf-8", "surrogateescape")
    return bool(name.strip("./")) and not raw.startswith(streams) and not raw.lower().lstrip().startswith(streams)


names = st.lists(segments, min_size=1, max_size=3).map("/".join).filter(is_plain)
kinds = st.sampled_from(
    [tarfile.REGTYPE] * 6
    + [tarfile.AREGTYPE, tarfile.CONTTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE]
    + [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE]
)


@st.composite
def archives(draw):
    """(format name, entries): what an archive of that format can hold."""
    form = draw(st.sampled_from(sorted(FORMATS)))
    entries = []
    for name in draw(st.lists(names, max_size=6)):
        info = tarfile.TarInfo(name)
        info.type = draw(kinds)
        if len(name.encode("utf-8", "surrogateescape")) > 99 and info.type == tarfile.AREGTYPE:
            info.type = tarfile.REGTYPE  # tarfile takes one that it cuts behind a slash for a directory
        info.mtime = draw(st.sampled_from([0, 1, 1_700_000_000, 1_700_000_000.25]))
        info.uid = draw(st.sampled_from([0, 1000, 1 << 22])) if form != "ustar" else 0
        data = b""
        if info.isreg():
            data = draw(st.sampled_from([b"", b"1", b"data" * 100, bytes(511), bytes(512), bytes(513), b"\xff" * 2000]))
            info.size = len(data)
        elif not info.isdir():
            info.linkname = draw(names)
        try:
            info.tobuf(FORMATS[form], "utf-8", "surrogateescape")
        except ValueError:  # too long for ustar
            continue
        entries.append((info, data))
    return form, entries


def files_alone():
    """As `archives`, where nothing is refused."""
    return archives().filter(lambda archive: tars.refused(tars.written(archive[1], FORMATS[archive[0]])[0]) is None)


@checked
@given(archives(), st.sampled_from([None, {"comment": "é" * 300}]))
def test_agrees_with_tarfile(archive, global_records):
    """Oracle: tarfile. Names, header offsets, data offsets and sizes of files and hard links to them, in order; then
    the first member of a sample that is no file is refused.
    """
    form, entries = archive
    # tarfile cannot read the archive of no members that it writes with a global header.
    options = {"pax_headers": global_records} if form == "pax" and entries else {}
    data, _ = tars.written(entries, FORMATS[form], **options)
    check_found(data)


def check_found(data):
    """Scan an archive: what tarfile finds."""
    found, error = attempted(data)
    assert found == expected(data)
    if tars.refused(data) is None:
        assert error is None
    else:
        assert type(error) is errors.UnsupportedMemberError
        assert error.offset == tars.refused(data)
        assert "--hard-dereference" in str(error)


@checked
@given(files_alone(), st.data())
def test_every_cut_is_told(archive, more):
    """Cut before its end marker, an archive gives a prefix of its members and a TruncatedShardError; later, all."""
    form, entries = archive
    data, end = tars.written(entries, FORMATS[form])
    whole = scanned(data)
    cut = more.draw(st.integers(0, len(data)) | st.integers(0, end // BLOCK + 2).map(lambda k: k * BLOCK))
    check_cut(data[:cut], whole, is_whole=cut >= end + BLOCK)


def check_cut(data, whole, *, is_whole):
    """Scan a cut archive: all members, or a prefix of them and then the error."""
    found, error = attempted(data)
    assert found == whole[: len(found)]
    if is_whole:
        assert (found, error) == (whole, None)
        return
    assert type(error) is (errors.TruncatedShardError if data else errors.EmptyShardError)
    assert error.shard == "s.tar"
    assert 0 <= error.offset < len(data) + BLOCK  # at the latest, where the next header should be


@checked
@given(files_alone(), st.binary(max_size=2000))
def test_junk_behind_the_end_is_ignored(archive, junk):
    """What follows the end marker is none of our business, as with tarfile and GNU tar."""
    form, entries = archive
    data, end = tars.written(entries, FORMATS[form])
    assert scanned(data[: end + BLOCK] + junk) == scanned(data)


@checked
@given(archives(), st.sampled_from([512, 513, 1000, 1024, 1536, 4096]))
def test_windows_of_any_size(archive, window):
    """What is found does not depend on how the archive is read: headers may straddle windows, or come one by one."""
    form, entries = archive
    data, _ = tars.written(entries, FORMATS[form])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tar, "_WIDE_WINDOW", window)
        patch.setattr(tar, "_NARROW_WINDOW", window)
        check_found(data)


@checked
@given(archives(), st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=4))
def test_damage_is_a_tar_error(archive, changes):
    """Bytes overwritten anywhere: a TarError or a list of members that lie within the file, never another exception."""
    form, entries = archive
    data = bytearray(tars.written(entries, FORMATS[form])[0])
    for at, value in changes:
        data[at % len(data)] = value
    check_only_tar_errors(bytes(data))


@checked
@given(st.lists(st.sampled_from([b"\0", b"\xff", b"0", b"7", b"x", b"ustar\x0000", b"17 path=a\n", BLOCK * b"L"])))
def test_any_bytes_are_a_tar_error(parts):
    """Bytes that no tool wrote: a TarError or nothing."""
    check_only_tar_errors(b"".join(parts))


@checked
@given(
    st.binary(max_size=12).map(lambda raw: raw.ljust(12, b"\0")),
    st.sampled_from([b"0", b"\0", b"7", b"5", b"L", b"K", b"x", b"g", b"X", b"S", b"M", b"V", b"D", b"Q", b"\xff"]),
    st.binary(max_size=60),
)
def test_any_field_is_a_tar_error(field, kind, body):
    """A header with a right checksum and anything for its size, kind and data: a TarError or sound members."""
    check_only_tar_errors(header(b"a", kind=kind, size_field=field) + tars.padded(body) + member() + END)


def check_only_tar_errors(data):
    """Scan: members within the file, and perhaps a TarError of this shard."""
    found, error = attempted(data)
    assert all(0 <= begin <= begin + size <= len(data) for _, _, begin, size in found)
    if error is not None:
        assert error.shard == "s.tar"
        assert str(error).startswith("s.tar: ")
        assert 0 <= error.offset < len(data) + BLOCK


# --- parsers whole, cut at every byte of their headers, and with trailing junk

DIALECTS = {
    "v7": member(b"d/", kind=b"\0", magic=V7) + member(b"d/a.txt", b"1", b"\0", magic=V7) + member(magic=V7),
    "ustar prefix": member(b"a.txt", b"1", prefix=b"d/e") + member(b"b.txt", b"22", prefix=b"p" * 155),
    "gnu long name": long_name(b"d/" * 200 + b"a.txt") + member(b"cut", b"1", magic=GNU) + member(b"b.txt", magic=GNU),
    "pax": pax({b"path": b"d/" * 200 + b"a.txt", b"size": b"3"}) + header(b"cut") + tars.padded(b"abc") + member(),
    "pax global": pax({b"path": b"g.txt"}, b"g") + member() + member(b"b.txt", b"1"),
    "solaris pax": pax({b"path": b"s.txt"}, b"X") + member(b"cut", b"1"),
    "star": member(b"a.txt", b"1", prefix=b"d", magic=STAR, tail=b"tar\0"),
}


@pytest.mark.parametrize("name", DIALECTS)
def test_each_dialect_whole_cut_and_with_junk(name):
    """Oracle: tarfile on the whole. Cut at every byte that is not plain data, and with trailing junk."""
    body = DIALECTS[name]
    whole = expected(body + END)
    assert scanned(body + END) == whole
    assert scanned(body + END + b"junk" * 300) == whole
    assert scanned(body + bytes(BLOCK)) == whole
    for cut in range(0, len(body) + BLOCK, 17):
        check_cut((body + END)[:cut], whole, is_whole=False)
    for boundary in range(0, len(body) + 1, BLOCK):
        for cut in (boundary - 1, boundary, boundary + 1):
            if cut >= 0:
                check_cut((body + END)[:cut], whole, is_whole=False)


# --- where tarfile and the documents differ, or tarfile cannot be asked


def found_names(data):
    """Just the names."""
    return [name for name, *_ in scanned(data)]


def test_prefix_only_with_the_posix_magic():
    """A prefix counts with the magic of POSIX alone; tarfile joins it always, and is wrong: in GNU headers those bytes
    are access and change times (GNU tar manual, "struct oldgnu_header"), in V7 headers they are nothing.
    """
    for magic in (V7, GNU):
        data = member(b"a.txt", b"1", prefix=b"14700000000", magic=magic) + END
        assert found_names(data) == [b"a.txt"]


def test_prefix_of_star_ends_before_its_times():
    """star(5): with star's magic at byte 508 the prefix has 131 bytes, then times; tarfile reads 155, and is wrong."""
    times = b"14700000000\0" + b"14700000001\0"
    prefix = b"p" * 131 + times
    assert found_names(member(prefix=prefix, magic=STAR, tail=b"tar\0") + END) == [b"p" * 131 + b"/a.txt"]
    assert found_names(member(prefix=b"p" * 155, magic=USTAR) + END) == [b"p" * 155 + b"/a.txt"]


def test_empty_pax_value_means_absent():
    """POSIX: a record with an empty value deletes what was said before it; tarfile takes it for an empty name, and is
    wrong.
    """
    data = (
        pax({b"path": b"g.txt", b"size": b"9"}, b"g") + pax({b"path": b"", b"size": b""}) + member(b"a.txt", b"1") + END
    )
    assert scanned(data) == [(b"a.txt", 2048, 2560, 1)]


def test_global_size_holds_for_the_data_too():
    """POSIX: a global record holds for all members that follow; tarfile reports the size but skips by the header's,
    so that it would take data for a header, and is wrong.
    """
    data = pax({b"size": b"5"}, b"g") + header(b"a.txt", 0) + tars.padded(b"12345") + member(b"b.txt", b"67890") + END
    assert scanned(data) == [(b"a.txt", 1024, 1536, 5), (b"b.txt", 2048, 2560, 5)]


def test_later_headers_of_a_kind_win():
    """Of two PAX headers, or two long names, before one member, the nearer one holds, as in GNU tar, which keeps
    one of each; in tarfile the farther one does. Neither document has a say.
    """
    twice = pax({b"path": b"far.txt"}) + pax({b"path": b"near.txt"}) + member() + END
    assert found_names(twice) == [b"near.txt"]
    assert found_names(long_name(b"far.txt") + long_name(b"near.txt") + member() + END) == [b"near.txt"]


def test_pax_path_wins_over_a_long_name():
    """A PAX path overrides a GNU long name whatever their order, as in GNU tar; tarfile goes by the order."""
    named, longer = pax({b"path": b"pax.txt"}), long_name(b"long.txt")
    assert found_names(named + longer + member() + END) == [b"pax.txt"]
    assert found_names(longer + named + member() + END) == [b"pax.txt"]


def test_extended_headers_hold_for_one_member():
    """Names and sizes of L and x headers are forgotten with their member, also when that is no file."""
    data = (
        long_name(b"long/") + member(b"d", kind=b"5", magic=GNU) + member(b"a.txt", b"1")
        + pax({b"path": b"link", b"size": b"7"}) + member(b"l", kind=b"2") + member(b"b.txt", b"22") + END
    )  # fmt: skip
    assert scanned(data) == expected(data)
    assert found_names(data) == [b"a.txt", b"b.txt"]


def test_long_link_names_name_no_member():
    """GNU tar's K header names a link's target, and the member after it has its own name."""
    data = member(b"././@LongLink", b"target" * 40 + b"\0", b"K", magic=GNU) + member(b"a.txt", b"1", magic=GNU) + END
    assert scanned(data) == expected(data)
    assert found_names(data) == [b"a.txt"]


LONG = b"d/" + b"l" * 150 + b".txt"


@pytest.mark.parametrize(
    ("target", "before", "link", "name"),
    [
        (b"a.txt", b"", b"a.txt", b"b.txt"),
        (b"./d/../a.txt", b"", b"a.txt", b"b.txt"),
        (LONG, member(b"././@LongLink", LONG + b"\0", b"K", magic=GNU), b"cut", b"b.txt"),
        (LONG, pax({b"linkpath": LONG}), b"cut", b"b.txt"),
        (LONG, pax({b"linkpath": LONG, b"path": b"other.txt"}), b"cut", b"other.txt"),
    ],
    ids=["plain", "normal", "gnu", "pax", "pax path"],
)
def test_a_hard_link_is_the_file_that_it_leads_to(target, before, link, name):
    """However its name is written: the last earlier file of this name; later ones of the name are others, and a link to
    a link is the same file. Oracle: tarfile.
    """
    first = pax({b"path": target}) + member(b"cut", b"old") + pax({b"path": target}) + member(b"cut", b"data")
    links = before + header(b"b.txt", kind=b"1", link=link) + header(b"c.txt", kind=b"1", link=name)
    data = first + member(b"x.txt", b"x") + links + pax({b"path": target}) + member(b"cut", b"later") + END
    check_found(data)
    found = {name: data[at : at + size] for name, _, at, size in scanned(data)}
    assert found == {target: b"later", b"x.txt": b"x", name: b"data", b"c.txt": b"data"}


@pytest.mark.parametrize(
    "what",
    [
        header(b"b.txt", kind=b"1", link=b"later.txt") + member(b"later.txt", b"1"),
        header(b"b.txt", kind=b"1", link=b"b.txt"),
        header(b"d/", kind=b"5") + header(b"b.txt", kind=b"1", link=b"d"),
        header(b"s", kind=b"2", link=b"a.txt") + header(b"b.txt", kind=b"1", link=b"s"),
        header(b"b.txt", kind=b"2", link=b"a.txt"),
        header(b"b.txt", kind=b"3"),
        header(b"b.txt", kind=b"4"),
        header(b"b.txt", kind=b"6"),
        member(b"b.txt", b"data", kind=b"Z"),
    ],
    ids=["later", "itself", "directory", "link to link", "symbolic", "character", "block", "FIFO", "unknown kind"],
)
def test_what_is_no_file_is_refused_where_a_sample_would_have_it(what):
    """A link that leads to no earlier file, and a device; under a name that no sample has, they are passed over."""
    data = member(b"a.txt", b"1") + what + END
    check_found(data)
    assert type(attempted(data)[1]) is errors.UnsupportedMemberError
    passed = tar.scan(tars.reader(data), len(data), shard="s.tar", split=lambda _: None)
    assert {name for name, *_ in passed} - {b"later.txt"} == {b"a.txt"}


def test_size_of_what_has_no_data_is_ignored():
    """POSIX: links, devices, directories and FIFOs have no data records, whatever their size field says."""
    for kind in b"123456":
        data = header(b"x", 600, bytes([kind])) + member(b"a.txt", b"1") + END
        assert scanned(data) == expected(data) == [(b"a.txt", 512, 1024, 1)]


def test_what_is_said_of_the_archive_is_skipped_with_its_data():
    """GNU's volume labels (V), dump directories (D) and old names (N), and Solaris' attributes, are no members."""
    for kind in b"VDNA":
        data = member(b"x.txt", b"data" * 200, bytes([kind])) + member(b"a.txt", b"1") + END
        assert scanned(data) == expected(data) == [(b"a.txt", 1536, 2048, 1)]


def test_long_names_cut_behind_a_slash_are_files():
    """The whole name says whether a kind of NUL is a directory; tarfile goes by what is left in the header, and is
    wrong: it would drop the member.
    """
    cut = b"x" * 99 + b"/"
    for named in (long_name(cut + b"a.txt"), pax({b"path": cut + b"a.txt"})):
        data = named + member(cut, b"1", kind=b"\0") + member(b"b.txt") + END
        assert found_names(data) == [cut + b"a.txt", b"b.txt"]
    data = pax({b"path": b"d/"}) + member(b"cut", kind=b"\0") + member(b"b.txt") + END
    assert found_names(data) == [b"b.txt"]


def test_global_header_without_members():
    """It holds for members that never come: an archive of none; tarfile refuses it, and is wrong."""
    assert scanned(pax({b"comment": b"x"}, b"g") + END) == []


def test_v7_directory_is_a_file_with_a_slash():
    """Without a directory kind, a trailing slash said it; a kind of "0" has no need of that and is a file."""
    data = member(b"d/", kind=b"\0", magic=V7) + member(b"e/", b"1", kind=b"0") + END
    assert scanned(data) == expected(data) == [(b"e/", 512, 1024, 1)]


def test_checksums_of_signed_bytes():
    """Some old writers summed signed bytes; tarfile and GNU tar accept both sums."""
    signed = lambda block: b"%06o\0 " % (sum(block) - 256 * sum(byte > 127 for byte in block))  # noqa: E731 - a helper
    data = member(b"\xe9\xe8.txt", b"1", checksum=signed) + END
    assert scanned(data) == expected(data)


@pytest.mark.parametrize("form", [b"%6o\0 ", b"%06o \0", b"%7o\0", b"%07o\0", b"%08o", b"%6o  ", b" %6o\0"])
def test_checksums_in_any_layout(form):
    """Six digits, NUL, blank is the rule; writers differed, and tarfile reads them all."""
    data = member(b"a.txt", b"1", checksum=lambda block: form % sum(block)) + END
    assert scanned(data) == expected(data) != []


def test_checksum_of_a_large_sum():
    """A header whose bytes sum to more than 65521, where a fast checksum wraps, is read, and refused when wrong."""
    fields = {"name": b"\xff" * 100, "prefix": b"\xff" * 155, "magic": USTAR}
    block = bytearray(header(**fields))
    block[157:257] = b"\xff" * 100
    block[265:329] = b"\xff" * 64
    total = sum(block[:148]) + sum(block[156:]) + 8 * 32
    assert total > 65521
    for off in (0, 1, 1 << 16):
        block[148:156] = b"%06o\0 " % (total + off)
        data = bytes(block) + END
        if off == 0:
            assert scanned(data) == expected(data) != []
        else:
            with pytest.raises(errors.CorruptHeaderError, match="checksum"):
                scanned(data)


@pytest.mark.parametrize("value", [0x00, 0x20, 0x30, 0x31, 0x35, 0xFF])
def test_every_changed_byte_of_a_header_is_seen(value):
    """Any one byte of a header changed is a CorruptHeaderError, unless its checksum is just written otherwise."""
    good = member(b"a.txt", b"1") + END
    for at in range(BLOCK):
        bad = good[:at] + bytes([value]) + good[at + 1 :]
        found, error = attempted(bad)
        if error is None:
            assert bad == good or 148 <= at < 156
            assert found == scanned(good)
        else:
            assert (type(error), error.offset) == (errors.CorruptHeaderError, 0)


@pytest.mark.parametrize(
    ("field", "size"),
    [
        (b"00000000005\0", 5),
        (b"00000000005 ", 5),
        (b"          5 ", 5),
        (b"5\0\0\0\0\0\0\0\0\0\0\0", 5),
        (b"000000000005", 5),
        (b"5 \0         ", 5),
        (bytes(12), 0),
        (b" " * 12, 0),
        (b"\x80" + bytes(10) + b"\5", 5),
    ],
)
def test_size_fields(field, size):
    """Octal, blank-padded, unterminated, empty and base-256 sizes."""
    data = header(b"a.txt", size_field=field[:12]) + (tars.padded(b"12345") if size else b"") + END
    assert scanned(data) == expected(data) == [(b"a.txt", 0, 512, size)]


# --- more than 8 GiB


def sparse_file(path, parts):
    """A file of (offset, bytes) parts with holes between them, and its size."""
    with open(path, "wb") as file:
        for offset, data in parts:
            file.seek(offset)
            file.write(data)
        return file.tell()


@pytest.mark.parametrize("form", sorted(FORMATS))
@pytest.mark.parametrize("size", [(8 << 30) - 1, 8 << 30, BIG])
def test_members_past_8_gib(tmp_path, form, size):
    """Octal sizes up to 8 GiB, base-256 (GNU) and PAX ones beyond; offsets past 8 GiB. The payload is a hole."""
    first, second = tarfile.TarInfo("big.bin"), tarfile.TarInfo("later.txt")
    first.size, second.size = size, 5
    try:
        start = first.tobuf(FORMATS[form], "utf-8", "surrogateescape")
    except ValueError:
        assert form == "ustar"
        assert size >= 8 << 30
        return
    at = len(start) + (size + 511 & -512)
    total = sparse_file(tmp_path / "s.tar", [(0, start), (at, second.tobuf() + tars.padded(b"12345") + END)])
    fd = os.open(tmp_path / "s.tar", os.O_RDONLY)
    try:
        found = list(tar.scan(lambda offset, n: os.pread(fd, n, offset), total, shard="s.tar"))
    finally:
        os.close(fd)
    with open(tmp_path / "s.tar", "rb") as file:
        assert found == expected(file)
    assert found[0][3] == size
    assert found[1] == (b"later.txt", at, at + BLOCK, 5)


def test_large_members_are_skipped_not_read():
    """A hundred members of 1 MiB: some 4 KiB are read for each, none of its data asked for again."""
    body = b"".join(member(b"%03d.bin" % k, bytes(1 << 20)) for k in range(100)) + END
    asked = []

    def read(offset, n):
        asked.append(n)
        return body[offset : offset + n]

    assert len(list(tar.scan(read, len(body), shard="s.tar"))) == 100
    assert sum(asked) <= (1 << 20) + 101 * 4096


def test_small_members_come_many_to_a_read():
    """A thousand members of one block: a handful of reads."""
    body = member(b"a.txt", b"1") * 1000 + END
    asked = []

    def read(offset, n):
        asked.append(n)
        return body[offset : offset + n]

    assert len(list(tar.scan(read, len(body), shard="s.tar"))) == 1000
    assert len(asked) <= 8


def test_many_global_headers_cost_what_they_hold():
    """Global records stay in force until something else is said."""
    body = b"".join(pax({b"path": b"g%d.txt" % k}, b"g") + member() * 2 for k in range(3)) + END
    assert found_names(body) == [b"g0.txt", b"g0.txt", b"g1.txt", b"g1.txt", b"g2.txt", b"g2.txt"]


def test_a_file_that_shrinks_while_it_is_scanned():
    """The size was taken before; an extended header that comes up short is a truncation, not a shorter name."""
    body = long_name(b"long/name.txt" * 20) + member(magic=GNU) + END
    for cut in (600, 512, 100):
        with pytest.raises(errors.TruncatedShardError):
            list(tar.scan(tars.reader(body[:cut]), len(body), shard="s.tar"))


# --- what other tools write

SHORT_NAMES = ["a.txt", "d/b.seg.png", "d/empty.json", "d/.hidden", "no-extension", "with space.txt", "new\nline.txt"]
SPLIT_NAMES = ["d/" + "e" * 60 + "/" + "f" * 60 + ".txt", "n" * 100, "p" * 99 + "/" + "q" * 99]
LONG_NAMES = ["d/" * 100 + "deep.txt", "x" * 200 + ".txt", "üñï/" + "日本語" * 20 + ".jpg"]
RAW_NAMES = [b"latin-\xe9.txt", b"\xff" * 110 + b".txt", b"d/\xe9\xe8/a.txt"]


def plant(root, wanted):
    """Make a tree with these files, an empty directory and a link that no sample has; give name (bytes) -> content."""
    contents = {}
    for k, name in enumerate(wanted):
        raw = os.fsencode(name)
        path = os.path.join(os.fsencode(root), raw)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        contents[raw] = b"" if b"empty" in raw else b"content %d " % k * (1 + k * 40)
        with open(path, "wb") as file:
            file.write(contents[raw])
    os.makedirs(root / "zz" / "empty-dir")
    os.symlink("../a.txt", root / "zz" / "link")
    return contents


def check_packed(data, contents):
    """Every file that was packed is found once, with its own bytes."""
    found = scanned(data)
    assert {name.removeprefix(b"./"): data[at : at + size] for name, _, at, size in found} == contents
    assert len(found) == len(contents)


def run_tool(name, *args, cwd):
    """Run an archiver in a UTF-8 locale, quietly; its warnings (exit 1) are none."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [tools.program(name), *args], cwd=cwd, env=environment, capture_output=True, timeout=PATIENCE_SECONDS
    )
    assert done.returncode in (0, 1), done.stderr


TOOLS = {
    "tar v7": SHORT_NAMES,
    "tar oldgnu": SHORT_NAMES + SPLIT_NAMES + LONG_NAMES + RAW_NAMES,
    "tar gnu": SHORT_NAMES + SPLIT_NAMES + LONG_NAMES + RAW_NAMES,
    "tar ustar": SHORT_NAMES + SPLIT_NAMES,
    "tar posix": SHORT_NAMES + SPLIT_NAMES + LONG_NAMES + RAW_NAMES,
    "bsdtar v7": SHORT_NAMES,
    "bsdtar ustar": SHORT_NAMES + SPLIT_NAMES,
    "bsdtar gnutar": SHORT_NAMES + SPLIT_NAMES + LONG_NAMES + RAW_NAMES,
    "bsdtar pax": SHORT_NAMES + SPLIT_NAMES + LONG_NAMES + RAW_NAMES,
    "bsdtar rpax": SHORT_NAMES + SPLIT_NAMES + LONG_NAMES + RAW_NAMES,
}


@pytest.mark.parametrize("tool", TOOLS)
def test_archives_of_gnu_tar_and_bsdtar(tmp_path, tool):
    """Oracles: the files that were packed, and tarfile. Whole, and cut at every block."""
    program, form = tool.split()
    contents = plant(tmp_path / "tree", TOOLS[tool])
    if form != "v7":
        os.mkfifo(tmp_path / "tree" / "zz" / "fifo")
    run_tool(program, f"--format={form}", "-cf", str(tmp_path / "s.tar"), ".", cwd=tmp_path / "tree")
    data = (tmp_path / "s.tar").read_bytes()
    check_packed(data, contents)
    whole = scanned(data)
    assert whole == expected(data)
    last = whole[-1][2] + whole[-1][3]
    for cut in range(0, last, BLOCK):
        check_cut(data[:cut], whole, is_whole=False)


@pytest.mark.parametrize("form", ["gnu", "oldgnu", "posix"])
def test_incremental_archives_of_gnu_tar(tmp_path, form):
    """Oracle: the files that were packed. tarfile takes the access times that stand in the prefix field for a
    directory, and is wrong: see `test_prefix_only_with_the_posix_magic`.
    """
    contents = plant(tmp_path / "tree", SHORT_NAMES)
    command = ["tar", f"--format={form}", "-g", str(tmp_path / "list"), "-cf", str(tmp_path / "s.tar"), "."]
    run_tool(*command, cwd=tmp_path / "tree")
    check_packed((tmp_path / "s.tar").read_bytes(), contents)


@pytest.mark.parametrize("form", ["gnu", "posix"])
def test_labelled_archives_of_gnu_tar(tmp_path, form):
    """A volume label is a header of its own kind, or a global PAX record; neither is a member, nor multi-volume."""
    contents = plant(tmp_path / "tree", SHORT_NAMES)
    command = ["tar", f"--format={form}", "--label=a title", "-cf", str(tmp_path / "s.tar"), "."]
    run_tool(*command, cwd=tmp_path / "tree")
    check_packed((tmp_path / "s.tar").read_bytes(), contents)


@pytest.mark.parametrize(
    "command",
    [
        ["tar", "--format=gnu", "-S"],
        ["tar", "--format=oldgnu", "-S"],
        ["tar", "--format=posix", "-S", "--sparse-version=0.0"],
        ["tar", "--format=posix", "-S", "--sparse-version=0.1"],
        ["tar", "--format=posix", "-S", "--sparse-version=1.0"],
        ["bsdtar", "--format=pax", "-S"],
    ],
    ids=" ".join,
)
def test_sparse_archives_are_refused(tmp_path, command):
    """All five ways to store a file with holes in pieces are an UnsupportedMemberError that names the file."""
    sparse_file(tmp_path / "holes.bin", [(1 << 20, b"x" * 4096), (3 << 20, b"y")])
    run_tool(*command, "-cf", "s.tar", "holes.bin", cwd=tmp_path)
    with pytest.raises(errors.UnsupportedMemberError, match=r"'holes\.bin' at byte \d+ is sparse"):
        scanned((tmp_path / "s.tar").read_bytes())


@pytest.mark.parametrize("form", ["gnu", "oldgnu", "posix"])
def test_volumes_are_refused(tmp_path, form):
    """A volume that ends in mid-member is truncated, and the next one begins with the rest of it."""
    (tmp_path / "a.txt").write_bytes(b"1")
    (tmp_path / "big.bin").write_bytes(b"x" * 30_000)
    command = ["tar", f"--format={form}", "-M", "-L", "20", "-f", "1.tar", "-f", "2.tar", "-c", "a.txt", "big.bin"]
    run_tool(*command, cwd=tmp_path)
    with pytest.raises(errors.TruncatedShardError, match=r"'big\.bin'"):
        scanned((tmp_path / "1.tar").read_bytes())
    with pytest.raises(errors.UnsupportedMemberError, match=r"'big\.bin' at byte \d+ is multi-volume"):
        scanned((tmp_path / "2.tar").read_bytes())


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("-z", "gzip"),
        ("-j", "bzip2"),
        ("-J", "xz"),
        ("--zstd", "zstd"),
        ("--lz4", "lz4"),
        ("--lzma", "lzma"),
        ("-Z", "compress"),
    ],
)
def test_compressed_archives_are_refused(tmp_path, option, name):
    """A compressed archive, as bsdtar writes it, is told by its first bytes, however short it is."""
    (tmp_path / "a.txt").write_bytes(b"1")
    run_tool("bsdtar", option, "-cf", "s.tar", "a.txt", cwd=tmp_path)
    data = (tmp_path / "s.tar").read_bytes()
    with pytest.raises(errors.CompressedShardError, match=name) as caught:
        scanned(data)
    assert caught.value.offset == 0


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress], ids=["gzip", "bzip2", "xz"])
def test_long_compressed_streams_are_refused(compress):
    """The same for streams of more than one block."""
    data = compress(os.urandom(2000))
    with pytest.raises(errors.CompressedShardError):
        scanned(data)


# --- errors

CORPUS = hostile.make()
EXPECTED = json.loads((HOSTILE / "expected.json").read_text())


def test_hostile_corpus_is_what_its_script_makes():
    """The checked-in files and expectations are those of tests/support/hostile/make.py, and no others."""
    assert {path.name for path in HOSTILE.glob("*.tar")} == set(EXPECTED) == set(CORPUS)
    for name, (data, expectation) in CORPUS.items():
        assert (HOSTILE / name).read_bytes() == data, name
        assert EXPECTED[name] == json.loads(json.dumps(expectation)), name


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_hostile_corpus(name):
    """Each file gives its members, or its error: type, shard, byte offset, and words that say what it is."""
    data, expectation = (HOSTILE / name).read_bytes(), EXPECTED[name]

    def read():
        found = scanned(data, shard="dir/s.tar")
        build_table(found, identity=Identity(size=len(data)), shard="dir/s.tar")
        return [[raw.decode("utf-8", "surrogateescape"), at, size] for raw, _, at, size in found]

    if "members" in expectation:
        assert read() == expectation["members"]
        return
    with pytest.raises(errors.ShardError) as caught:
        read()
    error = caught.value
    assert type(error).__name__ == expectation["error"]
    assert (error.shard, error.offset) == ("dir/s.tar", expectation["offset"])
    assert str(error).startswith("dir/s.tar: ")
    assert expectation["says"] in str(error)


@pytest.mark.parametrize("name", CORPUS)
def test_the_first_block_of_a_hostile_file(name):
    """It is refused, in the words of the scan, where the fault is in it; all that goes on soundly or later may come."""
    data, expectation = CORPUS[name]
    fault = None
    try:
        list(tar.scan(tars.reader(data), len(data), shard=name))
    except errors.TarError as error:
        fault = error
    is_seen = expectation.get("offset") == 0 and bool(data)
    is_seen &= expectation.get("error") not in ("TruncatedShardError", "EmptyShardError", "DuplicateMemberError")
    is_seen &= expectation.get("says", "").partition(" at byte ")[0] != "broken record"
    if not is_seen:
        tar.check_start(data[:BLOCK], shard=name)
        return
    with pytest.raises(type(fault)) as caught:
        tar.check_start(data[:BLOCK], shard=name)
    assert str(caught.value) == str(fault)


def test_hostile_main_writes_the_corpus(tmp_path, monkeypatch):
    """The script that made the corpus makes it again."""
    monkeypatch.setattr(hostile, "HERE", str(tmp_path))
    hostile.main()
    assert {path.name for path in tmp_path.iterdir()} == {*EXPECTED, "expected.json"}
    assert (tmp_path / "expected.json").read_bytes() == (HOSTILE / "expected.json").read_bytes()


def test_pax_numbers_of_many_digits():
    """Python refuses to read 4,301 digits with a ValueError of its own; here that is a corrupt header."""
    digits = b"9" * 5000
    for records in ({b"size": digits}, digits + b" path=a\n"):
        with pytest.raises(errors.CorruptHeaderError):
            scanned(pax(records) + member() + END)


def test_pax_body_may_be_padded_with_nul():
    """Zeros behind the last record end the list, as in tarfile."""
    data = pax(b"14 path=a.txt\n".ljust(40, b"\0")) + member(b"b.txt") + END
    assert scanned(data) == expected(data)
    assert found_names(data) == [b"a.txt"]


def test_magic_of_a_stream_in_a_sound_archive():
    """A member may be called like a compressed stream begins; its checksum says that it is a header."""
    data = member(b"BZh91AY.txt", b"1") + END
    assert found_names(data) == [b"BZh91AY.txt"]


def test_damage_further_on_is_not_taken_for_a_stream():
    """Only byte 0 tells a compressed file; further on the same bytes are damage."""
    data = member(b"a.txt") + b"\x1f\x8b" + bytes(600)
    with pytest.raises(errors.CorruptHeaderError, match="byte 512 are not a tar header"):
        scanned(data)


def test_members_before_an_error_are_yielded():
    """The scan is lazy: members come as they are found, and the error in its place."""
    data = member(b"a.txt") + b"x" * 600
    members = tar.scan(tars.reader(data), len(data), shard="s.tar")
    assert next(members) == (b"a.txt", 0, 512, 0)
    with pytest.raises(errors.CorruptHeaderError):
        next(members)


def test_a_long_global_path_does_not_make_a_table_of_many_times_the_archive():
    """One PAX header of 8 MB named each second member: 300 KB of members made 2.5 GB of keys."""
    long = tars.pax({b"path": b"q" * 100_000 + b".txt"}, b"g")
    with pytest.raises(errors.CorruptHeaderError, match="long path"):
        tars.table_of(long + tars.member(b"a.txt") + tars.END)
    short = tars.pax({b"path": b"q.txt"}, b"g")
    assert list(tars.table_of(short + tars.member(b"a.txt") + tars.END).keys()) == ["q"]


def test_global_records_that_say_nothing_cost_nothing():
    """Each member copied all of them: a hundred thousand records and members took hours."""
    records = b"".join(tars.record(b"k%06d" % k, b"v") for k in range(100_000))
    members = b"".join(tars.member(b"%d.txt" % k) for k in range(5_000))
    assert len(tars.table_of(tars.pax(records, b"g") + members + tars.END)) == 5_000


ONE_FILE = tars.member(b"a.txt", b"1")


def find_unread(data):
    """What belongs to no member of an archive: (offset of a byte that is not zero, number of zeros), and how many."""
    members = Members(tars.reader(data), len(data), shard="s.tar")
    assert [name for name, *_ in members] == [b"a.txt"]
    return *members.find_unread(), members.count_unread()


@pytest.mark.parametrize("blocks", [2, 20, 64, 128, 2048])
def test_padding_of_writers_is_no_loss(tmp_path, blocks):
    """Records of GNU tar (``-b``), a power of two of blocks or the usual 20; the end marker may need one of its own."""
    for size in (1, 512 * blocks - 3 * BLOCK, 512 * blocks - 2 * BLOCK, 512 * blocks - BLOCK):
        (tmp_path / "a.txt").write_bytes(bytes(max(size, 0)))
        made = subprocess.run(["tar", "-b", str(blocks), "-C", tmp_path, "-cf", "-", "a.txt"], check=True, stdout=-1)
        assert len(made.stdout) % (blocks * BLOCK) == 0
        assert find_unread(made.stdout) == (None, 0, 0)


@pytest.mark.parametrize("count", [2, 20, 22])
def test_few_zeros_are_padding(count):
    """Two blocks as of Go and Rust, records of 10,240 bytes, and an end marker more than there was."""
    assert find_unread(ONE_FILE + bytes(count * BLOCK)) == (None, 0, 0)


@pytest.mark.parametrize("size", [43 * BLOCK + 1, 40_000, 300_032])
def test_many_zeros_are_a_loss(size):
    """Zeros that no writer appends are counted, and so is a tail in which one byte is none."""
    assert find_unread(ONE_FILE + bytes(size)) == (None, size, size)
    junk = find_unread(ONE_FILE + bytes(size) + b"x")
    assert junk == (len(ONE_FILE) + size, 0, size + 1)


@pytest.mark.parametrize("blocks", [21, 60, 100, 126])
def test_records_of_tapes_are_padding(tmp_path, blocks):
    """Of a number of blocks that is no power of two; zeros that begin within a member are a loss all the same."""
    (tmp_path / "a.txt").write_bytes(b"1")
    made = subprocess.run(["tar", "-b", str(blocks), "-C", tmp_path, "-cf", "-", "a.txt"], check=True, stdout=-1)
    assert (len(made.stdout), find_unread(made.stdout)) == (blocks * BLOCK, (None, 0, 0))
    lost = tars.member(b"a.txt", bytes(9))
    assert find_unread(lost + bytes(61 * BLOCK - len(lost))) == (None, 59 * BLOCK, 59 * BLOCK)


def test_appended_archives_are_padded(tmp_path):
    """GNU tar leaves the zeros of both archives behind ``tar -A``."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_bytes(b"1")
        subprocess.run(["tar", "-C", tmp_path, "-cf", tmp_path / f"{name}.tar", f"{name}.txt"], check=True)
    subprocess.run(["tar", "-Af", tmp_path / "a.tar", tmp_path / "b.tar"], check=True)
    data = (tmp_path / "a.tar").read_bytes()
    members = Members(tars.reader(data), len(data), shard="a.tar")
    assert [name for name, *_ in members] == [b"a.txt", b"b.txt"]
    assert len(data) - members.end > 10_240 + 2 * BLOCK
    assert members.find_unread() == (None, 0)


def test_a_tail_that_is_short_is_read():
    """A byte within what could be padding is found; of a long tail, counting reads nothing."""
    assert find_unread(ONE_FILE + bytes(600) + b"x") == (len(ONE_FILE) + 600, 0, 601)
    data, ranges = ONE_FILE + bytes(50_000), []

    def read(offset, count):
        ranges.append((offset, count))
        return data[offset : offset + count]

    members = Members(read, len(data), shard="s.tar")
    assert len(list(members)) == 1
    ranges.clear()
    assert (members.count_unread(), ranges) == (50_000, [])

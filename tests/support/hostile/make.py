"""The hostile archives of this directory, and what reading them must give: ``python -m tests.support.hostile.make``.

Each is a few blocks made by hand, for one fault or one odd but sound form. ``expected.json`` says for each file either
the error (its type, its byte offset, a word of its message) or the members (name, data offset, size).
"""

import json
import os

from tests.support.tars import BLOCK, END, GNU, V7, header, long_name, member, pax

HERE = os.path.dirname(__file__)
MARK = bytes(BLOCK)
SOUND = member(b"a.txt", b"sound") + MARK


def fails(data, error, offset, says):
    """A file that must be refused."""
    return data, {"error": error, "offset": offset, "says": says}


def holds(data, *members):
    """A file that must be read: (name, data offset, size) of each member."""
    return data, {"members": [list(found) for found in members]}


def corrupt(data, offset, says):
    """A file with a header that must be refused."""
    return fails(data, "CorruptHeaderError", offset, says)


def truncated(data, offset, says="truncated"):
    """A file that ends too early; ``offset`` is where the header of what is cut stands."""
    return fails(data, "TruncatedShardError", offset, says)


def unsupported(data, offset, says):
    """A file with a member that is not in one piece."""
    return fails(data, "UnsupportedMemberError", offset, says)


def sized(field, **options):
    """An archive whose second member has this size field."""
    return member(b"a.txt") + header(b"b.txt", size_field=field, **options) + MARK


def make():
    """File name -> (bytes, expectation)."""
    page = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body>Please sign in.</body></html>\n"
    denied = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code></Error>\n'
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935\nsize 12345\n"
    two = member(b"a.txt", b"first") + member(b"b.txt", b"second")
    named = pax({b"path": b"d/\xc3\xa9.txt"}) + member(b"d/e.txt", b"named")
    streams = {
        "gzip": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03",
        "zstd": b"\x28\xb5\x2f\xfd\x04\x58",
        "bzip2": b"BZh91AY&SY",
        "xz": b"\xfd7zXZ\x00\x00\x04",
        "lz4": b"\x04\x22\x4d\x18\x64\x40\xa7",
    }
    return {
        "empty.tar": fails(b"", "EmptyShardError", 0, "empty"),
        **{
            f"{name}.tar": fails(magic + b"\x55\xaa" * 40, "CompressedShardError", 0, name)
            for name, magic in streams.items()
        },
        "html-page.tar": corrupt(page, 0, "HTML"),
        "xml-page.tar": corrupt(denied * 8, 0, "XML"),
        "git-lfs-pointer.tar": corrupt(pointer, 0, "git lfs pull"),
        "text.tar": corrupt(b"just some text, and then some more of it\n" * 16, 0, "not a tar header"),
        "checksum-flipped.tar": corrupt(
            member(b"a.txt") + header(b"b.txt", checksum=lambda block: b"%06o\0 " % (sum(block) ^ 1)) + MARK,
            512,
            "checksum",
        ),
        "checksum-off-by-65536.tar": corrupt(
            header(checksum=lambda block: b"%06o\0 " % (sum(block) + (1 << 16))) + MARK, 0, "checksum"
        ),
        "checksum-not-a-number.tar": corrupt(header(checksum=b"bad sum\0") + MARK, 0, "checksum"),
        "truncated-header.tar": truncated(two[: 1024 + 100], 1024, "end-of-archive"),
        "truncated-first-header.tar": truncated(two[:100], 0, "end-of-archive"),
        "truncated-member.tar": truncated(two[: 1024 + 512 + 3], 1024, "'b.txt'"),
        "truncated-padding.tar": truncated(two[:-100], 2048, "end-of-archive"),
        "truncated-long-name.tar": truncated(long_name(b"n" * 700)[:900], 0, "extended header"),
        "truncated-pax-header.tar": truncated(named[: 512 + 7], 0, "extended header"),
        "truncated-after-pax-header.tar": truncated(named[:1024], 1024, "end-of-archive"),
        "truncated-end-marker.tar": truncated(two + bytes(100), 2048, "end-of-archive"),
        "no-end-marker.tar": truncated(two, 2048, "append 1,024 zero bytes"),
        "extended-header-alone.tar": corrupt(pax({b"path": b"x.txt"}) + MARK, 1024, "end-of-archive"),
        "extended-header-huge.tar": corrupt(header(b"x", 1 << 30, b"x") + SOUND, 0, "1073741824 bytes"),
        "long-name-huge.tar": corrupt(header(b"x", 1 << 32, b"L", magic=GNU) + SOUND, 0, "4294967296 bytes"),
        "pax-record-broken.tar": corrupt(pax(b"17 path=short.txt\n") + SOUND, 0, "broken record at byte 512"),
        "pax-record-too-long.tar": corrupt(pax(b"99 path=short.txt\n") + SOUND, 0, "broken record at byte 512"),
        "pax-record-second-broken.tar": corrupt(pax(b"9 a=bcde\n0 b=c\n") + SOUND, 0, "broken record at byte 521"),
        "pax-record-without-equals.tar": corrupt(pax(b"9 abcdef\n") + SOUND, 0, "broken record"),
        "pax-record-without-key.tar": corrupt(pax(b"9 =bcdef\n") + SOUND, 0, "broken record"),
        "pax-path-nul.tar": corrupt(pax({b"path": b"a\0b.txt"}) + SOUND, 1024, "NUL"),
        "pax-size-not-a-number.tar": corrupt(pax({b"size": b"12x"}) + SOUND, 1024, "PAX size"),
        "pax-size-negative.tar": corrupt(pax({b"size": b"-5"}) + SOUND, 1024, "PAX size"),
        "pax-size-nul.tar": corrupt(pax({b"size": b"5\0"}) + SOUND, 1024, "PAX size"),
        "pax-size-overflow.tar": corrupt(pax({b"size": b"9223372036854775808"}) + SOUND, 1024, "PAX size"),
        "pax-size-past-end.tar": truncated(pax({b"size": b"9223372036854775807"}) + SOUND, 1024, "'a.txt'"),
        "size-base256-negative.tar": corrupt(sized(b"\xff" * 12), 512, "not a size"),
        "size-base256-overflow.tar": corrupt(sized(b"\x80" + b"\x7f" * 11), 512, "not a size"),
        "size-base256-past-end.tar": truncated(sized(b"\x80\0\0\0\x7f" + b"\xff" * 7), 512, "'b.txt'"),
        "size-octal-bad.tar": corrupt(sized(b"00000000089\0"), 512, "not a size"),
        "size-octal-negative.tar": corrupt(sized(b"-0000000012\0"), 512, "not a size"),
        "size-octal-past-end.tar": truncated(sized(b"777777777777"), 512, "'b.txt'"),
        "sparse-oldgnu.tar": unsupported(SOUND[:1024] + member(b"s.bin", b"x", b"S", magic=GNU) + MARK, 1024, "sparse"),
        "sparse-pax-0.1.tar": unsupported(
            pax({b"GNU.sparse.size": b"9", b"GNU.sparse.map": b"0,1,9,0"}) + member(b"s.bin", b"x") + MARK,
            1024,
            "sparse",
        ),
        "sparse-pax-1.0.tar": unsupported(
            pax({b"GNU.sparse.major": b"1", b"GNU.sparse.minor": b"0", b"GNU.sparse.name": b"s.bin"})
            + member(b"GNUSparseFile.1/s.bin", b"1\n0\n1\n")
            + MARK,
            1024,
            "'s.bin'",
        ),
        "multi-volume-gnu.tar": unsupported(member(b"m.bin", b"rest", b"M", magic=V7) + MARK, 0, "multi-volume"),
        "multi-volume-pax.tar": unsupported(
            pax({b"GNU.volume.filename": b"m.bin", b"GNU.volume.size": b"4", b"GNU.volume.offset": b"9"}, b"g")
            + member(b"GNUFileParts/m.bin.2", b"rest")
            + MARK,
            1024,
            "'m.bin' at byte 1024 is multi-volume",
        ),
        "duplicate-member.tar": fails(
            member(b"a.txt", b"1") + member(b"a.json", b"2") + member(b"a.txt", b"3") + MARK,
            "DuplicateMemberError",
            2560,
            "'.txt'",
        ),
        "pax-global-path.tar": holds(
            pax({b"path": b"g.txt"}, b"g") + member(b"a.txt", b"1") + pax({b"path": b"x.txt"}) + member() + MARK,
            ("g.txt", 1536, 1),
            ("x.txt", 3584, 0),
        ),
        "pax-global-size.tar": holds(
            pax({b"size": b"5"}, b"g") + header(b"a.txt") + padded_five() + member(b"b.txt", b"67890") + MARK,
            ("a.txt", 1536, 5),
            ("b.txt", 2560, 5),
        ),
        "pax-hdrcharset-binary.tar": holds(
            pax({b"hdrcharset": b"BINARY", b"path": b"\xe9.txt"}) + member(b"_.txt", b"1") + MARK,
            ("\udce9.txt", 1536, 1),
        ),
        "prefix-without-magic.tar": holds(member(prefix=b"not a prefix", magic=V7) + MARK, ("a.txt", 512, 0)),
        "prefix-gnu.tar": holds(member(prefix=b"14700000000", magic=GNU) + MARK, ("a.txt", 512, 0)),
        "one-zero-block.tar": holds(SOUND, ("a.txt", 512, 5)),
        "junk-after-end.tar": holds(member() + END + b"junk" * 150, ("a.txt", 512, 0)),
        "zero-members.tar": holds(END),
    }


def padded_five():
    """One block that begins with five bytes of data."""
    return b"12345".ljust(BLOCK, b"\0")


def main():
    """Write the files and ``expected.json``."""
    corpus = make()
    for name, (data, _) in corpus.items():
        with open(os.path.join(HERE, name), "wb") as file:
            file.write(data)
    with open(os.path.join(HERE, "expected.json"), "w", encoding="ascii") as file:
        json.dump({name: expectation for name, (_, expectation) in corpus.items()}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()

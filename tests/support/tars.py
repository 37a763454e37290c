"""Tar archives for tests: byte by byte, by stdlib tarfile, and what tarfile finds in them."""

import io
import tarfile
from array import array
from contextlib import suppress
from itertools import accumulate

from wids.core.files.identity import Identity
from wids.core.tables import pack_format
from wids.core.tables.keys import first_dot
from wids.core.tables.table import SUFFIX, MemberTable, build_table
from wids.core.tables.tar import scan
from wids.errors import TarError

BLOCK = 512
END = bytes(2 * BLOCK)
USTAR, GNU, V7, STAR = b"ustar\x0000", b"ustar  \0", bytes(8), b"ustar\x0000"


def padded(data):
    """Data filled up with zeros to a whole number of blocks."""
    return data + bytes(-len(data) % BLOCK)


def header(
    name=b"a.txt", size=0, kind=b"0", *, magic=USTAR, link=b"", prefix=b"", size_field=None, tail=b"", checksum=None
):
    """One header block.

    ``name``, ``link`` and ``prefix`` are cut to their fields; ``size_field`` (12 bytes) is written in place of
    ``size``; ``tail`` is what stands at the end of the block, such as star's magic; ``checksum`` is the 8 bytes of that
    field, or a function block -> 8 bytes, and right by default.
    """
    fields = [
        name[:100].ljust(100, b"\0"),
        *(b"0000644\0", b"0001750\0", b"0001750\0"),
        size_field or b"%011o\0" % size,
        b"14700000000\0",
        b" " * 8,
        kind,
        link[:100].ljust(100, b"\0"),
        magic,
        b"user".ljust(32, b"\0"),
        b"group".ljust(32, b"\0"),
        *(b"0000000\0", b"0000000\0"),
        prefix[:155].ljust(155, b"\0"),
    ]
    block = bytearray(b"".join(fields).ljust(BLOCK, b"\0"))
    if tail:
        block[BLOCK - len(tail) :] = tail
    right = b"%06o\0 " % sum(block)
    block[148:156] = checksum(bytes(block)) if callable(checksum) else checksum or right
    return bytes(block)


def member(name=b"a.txt", data=b"", kind=b"0", **options):
    """A header and its data."""
    return header(name, len(data), kind, **options) + padded(data)


def record(key, value):
    """One PAX record; its length counts itself."""
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest)
    while len(b"%d" % length) + len(rest) != length:
        length = len(b"%d" % length) + len(rest)
    return b"%d" % length + rest


def pax(records, kind=b"x"):
    """A PAX header of these records (a dict, or the body as bytes)."""
    body = records if isinstance(records, bytes) else b"".join(record(*item) for item in records.items())
    return member(b"PaxHeaders/x", body, kind)


def long_name(name):
    """GNU tar's header for a long name."""
    return member(b"././@LongLink", name + b"\0", b"L", magic=GNU)


def written(entries, form, **options):
    """(archive, offset of its end marker) of ``(TarInfo, data)`` pairs, as tarfile writes it."""
    stream = io.BytesIO()
    with tarfile.open(
        fileobj=stream, mode="w", format=form, encoding="utf-8", errors="surrogateescape", **options
    ) as archive:
        for info, data in entries:
            archive.addfile(info, io.BytesIO(data))
        end = archive.offset
    return stream.getvalue(), end


def files(contents, form=tarfile.PAX_FORMAT):
    """The archive of a dict name -> data, as tarfile writes it."""
    entries = []
    for name, data in contents.items():
        info = tarfile.TarInfo(name)
        info.size = len(data)
        entries.append((info, data))
    return written(entries, form)[0]


def reader(data):
    """A ``read(offset, n)`` of these bytes that holds its caller to the contract."""

    def read(offset, n):
        assert 0 <= offset <= len(data) + BLOCK
        assert 0 <= n <= 16 << 20
        return data[offset : offset + n]

    return read


def scanned(data, shard="s.tar"):
    """The members that wids finds."""
    return list(scan(reader(data), len(data), shard=shard))


def table_of(data, shard="s.tar"):
    """The member table of an archive."""
    return build_table(scanned(data, shard), identity=Identity(size=len(data)), shard=shard)


def lying_table(data, order, shard="s.tar"):
    """The member table of an archive with its samples in another order; sizes, headers and checksum are right."""
    found = table_of(data, shard)
    spans = [range(found.starts[row], found.starts[row + 1]) for row in order]
    members = [m for span in spans for m in span]
    keys = [found.key(row).encode("utf-8", "surrogateescape") for row in order]
    parts = found.offsets, found.sizes, found.extension_ids
    columns = [array(code, [column[m] for m in members]) for code, column in zip("QQI", parts, strict=True)]
    starts = array("I", accumulate(map(len, spans), initial=0))
    ends = array("Q", accumulate(map(len, keys), initial=0))
    return MemberTable(
        identity=found.identity,
        columns=[memoryview(column) for column in (*columns, starts, ends)],
        extensions=found.extensions,
        keys=b"".join(keys),
        nrepeated=0,
    )


def publish(server, path, data=None):
    """Put the member table of a shard beside it: its own, or that of other bytes."""
    server.add(path + SUFFIX, table_of(server.files[path] if data is None else data).to_bytes())


def pack_of(tables, place):
    """The pack at ``place`` of member tables (URL of a shard -> the table's bytes)."""
    names = [pack_format.name_in(place, url) for url in tables]
    head = pack_format.pack_head(names, [len(data) for data in tables.values()], url=place)
    return head + b"".join(data + bytes(-len(data) % 8) for data in tables.values())


def publish_pack(server, path, shards):
    """Put the pack of some shards' member tables on a server; the pack's URL.

    Args:
        server: has the shards.
        path: of the pack.
        shards: path of a shard -> the bytes that its table is of; None: its own.
    """
    url = server.url + path
    tables = {
        server.url + name: table_of(server.files[name] if data is None else data).to_bytes()
        for name, data in shards.items()
    }
    return server.add(path, pack_of(tables, url))


def attempted(data, size=None):
    """(the members that wids finds before an error, the error or None); ``size``: what the file claims to be long."""
    found = []
    members = scan(reader(data), len(data) if size is None else size, shard="s.tar")
    while True:
        try:
            found.append(next(members))
        except StopIteration:
            return found, None
        except TarError as error:
            return found, error


def expected(stream):
    """The members that tarfile finds in an archive (bytes, or an open file), as `scan` would yield them.

    Hard links are the files that they lead to. The members end where `refused` says.
    """
    return _oracle(stream)[0]


def refused(stream):
    """Header offset of the first member that tarfile finds, that a sample would have, and that is no file; or None."""
    return _oracle(stream)[1]


def _oracle(stream):
    stream = io.BytesIO(stream) if isinstance(stream, bytes) else stream
    found = []
    with tarfile.open(fileobj=stream, mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
        for info in archive.getmembers():
            name, header_at, file = info.name.encode("utf-8", "surrogateescape"), info.offset_data - BLOCK, info
            while file is not None and file.islnk():
                with suppress(KeyError):
                    file = archive._find_link_target(file)
                    continue
                file = None
            if file is not None and file.isreg():
                found.append((name, header_at, file.offset_data, file.size))
            elif info.type not in (tarfile.REGTYPE, tarfile.DIRTYPE, b"V", b"D", b"N", b"A") and first_dot(name):
                return found, header_at
    return found, None

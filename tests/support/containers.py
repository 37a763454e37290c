"""Files of `wids.core.files.container` taken apart and put together by the text of its format, not by its code."""

import json
import operator
import re
import struct
from zlib import crc32

_WIDTHS = {"u1": 1, "u4": 4, "u8": 8, "i8": 8}
_CODES = {"u1": "B", "u4": "I", "u8": "Q", "i8": "q"}
START = 32


class Parts:
    """A file in parts, which a test changes: ``columns[name]`` is a list of numbers, ``head`` the JSON."""

    def __init__(self, data):
        data = bytes(data)
        self.magic, self.kind, self.version, length = struct.unpack_from("<8s8sII", data)
        at = START + length
        self.head = json.loads(data[START:at])
        self.columns = {}
        for name, kind, count in self.head["sections"]:
            self.columns[name] = list(struct.unpack_from(f"<{count}{_CODES[kind]}", data, at))
            at += count * _WIDTHS[kind] + -count * _WIDTHS[kind] % 8
        self.tail = data[at:]

    @property
    def facts(self):
        """What the header says, beside its sections."""
        return self.head["facts"]

    def start_of(self, name):
        """Where a section begins."""
        at = START + len(self._head())
        for each, kind, count in self.head["sections"]:
            if each == name:
                return at
            at += count * _WIDTHS[kind] + -count * _WIDTHS[kind] % 8
        raise KeyError(name)

    def _head(self):
        text = json.dumps(self.head, separators=(",", ":")).encode()
        return text + b" " * (-len(text) % 8)

    def sealed(self, *, counts=True):
        """The file with checksums that are right; ``counts``: the header has the columns' lengths."""
        body = b""
        for row in self.head["sections"]:
            name, kind, _ = row
            if counts:
                row[2] = len(self.columns[name])
            bits = 8 * _WIDTHS[kind]
            numbers = [value % (1 << bits) for value in self.columns[name]]
            data = struct.pack(f"<{len(numbers)}{_CODES[kind].upper()}", *numbers)
            body += data + bytes(-len(data) % 8)
        if counts:
            self.head["tail"] = len(self.tail)
        head = self._head()
        start = struct.pack("<8s8sII", self.magic, self.kind, self.version, len(head))
        below = struct.pack("<I", crc32(body))
        return start + struct.pack("<I", crc32(head, crc32(below, crc32(start[8:])))) + below + head + body + self.tail


# What a text may have in the place of a number or of a word.
_ABSURD = (
    *(b"-1", b"0", b"1", b"255", b"4294967296", b"9223372036854775807", b"9223372036854775808"),
    *(b"18446744073709551616", b"-9223372036854775809", b"1" + b"0" * 30, b"1" * 5000),
    *(b"1e308", b"1e999", b"-0.0", b"0.5", b"NaN", b"-Infinity"),
    *(b"null", b"true", b"[]", b"{}", b'""', b'"x"', b'"\xff"', b'"\\ud800"', b'"\\u0000"', b"[" * 300 + b"]" * 300),
    *(b'{"a":1,"a":2}', b"[[]]", b"[null]", b'[["offsets","u8",1]]', b'"\xf4\x90\x80\x80"', b'"../../etc"'),
)
_PIECES = (
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\0",
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\\ud800",
    b"\x1b[",
)
_VALUE = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?|true|false|null')
_EDGES = (0, 1, 7, 8, 255, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 53, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


def mutate(draws, text):
    """A text with one thing in it changed: a byte, a piece put in, taken out or repeated, a value that is absurd."""
    at, to = sorted(draws.randrange(len(text) + 1) for _ in range(2))
    to = min(to, at + 40)
    how = draws.randrange(7)
    if how == 0 and at < len(text):
        return text[:at] + bytes([draws.randrange(256)]) + text[at + 1 :]
    if how == 1:
        return text[:at] + draws.choice(_PIECES) + text[at:]
    if how == 2:
        return text[:at] + text[to:]
    if how == 3:
        return text[:to] + text[at:to] + text[to:]
    values = list(_VALUE.finditer(text))
    if not values:
        return text[:at]
    found = draws.choice(values)
    return text[: found.start()] + draws.choice(_ABSURD) + text[found.end() :]


def mutate_sealed(draws, data):
    """A container with one to three things changed in its header, its sections or its tail, under right checksums."""
    start = START + struct.unpack_from("<I", data, 20)[0]
    head, body = data[START:start], bytearray(data[start:])
    for _ in range(draws.choice((1, 1, 1, 2, 3))):
        if draws.random() < 0.6 or not body:
            head = mutate(draws, head.rstrip(b" "))
            head += b" " * (-len(head) % 8)
        elif draws.random() < 0.5:
            body[draws.randrange(len(body))] = draws.randrange(256)
        else:
            struct.pack_into("<Q", body, draws.randrange(len(body) // 8) * 8, draws.choice(_EDGES))
    return seal(data[:START], head, bytes(body))


def mangled(data):
    """A container with a byte that is no UTF-8 in the name of its first section, under right checksums."""
    start = START + struct.unpack_from("<I", data, 20)[0]
    head = data[START:start].rstrip(b" ").replace(b'[["', b'[["\xff', 1)
    return seal(data[:START], head + b" " * (-len(head) % 8), data[start:])


def seal(start, head, body):
    """A container of these parts, with checksums that are right for the sections in its header, or all of the body."""
    try:
        sections = json.loads(head)["sections"]
        lengths = [count * _WIDTHS[kind] + -count * _WIDTHS[kind] % 8 for _, kind, count in sections]
        size = max(operator.index(sum(lengths)), 0)
    except Exception:
        size = len(body)
    below = struct.pack("<I", crc32(body[:size]))
    start = start[:20] + struct.pack("<I", len(head))
    return start + struct.pack("<I", crc32(head, crc32(below, crc32(start[8:])))) + below + head + body

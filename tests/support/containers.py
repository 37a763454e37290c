"""Files of `wids.files.container` taken apart and put together by the text of its format, not by its code."""

import json
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

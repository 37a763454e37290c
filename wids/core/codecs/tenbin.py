"""Arrays in webdataset's ``.ten``: 64-byte blocks of little-endian numbers.

Each array is two chunks, a header and its values. A chunk is ``~TenBin~``, its length in bytes (int64), its bytes,
and zeros up to a multiple of 64. A header is int64s: the type (text of 8 bytes, ``f4``), a name of 8 bytes, the number
of dimensions, and these. Names are passed over, as webdataset does.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np

MAGIC = b"~TenBin~"
_TYPES = frozenset({"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"})
_BLOCK = 64


def decode(data: bytes) -> list[np.ndarray[Any, Any]]:
    """The arrays, writable and the caller's own.

    Raises:
        ValueError: the bytes are not of this format, or less than they say.
    """
    import numpy as np

    chunks = list(_chunks(data))
    if len(chunks) % 2:
        raise ValueError("its last array has a header and no values")
    arrays = []
    for header, values in zip(chunks[::2], chunks[1::2], strict=True):
        kind, shape = _read_header(header)
        dtype = np.dtype(f"<{kind}")
        if math.prod(shape) * dtype.itemsize != len(values):
            raise ValueError(f"an array of shape {shape} of {kind} has {len(values)} bytes")
        arrays.append(np.frombuffer(values, dtype).reshape(shape).copy())
    return arrays


def _chunks(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        if data[at : at + 8] != MAGIC or len(data) < at + 16:
            raise ValueError(f"there is no chunk at byte {at}")
        size = int.from_bytes(data[at + 8 : at + 16], "little", signed=True)
        at += 16
        if not 0 <= size <= len(data) - at:
            raise ValueError(f"a chunk of {size} bytes begins at byte {at} of {len(data)}")
        yield data[at : at + size]
        at += -(-size // _BLOCK) * _BLOCK


def _read_header(header: bytes) -> tuple[str, tuple[int, ...]]:
    if len(header) < 24 or len(header) % 8:
        raise ValueError(f"a header of {len(header)} bytes")
    kind = header[:8].rstrip(b"\0").decode("ascii", "replace")
    count, *shape = struct.unpack(f"<{len(header) // 8 - 2}q", header[16:])
    if kind not in _TYPES:
        raise ValueError(f"unknown type {kind!r}")
    if count != len(shape) or min(shape, default=0) < 0:
        raise ValueError(f"a shape of {count} dimensions, which is {tuple(shape)}")
    return kind, tuple(shape)


def encode(arrays: Sequence[np.ndarray[Any, Any]]) -> bytes:
    """The inverse of `decode`.

    Raises:
        ValueError: an array is of a type that the format lacks, such as bool.
    """
    parts = []
    for array in arrays:
        kind = array.dtype.str[1:]
        if kind not in _TYPES:
            raise ValueError(f"the format has no {array.dtype}")
        little = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
        header = kind.encode().ljust(8, b"\0") + bytes(8) + struct.pack(f"<{1 + array.ndim}q", array.ndim, *array.shape)
        for chunk in (header, little.tobytes()):
            parts += [MAGIC, struct.pack("<q", len(chunk)), chunk, bytes(-len(chunk) % _BLOCK)]
    return b"".join(parts)

"""Reading samples out of one open shard.

Rules: ``os.pread`` only. It has no position, so threads and forked workers share a descriptor; and on a file that
someone truncates it comes up short, where a memory map would kill the process with SIGBUS. Measured on page-cached
shards it costs 0.3 us more than a map for each read, which reading the members of a small sample in one go wins back.
The descriptor closes when the last user lets go of the reader, so one thread's eviction cannot pull it from under
another's read.
"""

from __future__ import annotations

import os
from io import BytesIO
from typing import TYPE_CHECKING, Any

from wids.errors import ChangedShardError, TruncatedShardError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wids.index.table import MemberTable

# Members of a sample that lie within this many bytes are read in one go.
SPAN_BYTES = 16 << 10
# Samples of a batch are read together up to RUN_BYTES, over gaps up to GAP_BYTES: copying those costs less than a call.
GAP_BYTES, RUN_BYTES = 4 << 10, 64 << 10


class ShardReader:
    """One open shard: ``reader[row]`` is a sample as a dict of extension -> ``io.BytesIO``, plus ``__key__``.

    Attributes:
        url: the shard's resolved URL.
        path: the local file that is read.
        table: its member table.
    """

    __slots__ = ("_ends", "_fd", "_ids", "_names", "_offsets", "_sizes", "_starts", "path", "table", "url")

    def __init__(self, fd: int, *, table: MemberTable, url: str, path: str) -> None:
        """Take ownership of the open descriptor ``fd``."""
        self._fd = fd
        self.url = url
        self.path = path
        self.table = table
        self._starts, self._offsets, self._sizes = table.starts, table.offsets, table.sizes
        self._ids, self._names = table.extension_ids, table.extensions

    def __len__(self) -> int:
        return self.table.nsamples

    def __repr__(self) -> str:
        return f"<ShardReader {self.path} of {len(self)} samples>"

    def __getitem__(self, row: int) -> dict[str, Any]:
        if not 0 <= row < len(self):
            raise IndexError(f"sample {row} of {len(self)} in {self.path}")
        return self.read(row)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self.read, range(len(self)))

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor now; later reads raise. Only for the sole owner of a reader."""
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            os.close(fd)

    def read(self, row: int) -> dict[str, Any]:
        """Sample ``row`` (0 <= row < len), all members."""
        starts = self._starts
        first, end = starts[row], starts[row + 1]
        offsets, sizes = self._offsets, self._sizes
        lo = offsets[first]
        length = offsets[end - 1] + sizes[end - 1] - lo
        if length > SPAN_BYTES:
            return self._read_apart(row, range(first, end))
        data = os.pread(self._fd, length, lo)
        if len(data) != length:
            self._raise_short(lo, length)
        return self.slice(data, lo, row)

    def read_many(self, rows: Sequence[int], fields: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """The samples at ascending ``rows``; those that lie close together come in one read."""
        if fields is not None:
            return [self.read_fields(row, fields) for row in rows]
        samples: list[dict[str, Any]] = []
        at = 0
        while at < len(rows):
            lo, hi = self.span(rows[at])
            first, limit = at, lo + RUN_BYTES
            at += 1
            while at < len(rows):
                next_lo, next_hi = self.span(rows[at])
                if next_lo > hi + GAP_BYTES or next_hi > limit:
                    break
                hi = max(hi, next_hi)
                at += 1
            if at == first + 1:
                samples.append(self.read(rows[first]))
                continue
            data = self.pread(lo, hi - lo)
            samples.extend([self.slice(data, lo, row) for row in rows[first:at]])
        return samples

    def slice(self, data: bytes, base: int, row: int) -> dict[str, Any]:
        """Sample ``row`` out of ``data``, the shard's bytes from offset ``base`` on."""
        starts, offsets, sizes, ids, names = self._starts, self._offsets, self._sizes, self._ids, self._names
        sample: dict[str, Any] = {}
        for m in range(starts[row], starts[row + 1]):
            at = offsets[m] - base
            sample[names[ids[m]]] = BytesIO(data[at : at + sizes[m]])
        sample["__key__"] = self.table.key(row)
        return sample

    def span(self, row: int) -> tuple[int, int]:
        """Byte range ``[lo, hi)`` from the first member's data to the end of the last one's."""
        end = self._starts[row + 1] - 1
        return self._offsets[self._starts[row]], self._offsets[end] + self._sizes[end]

    def read_fields(self, row: int, fields: Sequence[str]) -> dict[str, Any]:
        """Sample ``row``, only the members whose extension is in ``fields``; no other byte is touched."""
        names, ids = self._names, self._ids
        wanted = [m for m in range(self._starts[row], self._starts[row + 1]) if names[ids[m]] in fields]
        return self._read_apart(row, wanted)

    def pread(self, offset: int, size: int) -> bytes:
        """``size`` bytes of the shard from ``offset``.

        Raises:
            TruncatedShardError: the file has become shorter than its member table says.
        """
        data = os.pread(self._fd, size, offset)
        if len(data) != size:
            data += self._read_rest(offset + len(data), size - len(data))
        return data

    def _read_apart(self, row: int, members: Sequence[int]) -> dict[str, Any]:
        sample: dict[str, Any] = {}
        for m in members:
            sample[self._names[self._ids[m]]] = BytesIO(self.pread(self._offsets[m], self._sizes[m]))
        sample["__key__"] = self.table.key(row)
        return sample

    def _read_rest(self, offset: int, size: int) -> bytes:
        """A read came up short: past 2 GiB the kernel returns less than asked; else the file was cut."""
        parts = []
        while size:
            part = os.pread(self._fd, size, offset)
            if not part:
                self._raise_short(offset, size)
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return b"".join(parts)

    def _raise_short(self, offset: int, size: int) -> None:
        found = os.fstat(self._fd).st_size
        expected = self.table.identity.size
        if found == expected:
            raise ChangedShardError(
                f"{self.url}: reading {size} bytes at byte {offset} of {self.path} came up short; it changed under "
                "this reader. Restart with shards that stay as they are",
                shard=self.url,
                offset=offset,
            )
        raise TruncatedShardError(
            f"{self.url}: {self.path} was {expected} bytes long when it was opened and has {found} now; reading "
            f"{size} bytes at byte {offset} came up short. Write or fetch the shard again",
            shard=self.url,
            offset=offset,
            expected=expected,
            found=found,
        )

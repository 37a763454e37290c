"""Reading samples out of one open shard.

Rules: ``os.pread``, unless the user asks for a memory map. It has no position, so threads and forked workers share a
descriptor; and on a file that someone truncates, or a network file system that fails, it comes up short or raises,
where a map kills the process with SIGBUS. A map copies large members two to three times as fast; it is checked against
the file's size before each read, which leaves a window of microseconds. The descriptor closes when the last user lets
go of the reader, so one thread's eviction cannot pull it from under another's read.

A call costs more than a small sample's bytes. So where small samples are read close together (a shuffled chunk), whole
blocks are read ahead into memory; where they are not, nothing is (see `Blocks`).
"""

from __future__ import annotations

import itertools
import mmap
import os
from contextlib import suppress
from io import BytesIO
from typing import TYPE_CHECKING, Any, NoReturn

from wids.errors import ChangedShardError, ShardError, TarError, TruncatedShardError
from wids.events import logger
from wids.index.keys import encode_name
from wids.osfiles import atomic, system
from wids.readers import member_tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wids.index.table import MemberTable

# A sample whose members lie within this many bytes is read in one go; others member by member.
SPAN_BYTES = 16 << 10
BLOCK_SHIFT = 19
BLOCK_BYTES = 1 << BLOCK_SHIFT
# A block costs as much to read as some 60 samples. It is read once it had this many; a block of small samples has
# hundreds more, and one that does not get there within _MEMORY_READS reads was not worth it.
_WORTH_READS, _MEMORY_READS = 8, 512
_MAX_BLOCKS = 64
_TAG_SHIFT = 44

_tags = itertools.count()


class Blocks:
    """Blocks of shards read ahead, at most 64 of 512 KiB, oldest out first; shared by the readers of one process.

    Attributes:
        kept: reader tag + block number -> the block's bytes and `SPAN_BYTES` more, so that each small sample that
            begins in it is whole.
    """

    __slots__ = ("_counts", "_reads", "kept")

    def __init__(self) -> None:
        self.kept: dict[int, bytes] = {}
        self._counts: dict[int, int] = {}
        self._reads = 0

    def read(self, reader: ShardReader, lo: int, hi: int) -> tuple[bytes, int]:
        """Bytes that hold ``lo .. hi`` of a shard, and the offset at which they begin: just those, or their block."""
        number = reader.tag + (lo >> BLOCK_SHIFT)
        counts = self._counts
        self._reads += 1
        if self._reads > _MEMORY_READS:
            self._reads = 0
            counts.clear()
        count = counts.get(number, 0) + 1
        if count < _WORTH_READS:
            counts[number] = count
            return reader.pread(lo, hi - lo), lo
        counts.pop(number, None)
        base = lo & -BLOCK_BYTES
        with suppress(KeyError, StopIteration, RuntimeError):  # another thread is making room too
            # Room first: the allocator then hands the old block's pages out again, already faulted in.
            while len(self.kept) >= _MAX_BLOCKS:
                del self.kept[next(iter(self.kept))]
        block = reader.read_ahead(base, min(BLOCK_BYTES + SPAN_BYTES, reader.table.identity.size - base))
        if block is None:
            return reader.pread(lo, hi - lo), lo
        self.kept[number] = block
        return block, base


class Reader:
    """One open shard: ``reader[row]`` is a sample as a dict of extension -> ``io.BytesIO``, plus ``__key__``.

    Attributes:
        url: the shard's resolved URL.
        path: the local file that is read, or the URL.
        table: its member table.
        is_leased: its file is in the cache, and stays there as long as it is open.
        used: the pool's note of when it was used last, a count.
    """

    __slots__ = ("used",)

    if TYPE_CHECKING:
        url: str
        path: str
        table: MemberTable
        is_leased: bool
        used: int

    def __len__(self) -> int:
        return self.table.nsamples

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path} of {len(self)} samples>"

    def __getitem__(self, row: int) -> dict[str, Any]:
        if not 0 <= row < len(self):
            raise IndexError(f"sample {row} of {len(self)} in {self.path}")
        return self.read(row)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self.read, range(len(self)))

    def read(self, row: int) -> dict[str, Any]:
        """Sample ``row`` (0 <= row < len), all members."""
        raise NotImplementedError

    def read_fields(self, row: int, fields: Sequence[str]) -> dict[str, Any]:
        """Sample ``row``, only the members whose extension is in ``fields``; no other byte is touched."""
        raise NotImplementedError

    def read_into(
        self,
        samples: list[Any],
        places: Sequence[int],
        indices: Sequence[int],
        first_index: int,
        name: str | None,
        fields: Sequence[str] | None = None,
    ) -> None:
        """Set ``samples[p]`` for each ``p`` in ``places`` to the sample of ``indices[p]``.

        Args:
            samples: filled in.
            places: in ascending order of their indices, so that the file is read forwards.
            indices: dataset indices, all in this shard.
            first_index: of this shard's first sample.
            name: the sub-dataset's, for ``__dataset__``.
            fields: as in `read_fields`; None reads whole samples.
        """
        raise NotImplementedError

    def share(self, blocks: Blocks) -> None:
        """Use ``blocks`` from here on, if it reads ahead."""

    def settle(self) -> None:
        """It is where a forked child lets go of it."""

    def close(self) -> None:
        """Give back what is held. Only for the sole owner of a reader."""
        raise NotImplementedError


class ShardReader(Reader):
    """The reader of a local file.

    Attributes:
        tag: sets this reader's blocks apart.
    """

    __slots__ = ("_blocks", "_fd", "_hot", "_map", "_mtime_ns", "is_leased", "path", "table", "tag", "url")

    def __init__(self, fd: int, *, table: MemberTable, url: str, path: str, is_leased: bool = False) -> None:
        """Take ownership of the open descriptor ``fd``."""
        self._fd = fd
        self.is_leased = is_leased
        self._map: mmap.mmap | None = None
        known = table.identity.mtime_ns
        self._mtime_ns = os.fstat(fd).st_mtime_ns if known is None else known
        self.url = url
        self.path = path
        self.table = table
        self.tag = next(_tags) << _TAG_SHIFT
        self.share(Blocks())

    def map_file(self) -> None:
        """Read through a memory map from here on; see the module's rules for its price.

        Raises:
            TruncatedShardError: the file has become shorter than its member table says.
        """
        size = self.table.identity.size
        try:
            self._map = mmap.mmap(self._fd, size, access=mmap.ACCESS_READ)
        except ValueError:
            self._raise_short(0, size)
        except OSError as error:  # not every file system has maps, and address space has its bound
            logger.debug("%s: read without a memory map (%s)", self.path, error)

    def share(self, blocks: Blocks) -> None:
        """Use ``blocks`` from here on."""
        table = self.table
        self._blocks = blocks
        # One attribute look-up a sample instead of nine.
        self._hot = (
            blocks.kept,
            self.tag,
            table.starts,
            table.offsets,
            table.sizes,
            table.extension_ids,
            table.extensions,
            table.key_ends,
            table.key_text,
        )

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        # A copy would hold the same descriptor, and whichever went first would close it under the other.
        raise TypeError("an open shard can be neither copied nor pickled; copy the dataset, which opens its own")

    def close(self) -> None:
        """Close the descriptor now; later reads of the file raise ShardError. Only for the sole owner of a reader."""
        fd, self._fd = getattr(self, "_fd", -1), -1
        self._map = None  # it lives as long as a read that is under way
        if fd >= 0:
            atomic.close(fd)

    def settle(self) -> None:
        """It is where a forked child lets go of it."""
        atomic.hand_over(self._fd)

    def read(self, row: int) -> dict[str, Any]:
        """Sample ``row`` (0 <= row < len), all members."""
        kept, tag, starts, offsets, sizes, ids, names, ends, text = self._hot
        first, end = starts[row], starts[row + 1]
        lo = offsets[first]
        hi = offsets[end - 1] + sizes[end - 1]
        if hi - lo > SPAN_BYTES:
            return self._read_apart(row, range(first, end))
        data = kept.get(tag + (lo >> BLOCK_SHIFT))
        if data is None:
            data, base = self._blocks.read(self, lo, hi)
        else:
            base = lo & -BLOCK_BYTES
        sample: dict[str, Any] = {}
        for m in range(first, end):
            at = offsets[m] - base
            sample[names[ids[m]]] = BytesIO(data[at : at + sizes[m]])
        key = text[ends[row] : ends[row + 1]]
        sample["__key__"] = key if isinstance(key, str) else key.decode("utf-8", "surrogateescape")
        return sample

    def read_into(
        self,
        samples: list[Any],
        places: Sequence[int],
        indices: Sequence[int],
        first_index: int,
        name: str | None,
        fields: Sequence[str] | None = None,
    ) -> None:
        """See `Reader.read_into`.

        The loop is `read` written out, with what the dataset adds to a sample: at 200 bytes a sample, the calls and
        look-ups that it saves are a third of the time.
        """
        kept, tag, starts, offsets, sizes, ids, names, ends, text = self._hot
        url, is_text = self.url, isinstance(text, str)
        together = SPAN_BYTES if fields is None else -1  # no sample is that short: each goes the way of the large ones
        top = 0  # the block in ``data`` holds the small samples that begin below this offset
        for place in places:
            index = indices[place]
            row = index - first_index
            first, end = starts[row], starts[row + 1]
            lo = offsets[first]
            hi = offsets[end - 1] + sizes[end - 1]
            if hi - lo > together:
                sample = self._read_apart(row, range(first, end)) if fields is None else self.read_fields(row, fields)
            else:
                if lo >= top:
                    block = kept.get(tag + (lo >> BLOCK_SHIFT))
                    if block is None:
                        data, base = self._blocks.read(self, lo, hi)
                    else:
                        data, base = block, lo & -BLOCK_BYTES
                        top = base + BLOCK_BYTES
                sample = {}
                for m in range(first, end):
                    at = offsets[m] - base
                    sample[names[ids[m]]] = BytesIO(data[at : at + sizes[m]])
                key: Any = text[ends[row] : ends[row + 1]]
                sample["__key__"] = key if is_text else key.decode("utf-8", "surrogateescape")
            sample["__dataset__"] = name
            sample["__index__"] = index
            sample["__shard__"] = url
            sample["__shardindex__"] = row
            samples[place] = sample

    def read_fields(self, row: int, fields: Sequence[str]) -> dict[str, Any]:
        """Sample ``row``, only the members whose extension is in ``fields``; no other byte is touched."""
        _, _, starts, _, _, ids, names, _, _ = self._hot
        return self._read_apart(row, [m for m in range(starts[row], starts[row + 1]) if names[ids[m]] in fields])

    def pread(self, offset: int, size: int) -> bytes:
        """``size`` bytes of the shard from ``offset``.

        Raises:
            TruncatedShardError: the file has become shorter than its member table says.
            ChangedShardError: it was written to, and its members are not where they were.
            ShardError: it cannot be read, or this reader is closed.
        """
        try:
            mapped = self._map
            if mapped is not None:
                if os.lseek(self._fd, 0, os.SEEK_END) < self.table.identity.size:
                    self._raise_short(offset, size)
                return mapped[offset : offset + size]
            data = system.pread(self._fd, size, offset)
            if len(data) != size:
                data += self._read_rest(offset + len(data), size - len(data))
            # After the read: what was written before it shows. Without this, members that someone moved within the
            # file would be read as one another.
            if os.fstat(self._fd).st_mtime_ns != self._mtime_ns:
                self._check_layout()
        except OSError as error:
            raise ShardError(
                f"{self.url}: {size} bytes at byte {offset} of {self.path} cannot be read ({error})",
                shard=self.url,
                offset=offset,
            ) from error
        return data

    def read_ahead(self, offset: int, size: int) -> bytes | None:
        """As `pread`; None where some of it cannot be read, which is no error as long as nobody asks for just that."""
        try:
            return self.pread(offset, size)
        except ShardError:
            return None

    def _read_apart(self, row: int, members: Sequence[int]) -> dict[str, Any]:
        table = self.table
        names, ids, offsets, sizes = table.extensions, table.extension_ids, table.offsets, table.sizes
        sample: dict[str, Any] = {}
        for m in members:
            sample[names[ids[m]]] = BytesIO(self.pread(offsets[m], sizes[m]))
        sample["__key__"] = table.key(row)
        return sample

    def _check_layout(self) -> None:
        """The file's modification time is another one: go on if each member is still where the table says.

        It may just have been touched, which saves files from being purged and must not end a training.
        """
        status = os.fstat(self._fd)
        table = self.table
        try:
            members = member_tables.scan_members(self._fd, self.url, status.st_size)
            found = {offset: (name, size) for name, _, offset, size in members}
            is_same = all(
                found.get(offset) == (encode_name(table.key(row) + extension), size)
                for row in range(table.nsamples)
                for extension, offset, size in table.members(row)
            )
        except TarError as error:
            if status.st_size < table.identity.size:
                self._raise_short(0, table.identity.size)
            logger.debug("%s", error)
            is_same = False
        if not is_same:
            raise ChangedShardError(
                f"{self.url}: {self.path} was written to after it was opened, and its members are not where they were. "
                "Write or fetch the shard again, and restart",
                shard=self.url,
            )
        self._mtime_ns = status.st_mtime_ns

    def _read_rest(self, offset: int, size: int) -> bytes:
        """A read came up short: past 2 GiB the kernel returns less than asked; else the file was cut."""
        parts = []
        while size:
            part = system.pread(self._fd, size, offset)
            if not part:
                self._raise_short(offset, size)
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return b"".join(parts)

    def _raise_short(self, offset: int, size: int) -> NoReturn:
        found, expected = os.fstat(self._fd).st_size, self.table.identity.size
        error = ChangedShardError if found >= expected else TruncatedShardError
        raise error(
            f"{self.url}: reading {size} bytes at byte {offset} of {self.path} came up short: the file had {expected} "
            f"bytes when it was opened and has {found} now. Write or fetch the shard again, and restart",
            shard=self.url,
            offset=offset,
            expected=expected,
            found=found,
        )

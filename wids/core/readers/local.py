"""Reading samples out of one open local shard.

Rules: ``os.pread``, unless the user asks for a memory map. It has no position, so threads and forked workers share a
descriptor; and on a file that someone truncates, or a network file system that fails, it comes up short or raises,
where a map kills the process with SIGBUS. A map copies large members two to three times as fast; it is checked against
the file's size before each read, which leaves a window of microseconds. How one thread closes what another reads:
`wids.core.files.open_file`.

A call costs more than a small sample's bytes. So where small samples are read close together (a shuffled chunk), whole
blocks are read ahead into memory; where they are not, nothing is (see `Blocks`).
"""

from __future__ import annotations

import itertools
import os
from contextlib import suppress
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from wids.core.cache.freshness import state_in
from wids.core.files import page_cache, system
from wids.core.files.open_file import ClosedFileError
from wids.core.readers.base import Reader
from wids.core.tables import member_tables
from wids.core.tables.keys import encode_name
from wids.errors import ChangedShardError, ClosedReaderError, ShardError, ShardReadError, TarError, TruncatedShardError
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wids.core.files.open_file import OpenFile
    from wids.core.readers.base import RowPart, Sample
    from wids.core.tables.fields import Wanted
    from wids.core.tables.table import MemberTable

_TAG_SHIFT = 44

_tags = itertools.count()


class BlockLimits(NamedTuple):
    """The size of blocks, and which are worth reading; the default is in force, and tests put another in its place.

    Attributes:
        span_bytes: a sample whose members are within so many bytes is read at once; others member by member.
        shift: a block has two to this power bytes.
        worth_reads: a block is read once it had so many reads. It costs as much as about 60 samples; a block of small
            samples has hundreds of reads more.
        memory_reads: a block that did not get there within so many reads was not worth it.
        max_blocks: of the blocks in memory, a quarter is on the way out: the oldest. One that is read from on its way
            stays. With more in use than fit, reads of the others are small: blocks that replace each other would cost
            more than they save.
        max_age: a block is given up once so many reads found no block, and none that block.
    """

    span_bytes: int = 16 << 10
    shift: int = 19
    worth_reads: int = 8
    memory_reads: int = 512
    max_blocks: int = 128
    max_age: int = 100


LIMITS = BlockLimits()


class Blocks:
    """Blocks of shards read ahead, at most 128 of 512 KiB (64 MiB); shared by the readers of one process.

    Attributes:
        limits: those in force when this was made; its readers go by them.
        kept: reader tag + block number -> the block's bytes and ``span_bytes`` more, so that each small sample that
            begins in it is whole. Oldest first.
    """

    limits: BlockLimits
    __slots__ = ("_counts", "_leaving", "_reads", "kept", "limits")

    def __init__(self) -> None:
        self.limits = LIMITS
        self.kept: dict[int, bytes] = {}
        self._leaving: dict[int, tuple[bytes, int]] = {}  # each with `_reads` when it began to leave
        self._counts: dict[int, int] = {}
        self._reads = 0

    def read(self, reader: LocalReader, lo: int, hi: int) -> tuple[bytes, int]:
        """Bytes that hold ``lo .. hi`` of a shard, and the offset at which they begin: just those, or their block."""
        limits = self.limits
        number, base = reader.tag + (lo >> limits.shift), lo & -1 << limits.shift
        leaving = self._leaving.pop(number, None)
        if leaving is not None:
            self._keep(number, leaving[0])
            return leaving[0], base
        counts = self._counts
        self._reads += 1
        if self._reads % limits.memory_reads == 0:
            counts.clear()
        counts[number] = count = counts.get(number, 0) + 1
        if count < limits.worth_reads or not self._make_room():
            return reader.pread(lo, hi - lo), lo
        counts.pop(number, None)
        size = (1 << limits.shift) + limits.span_bytes
        block = reader.read_ahead(base, min(size, reader.table.identity.size - base))
        if block is None:
            return reader.pread(lo, hi - lo), lo
        self._keep(number, block)
        return block, base

    def _keep(self, number: int, block: bytes) -> None:
        self.kept[number] = block
        most = self.limits.max_blocks - max(self.limits.max_blocks // 4, 1)
        with suppress(KeyError, StopIteration, RuntimeError):  # another thread does this too
            while len(self.kept) > most:
                oldest = next(iter(self.kept))
                self._leaving[oldest] = self.kept.pop(oldest), self._reads

    def _make_room(self) -> bool:
        """Give a block up if need be, before another is read: its pages are then used again, already faulted in."""
        with suppress(KeyError, StopIteration, RuntimeError):  # as above
            while len(self.kept) + len(self._leaving) >= self.limits.max_blocks:
                oldest = next(iter(self._leaving))
                if self._reads - self._leaving[oldest][1] < self.limits.max_age:
                    return False
                del self._leaving[oldest]
        return True


class LocalReader(Reader):
    """The reader of a local file.

    Args:
        file: the open shard; this owns it.
        table: its member table.
        url: see `Reader`.
        path: see there.
        blocks: bytes read ahead are kept there; None: this reader has its own.
        use_mmap: read through a memory map; see the module's rules for its price.

    Attributes:
        tag: sets this reader's blocks apart.

    Raises:
        TruncatedShardError: the file has become shorter than its member table says.
    """

    tag: int
    _version: str | None
    __slots__ = ("_blocks", "_file", "_hot", "_mtime_ns", "_version", "path", "table", "tag", "url")

    url: str
    path: str
    table: MemberTable

    def __init__(
        self,
        file: OpenFile,
        *,
        table: MemberTable,
        url: str,
        path: str,
        blocks: Blocks | None = None,
        use_mmap: bool = False,
    ) -> None:
        self._file = file
        self.url = url
        self.path = path
        self.table = table
        known = table.identity.mtime_ns
        self._mtime_ns = os.fstat(file.fd).st_mtime_ns if known is None else known
        self._version = None
        self.tag = next(_tags) << _TAG_SHIFT
        self._blocks = Blocks() if blocks is None else blocks
        # One attribute look-up a sample instead of twelve.
        self._hot = (
            self._blocks.kept,
            self.tag,
            table.starts,
            table.offsets,
            table.sizes,
            table.extension_ids,
            table.extensions,
            table.key_ends,
            table.key_text,
            self._blocks.limits.span_bytes,
            self._blocks.limits.shift,
            -1 << self._blocks.limits.shift,
        )
        if use_mmap:
            with file.closing_on_error():
                try:
                    file.map(table.identity.size)
                except ValueError:
                    self._raise_short(0, table.identity.size)

    @property
    def is_leased(self) -> bool:
        """True if its file stays in the cache as long as it is open."""
        return not self._file.is_inherited

    @property
    def version(self) -> str:
        """In the cache, the version of its origin; else the file and the time at which it was written."""
        if self._version is None:
            self._version = state_in(self.table.identity)
            if not self._version and not self.is_leased:
                with suppress(ClosedFileError, OSError), self._file.using():
                    self._version = f"{os.fstat(self._file.fd).st_ino}.{self._mtime_ns}"
        return self._version

    def fileno(self) -> int:
        """The descriptor of the open shard; -1: it was closed."""
        return self._file.fd

    def pin(self) -> bool:
        """Keep the file open for a use; see `Reader.pin`."""
        return self._file.pin()

    def unpin(self) -> None:
        """End a use; see `Reader.unpin`."""
        self._file.unpin()

    def close(self) -> None:
        """Close the file; bytes read ahead can still be read. See `Reader.close`."""
        self._file.close()

    def read(self, row: int, fields: Wanted = None) -> Sample:
        """Read a sample; see `Reader.read`."""
        kept, tag, starts, offsets, sizes, ids, names, ends, text, span, shift, mask = self._hot
        first, end = starts[row], starts[row + 1]
        lo = offsets[first]
        hi = offsets[end - 1] + sizes[end - 1]
        if fields is not None or hi - lo > span:
            return self._read_apart(row, fields)
        data = kept.get(tag + (lo >> shift))
        if data is None:
            data, base = self._blocks.read(self, lo, hi)
        else:
            base = lo & mask
        sample: Sample = {}
        for m in range(first, end):
            at = offsets[m] - base
            sample[names[ids[m]]] = BytesIO(data[at : at + sizes[m]])
        key = text[ends[row] : ends[row + 1]]
        sample["__key__"] = key if isinstance(key, str) else key.decode("utf-8", "surrogateescape")
        return sample

    def read_rows(self, rows: Sequence[int], fields: Wanted = None) -> list[Sample]:
        """Read several samples; see `Reader.read_rows`.

        The loop is `read` written out: at 200 bytes a sample, the calls and look-ups that it saves are a third of the
        time.
        """
        if fields is not None:
            return self._read_all_apart(rows, fields)
        if self.table.links:  # data of a sample may be anywhere before it
            return [self.read(row) for row in rows]
        kept, tag, starts, offsets, sizes, ids, names, ends, text, span, shift, mask = self._hot
        is_text = isinstance(text, str)
        top = 0  # the block in ``data`` holds the small samples that begin below this offset
        samples: list[Sample] = []
        apart = []
        for row in rows:
            first, end = starts[row], starts[row + 1]
            lo = offsets[first]
            hi = offsets[end - 1] + sizes[end - 1]
            if hi - lo > span:
                apart.append(len(samples))
                samples.append({})
                continue
            if lo >= top:
                block = kept.get(tag + (lo >> shift))
                if block is None:
                    data, base = self._blocks.read(self, lo, hi)
                else:
                    data, base = block, lo & mask
                    top = base - mask
            sample: Sample = {}
            for m in range(first, end):
                at = offsets[m] - base
                sample[names[ids[m]]] = BytesIO(data[at : at + sizes[m]])
            key: Any = text[ends[row] : ends[row + 1]]
            sample["__key__"] = key if is_text else key.decode("utf-8", "surrogateescape")
            samples.append(sample)
        if apart:
            samples_apart = self._read_all_apart([rows[position] for position in apart], None)
            for position, sample in zip(apart, samples_apart, strict=True):
                samples[position] = sample
        return samples

    def expect(self, rows: Sequence[int], fields: Wanted = None) -> None:
        """Announce rows that will be read; see `Reader.expect`."""
        offsets, sizes, starts, file = self.table.offsets, self.table.sizes, self.table.starts, self._file
        with suppress(ClosedFileError, OSError), file.using():
            for row in rows:
                span = range(starts[row], starts[row + 1])
                if fields is None:
                    lo, last = offsets[span[0]], span[-1]
                    page_cache.begin_reading(file.fd, lo, offsets[last] + sizes[last] - lo)
                else:
                    for m in self.table.chosen(span, fields):
                        page_cache.begin_reading(file.fd, offsets[m], sizes[m])

    def read_parts(self, parts: Sequence[RowPart]) -> list[bytes]:
        """Read parts of members; see `Reader.read_parts`."""
        spans = [self.table.span_of(part.row, part.name, part.lo, part.hi) for part in parts]
        return self.pread_all([(lo, hi - lo) for lo, hi in spans])

    def pread(self, offset: int, size: int) -> bytes:
        """``size`` bytes of the shard from ``offset``; see `pread_all`."""
        return self.pread_all(((offset, size),))[0]

    def pread_all(self, spans: Sequence[tuple[int, int]], *, is_again: bool = False) -> list[bytes]:
        """The bytes of some spans of the shard, each an offset and a size; ``is_again``: after it was opened again.

        Raises:
            TruncatedShardError: the file has become shorter than its member table says.
            ChangedShardError: it was written to, and its members are not where they were.
            ClosedReaderError: this reader is closed. ShardError: it cannot be read.
        """
        file, parts = self._file, []
        uses, offset, size = file.uses, 0, 0
        uses.append(None)  # as `file.using()`, which would take as long as the read
        try:
            if file.is_closed:
                file.check_pinned()
            mapped = file.mapped
            for offset, size in spans:
                if mapped is not None:
                    if os.lseek(file.fd, 0, os.SEEK_END) < self.table.identity.size:
                        self._raise_short(offset, size)
                    parts.append(mapped[offset : offset + size])
                    continue
                data = system.pread(file.fd, size, offset)
                if len(data) != size:
                    data += self._read_rest(offset + len(data), size - len(data))
                parts.append(data)
            # After the reads: a write before them shows. Without this, members that were moved within the
            # file would be read as one another.
            if mapped is None and os.fstat(file.fd).st_mtime_ns != self._mtime_ns:
                self._check_layout()
        except ClosedFileError:
            raise ClosedReaderError(f"{self.url}: was closed; open the shard again", shard=self.url) from None
        except OSError as error:
            return self._read_again(spans, offset, size, error, is_again=is_again)
        finally:
            uses.pop()
            if file.is_closed:
                file.end_if_unused()
        return parts

    def read_ahead(self, offset: int, size: int) -> bytes | None:
        """`pread`; None where some of it cannot be read, which is no error as long as just that is not requested."""
        try:
            return self.pread(offset, size)
        except ClosedReaderError:
            raise
        except ShardError:
            return None

    def _read_apart(self, row: int, fields: Wanted) -> Sample:
        """A sample member by member."""
        _, _, starts, offsets, sizes, ids, names, _, _, _, _, _ = self._hot
        first, end = starts[row], starts[row + 1]
        sample: Sample = {}
        if fields is None and end - first == 1:  # lists of one member take 2 % of the time of 80 kB
            sample[names[ids[first]]] = BytesIO(self.pread(offsets[first], sizes[first]))
        else:
            wanted = range(first, end) if fields is None else self.table.chosen(range(first, end), fields)
            data = self.pread_all([(offsets[m], sizes[m]) for m in wanted])
            for m, each in zip(wanted, data):  # noqa: B905 - to be strict takes longer
                sample[names[ids[m]]] = BytesIO(each)
        sample["__key__"] = self.table.key(row)
        return sample

    def _read_all_apart(self, rows: Sequence[int], fields: Wanted) -> list[Sample]:
        """`_read_apart` of several samples; the file is looked at once after all of the reads."""
        _, _, starts, offsets, sizes, ids, names, _, _, _, _, _ = self._hot
        spans = [range(starts[row], starts[row + 1]) for row in rows]
        wanted: Sequence[Sequence[int]] = (
            spans if fields is None else [self.table.chosen(span, fields) for span in spans]
        )
        data = iter(self.pread_all([(offsets[m], sizes[m]) for members in wanted for m in members]))
        samples = []
        for row, members in zip(rows, wanted):  # noqa: B905 - as in `_read_apart`
            sample: Sample = {names[ids[m]]: BytesIO(next(data)) for m in members}
            sample["__key__"] = self.table.key(row)
            samples.append(sample)
        return samples

    def _check_layout(self) -> None:
        """The file's modification time is another one: continue if each member is still where the table says.

        It may just have been touched, which saves files from being purged and must not end a training.
        """
        fd = self._file.fd
        status = os.fstat(fd)
        try:
            is_same = _has_layout(fd, self.url, status.st_size, self.table)
        except TarError as error:
            if status.st_size < self.table.identity.size:
                self._raise_short(0, self.table.identity.size)
            logger.debug("%s", error)
            is_same = False
        if not is_same:
            raise ChangedShardError(
                f"{self.url}: {self.path} was written to after it was opened, and its members are not where they were. "
                "Write or fetch the shard again, and restart",
                shard=self.url,
            )
        self._mtime_ns = status.st_mtime_ns

    def _read_again(
        self, spans: Sequence[tuple[int, int]], offset: int, size: int, error: OSError, *, is_again: bool
    ) -> list[bytes]:
        """Read spans once more after an error, which was at ``offset``, if the file could be opened again."""
        if is_again or not self._open_again(error):
            raise ShardReadError(
                f"{self.url}: {size} bytes at byte {offset} of {self.path} cannot be read ({error})",
                shard=self.url,
                offset=offset,
            ) from error
        return self.pread_all(spans, is_again=True)

    def _open_again(self, error: OSError) -> bool:
        """A network file system has lost the open file: continue with the one of that name, if it is the same shard."""
        file, size = self._file, self.table.identity.size
        if file.mapped is not None or not system.is_stale(error):
            return False
        try:
            other, _ = type(file).open(self.path)
        except OSError:
            return False
        try:
            status = os.fstat(other.fd)
            if status.st_size != size or not other.begin():
                return False
            if status.st_mtime_ns != self._mtime_ns and not _has_layout(other.fd, self.url, size, self.table):
                return False
            file.take_over(other)
        except (OSError, ShardError):
            return False
        finally:
            other.close()
        self._mtime_ns, self._version = status.st_mtime_ns, None  # of another file, perhaps
        logger.warning("%s: %s could not be read any more (%s), and was opened again", self.url, self.path, error)
        return True

    def _read_rest(self, offset: int, size: int) -> bytes:
        """A read came up short: past 2 GiB the kernel returns less than asked; else the file was cut."""
        parts = []
        while size:
            part = system.pread(self._file.fd, size, offset)
            if not part:
                self._raise_short(offset, size)
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return b"".join(parts)

    def _raise_short(self, offset: int, size: int) -> NoReturn:
        actual, expected = os.fstat(self._file.fd).st_size, self.table.identity.size
        error = ChangedShardError if actual >= expected else TruncatedShardError
        raise error(
            f"{self.url}: reading {size} bytes at byte {offset} of {self.path} came up short: the file had {expected} "
            f"bytes when it was opened and has {actual} now. Write or fetch the shard again, and restart",
            shard=self.url,
            offset=offset,
            expected=expected,
            found=actual,
        )


def _has_layout(fd: int, url: str, size: int, table: MemberTable) -> bool:
    """True if all members of a table are where it says, in an open archive of ``size`` bytes.

    Raises:
        TarError: it is no readable archive.
    """
    members = {(name, offset, size) for name, _, offset, size in member_tables.scan_members(fd, url, size)}
    return all(
        (encode_name(table.key(row) + extension), offset, size) in members
        for row in range(table.nsamples)
        for extension, offset, size in table.members(row)
    )

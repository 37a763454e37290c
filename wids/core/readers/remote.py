"""Reading samples of a remote shard member by member, nothing downloaded.

Rules: each member is read together with its header, which must say what the member table says, and each whole sample
with the header behind it, which must not be of one more member, and the gaps between members, where none may be that
the table does not know; a table that is stale is found out before it gives a wrong byte. Where extended headers say it
(long names, names beyond ASCII, huge members), they are read too, and where that does not decide it either, or there
are hard links, all headers are. What a call asks for is read in as few requests as pay, all at the same time; from a
store without strong versions, each sample in one, from its first byte to its last, so that it is of one version.
Before each read it asks whether the shard is still to be read in this way; where it is not, the reader closes, and the
shard is opened in another way the next time.
"""

from __future__ import annotations

import itertools
import time
from io import BytesIO
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from wids.core.cache.freshness import version_mark
from wids.core.files.open_file import Closable, ClosedFileError
from wids.core.readers.base import Reader
from wids.core.tables import headers, tar
from wids.core.tables import table as tables
from wids.core.tables.keys import encode_name, first_dot
from wids.core.transport.failures import CancelledTransferError, forget_frames
from wids.errors import ChangedShardError, ClosedReaderError, FetchError, ShardError, TarError, UnsupportedMemberError
from wids.events import RangesRead, emit, logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from wids.core.readers.base import RowPart, Sample
    from wids.core.tables.fields import Wanted
    from wids.core.tables.keys import Split
    from wids.core.tables.table import MemberTable
    from wids.core.transport.range_client import ShardBytes
    from wids.events import Hook

T = TypeVar("T")
_NAME_BYTES = 100  # what fits a header by itself
_REGULAR = frozenset(b"0\x007")
_MEMBERS = _REGULAR | {ord("1")}
# Extended headers of one member are a few blocks; a longer gap has other members in it.
_EXTENDED_BYTES = 64 << 10
# Enough bytes behind the last member to show whether one more follows, also with a long name.
_END_BYTES = 4 << 10


class RangeReader(Reader):
    """One remote shard, read by byte ranges.

    Args:
        source: its bytes.
        table: its member table, from wherever.
        rescan: rebuilds the table from the headers of the shard.
        is_proven: the table comes from the headers of this very version of the shard.
        split: the key rule, on raw names.
        is_due: asked before each read: False if the shard is to be opened again. None: never.
        on_error: called with the reason for not reading it in this way; it is to be opened again, too. None: raise.
        hooks: called with `RangesRead` events.

    Attributes:
        url: the shard's resolved URL; also ``path``.
        table: its member table.
        is_leased: False; there is no file.
        is_remote: True.
    """

    is_remote = True
    __slots__ = (
        "_announced",
        "_closable",
        "_hooks",
        "_is_due",
        "_is_proven",
        "_on_error",
        "_rescan",
        "_seen",
        "_source",
        "_split",
        "path",
        "table",
        "url",
    )

    is_leased = False
    url: str
    path: str
    table: MemberTable

    def __init__(
        self,
        source: ShardBytes,
        *,
        table: MemberTable,
        rescan: Callable[[], MemberTable],
        is_proven: bool = False,
        split: Split = first_dot,
        is_due: Callable[[], bool] | None = None,
        on_error: Callable[[FetchError | ShardError], None] | None = None,
        hooks: Sequence[Hook] = (),
    ) -> None:
        self.url = self.path = source.url
        self.table = table
        self._source, self._rescan, self._is_due, self._on_error = source, rescan, is_due, on_error
        self._closable = Closable()
        self._hooks, self._split = hooks, split
        self._is_proven = is_proven
        self._seen: set[int] = set()  # members whose headers agreed with the table, in this version
        self._announced = source.requests, source.read_bytes

    def pin(self) -> bool:
        """Keep the reader open for a use; see `Reader.pin`."""
        return self._closable.pin()

    def unpin(self) -> None:
        """End a use; see `Reader.unpin`."""
        self._closable.unpin()

    def close(self) -> None:
        """Close the connection; see `Reader.close`."""
        self._closable.close()

    def read(self, row: int, fields: Wanted = None) -> Sample:
        """Read a sample; see `Reader.read`."""
        return self.read_rows([row], fields)[0]

    def read_rows(self, rows: Sequence[int], fields: Wanted = None) -> list[Sample]:
        """Read several samples, all of them at the same time; see `Reader.read_rows`."""
        return self._try(lambda: self._read_rows(rows, fields))

    @property
    def version(self) -> str:
        """The server's, once it has answered."""
        return version_mark(self._source.known_version)

    def read_parts(self, parts: Sequence[RowPart]) -> list[bytes]:
        """Read parts of members, all of them at the same time; see `Reader.read_parts`.

        The header of each member is read with the first part; without strong versions with each, and once more.
        """
        return self._try(lambda: self._read_parts(parts))

    def _try(self, read: Callable[[], T]) -> T:
        """The result of a read, if the shard is still to be read in this way."""
        try:
            with self._closable.using():
                if self._is_due is None or self._is_due():
                    return read()
        except ClosedFileError:
            raise self._closed() from None
        except CancelledTransferError:
            if self._is_due is None:
                raise
        except (FetchError, ShardError) as error:
            if self._on_error is None:
                raise
            logger.debug("%s: not read by byte ranges any more (%s)", self.url, error)
            self._on_error(error)
            forget_frames(error)
        self.close()
        raise self._closed()

    def _closed(self) -> ClosedReaderError:
        return ClosedReaderError(f"{self.url}: was closed; open the shard again", shard=self.url)

    def _read_rows(self, rows: Sequence[int], fields: Wanted) -> list[Sample]:
        table = self.table
        spans_of_rows = [range(table.starts[row], table.starts[row + 1]) for row in rows]
        members = [[*span] if fields is None else table.chosen(span, fields) for span in spans_of_rows]
        flat = list(itertools.chain.from_iterable(members))
        offsets, sizes = table.offsets, table.sizes
        source, start = self._source, time.perf_counter()
        is_strong = source.is_strong
        # With the header behind a sample, where the table may be of another version, in which it ended earlier.
        # The same holds for gaps between members, which belong to no sample according to the table.
        is_sure = (self._is_proven and is_strong) or fields is not None
        last = set() if is_sure else {mine[-1] for mine in members}
        holes = [[] if is_sure else self._holes(mine) for mine in members]
        ends = [offsets[m] + (_padded(sizes[m]) + headers.BLOCK if m in last else sizes[m]) for m in flat]
        spans = {m: (offsets[m] - headers.BLOCK, end) for m, end in zip(flat, ends, strict=True)}
        extended = None
        if is_strong:
            wanted = [*(spans[m] for m in flat), *itertools.chain.from_iterable(holes)]
            data = source.read_many(wanted)
            pieces, between = dict(zip(flat, data, strict=False)), data[len(flat) :]
        else:
            pieces, extended, between = self._read_in_one(members, spans, holes)
        if flat:
            self._announce(start)
        if is_strong and not source.is_strong:  # not any more: these may be of several versions
            return self._read_rows(rows, fields)
        names = {m: (table.key(row), extension) for row in rows for m, extension in self._members(row) if m in pieces}
        gaps = zip(itertools.chain.from_iterable(holes), between, strict=True)
        missed = [lo for (lo, _), data in gaps if self._has_member(lo, data)]
        was_proven = self._is_proven
        self._check(pieces, names, last, extended, missed)
        if extended is not None and self._is_proven != was_proven:
            # The headers were read after these bytes, which may be of a version that came and went.
            return self._read_rows(rows, fields)
        samples = []
        for row, mine in zip(rows, members, strict=True):
            sample: Sample = {names[m][1]: BytesIO(pieces[m][headers.BLOCK : headers.BLOCK + sizes[m]]) for m in mine}
            sample["__key__"] = table.key(row)
            samples.append(sample)
        return samples

    def _read_parts(self, parts: Sequence[RowPart]) -> list[bytes]:
        table, source = self.table, self._source
        names = {table.find_member(part.row, part.name): (table.key(part.row), part.name) for part in parts}
        spans = [table.span_of(*part) for part in parts]
        if not source.is_strong:
            self._seen.clear()
        unseen = {m: name for m, name in names.items() if m not in self._seen}
        places = [(table.offsets[m] - headers.BLOCK, table.offsets[m]) for m in unseen]
        start = time.perf_counter()
        data = source.read_many([*places, *spans])
        head, pieces = data[: len(places)], data[len(places) :]
        self._check(dict(zip(unseen, head, strict=True)), unseen, (), None, (), is_part=True)
        for (lo, hi), piece, part in zip(spans, pieces, parts, strict=True):
            if len(piece) != hi - lo:
                raise self._moved((table.key(part.row), part.name))
        if source.is_strong:
            self._seen.update(unseen)
        elif len(unseen) < len(names):  # not any more: the headers that were seen may be of another version
            return self._read_parts(parts)
        elif source.read_many(places) != head:
            raise self._moved(next(iter(unseen.values())))
        self._announce(start)
        return pieces

    def _announce(self, start: float) -> None:
        """Tell hooks what was read since the last time: where threads read at once, each byte is in one event."""
        was, self._announced = self._announced, (self._source.requests, self._source.read_bytes)
        event = RangesRead(
            url=self.url,
            requests=self._announced[0] - was[0],
            size_bytes=self._announced[1] - was[1],
            seconds=time.perf_counter() - start,
        )
        emit(self._hooks, event)

    def _read_in_one(
        self,
        members: Sequence[Sequence[int]],
        spans: dict[int, tuple[int, int]],
        holes: Sequence[Sequence[tuple[int, int]]],
    ) -> tuple[dict[int, bytes], dict[int, bytes], list[bytes]]:
        """The bytes of members, each sample in one request; those before their headers, which may be extended ones.

        Args:
            members: those wanted of each sample; of one that has none, nothing is read.
            spans: of each member.
            holes: of each sample; their bytes come third.
        """
        starts = self._starts_before([m for mine in members for m in mine])
        wanted = [[(starts[m], spans[m][1]) for m in mine] + [*hole] for mine, hole in zip(members, holes, strict=True)]
        samples = [(min(lo for lo, _ in some), max(hi for _, hi in some)) if some else (0, 0) for some in wanted]
        pieces, extended, between = {}, {}, []
        for mine, hole, (lo, _), data in zip(members, holes, samples, self._source.read_many(samples), strict=True):
            for m in mine:
                begin, end = spans[m]
                pieces[m], extended[m] = data[begin - lo : end - lo], data[starts[m] - lo : begin + headers.BLOCK - lo]
            between += [data[begin - lo : end - lo] for begin, end in hole]
        return pieces, extended, between

    def _holes(self, members: Sequence[int]) -> list[tuple[int, int]]:
        """(lo, hi) of the gaps before, between and behind a sample's members, without members that the table knows.

        Of a gap longer than extended headers, only the first header; behind the shard's last member a few blocks.
        """
        table, holes = self.table, []
        for m in (*members, members[-1] + 1):
            lo = table.offsets[m - 1] + _padded(table.sizes[m - 1]) if m else 0
            is_end = m == len(table.offsets)
            hi = lo + _END_BYTES if is_end else table.links.get(m, table.offsets[m] - headers.BLOCK)
            if lo < hi:
                holes.append((lo, hi if hi - lo <= _EXTENDED_BYTES else lo + headers.BLOCK))
        return holes

    def _has_member(self, begin: int, data: bytes) -> bool:
        """True if a gap contains, from ``begin`` on, a member of a sample."""
        try:
            return any(self._find_parts(name) is not None for name, *_ in self._scan_part(begin, data))
        except TarError:  # they continue elsewhere
            return False

    def _scan_part(self, begin: int, data: bytes) -> Iterator[tar.Member]:
        size = self.table.identity.size - begin
        return tar.scan(lambda offset, count: data[offset : offset + count], size, shard=self.url)

    def _members(self, row: int) -> list[tuple[int, str]]:
        """(number, extension) of each member of a sample."""
        table = self.table
        span = range(table.starts[row], table.starts[row + 1])
        return [(m, table.extensions[table.extension_ids[m]]) for m in span]

    def _check(
        self,
        pieces: dict[int, bytes],
        names: dict[int, tuple[str, str]],
        last: Collection[int],
        extended: dict[int, bytes] | None,
        missed: Sequence[int],
        *,
        is_part: bool = False,
    ) -> None:
        """Raise unless the headers of members agree with the table.

        Args:
            pieces: members with their headers.
            names: key and extension of each.
            last: those that have the next header with them.
            extended: bytes before the headers, read with them; None: that can be read now, it is of the same version.
            missed: offsets of members of samples that the table does not know.
            is_part: the data of the members are not among the pieces.

        Raises:
            ChangedShardError: they do not, and the shard's headers say another table.
        """
        # The header before the data of a hard link has another name; that it is a link, all headers say.
        doubtful, links = [], self.table.links
        unproven = [m for m in pieces if m in links] if links and not (self._is_proven and extended is None) else []
        for m, piece in pieces.items():
            header = piece[: headers.BLOCK]
            size = self.table.sizes[m]
            least = headers.BLOCK + (0 if is_part else size)
            if len(piece) < least or header[156] not in _REGULAR or not headers.is_sum_right(header):
                raise self._moved(names[m])
            member_name = headers.join_prefix(headers.until_nul(header[:_NAME_BYTES]), header)
            if headers.parse_size(header) != size or not (m in links or self._is_named(member_name, names[m])):
                doubtful.append(m)
        if unproven and extended is not None:
            raise UnsupportedMemberError(
                f"{self.url}: {''.join(names[unproven[0]])} is a hard link, and this server does not tell versions of "
                "an object apart, so that its bytes cannot be checked; read the shard with access='fetch'",
                shard=self.url,
            )
        longer = unproven + [m for m in last if self._is_followed(m, pieces[m], names[m][0])]
        is_sure = not doubtful or self._are_extended(doubtful, names, extended)
        if is_sure and not longer and not missed:
            return
        # The headers that are read now may be of another version than the earlier bytes.
        if (extended is not None and not is_sure) or not are_same(self._rescan_now(), self.table):
            if missed and not (longer or doubtful):
                raise self._changed(f"the member at byte {missed[0]} is not in its member table")
            raise self._moved(names[(longer or doubtful)[0]])
        self._is_proven = True

    def _rescan_now(self) -> MemberTable:
        """The table by the headers, which announces itself what it reads."""
        table = self._rescan()
        self._announced = self._source.requests, self._source.read_bytes
        return table

    def _is_followed(self, member: int, piece: bytes, key: str) -> bool:
        """True if the header behind a sample's last member is of one more member of that sample."""
        header = piece[headers.BLOCK + _padded(self.table.sizes[member]) :]
        if len(header) < headers.BLOCK or header[156] not in _MEMBERS or not headers.is_sum_right(header):
            return False
        parts = self._find_parts(headers.join_prefix(headers.until_nul(header[:_NAME_BYTES]), header))
        return parts is not None and parts[0] == encode_name(key)

    def _is_named(self, path: bytes, name: tuple[str, str]) -> bool:
        """True if this is the name of the member with this key and extension."""
        key, extension = map(encode_name, name)
        return path == key + extension or self._find_parts(path) == (key, extension)

    def _find_parts(self, name: bytes) -> tuple[bytes, bytes] | None:
        """(key, extension) of a name; None: it is of no sample."""
        try:
            return self._split(name)
        except Exception:  # noqa: BLE001 - the caller's rule, on what fits a header of a name: anything may come
            return None

    def _are_extended(
        self, members: list[int], names: dict[int, tuple[str, str]], extended: dict[int, bytes] | None
    ) -> bool:
        """True if the extended headers before these members agree with the table.

        If members of no sample precede them, they are not searched: then the version of the shard that
        the table is known to be of has to do.
        """
        before = self._starts_before(members)
        if extended is not None:
            return all(self._is_extended(m, before[m], extended[m], names[m]) for m in members)
        near = [m for m in members if self.table.offsets[m] - before[m] <= _EXTENDED_BYTES]
        if len(near) < len(members) and not self._is_proven:
            return False
        data = self._source.read_many([(before[m], self.table.offsets[m]) for m in near])
        return all(self._is_extended(m, before[m], piece, names[m]) for m, piece in zip(near, data, strict=True))

    def _starts_before(self, members: Sequence[int]) -> dict[int, int]:
        """The end of the previous member of any sample for each of these: only headers are in between."""
        offsets, sizes = np.asarray(self.table.offsets), np.asarray(self.table.sizes)
        ends = np.append(np.uint64(0), np.sort(offsets + (sizes + np.uint64(511)) // np.uint64(512) * np.uint64(512)))
        last = np.searchsorted(ends, offsets[list(members)] - np.uint64(headers.BLOCK), side="right") - 1
        return dict(zip(members, ends[last].tolist(), strict=True))

    def _is_extended(self, member: int, begin: int, data: bytes, name: tuple[str, str]) -> bool:
        """True if headers that begin at ``begin`` in the shard end with one of this member."""
        try:
            for path, _, offset, size in self._scan_part(begin, data):
                if begin + offset == self.table.offsets[member]:
                    return size == self.table.sizes[member] and self._is_named(path, name)
        except TarError:  # the headers continue elsewhere: reading them all decides
            return False
        return False

    def _moved(self, name: tuple[str, str]) -> ChangedShardError:
        return self._changed(f"{''.join(name)} is not where its member table says")

    def _changed(self, what: str) -> ChangedShardError:
        return ChangedShardError(
            f"{self.url}: {what}; the table beside the shard, or in the "
            "pack that its index names, is of another version of it: make it again (wids index create --members, then "
            f"wids index tables), or delete {self.url}{tables.SUFFIX}",
            shard=self.url,
        )


def _padded(size: int) -> int:
    """Number of bytes that a member takes in the shard, without its header."""
    return -(-size // headers.BLOCK) * headers.BLOCK


def are_same(one: MemberTable, other: MemberTable) -> bool:
    """True if two tables put the same members at the same places."""
    return (
        one.nsamples == other.nsamples
        and list(one.offsets) == list(other.offsets)
        and list(one.sizes) == list(other.sizes)
        and list(one.starts) == list(other.starts)
        and list(one.keys()) == list(other.keys())
        and all(list(one.members(row)) == list(other.members(row)) for row in range(one.nsamples))
    )

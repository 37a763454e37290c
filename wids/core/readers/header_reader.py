"""The bytes of a shard that are read for its headers: long payloads are skipped, short ones are read through.

Each byte is read at most once, and offsets never go back. A `Window` knows the cost of a read, not where the bytes
come from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wids.core.index.checksums import Checksums
from wids.core.tables import table as tables
from wids.core.tables.tar import Members
from wids.core.transport.failures import CancelledTransferError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from wids.core.files.identity import Identity
    from wids.core.tables.table import Group, KeyRule, MemberTable
    from wids.core.transport.range_client import ShardBytes

# A request takes about as long as these bytes: payload that is shorter is read, longer payload is skipped.
WORTH_BYTES = 1 << 20
# After a skip, so much is read: the next header, and those of the small members that stand beside a large one.
_AFTER_SKIP_BYTES = 32 << 10
FIRST_BYTES, _GROWTH, _MAX_BYTES = 256 << 10, 4, 8 << 20


class Window:
    """Reads for `wids.core.tables.tar.scan`, which asks for headers, from a place where each read has its price.

    Where members are short, their payload is read with them, in ever longer pieces; where it is long, it is skipped.
    For checksums, all is read, piece by piece. Where all passes anyway, its CRC-32 is computed.

    Args:
        read: ``read(offset, n)``, as `scan` wants it.
        size: of the shard, in bytes.
        is_cancelled: asked before each read.
        summed_bytes: if not 0, read everything for checksums, so much at a time.
        checksums: their keys.
        first: the shard's first bytes, if they are here already.
        fills_gaps: also read payload that is shorter than a request, while the checksum of all bytes is still possible.
    """

    def __init__(
        self,
        read: Callable[[int, int], bytes],
        size: int,
        *,
        is_cancelled: Callable[[], bool] = lambda: False,
        summed_bytes: int = 0,
        checksums: Iterable[str] = (),
        first: bytes = b"",
        fills_gaps: bool = False,
    ) -> None:
        self._read, self._size, self._is_cancelled = read, size, is_cancelled
        self._fills_gaps = fills_gaps
        self._is_summing = summed_bytes > 0
        self._digest: Checksums | None = Checksums(checksums if summed_bytes else ("crc32",))
        self._data, self._lo = first, 0
        self._length = summed_bytes or max(len(first), FIRST_BYTES // _GROWTH)
        self._last, self._step = 0, 0.0
        self._digest.update(first)

    def read(self, offset: int, count: int) -> bytes:
        """Up to ``count`` bytes from ``offset`` on; fewer only at the shard's end.

        Offsets go back only where headers are read once more, for hard links.
        """
        if offset < self._lo:
            return self._read(offset, min(count, self._size - offset))
        hop, self._last = offset - self._last, offset
        if hop > _AFTER_SKIP_BYTES:
            self._step = hop if not self._step else 0.75 * self._step + 0.25 * hop
        end = offset + count
        while self._lo + len(self._data) < min(end, self._size):
            self._load(offset, min(end, self._size))
        return self._data[offset - self._lo : end - self._lo]

    def digests(self) -> dict[str, str]:
        """The checksums of the whole shard, by their keys in an index; {} where not all of it was read."""
        while self._is_summing and self._lo + len(self._data) < self._size:
            self._load(self._size, self._size)
        is_whole = self._digest is not None and self._lo + len(self._data) == self._size
        return self._digest.digests() if is_whole and self._digest is not None else {}

    def _load(self, offset: int, end: int) -> None:
        """Have bytes up to ``end``, or the next piece on the way there; those before ``offset`` may go."""
        if self._is_cancelled():
            raise CancelledTransferError
        here = self._lo + len(self._data)
        kept = self._data[max(offset - self._lo, 0) :]
        if self._is_summing:
            length = self._length
        elif self._step > WORTH_BYTES:
            self._length, length = FIRST_BYTES, _AFTER_SKIP_BYTES
        else:
            length = self._length = min(_GROWTH * self._length, _MAX_BYTES)
        is_short = self._fills_gaps and self._digest is not None and offset - here <= WORTH_BYTES
        lo = here if self._is_summing or is_short else max(here, offset)
        more = self._read(lo, min(max(length, 0 if self._is_summing else end - lo), self._size - lo))
        if not more:
            self._size, self._digest = here, None  # it has become shorter, which scan finds out
            return
        if lo > here:
            self._digest = None
        if self._digest is not None:
            self._digest.update(more)
        self._data = kept + more
        self._lo = lo - len(kept)


def scan_headers(
    source: ShardBytes,
    identity: Identity,
    *,
    rule: KeyRule,
    group: Group,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> MemberTable:
    """The member table of a shard that is read by ranges; the bytes between headers are read where that is quicker.

    Args:
        source: its bytes.
        identity: of them.
        rule: see `wids.core.tables.table.build_table`.
        group: of the samples.
        is_cancelled: asked before each read.

    Raises:
        CancelledTransferError: it was cancelled. FetchError: it cannot be read. ShardError: it is not a readable tar.
    """
    window, split = Window(source.read, source.size, is_cancelled=is_cancelled), tables.parse_rule(rule)
    members = Members(window.read, source.size, shard=source.url, split=split)
    return tables.build_table(members, identity=identity, shard=source.url, rule=rule, group=group)
